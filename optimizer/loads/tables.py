"""Times and bytes of every feasible engine shape for every flow, from the cost model, as arrays.

A step with prompts carries the share `carried` of the decodes: all of them under one token budget (vLLM, TensorRT-LLM),
none where prompts go first and alone (SGLang). What it lasts beyond the decode step that it carries is what prompts add
to the steps of others.

Data-parallel ranks are lanes of one engine that begin and end their steps together. Each has its part of the engine's
requests and of its token budget; a prompt keeps to one lane. Steps are those in which all lanes have as much to do, and
what prompts take of them is longer by as much as measured lanes are uneven (`serving.load.uneven_lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig, Role
from costmodel.host import EngineOverhead
from costmodel.memory import kv_bytes_peak_per_gpu, kv_bytes_per_request_per_gpu, kv_capacity_bytes
from costmodel.serving.load import uneven_lanes
from costmodel.serving.policy import Scheduler
from costmodel.step import EngineArrays, StepLoad, StepTime, engine_arrays, prompt_chunks, step_time
from costmodel.transfer import hand_over_cards
from costmodel.transformer import Transformer
from search_spaces.engines import load_serving_policy
from search_spaces.enumeration import Shape, engine_config
from search_spaces.problem import Problem

from .digest import digest_of
from .flows import Flows
from .pairing import Pairing, hand_over

FloatArray = NDArray[np.float64]

CARRIED = {Scheduler.TOKEN_BUDGET: 1.0, Scheduler.PREFILL_FIRST: 0.0}
"""Share of the decodes that a step with prompts carries [1]."""

REFERENCE_BATCH = 32.0
"""Decode attention is affine in requests x context; its slope is read between no context and this batch."""


@dataclass(frozen=True)
class Tables:
    """Everything the load matrix is made of. S shapes, B batch sizes, C token budgets, F flows.

    gpus, pipeline, ranks (S,): GPUs, pipeline stages and data-parallel ranks of one engine.
    uneven (S,): time of a prompt over that on evenly busy ranks, which all times of prompts have in them [1].
    usd_per_hour (S,): price of one engine. offer (S,): index of its offer.
    talks (S, S), domain (S,), group (3, S), pairing: who can hand KV blocks to whom, see `pairing.HandOver`.
    link (S,): scale-out bandwidth for one copy of a request's KV, which one data-parallel rank alone holds [byte/s].
    seqs (B,): batch sizes at which steps are priced; limits (L,): indices of those that an engine may be limited to;
    chunks (C,): token budgets; all of a whole engine.
    prefill_alone (S, C, F): time of the chunks of one prompt alone on a prefill engine, one after another [s].
    prefill_time (S, C, F): the same with one prompt on each of its ranks; with a single rank there is no difference.
    prefill_shared (S, C, F): what one prompt adds there to steps that prompts of its length fill [s].
    decode_base (S, B): decode step of a full batch without its KV reads [s].
    decode_alone (S,): decode step of one request over that of the smallest batch size, KV reads apart [1].
    attention_slope (S, F): what one running request of the flow adds to that step [s].
    kv_held (S, F): KV bytes per GPU that one running request holds on average [byte].
    kv_capacity (S, C): KV bytes per GPU that fit beside weights and activations [byte].
    kv_longest (S,): KV bytes per GPU of the longest request that an engine must accept [byte].
    mixed_base (S, B, C, F): step of what is carried of a full batch plus one prompt chunk of the flow on each rank, KV
    reads of decodes apart [s].
    mixed_alone (S, B, C, F): the same with a prompt on one rank only [s].
    chunk_count (S, B, C, F): such steps that the prompt needs [1].
    full_base (S, B, C): the same step when prompts fill the token budget [s]: no mixed step takes longer.
    kv_transferred (S, F): bytes that a prefill engine hands to a decode engine per request [byte].
    carried: share of the decodes that steps with prompts carry, 1 or 0 [1].
    """

    shapes: tuple[Shape, ...]
    offer: NDArray[np.int64]
    talks: NDArray[np.bool_]
    domain: NDArray[np.int64]
    group: NDArray[np.int64]
    pairing: Pairing
    gpus: FloatArray
    pipeline: FloatArray
    ranks: FloatArray
    uneven: FloatArray
    usd_per_hour: FloatArray
    link: FloatArray
    seqs: FloatArray
    limits: NDArray[np.int64]
    chunks: FloatArray
    prefill_alone: FloatArray
    prefill_time: FloatArray
    prefill_shared: FloatArray
    decode_base: FloatArray
    decode_alone: FloatArray
    attention_slope: FloatArray
    kv_held: FloatArray
    kv_capacity: FloatArray
    kv_longest: FloatArray
    mixed_base: FloatArray
    mixed_alone: FloatArray
    chunk_count: FloatArray
    full_base: FloatArray
    kv_transferred: FloatArray
    carried: float

    @cached_property
    def alike(self) -> str:
        """Digest of all of it but the prices."""
        return digest_of(self, ("usd_per_hour",))

    def limit_for(self, requests: float) -> int:
        """Index of the smallest batch limit of at least so many requests, or of the largest."""
        place = int(np.searchsorted(self.seqs[self.limits], requests))
        return int(self.limits[min(place, self.limits.size - 1)])

    def limits_below(self, seqs: int) -> list[int]:
        """Indices of the batch limits below another one, the smallest first."""
        return [int(limit) for limit in self.limits if limit < seqs]

    def limit_above(self, seqs: int, places: int) -> int:
        """Index of the batch limit so many places above another one, or of the largest."""
        place = int(np.searchsorted(self.limits, seqs)) + places
        return int(self.limits[min(place, self.limits.size - 1)])

    @property
    def links(self) -> FloatArray:
        """Scale-out bandwidth of all ranks of one engine, (S,) [byte/s]."""
        return np.asarray(self.link * self.ranks)

    @property
    def rank_chunks(self) -> FloatArray:
        """Token budgets of one data-parallel rank, (S, C) [token]."""
        return np.asarray(self.chunks / self.ranks[:, None])

    @property
    def roomy(self) -> NDArray[np.bool_]:
        """Token budgets beside which an engine has KV memory for the longest request, (S, C)."""
        return np.asarray((self.kv_capacity > 0.0) & (self.kv_capacity >= self.kv_longest[:, None]))


def batch_sizes(problem: Problem) -> FloatArray:
    """Batch sizes at which steps are priced: the batch limits, and powers of two below the largest of them.

    A limit that is never reached says nothing of the steps: those of few requests are priced whatever the limits are.
    """
    limits = problem.space.max_num_seqs
    powers = (1 << power for power in range(max(limits).bit_length()))
    return np.array(sorted({*limits, *powers}), dtype=np.float64)


def prefill_latency(
    model: Transformer, engines: EngineArrays, flows: Flows, budget: FloatArray, prompts: FloatArray
) -> FloatArray:
    """Time of so many prompts, one per data-parallel rank at most, on otherwise idle engines [s], shape (S, C, F).

    budget (S, C): token budget of each rank [token]; prompts (S,): of each engine [1].
    """
    count, size, past = prompt_chunks(flows.new_tokens, flows.past_tokens, budget[:, :, None])
    rows = count.shape[0]
    load = StepLoad(
        prefill_requests=prompts[:, None],
        prefill_tokens=size.reshape(rows, -1),
        prefill_past=past.reshape(rows, -1),
        decode_requests=np.zeros((1, 1)),
        decode_context=np.zeros((1, 1)),
    )
    return np.asarray(count * step_time(model, engines, load).total.reshape(count.shape))


def prefill_share(
    model: Transformer, engines: EngineArrays, flows: Flows, budget: FloatArray, ranks: FloatArray
) -> FloatArray:
    """Time of one prompt in steps whose token budget prompts of its length fill [s], shape (S, C, F).

    new / budget of the step that `budget` (S, C) tokens of such prompts, or of parts of one, take on every rank. The
    attention is that of each prompt by itself, as the simulator counts it.
    """
    size = np.minimum(flows.new_tokens, budget[:, :, None])
    rows = size.shape[0]
    past = (flows.past_tokens + (flows.new_tokens - size) / 2.0).reshape(rows, -1)
    together = (budget[:, :, None] / size).reshape(rows, -1)
    zero = np.zeros((1, 1))

    def step(prompts: FloatArray) -> StepTime:
        return step_time(model, engines, StepLoad(ranks[:, None] * prompts, size.reshape(rows, -1), past, zero, zero))

    full, single = step(together), step(np.ones_like(together))
    whole = full.total - full.attention_prefill + single.attention_prefill * together
    return np.asarray(whole.reshape(size.shape) * (flows.new_tokens / budget[:, :, None]))


def decode_step(model: Transformer, engines: EngineArrays, requests: FloatArray, context: FloatArray) -> FloatArray:
    """Total and attention time of decode steps, stacked on a new first axis [s]."""
    zero = np.zeros((1, 1))
    load = StepLoad(zero, zero, zero, decode_requests=requests, decode_context=context)
    time = step_time(model, engines, load)
    return np.stack(np.broadcast_arrays(time.total, time.attention_decode))


def mixed_step(
    problem: Problem, engines: EngineArrays, flows: Flows, prompts: FloatArray, carried: float
) -> tuple[FloatArray, FloatArray]:
    """Chunked-prefill steps: mean time without the decodes' KV reads, and number of steps, shape (S, B, C, F).

    All chunks of a prompt but its last fill the token budget that the decodes leave. prompts (S, 1): in a step, one per
    data-parallel rank at most [1]; carried: share of the decodes in it [1].
    """
    pipeline, ranks = (value[:, :, None, None] for value in (engines.pipeline, engines.data))
    seqs, chunks = batch_sizes(problem), np.array(problem.space.max_num_batched_tokens)
    batch = carried * seqs[None, :, None, None] / pipeline
    room = np.maximum((chunks[None, None, :, None] - batch) / ranks, 1.0)
    count = np.ceil(flows.new_tokens / room)
    before = (count - 1.0) * room

    def flat(values: FloatArray) -> FloatArray:
        return np.broadcast_to(values, count.shape).reshape(count.shape[0], -1)

    def step(size: FloatArray, past: FloatArray) -> FloatArray:
        each = flat(prompts[:, :, None, None])
        load = StepLoad(each, flat(size), flat(past), flat(batch), np.zeros((1, 1)))
        return np.asarray(step_time(problem.model, engines, load).total).reshape(count.shape)

    last = step(flows.new_tokens - before, flows.past_tokens + before)
    if not before.any():
        return last, count
    full = step(room, flows.past_tokens + np.maximum(before - room, 0.0) / 2.0)
    return ((count - 1.0) * full + last) / count, count


def full_step(problem: Problem, engines: EngineArrays, flows: Flows, carried: float) -> FloatArray:
    """Mixed steps whose token budget prompts use up, without the decodes' KV reads [s], shape (S, B, C)."""
    pipeline, ranks = (value[:, :, None] for value in (engines.pipeline, engines.data))
    seqs, chunks = batch_sizes(problem), np.array(problem.space.max_num_batched_tokens)
    batch = np.broadcast_to(carried * seqs[None, :, None] / pipeline, (pipeline.shape[0], seqs.size, chunks.size))
    room = np.maximum((chunks - batch) / ranks, 1.0)
    tokens = flows.share * flows.new_tokens
    past = float(tokens @ (flows.past_tokens + flows.new_tokens / 2.0) / tokens.sum())
    rows = batch.shape[0]
    load = StepLoad(
        prefill_requests=np.broadcast_to(ranks, batch.shape).reshape(rows, -1),
        prefill_tokens=room.reshape(rows, -1),
        prefill_past=np.full((1, 1), past),
        decode_requests=batch.reshape(rows, -1),
        decode_context=np.zeros((1, 1)),
    )
    return np.asarray(step_time(problem.model, engines, load).total).reshape(batch.shape)


def mixed_steps(
    problem: Problem, engines: EngineArrays, flows: Flows, base: FloatArray, uneven: FloatArray, *, carried: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """`mixed_base`, `chunk_count` and `full_base` of `Tables`.

    base (S, B): decode steps that are carried [s], to which prompts add `uneven` (S,) times as much as on evenly busy
    ranks.
    """

    def unevenly(steps: FloatArray) -> FloatArray:
        apart = (..., *(None,) * (steps.ndim - base.ndim))
        longer = uneven[:, None][apart]
        return np.asarray(np.where(longer > 1.0, base[apart] + (steps - base[apart]) * longer, steps))

    mixed, count = mixed_step(problem, engines, flows, engines.data, carried)
    mixed = unevenly(mixed)
    return mixed, count, np.maximum(unevenly(full_step(problem, engines, flows, carried)), mixed.max(axis=3))


def mixed_steps_alone(
    problem: Problem,
    configs: Sequence[EngineConfig],
    overhead: EngineOverhead,
    flows: Flows,
    mixed: FloatArray,
    *,
    carried: float,
) -> FloatArray:
    """`mixed_alone` of `Tables`: `mixed` (S, B, C, F) but for engines of several data-parallel ranks."""
    alone, many = mixed.copy(), [index for index, config in enumerate(configs) if config.parallelism.data > 1]
    if many:
        engines = engine_arrays(problem.model, [configs[index] for index in many], overhead)
        alone[many] = mixed_step(problem, engines, flows, np.ones_like(engines.data), carried)[0]
    return alone


def kv_capacities(problem: Problem, shapes: tuple[Shape, ...]) -> FloatArray:
    """KV bytes per GPU that fit beside weights and activations of the largest batch [byte], shape (S, C)."""
    seqs, chunks = problem.space.max_num_seqs[-1], problem.space.max_num_batched_tokens
    capacity = [
        kv_capacity_bytes(problem.model, engine_config(problem, shape, Role.COLOCATED, seqs, chunk))
        for shape in shapes
        for chunk in chunks
    ]
    return np.array(capacity, dtype=np.float64).reshape(len(shapes), len(chunks))


def build_tables(problem: Problem, flows: Flows, shapes: tuple[Shape, ...], overhead: EngineOverhead) -> Tables:
    """Evaluate the cost model once for everything that the load matrix needs."""
    model, space = problem.model, problem.space
    seqs = batch_sizes(problem)
    chunks = np.array(space.max_num_batched_tokens, dtype=np.float64)
    configs = [engine_config(problem, shape, Role.COLOCATED, int(seqs[-1]), int(chunks[-1])) for shape in shapes]
    engines = engine_arrays(model, configs, overhead)
    pipeline = np.array([shape.parallelism.pipeline for shape in shapes], dtype=np.float64)
    ranks = np.array([shape.parallelism.data for shape in shapes], dtype=np.float64)
    offers = [problem.offers[shape.offer] for shape in shapes]
    pairs = hand_over(problem, shapes)
    handed = {dtype: np.asarray(model.kv_bytes(flows.isl, dtype), dtype=np.float64) for dtype in problem.kv_dtypes}
    gpus = np.array([shape.parallelism.gpus for shape in shapes], dtype=np.float64)
    cards = np.array([hand_over_cards(model, config, flows.isl, flows.share) for config in configs])
    budgets = chunks / ranks[:, None]
    reference = np.full((1, flows.isl.size), REFERENCE_BATCH)
    loaded = decode_step(model, engines, reference, flows.mean_context[None, :])[1]
    empty = decode_step(model, engines, reference, np.zeros((1, flows.isl.size)))[1]
    policy = load_serving_policy(problem.engine)
    uneven, carried = uneven_lanes(policy.lane_balance, ranks), CARRIED[policy.scheduler]
    base = decode_step(model, engines, seqs[None, :] / pipeline[:, None], np.zeros((1, 1)))[0]
    mixed, count, full = mixed_steps(problem, engines, flows, carried * base, uneven, carried=carried)
    held = [kv_bytes_per_request_per_gpu(model, config, flows.isl, flows.osl) for config in configs]
    return Tables(
        shapes=shapes,
        offer=np.array([shape.offer for shape in shapes], dtype=np.int64),
        talks=pairs.talks,
        domain=pairs.domain,
        group=pairs.group,
        pairing=pairs.pairing,
        gpus=gpus,
        pipeline=pipeline,
        ranks=ranks,
        uneven=uneven,
        usd_per_hour=gpus * np.array([offer.usd_per_hour for offer in offers]),
        link=cards * np.array([offer.accelerator.scale_out.bandwidth for offer in offers]),
        seqs=seqs,
        limits=np.searchsorted(seqs, space.max_num_seqs).astype(np.int64),
        chunks=chunks,
        prefill_alone=prefill_latency(model, engines, flows, budgets, np.ones_like(ranks)),
        prefill_time=prefill_latency(model, engines, flows, budgets, ranks) * uneven[:, None, None],
        prefill_shared=prefill_share(model, engines, flows, budgets, ranks) * uneven[:, None, None],
        decode_base=base,
        decode_alone=decode_step(model, engines, np.ones((1, 1)), np.zeros((1, 1)))[0, :, 0] / base[:, 0],
        attention_slope=(loaded - empty) / REFERENCE_BATCH / pipeline[:, None],
        kv_held=np.array(held).reshape(len(shapes), flows.isl.size),
        kv_capacity=kv_capacities(problem, shapes),
        kv_longest=np.array([kv_bytes_peak_per_gpu(model, one, float(one.max_model_len)) for one in configs]),
        mixed_base=mixed,
        mixed_alone=mixed_steps_alone(problem, configs, overhead, flows, mixed, carried=carried),
        chunk_count=count,
        full_base=full,
        kv_transferred=np.array([handed[shape.kv_dtype] for shape in shapes]).reshape(len(shapes), flows.isl.size),
        carried=carried,
    )
