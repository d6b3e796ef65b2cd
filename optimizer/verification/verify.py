"""The cheapest fleet that holds when it is simulated: a best-first search over candidates and their repairs.

Candidates wait in order of their cost, of equal cost (to TIED) the one that `room` prefers by formula. The cheapest is
simulated (`verdict`); one that holds wins, for all that is left costs as much or more. One that misses is repaired, by
what made its requests late (`blame`): first at no cost, with other settings of the pools that are to blame
(`settings`); where none look better, with more replicas in these pools, and by search, for the cheapest fleet where
these engines bear only what the simulation showed (`cuts`). A search can only find what costs as much as the one before
it found, so it waits until all that costs less is simulated. Repairs wait like candidates.

It ends: each turn takes one fleet away and simulates none twice, or searches. Searches end by themselves (`cuts`), and
there are SEARCHES at most, one fleet each. A fleet that misses adds one with other settings, which adds no further one
of these; or one with more replicas; where the limits forbid that, one for each part of the pools to blame, at most
2^p - 1 of p pools. Either of the latter has one round more than what it mends, and none is added after ROUNDS, so that
there are finitely many. A fleet that did not hold is never returned as one that does.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.rivals.allowed import allowed
from optimizer.rivals.fewer import with_replicas
from optimizer.rivals.room import TIED, roomiest_fleet

from .bench import Bench, Key, Verdict, fleet_key, with_one_life
from .cuts import Rungs, raised, slower
from .judge import Outcome
from .settings import other_settings

ROUNDS = 6
"""Repairs of one candidate after each other."""
GROWTH = 0.03
"""Engines that the first repair adds, as a share of the pool; each further one adds twice as many, one at least."""
SEARCHES = 3
"""Repairs by search."""
WORTH = 0.02
"""Share by which the cheapest fleet that waits costs more than what a search might find for it to be made."""

CANDIDATE, REPAIRED = "found by formula", "repaired"
"""What the fleets are called that missed."""

Tried = tuple[str, Verdict]
Resolve = Callable[[Instance], Fleet]
"""Searches for the cheapest fleet of an instance; an empty one where it finds none."""
Judge = Callable[[Fleet], Verdict]
"""Simulates a fleet."""
Mend = Callable[[Bench, Verdict], Fleet | None]
"""Finds other settings for a fleet that missed; None where none promise to hold."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A fleet that waits; rounds: repairs that led to it; order decides between equal costs [$/h].

    mended: whether it has other settings than the one that it repairs.
    """

    cost: float
    order: int
    fleet: Fleet = field(compare=False)
    rounds: int = field(compare=False, default=0)
    mended: bool = field(compare=False, default=False)

    @property
    def repaired(self) -> bool:
        """Whether it is a repair of another."""
        return self.mended or self.rounds > 0


@dataclass(frozen=True, slots=True)
class Searched:
    """What came of the search: the winner, None where nothing held; the nearest miss; all that missed, in order.

    undecided: the cheapest fleet that had not missed when the time was up.
    """

    winner: Verdict | None
    nearest: Verdict | None
    missed: tuple[Tried, ...] = ()
    undecided: Fleet | None = None
    by_repair: bool = False
    """Whether the winner is a repair."""

    @property
    def repairs(self) -> int:
        """Repairs that were judged."""
        return sum(what == REPAIRED for what, _ in self.missed) + self.by_repair


@dataclass(slots=True)
class _Waiting:
    """Candidates that wait to be simulated at `volume` times the demand, and what was simulated before (`seen`)."""

    instance: Instance
    volume: float
    heap: list[Candidate] = field(default_factory=list)
    seen: set[Key] = field(default_factory=set)
    added: int = 0

    def add(self, fleet: Fleet, rounds: int = 0, *, mended: bool = False) -> None:
        """Let a fleet wait, unless it was simulated; with fewer seats where it has two lives (`second_life`)."""
        fleet = with_one_life(self.instance, fleet, self.volume) if fleet.pools else fleet
        if fleet.pools and fleet_key(fleet) not in self.seen:
            cost, self.added = fleet_cost(self.instance, fleet), self.added + 1
            heapq.heappush(self.heap, Candidate(cost, self.added, fleet, rounds, mended))

    @property
    def cheapest(self) -> float:
        """Cost of the cheapest that waits [$/h]."""
        return self.heap[0].cost if self.heap else math.inf

    def next(self) -> Candidate:
        """Take the cheapest of those that wait; of such that cost the same, the one that `room` prefers."""
        tied = [heapq.heappop(self.heap)]
        while self.heap and self.cheapest <= tied[0].cost * (1.0 + TIED):
            tied.append(heapq.heappop(self.heap))
        best = roomiest_fleet(self.instance, [one.fleet for one in tied])
        chosen = next(one for one in tied if one.fleet is best)
        for other in tied:
            if other is not chosen:
                heapq.heappush(self.heap, other)
        return chosen


@dataclass(slots=True)
class _Searches:
    """Repairs by search; least: what no search can undercut [$/h]; rungs: what it may let engines bear (`cuts`).

    left: searches that may be made; known: the rungs that the last of them had.
    """

    instance: Instance
    resolve: Resolve | None
    least: float
    left: int = SEARCHES
    rungs: Rungs = field(default_factory=dict)
    known: Rungs = field(default_factory=dict)

    def learn(self, missed: Verdict) -> None:
        """Engines bear no more than a fleet that missed had to."""
        if self.resolve is not None and self.left:
            self.rungs = raised(self.instance, self.rungs, missed)

    def due(self, cheapest: float) -> bool:
        """Whether a search may find what costs less than the cheapest that waits [$/h]."""
        return self.left > 0 and self.rungs != self.known and self.least * (1.0 + WORTH) < cheapest

    def next(self) -> Fleet:
        """The cheapest fleet by formula of engines that bear so little; empty where there is none."""
        self.left, self.known = self.left - 1, self.rungs
        fleet = Fleet(()) if self.resolve is None else self.resolve(slower(self.instance, self.rungs))
        if not (fleet.pools and allowed(self.instance, fleet)):
            self.left = 0  # nor will there be one of engines that bear even less
            return Fleet(())
        self.least = max(self.least, fleet_cost(self.instance, fleet))
        return fleet


def cheapest_verified(
    bench: Bench,
    fleets: Sequence[Fleet],
    resolve: Resolve | None = None,
    mend: Mend = other_settings,
    *,
    judge: Judge | None = None,
    most: float = math.inf,
    searches: int = SEARCHES,
) -> Searched:
    """Find the cheapest of some fleets, and of what repairs make of them, that holds when it is simulated.

    resolve: repairs by search too, where given, `searches` times at most; mend: repairs at no cost.
    judge: what says whether a fleet holds, the bench's word on candidates if not given; most: fleets that are judged.
    """
    instance, judge = bench.instance, judge or bench.candidate
    waiting = _Waiting(instance, bench.volume)
    for fleet in fleets:
        waiting.add(fleet)
    search = _Searches(instance, resolve, waiting.cheapest, searches)
    nearest: Verdict | None = None
    missed: list[Tried] = []
    while len(missed) < most and (waiting.heap or search.due(waiting.cheapest)):
        if search.due(waiting.cheapest) and not bench.late():
            waiting.add(search.next(), 1)
            continue
        best = waiting.next()
        if fleet_key(best.fleet) in waiting.seen:  # what held has ended the search
            continue
        waiting.seen.add(fleet_key(best.fleet))
        found = judge(best.fleet) if bench.judged(best.fleet) or not bench.late() else None
        if found is None or (bench.late() and found.outcome is Outcome.UNDECIDED and not found.confirmation):
            return Searched(None, nearest, tuple(missed), best.fleet)
        if found.held:
            return Searched(found, nearest, tuple(missed), by_repair=best.repaired)
        missed.append((REPAIRED if best.repaired else CANDIDATE, found))
        nearest = found if nearest is None or found.distance < nearest.distance else nearest
        other = None if best.mended else mend(bench, found)
        if other is not None:
            waiting.add(other, best.rounds, mended=True)
            continue
        search.learn(found)
        for fleet in repaired(instance, found, best.rounds):
            waiting.add(fleet, best.rounds + 1)
    return Searched(None, nearest, tuple(missed))


def repaired(instance: Instance, missed: Verdict, rounds: int) -> list[Fleet]:
    """The fleet with more engines in the pools to blame, cheapest first; none after ROUNDS.

    Where the limits forbid that, every largest part of these pools in which they allow it; with one engine more each,
    if they allow no more.
    """
    if missed.blame is None or rounds >= ROUNDS:
        return []
    pools = missed.fleet.pools
    more = {k: max(1, math.ceil(pools[k].replicas * GROWTH * 2.0**rounds - 0.5)) for k in missed.blame.worst}
    for each in (more, dict.fromkeys(more, 1)):
        found: dict[frozenset[int], Fleet] = {}
        for size in range(len(each), 0, -1):
            for part in map(frozenset, itertools.combinations(each, size)):
                larger = _with_more(missed.fleet, {k: each[k] for k in part})
                if not any(part < other for other in found) and allowed(instance, larger):
                    found[part] = larger
        if found:
            return sorted(found.values(), key=lambda fleet: fleet_cost(instance, fleet))
    return []


def _with_more(fleet: Fleet, more: Mapping[int, int]) -> Fleet:
    """The fleet with so many more engines in some pools."""
    for index, engines in more.items():
        fleet = with_replicas(fleet, index, fleet.pools[index].replicas + engines)
    return fleet
