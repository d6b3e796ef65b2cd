"""The fleet problem as a mixed-integer linear program, and its solution with OR-Tools: whole engines, with a bound.

n_c   engines of column c, whole          x_cf   share of flow f on column c
y_c   column c is used, 0 or 1            z_pdf  share handed over from prefill domain p to decode domain d
N_t   nodes of accelerator t, whole       V      served volume, as a multiple of the demand
O_t   owned GPUs of it in use, up to all

min   w_cost (sum price_c n_c + sum spare_c y_c + sum price_t N_t + sum owned_t O_t) - w_volume V
cover        sum over prefill and colocated c of x_cf = V                 every flow f
sends        sum over prefill c of domain p of x_cf = sum_d z_pdf         every flow f, for d that p can talk to
takes        sum over decode c of domain d of x_cf = sum_p z_pdf          every flow f; z only where p has several d
load         sum_f need_crf x_cf <= n_c                                   every column c and resource r
attainment   sum late_cf x_cf <= permitted_k V                            every SLO class k
inventory, budget, power, max_gpus, max_pools, gateway; N_t only where whole nodes are
billed or GPUs are owned, y_c where pools count

HiGHS finds the best fleet and its bound. Work is limited by nodes of the search tree, so that without a time limit the
result depends neither on the machine nor on its load.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, FloatArray, IntArray
from optimizer.fleets.fleet import gpu_limits
from optimizer.loads.instance import DECODE, PREFILL, ROLES, Instance
from optimizer.plans.records import MOST_LOOKS, OPTIMAL_GAP
from search_spaces.problem import Billing, Offer, Problem

if TYPE_CHECKING:  # to import it takes a second and a half
    from ortools.math_opt.model_pb2 import ModelProto
    from ortools.math_opt.python import mathopt

    Program: TypeAlias = ModelProto
else:
    Program = Any

NEGLIGIBLE = 1e-9
"""Smaller coefficients are rounding noise: the solvers' feasibility tolerance is coarser."""

_ALONE = threading.Lock()
"""Lock for the time that a solver runs, as standard output belongs to the whole process."""


class SolveStatus(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOTHING_FOUND = "nothing_found"


@dataclass(frozen=True, slots=True)
class ProgramSolution:
    """x and its objective; bound is the best proven lower bound; duals only for linear programmes."""

    outcome: SolveStatus
    objective: float
    bound: float
    x: FloatArray
    duals: FloatArray


@dataclass(slots=True)
class Builder:
    """Collects variables and rows block by block, then builds the model.

    In whole blocks of the protocol buffer: ten times faster than MathOpt's own model, variable by variable.
    """

    names: list[str] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    row_limits: list[tuple[float, float]] = field(default_factory=list)
    blocks: list[tuple[IntArray, IntArray, FloatArray]] = field(default_factory=list)

    def variables(
        self, names: Sequence[str], cost: ArrayLike, upper: ArrayLike = np.inf, whole: bool = False
    ) -> IntArray:
        """Add non-negative variables and return their indices."""
        start, count = len(self.names), len(names)
        self.names += names
        self.cost += np.broadcast_to(np.asarray(cost, dtype=np.float64), count).tolist()
        self.upper += np.broadcast_to(np.asarray(upper, dtype=np.float64), count).tolist()
        self.whole += [whole] * count
        return np.arange(start, start + count)

    def rows(self, names: Sequence[str], lower: ArrayLike, upper: ArrayLike) -> IntArray:
        """Add empty rows and return their indices."""
        start, count = len(self.row_names), len(names)
        self.row_names += names
        ends = (np.broadcast_to(np.asarray(end, dtype=np.float64), count).tolist() for end in (lower, upper))
        self.row_limits += zip(*ends, strict=True)
        return np.arange(start, start + count)

    def entries(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Set coefficients; the three arguments broadcast together; negligible ones are left out."""
        row, column, value = np.broadcast_arrays(rows, columns, np.asarray(values, dtype=np.float64))
        keep = np.abs(value.ravel()) > NEGLIGIBLE
        self.blocks.append((row.ravel()[keep], column.ravel()[keep], value.ravel()[keep]))

    def build(self) -> Program:
        """The finished programme, entries sorted by row and column."""
        from ortools.math_opt import model_pb2

        nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        rows, columns, values = (np.concatenate(arrays) for arrays in zip(nothing, *self.blocks, strict=True))
        order, cost = np.lexsort((columns, rows)), np.array(self.cost)
        proto = model_pb2.ModelProto()
        proto.variables.ids.extend(range(cost.size))
        proto.variables.lower_bounds.extend(np.zeros(cost.size))
        proto.variables.upper_bounds.extend(self.upper)
        proto.variables.integers.extend(self.whole)
        proto.variables.names.extend(self.names)
        proto.objective.linear_coefficients.ids.extend(np.flatnonzero(cost))
        proto.objective.linear_coefficients.values.extend(cost[cost != 0.0])
        proto.linear_constraints.ids.extend(range(len(self.row_names)))
        proto.linear_constraints.lower_bounds.extend(lower for lower, _ in self.row_limits)
        proto.linear_constraints.upper_bounds.extend(upper for _, upper in self.row_limits)
        proto.linear_constraints.names.extend(self.row_names)
        proto.linear_constraint_matrix.row_ids.extend(rows[order])
        proto.linear_constraint_matrix.column_ids.extend(columns[order])
        proto.linear_constraint_matrix.coefficients.extend(values[order])
        return proto


def solve(
    program: Program,
    *,
    relaxed: bool = False,
    time_limit: float = math.inf,
    gap: float = 0.0,
    nodes: int | None = None,
) -> ProgramSolution:
    """Solve with GLOP (relaxed) or HiGHS (whole), both through OR-Tools MathOpt.

    Where GLOP gives up for numerical reasons, HiGHS solves the relaxation too.
    time_limit: that a user gave [s]; gap: relative gap at which the search may stop [1]; nodes: of the search tree at
    most, a limit of work that is the same on every machine.
    """
    from ortools.math_opt.python import mathopt

    model = mathopt.Model.from_model_proto(program)
    parameters = mathopt.SolveParameters(random_seed=0)
    if math.isfinite(time_limit):
        parameters.time_limit = timedelta(seconds=time_limit)
    if relaxed:
        for variable in model.variables():
            variable.integer = False
    else:
        parameters.relative_gap_tolerance = gap
        parameters.node_limit = nodes
    glop, highs = mathopt.SolverType.GLOP, mathopt.SolverType.HIGHS
    for solver in (glop, highs) if relaxed else (highs,):
        with quiet_output():
            try:
                result = mathopt.solve(model, solver, params=parameters)
            except AttributeError:  # OR-Tools 9.15 stumbles over HiGHS's rare kError on its way to an exception
                return ProgramSolution(SolveStatus.NOTHING_FOUND, np.inf, -np.inf, np.zeros(0), np.zeros(0))
        solution = _solution(model, result, relaxed=relaxed)
        if solution.outcome is not SolveStatus.NOTHING_FOUND:
            break
    return solution


def _solution(model: mathopt.Model, result: mathopt.SolveResult, *, relaxed: bool) -> ProgramSolution:
    """A solver's result as arrays."""
    from ortools.math_opt.python import mathopt

    nothing, reason = np.zeros(0), result.termination.reason
    bound = result.termination.objective_bounds.dual_bound
    if not result.has_primal_feasible_solution():
        if reason in {mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED}:
            return ProgramSolution(SolveStatus.INFEASIBLE, np.inf, np.inf, nothing, nothing)
        return ProgramSolution(SolveStatus.NOTHING_FOUND, np.inf, bound, nothing, nothing)
    duals = np.array(result.dual_values(list(model.linear_constraints()))) if relaxed else nothing
    outcome = SolveStatus.OPTIMAL if reason == mathopt.TerminationReason.OPTIMAL else SolveStatus.FEASIBLE
    x = np.array(result.variable_values(list(model.variables())))
    return ProgramSolution(outcome, result.objective_value(), bound, x, duals)


@contextmanager
def quiet_output() -> Iterator[None]:
    """Drop what C code writes to standard output: HiGHS prints there whatever its log level, amid a plan in JSON."""
    flush = ctypes.CDLL("ucrtbase" if os.name == "nt" else None).fflush
    with _ALONE:
        flush(None)
        try:
            stdout = os.dup(1)
        except OSError:  # there is none at all
            stdout = None
        if stdout is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
        try:
            yield
        finally:
            if stdout is not None:
                flush(None)
                os.dup2(stdout, 1)
                os.close(stdout)


# --- the fleet problem -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """A fleet-wide limit: sum of weight x engines <= upper; weight is per engine, of each shape or of each column.

    node_size, node_price: for an accelerator billed by whole nodes, GPUs and $/h of one node, and of one GPU where some
    are owned; else 0. owned, owned_price: GPUs that need not be bought, and $/h of one.
    """

    name: str
    upper: float
    weight: FloatArray
    node_size: int = 0
    node_price: float = 0.0
    owned: int = 0
    owned_price: float = 0.0


@dataclass(frozen=True)
class Matrices:
    """C columns (engines that may be bought), R resources, F flows, K classes of service; whoever worked them out.

    role, domain (C,): roles as in `settings`; columns of one role and domain hand over to (or take in from) the
    same others. price (C,): $/h of an engine where it is billed singly, else 0.
    need (C, R, F): engines that the whole of a flow takes; inf where it cannot run there.
    late (C, F): share of all requests that are late if the whole flow runs there.
    slo, permitted (F,), (K,): class of each flow; share of all requests that each class may have late.
    talks (prefill domains, decode domains): who can hand over to whom; None: those of one domain.
    limits: see Limit, weights (C,). pool_limits: the same on the columns that are used, each of which is a pool.
    spares: idle engines of every pool.
    """

    role: IntArray
    domain: IntArray
    price: FloatArray
    need: FloatArray
    late: FloatArray
    slo: IntArray
    permitted: FloatArray
    talks: BoolArray | None = None
    limits: tuple[Limit, ...] = ()
    spares: int = 0
    pool_limits: tuple[Limit, ...] = ()

    @property
    def size(self) -> int:
        """Number of columns."""
        return int(self.role.size)

    @property
    def flows(self) -> int:
        """Number of flows."""
        return int(self.need.shape[2])

    @property
    def hand_over(self) -> BoolArray:
        """Who can hand over to whom, (prefill domains, decode domains)."""
        own = np.eye(int(self.domain.max(initial=0)) + 1, dtype=np.bool_)
        return own if self.talks is None else self.talks

    def undominated(self) -> Matrices:
        """The matrices without columns that another one of the same role and domain dominates."""
        weights = [limit.weight for limit in (*self.limits, *self.pool_limits)]
        needs = self.need.reshape(self.size, math.prod(self.need.shape[1:]))
        columns = np.column_stack([self.price, *weights, self.late, needs])
        keep = np.ones(self.size, dtype=np.bool_)
        for column in range(self.size):
            rivals = keep & (self.role == self.role[column]) & (self.domain == self.domain[column])
            rivals[column] = False
            keep[column] = not (columns[rivals] <= columns[column]).all(axis=1).any()
        arrays = {name: getattr(self, name)[keep] for name in ("role", "domain", "price", "need", "late")}
        limits, pool_limits = (
            tuple(replace(limit, weight=limit.weight[keep]) for limit in rows)
            for rows in (self.limits, self.pool_limits)
        )
        return replace(self, limits=limits, pool_limits=pool_limits, **arrays)

    @cached_property
    def possible(self) -> BoolArray:
        """Whether each flow can run on each column, shape (C, F)."""
        return np.asarray(np.isfinite(self.need).all(axis=1))


def pool_limits(problem: Problem, role: IntArray) -> tuple[Limit, ...]:
    """Every limit on the number of pools, with the weight of the pool of each column; role (C,): as in `settings`."""
    limits = problem.constraints.pool_limits
    weights = [np.array([limit.weight.get(name, 0) for name in ROLES], dtype=np.float64) for limit in limits]
    return tuple(
        Limit(limit.name, float(limit.most), weight[role]) for limit, weight in zip(limits, weights, strict=True)
    )


def engine_cost(instance: Instance) -> FloatArray:
    """Price of one engine of each shape, 0 if it depends on the rest of the fleet [$/h], shape (S,)."""
    singly = np.array([not _by_stock(offer) for offer in instance.problem.offers])
    return np.asarray(instance.tables.usd_per_hour * singly[instance.tables.offer])


def _by_stock(offer: Offer) -> bool:
    """Whether the price of a GPU depends on the others: whole nodes are billed, or some GPUs are owned."""
    return offer.billing is Billing.NODE or offer.owned > 0


def fleet_limits(instance: Instance) -> tuple[Limit, ...]:
    """Every limit on the whole fleet that is in force."""
    problem, tables, budget = instance.problem, instance.tables, instance.problem.constraints.budget
    limits = [Limit(name, most, tables.gpus * weight[tables.offer]) for name, most, weight in gpu_limits(problem)]
    for index, offer in enumerate(problem.offers):
        if _by_stock(offer):
            size = offer.accelerator.node_size if offer.billing is Billing.NODE else 1
            owned, rented = offer.in_use
            prices = size, size * rented, offer.owned, owned
            limits.append(Limit(f"nodes {offer.accelerator.name}", 0.0, tables.gpus * (tables.offer == index), *prices))
    if budget is not None:
        limits.append(Limit("budget", budget, engine_cost(instance)))
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


# --- the programme --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FleetModel:
    """The programme; engines (C,): its variables n_c; limits: rows of fleet-wide limits by name."""

    program: Program
    engines: IntArray
    limits: dict[str, int]


def write_model(matrices: Matrices, aim: Aim, ceiling: float = math.inf) -> FleetModel:
    """Write the programme of a fleet problem, for objectives up to `ceiling`."""
    builder, flows = Builder(), range(matrices.flows)
    column, flow = np.nonzero(matrices.possible)
    engines = builder.variables([f"n{c}" for c in range(matrices.size)], aim.cost_weight * matrices.price, whole=True)
    variables = builder.variables([f"x{c}_{f}" for c, f in zip(column, flow, strict=True)], 0.0)
    routes = column, flow, variables
    volume = builder.variables(["V"], -aim.volume_weight, aim.max_volume)
    first = matrices.role[column] != DECODE
    cover = builder.rows([f"cover{f}" for f in flows], 0.0, 0.0)
    builder.entries(cover[flow[first]], variables[first], 1.0)
    builder.entries(cover, volume, -1.0)
    builder.entries(builder.rows(["volume"], aim.min_volume, np.inf), volume, 1.0)
    _hand_over_rows(matrices, builder, routes)
    _load_rows(matrices, builder, routes, engines)
    attainment = builder.rows([f"attainment_{k}" for k in range(matrices.permitted.size)], -np.inf, 0.0)
    builder.entries(attainment[matrices.slo[flow]], variables, matrices.late[column, flow])
    builder.entries(attainment, volume, -matrices.permitted)
    used = _pool_switches(matrices, builder, engines, aim) if matrices.spares or matrices.pool_limits else None
    limits = _limit_rows(matrices, builder, engines, used, aim)
    if math.isfinite(ceiling):
        builder.entries(builder.rows(["ceiling"], -np.inf, ceiling), np.arange(len(builder.cost)), builder.cost)
    return FleetModel(builder.build(), engines, limits)


def _hand_over_rows(matrices: Matrices, builder: Builder, routes: tuple[IntArray, IntArray, IntArray]) -> None:
    """Rows that balance what prefill domains send and decode domains take; with a single partner no z is needed."""
    column, flow, variables = routes
    flows, role, domain = range(matrices.flows), matrices.role[column], matrices.domain[column]
    names = [f"takes{d}_{f}" for d in range(matrices.hand_over.shape[1]) for f in flows]
    takes = builder.rows(names, 0.0, 0.0).reshape(matrices.hand_over.shape[1], len(flows))
    decodes = role == DECODE
    builder.entries(takes[domain[decodes], flow[decodes]], variables[decodes], 1.0)
    for sender, partners in enumerate(matrices.hand_over):
        prefills = (role == PREFILL) & (domain == sender)
        if partners.sum() == 1:
            builder.entries(takes[partners][0, flow[prefills]], variables[prefills], -1.0)
            continue
        sends = builder.rows([f"sends{sender}_{f}" for f in flows], 0.0, 0.0)
        builder.entries(sends[flow[prefills]], variables[prefills], 1.0)
        for taker in np.flatnonzero(partners):
            transfers = builder.variables([f"z{sender}_{taker}_{f}" for f in flows], 0.0)
            builder.entries(np.stack([sends, takes[taker]]), transfers, -1.0)


def _load_rows(
    matrices: Matrices, builder: Builder, routes: tuple[IntArray, IntArray, IntArray], engines: IntArray
) -> None:
    """One row per column and resource that no other resource of the same column implies."""
    need = np.where(matrices.possible[:, None, :], matrices.need, 0.0)
    count = need.shape[1]
    for r in range(count):
        weaker = np.all(need[:, r : r + 1] <= need, axis=2) & (np.arange(count) != r)
        equal = np.all(need[:, r : r + 1] == need, axis=2)
        redundant = (weaker & ~(equal & (np.arange(count) > r))).any(axis=1)
        limiting = np.flatnonzero(~redundant & (need[:, r].max(axis=1) > 0.0))
        row_of = np.full(matrices.size, -1)
        row_of[limiting] = loads = builder.rows([f"load{c}_{r}" for c in limiting], -np.inf, 0.0)
        column, flow, variable = (values[row_of[routes[0]] >= 0] for values in routes)
        builder.entries(row_of[column], variable, need[column, r, flow])
        builder.entries(loads, engines[limiting], -1.0)


def _pool_switches(matrices: Matrices, builder: Builder, engines: IntArray, aim: Aim) -> IntArray:
    """Variables that say whether each column is used, with a row per limit on them."""
    names = [f"y{c}" for c in range(matrices.size)]
    used = builder.variables(names, aim.cost_weight * matrices.spares * matrices.price, 1.0, whole=True)
    rows = builder.rows([f"used{c}" for c in range(matrices.size)], -np.inf, 0.0)
    builder.entries(rows, engines, 1.0)
    work = np.where(matrices.possible[:, None], matrices.need, 0.0).sum(axis=2).max(axis=1)
    builder.entries(rows, used, -np.ceil(work * aim.max_volume + 1.0))  # more engines than its work takes serve nobody
    for limit in matrices.pool_limits:
        builder.entries(builder.rows([limit.name.replace(" ", "_")], -np.inf, limit.upper), used, limit.weight)
    return used


def _limit_rows(
    matrices: Matrices, builder: Builder, engines: IntArray, used: IntArray | None, aim: Aim
) -> dict[str, int]:
    """A row per fleet-wide limit, spare replicas counted in; whole nodes are bought where they are billed."""
    nodes: list[tuple[int, float]] = []
    rows: dict[str, int] = {}
    for limit in matrices.limits:
        row = int(builder.rows([limit.name.replace(" ", "_")], -np.inf, limit.upper)[0])
        builder.entries(row, engines, limit.weight)
        if used is not None:
            builder.entries(row, used, matrices.spares * limit.weight)
        if limit.node_size:
            name = limit.name.replace("nodes ", "N_")
            node = int(builder.variables([name], aim.cost_weight * limit.node_price, whole=True)[0])
            builder.entries(row, node, -float(limit.node_size))
            nodes.append((node, limit.node_price))
            if limit.owned:
                name = limit.name.replace("nodes ", "O_")
                own = int(builder.variables([name], aim.cost_weight * limit.owned_price, float(limit.owned))[0])
                builder.entries(row, own, -1.0)
                nodes.append((own, limit.owned_price))
        if limit.name == "budget":
            for node, price in nodes:
                builder.entries(row, node, price)
        rows[limit.name] = row
    return rows


# --- its cheapest fleet ---------------------------------------------------------------------------------------------


def cheapest(
    matrices: Matrices,
    aim: Aim,
    ceiling: float = math.inf,
    *,
    time_limit: float = math.inf,
    gap: float = OPTIMAL_GAP / 2.0,
    nodes: int = MOST_LOOKS,
) -> ProgramSolution:
    """The best fleet for an objective, up to the ceiling: x has the engines of each column; the bound never exceeds it.

    Without demand the fleet is empty. time_limit, gap, nodes: see `solve`.
    """
    nothing = np.zeros(0)
    if not matrices.flows:
        return ProgramSolution(SolveStatus.OPTIMAL, 0.0, 0.0, np.zeros(matrices.size), nothing)
    model = write_model(matrices, aim, ceiling)
    solution = solve(model.program, time_limit=time_limit, gap=gap, nodes=nodes)
    engines = np.rint(solution.x[model.engines]) if solution.x.size else nothing
    return replace(solution, bound=min(solution.bound, solution.objective, ceiling), x=engines)
