"""Search over a few knobs with a few values each, where one look costs a simulation: studies of Optuna.

A point is a tuple of indices, one for each knob; its values are what counts, one or several, less is better of each.
Every sampler starts from a given point, never looks at a point twice, and stops after `budget` looks or when no point
is left; the same seed gives the same looks. Points that are not allowed cost no look.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import optuna

Point = tuple[int, ...]
Values = tuple[float, ...]
Looks = dict[Point, Values]
"""Values of every point that was looked at, in order."""
Value = Callable[[Point], Values | None]
"""Looks at a point; None: it is not allowed."""

START_UP = 20
"""Trials after which the estimator learns from those before; until then it draws evenly."""
FRONT_START_UP = 10
"""The same where there are two values: the front has many points to learn from (benchmarks/tuning.py)."""
ASKED = 20
"""Points that are asked for at most, for each look, where few are allowed."""
PATIENCE = 20
"""Draws of known points in a row, for each knob, after which the first that is not known is taken."""


class Sampler(Protocol):
    """Looks at points; knobs: number of values of each."""

    def __call__(  # noqa: D102 - described above
        self, knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int
    ) -> Looks: ...


def front_of(looks: Mapping[Point, Values]) -> list[Point]:
    """Points that no other is better than in one value and no worse in any; the first of equals, least values first.

    Of one value it is the best.

    >>> front_of({(0,): (2.0, 1.0), (1,): (1.0, 3.0), (2,): (2.0, 2.0)})
    [(1,), (0,)]
    """
    front: list[Point] = []
    for point in sorted(looks, key=lambda one: looks[one]):
        if not any(all(a <= b for a, b in zip(looks[other], looks[point], strict=True)) for other in front):
            front.append(point)
    return front


def at_random(knobs: Sequence[int], value: Value, start: Point, budget: int, seed: int) -> Looks:
    """Points drawn evenly."""
    import optuna

    return Search(knobs, value, seed).looks_of(optuna.samplers.RandomSampler(seed=seed), start, budget)


def by_tpe(
    knobs: Sequence[int],
    value: Value,
    start: Point,
    budget: int,
    seed: int,
    *,
    start_up: int = START_UP,
    stopped: Callable[[], bool] = lambda: False,
) -> Looks:
    """By turns a neighbour of the best, enqueued, and what a tree-structured Parzen estimator proposes.

    A neighbour differs in one knob by one step. Of several values the best are the front, one of which is drawn. The
    estimator's knobs are categorical; a known point that it proposes gives way to a neighbour of it. start_up: looks
    that it draws evenly; stopped: asked before each look.
    """
    import optuna

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=start_up, multivariate=False)
    return Search(knobs, value, seed, near=True, stopped=stopped).looks_of(sampler, start, budget)


class Search:
    """One search; near: whether it also looks at neighbours of what is good; known: points that were asked for."""

    def __init__(
        self,
        knobs: Sequence[int],
        value: Value,
        seed: int,
        *,
        near: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.knobs, self.value, self.near, self.stopped = knobs, value, near, stopped
        self.draw = np.random.default_rng([seed, 7])
        self.known: set[Point] = set()
        self.looks: Looks = {}

    def see(self, point: Point) -> Values | None:
        """Look at a point."""
        self.known.add(point)
        found = self.value(point)
        if found is not None:
            self.looks[point] = found
        return found

    def ended(self, budget: int) -> bool:
        """Whether all looks are taken, or hardly any point is left or allowed."""
        most = min(math.prod(self.knobs), ASKED * budget)
        return len(self.looks) >= budget or len(self.known) >= most or self.stopped()

    def looks_of(self, sampler: optuna.samplers.BaseSampler, start: Point, budget: int) -> Looks:
        """Look at the start and at what a study with that sampler proposes; at nothing where it is not allowed."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        first = self.see(start)
        if first is None:
            return self.looks
        space: dict[str, optuna.distributions.BaseDistribution] = {
            str(knob): optuna.distributions.CategoricalDistribution(tuple(range(size)))
            for knob, size in enumerate(self.knobs)
        }
        study = optuna.create_study(sampler=sampler, directions=["minimize"] * len(first))
        study.add_trial(optuna.create_trial(params=_params(start), distributions=space, values=first))
        while not self.ended(budget):
            trial = self._next(study, space)
            found = self.see(_point(trial))
            study.tell(trial, found, state=None if found is not None else optuna.trial.TrialState.FAIL)
        return self.looks

    def _next(self, study: optuna.Study, space: dict[str, optuna.distributions.BaseDistribution]) -> optuna.Trial:
        """A trial of a point that is not known."""
        import optuna

        around = self.neighbour(front_of(self.looks)) if self.near and len(self.looks) % 2 else None
        if around is not None:
            study.enqueue_trial(_params(around))
        trial = study.ask(space)
        if _point(trial) not in self.known:
            return trial
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        instead = self.neighbour([_point(trial)]) if self.near else None
        study.enqueue_trial(_params(instead or self.unknown()))
        return study.ask(space)

    def neighbour(self, points: Collection[Point]) -> Point | None:
        """A neighbour of one of some points that is not known, drawn evenly; None where there is none."""
        near = [other for point in points for other in _neighbours(self.knobs, point) if other not in self.known]
        return near[int(self.draw.integers(len(near)))] if near else None

    def unknown(self) -> Point:
        """A point that was not asked for; there is one."""
        for _ in range(PATIENCE * len(self.knobs)):
            point = tuple(int(self.draw.integers(size)) for size in self.knobs)
            if point not in self.known:
                return point
        return next(point for point in itertools.product(*map(range, self.knobs)) if point not in self.known)


def _params(point: Point) -> dict[str, int]:
    """A point as the parameters of a trial, which are named by their place."""
    return {str(knob): chosen for knob, chosen in enumerate(point)}


def _point(trial: optuna.Trial) -> Point:
    return tuple(int(trial.params[str(knob)]) for knob in range(len(trial.params)))


def _neighbours(knobs: Sequence[int], point: Point) -> Iterator[Point]:
    for knob, step in itertools.product(range(len(knobs)), (-1, 1)):
        if 0 <= point[knob] + step < knobs[knob]:
            yield (*point[:knob], point[knob] + step, *point[knob + 1 :])
