"""Host times of the vLLM of 2023, with which Splitwise and Mélange measured: fitted to Splitwise's own decode steps.

Splitwise's table (splitwise-sim data/perf_model.csv, as set `splitwise-perf` of DATA/serving/published.csv) has the
time per token of Llama-2-70B by batch, for the A100 and the H100. What is left of it beyond the kernels of our cost
model is taken for the host's: step + per_request x batch, by least squares.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from costmodel.accelerator import Origin
from costmodel.engine import EngineConfig, Parallelism, Role
from costmodel.host import NO_OVERHEAD, EngineOverhead
from costmodel.step import StepLoad, step_time_one
from costmodel.units import MILLI
from search_spaces.catalog import load_catalog
from search_spaces.models import load_model

MODEL = "Llama-2-70B"
GPUS = {"A100-SXM4-80GB": "A100-80", "H100 SXM 80GB": "H100"}


def host_times(data: Path, tensor: int | None = None) -> EngineOverhead:
    """Host time of a step and of each request in it, fitted to the rows of one tensor degree (None: of all)."""
    batch, left = (np.array(column) for column in zip(*_residuals(data, tensor), strict=True))
    design = np.stack([np.ones(batch.size), batch], axis=1)
    (step, per_request), *_ = np.linalg.lstsq(design, left, rcond=None)
    return EngineOverhead(float(step), float(per_request), Origin.FITTED, "Splitwise's decode steps of 2023")


def _residuals(data: Path, tensor: int | None) -> Iterator[tuple[float, float]]:
    """(batch, measured time of a decode step less our kernels [s]) of every row."""
    model = load_model(MODEL)
    for row in rows(data, "token_time"):
        if tensor is not None and int(row["tp"]) != tensor:
            continue
        batch = float(row["concurrency_or_batch_or_rate"].removeprefix("batch="))
        config = EngineConfig(
            accelerator=load_catalog().accelerator(GPUS[row["gpu"]]),
            role=Role.DECODE,
            parallelism=Parallelism(int(row["tp"])),
            weight_dtype="bf16",
            kv_dtype="bf16",
            max_num_seqs=512,
            max_num_batched_tokens=2048,
            max_model_len=16384,
            memory_fraction=0.9,
        )
        context = float(row["isl"]) + float(row["osl"]) / 2.0
        load = StepLoad.of(decode_requests=batch, decode_context=context)
        kernels = float(step_time_one(model, config, NO_OVERHEAD, load).total[0, 0])
        yield batch, float(row["value"]) * MILLI - kernels


def rows(data: Path, metric: str) -> Iterator[dict[str, str]]:
    """Splitwise's rows of one metric for Llama-2-70B, capped GPUs left out (theirs are not measured)."""
    with (data / "serving/published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            mine = row["set"] == "splitwise-perf" and row["model"] == "llama2-70b" and row["gpu"] in GPUS
            if mine and row["metric"] == metric:
                yield row
