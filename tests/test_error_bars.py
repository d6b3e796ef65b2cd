"""Error bars: step times at the ends of their intervals, and plans made for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.loads.instance import ENDS, at_quantile, factor_at, step_intervals
from tests.optimizer_cases import accelerator, instance_of, problem, slo, space, workload
from tests.toy import toy_config

GIVEN = problem(
    workload=workload(20.0, ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))),
    slos=(slo(1.0, 0.03, 0.95),),
    space=space(tensor_parallel=(1, 2), max_num_seqs=(32, 128)),
)


@given(st.floats(0.2, 0.99), st.floats(1.01, 5.0), st.floats(0.02, 0.98), st.floats(0.02, 0.98))
def test_a_more_certain_factor_is_larger(low: float, high: float, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert factor_at((low, high), less) <= factor_at((low, high), more) * (1 + 1e-12)
    assert factor_at((low, high), ENDS[0]) == pytest.approx(low)
    assert factor_at((low, high), ENDS[1]) == pytest.approx(high)
    assert factor_at((low, high), 0.5) == pytest.approx(1.0)


def test_every_time_is_scaled_and_nothing_else() -> None:
    instance = instance_of(GIVEN)
    assert at_quantile(instance, 0.5) is instance
    slow = at_quantile(instance, 0.95).tables
    found = step_intervals(GIVEN, toy_config(accelerator("H100"), weight_dtype=GIVEN.weight_dtype))
    np.testing.assert_allclose(slow.prefill_time, instance.tables.prefill_time * found.prefill[1])
    for name in ("decode_base", "attention_slope", "mixed_base", "full_base"):
        np.testing.assert_allclose(getattr(slow, name), getattr(instance.tables, name) * found.decode[1])
    np.testing.assert_array_equal(slow.kv_capacity, instance.tables.kv_capacity)
