"""The cheapest fleet that holds when it is simulated, and has no cheaper neighbor that does: one loop.

Fleets wait in the order of their cost. The cheapest is simulated (`bench`), and what came of it says which of its
neighbors wait next: of one that misses other settings of the pools to blame, or more replicas of them; of one that
holds what costs less. Which these are: docs/verification.md. No fleet is judged twice, and the neighbors of each are
finitely many, so it ends.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume, promise
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import ROLES, Instance, Late, never
from optimizer.plans.records import Tuning
from optimizer.search.limits import Named, allowed, classes_apart, fewer_replicas, with_replicas
from optimizer.search.search import SAME_COST, TIED, preferred

from .bench import MORE, Bench, Key, Tried, Verdict, chunks_of, fleet_key, goodput_of, valid
from .goodput import OutOfTimeError
from .judge import Outcome

IntArray = NDArray[np.int64]

ROUNDS = 6
"""Repairs of one fleet by more replicas, after each other [1]; assumed: by then a pool has half as many again."""
GROWTH = 0.03
"""Replicas that the first repair adds, as a share of the pool [1]; each further one twice as many, one at least."""
PLACES = 2
"""Places in the tables by which a setting is moved at most: chunks to about four times as many tokens, batch limits to
twice as many requests [1]."""
NEAR = 0.15
"""Share by which a class may miss of which the formulas say that it does: they erred little, and settings mend little
[1]."""
NOTABLE = 1e-3
"""Share by which a fleet must miss less to count as nearer [1]; assumed: a short run tells no less."""
PROMISING = 0.5
"""Share of every goal that the formulas must predict of other settings and shapes for them to be simulated [1];
assumed: the formulas err by less."""
MOST_SHAPES = 6
"""Fleets of other shapes and smaller rivals that are simulated for one that holds [1]; assumed: the likeliest come
first."""

CANDIDATE, REPAIRED = "found by formula", "repaired"
"""What the fleets are called that missed."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A fleet that waits; order decides between equal costs [$/h].

    rounds: repairs by more replicas that led to it; fewer: replicas that it has fewer than the best in one pool;
    origin: the fleet that missed whose settings it changes.
    """

    cost: float
    order: int
    fleet: Fleet = field(compare=False)
    what: str = field(compare=False, default=CANDIDATE)
    rounds: int = field(compare=False, default=0)
    fewer: int = field(compare=False, default=0)
    origin: Key | None = field(compare=False, default=None)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the simulations gave: the cheapest fleet that holds, or, where none does, what came nearest.

    undecided: the cheapest fleet that had not missed when the time was up; one_less: the winner with one replica fewer
    in each pool; others: what else was tried, in order; repairs: how many were judged; tuning: what that tried.
    """

    winner: Verdict | None = None
    nearest: Verdict | None = None
    undecided: Fleet | None = None
    one_less: tuple[Tried, ...] = ()
    others: tuple[Tried, ...] = ()
    repairs: int = 0
    tuning: Tuning | None = None


@dataclass(slots=True)
class Waiting:
    """Fleets that wait to be simulated, cheapest first; which were taken before, and the replicas of those refuted."""

    instance: Instance
    heap: list[Candidate] = field(default_factory=list)
    past: set[Key] = field(default_factory=set)
    misses: dict[Key, list[tuple[int, ...]]] = field(default_factory=dict)
    added: int = 0

    def add(
        self, fleet: Fleet, what: str = CANDIDATE, rounds: int = 0, fewer: int = 0, origin: Key | None = None
    ) -> None:
        """Let a fleet wait, unless it was taken before; see `Candidate`."""
        if fleet.pools and fleet_key(fleet) not in self.past:
            cost, self.added = fleet_cost(self.instance, fleet), self.added + 1
            heapq.heappush(self.heap, Candidate(cost, self.added, fleet, what, rounds, fewer, origin))

    @property
    def cheapest(self) -> float:
        """Cost of the cheapest that waits [$/h]."""
        return self.heap[0].cost if self.heap else math.inf

    def next(self) -> Candidate:
        """Take the cheapest of those that wait; of such that cost the same, the one that is `preferred`."""
        tied = [heapq.heappop(self.heap)]
        while self.heap and self.cheapest <= tied[0].cost * (1.0 + TIED):
            tied.append(heapq.heappop(self.heap))
        best = preferred(self.instance, [candidate.fleet for candidate in tied])
        roomiest = next(candidate for candidate in tied if candidate.fleet is best)
        for other in tied:
            if other is not roomiest:
                heapq.heappush(self.heap, other)
        return roomiest

    def refute(self, fleet: Fleet) -> None:
        """Leave fleets of the same engines out that have no more replicas in any pool."""
        engines, counts = _apart(fleet)
        self.misses.setdefault(engines, []).append(counts)

    def dominated(self, fleet: Fleet) -> bool:
        """Whether the fleet was taken before, or has no more replicas in any pool than one that was refuted."""
        engines, counts = _apart(fleet)
        worse = (all(map(int.__ge__, most, counts)) for most in self.misses.get(engines, ()))
        return fleet_key(fleet) in self.past or any(worse)


def _apart(fleet: Fleet) -> tuple[Key, tuple[int, ...]]:
    """The pools of a fleet without their numbers of replicas, and these."""
    bare = Fleet(tuple(replace(pool, replicas=0) for pool in fleet.pools))
    return fleet_key(bare), tuple(pool.replicas for pool in fleet.pools)


@dataclass(slots=True)
class Loop:
    """The search: simulates what waits, and lets the neighbors of that wait.

    best: the cheapest fleet that holds so far; rivals: whose smaller versions may hold; near: fleets that miss narrowly
    by formula; eligible: which neighbors of what holds may be looked at; stopped: asked before each simulation once a
    fleet holds; trail: all that missed; settings: what a fleet came to with other settings; fewer: replicas that the
    best is tried without; repairs: that were judged; shapes: whether it waits in other shapes already.
    """

    bench: Bench
    waiting: Waiting
    rivals: Sequence[Fleet] = ()
    near: Sequence[Fleet] = ()
    eligible: Callable[[Fleet], bool] = lambda _: True
    stopped: Late = never
    best: Verdict | None = None
    repairs: int = 0
    nearest: Verdict | None = None
    trail: list[Tried] = field(default_factory=list)
    settings: dict[Key, Verdict] = field(default_factory=dict)
    fewer: int = 1
    shapes: bool = False

    def run(self, *, first: bool = False) -> Fleet | None:
        """Simulate until nothing waits that costs less than what holds; the fleet that the time left undecided.

        first: stop at the first that holds.
        """
        bench = self.bench
        while (candidate := self._next()) is not None:
            self.waiting.past.add(fleet_key(candidate.fleet))
            if bench.late() and not bench.judged(candidate.fleet):
                return candidate.fleet
            verdict = bench.candidate(candidate.fleet)
            if bench.late() and verdict.outcome is Outcome.UNDECIDED and not verdict.confirmation:
                return candidate.fleet
            self.repairs += candidate.what == REPAIRED
            if candidate.origin is not None:
                self.settings[candidate.origin] = verdict
            if not verdict.held:
                self._miss(candidate, verdict)
                continue
            self._hold(candidate, verdict)
            if first:
                break
        return None

    def _next(self) -> Candidate | None:
        """The cheapest fleet that waits; None where none costs less than what holds."""
        while self.best is None or not self.stopped():
            below = math.inf if self.best is None else self.best.cost * (1.0 - SAME_COST)
            if self.waiting.cheapest < below:
                candidate = self.waiting.next()
                if not self.waiting.dominated(candidate.fleet):
                    return candidate
            elif not self._further():
                break
        return None

    def _hold(self, candidate: Candidate, verdict: Verdict) -> None:
        """The fleet is the best; it waits with fewer replicas, with twice as many fewer if that is how it was found."""
        self.best, self.shapes = verdict, False
        self.fewer = 2 * candidate.fewer or 1
        self.add_fewer()

    def _miss(self, candidate: Candidate, miss: Verdict) -> None:
        """The fleet waits with other settings that seem to hold; else with more replicas, and the settings nearest."""
        self.trail.append((candidate.what, miss))
        self.nearest = miss if self.nearest is None or miss.distance < self.nearest.distance else self.nearest
        if miss.judgement.refuted:
            self.waiting.refute(miss.fleet)
        fleet, center = self._settings(miss)
        if fleet is not None:
            self.waiting.add(fleet, REPAIRED, candidate.rounds, candidate.fewer, fleet_key(miss.fleet))
            return
        for fleet in more_replicas(self.bench.instance, center, candidate.rounds):
            self.waiting.add(fleet, REPAIRED, candidate.rounds + 1)

    def _settings(self, miss: Verdict) -> tuple[Fleet | None, Verdict]:
        """The fleet with other settings that seem to hold in a short run, None where none do; and what came nearest.

        What comes nearer is gone on from, until one clearly keeps its goals. One that keeps them at its share alone
        will do where the fleet was refuted: else full runs would be made for another that is left between.
        """
        bench, center, choice = self.bench, miss, None
        options, looks = other_settings(bench, miss), set[Key]()
        while options and not bench.late():
            fleet = options.pop(0)
            if fleet_key(fleet) in looks | self.waiting.past:
                continue
            looks.add(fleet_key(fleet))
            look = bench.look(fleet)
            if look.judgement.proven:
                return fleet, look
            choice = fleet if look.judgement.held and miss.judgement.refuted else choice
            if look.distance < (center.distance[0], center.distance[1] - NOTABLE):
                center, options = look, other_settings(bench, look)
        return choice, center

    def _further(self) -> bool:
        """Let neighbors of the best wait that are further away; whether there are any left."""
        if self.best is None or self.shapes:
            return False
        if self.fewer > 1:
            self.fewer = 1
            self.add_fewer()
            return True
        self.shapes = True
        instance, most = self.bench.instance, self.best.cost * (1.0 - SAME_COST)
        near = [("near by formula", fleet) for fleet in self.near if fleet_cost(instance, fleet) < most]
        for what, fleet in (*smaller(instance, self.best, self.rivals, self.eligible), *near):
            if allowed(instance, fleet):
                self.waiting.add(fleet, what)
        return True

    def add_fewer(self) -> None:
        """Let the best with fewer replicas in one pool wait."""
        instance = self.bench.instance
        for what, fleet in fewer_replicas(instance, self.best.fleet, self.fewer) if self.best else ():
            if allowed(instance, fleet):
                self.waiting.add(fleet, what, fewer=self.fewer)


def cheapest_verified(bench: Bench, fleets: Sequence[Fleet]) -> SearchResult:
    """Find the cheapest of some fleets, and of what repairs make of them, that holds when it is simulated."""
    waiting = Waiting(bench.instance)
    for fleet in fleets:
        waiting.add(fleet)
    loop = Loop(bench, waiting)
    undecided = loop.run(first=True)
    return SearchResult(loop.best, loop.nearest, undecided, others=tuple(loop.trail), repairs=loop.repairs)


def without_waste(
    bench: Bench,
    result: SearchResult,
    rivals: Sequence[Fleet],
    stopped: Late,
    *,
    near: Sequence[Fleet] = (),
    eligible: Callable[[Fleet], bool] = lambda _: True,
) -> SearchResult:
    """Replace the winner, if there is one, by what costs less and holds, until no neighbor does; see `Loop`."""
    instance, winner = bench.instance, result.winner
    if winner is None:
        return result
    waiting = Waiting(instance, past={fleet_key(winner.fleet)})
    loop = Loop(bench, waiting, rivals, near, eligible, stopped, winner)
    loop.add_fewer()
    loop.run()
    winner, one_less = loop.best or winner, list[Tried]()
    for what, fleet in fewer_replicas(instance, winner.fleet, 1):
        verdict = loop.settings.get(fleet_key(fleet))
        if allowed(instance, fleet) and (verdict or bench.judged(fleet) or not stopped()):
            one_less.append((what, verdict or bench.candidate(fleet)))
    rows = {id(verdict) for _, verdict in one_less}
    others = (*result.others, *(row for row in loop.trail if id(row[1]) not in rows))
    return replace(result, winner=winner, one_less=tuple(one_less), others=others)


def more_replicas(instance: Instance, miss: Verdict, rounds: int) -> list[Fleet]:
    """The fleet with more replicas in the pools to blame, cheapest first; none after ROUNDS.

    Where the limits forbid that, every largest part of these pools in which they allow it; with one replica more each,
    if they allow no more.
    """
    if miss.blame is None or rounds >= ROUNDS:
        return []
    pools = miss.fleet.pools
    more = {k: max(1, math.ceil(pools[k].replicas * GROWTH * 2.0**rounds - 0.5)) for k in miss.blame.worst}
    for each in (more, dict.fromkeys(more, 1)):
        larger: dict[frozenset[int], Fleet] = {}
        for size in range(len(each), 0, -1):
            for blamed in map(frozenset, itertools.combinations(each, size)):
                fleet = miss.fleet
                for index in blamed:
                    fleet = with_replicas(fleet, index, pools[index].replicas + each[index])
                if not any(blamed < others for others in larger) and allowed(instance, fleet):
                    larger[blamed] = fleet
        if larger:
            return sorted(larger.values(), key=lambda fleet: fleet_cost(instance, fleet))
    return []


def other_settings(bench: Bench, miss: Verdict) -> list[Fleet]:
    """The fleet with one setting of all the pools to blame changed, what the formulas promise most of first.

    Chunks are one or two places larger in the table, or smaller: to an engine that stops its decodes for prompts few
    large ones are a mercy, to one that mixes them small ones. Batch limits are the smallest that the formulas think
    enough at MORE of the demand; where a pool has that, a larger one. None where settings mend little: where the fleet
    misses by far and by formula too, or only its confirmation showed it to miss. One that did not come out of a crowd
    gets the next smaller batch limits: fewer requests at once fill less memory.
    """
    instance, fleet = bench.instance, miss.fleet
    if miss.blame is None or miss.confirmation:
        return []
    if miss.stuck:
        return [_with_fewer_slots(instance, fleet, miss.blame.worst)]
    near = not miss.judgement.overloaded and miss.shortfall <= NEAR
    if not near and promise(instance, fleet) < 1.0:
        return []
    settings = [other for other in _each_setting(instance, fleet, miss.blame.worst) if valid(instance, other)]
    rated = [(promise(instance, other), other) for other in settings]
    ranked = sorted(rated, key=lambda row: -min(row[0], 1.0))
    return [other for share, other in ranked if share >= PROMISING]


def _with_fewer_slots(instance: Instance, fleet: Fleet, blamed: Collection[int]) -> Fleet:
    """The fleet with the next smaller batch limits in the pools to blame, where they have any."""
    limits = {index: instance.tables.limits_below(fleet.pools[index].seqs)[-1:] for index in blamed}
    pools = enumerate(fleet.pools)
    return Fleet(tuple(replace(pool, seqs=limit) for k, pool in pools for limit in limits.get(k) or [pool.seqs]))


def _each_setting(instance: Instance, fleet: Fleet, blamed: Collection[int]) -> Iterator[Fleet]:
    """Larger chunks, other batch limits, smaller chunks; those that no pool can have are the fleet itself."""

    def changed(pools: dict[int, FleetPool]) -> Fleet:
        return Fleet(tuple(pools.get(index, pool) for index, pool in enumerate(fleet.pools)))

    prompts = [index for index in blamed if fleet.pools[index].role is not Role.DECODE]
    tokens = [index for index in blamed if fleet.pools[index].role is not Role.PREFILL]
    for places in (PLACES, 1):
        yield changed({index: _other_chunk(instance, fleet.pools[index], places) for index in prompts})
    yield changed({index: _other_limit(instance, fleet, index) for index in tokens})
    for places in (-1, -PLACES):
        yield changed({index: _other_chunk(instance, fleet.pools[index], places) for index in prompts})


def _other_chunk(instance: Instance, pool: FleetPool, places: int) -> FleetPool:
    """The pool with another chunk, so many places away among those that there is memory for, or the last of them."""
    chunks = chunks_of(instance, pool)
    place = chunks.index(pool.chunk) + places
    return replace(pool, chunk=chunks[min(max(place, 0), len(chunks) - 1)])


def _other_limit(instance: Instance, fleet: Fleet, index: int) -> FleetPool:
    """The pool with the smallest batch limit that the formulas think enough; where it has that, a larger one."""
    pool = fleet.pools[index]
    enough = min(1.0, promise(instance, fleet, MORE))
    for seqs in instance.tables.limits_below(pool.seqs):
        less = replace(pool, seqs=seqs)
        if promise(instance, Fleet((*fleet.pools[:index], less, *fleet.pools[index + 1 :])), MORE) >= enough:
            return less
    return replace(pool, seqs=instance.tables.limit_above(pool.seqs, PLACES))


def smaller(
    instance: Instance, winner: Verdict, rivals: Sequence[Fleet], eligible: Callable[[Fleet], bool] = lambda _: True
) -> list[Named]:
    """Fleets that cost less than the winner, other shapes of it and less of the rivals; the most promising first.

    Of each shape its most promising settings. eligible: which of them may be looked at.
    """
    others = (*_swaps(instance, winner), *_colocated(instance, winner, eligible), *_shrunk(instance, winner, rivals))
    promised = ((promise(instance, fleet), what, fleet) for what, fleet in others if eligible(fleet))
    ranked = sorted((row for row in promised if row[0] >= PROMISING), key=lambda row: -row[0])
    best: dict[str, Named] = {}
    alone: dict[Key, Named] = {}  # all of a rival is the same fleet, whichever of its pools it is named by
    for _, what, fleet in ranked:
        first = best.setdefault(what, (what, fleet))
        alone.setdefault(fleet_key(first[1]), first)
    return list(alone.values())[:MOST_SHAPES]


def _swaps(instance: Instance, winner: Verdict) -> Iterator[Named]:
    """The winner with another engine shape in one pool, in as many replicas as cost less; every batch limit."""
    tables, fleet = instance.tables, winner.fleet
    able = {Role.PREFILL: tables.talks.any(axis=1), Role.DECODE: tables.talks.any(axis=0)}
    for index, pool in enumerate(fleet.pools):
        group = tables.group[ROLES.index(pool.role)]
        alike = (group == group[pool.shape]) & able.get(pool.role, True)
        limits = [pool.seqs] if pool.role is Role.PREFILL else tables.limits.tolist()
        for shape in np.flatnonzero(alike).tolist():
            roomy = [limit for limit in limits if tables.roomy[shape, limit, pool.chunk]]
            for limit in roomy if shape != pool.shape else ():
                other = replace(pool, shape=shape, seqs=limit, replicas=1)
                swapped = Fleet((*fleet.pools[:index], other, *fleet.pools[index + 1 :]))
                most = _most_replicas(instance, swapped, index, winner.cost)
                if most:
                    yield f"{pool.name}: {most} x {_engine(instance, shape)}", with_replicas(swapped, index, most)


def _colocated(instance: Instance, winner: Verdict, eligible: Callable[[Fleet], bool]) -> Iterator[Named]:
    """One pool of colocated engines in the winner's place, as many as cost less; every shape, batch limit and chunk."""
    tables, problem = instance.tables, instance.problem
    if len(winner.fleet.pools) == 1 or Role.COLOCATED not in problem.space.roles or classes_apart(problem):
        return
    everything, spares = np.ones(instance.flows.isl.size), problem.constraints.spare_replicas
    in_time = tables.decode_base < instance.flows.tpot.max()
    for shape, chunk in np.argwhere(tables.roomy.any(axis=1) & in_time.any(axis=1)[:, None]).tolist():
        roomy = tables.limits[tables.roomy[shape, tables.limits, chunk]]
        limits = roomy[in_time[shape, roomy]].tolist() or roomy[:1].tolist()
        if not limits:
            continue
        pool = FleetPool("colocated-1", Role.COLOCATED, shape, limits[-1], chunk, 1, spares, everything)
        most = _most_replicas(instance, Fleet((pool,)), 0, winner.cost)
        pool = replace(pool, replicas=max(most, 1))
        if most and eligible(Fleet((pool,))) and pool_state(instance, pool, 1.0).stable:
            for limit in limits:
                yield f"{most} x {_engine(instance, shape)}", Fleet((replace(pool, seqs=limit),))


def _engine(instance: Instance, shape: int) -> str:
    """GPU and parallelism of an engine shape."""
    split = instance.tables.shapes[shape].parallelism
    name = instance.problem.offers[int(instance.tables.offer[shape])].accelerator.name
    experts = f" EP{split.expert}" if split.expert > 1 else ""
    ranks = f" DP{split.data}" if split.data > 1 else ""
    return f"{name} TP{split.tensor} PP{split.pipeline}{experts}{ranks}"


def _shrunk(instance: Instance, winner: Verdict, rivals: Sequence[Fleet]) -> Iterator[Named]:
    """Rivals with so few replicas in one pool that they cost less than the winner."""
    for fleet in rivals:
        for index, pool in enumerate(fleet.pools):
            most = min(pool.replicas, _most_replicas(instance, fleet, index, winner.cost))
            if most:
                cut = f", {pool.name} cut to {most} of {pool.replicas}" if most < pool.replicas else ""
                yield f"a rival{cut}", with_replicas(fleet, index, most)


def _most_replicas(instance: Instance, fleet: Fleet, index: int, below: float) -> int:
    """Most replicas of one pool with which a fleet costs less than `below` [$/h] within the limits; 0 if none do."""
    for count in range(fleet.pools[index].replicas, 0, -1):
        fewer = with_replicas(fleet, index, count)
        if fleet_cost(instance, fewer) < below * (1.0 - SAME_COST) and allowed(instance, fewer):
            return count
    return 0


def with_larger_batches(bench: Bench, winner: Verdict, late: Late) -> Verdict:
    """A fleet that holds, with its batch limits raised for as long as it then holds at a rate at which it did not.

    The search takes the smallest limits that serve all by formula; to raise one that binds when simulated costs
    nothing.
    """
    demand, fleet = bench.instance.problem.workload.request_rate, winner.fleet
    try:
        while (larger := larger_batches(bench.instance, fleet)) is not None:
            served = goodput_of(bench, fleet, demand * goodput_volume(bench.instance, fleet), late)
            if not any(point.full for point in served.points if point.rate == served.fails):
                break  # with larger limits the same requests would run at the same time
            if not bench.trials_of(larger, late).at(served.fails / demand).held:
                break
            fleet = larger
    except OutOfTimeError:
        return winner
    verdict = winner if fleet is winner.fleet else bench.candidate(fleet)
    return verdict if verdict.held else winner


def larger_batches(instance: Instance, fleet: Fleet) -> Fleet | None:
    """The fleet with the batch limits of all its pools raised, of each by PLACES; None where none can be."""
    limits = [instance.tables.limit_above(pool.seqs, PLACES) for pool in fleet.pools]
    pools = [
        pool if pool.role is Role.PREFILL else replace(pool, seqs=limit)
        for pool, limit in zip(fleet.pools, limits, strict=True)
    ]
    larger = Fleet(tuple(pools))
    same = all(pool.seqs == other.seqs for pool, other in zip(pools, fleet.pools, strict=True))
    return larger if not same and valid(instance, larger) else None
