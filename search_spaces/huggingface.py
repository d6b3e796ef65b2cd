"""Hugging Face `config.json` -> Transformer, from the fields alone; no model is special-cased by name.

What a family leaves unsaid stands in `hf_fields`; a field that is missing, contradictory or not understood is an
ArchitectureError that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.errors import ArchitectureError
from costmodel.quoting import shown
from costmodel.transformer import (
    Attention,
    FeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    Part,
    SoftmaxAttention,
    Transformer,
)
from search_spaces.hf_fields import (
    LARGEST,
    SLIDING_HEADS,
    TEXT_SECTIONS,
    ConfigFields,
    open_config,
    other_towers,
    shorten,
)
from search_spaces.hf_quantization import QUANTIZABLE, quantized_parts, weight_format, weight_scale

EXTENDED = ("llama3", "longrope", "su")
"""Kinds whose `max_position_embeddings` is the extended length."""
STRETCHING = ("linear", "dynamic")
"""Kinds whose factor multiplies it."""
TRAINED = "original_max_position_embeddings"
ROPE_FIELDS = ("rope_parameters", "rope_scaling")
"""As transformers 5 writes it, and as it was before."""
STATED = "max_position_embeddings"
OTHER_LIMITS = ("n_positions", "seq_length", "max_sequence_length", "max_seq_len", "model_max_length")
"""Fields that vLLM or SGLang take for the context too, whatever `max_position_embeddings` is."""
THETA = ("rope_theta", "rotary_emb_base")
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
"""Names, as vLLM's `patch_rope_parameters` has them, of what transformers 5 keeps with the rotary embedding."""


@dataclass(frozen=True, slots=True)
class ContextScaling:
    """A rotary embedding that extends the context beyond the length that the model was trained on.

    stated: `max_position_embeddings` [token]; trained: what is extended [token]; length: what it is extended to
    [token]; multiplies: whether every engine multiplies the one to the other itself, which it does for linear and
    dynamic scaling; section: of the config that holds the language model, None at the top.
    """

    stated: int
    trained: int
    length: int
    multiplies: bool
    section: str | None


def context_scaling(config: Mapping[str, Any], name: str) -> ContextScaling | None:
    """How a config.json extends the context; None where nothing does, or nothing that has to be told (`EXTENDED`).

    name: how the model is called in messages. Raises ArchitectureError.
    """
    fields = open_config(config, name)
    stated, length = fields.count(STATED), context_length(fields)
    scalings = [(where, rope) for where, rope, _ in _extended(fields)]
    if not scalings or fields.flag("context_is_scaled"):
        return None
    multiplies = _kind(scalings[0][1]) in STRETCHING
    section = next((key for key in TEXT_SECTIONS if isinstance(config.get(key), Mapping) and config[key]), None)
    return ContextScaling(stated, stated if multiplies else _trained(fields, *scalings[0]), length, multiplies, section)


def rope_parameters(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The rotary embeddings of a config.json whole, as transformers 5 keeps them, with what stood beside them before.

    An engine that is told them puts them in the place of the checkpoint's, so that nothing may be missing. Raises
    ArchitectureError where the base is not stated.

    >>> linear = {"type": "linear", "factor": 4.0}
    >>> rope_parameters({"max_position_embeddings": 4096, "rope_theta": 1e6, "rope_scaling": linear}, "x")
    {'factor': 4.0, 'rope_type': 'linear', 'rope_theta': 1000000.0}
    """
    fields = open_config(config, name)
    scaled = [where for where, _, _ in _extended(fields)]
    # where both notations are there, transformers 5 takes the old one (`convert_rope_params_to_dict`)
    chosen = next((field for field in reversed(ROPE_FIELDS) if any(_field(where) == field for where in scaled)), None)
    whole = {where: _whole(fields, where, rope) for where, rope in _ropes(fields) if _field(where) == chosen}
    by_layer = {where.partition(".")[2]: rope for where, rope in whole.items()}
    return by_layer.get("", by_layer)


def _field(where: str) -> str:
    return where.partition(".")[0]


def check_limits(config: Mapping[str, Any], name: str, length: int) -> None:
    """Raise ArchitectureError where another field than `max_position_embeddings` keeps the context below a length."""
    fields = open_config(config, name)
    for field in OTHER_LIMITS:
        value = fields.values.get(field)
        if isinstance(value, int) and value < length:
            raise fields.error(
                f"{shown(field)} is {value}, by which engines would end the context before {length} tokens"
            )


def _whole(fields: ConfigFields, where: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    whole = {name: value for name, value in rope.items() if name != "type"} | {"rope_type": _kind(rope) or "default"}
    newer = fields.get(ROPE_FIELDS[0])
    places = (fields.values, newer if isinstance(newer, Mapping) else {})
    for name, names in (("rope_theta", THETA), ("partial_rotary_factor", PARTIAL)):
        beside = next((place[one] for place in places for one in names if place.get(one) is not None), None)
        if whole.get(name) is None and beside is not None:
            whole[name] = beside
    if whole.get("rope_theta") is None:
        raise fields.missing("rope_theta", f"engines that are told {shown(where)} need the base with it")
    if whole["rope_type"] == "yarn":
        whole[TRAINED] = _trained(fields, where, rope)
    return whole


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def context_length(fields: ConfigFields) -> int:
    """Longest ISL + OSL that the model takes [token]; raises ArchitectureError for a scaling that is not understood."""
    stated = fields.count(STATED)
    if fields.flag("context_is_scaled"):
        return stated
    scaled = {name: length for name, _, length in _extended(fields)}
    if len(set(scaled.values())) > 1:
        lengths = ", ".join(f"{length} by {shown(name)}" for name, length in scaled.items())
        raise fields.error(f"config.json gives a context of {lengths}, which must agree")
    return next(iter(scaled.values()), stated)


def _extended(fields: ConfigFields) -> list[tuple[str, Mapping[str, Any], int]]:
    """The rotary embeddings that extend the context, with where they stand and to what length [token]."""
    stated = fields.count(STATED)
    scaled = [(where, rope, _scaled(fields, where, rope, stated)) for where, rope in _ropes(fields)]
    return [(where, rope, length) for where, rope, length in scaled if length]


def _ropes(fields: ConfigFields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rotary embeddings, one for all layers or one per type of layer, with where they stand."""
    for field in ROPE_FIELDS:
        rope = fields.get(field)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            raise fields.error(f"{shown(field)} is {shorten(rope)}, but must be an object")
        by_layer = [(f"{field}.{kind}", each) for kind, each in rope.items() if isinstance(each, Mapping)]
        yield from by_layer or [(field, rope)]


def _scaled(fields: ConfigFields, name: str, rope: Mapping[str, Any], stated: int) -> int | None:
    """The context that one rotary embedding extends to [token]; None where it extends nothing.

    stated: `max_position_embeddings` [token].
    """
    kind, factor = _kind(rope), rope.get("factor")
    if kind in EXTENDED or ((factor is None or factor == 1) and kind != "yarn"):
        return None
    if kind != "yarn" and kind not in STRETCHING:
        raise fields.error(f"{shown(name)} scales by the kind {shorten(kind)}, which pdplan does not know")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= LARGEST:
        raise fields.error(f"'{name}.factor' is {shorten(factor)}, but must be a number from 1 to {LARGEST}")
    length = int((_trained(fields, name, rope) if kind == "yarn" else stated) * factor)
    if length > LARGEST:
        raise fields.error(f"{shown(name)} extends the context to {length} tokens, but at most {LARGEST} are believed")
    return length


def _trained(fields: ConfigFields, name: str, rope: Mapping[str, Any]) -> int:
    """Length that the model was trained on [token], beside its rotary embedding or at the top of the config."""
    length = rope.get(TRAINED, fields.get(TRAINED))
    if length is None:
        raise fields.missing(f"{name}.{TRAINED}", "it says which length YaRN extends")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LARGEST:
        raise fields.error(f"'{name}.{TRAINED}' is {shorten(length)}, but must be a whole number from 1 to {LARGEST}")
    return length


MOST_LAYERS = 10_000
GATED_ACTIVATIONS = frozenset({"silu", "swish", "swiglu", "geglu"})
"""In every published decoder these come with a gate projection; plain GELU does in some families only."""
PLAIN_ACTIVATIONS = frozenset({"relu", "relu2", "gelu_new", "gelu_fast"})
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
SOFTMAX_ATTENTION = 1
"""MiniMax's code for softmax attention in `attn_type_list`; 0 is lightning attention."""


def parse_config(config: Mapping[str, Any], name: str, source: str = "", date: str = "") -> Transformer:
    """The architecture that a `config.json` describes.

    config: the parsed JSON; name: how the model is called in messages and results; source, date: origin of the facts.
    A vision tower is left out, and `source` says so. Raises ArchitectureError.

    >>> model = parse_config({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    ...     "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
    ...     "max_position_embeddings": 4096}, "Llama-2-7B")
    >>> model.parameters, model.kv_bytes_per_token("bf16")
    (6738149376, 524288.0)
    """
    if not isinstance(config, Mapping):
        raise ArchitectureError(f"{name}: config.json must be an object, not {type(config).__name__}")
    fields = open_config(config, name)
    hidden = fields.count("hidden_size")
    layers = _layers(fields, hidden)
    parallel = bool(fields.flag("use_parallel_residual"))
    groups = Counter(layers)
    weight_dtype, quantized = _quantization(fields, layers)
    return Transformer(
        name=name,
        hidden=hidden,
        vocab=fields.count("vocab_size"),
        layers=tuple(LayerGroup(count, *layer, parallel=parallel) for layer, count in groups.items()),
        tied_embeddings=_tied(fields, hidden),
        max_position=context_length(fields),
        position_embeddings=_position_rows(fields),
        native_weight_dtype=weight_dtype,
        quantized=quantized,
        weight_scale=weight_scale(fields.get("quantization_config"), weight_dtype, fields.where),
        source="; ".join(filter(None, (source, *(f"without {tower}" for tower in other_towers(config))))),
        date=date,
    )


def _layers(fields: ConfigFields, hidden: int) -> list[tuple[Attention, FeedForward]]:
    """Token mixer and feed-forward of every layer, first to last."""
    layers = fields.count("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise fields.error(f"'num_hidden_layers' is {layers}, but must be at most {MOST_LAYERS}")
    kinds = _attention_kinds(fields, layers)
    if "sliding_attention" not in kinds:
        _none_is_sliding(fields)
    mixers = _latent(fields, hidden, kinds) if fields.get("kv_lora_rank") else _softmax_or_linear(fields, hidden, kinds)
    sparse = _expert_layers(fields, layers)
    gated = _gated(fields)
    blocks = {moe: _experts(fields, hidden, gated) if moe else _dense(fields, hidden, gated) for moe in set(sparse)}
    return [(mixer, blocks[moe]) for mixer, moe in zip(mixers, sparse, strict=True)]


def _none_is_sliding(fields: ConfigFields) -> None:
    for field in SLIDING_HEADS:
        if fields.get(field):
            raise fields.error(f"config.json has {field!r} = {shorten(fields.get(field))}, but no sliding layers")


def _attention_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """One of LAYER_TYPES per layer, from whichever of the families' notations the config uses."""
    codes = fields.sequence("attn_type_list", layers)
    if codes is not None and any(code != SOFTMAX_ATTENTION for code in codes):
        odd = next(code for code in codes if code != SOFTMAX_ATTENTION)
        raise fields.error(
            f"'attn_type_list' contains {shown(odd)}, but pdplan models {SOFTMAX_ATTENTION} (softmax) only"
        )
    listed = fields.labels("layer_types", LAYER_TYPES, layers)
    if listed is not None:
        return listed
    switches = fields.switches("hybrid_layer_pattern", layers)
    if switches is not None:
        return tuple("sliding_attention" if switch else "full_attention" for switch in switches)
    interval = fields.optional("full_attention_interval", low=1)
    if interval is not None:
        return _every(interval, layers, "linear_attention")
    if fields.get("attention_chunk_size") is not None:
        return _chunked_kinds(fields, layers)
    if fields.get("sliding_window") is not None and fields.flag("use_sliding_window") is not False:
        return _windowed_kinds(fields, layers)
    return ("full_attention",) * layers


def _every(interval: int, layers: int, otherwise: str) -> tuple[str, ...]:
    """Full attention in every `interval`-th layer, `otherwise` in the rest."""
    return tuple("full_attention" if (layer + 1) % interval == 0 else otherwise for layer in range(layers))


def _chunked_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """Llama 4: layers with RoPE attend within a chunk, those without attend in full."""
    if fields.get("no_rope_layers"):
        rope = fields.sequence("no_rope_layers", layers) or []
        return tuple("chunked_attention" if code else "full_attention" for code in rope)
    interval = fields.count("no_rope_layer_interval", "it says which layers 'attention_chunk_size' does not apply to")
    return _every(interval, layers, "chunked_attention")


def _windowed_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """Which layers the one `sliding_window` of the config holds for."""
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


def _softmax_or_linear(fields: ConfigFields, hidden: int, kinds: tuple[str, ...]) -> list[Attention]:
    windows = {
        "full_attention": None,
        "sliding_attention": "sliding_window",
        "chunked_attention": "attention_chunk_size",
    }
    made: dict[str, Attention] = {}
    for kind in set(kinds):
        if kind == "linear_attention":
            made[kind] = _linear(fields, hidden)
        else:
            window = windows[kind]
            made[kind] = _softmax(fields, hidden, fields.count(window) if window else None, kind == "sliding_attention")
    return [made[kind] for kind in kinds]


def _softmax(fields: ConfigFields, hidden: int, window: int | None, sliding: bool) -> SoftmaxAttention:
    """Attention with heads; in sliding layers the fields that begin with "swa_" outweigh the common ones (MiMo)."""

    def stated(field: str) -> int | None:
        return (fields.optional(f"swa_{field}", low=1) if sliding else None) or fields.optional(field, low=1)

    heads = stated("num_attention_heads") or fields.count("num_attention_heads")
    kv_heads = _kv_heads(fields, heads, sliding)
    if heads % kv_heads:
        raise fields.error(f"'num_attention_heads' {heads} is not a multiple of 'num_key_value_heads' {kv_heads}")
    head_dim = stated("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise fields.error(f"'hidden_size' {hidden} is not a multiple of 'num_attention_heads' {heads}")
        head_dim = hidden // heads
    return SoftmaxAttention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=stated("v_head_dim") or head_dim,
        window=window,
        output_gate=bool(fields.flag("attn_output_gate")),
    )


def _kv_heads(fields: ConfigFields, heads: int, sliding: bool) -> int:
    own = fields.optional("swa_num_key_value_heads", low=1) if sliding else None
    if own is not None:
        return own
    stated = fields.optional("num_key_value_heads", low=1)
    if stated is not None:
        return stated * ((fields.optional("sliding_kv_ratio", low=1) or 1) if sliding else 1)
    if fields.flag("multi_query"):
        return 1
    if fields.flag("multi_head"):
        return heads
    raise fields.missing("num_key_value_heads")


def _latent(fields: ConfigFields, hidden: int, kinds: tuple[str, ...]) -> list[Attention]:
    """Multi-head latent attention in every layer, with the indexers of sparse attention where there are any."""
    odd = set(kinds) - {"full_attention"}
    if odd:
        raise fields.error(
            f"config.json combines 'kv_lora_rank' with {shown(min(odd))} layers, which pdplan does not model"
        )
    if "q_lora_rank" not in fields.values:
        raise fields.missing("q_lora_rank", "it is null where queries are not compressed")
    return [_latent_layer(fields, hidden, full) for full in _index_layers(fields, len(kinds))]


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
    )


def _linear(fields: ConfigFields, hidden: int) -> LinearAttention:
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


def _expert_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Whether each layer has routed experts."""
    if not fields.optional("experts"):
        return (False,) * layers
    listed = fields.labels("mlp_layer_types", ("dense", "sparse"), layers)
    if listed is not None:
        return tuple(kind == "sparse" for kind in listed)
    numbered = fields.layer_numbers("moe_layers", layers)
    if numbered:
        return tuple(layer in numbered for layer in range(layers))
    first = fields.optional("first_k_dense_replace") or 0
    dense = fields.layer_numbers("mlp_only_layers", layers) or frozenset()
    step = fields.optional("decoder_sparse_step", low=1) or fields.optional("interleave_moe_layer_step", low=1) or 1
    switched = _switched(fields, layers)
    return tuple(
        layer >= first and layer not in dense and (layer + 1) % step == 0 and switched[layer] for layer in range(layers)
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
    width = fields.optional("intermediate_size_mlp", low=1) or fields.optional("intermediate_size", low=1)
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
        if fields.get("num_local_experts") is None:
            raise fields.missing("moe_intermediate_size")
        width = fields.count("intermediate_size")
    return FeedForward(hidden, _shared_width(fields, width), gated, experts, chosen, width)


def _shared_width(fields: ConfigFields, expert_width: int) -> int:
    """Width of the experts that every token passes."""
    if fields.get("intermediate_size_mlp") is not None:  # Llama 4: one shared expert as wide as a routed one
        return expert_width
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


def _quantization(fields: ConfigFields, layers: list[tuple[Attention, FeedForward]]) -> tuple[str, frozenset[Part]]:
    quantization = fields.get("quantization_config")
    weight_dtype = weight_format(quantization, fields.where)
    if weight_dtype == "bf16":
        return weight_dtype, QUANTIZABLE
    return weight_dtype, quantized_parts(quantization, layers, fields.where)
