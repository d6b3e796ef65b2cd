"""Lengths of requests: exact means, closed-form moments, and buckets that keep what a plan depends on."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.workload import Buckets, Lengths, coarsen, joint

Z99 = NormalDist().inv_cdf(0.99)


def of_mean(mean: float, sigma: float, buckets: int = 16) -> Lengths:
    """A log-normal of a mean [token] and a standard deviation of the logarithm [1]."""
    median = mean / math.exp(sigma**2 / 2)
    return Lengths.lognormal(median=median, p99=median * math.exp(Z99 * sigma), buckets=buckets)


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("buckets", [4, 16])
def test_lognormal_keeps_its_mean(sigma: float, buckets: int) -> None:
    made = of_mean(20_000, sigma, buckets)
    assert made.mean == pytest.approx(20_000, rel=1e-9)
    assert made.share.sum() == pytest.approx(1.0, rel=1e-12)
    assert made.value.size == (buckets if sigma else 1)


def test_maximum_cuts_as_an_engine_does() -> None:
    """E[min(x, m)] of a log-normal in closed form, against the buckets."""
    sigma, limit = 1.0, 2000.0
    mu = math.log(1000)
    cut = (math.log(limit) - mu) / sigma
    normal = NormalDist()
    expected = 1000 * math.exp(sigma**2 / 2) * normal.cdf(cut - sigma) + limit * (1 - normal.cdf(cut))
    made = Lengths.lognormal(median=1000, p99=1000 * math.exp(Z99 * sigma), maximum=limit)
    assert made.mean == pytest.approx(expected, rel=1e-6)
    assert made.value.max() == pytest.approx(limit)
    assert made.longest == limit


def test_quantiles_are_met() -> None:
    points = {0.5: 600, 0.9: 2400, 0.99: 5500, 1.0: 6000}
    made = Lengths.from_quantiles(points, buckets=200)
    for probability, tokens in points.items():
        below = float(made.share[made.value <= tokens].sum())
        assert below == pytest.approx(probability, abs=0.01)
    assert made.longest == 6000
    assert made.value.max() <= 6000
    tail = Lengths.from_quantiles({0.5: 600, 0.9: 2400, 0.99: 5500}, buckets=2000)
    beyond = tail.share[tail.value > 5500 * (5500 / 2400) ** (0.764 / 1.045)]  # normal scores 3.090, 2.326 and 1.282
    assert float(beyond.sum()) == pytest.approx(0.001, abs=1e-4)


def test_joint_is_the_independent_product() -> None:
    isl, osl = of_mean(2000, 1.0), of_mean(300, 0.6)
    made = joint(isl, osl, 48)
    assert made.isl.size == 48
    assert float(made.share @ made.isl) == pytest.approx(isl.mean, rel=1e-9)
    assert float(made.share @ made.osl) == pytest.approx(osl.mean, rel=1e-9)
    assert float(made.share @ (made.isl * made.osl)) == pytest.approx(isl.mean * osl.mean, rel=0.01)
    small = joint(Lengths.fixed(7), osl, 400)
    np.testing.assert_allclose(small.osl, osl.value)
    np.testing.assert_allclose(small.share, osl.share)


@given(
    cells=st.lists(
        st.tuples(st.integers(1, 100_000), st.integers(1, 4000), st.integers(1, 1000)), min_size=1, max_size=200
    ),
    target=st.integers(1, 60),
)
def test_coarsening_keeps_share_and_means(cells: list[tuple[int, int, int]], target: int) -> None:
    isl, osl, weight = np.array(cells, dtype=np.float64).T
    made = coarsen(isl, osl, weight, target)
    total = weight.sum()
    tails = 3 if target >= 8 else 1
    assert made.isl.size <= max(target, tails)
    assert made.share.sum() == pytest.approx(1.0, abs=1e-12)
    assert float(made.share @ made.isl) == pytest.approx(float(weight @ isl) / total, rel=1e-9)
    assert float(made.share @ made.osl) == pytest.approx(float(weight @ osl) / total, rel=1e-9)
    assert np.all(made.share > 0)
    # Merging can only lose spread.
    assert float(made.share @ made.isl**2) <= float(weight @ isl**2) / total * (1 + 1e-9)


def test_the_tail_keeps_buckets_of_its_own() -> None:
    isl = np.arange(1.0, 1001.0)
    made: Buckets = coarsen(isl, np.ones_like(isl), np.ones_like(isl), 8)
    tail = made.isl > 990
    assert float(made.share[tail].sum()) == pytest.approx(0.01)
