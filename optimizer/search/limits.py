"""What a fleet must keep to besides its goals, and the same fleet with fewer engines.

Limits: those on the whole of it, and how requests may be routed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds_at
from optimizer.fleets.fleet import Fleet, FleetPool, can_hand_over, fleet_cost, keeps_limits
from optimizer.loads.engine_table import LINK_UTILIZATION
from optimizer.loads.instance import Instance
from search_spaces.problem import Pools, Problem, Routing

FloatArray = NDArray[np.float64]

ROUNDING = 1e-6
"""Share of a flow that is rounding, not a pool's part of it."""

TRACE_OF_A_ROUTE = 1e-12
"""Share by which a pool takes over flows that no pool left serves, so that none is lost."""

Named = tuple[str, Fleet]


def allowed(instance: Instance, fleet: Fleet) -> bool:
    """Whether inventory, budget, power, GPU and pool count allow a fleet, and its gateway can route as it does.

    Classes stay apart that must, and a router of thresholds sends every flow whole to one pool.
    """
    whole = instance.problem.constraints.routing is not Routing.THRESHOLD or gets_whole(fleet)
    return whole and keeps_apart(instance, fleet) and keeps_every_limit(instance, fleet)


def keeps_every_limit(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet keeps all limits on the whole of it: those on its GPUs and on the number of pools."""
    limits = instance.problem.constraints
    return keeps_limits(instance, fleet) and limits.fits(pool.role for pool in fleet.pools)


def gets_whole(fleet: Fleet) -> bool:
    """Whether each pool gets flows whole or not at all."""
    return all(np.all(np.minimum(pool.route, np.abs(1.0 - pool.route)) < ROUNDING) for pool in fleet.pools)


def classes_apart(problem: Problem) -> bool:
    """Whether no pool may serve two SLO classes, and there are two."""
    return problem.constraints.pools is Pools.PER_CLASS and len(problem.slos) > 1


def keeps_apart(instance: Instance, fleet: Fleet) -> bool:
    """Whether every pool serves a single SLO class, where that is asked for."""
    if not classes_apart(instance.problem):
        return True
    slo = instance.flows.slo
    return all(np.unique(slo[pool.route > ROUNDING]).size <= 1 for pool in fleet.pools)


def still_holds(instance: Instance, fleet: Fleet) -> bool:
    """Whether a fleet keeps every goal, and its network cards carry what is handed over."""
    tables, rate = instance.tables, instance.flows.rate
    busy = [
        float(pool.route * rate @ tables.kv_transferred[pool.shape]) / tables.links[pool.shape] / pool.replicas
        for pool in fleet.pools
        if pool.role is not Role.COLOCATED
    ]
    cards_suffice = all(share <= LINK_UTILIZATION * (1.0 + 1e-9) for share in busy)
    return cards_suffice and holds_at(instance, fleet)


def with_replicas(fleet: Fleet, index: int, replicas: int) -> Fleet:
    """The fleet with another number of engines in one pool; its routing is unchanged."""
    smaller = replace(fleet.pools[index], replicas=replicas)
    return Fleet((*fleet.pools[:index], smaller, *fleet.pools[index + 1 :]))


def replicas_at(instance: Instance, fleet: Fleet, volume: float, least: int = 1) -> NDArray[np.int64]:
    """Fewest replicas of each pool that keep every goal at `volume` times the demand; all of them where none do.

    Pool after pool, the dearest first, gives up what it can; the others stay as they are by then.
    """
    replicas = np.array([pool.replicas for pool in fleet.pools])
    if not holds_at(instance, fleet, volume):
        return replicas
    price = [fleet_cost(instance, Fleet((pool,))) for pool in fleet.pools]
    for index in sorted(range(len(price)), key=lambda number: -price[number]):
        low, high = min(least, int(replicas[index])) - 1, int(replicas[index])
        while high - low > 1:
            replicas[index] = (low + high) // 2
            meets_goals = holds_at(instance, fleet.resized(replicas), volume)
            low, high = (low, int(replicas[index])) if meets_goals else (int(replicas[index]), high)
        replicas[index] = high
    return replicas


def fewer_replicas(instance: Instance, fleet: Fleet, step: int) -> list[Named]:
    """The fleet with `step` replicas fewer in one pool, cheapest first; an empty pool gives its flows up."""
    fleets: list[Named] = []
    for index, pool in enumerate(fleet.pools):
        less: Fleet | None = None
        if pool.replicas > step:
            less = with_replicas(fleet, index, pool.replicas - step)
        elif pool.replicas == step:
            less = without_pool(fleet, index)
        if less is not None and can_hand_over(instance, less):
            fleets.append((f"{pool.name}: {'one replica' if step == 1 else f'{step} replicas'} fewer", less))
    return sorted(fleets, key=lambda row: fleet_cost(instance, row[1]))


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
    transfer_share = sum((weight / first for pool, weight in pairs if pool.role is Role.PREFILL), nothing)
    later = np.maximum(sum((weight for pool, weight in pairs if pool.role is Role.DECODE), nothing), 1e-300)

    def share(pool: FleetPool, weight: FloatArray) -> FloatArray:
        return weight / later * transfer_share if pool.role is Role.DECODE else weight / first

    return Fleet(tuple(replace(pool, route=share(pool, weight)) for pool, weight in pairs))
