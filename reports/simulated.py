"""What the views of a simulation show: the runs themselves, as JSON, and as a timeline of steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from costmodel.power import POWER
from costmodel.simulator import Fleet, Result
from costmodel.simulator.metrics import steady_throughput
from costmodel.units import MICRO
from optimizer.fleets.evaluate import QUANTILES, Evaluation
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan
from optimizer.verification.demand import SEEDS
from optimizer.verification.goodput import Curve, Goodput, RatePoint
from optimizer.verification.judge import ClassJudgement, Judgement, Outcome, half_width
from optimizer.verification.record import ClassGaps, FleetUse, PoolUse, Slot


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan, its simulation, and what was asked for beside it.

    e2e: of each class, at p50, p90, p95 and p99 [s]; behind: the pool that falls behind, None where all keep up;
    source: where the requests come from, in words; most: requests that a run of them can have;
    concurrency: of a closed loop, 0 for an open one; analytic: prediction at the simulated rate with expected step
    times, None where requests do not come at one rate; slots: of a day; goodput, curve: if asked for; seed: of the
    first run's requests, None where they were recorded; until: half width of an interval that was asked for [1];
    cpu_seconds: of all runs [s].
    """

    plan: Plan
    instance: Instance
    judgement: Judgement
    use: FleetUse
    gaps: tuple[ClassGaps, ...]
    e2e: tuple[tuple[float, ...], ...]
    behind: str | None
    source: str
    most: int
    concurrency: int = 0
    analytic: Evaluation | None = None
    slots: tuple[Slot, ...] = ()
    goodput: Goodput | None = None
    curve: Curve | None = None
    seed: int | None = None
    until: float | None = None
    cpu_seconds: float = 0.0

    @property
    def seeds(self) -> list[int]:
        """Seed of each run; none where its requests were recorded."""
        return [] if self.seed is None else [self.seed + SEEDS * number for number in range(len(self.judgement.runs))]


def requests_to_decide(judgement: Judgement) -> int | None:
    """Requests of each run that would decide, rounded up to two digits; None where it is decided, or none would."""
    if judgement.outcome is not Outcome.UNDECIDED or not math.isfinite(judgement.deciding):
        return None
    digit = int(10 ** max(math.floor(math.log10(judgement.deciding)) - 1, 0))
    return math.ceil(judgement.deciding / digit) * digit


SIMULATION_SCHEMA: Final = "pdplan.simulation/1"
NAMES: Final = tuple(f"p{100 * share:g}" for share in QUANTILES)
UNITS: Final = {"power": "power_w", "tdp": "tdp_w", "energy": "energy_j"}
"""Fields of a pool's use that have a unit, and their keys."""


def simulation_json(shown: Simulated) -> dict[str, Any]:
    """Give the simulation as a JSON document."""
    judgement, state = shown.judgement, shown.judgement.overload
    served, tokens = zip(*(steady_throughput(run.result) for run in judgement.runs), strict=True)
    return {
        "schema": SIMULATION_SCHEMA,
        "plan": shown.plan.name,
        "source": shown.source,
        "rate_rps": judgement.rate,
        "concurrency": shown.concurrency or None,
        "requests": sum(run.demand.trace.size for run in judgement.runs),
        "replications": len(judgement.runs),
        "seeds": shown.seeds,
        "cpu_s": shown.cpu_seconds,
        "half_width": half_width(judgement),
        "until": shown.until,
        "verdict": str(judgement.outcome),
        "requests_to_decide": requests_to_decide(judgement),
        "held": judgement.proven,
        "overload": {
            "overloaded": state.overloaded,
            "growth": state.growth,
            "drift": state.drift,
            "where": state.where if state.overloaded else None,
            "pool": shown.behind,
        },
        "served_rps": sum(served) / len(served),
        "output_tokens_per_s": sum(tokens) / len(tokens),
        "classes": [_class_json(shown, number, one) for number, one in enumerate(judgement.classes)],
        "pools": [_pool_json(pool) for pool in shown.use.pools],
        "energy": _energy_json(shown.use),
        "slots": [{"rate_rps": slot.rate, "attainment": list(slot.attainment)} for slot in shown.slots] or None,
        "goodput": None if shown.goodput is None else _goodput_json(shown.goodput),
        "curve": None if shown.curve is None else _curve_json(shown.curve),
    }


def _class_json(shown: Simulated, number: int, one: ClassJudgement) -> dict[str, Any]:
    planned = shown.plan.classes[number]
    analytic: dict[str, Any] | None = None
    if shown.analytic is not None:
        analytic = {
            "attainment": float(shown.analytic.attainment[number]),
            "ttft_s": dict(zip(NAMES, shown.analytic.ttft[number].tolist(), strict=True)),
            "tpot_s": dict(zip(NAMES, shown.analytic.tpot[number].tolist(), strict=True)),
        }
    return {
        **_attained_json(one),
        "attainment_goal": one.goal,
        "verdict": str(one.outcome),
        "held": one.proven,
        "e2e_s": dict(zip(NAMES, shown.e2e[number], strict=True)),
        "itl_max_s": _gaps_json(shown.gaps[number]),
        "analytic": analytic,
        "plan": {
            "attainment": planned.attainment,
            "ttft_s": planned.ttft_s.model_dump(),
            "tpot_s": planned.tpot_s.model_dump(),
        },
    }


def _attained_json(one: ClassJudgement) -> dict[str, Any]:
    return {
        "name": one.name,
        "attainment": one.attainment.share,
        "attainment_low": one.attainment.low,
        "attainment_high": one.attainment.high,
        "counted": one.attainment.count,
        "ttft_s": dict(zip(NAMES, one.ttft, strict=True)),
        "tpot_s": dict(zip(NAMES, one.tpot, strict=True)),
        **{f"{metric}_s": dict(zip(NAMES, values, strict=True)) for metric, values in one.metrics.items()},
    }


def _gaps_json(gaps: ClassGaps) -> dict[str, float]:
    return {**dict(zip(NAMES, gaps.quantiles, strict=True)), "max": gaps.longest}


def _pool_json(pool: PoolUse) -> dict[str, Any]:
    return {UNITS.get(name, name): getattr(pool, name) for name in PoolUse.__dataclass_fields__}


def _energy_json(use: FleetUse) -> dict[str, Any]:
    return {
        "energy_j": use.energy,
        "power_w": use.power,
        "wh_per_1000_output_tokens": use.wh_per_1000_tokens,
        "origin": POWER.origin.value,
        "source": POWER.source,
    }


def _goodput_json(found: Goodput) -> dict[str, Any]:
    return {
        "rate_rps": found.rate,
        "fails_at_rps": found.fails,
        "tolerance": found.tolerance,
        "points": [_point_json(point) for point in found.points],
    }


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "saturation_rps": curve.saturation,
        "knee_rps": curve.knee,
        "goodput_rps": curve.goodput.rate,
        "points": [_point_json(point) for point in curve.points],
    }


def _point_json(point: RatePoint) -> dict[str, Any]:
    return {
        "rate_rps": point.rate,
        "served_rps": point.served,
        "in_time_rps": point.in_time,
        "output_tokens_per_s": point.tokens,
        "e2e_mean_s": point.e2e,
        "attainment": [one.attainment.share for one in point.classes],
        "ttft_p90_s": [one.ttft[1] for one in point.classes],
        "tpot_p90_s": [one.tpot[1] for one in point.classes],
        "classes": [_attained_json(one) for one in point.classes],
        "overloaded": point.overloaded,
        "verdict": str(point.outcome),
        "held": point.proven,
        "proven": point.proven,
    }


def timeline_json(pools: Sequence[str], engines: Fleet, result: Result, start: float, end: float) -> str:
    """Chrome-trace events of the steps between two times [s], for chrome://tracing or Perfetto.

    One process per engine, one thread per micro-batch in flight; a row of several equal decode steps is one event.
    """
    lanes = [
        (number, lane) for number, use in enumerate(result.engines) for lane in range(engines.pools[use.pool].pipeline)
    ]
    events: list[dict[str, Any]] = []
    for number, use in enumerate(result.engines):
        name = f"{pools[use.pool]} engine {number}"
        events.append({"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}})
    for lane, begin, finish, prompts, decodes, context, steps in result.steps_log.tolist():
        if begin < end and finish > start:
            engine, batch = lanes[int(lane)]
            events.append(
                {
                    "name": _step_name(int(prompts), int(decodes), int(steps)),
                    "cat": "prefill" if prompts and not decodes else "decode" if not prompts else "mixed",
                    "ph": "X",
                    "ts": round(begin / MICRO, 3),
                    "dur": round((finish - begin) / MICRO, 3),
                    "pid": engine,
                    "tid": batch,
                    "args": {
                        "prompt_tokens": int(prompts),
                        "decodes": int(decodes),
                        "context_tokens": int(context),
                        "steps": int(steps),
                    },
                }
            )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _step_name(prompts: int, decodes: int, steps: int) -> str:
    """Name a step by what it holds.

    >>> _step_name(512, 3, 1), _step_name(0, 40, 12)
    ('512 prompt tokens + 3 decodes', '40 decodes x 12')
    """
    parts = [f"{prompts} prompt tokens"] * bool(prompts) + [f"{decodes} decodes"] * bool(decodes)
    return " + ".join(parts) + (f" x {steps}" if steps > 1 else "")
