"""Fleets for each rate level of a forecast: found at each level, alone or side by side.

A fleet serves every lower rate too; what depends neither on the rate nor on a price is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from optimizer.fleets.build_plan import engine_pools
from optimizer.fleets.fleet import Fleet, classes_apart, fleet_gpus, paid_gpus, within_limits
from optimizer.loads.effort import Progress, silent
from optimizer.loads.instance import Instance, as_planned, at_volume
from optimizer.plans.records import QUICK_CANDIDATES, ROUNDING, EnginePool, unpriced
from optimizer.search.bound import possible_instance
from optimizer.search.mixtures import of_class, or_mixed
from optimizer.search.search import Engines, FleetSearch, cheapest_held, engines_of, is_refuted, priced, without_prices
from optimizer.search.settings import make_settings
from optimizer.verification.bench import fleet_key
from search_spaces.problem import Problem

MOST_OPTIONS = 100
"""Most fleets kept per level, chosen from QUICK_CANDIDATES times as many of the cheapest."""


@dataclass(frozen=True, slots=True, eq=False)
class SizedFleet:
    """A fleet of one or two pools, and the instance at the rate that it is sized for; group: the requests it serves.

    All requests are group 0; where every SLO class must have pools of its own, each class is a group.
    """

    group: int
    instance: Instance
    fleet: Fleet

    @property
    def rate(self) -> float:
        """Arrivals that it is sized for [1/s]."""
        return float(self.instance.flows.rate.sum())

    @property
    def gpus(self) -> str:
        """Its GPUs in words, such as "4 H100 + 2 H200"."""
        offers, count = self.instance.problem.offers, fleet_gpus(self.instance, self.fleet).tolist()
        return " + ".join(f"{n} {offer.accelerator.name}" for offer, n in zip(offers, count, strict=True) if n)

    @property
    def pools(self) -> tuple[EnginePool, ...]:
        """Its pools, as every record of a fleet states them; what they cost depends on the contracts."""
        return unpriced(engine_pools(self.instance, self.fleet))

    @property
    def key(self) -> tuple[object, ...]:
        """A key that identifies it."""
        return self.group, self.rate, fleet_key(self.fleet)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve a rate level: the GPUs of each offer that are paid for, and the fleets that run side by side."""

    gpus: tuple[int, ...]
    fleets: tuple[SizedFleet, ...] = ()

    @property
    def pools(self) -> tuple[EnginePool, ...]:
        """Pools of all fleets of the option."""
        return tuple(pool for sized_fleet in self.fleets for pool in sized_fleet.pools)


@dataclass(frozen=True, slots=True)
class Levels:
    """Rates, ascending [1/s], and the fleets that can serve each; a fleet of a higher rate serves lower ones too.

    own: the fleets that were found at each rate, of which these ways are made.
    """

    rates: FloatArray
    options: tuple[tuple[Option, ...], ...]
    own: tuple[tuple[Option, ...], ...] = ()

    @property
    def most(self) -> IntArray:
        """GPUs of each offer that any option of a level takes, (levels, offers)."""
        return np.array([np.max([option.gpus for option in options], axis=0) for options in self.options])

    def level_of(self, rates: FloatArray) -> IntArray:
        """Number of the lowest level that serves each rate."""
        return np.searchsorted(self.rates * (1.0 + ROUNDING), rates).astype(np.int64)

    def excess(self, rates: FloatArray, weight: FloatArray) -> float:
        """By how much the levels that serve these rates are above them, Σ w u(r) / Σ w r − 1 [1]."""
        return float(self.rates[self.level_of(rates)] @ weight / (rates @ weight)) - 1.0


MOST_RATES = 1000
"""Most rates among which levels are chosen; if there are more, neighbors count as the highest of them."""


def level_rates(rates: FloatArray, count: int, weight: FloatArray | None = None) -> FloatArray:
    """At most `count` of the given rates, such that the next higher of them exceed the rates least [1/s].

    Levels u_1 < … < u_k minimize Σ_r w_r (u(r) − r), u(r) the lowest level that serves r, w its weight (None: 1).
    Dynamic programming over the sorted rates: C_m(j) = min_i<j C_m−1(i) + u_j × weight from i to j is the least sum of
    levels over the rates up to u_j with m levels.

    >>> level_rates(np.array([1.0, 3.0, 3.0]), 4).tolist(), level_rates(np.array([1.0, 3.9, 4.0, 9.0]), 3).tolist()
    ([1.0, 3.0], [1.0, 4.0, 9.0])
    """
    distinct = np.unique(rates[rates > 0.0])
    level = distinct[:: -max(1, -(-distinct.size // MOST_RATES))][::-1] if distinct.size > count else distinct
    if level.size <= count:
        return level
    until = np.cumsum(np.bincount(np.searchsorted(level, rates), weight, level.size))
    cost, between = level * until, np.tril(until[:, None] - until, -1)
    below: list[IntArray] = []
    for _ in range(count - 1):
        total = np.where(between > 0.0, cost + level[:, None] * between, np.inf)
        below.append(total.argmin(axis=1))
        cost = total.min(axis=1)
    places = [level.size - 1]
    for lower in reversed(below):
        places.append(int(lower[places[-1]]))
    return level[places[::-1]]


def make_levels(
    rates: FloatArray,
    fleets: Sequence[Sequence[Option]],
    prices: Sequence[Sequence[float]] | None = None,
    fits: Callable[[Option], bool] = lambda _option: True,
) -> Levels:
    """Levels from the fleets found at each rate.

    A fleet serves every lower rate too, and two fleets side by side serve the sum of their rates, for each gets a
    random part of the arrivals. One that needs as much of every type as another one is left out, and of very many the
    dearest. prices: sets of $/h of one GPU of each type by which they are ranked; None: all alike. fits: whether two
    fleets side by side are within the limits on a fleet.
    """
    usable = [
        _best([option for options in fleets[level:] for option in options], prices) for level in range(rates.size)
    ]
    for level in range(rates.size):
        pairs = (
            side_by_side(pair)
            for low in range(level)
            for pair in product(
                usable[low], usable[int(np.searchsorted(rates, (rates[level] - rates[low]) * (1.0 - ROUNDING)))]
            )
        )
        usable[level] = _best([*usable[level], *filter(fits, pairs)], prices)
    return Levels(rates, tuple(usable), tuple(map(tuple, fleets)))


def side_by_side(options: Sequence[Option]) -> Option:
    """Several options as one."""
    gpus = (sum(counts) for counts in zip(*(option.gpus for option in options), strict=True))
    return Option(tuple(gpus), tuple(sized_fleet for option in options for sized_fleet in option.fleets))


def _best(options: Sequence[Option], prices: Sequence[Sequence[float]] | None) -> tuple[Option, ...]:
    """Undominated options, the cheapest at some set of prices first; limited in number."""
    first = {option.gpus: option for option in reversed(options)}
    if not first:
        return ()
    gpus = np.array(list(first), dtype=np.float64)
    cost = gpus @ np.atleast_2d(np.ones(gpus.shape[1]) if prices is None else np.array(prices)).T
    dearness = (cost / np.maximum(cost.min(axis=0), 1e-12)).min(axis=1)
    order = np.lexsort((*gpus.T, dearness))[: QUICK_CANDIDATES * MOST_OPTIONS]
    gpu_rows = gpus[order]
    beaten = (gpu_rows[:, None, :] >= gpu_rows[None, :, :]).all(axis=2).sum(axis=1) > 1
    return tuple(first[tuple(row)] for row in gpu_rows[~beaten][:MOST_OPTIONS].astype(int).tolist())


def option_within_limits(problem: Problem, option: Option) -> bool:
    """Whether an option is within every limit of the problem; every pool of its fleets counts."""
    pools_fit = problem.constraints.fits(pool.role for sized_fleet in option.fleets for pool in sized_fleet.fleet.pools)
    return pools_fit and bool(within_limits(problem, np.array(option.gpus)))


def search_levels(
    problem: Problem,
    rates: FloatArray,
    prices: Sequence[Sequence[float]],
    progress: Progress = silent,
    misses: Sequence[SizedFleet] = (),
) -> Levels:
    """Search for the cheapest fleet at each rate, by formula: of all types together, and of one or two pools of each.

    Of so many for each SLO class where no pool may serve two. rates: ascending [1/s]; prices: sets of $/h of one GPU
    of each offer; the cheapest fleet at each set is found. misses: fleets that did not hold when simulated; neither do
    they at higher rates. Raises InputError where no engine can exist, or keep the SLOs even when idle.
    """
    markets = [market for usd in prices for market in _markets(problem, usd)]
    groups = [(instance, make_settings(instance)) for instance in _groups(problem)]
    fleets: list[list[Option]] = []
    for number, rate in enumerate(rates.tolist()):
        progress(f"fleets for {rate:.3g} req/s", 0.5 * number / rates.size)
        apart = []
        for group, (instance, settings) in enumerate(groups):
            search = FleetSearch.of(at_volume(instance, rate), settings)
            out = [
                engines_of(miss.instance, miss.fleet)
                for miss in misses
                if miss.group == group
                and miss.rate <= rate * miss.instance.problem.workload.request_rate * (1.0 + ROUNDING)
            ]
            cheapest = (_cheapest(group, search, market, out) for market in markets)
            apart.append({option.gpus: option for option in cheapest if option is not None}.values())
        together = [side_by_side(options) for options in product(*apart)]
        gpus = [paid_gpus(problem, np.array(option.gpus)).astype(int).tolist() for option in together]
        paid = (replace(option, gpus=tuple(row)) for option, row in zip(together, gpus, strict=True))
        fleets.append([option for option in paid if option_within_limits(problem, option)])
    return make_levels(rates, fleets, prices, lambda option: option_within_limits(problem, option))


def levels_without(
    levels: Levels, misses: Sequence[SizedFleet], problem: Problem, prices: Sequence[Sequence[float]]
) -> Levels | None:
    """The levels without the fleets that missed, and without rates that have no other; None if the highest has none."""
    keys = {miss.key for miss in misses}
    options = [
        [option for option in own if keys.isdisjoint(sized_fleet.key for sized_fleet in option.fleets)]
        for own in levels.own
    ]
    if not options[-1]:
        return None
    rates = levels.rates[[bool(row) for row in options]]
    return make_levels(rates, list(filter(None, options)), prices, lambda option: option_within_limits(problem, option))


def _markets(problem: Problem, prices: Sequence[float]) -> list[Problem]:
    """The problem with all offers at some prices, then with each alone; beside the GPUs that are owned, and without."""
    priced_offers = zip(problem.offers, prices, strict=True)
    offers = [replace(offer, usd_per_hour=usd, tier_usd_per_hour=0.0) for offer, usd in priced_offers]
    markets = [offers]
    if any(offer.owned for offer in offers):
        markets.append([replace(offer, owned=0) for offer in offers])
    alone = [
        [offer if offer is own else replace(offer, inventory=0) for offer in market]
        for market in markets
        for own in market
    ]
    return [replace(problem, offers=tuple(market)) for market in (*markets, *(alone if len(offers) > 1 else ()))]


def _groups(problem: Problem) -> list[Instance]:
    """The instance of each group of requests at 1 request/s in all."""
    free = without_prices(replace(problem, workload=replace(problem.workload, request_rate=1.0)))
    whole = possible_instance(free)
    classes = range(len(problem.slos)) if classes_apart(problem) else ()
    groups = [of_class(whole, k, Fleet(()), later=0) for k in classes] or [whole]
    return [as_planned(group) for group in groups]


def _cheapest(group: int, search: FleetSearch, market: Problem, known_misses: Sequence[Engines]) -> Option | None:
    """The cheapest fleet of a group on a market; of one that has all types a mixture too, unless that was refuted."""
    cheapest = cheapest_held(search.without(known_misses), market)
    if cheapest is None:
        return None
    fleet = search.fleet(cheapest[0])
    if all(offer.inventory != 0 for offer in market.offers):
        mixture = or_mixed(replace(search, instance=priced(search.instance, market)), fleet)
        is_miss = is_refuted(engines_of(search.instance, mixture), known_misses)
        fleet = fleet if is_miss or len(mixture.pools) == len(fleet.pools) else mixture
    sized_fleet = SizedFleet(group, search.instance, fleet)
    return Option(tuple(fleet_gpus(search.instance, fleet).tolist()), (sized_fleet,))
