"""`optimize`: from a problem to a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from optimizer.fleets.binding import fleet_bindings
from optimizer.fleets.build_plan import build_plan, fleet_cost, fleet_gpus, provenance
from optimizer.fleets.error_bars import at_quantile, class_error_bars, slow_end
from optimizer.fleets.evaluate import goodput_volume, holds, predict_misses
from optimizer.fleets.fleet import Fleet, make_fleet, polish
from optimizer.fleets.volume import best_ratio, most_goodput
from optimizer.loads.columns import Columns, Grid, make_columns
from optimizer.loads.diagnose import check_floors, check_shapes, with_fewer_misses
from optimizer.loads.instance import Instance, make_instance
from optimizer.plans.plan import Alternative, Binding, Plan, Provenance, RunInfo, Status
from optimizer.plans.proof import OPTIMAL_GAP, Proof, gap_of, proof_of_cost, status_of
from optimizer.rivals.alternatives import Rival, cheapest_first, compare, kinds, little, recommended
from optimizer.rivals.by_evaluation import Evaluated
from optimizer.rivals.fewer import trimmed
from optimizer.rivals.floor import least_cost
from optimizer.rivals.leanest import evaluated, leanest
from optimizer.rivals.other_fleets import other_fleets
from optimizer.rivals.per_class import by_class, classes_apart
from optimizer.rivals.ratio import most_per_dollar, most_per_dollar_at_all, per_dollar
from optimizer.solver.fleet_model import Aim
from optimizer.solver.program import Outcome
from optimizer.solver.search import Effort, Found, search
from optimizer.solver.simple_plans import Totals, column_totals, price_space
from optimizer.solver.split import with_best_split
from search_spaces.engines import load_engine_overhead
from search_spaces.enumeration import enumerate_shapes
from search_spaces.problem import Goal, Problem

from .judged import Solved, judged, with_simulation
from .level import Brake, Level
from .nearest_miss import describe_miss

Progress = Callable[[str, float], None]

GROWTH = (1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0)
"""Factors by which the pools of a fleet that no repair mends are enlarged."""

REPAIRS = 3
"""Times that a fleet which misses a goal is searched for again."""


@dataclass(slots=True)
class Stopwatch:
    """Wall time of each stage [s]."""

    progress: Progress | None
    timings: dict[str, float]
    started: float

    def stage(self, label: str, fraction: float) -> None:
        """Report that a stage begins and book the time of the one before."""
        now = time.perf_counter()
        if self.timings:
            last = next(reversed(self.timings))
            self.timings[last] = round(now - self.started, 4)
        self.timings[label] = 0.0
        self.started = now
        if self.progress is not None:
            self.progress(label, fraction)


def optimize(
    problem: Problem,
    progress: Progress | None = None,
    time_limit: float = 600.0,
    *,
    level: Level = Level.STANDARD,
    brake: Brake | None = None,
) -> Plan:
    """Find the best fleet for a problem.

    progress is called with a label and the fraction done; time_limit is what all of it may take [s]; work is
    limited besides, so that a plan does not depend on it where it is generous.
    level: whether the fleet is proven by simulation; brake: armed once a fleet is proven, and pulled to be content.
    Raises InputError when the model fits on no engine of the space or an SLO is below the physical floor.
    A problem without a feasible fleet gives a plan of status `infeasible` that names what is in the way.
    """
    watch = Stopwatch(progress, {}, time.perf_counter())
    until = watch.started + time_limit
    watch.stage("pricing engines", 0.05)
    check_shapes(problem, enumerate_shapes(problem))
    expected = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    check_floors(expected)
    instance = with_best_split(at_quantile(expected, slow_end(problem.confidence)))
    space = make_columns(instance, Grid())
    priced = price_space(instance, space)
    watch.stage("searching fleets", 0.3)
    effort, brake = Effort(until=until), brake or Brake()
    brake.until = until
    promised = find_that_holds(instance, space, priced, effort)
    known = evaluated(instance, priced)
    found, proof, fleet = with_floor(known, or_leaner(known, promised), effort)
    watch.stage("comparing alternatives", 0.6)
    rivals: list[Rival] = []
    volume = found.volume if fleet.pools else 1.0
    if fleet.pools:
        found, proof, fleet, rivals = best_of_all(known, space, priced, (found, proof, fleet), effort)
        rivals = with_other_engines(known, priced, rivals, effort)
        volume = found.volume
        if problem.objective.goal is Goal.MAX_GOODPUT:
            volume = max(volume, goodput_volume(instance, fleet))
    size = search_summary(instance, space, priced[0], found)
    origin = provenance(instance, size, RunInfo(created=_now(), command="", timings_s={}))
    solved = Solved(instance, space, fleet, promised[2], proof, volume, tuple(rivals))
    if fleet.pools and level is not Level.QUICK:
        plan = _simulated_plan(solved, expected, origin, level=level, effort=effort, watch=watch, brake=brake)
    else:
        plan = _formula_plan(solved, expected, origin)
    watch.stage("done", 1.0)
    timings = {label: seconds for label, seconds in watch.timings.items() if label != "done"}
    run = origin.run.model_copy(update={"timings_s": timings})
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"run": run})})


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="seconds")


def _formula_plan(solved: Solved, expected: Instance, origin: Provenance) -> Plan:
    """The plan of what the search found, or of what is in the way; expected: the instance with expected times."""
    if not solved.fleet.pools:
        rows, shortfalls = describe_miss(solved.instance)
        return _written(solved, expected, origin, rows, shortfalls)
    return _written(solved, expected, origin, [rival.row for rival in solved.rivals], [])


def _simulated_plan(
    solved: Solved,
    expected: Instance,
    origin: Provenance,
    *,
    level: Level,
    effort: Effort,
    watch: Stopwatch,
    brake: Brake,
) -> Plan:
    """The plan of the cheapest fleet that is proven by simulation; without a fleet where none is."""

    def resolve(stricter: Instance) -> Fleet:
        priced = price_space(stricter, solved.space)
        if stricter.problem.objective.goal is Goal.MIN_COST and not classes_apart(stricter.problem):
            return leanest(evaluated(stricter, priced), Fleet(()))
        return find_that_holds(stricter, solved.space, priced, effort)[2]

    answer = judged(solved, resolve, level, brake, watch.stage)
    shown = replace(solved, fleet=answer.fleet, proof=answer.proof, volume=answer.volume)
    plan = _written(shown, expected, origin, answer.rows, answer.shortfalls)
    return with_simulation(answer, plan, brake, watch.stage)


def _written(
    solved: Solved, expected: Instance, origin: Provenance, rows: list[Alternative], shortfalls: list[Binding]
) -> Plan:
    """The plan file of a fleet, by formula."""
    instance, fleet, volume = solved.instance, solved.fleet, solved.volume
    bars = class_error_bars(replace(instance, tables=expected.tables), fleet, volume) if fleet.pools else []
    return build_plan(
        instance,
        fleet,
        bars=bars,
        proof=solved.proof,
        volume=volume,
        alternatives=rows,
        shortfalls=shortfalls,
        origin=origin,
    )


def find_that_holds(
    instance: Instance, space: Columns, priced: tuple[Columns, Totals], effort: Effort
) -> tuple[Found, Proof, Fleet]:
    """Search, evaluate, and where the fleet misses a goal at its real loads, search again for a stricter one.

    The loads promise each goal to within approximations of the queues; the evaluation has the last word, so that a
    fleet which misses is never called feasible. Each round halves the misses that the search may plan on.
    """
    if classes_apart(instance.problem):
        return by_class(instance, lambda alone: _alone(alone, space, effort))
    strict, bound = instance, None
    first = Fleet(())
    for attempt in range(REPAIRS + 1):
        found, columns, proof = find(strict, space, priced, effort)
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
    return found, Proof(Status.FEASIBLE, bound, gap_of(bound, fleet_cost(instance, grown))), grown


def _alone(instance: Instance, space: Columns, effort: Effort) -> tuple[Found, Proof, Fleet]:
    """The fleet of a class that has its own pools; space: columns whose accelerators and roles it may use."""
    columns = make_columns(instance, Grid())
    kind = np.stack([columns.role, instance.tables.offer[columns.shape]])
    allowed = np.unique(np.stack([space.role, instance.tables.offer[space.shape]]), axis=1)
    columns = columns.take((kind[:, :, None] == allowed[:, None, :]).all(axis=0).any(axis=1))
    priced = price_space(instance, columns)
    return or_leaner(evaluated(instance, priced), find_that_holds(instance, columns, priced, effort))


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


def or_leaner(known: Evaluated, best: tuple[Found, Proof, Fleet]) -> tuple[Found, Proof, Fleet]:
    """What was found, or a cheaper fleet that the evaluation shows to hold, where a cost or a ratio is asked for.

    No column promises so much: where such a fleet costs less than the bound over columns, it has none.
    """
    found, proof, promised = best
    goal = known.instance.problem.objective.goal
    if goal is not Goal.MIN_COST:
        return _or_better_ratio(known, best) if goal is Goal.MAX_GOODPUT_PER_DOLLAR else best
    fleet = leanest(known, promised)
    if fleet is promised:
        return best
    claim = proof_of_cost(proof.bound, None, fleet_cost(known.instance, fleet))
    return replace(found, volume=1.0), claim, fleet


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
        proof_of_cost(proof.bound, least_cost(known, effort.seconds()), fleet_cost(known.instance, fleet)),
        fleet,
    )


def best_of_all(
    known: Evaluated,
    space: Columns,
    priced: tuple[Columns, Totals],
    best: tuple[Found, Proof, Fleet],
    effort: Effort,
) -> tuple[Found, Proof, Fleet, list[Rival]]:
    """Compare with the best of each kind; where one of them turned out cheaper, recommend that kind's fleet."""
    instance = known.instance
    found, proof, fleet = best
    if classes_apart(instance.problem):
        return *best, [Rival(recommended(instance, fleet, proof, found.volume), fleet)]
    rivals = compare(
        known, space, priced, fleet, recommended(instance, fleet, proof, found.volume), effort=little(effort)
    )
    cost = fleet_cost(instance, fleet)
    ceiling = cost * (1.0 - OPTIMAL_GAP)
    cheaper = [rival for rival in rivals if (rival.row.cost_usd_per_hour or cost) < ceiling]
    for kind in kinds(instance, space):
        if kind.label not in [rival.row.label for rival in cheaper[:1]]:
            continue
        some = space.take(kind.mask(instance, space))
        other, _, promised = find_that_holds(instance, some, price_space(instance, some), effort)
        both = [one for one in (trimmed(instance, promised), cheaper[0].fleet) if one.pools]
        rival = min(both, key=lambda one: fleet_cost(instance, one))
        claim = proof_of_cost(proof.bound, proof.floor, fleet_cost(instance, rival))
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


def _of_stricter(proof: Proof, bound: float | None) -> Proof:
    """What a fleet of a stricter problem proves for the one that was asked, whose own bound is known [$/h]."""
    status = Status.FEASIBLE if proof.status is Status.OPTIMAL else proof.status
    if bound is None or proof.bound is None or proof.gap is None:
        return Proof(status, None, None)
    return Proof(status, bound, 1.0 - bound * (1.0 - proof.gap) / proof.bound)


def aim_of(problem: Problem) -> Aim:
    """What the search minimises. Prices are scaled, so that doubling all of them changes no digit of the search."""
    return Aim(cost_weight=1.0 / max(offer.usd_per_hour for offer in problem.offers))


def find(
    instance: Instance, space: Columns, priced: tuple[Columns, Totals], effort: Effort
) -> tuple[Found, Columns, Proof]:
    """Search for the goal of the problem: the result, the columns it was found among, and what was proven."""
    problem, aim = instance.problem, aim_of(instance.problem)
    if problem.objective.goal is not Goal.MIN_COST:
        choose = most_goodput if problem.objective.goal is Goal.MAX_GOODPUT else best_ratio
        found, gap = choose(instance, space, aim, effort)
        return found, space, Proof(_status(found, gap), None, gap)
    columns, totals = priced
    found = search(instance, columns, totals, aim, effort)
    if not found.columns.size:
        return found, columns, Proof(_status(found, None), None, None)
    cost = fleet_cost(instance, make_fleet(instance, found))
    bound = min(found.bound / aim.cost_weight, cost)
    gap = gap_of(bound, cost)
    return found, columns, Proof(_status(found, gap), bound, gap)


def _status(found: Found, gap: float | None) -> Status:
    """Infeasible only where that is proven: a search that found nothing has merely run out of its effort."""
    if not found.columns.size:
        return Status.INFEASIBLE if found.outcome is Outcome.INFEASIBLE else Status.TIME_LIMIT
    return status_of(gap)


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
