"""costmodel.workload: moments, scaling, and what no workload can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.workload import Workload, scale_rate

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


def test_scaling_changes_the_rate_only() -> None:
    doubled = scale_rate(MIX, 2.0)
    assert doubled.request_rate == 4.0
    assert replace(doubled, request_rate=2.0) == MIX
