"""Fleet problems of other tools: the formats are read as they are, and the proven optima are reached."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import melange_grid, splitwise_case
from benchmarks.reference.fleets import compare_melange
from benchmarks.vllm_2023 import host_times
from costmodel.engine import EngineOverhead

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))


@pytest.mark.skipif(not (DATA / "fleet").is_dir(), reason="reference fleets are not here")
def test_every_case_of_melange() -> None:
    for one in compare_melange(DATA / "fleet"):
        assert one.expected is not None
        assert one.cost == pytest.approx(one.expected, abs=1e-6)
        theirs = json.loads((DATA / "fleet" / f"{one.case}.melange.json").read_text())
        assert one.cost <= theirs["result"]["cost"] + 1e-9


# --- splitwise's clusters and corners of Mélange's grid, by our own search: the directions that they published

needs_data = pytest.mark.skipif(
    not (DATA / "serving/published.csv").is_file(), reason="the published figures are elsewhere: set PDPLAN_DATA"
)

NO_LIMIT = 10.0
"""Of the time per token [s]: none that any engine reaches."""


def host(tensor: int | None = None) -> EngineOverhead:
    return host_times(DATA, tensor)


@needs_data
@pytest.mark.parametrize(("isl", "osl", "sign"), [(25, 25, 1), (25, 2000, -1), (2000, 2000, -1)])
def test_corners_of_the_grid_have_their_sign(isl: int, osl: int, sign: int) -> None:
    assert sign * melange_grid.advantage(isl, osl, NO_LIMIT, host()) > 0.0


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
