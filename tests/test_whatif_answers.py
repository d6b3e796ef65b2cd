"""Answers to what-if questions: scenarios against the search itself, break-even values, curves, shadow prices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from optimizer.loads.effort import Level
from optimizer.loads.instance import planned_instance
from optimizer.plans.records import Sensitivity, engine_counts
from optimizer.recommend.changed_problem import with_limit
from optimizer.recommend.optimize import optimize
from optimizer.verification.bench import make_bench
from optimizer.verification.verify import Loop
from optimizer.whatif.answer import ScenarioAnswer, ScenarioEffort, nothing
from optimizer.whatif.curves import frontier
from optimizer.whatif.sensitivity import STEP_TIME, break_even, kind_of, levers, relaxation, sensitivity, shadow_prices
from optimizer.whatif.solver import answer, answer_of_plan, cheapest_of, demand_of, fleet_under
from pdplan.cli import run
from reports.answers.curves import curve_record, frontier_document
from reports.answers.whatif import SHAPES, cells_of, map_chart, map_headline
from reports.charts import Path as Line
from reports.charts import Rect
from search_spaces.loader import load_problem, problem_of
from search_spaces.problem import Problem
from search_spaces.scenarios import scenario_problem
from tests.running import THREE_GPUS, demand

BASE = Path()


def small(rate: float = 20.0, isl: int = 800, osl: int = 150, ttft: float = 1.0, **more: object) -> Problem:
    """Llama-3.1-8B on H100, A100 and L4, few settings: some tens of milliseconds to price."""
    stated = {"workload": demand(rate, 0.7, isl, osl), "slo": {"ttft": ttft, "tpot": 0.05}}
    return problem_of(THREE_GPUS | stated | more, "small", BASE)


def changed(problem: Problem, **changes: object) -> Problem:
    return scenario_problem(problem, {key.replace("__", "."): v for key, v in changes.items()})


# --- one scenario ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"inventory__A100-80": 2, "spares": 1}, {"rate": 70.0, "budget": 12.0}])
def test_a_scenario_costs_what_optimize_says_and_its_bound_is_the_floor(changes: dict[str, object]) -> None:
    problem = changed(small(), **changes)
    best, plan = answer(problem, ScenarioEffort.FULL, proven=True), optimize(problem, level=Level.QUICK)
    assert (best.cost, best.pools) == (plan.cost_usd_per_hour, tuple(plan.alternatives[0].pools))
    shown = answer_of_plan(plan)
    assert (shown.cost, shown.pools, dict(shown.gpus)) == (best.cost, best.pools, dict(best.gpus))
    assert (shown.bound, shown.gap) == pytest.approx((best.bound, best.gap), rel=2e-3, abs=2e-3)
    assert best.goodput >= problem.workload.request_rate
    assert best.goodput == pytest.approx(plan.goodput_rps, rel=2e-3)
    assert best.bound == pytest.approx(plan.floor_usd_per_hour, rel=2e-3)
    assert best.gap == pytest.approx(plan.certified_gap, abs=2e-3)
    few, cost = answer(problem), best.cost or 0.0
    assert few.cost >= cost * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("rate", "ttft", "tpot", "roles"),
    [
        (16.0, 1.0, 0.015, ["colocated"]),
        (36.0, 2.0, 0.02, ["colocated"]),
        (20.0, 2.0, 0.02, ["prefill", "decode"]),
        (24.0, 1.0, 0.05, ["colocated"]),
    ],
)
def test_of_equal_fleets_a_map_a_queue_of_simulations_and_the_search_take_the_same(
    rate: float, ttft: float, tpot: float, roles: list[str]
) -> None:
    stated = {"workload": demand(rate, 0.7), "slo": {"ttft": ttft, "tpot": tpot}, "accelerators": ["H100"]}
    problem = problem_of(THREE_GPUS | stated, "equal", BASE)
    answers = [answer(problem, changes={"search.roles": list(shape)}) for shape in SHAPES.values()]
    assert answers[0].cost == pytest.approx(answers[1].cost)
    best = cheapest_of(problem, {}, answers)
    assert [pool.role for pool in best.pools] == roles
    assert best.pools == answer(problem).pools
    assert best.pools == answer(problem, ScenarioEffort.FULL).pools
    instance = planned_instance(problem)
    queue = Loop(make_bench(instance), [fleet_under(demand_of(problem), item.pools).fleet for item in answers])
    assert [pool.role.value for pool in queue.cheapest().fleet.pools] == roles
    assert cheapest_of(problem, {}, answers[::-1]) is best
    keys, setting = ["rate", "burstiness"], {"rate": rate, "burstiness": 1.0}
    cell = cells_of(keys, [ScenarioAnswer(setting, item) for item in answers], partial(cheapest_of, problem))[0]
    assert (cell.shape, cell.best) == (["colocated", "disaggregated"][len(roles) - 1], best)
    assert map_headline(keys, [cell]) == "Colocated and disaggregated fleets cost the same in 1 cell."
    assert [mark.tone for mark in map_chart(keys, [cell]).drawing.marks if isinstance(mark, Rect)] == ["even"]


def test_the_cheapest_answer_is_the_cheapest_fleet_and_none_where_no_answer_has_one() -> None:
    none, (dear, cheap) = nothing("no fleet"), [answer(small(rate)) for rate in (90.0, 20.0)]
    assert cheapest_of(small(), {}, [dear, none, cheap]) is cheap
    assert cheapest_of(small(), {}, [none, none]) is None


@settings(max_examples=5)
@given(st.floats(0.5, 6.0), st.floats(0.5, 6.0), st.floats(0.2, 2.0))
def test_dearer_gpus_never_make_a_fleet_cheaper_and_all_prices_scale(h100: float, a100: float, factor: float) -> None:
    prices = {"price__H100": h100, "price__A100-80": a100, "price__L4": 0.7}
    cost = answer(changed(small(), **prices)).cost
    dearer = answer(changed(small(), **prices | {"price__H100": h100 * 1.3})).cost
    scaled = answer(changed(small(), **{key: value * factor for key, value in prices.items()})).cost
    assert cost <= dearer * (1.0 + 1e-9) <= cost * 1.3 * (1.0 + 1e-9)
    assert scaled == pytest.approx(cost * factor)


# --- break-even -----------------------------------------------------------------------------------------------------


@settings(max_examples=4)
@given(
    st.floats(5.0, 150.0),
    st.sampled_from([300, 800, 2000]),
    st.sampled_from([60, 150, 300]),
    st.sampled_from(["H100", "L4"]),
)
def test_below_and_above_a_break_even_price_the_fleets_differ_and_at_it_they_cost_the_same(
    rate: float, isl: int, osl: int, card: str
) -> None:
    problem, key = small(round(rate, 1), isl, osl), f"price.{card}"
    steps = break_even(problem, key, (0.1, 12.0)).steps
    assert (steps[0].start, steps[-1].end) == (0.1, 12.0)
    hair = 2e-4  # costs closer than 1e-6 of them count as equal
    bought = [step.answer.gpus.get(card, 0) for step in steps]
    assert bought == sorted(bought, reverse=True)
    for below, above in pairwise(steps):
        assert below.costs[1] == pytest.approx(above.costs[0], rel=1e-6)
        left, at, right = (answer(problem, changes={key: below.end + move}) for move in (-hair, 0.0, hair))
        assert dict(left.gpus) != dict(right.gpus)
        assert dict(left.gpus) == dict(below.answer.gpus)
        assert dict(right.gpus) == dict(above.answer.gpus)
        assert left.cost == pytest.approx(at.cost, rel=2e-3)
        assert right.cost == pytest.approx(at.cost, rel=2e-3)


# --- the curve ------------------------------------------------------------------------------------------------------


def test_each_step_of_the_curve_ends_where_its_fleet_no_longer_holds() -> None:
    problem = small()
    curve = frontier(problem, "rate", (5.0, 30.0))
    costs = [step.answer.cost for step in curve.steps]
    assert None not in costs
    assert costs == sorted(costs)
    assert len(costs) >= 3
    assert (curve.steps[0].start, curve.steps[-1].end) == (5.0, 30.0)
    for step, after in pairwise(curve.steps):
        assert after.start == pytest.approx(step.end, rel=1.1 * curve.tolerance)
        near = answer(changed(problem, rate=step.end * 0.999)).cost
        assert near >= step.answer.cost * (1.0 - 1e-9)  # the search promises less than the fleet holds
        assert step.answer.goodput == pytest.approx(step.end, rel=2e-3)
    (chart,) = frontier_document(curve).sections[0].charts
    tones = Counter(mark.tone for mark in chart.drawing.marks if isinstance(mark, Line))
    assert (tones["curve decode"], tones["drop"]) == (len(costs), len(costs))  # the jumps, and the file's own value
    rows = curve_record(replace(curve, by_budget=True))["steps"]
    assert [row["rate_rps"] for row in rows] == [step.end for step in curve.steps]


def test_what_a_budget_serves_goes_on_beyond_the_range_as_far_as_the_last_fleet_does() -> None:
    last = frontier(small(accelerators=THREE_GPUS["accelerators"][:1]), "budget").steps[-1]
    assert last.end == last.answer.goodput > 4.0 * 20.0


@pytest.mark.parametrize(("high", "hint"), [(1.0, r"such as 0\.999$"), (99.0, r"0\.999; did you mean 99%\?$")])
def test_goals_of_attainment_are_below_one(high: float, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        frontier(small(), "attainment", (0.5, high))


# --- shadow prices, levers, near-optimal ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "limit", "worth"),
    [
        ({"rate": 100.0, "inventory__H100": 1, "price__H100": 0.5}, "inventory H100", "$/h"),
        ({"rate": 100.0, "max_gpus": 6, "price__H100": 9.0, "price__A100-80": 1.0}, "max_gpus", "$/h"),
        ({"rate": 100.0, "budget": 9.0}, "budget", "req/s"),
    ],
)
def test_shadow_prices_are_what_solving_again_gives(changes: dict[str, object], limit: str, worth: str) -> None:
    limited, step = changed(small(), **changes), 2e-3
    row = next(row for row in shadow_prices(limited) if row.limit == limit)
    assert row.dual > 0.0
    assert row.worth == worth
    values = []
    for upper in (row.upper, row.upper * (1.0 + step)):
        relaxed = relaxation(planned_instance(with_limit(limited, limit, upper)), limit, goodput=worth == "req/s")
        values.append(relaxed[0])
    assert (values[0] - values[1]) / (row.upper * step) == pytest.approx(row.dual, rel=0.05)


# --- how the least cost moves: levers, where the kind of fleet changes, break-even prices


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small(70.0)


@pytest.fixture(scope="module")
def found(problem: Problem) -> Sensitivity:
    return sensitivity(problem, complete=True)


def test_slower_steps_never_cost_less(found: Sensitivity) -> None:
    row = next(row for row in found.levers if row.lever == STEP_TIME)
    assert (row.low, row.value, row.high) == (0.05, 0.5, 0.95)
    assert row.usd_per_hour_low <= found.usd_per_hour * (1 + 1e-9)
    assert row.usd_per_hour_high is None or row.usd_per_hour_high >= found.usd_per_hour * (1 - 1e-9)


def test_a_flip_lies_where_it_says(problem: Problem, found: Sensitivity) -> None:
    flips = [(row.lever, flip) for row in found.levers for flip in row.flips]
    assert flips
    for key, flip in flips:
        values = flip.same_at, flip.other_at
        same, other = (answer(problem, changes={key: value}) for value in values)
        assert kind_of(same.pools) == kind_of(found.pools)
        assert kind_of(other.pools) != kind_of(found.pools)
        assert (list(other.pools), other.cost) == (flip.pools, flip.usd_per_hour)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """2 L40S and 1 H100 are cheaper than any fleet of one or two pools."""
    path = tmp_path_factory.mktemp("mixed") / "workload.yaml"
    assert run(["init", "-o", str(path)]) == 0
    return load_problem(path, {"search.tensor_parallel": 1, "search.pipeline_parallel": 1})


EASIER = {"rate_scale": -1, "isl_scale": -1, "burstiness": -1, "price.H100": -1, "ttft_scale": 1, "tpot_scale": 1}
"""Levers, and in which direction they make a problem easier."""


@settings(max_examples=8)
@given(lever=st.sampled_from(sorted(EASIER)), share=st.floats(0.0, 0.3))
def test_nothing_easier_costs_more_than_the_mixture_at_hand(mixed: Problem, lever: str, share: float) -> None:
    own = answer(mixed, ScenarioEffort.FULL)
    assert answer(mixed).cost > own.cost
    value = next(row.value for row in levers(mixed) if row.key == lever) * (1.0 + EASIER[lever] * share)
    for effort, fleets in ((ScenarioEffort.FULL, []), (ScenarioEffort.SIMPLE, [own.case])):
        assert answer(mixed, effort, changes={lever: value}, fleets=fleets).cost <= own.cost * (1.0 + 1e-9)


def test_a_fleet_at_hand_is_no_answer_where_its_roles_are_not_searched() -> None:
    h100 = [{"name": "H100", "price": 3.0}]
    long_prompts = small(10.0, 6000, 300, slo={"ttft": 1.0, "tpot": 0.012}, accelerators=h100)
    own = answer(long_prompts, ScenarioEffort.FULL)
    assert {pool.role for pool in own.pools} == {"prefill", "decode"}
    best = answer(long_prompts, ScenarioEffort.FULL, changes={"search.roles": ["colocated"]})
    assert {pool.role for pool in best.pools} == {"colocated"}
    assert best.cost > own.cost


def test_where_the_plan_mixes_gpus_prices_move_fleets_of_more_pools(mixed: Problem) -> None:
    """Planning again beyond a price says the same."""
    problem, plan = mixed, optimize(mixed, level=Level.QUICK)
    assert answer(problem).cost > plan.cost_usd_per_hour
    moved = sensitivity(problem, complete=False, plan=plan)
    assert moved.usd_per_hour == pytest.approx(plan.cost_usd_per_hour)
    ends = [(f"price.{row.accelerator}", *pair) for row in moved.break_even for pair in pairwise(row.pieces)]
    assert len(ends) >= 3
    for key, below, above in ends:
        for factor, piece in ((0.99, below), (1.01, above)):
            best = answer(problem, ScenarioEffort.FULL, changes={key: below.high * factor})
            assert engine_counts(best.pools) == engine_counts(piece.pools)


def test_break_even_prices_cover_a_quarter_to_four_times_and_meet(found: Sensitivity) -> None:
    assert [row.accelerator for row in found.break_even] == ["H100", "A100-80", "L4"]
    for row in found.break_even:
        assert row.pieces[0].low == 0.25 * row.usd_per_gpu_hour
        assert row.pieces[-1].high == 4.0 * row.usd_per_gpu_hour
        for below, above in zip(row.pieces, row.pieces[1:], strict=False):
            assert below.high == above.low
            assert below.usd_per_hour_high == pytest.approx(above.usd_per_hour_low)
