"""Which of several fleets of one cost to take: the one with the most room for more load, then the first of them.

Only of those without pipelines where some of them have AMPLE room: pipelines are the hardest to foresee, and not every
way to deploy a fleet hands over from their stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

Some = TypeVar("Some")

AS_MUCH = 2e-3
"""Relative difference up to which two fleets have as much room."""

AMPLE = 1.1
"""Multiple of the demand at which a fleet must keep its goals to be preferred to pipelines."""

STEP = 1.25
"""Factor between the multiples of the demand at which a fleet is tried until it does not keep its goals."""

MOST = 1e9
"""Multiple of the demand beyond which nobody looks for room."""


def roomiest(fleets: Sequence[Some], carries: Callable[[Some, float], bool]) -> Some:
    """The fleet that keeps its goals at the highest multiple of the demand; the first of such that have as much.

    fleets: that all hold at the demand itself, the one that is preferred first; carries: whether one keeps its goals at
    a multiple of the demand. The room of the best so far is known between `low` and `high`, and found more exactly only
    as far as it takes to tell that another has less, or more.
    """
    best, low, high = fleets[0], 1.0, MOST
    for other in fleets[1:]:
        while (more := low * (1.0 + AS_MUCH)) < MOST and carries(other, more):
            if high <= more or (high < MOST and carries(other, high)):
                best, low, high = other, max(more, high), MOST
                break
            middle = min(low * STEP, (low + high) / 2.0)
            low, high = (middle, high) if carries(best, middle) else (low, middle)
    return best


def foreseeable(
    fleets: Sequence[Some], piped: Callable[[Some], bool], carries: Callable[[Some, float], bool]
) -> list[Some]:
    """Those of the fleets that are no pipelines and have AMPLE room; all of them where there are none.

    piped: whether a fleet has pipelines; carries: whether it keeps its goals at a multiple of the demand.
    """
    if not any(map(piped, fleets)):
        return list(fleets)
    return [one for one in fleets if not piped(one) and carries(one, AMPLE)] or list(fleets)


def preferred(fleets: Sequence[Some], piped: Callable[[Some], bool], carries: Callable[[Some, float], bool]) -> Some:
    """The roomiest of the foreseeable ones."""
    return roomiest(foreseeable(fleets, piped, carries), carries)


def roomiest_fleet(instance: Instance, fleets: Sequence[Fleet]) -> Fleet:
    """The same by the evaluation; of fleets with as much room, the one of fewest pools, then of fewest stages."""

    def stages(fleet: Fleet) -> float:
        return sum(float(instance.tables.pipeline[pool.shape]) for pool in fleet.pools)

    def carries(fleet: Fleet, volume: float) -> bool:
        return holds(instance, predict_misses(instance, fleet, volume))

    simplest = sorted(fleets, key=lambda fleet: (len(fleet.pools), stages(fleet)))
    return preferred(simplest, lambda fleet: stages(fleet) > len(fleet.pools), carries)
