"""A bound and a fleet from whole numbers of engines: for small fleets, where fractions of an engine prove nothing.

The fleet problem is split in two (logic-based Benders decomposition, Hooker and Ottosson 2003). The *master* decides
how many engines of each kind (role, accelerator and size) are bought, at least cost; it knows nothing of operating
points or routing. Whether the engines can serve the demand is asked of a linear programme. If they cannot, its shadow
prices say why, and become a cut that excludes that choice and all that fail for the same reason:

    sum_k E_k(N_k) >= 1

where E_k(N) is the most that N engines of kind k earn at those prices, whole blocks of whole engines, no flow served
more than once; the demand is worth 1. If they can, whole blocks for just these engines are looked for. The master only
ever leaves out what cannot be, so its cost is a lower bound, and the first choice that can be built is optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .assembly import SERVE, Stock, assemble
from .blocks import Blocks, Clock, Work, Worths, nothing, priced_load, whole_cost, worths
from .fleet_model import Aim, write_model
from .matrices import Limit, Matrices
from .pricing import FloatArray32, most_earned_once, resource_weights
from .program import Builder, Outcome, Program, solve, with_ceiling
from .tolerances import LOOSENED, SAME, SINGLE, TRACE

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LOOSE = 3
"""Work limit: refinements of what a block earns at most, for a first look at all columns (assumed)."""

LEADING = 16
"""Work limit: columns of each kind and block size that are looked at closely first (assumed)."""

SLICE = 2048
"""Columns whose earnings are worked out at a time (assumed: they stay in cache)."""

ASKED = 12
"""Work limit: columns added per round where those at hand do not serve the demand (assumed)."""

COUNT_NODES = 2000
"""Work limit: nodes of the search tree of one choice of engines (assumed: most take a handful)."""

ASKS = 8
"""Work limit: rounds of column generation per choice of engines (assumed)."""

LEVELS = 12
"""Up to this many engines of a kind, what they earn is stated for each number; else by their best share (assumed)."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Columns grouped by what the master counts.

    of (C,): kind of each column; first (K,): a column of each; most (K,): engines that the ceiling pays for;
    levels (K,): the same where what they earn is stated for each number of them, else 0.
    """

    of: IntArray
    first: IntArray
    most: IntArray
    levels: IntArray


@dataclass(frozen=True, slots=True)
class Cut:
    """What is earned at most, of the demand's worth, at the shadow prices of one programme.

    columns: those looked at; block: by one block of each; earned (K, LEVELS + 1): by 0, 1, 2 ... engines of each kind;
    share (K,): per engine, however many.
    """

    columns: IntArray
    block: FloatArray
    earned: FloatArray
    share: FloatArray

    def each(self, counts: IntArray, kind: IntArray) -> FloatArray:
        """What so many engines of these kinds earn at most."""
        few = self.earned[kind, np.minimum(counts, LEVELS)]
        return np.minimum(np.where(counts <= LEVELS, few, self.share[kind] * counts), 1.0)

    def total(self, counts: IntArray, levels: IntArray) -> float:
        """The same for all kinds (K,), as the master problem has it."""
        few = self.earned[np.arange(counts.size), np.minimum(counts, LEVELS)]
        return float(np.where(levels > 0, np.minimum(few, 1.0), np.minimum(self.share, 1.0) * counts).sum())


def kinds_of(matrices: Matrices, ceiling: float) -> Kinds:
    """Group the columns whose engines cost the same and take the same of every limit."""
    values = [matrices.price, *(limit.weight for limit in matrices.limits)]
    numbers = [np.unique(value, return_inverse=True)[1].ravel() for value in values]
    key = np.stack([matrices.role, matrices.domain, *numbers])
    first, of = np.unique(key, axis=1, return_index=True, return_inverse=True)[1:]
    price = np.maximum(matrices.price[first], least_node_price(matrices)[first])
    with np.errstate(divide="ignore"):
        most = np.where(price > 0.0, np.floor(ceiling / np.maximum(price, 1e-12) * (1.0 + SAME)), np.inf)
    most = np.minimum(most, matrices.most).astype(np.int64)
    return Kinds(of.ravel(), first, most, np.where(most <= LEVELS, most, 0))


def least_node_price(matrices: Matrices) -> FloatArray:
    """$/h that an engine of each column costs at least in whole nodes, (columns,)."""
    cost = np.zeros(matrices.size)
    for limit in matrices.limits:
        if limit.node_size:
            cost += limit.node_price / limit.node_size * limit.weight
    return cost


@dataclass(slots=True)
class Counting:
    """The state of one search: the columns, their kinds, the cuts so far, and the columns that programmes use.

    spent: iterations of the simplex method.
    """

    matrices: Matrices
    kinds: Kinds
    load: NDArray[np.float32]
    active: NDArray[np.bool_]
    cuts: list[Cut] = field(default_factory=list)
    excluded: list[IntArray] = field(default_factory=list)
    last: Cut | None = None
    spent: int = 0


def by_counts(matrices: Matrices, aim: Aim, work: Work, active: IntArray, ceiling: float) -> Blocks:
    """Find a fleet of objective at most `ceiling`, the cheapest first; or prove that there is none, or a bound.

    active: columns to begin with. A choice of engines of which neither a fleet nor its absence is found holds the bound
    at its cost; the search goes on for a fleet of other engines. Complete without blocks: there is none.
    """
    kinds = kinds_of(matrices, ceiling / aim.cost_weight)
    at_hand = np.zeros(matrices.size, dtype=np.bool_)
    at_hand[active] = True
    state = Counting(matrices, kinds, priced_load(matrices), at_hand)
    bound, open_at, clock = -np.inf, np.inf, Clock(work.time_limit)
    for _ in range(work.choices):
        left = clock.left()
        more = left > 0.0 and state.spent < work.iterations
        choice = _choose(state, aim, ceiling, left) if more else (None, -np.inf)
        if choice is None:
            least = min(open_at, max(bound, ceiling))
            done = np.isinf(open_at)
            return nothing(matrices, Outcome.INFEASIBLE if done else Outcome.NOTHING_FOUND, least, complete=done)
        counts, cost = choice
        bound = min(max(bound, cost), open_at)
        if counts is None:
            break
        if not _can_serve(state, counts):
            continue
        if matrices.spares:  # of how many pools, the master does not know
            break
        built = _build(state, counts, replace(work, time_limit=left))
        if built.index.size:
            return replace(built, objective=aim.cost_weight * whole_cost(matrices, built), bound=bound, complete=False)
        if built.outcome is not Outcome.INFEASIBLE or not built.complete:
            open_at = min(open_at, bound)
        if (counts > kinds.levels).any():  # the master has no way to exclude it
            break
        state.excluded.append(counts)
    return nothing(matrices, Outcome.NOTHING_FOUND, bound)


def _choose(state: Counting, aim: Aim, ceiling: float, left: float) -> tuple[IntArray | None, float] | None:
    """The cheapest choice of engines that no cut excludes, (kinds,), and a bound of its objective; None if none is.

    left: time [s]; where that, or the nodes, do not suffice for a choice, only the bound is returned.
    """
    program, kind = _master(state, aim)
    solution = solve(with_ceiling(program, ceiling), gap=1e-6, time_limit=left, nodes=COUNT_NODES)
    state.spent += solution.iterations
    if solution.outcome is Outcome.INFEASIBLE:
        return None
    if solution.outcome is not Outcome.OPTIMAL:
        return None if solution.bound > ceiling else (None, solution.bound)
    engines = np.rint(solution.x[: kind.size])
    return np.bincount(kind, engines, state.kinds.first.size).astype(np.int64), solution.bound


def _master(state: Counting, aim: Aim) -> tuple[Program, IntArray]:
    """The master problem, and the kind of each of its first variables, which are engines: level by level, or in all."""
    kinds, matrices = state.kinds, state.matrices
    builder = Builder()
    levels = np.maximum(kinds.levels, 1)
    kind = np.repeat(np.arange(levels.size), levels)
    level = np.concatenate([np.arange(1, count + 1) for count in levels])
    stepped = kinds.levels[kind] > 0
    column = kinds.first[kind]
    pooled = matrices.spares * (stepped & (level == 1))
    upper = np.where(stepped, 1.0, kinds.most[kind])
    cost = aim.cost_weight * matrices.price[column] * (1.0 + pooled)
    names = [f"N{k}_{j}" for k, j in zip(kind, level, strict=True)]
    engines = builder.variables(names, cost, upper, whole=True)
    later = np.flatnonzero(stepped & (level > 1))
    order = builder.rows([f"order{v}" for v in later], -np.inf, 0.0)
    builder.entries(order, engines[later], 1.0)
    builder.entries(order, engines[later - 1], -1.0)
    for limit in matrices.limits:
        row = builder.rows([limit.name], -np.inf, limit.upper)
        builder.entries(row, engines, limit.weight[column] * (1.0 + pooled))
        if limit.node_size:
            node = builder.variables([f"nodes {limit.name}"], aim.cost_weight * limit.node_price, whole=True)
            builder.entries(row, node, -float(limit.node_size))
    for number, cut in enumerate(state.cuts):
        row = builder.rows([f"cut{number}"], 1.0 - LOOSENED, np.inf)
        earned = np.minimum(cut.earned, 1.0)
        more = earned[kind, level] - earned[kind, level - 1]
        builder.entries(row, engines, np.where(stepped, more, np.minimum(cut.share[kind], 1.0)))
    for number, counts in enumerate(state.excluded):
        beyond = np.flatnonzero(stepped & (level == counts[kind] + 1))
        builder.entries(builder.rows([f"beyond{number}"], 1.0, np.inf), engines[beyond], 1.0)
    return builder.build(), kind


def _can_serve(state: Counting, counts: IntArray) -> bool:
    """Whether fractions of blocks of these engines might serve the demand; if not, a cut says why."""
    matrices, kinds = state.matrices, state.kinds
    here = counts[kinds.of]
    able = (matrices.replicas <= here) | (here == 0)
    asked = np.flatnonzero(able & (here > 0))
    for _ in range(ASKS):
        duals, volume = _served(state, counts, np.flatnonzero(state.active & able))
        if duals is None:
            return True
        gain = duals.of(matrices.take(asked))
        block = _earned(state.load[:, asked], gain)
        if _cut(state, asked, block).total(counts, kinds.levels) < 1.0 - 3.0 * LOOSENED:
            every = np.arange(matrices.size)
            state.cuts.append(_cut(state, every, _earned_by_all(state, duals.of(matrices))))
            return False
        if volume >= 1.0 + 10.0 * TRACE:
            break
        share = np.where(state.active[asked], -np.inf, block / matrices.replicas[asked])
        best = np.argsort(-share, kind="stable")[:ASKED]
        best = best[np.isfinite(share[best])]
        if not best.size:
            break
        state.active[asked[best]] = True
    state.last = _cut(state, asked, block)
    return True


def _served(state: Counting, counts: IntArray, chosen: IntArray) -> tuple[Worths | None, float]:
    """How much of the demand fractions of the chosen columns serve at most, and the shadow prices of that.

    None where they serve far more than all of it, or where the programme has no solution: its prices say nothing.
    """
    some, of = state.matrices.take(chosen), state.kinds.of[chosen]
    limits = tuple(Limit(f"engines {k}", counts[k] + TRACE, (of == k).astype(np.float64)) for k in np.unique(of))
    free = replace(some.linear, price=np.zeros(some.size), limits=limits, spares=0, pool_limits=())
    model = write_model(free, SERVE)
    solution = solve(model.program, relaxed=True)
    state.spent += solution.iterations
    volume = float(solution.x[model.volume]) if solution.x.size else np.inf
    if volume >= SERVE.max_volume * (1.0 - LOOSENED):
        return None, volume
    return worths(free, model, solution.duals), volume


def _earned_by_all(state: Counting, gain: FloatArray) -> FloatArray:
    """The same for every column: loosely at first, then closely where it may be the most of its kind and block size."""
    matrices, kinds = state.matrices, state.kinds
    earned = _sliced(state.load, gain, lambda part, worth: resource_weights(part, np.maximum(worth, 0.0), LOOSE)[0])
    earned *= 1.0 + SINGLE
    group = kinds.of * (int(matrices.replicas.max(initial=0)) + 1) + matrices.replicas
    order = np.lexsort((-earned, group))
    rank = np.arange(order.size) - np.searchsorted(group[order], group[order])
    leading = order[rank < LEADING]
    earned[leading] = _earned(state.load[:, leading], gain[leading])
    most = np.zeros(int(group.max(initial=0)) + 1)
    np.maximum.at(most, group[leading], earned[leading])
    rest = np.setdiff1d(np.flatnonzero(earned > most[group]), leading)
    earned[rest] = _earned(state.load[:, rest], gain[rest])
    return earned


def _earned(load: FloatArray32, gain: FloatArray) -> FloatArray:
    """What a block of each column earns at most."""
    return _sliced(load, gain, most_earned_once)


def _sliced(
    load: FloatArray32, gain: FloatArray, bound: Callable[[FloatArray32, FloatArray32], NDArray[np.floating]]
) -> FloatArray:
    """A bound for every column, slice by slice in two threads, so that each stays in cache."""

    def earn(part: slice) -> FloatArray:
        mine = load[:, part]
        used: NDArray[np.bool_] = np.asarray(mine.any(axis=(1, 2)))  # one role leaves half of the resources alone
        used[0] |= not used.any()
        return bound(mine[used], gain[part].astype(np.float32)).astype(np.float64)

    parts = [slice(low, low + SLICE) for low in range(0, gain.shape[0], SLICE)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return np.concatenate([np.zeros(0), *pool.map(earn, parts)])


def _cut(state: Counting, columns: IntArray, block: FloatArray) -> Cut:
    """What engines of each kind earn at most, from what one block of each of the given columns does."""
    size, of, replicas = state.kinds.first.size, state.kinds.of[columns], state.matrices.replicas[columns]
    most = int(replicas.max(initial=1))
    by_size = np.zeros((size, most + 1))
    np.maximum.at(by_size, (of, replicas), block)
    earned = np.zeros((size, LEVELS + 1))
    for count in range(1, LEVELS + 1):
        for replica in range(1, min(count, most) + 1):
            earned[:, count] = np.maximum(earned[:, count], earned[:, count - replica] + by_size[:, replica])
    share = np.zeros(size)
    np.maximum.at(share, of, block / replicas)
    return Cut(columns, block, earned, share)


def _build(state: Counting, counts: IntArray, work: Work) -> Blocks:
    """Whole blocks of just these engines that serve the demand; none if that is infeasible, or not found."""
    matrices, kinds = state.matrices, state.kinds
    here = counts[kinds.of]
    able: NDArray[np.bool_] = np.logical_and(matrices.replicas <= here, here > 0)
    cuts = [*state.cuts, *([] if state.last is None else [state.last])]
    for cut in cuts:
        mine = cut.columns
        left = np.maximum(here - matrices.replicas, 0)[mine]
        loss = cut.each(here[mine], kinds.of[mine]) - cut.each(left, kinds.of[mine]) - cut.block
        able[mine] &= loss <= cut.each(counts, np.arange(counts.size)).sum() - 1.0 + LOOSENED
    chosen = np.flatnonzero(able)
    complete = chosen.size <= work.buildable
    if not complete:
        chosen = np.sort(chosen[np.lexsort((chosen, ~state.active[chosen]))[: work.buildable]])
    earned = [_of_all(cut, matrices.size)[chosen] for cut in cuts]
    found = assemble(matrices.take(chosen), Stock(kinds.of[chosen], counts), earned, work)
    return replace(found, index=chosen[found.index], complete=complete and found.complete)


def _of_all(cut: Cut, size: int) -> FloatArray:
    """What one block of every column earns at most, 1 where the cut did not look."""
    block = np.ones(size)
    block[cut.columns] = cut.block
    return block
