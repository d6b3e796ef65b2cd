"""From rows of measurement files to models and engines that the cost model understands, and to predictions of them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path, PureWindowsPath

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.attention import Part
from costmodel.engine import NO_OVERHEAD, EngineConfig, EngineOverhead, Parallelism, Role, ServingPolicy, Speculation
from costmodel.engine_arrays import MARLIN_MXFP4, TABLES, Conditions, EngineArrays, engine_arrays
from costmodel.errors import InputError, UnknownNameError
from costmodel.memory import (
    hand_over_cards,
    kv_bytes_per_request_per_gpu,
    kv_capacity_bytes,
    kv_transfer_time,
    transfer_bandwidth,
)
from costmodel.queues.steady_state import MANY_WAVES, ClosedLoad, Steady, WorkerPools, closed_loop, engine_times
from costmodel.step import StepLoad, step_time
from costmodel.transformer import Transformer
from costmodel.units import GIB
from costmodel.words import percentage

from .catalog import AcceleratorCatalog
from .engines import SUPPORT, engine_name, load_engine_memory, load_serving_policy, shipped_acceptance
from .files import shown_path
from .measurements import (
    PLAIN,
    RUNS,
    SHORTEST,
    WARMED_UP,
    WORDS,
    MeasuredRun,
    MeasuredStep,
    Refused,
    Row,
    RowFlags,
    stored_dtype,
    weight_dtype,
)
from .models import CONFIG_FILE, catalog_model, known_names, load_model
from .serving_error import error_table, interval_factors, step_interval, stratum_of

QUANTIZER, TUNER, MAKER = (re.compile(WORDS[name]) for name in ("quantizer", "tuner", "maker"))
ROOMY = 10**7
"""A context longer than any request [token]: the benchmark ran, so its engine accepted the lengths."""
USUAL_SEQS = 1024
"""Requests for which a measured engine keeps logits: vLLM's default on large GPUs; no row states it."""


def table_conditions(backend: str, gemm: str, experts: str) -> Conditions:
    """The circumstances of steps composed from the kernel tables of `backend`, by the file's words for dtypes.

    Kernels launched one by one, experts chosen by a power law; vLLM's tables have FP8 kernels of their own.
    """
    kernels = WORDS["table_kernels"].get((experts or gemm).strip().lower(), "fp8") if backend in ("", "vllm") else "fp8"
    return replace(TABLES, fp8_kernels=kernels)


def measured_model(name: str, folder: Path | None = None) -> Transformer:
    """The model of a Hugging Face id or short name: the catalog's, else FOLDER/<org>/<name>/config.json.

    An id that neither has is compared without punctuation, then without its organisation and a quantiser's suffix
    (-FP8, -NVFP4, ...), then without a tuner's (-Instruct, -2507, ...). No file outside the folder is ever looked at.
    """
    try:
        return catalog_model(name)
    except UnknownNameError as unknown:
        path = PureWindowsPath(name)  # knows the separators of all systems
        if path.anchor or ".." in path.parts or name.startswith("~"):
            raise InputError(
                f"model '{shown_path(name)}' is a path that leaves the folder of models; write ORG/NAME"
            ) from None
        # OSError: a name longer than any file's, or a folder that must not be read
        with suppress(OSError):
            if folder is not None and (folder / name / CONFIG_FILE).is_file():
                return replace(load_model(str((folder / name).resolve())), name=name.rpartition("/")[2])
        names = {_spellings(model_name)[0]: model_name for model_name in reversed(known_names())}
        paths = [] if folder is None else [path.parent for path in folder.glob(f"*/*/{CONFIG_FILE}")]
        ranked = sorted((rank, path, word) for path in paths for rank, word in enumerate(_spellings(path.name)))
        files = {word: path for _, path, word in reversed(ranked)}  # the fuller spelling wins
        for word in _spellings(name):
            if word in names:
                return catalog_model(names[word])
            if word in files:
                return replace(load_model(str(files[word].resolve())), name=files[word].name)
        there = f"; {shown_path(folder / name / CONFIG_FILE)} is not there either" if folder else "; give --models DIR"
        raise InputError(f"{unknown}{there}") from unknown


def _spellings(name: str) -> tuple[str, ...]:
    """Ever shorter names of a model in plain letters: less organisation, quantiser's and tuner's suffix, and maker."""
    short = name.rpartition("/")[2].lower()
    bare = QUANTIZER.sub("", short)
    base = TUNER.sub("", QUANTIZER.sub("", TUNER.sub("", bare)))
    names = dict.fromkeys((short, bare, base, MAKER.sub("", base)))
    return tuple(dict.fromkeys(PLAIN.sub("", word) for word in names))


def in_dtype(model: Transformer, gemm: str, experts: str) -> tuple[Transformer, str]:
    """The model as the benchmark's checkpoint stores it, and the weight dtype of its quantised parts.

    gemm, experts: the file's words for the dtype of dense matrices and of routed experts. Published 4-bit checkpoints
    of models with latent attention leave the attention in 16 bit, and a checkpoint whose native format was asked for
    keeps the parts that it spares. Where dense matrices and experts differ, the experts' dtype is the engine's (they
    are most of the weights) and the dense parts keep their own.
    """
    dense = stored_dtype(gemm)
    expert_dtype = stored_dtype(experts or gemm) if model.is_moe else dense
    dtype = WORDS["served_as"].get(expert_dtype, expert_dtype)
    native = dtype == model.native_weight_dtype and dense in (expert_dtype, "bf16")
    if native and expert_dtype == dtype:
        return model, dtype
    quantized_parts = {Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS}
    if native:
        quantized_parts &= model.quantized
    elif dtype == "fp4" and dense == expert_dtype and model.is_latent:
        quantized_parts -= {Part.ATTENTION}
    elif dense == "bf16" and dtype != "bf16":
        quantized_parts = {Part.EXPERTS}
    if dtype == "fp4" and dense == expert_dtype and model.native_weight_dtype != "bf16":
        quantized_parts = (quantized_parts & model.quantized) or quantized_parts
    own = {piece: dense for piece in quantized_parts - {Part.EXPERTS} if dense not in (dtype, "bf16")}
    if expert_dtype != dtype:
        own |= dict.fromkeys(quantized_parts & {Part.EXPERTS}, expert_dtype)
    return replace(model, quantized=frozenset(quantized_parts), own_dtypes=frozenset(own.items())), dtype


def measured_engine(
    catalog: AcceleratorCatalog,
    accelerator: str,
    model: Transformer,
    split: Parallelism,
    dtype: str,
    *,
    kv_dtype: str,
    memory_fraction: float,
) -> EngineConfig:
    """One worker of a measured deployment, without limits of its scheduler: those belong to the serving policy.

    It is colocated, of vLLM, and drafts nothing. InputError where its pipeline has more stages than the model layers.
    """
    if split.pipeline > model.num_layers:
        raise InputError(f"pp {split.pipeline} is more than the {model.num_layers} layers of {model.name}")
    if split.tensor * split.data % split.expert:
        split = replace(split, expert=1)
    return EngineConfig(
        accelerator=catalog.accelerator(accelerator),
        role=Role.COLOCATED,
        parallelism=split,
        weight_dtype=dtype,
        kv_dtype=kv_dtype,
        max_num_seqs=USUAL_SEQS,
        max_num_batched_tokens=8192,
        max_model_len=ROOMY,
        memory=load_engine_memory("vllm"),
        memory_fraction=memory_fraction,
    )


FALLBACK_ENGINE = "vllm"
"""Whose policy an unknown engine is taken to have: the one with the most descendants."""
USUAL_CONCURRENCY = 8.0
"""Requests in flight per GPU where a row does not state them: the median of the rows that do."""


@dataclass(frozen=True, slots=True)
class MeasuredDeployment:
    """The engines and the load of one row, and what had to be assumed.

    token_budget: most prompt tokens in a step [token]; looks: decode steps from one look at the queue to the next [1];
    concurrency: of one engine where colocated, of all workers where not; fits: requests that one (decode) worker's
    memory holds; transfer: time that the KV hand-over shows [s].
    """

    row: MeasuredRun
    model: Transformer
    engine: str
    prefill: EngineConfig
    decode: EngineConfig | None
    token_budget: int
    looks: float
    concurrency: float
    isl: float
    osl: float
    spread: float
    waves: float
    fits: float
    transfer: float
    notes: tuple[str, ...]

    def request_rate(self, ttft: float, tpot: float) -> float:
        """Requests that one engine, or all workers together, end at these times [1/s]: Little's law.

        concurrency / (TTFT + (OSL - 1) TPOT), with one gap between tokens at least.
        """
        return self.concurrency / (ttft + max(self.osl - 1.0, 1.0) * tpot)


@dataclass(frozen=True, slots=True)
class Batch:
    """Deployments of one model on one engine in one mode, with one token budget [token], as arrays."""

    engine: str
    model: Transformer
    token_budget: int
    deployments: tuple[MeasuredDeployment, ...]
    load: ClosedLoad
    pools: WorkerPools


def deployments_of(
    rows: Iterable[Row], catalog: AcceleratorCatalog, models: Path | None
) -> tuple[list[MeasuredDeployment], list[Refused]]:
    """Deployments that can be predicted, and for every other serving row the reason why not."""
    deployments: list[MeasuredDeployment] = []
    refusals: list[Refused] = []
    model_of = cache(lambda name: measured_model(name, models))
    for row in rows:
        if isinstance(row, Refused):
            refusals.append(row)
        elif isinstance(row, MeasuredRun):
            try:
                deployments.append(deployment_of(row, model_of(row.model), catalog))
            except InputError as error:
                refusals.append(Refused(row.line, str(error)))
    return deployments, refusals


def batches_of(deployments: Sequence[MeasuredDeployment]) -> list[Batch]:
    """Deployments grouped by engine, model, token budget, mode and drafts; each group in the order of the file."""
    groups: dict[tuple[object, ...], list[MeasuredDeployment]] = defaultdict(list)
    for own in deployments:
        alike = own.engine, own.model, own.token_budget, own.decode is None, own.prefill.speculation
        groups[alike].append(own)
    return [_batch(members) for members in groups.values()]


def workers_of(batch: Batch, overhead: EngineOverhead) -> tuple[EngineArrays, EngineArrays]:
    """Engines of a batch that prefill, and those that decode; the same where they are not apart."""
    prefill = engine_arrays(batch.model, [row.prefill for row in batch.deployments], overhead)
    decoding = [row.decode for row in batch.deployments if row.decode is not None]
    return prefill, engine_arrays(batch.model, decoding, overhead) if decoding else prefill


def steady_state(batch: Batch, policy: ServingPolicy) -> Steady:
    """TTFT and TPOT of a batch under an engine's policy, but for the token budget, which is the batch's own."""
    policy = replace(policy, token_budget=batch.token_budget)
    prefill, decode = workers_of(batch, policy.overhead)
    return closed_loop(engine_times(batch.model, prefill, decode, policy, batch.load), policy, batch.load, batch.pools)


def deployment_of(row: MeasuredRun, published_model: Transformer, catalog: AcceleratorCatalog) -> MeasuredDeployment:
    """One row made concrete, of the model as it was published; the engine's habits where the row states no flag.

    InputError where a word of the row is not known, or where the GPUs cannot hold the model and one request.
    """
    model, dtype = in_dtype(published_model, row.gemm_dtype, row.moe_dtype)
    if row.settings.marlin and model.is_mxfp4(model.part_dtype(Part.EXPERTS, dtype)):
        dense_dtypes = {pair for pair in model.own_dtypes if pair[0] is not Part.EXPERTS}
        model = replace(model, own_dtypes=frozenset(dense_dtypes | {(Part.EXPERTS, MARLIN_MXFP4)}))
    engine, engine_note = engine_of_word(row.engine)
    model = model.with_states(SUPPORT[engine].state_bits)
    policy = load_serving_policy(engine)
    settings = row.settings
    kv_dtype = policy.quantized_kv_dtype if dtype != "bf16" else "bf16"
    if settings.kv_dtype:
        kv_dtype = "bf16" if weight_dtype(settings.kv_dtype) == "bf16" else "fp8"
    workers = {Role.COLOCATED: row.prefill}
    if row.decode is not None:
        workers = {Role.PREFILL: row.prefill, Role.DECODE: row.decode}
    speculation, speculation_note = speculation_of(settings, engine)
    memory, share = load_engine_memory(engine), settings.memory_fraction or policy.memory_fraction
    sides = []
    for role, side in workers.items():
        worker = (catalog, row.accelerator, model, side.split, dtype)
        config = measured_engine(*worker, kv_dtype=kv_dtype, memory_fraction=share)
        sides.append(replace(config, role=role, memory=memory, speculation=speculation))
    is_nominal = row.source.startswith(RUNS)
    shortest = SHORTEST if is_nominal else 1.0
    isl, osl = (length * (1.0 + shortest) / 2.0 for length in (row.isl, row.osl))
    flight = USUAL_CONCURRENCY * max(row.gpus, 1) if row.concurrency is None else row.concurrency
    transfer = 0.0
    if row.decode:
        requests_held(model, sides[0], isl, 0.0)  # no prefill worker may be too small for the model
        links = (sides[0].accelerator.scale_out, sides[1].accelerator.scale_out)
        bandwidth = transfer_bandwidth(*links, *(hand_over_cards(model, config, isl, 1.0) for config in sides))
        transfer = kv_transfer_time(model.kv_bytes(isl, kv_dtype), bandwidth, links[0].latency)
    fits, memory_notes = requests_held(model, sides[-1], isl, osl)
    return MeasuredDeployment(
        row=row,
        model=model,
        engine=engine,
        prefill=sides[0],
        decode=sides[1] if row.decode else None,
        token_budget=settings.token_budget or policy.token_budget,
        looks=float(settings.looks or 1),
        concurrency=flight if row.decode else flight / row.prefill.count,
        isl=isl,
        osl=osl,
        spread=1.0 - shortest if is_nominal else row.spread,
        waves=MANY_WAVES if row.ttft.typical is None or row.ttft.mean is not None else math.inf,  # of a median
        fits=fits,
        transfer=transfer,
        notes=(*filter(None, [engine_note, speculation_note]), *_assumptions(row), *memory_notes),
    )


def engine_of_word(word: str) -> tuple[str, str]:
    """The catalog's engine of a file's word for it, and what had to be assumed: of that name or alias, or in the word.

    >>> engine_of_word("vLLM"), engine_of_word("dynamo-trt")
    (('vllm', ''), ('trtllm', "engine 'dynamo-trt' is taken as trtllm"))
    """
    with suppress(UnknownNameError):
        return engine_name(word), ""
    if not word:
        return FALLBACK_ENGINE, f"engine is not given and taken as {FALLBACK_ENGINE}"
    marked = next((name for mark, name in WORDS["engines"].items() if mark in word.lower()), None)
    engine, words = (marked, "is taken") if marked else (FALLBACK_ENGINE, "is not known and taken")
    return engine, f"engine {word!r} {words} as {engine}"


def speculation_of(flags: RowFlags, engine: str) -> tuple[Speculation | None, str]:
    """How the engines of a row draft tokens, and what had to be assumed; InputError where acceptance is not known."""
    if flags.draft is None:
        return None, ""
    acceptance = flags.acceptance or shipped_acceptance().get(flags.draft)
    if acceptance is None:
        raise InputError(f"spec_acceptance is empty, and {flags.draft} has no default; state it, such as 0.5")
    tokens = flags.draft_tokens or int(WORDS["drafted"][engine])
    assumptions = [
        *([] if flags.draft_tokens else [f"spec_tokens is not given and taken as {tokens}"]),
        *([] if flags.acceptance else [f"spec_acceptance is not given and taken as {' '.join(map(str, acceptance))}"]),
    ]
    return Speculation(flags.draft, tokens, acceptance), "; ".join(assumptions)


def _assumptions(row: MeasuredRun) -> Iterator[str]:
    """Assumptions about a load that a row leaves open or states twice."""
    if row.precision:
        dtypes = (row.gemm_dtype, row.moe_dtype)
        try:
            is_used = weight_dtype(row.precision) in map(weight_dtype, dtypes)
        except InputError:
            is_used = False
        if not is_used:
            words = " and ".join(dict.fromkeys(dtypes))
            yield f"precision {row.precision!r} is not used: gemm_dtype and moe_dtype say {words}"
    if row.concurrency is None:
        yield f"concurrency is not given and taken as {USUAL_CONCURRENCY * max(row.gpus, 1):g}"
    if row.warmed_up:
        yield f"the mean TTFT is over {WARMED_UP:g} times the median: warm-up; the median is scored"


def requests_held(model: Transformer, config: EngineConfig, isl: float, osl: float) -> tuple[float, tuple[str, ...]]:
    """Requests that a measured engine's memory holds, and a note where that takes more than its memory fraction.

    An engine that ran held at least one. Where its memory fraction has no room for one it ran with a larger one, so
    what all of the GPU's memory holds is the limit; InputError where that is none either.
    """
    request = kv_bytes_per_request_per_gpu(model, config, isl, osl)
    for fraction in (config.memory_fraction, 1.0):
        free = kv_capacity_bytes(model, replace(config, memory_fraction=fraction))
        if free >= request:
            requests = float(config.parallelism.data * (free // request)) if request else math.inf
            share = percentage(config.memory_fraction)
            beyond = f"does not fit in {share} of the GPU's memory, but ran: all of it is taken as the limit"
            return requests, () if fraction == config.memory_fraction else (beyond,)
    memory = config.accelerator.memory
    raise InputError(
        f"{model.name} in {config.weight_dtype} with one request of {isl + osl:,.0f} tokens needs "
        f"{(memory - free + request) / GIB:,.0f} GiB of each of {config.gpus} × {config.accelerator.name}, which has "
        f"{memory / GIB:,.0f} GiB"
    )


def _batch(members: list[MeasuredDeployment]) -> Batch:
    def column(values: Iterable[float]) -> FloatArray:
        return np.fromiter(values, dtype=np.float64).reshape(-1, 1)

    load = ClosedLoad(
        **{
            name: column(getattr(deployment, name) for deployment in members)
            for name in ("concurrency", "isl", "osl", "spread", "waves", "looks")
        }
    )
    pools = WorkerPools(
        prefill_workers=column(deployment.row.prefill.count if deployment.decode else 1.0 for deployment in members),
        decode_workers=column(deployment.row.decode.count if deployment.row.decode else 1.0 for deployment in members),
        transfer=column(deployment.transfer for deployment in members),
        fits=column(deployment.fits for deployment in members),
        apart=members[0].decode is not None,
    )
    return Batch(members[0].engine, members[0].model, members[0].token_budget, tuple(members), load, pools)


# Predictions beside measurements, row by row, with error bars; a row that cannot be predicted says why.

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
    second and GPU, NaN for steps; notes: what had to be assumed.
    """

    line: int
    group: Mapping[str, str]
    values: Mapping[str, Value]
    throughput: tuple[float, float]
    notes: tuple[str, ...]


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
        for deployment, ttft, tpot in zip(batch.deployments, *columns, strict=True):
            row, measured = deployment.row, deployment.row.scored
            drafts = row.settings.draft
            stratum = stratum_of(deployment.model, deployment.prefill, deployment.engine, row.mode)
            stratum = replace(stratum, accepted=drafts is None or bool(row.settings.acceptance))
            if not (math.isfinite(ttft) and math.isfinite(tpot)):
                refusals.append(Refused(row.line, OUT_OF_RANGE))
                continue
            values = {
                "ttft": _value(ttft, measured[0], interval_factors(table, "ttft", stratum)),
                "tpot": _value(tpot, measured[1], interval_factors(table, "tpot", stratum)),
            }
            tokens = deployment.osl * (1 if deployment.decode else row.prefill.count) / max(row.gpus, 1)
            throughput = (tokens * deployment.request_rate(ttft, tpot), tokens * deployment.request_rate(*measured))
            mode = row.mode if drafts is None else f"{row.mode}, {drafts}"
            words = (row.model, row.accelerator, row.engine or deployment.engine, mode)
            group = dict(zip(SERVING_GROUP, words, strict=True))
            rows_out.append(Predicted(row.line, group, values, throughput, deployment.notes))
    return _in_order(rows_out, refusals)


def _in_order(predictions: list[Predicted], refusals: list[Refused]) -> Predictions:
    line = attrgetter("line")
    return Predictions(tuple(sorted(predictions, key=line)), tuple(sorted(refusals, key=line)))


def _value(prediction: float, measurement: float, factors: tuple[float, float]) -> Value:
    return Value(prediction, prediction * factors[0], prediction * factors[1], measurement)


def predict_steps(rows: Sequence[Row], catalog: AcceleratorCatalog, models: Path | None) -> Predictions:
    """Latency of every step row, under the conditions of the tables from which such steps are composed.

    Kernels and collectives alone, launched one by one, with experts chosen by a power law: the file has no scheduler
    and no CUDA graph in its steps. The batch of a row is that of one data-parallel rank, as in those tables' tool.
    """
    groups: dict[tuple[Transformer, str, Conditions], list[tuple[MeasuredStep, EngineConfig]]] = defaultdict(list)
    refusals: list[Refused] = [row for row in rows if isinstance(row, Refused)]
    model_of = cache(lambda name, gemm, moe: in_dtype(measured_model(name, models), gemm, moe))
    for row in rows:
        if not isinstance(row, MeasuredStep):
            continue
        try:
            model, dtype = model_of(row.model, row.gemm_dtype, row.moe_dtype)
            narrow = weight_dtype(row.kv_dtype) != "bf16"  # a cache of any narrow dtype is read as one of FP8
            kv_dtype = "fp8" if narrow else "bf16"
            config = measured_engine(
                catalog, row.accelerator, model, row.split, dtype, kv_dtype=kv_dtype, memory_fraction=1.0
            )
        except InputError as error:
            refusals.append(Refused(row.line, str(error)))
        else:
            phase = "prefill" if row.prompts else "decode"
            groups[model, phase, table_conditions(row.engine, row.gemm_dtype, row.moe_dtype)].append((row, config))
    rows_out: list[Predicted] = []
    for (model, phase, conditions), steps in groups.items():
        engines = engine_arrays(model, [config for _, config in steps], NO_OVERHEAD, conditions)
        load = StepLoad.of(*np.array([row.load(row.split.data) for row, _ in steps]).T[:, :, None])
        for (row, config), latency in zip(steps, step_time(model, engines, load).total[:, 0].tolist(), strict=True):
            if not math.isfinite(latency):
                refusals.append(Refused(row.line, OUT_OF_RANGE))
                continue
            value = _value(latency, row.seconds, step_interval(model, config.accelerator))
            group = {"model": row.model, "accelerator": row.accelerator, "phase": phase, "dtype": row.dtype}
            rows_out.append(Predicted(row.line, group, {"latency": value}, (np.nan, np.nan), ()))
    return _in_order(rows_out, refusals)
