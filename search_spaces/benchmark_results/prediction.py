"""Predicted times of measured rows as a function of the scales, many rows at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.scales import Scales
from costmodel.calibration.scaling import Pair, calibrated_pairs, scaled_accelerator, scaled_overhead, scaled_policy
from costmodel.engine import EngineConfig
from costmodel.host import EngineOverhead
from costmodel.step import StepLoad, step_time_one
from costmodel.transformer import Transformer
from search_spaces.catalog import AcceleratorCatalog
from search_spaces.engines import load_engine_overhead, load_serving_policy
from search_spaces.measured_batches import Batch, batches_of, steady_state

from .deployed import MeasuredRun, TimedStep

FloatArray = NDArray[np.float64]
Row = MeasuredRun | TimedStep
Predict = Callable[[Scales], FloatArray]
Scaled = Callable[[EngineConfig, Scales], EngineConfig]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that are predicted together, and where their times stand in the result."""

    predict: Predict
    places: NDArray[np.int64]


def used_pairs(rows: Sequence[Row]) -> tuple[Pair, ...]:
    """(kernel class, dtype) of all efficiencies that the rows rest on."""
    pairs: dict[Pair, None] = {}
    for row in rows:
        pairs.update(dict.fromkeys(calibrated_pairs(model_of(row), engines_of(row))))
    return tuple(pairs)


def model_of(row: Row) -> Transformer:
    """The model as the row's engine stores it."""
    return row.model if isinstance(row, TimedStep) else row.deployment.model


def engines_of(row: Row) -> tuple[EngineConfig, ...]:
    """The engines of a row: one, or one that prefills and one that decodes."""
    if isinstance(row, TimedStep):
        return (row.config,)
    decode = row.deployment.decode
    return (row.deployment.prefill,) if decode is None else (row.deployment.prefill, decode)


def predictor(rows: Sequence[Row], catalog: AcceleratorCatalog, *, limited: bool = True) -> Predict:
    """Predicted seconds of `observations(rows)`, in their order, as a function of the scales.

    limited: no efficiency above 1; without, scales that physics forbids can be told (`scaled_accelerator`).
    """
    pairs = used_pairs(rows)

    def scaled(config: EngineConfig, scales: Scales) -> EngineConfig:
        return replace(config, accelerator=scaled_accelerator(config.accelerator, pairs, scales, limited=limited))

    places = list(_places(rows))
    parts = [*_run_parts(rows, places, scaled, catalog), *_step_parts(rows, places, scaled, catalog)]

    def predict(scales: Scales) -> FloatArray:
        seconds = np.empty(sum(len(each) for each in places))
        for part in parts:
            seconds[part.places] = part.predict(scales)
        return seconds

    return predict


def step_load(row: TimedStep) -> StepLoad:
    """What a timed pass held."""
    step = row.step
    return StepLoad.of(step.prompts, step.new, step.past, step.decodes, step.context)


def _places(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Indices of each row's times among all: one of a step, up to two of a run."""
    start = 0
    for row in rows:
        count = 1 if isinstance(row, TimedStep) else (row.ttft is not None) + (row.tpot is not None)
        yield list(range(start, start + count))
        start += count


def _run_parts(
    rows: Sequence[Row], places: Sequence[list[int]], scaled: Scaled, catalog: AcceleratorCatalog
) -> Iterator[_Part]:
    """Runs of one model on one engine in one mode are one batch of steady states."""
    numbered = [
        replace(row.deployment, row=replace(row.deployment.row, line=index))
        for index, row in enumerate(rows)
        if isinstance(row, MeasuredRun)
    ]
    for batch in batches_of(numbered):
        kept: list[int] = []
        where: list[int] = []
        for position, each in enumerate(batch.deployments):
            row = rows[each.row.line]
            assert isinstance(row, MeasuredRun)  # noqa: S101 - by construction, for the type checker
            times = [position] * (row.ttft is not None) + [position + len(batch.deployments)] * (row.tpot is not None)
            kept += times
            where += places[each.row.line]
        yield _Part(_run_predictor(batch, np.array(kept), scaled, catalog), np.array(where))


def _run_predictor(batch: Batch, kept: NDArray[np.int64], scaled: Scaled, catalog: AcceleratorCatalog) -> Predict:
    policy = load_serving_policy(batch.engine, catalog.engines)

    def predict(scales: Scales) -> FloatArray:
        tried = replace(
            batch,
            deployments=tuple(
                replace(
                    each,
                    prefill=scaled(each.prefill, scales),
                    decode=None if each.decode is None else scaled(each.decode, scales),
                )
                for each in batch.deployments
            ),
        )
        steady = steady_state(tried, scaled_policy(policy, scales))
        return np.concatenate([steady.ttft[:, 0], steady.tpot[:, 0]])[kept]

    return predict


def _step_parts(
    rows: Sequence[Row], places: Sequence[list[int]], scaled: Scaled, catalog: AcceleratorCatalog
) -> Iterator[_Part]:
    """Passes of one engine are points of one evaluation."""
    groups: dict[tuple[str, Transformer], list[tuple[int, TimedStep]]] = defaultdict(list)
    for index, row in enumerate(rows):
        if isinstance(row, TimedStep):
            groups[row.engine, row.model].append((places[index][0], row))
    for (engine, model), members in groups.items():
        steps = [row for _, row in members]
        overhead = load_engine_overhead(engine, catalog.engines)
        yield _Part(_step_predictor(model, steps, overhead, scaled), np.array([place for place, _ in members]))


def _step_predictor(
    model: Transformer, steps: Sequence[TimedStep], overhead: EngineOverhead, scaled: Scaled
) -> Predict:
    """All steps come from the same flags, so they share one engine."""
    loads = [step_load(row) for row in steps]
    names = ("prefill_requests", "prefill_tokens", "prefill_past", "decode_requests", "decode_context")
    load = StepLoad(*(np.concatenate([getattr(each, name) for each in loads], axis=1) for name in names))

    def predict(scales: Scales) -> FloatArray:
        config = scaled(steps[0].config, scales)
        return np.asarray(step_time_one(model, config, scaled_overhead(overhead, scales), load).total[0])

    return predict
