"""The part of workload.yaml that says how long requests are: a histogram, a trace or named distributions."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Discriminator, Tag, ValidationInfo, field_validator, model_validator

from . import bounds
from .fields import Section, Text, choice, count, exactly_one, from_word, house_error, number, share
from .quantities import as_probability

TRACE_FORMATS = ("auto", "azure", "mooncake", "csv", "jsonl")
ARRIVAL_UNITS = ("auto", "s", "ms", "us", "ns", "iso")

Tokens = Annotated[float, number(bounds.TOKENS)]
Share = Annotated[float, share(bounds.SHARE)]


class HistogramRow(Section):
    """One bucket of requests."""

    isl: Tokens
    """Input length [token]."""
    osl: Tokens
    """Output length [token]."""
    share: Share
    """Share of requests [1]."""


class HistogramGrid(Section):
    """A joint histogram as a table."""

    isl: list[Tokens]
    """Input length of each row [token]."""
    osl: list[Tokens]
    """Output length of each column [token]."""
    share: list[list[Share]]
    """Share of requests [1], one list per input length, one value per output length."""

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if len(self.share) != len(self.isl):
            raise house_error(f"share has {len(self.share)} rows, but isl has {len(self.isl)} lengths")
        for row, values in enumerate(self.share):
            if len(values) != len(self.osl):
                raise house_error(f"share row {row} has {len(values)} values, but osl has {len(self.osl)} lengths")
        return self


def _histogram_form(value: object) -> str:
    if isinstance(value, dict | HistogramGrid):
        return "<grid>"
    return "<path>" if isinstance(value, str) else "<rows>"


Histogram = Annotated[
    Annotated[list[HistogramRow], Tag("<rows>")]
    | Annotated[Text, Tag("<path>")]
    | Annotated[HistogramGrid, Tag("<grid>")],
    Discriminator(_histogram_form),
]


class TraceColumns(Section):
    """Names of the columns (CSV) or keys (JSON lines) of a trace; known names are found without it."""

    arrival: Text | None = None
    """Column with the arrival time."""
    isl: Text | None = None
    """Column with the input length [token]."""
    osl: Text | None = None
    """Column with the output length [token]."""
    arrival_unit: Annotated[str, choice(*ARRIVAL_UNITS)] = "auto"
    """Unit of the arrival time; auto tells dates from numbers and takes numbers as seconds."""


class TraceFile(Section):
    """A recorded trace."""

    path: Text
    """The trace file, relative to this file."""
    format: Annotated[str, choice(*TRACE_FORMATS)] = "auto"
    """Format of the trace; auto recognizes the Azure and Mooncake traces."""
    columns: TraceColumns | None = None
    """Which columns to read, for the formats csv and jsonl."""


class TraceSource(TraceFile):
    """A recorded trace; it also gives rate, burstiness and prefix-hit share unless they are stated."""

    buckets: Annotated[int, count(bounds.BUCKETS)] = 48
    """Most ISL x OSL buckets that the trace is summed up in."""


class PackedRequests(Section):
    """Requests of a trace as a plan file keeps them."""

    source: Text
    """Name of the trace."""
    of: Annotated[int, count(bounds.RECORDED)]
    """Requests that it had."""
    too_long: Annotated[int, count(bounds.LEFT_OUT)] = 0
    """Those left out that have too many tokens."""
    span: Annotated[float, number(bounds.SPAN)]
    """Time that the kept ones take [s]."""
    packed: str
    """Gaps [us], ISL and OSL of each, as 64-bit numbers, compressed by zlib, in base64."""


def _recorded_form(value: object) -> str:
    packed = "packed" in value if isinstance(value, dict) else isinstance(value, PackedRequests)
    return "<packed>" if packed else "<file>"


RecordedSource = Annotated[
    Annotated[TraceFile, BeforeValidator(from_word("path"), json_schema_input_type=str | TraceFile), Tag("<file>")]
    | Annotated[PackedRequests, Tag("<packed>")],
    Discriminator(_recorded_form),
]


class Lognormal(Section):
    """Log-normal lengths, given by their median and 99th percentile."""

    median: Tokens
    """Half of the requests are shorter [token]."""
    p99: Tokens
    """99 % of the requests are shorter [token]."""
    maximum: Tokens | None = None
    """Lengths above it count as it [token]."""

    @field_validator("p99")
    @classmethod
    def _ascending(cls, p99: float, info: ValidationInfo) -> float:
        if p99 < info.data.get("median", 0):
            raise house_error(f"{p99:g} is below the median {info.data['median']:g}")
        return p99


def _as_fixed(value: object) -> object:
    return {"fixed": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


_PROBABILITIES = "needs probabilities as keys, such as {0.5: 600, 90%: 2400, p99: 5500}"


def _probability(key: str) -> float:
    written = as_probability(key)
    return float(key) if written is None else written


def _read_quantiles(value: object) -> object:
    """Turn the keys, which YAML gives as text, into probabilities."""
    if not isinstance(value, dict):
        return value
    if not value:
        raise house_error(f"is empty, but {_PROBABILITIES}")
    try:
        found = {_probability(str(key)): length for key, length in value.items()}
    except ValueError:
        raise house_error(_PROBABILITIES) from None
    if len(found) < len(value):
        raise house_error(f"states one probability twice: {', '.join(map(str, value))}")
    return found


class LengthDistribution(Section):
    """One of three ways to state the distribution of a length."""

    fixed: Tokens | None = None
    """Every request has this length [token]."""
    lognormal: Lognormal | None = None
    """Log-normal lengths."""
    quantiles: Annotated[dict[float, Tokens], BeforeValidator(_read_quantiles)] | None = None
    """Length [token] by probability, for example {0.5: 600, 90%: 2400, p99: 5500}; 1 gives the longest."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        exactly_one(self, "fixed", "lognormal", "quantiles")
        return self


Distribution = Annotated[
    LengthDistribution, BeforeValidator(_as_fixed, json_schema_input_type=Tokens | LengthDistribution)
]


class LengthsSection(Section):
    """How long requests are: a histogram, or a trace, or one distribution each for isl and osl (independent)."""

    histogram: Histogram | None = None
    """Rows {isl, osl, share}; or a CSV file with the header isl,osl,share or isl,osl,count; or a table {isl, osl,
    share}. Beyond 400 rows, neighbors are merged; their mean lengths and the longest request are kept."""
    trace: TraceSource | None = None
    """A recorded trace."""
    isl: Distribution | None = None
    """Distribution of the input length [token]; a plain number is a fixed length."""
    osl: Distribution | None = None
    """Distribution of the output length [token]; a plain number is a fixed length."""
    source: Text | None = None
    """Free text: where the lengths come from."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.isl is None) != (self.osl is None):
            raise house_error(f"has {'osl' if self.isl is None else 'isl'} alone, but needs both isl and osl")
        forms = ["histogram", "trace", "isl and osl"]
        given = [form for form in forms if getattr(self, form.split()[0]) is not None]
        if len(given) != 1:
            found = f"has {', '.join(given)}" if given else "has none of them"
            raise house_error(f"needs exactly one of histogram, trace, or isl and osl together, but {found}")
        return self
