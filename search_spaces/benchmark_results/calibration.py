"""From benchmark records to scales with their errors, and to the catalog file that carries them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.accelerator import KernelEfficiency, Origin
from costmodel.calibration.limits import least_step, least_tpot, least_ttft, most_requests_per_second
from costmodel.calibration.scales import HUBER, SPREAD, Observation, ScaleFit, Scales, fit_scales, strain_of
from costmodel.calibration.scaling import (
    Pair,
    above_physics,
    calibrated_pairs,
    scaled_accelerator,
    scaled_figures,
    scaled_overhead,
    scaled_policy,
)
from costmodel.engine import EngineConfig
from costmodel.errors import InputError
from costmodel.host import EngineOverhead
from costmodel.step import StepLoad, step_time_one
from costmodel.transformer import DTYPE_BYTES, Transformer
from costmodel.units import MICRO, MILLI
from costmodel.words import join_words, percentage
from search_spaces.benchmark_results.deployed import (
    MeasuredRun,
    Note,
    Setup,
    TimedStep,
    in_flight,
    measured,
    observations,
)
from search_spaces.benchmark_results.records import BenchmarkRun, Record
from search_spaces.catalog import (
    MAX_OVERLAY_BYTES,
    TOP,
    AcceleratorCatalog,
    efficiency_dict,
    normalized_name,
    overlay_text,
    rounded,
)
from search_spaces.engines import load_engine_overhead, load_serving_policy
from search_spaces.measured_batches import Batch, batches_of, steady_state
from search_spaces.yaml_source import read_source

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
    pieces = [*_run_parts(rows, places, scaled, catalog), *_step_parts(rows, places, scaled, catalog)]

    def predict(scales: Scales) -> FloatArray:
        seconds = np.empty(sum(len(each) for each in places))
        for part in pieces:
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


FULLEST, EMPTIEST = 1.25, 0.1
"""Requests in flight by Little's law over the concurrency of a closed loop: more, or fewer, and a unit is wrong [1]."""
FARTHEST = 20.0
"""Measured over predicted, or the inverse, from which it was something else that was measured [1]."""


def check_possible(rows: Sequence[Row]) -> None:
    """Refuse rows that contradict themselves or the roofline."""
    for row in rows:
        if isinstance(row, TimedStep):
            _check_step(row)
        else:
            check_littles_law(row.run)
            _check_run(row)


def check_littles_law(run: BenchmarkRun) -> None:
    """Throughput x residence must be what the generator kept in flight; a wrong unit shows here at once."""
    flight, closed = in_flight(run)
    occupancy = run.occupancy
    if occupancy is None or flight is None or not closed or run.residence is None:
        return
    share = occupancy / flight
    if share > FULLEST or share < EMPTIEST:
        raise InputError(
            f"{run.where}: {run.request_throughput:.3g} requests/s of {run.residence:.3g} s each (TTFT and TPOT) are "
            f"{occupancy:.3g} in flight by Little's law, but the concurrency is {flight:g}; check the units of the "
            "times (milliseconds, seconds)"
        )


def check_near(predicted: NDArray[np.float64], seen: Sequence[Observation], rows: Sequence[Row]) -> None:
    """Refuse data that is further from the prediction than any machine of the kind can be."""
    logs = np.abs(np.log(predicted / np.array([each.seconds for each in seen])))
    if float(np.median(logs)) <= math.log(FARTHEST):
        return
    worst = int(np.argmax(logs))
    observation = seen[worst]
    raise InputError(
        f"{where_of(rows[observation.row])}: {observation.quantity.value} is {_shown(observation.seconds)}, the "
        f"prediction {_shown(float(predicted[worst]))}, and most rows are as far off; check units, --model, --gpu "
        "and layout"
    )


def check_fit(fit: ScaleFit, rows: Sequence[Row]) -> None:
    """Refuse scales that push the kernels on which the times rest beyond the data sheet's peak or bandwidth."""
    model, config = model_of(rows[0]), engines_of(rows[0])[0]
    beyond = above_physics(config.accelerator, model, used_pairs(rows), fit.scales)
    for name, share in beyond.items():
        limit = "memory bandwidth" if name == "memory" else "peak FLOP/s"
        raise InputError(
            f"the measured times ask for {percentage(share)} of the {limit} of {config.accelerator.name}, more than "
            "there is; check --gpu, --weight-dtype and layout, and that neither speculative decoding nor a prefix "
            "cache was on"
        )


def where_of(row: Row) -> str:
    """The row's place in its file."""
    return row.step.where if isinstance(row, TimedStep) else row.run.where


def _check_run(row: MeasuredRun) -> None:
    deployment, run = row.deployment, row.run
    prefill, decode = deployment.prefill, deployment.decode or deployment.prefill
    model = deployment.model
    if row.tpot is not None:
        least = least_tpot(model, decode, _decoding(row), deployment.isl + deployment.osl / 2.0)
        _refuse_below(run.where, "TPOT", row.tpot, least, f"to read weights and KV once {_bus(decode)}")
    if row.ttft is not None:
        least = least_ttft(model, prefill, deployment.isl)
        needs = f"for the FLOP of {deployment.isl:,.0f} tokens at the peak of {_engine(prefill)}"
        _refuse_below(run.where, "TTFT", row.ttft, least, needs)
    if run.request_throughput is not None and not run.cached:
        most = deployment.row.prefill.workers * most_requests_per_second(model, prefill, deployment.isl)
        if run.request_throughput > most:
            raise InputError(
                f"{run.where}: {run.request_throughput:.3g} requests/s of {deployment.isl:,.0f} prompt tokens are more "
                f"than the {most:.3g} that the FLOP/s of {_engine(prefill)} allow; check --gpu, the layout and the "
                "number of replicas"
            )


def _check_step(row: TimedStep) -> None:
    least = least_step(row.model, row.config, step_load(row))
    _refuse_below(row.step.where, "wall time", row.step.seconds, least, f"by the roofline of {_engine(row.config)}")


def _decoding(row: MeasuredRun) -> float:
    """Requests that decode at once on one worker, by Little's law; one where the throughput is not known [1]."""
    run, deployment = row.run, row.deployment
    if run.request_throughput is None or row.tpot is None:
        return 1.0
    workers = deployment.row.decode.workers if deployment.row.decode else deployment.row.prefill.workers
    return max(run.request_throughput * run.gaps * row.tpot / workers, 1.0)


def _refuse_below(where: str, name: str, seconds: float, least: float, needs: str) -> None:
    if seconds < least:
        raise InputError(
            f"{where}: {name} {_shown(seconds)} is below {_shown(least)}, the least {needs}; check the units, --model, "
            "--gpu, --weight-dtype and the layout"
        )


def _bus(config: EngineConfig) -> str:
    return f"at the bandwidth of {_engine(config)}"


def _engine(config: EngineConfig) -> str:
    split = config.parallelism
    degrees = {"TP": split.tensor, "PP": split.pipeline, "EP": split.expert, "DP": split.data}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    return " ".join([f"{config.gpus} x {config.accelerator.name}", *words])


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds / MILLI:.3g} ms"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The outcome: rows and their times in the order of the files, the fit, what was left out.

    figures: scaled efficiencies by (kernel class, dtype); engine: whose host times were fitted; hint: flags with which
    the catalog comes nearer to the data, where the fit does not explain it.
    """

    setup: Setup
    engine: str
    rows: tuple[Row, ...]
    seen: tuple[Observation, ...]
    fit: ScaleFit
    figures: Mapping[Pair, KernelEfficiency]
    notes: tuple[Note, ...]
    hint: str

    @property
    def refusal(self) -> str:
        """Why the fit must not be used without a second look, and what to try; empty where it explains the data."""
        fit = self.fit
        if fit.explains:
            return ""
        findings = [f"the median error is {percentage(float(np.median(np.abs(np.expm1(fit.after)))))} after the fit"]
        findings += [f"the scale of {name} is {getattr(fit.scales, name):.3g}" for name in fit.far]
        flags = self.hint or "check --weight-dtype, --gpu and the layout"
        return f"no machine of this type explains these results: {join_words(findings)}; {flags}"

    @property
    def kept(self) -> tuple[str, ...]:
        """Scales that the data could not show and that stay 1."""
        return tuple(name for name in SPREAD if name not in self.fit.free)


def calibrate(records: Sequence[Record], setup: Setup, source: str) -> Calibration:
    """Fit the scales to the records; InputError where nothing can be fitted or the data contradicts physics.

    source: what the overlay says its figures rest on. A fit that does not explain the data says so (`refusal`).
    """
    usable = measured(records, setup)
    if not usable.rows:
        reasons = "; ".join(dict.fromkeys(f"{note.where}: {note.reason}" for note in usable.notes[:3]))
        raise InputError(f"none of the {len(records)} results can be used: {reasons}")
    engine = _one_engine(usable.rows)
    seen = observations(usable.rows)
    predict = predictor(usable.rows, setup.catalog)
    try:
        check_possible(usable.rows)
        check_near(predict(Scales()), seen, usable.rows)
        check_fit(fit_scales(predictor(usable.rows, setup.catalog, limited=False), seen), usable.rows)
    except InputError as fault:
        nearer = nearer_flags(records, setup, len(seen))
        raise InputError(f"{fault}; {nearer}" if nearer else str(fault)) from fault
    fit = fit_scales(predict, seen)
    hint = "" if fit.explains else nearer_flags(records, setup, len(seen))
    notes = usable.notes + (precision_note(records, setup, len(seen)) if fit.explains else ())
    accelerator = setup.accelerator
    error = float(np.median(np.abs(np.expm1(fit.held))))
    figures = {
        pair: replace(
            efficiency, origin=Origin.FITTED, source=f"{source}; scaled from: {_root(efficiency.source)}", error=error
        )
        for pair, efficiency in scaled_figures(accelerator, used_pairs(usable.rows), fit.scales).items()
    }
    return Calibration(setup, engine, usable.rows, tuple(seen), fit, figures, notes, hint)


def nearer_flags(records: Sequence[Record], setup: Setup, times: int) -> str:
    """Flags with which the catalog predicts all of the `times` better than with those of the setup; empty if none do.

    Of the precisions, the GPUs and half or twice the tensor ranks the best of each, the two best of these.
    """
    others = (other for other in setup.catalog.accelerators.values() if other.name != setup.accelerator.name)
    gpus = {f"--gpu {accelerator.name}": replace(setup, accelerator=accelerator) for accelerator in others}
    ranks = {setup.layout.tensor * 2, setup.layout.tensor // 2} - {0}
    layouts = {
        f"--tp {tensor}": replace(setup, layout=replace(setup.layout, tensor=tensor)) for tensor in sorted(ranks)
    }
    own = _catalog_error(records, setup, times)
    best = [_nearest(records, kind, times) for kind in (_precisions(setup), gpus, layouts)]
    words = [f"with {flag} {percentage(error)}" for error, flag in sorted(best)[:2] if error < own]
    return f"median error of the catalog {join_words(words)}" if words else ""


def precision_note(records: Sequence[Record], setup: Setup, times: int) -> tuple[Note, ...]:
    """That another precision halves the catalog's error, where one does: a fit may hide that it is the wrong one."""
    own = _catalog_error(records, setup, times)
    error, flag = _nearest(records, _precisions(setup), times)
    if 2.0 * error >= own or not math.isfinite(own):
        return ()
    comparison = f"with {flag} the catalog's median error is {percentage(error)} before any fit, here {percentage(own)}"
    return (Note("precision", comparison),)


def _precisions(setup: Setup) -> dict[str, Setup]:
    return {
        f"--weight-dtype {dtype}": replace(setup, weight_dtype=dtype)
        for dtype in DTYPE_BYTES
        if dtype != setup.weight_dtype
    }


def _nearest(records: Sequence[Record], kind: Mapping[str, Setup], times: int) -> tuple[float, str]:
    """The least error of the catalog among several setups, and its flag."""
    return min((_catalog_error(records, other, times), flag) for flag, other in kind.items())


def _catalog_error(records: Sequence[Record], setup: Setup, times: int) -> float:
    """Median error of the catalog as it is [1]; infinite where it is no better than an outlier, or cannot be."""
    usable = measured(records, setup)
    seen = observations(usable.rows)
    if len(seen) < times:
        return math.inf
    try:
        check_possible(usable.rows)
    except InputError:
        return math.inf
    ratio = predictor(usable.rows, setup.catalog)(Scales()) / np.array([each.seconds for each in seen])
    return float(np.median(np.abs(ratio - 1.0))) if strain_of(np.log(ratio), seen) <= HUBER else math.inf


def calibrated_overlay(calibration: Calibration, heading: Sequence[str], source: str, base: Path | None) -> str:
    """The text of the overlay: scaled efficiencies and, where they were fitted, host times; `base` is kept in it."""
    content = {} if base is None else read_source(base, MAX_OVERLAY_BYTES)[0].value
    catalog = calibration.setup.catalog
    accelerator = calibration.setup.accelerator.name
    written = next(
        (name for name in content.get(TOP) or {} if catalog.spellings.get(normalized_name(str(name))) == accelerator),
        accelerator,
    )
    host = _host_times(calibration, source)
    engines = {calibration.engine: host} if host else None
    return overlay_text(heading, written, efficiency_dict(calibration.figures), engines, content)


def _host_times(calibration: Calibration, source: str) -> dict[str, Any]:
    scales, catalog = calibration.fit.scales, calibration.setup.catalog
    times: dict[str, Any] = {}
    if "host" in calibration.fit.free:
        overhead = scaled_overhead(load_engine_overhead(calibration.engine, catalog.engines), scales)
        times["step_overhead_us"] = rounded(overhead.step / MICRO)
        times["per_request_overhead_us"] = rounded(overhead.per_request / MICRO)
    if "arrival" in calibration.fit.free:
        policy = scaled_policy(load_serving_policy(calibration.engine, catalog.engines), scales)
        times["arrival_ms"] = rounded(policy.arrival / MILLI)
    return {**times, "origin": str(Origin.FITTED), "source": source} if times else {}


def _one_engine(rows: Sequence[Row]) -> str:
    engines = dict.fromkeys(row.engine if isinstance(row, TimedStep) else row.deployment.engine for row in rows)
    if len(engines) > 1:
        raise InputError(
            f"the results come from several engines ({', '.join(engines)}), whose host times differ; "
            "calibrate each apart, or say which it was with --engine"
        )
    return next(iter(engines))


def _root(source: str) -> str:
    """The source beneath earlier calibrations, so that repeated ones do not pile up."""
    return source.rpartition("scaled from: ")[2]
