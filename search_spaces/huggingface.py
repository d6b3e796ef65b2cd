"""Hugging Face `config.json` -> Transformer, from the fields alone; no model is special-cased by name.

What a family leaves unsaid stands in `hf_families.yaml`; a field that is missing, contradictory or not understood is an
ArchitectureError that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from costmodel.attention import Attention, CompressedAttention, LatentAttention, LinearAttention, Part, SoftmaxAttention
from costmodel.errors import ArchitectureError, shown
from costmodel.transformer import FeedForward, LayerGroup, Transformer

from .hf_config import (
    LARGEST,
    UNKNOWN,
    ConfigFields,
    attention_kinds,
    block_pattern,
    check_file,
    context_length,
    has_single_blocks,
    notation,
    open_config,
    without_talker,
)
from .hf_quantization import as_stored

UNKNOWN_TYPE = "model_type not known: read by its fields alone"
"""What the source of a model says whose class may have more than its config tells."""
MOST_LAYERS = 10_000
MOST_RATIO = 100
"""A ratio of widths, or a side of merged patches, that is larger is a slip [1]."""
TOWERS = ("vision_config", "visual", "audio_config")
"""Sections where configs describe towers for images and sound."""
MOST_ROWS = 10**10
"""Of a table of n-grams [1]; DeepSeek-V4.1 has 4e8."""
DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Fields with the number of layers that predict further tokens (DeepSeek, Qwen, MiniMax)."""
GATED_ACTIVATIONS = frozenset({"silu", "swish", "swiglu", "geglu"})
"""In every published decoder these come with a gate projection; ReLU and GELU do in some families only."""


def parse_config(
    config: Mapping[str, Any], name: str, source: str = "", date: str = "", *, lenient: bool = False
) -> Transformer:
    """The architecture that a `config.json` describes.

    config: the parsed JSON; name: how the model is called in messages and results; source, date: origin of the facts.
    lenient: fields that shape the model and are not understood are left out (`open_config`).
    `source` names the towers whose weights are not counted, and says where the model_type is not known. Layers that
    attend images alone (Llama 3.2) count as weights that no token of text is multiplied by. Raises ArchitectureError.

    >>> model = parse_config({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    ...     "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
    ...     "max_position_embeddings": 4096}, "Llama-2-7B")
    >>> model.parameters, model.kv_bytes_per_token("bf16")
    (6738149376, 524288.0)
    """
    fields = open_config(config, name, lenient=lenient)
    check_file(config, fields)
    hidden = fields.count("hidden_size")
    layers = _layers(fields, hidden)
    parallel = bool(fields.flag("use_parallel_residual"))
    of_images = fields.layer_numbers("cross_attention_layers", len(layers)) or frozenset()
    tails = _tails(fields, len(layers))
    groups = Counter(pair for number, pair in enumerate(zip(layers, tails, strict=True)) if number not in of_images)
    skipped = [LayerGroup(1, *layers[number]) for number in of_images]
    sets, loops = fields.optional("num_mem_blocks", low=1) or 0, fields.optional("loops", low=1) or 1
    towers, uncounted = towers_of(config, hidden)
    drafts = () if fields.get("dspark_block_size") else DRAFT_LAYERS
    uncounted += () if drafts else ("the DSpark drafter",)
    unknown = UNKNOWN_TYPE if fields.family is UNKNOWN else ""
    tied, projection = fields.flag("tie_word_embeddings"), fields.optional("word_embed_proj_dim")
    if projection not in {None, hidden}:
        raise fields.error(
            f"'word_embed_proj_dim' {projection} differs from 'hidden_size' {hidden}, which is not modeled"
        )
    if tied is None:
        raise fields.missing("tie_word_embeddings", "it says whether the output head shares the embedding")
    model = Transformer(
        name=name,
        hidden=hidden,
        vocab=fields.count("vocab_size"),
        layers=tuple(
            LayerGroup(
                loops * count,
                *layer,
                parallel=parallel,
                sets=count if loops > 1 else sets if isinstance(layer[0], SoftmaxAttention) else 0,
                tail=tail,
            )
            for (layer, tail), count in groups.items()
        ),
        tied_embeddings=tied,
        max_position=context_length(fields),
        looked_up=_looked_up(fields, hidden, layers) + sum(layer.dense_elements for layer in skipped),
        towers=towers,
        host_tables=_host_tables(fields),
        draft_layers=next(filter(None, map(fields.optional, drafts)), 0),
        source="; ".join(filter(None, (source, *(f"without {section}" for section in uncounted), unknown))),
        date=date,
    )
    apart, single = bool(fields.flag("enable_moe_block")), has_single_blocks(fields)
    try:
        model = as_stored(model, fields.get("quantization_config"), layers, apart=apart, single=single)
    except ArchitectureError as error:
        raise fields.error(str(error)) from None
    if (
        fields.text("expert_dtype") in {"fp4", "mxfp4"}
        and model.native_weight_dtype not in {"fp4", "bf16"}
        and not model.own_dtypes
    ):
        return replace(model, own_dtypes=frozenset({(Part.EXPERTS, "mxfp4")}))
    return model


def _looked_up(fields: ConfigFields, hidden: int, layers: Sequence[tuple[Attention, FeedForward]]) -> int:
    """Weights that no token of text is multiplied by: tables, and experts for images (ERNIE-4.5-VL).

    Tables of learned positions, of embeddings of tokens for each layer (Gemma 3n), and of n-grams (LongCat; Qwen4-Exp
    for some layers).
    """
    offset, width = fields.optional("learned_position_offset"), fields.optional("hidden_size_per_layer_input")
    positions = 0 if offset is None else fields.count("max_position_embeddings") + offset
    positions += (fields.optional("ngram_vocab_size_ratio") or 0) * fields.count("vocab_size")
    own = fields.count("vocab_size_per_layer_input") * len(layers) * width if width else 0
    with_tables = fields.get("ple_layer_ids")
    if isinstance(with_tables, list) and with_tables:
        own += len(with_tables) * fields.count("ngram_vocab_size_base") * (fields.optional("ple_embed_dim") or hidden)
    has_images = fields.get("image_width") is not None
    for block in (block for _, block in layers if has_images and block.experts):
        of_images = replace(block, expert_intermediate=fields.count("image_width"))
        own += (fields.optional("image_experts") or block.experts) * of_images.elements_per_expert
    return positions * hidden + own


def _tails(fields: ConfigFields, layers: int) -> list[int]:
    """Tokens of a prompt that pass each layer, 0: all; after the last that makes keys or looks n-grams up, a window."""
    sources = fields.layer_numbers("kv_source_layer_ids", layers) or frozenset({layers})
    last = max(sources | (fields.layer_numbers("engram_layer_ids", layers) or frozenset()))
    return [fields.count("sliding_window") if layer > last else 0 for layer in range(layers)]


def _host_tables(fields: ConfigFields) -> int:
    """Weights of the tables of n-grams that engines keep in host memory (Engram, DeepSeek-V4.1)."""
    tables = fields.get("engram_num_embeddings") or []
    if not isinstance(tables, list) or any(type(rows) is not int or not 0 < rows <= MOST_ROWS for rows in tables):
        raise fields.error(f"'engram_num_embeddings' must list numbers of rows from 1 to {MOST_ROWS}")
    return sum(tables) * fields.count("engram_head_dim") if tables else 0


def _layers(fields: ConfigFields, hidden: int) -> list[tuple[Attention, FeedForward]]:
    """Token mixer and feed-forward of every layer, first to last; as many as kinds are listed where no number is."""
    kinds, number = fields.get("layer_types") or fields.block_types(), fields.optional("num_hidden_layers", low=1)
    # Nemotron 3 Ultra lists kinds and has no number
    layers = len(kinds) if number is None and isinstance(kinds, list) and kinds else fields.count("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise fields.error(f"'num_hidden_layers' is {layers}, but must be at most {MOST_LAYERS}")
    gated = _has_gate(fields)
    for field, layers_of in (("block_configs", _searched_layers), ("num_mem_blocks", _shared_layers)):
        if fields.get(field) is not None and not has_single_blocks(fields):
            return layers_of(fields, hidden, layers, gated)
    pattern, by_layer = block_pattern(fields, layers), fields.of_layers(layers)
    if pattern is not None:
        return _patterned_layers(by_layer, hidden, pattern, gated)
    mixers = mixers_of(by_layer, hidden, attention_kinds(fields, layers))
    if fields.flag("no_feed_forward") or fields.flag("mamba_use_mlp") is False:
        return [(mixer, FeedForward(hidden, 0, gated=True)) for mixer in mixers]
    adapter, looks_up = _adapter_rank(fields, hidden, layers), fields.layer_numbers("engram_layer_ids", layers) or ()
    pairs: list[tuple[Attention, FeedForward]] = []
    for own, mixer, moe in zip(by_layer, mixers, _expert_layers(fields, layers), strict=True):
        block = _experts(own, hidden, gated) if moe else _dense(own, hidden, gated)
        if mixer.reads_earlier_kv and fields.flag("use_double_wide_mlp"):  # Gemma 4
            block = replace(block, intermediate=2 * block.intermediate)
        pairs.append((mixer, replace(block, adapter=adapter + (_engram_rank(fields) if len(pairs) in looks_up else 0))))
    if fields.flag("parallel_mixers"):
        mixer_alone = (state_space(fields, hidden), FeedForward(hidden, 0, gated=True))
        return [layer for pair in pairs for layer in (mixer_alone, pair)]
    if fields.get("zero_expert_num") is not None:  # LongCat: a second attention and dense block beside the experts
        second = _dense(fields, hidden, gated)
        return [layer for mixer, block in pairs for layer in ((mixer, block), (mixer, second))]
    return pairs


def _adapter_rank(fields: ConfigFields, hidden: int, layers: int) -> int:
    """Rank of a product of two matrices, with as many weights as a layer has beside attention and feed-forward.

    The gate of the layer's embedding and the projections to and from its width w, 3 x hidden x w; LAuReL's product;
    AltUp's 2 (n - 1) hidden^2 for n streams, which all layers share (Gemma 3n); two mixers of n streams by a rank r,
    each 2 n hidden x r + n^2 hidden (Qwen4-Exp).
    """
    embedding, laurel = fields.optional("hidden_size_per_layer_input") or 0, fields.optional("laurel_rank") or 0
    streams = fields.optional("altup_num_inputs", low=1) or 1
    mixed, rank = fields.optional("hc_count") or 0, fields.optional("hc_lowrank") or 0
    return round(1.5 * embedding + laurel + (streams - 1) * hidden / layers + mixed * (2 * rank + mixed))


def _engram_rank(fields: ConfigFields) -> int:
    """The same of Engram: a token reads heads x (m - 1) rows of 2- to m-grams.

    They are projected to a value and to a key for each stream: rows x width x (streams + 1) / 2.
    """
    rows = fields.count("engram_n_heads") * (fields.count("engram_max_ngram_size") - 1)
    return rows * fields.count("engram_head_dim") * (fields.count("hc_mult") + 1) // 2


def _patterned_layers(
    by_layer: Sequence[ConfigFields], hidden: int, pattern: Sequence[str], gated: bool
) -> list[tuple[Attention, FeedForward]]:
    """Layers of one block each, a mixer or a feed-forward (Nemotron-H): a mixer takes the feed-forward that follows.

    Further dense feed-forwards without a mixer between them widen it (Nemotron-H-47B).
    """
    blocks = {"moe": _experts, "mlp": _dense}
    nothing = FeedForward(hidden, 0, gated=True)
    layers: list[tuple[Attention, FeedForward]] = []
    for fields, kind in zip(by_layer, pattern, strict=True):
        if kind not in blocks:
            layers.append((mixers_of([fields], hidden, (kind,))[0], nothing))
            continue
        block, (mixer, before) = blocks[kind](fields, hidden, gated), layers[-1] if layers else (None, nothing)
        if mixer is None or before.experts or (block.experts and not before.is_empty):
            raise fields.error("config.json has a feed-forward without a mixer before it, which pdplan does not model")
        layers[-1] = (mixer, replace(block, intermediate=before.intermediate + block.intermediate))
    return layers


def _shared_layers(fields: ConfigFields, hidden: int, layers: int, gated: bool) -> list[tuple[Attention, FeedForward]]:
    """Mamba-2 layers, before some of which stands a block whose weights all of these share (Zamba2).

    The block reads the residual stream and the embedding side by side. What each of these layers has of its own, a
    projection of the block's output and a low-rank adapter of its MLP, counts as one low-rank product of as many
    weights: hidden^2 + rank x (hidden + 2 x intermediate) = 2 x hidden x rank of the product.
    """
    mamba, nothing = state_space(fields, hidden), FeedForward(hidden, 0, gated=True)
    block = _dense(fields, hidden, gated)
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    both = fields.optional("attention_hidden_size", low=1) or 2 * hidden
    width = fields.optional("head_dim", low=1) or both // heads
    shared = SoftmaxAttention(hidden, heads, kv_heads, width, width, input_width=both)
    adapted = hidden + (2 if gated else 1) * block.intermediate
    if fields.flag("use_shared_attention_adapter"):  # of queries, keys and values too
        adapted += 3 * 2 * both
    adapter = (fields.optional("adapter_rank") or 0) * adapted
    own = FeedForward(hidden, 0, gated=True, adapter=round((hidden**2 + adapter) / (2 * hidden)))
    pairs: list[tuple[Attention, FeedForward]] = []
    kinds = fields.labels("layer_types", ("mamba", "linear_attention", "hybrid"), layers) or ()
    listed = frozenset(layer for layer, kind in enumerate(kinds) if kind == "hybrid")
    hybrids = listed if kinds else fields.layer_numbers("hybrid_layer_ids", layers)
    if hybrids is None:
        raise fields.error("'layers_block_type' is missing, which says before which layers the shared block stands")
    for layer in range(layers):
        pairs += [(shared, block), (mamba, own)] if layer in hybrids else [(mamba, nothing)]
    return pairs


def _searched_layers(
    fields: ConfigFields, hidden: int, layers: int, gated: bool
) -> list[tuple[Attention, FeedForward]]:
    """Layers whose blocks an architecture search chose (Nemotron-NAS); one without attention widens the last one's MLP.

    A width is int(2 / 3 x ffn_mult x hidden), rounded up to a multiple of 256 (`_ffn_mult_to_intermediate_size`).
    """
    heads = fields.count("num_attention_heads")
    pairs: list[tuple[Attention, FeedForward]] = []
    for number, block in enumerate(fields.sequence("block_configs", layers) or []):
        mixer, mlp = (block.get(name) for name in ("attention", "ffn")) if isinstance(block, Mapping) else (None, None)
        if not isinstance(mixer, Mapping) or not isinstance(mlp, Mapping):
            raise fields.error(f"'block_configs' of layer {number} must have objects 'attention' and 'ffn'")
        if mixer.get("replace_with_linear") or mlp.get("replace_with_linear") or mixer.get("window_length"):
            raise fields.error(f"'block_configs' of layer {number} has a block that pdplan does not model")
        multiple = ConfigFields(fields.where, mlp).number("ffn_mult") or 0.0
        if not 0.0 <= multiple <= MOST_RATIO:
            raise fields.error(f"'ffn_mult' of layer {number} is {multiple}, but must be from 0 to {MOST_RATIO}")
        width = 0 if mlp.get("no_op") else -(-int(2.0 * multiple * hidden / 3.0) // 256) * 256
        if not mixer.get("no_op"):
            group = ConfigFields(fields.where, mixer).optional("n_heads_in_group", low=1) or 1
            if heads % group:
                raise fields.error(f"'n_heads_in_group' of layer {number} is {group}, which does not divide {heads}")
            kv_heads = heads // group
            attention = SoftmaxAttention(hidden, heads, kv_heads, hidden // heads, hidden // heads)
            pairs.append((attention, FeedForward(hidden, width, gated)))
        elif pairs:
            last, before = pairs[-1]
            pairs[-1] = last, replace(before, intermediate=before.intermediate + width)
    return pairs


def _expert_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Whether each layer has routed experts."""
    if fields.lacks("experts") and any(map(fields.has, ("experts_per_token", "moe_intermediate_size"))):
        raise fields.missing("experts", "it has fields of a mixture of experts")
    if (fields.optional("experts") or 0) <= 1 or fields.flag("is_moe") is False:  # Jamba writes 1 for no mixture
        return (False,) * layers
    words = fields.labels("mlp_layer_types", ("dense", "sparse", "moe", "hash_moe"), layers)
    if words is not None:
        return tuple(kind != "dense" for kind in words)
    numbers = fields.layer_numbers("moe_layers", layers)
    if numbers:
        return tuple(layer in numbers for layer in range(layers))
    first = fields.optional("first_k_dense_replace") or 0
    dense = fields.layer_numbers("mlp_only_layers", layers) or frozenset()
    step = fields.optional("moe_step", low=1) or 1
    period, offset = fields.optional("expert_layer_period", low=1), fields.optional("expert_layer_offset") or 0
    if period is not None:
        return tuple((layer - offset) % period == 0 for layer in range(layers))
    last = layers - 1 if fields.get("moe_layer_end_index") in (None, -1) else fields.count("moe_layer_end_index")
    if isinstance(fields.get("moe_layer_freq"), list):  # one switch per layer (MiMo), or a period (DeepSeek)
        switches = list(fields.labels("moe_layer_freq", (0, 1), layers) or ())
    else:
        switches = [layer % (fields.optional("moe_layer_freq", low=1) or 1) == 0 for layer in range(layers)]
    return tuple(
        first <= layer <= last and layer not in dense and (layer + 1) % step == 0 and switches[layer]
        for layer in range(layers)
    )


def _has_gate(fields: ConfigFields) -> bool:
    """Whether the feed-forward has a gate projection; of a class that is not known, its activation may say so."""
    flag, activation = fields.flag("is_gated_act"), fields.text("hidden_act")
    if flag is None and activation is None:
        raise fields.missing("hidden_act", "it says whether the feed-forward is gated")
    if flag is None and str(activation).lower() not in GATED_ACTIVATIONS:
        silent = "does not say whether the feed-forward is gated"
        raise fields.missing("is_gated_act", f"'hidden_act' {shown(activation)} {silent}")
    return flag is not False


def _dense(fields: ConfigFields, hidden: int, gated: bool) -> FeedForward:
    width = fields.optional("dense_width", low=1)
    if width is None and fields.optional("experts") == 0:  # Granite 4: what is left of the mixture is its shared part
        width = fields.optional("shared_width")
    width = width or fields.optional("intermediate_size", low=1)
    if width is not None and fields.flag("halved_feed_forward"):
        width //= 2
    if width is not None and fields.flag("block_auto_adjust_ff_dim"):
        # two thirds of it, times a factor, rounded up to a multiple (`Lfm2MLP`)
        multiple, factor = fields.count("block_multiple_of"), fields.number("block_ffn_dim_multiplier")
        width = -(-int((1.0 if factor is None else factor) * int(2 * width / 3)) // multiple) * multiple
    ratio = fields.optional("ffn_ratio", low=1)
    if width is None and ratio is None:
        raise fields.missing("intermediate_size")
    return FeedForward(hidden, width or hidden * (ratio or 0), gated)


def _experts(fields: ConfigFields, hidden: int, gated: bool) -> FeedForward:
    experts = fields.count("experts")
    per_token = fields.optional("experts_per_token", low=1) or fields.optional("usual_experts_per_token")
    if per_token is None:
        raise fields.missing("num_experts_per_tok")
    if per_token > experts:
        raise fields.error(f"'num_experts_per_tok' is {per_token}, but there are {experts} experts")
    width = fields.optional("moe_intermediate_size", low=1)
    if width is None:  # Mixtral's notation: num_local_experts of intermediate_size each
        has_own_width = fields.get("num_local_experts") is None or "moe_intermediate_size" in fields.family.section
        if has_own_width and not fields.flag("intermediate_is_experts"):
            raise fields.missing("moe_intermediate_size")
        width = fields.count("intermediate_size")
    idle = fields.optional("zero_expert_num") or 0  # experts that only pass their input on (LongCat)
    per_token = round(per_token * experts / (experts + idle))
    shared, latent = _shared_width(fields, hidden, width), fields.optional("expert_latent") or 0
    return FeedForward(hidden, shared, gated, experts, per_token, width, latent)


def _shared_width(fields: ConfigFields, hidden: int, expert_width: int) -> int:
    """Width of the experts that every token passes."""
    if fields.flag("residual_feed_forward"):  # Arctic
        return hidden
    if fields.get("intermediate_size_mlp") is not None:  # Llama 4: one shared expert as wide as a routed one
        return expert_width
    if fields.flag("enable_moe_block") or fields.get("zero_expert_num") is not None:  # a dense block beside the experts
        return fields.count("intermediate_size")
    count, width = fields.optional("shared_experts") or 0, fields.optional("shared_width") or 0
    if count > 1 and width:
        both = "config.json gives both a number and a width of shared experts"
        raise fields.error(f"{both}, which pdplan cannot distinguish")
    return width or count * expert_width


# Token mixers and their widths.


def mixers_of(by_layer: Sequence[ConfigFields], hidden: int, kinds: tuple[str, ...]) -> list[Attention]:
    """The mixers of layers of these kinds; by_layer: the fields of each."""
    common, layers = by_layer[0], len(kinds)
    if common.flag("use_mla") is False:  # DeepSeek-VL2-Tiny, DeepSeek-OCR: widths of latents are null or 0
        unused = dict.fromkeys(("kv_lora_rank", "v_head_dim", "qk_nope_head_dim"))
        by_layer = [replace(fields, values={**fields.values, **unused}) for fields in by_layer]
        common = by_layer[0]
    if common.lacks("kv_lora_rank") and common.get("qk_nope_head_dim"):
        raise common.missing("kv_lora_rank", "it has fields of latent attention")
    sources, last = common.sequence("kv_source_layers", layers), common.optional("num_kv_shared_layers") or 0
    every = (common.optional("cla_share_factor", low=1) or 1) if common.flag("use_cla") else 1
    # attend an earlier layer: as listed (Mistral Large 4), the last few (Gemma 3n), or all but every n-th (CLA)
    reads = [layer >= layers - last or layer % every > 0 for layer in range(layers)]
    reads = reads if sources is None else [source != layer for layer, source in enumerate(sources)]
    makers = common.layer_numbers("kv_source_layer_ids", layers)  # or by who makes latents (DeepSeek-V4.1)
    reads = reads if makers is None else [layer not in makers for layer in range(layers)]
    selects = _selecting_layers(common, layers)
    mixers: list[Attention] = []
    for fields, kind, has_index, reads_earlier in zip(by_layer, kinds, selects, reads, strict=False):
        if kind == "linear_attention":
            mixers.append(_linear(fields, hidden))
        elif fields.get("o_lora_rank") is not None:
            mixers.append(_compressed_attention(fields, hidden, kind, has_index, reads_earlier))
        elif fields.get("kv_lora_rank"):
            mixers.append(_latent(fields, hidden, kind, has_index, reads_earlier))
        else:
            mixers.append(_softmax(fields, hidden, kind, has_index, reads_earlier))
    return mixers


def _selecting_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Layers with an indexer; of latent attention others reuse the selection of the one before (GLM-5.2)."""
    numbers = fields.layer_numbers("index_source_layer_ids", layers)
    if numbers is not None or fields.get("o_lora_rank") is not None:
        return tuple(numbers is None or layer in numbers for layer in range(layers))
    if not fields.get("kv_lora_rank"):  # heads attend the blocks that an indexer selects (MiniMax-M3)
        if fields.get("index_topk_blocks") is None or fields.flag("use_sparse_attention") is False:
            return (False,) * layers
        switches = fields.labels("index_layers", (0, 1), layers)
        if switches:
            return tuple(map(bool, switches))
        return tuple(word in INDEXED for word in fields.sequence("layer_types", layers) or INDEXED[:1] * layers)
    words = fields.labels("indexer_types", ("full", "shared"), layers)
    letters = fields.text("index_topk_pattern")
    if words is None and letters is not None:
        if len(letters) != layers or not set(letters) <= {"F", "S"}:
            raise fields.error(f"'index_topk_pattern' must have F or S for each of {layers} layers")
        words = tuple("full" if letter == "F" else "shared" for letter in letters)
    if words is not None:
        return tuple(kind == "full" for kind in words)
    every, skipped = fields.optional("index_topk_freq", low=1) or 1, fields.optional("index_skip_topk_offset")
    first = 1 if skipped is None else skipped - 1
    return tuple(max(layer - first, 0) % every == 0 for layer in range(layers))


NO_INDEX = {"index_heads": 0, "index_dim": 0}
INDEXED = ("indexed_attention", "minimax_m3_sparse")
"""What `layer_types` says of layers whose heads attend what an indexer selects."""
WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Fields that say how many tokens a layer of a kind attends."""


def _softmax(fields: ConfigFields, hidden: int, kind: str, has_index: bool, reads_earlier: bool) -> SoftmaxAttention:
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
            raise fields.missing(
                "head_dim", f"'hidden_size' {hidden} is not a multiple of 'num_attention_heads' {heads}"
            )
        head_dim = hidden // heads
    index = fields.widths("index") if has_index else {}
    if has_index:
        index["index_topk"] = fields.count("index_topk_blocks") * fields.count("index_block_size")
    return SoftmaxAttention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=stated("v_head_dim") or head_dim,
        window=fields.count(WINDOWS[kind]) if kind in WINDOWS else None,
        output_gate=_has_output_gate(fields),
        reads_earlier_kv=reads_earlier,
        query_rank=fields.optional("share_q_dim") or 0,
        shared_kv=kind == "full_attention" and bool(fields.flag("attention_k_eq_v")),
        **index,
    )


def _has_output_gate(fields: ConfigFields) -> bool:
    """Whether attention has a gate for every element of its output; one for each head is below 0.1 % of the weights."""
    return bool(fields.flag("attn_output_gate")) or fields.get("gate_per") in ("per-element", "element_wise")


def _kv_heads(fields: ConfigFields, heads: int, kind: str) -> int:
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):  # Falcon, whatever it states beside
        return 1
    own = {"sliding_attention": "swa_num_key_value_heads", "full_attention": "num_global_key_value_heads"}.get(kind)
    kv_heads = fields.optional(own, low=1) if own else None
    if kv_heads is not None:
        return kv_heads
    kv_heads = fields.optional("num_key_value_heads", low=1)
    if kv_heads is not None:
        return kv_heads * ((fields.optional("sliding_kv_ratio", low=1) or 1) if kind == "sliding_attention" else 1)
    if fields.flag("multi_head"):
        return heads
    raise fields.missing("num_key_value_heads")


def _latent(fields: ConfigFields, hidden: int, kind: str, has_index: bool, reads_earlier: bool) -> LatentAttention:
    """Multi-head latent attention, with the indexer of sparse attention where there is one."""
    query_rank, rope_dim = fields.optional("q_lora_rank"), fields.optional("qk_rope_head_dim")
    if query_rank is None and "q_lora_rank" not in fields.values:
        raise fields.missing("q_lora_rank", "it is null where queries are not compressed")
    if rope_dim is None:
        raise fields.missing("qk_rope_head_dim")
    topk = 0 if kind in WINDOWS else fields.optional("index_topk") or 0
    return LatentAttention(
        hidden=hidden,
        query_rank=query_rank or 0,
        rope_dim=rope_dim,
        **fields.widths("latent"),
        **(fields.widths("index") if topk and has_index else NO_INDEX),
        index_topk=topk,
        index_pool=fields.optional("index_kpool") or 0,
        output_gate=_has_output_gate(fields),
        window=fields.count(WINDOWS[kind]) if kind in WINDOWS else None,
        reads_earlier_kv=reads_earlier,
    )


def _compressed_attention(
    fields: ConfigFields, hidden: int, kind: str, has_index: bool, reads_earlier: bool
) -> CompressedAttention:
    """DeepSeek-V4: latents of a window, of every few tokens with an indexer, or of many tokens."""
    rates = fields.get("compress_rates")
    ratios = {**notation()["layers"]["ratios"], **(rates if isinstance(rates, Mapping) else {})}
    own, is_sparse = fields.optional("compress_ratio"), kind == "compressed_sparse_attention"
    ratio = ratios.get(kind, 0) if own is None else own
    return CompressedAttention(
        hidden=hidden,
        ratio=ratio,
        **fields.widths("compressed"),
        **(fields.widths("index") if is_sparse and has_index else NO_INDEX),
        index_topk=fields.count("index_topk") if is_sparse else 0,
        reads_earlier_kv=reads_earlier and ratio > 0,
    )


STATE_BITS = {"auto": 0, "float32": 32, "bfloat16": 16, "float16": 16}
"""Bits of an element of a state [bit] by the config's word; 0: the serving engine's own."""


def _linear(fields: ConfigFields, hidden: int) -> LinearAttention:
    """The linear mixer whose fields the config has."""
    if fields.get("mamba_state") is not None:
        return state_space(fields, hidden)
    taps = fields.optional("conv_taps", low=1)
    if taps is not None:
        # LFM2's gated short convolution, projections to three hidden widths and back: channels for heads, without q and
        # k, and with a scalar for each
        return LinearAttention(hidden, 0, hidden, key_dim=1, value_dim=1, conv_width=taps, scalars=1, products=2)
    if fields.get("linear_heads") is not None or fields.get("short_conv_kernel_size") is not None:
        return _kimi_delta(fields, hidden)
    if fields.flag("lightning_attention"):
        heads, kv_heads = fields.count("num_attention_heads"), fields.optional("num_kv_heads_for_linear_attn")
        if kv_heads not in {None, 0, heads}:
            raise fields.error("config.json shares KV heads in linear attention, which pdplan does not model")
        width = fields.optional("head_dim", low=1) or hidden // heads
        return LinearAttention(hidden, heads, heads, width, width, conv_width=0, scalars=0, products=2)
    key_heads, value_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    if value_heads % key_heads:
        raise fields.error(
            f"'linear_num_value_heads' {value_heads} is not a multiple of 'linear_num_key_heads' {key_heads}"
        )
    return LinearAttention(hidden, key_heads, value_heads, **fields.widths("delta_net"), state_bits=_state_bits(fields))


def _state_bits(fields: ConfigFields) -> int:
    """Bits of an element of the state that the config states [bit]; 0 where it leaves them to the engine."""
    dtype = fields.text("state_dtype") or "auto"
    if dtype not in STATE_BITS:
        raise fields.error(f"the dtype of the state is {shown(dtype)}, not one of {', '.join(STATE_BITS)}")
    return STATE_BITS[dtype]


def state_space(fields: ConfigFields, hidden: int) -> LinearAttention:
    """Mamba-2: one step size per head, and B and C that the heads of a group share.

    Mamba-1: each inner channel is a head, and step sizes come by a rank. Falcon-Mamba's published `expand` is not that
    of its inner width, which it states as if it were a feed-forward's.
    """
    widths, bits = fields.widths("state_space"), _state_bits(fields)
    heads, width = fields.optional("mamba_heads", low=1), fields.get("mamba_head_dim")
    if heads is None and width is not None:
        heads = fields.count("mamba_expand") * hidden // fields.count("mamba_head_dim")
    if heads is None or fields.flag("first_mamba"):
        width = fields.optional("intermediate_size") if fields.flag("no_feed_forward") else None
        inner = width or fields.count("mamba_expand") * hidden
        is_auto = fields.get("mamba_rank") in (None, "auto")
        rank = -(-hidden // 16) if is_auto else fields.count("mamba_rank")
        return LinearAttention(
            hidden, 1, inner, value_dim=1, **widths, scalars=0, products=2, step_rank=rank, state_bits=bits
        )
    groups = fields.optional("mamba_groups", low=1) or 1
    if width in (None, "auto"):
        width = (fields.optional("mamba_d_ssm") or fields.count("mamba_expand") * hidden) // heads
    else:
        width = fields.count("mamba_head_dim")
    return LinearAttention(hidden, groups, heads, value_dim=width, **widths, scalars=1, products=2, state_bits=bits)


def _kimi_delta(fields: ConfigFields, hidden: int) -> LinearAttention:
    """Kimi Delta Attention: a decay for every channel of a key, and a gate, by a rank as wide as a head or in full.

    Decays in full are projected as so many scalars of a head (Ling 3). Engines keep its state in 32 bit whatever they
    are told (vLLM's `kda_state_dtype`).
    """
    heads = fields.optional("linear_heads", low=1) or fields.count("num_attention_heads")
    width, taps = fields.optional("linear_head_dim", low=1) or fields.count("head_dim"), fields.count("linear_taps")
    in_full = bool(fields.flag("no_kda_lora"))
    decays = {"scalars": 1 + width} if in_full else {"scalars": 1, "decay_rank": width}
    gate = 0 if in_full or fields.flag("use_full_rank_gate") else width
    return LinearAttention(hidden, heads, heads, width, width, conv_width=taps, gate_rank=gate, state_bits=32, **decays)


# Weights of the towers for images and sound beside a language model, which no token of text is multiplied by.


def towers_of(config: Mapping[str, Any], text_width: int) -> tuple[int, tuple[str, ...]]:
    """Weights of the towers of a config [1], and the sections of those whose weights do not follow from it.

    text_width: hidden size of the language model [1].

    >>> siglip = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    >>> towers_of({"model_type": "gemma3", "vision_config": siglip}, 5376)
    (417263616, ())
    """
    config = without_talker(config)
    sections = [section for section in TOWERS if isinstance(config.get(section), Mapping)]
    weights = {section: _tower_elements(config, config[section], text_width) for section in sections}
    return sum(filter(None, weights.values())), tuple(section for section in sections if weights[section] is None)


def _tower_elements(config: Mapping[str, Any], tower: Mapping[str, Any], text_width: int) -> int | None:
    """Weights of a tower and of the matrices that lead from it to the text model [1]; None where it is not understood.

    layers x (4 v a + 2 v w, or 3 v w with a gate) and the products of `towers` in `hf_families.yaml`, for v the width
    of the tower, a that of its heads together and w that of its feed-forward. Tables of positions and of patches are
    below 1 % of a tower, unless they stand there.
    """
    table = notation()["towers"]
    kinds = (str(config.get("model_type")), str(tower.get("model_type")))
    defaults = [table["defaults"].get(kind, {}) for kind in kinds]
    products = next((table["products"][kind] for kind in kinds if kind in table["products"]), None)
    own = {**defaults[1], **defaults[0], **tower}

    def stated(word: str, *places: Mapping[str, Any]) -> int | None:
        spellings = table["aliases"].get(word, (word,))
        values = (place.get(spelling) for place in places or (own,) for spelling in spellings)
        return next((value for value in values if type(value) is int and 1 <= value <= LARGEST), None)

    layers, width = stated("layers"), stated("width")
    if products is None or layers is None or width is None:
        return None
    heads, head_dim, ratio = stated("heads"), stated("head_dim"), own.get("mlp_ratio")
    inner = stated("attention") or (heads * head_dim if heads and head_dim else width)
    block = stated(table["blocks"].get(kinds[0], "feed_forward"))
    block = block or (round(ratio * width) if isinstance(ratio, int | float) and 0 < ratio < MOST_RATIO else None)
    if block is None:
        return None
    gated = any(kind in table["gated"] for kind in kinds)
    deep = own.get("deepstack_visual_indexes")
    widths: dict[str, float] = {"v": width, "m": width * _merged_patches(own, config), "t": text_width, "f": block}
    factors = [
        [widths.get(factor) or stated(factor, own, config) if isinstance(factor, str) else factor for factor in row]
        for row in products
    ]
    sizes = [prod(factor for factor in row if factor is not None) for row in factors if None not in row]
    if len(sizes) < len(products):
        return None
    layer = 4 * width * inner + (3 if gated else 2) * width * block
    joins = 1 + (len(deep) if isinstance(deep, list) else 0)
    return (layers + (stated("num_global_layers") or 0)) * layer + joins * round(sum(sizes))


def _merged_patches(*places: Mapping[str, Any]) -> int:
    """Patches that are joined to one token of the text model [1]."""
    for place in places:
        for field in notation()["towers"]["merges"]:
            value = place.get(field)
            if isinstance(value, list) and value and all(type(side) is int and 0 < side < MOST_RATIO for side in value):
                return prod(value)
            if isinstance(value, int | float) and 1 / MOST_RATIO < value < MOST_RATIO:  # a side, or its inverse
                return round(value if value >= 1 else 1 / value) ** 2
    return 1
