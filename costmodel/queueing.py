"""Waiting times and their tails: how busy a pool may be before its SLO breaks.

All functions broadcast over numpy arrays. Symbols: c servers, rho utilisation, a = rho c offered load,
m mean service time, ca2 and cs2 squared coefficients of variation of arrivals and services.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def erlang_c(servers: ArrayLike, utilization: ArrayLike) -> FloatArray:
    """Probability that an arrival waits in M/M/c (Erlang 1917) [1].

    servers [1, whole], utilization rho in [0, 1) [1]. The recursion on the inverse of Erlang B,
    1/B(c) = 1 + (c/a) / B(c-1), is stable for any c; C = B / (1 - rho (1 - B)). At rho >= 1 every arrival waits.

    >>> float(erlang_c(1, 0.7))  # M/M/1: the server is busy with probability rho
    0.7
    """
    count, rho = np.broadcast_arrays(np.asarray(servers, dtype=np.int64), np.asarray(utilization, dtype=np.float64))
    offered = np.maximum(rho * count, 1e-300)
    inverse_b = np.ones(offered.shape)
    result = np.ones(offered.shape)
    with np.errstate(over="ignore"):
        for k in range(1, int(count.max(initial=0)) + 1):
            inverse_b = 1.0 + (k / offered) * inverse_b
            result = np.where(count == k, 1.0 / inverse_b, result)
    blocked = result
    return np.where(rho >= 1.0, 1.0, blocked / (1.0 - np.minimum(rho, 1.0) * (1.0 - blocked)))


def bursty_servers(servers: ArrayLike, arrival_scv: ArrayLike) -> NDArray[np.int64]:
    """Servers that a Poisson stream would need to wait as often as a bursty one does on `servers`.

    c' = max(1, round(c / max(1, (ca2 + 1) / 2))): bursts arrive together, so the pool acts like a smaller one.
    """
    peakedness = np.maximum(1.0, (np.asarray(arrival_scv, dtype=np.float64) + 1.0) / 2.0)
    return np.maximum(1, np.rint(np.asarray(servers) / peakedness)).astype(np.int64)


def wait_probability(servers: ArrayLike, utilization: ArrayLike, arrival_scv: ArrayLike = 1.0) -> FloatArray:
    """Probability that an arrival finds all servers busy, bursts considered [1]."""
    return erlang_c(bursty_servers(servers, arrival_scv), utilization)


def conditional_wait(
    servers: ArrayLike,
    utilization: ArrayLike,
    service_mean: ArrayLike,
    service_second_moment: ArrayLike,
    arrival_scv: ArrayLike = 1.0,
) -> FloatArray:
    """Mean wait of those who wait, theta = Wq / Pw [s] (Allen-Cunneen approximation of G/G/c).

    theta = m / (c (1 - rho)) (ca2 + cs2) / 2 with m (1 + cs2) = E[s2] / m:
    theta = (m (ca2 - 1) + E[s2] / m) / (2 c (1 - rho)).
    service_mean m [s], service_second_moment E[s2] [s2].
    """
    mean = np.asarray(service_mean, dtype=np.float64)
    spread = mean * (np.asarray(arrival_scv) - 1.0) + np.asarray(service_second_moment) / mean
    idle = np.maximum(1.0 - np.asarray(utilization, dtype=np.float64), 1e-12)
    return np.maximum(spread, 0.0) / (2.0 * np.asarray(servers) * idle)


def wait_exceeds(slack: ArrayLike, probability: ArrayLike, theta: ArrayLike) -> FloatArray:
    """P(wait > slack) = Pw exp(-slack / theta), and 1 where there is no slack at all [1].

    slack [s]: what the SLO leaves after everything but the wait; probability Pw [1]; theta [s].
    """
    room = np.asarray(slack, dtype=np.float64)
    decay = np.exp(-np.maximum(room, 0.0) / np.maximum(np.asarray(theta, dtype=np.float64), 1e-12))
    return np.where(room < 0.0, 1.0, np.asarray(probability) * decay)


def normal_exceeds(z: ArrayLike) -> FloatArray:
    """P(Z > z) of a standard normal [1], within 1e-7 (Abramowitz and Stegun 26.2.17).

    >>> round(float(normal_exceeds(1.2815515655446004)), 6)
    0.1
    """
    score = np.asarray(z, dtype=np.float64)
    size = np.abs(score)
    t = 1.0 / (1.0 + 0.2316419 * size)
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * size**2) / math.sqrt(2.0 * math.pi) * series
    return np.where(score < 0.0, 1.0 - tail, tail)


def normal_quantile(probability: float) -> float:
    """The z with P(Z > z) = probability [1].

    >>> round(normal_quantile(0.1), 4)
    1.2816
    """
    return NormalDist().inv_cdf(1.0 - probability)


def halfin_whitt_margin(probability: float) -> float:
    """The beta at which P(wait) equals `probability` when rho = 1 - beta / sqrt(c) [1].

    P(wait) = 1 / (1 + beta Phi(beta) / phi(beta)) (Halfin and Whitt 1981, theorem 1): spare capacity of many
    servers need only grow with the square root of their number. Solved by bisection to 1e-9.

    >>> round(halfin_whitt_margin(0.2234), 3)
    1.0
    """
    normal = NormalDist()
    low, high = 0.0, 20.0
    for _ in range(64):
        beta = (low + high) / 2.0
        density = normal.pdf(beta)
        waits = 1.0 / (1.0 + beta * normal.cdf(beta) / density) if density > 0.0 else 0.0
        low, high = (beta, high) if waits > probability else (low, beta)
    return (low + high) / 2.0
