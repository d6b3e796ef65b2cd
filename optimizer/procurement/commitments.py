"""GPUs that are decided on ahead: what one costs up to the horizon, and from how much use on it pays."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_spaces.contracts import HOURS_PER_MONTH, Contract


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
    left = months - month - contract.delay
    return contract.once if contract.life is None else contract.charge * min(left, contract.life)


def fees(contract: Contract, month: int, months: int) -> float:
    """Hosting of one GPU up to the horizon, or what reserving it costs for the whole term, also beyond it [$]."""
    left = months - month - contract.delay
    return contract.monthly * (left if contract.term is None else contract.term)


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
