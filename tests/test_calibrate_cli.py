"""Calibration from the outside: the catalog file that it writes, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from costmodel.errors import InputError
from pdplan.cli import cli
from pdplan.console import Console
from search_spaces.catalog import EfficiencyChange, efficiency_dict, load_catalog, overlay_text
from search_spaces.efficiency import _ALLOWED
from search_spaces.engines import load_engine_overhead, load_serving_policy
from search_spaces.loader import load_problem

MODEL = "Llama-3.1-8B"
FOLDER = Path(__file__).resolve().parent / "benchmark_results"


# The catalog file


def test_every_key_of_the_catalog_can_stand_in_an_overlay() -> None:
    assert set(EfficiencyChange.model_fields) == set(_ALLOWED)


def overlay(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "overlay.yaml"
    path.write_text(text, "utf-8")
    return path


def test_overlay_changes_only_what_it_says(tmp_path: Path) -> None:
    text = "accelerators:\n  H100: {efficiency: {gemm: {bf16: {compute: 0.5, launch_us: 9}}}}\n"
    changed, shipped = (load_catalog(path).accelerator("H100") for path in (overlay(tmp_path, text), None))
    new, old = changed.efficiency["gemm", "bf16"], shipped.efficiency["gemm", "bf16"]
    assert (new.compute, new.launch) == (0.5, pytest.approx(9e-6))
    assert (new.memory, new.compute_half) == (old.memory, old.compute_half)
    assert new.source.startswith("compute, launch_us from overlay.yaml; else ")
    rest = {pair: one for pair, one in changed.efficiency.items() if pair != ("gemm", "bf16")}
    assert {pair: (one.compute, one.memory, one.launch) for pair, one in rest.items()} == {
        pair: (one.compute, one.memory, one.launch)
        for pair, one in shipped.efficiency.items()
        if pair != ("gemm", "bf16")
    }
    assert changed.source == shipped.source


def test_overlay_of_a_relative_and_of_engines(tmp_path: Path) -> None:
    text = (
        "accelerators:\n"
        "  Mine: {like: H100, efficiency: {moe: {fp8: {memory: 0.4}}}}\n"
        "engines:\n"
        "  TensorRT-LLM: {step_overhead_us: 1000, arrival_ms: 3}\n"
    )
    catalog = load_catalog(overlay(tmp_path, text))
    assert catalog.accelerator("Mine").efficiency["moe", "fp8"].memory == 0.4
    assert catalog.accelerator("H100").efficiency["moe", "fp8"].memory != 0.4
    changed = load_engine_overhead("trtllm", catalog.engines)
    assert (changed.step, changed.per_request) == (pytest.approx(1e-3), load_engine_overhead("trtllm").per_request)
    assert load_serving_policy("trtllm", catalog.engines).arrival == pytest.approx(3e-3)
    assert load_engine_overhead("vllm", catalog.engines) == load_engine_overhead("vllm")


# The command


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, ["calibrate", *words], obj=Console("pdplan calibrate ..."))


@pytest.mark.parametrize(
    ("name", "gpu", "model"),
    [
        ("vllm_bench_serve.json", "H100", MODEL),
        ("guidellm_benchmarks.json", "H100", MODEL),
        ("inferencex_agg.json", "H200", "Llama-3.1-70B"),
        ("dynamo_self_benchmark.json", "H100", MODEL),
    ],
)
def test_results_of_runs_and_of_steps_become_a_catalog_file(tmp_path: Path, name: str, gpu: str, model: str) -> None:
    target = tmp_path / "overlay.yaml"
    done = invoke(str(FOLDER / name), "--model", model, "--gpu", gpu, "-o", str(target), "--json")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["schema"] == "pdplan.calibration/1"
    scale = value["scales"]["memory"]["scale"]
    new, old = (load_catalog(path).accelerator(gpu).efficiency["gemm", "bf16"] for path in (target, None))
    assert new.memory == pytest.approx(min(old.memory * scale, 1.0), rel=1e-3)
    assert new.launch == pytest.approx(old.launch, rel=1e-2)
    assert new.source.startswith("calibrated on ")
    assert value["error"]["after"]["median_abs"] <= value["error"]["before"]["median_abs"] + 0.02


def test_the_page_and_a_second_calibration_on_the_first(tmp_path: Path) -> None:
    target, second = tmp_path / "overlay.yaml", tmp_path / "second.yaml"
    words = (str(FOLDER / "vllm_bench_serve.json"), "--model", MODEL, "--gpu", "h100_sxm")
    done = invoke(*words, "-o", str(target))
    assert done.exit_code == 0, done.output
    assert "Llama-3.1-8B on H100, vllm: median error " in done.output
    assert "1,024 + 256 tokens, 4 in flight, TP1" in done.output
    again = invoke(*words, "--catalog", str(target), "-o", str(second), "--json")
    assert again.exit_code == 0, again.output
    scales = [one["scale"] for one in json.loads(again.stdout)["scales"].values()]
    assert scales == pytest.approx([1.0] * 4, abs=0.25)  # what is left is what the prior held back
    source = load_catalog(second).accelerator("H100").efficiency["gemm", "bf16"].source
    assert source.count("scaled from") == 1
    assert invoke(*words, "-o", str(target)).exit_code != 0  # an existing file is kept


def test_a_problem_takes_the_engine_of_its_catalog(tmp_path: Path) -> None:
    overlay(tmp_path, "engines: {vllm: {step_overhead_us: 1234}}\n")
    example = (Path(__file__).resolve().parents[1] / "search_spaces" / "init_template.yaml").read_text("utf-8")
    (tmp_path / "workload.yaml").write_text(example + "\ncatalog: overlay.yaml\n", "utf-8")
    problem = load_problem(tmp_path / "workload.yaml")
    assert load_engine_overhead(problem.engine, problem.engine_changes).step == pytest.approx(1234e-6)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("absent.json", "--model", MODEL, "--gpu", "H100"), "absent.json: cannot be read"),
        ((str(FOLDER / "vllm_bench_serve.json"), "--model", MODEL, "--gpu", "H1000"), "did you mean 'H100'"),
        (
            (str(FOLDER / "vllm_bench_serve.json"), "--model", MODEL, "--gpu", "H100", "--ep", "3"),
            "--ep 3 does not divide",
        ),
        (
            (str(FOLDER / "vllm_bench_serve.json"), "--model", MODEL, "--gpu", "H100", "--engine", "vlmm"),
            "did you mean 'vllm'",
        ),
        (
            (str(FOLDER / "inferencex_agg.json"), "--model", "Llama-3.1-70B", "--gpu", "H100"),
            "it ran on H200, not on H100",
        ),
    ],
)
def test_bad_command_lines(words: tuple[str, ...], sentence: str) -> None:
    done = invoke(*words)
    assert isinstance(done.exception, InputError)
    assert sentence in str(done.exception)


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


def test_an_overlay_keeps_zeros_over_an_accelerator_beneath(tmp_path: Path) -> None:
    figures = load_catalog().accelerator("L40S").efficiency
    flat = {pair: replace(each, depth_half=0.0, launch=0.0) for pair, each in figures.items() if pair[0] == "gemm"}
    entry = {"like": "L40S", "price_usd_per_hour": 1.0}
    text = overlay_text([], "Mine", efficiency_dict(flat), base={"accelerators": {"Mine": entry}})
    path = overlay(tmp_path, text)
    assert figures["gemm", "bf16"].depth_half > 0.0
    assert load_catalog(path).accelerator("Mine").efficiency["gemm", "bf16"].depth_half == 0.0
