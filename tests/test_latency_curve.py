"""The latency-throughput curve: rates around saturation, with what must hold on any of them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from optimizer.fleets.evaluate import boundary
from optimizer.verification.judge import LOADS, Curve, goodput, latency_curve
from tests.test_simulated_demand import fleet, instance

REQUESTS = 1500


@cache
def curve() -> Curve:
    return latency_curve(instance(), fleet(), requests=REQUESTS, tolerance=0.05)


def test_the_curve_goes_from_light_load_to_beyond_saturation() -> None:
    rates = np.array([point.rate for point in curve().points])
    assert np.all(np.diff(rates) > 0)
    assert rates[0] == pytest.approx(LOADS[0] * curve().saturation)
    assert rates[-1] == pytest.approx(LOADS[-1] * curve().saturation)
    assert curve().saturation in rates
    assert [point.overloaded for point in curve().points] == [rate > curve().saturation for rate in rates]


def test_latencies_rise_and_attainment_falls_with_the_rate() -> None:
    points = curve().points
    times = [point.e2e for point in points]
    assert all(later > 0.98 * earlier for earlier, later in pairwise(times))
    for k in range(2):
        shares = [point.classes[k].attainment.share for point in points]
        assert all(later <= earlier + 0.05 for earlier, later in pairwise(shares))
        assert all(point.classes[k].attainment.low <= shares[n] for n, point in enumerate(points))


def test_the_goodput_is_that_of_the_search_alone_and_no_point_beyond_it_holds() -> None:
    alone = goodput(instance(), fleet(), requests=REQUESTS, tolerance=0.05)
    assert curve().goodput.rate == alone.rate <= curve().saturation
    assert alone.rate in [point.rate for point in curve().points]
    assert alone.fails is not None
    looked_at = [point for point in curve().points if not alone.rate < point.rate < alone.fails]
    assert [point.proven for point in looked_at] == [point.rate <= alone.rate for point in looked_at]
    assert all(point.held for point in curve().points if point.proven)


def test_a_boundary_is_found_to_its_tolerance() -> None:
    low, high = boundary(lambda volume: volume <= 3.3, 0.01)
    assert low <= 3.3 < high
    assert high - low <= 0.01 * high
    assert boundary(lambda volume: False, 0.01)[0] == 0.0
    assert boundary(lambda volume: volume <= 0.3, 0.01)[0] == pytest.approx(0.3, rel=0.02)
