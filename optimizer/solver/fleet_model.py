"""The fleet as a mixed-integer programme: how many blocks of each column, and which share of each flow they take.

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.instance import ROLES, Instance
from search_spaces.problem import Billing, Problem

from .matrices import COLOCATED, DECODE, PREFILL, Limit, Matrices
from .program import Builder, Program

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

__all__ = [
    "COLOCATED",
    "DECODE",
    "PREFILL",
    "Aim",
    "FleetModel",
    "aim_of",
    "limit_rows",
    "pool_variables",
    "write_model",
]


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
class FleetModel:
    """The programme and where its variables stand.

    blocks (columns,): n_c; column, flow (routes,): which x_cf each of `routes` is; volume: V.
    cover (flows,), pair (rows of `pairing`, flows), attainment (classes,): rows; fleet: rows of fleet-wide limits.
    """

    program: Program
    blocks: IntArray
    routes: IntArray
    column: IntArray
    flow: IntArray
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
    routes = builder.variables([f"x{c}_{f}" for c, f in zip(column, flow, strict=True)], 0.0)
    volume = int(builder.variables(["V"], -aim.volume_weight, aim.max_volume)[0])
    first = matrices.role[column] != DECODE
    cover = builder.rows([f"cover{f}" for f in flows], 0.0, 0.0)
    builder.entries(cover[flow[first]], routes[first], 1.0)
    builder.entries(cover, volume, -1.0)
    lowest = builder.rows(["volume"], aim.min_volume, np.inf)
    builder.entries(lowest, volume, 1.0)
    at = Routes(column, flow, routes)
    pair = _pair_rows(matrices, builder, at)
    _load_rows(matrices, builder, at, blocks)
    attainment = _attainment_rows(matrices, builder, at, volume)
    switches = pool_variables(matrices, builder, blocks, aim)
    limits = limit_rows(matrices, builder, blocks, switches, aim)
    program = builder.build()
    return FleetModel(program, blocks, routes, column, flow, volume, cover, pair, attainment, limits)


@dataclass(frozen=True, slots=True)
class Routes:
    """Which x_cf there are: column, flow and variable of each."""

    column: IntArray
    flow: IntArray
    variable: IntArray


def _pair_rows(matrices: Matrices, builder: Builder, at: Routes) -> IntArray:
    flows, pairing = matrices.flows, matrices.hand_over
    names = [f"pair{r}_{f}" for r in range(pairing.equal.size) for f in range(flows)]
    lower = np.repeat(np.where(pairing.equal, 0.0, -np.inf), flows)
    pair = builder.rows(names, lower, 0.0).reshape(pairing.equal.size, flows)
    role, domain = matrices.role[at.column], matrices.domain[at.column]
    for row, sent, taken in zip(pair, pairing.prefill, pairing.decode, strict=True):
        sign = np.where(role == PREFILL, 1.0 * sent[domain], np.where(role == DECODE, -1.0 * taken[domain], 0.0))
        builder.entries(row[at.flow], at.variable, sign)
    return pair


def _load_rows(matrices: Matrices, builder: Builder, at: Routes, blocks: IntArray) -> None:
    """One row per column and resource that is not implied by another resource of the same column."""
    need = np.where(matrices.possible[:, None, :], matrices.need, 0.0)
    count = len(matrices.resources)
    for r, resource in enumerate(matrices.resources):
        weaker = np.all(need[:, r : r + 1] <= need, axis=2) & (np.arange(count) != r)
        equal = np.all(need[:, r : r + 1] == need, axis=2)
        implied = (weaker & ~(equal & (np.arange(count) > r))).any(axis=1)
        kept = np.flatnonzero(~implied & (need[:, r].max(axis=1) > 0.0))
        rows = builder.rows([f"{resource}{c}" for c in kept], -np.inf, 0.0)
        row_of = np.full(matrices.size, -1)
        row_of[kept] = rows
        here = row_of[at.column] >= 0
        column, flow = at.column[here], at.flow[here]
        builder.entries(row_of[column], at.variable[here], need[column, r, flow])
        builder.entries(rows, blocks[kept], -1.0)


def _attainment_rows(matrices: Matrices, builder: Builder, at: Routes, volume: int) -> IntArray:
    rows = builder.rows([f"attainment_{k}" for k in range(matrices.permitted.size)], -np.inf, 0.0)
    builder.entries(rows[matrices.slo[at.flow]], at.variable, matrices.late[at.column, at.flow])
    builder.entries(rows, volume, -matrices.permitted)
    return rows


def pool_variables(
    matrices: Matrices, builder: Builder, blocks: IntArray, aim: Aim
) -> tuple[IntArray, IntArray] | None:
    """Pool switches, only where spare replicas or a pool limit need them: (variables, a column of each pool)."""
    if not matrices.counts_pools:
        return None
    member, pool = np.unique(matrices.pool, return_index=True, return_inverse=True)[1:]
    price = matrices.spares * matrices.price[member]
    used = builder.variables([f"y{p}" for p in range(member.size)], aim.cost_weight * price, 1.0, whole=True)
    rows = builder.rows([f"used{c}" for c in range(matrices.size)], -np.inf, 0.0)
    builder.entries(rows, blocks, 1.0)
    builder.entries(rows, used[pool.ravel()], -matrices.most)
    pool_limit_rows(matrices, builder, used, member)
    return used, member


def pool_limit_rows(matrices: Matrices, builder: Builder, used: IntArray, member: IntArray) -> None:
    """A row per limit on the pools; used: their switches, member: a column of each."""
    for limit in matrices.pool_limits:
        row = builder.rows([limit.name.replace(" ", "_")], -np.inf, limit.upper)
        builder.entries(np.full(used.size, row[0]), used, limit.weight[member])


def pool_limits(problem: Problem, role: IntArray) -> tuple[Limit, ...]:
    """Every limit on the number of pools, with the weight of the pool of each column; role (C,): numbered as here."""
    limits = problem.constraints.pool_limits
    weights = [np.array([limit.weight.get(one, 0) for one in ROLES], dtype=np.float64) for limit in limits]
    return tuple(Limit(one.name, float(one.most), weight[role]) for one, weight in zip(limits, weights, strict=True))


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
        mine = tables.gpus * (tables.offer == index)
        name, size = offer.accelerator.name, offer.accelerator.node_size
        if offer.inventory is not None:
            limits.append(Limit(f"inventory {name}", float(offer.inventory), mine))
        if offer.billing is Billing.NODE:
            limits.append(Limit(f"nodes {name}", 0.0, mine, size, size * offer.usd_per_hour))
    if ceiling.budget is not None:
        limits.append(Limit("budget", ceiling.budget, engine_cost(instance)))
    if ceiling.power is not None:
        tdp = np.array([offer.accelerator.tdp for offer in problem.offers])
        limits.append(Limit("power", ceiling.power, tables.gpus * tdp[tables.offer]))
    if ceiling.max_gpus is not None:
        limits.append(Limit("max_gpus", float(ceiling.max_gpus), tables.gpus))
    return tuple(limits)


def limit_rows(
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
