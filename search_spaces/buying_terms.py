"""`procurement:` of a workload file, or terms.yaml -> `Terms`: the contracts of every accelerator of a problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from costmodel.accelerator import Accelerator, Origin, PriceBasis
from costmodel.errors import InputError, nearest_name
from costmodel.quoting import name_list, shown
from costmodel.units import KILO
from costmodel.words import dollars, join_words

from .bounds import DAY, HOURS_PER_DAY
from .buying_schema import (
    TERMS_SCHEMA,
    DemandSection,
    HostingSection,
    ProcurementSection,
    PurchaseSection,
    TermsFile,
    TypeSection,
)
from .catalog import load_catalog, normalized_name
from .contracts import EXPECTED, HOURS_PER_MONTH, MONTHS_PER_YEAR, Contract, DemandPath, Forecast, Spot, Terms, Tier
from .faults import Fault, Path, check_kind
from .fields import faults_of, sections_of
from .problem import Offer, Problem
from .quotes import basis_of
from .yaml_source import read_source


def load_terms(problem: Problem, path: FilePath | None = None, changes: Mapping[str, Any] | None = None) -> Terms:
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
        file = _read_terms(path, problem)
        section = section.model_copy(update={name: getattr(file, name) for name in file.model_fields_set - {"schema_"}})
        source = str(path) if "accelerators" in file.model_fields_set else source
    return terms_of(_changed(section, changes or {}), problem, source)


def _missing(problem: Problem) -> str:
    """What to add to a workload file without terms, ready to paste."""
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


def _read_terms(path: FilePath, problem: Problem) -> TermsFile:
    source, faults = read_source(path)
    check_kind(source, "file of terms", TERMS_SCHEMA)
    file = sections_of(source, faults, TermsFile)
    unknown = _unknown(file.accelerators, problem)
    if unknown:
        raise InputError(source.render(unknown))
    return file


def _changed(section: ProcurementSection, changes: Mapping[str, Any]) -> ProcurementSection:
    """The same with other values of the forecast."""
    if not changes:
        return section
    try:
        demand = DemandSection.model_validate(section.demand.model_dump(exclude_none=True) | dict(changes))
    except ValidationError as error:
        faults = faults_of(error, DemandSection.model_json_schema())
        sentences = "; ".join(replace(fault, path=("demand", *fault.path)).told() for fault in faults)
        raise InputError(f"with {join_words([f'--{name}' for name in changes])}, {sentences}") from None
    return section.model_copy(update={"demand": demand})


def _unknown(entries: Sequence[TypeSection], problem: Problem, above: Path = ()) -> list[Fault]:
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
        contracts += [replace(item, offer=index) for item in _contracts(entry, offer, section, source)]
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
        contracts=tuple(contracts),
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


def _contracts(entry: TypeSection, offer: Offer, section: ProcurementSection, source: str) -> list[Contract]:
    """Every way to have one accelerator."""
    price, quote = offer.usd_per_hour, offer.quote
    own = source
    if entry.on_demand is not None:
        price = entry.on_demand
    elif quote is None:
        own = "workload file, accelerators"
    else:
        remark = quote.remark(offer.accelerator.name).removesuffix(".")
        own = f"catalog: {remark}" if remark else f"catalog, median of {quote.quotes} list prices, {quote.date}"
    contracts = [Contract(0, Tier.ON_DEMAND, running=price, source=own)]
    if entry.spot is not None:
        there = availability(entry.spot.interruptions_per_day, entry.spot.recovery)
        headroom = Spot(there, entry.spot.gpus_per_instance, entry.spot.target)
        contracts.append(Contract(0, Tier.SPOT, running=entry.spot.price, spot=headroom, source=source))
    for tier, stated_price, years in (
        (Tier.RESERVED_1, entry.reserved_1_year, 1),
        (Tier.RESERVED_3, entry.reserved_3_years, 3),
    ):
        quotes = (offer.accelerator.price, *offer.accelerator.other_prices)  # the user's own where they are stated
        own_quote = next((q for q in quotes if q.term_years == years and q.origin is Origin.STATED), None)
        reserved_price = stated_price if stated_price is not None or own_quote is None else own_quote.usd_per_hour
        if reserved_price is not None:
            monthly, term = reserved_price * HOURS_PER_MONTH, years * MONTHS_PER_YEAR
            origin = source if stated_price is not None or own_quote is None else own_quote.source
            contracts.append(Contract(0, tier, monthly=monthly, term=term, source=origin))
    if entry.purchase is not None:
        contracts.append(_purchase(entry.purchase, _power_cost(entry.purchase, offer.accelerator, section), source))
    if entry.owned is not None:
        running, hosting = _power_cost(entry.owned, offer.accelerator, section), entry.owned.hosting_usd_per_month
        ownership = Contract(0, Tier.OWNED, running=running, monthly=hosting, held=entry.owned.gpus, source=source)
        contracts.append(ownership)
    return contracts


def _purchase(purchase: PurchaseSection, running: float, source: str) -> Contract:
    return Contract(
        0,
        Tier.PURCHASE,
        running=running,
        monthly=purchase.hosting_usd_per_month,
        once=purchase.capex_usd,
        life=purchase.depreciation_years * MONTHS_PER_YEAR,
        delay=purchase.delivery_months,
        interest=(1.0 + purchase.interest_per_year) ** (1.0 / MONTHS_PER_YEAR) - 1.0,
        source=source,
    )


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
