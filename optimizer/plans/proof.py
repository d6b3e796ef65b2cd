"""What a search proved of a fleet: its status, the bound on its cost, and the gap between the two."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Status

OPTIMAL_GAP = 1e-4
"""Relative gap up to which a fleet counts as the optimum."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the search proved: status, lower bound on the cost [$/h] and relative gap; None where there is none."""

    status: Status
    bound: float | None
    gap: float | None


def gap_of(bound: float | None, cost: float) -> float | None:
    """Share of the cost that a cheaper fleet could save at most [1]; None without a bound."""
    return None if bound is None else 1.0 - bound / cost
