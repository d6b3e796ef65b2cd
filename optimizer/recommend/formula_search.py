"""The search by formula: the best fleet that holds when it is evaluated, what is proven of it, and its rivals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.loads.late import Deadline
from optimizer.plans.plan import Status
from optimizer.plans.proof import Proof, proof_of_cost, status_of
from optimizer.search.alternatives import Rival, cheapest_first, compare, other_fleets, recommended
from optimizer.search.bound import WORK, least_cost
from optimizer.search.goodput import (
    most_per_dollar,
    most_per_dollar_at_all,
    most_served,
    most_served_at_all,
    per_dollar,
)
from optimizer.search.limits import classes_apart
from optimizer.search.mixtures import leanest, or_mixed
from optimizer.search.per_class import by_class
from optimizer.search.search import FleetSearch, evaluated, near_fleets, unmixed
from search_spaces.problem import Goal

from .proven import Solved, Told

MOST_NEAR = 24
"""Cheaper fleets that miss narrowly by formula which a plan simulates all the same."""


def solved_by_formula(known: FleetSearch, deadline: Deadline, told: Told) -> Solved:
    """What the search finds by formula: the best fleet, if any, and what it is compared with."""
    told("searching fleets", 0.3)
    goal, apart = known.instance.problem.objective.goal, classes_apart(known.instance.problem)
    if goal is Goal.MAX_GOODPUT:
        solved = _most_goodput(known, deadline)
    elif goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        solved = _most_per_dollar(known)
    else:
        solved = _classes_apart(known, deadline) if apart else _least_cost(known, deadline, told)
    if not solved.fleet.pools and known.late():
        solved = replace(solved, proof=Proof(Status.TIME_LIMIT, None, None))
    return replace(solved, size=search_summary(known))


def cheapest_by_formula(known: FleetSearch) -> Fleet:
    """The cheapest fleet that holds when it is evaluated; an empty one where none is found."""
    if not classes_apart(known.instance.problem):
        return leanest(known)
    fleet = by_class(known.instance, lambda alone: leanest(evaluated(alone, known.late)))
    held = fleet.pools and holds(known.instance, predict_misses(known.instance, fleet))
    return fleet if held else Fleet(())


def _least_cost(known: FleetSearch, deadline: Deadline, told: Told) -> Solved:
    """The cheapest fleet, and the cheapest of each kind."""
    instance = known.instance
    simple = unmixed(known)
    fleet = or_mixed(known, simple)
    if not fleet.pools:
        return Solved(instance, known.settings, fleet, _none_found(known, deadline), 1.0, ())
    told("comparing alternatives", 0.6)
    few = fleet_cost(instance, simple) if simple.pools and not known.cut else None
    proof = _proof(known, fleet, few, deadline)
    row = recommended(instance, fleet, proof, 1.0)
    rivals = compare(known, Rival(row, fleet, Fleet(()) if fleet is simple else simple))
    rivals = [rivals[0], *cheapest_first([*rivals[1:], *other_fleets(known, rivals)])]
    near = near_fleets(known, fleet_cost(instance, fleet))[:MOST_NEAR]
    return Solved(instance, known.settings, fleet, proof, 1.0, tuple(rivals), tuple(near))


def _classes_apart(known: FleetSearch, deadline: Deadline) -> Solved:
    """The cheapest fleets of classes that have pools of their own, bought together."""
    instance, fleet = known.instance, cheapest_by_formula(known)
    if not fleet.pools:
        return Solved(instance, known.settings, fleet, _none_found(known, deadline), 1.0, ())
    proof = _proof(known, fleet, None, deadline)
    rival = Rival(recommended(instance, fleet, proof, 1.0), fleet)
    return Solved(instance, known.settings, fleet, proof, 1.0, (rival,))


def _most_goodput(known: FleetSearch, deadline: Deadline) -> Solved:
    """The fleet that serves most; the gap is to what no fleet within the limits keeps up with."""
    fleet, most = most_served(known)
    if not fleet.pools:
        return _nothing(known)
    top = most_served_at_all(known, most, deadline.seconds(WORK.time_limit))
    gap = max(0.0, 1.0 - most / top) if top < math.inf else None
    return _serving(known, fleet, Proof(status_of(gap), None, gap), most)


def _most_per_dollar(known: FleetSearch) -> Solved:
    """The fleet of most goodput per dollar, serving all it can of what the objective asks for.

    The gap is to the ratio of any fleet that keeps up.
    """
    fleet, most = most_per_dollar(known)
    if not fleet.pools:
        return _nothing(known)
    ratio, top = per_dollar(known.instance, (fleet, most)), most_per_dollar_at_all(known)
    gap = max(0.0, 1.0 - ratio / top) if top < math.inf else None
    volume = float(min(most, known.instance.problem.objective.max_volume))
    return _serving(known, fleet, Proof(status_of(gap), None, gap), volume)


def _serving(known: FleetSearch, fleet: Fleet, proof: Proof, volume: float) -> Solved:
    """A fleet that serves a multiple of the demand."""
    rival = Rival(recommended(known.instance, fleet, proof, volume), fleet)
    return Solved(known.instance, known.settings, fleet, proof, volume, (rival,))


def _nothing(known: FleetSearch) -> Solved:
    """No fleet for an open rate: there is none only where the limits allow no engine, as no work is too little."""
    status = Status.TIME_LIMIT if known.settings.size else Status.INFEASIBLE
    return Solved(known.instance, known.settings, Fleet(()), Proof(status, None, None), 1.0, ())


def _none_found(known: FleetSearch, deadline: Deadline) -> Proof:
    """What is known where no fleet holds by formula: that there is none only where none can do the work in time."""
    floor = least_cost(known, deadline.seconds(WORK.time_limit))
    return Proof(Status.INFEASIBLE if floor is None else Status.TIME_LIMIT, None, None, floor)


def _proof(known: FleetSearch, fleet: Fleet, few_pools: float | None, deadline: Deadline) -> Proof:
    """What is proven of a fleet; few_pools: cost of the cheapest of one pool or two, where all were looked at [$/h]."""
    cost = fleet_cost(known.instance, fleet)
    floor = least_cost(known, deadline.seconds(WORK.time_limit), cost)
    return proof_of_cost(few_pools, floor, cost)


def search_summary(known: FleetSearch) -> dict[str, Any]:
    """Size of the search and why engine shapes were dropped."""
    instance: Instance = known.instance
    size: dict[str, Any] = {
        "shapes_considered": instance.enumeration.considered,
        "shapes_feasible": len(instance.enumeration.shapes),
        "shapes_dropped": dict(instance.enumeration.dropped),
        "settings": known.settings.size,
        "fleets_evaluated": len(known.held),
        "flows": int(instance.flows.isl.size),
    }
    return size | ({"fleets_cut_by": sorted(known.cut)} if known.cut else {})
