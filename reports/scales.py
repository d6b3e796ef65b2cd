"""Scales: from a chart's numbers to positions in its drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """Map [low, high] to [start, end]; positions beyond the ends are clipped to them.

    >>> Linear(0, 10, 100, 200)(5), Linear(0, 10, 100, 200)(20)
    (150.0, 200.0)
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Log:
    """Map [low, high], both positive, to [start, end] by their logarithms; clipped at the ends.

    >>> round(Log(1, 100, 0, 10)(10), 9)
    5.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a positive value."""
        linear = Linear(math.log10(self.low), math.log10(self.high), self.start, self.end)
        return linear(math.log10(max(value, self.low)))

    def decades(self) -> list[float]:
        """Return the powers of ten from low to high.

        >>> Log(0.1, 100, 0, 1).decades()
        [0.1, 1.0, 10.0, 100.0]
        """
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [float(f"1e{power}") for power in range(first, last + 1)]


def round_steps(high: float, most: int = 5) -> list[float]:
    """Return 0 and the multiples of 1, 2 or 5 times a power of ten up to `high`, `most` steps at most.

    >>> round_steps(2.667), round_steps(17.5, 4), round_steps(0.0)
    ([0.0, 1.0, 2.0], [0.0, 5.0, 10.0, 15.0], [0.0])
    """
    if not 0.0 < high < math.inf:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor * most >= high * (1 - 1e-9))
    return [float(f"{step * number:.6g}") for number in range(int(high / step * (1 + 1e-9)) + 1)]


def round_ticks(low: float, high: float) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about five; both ends if too few.

    >>> round_ticks(0.3, 4.0), round_ticks(0.5, 0.999), round_ticks(2.0, 2.0)
    ([1.0, 2.0, 3.0, 4.0], [0.5, 0.6, 0.7, 0.8, 0.9], [2.0, 2.0])
    """
    step = (round_steps(high - low)[1:] or [math.inf])[0]
    first = math.ceil(low / step * (1 - 1e-9))
    ticks = [float(f"{step * number:.6g}") for number in range(first, math.floor(high / step * (1 + 1e-9)) + 1)]
    return ticks if len(ticks) > 1 else [low, high]


def decade_range(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten that enclose positive values.

    >>> decade_range([41.2, 2210.0])
    (10.0, 10000.0)
    """
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return float(f"1e{low}"), float(f"1e{max(high, low + 1)}")
