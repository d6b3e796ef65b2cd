"""What a fleet is predicted to deliver: latency distributions, attainment, and the load at which it breaks.

The laws of `costmodel` at the loads that the fleet really has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.first_token import Delay, Entry, card_wait, hand_over_waits, hidden_transfer
from costmodel.metric import Metric
from costmodel.policy import SCHEDULERS
from costmodel.queues.decode import Steps
from costmodel.transfer import step_in_progress
from optimizer.loads.engine_table import LINK_UTILIZATION, Resource
from optimizer.loads.instance import Instance

from .fleet import Fleet, FleetPool, hand_over_mix
from .pool import PoolState, pool_state

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

QUANTILES = (0.5, 0.9, 0.95, 0.99)

LIGHT = 1e-3
"""Share of its load with which a pool is in nobody's way [1]."""


@dataclass(frozen=True, slots=True)
class Misses:
    """Share of each flow's requests that miss, by reason, each (flows,), and the attainment of each class, (classes,).

    ttft: too late for the first token; tpot: tokens too slow, by any metric of them; full: no slot or KV memory was
    free.
    """

    states: tuple[PoolState, ...]
    ttft: FloatArray
    tpot: FloatArray
    full: FloatArray
    flow_attainment: FloatArray
    attainment: FloatArray
    stable: bool


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Predictions for a fleet at a multiple of the demand.

    flow_attainment (flows,), attainment (classes,), overall: shares of requests within all their SLOs [1];
    ttft, tpot (classes + 1, quantiles): per class, then over all requests [s]; metrics: the same of every other metric
    that some class limits, but the end-to-end time.
    """

    states: tuple[PoolState, ...]
    flow_attainment: FloatArray
    attainment: FloatArray
    overall: float
    ttft: FloatArray
    tpot: FloatArray
    stable: bool
    metrics: Mapping[Metric, FloatArray] = field(default_factory=dict)


def predict_misses(instance: Instance, fleet: Fleet, loads: FloatArray | float = 1.0) -> Misses:
    """Predict who misses when each pool gets `loads` (pools,) times the demand that is routed to it."""
    return misses_of(instance, fleet, _states(instance, fleet, loads))


def misses_of(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> Misses:
    """Predict who misses from the states of the pools, for those who have worked them out before."""
    return _misses(instance, fleet, states, _first_tokens(instance, fleet, states))


def _misses(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...], first: Sequence[_FirstToken]) -> Misses:
    """The same from TTFT at each pool."""
    ttft, tpot = _exceeds(first, instance.flows.ttft), _slow_tokens(instance, fleet, states)
    full, stable = _full(instance, fleet, states), all(state.stable for state in states)
    flow_attainment = np.clip(1.0 - ttft - tpot - full, 0.0, 1.0) if stable else np.zeros(full.size)
    return Misses(states, ttft, tpot, full, flow_attainment, class_attainment(instance, flow_attainment), stable)


def evaluate(instance: Instance, fleet: Fleet, volume: float = 1.0) -> Evaluation:
    """Predict the latencies of every flow at `volume` times the demand, routing unchanged."""
    flows, states = instance.flows, _states(instance, fleet, volume)
    first, later = _first_tokens(instance, fleet, states), _later_tokens(instance, fleet, states)
    misses = _misses(instance, fleet, states, first)
    rows = np.array([*_class_shares(instance), flows.share])
    tokens, steps = rows * (flows.osl > 1.0), [pool.steps for pool in later]
    longest = max((float(pool.offset.max()) + pool.delay.most for pool in first), default=0.0)
    slowest = max((float(pool_steps.ceiling.max()) + 8.0 * pool_steps.jitter for pool_steps in steps), default=0.0)
    gap = max((float(np.max(pool_steps.prompt_step)) for pool_steps in steps), default=0.0)
    return Evaluation(
        states=states,
        flow_attainment=misses.flow_attainment,
        attainment=misses.attainment,
        overall=float(flows.share @ misses.flow_attainment / flows.share.sum()),
        ttft=_quantiles(first, rows, longest + 1.0),
        tpot=_quantiles(later, tokens, slowest + 1e-3),
        stable=misses.stable,
        metrics={
            metric: _quantiles(_later_tokens(instance, fleet, states, metric), tokens, max(slowest, gap) + 1e-3)
            for metric in flows.others
        },
    )


def class_goals(instance: Instance) -> FloatArray:
    """Attainment that each class asks for [1], (classes,)."""
    return np.array([slo.attainment for slo in instance.problem.slos])


def class_attainment(instance: Instance, flow_attainment: FloatArray) -> FloatArray:
    """Attainment of each class, (classes,), from that of each flow, (flows,) [1]."""
    weight = _class_shares(instance)
    return np.asarray((weight @ flow_attainment) / weight.sum(axis=1))


def keeps_goals(instance: Instance, attainment: FloatArray) -> bool:
    """Whether every class has the attainment, (classes,) [1], that it asks for."""
    return bool((attainment >= class_goals(instance) - 1e-9).all())


def holds(instance: Instance, prediction: Misses | Evaluation) -> bool:
    """Whether every class keeps its attainment goal."""
    return prediction.stable and keeps_goals(instance, prediction.attainment)


def holds_at(instance: Instance, fleet: Fleet, loads: FloatArray | float = 1.0) -> bool:
    """Whether every class keeps its goal when each pool gets `loads` (pools,) times the demand routed to it."""
    return holds(instance, predict_misses(instance, fleet, loads))


def still_holds(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet keeps every goal, and its network cards carry what is handed over."""
    tables, rate = instance.tables, instance.flows.rate
    busy = [
        float(pool.route * rate @ tables.kv_transferred[pool.shape]) / tables.links[pool.shape] / pool.replicas
        for pool in fleet.pools
        if pool.role is not Role.COLOCATED
    ]
    cards_suffice = all(share <= LINK_UTILIZATION * (1.0 + 1e-9) for share in busy)
    return cards_suffice and holds_at(instance, fleet)


def reach(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> float:
    """Share of its goal that the worst class reaches by the states of the pools [1]; 0 for a fleet that falls behind.

    From 1 on the fleet holds, as `holds` says of `misses_of`. Of one that misses by its later tokens alone the share is
    that of these, whatever its TTFT.
    """
    if not all(state.stable for state in states):
        return 0.0

    def share(late: FloatArray) -> float:
        attainment = class_attainment(instance, np.clip(1.0 - late, 0.0, 1.0))
        return float(((attainment + 1e-9) / class_goals(instance)).min())

    late = _slow_tokens(instance, fleet, states) + _full(instance, fleet, states)
    goal_share = share(late)
    if goal_share < 1.0:
        return goal_share
    return share(late + _exceeds(_first_tokens(instance, fleet, states), instance.flows.ttft))


def promise(instance: Instance, fleet: Fleet, volume: float = 1.0) -> float:
    """Share of its goal that the worst class reaches by formula at `volume` times the demand [1]."""
    return float((predict_misses(instance, fleet, volume).attainment / class_goals(instance)).min())


def largest_load(good: Callable[[float], bool], most: float = 1e9, tolerance: float = 1e-3) -> float:
    """Largest multiple of a load that is still good (bisection to `tolerance`, relative); 0 if none is."""
    low, high = 1e-6, 1.0
    while high < most and good(high):
        low, high = high, 2.0 * high
    if low < 1.0 and not good(low):
        return 0.0
    while high - low > tolerance * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def goodput_volume(instance: Instance, fleet: Fleet) -> float:
    """Highest multiple of the demand at which every class keeps its goal, routing unchanged."""
    return largest_load(lambda volume: holds_at(instance, fleet, volume)) if fleet.pools else 0.0


@dataclass(frozen=True, slots=True)
class Headroom:
    """One pool: `load` times its present load is the most that keeps every goal; `resource` gives out first."""

    load: float
    resource: Resource


def pool_headroom(
    instance: Instance, fleet: Fleet, index: int, volume: float = 1.0, *, others: float = 1.0
) -> Headroom:
    """Raise the load of one pool until a goal breaks; others: share of their loads that the other pools keep [1]."""

    def loads(factor: float) -> FloatArray:
        return np.where(np.arange(len(fleet.pools)) == index, volume * factor, volume * others)

    most = largest_load(lambda factor: holds_at(instance, fleet, loads(factor)), most=32.0)
    before = predict_misses(instance, fleet, loads(1.0 if most >= 1.0 else 0.5 * most)) if most > 0.0 else None
    after = predict_misses(instance, fleet, loads(max(most, LIGHT) * 1.01))
    return Headroom(most, _first_to_give(instance, fleet, index, before, after))


def _first_to_give(instance: Instance, fleet: Fleet, index: int, before: Misses | None, after: Misses) -> Resource:
    """The resource behind the reason that grows most between two loads of a pool, or from nothing to the second."""

    def grown(reason: str) -> float:
        more = getattr(after, reason) - (0.0 if before is None else getattr(before, reason))
        return float(instance.flows.share @ more)

    pool, state = fleet.pools[index], after.states[index]
    if pool.role is Role.PREFILL:
        return Resource.TIME
    growth = {fuller(instance, pool, state): grown("full"), Resource.ATTENTION_TIME: grown("tpot")}
    if pool.role is Role.COLOCATED:
        growth[Resource.TIME] = grown("ttft")
    return max(growth, key=lambda resource: growth[resource])


def fuller(instance: Instance, pool: FleetPool, state: PoolState) -> Resource:
    """What a pool that generates has less of left: KV memory or slots."""
    return Resource.KV_MEMORY if state.memory >= state.running / instance.tables.seqs[pool.seqs] else Resource.SLOTS


def _states(instance: Instance, fleet: Fleet, loads: FloatArray | float) -> tuple[PoolState, ...]:
    pool_loads = np.broadcast_to(np.asarray(loads, dtype=np.float64), len(fleet.pools))
    return tuple(pool_state(instance, pool, float(load)) for pool, load in zip(fleet.pools, pool_loads, strict=True))


def _class_shares(instance: Instance) -> FloatArray:
    """Share of each flow in each class, (classes, flows)."""
    flows = instance.flows
    return np.asarray(flows.share * (flows.slo == np.arange(len(instance.problem.slos))[:, None]))


def _full(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> FloatArray:
    """Chance that a request of each flow meets full slots or full memory, (flows,)."""
    pairs = [(pool, state) for pool, state in zip(fleet.pools, states, strict=True) if pool.role is not Role.PREFILL]
    return sum((pool.route * state.full for pool, state in pairs), np.zeros(instance.flows.isl.size))


FORMULAS: Mapping[Metric, Callable[[Steps, FloatArray, FloatArray], FloatArray]] = MappingProxyType(
    {Metric.TPOT: lambda steps, limit, _: steps.exceeds(limit), Metric.ITL_P99: Steps.tail_exceeds}
)
"""P(metric > limit) of requests of so many gaps, from (steps, limit, gaps), by metric of later tokens."""


@dataclass(frozen=True, slots=True)
class _LaterTokens:
    """A metric of later tokens at one pool.

    weight (flows,): share of the flow served here; gaps (flows,): between the tokens of a request, some have none.
    """

    metric: Metric
    weight: FloatArray
    steps: Steps
    gaps: FloatArray

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit, (flows,)."""
        return np.asarray(self.weight * (self.gaps > 0.0) * FORMULAS[self.metric](self.steps, limit, self.gaps))


def _later_tokens(
    instance: Instance, fleet: Fleet, states: tuple[PoolState, ...], metric: Metric = Metric.TPOT
) -> list[_LaterTokens]:
    """One metric at every pool that generates."""
    gaps = np.maximum(instance.flows.osl - 1.0, 0.0)
    return [
        _LaterTokens(metric, pool.route, state.steps, gaps)
        for pool, state in zip(fleet.pools, states, strict=True)
        if state.steps is not None and pool.role is not Role.PREFILL
    ]


def _slow_tokens(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> FloatArray:
    """Share of each flow whose later tokens are late, (flows,); who is late by several metrics is late once."""
    limits = {Metric.TPOT: instance.flows.tpot * (1.0 + 1e-9), **instance.flows.others}
    late = [_exceeds(_later_tokens(instance, fleet, states, metric), limit) for metric, limit in limits.items()]
    return reduce(np.maximum, late)


@dataclass(frozen=True, slots=True)
class _FirstToken:
    """TTFT at one pool: offset (flows,) [s], and a delay; weight (flows,): share of the flow served here.

    hit_chance (flows,): chance that a request finds its history; else it is one of the flow at `missed`.
    """

    weight: FloatArray
    offset: FloatArray
    delay: Delay
    missed: IntArray
    hit_chance: FloatArray | None = None

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit, (flows,)."""
        late = self.delay.exceeds(limit - self.offset)
        if self.hit_chance is not None:
            late = self.hit_chance * late + (1.0 - self.hit_chance) * late[..., self.missed]
        return np.asarray(self.weight * late)


_Latencies = Sequence[_FirstToken] | Sequence[_LaterTokens]


def _exceeds(pools: _Latencies, limit: FloatArray) -> FloatArray:
    """P(latency > limit) of each flow over all pools; limit (..., flows) or (..., 1)."""
    return np.asarray(reduce(add, (pool.exceeds(limit) for pool in pools), np.float64(0.0)))


def _quantiles(pools: _Latencies, shares: FloatArray, top: float) -> FloatArray:
    """Quantiles of the mixtures of flows weighted by `shares` (rows, flows), by bisection, (rows, quantiles) [s].

    0 for rows without any flow. A single class is all requests: rows that are alike are looked at once.
    """
    shares, alike = np.unique(shares, axis=0, return_inverse=True)
    total = shares.sum(axis=1)
    tail_share = (1.0 - np.array(QUANTILES)) * total[:, None]
    low, high = np.zeros(tail_share.shape), np.full(tail_share.shape, top)
    for _ in range(40):
        middle = (low + high) / 2.0
        above = np.einsum("rf,rqf->rq", shares, _exceeds(pools, middle[:, :, None])) > tail_share
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.where(total[:, None] > 0.0, high, 0.0)[alike.ravel()])


def _first_tokens(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> list[_FirstToken]:
    """TTFT: queue, prompt, and where roles are apart the hand-over, the rest of a decode step and the first own one."""
    decodes = [(pool, state) for pool, state in zip(fleet.pools, states, strict=True) if pool.role is Role.DECODE]
    mixes, first = iter(hand_over_mix(instance, fleet)), []
    for pool, state in zip(fleet.pools, states, strict=True):
        if state.wait is None or pool.role is Role.DECODE:
            continue
        offset, later, idle = state.latency * instance.tables.first_token_of(pool.role, pool.shape), np.zeros(1), 0.0
        if pool.role is Role.PREFILL:
            transfer, later = _handed_over(instance, (pool, state), decodes, next(mixes))
            offset = offset + transfer
        elif state.steps is not None:
            idle = state.steps.quiet / float(instance.tables.pipeline[pool.shape])
        rests = ((1.0 - state.under_way, idle), (state.under_way, state.lane_step))
        first.append(
            _FirstToken(pool.route, offset, Delay(state.wait, later, rests), instance.flows.missed, state.hit_chance)
        )
    return first


def _handed_over(
    instance: Instance,
    sender: tuple[FleetPool, PoolState],
    decodes: Sequence[tuple[FleetPool, PoolState]],
    mix: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Transfer of each flow (flows,), and what follows their prompts beside it (points,) [s]."""
    tables, (pool, state) = instance.tables, sender
    intake = np.array([to.route for to, _ in decodes]).reshape(len(decodes), mix.shape[-1]) * mix
    intake = intake[:, instance.flows.source]
    links = np.array([tables.link[to.shape] for to, _ in decodes])
    shares = intake / np.maximum(intake.sum(axis=0), 1e-12)
    seconds = tables.kv_transferred[pool.shape] / np.clip(links @ shares, 1.0, tables.link[pool.shape])
    sent, scv = tables.kv_transferred[pool.shape], instance.flows.arrival_scv
    together = 1.0 if state.wait is None else state.wait.together
    ranks = float(pool.replicas * tables.ranks[pool.shape])
    cards = [card_wait(state.rate, sent / tables.link[pool.shape], ranks, scv, together)]
    entries, decode_shares = [], shares @ state.rate / max(float(state.rate.sum()), 1e-300)
    for (to, at), decode_share in zip(decodes, decode_shares, strict=True):
        ranks = float(to.replicas * tables.ranks[to.shape])
        chance, mean = card_wait(at.rate, sent / tables.link[to.shape], ranks, scv, 1.0)
        cards.append((chance * float(decode_share), mean))
        step = 0.0 if at.steps is None else at.steps.met(at.rate)
        entries.append(Entry(max(float(step_in_progress(at.running)), 1e-12), step, float(decode_share)))
    loading = float(SCHEDULERS[instance.problem.engine].pulls)
    return np.maximum(seconds - hidden_transfer(entries, loading), 0.0), hand_over_waits(cards, entries, loading)
