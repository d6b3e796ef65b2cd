"""The fleet of most goodput, or of most goodput per dollar, among those that hold when they are evaluated.

A fleet of n_i engines of each pool keeps up with no more than min n_i / need_i times the demand (`keeping_up`), and
serves no more than each of its pools beside the best of partners. So fleets of one colocated pool or of a prefill and a
decode pool are looked at in the order of what the first would be worth, until that is no more than the best is known to
be worth. In the place of the best of them one that mixes engines within a stage is taken (`mixtures`), where that
serves more, or as much for less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume, largest_load
from optimizer.fleets.fleet import Fleet, fleet_cost, gpu_cost, pools_apart, within_limits
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, Instance, at_volume
from search_spaces.problem import Goal, Objective, Problem

from .bound import keeping_up, least_per_demand, most_volume
from .mixtures import cheaper_of_more_pools
from .search import AS_MUCH, BESIDE, MOST_LOOKS, TIMES, FleetSearch, Picks, cheapest_held, most_engines, settled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SIZES = 24
"""Numbers of engines of a pool that are tried at first, as far apart from each other as they are large."""

MOST_ENGINES = 10_000
"""Of a pool, where no limit says less."""

NOBODY = -1
"""Setting of the second pool of a fleet that has none."""

BEYOND = (1.16, 1.08, 1.04, 1.02)
"""Factors on what the best fleet serves with which one of mixed engines is looked for: the largest first, as what
serves a little more may be nothing to go on from."""

Serving = tuple[Fleet, float]
"""A fleet, and the most that it is known to serve, as a multiple of the demand."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a fleet is worth: the multiple of the demand that it serves, within limits, or that per dollar an hour."""

    least: float
    most: float
    per_dollar: bool

    @classmethod
    def of(cls, objective: Objective) -> Worth:
        """As the objective has it."""
        if objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR:
            return cls(objective.min_volume, objective.max_volume, per_dollar=True)
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

    search: FleetSearch
    problem: Problem
    worth: Worth
    best: IntArray | None = None
    served: float = 0.0
    value: float = 0.0
    need: FloatArray = field(init=False)
    able: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.need = keeping_up(self.search.instance, self.search.settings) @ self.search.instance.flows.rate

    def enter(self, rows: IntArray) -> bool:
        """Look at fleets (rows, 4), the most promising first; whether one of them is better than all before."""
        cost, top = gpu_cost(self.problem, self.gpus(rows)), self.keeping_up(rows)
        promise, before, looks = self.worth.value(top, cost), self.value, 0
        for at in np.argsort(-promise, kind="stable"):
            volume = self.worth.volume_for(self.value * (1.0 + AS_MUCH), float(cost[at]))
            if promise[at] <= self.value * (1.0 + AS_MUCH) or looks >= MOST_LOOKS or self.search.late():
                break
            picks = picks_of(rows[at])
            if volume <= top[at] and all(self._able(*pick, max(volume, 1e-6)) for pick in picks):
                looks += 1
                served = self._served(picks, max(volume, 1e-6), float(top[at]))
                value = float(self.worth.value(np.array(served), cost[at]))
                if value > self.value:
                    self.best, self.served, self.value = rows[at], served, value
        return self.value > before

    def _served(self, picks: Picks, least: float, top: float) -> float:
        """The most that a fleet serves, up to `top`; 0 where that is less than `least`."""
        carries = self.search.carries
        return least * largest_load(lambda more: least * more <= top and carries(picks, least * max(more, 1.0)))

    def _able(self, setting: int, engines: int, volume: float) -> bool:
        """Whether a pool keeps the goals at a volume beside the best of partners."""
        low, high = self.able.get((setting, engines), (0.0, math.inf))
        if low < volume < high:
            good = self.search.able(setting, engines, volume)
            low, high = (volume, high) if good else (low, volume)
            self.able[setting, engines] = low, high
        return volume <= low

    def gpus(self, rows: IntArray) -> FloatArray:
        """GPUs of each offer that fleets take, spares included, (rows, offers)."""
        each, spares = self.search.gpus_each(), self.problem.constraints.spare_replicas
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
        role, talks = self.search.settings.role, self.search.instance.tables.talks
        alone = np.flatnonzero(role == COLOCATED)
        parts = [self._sized(np.stack([alone, np.full(alone.size, NOBODY)], axis=1))]
        if self.problem.constraints.fits((Role.PREFILL, Role.DECODE)):
            ends = [np.flatnonzero(role == end) for end in (PREFILL, DECODE)]
            shapes = [self.search.settings.shape[end] for end in ends]
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
        top = np.minimum(useful, MOST_ENGINES).astype(np.int64)[rows[:, place - 1]]
        others = rows.copy()
        others[:, place] = -self.problem.constraints.spare_replicas
        each = self.search.gpus_each()[rows[:, place - 1]]
        return most_engines(self.problem, self.gpus(others), each, top)


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


def best_of_few_pools(search: FleetSearch) -> tuple[Picks, float] | None:
    """The best fleet of one pool or two for the objective, and what it serves; None where none serves enough."""
    problem = pools_apart(search.instance.problem)
    contest = Contest(search, problem, Worth.of(problem.objective))
    better = contest.enter(contest.rows())
    while better and contest.best is not None:
        near = contest.best + np.array([[0, first, 0, second] for first in (-1, 0, 1) for second in (-1, 0, 1)])
        near = near[(near[:, 1] > 0) & np.where(near[:, 2] == NOBODY, near[:, 3] == 0, near[:, 3] > 0)]
        better = contest.enter(near[within_limits(problem, contest.gpus(near))])
    return None if contest.best is None else (picks_of(contest.best), contest.served)


def per_dollar(instance: Instance, serving: Serving) -> float:
    """Multiple of the demand that is served per dollar an hour, of that which the objective asks for."""
    fleet, most = serving
    return min(most, instance.problem.objective.max_volume) / fleet_cost(instance, fleet)


def most_served(search: FleetSearch) -> Serving:
    """The fleet within the limits that serves most; an empty one where there is none."""
    instance, best = search.instance, _of_few_pools(search)
    waiting = list(BEYOND)
    while waiting and best[0].pools and not search.late():
        more = best[1] * waiting.pop(0)
        mixed = _mixed(search, best[0], more, math.inf)
        if mixed is not None:
            best, waiting = (mixed, max(more, goodput_volume(instance, mixed))), list(BEYOND)
    return best


def most_per_dollar(search: FleetSearch) -> Serving:
    """The fleet of most goodput per dollar; an empty one where there is none."""
    instance, best = search.instance, _of_few_pools(search)
    if not best[0].pools:
        return best
    sold = min(best[1], instance.problem.objective.max_volume)
    mixed = _mixed(search, best[0], sold, fleet_cost(instance, best[0]))
    return best if mixed is None else (mixed, max(sold, goodput_volume(instance, mixed)))


def most_served_at_all(search: FleetSearch, serves: float, seconds: float) -> float:
    """Multiple of the demand beyond which no fleet within the limits keeps up; infinite where none is search.

    serves: that a fleet is known to serve; seconds: that it may take.
    """
    top = most_volume(at_volume(search.instance, serves), search.settings, seconds)
    return math.inf if top is None else top * serves


def most_per_dollar_at_all(search: FleetSearch) -> float:
    """Multiple of the demand per dollar an hour that no fleet which keeps up exceeds; infinite where none is search."""
    least = search.instance.problem.objective.min_volume
    cost = least_per_demand(at_volume(search.instance, least), search.settings)
    return least / cost if cost else math.inf


def _of_few_pools(search: FleetSearch) -> Serving:
    """The best fleet of one pool or two, if any holds."""
    best = best_of_few_pools(search)
    return (Fleet(()), 0.0) if best is None else (settled(search.instance, search.fleet(best[0])), best[1])


def _mixed(search: FleetSearch, fleet: Fleet, volume: float, below: float) -> Fleet | None:
    """A fleet that mixes engines in a stage of this one, or has colocated ones beside fewer of its own.

    It serves a volume, and costs less than `below` [$/h].
    """
    there = FleetSearch.of(at_volume(search.instance, volume), search.settings, search.late)
    cheapest_held(there, pools_apart(search.instance.problem), below)  # for which engines are enough apart
    return cheaper_of_more_pools(there, [fleet], below)
