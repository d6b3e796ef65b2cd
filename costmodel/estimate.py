"""One engine config in numbers: what `pdplan estimate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .accelerator import KernelEfficiency, Origin
from .attention import Part
from .engine import EngineConfig, EngineOverhead, Parallelism, Role
from .engine_arrays import EngineArrays, compute_dtype, engine_arrays, kernels_of
from .errors import InputError
from .memory import (
    activation_bytes,
    kv_bytes_per_token_per_gpu,
    kv_capacity_bytes,
    max_requests,
    runtime_bytes,
    weight_bytes_per_gpu,
)
from .step import StepLoad, StepTime, chunked_steps, step_time
from .transformer import Transformer
from .units import GIB
from .words import percentage

PARTS = ("gemm", "attention", "experts", "communication", "host")
"""Parts of a step's time, which sum to it."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """One step in numbers.

    time [s]; split: seconds by part (PARTS); mfu, mbu [1]; arithmetic_intensity [FLOP/byte]; bound_by: compute,
    bandwidth, network or host.
    """

    time: float
    split: Mapping[str, float]
    mfu: float
    mbu: float
    arithmetic_intensity: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one engine does with prompts of `isl` and answers of `osl` tokens; None for what its role never does.

    batch: requests that decode together, None where none does; max_batch: most requests that memory and max_num_seqs
    allow; prefill: one whole prompt alone; decode: one step of each pipeline stage's share of the batch, at the mean
    context ISL + OSL/2; ridge_point [FLOP/byte]; kv_bytes_per_token: whole model [byte/token]; weights_per_gpu,
    activations_per_gpu, kv_capacity_per_gpu [byte]; requests_per_second: what the engine sustains in its role, never
    idle: 1 / (`prompt_seconds` + (OSL - 1) x step / batch) [1/s]; binds: what limits throughput: compute, bandwidth,
    network, host, or memory if more HBM would allow a larger batch; efficiencies: (kernel class, dtype) -> figures
    used; overhead: host overhead used.
    """

    batch: float | None
    max_batch: int
    prefill: StepEstimate | None
    decode: StepEstimate | None
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
    """Predict what one engine does in its role: prefill, decode or both.

    isl, osl: input and output length [token]; batch: requests that decode together; None: as many as fit. Prefill
    emits the first output token, so with an OSL of 1 nothing decodes.
    """
    decodes = config.role is not Role.PREFILL and osl > 1
    _check_lengths(config, isl, osl, batch)
    if batch is not None and not decodes:
        prefills = config.role is Role.PREFILL
        reason = "a prefill engine does not decode" if prefills else "with an OSL of 1 nothing decodes"
        raise InputError(f"batch {batch:g} has no meaning: {reason}")
    if config.role is Role.DECODE and not decodes:
        raise InputError("a decode engine needs an OSL above 1 token: prefill emits the first")
    most = max_requests(model, config, isl, osl if decodes else 0.0)
    running = _batch(model, config, most, batch)
    engines = engine_arrays(model, [config], overhead)
    prefill = step_estimate(step_time(model, engines, StepLoad.prefill(isl)), engines)
    prefills = config.role is not Role.DECODE
    seconds = prompt_seconds(model, config, engines, isl) if prefills else 0.0
    decode = None
    if decodes:
        load = StepLoad.decode(running / config.parallelism.pipeline, isl + osl / 2)
        decode = step_estimate(step_time(model, engines, load), engines)
        seconds += (osl - 1.0) * decode.time / running
    return Estimate(
        batch=running if decodes else None,
        max_batch=most,
        prefill=prefill if prefills else None,
        decode=decode,
        ridge_point=config.accelerator.ridge_point(compute_dtype(config.weight_dtype, config.accelerator)),
        kv_bytes_per_token=kv_bytes_per_token_per_gpu(model, replace(config, parallelism=Parallelism())),
        weights_per_gpu=weight_bytes_per_gpu(model, config),
        activations_per_gpu=activation_bytes(model, config) + runtime_bytes(config),
        kv_capacity_per_gpu=kv_capacity_bytes(model, config),
        requests_per_second=1.0 / seconds,
        binds="memory" if decode and running == most < config.max_num_seqs else (decode or prefill).bound_by,
        efficiencies=used_efficiencies(model, config),
        overhead=overhead,
    )


def prompt_seconds(model: Transformer, config: EngineConfig, engines: EngineArrays, isl: float) -> float:
    """Seconds of an engine that one prompt takes where every stage and every data-parallel rank has prompts [s].

    chunks x step of one chunk of g prompts on each of dp ranks / (pp dp g): ranks share the experts and step together,
    and short prompts share a step, g = floor(budget / (dp isl)) of them. So a prompt alone takes less than its rank
    does among others, and more than its part of a full step. isl: tokens of a prompt.
    """
    split = config.parallelism
    room = config.max_num_batched_tokens / split.data
    prompts = split.data * max(room // isl, 1.0)

    def step(new: float, past: float) -> float:
        return float(step_time(model, engines, StepLoad.prefill(new, prompts, past)).total[0, 0])

    mean, count = chunked_steps(isl, 0.0, room, step)
    return count * mean / (split.pipeline * prompts)


def used_efficiencies(model: Transformer, config: EngineConfig) -> dict[tuple[str, str], KernelEfficiency]:
    """Efficiency of every kernel class that the engine runs, by (class, compute dtype)."""
    accelerator, split = config.accelerator, config.parallelism
    pairs = [
        ("gemm", compute_dtype(model.part_dtype(component, config.weight_dtype), accelerator)) for component in Part
    ]
    for group in model.layers:
        kind = "latent" if group.attention.is_latent else "attention"
        pairs += [(f"{kind}_prefill", config.kv_dtype), (f"{kind}_decode", config.kv_dtype)]
    if model.is_moe:
        pairs.append(("moe", kernels_of(model, config, Part.EXPERTS)))
    if split.tensor > 1:
        pairs.append(("all_reduce", "bf16"))
    if split.data > 1:
        pairs.append(("all_to_all", "bf16"))
    return {pair: accelerator.efficiency[pair] for pair in pairs}


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
        contents = "weights and activations" if free <= 0 else "weights, activations and the KV cache of one request"
        weights, memory = weight_bytes_per_gpu(model, config), config.accelerator.memory
        advice = f"the weights alone take {weights / GIB:.0f} GiB per GPU: use more GPUs, such as a higher TP"
        if weights <= config.memory_fraction * memory:
            seqs = f"a smaller max_num_seqs (now {config.max_num_seqs:,})"
            tokens = f"max_num_batched_tokens (now {config.max_num_batched_tokens:,})"
            advice = f"{seqs} or {tokens} needs less for activations"
        raise InputError(
            f"{model.name} in {config.weight_dtype} does not fit on {config.gpus} × {config.accelerator.name}: "
            f"the {contents} need more than {percentage(config.memory_fraction)} of {memory / GIB:.0f} GiB per "
            f"GPU; {advice}"
        )
    if batch is not None and batch > most:
        raise InputError(f"batch {batch:g} exceeds the {most} requests that memory and max_num_seqs allow")
    return float(most) if batch is None else batch


def step_estimate(step: StepTime, engines: EngineArrays) -> StepEstimate:
    """The only step of a single engine in numbers; the largest part of its time is what bounds it."""

    def number(array: NDArray[np.float64]) -> float:
        return float(array[0, 0])

    split = {name: number(getattr(step, name)) for name in PARTS}
    mfu, mbu = number(step.mfu(engines)), number(step.mbu(engines))
    kernels = split["gemm"] + split["attention"] + split["experts"]
    candidates = {
        "compute" if mfu >= mbu else "bandwidth": kernels,
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
