"""When requests come and how long they are, drawn so that runs at different rates share their random numbers.

The draws do not depend on the rate: times at rate r are the times at rate 1 divided by r. So a bisection over rates
compares like with like, and attainment falls with the rate almost without noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def gamma_arrivals(count: int, rate: float, cv: float = 1.0, seed: int = 0) -> FloatArray:
    """Arrival times [s] whose gaps are gamma distributed with mean 1 / rate and coefficient of variation cv.

    cv 1 is Poisson, 0 a fixed beat. Gamma with shape 1 / cv^2 and scale cv^2 / rate.

    >>> gamma_arrivals(3, rate=2.0, cv=0.0).tolist()
    [0.5, 1.0, 1.5]
    """
    _check("count", count, 1)
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"arrivals: rate {rate} must be a finite number above 0 req/s")
    if not (math.isfinite(cv) and cv >= 0):
        raise InputError(f"arrivals: cv {cv} must be a finite number, 0 or more")
    if cv == 0.0:
        return np.arange(1.0, count + 1.0) / rate
    gaps = np.random.default_rng([seed, 1]).gamma(1.0 / cv**2, cv**2, count)
    return np.asarray(np.cumsum(gaps) / rate)


def poisson_arrivals(count: int, rate: float, seed: int = 0) -> FloatArray:
    """Arrival times [s] of a Poisson process."""
    return gamma_arrivals(count, rate, 1.0, seed)


def diurnal_arrivals(count: int, profile: FloatArray, cv: float = 1.0, seed: int = 0) -> FloatArray:
    """Arrival times [s] of `count` requests whose rate goes once through a profile, as many seconds in each slot.

    profile: mean rate in each slot [1/s]. A slot lasts count / sum(profile) seconds, so that the requests make one
    pass. Arrivals at rate 1, scaled to end with the pass, are stretched so that the expected number by time t is the
    integral of the profile (time change of a renewal process); so twice the profile is the same in half the time.

    >>> diurnal_arrivals(4, np.array([1.0, 0.0, 3.0]), cv=0.0).round(3).tolist()
    [1.0, 2.333, 2.667, 3.0]
    """
    rates = np.asarray(profile, dtype=np.float64)
    if rates.ndim != 1 or not rates.size or not np.all(np.isfinite(rates)) or rates.min() < 0 or rates.max() <= 0:
        raise InputError("arrivals: a profile needs finite rates of 0 or more, one of them above 0")
    unit = gamma_arrivals(count, 1.0, cv, seed)
    slot = count / float(rates.sum())
    expected = np.concatenate([[0.0], np.cumsum(rates * slot)])
    wanted = unit / unit[-1] * expected[-1]
    k = np.searchsorted(expected, wanted, side="left") - 1
    return np.asarray(slot * (k + (wanted - expected[k]) / (expected[k + 1] - expected[k])))


def draw_lengths(
    isl: FloatArray, osl: FloatArray, share: FloatArray, count: int, seed: int = 0
) -> tuple[IntArray, IntArray, IntArray]:
    """Input and output lengths [token] and bucket of each request, drawn from a histogram.

    Fractions are rounded at random, so that means are kept.
    """
    _check("count", count, 1)
    rng = np.random.default_rng([seed, 2])
    bucket = rng.choice(np.size(share), size=count, p=np.asarray(share) / np.sum(share))
    whole = [np.floor(np.asarray(values, dtype=np.float64)[bucket] + rng.random(count)) for values in (isl, osl)]
    inputs, outputs = (np.maximum(values, 1.0).astype(np.int64) for values in whole)
    return inputs, outputs, np.asarray(bucket, dtype=np.int64)


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"arrivals: {name} {value} must be {least} or more")
