"""What each SLO class asks for, known with and without a fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from optimizer.plans.plan import Plan

_SECONDS: Final = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)s?")
"""A duration as the echo of the inputs writes it: in seconds, with or without the unit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One class: share of the requests [1], limits [s], goal [1]; None where the plan does not tell."""

    name: str
    share: float | None
    ttft: float | None
    tpot: float | None
    e2e: float | None
    goal: float | None


def asked(plan: Plan) -> list[Asked]:
    """The classes of a plan; of one without a fleet, which has no results, those of its inputs."""
    if plan.classes:
        return [
            Asked(c.name, c.share, c.ttft_limit_s, c.tpot_limit_s, c.e2e_limit_s, c.attainment_goal)
            for c in plan.classes
        ]
    slos = plan.provenance.inputs.get("slo")
    rows = slos if isinstance(slos, list) else [slos]
    return [_from_inputs(row) for row in rows if isinstance(row, Mapping)]


def _from_inputs(row: Mapping[str, Any]) -> Asked:
    return Asked(
        name=str(row.get("name") or "default"),
        share=_number(row.get("share", 1.0)),
        ttft=_number(row.get("ttft")),
        tpot=_number(row.get("tpot")),
        e2e=_number(row.get("e2e")),
        goal=_number(row.get("attainment")),
    )


def _number(value: object) -> float | None:
    """A number, or a duration in seconds; None for what is neither.

    >>> _number("0.05s"), _number(0.9), _number("4.9e-06s"), _number(None), _number("soon")
    (0.05, 0.9, 4.9e-06, None, None)
    """
    found = _SECONDS.fullmatch(str(value))
    return float(found[1]) if found else None
