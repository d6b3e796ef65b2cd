"""Token mixers as arithmetic: which matrices they multiply by, what they keep per token, how many FLOP a pair costs.

Three kinds, one interface: softmax attention (multi-head, grouped-query, multi-query, sliding-window), multi-head
latent attention (with or without a sparse indexer), and linear attention with a state of fixed size. Norms, biases,
short convolutions and attention sinks are left out: together they are below 0.1 % of a model's weights and traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Attention", "LatentAttention", "LinearAttention", "Matrix", "Part", "Sharding", "SoftmaxAttention"]


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


@dataclass(frozen=True, slots=True)
class SoftmaxAttention:
    """Multi-head, grouped-query or multi-query attention over a growing (or windowed) KV cache.

    heads, kv_heads: query and key/value heads; head_dim, value_dim: their widths;
    window: only the last `window` tokens are kept and attended (None: all);
    output_gate: queries carry a gate of the same width (Qwen3-Next).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    output_gate: bool = False

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """QKV and output projections."""
        queries = self.heads * self.head_dim * (2 if self.output_gate else 1)
        keys_values = self.kv_heads * (self.head_dim + self.value_dim)
        return (
            Matrix("qkv", self.hidden, queries + keys_values, Sharding.COLUMN, Part.ATTENTION, merged=True),
            Matrix("o", self.heads * self.value_dim, self.hidden, Sharding.ROW, Part.ATTENTION),
        )

    @property
    def kv_elements_per_token(self) -> int:
        """K and V kept for one token in one layer: n_kv (d_k + d_v)."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def kv_shards(self) -> int:
        """Largest tensor-parallel degree that still divides the KV cache; beyond it KV is replicated."""
        return self.kv_heads

    @property
    def state_bytes(self) -> float:
        """State kept per request whatever its length [byte]."""
        return 0.0

    @property
    def prefill_flop_per_pair(self) -> float:
        """FLOP of one query-key pair, all heads: 2 d_k for the score and 2 d_v for the value."""
        return 2.0 * self.heads * (self.head_dim + self.value_dim)

    @property
    def decode_flop_per_pair(self) -> float:
        """As in prefill: nothing is absorbed."""
        return self.prefill_flop_per_pair

    @property
    def selected(self) -> int | None:
        """Most keys that a query attends (None: all of them)."""
        return self.window

    @property
    def kept(self) -> int | None:
        """Most tokens that stay in the cache (None: all of them)."""
        return self.window

    @property
    def index_flop_per_pair(self) -> float:
        """FLOP of choosing keys, per query-key pair over the whole context."""
        return 0.0

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes of the index kept (and read) per token."""
        return 0.0

    @property
    def flop_per_token(self) -> float:
        """FLOP per token that neither matrices nor pairs account for."""
        return 0.0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2 §2.1): one compressed latent per token is cached for all heads.

    query_rank: rank of the query compression (0: none); latent_rank: rank of the KV latent;
    rope_dim: width of the shared rotary key; nope_dim, value_dim: per-head widths;
    index_heads, index_dim, index_topk: lightning indexer of sparse attention (DeepSeek-V3.2); 0 where dense; a layer
    with index_topk but no index heads attends the keys that an earlier layer selected (GLM-5.2).
    """

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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Query, latent, up and output projections, and those of the indexer where there is one."""
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
        latent = (
            Matrix("kv_a", self.hidden, self.latent_rank + self.rope_dim, down, Part.ATTENTION),
            Matrix(
                "kv_b", self.latent_rank, self.heads * (self.nope_dim + self.value_dim), Sharding.COLUMN, Part.ATTENTION
            ),
            Matrix("o", self.heads * self.value_dim, self.hidden, Sharding.ROW, Part.ATTENTION),
        )
        indexer = (
            (
                Matrix("index_q", self.query_rank, self.index_heads * self.index_dim, down, Part.ATTENTION),
                Matrix("index_k", self.hidden, self.index_dim + self.index_heads, down, Part.ATTENTION),
            )
            if self.index_heads
            else ()
        )
        return queries + latent + indexer

    @property
    def kv_elements_per_token(self) -> int:
        """The latent and the shared rotary key."""
        return self.latent_rank + self.rope_dim

    @property
    def kv_shards(self) -> int:
        """The latent serves all heads, so every tensor-parallel rank holds all of it."""
        return 1

    @property
    def state_bytes(self) -> float:
        """State kept per request whatever its length [byte]."""
        return 0.0

    @property
    def prefill_flop_per_pair(self) -> float:
        """Decompressed, as multi-head attention: 2 (d_nope + d_rope) for the score and 2 d_v for the value."""
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def decode_flop_per_pair(self) -> float:
        """Absorbed (DeepSeek-V2 §2.1.2): score over latent + rope, value over latent."""
        return 2.0 * self.heads * (2 * self.latent_rank + self.rope_dim)

    @property
    def selected(self) -> int | None:
        """Keys that the indexer selects per query (None: all)."""
        return self.index_topk or None

    @property
    def kept(self) -> int | None:
        """Sparse attention still keeps every token."""
        return None

    @property
    def index_flop_per_pair(self) -> float:
        """2 d_index per index head, over the whole context."""
        return 2.0 * self.index_heads * self.index_dim

    @property
    def index_bytes_per_token(self) -> float:
        """An FP8 index key and its 32-bit scale."""
        return self.index_dim + 4.0 if self.index_heads else 0.0

    @property
    def flop_per_token(self) -> float:
        """FLOP per token that neither matrices nor pairs account for."""
        return 0.0


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated DeltaNet (Yang 2024): a state of fixed size per request instead of a cache that grows.

    key_heads, value_heads, key_dim, value_dim: heads and widths; conv_width: taps of the short convolution.
    """

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Projections to q, k, v, output gate, decay and write strength; output projection."""
        values = self.value_heads * self.value_dim
        inputs = 2 * self.key_heads * self.key_dim + 2 * values + 2 * self.value_heads
        return (
            Matrix("qkvz", self.hidden, inputs, Sharding.COLUMN, Part.ATTENTION, merged=True),
            Matrix("o", values, self.hidden, Sharding.ROW, Part.ATTENTION),
        )

    @property
    def kv_elements_per_token(self) -> int:
        """Nothing grows with length."""
        return 0

    @property
    def kv_shards(self) -> int:
        """The state splits by value heads."""
        return self.value_heads

    @property
    def state_bytes(self) -> float:
        """A 32-bit matrix d_k x d_v per value head, and a 16-bit window of the convolution [byte]."""
        recurrent = 4.0 * self.value_heads * self.key_dim * self.value_dim
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return recurrent + 2.0 * channels * (self.conv_width - 1)

    @property
    def prefill_flop_per_pair(self) -> float:
        """No query meets a key."""
        return 0.0

    @property
    def decode_flop_per_pair(self) -> float:
        """No query meets a key."""
        return 0.0

    @property
    def selected(self) -> int | None:
        """No key is kept, so none is attended."""
        return 0

    @property
    def kept(self) -> int | None:
        """No token is kept."""
        return 0

    @property
    def index_flop_per_pair(self) -> float:
        """No index."""
        return 0.0

    @property
    def index_bytes_per_token(self) -> float:
        """No index."""
        return 0.0

    @property
    def flop_per_token(self) -> float:
        """Read, delta-rule write and query of the state: three d_k x d_v products per value head."""
        return 6.0 * self.value_heads * self.key_dim * self.value_dim


Attention = SoftmaxAttention | LatentAttention | LinearAttention
