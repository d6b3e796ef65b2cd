"""Goodput per dollar with a floor on the volume: Dinkelbach's iteration over fleet searches."""

from __future__ import annotations

from dataclasses import replace

from .columns import Columns
from .fleet_model import Aim
from .instance import Instance
from .program import Outcome
from .search import Effort, Found, search
from .simple_plans import Totals

MOST_ROUNDS = 8


def best_ratio(
    instance: Instance, columns: Columns, totals: Totals, aim: Aim, effort: Effort
) -> tuple[Found, float | None]:
    """Maximise volume / cost for volumes between the limits of the objective; (fleet, relative gap).

    Dinkelbach 1967: with ratio q = V / C of the best fleet so far, minimise q C - V; the ratio is best when that
    minimum is 0. A lower bound L of the minimum certifies that no fleet's ratio exceeds q - L / C_min, where
    C_min is the least cost of any fleet that serves the floor. Bucket shares are fixed by the cover rows, so
    serving only the cheap requests is no way out.
    """
    goal = instance.problem.objective
    floor = replace(aim, min_volume=goal.min_volume, max_volume=goal.min_volume)
    best = search(instance, columns, totals, floor, effort)
    if best.outcome not in {Outcome.OPTIMAL, Outcome.FEASIBLE}:
        return best, None
    least_cost, ratio, excess = best.bound, best.volume / best.objective, 0.0
    if goal.max_volume <= goal.min_volume:
        return best, 1.0 - best.bound / best.objective
    for _ in range(MOST_ROUNDS):
        step = Aim(aim.cost_weight * ratio, 1.0, goal.min_volume, goal.max_volume)
        found = search(instance, columns, totals, step, effort)
        if found.outcome not in {Outcome.OPTIMAL, Outcome.FEASIBLE}:
            break
        excess = max(0.0, -found.bound)
        if found.objective >= -1e-6 * found.volume:
            break
        cost = (found.objective + found.volume) / ratio
        best, ratio = found, found.volume / cost
    return best, 1.0 - ratio / (ratio + excess / max(least_cost, 1e-12))
