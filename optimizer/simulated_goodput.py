"""Goodput of a fleet, by simulation: the highest rate at which every class still holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .fleet import Fleet
from .instance import Instance
from .judge import Judgement, judge, simulated_fleet

LEAST_VOLUME = 1e-3
"""Multiple of the demand below which a fleet counts as serving nothing."""
MOST_VOLUME = 1e3


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The fleet at one rate [1/s]: attainment of each class [1], TTFT and TPOT p90 of each [s], whether all hold."""

    rate: float
    attainment: tuple[float, ...]
    ttft_p90: tuple[float, ...]
    tpot_p90: tuple[float, ...]
    overloaded: bool
    held: bool


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput [1/s] lies between `rate`, at which all held, and `fails`, at which not; every rate tried, rising."""

    rate: float
    fails: float
    tolerance: float
    points: tuple[RatePoint, ...]


def goodput(
    instance: Instance, fleet: Fleet, *, requests: int = 10_000, seed: int = 0, tolerance: float = 0.02
) -> Goodput:
    """Highest rate at which every class holds its joint TTFT and TPOT attainment, to `tolerance` (relative).

    Bisection over the rate, mix and routing unchanged. All runs share their random numbers (arrivals at rate r are
    those at rate 1 divided by r), so that attainment falls with the rate and not by chance.
    """
    engines, demand = simulated_fleet(instance, fleet), instance.problem.workload.request_rate
    points: dict[float, RatePoint] = {}

    def good(volume: float) -> bool:
        found = judge(instance, fleet, requests=requests, seed=seed, volume=volume, engines=engines)
        points[volume] = _point(found, demand * volume)
        return found.held

    low, high = _bracket(good)
    while low > 0.0 and high - low > tolerance * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return Goodput(demand * low, demand * high, tolerance, tuple(points[volume] for volume in sorted(points)))


def _bracket(good: Callable[[float], bool]) -> tuple[float, float]:
    """A volume that holds (0: none does) and twice it, which does not."""
    high = 1.0
    if good(high):
        while high < MOST_VOLUME and good(2.0 * high):
            high *= 2.0
        return high, 2.0 * high
    while high > LEAST_VOLUME:
        high /= 2.0
        if good(high):
            return high, 2.0 * high
    return 0.0, high


def _point(found: Judgement, rate: float) -> RatePoint:
    return RatePoint(
        rate=rate,
        attainment=tuple(one.attainment.share for one in found.classes),
        ttft_p90=tuple(one.ttft[1] for one in found.classes),
        tpot_p90=tuple(one.tpot[1] for one in found.classes),
        overloaded=found.overload.overloaded,
        held=found.held,
    )
