"""The accelerator catalog: completeness, names and overlays."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.accelerator import Origin, PriceBasis
from search_spaces.catalog import load_catalog


def overlay(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gpus.yaml"
    path.write_text(text, "utf-8")
    return path


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
    catalog = load_catalog()
    labels = [found.node_label for found in catalog.accelerators.values() if found.node_label]
    assert len(set(labels)) == len(labels)
    for name, found in catalog.accelerators.items():
        assert catalog.accelerator(name) is found
        assert catalog.accelerator(found.node_label or name) is found


# --- overlays


def test_parts_are_overridden_key_by_key(tmp_path: Path) -> None:
    text = "accelerators:\n  H100:\n    scale_out: {gb_s: 12.5}\n    tflops: {bf16: 900}\n    aliases: [ours]\n"
    found = load_catalog(overlay(tmp_path, text)).accelerator("ours")
    assert found.name == "H100"
    assert found.scale_out.bandwidth == 12.5e9
    assert found.scale_out.latency == pytest.approx(5e-6)
    assert (found.peak_flops["bf16"], found.peak_flops["fp8"]) == (900e12, 1979e12)
    assert found.source.startswith("scale_out, tflops from gpus.yaml; else as shipped: NVIDIA H100")


def test_a_new_accelerator_may_be_like_another(tmp_path: Path) -> None:
    text = "accelerators:\n  H850: {like: H100, scale_up: {gb_s: 200}, price_usd_per_hour: $2.00/h, date: 2026-01-02}\n"
    catalog = load_catalog(overlay(tmp_path, text))
    found, model = catalog.accelerator("h850"), catalog.accelerator("H100")
    assert found.scale_up.bandwidth == 200e9
    assert (found.bandwidth, found.peak_flops, found.scale_up_size) == (model.bandwidth, model.peak_flops, 8)
    assert found.price.usd_per_hour == 2.0
    assert found.date == "2026-01-02"
    assert found.source.startswith("date, scale_up from gpus.yaml; else as H100: ")
    assert catalog.accelerator("H100-SXM") is model
    for pair, figures in found.efficiency.items():
        assert (figures.compute, figures.memory, figures.launch) == (
            model.efficiency[pair].compute,
            model.efficiency[pair].memory,
            model.efficiency[pair].launch,
        )
        assert figures.origin is Origin.ASSUMED


# --- what a price is of


def test_a_price_of_ones_own_wins_on_every_basis(tmp_path: Path) -> None:
    text = "accelerators:\n  H100: {price_usd_per_hour: 2.10}\n  MyCard: {like: H200, price_usd_per_hour: 3}\n"
    catalog = load_catalog(overlay(tmp_path, text))
    for name, price in (("H100", 2.1), ("MyCard", 3.0)):
        found = catalog.accelerator(name)
        assert {found.price_on(basis).usd_per_hour for basis in (None, *PriceBasis)} == {price}  # type: ignore[union-attr]
        assert (found.price.origin, found.price.remark(name)) == (Origin.STATED, "")
