"""Which of several fleets of one cost to take: the one with the most room for more load, then the first of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from optimizer.fleets.evaluate import holds, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

Some = TypeVar("Some")

AS_MUCH = 2e-3
"""Relative difference up to which two fleets have as much room; it is found to 0.1 %."""


def roomiest(fleets: Sequence[Some], carries: Callable[[Some, float], bool]) -> Some:
    """The fleet that keeps its goals at the highest multiple of the demand; the first of such that have as much.

    fleets: that all hold at the demand itself, the one that is preferred first; carries: whether one
    keeps its goals at a multiple of the demand.
    """
    best = fleets[0]
    if len(fleets) == 1:
        return best
    room = _room(best, carries)
    for other in fleets[1:]:
        if carries(other, room * (1.0 + AS_MUCH)):
            best, room = other, _room(other, carries)
    return best


def _room(fleet: Some, carries: Callable[[Some, float], bool]) -> float:
    return largest_load(lambda volume: carries(fleet, volume))


def roomiest_fleet(instance: Instance, fleets: Sequence[Fleet]) -> Fleet:
    """The same by the evaluation; of fleets with as much room, the one of fewest pools, then of fewest stages."""

    def stages(fleet: Fleet) -> float:
        return sum(float(instance.tables.pipeline[pool.shape]) for pool in fleet.pools)

    simplest = sorted(fleets, key=lambda fleet: (len(fleet.pools), stages(fleet)))
    return roomiest(simplest, lambda fleet, volume: holds(instance, predict_misses(instance, fleet, volume)))
