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
    return f"; {fails_words(found.goodput_fails_rps, _held(plan))}"


def is_unproven(plan: Plan) -> bool:
    """Tell whether the next higher rate kept every goal in its run, though it is not proven to."""
    found = plan.simulation
    return found is not None and found.goodput_fails_rps is not None and kept(found.goodput_fails_rps, _held(plan))


def _held(plan: Plan) -> list[float]:
    return [] if plan.simulation is None else [point.rate_rps for point in plan.simulation.curve if point.held]


def kept(fails: float, held: Iterable[float]) -> bool:
    """Tell whether a rate is among those at which a run kept every goal [1/s]; its last digits may differ."""
    return any(math.isclose(fails, one, rel_tol=SAME_RATE) for one in held)


def fails_words(fails: float, held: Iterable[float]) -> str:
    """Say of the rate above the goodput whether a goal is missed there, or kept in a run that does not prove it.

    held: rates at which a run kept every goal [1/s].

    >>> fails_words(10.8, []), fails_words(10.8, [10.8 * (1.0 + 1e-15)])
    ('at 10.8 req/s a goal is missed', 'at 10.8 req/s that is not proven')
    """
    return f"at {rate(fails)} {'that is not proven' if kept(fails, held) else 'a goal is missed'}"
