"""Bounds of a sweep's rows: their floors, what proofs say of other rows, and which rows are proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.build_plan import fleet_cost
from optimizer.recommend.level import Level
from optimizer.recommend.optimize import optimize
from optimizer.search.limits import still_holds
from optimizer.whatif.bound import Place, floor_cost, lower_bound, place_of
from optimizer.whatif.implied import Proven, families, raised
from optimizer.whatif.physics import known_at, physics_at, physics_of
from optimizer.whatif.proofs import A_ROUND, Proofs
from optimizer.whatif.scenario import solve_simple
from optimizer.whatif.sweep import Row, Task, local_executor, run_sweep
from optimizer.whatif.whatif import Depth, sweep_of
from search_spaces.loader import problem_of
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem
from tests.optimizer_cases import instance_of, problem, slo, space, workload

BASE = Path()
FLEETS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 5)), max_size=8)
CASES = st.lists(st.tuples(st.floats(0.0, 4.0), st.floats(0.5, 3.0), st.integers(0, 5)), min_size=2, max_size=12)
"""Two prices and a rate."""


def places_of(cases: Sequence[tuple[float, float, int]], fixed: float = 2.0) -> list[tuple[int, Place]]:
    return [
        (number, Place("one", (first, second, fixed), (float(rate),)))
        for number, (first, second, rate) in enumerate(cases)
    ]


@settings(deadline=None, max_examples=50)
@given(FLEETS, CASES, st.data())
def test_what_proofs_imply_is_never_more_than_the_least_cost(
    fleets: list[tuple[int, int, int]], cases: list[tuple[float, float, int]], data: st.DataObject
) -> None:
    """Fleets of two priced types and one GPU of a third at a fixed price, each good for a rate."""
    able = [*fleets, (9, 9, 5)]
    least = np.array([min(a * x + b * y + 2.0 for a, b, most in able if most >= rate) for x, y, rate in cases])
    (family,) = families(places_of(cases))
    chosen = data.draw(st.lists(st.integers(0, len(cases) - 1), min_size=1, max_size=5, unique=True))
    bounds, before = np.zeros(len(cases)), list[Proven]()
    for at in chosen:
        new = Proven(at, float(least[at]))
        raised_now = raised(family, bounds, before, new)
        assert (raised_now >= bounds).all()
        bounds, before = raised_now, [*before, new]
    assert (bounds <= least * (1.0 + 1e-7)).all()
    assert bounds[chosen] == pytest.approx(least[chosen])


def test_where_one_fleet_is_best_all_over_the_ends_prove_everything() -> None:
    cases = [(1.0 + step / 64.0, 1.0, 3) for step in range(65)]
    (family,) = families(places_of(cases))
    costs = np.array([3.0 * price + 2.0 for price, _, _ in cases])
    first = raised(family, np.zeros(65), [], Proven(0, costs[0]))
    both = raised(family, first, [Proven(0, costs[0])], Proven(64, costs[64]))
    assert both == pytest.approx(costs)
    assert first[1:] == pytest.approx(costs[0])


def test_a_proof_holds_at_higher_rates_and_not_at_lower_ones() -> None:
    (family,) = families(places_of([(1.0, 1.0, 1), (1.0, 1.0, 2), (2.0, 2.0, 3)]))
    assert raised(family, np.zeros(3), [], Proven(1, 8.0)) == pytest.approx([0.0, 8.0, 8.0])
    apart = families([(0, Place("one", (1.0,), (1.0,))), (1, Place("two", (1.0,), (1.0,)))])
    assert [one.rows for one in apart] == [(0,), (1,)]


def solved(costs: Sequence[float]) -> tuple[list[Task], dict[int, Row]]:
    tasks: list[Task] = [{"name": "", "changes": {"rate": rate}, "shown": ["rate"]} for rate in range(len(costs))]
    rows = {
        number: {
            "number": number,
            "cost_usd_per_hour": cost,
            "bound_usd_per_hour": 1.0,
            "gap": None,
            "place": asdict(Place("one", (1.0,), (float(number),))),
        }
        for number, cost in enumerate(costs)
    }
    return tasks, rows


def prove(tasks: Sequence[Task], rows: dict[int, Row], new: Sequence[Task]) -> list[Task]:
    for number, task in enumerate(new, start=len(tasks)):
        rows[number] = {"number": number, "bound": rows[task["of"]]["cost_usd_per_hour"]}
    return [*tasks, *new]


def test_rounds_end_when_every_gap_is_closed() -> None:
    tasks, rows = solved([2.0, 2.0, 4.0, 4.0, 8.0, 8.0])
    while new := Proofs(every=False).more(tasks, rows):
        assert len(new) <= A_ROUND
        tasks = prove(tasks, rows, new)
    assert sorted(task["of"] for task in tasks if "of" in task) == [0, 2, 4]
    found = Proofs(every=False).finish(tasks, rows)
    assert [row["gap"] for row in found] == [0.0] * 6
    assert not any("place" in row for row in found)


def test_every_row_is_proven_once_where_that_is_asked() -> None:
    tasks, rows = solved([2.0, 2.0, 4.0])
    new = Proofs(every=True).more(tasks, rows)
    assert [task["of"] for task in new] == [0, 1, 2]
    assert all(task["proof"] for task in new)
    assert Proofs(every=True).more(prove(tasks, rows, new), rows) == []


def test_rows_without_proofs_have_their_floors_and_a_cost_of_nothing_has_no_gap() -> None:
    tasks, rows = solved([2.0, 0.0])
    rows[1]["bound_usd_per_hour"] = 0.0
    assert [row["gap"] for row in Proofs(every=False).finish(tasks, rows)] == [0.5, 0.0]


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


@pytest.mark.parametrize(
    ("changes", "harder"),
    [
        ({"rate": 31}, True),
        ({"ttft": 0.9}, True),
        ({"attainment": 0.95}, True),
        ({"inventory.L4": 3}, True),
        ({"max_gpus": 9}, True),
        ({"rate": 29}, False),
        ({"tpot": "60ms"}, False),
        ({"e2e": "20s"}, True),
    ],
)
def test_harder_problems_of_one_family_are_told_from_looser_ones(
    small: Problem, changes: dict[str, Any], *, harder: bool
) -> None:
    here, there = place_of(small), place_of(changed(small, changes))
    (family,) = families([(0, here), (1, there)])
    assert family.looser(0)[1] == harder
    assert family.looser(1)[0] != harder


def test_other_engines_or_lengths_are_another_family(small: Problem) -> None:
    places = [place_of(changed(small, one)) for one in ({}, {"isl_scale": 2.0}, {"kv_dtype": "fp8"}, {"spares": 1})]
    assert len({place.family for place in places}) == 4


def test_every_row_of_a_grid_has_a_gap_and_no_bound_is_above_its_own_proof(small: Problem) -> None:
    grid = [
        {"rate": rate, "price.H100": price, "ttft": ttft}
        for rate in (20, 60)
        for price in (1.5, 3.5)
        for ttft in (0.5, 1.5)
    ]
    sweep = sweep_of(small, BASE, [Scenario("", one) for one in grid], ["rate"], Depth.SIMPLE)
    with local_executor(1) as executor:
        rows = run_sweep(sweep, executor, 1)
    for changes, row in zip(grid, rows, strict=True):
        problem = changed(small, changes)
        cost = solve_simple(problem, BASE).cost
        assert row["cost_usd_per_hour"] == cost
        assert cost is not None
        assert floor_cost(problem, physics_of(problem, BASE)) <= cost
        exact = lower_bound(problem, BASE)
        assert exact is not None
        assert 0.0 <= row["gap"] < 1.0
        assert row["bound_usd_per_hour"] <= exact * (1.0 + 2e-3)


def test_flows_that_are_short_of_different_things_share_their_engines_below_the_floor() -> None:
    """Long prompts fill the network cards of decode engines and long answers their batches: neither is in the way."""
    rate, mix = 120.0, ((6000.0, 2.0, 0.2), (100.0, 1000.0, 0.8))
    engines = space(roles=(Role.PREFILL, Role.DECODE), tensor_parallel=(1,), max_num_seqs=(128, 512))
    one = problem(workload=workload(1.0, mix), slos=(slo(20.0, 0.2, 0.9),), space=engines)
    unit = instance_of(one)
    slow = replace(unit.tables, link=np.full_like(unit.tables.link, 4e9))
    physics = physics_at(replace(unit, tables=slow))
    (known,) = known_at(physics, rate)
    fleet = known.fleet(((0, 8), (1, 8)))
    assert [pool.role for pool in fleet.pools] == [Role.PREFILL, Role.DECODE]
    assert still_holds(known.instance, fleet)
    floor = floor_cost(replace(one, workload=workload(rate, mix)), physics)
    assert 0.8 * fleet_cost(known.instance, fleet) < floor <= fleet_cost(known.instance, fleet)
