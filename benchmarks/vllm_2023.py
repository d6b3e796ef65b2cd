"""Host times of the vLLM of 2023, with which Splitwise and Mélange measured: fitted to decode steps measured by others.

Splitwise's table (splitwise-sim data/perf_model.csv, as set `splitwise-perf` of DATA/serving/published.csv) has the
time per token of Llama-2-70B by batch, for the A100 and the H100, on 2 to 8 GPUs. DistServe's authors fitted vLLM's
decode steps of OPT-13B on one A100 (DATA/simulation/simdistserve/coefficients.json). What is left of either beyond the
kernels of our cost model is taken for the host's: step + per_request x batch, by least squares.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from costmodel.accelerator import Origin
from costmodel.engine import NO_OVERHEAD, EngineConfig, EngineOverhead, Parallelism, Role
from costmodel.step import StepLoad, step_time_one
from costmodel.units import MICRO, MILLI
from search_spaces.catalog import load_catalog
from search_spaces.engines import EngineChanges, load_engine_memory
from search_spaces.models import load_model

MODEL = "Llama-2-70B"
GPUS = {"A100-SXM4-80GB": "A100-80", "H100 SXM 80GB": "H100"}
SMALL_BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 90.0)
"""Below the 95 requests from which DistServe's fit is another one."""


def host_times(data: Path, tensor: int | None = None) -> EngineOverhead:
    """Host time of a step and of each request in it, fitted to the rows of one tensor degree (None: of all)."""
    return _fitted(_splitwise_steps(data, tensor), "Splitwise's decode steps of 2023")


def one_gpu_host_times(data: Path) -> EngineOverhead:
    """The same of an engine on one GPU, which has no other process to tell what to do."""
    return _fitted(_distserve_steps(data), "DistServe's fit to vLLM's decode steps on one A100")


def engine_changes(overhead: EngineOverhead) -> EngineChanges:
    """These host times as a problem has them, where clients and hand-overs take no time, as in simulations of 2023."""
    change = {
        "step_overhead_us": overhead.step / MICRO,
        "per_request_overhead_us": overhead.per_request / MICRO,
        "arrival_ms": 0.0,
        "handover_ms": 0.0,
        "origin": overhead.origin,
        "source": overhead.source,
    }
    return {"vllm": change}


def _fitted(left: Iterator[tuple[float, float]], source: str) -> EngineOverhead:
    """Host times from (batch, time of a decode step less our kernels [s])."""
    batch, times = (np.array(column) for column in zip(*left, strict=True))
    design = np.stack([np.ones(batch.size), batch], axis=1)
    (step, per_request), *_ = np.linalg.lstsq(design, times, rcond=None)
    return EngineOverhead(float(step), float(per_request), Origin.FITTED, source)


def _splitwise_steps(data: Path, tensor: int | None) -> Iterator[tuple[float, float]]:
    for row in rows(data, "token_time"):
        if tensor is not None and int(row["tp"]) != tensor:
            continue
        batch = float(row["concurrency_or_batch_or_rate"].removeprefix("batch="))
        context = float(row["isl"]) + float(row["osl"]) / 2.0
        kernels = _kernels(MODEL, GPUS[row["gpu"]], int(row["tp"]), batch, context)
        yield batch, float(row["value"]) * MILLI - kernels


def _distserve_steps(data: Path) -> Iterator[tuple[float, float]]:
    tables = json.loads((data / "simulation" / "simdistserve" / "coefficients.json").read_text("utf-8"))
    base, per_token, per_request = tables["vllm"]["facebook/opt-13b"]["1"]["decoding_smallbs"]
    for batch in SMALL_BATCHES:
        for context in (256.0, 1024.0):
            measured = base + per_token * batch * (context + 1.0) + per_request * batch
            yield batch, measured * MILLI - _kernels("OPT-13B", "A100-80", 1, batch, context)


def _kernels(model: str, gpu: str, tensor: int, batch: float, context: float) -> float:
    """Time of a decode step without the host [s]."""
    config = EngineConfig(
        accelerator=load_catalog().accelerator(gpu),
        role=Role.DECODE,
        parallelism=Parallelism(tensor),
        weight_dtype="bf16",
        kv_dtype="bf16",
        max_num_seqs=512,
        max_num_batched_tokens=2048,
        max_model_len=16384,
        memory=load_engine_memory("vllm"),
        memory_fraction=0.9,
    )
    load = StepLoad.of(decode_requests=batch, decode_context=context)
    return float(step_time_one(load_model(model), config, NO_OVERHEAD, load).total[0, 0])


def rows(data: Path, metric: str) -> Iterator[dict[str, str]]:
    """Splitwise's rows of one metric for Llama-2-70B, capped GPUs left out (theirs are not measured)."""
    with (data / "serving/published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            mine = row["set"] == "splitwise-perf" and row["model"] == "llama2-70b" and row["gpu"] in GPUS
            if mine and row["metric"] == metric:
                yield row
