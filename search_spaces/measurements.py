"""Measured serving results and engine steps as rows: two CSV formats, told apart by their header.

A closed-loop file has one row per benchmark run at fixed concurrency (model, accelerator, engine, layout, ISL, OSL,
ttft_ms, tpot_ms); a step file has one row per engine step (system, backend, model, phase, batch, seq, latency_ms).
Unknown columns are kept out of the way, missing optional ones count as empty, and a cell that cannot be read makes its
row a refusal with a reason: nothing is dropped in silence.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from costmodel.errors import InputError

SERVING_COLUMNS = frozenset({"model", "accelerator", "engine", "isl", "osl"})
STEP_COLUMNS = frozenset({"system", "model", "phase", "batch", "seq"})
PHASES = {"context": "prefill", "ctx": "prefill", "generation": "decode", "gen": "decode"}
"""Other words for the phase of a step."""
PREFIXED = re.compile(r"(tp|pp|dp|ep)\s*=?\s*(\d+)", re.IGNORECASE)
ATTENTION_DATA = re.compile(r"\(?\s*attention\s*dp\s*(\d+)\s*\)?", re.IGNORECASE)
"""A layout written in words: the attention's data ranks stand where the tensor ranks are expected."""

Cells = Mapping[str, str]


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
class ServingRow:
    """One benchmark run at fixed concurrency.

    line: of the file; isl, osl: nominal lengths [token]; concurrency: requests in flight, None where not stated;
    gpus: of the whole deployment; decode is None for a colocated one; ttft, tpot: measured [s], NaN where absent.
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


class _CellError(Exception):
    """A cell does not hold what its column promises."""


def read_measurements(path: Path) -> tuple[Format, list[Row]]:
    """All rows of a measurement file in its order; InputError where the file as a whole cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            kind = _format(reader.fieldnames or [], path)
            return kind, list(_rows(reader, kind, path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _rows(reader: csv.DictReader[str], kind: Format, path: Path) -> Iterator[Row]:
    read = _serving_row if kind is Format.SERVING else _step_row
    try:
        for record in reader:
            cells = {name: (value or "").strip() for name, value in record.items() if isinstance(name, str)}
            if not any(cells.values()):
                continue
            try:
                yield read(reader.line_num, cells)
            except _CellError as fault:
                yield Refused(reader.line_num, str(fault))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not readable as CSV: {error}") from error


def _format(header: object, path: Path) -> Format:
    names = {name.strip() for name in header if isinstance(name, str)} if isinstance(header, list) else set()
    if names >= SERVING_COLUMNS:
        return Format.SERVING
    if names >= STEP_COLUMNS:
        return Format.STEPS
    raise InputError(
        f"{path}: the header is neither that of serving results ({', '.join(sorted(SERVING_COLUMNS))}, ...) "
        f"nor that of engine steps ({', '.join(sorted(STEP_COLUMNS))}, ...)"
    )


def _serving_row(line: int, cells: Cells) -> ServingRow:
    split = cells.get("mode", "").lower().startswith("dis") or bool(cells.get("decode_workers"))
    gpus = _whole(cells, "num_gpus", 0)
    prefill = _side(cells, "prefill_") if split else _colocated(cells, gpus)
    decode = _side(cells, "decode_") if split else None
    if decode and gpus and _gpus(prefill) + _gpus(decode) > gpus:
        prefill, decode = _all_ranks(prefill), _all_ranks(decode)
    return ServingRow(
        line=line,
        source=cells.get("set", ""),
        model=_text(cells, "model"),
        accelerator=_text(cells, "accelerator"),
        engine=cells.get("engine", "").lower(),
        gemm_dtype=cells.get("gemm_dtype") or cells.get("precision", ""),
        moe_dtype=cells.get("moe_dtype") or cells.get("gemm_dtype") or cells.get("precision", ""),
        isl=_positive(cells, "isl"),
        osl=_positive(cells, "osl"),
        concurrency=_positive(cells, "concurrency") if cells.get("concurrency") not in (None, "", "0") else None,
        gpus=gpus or sum(_gpus(side) for side in (prefill, decode) if side),
        prefill=prefill,
        decode=decode,
        ttft=_measured(cells, "ttft_ms"),
        tpot=_measured(cells, "tpot_ms"),
    )


def _step_row(line: int, cells: Cells) -> StepRow:
    written = _text(cells, "phase").lower()
    phase = PHASES.get(written, written)
    if phase not in ("prefill", "decode"):
        raise _CellError(f"phase {phase!r} is neither 'prefill' nor 'decode'")
    layout = Layout(1, *(_whole(cells, name, 1) for name in ("tp", "pp", "dp", "moe_ep")))
    return StepRow(
        line=line,
        model=_text(cells, "model"),
        accelerator=_text(cells, "system"),
        engine=cells.get("backend", "").lower(),
        dtype=cells.get("dtype") or cells.get("gemm_quant") or "bf16",
        gemm_dtype=cells.get("gemm_quant") or cells.get("dtype") or "bf16",
        moe_dtype=cells.get("moe_quant") or cells.get("gemm_quant") or cells.get("dtype") or "bf16",
        kv_dtype=cells.get("kv_quant") or "bf16",
        layout=layout,
        phase=phase,
        batch=int(_positive(cells, "batch")),
        seq=int(_positive(cells, "seq")),
        latency=_measured(cells, "latency_ms"),
    )


def _colocated(cells: Cells, gpus: int) -> Layout:
    """The layout of one of the equal engines that the GPUs make up.

    Attention data ranks may be given in words in place of tp, or beside a tp that counts all ranks.
    """
    pipeline, expert = _whole(cells, "pp", 1), _whole(cells, "ep", 1)
    words = ATTENTION_DATA.fullmatch(cells.get("tp", ""))
    if words:
        data = int(words[1])
        tensor = max((gpus or data) // (data * pipeline), 1)
        return Layout(1, tensor, pipeline, data, expert)
    tensor, data = _whole(cells, "tp", 1), _whole(cells, "dp", 1)
    if gpus and tensor * pipeline * data > gpus and tensor % data == 0 and tensor * pipeline == gpus:
        tensor //= data  # tp counts all ranks, dp says how many groups the attention makes of them
    size = tensor * pipeline * data
    if gpus and gpus % size:
        raise _CellError(f"tp {tensor} x pp {pipeline} x dp {data} does not divide num_gpus {gpus}")
    return Layout(max(gpus // size, 1) if gpus else 1, tensor, pipeline, data, expert)


def _side(cells: Cells, prefix: str) -> Layout:
    """The workers of one side of a disaggregated deployment."""
    names = ("workers", "tp", "pp", "dp", "ep")
    return Layout(*(_whole(cells, prefix + name, 1) for name in names))


def _all_ranks(side: Layout) -> Layout:
    """The side where tp counts all ranks and data says how many groups the attention makes of them."""
    return side if side.tensor % side.data else replace(side, tensor=side.tensor // side.data)


def _gpus(side: Layout) -> int:
    return side.workers * side.tensor * side.pipeline * side.data


def _text(cells: Cells, name: str) -> str:
    value = cells.get(name, "")
    if not value:
        raise _CellError(f"{name} is empty")
    return value


def _positive(cells: Cells, name: str) -> float:
    value = _number(_text(cells, name), name)
    if not value > 0:
        raise _CellError(f"{name} {cells[name]!r} must be above 0")
    return value


def _whole(cells: Cells, name: str, default: int) -> int:
    """A whole number; empty and 0 mean `default`."""
    written = cells.get(name, "")
    prefixed = PREFIXED.fullmatch(written)
    value = _number(prefixed[2] if prefixed else written, name) if written else 0.0
    if value != int(value) or value < 0:
        raise _CellError(f"{name} {written!r} must be a whole number")
    return int(value) or default


def _number(written: str, name: str) -> float:
    try:
        value = float(written)
    except ValueError:
        raise _CellError(f"{name} {written!r} is not a number") from None
    if not math.isfinite(value):
        raise _CellError(f"{name} {written!r} is not a finite number")
    return value


def _measured(cells: Cells, name: str) -> float:
    """A measured time in milliseconds as seconds; NaN where the file has none (the row is predicted all the same)."""
    written = cells.get(name, "")
    value = _number(written, name) / 1e3 if written else math.nan
    return value if value > 0 else math.nan
