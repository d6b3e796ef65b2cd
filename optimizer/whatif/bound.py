"""How far from the cheapest of all fleets each row of a sweep can be: bounds proven at a few prices, held in between.

The least cost of any fleet is a concave function of the prices, for it is the least of many that are linear in them
(Eisner and Severance 1976): between prices at which a bound is proven, the same mixture of the bounds is one. So rows
that differ in prices alone share proofs. A budget is left out of them, as it forbids other fleets at other prices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from optimizer.loads import columns
from optimizer.loads.instance import Instance
from optimizer.recommend.optimize import aim_of
from optimizer.solver.search import Effort, search
from optimizer.solver.simple_plans import price_space
from search_spaces.loader import problem_of_values
from search_spaces.problem import Goal, Problem

from .physics import Physics, at_rate, physics_of
from .scenario import cheapest

EFFORT = Effort()
MOST_PROOFS = 24
"""Proofs of a sweep, a few seconds each, that nobody has to ask for."""
PRICES = ("price", "owned_price")
"""Levers of which the cost of every fleet is a linear function."""

CLOSE = 1e-3
"""A bound that is so near to the cost is not sharpened [1]."""

Changes = Mapping[str, Any]
Grid = Mapping[str, Sequence[float]]
"""Prices at which bounds may be proven, by lever, ascending; without a lever: at the scenario itself."""


def grids(changes: Sequence[Changes], most: int) -> list[Grid | None]:
    """For each scenario the prices at which a bound may be proven for it, about `most` combinations of all in all.

    Scenarios that differ in prices alone share some of their prices, the ends among them. None where even the ends
    would be too many.
    """
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(changes):
        others = {key: value for key, value in one.items() if not _is_price(key, value)}
        groups.setdefault(json.dumps(others, sort_keys=True), []).append(number)
    found: list[Grid | None] = [None] * len(changes)
    each = most / max(len(groups), 1)
    for numbers in groups.values():
        keys = [key for key, value in changes[numbers[0]].items() if _is_price(key, value)]
        values = [sorted({changes[number][key] for number in numbers}) for key in keys]
        count = _along([len(several) for several in values], each)
        grid = {key: _some(several, count) for key, several in zip(keys, values, strict=True)}
        if math.prod(map(len, grid.values())) <= each:
            for number in numbers:
                found[number] = grid
    return found


def _is_price(key: str, value: Any) -> bool:
    return key.partition(".")[0] in PRICES and isinstance(value, int | float)


def _along(sizes: Sequence[int], most: float) -> int:
    """Prices of each lever, at least two where there are several, so that there are at most so many combinations."""
    count = max(sizes, default=1)
    while count > 2 and math.prod(min(count, size) for size in sizes) > most:
        count -= 1
    return count


def _some(values: Sequence[float], count: int) -> list[float]:
    """At most `count` of the values, evenly, both ends among them."""
    last = len(values) - 1
    if last < count:
        return list(values)
    return [values[round(step * last / (count - 1))] for step in range(count)]


def mixed_bound(changes: Changes, grid: Grid, cost: float, prove: Callable[[Changes], float | None]) -> float | None:
    """A bound for one scenario from those proven at the corners of a cell of the grid that it is in [$/h].

    The whole grid is the first cell; it is halved around the scenario until the bound is close to the cost. None where
    no fleet is known at some corner. At most the cost: one that only its evaluation shows to hold can be below.
    """
    cell = {key: (0, len(values) - 1) for key, values in grid.items()}
    best: float | None = None
    while True:
        ends = {key: (grid[key][low], grid[key][high]) for key, (low, high) in cell.items()}
        proven = [(share, prove(corner)) for share, corner in _corners(changes, ends)]
        if all(bound is not None for _, bound in proven):
            mixed = math.fsum(share * bound for share, bound in proven if bound is not None)
            best = min(max(mixed, best or 0.0), cost)
        halved = {key: _half(changes[key], grid[key], *ends) for key, ends in cell.items()}
        if halved == cell or (best is not None and best >= cost * (1.0 - CLOSE)):
            return best
        cell = halved


def _half(value: float, values: Sequence[float], low: int, high: int) -> tuple[int, int]:
    """The half of a range of a grid that a value is in; a range between neighbours is left as it is."""
    middle = (low + high) // 2
    if middle == low:
        return low, high
    return (low, middle) if value <= values[middle] else (middle, high)


def _corners(changes: Changes, ends: Mapping[str, tuple[float, float]]) -> Iterator[tuple[float, Changes]]:
    """The corners of the cell that some prices are in, with the share of each of which they are the mixture.

    >>> list(_corners({"price.H100": 3.0, "rate": 5}, {"price.H100": (2.0, 6.0)}))
    [(0.75, {'price.H100': 2.0, 'rate': 5}), (0.25, {'price.H100': 6.0, 'rate': 5})]
    """
    axes = []
    for key, (low, high) in ends.items():
        above = (changes[key] - low) / (high - low) if high > low else 0.0
        axes.append([(share, key, at) for share, at in ((1.0 - above, low), (above, high)) if share > 0.0])
    for corner in product(*axes):
        yield math.prod(share for share, _, _ in corner), {**changes, **{key: at for _, key, at in corner}}


def lower_bound(problem: Problem, base: Path) -> float | None:
    """What no fleet of columns that holds its limits, the budget apart, can cost less than [$/h]; None where unknown.

    base: folder of the files that the problem names.
    """
    if problem.objective.goal is not Goal.MIN_COST:
        return None
    limits = problem.inputs["constraints"] | {"budget": None}
    return _proven(json.dumps(dict(problem.inputs) | {"name": "bound", "constraints": limits}, sort_keys=True), base)


@lru_cache(maxsize=256)
def _proven(inputs: str, base: Path) -> float | None:
    problem = problem_of_values(json.loads(inputs), "scenario", base)
    physics = physics_of(problem, base)
    pick = None if physics.floor else cheapest(problem, physics)
    if pick is None:
        return None
    instance = priced_instance(problem, physics, pick.way)
    aim = aim_of(problem)
    space, totals = price_space(instance, columns.make_columns(instance, columns.Grid()))
    found = search(instance, space, totals, aim, EFFORT)
    return min(found.bound / aim.cost_weight, pick.cost) if math.isfinite(found.bound) else pick.cost


def priced_instance(problem: Problem, physics: Physics, way: int) -> Instance:
    """The instance of one way of some physics at the rate, prices and limits of a problem."""
    instance = at_rate(physics.ways[way].instance, problem.workload.request_rate)
    prices = [offer.usd_per_hour for offer in problem.offers]
    tables = instance.tables
    usd = tables.gpus * [prices[offer] for offer in tables.offer]
    return replace(instance, problem=problem, tables=replace(tables, usd_per_hour=usd))
