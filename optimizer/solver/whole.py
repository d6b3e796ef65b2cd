"""The cheapest fleet of whole engines over matrices, and a bound that no fleet can be below.

1. Columns that no fleet needs are dropped, exactly (`dominance`).
2. The linear relaxation over all others bounds the cost and tells how much too dear each column is.
3. HiGHS finds a good fleet among the columns nearest to the relaxation and the nearest of each kind of engine: odd
   sizes fill gaps.
4. A column whose reduced cost exceeds what separates the best fleet from the bound is in no better one. Where few
   enough remain, HiGHS looks among all of these for anything cheaper, and proves that there is nothing, or how far it
   got; else its bound over the nearest of them says nothing, and that of the relaxation stands.

Work is limited by nodes of the search tree, so a result does not depend on the machine or on what else it does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .blocks import Blocks, Clock, Prices, Work, nothing, relax, whole_blocks
from .dominance import undominated
from .fleet_model import Aim
from .matrices import Matrices
from .program import Outcome
from .tolerances import SAME

IntArray = NDArray[np.int64]


def cheapest(matrices: Matrices, aim: Aim, work: Work, *, prune: bool = True) -> Blocks:
    """The best fleet over all columns, and a proven bound of its objective; where nothing is asked for, none at all."""
    if not matrices.flows:
        return replace(nothing(matrices, Outcome.OPTIMAL, 0.0, complete=True), objective=0.0)
    clock = Clock(work.time_limit)
    keep = undominated(matrices) if prune else np.arange(matrices.size)
    kept = matrices.take(keep)
    prices = relax(kept, aim, work.time_limit) if kept.size else None
    if prices is None:
        return nothing(matrices, Outcome.INFEASIBLE, complete=True)
    found = _best(kept, aim, work, clock, prices)
    return replace(found, index=keep[found.index])


def least(matrices: Matrices, aim: Aim, work: Work, ceiling: float = math.inf) -> float:
    """What no fleet's objective is below, up to `ceiling`; infinite where there can be none.

    Of the relaxation, and where few enough columns could be in a fleet below the ceiling, of whole engines of these.
    """
    kept = matrices.take(undominated(matrices))
    prices = relax(kept, aim, work.time_limit) if kept.size else None
    if prices is None:
        return math.inf
    alive = prices.within(ceiling)
    if not prices.objective < ceiling or alive.size > work.provable:
        return min(prices.objective, ceiling)
    found = whole_blocks(kept.take(alive), aim, work, ceiling)
    return min(max(found.bound, prices.objective), ceiling)


def _best(matrices: Matrices, aim: Aim, work: Work, clock: Clock, prices: Prices) -> Blocks:
    """The best fleet among well-chosen columns, then among all that could be in a better one."""
    chosen = diverse(matrices, prices, work.near, work.kinds)
    first = _among(matrices, aim, clock.rest_of(work), chosen, math.inf)
    if chosen.size == matrices.size:
        return replace(first, bound=max(first.bound, prices.objective), complete=first.outcome is Outcome.OPTIMAL)
    limit = first.objective - work.gap * abs(first.objective) if first.index.size else math.inf
    alive = prices.within(limit)
    if alive.size > work.provable:
        chosen = nearest(prices, work.provable) if not first.index.size else np.zeros(0, dtype=np.int64)
        second = _among(matrices, aim, clock.rest_of(work), chosen, limit) if chosen.size else first
        bound = prices.objective
    else:
        second = _among(matrices, aim, clock.rest_of(work), alive, limit)
        bound = max(prices.objective, min(second.bound, limit))
    best = second if second.index.size else first
    if not best.index.size:
        impossible = alive.size == matrices.size and second.outcome is Outcome.INFEASIBLE
        return nothing(
            matrices, Outcome.INFEASIBLE if impossible else Outcome.NOTHING_FOUND, bound, complete=impossible
        )
    bound = min(bound, best.objective)
    proven = bound >= best.objective - work.gap * abs(best.objective) or math.isclose(
        bound, best.objective, rel_tol=SAME
    )
    return replace(best, outcome=Outcome.OPTIMAL if proven else Outcome.FEASIBLE, bound=bound, complete=proven)


def _among(matrices: Matrices, aim: Aim, work: Work, chosen: IntArray, limit: float) -> Blocks:
    """The best fleet of the chosen columns of objective at most `limit`; its bound is over these alone."""
    found = whole_blocks(matrices.take(chosen), aim, work, limit)
    return replace(found, index=chosen[found.index])


def nearest(prices: Prices, count: int) -> IntArray:
    """The columns nearest to the relaxation, per dollar, and those that it buys."""
    return np.union1d(np.argsort(prices.relative, kind="stable")[:count], prices.used)


def diverse(matrices: Matrices, prices: Prices, near: int, kinds: int) -> IntArray:
    """So many columns nearest to the relaxation, and the nearest of so many kinds of engine."""
    order = np.argsort(prices.relative, kind="stable")
    first = np.sort(np.unique(_kinds(matrices)[order], return_index=True)[1])
    return np.union1d(nearest(prices, near), order[first[:kinds]])


def _kinds(matrices: Matrices) -> IntArray:
    """A number for each column, the same where engines cost the same and take the same of every limit, (C,)."""
    values = [matrices.role, matrices.domain, matrices.price, *(limit.weight for limit in matrices.limits)]
    numbers = [np.unique(value, return_inverse=True)[1].ravel() for value in values]
    return np.asarray(np.unique(np.stack(numbers), axis=1, return_inverse=True)[1]).ravel().astype(np.int64)
