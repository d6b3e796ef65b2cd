"""What fits into a GPU (weights, activations, runtime and KV blocks), and handing the KV to another engine.

Pipeline stages differ (the first holds the embedding, the last the head, and layers need not divide evenly); the
worst stage decides, for weights and for KV apart, so capacity is never overstated. Functions of lengths and links take
floats or arrays that broadcast together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce
from operator import add
from typing import TypeVar

import numpy as np

from .accelerator import Link
from .arrays import FloatArray
from .attention import LatentAttention, LinearAttention, Part, Sharding
from .engine import EngineConfig, FractionOf, Parallelism, with_draft
from .transformer import DTYPE_BYTES, LayerGroup, Transformer, expert_slots

Amount = TypeVar("Amount", float, FloatArray)

RESIDUAL_COPIES = 1
"""Hidden-sized 16-bit tensors that live beside a layer's widest block: the residual stream."""
LOGIT_BYTES = 4.0
"""Logits are kept in 32 bit [byte per vocabulary entry and request]."""


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: equal, the remainder in the middle (first and last hold embedding and head).

    >>> stage_layers(61, 4)
    (15, 16, 15, 15)
    """
    base, extra = divmod(layers, stages)
    first = (stages - extra) // 2
    return tuple(base + (first <= stage < first + extra) for stage in range(stages))


@lru_cache(maxsize=256)
def stage_groups(model: Transformer, stages: int) -> tuple[tuple[LayerGroup, ...], ...]:
    """Layer groups of each pipeline stage, layers taken in order."""
    layers = [replace(group, count=1) for group in model.layers for _ in range(group.count)]
    ends = np.cumsum(stage_layers(len(layers), stages))
    result: list[tuple[LayerGroup, ...]] = []
    for end, size in zip(ends, stage_layers(len(layers), stages), strict=True):
        members = layers[int(end) - size : int(end)]
        result.append(tuple(replace(layer, count=members.count(layer)) for layer in dict.fromkeys(members)))
    return tuple(result)


def weight_bytes_per_gpu(model: Transformer, config: EngineConfig) -> float:
    """Weights on the fullest GPU of the engine [byte].

    Split matrices weigh 1 / tp, replicated ones all of it, routed experts and their second copies (`expert_slots`)
    1 / (tp dp) (padded, where they are MXFP4), embedding and head 1 / tp on the first and last stage.
    """
    loaded = with_draft(model, config.speculation)
    return _weight_bytes(loaded, config.parallelism, config.weight_dtype, config.accelerator.mxfp4_multiples)


def activation_bytes(model: Transformer, config: EngineConfig) -> float:
    """Peak of activations and logits on one GPU [byte].

    tokens x 2 x (hidden + widest block) + min(max_num_seqs, tokens) x 4 x vocab x copies, where `tokens` is
    max_num_batched_tokens of one data rank and the block holds gate, up and their product for every token (for a
    mixture: of every expert chosen, with `EngineMemory.expert_copies` of its hidden-sized rows). Every tensor rank has
    all logits; `EngineMemory` counts their copies.
    """
    return _activations(model, config, float(config.max_num_seqs))


def runtime_bytes(config: EngineConfig) -> float:
    """What the engine's processes take of each GPU once they have started, whatever they serve [byte]."""
    return config.memory.runtime + (config.memory.collectives if config.gpus > 1 else 0.0)


def kv_capacity_bytes(model: Transformer, config: EngineConfig) -> float:
    """Memory that the engine gives to KV blocks on one GPU [byte]; negative if the weights do not fit.

    free = HBM - runtime - weights - activations. With the engine's fraction f (`FractionOf`), KV blocks get

        total    f HBM - runtime - weights - activations
        startup  f (HBM - runtime) - weights, and no more than is free
        free     f free
    """
    return float(kv_capacity_by_limit(model, config, float(config.max_num_seqs)))


def kv_capacity_by_limit(model: Transformer, config: EngineConfig, seqs: Amount) -> Amount:
    """`kv_capacity_bytes` for other values of max_num_seqs, which may be an array [byte]."""
    hbm, share, rule = config.accelerator.memory, config.memory_fraction, config.memory.fraction_of
    startup = hbm - runtime_bytes(config)
    weights = weight_bytes_per_gpu(model, config)
    free = startup - weights - _activations(model, config, seqs)
    capacity: Amount = free - (1.0 - share) * hbm
    if rule is FractionOf.FREE:
        capacity = np.minimum(share * free, free)
    if rule is FractionOf.STARTUP:
        capacity = np.minimum(share * startup - weights, free)
    return capacity


def kv_bytes_per_token_per_gpu(model: Transformer, config: EngineConfig) -> float:
    """KV that one more token of a request adds on one GPU of the fullest stage, no window full [byte/token].

    Beyond `kv_shards` tensor ranks the cache is replicated: grouped-query with few heads, latents always.
    """
    return _worst_stage(model, config, lambda submodel: submodel.kv_bytes_per_token(config.kv_dtype))


def kv_bytes_per_request_per_gpu(model: Transformer, config: EngineConfig, isl: Amount, osl: Amount) -> Amount:
    """KV of one running request on one GPU of its data rank, averaged over its generation [byte].

    Without windows (ISL + OSL / 2) x kv_bytes_per_token / min(tp, KV shards); see `Transformer.mean_kv_bytes`.
    isl, osl [token] may be arrays.
    """
    return _worst_stage(model, config, lambda submodel: submodel.mean_kv_bytes(isl, osl, config.kv_dtype))


def kv_bytes_peak_per_gpu(model: Transformer, config: EngineConfig, tokens: Amount) -> Amount:
    """KV of one request with `tokens` tokens in the cache, on one GPU of its data rank [byte]."""
    return _worst_stage(model, config, lambda submodel: submodel.kv_bytes(tokens, config.kv_dtype))


def max_requests(model: Transformer, config: EngineConfig, isl: float, osl: float) -> int:
    """Requests of these lengths that one engine can run at once [1]; 0 if one is too long or does not fit at its end.

    min(max_num_seqs, dp x floor(KV capacity / mean KV of a request)): requests are at all stages of their life at
    once, and every pipeline stage holds its layers' KV of all of them.
    """
    free = kv_capacity_bytes(model, config)
    if isl + osl > config.max_model_len or free < kv_bytes_peak_per_gpu(model, config, isl + osl):
        return 0
    request_bytes = kv_bytes_per_request_per_gpu(model, config, isl, osl)
    if not request_bytes:
        return config.max_num_seqs
    return min(config.max_num_seqs, config.parallelism.data * int(free // request_bytes))


def max_whole_requests(model: Transformer, config: EngineConfig, isl: float, osl: float) -> int:
    """Requests that one engine can hold if all are about to end, so that none is ever preempted [1].

    min(max_num_seqs, dp x floor(KV capacity / KV of a whole request)), at most `max_requests`.
    """
    most = max_requests(model, config, isl, osl)
    request_bytes = float(kv_bytes_peak_per_gpu(model, config, isl + osl))
    if not most or not request_bytes:
        return most
    return min(most, config.parallelism.data * int(kv_capacity_bytes(model, config) // request_bytes))


def _worst_stage(model: Transformer, config: EngineConfig, kv_bytes_of: Callable[[Transformer], Amount]) -> Amount:
    """Largest over pipeline stages of the KV that `kv_bytes_of` gives for its layers, shared over tensor ranks."""
    split = config.parallelism

    def stage(groups: tuple[LayerGroup, ...]) -> Amount:
        sizes = (kv_bytes_of(_only(model, group)) * _storage_factor(group, config) for group in groups)
        shards = (min(split.tensor, group.attention.kv_shards) for group in groups)
        return reduce(add, (size / ranks for size, ranks in zip(sizes, shards, strict=True)))

    loaded = _verifying(with_draft(model, config.speculation), config.verified)
    worst: Amount = reduce(np.maximum, map(stage, dict.fromkeys(stage_groups(loaded, split.pipeline))))
    return worst


@lru_cache(maxsize=64)
def _verifying(model: Transformer, tokens: int) -> Transformer:
    """The model with a state of linear attention for each token that a step verifies (`LinearAttention.states`)."""

    def checkpoints(group: LayerGroup) -> LayerGroup:
        mixer = group.attention
        return replace(group, attention=replace(mixer, states=tokens)) if isinstance(mixer, LinearAttention) else group

    return replace(model, layers=tuple(map(checkpoints, model.layers))) if tokens > 1 else model


@lru_cache(maxsize=1024)
def _only(model: Transformer, group: LayerGroup) -> Transformer:
    """The model with one group of layers."""
    return replace(model, layers=(group,))


def _activations(model: Transformer, config: EngineConfig, seqs: Amount) -> Amount:
    split, memory = config.parallelism, config.memory
    tokens = config.max_num_batched_tokens / split.data
    widest = max(_block_width(model, group, config) for group in model.layers)
    layer = tokens * DTYPE_BYTES["bf16"] * (RESIDUAL_COPIES * model.hidden + widest)
    copies = memory.logit_copies + (memory.gathered_copies if split.tensor > 1 else 0.0)
    logits: Amount = np.minimum(seqs / split.data, tokens) * (LOGIT_BYTES * copies * model.vocab)
    return layer + logits


def _storage_factor(group: LayerGroup, config: EngineConfig) -> float:
    """Bytes that the engine stores for a token of these layers over those of its elements [1]."""
    attention = group.attention
    if config.kv_dtype != "fp8" or not isinstance(attention, LatentAttention) or not attention.index_topk:
        return 1.0
    return 1.0 + config.memory.sparse_latent / (attention.kv_elements_per_token + attention.index_bytes_per_token)


def _block_width(model: Transformer, group: LayerGroup, config: EngineConfig) -> float:
    """Elements per token of a feed-forward block at its widest, on one rank."""
    block, ranks = group.feed_forward, config.parallelism.tensor
    copies = 3 if block.gated else 2
    inner = copies * (block.intermediate + block.experts_per_token * block.expert_intermediate) / ranks
    return inner + block.experts_per_token * config.memory.expert_copies * model.hidden


@lru_cache(maxsize=4096)
def _weight_bytes(model: Transformer, split: Parallelism, weight_dtype: str, multiples: tuple[int, int]) -> float:
    stages = [
        sum(group.weight_sets * _layer_weight_bytes(model, group, split, weight_dtype, multiples) for group in groups)
        for groups in stage_groups(model, split.pipeline)
    ]
    sixteen_bit = model.bytes_per_element(Part.EMBEDDING, weight_dtype)
    table = model.hidden * model.vocab * sixteen_bit / split.tensor
    stages[0] += table + (model.looked_up + model.towers) * sixteen_bit / split.tensor
    if split.pipeline > 1 or not model.tied_embeddings:
        stages[-1] += table
    return max(stages)


def _layer_weight_bytes(
    model: Transformer, group: LayerGroup, split: Parallelism, weight_dtype: str, multiples: tuple[int, int]
) -> float:
    dense = sum(
        matrix.elements
        * model.bytes_per_element(matrix.part, weight_dtype)
        / (1 if matrix.sharding is Sharding.REPLICATED else split.tensor)
        for matrix in group.matrices
    )
    block, gpus = group.feed_forward, split.tensor * split.data
    elements = expert_slots(block.experts, split.expert) * block.elements_per_expert
    element_bytes = model.bytes_per_element(Part.EXPERTS, weight_dtype)
    if model.is_mxfp4(model.part_dtype(Part.EXPERTS, weight_dtype)):
        element_bytes *= block.padding(multiples, split.expert_ranks)  # steps count none: see `FeedForward.padding`
    return dense + elements * element_bytes / gpus


TRANSFER_EFFICIENCY = 0.92
"""Share of a link's bandwidth that KV hand-over reaches [1]; measured: DistServe moved 2048 tokens of OPT-175B over
NVLink (600 GB/s) in 17.6 ms, which is 0.915 of the link."""


def hand_over_cards(model: Transformer, config: EngineConfig, isl: Amount, share: Amount) -> float:
    """Network cards over which one copy of a prompt's KV leaves or reaches an engine [1].

    n = kv_bytes(ISL) / KV of the prompt on one GPU of its data rank, both as means of prompts of isl [token] by their
    share [1]. Each GPU has a card for what it holds: tp x pp, whatever dp; beyond the KV shards tensor ranks hold
    copies, and each rank of the receiver reads all that it holds from one rank of the sender, so that no card carries
    part of another's copy: for latents n = pp. Sources: vLLM's NIXL connector (vllm-project/vllm#27274: "each D worker
    reads from some other single P worker ... as MLA cache is duplicated. Some P workers will not be read from at all"),
    SGLang's `disaggregation/common/conn.py` ("for MLA models, we can retrieve KVCache from only one prefill rank").
    """
    config = replace(config, speculation=None)  # a hand-over has one state, however many are verified
    whole = float(np.sum(model.kv_bytes(isl, config.kv_dtype) * share))
    card_bytes = float(np.sum(kv_bytes_peak_per_gpu(model, config, isl) * share))
    return whole / card_bytes if card_bytes else float(config.parallelism.rank_gpus)


def transfer_bandwidth(sender: Link, receiver: Link, sender_nics: float = 1.0, receiver_nics: float = 1.0) -> float:
    """Bandwidth of a hand-over: the slower end, each end with the cards that one copy uses there [byte/s].

    min(n_s B_s, n_r B_r); n: `hand_over_cards`.

    >>> transfer_bandwidth(Link(50e9, 1e-5), Link(25e9, 1e-5), sender_nics=4, receiver_nics=4) / 1e9
    100.0
    """
    return min(sender_nics * sender.bandwidth, receiver_nics * receiver.bandwidth)


def kv_transfer_time(size: Amount, bandwidth: Amount, latency: float = 0.0) -> Amount:
    """Time to move `size` bytes = latency + bytes / (bandwidth x `TRANSFER_EFFICIENCY`) [s].

    size [byte], as `Transformer.kv_bytes` has it of a prompt; bandwidth [byte/s], latency [s].

    >>> round(kv_transfer_time(2048 * 2 * 96 * 12288 * 2.0, 600e9), 4)  # OPT-175B, DistServe: 17.6 ms
    0.0175
    """
    return latency + size / (bandwidth * TRANSFER_EFFICIENCY)
