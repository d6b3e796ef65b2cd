"""Flags that benchmark rows do not state, from a table of the scripts that ran them (serving/engine_settings.csv).

The table has a row for each script of InferenceX's single-node runs: model, precision, GPU and engine, and the flags of
the engine's command line. A flag may hold a variable of the script or two values; only what is one number or one word
counts, and SGLang's poll interval, whose variable has the same two values in all of its scripts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from .files import LARGEST_RESULTS, read_file
from .measurements import Row, ServingRow, Settings
from .plain_text import decoded

SCRIPTS = "engine_settings.csv"
"""Name of the table, beside the measurements."""
RUNS = "ix"
"""How the `set` of rows begins that these scripts ran."""
MODELS: Mapping[str, tuple[str, ...]] = {"dsr1": ("deepseekr1", "deepseekv3"), "dsv4": ("deepseekv4",)}
"""The scripts' words for models that are no part of the rows' names, in plain letters."""
INTERVAL = "SCHEDULER_RECV_INTERVAL"
FEW, LOOKS_OF_FEW, LOOKS_OF_MANY = 16, 10, 30
"""SGLang's scripts set the interval to 10 for fewer than 16 requests in flight and else to 30."""
PLAIN = re.compile(r"[^a-z0-9]")
YAML_KV = re.compile(r"(?:^|\|)dtype=(\w+)")


def read_scripts(path: Path) -> list[Mapping[str, str]]:
    """The rows of the table; none where there is no such file."""
    if not path.is_file():
        return []
    text = decoded(read_file(path, LARGEST_RESULTS, "a CSV file of engine settings"), str(path))
    return list(csv.DictReader(io.StringIO(text, newline="")))


def with_settings(rows: Iterable[Row], scripts: Iterable[Mapping[str, str]]) -> list[Row]:
    """The rows with the flags of their script where they state none; those of other benchmarks stay as they are."""
    plain = [each for each in scripts if "mtp" not in each.get("variant", "")]
    return [_with_script(row, plain) if isinstance(row, ServingRow) else row for row in rows]


def _with_script(row: ServingRow, scripts: Iterable[Mapping[str, str]]) -> ServingRow:
    if row.decode is not None or not row.source.startswith(RUNS):
        return row
    script = next((each for each in scripts if _ran(each, row)), None)
    return row if script is None else replace(row, settings=row.settings.over(_habit(script, row.concurrency or 0.0)))


def _ran(script: Mapping[str, str], row: ServingRow) -> bool:
    """Whether a script is that of a row: model, precision, GPU and engine."""
    word, name = script["model"], PLAIN.sub("", row.model.lower())
    words = MODELS.get(word, (PLAIN.sub("", word),))
    gpu = row.accelerator.lower().split("_")[0]
    return (
        (script["engine"], script["gpu"], script["precision"]) == (row.engine, gpu, row.precision)
        and any(each in name for each in words)
    )  # fmt: skip


def _habit(script: Mapping[str, str], concurrency: float) -> Settings:
    yaml = YAML_KV.search(script.get("trtllm_yaml", ""))
    written = yaml[1] if yaml else script.get("kv-cache-dtype", "")
    share = script.get("gpu-memory-utilization") or script.get("mem-fraction-static") or ""
    budget = script.get("max-num-batched-tokens") or script.get("chunked-prefill-size") or ""
    return Settings(
        kv_dtype=(written if yaml or written else "auto").split("|")[0],
        memory_fraction=float(share) if re.fullmatch(r"0\.\d+", share) else None,
        token_budget=int(budget) if budget.isdigit() else None,
        looks=_looks(script.get("scheduler-recv-interval", ""), concurrency),
    )


def _looks(written: str, concurrency: float) -> int | None:
    """Decode steps from one look at the queue to the next."""
    if written.isdigit():
        return int(written)
    if INTERVAL in written:
        return LOOKS_OF_FEW if concurrency < FEW else LOOKS_OF_MANY
    return None
