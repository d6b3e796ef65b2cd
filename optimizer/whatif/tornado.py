"""What each assumption is worth: every lever a little lower and a little higher, and what that does to the cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError
from optimizer.fleets.error_bars import ENDS, slow_end
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .scenario import Answer, is_simple, nothing
from .whatif import Depth, solve

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
    fleet at each.
    """

    lever: str
    value: float
    low: float
    high: float
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    pools_low: tuple[str, ...] = ()
    pools_high: tuple[str, ...] = ()

    @property
    def swing(self) -> float:
        """Difference between the dearest and the cheapest of the three [$/h]; infinite where one has no fleet."""
        costs = [self.cost, self.cost_low, self.cost_high]
        known = [cost for cost in costs if cost is not None]
        return max(known) - min(known) if len(known) == len(costs) else float("inf")


def levers(problem: Problem, share: float = SHARE, depth: Depth = Depth.SIMPLE) -> Iterator[Lever]:
    """Levers worth asking about, `share` lower and higher than they are; factors stand at 1.

    A daily profile has no rate to scale. Lengths grow no further than the model's context, shares no further than 1.
    Step times go over the interval of their errors, where fleets are by formula.
    """
    load = problem.workload
    longest = problem.model.max_position / load.max_tokens if problem.model.max_position else float("inf")

    def lever(key: str, value: float, most: float = float("inf")) -> Lever:
        return Lever(key, value, value * (1.0 - share), max(min(value * (1.0 + share), most), value))

    for offer in problem.offers:
        yield lever(f"price.{offer.accelerator.name}", offer.usd_per_hour)
    if problem.inputs["workload"]["request_rate"] is not None:
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
        if key == STEP_TIME:
            return solve(replace(problem, confidence=2.0 * value - 1.0), base, depth)
        return solve(scenario_problem(problem, Scenario("", {key: value}), base), base, depth)
    except ImpossibleError as error:
        return nothing(str(error))


def tornado(problem: Problem, base: Path, share: float = SHARE, depth: Depth = Depth.SIMPLE) -> list[TornadoRow]:
    """The cost with each lever `share` lower and higher, the others as they are; the largest swing first.

    base: folder of the files that the problem names.
    """
    return tornado_of(problem, base, levers(problem, share, depth), depth)


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
