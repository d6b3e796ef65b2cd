"""What stands in for an efficiency that the catalog lacks, and its prices, which the script reproduces."""

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
from search_spaces.efficiency import parse_efficiency
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
