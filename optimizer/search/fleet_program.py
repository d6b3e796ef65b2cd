"""The fleet problem in numbers, and as a mixed-integer programme: blocks of each column, and what they serve.

n_c   blocks of column c, whole           x_cf  share of flow f on column c
y_p   pool p is used, 0 or 1              V     served volume, as a multiple of the demand
N_t   nodes of accelerator t, whole (only where whole nodes are billed)

min   w_cost (sum price_c n_c + sum spare_p y_p) - w_volume V
cover        sum over prefill and colocated c of x_cf = V                 every flow f
pair         sum over prefill c of x_cf = sum over decode c of x_cf       every flow f and row of `pairing`; some are <=
load         sum_f rate_f load_crf x_cf <= n_c                            every column c and resource r
attainment   sum share_f miss_cf x_cf <= (1 - goal_k) share_k V           every SLO class k
inventory, budget, power, max_gpus, max_pools, gateway
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.hand_over import Pairing
from optimizer.loads.instance import DECODE, PREFILL, ROLES, Instance
from search_spaces.problem import Billing, Problem

from .program import Builder, Program

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Limit:
    """A fleet-wide limit: sum of weight x engines <= upper; weight is per engine, of each shape or of each column.

    node_size, node_price: for an accelerator billed by whole nodes, GPUs and $/h of one node; else 0.
    """

    name: str
    upper: float
    weight: FloatArray
    node_size: int = 0
    node_price: float = 0.0


@dataclass(frozen=True)
class Matrices:
    """C columns (blocks of equal engines), R resources, F flows, K classes of service; whoever worked them out.

    role, domain, pool (C,): roles as in `loads.settings`; columns of one role and domain may hand over to (or take in
    from) the same others; columns of one pool are the same engines with the same settings.
    replicas, price (C,): engines of a block, and $/h of one engine where it is billed singly, else 0.
    need (C, R, F): blocks that the whole of a flow takes; inf where it cannot run there.
    late (C, F): share of all requests that are late if the whole flow runs there.
    slo, permitted (F,), (K,): class of each flow; share of all requests that each class may have late.
    resources: their names. domains: how many there are; pairing: who may hand over to whom; None: those of one domain.
    limits: see Limit, weights (C,).
    spares: idle engines of every pool used; pool_limits: on the pools used, weights (C,) of the pool of each column;
    most: engines of one pool.
    """

    role: IntArray
    domain: IntArray
    pool: IntArray
    replicas: IntArray
    price: FloatArray
    need: FloatArray
    late: FloatArray
    slo: IntArray
    permitted: FloatArray
    resources: tuple[str, ...]
    domains: int = 1
    pairing: Pairing | None = None
    limits: tuple[Limit, ...] = ()
    spares: int = 0
    pool_limits: tuple[Limit, ...] = ()
    most: float = 10_000.0

    @property
    def size(self) -> int:
        """Number of columns."""
        return int(self.role.size)

    @property
    def flows(self) -> int:
        """Number of flows."""
        return int(self.need.shape[2])

    @property
    def hand_over(self) -> Pairing:
        """The rows that balance what is handed over and what is taken in."""
        return Pairing.within(self.domains) if self.pairing is None else self.pairing

    @property
    def counts_pools(self) -> bool:
        """Whether it matters how many pools there are."""
        return self.spares > 0 or bool(self.pool_limits)

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """Whether each flow can run on each column, shape (C, F)."""
        return np.asarray(np.isfinite(self.need).all(axis=1))

    @cached_property
    def block_price(self) -> FloatArray:
        """Price of one block, spares and whole nodes apart [$/h], shape (C,)."""
        return self.replicas * self.price

    def take(self, index: IntArray | NDArray[np.bool_]) -> Matrices:
        """The columns at `index`, in that order."""
        names = ("role", "domain", "pool", "replicas", "price", "need", "late")
        limits, pool_limits = (
            tuple(replace(limit, weight=limit.weight[index]) for limit in rows)
            for rows in (self.limits, self.pool_limits)
        )
        columns = {name: getattr(self, name)[index] for name in names}
        return replace(self, limits=limits, pool_limits=pool_limits, **columns)


def pool_limits(problem: Problem, role: IntArray) -> tuple[Limit, ...]:
    """Every limit on the number of pools, with the weight of the pool of each column; role (C,): as in `settings`."""
    limits = problem.constraints.pool_limits
    weights = [np.array([limit.weight.get(name, 0) for name in ROLES], dtype=np.float64) for limit in limits]
    return tuple(
        Limit(limit.name, float(limit.most), weight[role]) for limit, weight in zip(limits, weights, strict=True)
    )


def engine_cost(instance: Instance) -> FloatArray:
    """Price of one engine of each shape where GPUs are billed singly, 0 where whole nodes are [$/h], shape (S,)."""
    by_gpu = np.array([offer.billing is Billing.GPU for offer in instance.problem.offers])
    return np.asarray(instance.tables.usd_per_hour * by_gpu[instance.tables.offer])


def fleet_limits(instance: Instance) -> tuple[Limit, ...]:
    """Every limit on the whole fleet that is in force."""
    problem, tables = instance.problem, instance.tables
    ceiling = problem.constraints
    limits = []
    for index, offer in enumerate(problem.offers):
        gpus = tables.gpus * (tables.offer == index)
        name, size = offer.accelerator.name, offer.accelerator.node_size
        if offer.inventory is not None:
            limits.append(Limit(f"inventory {name}", float(offer.inventory), gpus))
        if offer.billing is Billing.NODE:
            limits.append(Limit(f"nodes {name}", 0.0, gpus, size, size * offer.usd_per_hour))
    if ceiling.budget is not None:
        limits.append(Limit("budget", ceiling.budget, engine_cost(instance)))
    if ceiling.power is not None:
        tdp = np.array([offer.accelerator.tdp for offer in problem.offers])
        limits.append(Limit("power", ceiling.power, tables.gpus * tdp[tables.offer]))
    if ceiling.max_gpus is not None:
        limits.append(Limit("max_gpus", float(ceiling.max_gpus), tables.gpus))
    return tuple(limits)


@dataclass(frozen=True, slots=True)
class Aim:
    """What is minimised: cost_weight x $/h - volume_weight x volume, with the volume between two limits."""

    cost_weight: float = 1.0
    volume_weight: float = 0.0
    min_volume: float = 1.0
    max_volume: float = 1.0


def aim_of(problem: Problem) -> Aim:
    """The least cost. Prices are scaled by the dearest, so that doubling all of them changes no digit of a search."""
    return Aim(cost_weight=1.0 / max(offer.usd_per_hour for offer in problem.offers))


@dataclass(frozen=True, slots=True)
class Routes:
    """Which x_cf there are: column, flow and variable of each, (routes,)."""

    column: IntArray
    flow: IntArray
    variable: IntArray


@dataclass(frozen=True, slots=True)
class FleetModel:
    """The programme and where its variables and rows stand.

    blocks (columns,): n_c; volume: V. cover (flows,), pair (rows of `pairing`, flows), attainment (classes,): rows;
    limits: rows of fleet-wide limits.
    """

    program: Program
    blocks: IntArray
    routes: Routes
    volume: int
    cover: IntArray
    pair: IntArray
    attainment: IntArray
    limits: dict[str, int]


def write_model(matrices: Matrices, aim: Aim) -> FleetModel:
    """Write the programme of a fleet problem."""
    builder = Builder()
    size, flows = matrices.size, range(matrices.flows)
    column, flow = np.nonzero(matrices.possible)
    blocks = builder.variables([f"n{c}" for c in range(size)], aim.cost_weight * matrices.block_price, whole=True)
    variables = builder.variables([f"x{c}_{f}" for c, f in zip(column, flow, strict=True)], 0.0)
    routes = Routes(column, flow, variables)
    volume = int(builder.variables(["V"], -aim.volume_weight, aim.max_volume)[0])
    first = matrices.role[column] != DECODE
    cover = builder.rows([f"cover{f}" for f in flows], 0.0, 0.0)
    builder.entries(cover[flow[first]], variables[first], 1.0)
    builder.entries(cover, volume, -1.0)
    lowest = builder.rows(["volume"], aim.min_volume, np.inf)
    builder.entries(lowest, volume, 1.0)
    pair = _pair_rows(matrices, builder, routes)
    _load_rows(matrices, builder, routes, blocks)
    attainment = builder.rows([f"attainment_{k}" for k in range(matrices.permitted.size)], -np.inf, 0.0)
    builder.entries(attainment[matrices.slo[flow]], variables, matrices.late[column, flow])
    builder.entries(attainment, volume, -matrices.permitted)
    switches = _pool_switches(matrices, builder, blocks, aim) if matrices.counts_pools else None
    limits = _limit_rows(matrices, builder, blocks, switches, aim)
    return FleetModel(builder.build(), blocks, routes, volume, cover, pair, attainment, limits)


def _pair_rows(matrices: Matrices, builder: Builder, routes: Routes) -> IntArray:
    flows, pairing = matrices.flows, matrices.hand_over
    names = [f"pair{r}_{f}" for r in range(pairing.equal.size) for f in range(flows)]
    lower = np.repeat(np.where(pairing.equal, 0.0, -np.inf), flows)
    pair = builder.rows(names, lower, 0.0).reshape(pairing.equal.size, flows)
    role, domain = matrices.role[routes.column], matrices.domain[routes.column]
    for row, sent, taken in zip(pair, pairing.prefill, pairing.decode, strict=True):
        sign = np.where(role == PREFILL, 1.0 * sent[domain], np.where(role == DECODE, -1.0 * taken[domain], 0.0))
        builder.entries(row[routes.flow], routes.variable, sign)
    return pair


def _load_rows(matrices: Matrices, builder: Builder, routes: Routes, blocks: IntArray) -> None:
    """One row per column and resource that is not implied by another resource of the same column."""
    need = np.where(matrices.possible[:, None, :], matrices.need, 0.0)
    count = len(matrices.resources)
    for r, resource in enumerate(matrices.resources):
        weaker = np.all(need[:, r : r + 1] <= need, axis=2) & (np.arange(count) != r)
        equal = np.all(need[:, r : r + 1] == need, axis=2)
        implied = (weaker & ~(equal & (np.arange(count) > r))).any(axis=1)
        limiting = np.flatnonzero(~implied & (need[:, r].max(axis=1) > 0.0))
        rows = builder.rows([f"{resource}{c}" for c in limiting], -np.inf, 0.0)
        row_of = np.full(matrices.size, -1)
        row_of[limiting] = rows
        here = row_of[routes.column] >= 0
        column, flow = routes.column[here], routes.flow[here]
        builder.entries(row_of[column], routes.variable[here], need[column, r, flow])
        builder.entries(rows, blocks[limiting], -1.0)


def _pool_switches(matrices: Matrices, builder: Builder, blocks: IntArray, aim: Aim) -> tuple[IntArray, IntArray]:
    """Whether each pool is used, and a row per limit on them: (variables, a column of each pool)."""
    member, pool = np.unique(matrices.pool, return_index=True, return_inverse=True)[1:]
    price = matrices.spares * matrices.price[member]
    used = builder.variables([f"y{p}" for p in range(member.size)], aim.cost_weight * price, 1.0, whole=True)
    rows = builder.rows([f"used{c}" for c in range(matrices.size)], -np.inf, 0.0)
    builder.entries(rows, blocks, 1.0)
    builder.entries(rows, used[pool.ravel()], -matrices.most)
    for limit in matrices.pool_limits:
        row = builder.rows([limit.name.replace(" ", "_")], -np.inf, limit.upper)
        builder.entries(row[0], used, limit.weight[member])
    return used, member


def _limit_rows(
    matrices: Matrices, builder: Builder, blocks: IntArray, switches: tuple[IntArray, IntArray] | None, aim: Aim
) -> dict[str, int]:
    """A row per fleet-wide limit, spare replicas counted in; whole nodes are bought where they are billed."""
    nodes: list[tuple[int, float]] = []
    rows: dict[str, int] = {}
    for limit in matrices.limits:
        row = int(builder.rows([limit.name.replace(" ", "_")], -np.inf, limit.upper)[0])
        builder.entries(row, blocks, matrices.replicas * limit.weight)
        if switches is not None:
            used, member = switches
            builder.entries(row, used, matrices.spares * limit.weight[member])
        if limit.node_size:
            name = limit.name.replace("nodes ", "N_")
            node = int(builder.variables([name], aim.cost_weight * limit.node_price, whole=True)[0])
            builder.entries(row, node, -float(limit.node_size))
            nodes.append((node, limit.node_price))
        if limit.name == "budget":
            for node, price in nodes:
                builder.entries(row, node, price)
        rows[limit.name] = row
    return rows
