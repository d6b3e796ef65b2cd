"""How the least cost moves: levers, where the kind of fleet changes, break-even prices; and accuracy on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.fleets.error_bars import accuracy_records
from optimizer.plans.plan import Status
from optimizer.plans.records import Sensitivity
from optimizer.whatif.answer import STEP_TIME, Answer, answer, answer_at, nothing
from optimizer.whatif.curves import Step, break_even
from optimizer.whatif.sensitivity import kind_of, sensitivity
from search_spaces.problem import Problem
from search_spaces.serving_error import load_serving_error
from tests.engine_cases import engines
from tests.test_whatif_answers import BASE, small


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small(70.0)


@pytest.fixture(scope="module")
def found(problem: Problem) -> Sensitivity:
    moved = sensitivity(problem, BASE, complete=True)
    assert moved is not None
    return moved


def test_slower_steps_never_cost_less(found: Sensitivity) -> None:
    row = next(row for row in found.levers if row.lever == STEP_TIME)
    assert (row.low, row.value, row.high) == (0.05, 0.5, 0.95)
    assert row.usd_per_hour_low is not None
    assert row.usd_per_hour_low <= found.usd_per_hour * (1 + 1e-9)
    assert row.usd_per_hour_high is None or row.usd_per_hour_high >= found.usd_per_hour * (1 - 1e-9)


def test_a_flip_lies_where_it_says(problem: Problem, found: Sensitivity) -> None:
    flips = [(row.lever, flip) for row in found.levers for flip in row.flips]
    assert flips
    for key, flip in flips:
        same, other = (answer_at(problem, BASE, key, value) for value in (flip.same_at, flip.other_at))
        assert kind_of(same.pools) == kind_of(found.pools)
        assert kind_of(other.pools) != kind_of(found.pools)
        assert (list(other.pools), other.cost) == (flip.pools, flip.usd_per_hour)


def test_break_even_prices_cover_a_quarter_to_four_times_and_meet(found: Sensitivity) -> None:
    assert [row.accelerator for row in found.break_even] == ["H100", "A100-80", "L4"]
    for row in found.break_even:
        assert row.pieces[0].low == 0.25 * row.usd_per_gpu_hour
        assert row.pieces[-1].high == 4.0 * row.usd_per_gpu_hour
        for below, above in zip(row.pieces, row.pieces[1:], strict=False):
            assert below.high == above.low
            assert below.usd_per_hour_high == pytest.approx(above.usd_per_hour_low)


def own_fleet(gpus: dict[str, int], cost: float) -> Answer:
    """A fleet that some search found."""
    pools = (engines(1, "own", 1, "colocated"),)
    return replace(nothing(""), status=Status.FEASIBLE, cost=cost, gpus=gpus, pools=pools)


@given(cost=st.floats(0.5, 1.5), bought=st.integers(0, 9), share=st.floats(0, 1))
@settings(deadline=None, max_examples=6)
def test_with_the_plans_own_fleet_the_cost_is_the_lower_of_both(cost: float, bought: int, share: float) -> None:
    few = small(60.0)
    here = answer(few).cost or 0.0
    own = own_fleet({"H100": bought, "other": 3}, cost * here + 3.0 * bought)
    plain, both = (break_even(few, BASE, "price.H100", (0.75, 12.0), own=fleet).steps for fleet in (None, own))
    price = 0.75 + share * 11.25
    line = (own.cost or 0.0) + bought * (price - 3.0)
    assert cost_at(both, price) == pytest.approx(min(cost_at(plain, price), line))
    assert [step.end for step in both[:-1]] == [step.start for step in both[1:]]


def cost_at(steps: Sequence[Step], price: float) -> float:
    here = next(step for step in steps if step.start <= price <= step.end)
    low, high = here.costs
    assert low is not None
    assert high is not None
    return low + (high - low) * (price - here.start) / (here.end - here.start)


# --- accuracy on record ---------------------------------------------------------------------------------------------


def test_what_is_not_on_record_has_no_error(problem: Problem) -> None:
    records = accuracy_records(problem)
    by_kind = {(row.accelerator, row.mode, row.engine, row.model): row for row in records}
    unknown = by_kind["L4", "colocated", "vllm", "Llama-3.1-8B"]
    assert (unknown.rows, unknown.ttft_median_abs) == (0, None)
    engine = by_kind["H100", "colocated", "vllm", ""]
    (same,) = (
        one
        for one in load_serving_error().held_out_on
        if (one.accelerator, one.mode, one.engine, one.model) == ("H100", "colocated", "vllm", "")
    )
    assert engine.rows == same.rows > 0
    assert engine.tpot_median_abs == pytest.approx(same.tpot_median_abs_pct / 100)
    assert ("L4", "colocated", "", "") not in by_kind
