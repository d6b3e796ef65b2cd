"""Search over a few knobs with a few values each, where one look costs a simulation.

A point is a tuple of indices, one for each knob. Every sampler starts from a given point, never looks at a point twice
and stops after `budget` looks, or when no point is left; the same seed gives the same looks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import optuna

Point = tuple[int, ...]
Looks = dict[Point, float]
"""Value of every point that was looked at, in order; less is better."""

START_UP = 10
"""Points that TPE draws at random before it learns: a quarter of the usual budget."""
PATIENCE = 20
"""Draws of known points in a row, for each knob, after which the first that is not known is taken."""


class Sampler(Protocol):
    """Looks at points; knobs: number of values of each."""

    def __call__(  # noqa: D102 - described above
        self, knobs: Sequence[int], value: Callable[[Point], float], start: Point, budget: int, seed: int
    ) -> Looks: ...


def best_of(looks: Looks) -> Point:
    """The point of least value, the first of equals."""
    return min(looks, key=lambda point: looks[point])


def at_random(knobs: Sequence[int], value: Callable[[Point], float], start: Point, budget: int, seed: int) -> Looks:
    """Points drawn evenly."""
    draw = np.random.default_rng([seed, 5])
    looks: Looks = {start: value(start)}
    while len(looks) < min(budget, math.prod(knobs)):
        point = _unseen(knobs, looks, draw)
        looks[point] = value(point)
    return looks


def by_descent(knobs: Sequence[int], value: Callable[[Point], float], start: Point, budget: int, seed: int) -> Looks:
    """By turns a neighbour of the best point so far, one knob one step up or down, and a point drawn evenly.

    So it walks downhill half as fast as it could, and is never much worse than drawing alone where the hill misleads.
    """
    draw = np.random.default_rng([seed, 6])
    looks: Looks = {start: value(start)}
    while len(looks) < min(budget, math.prod(knobs)):
        local = len(looks) % 2 == 1
        near = [point for point in _neighbours(knobs, best_of(looks)) if point not in looks] if local else []
        point = near[int(draw.integers(len(near)))] if near else _unseen(knobs, looks, draw)
        looks[point] = value(point)
    return looks


def _neighbours(knobs: Sequence[int], point: Point) -> Iterator[Point]:
    for knob, step in itertools.product(range(len(knobs)), (-1, 1)):
        if 0 <= point[knob] + step < knobs[knob]:
            yield (*point[:knob], point[knob] + step, *point[knob + 1 :])


def _unseen(knobs: Sequence[int], looks: Looks, draw: np.random.Generator) -> Point:
    """A point that was not looked at; there is one."""
    for _ in range(PATIENCE * len(knobs)):
        point = tuple(int(draw.integers(size)) for size in knobs)
        if point not in looks:
            return point
    return next(point for point in itertools.product(*map(range, knobs)) if point not in looks)


def by_tpe(  # noqa: PLR0917 - a Sampler, with a place for the study
    knobs: Sequence[int],
    value: Callable[[Point], float],
    start: Point,
    budget: int,
    seed: int,
    storage: optuna.storages.BaseStorage | None = None,
) -> Looks:
    """Optuna's tree-structured Parzen estimator over categorical knobs.

    An unseen point is drawn where it proposes a known one. storage: where the study is kept, so that several machines
    may share it; in memory by default.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = [f"knob-{number}" for number in range(len(knobs))]
    space: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(tuple(range(size)))
        for name, size in zip(names, knobs, strict=True)
    }
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=START_UP)
    study = optuna.create_study(storage=storage, sampler=sampler, study_name="pdplan", load_if_exists=True)
    study.enqueue_trial(dict(zip(names, start, strict=True)))
    draw = np.random.default_rng([seed, 7])
    looks: Looks = {}
    while len(looks) < min(budget, math.prod(knobs)):
        trial = study.ask(space)
        point = tuple(int(trial.params[name]) for name in names)
        if point in looks:  # tell it again what it knows, and an unseen point in its place
            study.tell(trial, looks[point])
            point = _unseen(knobs, looks, draw)
            values = dict(zip(names, point, strict=True))
            looks[point] = value(point)
            study.add_trial(optuna.create_trial(params=values, distributions=space, value=looks[point]))
        else:
            looks[point] = value(point)
            study.tell(trial, looks[point])
    return looks
