"""What the parts of the plan file are made of: numbers that are sane, and how JSON holds those it cannot say."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

LARGEST = 1e30
"""No number of a plan is larger; sums and products of such numbers are finite."""


def _nan_for_null(value: Any) -> Any:
    """JSON has no NaN, so plan.json holds null for it."""
    return math.nan if value is None else value


def _sane(value: float) -> float:
    if LARGEST < abs(value) < math.inf:
        raise ValueError(f"{value:g} is beyond any plan")
    return value


def _not_negative(value: float) -> float:
    if value < 0:
        raise ValueError(f"{value:g} is negative")
    return value


Number = Annotated[float, BeforeValidator(_nan_for_null), AfterValidator(_sane)]
"""Any number; NaN or infinite where there is none."""
Measure = Annotated[Number, AfterValidator(_not_negative)]
"""What cannot be negative; NaN or infinite where there is none."""
Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
"""What every plan knows, and cannot be negative."""
Share = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]
"""A part of a whole [1]; sums of parts may round to a little more."""
Count = Annotated[int, Field(ge=0, le=10**12)]
Degree = Annotated[int, Field(ge=1, le=10**12)]


class Record(BaseModel):
    """A part of the plan file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True)


class Quantiles(Record):
    """Predicted quantiles of a latency over all requests [s]."""

    p50: Measure
    p90: Measure
    p95: Measure
    p99: Measure


class WithMetrics(Record):
    """A record whose `metrics` are left out of the file where there are none."""

    @model_serializer(mode="wrap")
    def _without_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if name != "metrics" or value}
