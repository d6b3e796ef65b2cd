"""The accelerator catalog: completeness, names and overlays."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.make_prices import SPELLINGS, quotes_of, read_table
from costmodel.accelerator import KERNEL_CLASSES, KernelEfficiency, Origin, PriceBasis
from costmodel.errors import InputError
from costmodel.units import GIGA, TERA
from search_spaces import catalog, files
from search_spaces.catalog import load_catalog
from search_spaces.efficiency import parse_efficiency
from search_spaces.quotes import shipped_quotes
from tests.optimizer_cases import accelerator
from tests.trace_files import Write

# --- what is shipped


def test_every_entry_is_complete() -> None:
    for name, found in load_catalog().accelerators.items():
        price = found.price
        assert found.name == name
        assert len(found.source) > 20
        assert found.date.startswith("20")
        assert found.node_label.startswith({"nvidia": "NVIDIA-", "amd": "AMD_Instinct_"}.get(found.vendor, ""))
        assert found.kv_domain == found.vendor
        assert 0 < price.low <= price.usd_per_hour <= price.high
        assert price.quotes >= 1
        assert price.source
        assert price.date
        assert price.origin in {Origin.VENDOR, Origin.ASSUMED}


def test_labels_and_spellings_lead_to_one_accelerator_each() -> None:
    shipped = load_catalog()
    labels = [found.node_label for found in shipped.accelerators.values() if found.node_label]
    assert len(set(labels)) == len(labels)
    for name, found in shipped.accelerators.items():
        assert shipped.accelerator(name) is found
        assert shipped.accelerator(found.node_label or name) is found


@pytest.mark.parametrize(
    ("wrong", "place"),
    [("memory_gibb: 1", r":\d+:\d+: accelerators\.A100-40\.memory_gibb"), ("memory_gib: [1", r":\d+: did not find")],
)
def test_a_slip_in_the_shipped_file_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch, wrong: str, place: str
) -> None:
    shipped = files.shipped_text
    for module in (files, catalog):
        monkeypatch.setattr(module, "shipped_text", lambda *file: re.sub(r"memory_gib: \S+", wrong, shipped(*file)))
    with pytest.raises(InputError, match=f"^costmodel/catalog/accelerators.yaml{place}"):
        catalog._shipped_catalog.__wrapped__()


# --- overlays


def test_a_new_accelerator_may_be_like_another(write: Write) -> None:
    text = "accelerators:\n  H850: {like: H100, scale_up: {gb_s: 200}, price_usd_per_hour: $2.00/h, date: 2026-01-02}\n"
    catalog = load_catalog(write(text, "gpus.yaml"))
    found, model = catalog.accelerator("h850"), catalog.accelerator("H100")
    assert found.scale_up.bandwidth == 200e9
    assert (found.bandwidth, found.peak_flops, found.scale_up_size) == (model.bandwidth, model.peak_flops, 8)
    assert found.price.usd_per_hour == 2.0
    assert found.date == "2026-01-02"
    assert found.source.startswith("date, scale_up from gpus.yaml; else as H100: ")
    assert catalog.accelerator("H100-SXM") is model
    for pair, figures in found.efficiency.items():
        for name in ("compute", "memory", "launch"):
            assert getattr(figures, name) == getattr(model.efficiency[pair], name)
        assert figures.origin is Origin.ASSUMED


def test_a_card_of_its_own_is_not_on_the_nodes_of_its_relative(write: Write) -> None:
    text = "accelerators:\n  H144: {like: H100, memory_gib: 144}\n  Cheap: {like: H100, price_usd_per_hour: $2/h}\n"
    text += "  GBX: {like: GB200, memory_gib: 200}\n"
    catalog = load_catalog(write(text, "gpus.yaml"))
    label = catalog.accelerator("H100").node_label
    assert [catalog.accelerator(name).node_label for name in ("H144", "Cheap", "GBX")] == ["", label, ""]
    assert [catalog.accelerator(name).arm for name in ("H144", "GBX")] == [False, True]  # the CPUs stay


# --- what a price is of


def test_a_price_of_ones_own_wins_on_every_basis(write: Write) -> None:
    text = "accelerators:\n  H100: {price_usd_per_hour: 2.10}\n  MyCard: {like: H200, price_usd_per_hour: 3}\n"
    catalog = load_catalog(write(text, "gpus.yaml"))
    for name, price in (("H100", 2.1), ("MyCard", 3.0)):
        found = catalog.accelerator(name)
        assert {found.price_on(basis).usd_per_hour for basis in (None, *PriceBasis)} == {price}
        assert (found.price.origin, found.price.remark(name)) == (Origin.STATED, "")


# --- peaks, bandwidths and links pinned to data sheets, and the ridge point

with (Path(__file__).parent / "data_sheets.csv").open(encoding="utf-8", newline="") as stream:
    DATA_SHEETS = {row["accelerator"]: row for row in csv.DictReader(stream)}
"""Peaks in dense TFLOP/s, bandwidth in TB/s, board power in W."""


def test_the_pinned_list_is_the_catalog() -> None:
    assert list(load_catalog().accelerators) == list(DATA_SHEETS)


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_figures_are_those_of_the_data_sheet(name: str) -> None:
    row, found = DATA_SHEETS[name], accelerator(name)
    peaks = {dtype: row[f"{dtype}_tflops"] for dtype in ("bf16", "fp8", "int8", "fp4")}
    assert {dtype: peak / TERA for dtype, peak in found.peak_flops.items()} == pytest.approx(
        {dtype: float(peak) for dtype, peak in peaks.items() if peak}, rel=1e-12
    )
    assert found.bandwidth == pytest.approx(float(row["bandwidth_tb_s"]) * TERA, rel=1e-12)
    assert found.tdp == float(row["board_power_w"])


@pytest.mark.parametrize(
    ("name", "gb_s", "size", "nic_gb_s"),
    [
        ("A100-80", 300, 8, 25),
        ("H100-NVL", 300, 2, 5),
        ("H800", 200, 8, 50),
        ("GH200", 450, 1, 50),
        ("GB200", 900, 72, 50),
        ("L40S", 32, 8, 6.25),
        ("VR200", 1800, 72, 200),
    ],
)
def test_links_are_one_direction_per_gpu(name: str, gb_s: float, size: int, nic_gb_s: float) -> None:
    found = accelerator(name)
    assert (found.scale_up.bandwidth, found.scale_out.bandwidth) == pytest.approx((gb_s * GIGA, nic_gb_s * GIGA))
    assert found.scale_up_size == size


# --- efficiencies


def figures(compute: float, origin: str = "fitted", **more: Any) -> dict[str, Any]:
    return {"compute": compute, "memory": 0.5, "launch_us": 2, "origin": origin, "source": f"data {compute}", **more}


def completed(entries: dict[str, Any], name: str, dtype: str) -> KernelEfficiency:
    return parse_efficiency(entries, {}).complete(name)["gemm", dtype]


def test_efficiency_is_own_then_wider_then_relative_then_default() -> None:
    entries = {
        "default": {kernel_class: {"bf16": figures(0.1, "assumed")} for kernel_class in KERNEL_CLASSES},
        "Own": {"gemm": {"bf16": figures(0.8, error=0.07), "fp8": figures(0.7, error=0.09)}, "like": "Kin"},
        "Wide": {"gemm": {"bf16": figures(0.6)}},
        "Kin": {"gemm": {"fp8": figures(0.5, error=0.01)}},
        "Grandchild": {"like": "Child"},
        "Child": {"like": "Kin"},
    }
    own = completed(entries, "Own", "fp8")
    assert (own.compute, own.origin, own.error) == (0.7, Origin.FITTED, 0.09)
    assert own.launch == pytest.approx(2e-6)
    wide = completed(entries, "Wide", "fp8")
    assert (wide.compute, wide.origin, wide.source) == (0.6, Origin.ASSUMED, "as Wide gemm in bf16 (data 0.6)")
    kin = completed(entries, "Grandchild", "fp8")
    assert (kin.compute, kin.origin, math.isnan(kin.error)) == (0.5, Origin.ASSUMED, True)
    assert kin.source == "as Kin gemm in fp8 (data 0.5)"
    assert completed(entries, "Child", "bf16").compute == 0.1
    assert completed(entries, "Stranger", "fp4").compute == 0.1
    assert completed(entries, "Own", "fp4").compute == 0.7


# --- prices


def test_the_catalogs_quotes_are_what_the_script_makes(data: Path) -> None:
    quotes = list(quotes_of(read_table(data / "prices" / "gpu_prices.csv")))
    names = {quote.accelerator for quote in quotes}
    made = {name: tuple(quote for quote in quotes if quote.accelerator == name) for name in names}
    shipped = shipped_quotes()
    assert set(made) == set(SPELLINGS)
    assert {name: shipped[name] for name in made} == made
