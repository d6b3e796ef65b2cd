"""A mixed-integer linear programme, and its solution with OR-Tools."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray, IntArray

if TYPE_CHECKING:  # to import it takes a second and a half
    from ortools.math_opt.model_pb2 import ModelProto
    from ortools.math_opt.python import mathopt

    Program: TypeAlias = ModelProto
else:
    Program = Any


NEGLIGIBLE = 1e-9
"""Coefficients below this are rounding noise to the solvers, whose feasibility tolerance is coarser."""

_ALONE = threading.Lock()
"""Held while a solver runs: standard output belongs to the whole process."""


class Outcome(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOTHING_FOUND = "nothing_found"


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
    """Collects variables and rows block by block, then makes a Program.

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
) -> Solution:
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
                return Solution(Outcome.NOTHING_FOUND, np.inf, -np.inf, np.zeros(0), np.zeros(0))
        solution = _solution(model, result, relaxed=relaxed)
        if solution.outcome is not Outcome.NOTHING_FOUND:
            break
    return solution


def _solution(model: mathopt.Model, result: mathopt.SolveResult, *, relaxed: bool) -> Solution:
    """A solver's result as arrays."""
    from ortools.math_opt.python import mathopt

    nothing, reason = np.zeros(0), result.termination.reason
    bound = result.termination.objective_bounds.dual_bound
    if not result.has_primal_feasible_solution():
        if reason in {mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED}:
            return Solution(Outcome.INFEASIBLE, np.inf, np.inf, nothing, nothing)
        return Solution(Outcome.NOTHING_FOUND, np.inf, bound, nothing, nothing)
    duals = np.array(result.dual_values(list(model.linear_constraints()))) if relaxed else nothing
    outcome = Outcome.OPTIMAL if reason == mathopt.TerminationReason.OPTIMAL else Outcome.FEASIBLE
    x = np.array(result.variable_values(list(model.variables())))
    return Solution(outcome, result.objective_value(), bound, x, duals)


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
