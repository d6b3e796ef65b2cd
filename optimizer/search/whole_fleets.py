"""The cheapest fleet of whole engines over matrices, and a bound that no fleet can be below.

1. Columns that no fleet needs are dropped, exactly (`undominated`).
2. The linear relaxation over all others, by GLOP, bounds the cost and tells how much too dear each column is.
3. HiGHS finds a good fleet among the columns nearest to the relaxation and the nearest of each kind of engine: odd
   sizes fill gaps.
4. A column whose reduced cost exceeds what separates the best fleet from the bound is in no better one. Where few
   enough remain, HiGHS looks among all of these for anything cheaper, and proves that there is nothing, or how far it
   got; else its bound over the nearest of them says nothing, and that of the relaxation stands.

Work is limited by nodes of the search tree, so without a time limit a result does not depend on the machine or on what
else it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.instance import COLOCATED, DECODE, LEAST_TIME, PREFILL

from .fleet_program import Aim, FleetModel, Matrices, write_model
from .program import Outcome, solve, with_ceiling

FloatArray = NDArray[np.float64]
FloatArray32 = NDArray[np.float32]
IntArray = NDArray[np.int64]

SAME = 1e-9
"""Tolerance: relative difference of two numbers that are the same but for rounding in double precision (assumed: 1e7
times the rounding of one operation)."""

DEARER = 1e-6
"""Tolerance: relative margin by which a reduced cost must exceed the gap before its column is dropped (assumed: the
1e-6 by which GLOP may break a dual constraint)."""

SAMPLED = 12
"""Needs that are compared first where columns are compared; few columns pass these and not the rest."""

REFINEMENTS = 30
"""Work limit: refinements of what a block earns at most (assumed: after 20 the bound is within 1 % or so)."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much work a search may do.

    near, kinds: columns of the first whole-number problem, those nearest to the relaxation and the nearest of so many
    kinds of engine; nodes: of each search tree; provable: columns up to which the problem over all that could be in a
    better fleet is solved; gap: relative gap at which it may stop; time_limit: that a user gave [s], else none.
    """

    near: int = 20
    kinds: int = 60
    nodes: int = 500
    provable: int = 1000
    gap: float = 9e-5
    time_limit: float = math.inf


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole blocks of columns: which of them, how many, where each flow runs (columns, flows), and what is proven.

    objective, bound: in the units of the aim; complete: whether every column that could matter was looked at.
    """

    outcome: Outcome
    objective: float
    bound: float
    volume: float
    index: IntArray
    blocks: IntArray
    route: FloatArray
    complete: bool


def nothing(matrices: Matrices, outcome: Outcome, bound: float = np.inf, *, complete: bool = False) -> Blocks:
    """No fleet."""
    none = np.zeros(0, dtype=np.int64)
    return Blocks(outcome, np.inf, bound, 0.0, none, none, np.zeros((0, matrices.flows)), complete)


def whole_cost(matrices: Matrices, fleet: Blocks) -> float:
    """Price of blocks, the nodes that they take, and the spares of their pools [$/h]."""
    columns = matrices.take(fleet.index)
    first = np.unique(columns.pool, return_index=True)[1]
    engines = fleet.blocks * columns.replicas
    engines[first] += matrices.spares
    cost = float(columns.price @ engines)
    for limit in columns.limits:
        if limit.node_size:
            cost += -(-round(float(limit.weight @ engines)) // limit.node_size) * limit.node_price
    return cost


def whole_blocks(matrices: Matrices, aim: Aim, work: Work, ceiling: float = np.inf) -> Blocks:
    """Solve the whole-number problem over all columns given, for objectives up to `ceiling`."""
    model = write_model(matrices, aim)
    program = model.program if np.isinf(ceiling) else with_ceiling(model.program, ceiling)
    solution = solve(program, time_limit=work.time_limit, gap=work.gap, nodes=work.nodes)
    if solution.x.size == 0:
        return nothing(matrices, solution.outcome, solution.bound)
    blocks = np.rint(solution.x[model.blocks]).astype(np.int64)
    route = np.zeros((matrices.size, matrices.flows))
    route[model.routes.column, model.routes.flow] = np.maximum(solution.x[model.routes.variable], 0.0)
    used, volume = np.flatnonzero(blocks > 0), float(solution.x[model.volume])
    bought = used, blocks[used], route[used]
    return Blocks(solution.outcome, solution.objective, solution.bound, volume, *bought, complete=True)


def cheapest(matrices: Matrices, aim: Aim, work: Work, *, prune: bool = True) -> Blocks:
    """The best fleet over all columns, and a proven bound of its objective; where nothing is asked for, none at all."""
    if not matrices.flows:
        return replace(nothing(matrices, Outcome.OPTIMAL, 0.0, complete=True), objective=0.0)
    end = time.perf_counter() + work.time_limit
    keep = undominated(matrices) if prune else np.arange(matrices.size)
    kept = matrices.take(keep)
    prices = relax(kept, aim, work.time_limit) if kept.size else None
    if prices is None:
        return nothing(matrices, Outcome.INFEASIBLE, complete=True)
    best = _best(kept, aim, work, end, prices)
    return replace(best, index=keep[best.index])


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
    whole = whole_blocks(kept.take(alive), aim, work, ceiling)
    return min(max(whole.bound, prices.objective), ceiling)


def _best(matrices: Matrices, aim: Aim, work: Work, end: float, prices: Prices) -> Blocks:
    """The best fleet among well-chosen columns, then among all that could be in a better one; end: of the time [s]."""

    def among(columns: IntArray, limit: float) -> Blocks:
        """The best fleet of these columns of objective at most `limit`; its bound is over these alone."""
        rest = replace(work, time_limit=max(end - time.perf_counter(), LEAST_TIME))
        whole = whole_blocks(matrices.take(columns), aim, rest, limit)
        return replace(whole, index=columns[whole.index])

    diverse = _diverse(matrices, prices, work)
    best = among(diverse, math.inf)
    if diverse.size == matrices.size:
        return replace(best, bound=max(best.bound, prices.objective), complete=best.outcome is Outcome.OPTIMAL)
    limit = best.objective - work.gap * abs(best.objective) if best.index.size else math.inf
    alive, bound, exhausted = prices.within(limit), prices.objective, False
    if alive.size <= work.provable:
        second = among(alive, limit)
        bound = max(bound, min(second.bound, limit))
        exhausted = alive.size == matrices.size and second.outcome is Outcome.INFEASIBLE
        best = second if second.index.size else best
    elif not best.index.size:
        best = among(prices.nearest(work.provable), limit)
    if not best.index.size:
        return nothing(matrices, Outcome.INFEASIBLE if exhausted else Outcome.NOTHING_FOUND, bound, complete=exhausted)
    bound = min(bound, best.objective)
    proven = bound >= best.objective - work.gap * abs(best.objective) or math.isclose(
        bound, best.objective, rel_tol=SAME
    )
    return replace(best, outcome=Outcome.OPTIMAL if proven else Outcome.FEASIBLE, bound=bound, complete=proven)


def _diverse(matrices: Matrices, prices: Prices, work: Work) -> IntArray:
    """The columns nearest to the relaxation, and the nearest of each kind: of one price that take as much of limits."""
    values = [matrices.role, matrices.domain, matrices.price, *(limit.weight for limit in matrices.limits)]
    numbers = [np.unique(value, return_inverse=True)[1].ravel() for value in values]
    kind = np.unique(np.stack(numbers), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(prices.relative, kind="stable")
    first = np.sort(np.unique(kind[order], return_index=True)[1])
    return np.union1d(prices.nearest(work.near), order[first[: work.kinds]])


@dataclass(frozen=True, slots=True)
class Prices:
    """A relaxation: its value, of each column what a block costs and how much too much; the columns that it buys."""

    objective: float
    cost: FloatArray
    reduced: FloatArray
    used: IntArray

    @property
    def relative(self) -> FloatArray:
        """How much too dear a block of each column is, relative to what it costs."""
        return np.asarray(self.reduced / np.maximum(self.cost, 1e-12))

    def within(self, limit: float) -> IntArray:
        """The columns that can be in a fleet of objective at most `limit`."""
        return np.flatnonzero(self.reduced <= limit - self.objective + DEARER * abs(self.objective))

    def nearest(self, count: int) -> IntArray:
        """The columns nearest to the relaxation, per dollar, and those that it buys."""
        return np.union1d(np.argsort(self.relative, kind="stable")[:count], self.used)


def relax(matrices: Matrices, aim: Aim, time_limit: float = math.inf) -> Prices | None:
    """The linear relaxation; None where even that has no solution."""
    model = write_model(matrices, aim)
    solution = solve(model.program, relaxed=True, time_limit=time_limit)
    if solution.x.size == 0:
        return None
    cost = aim.cost_weight * matrices.block_price
    for limit in matrices.limits:
        cost = cost - solution.duals[model.limits[limit.name]] * matrices.replicas * limit.weight
    need = np.where(matrices.possible[:, None, :], matrices.need, 1.0)  # 1 where a flow cannot run: it earns nothing
    load = np.ascontiguousarray(np.moveaxis(need, 1, 0), dtype=np.float32)
    earned = most_earned(load, _gains(matrices, model, solution.duals).astype(np.float32))
    bought = np.flatnonzero(solution.x[model.blocks] > 0.0)
    return Prices(solution.objective, cost, np.maximum(cost - earned, 0.0), bought)


def _gains(matrices: Matrices, model: FleetModel, duals: FloatArray) -> FloatArray:
    """What the whole of each flow earns on each column at the duals, 0 where it cannot run, (columns, flows).

    In equalities without a column, any split of a flow's worth between its two stages is as true as another; the mean
    split of the others is taken.
    """
    cover, pair, pairing = duals[model.cover], duals[model.pair], matrices.hand_over
    counted = np.where(matrices.role == DECODE, pairing.decode[:, matrices.domain], pairing.prefill[:, matrices.domain])
    sure = pairing.equal & counted.any(axis=1)
    mean = pair[sure].sum(axis=0) / max(int(sure.sum()), 1)
    split = np.where((sure | ~pairing.equal)[:, None], pair, mean)
    worth = np.zeros((3, pairing.prefill.shape[1], cover.size))
    sent, taken = pairing.worth(split)
    worth[PREFILL], worth[DECODE], worth[COLOCATED] = cover + sent, taken, cover
    late = np.minimum(duals[model.attainment], 0.0)[matrices.slo]
    gain = worth[matrices.role, matrices.domain] + matrices.late * late
    return np.asarray(np.where(matrices.possible, gain, 0.0))


def most_earned(load: FloatArray32, gain: FloatArray32, steps: int = REFINEMENTS) -> FloatArray:
    """Upper bound of what one block of each column earns where the whole of flow f earns gain_f, shape (columns,).

    load (resources, columns, flows): blocks that the whole of a flow takes; gain (columns, flows).
    A block earns at most max_x { gain x : load_r x <= 1 for every r }. Any weights y >= 0 of the resources that
    sum to 1 bound that by max_f gain_f / (sum_r y_r load_rf). The flows that earn most pull the weights towards what
    they use, each step more sharply so (multiplicative updates). With a single resource it is exact.
    """
    gain = np.maximum(gain, np.float32(0.0))
    best = np.full(gain.shape[0], np.inf, dtype=np.float32)
    weight = (load.max(axis=2) > 0.0).astype(np.float32)
    weight /= np.maximum(weight.sum(axis=0), 1.0)
    growth = 400.0 ** (1.0 / max(steps, 1))
    for step in range(steps if load.shape[0] > 1 else 1):
        used = np.maximum(np.einsum("rc,rcf->cf", weight, load), 1e-30)
        earned = gain / used
        top = earned.max(axis=1)
        best = np.minimum(best, top)
        pull = (earned / np.maximum(top, 1e-30)[:, None]) ** np.float32(growth ** (step + 1))
        pull = pull / np.maximum(pull.sum(axis=1, keepdims=True), 1e-30) / used  # one by one: the product underflows
        weight *= np.einsum("cf,rcf->rc", pull, load)
        weight /= np.maximum(weight.sum(axis=0), 1e-30)
    return best.astype(np.float64)


def undominated(matrices: Matrices) -> IntArray:
    """Indices of the columns that no other one dominates, in their order; of equal ones the first is kept.

    d dominates c where it has the same role, hand-over domain and accelerators, costs no more, takes no more of any
    limit, and needs no more blocks for any flow, nor makes more of it late. As many blocks of d as cost and take no
    more than one of c count as one. Where the number of pools matters, only columns of the same pool are compared.
    So whoever buys c can buy d instead: no optimum is lost.
    """
    limits = [matrices.replicas * limit.weight for limit in matrices.limits]
    takes = np.stack([matrices.block_price, *limits], axis=1)
    kept = [_kept(matrices, group, takes[group]) for group in _groups(matrices, takes) if group.size]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *kept]))


def _groups(matrices: Matrices, takes: FloatArray) -> Iterator[IntArray]:
    """Columns that may dominate one another: equal role, domain and limits that they take from."""
    key = [matrices.role, matrices.domain, *(takes > 0.0).T]
    if matrices.counts_pools:
        key.append(matrices.pool)
    member = np.unique(np.stack(key), axis=1, return_inverse=True)[1].ravel()
    yield from np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1])


def _kept(matrices: Matrices, group: IntArray, takes: FloatArray) -> IntArray:
    """Those of a group that no other one of it dominates: the cheapest first, as none dearer can dominate them.

    takes (group, 1 + limits): what one block takes of the money and of every limit.
    """
    need, late = matrices.need[group].reshape(group.size, -1), matrices.late[group]
    finite = np.where(np.isfinite(need), need, 1e12)
    order = np.lexsort((late.sum(axis=1), finite.sum(axis=1), *takes.T[::-1]))
    sample = need[:, np.linspace(0, need.shape[1] - 1, SAMPLED).astype(np.int64)]
    kept = np.zeros(group.size, dtype=np.int64)
    count = 0
    for column in order:
        rivals = kept[:count]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(takes[rivals] > 0.0, takes[column] / takes[rivals], np.inf).min(axis=1)
        copies = np.floor(np.where(np.isfinite(ratio), ratio, 1.0) * (1.0 + 1e-12))
        able = np.flatnonzero(copies >= 1.0)
        able = able[(sample[rivals[able]] <= sample[column] * copies[able, None]).all(axis=1)]
        able = able[(late[rivals[able]] <= late[column]).all(axis=1)]
        if not (need[rivals[able]] <= need[column] * copies[able, None]).all(axis=1).any():
            kept[count] = column
            count += 1
    return group[kept[:count]]
