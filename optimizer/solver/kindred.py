"""What else could be bought: the cheapest fleets of other engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
    names = np.array([[f"{kind} {role.value}" for kind in kinds] for role in ROLES], dtype=np.str_)
    return np.asarray(names[columns.role, columns.shape])


def different_fleets(
    instance: Instance, priced: tuple[Columns, Totals], best: Found, solve: Solve, count: int
) -> list[Kindred]:
    """The `count` cheapest fleets that are different from `best` and from one another, cheapest first.

    solve: finds the cheapest fleet of some columns; the list is as good as that is.

    Different is a fleet that buys other engines (role, accelerator, GPUs of an engine), not a replica more. A fleet
    that differs from all before it and buys no engine beside theirs lacks one of the engines of each; so the next
    best is found among the spaces that leave one engine of every fleet so far out (Lawler 1972). A fleet that comes up
    again, in another space, is branched on there too: what lies behind it in that space is in no other.
    """
    found: list[Kindred] = []
    spaces = _Spaces(instance, priced, solve)
    open_ = spaces.beneath(Kindred((), best))
    while open_ and len(found) < count:
        open_.sort(key=lambda one: (one.found.objective, one.without))
        nearest = open_.pop(0)
        bought = _bought(instance, nearest.found)
        if all(bought != _bought(instance, one.found) for one in found):
            found.append(nearest)
        if len(found) < count:
            open_ += spaces.beneath(nearest)
    return found


def _bought(instance: Instance, found: Found) -> frozenset[str]:
    return frozenset(engine_kinds(instance, found.columns).tolist())


@dataclass(slots=True)
class _Spaces:
    """The spaces that leave some engines out, each looked at once; seen: the best fleet of each, by what it lacks."""

    instance: Instance
    priced: tuple[Columns, Totals]
    solve: Solve
    seen: dict[frozenset[str], Found] = field(default_factory=dict)

    def beneath(self, fleet: Kindred) -> list[Kindred]:
        """The best fleet of each new space that leaves out one more engine of a fleet; those that have one."""
        rivals = []
        for name in sorted(_bought(self.instance, fleet.found)):
            without = frozenset({*fleet.without, name})
            if without in self.seen:
                continue
            self.seen[without] = found = self._best(without)
            if found.columns.size:
                rivals.append(Kindred(tuple(sorted(without)), found))
        return rivals

    def _best(self, without: frozenset[str]) -> Found:
        """The best fleet of a space: that of a larger one where it buys nothing that is left out here."""
        for larger, found in self.seen.items():
            if larger < without and not without & _bought(self.instance, found):
                return found
        columns, totals = self.priced
        some = np.flatnonzero(~np.isin(engine_kinds(self.instance, columns), sorted(without)))
        return self.solve(columns.take(some), totals.take(some))
