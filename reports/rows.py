"""Tables for programs, as CSV or Parquet: scenarios, steps and cells of a sweep, and the requests of a simulation.

A column for each setting, its unit in its name.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.simulator.metrics import Result
from optimizer.loads.instance import Instance
from optimizer.plans.records import EnginePool, read_pools
from optimizer.verification.judge import Judgement, Run, in_time
from search_spaces.quantities import Kind, QuantityError
from search_spaces.scenarios import lever_of, number_of
from search_spaces.search_space import DEGREES

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
ENGINE_SETTINGS: Final = (
    "weight_dtype",
    "kv_dtype",
    "speculative_tokens",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "memory_fraction",
)
"""Other settings of an engine."""
SETTINGS: Final = ("replicas", *DEGREES, *ENGINE_SETTINGS, "usd_per_hour")


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
    elif key == "classes":
        for row in value:
            yield f"{row['name']}.attainment", row["attainment"]
            for metric, times in ({"ttft": row["ttft_s"], "tpot": row["tpot_s"]} | row.get("metrics", {})).items():
                yield from ((f"{row['name']}.{metric}_{label}_s", seconds) for label, seconds in times.items())
    elif key == "refuted":
        yield "refuted_fleets", len(value)
    else:  # a number in the base unit of its lever, with that unit in the name; any other value as it is
        kind, name = lever_of(key).kind, RENAMED.get(key, key)
        if kind is not None and kind in UNITS:
            with suppress(QuantityError):
                value = None if value is None else number_of(key, str(value))
                name = f"{key}_{UNITS[kind]}"
        yield name, value


def _pool_columns(pools: Sequence[EnginePool]) -> Iterator[tuple[str, Any]]:
    before: Counter[str] = Counter()
    for pool in pools:
        before[pool.role] += 1
        name = pool.role + (str(before[pool.role]) if before[pool.role] > 1 else "")
        yield f"{name}.gpu", pool.accelerator
        settings = {setting: getattr(pool, setting) for setting in SETTINGS}
        if not pool.speculative_tokens:
            del settings["speculative_tokens"]
        yield from ((f"{name}.{setting}", value) for setting, value in settings.items())


Columns = Mapping[str, Sequence[Any] | NDArray[Any]]
"""Columns of a table by name: plain values, None where a value is not known; or arrays, NaN there."""


def row_columns(rows: Sequence[Row]) -> Columns:
    """The rows as columns of one type each; with a text among them all values become texts."""
    flat = flat_rows(rows)
    columns = {name: [row[name] for row in flat] for name in (flat[0] if flat else ())}
    for name, values in columns.items():
        kind = next((kind for kind in (str, float) if any(isinstance(value, kind) for value in values)), None)
        columns[name] = [value if value is None or kind is None else kind(value) for value in values]
    return columns or {"cost_usd_per_hour": []}


def columns_csv(columns: Columns) -> str:
    """Columns as CSV; what is not known is left empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    return stream.getvalue()


def columns_parquet(columns: Columns) -> bytes:
    """Columns as a Parquet file; what is not known is null, and names of arrays are dictionary-coded."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    table, stream = {}, io.BytesIO()
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.dtype.kind == "U":
            table[name] = arrow.array(column.tolist()).dictionary_encode()
        else:
            table[name] = arrow.array(column, from_pandas=True)  # NaN becomes null
    parquet.write_table(arrow.table(table), stream)
    return stream.getvalue()


def request_columns(instance: Instance, pools: Sequence[str], judgement: Judgement) -> Columns:
    """Every request of every replication, warm-up included; a time that never came is NaN.

    pools: ids of the fleet's pools, in its order.
    """
    runs = [_run_columns(instance, pools, run, number) for number, run in enumerate(judgement.runs)]
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def _run_columns(instance: Instance, pools: Sequence[str], run: Run, replication: int) -> dict[str, NDArray[Any]]:
    result, trace = run.result, run.demand.trace
    classes = np.array([slo.name for slo in instance.problem.slos])
    decode = np.where(result.decode_engine < 0, result.engine, result.decode_engine)
    return {
        "replication": np.full(trace.size, replication),
        "request": np.arange(trace.size),
        "slo_class": classes[instance.flows.slo[run.demand.flow]],
        "prefill_pool": _pool_names(pools, result, result.engine),
        "decode_pool": _pool_names(pools, result, decode),
        "isl": trace.isl,
        "osl": trace.osl,
        "arrival_s": result.arrival,
        "queue_s": result.queue,
        "prefill_s": result.prefill,
        "transfer_s": result.transfer,
        "ttft_s": result.ttft,
        "tpot_s": result.tpot,
        "itl_max_s": result.itl_max,
        "e2e_s": result.e2e,
        "preemptions": result.restarts,
        "within_slo": in_time(instance, run),
    }


def _pool_names(pools: Sequence[str], result: Result, engine: NDArray[np.int64]) -> NDArray[Any]:
    """Name of the pool of each engine; none for -1."""
    names = np.array([*(pools[use.pool] for use in result.engines), ""])
    return np.asarray(names[engine])


def _cells(column: Sequence[Any] | NDArray[Any]) -> Sequence[Any]:
    """Values as CSV has them: whole numbers, names, and times of arrays with nine digits."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype.kind == "f":
        return ["" if math.isnan(value) else f"{value:.9g}" for value in column.tolist()]
    return list(column.astype(int).tolist() if column.dtype.kind == "b" else column.tolist())
