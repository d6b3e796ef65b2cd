"""What else could be bought: the cheapest fleets of other engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.columns import ROLES, Columns
from optimizer.loads.instance import Instance
from search_spaces.enumeration import precision_told

from .search import Found
from .simple_plans import Totals

IntArray = NDArray[np.int64]

Solve = Callable[[Columns, Totals], Found]
"""Finds the cheapest fleet of some columns."""


@dataclass(frozen=True, slots=True)
class Kindred:
    """A fleet that differs from the best one in its engines: without what, and what was found."""

    without: tuple[str, ...]
    found: Found


def engine_kinds(instance: Instance, columns: Columns) -> NDArray[np.str_]:
    """Name of what each column buys: GPUs, accelerator, precision and role of an engine, such as "2 H100 prefill"."""
    tables, offers = instance.tables, instance.problem.offers
    kinds = [
        f"{gpus:.0f} {offers[shape.offer].accelerator.name}{precision_told(instance.problem, shape)}"
        for gpus, shape in zip(tables.gpus, tables.shapes, strict=True)
    ]
    names = [f"{kinds[shape]} {ROLES[role].value}" for role, shape in zip(columns.role, columns.shape, strict=True)]
    return np.array(names, dtype=np.str_)


def different_fleets(
    instance: Instance, priced: tuple[Columns, Totals], best: Found, solve: Solve, count: int
) -> list[Kindred]:
    """The `count` cheapest fleets that are different from `best` and from one another, cheapest first.

    solve: finds the cheapest fleet of some columns; the list is as good as that is.

    Different is a fleet that buys other engines (role, accelerator, GPUs of an engine), not a replica more. A fleet
    that differs from all before it and buys no engine beside theirs lacks one of the engines of each; so the next
    best is found among the spaces that leave one engine of every fleet so far out (Lawler 1972).
    """
    found: list[Kindred] = []
    open_ = _without_one(instance, priced, Kindred((), best), solve)
    while open_ and len(found) < count:
        open_.sort(key=lambda one: (one.found.objective, one.without))
        nearest = open_.pop(0)
        bought = _bought(instance, nearest.found)
        if any(bought == _bought(instance, one.found) for one in found):
            continue
        found.append(nearest)
        if len(found) < count:
            open_ += _without_one(instance, priced, nearest, solve)
    return found


def _bought(instance: Instance, found: Found) -> frozenset[str]:
    return frozenset(engine_kinds(instance, found.columns).tolist())


def _without_one(instance: Instance, priced: tuple[Columns, Totals], fleet: Kindred, solve: Solve) -> list[Kindred]:
    """The best fleet of each space that leaves out one more engine of a fleet; those that have one."""
    columns, totals = priced
    kind = engine_kinds(instance, columns)
    rivals = []
    for name in sorted(_bought(instance, fleet.found)):
        without = tuple(sorted({*fleet.without, name}))
        some = np.flatnonzero(~np.isin(kind, without))
        found = solve(columns.take(some), totals.take(some))
        if found.columns.size:
            rivals.append(Kindred(without, found))
    return rivals
