"""Contracts, what a GPU costs under each, and the demand that they are for: what `pdplan buy` chooses from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from costmodel.arrays import FloatArray, IntArray

EXPECTED = "expected"
"""Name of the path of the demand that grows as expected."""
HOURS_PER_MONTH = 730.0
"""An average month as cloud price lists bill it: 365 days x 24 h / 12."""
MONTHS_PER_YEAR = 12


class Tier(StrEnum):
    """How a GPU is paid for."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED_1 = "reserved 1 year"
    RESERVED_3 = "reserved 3 years"
    PURCHASE = "purchase"
    OWNED = "owned"


@dataclass(frozen=True, slots=True)
class Spot:
    """Headroom of GPUs that may be taken back: availability of one instance, GPUs of one, and the target [1]."""

    availability: float
    instance: int
    target: float


@dataclass(frozen=True, slots=True)
class Contract:
    """One way to have one GPU type; offer: its number in the problem; source: where its price was stated.

    running: of a GPU in use [$/h]; monthly: of a GPU held, hosting or the fee [$/month]; once: its price [$].
    charge: value that it loses in a month held [$/month]; life: months over which it does, None: at once.
    term: months held, None: to the end of the horizon; delay: months from the decision to the use.
    held: GPUs there from the start; spot: if it may be taken back; interest: what `once` could earn [1/month].
    """

    offer: int
    tier: Tier
    running: float = 0.0
    monthly: float = 0.0
    once: float = 0.0
    term: int | None = None
    life: float | None = None
    delay: int = 0
    held: int = 0
    spot: Spot | None = None
    interest: float = 0.0
    source: str = field(default="", compare=False)

    @property
    def rented(self) -> bool:
        """Whether it is paid by the hour."""
        return self.tier in {Tier.ON_DEMAND, Tier.SPOT}

    @property
    def committed(self) -> bool:
        """Whether it must be signed in advance."""
        return not self.rented and self.tier is not Tier.OWNED

    @property
    def charge(self) -> float:
        """Value that one GPU loses in a month held [$/month], as an annuity: C r / (1 - (1 + r)^-L), C / L if r is 0.

        C: `once`; r: `interest`; L: `life`.

        >>> Contract(0, Tier.PURCHASE, once=2400.0, life=24.0).charge
        100.0
        """
        if self.life is None:
            return 0.0
        if self.interest == 0.0:
            return self.once / self.life
        return self.once * self.interest / float(1.0 - (1.0 + self.interest) ** -self.life)


@dataclass(frozen=True, slots=True)
class ContractedGpus:
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

    >>> least_use(Contract(0, Tier.RESERVED_1, monthly=730.0, term=12), 2.0, 24)
    0.5
    """
    fixed, saved = hourly_price(contract, months) - contract.running, on_demand - contract.running
    return fixed / saved if saved > 0.0 else math.inf


def payback_months(contract: Contract, on_demand: float) -> float:
    """Months after which a GPU bought has saved its whole price against renting [months]; infinite: never.

    C = s (1 - (1 + r)^-m) / r, and C = s m where r is 0; s = (p - running) 730 h - monthly: saved in a month.
    C: its price [$]; r: interest [1/month]; p: `on_demand` [$/h].

    >>> payback_months(Contract(0, Tier.PURCHASE, once=14_600.0), 2.0)
    10.0
    """
    saved = (on_demand - contract.running) * HOURS_PER_MONTH - contract.monthly
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
class DemandPath:
    """One way in which the demand may go: growth per month [1] and probability [1]."""

    name: str
    growth: float
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Rate of the first month [1/s], the paths that it may take from there; by_hour: as shares of the peak."""

    months: int
    rate: float
    paths: tuple[DemandPath, ...]
    by_hour: tuple[float, ...]
    levels: int

    @property
    def probabilities(self) -> FloatArray:
        """Probability of every path [1]."""
        return np.array([path.probability for path in self.paths])

    @property
    def expected(self) -> int:
        """Number of the path that is as expected; the middle one where none is."""
        names = [path.name for path in self.paths]
        return names.index(EXPECTED) if EXPECTED in names else len(names) // 2

    def rates(self, growth: float) -> FloatArray:
        """Rate of every hour of the day in every month, (months, 24) [1/s]."""
        peak = self.rate * (1.0 + growth) ** np.arange(self.months)
        return np.asarray(peak[:, None] * np.array(self.by_hour))

    @property
    def every_rate(self) -> tuple[FloatArray, FloatArray]:
        """Rates of all hours, months and paths [1/s], and the probability of the path of each [1]."""
        rates = [self.rates(path.growth).ravel() for path in self.paths]
        return np.concatenate(rates), np.repeat(self.probabilities, rates[0].size)


@dataclass(frozen=True, slots=True)
class Terms:
    """Everything about buying; draw: of one GPU in use, the site's overhead included, by offer [W].

    electricity: price and overhead of the site in words; unused: types that have terms but are not offered.
    """

    forecast: Forecast
    contracts: tuple[Contract, ...]
    draw: tuple[float, ...]
    decide_every: int = 3
    grams_per_kwh: float | None = None
    electricity: str = ""
    unused: tuple[str, ...] = ()
