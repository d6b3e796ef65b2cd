"""How an engine runs that computes prompts in chunks beside its decodes.

With b the step of its mean batch without KV reads, a the attention time of the batch and e what a prompt adds to the
steps of others (what its chunks add to those that carry them; all of its own steps where prompts go first and alone),

    t = (b + a) / (1 - P),  P = sum rate e          mean step; N = t sum rate osl requests decode (Little)

It is a prompt queue too, whose jobs are mixed steps (`costmodel.prompt_queue`); what its decodes add to that wait is in
`costmodel.mixed_wait` and, where its batches are full, `costmodel.seat_queue`, how its steps vary in
`costmodel.decode_queue`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.beside import Beside, feedback
from costmodel.decode_queue import any_of, decode_time, first_of
from costmodel.mixed_wait import Company, Transit, with_company, with_crowd, with_transit
from costmodel.prompt_queue import Prompts, PromptWait, bunch_behind, prompt_wait
from costmodel.queueing import lanes_held_up, normal_exceeds, wait_probability
from costmodel.seat_queue import Seats, at_once, seat_wait, taken_chance, within_seats
from optimizer.loads.engine_table import beside_prompts, busy_beside, lockstep
from optimizer.loads.flows import peakedness
from optimizer.loads.instance import Instance

from .engine_state import (
    MOST_ROUNDS,
    SETTLED,
    PoolState,
    Steps,
    any_busy,
    batch_jitter,
    decode_base,
    overflow,
    overloaded,
    own_reads,
    saved_alone,
)
from .fleet import FleetPool

FloatArray = NDArray[np.float64]

KEPT = 2000
"""Engines that are kept: pools that differ in their batch limit alone share most of their state."""

NOTHING = 1e-9
"""Requests per second that stand for none, so that a pool which nothing is sent to has a state too [1/s]."""


@dataclass(frozen=True, slots=True)
class _Mixed:
    """Steps that carry prompts beside `running` requests, KV reads apart.

    base: decode step [s], of which such a step carries the share `carried` [1] (`Tables`); turn, count (flows,): mixed
    step [s] and how many of them a prompt needs; extra (flows,): time that a prompt adds to the steps of others [s];
    full: step that prompts fill [s]; room: tokens of prompts in it.
    """

    base: float
    carried: float
    turn: FloatArray
    count: FloatArray
    extra: FloatArray
    full: float
    room: float

    @property
    def ridden(self) -> float:
        """What such a step carries of the decode step [s]."""
        return self.carried * self.base

    @property
    def most(self) -> float:
        """What prompts add to one step of a decode at most: no end of them where they go first [s]."""
        return max(self.full - self.base, 1e-12) if self.carried else np.inf

    @property
    def spans(self) -> FloatArray:
        """Steps of a decode that a prompt makes longer, (flows,) [1]: one where all of it goes first."""
        return 1.0 + self.carried * (self.count - 1.0)


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean engine: its steps, requests in it [1], share of time in which a lane has a prompt [1], mean step [s].

    per_engine (flows,): requests per second; attention: KV reads of the batch [s].
    """

    per_engine: FloatArray
    mixed: _Mixed
    running: float
    busy: float
    attention: float
    step: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return float(self.per_engine.sum())

    @property
    def quiet(self) -> float:
        """Step without prompts [s]."""
        return self.mixed.base + self.attention

    @property
    def reads(self) -> float:
        """KV reads in a mixed step [s]."""
        return self.mixed.carried * self.attention


@dataclass(frozen=True, slots=True)
class _Engines:
    """What an engine does whatever its batch limit: its mean, the wait and latency of prompts, (flows,) [s].

    lanes: see the last two of `PoolState`.
    """

    mean: _Mean
    wait: PromptWait
    latency: FloatArray
    lanes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Load:
    """Engines and their requests; `key`: all that there is to them but their batch limit."""

    key: tuple[object, ...]
    instance: Instance = field(compare=False)
    pool: FleetPool = field(compare=False)
    rate: FloatArray = field(compare=False)


def colocated_state(instance: Instance, pool: FleetPool, rate: FloatArray) -> PoolState:
    """The state of a pool of such engines under `rate` (flows,) requests per second."""
    tables, ranks = instance.tables, float(instance.tables.ranks[pool.shape])
    sent = rate if rate.any() else instance.flows.share * NOTHING
    key = tables.alike, instance.flows.alike, pool.shape, pool.chunk, pool.replicas, sent.tobytes()
    engines = _engines(_Load(key, instance, pool, sent))
    if engines is None:
        return overloaded(rate)
    mean, wait = engines.mean, engines.wait
    resident = mean.step * mean.per_engine * instance.flows.osl
    capacity = float(tables.kv_capacity[pool.shape, pool.chunk]) * ranks
    memory, over = overflow(capacity, resident, tables.kv_held[pool.shape], peakedness(instance.flows))
    beside = _beside(instance, pool, mean, (wait.utilization, wait.chance))
    steps = _steps(instance, pool, mean, beside, wait)
    stable = mean.running <= float(tables.seqs[pool.seqs]) and memory < 1.0 and wait.load < 1.0
    waits = wait
    if stable:
        seats = _seats(beside, steps, engines.latency, wait)
        waits = with_crowd(_first_waits(instance, pool, mean, beside, wait), taken_chance(seats), seat_wait(seats))
    back = mean.running / mean.rate / (1.0 - feedback(beside))
    state = rate, waits, engines.latency, steps, mean.running, min(over, 1.0), memory, stable
    return PoolState(*state, *engines.lanes, back)


@lru_cache(maxsize=KEPT)
def _engines(load: _Load) -> _Engines | None:
    """The engines whatever their batch limit; None where they cannot keep up."""
    instance, pool = load.instance, load.pool
    mean = _mean_engine(instance, pool, load.rate / pool.replicas)
    if mean is None:
        return None
    if instance.tables.ranks[pool.shape] == 1.0:
        wait = _prompts(instance, pool, load.rate, mean.mixed, mean.reads)
        return _Engines(mean, wait, _turns(instance, pool, mean.mixed, mean.reads)[0], (0.0, 0.0))
    wait = _prompts(instance, pool, load.rate, _mixed(instance, pool, mean, 1.0), mean.reads)
    return _Engines(mean, wait, *_mixed_lockstep(instance, pool, mean))


def _mean_engine(instance: Instance, pool: FleetPool, per_engine: FloatArray) -> _Mean | None:
    """Fixed point of t = (b + a) / (1 - P) with a = t sum rate osl slope; None where there is none."""
    flows, tables = instance.flows, instance.tables
    work, slope = per_engine * flows.osl, tables.attention_slope[pool.shape]
    nothing = np.zeros_like(per_engine)
    mean = _Mean(per_engine, _Mixed(0.0, 1.0, nothing, nothing, nothing, 0.0, 0.0), 1.0, 0.0, 0.0, 0.0)
    most = float(tables.seqs[-1])
    for _ in range(MOST_ROUNDS):
        mixed = _mixed(instance, pool, mean, mean.busy)
        free = 1.0 - float(per_engine @ mixed.extra) - float(work @ slope)
        if free <= 0.0:
            return None
        step = mixed.base / free
        attention = step * float(work @ slope)
        latency, service = _turns(instance, pool, mixed, mixed.carried * attention)
        busy = float(per_engine @ service) / float(tables.ranks[pool.shape])
        running = step * float(work.sum()) + float(per_engine @ latency)
        settled = abs(running - mean.running) <= SETTLED * running and abs(busy - mean.busy) <= SETTLED * busy
        mean = _Mean(per_engine, mixed, running, busy, attention, step)
        if settled:
            break
        if running > most:  # more than any limit allows, and each round adds to it
            return None
    else:
        return None
    servers = pool.replicas * float(tables.ranks[pool.shape])
    found = min(mean.busy, 0.999999) ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0)  # Sakasegawa's P(all busy)
    spread = float(np.sqrt(_beside(instance, pool, mean, (mean.busy, found)).variance))
    mixed = _mixed(instance, pool, mean, mean.busy, spread=spread)
    longer = _together(instance, mean, mixed, (servers, float(tables.pipeline[pool.shape]), found))
    taken = float(per_engine @ (mixed.extra * longer)) + float(work @ slope)
    if taken >= 1.0:
        return None
    step = mixed.base / (1.0 - taken)
    attention = step * float(work @ slope)
    return replace(mean, mixed=replace(mixed, extra=mixed.extra * longer), step=step, attention=attention)


def _together(instance: Instance, mean: _Mean, mixed: _Mixed, pool: tuple[float, float, float]) -> FloatArray:
    """What prompts add to steps, over what each adds by itself, (flows,) [1].

    The first tokens of a step cost less, as they share the weights that decodes read anyway; prompts that share a step
    save that once. Where prompts go alone those that share a step read the weights once for all of them. x prompts come
    to a busy engine in the step of another, n = x + exp(-x) share one.
    pool: prompt servers, stages of an engine, P(all servers busy).
    """
    (servers, stages, found), flows = pool, instance.flows
    work = (mixed.turn - mixed.ridden) * mixed.count
    weight = mean.per_engine / mean.rate
    burst = 1.0 + max(flows.arrival_scv - 1.0, 0.0) / (2.0 * servers)
    sent = min(found / max(mean.busy, 1e-12), 1.0)
    come = mean.rate * float(weight @ (mixed.turn + mean.reads)) / stages * burst * sent
    shared = 1.0 - 1.0 / (come + np.exp(-come))
    dense = flows.new_tokens / mixed.room * (mixed.full - mixed.ridden)
    more = np.maximum(dense - work, 0.0) if mixed.carried else dense - work
    return np.asarray(1.0 + shared * more / np.maximum(work, 1e-12))


def _beside(instance: Instance, pool: FleetPool, mean: _Mean, met: tuple[float, float]) -> Beside:
    """Prompts beside decodes, as `costmodel.beside` wants them; met: busy share of a lane, and P(all lanes busy)."""
    flows, tables, mixed = instance.flows, instance.tables, mean.mixed
    stages, ranks = float(tables.pipeline[pool.shape]), float(tables.ranks[pool.shape])
    whole = np.floor(flows.new_tokens / mixed.room)
    part = flows.new_tokens - whole * mixed.room
    square = (whole * mixed.room**2 + part**2) / flows.new_tokens**2
    busy, chance = met
    return Beside(
        rate=mean.rate,
        weight=mean.per_engine / mean.rate,
        extra=mixed.extra,
        swing=_swing(instance, pool, mean),
        square=mixed.extra**2 * np.maximum(square, 1.0 / np.maximum(mixed.spans / stages, 1.0)),
        steps=np.maximum(flows.osl - 1.0, 1.0),
        quiet=mean.quiet,
        slope=_slope(instance, pool, mean),
        busy=any_busy(busy, ranks),
        sent=min(chance / max(busy, 1e-12), 1.0),
        mixed_steps=np.maximum(mixed.spans / stages, 1.0),
        carried=mixed.carried,
        lanes=stages,
        engines=float(pool.replicas),
        arrival_scv=flows.arrival_scv,
        seats=float(tables.seqs[pool.seqs]),
        full_step=_full_step(instance, pool, mean),
        reads=own_reads(instance, pool, mean.per_engine, mean.step * float(mean.per_engine @ flows.osl)),
        alone=own_reads(instance, pool, mean.per_engine, 0.0),
        saved=saved_alone(instance, pool),
    )


def _swing(instance: Instance, pool: FleetPool, mean: _Mean) -> float:
    """What a prompt more adds to the steps of an engine of several lanes, over what each adds on average [1].

    Chunks that others hold up anyway cost nothing more: d(rho pace) / d rho over the pace, by difference.
    """
    tables, (less, more) = instance.tables, np.minimum(mean.busy, 0.9) * np.array([0.95, 1.05])
    lanes = np.array(float(tables.pipeline[pool.shape] * tables.ranks[pool.shape]))
    if lanes == 1.0 or mean.busy <= 0.0:
        return 1.0
    chunks = np.array(float(mean.per_engine @ mean.mixed.count) / mean.rate if tables.ranks[pool.shape] == 1.0 else 1.0)
    low, high = (float(busy * lanes_held_up(lanes, busy, chunks)) for busy in (less, more))
    return float(max((high - low) / (more - less) * (less + more) / (high + low), 0.0))


def _slope(instance: Instance, pool: FleetPool, mean: _Mean) -> float:
    """What one decode more adds to a step: its KV reads, and its part of the batch [s]."""
    batch = max(mean.step * float(mean.per_engine @ instance.flows.osl), 1e-9)
    near = max(batch / 16.0, 0.25)
    more, less = batch + near, max(batch - near, 0.0)
    grown = decode_base(instance, pool, more) - decode_base(instance, pool, less)
    return mean.attention / batch + grown / (more - less)


def _mixed(instance: Instance, pool: FleetPool, mean: _Mean, busy: float, *, spread: float = 0.0) -> _Mixed:
    """Mixed steps read off the tables between the batch limits next to those that run.

    busy: share of the time in which a lane has a prompt [1]; spread: standard deviation of the batch [1]. The room that
    a batch leaves decides how many steps a prompt needs: on average over the batches that it may meet, each a normal
    one. In a pipeline a chunk holds up the steps behind it for as long as it takes longer than they: by what it adds to
    the decodes that it carries; where it carries none by its whole length, less the decode step that they do meanwhile.
    """
    tables, shape, per_engine, running = instance.tables, pool.shape, mean.per_engine, mean.running
    base = decode_base(instance, pool, running)
    above = int(np.clip(np.searchsorted(tables.seqs, running), 1, max(tables.seqs.size - 1, 1))) % tables.seqs.size
    below = max(above - 1, 0)
    width = max(float(tables.seqs[above] - tables.seqs[below]), 1e-12)
    part = float(np.clip((running - tables.seqs[below]) / width, 0.0, 1.0))

    def read(values: FloatArray) -> FloatArray:
        return np.asarray((1.0 - part) * values[below] + part * values[above])

    lanes = float(tables.pipeline[shape] * tables.ranks[shape])
    room = max(float(tables.rank_chunks[shape, pool.chunk]) - tables.carried * running / lanes, 1.0)
    count = np.ceil(instance.flows.new_tokens / room)
    if tables.carried * spread > 0.0:
        fewer, more = (room - instance.flows.new_tokens / np.maximum(count - less, 1e-12) for less in (1.0, 0.0))
        count = count + normal_exceeds(more * lanes / spread) - normal_exceeds(-fewer * lanes / spread)
        count = np.maximum(count, np.ceil(instance.flows.new_tokens / float(tables.rank_chunks[shape, pool.chunk])))
    at = (shape, slice(None), pool.chunk)
    steps = beside_prompts(tables.mixed_alone[at], tables.mixed_base[at], min(busy, 1.0))
    longer = np.maximum(steps - tables.carried * tables.decode_base[shape][:, None], 0.0)
    work = read(longer * tables.chunk_count[shape, :, pool.chunk])
    chunks = float(per_engine @ count) / max(float(per_engine.sum()), 1e-12) if tables.ranks[shape] == 1.0 else 1.0
    pace = float(lanes_held_up(np.array(lanes), np.array(min(busy, 1.0)), np.array(chunks)))
    turn = tables.carried * base + work / count
    full = max(float(read(tables.full_base[shape, :, pool.chunk])), float(turn.max()))
    passed = (1.0 - tables.carried) * (base + mean.attention) if tables.pipeline[shape] > 1.0 else 0.0
    held = (pace - 1.0) * np.maximum(work - count * passed, 0.0)
    return _Mixed(base, tables.carried, turn, count, (work + held) / lanes, full, room)


def _mixed_lockstep(instance: Instance, pool: FleetPool, mean: _Mean) -> tuple[FloatArray, tuple[float, float]]:
    """Latency of prompts on a colocated engine of several lanes (flows,) [s], and the last two of `PoolState`."""
    lanes, stages = (float(values[pool.shape]) for values in (instance.tables.ranks, instance.tables.pipeline))
    beside = busy_beside(np.array([mean.busy]), instance.flows.arrival_scv, np.array([pool.replicas * lanes]))
    mixed = _mixed(instance, pool, mean, float(beside[0]))
    step = (mixed.turn + mean.reads)[None] / stages
    found = lockstep(step, mixed.count[None], mean.per_engine, lanes=np.array([lanes]), busy=beside)
    latency = _turns(instance, pool, mixed, mean.reads)[0] + found.excess[0]
    return latency, (float(found.step[0]), any_busy(float(beside[0]), lanes))


def _turns(instance: Instance, pool: FleetPool, mixed: _Mixed, reads: float) -> tuple[FloatArray, FloatArray]:
    """Latency and service time of prompts in mixed steps [s]; reads: of KV in each [s]."""
    turn, stages = mixed.turn + reads, float(instance.tables.pipeline[pool.shape])
    service = mixed.count * turn / stages
    return service + turn * (1.0 - 1.0 / stages), service


def _prompts(instance: Instance, pool: FleetPool, rate: FloatArray, mixed: _Mixed, reads: float) -> PromptWait:
    """Wait of prompts for mixed steps; mixed: as they are when prompts wait, that is with one on every lane."""
    tables = instance.tables
    stages = float(tables.pipeline[pool.shape])
    service = _turns(instance, pool, mixed, reads)[1]
    full = (mixed.full + reads) / stages
    shared = np.minimum(instance.flows.new_tokens / mixed.room * full, service)
    engines = pool.replicas * float(tables.ranks[pool.shape])
    return prompt_wait(Prompts(rate, service, shared, full, engines, instance.flows.arrival_scv, stages))


def _full_step(instance: Instance, pool: FleetPool, mean: _Mean) -> float:
    """Step of a full batch without prompts [s]."""
    batch = max(mean.step * float(mean.per_engine @ instance.flows.osl), 1e-9)
    seats = float(instance.tables.seqs[pool.seqs])
    return decode_base(instance, pool, seats) + mean.attention / batch * seats


def _steps(instance: Instance, pool: FleetPool, mean: _Mean, beside: Beside, wait: PromptWait) -> Steps:
    """Distribution of the TPOT of each flow beside prompts."""
    mixed = mean.mixed
    left = _left_behind(instance, pool, mean.rate, wait, mixed.count * (mixed.turn + mean.reads))
    one = float(beside.weight @ np.minimum(mixed.extra / mixed.spans, mixed.most))
    number = float(beside.weight @ left)
    several = max(number / max(float(any_of(np.array(number), beside.arrival_scv, beside.engines)), 1e-12), 1.0)
    time, longest = within_seats(beside, decode_time(beside, left, first_of(several, one, mixed.most), wait.together))
    lengths, rates = _prompt_steps(instance, mean, beside)
    return Steps(
        step=mean.step,
        quiet=mean.quiet,
        undisturbed=time.undisturbed,
        mean=time.mean,
        spread=time.spread,
        jitter=batch_jitter(instance, pool, mean.per_engine, mean.step),
        ceiling=np.clip(longest, mean.quiet + time.own, max(mean.step, mean.quiet + mixed.most) + time.own),
        own=time.own,
        alone=time.alone,
        lone=time.lone,
        below=time.below,
        prompt_step=lengths,
        prompt_rate=rates,
        in_a_row=float(beside.weight @ beside.mixed_steps),
    )


def _prompt_steps(instance: Instance, mean: _Mean, beside: Beside) -> tuple[FloatArray, FloatArray]:
    """Length [s] of the steps that prompts make longer and how often they come [1/s]: full ones, then the last of each.

    A prompt fills as many steps as it can and its last in part; where it goes first and alone, all of it is one gap.
    """
    mixed, new = mean.mixed, instance.flows.new_tokens
    full = mixed.carried * np.minimum(np.floor(new / mixed.room), mixed.count)
    work = (mixed.turn - mixed.ridden) * mixed.count
    chunk = np.minimum(work / new * mixed.room, mixed.full - mixed.ridden)
    last = np.maximum(work - full * chunk, 0.0) / np.maximum(mixed.spans - full, 1.0)
    lengths = mixed.ridden + mean.reads + (1.0 - mixed.carried) * mean.quiet + np.concatenate([chunk, last])
    rates = np.concatenate([full, np.maximum(mixed.spans - full, 0.0)]) / beside.lanes
    return lengths, np.tile(mean.per_engine, 2) * rates


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


def _first_waits(instance: Instance, pool: FleetPool, mean: _Mean, beside: Beside, wait: PromptWait) -> PromptWait:
    """Waits of prompts with what the decodes beside them add."""
    flows, tables, mixed = instance.flows, instance.tables, mean.mixed
    stages, ranks = float(tables.pipeline[pool.shape]), float(tables.ranks[pool.shape])
    if stages > 1.0:
        step, times = (mixed.turn + mean.reads) / stages, mean.per_engine * mixed.count
        wait = with_transit(wait, Transit(float(times.sum()), step, times, stages))
    if ranks == 1.0:
        rest = mean.quiet / stages
        held = min(wait.utilization + 0.5 * rest * mean.rate * (1.0 - wait.utilization), 0.999999)
        occupied = float(wait_probability(float(pool.replicas), held, flows.arrival_scv))
        behind = np.minimum(mixed.extra, mixed.full - mixed.ridden)
        pending = 1.0 - wait.utilization / held
        wait = with_company(wait, Company(occupied, pending, rest, mixed.extra, behind, beside.weight))
    return wait


def _seats(beside: Beside, steps: Steps, latency: FloatArray, wait: PromptWait) -> Seats:
    """The pool's seats; latency (flows,): of prompts [s].

    All engines vary together as one would by itself with arrivals like theirs: the router evens out the rest. The seats
    of a full batch advance by a step at once, but while prompts are computed: all wait for any, and each for its own.
    """
    engines, seats = beside.engines, beside.seats
    tpot = steps.quiet + steps.own + (1.0 - steps.undisturbed) * steps.mean
    lives = wait.chance * wait.mean + float(beside.weight @ (latency + beside.steps * tpot))
    together = replace(beside, engines=1.0)
    swings = together.variance / together.batch * (1.0 - feedback(together)) * (1.0 - together.load)
    return Seats(
        engines=engines,
        seats=seats,
        rate=engines * beside.rate,
        present=engines * beside.rate * lives,
        variance=engines * together.variance,
        peaked=swings * at_once(beside.steps, beside.weight, beside.arrival_scv, beside.overlap),
        turn=beside.extra + (latency + beside.steps * beside.full_step) / seats,
        weight=beside.weight,
        arrival_scv=beside.arrival_scv,
    )
