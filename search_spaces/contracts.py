"""Contracts, and the demand that they are for: what `pdplan buy` chooses from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

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
        """Whether it has to be decided on ahead."""
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
