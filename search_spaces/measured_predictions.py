"""Predictions beside measurements, row by row, with error bars; a row that cannot be predicted says why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from costmodel.engine import EngineConfig
from costmodel.engine_arrays import Conditions, engine_arrays
from costmodel.errors import InputError
from costmodel.host import NO_OVERHEAD
from costmodel.serving.interval import interval_factors
from costmodel.step import StepLoad, step_time
from costmodel.transformer import Transformer

from .catalog import AcceleratorCatalog
from .engines import load_serving_policy
from .measured_batches import batches_of, deployments_of, steady_state
from .measured_engines import check_layers, in_dtype, measured_engine, measured_model, table_conditions, weight_dtype
from .measured_suspects import suspicions
from .measurements import Refused, Row, StepRow
from .serving_error import error_table, step_interval, stratum_of

OUT_OF_RANGE = "the prediction is no finite number: its model or its sizes are beyond what can be computed"
SERVING_GROUP = ("model", "accelerator", "engine", "mode")


@dataclass(frozen=True, slots=True)
class Value:
    """A prediction with its 90 % interval, and what was measured (NaN where the file has nothing); all [s]."""

    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error, predicted / measured - 1 [1]."""
        return self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured value."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class Predicted:
    """One row with its predictions.

    group: what the row is counted under (model, accelerator, engine, mode; for steps phase and dtype instead of the
    last two); values: by quantity (ttft and tpot, or latency); throughput: (predicted, measured) output tokens per
    second and GPU, NaN for steps; notes: what had to be assumed; suspect: the rule that the measurement breaks.
    """

    line: int
    group: Mapping[str, str]
    values: Mapping[str, Value]
    throughput: tuple[float, float]
    notes: tuple[str, ...]
    suspect: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All rows of a file: predicted, or refused with a reason."""

    predicted: tuple[Predicted, ...]
    refused: tuple[Refused, ...]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return len(self.predicted) + len(self.refused)


def predict_serving(rows: Sequence[Row], catalog: AcceleratorCatalog, models: Path | None) -> Outcome:
    """TTFT and TPOT of every serving row; the measured times are only carried along."""
    deployments, refused = deployments_of(rows, catalog, models)
    table = error_table()
    found: list[Predicted] = []
    for batch in batches_of(deployments):
        steady = steady_state(batch, load_serving_policy(batch.engine, catalog.engines))
        columns = (column[:, 0].tolist() for column in (steady.ttft, steady.tpot))
        for each, doubt, ttft, tpot in zip(batch.deployments, suspicions(batch, steady), *columns, strict=True):
            row = each.row
            stratum = stratum_of(each.model, each.prefill, each.engine, row.mode)
            if not (math.isfinite(ttft) and math.isfinite(tpot)):
                refused.append(Refused(row.line, OUT_OF_RANGE))
                continue
            values = {
                "ttft": _value(ttft, row.ttft, interval_factors(table, "ttft", stratum)),
                "tpot": _value(tpot, row.tpot, interval_factors(table, "tpot", stratum)),
            }
            work = each.concurrency * each.osl * (row.prefill.workers if each.decode is None else 1) / max(row.gpus, 1)
            gaps = max(each.osl - 1.0, 1.0)
            throughput = (work / (ttft + gaps * tpot), work / (row.ttft + gaps * row.tpot))
            named = (row.model, row.accelerator, row.engine or each.engine, row.mode)
            group = dict(zip(SERVING_GROUP, named, strict=True))
            suspect = doubt.rule if doubt else ""
            found.append(Predicted(row.line, group, values, throughput, each.notes, suspect))
    return _in_order(found, refused)


def _in_order(found: list[Predicted], refused: list[Refused]) -> Outcome:
    return Outcome(tuple(sorted(found, key=_line)), tuple(sorted(refused, key=_line)))


def _line(row: Predicted | Refused) -> int:
    return row.line


def _value(predicted: float, measured: float, factors: tuple[float, float]) -> Value:
    return Value(predicted, predicted * factors[0], predicted * factors[1], measured)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step row made concrete."""

    row: StepRow
    model: Transformer
    config: EngineConfig

    @property
    def conditions(self) -> Conditions:
        """The circumstances of the tables."""
        return table_conditions(self.row.engine, self.row.gemm_dtype, self.row.moe_dtype)


def predict_steps(rows: Sequence[Row], catalog: AcceleratorCatalog, models: Path | None) -> Outcome:
    """Latency of every step row, under the conditions of the tables from which such steps are composed.

    Kernels and collectives alone, launched one by one, with experts chosen by a power law: the file has no scheduler
    and no CUDA graph in its steps. The batch of a row is that of one data-parallel rank, as in those tables' tool.
    """
    steps, refused = _steps_of(rows, catalog, models)
    groups: dict[tuple[Transformer, str, Conditions], list[_Step]] = defaultdict(list)
    for step in steps:
        groups[step.model, step.row.phase, step.conditions].append(step)
    found: list[Predicted] = []
    for (model, phase, _), members in groups.items():
        for step, latency in zip(members, _latencies(model, phase, members), strict=True):
            row = step.row
            if not math.isfinite(latency):
                refused.append(Refused(row.line, OUT_OF_RANGE))
                continue
            accelerator = step.config.accelerator
            value = _value(latency, row.latency, step_interval(model, accelerator))
            group = {"model": row.model, "accelerator": row.accelerator, "phase": phase, "dtype": row.dtype}
            found.append(Predicted(row.line, group, {"latency": value}, (np.nan, np.nan), ()))
    return _in_order(found, refused)


def _steps_of(
    rows: Iterable[Row], catalog: AcceleratorCatalog, models: Path | None
) -> tuple[list[_Step], list[Refused]]:
    found: list[_Step] = []
    refused: list[Refused] = []
    model_of = cache(lambda name, gemm, moe: in_dtype(measured_model(name, models), gemm, moe))
    for row in rows:
        if isinstance(row, Refused):
            refused.append(row)
        elif isinstance(row, StepRow):
            try:
                model, dtype = model_of(row.model, row.gemm_dtype, row.moe_dtype)
                check_layers(model, row.layout)
                narrow = weight_dtype(row.kv_dtype) != "bf16"  # a cache of any narrow dtype is read as one of FP8
                config = measured_engine(
                    catalog,
                    row.accelerator,
                    row.layout,
                    dtype,
                    kv_dtype="fp8" if narrow else "bf16",
                    memory_fraction=1.0,
                )
            except InputError as error:
                refused.append(Refused(row.line, str(error)))
            else:
                found.append(_Step(row, model, config))
    return found, refused


def _latencies(model: Transformer, phase: str, steps: Sequence[_Step]) -> list[float]:
    engines = engine_arrays(model, [step.config for step in steps], NO_OVERHEAD, steps[0].conditions)
    batch = np.array([[float(step.row.batch * step.row.layout.data)] for step in steps])
    length = np.array([[float(step.row.seq)] for step in steps])
    load = StepLoad.prefill(length, batch) if phase == "prefill" else StepLoad.decode(batch, length)
    times: list[float] = step_time(model, engines, load).total[:, 0].tolist()
    return times
