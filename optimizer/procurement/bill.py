"""What serving costs under contracts: GPUs committed to ahead, and every hour the cheapest way to have the rest.

Owned, reserved and bought GPUs serve first, by their running cost; what they lack is rented, spot with its headroom or
on demand. This is exact, in whole GPUs and whole fleets, where the programme that chooses commitments is a relaxation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.contracts import HOURS_PER_MONTH, Contract, Spot, Terms

from .fleet_levels import Levels, Option

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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


def value_lost(contract: Contract, month: int, months: int) -> float:
    """Value that one GPU bought in a month loses up to the horizon [$]."""
    months_left = months - month - contract.delay
    return contract.once if contract.life is None else contract.charge * min(months_left, contract.life)


def fees(contract: Contract, month: int, months: int) -> float:
    """Hosting of one GPU up to the horizon, or what reserving it costs for the whole term, also beyond it [$]."""
    months_left = months - month - contract.delay
    return contract.monthly * (months_left if contract.term is None else contract.term)


def commitment_cost(contract: Contract, month: int, months: int) -> float:
    """What one GPU taken in a month costs up to the horizon, used or not [$]."""
    return value_lost(contract, month, months) + fees(contract, month, months)


def hourly_price(contract: Contract, months: int) -> float:
    """What one GPU in use all the time costs under a contract, held from the first month on [$/h]."""
    if contract.rented:
        spot = contract.spot
        return contract.running / (1.0 if spot is None else spot.availability)
    held = contract.term or max(months - contract.delay, 1)
    return contract.running + commitment_cost(contract, 0, max(months, held + contract.delay)) / held / HOURS_PER_MONTH


def least_use(contract: Contract, on_demand: float, months: int) -> float:
    """Share of the hours from which one GPU under a contract costs less than on demand [1]; infinite: never.

    u (p - running) = fixed, fixed: its price in use all the time less `running`; p: `on_demand` [$/h].

    >>> from search_spaces.contracts import Tier
    >>> least_use(Contract(0, Tier.RESERVED_1, monthly=730.0, term=12), 2.0, 24)
    0.5
    """
    fixed, saved = hourly_price(contract, months) - contract.running, on_demand - contract.running
    return fixed / saved if saved > 0.0 else math.inf


def payback_months(contract: Contract, on_demand: float, use: float = 1.0) -> float:
    """Months after which a GPU bought has saved its whole price against renting [months]; infinite: never.

    C = s (1 - (1 + r)^-m) / r, and C = s m where r is 0; s = u (p - running) 730 h - monthly: saved in a month.
    C: its price [$]; r: interest [1/month]; u: share of the hours in use; p: `on_demand` [$/h].

    >>> from search_spaces.contracts import Tier
    >>> payback_months(Contract(0, Tier.PURCHASE, once=14_600.0), 2.0)
    10.0
    """
    saved = use * (on_demand - contract.running) * HOURS_PER_MONTH - contract.monthly
    if saved <= contract.once * contract.interest:
        return math.inf
    if contract.interest == 0.0:
        return contract.once / saved
    return -math.log1p(-contract.once * contract.interest / saved) / math.log1p(contract.interest)


def gpus_to_rent(most: int, spot: Spot) -> IntArray:
    """GPUs to rent so that m of them are there with the target's probability, for every m = 0 .. most.

    The least whole instances n with P(Bin(n, availability) >= those of m) >= target: each is there independently of
    the others. With 90 %, two run so that one is there in 99 % of the time: 1 - 0.1^2 = 0.99.

    >>> gpus_to_rent(1, Spot(0.9, 1, 0.98)).tolist(), gpus_to_rent(3, Spot(1.0, 2, 0.98)).tolist()
    ([0, 2], [0, 2, 2, 4])
    """
    whole = -(-np.arange(most + 1) // spot.instance)
    needed = [0]
    there = np.zeros(int(whole[-1]) + 2)  # chance of exactly 0, 1, .. instances; the last cell holds all above
    there[0] = 1.0
    running = 0
    while len(needed) <= whole[-1]:
        running += 1
        grown = (1.0 - spot.availability) * there
        grown[1:] += spot.availability * there[:-1]
        grown[-1] += spot.availability * there[-1]
        there = grown
        at_least = there[::-1].cumsum()[::-1]
        while len(needed) <= whole[-1] and at_least[len(needed)] >= spot.target:
            needed.append(running)
    return np.array(needed, dtype=np.int64)[whole] * spot.instance


def rental(contracts: Sequence[Contract], offer: int, most: int) -> tuple[FloatArray, IntArray]:
    """The cheapest rent of every number of GPUs of an offer up to `most`, on demand and spot.

    cost(m) = min_j spot_price x rented(j) + price (m - j)
    Returns it, (most + 1,) [$/h], and the GPUs that are paid for, (most + 1, contracts).
    """
    count = np.arange(most + 1)
    price, firm = next(
        (contract.running, k)
        for k, contract in enumerate(contracts)
        if contract.offer == offer and contract.rented and contract.spot is None
    )
    cost, paid = np.asarray(price * count, np.float64), np.zeros((most + 1, len(contracts)), np.int64)
    paid[:, firm] = count
    for k, contract in enumerate(contracts):
        if contract.offer == offer and contract.spot is not None:
            rented = gpus_to_rent(most, contract.spot)
            saved = contract.running * rented - cost
            best = np.minimum.accumulate(saved)
            spot = np.maximum.accumulate(np.where(saved <= best, count, 0))
            cost, paid[:, firm], paid[:, k] = cost + best, count - spot, rented[spot]
    return cost, paid


@dataclass(frozen=True, slots=True)
class Hours:
    """One level of the rate in one month: hours at it [h], and the option that serves."""

    month: int
    level: int
    hours: float
    option: Option


@dataclass(frozen=True, slots=True)
class Bill:
    """What a path costs [$], each share of it (months, contracts).

    value: lost by GPUs bought, fees: hosting and reservations, both in equal shares over the months of service;
    by_hour: rent of rented GPUs, electricity of others.
    """

    value: FloatArray
    fees: FloatArray
    by_hour: FloatArray
    hours: tuple[Hours, ...]

    @property
    def by_month(self) -> FloatArray:
        """All together, (months, contracts) [$]."""
        return np.asarray(self.value + self.fees + self.by_hour)

    @property
    def total(self) -> float:
        """All of it [$]."""
        return float(self.by_month.sum())


class Dispatcher:
    """Chooses options and contracts hour by hour; remembers what a number of GPUs costs beside given capacities."""

    def __init__(self, terms: Terms, levels: Levels) -> None:
        self.terms, self.levels = terms, levels
        self._running = np.array([contract.running for contract in terms.contracts])
        self._rentals = [rental(terms.contracts, k, int(most)) for k, most in enumerate(levels.most.max(axis=0))]
        order = np.argsort(self._running, kind="stable")
        offers = np.array([-1 if contract.rented else contract.offer for contract in terms.contracts])[order]
        self._own = [order[offers == offer] for offer in range(len(self._rentals))]
        self._uses: dict[tuple[int, int, tuple[int, ...]], tuple[float, IntArray]] = {}

    def bill(self, path: FloatArray, commitments: Sequence[Commitment]) -> Bill:
        """The exact cost of a path, hours at each level in each month, (months, levels) [h]."""
        contracts, months = self.terms.contracts, len(path)
        value, fee, by_hour = np.zeros((3, months, len(contracts)))
        capacity = np.tile([contract.held for contract in contracts], (months, 1))
        fee += [contract.held * contract.monthly for contract in contracts]
        for commitment in commitments:
            contract, count = commitment.contract, commitment.count
            k, serves = contracts.index(contract), [month for month in range(months) if commitment.in_force(month)]
            capacity[serves, k] += count
            value[serves, k] += count * value_lost(contract, commitment.month, months) / len(serves)
            fee[serves, k] += count * fees(contract, commitment.month, months) / len(serves)
        hours: list[Hours] = []
        for month, level in np.argwhere(path).tolist():
            option, paid = self.cheapest(level, capacity[month])
            by_hour[month] += path[month, level] * self._running * paid
            hours.append(Hours(month, level, float(path[month, level]), option))
        return Bill(value, fee, by_hour, tuple(hours))

    def cheapest(self, level: int, capacity: IntArray) -> tuple[Option, IntArray]:
        """The option of a level that costs least, and GPUs paid for of each contract; capacity: held of each."""
        rows = [
            (option, [self.use(offer, need, capacity) for offer, need in enumerate(option.gpus)])
            for option in self.levels.options[level]
        ]
        option, uses = min(rows, key=lambda row: sum(cost for cost, _ in row[1]))
        return option, np.sum([paid for _, paid in uses], axis=0)

    def use(self, offer: int, need: int, capacity: IntArray) -> tuple[float, IntArray]:
        """The least cost of `need` GPUs of an offer [$/h], and GPUs paid for of each contract, (contracts,)."""
        own = self._own[offer]
        held = capacity[own]
        key = offer, need, tuple(held.tolist())
        if key not in self._uses:
            rent, rented = self._rentals[offer]
            running = np.append(0.0, np.cumsum(np.repeat(self._running[own], held)[:need]))
            total = running + rent[need - np.arange(running.size)]
            used = total.size - 1 - int(np.argmin(total[::-1]))
            paid = rented[need - used].copy()
            paid[own] = np.clip(used - (np.cumsum(held) - held), 0, held)
            self._uses[key] = float(total[used]), paid
        return self._uses[key]
