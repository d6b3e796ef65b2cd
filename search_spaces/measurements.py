"""Measured serving results and engine steps as rows: two CSV formats, told apart by their header.

A closed-loop file has one row per benchmark run at fixed concurrency (model, accelerator, engine, layout, ISL, OSL,
ttft_ms, tpot_ms); a step file has one row per engine step (system, backend, model, phase, batch, seq, latency_ms).
Unknown columns are kept out of the way, missing optional ones count as empty, and a cell that cannot be read makes its
row a refusal with a reason: nothing is dropped in silence.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path

from costmodel.errors import InputError
from costmodel.quoting import shown

from .bounds import TOKENS
from .files import LARGEST_RESULTS, read_file
from .measured_cells import (
    CONCURRENCY,
    FIRST_TOKEN,
    GPUS,
    NEXT_TOKEN,
    SHARE,
    STEP_BATCH,
    STEP_LATENCY,
    WORKERS,
    CellError,
    Cells,
    bounded,
    count,
    length,
    measured,
    mode_of,
    phase_of,
    text,
    whole,
)
from .plain_text import decoded

SERVING_COLUMNS = ("model", "accelerator", "isl", "osl")
STEP_COLUMNS = ("system", "model", "phase", "batch", "seq")
"""Columns without which a file cannot be read; all others are optional."""
SIDE_COLUMNS = ("workers", "tp", "pp", "dp", "ep")
SEPARATORS = (";", "\t", "|")
"""What stands between the fields of a file that is no comma-separated one."""
ATTENTION_DATA = re.compile(r"\(?\s*attention\s*dp\s*(\d+)\s*\)?", re.IGNORECASE)
"""A layout written in words: the attention's data ranks stand where the tensor ranks are expected."""


class Format(StrEnum):
    """What a row of the file measures."""

    SERVING = "serving"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class Layout:
    """How one worker splits the model: tensor x pipeline x data ranks of the attention, expert ranks of the experts.

    workers: equal workers that share the requests; expert 0: not stated.
    """

    workers: int
    tensor: int
    pipeline: int
    data: int
    expert: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Flags of the engine that a row states; None or empty where it does not.

    kv_dtype: the file's word for the dtype of the KV cache; memory_fraction: share of HBM that the engine takes [1];
    token_budget: most prompt tokens in a step [token]; looks: decode steps from one look at the queue to the next [1].
    """

    kv_dtype: str = ""
    memory_fraction: float | None = None
    token_budget: int | None = None
    looks: int | None = None

    def over(self, habit: Settings) -> Settings:
        """These flags, and those of `habit` where nothing is stated."""
        stated = {item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name)}
        return replace(habit, **stated)


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One benchmark run at fixed concurrency.

    line: of the file; isl, osl: nominal lengths [token]; concurrency: requests in flight, None where not stated;
    gpus: of the whole deployment; decode is None for a colocated one; ttft, tpot: measured [s], NaN where absent;
    precision: the file's word for the checkpoint, which counts where gemm_dtype is not given; median: whether the TTFT
    is the median of the run, which no warm-up affects, and not its mean; mean_ttft: that mean beside the median [s].
    """

    line: int
    source: str
    model: str
    accelerator: str
    engine: str
    gemm_dtype: str
    moe_dtype: str
    isl: float
    osl: float
    concurrency: float | None
    gpus: int
    prefill: Layout
    decode: Layout | None
    ttft: float
    tpot: float
    precision: str = ""
    median: bool = False
    mean_ttft: float = math.nan
    settings: Settings = Settings()

    @property
    def mode(self) -> str:
        """Return "colocated" or "disaggregated"."""
        return "colocated" if self.decode is None else "disaggregated"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One engine step: `batch` prompts of `seq` tokens, or `batch` decodes at a context of `seq`; latency [s]."""

    line: int
    model: str
    accelerator: str
    engine: str
    dtype: str
    gemm_dtype: str
    moe_dtype: str
    kv_dtype: str
    layout: Layout
    phase: str
    batch: int
    seq: int
    latency: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be predicted, and why."""

    line: int
    reason: str


Row = ServingRow | StepRow | Refused


def read_measurements(path: Path) -> tuple[Format, list[Row]]:
    """All rows of a measurement file in its order; InputError where the file as a whole cannot be read."""
    text = decoded(read_file(path, LARGEST_RESULTS, "a CSV file of measurements"), str(path))
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        kind = _format(header, path)
        return kind, list(_rows(reader, header, kind))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not readable as CSV: {error}") from error


def _rows(reader: Iterator[list[str]], header: Sequence[str], kind: Format) -> Iterator[Row]:
    read = _serving_row if kind is Format.SERVING else _step_row
    for record in reader:
        line: int = reader.line_num  # type: ignore[attr-defined]
        fields = [field.strip() for field in record]
        if not any(fields):
            continue
        if len(fields) < len(header) or any(fields[len(header) :]):
            yield Refused(line, f"the row has {_fields(len(fields))}, the header {len(header)}")
            continue
        try:
            yield read(line, dict(zip(header, fields, strict=False)))
        except CellError as fault:
            yield Refused(line, str(fault))


def _fields(number: int) -> str:
    return "1 field" if number == 1 else f"{number} fields"


def _format(header: Sequence[str], path: Path) -> Format:
    twice = [name for name, times in Counter(header).items() if name and times > 1]
    if twice:
        raise InputError(f"{path}: the header has the column {shown(twice[0])} {header.count(twice[0])} times")
    lacking = {
        kind: [name for name in needed if name not in header]
        for kind, needed in ((Format.SERVING, SERVING_COLUMNS), (Format.STEPS, STEP_COLUMNS))
    }
    for kind, missing in lacking.items():
        if not missing:
            return kind
    raise InputError(f"{path}: {_no_format(header, lacking)}")


def _no_format(header: Sequence[str], lacking: Mapping[Format, Sequence[str]]) -> str:
    """Why a header is that of no format: what the nearer one lacks, if either is near at all."""
    if not any(header):
        return "there is no header; the first line must name the columns"
    separator = next((mark for mark in SEPARATORS if len(header) == 1 and mark in header[0]), None)
    if separator:
        return f"the fields are separated by {shown(separator)}, but must be by ','"
    needed = {Format.SERVING: ("serving results", SERVING_COLUMNS), Format.STEPS: ("engine steps", STEP_COLUMNS)}
    kind = min(lacking, key=lambda kind: len(lacking[kind]) / len(needed[kind][1]))
    if len(lacking[kind]) < len(needed[kind][1]):
        words, columns = needed[kind]
        return f"the header lacks {', '.join(lacking[kind])}; {words} need {', '.join(columns)}"
    return (
        f"the header is neither that of serving results ({', '.join(SERVING_COLUMNS)}, ...) "
        f"nor that of engine steps ({', '.join(STEP_COLUMNS)}, ...)"
    )


def _serving_row(line: int, cells: Cells) -> ServingRow:
    split = mode_of(cells) == "disaggregated"
    gpus = whole(cells, "num_gpus", 0, GPUS)
    prefill = _side(cells, "prefill_") if split else _colocated(cells, gpus)
    decode = _side(cells, "decode_") if split else None
    if decode and gpus and _gpus(prefill) + _gpus(decode) > gpus:
        prefill, decode = _all_ranks(prefill), _all_ranks(decode)
    if cells.get("spec_method", "none") not in ("", "none"):
        raise CellError(f"speculative decoding ({cells['spec_method']}) is not predicted")
    mean, middle = (measured(cells, name, FIRST_TOKEN) for name in ("ttft_ms", "ttft_median_ms"))
    median = not math.isnan(middle)
    next_token = "tpot_median_ms" if cells.get("tpot_median_ms") else "tpot_ms"
    return ServingRow(
        line=line,
        source=cells.get("set", ""),
        model=text(cells, "model"),
        accelerator=text(cells, "accelerator"),
        engine=cells.get("engine", "").lower(),
        gemm_dtype=cells.get("gemm_dtype") or cells.get("precision", ""),
        moe_dtype=cells.get("moe_dtype") or cells.get("gemm_dtype") or cells.get("precision", ""),
        isl=length(cells, "isl"),
        osl=length(cells, "osl"),
        concurrency=bounded(cells, "concurrency", CONCURRENCY) if cells.get("concurrency") else None,
        gpus=gpus or sum(_gpus(side) for side in (prefill, decode) if side),
        prefill=prefill,
        decode=decode,
        ttft=middle if median else mean,
        tpot=measured(cells, next_token, NEXT_TOKEN),
        precision=cells.get("precision", ""),
        median=median,
        mean_ttft=mean if median else math.nan,
        settings=stated_settings(cells),
    )


def stated_settings(cells: Cells) -> Settings:
    """The engine's flags of a row, under the names of this module or of the engines' command lines."""
    chunk, looks = ("max_num_batched_tokens", "chunked_prefill_size"), ("scheduler_recv_interval",)
    budget = next((name for name in chunk if cells.get(name)), "")
    interval = next((name for name in looks if cells.get(name)), "")
    return Settings(
        kv_dtype=cells.get("kv_dtype", "") or cells.get("kv_cache_dtype", ""),
        memory_fraction=bounded(cells, "memory_fraction", SHARE) if cells.get("memory_fraction") else None,
        token_budget=count(cells, budget, TOKENS) if budget else None,
        looks=count(cells, interval, TOKENS) if interval else None,
    )


def _step_row(line: int, cells: Cells) -> StepRow:
    layout = Layout(1, *(whole(cells, name, 1) for name in ("tp", "pp", "dp", "moe_ep")))
    return StepRow(
        line=line,
        model=text(cells, "model"),
        accelerator=text(cells, "system"),
        engine=cells.get("backend", "").lower(),
        dtype=cells.get("dtype") or cells.get("gemm_quant") or "bf16",
        gemm_dtype=cells.get("gemm_quant") or cells.get("dtype") or "bf16",
        moe_dtype=cells.get("moe_quant") or cells.get("gemm_quant") or cells.get("dtype") or "bf16",
        kv_dtype=cells.get("kv_quant") or "bf16",
        layout=layout,
        phase=phase_of(cells),
        batch=count(cells, "batch", STEP_BATCH),
        seq=count(cells, "seq", TOKENS),
        latency=measured(cells, "latency_ms", STEP_LATENCY),
    )


def _colocated(cells: Cells, gpus: int) -> Layout:
    """The layout of one of the equal engines that the GPUs make up.

    Attention data ranks may be given in words in place of tp, or beside a tp that counts all ranks.
    """
    pipeline, expert = whole(cells, "pp", 1), whole(cells, "ep", 1)
    words = ATTENTION_DATA.fullmatch(cells.get("tp", ""))
    if words:
        data = whole({"tp": words[1]}, "tp", 1)
        tensor = max((gpus or data) // (data * pipeline), 1)
        return Layout(1, tensor, pipeline, data, expert)
    tensor, data = whole(cells, "tp", 1), whole(cells, "dp", 1)
    if gpus and tensor * pipeline * data > gpus and tensor % data == 0 and tensor * pipeline == gpus:
        tensor //= data  # tp counts all ranks, dp says how many groups the attention makes of them
    size = tensor * pipeline * data
    if gpus and gpus % size:
        raise CellError(f"tp {tensor} x pp {pipeline} x dp {data} does not divide num_gpus {gpus}")
    return Layout(max(gpus // size, 1) if gpus else 1, tensor, pipeline, data, expert)


def _side(cells: Cells, prefix: str) -> Layout:
    """The workers of one side of a disaggregated deployment; one that nothing is said of is not guessed."""
    names = [prefix + name for name in SIDE_COLUMNS]
    if not any(cells.get(name) for name in names):
        raise CellError(f"a disaggregated row needs {names[0]} and {names[1]}, but all {prefix}... columns are empty")
    workers, *ranks = names
    return Layout(whole(cells, workers, 1, WORKERS), *(whole(cells, name, 1) for name in ranks))


def _all_ranks(side: Layout) -> Layout:
    """The side where tp counts all ranks and data says how many groups the attention makes of them."""
    return side if side.tensor % side.data else replace(side, tensor=side.tensor // side.data)


def _gpus(side: Layout) -> int:
    return side.workers * side.tensor * side.pipeline * side.data
