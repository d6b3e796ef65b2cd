"""Whether a fleet holds its goals: simulated with the same requests as every other fleet, for as long as it takes.

A fleet holds where the lower end of every class's 95 % interval reaches the goal, the fleet keeps up with its arrivals,
over two full runs at least, and it comes out of a crowd (`crowd`). It misses where an upper end lies below the goal,
which one short run may show: a run starts empty, so its beginning only flatters. Where the interval straddles the goal
the runs are doubled, up to 32; a fleet that is then still between is undecided, and not taken.

This chooses a fleet; the same requests cannot prove it too: it looks at them more than once, and for many fleets. What
is chosen is confirmed on others (`confirm`), in two full runs at least. So a fleet that a short run shows clearly to
hold need not have full ones before (`Bench.candidate`).

An interval tells only of what the run has seen: a queue near its capacity is short for a long time, then long for as
long. So the runs of a fleet last many times as long as its queues remember (`memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.simulator import Fleet as SimulatedFleet
from optimizer.fleets.error_bars import slow_end
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.fleets.pool import pool_key, pool_state
from optimizer.loads.instance import Instance, Late, never

from .blame import Blame, blame
from .crowd import AFTER, HALF, crowd_of, crowded, fullest, lasting
from .judge import SEEDS, Demand, Judgement, Outcome, Run, judge_runs, recorded_trace, simulated_fleet, simulated_trace
from .second_life import one_life
from .simulated_goodput import Trials

REPLICATIONS = (1, 2, 4, 8, 16, 32)
"""Full runs after which a fleet is judged; a fleet that holds has had two."""
BRIEFLY = 2
"""Full runs that a fleet gets at most which is only compared with, none where a brief one is clear; it is not confirmed
by others."""
MOST_JUDGED = 300_000
"""Requests that a fleet which straddles its goal gets in all, two full runs aside."""
LIFETIMES = 10.0
"""Length of a full run in longest permitted times of a mean request: so the warm-up, a tenth, is one of them."""
RELAXATIONS, MOST_RELAXED = 40.0, 100_000
"""Length of a full run in times that its slowest queue or batch remembers, so that each of the 32 batches of two runs
is two and a half of them long; requests that are spent on that at most."""
LEAST_REQUESTS, MOST_REQUESTS = 8_000, 60_000
"""Of a full run; assumed: fewer tell too little of a 99 % goal, more take too long for a search."""
WHOLE = 0.9
"""Share of the engines of a pool that its slices must have between them."""
LONGEST = 400_000
"""Requests of a full run of a fleet that cannot be sliced."""
SHORT, LEAST_SHORT = 4, 2_000
"""A full run is so many short ones; requests of a short one, at least."""

SETTLED = 20.0
"""Length of a short run that is believed in times in which batches come back to their means; what neighbouring parts
of it still share, its interval counts (`share_of`) [1]."""
CLEAR = 0.001
"""Chance at most that a fleet misses a goal of which a short run is clear [1]; the first confirmations allow more."""

Distance = tuple[bool, float]
"""Whether a fleet falls behind, and the share by which its worst class misses; negative where it holds."""
PoolKey = tuple[object, ...]
Key = tuple[PoolKey, ...]


def run_length(instance: Instance, volume: float) -> int:
    """Requests of a full run at `volume` times the demand, whatever the fleet.

    Bursts make requests share their fate, so that of so many only one in (ca^2 + 1) / 2 tells something new. Recorded
    requests are as many as they are.
    """
    recorded = instance.problem.recorded
    least = LEAST_REQUESTS if recorded is None else max(LEAST_REQUESTS, recorded.arrival.size)
    return math.ceil(max(LIFETIMES * in_system(instance, volume), least) * _alike(instance))


def in_system(instance: Instance, volume: float) -> float:
    """Requests in the system at once, at most: a request may take TTFT + OSL x TPOT, and rate x that many come then."""
    flows = instance.flows
    longest = np.minimum(flows.ttft + flows.osl * flows.tpot, 3600.0)
    lifetime = float(flows.share @ longest / flows.share.sum())
    return lifetime * volume * instance.problem.workload.request_rate


def _alike(instance: Instance) -> float:
    if instance.problem.recorded is not None:
        return 1.0
    return max(1.0, (instance.flows.arrival_scv + 1.0) / 2.0)


def memory(instance: Instance, fleet: Fleet, volume: float) -> float:
    """Requests that come until the slowest queue of prompts has forgotten how long it was; infinite if it is too busy.

    A busy queue is a Brownian motion that drifts back by 1 - rho and spreads by ca^2 + cs^2 with every prompt, so it
    remembers rho (ca^2 + cs^2) / (1 - rho)^2 of its prompts (Whitt 1989, Planning queueing simulations); rho and cs^2
    by formula.
    """
    longest = 0.0
    for pool in fleet.pools:
        rate = instance.flows.rate * pool.route
        wait = pool_state(instance, pool, volume).wait if rate.any() else None
        if wait is None:
            continue
        weight, work = rate / rate.sum(), instance.tables.prefill_time[pool.shape, pool.chunk]
        scv = float(weight @ work**2) / float(weight @ work) ** 2 - 1.0
        spread = instance.flows.arrival_scv + scv
        busy = wait.utilization
        prompts = busy * spread / (1.0 - busy) ** 2 if busy < 1.0 else math.inf
        longest = max(longest, prompts * float(instance.flows.rate.sum() / rate.sum()))
    return longest


def settling(instance: Instance, fleet: Fleet, volume: float) -> float:
    """Requests that come in the time in which the slowest batches come back to their means (`PoolState.relaxation`).

    That is of requests of a mean life. The requests that run at a moment are longer: one found running has a life of
    E[osl^2] / E[osl] steps, all of which a batch remembers.
    """
    flows, longest = instance.flows, 0.0
    for pool in fleet.pools:
        output = flows.share * pool.route @ flows.osl
        found = float(flows.share * pool.route @ flows.osl**2) / max(float(output), 1e-300)
        longer = found * float(flows.share @ pool.route) / max(float(output), 1e-300)
        longest = max(longest, pool_state(instance, pool, volume).relaxation * longer)
    return longest * float(flows.rate.sum()) * volume


def full_length(instance: Instance, fleet: Fleet, least: int, volume: float) -> int:
    """Requests of a run in which the slowest queue and batch of a fleet forget often enough; `least` at least."""
    remembered = RELAXATIONS * max(memory(instance, fleet, volume), settling(instance, fleet, volume))
    return max(least, math.ceil(min(remembered, MOST_RELAXED)))


@dataclass(frozen=True, slots=True)
class Slice:
    """What is simulated of a fleet: one in `parts` of its engines with as much of the demand, `requests` in a full run.

    Large fleets need more requests until they are full than a search has time for. A slice has at most its share of
    the engines, rounded down, and fewer of them share a queue: what holds in it holds in the whole.
    """

    fleet: Fleet
    parts: int
    volume: float
    requests: int

    @property
    def short(self) -> int:
        """Requests of a short run."""
        return max(self.requests // SHORT, LEAST_SHORT)


def slice_of(fleet: Fleet, requests: int, volume: float) -> Slice:
    """As small a slice as ends a full run within MOST_REQUESTS, if rounding down takes little of any pool."""
    counts = [pool.replicas for pool in fleet.pools]
    most = min(math.ceil(requests / MOST_REQUESTS), *counts)
    parts = next(part for part in range(most, 0, -1) if all(n // part * part >= WHOLE * n for n in counts))
    pools = tuple(replace(pool, replicas=pool.replicas // parts) for pool in fleet.pools)
    return Slice(Fleet(pools), parts, volume / parts, min(math.ceil(requests / parts), LONGEST))


def fleet_key(fleet: Fleet) -> Key:
    """What two fleets share that run alike."""
    return tuple(pool_key(pool) for pool in fleet.pools)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A fleet that was simulated; cost [$/h]; held: whether it is shown to keep every goal.

    blame: what made it miss, None where it held; the runs of one that did not hold are not kept.
    confirmation: the number of the one that it was put to last, and that `judgement` is of (`confirm`); 0: none.
    stuck: it did not come out of a crowd, whose run `judgement` is of then (`crowd`); replayed: it missed a goal when
    the recorded requests came in order, whose run `judgement` is of then.
    """

    fleet: Fleet
    cost: float
    judgement: Judgement
    held: bool
    blame: Blame | None = None
    confirmation: int = 0
    stuck: bool = False
    replayed: bool = False

    @property
    def outcome(self) -> Outcome:
        """Whether it holds, misses, or is between."""
        if self.held:
            return Outcome.MEETS
        return Outcome.MISSES if self.judgement.refuted or self.replayed else Outcome.UNDECIDED

    @property
    def shortfall(self) -> float:
        """By how much the worst class misses its goal [1]; 0 or less where the run itself had no miss."""
        return max(one.goal - one.attainment.share for one in self.judgement.classes)

    @property
    def distance(self) -> Distance:
        """How far the fleet is from holding: one that keeps up is nearer than one that does not."""
        return self.judgement.overload.overloaded, self.shortfall


@dataclass(slots=True)
class Bench:
    """Judges fleets of one instance, each once.

    seed: of the first run; requests: of a full run of the whole fleet; probability: quantile of the step times;
    volume: multiple of the demand; least: full runs of a fleet that holds; verdicts: of all fleets so far, in order;
    late: whether no more runs are to be made, asked before each; trials: of fleets at other rates, by their requests;
    replays: of fleets that recorded requests in order were tried on.
    """

    instance: Instance
    seed: int
    requests: int
    probability: float = 0.5
    volume: float = 1.0
    least: int = 2
    verdicts: dict[Key, Verdict] = field(default_factory=dict)
    late: Late = never
    trials: dict[tuple[Key, int], Trials] = field(default_factory=dict)
    replays: dict[Key, Judgement] = field(default_factory=dict)

    def verdict(self, fleet: Fleet, most: int = REPLICATIONS[-1]) -> Verdict:
        """Judge a fleet in `most` full runs at most, or repeat what was found."""
        key = fleet_key(fleet)
        known = self.verdicts.get(key)
        if known is None or (known.held and len(known.judgement.runs) < self.least):
            self.verdicts[key] = self._judge(fleet, most)
        return self.verdicts[key]

    def candidate(self, fleet: Fleet) -> Verdict:
        """Judge a fleet that is confirmed before it is taken, by a short run where that is clear; or repeat it."""
        key = fleet_key(fleet)
        if key not in self.verdicts:
            found = self._clear(self.part(fleet))
            made = self._judge(fleet, REPLICATIONS[-1]) if found is None else self._in_order(fleet, found)
            self.verdicts[key] = made
        return self.verdicts[key]

    def judged(self, fleet: Fleet) -> bool:
        """Whether the fleet was judged before."""
        return fleet_key(fleet) in self.verdicts

    def part(self, fleet: Fleet) -> Slice:
        """What is simulated of a fleet; all of it where requests were recorded, whose waves have no parts."""
        if self.instance.problem.recorded is not None:
            return Slice(fleet, 1, self.volume, min(self.requests, LONGEST))
        return slice_of(fleet, self.requests, self.volume)

    def brief(self, part: Slice) -> int:
        """Requests of a run for what is only told and not proven: half as many lifetimes as a full one at least."""
        filled = LIFETIMES / 2.0 * in_system(self.instance, part.volume) * _alike(self.instance)
        return min(max(part.short, math.ceil(filled)), part.requests)

    def full(self, part: Slice) -> int:
        """Requests of a full run of the fleet: its queues and batches forget often enough, as far as MOST_RELAXED."""
        return full_length(self.instance, part.fleet, part.requests, part.volume)

    def trials_of(self, part: Slice, requests: int, late: Late) -> Trials:
        """Runs of what is simulated of a fleet at several rates, with so many requests each; those made are kept."""
        key = fleet_key(part.fleet), requests
        if key not in self.trials:
            engines = simulated_fleet(self.instance, part.fleet, self.probability)
            self.trials[key] = Trials(self.instance, part.fleet, engines, requests, self.seed, late=late)
        return self.trials[key]

    def runs(self, part: Slice, engines: SimulatedFleet, requests: int, first: int, last: int) -> list[Run]:
        """Runs `first` up to `last` of what is simulated of a fleet, `requests` each; a number has its requests."""
        return [Run.of(self.drawn(part, requests, number), engines) for number in range(first, last)]

    def drawn(self, part: Slice, requests: int, number: int, more: float = 1.0) -> Demand:
        """The requests of a number, so many; more: their rate over the planned one."""
        seed = self.seed + SEEDS * number
        return simulated_trace(self.instance, part.fleet, requests, seed, part.volume * more)

    def stays_behind(self, part: Slice, engines: SimulatedFleet, runs: Sequence[Run], number: int) -> Judgement | None:
        """What a run with a crowd, of requests `number`, says of a fleet that does not come out of it; else None.

        runs: of the same fleet, which tell whether its memory is a concern.
        """
        if fullest(engines, runs) <= HALF:
            return None
        count = crowd_of(self.instance, part.fleet, engines)
        demand = crowded(self.drawn(part, max(part.requests, AFTER * count), number), count)
        return lasting(self.instance, engines, Run.of(demand, engines))

    def replayed(self, fleet: Fleet) -> Judgement | None:
        """What the recorded requests say of a fleet when they come in order; None where there are none."""
        recorded = self.instance.problem.recorded
        if recorded is None:
            return None
        key = fleet_key(fleet)
        if key not in self.replays:
            engines = simulated_fleet(self.instance, fleet, self.probability)
            run = Run.of(recorded_trace(self.instance, fleet, recorded, self.volume), engines)
            self.replays[key] = judge_runs(self.instance, engines, [run])
        return self.replays[key]

    def settled(
        self, fleet: Fleet, found: Judgement, *, stuck: Judgement | None = None, held: bool = True, number: int = 0
    ) -> Verdict:
        """The verdict on a fleet from what its runs say; stuck: what the one with a crowd says, where it misses."""
        cost, found = fleet_cost(self.instance, fleet), stuck or found
        if held and stuck is None:
            return Verdict(fleet, cost, found, True, confirmation=number)
        fault, lean = blame(self.instance, found), replace(found, runs=())
        return Verdict(fleet, cost, lean, False, fault, number, stuck is not None)

    def _clear(self, part: Slice) -> Judgement | None:
        """What a short run says of a fleet that clearly holds, if its queues and batches forget often enough in it."""
        told = self.instance, part.fleet, part.volume
        if not (RELAXATIONS * memory(*told) <= part.short and SETTLED * settling(*told) <= part.short):
            return None
        engines = simulated_fleet(self.instance, part.fleet, self.probability)
        made = self.runs(part, engines, min(part.short, part.requests), 0, 1)
        clear = fullest(engines, made) <= HALF and judge_runs(self.instance, engines, made, tail=CLEAR).proven
        return judge_runs(self.instance, engines, made) if clear else None

    def _judge(self, fleet: Fleet, most: int) -> Verdict:
        part = self.part(fleet)
        if not one_life(self.instance, part.fleet, part.volume):
            engines = simulated_fleet(self.instance, part.fleet, self.probability)
            early = self.stays_behind(part, engines, self.runs(part, engines, self.brief(part), 0, 1), 0)
            if early is not None:
                return self.settled(fleet, early, stuck=early, held=False)
        found, held = self._runs_until_clear(fleet, most)
        stuck = self.stays_behind(part, found.engines, found.runs, 0) if held else None
        if stuck is None and (held or (most == BRIEFLY and found.proven)):
            return self._in_order(fleet, found, held=held)
        return self.settled(fleet, found, stuck=stuck, held=held)

    def _in_order(self, fleet: Fleet, found: Judgement, *, held: bool = True) -> Verdict:
        """The verdict on a fleet that keeps its goals, unless the recorded requests in their own order say otherwise.

        They come once, so what counts is the share of them in time: there is no interval about it. held: whether the
        fleet is shown to.
        """
        recorded = self.replayed(fleet)
        if recorded is None or all(one.held for one in recorded.classes):
            return self.settled(fleet, found, held=held)
        return replace(self.settled(fleet, recorded, held=False), replayed=True)

    def _runs_until_clear(self, fleet: Fleet, most: int) -> tuple[Judgement, bool]:
        """What the runs say once they are clear, and whether the fleet holds."""
        part = self.part(fleet)
        engines = simulated_fleet(self.instance, part.fleet, self.probability)
        for length in self._lengths(part, most):
            one = self.runs(part, engines, length, 0, 1)
            found = judge_runs(self.instance, engines, one)
            clear = most == BRIEFLY and judge_runs(self.instance, engines, one, tail=CLEAR).proven
            if found.missed or clear:
                return found, False
        requests, made = part.requests if most == BRIEFLY else self.full(part), list[Run]()
        for count in (number for number in REPLICATIONS if number <= most):
            if self.late() or (count > self.least and count * requests > MOST_JUDGED):
                break
            made += self.runs(part, engines, requests, len(made), count)
            found = judge_runs(self.instance, engines, made)
            if found.refuted:
                break
            if count >= self.least and found.proven:
                return found, True
        return found, False

    def _lengths(self, part: Slice, most: int) -> Iterator[int]:
        """Requests of the runs, rising, that may show a miss before a full one is made."""
        yield self.brief(part) if most == BRIEFLY else min(part.short, part.requests)
        if most > BRIEFLY and self.full(part) >= 2 * part.requests:
            yield part.requests


def make_bench(instance: Instance, volume: float = 1.0, least: int = 2, late: Late = never) -> Bench:
    """A bench for the demand times `volume`, with the problem's seed and at its confidence."""
    problem, requests = instance.problem, run_length(instance, volume)
    return Bench(instance, problem.seed, requests, slow_end(problem.confidence), volume, least, late=late)
