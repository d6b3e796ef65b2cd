"""The fleet of most goodput, or of most goodput per dollar, among those that hold when they are evaluated.

The cheapest fleet that serves a volume is that of the usual search at so many times the demand. What it serves, and
what it costs, bound all others: none serves more for less, so that between two volumes no fleet has more than the
higher one, or per dollar than the higher one at the cost of the lower. The interval that could have most is halved
until none could have more than the best. In the place of the best of one pool or two, one that mixes engines within a
stage is taken (`mixtures`), where that serves more, or as much for less.
"""

from __future__ import annotations

import heapq
import math

from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance, at_volume
from search_spaces.problem import Goal

from .bound import least_per_demand, most_volume
from .mixtures import cheaper_mixture
from .search import FleetSearch, cheapest_held, unmixed

SEARCHES = 24
"""Volumes at most at which the cheapest fleet is sought."""

MORE = 5e-3
"""Share by which another fleet must be able to have more than the best to be sought [1]."""

LEAST = 1e-6
"""Multiple of the demand, or that per dollar an hour, which is nothing."""

BEYOND = (1.16, 1.08, 1.04, 1.02)
"""Factors on what the best fleet serves with which one of mixed engines is looked for: the largest first, as what
serves a little more may be nothing to go on from."""

Serving = tuple[Fleet, float]
"""A fleet, and the most that it is known to serve, as a multiple of the demand."""


def best_serving(search: FleetSearch) -> Serving:
    """The fleet within the limits that is best by the objective, and what it serves; an empty one without any."""
    instance, best = search.instance, best_of_few_pools(search)
    if not best[0].pools:
        return best
    if _by_price(instance):
        sold = min(best[1], instance.problem.objective.max_volume)
        mixture = _mixed(search, best[0], sold, fleet_cost(instance, best[0]))
        return best if mixture is None else (mixture, max(sold, goodput_volume(instance, mixture)))
    waiting = list(BEYOND)
    while waiting and not search.late():
        more = best[1] * waiting.pop(0)
        mixture = _mixed(search, best[0], more, math.inf)
        if mixture is not None:
            best, waiting = (mixture, max(more, goodput_volume(instance, mixture))), list(BEYOND)
    return best


def best_of_few_pools(search: FleetSearch) -> Serving:
    """The best fleet of one pool or two, and what it serves; an empty one where none serves enough."""
    instance, objective = search.instance, search.instance.problem.objective
    by_price = _by_price(instance)
    best, value = (Fleet(()), 0.0), 0.0
    start = (objective.min_volume, objective.max_volume) if by_price else (0.0, math.inf)
    waiting = [(-math.inf, *start, math.inf)]  # less than the first, between the next two, which cost the last at least
    for _ in range(SEARCHES):
        most, low, high, least = heapq.heappop(waiting) if waiting else (0.0, 0.0, 0.0, 0.0)
        if -most <= max(value, LEAST) * (1.0 + MORE) or search.late():
            break
        volume = _between(low, high) if math.isfinite(most) or not by_price else low
        below = high / value / (1.0 + MORE) if by_price and value else math.inf  # what costs more has no more
        fleet = unmixed(FleetSearch.of(at_volume(instance, volume), search.settings, search.late), below)
        if fleet.pools:
            cost, served_volume = fleet_cost(instance, fleet), max(volume, goodput_volume(instance, fleet))
            worth = min(served_volume, high) / cost if by_price else served_volume
            best, value = ((fleet, served_volume), worth) if worth > value else (best, value)
            if served_volume < high:
                heapq.heappush(waiting, (-high / cost if by_price else -high, served_volume, high, cost))
        if low < volume:
            heapq.heappush(waiting, (-volume / least if by_price else -volume, low, volume, least))
    return best


def _between(low: float, high: float) -> float:
    """A volume within an interval of which an end may be open."""
    if math.isinf(high):
        return 2.0 * low or 1.0
    return math.sqrt(low * high) or high / 4.0


def _by_price(instance: Instance) -> bool:
    return instance.problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR


def goodput_gap(search: FleetSearch, serving: Serving, seconds: float) -> float | None:
    """By how much less a fleet has than what none within the limits that keeps up exceeds [1]; None where unknown.

    seconds: that it may take.
    """
    instance, settings, (fleet, serves) = search.instance, search.settings, serving
    if _by_price(instance):
        objective = instance.problem.objective
        cost = least_per_demand(at_volume(instance, objective.min_volume), settings)
        per_dollar = min(serves, objective.max_volume) / fleet_cost(instance, fleet)
        return None if cost is None else max(0.0, 1.0 - per_dollar * cost / objective.min_volume)
    top = most_volume(at_volume(instance, serves), settings, seconds)
    return None if top is None else max(0.0, 1.0 - 1.0 / top)


def _mixed(search: FleetSearch, fleet: Fleet, volume: float, below: float) -> Fleet | None:
    """A fleet that mixes engines in a stage of this one, or has colocated ones beside fewer of its own.

    It serves a volume, and costs less than `below` [$/h].
    """
    there = FleetSearch.of(at_volume(search.instance, volume), search.settings, search.late)
    cheapest_held(there, search.instance.problem, below)  # for which engines are enough apart
    return cheaper_mixture(there, fleet, below)
