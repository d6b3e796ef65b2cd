"""A sweep of scenarios: a row for each, then simulations of the fleets of the most rows.

The rows of a fleet that did not hold are solved again for one that does. The choice depends on the rows alone, so that
it is the same whoever does the work.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError
from optimizer.fleets.build_plan import package_versions
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .answer import CHEAP_LEVERS, Answer, Effort, answer, answer_row, nothing
from .workers import Batch, Journal, Progress, Row, Runner, Task

LARGEST: Mapping[Effort, int] = {Effort.SIMPLE: 128, Effort.FULL: 16, Effort.SIMULATED: 1}
"""Scenarios in a batch at most: some seconds of work."""
MOST_FULL = 64
"""Scenarios of a sweep up to which each gets the whole search that nobody has to ask for."""
INNER = ("fleet", "refuted_fleets")
"""Keys of a row that are for the sweep alone: what tells its fleet, and those that were refuted, from every other."""


@dataclass(frozen=True, slots=True)
class Solver:
    """Solves scenarios of one problem; picklable.

    inputs: the problem's canonical inputs as JSON; base: folder of the files that it names; proven: whether whole
    searches by formula state a bound.
    """

    inputs: str
    base: Path
    effort: Effort
    proven: bool

    def __call__(self, batch: Batch) -> list[Row]:
        """A row for each task of the batch."""
        return [{"number": number} | self.row(task) for number, task in batch]

    def row(self, task: Task) -> Row:
        """The row of one scenario: its name, what varied, and the answer; without a fleet where no engine can exist."""
        row = {"scenario": task["name"]} if task["name"] else {}
        row |= {key: task["changes"][key] for key in task["shown"]}
        try:
            best = self.solve(Scenario(task["name"], task["changes"]), simulated=task["simulated"])
        except ImpossibleError as error:  # the row has the scenario's name, with which the message begins
            best = nothing(str(error).splitlines()[0].partition(": ")[2])
        refuted = [missed.case.key for missed in best.refuted if missed.case is not None]
        return row | answer_row(best) | {"fleet": best.case.key if best.case else "", "refuted_fleets": refuted}

    def solve(self, scenario: Scenario, *, simulated: bool) -> Answer:
        """The answer to one scenario."""
        problem = scenario_problem(_base_problem(self.inputs, self.base), scenario, self.base)
        return answer(problem, self.effort, simulated=simulated, proven=self.proven)


@lru_cache(maxsize=4)
def _base_problem(inputs: str, base: Path) -> Problem:
    return problem_of_values(json.loads(inputs), "workload", base)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Scenarios to solve, how, and how many of their fleets are simulated at most, those in place of others apart.

    key: digest of all that the rows depend on.
    """

    tasks: tuple[Task, ...]
    solver: Solver
    looks: int
    key: str


def sweep_of(  # noqa: PLR0917
    problem: Problem,
    base: Path,
    scenarios: Sequence[Scenario],
    shown: Sequence[str],
    effort: Effort | None = None,
    gap: bool | None = None,
    looks: int = 0,
) -> Sweep:
    """The sweep over scenarios of a problem; shown: keys whose values stand in the rows.

    effort: how each is solved; None: by the whole search, by formula, where there are no more than MOST_FULL or where
    gaps are asked for, else simply. gap: whether whole searches by formula state their gap; None: they do.
    """
    tasks = tuple(
        {"name": scenario.name, "changes": dict(scenario.changes), "shown": list(shown), "simulated": False}
        for scenario in scenarios
    )
    if effort is None:
        effort = Effort.FULL if gap or len(tasks) <= MOST_FULL else Effort.SIMPLE
    solver = Solver(json.dumps(problem.inputs, sort_keys=True), base, effort, gap is not False)
    identity = [problem.inputs, str(effort), gap, looks, package_versions(), tasks]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return Sweep(tasks, solver, looks, key)


def run_sweep(
    sweep: Sweep, executor: Executor, workers: int, journal: Journal | None = None, progress: Progress | None = None
) -> list[Row]:
    """Solve what the journal does not hold yet, and return all rows in the order of the scenarios.

    Scenarios that share engines and demand are solved one after another, whatever their order. Raises what a scenario
    raises; rows that were finished before stay in the journal.
    """
    runner = Runner(sweep.solver, executor, workers, journal, progress, LARGEST[sweep.solver.effort])
    count = len(sweep.tasks)
    rows = runner.run(sorted(enumerate(sweep.tasks), key=lambda row: _demand(row[1])))
    fleets = Counter(rows[number]["fleet"] for number in range(count) if rows[number]["fleet"])
    chosen = [fleet for fleet, _ in fleets.most_common(sweep.looks)]
    first = {rows[number]["fleet"]: number for number in reversed(range(count))}
    again, seen, total = sorted(first[fleet] for fleet in chosen), dict[str, float](), count
    refuted = set[str]()
    while again:
        tasks = [(number + count, {**sweep.tasks[number], "simulated": True}) for number in again]
        total += len(again)
        for number, row in runner.run(tasks, total).items():
            rows[number - count] = row | {"number": number - count, "again": True}
            refuted.update(row["refuted_fleets"])
            if row["simulated"]:
                seen[row["fleet"]] = row["simulated_attainment"]
        again = [number for number, row in sorted(rows.items()) if row["fleet"] in refuted and "again" not in row]
    return [_shown(rows[number], seen) for number in range(count)]


def _shown(row: Row, seen: Mapping[str, float]) -> Row:
    """The row of a scenario with what was seen of its fleet."""
    if row["fleet"] in seen:
        row = row | {"simulated": True, "simulated_attainment": seen[row["fleet"]]}
    return {key: value for key, value in row.items() if key not in {*INNER, "again"}}


def _demand(task: Task) -> str:
    """What scenarios share that differ in prices and limits alone."""
    changes = task["changes"].items()
    demand = [[key, value] for key, value in changes if key.partition(".")[0] not in CHEAP_LEVERS]
    return json.dumps([task["name"], sorted(demand, key=str)], default=str)


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
