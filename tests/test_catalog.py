"""The accelerator catalog: completeness, names and overlays."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator import Origin, PriceBasis
from costmodel.errors import InputError, UnknownNameError
from costmodel.roofline import KERNEL_CLASSES
from costmodel.units import GIB, TERA
from search_spaces.catalog import entry_dict, load_catalog
from search_spaces.efficiency import WIDER

NEW_CARD = """
accelerators:
  Test-Card:
    vendor: acme
    aliases: [tc1]
    memory_gib: 48
    bandwidth_tb_s: 1.5
    tflops: {bf16: 200, fp8: 400}
    scale_up: {gb_s: 64, latency_us: 5, gpus: 4}
    scale_out: {gb_s: 12.5, latency_us: 20}
    node_size: 4
    tdp_w: 300
    node_label: ACME-Test-Card
    kv_domain: acme
    price_usd_per_hour: 1.25
"""


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


SPELLINGS = """
A100-80: a100_sxm, a100, a100-80gb, A100-SXM4-80GB; A100-80-PCIe: a100_pcie, A100-PCIE-80GB; A100-40: NVIDIA
A100-SXM4-40GB; H100: h100_sxm, H100 SXM, h100-80gb, NVIDIA-H100-80GB-HBM3; H100-PCIe: h100_pcie; H100-NVL:
NVIDIA H100-NVL-94GB; H20: h20_sxm; H200: h200_sxm; B200: b200_sxm; B300: b300_sxm; GB200: gb200, gb200_sxm,
GB200 NVL72; GB300: gb300; GH200: gh200, NVIDIA GH200 480GB; H800: h800_sxm; H200-NVL: h200_nvl; A800: a800;
A30: a30; A10: a10; L40: l40; RTX-6000-Ada: rtx6000ada; A6000: RTX A6000; MI350X: mi350x; L40S: l40s; L4: l4;
A10G: a10g; RTX-PRO-6000: rtx_pro_6000_server; MI300X: mi300x; MI325X: AMD Instinct MI325X; MI355X: mi355x;
VR200: vera rubin nvl144; Rubin-CPX: rubin_cpx; RTX-4090: NVIDIA GeForce RTX 4090; DGX-Spark: gb10; TPU-v7:
ironwood; Ascend-910C: 910c
"""


@pytest.mark.parametrize("name", SPELLINGS.replace("\n", " ").split(";"))
def test_usual_spellings_resolve(name: str) -> None:
    canonical, _, spellings = name.partition(":")
    for spelling in spellings.split(","):
        assert load_catalog().accelerator(spelling.strip()).name == canonical.strip()


@settings(deadline=None, max_examples=100)
@given(name=st.sampled_from(sorted(load_catalog().accelerators)), data=st.data())
def test_case_and_separators_never_matter(name: str, data: st.DataObject) -> None:
    characters = [
        data.draw(st.sampled_from(["", "-", "_", " "]))
        if mark == "-"
        else data.draw(st.sampled_from([mark.lower(), mark.upper()]))
        for mark in name
    ]
    assert load_catalog().accelerator("".join(characters)).name == name


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"accelerator 'H20O' is not known; did you mean 'H20.?'\?"):
        load_catalog().accelerator("H20O")
    with pytest.raises(UnknownNameError, match="known: A10, "):
        load_catalog().accelerator("???")


def test_entries_are_json_with_units_and_survive_pickling() -> None:
    for found in load_catalog().accelerators.values():
        written = json.loads(json.dumps(entry_dict(found), allow_nan=False))
        assert written["memory_bytes"] == found.memory
        assert written["peak_flops_per_s"]["bf16"] == found.peak_flops["bf16"]
        assert written["price"]["usd_per_hour"] == found.price.usd_per_hour
        assert set(written["efficiency"]) == set(KERNEL_CLASSES)
        assert set(written["efficiency"]["gemm"]) == set(found.peak_flops)
        assert written["ridge_point_flop_per_byte"]["bf16"] == found.peak_flops["bf16"] / found.bandwidth
        assert pickle.loads(pickle.dumps(found)).name == found.name


# --- overlays


def test_a_price_alone_changes_nothing_else(tmp_path: Path) -> None:
    path = overlay(tmp_path, "accelerators:\n  h100_sxm: {price_usd_per_hour: 2.10}\n")
    changed, shipped = load_catalog(path), load_catalog()
    price = changed.accelerator("H100").price
    assert (price.usd_per_hour, price.low, price.high, price.quotes) == (2.1, 2.1, 2.1, 1)
    assert price.source == "given in gpus.yaml"
    assert set(changed.accelerators) == set(shipped.accelerators)
    assert changed.accelerator("H100").source == shipped.accelerator("H100").source
    assert changed.accelerator("H200") is shipped.accelerator("H200")
    assert shipped.accelerator("H100").price.usd_per_hour != 2.1


def test_parts_are_overridden_key_by_key(tmp_path: Path) -> None:
    text = "accelerators:\n  H100:\n    scale_out: {gb_s: 12.5}\n    tflops: {bf16: 900}\n    aliases: [ours]\n"
    found = load_catalog(overlay(tmp_path, text)).accelerator("ours")
    assert found.name == "H100"
    assert found.scale_out.bandwidth == 12.5e9
    assert found.scale_out.latency == pytest.approx(5e-6)
    assert (found.peak_flops["bf16"], found.peak_flops["fp8"]) == (900e12, 1979e12)
    assert found.source.startswith("scale_out, tflops from gpus.yaml; else as shipped: NVIDIA H100")


def test_a_new_accelerator_may_be_complete(tmp_path: Path) -> None:
    found = load_catalog(overlay(tmp_path, NEW_CARD)).accelerator("TC-1")
    assert (found.name, found.memory, found.peak_flops["fp8"]) == ("Test-Card", 48 * GIB, 400 * TERA)
    assert found.price.usd_per_hour == 1.25
    assert "from gpus.yaml" in found.source
    assert set(found.efficiency) == {(kernel, dtype) for kernel in KERNEL_CLASSES for dtype in WIDER}
    assert all(figures.origin is Origin.ASSUMED for figures in found.efficiency.values())


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


def test_a_missing_or_huge_overlay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_catalog(tmp_path / "absent.yaml")
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(InputError, match="at most 1,000,000"):
        load_catalog(path)


# --- what a price is of


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("H100", ""),
        ("MI325X", "The price of MI325X ($5.5059/h) is assumed: nobody quotes one for MI325X."),
        (
            "RTX-6000-Ada",
            "The price of RTX-6000-Ada ($1.00/h) is borrowed from L40: nobody quotes one for RTX-6000-Ada.",
        ),
        ("H800", "The price of H800 ($2.00/h) is assumed: nobody quotes one for H800."),
    ],
)
def test_a_price_that_is_no_quote_on_demand_says_what_it_is(name: str, remark: str) -> None:
    assert load_catalog().accelerator(name).price.remark(name) == remark


def test_other_prices_are_quotes_of_the_accelerator_itself() -> None:
    """On each basis one, and spot below what the same GPU costs on demand."""
    for found in load_catalog().accelerators.values():
        bases = [price.basis for price in (found.price, *found.other_prices)]
        assert len(set(bases)) == len(bases)
        assert not any(price.guessed for price in found.other_prices)
        assert found.price.basis is PriceBasis.ON_DEMAND
        spot, listed = found.price_on(PriceBasis.SPOT), found.price_on(PriceBasis.ON_DEMAND)
        assert spot is None or listed is None or spot.usd_per_hour < listed.usd_per_hour


def test_a_price_of_ones_own_wins_on_every_basis(tmp_path: Path) -> None:
    text = "accelerators:\n  H100: {price_usd_per_hour: 2.10}\n  MyCard: {like: H200, price_usd_per_hour: 3}\n"
    catalog = load_catalog(overlay(tmp_path, text))
    for name, price in (("H100", 2.1), ("MyCard", 3.0)):
        found = catalog.accelerator(name)
        assert {found.price_on(basis).usd_per_hour for basis in (None, *PriceBasis)} == {price}  # type: ignore[union-attr]
        assert (found.price.origin, found.price.remark(name)) == (Origin.STATED, "")
