"""The shape of workload.yaml: every key, its unit, its default and its meaning, as frozen pydantic models.

The docstring under each attribute is its documentation and becomes its description in the JSON Schema
(`pdplan schema`). Checks that look at one section stand here; checks across sections in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from costmodel.accelerator import PriceBasis
from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.metric import METRICS, Metric, limits_of
from costmodel.quoting import shown
from costmodel.transformer import DTYPE_BYTES
from search_spaces import bounds
from search_spaces.bounds import Bounds
from search_spaces.buying_terms import WHOLE_DAY, ProcurementSection
from search_spaces.fields import (
    Section,
    Text,
    at_most,
    choice,
    count,
    house_error,
    member,
    member_or_file,
    number,
    one_or_more,
    quantity,
    share,
    short_for,
)
from search_spaces.problem import NO_TARGET, TARGET_NAMES, Balancing, Billing, Goal, Pools, Routing
from search_spaces.quantities import Kind, as_probability
from search_spaces.quotes import ENDING as QUOTES_ENDING
from search_spaces.speculation import SpeculationSection

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


Histogram = Annotated[
    Annotated[list[HistogramRow], Tag("<rows>")] | Annotated[Text, Tag("<path>")],
    Discriminator(lambda value: "<path>" if isinstance(value, str) else "<rows>"),
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
    is_packed = "packed" in value if isinstance(value, dict) else isinstance(value, PackedRequests)
    return "<packed>" if is_packed else "<file>"


RecordedSource = Annotated[
    Annotated[TraceFile, short_for(TraceFile, "path"), Tag("<file>")] | Annotated[PackedRequests, Tag("<packed>")],
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


_PROBABILITIES = "needs probabilities as keys, such as {0.5: 600, 90%: 2400, p99: 5500}"


def _probability(key: str) -> float:
    share_written = as_probability(key)
    return float(key) if share_written is None else share_written


def _read_quantiles(value: object) -> object:
    """Turn the keys, which YAML gives as text, into probabilities."""
    if not isinstance(value, dict):
        return value
    if not value:
        raise house_error(f"is empty, but {_PROBABILITIES}")
    try:
        lengths = {_probability(str(key)): length for key, length in value.items()}
    except ValueError:
        raise house_error(_PROBABILITIES) from None
    if len(lengths) < len(value):
        raise house_error(f"states one probability twice: {', '.join(map(str, value))}")
    return lengths


class LengthDistribution(Section):
    """One of three ways to state the distribution of a length, or of the number of turns."""

    forms = ("fixed", "lognormal", "quantiles")

    fixed: Tokens | None = None
    """Every request has this length [token]."""
    lognormal: Lognormal | None = None
    """Log-normal lengths."""
    quantiles: Annotated[dict[float, Tokens], BeforeValidator(_read_quantiles)] | None = None
    """Length [token] by probability, for example {0.5: 600, 90%: 2400, p99: 5500}; 1 gives the longest."""


Distribution = Annotated[LengthDistribution, short_for(LengthDistribution, "fixed", Tokens)]

_Duration = Annotated[float, quantity(Kind.DURATION, bounds.PAUSE)]
_Durations = Annotated[dict[float, _Duration], BeforeValidator(_read_quantiles)]


class PauseSection(Section):
    """One of two ways to state a distribution of times."""

    forms = ("mean", "quantiles")

    mean: _Duration | None = None
    """Mean of exponential times [s]."""
    quantiles: _Durations | None = None
    """Time [s] by probability, for example {0.5: 4s, p90: 30s, p99: 5min}; beyond the highest none is longer."""


Pause = Annotated[PauseSection, short_for(PauseSection, "mean", _Duration)]


class SessionsSection(Section):
    """Sessions of turns, as of agents and chats: the prompt of each turn is all before it and new tokens of the user.

    The lengths of requests follow from it, and what a prefix cache finds from the KV memory of the fleet.
    """

    rate: Annotated[float, quantity(Kind.RATE, bounds.REQUEST_RATE)] | None = None
    """New sessions [1/s], in place of request_rate."""
    turns: Distribution
    """Requests of a session [1]; a plain number: of every one."""
    think_time: Pause
    """From the end of an answer to the next turn [s]; a plain number is the mean of exponential times."""
    system_prompt: Annotated[float, number(bounds.SYSTEM_PROMPT)] = 0.0
    """Tokens that all sessions begin with, tools included [token]."""
    user_tokens: Distribution
    """New tokens of each turn, results of tools included [token]."""
    answer_tokens: Distribution
    """Output length of each turn [token]."""


class LengthsSection(Section):
    """How long requests are: a histogram, or a trace, or one distribution each for isl and osl (independent)."""

    histogram: Histogram | None = None
    """Rows {isl, osl, share}; or a CSV file with the header isl,osl,share or isl,osl,count. Beyond 400 rows, neighbors
    are merged; their mean lengths and the longest request are kept."""
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
        present = [form for form in forms if getattr(self, form.split()[0]) is not None]
        if len(present) != 1:
            words = f"has {', '.join(present)}" if present else "has none of them"
            raise house_error(f"needs exactly one of histogram, trace, or isl and osl together, but {words}")
        return self


WEIGHT_DTYPES = tuple(DTYPE_BYTES)
SIXTEEN_BIT = dict.fromkeys(("fp16", "float16", "half", "bfloat16", "fp32", "float32"), "bf16")
"""Precisions that engines load into 16 bit by themselves (`--dtype auto`), which all compute as fast as bf16."""
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


def _within_bounds(limits: Bounds) -> AfterValidator:
    """Check the values, or the ends of the span, against the bounds of their key."""

    def check(values: list[int] | Span) -> list[int] | Span:
        ends = (values.low, values.high) if isinstance(values, Span) else values
        beyond = next((value for value in ends if not limits.holds(value)), None)
        if beyond is not None:
            raise house_error(f"{beyond} is out of range; {limits.sentence()}")
        return values

    return AfterValidator(check)


_Degree = Annotated[int, count(bounds.DEGREE)]
_Whole = Annotated[int, count(bounds.WHOLE)]
Degrees = Annotated[
    list[_Degree],
    at_most(bounds.MAX_VALUES, "values"),
    one_or_more(_Degree),
    AfterValidator(_ascending),
]
_Values = Annotated[
    list[_Whole],
    at_most(bounds.MAX_VALUES, "values"),
    one_or_more(_Whole),
    AfterValidator(_ascending),
]
_Sizes = Annotated[
    Annotated[_Values, Tag("<values>")] | Annotated[Span, Tag("<span>")],
    Discriminator(lambda value: "<span>" if isinstance(value, dict | Span) else "<values>"),
]
Seqs = Annotated[_Sizes, _within_bounds(bounds.MAX_NUM_SEQS)]
Chunks = Annotated[_Sizes, _within_bounds(bounds.MAX_NUM_BATCHED_TOKENS)]


def _once_each(words: tuple[str, ...]) -> AfterValidator:
    """At least one word, each once, in the order in which they are listed here."""

    def check(values: list[str]) -> list[str]:
        if not values:
            raise house_error("is empty, but needs at least one dtype")
        return [word for word in words if word in values]

    return AfterValidator(check)


_WeightDtype = Annotated[str, choice(*WEIGHT_DTYPES, same=SIXTEEN_BIT)]
_KvDtype = Annotated[str, choice(*KV_DTYPES)]
_WeightDtypes = Annotated[list[_WeightDtype], one_or_more(_WeightDtype), _once_each(WEIGHT_DTYPES)]
_KvDtypes = Annotated[list[_KvDtype], one_or_more(_KvDtype), _once_each(KV_DTYPES)]
_Role = Annotated[Role, member(Role)]
_Drafted = Annotated[int, count(bounds.SPECULATIVE_TOKENS)]
_DraftedTokens = Annotated[
    list[_Drafted], at_most(bounds.MAX_VALUES, "values"), one_or_more(_Drafted), AfterValidator(_ascending)
]


class SearchSection(Section):
    """Which engine settings are tried: a preset, and ranges that replace parts of it."""

    preset: Annotated[str, choice(*PRESETS)] = "standard"
    """quick: powers of two, a look; standard; wide: everything that has a chance, slower."""
    roles: Annotated[list[_Role], one_or_more(_Role)] | None = None
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
    speculative_tokens: _DraftedTokens | None = None
    """Tokens drafted for each request and step; 0: none. Default: 0 to 3 where model.speculation is stated, else 0."""

    @field_validator("roles")
    @classmethod
    def _serve(cls, roles: list[Role]) -> list[Role]:
        if not roles:
            raise house_error("is empty, but needs at least one role")
        if len(set(roles)) == 1 and Role.COLOCATED not in roles:
            raise house_error(f"{roles[0]} alone cannot serve a request; add the other half, or colocated")
        return roles


WORKLOAD_SCHEMA: Literal["pdplan.workload/1"] = "pdplan.workload/1"
ENGINES = ("vllm", "sglang", "trtllm")

Volume = Annotated[float, number(bounds.VOLUME)]
Attainment = Annotated[float, share(bounds.ATTAINMENT, ("0.9", "90%", "p90"), as_probability)]
ClassShare = Annotated[float, share(bounds.CLASS_SHARE)]
Hours = Annotated[float, quantity(Kind.PERCENTAGE, bounds.HOURS_PERCENTILE)]


@dataclass(frozen=True, slots=True)
class Context:
    """What validation may look up, and the sections that proved sound even if others did not.

    check_accelerator, check_model: raise `InputError` on a name that is not known.
    """

    check_accelerator: Callable[[str], object]
    check_model: Callable[[str], object]
    sections: dict[str, Any] = field(default_factory=dict)


def _look_up(check: Callable[[str], object], name: str) -> str:
    try:
        check(name)
    except InputError as error:
        raise house_error(str(error).removeprefix("accelerator ").removeprefix("model ")) from None
    return name


class ModelSection(Section):
    """The model that is served, and its precision."""

    forms = ("name", "config", "architecture")

    name: Text | None = None
    """Name in the catalog (`pdplan models` lists them), or a Hugging Face id whose architecture is there."""
    config: Text | None = None
    """Instead of a name: path to a Hugging Face config.json, relative to this file."""
    architecture: Text | None = None
    """Instead of a name: path to an architecture file, which `pdplan models --from CONFIG -o FILE` writes."""
    weight_dtype: Annotated[str, choice(*WEIGHT_DTYPES, same=SIXTEEN_BIT)] | None = None
    """Precision of the weights; fp16 and fp32 count as bf16, as engines load them. Default: the checkpoint's."""
    kv_dtype: Annotated[str, choice(*KV_DTYPES)] = "bf16"
    """Precision of the KV cache."""
    speculation: SpeculationSection | None = None
    """Speculative decoding that may be used; default: none."""

    @field_validator("name", "config", "architecture")
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and isinstance(info.context, Context):
            _look_up(info.context.check_model, name)
        return name


class Diurnal(Section):
    """A daily profile of the request rate; the fleet is planned for its peak, or for a percentile of the hours."""

    requests_per_second_by_hour: Annotated[list[Annotated[float, quantity(Kind.RATE, bounds.HOURLY_RATE)]], WHOLE_DAY]
    """24 mean rates [1/s], from midnight."""
    percentile: Hours = 100.0
    """Share of the hours [%] whose rate the fleet carries; 100 is the peak."""


class WorkloadSection(Section):
    """The demand: how many requests, how long, how bursty, how much prefix they share."""

    forms = ("lengths", "sessions")

    request_rate: Annotated[float, quantity(Kind.RATE, bounds.REQUEST_RATE)] | None = None
    """Mean arrivals [1/s] that the fleet must carry; a trace gives its own unless this is stated."""
    diurnal: Diurnal | None = None
    """Instead of request_rate: a daily profile."""
    burstiness: Annotated[float, number(bounds.BURSTINESS)] | None = None
    """Coefficient of variation of the times between arrivals [1]; 1 is Poisson. Default: 1, or the trace's."""
    prefix_hit_share: Annotated[float, share(bounds.PREFIX_HIT_SHARE)] | None = None
    """Share of input tokens that a prefix cache can find [1]. Default: 0, or the trace's."""
    reuse_interval: Pause | None = None
    """From one use of a cached prefix to the next [s]: what the KV memory does not keep for so long is not found.
    Default: the trace's, or none: all of prefix_hit_share is found, whatever the memory."""
    max_tokens: Annotated[int, count(bounds.MAX_TOKENS)] | None = None
    """Longest ISL + OSL of any request [token]. Default: the longest of the lengths."""
    lengths: LengthsSection | None = None
    """How long requests are."""
    sessions: SessionsSection | None = None
    """Instead of lengths: the sessions that the requests are turns of."""
    recorded: RecordedSource | None = None
    """A trace whose own requests are simulated, in stretches and in order, in place of random ones; a single word is
    its path, relative to this file. Default: the trace of the lengths, unless burstiness or diurnal is stated."""

    @model_validator(mode="after")
    def _has_rate(self) -> Self:
        if self.sessions is not None:
            self._only_sessions(self.sessions)
        elif self.reuse_interval is not None and self.prefix_hit_share is None:
            raise house_error("has reuse_interval, but nothing to find; state prefix_hit_share")
        if self.request_rate is not None and self.diurnal is not None:
            raise house_error("has request_rate and diurnal, but needs one of them")
        own: object = None if self.lengths is None else self.lengths.trace
        own = own if self.sessions is None else self.sessions.rate
        if self.request_rate is None and self.diurnal is None and own is None:
            raise house_error("needs request_rate (such as 10/s) or diurnal; only a trace brings a rate of its own")
        if self.diurnal is not None and self.recorded is not None:
            raise house_error("has diurnal and recorded, but a recording has its own times; state request_rate")
        return self

    def _only_sessions(self, sessions: SessionsSection) -> None:
        """What follows from sessions is not stated beside them."""
        for name in ("prefix_hit_share", "reuse_interval", "recorded"):
            if getattr(self, name) is not None:
                raise house_error(f"has {name} and sessions, but it follows from the sessions; leave it out")
        if sessions.rate is not None and (self.request_rate is not None or self.diurnal is not None):
            raise house_error("has sessions.rate and a rate of requests, but needs one of them")


_LIMITS: dict[str, Any] = {
    str(metric): (
        Annotated[float, quantity(Kind.DURATION, bounds.LATENCIES[metric], row.plain)] | None,
        Field(default=None, description=row.words),
    )
    for metric, row in METRICS.items()
}
SloLimits = create_model("SloLimits", __base__=Section, **_LIMITS)
"""A limit on each metric of the table."""


class SloClass(SloLimits):
    """A service level: what share of its requests must be within all its limits.

    It has ttft and tpot, or e2e, or any of them beside e2e: without a limit on the whole request, none on one of its
    parts would let it take for ever.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["ttft", "tpot"]}, {"required": ["e2e"]}]})

    name: Text = "default"
    """Name of the class."""
    share: ClassShare | None = None
    """Share of all requests in this class [1]; may be left out where there is one class."""
    attainment: Attainment | None = None
    """Share of requests that must be within all limits [1]. Default: 0.9."""
    percentile: Attainment | None = None
    """Another way to write attainment: p90 is 0.9."""

    @property
    def limits(self) -> dict[Metric, float]:
        """The limits that are stated, by metric [s]."""
        return limits_of(**{metric: getattr(self, metric) for metric in Metric})

    @field_validator("e2e")
    @classmethod
    def _above_ttft(cls, e2e: float | None, info: ValidationInfo) -> float | None:
        ttft = info.data.get("ttft")
        if e2e is not None and ttft is not None and e2e <= ttft:
            raise house_error(
                f"{e2e:g} s is not above ttft {ttft:g} s, which leaves no time for a token after the first"
            )
        return e2e

    @model_validator(mode="after")
    def _is_limited(self) -> Self:
        limits_given = [name for name in ("ttft", "tpot") if Metric(name) in self.limits]
        if Metric.E2E not in self.limits and len(limits_given) < 2:
            limits = f"has {limits_given[0]} alone" if limits_given else "has none of them"
            raise house_error(f"needs ttft and tpot, or e2e, but {limits}; e2e: 5min leaves a request its time")
        return self

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        if self.attainment is not None and self.percentile is not None:
            raise house_error("has attainment and percentile, which mean the same; keep one of them")
        return self


class LinkSection(Section):
    """A link as one GPU sees it; what is left out stays as in the catalog."""

    bandwidth: Annotated[float, quantity(Kind.BANDWIDTH, bounds.BANDWIDTH)] | None = None
    """One direction, per GPU [byte/s]."""
    latency: Annotated[float, quantity(Kind.DURATION, bounds.LATENCY)] | None = None
    """Time of an empty message [s]."""


class AcceleratorSection(Section):
    """A GPU type that may be used; what is left out stays as in the catalog."""

    name: Text
    """Name in the catalog (`pdplan gpus` lists them)."""
    price: Annotated[float, quantity(Kind.PRICE, bounds.PRICE)] | None = None
    """Price of one GPU [$/h]; default: the catalog's, as `prices` chooses it."""
    catalog_price: Annotated[float, quantity(Kind.PRICE, bounds.PRICE)] | None = None
    """Stands in the inputs that a plan repeats [$/h]: a price that equals it is the catalog's, any other is yours."""
    inventory: Annotated[int, count(bounds.INVENTORY)] | None = None
    """GPUs of this type that can be had; default: any number."""
    owned: Annotated[int, count(bounds.INVENTORY)] | None = None
    """GPUs of this type that you have: they cost owned_price; inventory and price are those of more. Default: none."""
    owned_price: Annotated[float, quantity(Kind.PRICE, bounds.PRICE)] | None = None
    """Power and hosting of one of these [$/h]; default: as `procurement` says, else TDP x PUE 1.3 x $0.10/kWh."""
    billing: Annotated[Billing, member(Billing)] = Billing.GPU
    """What is paid for: single GPUs, or whole nodes even when partly used."""
    node_size: Annotated[int, count(bounds.NODE_SIZE)] | None = None
    """GPUs in one server."""
    scale_up: LinkSection | None = None
    """Link between the GPUs of a server (NVLink, Infinity Fabric, PCIe)."""
    scale_out: LinkSection | None = None
    """Share of one GPU in the server's network cards; KV hand-over between pools uses it."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        if "," in name:
            raise house_error(f"{shown(name)} is not one name; write a list in brackets: [{name}]")
        return _look_up(info.context.check_accelerator, name) if isinstance(info.context, Context) else name

    @model_validator(mode="after")
    def _owns_what_it_prices(self) -> Self:
        if self.owned_price is not None and self.owned is None:
            raise house_error("has owned_price, but no owned GPUs; state how many, such as owned: 64")
        return self


class ObjectiveSection(Section):
    """What is optimized."""

    goal: Annotated[Goal, member(Goal)] = Goal.MIN_COST
    """min_cost for the stated demand; max_goodput within the constraints; max_goodput_per_dollar above a volume."""
    min_volume: Volume | None = None
    """Least multiple of the stated rate to serve [1]; max_goodput_per_dollar needs it."""
    max_volume: Volume | None = None
    """Greatest multiple of the stated rate to serve [1]; default: four times min_volume."""


class Headroom(Section):
    """Spare replicas."""

    replicas: Annotated[int, count(bounds.SPARE_REPLICAS)] = 0
    """Replicas of every pool that the demand does not need: k of N+k."""


class ConstraintsSection(Section):
    """Limits on the whole fleet; what is left out is not limited."""

    budget: Annotated[float, quantity(Kind.PRICE, bounds.BUDGET)] | None = None
    """Most dollars per hour [$/h]."""
    power: Annotated[float, quantity(Kind.POWER, bounds.POWER)] | None = None
    """Most board power, as the sum of TDPs [W]."""
    max_gpus: Annotated[int, count(bounds.MAX_GPUS)] | None = None
    """Most GPUs."""
    max_pools: Annotated[int, count(bounds.MAX_POOLS)] | None = None
    """Most pools; fewer are simpler to run."""
    headroom: Headroom = Headroom()
    """Spare replicas for failures and upgrades."""
    routing: Annotated[Routing, member(Routing)] = Routing.FRACTIONAL
    """fractional: any share of a length to any pool; threshold: each prompt length whole to one pool of a stage."""
    balancing: Annotated[Balancing, member(Balancing)] = Balancing.FEWEST_TOKENS
    """Which replica of a pool the router sends a prompt to: the one with fewest_tokens to compute, as llm-d's, or with
    fewest_requests, as those of vLLM, SGLang, TensorRT-LLM and Dynamo. Decode replicas always go by requests."""
    pools: Annotated[Pools, member(Pools)] = Pools.SHARED
    """shared: any pool may serve every SLO class; per_class: no pool serves two of them."""


class WorkloadFile(Section):
    """A serving problem for pdplan: model, demand, service levels, accelerators, and what is optimized."""

    schema_: Annotated[str, choice(WORKLOAD_SCHEMA)] = Field(WORKLOAD_SCHEMA, alias="schema")
    """Format of this file."""
    name: Text | None = None
    """Name of the problem; default: the file's."""
    model: Annotated[ModelSection, short_for(ModelSection, "name")]
    """The model, such as `model: Llama-3.1-70B`: a name that `pdplan models` lists, or a mapping."""
    workload: WorkloadSection
    """The demand."""
    slo: Annotated[
        list[SloClass],
        at_most(bounds.MAX_CLASSES, "classes"),
        one_or_more(SloClass),
    ]
    """Service levels: one, or a list of classes with shares of the traffic."""
    accelerators: Annotated[
        list[Annotated[AcceleratorSection, short_for(AcceleratorSection, "name")]],
        at_most(bounds.MAX_ACCELERATORS, "accelerators"),
        one_or_more(str | AcceleratorSection),
    ]
    """GPU types that may be used: names, or mappings where price, inventory or links differ from the catalog."""
    prices: Annotated[str, member_or_file(PriceBasis, QUOTES_ENDING)] | None = None
    """Which quotes of the catalog are prices: on-demand, reserved, spot, or tco, a modeled cost of ownership; a GPU
    without such a quote needs a price of its own. Or your own quotes: a CSV file, relative to this one, with the
    columns accelerator, usd_per_hour and, if you like, provider, commitment, date and source. Default: on-demand
    for all; where nobody quotes that, the plan says what stands in. Prices that you state stay as they are."""
    catalog: Text | None = None
    """YAML file with GPU types of your own, laid over the catalog; relative to this file."""
    search: Annotated[SearchSection, short_for(SearchSection, "preset")] = SearchSection()
    """Which engine settings are tried; a single word is a preset."""
    objective: Annotated[ObjectiveSection, short_for(ObjectiveSection, "goal")] = ObjectiveSection()
    """What is optimized; a single word is the goal."""
    constraints: ConstraintsSection = ConstraintsSection()
    """Limits on the whole fleet."""
    confidence: Annotated[float, share(bounds.CONFIDENCE)] = 0.0
    """Plan on step times at the upper end of the interval that covers this share of past predictions [1]; 0: expected;
    a negative share: at its quick end."""
    engine: Annotated[str, choice(*ENGINES)] = "vllm"
    """Serving engine whose scheduler and overheads are modeled, and whose files are written; default: the target's."""
    target: Annotated[str, choice(*TARGET_NAMES, NO_TARGET)] | None = None
    """What the plan has to run on: only fleets that its routers and hand-overs can run are searched. Default: those
    that some target of the engine can run; none: all."""
    memory_fraction: Annotated[float, share(bounds.MEMORY_FRACTION)] = 0.9
    """The engine's own memory fraction [1]: of all GPU memory (vLLM), of what start-up leaves (SGLang) or of what
    weights and activations leave (TensorRT-LLM)."""
    seed: Annotated[int, count(bounds.SEED)] = 0
    """Seed of everything random (the sampled trace of the simulation)."""
    scenarios: dict[Text, dict[Text, Any]] = Field(default_factory=dict)
    """Named changes for `pdplan whatif`: levers, dotted keys or mappings laid over this; `extends` names others."""
    procurement: ProcurementSection | None = None
    """Contracts, forecast and electricity for `pdplan buy`."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _keep_sound(cls, value: Any, handler: ModelWrapValidatorHandler[Any], info: ValidationInfo) -> Any:
        """Remember each sound section, so that checks across sections can run although another one failed."""
        result = handler(value)
        if isinstance(info.context, Context) and info.field_name is not None:
            info.context.sections[info.field_name] = result
        return result


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of workload.yaml, for editors and for `pdplan schema`."""
    schema = WorkloadFile.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": WORKLOAD_SCHEMA, **schema}
