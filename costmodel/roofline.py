"""The roofline (Williams, Waterman, Patterson 2009): a kernel is bound by arithmetic or by memory traffic.

Every function takes floats or numpy arrays that broadcast together.
"""

from __future__ import annotations

from collections.abc import Sequence
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
all_reduce is the algorithm of one stage, all_reduce_large that of two; the quicker one runs."""


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


# The textbook figures: closed forms for one number at a time, before any efficiency curve or scheduler. They state
# what the full model (`costmodel.step`) must reduce to. N parameters, T tokens, B batch, W weight bytes, BW bandwidth.


def prefill_flop(parameters: Value, tokens: Value) -> Value:
    """FLOP to process a prompt = 2 N T (Kaplan 2020 §2.1; attention's O(T^2) left out).

    parameters: N [1]; tokens: T [token].

    >>> f"{prefill_flop(7e9, 4096.0):.3e}"
    '5.734e+13'
    """
    return 2.0 * parameters * tokens


def prefill_time(parameters: Value, tokens: Value, peak: Value, mfu: Value) -> Value:
    """Time of a prompt = 2 N T / (peak x MFU) [s].

    peak [FLOP/s], mfu: share of the peak reached [1]. Of a chunk it is also the jitter that it adds to decodes
    (Sarathi-Serve 2024).

    >>> round(prefill_time(7e9, 4096.0, 312e12, 0.5), 4)
    0.3676
    """
    return prefill_flop(parameters, tokens) / (peak * mfu)


def decode_tpot(weight_bytes: Value, bandwidth: Value, batch: Value, kv_bytes: Value) -> Value:
    """Time of one memory-bound decode step = (W + B KV) / BW [s] (Pope 2022 §2.1).

    weight_bytes: W [byte]; bandwidth: BW [byte/s]; batch: B [1]; kv_bytes: KV of one request [byte]. Over B it is the
    engine time per generated token, W / (B BW) + KV / BW.

    >>> decode_tpot(14e9, 2e12, 1.0, 0.0)
    0.007
    """
    return (weight_bytes + batch * kv_bytes) / bandwidth


def decode_limit(weight_bytes: Value, bandwidth: Value, mbu: Value) -> Value:
    """Tokens per second of one request at batch 1 = MBU x BW / W [token/s].

    mbu: share of the bandwidth reached [1]; 1 is the hard limit.

    >>> round(decode_limit(16e9, 3.35e12, 1.0), 1)
    209.4
    """
    return mbu * bandwidth / weight_bytes


def static_batching_idle(output_tokens: Sequence[float], tpot: float) -> float:
    """Slot time lost when a static batch waits for its longest member = sum (T_max - T_i) x TPOT [s] (Orca 2022).

    output_tokens: OSL of each request of the batch [token]; tpot [s]. An empty batch loses nothing.

    >>> static_batching_idle((100, 200, 400), 0.007)
    3.5
    """
    longest = max(output_tokens, default=0.0)
    return sum(longest - tokens for tokens in output_tokens) * tpot


def continuous_batching_gain(output_tokens: Sequence[float]) -> float:
    """Throughput of continuous over static batching with equal slots = T_max / mean T [1].

    Static batching keeps every slot for T_max steps; continuous batching refills it at once. 1 when all are equal.

    >>> round(continuous_batching_gain((100, 200, 400)), 2)
    1.71
    """
    return max(output_tokens) * len(output_tokens) / sum(output_tokens)


def required_bandwidth(size: Value, seconds: Value) -> Value:
    """Bandwidth that moves `size` bytes in `seconds` [byte/s].

    >>> required_bandwidth(512e6, 0.1)
    5120000000.0
    """
    return size / seconds


def weight_intensity(tokens: Value, element_bytes: float) -> Value:
    """FLOP per byte of weights read for `tokens` tokens in a step = 2 T / bytes per weight [FLOP/byte].

    In 16 bit it equals the number of tokens: the prompt length in prefill, the batch in decode.

    >>> weight_intensity(2048.0, 2.0)
    2048.0
    """
    return 2.0 * tokens / element_bytes
