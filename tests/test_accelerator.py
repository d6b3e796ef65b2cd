"""Peaks, bandwidths and links pinned to data sheets, and the ridge point."""

from __future__ import annotations

import pytest

from costmodel.accelerator import Accelerator
from costmodel.units import GIGA, TERA
from search_spaces.catalog import load_catalog

DATA_SHEETS = {
    # name: (bf16, fp8, int8, fp4 in dense TFLOP/s, bandwidth in TB/s, board power in W)
    "A100-40": (312, None, 624, None, 1.555, 400),
    "A100-80": (312, None, 624, None, 2.039, 400),
    "A800": (312, None, 624, None, 2.039, 400),
    "A100-40-PCIe": (312, None, 624, None, 1.555, 250),
    "A100-80-PCIe": (312, None, 624, None, 1.935, 300),
    "A30": (165, None, 330, None, 0.933, 165),
    "H100": (989, 1979, 1979, None, 3.35, 700),
    "H800": (989, 1979, 1979, None, 3.35, 700),
    "H100-PCIe": (756.5, 1513, 1513, None, 2.0, 350),
    "H100-NVL": (835.5, 1670.5, 1670.5, None, 3.9, 400),
    "H20": (148, 296, 296, None, 4.0, 500),
    "H200": (989, 1979, 1979, None, 4.8, 700),
    "GH200": (989, 1979, 1979, None, 4.0, 700),
    "H200-NVL": (835.5, 1670.5, 1670.5, None, 4.8, 600),
    "B200": (2250, 4500, 4500, 9000, 7.7, 1000),
    "B300": (2250, 4500, 153.5, 13500, 7.7, 1100),
    "GB200": (2500, 5000, 5000, 10000, 8.0, 1200),
    "GB300": (2500, 5000, 165, 15000, 8.0, 1400),
    "L40S": (362, 733, 733, None, 0.864, 350),
    "L40": (181, 362, 362, None, 0.864, 300),
    "RTX-6000-Ada": (364.2, 728.5, 728.5, None, 0.96, 300),
    "L4": (121, 242, 242, None, 0.3, 72),
    "A10": (125, None, 250, None, 0.6, 150),
    "A10G": (70, None, 140, None, 0.6, 300),
    "A40": (149.7, None, 299.3, None, 0.696, 300),
    "A6000": (154.8, None, 309.7, None, 0.768, 300),
    "RTX-PRO-6000": (480, 960, 960, 1920, 1.597, 600),
    "MI300X": (1307.4, 2614.9, 2614.9, None, 5.3, 750),
    "MI325X": (1307.4, 2614.9, 2614.9, None, 6.0, 1000),
    "MI350X": (2306.9, 4613.7, 4613.7, 9227.5, 8.0, 1000),
    "MI355X": (2516.6, 5033.2, 5033.2, 10066.3, 8.0, 1400),
    "RTX-3090": (71, None, 284, None, 0.936, 350),
    "RTX-4090": (165.2, 330.3, 660.6, None, 1.008, 450),
    "RTX-5090": (209.5, 419, 838, 1676, 1.792, 575),
    "RTX-PRO-4500": (219.7, 439.5, 439.5, 879, 0.896, 200),
    "DGX-Spark": (213, 214, 214, 427, 0.273, 140),
    "VR200": (4000, 17500, None, 35000, 22, 2300),
    "Rubin-CPX": (2286, 10000, None, 20000, 2.0, 880),
    "MI455X": (10000, 20000, None, 40000, 19.6, 2300),
    "Gaudi-3": (1835, 1835, None, None, 3.67, 900),
    "TPU-v6e": (918, None, 1836, None, 1.638, 300),
    "TPU-v7": (2307, 4614, None, None, 7.38, 1000),
    "Trainium2": (667, 1299, None, None, 2.9, 500),
    "Trainium3": (671, 2517, None, 2517, 4.9, 1000),
    "Ascend-910C": (752, None, 1504, None, 3.2, 1457),
}


def accelerator(name: str) -> Accelerator:
    return load_catalog().accelerator(name)


def test_the_pinned_list_is_the_catalog() -> None:
    assert list(load_catalog().accelerators) == list(DATA_SHEETS)


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_figures_are_those_of_the_data_sheet(name: str) -> None:
    *peaks, bandwidth, tdp = DATA_SHEETS[name]
    found = accelerator(name)
    expected = dict(zip(("bf16", "fp8", "int8", "fp4"), peaks, strict=True))
    assert {dtype: peak / TERA for dtype, peak in found.peak_flops.items()} == pytest.approx(
        {dtype: peak for dtype, peak in expected.items() if peak is not None}, rel=1e-12
    )
    assert (found.bandwidth, found.tdp) == pytest.approx((bandwidth * TERA, tdp), rel=1e-12)


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


def test_ridge_points() -> None:
    assert accelerator("H100").ridge_point("bf16") == pytest.approx(295.2, rel=1e-3)
    assert accelerator("A100-80").ridge_point("bf16") == pytest.approx(153.0, rel=1e-3)
    assert accelerator("H20").ridge_point("fp8") == pytest.approx(74.0, rel=1e-3)
