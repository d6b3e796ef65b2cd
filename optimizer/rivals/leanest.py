"""The cheapest fleet that the evaluation shows to hold, from one that columns promise.

Columns promise for any routing at once, the evaluation judges the loads that a fleet really has, and it decides. So a
promised fleet gives up the engines that it does not need, and makes way for a cheaper fleet of one pool or two, and
that for one which mixes engines within a stage. Larger fleets are looked at only where they come from columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from optimizer.fleets.bought import pools_apart
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late, never
from optimizer.solver.simple_plans import Totals, simple_plans
from search_spaces.problem import Goal

from .beside import cheaper_beside
from .by_evaluation import NO_DEARER, SAME_COST, BoolArray, Evaluated, cheapest_held, settings_of, settled
from .few_seats import held_with_few_seats
from .fewer import trimmed
from .mixed import cheaper_mix
from .per_class import classes_apart
from .recut import with_room
from .room import roomiest_fleet


def evaluated(instance: Instance, priced: tuple[Columns, Totals], late: Late = never) -> Evaluated:
    """What is to be known of the pools that priced columns can make up; late: whether no more are to be looked at."""
    return Evaluated.of(instance, settings_of(*priced), late)


def cost_without_promises(known: Evaluated, priced: tuple[Columns, Totals], allowed: BoolArray | None = None) -> float:
    """Cost up to which promises are of use: of the cheapest fleet of one pool or two that holds without them [$/h].

    What costs as much is within it, as a bound says more of a fleet that is promised. Infinite where the cheapest such
    fleet of the priced columns costs no more, for classes with pools of their own, and for goals other than the cost.
    """
    problem = known.instance.problem
    if classes_apart(problem) or problem.objective.goal is not Goal.MIN_COST:
        return math.inf
    simple = simple_plans(known.instance, *priced)
    found = cheapest_held(known, pools_apart(problem), simple[0].cost if simple else math.inf, allowed)
    return math.inf if found is None else fleet_cost(known.instance, known.fleet(found[0])) * NO_DEARER


def leanest(known: Evaluated, fleet: Fleet, allowed: BoolArray | None = None) -> Fleet:
    """The cheapest that `unmixed` finds, or a fleet of mixed engines in a stage that costs less and holds."""
    return or_mixed(known, unmixed(known, fleet, allowed), fleet, allowed)


def or_mixed(known: Evaluated, best: Fleet, promised: Fleet, allowed: BoolArray | None = None) -> Fleet:
    """A fleet that holds, or a cheaper one of mixed engines in a stage of it, or of the promised one, or of others.

    Or one of colocated engines beside prefill and decode engines.
    """
    problem = known.instance.problem
    if classes_apart(problem):
        return best
    cost = fleet_cost(known.instance, best) if best.pools else math.inf
    starts = [one for one in (best, promised) if one.pools]
    mixed = cheaper_of_more_pools(known, starts, cost, allowed)
    return best if mixed is None else settled(known.instance, mixed)


def cheaper_of_more_pools(
    known: Evaluated, starts: Sequence[Fleet], below: float, allowed: BoolArray | None = None
) -> Fleet | None:
    """A fleet that mixes engines in a stage, or has colocated ones beside others, and costs less than `below` [$/h].

    With what it serves cut where it has the most room; None where none is found. starts, allowed: see `cheaper_mix`.
    """
    problem = pools_apart(known.instance.problem)
    free = np.ones(known.settings.size, dtype=np.bool_) if allowed is None else allowed
    mixed = cheaper_mix(known, problem, starts, below, free)
    cost = below if mixed is None else fleet_cost(known.instance, mixed)
    found = cheaper_beside(known, problem, starts, cost, free) or mixed
    return None if found is None else with_room(known, found)


def unmixed(known: Evaluated, fleet: Fleet, allowed: BoolArray | None = None) -> Fleet:
    """The cheapest of a fleet that holds, if any, the same with fewer engines, and all that hold of one pool or two.

    Those of one colocated pool with a batch limit that keeps its steps short too, where they cost less (`few_seats`).
    allowed (settings,): which engines those of one pool or two may have. Of fleets that cost the same, the one with the
    most room, the simplest where they have as much; the fleet itself where nothing is better.
    """
    instance = known.instance
    lean = trimmed(instance, fleet) if fleet.pools else fleet
    if classes_apart(instance.problem):
        return lean
    cost = fleet_cost(instance, lean) if lean.pools else math.inf
    problem = pools_apart(instance.problem)
    free = np.ones(known.settings.size, dtype=np.bool_) if allowed is None else allowed
    found = cheapest_held(known, problem, cost * NO_DEARER, free)
    least = min(cost, math.inf if found is None else found[1]) * (1.0 - SAME_COST)
    few = held_with_few_seats(known, problem, least, free)
    if few is not None:
        return settled(instance, few)
    if found is None:
        return lean
    simple = known.fleet(found[0])
    if found[1] >= cost * (1.0 - SAME_COST) and roomiest_fleet(instance, [lean, simple]) is lean:
        return lean
    return settled(known.instance, simple)
