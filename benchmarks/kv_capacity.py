"""Scores predicted KV capacity against what engines logged when they started, row by row.

    python benchmarks/kv_capacity.py            # fit, and leave each model and each GPU out in turn
    python benchmarks/kv_capacity.py --write    # and rewrite costmodel/catalog/engine_memory.yaml

Data: serving/kv_capacity.csv in PDPLAN_DATA, else ../shared/data. Logged tokens are turned into GiB of one GPU by the
model's KV bytes; where a log has GiB and tokens, the bytes per token are scored. Batch limits are the engines' defaults
(`defaults`). An engine failed if the log says so, or if it had less than one request of max_model_len needs, which
engines refuse; rows under LEAST_GIB say only that nothing was left, and have no relative error. The fit is of the
figures in FITTED; other engines than vLLM take those that their own logs do not show.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.folders import data_folder  # noqa: E402
from costmodel.accelerator import Accelerator  # noqa: E402
from costmodel.calibration import pattern_search  # noqa: E402
from costmodel.engine import EngineConfig, Parallelism  # noqa: E402
from costmodel.memory import kv_bytes_peak_per_gpu, kv_bytes_per_token_per_gpu, kv_capacity_bytes  # noqa: E402
from costmodel.transformer import Transformer  # noqa: E402
from costmodel.units import GIB  # noqa: E402
from search_spaces.catalog import AcceleratorCatalog, load_catalog  # noqa: E402
from search_spaces.engines import load_engine_memory  # noqa: E402
from search_spaces.enumeration import memory_refused  # noqa: E402
from search_spaces.measured_engines import in_dtype, measured_engine, measured_model  # noqa: E402
from search_spaces.measurements import DTYPE_WORDS  # noqa: E402

FloatArray = NDArray[np.float64]

CONSUMER_GIB = {"RTX-3090": 23.6, "RTX-4090": 23.6}
"""Memory that CUDA reports of cards that the catalog lacks; out-of-memory messages of PyTorch, vLLM's logs."""
LEAST_GIB = 0.5
WITHIN = 0.06
FITTED = {
    "runtime": (0.5, GIB),
    "collectives": (1.5, GIB),
    "logit_copies": (3.0, 1.0),
    "gathered_copies": (2.0, 1.0),
    "expert_copies": (4.0, 1.0),
}
"""What each figure is drawn to, assumed, and its unit."""
PULL = 0.05
"""Weight of that beside a row's error over WITHIN."""
OTHERS = {"sglang": ("logit_copies", "gathered_copies", "expert_copies"), "trtllm": tuple(FITTED)}
"""Figures that engines take from vLLM."""
CATALOG = ROOT / "costmodel" / "catalog" / "engine_memory.yaml"


@dataclass(frozen=True, slots=True)
class Capacity:
    """One row: the engine, and what its log says; logged: KV of one GPU [byte], NaN where only success is known.

    per_token: KV bytes of a token where the log has them; failed: whether the engine did not start.
    """

    words: dict[str, str]
    model: Transformer
    config: EngineConfig
    logged: float
    per_token: float
    failed: bool

    @property
    def predicted(self) -> float:
        """What the model has in place of `logged` [byte]; of a log with bytes per token, its bytes at ours."""
        if np.isfinite(self.per_token):
            return self.logged * self.per_token / float(kv_bytes_per_token_per_gpu(self.model, self.config))
        return kv_capacity_bytes(self.model, self.config)

    @property
    def error(self) -> float:
        """predicted / logged - 1 [1]; NaN where too little was logged."""
        return self.predicted / self.logged - 1.0 if self.logged >= LEAST_GIB * GIB else np.nan

    @property
    def verdict(self) -> str:
        """Whether a plan may use the engine for requests of its max_model_len; empty where no layout is stated."""
        if np.isfinite(self.per_token):
            return ""
        accepted = memory_refused(self.model, self.config) is None
        return ("yes, but failed" if self.failed else "yes") if accepted else ("no" if self.failed else "no, but ran")


def read_rows(path: Path) -> list[Capacity]:
    """Every row of the file."""
    catalog = load_catalog(None)
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(words, catalog) for words in csv.DictReader(file)]


def defaults(engine: str, version: str, accelerator: Accelerator, longest: int) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs that an engine of that version takes where no flag says otherwise.

    vLLM's `EngineArgs`: V0 without chunks up to 32k of context; V1 has 8,192 tokens on GPUs of 70 GiB and more but
    A100, and 1,024 requests there from 0.8 on (0.8.0 to 0.8.2 on every GPU). SGLang: `ServerArgs`.
    """
    large = accelerator.memory >= 70 * GIB and not accelerator.name.startswith("A100")
    if engine == "sglang":
        return 8192, 256
    if "V0" in version:
        return (longest if longest <= 32768 else 2048), 256
    many = "V1" not in version and (large or re.search(r"0\.8\.[0-2]", version) is not None)
    return (8192 if large else 2048), (1024 if many else 256)


def _row(words: dict[str, str], catalog: AcceleratorCatalog) -> Capacity:
    written, version = words["model"], words["engine_version"]
    name = re.search(r"\((?:as )?(\S+?)(?: config)?\)", written)
    published = measured_model(name[1] if name and "SGLang" not in written else re.split(r"[ ,]", written)[0])
    dtypes = (dtype for dtype, pattern in DTYPE_WORDS.items() if dtype != "bf16" and pattern.search(written.lower()))
    dtype = next(dtypes, "") or ("bf16" if "BF16" in written else published.native_weight_dtype)
    model, dtype = in_dtype(published, dtype, dtype)
    accelerator = _accelerator(words["gpu"], catalog)
    engine, longest = version.split()[0], int(words["max_model_len"])
    tokens, seqs = defaults(engine, version, accelerator, longest)
    stated = re.search(r"max_num_seqs (\d+)", written)
    config = measured_engine(
        catalog,
        accelerator.name,
        model,
        Parallelism(int(words["tp"]), int(words["pp"])),
        dtype,
        kv_dtype=words["kv_dtype"],
        memory_fraction=float(words["gpu_memory_utilization"]),
    )
    config = replace(
        config,
        accelerator=accelerator,
        memory=load_engine_memory(engine),
        max_num_seqs=int(stated[1]) if stated else seqs,
        max_num_batched_tokens=tokens,
        max_model_len=longest,
    )
    logged, per_token = _logged(words["reported"], model, config)
    refused = logged < float(kv_bytes_peak_per_gpu(model, config, float(longest)))
    return Capacity(words, model, config, logged, per_token, bool(refused))


def _accelerator(name: str, catalog: AcceleratorCatalog) -> Accelerator:
    if name in CONSUMER_GIB:
        return replace(catalog.accelerator("A10"), memory=CONSUMER_GIB[name] * GIB)
    return catalog.accelerator(name)


def _logged(reported: str, model: Transformer, config: EngineConfig) -> tuple[float, float]:
    """KV bytes of one GPU, and bytes of a token where the log has both."""
    size, unit, tokens = reported.partition("GiB")
    if reported.startswith((">", "<")):
        return (np.nan if reported.startswith(">") else 0.0), np.nan
    if not unit:
        return float(kv_bytes_peak_per_gpu(model, config, float(size))), np.nan
    return float(size) * GIB, (float(size) * GIB / float(tokens.lstrip("=")) if tokens else np.nan)


def with_memory(row: Capacity, figures: Mapping[str, float]) -> Capacity:
    """The row with other figures in place of its engine's; figures in the units of FITTED."""
    if row.words["engine_version"].startswith("sglang"):
        figures = {name: figures[name] for name in OTHERS["sglang"]}
    values = {name: value * FITTED[name][1] for name, value in figures.items()}
    return replace(row, config=replace(row.config, memory=replace(row.config.memory, **values)))


def fit(rows: Sequence[Capacity]) -> dict[str, float]:
    """The figures that fit the rows best: large errors count linearly, and room where an engine failed counts too."""
    start = np.array([drawn for drawn, _ in FITTED.values()])

    def loss(values: FloatArray) -> float:
        figures = dict(zip(FITTED, values.tolist(), strict=True))
        total = PULL * float(((values / start - 1.0) ** 2).sum())
        for row in (with_memory(row, figures) for row in rows):
            if np.isfinite(row.error):
                total += float(np.hypot(1.0, row.error / WITHIN)) - 1.0
            elif row.failed:
                room = row.predicted - float(kv_bytes_peak_per_gpu(row.model, row.config, row.config.max_model_len))
                total += max(room, 0.0) / GIB / WITHIN
        return total

    values, _ = pattern_search(loss, start, np.zeros(start.size), 4.0 * start)
    return {name: round(value, 2) for name, value in zip(FITTED, values.tolist(), strict=True)}


def held_out(rows: list[Capacity], word: str) -> list[Capacity]:
    """Every row with figures from the rows that differ in a word of theirs; models by family."""

    def key(row: Capacity) -> str:
        return row.model.name if word == "model" else row.words[word]

    figures = {each: fit([row for row in rows if key(row) != each]) for each in {key(row) for row in rows}}
    return [with_memory(row, figures[key(row)]) for row in rows]


def table(rows: list[Capacity]) -> Iterator[str]:
    """A line per row, and the summary."""
    yield f"{'model':42}{'GPU':14}{'TP':>3} {'engine':16}{'logged':>8}{'ours':>8}{'error':>8}  accepted"
    for row in rows:
        words, size = row.words, f"{row.logged / GIB:.2f}" if np.isfinite(row.logged) else "starts"
        error = f"{row.error:+.1%}" if np.isfinite(row.error) else ""
        yield (
            f"{words['model'][:41]:42}{words['gpu']:14}{words['tp']:>3} {words['engine_version'][:15]:16}{size:>8}"
            f"{row.predicted / GIB:8.2f}{error:>8}  {row.verdict}"
        )
    yield summary(rows)


def summary(rows: list[Capacity]) -> str:
    """How many rows are near, and how many verdicts are wrong."""
    errors = np.array([row.error for row in rows if np.isfinite(row.error)])
    verdicts = [row.verdict for row in rows]
    return (
        f"{np.mean(np.abs(errors) <= WITHIN):.0%} of {errors.size} rows within {WITHIN:.0%}, median error "
        f"{np.median(np.abs(errors)):.1%}; accepted but failed: {verdicts.count('yes, but failed')}, "
        f"refused but ran: {verdicts.count('no, but ran')}"
    )


def write(figures: Mapping[str, float]) -> None:
    """Put the figures into the catalog file, under vLLM and what follows it."""
    text = CATALOG.read_text("utf-8")
    for engine, names in {"vllm": tuple(FITTED), **OTHERS}.items():
        for name in names:
            key = name + ("_gib" if FITTED[name][1] == GIB else "")
            entry = re.compile(rf"(^{engine}:(?:\n  .*)*?\n  {key}: ).*", re.MULTILINE)
            text = entry.sub(rf"\g<1>{figures[name]:g}", text)
    CATALOG.write_text(text, "utf-8")


def main() -> None:
    rows = read_rows(data_folder() / "serving" / "kv_capacity.csv")
    figures = fit(rows)
    print(*table([with_memory(row, figures) for row in rows]), sep="\n")
    print("catalog:", summary(rows))
    for word in ("model", "gpu"):
        print(f"each {word} left out:", summary(held_out(rows, word)))
    print("fitted:", ", ".join(f"{name} {value:g}" for name, value in figures.items()))
    if "--write" in sys.argv[1:]:
        write(figures)


if __name__ == "__main__":
    main()
