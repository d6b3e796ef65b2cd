"""Which dtype a published checkpoint stores, and which parts of the model it quantises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from costmodel.engine import Parallelism
from costmodel.errors import ArchitectureError
from costmodel.transformer import (
    ELEMENT_BYTES,
    MXFP4_GROUP,
    Attention,
    CompressedAttention,
    FeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    Part,
    Sharding,
    Transformer,
    WeightScale,
)
from search_spaces.hf_config import LARGEST, notation, shorten

_WIDTHS = {
    Part.ATTENTION: "attention width",
    Part.FEED_FORWARD: "feed-forward width",
    Part.EXPERTS: "expert width",
}


def split_refused(model: Transformer, split: Parallelism, weight_dtype: str) -> str | None:
    """Why tensor ranks cannot share the checkpoint's blocks; None if they can, or if weights are in another dtype."""
    scale = model.weight_scale
    if scale is None or weight_dtype != model.native_weight_dtype:
        return None
    for group in model.layers:
        for piece, width, ranks, block in _split_dimensions(group, split, scale):
            if ranks > 1 and model.part_dtype(piece, weight_dtype) == weight_dtype and width % (ranks * block):
                return (
                    f"TP {ranks} cuts the {_WIDTHS[piece]} {width:,} into {width // ranks:,}, no multiple of the "
                    f"{block} weights that share a scale"
                )
    return None


def _split_dimensions(
    group: LayerGroup, split: Parallelism, scale: WeightScale
) -> Iterator[tuple[Part, int, int, int]]:
    """Of every matrix that is split: its part, the width that is, over how many ranks, and the block along it."""
    for matrix in group.matrices:
        if matrix.sharding is Sharding.ROW:
            yield matrix.part, matrix.k, split.tensor, scale.inputs
        elif matrix.sharding is Sharding.COLUMN and not matrix.merged:
            yield matrix.part, matrix.n, split.tensor, scale.outputs
    block = group.feed_forward
    if block.experts and scale.outputs > 1:
        yield Part.EXPERTS, block.expert_intermediate, split.expert_ranks, scale.outputs
        yield Part.EXPERTS, block.expert_intermediate, split.expert_ranks, scale.inputs


QUANTIZABLE = frozenset({Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS})
IGNORE_FIELDS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude", "skip_modules")
LONGEST_PATTERN = 2_000
MOST_PATTERNS = 5_000
NVFP4_GROUP = 16
DEEPSEEK_BLOCK = (128, 128)
"""Block of ModelOpt's FP8_PB_WO, which its config does not write [1]; that of DeepSeek-V3's FP8."""
BITSANDBYTES_GROUP = 64
"""Weights that share a 32-bit scale in bitsandbytes' 4-bit formats [1] (QLoRA, arXiv 2305.14314, section 3)."""
BITSANDBYTES_NESTED = 1 + 4 / 256
"""The same scale where 256 of them share one of 32 bit and are kept in 8 [byte] (there: double quantization)."""
WHOLE_CHANNEL = -1
"""GPTQ's word for one scale per output channel."""


def weight_format(quantization: object, where: str) -> str:
    """The dtype of a `quantization_config`: fp8, int8, int4, int3, int2 or fp4; bf16 where there is none."""
    if quantization is None or quantization == {}:
        return "bf16"
    if not isinstance(quantization, Mapping):
        raise ArchitectureError(f"{where}: 'quantization_config' is {shorten(quantization)}, but must be an object")
    method = _method(quantization)
    if method not in _METHODS:
        raise ArchitectureError(
            f"{where}: 'quant_method' is {shorten(quantization.get('quant_method'))}, which pdplan does not know "
            f"(known: {', '.join(sorted(_METHODS))})"
        )
    rule = _METHODS[method]
    return rule if isinstance(rule, str) else rule(quantization, where)


def weight_scale(quantization: object, dtype: str, where: str) -> WeightScale | None:
    """Blocks of weights that share a scale in a `quantization_config`; None where whole channels or tensors do.

    dtype: as `weight_format` has it.
    """
    if dtype == "bf16" or not isinstance(quantization, Mapping):
        return None
    specs = _weight_specs(quantization)
    if quantization.get("config_groups"):  # of several formats, the scale of the main one
        specs = [spec for spec in specs if _spec_format(spec, where) == dtype] or specs
    scales = {_scale(spec, dtype, where) for spec in specs}
    if len(scales) != 1:
        raise ArchitectureError(
            f"{where}: 'quantization_config' states {len(scales)} sizes of groups for its weights, but pdplan needs one"
        )
    return scales.pop()


def quantized_parts(
    quantization: Mapping[str, Any],
    layers: Sequence[tuple[Attention, FeedForward]],
    where: str,
    *,
    apart: bool = False,
) -> frozenset[Part]:
    """The parts that the checkpoint quantises: those whose matrices are mostly meant and not excepted.

    apart: experts stand beside the dense block rather than in it (Gemma 4). Where an exception spares single layers
    only, the part counts as quantised throughout.
    """
    is_ignored = _matcher(_exceptions(quantization, where), where)
    targets = [target for group in _groups(quantization) for target in _entries(group, "targets", where)]
    is_target = _matcher(targets, where) if targets and not _by_class(targets) else None
    modules = [module for number, layer in enumerate(layers) for module in _modules(number, *layer, apart)]
    spared_modules: dict[Part, list[bool]] = {piece: [] for piece in QUANTIZABLE}
    for piece, name in modules:
        spared_modules[piece].append(is_ignored(name) or (is_target is not None and not is_target(name)))
    return frozenset(piece for piece, flags in spared_modules.items() if 2 * sum(flags) < len(flags))


def mixed_formats(
    quantization: object, layers: Sequence[tuple[Attention, FeedForward]], where: str, *, apart: bool = False
) -> dict[Part, str]:
    """Dtype of each part in a checkpoint with several of them; empty in any other, and of parts that stay at 16 bit.

    A part has the format of most of its modules. These are listed one by one (`quantized_layers`: with quant_method
    fp8 the others are fp8), or meant by the targets of several groups (`config_groups`).
    """
    if not isinstance(quantization, Mapping):
        return {}
    modules = quantization.get("quantized_layers")
    if not isinstance(modules, Mapping):
        return _grouped_formats(quantization, layers, where, apart)
    votes: dict[Part, Counter[str]] = {piece: Counter() for piece in QUANTIZABLE}
    for module, spec in modules.items():
        piece = part_of(str(module))
        if piece is not None and isinstance(spec, Mapping):
            votes[piece][_format_of("quant_algo", spec.get("quant_algo"), "algorithms", where)] += 1
    rest = dict.fromkeys(QUANTIZABLE, "fp8") if _method(quantization) == "fp8" else {}
    return rest | {piece: count.most_common(1)[0][0] for piece, count in votes.items() if count}


def _grouped_formats(
    quantization: Mapping[str, Any], layers: Sequence[tuple[Attention, FeedForward]], where: str, apart: bool
) -> dict[Part, str]:
    """Format of most modules of each part, where groups have several; a group of named modules outweighs one of all."""
    rules: list[tuple[bool, Callable[[str], bool], str]] = []
    for group in _groups(quantization):
        targets = _entries(group, "targets", where)
        if isinstance(group.get("weights"), Mapping):
            whole = {"format": quantization.get("format"), **group["weights"]}
            rules.append((_by_class(targets), _matcher(targets, where), _spec_format(whole, where)))
    if len({dtype for _, _, dtype in rules}) < 2:
        return {}
    rules.sort(key=lambda rule: rule[0])
    is_ignored = _matcher(_exceptions(quantization, where), where)
    votes: dict[Part, Counter[str]] = {piece: Counter() for piece in QUANTIZABLE}
    for number, layer in enumerate(layers):
        for piece, name in _modules(number, *layer, apart):
            formats = (dtype for by_class, matches, dtype in rules if by_class or matches(name))
            votes[piece]["bf16" if is_ignored(name) else next(formats, "bf16")] += 1
    main = {piece: count.most_common(1)[0][0] for piece, count in votes.items() if count}
    return {piece: dtype for piece, dtype in main.items() if dtype != "bf16"}


def _by_class(targets: Sequence[str]) -> bool:
    """Whether targets mean every linear layer, by the name of a class."""
    return any(not target.startswith("re:") and "." not in target for target in targets)


def _exceptions(quantization: Mapping[str, Any], where: str) -> list[str]:
    """Modules that stay at 16 bit, by any method's field; AutoRound writes them among layers with bits of their own."""
    own = quantization.get("extra_config")
    layers = own.items() if isinstance(own, Mapping) else ()
    spared = (name for name, spec in layers if isinstance(spec, Mapping) and spec.get("bits") in (16, 32))
    return [*(entry for field in IGNORE_FIELDS for entry in _entries(quantization, field, where)), *spared]


_MODULE_MARKS = {
    Part.FEED_FORWARD: re.compile(r"shared_expert|mlp\.(gate|up|down|gate_up)_proj|mixer\.(up|down)_proj|ffn\.w\d"),
    Part.EXPERTS: re.compile(r"experts"),
    Part.ATTENTION: re.compile(r"att|mixer|mamba|conv"),
}
"""What tells the part of a module from its name; the first that fits."""


def part_of(module: str) -> Part | None:
    """The part of the model that a module of a checkpoint belongs to; None for other ones."""
    return next((piece for piece, mark in _MODULE_MARKS.items() if mark.search(module)), None)


def _weight_specs(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Where a config says how weights are grouped: in its groups (compressed-tensors), for all (Quark), at its top."""
    weights, everywhere = _group_weights(quantization), _global_weight(quantization)
    if everywhere is not None:
        weights.append(everywhere)
    whole = {key: quantization.get(key) for key in ("format", "quant_algo")} | {"quant_method": _method(quantization)}
    return [{**whole, **spec} for spec in weights] or [{**quantization, **whole}]


def _scale(spec: Mapping[str, Any], dtype: str, where: str) -> WeightScale | None:
    block = spec.get("weight_block_size") or spec.get("block_structure")
    if block is not None or str(spec.get("quant_algo")).lower() == "fp8_pb_wo":
        return WeightScale(*_block(DEEPSEEK_BLOCK if block is None else block, where), size=4.0)
    group = spec.get("group_size", spec.get("q_group_size", _torchao_group(spec)))
    if group is None:
        group = _default_group(spec, dtype)
    if dtype == "fp8" or group is None or group == WHOLE_CHANNEL:
        return None
    if isinstance(group, bool) or not isinstance(group, int) or not 1 <= group <= LARGEST:
        raise ArchitectureError(
            f"{where}: 'group_size' in 'quantization_config' is {shorten(group)}, but must be a whole number from 1, "
            f"or {WHOLE_CHANNEL} for whole channels"
        )
    return WeightScale(1, group, _scale_bytes(spec, dtype))


def _default_group(spec: Mapping[str, Any], dtype: str) -> int | None:
    """Group of a method that does not write it, or whose class has a default."""
    method = spec["quant_method"]
    if dtype == "fp4":
        return MXFP4_GROUP if method in {"mxfp4", "quark"} or "mxfp4" in str(spec.get("format")) else NVFP4_GROUP
    if dtype == "int4":
        return {
            "auto-round": 128,
            "torchao": 128,
            "awq": 128,
            "gptq": 128,
            "modelopt": 128,
            "quanto": 128,
            "hqq": 64,
            "bitsandbytes": BITSANDBYTES_GROUP,
        }.get(method)
    return None


def _scale_bytes(spec: Mapping[str, Any], dtype: str) -> float:
    """Scale of a group [byte], 8-bit of FP4 and 16-bit of integers, and its zero point, as wide as a weight."""
    if dtype == "fp4":
        return 1.0
    if spec["quant_method"] == "bitsandbytes":
        return BITSANDBYTES_NESTED if spec.get("bnb_4bit_use_double_quant") else 4.0
    if spec["quant_method"] in {"hqq", "quanto"}:  # a zero point as wide as the scale
        return 4.0
    symmetric = spec.get("symmetric", spec.get("sym", not spec.get("zero_point", spec["quant_method"] == "awq")))
    return 2.0 if symmetric else 2.0 + ELEMENT_BYTES[dtype]


def _block(block: object, where: str) -> tuple[int, int]:
    sizes = block.split("x") if isinstance(block, str) else block
    if isinstance(sizes, list | tuple) and len(sizes) == 2:
        numbers = [int(size) if isinstance(size, str) and size.isdecimal() else size for size in sizes]
        if all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST for size in numbers):
            return numbers[0], numbers[1]
    raise ArchitectureError(
        f"{where}: the block of weights in 'quantization_config' is {shorten(block)}, but must be two whole numbers"
    )


def _method(quantization: Mapping[str, Any]) -> str:
    return str(quantization.get("quant_method", "modelopt" if "quant_algo" in quantization else "")).lower()


def _format_of(field: str, value: object, words: str, where: str) -> str:
    table = notation().quantization[words]
    if not isinstance(value, str) or value.lower() not in table:
        raise ArchitectureError(
            f"{where}: {field!r} in 'quantization_config' is {shorten(value)}, which pdplan does not know "
            f"(known: {', '.join(table)})"
        )
    return table[value.lower()]


def _by_bits(kind: object, bits: object, where: str) -> str:
    return _format_of("num_bits", f"{kind}{bits}", "bits", where)


def _integers(quantization: Mapping[str, Any], where: str) -> str:
    if str(quantization.get("data_type", "int")) in {"mx_fp", "nv_fp", "mx_fp4", "nv_fp4"}:  # AutoRound
        return _by_bits("float", quantization.get("bits"), where)
    loaded = next((bits for bits in (4, 8) if quantization.get(f"load_in_{bits}bit")), None)  # bitsandbytes
    return _by_bits("int", quantization.get("bits", quantization.get("w_bit", loaded)), where)


def _quark(quantization: Mapping[str, Any], where: str) -> str:
    weight = _global_weight(quantization)
    single = quantization.get("layer_quant_config") or {}
    if not isinstance(single, Mapping) or any(
        not isinstance(own, Mapping) or own.get("weight") != weight for own in single.values()
    ):
        raise ArchitectureError(
            f"{where}: 'layer_quant_config' in 'quantization_config' gives single layers another weight format, "
            "which pdplan does not model"
        )
    return _format_of("dtype", None if weight is None else weight.get("dtype"), "quark", where)


def _global_weight(quantization: Mapping[str, Any]) -> Mapping[str, Any] | None:
    everywhere = quantization.get("global_quant_config")
    weight = everywhere.get("weight") if isinstance(everywhere, Mapping) else None
    return weight if isinstance(weight, Mapping) else None


def _torchao(quantization: Mapping[str, Any], where: str) -> str:
    """The weight format by the class name of torchao's config, such as Int4WeightOnlyConfig."""
    return _format_of("quant_type", _torchao_name(quantization), "torchao", where)


def _torchao_group(quantization: Mapping[str, Any]) -> object:
    """Weights that share a scale [1], as torchao's config has them; None where it is silent or another method's."""
    kind = quantization.get("quant_type")
    kind = kind.get("default", kind) if isinstance(kind, Mapping) else None
    values = kind.get("_data") if isinstance(kind, Mapping) else quantization.get("quant_type_kwargs")
    return values.get("group_size") if isinstance(values, Mapping) else None


def _torchao_name(quantization: Mapping[str, Any]) -> object:
    kind = quantization.get("quant_type")
    kind = kind.get("default", kind) if isinstance(kind, Mapping) else kind
    name = kind.get("_type") if isinstance(kind, Mapping) else kind
    return name.replace("_", "").lower().removesuffix("config") if isinstance(name, str) else name


def _groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = quantization.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _group_weights(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How each group of layers stores its weights."""
    if _method(quantization) == "hqq":  # the same for all layers, or by the name of one
        whole = quantization.get("quant_config")
        layers = whole.values() if isinstance(whole, Mapping) and "weight_quant_params" not in whole else [whole]
        specs = (layer.get("weight_quant_params") for layer in layers if isinstance(layer, Mapping))
        return [{**spec, "num_bits": spec.get("nbits")} for spec in specs if isinstance(spec, Mapping)]
    return [group["weights"] for group in _groups(quantization) if isinstance(group.get("weights"), Mapping)]


def _grouped(quantization: Mapping[str, Any], where: str) -> str:
    formats = {
        _spec_format({"format": quantization.get("format"), **weights}, where)
        for weights in _group_weights(quantization)
    }
    if len(formats) != 1:
        formats_text = "no weight format" if not formats else f"several weight formats ({', '.join(sorted(formats))})"
        raise ArchitectureError(f"{where}: 'quantization_config' states {formats_text}, but pdplan needs exactly one")
    return formats.pop()


def _spec_format(spec: Mapping[str, Any], where: str) -> str:
    """Weight format of a group of compressed-tensors or ModelOpt."""
    kind = "float" if "fp4" in str(spec.get("format")) else "int"
    return _by_bits(spec.get("type", kind), spec.get("num_bits"), where)


def _entries(owner: Mapping[str, Any], field: str, where: str) -> list[str]:
    entries = owner.get(field) or []
    if not isinstance(entries, list | tuple) or any(
        not isinstance(e, str) or len(e) > LONGEST_PATTERN for e in entries
    ):
        raise ArchitectureError(
            f"{where}: {field!r} in 'quantization_config' must list names of at most {LONGEST_PATTERN} characters"
        )
    return list(entries)


def _matcher(entries: list[str], where: str) -> Callable[[str], bool]:
    """Whether a module is listed: by its name or one above it, `*` allowed, or by an expression after "re:"."""
    if len(entries) > MOST_PATTERNS:
        raise ArchitectureError(f"{where}: 'quantization_config' lists {len(entries)} modules, at most {MOST_PATTERNS}")
    names = (entry.removeprefix("language_model.") for entry in entries if not entry.startswith("re:"))
    names = (name.replace("model.language_model.", "model.") for name in names)
    ends = (re.escape(name).replace(r"\*", ".*") + ("" if name.endswith("*") else r"(?:\.|$)") for name in names)
    plain = "|".join(sorted({r"(?:^|\.)" + end for end in ends}))
    try:
        patterns = [re.compile(entry[3:]) for entry in entries if entry.startswith("re:")]
    except re.error as error:
        raise ArchitectureError(f"{where}: a pattern in 'quantization_config' is malformed: {error}") from error
    return lambda module: bool(
        (plain and re.search(plain, module)) or any(pattern.match(module) for pattern in patterns)
    )


def _modules(number: int, attention: Attention, feed_forward: FeedForward, apart: bool) -> Iterator[tuple[Part, str]]:
    """Names under which Hugging Face checkpoints file the matrices of one layer."""
    layer, inner = f"model.layers.{number}", "ffn" if isinstance(attention, CompressedAttention) else "mlp"
    for name in _mixer_modules(attention):
        yield Part.ATTENTION, f"{layer}.{name}"
    for name in ("gate_proj", "up_proj", "down_proj"):
        if feed_forward.experts:
            yield Part.EXPERTS, f"{layer}.{'experts' if apart else f'{inner}.experts'}.0.{name}"
        if feed_forward.intermediate:
            block = f"{inner}.shared_experts" if feed_forward.experts and not apart else inner
            yield Part.FEED_FORWARD, f"{layer}.{block}.{name}"


def _mixer_modules(attention: Attention) -> tuple[str, ...]:
    if isinstance(attention, LinearAttention):
        return ("linear_attn.in_proj_qkvz", "linear_attn.out_proj")
    if isinstance(attention, CompressedAttention):  # DeepSeek-V4
        return tuple(f"attn.{name}" for name in ("fused_wqa_wkv", "wq_b", "wo_a", "wo_b"))
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    if isinstance(attention, LatentAttention):
        queries = ("q_a_proj", "q_b_proj") if attention.query_rank else ("q_proj",)
        names = (*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    return tuple(f"self_attn.{name}" for name in names)


_METHODS: Mapping[str, str | Callable[[Mapping[str, Any], str], str]] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "fp4",
    "awq": _integers,
    "gptq": _integers,
    "auto-round": _integers,
    "autoround": _integers,
    "bitsandbytes": _integers,
    "hqq": _grouped,
    "quanto": lambda quantization, where: _format_of(
        "weights", str(quantization.get("weights")).removesuffix("_e4m3fn"), "bits", where
    ),
    "torchao": _torchao,
    "compressed-tensors": _grouped,
    "modelopt": lambda quantization, where: (
        "bf16"  # only the KV cache is quantised
        if quantization.get("quant_algo", "") is None
        else _format_of("quant_algo", quantization.get("quant_algo"), "algorithms", where)
    ),
    "quark": _quark,
}
