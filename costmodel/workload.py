"""The workload: how long requests are, how often they come, how bursty, how much prefix they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodel.errors import InputError
from costmodel.prefix_cache import Reuse
from costmodel.sessions import Sessions

from .arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Workload:
    """A joint ISL x OSL histogram and an arrival process.

    isl, osl: representative input and output length of each bucket [token], shape (buckets,).
    share: share of requests in each bucket [1], shape (buckets,), sums to 1.
    request_rate: mean arrivals per second that the fleet must carry [1/s].
    burstiness: coefficient of variation of the inter-arrival times [1]; 1 is Poisson.
    prefix_hit_share: share of input tokens that a prefix cache could find at best [1].
    max_tokens: longest ISL + OSL of any request [token] (not of a bucket's representative).
    reuse: which of them it has to keep, and for how long (None: as large a part of each prompt, and whatever the memory
    of a replica); sessions: that the requests are turns of (None: each comes by itself).
    """

    isl: FloatArray
    osl: FloatArray
    share: FloatArray
    request_rate: float
    burstiness: float = 1.0
    prefix_hit_share: float = 0.0
    max_tokens: int = 0
    reuse: Reuse | None = None
    sessions: Sessions | None = None

    @property
    def reusable_tokens(self) -> FloatArray:
        """Tokens of each bucket's prompts that a prefix cache could find, (buckets,) [token]."""
        if self.reuse is None:
            return np.asarray(self.isl * self.prefix_hit_share)
        return self.reuse.shared + self.reuse.history

    @property
    def mean_isl(self) -> float:
        """Mean input length [token]."""
        return float(self.share @ self.isl)

    @property
    def mean_osl(self) -> float:
        """Mean output length [token]."""
        return float(self.share @ self.osl)


def scale_rate(workload: Workload, factor: float) -> Workload:
    """Return the same request mix with `factor` [1] times the arrivals; burstiness is kept.

    >>> mix = Workload(np.array([8.0]), np.array([2.0]), np.array([1.0]), request_rate=4.0)
    >>> scale_rate(mix, 1.5).request_rate
    6.0
    """
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"request rate: factor {factor} must be a finite number above 0")
    return replace(workload, request_rate=workload.request_rate * factor)
