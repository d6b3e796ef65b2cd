"""One engine config in numbers: what `pdplan estimate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .accelerator import KernelEfficiency, Origin
from .engine import EngineConfig, Role
from .engine_arrays import EngineArrays, compute_dtype, engine_arrays, kernel_efficiency, part_dtype
from .errors import InputError
from .host import EngineOverhead
from .memory import activation_bytes, kv_capacity_bytes, max_requests, weight_bytes_per_gpu
from .step import StepLoad, StepTime, step_time
from .transformer import LatentAttention, Part, Transformer


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """One step in numbers.

    time [s]; split: seconds by part (gemm, attention, experts, communication, host), which sum to `time`;
    mfu, mbu [1]; arithmetic_intensity [FLOP/byte]; bound_by: compute, bandwidth, network or host.
    """

    time: float
    split: Mapping[str, float]
    mfu: float
    mbu: float
    arithmetic_intensity: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one engine does with prompts of `isl` and answers of `osl` tokens.

    batch: running requests in all; max_batch: most that memory and max_num_seqs allow; prefill: one whole prompt alone;
    decode: one step of each pipeline stage's share of the batch, at the mean context ISL + OSL/2;
    ridge_point [FLOP/byte]; kv_bytes_per_token: whole model [byte/token]; weights_per_gpu, activations_per_gpu,
    kv_capacity_per_gpu [byte]; requests_per_second: what the engine sustains in its role, see `saturation_rate` [1/s];
    binds: what limits throughput: compute, bandwidth, network, host, or memory if more HBM would allow a larger batch;
    efficiencies: (kernel class, dtype) -> figures used; overhead: host overhead used.
    """

    batch: float
    max_batch: int
    prefill: StepEstimate
    decode: StepEstimate
    ridge_point: float
    kv_bytes_per_token: float
    weights_per_gpu: float
    activations_per_gpu: float
    kv_capacity_per_gpu: float
    requests_per_second: float
    binds: str
    efficiencies: Mapping[tuple[str, str], KernelEfficiency]
    overhead: EngineOverhead

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Distinct origins of the efficiencies used, alphabetical."""
        return tuple(sorted({figures.origin for figures in self.efficiencies.values()}))


def estimate(
    model: Transformer,
    config: EngineConfig,
    overhead: EngineOverhead,
    isl: float,
    osl: float,
    *,
    batch: float | None = None,
) -> Estimate:
    """Predict prefill and decode of one engine.

    isl, osl: input and output length [token]; batch: running requests; None: as many as fit.
    """
    _check_lengths(config, isl, osl, batch)
    most = max_requests(model, config, isl, osl)
    running = _batch(model, config, most, batch)
    engines = engine_arrays(model, [config], overhead)
    prefill = step_time(model, engines, StepLoad.prefill(isl))
    decode = step_time(model, engines, StepLoad.decode(running / config.parallelism.pipeline, isl + osl / 2))
    decoding = _summary(decode, engines)
    return Estimate(
        batch=running,
        max_batch=most,
        prefill=_summary(prefill, engines),
        decode=decoding,
        ridge_point=config.accelerator.ridge_point(compute_dtype(config.weight_dtype, config.accelerator)),
        kv_bytes_per_token=model.kv_bytes_per_token(config.kv_dtype),
        weights_per_gpu=weight_bytes_per_gpu(model, config),
        activations_per_gpu=activation_bytes(model, config),
        kv_capacity_per_gpu=kv_capacity_bytes(model, config),
        requests_per_second=saturation_rate(config, _summary(prefill, engines).time, osl * decoding.time / running),
        binds="memory" if most < config.max_num_seqs and running >= most else decoding.bound_by,
        efficiencies=used_efficiencies(model, config),
        overhead=overhead,
    )


def saturation_rate(config: EngineConfig, prefill_time: float, decode_time: float) -> float:
    """Requests per second of an engine that is never idle [1/s].

    prefill_time: of one prompt [s], shared by pipeline stages and data-parallel ranks; decode_time: of one request's
    tokens, OSL x step / batch [s]. A prefill engine pays the first, a decode engine the second, a colocated one both.
    """
    lanes = config.parallelism.pipeline * config.parallelism.data
    cost = {
        Role.PREFILL: prefill_time / lanes,
        Role.DECODE: decode_time,
        Role.COLOCATED: prefill_time / lanes + decode_time,
    }
    return 1.0 / cost[config.role]


def used_efficiencies(model: Transformer, config: EngineConfig) -> dict[tuple[str, str], KernelEfficiency]:
    """Efficiency of every kernel class that the engine runs, by (class, compute dtype)."""
    accelerator, split = config.accelerator, config.parallelism
    pairs = [("gemm", compute_dtype(part_dtype(model, part, config.weight_dtype), accelerator)) for part in Part]
    for group in model.layers:
        kind = "latent" if isinstance(group.attention, LatentAttention) else "attention"
        pairs += [(f"{kind}_prefill", config.kv_dtype), (f"{kind}_decode", config.kv_dtype)]
    if model.is_moe:
        pairs.append(("moe", compute_dtype(part_dtype(model, Part.EXPERTS, config.weight_dtype), accelerator)))
    if split.tensor > 1:
        pairs.append(("all_reduce", "bf16"))
    if split.data > 1:
        pairs.append(("all_to_all", "bf16"))
    return {pair: kernel_efficiency(accelerator, *pair) for pair in dict.fromkeys(pairs)}


def _check_lengths(config: EngineConfig, isl: float, osl: float, batch: float | None) -> None:
    if not (isl >= 1 and osl >= 1 and np.isfinite(isl + osl)):
        raise InputError(f"ISL and OSL must be at least 1 token; found {isl:g} and {osl:g}")
    if isl + osl > config.max_model_len:
        raise InputError(f"ISL + OSL = {isl + osl:g} tokens exceed max_model_len {config.max_model_len}")
    if batch is not None and not (batch > 0 and np.isfinite(batch)):
        raise InputError(f"batch must be positive; found {batch:g}")


def _batch(model: Transformer, config: EngineConfig, most: int, batch: float | None) -> float:
    """The batch asked for, or the largest; an error says what does not fit."""
    if most == 0:
        free = kv_capacity_bytes(model, config)
        what = "the weights" if free <= 0 else "the weights and the KV cache of one request"
        raise InputError(
            f"{model.name} in {config.weight_dtype} does not fit on {config.gpus} x {config.accelerator.name}: "
            f"{what} need more than {config.memory_fraction:.0%} of {config.accelerator.memory / 2**30:.0f} GiB per GPU"
        )
    if batch is not None and batch > most:
        raise InputError(f"batch {batch:g} exceeds the {most} requests that memory and max_num_seqs allow")
    return float(most) if batch is None else batch


def _summary(step: StepTime, engines: EngineArrays) -> StepEstimate:
    def number(array: NDArray[np.float64]) -> float:
        return float(array[0, 0])

    split = {
        "gemm": number(step.gemm),
        "attention": number(step.attention),
        "experts": number(step.experts),
        "communication": number(step.communication),
        "host": number(step.host),
    }
    mfu, mbu = number(step.mfu(engines)), number(step.mbu(engines))
    kernels = split["gemm"] + split["attention"] + split["experts"]
    candidates = {
        "compute" if mfu > mbu else "bandwidth": kernels,
        "network": split["communication"],
        "host": split["host"],
    }
    return StepEstimate(
        time=number(step.total),
        split=split,
        mfu=mfu,
        mbu=mbu,
        arithmetic_intensity=number(step.arithmetic_intensity),
        bound_by=max(candidates, key=lambda name: candidates[name]),
    )
