"""The fleet of most goodput, or of most goodput per dollar, of one colocated pool or of a prefill and a decode pool.

A fleet of n_i engines of each pool keeps up with no more than min n_i / need_i times the demand (`keeping_up`), and
serves no more than each of its pools beside the best of partners. So fleets are looked at in the order of what the
first would be worth, until that is no more than the best is known to be worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.evaluate import largest_load
from optimizer.fleets.fleet import gpu_cost, pools_apart, within_limits
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL
from search_spaces.problem import Goal, Objective, Problem

from .by_evaluation import BESIDE, MOST_LOOKS, TIMES, Evaluated, FloatArray, IntArray, Picks, keeping_up
from .room import AS_MUCH

SIZES = 24
"""Numbers of engines of a pool that are tried at first, as far apart from each other as they are large."""

MOST_ENGINES = 10_000
"""Of a pool, where no limit says less."""

NOBODY = -1
"""Setting of the second pool of a fleet that has none."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a fleet is worth: the multiple of the demand that it serves, within limits, or that per dollar an hour."""

    least: float
    most: float
    per_dollar: bool

    @classmethod
    def of(cls, asked: Objective) -> Worth:
        """As the objective has it."""
        if asked.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
            return cls(asked.min_volume, asked.max_volume, per_dollar=True)
        return cls(0.0, math.inf, per_dollar=False)

    def value(self, volume: FloatArray, cost: FloatArray) -> FloatArray:
        """The worth of fleets that serve these volumes at these costs [$/h]; 0 where less than asked for is served."""
        useful = np.where(volume >= self.least * (1.0 - 1e-9), np.minimum(volume, self.most), 0.0)
        return np.asarray(useful / cost if self.per_dollar else useful)

    def volume_for(self, value: float, cost: float) -> float:
        """The least volume with which a fleet of some cost is worth so much."""
        return max(value * (cost if self.per_dollar else 1.0), self.least)


@dataclass(slots=True, eq=False)
class Contest:
    """Fleets that compete; best, served, value: the best so far, what it serves, and what that is worth.

    need (settings,): engines that keep up with the demand; able: of each setting and number of engines, a volume that
    they serve beside the best of partners, and one that they do not. Fleets are rows: setting and engines of the first
    pool, and of the second (`NOBODY`, 0).
    """

    known: Evaluated
    problem: Problem
    worth: Worth
    best: IntArray | None = None
    served: float = 0.0
    value: float = 0.0
    need: FloatArray = field(init=False)
    able: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.need = keeping_up(self.known.instance, self.known.settings) @ self.known.instance.flows.rate

    def enter(self, rows: IntArray) -> bool:
        """Look at fleets (rows, 4), the most promising first; whether one of them is better than all before."""
        cost, top = gpu_cost(self.problem, self.gpus(rows)), self.keeping_up(rows)
        promise, before, looks = self.worth.value(top, cost), self.value, 0
        for at in np.argsort(-promise, kind="stable"):
            wanted = self.worth.volume_for(self.value * (1.0 + AS_MUCH), float(cost[at]))
            if promise[at] <= self.value * (1.0 + AS_MUCH) or looks >= MOST_LOOKS or self.known.late():
                break
            picks = picks_of(rows[at])
            if wanted <= top[at] and all(self._able(*pick, max(wanted, 1e-6)) for pick in picks):
                looks += 1
                served = self._served(picks, max(wanted, 1e-6), float(top[at]))
                value = float(self.worth.value(np.array(served), cost[at]))
                if value > self.value:
                    self.best, self.served, self.value = rows[at], served, value
        return self.value > before

    def _served(self, picks: Picks, least: float, top: float) -> float:
        """The most that a fleet serves, up to `top`; 0 where that is less than `least`."""
        carries = self.known.carries
        return least * largest_load(lambda more: least * more <= top and carries(picks, least * max(more, 1.0)))

    def _able(self, setting: int, engines: int, volume: float) -> bool:
        """Whether a pool keeps the goals at a volume beside the best of partners."""
        low, high = self.able.get((setting, engines), (0.0, math.inf))
        if low < volume < high:
            good = self.known.able(setting, engines, volume)
            low, high = (volume, high) if good else (low, volume)
            self.able[setting, engines] = low, high
        return volume <= low

    def gpus(self, rows: IntArray) -> FloatArray:
        """GPUs of each offer that fleets take, spares included, (rows, offers)."""
        each, spares = self.known.gpus_each(), self.problem.constraints.spare_replicas
        first, second = (each[rows[:, at]] * (rows[:, at + 1, None] + spares) for at in (0, 2))
        return np.asarray(first + np.where(rows[:, 2:3] == NOBODY, 0.0, second))

    def keeping_up(self, rows: IntArray) -> FloatArray:
        """Multiple of the demand that fleets keep up with at most, (rows,)."""
        second = np.where(rows[:, 2] == NOBODY, np.inf, rows[:, 3] / self.need[rows[:, 2]])
        return np.asarray(np.minimum(rows[:, 1] / self.need[rows[:, 0]], second))

    def rows(self) -> IntArray:
        """Fleets of one pool or two within the limits: some sizes of each pool; where money is no matter, of the first.

        Then as many engines as the limits allow are the second pool, or the only one.
        """
        role, talks = self.known.settings.role, self.known.instance.tables.talks
        alone = np.flatnonzero(role == COLOCATED)
        parts = [self._sized(np.stack([alone, np.full(alone.size, NOBODY)], axis=1))]
        if self.problem.constraints.fits((Role.PREFILL, Role.DECODE)):
            ends = [np.flatnonzero(role == end) for end in (PREFILL, DECODE)]
            shapes = [self.known.settings.shape[end] for end in ends]
            first, second = np.nonzero(talks[np.ix_(*shapes)])
            parts.append(self._sized(np.stack([ends[0][first], ends[1][second]], axis=1)))
        return np.concatenate(parts)

    def _sized(self, settings: IntArray) -> IntArray:
        """Fleets of these settings (fleets, 2), the only pool first."""
        first, second = settings.T
        none, nobody = np.zeros(first.size, dtype=np.int64), bool((second == NOBODY).all())
        smallest = np.stack([first, none, second, none if nobody else none + 1], axis=1)
        top = self._most(smallest, 1)
        if nobody and not self.worth.per_dollar:
            return np.stack([first, top, second, none], axis=1)[top > 0]
        rows = _with_sizes(smallest, 1, top, SIZES)
        if nobody:
            return rows
        rows[:, 3] = 0
        top = self._most(rows, 3)
        if self.worth.per_dollar:
            return _with_sizes(rows, 3, top, SIZES // 2)
        rows[:, 3] = top
        return rows[top > 0]

    def _most(self, rows: IntArray, place: int) -> IntArray:
        """Engines at a place of the rows that the limits allow beside the others, (rows,)."""
        useful = TIMES * np.ceil(np.minimum(self.need, MOST_ENGINES) * min(self.worth.most, 1e9)) + BESIDE
        high = np.minimum(useful, MOST_ENGINES).astype(np.int64)[rows[:, place - 1]] + 1
        low, tried = np.zeros(rows.shape[0], dtype=np.int64), rows.copy()
        while (high - low > 1).any():
            tried[:, place] = np.maximum((low + high) // 2, 1)
            fits = within_limits(self.problem, self.gpus(tried))
            low, high = np.where(fits, tried[:, place], low), np.where(fits, high, np.maximum(tried[:, place], low + 1))
        return low


def _with_sizes(rows: IntArray, place: int, top: IntArray, count: int) -> IntArray:
    """Each row with sizes from 1 to `top` at a place; none where that is 0."""
    rows, top = rows[top > 0], top[top > 0]
    sizes = np.rint(np.geomspace(np.ones(top.size), top, count, axis=1)).astype(np.int64)
    new = np.ones(sizes.shape, dtype=np.bool_)
    new[:, 1:] = sizes[:, 1:] > sizes[:, :-1]
    made = np.repeat(rows, new.sum(axis=1), axis=0)
    made[:, place] = sizes[new]
    return made


def picks_of(row: IntArray) -> Picks:
    """The pools of a fleet."""
    pairs = row.reshape(2, 2).tolist()
    return tuple((setting, count) for setting, count in pairs if setting != NOBODY)


def best_of_few_pools(known: Evaluated) -> tuple[Picks, float] | None:
    """The best fleet of one pool or two for the objective, and what it serves; None where none serves enough."""
    problem = pools_apart(known.instance.problem)
    contest = Contest(known, problem, Worth.of(problem.objective))
    better = contest.enter(contest.rows())
    while better and contest.best is not None:
        near = contest.best + np.array([[0, one, 0, two] for one in (-1, 0, 1) for two in (-1, 0, 1)])
        near = near[(near[:, 1] > 0) & np.where(near[:, 2] == NOBODY, near[:, 3] == 0, near[:, 3] > 0)]
        better = contest.enter(near[within_limits(problem, contest.gpus(near))])
    return None if contest.best is None else (picks_of(contest.best), contest.served)
