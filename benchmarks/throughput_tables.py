"""Full-batch throughput of TensorRT-LLM's own tables (published.csv) beside estimates; no fit saw them.

    python benchmarks/throughput_tables.py [--rows]    predicted / measured by GPU, model and shape; --rows: each row

Dense Llamas in FP8, from checkpoints that state a scale for each tensor. The tables keep the engine full, as an
estimate does.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.engine import EngineConfig, Parallelism, Role  # noqa: E402
from costmodel.estimate import estimate  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import load_engine_memory, load_serving_policy  # noqa: E402
from search_spaces.measured_engines import in_dtype, measured_model  # noqa: E402
from search_spaces.measurements import weight_dtype  # noqa: E402

ENGINE, SET = "trtllm", "trtllm-1.0"
MODELS = {"Llama 3.3 70B": "nvidia/Llama-3.3-70B-Instruct-FP8", "Llama 3.1 8B": "nvidia/Llama-3.1-8B-Instruct-FP8"}
GPUS = ("H100", "H200")
MOST_REQUESTS = 4096
"""Beyond any batch that memory holds in these rows."""
LONGER = 4.0
"""Prompt over answer, or the reverse, from which a row is about that one."""


def shape_of(isl: float, osl: float) -> str:
    """What most of the work of a row is."""
    return "prefill" if isl >= LONGER * osl else "decode" if osl >= LONGER * isl else "mixed"


def predicted(row: dict[str, str], gpu: str) -> float:
    """Output tokens per second of a full engine [1/s]."""
    policy, isl, osl = load_serving_policy(ENGINE), float(row["isl"]), float(row["osl"])
    model, dtype = in_dtype(measured_model(MODELS[row["model"]], data_folder() / "models"), row["dtype_weights"], "")
    config = EngineConfig(
        accelerator=load_catalog().accelerator(gpu),
        role=Role.COLOCATED,
        parallelism=Parallelism(int(row["tp"]), 1, 1, 1),
        weight_dtype=dtype,
        kv_dtype=policy.quantized_kv_dtype,
        max_num_seqs=MOST_REQUESTS,
        max_num_batched_tokens=policy.token_budget,
        max_model_len=10**6,
        memory=load_engine_memory(ENGINE),
        memory_fraction=policy.memory_fraction,
    )
    return estimate(model, config, policy.overhead, isl, osl).requests_per_second * osl


def main() -> None:
    """Print the ratios."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with (data_folder() / "serving" / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == SET and row["model"] in MODELS]
    for row in rows:
        gpu = next((name for name in GPUS if name.lower() in row["gpu"].lower()), None)
        if gpu is None or weight_dtype(row["dtype_weights"]) != "fp8":
            continue
        ratio = predicted(row, gpu) / float(row["value"])
        groups[gpu, row["model"], shape_of(float(row["isl"]), float(row["osl"]))].append(ratio)
        if "--rows" in sys.argv[1:]:
            print(f"{gpu} TP{row['tp']} {row['model']} {row['isl']}/{row['osl']}: {ratio:.2f}")
    for key, ratios in sorted(groups.items()):
        print(f"{' '.join(key):<30}{len(ratios):>3} rows  predicted / measured {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
