"""Buying over time: which GPUs to reserve or buy and when, what to rent by the hour, and what a wrong forecast costs.

n_ks whole: GPUs taken under contract k in month s;  u_mlk >= 0: GPUs in use in month m at level l of the rate;
y_mlo 0 or 1: fleet o serves then
min  sum commitment_ks n_ks + sum hours_ml running_k u_mlk
sum_o y_mlo = 1;  sum_{k of t} u_mlk >= sum_o gpus_ot y_mlo;  u_mlk <= sum_{s in force} n_ks

Spot GPUs need the least headroom of any number that a level uses here, so that the bound is one. What is reported is
the exact cost of the commitments found (`dispatch`); the gap lies between the two. The bound knows no fleets but those
of the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InfeasibleError
from costmodel.units import KILO
from optimizer.solver.program import Builder, Program, solve
from search_spaces.buying_terms import HOURS_PER_DAY, HOURS_PER_MONTH, Contract, Terms, Tier
from search_spaces.problem import Problem

from .dispatch import Dispatcher, Use
from .fleet_levels import Levels, Option, level_rates, search_levels
from .spot_headroom import gpus_to_rent

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Progress = Callable[[str, float], None]

GAP = 1e-3
"""Relative gap at which the choice of commitments may stop [1]."""
TIME_LIMIT = 30.0
"""Of one choice of commitments [s]."""


@dataclass(frozen=True, slots=True)
class Commitment:
    """GPUs taken under a contract; month: of the decision; first: of the use."""

    contract: Contract
    month: int
    count: int

    @property
    def first(self) -> int:
        """First month in which they serve."""
        return self.month + self.contract.delay

    def in_force(self, month: int) -> bool:
        """Whether they serve in a month."""
        term = self.contract.term
        return self.first <= month and (term is None or month < self.first + term)


@dataclass(frozen=True, slots=True)
class Hours:
    """One level of the rate in one month: hours at it [h], the fleet, and what it uses of each offer."""

    month: int
    level: int
    hours: float
    option: Option
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Bill:
    """What one path of the demand costs with given commitments [$]; committed: of that for reserving, buying, hosting.

    by_month (months, contracts): each commitment in equal parts over the months in which it serves.
    """

    total: float
    committed: float
    hours: tuple[Hours, ...]
    by_month: FloatArray


@dataclass(frozen=True, slots=True)
class Wrong:
    """One end of the forecast: its cost with the commitments of the expected one, and with the best for itself [$]."""

    growth: float
    cost: float
    best: float

    @property
    def regret(self) -> float:
        """What the wrong forecast costs [$]."""
        return self.cost - self.best


@dataclass(frozen=True, slots=True)
class Bought:
    """The answer: commitments, the bill of the expected demand with its bound and gap, and what they compare to [$].

    on_demand: the same demand with everything rented on demand, by the hour; fixed: and at the month's peak all day.
    """

    problem: Problem
    terms: Terms
    levels: Levels
    commitments: tuple[Commitment, ...]
    bill: Bill
    bound: float
    on_demand: float
    fixed: float
    low: Wrong
    high: Wrong

    @property
    def gap(self) -> float:
        """Share of the total that other commitments could save at most [1]."""
        return 1.0 - self.bound / self.bill.total if self.bill.total > 0.0 else 0.0


def buy(problem: Problem, terms: Terms, progress: Progress | None = None) -> Bought:
    """Choose what to reserve and buy for the expected demand, and what that costs if the demand comes otherwise.

    Raises InfeasibleError when no fleet serves the highest rate of the forecast.
    """
    growths = terms.forecast.growth
    every = np.concatenate([terms.forecast.rates(growth).ravel() for growth in growths])
    levels = search_levels(problem, level_rates(every, terms.forecast.levels), _prices(problem, terms), progress)
    if not all(levels.options):
        raise InfeasibleError(f"no fleet meets the SLOs at {every.max():.4g}/s, the highest rate of the forecast")
    return buy_at(problem, terms, levels, progress)


def buy_at(problem: Problem, terms: Terms, levels: Levels, progress: Progress | None = None) -> Bought:
    """The same with the fleets of every level given."""
    dispatcher = Dispatcher(terms.contracts, levels)
    paths = [path_of(terms, levels, growth) for growth in terms.forecast.growth]
    plans: list[tuple[tuple[Commitment, ...], float]] = []
    for number, path in enumerate(paths):
        if progress is not None:
            progress("choosing commitments", 0.7 + 0.1 * number)
        same = next((k for k in range(number) if np.array_equal(paths[k], path)), None)
        plans.append(plans[same] if same is not None else choose(terms, levels, path))
    choices: list[tuple[Commitment, ...]] = [(), *(plan for plan, _ in plans)]
    bills = [[bill_of(terms, dispatcher, path, choice) for choice in choices] for path in paths]
    chosen = int(np.argmin([bill.total for bill in bills[1]]))
    low, _, high = [
        Wrong(growth, row[chosen].total, min(bill.total for bill in row))
        for growth, row in zip(terms.forecast.growth, bills, strict=True)
    ]
    only = replace(terms, contracts=tuple(one for one in terms.contracts if one.tier is Tier.ON_DEMAND))
    sunk = _owned_hosting(terms)
    by_hour = bill_of(only, Dispatcher(only.contracts, levels), paths[1], ())
    peak = bill_of(only, Dispatcher(only.contracts, levels), _at_peak(paths[1]), ())
    bill = bills[1][chosen]
    return Bought(
        problem=problem,
        terms=terms,
        levels=levels,
        commitments=choices[chosen],
        bill=bill,
        bound=min(plans[1][1], bill.total),
        on_demand=by_hour.total + sunk,
        fixed=peak.total + sunk,
        low=low,
        high=high,
    )


def _prices(problem: Problem, terms: Terms) -> list[list[float]]:
    """Price sets to search with [$/h]: on demand, and each offer at its cheapest contract held all the time."""
    by_offer = [[one for one in terms.contracts if one.offer == index] for index in range(len(problem.offers))]
    rent = [next(one.running for one in mine if one.tier is Tier.ON_DEMAND) for mine in by_offer]
    least = [max(min(hourly_price(one, terms.forecast.months) for one in mine), 1e-4) for mine in by_offer]
    return [rent] if np.allclose(np.array(least) / least[0], np.array(rent) / rent[0]) else [rent, least]


def hourly_price(contract: Contract, months: int) -> float:
    """What one GPU in use all the time costs under a contract, held from the first month on [$/h]."""
    if contract.rented:
        spot = contract.spot
        return contract.running / (1.0 if spot is None else spot.availability)
    held = contract.term or max(months - contract.delay, 1)
    return contract.running + commitment_cost(contract, 0, max(months, held + contract.delay)) / held / HOURS_PER_MONTH


def commitment_cost(contract: Contract, month: int, months: int) -> float:
    """What one GPU taken in a month costs up to the horizon, used or not [$].

    Reserved: the whole term, also beyond the horizon. Bought: hosting, and the value that it loses up to the horizon.
    """
    left = months - month - contract.delay
    if contract.term is not None:
        return contract.once + contract.monthly * contract.term
    lost = 1.0 if contract.life is None else min(left / contract.life, 1.0)
    return contract.once * lost + contract.monthly * left


def path_of(terms: Terms, levels: Levels, growth: float) -> FloatArray:
    """Hours at each level in each month when the rate grows so fast per month [1], (months, levels) [h]."""
    level = levels.level_of(terms.forecast.rates(growth))
    hours = np.zeros((terms.forecast.months, levels.rates.size))
    np.add.at(hours, (np.arange(terms.forecast.months)[:, None], level), HOURS_PER_MONTH / HOURS_PER_DAY)
    return hours


def _at_peak(path: FloatArray) -> FloatArray:
    """All hours of each month at its highest level."""
    highest = path.shape[1] - 1 - np.argmax(path[:, ::-1] > 0.0, axis=1)
    return np.asarray(np.where(np.arange(path.shape[1]) == highest[:, None], path.sum(axis=1, keepdims=True), 0.0))


def energy(terms: Terms, bill: Bill) -> float:
    """Electricity of all GPUs in use, rented ones too, with the overhead of their site [kWh]."""
    return sum(
        one.hours * sum(use.used.values()) * watts / KILO
        for one in bill.hours
        for use, watts in zip(one.uses, terms.draw, strict=True)
    )


def _owned_hosting(terms: Terms) -> float:
    """Hosting of the GPUs that are there already, used or not [$]."""
    return sum(one.held * one.monthly * terms.forecast.months for one in terms.contracts)


def choose(terms: Terms, levels: Levels, path: FloatArray) -> tuple[tuple[Commitment, ...], float]:
    """Commitments by the programme above, and the least that any would cost [$]."""
    starts = _starts(terms)
    program, blocks = buying_program(terms, levels, path, starts)
    solution = solve(program, time_limit=TIME_LIMIT, gap=GAP)
    bound = max(solution.bound, 0.0) + _owned_hosting(terms)
    if not solution.x.size:
        return (), bound
    counts = np.round(solution.x[blocks]).astype(int).tolist()
    taken = (
        Commitment(contract, month, count) for (contract, month), count in zip(starts, counts, strict=True) if count
    )
    return tuple(taken), bound


def _starts(terms: Terms) -> list[tuple[Contract, int]]:
    """Every contract to decide on with every month in which that can be done."""
    months = terms.forecast.months
    return [
        (contract, month)
        for contract in terms.contracts
        if contract.committed
        for month in range(0, months - contract.delay, terms.decide_every)
    ]


def buying_program(
    terms: Terms, levels: Levels, path: FloatArray, starts: Sequence[tuple[Contract, int]]
) -> tuple[Program, IntArray]:
    """Write the programme of the module's docstring; returns it and the variables of the commitments."""
    months, builder = terms.forecast.months, Builder()
    cost = [commitment_cost(contract, month, months) for contract, month in starts]
    names = [f"n{terms.contracts.index(contract)}_{month}" for contract, month in starts]
    taken = builder.variables(names, cost, whole=True)
    running = [_least_running(terms, options) for options in levels.options]
    for month, level in zip(*np.nonzero(path), strict=True):
        slot, hours = f"{month}_{level}", float(path[month, level])
        options = levels.options[level]
        shares = builder.variables([f"y{slot}_{o}" for o in range(len(options))], 0.0, 1.0, whole=True)
        builder.entries(builder.rows([f"serve{slot}"], 1.0, 1.0), shares, 1.0)
        upper = [np.inf if one.rented or one.committed else float(one.held) for one in terms.contracts]
        used = builder.variables([f"u{slot}_{k}" for k in range(len(upper))], hours * running[level], upper)
        need = builder.rows([f"need{slot}_{t}" for t in range(len(terms.draw))], 0.0, np.inf)
        builder.entries(need[[one.offer for one in terms.contracts]], used, 1.0)
        gpus = np.array([option.gpus for option in options], dtype=np.float64).T
        builder.entries(need[:, None], shares[None, :], -gpus)
        for k, contract in enumerate(terms.contracts):
            if not contract.committed:
                continue
            row = builder.rows([f"held{slot}_{k}"], -np.inf, 0.0)
            builder.entries(row, used[k], 1.0)
            here = [i for i, (one, at) in enumerate(starts) if one == contract and _serves(one, at, int(month))]
            if here:
                builder.entries(np.repeat(row, len(here)), taken[here], -1.0)
    return builder.build(), taken


def _serves(contract: Contract, start: int, month: int) -> bool:
    return Commitment(contract, start, 1).in_force(month)


def _least_running(terms: Terms, options: Sequence[Option]) -> FloatArray:
    """Running cost of every contract [$/h]; of spot with the least headroom that any number these fleets use needs."""
    cost = np.array([one.running for one in terms.contracts])
    for k, contract in enumerate(terms.contracts):
        most = max(option.gpus[contract.offer] for option in options)
        if contract.spot is not None and most:
            rented = gpus_to_rent(most, contract.spot.availability, contract.spot.target, contract.spot.instance)
            cost[k] *= float((rented[1:] / np.arange(1, most + 1)).min())
    return cost


def bill_of(terms: Terms, dispatcher: Dispatcher, path: FloatArray, commitments: Sequence[Commitment]) -> Bill:
    """The exact cost of a demand with given commitments."""
    months = terms.forecast.months
    by_month = np.zeros((months, len(terms.contracts)))
    committed = 0.0
    for one in commitments:
        cost = one.count * commitment_cost(one.contract, one.month, months)
        serves = [month for month in range(months) if one.in_force(month)]
        by_month[serves, terms.contracts.index(one.contract)] += cost / len(serves)
        committed += cost
    for k, contract in enumerate(terms.contracts):
        by_month[:, k] += contract.held * contract.monthly
    committed += _owned_hosting(terms)
    hours: list[Hours] = []
    for month in range(months):
        held = {one: one.held for one in terms.contracts if one.held}
        for one in commitments:
            if one.in_force(month):
                held[one.contract] = held.get(one.contract, 0) + one.count
        for level in np.flatnonzero(path[month]).tolist():
            option, _, uses = dispatcher.cheapest(level, held)
            hours.append(Hours(month, level, float(path[month, level]), option, uses))
            for k, contract in enumerate(terms.contracts):
                by_month[month, k] += hours[-1].hours * contract.running * uses[contract.offer].paid.get(contract, 0)
    return Bill(float(by_month.sum()), committed, tuple(hours), by_month)
