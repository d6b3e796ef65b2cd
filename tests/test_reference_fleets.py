"""Fleet problems of other tools: the formats are read as they are, and the proven optima are reached."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import melange_grid, splitwise_case
from benchmarks.reference.fleet_cases import fleet_pd_matrices, melange_matrices
from benchmarks.reference.fleet_schemas import MelangeCase, PairCase
from benchmarks.reference.fleets import compare_fleet_pd, compare_melange
from benchmarks.vllm_2023 import host_times, one_gpu_host_times
from costmodel.errors import InputError
from costmodel.host import EngineOverhead

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))

EXAMPLE: dict[str, Any] = {
    "gpu_info": {
        "small": {"cost": 1.01, "tputs": [[2, 1], [5, 0]]},
        "large": {"cost": 3.67, "tputs": [[20, 20], [40, 20]]},
    },
    "workload_distribution": [[0.2, 0.0], [0.5, 0.3]],
    "total_request_rate": 30.0,
    "slice_factor": 1,
}


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
    def test_buckets_that_nobody_asks_for_are_left_out_and_zero_throughput_serves_nothing(self) -> None:
        matrices = melange_matrices(MelangeCase.model_validate(EXAMPLE))
        np.testing.assert_allclose(matrices.need[:, 0], [[3.0, 3.0, np.inf], [0.3, 0.375, 0.45]])

    def test_by_hand(self, tmp_path: Path) -> None:
        """A large one would be used 1.125 times; one small one takes a third of the second bucket: 0.375 / 3 less."""
        (tmp_path / "a.input.json").write_text(json.dumps(EXAMPLE))
        (found,) = compare_melange(tmp_path)
        assert found.cost == pytest.approx(3.67 + 1.01)
        assert found.expected is None
        assert found.bound == pytest.approx(found.cost)

    def test_a_bucket_of_next_to_nobody_is_served_too(self, tmp_path: Path) -> None:
        """Only the dear type serves the second bucket; a solver would take a billionth of an instance for none."""
        types = {"cheap": {"cost": 1.0, "tputs": [[9.0, 0.0]]}, "dear": {"cost": 5.0, "tputs": [[1.0, 1.0]]}}
        case = {"gpu_info": types, "workload_distribution": [[1.0, 1e-12]], "total_request_rate": 18.0}
        (tmp_path / "rare.input.json").write_text(json.dumps(case))
        (found,) = compare_melange(tmp_path)
        assert found.cost == pytest.approx(7.0)

    @pytest.mark.parametrize(("rate", "cost"), [(0.0, 0.0), (1e-6, 3.67), (3000.0, 114 * 3.67)])
    def test_rates_of_all_sizes(self, tmp_path: Path, rate: float, cost: float) -> None:
        """3,000 requests per second take 112.5 large ones, or 0.5 of a large one less and two small ones."""
        (tmp_path / "rate.input.json").write_text(json.dumps(EXAMPLE | {"total_request_rate": rate}))
        (found,) = compare_melange(tmp_path)
        assert found.cost is not None
        assert found.cost <= cost + 1e-6
        assert found.bound == pytest.approx(found.cost, abs=1e-6)

    def test_where_nothing_serves_a_bucket_there_is_neither_fleet_nor_bound(self, tmp_path: Path) -> None:
        types = {"only": {"cost": 1.0, "tputs": [[9.0, 0.0]]}}
        case = {"gpu_info": types, "workload_distribution": [[0.5, 0.5]], "total_request_rate": 1.0}
        (tmp_path / "none.input.json").write_text(json.dumps(case))
        (found,) = compare_melange(tmp_path)
        assert (found.cost, found.bound) == (None, None)  # both have a form in JSON, which infinity has not

    def test_the_proven_optimum_is_read_where_there_is_one(self, tmp_path: Path) -> None:
        (tmp_path / "b.input.json.gz").write_bytes(gzip.compress(json.dumps(EXAMPLE).encode()))
        (tmp_path / "b.expected.json").write_text(json.dumps({"fractional_optimal_cost": 4.68}))
        (found,) = compare_melange(tmp_path)
        assert (found.case, found.expected) == ("b", 4.68)
        assert found.cost == pytest.approx(found.expected)

    def test_many_buckets_and_types(self, tmp_path: Path) -> None:
        """400 buckets x 12 types are proven; the seconds are for the benchmark."""
        case = synthetic(400, 12, seed=1)
        (tmp_path / "big.input.json").write_text(json.dumps(case))
        (found,) = compare_melange(tmp_path)
        assert found.cost is not None
        assert found.bound == pytest.approx(found.cost, rel=1e-9)

    @pytest.mark.skipif(not (DATA / "fleet").is_dir(), reason="reference fleets are not here")
    def test_every_case_at_hand(self) -> None:
        for one in compare_melange(DATA / "fleet"):
            assert one.expected is not None
            assert one.cost == pytest.approx(one.expected, abs=1e-6)
            theirs = json.loads((DATA / "fleet" / f"{one.case}.melange.json").read_text())
            assert one.cost <= theirs["result"]["cost"] + 1e-9


def synthetic(buckets: int, types: int, seed: int) -> dict[str, Any]:
    """GPU types of random price whose throughput falls with length, each with strengths of its own."""
    random = np.random.default_rng(seed)
    side = round(buckets**0.5)
    length = np.geomspace(1.0, 60.0, side)
    grid = 1.0 / (length[:, None] ** 0.8 + 0.5 * length[None, :] ** 0.9)
    price = np.round(random.uniform(0.7, 8.0, types), 2)
    speed = price * random.uniform(4.0, 7.0, types)
    shape = random.uniform(0.6, 1.4, (types, side, side))
    return {
        "gpu_info": {
            f"gpu{t}": {"cost": float(price[t]), "tputs": (speed[t] * shape[t] * grid).round(6).tolist()}
            for t in range(types)
        },
        "workload_distribution": random.dirichlet(np.ones(side * side)).reshape(side, side).tolist(),
        "total_request_rate": 60.0,
        "slice_factor": 1,
    }


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

    def test_one_maker_does_not_hand_over_to_another(self) -> None:
        matrices = fleet_pd_matrices(PairCase.model_validate(pair_case()))
        assert matrices.domain.tolist() == [0, 0, 1]
        np.testing.assert_array_equal(matrices.hand_over, np.eye(2, dtype=np.bool_))

    def test_no_demand_costs_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "idle.json").write_text(json.dumps(pair_case(demand=[0.0, 0.0])))
        (found,) = compare_fleet_pd(tmp_path)
        assert (found.cost, found.bound, found.gap) == (0.0, 0.0, 0.0)

    def test_no_fleet_is_said_so(self, tmp_path: Path) -> None:
        case = pair_case()
        for kind in case["types"]:
            kind["inventory_nodes"] = 0
        (tmp_path / "x.json").write_text(json.dumps(case))
        (found,) = compare_fleet_pd(tmp_path)
        assert found.cost is None
        assert "no fleet" in found.line()


class TestFiles:
    def test_json_and_lines(self, tmp_path: Path) -> None:
        (tmp_path / "a.input.json").write_text(json.dumps(EXAMPLE))
        command = [sys.executable, "-m", "benchmarks.reference", "melange", str(tmp_path)]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
        (row,) = json.loads(done.stdout)
        assert set(row) == {"case", "cost", "expected", "bound", "seconds"}

    def test_a_folder_without_cases_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"has no file that ends in \.input\.json"):
            list(compare_melange(tmp_path))
        with pytest.raises(InputError, match="is no folder"):
            list(compare_fleet_pd(tmp_path / "nowhere"))

    def test_a_file_that_is_no_case_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("[1]")
        with pytest.raises(InputError, match="holds a list, but a case is an object"):
            list(compare_fleet_pd(tmp_path))
        (tmp_path / "x.json").write_text("{")
        with pytest.raises(InputError, match="is not JSON"):
            list(compare_fleet_pd(tmp_path))
        (tmp_path / "x.json").unlink()
        (tmp_path / "x.json.gz").write_bytes(b"{}")
        with pytest.raises(InputError, match="cannot be read: Not a gzipped file"):
            list(compare_fleet_pd(tmp_path))

    @pytest.mark.parametrize(("peer", "name"), [("melange", "x.input.json"), ("fleet_pd", "x.json")])
    def test_a_malformed_case_is_one_sentence_and_exit_code_2(self, tmp_path: Path, peer: str, name: str) -> None:
        (tmp_path / name).write_text("{}")
        command = [sys.executable, "-m", "benchmarks.reference", peer, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"error: {tmp_path / name}: ")
        assert done.stderr.endswith(": is missing\n")
        assert done.stderr.count("\n") == 1


# --- splitwise's clusters and corners of Mélange's grid, by our own search: the directions that they published

needs_data = pytest.mark.skipif(
    not (DATA / "serving/published.csv").is_file(),
    reason="the published figures are elsewhere: set PDPLAN_DATA",
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
