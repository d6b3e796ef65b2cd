"""Splitwise's clusters and corners of Mélange's grid, by our own search: the directions that they published."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import melange_grid, splitwise_case
from benchmarks.vllm_2023 import host_times, one_gpu_host_times
from costmodel.host import EngineOverhead

DATA = Path(os.environ.get("PDPLAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "serving/published.csv").is_file(), reason="the published figures are elsewhere: set PDPLAN_DATA"
)

NO_LIMIT = 10.0
"""Of the time per token [s]: none that any engine reaches."""


def host(tensor: int | None = None) -> EngineOverhead:
    return host_times(DATA, tensor)


@needs_data
def test_host_times_of_2023_are_those_of_slow_steps() -> None:
    """Splitwise's machines took 45 ms (A100) and 30 ms (H100) a step of one request, of which kernels take 9 and 6."""
    found = host(8)
    assert 0.02 < found.step < 0.036
    assert 1e-4 < found.per_request < 5e-4


@needs_data
def test_the_host_takes_longer_the_more_gpus_it_drives() -> None:
    one, two, eight = one_gpu_host_times(DATA).step, host(2).step, host(8).step
    assert 0.003 < one < two < eight


@needs_data
@pytest.mark.parametrize(("isl", "osl", "sign"), [(25, 25, 1), (25, 2000, -1), (2000, 2000, -1)])
def test_corners_of_the_grid_have_their_sign(isl: int, osl: int, sign: int) -> None:
    assert sign * melange_grid.advantage(isl, osl, NO_LIMIT, host()) > 0.0


@needs_data
@pytest.mark.parametrize(("isl", "osl", "sign"), [(25, 25, 1), (2000, 2000, -1)])
def test_few_requests_measure_less_of_what_the_larger_memory_is_worth(isl: int, osl: int, sign: int) -> None:
    few, many = melange_grid.measured(isl, osl, host()), melange_grid.advantage(isl, osl, NO_LIMIT, host())
    assert sign * few > 0.0
    assert few >= many


@needs_data
def test_the_longer_the_request_the_better_the_larger_gpu() -> None:
    row = [melange_grid.advantage(isl, 250, NO_LIMIT, host()) for isl in (25, 500, 2000)]
    assert row == sorted(row, reverse=True)


@needs_data
def test_prompts_on_h100_and_tokens_on_a100_beat_machines_that_do_both_at_equal_power() -> None:
    found = {
        trace: splitwise_case.compared(trace, 70.0, splitwise_case.POWER, host(8)) for trace in ("conversation", "code")
    }
    ratio = {}
    for trace, one in found.items():
        base = min(amount.amount for kind, amount in one.items() if kind.startswith("Baseline"))
        mixed = one["Splitwise-HA"]
        assert mixed.amount < base
        assert mixed.amount < one["Splitwise-HH"].amount
        ratio[trace] = mixed.prompt / mixed.token
    assert ratio["code"] > ratio["conversation"]


def test_a_tie_of_theirs_has_no_sign_to_miss() -> None:
    assert [melange_grid.verdict(*pair) for pair in ((3.0, 20.0), (-30.0, 2.0), (-3.0, 20.0))] == [" ", "=", "!"]
