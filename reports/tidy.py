"""Rows of scenarios, steps or cells as a tidy table for CSV or Parquet: a column per setting, its unit in its name."""

from __future__ import annotations

import csv
import importlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from optimizer.plans.records import EnginePool, read_pools
from search_spaces.levers import kind_of, number_of
from search_spaces.quantities import Kind, QuantityError

Row = Mapping[str, Any]

UNITS: Final[Mapping[Kind, str]] = {
    Kind.DURATION: "s",
    Kind.RATE: "rps",
    Kind.PRICE: "usd_per_hour",
    Kind.POWER: "w",
    Kind.BANDWIDTH: "bytes_per_s",
}
"""Endings of columns by what they measure."""
RENAMED: Final = {
    "goodput_per_dollar": "goodput_requests_per_usd",
    "requests_per_dollar": "requests_per_usd",
    "isl": "isl_tokens",
    "osl": "osl_tokens",
}
"""Names of the JSON document that have no unit."""
SETTINGS: Final = (
    "replicas",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "data_parallel",
    "weight_dtype",
    "kv_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "memory_fraction",
    "usd_per_hour",
)


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows of equal columns; what a row has nothing for is None.

    GPUs by type are `gpus.NAME` (0 where there are none); the settings of a pool `ROLE.SETTING`, of a second one of
    its role `ROLE2.SETTING`; fleets that a simulation refuted are counted.

    >>> flat_rows([{"rate": "600/min", "gpus": {"H100": 2}, "pools": []}, {"rate": 2, "gpus": {}, "pools": []}])
    [{'rate_rps': 10.0, 'gpus.H100': 2}, {'rate_rps': 2.0, 'gpus.H100': 0}]
    """
    flat = [dict(pair for key, value in row.items() for pair in _columns(key, value)) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    cards = sorted(name for name in names if name.startswith("gpus."))
    pools = [name for name in names if name.partition(".")[2] in {"gpu", *SETTINGS}]
    first = [name for name in names if name not in {*cards, *pools}]
    return [{name: row.get(name, 0 if name in cards else None) for name in (*first, *cards, *pools)} for row in flat]


def _columns(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The columns that one value of a row takes."""
    if key == "gpus":
        yield from ((f"gpus.{name}", count) for name, count in value.items())
    elif key == "pools":
        yield from _pool_columns(read_pools(value))
    elif key == "refuted":
        yield "refuted_fleets", len(value)
    else:
        yield _lever_column(key, value)


def _pool_columns(pools: Sequence[EnginePool]) -> Iterator[tuple[str, Any]]:
    before: Counter[str] = Counter()
    for pool in pools:
        before[pool.role] += 1
        name = pool.role + (str(before[pool.role]) if before[pool.role] > 1 else "")
        yield f"{name}.gpu", pool.accelerator
        yield from ((f"{name}.{setting}", getattr(pool, setting)) for setting in SETTINGS)


def _lever_column(key: str, value: Any) -> tuple[str, Any]:
    """A value as a number in the base unit of its lever, with that unit in the name; any other as it is."""
    kind = kind_of(key)
    if kind is None or kind not in UNITS:
        return RENAMED.get(key, key), value
    try:
        return f"{key}_{UNITS[kind]}", None if value is None else number_of(key, str(value))
    except QuantityError:
        return key, value


def rows_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV; what is not known is left empty. A header alone where there is no row."""
    stream = io.StringIO()
    flat = flat_rows(rows)
    writer = csv.DictWriter(stream, list(flat[0]) if flat else ["cost_usd_per_hour"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return stream.getvalue()


def rows_parquet(rows: Sequence[Row]) -> bytes:
    """The rows as a Parquet file; what is not known is null, a column of numbers and texts is of texts."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    flat = flat_rows(rows)
    columns = {key: _like([row[key] for row in flat]) for key in (flat[0] if flat else ())}
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns), stream)
    return stream.getvalue()


def _like(values: list[Any]) -> list[Any]:
    """Values of one type: numbers stay numbers, with a text among them all become texts."""
    if any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    mixed = any(isinstance(value, float) for value in values)
    return [float(value) if mixed and value is not None else value for value in values]
