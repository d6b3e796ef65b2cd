"""Compares predicted step times with steps composed from measured kernels, by system, model, dtype and phase.

    python benchmarks/engine_steps.py                  error of each group
    python benchmarks/engine_steps.py --classes        also predicted / composed for each class of kernels
    python benchmarks/engine_steps.py --leave-one-out  refit without the model that is predicted, and sum up
    python benchmarks/engine_steps.py --relative       predict every accelerator from its relative, and sum up
    python benchmarks/engine_steps.py --write          write the 90 % intervals that both show to step_error.yaml

Data: serving/engine_steps.csv in PDPLAN_DATA, else ../shared/data. Its steps hold kernels only (no scheduler, launch
gaps or sampling), so the host overhead is zero here. Kernels run under the tables' conditions: routing by a power law,
the busiest rank counts, no CUDA graph. Efficiencies of A100, H100 and H200 are fitted to kernel tables only;
those of B200 and L40S to the class times of steps, and refitted with --leave-one-out. What was chosen by looking at
these steps is said in docs/appendix/calibration.md; no refit undoes it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from evidence import COMPOSED, step_evidence  # noqa: E402
from fit_efficiency import NAMED, RELATIVE, entries_of, fit_one  # noqa: E402
from kernel_tables import SYSTEMS, Row, load_hardware, rows_of  # noqa: E402
from step_tables import CONFIGS  # noqa: E402

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.accelerator import Accelerator  # noqa: E402
from costmodel.engine import NO_OVERHEAD, EngineConfig, Parallelism, Role  # noqa: E402
from costmodel.engine_arrays import Conditions, engine_arrays  # noqa: E402
from costmodel.step import StepLoad, StepTime, step_time  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.efficiency import parse_efficiency  # noqa: E402
from search_spaces.engines import load_engine_memory  # noqa: E402
from search_spaces.measured_engines import table_conditions  # noqa: E402
from search_spaces.models import load_model  # noqa: E402

Array = NDArray[np.float64]
Group = tuple[str, ...]

DTYPES = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
KV_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
CLASSES = ("gemm", "attn", "moe", "comm")
INTERVALS = ROOT / "costmodel" / "catalog" / "step_error.yaml"
FROM_KERNELS = ("A100-80", "H100", "H200")
"""Accelerators with kernel tables."""


def read_rows() -> list[Row]:
    """Rows of the table."""
    return rows_of(data_folder() / "serving" / "engine_steps.csv")


def by_engine(rows: list[Row]) -> dict[Group, list[Row]]:
    """Rows of one engine and phase together, so that each group is one vectorised call."""
    keys = ("system", "model", "dtype", "kv_quant", "tp", "pp", "dp", "moe_ep", "phase")
    groups: dict[Group, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def predicted(rows: list[Row], config: EngineConfig) -> StepTime:
    """Step times of rows that share an engine and a phase."""
    first = rows[0]
    batch, length = (np.array([float(row[name]) for row in rows]) for name in ("batch", "seq"))
    load = StepLoad.prefill(length, batch) if first["phase"] == "prefill" else StepLoad.decode(batch, length)
    model = load_model(first["model"])
    return step_time(model, engine_arrays(model, [config], NO_OVERHEAD, conditions_of(first)), load)


def conditions_of(row: Row) -> Conditions:
    """The tables' circumstances, as `pdplan validate` takes them."""
    return table_conditions(row["backend"], row["gemm_quant"], row["moe_quant"])


RELATIVES = "relatives"
"""In place of a model: leave out the accelerator's own efficiencies altogether."""


@cache
def accelerator_of(system: str, without: str | None) -> Accelerator:
    """The catalog's accelerator; `without` a model: what was fitted to steps is refitted to the others'."""
    name = SYSTEMS[system]
    shipped = load_catalog().accelerator(name)
    if without is None or (name in FROM_KERNELS and without != RELATIVES):
        return shipped
    raw = yaml.safe_load((ROOT / "costmodel" / "catalog" / "efficiency.yaml").read_text(encoding="utf-8"))
    tables = {
        (owner, kernel_class, dtype): row
        for owner in SYSTEMS.values()
        for kernel_class, by_dtype in raw[owner].items()
        for dtype, row in by_dtype.items()
        if row["origin"] == "fitted" and COMPOSED not in row["source"]
    }
    own: dict[str, dict[str, object]] = defaultdict(dict)
    if without != RELATIVES:
        for (owner, kernel_class, dtype), row in tables.items():
            if owner == name:
                own[kernel_class][dtype] = row
        evidence = step_evidence(data_folder(), load_hardware(), tables, without)
        fitted = [fit_one(item, compare=False) for item in evidence if item.fitted and item.accelerator == name]
        for (kernel_class, dtype), entry in entries_of(fitted)[name].items():
            own[kernel_class][dtype] = yaml.safe_load(entry.yaml())
    kin = {
        kernel_class: {dtype: figures for dtype, figures in by_dtype.items() if dtype not in NAMED}
        for kernel_class, by_dtype in raw[RELATIVE[name]].items()
    }
    table = parse_efficiency({**raw, RELATIVE[name]: kin, name: {**own, "like": RELATIVE[name]}}, {})
    return replace(shipped, efficiency=table.complete(name))


def engine_of(row: Row, mode: str = "") -> EngineConfig:
    """The engine of a row; limits of the scheduler play no part."""
    split = Parallelism(int(row["tp"]), int(row["pp"]), int(float(row["moe_ep"] or 1)), int(row["dp"]))
    left_out = row["model"] if row["model"] in CONFIGS else None
    without = {"--leave-one-out": left_out, "--relative": RELATIVES}.get(mode)
    accelerator = accelerator_of(row["system"], without)
    kv_dtype = KV_DTYPES[row["kv_quant"]]
    memory = load_engine_memory("vllm")
    return EngineConfig(accelerator, Role.COLOCATED, split, DTYPES[row["dtype"]], kv_dtype, 1024, 65536, 10**6, memory)


def class_times(step: StepTime, rows: list[Row]) -> dict[str, tuple[Array, Array]]:
    """(predicted, composed) seconds by class; the small kernels count with the GEMMs."""
    ours = (step.gemm, step.attention, step.experts, step.communication)
    column = {name: np.array([float(row[f"{name}_ms"]) * 1e-3 for row in rows]) for name in (*CLASSES, "other")}
    column["gemm"] = column["gemm"] + column["other"]
    return {name: (time[0], column[name]) for name, time in zip(CLASSES, ours, strict=True)}


def family(row: Row) -> str:
    """Kind of model, as the error depends on it."""
    return {"deepseek-v3": "mla", "mixtral-8x7b": "moe"}.get(row["model"], "dense")


def summary_key(row: Row) -> Group:
    """Group of the summary: how the accelerator was fitted, kind of model, dtype, phase."""
    name = SYSTEMS[row["system"]]
    fitted = "kernels" if name in FROM_KERNELS else name
    linked = " TP>1" if name == "L40S" and int(row["tp"]) > 1 else ""
    return (fitted + linked, family(row), row["dtype"], row["phase"])


def errors_of(rows: list[Row], mode: str) -> dict[Group, tuple[list[Row], Array]]:
    """Rows and predicted / composed - 1, by engine and phase."""
    found = {}
    for key, mine in by_engine(rows).items():
        step = predicted(mine, engine_of(mine[0], mode))
        found[key] = (mine, step.total[0] / np.array([float(row["latency_ms"]) * 1e-3 for row in mine]) - 1.0)
    return found


def interval_text(rows: list[Row]) -> str:
    """90 % quantiles of |ln(predicted / composed)| by kind of model, for fitted and for assumed efficiencies.

    fitted: leave-one-model-out; assumed: every accelerator from its relative, without what a relative cannot know
    (PCIe groups that share a link, kernels that are suspect on the relative only).
    """
    pooled: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for origin, mode in (("fitted", "--leave-one-out"), ("assumed", "--relative")):
        for mine, error in errors_of(rows, mode).values():
            linked = SYSTEMS[mine[0]["system"]] == "L40S" and mine[0]["tp"] != "1"
            suspect = SYSTEMS[mine[0]["system"]] in FROM_KERNELS and mine[0]["moe_quant"] == "fp8"
            if origin == "fitted" or not (linked or suspect):
                pooled[family(mine[0]), origin].append(np.abs(np.log1p(error)))
    lines = [
        "# written by benchmarks/engine_steps.py --write: half-width of the 90 % interval of a step's time, in ln",
        "# interval = predicted x exp(+-half-width); fitted: efficiencies of the accelerator itself, tested without",
        "# the model (or without any step); assumed: efficiencies of a relative",
    ]
    for kind in ("dense", "moe", "mla"):
        figures = {
            origin: float(np.quantile(np.concatenate(pooled[kind, origin]), 0.9)) for origin in ("fitted", "assumed")
        }
        lines.append(f"{kind}: {{fitted: {figures['fitted']:.3f}, assumed: {figures['assumed']:.3f}}}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, and the summary with leave-one-out."""
    rows = read_rows()
    if "--write" in sys.argv[1:]:
        INTERVALS.write_text(interval_text(rows), encoding="utf-8")
        return
    with_classes = "--classes" in sys.argv[1:]
    mode = next((option for option in ("--leave-one-out", "--relative") if option in sys.argv[1:]), "")
    errors: dict[Group, list[Array]] = defaultdict(list)
    sums: dict[Group, list[Array]] = defaultdict(list)
    parts: dict[Group, dict[str, list[Array]]] = defaultdict(lambda: defaultdict(list))
    for key, (mine, error) in errors_of(rows, mode).items():
        system, model, dtype, *_, expert, phase = key
        group: Group = (system, model + (" EP" if float(expert or 1) > 1 else ""), dtype, phase)
        errors[group].append(error)
        sums[summary_key(mine[0])].append(error)
        if with_classes:
            for name, (ours, theirs) in class_times(predicted(mine, engine_of(mine[0], mode)), mine).items():
                real = theirs > 0
                parts[group][name].append(ours[real] / theirs[real])
    print(f"{'system':<13} {'model':<17} {'dtype':<10} {'phase':<8} {'rows':>5} {'MAPE':>7} {'bias':>7}", end="")
    print("".join(f" {name:>6}" for name in CLASSES) if with_classes else "")
    for group, lists in sorted(errors.items()):
        print(line(group, np.concatenate(lists), parts[group] if with_classes else {}))
    everything = np.concatenate([error for lists in errors.values() for error in lists])
    print(line(("all", "", "", ""), everything, {}))
    if mode:
        print_summary({group: np.concatenate(lists) for group, lists in sums.items()}, mode)


def print_summary(sums: dict[Group, Array], mode: str) -> None:
    """Error by kind of model, spread of ln(predicted / composed), and coverage of the intervals as written."""
    widths = yaml.safe_load(INTERVALS.read_text(encoding="utf-8"))
    origin = "assumed" if mode == "--relative" else "fitted"
    print(f"\n{'fitted to':<13} {'model':<17} {'dtype':<10} {'phase':<8} {'rows':>5} {'MAPE':>7} {'bias':>7}", end="")
    print(f" {'rms ln':>6} {'q90 ln':>6} {'in 90 %':>7}")
    inside: dict[str, list[Array]] = defaultdict(list)
    for group, error in sorted(sums.items()):
        logs = np.abs(np.log1p(error))
        held = logs <= widths[group[1]][origin]
        inside[group[1]].append(held)
        spread = f" {np.sqrt(np.mean(logs**2)):>6.3f} {np.quantile(logs, 0.9):>6.3f} {np.mean(held):>7.0%}"
        print(line(group, error, {}) + spread)
    for kind, parts in inside.items():
        print(f"coverage of the 90 % interval, {kind}: {np.mean(np.concatenate(parts)):.1%}")


def line(group: Group, error: Array, parts: dict[str, list[Array]]) -> str:
    """One row: mean absolute and mean relative error, and the median ratio of each class."""
    system, model, dtype, phase = group
    text = f"{system:<13} {model:<17} {dtype:<10} {phase:<8} {error.size:>5} "
    text += f"{np.mean(np.abs(error)):>7.1%} {np.mean(error):>+7.1%}"
    for ratios in parts.values():
        ratio = np.concatenate(ratios)
        text += f" {np.median(ratio):>6.2f}" if ratio.size else f" {'':>6}"
    return text


if __name__ == "__main__":
    main()
