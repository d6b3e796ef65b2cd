"""The cheapest fleet that holds when it is simulated: a best-first search over candidates and their repairs.

Candidates wait in order of their cost. The cheapest is simulated (`verdict`); one that holds wins, for all that is
left costs as much or more. One that misses is repaired, by what made its requests late (`blame`): more replicas for the
pools that are to blame, or the fleet that the search finds where the steps to blame are taken to be slower, that is,
where its utilisation is capped. Repairs wait like candidates, if the limits allow them.

It ends: each turn takes one fleet away, simulates none twice, and adds at most two, which have one round more than what
they mend; none is added after ROUNDS. So K candidates make at most K 2^(ROUNDS + 1) turns, and as a repair by search
is made once only, (K + 1) (ROUNDS + 1). A fleet that did not hold is never returned as one that does.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from optimizer.fleets.build_plan import fleet_cost, keeps_limits
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.rivals.fewer import with_replicas

from .verdict import Bench, Verdict

ROUNDS = 6
"""Repairs of one candidate after each other."""
BLAMED = 0.2
"""Share of the late requests from which a pool gets more engines."""
GROWTH = 0.03
"""Engines that the first repair adds, as a share of the pool; each further one adds twice as many, one at least."""
SLOWER = 1.1
"""Factor on the steps to blame in a repair by search."""

CANDIDATE, REPAIRED = "found by formula", "repaired"
"""What the fleets are called that missed."""

Tried = tuple[str, Verdict]
Resolve = Callable[[Instance], Fleet]
"""Searches for the cheapest fleet of an instance; an empty one where there is none."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A fleet that waits; rounds: repairs that led to it; order decides between equal costs [$/h]."""

    cost: float
    order: int
    fleet: Fleet = field(compare=False)
    rounds: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Searched:
    """What came of the search: the winner, None where nothing held; the nearest miss; all that missed, in order."""

    winner: Verdict | None
    nearest: Verdict | None
    missed: tuple[Tried, ...] = ()
    by_repair: bool = False
    """Whether the winner is a repair."""

    @property
    def repairs(self) -> int:
        """Repairs that were judged."""
        return sum(what == REPAIRED for what, _ in self.missed) + self.by_repair


def cheapest_verified(bench: Bench, fleets: Sequence[Fleet], resolve: Resolve | None = None) -> Searched:
    """Find the cheapest of some fleets, and of what repairs make of them, that holds when it is simulated.

    resolve: repairs by search too, where given; used once, for the first fleet.
    """
    instance, count = bench.instance, itertools.count()
    waiting = [Candidate(fleet_cost(instance, fleet), next(count), fleet) for fleet in fleets if fleet.pools]
    heapq.heapify(waiting)
    nearest: Verdict | None = None
    missed: list[Tried] = []
    while waiting:
        best = heapq.heappop(waiting)
        if bench.judged(best.fleet):  # what held has ended the search
            continue
        found = bench.verdict(best.fleet)
        if found.held:
            return Searched(found, nearest, tuple(missed), best.rounds > 0)
        again = resolve if not missed else None
        missed.append((REPAIRED if best.rounds else CANDIDATE, found))
        nearest = found if nearest is None or _distance(found) < _distance(nearest) else nearest
        for fleet in repaired(instance, found, best.rounds, again):
            if not bench.judged(fleet):
                heapq.heappush(waiting, Candidate(fleet_cost(instance, fleet), next(count), fleet, best.rounds + 1))
    return Searched(None, nearest, tuple(missed))


def _distance(missed: Verdict) -> tuple[bool, float]:
    """How far a fleet is from holding: one that keeps up is nearer than one that does not."""
    return missed.judgement.overload.overloaded, missed.shortfall


def repaired(instance: Instance, missed: Verdict, rounds: int, resolve: Resolve | None = None) -> Iterator[Fleet]:
    """Fleets that may hold where this one missed, within the limits; none after ROUNDS."""
    fault = missed.blame
    if fault is None or rounds >= ROUNDS:
        return
    worst = max(fault.pools.tolist(), default=0.0)
    larger = missed.fleet
    for index, pool in enumerate(missed.fleet.pools):
        if fault.pools[index] >= min(BLAMED, worst):
            more = max(1, math.ceil(pool.replicas * GROWTH * 2.0**rounds - 0.5))
            larger = with_replicas(larger, index, pool.replicas + more)
    if keeps_limits(instance, larger):
        yield larger
    if resolve is not None:
        fleet = resolve(slower(instance, fault.first >= 0.5))
        if fleet.pools and keeps_limits(instance, fleet):
            yield fleet


def slower(instance: Instance, prompts: bool) -> Instance:
    """The instance with the steps that compute prompts, or else those that generate tokens, SLOWER times as long."""
    tables = instance.tables
    if prompts:
        changed = replace(
            tables, prefill_alone=tables.prefill_alone * SLOWER, prefill_time=tables.prefill_time * SLOWER
        )
    else:
        changed = replace(
            tables, decode_base=tables.decode_base * SLOWER, attention_slope=tables.attention_slope * SLOWER
        )
    mixed = replace(
        changed,
        mixed_alone=tables.mixed_alone * SLOWER,
        mixed_base=tables.mixed_base * SLOWER,
        full_base=tables.full_base * SLOWER,
    )
    return replace(instance, tables=mixed)
