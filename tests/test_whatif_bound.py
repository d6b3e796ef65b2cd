"""Bounds of a sweep's rows: which prices are proven, that mixtures of proofs hold, and how few it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.recommend.level import Level
from optimizer.recommend.optimize import optimize
from optimizer.whatif.bound import grids, lower_bound, mixed_bound
from optimizer.whatif.scenario import solve_simple
from search_spaces.loader import problem_of
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

BASE = Path()
PRICES = {"price.a": (0.5, 1.0, 1.5, 2.5, 4.0), "price.b": (1.0, 2.0, 3.0)}
FLEETS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any), min_size=1, max_size=8)


@settings(deadline=None, max_examples=100)
@given(FLEETS, st.floats(0.5, 4.0), st.floats(1.0, 3.0))
def test_a_mixture_of_proofs_bounds_the_cheapest_of_any_fleets(
    fleets: list[tuple[int, int]], first: float, second: float
) -> None:
    def least(changes: Any) -> float:
        return min(float(changes["price.a"] * a + changes["price.b"] * b) for a, b in fleets)

    here = {"price.a": first, "price.b": second, "rate": 5}
    found = mixed_bound(here, PRICES, least(here), least)
    assert found is not None
    assert found <= least(here)
    if len(fleets) == 1:
        assert found == pytest.approx(least(here))


def test_where_one_fleet_is_best_all_over_the_ends_prove_everything() -> None:
    asked: list[str] = []

    def prove(changes: Any) -> float:
        asked.append(json.dumps(changes))
        return 3.0 * float(changes["price.a"])

    values = [1.0 + step / 64.0 for step in range(65)]
    for value in values:
        assert mixed_bound({"price.a": value}, {"price.a": values}, 3.0 * value, prove) == pytest.approx(3.0 * value)
    assert set(asked) == {'{"price.a": 1.0}', '{"price.a": 2.0}'}


def test_no_fleet_at_a_corner_is_no_bound_there() -> None:
    assert mixed_bound({"rate": 5}, {}, 7.0, lambda _changes: None) is None
    assert mixed_bound({"rate": 5}, {}, 7.0, lambda _changes: 9.0) == 7.0


def test_scenarios_that_differ_in_prices_alone_share_proofs() -> None:
    changes = [{"price.H100": float(price), "rate": rate} for rate in (5, 10) for price in range(1, 101)]
    found = grids(changes, 24)
    assert all(grid is not None and len(grid["price.H100"]) == 12 for grid in found)
    assert found[0] is found[99]
    assert found[0] == {"price.H100": [float(round(1 + 9 * step)) for step in range(12)]}
    assert grids([{"rate": rate} for rate in range(24)], 24) == [{}] * 24
    assert grids([{"rate": rate} for rate in range(25)], 24) == [None] * 25
    plane = [{"price.a": float(a), "price.b": float(b)} for a in range(30) for b in range(30)]
    assert {key: len(values) for key, values in (grids(plane, 24)[0] or {}).items()} == {"price.a": 4, "price.b": 4}


@pytest.fixture(scope="module")
def small() -> Problem:
    """Llama-3.1-8B on two types, few settings."""
    return problem_of(
        {
            "model": {"name": "Llama-3.1-8B"},
            "workload": {"request_rate": 30, "lengths": {"histogram": [{"isl": 800, "osl": 150, "share": 1}]}},
            "slo": {"ttft": 1.0, "tpot": 0.05},
            "accelerators": [{"name": "H100", "price": 3.0}, {"name": "L4", "price": 0.7}],
            "search": {"preset": "quick", "tensor_parallel": [1], "max_num_seqs": [32, 128]},
        },
        "small",
        BASE,
    )


def test_a_bound_is_that_of_the_whole_search_and_no_budget_loosens_it(small: Problem) -> None:
    bound, plan = lower_bound(small, BASE), optimize(small, level=Level.QUICK)
    assert bound is not None
    assert plan.cost_usd_per_hour is not None
    assert bound <= plan.cost_usd_per_hour * (1.0 + 1e-9)
    if plan.bound_usd_per_hour is not None:
        assert bound == pytest.approx(plan.bound_usd_per_hour, rel=2e-3)
    tight = scenario_problem(small, Scenario("", {"budget": plan.cost_usd_per_hour}), BASE)
    assert lower_bound(tight, BASE) == bound


def test_bounds_between_prices_are_below_the_cost_there(small: Problem) -> None:
    def prove(changes: Any) -> float | None:
        return lower_bound(scenario_problem(small, Scenario("", changes), BASE), BASE)

    for price in (1.7, 2.9):
        here = {"price.H100": price}
        cost = solve_simple(scenario_problem(small, Scenario("", here), BASE), BASE).cost
        assert cost is not None
        found = mixed_bound(here, {"price.H100": (1.0, 4.0)}, cost, prove)
        exact = prove(here)
        assert found is not None
        assert exact is not None
        assert 0.5 * cost < found <= exact * (1.0 + 1e-4)
