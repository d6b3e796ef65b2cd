"""The fleet of most goodput per dollar among those that the evaluation shows to hold.

Let C(v) be the cost of the cheapest fleet that serves v times the demand. It rises in steps, and v / C(v) is best at
the end of one, where a fleet of that cost serves all that it can. So volumes are walked from the least on, each just
beyond what the cheapest fleet serves. The walk does not depend on where it may end: more room adds fleets and takes
none away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet
from optimizer.fleets.volume import at_volume
from optimizer.loads.instance import Instance

from .by_evaluation import Evaluated
from .fewer import trimmed
from .floor import least_per_demand
from .leanest import leanest

BEYOND = 1.002
"""What a fleet serves is known to 0.1 %: so many times that much, another is needed."""

APART, LOOKS = 1.02, 70
"""Volumes of the walk are at least so many times the one before; after LOOKS of them only the largest is looked at."""

Serving = tuple[Fleet, float]
"""A fleet, and the most that it is known to serve, as a multiple of the demand."""


def per_dollar(instance: Instance, serving: Serving) -> float:
    """Multiple of the demand that is served per dollar an hour, of that which the objective asks for."""
    fleet, most = serving
    return min(most, instance.problem.objective.max_volume) / fleet_cost(instance, fleet)


def most_per_dollar(known: Evaluated, promised: Serving) -> Serving:
    """The fleet of most goodput per dollar: the promised one, if any, with fewer engines, or one of one pool or two.

    promised: by columns. Of fleets that are as good, the one that could serve most; an empty one where there is none.
    """
    instance, (fleet, volume) = known.instance, promised
    some = list(_walked(known))
    if fleet.pools:
        lean = trimmed(at_volume(instance, volume), fleet)
        fleets = (fleet,) if lean is fleet else (fleet, lean)
        some += [(one, max(volume, goodput_volume(instance, one))) for one in fleets]
    return max(some, key=lambda one: (per_dollar(instance, one), one[1]), default=promised)


def most_per_dollar_at_all(known: Evaluated) -> float:
    """Multiple of the demand per dollar an hour that no fleet which keeps up exceeds; infinite where none is known."""
    least = known.instance.problem.objective.min_volume
    cost = least_per_demand(Evaluated.of(at_volume(known.instance, least), known.settings))
    return least / cost if cost else math.inf


def _walked(known: Evaluated) -> Iterator[Serving]:
    """The cheapest fleets of one pool or two, at volumes from the least to the largest that the objective asks for."""
    instance, goal = known.instance, known.instance.problem.objective
    volume, most = goal.min_volume, 0.0
    for look in range(LOOKS + 1):
        volume = min(volume, goal.max_volume) if look < LOOKS else goal.max_volume
        fleet = leanest(Evaluated.of(at_volume(instance, volume), known.settings), Fleet(()))
        if not fleet.pools:
            return
        most = max(volume, goodput_volume(instance, fleet))
        yield fleet, most
        if most >= goal.max_volume:
            return
        volume = max(volume * APART, most * BEYOND)
