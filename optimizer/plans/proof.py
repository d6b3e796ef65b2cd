"""What a search proved of a fleet: its status, the bound on its cost, and the gap between the two.

Two claims are made, and no third:

    few_pools   no fleet of one pool or two that holds by formula costs less (all of them were looked at in order)
    floor       no fleet at all that the evaluation accepts costs less (`rivals.floor`)

Of a fleet of cost c that holds,

    c >= few_pools   bound = few_pools; optimal where the gap is closed: no fleet of one pool or two costs less
    c <  few_pools   it has more pools, or other settings: bound = floor; optimal only at the floor
    c <  floor       cannot be by formula, so that one of the two is wrong: `ContradictionError`

and the most that any fleet at all could save is 1 - floor / c, whatever the gap. All hold for the engines, the step
times and the parts of latency limits that the search was given.
"""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Status

OPTIMAL_GAP = 1e-4
"""Relative gap up to which a fleet counts as the optimum."""

ROUNDING = 1e-6
"""Relative difference below which costs are the same: solvers keep their limits no better."""


class ContradictionError(Exception):
    """A fleet that holds costs less than was proven that any must: a bug, of the proof or of the evaluation."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the search proved: status, lower bound on the cost [$/h] and relative gap; None where there is none.

    few_pools, floor [$/h]: see the module; the bound is one of the two.
    """

    status: Status
    bound: float | None
    gap: float | None
    floor: float | None = None
    few_pools: float | None = None


def gap_of(bound: float | None, cost: float) -> float | None:
    """Share of the cost that a cheaper fleet could save at most [1]; None without a bound."""
    return None if bound is None else 1.0 - bound / cost


def status_of(gap: float | None) -> Status:
    """Optimal where the gap is known and closed, else feasible."""
    return Status.OPTIMAL if gap is not None and gap <= OPTIMAL_GAP else Status.FEASIBLE


def bound_for(least: float | None, cost: float) -> float | None:
    """The bound over some fleets, for one of some cost; None where it costs less and so is none of them [$/h].

    >>> bound_for(9.0, 10.0), bound_for(10.0, 9.0), bound_for(None, 9.0)
    (9.0, None, None)
    """
    return None if least is None or is_below(least, cost) else min(least, cost)


def proof_of_cost(few_pools: float | None, floor: float | None, cost: float) -> Proof:
    """What is proven of a fleet of some cost that the evaluation accepts [$/h]; see the module.

    Raises ContradictionError for one below the floor.

    >>> proofs = proof_of_cost(10.0, 6.0, 10.0), proof_of_cost(10.0, 6.0, 8.0)
    >>> [(proof.status.value, proof.bound, proof.gap) for proof in proofs]
    [('optimal', 10.0, 0.0), ('feasible', 6.0, 0.25)]
    """
    if is_below(floor, cost):
        raise ContradictionError(f"a fleet of {cost!r} $/h holds, though none below {floor!r} $/h can")
    least = bound_for(floor, cost)
    bound = max((limit for limit in (bound_for(few_pools, cost), least) if limit is not None), default=None)
    gap = gap_of(bound, cost)
    return Proof(status_of(gap), bound, gap, least, few_pools)


def proof_of_judged(few_pools: float | None, floor: float | None, cost: float) -> Proof:
    """What is proven of a fleet of some cost that held for another judge: a simulation, or other parts of the limits.

    The evaluation can be too careful: of a fleet below its floor nothing is proven, which the two costs tell [$/h].
    """
    if is_below(floor, cost):
        return Proof(Status.FEASIBLE, None, None, floor, few_pools)
    return proof_of_cost(few_pools, floor, cost)


def is_below(bound: float | None, cost: float) -> bool:
    """Whether a cost is below a bound by more than rounding; False without a bound."""
    return bound is not None and cost < bound * (1.0 - ROUNDING)
