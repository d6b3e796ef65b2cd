"""The roofline (Williams, Waterman, Patterson 2009): a kernel is bound by arithmetic or by memory traffic.

Every function takes floats or numpy arrays that broadcast together.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", float, NDArray[np.float64])

KERNEL_CLASSES = (
    "gemm",
    "attention_prefill",
    "attention_decode",
    "latent_prefill",
    "latent_decode",
    "moe",
    "all_reduce",
    "all_reduce_large",
    "all_to_all",
)
"""Classes with an efficiency of their own; for the collectives `memory` is the share of the link's bandwidth.
all_reduce is the algorithm of least latency, all_reduce_large that of most bandwidth; the quicker one runs."""


def arithmetic_intensity(flop: Value, traffic: Value) -> Value:
    """Work per byte moved [FLOP/byte].

    flop [FLOP], traffic [byte].

    >>> arithmetic_intensity(2 * 8e9, 2 * 8e9)  # decode at batch 1, BF16: 2N FLOP over 2N bytes
    1.0
    """
    return flop / traffic


def attainable_flops(peak: Value, bandwidth: Value, intensity: Value) -> Value:
    """Attainable rate = min(peak, bandwidth x arithmetic intensity) [FLOP/s].

    peak [FLOP/s], bandwidth [byte/s], intensity [FLOP/byte]. Williams 2009, equation 1.

    >>> float(attainable_flops(989e12, 3.35e12, 1.0)) / 1e12
    3.35
    """
    attainable: Value = np.minimum(peak, bandwidth * intensity)
    return attainable


def kernel_time(flop: Value, traffic: Value, peak: Value, bandwidth: Value, launch: Value) -> Value:
    """Time of one kernel = max(FLOP / peak, bytes / bandwidth) + launch [s].

    `peak` [FLOP/s] and `bandwidth` [byte/s] are what the kernel really reaches: the vendor's figure times the
    kernel class's efficiency; launch [s] is added whatever the size.

    >>> float(kernel_time(0.0, 14e9, 312e12, 2e12, 0.0))  # 7B in BF16 read once on an A100
    0.007
    """
    time: Value = np.maximum(flop / peak, traffic / bandwidth) + launch
    return time
