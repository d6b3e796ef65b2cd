"""The whole-number search over matrices: a fleet of whole blocks, and a bound that no fleet can be below.

1. Columns that no fleet needs are dropped, exactly (`dominance`).
2. The linear relaxation over all others bounds the cost and tells what each column would have to be cheaper by.
3. HiGHS finds a good fleet among the columns nearest to the relaxation; before that, a few types of engines of one role
   and resource are counted without their routing (`few_types`), which mostly settles it.
4. Choices of whole engines bound the cost where fractions of an engine do not, and find small fleets (`counts`).
   Where there are few columns, cuts on the numbers of blocks of each tighten the relaxation before step 3
   (`projection`), and choices of blocks bound the cost and lead to fleets (`choices`).
5. A column whose reduced cost exceeds what separates the best fleet from the bound is in no better one. Over those that
   remain the search goes on for anything cheaper, and proves that there is nothing, or how far it got.

Work is limited by nodes of the search tree, so a result does not depend on the machine or on what else it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .blocks import Blocks, Clock, Prices, Work, nearest, nothing, relax, whole_blocks
from .choices import EVERY_KIND, FIRST, Pools, among, by_choices, diverse
from .counts import by_counts
from .dominance import undominated
from .few_types import by_types, plain
from .fleet_model import Aim
from .matrices import Matrices
from .program import Outcome
from .projection import Projection, lift
from .steps import Steps
from .tolerances import SAME

IntArray = NDArray[np.int64]

STARTERS, LIFTS, LIFTED = 60, 40, 0.5
"""Work limits: columns that make the first cuts, how many there are of these, and the share of the time that they may
take (`python -m benchmarks.reference fleet_pd`: 40 cuts take 1 s of CPU)."""

FEW = 12
"""Where the ceiling pays for no more than this many engines, choices of engines are tried first of all (assumed)."""

SEVERAL, LOOKS = 60, 4
"""Where it pays for no more than SEVERAL, so many choices of blocks are tried among columns near the relaxation
(assumed)."""

WORTH = 0.03
"""Relative gap that is worth this (assumed: below 3 % it takes longer than it gains)."""


def cheapest(matrices: Matrices, aim: Aim, work: Work, *, prune: bool = True, known: Blocks | None = None) -> Blocks:
    """The best fleet over all columns, and a proven bound of its objective; where nothing is asked for, none at all.

    known: a fleet of these columns, from less work perhaps: it is kept where nothing better is found.
    """
    if not matrices.flows:
        return replace(nothing(matrices, Outcome.OPTIMAL, 0.0, complete=True), objective=0.0)
    clock = Clock(work.time_limit)
    keep = undominated(matrices) if prune else np.arange(matrices.size)
    some = matrices.take(keep)
    prices = relax(some, aim, work.time_limit) if some.size else None
    if prices is None:
        return nothing(matrices, Outcome.INFEASIBLE, complete=True)
    ceiling = np.inf if known is None else Steps.of(matrices, aim).below(known.objective, work.gap)
    found = improve(some, aim, clock.rest_of(work), prices, ceiling)
    if known is None or found.index.size:
        return replace(found, index=keep[found.index])
    bound = min(max(known.bound, found.bound), known.objective)
    outcome = Outcome.OPTIMAL if found.outcome is Outcome.INFEASIBLE else Outcome.FEASIBLE
    return replace(known, outcome=outcome, bound=bound, complete=outcome is Outcome.OPTIMAL)


def improve(  # noqa: PLR0917
    matrices: Matrices, aim: Aim, work: Work, prices: Prices, ceiling: float = np.inf, rival: float = np.inf
) -> Blocks:
    """The best fleet of objective at most `ceiling`, and a proven bound; infeasible: there is none.

    Columns near the relaxation first; where the demand is to be served once, choices of blocks, or of engines where
    there are many columns (before anything else where only a few engines can be paid); then more columns, each time for
    something cheaper; and at last every column that could be in anything cheaper, if these are few enough.
    rival: objective of a fleet that is known without these columns. After the first look it is only asked whether one
    of them costs no more than that.
    """
    clock, steps = Clock(work.time_limit), Steps.of(matrices, aim)
    best, own, below = nothing(matrices, Outcome.NOTHING_FOUND, steps.up(prices.objective)), ceiling, np.inf
    stages, prices = _stages(matrices, aim, work, prices, ceiling if ceiling <= rival else np.inf)
    for stage in stages:
        limit = min(own, below)
        some = work.lifted if best.bound < (1.0 - WORTH) * limit else 0
        found = stage(matrices, aim, replace(clock.rest_of(work), lifted=some), prices, limit)
        bound = max(best.bound, steps.up(found.bound))
        if found.index.size:
            best, own = found, steps.below(found.objective, work.gap)
        best, below = replace(best, bound=bound), rival
        if _reached(bound, min(own, below)):
            break
    done = _reached(best.bound, own)
    if not best.index.size:
        return replace(best, outcome=Outcome.INFEASIBLE if done else Outcome.NOTHING_FOUND)
    outcome = Outcome.OPTIMAL if done else Outcome.FEASIBLE
    return replace(best, outcome=outcome, bound=min(best.bound, best.objective), complete=done)


def _reached(bound: float, limit: float) -> bool:
    """Whether nothing below the limit is left, but for rounding."""
    return bound >= limit or math.isclose(bound, limit, rel_tol=SAME)


def _stages(matrices: Matrices, aim: Aim, work: Work, prices: Prices, limit: float) -> tuple[list[Stage], Prices]:
    """How a fleet is looked for, one way after another, and the prices by which; limit: what the first may cost."""
    stages: list[Stage] = [_by_few_columns, _by_more_columns, _by_all_columns]
    if countable(aim) and plain(matrices):
        stages.insert(0, _by_types)
    elif countable(aim) and work.choices and matrices.size <= work.liftable and matrices.level is None:
        projection = Projection.of(matrices, prices, nearest(prices, STARTERS))
        lifted = lift(projection, aim, LIFTS, LIFTED * work.time_limit)
        tight = lifted if lifted.objective > prices.objective else prices
        first = (diverse(matrices, tight, *FIRST[0]), diverse(matrices, prices, *FIRST[1]))
        looks = (first, (diverse(matrices, prices, *EVERY_KIND),))
        return [_by_choices(projection, looks), _by_all_columns], tight
    elif countable(aim):
        stages.insert(0 if limit <= FEW * _cheapest_engine(matrices, prices) else 1, _by_counts)
    return stages, prices


Stage = Callable[[Matrices, Aim, Work, Prices, float], Blocks]
"""Looks for a fleet below a limit; its bound holds for every fleet."""


def _by_types(matrices: Matrices, aim: Aim, work: Work, _: Prices, limit: float) -> Blocks:
    return by_types(matrices, aim, replace(work, time_limit=0.5 * work.time_limit), limit)


def _by_choices(projection: Projection, looks: tuple[Pools, ...]) -> Stage:
    """Choices of blocks, with looks among these columns at first and beside the first choices."""
    return lambda _, aim, work, prices, limit: by_choices(projection, aim, work, prices, limit, looks)


def _by_few_columns(matrices: Matrices, aim: Aim, work: Work, prices: Prices, limit: float) -> Blocks:
    some = diverse(matrices, prices, work.columns, work.columns)
    return among(matrices, aim, replace(work, time_limit=0.45 * work.time_limit), some, limit)


def _by_more_columns(matrices: Matrices, aim: Aim, work: Work, prices: Prices, limit: float) -> Blocks:
    if matrices.size <= work.columns:  # all of them were tried
        return nothing(matrices, Outcome.NOTHING_FOUND, -np.inf)
    several = matrices.size > work.more and limit <= SEVERAL * _cheapest_engine(matrices, prices)
    if work.lifted and several and countable(aim) and matrices.level is None:
        return _by_lifted_columns(matrices, aim, work, prices, limit)
    return among(matrices, aim, replace(work, time_limit=0.5 * work.time_limit), nearest(prices, work.more), limit)


def _by_lifted_columns(matrices: Matrices, aim: Aim, work: Work, prices: Prices, limit: float) -> Blocks:
    """Choices of blocks of some columns only; what is proven of these says nothing of the others."""
    index = diverse(matrices, prices, work.lifted, work.lifted // 2)
    some = matrices.take(index)
    near = prices.take(index)
    projection = Projection.of(some, near, nearest(near, STARTERS))
    lifted = lift(projection, aim, LIFTS, LIFTED * work.time_limit)
    looks = tuple(diverse(some, lifted, *counts) for counts in FIRST)
    found = by_choices(projection, aim, replace(work, choices=LOOKS), lifted, limit, (looks,))
    return replace(found, index=index[found.index], bound=-np.inf)


def _by_all_columns(matrices: Matrices, aim: Aim, work: Work, prices: Prices, limit: float) -> Blocks:
    """Every column that could be in a fleet below the limit, where these are few enough or there is no fleet yet."""
    alive = prices.within(limit)
    if alive.size > work.provable and np.isinf(limit):
        return among(matrices, aim, work, nearest(prices, work.provable), limit)
    tried = matrices.size <= max(work.columns, work.more)
    if tried or alive.size > work.provable:
        return nothing(matrices, Outcome.NOTHING_FOUND, -np.inf)
    found = whole_blocks(matrices.take(alive), aim, work, limit)
    return replace(found, index=alive[found.index], bound=min(found.bound, limit))


def _by_counts(matrices: Matrices, aim: Aim, work: Work, prices: Prices, limit: float) -> Blocks:
    """Choices of the engines of those columns that can be in a fleet below the limit."""
    alive = prices.within(limit)
    some, near, work = (
        matrices.take(alive),
        nearest(prices.take(alive), 0),
        replace(work, time_limit=0.8 * work.time_limit),
    )
    found = by_counts(some, aim, work, near, limit)
    return replace(found, index=alive[found.index], bound=min(found.bound, limit))


def _cheapest_engine(matrices: Matrices, prices: Prices) -> float:
    """What one engine costs at least, in the units of the aim."""
    return float((prices.cost / matrices.replicas).min(initial=np.inf))


def countable(aim: Aim) -> bool:
    """Whether the demand is to be served once, neither less nor more, at least cost."""
    return aim.volume_weight == 0.0 and aim.min_volume == 1.0
