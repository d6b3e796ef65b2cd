"""The plan file: fleet, predicted metrics, proof and provenance; and the evaluation of a stated fleet, which holds one.

The field names at the top level are a promise to other programs: units are part of the name.

What a search proved of a fleet: its status, the bound on its cost, and the gap between the two.

Two claims are made, and no third:

    few_pools   no fleet of one pool or two that holds costs less: all were looked at in order by formula, and of a
                simulated plan those that hold by it were simulated (`verification.verify.Loop`)
    floor       no fleet at all that the evaluation accepts costs less (`search.bound`)

Of a fleet of cost c that holds,

    c >= few_pools   bound = few_pools; optimal where the gap is closed: no fleet of one pool or two costs less
    c <  few_pools   it has more pools, or other settings: bound = floor; optimal only at the floor
    c <  floor       cannot be by formula, so that one of the two is wrong: `ContradictionError`

and the most that any fleet at all could save is 1 - floor / c, whatever the gap. All hold for the engines, the step
times and the parts of latency limits that the search was given.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from costmodel.errors import UnknownNameError, shown
from costmodel.metric import Metric, limits_of
from costmodel.words import dollars, plural
from search_spaces.bounds import ROUTER_SPELLINGS, TARGET_SPELLINGS
from search_spaces.fields import faults_of
from search_spaces.files import Fault, FaultsError, Keys, decoded
from search_spaces.sources import JsonText, json_kind, json_shown

from .records import (
    OPTIMAL_GAP,
    ROUNDING,
    AccuracyRecord,
    Amount,
    CheaperFleets,
    ClassLatencies,
    Count,
    Degree,
    EnginePool,
    ErrorBars,
    Judged,
    Measure,
    Number,
    PrecisionSaving,
    PrefixCache,
    Provisioning,
    Quantiles,
    Record,
    SafeFleet,
    Sensitivity,
    Share,
    Simulation,
    StepError,
    without_empty,
)

PLAN_SCHEMA: Literal["pdplan.plan/2"] = "pdplan.plan/2"


class Status(StrEnum):
    """How the search ended."""

    OPTIMAL = "optimal"
    """The fleet meets every SLO, confirmed by simulation where that was asked for, and no fleet of one or two pools
    that holds by formula is cheaper (within 1e-4 of its cost)."""
    FEASIBLE = "feasible"
    """The fleet meets every SLO; a cheaper one is not ruled out, see `bound_usd_per_hour` and `certified_gap`, or
    the time was up before it was simulated, see `warnings`."""
    INFEASIBLE = "infeasible"
    """No fleet of the search space meets the SLOs within the constraints; `binding` says what is in the way."""
    TIME_LIMIT = "time_limit"
    """The effort or the time was spent and no fleet was found that holds; that there is none is not proven."""
    STATED = "stated"
    """The fleet was stated and not searched for: `attainment` and `simulation` say whether it meets the SLOs."""

    @property
    def has_fleet(self) -> bool:
        """Whether there is a fleet."""
        return self in {Status.OPTIMAL, Status.FEASIBLE, Status.STATED}


class TimeSplit(Record):
    """Where one engine step spends its time; parts sum to 1."""

    gemm: Measure
    attention: Measure
    experts: Measure
    communication: Measure
    host: Measure


class OperatingPoint(Record):
    """How one pool runs at the stated demand."""

    request_rate_rps: Measure
    """Requests per second that the whole pool handles."""
    utilization: dict[str, Measure]
    """Mean use of what the pool has: time (the share with a prompt), slots (max_num_seqs), kv_memory, link (cards)."""
    binding: str
    """What gives out first when load grows: time, slots, kv_memory or attention_time."""
    step_s: Measure
    """Time of a typical engine step (decode step, or prefill of the mean prompt) [s]."""
    batch: Measure
    """Requests in that step."""
    mfu: Measure
    """Share of peak FLOP/s used in that step."""
    mbu: Measure
    """Share of peak memory bandwidth used in that step."""
    arithmetic_intensity: Measure
    """FLOP per byte of HBM traffic in that step."""
    ridge_point: Measure
    """FLOP per byte at which the accelerator's compute and bandwidth balance."""
    bound_by: str
    """compute, bandwidth, network or host: the largest part of that step."""
    time_split: TimeSplit


class Pool(EnginePool):
    """Equal engines in one role, every setting of which is stated."""

    weight_dtype: str
    kv_dtype: str
    max_num_seqs: Degree
    max_num_batched_tokens: Degree
    max_model_len: Degree
    memory_fraction: Share
    usd_per_hour: Amount
    id: str
    spare_replicas: Count
    """Replicas among `replicas` that the demand does not need (N+k)."""
    operating_point: OperatingPoint


class Transfer(Record):
    """KV hand-over between two pools."""

    source: str
    target: str
    requests_per_second: Measure
    bytes_per_second: Measure
    seconds_per_request: Measure
    """Time to move the KV cache of a mean request."""
    link_utilization: Measure


class Route(Record):
    """One bucket of one SLO class and the pools that serve it; fractions of each stage sum to 1."""

    slo_class: str
    isl: Measure
    osl: Measure
    share: Share
    """Share of all requests."""
    prefill: dict[str, Share]
    """Pool id -> fraction of the bucket whose prompt runs there."""
    decode: dict[str, Share]
    """Pool id -> fraction of the bucket whose tokens are generated there (the same pool when colocated)."""
    attainment: Share
    """Predicted share of this bucket's requests within all its SLOs."""


class MetricResult(Record):
    """A metric other than TTFT and TPOT that one SLO class limits: its limit, and what its requests get [s]."""

    limit_s: Amount
    quantiles_s: Quantiles


class ClassResult(Record):
    """What one SLO class asked for and gets."""

    name: str
    share: Share
    ttft_limit_s: Measure
    tpot_limit_s: Measure
    attainment_goal: Share
    attainment: Share
    ttft_s: Quantiles
    tpot_s: Quantiles
    error_bars: ErrorBars | None = None
    metrics: dict[Metric, MetricResult] = Field(default_factory=dict)
    """Every other metric that the class limits; left out of the file where there are none."""
    _serializer = without_empty("metrics")

    @property
    def latencies(self) -> ClassLatencies:
        """What it gets, without what was asked for."""
        metrics = {metric: result.quantiles_s for metric, result in self.metrics.items()}
        times = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s}
        return ClassLatencies(name=self.name, attainment=self.attainment, **times, metrics=metrics)

    @property
    def limits(self) -> dict[Metric, float]:
        """Its limits by metric [s]."""
        other_limits = {str(metric): result.limit_s for metric, result in self.metrics.items()}
        own = {"ttft": self.ttft_limit_s, "tpot": self.tpot_limit_s}
        return limits_of(**{name: None if math.isnan(limit) else limit for name, limit in (own | other_limits).items()})


class Binding(Record):
    """A limit and how close the plan is to it, tightest first."""

    constraint: str
    """Short name: slots, time, kv_memory, attention_time, link, attainment, inventory, budget, power, max_gpus,
    max_volume."""
    where: str
    """Pool id, accelerator, SLO class or "fleet"."""
    used: Number
    limit: Number
    unit: str
    slack: Number
    """1 - used / limit."""
    sentence: str


class Alternative(Record):
    """The best fleet of another kind, and why it lost."""

    kind: str
    """recommended, safe, single_type, colocated_only, disaggregated_only, own_precision, no_speculation ..."""
    label: str
    status: Status
    cost_usd_per_hour: Amount | None
    bound_usd_per_hour: float | None
    gap: float | None
    pools: list[EnginePool]
    routes: list[list[Share]] = Field(default_factory=list)
    """Of each pool the share of every row of the plan's `routing` that it serves; empty where each serves all."""
    attainment: Share | None
    why_not: str
    simulated: bool = False
    """Whether its attainment was simulated; if not, it is by the queueing formulas."""
    confirmation: Count = 0
    """Number of the confirmation that it passed, as a recommended fleet must, on requests that no choice was made by.

    0: none was passed.
    """
    latencies: list[ClassLatencies] = Field(default_factory=list)
    """Of each SLO class, where they were simulated."""


class Worth(Record):
    """What a feature of serving is worth: the cheapest fleets by formula with and without it [$/h]."""

    feature: str
    with_usd_per_hour: Amount
    without_usd_per_hour: Amount | None
    """None where no fleet without it was found."""
    sentence: str


class RunInfo(Record):
    """What may differ between two runs of the same problem.

    timings_s, cpu_s: of each stage, by the clock and of the processor, all threads together [s]; the second is empty in
    plans of before.
    """

    created: str
    command: str
    timings_s: dict[str, Measure]
    cpu_s: dict[str, Measure] = Field(default_factory=dict)


class Provenance(Record):
    """Everything needed to reproduce the plan."""

    pdplan_version: str
    versions: dict[str, str]
    seed: int
    inputs_sha256: str
    inputs: dict[str, Any]
    """The workload file with every default filled in."""
    accelerators: list[dict[str, Any]]
    """Catalog entries used, with source and date."""
    model: dict[str, Any]
    search: dict[str, Any]
    """Size of the search: configs enumerated, priced, kept; why configs were dropped."""
    assumptions: list[str]
    run: RunInfo


class WorkloadSummary(Record):
    """The demand as the plan saw it."""

    request_rate_rps: Amount
    burstiness: Amount
    prefix_hit_share: Share
    mean_isl: Measure
    mean_osl: Measure
    max_tokens: Degree
    isl: list[Amount]
    osl: list[Amount]
    share: list[Share]


class Plan(Record):
    """The recommendation."""

    schema_: Literal["pdplan.plan/2"] = Field(default=PLAN_SCHEMA, alias="schema")
    name: str
    model: str
    engine: str
    objective: str
    status: Status
    warnings: list[str] = Field(default_factory=list)
    """What keeps the plan from being what was asked for, in sentences."""
    price_remarks: list[str] = Field(default_factory=list)
    """What a buyer has to know of the prices of the fleet's GPUs: those that are borrowed from another GPU, reserved,
    spot or assumed, in sentences."""
    simulated: bool
    """Whether latencies, attainment (of classes and routes too) and goodput are those of `simulation`; if not, they
    are by the queueing formulas, as loads, headroom and error bars always are."""
    confidence: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] = 0.0
    """Every figure is for step times at the slow end of the interval of this probability; 0: expected times; negative:
    at its quick end."""
    step_errors: list[StepError] = Field(default_factory=list)
    """How wrong predicted step times may be, by accelerator."""
    accuracy: list[AccuracyRecord] = Field(default_factory=list)
    """How wrong predictions of serving were where they were measured, by accelerator and way of serving."""
    cost_usd_per_hour: Amount | None
    bound_usd_per_hour: float | None
    """No fleet of one or two pools that holds, by formula or simulated, costs less; the floor where this one does."""
    gap: float | None
    """What the fleets of that bound could save at most, as a share of the cost; of goodput, what they could have more;
    none where the bound and the floor are above the cost."""
    floor_usd_per_hour: float | None = None
    """No fleet whatever that the formulas accept costs less; where the cost is below it, they were too careful."""
    cheaper_fleets: CheaperFleets | None = None
    """How many fleets of one pool, or of a prefill and a decode pool, cost less, none of which meets the SLOs.

    Null where not all were tried, or where they are too many to count.
    """
    certified_gap: float | None = None
    """What any fleet could save at most, by the formulas, as a share of the cost: 1 - floor / cost."""
    demand_rps: Annotated[Amount, Field(gt=0)]
    goodput_rps: Measure
    """Highest arrival rate, same mix and routing, at which every class still holds its attainment."""
    goodput_per_dollar: Measure
    """Goodput over price: requests per dollar at `goodput_rps`."""
    usd_per_million_output_tokens: Amount | None
    attainment: Share
    """Share of all requests within all their SLOs at the stated demand."""
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    gpus: dict[str, Degree]
    """GPUs by accelerator."""
    gpus_billed: dict[str, Degree] = Field(default_factory=dict)
    """GPUs that are paid for, of accelerators of which whole nodes are billed and not all of their GPUs are used."""
    pools: list[Pool]
    prefix_cache: PrefixCache | None = None
    """What prompts find in the KV memory; null where the workload has no prefixes in common."""
    transfers: list[Transfer]
    classes: list[ClassResult]
    routing: list[Route]
    binding: list[Binding]
    alternatives: list[Alternative]
    workload: WorkloadSummary
    provenance: Provenance
    worth: list[Worth] = Field(default_factory=list)
    """What chunked prefill, batching and disaggregation each save, if that was asked for."""
    simulation: Simulation | None = None
    """How the fleet did in the simulation; null where it was not simulated."""
    safe: SafeFleet | None = None
    """The cheapest fleet that survives slow GPUs; null where it was not sought: for another objective than least cost,
    with a confidence, and where nothing is simulated."""
    precision: list[PrecisionSaving] = Field(default_factory=list)
    """What a narrower KV cache or narrower weights save, where that is notable and the user lists no precisions."""
    sensitivity: Sensitivity | None = None
    """How the least cost moves with prices, demand, limits and efficiency; null where that was not worked out."""

    model_config = ConfigDict(populate_by_name=True)

    def to_frame(self) -> Any:
        """The pools as a pandas.DataFrame: a row for each, with its settings, its GPUs and its price [$/h]."""
        from pandas import DataFrame

        fields = [name for name in Pool.model_fields if name not in {"id", "operating_point"}]
        return DataFrame([[getattr(pool, name) for name in fields] for pool in self.pools],
                         index=[pool.id for pool in self.pools], columns=fields)  # fmt: skip

    def __str__(self) -> str:
        """The verdict, as `print` shows a plan: the fields fill pages."""
        price = "" if self.cost_usd_per_hour is None else f" for {dollars(self.cost_usd_per_hour)}/h"
        classes = [
            f"{row.name}: {100.0 * row.attainment:.4g} % of requests meet the SLO, goal {100 * row.attainment_goal:g} %"
            for row in self.classes
        ]
        return f"{self.name} ({self.status}): {plural(sum(self.gpus.values()), 'GPU')}{price}. {'; '.join(classes)}"

    def __repr__(self) -> str:
        """The verdict in angle brackets."""
        return f"<Plan {self}>"

    def _repr_html_(self) -> str:
        """The verdict and the fleet, as a notebook shows a plan."""
        return f"<p>{escape(str(self))}</p>{self.to_frame().to_html() if self.pools else ''}"

    def _miscounts(self) -> Iterator[tuple[Keys, str]]:
        """Where GPUs do not add up: of a pool, or of all pools of an accelerator."""
        total = Counter[str]()
        for number, pool in enumerate(self.pools):
            replica_gpus = pool.parallelism.gpus
            total[pool.accelerator] += pool.gpus
            if pool.gpus != (all_gpus := pool.replicas * replica_gpus):
                engines = f"replicas ({pool.replicas}) of {replica_gpus} GPUs each"
                yield ("pools", number, "gpus"), f"{pool.gpus} is not {all_gpus}, which {engines} have"
        for name in sorted(total.keys() | self.gpus.keys()):
            if self.gpus.get(name, 0) != total[name]:
                yield ("gpus", name), f"{self.gpus.get(name, 0)} is not {total[name]}, which its pools have"

    def _faults(self) -> Iterator[tuple[Keys, str]]:
        """What no single field can tell: a fleet where the status promises one, names that lead somewhere."""
        ids, load = [pool.id for pool in self.pools], self.workload
        complete = self.pools and self.gpus and self.classes and self.cost_usd_per_hour is not None
        if self.status.has_fleet and not complete:
            yield (), f"the status is {self.status}, but pools or cost_usd_per_hour are missing"
        if self.pools and not self.status.has_fleet:
            yield (), f"the status is {self.status}, but there are pools"
        if len(set(ids)) < len(ids):
            yield (), "two pools have one id"
        rows = [
            (("transfers", n, end), [getattr(move, end)])
            for n, move in enumerate(self.transfers)
            for end in ("source", "target")
        ]
        rows += [
            (("routing", n, end), getattr(move, end))
            for n, move in enumerate(self.routing)
            for end in ("prefill", "decode")
        ]
        for place, names in rows:
            yield from ((place, str(UnknownNameError("pool", name, ids))) for name in names if name not in ids)
        if not len(load.isl) == len(load.osl) == len(load.share):
            yield (), "workload.isl, osl and share differ in length"
        yield from self._miscounts()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Check what no single field can tell."""
        for path, sentence in self._faults():
            raise FaultsError(Fault(path, sentence))
        return self


class FleetEvaluation(Record):
    """A fleet that was stated, evaluated as a plan is."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["pdplan.evaluation/1"] = Field(default="pdplan.evaluation/1", alias="schema")
    outcome: Judged
    """meets, misses, or undecided: a goal lies within its interval, or see `near_capacity`."""
    stuck: bool
    """Whether it keeps its goals until a crowd fills its KV memory, and not any more after that."""
    replayed: bool
    """Whether it keeps its goals for stretches of the recorded requests, and not for all of them in their order."""
    near_capacity: bool = False
    """Whether it meets its goals, but falls behind at 5 % more requests: its queues may grow too slowly to be seen."""
    plan: Plan
    """The fleet as a plan states one, its status `stated`: settings, price, latencies, headroom, what binds."""
    usd_per_month: Amount
    provisioning: Provisioning
    twice: Provisioning
    """The same at twice the rate."""
    cheapest: Plan | None
    """The cheapest fleet that the search found for the same workload at the same prices; null where none was sought."""
    saving_usd_per_hour: Number | None
    """What that one costs less; negative where it costs more; null where there is none."""
    no_cheapest: str = ""
    """Why there is no cheapest fleet, where it was sought and physics forbids one."""

    def __repr__(self) -> str:
        """The outcome and the verdict, in angle brackets."""
        return f"<FleetEvaluation {self.outcome}: {self.plan}>"

    __str__ = __repr__


# --- what was proven -------------------------------------------------------------------------------------------------


class ContradictionError(Exception):
    """A fleet that holds costs less than was proven that any must: a bug, of the proof or of the evaluation."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the search proved: status, lower bound on the cost [$/h] and relative gap; None where there is none.

    few_pools, floor [$/h]: see the module; the bound is one of the two.
    """

    status: Status
    bound: float | None
    gap: float | None
    floor: float | None = None
    few_pools: float | None = None


def gap_of(bound: float | None, cost: float) -> float | None:
    """Share of the cost that a cheaper fleet could save at most [1]; None without a bound."""
    return None if bound is None else 1.0 - bound / cost


def status_of(gap: float | None) -> Status:
    """Optimal where the gap is known and closed, else feasible."""
    return Status.OPTIMAL if gap is not None and gap <= OPTIMAL_GAP else Status.FEASIBLE


def bound_for(least: float | None, cost: float) -> float | None:
    """The bound over some fleets, for one of some cost; None where it costs less and so is none of them [$/h].

    >>> bound_for(9.0, 10.0), bound_for(10.0, 9.0), bound_for(None, 9.0)
    (9.0, None, None)
    """
    return None if least is None or is_below(least, cost) else min(least, cost)


def proof_of_cost(few_pools: float | None, floor: float | None, cost: float) -> Proof:
    """What is proven of a fleet of some cost that the evaluation accepts [$/h]; see the module.

    Raises ContradictionError for one below the floor.

    >>> proofs = proof_of_cost(10.0, 6.0, 10.0), proof_of_cost(10.0, 6.0, 8.0)
    >>> [(proof.status.value, proof.bound, proof.gap) for proof in proofs]
    [('optimal', 10.0, 0.0), ('feasible', 6.0, 0.25)]
    """
    if is_below(floor, cost):
        raise ContradictionError(f"a fleet of {cost!r} $/h holds, though none below {floor!r} $/h can")
    least = bound_for(floor, cost)
    bound = max((limit for limit in (bound_for(few_pools, cost), least) if limit is not None), default=None)
    gap = gap_of(bound, cost)
    return Proof(status_of(gap), bound, gap, least, few_pools)


def proof_of_judged(few_pools: float | None, floor: float | None, cost: float) -> Proof:
    """What is proven of a fleet of some cost that held for another judge: a simulation, or other parts of the limits.

    The evaluation can be too careful: of a fleet below its floor nothing is proven, which the two costs tell [$/h].
    """
    if is_below(floor, cost):
        return Proof(Status.FEASIBLE, None, None, floor, few_pools)
    return proof_of_cost(few_pools, floor, cost)


def is_below(bound: float | None, cost: float) -> bool:
    """Whether a cost is below a bound by more than rounding; False without a bound."""
    return bound is not None and cost < bound * (1.0 - ROUNDING)


PLAN_1: Final = "pdplan.plan/1"
_PLACES: Final = ("alternatives", "simulation", "sensitivity")
"""Fields of a plan with fleets that are not its own."""
_LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
"""Of the pools of a tuned fleet of plan/1, which stood beside them."""
_LINE: Final = re.compile(
    r"(?P<replicas>\d{1,12}) x (?P<accelerator>.{1,200}?) (?P<split>(?:(?:TP|PP|EP|DP)\d{1,6} ){1,4})"
    r"(?:(?P<weights>[^ /]+)(?:/(?P<kv>[^ /]+))? )?(?P<role>prefill|decode|colocated)"
)
"""A pool of plan/1, such as "3 x H100 TP2 decode" or "1 x L40S TP1 EP2 fp8/bf16 colocated"."""


def parse_plan(data: bytes, name: str = "plan.json") -> Plan:
    """Return the plan of a plan.json, of schema pdplan.plan/2 or /1.

    name: stands for the file in messages. Raises InputError, which says what is wrong first and where.
    """
    text = JsonText(name, decoded(data, name), clause="is not a plan of this version of pdplan: ")
    record = text.value()
    if not isinstance(record, dict):
        raise text.error(f"it is {json_kind(record)}, and a plan is an object with the schema {PLAN_SCHEMA}")
    if "schema" not in record:
        raise text.error(f"it names no schema, which for a plan is {PLAN_SCHEMA}")
    schema = record["schema"]
    if not (isinstance(schema, str) and schema.startswith("pdplan.plan/")):
        raise text.error(f"is {json_shown(schema)}, not {PLAN_SCHEMA}", ("schema",))
    if schema not in {PLAN_SCHEMA, PLAN_1}:
        sentence = f"is {shown(schema)}, not {PLAN_SCHEMA} or {PLAN_1}; make it again with pdplan optimize"
        raise text.error(sentence, ("schema",))
    try:
        if schema == PLAN_1:  # settings that it does not state are null
            fleets = {key: _with_pools(text, record[key], (key,)) for key in _PLACES if key in record}
            record = {**record, **fleets, "schema": PLAN_SCHEMA}
        for rename in (_rename_inputs, _rename_times, _rename_confirmations, _drop_unread):
            with suppress(AttributeError, KeyError, TypeError):  # what is no object or list there is refused below
                rename(record)
        return Plan.model_validate(record)
    except ValidationError as error:
        fault = faults_of(error)[0]
        raise text.error(fault.sentence, fault.path) from error
    except RecursionError as error:
        raise text.error("it is nested too deeply") from error


def _rename_inputs(record: dict[str, Any]) -> None:
    """Name targets and routers as today: older plans have names of their own."""
    inputs = record["provenance"]["inputs"]
    for place, key, spellings in (
        (inputs, "target", TARGET_SPELLINGS),
        (inputs.get("constraints") or {}, "balancing", ROUTER_SPELLINGS),
    ):
        if isinstance(place.get(key), str):
            place[key] = spellings.get(place[key], place[key])


def _rename_times(record: dict[str, Any]) -> None:
    """Put the end-to-end time of classes among their metrics: older plans have fields of its own for it."""
    times: dict[str, Any] = {}
    for row in (record.get("simulation") or {}).get("classes", ()):
        if (quantiles := row.pop("e2e_s", None)) is not None:
            times[row["name"]] = row.setdefault("metrics", {})["e2e"] = quantiles
    for row in record.get("classes", ()):
        if (limit := row.pop("e2e_limit_s", None)) is not None:
            quantiles = times.get(row["name"], dict.fromkeys(("p50", "p90", "p95", "p99")))
            row.setdefault("metrics", {})["e2e"] = {"limit_s": limit, "quantiles_s": quantiles}


def _rename_confirmations(record: dict[str, Any]) -> None:
    """Number the confirmation that an alternative passed: older plans say whether it passed one."""
    for row in record.get("alternatives", ()):
        if "confirmed" in row:
            row["confirmation"] = int(row.pop("confirmed") is True)


def _drop_unread(record: dict[str, Any]) -> None:
    """Leave out fields of older plans that nothing read."""
    simulation = record.get("simulation") or {}
    for section, keys in (
        (simulation, ("goodput_by_formula_rps", "interrupted")),
        (simulation.get("tuning") or {}, ("sampler", "improved")),
        (simulation.get("recorded") or {}, ("stretch_s",)),
        (record.get("safe") or {}, ("own_attainment",)),
    ):
        for key in keys:
            section.pop(key, None)


def _with_pools(text: JsonText, value: Any, path: Keys) -> Any:
    """A value of a record, with every fleet in it as pools."""
    if isinstance(value, list):
        return [_with_pools(text, item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields = {key: _with_pools(text, item, (*path, key)) for key, item in value.items()}
    if isinstance(fields.get("pools"), list):
        fields["pools"] = [_pool(text, line, (*path, "pools", index)) for index, line in enumerate(fields["pools"])]
        for key in _LIMITS:
            if isinstance(fields.get(key), list):
                for pool, limit in zip(fields["pools"], fields.pop(key), strict=False):
                    pool[key] = limit
    return fields


def _pool(text: JsonText, line: Any, path: Keys) -> dict[str, Any]:
    """The pool that a line of plan/1 states."""
    match = _LINE.fullmatch(line) if isinstance(line, str) else None
    if match is None:
        raise text.error(f'{shown(line)} is not a pool such as "3 x H100 TP2 decode"', path)
    degrees = dict.fromkeys(("TP", "PP", "EP", "DP"), 1) | {item[:2]: int(item[2:]) for item in match["split"].split()}
    replicas = int(match["replicas"])
    return {
        "role": match["role"],
        "accelerator": match["accelerator"],
        "replicas": replicas,
        "tensor_parallel": degrees["TP"],
        "pipeline_parallel": degrees["PP"],
        "expert_parallel": degrees["EP"],
        "data_parallel": degrees["DP"],
        "gpus": replicas * degrees["TP"] * degrees["PP"] * degrees["DP"],
        "weight_dtype": match["weights"],
        "kv_dtype": match["kv"],
    } | dict.fromkeys((*_LIMITS, "max_model_len", "memory_fraction", "usd_per_hour"))
