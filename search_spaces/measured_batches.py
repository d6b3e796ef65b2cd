"""Measured deployments as the cost model's inputs, many at once: rows that share model and engine are one batch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig, Role
from costmodel.engine_arrays import EngineArrays, engine_arrays
from costmodel.errors import InputError, UnknownNameError
from costmodel.host import EngineOverhead
from costmodel.memory import kv_bytes_per_request_per_gpu, kv_capacity_bytes
from costmodel.serving.closed_loop import closed_loop
from costmodel.serving.disaggregated import Pools, disaggregated
from costmodel.serving.load import MANY_WAVES, ClosedLoad, Steady
from costmodel.serving.policy import ServingPolicy
from costmodel.transfer import (
    exposed_transfer_time,
    hand_over_cards,
    kv_transfer_bytes,
    kv_transfer_time,
    transfer_bandwidth,
)
from costmodel.transformer import Transformer
from costmodel.units import GIB
from costmodel.words import percentage

from .catalog import AcceleratorCatalog
from .engines import engine_name, engine_names, load_serving_policy
from .measured_engines import check_layers, in_dtype, measured_engine, measured_model, weight_dtype
from .measurements import Refused, Row, ServingRow

FloatArray = NDArray[np.float64]

FALLBACK_ENGINE = "vllm"
"""Whose policy an unknown engine is taken to have: the one with the most descendants."""
WARMED_UP = 3.0
"""Mean TTFT over the median beyond which the first requests of the run, not its steady state, make the mean [1]."""
USUAL_CONCURRENCY = 8.0
"""Requests in flight per GPU where a row does not state them: the median of the rows that do."""


@dataclass(frozen=True, slots=True)
class Convention:
    """How a collection of benchmarks draws lengths: uniformly from [shortest, 1] x nominal, and waves of requests."""

    prefix: str
    shortest: float
    waves: float


CONVENTIONS = (Convention("ix", 0.8, MANY_WAVES), Convention("", 1.0, MANY_WAVES))
"""By the beginning of the `set` column; InferenceX (ix) draws from [0.8, 1.0], others are taken at their word."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One row made concrete: engines, load per deployment, and what had to be assumed.

    token_budget: most prompt tokens in a step [token]; looks: decode steps from one look at the queue to the next [1];
    concurrency: of one engine where colocated, of all workers where not; fits: requests that one (decode) worker's
    memory holds; transfer: time that the KV hand-over shows [s].
    """

    row: ServingRow
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


@dataclass(frozen=True, slots=True)
class Batch:
    """Deployments of one model on one engine in one mode, with one token budget [token], as arrays."""

    engine: str
    model: Transformer
    token_budget: int
    deployments: tuple[Deployment, ...]
    load: ClosedLoad
    pools: Pools

    @property
    def split(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.deployments[0].decode is not None

    def policy_of(self, policy: ServingPolicy) -> ServingPolicy:
        """The engine's policy with the token budget of these deployments."""
        return replace(policy, token_budget=self.token_budget)

    def prefill_engines(self, overhead: EngineOverhead) -> EngineArrays:
        """Engines that prefill."""
        return engine_arrays(self.model, [each.prefill for each in self.deployments], overhead)

    def decode_engines(self, overhead: EngineOverhead) -> EngineArrays:
        """Engines that decode."""
        return engine_arrays(self.model, [each.decode or each.prefill for each in self.deployments], overhead)


def deployments_of(
    rows: Iterable[Row], catalog: AcceleratorCatalog, models: Path | None
) -> tuple[list[Deployment], list[Refused]]:
    """What can be predicted, and for every other serving row why not."""
    found: list[Deployment] = []
    refused: list[Refused] = []
    model_of = cache(lambda name: measured_model(name, models))
    for row in rows:
        if isinstance(row, Refused):
            refused.append(row)
        elif isinstance(row, ServingRow):
            try:
                found.append(deployment_of(row, model_of(row.model), catalog))
            except InputError as error:
                refused.append(Refused(row.line, str(error)))
    return found, refused


def batches_of(deployments: Sequence[Deployment]) -> list[Batch]:
    """Deployments grouped by engine, model, token budget and mode; each group in the order of the file."""
    groups: dict[tuple[str, Transformer, int, bool], list[Deployment]] = defaultdict(list)
    for each in deployments:
        groups[each.engine, each.model, each.token_budget, each.decode is None].append(each)
    return [_batch(engine, model, budget, members) for (engine, model, budget, _), members in groups.items()]


def steady_state(batch: Batch, policy: ServingPolicy) -> Steady:
    """TTFT and TPOT of a batch under an engine's policy, but for the token budget, which is the batch's own."""
    policy = batch.policy_of(policy)
    prefill = batch.prefill_engines(policy.overhead)
    if not batch.split:
        return closed_loop(batch.model, prefill, policy, batch.load, batch.pools.fits)
    decode = batch.decode_engines(policy.overhead)
    return disaggregated(batch.model, prefill, decode, policy, load=batch.load, pools=batch.pools)


def deployment_of(
    row: ServingRow,
    published: Transformer,
    catalog: AcceleratorCatalog,
    *,
    kv_dtype: str | None = None,
    memory_fraction: float | None = None,
) -> Deployment:
    """One row made concrete, of the model as it was published; the engine's habits where a flag is None.

    InputError where a word of the row is not known, or where the GPUs cannot hold the model and one request.
    """
    model, dtype = in_dtype(published, row.gemm_dtype, row.moe_dtype)
    engine, notes = _engine(row)
    policy = load_serving_policy(engine)
    stated = row.settings
    usual = policy.quantized_kv_dtype if dtype != "bf16" else "bf16"
    if stated.kv_dtype:
        usual = "bf16" if weight_dtype(stated.kv_dtype) == "bf16" else "fp8"
    workers = {Role.COLOCATED: row.prefill}
    if row.decode is not None:
        workers = {Role.PREFILL: row.prefill, Role.DECODE: row.decode}
    for layout in workers.values():
        check_layers(model, layout)
    sides = [
        measured_engine(
            catalog,
            row.accelerator,
            layout,
            dtype,
            kv_dtype=kv_dtype or usual,
            memory_fraction=memory_fraction or stated.memory_fraction or policy.memory_fraction,
            engine=engine,
            role=role,
        )
        for role, layout in workers.items()
    ]
    convention = next(each for each in CONVENTIONS if row.source.startswith(each.prefix))
    mean = (1.0 + convention.shortest) / 2.0
    isl, osl = row.isl * mean, row.osl * mean
    concurrency, assumed = _concurrency(row)
    if row.decode:
        requests_held(model, sides[0], isl, 0.0)  # no prefill worker may be too small for the model
    fits, crowded = requests_held(model, sides[-1], isl, osl)
    return Deployment(
        row=row,
        model=model,
        engine=engine,
        prefill=sides[0],
        decode=sides[1] if row.decode else None,
        token_budget=stated.token_budget or policy.token_budget,
        looks=float(stated.looks or 1),
        concurrency=concurrency,
        isl=isl,
        osl=osl,
        spread=1.0 - convention.shortest,
        waves=math.inf if row.median else convention.waves,
        fits=fits,
        transfer=_transfer(model, sides[0], sides[1], isl) if row.decode else 0.0,
        notes=(*notes, *_unused_precision(row), *assumed, *crowded, *_warm_up(row)),
    )


def _engine(row: ServingRow) -> tuple[str, tuple[str, ...]]:
    if not row.engine:
        return FALLBACK_ENGINE, (f"engine is not given and taken as {FALLBACK_ENGINE}",)
    try:
        return engine_name(row.engine), ()
    except UnknownNameError:
        inside = next((name for name in engine_names() if name in row.engine), None)
        if inside is not None:
            return inside, (f"engine {row.engine!r} is taken as {inside}",)
        return FALLBACK_ENGINE, (f"engine {row.engine!r} is not known and taken as {FALLBACK_ENGINE}",)


def _unused_precision(row: ServingRow) -> tuple[str, ...]:
    """A note where the row's precision is another than its matrices and experts have, which are what counts."""
    used = row.gemm_dtype if row.gemm_dtype == row.moe_dtype else f"{row.gemm_dtype} and {row.moe_dtype}"
    try:
        is_stated = not row.precision or weight_dtype(row.precision) in map(
            weight_dtype, (row.gemm_dtype, row.moe_dtype)
        )
    except InputError:
        is_stated = False
    return () if is_stated else (f"precision {row.precision!r} is not used: gemm_dtype and moe_dtype say {used}",)


def _concurrency(row: ServingRow) -> tuple[float, tuple[str, ...]]:
    """Requests in flight per colocated engine or per deployment, and whether that is assumed."""
    workers = row.prefill.workers if row.decode is None else 1
    if row.concurrency is not None:
        return row.concurrency / workers, ()
    given = USUAL_CONCURRENCY * max(row.gpus, 1)
    return given / workers, (f"concurrency is not given and taken as {given:g}",)


def _warm_up(row: ServingRow) -> tuple[str, ...]:
    """A note where the mean of a run is far above its median, which a few requests at its start do."""
    far = row.median and row.mean_ttft > WARMED_UP * row.ttft
    return (f"the mean TTFT is over {WARMED_UP:g} times the median: warm-up; the median is scored",) if far else ()


def requests_held(model: Transformer, config: EngineConfig, isl: float, osl: float) -> tuple[float, tuple[str, ...]]:
    """Requests that a measured engine's memory holds, and a note where that takes more than its memory fraction.

    An engine that ran held at least one. Where its memory fraction has no room for one it ran with a larger one, so
    what all of the GPU's memory holds is the limit; InputError where that is none either.
    """
    each = kv_bytes_per_request_per_gpu(model, config, isl, osl)
    for fraction in (config.memory_fraction, 1.0):
        free = kv_capacity_bytes(model, replace(config, memory_fraction=fraction))
        if free >= each:
            held = float(config.parallelism.data * (free // each)) if each else math.inf
            share = percentage(config.memory_fraction)
            beyond = f"does not fit in {share} of the GPU's memory, but ran: all of it is taken as the limit"
            return held, () if fraction == config.memory_fraction else (beyond,)
    memory = config.accelerator.memory
    raise InputError(
        f"{model.name} in {config.weight_dtype} with one request of {isl + osl:,.0f} tokens needs "
        f"{(memory - free + each) / GIB:,.0f} GiB of each of {config.gpus} x {config.accelerator.name}, which has "
        f"{memory / GIB:,.0f} GiB"
    )


def _transfer(model: Transformer, prefill: EngineConfig, decode: EngineConfig, isl: float) -> float:
    """Time of handing over the KV cache of a prompt from one worker to another [s]."""
    size = kv_transfer_bytes(model, isl, prefill.kv_dtype)
    links = (prefill.accelerator.scale_out, decode.accelerator.scale_out)
    cards = (hand_over_cards(model, config, isl, 1.0) for config in (prefill, decode))
    bandwidth = transfer_bandwidth(*links, *cards)
    return exposed_transfer_time(kv_transfer_time(size, bandwidth, links[0].latency), 0.0, 1)


def _batch(engine: str, model: Transformer, token_budget: int, members: list[Deployment]) -> Batch:
    def column(values: Iterable[float]) -> FloatArray:
        return np.fromiter(values, dtype=np.float64).reshape(-1, 1)

    load = ClosedLoad(
        concurrency=column(each.concurrency for each in members),
        isl=column(each.isl for each in members),
        osl=column(each.osl for each in members),
        spread=column(each.spread for each in members),
        waves=column(each.waves for each in members),
        looks=column(each.looks for each in members),
    )
    pools = Pools(
        prefill_workers=column(each.row.prefill.workers if each.decode else 1.0 for each in members),
        decode_workers=column(each.row.decode.workers if each.row.decode else 1.0 for each in members),
        transfer=column(each.transfer for each in members),
        fits=column(each.fits for each in members),
    )
    return Batch(engine, model, token_budget, tuple(members), load, pools)
