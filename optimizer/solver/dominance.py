"""Columns that no fleet needs: another one does at least as much in every respect, and takes no more of anything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .matrices import Matrices

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SAMPLED = 12
"""Needs and misses that are compared first; few columns pass these and not the rest."""


def undominated(matrices: Matrices) -> IntArray:
    """Indices of the columns that no other one dominates, in their order; of equal ones the first is kept.

    d dominates c where it has the same role, hand-over domain and accelerators, costs no more, takes no more of any
    limit, and needs no more blocks for any flow, nor makes more of it late. As many blocks of d as cost and take no
    more than one of c count as one. Where the number of pools matters, only columns of the same pool are compared.
    So whoever buys c can buy d instead: no optimum is lost.
    """
    takes = _takes(matrices)
    kept = [_kept(matrices, group, takes) for group in _groups(matrices, takes) if group.size]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *kept]))


def _takes(matrices: Matrices) -> FloatArray:
    """What one block takes of the money and of every limit, shape (columns, 1 + limits)."""
    limits = [matrices.replicas * limit.weight for limit in matrices.limits]
    return np.stack([matrices.block_price, *limits], axis=1)


def _groups(matrices: Matrices, takes: FloatArray) -> Iterator[IntArray]:
    """Columns that may dominate one another: equal role, domain and limits that they take from."""
    key = [matrices.role, matrices.domain, *(takes > 0.0).T]
    if matrices.counts_pools:
        key.append(matrices.pool)
    member = np.unique(np.stack(key), axis=1, return_inverse=True)[1].ravel()
    yield from np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])


def _kept(matrices: Matrices, group: IntArray, takes: FloatArray) -> IntArray:
    """Those of a group that no other one of it dominates: the cheapest first, as none dearer can dominate them."""
    need = matrices.need[group].reshape(group.size, -1)
    late, cost = matrices.late[group], takes[group]
    finite = np.where(np.isfinite(need), need, 1e12)
    order = np.lexsort((late.sum(axis=1), finite.sum(axis=1), *cost.T[::-1]))
    sampled = np.linspace(0, need.shape[1] - 1, SAMPLED).astype(np.int64)
    quick = need[:, sampled]
    kept = np.zeros(group.size, dtype=np.int64)
    count = 0
    for column in order:
        rivals = kept[:count]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(cost[rivals] > 0.0, cost[column] / cost[rivals], np.inf).min(axis=1)
        copies = np.floor(np.where(np.isfinite(ratio), ratio, 1.0) * (1.0 + 1e-12))
        able = np.flatnonzero(copies >= 1.0)
        able = able[(quick[rivals[able]] <= quick[column] * copies[able, None]).all(axis=1)]
        able = able[(late[rivals[able]] <= late[column]).all(axis=1)]
        if not (need[rivals[able]] <= need[column] * copies[able, None]).all(axis=1).any():
            kept[count] = column
            count += 1
    return group[kept[:count]]
