"""What else could be bought, and what the limits cost: fleets of other kinds, and the worth of one unit more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.problem import Constraints, Offer, Problem

from .columns import ROLES, Columns
from .fleet_model import Aim
from .instance import Instance
from .search import Effort, Found, search
from .simple_plans import Totals, column_totals

IntArray = NDArray[np.int64]

SAME_COST = 1e-6
"""Relative difference of costs below which two fleets cost the same."""


@dataclass(frozen=True, slots=True)
class Kindred:
    """A fleet that differs from the best one in its engines: without what, and what was found."""

    without: tuple[str, ...]
    found: Found


def engine_kinds(instance: Instance, columns: Columns) -> NDArray[np.str_]:
    """Name of what each column buys: GPUs, accelerator and role of an engine, such as "2 H100 prefill"."""
    tables, offers = instance.tables, instance.problem.offers
    names = [
        f"{gpus:.0f} {offers[offer].accelerator.name} {ROLES[role].value}"
        for role, gpus, offer in zip(columns.role, tables.gpus[columns.shape], tables.offer[columns.shape], strict=True)
    ]
    return np.array(names, dtype=np.str_)


def different_fleets(
    instance: Instance, priced: tuple[Columns, Totals], best: Found, how: tuple[Aim, Effort], count: int
) -> list[Kindred]:
    """The `count` cheapest fleets that are different from `best` and from one another, cheapest first.

    Different is a fleet that buys other engines (role, accelerator, GPUs of an engine), not a replica more. A fleet
    that differs from all before it and buys no engine beside theirs lacks one of the engines of each; so the next
    best is found among the spaces that leave one engine of every fleet so far out (Lawler 1972).
    """
    found: list[Kindred] = []
    open_ = _without_one(instance, priced, Kindred((), best), how)
    while open_ and len(found) < count:
        open_.sort(key=lambda one: (one.found.objective, one.without))
        nearest = open_.pop(0)
        bought = _bought(instance, nearest.found)
        if any(bought == _bought(instance, one.found) for one in found):
            continue
        found.append(nearest)
        if len(found) < count:
            open_ += _without_one(instance, priced, nearest, how)
    return found


def _bought(instance: Instance, found: Found) -> frozenset[str]:
    return frozenset(engine_kinds(instance, found.columns).tolist())


def _without_one(
    instance: Instance, priced: tuple[Columns, Totals], fleet: Kindred, how: tuple[Aim, Effort]
) -> list[Kindred]:
    """The best fleet of each space that leaves out one more engine of a fleet; those that have one."""
    columns, totals = priced
    kind = engine_kinds(instance, columns)
    rivals = []
    for name in sorted(_bought(instance, fleet.found)):
        without = tuple(sorted({*fleet.without, name}))
        some = np.flatnonzero(~np.isin(kind, without))
        found = search(instance, columns.take(some), totals.take(some), *how)
        if found.columns.size:
            rivals.append(Kindred(without, found))
    return rivals


@dataclass(frozen=True, slots=True)
class ShadowPrice:
    """What one unit more of a limit saves [$/h per unit], by searching again with `added` units more.

    saved: [$/h per unit]; zero where the limit does not bind.
    """

    limit: str
    where: str
    unit: str
    added: float
    saved: float


def shadow_prices(instance: Instance, columns: Columns, best: Found, how: tuple[Aim, Effort]) -> list[ShadowPrice]:
    """The worth of one unit more of every limit in force, largest first: inventories by a GPU, others by a tenth.

    columns: those that the search looked at.
    """
    aim, effort = how
    prices = []
    for limit, where, unit, added, problem in _relaxed(instance.problem):
        there = replace(instance, problem=problem)
        found = search(there, columns, column_totals(there, columns), aim, effort)
        saved = max(best.objective - found.objective, 0.0) / aim.cost_weight
        prices.append(ShadowPrice(limit, where, unit, added, saved / added if saved > SAME_COST else 0.0))
    return sorted(prices, key=lambda one: (-one.saved * one.added, one.limit, one.where))


def _relaxed(problem: Problem) -> Sequence[tuple[str, str, str, float, Problem]]:
    """Every limit in force with some more of it: its name, where, unit, how much more, and the problem then."""
    limits = problem.constraints
    rows: list[tuple[str, str, str, float, Problem]] = []
    for index, offer in enumerate(problem.offers):
        if offer.inventory is not None:
            offers = _with(problem.offers, index, replace(offer, inventory=offer.inventory + 1))
            rows.append(("inventory", offer.accelerator.name, "GPU", 1.0, replace(problem, offers=offers)))
    for name, unit, value in (("budget", "$/h", limits.budget), ("power", "W", limits.power)):
        if value is not None:
            rows.append((name, "fleet", unit, 0.1 * value, _constrained(problem, **{name: 1.1 * value})))
    for name, unit, most in (("max_gpus", "GPU", limits.max_gpus), ("max_pools", "pool", limits.max_pools)):
        if most is not None:
            rows.append((name, "fleet", unit, 1.0, _constrained(problem, **{name: most + 1})))
    return rows


def _with(offers: tuple[Offer, ...], index: int, offer: Offer) -> tuple[Offer, ...]:
    return (*offers[:index], offer, *offers[index + 1 :])


def _constrained(problem: Problem, **changes: float) -> Problem:
    changed: Constraints = replace(problem.constraints, **changes)  # type: ignore[arg-type]
    return replace(problem, constraints=changed)
