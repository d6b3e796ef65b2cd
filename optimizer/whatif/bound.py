"""How far from the cheapest of all fleets a scenario's can be: its floor, and its place among others.

A fleet must not fall behind the demand (`rivals.floor`). Where parts of engines can be bought each request is served
where that is cheapest, which costs next to nothing to work out; with whole engines it takes a search.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.metric import Metric
from optimizer.loads.instance import Instance, at_volume
from optimizer.loads.settings import COLOCATED, DECODE, PREFILL
from optimizer.search.bound import keeping_up, least_cost
from optimizer.search.search import FleetSearch
from search_spaces.problem import Problem, Slo

from .physics import Physics, known_at, physics_of

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a problem stands among those that differ from it in prices, rate, SLOs and limits alone.

    family: digest of everything else; prices: of each offer [$/h]; hard: values that only make a problem harder as they
    grow, so that no fleet for it can cost less than the cheapest for one whose values are all as low.
    """

    family: str
    prices: tuple[float, ...]
    hard: tuple[float, ...]


def place_of(problem: Problem) -> Place:
    """The place of a problem; bounds leave a budget out, as it forbids other fleets at other prices."""
    inputs, limits = problem.inputs, problem.constraints
    rest = {
        **{key: value for key, value in inputs.items() if key not in {"name", "seed", "prices"}},
        "workload": _without(inputs["workload"], "request_rate"),
        "slo": [_without(slo, *Metric, "attainment") for slo in inputs["slo"]],
        "accelerators": [
            _without(one, "price", "catalog_price", "owned_price", "inventory") for one in inputs["accelerators"]
        ],
        "constraints": _without(inputs["constraints"], "budget", "power", "max_gpus", "max_pools"),
    }
    most = [limits.power, limits.max_gpus, limits.max_pools, *(offer.inventory for offer in problem.offers)]
    hard = [
        problem.workload.request_rate,
        *(value for slo in problem.slos for value in _hard(slo)),
        *(-math.inf if upper is None else -float(upper) for upper in most),
    ]
    family = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return Place(family, tuple(offer.usd_per_hour for offer in problem.offers), tuple(hard))


def _without(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _hard(slo: Slo) -> tuple[float, ...]:
    return *(-slo.limit(metric) for metric in Metric), slo.attainment


def floor_cost(problem: Problem, physics: Physics) -> float:
    """What no fleet that keeps up with the demand can cost less than [$/h].

    Parts of engines: each flow goes to the colocated engine that takes it for the least, or to the cheapest prefill and
    decode engines. And at least one whole engine in each role, with its spares.
    """
    found = []
    for known in known_at(physics, problem.workload.request_rate):
        instance, one = known.instance, known.settings
        prices = np.array([offer.usd_per_hour for offer in problem.offers])
        engine = (instance.tables.gpus * prices[instance.tables.offer])[one.shape]
        need = _engines_kept_busy(known) * engine[:, None]
        whole = (1 + problem.constraints.spare_replicas) * engine
        each = {role: _least(need[one.role == role], axis=0) for role in (PREFILL, DECODE, COLOCATED)}
        first = {role: _least(whole[one.role == role], axis=0) for role in each}
        parts = np.minimum(each[COLOCATED], each[PREFILL] + each[DECODE]).sum()
        found.append(max(float(parts), min(float(first[COLOCATED]), float(first[PREFILL] + first[DECODE]))))
    return min(found, default=0.0)


def _least(values: FloatArray, axis: int) -> FloatArray:
    return np.asarray(values.min(axis=axis, initial=np.inf))


@lru_cache(maxsize=64)
def _engines_kept_busy(known: FleetSearch) -> FloatArray:
    """Engines of each setting that each flow keeps busy at least, (settings, flows)."""
    return np.asarray(keeping_up(known.instance, known.settings) * known.instance.flows.rate)


def lower_bound(problem: Problem, base: Path) -> float | None:
    """What no fleet of whole engines, the budget apart, can cost less than [$/h]; None where none can hold.

    base: folder of the files that the problem names.
    """
    free = replace(problem, constraints=replace(problem.constraints, budget=None))
    physics = physics_of(free, base)
    ways = () if physics.floor else range(len(physics.ways))
    instances = (FleetSearch.of(priced_instance(free, physics, way), physics.ways[way].settings) for way in ways)
    return min((floor for known in instances if (floor := least_cost(known)) is not None), default=None)


def priced_instance(problem: Problem, physics: Physics, way: int) -> Instance:
    """The instance of one way of some physics at the rate, prices and limits of a problem."""
    instance = at_volume(physics.ways[way].instance, problem.workload.request_rate)
    prices = [offer.usd_per_hour for offer in problem.offers]
    tables = instance.tables
    usd = tables.gpus * [prices[offer] for offer in tables.offer]
    return replace(instance, problem=problem, tables=replace(tables, usd_per_hour=usd))
