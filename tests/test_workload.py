"""costmodel.workload: moments, scaling, and what no workload can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.workload import Workload, check_workload, scale_rate

MIX = Workload(
    isl=np.array([100.0, 1000.0]),
    osl=np.array([50.0, 10.0]),
    share=np.array([0.75, 0.25]),
    request_rate=2.0,
    burstiness=1.5,
    prefix_hit_share=0.2,
    max_tokens=1200,
)


def test_moments_by_hand() -> None:
    assert MIX.mean_isl == 325.0
    assert MIX.mean_osl == 40.0
    assert MIX.mean_isl_squared == 257_500.0
    assert MIX.mean_osl_squared == 1900.0
    assert MIX.mean_isl_osl == 6250.0


def test_scaling_changes_the_rate_only() -> None:
    doubled = scale_rate(MIX, 2.0)
    assert doubled.request_rate == 4.0
    assert replace(doubled, request_rate=2.0) == MIX


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_scaling_by_nonsense_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match="must be a finite number above 0"):
        scale_rate(MIX, factor)


def test_a_sound_workload_passes() -> None:
    check_workload(MIX)
    check_workload(replace(MIX, share=np.array([0.75, 0.2500005])))
    check_workload(replace(MIX, max_tokens=0, burstiness=0.0))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"share": np.array([0.5, 0.4])}, "w: the shares of the buckets sum to 0.9, they must sum to 1"),
        ({"share": np.array([1.5, -0.5])}, "w: share -0.5 of bucket 2 must be a finite number, 0 or more"),
        ({"isl": np.array([100.0, np.nan])}, "w: isl nan of bucket 2 must be a finite number, 1 tokens or more"),
        ({"osl": np.array([0.0, 10.0])}, "w: osl 0 of bucket 1 must be a finite number, 1 tokens or more"),
        ({"osl": np.array([5.0])}, "found lengths 2, 1 and 2"),
        ({"request_rate": -1.0}, "w: request_rate -1.0 must be a finite number above 0 req/s"),
        ({"request_rate": float("nan")}, "w: request_rate nan"),
        ({"burstiness": -0.1}, "w: burstiness -0.1 must be a finite number, 0 or more"),
        ({"prefix_hit_share": 1.0}, "w: prefix_hit_share 1.0 must be at least 0 and below 1"),
        ({"max_tokens": 500}, "w: max_tokens 500 is below the longest bucket, 1010 tokens"),
    ],
)
def test_an_unsound_workload_is_named(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        check_workload(replace(MIX, **change), "w")  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_an_empty_histogram_is_refused() -> None:
    none = np.array([])
    with pytest.raises(InputError, match="not empty"):
        check_workload(replace(MIX, isl=none, osl=none, share=none))
