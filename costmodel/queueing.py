"""Waiting times and their tails: how busy a pool may be before its SLO breaks.

All functions broadcast over numpy arrays. Symbols: c servers, rho utilisation, a = rho c offered load,
m mean service time, ca2 and cs2 squared coefficients of variation of arrivals and services.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


MANY_SERVERS = 2000
"""Up to this many servers the exact recursion is run, whose time grows with their number."""


def erlang_c(servers: ArrayLike, utilization: ArrayLike) -> FloatArray:
    """Probability that an arrival waits in M/M/c (Erlang 1917) [1].

    servers [1, whole], utilization rho in [0, 1) [1]. The recursion on the inverse of Erlang B,
    1/B(c) = 1 + (c/a) / B(c-1), is stable for any c; C = B / (1 - rho (1 - B)). At rho >= 1 every arrival waits.
    Beyond MANY_SERVERS the limit of many servers stands in (Halfin and Whitt 1981, proposition 1):
    1/C = 1 + beta Phi(beta) / phi(beta), beta = (1 - rho) sqrt(c).

    >>> float(erlang_c(1, 0.7))  # M/M/1: the server is busy with probability rho
    0.7
    """
    count, rho = np.broadcast_arrays(np.asarray(servers, dtype=np.int64), np.asarray(utilization, dtype=np.float64))
    offered = np.maximum(rho * count, 1e-300)
    inverse_b = np.ones(offered.shape)
    result = np.ones(offered.shape)
    few = count <= MANY_SERVERS
    with np.errstate(over="ignore"):
        for k in range(1, int(count[few].max(initial=0)) + 1):
            inverse_b = 1.0 + (k / offered) * inverse_b
            result = np.where(count == k, 1.0 / inverse_b, result)
    blocked, below = result, np.minimum(rho, 1.0)
    exact = blocked / (1.0 - below * (1.0 - blocked))
    beta = (1.0 - below) * np.sqrt(count)
    density = np.exp(-0.5 * np.minimum(beta, 37.0) ** 2) / math.sqrt(2.0 * math.pi)
    many = 1.0 / (1.0 + beta * (1.0 - normal_exceeds(beta)) / density)
    return np.where(rho >= 1.0, 1.0, np.where(few, exact, many))


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
    size = np.minimum(np.abs(score), 38.0)  # beyond, the tail is below the smallest float
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


def lanes_held_up(lanes: FloatArray, rho: FloatArray, chunks: FloatArray) -> FloatArray:
    """How many of an engine's lanes a prompt chunk slows, on average [1].

    Pipeline stages and data-parallel ranks advance together, so one lane's chunk holds up all k of them, unless
    others carry chunks at the same time: at utilisation rho, (1 - (1 - rho)^k) / rho lanes per chunk; but a prompt of
    c chunks goes through its own lane, which bounds that by 1 + (k - 1)(1 - rho) / c.
    """
    together = -np.expm1(lanes * np.log1p(-np.minimum(rho, 0.999999))) / np.maximum(rho, 1e-12)
    return np.asarray(np.minimum(together, 1.0 + (lanes - 1.0) * (1.0 - rho) / np.maximum(chunks, 1.0)))


def busy_share_variance(rho: FloatArray, residual: FloatArray, window: FloatArray) -> FloatArray:
    """Variance of the share of a window that prompts keep busy [1].

    Compound Poisson: rho R / L with R = E[s^2]/E[s] (more when arrivals are bursty); never above that of a share
    which is either 0 or 1, rho (1 - rho).
    """
    return np.maximum(np.minimum(rho * residual / window, rho * (1.0 - np.minimum(rho, 1.0))), 1e-12)


def pipeline_bubble(service: FloatArray, weight: FloatArray, rho: FloatArray) -> FloatArray:
    """Time that a prompt loses in a pipeline behind longer ones ahead of it, per stage boundary [s], (columns, flows).

    E[(M - s)+] where M is the longest service in the busy period so far, P(M <= x) = (1 - rho) / (1 - rho F(x)), and F
    is the distribution of services (columns, flows) with weights (flows,) or (columns, flows).
    """
    busy = np.minimum(rho, 0.999999)[:, None]
    return _mean_excess(service, weight, lambda below: (1.0 - busy) / (1.0 - busy * below))


def pipeline_cycle(step: FloatArray, weight: FloatArray, stages: FloatArray) -> FloatArray:
    """Time that a step keeps each stage of a busy pipeline, idling behind longer steps included [s], (columns, flows).

    As many batches are in flight as there are stages k, so the first stage takes the next one when the oldest has left
    the last: a cycle lasts as long as the longest of k consecutive steps, E[max(s, M)] with P(M <= x) = F(x)^(k-1).
    Exact for two stages, a few percent too long for more.
    step (columns, flows): time in one stage; weight (flows,): how often it is such a step; stages (columns,): k.

    >>> pipeline_cycle(np.array([[1.0, 3.0]]), np.array([0.5, 0.5]), np.array([2.0])).tolist()
    [[2.0, 3.0]]
    """
    return step + _mean_excess(step, weight, lambda below: below ** (stages[:, None] - 1.0))


def _mean_excess(service: FloatArray, weight: FloatArray, chance: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """E[(M - s)+] for each service s; chance turns F(x), the share of services up to x, into P(M <= x)."""
    order = np.argsort(service, axis=1, kind="stable")
    sorted_service = np.take_along_axis(service, order, axis=1)
    share = np.cumsum(np.take_along_axis(np.broadcast_to(weight, service.shape), order, axis=1), axis=1)
    beyond = 1.0 - chance(np.minimum(share, 1.0))
    steps = np.diff(sorted_service, axis=1, append=sorted_service[:, -1:])
    lost = np.cumsum((beyond * steps)[:, ::-1], axis=1)[:, ::-1]
    result = np.empty_like(service)
    np.put_along_axis(result, order, np.maximum(lost, 0.0), axis=1)
    return result
