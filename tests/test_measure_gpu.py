"""The fitting half of benchmarks/measure_gpu.py: known curves are found in synthetic timings, and the file loads.

The timing half needs torch and a GPU; here only what it says without them is tested.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.efficiency_curve import EfficiencyCurve, predict
from search_spaces.catalog import load_catalog

ROOT = Path(__file__).resolve().parents[1]
H100, H200 = (load_catalog().accelerator(name) for name in ("H100", "H200"))

CURVES = {
    ("gemm", "bf16"): EfficiencyCurve(compute=0.72, memory=0.83, launch=5e-6, compute_half=3e5, depth_half=120.0),
    ("gemm", "fp8"): EfficiencyCurve(compute=0.6, memory=0.75, launch=6e-6, compute_half=5e5, depth_half=200.0),
    ("attention_prefill", "bf16"): EfficiencyCurve(
        compute=0.8, memory=0.5, launch=8e-6, compute_half=800.0, depth_half=50.0, fill_half=9000.0
    ),
    ("attention_decode", "bf16"): EfficiencyCurve(compute=0.3, memory=0.85, launch=9e-6),
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module; its folder is on the path only while it is loaded."""
    spec = importlib.util.spec_from_file_location("measure_gpu", ROOT / "benchmarks" / "measure_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_gpu"] = module
    kept = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = kept
    return module


def synthetic(script: ModuleType, noise: float = 0.0) -> list[object]:
    """Timings of the whole plan under CURVES."""
    hardware = script.Hardware(dict(H100.peak_flops), H100.bandwidth, H100.scale_up.bandwidth)
    random = np.random.default_rng(7)
    timings = []
    for kernel_class, dtype, shape in script.plan(("bf16", "fp8")):
        one = script.Timing(kernel_class, dtype, shape, 1.0)
        samples = script.SAMPLES[kernel_class]([script._row(one)], hardware, dtype)
        assert samples.seconds.size == 1, "every kernel of the plan is one that the fit keeps"
        seconds = float(predict(CURVES[kernel_class, dtype], samples)[0]) * float(np.exp(random.normal(0.0, noise)))
        timings.append(replace(one, seconds=seconds))
    return timings


def session(script: ModuleType, noise: float = 0.0) -> object:
    timings = tuple(synthetic(script, noise))
    return script.Session(
        "NVIDIA H100 80GB HBM3", "torch 0, CUDA 0, driver 0", "2026-01-01", 2.9e12, 2e-6, timings, {"bf16": 7e14}
    )


@pytest.fixture(scope="module")
def fits(script: ModuleType) -> dict[tuple[str, str], object]:
    found: dict[tuple[str, str], object] = script.fit_timings(synthetic(script, noise=0.02), H100)
    return found


def test_known_curves_are_found(script: ModuleType, fits: dict[tuple[str, str], object]) -> None:
    """Of noisy timings: the noiseless times within 8 % everywhere, the parameters where the plan tells them apart."""
    hardware = script.Hardware(dict(H100.peak_flops), H100.bandwidth, H100.scale_up.bandwidth)
    assert set(fits) == set(CURVES)
    for key, truth in CURVES.items():
        curve = fits[key].curve  # type: ignore[attr-defined]
        rows = [script._row(one) for one in synthetic(script) if (one.kernel_class, one.dtype) == key]  # type: ignore[attr-defined]
        samples = script.SAMPLES[key[0]](rows, hardware, key[1])
        assert np.abs(predict(curve, samples) / samples.seconds - 1.0).max() < 0.08, key
        if key[0] == "gemm":
            assert curve.compute == pytest.approx(truth.compute, rel=0.06), key
        if key[0] in {"gemm", "attention_decode"}:
            assert curve.memory == pytest.approx(truth.memory, rel=0.03), key
            assert curve.launch == pytest.approx(truth.launch, rel=0.15), key


@pytest.mark.parametrize(("gpu", "sustained"), [("h100", 0.70), ("h200", 0.68)])
def test_the_kept_measurements_are_fitted_and_compared(
    script: ModuleType, gpu: str, sustained: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured on hardware: the fit meets them within 10 % (15 % for attention), and the power limit shows."""
    path = ROOT / "benchmarks" / "measured" / f"{gpu}.json"
    session = script.read_session(path)
    assert session.sustained["bf16"] / H100.peak_flops["bf16"] == pytest.approx(sustained, abs=0.01)
    for (kernel_class, _), fitted in script.fit_timings(session.timings, H100 if gpu == "h100" else H200).items():
        assert fitted.error < (0.06 if kernel_class == "gemm" else 0.16)
    assert script.main(["--load", str(path), "--compare"]) == 0
    rows = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if "absolute" in line]
    assert rows == ["gemm bf16", "gemm fp8", "attention_prefill bf16", "attention_decode bf16"]
