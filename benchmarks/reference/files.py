"""Reading cases: CSV or gzipped CSV, columns as arrays."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.workload import Trace, make_trace

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case: our times against the reference's [ms], and steps made by both."""

    case: str
    max_abs_error_ms: float
    p99_abs_error_ms: float
    steps_equal: bool
    steps: int
    reference_steps: int


def present(path: Path) -> Path:
    """The file, or its gzipped twin."""
    for candidate in (path, path.with_name(path.name + ".gz"), path.with_name(path.name.removesuffix(".gz"))):
        if candidate.is_file():
            return candidate
    raise InputError(f"{path}: no such file, nor with .gz")


def rows_of(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    path = present(path)
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def columns_of(path: Path) -> dict[str, FloatArray]:
    """Numeric columns of a CSV file."""
    rows = rows_of(path)
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def trace_of(path: Path) -> Trace:
    """Requests of a case; its files list them in order of arrival."""
    columns = columns_of(path)
    lengths = {name: columns[name].astype(np.int64) for name in ("prompt_len", "output_len")}
    return make_trace(columns["arrival_s"], lengths["prompt_len"], lengths["output_len"])


def compare(
    case: str, ours: Iterable[FloatArray], theirs: Iterable[FloatArray], steps: int, reference_steps: int
) -> Comparison:
    """Largest and 99th percentile of the absolute differences [ms] over all times given."""
    errors = np.concatenate([np.abs(a - b) for a, b in zip(ours, theirs, strict=True)])
    return Comparison(
        case=case,
        max_abs_error_ms=float(errors.max()),
        p99_abs_error_ms=float(np.quantile(errors, 0.99)),
        steps_equal=steps == reference_steps,
        steps=steps,
        reference_steps=reference_steps,
    )
