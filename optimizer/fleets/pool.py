"""How a pool runs under the loads that it really has: waits, steps and what makes them vary.

Prompts wait as `costmodel.queues.prefill` says. Of an engine that decodes, with b the step of its mean batch
without KV reads, a the attention time of the batch and e what a prompt adds to the steps of others (nothing on engines
that only generate; what its chunks add to the steps that carry them; all of its own where prompts go first and alone),

    t = (b + a) / (1 - P),  P = sum rate e,  a = t sum rate osl slope     mean step; N = t sum rate osl decode (Little)

A colocated engine is a prompt queue too, whose jobs are mixed steps; how its steps vary, and how prompts wait for a
seat where its batches are full, is in `costmodel.queues.decode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.engine import Role
from costmodel.prefix_cache import Cached, CacheTier, Reuse, TierReads, cached, fixed, tier_reads, uniform_reuse
from costmodel.queues import decode, prefill
from costmodel.queues.waits import normal_exceeds
from optimizer.loads.instance import EngineTable, Flows, Instance, prompt_latency
from optimizer.plans.records import ALIKE, MOST_ROUNDS, NOTABLE, QUICK_CANDIDATES
from search_spaces.problem import Balancing

if TYPE_CHECKING:
    from .fleet import FleetPool

KEPT = 6000
"""Sizes of the caches of pool states and of mean engines. Searches evaluate the same pool and load many times,
scenarios share most of them, and pools that differ only in their batch limit share a mean engine."""

USUAL_ROUNDS, SETTLED = 50, 1e-9
"""Rounds of the fixed point of a batch within which nearly all converge, and the relative change between two of them
below which one has converged [1]."""

PACE = 0.5
"""Share of the time that the SLO permits which requests are expected to take, where their steps are not known [1];
assumed."""

NOTHING = 1e-9
"""Arrival rate that stands for zero, so that a pool without requests has a state too [1/s]."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool under load, in steady state.

    rate (flows,): requests per second; wait: of prompts for an engine, None where there are none;
    latency (flows,): prompt time once started [s]; steps: None on a prefill engine; running: requests per engine;
    full: probability that slots or KV memory are full; memory: mean share of KV memory in use; stable: whether the load
    is below capacity; lane_step, under_way: step of the other lanes of an engine, for the end of which a prompt
    waits that finds a lane free [s], and the chance that they have prompts [1]; 0 on engines with one lane;
    hit_chance (flows,): chance that a request finds its history in the prefix cache, None where no memory decides it;
    reads: those of these requests whose history is in the tier below GPU memory alone, None without one;
    keeps: how long the cache keeps what is not used [s];
    relaxation: time in which a batch that is larger than on average comes back by a factor e: requests of mean life T
    end as they came, but others come in the share D of it that is due to longer steps, T / (1 - D) [s].
    """

    rate: FloatArray
    wait: prefill.PromptWait | None
    latency: FloatArray
    steps: decode.Steps | None
    running: float
    full: float
    memory: float
    stable: bool
    lane_step: float = 0.0
    under_way: float = 0.0
    relaxation: float = 0.0
    hit_chance: FloatArray | None = None
    reads: TierReads | None = None
    keeps: float = 0.0

    @property
    def utilization(self) -> float:
        """Busy share of the prompt servers, 0 without any [1]."""
        return 0.0 if self.wait is None else self.wait.utilization

    @property
    def step(self) -> float:
        """Mean decode step, 0 on a prefill engine [s]."""
        return 0.0 if self.steps is None else self.steps.step


@dataclass(frozen=True)
class _Engines:
    """The engines of a pool and their requests (flows,) [1/s]; `key`: of all that the state depends on."""

    key: tuple[object, ...]
    instance: Instance = field(compare=False)
    pool: FleetPool = field(compare=False)
    rate: FloatArray = field(compare=False)

    @property
    def flows(self) -> Flows:
        return self.instance.flows

    @property
    def tables(self) -> EngineTable:
        return self.instance.tables

    @cached_property
    def per_engine(self) -> FloatArray:
        """Requests of each flow at one engine, (flows,) [1/s]."""
        return np.asarray(self.rate / self.pool.replicas)

    @cached_property
    def all_per_engine(self) -> float:
        """Requests of all flows at one engine [1/s]."""
        return float(self.per_engine.sum())

    @cached_property
    def weight(self) -> FloatArray:
        """Share of each flow in the requests, (flows,) [1]."""
        return np.asarray(self.per_engine / self.all_per_engine)

    @cached_property
    def work(self) -> FloatArray:
        """Tokens of each flow that one engine generates, (flows,) [1/s]."""
        return np.asarray(self.per_engine * self.flows.osl)

    @cached_property
    def stages(self) -> float:
        """Pipeline stages of an engine [1]."""
        return float(self.tables.pipeline[self.pool.shape])

    @cached_property
    def ranks(self) -> float:
        """Data-parallel ranks of an engine [1]."""
        return float(self.tables.ranks[self.pool.shape])

    @property
    def servers(self) -> float:
        """Ranks of all engines, each of which computes prompts [1]."""
        return self.pool.replicas * self.ranks

    @property
    def seats(self) -> float:
        """Batch limit of an engine [1]."""
        return float(self.tables.seqs[self.pool.seqs])

    @cached_property
    def budget(self) -> float:
        """Token budget of a rank."""
        return float(self.tables.chunks[self.pool.chunk] / self.tables.ranks[self.pool.shape])

    @property
    def slope(self) -> FloatArray:
        """KV reads of one running request of each flow in a step, (flows,) [s]."""
        return np.asarray(self.tables.attention_slope[self.pool.shape])

    def base(self, running: float) -> float:
        """Step of a batch without KV reads [s]."""
        return float(np.interp(running, self.tables.seqs, self.tables.decode_base[self.pool.shape]))

    def memory(self, resident: FloatArray) -> tuple[float, float]:
        """Mean share of KV memory that requests (flows,) use, and the chance that it is full (compound Poisson)."""
        tables, pool = self.tables, self.pool
        capacity, kv_per_request, once = self.kv_capacity, tables.kv_held[pool.shape], 0.0
        if self.flows.shared and pool.role is Role.COLOCATED:
            once = self.flows.shared * float(self.kv_of_token.mean())
            kv_per_request = kv_per_request - self.flows.shared * self.kv_of_token
        total = float(resident @ kv_per_request) + once
        spread = float(np.sqrt(self.flows.peakedness * max(float(resident @ kv_per_request**2), 1e-300)))
        return total / max(capacity, 1e-12), float(normal_exceeds((capacity - total) / spread))

    @property
    def kv_capacity(self) -> float:
        """KV memory of all ranks, in bytes of one GPU of each [byte]."""
        return float(self.tables.kv_capacity[self.pool.shape, self.pool.seqs, self.pool.chunk]) * self.ranks

    @property
    def kv_of_token(self) -> FloatArray:
        """KV of a token of each flow, (flows,) [byte], of one GPU."""
        return np.asarray(self.tables.kv_held[self.pool.shape] / self.flows.mean_context)

    @cached_property
    def own_tokens(self) -> FloatArray:
        """Tokens of the prompts of each flow that not all prompts begin with, (flows,) [token]."""
        return np.maximum(self.flows.isl - self.flows.shared, 0.0)

    @property
    def kv_of_own(self) -> float:
        """Mean KV of one of these tokens [byte], of one GPU."""
        weight, new = self.per_engine, self.own_tokens
        mean = float((weight * new) @ self.kv_of_token) / max(float(weight @ new), 1e-300)
        return max(mean, 1e-300)

    def whatever_limit(self) -> _Engines:
        """The engines with a key that ignores their batch limit; NOTHING stands for a rate of zero."""
        rate = self.rate if self.rate.any() else self.flows.share * NOTHING
        alike = self.tables.alike, self.flows.alike, self.pool.shape, self.pool.chunk, self.pool.replicas
        return replace(self, key=(*alike, rate.tobytes()), rate=rate)


def pool_state(instance: Instance, pool: FleetPool, volume: float) -> PoolState:
    """The state of a pool at `volume` times the demand routed to it; it depends neither on prices nor on limits.

    Of sessions more than on average are under way (`_busy_share`), and what the cache finds is what it finds then.
    """
    rate = instance.flows.rate * pool.route * volume
    share = _busy_share(instance.flows, rate)
    state = mean_state(instance, pool, volume * share)
    return state if share == 1.0 else replace(state, rate=rate)


def mean_state(instance: Instance, pool: FleetPool, volume: float) -> PoolState:
    """The state of a pool with the mean number of sessions, whose hits are those over a long time."""
    rate = instance.flows.rate * pool.route * volume
    alike = instance.tables.alike, instance.flows.alike, instance.problem.kv_cache_tier
    key = *alike, *_settings(pool), rate.tobytes(), _spread(instance)
    return _state(_Engines(key, instance, pool, rate))


def _spread(instance: Instance) -> bool:
    """Whether the turns of a session may go to any replica, because the router does not know what each has cached."""
    return instance.problem.constraints.balancing is Balancing.LEAST_REQUESTS


def pool_key(pool: FleetPool) -> tuple[object, ...]:
    """A key that is equal for two pools that run alike: role, settings, replicas and routing."""
    return *_settings(pool), np.round(pool.route, 9).tobytes()


def _settings(pool: FleetPool) -> tuple[object, ...]:
    return pool.role, pool.shape, pool.seqs, pool.chunk, pool.replicas


@lru_cache(maxsize=KEPT)
def _state(engines: _Engines) -> PoolState:
    by_role = {Role.PREFILL: _prefill_state, Role.DECODE: _decode_state, Role.COLOCATED: _colocated_state}
    state_of = by_role[engines.pool.role]
    has_cache = engines.flows.reuse is not None and engines.pool.role is not Role.DECODE
    return _with_prefix_cache(engines, state_of) if has_cache else state_of(engines)


def _busy_share(flows: Flows, rate: FloatArray) -> float:
    """Load with one standard deviation more sessions in progress than the mean, over the mean load [1].

    Sessions come at random, so a Poisson number M of them is under way, and stays where it is for as long as they last,
    which is far longer than any queue: 1 + 1 / sqrt(M), M = rate x (pause + answer) by Little's law. A request that
    belongs to no session (its prompt does not grow) comes by itself.
    """
    reuse, total = flows.reuse, float(rate.sum())
    if reuse is None or reuse.growth == 0.0 or total == 0.0:
        return 1.0
    answer = PACE * float(rate @ (flows.osl * flows.tpot)) / total
    return 1.0 + 1.0 / math.sqrt(total * (reuse.pause.mean + answer))


def _with_prefix_cache(engines: _Engines, state_of: Callable[[_Engines], PoolState]) -> PoolState:
    """The state in which the hit rate and the memory left for the prefix cache agree.

    Fewer hits mean more prompts in progress, which leave less memory to the cache. The rounds start from all hits and
    come down; each ends at or above the largest hit rate that sustains itself.
    """
    flows = engines.flows
    assert flows.reuse is not None  # noqa: S101 - the caller looked
    tier = engines.instance.problem.kv_cache_tier
    chance = np.where(flows.reuse.history > 0.0, 1.0, 0.0)
    for _ in range(QUICK_CANDIDATES):
        rate = flows.with_misses(engines.rate, chance)
        split = replace(engines, key=(*engines.key, chance.tobytes()), rate=rate)
        state = state_of(split)
        cache, reads = _prefix_cache(split, state, flows.reuse), None
        if tier is not None:
            reads = _tier_reads(split, state, cache, tier)
        next_chance = cache.chance if reads is None else cache.chance + reads.chance
        if not state.stable or np.abs(next_chance - chance).max() < ALIKE:
            break
        chance = next_chance
    keeps = cache.keeps if reads is None or not reads.chance.any() else max(cache.keeps, reads.keeps)
    return replace(state, hit_chance=chance, reads=reads, keeps=keeps)


def prefix_keeps(instance: Instance, pool: FleetPool, state: PoolState) -> float:
    """How long an unused prompt stays in the prefix cache of a pool [s].

    Where the workload does not say when a prefix is used again, it counts as used again at once.
    """
    flows = instance.flows
    if flows.reuse is not None or not state.stable:
        return state.keeps
    reuse = uniform_reuse(flows.isl, instance.problem.workload.prefix_hit_share, fixed(0.0))
    return _prefix_cache(_Engines((), instance, pool, state.rate), state, reuse).keeps


def _prefix_cache(engines: _Engines, state: PoolState, reuse: Reuse) -> Cached:
    """Hits in the KV memory that running requests leave free: those that decode, and prompts, on average half computed.

    Behind a least-requests router the turns of a session come to any replica. A prefill engine is done with a
    prompt before the answer begins, which takes PACE of what the SLO permits.
    """
    flows, pool = engines.flows, engines.pool
    new, weight, per_token = engines.own_tokens, engines.per_engine, engines.kv_of_token
    seconds, step = state.latency, state.step
    if pool.role is Role.PREFILL:
        seconds = seconds + engines.tables.kv_transferred[pool.shape] / engines.tables.link[pool.shape]
        reuse, step = replace(reuse, pause=reuse.pause.later(_answer(engines, state))), 0.0
    prompts = float((weight * seconds * per_token) @ np.maximum(new - flows.new_tokens / 2.0, 0.0))
    free_memory = engines.kv_capacity * max(1.0 - state.memory, 0.0) - prompts
    if pool.role is Role.PREFILL:
        free_memory -= reuse.shared * float(per_token.mean())
    service = float(engines.weight @ (state.latency + flows.osl * step))
    replicas = float(pool.replicas) if _spread(engines.instance) else 1.0
    return cached(reuse, weight, new, free_memory / engines.kv_of_own, service=service, replicas=replicas)


def _answer(engines: _Engines, state: PoolState) -> float:
    """Mean time from the end of a prompt to that of its answer; where others decode, PACE of the SLO [s]."""
    flows = engines.flows
    if engines.pool.role is Role.PREFILL:
        return PACE * float(engines.weight @ (flows.osl * flows.tpot))
    return state.step * float(engines.weight @ flows.osl)


def _tier_reads(engines: _Engines, state: PoolState, memory: Cached, tier: CacheTier) -> TierReads:
    """What requests read from the tier below GPU memory; memory: their hits in GPU memory.

    A prompt is there once computed, whoever decodes, so the time until its next use begins with the answer. Where
    replicas share the tier it is one cache of all their capacity, and the router does not matter.
    """
    flows, pool, reuse = engines.flows, engines.pool, engines.flows.reuse
    assert reuse is not None  # noqa: S101 - the caller looked
    at = pool.shape, pool.chunk
    computing = engines.tables.prefill_alone[at][flows.missed] - engines.tables.prefill_alone[at]
    together = pool.replicas if tier.shared else 1
    capacity = together * tier.capacity * engines.ranks / engines.kv_of_own - reuse.shared
    below = cached(
        replace(reuse, pause=reuse.pause.later(_answer(engines, state))),
        together * engines.per_engine,
        engines.own_tokens,
        capacity,
        service=float(engines.weight @ state.latency),
        replicas=float(pool.replicas) if _spread(engines.instance) and not tier.shared else 1.0,
    )
    return tier_reads(
        memory,
        below,
        np.asarray(np.bincount(flows.source, engines.rate, flows.isl.size), dtype=np.float64),
        seconds=tier.seconds(reuse.history * engines.kv_of_token),
        computing=computing,
        readers=engines.servers,
        arrival_scv=flows.arrival_scv,
    )


def _overloaded(rate: FloatArray) -> PoolState:
    """The state of a pool that falls behind: every wait is a million seconds."""
    endless, nothing = np.full(rate.size, 1e6), np.zeros(rate.size)
    steps = decode.Steps(1e6, 1e6, decode.DecodeTime(nothing, nothing, nothing + 1.0), 0.0, nothing + 1e6)
    return PoolState(rate, prefill.endless_wait(np.inf), endless, steps, np.inf, 1.0, np.inf, stable=False)


def _prefill_state(engines: _Engines) -> PoolState:
    tables, flows, pool, rate = engines.tables, engines.flows, engines.pool, engines.rate
    stages, budget, at = engines.stages, engines.budget, (pool.shape, pool.chunk)
    service = tables.prefill_time[at] / stages
    shared = np.minimum(tables.prefill_shared[at] / stages, service)
    alone, lanes = _prompts_on_lanes(engines)
    full_step = float(rate @ shared) / max(float(rate @ flows.new_tokens), 1e-12) * budget
    later = (stages - 1.0) * np.where(flows.new_tokens > budget, full_step, 0.0)
    first = prompt_latency(alone, flows.chunks_of(np.array(budget)), np.array(stages))
    latency = np.maximum(first, alone / stages + later) + lanes.excess
    wait = prefill.prompt_wait(
        prefill.Prompts(
            rate=rate,
            alone=service,
            shared=shared,
            full_step=full_step,
            engines=engines.servers,
            arrival_scv=flows.arrival_scv,
            stages=stages,
        )
    )
    under_way = prefill.any_busy(wait.utilization, engines.ranks) if engines.ranks > 1.0 else 0.0
    return PoolState(rate, wait, latency, None, wait.utilization, 0.0, 0.0, wait.load < 1.0, lanes.step, under_way)


def _prompts_on_lanes(engines: _Engines) -> tuple[FloatArray, prefill.Lockstep]:
    """Latency of prompts (flows,) [s] on lanes that are as busy as it makes them, and what lockstep adds to it.

    A prompt takes a + rho (f - a), a alone and f on lanes that are all busy: rho = A / (1 - F + A), where A and F are
    the busy shares that a and f would give. Lockstep keeps them busy for longer, as far as they are not yet full.
    """
    flows, tables, rate, at = engines.flows, engines.tables, engines.rate, (engines.pool.shape, engines.pool.chunk)
    alone, full = tables.prefill_alone[at], tables.prefill_time[at]
    if engines.ranks == 1.0:
        return full, prefill.Lockstep(np.zeros(rate.size), 0.0)
    own, most = (float(rate @ time) / (engines.stages * engines.servers) for time in (alone, full))
    busy = prefill.busy_beside(own / (1.0 - most + own) if most < 1.0 else 1.0, flows.arrival_scv, engines.servers)
    weight, count = np.where(rate.any(), rate, flows.share), flows.chunks_of(tables.rank_chunks[at])

    def at_share(busy: float) -> prefill.Lockstep:
        step = prefill.beside_prompts(alone, full, busy) / engines.stages / count
        return prefill.lockstep(step, count, weight, lanes=engines.ranks, busy=busy)

    longer = min(busy + float(rate @ at_share(busy).excess) / engines.servers, 1.0)
    return prefill.beside_prompts(alone, full, busy), at_share(longer)


def _decode_state(engines: _Engines) -> PoolState:
    """The step t = b + a with a = t sum rate osl slope: no prompts are in the way; all replicas share one queue."""
    tables, rate, work = engines.tables, engines.rate, engines.work
    read_share, total = float(work @ engines.slope), float(work.sum())
    if read_share >= 1.0:
        return _overloaded(rate)
    running = decode.settled_batch(tables.seqs, tables.decode_base[engines.pool.shape], total / (1.0 - read_share))
    base = engines.base(running)
    step = base / (1.0 - read_share)
    own, jitter = _company_of_requests(engines, running, base)
    nothing = np.zeros(rate.size)
    time = decode.DecodeTime(nothing, nothing, nothing + 1.0, own)
    steps = decode.Steps(step, step, time, jitter, step + own, others=-math.expm1(-running))
    memory, over = engines.memory(step * work)
    room = (engines.seats - running) * np.sqrt(engines.pool.replicas / (engines.flows.peakedness * max(running, 1e-12)))
    full, stable = min(over + float(normal_exceeds(room)), 1.0), running <= engines.seats and memory < 1.0
    back = running / max(engines.all_per_engine, 1e-300) * step / engines.base(0.0)
    return PoolState(rate, None, nothing, steps, running, full, memory, stable, relaxation=back)


def _company_of_requests(engines: _Engines, running: float, base: float) -> tuple[FloatArray, float]:
    """By how much the steps of a request are longer than the mean step, (flows,) [s], and their standard deviation [s].

    Beside N others on average a request runs itself, and bursts bring more: (ca2 - 1) / 2, which the router spreads
    over the c engines. It evens out the number of requests, of variance q N / c (q the peakedness), not the KV of each.
    One that runs alone, with chance exp(-N), has a batch below all limits in the tables.
    base: step of the batch without KV reads [s].
    """
    slope, replicas = engines.slope, engines.pool.replicas
    tokens = engines.work / max(float(engines.per_engine @ engines.flows.osl), 1e-300)
    mean = float(tokens @ slope)
    spread = max(float(tokens @ slope**2) - mean**2, 0.0)
    burst = engines.flows.peakedness
    more = 1.0 + (burst - 1.0) / replicas
    longer = engines.base(running + more) - base + more * mean
    variance = running * (burst / replicas * (longer / more) ** 2 + spread)
    own, shape, tables = longer + (slope - mean), engines.pool.shape, engines.tables
    saved_alone = float(tables.decode_base[shape, 0] * (1.0 - tables.decode_alone[shape]))
    return own - np.minimum(saved_alone, own) * np.exp(-running), float(np.sqrt(variance))


@dataclass(frozen=True)
class _Mean:
    """The mean colocated engine, before any batch limit.

    running: requests in it [1]; busy: share of time in which a lane has a prompt [1]; attention: KV reads of the batch
    [s]; step: mean step [s].
    """

    engines: _Engines
    mixed: decode.MixedSteps
    running: float
    busy: float
    attention: float
    step: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.engines.all_per_engine

    @property
    def batch(self) -> float:
        """Requests that decode [1]."""
        return self.step * float(self.engines.per_engine @ self.engines.flows.osl)

    @property
    def resident(self) -> FloatArray:
        """Requests of each flow that decode, (flows,) [1]."""
        return np.asarray(self.step * self.engines.per_engine * self.engines.flows.osl)

    @property
    def quiet(self) -> float:
        """Step without prompts [s]."""
        return self.mixed.base + self.attention

    @property
    def reads(self) -> float:
        """KV reads in a mixed step [s]."""
        return self.mixed.carried * self.attention

    @cached_property
    def queue(self) -> tuple[prefill.PromptWait, FloatArray, tuple[float, float]]:
        """Wait of prompts, their latency once started (flows,) [s], and `lane_step` and `under_way` of `PoolState`."""
        engines, steps, stages, ranks = self.engines, self.mixed, self.engines.stages, self.engines.ranks
        if ranks > 1.0:  # where prompts wait, there is one on every lane
            steps = _mixed(engines, self.running, self.attention, 1.0)
        service, full = steps.turns(self.reads, stages)[1], (steps.full + self.reads) / stages
        shared = np.minimum(engines.flows.new_tokens / steps.room * full, service)
        scv = engines.flows.arrival_scv
        wait = prefill.prompt_wait(prefill.Prompts(engines.rate, service, shared, full, engines.servers, scv, stages))
        if ranks == 1.0:
            return wait, steps.turns(self.reads, stages)[0], (0.0, 0.0)
        busy = prefill.busy_beside(self.busy, scv, engines.servers)
        steps = _mixed(engines, self.running, self.attention, busy)
        step = (steps.turn + self.reads) / stages
        lanes = prefill.lockstep(step, steps.count, engines.per_engine, lanes=ranks, busy=busy)
        return wait, steps.turns(self.reads, stages)[0] + lanes.excess, (lanes.step, prefill.any_busy(busy, ranks))

    @cached_property
    def mixed_engine(self) -> decode.MixedEngine:
        """Prompts beside decodes, at the chance that they find the engines busy."""
        wait = self.queue[0]
        return _mixed_engine(self.engines, self, wait.utilization, wait.chance)

    @cached_property
    def left(self) -> FloatArray:
        """Prompts that wait at the engine when one of each flow ends, (flows,).

        Those that came while it waited and was computed, less those that end with it. While its engine is busy, the
        router sends others there only when all engines are: P(all busy) / P(this one busy).
        """
        wait, engines = self.queue[0], self.engines
        sent = min(wait.chance / max(wait.utilization, 1e-12), 1.0)
        service = self.mixed.count * (self.mixed.turn + self.reads)
        came = sent * (self.rate / engines.ranks) * (wait.chance * wait.mean + service)
        return np.asarray(np.maximum(came - wait.chance * wait.behind, 0.0))


def _colocated_state(engines: _Engines) -> PoolState:
    rate, engines = engines.rate, engines.whatever_limit()
    mean = _mean_engine(engines)
    if mean is None:
        return _overloaded(rate)
    memory, over = engines.memory(mean.resident)
    wait, latency, lanes = mean.queue
    full_step = engines.base(engines.seats) + mean.attention / max(mean.batch, 1e-9) * engines.seats
    steps = _steps(mean, engines.seats, full_step)
    stable = mean.running <= engines.seats and memory < 1.0 and wait.load < 1.0
    if stable:
        wait = wait.with_slot(_seats(mean, steps, engines.seats, full_step).wait())
    back = mean.running / mean.rate / (1.0 - mean.mixed_engine.feedback)
    return PoolState(rate, wait, latency, steps, mean.running, min(over, 1.0), memory, stable, *lanes, back)


@lru_cache(maxsize=KEPT)
def _mean_engine(engines: _Engines) -> _Mean | None:
    """Fixed point of t = (b + a) / (1 - P) with a = t sum rate osl slope; None if it does not exist.

    Where a larger batch makes prompts need a step more, and this makes the batch smaller, the rounds jump to and fro
    between both. So after USUAL_ROUNDS no prompt needs fewer steps than in the round before.
    """
    per_engine, stages, ranks, work = engines.per_engine, engines.stages, engines.ranks, engines.work
    read_share, most, tokens = float(work @ engines.slope), float(engines.tables.seqs[-1]), float(work.sum())
    running, busy, attention = 1.0, 0.0, 0.0
    fewest = np.ones(engines.flows.new_tokens.size)
    for number in range(MOST_ROUNDS):
        steps = _mixed(engines, running, attention, busy, fewest)
        fewest = steps.count if number >= USUAL_ROUNDS else fewest
        free = 1.0 - float(per_engine @ steps.extra) - read_share
        if free <= 0.0:
            return None
        step, before = steps.base / free, (running, busy)
        attention = step * read_share
        latency, service = steps.turns(steps.carried * attention, stages)
        busy = float(per_engine @ service) / ranks
        running = step * tokens + float(per_engine @ latency)
        if abs(running - before[0]) <= SETTLED * running and abs(busy - before[1]) <= SETTLED * busy:
            break
        if running > most:  # more than any limit allows, and each round adds to it
            return None
    else:
        return None
    return _Mean(engines, steps, running, busy, attention, step)


def _mixed(
    engines: _Engines, running: float, attention: float, busy: float, fewest: FloatArray | float = 1.0
) -> decode.MixedSteps:
    """Mixed steps read off the tables between the batch sizes next to those that run.

    running: requests of an engine [1]; attention: KV reads of its batch [s]; busy: share of the time in which a lane
    has a prompt [1]. The room that the batch leaves decides how many steps a prompt needs, `fewest` (flows,) at least.
    In a pipeline a chunk holds up the steps behind it for as long as it takes longer than they: by what it adds to the
    decodes that it carries; where it carries none by its whole length, less the decode step that they do meanwhile.
    """
    tables, shape, chunk, carried_share = engines.tables, engines.pool.shape, engines.pool.chunk, engines.tables.carried
    new, budget, ranks, per_engine = engines.flows.new_tokens, engines.budget, engines.ranks, engines.per_engine
    base, lanes = engines.base(running), engines.stages * ranks
    above = min(max(int(np.searchsorted(tables.seqs, running)), 1), max(tables.seqs.size - 1, 1)) % tables.seqs.size
    near = slice(max(above - 1, 0), above + 1)
    less, more = tables.seqs[near.start], tables.seqs[above]
    fraction = min(max(float(running - less) / max(float(more - less), 1e-12), 0.0), 1.0)

    def read(values: FloatArray) -> FloatArray:
        return np.asarray((1.0 - fraction) * values[0] + fraction * values[-1])

    room = max(budget - carried_share * running / lanes, 1.0)
    count = np.maximum(np.ceil(new / room), fewest)
    at = (shape, near, chunk)
    steps = prefill.beside_prompts(tables.mixed_alone[at], tables.mixed_base[at], min(busy, 1.0))
    longer = np.maximum(steps - carried_share * tables.decode_base[shape, near][:, None], 0.0)
    work = read(longer * tables.chunk_count[at])
    chunks = float(per_engine @ count) / max(engines.all_per_engine, 1e-12) if ranks == 1.0 else 1.0
    pace = float(prefill.lanes_held_up(lanes, min(busy, 1.0), chunks))
    turn = carried_share * base + work / count
    full = max(float(read(tables.full_base[at])), float(turn.max()))
    decode_step = (1.0 - carried_share) * (base + attention) if engines.stages > 1.0 else 0.0
    hold_up = (pace - 1.0) * np.maximum(work - count * decode_step, 0.0)
    return decode.MixedSteps(base, carried_share, turn, count, (work + hold_up) / lanes, full, room)


def _mixed_engine(engines: _Engines, mean: _Mean, busy: float, all_busy: float) -> decode.MixedEngine:
    """Prompts beside decodes; busy: share of the time in which a lane has a prompt, all_busy: P(all lanes have) [1]."""
    flows, mixed, slope, stages = engines.flows, mean.mixed, engines.slope, engines.stages
    whole = np.floor(flows.new_tokens / mixed.room)
    last = flows.new_tokens - whole * mixed.room
    square = (whole * mixed.room**2 + last**2) / flows.new_tokens**2
    spans = np.maximum(mixed.spans / stages, 1.0)
    batch = max(mean.batch, 1e-9)
    typical = float(engines.work @ slope) / float(engines.work.sum())
    lanes = stages * engines.ranks
    return decode.MixedEngine(
        rate=mean.rate,
        weight=engines.weight,
        extra=mixed.extra,
        swing=_swing(engines, mean),
        square=mixed.extra**2 * np.maximum(square, 1.0 / spans),
        steps=np.maximum(flows.osl - 1.0, 1.0),
        quiet=mean.quiet,
        slope=mean.attention / batch + engines.base(batch + 1.0) - engines.base(batch),
        busy=prefill.any_busy(busy, engines.ranks),
        sent=min(all_busy / max(busy, 1e-12), 1.0),
        mixed_steps=spans,
        carried=mixed.carried,
        lanes=stages,
        engines=float(engines.pool.replicas),
        arrival_scv=flows.arrival_scv,
        # A mean request's reads are spread over all lanes; one keeps to its own, and makes that longer for all unless
        # so many others are there that each lane has its share.
        reads=max(lanes - mean.batch, 1.0) * slope - typical,
    )


def _swing(engines: _Engines, mean: _Mean) -> float:
    """What a prompt more adds to the steps of an engine of several lanes, over what each adds on average [1].

    Chunks that others hold up anyway cost nothing more: d(rho pace) / d rho over the pace, by difference.
    """
    lanes, (less, more) = (
        np.array(engines.stages * engines.ranks),
        np.minimum(mean.busy, 1.0 - 2.0 * NOTABLE) * np.array([1.0 - NOTABLE, 1.0 + NOTABLE]),
    )
    if lanes == 1.0 or mean.busy <= 0.0:
        return 1.0
    chunks = np.array(float(engines.per_engine @ mean.mixed.count) / mean.rate if engines.ranks == 1.0 else 1.0)
    low, high = (float(busy * prefill.lanes_held_up(lanes, busy, chunks)) for busy in (less, more))
    return float(max((high - low) / (more - less) * (less + more) / (high + low), 0.0))


def _steps(mean: _Mean, seats: float, full_step: float) -> decode.Steps:
    """Distribution of the TPOT of each flow beside prompts; full_step: of a batch that takes all seats [s]."""
    engines, mixed, engine, prompts_left = mean.engines, mean.mixed, mean.mixed_engine, mean.left
    mean_extra = float(engine.weight @ np.minimum(mixed.extra / mixed.spans, mixed.most))
    number = float(engine.weight @ prompts_left)
    several = max(number / max(-math.expm1(-number), 1e-12), 1.0)
    time = decode.decode_time(engine, prompts_left, min(several * mean_extra, mixed.most), mean.queue[0].together)
    calm = mean.quiet + time.own
    longest = np.clip(
        decode.ceiling(engine, seats, full_step), calm, max(mean.step, mean.quiet + mixed.most) + time.own
    )
    lengths, rates = _prompt_steps(mean)
    jitter = engines.flows.peakedness * mean.step * float(engines.work @ engines.slope**2)
    return decode.Steps(
        step=mean.step,
        quiet=mean.quiet,
        time=time,
        jitter=float(np.sqrt(jitter)),
        ceiling=longest,
        others=-math.expm1(-engine.batch),
        prompt_step=lengths,
        prompt_rate=rates,
        in_a_row=float(engine.weight @ engine.mixed_steps),
    )


def _prompt_steps(mean: _Mean) -> tuple[FloatArray, FloatArray]:
    """Length [s] of the steps that prompts make longer and how often they come [1/s]: full ones, then the last of each.

    A prompt fills as many steps as it can and its last in part; where it goes first and alone, all of it is one gap.
    """
    mixed, engines = mean.mixed, mean.engines
    new = engines.flows.new_tokens
    full = mixed.carried * np.minimum(np.floor(new / mixed.room), mixed.count)
    work = (mixed.turn - mixed.ridden) * mixed.count
    chunk = np.minimum(work / new * mixed.room, mixed.full - mixed.ridden)
    last = np.maximum(work - full * chunk, 0.0) / np.maximum(mixed.spans - full, 1.0)
    lengths = mixed.ridden + mean.reads + (1.0 - mixed.carried) * mean.quiet + np.concatenate([chunk, last])
    rates = np.concatenate([full, np.maximum(mixed.spans - full, 0.0)]) / engines.stages
    return lengths, np.tile(engines.per_engine, 2) * rates


def _seats(mean: _Mean, steps: decode.Steps, seats: float, full_step: float) -> decode.Seats:
    """The pool's seats; full_step: of a batch that takes all of an engine [s].

    All engines vary together as one would by itself with arrivals like theirs: the router evens out the rest. The seats
    of a full batch advance by a step at once, but while prompts are computed: all wait for any, and each for its own.
    """
    engine, (wait, latency, _), engines = mean.mixed_engine, mean.queue, mean.mixed_engine.engines
    tpot = steps.quiet + steps.time.own + (1.0 - steps.time.undisturbed) * steps.time.mean
    lives = wait.chance * wait.mean + float(engine.weight @ (latency + engine.steps * tpot))
    return decode.Seats(
        engines=engines,
        seats=seats,
        rate=engines * engine.rate,
        present=engines * engine.rate * lives,
        variance=engines * engine.batch * engine.dispersion,
        peaked=engine.dispersion * (1.0 - engine.feedback) * (1.0 - engine.load),
        turn=engine.extra + (latency + engine.steps * full_step) / seats,
        weight=engine.weight,
        arrival_scv=engine.arrival_scv,
    )
