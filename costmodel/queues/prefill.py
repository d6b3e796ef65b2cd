"""How long prompts wait for an engine that computes waiting prompts together: the whole distribution.

An engine takes as many waiting prompts into its next step as its token budget holds, and all of a step end together.
So a prompt that finds every engine busy waits for the work ahead of it, V, and then for the work E that came behind it
in time for the same step. One that finds an engine idle starts at once. Symbols: c engines, lambda arrivals per second,
s the time of a prompt alone, g its time in a step that is full, K the longest step, P the chance that all engines are
busy.

docs/theory/queues.md derives the equations of

1. steps, and how many prompts they gather: `shared_steps`;
2. V of those who wait, and the decay of its tail: `work_ahead`, `decay_rate`;
3. E: `last_step`, `with_company`;
4. a pipeline of k stages, where all times are those of one stage: `pipeline_idle`, `all_busy`;
5. a full batch: `waits.Wait.with_slot`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import FloatArray

from .waits import NEWTON, Wait, arrivals_after, largest_of, tail_on_grid, wait_probability

ComplexArray = NDArray[np.complex128]

CELLS = 1024
"""Cells of the grid on which waits are kept."""
TILT = 18.0
"""exp(-18) = 2e-8 of what lies beyond a grid comes back to its cells; rounding grows to exp(18) 1e-16 = 7e-9."""
BUSIEST = 0.999999
"""Utilisation at which queues of overloaded pools are evaluated [1]."""
LEVELS = np.linspace(0.0, 1.0, 17)
"""Points of a search for the prompts of a step, made twice, between the ends."""
DECAYS = 14.0
"""The grid ends so many times 1 / eta beyond the longest prompt: exp(-14) = 1e-6 is left out."""
STEEPEST = 250.0
"""Tails that fall faster than exp(-STEEPEST) over the longest prompt are taken to fall so: there is nothing left."""
BEYOND = (0.6, 0.3, 0.1, 0.03)
"""Waits are put into parts that so many of them exceed, in each of which as many prompts come behind."""


@dataclass(frozen=True)
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

    @cached_property
    def weight(self) -> FloatArray:
        """Share of each flow in the prompts [1]."""
        return np.asarray(self.rate / max(float(self.rate.sum()), 1e-300))

    @cached_property
    def per_engine(self) -> float:
        """Arrivals per engine [1/s]."""
        return float(self.rate.sum()) / self.engines

    @cached_property
    def mean_alone(self) -> float:
        """E s [s]."""
        return float(self.weight @ self.alone)

    @cached_property
    def mean_shared(self) -> float:
        """E g [s]."""
        return float(self.weight @ self.shared)

    @cached_property
    def engine_scv(self) -> float:
        """Squared coefficient of variation of the gaps between arrivals at one engine, (ca2 + (c - 1) u) / c [1].

        The router deals out work evenly: of the variation of work, E[g^2], what numbers make, E[g]^2, but not the rest,
        u = 1 - E[g]^2 / E[g^2]. Equal prompts go round (Erlang gaps, ca2 / c), very different ones at random.
        """
        uneven = 1.0 - self.mean_shared**2 / float(self.weight @ self.shared**2)
        return (self.arrival_scv + (self.engines - 1.0) * uneven) / self.engines


@dataclass(frozen=True, slots=True)
class PromptWait(Wait):
    """Waits at a pool, of which `chance` is that an arrival finds all engines busy.

    utilization: busy share of the engines; load: offered work in full steps over capacity, which must stay below 1;
    behind: prompts that came behind and end in the same step, on average over those who wait; together: prompts of a
    step.
    """

    utilization: float
    load: float
    behind: float = 0.0
    together: float = 1.0


def endless_wait(load: float) -> PromptWait:
    """The wait at a pool that falls behind: a million seconds."""
    return PromptWait(1.0, np.array([0.0, 1e6]), np.array([1.0, 0.0]), 5e5, utilization=1.0, load=load)


def prompt_wait(prompts: Prompts) -> PromptWait:
    """Distribution of the wait before and beside a prompt's own computing (docs/theory/queues.md)."""
    load = prompts.per_engine * prompts.mean_shared
    if float(prompts.rate.sum()) <= 1e-12:
        return PromptWait(0.0, np.array([0.0, 1.0]), np.zeros(2), 0.0, utilization=0.0, load=0.0)
    if load >= 1.0:
        return endless_wait(load)
    busy, together, chance = shared_steps(prompts)
    idle = float(pipeline_idle(prompts, together))
    edges, ahead = work_ahead(prompts, together, idle)
    wait, behind = with_company(prompts, ahead, edges, idle, chance / (1.0 + chance))
    late, mean = tail_on_grid(np.maximum(cells_of(wait), 0.0), float(edges[1]))
    return PromptWait(chance, edges, late, mean, busy, load, behind, together)


def shared_steps(prompts: Prompts) -> tuple[float, float, float]:
    """Busy share of the engines, prompts per step, and the chance that an arrival finds all engines busy [1].

    Solves n (1 - P) = E exp(-P n s / E s) for 1 / n, on ever finer levels; the step is E s + (n - 1) E g.
    """
    rate, alone, shared = prompts.per_engine, prompts.mean_alone, prompts.mean_shared
    if rate * shared >= BUSIEST:
        return rate * shared, 1.0, float(wait_probability(prompts.engines, BUSIEST, prompts.arrival_scv))
    low, high = 1e-9, 1.0
    for _ in range(2):
        level = low + (high - low) * LEVELS
        busy = rate * (shared + (alone + pipeline_idle(prompts, 1.0 / level) - shared) * level)
        chance = all_busy(prompts, np.minimum(busy, BUSIEST))
        none = np.exp(-(chance / level)[:, None] * (prompts.alone / alone)) @ prompts.weight
        excess = none * level - (1.0 - chance)
        at = max(np.flatnonzero(excess[1:-1] < 0.0) + 1, default=0)
        low, high = level[at], level[at + 1]
    between = float(np.clip(-excess[at] / max(excess[at + 1] - excess[at], 1e-300), 0.0, 1.0))
    inverse, busy_there, chance_there = (
        float(values[at] + between * (values[at + 1] - values[at])) for values in (level, busy, chance)
    )
    return min(busy_there, 1.0), 1.0 / inverse, chance_there


def all_busy(prompts: Prompts, busy: FloatArray) -> FloatArray:
    """Chance that a prompt finds the first stage of its engine busy, where each is for the share `busy` [1].

    The router sees whether an engine has prompts, not in which stage. With some in any for a share a of the time, a
    prompt meets all engines so with chance C(a), and of these the share busy / a in the first stage. A pipeline of k
    stages is empty after an idle time of k - 1 steps: a = 1 - (1 - busy) exp(-(k - 1) busy).
    """
    any_stage = np.minimum(1.0 - (1.0 - busy) * np.exp(-(prompts.stages - 1.0) * busy), BUSIEST)
    return wait_probability(prompts.engines, any_stage, prompts.arrival_scv) * busy / any_stage


def pipeline_idle(prompts: Prompts, together: FloatArray | float) -> FloatArray:
    """Time that the first stage of a pipeline idles after a step of `together` prompts [1] on average [s].

    E[the largest of k steps] - E[step], of normal steps, and no more than fits below K. A step has one prompt and n - 1
    more, a Poisson number; a long one gathers more for the next, so that neighbors are alike as far as the load of the
    stage, rho: of Var / (1 - rho^2) the part 1 - rho is a step's own.
    """
    if prompts.stages <= 1.0:
        return np.zeros_like(together)
    first = np.minimum(prompts.alone, prompts.full_step)
    mean = float(prompts.weight @ first)
    more = (together - 1.0) * float(prompts.weight @ prompts.shared**2)
    spread = (float(prompts.weight @ (first - mean) ** 2) + more) / (1.0 + prompts.per_engine * prompts.mean_shared)
    room = prompts.full_step - mean - (together - 1.0) * prompts.mean_shared
    return np.minimum(largest_of(prompts.stages) * np.sqrt(spread), np.maximum(room, 0.0))


def work_ahead(prompts: Prompts, together: float, idle: float) -> tuple[FloatArray, FloatArray]:
    """Edges of the cells [s], and the distribution of V on them, of those who find all engines busy.

    together: prompts of a step [1]; idle: see `pipeline_idle` [s].
    """
    weight, engines, shared = prompts.weight, prompts.engines, prompts.mean_shared
    jobs = prompts.shared * min(1.0, BUSIEST / max(prompts.per_engine * shared, 1e-12)) / engines
    decay = decay_rate(jobs, weight, float(prompts.rate.sum()), prompts.arrival_scv)
    top = float(prompts.alone.max()) + DECAYS / decay + (prompts.stages - 1.0) * prompts.full_step
    edges = np.linspace(0.0, top, CELLS + 1)
    again = float(decay * (weight @ jobs) / (weight @ np.expm1(decay * jobs)))  # p = 1 / E exp(eta R)
    length, met = shortest_of(prompts.alone + idle, weight, engines)
    extra_work = (together - 1.0) * (1.0 - 1.0 / engines) * shared
    whole = length + np.minimum(extra_work, np.maximum(prompts.full_step - length, 0.0))
    residuals = residual_below(whole, met * length / whole, edges), residual_below(jobs, weight, edges)
    inside = np.diff(np.array(residuals))
    inside[..., 1:] += inside[..., :-1].copy()  # half of a cell to either edge keeps means
    first, job_transform = transform(0.5 * inside)
    queue = (1.0 - again) / (1.0 - again * job_transform)
    ahead = np.maximum(cells_of(first * queue), 0.0)
    return edges, ahead / ahead.sum()


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
        tilted_weight = weight * np.exp(eta * (jobs - longest))
        whole = float(tilted_weight.sum())
        value = eta * longest + np.log(whole) - np.log1p(eta * scv / rate) / scv
        return float(value), float(tilted_weight @ jobs) / whole - 1.0 / (rate + eta * scv)

    eta = 1.0 / longest
    while growth(eta)[0] < 0.0 and eta * longest < STEEPEST:
        eta *= 2.0
    for _ in range(NEWTON):
        value, slope = growth(eta)
        if value <= 1e-12 * slope * eta:
            break
        eta -= value / slope
    return eta


def residual_below(jobs: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """P(R <= t) at the edges, of the residual of jobs met in proportion to their length: E min(job, t) / E job [1].

    >>> residual_below(np.array([2.0]), np.array([1.0]), np.array([0.0, 0.5, 2.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    order = np.argsort(jobs, kind="stable")
    job, share = jobs[order], weight[order]
    shorter = np.cumsum(share)
    nodes = np.concatenate(([0.0], np.cumsum(share * job) + job * (shorter[-1] - shorter)))
    return np.asarray(np.interp(edges, np.concatenate(([0.0], job)), nodes)) / float(weight @ jobs)


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


def last_step(
    prompts: Prompts, ahead: FloatArray, queued_share: float, limit: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """When the last step of a mean prompt begins (parts,) [s], and the chance of x mod K < `limit` (cells,) [s].

    It has work V = `ahead` (parts,) [s] before it, of which a share Q was queued, and ends x = Q + s after the step in
    progress; Q is none, or spread evenly. Steps of K follow each other: its last one begins after V + s - x mod K. The
    chances are (parts, cells) [1].
    """
    own, full, job = prompts.mean_alone, prompts.full_step, prompts.mean_shared
    queue_work = np.maximum(queued_share * ahead, 1e-9 * job)[:, None]
    none = np.exp(-queue_work / job)
    most, least = 2.0 * queue_work / (1.0 - none), np.clip(limit, 0.0, full)

    def area(x: FloatArray | float) -> FloatArray:
        return np.asarray(np.floor(x / full) * full**2 / 2.0 + (x % full) ** 2 / 2.0)

    def below(x: FloatArray | float) -> FloatArray:
        return np.asarray(np.floor(x / full) * least + np.minimum(x % full, least))

    into = none * (own % full) + (1.0 - none) * (area(own + most) - area(own)) / most
    within = none * (own % full < least) + (1.0 - none) * (below(own + most) - below(own)) / most
    return ahead + own - into[:, 0], np.minimum(within, 1.0)


def with_company(
    prompts: Prompts, ahead: FloatArray, edges: FloatArray, idle: float, queued_share: float
) -> tuple[ComplexArray, float]:
    """Transform of V + E, and the mean number of prompts that make E.

    V (cells,) is cut into parts that differ in how far they reach. Each has the compound Poisson work that comes behind
    it, as much as its step has room for. In a pipeline a step goes through all k stages: E counts k times, the work
    ahead in the own step k - 1 times more, and `idle` is what it waits for behind longer steps [s].
    """
    member = np.searchsorted(1.0 - np.array(BEYOND), np.cumsum(ahead) - 0.5 * ahead)
    slices = np.where(member == np.arange(len(BEYOND) + 1)[:, None], ahead, 0.0)
    slices = slices[slices.any(axis=1)]
    share = slices.sum(axis=1)
    mean = slices @ edges[:-1] / share
    job = placed(prompts.stages * prompts.shared, prompts.weight, edges)
    cells = min(int(prompts.stages * prompts.full_step / edges[1]) + 1, CELLS - 1)  # beyond, no step has room
    begins, room = last_step(prompts, mean, queued_share, prompts.full_step - edges[:cells] / prompts.stages)
    number = arrivals_after(prompts.per_engine * begins, prompts.engine_scv)
    below = compound_below(number, job, cells)
    above = np.maximum((1.0 - below) * room, 0.0)
    coming = -np.diff(above, axis=-1, prepend=1.0, append=0.0)
    behind = float(above.sum(axis=-1) @ share) * float(edges[1]) / (prompts.stages * prompts.mean_shared)
    total = transform(slices) * transform(coming)
    if prompts.stages > 1.0:
        inside = prompts.mean_alone + edges[:cells] / (prompts.stages - 1.0)
        below = last_step(prompts, mean, queued_share, inside)[1]
        beside = transform(np.diff(below, axis=-1, prepend=0.0, append=1.0))
        total = total * beside * transform(placed(np.array([idle]), np.ones(1), edges))
    return total.sum(axis=0), behind


def compound_below(mean: FloatArray, job: FloatArray, cells: int) -> FloatArray:
    """P(work of a Poisson number of jobs < t) at the upper edges of the first cells, (..., cells) [1].

    mean (...,): of the number; job (CELLS,): distribution of one. Longer ones do not matter: a grid of these cells is
    enough.

    >>> compound_below(np.array([2.0]), np.eye(CELLS)[1], 3).round(4).tolist()  # Poisson: exp(-2) times 1, 3, 5
    [[0.1353, 0.406, 0.6767]]
    """
    size = 1 << cells.bit_length()
    work = cells_of(np.exp(mean[..., None] * (transform(job[:size], size) - 1.0)), size)
    return np.cumsum(work[..., :cells], axis=-1)


@cache
def _tilt(size: int) -> FloatArray:
    """Weights of the cells of a grid: cell j times exp(-TILT j / size)."""
    return np.asarray(np.exp(-TILT / size * np.arange(size)))


def placed(jobs: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """Weights (jobs,) of jobs (jobs,) on multiples of the cell width, (cells,).

    Each is split between its neighbors so that its mean is kept.
    """
    at = np.minimum(jobs / edges[1], CELLS - 1.001)
    below = at.astype(np.int64)
    upper = weight * (at - below)
    lower = np.bincount(below, weight - upper, minlength=CELLS)
    return np.asarray(lower + np.bincount(below + 1, upper, minlength=CELLS), dtype=np.float64)


def transform(cells: FloatArray, size: int = CELLS) -> ComplexArray:
    """Fourier transform of a distribution (..., `size` cells at most), tilted so that sums do not wrap around.

    Sums beyond the grid come back to its first cells; tilted they have exp(TILT) times less weight there (Abate and
    Whitt 1992, The Fourier-series method for inverting transforms, section 5).
    """
    return np.asarray(np.fft.rfft(cells * _tilt(size)[: cells.shape[-1]], size))


def cells_of(spectrum: ComplexArray, size: int = CELLS) -> FloatArray:
    """Back to the cells."""
    return np.asarray(np.fft.irfft(spectrum, size) / _tilt(size))


# Lanes of one engine, which begin and end their steps together: pipeline stages, and data-parallel ranks.


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
