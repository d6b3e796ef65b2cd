"""Buying over time: which GPUs to reserve or buy now, which later and what to rent, when the growth is uncertain.

The choice is that of `buying_program`; what is reported is its exact cost, hour by hour (`bill`); the gap lies between
the two. The bound knows no fleets but those of the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InfeasibleError
from optimizer.verification.verify import ROUNDS
from search_spaces.contracts import Contract, Terms, Tier
from search_spaces.problem import Problem

from .bill import Bill, at_peak, bill_of, energy, owned_hosting, path_of
from .buying_looks import LookingAt, Looks, parts_of
from .buying_program import Choice, choose
from .commitments import Commitment, hourly_price
from .dispatch import Dispatcher
from .fleet_levels import Levels, level_rates
from .fleet_search import search_levels

FloatArray = NDArray[np.float64]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One path of the demand: what is committed to after the first month, its bill, and with hindsight the least [$].

    all_rented: everything on demand, by the hour [$].
    """

    later: tuple[Commitment, ...]
    bill: Bill
    best: float
    all_rented: float

    @property
    def regret(self) -> float:
        """What not knowing the path costs on it [$]."""
        return self.bill.total - self.best


@dataclass(frozen=True, slots=True)
class Bought:
    """The answer: commitments of the first month, and an outcome for every path of the forecast.

    bound: least expected cost of any choice; for_expected: of the first month if the expected path were sure, and
    for_expected_cost: what they cost on average; fixed: the expected path on demand at each month's peak all day [$];
    looks: which of the fleets that it counts on were simulated.
    """

    problem: Problem
    terms: Terms
    levels: Levels
    now: tuple[Commitment, ...]
    outcomes: tuple[Outcome, ...]
    bound: float
    for_expected: tuple[Commitment, ...]
    for_expected_cost: float
    fixed: float
    looks: Looks = field(default_factory=Looks)

    @property
    def total(self) -> float:
        """Expected cost over the horizon [$]."""
        return self._mean([one.bill.total for one in self.outcomes])

    @property
    def on_demand(self) -> float:
        """Expected cost of renting everything on demand, by the hour [$]."""
        return self._mean([one.all_rented for one in self.outcomes])

    @property
    def hindsight(self) -> float:
        """Expected cost if the path were known before the first month [$]."""
        return self._mean([one.best for one in self.outcomes])

    @property
    def energy(self) -> float:
        """Expected electricity of all GPUs in use [kWh]."""
        return self._mean([energy(self.terms, one.bill) for one in self.outcomes])

    @property
    def gap(self) -> float:
        """Share of the expected cost that other commitments could save at most [1]."""
        return 1.0 - self.bound / self.total if self.total > 0.0 else 0.0

    @property
    def expected(self) -> Outcome:
        """The outcome of the expected path."""
        return self.outcomes[self.terms.forecast.expected]

    def _mean(self, values: Sequence[float]) -> float:
        return float(self.terms.forecast.probabilities @ np.array(values))


def buy(problem: Problem, terms: Terms, progress: Progress | None = None, looks: int = 0) -> Bought:
    """Choose what to reserve and buy for a forecast; what is owned is a contract of the terms here, and no offer.

    looks: fleets that are simulated at most, of those that serve some hour of some path. Where one misses, fleets and
    commitments are chosen again without it, ROUNDS times at most; what still misses then is said (`Bought.looks`).
    Raises InfeasibleError when no fleet serves the highest rate of the forecast.
    """
    problem = replace(problem, offers=tuple(one for one in problem.offers if not one.owned))
    every = np.concatenate([terms.forecast.rates(path.growth).ravel() for path in terms.forecast.paths])
    rates, prices = level_rates(every, terms.forecast.levels), _prices(problem, terms)
    desk = LookingAt(looks, {})
    for _ in range(1 + ROUNDS):
        levels = search_levels(problem, rates, prices, progress, desk.refuted)
        if not all(levels.options):
            raise InfeasibleError(_no_fleet(float(every.max()), desk))
        found = buy_at(problem, terms, levels, progress)
        seen = desk.look(parts_of([one.bill for one in found.outcomes]), progress)
        if not seen.missed:
            break
    return replace(found, looks=seen)


def _no_fleet(rate: float, desk: LookingAt) -> str:
    said = f"no fleet meets the SLOs at {rate:.4g}/s, the highest rate of the forecast"
    missed = [one for one in desk.seen.values() if one.fault]
    if not missed:
        return said
    return f"{said}: a fleet of {missed[-1].part.gpus} at {missed[-1].part.rate:.4g}/s {missed[-1].fault}"


def buy_at(problem: Problem, terms: Terms, levels: Levels, progress: Progress | None = None) -> Bought:
    """The same with the fleets of every level given."""
    desk = _Desk(terms, levels, Dispatcher(terms.contracts, levels))
    paths = [path_of(terms, levels, path.growth) for path in terms.forecast.paths]
    chances, middle = terms.forecast.probabilities, terms.forecast.expected
    told = progress or (lambda _what, _share: None)
    told("choosing commitments", 0.5)
    joint = desk.plan(paths, chances)
    alone = [joint if len(paths) == 1 else desk.plan([path], np.ones(1)) for path in paths]
    told("the same for the expected growth", 0.65)
    mean = joint if alone[middle].now == joint.now else desk.plan(paths, chances, alone[middle].now)
    nothing = Choice((), ((),) * len(paths), 0.0)
    plans = [joint, mean, nothing]
    costs = [desk.cost(paths, chances, plan) for plan in plans]
    best = plans[int(np.argmin(costs))]
    only = tuple(one for one in terms.contracts if one.tier is Tier.ON_DEMAND)
    renter = _Desk(replace(terms, contracts=only), levels, Dispatcher(only, levels))
    sunk = owned_hosting(terms)
    outcomes = []
    for number, path in enumerate(paths):
        bill = desk.bill(path, best.on(number))
        hindsight = min(bill.total, *(desk.bill(path, plan.on(0)).total for plan in (alone[number], nothing)))
        outcomes.append(Outcome(best.later[number], bill, hindsight, renter.bill(path, ()).total + sunk))
    return Bought(
        problem=problem,
        terms=terms,
        levels=levels,
        now=best.now,
        outcomes=tuple(outcomes),
        bound=min(joint.bound + sunk, *costs),
        for_expected=mean.now,
        for_expected_cost=costs[1],
        fixed=renter.bill(at_peak(paths[middle]), ()).total + sunk,
    )


@dataclass(frozen=True, slots=True)
class _Desk:
    """Terms and fleets, and what is computed from them again and again."""

    terms: Terms
    levels: Levels
    dispatcher: Dispatcher

    def bill(self, path: FloatArray, commitments: Sequence[Commitment]) -> Bill:
        return bill_of(self.terms, self.dispatcher, path, commitments)

    def cost(self, paths: Sequence[FloatArray], chances: FloatArray, choice: Choice) -> float:
        """Expected cost [$]."""
        return float(chances @ np.array([self.bill(path, choice.on(k)).total for k, path in enumerate(paths)]))

    def plan(self, paths: Sequence[FloatArray], chances: FloatArray, now: Sequence[Commitment] | None = None) -> Choice:
        """The programme's choice; `now`, if given, is settled.

        The programme thinks spot dearer in no number than it is, and may lean on it too much, so that it is asked
        without spot too, and the exact cost decides.
        """
        firm = tuple(one for one in self.terms.contracts if one.spot is None)
        asked = [self.terms] if len(firm) == len(self.terms.contracts) else [self.terms, self._only(firm)]
        found = [choose(terms, self.levels, paths, chances, now) for terms in asked]
        lean = [self._lean(paths, chances, one, settled=now is not None) for one in found]
        best = min(lean, key=lambda one: self.cost(paths, chances, one))
        return replace(best, bound=found[0].bound)

    def _only(self, contracts: tuple[Contract, ...]) -> Terms:
        return replace(self.terms, contracts=contracts)

    def _lean(self, paths: Sequence[FloatArray], chances: FloatArray, found: Choice, *, settled: bool) -> Choice:
        """The choice less the GPUs without which it costs no more."""
        now = found.now
        if not settled:
            now = _without_idle(now, lambda kept: self.cost(paths, chances, replace(found, now=kept)))
        return replace(found, now=now, later=tuple(map(self._lean_later, paths, [now] * len(paths), found.later)))

    def _lean_later(
        self, path: FloatArray, now: tuple[Commitment, ...], later: tuple[Commitment, ...]
    ) -> tuple[Commitment, ...]:
        return _without_idle(later, lambda kept: self.bill(path, (*now, *kept)).total)


def _without_idle(
    taken: tuple[Commitment, ...], cost: Callable[[tuple[Commitment, ...]], float]
) -> tuple[Commitment, ...]:
    """The commitments less each GPU without which the cost is no higher: the search may stop a hair above the best."""
    kept, least = list(taken), cost(taken)
    for index in range(len(kept)):
        while kept[index].count:
            fewer = [*kept]
            fewer[index] = replace(kept[index], count=kept[index].count - 1)
            price = cost(tuple(one for one in fewer if one.count))
            if price > least:
                break
            kept, least = fewer, price
    return tuple(one for one in kept if one.count)


def _prices(problem: Problem, terms: Terms) -> list[list[float]]:
    """Price sets to search with [$/h]: on demand, and each offer at its cheapest contract held all the time."""
    by_offer = [[one for one in terms.contracts if one.offer == index] for index in range(len(problem.offers))]
    rent = [next(one.running for one in mine if one.tier is Tier.ON_DEMAND) for mine in by_offer]
    least = [max(min(hourly_price(one, terms.forecast.months) for one in mine), 1e-4) for mine in by_offer]
    return [rent] if np.allclose(np.array(least) / least[0], np.array(rent) / rent[0]) else [rent, least]
