"""A fleet judged by simulating its requests: the simulator's fleet and trace for a plan, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.memory import kv_bytes_per_request_per_gpu, kv_capacity_bytes
from costmodel.metric import SHOWN_ALWAYS, Metric
from costmodel.simulator import SCHEDULERS, HandOver, Limits, Pool, Result, Router, Trace, make_trace, simulate
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator.cost_steps import GridSteps, cost_steps
from costmodel.simulator.fleet import UNLIMITED
from costmodel.simulator.metrics import (
    TAIL,
    WARM_UP,
    Attainment,
    Overload,
    gap_edges,
    overload,
    percentiles,
    share_of,
    steady,
    within,
)
from costmodel.simulator.trace import draw_lengths, gamma_arrivals
from optimizer.fleets.error_bars import factor_at, step_intervals
from optimizer.fleets.evaluate import QUANTILES
from optimizer.fleets.fleet import Fleet, FleetPool, hand_over_mix, pool_config
from optimizer.loads.instance import Instance
from search_spaces.kv_blocks import block_tokens
from search_spaces.problem import Balancing
from search_spaces.recorded import Recorded

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TYPICAL_ISL, TYPICAL_OSL = 2048.0, 2.0
"""Lengths at which the KV bytes of one token are read [token]; only windows and linear attention depend on them."""
SEEDS = 1_000_003
"""Distance between the seeds of two replications, so that the replications of nearby seeds differ."""


class Outcome(StrEnum):
    """What simulation says of goals, by the ends of their 95 % intervals.

    All are met at the lower end, one is missed at the upper end, or one lies within its interval and more requests
    have to tell.
    """

    MEETS = "meets"
    MISSES = "misses"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ClassJudgement:
    """One SLO class: attainment with its interval, quantiles of TTFT and TPOT [s] at p50, p90, p95, p99.

    metrics: quantiles of the other metrics that it limits and that plans have no fields of their own for [s].
    """

    name: str
    goal: float
    attainment: Attainment
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    metrics: Mapping[Metric, tuple[float, ...]] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether the share in time reaches the goal."""
        return self.attainment.share >= self.goal

    @property
    def proven(self) -> bool:
        """Whether even the lower end of the confidence interval reaches the goal."""
        return self.attainment.low >= self.goal

    @property
    def outcome(self) -> Outcome:
        """Whether the class meets its goal, misses it, or has it within its confidence interval."""
        if self.proven:
            return Outcome.MEETS
        return Outcome.MISSES if self.attainment.high < self.goal else Outcome.UNDECIDED

    @property
    def lacking(self) -> float:
        """Times as many requests as were counted that would decide, if the share stays as it is [1].

        An interval's half-width shrinks with the root of the requests: (half-width / distance to the goal)^2. Infinite
        where the share is the goal, or nothing was counted.
        """
        share, end = self.attainment.share, self.attainment.low if self.held else self.attainment.high
        distance = abs(share - self.goal)
        return ((share - end) / distance) ** 2 if distance > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of one run; flow (requests,): index of each request's flow; gap_edges: as `simulate` takes them [s]."""

    trace: Trace
    flow: IntArray
    gap_edges: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one demand."""

    demand: Demand
    result: Result

    @classmethod
    def of(cls, demand: Demand, engines: SimulatedFleet) -> Run:
        """Simulate a fleet under a demand."""
        return cls(demand, simulate(demand.trace, engines, gap_edges=demand.gap_edges))


def outcome_of(classes: Sequence[ClassJudgement], *, overloaded: bool) -> Outcome:
    """The outcome of a fleet from those of its classes; one that falls behind its arrivals misses."""
    outcomes = {judgement.outcome for judgement in classes}
    if overloaded or Outcome.MISSES in outcomes:
        return Outcome.MISSES
    return Outcome.UNDECIDED if Outcome.UNDECIDED in outcomes else Outcome.MEETS


@dataclass(frozen=True, slots=True)
class Judgement:
    """What runs say of a fleet; rate: arrivals [1/s]; overload: of the run, or of its pool, that falls behind most."""

    rate: float
    classes: tuple[ClassJudgement, ...]
    overload: Overload
    engines: SimulatedFleet
    runs: tuple[Run, ...]

    @property
    def held(self) -> bool:
        """Whether every class keeps its goal and the fleet keeps up with its arrivals."""
        return not self.overload.overloaded and all(one.held for one in self.classes)

    @property
    def proven(self) -> bool:
        """Whether every class keeps its goal at the lower end of its confidence interval and the fleet keeps up."""
        return not self.overload.overloaded and all(one.proven for one in self.classes)

    @property
    def missed(self) -> bool:
        """Whether some class misses its goal even at the upper end of its confidence interval."""
        return any(one.outcome is Outcome.MISSES for one in self.classes)

    @property
    def refuted(self) -> bool:
        """Whether the fleet is shown to miss a goal or to fall behind its arrivals."""
        return self.overload.overloaded or self.missed

    @property
    def outcome(self) -> Outcome:
        """Whether the fleet meets every goal, misses one or falls behind, or a goal lies within its interval."""
        return outcome_of(self.classes, overloaded=self.overload.overloaded)

    @property
    def deciding(self) -> float:
        """Requests of each run that would decide, if the shares stay as they are [1]; infinite where none would."""
        lacking = max((one.lacking for one in self.classes if one.outcome is Outcome.UNDECIDED), default=1.0)
        return lacking * max(run.demand.trace.size for run in self.runs)


def simulated_fleet(instance: Instance, fleet: Fleet, probability: float = 0.5) -> SimulatedFleet:
    """The engines of a fleet as the simulator wants them; spare replicas idle and are left out.

    probability: every step is as slow as it is at most with this probability (`error_bars`); 0.5: as expected.
    """
    return SimulatedFleet(tuple(_pool(instance, pool, probability) for pool in fleet.pools), hand_over(instance))


def hand_over(instance: Instance) -> HandOver:
    """How the engine of a problem hands KV over."""
    return HandOver(pull=SCHEDULERS[instance.problem.engine].pulls)


def engine_limits(instance: Instance, pool: FleetPool) -> Limits:
    """Request slots, token budget and KV blocks of one engine of a pool."""
    config, model = pool_config(instance, pool), instance.problem.model
    ranks = config.parallelism.data
    mean = float(kv_bytes_per_request_per_gpu(model, config, TYPICAL_ISL, TYPICAL_OSL)) / (
        TYPICAL_ISL + TYPICAL_OSL / 2.0
    )
    free = kv_capacity_bytes(model, config) * ranks
    block = block_tokens(instance.problem.engine, model)
    blocks = int(free / (mean * block)) if mean > 0.0 else 2**31
    budget = max(config.max_num_batched_tokens, config.max_num_seqs)
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        long_prefill_threshold=budget // ranks if ranks > 1 else UNLIMITED,
        kv_blocks=max(blocks, 1),
        block_size=block,
    )


def _pool(instance: Instance, pool: FleetPool, probability: float) -> Pool:
    config, tables = pool_config(instance, pool), instance.tables
    by_tokens = pool.role is not Role.DECODE and instance.problem.constraints.balancing is Balancing.FEWEST_TOKENS
    handed = tables.kv_transferred[pool.shape]
    per_token = float(handed @ instance.flows.share / (instance.flows.isl @ instance.flows.share))
    return Pool(
        role=pool.role,
        steps=_steps(instance, pool, probability),
        policy=SCHEDULERS[instance.problem.engine],
        limits=engine_limits(instance, pool),
        replicas=pool.replicas,
        pipeline=config.parallelism.pipeline,
        router=Router.LENGTH_AWARE if by_tokens else Router.LEAST_LOADED,
        kv_seconds_per_token=per_token / float(tables.links[pool.shape]) if pool.role is not Role.COLOCATED else 0.0,
        nics=config.parallelism.data,
    )


def _steps(instance: Instance, pool: FleetPool, probability: float) -> GridSteps:
    """Step times of one engine."""
    uneven = float(instance.tables.uneven[pool.shape])
    expected = cost_steps(instance.problem.model, pool_config(instance, pool), instance.overhead, uneven)
    if probability == 0.5:
        return expected
    accelerator = instance.problem.offers[int(instance.tables.offer[pool.shape])].accelerator
    known = step_intervals(instance.problem.model, accelerator)
    return expected.scaled(factor_at(known.prefill if pool.role is Role.PREFILL else known.decode, probability))


def simulated_trace(instance: Instance, fleet: Fleet, requests: int, seed: int, volume: float = 1.0) -> Demand:
    """Requests drawn from the demand and routed as the plan routes; the draws do not depend on the volume.

    Of a demand that was recorded they are stretches of the recording, at the rate of the demand.
    """
    flows, load, recorded = instance.flows, instance.problem.workload, instance.problem.recorded
    if recorded is not None:
        arrival, chosen = recorded.drawn(requests, load.request_rate * volume, seed)
        return replayed_trace(instance, fleet, arrival, recorded.isl[chosen], recorded.osl[chosen], seed=seed)
    isl, osl, flow = draw_lengths(flows.isl, flows.osl, flows.share, requests, seed)
    arrival = gamma_arrivals(requests, load.request_rate * volume, load.burstiness, seed)
    return _demand(instance, fleet, (arrival, isl, osl), flow, seed)


def recorded_trace(instance: Instance, fleet: Fleet, recorded: Recorded, volume: float = 1.0) -> Demand:
    """Recorded requests in their own order, at the rate of the demand times `volume`."""
    pace = recorded.rate / (instance.problem.workload.request_rate * volume)
    return replayed_trace(instance, fleet, recorded.arrival * pace, recorded.isl, recorded.osl)


def replayed_trace(
    instance: Instance, fleet: Fleet, arrival: FloatArray, isl: IntArray, osl: IntArray, *, seed: int = 0
) -> Demand:
    """Requests as recorded; each belongs to a class drawn by share, and is routed as the flow of the nearest length.

    Nearest by the logarithms of ISL and OSL. Raises InputError for a request beyond the engines' max_model_len.
    """
    most, longest = instance.problem.workload.max_tokens, isl + osl
    if longest.max() > most:
        worst = int(longest.argmax())
        raise InputError(
            f"trace: request {worst} has {isl[worst]} + {osl[worst]} tokens, but the plan's engines take {most} at "
            "most (workload.max_tokens)"
        )
    flows, slos = instance.flows, instance.problem.slos
    shares = np.array([slo.share for slo in slos])
    drawn = np.random.default_rng([seed, 4]).choice(len(slos), size=isl.size, p=shares / shares.sum())
    flow = np.zeros(isl.size, dtype=np.int64)
    for k in range(len(slos)):
        mine, own = np.flatnonzero(drawn == k), np.flatnonzero(flows.slo == k)
        flow[mine] = own[_nearest(flows.isl[own], flows.osl[own], isl[mine], osl[mine])]
    return _demand(instance, fleet, (arrival, isl, osl), flow, seed)


def _nearest(isl: FloatArray, osl: FloatArray, wanted_isl: IntArray, wanted_osl: IntArray) -> IntArray:
    """Index of the length bucket nearest to each request; one row of distances at a time keeps memory small."""
    best, least = np.zeros(wanted_isl.size, dtype=np.int64), np.full(wanted_isl.size, np.inf)
    log_isl, log_osl = np.log(wanted_isl), np.log(wanted_osl)
    for bucket, (x, y) in enumerate(zip(np.log(isl), np.log(osl), strict=True)):
        distance = (log_isl - x) ** 2 + (log_osl - y) ** 2
        best[distance < least] = bucket
        least = np.minimum(least, distance)
    return best


def _demand(
    instance: Instance, fleet: Fleet, requests: tuple[FloatArray, IntArray, IntArray], flow: IntArray, seed: int
) -> Demand:
    """Requests (arrival, ISL, OSL) with the pools that serve them."""
    arrival, isl, osl = requests
    draw = np.random.default_rng([seed, 3]).random((2, flow.size))
    first = _routed(fleet, flow, draw[0], decode=False)
    later = _decoded(instance, fleet, first, flow, draw[1])
    colocated = np.array([pool.role is Role.COLOCATED for pool in fleet.pools])[first]
    cached = np.minimum(np.floor(isl * instance.problem.workload.prefix_hit_share).astype(np.int64), isl - 1)
    trace = make_trace(arrival, isl, osl, cached=cached, pool=first, decode_pool=np.where(colocated, -1, later))
    limits = [slo.limits[Metric.ITL_P99] for slo in instance.problem.slos if Metric.ITL_P99 in slo.limits]
    return Demand(trace, flow[np.argsort(arrival, kind="stable")], gap_edges(limits))


def _decoded(instance: Instance, fleet: Fleet, first: IntArray, flow: IntArray, draw: FloatArray) -> IntArray:
    """Pool that decodes each request whose prompt `first` computed: by the plan's shares among those it can talk to."""
    later = _routed(fleet, flow, draw, decode=True)
    mixes = hand_over_mix(instance, fleet)
    if (mixes == 1.0).all():
        return later
    prefills, decodes = (
        [index for index, pool in enumerate(fleet.pools) if pool.role is role] for role in (Role.PREFILL, Role.DECODE)
    )
    for index, mix in zip(prefills, mixes, strict=True):
        mine = np.flatnonzero(first == index)
        pools = list(fleet.pools)
        for at, part in zip(decodes, mix, strict=True):
            pools[at] = replace(pools[at], route=pools[at].route * part)
        later[mine] = _routed(Fleet(tuple(pools)), flow[mine], draw[mine], decode=True)
    return later


def _routed(fleet: Fleet, flow: IntArray, draw: FloatArray, *, decode: bool) -> IntArray:
    """Pool of each request, by the plan's shares: the one that computes its prompt, or the one that decodes."""
    share = np.array([pool.route * ((pool.role is Role.DECODE) == decode) for pool in fleet.pools], dtype=np.float64)
    upto = np.cumsum(share, axis=0)
    total = np.maximum(upto[-1], 1e-300)
    chosen = (draw * total[flow] >= upto[:, flow]).sum(axis=0)
    return np.asarray(np.minimum(chosen, len(fleet.pools) - 1), dtype=np.int64)


def judge(
    instance: Instance,
    fleet: Fleet,
    *,
    requests: int = 10_000,
    seed: int = 0,
    volume: float = 1.0,
    replications: int = 1,
    engines: SimulatedFleet | None = None,
) -> Judgement:
    """Simulate `requests` requests of the demand, times `volume`, through a fleet, as often as `replications` says.

    engines: the fleet for the simulator, where it was made before (`simulated_fleet`).
    """
    demands = [simulated_trace(instance, fleet, requests, seed + SEEDS * k, volume) for k in range(replications)]
    found = judge_demands(instance, engines or simulated_fleet(instance, fleet), demands)
    return replace(found, rate=instance.problem.workload.request_rate * volume)


def judge_demands(instance: Instance, engines: SimulatedFleet, demands: Sequence[Demand]) -> Judgement:
    """Simulate each demand and take all runs together, the first tenth of each left out as warm-up."""
    return judge_runs(instance, engines, [Run.of(demand, engines) for demand in demands])


def judge_runs(
    instance: Instance, engines: SimulatedFleet, made: Sequence[Run], *, tail: float = TAIL, warm_up: float = WARM_UP
) -> Judgement:
    """Take runs of one fleet together, the first `warm_up` of each left out; tail: of the intervals (`share_of`)."""
    runs = tuple(made)
    counted = [steady(run.result, warm_up) for run in runs]
    classes = tuple(_judged(instance, runs, counted, k, tail) for k in range(len(instance.problem.slos)))
    worst = max((falls_behind(run, len(engines.pools)) for run in runs), key=lambda one: (one.overloaded, one.growth))
    spans = [float(np.ptp(run.result.arrival)) for run in runs]
    gaps = sum(max(run.demand.trace.size - 1, 1) for run in runs)
    return Judgement(gaps / max(sum(spans), 1e-12), classes, worst, engines, runs)


def falls_behind(run: Run, pools: int) -> Overload:
    """Whether the fleet falls behind its arrivals; where only some of its pools do, how the worst of them does.

    A small pool whose queue grows without end hides among the requests of the others.
    """
    whole, trace = overload(run.result), run.demand.trace
    if whole.overloaded or trace.pool is None or trace.decode_pool is None:
        return whole
    served = [(trace.pool == k) | (trace.decode_pool == k) for k in range(pools)]
    parts = [overload(run.result, mine) for mine in served if mine.any() and not mine.all()]
    return max((one for one in parts if one.overloaded), key=lambda one: one.growth, default=whole)


def _several(run: Run, metric: Metric, requests: BoolArray) -> FloatArray:
    """A metric of those requests of a run that have more than one token [s]; NaN where one never got that far."""
    values: FloatArray = getattr(run.result, metric)
    return values[requests & (run.demand.trace.osl > 1)]


def _judged(
    instance: Instance, runs: tuple[Run, ...], counted: list[BoolArray], number: int, tail: float
) -> ClassJudgement:
    """One class over all runs."""
    slo = instance.problem.slos[number]
    mine = [
        steady_part & (instance.flows.slo[run.demand.flow] == number)
        for run, steady_part in zip(runs, counted, strict=True)
    ]
    pairs = list(zip(runs, mine, strict=True))
    good = [within(run.result, slo.limits)[part] for run, part in pairs]
    ttft = [run.result.ttft[part] for run, part in pairs]
    tpot = [_several(run, Metric.TPOT, part) for run, part in pairs]
    return ClassJudgement(
        name=slo.name,
        goal=slo.attainment,
        attainment=share_of(good, tail),
        ttft=percentiles(np.concatenate(ttft), QUANTILES),
        tpot=percentiles(np.concatenate(tpot), QUANTILES),
        metrics={
            metric: percentiles(np.concatenate([_several(run, metric, part) for run, part in pairs]), QUANTILES)
            for metric in slo.limits
            if metric not in SHOWN_ALWAYS
        },
    )
