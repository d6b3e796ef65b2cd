"""How long prompts wait at a pool whose engines compute waiting prompts together: the whole distribution.

An engine takes as many waiting prompts into its next step as its token budget holds, and all of a step end together.
So a prompt that finds every engine busy waits for the work ahead of it, V, and then for the work E that came behind it
in time for the same step. One that finds an engine idle starts at once. Symbols: c engines, lambda arrivals per
second, s the time of a prompt alone, g its time in a step that is full, K the longest step.

1. Prompts per step. A step of length L gathers x = lambda L / c arrivals, or one prompt when there was none, so
   n = x + exp(-x) on average; L = E[s] + (n - 1) E[g]; an engine is busy for rho = lambda L / (c n) of the time.
   A step that follows another holds x / (1 - exp(-x)) prompts, which share the overhead s - g.
2. P(V > 0): that of gamma arrivals at c exponential servers (`queueing.wait_probability`).
3. V of those who wait: with N geometric, P(N = j) = (1 - p) p^j,

       V = R0 + sum of N times R / c

   R is the residual time of a job in a busy period, with density P(job > t) / E[job]; R0 that of the engine that the
   router chooses, the one with fewest tokens: of c jobs in service (each met in proportion to its length) the shortest,
   and the n - 1 prompts beside it. For one engine and Poisson arrivals R0 = R, p = rho: the series of Pollaczek and
   Khinchine, exact. For c engines the mean is that of Tijms, van Hoorn and Federgruen (1981), whose engine that is free
   first is replaced by the one chosen. p is set by the decay of the tail: P(V > t) ~ exp(-eta t) where
   E exp(eta job / c) E exp(-eta U) = 1, U the gap between arrivals (Cramer and Lundberg; Kingman 1964), so
   p = 1 / E exp(eta R / c), which is rho for Poisson arrivals and also exact for gamma ones at one exponential server.
4. E given V: steps that gather arrivals for their own length make V = R + rho age, so the share 1 / (1 + rho) of V is
   the residual of the step in progress. What arrives meanwhile is compound Poisson, and an arrival of a bursty stream
   has others of its burst behind it (`bunch_behind`). E ends with the room of its step: the prompt ends at any place in
   it, or as far in as V and its own length reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .queueing import wait_probability

FloatArray = NDArray[np.float64]

CELLS = 1024
"""Cells of the grid on which waits are kept."""
CLASSES = 12
"""Waits are put into so many classes, in each of which as many prompts come behind."""
DECAYS = 14.0
"""The grid ends so many times 1 / eta beyond the longest prompt: exp(-14) = 1e-6 is left out."""
STEEPEST = 250.0
"""Tails that fall faster than exp(-STEEPEST) over the longest prompt are taken to fall so: there is nothing left."""
BUSIEST = 0.999999
"""Utilisation at which queues of overloaded pools are evaluated [1]."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts at a pool of `engines` equal engines that share arrivals.

    rate (flows,) [1/s]; alone (flows,): s, time of each prompt in steps of its own [s]; shared (flows,): g, its time in
    full steps [s]; full_step: K [s]; arrival_scv: squared coefficient of variation of the gaps between arrivals;
    stages: of an engine's pipeline, in which case all times are those that a step keeps one stage.
    """

    rate: FloatArray
    alone: FloatArray
    shared: FloatArray
    full_step: float
    engines: float
    arrival_scv: float
    stages: float = 1.0


@dataclass(frozen=True, slots=True)
class PromptWait:
    """Waits at a pool.

    utilization: busy share of the engines; load: offered work in full steps over capacity, which must stay below 1;
    chance: that an arrival finds all engines busy; seconds, late (cells + 1,): P(wait > seconds) of those who do;
    behind: prompts that came behind and end in the same step, on average over those who do.
    """

    utilization: float
    load: float
    chance: float
    seconds: FloatArray
    late: FloatArray
    behind: float

    def exceeds(self, slack: FloatArray) -> FloatArray:
        """P(wait > slack) of those who find all engines busy; 1 where there is no slack at all [1]."""
        return np.where(slack < 0.0, 1.0, np.interp(slack, self.seconds, self.late, right=0.0))

    @property
    def mean(self) -> float:
        """Mean wait of those who find all engines busy [s]."""
        return float((self.late[1:].sum() + 0.5 * self.late[0]) * (self.seconds[1] - self.seconds[0]))


def prompt_wait(prompts: Prompts) -> PromptWait:
    """Distribution of the wait before and beside a prompt's own computing; see the module for the equations."""
    total = float(prompts.rate.sum())
    if total <= 1e-12:
        return PromptWait(0.0, 0.0, 0.0, np.array([0.0, 1.0]), np.zeros(2), 0.0)
    weight = prompts.rate / total
    per_engine = total / prompts.engines
    load = per_engine * float(weight @ prompts.shared)
    busy, together = gated_steps(per_engine, float(weight @ prompts.alone), float(weight @ prompts.shared))
    gathered = min(busy * together, 700.0)
    jobs = prompts.shared + np.maximum(prompts.alone - prompts.shared, 0.0) * -np.expm1(-gathered) / max(
        gathered, 1e-12
    )
    jobs *= min(1.0, BUSIEST / max(per_engine * float(weight @ jobs), 1e-12))
    chance = float(wait_probability(prompts.engines, min(busy, BUSIEST), prompts.arrival_scv))
    decay = decay_rate(jobs / prompts.engines, weight, total, prompts.arrival_scv)
    top = float(prompts.alone.max()) + DECAYS / decay + (prompts.stages - 1.0) * prompts.full_step
    edges = np.linspace(0.0, top, CELLS + 1)
    again = 1.0 / _residual_growth(jobs / prompts.engines, weight, decay)
    beside = (together - 1.0) * (1.0 - 1.0 / prompts.engines) * float(weight @ jobs)
    length, met = shortest_of(prompts.alone, weight, prompts.engines)
    first = _spectrum(_centred(residual_below(length + beside, met * length / (length + beside), edges)))
    others = _spectrum(_centred(residual_below(jobs / prompts.engines, weight, edges)))
    ahead = np.maximum(_cells(first * (1.0 - again) / (1.0 - again * others)), 0.0)
    pace = per_engine * _still_all_busy(prompts, weight, busy, chance) / (1.0 + load)
    bunch = bunch_behind(prompts.arrival_scv, prompts.engines)
    wait, behind = _with_company(prompts, ahead / ahead.sum(), edges, jobs, (bunch, pace, load / (1.0 + load)))
    wait = np.maximum(wait, 0.0)
    late = np.clip(np.r_[1.0, 1.0 - np.cumsum(wait)[1:] + 0.5 * wait[1:], 0.0], 0.0, 1.0)
    return PromptWait(busy, load, chance, edges, late, behind)


def bunch_behind(arrival_scv: float, engines: float) -> float:
    """Prompts of the same burst that follow one to its engine, on average [1].

    An arrival of a stream of squared coefficient of variation ca2 has x = (ca2 - 1) / 2 more behind it than a Poisson
    one (the renewal function of the gaps); their number taken geometric with q = x / (1 + x), and dealt out to c
    engines in turn as the router does, floor(X / c) come back: q^c / (1 - q^c).

    >>> bunch_behind(4.0, 1.0), round(bunch_behind(4.0, 8.0), 3), bunch_behind(1.0, 3.0)
    (1.5, 0.017, 0.0)
    """
    more = max(arrival_scv - 1.0, 0.0) / 2.0
    back = (more / (1.0 + more)) ** engines
    return float(round(back / (1.0 - back), 12))


def gated_steps(rate: float, alone: float, shared: float) -> tuple[float, float]:
    """Busy share of an engine whose steps take all prompts that came during the last one, and prompts per step [1].

    rate: prompts per second of one engine; alone, shared: mean s and g [s]. Solves n = x + exp(-x), x = rate L,
    L = alone + (n - 1) shared; the busy share is rate L / n.

    >>> gated_steps(0.5, 1.0, 1.0)[0] == 0.5
    True
    """
    length, together = alone, 1.0
    if rate * shared >= 1.0:
        return rate * shared, 1.0
    for _ in range(200):
        together = 1.0 + rate * length + float(np.expm1(-rate * length))
        last, length = length, alone + (together - 1.0) * shared
        if abs(length - last) <= 1e-10 * length:
            break
    return rate * length / together, together


def decay_rate(jobs: FloatArray, weight: FloatArray, rate: float, arrival_scv: float) -> float:
    """The eta > 0 with E exp(eta job) E exp(-eta U) = 1 for gamma gaps U of mean 1 / rate [1/s].

    jobs (flows,) with weights (flows,), of mean below 1 / rate. The logarithm of the product is convex in eta, 0 at 0
    and negative behind: bisected after doubling, as far as exp(eta job) can be told. Gaps of no variance are taken as
    gaps of hardly any.

    >>> round(decay_rate(np.array([1.0]), np.array([1.0]), 0.5, 1.0), 4)  # 0.5 (exp(eta) - 1) = eta
    1.2564
    """
    longest, scv = float(jobs.max()), max(arrival_scv, 1e-9)

    def growth(eta: float) -> float:
        work = eta * longest + np.log(weight @ np.exp(eta * (jobs - longest)))
        return float(work - np.log1p(eta * scv / rate) / scv)

    high = 1.0 / longest
    while growth(high) < 0.0 and high * longest < STEEPEST:
        high *= 2.0
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if growth(middle) < 0.0 else (low, middle)
    return high


def _residual_growth(jobs: FloatArray, weight: FloatArray, eta: float) -> float:
    """E exp(eta R) of the residual R of jobs: (E exp(eta job) - 1) / (eta E job)."""
    return float(weight @ np.expm1(eta * jobs) / (eta * (weight @ jobs)))


def residual_below(jobs: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """P(R <= t) at the edges, of the residual of jobs met in proportion to their length: E min(job, t) / E job [1].

    >>> residual_below(np.array([2.0]), np.array([1.0]), np.array([0.0, 0.5, 2.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    return np.asarray(np.minimum(jobs[:, None], edges).T @ weight / (weight @ jobs))


def shortest_of(jobs: FloatArray, weight: FloatArray, engines: float) -> tuple[FloatArray, FloatArray]:
    """The shortest of the jobs in service on `engines` engines: jobs, and weights whose residuals are its residual.

    In service a job is met in proportion to its length. Met so, the k-th shortest is the shortest of c with chance
    S_(k-1)^c - S_k^c, S the share of longer ones; divided by its length that is a weight of `residual_below`.
    """
    order = np.argsort(jobs, kind="stable")
    length = jobs[order]
    met = weight[order] * length
    longer = np.maximum(1.0 - np.cumsum(met) / met.sum(), 0.0)
    chance = -np.diff(np.r_[1.0, longer] ** engines)
    return length, chance / length


def _still_all_busy(prompts: Prompts, weight: FloatArray, busy: float, chance: float) -> float:
    """Share of the residual time of the engine chosen in which the others are all busy, so that it gets its arrivals.

    They leave that state at rate (c - 1) (1 - rho) / E[s], towards its stationary probability.
    """
    mean = float(weight @ prompts.alone)
    length, shortest = shortest_of(prompts.alone, weight, prompts.engines)
    residual = 0.5 * float(shortest @ length**2) / float(shortest @ length)
    gone = (prompts.engines - 1.0) * max(1.0 - busy, 0.0) / mean * residual
    return 1.0 if gone <= 0.0 else float(chance - (1.0 - chance) * np.expm1(-gone) / gone)


def _with_company(
    prompts: Prompts, ahead: FloatArray, edges: FloatArray, jobs: FloatArray, company: tuple[float, float, float]
) -> tuple[FloatArray, float]:
    """Distribution of V + E on the cells, and the mean number of prompts that make E.

    Each class of V has the compound Poisson work that comes behind it, as much as its step has room for.
    company: prompts that come behind one that waits V are bunch + pace V on average, and of V the share `same` is in
    its own step, half a step at most. In a pipeline a step goes through all stages: its whole company counts k times.
    """
    bunch, pace, same = company
    stages, weight, at = prompts.stages, prompts.rate / prompts.rate.sum(), edges[:-1]
    mean, step = float(weight @ prompts.alone), prompts.full_step
    job = _spectrum(_placed(stages * jobs, weight, edges))
    turns = -1j * np.pi * np.arange(job.size) / (CELLS * edges[1])
    member = np.minimum(((bunch + pace * at) * mean / step * CLASSES).astype(np.int64), 2 * CLASSES)
    total, behind = np.zeros(job.size, dtype=np.complex128), 0.0
    for k in np.unique(member):
        part = np.where(member == k, ahead, 0.0)
        share = float(part.sum())
        if share <= 0.0:
            continue
        wait = float(part @ at) / share
        below = np.cumsum(_cells(np.exp((bunch + pace * wait) * (job - 1.0))))
        room = np.clip((stages * step - at) / (stages * min(wait + mean, step)), 0.0, 1.0)
        above = np.clip((1.0 - below) * room, 0.0, 1.0)
        waited, coming = _spectrum(part), 1.0 - above
        if stages > 1.0:
            waited = waited * np.exp(turns * (stages - 1.0) * min(same * wait, step / 2.0))
        coming[1:] -= coming[:-1].copy()
        total += waited * _spectrum(coming)
        behind += share * float(above.sum()) * float(edges[1])
    return _cells(total), behind / (stages * float(weight @ jobs))


def _centred(below: FloatArray) -> FloatArray:
    """Shares of the cells, from what lies below their edges, half on either edge so that means are kept."""
    inside = np.diff(below)
    return np.asarray(0.5 * (inside + np.r_[0.0, inside[:-1]]))


def _placed(jobs: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """Weights of jobs on multiples of the cell width, each split between its neighbours so that its mean is kept."""
    at = np.minimum(jobs / edges[1], CELLS - 1.001)
    below = at.astype(np.int64)
    upper = np.bincount(below + 1, weight * (at - below), minlength=CELLS)
    return np.asarray(np.bincount(below, weight * (1.0 - at + below), minlength=CELLS) + upper)[:CELLS]


def _spectrum(cells: FloatArray) -> NDArray[np.complex128]:
    """Fourier transform, with room so that sums do not wrap around at once."""
    return np.asarray(np.fft.rfft(cells, 2 * CELLS))


def _cells(spectrum: NDArray[np.complex128]) -> FloatArray:
    """Back to the cells."""
    return np.asarray(np.fft.irfft(spectrum, 2 * CELLS)[:CELLS])
