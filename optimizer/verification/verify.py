"""The cheapest fleet that holds in simulation, and has no cheaper neighbor that does: one loop over a queue.

The queue is in the order of cost; the rules of `search` break ties. The first fleet is judged (`bench`). If it misses,
neighbors that may mend it join the queue: other settings of the pools to blame, or else more replicas of them. If it
holds, cheaper neighbors join: fewer replicas, then fleets that come near by formula, and what else holds by formula.
Fresh requests may refute the best, which then counts as a miss (`Loop.refute`), and the loop goes on. No fleet is
judged twice and each has finitely many neighbors, so the loop ends.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from costmodel.engine import Role
from optimizer.fleets.evaluate import RATE_MARGIN, holds_at, worst_share
from optimizer.fleets.fleet import Fleet, FleetPool, allowed, classes_apart, fewer_replicas, fleet_cost, with_pools
from optimizer.loads.effort import Effort
from optimizer.loads.instance import Instance
from optimizer.plans.records import ALIKE, CANDIDATES, ROUNDING, TOLERANCE, Outcome
from optimizer.search.search import (
    NEAR,
    Engines,
    FleetSearch,
    cheapest_held,
    engines_of,
    is_refuted,
    preferred,
    smallest_batches,
)

from .bench import Bench, Key, Tried, Verdict, chunks_of, confirmed, fleet_key, valid

if TYPE_CHECKING:
    from .tune import Tuned

PLACES = 2
"""Places in the table by which a chunk is moved at most: to about four times as many tokens [1]."""
CANDIDATE, REPAIRED = "found by formula", "repaired"
"""Label of fleets that missed."""
CONFIRMATIONS: Final = 2 * CANDIDATES
"""Most fleets that one search confirms; of six, all failed at times near the capacity."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet in the queue, and its cost [$/h].

    rounds: repairs by more replicas that led to it; fewer: replicas that it has fewer than the best in one pool.
    """

    cost: float
    fleet: Fleet
    what: str = CANDIDATE
    rounds: int = 0
    fewer: int = 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the simulations gave: the cheapest fleet that holds, or, where none does, what came nearest.

    undecided: the cheapest fleet that had not missed when the time was up; one_less: the winner with one replica fewer
    in each pool; others: what else was tried, in order; repairs: how many were judged; complete: see `Loop`; tuning:
    what that tried.
    """

    winner: Verdict | None = None
    nearest: Verdict | None = None
    undecided: Fleet | None = None
    one_less: tuple[Tried, ...] = ()
    others: tuple[Tried, ...] = ()
    repairs: int = 0
    complete: bool = False
    tuning: Tuned | None = None


def _apart(fleet: Fleet) -> Engines:
    """The pools of a fleet without their replicas, and the replicas."""
    counts = tuple(pool.replicas for pool in fleet.pools)
    return fleet_key(fleet.resized([0] * len(counts))), counts


def ruled_out_by(miss: Verdict) -> tuple[int, ...]:
    """Most replicas of each pool up to which a miss rules out fleets of the same engines.

    A fleet that is shown to miss rules out any number in pools that are not to blame, if the goal would be missed
    without the requests that these make late, at most half an even share each (`pools_to_blame`). A crowd fills pools
    that wait for others, so it blames none alone.
    """
    counts = [pool.replicas for pool in miss.fleet.pools]
    unblamed_share = 0.5 * (1.0 - len(miss.blamed) / len(counts))
    blamed_miss = any(
        item.attainment + unblamed_share * (1.0 - item.attainment) < item.attainment_goal
        for item in miss.judgement.classes
    )
    alone = miss.near_capacity or (miss.judgement.refuted and blamed_miss)
    if not miss.blamed or miss.stuck or not alone:
        return tuple(counts)
    return tuple(count if number in miss.blamed else sys.maxsize for number, count in enumerate(counts))


@dataclass(slots=True)
class Loop:
    """The search: simulates what waits, and lets the neighbors of that wait.

    fleets: candidates by formula; those of them that do not hold by it wait once another fleet holds, or if none does
    by formula; space: in which cheaper fleets are searched by formula, None: nowhere; on_held: called once the first
    holds. waiting: to be simulated; past: what those were called that were taken before; misses: engines of those
    refuted; standing: fleets that hold; trail: all that missed; fewer: replicas that the best is tried without; wider:
    whether all fleets wait already; untried: fleets that may still come from the space; complete: whether none that
    holds by formula costs less than the best.
    """

    bench: Bench
    fleets: Sequence[Fleet]
    space: FleetSearch | None = None
    on_held: Callable[[], None] = lambda: None
    standing: list[Verdict] = field(default_factory=list)
    trail: list[Tried] = field(default_factory=list)
    repairs: int = 0
    nearest: Verdict | None = None
    undecided: Fleet | None = None
    fewer: int = 1
    wider: bool = False
    untried: int = CANDIDATES
    complete: bool = False
    waiting: list[Candidate] = field(default_factory=list)
    past: dict[Key, str] = field(default_factory=dict)
    misses: list[Engines] = field(default_factory=list)

    def __post_init__(self) -> None:
        for fleet in [fleet for fleet in self.fleets if holds_at(self.bench.instance, fleet)] or self.fleets:
            self.wait(fleet)

    @property
    def best(self) -> Verdict | None:
        """The cheapest fleet that holds so far; of equal fleets the last."""
        return min(reversed(self.standing), key=lambda verdict: verdict.cost, default=None)

    def run(self) -> Verdict | None:
        """Simulate until no fleet in the queue costs less than the best, or the time limit leaves one undecided."""
        bench = self.bench
        while (candidate := self._next()) is not None:
            untold = bench.late() and not bench.judged(candidate.fleet)
            verdict = None if untold else bench.verdict(candidate.fleet)
            if verdict is None or (bench.late() and verdict.outcome is Outcome.UNDECIDED and not verdict.confirmation):
                self.undecided = candidate.fleet
                break
            self.repairs += candidate.what == REPAIRED
            if verdict.held:
                self.take(verdict, 2 * candidate.fewer or 1)
            else:
                self._miss(candidate, verdict)
        return self.best

    def confirmed(self, effort: Effort, plan: Verdict | None = None) -> SearchResult:
        """The cheapest fleet that fresh requests confirm, of at most CONFIRMATIONS that hold.

        A fleet that fresh requests refute counts as a miss, and the search goes on. When the time is up, no more fleets
        are confirmed. plan: the fleet of the main search; what costs less may take its place, so that its confirmation
        is numbered after all that the plan has gone through.
        """
        self.on_held = effort.on_held
        for number in range(1, CONFIRMATIONS + 1):
            winner = self.run()
            if winner is None or winner.confirmation or self.undecided is not None or self.bench.late():
                return self.result(winner)  # another search may have confirmed it
            effort.report("confirming the fleet")
            if plan is None or winner.cost >= plan.cost * (1.0 - ROUNDING):
                at_least = 1
            else:
                at_least = self.bench.confirmation_after(plan)
            verdict, _ = confirmed(self.bench, winner, max(number, at_least), runs=effort.runs)
            if verdict.held:
                return self.result(verdict)
            self.refute(verdict)
        return replace(self.result(None), nearest=verdict)

    def _next(self) -> Candidate | None:
        """The cheapest fleet in the queue; None if none costs less than the best."""
        while (best := self.best) is None or not self.bench.late():
            candidate = self.cheapest(math.inf if best is None else best.cost * (1.0 - ROUNDING))
            if candidate is not None or not self._further():
                return candidate
        return None

    def wait(self, fleet: Fleet, label: str = CANDIDATE, rounds: int = 0, fewer: int = 0) -> None:
        """Put a fleet into the queue; see `Candidate`."""
        self.waiting.append(Candidate(fleet_cost(self.bench.instance, fleet), fleet, label, rounds, fewer))

    def cheapest(self, below: float = math.inf) -> Candidate | None:
        """Take the cheapest fleet below `below` [$/h] from the queue; of equals the one `preferred`.

        Fleets that were taken before, or that a miss rules out, are skipped.
        """
        self.waiting = [
            candidate
            for candidate in sorted(self.waiting, key=lambda candidate: candidate.cost)
            if fleet_key(candidate.fleet) not in self.past and not is_refuted(_apart(candidate.fleet), self.misses)
        ]
        if not self.waiting or self.waiting[0].cost >= below:
            return None
        most = self.waiting[0].cost * (1.0 + ALIKE)
        equals = [candidate for candidate in self.waiting if candidate.cost <= most]
        best = preferred(self.bench.instance, [candidate.fleet for candidate in equals])
        candidate = next(candidate for candidate in equals if candidate.fleet is best)
        self.past[fleet_key(best)] = candidate.what
        return candidate

    def take(self, verdict: Verdict, fewer: int = 1) -> None:
        """A fleet holds: the best joins the queue with `fewer` replicas, in steps that grow with each success."""
        if not self.standing:
            self.on_held()
        self.standing.append(verdict)
        self._spare(fewer)

    def refute(self, miss: Verdict) -> None:
        """The best misses on fresh requests: the next best, if any, joins the queue with fewer replicas."""
        key = fleet_key(miss.fleet)
        self.complete = False
        self.standing = [verdict for verdict in self.standing if fleet_key(verdict.fleet) != key]
        self._miss(Candidate(miss.cost, miss.fleet, self.past.get(key, CANDIDATE)), miss)
        self._spare(1)

    def _spare(self, fewer: int) -> None:
        """Put the best fleet with fewer replicas in one pool into the queue."""
        instance, best, self.fewer, self.wider = self.bench.instance, self.best, fewer, False
        for label, fleet in fewer_replicas(instance, best.fleet, fewer) if best is not None else ():
            if allowed(instance, fleet):
                self.wait(fleet, label, fewer=fewer)

    def _miss(self, candidate: Candidate, miss: Verdict) -> None:
        """Queue the fleet with other settings that hold; else with more replicas and the nearest settings."""
        self.trail.append((candidate.what, miss))
        self.nearest = miss if self.nearest is None or miss.distance < self.nearest.distance else self.nearest
        if miss.judgement.refuted or miss.near_capacity:
            self.misses.append((_apart(miss.fleet)[0], ruled_out_by(miss)))
        fleet, center = self._settings(miss)
        if fleet is not None:
            self.wait(fleet, REPAIRED, candidate.rounds, candidate.fewer)
            return
        for fleet in more_replicas(self.bench.instance, center, candidate.rounds):
            self.wait(fleet, REPAIRED, candidate.rounds + 1)

    def _settings(self, miss: Verdict) -> tuple[Fleet | None, Verdict]:
        """The fleet with settings with which it holds, None if there are none; and the nearest fleet that was tried."""
        bench, center = self.bench, miss
        options = other_settings(bench, miss)
        while options and not bench.late():
            fleet = options.pop(0)
            if fleet_key(fleet) in self.past or is_refuted(_apart(fleet), self.misses):
                continue
            verdict = bench.verdict(fleet)
            if verdict.held:
                return fleet, verdict
            if verdict.distance < center.distance:
                center, options = verdict, other_settings(bench, verdict)
        return None, center

    def _further(self) -> bool:
        """Put more distant neighbors of the best into the queue; whether there were any."""
        if self.best is None:
            return False
        if self.fewer > 1:
            self._spare(1)
            return True
        if self.wider:
            return self._cheaper_by_formula(self.best.cost)
        self.wider = True
        for fleet in self.fleets:
            if allowed(self.bench.instance, fleet):
                self.wait(fleet, "near by formula")
        return True

    def _cheaper_by_formula(self, cost: float) -> bool:
        """Put the cheapest fleet of one pool or a pair that no simulation refuted into the queue; whether there is one.

        It holds by formula, and costs less than `cost` [$/h]. Fleets with up to TOLERANCE more replicas than one that
        missed are left out too; if there are any, the search is not complete.
        """
        instance, self.complete = self.bench.instance, False
        if self.space is None or self.space.cut or not self.untried or classes_apart(instance.problem):
            return False
        misses = [verdict for verdict in self.bench.verdicts.values() if not verdict.held]
        space = replace(self.space, late=self.bench.late, cut=set())
        refuted = [(engines_of(instance, miss.fleet)[0], ruled_out_by(miss)) for miss in misses]
        alike = [
            (kind, tuple(min(math.floor(count * (1.0 + TOLERANCE)), sys.maxsize) for count in counts))
            for kind, counts in refuted
        ]
        self.untried -= 1
        cheapest = cheapest_held(space.without(alike), instance.problem, cost)
        if cheapest is not None:
            self.wait(smallest_batches(instance, space.fleet(cheapest[0])))
            return True
        self.complete = alike == refuted or cheapest_held(space.without(refuted), instance.problem, cost) is None
        self.complete &= not space.cut
        return False

    def result(self, winner: Verdict | None) -> SearchResult:
        """The result of the search."""
        return SearchResult(
            winner,
            self.nearest,
            self.undecided,
            others=tuple(self.trail),
            repairs=self.repairs,
            complete=self.complete,
        )


def with_one_replica_less(bench: Bench, result: SearchResult) -> SearchResult:
    """The result with verdicts on the winner with one replica fewer in each pool, judged now if there is time."""
    fewer = [] if result.winner is None else fewer_replicas(bench.instance, result.winner.fleet, 1)
    fleets = [(what, less) for what, less in fewer if allowed(bench.instance, less)]
    one_less = [(what, bench.verdict(less)) for what, less in fleets if bench.judged(less) or not bench.late()]
    keys = {fleet_key(verdict.fleet) for _, verdict in one_less}
    other_fleets = tuple(row for row in result.others if fleet_key(row[1].fleet) not in keys)
    return replace(result, one_less=tuple(one_less), others=other_fleets)


def more_replicas(instance: Instance, miss: Verdict, rounds: int) -> list[Fleet]:
    """The fleet with more replicas in all the pools to blame: 2 % (TOLERANCE), then twice as many, and so on.

    It tries CANDIDATES times at most. Where the limits forbid that, in each of these pools alone, cheapest first; with
    one replica more, if they allow no more.
    """
    if not miss.blamed or rounds >= CANDIDATES:
        return []
    counts = [pool.replicas for pool in miss.fleet.pools]
    growth = {k: max(1, math.ceil(counts[k] * TOLERANCE * 2.0**rounds - 0.5)) for k in miss.blamed}

    def grown(more: dict[int, int]) -> Fleet:
        return miss.fleet.resized([count + more.get(k, 0) for k, count in enumerate(counts)])

    for more in (growth, dict.fromkeys(growth, 1)):
        for options in ([more], [{k: count} for k, count in more.items()]):
            fleets = [fleet for fleet in map(grown, options) if allowed(instance, fleet)]
            if fleets:
                return sorted(fleets, key=lambda fleet: fleet_cost(instance, fleet))
    return []


def other_settings(bench: Bench, miss: Verdict) -> list[Fleet]:
    """The fleet with one setting of all the pools to blame changed, what the formulas promise most of first.

    Chunks are one or two places larger in the table, or smaller: to an engine that stops its decodes for prompts few
    large ones are a mercy, to one that mixes them small ones. Batch limits are the smallest that the formulas think
    enough at RATE_MARGIN of the demand; where a pool has that, the next larger one. Of a fleet that misses by far, and
    by formula too, only what the formulas promise more of; none where only its confirmation showed it to miss. One that
    did not come out of a crowd gets smaller batch limits: fewer requests at once fill less memory.
    """
    instance, fleet = bench.instance, miss.fleet
    if not miss.blamed or miss.confirmation:
        return []
    if miss.stuck:
        return [smaller_limits(instance, miss)]
    own, classes = worst_share(instance, fleet), miss.judgement.classes
    near = not miss.judgement.overloaded and all(item.attainment >= NEAR * item.attainment_goal for item in classes)
    fleets_by_key = {fleet_key(candidate): candidate for candidate in each_setting(instance, fleet, miss.blamed)}
    settings = [
        candidate for key, candidate in fleets_by_key.items() if key != fleet_key(fleet) and valid(instance, candidate)
    ]
    rated_fleets = [(min(worst_share(instance, candidate), 1.0), candidate) for candidate in settings]
    rated_fleets.sort(key=lambda row: -row[0])
    return [fleet for share, fleet in rated_fleets if share >= NEAR and (near or own >= 1.0 or share > own)]


def smaller_limits(instance: Instance, miss: Verdict) -> Fleet:
    """The fleet with a smaller batch limit in each pool to blame: what its KV memory holds on average, or the next."""
    tables, pools = instance.tables, dict[int, FleetPool]()
    for index in miss.blamed:
        pool = miss.fleet.pools[index]
        running = instance.flows.share * pool.route * instance.flows.osl
        request = float(running @ tables.kv_held[pool.shape]) / float(running.sum())
        room = float(tables.kv_capacity[pool.shape, pool.seqs, pool.chunk] * tables.ranks[pool.shape]) / request
        smaller = tables.limits_below(pool.shape, pool.seqs)
        below = [seqs for seqs in smaller if tables.seqs[seqs] <= room] or list(smaller[:1])
        pools[index] = replace(pool, seqs=below[-1] if below else pool.seqs)
    return with_pools(miss.fleet, pools)


def each_setting(instance: Instance, fleet: Fleet, worst_pools: Sequence[int]) -> Iterator[Fleet]:
    """Larger chunks, other batch limits, smaller chunks; the fleet itself in place of what no pool can have."""
    prompts = [index for index in worst_pools if fleet.pools[index].role is not Role.DECODE]
    tokens = [index for index in worst_pools if fleet.pools[index].role is not Role.PREFILL]
    for places in (PLACES, 1, 0, -1, -PLACES):
        pools = {}
        for index in prompts if places else tokens:
            pool = fleet.pools[index]
            chunks = chunks_of(instance, pool)  # that there is memory for
            place = min(max(chunks.index(pool.chunk) + places, 0), len(chunks) - 1)
            pools[index] = replace(pool, chunk=chunks[place]) if places else _other_limit(instance, fleet, index)
        yield with_pools(fleet, pools)


def _other_limit(instance: Instance, fleet: Fleet, index: int) -> FleetPool:
    """The pool with the smallest batch limit that suffices by formula; if it has that, with the next larger one."""
    pool = fleet.pools[index]
    enough = min(1.0, worst_share(instance, fleet, RATE_MARGIN))
    for seqs in instance.tables.limits_below(pool.shape, pool.seqs):
        less = replace(pool, seqs=seqs)
        if worst_share(instance, with_pools(fleet, {index: less}), RATE_MARGIN) >= enough:
            return less
    larger = (int(seqs) for seqs in instance.tables.limits_of(pool.shape) if seqs > pool.seqs)
    return replace(pool, seqs=next(larger, pool.seqs))
