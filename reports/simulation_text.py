"""A simulation of a plan as text: each class beside what was predicted, each pool's load, the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click
import numpy as np

from costmodel.metric import METRICS, Metric
from costmodel.power import POWER
from costmodel.simulator.metrics import steady_throughput
from costmodel.words import join_words
from optimizer.verification.judge import ClassJudgement, Judgement, Outcome, half_width
from optimizer.verification.record import Slot

from .curve_text import curve_text, goodput_text, outcome_mark, three
from .numbers import count, duration, is_number, percent, percent_beside, rate, si, significant
from .sentences import served_rate
from .simulated import Simulated, requests_to_decide
from .table import Column, render_table
from .text import clean, plural, wrap
from .words import misses_used

LEAST_WIDTH: Final = 56
HOURS: Final = 24.0
"""Of a day."""
COLORS: Final = {Outcome.MEETS: None, Outcome.MISSES: "red", Outcome.UNDECIDED: "yellow"}
"""Of the verdict."""

Paint = Callable[..., str]


def render_simulation(shown: Simulated, width: int = 100, color: bool = False) -> str:
    """Return the simulation as text of `width` columns (56 at least)."""
    width = max(LEAST_WIDTH, width)
    paint: Paint = partial(click.style) if color else _plain
    judgement = shown.judgement
    verdict = [
        paint(line, bold=True, fg=COLORS[judgement.outcome])
        for line in wrap(verdict_sentence(judgement, shown.behind, shown.most), width)
    ]
    requests = sum(run.demand.trace.size for run in judgement.runs)
    runs = f" in {len(judgement.runs)} runs" if len(judgement.runs) > 1 else ""
    about = (
        f"{clean(shown.plan.name, 30)}: {count(requests)} requests{runs} at {rate(judgement.rate)}, {shown.source}; "
        f"the first 10 % of each run are warm-up and not counted.{_precision_words(shown)}"
    )
    blocks = [[*verdict, *wrap(about, width)], _classes(shown, width), _pools(shown, width), _facts(shown, width)]
    if shown.curve is not None:
        blocks.append(curve_text(shown.curve, shown.plan, width))
    elif shown.goodput is not None:
        blocks.append(goodput_text(shown.goodput, shown.plan, width))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _precision_words(shown: Simulated) -> str:
    """Say which seeds the runs had, and to what every class is known."""
    reached = half_width(shown.judgement)
    first, *others = shown.seeds or [0]
    seeds = f"Seed {first}" if not others else f"Seeds {first}, {others[0]}" + (", ..." if len(others) > 1 else "")
    drawn = f"{seeds}; every" if shown.seeds else "Every"
    asked = ""
    if shown.until is not None:
        asked = f", ±{percent(shown.until)} was asked for" + ("" if reached <= shown.until else " and takes too many")
    return f" {drawn} share is known to ±{percent(reached)} (95 %){asked}."


def _plain(text: str, **_style: object) -> str:
    return text


def verdict_sentence(judgement: Judgement, behind: str | None, most: int) -> str:
    """Say first whether the fleet holds; behind: the pool that falls behind; most: requests that a run can have."""
    if judgement.overload.overloaded:
        state, pool = judgement.overload, clean(behind or "the fleet", 30)
        return (
            f"Overloaded at {rate(judgement.rate)}: {pool} falls behind. Of 100 arrivals "
            f"{significant(100 * state.growth)} pile up, and each second adds {duration(state.drift)} of delay, "
            f"most of it in {state.where}."
        )
    missed, undecided = (
        [one for one in judgement.classes if one.outcome is outcome] for outcome in (Outcome.MISSES, Outcome.UNDECIDED)
    )
    if missed:
        names = join_words([clean(one.name, 30) for one in missed])
        return f"Missed at {rate(judgement.rate)}: {names} {'is' if len(missed) == 1 else 'are'} below the goal."
    if undecided:
        parts = "; ".join(map(_undecided_words, undecided))
        return f"Undecided at {rate(judgement.rate)}: {parts}. {deciding_words([judgement], most)}"
    return f"Every class meets its SLO at {rate(judgement.rate)}."


def _undecided_words(one: ClassJudgement) -> str:
    """Write the share of a class with its interval, in which the goal lies."""
    share, low, high, goal = (
        percent_beside(value, one.goal)
        for value in (one.attainment.share, one.attainment.low, one.attainment.high, one.goal)
    )
    return f"{share} of {clean(one.name, 30)} in SLO; the goal of {goal} lies in the 95 % interval, {low} to {high}"


def deciding_words(undecided: Sequence[Judgement], most: int) -> str:
    """Say how many requests of a run would decide all of these; most: that it can have."""
    needed = [requests_to_decide(one) for one in undecided]
    enough = max(one or most + 1 for one in needed)
    if enough > most:
        return f"Not even {count(most)} requests in a run, the most there can be, would decide if the shares stay."
    return f"About {count(enough)} requests in each run would decide if the shares stay: --requests {enough}."


def _classes(shown: Simulated, width: int) -> list[str]:
    columns = [
        Column("class", shrink=True),
        Column("meet the SLO", "right"),
        Column("95 % CI", "right", optional=True),
        Column("TTFT p50/p90/p99", "right"),
        Column("TPOT p50/p90/p99", "right"),
        Column(""),
    ]
    rows = [row for number in range(len(shown.judgement.classes)) for row in _class_rows(shown, number)]
    return ["SLOs", *render_table(rows, columns, width, indent=2).split("\n")]


def _class_rows(shown: Simulated, number: int) -> list[list[str]]:
    """The name, and under it goal, simulated, analytic and planned."""
    one, planned, analytic = shown.judgement.classes[number], shown.plan.classes[number], shown.analytic
    share, slo = one.attainment, shown.instance.problem.slos[number]
    limits = [f"≤ {duration(limit)}" if is_number(limit) else "" for limit in (slo.ttft, slo.tpot)]
    last = ", ".join(
        f"{METRICS[metric].label} ≤ {duration(limit)}"
        for metric, limit in slo.limits.items()
        if metric not in (Metric.TTFT, Metric.TPOT)
    )
    mark = outcome_mark(one.outcome)
    interval = f"{percent(share.low)}–{percent(share.high)}"
    rows = [
        [clean(one.name, 30), *[""] * 5],
        ["  goal", percent(one.goal), "", *limits, last],
        ["  simulated", percent(share.share), interval, three(one.ttft), three(one.tpot), mark],
    ]
    if analytic is not None and analytic.stable:
        latencies = [three(values[number].tolist()) for values in (analytic.ttft, analytic.tpot)]
        rows.append(["  analytic", percent(float(analytic.attainment[number])), "", *latencies, ""])
    elif analytic is not None:
        rows.append(["  analytic", percent(0.0), "", "overloaded", "overloaded", ""])
    told = [three([q.p50, q.p90, q.p95, q.p99]) for q in (planned.ttft_s, planned.tpot_s)]
    return [*rows, ["  plan said", percent(planned.attainment), "", *told, ""]]


def _e2e_words(shown: Simulated) -> list[str]:
    """Say how long the requests of the classes took in all that have a limit on it."""
    parts = [
        f"{clean(slo.name, 30)} {three(times)} for a limit of {duration(slo.e2e)}"
        for slo, times in zip(shown.instance.problem.slos, shown.e2e, strict=True)
        if is_number(slo.e2e)
    ]
    return [f"End to end (p50/p90/p99): {'; '.join(parts)}."] if parts else []


def _metric_words(shown: Simulated) -> list[str]:
    """Say how every other metric was that a class limits."""
    return [
        f"{METRICS[metric].label} of {clean(one.name, 30)} (p50/p90/p99): {three(values)} for a limit of "
        f"{duration(slo.limits[metric])}."
        for slo, one in zip(shown.instance.problem.slos, shown.judgement.classes, strict=True)
        for metric, values in one.metrics.items()
    ]


def _gap_words(shown: Simulated) -> str:
    """Say how long the longest gap between two tokens was."""
    parts = [
        f"{clean(one.name, 30)} p50 {duration(gaps.quantiles[0])}, p99 {duration(gaps.quantiles[3])}, at most "
        f"{duration(gaps.longest)}"
        for one, gaps in zip(shown.judgement.classes, shown.gaps, strict=True)
    ]
    return f"Longest gap between two tokens of a request (ITL max): {'; '.join(parts)}."


def _pools(shown: Simulated, width: int) -> list[str]:
    columns = [
        Column("pool", shrink=True),
        Column("engines", "right"),
        Column("any step", "right"),
        Column("MFU", "right", optional=True),
        Column("MBU", "right"),
        Column("KV mean/peak", "right"),
        Column("preempted", "right"),
        Column("rejected", "right"),
        Column("power", "right", optional=True),
        Column("most running", "right", optional=True),
    ]
    rows = [
        [
            clean(pool.name, 20),
            count(pool.engines),
            percent(pool.utilization),
            percent(pool.mfu),
            percent(pool.mbu),
            f"{percent(pool.kv_occupancy)} / {percent(pool.kv_peak)}",
            _share_of(pool.preemptions, pool.preemption_rate),
            _share_of(pool.rejected, pool.rejection_rate),
            si(pool.power, "W"),
            count(pool.peak_running),
        ]
        for pool in shown.use.pools
    ]
    return ["Pools", *render_table(rows, columns, width, indent=2).split("\n")]


def _share_of(events: int, per_request: float) -> str:
    """Write a number of events, and how many per request there were.

    >>> _share_of(0, 0.0), _share_of(12, 0.006)
    ('0', '12 (0.6 %)')
    """
    return f"{count(events)} ({percent(per_request)})" if events else "0"


def _energy_words(shown: Simulated) -> str:
    use = shown.use
    most = sum(pool.tdp for pool in use.pools)
    return (
        f"Energy: {significant(use.wh_per_1000_tokens)} Wh per 1,000 output tokens, {si(use.power, 'W')} on average of "
        f"{si(most, 'W')} TDP; GPU boards only, their power {POWER.origin.value} from published measurements."
    )


def _slot_words(shown: Simulated) -> str:
    """Say which slot of the day went worst."""
    goals = [one.goal for one in shown.judgement.classes]

    def used(slot: Slot) -> float:
        """Of the permitted misses, in the class that uses most; a class without a request in the slot uses none."""
        return max(misses_used(1.0 if math.isnan(a) else a, g) for a, g in zip(slot.attainment, goals, strict=True))

    worst = max(shown.slots, key=used)
    number = shown.slots.index(worst)
    length = HOURS / len(shown.slots)
    shares = ", ".join(
        f"{clean(one.name, 30)} {percent(share)}"
        for one, share in zip(shown.judgement.classes, worst.attainment, strict=True)
    )
    return (
        f"Worst part of the day: {_clock(number * length)} to {_clock((number + 1) * length)} at {rate(worst.rate)}, "
        f"in SLO: {shares}."
    )


def _clock(hours: float) -> str:
    """Write a time of day.

    >>> _clock(7.5), _clock(24.0)
    ('07:30', '24:00')
    """
    whole, minutes = divmod(round(60 * hours), 60)
    return f"{whole:02d}:{minutes:02d}"


def _facts(shown: Simulated, width: int) -> list[str]:
    """What the rows of the tables stand for, and how many requests did not end."""
    lost = sum(int((~run.result.finished).sum()) for run in shown.judgement.runs)
    speeds = [steady_throughput(run.result) for run in shown.judgement.runs]
    facts = [
        f"Served {rate(float(np.mean([one for one, _ in speeds])))} and "
        f"{count(round(float(np.mean([tokens for _, tokens in speeds]))))} output tokens/s."
    ]
    facts += [*_e2e_words(shown), *_metric_words(shown), _gap_words(shown), _energy_words(shown)]
    if shown.slots:
        facts.append(_slot_words(shown))
    if lost:
        facts.append(f"{plural(lost, 'request')} never ended, and count{'s' * (lost == 1)} as missed.")
    if shown.analytic is not None:
        facts.append("analytic: the queueing formulas at this rate, with the same expected step times.")
    sure = shown.plan.confidence
    slow = f", with step times at the upper end of their {percent(sure)} interval" if sure > 0 else ""
    staged = any(pool.pipeline_parallel > 1 for pool in shown.plan.pools)
    stages = " (of pipelines, of the stages that could run one)" if staged else ""
    facts.append(
        f"any step: share of the time in which a step runs{stages}; one decoding request is enough. The plan's prompt "
        "time is the share with a prompt. MFU, MBU: what the steps need at least, as shares of the peaks over all of "
        "the time."
    )
    facts.append(f"plan said: what plan.json states for {rate(served_rate(shown.plan))}{slow}.")
    return [line for fact in facts for line in wrap(fact, width)]
