"""The fleet problem in numbers alone: what can be bought, what each flow takes of it, and the limits on the whole.

The whole-number search reads nothing else, so it solves any problem of this form, whoever worked out the matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.hand_over import Pairing
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

__all__ = ["COLOCATED", "DECODE", "PREFILL", "Limit", "Matrices", "one_resource"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A fleet-wide limit: sum of weight x engines <= upper; weight is per engine, of each shape or of each column.

    node_size, node_price: for an accelerator billed by whole nodes, GPUs and $/h of one node; else 0.
    """

    name: str
    upper: float
    weight: FloatArray
    node_size: int = 0
    node_price: float = 0.0


@dataclass(frozen=True)
class Matrices:
    """C columns (blocks of equal engines), R resources, F flows, K classes of service.

    role, domain, pool (C,): roles as numbered here; columns of one role and domain may hand over to (or take in from)
    the same others; columns of one pool are the same engines with the same settings.
    replicas, price (C,): engines of a block, and $/h of one engine where it is billed singly, else 0.
    need (C, R, F): blocks that the whole of a flow takes; inf where it cannot run there.
    late (C, F): share of all requests that are late if the whole flow runs there.
    slo, permitted (F,), (K,): class of each flow; share of all requests that each class may have late.
    resources: their names. domains: how many there are; pairing: who may hand over to whom; None: those of one domain.
    limits: see Limit, weights (C,).
    spares: idle engines of every pool used; pool_limits: on the pools used, weights (C,) of the pool of each column;
    most: engines of one pool.
    """

    role: IntArray
    domain: IntArray
    pool: IntArray
    replicas: IntArray
    price: FloatArray
    need: FloatArray
    late: FloatArray
    slo: IntArray
    permitted: FloatArray
    resources: tuple[str, ...]
    domains: int = 1
    pairing: Pairing | None = None
    limits: tuple[Limit, ...] = ()
    spares: int = 0
    pool_limits: tuple[Limit, ...] = ()
    most: float = 10_000.0

    @property
    def size(self) -> int:
        """Number of columns."""
        return int(self.role.size)

    @property
    def flows(self) -> int:
        """Number of flows."""
        return int(self.need.shape[2])

    @property
    def hand_over(self) -> Pairing:
        """The rows that balance what is handed over and what is taken in."""
        return Pairing.within(self.domains) if self.pairing is None else self.pairing

    @property
    def counts_pools(self) -> bool:
        """Whether it matters how many pools there are."""
        return self.spares > 0 or bool(self.pool_limits)

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """Whether each flow can run on each column, shape (C, F)."""
        return np.asarray(np.isfinite(self.need).all(axis=1))

    @cached_property
    def block_price(self) -> FloatArray:
        """Price of one block, spares and whole nodes apart [$/h], shape (C,)."""
        return self.replicas * self.price

    def take(self, index: IntArray | NDArray[np.bool_]) -> Matrices:
        """The columns at `index`, in that order."""
        names = ("role", "domain", "pool", "replicas", "price", "need", "late")
        limits, pool_limits = (
            tuple(replace(limit, weight=limit.weight[index]) for limit in some)
            for some in (self.limits, self.pool_limits)
        )
        kept = {name: getattr(self, name)[index] for name in names}
        return replace(self, limits=limits, pool_limits=pool_limits, **kept)


def one_resource(need: FloatArray) -> FloatArray:
    """Blocks that each flow takes (columns, flows), as the array of a single resource."""
    return need[:, None, :]
