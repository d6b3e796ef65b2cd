"""What the loss of engines does to a fleet: its requests go to what is left, and are simulated there.

A node that fails takes the engines of one pool that fit on it, at least one. Each pool of the same stage then gets a
share of its flows in proportion to the engines that it has left; an engine hands its KV on within its own domain only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.verification.judge import Judgement, judge

FloatArray = NDArray[np.float64]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Loss:
    """A pool that loses engines; what: "replica" or "node"; lost: engines; left: of the pool.

    judgement: of what is left; None where some requests have no engine any more.
    spare: price of as many engines more in this pool, so that the loss leaves what the plan needs [$/h].
    """

    pool: str
    what: str
    lost: int
    left: int
    judgement: Judgement | None
    spare: float

    @property
    def held(self) -> bool:
        """Whether every goal is kept."""
        return self.judgement is not None and self.judgement.held


@dataclass(frozen=True, slots=True)
class Resilience:
    """Every loss of k replicas or k nodes of one pool; whole: the fleet without a loss; cost: of it [$/h]."""

    whole: Judgement
    cost: float
    losses: tuple[Loss, ...]

    def spare_cost(self, what: str, *, only_where_needed: bool) -> float:
        """What N+k costs more [$/h]: in every pool, or in those whose loss breaks a goal."""
        return sum(one.spare for one in self.losses if one.what == what and not (only_where_needed and one.held))


def resilience(
    instance: Instance,
    fleet: Fleet,
    *,
    count: int = 1,
    requests: int = 5_000,
    seed: int = 0,
    volume: float = 1.0,
    progress: Progress | None = None,
) -> Resilience:
    """Take `count` replicas, then `count` nodes, from each pool in turn, and simulate what is left."""
    whole = judge(instance, fleet, requests=requests, seed=seed, volume=volume)
    cases = [(index, what) for index in range(len(fleet.pools)) for what in ("replica", "node")]
    known: dict[tuple[int, int], Judgement | None] = {}
    losses = []
    for number, (index, what) in enumerate(cases):
        pool = fleet.pools[index]
        if progress is not None:
            progress(f"{pool.name} less {count} {what}", number / len(cases))
        each = engines_of_node(instance, fleet, index) if what == "node" else 1
        lost = min(count * each, pool.replicas)
        if (index, lost) not in known:
            left = without(instance, fleet, index, lost)
            known[index, lost] = (
                None if left is None else judge(instance, left, requests=requests, seed=seed, volume=volume)
            )
        spare = _with_more(fleet, index, count * each)
        price = fleet_cost(instance, spare) - fleet_cost(instance, fleet)
        losses.append(Loss(pool.name, what, lost, pool.replicas - lost, known[index, lost], price))
    return Resilience(whole, fleet_cost(instance, fleet), tuple(losses))


def with_spares(fleet: Fleet, spares: Sequence[int]) -> Fleet:
    """The fleet with its spare replicas at work like the others."""
    pools = (replace(pool, replicas=pool.replicas + more) for pool, more in zip(fleet.pools, spares, strict=True))
    return Fleet(tuple(pools))


def engines_of_node(instance: Instance, fleet: Fleet, index: int) -> int:
    """Most engines of a pool on one node."""
    shape = fleet.pools[index].shape
    accelerator = instance.problem.offers[int(instance.tables.offer[shape])].accelerator
    return max(accelerator.node_size // int(instance.tables.gpus[shape]), 1)


def _with_more(fleet: Fleet, index: int, more: int) -> Fleet:
    """The fleet with more replicas of one pool."""
    pools = [replace(pool, replicas=pool.replicas + more * (k == index)) for k, pool in enumerate(fleet.pools)]
    return Fleet(tuple(pools))


def without(instance: Instance, fleet: Fleet, index: int, lost: int) -> Fleet | None:
    """The fleet less some engines of one pool, requests routed to what is left; None where some have no engine.

    route'_p = w_p route_p / sum w route over the pools of the stage, w_p: share of its engines that a pool has left.
    """
    left = np.ones(len(fleet.pools))
    left[index] = 1.0 - lost / fleet.pools[index].replicas
    routes = rerouted(
        np.array([pool.route for pool in fleet.pools]),
        [pool.role for pool in fleet.pools],
        [int(instance.tables.domain[pool.shape]) for pool in fleet.pools],
        left,
    )
    if routes is None:
        return None
    pools = [
        replace(pool, route=route, replicas=pool.replicas - lost * (k == index))
        for k, (pool, route) in enumerate(zip(fleet.pools, routes, strict=True))
    ]
    return Fleet(tuple(pool for pool in pools if pool.replicas > 0))


def rerouted(route: FloatArray, roles: list[Role], domains: list[int], left: FloatArray) -> FloatArray | None:
    """Shares of every flow for each pool, (pools, flows), when pools keep `left` of their engines [1]; None: no way."""
    decode = np.array([role is Role.DECODE for role in roles])
    prefill = np.array([role is Role.PREFILL for role in roles])
    domain = np.array(domains)
    weight = route * left[:, None]
    for one in np.unique(domain[decode]):
        here = domain == one
        gone = (weight[decode & here].sum(axis=0) <= 0.0) & (route[decode & here].sum(axis=0) > 0.0)
        weight[np.ix_(prefill & here, gone)] = 0.0
    first = weight[~decode].sum(axis=0)
    if (first <= 0.0).any():
        return None
    shares = np.where(decode[:, None], 0.0, weight / first)
    for one in np.unique(domain[decode]):
        here = domain == one
        handed = shares[prefill & here].sum(axis=0)
        total = weight[decode & here].sum(axis=0)
        shares[decode & here] = weight[decode & here] / np.maximum(total, 1e-300) * handed
    return shares
