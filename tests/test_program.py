"""Programmes with known optima, their text form, and what solving them must not do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.search.program import NEGLIGIBLE, Builder, Outcome, Program, lp_text, solve

ROOT = Path(__file__).resolve().parent.parent


def knapsack() -> Program:
    """Cheapest x, y with 3x + 2y >= 12, x <= 3, y <= 10.5, x at 5 and y at 4; y is whole."""
    builder = Builder()
    x = builder.variables(["x"], 5.0, 3.0)
    y = builder.variables(["y"], 4.0, 10.5, whole=True)
    demand = builder.rows(["demand"], 12.0, np.inf)
    builder.entries(demand, x, 3.0)
    builder.entries(demand, y, 2.0)
    return builder.build()


def impossible() -> Program:
    """x >= 2 and x <= 1."""
    builder = Builder()
    x = builder.variables(["x"], 1.0, 1.0, whole=True)
    builder.entries(builder.rows(["two"], 2.0, np.inf), x, 1.0)
    return builder.build()


def diet() -> Program:
    """Two foods, two nutrients: min 2a + 3b, a + b >= 4, a + 3b >= 6: a = 3, b = 1, cost 9, duals 3/2 and 1/2."""
    builder = Builder()
    foods = builder.variables(["a", "b"], [2.0, 3.0])
    rows = builder.rows(["weight", "protein"], [4.0, 6.0], np.inf)
    builder.entries(rows[:, None], foods[None, :], [[1.0, 1.0], [1.0, 3.0]])
    return builder.build()


class TestSolve:
    def test_a_linear_programme_and_its_duals(self) -> None:
        solution = solve(diet(), relaxed=True)
        assert solution.outcome is Outcome.OPTIMAL
        assert solution.objective == pytest.approx(9.0)
        assert solution.bound == pytest.approx(9.0)
        np.testing.assert_allclose(solution.x, [3.0, 1.0], atol=1e-9)
        np.testing.assert_allclose(solution.duals, [1.5, 0.5], atol=1e-9)

    def test_duals_of_upper_limits_are_negative(self) -> None:
        """Serving 10 on a cheap machine that holds 6 and a dear one: one more of the cheap saves 3 - 1."""
        builder = Builder()
        cheap, dear = builder.variables(["cheap", "dear"], [1.0, 3.0])
        cover = builder.rows(["cover"], 10.0, 10.0)
        limit = builder.rows(["limit"], -np.inf, 6.0)
        builder.entries(cover, [cheap, dear], 1.0)
        builder.entries(limit, cheap, 1.0)
        solution = solve(builder.build(), relaxed=True)
        assert solution.objective == pytest.approx(6.0 + 4 * 3.0)
        np.testing.assert_allclose(solution.duals, [3.0, -2.0], atol=1e-9)

    def test_the_relaxation_of_a_whole_programme(self) -> None:
        # x is cheaper per unit (5/3 < 4/2): x = 3, then y = 1.5
        solution = solve(knapsack(), relaxed=True)
        assert solution.objective == pytest.approx(15.0 + 6.0)

    def test_a_whole_programme(self) -> None:
        # y = 2 leaves 8 for x: 8/3 at 5 = 13.33 and 8; y = 3 costs 12 + 10 = 22
        solution = solve(knapsack())
        assert solution.outcome is Outcome.OPTIMAL
        assert solution.objective == pytest.approx(8.0 + 40.0 / 3.0)
        np.testing.assert_allclose(solution.x, [8.0 / 3.0, 2.0], atol=1e-7)
        assert solution.bound == pytest.approx(solution.objective)
        assert solution.duals.size == 0

    @pytest.mark.parametrize("relaxed", [True, False])
    def test_an_impossible_programme_says_so(self, relaxed: bool) -> None:
        solution = solve(impossible(), relaxed=relaxed)
        assert solution.outcome is Outcome.INFEASIBLE
        assert solution.objective == np.inf
        assert solution.bound == np.inf
        assert solution.x.size == 0

    def test_the_bound_is_below_the_objective(self) -> None:
        solution = solve(covering(seed=3, items=40), gap=0.05)
        assert solution.bound <= solution.objective * (1 + 1e-9)
        assert solution.objective <= solution.bound / (1 - 0.05) * (1 + 1e-9)

    def test_the_same_programme_has_the_same_solution(self) -> None:
        first, second = (solve(covering(seed=5, items=25)) for _ in range(2))
        np.testing.assert_array_equal(first.x, second.x)


def covering(seed: int, items: int) -> Program:
    """Cover ten demands with whole items of random strength and price."""
    random = np.random.default_rng(seed)
    builder = Builder()
    chosen = builder.variables([f"n{i}" for i in range(items)], random.uniform(1, 9, items), whole=True)
    rows = builder.rows([f"demand{i}" for i in range(10)], random.uniform(5, 50, 10), np.inf)
    builder.entries(rows[:, None], chosen[None, :], random.uniform(0, 3, (10, items)))
    return builder.build()


def facility(seed: int, sites: int, customers: int) -> Program:
    """Which sites to open, as many times as needed, so that all customers are served."""
    random = np.random.default_rng(seed)
    builder = Builder()
    opened = builder.variables([f"n{i}" for i in range(sites)], random.uniform(5, 20, sites), whole=True)
    names = [f"x{i}_{j}" for i in range(sites) for j in range(customers)]
    served = builder.variables(names, random.uniform(0, 1, sites * customers)).reshape(sites, customers)
    cover = builder.rows([f"cover{j}" for j in range(customers)], 1.0, 1.0)
    builder.entries(np.broadcast_to(cover, served.shape), served, 1.0)
    load = builder.rows([f"load{i}" for i in range(sites)], -np.inf, 0.0)
    builder.entries(np.broadcast_to(load[:, None], served.shape), served, random.uniform(0.1, 1.0, served.shape))
    builder.entries(load, opened, -1.0)
    return builder.build()


def test_a_solver_writes_nothing_to_standard_output() -> None:
    """Standard output belongs to the plan, and HiGHS has a line that ignores its log level: here it would print it."""
    script = (
        "from optimizer.search.program import solve\n"
        "from tests.test_program import facility\n"
        "for seed, sites, customers in ((8, 8, 5), (7, 15, 6), (13, 15, 6)):\n"
        "    print(solve(facility(seed, sites, customers), gap=1e-4).outcome)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "optimal\n" * 3


class TestText:
    def test_golden(self) -> None:
        assert lp_text(knapsack()) == (
            "Minimize\n"
            " obj: + 5 x + 4 y\n"
            "Subject To\n"
            " demand: + 3 x + 2 y >= 12\n"
            "Bounds\n"
            " x <= 3\n"
            " y <= 10.5\n"
            "General\n"
            " y\n"
            "End\n"
        )

    def test_equalities_ranges_and_signs(self) -> None:
        builder = Builder()
        pair = builder.variables(["a", "b"], [-1.0, 0.0])
        same = builder.rows(["same"], 0.0, 0.0)
        span = builder.rows(["span"], -2.5, 1e-3)
        builder.entries(same, pair, [1.0, -1.0])
        builder.entries(span, pair, [0.5, 1e7])
        assert lp_text(builder.build()) == (
            "Minimize\n"
            " obj: - 1 a\n"
            "Subject To\n"
            " same: + 1 a - 1 b = 0\n"
            " span: + 0.5 a + 1e+07 b >= -2.5\n"
            " span: + 0.5 a + 1e+07 b <= 0.001\n"
            "Bounds\n"
            "General\n"
            "End\n"
        )


class TestBuilder:
    def test_negligible_coefficients_are_left_out(self) -> None:
        builder = Builder()
        x = builder.variables(["x", "y"], 1.0)
        row = builder.rows(["r"], 1.0, np.inf)
        builder.entries(row, x, [1.0, NEGLIGIBLE / 2])
        program = builder.build()
        assert program.columns.tolist() == [0]

    def test_entries_are_sorted_by_row_and_column(self) -> None:
        builder = Builder()
        x = builder.variables(["x", "y", "z"], 1.0)
        rows = builder.rows(["r", "s"], 0.0, 1.0)
        builder.entries(rows[1], x[::-1], [3.0, 2.0, 1.0])
        builder.entries(rows[0], x[1], 5.0)
        program = builder.build()
        assert program.rows.tolist() == [0, 1, 1, 1]
        assert program.columns.tolist() == [1, 0, 1, 2]
        assert program.values.tolist() == [5.0, 1.0, 2.0, 3.0]

    def test_blocks_keep_their_indices(self) -> None:
        builder = Builder()
        first = builder.variables(["a", "b"], 1.0)
        second = builder.variables(["c"], 2.0, 4.0, whole=True)
        assert first.tolist() == [0, 1]
        assert second.tolist() == [2]
        builder.entries(builder.rows(["r"], 0.0, 1.0), first, 1.0)
        program = builder.build()
        assert program.whole.tolist() == [False, False, True]
        assert program.upper.tolist() == [np.inf, np.inf, 4.0]
        assert program.variable_names == ("a", "b", "c")
