"""The cheapest fleet that holds when it is evaluated: of one pool or two, or one that mixes engines within a stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from optimizer.fleets.fleet import Fleet, fleet_cost, pools_apart
from optimizer.loads.flows import splits
from optimizer.loads.instance import Instance, Late, make_settings, never
from search_spaces.problem import Goal

from .beside import cheaper_beside
from .by_evaluation import BoolArray, Evaluated, cheapest_held, settled
from .mixed import cheaper_mix
from .per_class import classes_apart
from .recut import with_room


def evaluated(instance: Instance, late: Late = never) -> Evaluated:
    """What is to be known of the engines of an instance; late: whether no more fleets are to be looked at."""
    return Evaluated.of(instance, make_settings(instance), late)


def at_best_split(instance: Instance, late: Late = never) -> Evaluated:
    """The same with end-to-end limits split between first and later tokens where the cheapest fleet costs least.

    A request that keeps the parts keeps the whole, so a plan for any split is a plan.
    """
    flows = list(splits(instance.problem))
    if len(flows) == 1:
        return evaluated(instance, late)
    best, least = evaluated(replace(instance, flows=flows[0]), late), math.inf
    free = pools_apart(instance.problem)
    if instance.problem.objective.goal is Goal.MIN_COST and not classes_apart(instance.problem):
        for place, split in enumerate(flows):
            known = evaluated(replace(instance, flows=split), late) if place else best
            found = None if place and late() else cheapest_held(known, free, least)
            if found is not None:
                best, least = known, found[1]
    return best


def leanest(known: Evaluated, allowed: BoolArray | None = None) -> Fleet:
    """The cheapest that `unmixed` finds, or a fleet of mixed engines in a stage that costs less and holds."""
    return or_mixed(known, unmixed(known, allowed), allowed)


def unmixed(known: Evaluated, allowed: BoolArray | None = None) -> Fleet:
    """The cheapest fleet of one pool or two that holds; empty where there is none.

    allowed (settings,): which engines it may have.
    """
    found = cheapest_held(known, pools_apart(known.instance.problem), allowed=allowed)
    return Fleet(()) if found is None else settled(known.instance, known.fleet(found[0]))


def or_mixed(known: Evaluated, best: Fleet, allowed: BoolArray | None = None) -> Fleet:
    """A fleet that holds, or a cheaper one of mixed engines in a stage of it or of others.

    Or one of colocated engines beside prefill and decode engines.
    """
    cost = fleet_cost(known.instance, best) if best.pools else math.inf
    mixed = cheaper_of_more_pools(known, [best] if best.pools else [], cost, allowed)
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
