"""Compares memory: weights, KV cache and what fits, with composed engine steps, and with every deployment that ran.

    python benchmarks/memory_check.py

Data: serving/engine_steps.csv and serving/closed_loop.csv in PDPLAN_DATA, else ../shared/data. The first has weights
and KV cache per GPU and whether a step fits in 0.9 of the memory as another tool counts them; rows of the second ran,
so that no engine whose weights alone exceed the memory may be among them. `kv_capacity.py` has what engines logged.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes, weight_bytes_per_gpu  # noqa: E402
from costmodel.units import GIB  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.measured_engines import deployments_of, in_dtype, measured_engine, measured_model  # noqa: E402
from search_spaces.measurements import MeasuredStep, read_measurements, weight_dtype  # noqa: E402

FITS = 0.9
"""Share of memory that `fits_gmu` grants."""


def steps(path: Path) -> None:
    """Weights, KV cache and fit of every composed step, by model and layout of experts."""
    catalog = load_catalog(None)
    with path.open(encoding="utf-8", newline="") as file:
        given = list(csv.DictReader(file))
    groups: dict[str, list[tuple[float, float, bool, bool]]] = defaultdict(list)
    for row in read_measurements(path)[1]:
        if not isinstance(row, MeasuredStep):
            continue
        stated = given[row.line - 2]
        model, dtype = in_dtype(measured_model(row.model), row.gemm_dtype, row.moe_dtype)
        kv_dtype = "fp8" if weight_dtype(row.kv_dtype) == "fp8" else "bf16"
        config = measured_engine(
            catalog, row.accelerator, model, row.split, dtype, kv_dtype=kv_dtype, memory_fraction=FITS
        )
        weights = weight_bytes_per_gpu(model, config) / GIB
        kv_cache = (
            (row.prompts + row.decodes) * float(kv_bytes_peak_per_gpu(model, config, row.new + row.context)) / GIB
        )
        fits = kv_capacity_bytes(model, config) / GIB >= kv_cache
        kv_stated = float(stated["kvcache_GiB"])
        groups[f"{row.model} {row.dtype}"].append(
            (
                weights / float(stated["weights_GiB"]) - 1.0,
                kv_cache / kv_stated - 1.0 if kv_stated > 0.05 else np.nan,
                fits,
                stated["fits_gmu"] == "1",
            )
        )
    print(f"{'steps':24}{'rows':>6}{'weights':>10}{'KV cache':>10}{'same fit':>10}{'we refuse, they fit':>21}")
    for name, rows in sorted(groups.items()):
        weights, kv_cache, ours, theirs = (np.array(column) for column in zip(*rows, strict=True))
        refused = int((~ours & theirs).sum())
        print(
            f"{name:24}{len(rows):6}{np.median(weights):+10.1%}{np.nanmedian(kv_cache):+10.1%}"
            f"{np.mean(ours == theirs):10.1%}{refused:21}"
        )


def ran(path: Path) -> None:
    """Deployments that were measured, and those of them whose weights our count says cannot be loaded."""
    deployments, _ = deployments_of(read_measurements(path)[1], load_catalog(None), None)
    refused: dict[str, int] = defaultdict(int)
    for one in deployments:
        for config in filter(None, (one.prefill, one.decode)):
            if kv_capacity_bytes(one.model, config) <= 0.0:
                refused[f"{one.row.model} on {config.accelerator.name}, {config.parallelism.gpus} GPUs"] += 1
    print(f"\n{len(deployments)} deployments ran; {sum(refused.values())} engines of them have no room for a KV cache")
    for name, count in sorted(refused.items()):
        print(f"  {count:4} {name}")


if __name__ == "__main__":
    data = data_folder()
    steps(data / "serving" / "engine_steps.csv")
    ran(data / "serving" / "closed_loop.csv")
