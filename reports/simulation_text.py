"""A simulation of a plan as text and as JSON: each class beside what was predicted, each pool's load, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
import numpy as np

from costmodel.simulator.metrics import loads, throughput
from costmodel.words import join_words
from optimizer.evaluate import QUANTILES, Evaluation
from optimizer.instance import Instance
from optimizer.judge import ClassJudgement, Judgement
from optimizer.plan import Plan
from optimizer.simulated_goodput import Goodput

from .numbers import count, duration, percent, rate, significant
from .table import Column, render_table
from .text import clean, plural, wrap

SIMULATION_SCHEMA: Final = "pdplan.simulation/1"
LEAST_WIDTH: Final = 72
SHOWN: Final = (0, 1, 3)
"""Of the quantiles p50, p90, p95, p99 those that the table shows."""

Paint = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the views show.

    analytic: prediction at the simulated rate with expected step times, None for a replayed trace; goodput: if asked.
    """

    plan: Plan
    instance: Instance
    judgement: Judgement
    analytic: Evaluation | None
    goodput: Goodput | None = None
    source: str = "requests drawn from the plan's demand"


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One pool over the runs: share of its engines' time in steps and of their KV blocks in use [1], events."""

    name: str
    engines: int
    utilization: float
    kv_occupancy: float
    kv_peak: float
    peak_running: int
    preemptions: int
    rejected: int


def pool_loads(plan: Plan, judgement: Judgement) -> list[PoolLoad]:
    """Load of each pool, the mean over its engines and the runs."""
    found = []
    for number, pool in enumerate(plan.pools):
        blocks = judgement.engines.pools[number].limits.kv_blocks
        pairs = [
            (use, load)
            for run in judgement.runs
            for use, load in zip(run.result.engines, loads(run.result, judgement.engines), strict=True)
            if use.pool == number
        ]
        found.append(
            PoolLoad(
                name=pool.id,
                engines=judgement.engines.pools[number].replicas,
                utilization=float(np.mean([load.utilization for _, load in pairs])),
                kv_occupancy=float(np.mean([load.kv_occupancy for _, load in pairs])),
                kv_peak=max(use.peak_blocks for use, _ in pairs) / blocks,
                peak_running=max(use.peak_running for use, _ in pairs),
                preemptions=sum(use.preemptions for use, _ in pairs),
                rejected=sum(use.rejected for use, _ in pairs),
            )
        )
    return found


def render_simulation(shown: Simulated, width: int = 100, color: bool = False) -> str:
    """Return the simulation as text of `width` columns (72 at least)."""
    width = max(LEAST_WIDTH, width)
    paint: Paint = partial(click.style) if color else _plain
    judgement = shown.judgement
    verdict = paint(verdict_sentence(judgement), bold=True, fg=None if judgement.held else "red")
    requests = sum(run.demand.trace.size for run in judgement.runs)
    runs = f" in {len(judgement.runs)} replications" if len(judgement.runs) > 1 else ""
    about = (
        f"{clean(shown.plan.name, 30)}: {count(requests)} requests{runs} at {rate(judgement.rate)}, {shown.source}; "
        "the first 10 % of each run are warm-up and not counted."
    )
    blocks = [[verdict, *wrap(about, width)], _classes(shown, width), _pools(shown, width), _facts(shown, width)]
    if shown.goodput is not None:
        blocks.append(_goodput(shown.goodput, shown.plan, width))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _plain(text: str, **_style: object) -> str:
    return text


def verdict_sentence(judgement: Judgement) -> str:
    """Say first whether the fleet holds."""
    if judgement.overload.overloaded:
        state = judgement.overload
        return (
            f"Overloaded at {rate(judgement.rate)}: of 100 arrivals {significant(100 * state.growth)} pile up, and "
            f"each second adds {duration(state.drift)} of delay, most of it in {state.where}."
        )
    missed = [one for one in judgement.classes if not one.held]
    if missed:
        names = join_words([clean(one.name, 30) for one in missed])
        return f"Missed at {rate(judgement.rate)}: {names} {'is' if len(missed) == 1 else 'are'} below the goal."
    unsure = "" if all(one.sure for one in judgement.classes) else " (a goal lies within the confidence interval)"
    return f"Every class holds its goal at {rate(judgement.rate)}{unsure}."


def _classes(shown: Simulated, width: int) -> list[str]:
    columns = [
        Column("class", shrink=True),
        Column(""),
        Column("in SLO", "right"),
        Column("95 % CI", "right"),
        Column("TTFT p50/p90/p99", "right"),
        Column("TPOT p50/p90/p99", "right"),
        Column(""),
    ]
    rows = [row for number in range(len(shown.judgement.classes)) for row in _class_rows(shown, number)]
    return ["SLOs", *render_table(rows, columns, width, indent=2).split("\n")]


def _class_rows(shown: Simulated, number: int) -> list[list[str]]:
    """Goal, simulated, analytic and planned, one under the other."""
    one, planned, analytic = shown.judgement.classes[number], shown.plan.classes[number], shown.analytic
    share, slo = one.attainment, shown.instance.problem.slos[number]
    limits = [f"≤ {duration(limit)}" for limit in (slo.ttft, slo.tpot)]
    last = f"e2e ≤ {duration(slo.e2e)}" if slo.e2e is not None else ""
    mark = ("✓" if one.held else "missed") + ("" if one.sure else " (unsure)")
    interval = f"{percent(share.low)}–{percent(share.high)}"
    rows = [
        [clean(one.name, 30), "goal", percent(one.goal), "", *limits, last],
        ["", "simulated", percent(share.share), interval, _three(one.ttft), _three(one.tpot), mark],
    ]
    if analytic is not None and analytic.stable:
        latencies = [_three(values[number].tolist()) for values in (analytic.ttft, analytic.tpot)]
        rows.append(["", "analytic", percent(float(analytic.attainment[number])), "", *latencies, ""])
    elif analytic is not None:
        rows.append(["", "analytic", percent(0.0), "", "overloaded", "overloaded", ""])
    told = [_three([q.p50, q.p90, q.p95, q.p99]) for q in (planned.ttft_s, planned.tpot_s)]
    return [*rows, ["", "plan said", percent(planned.attainment), "", *told, ""]]


def _three(values: Sequence[float]) -> str:
    """p50, p90 and p99 of four quantiles, in milliseconds or seconds.

    >>> _three([0.1, 0.2, 0.3, 0.4])
    '100/200/400 ms'
    """
    three = [values[k] for k in SHOWN]
    large = max((value for value in three if np.isfinite(value)), default=0.0) >= 1.0
    return "/".join(significant(value * (1.0 if large else 1e3)) for value in three) + (" s" if large else " ms")


def _pools(shown: Simulated, width: int) -> list[str]:
    columns = [
        Column("pool", shrink=True),
        Column("engines", "right"),
        Column("busy", "right"),
        Column("KV mean", "right"),
        Column("KV peak", "right"),
        Column("most running", "right", optional=True),
        Column("preempted", "right"),
        Column("rejected", "right"),
    ]
    rows = [
        [
            clean(load.name, 20),
            count(load.engines),
            percent(load.utilization),
            percent(load.kv_occupancy),
            percent(load.kv_peak),
            count(load.peak_running),
            count(load.preemptions),
            count(load.rejected),
        ]
        for load in pool_loads(shown.plan, shown.judgement)
    ]
    return ["Pools", *render_table(rows, columns, width, indent=2).split("\n")]


def _facts(shown: Simulated, width: int) -> list[str]:
    """What the rows of the tables stand for, and how many requests did not end."""
    lost = sum(int((~run.result.finished).sum()) for run in shown.judgement.runs)
    speeds = [throughput(run.result) for run in shown.judgement.runs]
    facts = [
        f"Served {rate(float(np.mean([one for one, _ in speeds])))} and "
        f"{count(round(float(np.mean([tokens for _, tokens in speeds]))))} output tokens/s."
    ]
    if lost:
        facts.append(f"{plural(lost, 'request')} never ended, and count{'s' * (lost == 1)} as missed.")
    if shown.analytic is not None:
        facts.append("analytic: the queueing formulas at this rate, with the same expected step times.")
    sure = shown.plan.confidence
    slow = f", with step times at the slow end of their {percent(sure)} interval" if sure > 0 else ""
    facts.append("busy: share of the time in which a step runs; one decoding request is enough for that.")
    facts.append(f"plan said: what plan.json states for {rate(shown.plan.demand_rps)}{slow}.")
    return [line for fact in facts for line in wrap(fact, width)]


def _goodput(found: Goodput, plan: Plan, width: int) -> list[str]:
    said = f"Goodput {rate(found.rate)}, simulated to {percent(found.tolerance)}; plan: {rate(plan.goodput_rps)}."
    if found.rate <= 0.0:
        said = f"Goodput 0: a class misses its goal even at {rate(found.fails)}."
    columns = [
        Column("rate", "right"),
        Column("in SLO", "right", shrink=True),
        Column("TTFT p90", "right", shrink=True),
        Column("TPOT p90", "right", shrink=True),
        Column(""),
    ]
    rows = [
        [
            rate(point.rate),
            " ".join(percent(share) for share in point.attainment),
            " ".join(duration(value) for value in point.ttft_p90),
            " ".join(duration(value) for value in point.tpot_p90),
            "✓" if point.held else "overloaded" if point.overloaded else "missed",
        ]
        for point in found.points
    ]
    return [*wrap(said, width), *render_table(rows, columns, width, indent=2).split("\n")]


def simulation_json(shown: Simulated) -> dict[str, Any]:
    """Give the simulation as a JSON document; units are in the keys."""
    judgement, state = shown.judgement, shown.judgement.overload
    found = shown.goodput
    return {
        "schema": SIMULATION_SCHEMA,
        "plan": shown.plan.name,
        "source": shown.source,
        "rate_rps": judgement.rate,
        "requests": sum(run.demand.trace.size for run in judgement.runs),
        "replications": len(judgement.runs),
        "held": judgement.held,
        "overload": {
            "overloaded": state.overloaded,
            "growth": state.growth,
            "drift": state.drift,
            "where": state.where if state.overloaded else None,
        },
        "classes": [_class_json(shown, number, one) for number, one in enumerate(judgement.classes)],
        "pools": [
            {field: getattr(load, field) for field in PoolLoad.__dataclass_fields__}
            for load in pool_loads(shown.plan, judgement)
        ],
        "goodput": None
        if found is None
        else {
            "rate_rps": found.rate,
            "fails_at_rps": found.fails,
            "tolerance": found.tolerance,
            "points": [
                {
                    "rate_rps": point.rate,
                    "attainment": list(point.attainment),
                    "ttft_p90_s": list(point.ttft_p90),
                    "tpot_p90_s": list(point.tpot_p90),
                    "overloaded": point.overloaded,
                    "held": point.held,
                }
                for point in found.points
            ],
        },
    }


def _class_json(shown: Simulated, number: int, one: ClassJudgement) -> dict[str, Any]:
    names, planned = [f"p{100 * share:g}" for share in QUANTILES], shown.plan.classes[number]
    analytic: dict[str, Any] | None = None
    if shown.analytic is not None:
        analytic = {
            "attainment": float(shown.analytic.attainment[number]),
            "ttft_s": dict(zip(names, shown.analytic.ttft[number].tolist(), strict=True)),
            "tpot_s": dict(zip(names, shown.analytic.tpot[number].tolist(), strict=True)),
        }
    return {
        "name": one.name,
        "attainment_goal": one.goal,
        "attainment": one.attainment.share,
        "attainment_low": one.attainment.low,
        "attainment_high": one.attainment.high,
        "counted": one.attainment.count,
        "held": one.held,
        "sure": one.sure,
        "ttft_s": dict(zip(names, one.ttft, strict=True)),
        "tpot_s": dict(zip(names, one.tpot, strict=True)),
        "analytic": analytic,
        "plan": {
            "attainment": planned.attainment,
            "ttft_s": planned.ttft_s.model_dump(),
            "tpot_s": planned.tpot_s.model_dump(),
        },
    }
