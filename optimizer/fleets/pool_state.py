"""How a pool runs under the loads that it really has: waits, steps and what makes them vary.

Prefill engines wait as `costmodel.prompt_queue` says. An engine that only generates runs step after step; with b the
step of its mean batch without KV reads and a the attention time of the batch, t = b + a, a = t sum rate osl slope.
Engines that do both: see `colocated_state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.prompt_queue import Prompts, prompt_wait
from optimizer.loads.engine_table import (
    Lockstep,
    busy_beside,
    latency_beside,
    prefill_lockstep,
    prompt_latency,
    prompt_service,
)
from optimizer.loads.flows import peakedness
from optimizer.loads.instance import Instance

from .colocated_state import colocated_state
from .engine_state import PoolState, Steps, any_busy, decode_base, fullness, overloaded, saved_alone
from .fleet import FleetPool

__all__ = ["PoolState", "Steps", "pool_key", "pool_state"]

FloatArray = NDArray[np.float64]

KEPT = 6000
"""States that are kept: searches come back to a pool and its load again and again, and scenarios share most of them."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Engines and the requests of each flow that they get; `known`: all that there is to their state."""

    known: tuple[object, ...]
    instance: Instance = field(compare=False)
    pool: FleetPool = field(compare=False)
    rate: FloatArray = field(compare=False)


def pool_state(instance: Instance, pool: FleetPool, volume: float) -> PoolState:
    """The state of a pool at `volume` times the demand routed to it; of prices and limits, it depends on none."""
    rate = instance.flows.rate * pool.route * volume
    known = instance.tables.alike, instance.flows.alike, *_engines(pool), rate.tobytes()
    return _state(_Load(known, instance, pool, rate))


@lru_cache(maxsize=KEPT)
def _state(load: _Load) -> PoolState:
    state = {Role.PREFILL: _prefill_state, Role.DECODE: _decode_state, Role.COLOCATED: colocated_state}
    return state[load.pool.role](load.instance, load.pool, load.rate)


def pool_key(pool: FleetPool) -> tuple[object, ...]:
    """What two pools share that run alike: role, settings, replicas and routing."""
    return *_engines(pool), np.round(pool.route, 9).tobytes()


def _engines(pool: FleetPool) -> tuple[object, ...]:
    return pool.role, pool.shape, pool.seqs, pool.chunk, pool.replicas


def _prefill_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    tables, flows = instance.tables, instance.flows
    stages, ranks = (float(values[pool.shape]) for values in (tables.pipeline, tables.ranks))
    at, deep = (np.array([pool.shape]), np.array([pool.chunk])), np.array([stages])
    chunks = flows.chunks_of(tables.rank_chunks[at])
    service = prompt_service(flows, tables.prefill_time[at], chunks, deep)[0]
    shared = np.minimum(tables.prefill_shared[at][0] / stages, service)
    tokens = rate @ flows.new_tokens
    budget = float(tables.rank_chunks[pool.shape, pool.chunk])
    alone, lanes = _prompts_on_lanes(instance, pool, rate)
    full_step = float(rate @ shared) / max(float(tokens), 1e-12) * budget
    later = (stages - 1.0) * np.where(flows.new_tokens > budget, full_step, 0.0)
    latency = np.maximum(prompt_latency(alone, chunks, deep)[0], alone[0] / stages + later)
    latency += lanes.excess[0]
    wait = prompt_wait(
        Prompts(
            rate=rate,
            alone=service,
            shared=shared,
            full_step=full_step,
            engines=pool.replicas * ranks,
            arrival_scv=flows.arrival_scv,
            stages=stages,
            bare=np.minimum(latency / stages, full_step) if stages > 1.0 else None,
            bubble=float(rate @ (service - tables.prefill_time[at][0] / stages)) / max(float(rate.sum()), 1e-300),
        )
    )
    rest = (float(lanes.step[0]), any_busy(wait.utilization, ranks) if ranks > 1.0 else 0.0)
    return PoolState(rate, wait, latency, None, wait.utilization, 0.0, 0.0, wait.load < 1.0, *rest)


def _prompts_on_lanes(instance: Instance, pool: FleetPool, rate: FloatArray) -> tuple[FloatArray, Lockstep]:
    """Latency of prompts (1, flows) [s] on lanes that are as busy as it makes them, and what lockstep adds to it.

    A prompt takes a + rho (f - a), a alone and f on lanes that are all busy: rho = A / (1 - F + A), where A and F are
    the busy shares that a and f would give. Lockstep keeps them busy for longer, as far as they are not yet full.
    """
    flows, tables, at = instance.flows, instance.tables, (np.array([pool.shape]), np.array([pool.chunk]))
    if tables.ranks[pool.shape] == 1.0:
        return tables.prefill_time[at], Lockstep(np.zeros((1, rate.size)), np.zeros(1))
    servers = pool.replicas * float(tables.ranks[pool.shape])
    times = (tables.prefill_alone, tables.prefill_time)
    chunks, stages = flows.chunks_of(tables.rank_chunks[at]), tables.pipeline[at[0]]
    alone, full = (float(rate @ prompt_service(flows, time[at], chunks, stages)[0]) / servers for time in times)
    busy = alone / (1.0 - full + alone) if full < 1.0 else 1.0
    beside = busy_beside(np.array([busy]), flows.arrival_scv, np.array([servers]))
    weight = np.where(rate.any(), rate, flows.share)
    first = prefill_lockstep(flows, tables, at, weight, beside)
    longer = np.minimum(beside + rate @ first.excess[0] / servers, 1.0)
    return latency_beside(tables, at, beside), prefill_lockstep(flows, tables, at, weight, longer)


def _decode_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    """The step t = b + a with a = t sum rate osl slope: no prompts are in the way."""
    flows, tables = instance.flows, instance.tables
    per_engine = rate / pool.replicas
    work, slope = per_engine * flows.osl, tables.attention_slope[pool.shape]
    read, total = float(work @ slope), float(work.sum())
    if read >= 1.0:
        return overloaded(rate)
    running = _settled_batch(tables.seqs, tables.decode_base[pool.shape], total / (1.0 - read))
    step = decode_base(instance, pool, running) / (1.0 - read)
    own, jitter = _met_by_requests(instance, pool, per_engine, running)
    nothing = np.zeros(rate.size)
    steps = Steps(step, step, nothing + 1.0, nothing, nothing, jitter, step + own, own)
    full, memory = fullness(instance, pool, step * work, running)
    stable = running <= float(tables.seqs[pool.seqs]) and memory < 1.0
    back = running / max(float(per_engine.sum()), 1e-300) * step / decode_base(instance, pool, 0.0)
    return PoolState(rate, None, nothing, steps, running, full, memory, stable, relaxation=back)


def _settled_batch(seqs: FloatArray, base: FloatArray, tokens: float) -> float:
    """The least batch R = tokens x b(R), with b (batch sizes,) linear between batch sizes, and flat beyond them [1].

    >>> _settled_batch(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 2.0]), 1.5)
    1.5
    >>> _settled_batch(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 2.0]), 1.9)
    1.9
    """
    excess = seqs - tokens * base
    enough = np.flatnonzero(excess >= 0.0)
    if not enough.size or enough[0] == 0:
        return float(tokens * base[-1 if not enough.size else 0])
    at = int(enough[0])
    part = -excess[at - 1] / (excess[at] - excess[at - 1])
    return float(seqs[at - 1] + part * (seqs[at] - seqs[at - 1]))


def _met_by_requests(
    instance: Instance, pool: FleetPool, per_engine: FloatArray, running: float
) -> tuple[FloatArray, float]:
    """By how much the steps that requests of each flow meet are longer, (flows,) [s], and their standard deviation [s].

    Beside N others on average a request runs itself, and bursts bring more: (ca2 - 1) / 2, which the router spreads
    over the c engines. It evens out the number of requests, of variance q N / c (q the peakedness), not the KV of each.
    One that runs alone, with chance exp(-N), has a batch below all limits in the tables.
    """
    flows, slope = instance.flows, instance.tables.attention_slope[pool.shape]
    tokens = per_engine * flows.osl / max(float(per_engine @ flows.osl), 1e-300)
    mean = float(tokens @ slope)
    spread = max(float(tokens @ slope**2) - mean**2, 0.0)
    burst = peakedness(flows)
    more = 1.0 + (burst - 1.0) / pool.replicas
    longer = decode_base(instance, pool, running + more) - decode_base(instance, pool, running) + more * mean
    variance = running * (burst / pool.replicas * (longer / more) ** 2 + spread)
    own = longer + (slope - mean)
    saved = np.minimum(saved_alone(instance, pool), own) * np.exp(-running)
    return own - saved, float(np.sqrt(variance))
