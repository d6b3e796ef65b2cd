"""What scenarios of one workload share: everything that prices, limits on the fleet and the rate leave alone.

A scenario's text without those is the key; what is worked out for it is a pure function of that key (and of the rate),
kept for the scenarios to come. So a row is the same whether it is solved alone or after a thousand others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.fleets.evaluate import Misses, holds, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.fleets.headroom import fuller
from optimizer.loads.diagnose import check_floors
from optimizer.loads.flows import splits
from optimizer.loads.instance import Instance, at_volume, make_instance
from optimizer.loads.loads import Resource
from optimizer.loads.settings import ROLES, Settings, make_settings
from optimizer.search.search import FleetSearch
from search_spaces.engines import load_engine_overhead
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem

ANY = 10_000_000
"""More GPUs than any fleet has."""

Engines = tuple[int, int, int, int, int]
"""Role, shape, batch limit, token budget (as indices) and how many engines the demand needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One split of end-to-end limits between first and later tokens: the instance at 1 request/s, and its engines."""

    instance: Instance
    settings: Settings


@dataclass(frozen=True, slots=True, eq=False)
class Physics:
    """A problem at 1 request/s, free of prices and limits; floor: why its SLOs cannot be kept at any price, or ""."""

    problem: Problem
    ways: tuple[Way, ...]
    floor: str


@dataclass(frozen=True, slots=True)
class Break:
    """The highest rate at which a fleet keeps every goal [1/s], what gives out beyond it, and in which pool."""

    rate: float
    resource: Resource
    pool: str


def physics_of(problem: Problem, base: Path) -> Physics:
    """What a problem shares with every other that differs in prices, limits, rate or name alone.

    base: folder of the files that the problem names.
    """
    return _physics(physics_text(problem), base, problem.confidence)


def physics_text(problem: Problem) -> str:
    """The inputs of a problem less what its physics does not depend on, the confidence apart."""
    inputs = dict(problem.inputs) | {
        "name": "physics",
        "prices": None,
        "seed": 0,
        "confidence": 0.0,
        "objective": {"goal": "min_cost"},
        "workload": problem.inputs["workload"] | {"request_rate": 1.0, "diurnal": None},
        "constraints": {
            "headroom": {"replicas": problem.constraints.spare_replicas},
            "balancing": problem.constraints.balancing.value,
        },
        "accelerators": [
            entry
            | {"price": 1.0, "catalog_price": None, "inventory": None, "billing": "gpu"}
            | ({"owned": ANY, "owned_price": 1.0} if entry.get("owned") else {})
            for entry in problem.inputs["accelerators"]
        ],
    }
    return json.dumps(inputs, sort_keys=True)


@lru_cache(maxsize=48)
def _physics(text: str, base: Path, confidence: float) -> Physics:
    problem = replace(problem_of_values(json.loads(text), "scenario", base), confidence=confidence)
    expected = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    try:
        check_floors(expected)
    except InputError as error:
        return Physics(problem, (), str(error).splitlines()[0].partition(": ")[2].partition(": ")[2])
    return physics_at(expected)


def physics_at(expected: Instance) -> Physics:
    """The physics of an instance at 1 request/s, free of prices and limits, whose SLOs are above every floor."""
    problem = expected.problem
    slow = at_quantile(expected, slow_end(problem.confidence))
    instances = [replace(slow, flows=flows) for flows in splits(problem)]
    ways = [Way(instance, make_settings(instance)) for instance in instances]
    return Physics(problem, tuple(ways), "")


@lru_cache(maxsize=48)
def known_at(physics: Physics, rate: float) -> tuple[FleetSearch, ...]:
    """What the evaluation says of any pools at a rate [1/s], for each way."""
    return tuple(FleetSearch.of(at_volume(way.instance, rate), way.settings) for way in physics.ways)


def fleet_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> Fleet:
    """The fleet of these pools, each of which serves all of its stage."""
    spares, flows = physics.problem.constraints.spare_replicas, physics.ways[way].instance.flows.isl.size
    return Fleet(tuple(_pool(engines, spares, flows) for engines in pools))


def engines_of(pool: FleetPool) -> Engines:
    """The engines of a pool."""
    return ROLES.index(pool.role), pool.shape, pool.seqs, pool.chunk, pool.replicas


def _pool(engines: Engines, spares: int, flows: int) -> FleetPool:
    role = ROLES[engines[0]]
    return FleetPool(f"{role.value}-1", role, *engines[1:], spares, np.ones(flows))


@lru_cache(maxsize=20_000)
def break_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> Break:
    """How many requests a fleet can serve within its SLOs, and what gives out first beyond that."""
    here, fleet = physics.ways[way], fleet_of(physics, way, pools)
    instance = here.instance
    most = largest_load(lambda rate: holds(instance, predict_misses(instance, fleet, rate)), tolerance=2e-4)
    before, after = (predict_misses(instance, fleet, max(most, 1e-3) * factor) for factor in (1.0, 1.01))
    resource, pool = max(_reasons(instance, fleet, before, after), key=lambda reason: reason[0])[1:]
    return Break(most, resource, pool)


def _reasons(instance: Instance, fleet: Fleet, before: Misses, after: Misses) -> Iterator[tuple[float, Resource, str]]:
    """How much each reason to miss grows between two loads, with what is behind it and in which pool."""
    share = instance.flows.share
    first = next(pool for pool in fleet.pools if pool.role is not Role.DECODE)
    last = next(number for number, pool in enumerate(fleet.pools) if pool.role is not Role.PREFILL)
    pool = fleet.pools[last]
    yield float(share @ (after.ttft - before.ttft)), Resource.TIME, first.name
    yield float(share @ (after.tpot - before.tpot)), Resource.ATTENTION_TIME, pool.name
    yield float(share @ (after.full - before.full)), fuller(instance, pool, after.states[last]), pool.name
