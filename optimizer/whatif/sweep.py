"""A sweep of scenarios: a row for each, bounds on what any other fleet could save, and simulations of their fleets.

Once all rows are known the fleets of the most rows are simulated. The rows of one that did not hold are solved again
for one that does. The choice depends on the rows alone, so that it is the same whoever does the work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError
from costmodel.metric import Metric
from optimizer.fleets.build_plan import package_versions
from optimizer.plans.proof import is_below, status_of
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .scenario import (
    CHEAP_LEVERS,
    Answer,
    Depth,
    Pick,
    answer_row,
    family_of,
    floor_cost,
    lower_bound,
    nothing,
    physics_of,
    solve,
)
from .workers import Batch, Row, Sweep, Task

SLO_LEVERS = ("slo", *Metric, "attainment", "ttft_scale", "tpot_scale", "slo_scale")
"""What leaves the engines alone."""
LARGEST: Mapping[Depth, int] = {Depth.SIMPLE: 128, Depth.FULL: 4, Depth.SIMULATED: 1}
"""Scenarios in a batch at most: some seconds of work."""
MOST_PROOFS = 64
"""Scenarios of a sweep in which each gets a proof, half a second or more, that nobody has to ask for."""


def sweep_of(  # noqa: PLR0917
    problem: Problem,
    base: Path,
    scenarios: Sequence[Scenario],
    shown: Sequence[str],
    depth: Depth,
    gap: bool | None = None,
    looks: int = 0,
) -> Sweep:
    """The sweep over scenarios of a problem; shown: keys whose values stand in the rows.

    Scenarios that share their physics are solved one after another, whatever their order in the table.
    gap: whether rows by formula are proven to be near the cheapest of all fleets; None: where there are no more than
    MOST_PROOFS, else by a floor that costs no time. looks: fleets that are simulated at most, apart from those in place
    of others.
    """
    inputs = json.dumps(problem.inputs, sort_keys=True)
    tasks = tuple(
        {"name": scenario.name, "changes": dict(scenario.changes), "shown": list(shown)} for scenario in scenarios
    )
    bounded = depth is Depth.SIMPLE and gap is not False
    proven = bounded and (gap is True or len(tasks) <= MOST_PROOFS)
    identity = {"inputs": json.loads(inputs), "depth": depth.value, "gap": gap, "looks": looks}
    identity |= {"versions": package_versions()}
    solver = Solver(inputs, base, depth, bounded, proven)
    return Sweep(tasks, solver, identity, kinship, LARGEST[depth], Looks(looks))


@dataclass(frozen=True, slots=True)
class Solver:
    """Solves scenarios of one problem; picklable.

    inputs: the problem's canonical inputs as JSON; base: folder of the files that it names; bounded: whether rows have
    a bound on the cost of any other fleet; proven: whether that is the one of whole engines.
    """

    inputs: str
    base: Path
    depth: Depth
    bounded: bool = False
    proven: bool = False

    def __call__(self, batch: Batch) -> list[Row]:
        """A row for each task of the batch."""
        return [{"number": number} | self.row(task) for number, task in batch]

    def row(self, task: Task) -> Row:
        """The row of one scenario: its name, what varied, and the answer; without a fleet where no engine can exist.

        A task that is `of` another solves its scenario once more, its fleet simulated.
        """
        row = {"scenario": task["name"]} if task["name"] else {}
        row |= {key: task["changes"][key] for key in task["shown"]} | {"fleet": "", "seen": []}
        try:
            problem = self.problem(Scenario(task["name"], task["changes"]))
        except ImpossibleError as error:  # the row has the scenario's name, with which the message begins
            return row | answer_row(nothing(str(error).splitlines()[0].partition(": ")[2]))
        answer = solve(problem, self.base, Depth.CONFIRMED if "of" in task else self.depth)
        row |= answer_row(answer)
        if "of" in task:
            return row | {"seen": [*_seen(problem, answer)]}
        if answer.pick is not None:
            row |= {"fleet": fleet_key(problem, answer.pick)}
        if answer.cost is None or answer.bound is not None or not self.bounded:
            return row
        floor = lower_bound(problem, self.base) if self.proven else None
        return with_bound(row, max(floor or 0.0, floor_cost(problem, physics_of(problem, self.base))))

    def problem(self, scenario: Scenario) -> Problem:
        """The problem of one scenario."""
        return scenario_problem(_base_problem(self.inputs, self.base), scenario, self.base)


@lru_cache(maxsize=4)
def _base_problem(inputs: str, base: Path) -> Problem:
    return problem_of_values(json.loads(inputs), "workload", base)


def fleet_key(problem: Problem, pick: Pick) -> str:
    """What tells a fleet, and all that its simulation depends on, from every other."""
    return json.dumps([family_of(problem), *pick.fleet])


def _seen(problem: Problem, answer: Answer) -> Iterator[tuple[str, float, str]]:
    """The fleets that were simulated for an answer: its own, and those that did not hold."""
    for missed in answer.refuted:
        if missed.pick is not None:
            yield fleet_key(problem, missed.pick), missed.attainment, missed.fault
    if answer.pick is not None and answer.attainment is not None:
        yield fleet_key(problem, answer.pick), answer.attainment, ""


def with_bound(row: Row, bound: float | None) -> Row:
    """A row with its gap to a bound on its cost [$/h]; as it is, where there is none."""
    cost = row["cost_usd_per_hour"]
    if bound is None or cost is None:
        return row
    bound = bound if is_below(cost, bound) else cost
    gap = 1.0 - bound / cost if cost else 0.0
    return row | {"status": status_of(gap).value, "bound_usd_per_hour": bound, "gap": gap}


def kinship(task: Task) -> str:
    """Tasks of equal text share their physics and rate; those of near texts come near each other.

    The SLOs come last, as the states of pools at one rate are the same for all of them.

    >>> kinship({"name": "", "changes": {"rate": 2.0, "price.H100": 1.0, "ttft": "1s", "isl_scale": 2.0}})
    '[["isl_scale", 2.0]] [["rate", 2.0]] [["ttft", "1s"]]'
    """
    groups: dict[str, list[list[Any]]] = {"": [], "rate": [], "slo": []}
    for key, value in task["changes"].items():
        head = key.partition(".")[0]
        if head not in CHEAP_LEVERS:
            rated = head in {"rate", "rate_scale", "growth"} or key == "workload.request_rate"
            groups["rate" if rated else "slo" if head in SLO_LEVERS else ""].append([key, value])
    return " ".join(json.dumps(group) for group in groups.values())


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


# --- simulations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Looks:
    """The simulations of a sweep's fleets; most: of fleets, apart from those in place of others.

    A scenario is solved once more, its fleet simulated, and those in its place where it misses (`cheapest_confirmed`).
    """

    most: int

    def more(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Task]:
        """The scenarios of the next round; none at the end.

        Those whose fleets were refuted for others; else one for each of the fleets that the most have.
        """
        stand = Stand.of(tasks, rows)
        having: dict[str, list[int]] = {}
        for number, fleet in stand.fleets.items():
            having.setdefault(fleet, []).append(number)
        again = [number for fleet, numbers in having.items() if stand.missed(fleet) for number in numbers]
        budget = self.most - sum(task.get("first", False) for task in tasks)
        unseen = (numbers for fleet, numbers in having.items() if fleet not in stand.seen)
        first = [numbers[0] for numbers in sorted(unseen, key=len, reverse=True)]
        chosen = sorted(again) or first[: max(budget, 0)]
        return [{**tasks[number], "of": number, "first": not again} for number in chosen]

    def finish(self, tasks: Sequence[Task], rows: Mapping[int, Row]) -> list[Row]:
        """The rows of the scenarios, each with what was seen of its fleet."""
        stand = Stand.of(tasks, rows)
        return [stand.row(number, rows[number]) for number, task in enumerate(tasks) if "of" not in task]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where things stand after some tasks.

    fleets: of the scenarios that were solved once; again: the rows of those that were solved once more; seen: of a
    fleet, the share of all requests within their SLOs, and how it misses, "" where it holds.
    """

    fleets: Mapping[int, str]
    again: Mapping[int, Row]
    seen: Mapping[str, tuple[float, str]]

    @classmethod
    def of(cls, tasks: Sequence[Task], rows: Mapping[int, Row]) -> Stand:
        """What the rows of the tasks say."""
        again = {task["of"]: rows[number] for number, task in enumerate(tasks) if "of" in task}
        seen = {fleet: (reached, fault) for row in again.values() for fleet, reached, fault in row["seen"]}
        once = (number for number, task in enumerate(tasks) if "of" not in task and number not in again)
        return cls({number: rows[number]["fleet"] for number in once if rows[number]["fleet"]}, again, seen)

    def missed(self, fleet: str) -> bool:
        """Whether a fleet was refuted."""
        return bool(self.seen.get(fleet, (0.0, ""))[1])

    def row(self, number: int, row: Row) -> Row:
        """The row of a scenario with what was seen of its fleet, or with the one that it has instead."""
        bound = row["bound_usd_per_hour"]
        if number in self.again:
            row = with_bound({**self.again[number], "number": number}, bound)
        elif row["fleet"] in self.seen:
            row = row | {"simulated": True, "simulated_attainment": self.seen[row["fleet"]][0]}
        return {key: value for key, value in row.items() if key not in {"fleet", "seen"}}
