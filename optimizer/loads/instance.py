"""An instance of the search: the problem, its flows and the engine table, computed once.

The flows are the demand as a search sees it, one per SLO class and length bucket.

The table has times and bytes of every feasible engine shape for every flow, from the cost model, as arrays.

A step with prompts carries the share `carried` of the decodes: all of them under one token budget (vLLM, TensorRT-LLM),
none where prompts go first and alone (SGLang). What it lasts beyond the decode step that it carries is what prompts add
to the steps of others.

Where tokens are drafted, times of steps that carry decodes are those of token steps (`costmodel.engine.Speculation`).

Data-parallel ranks are lanes of one engine that begin and end their steps together. Each has its part of the engine's
requests and of its token budget; a prompt keeps to one lane. Steps are those in which all lanes have as much to do. A
step ends with the longest prompt in it, and a prompt that finds a lane free begins when the step of the others has
ended.

The tables of an instance can be made as slow, or as quick, as measurements say that steps can be. Prompts
alone take the interval of an engine step's time; steps that decode take that of the measured TPOT, which also has the
scheduler and the host in it. Both are read as lognormal around the prediction, so that a 90 % interval [low, high] puts
the quantile p at high^(z_p / z_95) above the median and at low^(z_p / z_05) below it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.engine import EngineConfig, Role, ServingPolicy, with_draft
from costmodel.engine_arrays import EngineArrays, engine_arrays, first_token_factor
from costmodel.memory import (
    TRANSFER_EFFICIENCY,
    hand_over_cards,
    kv_bytes_peak_per_gpu,
    kv_bytes_per_request_per_gpu,
    kv_capacity_by_limit,
)
from costmodel.metric import Metric
from costmodel.prefix_cache import Reuse
from costmodel.step import StepLoad, chunked_steps, step_time
from costmodel.transformer import Transformer
from costmodel.workload import Trace
from search_spaces.engines import load_serving_policy
from search_spaces.enumeration import Enumeration, Shape, end_of, engine_config, enumerate_shapes, refused_pair
from search_spaces.problem import Problem, whole_limit
from search_spaces.serving_error import error_table, interval_factors, step_interval, stratum_of

ROLES = (Role.PREFILL, Role.DECODE, Role.COLOCATED)
PREFILL, DECODE, COLOCATED = range(3)
"""Index of each role in ROLES."""


ENDS = (0.05, 0.95)
"""Quantiles at the ends of a 90 % interval."""


# --- the flows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flows:
    """The flows of a problem, one per SLO class and length bucket; every array has shape (flows,).

    slo: index of the SLO class; isl, osl [token]; share of all requests [1]; rate [1/s];
    new_tokens: prompt tokens to compute after prefix hits; past_tokens: those found in the cache;
    limits: by metric that some class limits, (flows,) [s];
    reuse: where memory decides what is found (`history` by flow, which the past tokens have in them). Then each flow
    with a history has another, of no share itself, for those of its requests whose history is gone. missed (flows,):
    index of that one, or of the flow itself; source (flows,): the way back.
    """

    slo: IntArray
    isl: FloatArray
    osl: FloatArray
    share: FloatArray
    rate: FloatArray
    new_tokens: FloatArray
    past_tokens: FloatArray
    arrival_scv: float
    missed: IntArray
    source: IntArray
    limits: Mapping[Metric, FloatArray]
    reuse: Reuse | None = None

    @cached_property
    def alike(self) -> str:
        """Digest of the lengths and shares; it does not depend on rates or limits."""
        digest = digest_of(self, ("slo", "rate"))
        return digest if self.reuse is None else digest + digest_of(self.reuse) + digest_of(self.reuse.pause)

    @property
    def shared(self) -> float:
        """Tokens that all prompts begin with [token]."""
        return 0.0 if self.reuse is None else self.reuse.shared

    @property
    def asked(self) -> int:
        """Number of flows that requests come as; flows for requests whose history is no longer cached follow them."""
        return int(np.count_nonzero(self.share > 0.0))

    def with_misses(self, rate: FloatArray, chance: FloatArray) -> FloatArray:
        """Rates (flows,) split into requests that find their history, with a chance (flows,), and others [1/s]."""
        miss_rate = np.where(self.missed != np.arange(rate.size), rate * (1.0 - chance), 0.0)
        return np.asarray(rate - miss_rate + np.bincount(self.missed, miss_rate, rate.size))

    def take(self, members: BoolArray) -> Flows:
        """Some of the flows, each with the flow for its cache misses; (flows,)."""
        place = np.cumsum(members) - 1
        arrays = {name: getattr(self, name)[members] for name in BY_FLOW}
        arrays |= {name: place[getattr(self, name)[members]] for name in ("missed", "source")}
        limits = {metric: limit[members] for metric, limit in self.limits.items()}
        reuse = None if self.reuse is None else replace(self.reuse, history=self.reuse.history[members])
        return replace(self, limits=limits, reuse=reuse, **arrays)

    @cached_property
    def whole(self) -> FloatArray:
        """How long a request may take as a whole, (flows,) [s]; infinity where only its tokens are limited."""
        return whole_limit(self.limits, self.osl)

    @cached_property
    def ttft(self) -> FloatArray:
        """The most that its first token may take, (flows,) [s]."""
        return np.minimum(self.limits.get(Metric.TTFT, np.inf), self.whole)

    @cached_property
    def tpot(self) -> FloatArray:
        """The most that its later tokens may take on average, (flows,) [s]."""
        return np.minimum(self.limits.get(Metric.TPOT, np.inf), self.whole / np.maximum(self.gaps, 1.0))

    @property
    def gaps(self) -> FloatArray:
        """Gaps between the tokens of a request, OSL - 1 (flows,) [1]."""
        return np.maximum(self.osl - 1.0, 0.0)

    @property
    def longest(self) -> FloatArray:
        """How long a request may take within its limits, (flows,) [s]."""
        return np.minimum(self.ttft + self.osl * self.tpot, self.whole)

    @property
    def mean_context(self) -> FloatArray:
        """Mean context of a request while it generates, isl + osl / 2 [token]."""
        return self.isl + self.osl / 2.0

    def chunks_of(self, budget: FloatArray) -> FloatArray:
        """Steps that a prompt by itself takes with token budgets (...,) [token], (..., flows) [1]."""
        return np.asarray(np.ceil(self.new_tokens / budget[..., None]))

    @property
    def peakedness(self) -> float:
        """Variance over mean of the requests that run at once: 1 for Poisson arrivals, more for bursty ones [1].

        max(1, (ca2 + 1) / 2), the limit of many (`costmodel.queues.waits.peakedness`).
        """
        return max(1.0, (self.arrival_scv + 1.0) / 2.0)


def digest_of(record: Any, leave_out: Iterable[str] = ()) -> str:
    """Digest of the arrays and numbers of a dataclass, except those that are left out; equal only for equal inputs."""
    digest = hashlib.sha256()
    for item in fields(record):
        value = getattr(record, item.name)
        if item.name not in leave_out and isinstance(value, np.ndarray | float | int):
            array = np.asarray(value)
            digest.update(f"{item.name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


def make_flows(problem: Problem) -> Flows:
    """Cross the SLO classes with the length buckets."""
    load = problem.workload
    classes, buckets = len(problem.slos), load.isl.size
    slo = np.repeat(np.arange(classes), buckets)
    isl, osl = np.tile(load.isl, classes), np.tile(load.osl, classes)
    share = np.concatenate([slo_class.share * load.share for slo_class in problem.slos])
    keep, past = share > 0.0, np.tile(load.reusable_tokens, classes)
    flows = Flows(
        slo=slo[keep],
        isl=isl[keep],
        osl=osl[keep],
        share=share[keep],
        rate=(share * load.request_rate)[keep],
        new_tokens=np.maximum(isl - past, 1.0)[keep],
        past_tokens=past[keep],
        arrival_scv=load.burstiness**2,
        missed=np.arange(int(keep.sum())),
        source=np.arange(int(keep.sum())),
        limits={
            metric: np.array([item.limit(metric) for item in problem.slos])[slo][keep]
            for metric in Metric
            if any(metric in item.limits for item in problem.slos)
        },
    )
    if load.reuse is None:
        return flows
    return _with_misses(replace(flows, reuse=replace(load.reuse, history=np.tile(load.reuse.history, classes)[keep])))


BY_FLOW = ("slo", "isl", "osl", "share", "rate", "new_tokens", "past_tokens")
"""Fields with a value for each flow, without those that only flows with a history have."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of one run; flow (requests,): index of each request's flow; gap_edges: as `simulate` takes them [s]."""

    trace: Trace
    flow: IntArray
    gap_edges: tuple[float, ...] = ()


def _with_misses(flows: Flows) -> Flows:
    """The flows, followed by those for requests whose history is no longer cached."""
    assert flows.reuse is not None  # noqa: S101 - the caller looked
    size, history = flows.isl.size, flows.reuse.history
    of = np.flatnonzero(history > 0.0)
    source = np.concatenate([np.arange(size), of])
    miss_flow = np.arange(source.size)
    miss_flow[of] = size + np.arange(of.size)
    there = np.where(np.arange(source.size) < size, 1.0, 0.0)
    arrays = {name: getattr(flows, name)[source] for name in BY_FLOW}
    arrays |= {name: arrays[name] * there for name in ("share", "rate")}
    lost_tokens = history[source] * (1.0 - there)
    arrays |= {"new_tokens": arrays["new_tokens"] + lost_tokens, "past_tokens": arrays["past_tokens"] - lost_tokens}
    limits = {metric: limit[source] for metric, limit in flows.limits.items()}
    reuse = replace(flows.reuse, history=history[source] * there)
    return replace(flows, limits=limits, reuse=reuse, missed=miss_flow, source=source, **arrays)


# --- what engines take for flows --------------------------------------------------------------------------------------

LINK_UTILIZATION = 0.7
"""Busy share of a network card that hand-overs may plan on [1]; assumed: the transfer time counted is unloaded."""


PROMPT_STEPS = ("prefill_alone", "prefill_time", "prefill_shared")
"""Fields with step times of prefill engines; the first axis is engines, as in all fields."""
TOKEN_STEPS = ("decode_base", "attention_slope", "mixed_alone", "mixed_base", "full_base")
"""Fields with step times of engines that generate tokens: decode and colocated ones."""


TABLES_BY_FLOW = (
    "prefill_alone",
    "prefill_time",
    "prefill_shared",
    "attention_slope",
    "kv_held",
    "mixed_alone",
    "mixed_base",
    "chunk_count",
    "kv_transferred",
)
"""Fields whose last axis is the flows."""


class Resource(StrEnum):
    """A resource that an engine can run out of."""

    TIME = "time"
    SLOTS = "slots"
    KV_MEMORY = "kv_memory"
    ATTENTION_TIME = "attention_time"
    LINK = "link"


@dataclass(frozen=True)
class EngineTable:
    """Times, memory and prices of engines for every flow. S shapes, B batch sizes, C token budgets, F flows.

    gpus, pipeline, ranks (S,): GPUs, pipeline stages and data-parallel ranks of one engine.
    first_token (S,): time until the first token of a prompt over that of its steps on an engine that decodes too
    (`Accelerator.in_engine`) [1].
    usd_per_hour (S,): least price of one engine, of owned GPUs where there are any. offer (S,): index of its offer.
    talks (S, S): whether a prefill engine of the row's shape can hand over to a decode engine of the column's;
    domain (S,): accelerators with one layout of KV blocks, in one precision.
    link (S,): scale-out bandwidth that one copy of a request's KV reaches (`TRANSFER_EFFICIENCY`); one data-parallel
    rank alone holds it [byte/s].
    seqs (B,): batch sizes at which steps are priced; limits (L,): indices of those that an engine may be limited to;
    chunks (C,): token budgets; all of a whole engine.
    prefill_alone (S, C, F): time of the chunks of one prompt alone on a prefill engine, one after another [s].
    prefill_time (S, C, F): the same with one prompt on each of its ranks; with a single rank there is no difference.
    prefill_shared (S, C, F): what one prompt adds there to steps that prompts of its length fill [s].
    decode_base (S, B): decode step of a full batch without its KV reads [s].
    decode_alone (S,): decode step of one request over that of the smallest batch size, KV reads apart [1].
    attention_slope (S, F): what one running request of the flow adds to that step [s].
    kv_held (S, F): KV bytes per GPU that one running request holds on average [byte].
    kv_capacity (S, B, C): KV bytes per GPU that fit beside weights and activations [byte].
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
    offer: IntArray
    talks: BoolArray
    domain: IntArray
    gpus: FloatArray
    pipeline: FloatArray
    ranks: FloatArray
    first_token: FloatArray
    usd_per_hour: FloatArray
    link: FloatArray
    seqs: FloatArray
    limits: IntArray
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
        """Digest of everything except prices."""
        return digest_of(self, ("usd_per_hour",))

    @cached_property
    def group(self) -> IntArray:
        """For each role, groups of shapes that can hand over to the same shapes, (3, S); colocated ones have none."""
        sends, takes = (np.unique(self.talks, axis=axis, return_inverse=True)[1].ravel() for axis in (0, 1))
        return np.stack([sends, takes, self.domain])

    @property
    def hands_over(self) -> BoolArray:
        """Whether prefill engines of one group can hand over to decode engines of another, (groups, groups)."""
        senders, takers = (np.unique(group, return_index=True)[1] for group in self.group[:2])
        return self.talks[np.ix_(senders, takers)]

    def with_prices(self, usd_per_gpu: FloatArray) -> EngineTable:
        """The table with other GPU prices, (offers,) [$/h]."""
        return replace(self, usd_per_hour=self.gpus * usd_per_gpu[self.offer])

    def first_token_of(self, role: Role, shape: int) -> float:
        """Time until the first token of a prompt over that of its steps, on an engine in a role [1]."""
        return 1.0 if role is Role.PREFILL else float(self.first_token[shape])

    @cached_property
    def shared_limits(self) -> BoolArray:
        """Batch limits that data ranks share evenly, as each is told its own; all of them if none is, (S, limits)."""
        even = self.seqs[self.limits] % self.ranks[:, None] == 0
        return np.asarray(even | ~even.any(axis=1, keepdims=True))

    def limits_of(self, shape: int) -> IntArray:
        """Indices of the batch limits of one shape, the smallest first."""
        return np.asarray(self.limits[self.shared_limits[shape]])

    def limits_below(self, shape: int, seqs: int) -> list[int]:
        """The same below another one."""
        return [int(limit) for limit in self.limits_of(shape) if limit < seqs]

    @cached_property
    def verified(self) -> IntArray:
        """Tokens of a decoding request in a step, drafted ones among them, (S,) [token]."""
        return np.array([1 + shape.speculative_tokens for shape in self.shapes], dtype=np.int64)

    @property
    def links(self) -> FloatArray:
        """Scale-out bandwidth of all ranks of one engine, (S,) [byte/s]."""
        return np.asarray(self.link * self.ranks)

    @property
    def rank_chunks(self) -> FloatArray:
        """Token budgets of one data-parallel rank, (S, C) [token]."""
        return np.asarray(self.chunks / self.ranks[:, None])

    @property
    def roomy(self) -> BoolArray:
        """Batch limits and token budgets that leave KV memory for the longest request, (S, B, C)."""
        return np.asarray((self.kv_capacity > 0.0) & (self.kv_capacity >= self.kv_longest[:, None, None]))


def batch_sizes(problem: Problem) -> FloatArray:
    """Batch sizes at which steps are priced: the batch limits, and powers of two below the largest of them.

    A limit that is never reached says nothing of the steps: those of few requests are priced whatever the limits are.
    """
    limits = problem.space.max_num_seqs
    powers = (1 << power for power in range(max(limits).bit_length()))
    return np.array(sorted({*limits, *powers}), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of S engines with F flows. seqs (B,), chunks (C,), ranks (S,), carried: as in the table."""

    model: Transformer
    engines: EngineArrays
    flows: Flows
    seqs: FloatArray
    chunks: FloatArray
    ranks: FloatArray
    carried: float

    def times(
        self,
        prompts: ArrayLike = 0.0,
        tokens: ArrayLike = 0.0,
        past: ArrayLike = 0.0,
        decodes: ArrayLike = 0.0,
        context: ArrayLike = 0.0,
    ) -> list[FloatArray]:
        """Whole steps, and the attention of their prompts and of their decodes [s], each (S, ...); see `StepLoad`.

        The arrays broadcast against each other, engines first; those of one point per engine, or one in all, stay so.
        """
        loads = [np.asarray(values, dtype=np.float64) for values in (prompts, tokens, past, decodes, context)]
        points = np.broadcast_shapes(*(values.shape for values in loads))

        def flat(values: FloatArray) -> FloatArray:
            rows = values.shape[0] if values.ndim == len(points) else 1
            if values.size == rows:
                return values.reshape(rows, 1)
            return np.broadcast_to(values, points).reshape(points[0], -1)

        time = step_time(self.model, self.engines, StepLoad(*map(flat, loads)))
        times = time.total, time.attention_prefill, time.attention_decode
        return [values.reshape(self.ranks.size, *points[1:]) for values in times]

    def prompts(self, prompts: FloatArray) -> FloatArray:
        """Time of so many prompts (S,), one per rank at most, on otherwise idle engines [s], (S, C, F)."""
        budget = (self.chunks / self.ranks[:, None])[:, :, None]
        mean, count = self.in_chunks(budget, prompts[:, None, None])
        return np.asarray(count * mean)

    def in_chunks(
        self, room: FloatArray, prompts: FloatArray, decodes: FloatArray | float = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """Steps of so many prompts, one per rank at most, beside decodes: mean time [s], and number, (S, ..., F).

        room (S, ..., 1): for each prompt in a step [token]; decodes: without their KV reads.
        """
        new, past = self.flows.new_tokens, self.flows.past_tokens
        return chunked_steps(new, past, room, lambda new, past: self.times(prompts, new, past, decodes)[0])

    def shared(self) -> FloatArray:
        """Time of one prompt in steps whose token budget prompts of its length fill on every rank [s], (S, C, F).

        new / budget of the step that `budget` tokens of such prompts, or of parts of one, take. The attention is that
        of each prompt by itself, as the simulator counts it.
        """
        new, ranks = self.flows.new_tokens, self.ranks[:, None, None]
        budget = self.chunks[:, None] / ranks
        size = np.minimum(new, budget)
        past, together = self.flows.past_tokens + (new - size) / 2.0, budget / size
        total, attention, _ = self.times(ranks * together, size, past)
        single = self.times(ranks, size, past)[1]
        return np.asarray((total - attention + single * together) * (new / budget))

    @property
    def carried_decodes(self) -> FloatArray:
        """Decodes in a step of each batch size that prompts join [1], (S, B, 1)."""
        return np.asarray(self.carried * self.seqs[:, None] / self.engines.pipeline[:, :, None])

    @property
    def room(self) -> FloatArray:
        """Token budget that these decodes leave to the prompts of one rank [token], (S, B, C)."""
        decode_tokens = self.carried_decodes * self.engines.verified[:, :, None]
        return np.asarray(np.maximum((self.chunks - decode_tokens) / self.ranks[:, None, None], 1.0))

    def by_token(self, times: FloatArray, decodes: FloatArray) -> FloatArray:
        """Token steps of steps M that carry decodes which alone take T: M - T (1 - 1 / E), engines first [s]."""
        saved = 1.0 - 1.0 / self.engines.tokens_per_step[:, 0]
        return np.asarray(times - decodes * saved[(..., *(None,) * (decodes.ndim - 1))])

    def mixed(self, prompts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Chunked-prefill steps: mean time without the decodes' KV reads [s], and number of steps, (S, B, C, F).

        prompts (S,): in a step, one per rank at most [1].
        """
        return self.in_chunks(self.room[..., None], prompts[:, None, None, None], self.carried_decodes[..., None])

    def full(self) -> FloatArray:
        """Mixed steps whose token budget prompts use up, without the decodes' KV reads [s], (S, B, C)."""
        tokens = self.flows.share * self.flows.new_tokens
        past = float(tokens @ (self.flows.past_tokens + self.flows.new_tokens / 2.0) / tokens.sum())
        return self.times(self.ranks[:, None, None], self.room, past, self.carried_decodes)[0]


def build_table(problem: Problem, flows: Flows, shapes: tuple[Shape, ...], policy: ServingPolicy) -> EngineTable:
    """Evaluate the cost model once for everything that a search needs of engines."""
    model, space = problem.model, problem.space
    seqs, chunks = batch_sizes(problem), np.array(space.max_num_batched_tokens, dtype=np.float64)
    configs = [engine_config(problem, shape, Role.COLOCATED, int(seqs[-1]), int(chunks[-1])) for shape in shapes]
    gpus, pipeline, ranks = (
        np.array([getattr(shape.parallelism, name) for shape in shapes], dtype=np.float64)
        for name in ("gpus", "pipeline", "data")
    )
    carried_share = 0.0 if policy.scheduler.exclusive_prefill else 1.0  # of the decodes, in steps with prompts
    steps = _Steps(model, engine_arrays(model, configs, policy.overhead), flows, seqs, chunks, ranks, carried_share)
    whole = steps.times(decodes=seqs / pipeline[:, None])[0]
    base = steps.by_token(whole, whole)
    largest = np.full((1, flows.isl.size), seqs[-1])  # every rank and stage has its part of such a batch
    with_context, without_context = (
        steps.times(decodes=largest, context=context)[2] for context in (flows.mean_context, 0.0)
    )
    slope = steps.by_token(with_context - without_context, with_context - without_context)

    carried_decodes = carried_share * whole
    mixed_steps, count = steps.mixed(ranks)
    mixed_steps = steps.by_token(mixed_steps, carried_decodes[..., None, None])
    alone = mixed_steps
    if (ranks > 1.0).any():
        alone = steps.by_token(steps.mixed(np.ones_like(ranks))[0], carried_decodes[..., None, None])
    full = steps.by_token(steps.full(), carried_decodes[..., None])
    prefill_configs = [replace(config, role=Role.PREFILL) for config in configs]
    prefills = replace(steps, engines=engine_arrays(model, prefill_configs, policy.overhead))
    talks, domain = hand_over(problem, shapes)
    offers = [problem.offers[shape.offer] for shape in shapes]
    cards = np.array([hand_over_cards(model, config, flows.isl, flows.share) for config in configs])
    kv_capacity = [
        kv_capacity_by_limit(model, replace(config, max_num_batched_tokens=chunk), seqs)
        for config in configs
        for chunk in space.max_num_batched_tokens
    ]
    kv_held = [kv_bytes_per_request_per_gpu(model, config, flows.isl, flows.osl) for config in configs]
    kv_transferred = [with_draft(model, config.speculation).kv_bytes(flows.isl, config.kv_dtype) for config in configs]
    return EngineTable(
        shapes=shapes,
        offer=np.array([shape.offer for shape in shapes], dtype=np.int64),
        talks=talks,
        domain=domain,
        gpus=gpus,
        pipeline=pipeline,
        ranks=ranks,
        first_token=np.array([first_token_factor(model, config.accelerator, config.role) for config in configs]),
        usd_per_hour=gpus * np.array([offer.least_usd_per_hour for offer in offers]),
        link=cards * TRANSFER_EFFICIENCY * np.array([offer.accelerator.scale_out.bandwidth for offer in offers]),
        seqs=seqs,
        limits=np.searchsorted(seqs, space.max_num_seqs).astype(np.int64),
        chunks=chunks,
        prefill_alone=prefills.prompts(np.ones_like(ranks)),
        prefill_time=prefills.prompts(ranks),
        prefill_shared=prefills.shared(),
        decode_base=base,
        decode_alone=steps.times(decodes=np.ones((1, 1)))[0][:, 0] / whole[:, 0],
        attention_slope=slope / seqs[-1] / pipeline[:, None],
        kv_held=np.array(kv_held).reshape(len(shapes), flows.isl.size),
        kv_capacity=np.array(kv_capacity).reshape(len(shapes), chunks.size, seqs.size).swapaxes(1, 2),
        kv_longest=np.array([kv_bytes_peak_per_gpu(model, config, float(config.max_model_len)) for config in configs]),
        mixed_base=mixed_steps,
        mixed_alone=alone,
        chunk_count=count,
        full_base=np.maximum(full, mixed_steps.max(axis=3)),
        kv_transferred=np.array(kv_transferred, dtype=np.float64).reshape(len(shapes), flows.isl.size),
        carried=carried_share,
    )


def hand_over(problem: Problem, shapes: Sequence[Shape]) -> tuple[BoolArray, IntArray]:
    """Which of S shapes can hand KV blocks to which: talks (S, S) and domain (S,), see `EngineTable`."""
    ends = [end_of(problem, shape) for shape in shapes]
    distinct = list(dict.fromkeys(ends))
    refusals = [[refused_pair(problem, sender, taker) for taker in distinct] for sender in distinct]
    between = np.array([[ruling is None for ruling in row] for row in refusals], dtype=np.bool_)
    families = [(end.kv_domain, end.weight_dtype, end.kv_dtype, end.speculative_tokens) for end in distinct]
    family = np.array([sorted(set(families)).index(own) for own in families], dtype=np.int64)
    index = np.array([distinct.index(end) for end in ends], dtype=np.int64)
    return between[np.ix_(index, index)], family[index]


def prompt_latency(latency: FloatArray, chunks: FloatArray, stages: FloatArray) -> FloatArray:
    """Time from the start of a prompt to its end on an otherwise idle prefill engine [s], (engines, flows).

    latency (engines, flows): of its n `chunks` (engines, flows) one after another. In a pipeline of k stages the next
    chunk enters when the one before has left the first stage: n steps of t / k, and the last one's way through the
    other stages (engines,). Any axes may stand for the engines.
    """
    deep = stages[..., None]
    return np.asarray(latency / deep * (1.0 + (deep - 1.0) / chunks))


# --- the instance -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A problem with everything that a search computes from it once.

    policy: of its engine, with the user's host times; quantile: of the step times in the tables [1], 0.5: as expected.
    """

    problem: Problem
    flows: Flows
    enumeration: Enumeration
    tables: EngineTable
    policy: ServingPolicy
    quantile: float = 0.5

    @cached_property
    def on_slow_gpus(self) -> Instance:
        """The instance with step times at the slow end of the error bars; itself if it is at least as slow."""
        return at_quantile(self, max(self.quantile, ENDS[1]))


def make_instance(problem: Problem) -> Instance:
    """Enumerate the feasible engine shapes and evaluate the cost model for each of them and every flow."""
    flows, enumeration = make_flows(problem), enumerate_shapes(problem)
    policy = load_serving_policy(problem.engine, problem.engine_changes)
    return Instance(problem, flows, enumeration, build_table(problem, flows, enumeration.shapes, policy), policy)


def at_volume(instance: Instance, volume: float) -> Instance:
    """The same instance with every rate multiplied by `volume`."""
    return replace(instance, flows=replace(instance.flows, rate=instance.flows.rate * volume))


def step_intervals(problem: Problem, config: EngineConfig) -> tuple[tuple[float, float], tuple[float, float]]:
    """Factors on predicted step times that hold the measured ones nine times in ten, (low, high), of an engine.

    Of prompts alone, and of steps that generate tokens; those of the catalog for the nearest stratum that was measured.
    """
    stratum = stratum_of(problem.model, config, problem.engine)
    return step_interval(problem.model, config.accelerator), interval_factors(error_table(), "tpot", stratum)


def step_factor(instance: Instance, config: EngineConfig) -> float:
    """Factor on the expected step times of an engine in its role, at the quantile of the instance [1]."""
    prompts, tokens = step_intervals(instance.problem, config)
    return factor_at(prompts if config.role is Role.PREFILL else tokens, instance.quantile)


def factor_at(interval: tuple[float, float], probability: float) -> float:
    """Factor on a prediction below which the measured value lies with `probability` [1].

    >>> [round(factor_at((0.8, 1.5), p), 3) for p in (0.05, 0.5, 0.9, 0.95)]
    [0.8, 1.0, 1.372, 1.5]
    """
    normal = NormalDist()
    low, high = interval
    score = normal.inv_cdf(probability) / normal.inv_cdf(ENDS[1])
    return float(high**score if score >= 0.0 else low**-score)


def slow_end(confidence: float) -> float:
    """Quantile at the upper end of the interval of probability `confidence`; 0 gives the median.

    >>> slow_end(0.9), slow_end(0.0)
    (0.95, 0.5)
    """
    return (1.0 + confidence) / 2.0


def at_quantile(instance: Instance, probability: float) -> Instance:
    """The instance with step times at this quantile of their error distribution; 0.5: expected times."""
    if probability == instance.quantile:
        return instance
    intervals = [step_intervals(instance.problem, config) for config in shape_configs(instance)]
    slower: dict[str, Any] = {}
    for kind, names in enumerate((PROMPT_STEPS, TOKEN_STEPS)):
        rows = (row[kind] for row in intervals)
        factors = [factor_at(ends, probability) / factor_at(ends, instance.quantile) for ends in rows]
        for name in names:
            times = getattr(instance.tables, name)
            slower[name] = times * np.array(factors).reshape(-1, *[1] * (times.ndim - 1))
    return replace(instance, tables=replace(instance.tables, **slower), quantile=probability)


def as_planned(instance: Instance) -> Instance:
    """The instance with the step times that its problem plans for (`confidence`)."""
    return at_quantile(instance, slow_end(instance.problem.confidence))


def planned_instance(problem: Problem) -> Instance:
    """The instance of a problem with the step times that it plans for."""
    return as_planned(make_instance(problem))


def shape_configs(instance: Instance) -> list[EngineConfig]:
    """An engine config for every shape, with arbitrary batch limits."""
    return [engine_config(instance.problem, shape, Role.COLOCATED, 1, 1) for shape in instance.tables.shapes]
