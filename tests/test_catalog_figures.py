"""The catalog's efficiencies, with what stands in for a missing one, and its prices, which the script reproduces."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from costmodel.accelerator import InEngine, KernelEfficiency, Origin
from costmodel.errors import InputError
from costmodel.roofline import KERNEL_CLASSES
from search_spaces.catalog import load_catalog
from search_spaces.efficiency import WIDER, parse_efficiency

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


def test_what_engines_add_is_a_relatives_where_it_is_not_known() -> None:
    entries = table(Child={"like": "Kin"})
    known = parse_efficiency(entries, {"default": {"prompts": 1.1}, "Kin": {"prompts": 1.5, "traffic": 1.2}})
    assert [known.in_engine(name) for name in ("Child", "Stranger")] == [InEngine(1.5, 1.2), InEngine(1.1)]


def test_relatives_in_a_circle_end_at_default() -> None:
    entries = table(A={"like": "B"}, B={"like": "A"})
    assert found(entries, "A", "bf16").compute == 0.1


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"gem": {"bf16": figures(0.5)}}, "efficiency.yaml: X: 'gem' is neither a kernel class"),
        ({"gemm": {"fp6": figures(0.5)}}, "efficiency.yaml: X: 'fp6' is neither a kernel class"),
        ({"gemm": {"bf16": {"compute": 1}}}, "efficiency.yaml: X.gemm.bf16: 'launch_us' is missing or unknown"),
        ({"gemm": {"bf16": figures(0.5, speed=1)}}, "efficiency.yaml: X.gemm.bf16: 'speed' is missing or unknown"),
    ],
)
def test_a_wrong_efficiency_file_is_told(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse_efficiency({"X": entry}, {})


def test_a_default_with_gaps_is_told() -> None:
    with pytest.raises(InputError, match=r"default\.gemm must have figures for 'bf16'"):
        parse_efficiency({"default": {}}, {}).complete("X")


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


def quote(cloud: str, price: float, kind: str = "on-demand", date: str = "2026-09-01") -> dict[str, str]:
    return {
        "gpu": "H100 SXM",
        "cloud": cloud,
        "price_per_gpu_hour": str(price),
        "kind": kind,
        "date/commit": date,
        "source": "s",
    }


def test_prices_are_what_the_script_computes(make_prices: ModuleType, data: Path) -> None:
    blocks = make_prices.price_blocks(data / "prices" / "gpu_prices.csv")
    accelerators = load_catalog().accelerators
    assert set(blocks) == set(accelerators)
    for name, priced in blocks.items():
        prices = (accelerators[name].price, *accelerators[name].other_prices)
        assert list(map(asdict, prices)) == list(map(asdict, priced)), name


def test_rewriting_the_same_prices_changes_nothing_and_reads_the_table_once(
    make_prices: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    table = make_prices.read_quotes(data / "prices" / "gpu_prices.csv")
    copy = tmp_path / "accelerators.yaml"
    copy.write_text(make_prices.CATALOG.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(make_prices, "read_quotes", lambda path: read.append(path) or table)
    monkeypatch.setattr(make_prices, "ROOT", tmp_path)
    monkeypatch.setattr(make_prices, "CATALOG", copy)
    monkeypatch.setattr(sys, "argv", ["make_prices.py", "--write"])
    before = copy.read_text("utf-8")
    make_prices.main()
    assert copy.read_text("utf-8") == before
    assert len(read) == 1


def test_one_provider_with_many_regions_does_not_outvote(make_prices: ModuleType) -> None:
    quotes = [quote("Giant", 10.0 + index) for index in range(9)] + [quote("Small", 2.0), quote("Tiny (old name)", 3.0)]
    block = make_prices.price_block("H100", quotes, "2026-11-09")
    assert (block.usd_per_hour, block.low, block.high, block.quotes) == (3.0, 2.0, 18.0, 11)
    assert block.source == "on-demand list price: Giant, Small, Tiny"
    assert (block.origin, block.date) == ("vendor", "2026-09-01")


def test_other_kinds_count_only_where_nothing_is_listed(make_prices: ModuleType) -> None:
    reserved, listed = quote("A", 1.0, "reserved 3y"), quote("B", 4.0)
    spot, historic = quote("C", 0.5, "spot"), quote("D", 9.0, "on-demand (historic)")
    assert make_prices.best_quotes([reserved, listed, spot, historic], ["H100 SXM"]) == [listed]
    assert make_prices.best_quotes([reserved, spot, historic], ["H100 SXM"]) == [reserved]
    assert make_prices.price_block("H100", [reserved], "2026-11-09").origin == "assumed"
    with pytest.raises(SystemExit, match="no quote"):
        make_prices.best_quotes([spot, historic], ["H100 SXM"])


def test_quotes_without_a_date_are_as_old_as_the_table_at_most(make_prices: ModuleType) -> None:
    assert make_prices.newest_date([quote("A", 1.0, date="commit abc")], "2026-11-09") == "by 2026-11-09"
