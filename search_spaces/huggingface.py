"""Hugging Face `config.json` -> Transformer, from the fields alone; no model is special-cased by name.

What a family leaves unsaid stands in `hf_fields`; a field that is missing, contradictory or not understood is an
ArchitectureError that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodel.errors import ArchitectureError
from costmodel.quoting import shown
from costmodel.transformer import Attention, FeedForward, LayerGroup, Part, SoftmaxAttention, Transformer
from search_spaces.hf_context import context_length
from search_spaces.hf_fields import (
    ConfigFields,
    open_config,
    other_towers,
)
from search_spaces.hf_mixers import attention_kinds, block_pattern, mixers_of, state_space
from search_spaces.hf_quantization import QUANTIZABLE, mixed_formats, quantized_parts, weight_format, weight_scale

MOST_LAYERS = 10_000
GATED_ACTIVATIONS = frozenset({"silu", "swish", "swiglu", "geglu"})
"""In every published decoder these come with a gate projection; plain GELU does in some families only."""
PLAIN_ACTIVATIONS = frozenset({"relu", "relu2", "gelu_new", "gelu_fast"})


def parse_config(
    config: Mapping[str, Any], name: str, source: str = "", date: str = "", *, lenient: bool = False
) -> Transformer:
    """The architecture that a `config.json` describes.

    config: the parsed JSON; name: how the model is called in messages and results; source, date: origin of the facts.
    lenient: fields that shape the model and are not understood are left out (`open_config`).
    A vision tower is left out, and `source` says so. Raises ArchitectureError.

    >>> model = parse_config({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    ...     "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
    ...     "max_position_embeddings": 4096}, "Llama-2-7B")
    >>> model.parameters, model.kv_bytes_per_token("bf16")
    (6738149376, 524288.0)
    """
    if not isinstance(config, Mapping):
        raise ArchitectureError(f"{name}: config.json must be an object, not {type(config).__name__}")
    fields = open_config(config, name, lenient=lenient)
    hidden = fields.count("hidden_size")
    layers = _layers(fields, hidden)
    parallel = bool(fields.flag("use_parallel_residual"))
    groups, sets = Counter(layers), fields.optional("num_mem_blocks", low=1) or 0
    weight_dtype, quantized, own_dtypes = _quantization(fields, layers)
    return Transformer(
        name=name,
        hidden=hidden,
        vocab=fields.count("vocab_size"),
        layers=tuple(
            LayerGroup(count, *layer, parallel=parallel, sets=sets if isinstance(layer[0], SoftmaxAttention) else 0)
            for layer, count in groups.items()
        ),
        tied_embeddings=_tied(fields, hidden),
        max_position=context_length(fields),
        position_embeddings=_position_rows(fields),
        native_weight_dtype=weight_dtype,
        quantized=quantized,
        own_dtypes=own_dtypes,
        weight_scale=weight_scale(fields.get("quantization_config"), weight_dtype, fields.where),
        source="; ".join(filter(None, (source, *(f"without {tower}" for tower in other_towers(config))))),
        date=date,
    )


def _layers(fields: ConfigFields, hidden: int) -> list[tuple[Attention, FeedForward]]:
    """Token mixer and feed-forward of every layer, first to last."""
    layers = fields.count("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise fields.error(f"'num_hidden_layers' is {layers}, but must be at most {MOST_LAYERS}")
    gated = _gated(fields)
    for field, notation in (("block_configs", _searched_layers), ("num_mem_blocks", _shared_layers)):
        if fields.get(field) is not None:
            return notation(fields, hidden, layers, gated)
    pattern = block_pattern(fields, layers)
    if pattern is not None:
        return _patterned_layers(fields, hidden, pattern, gated)
    mixers = mixers_of(fields, hidden, attention_kinds(fields, layers))
    if fields.flag("no_feed_forward") or fields.flag("mamba_use_mlp") is False:
        return [(mixer, FeedForward(hidden, 0, gated=True)) for mixer in mixers]
    sparse = _expert_layers(fields, layers)
    blocks = {moe: _experts(fields, hidden, gated) if moe else _dense(fields, hidden, gated) for moe in set(sparse)}
    pairs = [(mixer, blocks[moe]) for mixer, moe in zip(mixers, sparse, strict=True)]
    if fields.flag("parallel_mixers"):
        beside = (state_space(fields, hidden), FeedForward(hidden, 0, gated=True))
        return [layer for pair in pairs for layer in (beside, pair)]
    if fields.get("zero_expert_num") is not None:  # LongCat: a second attention and dense block beside the experts
        second = _dense(fields, hidden, gated)
        return [layer for mixer, block in pairs for layer in ((mixer, block), (mixer, second))]
    return pairs


def _patterned_layers(
    fields: ConfigFields, hidden: int, pattern: Sequence[str], gated: bool
) -> list[tuple[Attention, FeedForward]]:
    """Layers of one block each, a mixer or a feed-forward (Nemotron-H): a mixer takes the feed-forward that follows."""
    mixers: dict[str, Attention] = {}
    for kind in dict.fromkeys(kind for kind in pattern if kind.endswith("attention")):
        mixers[kind] = mixers_of(fields, hidden, (kind,))[0]
    blocks = {"moe": lambda: _experts(fields, hidden, gated), "mlp": lambda: _dense(fields, hidden, gated)}
    made = {kind: blocks[kind]() for kind in set(pattern) & set(blocks)}
    nothing = FeedForward(hidden, 0, gated=True)
    layers: list[tuple[Attention, FeedForward]] = []
    for kind in pattern:
        if kind in mixers:
            layers.append((mixers[kind], nothing))
        elif not layers or not layers[-1][1].is_empty:
            raise fields.error("config.json has a feed-forward without a mixer before it, which pdplan does not model")
        else:
            layers[-1] = (layers[-1][0], made[kind])
    return layers


def _shared_layers(fields: ConfigFields, hidden: int, layers: int, gated: bool) -> list[tuple[Attention, FeedForward]]:
    """Mamba-2 layers, before some of which stands a block whose weights all of these share (Zamba2).

    The block reads the residual stream and the embedding side by side. What each of these layers has of its own, a
    projection of the block's output and a low-rank adapter of its MLP, counts as one low-rank product of as many
    weights: hidden^2 + rank x (hidden + 2 x intermediate) = 2 x hidden x latent.
    """
    mamba, nothing = state_space(fields, hidden), FeedForward(hidden, 0, gated=True)
    block = _dense(fields, hidden, gated)
    heads, width = fields.count("num_attention_heads"), fields.count("head_dim")
    kv_heads = fields.count("num_key_value_heads")
    shared = SoftmaxAttention(hidden, heads, kv_heads, width, width, input_width=fields.count("attention_hidden_size"))
    adapter = (fields.optional("adapter_rank") or 0) * (hidden + (2 if gated else 1) * block.intermediate)
    own = FeedForward(hidden, 0, gated=True, latent=round((hidden**2 + adapter) / (2 * hidden)))
    made: list[tuple[Attention, FeedForward]] = []
    for kind in fields.labels("layer_types", ("mamba", "linear_attention", "hybrid"), layers) or ():
        made += [(shared, block), (mamba, own)] if kind == "hybrid" else [(mamba, nothing)]
    return made


def _searched_layers(
    fields: ConfigFields, hidden: int, layers: int, gated: bool
) -> list[tuple[Attention, FeedForward]]:
    """Layers whose blocks an architecture search chose (Nemotron-NAS); one without attention widens the last one's MLP.

    A width is int(2 / 3 x ffn_mult x hidden), rounded up to a multiple of 256 (`_ffn_mult_to_intermediate_size`).
    """
    heads = fields.count("num_attention_heads")
    found: list[tuple[Attention, FeedForward]] = []
    for number, block in enumerate(fields.sequence("block_configs", layers) or []):
        mixer, mlp = (block.get(name) for name in ("attention", "ffn")) if isinstance(block, Mapping) else (None, None)
        if not isinstance(mixer, Mapping) or not isinstance(mlp, Mapping):
            raise fields.error(f"'block_configs' of layer {number} must have objects 'attention' and 'ffn'")
        if mixer.get("replace_with_linear") or mlp.get("replace_with_linear") or mixer.get("window_length"):
            raise fields.error(f"'block_configs' of layer {number} has a block that pdplan does not model")
        width = 0 if mlp.get("no_op") else -(-int(2.0 * float(mlp.get("ffn_mult") or 0.0) * hidden / 3.0) // 256) * 256
        if not mixer.get("no_op"):
            kv_heads = heads // int(mixer.get("n_heads_in_group") or 1)
            attention = SoftmaxAttention(hidden, heads, kv_heads, hidden // heads, hidden // heads)
            found.append((attention, FeedForward(hidden, width, gated)))
        elif found:
            last, before = found[-1]
            found[-1] = last, replace(before, intermediate=before.intermediate + width)
    return found


def _expert_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Whether each layer has routed experts."""
    if not fields.optional("experts"):
        return (False,) * layers
    listed = fields.labels("mlp_layer_types", ("dense", "sparse", "moe", "hash_moe"), layers)
    if listed is not None:
        return tuple(kind != "dense" for kind in listed)
    numbered = fields.layer_numbers("moe_layers", layers)
    if numbered:
        return tuple(layer in numbered for layer in range(layers))
    first = fields.optional("first_k_dense_replace") or 0
    dense = fields.layer_numbers("mlp_only_layers", layers) or frozenset()
    step = fields.optional("decoder_sparse_step", low=1) or fields.optional("interleave_moe_layer_step", low=1) or 1
    step = fields.optional("moe_layer_interval", low=1) or step
    period, offset = fields.optional("expert_layer_period", low=1), fields.optional("expert_layer_offset") or 0
    if period is not None:
        return tuple((layer - offset) % period == 0 for layer in range(layers))
    last = layers - 1 if fields.get("moe_layer_end_index") in {None, -1} else fields.count("moe_layer_end_index")
    switched = _switched(fields, layers)
    return tuple(
        first <= layer <= last and layer not in dense and (layer + 1) % step == 0 and switched[layer]
        for layer in range(layers)
    )


def _switched(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """`moe_layer_freq`: a period (DeepSeek), or one switch per layer (MiMo)."""
    if isinstance(fields.get("moe_layer_freq"), list):
        return tuple(fields.switches("moe_layer_freq", layers) or [])
    period = fields.optional("moe_layer_freq", low=1) or 1
    return tuple(layer % period == 0 for layer in range(layers))


def _gated(fields: ConfigFields) -> bool:
    """Whether the feed-forward has a gate projection."""
    stated = fields.flag("is_gated_act")
    if stated is not None:
        return stated
    activation = fields.text("hidden_act")
    if activation is None:
        raise fields.missing("hidden_act", "it says whether the feed-forward is gated")
    if activation.lower() in GATED_ACTIVATIONS | PLAIN_ACTIVATIONS:
        return activation.lower() in GATED_ACTIVATIONS
    raise fields.missing(
        "is_gated_act", f"'hidden_act' {shown(activation)} does not say whether the feed-forward is gated"
    )


def _dense(fields: ConfigFields, hidden: int, gated: bool) -> FeedForward:
    names = ("intermediate_size_mlp", "dense_intermediate_size")
    width = next((width for name in names if (width := fields.optional(name, low=1))), None)
    if width is None and fields.optional("experts") == 0:  # Granite 4: what is left of the mixture is its shared part
        width = fields.optional("shared_width")
    width = width or fields.optional("intermediate_size", low=1)
    ratio = fields.optional("ffn_ratio", low=1)
    if width is None and ratio is None:
        raise fields.missing("intermediate_size")
    return FeedForward(hidden, width or hidden * (ratio or 0), gated)


def _experts(fields: ConfigFields, hidden: int, gated: bool) -> FeedForward:
    experts, chosen = fields.count("experts"), fields.optional("experts_per_token", low=1)
    if chosen is None:
        raise fields.missing("num_experts_per_tok")
    if chosen > experts:
        raise fields.error(f"'num_experts_per_tok' is {chosen}, but there are {experts} experts")
    width = fields.optional("moe_intermediate_size", low=1)
    if width is None:  # Mixtral's notation: num_local_experts of intermediate_size each
        if fields.get("num_local_experts") is None and not fields.flag("intermediate_is_experts"):
            raise fields.missing("moe_intermediate_size")
        width = fields.count("intermediate_size")
    idle = fields.optional("zero_expert_num") or 0  # experts that only pass their input on (LongCat)
    chosen = round(chosen * experts / (experts + idle))
    return FeedForward(
        hidden, _shared_width(fields, width), gated, experts, chosen, width, fields.optional("expert_latent") or 0
    )


def _shared_width(fields: ConfigFields, expert_width: int) -> int:
    """Width of the experts that every token passes."""
    if fields.get("intermediate_size_mlp") is not None:  # Llama 4: one shared expert as wide as a routed one
        return expert_width
    if fields.flag("enable_moe_block") or fields.get("zero_expert_num") is not None:  # a dense block beside the experts
        return fields.count("intermediate_size")
    count, width = fields.optional("shared_experts") or 0, fields.optional("shared_width") or 0
    if count > 1 and width:
        raise fields.error(
            "config.json gives both a number and a width of shared experts, which pdplan cannot distinguish"
        )
    return width or count * expert_width


def _tied(fields: ConfigFields, hidden: int) -> bool:
    projected = fields.optional("word_embed_proj_dim")
    if projected not in {None, hidden}:
        raise fields.error(
            f"'word_embed_proj_dim' {projected} differs from 'hidden_size' {hidden}, which is not modeled"
        )
    tied = fields.flag("tie_word_embeddings")
    if tied is None:
        raise fields.missing("tie_word_embeddings", "it says whether the output head shares the embedding")
    return tied


def _position_rows(fields: ConfigFields) -> int:
    offset = fields.optional("learned_position_offset")
    return 0 if offset is None else fields.count("max_position_embeddings") + offset


def _quantization(
    fields: ConfigFields, layers: list[tuple[Attention, FeedForward]]
) -> tuple[str, frozenset[Part], frozenset[tuple[Part, str]]]:
    """The checkpoint's dtype, the parts that have it, and the dtypes of parts that have another one."""
    quantization = fields.get("quantization_config")
    mixed = mixed_formats(quantization, fields.where)
    if mixed:
        main = (
            Part.EXPERTS if Part.EXPERTS in mixed and any(block.experts for _, block in layers) else Part.FEED_FORWARD
        )
        weight_dtype = mixed.get(main) or next(iter(mixed.values()))
        quantized = frozenset(part for part, dtype in mixed.items() if dtype == weight_dtype)
        return weight_dtype, quantized, frozenset((part, mixed[part]) for part in mixed.keys() - quantized)
    weight_dtype = weight_format(quantization, fields.where)
    if weight_dtype == "bf16":
        return weight_dtype, QUANTIZABLE, frozenset()
    own = frozenset({(Part.EXPERTS, "mxfp4")}) if fields.text("expert_dtype") == "fp4" != weight_dtype else frozenset()
    apart = bool(fields.flag("enable_moe_block"))
    return weight_dtype, quantized_parts(quantization, layers, fields.where, apart=apart), own
