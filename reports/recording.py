"""Requests that were recorded, as a view of a plan names them: their trace, and not the numbers that pack them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from optimizer.plans.plan import Plan

from .numbers import significant
from .text import clean


def recorded_source(plan: Plan) -> str | None:
    """Name of the trace whose requests the plan was simulated with; None where they were random."""
    recorded = _recorded(plan.provenance.inputs)
    return None if recorded is None else clean(str(recorded.get("source", "a trace")), 60)


def arrival_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """How the requests come: bursty as stated, or as they were recorded."""
    source, burstiness = recorded_source(plan), significant(plan.workload.burstiness)
    if source is None:
        return (("burstiness (CV of inter-arrival times; 1 is Poisson)", burstiness),)
    return (
        ("requests simulated", f"as {source} recorded them"),
        ("burstiness that the formulas take (CV of inter-arrival times that bunch as much)", burstiness),
    )


def readable_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a plan with a digest in place of the packed requests."""
    recorded = _recorded(inputs)
    if recorded is None:
        return dict(inputs)
    digest = hashlib.sha256(str(recorded.get("packed")).encode()).hexdigest()[:16]
    shown = dict(recorded) | {"packed": f"SHA-256 {digest}…"}
    return dict(inputs) | {"workload": dict(inputs["workload"]) | {"recorded": shown}}


def _recorded(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    workload = inputs.get("workload")
    recorded = workload.get("recorded") if isinstance(workload, Mapping) else None
    return recorded if isinstance(recorded, Mapping) else None
