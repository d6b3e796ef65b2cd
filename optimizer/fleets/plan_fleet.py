"""From a plan file back to what it was made from: the problem, and the fleet as the search saw it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError
from costmodel.quoting import shown
from optimizer.loads.instance import Instance, make_instance
from optimizer.plans.plan import Plan, Pool
from optimizer.plans.records import EnginePool
from search_spaces.fleet_file import StatedPool
from search_spaces.loader import problem_of
from search_spaces.problem import Problem

from .fleet import Fleet, FleetPool

FloatArray = NDArray[np.float64]

SAME_LENGTH = 1e-9
"""Relative difference up to which a length of the routing is that of a flow."""


def problem_of_plan(plan: Plan, base: Path | None = None) -> Problem:
    """The problem that a plan states in its provenance; InputError for one with faults.

    base: folder from which the files that the problem names (a model config, a catalog) are looked up.
    """
    return problem_of(plan.provenance.inputs, "provenance.inputs", base or Path())


def fleet_of_plan(plan: Plan, base: Path | None = None) -> tuple[Instance, Fleet]:
    """The problem that a plan states in its provenance, with expected step times, and its fleet; spares are left out.

    base: see `problem_of_plan`. Raises InputError for a plan without a fleet, or whose pools or routing do not fit its
    own problem.
    """
    if not plan.pools:
        raise InputError(
            f"the plan {shown(plan.name)} has no fleet (its status is {plan.status}), so nothing can be served"
        )
    instance = make_instance(problem_of_plan(plan, base))
    _check_routes(plan, instance)
    return instance, Fleet(tuple(_pool(plan, instance, pool) for pool in plan.pools))


def planned_volume(plan: Plan) -> float:
    """Multiple of the demand that the plan serves: 1, unless its goal was to find the most."""
    prompts = [pool.operating_point.request_rate_rps for pool in plan.pools if pool.role != Role.DECODE.value]
    return sum(prompts) / plan.demand_rps if plan.demand_rps > 0.0 else 1.0


def _check_routes(plan: Plan, instance: Instance) -> None:
    flows, slos = instance.flows, instance.problem.slos
    if len(plan.routing) != flows.asked:
        raise InputError(f"routing: it has {len(plan.routing)} rows for {flows.asked} classes x lengths of the inputs")
    for number, route in enumerate(plan.routing):
        lengths = np.isclose([route.isl, route.osl], [flows.isl[number], flows.osl[number]], rtol=SAME_LENGTH)
        if route.slo_class != slos[int(flows.slo[number])].name or not lengths.all():
            raise InputError(f"routing.{number}: its class and lengths are not those of row {number} of the inputs")


def _pool(plan: Plan, instance: Instance, pool: Pool) -> FleetPool:
    routes = (route.decode if Role(pool.role) is Role.DECODE else route.prefill for route in plan.routing)
    share = np.array([float(route.get(pool.id, 0.0)) for route in routes])
    return engines_of(
        instance, pool, pool.id, max(pool.replicas - pool.spare_replicas, 1), share[instance.flows.source]
    )


def engines_of(
    instance: Instance, pool: EnginePool | StatedPool, name: str, replicas: int, route: FloatArray
) -> FleetPool:
    """The pool as the search sees it, without spares; route (flows,): share of each flow that it serves [1].

    Raises InputError for settings that the instance does not have.
    """
    tables, role = instance.tables, Role(pool.role)
    seqs, chunk = pool.max_num_seqs or 0, pool.max_num_batched_tokens or 0
    shape = _shape(instance, pool, name)
    least = role is Role.DECODE and chunk == max(int(tables.chunks[0]), int(tables.verified[shape]) * seqs)
    return FleetPool(
        name=name,
        role=role,
        shape=shape,
        seqs=_setting(tables.seqs, seqs, name, "max_num_seqs"),
        chunk=0 if least else _setting(tables.chunks, chunk, name, "max_num_batched_tokens"),
        replicas=replicas,
        spares=0,
        route=route,
    )


def _shape(instance: Instance, pool: EnginePool | StatedPool, name: str) -> int:
    split = Parallelism(pool.tensor_parallel, pool.pipeline_parallel, pool.expert_parallel, pool.data_parallel)
    for number, shape in enumerate(instance.tables.shapes):
        same_accelerator = instance.problem.offers[shape.offer].accelerator.name == pool.accelerator
        own = (shape.weight_dtype, shape.kv_dtype, shape.speculative_tokens)
        same_settings = own == (pool.weight_dtype, pool.kv_dtype, pool.speculative_tokens)
        if same_accelerator and same_settings and shape.parallelism == split:
            return number
    raise InputError(
        f"pool {name}: no engine on {pool.accelerator} with these parallel degrees, {pool.weight_dtype} weights and "
        f"{pool.kv_dtype} KV cache is possible here"
    )


def _setting(values: FloatArray, value: int, pool: str, name: str) -> int:
    places = np.flatnonzero(values == value)
    if not places.size:
        raise InputError(f"pool {pool}: {name} {value} is not in the plan's search space")
    return int(places[0])
