"""The search by formula: the best fleet that holds when it is evaluated, what is proven of it, and its rivals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from optimizer.fleets.binding import fleet_bindings
from optimizer.fleets.build_plan import fleet_cost, fleet_gpus
from optimizer.fleets.evaluate import goodput_volume, holds, predict_misses
from optimizer.fleets.fleet import Fleet, make_fleet, polish
from optimizer.fleets.volume import best_ratio, most_goodput
from optimizer.loads.columns import Columns, Grid, make_columns
from optimizer.loads.diagnose import with_fewer_misses
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late, never
from optimizer.plans.plan import Status
from optimizer.plans.proof import OPTIMAL_GAP, Proof, gap_of, proof_of_cost, status_of
from optimizer.rivals.alternatives import Rival, cheapest_first, compare, kinds, little, recommended
from optimizer.rivals.by_evaluation import NO_DEARER, Evaluated
from optimizer.rivals.fewer import trimmed
from optimizer.rivals.floor import least_cost
from optimizer.rivals.leanest import cost_without_promises, evaluated, leanest, unmixed
from optimizer.rivals.other_fleets import other_fleets
from optimizer.rivals.per_class import by_class, classes_apart
from optimizer.rivals.ratio import (
    most_per_dollar,
    most_per_dollar_at_all,
    most_served,
    most_served_at_all,
    per_dollar,
)
from optimizer.rivals.room import roomiest_fleet
from optimizer.solver.fleet_model import aim_of
from optimizer.solver.search import Effort, Found, search
from optimizer.solver.simple_plans import Totals, column_totals, price_space
from search_spaces.problem import Goal

from .proven import Solved, Told

GROWTH = (1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0)
"""Factors by which the pools of a fleet that no repair mends are enlarged."""

REPAIRS = 3
"""Times that a fleet which misses a goal is searched for again."""

PROMISED = 0.5
"""Share of the time left in which promised fleets are searched for where the volume is open [1]."""


def solved_by_formula(
    instance: Instance, priced: tuple[Columns, Totals], effort: Effort, told: Told, late: Late = never
) -> Solved:
    """What the search finds by formula: the best fleet, if any, and what it is compared with.

    priced: what `price_space` says of all columns; late: whether it left some out; then nothing is proven.
    """
    space = make_columns(instance, Grid())
    cut = late()
    told("searching fleets", 0.3)
    least_cost_asked = instance.problem.objective.goal is Goal.MIN_COST
    known = evaluated(instance, priced, effort.late)
    rival = cost_without_promises(known, priced)
    some = effort if least_cost_asked else effort.part(PROMISED)
    promised = find_that_holds(instance, space, priced, some, rival)
    found, proof, fleet = with_floor(known, or_leaner(known, promised, effort), effort)
    if not fleet.pools and proof.status is not Status.INFEASIBLE:
        proof = _none_found(known, effort)
    if cut or (effort.late() and not fleet.pools):
        proof = Proof(Status.FEASIBLE if fleet.pools else Status.TIME_LIMIT, None, None)
    told("comparing alternatives", 0.6)
    rivals: list[Rival] = []
    volume = 1.0
    if fleet.pools:
        found, proof, fleet, rivals = best_of_all(known, space, priced, (found, proof, fleet), effort)
        rivals = with_unmixed(known, promised[2], with_other_engines(known, priced, rivals, effort))
        volume = found.volume
        if instance.problem.objective.goal is Goal.MAX_GOODPUT:
            volume = max(volume, goodput_volume(instance, fleet))
    size = search_summary(instance, space, priced[0], found)
    if known.cut:
        size["fleets_cut_by"] = sorted(known.cut)
    return Solved(instance, space, fleet, promised[2], proof, volume, tuple(rivals), size)


def _none_found(known: Evaluated, effort: Effort) -> Proof:
    """What is known where no fleet holds by formula: that there is none only where none can do the work in time.

    Where the rate is open, no work is too little: there is none only where the limits allow no engine.
    """
    least_cost_asked = known.instance.problem.objective.goal is Goal.MIN_COST
    floor = least_cost(known, effort.seconds()) if least_cost_asked else None
    impossible = floor is None if least_cost_asked else not known.settings.size
    return Proof(Status.INFEASIBLE if impossible else Status.TIME_LIMIT, None, None, floor)


def find_that_holds(
    instance: Instance, space: Columns, priced: tuple[Columns, Totals], effort: Effort, rival: float = math.inf
) -> tuple[Found, Proof, Fleet]:
    """Search, evaluate, and where the fleet misses a goal at its real loads, search again for a stricter one.

    The loads promise each goal to within approximations of the queues; the evaluation has the last word, so that a
    fleet which misses is never called feasible. Each round halves the misses that the search may plan on.
    rival: cost of a fleet that holds whatever columns promise (see `search`) [$/h].
    """
    if classes_apart(instance.problem):
        return by_class(instance, lambda alone: _alone(alone, space, effort))
    strict, bound = instance, None
    first = Fleet(())
    for attempt in range(REPAIRS + 1):
        found, columns, proof = find(strict, space, priced, effort, rival)
        fleet = make_fleet(strict, polish(strict, columns, found))
        first = first if first.pools else fleet
        if not fleet.pools or holds(instance, predict_misses(instance, fleet, found.volume)):
            return found, proof if attempt == 0 else _of_stricter(proof, bound), fleet
        bound = proof.bound if attempt == 0 else bound
        if effort.late():
            break
        strict = replace(strict, problem=with_fewer_misses(strict.problem, 0.5))
        priced = priced[0], column_totals(strict, priced[0])
    grown = with_more_engines(instance, first, found.volume)
    if not grown.pools:
        return found, Proof(Status.TIME_LIMIT, None, None), grown
    return found, Proof(Status.FEASIBLE, bound, gap_of(bound, fleet_cost(instance, grown)), promised=bound), grown


def _alone(instance: Instance, space: Columns, effort: Effort) -> tuple[Found, Proof, Fleet]:
    """The fleet of a class that has its own pools; space: columns whose accelerators and roles it may use."""
    columns = make_columns(instance, Grid())
    kind = np.stack([columns.role, instance.tables.offer[columns.shape]])
    allowed = np.unique(np.stack([space.role, instance.tables.offer[space.shape]]), axis=1)
    columns = columns.take((kind[:, :, None] == allowed[:, None, :]).all(axis=0).any(axis=1))
    priced = price_space(instance, columns)
    known = evaluated(instance, priced, effort.late)
    promised = find_that_holds(instance, columns, priced, effort, cost_without_promises(known, priced))
    return or_leaner(known, promised, effort)


def with_more_engines(instance: Instance, fleet: Fleet, volume: float) -> Fleet:
    """A fleet that misses a goal with as many more engines in every pool as it takes; empty if the limits forbid it."""
    for factor in GROWTH:
        pools = tuple(replace(pool, replicas=math.ceil(pool.replicas * factor)) for pool in fleet.pools)
        larger = Fleet(pools)
        limits = fleet_bindings(instance, fleet_cost(instance, larger), fleet_gpus(instance, larger))
        if any(row.slack < 0.0 for row in limits):
            break
        if holds(instance, predict_misses(instance, larger, volume)):
            return larger
    return Fleet(())


def or_leaner(known: Evaluated, best: tuple[Found, Proof, Fleet], effort: Effort) -> tuple[Found, Proof, Fleet]:
    """What was found, or a better fleet that the evaluation shows to hold, for whatever is asked for.

    No column promises so much: where such a fleet costs less than the bound over columns, it has none.
    """
    found, proof, promised = best
    goal = known.instance.problem.objective.goal
    if goal is Goal.MAX_GOODPUT:
        return _or_more(known, best, effort)
    if goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        return _or_better_ratio(known, best)
    fleet = leanest(known, promised)
    if fleet is promised:
        return best
    claim = proof_of_cost(proof.promised, None, fleet_cost(known.instance, fleet))
    return replace(found, volume=1.0), claim, fleet


def _or_more(known: Evaluated, best: tuple[Found, Proof, Fleet], effort: Effort) -> tuple[Found, Proof, Fleet]:
    """What was found, or a fleet that serves more; the gap is to what no fleet within the limits keeps up with."""
    found, _, promised = best
    fleet, most = most_served(known, (promised, found.volume))
    if not fleet.pools:
        return best
    top = most_served_at_all(known, most, effort.seconds())
    gap = max(0.0, 1.0 - most / top) if top < math.inf else None
    return replace(found, volume=most), Proof(status_of(gap), None, gap), fleet


def _or_better_ratio(known: Evaluated, best: tuple[Found, Proof, Fleet]) -> tuple[Found, Proof, Fleet]:
    """What was found, or a fleet of more goodput per dollar, serving all it can of what the objective asks for.

    The gap is to the ratio that no promised fleet exceeds; where this one does, to that of any fleet that keeps up.
    """
    instance, (found, proof, promised) = known.instance, best
    fleet, most = most_per_dollar(known, (promised, found.volume))
    if not fleet.pools:
        return best
    ratio, top = per_dollar(instance, (fleet, most)), 0.0
    if promised.pools and proof.gap is not None:
        top = per_dollar(instance, (promised, found.volume)) / (1.0 - proof.gap)
    top = top if ratio <= top * (1.0 + 1e-9) else most_per_dollar_at_all(known)
    gap = max(0.0, 1.0 - ratio / top) if top < math.inf else None
    volume = float(min(most, instance.problem.objective.max_volume))
    return replace(found, volume=volume), Proof(status_of(gap), None, gap), fleet


def with_floor(known: Evaluated, best: tuple[Found, Proof, Fleet], effort: Effort) -> tuple[Found, Proof, Fleet]:
    """The best fleet with what is proven of it, and the cost below which no fleet keeps up with the demand."""
    found, proof, fleet = best
    if not fleet.pools or known.instance.problem.objective.goal is not Goal.MIN_COST:
        return best
    return (
        found,
        proof_of_cost(proof.promised, least_cost(known, effort.seconds()), fleet_cost(known.instance, fleet)),
        fleet,
    )


def best_of_all(
    known: Evaluated,
    space: Columns,
    priced: tuple[Columns, Totals],
    best: tuple[Found, Proof, Fleet],
    effort: Effort,
) -> tuple[Found, Proof, Fleet, list[Rival]]:
    """Compare with the best of each kind; where one of them turned out cheaper, recommend that kind's fleet.

    Where one of them costs the same and has more room, it is recommended in its place.
    """
    instance = known.instance
    found, proof, fleet = best
    if classes_apart(instance.problem):
        return *best, [Rival(recommended(instance, fleet, proof, found.volume), fleet)]
    rivals = compare(
        known, space, priced, fleet, recommended(instance, fleet, proof, found.volume), effort=little(effort)
    )
    cost = fleet_cost(instance, fleet)
    alike = [one.fleet for one in rivals if one.fleet.pools and fleet_cost(instance, one.fleet) <= cost * NO_DEARER]
    roomy = roomiest_fleet(instance, [fleet, *alike])
    if roomy is not fleet:
        fleet = roomy
        rivals[0] = Rival(recommended(instance, fleet, proof, found.volume), fleet)
    ceiling = cost * (1.0 - OPTIMAL_GAP)
    cheaper = [rival for rival in rivals if (rival.row.cost_usd_per_hour or cost) < ceiling]
    for kind in kinds(instance, space):
        if kind.label not in [rival.row.label for rival in cheaper[:1]]:
            continue
        some = space.take(kind.mask(instance, space))
        other, _, promised = find_that_holds(instance, some, price_space(instance, some), effort)
        both = [one for one in (trimmed(instance, promised), cheaper[0].fleet) if one.pools]
        rival = min(both, key=lambda one: fleet_cost(instance, one))
        claim = proof_of_cost(proof.promised, proof.floor, fleet_cost(instance, rival))
        other = replace(other, volume=1.0)
        rivals = compare(
            known, space, priced, rival, recommended(instance, rival, claim, other.volume), effort=little(effort)
        )
        return other, claim, rival, rivals
    return found, proof, fleet, rivals


def with_other_engines(
    known: Evaluated, priced: tuple[Columns, Totals], rivals: list[Rival], effort: Effort
) -> list[Rival]:
    """The comparison with the next best fleets of other engines in it, where the least cost is asked for."""
    instance = known.instance
    if instance.problem.objective.goal is not Goal.MIN_COST or classes_apart(instance.problem) or effort.late():
        return rivals
    more = other_fleets(known, priced, rivals, effort=little(effort))
    return [rivals[0], *cheapest_first([*rivals[1:], *more])]


def with_unmixed(known: Evaluated, promised: Fleet, rivals: list[Rival]) -> list[Rival]:
    """The comparison with what the cheapest fleet falls back on, where it has two pools of one role.

    promised: the best that columns promise.
    """
    roles = [pool.role for pool in rivals[0].fleet.pools]
    if len(roles) == len(set(roles)) or known.instance.problem.objective.goal is not Goal.MIN_COST:
        return rivals
    return [replace(rivals[0], unmixed=unmixed(known, promised)), *rivals[1:]]


def _of_stricter(proof: Proof, bound: float | None) -> Proof:
    """What a fleet of a stricter problem proves for the one that was asked, whose own bound is known [$/h]."""
    status = Status.FEASIBLE if proof.status is Status.OPTIMAL else proof.status
    if bound is None or proof.bound is None or proof.gap is None:
        return Proof(status, None, None)
    return Proof(status, bound, 1.0 - bound * (1.0 - proof.gap) / proof.bound, promised=bound)


def find(
    instance: Instance, space: Columns, priced: tuple[Columns, Totals], effort: Effort, rival: float = math.inf
) -> tuple[Found, Columns, Proof]:
    """Search for the goal of the problem: the result, the columns it was found among, and what was proven."""
    problem, aim = instance.problem, aim_of(instance.problem)
    if problem.objective.goal is Goal.MAX_GOODPUT:
        found = most_goodput(instance, space, aim, effort)
        return found, space, Proof(_status(found, None), None, None)
    if problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        found, gap = best_ratio(instance, space, aim, effort)
        return found, space, Proof(_status(found, gap), None, gap)
    columns, totals = priced
    found = search(instance, columns, totals, aim, effort, rival=rival)
    if not found.columns.size:
        return found, columns, Proof(_status(found, None), None, None)
    cost = fleet_cost(instance, make_fleet(instance, found))
    if found.bound <= 0.0:  # nothing was proven
        return found, columns, Proof(Status.FEASIBLE, None, None)
    bound = min(found.bound / aim.cost_weight, cost)
    gap = gap_of(bound, cost)
    return found, columns, Proof(_status(found, gap), bound, gap, promised=bound)


def _status(found: Found, gap: float | None) -> Status:
    """A search that found nothing has run out of its effort, or of what columns promise: neither says that none is."""
    return status_of(gap) if found.columns.size else Status.TIME_LIMIT


def search_summary(instance: Instance, space: Columns, priced: Columns, found: Found) -> dict[str, Any]:
    """Size of the search and why engine shapes were dropped."""
    return {
        "shapes_considered": instance.enumeration.considered,
        "shapes_feasible": len(instance.enumeration.shapes),
        "shapes_dropped": dict(instance.enumeration.dropped),
        "operating_points": space.size,
        "operating_points_priced": priced.size,
        "flows": int(instance.flows.isl.size),
        "every_column_proven": found.exact,
    }
