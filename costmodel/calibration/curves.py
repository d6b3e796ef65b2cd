"""How much of the roofline a kernel reaches at which size: a saturating curve with few parameters, all physical.

`size` is what fills the chip, and differs by kernel class (see `SIZE_OF`): a GEMM fills it by its output tiles, a
mixture of experts by the tokens that each expert gets, attention by the keys per query, a collective by its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", float, NDArray[np.float64])

SIZE_OF = {
    "gemm": "output elements m x n",
    "attention_prefill": "tokens of the prompt",
    "attention_decode": "bytes of KV read",
    "latent_prefill": "tokens of the prompt",
    "latent_decode": "bytes of latent KV read",
    "moe": "tokens per expert that is touched",
    "all_reduce": "bytes over the link",
    "all_reduce_large": "bytes over the link",
    "all_to_all": "bytes over the link",
}
"""Meaning of `size` by kernel class (costmodel.roofline.KERNEL_CLASSES)."""


@dataclass(frozen=True, slots=True)
class EfficiencyCurve:
    """Efficiency of one kernel class on one accelerator in one dtype.

    compute: share of peak FLOP/s at large size [1]; compute_half: size at which half of it is reached [size].
    memory: share of peak bandwidth at large traffic [1]; memory_half: traffic at which half is reached [byte].
    launch: time of a kernel that does nothing [s].
    cast: bytes moved per input element by separate kernels, such as a conversion to the compute dtype [byte].
    depth_half: inner dimension at which half of `compute` is reached (GEMM: k; attention: width of a head) [1].
    fill_half: parallel work at which half is reached (attention: queries of all heads) [1].
    spill: as cast, per element that passes through although another expert-parallel rank computes it [byte].
    """

    compute: float
    memory: float
    launch: float
    compute_half: float = 0.0
    memory_half: float = 0.0
    cast: float = 0.0
    depth_half: float = 0.0
    fill_half: float = 0.0
    spill: float = 0.0


def saturation(size: Value, half: float) -> Value:
    """Share of the final efficiency reached at `size`: size / (size + half) [1].

    half = 0 is a constant; the curve never exceeds 1, and at large size it goes flat, it does not extrapolate.

    >>> saturation(3.0, 1.0)
    0.75
    """
    return size / (size + half)


def roofs(
    curve: EfficiencyCurve,
    flop: Value,
    traffic: Value,
    *,
    peak: float,
    bandwidth: float,
    size: Value,
    depth: Value | float = 1.0,
    fill: Value | float = 1.0,
) -> tuple[Value, Value]:
    """Time of the arithmetic and of the traffic of one kernel, of which the longer counts [s]."""
    slowed = (1.0 + curve.compute_half / size) * (1.0 + curve.depth_half / depth) * (1.0 + curve.fill_half / fill)
    arithmetic = flop * slowed / (curve.compute * peak)
    movement = (traffic + curve.memory_half * np.sign(traffic)) / (curve.memory * bandwidth)
    return arithmetic, movement


def curve_time(
    curve: EfficiencyCurve,
    flop: Value,
    traffic: Value,
    *,
    peak: float,
    bandwidth: float,
    size: Value,
    inputs: Value,
    depth: Value | float = 1.0,
    fill: Value | float = 1.0,
    elsewhere: Value | float = 0.0,
) -> Value:
    """Time of one kernel [s].

    flop [FLOP], traffic [byte], peak [FLOP/s], bandwidth [byte/s], size (see SIZE_OF), inputs: activations read [1];
    depth, fill, elsewhere: what depth_half, fill_half and spill refer to [1].

        t = max(flop / (eta_c peak), traffic / (eta_m bandwidth)) + (cast inputs + spill elsewhere) / bandwidth + launch
        eta_c = compute size / (size + compute_half) x depth / (depth + depth_half) x fill / (fill + fill_half)
        eta_m = memory traffic / (traffic + memory_half)

    Roofline after Williams 2009; a compute efficiency that saturates with size is Hockney's n_1/2 (1977). With
    all halves and conversions 0 it is `costmodel.roofline.kernel_time`. A kernel without traffic or FLOP
    takes `launch`; size, depth and fill must be positive.

    >>> curve = EfficiencyCurve(compute=0.8, memory=0.9, launch=4e-6, compute_half=100.0)
    >>> time = curve_time(curve, 8e9, 0.0, peak=1e15, bandwidth=1e12, size=100.0, inputs=0.0)
    >>> round(float(time) * 1e6, 6)  # half of 0.8 of the peak, and launch
    24.0
    """
    arithmetic, movement = roofs(
        curve, flop, traffic, peak=peak, bandwidth=bandwidth, size=size, depth=depth, fill=fill
    )
    slower: Value = np.maximum(arithmetic, movement)
    return slower + (curve.cast * inputs + curve.spill * elsewhere) / bandwidth + curve.launch
