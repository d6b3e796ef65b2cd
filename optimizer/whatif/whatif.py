"""A batch of scenarios to rows: what `sweep` hands to each worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.errors import ImpossibleError, InputError
from costmodel.metric import Metric
from optimizer.fleets.build_plan import package_versions
from optimizer.recommend.search import Level
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

from .bound import floor_cost, lower_bound, place_of
from .journal_rows import RowFault
from .looks import Looks
from .physics import Engines, physics_of
from .proofs import Proofs
from .refuted import NONE, Refuted, refuted_of
from .scenario import Answer, answer_row, is_simple, nothing, solve_cost, solve_full, solve_simple
from .second_look import family_of, look_at
from .sweep import Batch, OneRound, Row, Sweep, Task, varied

CHEAP_LEVERS = ("price", "prices", "inventory", "owned", "owned_price", "budget", "power", "max_gpus", "max_pools")
"""What leaves the physics and the rate alone."""
SLO_LEVERS = ("slo", *Metric, "attainment", "ttft_scale", "tpot_scale", "slo_scale")
"""What leaves the engines alone."""


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

    bounded: bool = False
    """Whether rows say how they share proofs with others."""

    def __call__(self, batch: Batch) -> list[Row]:
        """A row for each task of the batch: of a scenario, with what is proven of one, or seen of its fleet."""
        return [{"number": number} | self.done(task) for number, task in batch]

    def done(self, task: Task) -> Row:
        """What comes of a task."""
        return self.proof(task) if "proof" in task else self.look(task) if "fleet" in task else self.row(task)

    def row(self, task: Task) -> Row:
        """The row of one scenario: its name, what varied, and the answer; without a fleet where no engine can exist.

        A task may name fleets that were refuted.
        """
        shown = varied(task)
        try:
            problem = self.problem(Scenario(task["name"], task["changes"]))
        except ImpossibleError as error:
            return shown | answer_row(nothing(_first_sentence(error)))
        answer = solve(problem, self.base, self.depth, refuted_of(task.get("refuted", ())))
        if answer.pick is not None:
            shown |= {"fleet": {"family": family_of(problem), "way": answer.pick.way, "pools": answer.pick.pools}}
        if answer.cost is None or answer.bound is not None or not self.bounded:
            return shown | answer_row(answer)
        floor = min(floor_cost(problem, physics_of(problem, self.base)), answer.cost)
        return shown | answer_row(replace(answer, bound=floor)) | {"place": asdict(place_of(problem))}

    def look(self, task: Task) -> Row:
        """What a simulation shows of the fleet of one scenario."""
        problem, fleet = self.problem(Scenario("", task["changes"])), task["fleet"]
        pools: tuple[Engines, ...] = tuple(tuple(one) for one in fleet["pools"])
        physics, load = physics_of(problem, self.base), problem.workload
        reached, fault = look_at(physics, load.request_rate, problem.seed, fleet["way"], pools)
        return {"attainment": reached, "fault": fault}

    def proof(self, task: Task) -> Row:
        """What is proven of one scenario."""
        return {"bound": lower_bound(self.problem(Scenario("", task["changes"])), self.base)}

    def problem(self, scenario: Scenario) -> Problem:
        """The problem of one scenario."""
        return scenario_problem(_base_problem(self.inputs, self.base), scenario, self.base)


@lru_cache(maxsize=4)
def _base_problem(inputs: str, base: Path) -> Problem:
    return problem_of_values(json.loads(inputs), "workload", base)


def solve(problem: Problem, base: Path, depth: Depth, refuted: Refuted = NONE) -> Answer:
    """The best fleet for a problem; refuted: such as are no answer, where fleets of one or two pools are asked for.

    Goals other than the least cost, and pools for each class, need the whole search.
    """
    if depth in {Depth.SIMPLE, Depth.COST} and is_simple(problem):
        return solve_simple(problem, base, refuted) if depth is Depth.SIMPLE else solve_cost(problem, base, refuted)
    floor = physics_of(problem, base).floor
    return nothing(floor) if floor else solve_full(problem, LEVELS.get(depth, Level.QUICK))


def _first_sentence(error: InputError) -> str:
    """An error without the scenario's name, which its row has."""
    return str(error).splitlines()[0].partition(": ")[2]


class Bounds(StrEnum):
    """How close the gap of each row is brought."""

    NONE = "none"
    """Not at all."""
    SHARED = "shared"
    """By a floor of its own, and by what proofs of a few rows say of the others."""
    EACH = "each"
    """By a proof of its own."""


def sweep_of(  # noqa: PLR0917
    problem: Problem,
    base: Path,
    scenarios: Sequence[Scenario],
    shown: Sequence[str],
    depth: Depth,
    bounds: Bounds = Bounds.SHARED,
    looks: int = 0,
) -> Sweep:
    """The sweep over scenarios of a problem; shown: keys whose values stand in the rows.

    Scenarios that share their physics are solved one after another, whatever their order in the table.
    bounds: where whole searches do not prove them anyway; looks: fleets that are simulated at most, see `Looks`.
    """
    inputs = json.dumps(problem.inputs, sort_keys=True)
    bounded = depth is Depth.SIMPLE and bounds is not Bounds.NONE
    tasks = tuple({"name": one.name, "changes": dict(one.changes), "shown": list(shown)} for one in scenarios)
    identity = {"inputs": json.loads(inputs), "depth": depth.value, "bounds": bounds.value, "looks": looks}
    rounds = Looks(Proofs(every=bounds is Bounds.EACH) if bounded else OneRound(), looks)
    solver = Solver(inputs, base, depth, bounded)
    identity |= {"versions": package_versions()}
    return Sweep(tasks, solver, identity, kinship, LARGEST[depth], rounds, RowFault(tasks))


def kinship(task: Task) -> str:
    """Tasks of equal text share their physics and rate; those of near texts come near each other.

    The SLOs come last, as the states of pools at one rate are the same for all of them.

    >>> kinship({"name": "", "changes": {"rate": 2.0, "price.H100": 1.0, "ttft": "1s", "isl_scale": 2.0}})
    '[["isl_scale", 2.0]] [["rate", 2.0]] [["ttft", "1s"]]'
    """
    parts: dict[str, list[list[Any]]] = {"": [], "rate": [], "slo": []}
    for key, value in task["changes"].items():
        head = key.partition(".")[0]
        if head not in CHEAP_LEVERS:
            rated = head in {"rate", "rate_scale", "growth"} or key == "workload.request_rate"
            parts["rate" if rated else "slo" if head in SLO_LEVERS else ""].append([key, value])
    return " ".join(json.dumps(part) for part in parts.values())


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
