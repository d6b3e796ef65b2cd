"""A simulation's requests as a file: one row per request, as CSV or as Parquet."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.simulator import Result
from optimizer.loads.instance import Instance
from optimizer.verification.judge import Judgement, Run, in_time

REQUEST_COLUMNS: Final = (
    "replication",
    "request",
    "slo_class",
    "prefill_pool",
    "decode_pool",
    "isl",
    "osl",
    "arrival_s",
    "queue_s",
    "prefill_s",
    "transfer_s",
    "ttft_s",
    "tpot_s",
    "itl_max_s",
    "e2e_s",
    "preemptions",
    "within_slo",
)

Columns = dict[str, NDArray[Any]]


def requests_csv(instance: Instance, pools: Sequence[str], judgement: Judgement) -> str:
    """Every request of every replication, warm-up included; a time that never came is left empty.

    pools: ids of the fleet's pools, in its order.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(REQUEST_COLUMNS)
    for number, run in enumerate(judgement.runs):
        told = [_told(column) for column in _columns(instance, pools, run, number).values()]
        writer.writerows(zip(*told, strict=True))
    return stream.getvalue()


def requests_parquet(instance: Instance, pools: Sequence[str], judgement: Judgement) -> bytes:
    """The same rows as a Parquet file; a time that never came is null, names are dictionary-coded."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    parts = [_columns(instance, pools, run, number) for number, run in enumerate(judgement.runs)]
    columns = {}
    for name in REQUEST_COLUMNS:
        column = np.concatenate([part[name] for part in parts])
        if column.dtype.kind == "U":
            columns[name] = arrow.array(column.tolist()).dictionary_encode()
        else:
            columns[name] = arrow.array(column, from_pandas=True)  # NaN becomes null
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns), stream)
    return stream.getvalue()


def check_parquet() -> None:
    """Raise InputError where Parquet cannot be written."""
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError("--parquet needs pyarrow, which is not installed; install pdplan[parquet], or write --csv")


def _columns(instance: Instance, pools: Sequence[str], run: Run, replication: int) -> Columns:
    """Columns of one run, by name."""
    result, trace = run.result, run.demand.trace
    names = np.array([slo.name for slo in instance.problem.slos])
    decode = np.where(result.decode_engine < 0, result.engine, result.decode_engine)
    values = (
        np.full(trace.size, replication),
        np.arange(trace.size),
        names[instance.flows.slo[run.demand.flow]],
        _pool_names(pools, result, result.engine),
        _pool_names(pools, result, decode),
        trace.isl,
        trace.osl,
        result.arrival,
        result.queue,
        result.prefill,
        result.transfer,
        result.ttft,
        result.tpot,
        result.itl_max,
        result.e2e,
        result.restarts,
        in_time(instance, run),
    )
    return dict(zip(REQUEST_COLUMNS, values, strict=True))


def _pool_names(pools: Sequence[str], result: Result, engine: NDArray[np.int64]) -> NDArray[Any]:
    """Name of the pool of each engine; none for -1."""
    names = np.array([*(pools[use.pool] for use in result.engines), ""])
    return np.asarray(names[engine])


def _told(column: NDArray[Any]) -> list[object]:
    """Values as CSV has them: whole numbers, names, and times with nine digits."""
    if column.dtype.kind == "f":
        return ["" if math.isnan(value) else f"{value:.9g}" for value in column.tolist()]
    return list(column.astype(int).tolist() if column.dtype.kind == "b" else column.tolist())
