"""A mixed-integer linear programme as arrays, its text form, and its solution with OR-Tools."""

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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


NEGLIGIBLE = 1e-9
"""Coefficients below this are rounding noise to the solvers, whose feasibility tolerance is coarser."""


class Outcome(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOTHING_FOUND = "nothing_found"


@dataclass(frozen=True, slots=True)
class Program:
    """min cost @ x subject to row_lower <= A x <= row_upper, lower <= x <= upper, some x whole.

    rows, columns, values: the entries of A; names are for the text form only.
    """

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    whole: NDArray[np.bool_]
    rows: IntArray
    columns: IntArray
    values: FloatArray
    row_lower: FloatArray
    row_upper: FloatArray
    variable_names: tuple[str, ...]
    row_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """x and its objective; bound is the best proven lower bound; duals only for linear programmes."""

    outcome: Outcome
    objective: float
    bound: float
    x: FloatArray
    duals: FloatArray


@dataclass(slots=True)
class Builder:
    """Collects variables and rows block by block, then makes a Program."""

    _cost: list[FloatArray] = field(default_factory=list)
    _upper: list[FloatArray] = field(default_factory=list)
    _whole: list[NDArray[np.bool_]] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _entries: list[tuple[IntArray, IntArray, FloatArray]] = field(default_factory=list)
    _row_lower: list[FloatArray] = field(default_factory=list)
    _row_upper: list[FloatArray] = field(default_factory=list)
    _row_names: list[str] = field(default_factory=list)

    def variables(
        self, names: Sequence[str], cost: ArrayLike, upper: ArrayLike = np.inf, whole: bool = False
    ) -> IntArray:
        """Add non-negative variables and return their indices."""
        start, count = len(self._names), len(names)
        self._names += names
        self._cost.append(np.broadcast_to(np.asarray(cost, dtype=np.float64), count))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), count))
        self._whole.append(np.full(count, whole))
        return np.arange(start, start + count)

    def rows(self, names: Sequence[str], lower: ArrayLike, upper: ArrayLike) -> IntArray:
        """Add empty rows and return their indices."""
        start, count = len(self._row_names), len(names)
        self._row_names += names
        self._row_lower.append(np.broadcast_to(np.asarray(lower, dtype=np.float64), count))
        self._row_upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), count))
        return np.arange(start, start + count)

    def entries(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Set coefficients; the three arguments broadcast together; negligible ones are left out."""
        row, column, value = np.broadcast_arrays(rows, columns, np.asarray(values, dtype=np.float64))
        keep = np.abs(value.ravel()) > NEGLIGIBLE
        self._entries.append((row.ravel()[keep], column.ravel()[keep], value.ravel()[keep]))

    def build(self) -> Program:
        """The finished programme, entries sorted by row and column."""
        nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        rows, columns, values = (np.concatenate(parts) for parts in zip(nothing, *self._entries, strict=True))
        order = np.lexsort((columns, rows))
        upper = np.concatenate(self._upper)
        return Program(
            cost=np.concatenate(self._cost),
            lower=np.zeros(upper.size),
            upper=upper,
            whole=np.concatenate(self._whole),
            rows=rows[order].astype(np.int64),
            columns=columns[order].astype(np.int64),
            values=values[order],
            row_lower=np.concatenate(self._row_lower),
            row_upper=np.concatenate(self._row_upper),
            variable_names=tuple(self._names),
            row_names=tuple(self._row_names),
        )


def with_ceiling(program: Program, ceiling: float) -> Program:
    """The same programme with one more row: the objective is at most `ceiling`."""
    costly = np.flatnonzero(program.cost)
    row = program.row_lower.size
    return replace(
        program,
        rows=np.concatenate([program.rows, np.full(costly.size, row)]),
        columns=np.concatenate([program.columns, costly]),
        values=np.concatenate([program.values, program.cost[costly]]),
        row_lower=np.append(program.row_lower, -np.inf),
        row_upper=np.append(program.row_upper, ceiling),
        row_names=(*program.row_names, "ceiling"),
    )


def lp_text(program: Program) -> str:
    """The programme in LP format, for golden files and for readers."""

    def terms(columns: IntArray, values: FloatArray) -> str:
        return " ".join(
            f"{'-' if value < 0 else '+'} {abs(value):.6g} {program.variable_names[column]}"
            for column, value in zip(columns, values, strict=True)
        )

    lines = [
        "Minimize",
        f" obj: {terms(np.flatnonzero(program.cost), program.cost[program.cost != 0.0])}",
        "Subject To",
    ]
    for index, name in enumerate(program.row_names):
        here = program.rows == index
        body = terms(program.columns[here], program.values[here])
        low, high = program.row_lower[index], program.row_upper[index]
        if low == high:
            lines.append(f" {name}: {body} = {low:.6g}")
        else:
            lines += [f" {name}: {body} >= {low:.6g}"] if np.isfinite(low) else []
            lines += [f" {name}: {body} <= {high:.6g}"] if np.isfinite(high) else []
    limited = np.flatnonzero(np.isfinite(program.upper))
    lines += ["Bounds", *(f" {program.variable_names[i]} <= {program.upper[i]:.6g}" for i in limited)]
    lines += ["General", *(f" {program.variable_names[i]}" for i in np.flatnonzero(program.whole)), "End"]
    return "\n".join(lines) + "\n"


def solve(
    program: Program,
    *,
    relaxed: bool = False,
    time_limit: float = math.inf,
    gap: float = 0.0,
    nodes: int | None = None,
) -> Solution:
    """Solve with GLOP (relaxed) or HiGHS (whole), both through OR-Tools MathOpt.

    Where GLOP gives up for numerical reasons, HiGHS solves the relaxation too.
    time_limit: that a user gave [s]; gap: relative gap at which the search may stop [1]; nodes: of the search tree at
    most, a limit of work that is the same on every machine.
    """
    from ortools.math_opt.python import mathopt

    model = mathopt.Model.from_model_proto(_proto(program, relaxed))
    parameters = mathopt.SolveParameters(random_seed=0)
    if math.isfinite(time_limit):
        parameters.time_limit = timedelta(seconds=time_limit)
    if not relaxed:
        parameters.relative_gap_tolerance = gap
        parameters.node_limit = nodes
    values = mathopt.ModelSolveParameters(
        variable_values_filter=mathopt.VariableFilter(skip_zero_values=True),
        reduced_costs_filter=mathopt.VariableFilter(filtered_items=()),
    )
    glop, highs = mathopt.SolverType.GLOP, mathopt.SolverType.HIGHS
    for solver in (glop, highs) if relaxed else (highs,):
        with quiet_output():
            try:
                result = mathopt.solve(model, solver, params=parameters, model_params=values)
            except AttributeError:  # OR-Tools 9.15 stumbles over HiGHS's rare kError on its way to an exception
                return Solution(Outcome.NOTHING_FOUND, np.inf, -np.inf, np.zeros(0), np.zeros(0))
        solution = _solution(program, model, result, relaxed=relaxed)
        if solution.outcome is not Outcome.NOTHING_FOUND:
            break
    return solution


def _solution(program: Program, model: mathopt.Model, result: mathopt.SolveResult, *, relaxed: bool) -> Solution:
    """A solver's result as arrays."""
    from ortools.math_opt.python import mathopt

    nothing, reason = np.zeros(0), result.termination.reason
    bound = result.termination.objective_bounds.dual_bound
    if not result.has_primal_feasible_solution():
        if reason in {mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED}:
            return Solution(Outcome.INFEASIBLE, np.inf, np.inf, nothing, nothing)
        return Solution(Outcome.NOTHING_FOUND, np.inf, bound, nothing, nothing)
    x = np.zeros(program.cost.size)
    for variable, value in result.variable_values().items():
        x[variable.id] = value
    duals = np.array(result.dual_values(list(model.linear_constraints()))) if relaxed else nothing
    outcome = Outcome.OPTIMAL if reason == mathopt.TerminationReason.OPTIMAL else Outcome.FEASIBLE
    return Solution(outcome, result.objective_value(), bound, x, duals)


@dataclass(slots=True)
class _Silence:
    """How many solves are under way, in any thread, and where standard output went before the first of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    kept: int | None = None


_SILENCE = _Silence()


@contextmanager
def quiet_output() -> Iterator[None]:
    """Drop what C code writes to standard output: HiGHS prints there whatever its log level, amid a plan in JSON."""
    flush = ctypes.CDLL("ucrtbase" if os.name == "nt" else None).fflush
    with _SILENCE.lock:
        if not _SILENCE.depth:
            flush(None)
            _SILENCE.kept = _redirected()
        _SILENCE.depth += 1
    try:
        yield
    finally:
        with _SILENCE.lock:
            _SILENCE.depth -= 1
            if not _SILENCE.depth and _SILENCE.kept is not None:
                flush(None)
                os.dup2(_SILENCE.kept, 1)
                os.close(_SILENCE.kept)


def _redirected() -> int | None:
    """Send standard output nowhere; a copy of where it went, None where there is none at all."""
    try:
        kept = os.dup(1)
    except OSError:
        return None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return kept


def _proto(program: Program, relaxed: bool):  # type: ignore[no-untyped-def]
    """The programme as MathOpt's protocol buffer: ten times faster than adding variables one by one."""
    from ortools.math_opt import model_pb2

    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(program.cost.size))
    proto.variables.lower_bounds.extend(program.lower)
    proto.variables.upper_bounds.extend(program.upper)
    proto.variables.integers.extend(program.whole & (not relaxed))
    used = np.flatnonzero(program.cost)
    proto.objective.linear_coefficients.ids.extend(used)
    proto.objective.linear_coefficients.values.extend(program.cost[used])
    proto.linear_constraints.ids.extend(range(program.row_lower.size))
    proto.linear_constraints.lower_bounds.extend(program.row_lower)
    proto.linear_constraints.upper_bounds.extend(program.row_upper)
    proto.linear_constraint_matrix.row_ids.extend(program.rows)
    proto.linear_constraint_matrix.column_ids.extend(program.columns)
    proto.linear_constraint_matrix.coefficients.extend(program.values)
    return proto
