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


class TokenMixer:
    """What mixers differ in, where one has nothing of it: what is kept for a token or a request, chosen, computed."""

    __slots__ = ()
    is_latent: ClassVar[bool] = False

    @property
    def kv_elements_per_token(self) -> float:
        """What a layer attends for one token, and keeps unless it is another's."""
        return 0.0

    @property
    def kv_shards(self) -> int:
        """Largest tensor-parallel degree that still divides the cache; beyond it every rank holds all of it."""
        return 1

    @property
    def state_bytes(self) -> float:
        """State kept per request whatever its length [byte]."""
        return 0.0

    @property
    def prefill_flop_per_pair(self) -> float:
        """FLOP of one query-key pair, all heads."""
        return 0.0

    @property
    def decode_flop_per_pair(self) -> float:
        """The same while decoding, where a cache may be read as it is kept."""
        return self.prefill_flop_per_pair

    @property
    def decompressed(self) -> float:
        """Context up to which prompts attend keys and values of every head, and not what is cached [token]."""
        return math.inf

    @property
    def selected(self) -> int | None:
        """Most keys that a query attends (None: all of them)."""
        return None

    @property
    def kept(self) -> int | None:
        """Most tokens that stay in the cache (None: all of them)."""
        return None

    @property
    def index_flop_per_pair(self) -> float:
        """FLOP of choosing keys, per query-key pair over the whole context."""
        return 0.0

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes of the index key that each token keeps, and that a query reads [byte]."""
        return 0.0

    @property
    def flop_per_token(self) -> float:
        """FLOP per token that neither matrices nor pairs account for."""
        return 0.0


@dataclass(frozen=True, slots=True)
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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """QKV and output projections, and those of an indexer."""
        queries = self.heads * self.head_dim * (2 if self.output_gate else 1)
        keys_values = self.kv_heads * (self.head_dim + (0 if self.shared_kv else self.value_dim))
        keys_values = 0 if self.reads_earlier_kv else keys_values
        ups = (Matrix("q_b", self.query_rank, queries, Sharding.COLUMN, Part.ATTENTION),) if self.query_rank else ()
        index = (self.index_heads + 1) * self.index_dim
        indexer = (Matrix("index", self.hidden, index, Sharding.REPLICATED, Part.ATTENTION),) if index else ()
        return (
            Matrix(
                "qkv",
                self.input_width or self.hidden,
                (self.query_rank or queries) + keys_values,
                Sharding.COLUMN,
                Part.ATTENTION,
                merged=True,
            ),
            *ups,
            Matrix("o", self.heads * self.value_dim, self.hidden, Sharding.ROW, Part.ATTENTION),
            *indexer,
        )

    @property
    def kv_elements_per_token(self) -> float:
        """K and V that a layer attends for one token, and keeps unless they are another's: n_kv (d_k + d_v)."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def kv_shards(self) -> int:
        """Largest tensor-parallel degree that still divides the KV cache; beyond it KV is replicated."""
        return self.kv_heads

    @property
    def prefill_flop_per_pair(self) -> float:
        """FLOP of one query-key pair, all heads: 2 d_k for the score and 2 d_v for the value."""
        return 2.0 * self.heads * (self.head_dim + self.value_dim)

    @property
    def selected(self) -> int | None:
        """Most keys that a query attends (None: all of them)."""
        return self.window or self.index_topk or None

    @property
    def kept(self) -> int | None:
        """Most tokens that stay in the cache (None: all of them)."""
        return self.window

    @property
    def index_flop_per_pair(self) -> float:
        """FLOP of choosing keys, per query-key pair over the whole context."""
        return 2.0 * self.index_heads * self.index_dim

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes of the 16-bit index key that each token keeps, and that a query reads [byte]."""
        return 2.0 * self.index_dim


@dataclass(frozen=True, slots=True)
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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Query, latent, up and output projections, a gate, and those of the indexer where there is one."""
        query_width = self.heads * (self.nope_dim + self.rope_dim)
        down = Sharding.REPLICATED
        queries = (
            (
                Matrix("q_a", self.hidden, self.query_rank, down, Part.ATTENTION),
                Matrix("q_b", self.query_rank, query_width, Sharding.COLUMN, Part.ATTENTION),
            )
            if self.query_rank
            else (Matrix("q", self.hidden, query_width, Sharding.COLUMN, Part.ATTENTION),)
        )
        compression = Matrix("kv_a", self.hidden, self.latent_rank + self.rope_dim, down, Part.ATTENTION)
        latent = (
            *(() if self.reads_earlier_kv else (compression,)),
            Matrix(
                "kv_b", self.latent_rank, self.heads * (self.nope_dim + self.value_dim), Sharding.COLUMN, Part.ATTENTION
            ),
            Matrix("o", self.heads * self.value_dim, self.hidden, Sharding.ROW, Part.ATTENTION),
        )
        gate = (
            (Matrix("gate", self.hidden, self.heads * self.value_dim, Sharding.COLUMN, Part.ATTENTION),)
            if self.output_gate
            else ()
        )
        keys = self.index_dim * (2 if self.index_pool else 1)
        queried = self.query_rank or self.hidden
        indexer = (
            (
                Matrix("index_q", queried, self.index_heads * self.index_dim, down, Part.ATTENTION),
                Matrix("index_k", self.hidden, keys + self.index_heads, down, Part.ATTENTION),
            )
            if self.index_heads
            else ()
        )
        return queries + latent + gate + indexer

    @property
    def kv_elements_per_token(self) -> float:
        """The latent and the shared rotary key."""
        return self.latent_rank + self.rope_dim

    @property
    def prefill_flop_per_pair(self) -> float:
        """Decompressed, as multi-head attention: 2 (d_nope + d_rope) for the score and 2 d_v for the value."""
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def decode_flop_per_pair(self) -> float:
        """Absorbed (DeepSeek-V2 §2.1.2): score over latent + rope, value over latent."""
        return 2.0 * self.heads * (2 * self.latent_rank + self.rope_dim)

    @property
    def decompressed(self) -> float:
        """With an indexer, as many tokens as it selects: to decompress each query's own selection would take longer.

        So do vLLM (`sparse_mla_attention.py`) and SGLang (`nsa_backend.py`).
        """
        return float(self.index_topk) if self.index_topk else math.inf

    @property
    def selected(self) -> int | None:
        """Keys of the window, or that the indexer selects per query (None: all)."""
        return self.window or self.index_topk or None

    @property
    def kept(self) -> int | None:
        """The window; sparse attention keeps every token."""
        return self.window

    @property
    def index_flop_per_pair(self) -> float:
        """2 d_index per index head and pool of tokens, over the whole context."""
        return 2.0 * self.index_heads * self.index_dim / (self.index_pool or 1)

    @property
    def index_bytes_per_token(self) -> float:
        """A token's share of an FP8 index key and its 32-bit scale."""
        return (self.index_dim + 4.0) / (self.index_pool or 1) if self.index_heads else 0.0


@dataclass(frozen=True, slots=True)
class CompressedAttention(TokenMixer):
    """Attention over a window of tokens and, before it, one latent for every `ratio` tokens (DeepSeek-V4 §2.3).

    The latent is key and value of all heads at once. head_dim: its width; query_rank: rank of the query compression;
    ratio: tokens per compressed latent (0: the window alone); window: tokens that keep a latent of their own;
    output_groups, output_rank: low-rank output projection, one for each group of heads;
    index_heads, index_dim, index_topk: indexer that selects compressed latents; 0 where all of them are attended.
    """

    is_latent: ClassVar[bool] = True
    reads_earlier_kv: ClassVar[bool] = False

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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Query, latent and output projections, the compressor, and the indexer with a compressor of its own."""
        width, apart = self.heads * self.head_dim, Sharding.REPLICATED
        outputs = self.output_groups * self.output_rank
        overlap = 2 if self.index_heads else 1  # windows of the indexed layers overlap
        compressor_width = 2 * overlap * self.head_dim if self.ratio else 0
        indexer = (
            (
                Matrix("index_q", self.query_rank, self.index_heads * self.index_dim, apart, Part.ATTENTION),
                Matrix("index_k", self.hidden, 4 * self.index_dim + self.index_heads, apart, Part.ATTENTION),
            )
            if self.index_heads
            else ()
        )
        return (
            Matrix("q_a", self.hidden, self.query_rank, apart, Part.ATTENTION),
            Matrix("q_b", self.query_rank, width, Sharding.COLUMN, Part.ATTENTION),
            Matrix("kv", self.hidden, self.head_dim + compressor_width, apart, Part.ATTENTION, merged=True),
            Matrix("o_a", width // self.output_groups, outputs, Sharding.COLUMN, Part.ATTENTION),
            Matrix("o_b", outputs, self.hidden, Sharding.ROW, Part.ATTENTION),
            *indexer,
        )

    @property
    def kv_elements_per_token(self) -> float:
        """A token's share of a compressed latent."""
        return self.head_dim / self.ratio if self.ratio else 0.0

    @property
    def state_bytes(self) -> float:
        """The window, at 16 bit whatever the cache has: the size of a short prompt's cache [byte]."""
        return 2.0 * self.window * self.head_dim

    @property
    def decompressed(self) -> float:
        """No token: the latent is key and value as it is."""
        return 0.0

    @property
    def prefill_flop_per_pair(self) -> float:
        """2 d for the score and 2 d for the value of each compressed latent, over the tokens that it stands for."""
        return 4.0 * self.heads * self.head_dim / self.ratio if self.ratio else 0.0

    @property
    def selected(self) -> int | None:
        """Tokens behind the latents that a query attends (None: all)."""
        return self.index_topk * self.ratio if self.index_heads else (None if self.ratio else 0)

    @property
    def kept(self) -> int | None:
        """Every compressed latent stays; where there is none, no token outlasts the window."""
        return None if self.ratio else 0

    @property
    def index_flop_per_pair(self) -> float:
        """2 d_index per index head and compressed latent, over the whole context."""
        return 2.0 * self.index_heads * self.index_dim / self.ratio if self.index_heads else 0.0

    @property
    def index_bytes_per_token(self) -> float:
        """A token's share of an FP8 index key and its 32-bit scale."""
        return (self.index_dim + 4.0) / self.ratio if self.index_heads else 0.0

    @property
    def flop_per_token(self) -> float:
        """Attention within the window."""
        return 4.0 * self.heads * self.head_dim * self.window


@dataclass(frozen=True, slots=True)
class LinearAttention(TokenMixer):
    """A state of fixed size per request instead of a cache that grows: S = decay S + k v, y = q S.

    Gated DeltaNet (Yang 2024), Mamba-2 (Dao and Gu 2024: q, k are C, B of a group, v is the input, the decay a step
    size), lightning attention (Qin 2024). key_heads, value_heads, key_dim, value_dim: heads and widths;
    conv_width: taps of the short convolution (0: none); scalars: projected per value head, such as decay and write
    strength; products: of key and value width per token, three with the delta rule, which reads before it writes;
    decay_rank, gate_rank: ranks of a decay of its own for every key channel and of a compressed output gate (Kimi
    Delta Attention; 0: no such decay, a full gate); step_rank: rank of the step sizes of Mamba-1, where they and q, k
    come from the inner channels (0: from the hidden ones).
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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Projections to q, k, v, output gate, decay and scalars; output projection."""
        values, keys = self.value_heads * self.value_dim, 2 * self.key_heads * self.key_dim
        if self.step_rank:
            return (
                Matrix("xz", self.hidden, 2 * values, Sharding.COLUMN, Part.ATTENTION, merged=True),
                Matrix("steps", values, self.step_rank + keys, Sharding.ROW, Part.ATTENTION),
                Matrix("step", self.step_rank, values, Sharding.COLUMN, Part.ATTENTION),
                Matrix("o", values, self.hidden, Sharding.ROW, Part.ATTENTION),
            )
        inputs = keys + values + self.scalars * self.value_heads + self.decay_rank + (self.gate_rank or values)
        ups = (
            Matrix(name, rank, width, Sharding.COLUMN, Part.ATTENTION)
            for name, rank, width in (
                ("decay", self.decay_rank, self.value_heads * self.key_dim),
                ("gate", self.gate_rank, values),
            )
            if rank
        )
        return (
            Matrix("qkvz", self.hidden, inputs, Sharding.COLUMN, Part.ATTENTION, merged=True),
            *ups,
            Matrix("o", values, self.hidden, Sharding.ROW, Part.ATTENTION),
        )

    @property
    def kv_shards(self) -> int:
        """The state splits by value heads."""
        return self.value_heads

    @property
    def state_bytes(self) -> float:
        """A 32-bit matrix d_k x d_v per value head, and a 16-bit window of the convolution [byte].

        The convolution is over q, k and v, or over v alone where q and k come after it (Mamba-1). Without q and k it is
        all there is (LFM2).
        """
        recurrent = 4.0 * self.value_heads * self.key_dim * self.value_dim if self.key_heads else 0.0
        keys = 0 if self.step_rank else 2 * self.key_heads * self.key_dim
        channels = keys + self.value_heads * self.value_dim
        return recurrent + 2.0 * channels * max(self.conv_width - 1, 0)

    @property
    def selected(self) -> int | None:
        """No key is kept, so none is attended."""
        return 0

    @property
    def kept(self) -> int | None:
        """No token is kept."""
        return 0

    @property
    def flop_per_token(self) -> float:
        """Write and query of the state, with the delta rule also a read: products of d_k x d_v per value head."""
        return 2.0 * self.products * self.value_heads * self.key_dim * self.value_dim


Attention = SoftmaxAttention | LatentAttention | CompressedAttention | LinearAttention
