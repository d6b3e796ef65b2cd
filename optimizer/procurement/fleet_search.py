"""The fleets at each rate of a forecast, from the highest down: what is known at one rate cuts the search at the next.

A fleet serves every lower rate too, so that its price is the ceiling there and its engines are enough; what neither
the rate nor a price changes is worked out once (`physics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets.bought import gpu_cost, paid_gpus
from optimizer.fleets.build_plan import engine_pools, fleet_gpus
from optimizer.fleets.fleet import Fleet
from optimizer.loads.diagnose import check_floors, check_shapes
from optimizer.loads.instance import at_volume, make_instance
from optimizer.search.limits import classes_apart
from optimizer.search.per_class import of_class
from optimizer.search.search import FleetSearch, cheapest_held
from optimizer.whatif.physics import physics_at
from optimizer.whatif.refuted import Remaining, refuted_with
from search_spaces.engines import load_engine_overhead
from search_spaces.problem import Billing, Constraints, Objective, Offer, Problem

from .fleet_levels import SAME, Levels, Option, Part, beside, make_levels, within_limits

FloatArray = NDArray[np.float64]
Progress = Callable[[str, float], None]
Stock = tuple[Offer, ...]
"""Offers of a problem at some prices, those that may not be used with an inventory of none."""


def search_levels(
    problem: Problem,
    rates: FloatArray,
    prices: Sequence[Sequence[float]],
    progress: Progress | None = None,
    refuted: Sequence[Part] = (),
) -> Levels:
    """Search for fleets of at most two pools at each rate, by formula: of all types together, and of each alone.

    Of so many for each SLO class where no pool may serve two. rates: ascending [1/s]; prices: sets of $/h of one GPU
    of each offer; the cheapest fleet at each set is found. refuted: fleets that did not hold when simulated; neither do
    they at higher rates. Raises InputError where no engine can exist, or keep the
    SLOs even when idle.
    """
    stocks = [stock for priced in prices for stock in _stocks(problem, priced)]
    parts = [_Known(number, ways, (None,) * len(stocks)) for number, ways in enumerate(_at_one(problem))]
    found: list[list[Option]] = []
    above = parts
    for number, rate in enumerate(rates[::-1].tolist()):
        if progress is not None:
            progress(f"fleets for {rate:.3g} req/s", 0.5 * number / rates.size)
        above = [_known(problem, stocks, part, rate, last, refuted) for part, last in zip(parts, above, strict=True)]
        if number == 0:
            parts = [part.only(known.used) for part, known in zip(parts, above, strict=True)]
            above = [known.only(known.used) for known in above]
        together = [_whole(problem, fleets) for fleets in product(*(known.fleets() for known in above))]
        found.append([fleet for fleet in together if within_limits(problem, fleet)])
    return make_levels(rates, found[::-1], prices, lambda fleet: within_limits(problem, fleet))


def _stocks(problem: Problem, prices: Sequence[float]) -> Iterator[Stock]:
    """All offers at some prices, then each alone."""
    offers = [replace(one, usd_per_hour=usd) for one, usd in zip(problem.offers, prices, strict=True)]
    yield tuple(offers)
    if len(offers) > 1:
        for kept in offers:
            yield tuple(one if one is kept else replace(one, inventory=0) for one in offers)


@dataclass(frozen=True, slots=True)
class _Known:
    """Requests that share pools, at one rate: what the evaluation says, and the cheapest fleet of each stock, if any.

    number: of these requests;
    ways: to split their latency limits between the stages; used: those that gave a fleet at the highest rate, and that
    are tried at lower ones.
    """

    number: int
    ways: tuple[FleetSearch, ...]
    cheapest: tuple[Option | None, ...]
    used: tuple[int, ...] = ()

    def fleets(self) -> list[Option]:
        """The fleets, each once."""
        return list({one.gpus: one for one in self.cheapest if one is not None}.values())

    def only(self, ways: Sequence[int]) -> _Known:
        """The same with some of the ways; with all where none is named."""
        return replace(self, ways=tuple(self.ways[number] for number in ways)) if ways else self


def _at_one(problem: Problem) -> Iterator[tuple[FleetSearch, ...]]:
    """The ways at 1 request/s: of all requests together, or of each SLO class where they have pools of their own."""
    free = replace(
        problem,
        workload=replace(problem.workload, request_rate=1.0),
        offers=tuple(replace(one, usd_per_hour=1.0, inventory=None, billing=Billing.GPU) for one in problem.offers),
        objective=Objective(),
        constraints=Constraints(
            spare_replicas=problem.constraints.spare_replicas, balancing=problem.constraints.balancing
        ),
    )
    whole = make_instance(free, load_engine_overhead(free.engine, free.engine_changes))
    check_shapes(free, whole.enumeration)
    check_floors(whole)
    classes = range(len(problem.slos)) if classes_apart(problem) else ()
    for instance in [of_class(whole, k, Fleet(()), later=0) for k in classes] or [whole]:
        ways = physics_at(instance).ways
        yield tuple(FleetSearch.of(way.instance, way.settings) for way in ways)


def _known(  # noqa: PLR0917
    problem: Problem, stocks: Sequence[Stock], part: _Known, rate: float, above: _Known, refuted: Sequence[Part]
) -> _Known:
    """What is known at a rate [1/s]; part: at 1 request/s; above: at the next higher rate."""
    ways = []
    for one, last in zip(part.ways, above.ways, strict=True):
        here = at_volume(one.instance, rate)
        most = float(here.flows.rate.sum()) * (1.0 + SAME)
        out = frozenset(
            refuted_with(lost.engines) for lost in refuted if lost.number == part.number and lost.rate <= most
        )
        way = Remaining.after(FleetSearch.of(here, one.settings), out)
        enough = {setting: high for setting, (_, high) in last.known.items() if high is not None}
        way.known.update({setting: (int(way.least[setting]) - 1, high) for setting, high in enough.items()})
        ways.append(way)
    fleets = zip(stocks, above.cheapest, strict=True)
    found = [_cheapest(part.number, ways, replace(problem, offers=stock), fleet) for stock, fleet in fleets]
    used = {way for _, way in found if way is not None}
    return _Known(part.number, tuple(ways), tuple(fleet for fleet, _ in found), tuple(sorted(used)))


def _cheapest(
    number: int, ways: Sequence[FleetSearch], problem: Problem, above: Option | None
) -> tuple[Option | None, int | None]:
    """The cheapest fleet and its way; the one of the next higher rate, and no way, where none costs less."""
    best, used = above, None
    ceiling = np.inf if above is None else float(gpu_cost(problem, np.array(above.gpus)))
    for at, way in enumerate(ways):
        held = cheapest_held(way, problem, ceiling)
        if held is not None:
            best, ceiling, used = _option(number, way, way.fleet(held[0])), held[1], at
    return best, used


def _option(number: int, way: FleetSearch, fleet: Fleet) -> Option:
    gpus = tuple(fleet_gpus(way.instance, fleet).tolist())
    pools = tuple(engine_pools(way.instance, fleet))
    return Option(gpus, pools, (Part(number, way, fleet, pools),))


def _whole(problem: Problem, fleets: Sequence[Option]) -> Option:
    """Fleets side by side, with the GPUs that are paid for: whole nodes where they are billed."""
    together = fleets[0]
    for fleet in fleets[1:]:
        together = beside(together, fleet)
    return replace(together, gpus=tuple(paid_gpus(problem, np.array(together.gpus)).astype(int).tolist()))
