"""The cheapest fleet and a proof: column generation for the bound, a whole-number search for the fleet.

1. Start from the columns that serve representative mixes cheapest; solve the linear relaxation.
2. Price every column of the space against its duals, add the ones that would improve it, repeat until none
   would: the relaxation's value is then a lower bound over the whole space.
3. Solve the whole-number problem over the columns nearest to it; that fleet costs an upper bound U.
4. A column whose reduced cost exceeds U - bound cannot be part of a cheaper fleet. Solve once more over the
   columns that remain; if all of them fitted, the result is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .columns import ROLES, Columns, Loads, blocks_of, column_loads
from .fleet_model import COLOCATED, DECODE, PREFILL, Aim, FleetModel, build_fleet_model, engine_cost, fleet_limits
from .instance import Instance
from .program import Outcome, Solution, solve
from .simple_plans import Totals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search: columns per round, rounds, columns in the whole-number problem, seconds, relative gap."""

    starters: int = 2
    added: int = 60
    rounds: int = 25
    columns: int = 90
    time_limit: float = 20.0
    gap: float = 1e-4


@dataclass(frozen=True, slots=True)
class Duals:
    """Shadow prices of one relaxation: per flow and stage, per class, and of one engine of each shape."""

    gain: FloatArray
    miss: FloatArray
    engine: FloatArray


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search.

    columns, blocks: the fleet, and how many blocks of each column; route (columns, flows): shares routed.
    bound is a proven lower bound of `objective` over all columns; priced counts columns, exact tells whether
    the last whole-number problem held every column that could matter.
    """

    outcome: Outcome
    objective: float
    bound: float
    volume: float
    columns: Columns
    loads: Loads
    blocks: IntArray
    route: FloatArray
    priced: int
    exact: bool


def read_duals(instance: Instance, model: FleetModel, solution: Solution, aim: Aim) -> Duals:
    """Turn row duals into what a unit of each flow earns on each (role, domain) and what an engine costs."""
    duals = solution.duals
    cover = duals[model.cover]
    gain = np.zeros((len(ROLES), model.pair.shape[0], cover.size))
    gain[PREFILL] = cover + duals[model.pair]
    gain[DECODE] = -duals[model.pair]
    gain[COLOCATED] = cover
    engine = aim.cost_weight * engine_cost(instance)
    for limit in fleet_limits(instance):
        engine = engine - duals[model.limits[limit.name]] * limit.weight
    flows = instance.flows
    return Duals(gain, duals[model.attainment][flows.slo] * flows.share, engine)


def reduced_costs(instance: Instance, columns: Columns, duals: Duals) -> FloatArray:
    """Lower bound of each column's reduced cost per block [$/h], shape (columns,).

    A block earns at most max_x { gain x : load_r x <= 1 for every r }. Any weights y >= 0 of the resources that
    sum to 1 bound that by max_f gain_f / (sum_r y_r rate_f load_rf); a few subgradient steps look for good ones.
    """
    price = columns.replicas * duals.engine[columns.shape]
    result = np.empty(columns.size)
    for part in blocks_of(columns):
        chosen = columns.take(np.arange(part.start, part.stop))
        result[part] = price[part] - most_earned(instance, chosen, column_loads(instance, chosen), duals)
    return result


def most_earned(instance: Instance, columns: Columns, loads: Loads, duals: Duals, steps: int = 8) -> FloatArray:
    """Upper bound of what one block of each column earns at the duals [$/h], shape (columns,)."""
    domain = instance.tables.domain[columns.shape]
    gain = np.maximum(duals.gain[columns.role, domain] + loads.miss * duals.miss, 0.0)
    with np.errstate(invalid="ignore"):
        load = np.where(np.isfinite(loads.load), loads.load * instance.flows.rate, np.inf)
    possible = np.isfinite(load).all(axis=(1, 2))
    load[~possible] = 1.0
    used = load.max(axis=2) > 0.0
    weight = used / np.maximum(used.sum(axis=1, keepdims=True), 1)
    best = np.full(columns.size, np.inf)
    at = np.arange(columns.size)
    for step in range(steps):
        ratio = gain / np.maximum(np.einsum("cr,crf->cf", weight, load), 1e-300)
        worst = ratio.argmax(axis=1)
        best = np.minimum(best, ratio[at, worst])
        push = load[at, :, worst]
        push = push / np.maximum(push.sum(axis=1, keepdims=True), 1e-300)
        weight = weight + (push - weight) / (step + 2.0)
    for r in range(load.shape[1]):
        alone = np.where(load[:, r] > 0.0, gain / np.maximum(load[:, r], 1e-300), np.where(gain > 0.0, np.inf, 0.0))
        best = np.minimum(best, alone.max(axis=1))
    return np.where(possible, best, 0.0)


def choose_starters(instance: Instance, columns: Columns, totals: Totals, per_kind: int) -> IntArray:
    """Columns that serve the whole demand cheapest, some of each role and shape; and those that keep the SLO best."""
    price = columns.replicas * instance.tables.usd_per_hour[columns.shape]
    late = totals.late.max(axis=1)
    cost = price * np.minimum(totals.busiest, 1e9)
    kind = np.unique(np.stack([columns.role, columns.shape]), axis=1, return_inverse=True)[1].ravel()
    chosen = []
    for score in (cost * np.maximum(late, 1.0), cost * np.maximum(late / 0.3, 1.0)):
        order = np.lexsort((score, kind))
        rank = np.arange(order.size) - np.searchsorted(kind[order], kind[order])
        chosen.append(order[rank < per_kind])
    return np.unique(np.concatenate(chosen))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Outcome of column generation: the active columns, the bound, and every column's reduced cost."""

    active: IntArray
    bound: float
    reduced: FloatArray
    feasible: bool


def generate(instance: Instance, columns: Columns, active: IntArray, aim: Aim, effort: Effort) -> Relaxed:
    """Solve the linear relaxation over all columns (step 1 and 2)."""
    reduced = np.zeros(columns.size)
    bound = -np.inf
    for _ in range(effort.rounds):
        chosen = columns.take(active)
        model = build_fleet_model(instance, chosen, column_loads(instance, chosen), aim)
        solution = solve(model.program, relaxed=True)
        if solution.outcome is Outcome.INFEASIBLE:
            return Relaxed(active, np.inf, reduced, feasible=False)
        duals = read_duals(instance, model, solution, aim)
        reduced = reduced_costs(instance, columns, duals)
        price = np.maximum(columns.replicas * duals.engine[columns.shape], 1e-12)
        reduced[active] = np.maximum(reduced[active], 0.0)
        relative = reduced / price
        bound = max(bound, solution.objective / (1.0 + max(0.0, -float(relative.min()))))
        if relative.min() >= -TOLERANCE:
            break
        improving = np.argsort(relative, kind="stable")[: effort.added]
        improving = improving[relative[improving] < -TOLERANCE]
        near = active[reduced[active] <= 0.3 * price[active]]
        active = np.unique(np.concatenate([near, improving]))
    return Relaxed(active, bound, reduced, feasible=True)


def search(instance: Instance, columns: Columns, aim: Aim, effort: Effort) -> Found:
    """Find the best fleet over `columns` and a proven bound."""
    relaxed = generate(instance, columns, aim, effort)
    if not relaxed.feasible:
        return _nothing(instance, columns, Outcome.INFEASIBLE)
    order = np.argsort(relaxed.reduced / np.maximum(columns.replicas, 1), kind="stable")
    first = np.unique(np.concatenate([order[: effort.columns], relaxed.active]))
    found = _whole(instance, columns, first, aim, replace(effort, time_limit=effort.time_limit / 3), relaxed.bound)
    if found.outcome not in {Outcome.OPTIMAL, Outcome.FEASIBLE}:
        return found
    slack = found.objective - relaxed.bound
    alive = np.flatnonzero(relaxed.reduced <= slack + TOLERANCE)
    exact = alive.size <= 6 * effort.columns
    if not exact:
        alive = alive[np.argsort(relaxed.reduced[alive], kind="stable")[: 3 * effort.columns]]
    again = _whole(instance, columns, alive, aim, effort, relaxed.bound)
    better = again if again.objective <= found.objective else found
    bound = max(relaxed.bound, min(again.bound, better.objective)) if exact else relaxed.bound
    return replace(better, bound=min(bound, better.objective), exact=exact, priced=columns.size)


def _whole(instance: Instance, columns: Columns, index: IntArray, aim: Aim, effort: Effort, bound: float) -> Found:
    """Solve the whole-number problem over some columns."""
    chosen = columns.take(index)
    loads = column_loads(instance, chosen)
    model = build_fleet_model(instance, chosen, loads, aim)
    solution = solve(model.program, time_limit=effort.time_limit, gap=effort.gap)
    if solution.x.size == 0:
        return replace(_nothing(instance, columns, solution.outcome), bound=bound)
    blocks = np.rint(solution.x[model.blocks]).astype(np.int64)
    route = np.zeros((chosen.size, instance.flows.isl.size))
    route[model.column, model.flow] = np.maximum(solution.x[model.routes], 0.0)
    used = np.flatnonzero(blocks > 0)
    return Found(
        outcome=solution.outcome,
        objective=solution.objective,
        bound=solution.bound,
        volume=float(solution.x[model.volume]),
        columns=chosen.take(used),
        loads=Loads(loads.load[used], loads.miss[used]),
        blocks=blocks[used],
        route=route[used],
        priced=columns.size,
        exact=False,
    )


def _nothing(instance: Instance, columns: Columns, outcome: Outcome) -> Found:
    none = np.zeros(0, dtype=np.int64)
    flows = instance.flows.isl.size
    empty = Loads(np.zeros((0, 6, flows)), np.zeros((0, flows)))
    return Found(
        outcome, np.inf, np.inf, 0.0, columns.take(none), empty, none, np.zeros((0, flows)), columns.size, exact=False
    )
