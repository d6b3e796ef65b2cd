"""The shape of workload.yaml: every key, its unit, its default and its meaning, as frozen pydantic models.

The docstring under each attribute is its documentation and becomes its description in the JSON Schema
(`pdplan schema`). Checks that look at one section stand here; checks across sections in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from costmodel.accelerator import PriceBasis
from costmodel.errors import InputError
from costmodel.metric import METRICS, Metric, limits_of
from costmodel.quoting import shown

from . import bounds
from .bounds import HOURS_PER_DAY
from .buying_schema import ProcurementSection
from .fields import (
    Section,
    Text,
    at_most,
    choice,
    count,
    exactly_one,
    from_word,
    house_error,
    listed,
    member,
    number,
    quantity,
    share,
)
from .problem import Balancing, Billing, Goal, Pools, Routing
from .quantities import Kind, as_probability
from .schema_lengths import LengthsSection, RecordedSource
from .schema_search import KV_DTYPES, WEIGHT_DTYPES, SearchSection
from .targets import NO_TARGET, TARGET_NAMES

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

    name: Text | None = None
    """Name in the catalog (`pdplan models` lists them), or a Hugging Face id whose architecture is there."""
    config: Text | None = None
    """Instead of a name: path to a Hugging Face config.json, relative to this file."""
    weight_dtype: Annotated[str, choice(*WEIGHT_DTYPES)] | None = None
    """Precision of the weights; default: that of the published checkpoint."""
    kv_dtype: Annotated[str, choice(*KV_DTYPES)] = "bf16"
    """Precision of the KV cache."""

    @field_validator("name", "config")
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and isinstance(info.context, Context):
            _look_up(info.context.check_model, name)
        return name

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        exactly_one(self, "name", "config")
        return self


class Diurnal(Section):
    """A daily profile of the request rate; the fleet is planned for its peak, or for a percentile of the hours."""

    requests_per_second_by_hour: list[Annotated[float, quantity(Kind.RATE, bounds.HOURLY_RATE)]]
    """24 mean rates [1/s], from midnight."""
    percentile: Hours = 100.0
    """Share of the hours [%] whose rate the fleet carries; 100 is the peak."""

    @field_validator("requests_per_second_by_hour")
    @classmethod
    def _whole_day(cls, rates: list[float]) -> list[float]:
        if len(rates) != HOURS_PER_DAY:
            raise house_error(f"has {len(rates)} rates, but a day has {HOURS_PER_DAY} hours")
        if max(rates) <= 0:
            raise house_error("has no rate above 0")
        return rates


class WorkloadSection(Section):
    """The demand: how many requests, how long, how bursty, how much prefix they share."""

    request_rate: Annotated[float, quantity(Kind.RATE, bounds.REQUEST_RATE)] | None = None
    """Mean arrivals [1/s] that the fleet must carry; a trace gives its own unless this is stated."""
    diurnal: Diurnal | None = None
    """Instead of request_rate: a daily profile."""
    burstiness: Annotated[float, number(bounds.BURSTINESS)] | None = None
    """Coefficient of variation of the times between arrivals [1]; 1 is Poisson. Default: 1, or the trace's."""
    prefix_hit_share: Annotated[float, share(bounds.PREFIX_HIT_SHARE)] | None = None
    """Share of input tokens found in a prefix cache [1]. Default: 0, or the trace's."""
    max_tokens: Annotated[int, count(bounds.MAX_TOKENS)] | None = None
    """Longest ISL + OSL of any request [token]. Default: the longest of the lengths."""
    lengths: LengthsSection
    """How long requests are."""
    recorded: RecordedSource | None = None
    """A trace whose own requests are simulated, in stretches and in order, in place of random ones; a single word is
    its path, relative to this file. Default: the trace of the lengths, unless burstiness or diurnal is stated."""

    @model_validator(mode="after")
    def _has_rate(self) -> Self:
        if self.request_rate is not None and self.diurnal is not None:
            raise house_error("has request_rate and diurnal, but needs one of them")
        if self.request_rate is None and self.diurnal is None and self.lengths.trace is None:
            raise house_error("needs request_rate (such as 10/s) or diurnal; only a trace brings a rate of its own")
        if self.diurnal is not None and self.recorded is not None:
            raise house_error("has diurnal and recorded, but a recording has its own times; state request_rate")
        return self


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
        stated = [name for name in ("ttft", "tpot") if Metric(name) in self.limits]
        if Metric.E2E not in self.limits and len(stated) < 2:
            found = f"has {stated[0]} alone" if stated else "has none of them"
            raise house_error(f"needs ttft and tpot, or e2e, but {found}; e2e: 5min leaves a request its time")
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
    model: Annotated[ModelSection, BeforeValidator(from_word("name"), json_schema_input_type=str | ModelSection)]
    """The model; a single word is its name."""
    workload: WorkloadSection
    """The demand."""
    slo: Annotated[
        list[SloClass],
        at_most(bounds.MAX_CLASSES, "classes"),
        BeforeValidator(listed, json_schema_input_type=list[SloClass] | SloClass),
    ]
    """Service levels: one, or a list of classes with shares of the traffic."""
    accelerators: Annotated[
        list[
            Annotated[
                AcceleratorSection,
                BeforeValidator(from_word("name"), json_schema_input_type=str | AcceleratorSection),
            ]
        ],
        at_most(bounds.MAX_ACCELERATORS, "accelerators"),
        BeforeValidator(listed, json_schema_input_type=list[str | AcceleratorSection] | str | AcceleratorSection),
    ]
    """GPU types that may be used: names, or mappings where price, inventory or links differ from the catalog."""
    prices: Annotated[PriceBasis, member(PriceBasis)] | None = None
    """Which quotes of the catalog are prices: on-demand, reserved, spot, or tco, a modeled cost of ownership; a GPU
    without such a quote needs a price of its own. Default: on-demand where that is quoted, else the nearest, which the
    plan says. Prices that you state stay as they are."""
    catalog: Text | None = None
    """YAML file with GPU types of your own, laid over the catalog; relative to this file."""
    search: Annotated[
        SearchSection, BeforeValidator(from_word("preset"), json_schema_input_type=str | SearchSection)
    ] = SearchSection()
    """Which engine settings are tried; a single word is a preset."""
    objective: Annotated[
        ObjectiveSection, BeforeValidator(from_word("goal"), json_schema_input_type=str | ObjectiveSection)
    ] = ObjectiveSection()
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
