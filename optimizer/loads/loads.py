"""Loads: what each request takes of a column, and what the column promises in return.

A column's loads are linear in the requests routed to it, and its promise (the share of each flow that misses its
SLO) holds for any routing within those loads, because what the queue and the step time depend on is itself bounded
by loads (for bursty arrivals only as far as the pool's mix is like the demand's: the evaluation decides).
With x_f the rate of flow f at the block, s its prompt service time, e what that adds to decode
steps, a the attention time and h the KV bytes of one running request, b the step of a full batch of B without
its KV reads, P = sum x e and D = sum x osl a, the mean decode step is

    t = b + t D + t P = b / (1 - P - D)        (Little's law: x osl t requests of a flow run at once)

so that every limit on t, on the number running and on their memory is linear in x:

    time            sum x s                      <= rho c          utilisation of the prompt servers
    queue           sum x s^2                    <= rho c v R      second moment, hence the wait (Pollaczek-Khinchine)
    slots           sum x (osl b / B' + e + osl a)     <= m        running requests stay below B' = rho_slots B
    kv_memory       sum x (osl b h / M' + e + osl a)   <= m        their KV cache stays below M'
    attention_time  sum x (osl b a / A' + e + osl a)   <= m        their attention time stays below A'
    link            sum x KV bytes               <= 0.7 m link

B', M' and A' lie below B, M and A by a margin for chance. c = m x data-parallel ranks servers, R = E[s^2]/E[s]
of the whole demand. A block of several replicas waits less than as many blocks of one, so its size is part
of the column.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.queueing import (
    busy_share_variance,
    conditional_wait,
    halfin_whitt_margin,
    normal_exceeds,
    normal_quantile,
    pipeline_bubble,
    pipeline_cycle,
    shortest_residual,
    wait_exceeds,
    wait_probability,
)
from search_spaces.problem import Problem

from .columns import ROLES, Columns
from .flows import Flows
from .instance import Instance
from .lanes import (
    beside_prompts,
    busy_beside,
    chunks_held_up,
    latency_beside,
    mixed_beside,
    mixed_lockstep,
    prefill_lockstep,
)
from .tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Resource(StrEnum):
    """What a block can run out of, in the order of the load arrays."""

    TIME = "time"
    QUEUE = "queue"
    SLOTS = "slots"
    KV_MEMORY = "kv_memory"
    ATTENTION_TIME = "attention_time"
    LINK = "link"


RESOURCES = tuple(Resource)

ITERATIONS = 6
"""Rounds until the attention time of colocated steps settles."""

LINK_UTILIZATION = 0.7
"""Busy share of a network card that hand-overs may plan on [1]; assumed: the transfer time counted is unloaded."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads and misses of columns.

    load (columns, resources, flows): share of a block that one request per second uses; inf where impossible.
    miss (columns, flows): share of the flow's requests that miss an SLO there.
    """

    load: FloatArray
    miss: FloatArray


def column_loads(instance: Instance, columns: Columns) -> Loads:
    """Loads and misses of columns, whatever their roles."""
    flows = instance.flows
    load = np.zeros((columns.size, len(RESOURCES), flows.isl.size))
    miss = np.zeros((columns.size, flows.isl.size))
    price = {Role.PREFILL: prefill_loads, Role.DECODE: decode_loads, Role.COLOCATED: colocated_loads}
    for index, role in enumerate(ROLES):
        chosen = np.flatnonzero(columns.role == index)
        if chosen.size:
            part = price[role](instance, columns.take(chosen))
            load[chosen], miss[chosen] = part.load, part.miss
    return Loads(load, miss)


def _queue(flows: Flows, columns: Columns, tables: Tables, service: FloatArray) -> tuple[FloatArray, ...]:
    """Time and queue loads, wait probability and mean wait of those who wait, for prompt servers.

    service (columns, flows): seconds that a prompt keeps one server busy.
    """
    weight = flows.share / flows.share.sum()
    servers = (columns.replicas * tables.ranks[columns.shape])[:, None]
    rho = columns.utilization[:, None]
    mean, second = service @ weight, service**2 @ weight
    allowed = (columns.moment * second / mean)[:, None]
    time = service / (rho * servers)
    queue = service**2 / (rho * servers * allowed)
    waits = wait_probability(servers, rho, flows.arrival_scv)
    theta = conditional_wait(servers, rho, mean[:, None], allowed * mean[:, None], flows.arrival_scv)
    order = np.argsort(flows.new_tokens, kind="stable")  # more tokens never take less time
    residual = shortest_residual(service[:, order], weight[order], servers)
    chosen = columns.moment * residual + _beside(columns, mean, servers[:, 0])
    ahead = theta + np.maximum(chosen[:, None] - allowed / (2.0 * servers), 0.0)
    company = rho / (1.0 + rho) * (2.0 * tables.pipeline[columns.shape][:, None] - 1.0)
    return time, queue, waits, ahead * (1.0 + company)


def _beside(columns: Columns, mean: FloatArray, servers: FloatArray) -> FloatArray:
    """Residual time of the prompts that share the step of that engine beyond one [s], (columns,).

    n - 1 of them, n = rho n + exp(-rho n) the prompts of a step; one server's worth is in the mean wait already.
    """
    levels, index = np.unique(columns.utilization, return_inverse=True)
    together = np.ones(levels.size)
    for _ in range(60):
        together = levels * together + np.exp(-levels * together)
    return np.asarray(0.5 * (together[index.ravel()] - 1.0) * (1.0 - 1.0 / servers) * mean)


def kv_handover_time(tables: Tables, shape: IntArray, link: FloatArray) -> FloatArray:
    """Time to send a request's KV cache of engines of `shape` over `link` (columns,) [s], shape (columns, flows)."""
    return np.asarray(tables.kv_transferred[shape] / link[:, None])


def slowest_peer(tables: Tables) -> FloatArray:
    """Slowest link of any engine that a shape may hand KV to, itself included [byte/s], shape (S,)."""
    partners = np.where(tables.talks, tables.link, np.inf)
    return np.asarray(np.minimum(partners.min(axis=1, initial=np.inf), tables.link))


def prompt_service(flows: Flows, latency: FloatArray, chunks: FloatArray, stages: FloatArray) -> FloatArray:
    """Seconds that a prompt keeps a prefill engine from others, (columns, flows).

    latency, chunks (columns, flows): of a prompt alone. Its chunks go through `stages` (columns,) one after another; in
    a pipeline the first waits for the longest of other prompts' steps beside it, the others follow steps like theirs.
    """
    service = latency / stages[:, None]
    deep = np.flatnonzero(stages > 1.0)
    step = service[deep] / chunks[deep]
    service[deep] += pipeline_cycle(step, flows.share / flows.share.sum(), stages[deep]) - step
    return np.asarray(service)


def prompt_latency(latency: FloatArray, chunks: FloatArray, stages: FloatArray) -> FloatArray:
    """Time from the start of a prompt to its end on an otherwise idle prefill engine [s], (columns, flows).

    latency (columns, flows): of its n `chunks` (columns, flows) one after another. In a pipeline of k stages the next
    chunk enters when the one before has left the first stage: n steps of t / k, and the last one's way through the
    other stages (columns,). Any axes may stand for the columns.
    """
    deep = stages[..., None]
    return np.asarray(latency / deep * (1.0 + (deep - 1.0) / chunks))


def prefill_loads(instance: Instance, columns: Columns) -> Loads:
    """Prefill blocks: prompts queue for servers; the TTFT limit must also cover hand-over and first decode step."""
    flows, tables, stages = instance.flows, instance.tables, instance.tables.pipeline[columns.shape]
    at = (columns.shape, columns.chunk)
    chunks = flows.chunks_of(tables.rank_chunks[at])
    busy = busy_beside(columns.utilization, flows.arrival_scv, columns.replicas * tables.ranks[columns.shape])
    lanes = prefill_lockstep(flows, tables, at, flows.share, busy)
    service = prompt_service(flows, tables.prefill_time[at], chunks, stages)
    time, queue, waits, theta = _queue(flows, columns, tables, service)
    deep = np.flatnonzero(stages > 1.0)
    behind = pipeline_bubble(service[deep], flows.share / flows.share.sum(), columns.utilization[deep])
    latency = prompt_latency(latency_beside(tables, at, busy), chunks, stages) + lanes.excess
    latency[deep] += (stages[deep] - 1.0)[:, None] * behind
    handover = kv_handover_time(tables, columns.shape, slowest_peer(tables)[columns.shape])
    slack = flows.ttft - latency - handover - flows.first_step - lanes.step[:, None]
    card = kv_handover_time(tables, columns.shape, tables.links[columns.shape])
    link = card / (LINK_UTILIZATION * columns.replicas[:, None])
    load = np.zeros((columns.size, len(RESOURCES), flows.isl.size))
    load[:, 0], load[:, 1], load[:, 5] = time, queue, link
    return Loads(load, wait_exceeds(slack, waits, theta))


def permitted_misses(problem: Problem) -> float:
    """Share of requests that the strictest SLO class lets miss [1]."""
    return 1.0 - max(slo.attainment for slo in problem.slos)


def peakedness(flows: Flows) -> float:
    """Variance over mean of the requests that run at once: 1 for Poisson arrivals, more for bursty ones [1]."""
    return max(1.0, (flows.arrival_scv + 1.0) / 2.0)


def mean_below(limit: FloatArray, spread: FloatArray) -> FloatArray:
    """Largest mean mu of a compound Poisson total that stays below `limit`, chance apart.

    mu + spread sqrt(mu) = limit; spread is z sqrt(q): z of the chance, q = E[x^2]/E[x] of the jumps times the
    peakedness of the arrivals.
    """
    return np.asarray(((np.sqrt(spread**2 + 4.0 * np.maximum(limit, 0.0)) - spread) / 2.0) ** 2)


def slot_utilization(slots: IntArray, chance: FloatArray, bursts: float) -> FloatArray:
    """Largest utilisation of `slots` at which an arrival waits with at most `chance`; bursts need more room."""
    levels, index = np.unique(chance, return_inverse=True)
    beta = np.array([halfin_whitt_margin(float(level)) for level in levels])[index.ravel()]
    return np.asarray(np.maximum(1.0 - beta * np.sqrt(bursts / slots), 0.02))


def _margins(instance: Instance, columns: Columns) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Share of the permitted misses that each kind of fluctuation may use, z sqrt(q) of KV memory and of attention.

    The shapes are (columns,); see `mean_below` for the spread z sqrt(q).
    """
    flows, tables = instance.flows, instance.tables
    weight = flows.share * flows.osl / (flows.share @ flows.osl)
    chance = columns.chance * permitted_misses(instance.problem) / 2.0
    levels, index = np.unique(chance, return_inverse=True)
    z = np.array([normal_quantile(float(level)) for level in levels])[index.ravel()]
    spreads = [
        z * np.sqrt(jump**2 @ weight / np.maximum(jump @ weight, 1e-300) * peakedness(flows))
        for jump in (tables.kv_held[columns.shape], tables.attention_slope[columns.shape])
    ]
    return chance, spreads[0], spreads[1]


def _running(instance: Instance, columns: Columns, room: FloatArray, extra: FloatArray) -> FloatArray:
    """Loads of slots, KV memory and attention time, stacked (columns, 3, flows).

    room (columns,): attention time A that a step may take [s]; extra (columns, flows): step time e per request [s].
    """
    flows, tables = instance.flows, instance.tables
    chance, memory_spread, attention_spread = _margins(instance, columns)
    base = tables.decode_base[columns.shape, columns.seqs]
    slots = columns.replicas * tables.seqs[columns.seqs].astype(np.int64)
    batch = slot_utilization(slots, chance, peakedness(flows)) * tables.seqs[columns.seqs]
    held, slope = tables.kv_held[columns.shape], tables.attention_slope[columns.shape]
    capacity = tables.kv_capacity[columns.shape, columns.chunk] * tables.ranks[columns.shape]
    memory, attention = mean_below(capacity, memory_spread), mean_below(room, attention_spread)
    shared = extra + flows.osl * slope
    work = flows.osl * base[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        loads = [
            work / batch[:, None] + shared,
            np.where(held > 0.0, work * held / memory[:, None], 0.0) + shared,
            np.where(slope > 0.0, work * slope / attention[:, None], 0.0) + shared,
        ]
    return np.stack(loads, axis=1) / columns.replicas[:, None, None]


def least_step(instance: Instance, columns: Columns, blocks: FloatArray) -> FloatArray:
    """Shortest mean decode step that `blocks` (columns,) of each decode column can keep under the whole demand [s].

    The row of attention time, sum x (osl b a / A' + osl a) = m, solved for A', and the step b + A. Infinite where the
    attention alone takes all the time.
    """
    flows, tables = instance.flows, instance.tables
    slope = tables.attention_slope[columns.shape]
    busy = slope @ (flows.rate * flows.osl) / (blocks * columns.replicas)
    base = tables.decode_base[columns.shape, columns.seqs]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(busy < 1.0, base * busy / (1.0 - busy), np.inf)
    return np.asarray(base + (mean + _margins(instance, columns)[2] * np.sqrt(mean)) * (1.0 + 1e-9))


def decode_loads(instance: Instance, columns: Columns) -> Loads:
    """Decode blocks: no prompts, and a mean step that the column keeps, late for flows that may meet none so long."""
    flows, tables = instance.flows, instance.tables
    base = tables.decode_base[columns.shape, columns.seqs]
    room = columns.tpot - base
    load = np.zeros((columns.size, len(RESOURCES), flows.isl.size))
    load[:, 2:5] = _running(instance, columns, np.maximum(room, 0.0), np.zeros((1, 1)))
    card = kv_handover_time(tables, columns.shape, tables.links[columns.shape])
    load[:, 5] = card / (LINK_UTILIZATION * columns.replicas[:, None])
    load[(room <= 0.0) | (tables.kv_capacity[columns.shape, columns.chunk] <= 0.0)] = np.inf
    late = columns.tpot[:, None] > flows.longest_step * (1.0 + 1e-9)
    chance = (columns.chance * permitted_misses(instance.problem))[:, None]
    return Loads(load, np.where(late, 1.0, chance))


def colocated_loads(instance: Instance, columns: Columns) -> Loads:
    """Colocated blocks: prompts take turns in chunks beside the decodes, whose steps then last longer."""
    flows, tables = instance.flows, instance.tables
    weight = flows.share / flows.share.sum()
    base = tables.decode_base[columns.shape, columns.seqs]
    room = _attention_room(flows, tables, columns)
    service, latency, extra = _prompt_turns(instance, columns, room)
    lanes = mixed_lockstep(flows, tables, columns, room)
    time, queue, waits, theta = _queue(flows, columns, tables, service)
    load = np.zeros((columns.size, len(RESOURCES), flows.isl.size))
    load[:, 0], load[:, 1] = time, queue
    load[:, 2:5] = _running(instance, columns, room, extra + latency / tables.seqs[columns.seqs][:, None])
    load[_impossible_mix(tables, columns)] = np.inf
    rest = np.maximum(0.5 * (base + room) / tables.pipeline[columns.shape], lanes.step)
    miss = wait_exceeds(flows.ttft - latency - lanes.excess - rest[:, None], waits, theta)
    gap = np.maximum(tables.full_base[columns.shape, columns.seqs, columns.chunk] - tables.carried * base, 0.0)
    held_up = np.minimum(chunks_held_up(flows, columns, tables)[1] * columns.utilization[:, None], 1.0)
    steps = base + room, gap, held_up[:, 0], tables.carried * (base + room)
    miss += _late_tokens(flows, columns, steps, service @ weight, service**2 @ weight)
    miss += (columns.chance * permitted_misses(instance.problem))[:, None]
    return Loads(load, np.minimum(miss, 1.0))


def _prompt_turns(instance: Instance, columns: Columns, room: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Prompts of colocated blocks: service and latency [s], and step time e added to decodes [s], (columns, flows).

    room (columns,): attention time A of the steps that they ride in [s]. Prompts that wait see every lane busy.
    """
    flows, tables = instance.flows, instance.tables
    at = (columns.shape, columns.seqs, columns.chunk)
    count, pipeline = tables.chunk_count[at], tables.pipeline[columns.shape][:, None]
    reads = tables.carried * room[:, None]
    service = count * (tables.mixed_base[at] + reads) / pipeline
    turn = mixed_beside(flows, tables, columns) + reads
    latency = count * turn / pipeline + turn * (1.0 - 1.0 / pipeline)
    lanes, pace = chunks_held_up(flows, columns, tables)
    mixed = beside_prompts(tables.mixed_alone[at], tables.mixed_base[at], columns.utilization[:, None])
    extra = pace * count * np.maximum(mixed - tables.carried * tables.decode_base[at[:2]][:, None], 0.0) / lanes
    return service, latency, extra


def least_attention(instance: Instance, columns: Columns, blocks: FloatArray) -> FloatArray:
    """Smallest `attention` of colocated columns of which `blocks` (columns,) carry the whole demand [1].

    The row of attention time solved for A', as in `least_step`; prompts ride in steps that last longer by A, so A is
    found by iterating from none. Infinite where no A is enough.
    """
    flows, tables = instance.flows, instance.tables
    engines = blocks * columns.replicas
    slope, base = tables.attention_slope[columns.shape], tables.decode_base[columns.shape, columns.seqs]
    weight = flows.share * flows.osl / (flows.share @ flows.osl)
    work = base * (slope @ (flows.rate * flows.osl)) / engines
    room = np.zeros(columns.size)
    for _ in range(ITERATIONS):
        _, latency, extra = _prompt_turns(instance, columns, room)
        shared = extra + latency / tables.seqs[columns.seqs][:, None] + flows.osl * slope
        free = 1.0 - shared @ flows.rate / engines
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(free > 0.0, work / free, np.inf)
        room = np.minimum(mean + _margins(instance, columns)[2] * np.sqrt(mean), 1e6)
    full = tables.seqs[columns.seqs] * (slope @ weight)
    return np.where(room < 1e6, room * (1.0 + 1e-6) / np.maximum(full, 1e-300), np.inf)


def _attention_room(flows: Flows, tables: Tables, columns: Columns) -> FloatArray:
    """Attention time A of a colocated step [s]: a multiple of a full mean batch, at most that of full memory."""
    weight = flows.share * flows.osl / (flows.share @ flows.osl)
    held, slope = tables.kv_held[columns.shape], tables.attention_slope[columns.shape]
    full = np.maximum(tables.kv_capacity[columns.shape, columns.chunk], 0.0) * tables.ranks[columns.shape]
    by_memory = full * (slope / np.maximum(held, 1e-300)).max(axis=1)
    return np.asarray(np.minimum(columns.attention * tables.seqs[columns.seqs] * (slope @ weight), by_memory) + 1e-9)


def _impossible_mix(tables: Tables, columns: Columns) -> NDArray[np.bool_]:
    """No memory, or a token budget that the decodes use up before any prompt is served."""
    shape = columns.shape
    decodes = tables.seqs[columns.seqs] / (tables.pipeline[shape] * tables.ranks[shape])
    starved = tables.carried * decodes > 0.75 * tables.rank_chunks[shape, columns.chunk]
    return np.asarray((tables.kv_capacity[shape, columns.chunk] <= 0.0) | starved)


def _late_tokens(
    flows: Flows, columns: Columns, steps: tuple[FloatArray, ...], mean: FloatArray, second: FloatArray
) -> FloatArray:
    """P(TPOT of a request exceeds its limit) because more prompts than usual came while it ran, (columns, flows).

    steps: pure decode step b, what a full prompt chunk adds, g [s], the share rho of time in which some lane of the
    engine carries a chunk, and b', what such steps carry of b, all or nothing [s]. A window of which the share y is
    spent in them has (1 - y) / b + y / (b' + g) b' / b steps per second, so TPOT exceeds the limit when y exceeds
    (1 - b / limit) / (1 - b' / (b' + g)). The share has mean rho and the variance of `busy_share_variance`.
    """
    step, gap, rho, carried = (value[:, None] for value in steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = np.where(gap > 0.0, (1.0 - step / flows.tpot) * (carried + gap) / gap, np.inf)
        window = np.maximum(flows.osl - 1.0, 1.0) * step / (1.0 - rho + rho * carried / (carried + gap))
    threshold = np.where(step > flows.tpot, -np.inf, threshold)
    residual = columns.moment * second / np.maximum(mean, 1e-300) + max(flows.arrival_scv - 1.0, 0.0) * mean
    z = (threshold - rho) / np.sqrt(busy_share_variance(rho, residual[:, None], window))
    late = np.where(threshold >= 1.0, 0.0, normal_exceeds(z))
    return np.where(flows.osl > 1.0, late, 0.0)
