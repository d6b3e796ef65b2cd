"""Token mixers of a Hugging Face `config.json`: which kind each layer has, and its widths."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.quoting import shown
from costmodel.transformer import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    SoftmaxAttention,
)

from .hf_context import context_length
from .hf_fields import SLIDING_HEADS, ConfigFields, shorten

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
OTHER_TYPES = {
    "mamba_state": {"attention": "full_attention", "mamba": "linear_attention", "mamba2": "linear_attention"},
    "index_topk": {"indexed_attention": "full_attention"},
    "o_lora_rank": {
        "compressed_sparse_attention": "compressed_sparse_attention",
        "heavily_compressed_attention": "heavily_compressed_attention",
    },
}
"""What else families write in `layer_types` where they have a field, and the kind that it stands for."""
BLOCKS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}
"""Letters of Nemotron-H's `hybrid_override_pattern`."""
RATIOS = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens per compressed latent of DeepSeek-V4's two kinds of layers (`compress_rates`)."""
SOFTMAX_ATTENTION, LIGHTNING_ATTENTION = 1, 0
"""MiniMax's codes in `attn_type_list`."""


def block_pattern(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Kinds of layers that have one block each, a mixer or "moe" or "mlp"; None where layers have both."""
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        odd = next((letter for letter in pattern if letter not in BLOCKS), None)
        if odd is not None or len(pattern) != layers:
            raise fields.error(
                f"'hybrid_override_pattern' must have one of {' '.join(BLOCKS)} for each of {layers} layers, "
                f"but is {shorten(pattern)}"
            )
        return tuple(BLOCKS[letter] for letter in pattern)
    listed = fields.sequence("layer_types", layers)
    if listed is None or not {"moe", "mlp"} & set(map(str, listed)):
        return None
    known = _layer_types(fields) | {"moe": "moe", "mlp": "mlp"}
    return tuple(known[kind] for kind in fields.labels("layer_types", tuple(known), layers) or ())


def attention_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """The kind of mixer of each layer, from whichever of the families' notations the config uses."""
    kinds = _stated_kinds(fields, layers)
    if "sliding_attention" not in kinds:
        for field in SLIDING_HEADS:
            if fields.get(field):
                raise fields.error(f"config.json has {field!r} = {shorten(fields.get(field))}, but no sliding layers")
    return kinds


def _stated_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    notations = (_coded_kinds, _listed_kinds, _compressed_kinds, _delta_kinds, _mamba_kinds, _switched_kinds)
    for notation in (*notations, _periodic_kinds, _chunked_kinds, _windowed_kinds):
        kinds = notation(fields, layers)
        if kinds is not None:
            return kinds
    return ("full_attention",) * layers


def _listed_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    known = _layer_types(fields)
    listed = fields.labels("layer_types", tuple(known), layers)
    return None if listed is None else tuple(known[kind] for kind in listed)


def _layer_types(fields: ConfigFields) -> dict[str, str]:
    """What `layer_types` may say, and the kind that each stands for."""
    known = {kind: kind for kind in LAYER_TYPES}
    for field, kinds in OTHER_TYPES.items():
        known |= kinds if fields.get(field) is not None else {}
    return known


def _delta_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Kimi: numbers, from 1, of the layers that attend in full."""
    delta = fields.get("linear_attn_config")
    if not isinstance(delta, Mapping):
        return None
    full = frozenset(delta.get("full_attn_layers") or ())
    return tuple("full_attention" if layer + 1 in full else "linear_attention" for layer in range(layers))


def _mamba_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Bamba: numbers of the layers that attend; Jamba: a period."""
    if fields.get("mamba_state") is None or fields.flag("parallel_mixers"):
        return None
    period, offset = fields.optional("attn_layer_period", low=1), fields.optional("attn_layer_offset") or 0
    if period is not None:
        attends = ("full_attention", "linear_attention")
        return tuple(attends[(layer - offset) % period != 0] for layer in range(layers))
    full = fields.layer_numbers("attn_layer_indices", layers) or frozenset()
    return tuple("full_attention" if layer in full else "linear_attention" for layer in range(layers))


def _switched_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    switches = fields.switches("hybrid_layer_pattern", layers)
    if switches is None:
        return None
    return tuple("sliding_attention" if switch else "full_attention" for switch in switches)


def _periodic_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    interval = fields.optional("full_attention_interval", low=1)
    return None if interval is None else _every(interval, layers, "linear_attention")


def _coded_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    codes = fields.sequence("attn_type_list", layers)
    if codes is None:
        return None
    kinds = {SOFTMAX_ATTENTION: "full_attention", LIGHTNING_ATTENTION: "linear_attention"}
    if not fields.flag("lightning_attention"):
        del kinds[LIGHTNING_ATTENTION]
    odd = next((code for code in codes if code not in kinds), None)
    if odd is not None:
        raise fields.error(f"'attn_type_list' contains {shorten(odd)}, but pdplan models 1 (softmax) only")
    return tuple(kinds[code] for code in codes)


def _compressed_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """DeepSeek-V4: a ratio for each layer, and one or none for those that draft."""
    ratios = fields.get("compress_ratios")
    if ratios is None:
        return None
    kinds = {0: "sliding_attention", **{ratio: kind for kind, ratio in RATIOS.items()}}
    if not isinstance(ratios, list) or len(ratios) < layers or any(ratio not in kinds for ratio in ratios):
        raise fields.error(f"'compress_ratios' is {shorten(ratios)}, but must be 0, 4 or 128 for each layer")
    return tuple(kinds[ratio] for ratio in ratios[:layers])


def _every(interval: int, layers: int, otherwise: str) -> tuple[str, ...]:
    """Full attention in every `interval`-th layer, `otherwise` in the rest."""
    return tuple("full_attention" if (layer + 1) % interval == 0 else otherwise for layer in range(layers))


def _chunked_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Llama 4: layers with RoPE attend within a chunk, those without attend in full."""
    if fields.get("attention_chunk_size") is None:
        return None
    if fields.get("no_rope_layers"):
        rope = fields.sequence("no_rope_layers", layers) or []
        return tuple("chunked_attention" if code else "full_attention" for code in rope)
    interval = fields.count("no_rope_layer_interval", "it says which layers 'attention_chunk_size' does not apply to")
    return _every(interval, layers, "chunked_attention")


def _windowed_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...] | None:
    """Which layers the one `sliding_window` of the config holds for."""
    if fields.get("sliding_window") is None or fields.flag("use_sliding_window") is False:
        return None
    pattern = fields.optional("sliding_window_pattern", low=1)
    if pattern is not None:
        return _every(pattern, layers, "sliding_attention")
    first = fields.optional("max_window_layers")
    if first is not None:
        return tuple("sliding_attention" if layer >= first else "full_attention" for layer in range(layers))
    if fields.flag("windowed_everywhere"):
        return ("sliding_attention",) * layers
    if fields.count("sliding_window") >= context_length(fields):
        return ("full_attention",) * layers
    raise fields.missing("layer_types", "it says which layers 'sliding_window' applies to")


def mixers_of(fields: ConfigFields, hidden: int, kinds: tuple[str, ...]) -> list[Attention]:
    """The mixers of layers of these kinds."""
    if fields.get("kv_lora_rank"):
        return _latent(fields, hidden, kinds)
    sparse = _sparse_layers(fields, len(kinds))
    made: dict[tuple[str, bool], Attention] = {}
    for kind, indexed in set(zip(kinds, sparse, strict=True)):
        if fields.get("o_lora_rank") is not None:
            made[kind, indexed] = _compressed(fields, hidden, kind)
        elif kind == "linear_attention":
            made[kind, indexed] = _linear(fields, hidden)
        else:
            made[kind, indexed] = _softmax(fields, hidden, kind, indexed)
    return [made[key] for key in zip(kinds, sparse, strict=True)]


def _sparse_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Layers whose heads attend the blocks that an indexer selects (MiniMax-M3)."""
    sparse = fields.get("sparse_attention_config")
    if not isinstance(sparse, Mapping) or not sparse.get("use_sparse_attention"):
        return (False,) * layers
    switches = sparse.get("sparse_attention_freq")
    if not isinstance(switches, list) or len(switches) != layers:
        raise fields.error(f"'sparse_attention_config' must have a switch for each of {layers} layers")
    return tuple(map(bool, switches))


WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Fields that say how many tokens a layer of a kind attends."""


def _softmax(fields: ConfigFields, hidden: int, kind: str, indexed: bool) -> SoftmaxAttention:
    """Attention with heads; fields of sliding layers (MiMo) or of full ones (Gemma 4) outweigh the common ones."""
    own = {"sliding_attention": "swa_{}", "full_attention": "global_{}"}.get(kind, "{}")

    def stated(field: str) -> int | None:
        return fields.optional(own.format(field), low=1) or fields.optional(field, low=1)

    heads = stated("num_attention_heads") or fields.count("num_attention_heads")
    kv_heads = _kv_heads(fields, heads, kind)
    if heads % kv_heads:
        raise fields.error(f"'num_attention_heads' {heads} is not a multiple of 'num_key_value_heads' {kv_heads}")
    head_dim = stated("head_dim")
    if head_dim is None:
        if hidden % heads and not fields.flag("floored_head_dim"):
            raise fields.error(f"'hidden_size' {hidden} is not a multiple of 'num_attention_heads' {heads}")
        head_dim = hidden // heads
    return SoftmaxAttention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=stated("v_head_dim") or head_dim,
        window=fields.count(WINDOWS[kind]) if kind in WINDOWS else None,
        output_gate=bool(fields.flag("attn_output_gate")),
        shared_kv=kind == "full_attention" and bool(fields.flag("attention_k_eq_v")),
        **(_index(fields) if indexed else {}),
    )


def _index(fields: ConfigFields) -> dict[str, int]:
    sparse = ConfigFields(f"{fields.where}: 'sparse_attention_config'", fields.get("sparse_attention_config"), {})
    return {
        "index_heads": sparse.count("sparse_num_index_heads"),
        "index_dim": sparse.count("sparse_index_dim"),
        "index_topk": sparse.count("sparse_topk_blocks") * sparse.count("sparse_block_size"),
    }


def _kv_heads(fields: ConfigFields, heads: int, kind: str) -> int:
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):  # Falcon, whatever it states beside
        return 1
    own = {"sliding_attention": "swa_num_key_value_heads", "full_attention": "num_global_key_value_heads"}.get(kind)
    stated = fields.optional(own, low=1) if own else None
    if stated is not None:
        return stated
    stated = fields.optional("num_key_value_heads", low=1)
    if stated is not None:
        return stated * ((fields.optional("sliding_kv_ratio", low=1) or 1) if kind == "sliding_attention" else 1)
    if fields.flag("multi_head"):
        return heads
    raise fields.missing("num_key_value_heads")


def _latent(fields: ConfigFields, hidden: int, kinds: tuple[str, ...]) -> list[Attention]:
    """Multi-head latent attention, with the indexers of sparse attention where there are any, or linear attention."""
    odd = set(kinds) - {"full_attention", "linear_attention"}
    if odd:
        raise fields.error(
            f"config.json combines 'kv_lora_rank' with {shown(min(odd))} layers, which pdplan does not model"
        )
    if "q_lora_rank" not in fields.values:
        raise fields.missing("q_lora_rank", "it is null where queries are not compressed")
    linear = _linear(fields, hidden) if "linear_attention" in kinds else None
    latent = [_latent_layer(fields, hidden, full) for full in _index_layers(fields, len(kinds))]
    return [
        linear if linear is not None and kind == "linear_attention" else layer
        for kind, layer in zip(kinds, latent, strict=True)
    ]


def _index_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Layers that select keys themselves; the others reuse the selection of the one before (GLM-5.2)."""
    listed = fields.labels("indexer_types", ("full", "shared"), layers)
    if listed is not None:
        return tuple(kind == "full" for kind in listed)
    if fields.optional("index_topk_freq", low=1) not in {None, 1}:
        raise fields.missing("indexer_types", "it says which layers share an indexer when 'index_topk_freq' is not 1")
    return (True,) * layers


def _latent_layer(fields: ConfigFields, hidden: int, indexed: bool) -> LatentAttention:
    topk = fields.optional("index_topk") or 0
    query_rank = fields.optional("q_lora_rank") or 0
    if topk and not query_rank:
        raise fields.missing("q_lora_rank", "the indexer of 'index_topk' reads the compressed query")
    return LatentAttention(
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        query_rank=query_rank,
        latent_rank=fields.count("kv_lora_rank"),
        rope_dim=fields.count("qk_rope_head_dim"),
        nope_dim=fields.count("qk_nope_head_dim"),
        value_dim=fields.count("v_head_dim"),
        index_heads=fields.count("index_n_heads") if topk and indexed else 0,
        index_dim=fields.count("index_head_dim") if topk and indexed else 0,
        index_topk=topk,
        output_gate=bool(fields.flag("attn_output_gate")),
    )


def _compressed(fields: ConfigFields, hidden: int, kind: str) -> CompressedAttention:
    """DeepSeek-V4: latents of a window, of every few tokens with an indexer, or of many tokens."""
    stated = fields.get("compress_rates")
    ratios = RATIOS | (dict(stated) if isinstance(stated, Mapping) else {})
    indexed = kind == "compressed_sparse_attention"
    return CompressedAttention(
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        head_dim=fields.count("head_dim"),
        query_rank=fields.count("q_lora_rank"),
        window=fields.count("sliding_window"),
        ratio=ratios.get(kind, 0),
        output_groups=fields.count("o_groups"),
        output_rank=fields.count("o_lora_rank"),
        index_heads=fields.count("index_n_heads") if indexed else 0,
        index_dim=fields.count("index_head_dim") if indexed else 0,
        index_topk=fields.count("index_topk") if indexed else 0,
    )


def _linear(fields: ConfigFields, hidden: int) -> LinearAttention:
    if fields.get("mamba_state") is not None:
        return state_space(fields, hidden)
    delta = fields.get("linear_attn_config")
    if isinstance(delta, Mapping):
        return _kimi_delta(ConfigFields(f"{fields.where}: 'linear_attn_config'", delta, {}), hidden)
    if fields.flag("lightning_attention"):
        heads = fields.count("num_attention_heads")
        width = fields.optional("head_dim", low=1) or hidden // heads
        return LinearAttention(hidden, heads, heads, width, width, conv_width=0, scalars=0, products=2)
    key_heads, value_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    if value_heads % key_heads:
        raise fields.error(
            f"'linear_num_value_heads' {value_heads} is not a multiple of 'linear_num_key_heads' {key_heads}"
        )
    return LinearAttention(
        hidden=hidden,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        conv_width=fields.count("linear_conv_kernel_dim"),
    )


def state_space(fields: ConfigFields, hidden: int) -> LinearAttention:
    """Mamba-2: one step size per head, and B and C that the heads of a group share. Mamba-1: each channel is a head."""
    if fields.get("mamba_heads") is None:
        return _first_mamba(fields, hidden)
    heads = fields.count("mamba_heads")
    width = fields.get("mamba_head_dim")
    if width in {None, "auto"}:
        width = (fields.optional("mamba_d_ssm") or fields.count("mamba_expand") * hidden) // heads
    else:
        width = fields.count("mamba_head_dim")
    return LinearAttention(
        hidden=hidden,
        key_heads=fields.optional("mamba_groups", low=1) or 1,
        value_heads=heads,
        key_dim=fields.count("mamba_state"),
        value_dim=width,
        conv_width=fields.count("mamba_conv"),
        scalars=1,
        products=2,
    )


def _first_mamba(fields: ConfigFields, hidden: int) -> LinearAttention:
    rank = fields.get("mamba_rank")
    alone = fields.flag("no_feed_forward")  # Falcon-Mamba, whose published `expand` is another one
    inner = fields.count("intermediate_size") if alone else fields.count("mamba_expand") * hidden
    return LinearAttention(
        hidden=hidden,
        key_heads=1,
        value_heads=inner,
        key_dim=fields.count("mamba_state"),
        value_dim=1,
        conv_width=fields.count("mamba_conv"),
        scalars=0,
        products=2,
        step_rank=-(-hidden // 16) if rank in {None, "auto"} else fields.count("mamba_rank"),
    )


def _kimi_delta(fields: ConfigFields, hidden: int) -> LinearAttention:
    """Kimi Delta Attention: a decay for every channel of a key, through a rank as wide as a head, as is the gate."""
    heads, width = fields.count("num_heads"), fields.count("head_dim")
    return LinearAttention(
        hidden=hidden,
        key_heads=heads,
        value_heads=heads,
        key_dim=width,
        value_dim=width,
        conv_width=fields.count("short_conv_kernel_size"),
        scalars=1,
        decay_rank=width,
        gate_rank=0 if fields.flag("use_full_rank_gate") else width,
    )
