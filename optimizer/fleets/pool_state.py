"""How a pool runs under the loads that it really has: waits, steps and what makes them vary.

Prefill engines wait as `costmodel.prompt_queue` says. An engine that generates runs step after step; with b the step of
its mean batch without KV reads, a the attention time of the batch and e what a prompt adds to the steps of others,

    t = (b + a) / (1 - P),  P = sum rate e          mean step; N = t sum rate osl requests run (Little)

A colocated engine is a prompt queue too, whose jobs are mixed steps. A request that decodes for n steps ends after a
busy period of a queue that starts with n (b + a) + v of work and in which prompts are what comes: v is the work of the
prompts that gathered behind its own. Conway, Maxwell and Miller (1967, section 8.3), for compound Poisson work:

    E[D] = (n (b + a) + v) / (1 - P),   Var[D] = (n (b + a) + v) sum rate e^2 / (1 - P)^3
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.prompt_queue import Prompts, PromptWait, bunch_behind, prompt_wait
from costmodel.queueing import lanes_held_up, normal_exceeds, pipeline_bubble
from optimizer.loads.instance import Instance
from optimizer.loads.lanes import (
    Lockstep,
    beside_prompts,
    busy_beside,
    latency_beside,
    lockstep,
    prefill_lockstep,
)
from optimizer.loads.loads import peakedness, prompt_latency, prompt_service

from .fleet import FleetPool

FloatArray = NDArray[np.float64]

ROUNDS = 40
"""Rounds until step and batch of a generating engine agree."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the requests that run at a pool.

    step: mean decode step [s]; quiet: mean step without prompts [s]; undisturbed (flows,): share of requests that meet
    no prompt; mean, spread (flows,): of the TPOT of the others, above `quiet` [s]; jitter: spread of a step that comes
    from the batch [s]; ceiling: mean step if every step carried a full chunk [s].
    """

    step: float
    quiet: float
    undisturbed: FloatArray
    mean: FloatArray
    spread: FloatArray
    jitter: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool under load, in steady state.

    rate (flows,): requests per second; wait: of prompts for an engine, None where there are none;
    latency (flows,): prompt time once started [s]; steps: None on a prefill engine; running: requests per engine;
    full: probability that slots or KV memory are full; memory: mean share of KV memory in use; stable: whether the load
    is below capacity; beside, under_way: length of the step of an engine's other lanes, for the end of which a prompt
    waits that finds a lane free [s], and the chance that they have prompts [1]; 0 on engines with one lane.
    """

    rate: FloatArray
    wait: PromptWait | None
    latency: FloatArray
    steps: Steps | None
    running: float
    full: float
    memory: float
    stable: bool
    beside: float = 0.0
    under_way: float = 0.0

    @property
    def utilization(self) -> float:
        """Busy share of the prompt servers, 0 without any [1]."""
        return 0.0 if self.wait is None else self.wait.utilization

    @property
    def step(self) -> float:
        """Mean decode step, 0 on a prefill engine [s]."""
        return 0.0 if self.steps is None else self.steps.step


def pool_state(instance: Instance, pool: FleetPool, volume: float) -> PoolState:
    """The state of a pool at `volume` times the demand routed to it."""
    rate = instance.flows.rate * pool.route * volume
    if pool.role is Role.PREFILL:
        return _prefill_state(instance, pool, rate)
    return _decode_state(instance, pool, rate) if pool.role is Role.DECODE else _colocated_state(instance, pool, rate)


def _prefill_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    tables, flows = instance.tables, instance.flows
    stages, ranks = (float(values[pool.shape]) for values in (tables.pipeline, tables.ranks))
    service = prompt_service(instance, tables.prefill_time[[pool.shape]], np.array([stages]))[0]
    shared = np.minimum(tables.prefill_shared[pool.shape] / stages, service)
    tokens = rate @ flows.new_tokens
    budget = float(tables.rank_chunks[pool.shape, -1])
    wait = prompt_wait(
        Prompts(
            rate=rate,
            alone=service,
            shared=shared,
            full_step=float(rate @ shared) / max(float(tokens), 1e-12) * budget,
            engines=pool.replicas * ranks,
            arrival_scv=flows.arrival_scv,
            stages=stages,
        )
    )
    latency, lanes = _prompts_on_lanes(instance, pool, rate)
    latency = prompt_latency(instance, latency, np.array([stages]))[0] + lanes.excess[0]
    if stages > 1.0:
        weight = rate / max(float(rate.sum()), 1e-12)
        busy = np.array([min(wait.utilization, 1.0)])
        latency = latency + (stages - 1.0) * pipeline_bubble((latency / stages)[None], weight, busy)[0]
    rest = (float(lanes.step[0]), _any_busy(wait.utilization, ranks) if ranks > 1.0 else 0.0)
    return PoolState(rate, wait, latency, None, wait.utilization, 0.0, 0.0, wait.load < 1.0, *rest)


def _any_busy(busy: float, lanes: float) -> float:
    """Chance that an engine has a step under way, each lane of which is busy for so much of the time [1]."""
    return float(1.0 - (1.0 - min(busy, 1.0)) ** lanes)


def _prompts_on_lanes(instance: Instance, pool: FleetPool, rate: FloatArray) -> tuple[FloatArray, Lockstep]:
    """Latency of prompts (1, flows) [s] on lanes that are as busy as it makes them, and what lockstep adds to it.

    A prompt takes a + rho (f - a), a alone and f on lanes that are all busy: rho = A / (1 - F + A), where A and F are
    the busy shares that a and f would give. Lockstep keeps them busy for longer, as far as they are not yet full.
    """
    flows, tables, shape = instance.flows, instance.tables, np.array([pool.shape])
    if tables.ranks[pool.shape] == 1.0:
        return tables.prefill_time[shape], Lockstep(np.zeros((1, rate.size)), np.zeros(1))
    servers = pool.replicas * float(tables.ranks[pool.shape])
    times = (tables.prefill_alone, tables.prefill_time)
    alone, full = (
        float(rate @ prompt_service(instance, time[shape], tables.pipeline[shape])[0]) / servers for time in times
    )
    busy = alone / (1.0 - full + alone) if full < 1.0 else 1.0
    beside = busy_beside(np.array([busy]), flows.arrival_scv, np.array([servers]))
    weight = np.where(rate.any(), rate, flows.share)
    first = prefill_lockstep(flows, tables, shape, weight, beside)
    longer = np.minimum(beside + rate @ first.excess[0] / servers, 1.0)
    return latency_beside(tables, shape, beside), prefill_lockstep(flows, tables, shape, weight, longer)


@dataclass(frozen=True, slots=True)
class _Mixed:
    """Steps that carry prompts beside `running` requests, KV reads apart.

    base: decode step [s]; turn, count (flows,): mixed step [s] and how many of them a prompt needs; extra (flows,):
    time that a prompt adds to the steps of others [s]; full: step that prompts fill [s]; room: tokens of prompts in it.
    """

    base: float
    turn: FloatArray
    count: FloatArray
    extra: FloatArray
    full: float
    room: float


def _mixed(instance: Instance, pool: FleetPool, per_engine: FloatArray, running: float, busy: float) -> _Mixed:
    """Mixed steps read off the tables between the batch limits next to `running`."""
    tables, shape = instance.tables, pool.shape
    base = _decode_base(instance, pool, running)
    above = int(np.clip(np.searchsorted(tables.seqs, running), 1, max(tables.seqs.size - 1, 1))) % tables.seqs.size
    below = max(above - 1, 0)
    width = max(float(tables.seqs[above] - tables.seqs[below]), 1e-12)
    part = float(np.clip((running - tables.seqs[below]) / width, 0.0, 1.0))

    def read(values: FloatArray) -> FloatArray:
        return np.asarray((1.0 - part) * values[below] + part * values[above])

    lanes = float(tables.pipeline[shape] * tables.ranks[shape])
    room = max(float(tables.rank_chunks[shape, pool.chunk]) - running / lanes, 1.0)
    count = np.ceil(instance.flows.new_tokens / room)
    at = (shape, slice(None), pool.chunk)
    steps = beside_prompts(tables.mixed_alone[at], tables.mixed_base[at], min(busy, 1.0))
    longer = np.maximum(steps - tables.decode_base[shape][:, None], 0.0)
    work = read(longer * tables.chunk_count[shape, :, pool.chunk])
    chunks = float(per_engine @ count) / max(float(per_engine.sum()), 1e-12) if tables.ranks[shape] == 1.0 else 1.0
    pace = float(lanes_held_up(np.array(lanes), np.array(min(busy, 1.0)), np.array(chunks)))
    full = max(float(read(tables.full_base[shape, :, pool.chunk])), float((base + work / count).max()))
    return _Mixed(base, base + work / count, count, pace * work / lanes, full, room)


def _decode_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    """Fixed point of t = b + a with a = t sum rate osl slope: no prompts are in the way."""
    flows, tables = instance.flows, instance.tables
    per_engine = rate / pool.replicas
    work, slope = per_engine * flows.osl, tables.attention_slope[pool.shape]
    read, total = float(work @ slope), float(work.sum())
    if read >= 1.0:
        return _overloaded(rate)
    running, base, step = 1.0, 0.0, 0.0
    for _ in range(ROUNDS):
        before = running
        base = _decode_base(instance, pool, running)
        step = base / (1.0 - read)
        running = step * total
        if running == before:  # and so for ever
            break
    quiet, nothing = base + step * read, np.zeros(rate.size)
    steps = Steps(step, quiet, nothing + 1.0, nothing, nothing, _jitter(instance, pool, per_engine, step), quiet)
    full, memory = _fullness(instance, pool, step * work, running)
    stable = running <= float(tables.seqs[pool.seqs]) and memory < 1.0
    return PoolState(rate, None, nothing, steps, running, full, memory, stable, 0.0, 0.0)


def _decode_base(instance: Instance, pool: FleetPool, running: float) -> float:
    """Step of a batch without KV reads [s]."""
    return float(np.interp(running, instance.tables.seqs, instance.tables.decode_base[pool.shape]))


def _jitter(instance: Instance, pool: FleetPool, per_engine: FloatArray, step: float) -> float:
    """Standard deviation of a decode step for the KV memory that happens to be in use [s]."""
    flows, slope = instance.flows, instance.tables.attention_slope[pool.shape]
    return float(np.sqrt(peakedness(flows) * step * float(per_engine * flows.osl @ slope**2)))


def _colocated_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    """Fixed point of t = (b + a) / (1 - P) with a = t sum rate osl slope."""
    flows, tables = instance.flows, instance.tables
    per_engine = rate / pool.replicas
    work, slope = per_engine * flows.osl, tables.attention_slope[pool.shape]
    running, busy, attention, step = 1.0, 0.0, 0.0, 0.0
    mixed, latency = _mixed(instance, pool, per_engine, running, busy), np.zeros(rate.size)
    for _ in range(ROUNDS):
        before = running, busy
        mixed = _mixed(instance, pool, per_engine, running, busy)
        free = 1.0 - float(per_engine @ mixed.extra) - float(work @ slope)
        if free <= 0.0:
            return _overloaded(rate)
        step = mixed.base / free
        attention, running = step * float(work @ slope), step * float(work.sum())
        latency, service = _turns(instance, pool, mixed, attention)
        busy = float(per_engine @ service) / float(tables.ranks[pool.shape])
        running += float(per_engine @ latency)
        if (running, busy) == before:  # and so for ever
            break
    crowded = mixed if tables.ranks[pool.shape] == 1.0 else _mixed(instance, pool, per_engine, running, 1.0)
    wait = _colocated_wait(instance, pool, rate, crowded, attention)
    steps = _steps(instance, pool, per_engine, (mixed, attention, step), wait)
    full, memory = _fullness(instance, pool, step * work, running)
    stable = running <= float(tables.seqs[pool.seqs]) and memory < 1.0 and wait.load < 1.0
    beside, under_way = 0.0, 0.0
    if tables.ranks[pool.shape] > 1.0 and rate.any():
        latency, beside, under_way = _mixed_lockstep(instance, pool, per_engine, (running, busy, attention))
    return PoolState(rate, wait, latency, steps, running, full, memory, stable, beside, under_way)


def _mixed_lockstep(
    instance: Instance, pool: FleetPool, per_engine: FloatArray, state: tuple[float, float, float]
) -> tuple[FloatArray, float, float]:
    """Latency of prompts on a colocated engine of several lanes (flows,) [s], and the last two of `PoolState`.

    state: requests that run, share of time in which a lane has a prompt, attention time of the batch [s].
    """
    running, busy, attention = state
    lanes, stages = (float(values[pool.shape]) for values in (instance.tables.ranks, instance.tables.pipeline))
    beside = busy_beside(np.array([busy]), instance.flows.arrival_scv, np.array([pool.replicas * lanes]))
    mixed = _mixed(instance, pool, per_engine, running, float(beside[0]))
    step = (mixed.turn + attention)[None] / stages
    found = lockstep(step, mixed.count[None], per_engine, lanes=np.array([lanes]), busy=beside)
    latency = _turns(instance, pool, mixed, attention)[0] + found.excess[0]
    return latency, float(found.step[0]), _any_busy(float(beside[0]), lanes)


def _turns(instance: Instance, pool: FleetPool, mixed: _Mixed, attention: float) -> tuple[FloatArray, FloatArray]:
    """Latency and service time of prompts in mixed steps [s]."""
    turn, stages = mixed.turn + attention, float(instance.tables.pipeline[pool.shape])
    service = mixed.count * turn / stages
    return service + turn * (1.0 - 1.0 / stages), service


def _colocated_wait(
    instance: Instance, pool: FleetPool, rate: FloatArray, mixed: _Mixed, attention: float
) -> PromptWait:
    """Wait of prompts for mixed steps; mixed: as they are when prompts wait, that is with one on every lane."""
    tables = instance.tables
    stages = float(tables.pipeline[pool.shape])
    service = _turns(instance, pool, mixed, attention)[1]
    full = (mixed.full + attention) / stages
    shared = np.minimum(instance.flows.new_tokens / mixed.room * full, service)
    engines = pool.replicas * float(tables.ranks[pool.shape])
    return prompt_wait(Prompts(rate, service, shared, full, engines, instance.flows.arrival_scv, stages))


def _steps(
    instance: Instance,
    pool: FleetPool,
    per_engine: FloatArray,
    found: tuple[_Mixed, float, float],
    wait: PromptWait,
) -> Steps:
    """Distribution of the TPOT of each flow beside prompts."""
    flows = instance.flows
    mixed, attention, step = found
    quiet, jitter = mixed.base + attention, _jitter(instance, pool, per_engine, step)
    total, taken = float(per_engine.sum()), float(per_engine @ mixed.extra)
    count = np.maximum(flows.osl - 1.0, 1.0)
    left = _left_behind(instance, pool, total, wait, mixed.count * (mixed.turn + attention))
    each, square = taken / total, float(per_engine @ mixed.extra**2) / total
    length = (count * quiet + left * each) / (1.0 - taken)
    coming = total * length
    dispersion = _dispersion(flows.arrival_scv, float(pool.replicas), coming)
    undisturbed = np.exp(-left) * dispersion ** (coming / np.where(dispersion == 1.0, 1.0, 1.0 - dispersion))
    undisturbed = np.where(dispersion == 1.0, np.exp(-left - coming), undisturbed)
    variance = (coming * (square + (dispersion - 1.0) * each**2) + left * square) / (1.0 - taken) ** 2
    mean = (length - count * quiet) / count
    disturbed = np.maximum(1.0 - undisturbed, 1e-9)
    variance = np.maximum((variance / count**2 + mean**2) / disturbed - (mean / disturbed) ** 2, 0.0)
    return Steps(
        step=step,
        quiet=quiet,
        undisturbed=undisturbed,
        mean=mean / disturbed,
        spread=np.sqrt(variance + jitter**2),
        jitter=jitter,
        ceiling=max(step, mixed.full + attention),
    )


def _left_behind(instance: Instance, pool: FleetPool, rate: float, wait: PromptWait, service: FloatArray) -> FloatArray:
    """Prompts that wait at the engine when one of each flow ends, (flows,).

    Those that came while it waited and was computed, less those that end with it. While its engine is busy, the router
    sends others there only when all engines are: P(all busy) / P(this one busy).
    """
    engines = pool.replicas * float(instance.tables.ranks[pool.shape])
    sent = min(wait.chance / max(wait.utilization, 1e-12), 1.0)
    bunch = bunch_behind(instance.flows.arrival_scv, engines)
    each = rate / float(instance.tables.ranks[pool.shape])
    came = sent * each * (wait.chance * wait.mean + service) + bunch
    return np.asarray(np.maximum(came - wait.chance * wait.behind, 0.0))


def _dispersion(arrival_scv: float, engines: float, expected: FloatArray) -> FloatArray:
    """Variance over mean of the number of prompts that come to one of `engines` while `expected` do [1].

    A router that evens out prompts sends each engine every c-th one: ca2 / c in the long run; a number that is evenly
    spread can vary no less than by whether one more comes, 1 - expected.
    """
    even = np.maximum(arrival_scv / engines, 1.0 - expected)
    return np.asarray(np.minimum(even, max(arrival_scv, 1e-3)))


def _fullness(instance: Instance, pool: FleetPool, resident: FloatArray, running: float) -> tuple[float, float]:
    """Chance that slots or KV memory are full, and the mean share of KV memory in use [1].

    Replicas share one queue: it waits when the slots of all are taken.
    """
    tables, burst = instance.tables, peakedness(instance.flows)
    capacity = float(tables.kv_capacity[pool.shape, pool.chunk]) * float(tables.ranks[pool.shape])
    memory, over = _overflow(capacity, resident, tables.kv_held[pool.shape], burst)
    batch = float(tables.seqs[pool.seqs])
    room = (batch - running) * np.sqrt(pool.replicas / (burst * max(running, 1e-12)))
    return min(over + float(normal_exceeds(room)), 1.0), memory


def _overflow(capacity: float, resident: FloatArray, held: FloatArray, burst: float) -> tuple[float, float]:
    """Mean share of KV memory in use, and the chance that it is full (compound Poisson, normal approximation)."""
    total = float(resident @ held)
    spread = float(np.sqrt(burst * max(float(resident @ held**2), 1e-300)))
    return total / max(float(capacity), 1e-12), float(normal_exceeds((capacity - total) / spread))


def _overloaded(rate: FloatArray) -> PoolState:
    """A pool that falls behind: everything takes a million seconds."""
    endless = np.full(rate.size, 1e6)
    wait = PromptWait(np.inf, np.inf, 1.0, np.array([0.0, 1e6]), np.array([1.0, 0.0]), 0.0)
    nothing = np.zeros(rate.size)
    steps = Steps(1e6, 1e6, nothing + 1.0, nothing, nothing, 0.0, 1e6)
    return PoolState(rate, wait, endless, steps, np.inf, 1.0, np.inf, stable=False)
