"""The verdict on a fleet: simulated under the same requests as every other fleet, then confirmed on fresh ones.

A fleet holds if, over at least two full runs, the lower end of every class's 95 % interval reaches the goal, the fleet
keeps up with its arrivals, near its capacity with a few more too, and it recovers from a crowd: as many requests as
fill its memory, at once. It misses if an upper end lies below the goal. If the goal lies within the interval, the runs
are doubled (`judge.until_decided`).

The winner is confirmed on fresh requests, which influenced no choice, in runs that are doubled in the same way. Each of
the LOOKS of the k-th confirmation lets a fleet that misses pass with chance TAIL / LOOKS / (k (k + 1)), so that all
looks together do so with chance TAIL (docs/theory/verification.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.engine import Role
from costmodel.simulator.fleet import Router, SimulatedFleet
from costmodel.simulator.metrics import BATCHES, GROWTH, TAIL, WARM_UP
from costmodel.simulator.steps import GridSteps
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import join_words, percentage
from optimizer.fleets.evaluate import RATE_MARGIN, busiest
from optimizer.fleets.fleet import Fleet, FleetPool, allowed, fleet_cost
from optimizer.fleets.pool import pool_key, pool_state
from optimizer.loads.effort import LEAST_RUNS, Late, never
from optimizer.loads.instance import Demand, Instance
from optimizer.plans.records import HALVING_RUNS, NOTABLE, ROUNDING, TOLERANCE, ClassJudgement, Outcome
from search_spaces.problem import Balancing

from .demand import SEEDS, recorded_trace, simulated_trace
from .judge import (
    MOST_JUDGED,
    MOST_RUNS,
    Goodput,
    Judgement,
    PoolKey,
    Rule,
    Run,
    Trials,
    distance,
    judge_runs,
    pools_to_blame,
    simulated_fleet,
    until_decided,
)

LIFETIMES = 1.0 / WARM_UP
"""Length of a full run in longest permitted times of a mean request, or in pauses between turns of a session: so the
warm-up is one of them, and caches fill in it. Of a run with a crowd, in the requests of that: a fleet which ends a
tenth more than come has drained it by the second half [1]."""
RELAXATIONS = 2.5 * BATCHES / LEAST_RUNS
"""Length of a full run in memories of its slowest queue or batch, so that each batch of LEAST_RUNS runs lasts two and a
half of them."""
LEAST_REQUESTS, MOST_REQUESTS = 8_000, MOST_JUDGED // HALVING_RUNS
"""Least and most requests of a full run; assumed: fewer say too little about a 99 % goal, more take too long."""
HALF_FULL = 0.5
"""Occupancy of the fullest engine up to which memory is no concern [1]."""
CROWD = 1.5
"""Requests of a crowd over those that fill the memory, as some end before all are in [1]."""
DRAINED = 0.5
"""Share of a run in which its crowd must be over [1]."""

LOOKS = 1 + int(math.log2(MOST_RUNS // LEAST_RUNS))
"""Looks of a confirmation at most, all as strict: were the last the strictest, what needs it would never pass."""
MOST_DECIDING = 3 * MOST_JUDGED
"""Most requests of a verdict on which a plan depends: near its capacity a fleet has long waves, of which MOST_JUDGED
hold few, and then the seed decides (benchmarks/verified_plans.py --near)."""
APART = MOST_RUNS + 1
"""Distance of the numbers of two confirmations' first runs: each has up to MOST_RUNS, and one with a crowd."""

Distance = tuple[bool, float]
"""Distance of a fleet from its goals: whether it falls behind, and the share by which its worst class misses."""
Key = tuple[PoolKey, ...]


def run_length(instance: Instance, volume: float) -> int:
    """Requests of a full run at `volume` times the demand, for any fleet; a recording keeps its own number.

    Requests of a burst share their fate, so that of as many as the peakedness only one adds information.
    """
    recording, load = instance.problem.recorded, instance.problem.workload
    pause = 0.0 if load.sessions is None else load.sessions.pause.mean * volume * load.request_rate
    recording_size = 0 if recording is None else recording.arrival.size
    least = max(LEAST_REQUESTS, recording_size, math.ceil(LIFETIMES * pause))
    alike = instance.flows.peakedness if recording is None else 1.0
    return math.ceil(max(LIFETIMES * in_system(instance, volume), least) * alike)


def in_system(instance: Instance, volume: float) -> float:
    """Most requests in the system at once, by Little's law: rate x (TTFT + OSL x TPOT), at their limits."""
    flows = instance.flows
    lifetime = float(flows.share @ np.minimum(flows.longest, SECONDS_PER_HOUR) / flows.share.sum())
    return lifetime * volume * instance.problem.workload.request_rate


def memory(instance: Instance, fleet: Fleet, volume: float) -> float:
    """Requests that arrive until the slowest prompt queue has forgotten its length; infinite if it is too busy.

    A busy queue remembers rho (ca^2 + cs^2) / (1 - rho)^2 of its prompts (Whitt 1989, Planning queueing simulations);
    rho and cs^2 by formula.
    """
    longest = 0.0
    for pool in fleet.pools:
        rate = instance.flows.rate * pool.route
        wait = pool_state(instance, pool, volume).wait if rate.any() else None
        if wait is not None:
            weight, work = rate / rate.sum(), instance.tables.prefill_time[pool.shape, pool.chunk]
            spread = instance.flows.arrival_scv + float(weight @ work**2) / float(weight @ work) ** 2 - 1.0
            busy = wait.utilization
            prompts = busy * spread / (1.0 - busy) ** 2 if busy < 1.0 else math.inf
            longest = max(longest, prompts * float(instance.flows.rate.sum() / rate.sum()))
    return longest


def settling(instance: Instance, fleet: Fleet, volume: float) -> float:
    """Requests that arrive while the slowest batches relax to their means (`PoolState.relaxation`).

    A request found running has a life of E[osl^2] / E[osl] steps, all of which a batch remembers.
    """
    flows, longest = instance.flows, 0.0
    for pool in fleet.pools:
        share = flows.share * pool.route
        output = max(float(share @ flows.osl), 1e-300)
        longer = float(share @ flows.osl**2) / output * float(share.sum()) / output
        longest = max(longest, pool_state(instance, pool, volume).relaxation * longer)
    return longest * float(flows.rate.sum()) * volume


def full_length(instance: Instance, fleet: Fleet, least: int, volume: float) -> int:
    """Requests of a run that is long against the memory of the fleet's slowest queue and batch; at least `least`."""
    memory_length = RELAXATIONS * max(memory(instance, fleet, volume), settling(instance, fleet, volume))
    return max(least, math.ceil(min(memory_length, MOST_REQUESTS)))


@dataclass(frozen=True, slots=True)
class Slice:
    """What is simulated of a fleet: one in `parts` of its engines and of the demand; `requests` in a full run.

    Large fleets need more requests until they are full than a search has time for. Fewer engines share a queue in a
    slice, so what holds in it holds in the whole. engines: of it, as the simulator has them; seed: of the first run.
    """

    instance: Instance
    fleet: Fleet
    engines: SimulatedFleet
    parts: int
    volume: float
    requests: int
    seed: int

    @classmethod
    def whole(cls, instance: Instance, fleet: Fleet, requests: int, seed: int, volume: float = 1.0) -> Slice:
        """All of a fleet."""
        return cls(instance, fleet, simulated_fleet(instance, fleet), 1, volume, requests, seed)

    @property
    def key(self) -> tuple[Key, int]:
        """The same for fleets of which the same is simulated."""
        return fleet_key(self.fleet), self.parts

    @property
    def full(self) -> int:
        """Requests of a full run: long against the memory of its queues and batches, up to MOST_REQUESTS."""
        return full_length(self.instance, self.fleet, self.requests, self.volume)

    def drawn(self, requests: int, number: int, more: float = 1.0) -> Demand:
        """The requests with this run number, so many of them, which are `seed` if it is 0.

        more: their rate over the planned one.
        """
        return simulated_trace(self.instance, self.fleet, requests, self.seed + SEEDS * number, self.volume * more)

    def runs(self, requests: int, first: int, last: int) -> list[Run]:
        """Runs number `first` up to `last`, of `requests` each; a run number always has the same requests."""
        return [Run.of(self.drawn(requests, number), self.engines) for number in range(first, last)]

    def judged(self, requests: int, rule: Rule, first: int = 1) -> Judgement:
        """Simulate `first` runs of so many requests, and more as long as the rule wants them."""
        runs, count = list[Run](), first
        while True:
            runs += self.runs(requests, len(runs), count)
            judgement = judge_runs(self.instance, self.engines, runs)
            if (count := rule(judgement)) <= len(runs):
                return judgement

    def until_decided(self, late: Late) -> Judgement:
        """The judgement of full runs; if these are long, a shorter run may show a miss first."""
        requests = self.full
        if requests >= 2 * self.requests:
            alone = judge_runs(self.instance, self.engines, self.runs(self.requests, 0, 1))
            if alone.missed:
                return alone
        rule = until_decided(requests, most=MOST_DECIDING, least=LEAST_RUNS, gives_up=True, late=late)
        return self.judged(requests, rule)

    def stays_behind(self, runs: Sequence[Run], number: int) -> Judgement | None:
        """The judgement of a run that begins with a crowd, if the fleet does not recover from it; else None.

        number: of the requests; runs: of the same fleet. If they never filled half of the memory, no crowd is tried.
        While requests in the system still become fewer, by more than GROWTH of the arrivals, a miss says only that the
        run was too short, and it is made twice as long.
        """
        if fullest(self.engines, runs) <= HALF_FULL:
            return None
        count = crowd_of(self.instance, self.fleet, self.engines)
        requests = max(self.requests, math.ceil(LIFETIMES * count))
        while True:
            demand = crowded(self.drawn(requests, number), count)
            late = lasting(self.instance, self.engines, Run.of(demand, self.engines))
            if late is None or late.overload.growth >= -GROWTH or requests >= MOST_REQUESTS:
                return late
            requests *= 2

    def gives_way(self, number: int) -> Judgement | None:
        """The judgement of a run at RATE_MARGIN times the rate, if the fleet falls behind in it; else None.

        Only where the formulas say that some resource is too busy for that: a queue just beyond its capacity grows so
        slowly that its runs end before most requests are late.
        """
        states = ((pool, pool_state(self.instance, pool, self.volume)) for pool in self.fleet.pools)
        if all(busiest(self.instance, pool, state) * RATE_MARGIN <= 1.0 for pool, state in states):
            return None
        run = Run.of(self.drawn(self.full, number, RATE_MARGIN), self.engines)
        judgement = judge_runs(self.instance, self.engines, [run])
        return judgement if judgement.overloaded else None


def fleet_key(fleet: Fleet) -> Key:
    """A key that is equal for two fleets that run alike."""
    return tuple(pool_key(pool) for pool in fleet.pools)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A fleet that was simulated; cost [$/h]; held: whether it is shown to keep every goal.

    blamed: pools that made it miss; the runs of one that did not hold are not kept. confirmation: the number of the one
    that it was put to last, 0: none. stuck: it did not come out of a crowd; replayed: it missed a goal when the
    recorded requests came in order; near_capacity: it keeps its goals, but falls behind at RATE_MARGIN times the rate.
    `judgement` is of the run that decided, and tail its distance to the limits (`distance`).
    """

    fleet: Fleet
    cost: float
    judgement: Judgement
    held: bool
    blamed: tuple[int, ...] = ()
    confirmation: int = 0
    stuck: bool = False
    replayed: bool = False
    near_capacity: bool = False
    tail: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Whether it meets the goals, misses one, or is undecided."""
        if self.held:
            return Outcome.MEETS
        return Outcome.MISSES if self.judgement.refuted or self.replayed else Outcome.UNDECIDED

    @property
    def overall(self) -> float:
        """Share of all requests that count within their SLOs [1]."""
        classes = self.judgement.classes
        return sum(item.attainment * item.counted for item in classes) / max(sum(item.counted for item in classes), 1)

    @property
    def distance(self) -> Distance:
        """How far the fleet is from its goals; fleets that keep up are nearer than any that do not."""
        return self.judgement.overloaded, max(item.attainment_goal - item.attainment for item in self.judgement.classes)


Tried = tuple[str, Verdict]
"""A label, and the verdict on its fleet."""


@dataclass(slots=True)
class Bench:
    """Judges fleets of one instance, each once.

    seed: of the first run; requests: of a full run of the whole fleet; volume: multiple of the demand; late: whether no
    more runs are to be made. Kept are the verdicts on all fleets and, by `Slice.key`, on what was simulated of them,
    trials at other rates, and step times.
    """

    instance: Instance
    seed: int
    requests: int
    volume: float = 1.0
    verdicts: dict[Key, Verdict] = field(default_factory=dict)
    late: Late = never
    slices: dict[tuple[Key, int], Verdict] = field(default_factory=dict)
    trials: dict[Key, Trials] = field(default_factory=dict)
    steps: dict[PoolKey, GridSteps] = field(default_factory=dict)

    # --- verdicts

    def judged(self, fleet: Fleet) -> bool:
        """Whether the fleet was judged before."""
        return fleet_key(fleet) in self.verdicts

    def verdict(self, fleet: Fleet) -> Verdict:
        """Judge a fleet by full runs; a known verdict is returned."""
        key = fleet_key(fleet)
        if key not in self.verdicts:
            self.verdicts[key] = self._judge(fleet)
        return self.verdicts[key]

    def confirmation_after(self, winner: Verdict) -> int:
        """Number of the next confirmation: one more than of the winner, and than of any cheaper fleet.

        Those of other fleets do not count, as none of them can become the plan.
        """
        cheaper = (verdict for verdict in self.verdicts.values() if verdict.cost < winner.cost * (1.0 - ROUNDING))
        return 1 + max([winner.confirmation, *(verdict.confirmation for verdict in cheaper)])

    def _judge(self, fleet: Fleet) -> Verdict:
        portion = self.part(fleet)
        if portion.key not in self.slices:
            judgement = portion.until_decided(self.late)
            is_proven = judgement.proven and len(judgement.runs) >= LEAST_RUNS
            self.slices[portion.key] = self.verdict_under_strain(fleet, portion, judgement, 0, held=is_proven)
        return replace(self.slices[portion.key], fleet=fleet, cost=fleet_cost(self.instance, fleet))

    def verdict_under_strain(
        self, fleet: Fleet, portion: Slice, judgement: Judgement, first: int, *, held: bool, number: int = 0
    ) -> Verdict:
        """The verdict on a fleet whose runs hold, or not, if it also stands a crowd, and a few more requests.

        first: number of the requests of these two runs; number: of the confirmation, 0: none.
        """
        stuck = portion.stays_behind(judgement.runs, first) if held else None
        behind = portion.gives_way(first) if held and stuck is None else None
        verdict = self.verdict_of(fleet, judgement, stuck=stuck, held=held and behind is None, number=number)
        if behind is None:
            return verdict
        blamed = pools_to_blame(self.instance, behind)
        return replace(verdict, near_capacity=True, blamed=blamed, tail=distance(self.instance, behind))

    def verdict_of(
        self, fleet: Fleet, judgement: Judgement, *, stuck: Judgement | None = None, held: bool = True, number: int = 0
    ) -> Verdict:
        """The verdict on a fleet from its runs; stuck: the judgement of the run that begins with a crowd, if it misses.

        A fleet must also meet its goals when the recorded requests are replayed in order. They come once, so the share
        that meets the SLO counts as it is, without an interval.
        """
        holds = held and stuck is None
        replay = self.replayed(fleet) if holds else None
        is_replayed = replay is not None and not all(item.held for item in replay.classes)
        judgement = stuck or (replay if replay is not None and is_replayed else judgement)
        verdict = Verdict(fleet, fleet_cost(self.instance, fleet), judgement, holds and not is_replayed)
        verdict = replace(verdict, confirmation=number, tail=distance(self.instance, judgement))
        if verdict.held:
            return verdict
        return replace(
            verdict,
            judgement=replace(judgement, runs=()),
            blamed=pools_to_blame(self.instance, judgement) if stuck is None else stuck.preempting,
            stuck=stuck is not None,
            replayed=is_replayed,
        )

    # --- runs

    def part(self, fleet: Fleet) -> Slice:
        """The largest slice whose full run stays within MOST_REQUESTS, if rounding down takes little of any pool.

        The whole fleet for recorded requests, as a wave cannot be divided.
        """
        counts, part_count = [pool.replicas for pool in fleet.pools], 1
        if self.instance.problem.recorded is None:
            most = min(math.ceil(self.requests / MOST_REQUESTS), *counts)
            part_count = next(
                n for n in range(most, 0, -1) if all(have // n * n >= (1.0 - 2.0 * NOTABLE) * have for have in counts)
            )
        slice_fleet = fleet.resized([count // part_count for count in counts])
        requests = min(math.ceil(self.requests / part_count), MOST_JUDGED)
        engines, volume = simulated_fleet(self.instance, slice_fleet, self.steps), self.volume / part_count
        return Slice(self.instance, slice_fleet, engines, part_count, volume, requests, self.seed)

    def replayed(self, fleet: Fleet) -> Judgement | None:
        """The judgement of the recorded requests in their own order; None if nothing was recorded."""
        recording = self.instance.problem.recorded
        if recording is None:
            return None
        demand = recorded_trace(self.instance, fleet, recording, self.volume)
        engines = simulated_fleet(self.instance, fleet, self.steps)
        return judge_runs(self.instance, engines, [Run.of(demand, engines)])

    def trials_of(self, fleet: Fleet) -> Trials:
        """The trials of a fleet at several rates, judged as at its own; those that were made are kept."""
        key, portion = fleet_key(fleet), self.part(fleet)

        def at(volume: float) -> Judgement:
            load = replace(portion, volume=volume)
            judgement = load.until_decided(self.late)
            stuck = load.stays_behind(judgement.runs, 0) if judgement.proven else None
            return stuck or judgement

        return self.trials.setdefault(key, Trials(self.instance, at, self.late))


def make_bench(instance: Instance, volume: float = 1.0, late: Late = never) -> Bench:
    """A bench for the demand times `volume`, with the problem's seed."""
    return Bench(instance, instance.problem.seed, run_length(instance, volume), volume, late=late)


def goodput_of(bench: Bench, fleet: Fleet, by_formula: float, *, held: bool = True) -> Goodput:
    """The goodput of what is simulated of a fleet.

    by_formula: what the formulas expect [1/s], which is tried first; held: whether it meets the SLO as planned.
    """
    portion, step = bench.part(fleet), 1.0 + HALVING_RUNS * TOLERANCE
    formula_volume = by_formula / bench.instance.problem.workload.request_rate / portion.parts
    start = (
        max(portion.volume * step, formula_volume) if held else min(portion.volume, formula_volume or portion.volume)
    )
    proven = portion.volume if held else 0.0
    return bench.trials_of(fleet).goodput(TOLERANCE, proven=proven, start=start, step=step)


def chunks_of(instance: Instance, pool: FleetPool) -> list[int]:
    """Token budgets beside which a pool's engines have memory, its own among them, as indices."""
    return sorted({*np.flatnonzero(instance.tables.roomy[pool.shape, pool.seqs]).tolist(), pool.chunk})


def valid(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet has roles that are searched, and is within its limits and those of its engines.

    A step needs a token for each running request.
    """
    tables, roles = instance.tables, instance.problem.space.roles

    def fits(pool: FleetPool) -> bool:
        enough = pool.role is Role.DECODE or tables.chunks[pool.chunk] >= tables.seqs[pool.seqs]
        return bool(enough and tables.roomy[pool.shape, pool.seqs, pool.chunk])

    return all(pool.role in roles and fits(pool) for pool in fleet.pools) and allowed(instance, fleet)


# --- a crowd ----------------------------------------------------------------------------------------------------------


def fullest(engines: SimulatedFleet, runs: Sequence[Run]) -> float:
    """Largest share of KV blocks that any engine had in use at once [1]."""
    uses = (use for run in runs for use in run.result.engines)
    return max((use.peak_blocks / engines[use.pool].limits.kv_blocks for use in uses), default=0.0)


def crowd_of(instance: Instance, fleet: Fleet, engines: SimulatedFleet) -> int:
    """Requests of a crowd: half as many again as fill the KV memory, however many their limits let in.

    Each stays in the engine that holds it to its end, half-way through its output.
    """
    flows, room = instance.flows, 0.0
    for pool, engine in zip(fleet.pools, engines, strict=True):
        weight = flows.share * pool.route
        if pool.role is not Role.PREFILL and weight.any():
            tokens = float(weight @ flows.mean_context / weight.sum())
            room += engine.replicas * engine.limits.kv_blocks * engine.limits.block_size / tokens
    return max(1, math.ceil(CROWD * room))


def crowded(demand: Demand, count: int) -> Demand:
    """The same requests, of which the first `count` arrive at once, when the last of them came."""
    arrival = demand.trace.arrival
    start = arrival[min(count, arrival.size) - 1]
    return replace(demand, trace=replace(demand.trace, arrival=np.maximum(arrival - start, 0.0)))


def lasting(instance: Instance, engines: SimulatedFleet, run: Run) -> Judgement | None:
    """The judgement of the second half of a run that began with a crowd, if engines preempted and it still misses."""
    late = replace(judge_runs(instance, engines, [run], warm_up=DRAINED), crowded=True)
    return late if late.preempting and late.refuted else None


# --- confirmation -----------------------------------------------------------------------------------------------------


def tail_of(number: int) -> float:
    """Chance of each look of the k-th confirmation that a share lies below its interval [1]; see LOOKS.

    They fall slowly, so that even a late confirmation accepts a fleet that clearly meets its goal.

    >>> f"{tail_of(1):.4f} {tail_of(2):.4f}"
    '0.0025 0.0008'
    """
    return TAIL / LOOKS / (number * (number + 1.0))


def confirmed(bench: Bench, candidate: Verdict, number: int, *, runs: int = LEAST_RUNS) -> tuple[Verdict, Judgement]:
    """Judge a fleet on the fresh requests of one confirmation; the verdict on it is kept.

    It has as many full runs as it was chosen by, `runs` at least, and twice as many while a goal lies within its
    interval: once, or as far as MOST_DECIDING requests and MOST_RUNS go. The plan's interval is the usual one of
    95 %; what decides is the wider (`tail_of`).
    """
    portion, instance, first = bench.part(candidate.fleet), bench.instance, APART * number
    count, fresh = max(len(candidate.judgement.runs), runs), list[Run]()
    most = min(MOST_RUNS, max(MOST_DECIDING // portion.full, 2 * count))
    while True:
        fresh += portion.runs(portion.full, first + len(fresh), first + count)
        judgement = judge_runs(instance, portion.engines, fresh)
        is_proven = judge_runs(instance, portion.engines, fresh, tail=tail_of(number)).proven
        if is_proven or judgement.refuted or count >= most:
            break
        count = min(2 * count, most)
    last = first + MOST_RUNS
    verdict = bench.verdict_under_strain(candidate.fleet, portion, judgement, last, held=is_proven, number=number)
    bench.verdicts[fleet_key(candidate.fleet)] = verdict
    return verdict, judgement


def by_requests(bench: Bench, winner: Verdict) -> Verdict | None:
    """The verdict on the winner behind a least-requests router, on the requests that proved it; None if equal.

    It is the same for a single engine, and if the problem's own router counts requests. Prompts find the prefixes that
    such a router leaves them, and the fleet is put to the same tests, with the interval that decided on the winner.
    """
    judgement, first = winner.judgement, APART * winner.confirmation
    if not any(pool.router is not Router.LEAST_LOADED and pool.replicas > 1 for pool in judgement.engines):
        return None
    instance = replace(bench.instance, problem=bench.instance.problem.behind(Balancing.LEAST_REQUESTS))
    counting = replace(bench, instance=instance)
    portion = counting.part(winner.fleet)
    sizes = [proof.demand.trace.size for proof in judgement.runs]
    runs = [Run.of(portion.drawn(size, first + number), portion.engines) for number, size in enumerate(sizes)]
    is_proven = judge_runs(instance, portion.engines, runs, tail=tail_of(max(winner.confirmation, 1))).proven
    again = judge_runs(instance, portion.engines, runs)
    return counting.verdict_under_strain(winner.fleet, portion, again, first + MOST_RUNS, held=is_proven)


# --- a fleet that no simulation chose ---------------------------------------------------------------------------------


def sure_verdict(bench: Bench, fleet: Fleet) -> Verdict:
    """The verdict on a fleet that was stated, or that formulas chose, on the requests that confirm a plan.

    Other requests may refute it before. A fleet that misses a goal passes with half of TAIL at most.
    """
    verdict = bench.verdict(fleet)
    if verdict.confirmation or verdict.outcome is Outcome.MISSES:
        return verdict
    return confirmed(bench, verdict, 1)[0]


def look(instance: Instance, fleet: Fleet) -> tuple[float, str]:
    """Share of all requests within their SLOs, and how the fleet misses, "" where it holds; see `sure_verdict`."""
    verdict = sure_verdict(make_bench(instance), fleet)
    return verdict.overall, "" if verdict.held else miss_words(verdict)


# --- in words ---------------------------------------------------------------------------------------------------------


def miss_words(verdict: Verdict) -> str:
    """The end of a sentence: how a fleet missed."""
    where = "the recorded requests are replayed in order" if verdict.replayed else "simulated"
    if verdict.stuck:
        return "does not recover in simulation from a burst that fills its KV memory"
    if verdict.near_capacity:
        return f"falls behind at {percentage(NOTABLE)} more requests when simulated"
    if verdict.judgement.overloaded:
        return f"falls behind its arrivals when {where}"
    classes = verdict.judgement.classes
    behind = [item for item in classes if not (item.held if verdict.replayed else item.proven)] or list(classes)
    shares = [
        f"{percentage(item.attainment, 1)} of the requests of class {item.name} "
        f"({percentage(item.attainment_goal, 1)} asked"
        f"{'' if verdict.replayed else f'; 95 % interval {interval_words(item)}'})"
        for item in behind
    ]
    is_miss = any(not item.held if verdict.replayed else item.outcome is Outcome.MISSES for item in behind)
    verb = "misses the SLO" if is_miss else "is not shown to meet the SLO"
    return f"{verb} when {where}: {join_words(shares)}"


def interval_words(item: ClassJudgement) -> str:
    """The 95 % interval in words, and why it does not confirm a class whose share reaches the goal."""
    low, high = (percentage(end, 1) for end in (item.attainment_low, item.attainment_high))
    if item.proven:
        return f"{low} to {high}; the wider interval that decides contains the goal"
    return f"{low} to {high}, the lower end counts" if item.held else f"{low} to {high}"
