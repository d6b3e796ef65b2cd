"""What scenarios of one workload share: everything that prices, limits on the fleet and the rate leave alone.

A scenario's text without those is the key; what is worked out for it is a pure function of that key (and of the rate),
kept for the scenarios to come. So a row is the same whether it is solved alone or after a thousand others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.errors import InputError
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.fleets.evaluate import Misses, holds, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.columns import ROLES, Columns, Grid, join, make_columns
from optimizer.loads.diagnose import check_floors
from optimizer.loads.instance import Instance, make_instance
from optimizer.loads.loads import Resource
from optimizer.rivals.by_evaluation import Evaluated, settings_of
from optimizer.solver.fleet_model import COLOCATED, DECODE, PREFILL
from optimizer.solver.simple_plans import (
    MOST_BUSY,
    Totals,
    block_counts,
    column_totals,
    joined,
    tailored,
    with_least_attention,
)
from optimizer.solver.split import splits
from search_spaces.engines import load_engine_overhead
from search_spaces.loader import problem_of_values
from search_spaces.problem import Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GRID = Grid(utilization=(0.7,), colocated_utilization=(0.75,))
"""One utilisation where the search has many: each column gets its own, the one that the demand needs (`tailored`)."""

ANY = 10_000_000
"""More GPUs than any fleet has."""

FEW_MISSES = 0.1
"""A pool that permits so few of the misses that may be leaves its partner nearly all: a larger one is never needed."""

Engines = tuple[int, int, int, int, int]
"""Role, shape, batch limit, token budget (as indices) and how many engines the demand needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One split of the latency limits between stages: the instance at 1 request/s, its columns and their totals."""

    instance: Instance
    space: Columns
    totals: Totals


@dataclass(frozen=True, slots=True, eq=False)
class Physics:
    """A problem at 1 request/s, free of prices and limits; floor: why its SLOs cannot be kept at any price, or ""."""

    problem: Problem
    ways: tuple[Way, ...]
    floor: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Pools of one role that could each serve the whole demand, P of them; none is better in all of GPUs and misses.

    offer, group, shape, seqs, chunk: indices; engines: that the demand needs; gpus: with spares; late (P, classes):
    misses as a share of those permitted.
    """

    offer: IntArray
    group: IntArray
    shape: IntArray
    seqs: IntArray
    chunk: IntArray
    engines: IntArray
    gpus: IntArray
    late: FloatArray

    def take(self, index: IntArray) -> Parts:
        """The pools at `index`."""
        return Parts(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What one way offers at one rate: pools of each role that promise, and what the evaluation says of any pools."""

    roles: tuple[Parts, Parts, Parts]
    known: Evaluated


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
    inputs = dict(problem.inputs) | {
        "name": "physics",
        "seed": 0,
        "confidence": 0.0,
        "objective": {"goal": "min_cost"},
        "workload": problem.inputs["workload"] | {"request_rate": 1.0, "diurnal": None},
        "constraints": {"headroom": {"replicas": problem.constraints.spare_replicas}},
        "accelerators": [
            entry
            | {"price": 1.0, "inventory": None, "billing": "gpu"}
            | ({"owned": ANY, "owned_price": 1.0} if entry.get("owned") else {})
            for entry in problem.inputs["accelerators"]
        ],
    }
    return _physics(json.dumps(inputs, sort_keys=True), base, problem.confidence)


@lru_cache(maxsize=12)
def _physics(text: str, base: Path, confidence: float) -> Physics:
    problem = replace(problem_of_values(json.loads(text), "scenario", base), confidence=confidence)
    expected = make_instance(problem, load_engine_overhead(problem.engine, problem.engine_changes))
    try:
        check_floors(expected)
    except InputError as error:
        return Physics(problem, (), str(error).splitlines()[0].partition(": ")[2].partition(": ")[2])
    slow = at_quantile(expected, slow_end(problem.confidence))
    whole = any(slo.e2e is not None for slo in problem.slos)
    ways: list[Way] = []
    for flows in splits(problem):
        instance = replace(slow, flows=flows)
        space = make_columns(instance, GRID)
        if ways and not whole:  # pools where roles are together do not feel the split
            space = space.take(space.role != COLOCATED)
        ways.append(Way(instance, space, column_totals(instance, space)))
    return Physics(problem, tuple(ways), "")


def at_rate(instance: Instance, rate: float) -> Instance:
    """The same instance for another demand [1/s]; it stands for 1 request/s."""
    return replace(instance, flows=replace(instance.flows, rate=instance.flows.rate * rate))


@lru_cache(maxsize=24)
def choices(physics: Physics, rate: float) -> tuple[Choice, ...]:
    """The pools worth considering at a rate [1/s], for each way."""
    return tuple(_choice(physics, way, rate) for way in physics.ways)


def _choice(physics: Physics, way: Way, rate: float) -> Choice:
    instance, spares = at_rate(way.instance, rate), physics.problem.constraints.spare_replicas
    columns, totals = way.space, way.totals.scaled(rate)
    keep = _worth_tailoring(instance, columns, totals, totals.apart)
    seeds, seed_totals = columns.take(keep), totals.take(keep)
    narrow = with_least_attention(instance, seeds, seed_totals)
    more = column_totals(instance, narrow)
    near, near_totals = join([columns, narrow]), joined(totals, more)
    busy = np.where(near.role == DECODE, near_totals.apart, near_totals.running)
    keep = _worth_tailoring(instance, near, near_totals, busy)
    extra = tailored(instance, near.take(keep), near_totals.take(keep))
    every = join([columns, narrow, extra])
    priced = joined(joined(totals, more), column_totals(instance, extra))
    known = Evaluated.of(instance, settings_of(every, priced))
    return Choice(_parts(instance, every, priced, spares), known)


def _worth_tailoring(instance: Instance, columns: Columns, totals: Totals, busy: FloatArray) -> NDArray[np.bool_]:
    """Columns that with just the right operating point need fewer GPUs than the best of their kind as it is.

    busy (columns,): load of other resources than the prompt servers, at least. Pools that have a partner may also need
    as many, as they may then miss less.
    """
    spares = instance.problem.constraints.spare_replicas
    tables, role = instance.tables, columns.role
    kinds = np.stack([role, tables.offer[columns.shape], tables.group[role, columns.shape]])
    kind = np.unique(kinds, axis=1, return_inverse=True)[1].ravel()
    alone = role == COLOCATED
    sure = np.isfinite(totals.busiest) & (totals.late.max(axis=1) <= np.where(alone, 1.0, FEW_MISSES))
    most = np.full(int(kind.max(initial=0)) + 1, np.inf)
    np.minimum.at(most, kind[sure], _gpus(instance, columns, block_counts(totals.busiest), spares)[sure])
    least = _gpus(instance, columns, block_counts(np.maximum(busy, totals.prompt / MOST_BUSY)), spares)
    return np.asarray(np.where(alone, least < most[kind], least <= most[kind]))


def _gpus(instance: Instance, columns: Columns, blocks: FloatArray, spares: int) -> FloatArray:
    """GPUs of so many blocks and their spare engines."""
    return np.asarray((blocks * columns.replicas + spares) * instance.tables.gpus[columns.shape])


def _parts(instance: Instance, columns: Columns, totals: Totals, spares: int) -> tuple[Parts, Parts, Parts]:
    """The undominated pools of each role."""
    able = np.flatnonzero(np.isfinite(totals.busiest) & (totals.late <= 1.0).all(axis=1))
    columns, late = columns.take(able), totals.late[able]
    blocks = block_counts(totals.busiest[able])
    shape = columns.shape
    every = Parts(
        offer=instance.tables.offer[shape],
        group=instance.tables.group[columns.role, shape],
        shape=shape,
        seqs=np.where(columns.role == PREFILL, 0, columns.seqs),
        chunk=columns.chunk,
        engines=(blocks * columns.replicas).astype(np.int64),
        gpus=_gpus(instance, columns, blocks, spares).astype(np.int64),
        late=late,
    )
    prefill, decode, together = (
        every.take(_front(every, np.flatnonzero(columns.role == role))) for role in (PREFILL, DECODE, COLOCATED)
    )
    return prefill, decode, together


def _front(parts: Parts, index: IntArray) -> IntArray:
    """Those of `index` that no other of their offer and group beats both in GPUs and in the misses of every class."""
    kept: list[int] = []
    for offer, group in np.unique(np.stack([parts.offer[index], parts.group[index]]), axis=1).T:
        mine = index[(parts.offer[index] == offer) & (parts.group[index] == group)]
        kept += _undominated(mine, parts)
    return np.array(kept, dtype=np.int64)


def _undominated(index: IntArray, parts: Parts) -> list[int]:
    gpus, late = parts.gpus[index], parts.late[index]
    quick = (late <= FEW_MISSES).all(axis=1)
    near = gpus <= gpus[quick].min() if quick.any() else np.ones(index.size, dtype=np.bool_)
    index = index[near]
    order = index[np.lexsort((parts.engines[index], *parts.late[index].T[::-1], parts.gpus[index]))]
    best, kept = np.full((0, parts.late.shape[1]), np.inf), []
    for candidate in order:  # of more GPUs than all before: kept where it misses less in some class
        if not (best <= parts.late[candidate] + 1e-12).all(axis=1).any():
            kept.append(int(candidate))
            best = np.concatenate([best, parts.late[candidate : candidate + 1]])
    return kept


def fleet_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> Fleet:
    """The fleet of these pools, each of which serves all of its stage."""
    spares, flows = physics.problem.constraints.spare_replicas, physics.ways[way].instance.flows.isl.size
    return Fleet(tuple(_pool(engines, spares, flows) for engines in pools))


def _pool(engines: Engines, spares: int, flows: int) -> FleetPool:
    role = ROLES[engines[0]]
    return FleetPool(f"{role.value}-1", role, *engines[1:], spares, np.ones(flows))


@lru_cache(maxsize=20_000)
def is_held(physics: Physics, way: int, rate: float, pools: tuple[Engines, ...]) -> bool:
    """Whether the evaluation shows that a fleet keeps every goal at a rate [1/s]."""
    instance = physics.ways[way].instance
    return holds(instance, predict_misses(instance, fleet_of(physics, way, pools), rate))


@lru_cache(maxsize=20_000)
def break_of(physics: Physics, way: int, pools: tuple[Engines, ...]) -> Break:
    """How many requests a fleet can serve within its SLOs, and what gives out first beyond that."""
    instance, fleet = physics.ways[way].instance, fleet_of(physics, way, pools)
    most = largest_load(lambda volume: holds(instance, predict_misses(instance, fleet, volume)), tolerance=2e-4)
    before, after = (predict_misses(instance, fleet, max(most, 1e-3) * factor) for factor in (1.0, 1.01))
    resource, pool = max(_reasons(instance, fleet, before, after), key=lambda reason: reason[0])[1:]
    return Break(most, resource, pool)


def _reasons(instance: Instance, fleet: Fleet, before: Misses, after: Misses) -> Iterator[tuple[float, Resource, str]]:
    """How much each reason to miss grows between two loads, with what is behind it and in which pool."""
    share = instance.flows.share
    first = next(pool for pool in fleet.pools if pool.role is not Role.DECODE)
    last = next(number for number, pool in enumerate(fleet.pools) if pool.role is not Role.PREFILL)
    pool, state = fleet.pools[last], after.states[last]
    crowded = Resource.KV_MEMORY if state.memory >= state.running / instance.tables.seqs[pool.seqs] else Resource.SLOTS
    yield float(share @ (after.ttft - before.ttft)), Resource.TIME, first.name
    yield float(share @ (after.tpot - before.tpot)), Resource.ATTENTION_TIME, pool.name
    yield float(share @ (after.full - before.full)), crowded, pool.name
