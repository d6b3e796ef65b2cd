"""What one path of the demand costs with given commitments: every hour at its cheapest, month by month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.units import KILO
from search_spaces.bounds import HOURS_PER_DAY
from search_spaces.contracts import HOURS_PER_MONTH, Terms

from .commitments import Commitment, fees, value_lost
from .dispatch import Dispatcher, Use
from .fleet_levels import Levels, Option

FloatArray = NDArray[np.float64]


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
    """What a path costs [$], each part (months, contracts).

    value: lost by GPUs bought, fees: hosting and reservations, both in equal parts over the months of service;
    by_hour: rent of rented GPUs, electricity of others.
    """

    value: FloatArray
    fees: FloatArray
    by_hour: FloatArray
    hours: tuple[Hours, ...]

    @property
    def by_month(self) -> FloatArray:
        """All parts together, (months, contracts) [$]."""
        return np.asarray(self.value + self.fees + self.by_hour)

    @property
    def total(self) -> float:
        """All of it [$]."""
        return float(self.by_month.sum())


def bill_of(terms: Terms, dispatcher: Dispatcher, path: FloatArray, commitments: Sequence[Commitment]) -> Bill:
    """The exact cost of a path, hours at each level in each month, (months, levels) [h]."""
    months = terms.forecast.months
    value, fee, by_hour = np.zeros((3, months, len(terms.contracts)))
    for one in commitments:
        k = terms.contracts.index(one.contract)
        serves = [month for month in range(months) if one.in_force(month)]
        value[serves, k] += one.count * value_lost(one.contract, one.month, months) / len(serves)
        fee[serves, k] += one.count * fees(one.contract, one.month, months) / len(serves)
    for k, contract in enumerate(terms.contracts):
        fee[:, k] += contract.held * contract.monthly
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
                by_hour[month, k] += hours[-1].hours * contract.running * uses[contract.offer].paid.get(contract, 0)
    return Bill(value, fee, by_hour, tuple(hours))


def path_of(terms: Terms, levels: Levels, growth: float) -> FloatArray:
    """Hours at each level in each month when the rate grows so fast per month [1], (months, levels) [h]."""
    level = levels.level_of(terms.forecast.rates(growth))
    hours = np.zeros((terms.forecast.months, levels.rates.size))
    np.add.at(hours, (np.arange(terms.forecast.months)[:, None], level), HOURS_PER_MONTH / HOURS_PER_DAY)
    return hours


def at_peak(path: FloatArray) -> FloatArray:
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


def owned_hosting(terms: Terms) -> float:
    """Hosting of the GPUs that are there already, used or not [$]."""
    return sum(one.held * one.monthly * terms.forecast.months for one in terms.contracts)
