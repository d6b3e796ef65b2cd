"""How much more load each pool could take before an SLO breaks, and what would break it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.engine import Role
from optimizer.loads.instance import Instance
from optimizer.loads.loads import Resource

from .evaluate import Misses, holds, largest_load, predict_misses
from .fleet import Fleet, FleetPool
from .pool_state import PoolState


@dataclass(frozen=True, slots=True)
class Headroom:
    """One pool: `load` times its present load is the most that keeps every goal; `resource` gives out first."""

    load: float
    resource: Resource


def pool_headroom(instance: Instance, fleet: Fleet, index: int, volume: float = 1.0) -> Headroom:
    """Raise the load of one pool, the others unchanged, until a goal breaks."""

    def at(factor: float) -> Misses:
        loads = np.full(len(fleet.pools), volume)
        loads[index] *= factor
        return predict_misses(instance, fleet, loads)

    most = largest_load(lambda factor: holds(instance, at(factor)), most=32.0)
    return Headroom(most, _first_to_give(instance, fleet, index, at(1.0), at(max(most, 1e-3) * 1.01)))


def _first_to_give(instance: Instance, fleet: Fleet, index: int, before: Misses, after: Misses) -> Resource:
    """The resource behind the reason that grows most between two loads of a pool."""
    pool, state = fleet.pools[index], after.states[index]
    if pool.role is Role.PREFILL:
        return Resource.TIME
    share = instance.flows.share
    growth = {
        fuller(instance, pool, state): float(share @ (after.full - before.full)),
        Resource.ATTENTION_TIME: float(share @ (after.tpot - before.tpot)),
    }
    if pool.role is Role.COLOCATED:
        growth[Resource.TIME] = float(share @ (after.ttft - before.ttft))
    return max(growth, key=lambda resource: growth[resource])


def fuller(instance: Instance, pool: FleetPool, state: PoolState) -> Resource:
    """What a pool that generates has less of left: KV memory or slots."""
    return Resource.KV_MEMORY if state.memory >= state.running / instance.tables.seqs[pool.seqs] else Resource.SLOTS
