"""How long something waits: the chance, the mean and the tail of every wait. All are decided here, and nowhere else.

A queue's own law says how likely a wait is and how long on average: Erlang's formulas and what follows from them for
bursty arrivals, which `prefill.prompt_wait` reads for an engine, `decode.Seats` for a batch slot and
`costmodel.first_token.card_wait` for a network card. What exceeds it is at the end:

    prompts for an engine                   on a grid, as the law has it                `tail_on_grid`
    prompts for a slot, KV for a card       exponential                                 `ExponentialWait`
    steps that end before a prompt's own    one in progress is met at any time          `StepsAhead`

`costmodel.first_token.Ttft` adds them up. To try another tail, such as a lognormal one, change it here.

All functions broadcast over numpy arrays. Symbols: c servers, rho utilisation, a = rho c offered load,
m mean service time, ca2 and cs2 squared coefficients of variation of arrivals and services.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray

MANY_SERVERS = 2000
"""Up to this many servers every term of their series is summed; of more servers, as many stretches of terms."""
NEWTON = 60
"""Newton's steps at most. Six are enough, but near rho = 1, where the first ones halve the way that is left."""


def erlang_c(servers: ArrayLike, utilization: ArrayLike) -> FloatArray:
    """Probability that an arrival waits in M/M/c (Erlang 1917) [1].

    servers [1, whole], utilization rho in [0, 1) [1]. 1/B = 1 + c/a + c (c-1) / a^2 + ... + c! / a^c of Erlang B, all
    terms positive; C = B / (1 - rho (1 - B)). At rho >= 1 every arrival waits. Beyond MANY_SERVERS the same series
    is summed by stretches (`gamma_wait`).

    >>> float(erlang_c(1, 0.7))  # M/M/1: the server is busy with probability rho
    0.7
    """
    count, rho = np.asarray(servers, dtype=np.int64), np.asarray(utilization, dtype=np.float64)
    below, most, offered = np.minimum(rho, 1.0), int(count.max(initial=0)), np.maximum(rho * count, 1e-300)
    factors = count - np.arange(min(most, MANY_SERVERS)).reshape(-1, *(1,) * offered.ndim)
    with np.errstate(over="ignore"):
        terms = np.cumprod(np.maximum(factors, 1) / offered, axis=0)
        blocking = 1.0 / (1.0 + np.where(factors > 0, terms, 0.0).sum(axis=0))
    waits = blocking / (1.0 - below * (1.0 - blocking))
    if most > MANY_SERVERS:
        many = gamma_wait(count.astype(np.float64), np.maximum(below, 1e-12), 1.0)
        waits = np.where(count > MANY_SERVERS, many, waits)
    return np.where(rho >= 1.0, 1.0, waits)


def peakedness(offered: ArrayLike, arrival_scv: float) -> FloatArray:
    """Variance over mean of the requests in service at once, had they servers without end, z of GI/M/infinity [1].

    With A* the transform of the gaps and a the mean number, z = 1 / (1 - A*(1 / m)) - a (Eckberg 1983); here of gamma
    gaps, A*(1 / m) = (1 + ca2 / a)^(-1 / ca2). An arrival meets a + z - 1 of them, not a.

    >>> [round(float(peakedness(a, scv)), 2) for a, scv in ((0.5, 1.0), (1e4, 4.0), (0.1, 4.0))]
    [1.0, 2.5, 1.55]
    """
    scv = max(arrival_scv, 1e-9)
    mean = np.maximum(np.asarray(offered, dtype=np.float64), 1e-12)
    return np.asarray(-1.0 / np.expm1(-np.log1p(scv / mean) / scv) - mean)


def arrivals_after(mean: ArrayLike, arrival_scv: float) -> FloatArray:
    """Arrivals in a time after one, where `mean` come on average in such a time, a + z - 1 [1].

    The renewal function of gamma gaps (Cox 1962) over a time that is taken for exponential.

    >>> [round(float(arrivals_after(2.0, scv)), 2) for scv in (0.0, 1.0, 4.0)]
    [1.54, 2.0, 3.16]
    """
    number = np.asarray(mean, dtype=np.float64)
    return np.asarray(number + peakedness(number, arrival_scv) - 1.0)


def gamma_wait(servers: FloatArray, utilization: FloatArray, arrival_scv: float) -> FloatArray:
    """Probability that an arrival waits at c exponential servers with gamma gaps between arrivals [1].

    GI/M/c (Takacs 1962, chapter 2; Gross and Harris, section 5.3). With A*(z) = (1 + z ca2 / lambda)^(-1 / ca2) the
    transform of the gaps, mean service 1, sigma the root of sigma = A*(c (1 - sigma)) and a_j = A*(j):

        1 / P = 1 + (1 - sigma) sum_j=1..c  C(c, j) prod_i<=j (1 - a_i) / a_i  / (1 - a_j)
                                            x (c (1 - a_j) - j) / (c (1 - sigma) - j)

    All terms are positive. Where c (1 - sigma) is a whole number, j is moved by 1e-5 to get the limit. Of more than
    MANY_SERVERS servers, each term stands for the stretch of which it is the middle (`_stretch`): to 1e-4 for ca2 < 16.

    >>> round(float(gamma_wait(np.array(2.0), np.array(0.6), 1.0)), 6) == round(float(erlang_c(2, 0.6)), 6)
    True
    """
    rate = np.minimum(utilization, 0.999999) * servers
    idle, stretch = _idle_share(rate / servers, arrival_scv), _stretch(servers)

    def odds(j: FloatArray) -> FloatArray:
        """(1 - a_j) / a_j."""
        return np.asarray(np.expm1(np.log1p(j * arrival_scv / rate) / arrival_scv))

    number = np.arange(min(float(servers.max()), MANY_SERVERS)).reshape(-1, *(1,) * rate.ndim)
    k = number * stretch + 0.5 * (stretch + 1.0)
    before = np.maximum(k - stretch, 0.0)
    between = 0.5 * (before + k + 1.0)
    factor = np.maximum(servers - between + 1.0, 1.0) / between * odds(between)
    product = np.where(k <= servers, np.cumsum((k - before) * np.log(factor), axis=0), -np.inf)
    most = np.maximum(product.max(axis=0), 0.0)
    j = np.where(np.abs(servers * idle - k) < 1e-5, k + 1e-5, k)
    ahead = odds(j)
    gap = ahead / (1.0 + ahead)  # 1 - a_j
    term = (servers * gap - j) / (servers * idle - j) / gap
    total = stretch * (np.exp(product - most) * term).sum(axis=0)
    return np.asarray(np.exp(-most) / (np.exp(-most) + idle * total))


def _stretch(servers: FloatArray) -> FloatArray:
    """Terms of `gamma_wait` that are taken for equal to their middle one [1]: one, of up to MANY_SERVERS servers.

    With j = x sqrt(c) and b = (1 - rho) sqrt(c), terms go like exp(b x - x^2 / 2) at most: beyond x = 2 b they vanish.
    Where the largest of them, exp(b^2 / 2), exceeds the largest float, the chance of a wait is 0 anyway.
    """
    reach = np.sqrt(8.0 * math.log(sys.float_info.max) * servers)
    return np.asarray(np.maximum(np.minimum(servers, reach) / MANY_SERVERS, 1.0))


def _idle_share(rho: FloatArray, arrival_scv: float) -> FloatArray:
    """1 - sigma of `gamma_wait` [1], for rho < 1.

    The root d in (0, 1) of d = 1 - (1 + d ca2 / rho)^(-1 / ca2). What the left side has more is convex in d and
    positive at 1, so Newton's steps from there come down to the root and never pass it.
    """
    idle = np.ones(rho.shape)
    for _ in range(NEWTON):
        ratio = idle * arrival_scv / rho
        exponent = -np.log1p(ratio) / arrival_scv
        step = (idle + np.expm1(exponent)) / (1.0 - np.exp(exponent) / (rho * (1.0 + ratio)))
        idle = np.maximum(idle - step, 1e-12)
        if (np.abs(step) <= 1e-9 * idle).all():
            break
    return idle


def wait_probability(servers: ArrayLike, utilization: ArrayLike, arrival_scv: float = 1.0) -> FloatArray:
    """Probability that an arrival finds all servers busy [1]: Erlang's, or for bursts that of gamma gaps."""
    if arrival_scv <= 1.0:
        return erlang_c(servers, utilization)
    count, rho = np.broadcast_arrays(np.asarray(servers, np.float64), np.asarray(utilization, np.float64))
    return np.where(rho >= 1.0, 1.0, gamma_wait(count, rho, arrival_scv))


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


def split_scv(arrival_scv: float, parts: float) -> float:
    """Squared coefficient of variation of the gaps in one of `parts` among which arrivals are dealt at random [1].

    1 + (ca2 - 1) / parts; a stream more even than Poisson arrivals counts as these.

    >>> split_scv(9.0, 4.0), split_scv(0.5, 4.0)
    (3.0, 1.0)
    """
    return 1.0 + max(arrival_scv - 1.0, 0.0) / parts


def poisson_exceeds(mean: ArrayLike, count: ArrayLike) -> FloatArray:
    """P(N > count) of a Poisson number [1], to 0.01: P(Gamma(k + 1) < mean), and no more than P(N > 0).

    The count k need not be whole.

    >>> [round(float(poisson_exceeds(mean, k)), 2) for mean, k in ((1.0, 0.0), (4.0, 2.0), (0.0, 0.0))]
    [0.63, 0.76, 0.0]
    """
    shape = np.asarray(count, dtype=np.float64) + 1.0
    below = 1.0 - gamma_exceeds(mean, shape, np.sqrt(shape))
    return np.minimum(below, -np.expm1(-np.asarray(mean, dtype=np.float64)))


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


def largest_of(ranks: float) -> float:
    """Expected largest of `ranks` independent standard normals: inverse normal of (n - 3/8) / (n + 1/4) (Blom 1958).

    >>> [round(largest_of(n), 2) for n in (1, 2, 8)]
    [0.0, 0.59, 1.43]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def gamma_exceeds(x: ArrayLike, mean: ArrayLike, spread: ArrayLike) -> FloatArray:
    """P(X > x) of a gamma variable with this mean and standard deviation, 1 up to 0 [1].

    Its cube root is nearly normal (Wilson and Hilferty 1931): with k = (mean / spread)^2,
    (X / mean)^(1/3) has mean 1 - 1 / (9 k) and variance 1 / (9 k).

    >>> round(float(gamma_exceeds(2.0, 1.0, 1.0)), 3)  # exponential: exp(-2) = 0.135
    0.133
    """
    middle = np.maximum(np.asarray(mean, dtype=np.float64), 1e-15)
    ninth = np.maximum(np.asarray(spread, dtype=np.float64), 1e-15) ** 2 / (9.0 * middle**2)
    root = np.cbrt(np.maximum(np.asarray(x, dtype=np.float64), 0.0) / middle)
    return np.where(np.asarray(x) <= 0.0, 1.0, normal_exceeds((root - 1.0 + ninth) / np.sqrt(ninth)))


LIVES = 10.0
"""The grid of waits reaches so many times the mean wait for a slot: exp(-10) = 5e-5 is left out."""


@dataclass(frozen=True, slots=True)
class ExponentialWait:
    """A wait of which no more is known than its chance [1] and the mean of those who wait [s]."""

    chance: float
    mean: float

    def exceeds(self, seconds: FloatArray) -> FloatArray:
        """P(wait > seconds) of those who wait [1]."""
        return np.exp(-seconds / max(self.mean, 1e-12))

    def quantiles(self, levels: FloatArray) -> FloatArray:
        """Quantiles of all, who mostly do not wait [s].

        >>> ExponentialWait(0.5, 2.0).quantiles(np.array([0.4, 0.9])).round(3).tolist()
        [-0.0, 3.219]
        """
        above = np.minimum((1.0 - levels) / max(self.chance, 1e-300), 1.0)
        return np.asarray(-self.mean * np.log(above))


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait on a grid.

    chance: that there is any [1]; seconds, late (points,): P(wait > seconds) of those who wait; mean: of theirs [s].
    """

    chance: float
    seconds: FloatArray
    late: FloatArray
    mean: float

    def exceeds(self, slack: FloatArray) -> FloatArray:
        """P(wait > slack) of those who wait; 1 where there is no slack at all [1]."""
        return np.asarray(np.interp(slack, self.seconds, self.late, left=1.0, right=0.0))

    def with_slot(self, slot: ExponentialWait) -> Self:
        """The wait for this and for a slot, beside each other: until the later of both is there."""
        if slot.chance <= 1e-9:
            return self
        seconds, late = self.seconds, self.chance * self.late
        if seconds[-1] < LIVES * slot.mean:
            seconds = np.linspace(0.0, LIVES * slot.mean, seconds.size)
            late = np.interp(seconds, self.seconds, late, right=0.0)
        late = late + slot.chance * (1.0 - late) * slot.exceeds(seconds)
        chance = self.chance + slot.chance * (1.0 - self.chance)
        late = np.minimum(late / chance, 1.0)
        return replace(self, chance=chance, seconds=seconds, late=late, mean=float(np.trapezoid(late, seconds)))


def tail_on_grid(cells: FloatArray, width: float) -> tuple[FloatArray, float]:
    """P(wait > edge) at the edges of cells, (cells + 1,) [1], and the mean [s], of those who wait.

    cells (cells,): distribution of the wait, as its queue's law has it [1]; width: of a cell [s].

    >>> tail_on_grid(np.array([0.0, 0.5, 0.5]), 2.0)
    (array([1.  , 0.75, 0.25, 0.  ]), 3.0)
    """
    late = np.append(np.maximum(1.0 - np.cumsum(cells) + 0.5 * cells, 0.0), 0.0)
    late[0] = 1.0
    return late, float(late[1:].sum() + 0.5) * width


def step_in_progress(running: FloatArray | float) -> FloatArray:
    """Chance that a request meets a decode step in progress where so many run on average: 1 - exp(-running) [1].

    An engine that pulls (`engine.Policy`) then loads the KV during one whole step more than one that is sent it.

    >>> step_in_progress(np.array([0.0, 1.0, 50.0])).round(3).tolist()
    [0.0, 0.632, 1.0]
    """
    return np.asarray(-np.expm1(-np.asarray(running)))


@dataclass(frozen=True, slots=True)
class StepsAhead:
    """The steps of others that end before an engine takes a prompt in.

    chance: that a prompt meets a step in progress [1], which it does at any time of it; step: its length; formed: that
    of the next step where it is formed already (`engine.Policy.formed_ahead`), else 0 [s].

    >>> steps = StepsAhead(0.5, 0.02, 0.02)
    >>> steps.mean, steps.exceeds(np.array([-0.01, 0.01, 0.03, 0.05])).round(3).tolist()
    (0.015, [1.0, 1.0, 0.5, 0.0])
    """

    chance: FloatArray | float
    step: FloatArray | float
    formed: FloatArray | float = 0.0

    @property
    def mean(self) -> FloatArray | float:
        """Over all prompts: chance (step / 2 + formed) [s]."""
        return self.chance * (0.5 * self.step + self.formed)

    def exceeds(self, slack: FloatArray) -> FloatArray:
        """P(steps > slack) of those that meet one; 1 where slack is negative [1]."""
        rest = slack - self.formed
        return 1.0 - np.clip(rest, 0.0, self.step) / self.step if self.step > 0.0 else np.where(rest < 0.0, 1.0, 0.0)
