"""Engine configs as a struct of arrays, so that one numpy expression covers all of them.

Every array has shape (engines, 1) and broadcasts against operating points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .accelerator import Accelerator, KernelEfficiency
from .engine import EngineConfig
from .errors import InputError
from .host import EngineOverhead
from .transformer import DTYPE_BYTES, Part, Transformer

FloatArray = NDArray[np.float64]

ACTIVATION_DTYPE = "bf16"
"""Activations, attention and collectives run in 16 bit; FP8 KV halves the bytes, not the FLOP."""

_UNITS_NEEDED = {"fp8": "fp8", "int8": "int8", "fp4": "fp4"}
_STANDS_IN = {
    "latent_prefill": "attention_prefill",
    "latent_decode": "attention_decode",
    "moe": "gemm",
    "all_to_all": "all_reduce",
}
"""Kernel class whose efficiency serves where one was never measured."""


@dataclass(frozen=True, slots=True)
class KernelRates:
    """What a kernel class reaches: peak [FLOP/s], bandwidth [byte/s], launch [s]; each of shape (engines, 1)."""

    peak: FloatArray
    bandwidth: FloatArray
    launch: FloatArray


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A collective's reach: inside and across scale-up domains [byte/s], latency of one operation in each [s]."""

    inside: FloatArray
    across: FloatArray
    launch: FloatArray
    hop: FloatArray


@dataclass(frozen=True, slots=True)
class EngineArrays:
    """Everything about engines that a step's time depends on; each array has shape (engines, 1).

    tensor, pipeline, data, expert: ranks of each kind; domain: GPUs joined by the scale-up link;
    gemm: rates by model part (a checkpoint quantises some parts and not others); experts: of the grouped GEMM;
    attention: by kernel class; all_reduce, all_to_all: links with their efficiency; send: bare links;
    weight_bytes: byte per weight by part; input_bytes: byte per activation that enters a GEMM of that part;
    kv_bytes: byte per KV element; host_step, host_request [s];
    peak, bandwidth: the vendor's figures, for MFU and MBU [FLOP/s, byte/s];
    expert_imbalance: tokens of the busiest expert-parallel rank over the mean [1].
    """

    tensor: FloatArray
    pipeline: FloatArray
    data: FloatArray
    expert: FloatArray
    domain: FloatArray
    gemm: Mapping[Part, KernelRates]
    experts: KernelRates
    attention: Mapping[str, KernelRates]
    all_reduce: LinkRates
    all_to_all: LinkRates
    send: LinkRates
    weight_bytes: Mapping[Part, FloatArray]
    input_bytes: Mapping[Part, FloatArray]
    kv_bytes: FloatArray
    host_step: FloatArray
    host_request: FloatArray
    peak: FloatArray
    bandwidth: FloatArray
    expert_imbalance: FloatArray

    def __len__(self) -> int:
        """Number of engines."""
        return len(self.tensor)


def compute_dtype(weight_dtype: str, accelerator: Accelerator) -> str:
    """Dtype that the matrix units work in for weights of `weight_dtype`.

    FP8, INT8 and FP4 weights use units of that kind where the GPU has them; otherwise, and for INT4 always,
    weights are expanded to 16 bit on the way (W8A16, W4A16): bytes shrink, FLOP/s do not grow.
    """
    unit = _UNITS_NEEDED.get(weight_dtype, ACTIVATION_DTYPE)
    return unit if unit in accelerator.peak_flops else ACTIVATION_DTYPE


def kernel_efficiency(accelerator: Accelerator, kernel_class: str, dtype: str) -> KernelEfficiency:
    """Efficiency of a kernel class, or of the nearest thing known: 16 bit instead of `dtype`, then a kindred class."""
    for name in (kernel_class, _STANDS_IN.get(kernel_class, kernel_class)):
        for kind in (dtype, ACTIVATION_DTYPE):
            found = accelerator.efficiency.get((name, kind))
            if found is not None:
                return found
    raise InputError(
        f"accelerator {accelerator.name!r} has no efficiency for {kernel_class!r} in {dtype!r} or {ACTIVATION_DTYPE!r}"
    )


def part_dtype(model: Transformer, part: Part, weight_dtype: str) -> str:
    """Dtype in which the weights of one part are stored."""
    return weight_dtype if part in model.quantized else ACTIVATION_DTYPE


def engine_arrays(
    model: Transformer,
    configs: Sequence[EngineConfig],
    overhead: EngineOverhead,
    *,
    expert_imbalance: float = 1.0,
) -> EngineArrays:
    """Gather configs into arrays of shape (engines, 1).

    expert_imbalance: tokens of the busiest expert-parallel rank over the mean [1]; 1 is uniform routing.
    """
    accelerators = [config.accelerator for config in configs]
    splits = [config.parallelism for config in configs]
    return EngineArrays(
        tensor=_column([split.tensor for split in splits]),
        pipeline=_column([split.pipeline for split in splits]),
        data=_column([split.data for split in splits]),
        expert=_column([split.expert for split in splits]),
        domain=_column([accelerator.scale_up_size for accelerator in accelerators]),
        gemm={part: _matrix_rates(model, configs, part, "gemm") for part in Part},
        experts=_matrix_rates(model, configs, Part.EXPERTS, "moe"),
        attention={name: _attention_rates(configs, name) for name in ATTENTION_CLASSES},
        all_reduce=_link_rates(accelerators, "all_reduce"),
        all_to_all=_link_rates(accelerators, "all_to_all"),
        send=_link_rates(accelerators, None),
        weight_bytes={
            part: _column([model.bytes_per_element(part, config.weight_dtype) for config in configs]) for part in Part
        },
        input_bytes={part: _column([_input_bytes(model, config, part) for config in configs]) for part in Part},
        kv_bytes=_column([DTYPE_BYTES[config.kv_dtype] for config in configs]),
        host_step=_column([overhead.step] * len(configs)),
        host_request=_column([overhead.per_request] * len(configs)),
        peak=_column([vendor_peak(config) for config in configs]),
        bandwidth=_column([accelerator.bandwidth for accelerator in accelerators]),
        expert_imbalance=_column([expert_imbalance] * len(configs)),
    )


ATTENTION_CLASSES = ("attention_prefill", "attention_decode", "latent_prefill", "latent_decode")


def vendor_peak(config: EngineConfig) -> float:
    """Data-sheet FLOP/s of the dtype that the engine's GEMMs run in [FLOP/s]; the denominator of MFU."""
    return config.accelerator.peak_flops[compute_dtype(config.weight_dtype, config.accelerator)]


def _column(values: Sequence[float]) -> FloatArray:
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)


def _input_bytes(model: Transformer, config: EngineConfig, part: Part) -> float:
    return DTYPE_BYTES[compute_dtype(part_dtype(model, part, config.weight_dtype), config.accelerator)]


def _matrix_rates(model: Transformer, configs: Sequence[EngineConfig], part: Part, kernel_class: str) -> KernelRates:
    """Rates of GEMMs over one part: FLOP/s by the dtype computed in, byte/s by the dtype stored."""
    rows: list[tuple[float, float, float]] = []
    for config in configs:
        accelerator = config.accelerator
        stored = part_dtype(model, part, config.weight_dtype)
        computed = compute_dtype(stored, accelerator)
        compute = kernel_efficiency(accelerator, kernel_class, computed)
        moved = accelerator.efficiency.get((kernel_class, stored), compute)
        peak = accelerator.peak_flops[computed] * compute.compute
        rows.append((peak, accelerator.bandwidth * moved.memory, moved.launch))
    return KernelRates(*(_column(column) for column in zip(*rows, strict=True)))


def _attention_rates(configs: Sequence[EngineConfig], kernel_class: str) -> KernelRates:
    rows: list[tuple[float, float, float]] = []
    for config in configs:
        accelerator = config.accelerator
        efficiency = kernel_efficiency(accelerator, kernel_class, config.kv_dtype)
        peak = accelerator.peak_flops[ACTIVATION_DTYPE] * efficiency.compute
        rows.append((peak, accelerator.bandwidth * efficiency.memory, efficiency.launch))
    return KernelRates(*(_column(column) for column in zip(*rows, strict=True)))


def _link_rates(accelerators: Sequence[Accelerator], kernel_class: str | None) -> LinkRates:
    """Links with the collective's efficiency; with None, bare links whose operation costs the link's own latency."""
    rows: list[tuple[float, float, float, float]] = []
    for accelerator in accelerators:
        inside, across = accelerator.scale_up, accelerator.scale_out
        if kernel_class is None:
            rows.append((inside.bandwidth, across.bandwidth, inside.latency, across.latency))
            continue
        efficiency = kernel_efficiency(accelerator, kernel_class, ACTIVATION_DTYPE)
        share = efficiency.memory
        rows.append((inside.bandwidth * share, across.bandwidth * share, efficiency.launch, across.latency))
    return LinkRates(*(_column(column) for column in zip(*rows, strict=True)))
