"""Shadow prices: what one more GPU, dollar or watt of a limit would save, by dual and by solving again.

The linear relaxation of the floor (`rivals.floor`) gives the rate of saving at the margin (`dual`), and solving it
again with the limit a little wider the same as a finite difference. Whole engines cannot be bought by the margin:
`whole` is what the next useful amount saves, found by widening the limit until a cheaper fleet of one or two pools
fits.

A budget never makes the fleet that meets a demand cheaper; what it is worth is how much more demand could be served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer.fleets.error_bars import planned_instance
from optimizer.loads.settings import make_settings
from optimizer.search.bound import floor_matrices
from optimizer.search.fleet_program import Aim, aim_of, write_model
from optimizer.search.program import solve
from optimizer.search.search import FleetSearch
from search_spaces.engines import load_engine_overhead
from search_spaces.problem import Goal, Problem

from .physics import Physics, physics_of
from .scenario import cheapest

STEP = 1e-3
"""Share by which a limit is widened for the finite difference."""
WIDER = (1, 2, 4, 8, 16, 32, 64)
"""GPUs, or per cent, by which a limit is widened in whole fleets, until it saves something."""


@dataclass(frozen=True, slots=True)
class ShadowPrice:
    """What one unit more of a limit is worth.

    limit: its name, such as "inventory H200"; upper, unit: its value. worth: unit of what it brings, "$/h" saved or
    "req/s" served. dual, difference [worth per unit]: at the margin of the linear relaxation, from its dual and from
    solving it again. wider [unit], whole [$/h]: the least widening tried that makes a cheaper whole fleet possible, and
    what that saves; None where none does.
    """

    limit: str
    upper: float
    unit: str
    worth: str
    dual: float
    difference: float
    wider: float | None
    whole: float | None


@dataclass(frozen=True, slots=True)
class Relaxation:
    """Value of the linear relaxation, and its duals by limit: $/h saved or req/s served, and those per unit."""

    value: float
    duals: dict[str, float]


MOST_MORE = 1e3
"""Multiple of the demand up to which a limit may let more be served."""


def shadow_prices(problem: Problem, base: Path) -> list[ShadowPrice]:
    """The shadow price of every limit that the problem states; none for one without which no fleet is known.

    base: folder of the files that the problem names.
    """
    stated = list(_limits(problem))
    if not stated or problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        return []
    instance = planned_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    settings = make_settings(instance)
    physics = physics_of(problem, base)
    cheapest_now = problem.objective.goal is Goal.MIN_COST
    relaxed = {goodput: _relax(FleetSearch.of(instance, settings), goodput=goodput) for goodput in sorted({
        not cheapest_now or name == "budget" for name, _, _ in stated
    })}  # fmt: skip
    rows = []
    for name, upper, unit in stated:
        goodput = not cheapest_now or name == "budget"
        step, now = STEP * upper, relaxed[goodput]
        more_of_it = replace(instance, problem=with_limit(problem, name, upper + step))
        wider = _relax(FleetSearch.of(more_of_it, settings), goodput=goodput)
        if now is None or wider is None:
            continue
        more, whole = (None, None) if goodput else _in_whole_fleets(problem, physics, (name, upper, unit))
        saved = now.value - wider.value
        difference = saved / step if abs(saved) > 1e-9 * abs(now.value) else 0.0
        worth = "req/s" if goodput else "$/h"
        rows.append(ShadowPrice(name, upper, unit, worth, now.duals[name], difference, more, whole))
    return rows


def _relax(known: FleetSearch, *, goodput: bool) -> Relaxation | None:
    """Solve the linear relaxation of the floor, for the least cost or for the most goodput."""
    instance = known.instance
    aim = Aim(0.0, 1.0, 0.0, MOST_MORE) if goodput else aim_of(instance.problem)
    scale = float(instance.flows.rate.sum()) if goodput else 1.0 / aim.cost_weight
    matrices = floor_matrices(known)
    if not matrices.size:
        return None
    model = write_model(matrices, aim)
    solution = solve(model.program, relaxed=True)
    if not solution.x.size:
        return None
    duals = {name: (max(-float(solution.duals[row]), 0.0) + 0.0) * scale for name, row in model.limits.items()}
    return Relaxation(solution.objective * scale, duals)


def _limits(problem: Problem) -> Iterator[tuple[str, float, str]]:
    """Limits that are stated: name, value and unit."""
    for offer in problem.offers:
        if offer.inventory:
            yield f"inventory {offer.accelerator.name}", float(offer.inventory), "GPU"
    limits = problem.constraints
    for name, upper, unit in (
        ("budget", limits.budget, "$/h"),
        ("power", limits.power, "W"),
        ("max_gpus", limits.max_gpus, "GPU"),
    ):
        if upper:
            yield name, float(upper), unit


def with_limit(problem: Problem, name: str, upper: float) -> Problem:
    """The problem with one limit changed; the relaxation takes fractions of a GPU too."""
    kind, _, card = name.partition(" ")
    if kind != "inventory":
        changed: dict[str, Any] = {kind: upper}
        return replace(problem, constraints=replace(problem.constraints, **changed))
    offers = [
        replace(offer, inventory=upper) if offer.accelerator.name == card else offer  # type: ignore[arg-type]
        for offer in problem.offers
    ]
    return replace(problem, offers=tuple(offers))


def _in_whole_fleets(
    problem: Problem, physics: Physics, limit: tuple[str, float, str]
) -> tuple[float | None, float | None]:
    """How much more of a limit first makes a cheaper fleet possible, and what that saves [$/h]."""
    name, upper, unit = limit
    here = None if physics.floor else cheapest(problem, physics)
    if here is None:
        return None, None
    for count in WIDER:
        more = float(count) if unit == "GPU" else upper * count / 100.0
        there = cheapest(with_limit(problem, name, upper + more), physics)
        if there is not None and there.cost < here.cost * (1.0 - 1e-9):
            return more, here.cost - there.cost
    return None, None
