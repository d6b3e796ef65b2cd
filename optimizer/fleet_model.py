"""The fleet as a mixed-integer programme: how many blocks of each column, and which share of each flow they take.

n_c   blocks of column c, whole           x_cf  share of flow f on column c
y_p   pool p is used, 0 or 1              V     served volume, as a multiple of the demand
N_t   nodes of accelerator t, whole (only where whole nodes are billed)

min   w_cost (sum price_c n_c + sum spare_p y_p) - w_volume V
cover        sum over prefill and colocated c of x_cf = V                 every flow f
pair         sum over prefill c of x_cf = sum over decode c of x_cf       every flow f and KV domain
load         sum_f rate_f load_crf x_cf <= n_c                            every column c and resource r
attainment   sum share_f miss_cf x_cf <= (1 - goal_k) share_k V           every SLO class k
inventory, budget, power, max_gpus, max_pools
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from search_spaces.problem import Billing

from .columns import ROLES, Columns
from .instance import Instance
from .loads import RESOURCES, Loads
from .program import Builder, Program

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_BLOCKS = 1e4
"""A flow that alone would need more blocks than this is not routed there: it keeps the coefficients well scaled."""

LEAST_BLOCKS = 1e-5
"""Blocks that the whole of a flow takes at least: less would be within a solver's tolerance of none at all."""

PREFILL, DECODE, COLOCATED = (ROLES.index(role) for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED))


@dataclass(frozen=True, slots=True)
class Aim:
    """What is minimised: cost_weight x $/h - volume_weight x volume, with the volume between two limits."""

    cost_weight: float = 1.0
    volume_weight: float = 0.0
    min_volume: float = 1.0
    max_volume: float = 1.0


@dataclass(frozen=True, slots=True)
class FleetModel:
    """The programme and where its variables stand.

    blocks (columns,): n_c; column, flow (routes,): which x_cf each of `routes` is; volume: V.
    cover (flows,), pair (domains, flows), attainment (classes,): rows; fleet: rows of fleet-wide limits by name.
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


def pool_of(columns: Columns) -> IntArray:
    """Columns that are the same engines with the same settings, whatever their operating point, get one number."""
    batch = np.where(columns.role == PREFILL, 0, columns.seqs)
    key = np.stack([columns.role, columns.shape, batch, columns.chunk])
    return np.asarray(np.unique(key, axis=1, return_inverse=True)[1]).ravel().astype(np.int64)


def build_fleet_model(instance: Instance, columns: Columns, loads: Loads, aim: Aim) -> FleetModel:
    """Write the programme for the given columns."""
    flows = instance.flows
    builder = Builder()
    price = columns.replicas * engine_cost(instance)[columns.shape]
    possible = (loads.load * flows.rate < MOST_BLOCKS).all(axis=1)
    column, flow = np.nonzero(possible)
    blocks = builder.variables([f"n{c}" for c in range(columns.size)], aim.cost_weight * price, whole=True)
    routes = builder.variables([f"x{c}_{f}" for c, f in zip(column, flow, strict=True)], 0.0)
    volume = int(builder.variables(["V"], -aim.volume_weight, aim.max_volume)[0])
    first = columns.role[column] != DECODE
    names = range(flows.isl.size)
    cover = builder.rows([f"cover{f}" for f in names], 0.0, 0.0)
    builder.entries(cover[flow[first]], routes[first], 1.0)
    builder.entries(cover, volume, -1.0)
    lowest = builder.rows(["volume"], aim.min_volume, np.inf)
    builder.entries(lowest, volume, 1.0)
    pair = _pair_rows(instance, builder, columns, (column, flow, routes))
    _load_rows(instance, builder, columns, loads, (column, flow, routes, blocks))
    attainment = _attainment_rows(instance, builder, loads, (column, flow, routes), volume)
    spare = _pool_variables(instance, builder, columns, blocks, aim)
    limits = _limit_rows(instance, builder, columns, blocks, (spare, aim.cost_weight))
    program = builder.build()
    return FleetModel(program, blocks, routes, column, flow, volume, cover, pair, attainment, limits)


def _pair_rows(
    instance: Instance, builder: Builder, columns: Columns, at: tuple[IntArray, IntArray, IntArray]
) -> IntArray:
    column, flow, routes = at
    flows, tables = instance.flows.isl.size, instance.tables
    domains = int(tables.domain.max(initial=0)) + 1
    pair = builder.rows([f"pair{d}_{f}" for d in range(domains) for f in range(flows)], 0.0, 0.0).reshape(
        domains, flows
    )
    role, domain = columns.role[column], tables.domain[columns.shape[column]]
    sign = np.where(role == PREFILL, 1.0, np.where(role == DECODE, -1.0, 0.0))
    builder.entries(pair[domain, flow], routes, sign)
    return pair


def _load_rows(
    instance: Instance,
    builder: Builder,
    columns: Columns,
    loads: Loads,
    at: tuple[IntArray, IntArray, IntArray, IntArray],
) -> None:
    """One row per column and resource that is not implied by another resource of the same column."""
    column, flow, routes, blocks = at
    used = loads.load.max(axis=1, keepdims=True)
    finite = np.where(loads.load == used, np.maximum(used, LEAST_BLOCKS / instance.flows.rate), loads.load)
    finite = np.where(loads.load * instance.flows.rate < MOST_BLOCKS, finite, 0.0)
    for r, resource in enumerate(RESOURCES):
        weaker = np.all(finite[:, r : r + 1] <= finite, axis=2) & (np.arange(len(RESOURCES)) != r)
        equal = np.all(finite[:, r : r + 1] == finite, axis=2)
        implied = (weaker & ~(equal & (np.arange(len(RESOURCES)) > r))).any(axis=1)
        kept = np.flatnonzero(~implied & (finite[:, r].max(axis=1) > 0.0))
        rows = builder.rows([f"{resource}{c}" for c in kept], -np.inf, 0.0)
        row_of = np.full(columns.size, -1)
        row_of[kept] = rows
        here = row_of[column] >= 0
        value = finite[column[here], r, flow[here]] * instance.flows.rate[flow[here]]
        builder.entries(row_of[column[here]], routes[here], value)
        builder.entries(rows, blocks[kept], -1.0)


def _attainment_rows(
    instance: Instance, builder: Builder, loads: Loads, at: tuple[IntArray, IntArray, IntArray], volume: int
) -> IntArray:
    column, flow, routes = at
    flows, slos = instance.flows, instance.problem.slos
    rows = builder.rows([f"attainment_{k}" for k in range(len(slos))], -np.inf, 0.0)
    builder.entries(rows[flows.slo[flow]], routes, flows.share[flow] * loads.miss[column, flow])
    share = np.bincount(flows.slo, flows.share, len(slos))
    permitted = np.array([1.0 - slo.attainment for slo in slos]) * share
    builder.entries(rows, volume, -permitted)
    return rows


def _pool_variables(
    instance: Instance, builder: Builder, columns: Columns, blocks: IntArray, aim: Aim
) -> tuple[IntArray, IntArray] | None:
    """Pool switches, only where spare replicas or a pool limit need them: (variables, a column of each pool)."""
    limits = instance.problem.constraints
    if limits.spare_replicas == 0 and limits.max_pools is None:
        return None
    pool = pool_of(columns)
    member = np.unique(pool, return_index=True)[1]
    price = limits.spare_replicas * engine_cost(instance)[columns.shape[member]]
    used = builder.variables([f"y{p}" for p in range(member.size)], aim.cost_weight * price, 1.0, whole=True)
    most = 10_000.0 if limits.max_gpus is None else float(limits.max_gpus)
    rows = builder.rows([f"used{c}" for c in range(columns.size)], -np.inf, 0.0)
    builder.entries(rows, blocks, 1.0)
    builder.entries(rows, used[pool], -most)
    if limits.max_pools is not None:
        row = builder.rows(["max_pools"], -np.inf, float(limits.max_pools))
        builder.entries(np.full(used.size, row[0]), used, 1.0)
    return used, member


@dataclass(frozen=True, slots=True)
class Limit:
    """A fleet-wide limit: sum of weight x engines <= upper, where weight (S,) is per engine of each shape.

    node_size, node_price: for an accelerator billed by whole nodes, GPUs and $/h of one node; else 0.
    """

    name: str
    upper: float
    weight: FloatArray
    node_size: int = 0
    node_price: float = 0.0


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


def _limit_rows(
    instance: Instance,
    builder: Builder,
    columns: Columns,
    blocks: IntArray,
    extra: tuple[tuple[IntArray, IntArray] | None, float],
) -> dict[str, int]:
    """A row per fleet-wide limit, spare replicas counted in; whole nodes are bought where they are billed.

    extra: pool switches with a column of each pool, or None, and the weight of the cost in the aim.
    """
    spare, cost_weight = extra
    spares = instance.problem.constraints.spare_replicas
    nodes: list[tuple[int, float]] = []
    rows: dict[str, int] = {}
    for limit in fleet_limits(instance):
        row = int(builder.rows([limit.name.replace(" ", "_")], -np.inf, limit.upper)[0])
        builder.entries(row, blocks, columns.replicas * limit.weight[columns.shape])
        if spare is not None:
            used, member = spare
            builder.entries(row, used, spares * limit.weight[columns.shape[member]])
        if limit.node_size:
            name = limit.name.replace("nodes ", "N_")
            node = int(builder.variables([name], cost_weight * limit.node_price, whole=True)[0])
            builder.entries(row, node, -float(limit.node_size))
            nodes.append((node, limit.node_price))
        if limit.name == "budget":
            for node, price in nodes:
                builder.entries(row, node, price)
        rows[limit.name] = row
    return rows
