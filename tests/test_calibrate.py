"""Scales of synthetic runs are found again; what cannot be is refused; the catalog file carries what was fitted."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from costmodel.calibration import (
    HUBER,
    Quantity,
    Scales,
    fit_scales,
    least_tpot,
    least_ttft,
)
from costmodel.errors import InputError
from costmodel.memory import weight_bytes_per_gpu
from search_spaces.benchmark_results import BenchmarkRun, Latency, Tool
from search_spaces.calibration import (
    Calibration,
    MeasuredRun,
    Setup,
    calibrate,
    measured,
    observations,
    predictor,
)
from search_spaces.catalog import load_catalog
from search_spaces.measurements import Layout
from search_spaces.models import load_model

CATALOG = load_catalog()
MODEL = "Llama-3.1-8B"
SETUP = Setup(CATALOG, MODEL, load_model(MODEL), CATALOG.accelerator("H100"), Layout(1, 1, 1, 1, 1), engine="vllm")
POINTS = [(isl, osl, load) for isl, osl in ((256, 256), (2048, 128), (8192, 64)) for load in (1.0, 8.0, 64.0)]


def run_at(isl: float, osl: float, load: float, **changes: object) -> BenchmarkRun:
    run = BenchmarkRun(
        where=f"run of {isl:g} + {osl:g} at {load:g}",
        tool=Tool.VLLM,
        isl=isl,
        osl=osl,
        ttft=Latency(1.0),
        tpot=Latency(1.0),
        concurrency=load,
        request_rate=math.inf,
        prompts=int(10 * load),
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def synthetic(
    scales: Scales, points: Sequence[tuple[float, float, float]] = POINTS, noise: float = 0.0
) -> list[BenchmarkRun]:
    """Runs with the times that the model predicts under `scales`."""
    runs = [run_at(*point) for point in points]
    rows = measured(runs, SETUP)[0]
    times = predictor(rows, CATALOG)(scales).reshape(-1, 2)
    times = times * np.exp(np.random.default_rng(1).normal(0.0, noise, times.shape))
    return [
        replace(run, ttft=Latency(float(ttft)), tpot=Latency(float(tpot)))
        for run, (ttft, tpot) in zip(runs, times, strict=True)
    ]


@pytest.fixture(scope="module")
def slower() -> Calibration:
    """A machine that is slower in every way, measured with 3 % noise."""
    truth = Scales(compute=0.85, memory=0.88, host=1.6, arrival=2.0)
    return calibrate(synthetic(truth, noise=0.03), SETUP, "synthetic")


def test_scales_of_a_slower_machine_are_found(slower: Calibration) -> None:
    found = slower.fit.scales
    assert slower.fit.free == ("memory", "compute", "host", "arrival")
    assert found.compute == pytest.approx(0.85, abs=0.05)
    assert found.memory == pytest.approx(0.88, abs=0.05)
    assert found.arrival == pytest.approx(2.0, rel=0.35)
    assert 1.0 < found.host < 2.0  # hardly seen: the prior holds it back


def test_linearised_held_out_error_is_near_the_refitted_one(slower: Calibration) -> None:
    """Leaving a row out for good gives about the error that the fit claims for it."""
    rows, seen = slower.rows, list(slower.seen)
    predict = predictor(rows, CATALOG)
    left = seen[-1].row
    kept = [index for index, one in enumerate(seen) if one.row != left]
    refit = fit_scales(lambda scales: predict(scales)[kept], [seen[index] for index in kept], slower.fit.free)
    gone = [index for index, one in enumerate(seen) if one.row == left]
    truth = np.log(predict(refit.scales)[gone] / np.array([seen[index].seconds for index in gone]))
    assert np.allclose(truth, slower.fit.held[gone], atol=0.02)


def test_one_outlier_does_not_decide() -> None:
    runs = synthetic(Scales(memory=0.9))
    bad = replace(runs[4], tpot=Latency((runs[4].tpot.mean or 0.0) * 5.0))
    found = calibrate([*runs[:4], bad, *runs[5:]], SETUP, "synthetic")
    assert found.fit.scales.memory == pytest.approx(0.9, abs=0.05)


# What physics forbids


def deployment_of(run: BenchmarkRun) -> MeasuredRun:
    row = measured([run], SETUP)[0][0]
    assert isinstance(row, MeasuredRun)
    return row


def test_least_tpot_is_weights_over_bandwidth() -> None:
    row = deployment_of(run_at(128, 64, 1.0))
    config, model = row.deployment.prefill, row.deployment.model
    embedding = model.vocab * model.hidden * 2.0  # looked up, not read
    weights = weight_bytes_per_gpu(model, config) - embedding
    assert least_tpot(model, config, 1.0, 1.0) == pytest.approx(0.95 * weights / config.accelerator.bandwidth, rel=0.01)


def test_least_ttft_is_flop_over_peak() -> None:
    row = deployment_of(run_at(2048, 64, 1.0))
    config, model = row.deployment.prefill, row.deployment.model
    flop = 2.0 * 7.5e9 * 2048  # parameters of the layers; the head runs once
    assert least_ttft(model, config, 2048) == pytest.approx(flop / config.accelerator.peak_flops["bf16"], rel=0.1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tpot": Latency(2e-3)}, r"run of 1024 .*: TPOT 2 ms is below 4\.\d+ ms, the least to read weights and KV"),
        ({"ttft": Latency(5e-3)}, r"TTFT 5 ms is below 1\d[.\d]* ms, the least for the FLOP of 1,024 tokens"),
        ({"request_throughput": 500.0, "ttft": Latency(0.02), "tpot": Latency()}, "500 requests/s of 1,024 prompt"),
        (
            {"ttft": Latency(80.0), "tpot": Latency(8.0), "request_throughput": 3.5},
            "in flight by Little's law, but the concurrency is 8; check the units",
        ),
        ({"ttft": Latency(8e-5), "tpot": Latency(8e-6), "request_throughput": 3.5}, "Little's law"),
        ({"ttft": Latency(80.0), "tpot": Latency(8.0)}, "most rows are as far off; check units"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    run = run_at(1024, 256, 8.0, **{"ttft": Latency(0.09), "tpot": Latency(0.009), **changes})
    with pytest.raises(InputError, match=sentence) as caught:
        calibrate([run], SETUP, "synthetic")
    assert "\n" not in str(caught.value)


def test_more_than_the_whole_bandwidth_is_refused() -> None:
    """Times just above the bare roofline at every load leave no room for launches: no kernel is that good."""
    runs = []
    for load in (1.0, 8.0, 32.0):
        row = deployment_of(run_at(256, 512, load))
        least = least_tpot(row.deployment.model, row.deployment.prefill, load, 512.0)
        runs.append(run_at(256, 512, load, ttft=Latency(), tpot=Latency(1.02 * least)))
    with pytest.raises(InputError, match=r"ask for 1\d\d % of the memory bandwidth of H100, more than there is"):
        calibrate([run for run in runs for _ in range(6)], SETUP, "synthetic")


# What is left out, and why


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"speculative": True}, "speculative decoding is not modeled"),
        ({"concurrency": None, "request_rate": math.inf}, "all prompts were sent at once"),
        ({"prompts": 10}, "10 prompts at concurrency 8 are one burst"),
        ({"model": "meta-llama/Llama-3.1-70B-Instruct"}, "it ran Llama-3.1-70B, not Llama-3.1-8B"),
        ({"concurrency": None, "request_rate": 2.0}, "neither a concurrency nor a throughput"),
        ({"ttft": Latency(), "tpot": Latency()}, "no TTFT and no TPOT"),
    ],
)
def test_unusable_runs_are_named(changes: dict[str, object], reason: str) -> None:
    rows, notes = measured([run_at(512, 64, 8.0, **changes)], SETUP)
    assert not rows
    assert reason in notes[-1].reason
    with pytest.raises(InputError, match="none of the 1 results can be used"):
        calibrate([run_at(512, 64, 8.0, **changes)], SETUP, "synthetic")


def test_ttft_of_arrivals_and_of_cached_prompts_is_not_fitted() -> None:
    rate = run_at(512, 64, 8.0, concurrency=None, request_rate=4.0, in_flight=5.0)
    cached = run_at(512, 64, 8.0, cached=0.5)
    rows, notes = measured([rate, cached], SETUP)
    assert all(math.isnan(row.ttft) for row in rows if isinstance(row, MeasuredRun))
    assert [one.quantity for one in observations(rows)] == [Quantity.TPOT] * 2
    assert len(notes) == 2


def test_engines_are_not_mixed() -> None:
    runs = [
        replace(run, engine=name) for run, name in zip(synthetic(Scales(), POINTS[:2]), ("vllm", "sglang"), strict=True)
    ]
    with pytest.raises(InputError, match=r"come from several engines \(vllm, sglang\)"):
        calibrate(runs, replace(SETUP, engine=None), "synthetic")


# What the model cannot explain


def measured_with(setup: Setup, factors: Sequence[float] = (1.0,) * len(POINTS)) -> list[BenchmarkRun]:
    """Runs with the times that the catalog predicts for a setup, those of each run times a factor."""
    runs = [run_at(*point) for point in POINTS]
    times = predictor(measured(runs, setup)[0], CATALOG)(Scales()).reshape(-1, 2) * np.array(factors)[:, None]
    return [
        replace(run, ttft=Latency(float(ttft)), tpot=Latency(float(tpot)))
        for run, (ttft, tpot) in zip(runs, times, strict=True)
    ]


def test_a_wrong_precision_is_refused_and_the_right_one_named() -> None:
    found = calibrate(measured_with(SETUP), replace(SETUP, weight_dtype="int4"), "x")
    assert found.fit.far == ("host",)  # it would take a CPU five times as slow
    assert found.refusal.startswith("no machine of this type explains these results: ")
    assert "the scale of host is" in found.refusal
    assert "median error of the catalog with --weight-dtype bf16 0 %" in found.refusal
    assert calibrate(measured_with(SETUP), SETUP, "x").refusal == ""


def test_times_that_contradict_physics_name_the_flag_that_does_not() -> None:
    with pytest.raises(InputError) as refused:
        calibrate(measured_with(replace(SETUP, weight_dtype="fp8")), SETUP, "x")
    assert "more than there is" in str(refused.value)
    assert "; median error of the catalog with --weight-dtype fp8 0 %" in str(refused.value)


def test_times_without_a_pattern_are_refused_though_no_scale_is_far() -> None:
    found = calibrate(measured_with(SETUP, (3, 1, 6, 1, 4, 1, 5, 1, 3)), SETUP, "x")
    assert found.fit.far == ()
    assert found.fit.strain > HUBER
    assert found.refusal == (
        "no machine of this type explains these results: the median error is 59 % after the fit; "
        "check --weight-dtype, --gpu and the layout"
    )
