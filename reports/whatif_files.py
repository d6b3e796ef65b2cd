"""The rows of a sweep as a tidy table: CSV or Parquet, one row per scenario, one column per value."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]
TEXTS: Final = ("pools", "settings", "refuted")
"""Columns that are lists in a row."""


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows of equal columns: GPUs by type as `gpus.NAME` (0 where there are none), pools as one text.

    >>> flat_rows([{"x": 1, "gpus": {"H100": 2}, "pools": ["a", "b"]}, {"x": 2, "gpus": {}, "pools": []}])
    [{'x': 1, 'gpus.H100': 2, 'pools': 'a + b'}, {'x': 2, 'gpus.H100': 0, 'pools': ''}]
    """
    names = sorted({name for row in rows for name in row["gpus"]})
    keys = list(dict.fromkeys(key for row in rows for key in row))
    flat = []
    for row in rows:
        values: dict[str, Any] = {}
        for key in keys:
            if key == "gpus":
                values |= {f"gpus.{name}": row["gpus"].get(name, 0) for name in names}
            else:
                values[key] = _texts(key, row[key]) if key in TEXTS else row.get(key)
        flat.append(values)
    return flat


def _texts(key: str, several: Sequence[Any]) -> str:
    """Pools or settings side by side; fleets that were refuted one after another."""
    return "; ".join(" + ".join(one["pools"]) for one in several) if key == "refuted" else " + ".join(several)


def sweep_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV; what is not known is left empty."""
    stream = io.StringIO()
    flat = flat_rows(rows)
    writer = csv.DictWriter(stream, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return stream.getvalue()


def sweep_parquet(rows: Sequence[Row]) -> bytes:
    """The rows as a Parquet file; what is not known is null, a column of mixed kinds is text."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    flat = flat_rows(rows)
    columns = {key: _column([row[key] for row in flat]) for key in flat[0]}
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns), stream)
    return stream.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind: numbers stay numbers, anything beside a text becomes text."""
    if any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    mixed = any(isinstance(value, float) for value in values)
    return [float(value) if mixed and value is not None else value for value in values]
