"""What a fleet is predicted to deliver: latency distributions, attainment, and the rate at which it breaks.

The same equations as in `columns`, evaluated at the loads that the fleet really has instead of at its limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.queueing import (
    busy_share_variance,
    conditional_wait,
    lanes_held_up,
    normal_exceeds,
    pipeline_bubble,
    wait_exceeds,
    wait_probability,
)

from .fleet import Fleet, FleetPool
from .instance import Instance
from .loads import prompt_service

FloatArray = NDArray[np.float64]

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool under load, in steady state.

    rate (flows,): requests per second; utilization: busy share of its prompt servers, 0 without any;
    waits, theta: probability of waiting for a prompt server, mean wait of those who do [s];
    latency (flows,): prompt time once started [s]; step: mean decode step [s]; running: requests per engine;
    spread (flows,): standard deviation of a request's TPOT [s]; jitter: the part of it that comes from the batch;
    ceiling: mean step if every step carried a prompt [s]; full: probability that slots or KV memory are full;
    memory: mean share of KV memory in use; stable: whether the load is below capacity.
    """

    rate: FloatArray
    utilization: float
    waits: float
    theta: float
    latency: FloatArray
    step: float
    running: float
    spread: FloatArray
    jitter: float
    ceiling: float
    full: float
    memory: float
    stable: bool


@dataclass(frozen=True, slots=True)
class Misses:
    """Share of each flow's requests that miss, by reason, each (flows,), and the attainment of each class, (classes,).

    ttft: too late for the first token; tpot: tokens too slow; full: no slot or KV memory was free.
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
    ttft, tpot (classes + 1, quantiles): per class, then over all requests [s].
    """

    states: tuple[PoolState, ...]
    flow_attainment: FloatArray
    attainment: FloatArray
    overall: float
    ttft: FloatArray
    tpot: FloatArray
    stable: bool


def predict_misses(instance: Instance, fleet: Fleet, loads: FloatArray | float = 1.0) -> Misses:
    """Predict who misses when each pool gets `loads` (pools,) times the demand that is routed to it."""
    flows = instance.flows
    each = np.broadcast_to(np.asarray(loads, dtype=np.float64), len(fleet.pools))
    states = tuple(_state(instance, pool, float(load)) for pool, load in zip(fleet.pools, each, strict=True))
    first, later = _first_token(instance, fleet, states), _tokens(instance, fleet, states)
    ttft, tpot = first.exceeds(flows.ttft), later.exceeds(flows.tpot * (1.0 + 1e-9))
    full = _full(fleet, states, flows.isl.size)
    stable = all(state.stable for state in states)
    flow_attainment = np.clip(1.0 - ttft - tpot - full, 0.0, 1.0) if stable else np.zeros(flows.isl.size)
    weight = _class_shares(instance)
    return Misses(states, ttft, tpot, full, flow_attainment, (weight @ flow_attainment) / weight.sum(axis=1), stable)


def evaluate(instance: Instance, fleet: Fleet, volume: float = 1.0) -> Evaluation:
    """Predict the latencies of every flow at `volume` times the demand, routing unchanged."""
    flows, misses = instance.flows, predict_misses(instance, fleet, volume)
    first, later = _first_token(instance, fleet, misses.states), _tokens(instance, fleet, misses.states)
    rows = [*_class_shares(instance), flows.share]
    ttft = np.array([first.quantiles(row) for row in rows])
    tpot = np.array([later.quantiles(row * (flows.osl > 1.0)) for row in rows])
    overall = float(flows.share @ misses.flow_attainment / flows.share.sum())
    return Evaluation(misses.states, misses.flow_attainment, misses.attainment, overall, ttft, tpot, misses.stable)


def _class_shares(instance: Instance) -> FloatArray:
    """Share of each flow in each class, (classes, flows)."""
    flows = instance.flows
    return np.array([flows.share * (flows.slo == k) for k in range(len(instance.problem.slos))])


def holds(instance: Instance, prediction: Misses | Evaluation) -> bool:
    """Whether every class keeps its attainment goal."""
    goals = np.array([slo.attainment for slo in instance.problem.slos])
    return prediction.stable and bool((prediction.attainment >= goals - 1e-9).all())


def largest_load(good: Callable[[float], bool], most: float = 1e9, tolerance: float = 1e-3) -> float:
    """Largest multiple of a load that is still good (bisection to `tolerance`, relative); 0 if none is."""
    if not good(1e-6):
        return 0.0
    low, high = 1e-6, 1.0
    while high < most and good(high):
        low, high = high, 2.0 * high
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
class _Waits:
    """TTFT of each (stage, flow): offset + wait, wait exponential with probability `waits`."""

    weight: FloatArray
    offset: FloatArray
    waits: FloatArray
    theta: FloatArray

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TTFT > limit) of each flow, (flows,)."""
        return np.asarray((self.weight * wait_exceeds(limit - self.offset, self.waits, self.theta)).sum(axis=0))

    def quantiles(self, share: FloatArray) -> FloatArray:
        """Quantiles over flows weighted by `share` [s]."""
        top = float(self.offset.max() + 40.0 * self.theta.max()) + 1.0
        return _mixture_quantiles(lambda t: float(share @ self.exceeds(np.full(share.size, t))), share.sum(), top)


@dataclass(frozen=True, slots=True)
class _Steps:
    """TPOT of each (pool, flow): normal around the mean step, but at worst a prompt rides in every step."""

    weight: FloatArray
    mean: FloatArray
    spread: FloatArray
    ceiling: FloatArray
    jitter: FloatArray
    generates: NDArray[np.bool_]

    def exceeds(self, limit: FloatArray) -> FloatArray:
        """P(TPOT > limit) of each flow; requests of one token have none, (flows,)."""
        usual = normal_exceeds((limit - self.mean) / np.maximum(self.spread, 1e-12))
        worst = normal_exceeds((limit - self.ceiling) / np.maximum(self.jitter, 1e-12))
        late = np.minimum(usual, worst)
        return np.asarray((self.weight * late).sum(axis=0) * self.generates)

    def quantiles(self, share: FloatArray) -> FloatArray:
        """Quantiles over flows weighted by `share` [s]."""
        if share.sum() <= 0.0:
            return np.zeros(len(QUANTILES))
        top = float(self.mean.max() + 8.0 * self.spread.max()) + 1e-3
        return _mixture_quantiles(lambda t: float(share @ self.exceeds(np.full(share.size, t))), share.sum(), top)


def _mixture_quantiles(exceeds: Callable[[float], float], total: float, top: float) -> FloatArray:
    """Invert a decreasing survival function by bisection."""
    result = []
    for quantile in QUANTILES:
        low, high = 0.0, top
        for _ in range(40):
            middle = (low + high) / 2.0
            low, high = (middle, high) if exceeds(middle) > (1.0 - quantile) * total else (low, middle)
        result.append(high)
    return np.array(result)


def _first_token(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> _Waits:
    """TTFT: queue, prompt, and where roles are apart the hand-over and the first decode step."""
    tables, rows = instance.tables, []
    decodes = [(pool, state) for pool, state in zip(fleet.pools, states, strict=True) if pool.role is Role.DECODE]
    shared = np.maximum(sum((pool.route for pool, _ in decodes), np.zeros(instance.flows.isl.size)), 1e-12)
    step = sum((pool.route * state.step for pool, state in decodes), np.zeros(shared.size)) / shared
    link = sum((pool.route * tables.link[pool.shape] for pool, _ in decodes), np.zeros(shared.size)) / shared
    for pool, state in zip(fleet.pools, states, strict=True):
        if pool.role is Role.DECODE:
            continue
        offset = state.latency
        if pool.role is Role.PREFILL:
            slower = np.minimum(np.maximum(link, 1.0), tables.link[pool.shape])
            offset = offset + tables.kv_transferred / slower + step
        rows.append((pool.route, offset, np.full(shared.size, state.waits), np.full(shared.size, state.theta)))
    return _Waits(*(np.array(column) for column in zip(*rows, strict=True)))


def _tokens(instance: Instance, fleet: Fleet, states: tuple[PoolState, ...]) -> _Steps:
    rows = [
        np.stack(np.broadcast_arrays(pool.route, state.step, state.spread, state.ceiling, state.jitter))
        for pool, state in zip(fleet.pools, states, strict=True)
        if pool.role is not Role.PREFILL
    ]
    weight, mean, spread, ceiling, jitter = np.stack(rows, axis=1)
    return _Steps(weight, mean, spread, ceiling, jitter, instance.flows.osl > 1.0)


def _full(fleet: Fleet, states: tuple[PoolState, ...], flows: int) -> FloatArray:
    """Chance that a request of each flow meets full slots or full memory, (flows,)."""
    pairs = [(pool, state) for pool, state in zip(fleet.pools, states, strict=True) if pool.role is not Role.PREFILL]
    return sum((pool.route * state.full for pool, state in pairs), np.zeros(flows))


def _state(instance: Instance, pool: FleetPool, volume: float) -> PoolState:
    rate = instance.flows.rate * pool.route * volume
    if pool.role is Role.PREFILL:
        return _prefill_state(instance, pool, rate)
    return _generating_state(instance, pool, rate)


def _queue_state(
    instance: Instance, rate: FloatArray, service: FloatArray, servers: float
) -> tuple[float, float, float]:
    """Utilisation, wait probability and mean wait of those who wait."""
    total = max(float(rate.sum()), 1e-12)
    mean, second = float(rate @ service) / total, float(rate @ service**2) / total
    rho = total * mean / servers
    scv = instance.flows.arrival_scv
    waits = float(wait_probability(servers, min(rho, 0.999999), scv))
    theta = float(conditional_wait(servers, min(rho, 0.999999), max(mean, 1e-12), second, scv))
    return rho, waits, theta


def _prefill_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    tables = instance.tables
    latency = tables.prefill_time[pool.shape]
    servers = pool.replicas * float(tables.ranks[pool.shape])
    stages = float(tables.pipeline[pool.shape])
    service = prompt_service(instance, latency[None], np.array([stages]))[0]
    rho, waits, theta = _queue_state(instance, rate, service, servers)
    if stages > 1.0:
        weight = rate / max(float(rate.sum()), 1e-12)
        latency = latency + (stages - 1.0) * pipeline_bubble((latency / stages)[None], weight, np.array([rho]))[0]
    nothing = np.zeros(rate.size)
    return PoolState(rate, rho, waits, theta, latency, 0.0, rho, nothing, 0.0, 0.0, 0.0, 0.0, rho < 1.0)


def _generating_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    """Decode or colocated: fixed point of t = base(N) / (1 - P - D) with N = t sum rate osl / n (Little)."""
    flows, tables = instance.flows, instance.tables
    per_engine = rate / pool.replicas
    work = per_engine * flows.osl
    slope, ranks = tables.attention_slope[pool.shape], float(tables.ranks[pool.shape])
    latency, service, gap = np.zeros(rate.size), np.zeros(rate.size), 0.0
    queue, running, base, step = (0.0, 0.0, 0.0), 1.0, 0.0, 0.0
    for _ in range(40):
        base = float(np.interp(running, tables.seqs, tables.decode_base[pool.shape]))
        free = 1.0 - float(per_engine @ _prompt_extra(instance, pool, per_engine, queue[0])) - float(work @ slope)
        if free <= 0.0:
            return _overloaded(rate)
        step = base / free
        running = step * float(work.sum())
        if pool.role is Role.COLOCATED:
            latency, service, gap = _prompt_turns(instance, pool, base, step * float(work @ slope))
            queue = _queue_state(instance, rate, service, pool.replicas * ranks)
            running += float(per_engine @ latency)
    attention = step * float(work @ slope)
    burst = max(1.0, (flows.arrival_scv + 1.0) / 2.0)
    total = max(float(rate.sum()), 1e-12)
    residual = float(rate @ service**2) / max(float(rate @ service), 1e-12)
    residual += max(flows.arrival_scv - 1.0, 0.0) * float(rate @ service) / total
    window = np.maximum(flows.osl - 1.0, 1.0) * step
    share = busy_share_variance(np.array(min(queue[0], 1.0)), np.array(residual), window)
    jitter = float(np.sqrt(burst * step * float(work @ slope**2)))
    spread = np.sqrt(jitter**2 + gap**2 * share)
    capacity = float(tables.kv_capacity[pool.shape, pool.chunk]) * ranks
    memory, over = _overflow(capacity, step * work, tables.kv_held[pool.shape], burst)
    batch = float(tables.seqs[pool.seqs])
    room = (batch - running) * np.sqrt(pool.replicas / (burst * max(running, 1e-12)))
    full = over + float(normal_exceeds(room))  # replicas share one queue: it waits when the slots of all are taken
    stable = running <= batch and memory < 1.0 and queue[0] < 1.0
    return PoolState(
        rate=rate,
        utilization=queue[0],
        waits=queue[1],
        theta=queue[2],
        latency=latency,
        step=step,
        running=running,
        spread=spread,
        jitter=jitter,
        ceiling=max(step, base + attention + gap),
        full=min(full, 1.0),
        memory=memory,
        stable=stable,
    )


def _prompt_extra(instance: Instance, pool: FleetPool, per_engine: FloatArray, rho: float) -> FloatArray:
    """Step time that one request's prompt adds to the decodes beside it [s]; none on a decode engine, (flows,)."""
    tables = instance.tables
    if pool.role is not Role.COLOCATED:
        return np.zeros(instance.flows.isl.size)
    at = (pool.shape, pool.seqs, pool.chunk)
    longer = np.maximum(tables.mixed_base[at] - tables.decode_base[pool.shape, pool.seqs], 0.0)
    lanes = tables.pipeline[pool.shape] * tables.ranks[pool.shape]
    chunks = float(per_engine @ tables.chunk_count[at]) / max(float(per_engine.sum()), 1e-12)
    pace = lanes_held_up(lanes, np.array(min(rho, 1.0)), np.array(chunks))
    return np.asarray(pace * tables.chunk_count[at] * longer / lanes)


def _prompt_turns(
    instance: Instance, pool: FleetPool, base: float, attention: float
) -> tuple[FloatArray, FloatArray, float]:
    """Latency and service time of prompts in mixed steps, and by how much a full one exceeds a pure one [s]."""
    tables = instance.tables
    at = (pool.shape, pool.seqs, pool.chunk)
    count, turn, stages = tables.chunk_count[at], tables.mixed_base[at] + attention, tables.pipeline[pool.shape]
    service = count * turn / stages
    gap = max(float(tables.full_base[at]) - base, 0.0)
    return service + turn * (1.0 - 1.0 / stages), service, gap


def _overflow(capacity: float, resident: FloatArray, held: FloatArray, burst: float) -> tuple[float, float]:
    """Mean share of KV memory in use, and the chance that it is full (compound Poisson, normal approximation)."""
    total = float(resident @ held)
    spread = float(np.sqrt(burst * max(float(resident @ held**2), 1e-300)))
    return total / max(float(capacity), 1e-12), float(normal_exceeds((capacity - total) / spread))


def _overloaded(rate: FloatArray) -> PoolState:
    endless = np.full(rate.size, 1e6)
    return PoolState(
        rate, np.inf, 1.0, 1e6, endless, 1e6, np.inf, np.ones(rate.size), 1.0, 1e6, 1.0, np.inf, stable=False
    )
