"""Fleets of one or two pools, searched exhaustively: the first answer, the baseline, and a ceiling on the cost.

Every colocated column alone, and every pair of a prefill and a decode column, is tried as the whole fleet. That
needs two numbers per column and demand: the busiest resource if it took everything, and its share of misses.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.loads.columns import Columns, blocks_of, join
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late, never
from optimizer.loads.loads import RESOURCES, Resource, column_loads, least_attention, least_step
from search_spaces.problem import Billing, Goal

from .fleet_model import COLOCATED, DECODE, PREFILL, engine_cost, fleet_limits
from .tolerances import SAME

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
    depend on the utilisation that the column permits. running (columns,): highest load of any other resource;
    apart (columns,): the same without attention time. busiest (columns,): highest load of any resource, 1 is full.
    late (columns, classes): misses as a share of those that the class permits.
    """

    prompt: FloatArray
    running: FloatArray
    apart: FloatArray
    busiest: FloatArray
    late: FloatArray

    def take(self, index: IntArray | NDArray[np.bool_]) -> Totals:
        """Totals of the columns at `index`."""
        return Totals(*(getattr(self, name)[index] for name in Totals.__slots__))

    def scaled(self, volume: float) -> Totals:
        """Totals at `volume` times the demand; misses depend on what a column permits, not on the rate."""
        return Totals(*(getattr(self, name) * (1.0 if name == "late" else volume) for name in Totals.__slots__))


@dataclass(frozen=True, slots=True)
class SimplePlan:
    """Columns of the cheapest fleet of one kind, how many blocks of each, and its cost [$/h]."""

    columns: tuple[int, ...]
    blocks: tuple[int, ...]
    cost: float

    def engines(self, columns: Columns) -> int:
        """Engines of the fleet, spares apart; columns: those that the plan's indices mean."""
        return int(columns.replicas[list(self.columns)] @ np.array(self.blocks))


def class_weights(instance: Instance) -> FloatArray:
    """Weight of each flow in the misses of each class, relative to those permitted, shape (classes, flows)."""
    flows, slos = instance.flows, instance.problem.slos
    weight = np.zeros((len(slos), flows.isl.size))
    for k, slo in enumerate(slos):
        mine = flows.slo == k
        weight[k, mine] = flows.share[mine] / (flows.share[mine].sum() * max(1.0 - slo.attainment, 1e-12))
    return weight


def column_totals(instance: Instance, columns: Columns, late: Late = never) -> Totals:
    """Load and misses of each column under the whole demand; slices of columns run in two threads.

    late: asked before each slice; columns that are not looked at because of it count as such that serve nothing.
    """
    weight = class_weights(instance)

    def total(part: slice) -> tuple[FloatArray, FloatArray]:
        if late():
            size = part.stop - part.start
            return np.full((size, len(RESOURCES)), np.inf), np.full((size, weight.shape[0]), np.inf)
        loads = column_loads(instance, columns.take(np.arange(part.start, part.stop)))
        with np.errstate(invalid="ignore"):
            used = loads.load @ instance.flows.rate
        return np.where(np.isnan(used), np.inf, used), loads.miss @ weight.T

    if columns.size == 0:
        return Totals(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, weight.shape[0])))
    with ThreadPoolExecutor(max_workers=2) as pool:
        parts = list(pool.map(total, blocks_of(columns)))
    used, missed = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    prompt = used[:, :2].max(axis=1) * columns.utilization
    apart = np.delete(used, RESOURCES.index(Resource.ATTENTION_TIME), axis=1)[:, 2:]
    return Totals(prompt, used[:, 2:].max(axis=1), apart.max(axis=1), used.max(axis=1), missed)


def block_counts(busiest: FloatArray) -> FloatArray:
    """Blocks of each column that the whole demand needs, shared evenly; infinite where none can serve it."""
    return np.asarray(np.maximum(np.ceil(busiest - SAME), 1.0))


def one_of_each(columns: Columns, *names: str) -> IntArray:
    """Indices of the first column of every combination of the named parameters, in the columns' order."""
    setting = np.stack([getattr(columns, name) for name in names])
    return np.asarray(np.sort(np.unique(setting, axis=1, return_index=True)[1]))


def tailored(instance: Instance, columns: Columns, totals: Totals) -> Columns:
    """Columns that permit just what the whole demand needs, shared among the fewest blocks that can serve it.

    Prompt servers at no higher utilisation wait, and miss, the least; decode steps no longer than they must be.
    """
    first = one_of_each(columns, "role", "shape", "replicas", "seqs", "chunk", "moment", "attention", "chance")
    some, need, running = columns.take(first), totals.prompt[first] * (1.0 + SAME), totals.running[first]
    blocks = block_counts(np.maximum(running, need / MOST_BUSY))
    generates = some.role == DECODE
    step = np.full(some.size, np.inf)
    step[generates] = least_step(instance, some.take(generates), block_counts(totals.apart[first][generates]))
    able = np.where(generates, np.isfinite(step), np.isfinite(blocks))
    with np.errstate(invalid="ignore"):
        busy = np.where(generates, 1.0, need / blocks)
    return replace(some, utilization=busy, tpot=step).take(able)


def with_least_attention(instance: Instance, columns: Columns, totals: Totals) -> Columns:
    """Colocated columns whose steps have just the attention time that the demand needs, and the utilisation with it.

    One for every setting, shared among the fewest blocks that can serve the demand when attention takes no time. Slices
    of columns run in two threads.
    """
    some = columns.take(columns.role == COLOCATED)
    apart = totals.apart[columns.role == COLOCATED]
    first = one_of_each(some, "shape", "replicas", "seqs", "chunk", "chance", "moment")
    some, blocks = some.take(first), block_counts(apart[first])
    some, blocks = some.take(np.isfinite(blocks)), blocks[np.isfinite(blocks)]

    def least(part: slice) -> FloatArray:
        return least_attention(instance, some.take(np.arange(part.start, part.stop)), blocks[part])

    with ThreadPoolExecutor(max_workers=2) as pool:
        attention = np.concatenate([np.zeros(0), *pool.map(least, blocks_of(some))])
    able = np.isfinite(attention)
    return replace(some, attention=attention).take(able)


def price_space(instance: Instance, columns: Columns, late: Late = never) -> tuple[Columns, Totals]:
    """The columns that can matter, tailored ones added, and their totals; late: see `column_totals`.

    Where a fleet is bought for the least cost, disaggregated pairs are priced first, as they are few; blocks that
    alone cost more than COMPARED times the best pair are neither in the best fleet nor worth comparing with it.
    """
    apart, some = _with_tailored(instance, columns.take(columns.role != COLOCATED), late)
    together = columns.take(columns.role == COLOCATED)
    if instance.problem.objective.goal is Goal.MIN_COST and together.size:
        plans = simple_plans(instance, apart, some)
        ceiling = COMPARED * plans[0].cost if plans else np.inf
        near = block_costs(instance, apart) <= ceiling
        apart, some = apart.take(near), some.take(near)
        together = together.take(block_costs(instance, together) <= ceiling)
    together, rest = _with_tailored(instance, together, late)
    return join([apart, together]), joined(some, rest)


def _with_tailored(instance: Instance, columns: Columns, late: Late) -> tuple[Columns, Totals]:
    totals = column_totals(instance, columns, late)
    narrow = with_least_attention(instance, columns, totals)
    if narrow.size:
        columns, totals = join([columns, narrow]), joined(totals, column_totals(instance, narrow, late))
    extra = tailored(instance, columns, totals)
    more = column_totals(instance, extra, late)
    return join([columns, extra]), joined(totals, more)


def joined(one: Totals, other: Totals) -> Totals:
    """Totals of two sets of columns."""
    return Totals(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in Totals.__slots__))


def simple_plans(instance: Instance, columns: Columns, totals: Totals) -> list[SimplePlan]:
    """The cheapest one-pool and the cheapest prefill-decode fleet that hold every limit, cheapest first.

    A pool is as many equal blocks as the demand needs; each promises what one would, as each takes its even share.
    """
    ready = _Ready.of(instance, columns, totals)
    plans = [_best_single(columns, totals, ready), _best_pair(instance, columns, totals, ready)]
    return sorted((plan for plan in plans if plan is not None), key=lambda plan: plan.cost)


@dataclass(frozen=True, slots=True)
class _Ready:
    """Blocks that the demand needs of each column, their cost, and their use of every fleet-wide limit.

    blocks, cost (columns,); use (limits, columns), upper (limits, 1); able (columns,): alone within all limits.
    """

    blocks: FloatArray
    cost: FloatArray
    use: FloatArray
    upper: FloatArray
    able: NDArray[np.bool_]

    @classmethod
    def of(cls, instance: Instance, columns: Columns, totals: Totals) -> _Ready:
        blocks = block_counts(totals.busiest)
        cost = block_costs(instance, columns, blocks)
        use, upper = limit_use(instance, columns, blocks)
        able = np.isfinite(cost) & (use <= upper).all(axis=0) & (totals.late <= 1.0).all(axis=1)
        return cls(blocks, cost, use, upper, able)

    def plan(self, *chosen: int, cost: float) -> SimplePlan:
        """The plan of these columns."""
        return SimplePlan(tuple(chosen), tuple(int(self.blocks[column]) for column in chosen), cost)


def block_costs(instance: Instance, columns: Columns, blocks: FloatArray | float = 1.0) -> FloatArray:
    """Cost of `blocks` blocks and spare replicas as the only ones of their accelerator [$/h], shape (columns,)."""
    tables, problem = instance.tables, instance.problem
    engines = blocks * columns.replicas + problem.constraints.spare_replicas
    with np.errstate(invalid="ignore"):
        cost = engines * engine_cost(instance)[columns.shape]
    for index, offer in enumerate(problem.offers):
        if offer.billing is Billing.NODE:
            mine = tables.offer[columns.shape] == index
            size = offer.accelerator.node_size
            nodes = np.ceil(engines * tables.gpus[columns.shape] / size - SAME)
            cost = np.where(mine, nodes * size * offer.usd_per_hour, cost)
    return np.asarray(cost, dtype=np.float64)


def limit_use(instance: Instance, columns: Columns, blocks: FloatArray | float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Use of every fleet-wide limit by `blocks` blocks and their spare replicas: (limits, columns), and (limits, 1)."""
    engines = blocks * columns.replicas + instance.problem.constraints.spare_replicas
    cost = block_costs(instance, columns, blocks)
    limits = [limit for limit in fleet_limits(instance) if not limit.node_size]
    with np.errstate(invalid="ignore"):
        use = [cost if limit.name == "budget" else engines * limit.weight[columns.shape] for limit in limits]
    upper = np.array([limit.upper for limit in limits]).reshape(-1, 1) * (1.0 + SAME)
    return np.array(use).reshape(len(limits), columns.size), upper


def possible(instance: Instance, columns: Columns) -> NDArray[np.bool_]:
    """Columns of which one block with its spare replicas, and its partner where roles are apart, break no limit."""
    use, upper = limit_use(instance, columns)
    alone = (use <= upper).all(axis=0)
    pairs = instance.problem.constraints.fits((Role.PREFILL, Role.DECODE))
    return np.asarray(alone if pairs else alone & (columns.role == COLOCATED))


def _best_single(columns: Columns, totals: Totals, ready: _Ready) -> SimplePlan | None:
    index = np.flatnonzero(ready.able & (columns.role == COLOCATED))
    if index.size == 0:
        return None
    cost = ready.cost[index]
    best = int(np.lexsort((totals.late[index].max(axis=1), cost))[0])
    return ready.plan(int(index[best]), cost=float(cost[best]))


def _undominated(index: IntArray, values: FloatArray) -> IntArray:
    """Those of `index` that no other one beats in every column of `values` (rows sorted lexicographically)."""
    order = index[np.lexsort(values[index].T[::-1])]
    kept: list[int] = []
    for candidate in order:
        if not kept or not (values[kept] <= values[candidate]).all(axis=1).any():
            kept.append(int(candidate))
    return np.array(kept, dtype=np.int64)


def _best_pair(instance: Instance, columns: Columns, totals: Totals, ready: _Ready) -> SimplePlan | None:
    if not instance.problem.constraints.fits((Role.PREFILL, Role.DECODE)):
        return None
    tables, best = instance.tables, None
    able = [np.flatnonzero(ready.able & (columns.role == role)) for role in (PREFILL, DECODE)]
    group = tables.group[PREFILL, columns.shape[able[0]]]
    for here in np.unique(group):
        prefills = able[0][group == here]
        ends = [prefills, able[1][tables.talks[columns.shape[prefills[0]], columns.shape[able[1]]]]]
        if not ends[0].size or not ends[1].size:
            continue
        pair = _cheapest_pair(totals, ready, ends)
        if pair is not None and (best is None or pair.cost < best.cost):
            best = pair
    return best


def _cheapest_pair(totals: Totals, ready: _Ready, ends: list[IntArray]) -> SimplePlan | None:
    """The cheapest prefill and decode column that together keep every limit and permit no more misses than allowed."""
    values = np.concatenate([ready.cost[:, None], totals.late, ready.use.T], axis=1)
    quick = [index[(totals.late[index] <= 0.5).all(axis=1)] for index in ends]
    ceiling = np.inf
    if quick[0].size and quick[1].size:  # a pair that surely keeps the SLOs bounds the rest
        first, second = (int(index[np.argmin(ready.cost[index])]) for index in quick)
        if (ready.use[:, first] + ready.use[:, second] <= ready.upper[:, 0]).all():
            ceiling = ready.cost[first] + ready.cost[second]
    least = [ready.cost[index].min() for index in ends]
    near = [index[ready.cost[index] + other <= ceiling] for index, other in zip(ends, reversed(least), strict=True)]
    ends = [_undominated(index, values) for index in near]
    first_, second_ = (axis.ravel() for axis in np.meshgrid(*ends, indexing="ij"))
    good = (totals.late[first_] + totals.late[second_] <= 1.0).all(axis=1)
    good &= (ready.use[:, first_] + ready.use[:, second_] <= ready.upper).all(axis=0)
    if not good.any():
        return None
    cost = np.where(good, ready.cost[first_] + ready.cost[second_], np.inf)
    at = int(np.argmin(cost))
    return ready.plan(int(first_[at]), int(second_[at]), cost=float(cost[at]))
