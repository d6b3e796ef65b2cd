"""terms.yaml -> `Terms`: the contracts of every accelerator of a problem, in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from costmodel.errors import InputError, nearest_name
from costmodel.units import KILO, SECONDS_PER_HOUR

from .buying_schema import HostingSection, TermsFile, TypeSection
from .catalog import normalized_name
from .faults import Fault
from .problem import Offer, Problem
from .translation import faults_of
from .yaml_source import read_source

FloatArray = NDArray[np.float64]

HOURS_PER_DAY = 24.0
HOURS_PER_MONTH = 730.0
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
    """One way to have one GPU type; offer: its number in the problem.

    running: of a GPU in use [$/h]; monthly: of a GPU held [$/month]; once: when it is taken [$].
    term: months held, None: to the end of the horizon; life: months over which `once` loses its value, None: at once.
    delay: months from the decision to the use; held: GPUs there from the start; spot: if it may be taken back.
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

    @property
    def rented(self) -> bool:
        """Whether it is paid by the hour."""
        return self.tier in {Tier.ON_DEMAND, Tier.SPOT}

    @property
    def committed(self) -> bool:
        """Whether it has to be decided on ahead."""
        return not self.rented and self.tier is not Tier.OWNED


@dataclass(frozen=True, slots=True)
class Forecast:
    """Rates: of the first month [1/s], growth per month low, expected, high [1]; by_hour: as shares of the peak."""

    months: int
    rate: float
    growth: tuple[float, float, float]
    by_hour: tuple[float, ...]
    levels: int

    def rates(self, growth: float) -> FloatArray:
        """Rate of every hour of the day in every month, (months, 24) [1/s]."""
        peak = self.rate * (1.0 + growth) ** np.arange(self.months)
        return np.asarray(peak[:, None] * np.array(self.by_hour))


@dataclass(frozen=True, slots=True)
class Terms:
    """Everything about buying; draw: of one GPU in use, the site's overhead included, by offer [W]."""

    forecast: Forecast
    contracts: tuple[Contract, ...]
    draw: tuple[float, ...]
    decide_every: int = 3
    grams_per_kwh: float | None = None


def load_terms(path: FilePath, problem: Problem) -> Terms:
    """Read the terms for the accelerators of a problem.

    Raises InputError with all faults of the file.
    """
    source, faults = read_source(path)
    file = TermsFile()
    try:
        file = TermsFile.model_validate(source.value)
    except ValidationError as error:
        places = {fault.path for fault in faults}
        found = faults_of(error, TermsFile.model_json_schema())
        faults = [*faults, *(fault for fault in found if source.settle(fault.path) not in places)]
    faults += _unknown(file.accelerators, problem)
    if faults:
        raise InputError(source.render(faults))
    return terms_of(file, problem)


def _unknown(entries: Sequence[TypeSection], problem: Problem) -> list[Fault]:
    known = [offer.accelerator.name for offer in problem.offers]
    faults = []
    for index, entry in enumerate(entries):
        if normalized_name(entry.name) in map(normalized_name, known):
            continue
        near = nearest_name(entry.name, known)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
        faults.append(Fault(("accelerators", index, "name"), f"{entry.name!r} is not in the workload file; {hint}"))
    return faults


def terms_of(file: TermsFile, problem: Problem) -> Terms:
    """The terms of a sound file."""
    entries = {normalized_name(entry.name): entry for entry in file.accelerators}
    contracts: list[Contract] = []
    draw = []
    for index, offer in enumerate(problem.offers):
        entry = entries.get(normalized_name(offer.accelerator.name), TypeSection(name=offer.accelerator.name))
        contracts += [replace(one, offer=index) for one in _contracts(entry, offer, file)]
        own = entry.owned or entry.purchase
        draw.append((own.power if own and own.power else offer.accelerator.tdp) * file.electricity.pue)
    demand = file.demand
    growth = demand.growth
    forecast = Forecast(
        months=demand.months,
        rate=problem.workload.request_rate,
        growth=(growth if demand.low is None else demand.low, growth, growth if demand.high is None else demand.high),
        by_hour=_by_hour(demand.by_hour, problem),
        levels=demand.levels,
    )
    return Terms(forecast, tuple(contracts), tuple(draw), file.decide_every_months, file.electricity.grams_co2_per_kwh)


def _by_hour(stated: list[float] | None, problem: Problem) -> tuple[float, ...]:
    """The shape of a day: stated, or the workload's own, or flat. The rate of the problem is that of the value 1."""
    if stated is not None:
        return tuple(value / max(stated) for value in stated)
    diurnal = problem.inputs.get("workload", {}).get("diurnal")
    if diurnal is None:
        return (1.0,) * int(HOURS_PER_DAY)
    return tuple(value / problem.workload.request_rate for value in diurnal["requests_per_second_by_hour"])


def _contracts(entry: TypeSection, offer: Offer, file: TermsFile) -> list[Contract]:
    """Every way to have one accelerator."""
    price = offer.usd_per_hour if entry.on_demand is None else entry.on_demand
    found = [Contract(0, Tier.ON_DEMAND, running=price)]
    if entry.spot is not None:
        spot = entry.spot
        there = availability(spot.interruptions_per_day, spot.recovery)
        headroom = Spot(there, spot.gpus_per_instance, spot.target)
        found.append(Contract(0, Tier.SPOT, running=spot.price, spot=headroom))
    for tier, reserved, years in (
        (Tier.RESERVED_1, entry.reserved_1_year, 1),
        (Tier.RESERVED_3, entry.reserved_3_years, 3),
    ):
        if reserved is not None:
            found.append(Contract(0, tier, monthly=reserved * HOURS_PER_MONTH, term=years * MONTHS_PER_YEAR))
    if entry.purchase is not None:
        found.append(
            Contract(
                0,
                Tier.PURCHASE,
                running=_power_cost(entry.purchase, offer, file),
                monthly=entry.purchase.hosting_usd_per_month,
                once=entry.purchase.capex_usd,
                life=entry.purchase.depreciation_years * MONTHS_PER_YEAR,
                delay=entry.purchase.delivery_months,
            )
        )
    if entry.owned is not None:
        running, hosting = _power_cost(entry.owned, offer, file), entry.owned.hosting_usd_per_month
        found.append(Contract(0, Tier.OWNED, running=running, monthly=hosting, held=entry.owned.gpus))
    return found


def _power_cost(section: HostingSection, offer: Offer, file: TermsFile) -> float:
    """Electricity of one GPU in use [$/h]: power x PUE x price."""
    power = offer.accelerator.tdp if section.power is None else section.power
    return power / KILO * file.electricity.pue * file.electricity.usd_per_kwh


def availability(interruptions_per_day: float, recovery: float) -> float:
    """Share of time in which a spot instance is there [1], by renewal: up / (up + recovery), up = 1 / rate.

    interruptions_per_day [1/day]; recovery: until another one serves in its place [s].

    >>> availability(24.0, 3600.0)
    0.5
    """
    return 1.0 / (1.0 + interruptions_per_day * recovery / (HOURS_PER_DAY * SECONDS_PER_HOUR))
