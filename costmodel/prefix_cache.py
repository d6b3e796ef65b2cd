"""What a prefix cache of limited size finds, and reading the rest from a tier below it: least recently used first out.

Che's approximation (Che, Tung and Wang 2002, Hierarchical web caching systems): with many entries, one is still there
if it was used within the *characteristic time* T, the same for all, and T is the time for which memory is enough:

    sum over entries  rate x tokens x E[min(X, T)] = capacity,   hit = P(X < T)

X is the time from one use of an entry to the next. For Poisson uses E[min(X, T)] = (1 - exp(-rate T)) / rate, which is
Che's own sum of (1 - exp(-rate T)) x tokens. An entry is the prompt of a session: the next turn begins with it. While
a request runs its KV is in use, not cached, so capacity is what running requests leave, and X begins at their end.

A tier below GPU memory is such a cache again. Engines copy the KV of every computed prompt to host memory (vLLM's KV
offloading, SGLang's HiCache, TensorRT-LLM's host cache), or to a store that several of them share (Mooncake, LMCache).
The tier is *inclusive*: it has what GPU memory has and more. So a request finds its history where the one or the other
kept it for long enough. What GPU memory no longer has is read, not computed, where that takes less time. The engine
goes on with other requests meanwhile, and the request joins the queue when its KV is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .arrays import FloatArray
from .queues.waits import conditional_wait, split_scv
from .units import GIB

Rate = TypeVar("Rate", float, NDArray[np.float64])

KNOTS = 500
"""Points at which a distribution of times is kept."""
FARTHEST = 1e9
"""Characteristic time of a cache that never fills [s]."""
POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
"""Where a mean over a standard normal variable, such as the load of a replica, is computed, and their weights [1]."""
LIGHTEST = 0.1
"""The least load of a replica over the mean one [1]."""
LEAST_SHARE = 1e-3
"""Chance that a session was at other replicas for so many turns below which older visits are left out [1]."""


@dataclass(frozen=True)
class TimeDistribution:
    """A distribution of times: its distribution function, linear between knots. seconds [s], share [1], ascending."""

    seconds: FloatArray
    share: FloatArray

    @cached_property
    def cache_knots(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Knots from 0 on [s], P(X < knot) [1], its slope behind each [1/s], and E[min(X, knot)] [s]."""
        knot, share = np.concatenate(([0.0], self.seconds)), np.concatenate(([0.0], self.share))
        width = np.append(np.diff(knot), 1.0)
        slope = np.where(width > 0.0, np.append(np.diff(share), 0.0) / np.maximum(width, 1e-300), 0.0)
        unused_time = np.append(0.0, np.cumsum(width[:-1] * (1.0 - (share[1:] + share[:-1]) / 2.0)))
        return knot, share, slope, unused_time

    def within(self, limit: Rate) -> Rate:
        """P(X < limit) [1]."""
        share = np.where(np.asarray(limit) > 0.0, np.interp(limit, self.seconds, self.share, left=0.0), 0.0)
        return share if isinstance(limit, np.ndarray) else float(share)

    def mean_within(self, limit: float) -> float:
        """E[min(X, limit)], the integral of P(X > t) up to the limit [s].

        >>> round(exponential(10.0).mean_within(5.0), 1), round(10.0 * (1.0 - float(np.exp(-0.5))), 1)
        (3.9, 3.9)
        """
        at = np.concatenate(([0.0], self.seconds[self.seconds < limit], [limit])) if limit > 0.0 else np.zeros(1)
        beyond = 1.0 - np.interp(at, self.seconds, self.share, left=0.0)
        return float(np.trapezoid(beyond, at))

    def held(self, next_share: float, limit: float) -> float:
        """Mean time in a cache that keeps what is not used for `limit`, where a share is used again [s]."""
        return next_share * self.mean_within(limit) + (1.0 - next_share) * limit

    @property
    def mean(self) -> float:
        """E[X] [s]."""
        return self.mean_within(float(self.seconds[-1]))

    def later(self, seconds: float) -> TimeDistribution:
        """The times, all longer by so much [s]."""
        return replace(self, seconds=self.seconds + seconds) if seconds else self


def exponential(mean: float) -> TimeDistribution:
    """Exponential times of a mean [s]."""
    share = 1.0 - np.geomspace(1.0, 1e-9, KNOTS)
    return TimeDistribution(-mean * np.log1p(-share), share)


def fixed(seconds: float) -> TimeDistribution:
    """Always the same time [s].

    >>> fixed(10.0).within(9.0), fixed(10.0).within(11.0), fixed(10.0).mean_within(4.0)
    (0.0, 1.0, 4.0)
    """
    return TimeDistribution(np.array([seconds, seconds * (1.0 + 1e-9) + 1e-12]), np.array([0.0, 1.0]))


def from_quantiles(quantiles: Mapping[float, float]) -> TimeDistribution:
    """Times that pass through {probability: seconds}; between and below them ln x is linear in the normal score.

    Times beyond the highest count as it.

    >>> times = from_quantiles({0.5: 10.0, 0.9: 100.0})
    >>> [round(times.within(seconds), 2) for seconds in (10.0, 99.9, 100.1)]
    [0.5, 0.9, 1.0]
    """
    score = np.array([NormalDist().inv_cdf(min(max(share, 1e-6), 1.0 - 1e-6)) for share in sorted(quantiles)])
    logs = np.log([max(quantiles[share], 1e-3) for share in sorted(quantiles)])
    slope = (logs[1] - logs[0]) / (score[1] - score[0]) if score.size > 1 else 0.0
    points = np.unique(np.concatenate([np.linspace(min(-3.0, score[0]), score[-1], KNOTS), score]))
    seconds = np.exp(np.where(points < score[0], logs[0] + slope * (points - score[0]), np.interp(points, score, logs)))
    share = np.array([NormalDist().cdf(point) for point in points])
    top = seconds[-1] * (1.0 + 1e-9)
    return TimeDistribution(np.concatenate([seconds, [top]]), np.concatenate([[0.0], share[1:], [1.0]]))


@dataclass(frozen=True, slots=True)
class Reuse:
    """What prompts have in common with earlier ones.

    shared: tokens that all prompts begin with [token]; history (buckets,): tokens behind these that a prompt has in
    common with the last one of its session [token]; growth: by which that is less for each turn further back [token];
    followed (turns,): share of the requests that at least one, two, ... turns of their session follow [1]; as many
    have so many before them. pause: from the end of a request to the next turn.
    """

    shared: float
    history: FloatArray
    growth: float
    followed: FloatArray
    pause: TimeDistribution


def uniform_reuse(isl: FloatArray, share: float, interval: TimeDistribution) -> Reuse:
    """A share of every prompt in common with earlier ones, last used an interval ago [1].

    As much of all that is in the cache is used again: a trace of so many hits has as many uses that are not the last.
    """
    return Reuse(0.0, isl * share, 0.0, np.array([share]), interval)


@dataclass(frozen=True, slots=True)
class Cached:
    """What an LRU cache finds: `chance` (buckets,) of the history [1]; keeps: characteristic time [s]."""

    chance: FloatArray
    keeps: float


def characteristic_time(inflow: Rate, next_share: float, times: TimeDistribution, capacity: float) -> Rate:
    """T of a cache of `capacity` [token] into which `inflow` tokens come per second [s].

    next_share: share of them that are used again, after `times` [1]; others stay until they are the oldest. Between two
    knots what fills the cache is quadratic in T.

    >>> written, capacity = 20.0 * 100.0 / 10.0, 500.0  # 20 equal entries of 100 tokens, each used every 10 s
    >>> round(characteristic_time(written, 1.0, exponential(10.0), capacity), 2), round(-10.0 * float(np.log(0.75)), 2)
    (2.88, 2.88)
    """
    stay = capacity / np.maximum(np.asarray(inflow, dtype=np.float64), 1e-300)  # mean time that memory is enough for
    knot, share, slope, unused_time = times.cache_knots
    stay_at_knot = next_share * unused_time + (1.0 - next_share) * knot
    at = np.clip(np.searchsorted(stay_at_knot, stay, side="right") - 1, 0, knot.size - 1)
    rise, missing = next_share * (1.0 - share[at]) + 1.0 - next_share, np.maximum(stay - stay_at_knot[at], 0.0)
    root = np.sqrt(np.maximum(rise**2 - 2.0 * next_share * slope[at] * missing, 0.0))
    limit = np.minimum(knot[at] + 2.0 * missing / np.maximum(rise + root, 1e-300), FARTHEST)
    keep_time = np.where(capacity > 0.0, limit, 0.0)
    return keep_time if isinstance(inflow, np.ndarray) else float(keep_time)


def cached(
    reuse: Reuse, weight: FloatArray, sizes: FloatArray, capacity: float, *, service: float, replicas: float
) -> Cached:
    """What each of several equal replicas finds.

    weight (buckets,): requests of one replica [1/s]; sizes (buckets,): tokens that each leaves in the cache, those that
    all prompts share left out; capacity: of one replica [token]; service: from one turn to the next beside the pause
    [s]; replicas: among which the turns of a session are spread, 1 where the router sends them to the one that has
    their history.

    A replica has as many entries as sessions happen to be at it, a Poisson number, for as long as these last: where all
    just fit on average, some replicas lack room. So hits are means over a normal number of them, of prompts of their
    variation: variance / mean^2 = E[size^2] / E[size]^2 / entries.

    Spread at random, the last visit of a session was j turns ago with chance (1/n) (1 - 1/n)^(j - 1): what it left is
    shorter by j - 1 turns, and older.
    """
    visits = np.arange(1, reuse.followed.size + 1)
    elsewhere = (1.0 - 1.0 / replicas) ** (visits - 1)
    visits, chance = visits[elsewhere >= LEAST_SHARE], elsewhere[elsewhere >= LEAST_SHARE] / replicas
    again = chance * reuse.followed[: visits.size]
    ages = [reuse.pause.later((visit - 1) * (reuse.pause.mean + service)) for visit in visits]
    times, next_share, inflow = _mixture(ages, again), float(again.sum()), float(weight @ sizes)
    keeps = characteristic_time(inflow, next_share, times, capacity)
    entries = float(weight.sum()) * times.held(next_share, keeps)
    spread = float(weight @ sizes**2) * float(weight.sum()) / max(inflow**2, 1e-300) / max(entries, 1.0)
    load = np.maximum(1.0 + np.sqrt(spread) * POINTS, LIGHTEST)
    hit_tokens, mass = np.zeros(reuse.history.size), WEIGHTS * load / float(WEIGHTS @ load)
    limits = characteristic_time(inflow * load, next_share, times, capacity)
    for visit, share, age in zip(visits, chance, ages, strict=True):
        length = np.maximum(reuse.history - (visit - 1) * reuse.growth, 0.0)
        hit_tokens += share * float(mass @ age.within(limits)) * length
    return Cached(np.minimum(hit_tokens / np.maximum(reuse.history, 1e-12), 1.0), keeps)


def _mixture(ages: list[TimeDistribution], weight: FloatArray) -> TimeDistribution:
    """The mixture of distributions in proportion to `weight` (ages,) [1]."""
    if len(ages) == 1:
        return ages[0]
    seconds = np.unique(np.concatenate([age.seconds for age in ages]))
    shares = np.array([np.interp(seconds, age.seconds, age.share, left=0.0) for age in ages])
    return TimeDistribution(seconds, np.asarray(weight @ shares / max(float(weight.sum()), 1e-300)))


LEVELS = 65
"""Loads of a reader at which it is computed who waits too long."""


@dataclass(frozen=True, slots=True)
class CacheTier:
    """What one GPU adds to the tier.

    capacity [byte]; bandwidth: at which it reads its part of the KV [byte/s]; latency: of one read [s]; shared: whether
    the replicas of a pool read what any of them wrote, or each has its own.
    """

    capacity: float
    bandwidth: float
    latency: float = 0.0
    shared: bool = False

    def seconds(self, kv: FloatArray) -> FloatArray:
        """Time to read so many bytes by each GPU of an engine, kv (...,) [byte]: latency + kv / bandwidth [s].

        >>> CacheTier(100e9, 50e9, latency=0.001).seconds(np.array([1e9])).tolist()
        [0.021]
        """
        return np.asarray(self.latency + kv / self.bandwidth)


def usd_per_gpu(capacity: float, price_per_gib: float) -> float:
    """Price of a tier beside one GPU [$/h]; capacity: of that GPU's part [byte]; price_per_gib [$/h]."""
    return price_per_gib * capacity / GIB


@dataclass(frozen=True, slots=True)
class TierReads:
    """Requests whose history is read from the tier.

    chance (flows,): that a request is one of them [1]; seconds (flows,): from its arrival until its history is there
    [s]; keeps: how long the tier keeps what is not used [s].
    """

    chance: FloatArray
    seconds: FloatArray
    keeps: float

    @property
    def longest(self) -> float:
        """The longest that one of them takes [s]."""
        return float(np.where(self.chance > 0.0, self.seconds, 0.0).max())


def tier_reads(
    memory: Cached,
    tier: Cached,
    rate: FloatArray,
    *,
    seconds: FloatArray,
    computing: FloatArray,
    readers: float,
    arrival_scv: float = 1.0,
) -> TierReads:
    """What requests of each flow read of the tier.

    memory, tier: what GPU memory and the tier find; rate (flows,): requests [1/s]; seconds, computing (flows,): time to
    read the history alone, and to compute it alone [s]; readers: GPUs of the pool that read side by side, one of each
    tensor-parallel group [1]; arrival_scv: squared coefficient of variation of the times between arrivals [1].

    A reader is a queue of one server, as a network card: busy for the share rho of the time, and then waited for, theta
    on average. Who would wait for longer than reading saves, x = computing - seconds, computes, so of those who could
    read rho exp(-x / theta) do not. rho is the load of the others, which is found on a grid.

    >>> memory, tier = Cached(np.array([0.2]), 5.0), Cached(np.array([0.8]), 60.0)
    >>> def reads(seconds: float) -> TierReads:
    ...     times = {"seconds": np.array([seconds]), "computing": np.array([2.0])}
    ...     return tier_reads(memory, tier, np.array([1.0]), readers=1.0, **times)
    >>> [[round(float(part[0]), 2) for part in (read.chance, read.seconds)] for read in map(reads, (0.1, 1, 1.9, 2.1))]
    [[0.6, 0.1], [0.49, 1.16], [0.29, 1.9], [0.0, 2.1]]
    """
    worth = np.where(seconds < computing, np.maximum(tier.chance - memory.chance, 0.0), 0.0)
    load = rate * worth * seconds / readers
    if not load.any():
        return TierReads(worth, seconds, tier.keeps)
    mean, second = float(load.sum() / (rate @ worth)) * readers, float(load @ seconds / (rate @ worth)) * readers
    saved, scv = np.maximum(computing - seconds, 0.0), split_scv(arrival_scv, readers)

    def declined(busy: FloatArray) -> tuple[FloatArray, FloatArray]:
        wait = conditional_wait(1.0, busy, mean, second, scv)[..., None]
        return busy[..., None] * np.exp(-saved / wait), wait

    levels = np.linspace(0.0, 1.0, LEVELS)
    busy = np.interp(0.0, levels - (1.0 - declined(levels)[0]) @ load, levels)
    too_late, wait = declined(np.asarray(busy))
    waited = (busy * wait - too_late * (saved + wait)) / np.maximum(1.0 - too_late, 1e-12)
    return TierReads(worth * (1.0 - too_late), seconds + waited, tier.keeps)
