"""Fleet problems of other tools: the formats are read as they are, and the proven optima are reached."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import melange_grid, splitwise_case
from benchmarks.reference.fleets import compare_melange
from benchmarks.studies import batching, distserve
from benchmarks.studies.common import GOAL, poisson_trace, served
from benchmarks.vllm_2023 import host_times
from costmodel.simulator.metrics import within


def test_every_case_of_melange(data: Path) -> None:
    for one in compare_melange(data / "fleet"):
        assert one.cost == pytest.approx(one.expected, abs=1e-6)
        theirs = json.loads((data / "fleet" / f"{one.case}.melange.json").read_text())
        assert one.cost <= theirs["result"]["cost"] + 1e-9


# --- splitwise's clusters and corners of Mélange's grid, by our own search: the directions that they published

NO_LIMIT = 10.0
"""Of the time per token [s]: none that any engine reaches."""


@pytest.mark.parametrize(("isl", "osl", "sign"), [(25, 25, 1), (2000, 2000, -1)])
def test_corners_of_the_grid_have_their_sign(isl: int, osl: int, sign: int, data: Path) -> None:
    assert sign * melange_grid.advantage(isl, osl, NO_LIMIT, host_times(data, None)) > 0.0


def test_prompts_on_h100_and_tokens_on_a100_beat_machines_that_do_both_at_equal_power(data: Path) -> None:
    power, host = splitwise_case.POWER, host_times(data, 8)
    found = {trace: splitwise_case.compared(trace, 70.0, power, host) for trace in ("conversation", "code")}
    ratio = {}
    for trace, one in found.items():
        base = min(amount.amount for kind, amount in one.items() if kind.startswith("Baseline"))
        mixed = one["Splitwise-HA"]
        assert mixed.amount < base
        assert mixed.amount < one["Splitwise-HH"].amount
        ratio[trace] = mixed.prompt / mixed.token
    assert ratio["code"] > ratio["conversation"]


# --- the published findings of docs/appendix/studies.md, on fewer requests: each keeps its direction


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
