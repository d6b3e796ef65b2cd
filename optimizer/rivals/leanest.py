"""The cheapest fleet that the evaluation shows to hold, from one that columns promise.

Columns promise for any routing at once, the evaluation judges the loads that a fleet really has, and it decides. So a
promised fleet gives up the engines that it does not need, and makes way for a cheaper fleet of one pool or two. Larger
fleets, in which the shares of each length could be anything, are looked at only where they come from columns.
"""

from __future__ import annotations

import math

from optimizer.fleets.bought import pools_apart
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.solver.simple_plans import Totals

from .by_evaluation import BoolArray, Evaluated, cheapest_held, settings_of, settled
from .fewer import trimmed
from .per_class import classes_apart


def evaluated(instance: Instance, priced: tuple[Columns, Totals]) -> Evaluated:
    """What is to be known of the pools that priced columns can make up."""
    return Evaluated.of(instance, settings_of(*priced))


def leanest(known: Evaluated, fleet: Fleet, allowed: BoolArray | None = None) -> Fleet:
    """The cheapest of a fleet that holds, if any, the same with fewer engines, and all that hold of one pool or two.

    allowed (settings,): which engines those of one pool or two may have. The fleet itself where nothing costs less.
    """
    instance = known.instance
    lean = trimmed(instance, fleet) if fleet.pools else fleet
    if classes_apart(instance.problem):
        return lean
    below = fleet_cost(instance, lean) if lean.pools else math.inf
    found = cheapest_held(known, pools_apart(instance.problem), below, allowed)
    return lean if found is None else settled(known, known.fleet(found[0]))
