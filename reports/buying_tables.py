"""The tables of a purchase over time, and the sentences beside them; every total is the sum of what stands above it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from costmodel.units import KILO
from optimizer.fleets.binding import limits_by_use
from optimizer.fleets.fleet import fleet_gpus
from optimizer.plans.records import engine_counts
from optimizer.procurement.bill import Commitment, Hours, hourly_price, least_use, payback_months
from optimizer.procurement.buying import BuyingPlan, Look
from search_spaces.contracts import Contract, Tier

from .document import Table, table_of
from .numbers import MISSING, count, hourly, is_number, money, percent, rate, signed_percent, significant
from .sensitivity import fleet_line
from .text import plural


def types(found: BuyingPlan) -> list[str]:
    """Names of the offers."""
    return [offer.accelerator.name for offer in found.problem.offers]


def named(found: BuyingPlan, contract: Contract) -> str:
    """A contract in words, such as "H100 spot"."""
    return f"{types(found)[contract.offer]} {contract.tier.value}"


def signed(found: BuyingPlan, taken: Iterable[Commitment]) -> str:
    """Commitments of one month in words."""
    return "; ".join(f"{one.count} × {named(found, one.contract)}" for one in taken)


def signed_later(found: BuyingPlan, taken: Iterable[Commitment]) -> str:
    """Commitments of several months in words, such as "H100 purchase: 2 in month 4, 3 in month 16"."""
    by_contract: dict[str, list[str]] = {}
    for one in taken:
        by_contract.setdefault(named(found, one.contract), []).append(f"{one.count} in month {one.month + 1}")
    return "; ".join(f"{name}: {', '.join(parts)}" for name, parts in by_contract.items())


def now_table(found: BuyingPlan) -> Table:
    """What is to be signed in the first month."""
    rows = [
        (
            f"{one.count} × {named(found, one.contract)}",
            f"month {one.first + 1}",
            "to the horizon" if one.contract.term is None else plural(one.contract.term, "month"),
            money(one.count * one.contract.once),
            f"{money(one.count * one.contract.monthly)}/month",
        )
        for one in found.now
    ]
    return table_of(("sign now", "serves from", "for", "#paid at once", "#hosting or fee"), tuple(rows))


def paths_table(found: BuyingPlan) -> Table:
    """What happens on every path of the demand, and on average."""
    rows = [
        (
            path.name,
            f"{signed_percent(path.growth)} a month",
            percent(path.probability),
            signed_later(found, outcome.later) or MISSING,
            money(outcome.bill.total),
            money(outcome.best),
            money(outcome.all_rented),
        )
        for path, outcome in zip(found.terms.forecast.paths, found.outcomes, strict=True)
    ]
    if len(rows) > 1:
        rows.append(
            ("average", MISSING, "100 %", MISSING, money(found.total), money(found.hindsight), money(found.on_demand)),
        )
    headers = ("demand", "#growth", "#chance", "signed later", "#cost", "#known before", "#all on demand")
    return table_of(headers, tuple(rows))


def months_table(found: BuyingPlan) -> Table:
    """A row for each month of the expected path: what each tier costs, all types together; then their sum."""
    bill, terms = found.expected.bill, found.terms
    shown = shown_tiers(found)
    by_tier = np.array([bill.by_month[:, [one.tier is tier for one in terms.contracts]].sum(axis=1) for tier in shown])
    peaks = terms.forecast.rates(terms.forecast.paths[terms.forecast.expected].growth).max(axis=1).tolist()
    rows = [
        (str(month + 1), rate(peak), peak_gpus(found, month), *map(money, row), money(sum(row)))
        for month, (peak, row) in enumerate(zip(peaks, by_tier.T.tolist(), strict=True))
    ]
    sums = by_tier.sum(axis=1).tolist()
    rows.append(("all", MISSING, MISSING, *map(money, sums), money(sum(sums))))
    headers = ("month", "#peak", "GPUs at the peak", *(f"#{tier.value}" for tier in shown), "#total")
    return table_of(headers, tuple(rows))


def shown_tiers(found: BuyingPlan) -> list[Tier]:
    """Tiers that cost something on the expected path."""
    cost = found.expected.bill.by_month.sum(axis=0)
    return [tier for tier in Tier if any(cost[k] for k, one in enumerate(found.terms.contracts) if one.tier is tier)]


def parts_table(found: BuyingPlan) -> Table:
    """Where the dollars of the expected path go; its sum is that of `months_table`."""
    bill = found.expected.bill
    parts = np.array([bill.value.sum(axis=0), bill.fees.sum(axis=0), bill.by_hour.sum(axis=0)])
    rows = [
        (named(found, one), *map(money, column), money(sum(column)))
        for one, column in zip(found.terms.contracts, parts.T.tolist(), strict=True)
        if sum(column)
    ]
    sums = parts.sum(axis=1).tolist()
    rows.append(("all", *map(money, sums), money(sum(sums))))
    headers = ("contract", "#value lost", "#hosting, fees", "#rent, electricity", "#total")
    return table_of(headers, tuple(rows))


def terms_table(found: BuyingPlan) -> Table:
    """What a GPU costs under each contract, from how much use on it pays, and where its price comes from."""
    months = found.terms.forecast.months
    rent = {one.offer: one.running for one in found.terms.contracts if one.tier is Tier.ON_DEMAND}
    rows = [
        (
            named(found, one),
            hourly(hourly_price(one, months)),
            MISSING if not one.committed else _from(least_use(one, rent[one.offer], months)),
            MISSING if one.tier is not Tier.PURCHASE else _months(payback_months(one, rent[one.offer])),
            one.source,
        )
        for one in found.terms.contracts
    ]
    headers = ("contract", "#in use all day", "#pays if used", "#pays itself back in", "price from")
    return table_of(headers, tuple(rows))


def _from(share: float) -> str:
    return f"> {percent(share)}" if share < 1.0 else "never"


def _months(months: float) -> str:
    return f"{significant(months)} months" if is_number(months) else "never"


def peak_gpus(found: BuyingPlan, month: int) -> str:
    """GPUs of the fleet at the peak of a month of the expected path."""
    needs = zip(types(found), peak_hours(found, month).option.gpus, strict=True)
    return " + ".join(f"{need} {name}" for name, need in needs if need)


def peak_hours(found: BuyingPlan, month: int) -> Hours:
    """The hours of the highest level of a month of the expected path."""
    return max((one for one in found.expected.bill.hours if one.month == month), key=lambda one: one.level)


def verdict(found: BuyingPlan) -> str:
    """What to sign, and what it is expected to cost."""
    months, several = plural(found.terms.forecast.months, "month"), len(found.outcomes) > 1
    owned = any(one.held for one in found.terms.contracts)
    what = f"Sign now: {signed(found, found.now)}" if found.now else "Sign nothing now"
    rent = "use what is owned and rent the rest" if owned else "rent the rest" if found.now else "rent all GPUs"
    paid = sum(one.count * one.contract.once for one in found.now)
    cost = f"{months} cost {money(found.total)}{' on average' if several else ''}"
    saved = signed_percent(found.total / found.on_demand - 1.0) if found.on_demand else MISSING
    return (
        f"{what}{f' ({money(paid)} at once)' if paid else ''}; {rent} by the hour. {cost}: {saved} against "
        f"renting everything on demand by the hour ({money(found.on_demand)})."
    )


def value_of_information(found: BuyingPlan) -> list[str]:
    """What planning for the band is worth over planning for the expected growth, and what knowing would be worth."""
    if len(found.outcomes) == 1:
        return ["One growth is taken as sure; state low and high under demand to choose under a band."]
    surplus = found.for_expected_cost - found.total
    plan = signed(found, found.for_expected) or "nothing"
    alone = (
        "Planned for the expected growth alone, the same would be signed now"
        if set(found.for_expected) == set(found.now)
        else f"Planned for the expected growth alone, {plan} would be signed now: {money(surplus)} more on average"
    )
    return [f"{alone}. Knowing the growth beforehand would save {money(found.total - found.hindsight)} on average."]


def notes(found: BuyingPlan, most: int | None = None) -> list[str]:
    """What else a buyer should know, each with its unit and what it is made of; most: refuted fleets, None: all."""
    terms, expected = found.terms, found.expected
    saved = 1.0 - expected.all_rented / found.fixed if found.fixed else 0.0
    kilograms = carbon(found)
    told = [
        *value_of_information(found),
        f"Scaling by the hour, expected growth, all on demand: the month's peak fleet kept all day costs "
        f"{money(found.fixed)}, the fleet of each hour {money(expected.all_rented)}; {percent(saved)} saved (start-up: "
        "pdplan autoscale).",
        f"Bound {money(found.bound)}, gap {percent(found.gap)}: other commitments and fleets of the "
        f"{count(float(found.levels.rates.size))} rates searched could save no more. An hour is served by the fleet of "
        f"the next of these rates, on average {percent(_rounding(found))} above its own.",
        f"Electricity of all GPUs in use, at {terms.electricity}: {significant(found.energy / KILO)} MWh"
        + ("" if kilograms is None else f", {significant(kilograms / KILO)} t of CO2 at {terms.grams_per_kwh:g} g/kWh")
        + (" on average." if len(found.outcomes) > 1 else "."),
    ]
    told += _assumptions(found, most)
    return told


def left_over(found: BuyingPlan) -> list[str]:
    """What is paid for GPUs on the expected path, and what of it the cost leaves out; empty where none is bought."""
    months, taken = found.terms.forecast.months, [*found.now, *found.expected.later]
    paid = sum(one.count * one.contract.once for one in taken)
    book = sum(
        one.count * one.contract.once * max(1.0 - (months - one.first) / one.contract.life, 0.0)
        for one in taken
        if one.contract.life
    )
    if not book:
        return []
    return [
        f"{money(paid)} are paid for GPUs where the demand grows as expected. The cost holds what they lose in value, "
        f"not the {money(book)} that is left of their price after month {months} (evenly written off): they have to be "
        "used on or sold at that."
    ]


def _assumptions(found: BuyingPlan, most: int | None) -> list[str]:
    terms = found.terms
    months, taken = terms.forecast.months, [*found.now, *found.expected.later]
    beyond = [one for one in taken if one.contract.term and one.first + one.contract.term > months]
    told = []
    if beyond:
        told.append(f"{signed_later(found, beyond)}: paid beyond month {months}, and charged whole.")
    if any(one.tier is Tier.SPOT for one in terms.contracts):
        told.append("Spot instances are taken to go and come back independently of one another.")
    if limits_by_use(found.problem):
        told.append(
            "Where whole nodes are billed, inventory, power, max_gpus and budget count all of their GPUs here; pdplan "
            "optimize counts those that engines use, but for the budget."
        )
    if terms.unused:
        told.append(f"Terms of {', '.join(terms.unused)} are not used: the workload file does not offer it.")
    told += _simulated(found, most)
    if len(found.outcomes) > 1 and terms.decide_every < months:
        told.append(f"The growth is taken to be known by the second decision, in month {terms.decide_every + 1}.")
    return told


def does_not_hold(found: BuyingPlan) -> list[str]:
    """That fleets which the purchase counts on miss their goals when simulated, if any does."""
    missed = found.looks.missed
    if not missed:
        return []
    return [
        f"This purchase does not hold: it counts on {plural(len(missed), 'fleet')} that a simulation refuted, and none "
        f"that was tried instead does better. {_fault(missed[0])}"
    ]


def _fault(one: Look) -> str:
    return f"At {rate(one.fleet.rate)} a fleet of {fleet_line(one.fleet.pools)} {one.fault}."


def _simulated(found: BuyingPlan, most: int | None) -> list[str]:
    """Which of the fleets that serve an hour of some path were simulated, and which it does without therefore."""
    looks = found.looks
    before = "Before a month begins, run pdplan optimize for its rates."
    if not looks.held and not looks.missed:
        return [f"Fleets are by formula, not simulated. {before}"]
    seen = len(looks.held) + len(looks.missed)
    which = "All" if seen == looks.every else f"{seen} of"
    said = (
        f"{which} {plural(looks.every, 'fleet')} that serve an hour were simulated at the rate that each is bought "
        "for, with requests drawn to confirm it."
    )
    if looks.held:
        least = min(looks.held, key=lambda one: one.attainment)
        many = "All" if not looks.missed else f"{len(looks.held)}"
        where = f"{percent(least.attainment)} of the requests at {rate(least.fleet.rate)}"
        said += f" {many} of them keep their goals; the least share within its SLOs is {where}."
    if seen < looks.every:
        said += f" The others are by formula (--verify N). {before}"
    return [said, *_refuted_fleets(found, most)]


def _refuted_fleets(found: BuyingPlan, most: int | None) -> list[str]:
    """The fleets that were refuted; where they are more than `most`, their number and the dearest few."""
    alike: dict[tuple[object, ...], list[Look]] = {}
    for one in found.looks.refuted:
        alike.setdefault((one.fleet.rate, engine_counts(one.fleet.pools)), []).append(one)
    every = list(alike.values())
    if most is None or len(every) <= most:
        return [_refuted(one) for one in every]
    every.sort(key=lambda one: -_list_price(found, one[0]))
    missed = f"{plural(len(every), 'fleet')} missed the SLO in simulation"
    more = f"{missed}; the {most} dearest follow, all are in --json and --html."
    return [more, *map(_refuted, every[:most])]


def _list_price(found: BuyingPlan, one: Look) -> float:
    """What the GPUs of a fleet would cost at the prices of the workload file [$/h]."""
    count = fleet_gpus(one.fleet.instance, one.fleet.fleet)
    return float(count @ np.array([offer.usd_per_hour for offer in found.problem.offers]))


def _refuted(alike: Sequence[Look]) -> str:
    """That a fleet was refuted at a rate, told once for all settings of its engines."""
    more = f" Nor does it hold in {plural(len(alike) - 1, 'other setting')} of them." if len(alike) > 1 else ""
    return f"Missed the SLO in simulation, and not used: {_fault(alike[0])}{more}"


def _rounding(found: BuyingPlan) -> float:
    """Mean of the rates at which the hours of the expected path are served, over that of their own rates, less 1."""
    forecast = found.terms.forecast
    own = forecast.rates(forecast.paths[forecast.expected].growth)
    served = found.levels.rates[found.levels.level_of(own)]
    return float(served.sum() / own.sum()) - 1.0


def carbon(found: BuyingPlan) -> float | None:
    """Expected carbon of the electricity [kg]; None where nobody said what a kilowatt-hour emits."""
    grams = found.terms.grams_per_kwh
    return None if grams is None else found.energy * grams / KILO
