"""The work ahead of a prompt that finds every engine busy; see `prompt_queue` for the symbols.

1. A step in progress gathers prompts only while all engines are busy, which share P of the arrivals find. With n
   prompts a step on average, P n of them were gathered during the last one, on a step like any prompt's Poisson:
   none with chance E exp(-P n s / E s) =: psi (bursts bring them together: psi^(ln d / (d - 1)), d = 1 + (ca2 - 1) / c,
   a negative binomial number). Steps that gathered none are as frequent as prompts that find an idle engine, so

       n (1 - P) = psi(P n),   L = E s + (n - 1) E g,   rho = lambda L / (c n),   P = P(all busy | rho)

   P(all busy) is that of gamma arrivals at c exponential servers (`queueing.wait_probability`).
2. V of those who wait: with N geometric, P(N = j) = (1 - p) p^j,

       V = R0 + sum of N times R / c

   R is the residual time of a job g (overheads of the own step are in s already), with density P(job > t) / E job; R0
   that of the step at the engine that the router chooses, the one with fewest tokens: of c jobs s in service (each met
   in proportion to its length) the shortest, with the n - 1 prompts beside it that its budget has room for, and what
   overheads add (`overhead_ahead`). For one engine, Poisson arrivals and no overheads R0 = R, p = rho: the series of
   Pollaczek and Khinchine, exact. For c engines the mean is that of Tijms, van Hoorn and Federgruen (1981), whose
   engine that is free first is replaced by the one chosen. p is set by the decay of the tail: P(V > t) ~ exp(-eta t)
   where E exp(eta g / c) E exp(-eta U) = 1, U the gap between arrivals (Cramer and Lundberg; Kingman 1964), so
   p = 1 / E exp(eta R / c), which is rho for Poisson arrivals and also exact for gamma ones at one exponential server.
3. Prompts are whole: of w that wait an engine has w / c on average, but the one chosen floor(w / c) where prompts are
   alike and dealt out in turn. The sum of N R / c is rounded so as far as they are (`likeness`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .cells import CELLS, cells_of, centred, placed, transform
from .prompts import BUSIEST, Prompts
from .queues.erlang import NEWTON, wait_probability
from .routing import largest_of

FloatArray = NDArray[np.float64]

LEVELS = np.linspace(0.0, 1.0, 17)
"""Points of a search for the prompts of a step, made twice, between the ends."""
DECAYS = 14.0
"""The grid ends so many times 1 / eta beyond the longest prompt: exp(-14) = 1e-6 is left out."""
STEEPEST = 250.0
"""Tails that fall faster than exp(-STEEPEST) over the longest prompt are taken to fall so: there is nothing left."""


def shared_steps(prompts: Prompts) -> tuple[float, float, float]:
    """Busy share of the engines, prompts per step, and the chance that an arrival finds all engines busy [1].

    Solves n (1 - P) = E exp(-P n s / E s) for 1 / n, on ever finer levels; the step is E s + (n - 1) E g.
    """
    weight, rate = prompts.weight, prompts.per_engine
    alone, shared = float(weight @ prompts.alone), float(weight @ prompts.shared)
    if rate * shared >= BUSIEST:
        return rate * shared, 1.0, float(wait_probability(prompts.engines, BUSIEST, prompts.arrival_scv))
    bunches = max(prompts.arrival_scv - 1.0, 0.0) / prompts.engines
    bunched = np.log1p(bunches) / bunches if bunches > 0.0 else 1.0
    low, high = 1e-9, 1.0
    for _ in range(2):
        level = low + (high - low) * LEVELS
        busy = rate * (shared + (alone - shared + bubble_grown(prompts, 1.0 / level)) * level)
        chance = wait_probability(prompts.engines, np.minimum(busy, BUSIEST), prompts.arrival_scv)
        none = np.exp(-(chance / level * bunched)[:, None] * (prompts.alone / alone)) @ weight
        excess = none * level - (1.0 - chance)
        at = max(np.flatnonzero(excess[1:-1] < 0.0) + 1, default=0)
        low, high = level[at], level[at + 1]
    part = float(np.clip(-excess[at] / max(excess[at + 1] - excess[at], 1e-300), 0.0, 1.0))
    together = 1.0 / float(low + part * (high - low))
    return (
        min(float(busy[at] + part * (busy[at + 1] - busy[at])), 1.0),
        together,
        float(chance[at] + part * (chance[at + 1] - chance[at])),
    )


def bubble_grown(prompts: Prompts, together: FloatArray) -> FloatArray:
    """How much longer a stage of a pipeline idles beside a step of n prompts than beside one of a single prompt [s].

    A cycle lasts as long as the longest of k consecutive steps (`queueing.pipeline_cycle`), which is q sd longer than
    the mean one, q the mean of the largest of k normals (`largest_of`). The variance is that of the single prompts, as
    `bubble` = q sd has it, and of the compound Poisson work of n - 1 others. Each cycle brings the work of the next
    step, so consecutive ones are alike: with two in flight, (1 - r) var = 1 / (1 + rho / 2) of what is new in each. No
    step of several is longer than K: 1 / var grows by 1 / (K - E)^2. But the full steps of long prompts differ, by the
    tokens before them: what a single prompt's idle time is for does not shrink.
    """
    if prompts.bare is None:
        return np.zeros_like(together)
    weight, others = prompts.weight, together - 1.0
    longest = largest_of(round(prompts.stages))
    shared = float(weight @ prompts.shared)
    alike = 1.0 + min(prompts.per_engine * shared, 1.0) / 2.0
    second = float(weight @ np.minimum(prompts.shared, prompts.full_step) ** 2)
    variance = (prompts.bubble / longest) ** 2 + others * second / alike
    room = np.maximum(prompts.full_step - float(weight @ prompts.bare) - others * shared, 1e-9 * prompts.full_step)
    idle = longest / np.sqrt(1.0 / np.maximum(variance, 1e-30) + 1.0 / room**2)
    return np.asarray(np.maximum(idle - prompts.bubble, 0.0))


def work_ahead(prompts: Prompts, together: float, alike: float) -> tuple[FloatArray, FloatArray]:
    """Edges of the cells [s], and the distribution of V on them, of those who find all engines busy.

    together: prompts of a step [1]; alike: their `likeness` [1].
    """
    weight, engines, rate = prompts.weight, prompts.engines, float(prompts.rate.sum())
    shared = float(weight @ prompts.shared)
    jobs = prompts.shared * min(1.0, BUSIEST / max(prompts.per_engine * shared, 1e-12)) / engines
    decay = decay_rate(jobs, weight, rate, prompts.arrival_scv)
    top = float(prompts.alone.max()) + DECAYS / decay + (prompts.stages - 1.0) * prompts.full_step
    top += 0.0 if prompts.bare is None else (prompts.stages - 1.0) * float(prompts.bare.max())
    edges = np.linspace(0.0, top, CELLS + 1)
    again = 1.0 / _residual_growth(jobs, weight, decay)
    length, met = shortest_of(prompts.alone, weight, engines)
    gathered = (together - 1.0) * (1.0 - 1.0 / engines) * shared
    beside = np.minimum(gathered, np.maximum(prompts.full_step - length, 0.0))
    whole = length + beside + 2.0 * overhead_ahead(prompts) / engines
    residuals = residual_below(whole, met * length / whole, edges), residual_below(jobs, weight, edges)
    first, others = transform(centred(np.array(residuals)))
    queued = (1.0 - again) / (1.0 - again * others)
    if alike > 0.0:
        even = edges[:-1]
        turns = shared * np.floor(np.rint(even * engines / shared) / engines)
        queued = transform(placed(np.maximum(even - alike * (even - turns), 0.0), cells_of(queued), edges))
    ahead = np.maximum(cells_of(first * queued), 0.0)
    return edges, ahead / ahead.sum()


def likeness(prompts: Prompts) -> float:
    """How far prompts are alike to the router [1]: 1 - (a - b) / E g, a the mean, b the shortest of those in service.

    It evens out tokens: where lengths differ by sending one behind the shortest, where they do not by dealing them out
    in turn.
    """
    if prompts.engines <= 1.0:
        return 0.0
    weight, shared = prompts.weight, prompts.shared
    length, met = shortest_of(shared, weight, prompts.engines)
    mean = float(weight @ shared)
    spread = float(weight @ shared**2) / mean - float(met @ length**2 / (met @ length))
    return max(1.0 - spread / mean, 0.0)


def overhead_ahead(prompts: Prompts) -> float:
    """What overheads of steps add to the mean residual of the step in progress on one engine of this load [s].

    With o = E s - E g a step and psi = n - lambda L the chance that none came during the last one, squaring
    L' = o + sum of g gives E L^2 (1 - rho_g^2) = o^2 + 2 o g n + n E g^2, and V = (1 + rho_g) E L^2 / (2 E L) on
    average. Less the rounds of residuals that follow, rho_g / (1 - rho_g) E g^2 / (2 g), that leaves

        E R0 = (o^2 + 2 o g n + psi E g^2) / (2 E L (1 - rho_g)),   E s^2 / (2 E s) without overheads
    """
    weight, rate = prompts.weight, prompts.per_engine
    alone, shared = float(weight @ prompts.alone), float(weight @ prompts.shared)
    load = rate * shared
    if load >= BUSIEST:
        return 0.0
    together = shared_steps(
        replace(prompts, rate=prompts.rate / prompts.engines, engines=1.0, arrival_scv=1.0, bare=None)
    )[1]
    overhead, second = max(alone - shared, 0.0), float(weight @ prompts.shared**2)
    length = overhead + together * shared
    none = max(together - rate * length, 0.0)
    residual = (overhead**2 + 2.0 * overhead * shared * together + none * second) / (2.0 * length * (1.0 - load))
    single = float(weight @ prompts.alone**2) / (2.0 * alone)
    return max(min(residual, max(prompts.full_step / 2.0, single)) - single, 0.0)


def decay_rate(jobs: FloatArray, weight: FloatArray, rate: float, arrival_scv: float) -> float:
    """The eta > 0 with E exp(eta job) E exp(-eta U) = 1 for gamma gaps U of mean 1 / rate [1/s].

    jobs (flows,) with weights (flows,), of mean below 1 / rate. The logarithm of the product is convex in eta, 0 at 0
    and negative behind: doubled until it is positive, as far as exp(eta job) can be told, and from there Newton's steps
    come down to the root. Gaps of no variance are taken as gaps of hardly any.

    >>> round(decay_rate(np.array([1.0]), np.array([1.0]), 0.5, 1.0), 4)  # 0.5 (exp(eta) - 1) = eta
    1.2564
    """
    longest, scv = float(jobs.max()), max(arrival_scv, 1e-9)

    def growth(eta: float) -> tuple[float, float]:
        """The logarithm and its derivative."""
        tilted = weight * np.exp(eta * (jobs - longest))
        whole = float(tilted.sum())
        value = eta * longest + np.log(whole) - np.log1p(eta * scv / rate) / scv
        return float(value), float(tilted @ jobs) / whole - 1.0 / (rate + eta * scv)

    eta = 1.0 / longest
    while growth(eta)[0] < 0.0 and eta * longest < STEEPEST:
        eta *= 2.0
    for _ in range(NEWTON):
        value, slope = growth(eta)
        if value <= 1e-12 * slope * eta:
            break
        eta -= value / slope
    return eta


def _residual_growth(jobs: FloatArray, weight: FloatArray, eta: float) -> float:
    """E exp(eta R) of the residual R of jobs: (E exp(eta job) - 1) / (eta E job)."""
    return float(weight @ np.expm1(eta * jobs) / (eta * (weight @ jobs)))


def residual_below(jobs: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """P(R <= t) at the edges, of the residual of jobs met in proportion to their length: E min(job, t) / E job [1].

    >>> residual_below(np.array([2.0]), np.array([1.0]), np.array([0.0, 0.5, 2.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    return capped(jobs, weight, edges) / float(weight @ jobs)


def capped(jobs: FloatArray, weight: FloatArray, most: FloatArray) -> FloatArray:
    """Sum of weight times min(job, most), for each of `most`, which is linear between two jobs.

    >>> capped(np.array([2.0, 1.0]), np.array([1.0, 3.0]), np.array([-1.0, 0.5, 1.5, 9.0])).tolist()
    [-4.0, 2.0, 4.5, 5.0]
    """
    order = np.argsort(jobs, kind="stable")
    job, each = jobs[order], weight[order]
    shorter = np.cumsum(each)
    nodes = np.concatenate(([0.0], np.cumsum(each * job) + job * (shorter[-1] - shorter)))
    return np.asarray(np.interp(most, np.concatenate(([0.0], job)), nodes) + shorter[-1] * np.minimum(most, 0.0))


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
