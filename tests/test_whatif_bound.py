"""Bounds of a sweep's rows: their floors, and what is proven of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import fleet_cost
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from optimizer.search.limits import still_holds
from optimizer.whatif import sweep
from optimizer.whatif.scenario import Depth, evaluated_at, floor_cost, lower_bound, physics_at, physics_of, solve
from optimizer.whatif.workers import local_executor, run_sweep
from search_spaces.loader import problem_of
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem
from tests.optimizer_cases import instance_of, problem, slo, space, workload

BASE = Path()


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


def changed(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    return scenario_problem(problem, Scenario("", changes), BASE)


def test_a_bound_is_that_of_the_whole_search_and_no_budget_loosens_it(small: Problem) -> None:
    bound, plan = lower_bound(small, BASE), optimize(small, level=Level.QUICK)
    assert bound is not None
    assert plan.cost_usd_per_hour is not None
    assert bound <= plan.cost_usd_per_hour * (1.0 + 1e-9)
    assert bound <= (plan.floor_usd_per_hour or 0.0) * (1.0 + 2e-3)
    tight = changed(small, {"budget": plan.cost_usd_per_hour})
    assert lower_bound(tight, BASE) == bound


def test_no_fleet_is_no_bound(small: Problem) -> None:
    assert lower_bound(changed(small, {"max_gpus": 1, "rate": 900}), BASE) is None


@pytest.mark.parametrize("most", [0, 8])
def test_every_row_of_a_grid_has_a_gap_and_no_bound_is_above_its_own_proof(
    small: Problem, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MOST_PROOFS", most)
    grid = [
        {"rate": rate, "price.H100": price, "ttft": ttft}
        for rate in (20, 60)
        for price in (1.5, 3.5)
        for ttft in (0.5, 1.5)
    ]
    long = sweep.sweep_of(small, BASE, [Scenario("", one) for one in grid], ["rate"], Depth.SIMPLE)
    with local_executor(1) as executor:
        rows = run_sweep(long, executor, 1)
    for changes, row in zip(grid, rows, strict=True):
        problem = changed(small, changes)
        cost = solve(problem, BASE).cost
        assert row["cost_usd_per_hour"] == cost
        assert cost is not None
        assert floor_cost(problem, physics_of(problem, BASE)) <= cost
        exact = lower_bound(problem, BASE)
        assert exact is not None
        assert 0.0 <= row["gap"] < 1.0
        assert row["bound_usd_per_hour"] <= exact * (1.0 + 2e-3)
        assert not most or row["bound_usd_per_hour"] == pytest.approx(min(exact, cost), rel=2e-3)


def test_flows_that_are_short_of_different_things_share_their_engines_below_the_floor() -> None:
    """Long prompts fill the network cards of decode engines and long answers their batches: neither is in the way."""
    rate, mix = 120.0, ((6000.0, 2.0, 0.2), (100.0, 1000.0, 0.8))
    engines = space(roles=(Role.PREFILL, Role.DECODE), tensor_parallel=(1,), max_num_seqs=(128, 512))
    one = problem(workload=workload(1.0, mix), slos=(slo(20.0, 0.2, 0.9),), space=engines)
    unit = instance_of(one)
    slow = replace(unit.tables, link=np.full_like(unit.tables.link, 4e9))
    physics = physics_at(replace(unit, tables=slow))
    (known,) = evaluated_at(physics, rate)
    fleet = known.fleet(((0, 8), (1, 8)))
    assert [pool.role for pool in fleet.pools] == [Role.PREFILL, Role.DECODE]
    assert still_holds(known.instance, fleet)
    floor = floor_cost(replace(one, workload=workload(rate, mix)), physics)
    assert 0.8 * fleet_cost(known.instance, fleet) < floor <= fleet_cost(known.instance, fleet)
