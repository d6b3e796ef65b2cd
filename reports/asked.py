"""What a plan was asked for, as its inputs say: classes and limits, what was on offer, recordings, hourly rates."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.metric import Metric, limits_of
from optimizer.plans.plan import Plan
from search_spaces.problem import Slo

from .numbers import MISSING, count, is_number, listed, quantity, significant
from .text import clean

MOST_GPUS: Final = 12
_LIMITS: Final = (
    ("budget", "budget", "$/h"),
    ("power", "power", "W"),
    ("max_gpus", "GPUs", "GPU"),
    ("max_pools", "pools", "pools"),
)
"""Keys of the constraints, what they limit, and the unit."""
_SECONDS: Final = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)s?")
"""A duration as the echo of the inputs writes it: in seconds, with or without the unit."""


def asked(plan: Plan) -> list[Slo]:
    """The classes of a plan; of one without a fleet, which has no results, those of its inputs, NaN where not told."""
    if plan.classes:
        return [Slo(row.name, row.limits, row.attainment_goal, row.share) for row in plan.classes]
    slos = plan.provenance.inputs.get("slo")
    return [
        Slo(
            str(row.get("name") or "default"),
            limits_of(**{str(metric): _number(row.get(metric)) for metric in Metric}),
            *(_number(row.get(key, default)) or math.nan for key, default in (("attainment", None), ("share", 1.0))),
        )
        for row in _rows(slos if isinstance(slos, list) else [slos])
    ]


def offered(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What could be bought and within which limits, as the inputs say it."""
    inputs = plan.provenance.inputs
    rows = [_gpu_words(row) for row in _rows(inputs.get("accelerators"))[:MOST_GPUS]]
    limits = inputs.get("constraints")
    limits = limits if isinstance(limits, Mapping) else {}
    pairs = [(name, _number(limits.get(key)), unit) for key, name, unit in _LIMITS]
    spare = limits.get("headroom")
    spares = _number(spare.get("replicas")) if isinstance(spare, Mapping) else None
    return (
        *((("GPU types", ", ".join(rows)),) if rows else ()),
        *((name, f"at most {quantity(value, unit)}") for name, value, unit in pairs if value is not None),
        *((("spare replicas of every pool", count(spares)),) if spares else ()),
    )


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _gpu_words(row: Mapping[str, Any]) -> str:
    price, stock = _number(row.get("price")), _number(row.get("inventory"))
    terms = [listed(price)] if price is not None else []
    terms += [f"at most {count(stock)}"] if stock is not None else []
    name = clean(str(row.get("name", MISSING)), 24)
    return f"{name} ({', '.join(terms)})" if terms else name


def _number(value: object) -> float | None:
    """A number, or a duration in seconds; None for what is neither.

    >>> _number("0.05s"), _number(0.9), _number("4.9e-06s"), _number(None), _number("soon")
    (0.05, 0.9, 4.9e-06, None, None)
    """
    match = _SECONDS.fullmatch(str(value))
    return float(match[1]) if match else None


def arrival_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """How the requests come: bursty as stated, or as they were recorded."""
    recording, burstiness = _recording(plan.provenance.inputs), significant(plan.workload.burstiness)
    if recording is None:
        return (("burstiness (CV of inter-arrival times; 1 is Poisson)", burstiness),)
    return (
        ("requests simulated", f"as {clean(str(recording.get('source', 'a trace')), 60)} recorded them"),
        ("burstiness that the formulas take (CV of inter-arrival times that bunch as much)", burstiness),
    )


def readable_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a plan with a digest in place of the packed requests."""
    recording = _recording(inputs)
    if recording is None:
        return dict(inputs)
    digest = hashlib.sha256(str(recording.get("packed")).encode()).hexdigest()[:16]
    summary = dict(recording) | {"packed": f"SHA-256 {digest}…"}
    return dict(inputs) | {"workload": dict(inputs["workload"]) | {"recorded": summary}}


def _recording(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    workload = inputs.get("workload")
    recording = workload.get("recorded") if isinstance(workload, Mapping) else None
    return recording if isinstance(recording, Mapping) else None


HOURS: Final = 24


def arrivals(plan: Plan) -> tuple[float, ...]:
    """The stated mean rate of each hour of a day [1/s]; empty where one mean rate was stated."""
    workload: Any = plan.provenance.inputs.get("workload")
    profile = workload.get("diurnal") if isinstance(workload, Mapping) else None
    rates = profile.get("requests_per_second_by_hour") if isinstance(profile, Mapping) else None
    if not isinstance(rates, list) or len(rates) != HOURS or plan.demand_rps <= 0:
        return ()
    if not all(isinstance(value, int | float) and is_number(value) and value >= 0 for value in rates):
        return ()
    return tuple(map(float, rates))


def day_rate(plan: Plan) -> float:
    """Mean over the day of the rate that a fleet for the planned one serves [1/s]; 0 without a profile."""
    rates = arrivals(plan)
    return sum(min(value, plan.demand_rps) for value in rates) / len(rates) if rates else 0.0
