"""What a search proved of a fleet: its status, the bound on its cost, and the gap between the two."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Status

OPTIMAL_GAP = 1e-4
"""Relative gap up to which a fleet counts as the optimum."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the search proved: status, lower bound on the cost [$/h] and relative gap; None where there is none.

    The bound is over fleets that columns promise to hold; floor [$/h]: no fleet that keeps up with the demand, promised
    or not, costs less.
    """

    status: Status
    bound: float | None
    gap: float | None
    floor: float | None = None


def gap_of(bound: float | None, cost: float) -> float | None:
    """Share of the cost that a cheaper fleet could save at most [1]; None without a bound."""
    return None if bound is None else 1.0 - bound / cost


def status_of(gap: float | None) -> Status:
    """Optimal where the gap is known and closed, else feasible."""
    return Status.OPTIMAL if gap is not None and gap <= OPTIMAL_GAP else Status.FEASIBLE


def bound_for(promised: float | None, cost: float) -> float | None:
    """The bound over fleets that columns promise, for a fleet of some cost, which may be below all of them [$/h]."""
    return None if promised is None else min(promised, cost)


def proof_of_cost(promised: float | None, floor: float | None, cost: float) -> Proof:
    """What is proven of a fleet of some cost that holds [$/h]; promised: the bound over fleets that columns promise.

    The evaluation accepts more fleets than columns promise: one that costs less than all of those has no gap to them,
    but is optimal only at the floor.
    """
    least = None if floor is None else min(floor, cost)
    bounds = [one for one in (bound_for(promised, cost), least) if one is not None]
    bound = max(bounds, default=None)
    gap = gap_of(bound, cost)
    among = promised is not None and cost >= promised * (1.0 - 1e-9)
    proven = gap is not None and gap <= OPTIMAL_GAP and (among or least == bound)
    return Proof(Status.OPTIMAL if proven else Status.FEASIBLE, bound, gap, least)
