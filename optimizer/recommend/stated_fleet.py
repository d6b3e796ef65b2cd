"""A fleet that was stated and not searched for: its instance, its routing, and its plan by formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.fleets.build_plan import build_plan, provenance
from optimizer.fleets.error_bars import at_quantile, class_error_bars, slow_end
from optimizer.fleets.evaluate import largest_load
from optimizer.fleets.fleet import Fleet, FleetPool, can_hand_over
from optimizer.fleets.plan_fleet import engines_of, fleet_of_plan, planned_volume
from optimizer.fleets.pool_state import pool_state
from optimizer.loads.instance import Instance, make_instance
from optimizer.plans.plan import Plan, RunInfo, Status
from optimizer.plans.proof import Proof
from optimizer.search.limits import shared_out
from search_spaces.engines import load_engine_overhead
from search_spaces.fleet_file import StatedFleet, StatedPool
from search_spaces.loader import problem_of
from search_spaces.problem import Goal, Problem

FloatArray = NDArray[np.float64]


LEAST_CAPACITY = 1e-9
"""Of a pool that keeps up with nothing [1/s]: where all are such, each gets as much as the others."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A fleet to evaluate.

    expected: its instance with expected step times; instance: with those at the problem's confidence; resize: the same
    fleet with other replicas, routed as it would be; wanted: the problem whose cheapest fleet is set beside it; volume:
    multiple of the demand that it serves.
    """

    expected: Instance
    instance: Instance
    fleet: Fleet
    resize: Callable[[tuple[int, ...]], Fleet]
    wanted: Problem
    name: str
    volume: float = 1.0

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each pool."""
        return tuple(pool.replicas for pool in self.fleet.pools)


def subject_of(stated: StatedFleet) -> Subject:
    """A stated fleet; each flow is split over the pools of a stage that may get it, in proportion to their capacity.

    Raises InputError for requests that no pool gets, and for pools that cannot hand over what they get.
    """
    expected, instance = _instances(stated.problem)
    masks = [_served(instance, pool) for pool in stated.pools]
    _check_served(instance, stated, masks)

    def resize(replicas: tuple[int, ...]) -> Fleet:
        pools = zip(stated.pools, replicas, masks, strict=True)
        return routed(instance, [engines_of(instance, pool, number, mask) for pool, number, mask in pools])

    fleet = resize(tuple(pool.replicas for pool in stated.pools))
    if not can_hand_over(instance, fleet):
        raise InputError(f"{stated.name}: its prefill pools cannot hand all their requests over to its decode pools")
    return Subject(expected, instance, fleet, resize, stated.wanted, stated.name)


def subject_of_plan(plan: Plan, base: Path | None = None) -> Subject:
    """The fleet of a plan with its spares, routed as the plan has it; base: see `fleet_of_plan`."""
    expected, serving = fleet_of_plan(plan, base)
    instance = at_quantile(expected, slow_end(expected.problem.confidence))
    spares = {pool.id: pool.spare_replicas for pool in plan.pools}
    fleet = Fleet(tuple(replace(pool, spares=spares[pool.name]) for pool in serving.pools))

    def resize(replicas: tuple[int, ...]) -> Fleet:
        return Fleet(tuple(replace(pool, replicas=n) for pool, n in zip(fleet.pools, replicas, strict=True)))

    wanted = problem_of(plan.provenance.inputs, "provenance.inputs", base or Path())
    volume = 1.0 if wanted.objective.goal is Goal.MIN_COST else planned_volume(plan)
    return Subject(expected, instance, fleet, resize, wanted, plan.name, volume)


def _instances(problem: Problem) -> tuple[Instance, Instance]:
    """The instance with expected step times, and the one that is planned on."""
    expected = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    return expected, at_quantile(expected, slow_end(problem.confidence))


def _served(instance: Instance, pool: StatedPool) -> FloatArray:
    """1 for each flow that a pool may get, else 0, (flows,)."""
    flows, names = instance.flows, [slo.name for slo in instance.problem.slos]
    classes = [names.index(name) for name in pool.slo_classes] or list(range(len(names)))
    low, high = pool.lengths
    return np.asarray(np.isin(flows.slo, classes) & (flows.isl >= low) & (flows.isl < high), dtype=np.float64)


def _check_served(instance: Instance, stated: StatedFleet, masks: list[FloatArray]) -> None:
    """Raise InputError for requests whose prompt no pool computes, or whose tokens none generates."""
    flows = instance.flows
    roles = [pool.role for pool in stated.pools]
    colocated, prefill, decode = (
        sum((mask for mask, other in zip(masks, roles, strict=True) if other == role), np.zeros(flows.isl.size))
        for role in (Role.COLOCATED, Role.PREFILL, Role.DECODE)
    )
    for what, lost in (
        ("no pool computes the prompts", (colocated == 0.0) & (prefill == 0.0)),
        ("no decode pool takes the requests", (prefill > 0.0) & (decode == 0.0)),
    ):
        if lost.any():
            flow = int(np.argmax(lost))
            name = instance.problem.slos[int(flows.slo[flow])].name
            raise InputError(
                f"{stated.name}: {what} of class {name} with an ISL of {flows.isl[flow]:,.0f}; widen slo_classes or "
                "isl of a pool"
            )


def routed(instance: Instance, pools: list[FleetPool]) -> Fleet:
    """The pools with each flow split among those of a stage that may get it, in proportion to their capacity.

    route of each pool (flows,): 1 where it may get the flow, else 0.
    """
    roles = {pool.role for pool in pools}
    alone = len(roles) == len(pools) and not {Role.PREFILL, Role.COLOCATED} <= roles
    capacities = [1.0 if alone else max(_capacity(instance, pool), LEAST_CAPACITY) for pool in pools]
    return shared_out(pools, [pool.route * capacity for pool, capacity in zip(pools, capacities, strict=True)])


def _capacity(instance: Instance, pool: FleetPool) -> float:
    """Requests that a pool keeps up with, of those that it may get, by formula [1/s]."""
    rate = float(instance.flows.rate @ pool.route)
    return rate * largest_load(lambda load: pool_state(instance, pool, load).stable)


def plan_of(subject: Subject) -> Plan:
    """The plan of a fleet that was stated, by formula: nothing is said of other fleets."""
    instance, fleet = subject.instance, subject.fleet
    run = RunInfo(created=datetime.now(tz=UTC).isoformat(timespec="seconds"), command="", timings_s={})
    plan = build_plan(
        instance,
        fleet,
        bars=class_error_bars(replace(instance, tables=subject.expected.tables), fleet, subject.volume),
        proof=Proof(Status.STATED, None, None),
        volume=subject.volume,
        alternatives=[],
        shortfalls=[],
        origin=provenance(instance, {}, run),
    )
    return plan.model_copy(update={"name": subject.name})
