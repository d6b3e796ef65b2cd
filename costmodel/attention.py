"""Token mixers as arithmetic: which matrices they multiply by, what they keep per token, how many FLOP a pair costs.

Four kinds, one interface: softmax attention (multi-head, grouped-query, multi-query, sliding-window), multi-head
latent attention (with or without a sparse indexer), compressed attention over one latent for several tokens, and linear
attention with a state of fixed size. Norms, biases, short convolutions, attention sinks and hyper-connections are left
out: together they are below 0.1 % of a model's weights and traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar


class Sharding(StrEnum):
    """How tensor parallelism splits a matrix: its outputs, its inputs, or not at all."""

    COLUMN = "column"
    ROW = "row"
    REPLICATED = "replicated"


class Part(StrEnum):
    """Parts of the model that a checkpoint may or may not quantise."""

    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    EXPERTS = "experts"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight matrix: y[tokens, n] = x[tokens, k] @ W[k, n]; `merged`: several of one input, side by side."""

    name: str
    k: int
    n: int
    sharding: Sharding
    part: Part
    merged: bool = False

    @property
    def elements(self) -> int:
        """Number of weights."""
        return self.k * self.n


def nonempty(*matrices: Matrix) -> tuple[Matrix, ...]:
    """The matrices that a layer has: those with any weights."""
    return tuple(matrix for matrix in matrices if matrix.elements)


class TokenMixer:
    """What mixers differ in; where one has nothing of it, what stands here. Each computes its own when it is made.

    kv_elements_per_token: what a layer attends for one token, and keeps unless it is another's [1]; kv_shards: largest
    tensor-parallel degree that still divides the cache, beyond which every rank holds all of it [1]; state_bytes: state
    kept per request whatever its length [byte].
    prefill_flop_per_pair: of one query-key pair, all heads [FLOP]; decode_flop_per_pair: the same while decoding, where
    a cache may be read as it is kept; flop_per_token: what neither matrices nor pairs account for [FLOP].
    decompressed: context up to which prompts attend keys and values of every head, and not what is cached [token];
    selected: most keys that a query attends (None: all of them); kept: most tokens that stay in the cache (None: all).
    index_flop_per_pair: of choosing keys, per query-key pair over the whole context [FLOP]; index_bytes_per_token: of
    the index key that each token keeps, and that a query reads [byte].
    query_heads: that run side by side [1]; query_dim: width of a query in each [1]; prompt_width: elements that a token
    of a prompt reads and writes besides the cache, queries, outputs and what a latent decompresses to; absorbed_width:
    the same over latents as they are cached [1].
    prompt_kernels: that mix the tokens of prompts [1].
    """

    is_latent: ClassVar[bool] = False

    kv_elements_per_token: float = 0.0
    kv_shards: int = 1
    state_bytes: float = 0.0
    prefill_flop_per_pair: float = 0.0
    decode_flop_per_pair: float = 0.0
    flop_per_token: float = 0.0
    decompressed: float = math.inf
    selected: int | None = None
    kept: int | None = None
    index_flop_per_pair: float = 0.0
    index_bytes_per_token: float = 0.0
    query_heads: int = 0
    query_dim: int = 0
    prompt_width: float = 0.0
    absorbed_width: float = 0.0
    prompt_kernels: int = 1


@dataclass(frozen=True)
class SoftmaxAttention(TokenMixer):
    """Multi-head, grouped-query or multi-query attention over a growing (or windowed) KV cache.

    heads, kv_heads: query and key/value heads; head_dim, value_dim: their widths;
    window: only the last `window` tokens are kept and attended (None: all);
    output_gate: queries carry a gate of the same width (Qwen3-Next); shared_kv: one projection makes keys and values,
    which are kept apart all the same (Gemma 4); index_heads, index_dim, index_topk: indexer that selects the keys to
    attend (MiniMax-M3); 0 where all are attended; input_width: of what the projections read, if not the hidden one
    (Zamba2 puts the embedding beside the residual stream); reads_earlier_kv: attends the cache of an earlier layer,
    and neither makes nor keeps keys and values (Gemma 3n);
    query_rank: rank of the queries (Step-3; 0: full).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    output_gate: bool = False
    shared_kv: bool = False
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    input_width: int = 0
    reads_earlier_kv: bool = False
    query_rank: int = 0

    def __post_init__(self) -> None:
        """n_kv (d_k + d_v) elements a token, 2 d_k for a pair's score and 2 d_v for its value, index keys of 16 bit."""
        pair_flop = 2.0 * self.heads * (self.head_dim + self.value_dim)
        vars(self).update(
            kv_elements_per_token=self.kv_heads * (self.head_dim + self.value_dim),
            kv_shards=self.kv_heads,
            prefill_flop_per_pair=pair_flop,
            decode_flop_per_pair=pair_flop,
            selected=self.window or self.index_topk or None,
            kept=self.window,
            index_flop_per_pair=2.0 * self.index_heads * self.index_dim,
            index_bytes_per_token=2.0 * self.index_dim,
            query_heads=self.heads,
            query_dim=self.head_dim,
            prompt_width=float(self.heads * (self.head_dim + self.value_dim)),
        )

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """QKV and output projections, and those of an indexer."""
        queries = self.heads * self.head_dim * (2 if self.output_gate else 1)
        keys_values = self.kv_heads * (self.head_dim + (0 if self.shared_kv else self.value_dim))
        keys_values = 0 if self.reads_earlier_kv else keys_values
        inputs, projected = self.input_width or self.hidden, (self.query_rank or queries) + keys_values
        return nonempty(
            Matrix("qkv", inputs, projected, Sharding.COLUMN, Part.ATTENTION, merged=True),
            Matrix("q_b", self.query_rank, queries, Sharding.COLUMN, Part.ATTENTION),
            Matrix("o", self.heads * self.value_dim, self.hidden, Sharding.ROW, Part.ATTENTION),
            Matrix("index", self.hidden, (self.index_heads + 1) * self.index_dim, Sharding.REPLICATED, Part.ATTENTION),
        )


@dataclass(frozen=True)
class LatentAttention(TokenMixer):
    """Multi-head latent attention (DeepSeek-V2 §2.1): one compressed latent per token is cached for all heads.

    query_rank: rank of the query compression (0: none); latent_rank: rank of the KV latent;
    rope_dim: width of the shared rotary key; nope_dim, value_dim: per-head widths;
    index_heads, index_dim, index_topk: lightning indexer of sparse attention (DeepSeek-V3.2); 0 where dense; a layer
    with index_topk but no index heads attends the keys that an earlier layer selected (GLM-5.2);
    index_pool: tokens that share an index key, which a gate weighs (GLM-5.3-Flash; 0: each has its own);
    output_gate: a gate as wide as the heads' outputs (Kimi-K3); window: as of `SoftmaxAttention` (dots3);
    reads_earlier_kv: attends the latents of an earlier layer, and neither makes nor keeps any (Mistral Large 4).
    """

    is_latent: ClassVar[bool] = True

    hidden: int
    heads: int
    query_rank: int
    latent_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    index_pool: int = 0
    output_gate: bool = False
    window: int | None = None
    reads_earlier_kv: bool = False

    def __post_init__(self) -> None:
        """The latent and the shared rotary key are kept; sparse attention keeps every token.

        Prompts: decompressed, as multi-head attention, 2 (d_nope + d_rope) for the score and 2 d_v for the value. With
        an indexer, as many tokens as it selects: to decompress each query's own selection would take longer (vLLM's
        `sparse_mla_attention.py`, SGLang's `nsa_backend.py`). Decodes: absorbed (DeepSeek-V2 §2.1.2), score over latent
        and rope, value over latent. The indexer: 2 d_index per index head and pool of tokens, over the whole context;
        a token keeps its share of an FP8 index key and its 32-bit scale.
        """
        pool = self.index_pool or 1
        vars(self).update(
            kv_elements_per_token=self.latent_rank + self.rope_dim,
            prefill_flop_per_pair=2.0 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim),
            decode_flop_per_pair=2.0 * self.heads * (2 * self.latent_rank + self.rope_dim),
            decompressed=float(self.index_topk) if self.index_topk else math.inf,
            selected=self.window or self.index_topk or None,
            kept=self.window,
            index_flop_per_pair=2.0 * self.index_heads * self.index_dim / pool,
            index_bytes_per_token=(self.index_dim + 4.0) / pool if self.index_heads else 0.0,
            query_heads=self.heads,
            query_dim=self.nope_dim + self.rope_dim,
            prompt_width=2.0 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim),
            absorbed_width=self.heads * (2.0 * self.latent_rank + self.rope_dim),
        )

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Query, latent, up and output projections, a gate, and those of the indexer where there is one."""
        queries, outputs = self.heads * (self.nope_dim + self.rope_dim), self.heads * self.value_dim
        latent = 0 if self.reads_earlier_kv else self.latent_rank + self.rope_dim
        decompressed = self.heads * (self.nope_dim + self.value_dim)
        index_key = self.index_dim * (2 if self.index_pool else 1) + self.index_heads if self.index_heads else 0
        queried, down = self.query_rank or self.hidden, Sharding.REPLICATED
        return nonempty(
            Matrix("q_a", self.hidden, self.query_rank, down, Part.ATTENTION),
            Matrix("q_b" if self.query_rank else "q", queried, queries, Sharding.COLUMN, Part.ATTENTION),
            Matrix("kv_a", self.hidden, latent, down, Part.ATTENTION),
            Matrix("kv_b", self.latent_rank, decompressed, Sharding.COLUMN, Part.ATTENTION),
            Matrix("o", outputs, self.hidden, Sharding.ROW, Part.ATTENTION),
            Matrix("gate", self.hidden, outputs if self.output_gate else 0, Sharding.COLUMN, Part.ATTENTION),
            Matrix("index_q", queried, self.index_heads * self.index_dim, down, Part.ATTENTION),
            Matrix("index_k", self.hidden, index_key, down, Part.ATTENTION),
        )


CHUNK = 64
"""Tokens that kernels of linear attention take at once in prompts (`chunk_size` of flash-linear-attention, which vLLM
and SGLang run) [token]."""
OVERLAP_RATIO = 4
"""Tokens per latent whose windows overlap (`Compressor` of DeepSeek-V4) [token]."""


@dataclass(frozen=True)
class CompressedAttention(TokenMixer):
    """Attention over a window of tokens and, before it, one latent for every `ratio` tokens (DeepSeek-V4 §2.3).

    The latent is key and value of all heads at once. head_dim: its width; query_rank: rank of the query compression;
    ratio: tokens per compressed latent (0: the window alone); window: tokens that keep a latent of their own;
    output_groups, output_rank: low-rank output projection, one for each group of heads;
    index_heads, index_dim, index_topk: indexer that selects compressed latents; 0 where all of them are attended; a
    layer with index_topk but no index heads attends those that an earlier layer selected (DeepSeek-V4.1);
    reads_earlier_kv: attends the compressed latents and index keys of an earlier layer, and makes and keeps a window's
    latents alone (DeepSeek-V4.1).
    """

    is_latent: ClassVar[bool] = True

    hidden: int
    heads: int
    head_dim: int
    query_rank: int
    window: int
    ratio: int
    output_groups: int
    output_rank: int
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    reads_earlier_kv: bool = False

    def __post_init__(self) -> None:
        """A token keeps its share of a compressed latent, and of an FP8 index key with its 32-bit scale.

        The window stays at 16 bit whatever the cache has, of the size of a short prompt's cache, and is attended by
        every token; where there is no latent, no token outlasts it. Nothing is decompressed: the latent is key and
        value as it is, 2 d each, over the tokens that it stands for. The indexer selects latents, not tokens.
        """
        pair_flop = 4.0 * self.heads * self.head_dim / self.ratio if self.ratio else 0.0
        vars(self).update(
            kv_elements_per_token=self.head_dim / self.ratio if self.ratio else 0.0,
            state_bytes=2.0 * self.window * self.head_dim,
            prefill_flop_per_pair=pair_flop,
            decode_flop_per_pair=pair_flop,
            flop_per_token=4.0 * self.heads * self.head_dim * self.window,
            decompressed=0.0,
            selected=self.index_topk * self.ratio if self.index_topk else (None if self.ratio else 0),
            kept=None if self.ratio else 0,
            index_flop_per_pair=2.0 * self.index_heads * self.index_dim / self.ratio if self.index_heads else 0.0,
            index_bytes_per_token=(self.index_dim + 4.0) / self.ratio if self.index_heads else 0.0,
            query_heads=self.heads,
            query_dim=self.head_dim,
            prompt_width=2.0 * self.heads * self.head_dim,
            absorbed_width=2.0 * self.heads * self.head_dim,
        )

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Query, latent and output projections, the compressor, and the indexer with a compressor of its own."""
        width, apart = self.heads * self.head_dim, Sharding.REPLICATED
        outputs = self.output_groups * self.output_rank
        overlap = 2 if self.ratio == OVERLAP_RATIO else 1
        compresses = self.ratio and not self.reads_earlier_kv
        vectors = min(self.ratio, 2) * overlap if compresses else 0  # values and gates; one token needs no gate
        compressor_width = vectors * self.head_dim
        index_key = vectors * self.index_dim + self.index_heads if self.index_heads else 0
        return nonempty(
            Matrix("q_a", self.hidden, self.query_rank, apart, Part.ATTENTION),
            Matrix("q_b", self.query_rank, width, Sharding.COLUMN, Part.ATTENTION),
            Matrix("kv", self.hidden, self.head_dim + compressor_width, apart, Part.ATTENTION, merged=True),
            Matrix("o_a", width // self.output_groups, outputs, Sharding.COLUMN, Part.ATTENTION),
            Matrix("o_b", outputs, self.hidden, Sharding.ROW, Part.ATTENTION),
            Matrix("index_q", self.query_rank, self.index_heads * self.index_dim, apart, Part.ATTENTION),
            Matrix("index_k", self.hidden, index_key, apart, Part.ATTENTION),
        )


@dataclass(frozen=True)
class LinearAttention(TokenMixer):
    """A state of fixed size per request instead of a cache that grows: S = decay S + k v, y = q S.

    Gated DeltaNet (Yang 2024), Mamba-2 (Dao and Gu 2024: q, k are C, B of a group, v is the input, the decay a step
    size), lightning attention (Qin 2024). key_heads, value_heads, key_dim, value_dim: heads and widths;
    conv_width: taps of the short convolution (0: none); scalars: projected per value head, such as decay and write
    strength; products: of key and value width per token, three with the delta rule, which reads before it writes;
    decay_rank, gate_rank: ranks of a decay of its own for every key channel and of a compressed output gate (Kimi
    Delta Attention; 0: no such decay, a full gate); step_rank: rank of the step sizes of Mamba-1, where they and q, k
    come from the inner channels (0: from the hidden ones); state_bits: of an element of the state, 32 or 16 [bit] (0:
    nothing states it, and the serving engine decides; without one, 32); states: kept for each request, one for every
    token that a step verifies, so that the next goes on from the last accepted one (`costmodel.memory`).
    """

    reads_earlier_kv: ClassVar[bool] = False

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    scalars: int = 2
    products: int = 3
    decay_rank: int = 0
    gate_rank: int = 0
    step_rank: int = 0
    state_bits: int = 0
    states: int = 1

    def __post_init__(self) -> None:
        """A matrix d_k x d_v per value head, by which it splits, and a 16-bit window of the convolution.

        The convolution is over q, k and v, or over v alone where q and k come after it (Mamba-1). Without q and k it is
        all there is (LFM2). A token writes and queries the state, and with the delta rule reads it too: `products` of
        d_k x d_v per value head. No key is kept, so none is attended.

        Kernels of prompts in vLLM and SGLang: convolution, decays, their sums, state, outputs, gated norm, and products
        within chunks; with the delta rule the norms of q and k, an inverse and what it is applied to besides.
        """
        elements = self.value_heads * self.key_dim * self.value_dim if self.key_heads else 0
        recurrent = elements * (self.state_bits or 32) / 8.0
        channels = (0 if self.step_rank else 2 * self.key_heads * self.key_dim) + self.value_heads * self.value_dim
        vars(self).update(
            kv_shards=self.value_heads,
            state_bytes=self.states * (recurrent + 2.0 * channels * max(self.conv_width - 1, 0)),
            flop_per_token=2.0 * self.products * self.value_heads * self.key_dim * self.value_dim,
            selected=0,
            kept=0,
            prompt_kernels=11 if self.products > 2 else 7 if self.key_heads and not self.step_rank else 2,
        )

    @cached_property
    def prompt_work(self) -> tuple[float, float]:
        """FLOP and 16-bit elements to and from HBM of a prompt's token beside the matrices, in chunks of C tokens [1].

        A kernel carries the state from chunk to chunk, another makes the outputs: they read k and v twice, q once, and
        write and read a state for each chunk. With the delta rule (d = 1) others come before them (Yang 2024, eq. 10):
        k k^T, its inverse, and both applied to k and v. Of every value head, with the convolution and the gated norm:

            FLOP = 2 p K V + C ((2 + 4 d) K + (2 + 2 d) V)
            elements = (3 + 4 d) K + (3 + 3 d) V + 6 d C + 2 K V / C + 3 V + 2 channels
        """
        if self.step_rank or not self.key_heads:  # one scan, or a convolution alone
            return self.flop_per_token, 2.0 * self.hidden
        key, value, delta = self.key_dim, self.value_dim, float(self.products > 2)
        flop = CHUNK * ((2.0 + 4.0 * delta) * key + (2.0 + 2.0 * delta) * value)
        elements = (3.0 + 4.0 * delta) * key + (6.0 + 3.0 * delta) * value
        elements += 6.0 * delta * CHUNK + 2.0 * key * value / CHUNK
        convolution = 2.0 * (2 * self.key_heads * key + self.value_heads * value) * (self.conv_width > 0)
        return self.flop_per_token + self.value_heads * flop, self.value_heads * elements + convolution

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Projections to q, k, v, output gate, decay and scalars; output projection."""
        values, keys = self.value_heads * self.value_dim, 2 * self.key_heads * self.key_dim
        output = Matrix("o", values, self.hidden, Sharding.ROW, Part.ATTENTION)
        if self.step_rank:
            return nonempty(
                Matrix("xz", self.hidden, 2 * values, Sharding.COLUMN, Part.ATTENTION, merged=True),
                Matrix("steps", values, self.step_rank + keys, Sharding.ROW, Part.ATTENTION),
                Matrix("step", self.step_rank, values, Sharding.COLUMN, Part.ATTENTION),
                output,
            )
        inputs = keys + values + self.scalars * self.value_heads + self.decay_rank + (self.gate_rank or values)
        return nonempty(
            Matrix("qkvz", self.hidden, inputs, Sharding.COLUMN, Part.ATTENTION, merged=True),
            Matrix("decay", self.decay_rank, self.value_heads * self.key_dim, Sharding.COLUMN, Part.ATTENTION),
            Matrix("gate", self.gate_rank, values, Sharding.COLUMN, Part.ATTENTION),
            output,
        )


Attention = SoftmaxAttention | LatentAttention | CompressedAttention | LinearAttention
