"""The search against brute force, on spaces small enough for it; its bounds; and simple plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.loads.columns import Columns, Grid, make_columns
from optimizer.loads.instance import Instance
from optimizer.loads.loads import column_loads
from optimizer.solver.fleet_model import COLOCATED, DECODE, PREFILL, Aim, build_fleet_model
from optimizer.solver.pricing import Duals, price_columns, reduced_costs
from optimizer.solver.program import Builder, Outcome, Program, Solution, solve
from optimizer.solver.search import Effort, Found, choose_starters, plan_blocks, search
from optimizer.solver.simple_plans import block_costs, column_totals, price_space, simple_plans
from search_spaces.problem import Billing, Constraints, Gateway, Problem
from tests.optimizer_cases import columns_of, instance_of, model, offer, problem, slo, space, workload

MIXES = (
    ((1000.0, 200.0, 1.0),),
    ((500.0, 16.0, 0.6), (4000.0, 200.0, 0.4)),
    ((50.0, 1.0, 0.2), (1000.0, 100.0, 0.5), (4000.0, 16.0, 0.3)),
)
TWO_CLASSES = (slo(0.5, 0.03, 0.95, name="chat", share=0.6), slo(3.0, 0.1, 0.9, name="batch", share=0.4))
SOLVED = {Outcome.OPTIMAL, Outcome.FEASIBLE}
POOL_LIMITS = (
    *(Constraints(spare_replicas=1), Constraints(max_pools=1), Constraints(max_pools=2)),
    *(Constraints(gateway=Gateway(1, 1)), Constraints(gateway=Gateway(8, 1)), Constraints(gateway=Gateway(1, 8))),
)
STARVED = Effort(starters=1, added=3, rounds=3, columns=4, more=8, nodes=5, choices=2, most_columns=8)
"""So little effort that column generation, pricing and the choice of columns all have to work."""


@st.composite
def problems(draw: st.DrawFn, *, most_rate: float = 60.0, limits: bool = True) -> Problem:
    """Llama-3.1-8B on one or two accelerators, with or without limits on the fleet."""
    names = draw(st.sampled_from([("H100",), ("L40S", "H100"), ("MI300X", "L40S"), ("A100-80", "L4")]))
    stock = draw(st.sampled_from([None, None, 1, 2, 4])) if limits else None
    ceilings = [Constraints()]
    if limits:
        ceilings += [Constraints(budget=12.0), Constraints(max_gpus=3), Constraints(power=3000.0)]
    slos = st.sampled_from([(slo(0.4, 0.03, 0.9),), (slo(1.0, 0.05, 0.99),), (slo(3.0, 0.1, 0.9),), TWO_CLASSES])
    return problem(
        workload=workload(
            draw(st.floats(0.5, most_rate)),
            draw(st.sampled_from(MIXES)),
            burstiness=draw(st.sampled_from([0.5, 1.0, 2.0])),
        ),
        slos=draw(slos),
        offers=tuple(offer(name, inventory=stock if index == 0 else None) for index, name in enumerate(names)),
        constraints=draw(st.sampled_from(ceilings)),
        space=space(max_num_seqs=(64,)),
    )


def run(instance: Instance, columns: Columns, effort: Effort | None = None) -> Found:
    return search(instance, columns, column_totals(instance, columns), Aim(), effort or Effort(gap=0.0))


def whole_program(instance: Instance, columns: Columns, aim: Aim | None = None) -> Program:
    return build_fleet_model(instance, columns, column_loads(instance, columns), aim or Aim()).program


def with_blocks(instance: Instance, columns: Columns, counts: NDArray[Any]) -> Solution:
    """The routing problem alone: blocks are given."""
    model = build_fleet_model(instance, columns, column_loads(instance, columns), Aim())
    lower, upper = model.program.lower.copy(), model.program.upper.copy()
    lower[model.blocks] = upper[model.blocks] = counts
    return solve(replace(model.program, lower=lower, upper=upper), relaxed=True)


def largest_fleets(prices: NDArray[Any], below: float, start: int = 0) -> Iterator[list[int]]:
    """Every choice of whole block counts that costs less than `below` and to which no block can be added."""
    if start == prices.size - 1:
        most = int(np.ceil(below / prices[start])) - 1
        if most >= 0:
            yield [most]
        return
    count = 0
    while count * prices[start] < below:
        for rest in largest_fleets(prices, below - count * prices[start], start + 1):
            yield [count, *rest]
        count += 1


def cheaper_fleet(instance: Instance, columns: Columns, cost: float) -> list[int] | None:
    """Block counts of a fleet that costs less than `cost` and serves the demand, by trying them all."""
    prices = block_costs(instance, columns)
    limit = cost * (1.0 - 1e-6)
    for counts in largest_fleets(prices, limit):
        spent = float(prices @ counts)
        if (prices + spent < limit).any():
            continue  # a larger fleet is still below
        for fewer in within_limits(instance, columns, counts):
            if with_blocks(instance, columns, np.array(fewer)).x.size:
                return fewer
    return None


def within_limits(instance: Instance, columns: Columns, counts: list[int]) -> Iterator[list[int]]:
    """The counts themselves where nothing limits the fleet, else every smaller choice that no other one contains."""
    problem_ = instance.problem
    limited = problem_.constraints != Constraints() or any(bought.inventory is not None for bought in problem_.offers)
    if not limited:
        yield counts
        return
    yield from (list(choice) for choice in np.ndindex(*(count + 1 for count in counts)))


@settings(deadline=None, max_examples=20)
@given(problems(most_rate=30.0, limits=False), st.integers(0, 2**32 - 1))
def test_no_fleet_is_cheaper_than_the_one_found(given_: Problem, seed: int) -> None:
    instance = instance_of(given_)
    every = columns_of(instance)
    columns = every.take(np.sort(np.random.default_rng(seed).choice(every.size, 5, replace=False)))
    found = run(instance, columns)
    if found.outcome is Outcome.INFEASIBLE:
        assert solve(whole_program(instance, columns), relaxed=True).outcome is Outcome.INFEASIBLE
        return
    assert found.outcome is Outcome.OPTIMAL
    cheapest = block_costs(instance, columns).min()
    assert cheaper_fleet(instance, columns, min(found.objective, 6.0 * cheapest)) is None
    assert with_blocks(instance, found.columns, found.blocks).x.size
    assert block_costs(instance, found.columns) @ found.blocks == pytest.approx(found.objective)
    assert found.bound == pytest.approx(found.objective, rel=1e-6)


@settings(deadline=None, max_examples=20)
@given(problems())
def test_it_equals_the_whole_problem_over_all_columns(given_: Problem) -> None:
    instance = instance_of(given_)
    columns = columns_of(instance)
    if not columns.size:
        return
    best, found = solve(whole_program(instance, columns)), run(instance, columns)
    assert (found.outcome in SOLVED) == (best.outcome in SOLVED)
    if best.outcome in SOLVED:
        assert found.objective == pytest.approx(best.objective, rel=1e-6)
        assert found.bound <= best.objective * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(problems())
def test_a_bound_is_a_bound_however_little_the_effort(given_: Problem) -> None:
    instance = instance_of(given_)
    columns = columns_of(instance)
    if not columns.size:
        return
    best, found = solve(whole_program(instance, columns)), run(instance, columns, STARVED)
    if best.outcome in SOLVED:
        assert found.outcome is not Outcome.INFEASIBLE
        assert found.bound <= best.objective * (1 + 1e-6)
        assert found.objective >= best.objective * (1 - 1e-6)
    else:
        assert found.outcome not in SOLVED


@settings(deadline=None, max_examples=40)
@given(problems(), st.sampled_from(POOL_LIMITS))
def test_spares_pools_and_whole_nodes(given_: Problem, constraints: Constraints) -> None:
    offers = tuple(replace(one, billing=Billing.NODE, inventory=None) for one in given_.offers)
    instance = instance_of(replace(given_, constraints=constraints, offers=(*offers[:1], *given_.offers[1:])))
    columns = columns_of(instance)
    if not columns.size:
        return
    best, found = solve(whole_program(instance, columns)), run(instance, columns)
    assert (found.outcome in SOLVED) == (best.outcome in SOLVED)
    if best.outcome in SOLVED:
        assert found.objective == pytest.approx(best.objective, rel=1e-6)
        assert found.bound <= best.objective * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(problems(), st.integers(0, 1))
def test_simple_plans_are_fleets_that_hold_and_never_beat_the_search(given_: Problem, spares: int) -> None:
    given_ = replace(given_, constraints=replace(given_.constraints, spare_replicas=spares))
    instance = instance_of(given_)
    columns = columns_of(instance)
    plans = simple_plans(instance, columns, column_totals(instance, columns))
    assert [plan.cost for plan in plans] == sorted(plan.cost for plan in plans)
    for plan in plans:
        roles = sorted(columns.role[list(plan.columns)].tolist())
        assert roles in ([COLOCATED], sorted([PREFILL, DECODE]))
        chosen = columns.take(np.array(plan.columns))
        assert block_costs(instance, chosen, np.array(plan.blocks)).sum() == pytest.approx(plan.cost)
        assert with_blocks(instance, chosen, np.array(plan.blocks)).x.size
        assert run(instance, columns).objective <= plan.cost * (1 + 1e-6)


def test_a_simple_plan_takes_the_form_of_a_result() -> None:
    instance = instance_of(problem())
    columns = columns_of(instance)
    plan = simple_plans(instance, columns, column_totals(instance, columns))[0]
    found = plan_blocks(instance, columns, plan)
    assert found.objective == plan.cost
    assert found.outcome is Outcome.FEASIBLE
    assert found.blocks.tolist() == list(plan.blocks)
    np.testing.assert_array_equal(found.route, 1.0)


class TestPricing:
    """A reduced cost may be too low, never too high: else a column that matters would be thrown away."""

    @settings(deadline=None, max_examples=20)
    @given(problems(limits=False), st.integers(0, 2**32 - 1))
    def test_reduced_costs_are_lower_bounds(self, given_: Problem, seed: int) -> None:
        instance = instance_of(given_)
        columns = columns_of(instance)
        random, flows = np.random.default_rng(seed), instance.flows.isl.size
        domains = int(instance.tables.domain.max()) + 1
        gain = random.uniform(-1.0, 3.0, (3, domains, flows)) * random.integers(0, 2, (3, domains, flows))
        duals = Duals(gain, -random.uniform(0.0, 2.0, flows), random.uniform(0.5, 8.0, instance.tables.gpus.size))
        bounds = reduced_costs(instance, price_columns(instance, columns), duals)
        assert not np.isnan(bounds).any()
        for k in random.choice(columns.size, 4, replace=False):
            one = columns.take(np.array([k]))
            exact = float(one.replicas[0] * duals.engine[one.shape[0]]) - best_earned(instance, one, duals)
            assert bounds[k] <= exact + 1e-3 * abs(exact) + 1e-4


def best_earned(instance: Instance, column: Columns, duals: Duals) -> float:
    """What one block earns at most: the linear programme itself."""
    loads, domain = column_loads(instance, column), instance.tables.domain[column.shape[0]]
    gain = duals.gain[column.role[0], domain] + loads.miss[0] * duals.miss
    use = loads.load[0] * instance.flows.rate
    able = np.flatnonzero(np.isfinite(use).all(axis=0) & (use < 1e4).all(axis=0))
    if not able.size:
        return 0.0
    builder = Builder()
    routes = builder.variables([f"x{f}" for f in able], -gain[able])
    rows = builder.rows([f"load{r}" for r in range(use.shape[0])], -np.inf, 1.0)
    builder.entries(rows[:, None], routes[None, :], use[:, able])
    return -solve(builder.build(), relaxed=True).objective


class TestStarters:
    def test_every_role_and_shape_is_there(self) -> None:
        instance = instance_of(problem(offers=(offer("H100"), offer("MI300X"))))
        columns = columns_of(instance)
        starters = columns.take(choose_starters(instance, columns, column_totals(instance, columns), 1))
        kinds = set(zip(columns.role.tolist(), columns.shape.tolist(), strict=True))
        assert set(zip(starters.role.tolist(), starters.shape.tolist(), strict=True)) == kinds
        assert starters.size <= 2 * len(kinds)


class TestOutcomes:
    def test_no_columns_are_no_fleet(self) -> None:
        instance = instance_of(problem())
        columns = columns_of(instance)
        none = columns.take(np.zeros(0, dtype=np.int64))
        found = run(instance, none)
        assert found.outcome is Outcome.INFEASIBLE
        assert found.columns.size == 0

    def test_prefill_alone_is_no_fleet(self) -> None:
        instance = instance_of(problem(space=space(roles=(Role.PREFILL,))))
        assert run(instance, columns_of(instance)).outcome is Outcome.INFEASIBLE

    def test_two_makers_do_not_hand_over(self) -> None:
        """Prompts on NVIDIA and tokens on AMD: no KV cache goes that way."""
        instance = instance_of(problem(offers=(offer("H100"), offer("MI300X"))))
        columns, domain = columns_of(instance), instance.tables.domain
        first = (columns.role == PREFILL) & (domain[columns.shape] == 0)
        later = (columns.role == DECODE) & (domain[columns.shape] == 1)
        assert run(instance, columns.take(first | later)).outcome is Outcome.INFEASIBLE
        same = (columns.role == DECODE) & (domain[columns.shape] == 0)
        assert run(instance, columns.take(first | same)).outcome in SOLVED

    def test_an_idle_flow_of_almost_no_rate_is_still_covered(self) -> None:
        instance = instance_of(problem(workload=workload(8.0, ((1000, 100, 1.0 - 1e-6), (4000, 50, 1e-6)))))
        found = run(instance, columns_of(instance))
        np.testing.assert_allclose(found.route[found.columns.role != DECODE].sum(axis=0), 1.0, atol=1e-6)

    @pytest.mark.parametrize("volume", [0.25, 1.0, 3.0, 12.0])
    def test_other_volumes_than_the_demand(self, volume: float) -> None:
        """No simple plan serves three times the demand, so none may cap the cost."""
        instance = instance_of(problem(workload=workload(12.0)))
        columns = columns_of(instance)
        aim = Aim(1.0, 0.0, volume, volume)
        found = search(instance, columns, column_totals(instance, columns), aim, Effort(gap=0.0))
        best = solve(whole_program(instance, columns, aim))
        assert found.objective == pytest.approx(best.objective, rel=1e-6)
        assert found.volume == pytest.approx(volume)

    def test_the_same_search_twice_is_the_same(self) -> None:
        instance = instance_of(problem(offers=(offer("H100"), offer("L40S")), workload=workload(40.0)))
        columns = columns_of(instance)
        one, other = run(instance, columns, Effort()), run(instance, columns, Effort())
        assert one.objective == other.objective
        np.testing.assert_array_equal(one.blocks, other.blocks)
        np.testing.assert_array_equal(one.route, other.route)

    @pytest.mark.parametrize("constraints", [Constraints(), Constraints(max_pools=2)])
    def test_where_money_buys_anything_there_is_a_fleet(self, constraints: Constraints) -> None:
        """Long prompts of a large model: no one block carries them all, but several can."""
        instance = instance_of(
            problem(
                model=model("Llama-3.1-70B"),
                workload=workload(71.8, ((16000, 1, 0.29), (16000, 1000, 0.65), (1000, 1, 0.06)), max_tokens=20000),
                slos=(slo(10.0, 0.1, 0.95),),
                offers=(offer("H200"),),
                space=space(tensor_parallel=(2, 4, 8), max_num_seqs=(16, 64), max_num_batched_tokens=(512, 8192)),
                constraints=constraints,
            )
        )
        columns, totals = price_space(instance, make_columns(instance, Grid()))
        plan = simple_plans(instance, columns, totals)[0]
        assert max(plan.blocks) > 1
        found = search(instance, columns, totals, Aim(), Effort(nodes=50, choices=5, provable=0))
        assert found.outcome in SOLVED
        assert found.objective <= plan.cost * (1 + 1e-9)
        assert found.bound <= found.objective
