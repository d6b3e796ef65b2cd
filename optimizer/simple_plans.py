"""Fleets of one or two pools, searched exhaustively: the first answer, the baseline, and a ceiling on the cost.

Every colocated column alone, and every pair of a prefill and a decode column, is tried as the whole fleet. That
needs two numbers per column and demand: the busiest resource if it took everything, and its share of misses.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.problem import Billing, Goal

from .columns import Columns, blocks_of, join
from .fleet_model import COLOCATED, DECODE, PREFILL, engine_cost, fleet_limits
from .instance import Instance
from .loads import column_loads

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


MOST_BUSY = 0.97
"""Highest utilisation of prompt servers that a column may permit; beyond it a hair more load waits without end."""

COMPARED = 3.0
"""Fleets up to this many times as dear as the best pair are compared with it."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Every column as if it took the whole demand.

    prompt (columns,): busy share of the prompt servers, or the same for the queue if that is higher; it does not
    depend on the utilisation that the column permits. running (columns,): highest load of any other resource.
    busiest (columns,): highest load of any resource, 1 is full.
    late (columns, classes): misses as a share of those that the class permits.
    """

    prompt: FloatArray
    running: FloatArray
    busiest: FloatArray
    late: FloatArray

    def take(self, index: IntArray | NDArray[np.bool_]) -> Totals:
        """Totals of the columns at `index`."""
        return Totals(self.prompt[index], self.running[index], self.busiest[index], self.late[index])


@dataclass(frozen=True, slots=True)
class SimplePlan:
    """Columns of the cheapest fleet of one kind, one block each, and its cost [$/h]."""

    columns: tuple[int, ...]
    cost: float


def class_weights(instance: Instance) -> FloatArray:
    """Weight of each flow in the misses of each class, relative to those permitted, shape (classes, flows)."""
    flows, slos = instance.flows, instance.problem.slos
    weight = np.zeros((len(slos), flows.isl.size))
    for k, slo in enumerate(slos):
        mine = flows.slo == k
        weight[k, mine] = flows.share[mine] / (flows.share[mine].sum() * max(1.0 - slo.attainment, 1e-12))
    return weight


def column_totals(instance: Instance, columns: Columns) -> Totals:
    """Load and misses of each column under the whole demand; slices of columns run in two threads."""
    weight = class_weights(instance)

    def total(part: slice) -> tuple[FloatArray, FloatArray]:
        loads = column_loads(instance, columns.take(np.arange(part.start, part.stop)))
        with np.errstate(invalid="ignore"):
            used = loads.load @ instance.flows.rate
        return np.where(np.isnan(used), np.inf, used), loads.miss @ weight.T

    if columns.size == 0:
        return Totals(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, weight.shape[0])))
    with ThreadPoolExecutor(max_workers=2) as pool:
        parts = list(pool.map(total, blocks_of(columns)))
    used, late = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    prompt = used[:, :2].max(axis=1) * columns.utilization
    return Totals(prompt, used[:, 2:].max(axis=1), used.max(axis=1), late)


def tailored(columns: Columns, totals: Totals) -> Columns:
    """Columns whose permitted utilisation is just what the whole demand needs: they wait, and miss, the least."""
    setting = np.stack([columns.role, columns.shape, columns.replicas, columns.seqs, columns.chunk]).astype(np.float64)
    setting = np.concatenate([setting, [columns.moment, columns.attention]])
    first = np.unique(setting, axis=1, return_index=True)[1]
    need = totals.prompt[first] * (1.0 + 1e-9)
    able = (columns.role[first] != DECODE) & (totals.running[first] <= 1.0) & (need < MOST_BUSY)
    order = np.argsort(first[able])
    return replace(columns.take(first[able][order]), utilization=need[able][order])


def price_space(instance: Instance, columns: Columns) -> tuple[Columns, Totals]:
    """The columns that can matter, tailored ones added, and their totals.

    Where a fleet is bought for the least cost, disaggregated pairs are priced first, as they are few; blocks that
    alone cost more than COMPARED times the best pair are neither in the best fleet nor worth comparing with it.
    """
    apart, some = _with_tailored(instance, columns.take(columns.role != COLOCATED))
    together = columns.take(columns.role == COLOCATED)
    if instance.problem.objective.goal is Goal.MIN_COST and together.size:
        plans = simple_plans(instance, apart, some)
        ceiling = COMPARED * plans[0].cost if plans else np.inf
        near = block_costs(instance, apart) <= ceiling
        apart, some = apart.take(near), some.take(near)
        together = together.take(block_costs(instance, together) <= ceiling)
    together, rest = _with_tailored(instance, together)
    totals = Totals(*(np.concatenate([getattr(some, name), getattr(rest, name)]) for name in Totals.__slots__))
    return join([apart, together]), totals


def _with_tailored(instance: Instance, columns: Columns) -> tuple[Columns, Totals]:
    totals = column_totals(instance, columns)
    extra = tailored(columns, totals)
    more = column_totals(instance, extra)
    joined = (np.concatenate([getattr(totals, name), getattr(more, name)]) for name in Totals.__slots__)
    return join([columns, extra]), Totals(*joined)


def simple_plans(instance: Instance, columns: Columns, totals: Totals) -> list[SimplePlan]:
    """The cheapest one-pool and the cheapest prefill-decode fleet that hold every limit, cheapest first."""
    able = totals.busiest <= 1.0 + 1e-9
    plans = [_best_single(instance, columns, totals, able), _best_pair(instance, columns, totals, able)]
    return sorted((plan for plan in plans if plan is not None), key=lambda plan: plan.cost)


def block_costs(instance: Instance, columns: Columns) -> FloatArray:
    """Cost of one block and its spare replicas as the only one of its accelerator [$/h], shape (columns,)."""
    tables, problem = instance.tables, instance.problem
    engines = columns.replicas + problem.constraints.spare_replicas
    cost = engines * engine_cost(instance)[columns.shape]
    for index, offer in enumerate(problem.offers):
        if offer.billing is Billing.NODE:
            mine = tables.offer[columns.shape] == index
            size = offer.accelerator.node_size
            nodes = np.ceil(engines * tables.gpus[columns.shape] / size - 1e-9)
            cost = np.where(mine, nodes * size * offer.usd_per_hour, cost)
    return np.asarray(cost, dtype=np.float64)


def _limit_use(instance: Instance, columns: Columns) -> tuple[FloatArray, FloatArray]:
    """Use of every fleet-wide limit by one block with its spares, (limits, columns), and the limits."""
    engines = columns.replicas + instance.problem.constraints.spare_replicas
    limits = [limit for limit in fleet_limits(instance) if not limit.node_size]
    use = [
        block_costs(instance, columns) if limit.name == "budget" else engines * limit.weight[columns.shape]
        for limit in limits
    ]
    upper = np.array([limit.upper for limit in limits]).reshape(-1, 1)
    return np.array(use).reshape(len(limits), columns.size), upper * (1.0 + 1e-9)


def _best_single(instance: Instance, columns: Columns, totals: Totals, able: NDArray[np.bool_]) -> SimplePlan | None:
    use, upper = _limit_use(instance, columns)
    good = able & (columns.role == COLOCATED) & (totals.late <= 1.0).all(axis=1) & (use <= upper).all(axis=0)
    index = np.flatnonzero(good)
    if index.size == 0:
        return None
    cost = block_costs(instance, columns)[index]
    best = int(np.lexsort((totals.late[index].max(axis=1), cost))[0])
    return SimplePlan((int(index[best]),), float(cost[best]))


def _undominated(index: IntArray, values: FloatArray) -> IntArray:
    """Those of `index` that no other one beats in every column of `values` (rows sorted lexicographically)."""
    order = index[np.lexsort(values[index].T[::-1])]
    kept: list[int] = []
    for candidate in order:
        if not kept or not (values[kept] <= values[candidate]).all(axis=1).any():
            kept.append(int(candidate))
    return np.array(kept, dtype=np.int64)


def _best_pair(instance: Instance, columns: Columns, totals: Totals, able: NDArray[np.bool_]) -> SimplePlan | None:
    limits = instance.problem.constraints
    if limits.max_pools is not None and limits.max_pools < 2:
        return None
    use, upper = _limit_use(instance, columns)
    cost = block_costs(instance, columns)
    domain = instance.tables.domain[columns.shape]
    values = np.concatenate([cost[:, None], totals.late, use.T], axis=1)
    best: SimplePlan | None = None
    for here in np.unique(domain):
        ends = []
        for role in (PREFILL, DECODE):
            index = np.flatnonzero(able & (columns.role == role) & (domain == here) & (totals.late <= 1.0).all(axis=1))
            ends.append(_undominated(index, values))
        if not ends[0].size or not ends[1].size:
            continue
        first, second = (axis.ravel() for axis in np.meshgrid(*ends, indexing="ij"))
        good = (totals.late[first] + totals.late[second] <= 1.0).all(axis=1)
        good &= (use[:, first] + use[:, second] <= upper).all(axis=0)
        if not good.any():
            continue
        total = np.where(good, cost[first] + cost[second], np.inf)
        at = int(np.argmin(total))
        if best is None or total[at] < best.cost:
            best = SimplePlan((int(first[at]), int(second[at])), float(total[at]))
    return best
