"""The fit finds what it should, inside physics, and agrees with the catalog's file."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from hypothesis import strategies as st

from benchmarks.efficiency_curve import CONSTANT, fit
from costmodel.calibration import pattern_search

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))
CATALOG = yaml.safe_load((ROOT / "costmodel" / "catalog" / "efficiency.yaml").read_text(encoding="utf-8"))
PEAK, BANDWIDTH = 1e15, 3e12

share = st.floats(0.05, 1.0)


def test_pattern_search_on_a_kink_and_in_its_box() -> None:
    point, value = pattern_search(
        lambda x: float(abs(x[0] - 0.3) + 2 * abs(x[1] - 5)), np.zeros(2), -np.ones(2), np.ones(2)
    )
    assert point == pytest.approx([0.3, 1.0], abs=2e-3)
    assert value == pytest.approx(8.0, abs=5e-3)


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
