"""Which accelerator stands in for which: where a table is missing, and where none was ever measured."""

from __future__ import annotations

RELATIVE = {"A100-80": "H100", "H100": "H200", "H200": "H100", "B200": "H200", "L40S": "H100"}
"""Measured GPU that stands in where another measured one lacks a table."""

LIKE = {
    "A100-40": "A100-80",
    "A100-40-PCIe": "A100-80",
    "A100-80-PCIe": "A100-80",
    "A800": "A100-80",
    "A30": "A100-80",
    "A10": "A100-80",
    "A10G": "A100-80",
    "A40": "A100-80",
    "A6000": "A100-80",
    "H100-PCIe": "H100",
    "H100-NVL": "H100",
    "H20": "H100",
    "H800": "H100",
    "GH200": "H100",
    "H200-NVL": "H200",
    "B300": "B200",
    "GB200": "B200",
    "GB300": "B200",
    "L4": "L40S",
    "L40": "L40S",
    "RTX-6000-Ada": "L40S",
    "RTX-PRO-6000": "L40S",
    "MI300X": "default",
    "MI325X": "default",
    "MI350X": "default",
    "MI355X": "default",
    "RTX-3090": "A100-80",
    "RTX-4090": "L40S",
    "RTX-5090": "L40S",
    "RTX-PRO-4500": "L40S",
    "DGX-Spark": "L40S",
    "VR200": "B200",
    "Rubin-CPX": "B200",
    "MI455X": "default",
    "Gaudi-3": "default",
    "TPU-v6e": "default",
    "TPU-v7": "default",
    "Trainium2": "default",
    "Trainium3": "default",
    "Ascend-910C": "default",
}
"""Nearest measured relative of GPUs without measurements: same architecture first, same kind of memory second."""

LINKED_LIKE = dict.fromkeys(
    (
        "A100-40-PCIe",
        "A100-80-PCIe",
        "A30",
        "A10",
        "A10G",
        "A40",
        "A6000",
        "H100-PCIe",
        "RTX-3090",
        "Rubin-CPX",
    ),
    "L40S",
)
"""Measured GPU whose collectives stand in for those of a GPU with another kind of link than its relative: PCIe."""
