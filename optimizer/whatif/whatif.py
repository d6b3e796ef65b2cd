"""A batch of scenarios to rows: what `sweep` hands to each worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError, InputError
from optimizer.fleets.build_plan import package_versions
from optimizer.plans.proof import gap_of
from optimizer.recommend.level import Level
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .bound import MOST_PROOFS, grids, lower_bound, mixed_bound
from .physics import physics_of
from .scenario import Answer, is_simple, nothing, solve_cost, solve_full, solve_simple
from .sweep import Batch, Row, Sweep

CHEAP_LEVERS = ("price", "inventory", "owned", "owned_price", "budget", "power", "max_gpus", "max_pools")
"""What leaves the physics and the rate alone."""


class Depth(StrEnum):
    """How each scenario is solved."""

    SIMPLE = "simple"
    """Fleets of one or two pools by formula, no bound: some milliseconds where the physics is known."""
    COST = "cost"
    """The same fleets with their cost alone, not how much more they could serve."""
    FULL = "full"
    """The whole search with its bound, by formula: seconds."""
    SIMULATED = "simulated"
    """The whole search, and what it finds proven by simulation: more seconds."""


LARGEST: Mapping[Depth, int] = {Depth.SIMPLE: 128, Depth.COST: 128, Depth.FULL: 4, Depth.SIMULATED: 1}
"""Scenarios in a batch at most: some seconds of work."""
LEVELS: Mapping[Depth, Level] = {Depth.FULL: Level.QUICK, Depth.SIMULATED: Level.STANDARD}


@dataclass(frozen=True, slots=True)
class Solver:
    """Solves scenarios of one problem; picklable.

    inputs: the problem's canonical inputs as JSON; base: folder of the files that it names.
    """

    inputs: str
    base: Path
    depth: Depth

    def __call__(self, batch: Batch) -> list[Row]:
        """A row for each scenario of the batch."""
        return [{"number": number} | self.row(changes) for number, changes in batch]

    def row(self, task: Mapping[str, Any]) -> Row:
        """The row of one scenario: its name, what varied, and the answer."""
        scenario = Scenario(task["name"], task["changes"])
        shown = {"scenario": scenario.name} if scenario.name else {}
        answer = self.answer(scenario)
        if answer.cost is not None and answer.bound is None and task["grid"] is not None:
            bound = mixed_bound(scenario.changes, task["grid"], answer.cost, self.proven)
            answer = replace(answer, bound=bound, gap=gap_of(bound, answer.cost))
        return shown | {key: scenario.changes[key] for key in task["shown"]} | answer_row(answer)

    def answer(self, scenario: Scenario) -> Answer:
        """The best fleet of one scenario; where no engine can exist or no SLO be kept, an answer without one."""
        try:
            problem = self.problem(scenario)
        except ImpossibleError as error:
            return nothing(_first_sentence(error))
        return solve(problem, self.base, self.depth)

    def problem(self, scenario: Scenario) -> Problem:
        """The problem of one scenario."""
        return scenario_problem(_base_problem(self.inputs, self.base), scenario, self.base)

    def proven(self, changes: Mapping[str, Any]) -> float | None:
        """What no fleet can cost less than with some changes made [$/h]; None where none is known."""
        return lower_bound(self.problem(Scenario("", changes)), self.base)


@lru_cache(maxsize=4)
def _base_problem(inputs: str, base: Path) -> Problem:
    return problem_of_values(json.loads(inputs), "workload", base)


def solve(problem: Problem, base: Path, depth: Depth) -> Answer:
    """The best fleet for a problem.

    Goals other than the least cost, and pools for each class, need the whole search.
    """
    if depth in {Depth.SIMPLE, Depth.COST} and is_simple(problem):
        return solve_simple(problem, base) if depth is Depth.SIMPLE else solve_cost(problem, base)
    floor = physics_of(problem, base).floor
    return nothing(floor) if floor else solve_full(problem, LEVELS.get(depth, Level.QUICK))


def _first_sentence(error: InputError) -> str:
    """An error without the scenario's name, which its row has."""
    return str(error).splitlines()[0].partition(": ")[2]


def answer_row(answer: Answer) -> Row:
    """An answer as a row, ready for JSON."""
    return {
        "status": answer.status.value,
        "cost_usd_per_hour": answer.cost,
        "bound_usd_per_hour": answer.bound,
        "gap": answer.gap,
        "goodput_rps": answer.goodput,
        "goodput_per_dollar": answer.goodput_per_dollar,
        "gpus": dict(answer.gpus),
        "binding": answer.binding,
        "pools": list(answer.pools),
        "settings": list(answer.settings),
    } | ({} if answer.attainment is None else {"simulated_attainment": answer.attainment})


def sweep_of(  # noqa: PLR0917
    problem: Problem,
    base: Path,
    scenarios: Sequence[Scenario],
    shown: Sequence[str],
    depth: Depth,
    proofs: int = MOST_PROOFS,
) -> Sweep:
    """The sweep over scenarios of a problem; shown: keys whose values stand in the rows.

    Scenarios that share their physics are solved one after another, whatever their order in the table.
    proofs: of bounds at most, where whole searches do not prove them anyway.
    """
    inputs = json.dumps(problem.inputs, sort_keys=True)
    found = grids([one.changes for one in scenarios], proofs) if depth is Depth.SIMPLE else [{}] * len(scenarios)
    tasks = tuple(
        {"name": one.name, "changes": dict(one.changes), "shown": list(shown), "grid": grid}
        for one, grid in zip(scenarios, found, strict=True)
    )
    identity = {"inputs": json.loads(inputs), "depth": depth.value, "versions": package_versions()}
    return Sweep(tasks, Solver(inputs, base, depth), identity, kinship, LARGEST[depth])


def kinship(task: Mapping[str, Any]) -> str:
    """Tasks of equal text share their physics and rate; those of near texts come near each other.

    >>> kinship({"name": "", "changes": {"rate": 2.0, "price.H100": 1.0, "ttft": "1s"}, "shown": []})
    '[["ttft", "1s"]] [["rate", 2.0]]'
    """
    costly = {key: value for key, value in task["changes"].items() if key.partition(".")[0] not in CHEAP_LEVERS}
    rates = [[key, costly.pop(key)] for key in list(costly) if key in {"rate", "rate_scale", "workload.request_rate"}]
    return f"{json.dumps(list(map(list, costly.items())))} {json.dumps(rates)}"


def check_scenarios(problem: Problem, base: Path, scenarios: Sequence[Scenario]) -> None:
    """Raise InputError for a bad key or value before any work; each by itself, not in every combination."""
    values: dict[str, list[Any]] = {}
    for scenario in scenarios:
        for key, value in scenario.changes.items():
            values.setdefault(key, []).append(value)
    for key, several in values.items():
        for value in _telling(several):
            with suppress(ImpossibleError):  # a row that says so
                scenario_problem(problem, Scenario("", {key: value}), base)


def _telling(values: Sequence[Any]) -> list[Any]:
    """Values one of which is bad if any is: every text; of numbers, which have bounds, the ends and a fraction."""
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    fraction = [value for value in numbers if value % 1.0][:1]
    others = {str(value): value for value in values if isinstance(value, bool) or not isinstance(value, int | float)}
    return [*dict.fromkeys([*numbers[:1], *numbers[-1:], *fraction]), *others.values()]
