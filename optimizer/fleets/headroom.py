"""How much more load each pool could take before an SLO breaks, and what would break it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.engine import Role
from optimizer.loads.instance import Instance
from optimizer.loads.loads import Resource

from .evaluate import Misses, holds, largest_load, predict_misses
from .fleet import Fleet, FleetPool
from .pool import PoolState


@dataclass(frozen=True, slots=True)
class Headroom:
    """One pool: `load` times its present load is the most that keeps every goal; `resource` gives out first."""

    load: float
    resource: Resource


LIGHT = 1e-3
"""Share of its load with which a pool is in nobody's way [1]."""


def pool_headroom(
    instance: Instance, fleet: Fleet, index: int, volume: float = 1.0, *, others: float = 1.0
) -> Headroom:
    """Raise the load of one pool until a goal breaks; others: share of their loads that the other pools keep [1]."""

    def at(factor: float) -> Misses:
        loads = np.full(len(fleet.pools), volume * others)
        loads[index] = volume * factor
        return predict_misses(instance, fleet, loads)

    most = largest_load(lambda factor: holds(instance, at(factor)), most=32.0)
    before = at(1.0) if most >= 1.0 else at(0.5 * most) if most > 0.0 else None
    return Headroom(most, _first_to_give(instance, fleet, index, before, at(max(most, LIGHT) * 1.01)))


def _first_to_give(instance: Instance, fleet: Fleet, index: int, before: Misses | None, after: Misses) -> Resource:
    """The resource behind the reason that grows most between two loads of a pool, or from nothing to the second."""

    def grown(reason: str) -> float:
        more = getattr(after, reason) - (0.0 if before is None else getattr(before, reason))
        return float(instance.flows.share @ more)

    pool, state = fleet.pools[index], after.states[index]
    if pool.role is Role.PREFILL:
        return Resource.TIME
    growth = {fuller(instance, pool, state): grown("full"), Resource.ATTENTION_TIME: grown("tpot")}
    if pool.role is Role.COLOCATED:
        growth[Resource.TIME] = grown("ttft")
    return max(growth, key=lambda resource: growth[resource])


def fuller(instance: Instance, pool: FleetPool, state: PoolState) -> Resource:
    """What a pool that generates has less of left: KV memory or slots."""
    return Resource.KV_MEMORY if state.memory >= state.running / instance.tables.seqs[pool.seqs] else Resource.SLOTS
