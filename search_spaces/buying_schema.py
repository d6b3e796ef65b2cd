"""What GPUs cost under each contract and how the demand may grow: the shape of `procurement:` and of terms.yaml.

The block stands in workload.yaml, or the same keys in a file of their own; `pdplan buy` reads both.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from . import bounds
from .bounds import DAY, HOURS_PER_DAY, Bounds
from .catalog import normalized_name
from .fields import Section, Text, at_most, choice, count, house_error, number, one_or_more, quantity, share
from .quantities import Kind

TERMS_SCHEMA: Literal["pdplan.terms/1"] = "pdplan.terms/1"

LEVELS = Bounds(1, 40, "levels")
DOLLARS = Bounds(0, 1e9, "$")
USD_PER_KWH = Bounds(0, 100, "$/kWh")
PUE = Bounds(1, 10)
CARBON = Bounds(0, 1e4, "g/kWh")
INTERRUPTIONS = Bounds(0, 10_000, "per day")
TARGET = Bounds(0, 0.999999)
CHANCE = Bounds(0.0, 1.0)
INTEREST = Bounds(0.0, 2.0)
YEARS = Bounds(0.1, 50, "years")
HELD = Bounds(1, 1e7, "GPUs")


Growth = Annotated[float, share(bounds.GROWTH)]
Chance = Annotated[float, share(CHANCE)]
Price = Annotated[float, quantity(Kind.PRICE, bounds.PRICE)]
Dollars = Annotated[float, number(DOLLARS)]
Power = Annotated[float, quantity(Kind.POWER, bounds.POWER)]


class DemandSection(Section):
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
    by_hour: list[Annotated[float, number(bounds.HOURLY_RATE)]] | None = None
    """24 rates in any unit: the shape of a day, its highest hour the workload's rate. Default: the workload's own."""
    levels: Annotated[int, count(LEVELS)] = 16
    """Rates at which a fleet is searched for; every hour is served by the fleet of the next level above."""

    @field_validator("by_hour")
    @classmethod
    def _whole_day(cls, rates: list[float] | None) -> list[float] | None:
        if rates is not None and len(rates) != HOURS_PER_DAY:
            raise house_error(f"has {len(rates)} rates, but a day has {HOURS_PER_DAY} hours")
        if rates is not None and max(rates) <= 0:
            raise house_error("has no rate above 0")
        return rates

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low = self.growth if self.low is None else self.low
        high = self.growth if self.high is None else self.high
        if not low <= self.growth <= high:
            figures = f"low is {100 * low:g}%, growth {100 * self.growth:g}% and high {100 * high:g}%"
            raise house_error(f"needs low <= growth <= high, but {figures}; an end that is not stated is as growth")
        if self.low_probability + self.high_probability > 1.0 + 1e-9:
            raise house_error("has low_probability + high_probability above 1")
        return self


class ElectricitySection(Section):
    """What GPUs of your own draw and what that costs."""

    usd_per_kwh: Annotated[float, number(USD_PER_KWH)] = 0.10
    """Price of electricity [$/kWh]."""
    pue: Annotated[float, number(PUE)] = 1.3
    """Power of the whole site over that of its servers [1]."""
    grams_co2_per_kwh: Annotated[float, number(CARBON)] | None = None
    """Carbon per kilowatt-hour [g/kWh]; default: carbon is left out."""


class SpotSection(Section):
    """GPUs that the provider may take back."""

    price: Price
    """Price of one GPU [$/h]."""
    interruptions_per_day: Annotated[float, number(INTERRUPTIONS)]
    """How often one instance is taken back [1/day]."""
    recovery: Annotated[float, quantity(Kind.DURATION, bounds.RECOVERY)] = 600.0
    """Time until another one serves in its place [s]."""
    gpus_per_instance: Annotated[int, count(bounds.NODE_SIZE)] = 1
    """GPUs that go together."""
    target: Annotated[float, share(TARGET)] = 0.99
    """Probability with which at least the GPUs needed are there [1]; sets how many more are rented."""

    @model_validator(mode="after")
    def _mostly_there(self) -> Self:
        away = self.interruptions_per_day * self.recovery
        if away > DAY:
            raise house_error("is away more than half of the time: interruptions_per_day x recovery is above a day")
        return self


class HostingSection(Section):
    """What GPUs of your own cost while they stand there."""

    power: Power | None = None
    """Draw of one GPU with its share of the server [W]; default: its TDP."""
    hosting_usd_per_month: Dollars = 0.0
    """Space, network and staff for one GPU [$/month]."""


class PurchaseSection(HostingSection):
    """GPUs that can be bought."""

    capex_usd: Annotated[float, number(DOLLARS)]
    """Price of one GPU with its share of the server and network [$]."""
    depreciation_years: Annotated[float, number(YEARS)] = 4.0
    """Time over which it loses its value; what is left at the end of the horizon is not charged [years]."""
    interest_per_year: Annotated[float, share(INTEREST)] = 0.0
    """What the money could earn elsewhere [1/year]; 0: the value is charged evenly, else as an annuity."""
    delivery_months: Annotated[int, count(bounds.DELIVERY)] = 0
    """Months from the decision to the first use."""


class OwnedSection(HostingSection):
    """GPUs that you have: paid for already, so that only power and hosting count."""

    gpus: Annotated[int, count(HELD)]
    """How many."""


class TypeSection(Section):
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


class ProcurementSection(Section):
    """The terms on which GPUs can be had and the forecast of the demand, for `pdplan buy`."""

    demand: DemandSection = DemandSection()
    """The forecast."""
    electricity: ElectricitySection = ElectricitySection()
    """Power of GPUs of your own."""
    accelerators: Annotated[
        list[TypeSection],
        at_most(bounds.MAX_ACCELERATORS, "accelerators"),
        one_or_more(TypeSection),
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
            raise house_error(f"{twice} stands twice; put all of its contracts in one entry")
        return entries


class TermsFile(ProcurementSection):
    """The same in a file of its own."""

    schema_: Annotated[str, choice(TERMS_SCHEMA)] = Field(TERMS_SCHEMA, alias="schema")
    """Format of this file."""
