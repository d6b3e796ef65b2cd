"""The work that comes behind a prompt in time for its step; see `prompt_queue` for the symbols.

The step in progress has R left, V = R + Q; the work Q queued before the prompt was gathered while that step ran, so
that Q = P / (1 + P) V on average, nothing with chance exp(-Q / E g). The prompt ends x = Q + s after the step, and
steps of K follow each other: its last one begins when V + s - x mod K have passed, and has room for K - x mod K behind
it. Until then work comes that is compound Poisson, and an arrival of a bursty stream has others of its burst behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cells import CELLS, cells_of, placed, shift, transform
from .prompt_ahead import shortest_of
from .prompts import Prompts

FloatArray = NDArray[np.float64]

BEYOND = (0.8, 0.6, 0.4, 0.25, 0.15, 0.08, 0.04, 0.015, 0.005)
"""Waits are put into parts that so many of them exceed, in each of which as many prompts come behind."""
DEALT = 128.0
"""Engines beyond which arrivals dealt out in turn come back as regularly as they can [1]."""
OWN_CLASSES = 3
"""Prompts are put into so many classes by their own length, of as many prompts each."""


def own_classes(prompts: Prompts) -> NDArray[np.int64]:
    """Class of each flow (flows,): as many prompts in each, the shortest first; none is empty."""
    order = np.argsort(prompts.alone, kind="stable")
    weight = prompts.weight[order]
    middle = np.cumsum(weight) - weight / 2.0
    number = np.minimum(middle * OWN_CLASSES, OWN_CLASSES - 1).astype(np.int64)
    member = np.empty(order.size, dtype=np.int64)
    member[order] = np.unique(number, return_inverse=True)[1]
    return member


def rate_behind(prompts: Prompts, busy: float, chance: float) -> FloatArray:
    """Arrivals that an engine gets behind a prompt of each flow, while its step in progress lasts, (flows,) [1/s].

    An engine gets its share while the others stay busy, less of it behind a long prompt: the router first sends others
    to those that have fewer tokens now, m = (c - 1) q of them, where q is the chance that another job in service is
    below the shortest and this prompt together. Of N arrivals in the residual time, exponential, more than m come with
    chance exp(-m / N).
    """
    weight, engines = prompts.weight, prompts.engines
    length, shortest = shortest_of(prompts.alone, weight, engines)
    residual = 0.5 * float(shortest @ length**2) / float(shortest @ length)
    still = _still_all_busy(prompts, weight, busy, chance, residual)
    if engines <= 1.0:
        return np.full(weight.size, prompts.per_engine * still)
    met = np.cumsum(weight[np.argsort(prompts.alone, kind="stable")] * length)
    above = np.r_[1.0, np.maximum(1.0 - met / met[-1], 0.0)]
    reach = np.searchsorted(length, length + prompts.alone[:, None], side="right")
    below = 1.0 - above[reach] / np.maximum(above[:-1], 1e-300)
    coming = max(prompts.per_engine * engines * still * residual, 1e-12)
    kept = np.exp(-(engines - 1.0) * (below @ (shortest * length)) / coming)
    return np.asarray(prompts.per_engine * still * kept / max(float(weight @ kept), 1e-300))


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


def _still_all_busy(prompts: Prompts, weight: FloatArray, busy: float, chance: float, residual: float) -> float:
    """Share of the residual time of the engine chosen in which the others are all busy, so that it gets its arrivals.

    They leave that state at rate (c - 1) (1 - rho) / E[s], towards its stationary probability.
    """
    mean = float(weight @ prompts.alone)
    gone = (prompts.engines - 1.0) * max(1.0 - busy, 0.0) / mean * residual
    return 1.0 if gone <= 0.0 else float(chance - (1.0 - chance) * np.expm1(-gone) / gone)


@dataclass(frozen=True, slots=True)
class Company:
    """Prompts of each class (classes, 1); own: mean time [s]; pace: arrivals behind one [1/s].

    kept: pace over that of the mean prompt [1]; alike: `prompt_ahead.likeness` [1]. Such a prompt ends x = Q + own
    after the step in progress; steps of K = `full` follow each other. job: mean of the prompts in Q, which is `step` V
    on average: none with chance exp(-step V / job), else spread evenly.
    """

    own: FloatArray
    pace: FloatArray
    kept: FloatArray
    step: float
    full: float
    job: float
    alike: float = 0.0

    def _queued(self, wait: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Chance that nothing is queued before it, and the most that may be [s]."""
        queued = np.maximum(self.step * wait, 1e-9 * self.job)
        none = np.exp(-queued / self.job)
        return none, 2.0 * queued / (1.0 - none)

    def begins(self, wait: FloatArray) -> FloatArray:
        """Time until its last step begins, given V (parts,), (classes, parts) [s]: V + own less x mod K.

        What comes until then may share it.
        """
        none, most = self._queued(wait)

        def area(x: FloatArray | float) -> FloatArray:
            return np.asarray(np.floor(x / self.full) * self.full**2 / 2.0 + (x % self.full) ** 2 / 2.0)

        spread = (area(self.own + most) - area(self.own)) / most
        return np.asarray(wait + self.own - none * (self.own % self.full) - (1.0 - none) * spread)

    def room(self, wait: FloatArray, work: FloatArray) -> FloatArray:
        """Chance that its last step has room for so much `work` (cells,) behind it, given V (parts,) [1].

        That x mod K is below K less the work, (classes, parts, cells).
        """
        own, (none, most) = self.own[..., None], (value[:, None] for value in self._queued(wait))
        least = np.maximum(self.full - work, 0.0)

        def below(x: FloatArray | float) -> FloatArray:
            return np.asarray(np.floor(x / self.full) * least + np.minimum(x % self.full, least))

        spread = (below(own + most) - below(own)) / most
        return np.asarray(none * (own % self.full < least) + (1.0 - none) * spread)


@dataclass(frozen=True, slots=True)
class Ahead:
    """V in parts: share (parts,), mean (parts,) [s], and the transform of each (parts, frequencies).

    job (cells,): a prompt that comes behind.
    """

    share: FloatArray
    mean: FloatArray
    spectrum: NDArray[np.complex128]
    job: FloatArray


def in_parts(prompts: Prompts, ahead: FloatArray, edges: FloatArray, step: float) -> Ahead:
    """Parts of V that differ in how far they reach; in a pipeline the prompts ahead in the own step count k times."""
    member = np.searchsorted(1.0 - np.array(BEYOND), np.cumsum(ahead) - 0.5 * ahead)
    parts = np.where(member == np.arange(len(BEYOND) + 1)[:, None], ahead, 0.0)
    parts = parts[parts.any(axis=1)]
    share = parts.sum(axis=1)
    mean = parts @ edges[:-1] / share
    spectrum = transform(parts)
    if prompts.stages > 1.0:
        again = (prompts.stages - 1.0) * np.minimum(step * mean, prompts.full_step / 2.0)
        spectrum = spectrum * shift(again, edges)
    return Ahead(share, mean, spectrum, placed(prompts.stages * prompts.shared, prompts.weight, edges))


def in_turn(even: FloatArray, engines: float) -> FloatArray:
    """Arrivals behind one where c engines get them in turn, on average: floor(N / c), N Poisson of mean c `even` [1].

    That is (E N - E[N mod c]) / c, where P(N mod c = r) is the discrete transform of E w^N at the c-th roots w of 1.

    >>> in_turn(np.array([0.5]), 1.0).round(4).tolist(), in_turn(np.array([0.5]), 2.0).round(4).tolist()
    ([0.5], [0.2838])
    """
    each = np.rint(min(engines, DEALT))
    mean, turn = even * each, np.arange(each)
    left = np.fft.fft(np.exp(mean[..., None] * (np.exp(2j * np.pi * turn / each) - 1.0))).real @ turn / each
    return np.asarray((mean - left) / each)


def _compound_below(mean: FloatArray, job: FloatArray, cells: int) -> FloatArray:
    """P(work of a Poisson number of jobs < t) at the upper edges of the first cells, (..., cells) [1].

    mean (...,): of the number; job (CELLS,): distribution of one. Longer ones do not matter: a grid of these cells is
    enough.

    >>> _compound_below(np.array([2.0]), np.eye(CELLS)[1], 3).round(4).tolist()  # Poisson: exp(-2) times 1, 3, 5
    [[0.1353, 0.406, 0.6767]]
    """
    size = 1 << cells.bit_length()
    work = cells_of(np.exp(mean[..., None] * (transform(job[:size], size) - 1.0)), size)
    return np.cumsum(work[..., :cells], axis=-1)


def with_company(
    prompts: Prompts, ahead: Ahead, edges: FloatArray, company: Company
) -> tuple[NDArray[np.complex128], FloatArray]:
    """Transform of V + E for prompts of each class (classes, frequencies), and the mean number of prompts that make E.

    Each part of V has the compound Poisson work that comes behind it, as much as its step has room for. In a pipeline
    a step goes through all stages: its whole company counts k times.
    """
    stages, mean = prompts.stages, ahead.mean
    even = company.pace * company.begins(mean)
    if company.alike > 0.0:
        even += company.alike * (in_turn(even, prompts.engines) - even)
    expected = company.kept * bunch_behind(prompts.arrival_scv, prompts.engines) + even
    cells = min(int(stages * company.full / edges[1]) + 1, CELLS - 1)  # beyond, no step has room
    below = _compound_below(expected, ahead.job, cells)
    above = np.clip((1.0 - below) * company.room(mean, edges[:cells] / stages), 0.0, 1.0)
    coming = -np.diff(above, axis=-1, prepend=1.0, append=0.0)
    behind = above.sum(axis=-1) @ ahead.share * float(edges[1])
    return (ahead.spectrum * transform(coming)).sum(axis=1), behind / (stages * company.job)


def held_up(prompts: Prompts, own: FloatArray, edges: FloatArray) -> NDArray[np.complex128]:
    """Transforms of what steps of lengths `own` (classes,) lose behind longer ones in later stages.

    (M - own)+ at each of them, M the longest of the k - 1 steps in flight before it, P(M <= x) = F(x)^(k - 1).
    """
    bare = np.zeros(0) if prompts.bare is None else prompts.bare
    order = np.argsort(bare, kind="stable")
    longest = np.diff(np.minimum(np.cumsum(prompts.weight[order]), 1.0) ** (prompts.stages - 1.0), prepend=0.0)
    lost = (prompts.stages - 1.0) * np.maximum(bare[order] - own[:, None], 0.0)
    return transform(placed(lost, longest, edges))
