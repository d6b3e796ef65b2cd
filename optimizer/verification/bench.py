"""Whether a fleet holds its goals: simulated with the same requests as every other fleet, for as long as it takes.

A fleet holds where the lower end of every class's 95 % interval reaches the goal, the fleet keeps up with its arrivals,
over two full runs at least, and it comes out of a crowd. It misses where an upper end lies below the goal, which one
short run may show: a run starts empty, so its beginning only flatters. Where the interval straddles the goal the runs
are doubled (`judge.until_decided`); a fleet that is then still between is undecided, and not taken. What is chosen so
is confirmed on other requests (`confirm`), so a fleet that a short run shows clearly to hold need not have full ones
before. Every question is answered in this way: for the winner, its rivals, and the fleet at another rate.

An interval tells only of what the run has seen: a queue near its capacity is short for a long time, then long for as
long. So the runs of a fleet last many times as long as its queues and batches remember.

Crowds. An engine without a free KV block preempts a request and computes it again later. That takes time of the others,
who keep their blocks for longer, so that a fleet may have two lives at one rate (`costmodel.second_life`): it goes well
as long as the memory never fills, and once it has, it stays behind. A run that starts empty tells of the first only. So
a fleet is started from the other end too (Gelman and Rubin 1992): as many requests as fill its memory come at once, the
rest at their rate, and by the second half of the run the goals must be kept again. Let off are fleets that do not
preempt in the crowd, and memory that was never more than half full in the runs: occupancy is a sum of many requests
that end independently, whose tail falls at least as fast as an exponential one, P(X > 1) <= P(X > 1/2)^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.engine import Role
from costmodel.second_life import backlog_batch, full_chance, recomputed_tokens, resident_context, running_share
from costmodel.simulator import SCHEDULERS, Pool
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.words import join_words, percentage
from optimizer.fleets.error_bars import slow_end
from optimizer.fleets.evaluate import promise
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost
from optimizer.fleets.pool import decode_base, pool_key, pool_state
from optimizer.loads.instance import Instance, Late, never
from optimizer.search.limits import allowed

from .demand import SEEDS, Demand, recorded_trace, simulated_trace
from .goodput import TOLERANCE, Goodput, Trials, goodput_among
from .judge import (
    MOST_JUDGED,
    Blame,
    ClassJudgement,
    Judgement,
    Outcome,
    Run,
    blame,
    engine_limits,
    hand_over,
    judge_runs,
    judge_until,
    simulated_fleet,
    until_decided,
)

LIFETIMES = 10.0
"""Length of a full run in longest permitted times of a mean request: so the warm-up, a tenth, is one of them."""
RELAXATIONS, MOST_RELAXED = 40.0, 100_000
"""Length of a full run in times that its slowest queue or batch remembers, so that each of the 32 batches of two runs
is two and a half of them long; requests that are spent on that at most."""
LEAST_REQUESTS, MOST_REQUESTS = 8_000, 60_000
"""Of a full run; assumed: fewer tell too little of a 99 % goal, more take too long for a search."""
WHOLE = 0.9
"""Share of the engines of a pool that its slices must have between them [1]; assumed: a slice that lost more to
rounding would miss where the whole fleet does not."""
PAUSES = 10.0
"""Length of a full run in pauses between turns, so that caches fill in the warm-up [1]."""
SHORT = 4
"""A full run is so many short ones: 2,000 requests at least, of which 1,800 count, tell most fleets that miss [1]."""
SETTLED = 20.0
"""Length of a short run that is believed in times in which batches come back to their means; what neighbouring parts
of it still share, its interval counts (`share_of`) [1]."""
CLEAR = 0.001
"""Chance at most that a fleet misses a goal of which a short run is clear [1]; the first confirmations allow more."""

Distance = tuple[bool, float]
"""Whether a fleet falls behind, and the share by which its worst class misses; negative where it holds."""
PoolKey = tuple[object, ...]
Key = tuple[PoolKey, ...]


AFTER = 10
"""Requests of a run over those of the crowd that it begins with, so that a fleet which ends a tenth more requests than
come has drained it by the second half."""
FULL = 1.5
"""Requests of a crowd over those that fill the memory: their prompts take time, so that some end before all are in."""
HALF = 0.5
"""Occupancy of the fullest engine up to which memory is no concern, and share of a run in which it must be over [1]."""


def run_length(instance: Instance, volume: float) -> int:
    """Requests of a full run at `volume` times the demand, whatever the fleet.

    Bursts make requests share their fate, so that of so many only one in (ca^2 + 1) / 2 tells something new. Recorded
    requests are as many as they are.
    """
    recorded, load = instance.problem.recorded, instance.problem.workload
    least = LEAST_REQUESTS if recorded is None else max(LEAST_REQUESTS, recorded.arrival.size)
    if load.sessions is not None:
        least = max(least, math.ceil(PAUSES * load.sessions.pause.mean * volume * load.request_rate))
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
        return self.requests // SHORT


def slice_of(fleet: Fleet, requests: int, volume: float) -> Slice:
    """As small a slice as ends a full run within MOST_REQUESTS, if rounding down takes little of any pool."""
    counts = [pool.replicas for pool in fleet.pools]
    most = min(math.ceil(requests / MOST_REQUESTS), *counts)
    parts = next(part for part in range(most, 0, -1) if all(n // part * part >= WHOLE * n for n in counts))
    pools = tuple(replace(pool, replicas=pool.replicas // parts) for pool in fleet.pools)
    return Slice(Fleet(pools), parts, volume / parts, min(math.ceil(requests / parts), MOST_JUDGED))


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


Tried = tuple[str, Verdict]
"""A fleet that was simulated, and what it is called."""


@dataclass(slots=True)
class Bench:
    """Judges fleets of one instance, each once.

    seed: of the first run; requests: of a full run of the whole fleet; probability: quantile of the step times;
    volume: multiple of the demand; least: full runs of a fleet that holds; verdicts: of all fleets so far, in order;
    looks: of a short run each; late: whether no more runs are to be made, asked before each; trials: of fleets at other
    rates; replays: of fleets that recorded requests in order were tried on; engines: of pools, as the simulator has
    them.
    """

    instance: Instance
    seed: int
    requests: int
    probability: float = 0.5
    volume: float = 1.0
    least: int = 2
    verdicts: dict[Key, Verdict] = field(default_factory=dict)
    looks: dict[Key, Verdict] = field(default_factory=dict)
    late: Late = never
    trials: dict[Key, Trials] = field(default_factory=dict)
    replays: dict[Key, Judgement] = field(default_factory=dict)
    engines: dict[PoolKey, Pool] = field(default_factory=dict)

    def verdict(self, fleet: Fleet) -> Verdict:
        """Judge a fleet in full runs, or return the verdict that it has."""
        key = fleet_key(fleet)
        known = self.verdicts.get(key)
        if known is None or (known.held and len(known.judgement.runs) < self.least):
            self.verdicts[key] = self._judge(fleet)
        return self.verdicts[key]

    def candidate(self, fleet: Fleet) -> Verdict:
        """Judge a fleet that is confirmed before it is taken, by a short run where that is clear; or repeat it."""
        key = fleet_key(fleet)
        if key not in self.verdicts:
            look = self.look(fleet)
            self.verdicts[key] = look if look.held or look.replayed else self._judge(fleet)
        return self.verdicts[key]

    def look(self, fleet: Fleet) -> Verdict:
        """What one short run says of a fleet; it holds where that is clear, and its queues and batches forget in it."""
        key = fleet_key(fleet)
        if key not in self.looks:
            part = self.part(fleet)
            engines = self.engines_of(part.fleet)
            runs = self.runs(part, engines, part.short, 0, 1)
            found, told = judge_runs(self.instance, engines, runs), (self.instance, part.fleet, part.volume)
            clear = found.proven and fullest(engines, runs) <= HALF
            clear = clear and judge_runs(self.instance, engines, runs, tail=CLEAR).proven
            forgets = clear and RELAXATIONS * memory(*told) <= part.short and SETTLED * settling(*told) <= part.short
            self.looks[key] = self._in_order(fleet, found) if forgets else self.settled(fleet, found, held=False)
        return self.looks[key]

    def engines_of(self, fleet: Fleet) -> SimulatedFleet:
        """A fleet as the simulator has it; the step times of equal engines are computed once."""

        def engines(pool: FleetPool) -> Pool:
            key = pool.role, pool.shape, pool.seqs, pool.chunk
            if key not in self.engines:
                (self.engines[key],) = simulated_fleet(self.instance, Fleet((pool,)), self.probability).pools
            return replace(self.engines[key], replicas=pool.replicas)

        return SimulatedFleet(tuple(map(engines, fleet.pools)), hand_over(self.instance))

    def judged(self, fleet: Fleet) -> bool:
        """Whether the fleet was judged before."""
        return fleet_key(fleet) in self.verdicts

    def part(self, fleet: Fleet) -> Slice:
        """What is simulated of a fleet; all of it where requests were recorded, whose waves have no parts."""
        if self.instance.problem.recorded is not None:
            return Slice(fleet, 1, self.volume, min(self.requests, MOST_JUDGED))
        return slice_of(fleet, self.requests, self.volume)

    def full(self, part: Slice) -> int:
        """Requests of a full run of the fleet: its queues and batches forget often enough, as far as MOST_RELAXED."""
        return full_length(self.instance, part.fleet, part.requests, part.volume)

    def trials_of(self, fleet: Fleet, late: Late) -> Trials:
        """The trials of a fleet at several rates; those that were made are kept."""
        part, key = self.part(fleet), fleet_key(fleet)
        if key not in self.trials:
            engines = self.engines_of(part.fleet)
            self.trials[key] = Trials(self.instance, lambda volume: self._at(part, engines, volume), late)
        return self.trials[key]

    def _at(self, part: Slice, engines: SimulatedFleet, volume: float) -> Judgement:
        """What full runs, and one with a crowd, say of a fleet at another volume: as `_judge`."""
        loaded = replace(part, volume=volume)
        found = self._until_decided(loaded, engines)
        stuck = self.stays_behind(loaded, engines, found.runs, 0) if found.proven else None
        return stuck or found

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
            engines = self.engines_of(fleet)
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

    def _judge(self, fleet: Fleet) -> Verdict:
        part, look = self.part(fleet), self.look(fleet)
        if look.judgement.missed or self.late():
            return replace(look, held=False)
        engines = self.engines_of(part.fleet)
        if not one_life(self.instance, part.fleet, part.volume):
            early = self.stays_behind(part, engines, self.runs(part, engines, part.requests, 0, 1), 0)
            if early is not None:
                return self.settled(fleet, early, stuck=early, held=False)
        found = self._until_decided(part, engines)
        held = found.proven and len(found.runs) >= self.least
        stuck = self.stays_behind(part, engines, found.runs, 0) if held else None
        if held and stuck is None:
            return self._in_order(fleet, found)
        return self.settled(fleet, found, stuck=stuck, held=held)

    def _until_decided(self, part: Slice, engines: SimulatedFleet) -> Judgement:
        """What full runs say; where these are long, a shorter one may show a miss before."""
        requests = self.full(part)
        if requests >= 2 * part.requests:
            alone = judge_runs(self.instance, engines, self.runs(part, engines, part.requests, 0, 1))
            if alone.missed:
                return alone
        wanted = until_decided(requests, least=self.least, late=self.late)
        return judge_until(self.instance, engines, lambda number: self.drawn(part, requests, number), wanted)

    def _in_order(self, fleet: Fleet, found: Judgement) -> Verdict:
        """The verdict on a fleet that keeps its goals, unless the recorded requests in their own order say otherwise.

        They come once, so what counts is the share of them in time: there is no interval about it.
        """
        recorded = self.replayed(fleet)
        if recorded is None or all(one.held for one in recorded.classes):
            return self.settled(fleet, found)
        return replace(self.settled(fleet, recorded, held=False), replayed=True)


def make_bench(instance: Instance, volume: float = 1.0, least: int = 2, late: Late = never) -> Bench:
    """A bench for the demand times `volume`, with the problem's seed and at its confidence."""
    problem, requests = instance.problem, run_length(instance, volume)
    return Bench(instance, problem.seed, requests, slow_end(problem.confidence), volume, least, late=late)


def goodput_of(bench: Bench, fleet: Fleet, by_formula: float, late: Late, *, held: bool = True) -> Goodput:
    """The goodput of what is simulated of a fleet.

    by_formula: what the formulas expect [1/s], which is tried first; held: whether it meets the SLO as planned.
    """
    part, step = bench.part(fleet), 1.0 + 4.0 * TOLERANCE
    expected = by_formula / bench.instance.problem.workload.request_rate / part.parts
    start = max(part.volume * step, expected) if held else min(part.volume, expected or part.volume)
    trials = bench.trials_of(fleet, late)
    return goodput_among(trials, TOLERANCE, proven=part.volume if held else 0.0, start=start, step=step)


def fullest(engines: SimulatedFleet, runs: Sequence[Run]) -> float:
    """Share of its KV blocks that the fullest engine had in use at once [1]."""
    uses = [use for run in runs for use in run.result.engines]
    return max((use.peak_blocks / engines.pools[use.pool].limits.kv_blocks for use in uses), default=0.0)


def kv_room(instance: Instance, fleet: Fleet, engines: SimulatedFleet) -> float:
    """Requests that fill the KV memory of the engines that hold them to their end, each half-way through its output."""
    flows, room = instance.flows, 0.0
    for pool, simulated in zip(fleet.pools, engines.pools, strict=True):
        weight = flows.share * pool.route
        if pool.role is Role.PREFILL or not weight.any():
            continue
        tokens = float(weight @ (flows.isl + flows.osl / 2.0) / weight.sum())
        room += simulated.replicas * simulated.limits.kv_blocks * simulated.limits.block_size / tokens
    return room


def crowded(demand: Demand, count: int) -> Demand:
    """The same requests, the first `count` of them at once when the last of these comes."""
    arrival = demand.trace.arrival
    start = arrival[min(count, arrival.size) - 1]
    return replace(demand, trace=replace(demand.trace, arrival=np.maximum(arrival - start, 0.0)))


def crowd_of(instance: Instance, fleet: Fleet, engines: SimulatedFleet) -> int:
    """Requests of a crowd: FULL times those that fill the memory, however many may be there at once by their limits.

    What a fleet permits says nothing of where it may get: a second life has as many requests as fill the memory.
    """
    return max(1, math.ceil(FULL * kv_room(instance, fleet, engines)))


def lasting(instance: Instance, engines: SimulatedFleet, run: Run) -> Judgement | None:
    """What the second half of a run says that began with a crowd, if its engines preempted and it still misses."""
    if not any(use.preemptions for use in run.result.engines):
        return None
    late = judge_runs(instance, engines, [run], warm_up=HALF)
    return late if late.refuted else None


def backlog_seconds(instance: Instance, pool: FleetPool) -> tuple[float, float]:
    """Seconds of one engine of a pool for each request that it ends while it has a backlog, and those for preemption.

    The former without what is computed again; by formula. Prompts cost what they add to the decode steps that carry
    them, and so does a token of them that is computed again.
    """
    tables, flows, shape = instance.tables, instance.flows, pool.shape
    policy, limits = SCHEDULERS[instance.problem.engine], engine_limits(instance, pool)
    share, tokens = flows.share * pool.route, float(limits.kv_blocks) * limits.block_size
    context = resident_context(share, flows.isl, flows.osl)
    weight = running_share(share, flows.osl)
    promised = float(weight @ (flows.isl + policy.reserve_output * flows.osl))
    batch = backlog_batch(max(context[0], promised), limits.max_num_seqs, tokens)
    again = full_chance(context, limits.max_num_seqs, tokens) * recomputed_tokens(
        share,
        flows.isl,
        flows.osl,
        batch=batch,
        budget=max(min(limits.max_num_batched_tokens - batch, limits.long_prefill_threshold), 1.0),
        grown=1.0 - policy.reserve_output,
        whole_prompts=policy.whole_prompt_blocks,
    )
    at = (shape, slice(None), pool.chunk)
    longer = (tables.mixed_base[at] - tables.carried * tables.decode_base[shape][:, None]) * tables.chunk_count[at]
    lanes = float(tables.pipeline[shape] * tables.ranks[shape])
    prompts = np.array([float(np.interp(batch, tables.seqs, column)) for column in np.maximum(longer, 0.0).T]) / lanes
    token = float(share @ prompts) / float(share @ flows.new_tokens)
    prompt = float(share @ prompts / share.sum()) if pool.role is Role.COLOCATED else 0.0
    step = decode_base(instance, pool, batch) + batch * float(weight @ tables.attention_slope[shape])
    return float(share @ flows.osl / share.sum()) * step / batch + prompt, token * again


def two_lives(instance: Instance, pool: FleetPool, volume: float = 1.0) -> bool:
    """Whether the engines of a pool keep up with `volume` times the demand, but not once their memory is full.

    Prefill engines preempt nothing: they keep a prompt's KV until it is handed over. Engines that do not keep up in any
    case are no concern here.
    """
    rate = float(instance.flows.rate @ pool.route) * volume / pool.replicas
    if pool.role is Role.PREFILL or rate <= 0.0:
        return False
    usual, preempting = backlog_seconds(instance, pool)
    return rate * usual < 1.0 <= rate * (usual + preempting)


def one_life(instance: Instance, fleet: Fleet, volume: float = 1.0) -> bool:
    """Whether no pool of a fleet has two lives."""
    return not any(two_lives(instance, pool, volume) for pool in fleet.pools)


def with_one_life(instance: Instance, fleet: Fleet, volume: float = 1.0) -> Fleet:
    """The fleet with the largest batch limits with which its pools have one life, where it keeps its promise.

    The same fleet where they do, or where the formulas promise less of it with such limits.
    """
    pools = tuple(_with_fewer_seats(instance, pool, volume) for pool in fleet.pools)
    if all(pool is other for pool, other in zip(pools, fleet.pools, strict=True)):
        return fleet
    steady = replace(fleet, pools=pools)
    kept = promise(instance, steady, volume) >= min(promise(instance, fleet, volume), 1.0)
    return steady if kept else fleet


def _with_fewer_seats(instance: Instance, pool: FleetPool, volume: float) -> FleetPool:
    """The pool with the largest batch limit with which it has one life; as it is where it has, or with none has."""
    if not two_lives(instance, pool, volume):
        return pool
    fewer = (replace(pool, seqs=limit) for limit in reversed(instance.tables.limits_below(pool.seqs)))
    return next((other for other in fewer if not two_lives(instance, other, volume)), pool)


def miss_words(found: Verdict) -> str:
    """How a fleet missed, as the end of a sentence."""
    where = "the recorded requests come in their own order" if found.replayed else "simulated"
    if found.stuck:
        return "stays behind in simulation once its KV memory was full"
    if found.judgement.overload.overloaded:
        return f"falls behind its arrivals when {where}"
    classes = found.judgement.classes
    behind = [one for one in classes if not (one.held if found.replayed else one.proven)] or list(classes)
    shares = [
        f"{percentage(one.attainment.share, 1)} of {one.name} ({percentage(one.goal, 1)} asked"
        f"{'' if found.replayed else f'; 95 % interval {interval_words(one)}'})"
        for one in behind
    ]
    missed = any(not one.held if found.replayed else one.outcome is Outcome.MISSES for one in behind)
    verb = "misses the SLO" if missed else "is not proven to meet the SLO"
    return f"{verb} when {where}: {join_words(shares)}"


def interval_words(one: ClassJudgement) -> str:
    """The 95 % interval, and why it does not show that a class holds whose share reaches the goal."""
    low, high = (percentage(end, 1) for end in (one.attainment.low, one.attainment.high))
    if one.proven:
        return f"{low} to {high}, lower at the level that confirms"
    return f"{low} to {high}, the lower end counts" if one.held else f"{low} to {high}"


def chunks_of(instance: Instance, pool: FleetPool) -> list[int]:
    """Token budgets beside which a pool's engines have memory, its own among them, as indices."""
    return sorted({*np.flatnonzero(instance.tables.roomy[pool.shape, pool.seqs]).tolist(), pool.chunk})


def valid(instance: Instance, fleet: Fleet, volume: float = 1.0) -> bool:
    """Whether the limits on the fleet and the engine's own allow it, and no memory stays full once it is.

    A step needs a token for each running request, and the longest request memory. volume: multiple of the demand
    (`second_life`).
    """
    tables = instance.tables

    def fits(pool: FleetPool) -> bool:
        enough = pool.role is Role.DECODE or tables.chunks[pool.chunk] >= tables.seqs[pool.seqs]
        return bool(enough and tables.roomy[pool.shape, pool.seqs, pool.chunk])

    return allowed(instance, fleet) and all(map(fits, fleet.pools)) and one_life(instance, fleet, volume)
