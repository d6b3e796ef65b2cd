"""What each assumption is worth: every lever a little lower and a little higher, and what that does to the cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .whatif import Depth, solve

SHARE = 0.2
"""By how much each lever goes either way."""

Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TornadoRow:
    """One lever: its value at hand, lower and higher, and the least cost at each [$/h], None where no fleet holds.

    lever: the key that it goes by; unit of the values: that of workload.yaml, or 1 for factors.
    """

    lever: str
    value: float
    low: float
    high: float
    cost: float | None
    cost_low: float | None
    cost_high: float | None

    @property
    def swing(self) -> float:
        """Difference between the dearest and the cheapest of the three [$/h]; infinite where one has no fleet."""
        costs = [self.cost, self.cost_low, self.cost_high]
        known = [cost for cost in costs if cost is not None]
        return max(known) - min(known) if len(known) == len(costs) else float("inf")


def levers(problem: Problem) -> Iterator[tuple[str, float]]:
    """Levers worth asking about, with their values at hand; factors stand at 1."""
    for offer in problem.offers:
        yield f"price.{offer.accelerator.name}", offer.usd_per_hour
    for key in ("rate_scale", "isl_scale", "osl_scale", "ttft_scale", "tpot_scale"):
        yield key, 1.0
    yield "burstiness", problem.workload.burstiness
    if problem.workload.prefix_hit_share > 0.0:
        yield "prefix_hit_share", problem.workload.prefix_hit_share
    for key in ("budget", "power"):
        limit = getattr(problem.constraints, key)
        if limit is not None:
            yield key, limit


def tornado(problem: Problem, base: Path, share: float = SHARE, depth: Depth = Depth.SIMPLE) -> list[TornadoRow]:
    """The cost with each lever `share` lower and higher, the others as they are; the largest swing first.

    base: folder of the files that the problem names. A daily profile has no rate to scale and is left out.
    """
    here = solve(problem, base, depth).cost
    fixed = problem.inputs["workload"]["request_rate"] is None

    def cost(key: str, value: float) -> float | None:
        try:
            return solve(scenario_problem(problem, Scenario("", {key: value}), base), base, depth).cost
        except ImpossibleError:
            return None

    rows = []
    for key, value in levers(problem):
        if key == "rate_scale" and fixed:
            continue
        low, high = value * (1.0 - share), value * (1.0 + share)
        high = min(high, 1.0) if key == "prefix_hit_share" else high
        rows.append(TornadoRow(key, value, low, high, here, cost(key, low), cost(key, high)))
    return sorted(rows, key=lambda row: -row.swing)
