"""Which of several fleets of one cost to take: what can be deployed, what survives a loss, what has the most room.

First those that some target of the engine can route, and of these the ones without pipelines where some of them have
AMPLE room: pipelines are the hardest to foresee, and not every target hands over from their stages. Then those that
keep up with the demand, late or not, with a replica less in any pool. Of what is left the one with the most room for
more load; then the first, which has the fewest pools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import Instance
from search_spaces.targets import any_target

Some = TypeVar("Some")

AS_MUCH = 2e-3
"""Relative difference up to which two fleets have as much room."""

TIED = 1e-3
"""Relative difference below which fleets that wait to be simulated cost the same: less than any prediction tells."""

WHOLE = 1e-6
"""Share of a flow that is rounding, not a pool's part of it."""

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


def preferred(
    fleets: Sequence[Some],
    piped: Callable[[Some], bool],
    survives: Callable[[Some], bool],
    carries: Callable[[Some, float], bool],
) -> Some:
    """The roomiest of the foreseeable ones that survive the loss of a replica; of all foreseeable ones if none does."""
    likely = foreseeable(fleets, piped, carries)
    return roomiest([fleet for fleet in likely if survives(fleet)] or likely, carries)


def roomiest_fleet(instance: Instance, fleets: Sequence[Fleet]) -> Fleet:
    """The same by the evaluation of those that some target can route; with as much room, the one of fewest pools."""

    def stages(fleet: Fleet) -> float:
        return sum(float(instance.tables.pipeline[pool.shape]) for pool in fleet.pools)

    def carries(fleet: Fleet, volume: float) -> bool:
        return holds(instance, predict_misses(instance, fleet, volume))

    def survives(fleet: Fleet) -> bool:
        return all(pool_survives(instance, pool) for pool in fleet.pools)

    able = [fleet for fleet in fleets if _routable(instance, fleet)] or fleets
    simplest = sorted(able, key=lambda fleet: (len(fleet.pools), stages(fleet)))
    return preferred(simplest, lambda fleet: stages(fleet) > len(fleet.pools), survives, carries)


def pool_survives(instance: Instance, pool: FleetPool) -> bool:
    """Whether a pool keeps up with its part of the demand with a replica less."""
    return pool.replicas > 1 and pool_state(instance, replace(pool, replicas=pool.replicas - 1), 1.0).stable


def gets_whole(fleet: Fleet) -> bool:
    """Whether each pool gets flows whole or not at all."""
    return all(np.all(np.minimum(pool.route, np.abs(1.0 - pool.route)) < WHOLE) for pool in fleet.pools)


def _routable(instance: Instance, fleet: Fleet) -> bool:
    """Whether some target of the engine has a router for the pools, which get each length whole."""
    return gets_whole(fleet) and any_target(instance.problem.engine).gateway.allows([pool.role for pool in fleet.pools])
