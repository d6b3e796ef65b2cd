"""`procurement:` of a workload file, or terms.yaml -> `Terms`: the contracts of every accelerator of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from costmodel.errors import InputError, nearest_name
from costmodel.units import KILO

from .bounds import DAY, HOURS_PER_DAY
from .buying_schema import DemandSection, HostingSection, ProcurementSection, PurchaseSection, TermsFile, TypeSection
from .catalog import load_catalog, normalized_name
from .faults import Fault, Path
from .problem import Offer, Problem
from .translation import faults_of
from .yaml_source import read_source

FloatArray = NDArray[np.float64]

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


def load_terms(problem: Problem, path: FilePath | None = None, changes: Mapping[str, Any] | None = None) -> Terms:
    """The terms for a problem: the `procurement:` block of its file, under the sections that a file of terms states.

    path: the file of terms; changes: values of `demand` that replace what both say.
    Raises InputError with all faults of the file, and where there are terms in neither place.
    """
    stated = problem.inputs.get("procurement")
    if stated is None and path is None:
        raise InputError(
            f"{problem.name}: has no terms; state them in a block procurement: of the workload file, or by --terms FILE"
        )
    section, source = ProcurementSection(), "default"
    if stated is not None:
        section, source = ProcurementSection.model_validate(stated), "workload file, procurement"
        faults = _unknown(section.accelerators, problem, ("procurement",))
        if faults:
            raise problem.refusal(faults)
    if path is not None:
        file = _read_terms(path, problem)
        section = section.model_copy(update={name: getattr(file, name) for name in file.model_fields_set - {"schema_"}})
        source = str(path) if "accelerators" in file.model_fields_set else source
    return terms_of(_changed(section, changes or {}), problem, source)


def _read_terms(path: FilePath, problem: Problem) -> TermsFile:
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
    return file


def _changed(section: ProcurementSection, changes: Mapping[str, Any]) -> ProcurementSection:
    """The same with other values of the forecast."""
    if not changes:
        return section
    try:
        demand = DemandSection.model_validate(section.demand.model_dump(exclude_none=True) | dict(changes))
    except ValidationError as error:
        faults = faults_of(error, DemandSection.model_json_schema())
        raise InputError("; ".join(replace(fault, path=("demand", *fault.path)).told() for fault in faults)) from None
    return section.model_copy(update={"demand": demand})


def _unknown(entries: Sequence[TypeSection], problem: Problem, above: Path = ()) -> list[Fault]:
    """Names that neither the workload file nor the catalog has; one that only the catalog has is left unused."""
    known = [offer.accelerator.name for offer in problem.offers if not offer.owned]
    catalog = list(load_catalog().accelerators)
    faults = []
    for index, entry in enumerate(entries):
        if normalized_name(entry.name) in map(normalized_name, [*known, *catalog]):
            continue
        near = nearest_name(entry.name, known) or nearest_name(entry.name, catalog)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
        sentence = f"{entry.name!r} is not in the workload file; {hint}"
        faults.append(Fault((*above, "accelerators", index, "name"), sentence))
    return faults


def terms_of(section: ProcurementSection, problem: Problem, source: str = "") -> Terms:
    """The terms of a sound section; source: where its contracts were stated."""
    entries = {normalized_name(entry.name): entry for entry in section.accelerators}
    contracts: list[Contract] = []
    draw = []
    for index, offer in enumerate(one for one in problem.offers if not one.owned):
        entry = entries.pop(normalized_name(offer.accelerator.name), TypeSection(name=offer.accelerator.name))
        contracts += [replace(one, offer=index) for one in _contracts(entry, offer, section, source)]
        if entry.owned is None:
            contracts += [_held(mine, index) for mine in problem.offers if mine.owned and mine.gpu == offer.gpu]
        own = entry.owned or entry.purchase
        draw.append((own.power if own and own.power else offer.accelerator.tdp) * section.electricity.pue)
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
        contracts=tuple(contracts),
        draw=tuple(draw),
        decide_every=section.decide_every_months,
        grams_per_kwh=power.grams_co2_per_kwh,
        electricity=f"${power.usd_per_kwh:g}/kWh at a PUE of {power.pue:g}",
        unused=tuple(entry.name for entry in entries.values()),
    )


EXPECTED = "expected"


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


def _by_hour(stated: list[float] | None, problem: Problem) -> tuple[float, ...]:
    """The shape of a day: stated, or the workload's own, or flat. The rate of the problem is that of the value 1."""
    if stated is not None:
        return tuple(value / max(stated) for value in stated)
    diurnal = problem.inputs.get("workload", {}).get("diurnal")
    if diurnal is None:
        return (1.0,) * HOURS_PER_DAY
    return tuple(value / problem.workload.request_rate for value in diurnal["requests_per_second_by_hour"])


def _contracts(entry: TypeSection, offer: Offer, section: ProcurementSection, source: str) -> list[Contract]:
    """Every way to have one accelerator."""
    price, listed = offer.usd_per_hour, offer.accelerator.price
    own = source
    if entry.on_demand is not None:
        price = entry.on_demand
    elif price == listed.usd_per_hour:
        own = f"catalog, median of {listed.quotes} list prices, {listed.date}" if listed.quotes else "catalog"
    else:
        own = "workload file, accelerators"
    found = [Contract(0, Tier.ON_DEMAND, running=price, source=own)]
    if entry.spot is not None:
        there = availability(entry.spot.interruptions_per_day, entry.spot.recovery)
        headroom = Spot(there, entry.spot.gpus_per_instance, entry.spot.target)
        found.append(Contract(0, Tier.SPOT, running=entry.spot.price, spot=headroom, source=source))
    for tier, reserved, years in (
        (Tier.RESERVED_1, entry.reserved_1_year, 1),
        (Tier.RESERVED_3, entry.reserved_3_years, 3),
    ):
        if reserved is not None:
            monthly, term = reserved * HOURS_PER_MONTH, years * MONTHS_PER_YEAR
            found.append(Contract(0, tier, monthly=monthly, term=term, source=source))
    if entry.purchase is not None:
        found.append(_purchase(entry.purchase, _power_cost(entry.purchase, offer, section), source))
    if entry.owned is not None:
        running, hosting = _power_cost(entry.owned, offer, section), entry.owned.hosting_usd_per_month
        held = Contract(0, Tier.OWNED, running=running, monthly=hosting, held=entry.owned.gpus, source=source)
        found.append(held)
    return found


def _held(offer: Offer, index: int) -> Contract:
    """GPUs that the accelerators of the workload file say are owned; offer: theirs; index: of that of more."""
    source = "workload file, accelerators"
    return Contract(index, Tier.OWNED, running=offer.usd_per_hour, held=offer.inventory or 0, source=source)


def _purchase(stated: PurchaseSection, running: float, source: str) -> Contract:
    return Contract(
        0,
        Tier.PURCHASE,
        running=running,
        monthly=stated.hosting_usd_per_month,
        once=stated.capex_usd,
        life=stated.depreciation_years * MONTHS_PER_YEAR,
        delay=stated.delivery_months,
        interest=(1.0 + stated.interest_per_year) ** (1.0 / MONTHS_PER_YEAR) - 1.0,
        source=source,
    )


def _power_cost(held: HostingSection, offer: Offer, section: ProcurementSection) -> float:
    """Electricity of one GPU in use [$/h]: power x PUE x price."""
    power = offer.accelerator.tdp if held.power is None else held.power
    return power / KILO * section.electricity.pue * section.electricity.usd_per_kwh


def availability(interruptions_per_day: float, recovery: float) -> float:
    """Share of time in which a spot instance is there [1], by renewal: up / (up + recovery), up = 1 / rate.

    interruptions_per_day [1/day]; recovery: until another one serves in its place [s].

    >>> availability(24.0, 3600.0)
    0.5
    """
    return 1.0 / (1.0 + interruptions_per_day * recovery / DAY)
