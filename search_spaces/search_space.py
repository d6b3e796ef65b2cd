"""The search space: presets and stated ranges, and the degrees that a model allows.

A preset is a data file in `presets/`. Of its degrees, those that the model does not allow are left out;
degrees that the user writes are refused instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, field_validator

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.transformer import DTYPE_BYTES, Transformer

from . import bounds
from .enumeration import head_refusals
from .fields import FileSection, OneOrMore, Reader, choice, count
from .files import Fault, shipped_table
from .problem import SearchSpace

WEIGHT_DTYPES = tuple(DTYPE_BYTES)
SIXTEEN_BIT = dict.fromkeys(("fp16", "float16", "half", "bfloat16", "fp32", "float32"), "bf16")
"""Precisions that engines load into 16 bit by themselves (`--dtype auto`), which all compute as fast as bf16."""
KV_DTYPES = ("bf16", "fp8")
PRESETS = ("quick", "standard", "wide")


class Span(FileSection):
    """Values spread evenly on a logarithmic scale."""

    low: Annotated[int, count(bounds.WHOLE)] = Field(alias="from")
    """Least value."""
    high: Annotated[int, count(bounds.WHOLE)] = Field(alias="to")
    """Greatest value."""

    @field_validator("high")
    @classmethod
    def _not_below(cls, high: int, info: ValidationInfo) -> int:
        if high < info.data.get("low", 1):
            raise InputError(f"{high} is below from {info.data['low']}")
        return high


def _within_bounds(limits: bounds.Bounds) -> AfterValidator:
    """Check the values, or the ends of the span, against the bounds of their key."""

    def check(values: list[int] | Span) -> list[int] | Span:
        ends = (values.low, values.high) if isinstance(values, Span) else values
        beyond = next((value for value in ends if not limits.holds(value)), None)
        if beyond is not None:
            raise InputError(f"{beyond} is out of range; {limits.sentence()}")
        return values

    return AfterValidator(check)


Degree = Annotated[int, count(bounds.DEGREE)]
WeightDtype = Annotated[str, choice(*WEIGHT_DTYPES, same=SIXTEEN_BIT)]
KvDtype = Annotated[str, choice(*KV_DTYPES)]
DraftedTokens = Annotated[int, count(bounds.SPECULATIVE_TOKENS)]
_Whole = Annotated[int, count(bounds.WHOLE)]
W = TypeVar("W")
_Ascending = Annotated[
    list[W],
    Field(min_length=1),
    OneOrMore(bounds.MAX_VALUES, "values"),
    AfterValidator(lambda values: sorted(set(values))),
]
_Sizes = Annotated[
    Annotated[_Ascending[_Whole], Tag("<values>")] | Annotated[Span, Tag("<span>")],
    Discriminator(lambda value: "<span>" if isinstance(value, dict | Span) else "<values>"),
]
Seqs = Annotated[_Sizes, _within_bounds(bounds.MAX_NUM_SEQS)]
Chunks = Annotated[_Sizes, _within_bounds(bounds.MAX_NUM_BATCHED_TOKENS)]


def _once_each(words: tuple[str, ...]) -> AfterValidator:
    """Each word once, in the order in which they are listed here."""
    return AfterValidator(lambda values: [word for word in words if word in values])


class SearchSection(FileSection):
    """Which engine settings are tried: a preset, and ranges that replace parts of it."""

    preset: Annotated[str, choice(*PRESETS)] = "standard"
    """quick: powers of two, a look; standard; wide: everything that has a chance, slower."""
    roles: Annotated[list[Annotated[Role, choice(*Role)]], Field(min_length=1), OneOrMore()] | None = None
    """Roles that engines may take."""
    tensor_parallel: _Ascending[Degree] | None = None
    """Tensor-parallel degrees; each must divide the model's heads."""
    pipeline_parallel: _Ascending[Degree] | None = None
    """Pipeline stages."""
    expert_parallel: _Ascending[Degree] | None = None
    """Ranks over which the experts are spread; 1: experts are split by tensor."""
    data_parallel: _Ascending[Degree] | None = None
    """Data-parallel ranks of the attention inside one engine (mixtures of experts)."""
    max_num_seqs: Seqs | None = None
    """Most requests that run at once in one engine: values, or {from, to}."""
    max_num_batched_tokens: Chunks | None = None
    """Most tokens in one engine step, the chunk of chunked prefill: values, or {from, to}."""
    max_gpus_per_engine: Annotated[int, count(bounds.GPUS_PER_ENGINE)] | None = None
    """Most GPUs in one engine."""
    weight_dtype: Annotated[list[WeightDtype], Field(min_length=1), OneOrMore(), _once_each(WEIGHT_DTYPES)] | None = (
        None
    )
    """Precisions of the weights that may be used, as they change what the model answers; default: the model's own."""
    kv_dtype: Annotated[list[KvDtype], Field(min_length=1), OneOrMore(), _once_each(KV_DTYPES)] | None = None
    """Precisions of the KV cache that may be used; default: the model section's."""
    speculative_tokens: _Ascending[DraftedTokens] | None = None
    """Tokens drafted for each request and step; 0: none. Default: 0 to 3 where model.speculation is stated, else 0."""

    @field_validator("roles")
    @classmethod
    def _serve(cls, roles: list[Role]) -> list[Role]:
        if len(set(roles)) == 1 and Role.COLOCATED not in roles:
            raise InputError(f"{roles[0]} alone cannot serve a request; add the other half, or colocated")
        return roles


SEQS_FACTOR = 2**0.5
TOKENS_FACTOR = 2.0
GRANULE = 8
"""Batch sizes from twice this on are multiples of it, as engines capture CUDA graphs for those."""


LARGE_MIXTURE = 200e9
"""Weights from which engines spread a mixture's experts beyond a node [1]: the least of the models for which vLLM,
SGLang and TensorRT-LLM publish recipes of wide expert parallelism (Qwen3-235B, GLM-4.5, DeepSeek, Kimi-K2)."""


@cache
def _preset(name: str, kind: str) -> SearchSection:
    """The ranges of a preset for a kind of model."""
    table = shipped_table("search_spaces", f"presets/{name}.yaml")
    kinds = {key: table.pop(key, None) for key in ("dense", "mixture_of_experts", "large_mixture")}
    return SearchSection.model_validate(table | (kinds[kind] or kinds["mixture_of_experts"]))


def search_space(section: SearchSection, model: Transformer) -> SearchSpace:
    """Return the ranges of the section's preset, with those that the section states in their place."""
    kind = "large_mixture" if model.parameters >= LARGE_MIXTURE else "mixture_of_experts"
    preset = dict(_preset(section.preset, kind if model.is_moe else "dense"))
    for key, allowed in allowed_degrees(model).items():
        preset[key] = [degree for degree in preset[key] if degree in allowed]
    preset["expert_parallel"] = [degree for degree in preset["expert_parallel"] if not model.redundant_experts(degree)]
    ranges = preset | {key: value for key, value in section if value is not None}
    roles, seqs, tokens = (ranges.pop(key) for key in ("roles", "max_num_seqs", "max_num_batched_tokens"))
    limit = ranges.pop("max_gpus_per_engine")
    return SearchSpace(
        roles=tuple(role for role in Role if role in roles),
        max_num_seqs=sizes(seqs, SEQS_FACTOR),
        max_num_batched_tokens=sizes(tokens, TOKENS_FACTOR),
        max_gpus_per_engine=limit,
        **{key: tuple(values or ()) for key, values in ranges.items() if key != "preset"},
    )


def sizes(span: Sequence[int] | Span, factor: float) -> tuple[int, ...]:
    """Return the values as they are, or a span's: `from` times powers of `factor`, up to and with `to`.

    >>> sizes(Span(low=8, high=512), SEQS_FACTOR)
    (8, 16, 24, 32, 48, 64, 88, 128, 184, 256, 360, 512)
    """
    if not isinstance(span, Span):
        return tuple(span)
    values = {span.low, span.high}
    value = float(span.low)
    while value < span.high:
        values.add(round(value) if value <= GRANULE else max(2 * GRANULE, GRANULE * round(value / GRANULE)))
        value *= factor
    return tuple(sorted(value for value in values if span.low <= value <= span.high))


@cache
def allowed_degrees(model: Transformer) -> Mapping[str, tuple[int, ...]]:
    """Degrees that the model allows, by the key of the search section.

    Expert parallelism need not divide the experts: engines fill up with second copies (redundant experts). A preset
    has only degrees that divide them, as copies cost memory.
    """
    degrees = range(1, int(bounds.DEGREE.high) + 1)
    many = tuple(degrees) if model.is_moe else (1,)
    return {
        "tensor_parallel": tuple(degree for degree in degrees if not any(head_refusals(model, degree))),
        "pipeline_parallel": tuple(degree for degree in degrees if degree <= model.num_layers),
        "expert_parallel": many,
        "data_parallel": many,
    }


DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
DTYPES: Mapping[str, tuple[str, ...]] = {"weight_dtype": WEIGHT_DTYPES, "kv_dtype": KV_DTYPES}
RANGES: Mapping[str, Reader] = {
    **dict.fromkeys(DEGREES, count(bounds.DEGREE)),
    "max_num_seqs": count(bounds.MAX_NUM_SEQS),
    "max_num_batched_tokens": count(bounds.MAX_NUM_BATCHED_TOKENS),
    **{name: choice(*words) for name, words in DTYPES.items()},
    "speculative_tokens": count(bounds.SPECULATIVE_TOKENS),
}
"""Settings of an engine that the search has a range of values for, and how one is read."""


SHOWN_DEGREES = 8


def degree_faults(search: SearchSection, model: Transformer) -> Iterator[Fault]:
    """Degrees of parallelism that the user wrote must suit the model."""
    no_experts = f"but {model.name} has no experts"
    why = {
        "tensor_parallel": f"which cannot divide the attention heads of {model.name}",
        "pipeline_parallel": f"beyond the {model.num_layers} layers of {model.name}",
        "expert_parallel": no_experts,
        "data_parallel": f"{no_experts} to share; replicas do the same",
    }
    for key, degrees_allowed in allowed_degrees(model).items():
        degrees_written: Sequence[int] = getattr(search, key) or ()
        wrong = [degree for degree in degrees_written if degree not in degrees_allowed]
        if wrong:
            examples = ", ".join(str(degree) for degree in degrees_allowed[:SHOWN_DEGREES])
            more = ", ..." if len(degrees_allowed) > SHOWN_DEGREES else ""
            degrees = ", ".join(map(str, wrong[:SHOWN_DEGREES])) + (", ..." if len(wrong) > SHOWN_DEGREES else "")
            yield Fault(("search", key), f"has {degrees}, {why[key]}; allowed: {examples}{more}")


def token_faults(search: SearchSection, model: Transformer) -> Iterator[Fault]:
    """A step needs a token for each request that runs; decode engines alone get them whatever is stated."""
    space = search_space(search, model)
    most, fewest = max(space.max_num_batched_tokens), min(space.max_num_seqs)
    if Role.COLOCATED in space.roles and most < fewest and (search.max_num_seqs or search.max_num_batched_tokens):
        key = "max_num_batched_tokens" if search.max_num_batched_tokens else "max_num_seqs"
        why = f"a step of at most {most:,} tokens has too few for at least {fewest:,} requests"
        yield Fault(("search", key), f"{why}; state max_num_batched_tokens of at least {fewest:,}")
