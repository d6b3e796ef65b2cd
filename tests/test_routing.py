"""How tokens fall onto experts: values by hand and limits that hold whatever the routing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.routing import (
    SAMPLED_SPREAD,
    busiest_expert_rank,
    imbalance,
    largest_of,
    sampled_spread,
    touched_experts,
)


def test_touched_experts_by_hand() -> None:
    assert touched_experts(8, 2, np.array([0.0, 1.0, 2.0, 1e6])) == pytest.approx([0.0, 2.0, 3.5, 8.0])
    assert touched_experts(4, 4, np.array([0.0, 3.0])).tolist() == [0, 4]
    table = touched_experts(np.array([8.0, 256.0]), np.array([2.0, 8.0]), np.array([1.0, 1.0]))
    assert table == pytest.approx([2.0, 8.0])


def test_a_spread_popularity_leaves_more_experts_idle() -> None:
    tokens = np.array([1.0, 4.0, 64.0, 1e7])
    even, spread = (touched_experts(128, 4, tokens, width) for width in (0.0, 1.0))
    assert even[0] == spread[0] == pytest.approx(4.0)
    assert np.all(spread[1:3] < even[1:3])
    assert spread[3] == pytest.approx(128.0, rel=1e-4)
    assert touched_experts(128, 4, tokens, 1e-6) == pytest.approx(even, rel=1e-4)
    reached = 63.0 * -np.log1p(-4 / 128)  # by hand: gamma of width 1 leaves 1 / (1 + x) idle
    assert spread[2] == pytest.approx(4 + 124 * (1 - 1 / (1 + reached)))


def test_the_tables_routing_spreads_out_as_the_batch_grows() -> None:
    widths = sampled_spread(np.array([1.0, 2.0, 8.0, 64.0, 4096.0]))
    assert widths[0] == pytest.approx(0, abs=1e-5)
    assert np.all(np.diff(widths) > 0)
    most = 0.8 * 8  # E[x] = (M - 1) / ln M, E[x^2] = (M^2 - 1) / (2 ln M) for a density of 1 / (x ln M)
    mean, square = (most - 1) / np.log(most), (most**2 - 1) / (2 * np.log(most))
    assert widths[2] == pytest.approx(SAMPLED_SPREAD * np.sqrt(square / mean**2 - 1))


def test_the_largest_of_normals_is_near_its_tables() -> None:
    """Expected maxima of standard normal samples (Teichroew 1956): 0.5642, 1.0294, 1.4236, 2.0697."""
    for count, expected in ((2, 0.5642), (4, 1.0294), (8, 1.4236), (32, 2.0697)):
        assert largest_of(count) == pytest.approx(expected, rel=0.05)
    assert largest_of(1) == 0


def test_one_token_wakes_one_expert_of_the_busiest_rank() -> None:
    ranks = np.array([[8.0]])
    routed = busiest_expert_rank(8, 2, np.array([[1.0]]), ranks, np.ones((1, 1)))
    assert (routed.rows[0, 0], routed.touched[0, 0], routed.elsewhere[0, 0]) == (1.0, 1.0, 1.0)


@given(
    experts=st.sampled_from([8, 64, 256]),
    per_token=st.sampled_from([1, 2, 8]),
    ranks=st.sampled_from([1, 2, 8]),
    skew=st.floats(0, 10),
    tokens=st.integers(1, 20_000),
)
@settings(deadline=None, max_examples=100)
def test_the_busiest_rank_has_at_least_its_share_and_no_more_than_there_is(
    experts: int, per_token: int, ranks: int, skew: float, tokens: int
) -> None:
    column = np.array([[float(ranks)]])
    factor = imbalance(experts, per_token, column, np.array([[largest_of(ranks)]]), np.array([[skew]]))
    assert 1 <= factor[0, 0] <= ranks
    routed = busiest_expert_rank(experts, per_token, np.array([[float(tokens)]]), column, factor)
    pairs = tokens * per_token
    assert pairs / ranks <= routed.rows[0, 0] * (1 + 1e-12)
    assert routed.rows[0, 0] <= pairs * (1 + 1e-12)
    assert routed.rows[0, 0] + routed.elsewhere[0, 0] == pytest.approx(pairs)
    assert 1 <= routed.touched[0, 0] <= experts / ranks


def test_one_rank_is_never_unbalanced() -> None:
    factor = imbalance(256, 8, np.ones((1, 1)), np.zeros((1, 1)), np.full((1, 1), 3.0))
    assert factor[0, 0] == 1.0
