"""Which GPUs serve which rate: fleets of several mixes of types at a few rates of a forecast, alone or side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets import bought
from optimizer.fleets.build_plan import fleet_gpus
from optimizer.fleets.fleet import Fleet
from optimizer.plans.plan_pools import EnginePool
from optimizer.search.search import FleetSearch
from optimizer.whatif.physics import Engines, engines_of
from search_spaces.problem import Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SAME = 1e-9
"""Relative difference up to which a rate is served by the fleet of a level."""
MOST_OPTIONS, MOST_RANKED = 100, 1500
"""Fleets of one level that are kept, and of how many of the cheapest they are chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A fleet of one or two pools, and what is known at the rate that it was found for.

    number: of the requests that share pools.
    """

    number: int
    known: FleetSearch
    fleet: Fleet
    pools: tuple[EnginePool, ...]

    @property
    def rate(self) -> float:
        """Arrivals that it is bought for [1/s]."""
        return float(self.known.instance.flows.rate.sum())

    @property
    def gpus(self) -> str:
        """Its GPUs in words, such as "4 H100 + 2 H200"."""
        offers, count = self.known.instance.problem.offers, fleet_gpus(self.known.instance, self.fleet).tolist()
        return " + ".join(f"{n} {offer.accelerator.name}" for offer, n in zip(offers, count, strict=True) if n)

    @property
    def engines(self) -> tuple[Engines, ...]:
        """The engines of its pools."""
        return tuple(engines_of(pool) for pool in self.fleet.pools)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from every other."""
        return self.number, self.rate, self.engines


@dataclass(frozen=True, slots=True)
class Option:
    """One fleet that serves a level of the rate: GPUs of each offer, its pools, and what it consists of."""

    gpus: tuple[int, ...]
    pools: tuple[EnginePool, ...]
    parts: tuple[Part, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Levels:
    """Rates, ascending [1/s], and for each the fleets that serve it; those of higher rates serve lower ones too."""

    rates: FloatArray
    options: tuple[tuple[Option, ...], ...]

    def level_of(self, rates: FloatArray) -> IntArray:
        """Number of the lowest level that serves each rate."""
        return np.searchsorted(self.rates * (1.0 + SAME), rates).astype(np.int64)


def level_rates(rates: FloatArray, count: int) -> FloatArray:
    """At most `count` rates that cover all given ones: themselves if they are few, else spaced evenly in logarithms.

    >>> level_rates(np.array([1.0, 3.0, 3.0]), 4).tolist(), level_rates(np.array([1.0, 2.0, 3.0, 4.0]), 3).tolist()
    ([1.0, 3.0], [1.0, 2.0, 4.0])
    """
    known = np.unique(rates[rates > 0.0])
    if known.size <= count:
        return known
    if count == 1:
        return known[-1:]
    spaced = np.geomspace(known[0], known[-1], count)
    spaced[[0, -1]] = known[[0, -1]]
    return spaced


def make_levels(
    rates: FloatArray,
    fleets: Sequence[Sequence[Option]],
    prices: Sequence[Sequence[float]] | None = None,
    allowed: Callable[[Option], bool] = lambda _option: True,
) -> Levels:
    """Levels from the fleets found at each rate.

    A fleet serves every lower rate too, and two fleets side by side serve the sum of their rates, for each gets a
    random part of the arrivals. One that needs as much of every type as another one is left out, and of very many the
    dearest. prices: sets of $/h of one GPU of each type by which they are ranked; None: all alike. allowed: whether two
    fleets side by side are within the limits on a fleet.
    """
    usable = [_best([option for found in fleets[level:] for option in found], prices) for level in range(rates.size)]
    for level in range(rates.size):
        pairs = (
            beside(first, second)
            for low in range(level)
            for first in usable[low]
            for second in usable[int(np.searchsorted(rates, (rates[level] - rates[low]) * (1.0 - SAME)))]
        )
        usable[level] = _best([*usable[level], *filter(allowed, pairs)], prices)
    return Levels(rates, tuple(usable))


def beside(first: Option, second: Option) -> Option:
    """Two fleets side by side."""
    gpus = tuple(a + b for a, b in zip(first.gpus, second.gpus, strict=True))
    return Option(gpus, (*first.pools, *second.pools), (*first.parts, *second.parts))


def _best(options: Sequence[Option], prices: Sequence[Sequence[float]] | None) -> tuple[Option, ...]:
    """Options that no other one beats in every type, the cheapest at some set of prices first, not too many."""
    first = {option.gpus: option for option in reversed(options)}
    if not first:
        return ()
    gpus = np.array(list(first), dtype=np.float64)
    cost = gpus @ np.atleast_2d(np.ones(gpus.shape[1]) if prices is None else np.array(prices)).T
    dearness = (cost / np.maximum(cost.min(axis=0), 1e-12)).min(axis=1)
    order = np.lexsort((*gpus.T, dearness))[:MOST_RANKED]
    ranked = gpus[order]
    beaten = (ranked[:, None, :] >= ranked[None, :, :]).all(axis=2).sum(axis=1) > 1
    return tuple(first[tuple(row)] for row in ranked[~beaten][:MOST_OPTIONS].astype(int).tolist())


def within_limits(problem: Problem, option: Option) -> bool:
    """Whether a fleet is within every limit of the problem; its pools are counted as they are, none merged."""
    pools_fit = problem.constraints.fits(pool.role for part in option.parts for pool in part.fleet.pools)
    return pools_fit and bool(bought.within_limits(problem, np.array(option.gpus)))
