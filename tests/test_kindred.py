"""Fleets of other engines, and routing by thresholds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.plans.plan_pools import engine_counts
from optimizer.recommend.level import Level
from optimizer.recommend.optimize import optimize
from optimizer.solver.blocks import Work, whole_blocks
from optimizer.solver.fleet_model import Aim
from optimizer.solver.kindred import Solve, different_fleets, engine_kinds
from optimizer.solver.matrices import DECODE, Matrices
from optimizer.solver.search import Effort, Found, search
from optimizer.solver.simple_plans import Totals, column_totals
from optimizer.solver.whole import cheapest
from search_spaces.loader import problem_of
from search_spaces.problem import Constraints, Goal, Objective, Routing
from tests.fleet_matrices import random_matrices
from tests.optimizer_cases import columns_of, instance_of, offer, problem, workload

HOW = Aim(), Effort(nodes=100, choices=15, gap=1e-6)


def two_types(**constraints: float) -> Instance:
    """H100 and L40S for twelve requests per second."""
    offers = (offer("H100"), offer("L40S", inventory=int(constraints.pop("inventory", 64))))
    limits = Constraints(**constraints)  # type: ignore[arg-type]
    return instance_of(problem(offers=offers, workload=workload(12.0), constraints=limits))


def solved(instance: Instance) -> tuple[Columns, Totals, Found]:
    columns = columns_of(instance)
    totals = column_totals(instance, columns)
    return columns, totals, search(instance, columns, totals, *HOW)


def solver(instance: Instance) -> Solve:
    return lambda columns, totals: search(instance, columns, totals, *HOW)


class TestDifferentFleets:
    def test_each_buys_other_engines_and_costs_no_less(self) -> None:
        instance = two_types()
        columns, totals, best = solved(instance)
        rivals = different_fleets(instance, (columns, totals), best, solver(instance), 3)
        assert len(rivals) == 3
        bought = [frozenset(engine_kinds(instance, found.columns)) for found in (best, *(r.found for r in rivals))]
        assert len(set(bought)) == 4
        costs = [best.objective, *(rival.found.objective for rival in rivals)]
        assert costs == sorted(costs)
        for rival, kinds in zip(rivals, bought[1:], strict=True):
            assert not kinds & set(rival.without)

    def test_the_next_best_is_the_cheapest_that_lacks_an_engine(self) -> None:
        """Whatever differs and buys nothing beside the best fleet's engines lacks one of them: try each by hand."""
        instance = two_types()
        columns, totals, best = solved(instance)
        kind = engine_kinds(instance, columns)
        each = []
        for name in set(engine_kinds(instance, best.columns)):
            some = np.flatnonzero(kind != name)
            each.append(search(instance, columns.take(some), totals.take(some), *HOW).objective)
        (rival,) = different_fleets(instance, (columns, totals), best, solver(instance), 1)
        assert rival.found.objective == pytest.approx(min(each))


class TestInThePlan:
    def test_fleets_of_other_engines_are_compared_and_cost_no_less(self) -> None:
        offers = (offer("H100"), offer("L40S"))
        plan = optimize(problem(offers=offers, workload=workload(12.0)), level=Level.QUICK)
        others = [row for row in plan.alternatives if row.kind == "other_engines"]
        assert others
        shown = [engine_counts(row.pools) for row in plan.alternatives if row.why_not != "the same cost"]
        assert plan.cost_usd_per_hour is not None
        for row in others:
            assert row.cost_usd_per_hour is not None
            assert row.cost_usd_per_hour >= plan.cost_usd_per_hour * (1.0 - 1e-6)
            assert engine_counts(row.pools) != engine_counts(plan.alternatives[0].pools)
            assert row.label.startswith("without ")
            assert row.why_not
            assert shown.count(engine_counts(row.pools)) <= 1

    def test_other_goals_have_one_fleet(self) -> None:
        limits = Constraints(budget=8.0)
        plan = optimize(problem(constraints=limits, objective=Objective(Goal.MAX_GOODPUT)), level=Level.QUICK)
        assert [row.kind for row in plan.alternatives] == ["recommended"]


def by_threshold(seed: int) -> Matrices:
    """Six flows of three lengths; pools of two columns each."""
    made = random_matrices(seed, columns=6, flows=6)
    return replace(made, level=np.array([0, 0, 1, 1, 2, 2]), pool=made.pool // 2, role=made.role[made.pool // 2 * 2])


class TestThreshold:
    @settings(deadline=None, max_examples=40)
    @given(st.integers(0, 2**32 - 1))
    def test_each_length_goes_whole_to_one_pool_of_neighbouring_lengths(self, seed: int) -> None:
        matrices = by_threshold(seed)
        found = whole_blocks(matrices, Aim(), Work(gap=0.0))
        free = whole_blocks(matrices.linear, Aim(), Work(gap=0.0))
        assert found.objective >= free.objective - 1e-6
        if not found.index.size:
            return
        assert matrices.level is not None
        for stage in (matrices.role != DECODE, matrices.role == DECODE):
            for pool in np.unique(matrices.pool[stage]):
                mine = stage[found.index] & (matrices.pool[found.index] == pool)
                share = found.route[mine].sum(axis=0)
                assert np.isclose(share, 0.0, atol=1e-5).sum() + np.isclose(share, 1.0, atol=1e-5).sum() == share.size
                levels = np.unique(matrices.level[share > 0.5])
                assert levels.size == 0 or levels.size == levels[-1] - levels[0] + 1

    @settings(deadline=None, max_examples=30)
    @given(st.integers(0, 2**32 - 1))
    def test_the_search_finds_the_same(self, seed: int) -> None:
        matrices = by_threshold(seed)
        one, other = cheapest(matrices, Aim(), Work(gap=0.0)), whole_blocks(matrices, Aim(), Work(gap=0.0))
        assert one.objective == pytest.approx(other.objective, abs=1e-6)
        assert one.bound <= other.objective + 1e-6

    def test_a_fleet_of_the_real_model_keeps_it(self) -> None:
        """Short and long prompts on two types: with thresholds no cheaper, and no length is split."""
        offers = (offer("H100"), offer("L40S"))
        buckets = ((500.0, 100.0, 0.5), (2000.0, 100.0, 0.3), (6000.0, 100.0, 0.2))
        fractional = problem(offers=offers, workload=workload(15.0, buckets))
        free = solved(instance_of(fractional))[2]
        whole = replace(fractional, constraints=Constraints(routing=Routing.THRESHOLD))
        instance = instance_of(whole)
        columns, totals = columns_of(instance), column_totals(instance, columns_of(instance))
        found = search(instance, columns, totals, Aim(), Effort(gap=1e-3))
        assert found.objective >= free.objective * (1.0 - 1e-3)
        assert found.bound <= found.objective

    def test_the_workload_file_asks_for_it(self) -> None:
        inputs = {
            "model": "Llama-3.1-8B",
            "workload": {"request_rate": 1, "lengths": {"isl": 100, "osl": 10}},
            "slo": {"ttft": 1, "tpot": 0.05},
            "accelerators": ["H100"],
        }
        assert problem_of(inputs, "here", Path()).constraints.routing is Routing.FRACTIONAL
        asked = problem_of({**inputs, "constraints": {"routing": "threshold"}}, "here", Path())
        assert asked.constraints.routing is Routing.THRESHOLD
        with pytest.raises(InputError, match=r"routing.*treshold.*threshold"):
            problem_of({**inputs, "constraints": {"routing": "treshold"}}, "here", Path())


class TestDuplicates:
    def test_what_lies_behind_a_fleet_that_comes_up_twice_is_found(self) -> None:
        """Every set of engines that some space is best at comes up, as when all spaces are tried by hand."""
        instance = two_types()
        columns, totals, best = solved(instance)
        kind = engine_kinds(instance, columns)
        shapes = sorted(set(kind))[:: max(1, len(set(kind)) // 3)]
        some = np.flatnonzero(np.isin(kind, [*shapes, *engine_kinds(instance, best.columns)]))
        few, few_totals, names = columns.take(some), totals.take(some), sorted(set(kind[some]))
        solve, by_hand = solver(instance), set[frozenset[str]]()
        for pattern in range(1, 2 ** len(names)):
            left = [name for place, name in enumerate(names) if pattern >> place & 1]
            index = np.flatnonzero(np.isin(kind[some], left))
            found = solve(few.take(index), few_totals.take(index))
            by_hand.add(frozenset(engine_kinds(instance, found.columns).tolist()))
        whole = solve(few, few_totals)
        rivals = different_fleets(instance, (few, few_totals), whole, solve, 1000)
        came = {frozenset(engine_kinds(instance, one.columns).tolist()) for one in (whole, *(r.found for r in rivals))}
        assert came >= by_hand - {frozenset()}
