"""From benchmark records to scales with their errors, and to the catalog file that carries them.

Each record is made predictable first: with the engine that ran it, as the user's flags or the file say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel import calibration as scaling
from costmodel.accelerator import Accelerator, KernelEfficiency, Origin
from costmodel.arrays import FloatArray
from costmodel.calibration import Observation, Pair, Quantity, ScaleFit, Scales
from costmodel.engine import EngineConfig
from costmodel.errors import InputError
from costmodel.queues.steady_state import MANY_WAVES
from costmodel.step import StepLoad, step_time_one
from costmodel.transformer import DTYPE_BYTES, Transformer
from costmodel.units import MICRO, MILLI
from costmodel.words import join_words, percentage

from .catalog import MAX_OVERLAY_BYTES, TOP, AcceleratorCatalog, normalized_name, overlay_text
from .efficiency import efficiency_dict
from .engines import engine_name, load_serving_policy
from .measured_engines import (
    MeasuredDeployment,
    batches_of,
    deployment_of,
    engine_of_word,
    in_dtype,
    measured_engine,
    measured_model,
    steady_state,
)
from .measurements import Latency, MeasuredRun, MeasuredStep, Record, RowFlags, Workers
from .quantities import rounded
from .sources import read_source

Predict = Callable[[Scales], FloatArray]
CACHED = 0.01
"""Share of prompt tokens found in a prefix cache from which TTFT says nothing of the prompt's length [1]."""
STEADY_SHARE = 0.9
"""Share of its concurrency that a rate-limited run fills when the concurrency is what limits it [1]."""
FEWEST_WAVES = 1.5
"""Requests over concurrency below which a run is one burst without a steady state [1]."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The deployment that was measured, as the user describes it.

    model: as resolved; engine, weight_dtype, kv_dtype, memory_fraction, max_num_seqs: None where not said;
    workers: equal engines.
    """

    catalog: AcceleratorCatalog
    model_name: str
    model: Transformer
    accelerator: Accelerator
    workers: Workers
    engine: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    memory_fraction: float | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A record and the engines that ran it.

    engine: the serving engine; model: as the engine stores it; configs: one engine, or one that prefills and one that
    decodes; times: what may be fitted of it [s], NaN: nothing; point: the operating point, equal for repetitions: ISL,
    OSL and concurrency of a run, of a step the arguments of `StepLoad.of`; deployment: of a run, None for a step.
    """

    record: Record
    engine: str
    model: Transformer
    configs: tuple[EngineConfig, ...]
    times: tuple[tuple[Quantity, float], tuple[Quantity, float]]
    point: tuple[float, ...]
    deployment: MeasuredDeployment | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A note for the user on a record that was left out, in whole or in part."""

    where: str
    reason: str


def measured(records: Iterable[Record], setup: Setup) -> tuple[list[MeasuredRow], list[Note]]:
    """Every record that can be fitted, with its engine, in the order of the files; and notes on records left out."""
    rows: list[MeasuredRow] = []
    notes: list[Note] = []
    for record in records:
        try:
            row, reasons = (_step(record, setup), []) if isinstance(record, MeasuredStep) else _run(record, setup)
        except InputError as error:
            notes.append(Note(record.where, f"left out: {error}"))
            continue
        notes += [Note(record.where, reason) for reason in reasons]
        rows.append(row)
    return rows, notes


def observations(rows: Sequence[MeasuredRow]) -> list[Observation]:
    """The measured times of the rows, in their order, TTFT before TPOT."""
    return [
        Observation(quantity, seconds, index, row.point)
        for index, row in enumerate(rows)
        for quantity, seconds in row.times
        if not math.isnan(seconds)
    ]


def engine_of(record: Record, setup: Setup) -> str:
    """The serving engine: as the user says, as the file states, as the tool suggests, or vLLM."""
    if setup.engine is not None:
        return engine_name(setup.engine)
    return engine_of_word("" if isinstance(record, MeasuredStep) else record.engine)[0]


def in_flight(run: MeasuredRun) -> tuple[float | None, bool]:
    """Requests in flight, and whether the generator replaced each one that ended (a closed loop)."""
    flight = run.in_flight or run.occupancy
    if run.concurrency is None:
        return flight, False
    has_rate = run.request_rate is not None and math.isfinite(run.request_rate)
    if has_rate and flight is not None and flight < STEADY_SHARE * run.concurrency:
        return flight, False
    return run.concurrency, True


def _run(run: MeasuredRun, setup: Setup) -> tuple[MeasuredRow, list[str]]:
    """The engines of a run, and what of it is not used; InputError where nothing is."""
    reason, (flight, is_closed_loop), notes = _unusable(run, setup), in_flight(run), list[str]()
    if reason or flight is None:
        raise InputError(reason or "neither a concurrency nor a throughput from which to tell how many were in flight")
    ttft, tpot = run.scored
    if not is_closed_loop and ttft > 0.0:
        ttft = math.nan
        notes.append(
            "TTFT not used: requests arrived at a rate, whose bursts the fixed-concurrency model does not know"
        )
    if run.cached > CACHED and ttft > 0.0:
        ttft = math.nan
        notes.append(f"TTFT not used: {percentage(run.cached)} of the prompt tokens came from a prefix cache")
    deployment = _deployment(run, setup, flight, ttft, tpot)
    if math.isnan(ttft) and math.isnan(tpot):
        raise InputError("; ".join([*notes, "it has no TTFT and no TPOT to fit"]))
    configs = (deployment.prefill,) if deployment.decode is None else (deployment.prefill, deployment.decode)
    times = ((Quantity.TTFT, ttft), (Quantity.TPOT, tpot))
    point = (deployment.isl, deployment.osl, deployment.concurrency)
    row = MeasuredRow(run, deployment.engine, deployment.model, configs, times, point, deployment)
    return row, [*notes, *deployment.notes]


def _unusable(run: MeasuredRun, setup: Setup) -> str:
    """Why a run cannot be predicted; empty where it can."""
    if run.speculative:
        return "it drafts tokens: how many were accepted, and so how long a step took, is not known"
    prompts, limit = run.prompts, run.concurrency
    if limit is None and run.request_rate is not None and math.isinf(run.request_rate):
        return "all prompts were sent at once, so there was no steady state; limit the concurrency"
    if prompts is not None and limit is not None and prompts < FEWEST_WAVES * limit and limit > 1:
        return (
            f"{prompts} prompts at concurrency {limit:g} are one burst, not a steady state; send several times as many"
        )
    return other_deployment(run, setup.model, [setup.accelerator.name], setup.catalog)


def other_deployment(run: MeasuredRun, model: Transformer, gpus: Sequence[str], catalog: AcceleratorCatalog) -> str:
    """Why a run is not of this model on these GPUs; empty where its file says nothing else."""
    words = run.accelerator.replace("_", "-").split("-")
    for length in range(len(words), 0, -1):  # of a runner's name (h200-nb_0, b200-trt), what stands before a mark
        ran_on = catalog.spellings.get(normalized_name("-".join(words[:length])))
        if ran_on is not None and (ran_on in gpus or not any(gpu in catalog.accelerators for gpu in gpus)):
            break
        if ran_on is not None:
            return f"it ran on {ran_on}, not on {join_words(gpus)}"
    with suppress(InputError):
        ran_model = measured_model(run.model)
        if ran_model.name != model.name and ran_model.layers != model.layers:
            return f"it ran {ran_model.name}, not {model.name}"
    return ""


def _deployment(run: MeasuredRun, setup: Setup, flight: float, ttft: float, tpot: float) -> MeasuredDeployment:
    prefill, decode = (run.prefill, run.decode) if run.gpus else (setup.workers, None)
    dtype = setup.weight_dtype or run.precision or setup.model.native_weight_dtype
    row = replace(
        run,
        model=setup.model_name,
        accelerator=setup.accelerator.name,
        engine=engine_of(run, setup),
        gemm_dtype=dtype,
        moe_dtype=dtype,
        precision="",
        concurrency=flight,
        gpus=prefill.gpus + (decode.gpus if decode else 0),
        prefill=prefill,
        decode=decode,
        ttft=Latency(ttft),
        tpot=Latency(tpot),
        settings=RowFlags(setup.kv_dtype or "", setup.memory_fraction),
    )
    deployment = deployment_of(row, setup.model, setup.catalog)
    waves = MANY_WAVES if run.prompts is None else max(run.prompts / flight, 1.0)
    return replace(deployment, waves=waves, fits=min(deployment.fits, setup.max_num_seqs or math.inf))


def _step(step: MeasuredStep, setup: Setup) -> MeasuredRow:
    """A pass of one rank; with data-parallel attention the other ranks are taken to have been as busy."""
    dtype = setup.weight_dtype or setup.model.native_weight_dtype
    model, dtype = in_dtype(setup.model, dtype, dtype)
    config = measured_engine(
        setup.catalog,
        setup.accelerator.name,
        model,
        setup.workers.split,
        dtype,
        kv_dtype=setup.kv_dtype or "bf16",
        memory_fraction=setup.memory_fraction or 0.9,
    )
    kind = Quantity.PREFILL_STEP if step.prompts else Quantity.DECODE_STEP
    times = ((kind, step.seconds), (kind, math.nan))
    point = step.load(setup.workers.split.data)
    return MeasuredRow(step, engine_of(step, setup), model, (config,), times, point)


def used_pairs(rows: Sequence[MeasuredRow]) -> tuple[Pair, ...]:
    """(kernel class, dtype) of all efficiencies that the rows rest on."""
    return tuple(dict.fromkeys(pair for row in rows for pair in scaling.calibrated_pairs(row.model, row.configs)))


def predictor(rows: Sequence[MeasuredRow], catalog: AcceleratorCatalog, *, limited: bool = True) -> Predict:
    """Predicted seconds of `observations(rows)`, in their order, as a function of the scales.

    limited: no efficiency above 1; without, scales that physics forbids can be told (`scaling.scaled_figures`).
    """
    pairs = used_pairs(rows)
    numbers = {id(row.deployment): number for number, row in enumerate(rows)}
    batches = batches_of([row.deployment for row in rows if row.deployment is not None])
    steps: dict[tuple[str, Transformer], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.deployment is None:
            steps[row.engine, row.model].append(number)
    is_measured = ~np.isnan([[seconds for _, seconds in row.times] for row in rows])

    def predict(scales: Scales) -> FloatArray:
        def scaled(config: EngineConfig) -> EngineConfig:
            accelerator = config.accelerator
            figures = scaling.scaled_figures(accelerator, pairs, scales, limited=limited)
            return replace(config, accelerator=replace(accelerator, efficiency={**accelerator.efficiency, **figures}))

        seconds = np.empty((len(rows), 2))
        for batch in batches:
            places = [numbers[id(deployment)] for deployment in batch.deployments]
            policy = scaling.scaled_policy(load_serving_policy(batch.engine, catalog.engines), scales)
            deployments = tuple(
                replace(own, prefill=scaled(own.prefill), decode=None if own.decode is None else scaled(own.decode))
                for own in batch.deployments
            )
            steady = steady_state(replace(batch, deployments=deployments), policy)
            seconds[places] = np.concatenate([steady.ttft, steady.tpot], axis=1)
        for (engine, model), places in steps.items():  # passes of the same flags, so they share one engine
            policy = scaling.scaled_policy(load_serving_policy(engine, catalog.engines), scales)
            load = StepLoad.of(*np.array([rows[place].point for place in places]).T)
            config = scaled(rows[places[0]].configs[0])
            seconds[places, 0] = step_time_one(model, config, policy.overhead, load).total[0]
        return np.asarray(seconds[is_measured])

    return predict


FULLEST, EMPTIEST = 1.25, 0.1
"""Range of requests in flight by Little's law over the concurrency of a closed loop; outside it a unit is wrong [1]."""
FARTHEST = 20.0
"""Ratio of measured and predicted time, either way, beyond which something else was measured [1]."""


def check_possible(rows: Sequence[MeasuredRow]) -> None:
    """Refuse rows that contradict themselves or the roofline."""
    for row in rows:
        if isinstance(row.record, MeasuredStep):
            (config,) = row.configs
            least = max(scaling.floors(row.model, config, StepLoad.of(*row.point)))
            needs = f"by the roofline of {_engine(config)}"
            _refuse_below(row.record.where, "wall time", row.record.seconds, least, needs)
        elif row.deployment is not None:
            check_littles_law(row.record)
            _check_run(row.record, row.deployment)


def check_littles_law(run: MeasuredRun) -> None:
    """Throughput x residence must equal what the generator kept in flight; this reveals a wrong unit."""
    flight, is_closed_loop = in_flight(run)
    occupancy = run.occupancy
    if occupancy is None or flight is None or not is_closed_loop or run.residence is None:
        return
    share = occupancy / flight
    if share > FULLEST or share < EMPTIEST:
        raise InputError(
            f"{run.where}: {run.request_throughput:.3g} requests/s of {run.residence:.3g} s each (TTFT and TPOT) are "
            f"{occupancy:.3g} in flight by Little's law, but the concurrency is {flight:g}; check the units of the "
            "times (milliseconds, seconds)"
        )


def check_near(forecast: NDArray[np.float64], times: Sequence[Observation], rows: Sequence[MeasuredRow]) -> None:
    """Refuse data that no machine of this type can produce."""
    logs = np.abs(np.log(forecast / np.array([time.seconds for time in times])))
    if float(np.median(logs)) <= math.log(FARTHEST):
        return
    worst = int(np.argmax(logs))
    observation = times[worst]
    raise InputError(
        f"{rows[observation.row].record.where}: {observation.quantity.value} is {_time_text(observation.seconds)}, the "
        f"prediction {_time_text(float(forecast[worst]))}, and most rows are as far off; check units, --model, --gpu "
        "and layout"
    )


def check_fit(fit: ScaleFit, rows: Sequence[MeasuredRow]) -> None:
    """Refuse scales that push the kernels on which the times rest beyond the data sheet's peak or bandwidth."""
    config = rows[0].configs[0]
    beyond = scaling.above_physics(config.accelerator, rows[0].model, used_pairs(rows), fit.scales)
    for name, share in beyond.items():
        limit = "memory bandwidth" if name == "memory" else "peak FLOP/s"
        raise InputError(
            f"the measured times ask for {percentage(share)} of the {limit} of {config.accelerator.name}, more than "
            "there is; check --gpu, --weight-dtype and layout, and that neither speculative decoding nor a prefix "
            "cache was on"
        )


def _check_run(run: MeasuredRun, deployment: MeasuredDeployment) -> None:
    row, model, (ttft, tpot) = deployment.row, deployment.model, deployment.row.scored
    prefill, decode = deployment.prefill, deployment.decode or deployment.prefill
    if not math.isnan(tpot):
        workers = (row.decode or row.prefill).count
        decoding = max((run.request_throughput or 0.0) * run.gaps * tpot / workers, 1.0)  # by Little's law
        least = scaling.least_tpot(model, decode, decoding, deployment.isl + deployment.osl / 2.0)
        _refuse_below(
            run.where, "TPOT", tpot, least, f"to read weights and KV once at the bandwidth of {_engine(decode)}"
        )
    least = scaling.least_ttft(model, prefill, deployment.isl)
    if not math.isnan(ttft):
        needs = f"for the FLOP of {deployment.isl:,.0f} tokens at the peak of {_engine(prefill)}"
        _refuse_below(run.where, "TTFT", ttft, least, needs)
    if run.request_throughput is not None and not run.cached:
        most = row.prefill.count * prefill.parallelism.data / least
        if run.request_throughput > most:
            raise InputError(
                f"{run.where}: {run.request_throughput:.3g} requests/s of {deployment.isl:,.0f} prompt tokens are more "
                f"than the {most:.3g} that the FLOP/s of {_engine(prefill)} allow; check --gpu, the layout and the "
                "number of replicas"
            )


def _refuse_below(where: str, name: str, seconds: float, least: float, needs: str) -> None:
    if seconds < least:
        raise InputError(
            f"{where}: {name} {_time_text(seconds)} is below {_time_text(least)}, the least {needs}; check the units, "
            "--model, --gpu, --weight-dtype and the layout"
        )


def _engine(config: EngineConfig) -> str:
    return f"{config.gpus} × {config.accelerator.name} {config.parallelism.words}"


def _time_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds / MILLI:.3g} ms"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The outcome: rows and their times in the order of the files, the fit, what was left out.

    figures: scaled efficiencies by (kernel class, dtype); engine: whose host times were fitted; hint: with which
    precision the catalog comes nearer to the data, if with one.
    """

    setup: Setup
    engine: str
    rows: tuple[MeasuredRow, ...]
    seen: tuple[Observation, ...]
    fit: ScaleFit
    figures: Mapping[Pair, KernelEfficiency]
    notes: tuple[Note, ...]
    hint: str

    @property
    def refusal(self) -> str:
        """Why the fit must not be used unchecked, and what to try; empty if it explains the data."""
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
        return tuple(name for name in scaling.SPREAD if name not in self.fit.free)


def calibrate(records: Sequence[Record], setup: Setup, source: str) -> Calibration:
    """Fit the scales to the records; InputError where nothing can be fitted or the data contradicts physics.

    source: what the overlay says its figures rest on. A fit that does not explain the data says so (`refusal`).
    """
    rows, notes = measured(records, setup)
    if not rows:
        reasons = "; ".join(dict.fromkeys(f"{note.where}: {note.reason}" for note in notes[:3]))
        none = "the only result cannot" if len(records) == 1 else f"none of the {len(records)} results can"
        raise InputError(f"{none} be used: {reasons}")
    engine, *more_engines = dict.fromkeys(row.engine for row in rows)
    if more_engines:
        raise InputError(
            f"the results come from several engines ({', '.join([engine, *more_engines])}), whose host times differ; "
            "calibrate each apart, or say which it was with --engine"
        )
    times = observations(rows)
    predict = predictor(rows, setup.catalog)
    try:
        check_possible(rows)
        check_near(predict(Scales()), times, rows)
        check_fit(scaling.fit_scales(predictor(rows, setup.catalog, limited=False), times), rows)
    except InputError as fault:
        nearer = nearer_precision(records, setup, len(times))
        raise InputError(f"{fault}; {nearer}" if nearer else str(fault)) from fault
    fit = scaling.fit_scales(predict, times)
    hint = nearer_precision(records, setup, len(times), least=2.0 if fit.explains else 1.0)
    if fit.explains and hint:  # a fit may hide that the precision is the wrong one
        notes.append(Note("precision", hint))
    error = float(np.median(np.abs(np.expm1(fit.held))))
    figures = {
        pair: replace(
            efficiency,
            origin=Origin.FITTED,
            source=f"{source}; scaled from: {efficiency.source.rpartition('scaled from: ')[2]}",  # the first one alone
            error=error,
        )
        for pair, efficiency in scaling.scaled_figures(setup.accelerator, used_pairs(rows), fit.scales).items()
    }
    return Calibration(setup, engine, tuple(rows), tuple(times), fit, figures, tuple(notes), hint)


def nearer_precision(records: Sequence[Record], setup: Setup, times: int, *, least: float = 1.0) -> str:
    """Says with which precision the catalog's median error is below its own by `least` [1]; empty if with none.

    FP4 is one of them where the GPU has units for it, or the checkpoint is MXFP4.
    """
    has_fp4 = "fp4" in setup.accelerator.peak_flops or setup.model.is_mxfp4("fp4")
    dtypes = [dtype for dtype in DTYPE_BYTES if dtype != setup.weight_dtype and (dtype != "fp4" or has_fp4)]
    errors = {dtype: _catalog_error(records, replace(setup, weight_dtype=dtype), times) for dtype in dtypes}
    nearest, own = min(errors, key=errors.__getitem__), _catalog_error(records, setup, times)
    if not least * errors[nearest] < own:
        return ""
    here = "" if math.isinf(own) else f", here {percentage(own)}"
    return f"with --weight-dtype {nearest} the catalog's median error is {percentage(errors[nearest])}{here}"


def _catalog_error(records: Sequence[Record], setup: Setup, times: int) -> float:
    """Median error of the catalog as it is [1]; infinite where it is no better than an outlier, or cannot be."""
    rows, _ = measured(records, setup)
    times_seen = observations(rows)
    if len(times_seen) < times:
        return math.inf
    try:
        check_possible(rows)
    except InputError:
        return math.inf
    ratio = predictor(rows, setup.catalog)(Scales()) / np.array([time.seconds for time in times_seen])
    is_near = scaling.strain_of(np.log(ratio), times_seen) <= scaling.HUBER
    return float(np.median(np.abs(ratio - 1.0))) if is_near else math.inf


def calibrated_overlay(calibration: Calibration, heading: Sequence[str], source: str, base: Path | None) -> str:
    """The text of the overlay: scaled efficiencies and, where they were fitted, host times; `base` is kept in it."""
    content = {} if base is None else read_source(base, max_bytes=MAX_OVERLAY_BYTES).value
    catalog = calibration.setup.catalog
    accelerator = calibration.setup.accelerator.name
    spelling = next(
        (name for name in content.get(TOP) or {} if catalog.spellings.get(normalized_name(str(name))) == accelerator),
        accelerator,
    )
    times = dict[str, Any]()
    policy = scaling.scaled_policy(load_serving_policy(calibration.engine, catalog.engines), calibration.fit.scales)
    if "host" in calibration.fit.free:
        times["step_overhead_us"] = rounded(policy.overhead.step / MICRO)
        times["per_request_overhead_us"] = rounded(policy.overhead.per_request / MICRO)
    if "arrival" in calibration.fit.free:
        times["arrival_ms"] = rounded(policy.arrival / MILLI)
    host = {calibration.engine: {**times, "origin": str(Origin.FITTED), "source": source}} if times else None
    return overlay_text(heading, spelling, efficiency_dict(calibration.figures), host, content)
