"""The engine settings that a search may choose from, and the least work that each has to do for each flow.

A setting is a role, shape, batch limit and token budget.

The evaluation (`fleets.pool`, `fleets.evaluate`) accepts no pool that does less, so the bounds are valid for every
fleet that it could accept. Work: with x the rates at one of n engines, A = sum x osl a and P = sum x e (what prompts
add to the steps of others), and a line b0 + m R <= b(R) below the decode steps of batches up to the limit B,

    R = t sum x osl,  t (1 - P - A) >= b0 + m R      so   P + A + m sum x osl + b0 / t <= 1

and t is at most what keeps the batch within B (t sum x osl <= B), its KV cache within the memory M
(t sum x osl h <= M) and quiet steps within a limit on TPOT (t (1 - P) <= tau):

    slots     n >= sum n x (e + osl (a + m + b0 / B))
    memory    n >= sum n x (e + osl (a + m + b0 h / M))
    tokens    n >= sum n x (e + osl (a + m) / (1 - b0 / tau))

A pool whose quiet steps are longer than tau makes at least half of the requests with that limit late, as half of a
normal distribution lies above its mean.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.engine import Role
from costmodel.first_token import idle_ttft
from optimizer.fleets.fleet import UNMATCHED, within_limits
from optimizer.loads.instance import COLOCATED, DECODE, LINK_UTILIZATION, PREFILL, ROLES, Instance, prompt_latency
from optimizer.plans.records import ROUNDING

LATE_BY_STEPS = 0.5 - ROUNDING
"""Share of requests that is late at steps longer than the limit [1]."""

HANDED = 1.0 - 2.0 * UNMATCHED
"""Share of a flow for which a prefill pool finds decode pools at least."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Engines, every array (settings,): role, a place in ROLES; shape, batch limit and token budget as in the table."""

    role: IntArray
    shape: IntArray
    seqs: IntArray
    chunk: IntArray

    @property
    def size(self) -> int:
        """Number of settings."""
        return int(self.role.size)

    def take(self, index: IntArray | BoolArray) -> EngineSettings:
        """The settings at `index`, in that order."""
        return EngineSettings(*(getattr(self, field.name)[index] for field in fields(self)))


def make_settings(instance: Instance, *, every_limit: bool = False) -> EngineSettings:
    """Every setting that fits in memory, in a role that is allowed, with a partner where it needs one.

    A prefill engine has the largest token budget that there is memory for, as larger steps are more efficient and no
    decode waits for them; in a pipeline any, as stages work side by side on several steps only. A decode engine has the
    largest batch limit, as by formula a smaller one only makes requests wait; `every_limit`: all of them.
    """
    table, roomy = instance.tables, instance.tables.roomy
    at_limits = np.zeros_like(roomy)
    at_limits[:, table.limits] = roomy[:, table.limits] & table.shared_limits[:, :, None]
    prompts = np.zeros_like(roomy)
    prompts[:, :1] = roomy[:, :1] & ((table.pipeline > 1.0)[:, None, None] | _last(roomy[:, :1], axis=2))
    tokens = np.zeros_like(roomy)
    tokens[:, :, :1] = at_limits[:, :, :1] if every_limit else _last(at_limits[:, :, :1], axis=1)
    sends, takes = (np.asarray(table.talks.any(axis=axis))[:, None, None] for axis in (1, 0))
    rows = [np.zeros((4, 0), dtype=np.int64)]
    for role, possible in enumerate((prompts & sends, tokens & takes, at_limits)):
        if ROLES[role] in instance.problem.space.roles:
            shape, chunk, back = np.nonzero(possible.swapaxes(1, 2)[:, :, ::-1])
            rows.append(np.stack([np.full_like(shape, role), shape, table.seqs.size - 1 - back, chunk]))
    settings = EngineSettings(*np.concatenate(rows, axis=1))
    return settings.take(_possible(instance, settings))


def engine_gpus(instance: Instance, settings: EngineSettings) -> FloatArray:
    """GPUs of each offer that one engine of each setting takes, (settings, offers)."""
    bought = instance.tables.offer[settings.shape][:, None] == np.arange(len(instance.problem.offers))
    return np.asarray(bought * instance.tables.gpus[settings.shape][:, None])


def _last(possible: BoolArray, axis: int) -> BoolArray:
    """The last possible entry along an axis."""
    later = np.flip(np.cumsum(np.flip(possible, axis), axis), axis)
    return np.asarray(possible & (later == 1))


def _possible(instance: Instance, settings: EngineSettings) -> BoolArray:
    """Whether the limits hold one engine that decodes within some TPOT limit, with a token for each request in a step.

    A batch limit whose full batch is too slow is kept: few requests never fill it, and smaller limits make them wait.
    """
    table, flows, shape, is_colocated = instance.tables, instance.flows, settings.shape, settings.role == COLOCATED
    fits = within_limits(instance.problem, engine_gpus(instance, settings))
    longest = flows.tpot.max() if flows.gaps.any() else np.inf
    fits &= (settings.role == PREFILL) | (table.decode_base.min(axis=1)[shape] < longest)
    tokens = table.verified[shape] * table.seqs[settings.seqs]
    return np.asarray(fits & ~(is_colocated & (tokens > table.chunks[settings.chunk])))


def keeping_up(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Engines that one request per second of each flow takes at least, for a pool not to fall behind, (settings, F).

    What `pool_state` calls stable needs, with x the rates at one of n engines, W = sum x osl, R <= B the requests that
    run and t(R) a decode step without KV reads,

        prefill      sum x shared / ranks < 1
        generating   R = W t(R) / (1 - sum x (osl a + e)),   so   n >= sum n x (osl (a + min t(R) / R) + e)

    for t(R) / R falls between the batch limits of the tables, and rises nowhere below the least of them. e is what a
    prompt adds to the steps of others (`prompt_work`). Hand-overs keep the network cards of both ends busy for
    LINK_UTILIZATION of the time at most. Steps and cards work at once: what counts is the one that the whole demand
    keeps busier, for every flow, as one may be short of it for some flows and of the other for the rest.
    """
    tables, flows, shape = instance.tables, instance.flows, settings.shape
    slots = np.minimum.accumulate(tables.decode_base / tables.seqs, axis=1)[shape, settings.seqs]
    later = flows.osl * (tables.attention_slope[shape] + slots[:, None]) + prompt_work(instance, settings)
    steps = np.where((settings.role == PREFILL)[:, None], prefill_work(instance, settings), later)
    cards = sending_work(instance, settings)
    return np.where((cards @ flows.rate > steps @ flows.rate)[:, None], cards, steps)


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines below the decode steps of each setting, all (settings, lines): height b0 [s], rise m [s/request]."""

    height: FloatArray
    rise: FloatArray


def lines_below(instance: Instance, settings: EngineSettings) -> Lines:
    """The lines through any two batch limits, moved down below all steps up to the batch limit of the setting.

    Lines that start below zero bound nothing: the height of the flat line, which always holds, replaces theirs.
    Settings that differ only in their chunk share their lines.
    """
    engines, place = np.unique(np.stack([settings.shape, settings.seqs]), axis=1, return_inverse=True)
    seqs, base = instance.tables.seqs, instance.tables.decode_base[engines[0]]
    most = seqs[engines[1]]
    first, second = np.triu_indices(seqs.size, 1)
    rise = np.maximum((base[:, second] - base[:, first]) / (seqs[second] - seqs[first]), 0.0)
    rise = np.hstack([np.zeros((most.size, 1)), rise])
    batch = np.minimum(seqs, most[:, None])
    height = (base[:, None, :] - rise[:, :, None] * batch[:, None, :]).min(axis=2)
    able = height > 0.0
    height, rise = np.where(able, height, height[:, :1]), np.where(able, rise, 0.0)
    return Lines(height[place.ravel()], rise[place.ravel()] * (1.0 - ROUNDING))


def prompt_work(instance: Instance, settings: EngineSettings) -> FloatArray:
    """What a prompt adds at least to the steps of others on colocated engines, 0 elsewhere [s], (settings, flows).

    At the batch where that is least, by itself or with one on each lane, and no more than without any decodes, whom
    alone it gets in the way of; where prompts go first and alone, no more than its tokens of a step that they fill.
    """
    tables, shape, flows = instance.tables, settings.shape, instance.flows
    base = tables.carried * tables.decode_base[:, :, None, None]
    lanes = (tables.pipeline * tables.ranks)[:, None, None, None]
    longer = np.maximum(tables.mixed_base - base, 0.0) / lanes
    alone = np.maximum(tables.mixed_alone - base, 0.0)
    extra = (np.minimum(longer, alone) * tables.chunk_count).min(axis=1)
    extra = np.minimum(extra, tables.prefill_time / lanes[:, 0])[shape, settings.chunk]
    if not tables.carried:
        token_time = tables.full_base.min(axis=1) / (tables.chunks * tables.pipeline[:, None])
        extra = np.minimum(extra, flows.new_tokens * token_time[shape, settings.chunk][:, None])
    return np.where((settings.role == COLOCATED)[:, None], extra, 0.0)


def generating_work(instance: Instance, settings: EngineSettings, tau: float) -> FloatArray:
    """Engines that a request per second takes at least where quiet steps keep within tau [s], (settings, 3, flows).

    Resources: slots, memory, tokens; the line that the whole demand needs most engines by; infinite where no step
    is so short. For settings that generate.
    """
    flows, tables, lines = instance.flows, instance.tables, lines_below(instance, settings)
    slope, most = tables.attention_slope[settings.shape], tables.seqs[settings.seqs][:, None]
    memory = tables.kv_capacity[settings.shape, settings.seqs, settings.chunk] * tables.ranks[settings.shape]
    own = np.where((settings.role == COLOCATED)[:, None], 1.0 - flows.shared / flows.mean_context, 1.0)
    memory_share = own * tables.kv_held[settings.shape] / np.maximum(memory, 1e-300)[:, None]
    load_factors = 1.0 / np.maximum(1.0 - lines.height / tau, 1e-9)
    weight = flows.rate * flows.osl

    def tightest(need: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        at = np.arange(settings.size), need.argmax(axis=1)
        return lines.height[at][:, None], lines.rise[at][:, None], load_factors[at][:, None]

    height, rise, _ = tightest(lines.rise + lines.height / most)
    slots = slope + rise + height / most
    height, rise, _ = tightest(lines.rise * weight.sum() + lines.height * (memory_share @ weight)[:, None])
    memories = slope + rise + height * memory_share
    _, rise, load_factor = tightest(load_factors * ((slope @ weight)[:, None] + lines.rise * weight.sum()))
    tokens = load_factor * (slope + rise)
    work = prompt_work(instance, settings)[:, None] + flows.osl * np.stack([slots, memories, tokens], axis=1)
    slow = np.asarray((lines.height > tau).any(axis=1))
    return np.where(slow[:, None, None], np.inf, work)


def prefill_work(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Prefill engines that a request per second takes at least for the queue not to grow [1], (settings, flows)."""
    tables, at = instance.tables, (settings.shape, settings.chunk)
    lanes = tables.pipeline[settings.shape] * tables.ranks[settings.shape]
    return np.asarray(np.minimum(tables.prefill_shared[at], tables.prefill_time[at]) / lanes[:, None])


def sending_work(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Engines whose network cards a hand-over per second takes, 0 on colocated ones [1], (settings, flows)."""
    sent = instance.tables.kv_transferred / (LINK_UTILIZATION * instance.tables.links[:, None])
    return np.where((settings.role == COLOCATED)[:, None], 0.0, sent[settings.shape])


def late_tokens(instance: Instance, settings: EngineSettings, above: float) -> FloatArray:
    """Share of each flow that is late for TPOT where quiet steps are longer than `above` [s], (settings, flows)."""
    flows, step = instance.flows, instance.tables.decode_base.min(axis=1)[settings.shape][:, None]
    limit = flows.tpot * (1.0 + ROUNDING)
    late = ((step > limit) | (above >= limit)) & (flows.osl > 1.0)
    return np.where(late & (settings.role != PREFILL)[:, None], LATE_BY_STEPS, 0.0)


def late_first_tokens(instance: Instance, settings: EngineSettings) -> FloatArray:
    """Whether each flow misses TTFT even on idle engines, 0 or 1; 0 on decode engines, (settings, flows)."""
    flows, policy = instance.flows, instance.policy
    fastest = np.where(
        (settings.role == COLOCATED)[:, None],
        idle_ttft(policy, _colocated_prompt(instance)[settings.shape, settings.chunk]),
        idle_ttft(policy, *_handed_over(instance, settings)),
    )
    late = fastest > flows.ttft * (1.0 + ROUNDING)
    return np.where(late & (settings.role != DECODE)[:, None], 1.0, 0.0)


def _handed_over(instance: Instance, settings: EngineSettings) -> tuple[FloatArray, FloatArray]:
    """Prompt, and hand-over with the first step, on idle engines that may talk [s], (settings, flows)."""
    tables, at = instance.tables, (settings.shape, settings.chunk)
    alone = np.minimum(tables.prefill_alone[at], tables.prefill_time[at])
    chunks = instance.flows.chunks_of(tables.rank_chunks[at])
    prompt = prompt_latency(alone, chunks, tables.pipeline[settings.shape])
    takes = np.zeros(tables.pipeline.size, dtype=np.bool_)
    takes[settings.shape[settings.role == DECODE]] = True
    step = np.where(tables.talks & takes, tables.decode_base.min(axis=1), np.inf).min(axis=1, initial=np.inf)
    step = np.where(np.isfinite(step), HANDED * step, 0.0)
    after = tables.kv_transferred / tables.link[:, None] + step[:, None]
    return prompt, after[settings.shape]


def _colocated_prompt(instance: Instance) -> FloatArray:
    """Prompt on an idle colocated engine [s], (shapes, token budgets, flows): see `MixedSteps.turns`."""
    tables = instance.tables
    base = tables.carried * tables.decode_base[:, :, None, None]
    stages = tables.pipeline[:, None, None]
    steps = np.maximum(np.minimum(tables.mixed_alone, tables.mixed_base) - base, 0.0)
    count = instance.flows.chunks_of(tables.rank_chunks)
    whole = (count[:, None] * base + steps * tables.chunk_count).min(axis=1) / stages
    mixed_latency = whole + tables.decode_base.min(axis=1)[:, None, None] * (1.0 - 1.0 / stages)
    return np.asarray(np.minimum(mixed_latency, prompt_latency(tables.prefill_alone, count, tables.pipeline[:, None])))


def fastest_prompt(instance: Instance) -> FloatArray:
    """Shortest time in which any engine of the space computes a prompt of each flow when it is idle [s], (flows,)."""
    if Role.COLOCATED in instance.problem.space.roles:
        return np.asarray(_colocated_prompt(instance).min(axis=(0, 1)))
    table = instance.tables
    chunks = instance.flows.chunks_of(table.rank_chunks)
    return np.asarray(prompt_latency(table.prefill_alone, chunks, table.pipeline[:, None]).min(axis=(0, 1)))
