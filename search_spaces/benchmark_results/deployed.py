"""Benchmark records made predictable: each with the engine that ran it, told by the user's flags or by the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from costmodel.accelerator import Accelerator
from costmodel.calibration.scales import Observation, Quantity
from costmodel.engine import EngineConfig
from costmodel.errors import InputError, UnknownNameError
from costmodel.serving.load import MANY_WAVES
from costmodel.transformer import Transformer
from costmodel.words import percentage
from search_spaces.benchmark_results.records import BenchmarkRun, MeasuredStep, Record, Stated, Workers
from search_spaces.catalog import AcceleratorCatalog
from search_spaces.engines import engine_name
from search_spaces.measured_batches import Deployment, deployment_of
from search_spaces.measured_engines import in_dtype, measured_engine, measured_model
from search_spaces.measurements import Layout, ServingRow

DEFAULT_ENGINE = "vllm"
CACHED = 0.01
"""Share of prompt tokens found in a prefix cache from which TTFT says nothing of the prompt's length [1]."""
STEADY_SHARE = 0.9
"""Share of its concurrency that a rate-limited run fills when the concurrency is what limits it [1]."""
FEWEST_WAVES = 1.5
"""Requests over concurrency below which a run is one burst without a steady state [1]."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the user says of the deployment that was measured.

    model: as resolved; engine, weight_dtype, kv_dtype, memory_fraction, max_num_seqs: None where not said;
    layout: of one engine, and how many equal ones there are.
    """

    catalog: AcceleratorCatalog
    model_name: str
    model: Transformer
    accelerator: Accelerator
    layout: Layout
    engine: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    memory_fraction: float | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and the deployment that is predicted for it; ttft, tpot: what may be fitted of it [s]."""

    run: BenchmarkRun
    deployment: Deployment
    ttft: float | None
    tpot: float | None


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A forward pass and the engine that ran it."""

    step: MeasuredStep
    model: Transformer
    config: EngineConfig
    engine: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the user should know of a record: it was left out, or in part."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """All that can be fitted, in the order of the files, and what was left out."""

    rows: tuple[MeasuredRun | TimedStep, ...]
    notes: tuple[Note, ...]


def measured(records: Iterable[Record], setup: Setup) -> Measured:
    """Every record with its engine; what cannot be predicted becomes a note."""
    rows: list[MeasuredRun | TimedStep] = []
    notes: list[Note] = []
    for record in records:
        try:
            row, reasons = _step(record, setup) if isinstance(record, MeasuredStep) else _run(record, setup)
        except InputError as error:
            notes.append(Note(record.where, f"left out: {error}"))
            continue
        notes += [Note(record.where, reason) for reason in reasons]
        if row is not None:
            rows.append(row)
    return Measured(tuple(rows), tuple(notes))


def observations(rows: Sequence[MeasuredRun | TimedStep]) -> list[Observation]:
    """The measured times of the rows, in their order, TTFT before TPOT."""
    seen_times: list[Observation] = []
    for index, row in enumerate(rows):
        if isinstance(row, TimedStep):
            step = row.step
            kind = Quantity.PREFILL_STEP if step.prompts else Quantity.DECODE_STEP
            load = (step.prompts, step.new, step.past, step.decodes, step.context)
            seen_times.append(Observation(kind, step.seconds, index, load))
            continue
        point = (row.deployment.isl, row.deployment.osl, row.deployment.concurrency)
        times = ((Quantity.TTFT, row.ttft), (Quantity.TPOT, row.tpot))
        seen_times += [Observation(what, seconds, index, point) for what, seconds in times if seconds is not None]
    return seen_times


def engine_of(record: Record, setup: Setup) -> str:
    """The serving engine: as the user says, as the file states, as the tool suggests, or vLLM."""
    if setup.engine is not None:
        return engine_name(setup.engine)
    if isinstance(record, MeasuredStep) or record.engine is None:
        return DEFAULT_ENGINE
    written = record.engine.lower()
    for mark, name in (("sgl", "sglang"), ("trt", "trtllm"), ("tensorrt", "trtllm"), ("vllm", "vllm")):
        if mark in written:
            return name
    return DEFAULT_ENGINE


def in_flight(run: BenchmarkRun) -> tuple[float | None, bool]:
    """Requests in flight, and whether the generator replaced each one that ended (a closed loop)."""
    flight = run.in_flight or run.occupancy
    if run.concurrency is None:
        return flight, False
    limited = run.request_rate is not None and math.isfinite(run.request_rate)
    if limited and flight is not None and flight < STEADY_SHARE * run.concurrency:
        return flight, False
    return run.concurrency, True


def _run(run: BenchmarkRun, setup: Setup) -> tuple[MeasuredRun | None, list[str]]:
    refused = _unusable(run, setup)
    if refused:
        return None, [f"left out: {refused}"]
    flight, closed = in_flight(run)
    if flight is None:
        return None, ["left out: neither a concurrency nor a throughput from which to tell how many were in flight"]
    notes = []
    ttft = run.ttft.typical
    if not closed and ttft is not None:
        ttft = None
        notes.append(
            "TTFT not used: requests arrived at a rate, whose bursts the fixed-concurrency model does not know"
        )
    if run.cached > CACHED and ttft is not None:
        ttft = None
        notes.append(f"TTFT not used: {percentage(run.cached)} of the prompt tokens came from a prefix cache")
    deployment = _deployment(run, setup, flight)
    if ttft is None and run.tpot.typical is None:
        return None, [*notes, "left out: it has no TTFT and no TPOT to fit"]
    return MeasuredRun(run, deployment, ttft, run.tpot.typical), [*notes, *deployment.notes]


def _unusable(run: BenchmarkRun, setup: Setup) -> str:
    """Why a run cannot be predicted; empty where it can."""
    if run.speculative:
        return "speculative decoding is not modeled: steps cannot be counted from tokens"
    prompts, limit = run.prompts, run.concurrency
    if limit is None and run.request_rate is not None and math.isinf(run.request_rate):
        return "all prompts were sent at once, so there was no steady state; limit the concurrency"
    if prompts is not None and limit is not None and prompts < FEWEST_WAVES * limit and limit > 1:
        return (
            f"{prompts} prompts at concurrency {limit:g} are one burst, not a steady state; send several times as many"
        )
    if run.stated is not None and run.stated.accelerator:
        other = _accelerator_named(run.stated.accelerator, setup.catalog)
        if other is not None and other.name != setup.accelerator.name:
            return f"it ran on {other.name}, not on {setup.accelerator.name}"
    named = _model_named(run.model)
    if named is not None and named.name != setup.model.name and named.layers != setup.model.layers:
        return f"it ran {named.name}, not {setup.model.name}"
    return ""


def _accelerator_named(written: str, catalog: AcceleratorCatalog) -> Accelerator | None:
    """The accelerator of a runner's name (h200-nb_0, b200-trt): what stands before the first mark that fits."""
    words = written.replace("_", "-").split("-")
    for length in range(len(words), 0, -1):
        try:
            return catalog.accelerator("-".join(words[:length]))
        except UnknownNameError:
            continue
    return None


def _model_named(written: str | None) -> Transformer | None:
    if not written:
        return None
    try:
        return measured_model(written)
    except InputError:
        return None


def _deployment(run: BenchmarkRun, setup: Setup, flight: float) -> Deployment:
    prefill, decode = (setup.layout, None) if run.stated is None else _layouts(run.stated)
    dtype = setup.weight_dtype or (run.stated.precision if run.stated else "") or setup.model.native_weight_dtype
    gpus = sum(side.workers * side.tensor * side.pipeline * side.data for side in (prefill, decode) if side)
    row = ServingRow(
        line=0,
        source="",
        model=setup.model_name,
        accelerator=setup.accelerator.name,
        engine=engine_of(run, setup),
        gemm_dtype=dtype,
        moe_dtype=dtype,
        isl=run.isl,
        osl=run.osl,
        concurrency=flight,
        gpus=gpus,
        prefill=prefill,
        decode=decode,
        ttft=run.ttft.typical or math.nan,
        tpot=run.tpot.typical or math.nan,
    )
    deployment = deployment_of(
        row, setup.model, setup.catalog, kv_dtype=setup.kv_dtype, memory_fraction=setup.memory_fraction
    )
    waves = MANY_WAVES if run.prompts is None else max(run.prompts / flight, 1.0)
    fits = min(deployment.fits, setup.max_num_seqs or math.inf)
    return replace(deployment, spread=run.spread, waves=waves, fits=fits)


def _layouts(stated: Stated) -> tuple[Layout, Layout | None]:
    return _layout(stated.prefill), None if stated.decode is None else _layout(stated.decode)


def _layout(side: Workers) -> Layout:
    return Layout(side.count, side.tensor, side.pipeline, side.data, side.expert)


def _step(step: MeasuredStep, setup: Setup) -> tuple[TimedStep, list[str]]:
    """A pass of one rank; with data-parallel attention the other ranks are taken to have been as busy."""
    dtype = setup.weight_dtype or setup.model.native_weight_dtype
    model, dtype = in_dtype(setup.model, dtype, dtype)
    config = measured_engine(
        setup.catalog,
        setup.accelerator.name,
        setup.layout,
        dtype,
        kv_dtype=setup.kv_dtype or "bf16",
        memory_fraction=setup.memory_fraction or 0.9,
    )
    lanes = setup.layout.data
    whole = replace(step, prompts=step.prompts * lanes, decodes=step.decodes * lanes)
    return TimedStep(whole, model, config, engine_of(step, setup)), []
