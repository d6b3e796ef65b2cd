"""Objectives that leave the served volume open: most goodput within limits, or most goodput per dollar.

The first reduces to the cheapest fleet at a volume. Loads are linear in the rate, so the totals of every column are
priced once and scaled; simple plans then tell, for any volume, what the best one- or two-pool fleet costs. The second
is Dinkelbach's iteration over fleets of any volume.
"""

from __future__ import annotations

import math
from dataclasses import replace

from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.solver.dinkelbach import Sold, most_per_cost
from optimizer.solver.fleet_model import Aim
from optimizer.solver.search import Effort, Found, search
from optimizer.solver.simple_plans import column_totals, price_space, simple_plans

from .build_plan import fleet_cost
from .evaluate import largest_load
from .fleet import make_fleet

TAILORED = (1.2, 1.1, 1.05, 1.02, 1.01)
"""Steps by which columns tailored to a larger volume are tried."""

MIXED = 1.05
"""Multiple of the volume of the best simple fleet at which mixed fleets are tried."""


def at_volume(instance: Instance, volume: float) -> Instance:
    """The same instance with every rate multiplied by `volume`."""
    return replace(instance, flows=replace(instance.flows, rate=instance.flows.rate * volume))


def search_at(instance: Instance, space: Columns, volume: float, aim: Aim, effort: Effort) -> Found:
    """The cheapest fleet for `volume` times the demand, as a search result of the original instance."""
    there = at_volume(instance, volume)
    columns, totals = price_space(there, space)
    found = search(there, columns, totals, aim, effort)
    return replace(found, volume=volume, route=found.route * volume)


def most_goodput(instance: Instance, space: Columns, aim: Aim, effort: Effort) -> Found:
    """The fleet that columns promise to serve the largest volume within the limits."""
    totals = column_totals(instance, space)

    def served(volume: float) -> bool:
        return bool(simple_plans(at_volume(instance, volume), space, totals.scaled(volume)))

    volume = max(largest_load(served, most=1e12, tolerance=0.01), 1e-6)
    for more in TAILORED:
        if effort.late():
            break
        there = at_volume(instance, volume * more)
        if simple_plans(there, *price_space(there, space)):
            volume *= more
    found = search_at(instance, space, volume, aim, effort)
    if effort.late():
        return found
    # Mixed fleets carry more than any simple one; whether one does is not worth a proof, as the evaluation looks too.
    richer = search_at(instance, space, volume * MIXED, aim, replace(effort, provable=0))
    return richer if richer.columns.size else found


def best_ratio(instance: Instance, space: Columns, aim: Aim, effort: Effort) -> tuple[Found, float | None]:
    """The fleet of most goodput per dollar for volumes within the objective's limits, and its relative gap.

    See `dinkelbach`, over the columns that suit the least or the largest volume; bucket shares are fixed, so serving
    only the cheap requests is no way out. It starts from the cheapest fleet for the least volume.
    """
    goal = instance.problem.objective
    least = at_volume(instance, goal.min_volume)
    columns, _ = price_space(at_volume(instance, goal.max_volume), space)
    columns, totals = price_space(least, columns)
    first = search(least, columns, totals, aim, effort)
    if not first.columns.size:
        return first, None

    def sold(found: Found) -> Sold[Found]:
        return Sold(found, found.volume, fleet_cost(least, make_fleet(least, found)))

    def richest(price: float) -> tuple[Sold[Found] | None, float]:
        asked = Aim(cost_weight=price, volume_weight=1.0, min_volume=1.0, max_volume=goal.max_volume / goal.min_volume)
        found = search(least, columns, totals, asked, effort)
        return (sold(found) if found.columns.size else None), -found.bound

    best, top = most_per_cost(richest, sold(first), first.bound / aim.cost_weight)
    volume, route = best.volume * goal.min_volume, best.fleet.route * goal.min_volume
    return replace(best.fleet, volume=volume, route=route), None if math.isinf(top) else 1.0 - best.ratio / top
