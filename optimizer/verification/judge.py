"""Simulating a fleet: its runs, the judgement on each SLO class, the pool to blame, and the most it can serve.

One loop makes all runs (`bench.Slice.judged`). After each round a rule says how many it wants, mostly twice as many:
few looks are few chances to stop at an interval that is narrow by luck (Chow and Robbins 1965).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, IntArray
from costmodel.engine import Role
from costmodel.errors import PdplanError
from costmodel.memory import kv_capacity_bytes
from costmodel.metric import METRICS, OWN_FIELDS, SHOWN_ALWAYS, Metric, Scope
from costmodel.simulator import metrics
from costmodel.simulator.fleet import UNLIMITED, Limits, Router, SimulatedFleet, SimulatedPool, SimulatedTier
from costmodel.simulator.run import simulate
from costmodel.simulator.steps import GridSteps, cost_steps
from optimizer.fleets.fleet import Fleet, FleetPool, boundary, pool_config
from optimizer.loads.effort import Late, never
from optimizer.loads.instance import Demand, Instance, step_factor
from optimizer.plans.records import (
    BURST,
    HALVING_RUNS,
    MOST_MORE,
    QUANTILES,
    QUEUE,
    ClassJudgement,
    Outcome,
    Quantiles,
)
from search_spaces.engines import SUPPORT
from search_spaces.enumeration import block_tokens
from search_spaces.problem import Balancing

Some = TypeVar("Some", bound=np.generic)

MOST_RUNS = metrics.BATCHES
"""Runs of one verdict at most: each batch of its interval is a whole run then."""
MOST_JUDGED = 300_000
"""Requests of one verdict at most: a share of 90 % is known to 0.3 points by then where every tenth request tells
something new, and predictions are off by more."""
VOLUMES = 1.0 / MOST_MORE, MOST_MORE
"""Multiples of the demand below which a fleet counts as serving nothing, and up to which it is tried."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one demand."""

    demand: Demand
    result: metrics.Result

    @classmethod
    def of(cls, demand: Demand, engines: SimulatedFleet) -> Run:
        """Simulate a fleet under a demand."""
        return cls(demand, simulate(demand.trace, engines, gap_edges=demand.gap_edges))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of runs of a fleet; rate: arrivals [1/s]; overload: of the fleet, or of the pool furthest behind.

    crowded: whether the runs began with a crowd that fills the memory; late: classes, by number, with requests in a
    pool that falls behind.
    """

    rate: float
    classes: tuple[ClassJudgement, ...]
    overload: metrics.Overload
    engines: SimulatedFleet
    runs: tuple[Run, ...]
    crowded: bool = False
    late: frozenset[int] = frozenset()

    @property
    def overloaded(self) -> bool:
        """Whether the fleet, or a pool of it, falls behind its arrivals."""
        return self.overload.overloaded

    @property
    def held(self) -> bool:
        """Whether every class keeps its goal and the fleet keeps up with its arrivals."""
        return not self.overloaded and all(item.held for item in self.classes)

    @property
    def proven(self) -> bool:
        """Whether every class keeps its goal at the lower end of its confidence interval and the fleet keeps up."""
        return not self.overloaded and all(item.proven for item in self.classes)

    @property
    def missed(self) -> bool:
        """Whether some class misses its goal even at the upper end of its confidence interval."""
        return any(item.outcome is Outcome.MISSES for item in self.classes)

    @property
    def refuted(self) -> bool:
        """Whether the fleet is shown to miss a goal or to fall behind its arrivals."""
        return self.overloaded or self.missed

    @property
    def outcome(self) -> Outcome:
        """Whether the fleet meets every goal, misses one or falls behind, or a goal lies within its interval."""
        if self.refuted:
            return Outcome.MISSES
        return Outcome.MEETS if self.proven else Outcome.UNDECIDED

    @property
    def preempting(self) -> tuple[int, ...]:
        """Pools whose engines preempted."""
        return tuple(sorted({use.pool for run in self.runs for use in run.result.engines if use.preemptions}))

    @property
    def deciding(self) -> float:
        """Requests per run that would decide, if the shares stay as they are [1]; infinite if no number would."""
        lacking = max((item.lacking for item in self.classes if item.outcome is Outcome.UNDECIDED), default=1.0)
        return lacking * max(run.demand.trace.size for run in self.runs)


PoolKey = tuple[object, ...]


def simulated_fleet(
    instance: Instance, fleet: Fleet, known_steps: dict[PoolKey, GridSteps] | None = None
) -> SimulatedFleet:
    """The engines of a fleet in the form that the simulator takes; spare replicas idle and are left out.

    known_steps: a cache of step times by engine, which are slow to compute.
    """
    steps = {} if known_steps is None else known_steps
    balancing = instance.problem.constraints.balancing_of([pool.role for pool in fleet.pools])

    def engines(pool: FleetPool) -> SimulatedPool:
        key = pool.role, pool.shape, pool.seqs, pool.chunk
        if key not in steps:
            steps[key] = pool_steps(instance, pool)
        return simulated_pool(instance, pool, balancing, steps[key])

    return tuple(map(engines, fleet.pools))


def kv_of_token(instance: Instance, pool: FleetPool) -> float:
    """KV of one token of the requests that a pool runs, on one GPU [byte]: windows keep less of long contexts.

    A request runs for as long as it generates: the mean is over all output tokens. 0 where the pool runs none.
    """
    running = instance.flows.share * pool.route * instance.flows.osl
    tokens = float(running @ instance.flows.mean_context)
    return float(running @ instance.tables.kv_held[pool.shape]) / tokens if tokens > 0.0 else 0.0


def simulated_tier(instance: Instance, pool: FleetPool) -> SimulatedTier:
    """The tier below the memory of a pool's GPUs; each data-parallel rank has its own KV."""
    tier, config = instance.problem.kv_cache_tier, pool_config(instance, pool)
    if tier is None or pool.role is Role.DECODE:
        return SimulatedTier()
    mean = max(kv_of_token(instance, pool), 1e-12)
    engines = pool.replicas if tier.shared else 1
    tokens = tier.capacity * config.parallelism.data * engines / mean
    return SimulatedTier(tokens, mean / tier.bandwidth, tier.latency, tier.shared)


def engine_limits(instance: Instance, pool: FleetPool) -> Limits:
    """Request slots, token budget and KV blocks of one engine of a pool."""
    config, model = pool_config(instance, pool), instance.problem.model
    ranks, mean = config.parallelism.data, kv_of_token(instance, pool)
    free = kv_capacity_bytes(model, config) * ranks
    block = block_tokens(instance.problem.engine, model)
    blocks = int(free / (mean * block)) if mean > 0.0 else UNLIMITED
    budget = max(config.max_num_batched_tokens, config.verified * config.max_num_seqs)
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        long_prefill_threshold=budget // ranks if ranks > 1 else UNLIMITED,
        kv_blocks=max(blocks, 1),
        block_size=block,
        decode_tokens=config.verified,
    )


def simulated_pool(instance: Instance, pool: FleetPool, balancing: Balancing, steps: GridSteps) -> SimulatedPool:
    """A pool in the form that the simulator takes; see `simulated_fleet`. steps: its `pool_steps`."""
    config, tables = pool_config(instance, pool), instance.tables
    router = Router.LEAST_LOADED
    if pool.role is not Role.DECODE and balancing is Balancing.LEAST_TOKENS:
        # one that knows the tokens to compute knows those that are cached
        router = Router.LENGTH_AWARE if instance.problem.workload.sessions is None else Router.PREFIX_AFFINE
    kv_bytes = tables.kv_transferred[pool.shape]
    per_token = float(kv_bytes @ instance.flows.share / (instance.flows.isl @ instance.flows.share))
    return SimulatedPool(
        role=pool.role,
        steps=steps,
        policy=SUPPORT[instance.problem.engine].scheduler,
        limits=engine_limits(instance, pool),
        replicas=pool.replicas,
        pipeline=config.parallelism.pipeline,
        router=router,
        kv_seconds_per_token=per_token / float(tables.links[pool.shape]) if pool.role is not Role.COLOCATED else 0.0,
        nics=config.parallelism.data,
        first_token=tables.first_token_of(pool.role, pool.shape),
        fixed_ttft=instance.policy.fixed_ttft(pool.role is Role.PREFILL),
        tier=simulated_tier(instance, pool),
    )


def pool_steps(instance: Instance, pool: FleetPool) -> GridSteps:
    """Step times of one engine of a pool; they depend on its role, shape and batch limits alone."""
    config = pool_config(instance, pool)
    expected_steps = cost_steps(instance.problem.model, config, instance.policy.overhead)
    if instance.quantile == 0.5:
        return expected_steps
    return expected_steps.scaled(step_factor(instance, config))


def judge_demands(instance: Instance, engines: SimulatedFleet, demands: Sequence[Demand]) -> Judgement:
    """Simulate each demand and judge all runs together, without the first tenth of each as warm-up."""
    return judge_runs(instance, engines, [Run.of(demand, engines) for demand in demands])


def judge_runs(
    instance: Instance,
    engines: SimulatedFleet,
    simulations: Sequence[Run],
    *,
    tail: float = metrics.TAIL,
    warm_up: float = metrics.WARM_UP,
) -> Judgement:
    """Judge runs of one fleet together, without the first `warm_up` of each; tail: of the intervals (`share_of`)."""
    runs = tuple(simulations)
    classes = tuple(_judged(instance, runs, k, tail, warm_up) for k in range(len(instance.problem.slos)))
    worst, late = falls_behind(instance, runs, len(engines))
    spans = [float(np.ptp(run.result.arrival)) for run in runs]
    gaps = sum(max(run.demand.trace.size - 1, 1) for run in runs)
    return Judgement(gaps / max(sum(spans), 1e-12), classes, worst, engines, runs, late=late)


def falls_behind(instance: Instance, runs: Sequence[Run], pools: int) -> tuple[metrics.Overload, frozenset[int]]:
    """Whether the fleet falls behind its arrivals; if only some pools do, the overload of the worst.

    A small pool whose queue grows without end would be hidden among the requests of the others. Also the numbers of the
    classes with requests in a pool that falls behind, all where no pool is told from others: a class that has pools of
    its own keeps its share, however late the others are.
    """
    results, routes = [run.result for run in runs], [_pools(run) for run in runs]
    members = [instance.flows.slo[run.demand.flow] for run in runs]
    whole, pools_behind = metrics.overload(results), list[tuple[metrics.Overload, list[BoolArray]]]()
    for number in range(pools):
        own = [(first == number) | (later == number) for first, later in routes]
        if any(map(np.any, own)):
            pool = whole if all(map(np.all, own)) else metrics.overload(results, own)
            pools_behind += [(pool, own)] * pool.overloaded
    if not (whole.overloaded or pools_behind):
        return whole, frozenset()
    masks = [zip(members, own, strict=True) for _, own in pools_behind]
    late = frozenset[int]().union(*(np.unique(slo[mask]).tolist() for pairs in masks for slo, mask in pairs))
    worst = whole if whole.overloaded else max((pool for pool, _ in pools_behind), key=lambda pool: pool.growth)
    return worst, late or frozenset(range(len(instance.problem.slos)))


def counted(
    instance: Instance,
    runs: Sequence[Run],
    number: int | None = None,
    *,
    several: bool = False,
    warm_up: float = metrics.WARM_UP,
) -> list[BoolArray]:
    """Masks of the requests of each run that count: those after its warm-up.

    number: only those of a class; several: only those of more than one token.
    """
    masks = []
    for run in runs:
        mask = metrics.steady(run.result, warm_up)
        mask = mask if number is None else mask & (instance.flows.slo[run.demand.flow] == number)
        masks.append(mask & (run.demand.trace.osl > 1) if several else mask)
    return masks


def pooled(values: Iterable[NDArray[Some]], masks: Sequence[BoolArray]) -> NDArray[Some]:
    """Values of the requests that count, of all runs together."""
    return np.concatenate([value[mask] for value, mask in zip(values, masks, strict=True)])


def hit_share(instance: Instance, judgement: Judgement) -> float:
    """Share of input tokens found in prefix caches, over the requests that count [1]."""
    masks = counted(instance, judgement.runs)
    prompt_tokens = pooled((run.demand.trace.isl for run in judgement.runs), masks).sum()
    hit = [run.result.hit if run.demand.trace.cached is None else run.demand.trace.cached for run in judgement.runs]
    return float(pooled(hit, masks).sum() / max(int(prompt_tokens), 1))


def _judged(instance: Instance, runs: tuple[Run, ...], number: int, tail: float, warm_up: float) -> ClassJudgement:
    """One class over all runs; latencies are infinite where a request never got that far."""
    slo = instance.problem.slos[number]
    counts = counted(instance, runs, number, warm_up=warm_up)
    several = counted(instance, runs, number, several=True, warm_up=warm_up)

    def quantiles(metric: Metric) -> Quantiles:
        masks = several if METRICS[metric].scope is Scope.LATER else counts
        return Quantiles.of(
            metrics.percentiles(pooled((getattr(run.result, metric) for run in runs), masks), QUANTILES)
        )

    good = [metrics.within(run.result, slo.limits)[mask] for run, mask in zip(runs, counts, strict=True)]
    attainment = metrics.share_of(good, tail)
    return ClassJudgement(
        name=slo.name,
        attainment=attainment.share,
        ttft_s=quantiles(Metric.TTFT),
        tpot_s=quantiles(Metric.TPOT),
        metrics={m: quantiles(m) for m in Metric if m in {*SHOWN_ALWAYS, *slo.limits} and m not in OWN_FIELDS},
        attainment_goal=slo.attainment,
        attainment_low=attainment.low,
        attainment_high=attainment.high,
        counted=attainment.count,
    )


def distance(instance: Instance, judgement: Judgement) -> float:
    """How far the worst class is from its limits at the quantile of its goal, MOST_MORE at most [1].

    Above 1 where it misses.
    """
    worst = 0.0
    for number, slo in enumerate(instance.problem.slos):
        counts, runs = counted(instance, judgement.runs, number), [run.result for run in judgement.runs]
        ratios = np.stack(
            [
                pooled((metrics.measured(result, metric) for result in runs), counts) / limit
                for metric, limit in slo.limits.items()
            ]
        )
        if ratios.size:  # of each request the largest latency in units of its limit
            ratio = np.nan_to_num(ratios, nan=MOST_MORE, posinf=MOST_MORE).max(axis=0)
            worst = max(worst, float(np.quantile(ratio, slo.attainment, method="higher")))
    if judgement.overloaded:
        worst = max(worst, 1.0 + judgement.overload.growth)
    return min(worst, MOST_MORE)


def in_time(instance: Instance, run: Run) -> BoolArray:
    """Which requests of a run are within the SLO of their own class."""
    member = instance.flows.slo[run.demand.flow]
    good = np.zeros(member.size, dtype=bool)
    for k, slo in enumerate(instance.problem.slos):
        good |= metrics.within(run.result, slo.limits) & (member == k)
    return good


Rule = Callable[[Judgement], int]
"""Rule: how many runs are wanted in all, given the judgement of those so far; no more if it is clear."""


def until_decided(
    requests: int, *, most: int = MOST_JUDGED, least: int = 1, gives_up: bool = False, late: Late = never
) -> Rule:
    """Double the runs while a goal lies within its interval, up to `most` requests in all.

    A miss ends the runs at once; met goals take at least `least` runs. gives_up: whether runs also end, undecided,
    where a goal is not met and would be shown to be missed in HALVING_RUNS times as many. late: tells when to stop.
    """

    def rule(judgement: Judgement) -> int:
        count = len(judgement.runs)
        is_missing = gives_up and any(not item.held and item.lacking <= HALVING_RUNS for item in judgement.classes)
        if judgement.refuted or ((judgement.proven or is_missing) and count >= least) or late():
            return count
        return 2 * count if 2 * count <= max(min(most // requests, MOST_RUNS), least) else count

    return rule


def half_width(judgement: Judgement) -> float:
    """Largest distance over the classes between the share and the further end of its interval [1]."""
    classes = judgement.classes
    return max(max(item.attainment - item.attainment_low, item.attainment_high - item.attainment) for item in classes)


def pool_behind(judgement: Judgement) -> int | None:
    """Index of the pool in which most requests piled up over all runs; None if the fleet keeps up.

    A full decode pool blocks the prefill pools, which keep the KV cache of computed prompts until it has room. It is
    behind where prompts wait longer for it than they take to compute, though they pile up before the prefill pool.
    """
    if not judgement.overloaded:
        return None
    roles = [pool.role for pool in judgement.engines]
    backlogs = [sum(pool_backlog(run, number, role) for run in judgement.runs) for number, role in enumerate(roles)]
    behind = int(np.argmax(backlogs))
    computed, waited = 0.0, np.zeros(len(roles))
    for run in judgement.runs:
        prompts, later = _pools(run)
        moved = (prompts == behind) & np.isfinite(run.result.moved)
        computed += float((run.result.prompt_end - run.result.prompt_start)[moved].sum())
        np.add.at(waited, later[moved], run.result.transfer[moved])
    return int(np.argmax(waited)) if waited.sum() > computed else behind


def pool_backlog(run: Run, number: int, role: Role) -> int:
    """Requests that piled up in a pool (`metrics.piled_up`).

    One is in a prefill pool until its prompt is computed, then in its decode pool until it ends.
    """
    result, trace = run.result, run.demand.trace
    pool_index = trace.decode_pool if role is Role.DECODE else trace.pool
    requests = np.ones(trace.size, dtype=np.bool_) if pool_index is None else pool_index == number
    came = result.prompt_end if role is Role.DECODE else result.arrival
    went = result.prompt_end if role is Role.PREFILL else result.finish
    return metrics.piled_up(result, came[requests], went[requests])[0]


def pools_to_blame(instance: Instance, judgement: Judgement) -> tuple[int, ...]:
    """Pools that caused at least half of an even share of the late requests.

    Late requests of the classes that miss their goal count, or of all classes if none does.
    """
    late = np.zeros(len(judgement.engines))
    for pool in pools_by_request(instance, judgement):
        np.add.at(late, pool[pool >= 0], 1.0)
    share = late / max(late.sum(), 1.0)
    return tuple(np.flatnonzero(share >= min(0.5 / late.size, share.max(initial=0.0))).tolist())


def breakdown(instance: Instance, judgement: Judgement) -> tuple[int, str] | None:
    """Index of the pool that breaks first in these runs, and its limit (`Breakdown`); None if no request is late.

    Of a fleet that keeps up: the pool that makes most requests late, and the limit that most of these exceed.
    """
    if judgement.proven:
        return None
    pools = len(judgement.engines)
    if judgement.crowded:
        uses = [use for run in judgement.runs for use in run.result.engines]
        preemptions = [sum(use.preemptions for use in uses if use.pool == number) for number in range(pools)]
        return int(np.argmax(preemptions)), BURST
    behind = pool_behind(judgement)
    if behind is not None:
        return behind, QUEUE
    late = np.zeros((pools, len(Metric)), dtype=np.int64)
    totals = np.zeros(pools, dtype=np.int64)
    for run, pool in zip(judgement.runs, pools_by_request(instance, judgement), strict=True):
        totals += np.bincount(pool[pool >= 0], minlength=pools)
        for number, slo in enumerate(instance.problem.slos):
            own = (pool >= 0) & (instance.flows.slo[run.demand.flow] == number)
            for column, metric in enumerate(Metric):
                if metric in slo.limits:
                    over = own & ~metrics.within(run.result, {metric: slo.limits[metric]})
                    late[:, column] += np.bincount(pool[over], minlength=pools)
    worst = int(np.argmax(totals))
    if not late[worst].any():  # too few requests to tell
        return None
    return worst, list(Metric)[int(np.argmax(late[worst]))].value


def pools_by_request(instance: Instance, judgement: Judgement) -> list[IntArray]:
    """Pool that made each request of each run late, -1 where none did.

    Requests of the classes that miss their goal, or of all classes if none does.
    """
    behind = [not item.proven for item in judgement.classes]
    class_mask = np.array(behind if any(behind) else [True] * len(behind))
    pools = []
    for run in judgement.runs:
        late_first, late_next = _late(instance, run, class_mask)
        pool = np.full(late_first.size, -1, dtype=np.int64)
        pool[late_first] = _late_in(run, late_first)
        pool[late_next] = _pools(run)[1][late_next]
        pools.append(pool)
    return pools


def _late(instance: Instance, run: Run, behind: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Requests that count and are late: by their first token, and otherwise by later ones."""
    result, slo = run.result, instance.flows.slo[run.demand.flow]
    first, later = np.zeros(slo.size, dtype=np.bool_), np.zeros(slo.size, dtype=np.bool_)
    for number, objective in enumerate(instance.problem.slos):
        counts = metrics.steady(result) & (slo == number) & behind[number]
        misses = counts & ~metrics.within(result, objective.limits)
        late = {scope: np.zeros(slo.size, dtype=np.bool_) for scope in Scope}
        for metric, limit in objective.limits.items():
            late[METRICS[metric].scope] |= metrics.measured(result, metric) > limit
        late_first = late[Scope.FIRST] | np.isnan(result.ttft)
        late_first |= late[Scope.WHOLE] & ~late[Scope.LATER] & (result.ttft > 0.5 * result.e2e)
        first |= misses & late_first
        later |= misses & ~late_first
    return first, later


def _late_in(run: Run, late: BoolArray) -> IntArray:
    """Pool in which the first token of each late request lost most of its time."""
    result = run.result
    before = result.queue + result.prefill  # NaN where the prompt was never computed: it is the prompt pool's fault
    after = np.where(np.isnan(result.first), np.inf, result.ttft - result.fixed_ttft - before)
    in_hand_over = ~np.isnan(before) & (after > before)
    prompts, later = _pools(run)
    return np.where(in_hand_over, later, prompts)[late]


def _pools(run: Run) -> tuple[IntArray, IntArray]:
    """Pool that computes each prompt, and pool that makes its tokens."""
    prompts, later = run.demand.trace.pool, run.demand.trace.decode_pool
    if prompts is None or later is None:
        raise PdplanError("blame: the requests of a judged fleet are routed to its pools")
    return prompts, np.where(later < 0, prompts, later)


# --- at other rates ---------------------------------------------------------------------------------------------------


class OutOfTimeError(PdplanError):
    """The time was up before the answer was known; never shown to a user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint(Judgement):
    """The judgement of a fleet at one rate, without its runs.

    served: requests ended [1/s]; tokens: output tokens [1/s]; in_time: requests ended within the SLO of their class
    [1/s]; e2e: mean time from arrival to last token [s]; breaks: what ends the goodput here (`breakdown`).
    """

    served: float
    tokens: float
    in_time: float
    e2e: float
    breaks: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput [1/s]: at `rate` every goal is shown to be met, at `fails` not; every rate tried, rising.

    Near the goal a share alone would say yes and no by turns, and a search for the turning point would end at a rate
    at which chance said yes.
    """

    rate: float
    fails: float
    tolerance: float
    points: tuple[RatePoint, ...]


@dataclass(frozen=True, slots=True)
class Trials:
    """One fleet at several volumes (multiples of the demand), each judged once, as a fleet is at its own.

    judged: simulates the fleet at a volume. All volumes share their random numbers (arrivals at rate r are those at
    rate 1 divided by r), so that latencies rise and attainment falls with the rate and not by chance.
    late: whether no more runs are to be made.
    """

    instance: Instance
    judged: Callable[[float], Judgement]
    late: Late = never
    points: dict[float, RatePoint] = field(default_factory=dict)

    def at(self, volume: float) -> RatePoint:
        """The fleet at `volume` times the demand. Raises OutOfTimeError where it would take a run and it is late."""
        if volume not in self.points:
            if self.late():
                raise OutOfTimeError("the time is up")
            rate = self.instance.problem.workload.request_rate * volume
            self.points[volume] = _point(self.instance, self.judged(volume), rate)
        return self.points[volume]

    def goodput(self, tolerance: float, *, proven: float = 0.0, start: float = 1.0, step: float = 2.0) -> Goodput:
        """The goodput of the fleet; all rates that the search had to try join the trials.

        proven: a volume at which the fleet is known to meet its goals; it is not tried up to there. start, step: see
        `boundary`.
        """
        low, high = boundary(
            lambda volume: volume <= proven or self.at(volume).proven, tolerance, start, step, ends=VOLUMES
        )
        demand, points = self.instance.problem.workload.request_rate, [self.points[at] for at in sorted(self.points)]
        return Goodput(demand * low, demand * high, tolerance, tuple(points))


def _point(instance: Instance, judgement: Judgement, rate: float) -> RatePoint:
    served_rate, tokens = np.mean([metrics.steady_throughput(run.result) for run in judgement.runs], axis=0).tolist()
    counts = counted(instance, judgement.runs)
    good = pooled((in_time(instance, run) for run in judgement.runs), counts)
    times = pooled((np.where(run.result.finished, run.result.e2e, np.inf) for run in judgement.runs), counts)
    return RatePoint(
        **{item.name: getattr(judgement, item.name) for item in fields(judgement)} | {"rate": rate, "runs": ()},
        served=served_rate,
        tokens=tokens,
        in_time=served_rate * float(np.mean(good)),
        e2e=float(np.mean(times)),
        breaks=breakdown(instance, judgement),
    )
