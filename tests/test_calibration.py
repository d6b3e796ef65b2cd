"""The fit finds what it should, inside physics, and agrees with the catalog's file."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.efficiency_curve import CONSTANT, CURVE, EfficiencyCurve, Samples, curve_time, fit, single_kernels
from costmodel.calibration import pattern_search

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))
CATALOG = yaml.safe_load((ROOT / "costmodel" / "catalog" / "efficiency.yaml").read_text(encoding="utf-8"))
PEAK, BANDWIDTH = 1e15, 3e12

share = st.floats(0.05, 1.0)
halves = st.floats(0.0, 1e6)


def gemms(curve: EfficiencyCurve, noise: float = 0.0) -> Samples:
    """Square-ish GEMMs whose times follow `curve`, with deterministic log-normal noise."""
    m, n, k = (
        grid.ravel() for grid in np.meshgrid(2.0 ** np.arange(0, 14), 1024 * np.arange(1.0, 9), [1024.0, 4096, 8192])
    )
    flop, traffic = 2 * m * n * k, 2 * (n * k + m * (n + k))
    times = curve_time(curve, flop, traffic, peak=PEAK, bandwidth=BANDWIDTH, size=m * n, inputs=m * k, depth=k)
    times = times * np.exp(noise * np.random.default_rng(7).standard_normal(m.size))
    regime = np.digitize(m, (64.5, 511.5))
    roof = {"peak": PEAK, "bandwidth": BANDWIDTH}
    return single_kernels(flop, traffic, times, regime, **roof, size=m * n, inputs=m * k, depth=k)


def test_curve_by_hand() -> None:
    curve = EfficiencyCurve(compute=0.5, memory=0.8, launch=2e-6, compute_half=100.0, memory_half=1e6, cast=3.0)
    # arithmetic: 1e9 x (1 + 100/300) / (0.5 x 1e15) = 2.667 us; movement: (3e6 + 1e6) / (0.8 x 1e12) = 5 us; cast: 3 us
    assert curve_time(curve, 1e9, 3e6, peak=1e15, bandwidth=1e12, size=300.0, inputs=1e6) == pytest.approx(10e-6)


@given(compute=share, memory=share, half=halves, memory_half=halves, cast=st.floats(0, 20), size=st.floats(1, 1e9))
@settings(deadline=None, max_examples=100)
def test_no_curve_beats_physics(
    compute: float, memory: float, half: float, memory_half: float, cast: float, size: float
) -> None:
    curve = EfficiencyCurve(compute, memory, 1e-6, half, memory_half, cast)
    floor = max(1e12 / PEAK, 1e9 / BANDWIDTH)
    assert curve_time(curve, 1e12, 1e9, peak=PEAK, bandwidth=BANDWIDTH, size=size, inputs=1e6) >= floor


def test_pattern_search_on_a_kink_and_in_its_box() -> None:
    point, value = pattern_search(
        lambda x: float(abs(x[0] - 0.3) + 2 * abs(x[1] - 5)), np.zeros(2), -np.ones(2), np.ones(2)
    )
    assert point == pytest.approx([0.3, 1.0], abs=2e-3)
    assert value == pytest.approx(8.0, abs=5e-3)


@pytest.mark.parametrize(
    ("truth", "free"),
    [
        (EfficiencyCurve(0.8, 0.9, 4e-6), CONSTANT),
        (EfficiencyCurve(0.3, 0.5, 2e-5), CONSTANT),
        (EfficiencyCurve(0.7, 0.8, 4e-6, compute_half=5e5), CURVE),
        (EfficiencyCurve(0.7, 0.8, 4e-6, compute_half=5e5, cast=10.0), (*CURVE, "cast")),
        (EfficiencyCurve(0.7, 0.8, 4e-6, compute_half=5e5, depth_half=800.0), (*CURVE, "depth_half")),
    ],
)
def test_fit_recovers_what_made_the_data(truth: EfficiencyCurve, free: tuple[str, ...]) -> None:
    found = fit(gemms(truth), free)
    assert found.error < 0.02
    for name in free:
        assert getattr(found.curve, name) == pytest.approx(getattr(truth, name), rel=0.1), name


# ---- against the measurements


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """The script's reader of the kernel tables."""
    if not (DATA / "kernels" / "gemm.csv.gz").exists():
        pytest.skip(f"no kernel measurements in {DATA}")
    spec = importlib.util.spec_from_file_location("kernel_tables", ROOT / "benchmarks" / "kernel_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel_tables"] = module
    spec.loader.exec_module(module)
    return module


def test_catalog_agrees_with_a_fresh_fit(tables: ModuleType) -> None:
    rows = [
        row
        for row in tables.rows_of(DATA / "kernels" / "gemm.csv.gz")
        if row["system"] == "h100_sxm" and row["dtype"] == "bfloat16"
    ]
    free = (*CONSTANT, "compute_half", "depth_half")
    found = fit(tables.gemm_samples(rows, tables.load_hardware()["H100"], "bf16"), free)
    written = CATALOG["H100"]["gemm"]["bf16"]
    assert found.curve.depth_half == pytest.approx(written["depth_half"], rel=1e-2)
    assert found.curve.compute == pytest.approx(written["compute"], rel=1e-2)
    assert found.curve.memory == pytest.approx(written["memory"], rel=1e-2)
    assert found.curve.launch * 1e6 == pytest.approx(written["launch_us"], rel=2e-2)
    assert found.error == pytest.approx(written["error"], abs=2e-3)
    assert found.error < 0.07
