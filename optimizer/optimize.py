"""`optimize`: from a problem to a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from search_spaces.engines import load_engine_overhead
from search_spaces.enumeration import enumerate_shapes
from search_spaces.problem import Goal, Problem

from .alternatives import compare, describe_miss, recommended
from .build_plan import Proof, build_plan, fleet_cost, provenance
from .columns import Columns, Grid, make_columns
from .diagnose import check_floors, check_shapes, with_fewer_misses
from .evaluate import holds, predict_misses
from .fleet import Fleet, make_fleet, polish
from .fleet_model import Aim
from .instance import Instance, make_instance
from .plan import Binding, Plan, RunInfo, Status
from .program import Outcome
from .ratio import best_ratio
from .search import Effort, Found, search
from .simple_plans import Totals, column_totals, price_space

Progress = Callable[[str, float], None]

OPTIMAL_GAP = 1e-4
REPAIRS = 3
"""Times that a fleet which misses a goal is searched for again."""

MOST_VOLUME = 1e4
"""Largest multiple of the demand that `max_goodput` looks for."""


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


def optimize(problem: Problem, progress: Progress | None = None, time_limit: float = 30.0) -> Plan:
    """Find the best fleet for a problem.

    progress is called with a label and the fraction done; time_limit bounds each whole-number search [s].
    Raises InputError when the model fits on no engine of the space or an SLO is below the physical floor.
    A problem without a feasible fleet gives a plan of status `infeasible` that names what is in the way.
    """
    watch = Stopwatch(progress, {}, time.perf_counter())
    watch.stage("pricing engines", 0.05)
    check_shapes(problem, enumerate_shapes(problem))
    instance = make_instance(problem, load_engine_overhead(problem.engine))
    check_floors(instance)
    space = make_columns(instance, Grid())
    columns, totals = price_space(instance, space)
    watch.stage("searching fleets", 0.3)
    effort = Effort(time_limit=time_limit / 6.0)
    found, proof, fleet = find_that_holds(instance, (columns, totals), effort)
    watch.stage("comparing alternatives", 0.6)
    shortfalls: list[Binding] = []
    if fleet.pools:
        alternatives = compare(instance, space, (columns, totals), recommended(instance, fleet, proof))
    else:
        alternatives, shortfalls = describe_miss(instance)
    watch.stage("writing the plan", 0.95)
    volume = found.volume if fleet.pools else 1.0
    size = search_summary(instance, space, columns, found)
    created = datetime.now(tz=UTC).isoformat(timespec="seconds")
    draft = provenance(instance, size, RunInfo(created=created, command="", timings_s={}))
    plan = build_plan(
        instance,
        fleet,
        proof=proof,
        volume=volume,
        alternatives=alternatives,
        shortfalls=shortfalls,
        origin=draft,
    )
    watch.stage("done", 1.0)
    timings = {label: seconds for label, seconds in watch.timings.items() if label != "done"}
    run = RunInfo(created=created, command="", timings_s=timings)
    return plan.model_copy(update={"provenance": draft.model_copy(update={"run": run})})


def find_that_holds(instance: Instance, priced: tuple[Columns, Totals], effort: Effort) -> tuple[Found, Proof, Fleet]:
    """Search, evaluate, and where the fleet misses a goal at its real loads, search again for a stricter one.

    The loads promise each goal to within approximations of the queues; the evaluation has the last word, so that a
    fleet which misses is never called feasible. Each round halves the misses that the search may plan on.
    """
    columns, totals = priced
    strict = instance
    for round_ in range(REPAIRS + 1):
        found, proof = find(strict, columns, totals, effort)
        fleet = make_fleet(strict, polish(strict, columns, found))
        if not fleet.pools or holds(instance, predict_misses(instance, fleet, found.volume)):
            return found, proof if round_ == 0 else replace(proof, status=_not_proven(proof.status)), fleet
        strict = replace(strict, problem=with_fewer_misses(strict.problem, 0.5))
        totals = column_totals(strict, columns)
    return found, Proof(Status.INFEASIBLE, None, None), Fleet(())


def _not_proven(status: Status) -> Status:
    """A bound of a stricter problem does not bound the one that was asked."""
    return Status.FEASIBLE if status is Status.OPTIMAL else status


def aim_of(problem: Problem) -> Aim:
    """What the search minimises. Prices are scaled, so that doubling all of them changes no digit of the search."""
    scale = 1.0 / max(offer.usd_per_hour for offer in problem.offers)
    if problem.objective.goal is Goal.MAX_GOODPUT:
        return Aim(cost_weight=1e-7 * scale, volume_weight=1.0, min_volume=0.0, max_volume=MOST_VOLUME)
    return Aim(cost_weight=scale)


def find(instance: Instance, columns: Columns, totals: Totals, effort: Effort) -> tuple[Found, Proof]:
    """Search for the goal of the problem and say what was proven."""
    problem = instance.problem
    aim = aim_of(problem)
    if problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
        found, gap = best_ratio(instance, columns, totals, aim, effort)
        return found, Proof(_status(found, gap), None, gap)
    found = search(instance, columns, totals, aim, effort)
    if problem.objective.goal is Goal.MAX_GOODPUT:
        if found.volume <= 0.0:
            found = replace(found, blocks=found.blocks[:0], columns=found.columns.take(np.zeros(0, dtype=np.int64)))
            return found, Proof(Status.INFEASIBLE, None, None)
        gap = max(0.0, 1.0 - found.objective / min(found.bound, found.objective)) if found.bound else 0.0
        return found, Proof(_status(found, gap), None, gap)
    if found.outcome not in {Outcome.OPTIMAL, Outcome.FEASIBLE}:
        return found, Proof(_status(found, None), None, None)
    cost = fleet_cost(instance, make_fleet(instance, found))
    bound = min(found.bound / aim.cost_weight, cost)
    gap = 1.0 - bound / cost
    return found, Proof(_status(found, gap), bound, gap)


def _status(found: Found, gap: float | None) -> Status:
    if found.outcome is Outcome.INFEASIBLE:
        return Status.INFEASIBLE
    if found.outcome is Outcome.NOTHING_FOUND or gap is None:
        return Status.TIME_LIMIT
    return Status.OPTIMAL if gap <= OPTIMAL_GAP else Status.FEASIBLE


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
