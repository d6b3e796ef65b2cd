"""The transformer as arithmetic: which matrices, how much KV, how many FLOP. No model is special-cased by name.

A model is a sequence of layer groups; a group is `count` equal layers, each a token mixer followed by a
feed-forward block. Everything below follows from the shapes in a Hugging Face `config.json`. Norms and biases are left
out: they are below 0.1 % of the weights. Draft layers are no part of the model (`engine.Speculation`). At the
end: how a step's tokens fall onto routed experts, and what the most loaded expert-parallel rank gets of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray
from .attention import Attention, CompressedAttention, LinearAttention, Matrix, Part, Sharding, nonempty

Tokens = TypeVar("Tokens", float, NDArray[np.float64])

ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5, "int3": 0.375, "int2": 0.25}
"""Bytes per element alone."""
DTYPE_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128, "fp4": 0.5 + 1 / 16}
"""The same with scales where no checkpoint says otherwise (`WeightScale`): int4 in groups of 128 with a 16-bit one, fp4
in blocks of 16 with an 8-bit one."""
MXFP4_GROUP = 32
"""Weights that share a scale in MXFP4 [1] (OCP Microscaling Formats 1.0, table 1); NVFP4 has 16."""
STORED_BYTES = {
    **DTYPE_BYTES,
    "mxfp4": 0.5 + 1 / MXFP4_GROUP,
    "w4a16": 0.5 + 1 / MXFP4_GROUP,
    "w8a16": 1.0,
    "int3": 0.375 + 2 / 128,
    "int2": 0.25 + 2 / 128,
}
"""The same, and formats of some parts only: MXFP4 weights with FP8 inputs, and weights that are expanded to 16 bit
whatever the units could compute (w4a16: MXFP4)."""


@dataclass(frozen=True, slots=True)
class WeightScale:
    """Blocks of `outputs` x `inputs` weights [1] that share a scale, with its zero point `size` [byte].

    DeepSeek's FP8 has (128, 128, 4), AWQ (1, 128, 2.5), NVFP4 (1, 16, 1), MXFP4 (1, 32, 1).
    """

    outputs: int
    inputs: int
    size: float

    @property
    def bytes_per_element(self) -> float:
        """What a weight bears of its block's scale [byte]."""
        return self.size / (self.outputs * self.inputs)


@dataclass(frozen=True)
class FeedForward:
    """A dense block (experts = 0) or a mixture of experts, with a dense shared part beside the experts if any.

    intermediate: width of the dense block, or of all shared experts together (0: none; without experts too the layer
    has a token mixer alone); gated: SwiGLU-like, with gate and up projections; experts, experts_per_token,
    expert_intermediate: the mixture; latent: width that tokens are projected to before the experts (0: the hidden one);
    adapter: rank of a product of two matrices that tokens pass beside the block (adapters of Zamba2, embeddings of a
    layer's own in Gemma 3n; 0: none).
    """

    hidden: int
    intermediate: int
    gated: bool
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    latent: int = 0
    adapter: int = 0

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Dense (or shared) up and down projections, the router, the projections around latent experts, the adapter."""
        up = (2 if self.gated else 1) * self.intermediate
        return nonempty(
            Matrix("up", self.hidden, up, Sharding.COLUMN, Part.FEED_FORWARD, merged=self.gated),
            Matrix("down", self.intermediate, self.hidden, Sharding.ROW, Part.FEED_FORWARD),
            Matrix("router", self.hidden, self.experts, Sharding.REPLICATED, Part.EMBEDDING),
            Matrix("latent_in", self.hidden, self.latent, Sharding.REPLICATED, Part.FEED_FORWARD),
            Matrix("latent_out", self.latent, self.hidden, Sharding.REPLICATED, Part.FEED_FORWARD),
            Matrix("adapter_in", self.hidden, self.adapter, Sharding.REPLICATED, Part.FEED_FORWARD),
            Matrix("adapter_out", self.adapter, self.hidden, Sharding.REPLICATED, Part.FEED_FORWARD),
        )

    @property
    def expert_hidden(self) -> int:
        """Width of what an expert reads and writes."""
        return self.latent or self.hidden

    @property
    def is_empty(self) -> bool:
        """Whether there is no feed-forward at all."""
        return not (self.intermediate or self.experts or self.adapter)

    @property
    def elements_per_expert(self) -> int:
        """Weights of one expert."""
        return (3 if self.gated else 2) * self.expert_hidden * self.expert_intermediate

    def padding(self, multiples: tuple[int, int], ranks: int) -> float:
        """Weights of 1 / `ranks` of an expert with hidden size and width rounded up to `multiples`, over its own [1].

        Of memory alone: the efficiency of steps is fitted to kernels by unpadded sizes, and so holds what it takes.

        >>> FeedForward(2880, 0, True, 32, 4, 2880).padding((256, 128), 1)  # 3072 x 2944 of 2880 x 2880
        1.0903703703703704
        """
        if not self.experts:
            return 1.0
        share = self.expert_intermediate / ranks
        hidden = ceil(self.expert_hidden / multiples[0]) * multiples[0]
        width = ceil(share / multiples[1]) * multiples[1]
        return hidden * width / (self.expert_hidden * share)


@dataclass(frozen=True)
class LayerGroup:
    """`count` equal layers.

    parallel: attention and feed-forward read the same input and their outputs are added (PaLM, GPT-J), so that
    tensor parallelism needs one all-reduce a layer instead of two.
    sets: sets of weights that the layers share, each computing with one of them (Zamba2, and models that pass all of
    their layers several times: Ouro); 0: every layer has its own.
    joined: hidden states that are projected to one before a draft layer (`engine.Speculation`); 0: no projection.
    tail: tokens at the end of a prompt's chunk that pass these layers; 0: all of them. Layers after the last that makes
    keys and values keep a window alone, so that nothing reads what earlier tokens would leave there (DeepSeek-V4.1;
    vLLM's `--swa-bounded-replay`, its default, SGLang's `--enable-decoder-swa-bounded-replay`).
    """

    count: int
    attention: Attention
    feed_forward: FeedForward
    parallel: bool = False
    sets: int = 0
    joined: int = 0
    tail: int = 0

    def tail_of(self, tokens: FloatArray) -> FloatArray:
        """Tokens that pass these layers, of a chunk of so many of a prompt [token]."""
        return np.minimum(tokens, float(self.tail)) if self.tail else tokens

    @property
    def weight_sets(self) -> int:
        """Layers' weights that are stored [1]."""
        return min(self.count, self.sets) if self.sets else self.count

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every dense matrix of one layer (experts apart)."""
        hidden = self.attention.hidden
        join = Matrix("join", self.joined * hidden, hidden, Sharding.REPLICATED, Part.EMBEDDING)
        return nonempty(join, *self.attention.matrices, *self.feed_forward.matrices)

    @property
    def dense_elements(self) -> int:
        """Weights of one layer without its routed experts."""
        return sum(matrix.elements for matrix in self.matrices)

    def cached_bytes(self, kv_dtype: str) -> float:
        """KV and index keys that one token adds in all of these layers; none where they read those of others [byte]."""
        attention = self.attention
        if attention.reads_earlier_kv:
            return 0.0
        per_layer = attention.kv_elements_per_token * DTYPE_BYTES[kv_dtype] + attention.index_bytes_per_token
        return self.count * per_layer

    @property
    def expert_elements(self) -> int:
        """Weights of one layer's routed experts."""
        return self.feed_forward.experts * self.feed_forward.elements_per_expert


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer.

    layers: groups of equal layers; vocab: rows of the embedding; tied_embeddings: output head shares them;
    looked_up: weights of tables that are looked up beside the embedding, not multiplied: learned positions, and
    embeddings of tokens for each layer (Gemma 3n);
    towers: weights of towers for images and sound beside the language model, which no token of text is multiplied by
    and no count of parameters has;
    host_tables: weights of one byte in tables of n-grams, of which a token reads a few rows, and which engines keep in
    host memory (Engram of DeepSeek-V4.1; vLLM's default); no count of parameters has them either;
    draft_layers: layers of the checkpoint that predict further tokens (MTP), which no count has either;
    max_position: longest context the model was made for [token];
    native_weight_dtype: dtype of the published checkpoint; quantized: the parts that this (or any) quantised
    checkpoint stores in `weight_dtype`, the rest staying at 16 bit;
    own_dtypes: dtypes of parts that are stored in another one than either (`STORED_BYTES`);
    mixed_bytes: mean bytes of a weight of parts whose matrices the checkpoint stores in several formats [byte];
    weight_scale: blocks of the checkpoint's weights that share a scale; None: whole channels or tensors do;
    cache_quantizer: the tool that made the checkpoint, where its config states a KV cache in FP8; empty: it does not.
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[LayerGroup, ...]
    tied_embeddings: bool
    max_position: int
    looked_up: int = 0
    towers: int = 0
    host_tables: int = 0
    draft_layers: int = 0
    native_weight_dtype: str = "bf16"
    quantized: frozenset[Part] = frozenset({Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS})
    source: str = ""
    date: str = ""
    own_dtypes: frozenset[tuple[Part, str]] = frozenset()
    mixed_bytes: frozenset[tuple[Part, float]] = frozenset()
    weight_scale: WeightScale | None = None
    cache_quantizer: str = ""

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return sum(group.count for group in self.layers)

    @property
    def embedding_elements(self) -> int:
        """Weights of input embedding and output head (unless tied)."""
        return self.hidden * self.vocab * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """Weights of the language model [1]."""
        layers = sum(group.weight_sets * (group.dense_elements + group.expert_elements) for group in self.layers)
        return layers + self.embedding_elements + self.looked_up

    @property
    def active_parameters(self) -> int:
        """Weights that one token meets: of the routed experts only the chosen ones, and no table of `looked_up`."""
        inactive = sum(
            group.weight_sets
            * (group.feed_forward.experts - group.feed_forward.experts_per_token)
            * group.feed_forward.elements_per_expert
            for group in self.layers
            if group.feed_forward.experts
        )
        return self.parameters - self.looked_up - inactive

    @property
    def prompt_parameters(self) -> int:
        """The same of the tokens of a long prompt, which do not pass layers with a `tail`."""
        return replace(self, layers=tuple(group for group in self.layers if not group.tail)).active_parameters

    @property
    def matmul_parameters(self) -> int:
        """Weights that multiply each token: the active ones without the input embedding, which is looked up.

        The N of FLOP = 2 N per token; a tied embedding counts once, as the output head, and weights that layers share
        in each of them.
        """
        again = sum((group.count - group.weight_sets) * group.dense_elements for group in self.layers)
        return self.active_parameters - self.embedding_elements + self.hidden * self.vocab + again

    @property
    def state_bytes(self) -> float:
        """State that one request holds whatever its length: linear attention's [byte]."""
        return sum(group.count * group.attention.state_bytes for group in self.layers)

    @property
    def state_bits(self) -> int:
        """Bits of an element of linear attention's state [bit]; 0 where there is none, or nothing states them."""
        mixers = (group.attention for group in self.layers)
        states = [mixer.state_bits for mixer in mixers if isinstance(mixer, LinearAttention) and mixer.key_heads]
        return max(states, default=0)

    def with_states(self, bits: int) -> Transformer:
        """The model with states of `bits` per element [bit] in layers of linear attention that state none."""

        def kept(group: LayerGroup) -> LayerGroup:
            mixer = group.attention
            if not isinstance(mixer, LinearAttention) or mixer.state_bits or not mixer.key_heads:
                return group
            return replace(group, attention=replace(mixer, state_bits=bits))

        return replace(self, layers=tuple(map(kept, self.layers)))

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return any(group.feed_forward.experts for group in self.layers)

    @property
    def is_latent(self) -> bool:
        """Whether any layer keeps one latent for all heads (MLA)."""
        return any(group.attention.is_latent for group in self.layers)

    @property
    def is_compressed(self) -> bool:
        """Whether any layer keeps one latent for several tokens (DeepSeek-V4)."""
        return any(isinstance(group.attention, CompressedAttention) for group in self.layers)

    def bytes_per_element(self, part: Part, weight_dtype: str) -> float:
        """Bytes of one weight of `part` when the model is served in `weight_dtype`; embeddings stay at 16 bit."""
        mixed = dict(self.mixed_bytes) if weight_dtype == self.native_weight_dtype else {}
        if part in mixed:
            return mixed[part]
        dtype = self.part_dtype(part, weight_dtype)
        if dtype != self.native_weight_dtype:
            return STORED_BYTES[dtype]
        return ELEMENT_BYTES[dtype] + (self.weight_scale.bytes_per_element if self.weight_scale else 0.0)

    def is_mxfp4(self, dtype: str) -> bool:
        """Whether weights stored in a dtype are MXFP4: 4-bit floats of which 32 share a scale."""
        scale = self.weight_scale if dtype == "fp4" == self.native_weight_dtype else None
        return dtype in {"mxfp4", "w4a16"} or (scale is not None and scale.inputs == MXFP4_GROUP)

    def part_dtype(self, part: Part, weight_dtype: str) -> str:
        """Dtype in which the weights of `part` are stored when the model is served in `weight_dtype`."""
        own = next((dtype for owner, dtype in self.own_dtypes if owner is part), None)
        return own or (weight_dtype if part in self.quantized else "bf16")

    def redundant_experts(self, ranks: int) -> int:
        """Second copies of experts in each layer, for `ranks` expert-parallel ranks to hold as many each [1]."""
        counts = {group.feed_forward.experts for group in self.layers if group.feed_forward.experts}
        return max((expert_slots(count, ranks) - count for count in counts), default=0)

    def weight_bytes(self, weight_dtype: str) -> float:
        """Weights of the whole checkpoint, towers and tables among them [byte]."""
        dense = sum(
            group.weight_sets * matrix.elements * self.bytes_per_element(matrix.part, weight_dtype)
            for group in self.layers
            for matrix in group.matrices
        )
        experts = sum(group.weight_sets * group.expert_elements for group in self.layers)
        tables = self.embedding_elements + self.looked_up + self.towers
        embedding = tables * self.bytes_per_element(Part.EMBEDDING, weight_dtype)
        return dense + experts * self.bytes_per_element(Part.EXPERTS, weight_dtype) + embedding + self.host_tables

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """KV bytes that one more token adds while no window is full [byte/token].

        kv_bytes_per_token = sum over layers of n_kv (d_k + d_v) x bytes;
        for equal K and V heads this is 2 L n_kv d_head x bytes.

        >>> from costmodel.attention import SoftmaxAttention
        >>> attention = SoftmaxAttention(hidden=4096, heads=32, kv_heads=32, head_dim=128, value_dim=128)
        >>> layer = LayerGroup(32, attention, FeedForward(4096, 11008, gated=True))
        >>> Transformer("Llama-2-7B", 4096, 32000, (layer,), False, 4096).kv_bytes_per_token("bf16")
        524288.0
        """
        return sum(group.cached_bytes(kv_dtype) for group in self.layers)

    def kv_bytes(self, context: Tokens, kv_dtype: str) -> Tokens:
        """Cache that one request of `context` tokens holds [byte]; it is also what a KV transfer of that prompt moves.

        kv_bytes = sum over layers of min(context, kept) x bytes per token + state; windowed layers keep their window
        only, linear attention a state of fixed size. context [token] may be an array.

        >>> from costmodel.attention import SoftmaxAttention
        >>> attention = SoftmaxAttention(hidden=4096, heads=32, kv_heads=8, head_dim=128, value_dim=128, window=4096)
        >>> layer = LayerGroup(32, attention, FeedForward(4096, 14336, gated=True))
        >>> model = Transformer("Mistral-7B", 4096, 32000, (layer,), False, 32768)
        >>> [float(model.kv_bytes(tokens, "bf16")) / 2**10 for tokens in (1000.0, 9000.0)]  # 128 KiB per token
        [128000.0, 524288.0]
        """
        return self.mean_kv_bytes(context, 0.0 * context, kv_dtype)

    def mean_kv_bytes(self, isl: Tokens, osl: Tokens, kv_dtype: str) -> Tokens:
        """Cache held by one request, averaged over its generation [byte].

        Mean of kv_bytes(x) for x from isl to isl + osl at an even pace: without windows kv_bytes(isl + osl / 2); a
        layer that keeps w tokens adds (integral of min(x, w)) / osl, exact also where generation fills the window.
        isl, osl [token] may be arrays that broadcast together.
        """
        size = 0.0 * (isl + osl) + self.state_bytes
        for group in self.layers:
            if per_token := group.cached_bytes(kv_dtype):
                size = size + per_token * _mean_kept(isl, osl, group.attention.kept)
        return size


def _mean_kept(isl: Tokens, osl: Tokens, window: int | None) -> Tokens:
    """Mean of min(x, window) for x from isl to isl + osl [token]; min(isl, window) where osl is 0."""
    if window is None:
        return isl + 0.5 * osl
    start: Tokens = np.minimum(isl, float(window))
    filling: Tokens = np.minimum(np.maximum(float(window) - isl, 0.0), osl)  # generated before the window is full
    missing_share: Tokens = 0.5 * filling / np.maximum(osl, sys.float_info.min)
    return start + filling * (1.0 - missing_share)


Count = float | FloatArray
Ranks = TypeVar("Ranks", int, FloatArray)


@dataclass(frozen=True, slots=True)
class Routed:
    """One expert-parallel rank, the busiest.

    rows: (token, expert) pairs that it computes; touched: distinct experts that they reach;
    elsewhere: pairs of the same tokens that other ranks compute.
    """

    rows: FloatArray
    touched: FloatArray
    elsewhere: FloatArray


def expert_slots(experts: int, ranks: Ranks) -> Ranks:
    """Places for the experts of a layer on `ranks` expert-parallel ranks, ep ceil(E / ep) [1].

    Every rank holds as many. Where ep does not divide E, the places beyond E hold second copies of experts (redundant
    experts), which take their share of the tokens.

    >>> [expert_slots(256, ranks) for ranks in (1, 8, 72, 320)]
    [256, 256, 288, 320]
    """
    slots: Ranks = -(-experts // ranks) * ranks
    return slots


def touched_experts(
    experts: Count, per_token: Count, tokens: FloatArray, spread: float | FloatArray | None = None
) -> FloatArray:
    """Distinct experts that `tokens` tokens reach: k + (E - k) (1 - (1 + s^2 x)^(-1 / s^2)), x = -(t - 1) ln(1 - k/E).

    The first token reaches k; each of the others is reached by x more on average. Experts whose popularity is gamma
    distributed with standard deviation s over its mean stay idle with the probability (1 + s^2 x)^(-1 / s^2) (negative
    binomial, Greenwood and Yule 1920); s = 0, uniform routing, leaves E (1 - (1 - k/E)^t).

    >>> round(float(touched_experts(8, 2, np.float64(1), 0.8)), 9)
    2.0
    >>> [round(float(touched_experts(256, 8, np.float64(64), s)), 1) for s in (0.0, 0.5, 1.0)]
    [222.4, 207.0, 173.3]
    """
    choice_share = np.minimum(per_token / experts, 1.0 - 1e-15)
    further = -np.maximum(tokens - 1.0, 0.0) * np.log1p(-choice_share)
    if spread is not None and np.any(spread):
        variance = np.maximum(np.square(spread), 1e-9)
        further = np.log1p(variance * further) / variance
    return np.asarray(per_token * np.minimum(tokens, 1.0) - (experts - per_token) * np.expm1(-further))


SAMPLED_RANGE = 0.8
"""Hottest over coldest expert in the kernel tables' routing, per token of the batch (NVIDIA AIConfigurator) [1]."""
SAMPLED_SPREAD = 0.75
"""Share of that routing's standard deviation that the experts short of the hottest have; fitted to the tables [1]."""


def sampled_spread(tokens: FloatArray) -> FloatArray:
    """Spread among the ordinary experts of the routing that the kernel tables draw [1].

    Popularity follows a power law of exponent about 1 between 1 and M = 0.8 tokens. Its mean is (M - 1) / ln M, its
    squared relative deviation (M + 1) ln M / (2 (M - 1)) - 1.

    >>> [round(float(sampled_spread(np.float64(t))), 2) for t in (1, 32, 1024)]
    [0.0, 0.65, 1.15]
    """
    most = np.maximum(SAMPLED_RANGE * tokens, 1.0 + 1e-6)
    variance = (most + 1.0) * np.log(most) / (2.0 * (most - 1.0)) - 1.0
    return np.asarray(SAMPLED_SPREAD * np.sqrt(np.maximum(variance, 0.0)))


def imbalance(experts: Count, per_token: Count, ranks: FloatArray, largest: FloatArray, skew: float) -> FloatArray:
    """Load of the busiest rank over the mean load [1].

    skew: standard deviation of the experts' popularity over its mean. A rank holds E / ep experts, so the loads of
    ranks scatter by skew / sqrt(E / ep), and the largest of ep is x = largest x skew / sqrt(E / ep) above the mean.
    A token has at most min(k, E / ep) of its k choices on one rank, so the load stays below ep min(k, E / ep) / k:
    with m = that limit - 1, imbalance = 1 + x m / (x + m).

    >>> eight, peak = np.float64(8), np.float64(1.43)
    >>> [round(float(imbalance(e, 8, eight, peak, 1.0)), 2) for e in (64, 256)]
    [1.47, 1.24]
    """
    rank_experts = experts / ranks
    room = np.maximum(ranks * np.minimum(per_token, rank_experts) / per_token - 1.0, 0.0)
    above = largest * skew / np.sqrt(rank_experts)
    return np.asarray(1.0 + above * room / np.maximum(above + room, 1e-12))


def busiest_expert_rank(
    experts: Count,
    per_token: Count,
    tokens: FloatArray,
    ranks: FloatArray,
    factor: FloatArray,
    *,
    spread: float | FloatArray | None = None,
) -> Routed:
    """What the rank with `factor` times the mean load computes when `tokens` tokens choose `per_token` experts each.

    spread: of the popularity of experts within a rank, as in `touched_experts`. The rank holds E / ep experts and sees
    rows = tokens k / ep x factor; it touches at least one expert, and no more than it holds or the tokens choose.
    """
    rank_experts = experts / ranks
    most = np.minimum(rank_experts, tokens * np.minimum(per_token, rank_experts))
    busy_count = np.minimum(np.maximum(touched_experts(experts, per_token, tokens * factor, spread) / ranks, 1.0), most)
    rows = np.maximum(tokens * per_token / ranks * factor, busy_count)
    return Routed(rows, busy_count, np.maximum(tokens * per_token - rows, 0.0))
