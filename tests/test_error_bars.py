"""Error bars: step times at the ends of their intervals, and plans made for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.loads.instance import ENDS, at_quantile, factor_at, step_intervals
from optimizer.plans.plan import Plan
from optimizer.recommend.optimize import optimize as optimize_at
from optimizer.recommend.search import Level
from tests.optimizer_cases import accelerator, instance_of, problem, slo, space, workload
from tests.toy import toy_config

optimize = partial(optimize_at, level=Level.QUICK)

GIVEN = problem(
    workload=workload(20.0, ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))),
    slos=(slo(1.0, 0.03, 0.95),),
    space=space(tensor_parallel=(1, 2), max_num_seqs=(32, 128)),
)


@settings(deadline=None)
@given(st.floats(0.2, 0.99), st.floats(1.01, 5.0), st.floats(0.02, 0.98), st.floats(0.02, 0.98))
def test_a_more_certain_factor_is_larger(low: float, high: float, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert factor_at((low, high), less) <= factor_at((low, high), more) * (1 + 1e-12)
    assert factor_at((low, high), ENDS[0]) == pytest.approx(low)
    assert factor_at((low, high), ENDS[1]) == pytest.approx(high)
    assert factor_at((low, high), 0.5) == pytest.approx(1.0)


def test_what_was_never_measured_is_less_certain() -> None:
    known, guessed = (
        step_intervals(GIVEN, toy_config(accelerator(name), weight_dtype=GIVEN.weight_dtype))
        for name in ("H100", "MI300X")
    )
    for one, other in ((known.prefill, guessed.prefill), (known.decode, guessed.decode)):
        assert other[0] < one[0] < 1.0 < one[1] < other[1]


def test_every_time_is_scaled_and_nothing_else() -> None:
    instance = instance_of(GIVEN)
    assert at_quantile(instance, 0.5) is instance
    slow = at_quantile(instance, 0.95).tables
    found = step_intervals(GIVEN, toy_config(accelerator("H100"), weight_dtype=GIVEN.weight_dtype))
    np.testing.assert_allclose(slow.prefill_time, instance.tables.prefill_time * found.prefill[1])
    for name in ("decode_base", "attention_slope", "mixed_base", "full_base"):
        np.testing.assert_allclose(getattr(slow, name), getattr(instance.tables, name) * found.decode[1])
    np.testing.assert_array_equal(slow.kv_capacity, instance.tables.kv_capacity)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """The same problem planned with more and more confidence."""
    return [optimize(replace(GIVEN, confidence=level)) for level in (0.0, 0.6, 0.9)]


def test_confidence_is_paid_for(plans: list[Plan]) -> None:
    costs = [plan.cost_usd_per_hour or 0.0 for plan in plans]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    assert [plan.confidence for plan in plans] == [0.0, 0.6, 0.9]


def test_a_plan_for_the_slow_end_holds_there(plans: list[Plan]) -> None:
    bars = plans[-1].classes[0].error_bars
    assert bars is not None
    assert bars.attainment.low >= 0.95 - 1e-9
    assert bars.quantile == 0.95
    assert bars.ttft_s.high == pytest.approx(plans[-1].classes[0].ttft_s.p95, rel=1e-6)


def test_bars_hold_the_expected_value(plans: list[Plan]) -> None:
    bars, expected = plans[0].classes[0].error_bars, plans[0].classes[0]
    assert bars is not None
    for between, value in ((bars.ttft_s, expected.ttft_s.p95), (bars.tpot_s, expected.tpot_s.p95)):
        assert between.low < value
        assert between.high is None or value < between.high
    assert bars.attainment.high is not None
    assert bars.attainment.low <= expected.attainment <= bars.attainment.high
