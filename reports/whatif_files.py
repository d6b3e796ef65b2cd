"""The rows of a sweep as a tidy table: CSV or Parquet, one row per scenario, one column per value."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.plans.records import read_pools

from .words import engine_cell

Row = Mapping[str, Any]


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows of equal columns: GPUs by type as `gpus.NAME` (0 where there are none), pools and their limits as texts.

    >>> flat_rows([{"x": 1, "gpus": {"H100": 2}, "pools": []}, {"x": 2, "gpus": {}, "pools": []}])
    [{'x': 1, 'gpus.H100': 2, 'pools': '', 'settings': ''}, {'x': 2, 'gpus.H100': 0, 'pools': '', 'settings': ''}]
    """
    names = sorted({name for row in rows for name in row["gpus"]})
    keys = list(dict.fromkeys(key for row in rows for key in row))
    flat = []
    for row in rows:
        values: dict[str, Any] = {}
        for key in keys:
            if key == "gpus":
                values |= {f"gpus.{name}": row["gpus"].get(name, 0) for name in names}
            elif key == "pools":
                values |= pool_texts(row[key])
            else:
                values[key] = _refuted_text(row[key]) if key == "refuted" else row.get(key)
        flat.append(values)
    return flat


def pool_texts(records: Sequence[Any]) -> dict[str, str]:
    """The columns of a fleet: its engines, and their batch limits, pool by pool."""
    pools = read_pools(records)
    limits = [f"max_num_seqs {one.max_num_seqs}, max_num_batched_tokens {one.max_num_batched_tokens}" for one in pools]
    return {"pools": " + ".join(map(engine_cell, pools)), "settings": " + ".join(limits)}


def _refuted_text(several: Sequence[Any]) -> str:
    """Fleets that were refuted, one after another."""
    return "; ".join(pool_texts(one["pools"])["pools"] for one in several)


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
