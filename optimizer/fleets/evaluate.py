"""What a fleet is predicted to deliver: latency distributions, attainment, and the rate at which it breaks.

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

from costmodel.decode_queue import beta_exceeds
from costmodel.engine import Role
from costmodel.metric import Metric
from costmodel.queueing import normal_exceeds
from costmodel.simulator import SCHEDULERS
from optimizer.loads.instance import Instance

from .first_token import Delay, card_wait, delay_of, hand_over_waits, hidden_transfer
from .fleet import Fleet, FleetPool, hand_over_mix
from .pool_state import PoolState, Steps, pool_state

__all__ = [
    "QUANTILES",
    "Evaluation",
    "Misses",
    "PoolState",
    "class_attainment",
    "class_goals",
    "evaluate",
    "goodput_volume",
    "holds",
    "keeps_goals",
    "largest_load",
    "misses_of",
    "predict_misses",
]

FloatArray = NDArray[np.float64]

QUANTILES = (0.5, 0.9, 0.95, 0.99)


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


def _states(instance: Instance, fleet: Fleet, loads: FloatArray | float) -> tuple[PoolState, ...]:
    each = np.broadcast_to(np.asarray(loads, dtype=np.float64), len(fleet.pools))
    return tuple(pool_state(instance, pool, float(load)) for pool, load in zip(fleet.pools, each, strict=True))


def misses_of(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> Misses:
    """Predict who misses from the states of the pools, for those who have worked them out before."""
    return _misses(instance, fleet, states, (_first_token(instance, fleet, states), _tokens(instance, fleet, states)))


def _misses(
    instance: Instance,
    fleet: Fleet,
    states: tuple[PoolState, ...],
    latencies: tuple[Sequence[_FirstToken], Sequence[_LaterTokens]],
) -> Misses:
    """The same from TTFT and TPOT at each pool."""
    flows, (first, later) = instance.flows, latencies
    ttft, tpot = _exceeds(first, flows.ttft), _slow_tokens(instance, later)
    full = _full(fleet, states, flows.isl.size)
    stable = all(state.stable for state in states)
    flow_attainment = np.clip(1.0 - ttft - tpot - full, 0.0, 1.0) if stable else np.zeros(flows.isl.size)
    return Misses(states, ttft, tpot, full, flow_attainment, class_attainment(instance, flow_attainment), stable)


def _slow_tokens(instance: Instance, later: Sequence[_LaterTokens]) -> FloatArray:
    """Share of each flow whose later tokens are late, (flows,); who is late by several metrics is late once."""
    late = _exceeds(later, instance.flows.tpot * (1.0 + 1e-9))
    for metric, limit in instance.flows.others.items():
        late = np.maximum(late, _exceeds(FORMULAS[metric](instance, later), limit))
    return late


def evaluate(instance: Instance, fleet: Fleet, volume: float = 1.0) -> Evaluation:
    """Predict the latencies of every flow at `volume` times the demand, routing unchanged."""
    flows, states = instance.flows, _states(instance, fleet, volume)
    first, later = _first_token(instance, fleet, states), _tokens(instance, fleet, states)
    misses = _misses(instance, fleet, states, (first, later))
    rows = np.array([*_class_shares(instance), flows.share])
    longest = max((float(part.offset.max() + part.delay.seconds[-1]) for part in first), default=0.0)
    slowest = max((float(one.ceiling.max()) + 8.0 * one.jitter for one in (part.steps for part in later)), default=0.0)
    ttft = _quantiles(first, rows, longest + 1.0)
    tokens = rows * (flows.osl > 1.0)
    tpot = _quantiles(later, tokens, slowest + 1e-3)
    prompt_step = max((float(np.max(one.steps.prompt_step)) for one in later), default=0.0)
    others = {
        metric: _quantiles(FORMULAS[metric](instance, later), tokens, max(slowest, prompt_step) + 1e-3)
        for metric in flows.others
    }
    overall = float(flows.share @ misses.flow_attainment / flows.share.sum())
    reached = misses.flow_attainment, misses.attainment, overall
    return Evaluation(misses.states, *reached, ttft, tpot, misses.stable, others)


def _class_shares(instance: Instance) -> FloatArray:
    """Share of each flow in each class, (classes, flows)."""
    flows = instance.flows
    return np.array([flows.share * (flows.slo == k) for k in range(len(instance.problem.slos))])


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


def reach(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> float:
    """Share of its goal that the worst class reaches by the states of the pools [1]; 0 for a fleet that falls behind.

    From 1 on the fleet holds, as `holds` says of `misses_of`. Of one that misses by its later tokens alone the share is
    that of these, whatever its TTFT.
    """
    if not all(state.stable for state in states):
        return 0.0
    flows = instance.flows

    def share(late: FloatArray) -> float:
        attainment = class_attainment(instance, np.clip(1.0 - late, 0.0, 1.0))
        return float(((attainment + 1e-9) / class_goals(instance)).min())

    late = _slow_tokens(instance, _tokens(instance, fleet, states)) + _full(fleet, states, flows.isl.size)
    reached = share(late)
    return reached if reached < 1.0 else share(late + _exceeds(_first_token(instance, fleet, states), flows.ttft))


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
    if not fleet.pools:
        return 0.0
    return largest_load(lambda volume: holds(instance, predict_misses(instance, fleet, volume)))


@dataclass(frozen=True, slots=True)
class _FirstToken:
    """TTFT at one pool: offset (flows,) [s], and a delay; weight (flows,): share of the flow served here."""

    weight: FloatArray
    offset: FloatArray
    delay: Delay

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit, (flows,)."""
        return self.weight * self.delay.exceeds(limit - self.offset)


@dataclass(frozen=True, slots=True)
class _LaterTokens:
    """TPOT at one pool: a quiet step with its jitter, or up to full steps a beta distribution."""

    weight: FloatArray
    steps: Steps
    generates: NDArray[np.bool_]

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit; requests of one token have none, (flows,)."""
        steps = self.steps
        usually, jitter = steps.quiet + steps.own, max(steps.jitter, 1e-12)
        above, most = limit - usually + steps.below, np.maximum(steps.ceiling - usually, 1e-9) + steps.below
        held_up = beta_exceeds(above, steps.mean + steps.below, steps.spread, most)
        usual = steps.undisturbed * steps.calm_exceeds(limit) + (1.0 - steps.undisturbed) * held_up
        worst = normal_exceeds((limit - steps.ceiling) / jitter)
        return np.asarray(self.weight * np.minimum(usual, worst) * self.generates)


@dataclass(frozen=True, slots=True)
class _TailOfGaps:
    """ITL p99 at one pool; gaps (flows,): between the tokens of a request [1]."""

    tokens: _LaterTokens
    gaps: FloatArray

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """Share of each flow that is served here and exceeds the limit; requests of one token have none, (flows,)."""
        return self.tokens.weight * self.tokens.generates * self.tokens.steps.tail_exceeds(limit, self.gaps)


def _tails_of_gaps(instance: Instance, later: Sequence[_LaterTokens]) -> Sequence[_TailOfGaps]:
    return [_TailOfGaps(part, np.maximum(instance.flows.osl - 1.0, 0.0)) for part in later]


FORMULAS: Mapping[Metric, Callable[[Instance, Sequence[_LaterTokens]], Sequence[_TailOfGaps]]] = MappingProxyType(
    {Metric.ITL_P99: _tails_of_gaps}
)
"""What the steps of each pool say of the metrics of later tokens other than TPOT."""

_Parts = Sequence[_FirstToken] | Sequence[_LaterTokens] | Sequence[_TailOfGaps]


def _exceeds(parts: _Parts, limit: FloatArray) -> FloatArray:
    """P(latency > limit) of each flow over all pools; limit (..., flows) or (..., 1)."""
    return np.asarray(reduce(add, (part.exceeds(limit) for part in parts), np.float64(0.0)))


def _quantiles(parts: _Parts, shares: FloatArray, top: float) -> FloatArray:
    """Quantiles of the mixtures of flows weighted by `shares` (rows, flows), by bisection, (rows, quantiles) [s].

    0 for rows without any flow.
    """
    total = shares.sum(axis=1)
    allowed = (1.0 - np.array(QUANTILES)) * total[:, None]
    low, high = np.zeros(allowed.shape), np.full(allowed.shape, top)
    for _ in range(40):
        middle = (low + high) / 2.0
        above = np.einsum("rf,rqf->rq", shares, _exceeds(parts, middle[:, :, None])) > allowed
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.where(total[:, None] > 0.0, high, 0.0))


def _first_token(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> list[_FirstToken]:
    """TTFT: queue, prompt, and where roles are apart the hand-over, the rest of a decode step and the first own one."""
    decodes = [(pool, state) for pool, state in zip(fleet.pools, states, strict=True) if pool.role is Role.DECODE]
    mixes, parts = iter(hand_over_mix(instance, fleet)), []
    for pool, state in zip(fleet.pools, states, strict=True):
        if state.wait is None or pool.role is Role.DECODE:
            continue
        offset, later, idle = state.latency, np.zeros(1), 0.0
        if pool.role is Role.PREFILL:
            moved, later = _handed_over(instance, (pool, state), decodes, next(mixes))
            offset = offset + moved
        elif state.steps is not None:
            idle = state.steps.quiet / float(instance.tables.pipeline[pool.shape])
        rests = ((1.0 - state.under_way, idle), (state.under_way, state.beside))
        parts.append(_FirstToken(pool.route, offset, delay_of(state.wait, later, rests)))
    return parts


def _handed_over(
    instance: Instance,
    sender: tuple[FleetPool, PoolState],
    decodes: Sequence[tuple[FleetPool, PoolState]],
    mix: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Transfer of each flow (flows,), and what follows their prompts beside it (points,) [s]."""
    tables, (pool, state) = instance.tables, sender
    taken = np.array([to.route for to, _ in decodes]).reshape(len(decodes), mix.shape[-1]) * mix
    links = np.array([tables.link[to.shape] for to, _ in decodes])
    shares = taken / np.maximum(taken.sum(axis=0), 1e-12)
    seconds = tables.kv_transferred[pool.shape] / np.clip(links @ shares, 1.0, tables.link[pool.shape])
    sent, scv = tables.kv_transferred[pool.shape], instance.flows.arrival_scv
    together = 1.0 if state.wait is None else state.wait.together
    ranks = float(pool.replicas * tables.ranks[pool.shape])
    cards = [card_wait(state.rate, sent / tables.link[pool.shape], ranks, scv, together)]
    parts = shares @ state.rate / max(float(state.rate.sum()), 1e-300)
    for (to, at), part in zip(decodes, parts, strict=True):
        ranks = float(to.replicas * tables.ranks[to.shape])
        chance, mean = card_wait(at.rate, sent / tables.link[to.shape], ranks, scv, 1.0)
        cards.append((chance * float(part), mean))
    taken_by = [(at, float(part)) for (_, at), part in zip(decodes, parts, strict=True)]
    loading = float(SCHEDULERS[instance.problem.engine].pulls)
    seconds = np.maximum(seconds - hidden_transfer(taken_by, loading), 0.0)
    return seconds, hand_over_waits(cards, taken_by, loading)


def _tokens(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> list[_LaterTokens]:
    """TPOT at every pool that generates."""
    return [
        _LaterTokens(pool.route, state.steps, instance.flows.osl > 1.0)
        for pool, state in zip(fleet.pools, states, strict=True)
        if state.steps is not None and pool.role is not Role.PREFILL
    ]


def _full(fleet: Fleet, states: tuple[PoolState, ...], flows: int) -> FloatArray:
    """Chance that a request of each flow meets full slots or full memory, (flows,)."""
    pairs = [(pool, state) for pool, state in zip(fleet.pools, states, strict=True) if pool.role is not Role.PREFILL]
    return sum((pool.route * state.full for pool, state in pairs), np.zeros(flows))
