"""Time, FLOP and HBM traffic of the kernels of one layer, on one GPU, for many engines and operating points at once.

Arrays broadcast against (engines, points). A kernel with nothing to do takes no time; any other takes
max(FLOP / peak, bytes / bandwidth) + launch (`costmodel.roofline.kernel_time`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .engine_arrays import EngineArrays, KernelRates
from .roofline import kernel_time
from .transformer import (
    DTYPE_BYTES,
    Attention,
    FeedForward,
    LatentAttention,
    LayerGroup,
    Matrix,
    Part,
    Sharding,
    SoftmaxAttention,
    Transformer,
)

FloatArray = NDArray[np.float64]

ACTIVATION_BYTES = DTYPE_BYTES["bf16"]
"""Activations between kernels are kept in 16 bit."""
ELEMENTWISE_LAUNCH = 3e-6
"""Time that a small kernel takes whatever its size [s]; assumed: the empirical constant of NVIDIA AIConfigurator."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one GPU does: time [s], flop [FLOP], traffic to and from HBM [byte]."""

    time: FloatArray
    flop: FloatArray
    traffic: FloatArray

    def __add__(self, other: Work) -> Work:
        """One after the other."""
        return Work(self.time + other.time, self.flop + other.flop, self.traffic + other.traffic)

    def times(self, count: int) -> Work:
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
    a column split shortens the output, a row split the input, a replicated matrix nothing.
    """
    columns = engines.tensor if matrix.sharding is Sharding.COLUMN else 1.0
    rows = engines.tensor if matrix.sharding is Sharding.ROW else 1.0
    elements = matrix.elements / (columns * rows)
    moved = matrix.k / rows * engines.input_bytes[matrix.part] + matrix.n / columns * ACTIVATION_BYTES
    return kernel(
        engines.gemm[matrix.part],
        np.sign(tokens),
        2.0 * elements * tokens,
        elements * engines.weight_bytes[matrix.part] + moved * tokens,
    )


def elementwise_kernels(group: LayerGroup) -> int:
    """Small kernels per layer that stay after fusion: norms with their residual adds, and a dense block's activation.

    Parallel blocks share one norm; the activation of routed experts is part of their grouped GEMM.
    """
    return (1 if group.parallel else 2) + (1 if group.feed_forward.intermediate else 0)


def elementwise_work(engines: EngineArrays, group: LayerGroup, tokens: FloatArray) -> Work:
    """Norms, residual adds and the activation between the GEMMs: pure traffic.

    bytes per token = 2 x (4 hidden per norm + 3 intermediate / tp): a norm reads and writes x and the residual, an
    activation reads gate and up and writes their product (2 without a gate). The norms are not split over tensor ranks.
    """
    rates = engines.gemm[Part.EMBEDDING]
    norms = 4.0 * group.attention.hidden * (1 if group.parallel else 2)
    activation = (3.0 if group.feed_forward.gated else 2.0) * group.feed_forward.intermediate / engines.tensor
    traffic = np.asarray(ACTIVATION_BYTES * (norms + activation) * tokens)
    launch = np.full_like(rates.launch, elementwise_kernels(group) * ELEMENTWISE_LAUNCH)
    return kernel(KernelRates(rates.peak, rates.bandwidth, launch), np.sign(tokens), np.zeros_like(traffic), traffic)


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

    FLOP = pairs x FLOP per pair / tp (+ the indexer over the whole context, which every rank repeats);
    bytes = KV of the tokens attended, read once by a tiled kernel, and queries and outputs. Decompressing the
    latents of `past` tokens again (MLA with chunks) is left out.
    """
    rates = engines.attention["latent_prefill" if isinstance(attention, LatentAttention) else "attention_prefill"]
    tokens = requests * new
    pairs = attended_pairs(new, past, attention.selected)
    flop = (
        requests * (pairs * attention.prefill_flop_per_pair / engines.tensor)
        + requests * attended_pairs(new, past, None) * attention.index_flop_per_pair
        + tokens * attention.flop_per_token / engines.tensor
    )
    shards = np.minimum(engines.tensor, attention.kv_shards)
    read = new + (past if attention.selected is None else np.minimum(past, attention.selected))
    traffic = requests * (
        read * attention.kv_elements_per_token * engines.kv_bytes / shards
        + (new + past) * attention.index_bytes_per_token
        + 2.0 * attention.state_bytes / shards
    ) + tokens * (_query_output_width(attention) * ACTIVATION_BYTES / engines.tensor)
    return kernel(rates, np.sign(tokens), flop, traffic)


def _query_output_width(attention: Attention) -> float:
    """Elements of queries and outputs per token; for latent and linear attention about twice the hidden width."""
    if isinstance(attention, SoftmaxAttention):
        return float(attention.heads * (attention.head_dim + attention.value_dim))
    return 2.0 * attention.hidden


def decode_attention_work(
    engines: EngineArrays, attention: Attention, requests: FloatArray, context: FloatArray
) -> Work:
    """Attention of `requests` decoding requests whose contexts average `context` tokens: linear in their product.

    bytes = requests x [min(context, selected) x KV per token / min(tp, KV shards) + context x index bytes
    + 2 x state / shards]; FLOP = requests x [min(context, selected) x FLOP per pair / tp + indexer + state update].
    """
    rates = engines.attention["latent_decode" if isinstance(attention, LatentAttention) else "attention_decode"]
    shards = np.minimum(engines.tensor, attention.kv_shards)
    attended = context if attention.selected is None else np.minimum(context, attention.selected)
    flop = requests * (
        attended * attention.decode_flop_per_pair / engines.tensor
        + context * attention.index_flop_per_pair
        + attention.flop_per_token / engines.tensor
    )
    traffic = requests * (
        attended * attention.kv_elements_per_token * engines.kv_bytes / shards
        + context * attention.index_bytes_per_token
        + 2.0 * attention.state_bytes / shards
    )
    return kernel(rates, np.sign(requests), flop, traffic)


def touched_experts(experts: int, per_token: int, tokens: FloatArray) -> FloatArray:
    """Distinct experts that `tokens` tokens reach when routing is uniform: E (1 - (1 - k/E)^tokens).

    >>> round(float(touched_experts(8, 2, np.float64(1))), 9)
    2.0
    """
    if per_token >= experts:
        return np.asarray(experts * np.sign(tokens))
    return np.asarray(-experts * np.expm1(tokens * np.log1p(-per_token / experts)))


def expert_work(engines: EngineArrays, block: FeedForward, tokens: FloatArray) -> Work:
    """Routed experts of one layer: a grouped GEMM over the tokens of all data ranks.

    R = tp x dp ranks share the experts: ep of them hold different experts, R / ep split each one.
    FLOP = 2 tokens k |expert| / R x imbalance; bytes = weights of the experts touched / R + routed activations.
    """
    ranks = engines.tensor * engines.data
    split = ranks / engines.expert
    routed = tokens * block.experts_per_token / engines.expert * engines.expert_imbalance
    touched = touched_experts(block.experts, block.experts_per_token, tokens) / engines.expert
    elements = block.elements_per_expert / split
    width = 2.0 * block.hidden + (3.0 if block.gated else 2.0) * block.expert_intermediate / split
    return kernel(
        engines.experts,
        np.sign(tokens),
        2.0 * routed * elements,
        touched * elements * engines.weight_bytes[Part.EXPERTS] + routed * width * ACTIVATION_BYTES,
    )


def head_matrix(model: Transformer) -> Matrix:
    """The output head: hidden x vocabulary, split by vocabulary."""
    return Matrix("lm_head", model.hidden, model.vocab, Sharding.COLUMN, Part.EMBEDDING)


def all_reduce_time(engines: EngineArrays, size: FloatArray) -> FloatArray:
    """All-reduce of `size` bytes over the tensor ranks [s]; zero for one rank.

    n ranks in a scale-up domain, m domains: 2 (n-1)/n size / B_up + 2 (m-1)/m (size/n) / B_out + launch
    (+ 2 hops between domains). The fitted launch holds the latency inside a domain. Hierarchical ring, Thakur 2005.
    """
    rates = engines.all_reduce
    inside = np.minimum(engines.tensor, engines.domain)
    domains = engines.tensor / inside
    per_byte = 2.0 * (inside - 1.0) / inside / rates.inside + 2.0 * (domains - 1.0) / domains / inside / rates.across
    latency = rates.launch + np.where(domains > 1, 2.0 * rates.hop, 0.0)
    return np.asarray(np.where(engines.tensor > 1, np.sign(size) * (size * per_byte + latency), 0.0))


def all_to_all_time(engines: EngineArrays, block: FeedForward, tokens: FloatArray) -> FloatArray:
    """Dispatch to the experts and combine again [s]; zero without data ranks, where all-reduce does it.

    Each of R = tp x dp ranks owns tokens / R and sends each to the ranks of its experts: R/ep x ep (1 - (1 - 1/ep)^k)
    of them on average. Of the R - 1 others those outside the scale-up domain are reached over the network.
    """
    rates = engines.all_to_all
    ranks = engines.tensor * engines.data
    groups = engines.expert * (1.0 - (1.0 - 1.0 / engines.expert) ** block.experts_per_token)
    copies = tokens / ranks * (ranks / engines.expert) * groups
    near = np.minimum(ranks, engines.domain)
    size = copies * block.hidden * ACTIVATION_BYTES
    per_byte = (near - 1.0) / ranks / rates.inside + (ranks - near) / ranks / rates.across
    latency = rates.launch + np.where(ranks > near, rates.hop, 0.0)
    one_way = np.sign(tokens) * (size * per_byte + latency)
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
