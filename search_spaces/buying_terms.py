"""What GPUs cost under each contract and how the demand may grow: `procurement:` or terms.yaml -> `Terms`.

The block stands in workload.yaml, or the same keys in a file of their own; `pdplan buy` reads both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator

from costmodel.accelerator import Accelerator, Origin, PriceBasis
from costmodel.arrays import FloatArray
from costmodel.errors import InputError, name_list, nearest_name, shown
from costmodel.units import DAY, HOURS_PER_DAY, KILO
from costmodel.words import dollars, join_words

from . import bounds
from .bounds import Bounds
from .catalog import load_catalog, normalized_name
from .fields import (
    WHOLE_DAY,
    FileSection,
    OneOrMore,
    Text,
    choice,
    count,
    number,
    quantity,
    section_of,
    sections_of,
    share,
)
from .files import Fault, Keys
from .problem import Offer, Problem
from .quantities import Kind
from .quotes import basis_of
from .sources import read_source

TERMS_SCHEMA: Literal["pdplan.terms/1"] = "pdplan.terms/1"

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


DOLLARS = Bounds(0, 1e9, "$")


Growth = Annotated[float, share(bounds.GROWTH)]
Chance = Annotated[float, share(Bounds(0.0, 1.0))]
Price = Annotated[float, quantity(Kind.PRICE, bounds.PRICE)]
Dollars = Annotated[float, number(DOLLARS)]
Power = Annotated[float, quantity(Kind.POWER, bounds.POWER)]


class DemandSection(FileSection):
    """How the demand grows; the rate of the workload file, or its planned hour, is that of the first month."""

    months: Annotated[int, count(bounds.MONTHS)] = 12
    """Horizon [months]."""
    growth: Growth = 0.0
    """Expected growth of the rate per month [1]: 0.05 or 5%."""
    low: Growth | None = None
    """Growth per month at the lower end of the band; default: as expected."""
    high: Growth | None = None
    """Growth per month at the upper end of the band; default: as expected."""
    low_probability: Chance = 0.3
    """Probability of growth as at the lower end [1]; 0.3 where that end is a 10 % quantile, 0.185 for a 5 % one."""
    high_probability: Chance = 0.3
    """Probability of growth as at the upper end [1]; the rest is as expected."""
    by_hour: Annotated[list[Annotated[float, number(bounds.HOURLY_RATE)]], WHOLE_DAY] | None = None
    """24 rates in any unit: the shape of a day, its highest hour the workload's rate. Default: the workload's own."""
    levels: Annotated[int, count(Bounds(1, 40, "levels"))] = 16
    """Rates at which a fleet is searched for; every hour is served by the fleet of the next level above."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low = self.growth if self.low is None else self.low
        high = self.growth if self.high is None else self.high
        if not low <= self.growth <= high:
            figures = f"low is {100 * low:g}%, growth {100 * self.growth:g}% and high {100 * high:g}%"
            raise InputError(f"needs low <= growth <= high, but {figures}; an end that is not stated is as growth")
        if self.low_probability + self.high_probability > 1.0 + 1e-9:
            raise InputError("has low_probability + high_probability above 1")
        return self


class ElectricitySection(FileSection):
    """What GPUs of your own draw and what that costs."""

    usd_per_kwh: Annotated[float, number(Bounds(0, 100, "$/kWh"))] = 0.10
    """Price of electricity [$/kWh]."""
    pue: Annotated[float, number(Bounds(1, 10))] = 1.3
    """Power of the whole site over that of its servers [1]."""
    grams_co2_per_kwh: Annotated[float, number(Bounds(0, 1e4, "g/kWh"))] | None = None
    """Carbon per kilowatt-hour [g/kWh]; default: carbon is left out."""


class SpotSection(FileSection):
    """GPUs that the provider may take back."""

    price: Price
    """Price of one GPU [$/h]."""
    interruptions_per_day: Annotated[float, number(Bounds(0, 10_000, "per day"))]
    """How often one instance is taken back [1/day]."""
    recovery: Annotated[float, quantity(Kind.DURATION, bounds.RECOVERY)] = 600.0
    """Time until another one serves in its place [s]."""
    gpus_per_instance: Annotated[int, count(bounds.NODE_SIZE)] = 1
    """GPUs that go together."""
    target: Annotated[float, share(Bounds(0, 0.999999))] = 0.99
    """Probability with which at least the GPUs needed are there [1]; sets how many more are rented."""

    @model_validator(mode="after")
    def _mostly_there(self) -> Self:
        away = self.interruptions_per_day * self.recovery
        if away > DAY:
            raise InputError("is away more than half of the time: interruptions_per_day x recovery is above a day")
        return self


class HostingSection(FileSection):
    """What GPUs of your own cost while they stand there."""

    power: Power | None = None
    """Draw of one GPU with its share of the server [W]; default: its TDP."""
    hosting_usd_per_month: Dollars = 0.0
    """Space, network and staff for one GPU [$/month]."""


class PurchaseSection(HostingSection):
    """GPUs that can be bought."""

    capex_usd: Annotated[float, number(DOLLARS)]
    """Price of one GPU with its share of the server and network [$]."""
    depreciation_years: Annotated[float, number(Bounds(0.1, 50, "years"))] = 4.0
    """Time over which it loses its value; what is left at the end of the horizon is not charged [years]."""
    interest_per_year: Annotated[float, share(Bounds(0.0, 2.0))] = 0.0
    """What the money could earn elsewhere [1/year]; 0: the value is charged evenly, else as an annuity."""
    delivery_months: Annotated[int, count(bounds.DELIVERY)] = 0
    """Months from the decision to the first use."""


class OwnedSection(HostingSection):
    """GPUs that you have: paid for already, so that only power and hosting count."""

    gpus: Annotated[int, count(Bounds(1, 1e7, "GPUs"))]
    """How many."""


class TypeSection(FileSection):
    """The contracts of one accelerator of the workload file."""

    name: Text
    """Its name there."""
    on_demand: Price | None = None
    """Price of one GPU by the hour [$/h]; default: that of the workload file."""
    spot: SpotSection | None = None
    """Spot GPUs; default: none."""
    reserved_1_year: Price | None = None
    """Price of one GPU reserved for a year, used or not [$/h]; default: cannot be had."""
    reserved_3_years: Price | None = None
    """Price of one GPU reserved for three years, used or not [$/h]; default: cannot be had."""
    purchase: PurchaseSection | None = None
    """GPUs to buy; default: none."""
    owned: OwnedSection | None = None
    """GPUs that you have; default: none."""


class ProcurementSection(FileSection):
    """The terms on which GPUs can be had and the forecast of the demand, for `pdplan buy`."""

    demand: DemandSection = DemandSection()
    """The forecast."""
    electricity: ElectricitySection = ElectricitySection()
    """Power of GPUs of your own."""
    accelerators: Annotated[
        list[TypeSection],
        OneOrMore(bounds.MAX_ACCELERATORS, "accelerators"),
    ] = Field(default_factory=list)
    """Contracts by GPU type; a type that is left out is rented on demand at the price of the workload file."""
    decide_every_months: Annotated[int, count(bounds.MONTHS)] = 3
    """Months between two decisions to reserve or buy; from the second one on, the growth is known."""

    @field_validator("accelerators")
    @classmethod
    def _once(cls, entries: list[TypeSection], _info: ValidationInfo) -> list[TypeSection]:
        names = [normalized_name(entry.name) for entry in entries]
        twice = next((entry.name for entry in entries if names.count(normalized_name(entry.name)) > 1), None)
        if twice is not None:
            raise InputError(f"{twice} stands twice; put all of its contracts in one entry")
        return entries


class TermsFile(ProcurementSection):
    """The same in a file of its own."""

    schema_: Annotated[str, choice(TERMS_SCHEMA)] = Field(TERMS_SCHEMA, alias="schema")
    """Format of this file."""


def load_terms(problem: Problem, path: Path | None = None, changes: Mapping[str, Any] | None = None) -> Terms:
    """The terms for a problem: the `procurement:` block of its file, under the sections that a file of terms states.

    path: the file of terms; changes: values of `demand` that replace what both say.
    Raises InputError with all faults of the file, and where there are terms in neither place.
    """
    block = problem.inputs.get("procurement")
    if basis_of(problem.inputs.get("prices")) not in {None, PriceBasis.ON_DEMAND}:
        sentence = "compares on-demand prices with the contracts under procurement; leave it out"
        raise problem.refusal([Fault(("prices",), f"{problem.inputs['prices']}: pdplan buy {sentence}")])
    if block is None and path is None:
        raise InputError(_missing(problem))
    section, source = ProcurementSection(), "default"
    if block is not None:
        section, source = ProcurementSection.model_validate(block), "workload file, procurement"
        faults = _unknown(section.accelerators, problem, ("procurement",)) + _conflicts(section, problem)
        if faults:
            raise problem.refusal(faults)
    if path is not None:
        terms_source = read_source(path, "file of terms", TERMS_SCHEMA)
        file = sections_of(terms_source, TermsFile)
        terms_source.check(_unknown(file.accelerators, problem))
        section = section.model_copy(update={name: getattr(file, name) for name in file.model_fields_set - {"schema_"}})
        source = str(path) if "accelerators" in file.model_fields_set else source
    if changes:  # other values of the forecast
        forecast = section.demand.model_dump(exclude_none=True) | dict(changes)
        try:
            demand = section_of(forecast, DemandSection, ("demand",))
        except InputError as error:
            raise InputError(f"with {join_words([f'--{name}' for name in changes])}, {error}") from None
        section = section.model_copy(update={"demand": demand})
    return terms_of(section, problem, source)


def _missing(problem: Problem) -> str:
    """The lines to add to a workload file without terms, ready to paste."""
    offer = problem.offers[0]
    name, reserved_price = offer.accelerator.name, 0.7 * offer.usd_per_hour
    return (
        f"{problem.source.name if problem.source else problem.name}: has no block procurement:, which says what "
        f"contracts cost and how the demand may grow; add one with the prices that you are offered, such as\n\n"
        f"procurement:\n"
        f"  demand: {{months: 24, growth: 5%, low: 0%, high: 8%}}   # growth per month, and the ends of its band\n"
        f"  accelerators:\n"
        f"    - {{name: {name}, reserved_1_year: {dollars(reserved_price)}/h}}\n\n"
        f"or put what stands below procurement: into a file for --terms; docs/buying.md explains the keys, "
        f"`pdplan schema` lists them all"
    )


def _unknown(entries: Sequence[TypeSection], problem: Problem, above: Keys = ()) -> list[Fault]:
    """Names that neither the workload file nor the catalog has; one that only the catalog has is left unused."""
    names = [offer.accelerator.name for offer in problem.offers]
    catalog = list(load_catalog().accelerators)
    faults = []
    for index, entry in enumerate(entries):
        if normalized_name(entry.name) in map(normalized_name, [*names, *catalog]):
            continue
        near = nearest_name(entry.name, names) or nearest_name(entry.name, catalog)
        hint = f"did you mean {shown(near)}?" if near else f"it has {name_list(names)}"
        sentence = f"{shown(entry.name)} is not in the workload file; {hint}"
        faults.append(Fault((*above, "accelerators", index, "name"), sentence))
    return faults


def _conflicts(section: ProcurementSection, problem: Problem) -> list[Fault]:
    """Owned GPUs that the accelerators of the file and the block state both, and not alike."""
    faults = []
    for index, entry in enumerate(section.accelerators):
        offer = next((offer for offer in problem.offers if offer.owned and _is(entry, offer.accelerator.name)), None)
        if offer is None or entry.owned is None:
            continue
        place = ("procurement", "accelerators", index, "owned")
        if offer.owned != entry.owned.gpus:
            sentence = f"says {entry.owned.gpus} GPUs, but accelerators say owned: {offer.owned}; make them agree"
            faults.append(Fault((*place, "gpus"), sentence))
        price = owned_price(offer.accelerator, section)
        if not math.isclose(price, offer.owned_usd_per_hour, rel_tol=1e-6):
            conflict = f"comes to ${price:.4g}/h, but accelerators say owned_price: ${offer.owned_usd_per_hour:.4g}/h"
            faults.append(Fault(place, f"{conflict}; leave one of them out"))
    return faults


def _is(entry: TypeSection, name: str) -> bool:
    return normalized_name(entry.name) == normalized_name(name)


def terms_of(section: ProcurementSection, problem: Problem, source: str = "") -> Terms:
    """The terms of a sound section; source: where its contracts were stated."""
    entries = {normalized_name(entry.name): entry for entry in section.accelerators}
    block = ProcurementSection.model_validate(problem.inputs.get("procurement") or {})
    contracts: list[Contract] = []
    draw = []
    for index, offer in enumerate(problem.offers):
        entry = entries.pop(normalized_name(offer.accelerator.name), TypeSection(name=offer.accelerator.name))
        contracts += _contracts(index, entry, offer, section, source)
        if entry.owned is None and offer.owned:
            follows = math.isclose(offer.owned_usd_per_hour, owned_price(offer.accelerator, block), rel_tol=1e-9)
            running = owned_price(offer.accelerator, section) if follows else offer.owned_usd_per_hour
            own = "workload file, accelerators"
            contracts.append(Contract(index, Tier.OWNED, running=running, held=offer.owned, source=own))
        upkeep = entry.owned or entry.purchase
        draw.append(((upkeep and upkeep.power) or offer.accelerator.tdp) * section.electricity.pue)
    demand, power = section.demand, section.electricity
    forecast = Forecast(
        months=demand.months,
        rate=problem.workload.request_rate,
        paths=_paths(demand),
        by_hour=_by_hour(demand.by_hour, problem),
        levels=demand.levels,
    )
    return Terms(
        forecast=forecast,
        contracts=tuple(
            replace(contract, running=contract.running + problem.offers[contract.offer].tier_usd_per_hour)
            for contract in contracts
        ),
        draw=tuple(draw),
        decide_every=section.decide_every_months,
        grams_per_kwh=power.grams_co2_per_kwh,
        electricity=f"${power.usd_per_kwh:g}/kWh at a PUE of {power.pue:g}",
        unused=tuple(entry.name for entry in entries.values()),
    )


def _paths(demand: DemandSection) -> tuple[DemandPath, ...]:
    """The ends of the band and the expected growth between them; an end equal to it falls in with it."""
    ends = (("low", demand.low, demand.low_probability), ("high", demand.high, demand.high_probability))
    paths = [
        DemandPath(name, growth, chance)
        for name, growth, chance in ends
        if growth is not None and growth != demand.growth and chance > 0.0
    ]
    rest = 1.0 - sum(path.probability for path in paths)
    if rest > 1e-9:
        paths.append(DemandPath(EXPECTED, demand.growth, rest))
    return tuple(sorted(paths, key=lambda path: path.growth))


def _by_hour(profile: list[float] | None, problem: Problem) -> tuple[float, ...]:
    """The shape of a day: stated, or the workload's own, or flat. The rate of the problem is that of the value 1."""
    if profile is not None:
        return tuple(value / max(profile) for value in profile)
    diurnal = problem.inputs.get("workload", {}).get("diurnal")
    if diurnal is None:
        return (1.0,) * HOURS_PER_DAY
    return tuple(value / problem.workload.request_rate for value in diurnal["requests_per_second_by_hour"])


def _contracts(
    index: int, entry: TypeSection, offer: Offer, section: ProcurementSection, source: str
) -> Iterator[Contract]:
    """Every way to have one accelerator, the offer of that index."""
    price, quote = offer.usd_per_hour, offer.quote
    own = source
    if entry.on_demand is not None:
        price = entry.on_demand
    elif quote is None:
        own = "workload file, accelerators"
    elif quote.origin is Origin.STATED:
        median = f", median over providers of {quote.quotes} quotes" if quote.quotes > 1 else ""
        own = f"your own {quote.basis_words} price{median}, {quote.date}"
    else:
        remark = quote.remark(offer.accelerator.name).removesuffix(".")
        own = (
            f"catalog: {remark}"
            if remark
            else f"catalog, median over providers of {quote.quotes} list prices, {quote.date}"
        )
    yield Contract(index, Tier.ON_DEMAND, running=price, source=own)
    if entry.spot is not None:
        there = availability(entry.spot.interruptions_per_day, entry.spot.recovery)
        headroom = Spot(there, entry.spot.gpus_per_instance, entry.spot.target)
        yield Contract(index, Tier.SPOT, running=entry.spot.price, spot=headroom, source=source)
    quotes = (offer.accelerator.price, *offer.accelerator.other_prices)  # the user's own where they are stated
    for tier, stated_price, years in (
        (Tier.RESERVED_1, entry.reserved_1_year, 1),
        (Tier.RESERVED_3, entry.reserved_3_years, 3),
    ):
        prices = [(stated_price, source)] if stated_price is not None else []
        prices += [(q.usd_per_hour, q.source) for q in quotes if q.term_years == years and q.origin is Origin.STATED]
        for usd, origin in prices[:1]:
            monthly, term = usd * HOURS_PER_MONTH, years * MONTHS_PER_YEAR
            yield Contract(index, tier, monthly=monthly, term=term, source=origin)
    if (purchase := entry.purchase) is not None:
        yield Contract(
            index,
            Tier.PURCHASE,
            running=_power_cost(purchase, offer.accelerator, section),
            monthly=purchase.hosting_usd_per_month,
            once=purchase.capex_usd,
            life=purchase.depreciation_years * MONTHS_PER_YEAR,
            delay=purchase.delivery_months,
            interest=(1.0 + purchase.interest_per_year) ** (1.0 / MONTHS_PER_YEAR) - 1.0,
            source=source,
        )
    if entry.owned is not None:
        running, hosting = _power_cost(entry.owned, offer.accelerator, section), entry.owned.hosting_usd_per_month
        yield Contract(index, Tier.OWNED, running=running, monthly=hosting, held=entry.owned.gpus, source=source)


def owned_price(accelerator: Accelerator, section: ProcurementSection) -> float:
    """What one GPU that is paid for still costs in use all day [$/h]: power x PUE x price + hosting / 730 h.

    As `pdplan buy` charges it, whatever the section states: power (default: TDP), hosting, electricity.

    >>> round(owned_price(load_catalog().accelerator("A100-80"), ProcurementSection()), 4)
    0.052
    """
    name = accelerator.name
    upkeep = next((entry.owned for entry in section.accelerators if _is(entry, name) and entry.owned), HostingSection())
    return _power_cost(upkeep, accelerator, section) + upkeep.hosting_usd_per_month / HOURS_PER_MONTH


def _power_cost(upkeep: HostingSection, accelerator: Accelerator, section: ProcurementSection) -> float:
    """Electricity of one GPU in use [$/h]: power x PUE x price."""
    power = accelerator.tdp if upkeep.power is None else upkeep.power
    return power / KILO * section.electricity.pue * section.electricity.usd_per_kwh


def availability(interruptions_per_day: float, recovery: float) -> float:
    """Share of time in which a spot instance is there [1], by renewal: up / (up + recovery), up = 1 / rate.

    interruptions_per_day [1/day]; recovery: until another one serves in its place [s].

    >>> availability(24.0, 3600.0)
    0.5
    """
    return 1.0 / (1.0 + interruptions_per_day * recovery / DAY)
