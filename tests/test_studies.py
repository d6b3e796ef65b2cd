"""The published findings of docs/appendix/studies.md, on fewer requests: each keeps its direction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import batching, chunk_size, distserve
from benchmarks.studies.common import GOAL, poisson_trace
from costmodel.metric import limits_of
from costmodel.simulator import simulate
from costmodel.simulator.metrics import within


def test_gains_of_continuous_batching_grow_with_the_variation_of_outputs() -> None:
    found = [batching.gain(variation, 960, limited=False) for variation in (0.0, 0.5, 1.0)]
    gains = [one.throughput[1] / one.throughput[0] for one in found]
    assert gains[0] == pytest.approx(1.0, abs=0.01)
    assert gains[0] < gains[1] < gains[2]
    assert gains[1] > 2.0
    assert gains[2] < 5.0
    assert all(gain == pytest.approx(one.expected, rel=0.15) for gain, one in zip(gains, found, strict=True))


def test_chunks_trade_prefill_efficiency_for_even_gaps() -> None:
    points = [chunk_size.point(chunk, 250) for chunk in (128, 512, 2048)]
    assert points[0].efficiency < 0.6 < points[1].efficiency < points[2].efficiency < 1.0
    assert points[0].gaps[1] < points[1].gaps[1] < points[2].gaps[1]
    assert points[0].gaps[2] < points[1].gaps[2] < points[2].gaps[2]


CASES = {case.name: case for case in distserve.CASES}


def short_share(fleet: distserve.Fleet, case: distserve.Case, rate: float, data: Path) -> float:
    """Share of 600 requests, in two runs, that meet the case's SLO at this rate."""
    isl, osl = distserve.lengths_of(case.workload, 600, data)
    runs = (slice(0, 300), slice(300, 600))
    results = (simulate(poisson_trace((isl[run], osl[run]), rate, seed), fleet) for seed, run in enumerate(runs))
    return float(np.mean([within(result, case.slo).mean() for result in results]))


@pytest.mark.parametrize(("name", "rate"), [("D1", 1.1), ("D2", 0.41), ("D3", 0.15), ("D4", 0.5), ("D5", 0.3)])
def test_as_they_ran_it_distserve_serves_a_rate_that_vllm_does_not(name: str, rate: float, data: Path) -> None:
    case = CASES[name]
    fleets = distserve.as_published(case, data)
    share = {kind: short_share(fleet, case, rate * gpus, data) for kind, (fleet, gpus) in fleets.items()}
    assert share["whole"] < GOAL < share["split"]


def test_chunks_take_back_part_of_what_disaggregation_gains(data: Path) -> None:
    """D2 with the cost model at half the SLOs: the best placements of each kind at 0.8 req/s per GPU."""
    case, slo = CASES["D2"], limits_of(ttft=1.25, tpot=0.075)
    lengths = distserve.lengths_of(case.workload, 1_000, data)
    fleets = (
        (distserve.colocated(case.model, (8, 1), None, 2), 16),
        (distserve.colocated(case.model, (8, 1), 512, 2), 16),
        (distserve.disaggregated(case.model, ((2, 1), (8, 1)), (3, 1)), 14),
    )
    whole, chunked, split = (
        within(simulate(poisson_trace(lengths, 0.8 * gpus), fleet), slo).mean() for fleet, gpus in fleets
    )
    assert whole < chunked < split
    assert whole < GOAL < split
