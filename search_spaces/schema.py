"""The shape of workload.yaml: every key, its unit, its default and its meaning, as frozen pydantic models.

The docstring under each attribute is its documentation and becomes its description in the JSON Schema
(`pdplan schema`). After the sections come the checks across them: each yields its faults, and none stops the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from costmodel.accelerator import Accelerator, PriceBasis
from costmodel.engine import Draft, Role, Speculation
from costmodel.errors import InputError, shortened, shown
from costmodel.metric import BOUNDING, METRICS, Metric, Scope, limits_of, metrics_of
from costmodel.transformer import Transformer
from costmodel.words import join_words, listed
from costmodel.workload import Workload

from . import bounds
from .bounds import NO_TARGET, ROUTER_SPELLINGS, TARGET_NAMES, TARGET_SPELLINGS
from .buying_terms import ProcurementSection
from .demand import LengthsSection, WorkloadSection, sum_faults
from .engines import ENGINES, shipped_acceptance
from .fields import FileSection, OneOrMore, Text, checked_together, choice, count, number, quantity, share, short_for
from .files import Fault, Keys
from .problem import TARGETS, Balancing, Billing, Goal, Pools, Routing, target_of
from .quantities import Kind, as_probability
from .quotes import ENDING as QUOTES_ENDING
from .quotes import basis_of
from .search_space import KvDtype, SearchSection, WeightDtype, degree_faults, token_faults

WORKLOAD_SCHEMA: Literal["pdplan.workload/1"] = "pdplan.workload/1"

Volume = Annotated[float, number(bounds.VOLUME)]
Attainment = Annotated[float, share(bounds.ATTAINMENT, ("0.9", "90%", "p90"), as_probability)]
ClassShare = Annotated[float, share(bounds.CLASS_SHARE)]


@dataclass(frozen=True, slots=True)
class Context:
    """What validation may look up, and the sections that proved sound even if others did not.

    check_accelerator, check_model: raise `InputError` on a name that is not known.
    """

    check_accelerator: Callable[[str], object]
    check_model: Callable[[str], object]
    sections: dict[str, Any]


_Accepted = Annotated[float, share(bounds.ACCEPTANCE)]


class SpeculationSection(FileSection):
    """Speculative decoding: who drafts tokens, and how many of them the model accepts."""

    method: Annotated[Draft, choice(*Draft)]
    """mtp: the checkpoint's own layer for it; eagle3: a trained draft layer; ngram: look-up in the prompt."""
    acceptance: Annotated[list[_Accepted], Field(min_length=1), OneOrMore(bounds.MAX_VALUES, "values")] | None = None
    """Share of drafted tokens accepted, by position, given those before; default: the catalog's of mtp and eagle3."""
    draft_model: Text | None = None
    """Weights of an EAGLE-3 draft: folder or Hugging Face id, for the deployment files."""

    @model_validator(mode="after")
    def _has_acceptance(self) -> Self:
        if self.acceptance is None and self.method not in shipped_acceptance():
            raise InputError(f"{self.method} needs acceptance, which depends on the prompts; such as acceptance: 0.5")
        if self.draft_model is not None and self.method is not Draft.EAGLE3:
            raise InputError(f"draft_model belongs to eagle3; found method {self.method}")
        return self

    @property
    def template(self) -> Speculation:
        """The speculation of an engine that drafts nothing yet."""
        return Speculation(self.method, 0, tuple(self.acceptance or shipped_acceptance()[self.method]))


class ModelSection(FileSection):
    """The model that is served, and its precision."""

    forms = ("name", "config", "architecture")
    other_names: ClassVar = dict.fromkeys(("dtype", "precision", "quantization"), "did you mean 'weight_dtype'?")

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
            info.context.check_model(name)
        return name


NO_OTHERS = "with it, ttft and tpot may be left out."
LIMIT_WORDS: Mapping[Metric, str] = {
    Metric.TTFT: "Limit of the time to first token [s].",
    Metric.TPOT: "Limit of the time per output token, (end - first token) / (OSL - 1) [s].",
    Metric.E2E: f"Limit of the time from arrival to the last token [s]; {NO_OTHERS}",
    Metric.ITL_P99: "Limit that 99 % of a request's own gaps between two tokens must keep [s]; none unless stated.",
    Metric.NORMALIZED_LATENCY: f"Limit of e2e over OSL, as Orca and vLLM report it [s]; {NO_OTHERS}",
}
"""What the limit on each metric is; every metric has one."""
_LIMITS: dict[str, Any] = {
    str(metric): (
        Annotated[float, quantity(Kind.DURATION, bounds.LATENCIES[metric], METRICS[metric].plain)] | None,
        Field(default=None, description=words),
    )
    for metric, words in LIMIT_WORDS.items()
}
SloLimits = create_model("SloLimits", __base__=FileSection, **_LIMITS)


BOUNDING_LIMITS = [[str(metric) for metric in metrics] for metrics in BOUNDING]


class SloClass(SloLimits):
    """A service level: what share of its requests must be within all its limits.

    It has ttft and tpot, or a limit of the whole request, for without any it could take for ever.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [*names]} for names in BOUNDING_LIMITS]})
    other_names: ClassVar = {
        key: f"write a limit and its percentile, such as ttft: 3s and percentile: {key}"
        for key in ("p50", "p90", "p95", "p99")
    } | {"classes": "write the classes as a list, such as slo: [{name: chat, share: 1, ttft: 2s, tpot: 50ms}]"}

    name: Text = "default"
    """Name of the class."""
    share: ClassShare | None = None
    """Share of all requests in this class [1], of whatever lengths; may be left out where there is one class."""
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
            raise InputError(
                f"{e2e:g} s is not above ttft {ttft:g} s, which leaves no time for a token after the first"
            )
        return e2e

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """Limits that bound the whole request, and one goal."""
        if not any(section.keys() >= {*names} for names in BOUNDING_LIMITS):
            limits = [metric.value for metric in Metric if metric.value in section]
            needs = ", or ".join(" and ".join(names) for names in BOUNDING_LIMITS)
            words = f"has only {join_words(limits)}" if limits else "has none"
            yield f"needs {needs}, but {words}; if no other time matters, add e2e: 5min"
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
    yield from sum_faults(rows)


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

    other_names: ClassVar = {
        "cost": "did you mean 'price'?",
        **dict.fromkeys(("count", "gpus", "number", "quantity"), "did you mean 'inventory'?"),
    }

    @classmethod
    def hint_for(cls, key: str) -> str:
        """As of any section; where a key looks like the name of a GPU, also how to state that."""
        hint = super().hint_for(key)
        is_like_a_gpu = re.fullmatch("[A-Za-z]+[ -]?[0-9][^_]*", key)
        return f"a GPU's name is a value, as in [{{name: H100}}]; {hint}" if is_like_a_gpu else hint

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
    billing: Annotated[Billing, choice(*Billing)] = Billing.GPU
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
            raise InputError(f"{shown(name)} is not one name; write a list in brackets: [{name}]")
        if name.lower() == ANY:
            raise InputError(f"{shown(name)} may stand once in the list, as a plain word without settings")
        if isinstance(info.context, Context):
            info.context.check_accelerator(name)
        return name

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
        raise InputError(f"is not a list; write it in brackets: [{shortened(', '.join(map(str, value)))}]")
    return value


class ObjectiveSection(FileSection):
    """What is optimized."""

    goal: Annotated[Goal, choice(*Goal)] = Goal.MIN_COST
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
    routing: Annotated[Routing, choice(*Routing)] = Routing.FRACTIONAL
    """fractional: any share of a length to any pool; threshold: each prompt length whole to one pool of a stage.
    The routers of targets always do so for prefill and decode pools."""
    balancing: Annotated[Balancing, choice(*Balancing, same=ROUTER_SPELLINGS)] = Balancing.LEAST_TOKENS
    """Which replica of a pool the router sends a prompt to. least-tokens: that with the fewest prompt tokens to
    compute, as llm-d's does; least-requests: that with the fewest requests, as those of vLLM, SGLang, TensorRT-LLM and
    Dynamo do. Decode replicas are always chosen by requests."""
    pools: Annotated[Pools, choice(*Pools)] = Pools.SHARED
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
    slo: Annotated[list[SloClass], checked_together(_class_faults), OneOrMore(bounds.MAX_CLASSES, "classes")]
    """Service levels: one, or a list of classes with shares of the traffic."""
    accelerators: Annotated[
        list[Annotated[AcceleratorSection, short_for(AcceleratorSection, "name")]],
        OneOrMore(bounds.MAX_ACCELERATORS, "accelerators"),
        BeforeValidator(_written_in_braces),
    ]
    """GPU types that may be used: names, or mappings where price, inventory or links differ from the catalog. `any`
    stands for every GPU of the catalog that has a quoted price and that a deployment target supports."""
    prices: Annotated[str, choice(*PriceBasis, ending=QUOTES_ENDING)] | None = None
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
    confidence: Annotated[float, share(bounds.CONFIDENCE, negative=bounds.QUICK)] = 0.0
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


def accelerator_faults(entries: Sequence[AcceleratorSection], canonical: Sequence[str]) -> Iterator[Fault]:
    """Accelerators: at least one, and each only once, also under another spelling."""
    if not entries:
        yield Fault(("accelerators",), "is empty, but needs at least one (`pdplan gpus` lists them)")
    first: dict[str, int] = {}
    for index, name in enumerate(canonical):
        if first.setdefault(name, index) != index:
            same = "" if entries[index].name == name else f"is {shown(name)}, which "
            sentence = f"{shown(entries[index].name)} {same}stands in accelerators.{first[name]} already"
            yield Fault(("accelerators", index, "name"), f"{sentence}; keep one of them")


def objective_faults(
    objective: ObjectiveSection, constraints: ConstraintsSection, entries: Sequence[AcceleratorSection]
) -> Iterator[Fault]:
    """A goal must be well-posed: the ratio needs a floor, the most goodput needs something that is limited."""
    goal = objective.goal
    ratio = goal is Goal.MAX_GOODPUT_PER_DOLLAR
    if ratio and objective.min_volume is None:
        yield Fault(
            ("objective",),
            "max_goodput_per_dollar needs min_volume, such as {goal: max_goodput_per_dollar, min_volume: 1}, which "
            "serves at least the stated rate: without it the best ratio serves only the cheapest part of the demand",
        )
    if not ratio:
        for key in ("min_volume", "max_volume"):
            if getattr(objective, key) is not None:
                yield Fault(("objective", key), f"belongs to max_goodput_per_dollar, but the goal is {goal}")
    if (
        objective.min_volume is not None
        and objective.max_volume is not None
        and objective.max_volume < objective.min_volume
    ):
        yield Fault(
            ("objective", "max_volume"), f"{objective.max_volume:g} is below min_volume {objective.min_volume:g}"
        )
    fleet_limit = constraints.budget or constraints.power or constraints.max_gpus
    if goal is Goal.MAX_GOODPUT and not fleet_limit and any(entry.inventory is None for entry in entries):
        yield Fault(
            ("objective",),
            "max_goodput needs a limit: constraints.budget, power or max_gpus, or an inventory for every accelerator; "
            "without one goodput has no bound",
        )
    if goal is not Goal.MIN_COST and constraints.pools is Pools.PER_CLASS:
        yield Fault(("constraints", "pools"), f"per_class plans for min_cost only, but the goal is {goal}")


def target_faults(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """The target must run the engine that is stated, and tell SLO classes apart where each has pools of its own."""
    target, engine = target_of(sections["target"]), sections.get("engine")
    if engine is not None and engine not in target.engines:
        yield Fault(
            ("target",),
            f"{target.name} runs {' or '.join(target.engines)}, but engine: {engine} is stated; leave engine out, or "
            "state one that it runs",
        )
    constraints, search = sections.get("constraints"), sections.get("search")
    if constraints is None or constraints.pools is not Pools.PER_CLASS or len(sections.get("slo", ())) < 2:
        return
    if not target.by_class:
        able = join_words([router.name for router in TARGETS if router.by_class])
        yield Fault(
            ("constraints", "pools"),
            f"per_class needs a router that tells SLO classes apart, but {target.title} has none; state "
            f"pools: {Pools.SHARED}, or a target with one ({able})",
        )
    elif search is not None and search.roles and Role.COLOCATED not in search.roles:
        yield Fault(
            ("constraints", "pools"),
            f"per_class with prefill and decode pools: the router of {target.title} tells SLO classes apart for "
            f"colocated pools alone; state pools: {Pools.SHARED}, or allow the role colocated",
        )


def length_faults(workload: Workload, section: WorkloadSection, model: Transformer) -> Iterator[Fault]:
    """The longest request must fit the stated limit, and the model's context."""
    stated_max = section.max_tokens
    longest = float((workload.isl + workload.osl).max())
    if stated_max is not None and longest > stated_max:
        yield Fault(
            ("workload", "max_tokens"),
            f"{stated_max} is below the longest bucket, which has {longest:g} tokens (ISL + OSL)"
            f"{_limit_hint(section.lengths)}",
        )
    longest_request = max(workload.max_tokens, math.ceil(longest))
    if longest_request > model.max_position:
        has_limit = stated_max is not None and stated_max >= longest
        lengths = "lengths" if section.sessions is None else "sessions"
        where = ("workload", "max_tokens") if has_limit else ("workload", lengths)
        sentence = f"{longest_request:,} tokens exceed the context of {model.name}, {model.max_position:,} tokens"
        yield Fault(where, sentence if has_limit else f"{sentence}{_limit_hint(section.lengths)}")


def _limit_hint(lengths: LengthsSection | None) -> str:
    """Hint for lengths without a stated maximum: a lognormal reaches far beyond its p99."""
    if lengths is None:
        return "; state fewer turns, or fewer tokens of each"
    length_limits = {"isl": lengths.isl, "osl": lengths.osl}
    endless = [
        f"workload.lengths.{name}.lognormal.maximum"
        for name, limit in length_limits.items()
        if limit is not None and limit.lognormal is not None and limit.lognormal.maximum is None
    ]
    if not endless:
        return ""
    return f"; limit it with {' and '.join(endless)}, which {'is' if len(endless) == 1 else 'are'} not stated"


def tier_faults(workload: Workload, section: CacheTierSection | None) -> Iterator[Fault]:
    """A KV cache tier needs a demand that says when a prefix is used again."""
    if section is not None and workload.reuse is None:
        yield Fault(
            ("kv_cache_tier",),
            "keeps prompts that are used again, but the workload does not say when; state workload.sessions, or "
            "workload.reuse_interval beside prefix_hit_share",
        )


def unquoted(accelerator: Accelerator, basis: PriceBasis) -> str:
    """Fault: nobody quotes an accelerator on this price basis; with the bases that are quoted, and what to do."""
    quotes = [f"{price.basis} {listed(price.usd_per_hour)}" for price in accelerator.quotes]
    there = f"the catalog has {join_words(quotes)}" if quotes else "the catalog has none for it at all"
    return f"{accelerator.name} has no {basis} quote ({there}); state its price, or leave it out"


def speculation_faults(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """Tokens are drafted by a stated method, and no limit is on gaps between tokens, which come several at a time."""
    model, search = sections.get("model"), sections.get("search")
    depths = getattr(search, "speculative_tokens", None)
    drafted = (model is not None and model.speculation is not None) and (depths is None or max(depths) > 0)
    if depths and max(depths) > 0 and model is not None and model.speculation is None:
        yield Fault(("search", "speculative_tokens"), "needs model.speculation, such as {method: mtp}")
    for index, slo in enumerate(sections.get("slo", ()) if drafted else ()):
        for metric in metrics_of(Scope.LATER):
            if metric is not Metric.TPOT and metric in slo.limits:
                unpredicted = f"limits {metric}, which is not predicted with speculative decoding; limit tpot instead"
                yield Fault(("slo", index), unpredicted)


def cross_faults(
    sections: Mapping[str, Any], model: Transformer | None, accelerators: Sequence[Accelerator]
) -> Iterator[Fault]:
    """All checks whose sections are sound."""
    if "accelerators" in sections:
        yield from accelerator_faults(sections["accelerators"], [accelerator.name for accelerator in accelerators])
        basis = basis_of(sections.get("prices"))
        pairs = zip(sections["accelerators"], accelerators, strict=True) if accelerators and basis is not None else ()
        for index, (entry, accelerator) in enumerate(pairs):
            if basis is not None and entry.price is None and accelerator.price_on(basis) is None:
                yield Fault(("accelerators", index), unquoted(accelerator, basis))
    search = sections.get("search")
    yield from speculation_faults(sections)
    if search is not None and model is not None:
        yield from degree_faults(search, model)
        yield from token_faults(search, model)
    if sections.get("target") not in {None, NO_TARGET}:
        yield from target_faults(sections)
    if "objective" in sections and "accelerators" in sections:
        constraints = sections.get("constraints", ConstraintsSection())
        yield from objective_faults(sections["objective"], constraints, sections["accelerators"])


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of workload.yaml, for editors and for `pdplan schema`."""
    schema = WorkloadFile.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": WORKLOAD_SCHEMA, **schema}
