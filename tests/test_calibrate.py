"""Scales of synthetic runs are found again; what cannot be is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.calibration import Scales, above_physics, least_tpot, least_ttft
from costmodel.errors import InputError
from costmodel.memory import weight_bytes_per_gpu
from search_spaces.calibration import Calibration, Setup, calibrate, measured, nearer_precision, predictor
from search_spaces.catalog import load_catalog
from search_spaces.measurements import Latency, MeasuredRun, Workers
from search_spaces.models import load_model
from tests.bad_input_cases import refused
from tests.running import within

CATALOG = load_catalog()
MODEL = "Llama-3.1-8B"
SETUP = Setup(CATALOG, MODEL, load_model(MODEL), CATALOG.accelerator("H100"), Workers(), engine="vllm")
POINTS = [(isl, osl, load) for isl, osl in ((256, 256), (2048, 128), (8192, 64)) for load in (1.0, 8.0, 64.0)]


def run_at(isl: float, osl: float, load: float, **changes: object) -> MeasuredRun:
    run = MeasuredRun(
        where=f"run of {isl:g} + {osl:g} at {load:g}",
        source="vllm bench serve",
        isl=isl,
        osl=osl,
        ttft=Latency(1.0),
        tpot=Latency(1.0),
        concurrency=load,
        request_rate=math.inf,
        prompts=int(10 * load),
    )
    return replace(run, **changes)


def synthetic(scales: Scales, noise: float = 0.0, setup: Setup = SETUP) -> list[MeasuredRun]:
    """Runs with the times that the model predicts under `scales`."""
    runs = [run_at(*point) for point in POINTS]
    times = predictor(measured(runs, setup)[0], CATALOG)(scales).reshape(-1, 2)
    times = times * np.exp(np.random.default_rng(1).normal(0.0, noise, times.shape))
    return [
        replace(run, ttft=Latency(float(ttft)), tpot=Latency(float(tpot)))
        for run, (ttft, tpot) in zip(runs, times, strict=True)
    ]


def test_scales_of_a_slower_machine_are_found() -> None:
    """One that is slower in every way, measured with 3 % noise."""
    truth = Scales(compute=0.85, memory=0.88, host=1.6, arrival=2.0)
    slower = calibrate(synthetic(truth, noise=0.03), SETUP, "synthetic")
    found = slower.fit.scales
    assert slower.fit.free == ("memory", "compute", "host", "arrival")
    assert found.compute == pytest.approx(0.85, abs=0.05)
    assert found.memory == pytest.approx(0.88, abs=0.05)
    assert found.arrival == pytest.approx(2.0, rel=0.35)
    assert 1.0 < found.host < 2.0  # hardly seen: the prior holds it back


# What physics forbids


def test_least_tpot_is_weights_over_bandwidth() -> None:
    row = measured([run_at(128, 64, 1.0)], SETUP)[0][0].deployment
    config, model = row.prefill, row.model
    embedding = model.vocab * model.hidden * 2.0  # looked up, not read
    weights = weight_bytes_per_gpu(model, config) - embedding
    assert least_tpot(model, config, 1.0, 1.0) == pytest.approx(0.95 * weights / config.accelerator.bandwidth, rel=0.01)


def test_least_ttft_is_flop_over_peak() -> None:
    row = measured([run_at(2048, 64, 1.0)], SETUP)[0][0].deployment
    config, model = row.prefill, row.model
    flop = 2.0 * 7.5e9 * 2048  # parameters of the layers; the head runs once
    assert least_ttft(model, config, 2048) == pytest.approx(flop / config.accelerator.peak_flops["bf16"], rel=0.1)


@pytest.mark.parametrize(
    ("name", "kernel", "most"), [(MODEL, "gemm", 1.05), ("Mixtral-8x7B", "moe", 1.05 * 0.95 / 0.6)]
)
@pytest.mark.parametrize("figure", ["compute", "memory"])
def test_kernels_that_carry_the_weights_are_no_faster_than_the_data_sheet(
    name: str, kernel: str, most: float, figure: str
) -> None:
    """Traffic may leave some experts untouched, so that theirs may seem faster."""
    gpu, model = CATALOG.accelerator("H100"), load_model(name)
    edge = most / getattr(gpu.efficiency[kernel, "bf16"], figure)
    beyond, below = (Scales(**{figure: factor * edge}) for factor in (1.01, 0.99))
    assert above_physics(gpu, model, [(kernel, "bf16")], beyond) == {figure: pytest.approx(1.01 * most)}
    assert not above_physics(gpu, model, [(kernel, "bf16")], below)
    assert not above_physics(gpu, model, [("attention_prefill", "bf16")], beyond)
    own = replace(gpu.efficiency[kernel, "bf16"], **{figure: 1.01 * most})  # the catalog's figure, not the fit's
    assert not above_physics(replace(gpu, efficiency={(kernel, "bf16"): own}), model, [(kernel, "bf16")], Scales())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tpot": Latency(2e-3)}, r"run of 1024 .*: TPOT 2 ms is below 4\.\d+ ms, the least to read weights and KV"),
        ({"ttft": Latency(5e-3)}, r"TTFT 5 ms is below 1\d[.\d]* ms, the least for the FLOP of 1,024 tokens"),
        (
            {"ttft": Latency(80.0), "tpot": Latency(8.0), "request_throughput": 3.5},
            "in flight by Little's law, but the concurrency is 8; check the units",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    run = run_at(1024, 256, 8.0, **{"ttft": Latency(0.09), "tpot": Latency(0.009), **changes})
    with pytest.raises(InputError, match=sentence) as caught:
        calibrate([run], SETUP, "synthetic")
    assert "\n" not in str(caught.value)


# What is left out, and why


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"speculative": True}, "it drafts tokens"),
        ({"prompts": 10}, "10 prompts at concurrency 8 are one burst"),
        ({"model": "meta-llama/Llama-3.1-70B-Instruct"}, "it ran Llama-3.1-70B, not Llama-3.1-8B"),
    ],
)
def test_unusable_runs_are_named(changes: dict[str, object], reason: str) -> None:
    rows, notes = measured([run_at(512, 64, 8.0, **changes)], SETUP)
    assert not rows
    assert reason in notes[-1].reason
    with pytest.raises(InputError, match=r"^the only result cannot be used: "):
        calibrate([run_at(512, 64, 8.0, **changes)], SETUP, "synthetic")


# --- the catalog file that `pdplan calibrate` writes, and a fit that explains nothing


FOLDER = Path(__file__).resolve().parent / "benchmark_results"


MACHINE = ("--model", MODEL, "--gpu", "H100")


@pytest.mark.parametrize(
    ("name", "lines", "fitted"),
    [
        ("vllm_bench_serve.json", 1, ["memory", "compute"]),  # a TTFT and a TPOT
        ("dynamo_self_benchmark.json", None, ["memory", "compute", "host"]),  # prefill steps, several decode steps
    ],
)
def test_results_of_runs_and_of_steps_become_a_catalog_file(
    tmp_path: Path, name: str, lines: int | None, fitted: list[str]
) -> None:
    target, result = tmp_path / "overlay.yaml", tmp_path / name
    result.write_text("".join((FOLDER / name).read_text("utf-8").splitlines(keepends=True)[:lines]), "utf-8")
    done = within("calibrate", result, *MACHINE, "-o", target, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["schema"] == "pdplan.calibration/1"
    assert [name for name, item in value["scales"].items() if item["fitted"]] == fitted
    scale = value["scales"]["memory"]["scale"]
    new, old = (load_catalog(path).accelerator("H100").efficiency["gemm", "bf16"] for path in (target, None))
    assert new.memory == pytest.approx(min(old.memory * scale, 1.0), rel=1e-3)
    assert new.launch == pytest.approx(old.launch, rel=1e-2)
    assert new.source.startswith("calibrated on ")
    assert value["error"]["after"]["median_abs"] <= value["error"]["before"]["median_abs"] + 0.02
    assert (value["error"]["held"] is None) == (value["rows"] == 1)


def test_one_row_has_no_error_of_rows_left_out(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text((FOLDER / "vllm_bench_serve.json").read_text("utf-8").splitlines()[0], "utf-8")
    page = within("calibrate", result, *MACHINE).stdout
    assert "A single row does not show how well the fit predicts others." in page
    assert "held out" not in page
    said = "Llama-3.1-8B cannot run on H100: TP 3 does not divide 32 attention heads\n"
    assert refused(within("calibrate", result, *MACHINE, "--tp", 3)) == said


def test_fp4_is_advised_only_where_it_runs() -> None:
    """Times of FP4 weights: on H100, which has no units for them, INT4 explains them as well."""
    for gpu, dtype in (("H100", "int4"), ("B200", "fp4")):
        setup = replace(SETUP, accelerator=CATALOG.accelerator(gpu))
        runs = synthetic(Scales(), setup=replace(setup, weight_dtype="fp4"))
        advice = nearer_precision(runs, replace(setup, weight_dtype="bf16"), 2 * len(runs))
        assert advice.startswith(f"with --weight-dtype {dtype} ")


def test_a_fit_that_explains_nothing_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Calibration] = []

    def fit_once(*asked: Any) -> Calibration:
        """With --force the fit is the same."""
        if not fits:
            fits.append(calibrate(*asked))
        return fits[0]

    monkeypatch.setattr("search_spaces.calibration.calibrate", fit_once)
    source = json.loads((FOLDER / "vllm_bench_serve.json").read_text("utf-8").splitlines()[0])
    times = ((8, 40, 8.0), (8, 900, 9.0), (8, 60, 60.0), (8, 3000, 8.0), (8, 70, 90.0), (8, 9000, 12.0))
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
    words = ("calibrate", runs, *MACHINE, "-o", target)
    done = within(*words, "--json")
    assert (done.returncode, len(done.stderr) < 300) == (2, True)
    assert "no machine of this type explains these results" in done.stderr
    assert "(--force keeps the fit)" in done.stderr
    value = json.loads(done.stdout)
    assert value["refusal"] in done.stderr
    assert (value["explained"], value["overlay"]) == (False, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl"]
    forced = within(*words, "--force", "--json")
    assert forced.returncode == 0, forced.stderr
    assert json.loads(forced.stdout)["overlay"] == str(target)
    assert load_catalog(target).accelerator("H100").name == "H100"
