"""The same fleet with fewer engines: one pool smaller or gone, and the least that still holds when it is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool, can_hand_over, fleet_cost
from optimizer.loads.engine_table import LINK_UTILIZATION
from optimizer.loads.instance import Instance

FloatArray = NDArray[np.float64]

TRACE_OF_A_ROUTE = 1e-12
"""Share by which a pool takes over flows that no pool left serves, so that none is lost."""

Named = tuple[str, Fleet]


def with_replicas(fleet: Fleet, index: int, replicas: int) -> Fleet:
    """The fleet with another number of engines in one pool; its routing is unchanged."""
    smaller = replace(fleet.pools[index], replicas=replicas)
    return Fleet((*fleet.pools[:index], smaller, *fleet.pools[index + 1 :]))


def fewer_replicas(instance: Instance, fleet: Fleet, step: int) -> list[Named]:
    """The fleet with `step` engines less in one pool, cheapest first; a pool that is then empty gives its flows up."""
    found: list[Named] = []
    for index, pool in enumerate(fleet.pools):
        if pool.replicas > step:
            less: Fleet | None = with_replicas(fleet, index, pool.replicas - step)
        elif pool.replicas == step:
            less = without_pool(fleet, index)
        else:
            less = None
        if less is not None and can_hand_over(instance, less):
            found.append((f"{pool.name}: {'one replica' if step == 1 else f'{step} replicas'} less", less))
    return sorted(found, key=lambda one: fleet_cost(instance, one[1]))


def without_pool(fleet: Fleet, index: int) -> Fleet | None:
    """The fleet with one pool less, its flows to the others in proportion; None if no role can take them over."""
    rest = [pool for number, pool in enumerate(fleet.pools) if number != index]
    roles = {pool.role for pool in rest}
    if not rest or (Role.PREFILL in roles) != (Role.DECODE in roles):
        return None
    return shared_out(rest, [pool.route + TRACE_OF_A_ROUTE * pool.replicas for pool in rest])


def shared_out(pools: Sequence[FleetPool], weights: Sequence[FloatArray]) -> Fleet:
    """Pools that serve every flow in proportion to their weights (flows,), as many tokens handed over as taken."""
    pairs = list(zip(pools, weights, strict=True))
    nothing = np.zeros_like(weights[0])
    first = sum((weight for pool, weight in pairs if pool.role is not Role.DECODE), nothing)
    handed = sum((weight / first for pool, weight in pairs if pool.role is Role.PREFILL), nothing)
    later = np.maximum(sum((weight for pool, weight in pairs if pool.role is Role.DECODE), nothing), 1e-300)

    def share(pool: FleetPool, weight: FloatArray) -> FloatArray:
        return weight / later * handed if pool.role is Role.DECODE else weight / first

    return Fleet(tuple(replace(pool, route=share(pool, weight)) for pool, weight in pairs))


def still_holds(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet of fewer engines keeps every goal, and its network cards carry what is handed over."""
    tables, rate = instance.tables, instance.flows.rate
    sent = (pool for pool in fleet.pools if pool.role is not Role.COLOCATED)
    busy = [
        float(pool.route * rate @ tables.kv_transferred[pool.shape]) / tables.links[pool.shape] / pool.replicas
        for pool in sent
    ]
    carried = all(share <= LINK_UTILIZATION * (1.0 + 1e-9) for share in busy)
    return carried and holds(instance, predict_misses(instance, fleet))
