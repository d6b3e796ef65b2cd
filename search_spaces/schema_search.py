"""The search section of workload.yaml: which engine settings are tried."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator

from costmodel.engine import Role
from costmodel.transformer import DTYPE_BYTES

from . import bounds
from .bounds import Bounds
from .fields import Section, at_most, choice, count, house_error, listed, member

WEIGHT_DTYPES = tuple(DTYPE_BYTES)
KV_DTYPES = ("bf16", "fp8")
PRESETS = ("quick", "standard", "wide")


def _ascending(values: list[int]) -> list[int]:
    if not values:
        raise house_error("is empty, but needs at least one value")
    return sorted(set(values))


class Span(Section):
    """Values spread evenly on a logarithmic scale."""

    low: Annotated[int, count(bounds.WHOLE)] = Field(alias="from")
    """Least value."""
    high: Annotated[int, count(bounds.WHOLE)] = Field(alias="to")
    """Greatest value."""

    @field_validator("high")
    @classmethod
    def _not_below(cls, high: int, info: ValidationInfo) -> int:
        if high < info.data.get("low", 1):
            raise house_error(f"{high} is below from {info.data['low']}")
        return high


def _values_form(value: object) -> str:
    return "<span>" if isinstance(value, dict | Span) else "<values>"


def _sized(allowed: Bounds) -> AfterValidator:
    """Check the values, or the ends of the span, against the bounds of their key."""

    def check(values: list[int] | Span) -> list[int] | Span:
        ends = (values.low, values.high) if isinstance(values, Span) else values
        beyond = next((value for value in ends if not allowed.holds(value)), None)
        if beyond is not None:
            raise house_error(f"{beyond} is out of range; {allowed.sentence()}")
        return values

    return AfterValidator(check)


_Degree = Annotated[int, count(bounds.DEGREE)]
_Whole = Annotated[int, count(bounds.WHOLE)]
Degrees = Annotated[
    list[_Degree],
    at_most(bounds.MAX_VALUES, "values"),
    BeforeValidator(listed, json_schema_input_type=list[_Degree] | _Degree),
    AfterValidator(_ascending),
]
_Values = Annotated[
    list[_Whole],
    at_most(bounds.MAX_VALUES, "values"),
    BeforeValidator(listed, json_schema_input_type=list[_Whole] | _Whole),
    AfterValidator(_ascending),
]
_Sizes = Annotated[Annotated[_Values, Tag("<values>")] | Annotated[Span, Tag("<span>")], Discriminator(_values_form)]
Seqs = Annotated[_Sizes, _sized(bounds.MAX_NUM_SEQS)]
Chunks = Annotated[_Sizes, _sized(bounds.MAX_NUM_BATCHED_TOKENS)]


def _once_each(words: tuple[str, ...]) -> AfterValidator:
    """At least one word, each once, in the order in which they are listed here."""

    def check(values: list[str]) -> list[str]:
        if not values:
            raise house_error("is empty, but needs at least one dtype")
        return [word for word in words if word in values]

    return AfterValidator(check)


_WeightDtype = Annotated[str, choice(*WEIGHT_DTYPES)]
_KvDtype = Annotated[str, choice(*KV_DTYPES)]
_WeightDtypes = Annotated[
    list[_WeightDtype],
    BeforeValidator(listed, json_schema_input_type=list[_WeightDtype] | _WeightDtype),
    _once_each(WEIGHT_DTYPES),
]
_KvDtypes = Annotated[
    list[_KvDtype], BeforeValidator(listed, json_schema_input_type=list[_KvDtype] | _KvDtype), _once_each(KV_DTYPES)
]
_Role = Annotated[Role, member(Role)]
_Roles = list[_Role]


class SearchSection(Section):
    """Which engine settings are tried: a preset, and ranges that replace parts of it."""

    preset: Annotated[str, choice(*PRESETS)] = "standard"
    """quick: powers of two, a look; standard; wide: everything that has a chance, slower."""
    roles: Annotated[_Roles, BeforeValidator(listed, json_schema_input_type=_Roles | _Role)] | None = None
    """Roles that engines may take."""
    tensor_parallel: Degrees | None = None
    """Tensor-parallel degrees; each must divide the model's heads."""
    pipeline_parallel: Degrees | None = None
    """Pipeline stages."""
    expert_parallel: Degrees | None = None
    """Ranks over which the experts are spread; 1: experts are split by tensor."""
    data_parallel: Degrees | None = None
    """Data-parallel ranks of the attention inside one engine (mixtures of experts)."""
    max_num_seqs: Seqs | None = None
    """Most requests that run at once in one engine: values, or {from, to}."""
    max_num_batched_tokens: Chunks | None = None
    """Most tokens in one engine step, the chunk of chunked prefill: values, or {from, to}."""
    max_gpus_per_engine: Annotated[int, count(bounds.GPUS_PER_ENGINE)] | None = None
    """Most GPUs in one engine."""
    weight_dtype: _WeightDtypes | None = None
    """Precisions of the weights that may be used, as they change what the model answers; default: the model's own."""
    kv_dtype: _KvDtypes | None = None
    """Precisions of the KV cache that may be used; default: the model section's."""
