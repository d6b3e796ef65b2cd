"""Which dtype a published checkpoint stores, and which parts of the model it quantises."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from costmodel.attention import Attention, CompressedAttention, LinearAttention, Part, SoftmaxAttention
from costmodel.errors import ArchitectureError
from costmodel.transformer import DTYPE_BYTES, ELEMENT_BYTES, MXFP4_GROUP, FeedForward, Transformer, WeightScale

from .hf_config import LARGEST, notation, shorten

QUANTIZABLE = frozenset({Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS})
ROOTS = ("model.", "language_model.model.", "model.language_model.")
"""What begins the names of modules: of a language model alone, and of one beside a vision tower."""
LONGEST_PATTERN = 2_000
MOST_PATTERNS = 5_000
NVFP4_GROUP = 16
DEEPSEEK_BLOCK = (128, 128)
"""Block of ModelOpt's FP8_PB_WO, which its config does not write [1]; that of DeepSeek-V3's FP8."""
BITSANDBYTES_NESTED = 1 + 4 / 256
"""A scale of 32 bit (QLoRA, arXiv 2305.14314, section 3) where 256 of them share one and are kept in 8 [byte]."""
WHOLE_CHANNEL = -1
"""GPTQ's word for one scale per output channel."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A dtype, and the block of weights that shares a scale; none where whole channels or tensors do."""

    dtype: str
    scale: WeightScale | None = None

    @property
    def bytes_per_element(self) -> float:
        """Bytes of a weight with its share of a scale [byte]."""
        return ELEMENT_BYTES[self.dtype] + (self.scale.bytes_per_element if self.scale else 0.0)


SIXTEEN_BIT = WeightFormat("bf16")


@dataclass(frozen=True, slots=True)
class WeightRule:
    """How some matrices of a checkpoint are stored; targets: parts and names of these, none: of every linear layer."""

    format: WeightFormat
    targets: tuple[str, ...]


def as_stored(
    model: Transformer,
    quantization: object,
    layers: Sequence[tuple[Attention, FeedForward]],
    *,
    apart: bool = False,
    single: bool = False,
) -> Transformer:
    """The model with the weight formats that a `quantization_config` gives its layers.

    A part has the format of most of its weights, unless at least half of them stay at 16 bit. Where it has several, the
    mean of their bytes counts. apart: experts stand beside the dense block, not in it (Gemma 4); single: mixers and
    feed-forwards are numbered as layers of their own (Nemotron-H).
    """
    if quantization is None or quantization == {}:
        return model
    if not isinstance(quantization, Mapping):
        raise ArchitectureError(f"'quantization_config' is {shorten(quantization)}, but must be an object")
    section = _object(quantization.get("quantization")) or quantization  # ModelOpt's file has it a level lower
    model = replace(model, cache_quantizer=_cache_quantizer(section))
    rules = _rules(section)
    votes = _votes(rules, layers, apart, single)
    for dtype, spec, (component,) in _usual(_object(section.get("quantized_layers"))):
        if set(votes[component]) == {SIXTEEN_BIT}:  # its listed modules have unknown names
            form = WeightFormat(dtype, _scale({**spec, "quant_method": _method_of(section)}, dtype))
            votes[component] = Counter({form: votes[component].total()})
    formats: dict[Part, WeightFormat] = {}
    mixed: set[tuple[Part, float]] = set()
    for component, weights in votes.items():
        quantized = Counter({form: count for form, count in weights.items() if form != SIXTEEN_BIT})
        if quantized.total() > weights[SIXTEEN_BIT]:
            formats[component] = quantized.most_common(1)[0][0]
        if len(weights) > 1:
            size = sum(form.bytes_per_element * count for form, count in weights.items())
            mixed.add((component, size / weights.total()))
    main = next(
        (formats[component] for component in (Part.EXPERTS, Part.FEED_FORWARD, Part.ATTENTION) if component in formats),
        None,
    )
    if main is None and votes and not mixed and any(rule.format != SIXTEEN_BIT for rule in rules):
        is_by_name = all(rule.targets for rule in rules if rule.format != SIXTEEN_BIT)
        by_name = "quantizes modules by names, of which pdplan finds none in the model"
        text = by_name if is_by_name else "quantizes the model, but leaves each of its modules at 16 bit"
        raise ArchitectureError(f"'quantization_config' {text}")
    if main is None:
        return model
    dtype = main.dtype if main.dtype in DTYPE_BYTES else "int4"  # what has fewer bits is computed with as four
    return replace(
        model,
        native_weight_dtype=dtype,
        quantized=frozenset(component for component, form in formats.items() if form.dtype in {dtype, main.dtype}),
        own_dtypes=frozenset((component, form.dtype) for component, form in formats.items() if form.dtype != dtype),
        mixed_bytes=frozenset(mixed),
        weight_scale=main.scale,
    )


def _method_of(quantization: Mapping[str, Any]) -> str:
    """The tool that quantised, which ModelOpt and old versions of bitsandbytes do not write."""
    unnamed = "modelopt" if "quant_algo" in quantization else "bitsandbytes" if "load_in_4bit" in quantization else ""
    return str(quantization.get("quant_method", unnamed)).lower()


def _cache_quantizer(quantization: Mapping[str, Any]) -> str:
    """The method of a config that states a KV cache in FP8; empty for others.

    As `get_kv_cache_quant_algo_string` and `Attention` of vLLM 0.29 and `ModelOptFp4Config` of SGLang 0.5 read it.
    """
    scheme, algorithm = quantization.get("kv_cache_scheme"), quantization.get("kv_cache_quant_algo")
    is_float = isinstance(scheme, Mapping) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return _method_of(quantization) if is_float or str(scheme or algorithm).lower() == "fp8" else ""


def _votes(
    rules: Sequence[WeightRule], layers: Sequence[tuple[Attention, FeedForward]], apart: bool, single: bool
) -> dict[Part, Counter[WeightFormat]]:
    """Weights of each part by format, as the first rule says that is for their matrix."""
    matchers = [_matcher([name for name in rule.targets if name not in QUANTIZABLE]) for rule in rules]
    votes: dict[Part, Counter[WeightFormat]] = defaultdict(Counter)
    number = 0
    for mixer, block in layers:
        for component, name, elements in _modules(number, mixer, block, apart, single):
            formats = (
                rule.format
                for rule, matches in zip(rules, matchers, strict=True)
                if not rule.targets or component in rule.targets or matches(name)
            )
            votes[component][next(formats, SIXTEEN_BIT)] += elements
        number += 2 if single and not block.is_empty else 1
    return votes


_MODULE_MARKS = {
    Part.FEED_FORWARD: re.compile(r"shared_expert|mlp\.(gate|up|down|gate_up)_proj|mixer\.(up|down)_proj|ffn\.w\d"),
    Part.EXPERTS: re.compile(r"experts"),
    Part.ATTENTION: re.compile(r"att|mixer|mamba|conv"),
}
"""What tells the part of a module from its name; the first that fits."""


def part_of(module: str) -> Part | None:
    """The part of the model that a module of a checkpoint belongs to; None for other ones."""
    return next((piece for piece, mark in _MODULE_MARKS.items() if mark.search(module)), None)


def _rules(quantization: Mapping[str, Any]) -> list[WeightRule]:
    """How a `quantization_config` stores weights: exceptions first, then modules that are named, then all others."""
    method = _method_of(quantization)
    methods = {*_METHODS, *notation()["quantization"]["methods"]}
    if method not in methods:
        raise ArchitectureError(
            f"'quant_method' is {shorten(quantization.get('quant_method'))}, which pdplan does not know "
            f"(known: {', '.join(sorted(methods))})"
        )
    rules: dict[tuple[WeightFormat, bool], list[str]] = {}
    for dtype, spec, targets in _specs(quantization, method):
        scale = None if dtype == "bf16" else _scale({**spec, "quant_method": method}, dtype)
        rules.setdefault((WeightFormat(dtype, scale), not targets), []).extend(targets)
    if not rules:
        raise ArchitectureError("'quantization_config' states no weight format, but pdplan needs exactly one")
    fields = (
        () if quantization.get("quantized_layers") else notation()["quantization"]["spared"]
    )  # a list has no exceptions
    spared = [entry for field in fields for entry in _entries(quantization, field)]
    rules_of_forms = [WeightRule(form, tuple(targets)) for (form, _), targets in rules.items()]
    return ([WeightRule(SIXTEEN_BIT, tuple(spared))] if spared else []) + sorted(
        rules_of_forms, key=lambda rule: not rule.targets
    )


_Spec = tuple[str, Mapping[str, Any], Sequence[str]]
"""Dtype of weights, what says how they are grouped, and the parts and modules that it is for, none: all."""


def _specs(quantization: Mapping[str, Any], method: str) -> Iterator[_Spec]:
    """What a config says of weights: in its groups (compressed-tensors), of single layers, or at its top."""
    groups, layers = (_object(quantization.get(field)) for field in ("config_groups", "quantized_layers"))
    yield from _listed(layers)
    for group in () if layers else groups.values():
        weights = _object(_object(group).get("weights"))
        if weights:
            spec = {**{key: quantization.get(key) for key in ("format", "quant_algo")}, **weights}
            kind = spec.get("type", "float" if "fp4" in str(spec["format"]) else "int")
            targets = _entries(group, "targets")
            by_class = any(not target.startswith("re:") and "." not in target for target in targets)
            yield _format_of("num_bits", f"{kind}{spec.get('num_bits')}", "bits"), spec, () if by_class else targets
    if (layers and method == "fp8") or not (layers or groups):  # FP8 are all that are not listed
        dtype = notation()["quantization"]["methods"].get(method)
        yield from ((dtype, quantization, ()),) if dtype else _METHODS[method](quantization)


FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "qkv_proj": ("q_proj", "k_proj", "v_proj")}
"""Matrices that engines read as one, and their parts."""


def _listed(layers: Mapping[str, Any]) -> Iterator[_Spec]:
    """Modules that are listed one by one, of experts the first alone."""
    modules: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for module, spec in layers.items():
        expert = re.search(r"experts\.(\d+)\.", module)
        if isinstance(spec, Mapping) and (expert is None or int(expert[1]) == 0):
            dtype = _format_of("quant_algo", spec.get("quant_algo"), "algorithms")
            block, _, matrix = module.rpartition(".")
            modules.setdefault(dtype, (spec, []))[1].extend(f"{block}.{name}" for name in FUSED.get(matrix, (matrix,)))
    for dtype, (spec, names) in modules.items():
        yield dtype, spec, names


def _usual(layers: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], tuple[Part]]]:
    """What most of the modules of each part have that are listed one by one."""
    specs: dict[Part, Counter[str]] = defaultdict(Counter)
    by_dtype: dict[str, Mapping[str, Any]] = {}
    for module, spec in layers.items():
        component = part_of(str(module))
        if component is not None and isinstance(spec, Mapping):
            dtype = _format_of("quant_algo", spec.get("quant_algo"), "algorithms")
            specs[component][dtype] += 1
            by_dtype[dtype] = spec
    for component, count in specs.items():
        dtype = count.most_common(1)[0][0]
        yield dtype, by_dtype[dtype], (component,)


def _scale(spec: Mapping[str, Any], dtype: str) -> WeightScale | None:
    block = spec.get("weight_block_size") or spec.get("block_structure")
    if block is not None or str(spec.get("quant_algo")).lower() == "fp8_pb_wo":
        size = 1.0 if _is_microscaled(spec) else 4.0
        return WeightScale(*_block(DEEPSEEK_BLOCK if block is None else block), size=size)
    method, is_float = spec["quant_method"], dtype in {"fp4", "fp8"}
    group = spec.get("group_size", spec.get("q_group_size"))
    if group is None and is_float:
        group = MXFP4_GROUP if _is_microscaled(spec) or method == "quark" else NVFP4_GROUP
    elif group is None and dtype == "int4":
        group = notation()["quantization"]["groups"].get(method)
    if group is None or group == WHOLE_CHANNEL or (dtype == "fp8" and not _is_microscaled(spec)):
        return None
    if isinstance(group, bool) or not isinstance(group, int) or not 1 <= group <= LARGEST:
        raise ArchitectureError(
            f"'group_size' in 'quantization_config' is {shorten(group)}, but must be a whole number from 1, "
            f"or {WHOLE_CHANNEL} for whole channels"
        )
    symmetric = spec.get("symmetric", spec.get("sym", not spec.get("zero_point", method == "awq")))
    size = 1.0 if is_float else 2.0 if symmetric else 2.0 + ELEMENT_BYTES[dtype]  # 16 bit, and a zero point
    if method == "bitsandbytes" and not is_float:
        size = BITSANDBYTES_NESTED if spec.get("bnb_4bit_use_double_quant") else 4.0
    return WeightScale(1, group, size)


def _is_microscaled(spec: Mapping[str, Any]) -> bool:
    """Whether a format is one of the Open Compute Project's, in which 32 weights share a power of two."""
    words = ("quant_method", "format", "quant_algo", "data_type", "forward_dtype", "_type")
    return any("mx" in str(spec.get(word)).lower() for word in words)


def _block(block: object) -> tuple[int, int]:
    sizes = block.split("x") if isinstance(block, str) else block
    if isinstance(sizes, list | tuple) and len(sizes) == 2:
        numbers = [int(size) if isinstance(size, str) and size.isdecimal() else size for size in sizes]
        if all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST for size in numbers):
            return numbers[0], numbers[1]
    raise ArchitectureError(
        f"the block of weights in 'quantization_config' is {shorten(block)}, but must be two whole numbers"
    )


def _format_of(field: str, value: object, words: str) -> str:
    table: Mapping[str, str] = notation()["quantization"][words]
    if not isinstance(value, str) or value.lower() not in table:
        raise ArchitectureError(
            f"{field!r} in 'quantization_config' is {shorten(value)}, which pdplan does not know "
            f"(known: {', '.join(table)})"
        )
    return table[value.lower()]


def _bits_of(spec: Mapping[str, Any]) -> str:
    """Dtype of a number of bits; AutoRound writes kinds of floats as its `data_type`."""
    loaded = next((bits for bits in (4, 8) if spec.get(f"load_in_{bits}bit")), None)  # bitsandbytes
    bits = spec.get("bits", spec.get("w_bit", loaded))
    kind = "float" if "fp" in str(spec.get("data_type")) else "int"
    return "bf16" if bits in (16, 32) else _format_of("num_bits", f"{kind}{bits}", "bits")


def _bitwise(quantization: Mapping[str, Any]) -> Iterator[_Spec]:
    """One number of bits, but for modules with settings of their own; GPTQ may list the modules that it has seen."""
    for field in ("dynamic", "extra_config"):  # of GPTQModel and AutoRound
        for pattern, settings in _object(quantization.get(field)).items():
            spec = {**quantization, **_object(settings)}
            is_spared = pattern.startswith("-:")  # by GPTQModel, as "+:" the others
            name = pattern.removeprefix("-:").removeprefix("+:")
            target = name if re.fullmatch(r"[\w.]+", name) else f"re:{name}"
            yield ("bf16" if is_spared else _bits_of(spec)), spec, (target,)
    blocks = quantization.get("modules_in_block_to_quantize")
    if isinstance(blocks, list) and blocks:
        names = chain.from_iterable(block if isinstance(block, list) else [block] for block in blocks)
        yield "bf16", {}, tuple(QUANTIZABLE.difference(map(part_of, map(str, names))))
    yield _bits_of(quantization), quantization, ()


def _quark(quantization: Mapping[str, Any]) -> Iterator[_Spec]:
    """One format, but for layers with one of their own."""
    layers = {**_object(quantization.get("layer_quant_config")), "": quantization.get("global_quant_config")}
    for name, layer in layers.items():
        weight = _object(layer).get("weight")
        is_spared = name and weight is None
        dtype = "bf16" if is_spared else _format_of("dtype", _object(weight).get("dtype"), "quark")
        yield dtype, _object(weight), (name,) if name else ()


def _torchao(quantization: Mapping[str, Any]) -> Iterator[_Spec]:
    """The class of torchao's config, such as Int4WeightOnlyConfig, for all layers or for those of a name."""
    kind = quantization.get("quant_type")
    kind = kind.get("default", kind) if isinstance(kind, Mapping) else kind
    if not isinstance(kind, Mapping):
        kind = {"_type": kind, "_data": quantization.get("quant_type_kwargs")}
    data = _object(kind.get("_data"))
    layers = _object(data.get("fqn_to_config", data.get("module_fqn_to_config"))) or {"_default": kind}
    for name, layer in layers.items():
        targets = () if name == "_default" else (name,)
        if layer is None:
            yield "bf16", {}, targets
        else:
            own, kind_name = _object(_object(layer).get("_data")), _object(layer).get("_type")
            grain = _object(own.get("granularity", own.get("weight_granularity")))
            group = WHOLE_CHANNEL if grain.get("_type") == "PerAxis" else _object(grain.get("_data")).get("group_size")
            torch_dtype = _object(own.get("weight_dtype")).get("_data", own.get("weight_dtype"))
            dtype = notation()["quantization"]["torch"].get(str(torch_dtype).removeprefix("torch."))
            word = str(kind_name).replace("_", "").lower().removesuffix("config") if kind_name else kind_name
            dtype = dtype or _format_of("quant_type", word, "torchao")
            yield dtype, {"_type": kind_name, "group_size": own.get("group_size", group)}, targets


def _object(value: object) -> Mapping[str, Any]:
    """A JSON object; an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def _modelopt(quantization: Mapping[str, Any]) -> Iterator[_Spec]:
    """One algorithm for all weights; null says that the KV cache alone is quantised."""
    word = quantization.get("quant_algo")
    is_cache_alone = "quant_algo" in quantization and word is None
    yield "bf16" if is_cache_alone else _format_of("quant_algo", word, "algorithms"), quantization, ()


def _entries(owner: Mapping[str, Any], field: str) -> list[str]:
    entries = owner.get(field) or []
    if not isinstance(entries, list | tuple) or any(
        not isinstance(e, str) or len(e) > LONGEST_PATTERN for e in entries
    ):
        raise ArchitectureError(
            f"{field!r} in 'quantization_config' must list names of at most {LONGEST_PATTERN} characters"
        )
    return list(entries)


def _matcher(entries: list[str]) -> Callable[[str], bool]:
    """Whether a module is listed: by its name or one above it, `*` allowed, or by an expression after "re:"."""
    if len(entries) > MOST_PATTERNS:
        raise ArchitectureError(f"'quantization_config' lists {len(entries)} modules, at most {MOST_PATTERNS}")
    for pattern, usual in notation()["quantization"]["names"].items():
        entries = [re.sub(pattern, usual, entry) for entry in entries]
    names = (entry.removeprefix("language_model.") for entry in entries if not entry.startswith("re:"))
    names = (re.sub(r"^(model\.language_model|backbone)\.", "model.", name).rstrip(".") for name in names)
    ends = (re.escape(name).replace(r"\*", ".*") + ("" if name.endswith("*") else r"(?:\.|$)") for name in names)
    plain = "|".join(sorted({r"(?:^|\.)" + end for end in ends}))
    try:
        patterns = [re.compile(entry[3:]) for entry in entries if entry.startswith("re:")]
    except re.error as error:
        raise ArchitectureError(f"a pattern in 'quantization_config' is malformed: {error}") from error
    return lambda module: bool(
        (plain and re.search(plain, module))
        or any(pattern.match(root + module.removeprefix(ROOTS[0])) for pattern in patterns for root in ROOTS)
    )


def _modules(
    number: int, attention: Attention, feed_forward: FeedForward, apart: bool, single: bool
) -> Iterator[tuple[Part, str, int]]:
    """Names under which Hugging Face checkpoints file the matrices of one layer, and their weights [1]."""
    layer, inner = f"model.layers.{number}", "ffn" if isinstance(attention, CompressedAttention) else "mlp"
    for name, elements in _mixer_modules(attention):
        block, _, matrix = name.rpartition(".")
        yield Part.ATTENTION, f"{layer}.{'mixer' if single else block}.{matrix}", elements
    if single:
        layer, inner = f"model.layers.{number + 1}", "mixer"
    for name in ("gate_proj", "up_proj", "down_proj")[not feed_forward.gated :]:
        if feed_forward.experts:
            elements = feed_forward.experts * feed_forward.expert_intermediate
            yield Part.EXPERTS, f"{layer}.{'experts' if apart else f'{inner}.experts'}.0.{name}", elements
        if feed_forward.intermediate:
            block = f"{inner}.shared_experts" if feed_forward.experts and not apart else inner
            yield Part.FEED_FORWARD, f"{layer}.{block}.{name}", feed_forward.intermediate


_LINEAR_BLOCKS = {(3, 2): "linear_attn", (2, 1): "mamba.mixer"}
"""Blocks of linear attention by its products and scalars: of the gated delta rule, of Mamba-2; of others self_attn."""


def _mixer_modules(attention: Attention) -> Iterator[tuple[str, int]]:
    """Matrices of a mixer as checkpoints call them, queries, keys and values apart, and their weights [1]."""
    block = "attn" if isinstance(attention, CompressedAttention) else "self_attn"
    if isinstance(attention, LinearAttention):
        kind = (attention.products, attention.scalars)
        block = "mamba.mixer" if attention.step_rank else _LINEAR_BLOCKS.get(kind, block)
    for matrix in attention.matrices:
        if isinstance(attention, SoftmaxAttention) and matrix.name == "qkv":
            queries = attention.query_rank or attention.heads * attention.head_dim * (1 + attention.output_gate)
            keys = (matrix.n - queries) // 2
            widths = {"q": queries, "k": keys, "v": matrix.n - queries - keys}
            yield from ((f"{block}.{name}_proj", matrix.k * width) for name, width in widths.items() if width)
        elif not matrix.name.startswith("index"):
            name = notation()["matrices"][block].get(matrix.name, f"{matrix.name}_proj")
            yield f"{block}.{name}", matrix.elements


def _groups(quantization: Mapping[str, Any]) -> Iterator[_Spec]:
    """Weights as they were, where only the KV cache is quantised: formats of weights stand in groups."""
    if quantization.get("kv_cache_scheme"):
        yield "bf16", {}, ()


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Iterable[_Spec]]] = {
    **dict.fromkeys(("awq", "gptq", "auto-round", "autoround", "intel/auto-round", "bitsandbytes"), _bitwise),
    "torchao": _torchao,
    "compressed-tensors": _groups,
    "modelopt": _modelopt,
    "quark": _quark,
}
