"""Full-batch throughput of TensorRT-LLM's own tables (published.csv) beside estimates; no fit saw them.

    python benchmarks/throughput_tables.py [--rows]    predicted / measured by GPU, model and shape; --rows: each row

The tables keep the engine full, as an estimate does. FP8 Llamas come from checkpoints that state a scale for each
tensor.
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

ENGINE, SET = "trtllm", "trtllm-1.0"
MODELS = {
    "Llama 3.3 70B": "nvidia/Llama-3.3-70B-Instruct-FP8",
    "Llama 3.1 8B": "nvidia/Llama-3.1-8B-Instruct-FP8",
    "Llama 3.1 405B": "Llama-3.1-405B",
    "Llama 4 Scout": "Llama-4-Scout-17B-16E",
    "Llama 4 Maverick": "Llama-4-Maverick-17B-128E",
    "Qwen3-30B-A3B": "Qwen3-30B-A3B",
    "Qwen3-235B-A22B": "Qwen3-235B-A22B",
}
GPUS = {"H100": "H100", "H200": "H200", "B200": "B200", "GB200": "GB200", "RTX6000ProBSE": "RTX-PRO-6000"}
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
        parallelism=Parallelism(int(row["tp"]), int(row["pp"] or 1), 1, 1),
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
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (data_folder() / "serving" / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == SET and row["gpu"] in GPUS]
    for row in rows:
        ratio = predicted(row, GPUS[row["gpu"]]) / float(row["value"])
        shape = shape_of(float(row["isl"]), float(row["osl"]))
        groups[GPUS[row["gpu"]], f"{row['model']} {row['dtype_weights']}"][shape].append(ratio)
        if "--rows" in sys.argv[1:]:
            print(f"{row['gpu']} TP{row['tp']} {row['model']} {row['isl']}/{row['osl']}: {ratio:.2f}")
    print("predicted / measured, medians (rows)")
    for key, shapes in sorted(groups.items()):
        parts = [f"{shape} {statistics.median(ratios):.2f} ({len(ratios)})" for shape, ratios in sorted(shapes.items())]
        print(f"{' '.join(key):<36}", "  ".join(parts))
    ratios = [ratio for shapes in groups.values() for ratios in shapes.values() for ratio in ratios]
    error, middle = statistics.median(abs(ratio - 1.0) for ratio in ratios), statistics.median(ratios)
    print(f"{len(ratios)} rows: median error {error:.1%}, median ratio {middle:.2f}")


if __name__ == "__main__":
    main()
