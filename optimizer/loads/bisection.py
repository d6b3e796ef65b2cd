"""Bisection: where an answer changes between two numbers, loads or numbers of replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from optimizer.plans.records import ALIKE, ROUNDING


def fewest_replicas(
    replicas: Sequence[int], prices: Sequence[float], holds: Callable[[tuple[int, ...]], bool], least: int = 1
) -> tuple[int, ...]:
    """Fewest replicas of each pool, at least `least`, with which a fleet holds; it must hold as it is.

    The pools give up replicas one after the other, the dearest by `prices` first.
    """
    counts = tuple(replicas)

    def resized(index: int, count: int) -> tuple[int, ...]:
        return (*counts[:index], count, *counts[index + 1 :])

    def too_few(index: int, count: int) -> bool:
        return not holds(resized(index, count))

    for index in sorted(range(len(counts)), key=lambda number: -prices[number]):
        fewest = bisection(min(least, counts[index]) - 1, counts[index], partial(too_few, index))[1]
        counts = resized(index, fewest)
    return counts


def bisection(low: int, high: int, good: Callable[[int], bool]) -> tuple[int, int]:
    """The last good and the first bad whole number between `low`, which is good, and `high`, which is bad."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


def boundary(
    good: Callable[[float], bool],
    tolerance: float,
    start: float = 1.0,
    step: float = 2.0,
    *,
    ends: tuple[float, float] = (ROUNDING, 1e9),
) -> tuple[float, float]:
    """A good multiple of a load (0: none is good) and a bad one above it, at most `tolerance` apart (relative).

    start: the multiple tried first; step: factor to the second one, squared from step to step, up to 2; ends: the least
    and the largest multiple that are tried.
    """
    low, high = start, start * step
    if good(start):
        while low < ends[1] and good(high):
            low, step = high, min(step**2, 2.0)
            high = low * step
    else:
        low, high, step = start / step, start, min(step**2, 2.0)
        while not good(low):
            if low <= ends[0]:
                return 0.0, low
            low, high, step = low / step, low, min(step**2, 2.0)
    while high - low > tolerance * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


def largest_load(good: Callable[[float], bool], most: float = 1e9) -> float:
    """Largest good multiple of a load, up to `most`; 0 if none is good."""
    return min(boundary(good, ALIKE / 2.0, ends=(ROUNDING, most))[0], most)
