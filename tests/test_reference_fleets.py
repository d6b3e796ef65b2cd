"""Fleet problems of other tools: the formats are read as they are, and the proven optima are reached."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import melange_grid, splitwise_case
from benchmarks.reference.fleets import compare_fleet_pd, compare_melange
from benchmarks.vllm_2023 import host_times
from costmodel.host import EngineOverhead

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))


def pair_case(**changes: Any) -> dict[str, Any]:
    """One prefill and one decode engine of NVIDIA, and a colocated one of AMD that is dearer."""
    return {
        "name": "pair",
        "rho": 0.5,
        "unit": "gpu",
        "demand": [1.0, 3.0],
        "buckets": [[128, 32], [512, 32]],
        "types": [
            {"name": "N", "price": 2.0, "inventory_nodes": 1, "domain": 0},
            {"name": "A", "price": 20.0, "inventory_nodes": 1, "domain": 1},
        ],
        "columns": [
            {"role": "p", "type": "N", "gpus": 1, "tp": 1, "pp": 1, "rate": [4.0, 6.0]},
            {"role": "d", "type": "N", "gpus": 2, "tp": 2, "pp": 1, "rate": [8.0, 8.0]},
            {"role": "c", "type": "A", "gpus": 1, "tp": 1, "pp": 1, "rate": [10.0, 10.0]},
        ],
        **changes,
    }


class TestMelange:
    @pytest.mark.skipif(not (DATA / "fleet").is_dir(), reason="reference fleets are not here")
    def test_every_case_at_hand(self) -> None:
        for one in compare_melange(DATA / "fleet"):
            assert one.expected is not None
            assert one.cost == pytest.approx(one.expected, abs=1e-6)
            theirs = json.loads((DATA / "fleet" / f"{one.case}.melange.json").read_text())
            assert one.cost <= theirs["result"]["cost"] + 1e-9


class TestPrefillAndDecode:
    def test_by_hand(self, tmp_path: Path) -> None:
        """Prompts need (1/4 + 3/6) / 0.5 = 1.5 engines, so 2; tokens (4/8) / 0.5 = 1: 2 x 2 $ + 4 $."""
        (tmp_path / "pair.json").write_text(json.dumps(pair_case()))
        (found,) = compare_fleet_pd(tmp_path)
        assert (found.case, found.cost, found.expected) == ("pair", pytest.approx(8.0), None)
        assert found.gap == pytest.approx(0.0, abs=1e-4)

    def test_whole_nodes_and_inventory(self, tmp_path: Path) -> None:
        """A node of eight N is 16 $; without it, one A carries 4/10 / 0.5 = 0.8 in a node for 160 $."""
        (tmp_path / "node.json").write_text(json.dumps(pair_case(name="node", unit="node")))
        none_left = pair_case(name="none", unit="node")
        none_left["types"][0]["inventory_nodes"] = 0
        (tmp_path / "none.json.gz").write_bytes(gzip.compress(json.dumps(none_left).encode()))
        assert [(one.case, one.cost) for one in compare_fleet_pd(tmp_path)] == [("node", 16.0), ("none", 160.0)]


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
