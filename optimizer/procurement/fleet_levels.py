"""Which GPUs serve which rate: fleets of several mixes of types, searched for at a few rates of a forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets.build_plan import fleet_gpus, pool_line
from optimizer.fleets.error_bars import at_quantile, slow_end
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, make_fleet, polish
from optimizer.loads.columns import Columns, Grid, make_columns
from optimizer.loads.diagnose import check_shapes
from optimizer.loads.instance import Instance, make_instance
from optimizer.recommend.optimize import with_more_engines
from optimizer.solver.search import plan_blocks
from optimizer.solver.simple_plans import Totals, price_space, simple_plans
from optimizer.solver.split import with_best_split
from search_spaces.engines import load_engine_overhead
from search_spaces.problem import Billing, Offer, Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SAME_RATE = 1e-9
"""Relative difference up to which a rate is served by the fleet of a level."""


MOST_OPTIONS, MOST_RANKED = 100, 1500
"""Fleets of one level that are kept, and of how many of the cheapest they are chosen."""


@dataclass(frozen=True, slots=True)
class Option:
    """One fleet that serves a level of the rate: GPUs of each offer, and its pools in words."""

    gpus: tuple[int, ...]
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """Rates, ascending [1/s], and for each the fleets that serve it; those of higher rates serve lower ones too."""

    rates: FloatArray
    options: tuple[tuple[Option, ...], ...]

    def level_of(self, rates: FloatArray) -> IntArray:
        """Number of the lowest level that serves each rate."""
        return np.searchsorted(self.rates * (1.0 + SAME_RATE), rates).astype(np.int64)


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
            _beside(first, second)
            for low in range(level)
            for first in usable[low]
            for second in usable[int(np.searchsorted(rates, (rates[level] - rates[low]) * (1.0 - SAME_RATE)))]
        )
        usable[level] = _best([*usable[level], *filter(allowed, pairs)], prices)
    return Levels(rates, tuple(usable))


def _beside(first: Option, second: Option) -> Option:
    """Two fleets side by side."""
    gpus = tuple(a + b for a, b in zip(first.gpus, second.gpus, strict=True))
    return Option(gpus, (*first.pools, *second.pools))


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


def search_levels(
    problem: Problem,
    rates: FloatArray,
    prices: Sequence[Sequence[float]],
    progress: Callable[[str, float], None] | None = None,
) -> Levels:
    """Search for fleets of at most two pools at each rate, by formula: of all types together, and of each alone.

    prices: sets of $/h of one GPU of each offer; the cheapest fleet at each set is found.
    """
    found = []
    for number, rate in enumerate(rates.tolist()):
        if progress is not None:
            progress(f"fleets for {rate:.3g}/s", 0.7 * number / rates.size)
        found.append([option for priced in prices for option in _fleets_at(problem, rate, priced)])
    return make_levels(rates, found, prices, lambda option: within_limits(problem, option))


def within_limits(problem: Problem, option: Option) -> bool:
    """Whether a fleet is within every limit of the problem; its pools are counted as they are, none merged."""
    limits = problem.constraints
    used = list(zip(option.gpus, problem.offers, strict=True))
    ceilings = (
        (limits.max_gpus, sum(option.gpus)),
        (limits.max_pools, len(option.pools)),
        (limits.power, sum(gpus * offer.accelerator.tdp for gpus, offer in used)),
        (limits.budget, sum(gpus * offer.usd_per_hour for gpus, offer in used)),
        *((offer.inventory, gpus) for gpus, offer in used),
    )
    return all(most is None or amount <= most * (1.0 + SAME_RATE) for most, amount in ceilings)


def _fleets_at(problem: Problem, rate: float, prices: Sequence[float]) -> Iterator[Option]:
    """Fleets for one rate [1/s] at some prices."""
    offers = tuple(replace(one, usd_per_hour=usd) for one, usd in zip(problem.offers, prices, strict=True))
    here = replace(problem, workload=replace(problem.workload, request_rate=rate), offers=offers)
    instance = make_instance(here, load_engine_overhead(here.engine, here.engine_changes))
    check_shapes(here, instance.enumeration)
    instance = with_best_split(at_quantile(instance, slow_end(here.confidence)))
    space = make_columns(instance, Grid())
    columns, totals = price_space(instance, space)
    whole = np.ones(columns.size, dtype=np.bool_)
    single = [instance.tables.offer[columns.shape] == index for index in range(len(offers))]
    for mask in (whole, *single) if len(offers) > 1 else (whole,):
        fleet = _cheapest(instance, columns.take(mask), totals.take(mask))
        if fleet.pools:
            needed = zip(fleet_gpus(instance, fleet).tolist(), offers, strict=True)
            gpus = tuple(_paid(count, offer) for count, offer in needed)
            yield Option(gpus, tuple(pool_line(instance, pool) for pool in fleet.pools))


def _paid(gpus: int, offer: Offer) -> int:
    """GPUs that are paid for: whole nodes where they are billed."""
    size = offer.accelerator.node_size if offer.billing is Billing.NODE else 1
    return -(-gpus // size) * size


def _cheapest(instance: Instance, columns: Columns, totals: Totals) -> Fleet:
    """The cheapest fleet of one or two pools that holds; where the cheapest by columns does not, one with more engines.

    Empty where there is none.
    """
    plans = simple_plans(instance, columns, totals) if columns.size else []
    if not plans:
        return Fleet(())
    found = plan_blocks(instance, columns, plans[0])
    fleet = make_fleet(instance, polish(instance, columns, found))
    if holds(instance, predict_misses(instance, fleet)):
        return fleet
    return with_more_engines(instance, fleet, 1.0)
