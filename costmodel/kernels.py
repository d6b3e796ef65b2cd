"""Time, FLOP and HBM traffic of the kernels of one layer, on one GPU, for many engines and operating points at once.

The roofline (Williams, Waterman, Patterson 2009): a kernel is bound by arithmetic or by memory traffic. One with
nothing to do takes no time; any other takes max(FLOP / peak, bytes / bandwidth) + launch (`kernel_time`), with a peak
that rises with the size of the work, and the time of separate conversions (docs/theory/calibration.md). Arrays
broadcast against (engines, points).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray
from .attention import Attention, LinearAttention, Matrix, Part, Sharding
from .engine_arrays import EngineArrays, KernelRates, LinkRates
from .transformer import (
    DTYPE_BYTES,
    FeedForward,
    LayerGroup,
    Transformer,
    busiest_expert_rank,
    expert_slots,
    imbalance,
    sampled_spread,
)

Value = TypeVar("Value", float, NDArray[np.float64])


def arithmetic_intensity(flop: Value, traffic: Value) -> Value:
    """Work per byte moved [FLOP/byte].

    flop [FLOP], traffic [byte].

    >>> arithmetic_intensity(2 * 8e9, 2 * 8e9)  # decode at batch 1, BF16: 2N FLOP over 2N bytes
    1.0
    """
    return flop / traffic


def kernel_time(flop: Value, traffic: Value, peak: Value, bandwidth: Value, launch: Value) -> Value:
    """Time of one kernel = max(FLOP / peak, bytes / bandwidth) + launch [s].

    `peak` [FLOP/s] and `bandwidth` [byte/s] are what the kernel really reaches: the vendor's figure times the
    kernel class's efficiency; launch [s] is added whatever the size.

    >>> float(kernel_time(0.0, 14e9, 312e12, 2e12, 0.0))  # 7B in BF16 read once on an A100
    0.007
    """
    time: Value = np.maximum(flop / peak, traffic / bandwidth) + launch
    return time


# The textbook figures: closed forms for one number at a time, before any efficiency curve or scheduler. They state
# what the full model (`costmodel.step`) must reduce to. N parameters, T tokens, B batch, W weight bytes, BW bandwidth.


def prefill_flop(parameters: Value, tokens: Value) -> Value:
    """FLOP to process a prompt = 2 N T (Kaplan 2020 §2.1; attention's O(T^2) left out).

    parameters: N [1]; tokens: T [token].

    >>> f"{prefill_flop(7e9, 4096.0):.3e}"
    '5.734e+13'
    """
    return 2.0 * parameters * tokens


def prefill_time(parameters: Value, tokens: Value, peak: Value, mfu: Value) -> Value:
    """Time of a prompt = 2 N T / (peak x MFU) [s].

    peak [FLOP/s], mfu: share of the peak reached [1]. Of a chunk it is also the jitter that it adds to decodes
    (Sarathi-Serve 2024).

    >>> round(prefill_time(7e9, 4096.0, 312e12, 0.5), 4)
    0.3676
    """
    return prefill_flop(parameters, tokens) / (peak * mfu)


def decode_tpot(weight_bytes: Value, bandwidth: Value, batch: Value, kv_bytes: Value) -> Value:
    """Time of one memory-bound decode step = (W + B KV) / BW [s] (Pope 2022 §2.1).

    weight_bytes: W [byte]; bandwidth: BW [byte/s]; batch: B [1]; kv_bytes: KV of one request [byte]. Over B it is the
    engine time per generated token, W / (B BW) + KV / BW.

    >>> decode_tpot(14e9, 2e12, 1.0, 0.0)
    0.007
    """
    return (weight_bytes + batch * kv_bytes) / bandwidth


def decode_limit(weight_bytes: Value, bandwidth: Value, mbu: Value) -> Value:
    """Tokens per second of one request at batch 1 = MBU x BW / W [token/s].

    mbu: share of the bandwidth reached [1]; 1 is the hard limit.

    >>> round(decode_limit(16e9, 3.35e12, 1.0), 1)
    209.4
    """
    return mbu * bandwidth / weight_bytes


def static_batching_idle(output_tokens: Sequence[float], tpot: float) -> float:
    """Slot time lost when a static batch waits for its longest member = sum (T_max - T_i) x TPOT [s] (Orca 2022).

    output_tokens: OSL of each request of the batch [token]; tpot [s]. An empty batch loses nothing.

    >>> static_batching_idle((100, 200, 400), 0.007)
    3.5
    """
    longest = max(output_tokens, default=0.0)
    return sum(longest - tokens for tokens in output_tokens) * tpot


def required_bandwidth(size: Value, seconds: Value) -> Value:
    """Bandwidth that moves `size` bytes in `seconds` [byte/s].

    >>> required_bandwidth(512e6, 0.1)
    5120000000.0
    """
    return size / seconds


Figure = float | FloatArray

ACTIVATION_BYTES = DTYPE_BYTES["bf16"]
"""Activations between kernels are kept in 16 bit."""
ELEMENTWISE_LAUNCH = 3e-6
"""Time that a small kernel takes whatever its size [s]; assumed: the empirical constant of NVIDIA AIConfigurator."""
ELEMENTWISE_SHARE = 0.8
"""Share of the memory bandwidth that small kernels reach [1]; assumed: the empirical constant of the same."""
CONVERTED_OUTSIDE = 0.25
"""Share of an expert's inputs and outputs that separate kernels pass over where it computes in fewer than 16 bit [1]:
a token is converted once and not for each of its experts, what lies between the two matrices for every row. Fitted: of
1, 0.5, 0.25 and 0 the one with the least held-out error on H100 and H200 (docs/appendix/calibration.md)."""
EXPERT_KERNELS = 8
"""Kernels of a layer with routed experts: choosing and sorting tokens, two grouped GEMMs with conversions and the
activation between them, and summing up; assumed."""
ROTARY_LAUNCH = 13.2e-6
"""Rotary embedding and the write of the KV cache before prefill attention, per layer [s]; fitted: steps composed from
kernels exceed the attention kernel by this, on A100, H100 and H200 and at every size."""

LATENT_TILE = 64
"""Heads that kernels over cached latents compute at once, padded where a rank has fewer [1]. Measured: modules of
DeepSeek-V3 decode as fast with 1 head as with 64, and half as fast with 128 where arithmetic binds (H100, H200; FP8
cache). vLLM and SGLang pad to as many, or twice as many on Blackwell, for FlashMLA's sparse kernels."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one GPU does: time [s], flop [FLOP], traffic to and from HBM [byte]."""

    time: FloatArray
    flop: FloatArray
    traffic: FloatArray

    def __add__(self, other: Work) -> Work:
        """One after the other."""
        return Work(self.time + other.time, self.flop + other.flop, self.traffic + other.traffic)

    def times(self, count: int | FloatArray) -> Work:
        """The same `count` times."""
        return Work(self.time * count, self.flop * count, self.traffic * count)


NOTHING = Work(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)))
"""No work at all."""


def kernel(rates: KernelRates, active: FloatArray, flop: FloatArray, traffic: FloatArray) -> Work:
    """One kernel; `active` is 1 where it runs and 0 where the step has no work for it."""
    time = active * kernel_time(flop, traffic, rates.peak, rates.bandwidth, rates.launch)
    return Work(time, active * flop, active * traffic)


def matrix_work(engines: EngineArrays, matrix: Matrix, tokens: FloatArray) -> Work:
    """One GEMM, y[M, n] = x[M, k] W[k, n], split over the tensor ranks.

    FLOP = 2 M k n / s; bytes = W k n / s + M (in + out), where s is the number of ranks that share the matrix:
    a column split shortens the output, a row split the input, a replicated matrix nothing. With h the output elements
    that half fill the GPU, d the depth of half efficiency and c the conversion of an input element,
    time = max(2 (M n + h) (k + d) / peak, bytes / bandwidth) + c M k + launch: both roofs are affine in M.
    """
    rates = engines.gemm[matrix.part]
    width = matrix.n / (engines.tensor if matrix.sharding is Sharding.COLUMN else 1.0)
    depth = matrix.k / (engines.tensor if matrix.sharding is Sharding.ROW else 1.0)
    weights = width * depth * engines.weight_bytes[matrix.part]
    token_bytes = depth * engines.input_bytes[matrix.part] + width * ACTIVATION_BYTES
    per_output = 2.0 * (depth + rates.depth_half) / rates.peak
    cast = rates.cast * depth
    time = np.maximum(
        tokens * (per_output * width + cast) + (per_output * rates.compute_half + rates.launch),
        tokens * (token_bytes / rates.bandwidth + cast) + (weights / rates.bandwidth + rates.launch),
    )
    active = np.sign(tokens)
    if rates.floor is not None:
        time = np.maximum(time, rates.floor)
    if rates.single is not None:
        time = time + rates.single * np.clip(2.0 - tokens, 0.0, 1.0)
    return Work(active * time, 2.0 * width * depth * tokens, active * weights + token_bytes * tokens)


def elementwise_kernels(group: LayerGroup) -> int:
    """Small kernels per layer that stay after fusion: norms with their residual adds, and a dense block's activation.

    Parallel blocks share one norm; the activation of routed experts is part of their grouped GEMM.
    """
    return (1 if group.parallel else 2) + (1 if group.feed_forward.intermediate else 0)


def layer_kernels(group: LayerGroup) -> int:
    """Kernels that the host launches for a layer of a prompt: matrices, small ones, mixer, and routed experts."""
    experts = EXPERT_KERNELS if group.feed_forward.experts else 0
    return len(group.matrices) + elementwise_kernels(group) + group.attention.prompt_kernels + experts


def elementwise_work(engines: EngineArrays, group: LayerGroup, tokens: FloatArray) -> Work:
    """Norms, residual adds and the activation between the GEMMs: pure traffic.

    bytes per token = 2 x (4 hidden per norm + 3 intermediate / tp): a norm reads and writes x and the residual, an
    activation reads gate and up and writes their product (2 without a gate). The norms are not split over tensor ranks.
    """
    norms = 4.0 * group.attention.hidden * (1 if group.parallel else 2)
    activation = (3.0 if group.feed_forward.gated else 2.0) * group.feed_forward.intermediate / engines.tensor
    traffic = np.asarray(ACTIVATION_BYTES * (norms + activation) * tokens)
    launch = elementwise_kernels(group) * ELEMENTWISE_LAUNCH
    time = np.sign(tokens) * (traffic / (ELEMENTWISE_SHARE * engines.bandwidth) + launch)
    return Work(time, np.zeros_like(traffic), traffic)


def attended_pairs(new: FloatArray, past: FloatArray, selected: int | None) -> FloatArray:
    """Query-key pairs of `new` tokens after `past` cached ones, causal, with at most `selected` keys per query.

    Without a limit: sum_{i=1..q} (p + i) = q p + q (q + 1) / 2. With a limit w: sum_{i=1..q} min(p + i, w)
    = a p + a (a + 1) / 2 + (q - a) w, where a = clip(w - p, 0, q) queries see fewer than w keys.

    >>> float(attended_pairs(np.float64(4), np.float64(2), None))  # 3 + 4 + 5 + 6
    18.0
    >>> float(attended_pairs(np.float64(4), np.float64(2), 5))  # 3 + 4 + 5 + 5
    17.0
    """
    if selected is None:
        return np.asarray(new * past + new * (new + 1.0) / 2.0)
    short = np.clip(selected - past, 0.0, new)
    return np.asarray(short * past + short * (short + 1.0) / 2.0 + (new - short) * selected)


def prefill_attention_work(
    engines: EngineArrays, attention: Attention, requests: FloatArray, new: FloatArray, past: FloatArray
) -> Work:
    """Attention of `requests` prompts with `new` tokens each, `past` of each already cached.

    Prompts with more context than `attention.decompressed` attend the latents as they are cached; shorter ones take the
    quicker of both.
    """
    if isinstance(attention, LinearAttention):
        return _linear_work(engines, attention, requests, new)
    multi_head = _multi_head_work(engines, attention, requests, new, past)
    if np.isinf(attention.decompressed):
        return multi_head
    absorbed = _absorbed_prefill_work(engines, attention, requests, new, past)
    cached = (new + past > attention.decompressed) | (absorbed.time < multi_head.time)
    return Work(
        np.where(cached, absorbed.time, multi_head.time),
        np.where(cached, absorbed.flop, multi_head.flop),
        np.where(cached, absorbed.traffic, multi_head.traffic),
    )


def _linear_work(engines: EngineArrays, attention: LinearAttention, requests: FloatArray, new: FloatArray) -> Work:
    """Linear attention of prompts in chunks (`LinearAttention.prompt_work`); the state is read and written once.

    One prompt of 8k takes 0.13 ms by this law with 8 value heads on H100, where Triton's kernels take 0.26 ms and
    FlashInfer's 0.11 (flashinfer-ai/flashinfer, pull request 3866), and 0.31 ms with 48 heads on B200, where they take
    1.12 and 0.44 (vllm-project/vllm, pull request 43273), each without convolution and norm.
    """
    rates, tokens = engines.attention["attention_prefill"], requests * new
    shards = np.minimum(engines.tensor, attention.kv_shards)
    flop_per_token, elements = attention.prompt_work
    flop = tokens * (flop_per_token / shards)
    traffic = (tokens * (elements * ACTIVATION_BYTES) + requests * (2.0 * attention.state_bytes)) / shards
    bandwidth = np.asarray(ELEMENTWISE_SHARE * engines.bandwidth)
    time = kernel_time(flop, traffic, rates.peak, bandwidth, rates.launch + ROTARY_LAUNCH)
    active = np.sign(tokens)
    return Work(active * time, active * flop, active * traffic)


def _multi_head_work(
    engines: EngineArrays, attention: Attention, requests: FloatArray, new: FloatArray, past: FloatArray
) -> Work:
    """Every head with keys and values of its own, decompressed where latents are cached.

    FLOP = pairs x FLOP per pair / tp (+ the indexer over the whole context, which every rank repeats, unless everything
    is attended); bytes = KV of the tokens attended, read once by a tiled kernel, and queries and outputs. Decompressing
    the latents of `past` tokens again (MLA with chunks) is left out. Efficiency rises with the keys that a query
    attends on average, K = pairs / new (half of a prompt without a past), with the width of a head and with the queries
    of all heads, Q. Like the GEMM's (M n + h) (k + d) the time is affine in each, so no prompt is quicker than a
    shorter one: FLOP x (K + h / 2) / K x (Q + f) / Q x (width + d) / width.
    """
    rates = engines.attention["latent_prefill" if attention.is_latent else "attention_prefill"]
    tokens = requests * new
    active = np.sign(tokens)
    index_flop = 0.0 if attention.is_latent else attention.index_flop_per_pair

    def flop_with(more_pairs: Figure) -> FloatArray:
        """FLOP of all prompts if each attended so many more pairs."""
        pairs = attended_pairs(new, past, attention.selected) + more_pairs
        everything = attended_pairs(new, past, None) + more_pairs
        own = pairs * attention.prefill_flop_per_pair + new * attention.flop_per_token
        return requests * (own / engines.tensor + everything * index_flop)

    flop = flop_with(0.0)
    traffic = _prompt_traffic(engines, attention, requests, new, past) + tokens * (
        attention.prompt_width * ACTIVATION_BYTES / engines.tensor
    )
    queries = np.maximum(tokens * (attention.query_heads / engines.tensor), 1.0)
    effective_flop = flop_with(new * rates.compute_half / 2.0) * (
        (1.0 + rates.fill_half / queries) * (1.0 + rates.depth_half / attention.query_dim)
    )
    time = active * (kernel_time(effective_flop, traffic, rates.peak, rates.bandwidth, rates.launch) + ROTARY_LAUNCH)
    return Work(time, active * flop, active * traffic)


def _absorbed_prefill_work(
    engines: EngineArrays, attention: Attention, requests: FloatArray, new: FloatArray, past: FloatArray
) -> Work:
    """All heads over the latents that an indexer chose, as decodes do: each query has keys of its own.

    FLOP = pairs x FLOP per pair of decodes x `head_share`, + the indexer over the whole context, which every rank
    repeats. FlashMLA's kernel for it reaches up to 640 TFLOP/s on H800 and 1,450 on B200, 0.65 of their peaks (its
    README). The rates are those of decodes, 0.63 and 0.69 on H100 and H200. The indexer with its choice reaches 0.73 to
    0.83 of the 16-bit peak of an H200 (8k to 64k tokens; SGLang, `nsa/hisa/benchmarks`).
    """
    rates = engines.attention["latent_decode"]
    tokens = requests * new
    # without a selection the many tokens of a prompt share keys, and so fill tiles of heads together
    share = np.asarray(1.0 / engines.tensor) if attention.selected is None else head_share(engines, attention)
    pairs = requests * attended_pairs(new, past, attention.selected)
    flop = (
        pairs * (attention.decode_flop_per_pair * share)
        + requests * attended_pairs(new, past, None) * attention.index_flop_per_pair
        + tokens * (attention.flop_per_token * share)
    )
    moved = tokens * (attention.absorbed_width * ACTIVATION_BYTES * share)
    traffic = _prompt_traffic(engines, attention, requests, new, past) + moved
    work = kernel(rates, np.sign(tokens), flop, traffic)
    return Work(work.time + np.sign(tokens) * ROTARY_LAUNCH, work.flop, work.traffic)


def _prompt_traffic(
    engines: EngineArrays, attention: Attention, requests: FloatArray, new: FloatArray, past: FloatArray
) -> FloatArray:
    """Cached tokens that prompts attend, keys of an indexer and latents of a window, each moved once [byte]."""
    shards = np.minimum(engines.tensor, attention.kv_shards)
    kv_tokens = new + (past if attention.selected is None else np.minimum(past, attention.selected))
    return np.asarray(
        requests
        * (
            kv_tokens * attention.kv_elements_per_token * engines.kv_bytes / shards
            + (new + past) * attention.index_bytes_per_token
            + 2.0 * attention.state_bytes / shards
        )
    )


def head_share(engines: EngineArrays, attention: Attention, queries: Figure = 1.0) -> FloatArray:
    """What a rank computes for each of its requests over what all heads compute for one query of one [1].

    queries: tokens of a request in the step [token]. Kernels over cached latents take whole tiles of heads
    (`LATENT_TILE`), which several tokens fill together unless each has keys of its own.
    """
    if not attention.is_latent:
        return np.asarray(queries / engines.tensor)
    heads = attention.query_heads
    if attention.selected is None:
        return np.asarray(np.maximum(queries * heads / engines.tensor, LATENT_TILE) / heads)
    return np.asarray(queries * np.maximum(heads / engines.tensor, LATENT_TILE) / heads)


def decode_attention_work(
    engines: EngineArrays,
    attention: Attention,
    requests: FloatArray,
    context: FloatArray,
    queries: FloatArray | float = 1.0,
) -> Work:
    """Attention of `requests` decoding requests whose contexts average `context` tokens: linear in their product.

    bytes = requests x [min(context, selected) x KV per token / min(tp, KV shards) + context x index bytes
    + (1 + queries) x state / shards]; FLOP = requests x [(min(context, selected) x FLOP per pair + state update)
    x `head_share` + queries x indexer], where queries are the tokens of each request in the step. A state of linear
    attention is read once and written for each of them, as any may be the last that is accepted (vLLM's pull request
    49887).
    """
    rates = engines.attention["latent_decode" if attention.is_latent else "attention_decode"]
    shards = np.minimum(engines.tensor, attention.kv_shards)
    keys = context if attention.selected is None else np.minimum(context, attention.selected)
    flop = requests * (
        (keys * attention.decode_flop_per_pair + attention.flop_per_token) * head_share(engines, attention, queries)
        + queries * context * attention.index_flop_per_pair
    )
    writes = queries if isinstance(attention, LinearAttention) else 1.0
    traffic = requests * (
        keys * attention.kv_elements_per_token * engines.kv_bytes / shards
        + context * attention.index_bytes_per_token
        + (1.0 + writes) * attention.state_bytes / shards
    )
    return kernel(rates, np.sign(requests), flop, traffic)


def expert_work(engines: EngineArrays, block: FeedForward, tokens: FloatArray) -> Work:
    """Routed experts of one layer on the busiest rank: a grouped GEMM over the tokens of all data ranks.

    R = tp x dp ranks share the experts: ep of them hold different ones (or second copies, `expert_slots`), R / ep split
    each one. With r rows and t
    experts touched (`touched_experts`): FLOP = 2 r |expert|, bytes = t |expert| x weight + activations; an expert
    with h rows reaches half the peak, so FLOP becomes 2 (r + h t) |expert|; h is what it takes to outlast the reading
    of weights as wide as the inputs, so narrower weights need fewer rows. Permuting, activating, converting and summing
    up pass over the activations of the rows again, and over those of the rows computed elsewhere unless an all-to-all
    sent only what is needed.
    """
    rates = engines.experts
    split = engines.tensor * engines.data / engines.expert
    slots = expert_slots(block.experts, engines.expert)
    skew, spread = engines.conditions.expert_skew, engines.conditions.expert_spread
    factor = imbalance(slots, block.experts_per_token, engines.expert, engines.expert_largest, skew)
    rank_load = busiest_expert_rank(
        slots,
        block.experts_per_token,
        tokens,
        engines.expert,
        factor,
        spread=sampled_spread(tokens) if spread is None else spread,
    )
    elements = block.elements_per_expert / split
    outer, between = 2.0 * block.expert_hidden, (3.0 if block.gated else 2.0) * block.expert_intermediate / split
    width, cast_width = outer + between, converted_width(outer, between, engines.input_bytes[Part.EXPERTS])
    active = np.sign(tokens)
    half = rates.compute_half * np.minimum(engines.weight_bytes[Part.EXPERTS] / engines.input_bytes[Part.EXPERTS], 1.0)
    arithmetic = 2.0 * elements * (rank_load.rows + half * rank_load.touched)
    traffic = rank_load.touched * (elements * engines.weight_bytes[Part.EXPERTS]) + rank_load.rows * (
        width * ACTIVATION_BYTES
    )
    passes = rank_load.rows * (rates.cast * cast_width)
    if np.any(rates.spill):
        passes = passes + rank_load.elsewhere * np.where(engines.data > 1, 0.0, rates.spill * width)
    time = kernel_time(arithmetic, traffic, rates.peak, rates.bandwidth, rates.launch) + passes
    return Work(active * time, active * (2.0 * elements * rank_load.rows), active * traffic)


def converted_width(outer: Figure, between: Figure, input_bytes: Figure) -> FloatArray:
    """Elements of a row that separate kernels pass over, of those outside of the expert and between its matrices [1].

    >>> float(converted_width(2.0, 3.0, 2.0)), float(converted_width(2.0, 3.0, 1.0))
    (5.0, 3.5)
    """
    return np.asarray(np.where(np.asarray(input_bytes) < ACTIVATION_BYTES, CONVERTED_OUTSIDE, 1.0) * outer + between)


def head_matrix(model: Transformer) -> Matrix:
    """The output head: hidden x vocabulary, split by vocabulary."""
    return Matrix("lm_head", model.hidden, model.vocab, Sharding.COLUMN, Part.EMBEDDING)


def all_reduce_time(engines: EngineArrays, size: FloatArray) -> FloatArray:
    """All-reduce of `size` bytes over the tensor ranks [s]; zero for one rank.

    With n ranks in a scale-up domain, the quicker of two algorithms runs (vLLM's custom all-reduce, TensorRT-LLM's
    one-shot and two-shot). In one stage every rank reads the messages of all others, (n - 1) size / B_up. In two, ranks
    reduce a share each and gather the rest, 2 (n-1)/n size / B_up (Thakur 2005), with one more launch. m domains add
    2 (m-1)/m (size/n) / B_out and two hops. The fitted launch holds the latency inside a domain.
    """
    inside = np.minimum(engines.tensor, engines.domain)
    domains = engines.tensor / inside

    def time(rates: LinkRates, messages: FloatArray) -> FloatArray:
        per_byte = messages / rates.inside + 2.0 * (domains - 1.0) / domains / inside / rates.across
        return size * per_byte + (rates.launch + np.where(domains > 1, 2.0 * rates.hop, 0.0))

    one_stage = time(engines.all_reduce, inside - 1.0)
    two_stages = time(engines.all_reduce_large, 2.0 * (inside - 1.0) / inside)
    return np.asarray(np.where(engines.tensor > 1, np.sign(size) * np.minimum(one_stage, two_stages), 0.0))


def all_to_all_time(engines: EngineArrays, block: FeedForward, tokens: FloatArray) -> FloatArray:
    """Dispatch to the experts and combine again [s]; zero without data ranks, where all-reduce does it.

    Each of R = tp x dp ranks owns tokens / R and sends each to the ranks of its experts: c = R/ep x ep (1 - (1 -
    1/ep)^k) of them on average, (n - 1) / n of which are reached over the links of a scale-up domain of n ranks. Each
    of the D - 1 other domains gets a token once over the network, with the chance 1 - (1 - 1/D)^k that it holds one of
    the experts, and passes it on meanwhile (DeepEP's README, forwarding between NVLink and RDMA):

        max(c (n - 1) / n / B_inside, (D - 1) (1 - (1 - 1/min(ep, D))^k) / B_across) bytes + latency, each way

    DeepEP reaches 43 to 58 GB/s of cards of 50 (there), so B_across is the whole card.
    """
    rates = engines.all_to_all
    ranks = engines.tensor * engines.data

    def chance(groups: FloatArray) -> FloatArray:
        """P(one of so many groups of experts has any of a token's) [1]."""
        return np.asarray(1.0 - (1.0 - 1.0 / groups) ** block.experts_per_token)

    copies = tokens / ranks * (ranks / engines.expert) * (engines.expert * chance(engines.expert))
    near = np.minimum(ranks, engines.domain)
    domains = ranks / near
    far_copies = tokens / ranks * (domains - 1.0) * chance(np.minimum(engines.expert, domains))
    moved = np.maximum(copies * (near - 1.0) / near / rates.inside, far_copies / rates.across)
    latency = rates.launch + np.where(ranks > near, rates.hop, 0.0)
    one_way = np.sign(tokens) * (moved * block.expert_hidden * ACTIVATION_BYTES + latency)
    return np.asarray(np.where(engines.data > 1, 2.0 * one_way, 0.0))


def send_time(engines: EngineArrays, size: FloatArray) -> FloatArray:
    """Hidden states handed from stage to stage, (pp - 1) times [s].

    Each tensor rank sends its share size / tp; inside the scale-up domain if the whole engine fits into it.
    """
    rates = engines.send
    together = engines.tensor * engines.data * engines.pipeline <= engines.domain
    bandwidth = np.where(together, rates.inside, rates.across)
    latency = np.where(together, rates.launch, rates.hop)
    return np.asarray((engines.pipeline - 1.0) * np.sign(size) * (size / engines.tensor / bandwidth + latency))
