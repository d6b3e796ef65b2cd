"""Whole blocks of a given choice of engines: which operating points, in which blocks, so that all demand is served.

The same split as for choices of engines (`counts`), one level down. A *master* picks whole blocks that no cut excludes;
a linear programme over these few columns tells how much of the demand they serve, and if that is not all of it, its
shadow prices become the next cut over all columns: sum_c E_c n_c >= 1, with E_c the most that one block of column c
earns. Few picks are tried before one serves everything, or none is left, which proves that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .blocks import Blocks, Work, Worths, nothing, priced_load, whole_blocks, worths
from .fleet_model import Aim, pool_limit_rows, write_model
from .matrices import Limit, Matrices
from .pricing import most_earned_once
from .program import Builder, Outcome, Solution, solve
from .tolerances import LOOSENED, SAME

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PICKS = 16
"""Work limit: picks of blocks that are tried for one choice of engines (assumed: few are needed where any will do)."""

PICK_NODES = 1000
"""Work limit: nodes of the search tree of one pick (assumed)."""

PICK_GAP = 0.1
"""Work limit: relative gap at which a pick is good enough to be tried (assumed: any pick that no cut excludes is)."""

SERVE = Aim(cost_weight=0.0, volume_weight=1.0, min_volume=0.0, max_volume=2.0)
ALL = Aim(cost_weight=0.0, volume_weight=0.0)


@dataclass(frozen=True, slots=True)
class Stock:
    """Engines at hand: kind (columns,) of each column, and how many there are of each kind (kinds,)."""

    kind: IntArray
    counts: IntArray


def assemble(matrices: Matrices, stock: Stock, cuts: list[FloatArray], work: Work) -> Blocks:
    """Whole blocks of just these engines that serve the demand.

    cuts: what one block of each column earns at most at some shadow prices, (columns,). Infeasible: there are none.
    """
    if not matrices.size:
        return nothing(matrices, Outcome.INFEASIBLE, complete=True)
    load, cuts, surely = priced_load(matrices), list(cuts), True
    barred: list[IntArray] = []
    for _ in range(PICKS):
        worthy = np.arange(matrices.size) if barred else _worthy(matrices, stock, cuts)
        some = Stock(stock.kind[worthy], stock.counts)
        picked = _pick(matrices.take(worthy), some, [cut[worthy] for cut in cuts], barred, work)
        if not picked.x.size:
            proven = surely and picked.outcome is Outcome.INFEASIBLE
            return nothing(matrices, picked.outcome, complete=proven)
        count = np.zeros(matrices.size)
        count[worthy] = np.rint(picked.x[: worthy.size])
        chosen = np.flatnonzero(count)
        prices, exact, volume = _served(matrices.take(chosen), count[chosen])
        if volume >= 1.0 - SAME:
            found = routed(matrices.take(chosen), count[chosen], work)
            if found.index.size:
                return replace(found, index=chosen[found.index])
        earned = most_earned_once(load, prices.of(matrices).astype(np.float32))
        earned[chosen] = np.minimum(earned[chosen], exact)
        cuts.append(earned)
        if earned @ count >= 1.0 - LOOSENED:  # too loose to exclude this pick: other columns only
            barred.append(chosen)
            surely = False
    return nothing(matrices, Outcome.NOTHING_FOUND)


def _worthy(matrices: Matrices, stock: Stock, cuts: list[FloatArray]) -> IntArray:
    """Columns that a pick may need: by every cut, others of that kind in as many engines do not earn as much.

    A pick with any other column is one with these, so none is lost, and there is none where these have none.
    """
    earned = np.stack([np.ones(matrices.size), *(np.minimum(cut, 1.0) for cut in cuts)])
    kind = stock.kind if not matrices.pool_limits else np.stack([stock.kind, matrices.pool])
    member = np.unique(np.atleast_2d(kind), axis=1, return_inverse=True)[1].ravel()
    order = np.lexsort((np.arange(member.size), -earned.sum(axis=0) / matrices.replicas, member))
    kept: list[int] = []
    start = 0
    for place, column in enumerate(order):
        if place and member[column] != member[order[place - 1]]:
            start = len(kept)
        rivals = np.array(kept[start:], dtype=np.int64)
        copies = matrices.replicas[column] // matrices.replicas[rivals]
        if not (copies * earned[1:, rivals] >= earned[1:, [column]])[:, copies > 0].all(axis=0).any():
            kept.append(int(column))
    return np.sort(np.array(kept, dtype=np.int64))


def _pick(matrices: Matrices, stock: Stock, cuts: list[FloatArray], barred: list[IntArray], work: Work) -> Solution:
    """Blocks that no cut excludes, of columns that earn much by all cuts together."""
    builder = Builder()
    kinds = np.unique(stock.kind)
    most = np.floor(stock.counts[stock.kind] / matrices.replicas)
    worth = np.minimum(np.mean(cuts, axis=0), 1.0) if cuts else np.ones(matrices.size)
    blocks = builder.variables([f"n{c}" for c in range(matrices.size)], -worth, most, whole=True)
    engines = builder.rows([f"engines{k}" for k in kinds], -np.inf, stock.counts[kinds].astype(np.float64))
    builder.entries(engines[np.searchsorted(kinds, stock.kind)], blocks, matrices.replicas)
    for number, cut in enumerate(cuts):
        builder.entries(builder.rows([f"cut{number}"], 1.0 - LOOSENED, np.inf), blocks, np.minimum(cut, 1.0))
    for number, columns in enumerate(barred):
        others = np.setdiff1d(np.arange(matrices.size), columns)
        builder.entries(builder.rows([f"barred{number}"], 1.0, np.inf), blocks[others], 1.0)
    if matrices.pool_limits:
        member, pool = (one.ravel() for one in np.unique(matrices.pool, return_index=True, return_inverse=True)[1:])
        used = builder.variables([f"y{p}" for p in range(member.size)], 0.0, 1.0, whole=True)
        rows = builder.rows([f"used{c}" for c in range(matrices.size)], -np.inf, 0.0)
        builder.entries(rows, blocks, 1.0)
        builder.entries(rows, used[pool], -most)
        pool_limit_rows(matrices, builder, used, member)
    return solve(builder.build(), gap=PICK_GAP, nodes=PICK_NODES, time_limit=work.time_limit)


def _just(some: Matrices, count: FloatArray) -> Matrices:
    """The problem of buying at most these blocks, which are paid for."""
    each = np.eye(some.size) / some.replicas
    limits = tuple(Limit(f"blocks {c}", float(count[c]), each[c]) for c in range(some.size))
    return replace(some, price=np.zeros(some.size), limits=limits, spares=0)


def _served(some: Matrices, count: FloatArray) -> tuple[Worths, FloatArray, float]:
    """The shadow prices of serving as much as these blocks can, what each block earns at them, and how much that is."""
    free = replace(_just(some, count).linear, pool_limits=())
    model = write_model(free, SERVE)
    solution = solve(model.program, relaxed=True)
    earned = -solution.duals[[model.limits[limit.name] for limit in free.limits]]
    return worths(free, model, solution.duals), earned, float(solution.x[model.volume])


def routed(some: Matrices, count: FloatArray, work: Work) -> Blocks:
    """These blocks with a route for all demand; none where a router by thresholds has none."""
    return whole_blocks(_just(some, count), ALL, work)
