"""The workload: how long requests are, how often they come, how bursty, how much prefix they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError

FloatArray = NDArray[np.float64]

SHARE_TOLERANCE = 1e-6
"""How far the shares may sum from 1: the rounding of a histogram that was written with six decimals."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A joint ISL x OSL histogram and an arrival process.

    isl, osl: representative input and output length of each bucket [token], shape (buckets,).
    share: share of requests in each bucket [1], shape (buckets,), sums to 1.
    request_rate: mean arrivals per second that the fleet must carry [1/s].
    burstiness: coefficient of variation of the inter-arrival times [1]; 1 is Poisson.
    prefix_hit_share: share of input tokens found in a prefix cache [1].
    max_tokens: longest ISL + OSL of any request [token] (not of a bucket's representative).
    """

    isl: FloatArray
    osl: FloatArray
    share: FloatArray
    request_rate: float
    burstiness: float = 1.0
    prefix_hit_share: float = 0.0
    max_tokens: int = 0

    @property
    def mean_isl(self) -> float:
        """Mean input length [token]."""
        return float(self.share @ self.isl)

    @property
    def mean_osl(self) -> float:
        """Mean output length [token]."""
        return float(self.share @ self.osl)

    @property
    def mean_isl_squared(self) -> float:
        """Second moment of the input length [token^2]: attention FLOPs of a prefill grow with it."""
        return float(self.share @ self.isl**2)

    @property
    def mean_osl_squared(self) -> float:
        """Second moment of the output length [token^2]: the KV that decode reads over a request grows with it."""
        return float(self.share @ self.osl**2)

    @property
    def mean_isl_osl(self) -> float:
        """Mean product of input and output length [token^2]: the prompt's KV is read once per output token."""
        return float(self.share @ (self.isl * self.osl))


def scale_rate(workload: Workload, factor: float) -> Workload:
    """Return the same request mix with `factor` [1] times the arrivals; burstiness is kept.

    >>> mix = Workload(np.array([8.0]), np.array([2.0]), np.array([1.0]), request_rate=4.0)
    >>> scale_rate(mix, 1.5).request_rate
    6.0
    """
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"request rate: factor {factor} must be a finite number above 0")
    return replace(workload, request_rate=workload.request_rate * factor)


def check_workload(workload: Workload, where: str = "workload") -> None:
    """Raise InputError for the first value of `workload` that no request mix can have; `where` opens the message."""
    _check_histogram(workload, where)
    if not (math.isfinite(workload.request_rate) and workload.request_rate > 0):
        raise InputError(f"{where}: request_rate {workload.request_rate} must be a finite number above 0 req/s")
    if not (math.isfinite(workload.burstiness) and workload.burstiness >= 0):
        raise InputError(f"{where}: burstiness {workload.burstiness} must be a finite number, 0 or more")
    if not 0 <= workload.prefix_hit_share < 1:
        raise InputError(f"{where}: prefix_hit_share {workload.prefix_hit_share} must be at least 0 and below 1")
    longest = float(np.max(workload.isl + workload.osl))
    if workload.max_tokens and workload.max_tokens < math.floor(longest):
        raise InputError(f"{where}: max_tokens {workload.max_tokens} is below the longest bucket, {longest:g} tokens")


def _check_histogram(workload: Workload, where: str) -> None:
    shapes = {workload.isl.shape, workload.osl.shape, workload.share.shape}
    if len(shapes) != 1 or workload.isl.ndim != 1 or not workload.isl.size:
        raise InputError(
            f"{where}: isl, osl and share must be as long as each other and not empty, found lengths "
            f"{workload.isl.size}, {workload.osl.size} and {workload.share.size}"
        )
    for name, values, least in (("isl", workload.isl, 1.0), ("osl", workload.osl, 1.0), ("share", workload.share, 0.0)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= least)))
        if bad.size:
            unit = "" if name == "share" else " tokens"
            raise InputError(
                f"{where}: {name} {values[bad[0]]:g} of bucket {bad[0] + 1} must be a finite number, "
                f"{least:g}{unit} or more"
            )
    total = float(workload.share.sum())
    if abs(total - 1) > SHARE_TOLERANCE:
        raise InputError(f"{where}: the shares of the buckets sum to {total:.6g}, they must sum to 1")
