"""What scenarios of one workload share: everything that prices, limits on the fleet and the rate leave alone.

A scenario's text without those is the key; what is worked out for it is a pure function of that key (and of the rate),
kept for the scenarios to come. So a row is the same whether it is solved alone or after a thousand others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.fleets.evaluate import Misses, fuller, holds_at, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.diagnose import check_floors
from optimizer.loads.engine_table import Resource
from optimizer.loads.flows import splits
from optimizer.loads.instance import (
    COLOCATED,
    DECODE,
    PREFILL,
    ROLES,
    Instance,
    Settings,
    at_volume,
    instance_of_problem,
    make_settings,
)
from optimizer.search.bound import keeping_up, least_cost
from optimizer.search.search import FleetSearch, Picks
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem

FloatArray = NDArray[np.float64]

ANY = 10_000_000
"""More GPUs than any fleet has."""

Engines = tuple[int, int, int, int, int]
"""Role, shape, batch limit, token budget (as indices) and how many engines the demand needs."""
Engine = tuple[int, int, int, int]
"""Role, shape and token budget of an engine (as indices), and how many of it."""
Refuted = frozenset[tuple[Engine, ...]]
"""The pools of each fleet that did not hold when it was simulated."""
NONE: Refuted = frozenset()


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
    expected = instance_of_problem(problem)
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
    return Physics(problem, tuple(Way(instance, make_settings(instance)) for instance in instances), "")


# --- fleets ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=48)
def evaluated_at(physics: Physics, rate: float) -> tuple[FleetSearch, ...]:
    """What the evaluation says of any pools at a rate [1/s], for each way."""
    return tuple(FleetSearch.of(at_volume(way.instance, rate), way.settings) for way in physics.ways)


def fleet_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> Fleet:
    """The fleet of these pools, each of which serves all of its stage."""
    spares, route = physics.problem.constraints.spare_replicas, np.ones(physics.ways[way].instance.flows.isl.size)
    named = ((ROLES[engines[0]], engines[1:]) for engines in pools)
    return Fleet(tuple(FleetPool(f"{role.value}-1", role, *engine, spares, route) for role, engine in named))


def engines_of(pool: FleetPool) -> Engines:
    """The engines of a pool."""
    return ROLES.index(pool.role), pool.shape, pool.seqs, pool.chunk, pool.replicas


@lru_cache(maxsize=20_000)
def break_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> tuple[float, str]:
    """The highest rate at which a fleet keeps every goal [1/s], and what gives out first beyond it, in which pool."""
    instance, fleet = physics.ways[way].instance, fleet_of(physics, way, pools)
    most = largest_load(lambda rate: holds_at(instance, fleet, rate), tolerance=2e-4)
    before, after = (predict_misses(instance, fleet, max(most, 1e-3) * factor) for factor in (1.0, 1.01))
    _, resource, pool = max(_reasons(instance, fleet, before, after), key=lambda reason: reason[0])
    return most, f"{resource} of {pool}"


def _reasons(instance: Instance, fleet: Fleet, before: Misses, after: Misses) -> Iterator[tuple[float, Resource, str]]:
    """How much each reason to miss grows between two loads, with what is behind it and in which pool."""
    share = instance.flows.share
    first = next(pool for pool in fleet.pools if pool.role is not Role.DECODE)
    last = next(number for number, pool in enumerate(fleet.pools) if pool.role is not Role.PREFILL)
    pool = fleet.pools[last]
    yield float(share @ (after.ttft - before.ttft)), Resource.TIME, first.name
    yield float(share @ (after.tpot - before.tpot)), Resource.ATTENTION_TIME, pool.name
    yield float(share @ (after.full - before.full)), fuller(instance, pool, after.states[last]), pool.name


# --- fleets that a simulation refuted -------------------------------------------------------------------------------


def refuted_with(pools: Iterable[Engines]) -> tuple[Engine, ...]:
    """What is refuted with a fleet: so many of its engines, whatever their batch limit.

    >>> refuted_with([(0, 7, 0, 2, 3), (1, 4, 5, 0, 1)])
    ((0, 7, 2, 3), (1, 4, 0, 1))
    """
    return tuple((role, shape, chunk, replicas) for role, shape, _seqs, chunk, replicas in pools)


@dataclass(frozen=True, slots=True, eq=False)
class Remaining(FleetSearch):
    """The same, less the fleets that were refuted, and those that have no more of the same engines in any pool."""

    refuted: Refuted = NONE

    @classmethod
    def after(cls, evaluated: FleetSearch, refuted: Refuted) -> FleetSearch:
        """What is left of what was evaluated; the states of pools stay known."""
        if not refuted:
            return evaluated
        values = {field.name: getattr(evaluated, field.name) for field in fields(evaluated)}
        return cls(**values | {"pool_sizes": {}, "held": {}, "refuted": refuted})

    def carries(self, picks: Picks, volume: float) -> bool:
        """Whether a fleet keeps every goal at `volume` times the demand as evaluated, and is not refuted there."""
        role, shape, chunk = self.settings.role, self.settings.shape, self.settings.chunk
        engines = [(int(role[at]), int(shape[at]), int(chunk[at]), count) for at, count in picks]
        return not (volume >= 1.0 and self._lost(engines)) and FleetSearch.carries(self, picks, volume)

    def _lost(self, engines: list[Engine]) -> bool:
        """Whether a refuted fleet has the same kinds of engines, and as many or more of each."""
        return any(
            [engine[:3] for engine in engines] == [engine[:3] for engine in other]
            and all(engine[3] <= more[3] for engine, more in zip(engines, other, strict=True))
            for other in self.refuted
        )


@lru_cache(maxsize=48)
def remaining_at(physics: Physics, rate: float, refuted: Refuted) -> tuple[FleetSearch, ...]:
    """What the evaluation says of any pools at a rate [1/s], for each way, less the fleets that were refuted there."""
    return tuple(Remaining.after(evaluated, refuted) for evaluated in evaluated_at(physics, rate))


# --- floors ---------------------------------------------------------------------------------------------------------


def floor_cost(problem: Problem, physics: Physics) -> float:
    """What no fleet that keeps up with the demand can cost less than [$/h], in next to no time.

    Parts of engines: each flow goes to the colocated engine that takes it for the least, or to the cheapest prefill and
    decode engines. And at least one whole engine in each role, with its spares.
    """
    floors = []
    for evaluated in evaluated_at(physics, problem.workload.request_rate):
        tables, settings = evaluated.instance.tables, evaluated.settings
        prices = np.array([offer.usd_per_hour for offer in problem.offers])
        engine = (tables.gpus * prices[tables.offer])[settings.shape]
        need = _engines_kept_busy(evaluated) * engine[:, None]
        whole = (1 + problem.constraints.spare_replicas) * engine
        cheapest, first = (
            {role: costs[settings.role == role].min(axis=0, initial=np.inf) for role in (PREFILL, DECODE, COLOCATED)}
            for costs in (need, whole)
        )
        shared = np.minimum(cheapest[COLOCATED], cheapest[PREFILL] + cheapest[DECODE]).sum()
        floors.append(max(float(shared), min(float(first[COLOCATED]), float(first[PREFILL] + first[DECODE]))))
    return min(floors, default=0.0)


@lru_cache(maxsize=64)
def _engines_kept_busy(evaluated: FleetSearch) -> FloatArray:
    """Engines of each setting that each flow keeps busy at least, (settings, flows)."""
    return np.asarray(keeping_up(evaluated.instance, evaluated.settings) * evaluated.instance.flows.rate)


def lower_bound(problem: Problem, base: Path) -> float | None:
    """What no fleet of whole engines, the budget apart, can cost less than [$/h]; None where none can hold.

    base: folder of the files that the problem names. Half a second or more.
    """
    free = replace(problem, constraints=replace(problem.constraints, budget=None))
    prices, floors = np.array([offer.usd_per_hour for offer in problem.offers]), []
    for way in physics_of(free, base).ways:
        instance = at_volume(way.instance, problem.workload.request_rate)
        tables = replace(instance.tables, usd_per_hour=instance.tables.gpus * prices[instance.tables.offer])
        floors.append(least_cost(replace(instance, problem=free, tables=tables), way.settings))
    return min((floor for floor in floors if floor is not None), default=None)
