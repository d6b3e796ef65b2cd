"""How often `pdplan calibrate` refuses measured runs with their true flags, and with wrong ones.

Each group of closed_loop.csv (model, GPU, engine, precision, layout) is fitted with its own flags, with every other
precision, and with half and twice the tensor ranks. Of each model, GPU, engine and precision the two largest groups.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.errors import InputError  # noqa: E402
from search_spaces.calibration import Calibration, Setup, calibrate  # noqa: E402
from search_spaces.catalog import load_catalog  # noqa: E402
from search_spaces.engines import ENGINES  # noqa: E402
from search_spaces.measured_engines import measured_model  # noqa: E402
from search_spaces.measurements import Latency, MeasuredRun, Workers, read_measurements, weight_dtype  # noqa: E402

ROWS, LEAST = 8, 5
"""Runs of a group that are fitted, and that it must have."""
DTYPES = ("bf16", "fp8", "int4", "fp4")
WRONG = 12
"""Groups that are fitted with wrong flags, drawn at random."""

Key = tuple[str, str, str, str]
Group = tuple[Key, Workers, list[MeasuredRun]]


def main() -> None:
    """Print a line for each fit, and how many were kept."""
    folder = data_folder()
    chosen = groups(folder)
    counts = Counter[str]()
    for group in chosen:
        counts[f"true flags: {told(group, {}, folder, 'true')}"] += 1
    random.Random(0).shuffle(chosen)
    for group in chosen[:WRONG]:
        (_, _, _, dtype), workers, _ = group
        for other in DTYPES:
            if other != dtype:
                counts[f"wrong precision: {told(group, {'weight_dtype': other}, folder, other)}"] += 1
        for tensor in {workers.split.tensor * 2, workers.split.tensor // 2} - {0}:
            changed = replace(workers, split=replace(workers.split, tensor=tensor))
            counts[f"wrong ranks: {told(group, {'workers': changed}, folder, f'TP{tensor}')}"] += 1
    print("\n".join(f"{number:4d} {what}" for what, number in sorted(counts.items())))


def groups(folder: Path) -> list[Group]:
    """The groups, largest first within each key."""
    rows: dict[Key, dict[Workers, list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
    for row in read_measurements(folder / "serving" / "closed_loop.csv")[1]:
        usable = isinstance(row, MeasuredRun) and row.decode is None and row.concurrency is not None
        if usable and row.engine in ENGINES and math.isfinite(sum(row.scored)):
            rows[row.model, row.accelerator, row.engine, weight_dtype(row.gemm_dtype)][row.prefill].append(row)
    return [
        (key, layout, found[:: max(len(found) // ROWS, 1)][:ROWS])
        for key, layouts in rows.items()
        for layout, found in sorted(layouts.items(), key=lambda item: -len(item[1]))[:2]
        if len(found) >= LEAST
    ]


def told(group: Group, changes: dict[str, object], folder: Path, flags: str) -> str:
    """Fit a group and print the outcome: kept, refused, or forbidden by physics."""
    key, workers, rows = group
    model, accelerator, engine, dtype = key
    catalog = load_catalog()
    gpu, published = catalog.accelerator(accelerator), measured_model(model, folder / "models")
    setup = Setup(catalog, model, published, gpu, workers, engine, dtype)
    try:
        found = calibrate([run_of(row) for row in rows], replace(setup, **changes), "measured")  # type: ignore[arg-type]
    except InputError as error:
        print(*key, workers.split.tensor, flags, "forbidden:", error, flush=True)
        return "forbidden"
    print(*key, workers.split.tensor, flags, figures(found), found.refusal or "kept", flush=True)
    return "refused" if found.refusal else "kept"


def figures(found: Calibration) -> str:
    """The median error before and after the fit, and its strain."""
    before, after = (np.median(np.abs(np.expm1(part))) for part in (found.fit.before, found.fit.after))
    return f"{before:.0%} -> {after:.0%}, {found.fit.strain:.2f} sigma"


def run_of(row: MeasuredRun) -> MeasuredRun:
    """A row as a run of a load generator; InferenceX draws lengths from [0.8, 1] of the nominal ones."""
    mean = 0.9 if row.source.startswith("ix") else 1.0
    return MeasuredRun(
        where=f"line {row.line}",
        source="vllm bench serve",
        isl=row.isl * mean,
        osl=row.osl * mean,
        ttft=Latency(row.scored[0]),
        tpot=Latency(row.scored[1]),
        spread=2.0 * (1.0 - mean),
        concurrency=row.concurrency,
        request_rate=math.inf,
        prompts=int(10 * (row.concurrency or 1)),
    )


if __name__ == "__main__":
    main()
