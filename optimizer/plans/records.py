"""Records of the plan file: its numbers, the engines of a fleet, and what a plan says beside its own fleet.

That is what was simulated, what was tried, the fleet that survives slow GPUs, narrower precisions, how the answer moves
with prices and limits, and how wrong predictions were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from costmodel.arrays import FloatArray
from costmodel.engine import Parallelism
from costmodel.metric import Metric

ROUNDING: Final = 1e-6
"""Relative difference up to which costs, shares and times count as equal [1]: solvers are no more precise."""
NO_DEARER: Final = 1.0 + 2.0 * ROUNDING
"""Factor on a cost: a search for fleets below it still finds those of equal cost."""

OPTIMAL_GAP: Final = 1e-4
"""Relative difference to which costs, shares and the ends of what a fleet can do are worked out by formula [1]: what is
printed is as fine. A fleet within it counts as the optimum."""

ALIKE: Final = 2e-3
"""Relative difference up to which two loads, costs or gaps are alike [1]: less than any prediction tells. A pool with
so little of its load is in nobody's way."""

TOLERANCE: Final = 0.02
"""To which the goodput and the saturation point are found by simulation (relative): with other seeds they differ by
0.5 % (benchmarks/goodput_spread.py), and predictions are off by more."""

NOTABLE: Final = 0.05
"""Share of a cost or a rate from which on a difference counts [1]: predictions err by as much (docs/accuracy.md)."""

HALVING_RUNS: Final = 4
"""Runs of one question of many where one does not tell: the root of four halves an interval."""

CANDIDATES: Final = 6
"""Candidates of one list that are tried after each other, the likeliest first, where each takes a simulation or a
search; assumed."""

QUICK_CANDIDATES: Final = HALVING_RUNS * CANDIDATES
"""The same where each takes an evaluation by formula."""

HALVINGS: Final = 3
"""So often a range is halved, or doubled, to find where an answer changes: to an eighth of it, or to eight times."""

MOST_MORE: Final = 1e3
"""Multiple of a demand, or of its inverse, beyond which nothing is looked for."""

MOST_LOOKS: Final = 20_000
"""Fleets, or nodes of a search tree, that one search looks at: a guard against spaces of thousands of engines, which is
the same on a slow machine."""


MOST_ROUNDS: Final = 5_000
"""Rounds of a fixed point (shares of hand-overs, a batch) before it counts as divergent; most need ten to twenty."""

LARGEST = 1e30
"""No number of a plan is larger; sums and products of such numbers are finite."""


def _nan_for_null(value: Any) -> Any:
    """JSON has no NaN: plan.json has null in its place."""
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


STRICT: Final = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)
"""Configuration of the parts of a plan file: a frozen dataclass is taken as it is, a part of a file is checked."""


class Record(BaseModel):
    """A part of the plan file."""

    model_config = STRICT


def without_empty(key: str) -> Any:
    """A serializer that leaves a field out of the file if it is empty or 0."""

    def write(self: Any, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in fields(self).items() if name != key or value}

    return model_serializer(mode="wrap")(write)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a latency over all requests [s]."""

    p50: Measure
    p90: Measure
    p95: Measure
    p99: Measure
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @classmethod
    def of(cls, values: FloatArray | Sequence[float]) -> Quantiles:
        """Quantiles at 0.5, 0.9, 0.95 and 0.99; 0 where no request has such a latency."""
        return cls(*np.nan_to_num(values, nan=0.0, posinf=np.inf).tolist())


QUANTILES = (0.5, 0.9, 0.95, 0.99)


class EnginePool(Record):
    """Replicas of one engine in one role; a setting is null in a fleet of a plan/1 file, which did not state it."""

    role: Literal["prefill", "decode", "colocated"]
    accelerator: str
    replicas: Degree
    """Spare ones included."""
    tensor_parallel: Degree
    pipeline_parallel: Degree
    expert_parallel: Degree
    data_parallel: Degree
    gpus: Degree
    """GPUs of all replicas together."""
    weight_dtype: str | None
    kv_dtype: str | None
    max_num_seqs: Degree | None
    max_num_batched_tokens: Degree | None
    max_model_len: Degree | None
    memory_fraction: Share | None
    speculative_tokens: int = Field(0, ge=0)
    """Drafted for each request and step; left out of the file where there are none."""
    usd_per_hour: Amount | None
    """Price of the whole pool; null where it has several: over a range of prices, or under several contracts."""
    _serializer = without_empty("speculative_tokens")

    @property
    def parallelism(self) -> Parallelism:
        """How one engine splits the model."""
        return Parallelism(self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.data_parallel)

    @property
    def engine(self) -> tuple[Hashable, ...]:
        """What the engine is, apart from its memory and batch limits."""
        return self.role, self.accelerator, self.parallelism, self.weight_dtype, self.kv_dtype, self.speculative_tokens


def engine_counts(pools: Iterable[EnginePool]) -> frozenset[Hashable]:
    """A key equal for fleets with the same engines, as many in each pool; batch limits and prices may differ."""
    return frozenset(Counter((pool.replicas, pool.engine) for pool in pools).items())


def unpriced(pools: Iterable[EnginePool]) -> tuple[EnginePool, ...]:
    """Pools without their price, as it is one of several."""
    return tuple(pool.model_copy(update={"usd_per_hour": None}) for pool in pools)


def pool_records(pools: Iterable[EnginePool]) -> list[dict[str, Any]]:
    """Pools, ready for JSON."""
    return [pool.model_dump() for pool in pools]


def read_pools(records: Iterable[Any]) -> tuple[EnginePool, ...]:
    """Pools of such records."""
    return tuple(map(EnginePool.model_validate, records))


class Range(Record):
    """Where the measured value lies nine times in ten; without an upper end where the fleet is then overloaded."""

    low: Measure
    high: Measure | None


class StepError(Record):
    """Factors on predicted step times of one accelerator, from the errors of past predictions."""

    accelerator: str
    measured: bool
    """Whether kernels of this very accelerator were measured; if not, those of a relative stand in."""
    prefill: Range
    """Of steps that only compute prompts [1]."""
    decode: Range
    """Of steps that generate tokens [1]."""


class ErrorBars(Record):
    """One SLO class with all steps at the quick and at the slow end of their 90 % interval."""

    quantile: Share = QUANTILES[1]
    """Of the requests' latencies: the first one that the goal of the class asks for [1]."""
    ttft_s: Range = Field(validation_alias=AliasChoices("ttft_s", "ttft_p90_s"))
    tpot_s: Range = Field(validation_alias=AliasChoices("tpot_s", "tpot_p90_s"))
    metrics: dict[Metric, Range] = Field(default_factory=dict)
    """Of every other metric that the class limits; left out of the file where there are none."""
    attainment: Range

    _serializer = without_empty("metrics")

    @property
    def ranges(self) -> dict[Metric, Range]:
        """Every metric that is known at both ends [s]."""
        return {Metric.TTFT: self.ttft_s, Metric.TPOT: self.tpot_s, **self.metrics}


class Outcome(StrEnum):
    """The verdict of a simulation on its goals, by the ends of their 95 % intervals.

    All goals are met at the lower end, one is missed at the upper end, or one lies within its interval, so that only
    more requests can decide.
    """

    MEETS = "meets"
    MISSES = "misses"
    UNDECIDED = "undecided"


Judged = Annotated[Outcome, BeforeValidator(lambda outcome: Outcome.MEETS if outcome == "holds" else outcome)]
"""The outcome of full runs; plans of older versions have "holds" for "meets"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLatencies:
    """Attainment and latencies of one SLO class at one rate, by formula or simulated.

    attainment: share of its requests within all their SLOs [1]; metrics: every other metric that it limits, and the
    end-to-end time where it was simulated; left out of the file where there are none.
    """

    name: str
    attainment: Share
    ttft_s: Quantiles
    tpot_s: Quantiles
    metrics: Mapping[Metric, Quantiles] = field(default_factory=dict)
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    _serializer = without_empty("metrics")

    @property
    def quantiles(self) -> dict[Metric, Quantiles]:
        """Every metric that is known of it [s]."""
        return {Metric.TTFT: self.ttft_s, Metric.TPOT: self.tpot_s, **self.metrics}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassJudgement(ClassLatencies):
    """One SLO class simulated, against its goal.

    attainment_low, attainment_high: ends of the 95 % confidence interval of `attainment`; the lower one is at or above
    the goal in every plan that holds; counted: requests of the class that count: all but the first tenth of each run.
    """

    attainment_goal: Share
    attainment_low: Share
    attainment_high: Share
    counted: Count

    @property
    def held(self) -> bool:
        """Whether the share of requests within the SLO reaches the goal."""
        return self.attainment >= self.attainment_goal

    @property
    def proven(self) -> bool:
        """Whether even the lower end of the confidence interval reaches the goal."""
        return self.attainment_low >= self.attainment_goal

    @property
    def outcome(self) -> Outcome:
        """Whether the class meets its goal, misses it, or has it within its confidence interval."""
        if self.proven:
            return Outcome.MEETS
        return Outcome.MISSES if self.attainment_high < self.attainment_goal else Outcome.UNDECIDED

    @property
    def lacking(self) -> float:
        """Factor on the number of requests that would decide, if the share stays as it is [1].

        An interval's half-width shrinks with the root of the requests: (half-width / distance to the goal)^2. Infinite
        where the share is the goal, or nothing was counted.
        """
        share, end = self.attainment, self.attainment_low if self.held else self.attainment_high
        distance = abs(share - self.attainment_goal)
        return ((share - end) / distance) ** 2 if self.counted and distance > 0.0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedClass(ClassJudgement):
    """One SLO class in the simulation at the rate of the plan, with its distributions.

    by_formula: what the queueing formulas predict for the same fleet; ttft_cdf_s, tpot_cdf_s: at each of
    `Simulation.cdf_shares`; null where the request never got that far.
    """

    by_formula: ClassLatencies
    ttft_cdf_s: list[Measure]
    tpot_cdf_s: list[Measure]


QUEUE, BURST = "queue", "burst"
"""Limits of a fleet besides metrics: a pool falls behind its arrivals, or stays behind once its KV memory was full."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What a fleet breaks first at a rate that is too high for it, in simulation.

    pool: id of the pool that is to blame for most of it; limit: the metric that most of its late requests exceed, or
    QUEUE or BURST.
    """

    pool: str
    limit: str


class SimulatedRate(Record):
    """The fleet at one arrival rate, in one run."""

    rate_rps: Amount
    held: bool
    """Whether the lower end of every class's interval reached its goal and the fleet kept up; in plans of older
    versions, which have no `outcome`, whether every class's share did."""
    outcome: Judged | None = None
    """Null in plans of older versions."""
    overloaded: bool
    breakdown: Breakdown | None = None
    """What ends the goodput here; null where every goal is shown to be met, and in plans of older versions."""
    classes: list[ClassLatencies]

    @property
    def missed(self) -> bool:
        """Whether some goal was missed at the upper end of its interval, or the fleet fell behind."""
        return not self.held if self.outcome is None else self.outcome is Outcome.MISSES


class JudgedFleet(Record):
    """A fleet that was simulated and is not the plan's, such as the plan's with one replica fewer."""

    what: str
    """How it differs, such as "decode-1: one replica fewer"."""
    pools: list[EnginePool]
    cost_usd_per_hour: Amount
    held: bool
    """Whether the lower end of every class's interval reached its goal and the fleet kept up."""
    outcome: Judged | None = None
    """Null in plans of older versions."""
    stuck: bool = False
    """Whether it kept its goals until a crowd filled its KV memory, and not any more after that."""
    replayed: bool = False
    """Whether it kept its goals for stretches of the recorded requests, and not for all of them in their order."""
    overloaded: bool
    attainment: dict[str, Share]
    """Simulated share of each SLO class within its SLOs."""
    latencies: list[ClassLatencies] = Field(default_factory=list)
    """Of each SLO class."""


class CheaperFleets(Record):
    """Fleets of one pool, or of a prefill and a decode pool, that cost less than the plan's, and not below the floor.

    Told apart by roles, GPU types, GPUs of a replica and replicas. All were tried: what no simulation refuted misses an
    SLO by formula with every setting.
    """

    count: Count
    simulated: Count
    """How many of them simulation refuted."""


class PoolNeed(Record):
    """Replicas of a pool that run, and those that are needed: of a fleet file with the spares that are asked for."""

    pool: str
    replicas: Degree
    needed: Count


class Provisioning(Record):
    """The fewest replicas of the same engines with which the fleet was found to meet every SLO."""

    rate_rps: Amount
    stated: JudgedFleet
    """The fleet as it is, at this rate."""
    pools: list[PoolNeed]
    """Empty where no number of replicas that was tried meets the SLOs."""
    cost_usd_per_hour: Amount | None
    """None where no number of replicas that was tried meets the SLOs."""
    one_replica_fewer: list[JudgedFleet]
    """These with one replica fewer in one pool: none is shown to meet every SLO."""
    judged: Count
    """Fleets that were simulated for it."""
    most: Amount
    """Multiple of the stated replicas up to which fleets were tried [1]."""

    @property
    def missing(self) -> int:
        """Replicas that are needed and do not run."""
        return sum(max(pool.needed - pool.replicas, 0) for pool in self.pools)

    @property
    def spare(self) -> int:
        """Replicas that run and are not needed."""
        return sum(max(pool.replicas - pool.needed, 0) for pool in self.pools)


class PrefixCache(Record):
    """What prompts find in the KV memory that running requests leave, by formula; shares of the input tokens."""

    at_best: Share
    """What a cache that forgets nothing would find."""
    sustained: Share
    """What this fleet's memory keeps of it; the same where the workload does not say when a prefix is used again."""
    read: Share = 0.0
    """Of this, what is read from the KV cache tier below GPU memory."""
    keeps_s: Amount
    """How long the prompts of the pool that keeps them for the shortest time stay when nobody uses them."""


class RecordedRun(Record):
    """The plan's fleet when the requests of a trace come in their own order."""

    source: str
    """Name of the trace."""
    requests: Count
    """Requests that were simulated."""
    of: Count
    """Requests of the trace; where it has more, stretches of it are."""
    classes: list[ClassLatencies]
    """The first tenth of the requests, which find the fleet empty, is not counted."""


class TunedFleet(Record):
    """A fleet that tuning simulated, or one of the comparison beside these."""

    pools: list[EnginePool]
    cost_usd_per_hour: Amount
    tail: Measure
    """Largest latency, at the quantile of its goal, as a share of its limit; at most 1 where every goal is kept."""
    served: list[Share] = Field(default_factory=list)
    """Share of the requests that each pool serves."""
    outcome: Judged | None = None
    """Null in plans of older versions, where only a short run looked at it."""
    latencies: list[ClassLatencies] = Field(default_factory=list)
    """Of each SLO class."""


class Tuning(Record):
    """What `--effort thorough` or `--front` tried."""

    objectives: list[str] = Field(default_factory=lambda: ["cost"])
    """"cost" alone, or "cost" and "tail", whose front is the answer then and is judged where it costs more."""
    looks: Count
    """Fleets that were simulated."""
    compared: Count = 0
    """Fleets of the comparison on the front; 0 in plans of older versions."""
    front: list[TunedFleet]
    """Fleets that keep their goals and that no other beats in both cost and tail by 0.01 limits, cheapest first; one
    that holds in full runs is beaten only by another that does."""


class Simulation(Record):
    """What serving the demand request by request showed."""

    requests: Count
    """Requests of all replications together, warm-up included."""
    replications: Degree
    seed: int
    """Of the first replication; nothing else in the simulation is random."""
    rate_rps: Amount
    parts: Degree = 1
    """Of a very large fleet one engine in so many was simulated, with as much of the demand."""
    held: bool
    """Whether the lower end of every class's interval reaches its goal and the fleet keeps up."""
    confirmation: Count = 0
    """Number of the confirmation that the fleet passed: the requests are ones that no choice was made by. 0: none was
    made, for want of time (or in an older version); then the fleet was chosen by the same requests."""
    attainment: Share
    """Share of all requests within all their SLOs."""
    classes: list[SimulatedClass]
    cdf_shares: list[Share]
    itl_max_p99_s: Measure
    """Longest gap between two tokens of a request, at its 99th percentile over requests."""
    preemptions_per_request: Amount
    prefix_hit_share: Share = 0.0
    """Share of the input tokens that were found in prefix caches; 0 in plans of older versions."""
    rejected: Share
    """Share of the requests that no engine can hold."""
    unfinished: Share
    goodput_rps: Amount | None
    """Highest rate tried at which every class held at the lower end of its interval; null where the search for it was
    interrupted."""
    goodput_fails_rps: Amount | None
    """The next higher rate that was tried, at which one did not."""
    curve: list[SimulatedRate]
    """Latency against rate, rising; runs as long as each other have the same requests, at other times."""
    curve_requests: Count
    """Requests of the run at each rate above the planned one, whose runs are those above; fewer at lower rates."""
    one_replica_less: list[JudgedFleet]
    """The plan's fleet with one replica fewer in one pool: none holds, or the plan would be cheaper."""
    behind_least_requests: JudgedFleet | None = Field(
        None, validation_alias=AliasChoices("behind_least_requests", "fewest_requests")
    )
    """The plan's fleet behind a least-requests router; null where that is the plan's own or chooses alike, where time
    ran out, and in plans of older versions."""
    recorded: RecordedRun | None = None
    """Null where no trace was given, and in plans of older versions."""
    others: list[JudgedFleet]
    """Other fleets that were simulated, in order: cheaper ones that missed, or best of their kind."""
    tuning: Tuning | None = None
    """None where it was not asked for."""
    judged: Count
    """Fleets that were simulated."""
    repairs: Count
    """Of them those made from a fleet that had missed."""

    @property
    def overloaded(self) -> bool:
        """Whether the fleet falls behind at the demand; False where no rate was simulated for want of time."""
        return any(at.overloaded for at in self.curve if math.isclose(at.rate_rps, self.rate_rps, rel_tol=ROUNDING))

    @property
    def beyond_goodput(self) -> SimulatedRate | None:
        """The first rate beyond the goodput that was tried; None where none is known."""
        fails = self.goodput_fails_rps
        points = (at for at in self.curve if fails is not None and math.isclose(fails, at.rate_rps, rel_tol=ROUNDING))
        return next(points, None)


class SafeStatus(StrEnum):
    """Which fleet meets every SLO at the slow end of past prediction errors."""

    OWN = "own"
    """The plan's own fleet does."""
    OTHER = "other"
    """The plan's own is not shown to; the fleet of this record does."""
    NONE = "none"
    """The plan's own is not shown to, and no fleet was found that does; that there is none is not proven."""


class SafeFleet(Record):
    """The cheapest fleet found that meets every SLO with all steps at the slow end of their interval, simulated."""

    confidence: Share
    """Probability of the interval of step times at whose slow end the fleet is judged."""
    status: SafeStatus
    cost_usd_per_hour: Amount | None
    """Price of the fleet; null where none was found."""
    pools: list[EnginePool]
    attainment: Share | None
    """Share of all its requests within all their SLOs there."""
    sentence: str


class PrecisionSaving(Record):
    """The cheapest fleet by formula in another precision, which costs notably less; nothing of it is simulated."""

    weight_dtype: str
    kv_dtype: str
    cost_usd_per_hour: Amount
    base_usd_per_hour: Amount
    """Cost of the cheapest fleet by formula in the precision of the plan."""
    pools: list[EnginePool]


class Flip(Record):
    """The least change of a lever, on one side of its value, after which another kind of fleet is the cheapest."""

    same_at: Measure
    """Value up to which the kind of fleet is known to be the same."""
    other_at: Measure
    """Value, beyond it, at which it is another one; that it changes once between the two is not proven."""
    pools: list[EnginePool]
    """The fleet that is the cheapest there; none where no fleet holds."""
    usd_per_hour: Amount | None


class LeverSensitivity(Record):
    """One lever with the least cost at its value, lower and higher, all else as it is."""

    lever: str
    """As `pdplan whatif` names it: price.GPU, rate_scale, ttft_scale, link_scale, step_time_quantile and so on."""
    value: Measure
    low: Measure
    high: Measure
    """In the unit of workload.yaml; factors [1] stand at 1."""
    usd_per_hour_low: Amount | None
    """Least cost with the lever at `low`; null where no fleet holds."""
    usd_per_hour_high: Amount | None
    flips: list[Flip] = Field(default_factory=list)
    """Below and above the value, where the kind of fleet changes within `low` to `high` and that was looked for."""


class PricePiece(Record):
    """From `low` to `high` [$/h of one GPU] the same fleet is the cheapest."""

    low: Measure
    high: Measure
    usd_per_hour_low: Amount | None
    """Its price at `low`; null where no fleet holds."""
    usd_per_hour_high: Amount | None
    pools: list[EnginePool]


class BreakEven(Record):
    """The cheapest fleet at any price of one accelerator, in pieces of rising price; the plan's own is among them."""

    accelerator: str
    usd_per_gpu_hour: Amount
    """The price at hand."""
    pieces: list[PricePiece]


class Sensitivity(Record):
    """How the least cost moves: levers by formula, among fleets of one or two pools; the plan's own may be another."""

    share: Share
    """By how much each lever goes either way, if its row says nothing else."""
    complete: bool
    """Whether all levers were moved, or prices and limits only."""
    usd_per_hour: Amount
    """The least cost with everything as it is."""
    pools: list[EnginePool]
    levers: list[LeverSensitivity]
    """The largest swing first."""
    break_even: list[BreakEven]


class AccuracyRecord(Record):
    """Errors of predicted TTFT and TPOT against measurements of models that the fit never saw.

    Relative to the measured value [1]; null where there is no measurement.
    """

    accelerator: str
    """Empty: any."""
    mode: Literal["colocated", "disaggregated"]
    engine: str
    """Empty: any."""
    model: str
    """Empty: any."""
    rows: Count
    """Measurements; 0: none of this very kind is on record."""
    ttft_median_abs: Amount | None = None
    """Median of |predicted - measured| / measured."""
    ttft_bias: Number | None = None
    """Median of (predicted - measured) / measured."""
    tpot_median_abs: Amount | None = None
    tpot_bias: Number | None = None
