"""Calibration from the outside: the catalog file that it writes, and a fit that explains nothing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from costmodel.errors import InputError
from pdplan.cli import cli
from pdplan.console import Console
from search_spaces.catalog import load_catalog

MODEL = "Llama-3.1-8B"
FOLDER = Path(__file__).resolve().parent / "benchmark_results"


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, ["calibrate", *words], obj=Console("pdplan calibrate ..."))


@pytest.mark.parametrize("name", ["vllm_bench_serve.json", "dynamo_self_benchmark.json"])
def test_results_of_runs_and_of_steps_become_a_catalog_file(tmp_path: Path, name: str) -> None:
    target = tmp_path / "overlay.yaml"
    done = invoke(str(FOLDER / name), "--model", MODEL, "--gpu", "H100", "-o", str(target), "--json")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["schema"] == "pdplan.calibration/1"
    scale = value["scales"]["memory"]["scale"]
    new, old = (load_catalog(path).accelerator("H100").efficiency["gemm", "bf16"] for path in (target, None))
    assert new.memory == pytest.approx(min(old.memory * scale, 1.0), rel=1e-3)
    assert new.launch == pytest.approx(old.launch, rel=1e-2)
    assert new.source.startswith("calibrated on ")
    assert value["error"]["after"]["median_abs"] <= value["error"]["before"]["median_abs"] + 0.02


def test_a_fit_that_explains_nothing_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    source = json.loads((FOLDER / "vllm_bench_serve.json").read_text("utf-8").splitlines()[0])
    times = ((1, 40, 8.0), (2, 900, 9.0), (4, 60, 60.0), (8, 3000, 8.0), (16, 70, 90.0), (32, 9000, 12.0))
    runs = tmp_path / "runs.jsonl"
    lines = [
        {
            **source,
            "max_concurrency": load,
            "num_prompts": 10 * load,
            "mean_ttft_ms": ttft,
            "mean_tpot_ms": tpot,
            "request_throughput": 1e3 * load / (ttft + 255 * tpot),
        }
        for load, ttft, tpot in times
    ]
    runs.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    target = tmp_path / "overlay.yaml"
    words = (str(runs), "--model", MODEL, "--gpu", "H100", "-o", str(target))
    done = invoke(*words, "--json")
    assert isinstance(done.exception, InputError)  # exit code 2
    assert "no machine of this type explains these results" in str(done.exception)
    assert "(--force keeps the fit)" in str(done.exception)
    assert len(str(done.exception)) < 300
    value = json.loads(done.stdout)
    assert value["refusal"] in str(done.exception)
    assert (value["explained"], value["overlay"]) == (False, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl"]
    forced = invoke(*words, "--force", "--json")
    assert forced.exit_code == 0, forced.output
    assert json.loads(forced.stdout)["overlay"] == str(target)
    assert load_catalog(target).accelerator("H100").name == "H100"
