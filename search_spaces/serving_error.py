"""How wrong a prediction may be: factors by quantity and stratum that hold the measured value nine times in ten.

The catalog has them, and the errors that they come from. Predictions beside measurements have them as error bars.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from costmodel.accelerator import Accelerator
from costmodel.engine import EngineConfig
from costmodel.engine_arrays import Conditions, engine_arrays
from costmodel.errors import InputError
from costmodel.policy import NO_OVERHEAD
from costmodel.queues.steady_state import Steady
from costmodel.step import StepLoad, step_time
from costmodel.transformer import Transformer

from .catalog import AcceleratorCatalog, load_catalog
from .engines import load_serving_policy
from .measured_engines import (
    Batch,
    MeasuredDeployment,
    batches_of,
    deployments_of,
    in_dtype,
    measured_engine,
    measured_model,
    steady_state,
    table_conditions,
    weight_dtype,
)
from .measurements import Refused, Row, StepRow
from .yaml_source import shipped_table

ASSUMED_WIDENING = 1.5
"""An accelerator without measured kernels: the interval's width in logarithms times this, and again where nothing of
its generation was measured either; assumed."""

ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft": ("mode", "engine", "structure", "generation", "dtype", "model"),
    "tpot": ("structure", "generation", "dtype", "engine", "model"),
}
"""What decides the error of a quantity, in this order: TTFT is a matter of the scheduler first, TPOT of the kernels."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """What a prediction was made for, as far as its error depends on it; empty where it is not known.

    mode: colocated or disaggregated; engine: the serving engine; structure: dense or moe; generation: of the
    accelerator; dtype: of the weights; model: its name; measured: the accelerator has fitted kernels of its own;
    seen: it, or another accelerator of its generation, was measured at all.
    """

    mode: str = ""
    engine: str = ""
    structure: str = ""
    generation: str = ""
    dtype: str = ""
    model: str = ""
    measured: bool = True
    seen: bool = True

    @property
    def widening(self) -> float:
        """Factor on the interval's width in logarithms for what was never measured [1].

        >>> Stratum().widening, Stratum(measured=False).widening, Stratum(measured=False, seen=False).widening
        (1.0, 1.5, 2.25)
        """
        return ASSUMED_WIDENING ** ((not self.measured) + (not self.seen))

    def keys(self, quantity: str) -> tuple[str, ...]:
        """Names under which factors of a quantity may be filed, the narrowest first, down to all.

        >>> Stratum("colocated", "vllm", "dense", "hopper").keys("ttft")[:2]
        ('colocated/vllm/dense/hopper', 'colocated/vllm/dense')
        """
        parts = [str(getattr(self, name)) for name in ORDER[quantity]]
        stated = parts.index("") if "" in parts else len(parts)
        return (*("/".join(parts[:count]) for count in range(stated, 0, -1)), "all")


@dataclass(frozen=True, slots=True)
class Factors:
    """Measured lies between low x and high x the prediction with 90 % probability; rows: residuals behind it."""

    low: float
    high: float
    rows: int


def interval_of(half_width: float) -> tuple[float, float]:
    """(low, high) factors of an interval that is even in logarithms: exp(-+half_width) [1].

    >>> low, high = interval_of(0.1)
    >>> round(low * high, 12)
    1.0
    """
    return math.exp(-half_width), math.exp(half_width)


ErrorTable = Mapping[str, Mapping[str, Factors]]
"""Quantity (ttft, tpot) -> key of a stratum -> factors."""


def interval_factors(table: ErrorTable, quantity: str, stratum: Stratum) -> tuple[float, float]:
    """(low, high) factors on a prediction that hold the measured value with 90 % probability [1].

    The nearest stratum that the table has decides; where kernels were never measured the interval is widened, in
    logarithms (`Stratum.widening`).

    >>> table = {"ttft": {"all": Factors(0.5, 2.0, 100)}}
    >>> interval_factors(table, "ttft", Stratum("colocated", "vllm"))
    (0.5, 2.0)
    >>> interval_factors(table, "ttft", Stratum("colocated", "vllm", measured=False))[1] > 2.8
    True
    """
    known = table[quantity]
    nearest = next(known[key] for key in stratum.keys(quantity) if key in known)
    return nearest.low**stratum.widening, nearest.high**stratum.widening


@cache
def shipped_errors() -> Mapping[str, Any]:
    """The catalog's file of prediction errors: interval factors, and errors on rows that no fit has seen."""
    errors: Mapping[str, Any] = shipped_table("costmodel.catalog", "serving_error.yaml")
    return errors


@cache
def error_table() -> ErrorTable:
    """Interval factors by quantity and stratum.

    >>> error_table()["ttft"]["all"].low < 1 < error_table()["ttft"]["all"].high
    True
    """
    return TypeAdapter(dict[str, dict[str, Factors]]).validate_python(shipped_errors()["quantities"])


@cache
def step_widths() -> Mapping[str, Mapping[str, float]]:
    """Half-width of the 90 % interval of a step's time, in logarithms, by kind of model and origin of the kernels.

    >>> step_widths()["dense"]["fitted"] < step_widths()["dense"]["assumed"]
    True
    """
    widths: Mapping[str, Mapping[str, float]] = shipped_table("costmodel.catalog", "step_error.yaml")
    return widths


def stratum_of(model: Transformer, config: EngineConfig, engine: str, mode: str = "") -> Stratum:
    """Where a prediction of a model on an engine stands; mode: colocated or disaggregated."""
    return Stratum(
        mode=mode,
        engine=engine,
        structure="moe" if model.is_moe else "dense",
        generation=config.accelerator.generation,
        dtype=config.weight_dtype,
        model=model.name,
        measured=config.accelerator.measured,
        seen=is_seen(config.accelerator),
    )


@cache
def measured_generations() -> frozenset[str]:
    """Generations of accelerators of which kernels, or a whole engine, were measured.

    >>> {"hopper", "cdna4"} <= measured_generations(), "rubin" in measured_generations()
    (True, False)
    """
    kernels = {accelerator.generation for accelerator in load_catalog().accelerators.values() if accelerator.measured}
    keys = {key for strata in error_table().values() for key in strata}
    return frozenset(kernels | {word for key in keys for word in key.split("/")}) - {""}


def is_seen(accelerator: Accelerator) -> bool:
    """Whether an accelerator, or another one of its generation, was measured at all."""
    return accelerator.measured or accelerator.generation in measured_generations()


def step_interval(model: Transformer, accelerator: Accelerator) -> tuple[float, float]:
    """Factors (low, high) on a predicted step time that hold the measured one nine times in ten [1]."""
    kind = "mla" if model.is_latent else "moe" if model.is_moe else "dense"
    width = step_widths()[kind]["fitted" if accelerator.measured else "assumed"]
    return interval_of(width if is_seen(accelerator) else width * ASSUMED_WIDENING)


# Predictions beside measurements, row by row, with error bars; a row that cannot be predicted says why. Measurements
# that contradict physics or their own description are marked; they are scored, but no fit follows them.

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
class Predictions:
    """All rows of a file: predicted, or refused with a reason."""

    predicted: tuple[Predicted, ...]
    refused: tuple[Refused, ...]

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return len(self.predicted) + len(self.refused)


def predict_serving(rows: Sequence[Row], catalog: AcceleratorCatalog, models: Path | None) -> Predictions:
    """TTFT and TPOT of every serving row; the measured times are only carried along."""
    deployments, refusals = deployments_of(rows, catalog, models)
    table = error_table()
    rows_out: list[Predicted] = []
    for batch in batches_of(deployments):
        steady = steady_state(batch, load_serving_policy(batch.engine, catalog.engines))
        columns = (column[:, 0].tolist() for column in (steady.ttft, steady.tpot))
        for deployment, doubt, ttft, tpot in zip(batch.deployments, suspicions(batch, steady), *columns, strict=True):
            row = deployment.row
            stratum = stratum_of(deployment.model, deployment.prefill, deployment.engine, row.mode)
            if not (math.isfinite(ttft) and math.isfinite(tpot)):
                refusals.append(Refused(row.line, OUT_OF_RANGE))
                continue
            values = {
                "ttft": _value(ttft, row.ttft, interval_factors(table, "ttft", stratum)),
                "tpot": _value(tpot, row.tpot, interval_factors(table, "tpot", stratum)),
            }
            work = (
                deployment.concurrency
                * deployment.osl
                * (row.prefill.workers if deployment.decode is None else 1)
                / max(row.gpus, 1)
            )
            gaps = max(deployment.osl - 1.0, 1.0)
            throughput = (work / (ttft + gaps * tpot), work / (row.ttft + gaps * row.tpot))
            words = (row.model, row.accelerator, row.engine or deployment.engine, row.mode)
            group = dict(zip(SERVING_GROUP, words, strict=True))
            rows_out.append(Predicted(row.line, group, values, throughput, deployment.notes, doubt))
    return _in_order(rows_out, refusals)


def _in_order(predictions: list[Predicted], refusals: list[Refused]) -> Predictions:
    line = attrgetter("line")
    return Predictions(tuple(sorted(predictions, key=line)), tuple(sorted(refusals, key=line)))


def _value(prediction: float, measurement: float, factors: tuple[float, float]) -> Value:
    return Value(prediction, prediction * factors[0], prediction * factors[1], measurement)


MOST_PREFILL = 1.25
"""Share of an engine's time that its prompts may take by the catalog's kernels, whose error it allows for [1]."""
LONGEST_QUEUE = 3.0
"""TTFT over the time in which one worker prefills all requests in flight [1]."""

LEAST_BYTES = 0.5
"""Least bytes of a weight [byte]."""


UNSTATED = "load not stated"
TOO_FAST = "more prompts than the kernels can compute"
TOO_QUICK = "tokens faster than the memory"
TOO_SLOW = "first token later than any queue"


def suspicions(batch: Batch, steady: Steady) -> list[str]:
    """For every deployment of a batch the first rule that its measurement breaks; empty where it breaks none."""
    columns = np.broadcast_arrays(steady.prefill, steady.shared, steady.line, steady.ttft)[:3]
    figures = zip(*(column[:, 0].tolist() for column in columns), strict=True)
    return [_suspicion(deployment, *values) for deployment, values in zip(batch.deployments, figures, strict=True)]


def _suspicion(deployment: MeasuredDeployment, alone: float, shared: float, line: float) -> str:
    row, engine = deployment.row, deployment.decode or deployment.prefill
    if row.concurrency is None:
        return UNSTATED
    if not (row.ttft > 0 and row.tpot > 0):
        return ""
    rate = deployment.concurrency / (row.ttft + max(deployment.osl - 1.0, 1.0) * row.tpot)
    workers = row.prefill.workers if deployment.decode else 1
    least_read = deployment.model.matmul_parameters * LEAST_BYTES / engine.gpus / engine.accelerator.bandwidth
    queue = LONGEST_QUEUE * (alone + deployment.concurrency * shared + deployment.transfer)
    if rate * shared / workers > MOST_PREFILL:
        return TOO_FAST
    if least_read > row.tpot:
        return TOO_QUICK
    return TOO_SLOW if line <= 0 and row.ttft > queue else ""


def predict_steps(rows: Sequence[Row], catalog: AcceleratorCatalog, models: Path | None) -> Predictions:
    """Latency of every step row, under the conditions of the tables from which such steps are composed.

    Kernels and collectives alone, launched one by one, with experts chosen by a power law: the file has no scheduler
    and no CUDA graph in its steps. The batch of a row is that of one data-parallel rank, as in those tables' tool.
    """
    groups: dict[tuple[Transformer, str, Conditions], list[tuple[StepRow, EngineConfig]]] = defaultdict(list)
    refusals: list[Refused] = [row for row in rows if isinstance(row, Refused)]
    model_of = cache(lambda name, gemm, moe: in_dtype(measured_model(name, models), gemm, moe))
    for row in rows:
        if not isinstance(row, StepRow):
            continue
        try:
            model, dtype = model_of(row.model, row.gemm_dtype, row.moe_dtype)
            narrow = weight_dtype(row.kv_dtype) != "bf16"  # a cache of any narrow dtype is read as one of FP8
            kv_dtype = "fp8" if narrow else "bf16"
            config = measured_engine(
                catalog, row.accelerator, model, row.layout, dtype, kv_dtype=kv_dtype, memory_fraction=1.0
            )
        except InputError as error:
            refusals.append(Refused(row.line, str(error)))
        else:
            groups[model, row.phase, table_conditions(row.engine, row.gemm_dtype, row.moe_dtype)].append((row, config))
    rows_out: list[Predicted] = []
    for (model, phase, conditions), steps in groups.items():
        engines = engine_arrays(model, [config for _, config in steps], NO_OVERHEAD, conditions)
        batch = np.array([[float(row.batch * row.layout.data)] for row, _ in steps])
        length = np.array([[float(row.seq)] for row, _ in steps])
        load = StepLoad.prefill(length, batch) if phase == "prefill" else StepLoad.decode(batch, length)
        for (row, config), latency in zip(steps, step_time(model, engines, load).total[:, 0].tolist(), strict=True):
            if not math.isfinite(latency):
                refusals.append(Refused(row.line, OUT_OF_RANGE))
                continue
            value = _value(latency, row.latency, step_interval(model, config.accelerator))
            group = {"model": row.model, "accelerator": row.accelerator, "phase": phase, "dtype": row.dtype}
            rows_out.append(Predicted(row.line, group, {"latency": value}, (np.nan, np.nan), ()))
    return _in_order(rows_out, refusals)
