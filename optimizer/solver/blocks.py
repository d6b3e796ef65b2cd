"""Whole blocks of columns: the problem solved by HiGHS over all columns given, and its linear relaxation by GLOP."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.instance import LEAST_TIME

from .fleet_model import Aim, FleetModel, write_model
from .matrices import COLOCATED, DECODE, PREFILL, Matrices
from .pricing import most_earned
from .program import Outcome, Solution, solve, with_ceiling
from .tolerances import DEARER

FloatArray = NDArray[np.float64]
FloatArray32 = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """How much work a search may do.

    near, kinds: columns of the first whole-number problem, those nearest to the relaxation and the nearest of so many
    kinds of engine; nodes: of each search tree; provable: columns up to which the problem over all that could be in a
    better fleet is solved; gap: relative gap at which it may stop; time_limit: safety net [s], meant never to be
    reached.
    """

    near: int = 20
    kinds: int = 60
    nodes: int = 500
    provable: int = 1000
    gap: float = 9e-5
    time_limit: float = 60.0


@dataclass(frozen=True, slots=True)
class Clock:
    """The safety net of a search: time that is left of `limit` [s]."""

    limit: float
    started: float = field(default_factory=time.perf_counter)

    def left(self) -> float:
        """Time left [s], below 0 once it is up."""
        return self.limit - (time.perf_counter() - self.started)

    def rest_of(self, work: Work) -> Work:
        """The same work within the time left."""
        return replace(work, time_limit=max(self.left(), LEAST_TIME))


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


def whole_blocks(matrices: Matrices, aim: Aim, work: Work, ceiling: float = np.inf) -> Blocks:
    """Solve the whole-number problem over all columns given, for objectives up to `ceiling`."""
    model = write_model(matrices, aim)
    program = model.program if np.isinf(ceiling) else with_ceiling(model.program, ceiling)
    solution = solve(program, time_limit=work.time_limit, gap=work.gap, nodes=work.nodes)
    if solution.x.size == 0:
        return nothing(matrices, solution.outcome, solution.bound)
    return read_blocks(matrices, model, solution)


def read_blocks(matrices: Matrices, model: FleetModel, solution: Solution) -> Blocks:
    """The blocks that a solution buys."""
    blocks = np.rint(solution.x[model.blocks]).astype(np.int64)
    route = np.zeros((matrices.size, matrices.flows))
    route[model.column, model.flow] = np.maximum(solution.x[model.routes], 0.0)
    used = np.flatnonzero(blocks > 0)
    return Blocks(
        outcome=solution.outcome,
        objective=solution.objective,
        bound=solution.bound,
        volume=float(solution.x[model.volume]),
        index=used,
        blocks=blocks[used],
        route=route[used],
        complete=True,
    )


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


@dataclass(frozen=True, slots=True)
class Worths:
    """What a programme's shadow prices pay: for each flow by role and domain (3, D, F), and for late requests (F,)."""

    flow: FloatArray
    late: FloatArray

    def of(self, matrices: Matrices) -> FloatArray:
        """What the whole of each flow earns on each column, 0 where it cannot run, (columns, flows)."""
        gain = self.flow[matrices.role, matrices.domain] + matrices.late * self.late
        return np.asarray(np.where(matrices.possible, gain, 0.0))


def worths(matrices: Matrices, model: FleetModel, duals: FloatArray) -> Worths:
    """The shadow prices of a programme.

    In equalities without a column, any split of a flow's worth between its two stages is as true as another; the mean
    split of the others is taken.
    """
    cover, pair, pairing = duals[model.cover], duals[model.pair], matrices.hand_over
    counted = np.where(matrices.role == DECODE, pairing.decode[:, matrices.domain], pairing.prefill[:, matrices.domain])
    known = pairing.equal & counted.any(axis=1)
    mean = pair[known].sum(axis=0) / max(int(known.sum()), 1)
    split = np.where((known | ~pairing.equal)[:, None], pair, mean)
    flow = np.zeros((3, pairing.prefill.shape[1], cover.size))
    sent, taken = pairing.worth(split)
    flow[PREFILL], flow[DECODE], flow[COLOCATED] = cover + sent, taken, cover
    return Worths(flow, np.minimum(duals[model.attainment], 0.0)[matrices.slo])


def priced_load(matrices: Matrices) -> FloatArray32:
    """The needs laid out for pricing, (resources, columns, flows); 1 where a flow cannot run, as it earns nothing."""
    need = np.where(matrices.possible[:, None, :], matrices.need, 1.0)
    return np.ascontiguousarray(np.moveaxis(need, 1, 0), dtype=np.float32)


def relax(matrices: Matrices, aim: Aim, time_limit: float) -> Prices | None:
    """The linear relaxation; None where even that has no solution."""
    model = write_model(matrices, aim)
    solution = solve(model.program, relaxed=True, time_limit=time_limit)
    if solution.x.size == 0:
        return None
    cost = aim.cost_weight * matrices.block_price
    for limit in matrices.limits:
        cost = cost - solution.duals[model.limits[limit.name]] * matrices.replicas * limit.weight
    gain = worths(matrices, model, solution.duals).of(matrices)
    earned = most_earned(priced_load(matrices), gain.astype(np.float32))
    bought = np.flatnonzero(solution.x[model.blocks] > 0.0)
    return Prices(solution.objective, cost, np.maximum(cost - earned, 0.0), bought)


def whole_cost(matrices: Matrices, found: Blocks) -> float:
    """Price of blocks, the nodes that they take, and the spares of their pools [$/h]."""
    chosen = matrices.take(found.index)
    first = np.unique(chosen.pool, return_index=True)[1]
    engines = found.blocks * chosen.replicas
    engines[first] += matrices.spares
    cost = float(chosen.price @ engines)
    for limit in chosen.limits:
        if limit.node_size:
            cost += -(-round(float(limit.weight @ engines)) // limit.node_size) * limit.node_price
    return cost
