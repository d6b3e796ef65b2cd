"""A small derivative-free minimiser for losses with kinks: the median and the mean absolute error are not smooth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def pattern_search(
    loss: Callable[[Vector], float],
    start: Vector,
    lower: Vector,
    upper: Vector,
    *,
    step: float = 0.5,
    tolerance: float = 1e-3,
) -> tuple[Vector, float]:
    """Minimise `loss` in a box by Hooke and Jeeves' pattern search (1961); returns the point and its loss.

    Tries +-step on each coordinate, keeps what helps, repeats a successful move as a whole, and halves the step when
    nothing helps, until it is below `tolerance`. Deterministic; finds a local minimum.

    >>> point, value = pattern_search(lambda x: abs(x[0] - 1) + abs(x[1]), np.zeros(2), -np.ones(2), 3 * np.ones(2))
    >>> [round(float(x), 2) for x in point]
    [1.0, 0.0]
    """
    best = np.clip(np.asarray(start, dtype=np.float64), lower, upper)
    value = loss(best)
    while step > tolerance:
        moved, moved_value = _explore(loss, best, value, (lower, upper), step)
        if moved_value >= value:
            step /= 2
            continue
        leap = np.clip(2 * moved - best, lower, upper)
        best, value = moved, moved_value
        leap_value = loss(leap)
        if leap_value < value:
            best, value = leap, leap_value
    return best, value


def _explore(
    loss: Callable[[Vector], float], point: Vector, value: float, box: tuple[Vector, Vector], step: float
) -> tuple[Vector, float]:
    """Move along each coordinate in turn where that lowers the loss."""
    lower, upper = box
    point = point.copy()
    for index in range(point.size):
        for delta in (step, -step):
            trial = point.copy()
            trial[index] = min(max(trial[index] + delta, lower[index]), upper[index])
            trial_value = loss(trial)
            if trial_value < value * (1 - 1e-9):
                point, value = trial, trial_value
                break
    return point, value
