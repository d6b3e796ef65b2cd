"""The cheapest fleet and a proof: column generation for the bound, a whole-number search for the fleet.

1. The cheapest fleet of one or two pools, exhaustively, is the ceiling: no block of a better fleet costs more.
2. Solve the linear relaxation over a few columns; price every column of the space against its duals, add those
   that would improve it, and repeat: its value becomes a lower bound over the whole space.
3. A column whose reduced cost exceeds ceiling - bound is in no better fleet. Solve the whole-number problem over
   those that remain if they are few (then the result is proven), else over the nearest of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .columns import Columns, column_price
from .fleet_model import (
    Aim,
    FleetModel,
    build_fleet_model,
    engine_cost,
    fleet_limits,
)
from .instance import Instance
from .loads import Loads, column_loads
from .pricing import TOLERANCE, price_columns, read_duals, reduced_costs
from .program import Outcome, Solution, solve, with_ceiling
from .simple_plans import SimplePlan, Totals, block_costs, possible, simple_plans

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_COLUMNS = 3000
"""Where no fleet is found among fewer, as many columns are tried at last."""

MOST_ENGINES = 50_000
"""Beyond this many engines whole numbers no longer matter and the simple plan is taken."""

MANY_ENGINES = 12
"""From this many engines on, mixed fleets save more, and the whole-number problem gets twice the columns."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search.

    starters: first columns per role and shape; added: columns per round; rounds: of column generation;
    columns: size of the whole-number problem, exact_columns: up to which it holds every column that could matter;
    time_limit: of the whole-number problem [s]; gap: relative gap at which it may stop; bound_gap: of the relaxation.
    """

    starters: int = 3
    added: int = 60
    rounds: int = 12
    columns: int = 70
    exact_columns: int = 150
    time_limit: float = 10.0
    gap: float = 9e-5
    bound_gap: float = 2e-3


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


def choose_starters(instance: Instance, columns: Columns, totals: Totals, per_kind: int) -> IntArray:
    """Columns that serve the whole demand cheapest, some of each role and shape; and those that keep the SLO best."""
    price = column_price(instance.tables, columns)
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
    """Outcome of column generation: the active columns, those bought, the bound, and every column's reduced cost."""

    active: IntArray
    bought: IntArray
    bound: float
    reduced: FloatArray
    feasible: bool


def generate(instance: Instance, columns: Columns, active: IntArray, aim: Aim, effort: Effort) -> Relaxed:
    """Solve the linear relaxation over all columns, from some active ones on.

    Rounds end when the bound is tight, or when two of them in a row brought nothing.
    """
    priced = price_columns(instance, columns)
    best = np.zeros(columns.size)
    bought, bound, value, idle = active, -np.inf, np.inf, 0
    for _ in range(effort.rounds):
        chosen = columns.take(active)
        model = build_fleet_model(instance, chosen, column_loads(instance, chosen), aim)
        solution = solve(model.program, relaxed=True)
        if solution.x.size == 0:
            return Relaxed(active, bought, np.inf, best, feasible=False)
        bought = active[solution.x[model.blocks] > 0.0]
        duals = read_duals(instance, model, solution, aim)
        reduced = reduced_costs(instance, priced, duals)
        reduced[active] = np.maximum(reduced[active], 0.0)
        price = np.maximum(columns.replicas * duals.engine[columns.shape], 1e-12)
        relative = reduced / price
        proven = proven_bound(instance, columns, model, solution, aim, reduced=reduced)
        bound, best = max((bound, best), (proven, reduced), key=lambda pair: pair[0])
        idle = idle + 1 if solution.objective > value - 1e-4 * abs(value) else 0
        value = solution.objective
        if relative.min() >= -effort.bound_gap or idle == 2:
            break
        improving = np.argsort(relative, kind="stable")[: effort.added]
        near = active[reduced[active] <= 0.3 * price[active]]
        active = np.unique(np.concatenate([near, improving[relative[improving] < 0.0]]))
    return Relaxed(active, bought, bound, best, feasible=True)


def proven_bound(
    instance: Instance, columns: Columns, model: FleetModel, solution: Solution, aim: Aim, *, reduced: FloatArray
) -> float:
    """What no fleet of the whole space can be below, from a relaxation over some columns and all reduced costs.

    With L what the limits take off the value, Z + L is linear in the prices of flows and misses. Where a column
    earns up to 1 + d times what it costs, those prices over 1 + d are feasible duals: (Z + L) / (1 + d) - L, less
    w V d / (1 + d) where volume is worth w. Or the limits are priced 1 + d' times higher: Z - d' L, with d'
    relative to what the limits alone make a column cost. Both hold; the better one is returned.
    """
    program = model.program
    limited = np.flatnonzero(np.isneginf(program.row_lower) & np.isfinite(program.row_upper))
    held = -float(solution.duals[limited] @ program.row_upper[limited])
    cost = aim.cost_weight * engine_cost(instance)
    extra, total = np.zeros(cost.size), 0.0
    for limit in fleet_limits(instance):
        dual = -float(solution.duals[model.limits[limit.name]])
        cost = cost + (dual * limit.weight if limit.node_size else 0.0)
        extra = extra + (0.0 if limit.node_size else dual * limit.weight)
        total += 0.0 if limit.node_size else dual * limit.upper
    short = np.maximum(-reduced, 0.0) / columns.replicas
    with np.errstate(divide="ignore", invalid="ignore"):
        over = float(np.nan_to_num(short / (cost + extra)[columns.shape], nan=0.0, posinf=np.inf).max())
        above = float(np.nan_to_num(short / extra[columns.shape], nan=0.0, posinf=np.inf).max())
    if not np.isfinite(over):
        return -np.inf
    lower = (solution.objective + held) / (1.0 + over) - held
    lower -= aim.volume_weight * aim.max_volume * over / (1.0 + over)
    return max(lower, solution.objective - above * total if np.isfinite(above) else -np.inf)


def generate_from(instance: Instance, columns: Columns, totals: Totals, aim: Aim, effort: Effort) -> Relaxed:
    """Column generation from the usual starters: the bound of the relaxation without a fleet."""
    return generate(instance, columns, choose_starters(instance, columns, totals, effort.starters), aim, effort)


def search(instance: Instance, columns: Columns, totals: Totals, aim: Aim, effort: Effort) -> Found:
    """Find the best fleet over `columns` and a proven bound of its cost.

    The best simple plan is the ceiling: a block that alone costs more is in no better fleet. It serves the demand
    once, so there is none for more.
    """
    simple = simple_plans(instance, columns, totals) if aim.volume_weight == 0.0 and aim.min_volume <= 1.0 else []
    if simple and simple[0].engines(columns) > MOST_ENGINES:
        return plan_blocks(instance, columns, simple[0])
    ceiling = simple[0].cost if simple else np.inf
    cheap = block_costs(instance, columns) <= ceiling * (1.0 + 1e-9)
    keep = np.flatnonzero(cheap & np.isfinite(totals.busiest) & possible(instance, columns))
    near, near_totals = columns.take(keep), totals.take(keep)
    if near.size == 0:
        return _nothing(instance, columns, Outcome.INFEASIBLE)
    incumbent = np.flatnonzero(np.isin(keep, [column for plan in simple for column in plan.columns]))
    starters = choose_starters(instance, near, near_totals, effort.starters)
    relaxed = generate(instance, near, np.union1d(starters, incumbent), aim, effort)
    if not relaxed.feasible:  # so far: look for columns that serve as much as can be, whatever they cost
        most = Aim(cost_weight=0.0, volume_weight=1.0, min_volume=0.0, max_volume=aim.min_volume)
        relaxed = generate(instance, near, generate(instance, near, starters, most, effort).active, aim, effort)
    if not relaxed.feasible:
        return _nothing(instance, columns, Outcome.INFEASIBLE)
    slack = ceiling * aim.cost_weight - relaxed.bound
    alive = np.flatnonzero(relaxed.reduced <= slack + TOLERANCE)
    exact = alive.size <= effort.exact_columns
    some = np.union1d(relaxed.bought, incumbent)
    many = not simple or simple[0].engines(columns) >= MANY_ENGINES
    count = effort.columns * (2 if many else 1)
    chosen = alive if exact else np.union1d(_nearest(instance, near, relaxed, count), some)
    if simple:
        spaces = columns, near.take(chosen)
        return _improved(instance, spaces, simple[0], aim, effort, bound=relaxed.bound, exact=exact)
    found = _whole(instance, near.take(chosen), aim, effort)
    for more in (10 * effort.columns, MOST_COLUMNS):
        if exact or found.outcome is not Outcome.INFEASIBLE:
            break
        exact = near.size <= more
        chosen = np.arange(near.size) if exact else np.union1d(_nearest(instance, near, relaxed, more), some)
        found = _whole(instance, near.take(chosen), aim, effort)
    if not exact and found.outcome is Outcome.INFEASIBLE:  # of these columns: that proves nothing
        found = replace(found, outcome=Outcome.NOTHING_FOUND)
    bound = max(relaxed.bound, found.bound) if exact else relaxed.bound
    return replace(found, bound=min(bound, found.objective), exact=exact, priced=columns.size)


def _improved(
    instance: Instance,
    spaces: tuple[Columns, Columns],
    plan: SimplePlan,
    aim: Aim,
    effort: Effort,
    *,
    bound: float,
    exact: bool,
) -> Found:
    """A fleet that beats the simple plan, or else that plan.

    spaces: all columns, and those that the whole-number problem may use. Asking only for what is cheaper lets the
    solver discard nearly all of the search at once.
    """
    columns, chosen = spaces
    ceiling = plan.cost * aim.cost_weight * (1.0 - effort.gap)
    found = _whole(instance, chosen, aim, effort, ceiling)
    if found.columns.size:
        best = max(bound, found.bound) if exact else bound
        return replace(found, bound=min(best, found.objective), exact=exact, priced=columns.size)
    none_cheaper = exact and found.outcome is Outcome.INFEASIBLE
    kept = plan_blocks(instance, columns, plan)
    cost = plan.cost * aim.cost_weight
    return replace(kept, objective=cost, bound=max(bound, ceiling) if none_cheaper else bound, exact=none_cheaper)


def _nearest(instance: Instance, columns: Columns, relaxed: Relaxed, count: int) -> IntArray:
    """The columns nearest to the relaxation, per dollar; half of them each of another role, shape or block size.

    Whole numbers need odd sizes to fill gaps, which the relaxation alone would never ask for.
    """
    price = column_price(instance.tables, columns)
    order = np.argsort(relaxed.reduced / np.maximum(price, 1e-12), kind="stable")
    kinds = np.stack([columns.role, columns.shape, columns.replicas])[:, order]
    different = np.sort(np.unique(kinds, axis=1, return_index=True)[1])
    return np.union1d(order[: count // 2], order[different[: count // 2]])


def _whole(instance: Instance, chosen: Columns, aim: Aim, effort: Effort, ceiling: float = np.inf) -> Found:
    """Solve the whole-number problem over some columns, for objectives up to `ceiling`."""
    loads = column_loads(instance, chosen)
    model = build_fleet_model(instance, chosen, loads, aim)
    program = model.program if np.isinf(ceiling) else with_ceiling(model.program, ceiling)
    solution = solve(program, time_limit=effort.time_limit, gap=effort.gap)
    if solution.x.size == 0:
        return _nothing(instance, chosen, solution.outcome)
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
        priced=chosen.size,
        exact=False,
    )


def _nothing(instance: Instance, columns: Columns, outcome: Outcome) -> Found:
    none = np.zeros(0, dtype=np.int64)
    flows = instance.flows.isl.size
    empty = Loads(np.zeros((0, 6, flows)), np.zeros((0, flows)))
    return Found(
        outcome, np.inf, np.inf, 0.0, columns.take(none), empty, none, np.zeros((0, flows)), columns.size, exact=False
    )


def plan_blocks(instance: Instance, columns: Columns, plan: SimplePlan) -> Found:
    """A simple plan in the form of a search result: the blocks of each column share everything evenly."""
    chosen = columns.take(np.array(plan.columns))
    route = np.ones((chosen.size, instance.flows.isl.size))
    blocks = np.array(plan.blocks, dtype=np.int64)
    loads = column_loads(instance, chosen)
    return Found(Outcome.FEASIBLE, plan.cost, 0.0, 1.0, chosen, loads, blocks, route, columns.size, exact=False)
