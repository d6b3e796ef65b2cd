"""The published findings of docs/appendix/studies.md, on fewer requests: each keeps its direction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import batching, distserve
from benchmarks.studies.common import GOAL, poisson_trace, served
from costmodel.simulator.metrics import within


def test_gains_of_continuous_batching_grow_with_the_variation_of_outputs() -> None:
    found = [batching.gain(variation, 960, limited=False) for variation in (0.0, 0.5, 1.0)]
    gains = [one.throughput[1] / one.throughput[0] for one in found]
    assert gains[0] == pytest.approx(1.0, abs=0.01)
    assert gains[0] < gains[1] < gains[2]
    assert gains[1] > 2.0
    assert gains[2] < 5.0
    assert all(gain == pytest.approx(one.expected, rel=0.15) for gain, one in zip(gains, found, strict=True))


CASES = {case.name: case for case in distserve.CASES}


def short_share(fleet: distserve.Fleet, case: distserve.Case, rate: float, data: Path) -> float:
    """Share of 600 requests, in two runs, that meet the case's SLO at this rate."""
    isl, osl = distserve.lengths_of(case.workload, 600, data)
    runs = (slice(0, 300), slice(300, 600))
    results = (served(poisson_trace((isl[run], osl[run]), rate, seed), fleet) for seed, run in enumerate(runs))
    return float(np.mean([within(result, case.slo).mean() for result in results]))


@pytest.mark.parametrize(("name", "rate"), [("D1", 1.1), ("D2", 0.41), ("D3", 0.15), ("D4", 0.5), ("D5", 0.3)])
def test_as_they_ran_it_distserve_serves_a_rate_that_vllm_does_not(name: str, rate: float, data: Path) -> None:
    case = CASES[name]
    fleets = distserve.as_published(case, data)
    share = {kind: short_share(fleet, case, rate * gpus, data) for kind, (fleet, gpus) in fleets.items()}
    assert share["whole"] < GOAL < share["split"]
