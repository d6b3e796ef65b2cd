"""Objectives that leave the served volume open: most goodput within limits, or most goodput per dollar.

Both reduce to the cheapest fleet at a volume. Loads are linear in the rate, so the totals of every column are
priced once and scaled; simple plans then tell, for any volume, what the best one- or two-pool fleet costs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.solver.fleet_model import Aim
from optimizer.solver.search import Effort, Found, generate_from, search
from optimizer.solver.simple_plans import column_totals, price_space, simple_plans

from .evaluate import goodput_volume, largest_load
from .fleet import make_fleet, polish

TAILORED = (1.2, 1.1, 1.05, 1.02, 1.01)
"""Steps by which columns tailored to a larger volume are tried."""

MOST_MORE = 1e3
"""Up to this many times the goodput that was found, a bound is looked for."""

MIXED = (1.15, 1.08, 1.04, 1.02)
"""Multiples of the volume of the best simple fleet at which mixed fleets are tried, largest first."""

VOLUMES = 25
"""Volumes between least and most at which goodput per dollar is compared."""


def at_volume(instance: Instance, volume: float) -> Instance:
    """The same instance with every rate multiplied by `volume`."""
    return replace(instance, flows=replace(instance.flows, rate=instance.flows.rate * volume))


def search_at(instance: Instance, space: Columns, volume: float, aim: Aim, effort: Effort) -> Found:
    """The cheapest fleet for `volume` times the demand, as a search result of the original instance."""
    there = at_volume(instance, volume)
    columns, totals = price_space(there, space)
    found = search(there, columns, totals, aim, effort)
    return replace(found, volume=volume, route=found.route * volume)


def most_goodput(instance: Instance, space: Columns, aim: Aim, effort: Effort) -> tuple[Found, float | None]:
    """The fleet that serves the largest volume within the limits, and the relative gap to the proven most."""
    totals = column_totals(instance, space)

    def served(volume: float) -> bool:
        return bool(simple_plans(at_volume(instance, volume), space, totals.scaled(volume)))

    volume = max(largest_load(served, most=1e12, tolerance=0.01), 1e-6)
    for more in TAILORED:
        there = at_volume(instance, volume * more)
        if simple_plans(there, *price_space(there, space)):
            volume *= more
    found = search_at(instance, space, volume, aim, effort)
    for more in MIXED:  # mixed fleets carry more than any simple one
        richer = search_at(instance, space, volume * more, aim, effort)
        if richer.columns.size:
            found = richer
            break
    if not found.columns.size:
        return found, None
    most = Aim(cost_weight=0.0, volume_weight=1.0, min_volume=0.0, max_volume=MOST_MORE)
    there = at_volume(instance, found.volume)
    bound = -generate_from(there, *price_space(there, space), most, effort).bound
    return found, max(0.0, 1.0 - 1.0 / bound) if 0.0 < bound < MOST_MORE else None


def best_ratio(instance: Instance, space: Columns, aim: Aim, effort: Effort) -> tuple[Found, float | None]:
    """The fleet of most goodput per dollar for volumes within the objective's limits, and its relative gap.

    The relaxation's cost is convex in the volume, so its cost per request is least at the least volume; that bounds
    the ratio at every volume. Bucket shares are fixed, so serving only the cheap requests is no way out. Besides the
    volume at which simple fleets are best the least one is searched, so that more room is never worse than none.
    """
    goal = instance.problem.objective
    totals = column_totals(instance, space)
    best, best_ratio_ = goal.min_volume, 0.0
    for volume in np.geomspace(goal.min_volume, goal.max_volume, VOLUMES if goal.max_volume > goal.min_volume else 1):
        plans = simple_plans(at_volume(instance, float(volume)), space, totals.scaled(float(volume)))
        if plans and volume / plans[0].cost > best_ratio_:
            best, best_ratio_ = float(volume), float(volume) / plans[0].cost
    some = [search_at(instance, space, volume, aim, effort) for volume in sorted({best, goal.min_volume}, reverse=True)]
    found = max(some, key=lambda one: _served(instance, space, one) / one.objective)
    if not found.columns.size:
        return found, None
    least = at_volume(instance, goal.min_volume)
    bound = generate_from(least, *price_space(least, space), aim, effort).bound
    return found, max(0.0, 1.0 - found.volume / found.objective * bound / goal.min_volume)


def _served(instance: Instance, space: Columns, found: Found) -> float:
    """Multiple of the demand that a fleet serves, of what the objective asks for; 0 without a fleet."""
    if not found.columns.size:
        return 0.0
    fleet = make_fleet(instance, polish(instance, space, found))
    return min(max(found.volume, goodput_volume(instance, fleet)), instance.problem.objective.max_volume)
