"""Search over a few knobs with a few values each, where one look costs a simulation: studies of Optuna.

A point is a tuple of indices, one for each knob; its values are what counts, one or several, less is better of each.
Every sampler starts from a given point, never looks at a point twice, and stops after `budget` looks or when no point
is left; the same seed gives the same looks. Points that are not allowed cost no look.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .study import Axis, KeptStudy

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
    kept: KeptStudy | None = None,
) -> Looks:
    """By turns a neighbour of the best, enqueued, and what a tree-structured Parzen estimator proposes.

    A neighbour differs in one knob by one step. Of several values the best are the front, one of which is drawn. The
    estimator's knobs are categorical; a known point that it proposes gives way to a neighbour of it. start_up: looks
    that it draws evenly; stopped: asked before each look; kept: where the study is kept, whose earlier looks are known.
    """
    import optuna

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=start_up, multivariate=False)
    return Search(knobs, value, seed, near=True, stopped=stopped, kept=kept).looks_of(sampler, start, budget)


class Search:
    """One search; near: whether it also looks at neighbours of what is good; known: points that were asked for.

    kept: where its study is kept; else it is in memory, and knobs are named by their place.
    """

    def __init__(
        self,
        knobs: Sequence[int],
        value: Value,
        seed: int,
        *,
        near: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        kept: KeptStudy | None = None,
    ) -> None:
        self.knobs, self.value, self.near, self.stopped, self.kept = knobs, value, near, stopped, kept
        plain = [Axis(str(knob), range(size)) for knob, size in enumerate(knobs)]
        self.axes: Sequence[Axis] = plain if kept is None else kept.axes
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
            axis.name: optuna.distributions.CategoricalDistribution(tuple(axis.values)) for axis in self.axes
        }
        study = optuna.create_study(
            sampler=sampler,
            directions=["minimize"] * len(first),
            storage=None if self.kept is None else self.kept.storage,
            study_name=None if self.kept is None else self.kept.name,
            load_if_exists=self.kept is not None,
        )
        earlier = self._recalled(study)
        if start not in earlier:
            attributes = dict(self._attributes(start))
            study.add_trial(
                optuna.create_trial(
                    params=self._params(start), distributions=space, values=first, user_attrs=attributes
                )
            )
        budget += len(earlier - {start})
        while not self.ended(budget):
            trial = self._next(study, space)
            point = self._point(trial.params)
            found = self.see(point)
            for name, attribute in () if found is None else self._attributes(point):
                trial.set_user_attr(name, attribute)
            study.tell(trial, found, state=None if found is not None else optuna.trial.TrialState.FAIL)
        return self.looks

    def _recalled(self, study: optuna.Study) -> set[Point]:
        """Points that earlier runs looked at, which join the looks."""
        import optuna

        done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)) if self.kept else []
        for trial in done:
            point = self._point(trial.params)
            if self.kept is not None and point not in self.looks:
                self.kept.recall(point, trial.user_attrs)
                self.looks[point] = tuple(trial.values)
        self.known |= self.looks.keys()
        return {self._point(trial.params) for trial in done}

    def _attributes(self, point: Point) -> Iterable[tuple[str, float]]:
        """What is kept of a point besides its values."""
        return () if self.kept is None else self.kept.attributes(point).items()

    def _params(self, point: Point) -> dict[str, float]:
        """A point as the parameters of a trial."""
        return {axis.name: axis.values[chosen] for axis, chosen in zip(self.axes, point, strict=True)}

    def _point(self, params: Mapping[str, float]) -> Point:
        return tuple(axis.values.index(params[axis.name]) for axis in self.axes)

    def _next(self, study: optuna.Study, space: dict[str, optuna.distributions.BaseDistribution]) -> optuna.Trial:
        """A trial of a point that is not known."""
        import optuna

        around = self.neighbour(front_of(self.looks)) if self.near and len(self.looks) % 2 else None
        if around is not None:
            study.enqueue_trial(self._params(around))
        trial = study.ask(space)
        if self._point(trial.params) not in self.known:
            return trial
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        instead = self.neighbour([self._point(trial.params)]) if self.near else None
        study.enqueue_trial(self._params(instead or self.unknown()))
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


def _neighbours(knobs: Sequence[int], point: Point) -> Iterator[Point]:
    for knob, step in itertools.product(range(len(knobs)), (-1, 1)):
        if 0 <= point[knob] + step < knobs[knob]:
            yield (*point[:knob], point[knob] + step, *point[knob + 1 :])
