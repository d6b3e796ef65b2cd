"""One engine step: how long a mix of prefill tokens and decoding requests takes, and where the time goes.

Rules
- `total` is the latency of one (micro)batch through all pipeline stages. With pp stages, pp micro-batches are in
  flight: N running requests are pp micro-batches of N / pp, TPOT is the latency of one of them, and prompts leave at
  pp / latency.
- Data-parallel ranks split the requests: attention and dense matrices see the busiest rank, which has n / dp requests
  or, with fewer requests than ranks, one. Experts see the tokens of all ranks.
- The output head runs once per prompt in the step and once per decoding request.
- Every rank has a host process of its own, so host = step + per_request x rows counts those of the
  busiest rank (`engine.EngineOverhead`).
- A step of decodes only is affine in (sum of contexts) as long as no window is full.
- Where tokens are drafted, a decoding request brings its drafted tokens to be verified (`engine.Speculation`). The
  draft layer's time is part of gemm, attention, experts and communication. Its first pass is over all tokens that were
  verified, whose cache it needs, each further one over one token of each request. All are launched ahead with the step;
  the host deals with every row of the output head: host = step + per_request x (prompts + verified x decodes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .arrays import FloatArray
from .engine import EngineConfig, EngineOverhead
from .engine_arrays import EngineArrays, engine_arrays
from .kernels import (
    ACTIVATION_BYTES,
    NOTHING,
    all_reduce_time,
    all_to_all_time,
    decode_attention_work,
    elementwise_work,
    expert_work,
    head_matrix,
    matrix_work,
    prefill_attention_work,
    send_time,
)
from .transformer import LayerGroup, Transformer

Tokens = TypeVar("Tokens", float, FloatArray)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one engine step holds; arrays broadcast against (engines, points).

    prefill_requests: prompts in the step [1]; prefill_tokens: new tokens of each [token];
    prefill_past: tokens of each already in the cache [token];
    decode_requests: decoding requests [1]; decode_context: their mean context [token].
    """

    prefill_requests: FloatArray
    prefill_tokens: FloatArray
    prefill_past: FloatArray
    decode_requests: FloatArray
    decode_context: FloatArray

    @classmethod
    def of(
        cls,
        prefill_requests: ArrayLike = 0.0,
        prefill_tokens: ArrayLike = 0.0,
        prefill_past: ArrayLike = 0.0,
        decode_requests: ArrayLike = 0.0,
        decode_context: ArrayLike = 0.0,
    ) -> StepLoad:
        """Build a load from numbers or arrays; a single point becomes shape (1, 1)."""
        fields = (prefill_requests, prefill_tokens, prefill_past, decode_requests, decode_context)
        return cls(*(np.atleast_2d(np.asarray(field, dtype=np.float64)) for field in fields))

    @classmethod
    def prefill(cls, tokens: ArrayLike, requests: ArrayLike = 1.0, past: ArrayLike = 0.0) -> StepLoad:
        """Prompts only: `requests` of them with `tokens` new tokens each after `past` cached ones."""
        return cls.of(prefill_requests=requests, prefill_tokens=tokens, prefill_past=past)

    @classmethod
    def decode(cls, requests: ArrayLike, context: ArrayLike) -> StepLoad:
        """Decodes only: `requests` of them with `context` tokens each on average."""
        return cls.of(decode_requests=requests, decode_context=context)

    @property
    def tokens(self) -> FloatArray:
        """Tokens in the step, drafted ones apart [token]."""
        return self.prefill_requests * self.prefill_tokens + self.decode_requests


@dataclass(frozen=True, slots=True)
class StepTime:
    """Latency of a step and its parts [s], and what one GPU of each stage does; arrays of shape (engines, points).

    gemm holds the small kernels between the matrices too; experts the routed experts only;
    total = gemm + attention_prefill + attention_decode + experts + communication + host. With routed experts all but
    host last longer on some GPUs and on workers that only prefill (`InEngine.expert_step`, `prefill_worker`).
    flop [FLOP], traffic [byte]: of one rank, all pipeline stages together; as every stage is busy with another
    micro-batch meanwhile, flop / total is the rate of one GPU.
    """

    gemm: FloatArray
    attention_prefill: FloatArray
    attention_decode: FloatArray
    experts: FloatArray
    communication: FloatArray
    host: FloatArray
    total: FloatArray
    flop: FloatArray
    traffic: FloatArray

    @property
    def attention(self) -> FloatArray:
        """Attention of prompts and of decodes [s]."""
        return self.attention_prefill + self.attention_decode

    @property
    def arithmetic_intensity(self) -> FloatArray:
        """FLOP per byte of HBM traffic."""
        return _ratio(self.flop, self.traffic)

    def mfu(self, engines: EngineArrays) -> FloatArray:
        """Share of the vendor's peak FLOP/s [1]."""
        return _ratio(self.flop, self.total * engines.peak)

    def mbu(self, engines: EngineArrays) -> FloatArray:
        """Share of the vendor's memory bandwidth [1]."""
        return _ratio(self.traffic, self.total * engines.bandwidth)


def _ratio(numerator: FloatArray, whole: FloatArray) -> FloatArray:
    """Quotient, 0 where the step is empty."""
    return np.asarray(np.divide(numerator, whole, out=np.zeros_like(whole), where=whole > 0))


def busiest_rank(requests: FloatArray, data: FloatArray) -> FloatArray:
    """Requests on the busiest of `data` ranks: n / dp, but a whole one as long as there is one.

    >>> [float(busiest_rank(np.float64(n), np.float64(8))) for n in (0, 1, 8, 80)]
    [0.0, 1.0, 1.0, 10.0]
    """
    return np.asarray(np.maximum(requests / data, np.minimum(requests, 1.0)))


def chunked_steps(
    new_tokens: Tokens, past: Tokens, room: Tokens, step: Callable[[Tokens, Tokens], Tokens]
) -> tuple[Tokens, Tokens]:
    """Steps of prompts in chunks, all of which but the last fill the room: their mean time [s], and how many they are.

    new_tokens, past: of each prompt, to compute and already cached [token]; room: for it in a step [token]; step: time
    of one with so many new tokens after so many cached ones [s]. Attention of a chunk is linear in what is cached, so
    the mean of that stands for all full chunks exactly.

    >>> [float(part) for part in chunked_steps(2400.0, 0.0, 1000.0, lambda new, past: new + past)]
    [1800.0, 3.0]
    """
    count: Tokens = np.ceil(new_tokens / room)
    before = (count - 1.0) * room
    last = step(new_tokens - before, past + before)
    if not np.any(before):
        return last, count
    full = step(room, past + np.maximum(before - room, 0.0) / 2.0)
    return ((count - 1.0) * full + last) / count, count


class _Pass(NamedTuple):
    """What goes through a layer at once: prompts and decodes of the busiest rank, its tokens, and those of all ranks.

    new, past: tokens of each prompt, and those before them; queries: tokens of each decoding request [1].
    """

    prompts: FloatArray
    decodes: FloatArray
    tokens: FloatArray
    everything: FloatArray
    new: FloatArray
    past: FloatArray
    queries: FloatArray | float = 1.0


def _tail_pass(engines: EngineArrays, whole: _Pass, load: StepLoad, group: LayerGroup) -> _Pass:
    """The same through layers that only the last tokens of prompts pass (`LayerGroup.tail`), where engines do so."""
    skip = engines.tails * (whole.new - group.tail_of(whole.new))
    return whole._replace(
        tokens=whole.tokens - whole.prompts * skip,
        everything=whole.everything - load.prefill_requests * skip,
        new=whole.new - skip,
        past=whole.past + skip,
    )


def step_time(model: Transformer, engines: EngineArrays, load: StepLoad) -> StepTime:
    """Time of one step of each engine at each operating point; loops over layer groups and matrices only."""
    prompts = busiest_rank(load.prefill_requests, engines.data)
    decodes = busiest_rank(load.decode_requests, engines.data)
    verified, nothing = engines.verified, np.zeros((1, 1))
    prompt_tokens, prompt_rows = prompts * load.prefill_tokens, prompts * np.sign(load.prefill_tokens)
    everything = load.tokens + engines.drafted * load.decode_requests
    rows = prompt_rows + verified * decodes
    lengths = load.prefill_tokens, load.prefill_past
    whole = _Pass(prompts, decodes, prompt_tokens + verified * decodes, everything, *lengths, verified)

    gemm = matrix_work(engines, head_matrix(model), rows)
    prefill, decode, experts = NOTHING, NOTHING, NOTHING
    state = _state_bytes(model, whole.tokens)
    communication = all_reduce_time(engines, state) + send_time(engines, state)  # the embedding, and between stages
    passes: list[tuple[LayerGroup, _Pass, int | FloatArray]] = [
        (group, _tail_pass(engines, whole, load, group) if group.tail else whole, group.count) for group in model.layers
    ]
    if engines.draft is not None:
        prompt_pass = _Pass(prompts, nothing, prompt_tokens, load.tokens - load.decode_requests, *lengths)
        passes.append((engines.draft, prompt_pass, np.sign(engines.drafted)))
        first = whole._replace(prompts=nothing, tokens=verified * decodes, everything=verified * load.decode_requests)
        passes.append((engines.draft, first, np.sign(engines.drafted)))
        drafts = _Pass(nothing, decodes, decodes, load.decode_requests, *lengths)
        passes.append((engines.draft, drafts, np.maximum(engines.drafted - 1.0, 0.0)))
        gemm += matrix_work(engines, head_matrix(model), decodes).times(engines.drafted)
    for group, own, count in passes:
        attention = group.attention
        dense = [matrix_work(engines, matrix, own.tokens) for matrix in group.matrices]
        gemm += reduce(add, dense, elementwise_work(engines, group, own.tokens)).times(count)
        prefill += prefill_attention_work(engines, attention, own.prompts, own.new, own.past).times(count)
        decode += decode_attention_work(engines, attention, own.decodes, load.decode_context, own.queries).times(count)
        if group.feed_forward.experts:
            experts += expert_work(engines, group.feed_forward, own.everything).times(count)
        reduction = all_reduce_time(engines, _state_bytes(model, own.tokens))
        communication = communication + count * _layer_communication(engines, group, reduction, own.everything)
    host = engines.overhead.step + engines.overhead.per_request * rows
    work = gemm + prefill + decode + experts
    total = (work.time + communication) * engines.slower + host

    def full(component: FloatArray) -> FloatArray:
        return np.broadcast_to(component, total.shape)

    return StepTime(
        gemm=full(gemm.time * engines.slower),
        attention_prefill=full(prefill.time * engines.slower),
        attention_decode=full(decode.time * engines.slower),
        experts=full(experts.time * engines.slower),
        communication=full(communication * engines.slower),
        host=full(host),
        total=total,
        flop=full(work.flop),
        traffic=full(work.traffic),
    )


def _state_bytes(model: Transformer, tokens: FloatArray) -> FloatArray:
    """Hidden states of so many tokens [byte]."""
    return tokens * model.hidden * ACTIVATION_BYTES


def step_time_one(model: Transformer, config: EngineConfig, overhead: EngineOverhead, load: StepLoad) -> StepTime:
    """Step time of a single engine; arrays of shape (1, points)."""
    return step_time(model, engine_arrays(model, [config], overhead), load)


def _layer_communication(
    engines: EngineArrays, group: LayerGroup, reduction: FloatArray, everything: FloatArray
) -> FloatArray:
    """Two all-reduces, or one for parallel blocks and for a layer without a feed-forward [s].

    With data ranks, the combine replaces half of the last one; the other half brings every token to all tensor ranks.
    """
    mixer = 0.0 if group.parallel else 1.0
    if engines.conditions.latent_reductions != 1.0 and group.attention.is_latent:
        reduction = reduction * engines.conditions.latent_reductions
    if group.feed_forward.is_empty:
        return reduction
    if not group.feed_forward.experts:
        return (mixer + 1.0) * reduction
    after_experts = np.where(engines.data > 1, 0.5, 1.0) * reduction
    return mixer * reduction + after_experts + all_to_all_time(engines, group.feed_forward, everything)
