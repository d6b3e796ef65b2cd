"""The answers of whatif, frontier and map.

An `Answer` is the best fleet of one scenario. A sweep has one per scenario, a curve one per `Step` along a lever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from costmodel.engine import Role
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import dollars
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans import records
from optimizer.plans.plan import Status
from optimizer.search.search import Engines, engines_of
from search_spaces.problem import Problem


class ScenarioEffort(StrEnum):
    """How much work goes into a scenario."""

    SIMPLE = "simple"
    """Fleets of one or two pools by formula, no bound: some milliseconds for another price."""
    FULL = "full"
    """The search of `optimize --effort quick`: some tenths of a second."""
    SIMULATED = "simulated"
    """The search of `optimize`: seconds."""


# --- one fleet --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet under some demand; key: of all that its figures depend on, which prices and limits do not change."""

    key: str
    instance: Instance = field(compare=False)
    fleet: Fleet = field(compare=False)

    @property
    def engines(self) -> Engines:
        """Its engines, whatever their batch limits."""
        return engines_of(self.instance, self.fleet)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best fleet of one scenario; without any, `binding` says what is in the way.

    cost [$/h]; bound: what no fleet of any shape costs less than [$/h], and gap: the share of the cost above it, None
    where nothing is proven; goodput [1/s]; gpus by type; binding: what gives out first, and how much of it is left;
    attainment: share of all requests within their SLOs when simulated [1], None where none were; refuted: cheaper
    fleets that hold by formula and missed when simulated; fault: how it missed itself, as the end of a sentence, empty
    where it did not; fleet: what tells it from every other, if it is by formula; case: the same with its tables, which
    stay in the process that made them.
    """

    status: Status
    cost: float | None = None
    bound: float | None = None
    gap: float | None = None
    goodput: float = 0.0
    gpus: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[records.EnginePool, ...] = ()
    binding: str = ""
    attainment: float | None = None
    refuted: tuple[Answer, ...] = ()
    fault: str = ""
    fleet: str = ""
    case: Case | None = field(default=None, repr=False)

    @property
    def row(self) -> dict[str, Any]:
        """The answer as a row, ready for JSON."""
        return {
            "status": self.status.value,
            "cost_usd_per_hour": self.cost,
            "bound_usd_per_hour": self.bound,
            "gap": self.gap,
            "goodput_rps": self.goodput,
            "goodput_per_dollar": self.goodput * SECONDS_PER_HOUR / self.cost if self.cost else 0.0,
            "gpus": dict(self.gpus),
            "binding": self.binding,
            "pools": records.pool_records(self.pools),
            "simulated": self.attainment is not None,
            "simulated_attainment": self.attainment,
            "refuted": [miss.row for miss in self.refuted],
        } | ({"fault": self.fault} if self.fault else {})

    @property
    def record(self) -> dict[str, Any]:
        """The row with the key of each fleet, for a journal."""
        return self.row | {"fleet": self.fleet, "refuted": [miss.record for miss in self.refuted]}

    @classmethod
    def of_record(cls, row: Mapping[str, Any]) -> Answer:
        """The answer of a record."""
        return cls(
            Status(row["status"]),
            cost=row["cost_usd_per_hour"],
            bound=row["bound_usd_per_hour"],
            gap=row["gap"],
            goodput=row["goodput_rps"],
            gpus=row["gpus"],
            pools=tuple(records.read_pools(row["pools"])),
            binding=row["binding"],
            attainment=row["simulated_attainment"],
            refuted=tuple(map(cls.of_record, row["refuted"])),
            fault=row.get("fault", ""),
            fleet=row["fleet"],
        )


def nothing(why: str, status: Status = Status.INFEASIBLE, misses: Sequence[Answer] = ()) -> Answer:
    """The answer without a fleet; by default because none is possible."""
    return Answer(status, binding=why, refuted=tuple(misses))


def unproven(misses: Sequence[Answer]) -> Answer:
    """The answer if every simulated fleet missed; it is not proven that none exists."""
    several = f"none of the {len(misses)} fleets that were simulated holds: " if len(misses) > 1 else ""
    why = f"{several}the cheapest by formula, {dollars(misses[0].cost or 0.0)}/h, {misses[0].fault}"
    return nothing(why, Status.TIME_LIMIT, misses)


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """The answer to one scenario of a sweep; setting: its name, if it has one, and the value of each axis."""

    setting: Mapping[str, Any]
    answer: Answer


Row = dict[str, Any]
"""One scenario of a sweep, ready for JSON and pandas; `number` is its place in the sweep."""


def sweep_rows(results: Sequence[ScenarioAnswer]) -> list[Row]:
    """A sweep as rows."""
    return [{"number": number} | {**item.setting} | item.answer.row for number, item in enumerate(results)]


# --- along a lever ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a curve on which one fleet is the cheapest, from `start` to `end`; of a frontier, to its hardest.

    costs: at the two ends [$/h]; promised: up to which the fleet holds by formula, where a simulation says less;
    missed: where it was seen to miss then, at most RESOLUTION beyond `end`.
    """

    start: float
    end: float
    answer: Answer
    costs: tuple[float | None, float | None]
    promised: float | None = None
    missed: float | None = None

    @classmethod
    def of(cls, start: float, end: float, best: Answer) -> Step:
        """A step with the same cost at both ends."""
        return cls(start, end, best, (best.cost, best.cost))


RESOLUTION: Final = records.TOLERANCE / 2.0
"""Of the curve, relative to the lever's value (of attainment: to the misses that it permits) [1]: no step is narrower
but by its range, and what simulation says of an end is found to it."""


MOST_STEPS: Final = 300
"""Of a curve; more are a range too wide."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Steps from the easiest value to the hardest; of break-even values, in ascending order.

    tolerance: of each step's end by formula, relative; of break-even values, in units of the lever. refuted: fleets
    that hold by formula somewhere in the range, and that did not when simulated; by_budget: whether it is over the rate
    to be read the other way, as what each budget buys; here: the problem's own value, where the range has it; own: what
    the whole search finds there, with its simulation, where it was made and found a fleet.
    """

    over: str
    steps: tuple[Step, ...]
    tolerance: float
    refuted: tuple[Answer, ...] = ()
    by_budget: bool = False
    here: float | None = None
    own: Answer | None = None

    def __repr__(self) -> str:
        """The lever and the cost of every step, in angle brackets: the fleets fill books."""
        ends = [
            f"to {step.end:.4g} {dollars(step.answer.cost)}/h" for step in self.steps if step.answer.cost is not None
        ]
        return f"<Frontier over {self.over}: {', '.join(ends)}>"


@dataclass(frozen=True, slots=True)
class MovedLever:
    """A lever, its value at hand, and what it is moved to; unit: that of workload.yaml, or 1 for factors.

    answers: at hand, lower and higher, once they are known.
    """

    key: str
    value: float
    low: float
    high: float
    answers: tuple[Answer, ...] = ()

    @property
    def swing(self) -> float:
        """Difference between the dearest and the cheapest of the answers [$/h]; infinite where one has no fleet."""
        costs = [best.cost for best in self.answers if best.cost is not None]
        return max(costs) - min(costs) if len(costs) == len(self.answers) else math.inf

    def record(self, flips: Sequence[records.Flip] = ()) -> records.LeverSensitivity:
        """The lever as a plan has it."""
        _, low, high = self.answers
        ends = {"usd_per_hour_low": low.cost, "usd_per_hour_high": high.cost}
        lever = {"lever": self.key, "value": self.value, "low": self.low, "high": self.high}
        return records.LeverSensitivity(**lever, **ends, flips=list(flips))


# --- limits and chunks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShadowPrice:
    """The value of one more unit of a limit.

    limit: its name, such as "inventory H200"; upper, unit: its value. worth: unit of what it brings, "$/h" saved or
    "req/s" served. dual [worth per unit]: at the margin of the linear relaxation. wider [unit], whole [$/h]: the least
    widening tried that makes a cheaper whole fleet possible, and what that saves; None where none does.
    """

    limit: str
    upper: float
    unit: str
    worth: str
    dual: float
    wider: float | None
    whole: float | None


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A fleet whose engines that take prompts have one chunk, as the JSON document has it.

    classes: attainment [1] and quantiles [s] of each SLO class; outcome: whether they meet, miss or are undecided;
    simulated: whether both come from a simulation, else by formula; goodput_rps: the highest rate within the SLOs by
    formula; replicas_needed, cost_needed_usd_per_hour: of the first pool that takes prompts, and of the whole fleet,
    where as many of them are bought as meet the SLO by formula; None where MOST_TIMES as many do not; overloaded:
    whether the fleet falls behind its arrivals, so that its quantiles grow for as long as they last.
    """

    chunk_tokens: int
    outcome: records.Outcome
    simulated: bool
    classes: list[records.ClassLatencies]
    goodput_rps: float
    replicas_needed: int | None
    cost_needed_usd_per_hour: float | None
    overloaded: bool


@dataclass(frozen=True, slots=True)
class ChunkCurve:
    """The cheapest fleet, the role of its engines that take prompts, the chunk of the first, and what each chunk does.

    without_memory: chunks beside which the engines have no memory for a request.
    """

    problem: Problem
    answer: Answer
    role: Role
    own: int
    rows: tuple[ChunkRow, ...]
    without_memory: tuple[int, ...]
