"""What each assumption is worth: every lever a little lower and a little higher, and what that does to the cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError
from optimizer.fleets.error_bars import ENDS, slow_end
from optimizer.plans.records import EnginePool
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .physics import physics_of
from .scenario import Answer, is_simple, nothing
from .second_look import proven
from .whatif import CHEAP_LEVERS, Depth, solve

SHARE = 0.2
"""By how much each lever goes either way."""
STEP_TIME = "step_time_quantile"
"""The lever of efficiency: how slow all steps are within the errors of past predictions; 0.5: as predicted."""

Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lever:
    """A lever, and what it is moved to; unit: that of workload.yaml, or 1 for factors."""

    key: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TornadoRow:
    """One lever: its value at hand, lower and higher, and the least cost at each [$/h], None where no fleet holds.

    lever: the key that it goes by; unit of the values: that of workload.yaml, or 1 for factors; pools: of the cheapest
    fleet at each; attainment: share of the requests within their SLOs when that is simulated [1], None where it is not.
    """

    lever: str
    value: float
    low: float
    high: float
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    pools_low: tuple[EnginePool, ...] = ()
    pools_high: tuple[EnginePool, ...] = ()
    attainment: float | None = None
    attainment_low: float | None = None
    attainment_high: float | None = None

    @property
    def swing(self) -> float:
        """Difference between the dearest and the cheapest of the three [$/h]; infinite where one has no fleet."""
        costs = [self.cost, self.cost_low, self.cost_high]
        known = [cost for cost in costs if cost is not None]
        return max(known) - min(known) if len(known) == len(costs) else float("inf")


def levers(problem: Problem, share: float = SHARE, depth: Depth = Depth.SIMPLE) -> Iterator[Lever]:
    """Levers worth asking about, `share` lower and higher than they are; factors stand at 1.

    Lengths grow no further than the model's context, shares no further than 1. Step times go over the interval of their
    errors, where fleets are by formula.
    """
    load = problem.workload
    longest = problem.model.max_position / load.max_tokens if problem.model.max_position else float("inf")

    def lever(key: str, value: float, most: float = float("inf")) -> Lever:
        return Lever(key, value, value * (1.0 - share), max(min(value * (1.0 + share), most), value))

    for offer in problem.offers:
        yield lever(f"price.{offer.accelerator.name}", offer.usd_per_hour)
    yield lever("rate_scale", 1.0)
    for key in ("isl_scale", "osl_scale"):
        yield lever(key, 1.0, longest)
    for key in ("ttft_scale", "tpot_scale", "link_scale"):
        yield lever(key, 1.0)
    if depth is Depth.SIMPLE and is_simple(problem):
        yield Lever(STEP_TIME, slow_end(problem.confidence), *ENDS)
    yield lever("burstiness", load.burstiness)
    if load.prefix_hit_share > 0.0:
        yield lever("prefix_hit_share", load.prefix_hit_share, 1.0)
    for key in ("budget", "power"):
        limit = getattr(problem.constraints, key)
        if limit is not None:
            yield lever(key, limit)


def answer_at(problem: Problem, base: Path, key: str, value: float, depth: Depth = Depth.SIMPLE) -> Answer:
    """The best fleet with one lever at a value; none where no engine can exist there.

    base: folder of the files that the problem names.
    """
    try:
        return solve(_moved(problem, base, key, value), base, depth)
    except ImpossibleError as error:
        return nothing(str(error))


def _moved(problem: Problem, base: Path, key: str, value: float) -> Problem:
    """The problem with one lever at a value."""
    if key == STEP_TIME:
        return replace(problem, confidence=2.0 * value - 1.0)
    return scenario_problem(problem, Scenario("", {key: value}), base)


def tornado(
    problem: Problem, base: Path, share: float = SHARE, depth: Depth = Depth.SIMPLE, looks: int = 0
) -> list[TornadoRow]:
    """The cost with each lever `share` lower and higher, the others as they are; the largest swing first.

    base: folder of the files that the problem names; looks: so many costs, that at hand and then those of the largest
    swings, are of fleets that hold when simulated; those that take no more simulations besides.
    """
    rows = tornado_of(problem, base, levers(problem, share, depth), depth)
    return with_looks(problem, base, rows, looks) if looks and is_simple(problem) and depth is Depth.SIMPLE else rows


def with_looks(problem: Problem, base: Path, rows: Iterable[TornadoRow], looks: int) -> list[TornadoRow]:
    """The rows, the largest swing first, with a second look at the fleets of both ends, or at neither.

    Along a price or a limit the fleets of the problem at hand, which are looked at first, mostly do for both.
    """
    here, left, found = proven(problem, physics_of(problem, base)), looks - 1, []
    for row in rows:
        cheap = row.lever.partition(".")[0] in CHEAP_LEVERS
        if not cheap and left < 2:
            found.append(row)
            continue
        left -= 0 if cheap else 2
        low, high = (
            here if value == row.value else _proven_at(problem, base, row.lever, value) for value in (row.low, row.high)
        )
        costs = (here.cost, low.cost, high.cost, low.pools, high.pools)
        seen = (here.attainment, low.attainment, high.attainment)
        found.append(TornadoRow(row.lever, row.value, row.low, row.high, *costs, *seen))
    return sorted(found, key=lambda row: -row.swing)


def _proven_at(problem: Problem, base: Path, key: str, value: float) -> Answer:
    try:
        there = _moved(problem, base, key, value)
    except ImpossibleError as error:
        return nothing(str(error))
    return proven(there, physics_of(there, base))


def tornado_of(problem: Problem, base: Path, moved: Iterable[Lever], depth: Depth = Depth.SIMPLE) -> list[TornadoRow]:
    """The same for some levers."""
    here = solve(problem, base, depth)
    rows = []
    for one in moved:
        low, high = (
            here if end == one.value else answer_at(problem, base, one.key, end, depth) for end in (one.low, one.high)
        )
        ends = (low.cost, high.cost, low.pools, high.pools)
        rows.append(TornadoRow(one.key, one.value, one.low, one.high, here.cost, *ends))
    return sorted(rows, key=lambda row: -row.swing)
