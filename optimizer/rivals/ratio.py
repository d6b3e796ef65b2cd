"""The fleet of most goodput, or of most goodput per dollar, among those that the evaluation shows to hold.

Fleets of one pool or two are looked at by evaluation (`most`), and in the place of the best of them one that mixes GPU
types within a stage, where that serves more, or as much for less.
"""

from __future__ import annotations

import math

from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet, fleet_cost, pools_apart
from optimizer.loads.instance import Instance, at_volume

from .by_evaluation import Evaluated, cheapest_held, settled
from .floor import least_per_demand, most_volume
from .leanest import cheaper_of_more_pools
from .most import best_of_few_pools

BEYOND = (1.16, 1.08, 1.04, 1.02)
"""Factors on what the best fleet serves with which one of mixed engines is looked for: the largest first, as what
serves a little more may be nothing to go on from."""

Serving = tuple[Fleet, float]
"""A fleet, and the most that it is known to serve, as a multiple of the demand."""


def per_dollar(instance: Instance, serving: Serving) -> float:
    """Multiple of the demand that is served per dollar an hour, of that which the objective asks for."""
    fleet, most = serving
    return min(most, instance.problem.objective.max_volume) / fleet_cost(instance, fleet)


def most_served(known: Evaluated) -> Serving:
    """The fleet within the limits that serves most; an empty one where there is none."""
    instance, best = known.instance, _of_few_pools(known)
    waiting = list(BEYOND)
    while waiting and best[0].pools and not known.late():
        more = best[1] * waiting.pop(0)
        mixed = _mixed(known, best[0], more, math.inf)
        if mixed is not None:
            best, waiting = (mixed, max(more, goodput_volume(instance, mixed))), list(BEYOND)
    return best


def most_per_dollar(known: Evaluated) -> Serving:
    """The fleet of most goodput per dollar; an empty one where there is none."""
    instance, best = known.instance, _of_few_pools(known)
    if not best[0].pools:
        return best
    sold = min(best[1], instance.problem.objective.max_volume)
    mixed = _mixed(known, best[0], sold, fleet_cost(instance, best[0]))
    return best if mixed is None else (mixed, max(sold, goodput_volume(instance, mixed)))


def most_served_at_all(known: Evaluated, serves: float, seconds: float) -> float:
    """Multiple of the demand beyond which no fleet within the limits keeps up; infinite where none is known.

    serves: that a fleet is known to serve; seconds: that it may take.
    """
    top = most_volume(Evaluated.of(at_volume(known.instance, serves), known.settings), seconds)
    return math.inf if top is None else top * serves


def most_per_dollar_at_all(known: Evaluated) -> float:
    """Multiple of the demand per dollar an hour that no fleet which keeps up exceeds; infinite where none is known."""
    least = known.instance.problem.objective.min_volume
    cost = least_per_demand(Evaluated.of(at_volume(known.instance, least), known.settings))
    return least / cost if cost else math.inf


def _of_few_pools(known: Evaluated) -> Serving:
    """The best fleet of one pool or two, if any holds."""
    found = best_of_few_pools(known)
    return (Fleet(()), 0.0) if found is None else (settled(known.instance, known.fleet(found[0])), found[1])


def _mixed(known: Evaluated, fleet: Fleet, volume: float, below: float) -> Fleet | None:
    """A fleet that mixes engines in a stage of this one, or has colocated ones beside fewer of its own.

    It serves a volume, and costs less than `below` [$/h].
    """
    there = Evaluated.of(at_volume(known.instance, volume), known.settings, known.late)
    cheapest_held(there, pools_apart(known.instance.problem), below)  # for which engines are enough apart
    return cheaper_of_more_pools(there, [fleet], below)
