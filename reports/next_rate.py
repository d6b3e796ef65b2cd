"""What is told of the rate above a simulated goodput, and so of the room that is left."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from optimizer.plans.plan import Plan

from .numbers import rate

SAME_RATE: Final = 1e-6
"""Relative difference of two rates that are one: those that are tried lie whole per cents apart."""


def next_rate_words(plan: Plan) -> str:
    """How the next higher rate went that was simulated; nothing where none was."""
    found = plan.simulation
    if found is None or found.goodput_fails_rps is None:
        return ""
    return f"; {fails_words(found.goodput_fails_rps, _not_missed(plan))}"


def is_unproven(plan: Plan) -> bool:
    """Tell whether no goal is shown to be missed at the next higher rate, though none is proven to be kept."""
    found = plan.simulation
    return (
        found is not None and found.goodput_fails_rps is not None and kept(found.goodput_fails_rps, _not_missed(plan))
    )


def _not_missed(plan: Plan) -> list[float]:
    return [] if plan.simulation is None else [point.rate_rps for point in plan.simulation.curve if not point.missed]


def kept(fails: float, not_missed: Iterable[float]) -> bool:
    """Tell whether a rate is among those at which a run missed no goal [1/s]; its last digits may differ."""
    return any(math.isclose(fails, rate_rps, rel_tol=SAME_RATE) for rate_rps in not_missed)


def fails_words(fails: float, not_missed: Iterable[float]) -> str:
    """Say of the rate above the goodput whether a goal is missed there, or its run does not tell.

    not_missed: rates at which a run missed no goal, by the upper ends of its intervals [1/s].

    >>> fails_words(10.8, []), fails_words(10.8, [10.8 * (1.0 + 1e-15)])
    ('at 10.8 req/s an SLO is missed', 'at 10.8 req/s the SLO is not proven')
    """
    return f"at {rate(fails)} {'the SLO is not proven' if kept(fails, not_missed) else 'an SLO is missed'}"
