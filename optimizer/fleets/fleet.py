"""A fleet: pools of equal engines, and the share of each flow that they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.engine import Role
from optimizer.plans.records import ROUNDING

MOST_ROUNDS, MOST_MIX = 5_000, 1e12
"""Rounds of a fixed point (shares of hand-overs, a batch) before it counts as divergent; most need ten to twenty.
And the factor beyond which shares of hand-overs cannot be reached [1]."""


@dataclass(frozen=True, slots=True)
class FleetPool:
    """Equal engines in one role.

    shape, seqs, chunk: indices into the tables; replicas: engines that the demand needs; spares: idle ones;
    route (flows,): share of each flow served here.
    """

    name: str
    role: Role
    shape: int
    seqs: int
    chunk: int
    replicas: int
    spares: int
    route: FloatArray


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pools in the order prefill, decode, colocated; larger shares first."""

    pools: tuple[FleetPool, ...] = ()

    def of(self, role: Role) -> tuple[FleetPool, ...]:
        """The pools in one role."""
        return tuple(pool for pool in self.pools if pool.role is role)

    def resized(self, replicas: Sequence[int] | IntArray) -> Fleet:
        """The same pools with other numbers of replicas."""
        sizes = zip(self.pools, replicas, strict=True)
        return Fleet(tuple(replace(pool, replicas=int(count)) for pool, count in sizes))


Named = tuple[str, Fleet]


def even_mix(talks: BoolArray, sent: FloatArray, intake: FloatArray) -> FloatArray:
    """How much more of a flow goes from one pool to another than sent x intake / all intake, (P, D, F).

    1 everywhere where all can talk; else 0 where two cannot, and the rest as even as the pools' shares allow (iterative
    proportional fitting, Deming and Stephan 1940). talks (P, D); sent (P, F) by prefill pools, intake (D, F) by decode
    pools, of each flow as much as is sent.
    """
    factor = np.broadcast_to(talks[:, :, None], (*talks.shape, sent.shape[1])).astype(np.float64)
    if talks.all():
        return factor
    all_sent, all_intake = (np.maximum(share.sum(axis=0), 1e-300) for share in (sent, intake))
    for _ in range(MOST_ROUNDS):
        came = np.einsum("pdf,pf->df", factor, sent) / all_sent
        factor = np.minimum(factor / np.where(intake > 0.0, np.maximum(came, 1.0 / MOST_MIX), 1.0), MOST_MIX)
        went = np.einsum("pdf,df->pf", factor, intake) / all_intake
        factor = np.minimum(factor / np.where(sent > 0.0, np.maximum(went, 1.0 / MOST_MIX), 1.0)[:, None], MOST_MIX)
        if np.abs(np.where(sent > 0.0, went - 1.0, 0.0)).max(initial=0.0) <= 1e-12:
            break
    return factor


def gets_whole(fleet: Fleet) -> bool:
    """Whether no flow is split between pools of one stage."""
    return all(np.all(np.minimum(pool.route, np.abs(1.0 - pool.route)) < ROUNDING) for pool in fleet.pools)


def with_pools(fleet: Fleet, changed: Mapping[int, FleetPool]) -> Fleet:
    """The fleet with other pools at some places."""
    return Fleet(tuple(changed.get(index, pool) for index, pool in enumerate(fleet.pools)))


def with_replicas(fleet: Fleet, index: int, replicas: int) -> Fleet:
    """The fleet with another number of engines in one pool; its routing is unchanged."""
    return with_pools(fleet, {index: replace(fleet.pools[index], replicas=replicas)})


def shared_out(pools: Sequence[FleetPool], weights: Sequence[FloatArray]) -> Fleet:
    """Pools that serve every flow in proportion to their weights (flows,), with hand-overs balanced."""
    pairs = list(zip(pools, weights, strict=True))
    nothing = np.zeros_like(weights[0])
    first = sum((weight for pool, weight in pairs if pool.role is not Role.DECODE), nothing)
    transfer_share = sum((weight / first for pool, weight in pairs if pool.role is Role.PREFILL), nothing)
    later = np.maximum(sum((weight for pool, weight in pairs if pool.role is Role.DECODE), nothing), 1e-300)

    def share(pool: FleetPool, weight: FloatArray) -> FloatArray:
        return weight / later * transfer_share if pool.role is Role.DECODE else weight / first

    return Fleet(tuple(replace(pool, route=share(pool, weight)) for pool, weight in pairs))


def first_fit(engines: Iterable[tuple[int, int, int]]) -> list[tuple[range, int]]:
    """The nodes of each engine, by their numbers among those of its GPU type, and its first GPU there.

    It stands on the first node with enough free GPUs; one larger than a node on new ones, with as many GPUs on each.
    engines: GPU type, GPUs of the engine, GPUs of a node.

    >>> first_fit([(0, 4, 8), (0, 4, 8), (1, 8, 8), (0, 16, 8)])
    [(range(0, 1), 0), (range(0, 1), 4), (range(0, 1), 0), (range(1, 3), 0)]
    """
    used_gpus: dict[int, list[int]] = {}
    places = []
    for offer, gpus, size in engines:
        used, nodes = used_gpus.setdefault(offer, []), -(-gpus // size)
        roomy = (number for number, taken in enumerate(used) if nodes == 1 and taken + gpus <= size)
        first = next(roomy, len(used))
        used += [0] * (first + nodes - len(used))
        places.append((range(first, first + nodes), used[first]))
        for number in places[-1][0]:
            used[number] += -(-gpus // nodes)
    return places
