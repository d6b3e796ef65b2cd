"""How the least cost moves: levers, where the kind of fleet changes, break-even prices."""

from __future__ import annotations

import pytest

from optimizer.plans.records import Sensitivity
from optimizer.whatif.answer import answer_to
from optimizer.whatif.sensitivity import STEP_TIME, kind_of, sensitivity
from search_spaces.problem import Problem
from tests.test_whatif_answers import small


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small(70.0)


@pytest.fixture(scope="module")
def found(problem: Problem) -> Sensitivity:
    moved = sensitivity(problem, complete=True)
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
        same, other = (answer_to(problem, {key: value}) for value in (flip.same_at, flip.other_at))
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
