"""What serving costs once the commitments are made: every hour takes the fleet and the contracts that are cheapest.

Own and reserved GPUs serve first, by their running cost; what they lack is rented, spot with its headroom or on demand.
This is exact, in whole GPUs and whole fleets, where the programme that chose the commitments is a relaxation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from search_spaces.contracts import Contract

from .fleet_levels import Levels, Option
from .spot_headroom import gpus_to_rent

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rental:
    """GPUs of one offer rented by the hour: for every number needed the least cost [$/h] and how many are spot."""

    cost: FloatArray
    spot: IntArray
    rented_for: IntArray
    """Spot GPUs that are rented so that so many are there."""


def rental(contracts: Sequence[Contract], most: int) -> Rental:
    """The cheapest mix of on-demand and spot for every number of GPUs up to `most`.

    cost(m) = min_j spot_price x rented(j) + price (m - j)
    """
    price = next(one.running for one in contracts if one.rented and one.spot is None)
    count = np.arange(most + 1, dtype=np.float64)
    spot = next((one for one in contracts if one.spot is not None), None)
    if spot is None or spot.spot is None:
        return Rental(price * count, np.zeros(most + 1, dtype=np.int64), np.zeros(most + 1, dtype=np.int64))
    rented = gpus_to_rent(most, spot.spot.availability, spot.spot.target, spot.spot.instance)
    saved = spot.running * rented - price * count
    best = np.minimum.accumulate(saved)
    chosen = np.maximum.accumulate(np.where(saved <= best, np.arange(most + 1), 0))
    return Rental(price * count + best, chosen, rented)


@dataclass(frozen=True, slots=True)
class Use:
    """GPUs of one offer in one hour: their cost [$/h], and GPUs needed of each contract and paid for."""

    cost: float
    used: dict[Contract, int]
    paid: dict[Contract, int]


@dataclass(slots=True)
class Dispatcher:
    """Chooses fleets and contracts hour by hour; remembers what a number of GPUs costs beside given capacities."""

    contracts: tuple[Contract, ...]
    levels: Levels
    _rentals: dict[int, Rental] = field(default_factory=dict)
    _known: dict[tuple[int, int, tuple[int, ...]], Use] = field(default_factory=dict)

    def cheapest(self, level: int, capacity: dict[Contract, int]) -> tuple[Option, float, tuple[Use, ...]]:
        """The fleet of a level that costs least beside the capacities held: it, its cost [$/h], and what it uses."""
        best: tuple[Option, float, tuple[Use, ...]] | None = None
        for option in self.levels.options[level]:
            uses = tuple(self.use(offer, need, capacity) for offer, need in enumerate(option.gpus))
            cost = sum(use.cost for use in uses)
            if best is None or cost < best[1]:
                best = option, cost, uses
        if best is None:
            raise ValueError(f"level {level} has no fleet")
        return best

    def use(self, offer: int, need: int, capacity: dict[Contract, int]) -> Use:
        """The cheapest way to have `need` GPUs of an offer."""
        own = sorted(
            (one for one in self.contracts if one.offer == offer and not one.rented), key=lambda one: one.running
        )
        held = tuple(capacity.get(one, 0) for one in own)
        key = (offer, need, held)
        if key not in self._known:
            self._known[key] = self._use(offer, need, own, held)
        return self._known[key]

    def _use(self, offer: int, need: int, own: Sequence[Contract], held: Sequence[int]) -> Use:
        each = np.repeat([one.running for one in own], held)[:need] if own else np.zeros(0)
        running = np.append(0.0, np.cumsum(each))
        rent = self._rental(offer)
        count = np.arange(running.size)
        total = running + rent.cost[need - count]
        most = total.size - 1 - int(np.argmin(total[::-1]))
        used: dict[Contract, int] = {}
        left = most
        for contract, number in zip(own, held, strict=True):
            used[contract] = min(number, left)
            left -= used[contract]
        paid = dict(used)
        spot = int(rent.spot[need - most])
        for contract in self.contracts:
            if contract.offer == offer and contract.rented:
                used[contract] = spot if contract.spot is not None else need - most - spot
                paid[contract] = int(rent.rented_for[spot]) if contract.spot is not None else used[contract]
        return Use(float(total[most]), used, paid)

    def _rental(self, offer: int) -> Rental:
        if offer not in self._rentals:
            most = max(option.gpus[offer] for options in self.levels.options for option in options)
            self._rentals[offer] = rental([one for one in self.contracts if one.offer == offer], most)
        return self._rentals[offer]
