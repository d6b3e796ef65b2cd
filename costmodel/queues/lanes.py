"""Lanes of one engine, which begin and end their steps together: pipeline stages, and data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray


def lanes_held_up(lanes: FloatArray | float, rho: FloatArray | float, chunks: FloatArray | float) -> FloatArray:
    """How many of an engine's lanes a prompt chunk slows, on average [1].

    Pipeline stages and data-parallel ranks advance together, so one lane's chunk holds up all k of them, unless
    others carry chunks at the same time: at utilisation rho, (1 - (1 - rho)^k) / rho lanes per chunk; but a prompt of
    c chunks goes through its own lane, which bounds that by 1 + (k - 1)(1 - rho) / c.
    """
    together = -np.expm1(lanes * np.log1p(-np.minimum(rho, 0.999999))) / np.maximum(rho, 1e-12)
    return np.asarray(np.minimum(together, 1.0 + (lanes - 1.0) * (1.0 - rho) / np.maximum(chunks, 1.0)))


def lockstep_excess(step: FloatArray, weight: FloatArray, busy: float, lanes: float) -> FloatArray:
    """Time that a lane's step waits for those of the other lanes, which end together with it [s], (flows,).

    Each of the k - 1 others carries, with chance rho, a step drawn from the same distribution F: E[(M - s)+] where
    M is the longest of them, P(M <= x) = (1 - rho (1 - F(x)))^(k-1).
    step (flows,): of a lane by itself [s]; weight (flows,): how often it is such a step; busy: rho; lanes: k.

    >>> lockstep_excess(np.array([1.0, 3.0]), np.array([0.5, 0.5]), 0.5, 2.0).tolist()
    [0.5, 0.0]
    """
    order = np.argsort(step, kind="stable")
    sorted_step, below = step[order], np.cumsum(weight[order])
    beyond = 1.0 - (1.0 - busy * (1.0 - np.minimum(below, 1.0))) ** (lanes - 1.0)
    excess = np.cumsum((beyond * np.diff(sorted_step, append=sorted_step[-1:]))[::-1])[::-1]
    result = np.empty_like(step)
    result[order] = np.maximum(excess, 0.0)
    return result


def any_busy(busy: float, lanes: float) -> float:
    """Chance that an engine has a step in progress, if each lane is busy for this share of the time [1]."""
    return float(1.0 - (1.0 - min(busy, 1.0)) ** lanes)


@dataclass(frozen=True, slots=True)
class Lockstep:
    """What the other lanes of an engine cost a prompt; 0 with one lane.

    excess (flows,): what waiting for the longest prompt beside it adds [s]; step: mean length of the step that a prompt
    meets [s].
    """

    excess: FloatArray
    step: float


def lockstep(step: FloatArray, count: FloatArray, rate: FloatArray, *, lanes: float, busy: float) -> Lockstep:
    """Prompts of `count` steps each of length `step` [s], both (flows,), on an engine of several lanes.

    rate (flows,): how often a prompt is of each flow; busy: share of time in which each lane has a prompt. A step is
    met in proportion to its length: E[s^2] / E[s].
    """
    weight = rate * count / (count @ rate)
    longer = lockstep_excess(step, weight, busy, lanes)
    whole = step + longer
    return Lockstep(count * longer, float((weight * whole**2).sum() / (weight * whole).sum()))


def beside_prompts(alone: FloatArray, full: FloatArray, busy: float) -> FloatArray:
    """Time with one prompt on an engine, and with one on each of its lanes, between the two [s].

    busy: the share of time in which a lane has a prompt [1]; without lanes both are the same.
    """
    return np.asarray(full - (1.0 - busy) * (full - alone))


def busy_beside(busy: float, arrival_scv: float, lanes: float) -> float:
    """Share of a pool's `lanes` that an arrival finds, or has soon beside it, with prompts: those of its burst too [1].

    Of a stream of squared coefficient of variation ca2, an arrival has (ca2 - 1) / 2 more before it than a Poisson one
    and as many behind it (the renewal function of the gaps).

    >>> busy_beside(0.25, 3.0, 8.0), busy_beside(0.9, 3.0, 8.0)
    (0.5, 1.0)
    """
    return min(busy + max(arrival_scv - 1.0, 0.0) / lanes, 1.0)
