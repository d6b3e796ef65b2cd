"""The catalog's efficiencies, with what stands in for a missing one, and its prices, which the script reproduces."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from costmodel.accelerator import KernelEfficiency, Origin
from costmodel.roofline import KERNEL_CLASSES
from search_spaces.catalog import load_catalog
from search_spaces.efficiency import WIDER, parse_efficiency
from search_spaces.quotes import by_accelerator, shipped_quotes

# --- efficiencies


def figures(compute: float, origin: str = "fitted", **more: Any) -> dict[str, Any]:
    return {"compute": compute, "memory": 0.5, "launch_us": 2, "origin": origin, "source": f"data {compute}", **more}


def table(**entries: Any) -> dict[str, Any]:
    default = {kernel_class: {"bf16": figures(0.1, "assumed")} for kernel_class in KERNEL_CLASSES}
    return {"default": default, **entries}


def found(entries: dict[str, Any], name: str, dtype: str) -> KernelEfficiency:
    return parse_efficiency(entries, {}).complete(name)["gemm", dtype]


def test_efficiency_is_own_then_wider_then_relative_then_default() -> None:
    entries = table(
        Own={"gemm": {"bf16": figures(0.8, error=0.07), "fp8": figures(0.7, error=0.09)}, "like": "Kin"},
        Wide={"gemm": {"bf16": figures(0.6)}},
        Kin={"gemm": {"fp8": figures(0.5, error=0.01)}},
        Grandchild={"like": "Child"},
        Child={"like": "Kin"},
    )
    own = found(entries, "Own", "fp8")
    assert (own.compute, own.origin, own.error) == (0.7, Origin.FITTED, 0.09)
    assert own.launch == pytest.approx(2e-6)
    wide = found(entries, "Wide", "fp8")
    assert (wide.compute, wide.origin, wide.source) == (0.6, Origin.ASSUMED, "as Wide gemm in bf16 (data 0.6)")
    kin = found(entries, "Grandchild", "fp8")
    assert (kin.compute, kin.origin, math.isnan(kin.error)) == (0.5, Origin.ASSUMED, True)
    assert kin.source == "as Kin gemm in fp8 (data 0.5)"
    assert found(entries, "Child", "bf16").compute == 0.1
    assert found(entries, "Stranger", "fp4").compute == 0.1
    assert found(entries, "Own", "fp4").compute == 0.7


def test_borrowed_sizes_shrink_with_the_peak() -> None:
    """A GPU with a quarter of the peak is half filled by a quarter of the outputs; its own figures are its own."""
    entries = table(Kin={"gemm": {"bf16": figures(0.5, compute_half=400)}}, Child={"like": "Kin"})
    peaks = {"Kin": {"bf16": 800.0}, "Child": {"bf16": 200.0}, "H100": {"bf16": 1000.0}}
    halves = {
        name: parse_efficiency(entries, {}).complete(name, peaks)["gemm", "bf16"].compute_half
        for name in ("Kin", "Child", "Stranger")
    }
    assert halves == {"Kin": 400, "Child": 100, "Stranger": 0}
    assert parse_efficiency(entries, {}).complete("Child")["gemm", "bf16"].compute_half == 400


def test_shipped_efficiencies_are_shares() -> None:
    for accelerator in load_catalog().accelerators.values():
        assert set(accelerator.efficiency) == {(kernel, dtype) for kernel in KERNEL_CLASSES for dtype in WIDER}
        for efficiency in accelerator.efficiency.values():
            assert 0 < efficiency.compute <= 1
            assert 0 < efficiency.memory <= 1
            assert 0 <= efficiency.launch <= 1e-3
            assert efficiency.source
            assert not (efficiency.origin is Origin.ASSUMED and efficiency.error > 0)


# --- prices


@pytest.fixture(scope="module")
def make_prices(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_prices", root / "benchmarks" / "make_prices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_prices"] = module
    spec.loader.exec_module(module)
    return module


def test_the_catalogs_quotes_are_what_the_script_makes(make_prices: ModuleType, data: Path) -> None:
    made = by_accelerator(make_prices.quotes_of(make_prices.read_table(data / "prices" / "gpu_prices.csv")))
    shipped = shipped_quotes()
    assert set(made) == set(make_prices.SPELLINGS)
    assert {name: shipped[name] for name in made} == made
