"""Compares predicted step times with steps composed from measured kernels, by system, model, dtype and phase.

    python benchmarks/engine_steps.py             error of each group
    python benchmarks/engine_steps.py --classes   also predicted / composed for each class of kernels

Data: serving/engine_steps.csv in PDPLAN_DATA, else ../shared/data. Its steps hold kernels only (no scheduler, launch
gaps or sampling), so the host overhead is zero here. Rows with expert parallelism (EP) time the rank that a skewed
routing loads most.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.engine import EngineConfig, Parallelism, Role  # noqa: E402
from costmodel.host import NO_OVERHEAD  # noqa: E402
from costmodel.step import StepLoad, StepTime, step_time_one  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.models import load_model  # noqa: E402

Array = NDArray[np.float64]
Row = dict[str, str]

SYSTEMS = {"a100_sxm": "A100-80", "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "l40s": "L40S"}
DTYPES = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
KV_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
CLASSES = ("gemm", "attn", "moe", "comm")


def read_rows() -> list[Row]:
    """Rows of the table."""
    folder = Path(os.environ.get("PDPLAN_DATA", ROOT.parent / "shared" / "data"))
    with (folder / "serving" / "engine_steps.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_engine(rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Rows of one engine and phase together, so that each group is one vectorised call."""
    keys = ("system", "model", "dtype", "kv_quant", "tp", "pp", "dp", "moe_ep", "phase")
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def predicted(rows: list[Row], config: EngineConfig) -> StepTime:
    """Step times of rows that share an engine and a phase."""
    first = rows[0]
    batch, length = (np.array([float(row[name]) for row in rows]) for name in ("batch", "seq"))
    load = StepLoad.prefill(length, batch) if first["phase"] == "prefill" else StepLoad.decode(batch, length)
    return step_time_one(load_model(first["model"]), config, NO_OVERHEAD, load)


def engine_of(row: Row) -> EngineConfig:
    """The engine of a row; limits of the scheduler play no part."""
    split = Parallelism(int(row["tp"]), int(row["pp"]), int(float(row["moe_ep"] or 1)), int(row["dp"]))
    accelerator = load_catalog().accelerator(SYSTEMS[row["system"]])
    kv_dtype = KV_DTYPES[row["kv_quant"]]
    return EngineConfig(accelerator, Role.COLOCATED, split, DTYPES[row["dtype"]], kv_dtype, 1024, 65536, 10**6)


def class_times(step: StepTime, rows: list[Row]) -> dict[str, tuple[Array, Array]]:
    """(predicted, composed) seconds by class; the small kernels count with the GEMMs."""
    ours = (step.gemm, step.attention, step.experts, step.communication)
    column = {name: np.array([float(row[f"{name}_ms"]) * 1e-3 for row in rows]) for name in (*CLASSES, "other")}
    column["gemm"] = column["gemm"] + column["other"]
    return {name: (time[0], column[name]) for name, time in zip(CLASSES, ours, strict=True)}


def main() -> None:
    """Print the table."""
    with_classes = "--classes" in sys.argv[1:]
    errors: dict[tuple[str, ...], list[Array]] = defaultdict(list)
    parts: dict[tuple[str, ...], dict[str, list[Array]]] = defaultdict(lambda: defaultdict(list))
    for key, rows in by_engine(read_rows()).items():
        system, model, dtype, *_, expert, phase = key
        step = predicted(rows, engine_of(rows[0]))
        group: tuple[str, ...] = (system, model + (" EP" if float(expert or 1) > 1 else ""), dtype, phase)
        errors[group].append(step.total[0] / np.array([float(row["latency_ms"]) * 1e-3 for row in rows]) - 1.0)
        for name, (ours, theirs) in class_times(step, rows).items():
            real = theirs > 0
            parts[group][name].append(ours[real] / theirs[real])
    print(f"{'system':<9} {'model':<17} {'dtype':<10} {'phase':<8} {'rows':>5} {'MAPE':>7} {'bias':>7}", end="")
    print("".join(f" {name:>6}" for name in CLASSES) if with_classes else "")
    for group, lists in sorted(errors.items()):
        print(line(group, np.concatenate(lists), parts[group] if with_classes else {}))
    everything = np.concatenate([error for lists in errors.values() for error in lists])
    print(line(("all", "", "", ""), everything, {}))


def line(group: tuple[str, ...], error: Array, parts: dict[str, list[Array]]) -> str:
    """One row: mean absolute and mean relative error, and the median ratio of each class."""
    system, model, dtype, phase = group
    text = f"{system:<9} {model:<17} {dtype:<10} {phase:<8} {error.size:>5} "
    text += f"{np.mean(np.abs(error)):>7.1%} {np.mean(error):>+7.1%}"
    for ratios in parts.values():
        ratio = np.concatenate(ratios)
        text += f" {np.median(ratio):>6.2f}" if ratio.size else f" {'':>6}"
    return text


if __name__ == "__main__":
    main()
