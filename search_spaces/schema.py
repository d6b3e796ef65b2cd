"""The shape of workload.yaml: every key, its unit, its default and its meaning, as frozen pydantic models.

The docstring under each attribute is its documentation and becomes its description in the JSON Schema
(`pdplan schema`). Checks that look at one section stand here; checks across sections in `checks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

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
from costmodel.errors import InputError, shortened, shown
from costmodel.metric import BOUNDING, METRICS, Metric, limits_of
from costmodel.prefix_cache import TimeDistribution, exponential, from_quantiles
from costmodel.workload import Lengths

from . import bounds
from .bounds import NO_TARGET, ROUTER_SPELLINGS, TARGET_NAMES, TARGET_SPELLINGS
from .buying_terms import WHOLE_DAY, ProcurementSection
from .engines import ENGINES, SpeculationSection
from .fields import (
    ONE_OR_MORE,
    FileSection,
    Text,
    at_most,
    checked_together,
    choice,
    count,
    house_error,
    member,
    member_or_file,
    number,
    quantity,
    share,
    short_for,
)
from .files import Keys
from .problem import Balancing, Billing, Goal, Pools, Routing
from .quantities import Kind, as_probability
from .quotes import ENDING as QUOTES_ENDING
from .search_space import KvDtype, SearchSection, WeightDtype
from .trace_reader import TRACE_FORMATS, ArrivalUnit

Tokens = Annotated[float, number(bounds.TOKENS)]
_SHARE = share(bounds.SHARE)
Share = Annotated[float, _SHARE]


class HistogramRow(FileSection):
    """One bucket of requests."""

    isl: Tokens
    """Input length [token]."""
    osl: Tokens
    """Output length [token]."""
    share: Share
    """Share of requests [1]."""


SHARE_TOLERANCE = 1e-3
"""How far shares may sum from 1 before that is a mistake and not rounding; within it they are scaled to 1."""


def share_sum_fault(shares: Sequence[float]) -> Iterator[str]:
    """What is wrong with shares that should sum to 1."""
    total = math.fsum(shares)
    if abs(total - 1) > SHARE_TOLERANCE:
        yield f"shares sum to {total:.6g}, but must sum to 1 (within {SHARE_TOLERANCE:g})"


def _sum_faults(rows: Any) -> Iterator[tuple[Keys, str]]:
    """What is wrong with the sum of the shares of rows, if all of these are stated and can be read."""
    with suppress(InputError, KeyError, TypeError):
        shares = [_SHARE.read(row["share"]) for row in rows]
        yield from (((), sentence) for sentence in (share_sum_fault(shares) if shares else ()))


Histogram = Annotated[
    Annotated[list[HistogramRow], checked_together(_sum_faults), Tag("<rows>")] | Annotated[Text, Tag("<path>")],
    Discriminator(lambda value: "<path>" if isinstance(value, str) else "<rows>"),
]


class TraceColumns(FileSection):
    """Names of the columns (CSV) or keys (JSON lines) of a trace; known names are found without it."""

    arrival: Text | None = None
    """Column with the arrival time."""
    isl: Text | None = None
    """Column with the input length [token]."""
    osl: Text | None = None
    """Column with the output length [token]."""
    arrival_unit: Annotated[str, choice(*ArrivalUnit)] = "auto"
    """Unit of the arrival time; auto tells dates from numbers and takes numbers as seconds."""


class TraceFile(FileSection):
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


class PackedRequests(FileSection):
    """Requests of a trace as a plan file keeps them."""

    source: Text
    """Name of the trace."""
    of: Annotated[int, count(bounds.RECORDED)]
    """Requests that it had."""
    too_long: Annotated[int, count(bounds.LEFT_OUT)] = 0
    """Those left out that no replica can serve, mostly of too many tokens."""
    span: Annotated[float, number(bounds.SPAN)]
    """Time that the kept ones take [s]."""
    packed: str
    """Gaps [us], ISL and OSL of each, as 64-bit numbers, compressed by zlib, in base64."""


RecordedSource = Annotated[
    Annotated[TraceFile, short_for(TraceFile, "path"), Tag("<file>")] | Annotated[PackedRequests, Tag("<packed>")],
    Discriminator(
        lambda value: "<packed>" if "packed" in (value if isinstance(value, dict) else dir(value)) else "<file>"
    ),
]


class Lognormal(FileSection):
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


def _read_quantiles(value: object) -> object:
    """Turn the keys, which YAML gives as text, into probabilities."""
    if not isinstance(value, dict):
        return value
    if not value:
        raise house_error(f"is empty, but {_PROBABILITIES}")
    try:
        shares = ((as_probability(str(key)), key, length) for key, length in value.items())
        lengths = {float(key) if share is None else share: length for share, key, length in shares}
    except ValueError:
        raise house_error(_PROBABILITIES) from None
    if len(lengths) < len(value):
        raise house_error(f"states one probability twice: {', '.join(map(str, value))}")
    return lengths


class LengthDistribution(FileSection):
    """One of three ways to state the distribution of a length, or of the number of turns."""

    forms = ("fixed", "lognormal", "quantiles")

    fixed: Tokens | None = None
    """Every request has this length [token]."""
    lognormal: Lognormal | None = None
    """Log-normal lengths."""
    quantiles: Annotated[dict[float, Tokens], BeforeValidator(_read_quantiles)] | None = None
    """Length [token] by probability, for example {0.5: 600, 90%: 2400, p99: 5500}; 1 gives the longest."""

    @model_validator(mode="after")
    def _is_a_distribution(self) -> Self:
        try:
            self.lengths()
        except InputError as error:
            raise house_error(str(error)) from None
        return self

    def lengths(self) -> Lengths:
        """The same made discrete."""
        if self.lognormal is not None:
            tail = self.lognormal
            return Lengths.lognormal(median=tail.median, p99=tail.p99, maximum=tail.maximum)
        return Lengths.fixed(self.fixed or 0.0) if self.quantiles is None else Lengths.from_quantiles(self.quantiles)


Distribution = Annotated[LengthDistribution, short_for(LengthDistribution, "fixed", Tokens)]


def _believable_turns(turns: LengthDistribution) -> LengthDistribution:
    longest = turns.lengths().longest
    if not bounds.TURNS.holds(longest):
        raise house_error(f"{longest:g} {bounds.TURNS.sentence()}")
    return turns


_Duration = Annotated[float, quantity(Kind.DURATION, bounds.PAUSE)]
_Durations = Annotated[dict[float, _Duration], BeforeValidator(_read_quantiles)]


class PauseSection(FileSection):
    """One of two ways to state a distribution of times."""

    forms = ("mean", "quantiles")

    mean: _Duration | None = None
    """Mean of exponential times [s]."""
    quantiles: _Durations | None = None
    """Time [s] by probability, for example {0.5: 4s, p90: 30s, p99: 5min}; beyond the highest none is longer."""

    @field_validator("quantiles")
    @classmethod
    def _rises(cls, quantiles: dict[float, float] | None) -> dict[float, float] | None:
        ascending = [time for _, time in sorted((quantiles or {}).items())]
        if quantiles is not None and (len(ascending) < 2 or sorted(ascending) != ascending):
            raise house_error("needs two quantiles or more, which rise with the probability")
        return quantiles

    def times(self) -> TimeDistribution:
        """The same as a distribution."""
        return exponential(self.mean or 0.0) if self.quantiles is None else from_quantiles(self.quantiles)


Pause = Annotated[PauseSection, short_for(PauseSection, "mean", _Duration)]


class SessionsSection(FileSection):
    """Sessions of turns, as of agents and chats: the prompt of each turn is all before it and new tokens of the user.

    The lengths of requests follow from it, and what a prefix cache finds from the KV memory of the fleet.
    """

    rate: Annotated[float, quantity(Kind.RATE, bounds.REQUEST_RATE)] | None = None
    """New sessions [1/s], in place of request_rate."""
    turns: Annotated[Distribution, AfterValidator(_believable_turns)]
    """Requests of a session [1]; a plain number: of every one."""
    think_time: Pause
    """From the end of an answer to the next turn [s]; a plain number is the mean of exponential times."""
    system_prompt: Annotated[float, number(bounds.SYSTEM_PROMPT)] = 0.0
    """Tokens that all sessions begin with, tools included [token]."""
    user_tokens: Distribution
    """New tokens of each turn, results of tools included [token]."""
    answer_tokens: Distribution
    """Output length of each turn [token]."""


class LengthsSection(FileSection):
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

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """Exactly one form, of which one is two keys."""
        if ("isl" in section) != ("osl" in section):
            yield f"has {'isl' if 'isl' in section else 'osl'} alone, but needs both isl and osl"
            return
        present = [form for form in ("histogram", "trace", "isl and osl") if form.split()[0] in section]
        if len(present) != 1:
            words = f"has {', '.join(present)}" if present else "has none of them"
            yield f"needs exactly one of histogram, trace, or isl and osl together, but {words}"


WORKLOAD_SCHEMA: Literal["pdplan.workload/1"] = "pdplan.workload/1"

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
    sections: dict[str, Any]


def _look_up(check: Callable[[str], object], name: str) -> str:
    try:
        check(name)
    except InputError as error:
        raise house_error(str(error).removeprefix("accelerator ").removeprefix("model ")) from None
    return name


class ModelSection(FileSection):
    """The model that is served, and its precision."""

    forms = ("name", "config", "architecture")

    name: Text | None = None
    """Name in the catalog (`pdplan models` lists them), or a Hugging Face id whose architecture is there."""
    config: Text | None = None
    """Instead of a name: path to a Hugging Face config.json, relative to this file."""
    architecture: Text | None = None
    """Instead of a name: path to an architecture file, which `pdplan models --from CONFIG -o FILE` writes."""
    weight_dtype: WeightDtype | None = None
    """Precision of the weights; fp16 and fp32 count as bf16, as engines load them. Default: the checkpoint's."""
    kv_dtype: KvDtype | None = None
    """Precision of the KV cache. Default: that of the checkpoint's config if the engine heeds it, else bf16, or fp8
    where it has no other for the model's attention."""
    speculation: SpeculationSection | None = None
    """Speculative decoding that may be used; default: none."""

    @field_validator("name", "config", "architecture")
    @classmethod
    def _is_known(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and isinstance(info.context, Context):
            _look_up(info.context.check_model, name)
        return name


class Diurnal(FileSection):
    """A daily profile of the request rate; the fleet is planned for its peak, or for a percentile of the hours."""

    requests_per_second_by_hour: Annotated[list[Annotated[float, quantity(Kind.RATE, bounds.HOURLY_RATE)]], WHOLE_DAY]
    """24 mean rates [1/s], from midnight."""
    percentile: Hours = 100.0
    """Share of the hours [%] whose rate the fleet carries; 100 is the peak."""

    @property
    def planned_rate(self) -> float:
        """The least of the hourly rates that is not exceeded in `percentile` of the hours [1/s].

        >>> Diurnal(requests_per_second_by_hour=[*range(1, 25)], percentile=50).planned_rate
        12.0
        """
        rates = sorted(self.requests_per_second_by_hour)
        rank = math.ceil(round(self.percentile / 100 * len(rates), 9))
        return max(rates[max(rank, 1) - 1], min(rate for rate in rates if rate > 0))


class WorkloadSection(FileSection):
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

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """One rate, and nothing beside sessions that follows from them."""
        yield from super().key_faults(section)
        has_rate = "request_rate" in section or "diurnal" in section
        if "sessions" in section:
            own_rate = _states(section["sessions"], "rate")
            for name in ("prefix_hit_share", "reuse_interval", "recorded"):
                if name in section:
                    yield f"has {name} and sessions, but it follows from the sessions; leave it out"
            if own_rate and has_rate:
                yield "has sessions.rate and a rate of requests, but needs one of them"
        else:
            own_rate = _states(section.get("lengths"), "trace")
            if "reuse_interval" in section and "prefix_hit_share" not in section:
                yield "has reuse_interval, but nothing to find; state prefix_hit_share"
        if "request_rate" in section and "diurnal" in section:
            yield "has request_rate and diurnal, but needs one of them"
        if not has_rate and not own_rate:
            yield "needs request_rate (such as 10/s) or diurnal; only a trace brings a rate of its own"
        if "diurnal" in section and "recorded" in section:
            yield "has diurnal and recorded, but a recording has its own times; state request_rate"

    @property
    def stated_rate(self) -> float | None:
        """The request rate to plan for [1/s]; None if only a trace, or the sessions, can say it."""
        return self.request_rate if self.diurnal is None else self.diurnal.planned_rate


def _states(section: object, key: str) -> bool:
    return isinstance(section, Mapping) and section.get(key) is not None


_LIMITS: dict[str, Any] = {
    str(metric): (
        Annotated[float, quantity(Kind.DURATION, bounds.LATENCIES[metric], row.plain)] | None,
        Field(default=None, description=row.words),
    )
    for metric, row in METRICS.items()
}
SloLimits = create_model("SloLimits", __base__=FileSection, **_LIMITS)
"""A limit on each metric of the table."""


BOUNDING_LIMITS = [[str(metric) for metric in metrics] for metrics in BOUNDING]


class SloClass(SloLimits):
    """A service level: what share of its requests must be within all its limits.

    It has ttft and tpot, or a limit of the whole request, for without any it could take for ever.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [*names]} for names in BOUNDING_LIMITS]})
    other_names: ClassVar = {
        key: f"write a limit and its percentile, such as ttft: 3s and percentile: {key}"
        for key in ("p50", "p90", "p95", "p99")
    }

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

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """Limits that bound the whole request, and one goal."""
        if not any(section.keys() >= {*names} for names in BOUNDING_LIMITS):
            limits = [name for names in BOUNDING_LIMITS for name in names if name in section]
            needs = ", or ".join(" and ".join(names) for names in BOUNDING_LIMITS)
            words = f"has {limits[0]} alone" if limits else "has none of them"
            yield f"needs {needs}, but {words}; e2e: 5min leaves a request its time"
        if "attainment" in section and "percentile" in section:
            yield "has attainment and percentile, which mean the same; keep one of them"


def _class_faults(classes: Any) -> Iterator[tuple[Keys, str]]:
    """There is a class at least, names differ, and shares are all stated (where there are several) and sum to 1."""
    rows = [item if isinstance(item, Mapping) else {} for item in classes]
    if not rows:
        yield (), "is empty, but needs at least one class, such as {ttft: 2s, tpot: 50ms}"
    first: dict[str, int] = {}
    for index, row in enumerate(rows):
        name = str(row.get("name", "default"))
        if first.setdefault(name, index) != index:
            yield (index, "name"), f"{shown(name)} is the name of slo.{first[name]} too; names must differ"
        if len(rows) > 1 and row.get("share") is None:
            yield (index, "share"), "is missing: with several classes each needs its share"
    yield from _sum_faults(rows)


class LinkSection(FileSection):
    """A link as one GPU sees it; what is left out stays as in the catalog."""

    bandwidth: Annotated[float, quantity(Kind.BANDWIDTH, bounds.BANDWIDTH)] | None = None
    """One direction, per GPU [byte/s]."""
    latency: Annotated[float, quantity(Kind.DURATION, bounds.LATENCY)] | None = None
    """Time of an empty message [s]."""


ANY = "any"
"""Among the accelerators: every GPU of the catalog that has a quoted price and that a deployment target supports."""


class AcceleratorSection(FileSection):
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
    def _is_known(cls, name: str, info: ValidationInfo) -> str:
        if "," in name:
            raise house_error(f"{shown(name)} is not one name; write a list in brackets: [{name}]")
        return _look_up(info.context.check_accelerator, name) if isinstance(info.context, Context) else name

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """GPUs that are priced are owned."""
        if "owned_price" in section and "owned" not in section:
            yield "has owned_price, but no owned GPUs; state how many, such as owned: 64"


def _written_in_braces(value: object) -> object:
    """Refuse {H100, L40S}, which YAML reads as a mapping whose keys have no values."""
    if (
        isinstance(value, dict)
        and value
        and all(item is None for item in value.values())
        and not value.keys() & {*AcceleratorSection.model_fields}
    ):
        raise house_error(f"is not a list; write it in brackets: [{shortened(', '.join(map(str, value)))}]")
    return value


class ObjectiveSection(FileSection):
    """What is optimized."""

    goal: Annotated[Goal, member(Goal)] = Goal.MIN_COST
    """min_cost for the stated demand; max_goodput within the constraints; max_goodput_per_dollar above a volume."""
    min_volume: Volume | None = None
    """Least multiple of the stated rate to serve [1]; max_goodput_per_dollar needs it."""
    max_volume: Volume | None = None
    """Greatest multiple of the stated rate to serve [1]; default: four times min_volume."""


class SpareReplicas(FileSection):
    """Spare replicas."""

    replicas: Annotated[int, count(bounds.SPARE_REPLICAS)] = 0
    """Replicas of every pool that the demand does not need: k of N+k."""


class ConstraintsSection(FileSection):
    """Limits on the whole fleet; what is left out is not limited."""

    budget: Annotated[float, quantity(Kind.PRICE, bounds.BUDGET)] | None = None
    """Most dollars per hour [$/h]."""
    power: Annotated[float, quantity(Kind.POWER, bounds.POWER)] | None = None
    """Most board power, as the sum of TDPs [W]."""
    max_gpus: Annotated[int, count(bounds.MAX_GPUS)] | None = None
    """Most GPUs."""
    max_pools: Annotated[int, count(bounds.MAX_POOLS)] | None = None
    """Most pools; fewer are simpler to run."""
    headroom: SpareReplicas = SpareReplicas()
    """Spare replicas for failures and upgrades."""
    routing: Annotated[Routing, member(Routing)] = Routing.FRACTIONAL
    """fractional: any share of a length to any pool; threshold: each prompt length whole to one pool of a stage."""
    balancing: Annotated[Balancing, member(Balancing, ROUTER_SPELLINGS)] = Balancing.LEAST_TOKENS
    """Which replica of a pool the router sends a prompt to. least-tokens: that with the fewest prompt tokens to
    compute, as llm-d's does; least-requests: that with the fewest requests, as those of vLLM, SGLang, TensorRT-LLM and
    Dynamo do. Decode replicas are always chosen by requests."""
    pools: Annotated[Pools, member(Pools)] = Pools.SHARED
    """shared: any pool may serve every SLO class; per_class: no pool serves two of them."""


class CacheTierSection(FileSection):
    """KV memory below that of the GPUs: host memory, SSD, or a store that engines share."""

    capacity_per_gpu: Annotated[float, quantity(Kind.SIZE, bounds.TIER_CAPACITY)]
    """Size of the tier for each GPU [byte]. It also holds a copy of what is in GPU memory, so it helps only if it is
    larger than the KV memory of the GPU."""
    bandwidth: Annotated[float, quantity(Kind.BANDWIDTH, bounds.BANDWIDTH)]
    """Speed at which one GPU reads from the tier [byte/s]."""
    latency: Annotated[float, quantity(Kind.DURATION, bounds.LATENCY)] = 0.0
    """Of one read [s]."""
    shared: bool = False
    """false: each engine has its own, as host memory; true: all replicas of a pool read what any of them wrote, as with
    a Mooncake store or an LMCache server."""
    price_per_gib: Annotated[float, quantity(Kind.PRICE, bounds.TIER_PRICE)] = 0.0
    """Price of one GiB of it [$/h], paid for the capacity beside every GPU of the fleet, whatever its role. Default: it
    is in the price of the GPUs, as host memory of rented nodes is."""


class WorkloadFile(FileSection):
    """A serving problem for pdplan: model, demand, service levels, accelerators, and what is optimized."""

    other_names: ClassVar = dict.fromkeys(("gpu", "gpus", "hardware", "devices"), "did you mean 'accelerators'?")

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
        checked_together(_class_faults),
        at_most(bounds.MAX_CLASSES, "classes"),
        ONE_OR_MORE,
    ]
    """Service levels: one, or a list of classes with shares of the traffic."""
    accelerators: Annotated[
        list[Annotated[AcceleratorSection, short_for(AcceleratorSection, "name")]],
        at_most(bounds.MAX_ACCELERATORS, "accelerators"),
        ONE_OR_MORE,
        BeforeValidator(_written_in_braces),
    ]
    """GPU types that may be used: names, or mappings where price, inventory or links differ from the catalog. `any`
    stands for every GPU of the catalog that has a quoted price and that a deployment target supports."""
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
    target: Annotated[str, choice(*TARGET_NAMES, NO_TARGET, same=TARGET_SPELLINGS)] | None = None
    """What the plan has to run on: only fleets that its routers and hand-overs can run are searched. Default: those
    that some target of the engine can run; none: all."""
    memory_fraction: Annotated[float, share(bounds.MEMORY_FRACTION)] = 0.9
    """The engine's own memory fraction [1]: of all GPU memory (vLLM), of what start-up leaves (SGLang) or of what
    weights and activations leave (TensorRT-LLM)."""
    kv_cache_tier: CacheTierSection | None = None
    """Where prompts whose KV left GPU memory are read from, so that they are not computed again; needs
    workload.sessions, or a workload.reuse_interval. Default: none, they are computed again."""
    seed: Annotated[int, count(bounds.SEED)] = 0
    """Seed of everything random (the sampled trace of the simulation)."""
    scenarios: dict[Text, dict[Text, Any]] = Field(default_factory=dict)
    """Named changes for `pdplan whatif`: levers, dotted keys or mappings laid over this; `extends` names others."""
    procurement: ProcurementSection | None = None
    """Contracts, forecast and electricity for `pdplan buy`."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _keep_sound(cls, value: Any, handler: ModelWrapValidatorHandler[Any], info: ValidationInfo) -> Any:
        """Put each sound section into the context, for the checks across sections, which run although one failed."""
        result = handler(value)
        if isinstance(info.context, Context) and info.field_name is not None:
            info.context.sections[info.field_name] = result
        return result


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of workload.yaml, for editors and for `pdplan schema`."""
    schema = WorkloadFile.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": WORKLOAD_SCHEMA, **schema}
