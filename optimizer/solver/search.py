"""The cheapest fleet and a proof: column generation for the bound, a whole-number search for the fleet.

1. The cheapest fleet of one or two pools, exhaustively, is the ceiling: no block of a better fleet costs more.
2. Solve the linear relaxation over a few columns; price every column of the space against its duals, add those
   that would improve it, and repeat: its value becomes a lower bound over the whole space.
3. A column whose reduced cost exceeds ceiling - bound is in no better fleet. Those that remain go, as matrices, to the
   whole-number search (`whole`), which looks for anything below the ceiling and proves how far it got.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.columns import Columns, column_price
from optimizer.loads.instance import Instance
from optimizer.loads.loads import Loads, column_loads

from .blocks import LEAST_TIME, Prices, Work
from .fleet_model import (
    Aim,
    FleetModel,
    engine_cost,
    fleet_limits,
    matrices_of,
    write_model,
)
from .pricing import Priced, price_columns, read_duals, reduced_costs
from .program import Outcome, Solution, solve
from .simple_plans import SimplePlan, Totals, block_costs, possible, simple_plans
from .tolerances import DEARER, SAME
from .whole import improve

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_ENGINES = 50_000
"""Beyond this many engines whole numbers no longer matter and the simple plan is taken."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search.

    starters: first columns per role and shape; added: columns per round; rounds: of column generation;
    bound_gap: of the relaxation; columns, more, nodes, choices, lifted, provable: see `blocks.Work`; most_columns:
    that the whole-number search may use; gap: relative gap at which it may stop; time_limit: its safety net [s], meant
    never to be reached; until: what `time.perf_counter` tells when the user wants an answer [s].
    """

    starters: int = 3
    added: int = 60
    rounds: int = 12
    columns: int = 30
    more: int = 90
    nodes: int = 500
    choices: int = 60
    lifted: int = 150
    provable: int = 1000
    most_columns: int = 100_000
    time_limit: float = 60.0
    gap: float = 9e-5
    bound_gap: float = 2e-3
    until: float = math.inf

    def late(self) -> bool:
        """Whether the user wants an answer now."""
        return time.perf_counter() >= self.until

    def part(self, share: float) -> Effort:
        """The effort for the first part of what is to be done: it is late once that share of the time left is spent."""
        now = time.perf_counter()
        return replace(self, until=now + share * (self.until - now))

    def seconds(self) -> float:
        """Time that a search may take from now on [s]."""
        return min(self.time_limit, max(self.until - time.perf_counter(), LEAST_TIME))

    def work(self) -> Work:
        """The part of it that the whole-number search may do."""
        return Work(
            columns=self.columns,
            more=self.more,
            nodes=self.nodes,
            choices=self.choices,
            liftable=0,
            lifted=self.lifted,
            provable=self.provable,
            gap=self.gap,
            time_limit=self.seconds(),
        )


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
    """Outcome of column generation: the active columns, those bought, and the bound.

    reduced, price: of every column the reduced cost, and what a block costs at the shadow prices of the limits.
    """

    active: IntArray
    bought: IntArray
    bound: float
    reduced: FloatArray
    price: FloatArray
    feasible: bool


def generate(  # noqa: PLR0917
    instance: Instance, columns: Columns, priced: tuple[Priced, ...], active: IntArray, aim: Aim, effort: Effort
) -> Relaxed:
    """Solve the linear relaxation over all columns, from some active ones on; priced: these columns.

    Rounds end when the bound is tight, when two of them in a row brought nothing, or when it is late.
    """
    best = cost = np.zeros(columns.size)
    bought, bound, value, idle = active, -np.inf, np.inf, 0
    for _ in range(effort.rounds):
        chosen = columns.take(active)
        model = write_model(matrices_of(instance, chosen, column_loads(instance, chosen)).linear, aim)
        solution = solve(model.program, relaxed=True)
        if solution.x.size == 0:
            return Relaxed(active, bought, np.inf, best, best, feasible=False)
        bought = active[solution.x[model.blocks] > 0.0]
        duals = read_duals(instance, model, solution, aim)
        reduced = reduced_costs(instance, priced, duals)
        reduced[active] = np.maximum(reduced[active], 0.0)
        price = np.maximum(columns.replicas * duals.engine[columns.shape], 1e-12)
        relative = reduced / price
        proven = proven_bound(instance, columns, model, solution, aim, reduced=reduced)
        bound, best, cost = max((bound, best, cost), (proven, reduced, price), key=lambda round_: round_[0])
        idle = idle + 1 if solution.objective > value - 1e-4 * abs(value) else 0
        value = solution.objective
        if relative.min() >= -effort.bound_gap or idle == 2 or effort.late():
            break
        improving = np.argsort(relative, kind="stable")[: effort.added]
        near = active[reduced[active] <= 0.3 * price[active]]
        active = np.unique(np.concatenate([near, improving[relative[improving] < 0.0]]))
    return Relaxed(active, bought, bound, best, cost, feasible=True)


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
    starters = choose_starters(instance, columns, totals, effort.starters)
    return generate(instance, columns, price_columns(instance, columns), starters, aim, effort)


def _relaxed(  # noqa: PLR0917
    instance: Instance, columns: Columns, starters: IntArray, incumbent: IntArray, aim: Aim, effort: Effort
) -> Relaxed:
    """The relaxation over the columns; infeasible also where it was too late to find some that serve the demand."""
    priced = price_columns(instance, columns)
    relaxed = generate(instance, columns, priced, np.union1d(starters, incumbent), aim, effort)
    if relaxed.feasible or effort.late():
        return relaxed
    served = Aim(cost_weight=0.0, volume_weight=1.0, min_volume=0.0, max_volume=aim.min_volume)
    most_served = generate(instance, columns, priced, starters, served, effort).active  # whatever they cost
    return generate(instance, columns, priced, most_served, aim, effort)


def search(  # noqa: PLR0917
    instance: Instance,
    columns: Columns,
    totals: Totals,
    aim: Aim,
    effort: Effort,
    most: float = np.inf,
    *,
    rival: float = np.inf,
) -> Found:
    """Find the best fleet over `columns` and a proven bound of its cost.

    The best simple plan is the ceiling: a block that alone costs more is in no better fleet. It serves the demand
    once, so there is none for more. most: cost above which nothing is looked for [$/h]; where all is dearer, the
    outcome is infeasible and the bound infinite. rival: cost of a fleet that is known to hold whatever these columns
    promise: after a first look it is only asked whether they promise one that costs no more than that [$/h].
    """
    simple = simple_plans(instance, columns, totals) if aim.volume_weight == 0.0 and aim.min_volume <= 1.0 else []
    if simple and (effort.late() or simple[0].engines(columns) > MOST_ENGINES):
        return plan_blocks(instance, columns, simple[0])
    simple = [plan for plan in simple if plan.cost <= most]
    ceiling = min(simple[0].cost if simple else np.inf, most)
    cheap = block_costs(instance, columns) <= ceiling * (1.0 + SAME)
    keep = np.flatnonzero(cheap & np.isfinite(totals.busiest) & possible(instance, columns))
    near, near_totals = columns.take(keep), totals.take(keep)
    if near.size == 0 or effort.late():
        return _nothing(instance, columns, Outcome.NOTHING_FOUND if near.size else Outcome.INFEASIBLE)
    incumbent = np.flatnonzero(np.isin(keep, [column for plan in simple for column in plan.columns]))
    starters = choose_starters(instance, near, near_totals, effort.starters)
    relaxed = _relaxed(instance, near, starters, incumbent, aim, effort)
    if not relaxed.feasible:
        return _nothing(instance, columns, Outcome.NOTHING_FOUND if effort.late() else Outcome.INFEASIBLE)
    slack = ceiling * aim.cost_weight - relaxed.bound
    alive = np.flatnonzero(relaxed.reduced <= slack + DEARER)
    exact = alive.size <= effort.most_columns and not effort.late()
    chosen = alive if exact else _nearest(instance, near, relaxed, effort.most_columns)
    ceiling = ceiling * aim.cost_weight * (1.0 - effort.gap)
    if effort.late():
        found = _nothing(instance, columns, Outcome.NOTHING_FOUND)
    else:
        rival *= aim.cost_weight
        found = _improved(instance, near.take(chosen), (relaxed, chosen), (aim, effort), (ceiling, rival))
    bound = max(relaxed.bound, found.bound) if exact else relaxed.bound
    if found.columns.size:
        return replace(found, bound=min(bound, found.objective), exact=exact, priced=columns.size)
    if not simple:
        outcome = found.outcome if exact else Outcome.NOTHING_FOUND  # of these columns: that proves nothing
        return replace(found, outcome=outcome, bound=bound, priced=columns.size)
    kept = plan_blocks(instance, columns, simple[0])
    cost = simple[0].cost * aim.cost_weight
    return replace(kept, objective=cost, bound=min(bound, cost), exact=exact and found.outcome is Outcome.INFEASIBLE)


def _improved(
    instance: Instance,
    chosen: Columns,
    priced: tuple[Relaxed, IntArray],
    how: tuple[Aim, Effort],
    limits: tuple[float, float],
) -> Found:
    """The best fleet of the chosen columns.

    priced: the relaxation, and which of its columns these are; how: the aim and the effort; limits: on the objective,
    and that of a rival (see `improve`).
    """
    (relaxed, index), (aim, effort) = priced, how
    loads = column_loads(instance, chosen)
    matrices = matrices_of(instance, chosen, loads)
    bought = np.flatnonzero(np.isin(index, relaxed.bought))
    prices = Prices(relaxed.bound, relaxed.price[index], relaxed.reduced[index], bought)
    best = improve(matrices, aim, effort.work(), prices, *limits)
    used = best.index
    return Found(
        outcome=best.outcome,
        objective=best.objective,
        bound=best.bound,
        volume=best.volume,
        columns=chosen.take(used),
        loads=Loads(loads.load[used], loads.miss[used]),
        blocks=best.blocks,
        route=best.route,
        priced=chosen.size,
        exact=best.complete,
    )


def _nearest(instance: Instance, columns: Columns, relaxed: Relaxed, count: int) -> IntArray:
    """The columns nearest to the relaxation, per dollar; half of them each of another role, shape or block size.

    Whole numbers need odd sizes to fill gaps, which the relaxation alone would never ask for.
    """
    price = column_price(instance.tables, columns)
    order = np.argsort(relaxed.reduced / np.maximum(price, 1e-12), kind="stable")
    kinds = np.stack([columns.role, columns.shape, columns.replicas])[:, order]
    different = np.sort(np.unique(kinds, axis=1, return_index=True)[1])
    return np.union1d(order[: count // 2], order[different[: count // 2]])


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
