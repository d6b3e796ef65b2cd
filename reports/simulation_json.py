"""A simulation of a plan as a JSON document; units are in the keys."""

from __future__ import annotations

from typing import Any, Final

from costmodel.power import POWER
from costmodel.simulator.metrics import steady_throughput
from optimizer.fleets.evaluate import QUANTILES
from optimizer.verification.goodput import Curve, Goodput, RatePoint
from optimizer.verification.judge import ClassJudgement, half_width
from optimizer.verification.record import ClassGaps, FleetUse, PoolUse

from .simulated import Simulated, requests_to_decide

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
