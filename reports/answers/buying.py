"""The answer of buy: what to reserve, buy and rent, month by month; every total is the sum of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from costmodel.accelerator import Origin, PriceBasis
from costmodel.units import KILO
from costmodel.words import join_words, listed, percentage, plural, whole_dollars
from optimizer.fleets.error_bars import limits_by_use
from optimizer.plans.records import engine_counts, pool_records
from optimizer.procurement.buying import (
    BuyingPlan,
    ContractedGpus,
    commitment_cost,
    gpus_to_rent,
    hourly_price,
    least_use,
    payback_months,
)
from reports.document import Column, Document, Section, Table, said, table_by_column, table_of
from reports.fleets import fleet_line
from reports.text import (
    MISSING,
    count,
    is_number,
    money,
    percent,
    rate,
    signed_percent,
    significant,
)
from search_spaces.buying_terms import Contract, Tier

ACTIONS: Final = {
    Tier.RESERVED_1: "reserve {} for 1 year",
    Tier.RESERVED_3: "reserve {} for 3 years",
    Tier.PURCHASE: "buy {}",
}
"""What is done to sign a contract."""


def buying_dict(purchase: BuyingPlan) -> dict[str, Any]:
    """The answer as a record."""
    terms = purchase.terms
    return {
        "schema": "pdplan.buying/3",
        "months": terms.forecast.months,
        "expected_usd": purchase.total,
        "bound_usd": purchase.bound,
        "gap": purchase.gap,
        "all_on_demand_usd": purchase.on_demand,
        "known_before_usd": purchase.hindsight,
        "now": _commitment_records(purchase, purchase.now),
        "paths": [
            {
                "name": path.name,
                "growth": path.growth,
                "probability": path.probability,
                "later": _commitment_records(purchase, bill.later),
                "usd": bill.total,
                "known_before_usd": bill.best,
                "regret_usd": bill.total - bill.best,
                "all_on_demand_usd": bill.all_rented,
                "value_lost_usd": float(bill.value.sum()),
                "fees_usd": float(bill.fees.sum()),
                "by_hour_usd": float(bill.by_hour.sum()),
            }
            for path, bill in zip(terms.forecast.paths, purchase.outcomes, strict=True)
        ],
        "expected_path": terms.forecast.paths[terms.forecast.expected].name,
        "by_month": _months(purchase),
        "contracts": _contracts(purchase),
        "energy_kwh": purchase.energy,
        "carbon_kg": carbon(purchase),
        "fleets": {
            "used": purchase.fleets,
            "simulated": len(purchase.held) + len(purchase.missed),
            **{
                key: [
                    {"rate_rps": look.fleet.rate, "pools": pool_records(look.fleet.pools)}
                    | {"attainment": look.attainment, "fault": look.fault}
                    for look in looks
                ]
                for key, looks in (("held", purchase.held), ("missed", purchase.missed), ("refuted", purchase.refuted))
            },
        },
    }


def _commitment_records(purchase: BuyingPlan, commitments: Iterable[ContractedGpus]) -> list[dict[str, Any]]:
    months = purchase.terms.forecast.months
    return [
        {
            "month": item.month + 1,
            "serves_from_month": item.first + 1,
            "accelerator": _card(purchase, item.contract),
            "tier": item.contract.tier.value,
            "gpus": item.count,
            "at_once_usd": item.count * item.contract.once,
            "without_use_usd": item.count * commitment_cost(item.contract, item.month, months),
        }
        for item in commitments
    ]


def _months(purchase: BuyingPlan) -> list[dict[str, Any]]:
    """The months of the expected path."""
    terms, bill = purchase.terms, purchase.expected
    names, records = [offer.accelerator.name for offer in purchase.problem.offers], []
    rates = terms.forecast.rates(terms.forecast.paths[terms.forecast.expected].growth).max(axis=1).tolist()
    for month, (peak, costs) in enumerate(zip(rates, bill.by_month.tolist(), strict=True)):
        hours = max((hours for hours in bill.hours if hours.month == month), key=lambda hours: hours.level)
        usd = zip(terms.contracts, costs, strict=True)
        records.append(
            {
                "month": month + 1,
                "peak_rps": peak,
                "sized_for_rps": float(purchase.levels.rates[hours.level]),
                "usd": {contract_name(purchase, item): cost for item, cost in usd if cost},
                "peak_fleet": pool_records(hours.option.pools),
                "peak_gpus": dict(zip(names, hours.option.gpus, strict=True)),
            }
        )
    return records


def _contracts(purchase: BuyingPlan) -> list[dict[str, Any]]:
    """The terms as they were used."""
    months = purchase.terms.forecast.months
    rent = {offer: cheapest_rent(purchase, offer)[0] for offer in rents(purchase)}
    return [
        {
            "contract": contract_name(purchase, item),
            "usd_per_hour_in_use": item.running,
            "usd_per_month_held": item.monthly,
            "usd_at_once": item.once,
            "availability": None if item.spot is None else item.spot.availability,
            "pays_above_use": least_use(item, rent[item.offer], months) if item.committed else None,
            "payback_months": payback_months(item, rent[item.offer]) if item.tier is Tier.PURCHASE else None,
            "source": item.source,
        }
        for item in purchase.terms.contracts
    ]


# --- the document ---------------------------------------------------------------------------------------------------


def buying_document(purchase: BuyingPlan) -> Document:
    """The answer: the verdict, what decides, what to sign and when, each path of the demand, the months, the terms."""
    growth = purchase.terms.forecast.paths[purchase.terms.forecast.expected].growth
    changes = (
        f"{'grows' if growth > 0 else 'falls'} by {percentage(abs(growth), 2)} a month" if growth else "stays the same"
    )
    expected = f"if the demand {changes}"
    contracts_by_source: dict[str, list[str]] = {}
    for item in purchase.terms.contracts:
        contracts_by_source.setdefault(item.source or "default", []).append(contract_name(purchase, item))
    sources = [f"{source} ({', '.join(names)})" for source, names in contracts_by_source.items()]
    return Document(
        headline=(*missed_sentences(purchase), *verdict(purchase)),
        sections=(
            Section(sentences=(*deciding_sentences(purchase), *value_left(purchase))),
            Section(f"Contracts: what to sign, and when, {expected}", table=signing_table(purchase)),
            Section("Growth: what to sign later, and the cost, by growth of the demand", table=paths_table(purchase)),
            Section(f"Months: {expected}, {money(purchase.expected.total)} in all", table=months_table(purchase)),
            Section(
                "Terms: one GPU under each contract",
                table=terms_table(purchase),
                notes=(*pays_sentences(purchase), *spot_sentences(purchase), f"Prices: {'; '.join(sources)}."),
            ),
            Section(sentences=tuple(notes(purchase))),
        ),
        positive=not purchase.missed,
        about=("What to reserve, buy and rent?", purchase.problem.name),
    )


def _card(purchase: BuyingPlan, contract: Contract) -> str:
    return purchase.problem.offers[contract.offer].accelerator.name


def contract_name(purchase: BuyingPlan, contract: Contract) -> str:
    """A contract in words, such as "H100 spot"."""
    return f"{_card(purchase, contract)} {contract.tier.value}"


def signed_later(purchase: BuyingPlan, commitments: Iterable[ContractedGpus]) -> str:
    """Commitments of several months in words, such as "H100 purchase: 2 each in months 4 and 7, 3 in month 16"."""
    months: dict[str, dict[int, list[int]]] = {}
    for item in commitments:
        counts = months.setdefault(contract_name(purchase, item.contract), {})
        counts.setdefault(item.count, []).append(item.month + 1)
    return "; ".join(
        f"{name}: "
        + ", ".join(
            f"{count}{' each in months' if len(dates) > 1 else ' in month'} {join_words(list(map(str, dates)))}"
            for count, dates in counts.items()
        )
        for name, counts in months.items()
    )


def signing_table(purchase: BuyingPlan) -> Table:
    """What is to be signed now and, on the expected path, later."""
    months = purchase.terms.forecast.months
    return table_by_column(
        (*purchase.now, *purchase.expected.later),
        ("sign", lambda item: f"month {item.month + 1}" if item.month else "now"),
        ("what", lambda item: f"{item.count} × {contract_name(purchase, item.contract)}"),
        ("serves from", lambda item: f"month {item.first + 1}"),
        ("to", lambda item: f"month {item.first + item.contract.term if item.contract.term else months}"),
        ("#at once", lambda item: whole_dollars(item.count * item.contract.once)),
        ("#a month", lambda item: whole_dollars(item.count * item.contract.monthly)),
    )


def paths_table(purchase: BuyingPlan) -> Table:
    """What happens on every path of the demand, and on average."""
    rows = [
        (
            path.name,
            f"{signed_percent(path.growth, 2)} a month",
            percent(path.probability),
            signed_later(purchase, outcome.later) or MISSING,
            *map(money, (outcome.total, outcome.all_rented, outcome.best)),
        )
        for path, outcome in zip(purchase.terms.forecast.paths, purchase.outcomes, strict=True)
    ]
    if len(rows) > 1:
        costs = map(money, (purchase.total, purchase.on_demand, purchase.hindsight))
        rows.append(("average", MISSING, "100 %", MISSING, *costs))
    later, hindsight = Column("signed later", shrink=True, lines=12), Column("with hindsight", "right", optional=True)
    return table_of(("demand", "growth", "#chance", later, "#cost", "#rented on demand", hindsight), rows)


def months_table(purchase: BuyingPlan) -> Table:
    """A row for each month of the expected path: its cost, and what each tier is of that, all types together."""
    by_month, contracts = purchase.expected.by_month, purchase.terms.contracts
    cost = np.array([by_month[:, [item.tier is tier for item in contracts]].sum(axis=1) for tier in Tier]).T
    columns = [number for number, total in enumerate(cost.sum(axis=0)) if total]  # of tiers that cost something
    tiers, cost, rows = [list(Tier)[number] for number in columns], cost[:, columns], []
    for record, usd in zip(_months(purchase), cost.tolist(), strict=True):
        gpus = " + ".join(f"{need} {name}" for name, need in record["peak_gpus"].items() if need)
        costs = map(whole_dollars, (sum(usd), *usd))
        rates = (significant(record[key]) for key in ("peak_rps", "sized_for_rps"))
        rows.append((str(record["month"]), *rates, gpus, *costs))
    sums = cost.sum(axis=0).tolist()
    rows.append(("all", MISSING, MISSING, MISSING, *map(whole_dollars, (sum(sums), *sums))))
    peak = Column("GPUs at the peak", shrink=True, lines=2)
    sized = Column("sized for req/s", "right", optional=True)
    return table_of(("month", "#peak req/s", sized, peak, "#cost", *(f"#{tier.value}" for tier in tiers)), rows)


def terms_table(purchase: BuyingPlan) -> Table:
    """What a GPU costs under each contract, and from how much use on it pays."""
    months, rows = purchase.terms.forecast.months, []
    for item, record in zip(purchase.terms.contracts, _contracts(purchase), strict=True):
        share, payback = record["pays_above_use"], record["payback_months"]
        used = MISSING if share is None else f"> {percent(share)}" if share < 1.0 else "never"
        paid = MISSING if payback is None else f"{significant(payback)} months" if is_number(payback) else "never"
        rows.append((record["contract"], listed(hourly_price(item, months)), used, paid))
    return table_of(("contract", "#in use all day", "#pays if used", "#pays back in"), rows)


def rents(purchase: BuyingPlan) -> dict[int, float]:
    """What a GPU of each offer costs on demand [$/h]."""
    return {item.offer: item.running for item in purchase.terms.contracts if item.tier is Tier.ON_DEMAND}


# --- sentences ------------------------------------------------------------------------------------------------------


def verdict(purchase: BuyingPlan) -> tuple[str, str]:
    """What to sign, from when it serves, and what it is expected to cost by the month and over the horizon."""
    forecast, several, actions = purchase.terms.forecast, len(purchase.outcomes) > 1, list[str]()
    for item in purchase.now:
        paid, late = item.count * item.contract.once, item.contract.delay > 0
        facts = said(f"{money(paid)} at once" if paid else "", f"in use from month {item.first + 1}" if late else "")
        action = ACTIONS[item.contract.tier].format(f"{item.count} × {_card(purchase, item.contract)}")
        actions.append(f"{action} ({', '.join(facts)})" if facts else action)
    owned = [f"{item.held} × {_card(purchase, item)}" for item in purchase.terms.contracts if item.tier is Tier.OWNED]
    use = f"use the {join_words(owned)} that you own" if owned else ""
    rent = f"rent {'the rest' if owned or actions else 'all GPUs'} by the hour"
    now = f"Now: {join_words(actions)}" if actions else "Sign nothing now"
    monthly = f"{money(purchase.total)}{' on average' if several else ''}, {money(purchase.total / forecast.months)}"
    ratio = purchase.total / purchase.on_demand - 1.0 if purchase.on_demand else 0.0
    against = f"{percent(abs(ratio))} {'less' if ratio < 0 else 'more'} than" if ratio else "as much as"
    rest = "the rest" if owned else "everything"
    return (
        f"{now}; {join_words([*said(use), rent])}.",
        f"{plural(forecast.months, 'month')} cost {monthly} a month: {against} renting {rest} on demand "
        f"({money(purchase.on_demand)}).",
    )


def cheapest_rent(purchase: BuyingPlan, offer: int) -> tuple[float, str]:
    """What a GPU of an offer costs by the hour where the most of them are rented [$/h], and how: spares count."""
    most, prices = int(purchase.levels.most[:, offer].max()), [(rents(purchase)[offer], "on demand")]
    spots = [(item.running, item.spot) for item in purchase.terms.contracts if item.offer == offer and item.spot]
    if most:
        way = f"on spot (with the spares for {plural(most, 'GPU')})"
        prices += [(usd * int(gpus_to_rent(most, spot)[most]) / most, way) for usd, spot in spots]
    return min(prices)


def deciding_sentences(purchase: BuyingPlan) -> list[str]:
    """What decides for or against a commitment to each GPU type: its price in use all day, and how much use pays."""
    months, sentences = purchase.terms.forecast.months, list[str]()
    for offer in rents(purchase):
        contracts = [item for item in purchase.terms.contracts if item.committed and item.offer == offer]
        if not contracts:
            continue
        price, way = cheapest_rent(purchase, offer)
        best = min(contracts, key=lambda item: least_use(item, price, months))
        share = least_use(best, price, months)
        pays = f"pays if used for more than {percent(share)} of the hours" if share < 1.0 else "never pays"
        tier = " and its KV cache tier" if purchase.problem.offers[offer].tier_usd_per_hour else ""
        label = "A" if sentences else "What decides: a"
        sentences.append(
            f"{label} GPU{tier} in use all day costs {listed(hourly_price(best, months))} with "
            f"{contract_name(purchase, best)}, {listed(price)} {way}; the contract {pays}."
        )
    return sentences


def pays_sentences(purchase: BuyingPlan) -> list[str]:
    """What a commitment to each GPU type is compared with where the terms say that it pays."""
    offers = {item.offer: _card(purchase, item) for item in purchase.terms.contracts if item.committed}
    if not offers:
        return []
    rents_by_offer = (cheapest_rent(purchase, offer) for offer in offers)
    prices = [
        f"{listed(price)} {how} for {card}" for card, (price, how) in zip(offers.values(), rents_by_offer, strict=True)
    ]
    return [f"Pays: costs less than the cheapest rent, {join_words(prices)}."]


def spot_sentences(purchase: BuyingPlan) -> list[str]:
    """From how many GPUs on spot costs less than on demand, with what must run beside them for interruptions."""
    rent, sentences = rents(purchase), []
    for item in purchase.terms.contracts:
        if item.spot is None:
            continue
        needed = gpus_to_rent(int(purchase.levels.most[:, item.offer].max()), item.spot).tolist()
        pays = [m for m, running in enumerate(needed) if running * item.running < m * rent[item.offer]]
        least = f"from {plural(pays[0], 'GPU')} on" if pays else "for none of these fleets"
        headroom = "spare GPUs run too, in case of interruptions"
        sentences.append(f"{contract_name(purchase, item)} costs less than on demand {least}: {headroom}.")
    return sentences


def missed_sentences(purchase: BuyingPlan) -> list[str]:
    """That the purchase counts on fleets that miss their SLO in simulation, if it does."""
    looks = purchase.missed
    if not looks:
        return []
    return [
        f"This purchase misses the SLO: it needs {plural(len(looks), 'fleet')} that missed in simulation. At "
        f"{rate(looks[0].fleet.rate)} a fleet of {fleet_line(looks[0].fleet.pools)} {looks[0].fault}; no fleet that "
        "was tried for this rate or a higher one meets it."
    ]


def value_left(purchase: BuyingPlan) -> list[str]:
    """What is paid for GPUs on the expected path, and what of it the cost leaves out; empty where none is bought."""
    months, commitments = purchase.terms.forecast.months, [*purchase.now, *purchase.expected.later]
    paid = sum(item.count * item.contract.once for item in commitments)
    book = sum(
        item.count * item.contract.once * max(1.0 - (months - item.first) / item.contract.life, 0.0)
        for item in commitments
        if item.contract.life
    )
    if not book:
        return []
    counted = "the difference and interest" if any(item.contract.interest for item in commitments) else "the difference"
    return [
        f"If the demand grows as expected, the GPUs that are bought cost {money(paid)}. After month {months} they are "
        f"still worth {money(book)} (straight-line depreciation). The cost above counts only {counted}."
    ]


def notes(purchase: BuyingPlan) -> list[str]:
    """What else a buyer should know, each with its unit and what it is made of."""
    terms, average = purchase.terms, " on average" if len(purchase.outcomes) > 1 else ""
    kilograms, excess = carbon(purchase), purchase.levels.excess(*terms.forecast.every_rate)
    carbon_words = f", {significant(kilograms / KILO)} t of CO2 at {terms.grams_per_kwh:g} g/kWh" if kilograms else ""
    return [
        "The growth is taken as sure; with --low and --high the choice allows for a band."
        if len(purchase.outcomes) == 1
        else f"Knowing the growth beforehand would save {money(purchase.total - purchase.hindsight)} on average.",
        f"No other commitments and fleets of the {count(float(purchase.levels.rates.size))} request rates that were "
        f"searched cost less than {money(purchase.bound)}{average} (gap {percent(purchase.gap)}). Every hour gets the "
        f"fleet of the next higher of these rates, {percent(excess)} above its demand on average.",
        f"Electricity of all GPUs in use, at {terms.electricity}: {significant(purchase.energy / KILO)} MWh"
        f"{carbon_words}{average}.",
        *_assumptions(purchase),
        *_simulation_sentences(purchase),
    ]


def _assumptions(purchase: BuyingPlan) -> tuple[str, ...]:
    """What the purchase takes for granted, where that plays a part."""
    terms = purchase.terms
    months, commitments = terms.forecast.months, [*purchase.now, *purchase.expected.later]
    beyond = [item for item in commitments if item.contract.term and item.first + item.contract.term > months]
    spot = any(item.tier is Tier.SPOT for item in terms.contracts)
    by_node = (
        "Where whole nodes are billed, inventory, power, max_gpus and budget count all of their GPUs here; pdplan "
        "optimize counts those that engines use, except for the budget."
    )
    unused_terms = f"Terms of {', '.join(terms.unused)} are not used: the workload file does not offer it."
    names = _spot_quotes_unused(purchase)
    quotes = f"Your spot quotes of {join_words(names)} are not used"
    unused_quotes = f"{quotes}: the terms need spot with its price and interruptions_per_day."
    later = f"Assumed: the growth is known by the next decision, in month {terms.decide_every + 1}."
    return said(
        f"Paid beyond month {months}, and charged in full: {signed_later(purchase, beyond)}." if beyond else "",
        "Assumed: spot instances are interrupted independently of one another." if spot else "",
        by_node if limits_by_use(purchase.problem) else "",
        unused_terms if terms.unused else "",
        unused_quotes if names else "",
        later if len(purchase.outcomes) > 1 and terms.decide_every < months else "",
    )


def _spot_quotes_unused(purchase: BuyingPlan) -> list[str]:
    """GPU types with a spot price in the user's quotes that no contract has: how often it is interrupted is unknown."""
    stated = {item.offer for item in purchase.terms.contracts if item.tier is Tier.SPOT}
    return [
        offer.accelerator.name
        for number, offer in enumerate(purchase.problem.offers)
        for quote in offer.accelerator.other_prices
        if quote.basis is PriceBasis.SPOT and quote.origin is Origin.STATED and number not in stated
    ]


def _simulation_sentences(purchase: BuyingPlan) -> tuple[str, ...]:
    """Which of the fleets that serve an hour of some path were simulated, and how many are not used therefore."""
    proven_fleets, fleet_count, number = purchase.held, purchase.fleets, len(purchase.held) + len(purchase.missed)
    before = "Before a month begins, run pdplan optimize for its rates."
    if not number:
        return (f"Fleets are by formula, not simulated. {before}",)
    subject = "All" if number == fleet_count else f"{number} of"
    sentence = f"{subject} {plural(fleet_count, 'fleet')} were simulated at the request rate that they are bought for."
    if proven_fleets:
        least = min(proven_fleets, key=lambda look: look.attainment)
        many = "All" if not purchase.missed else f"{len(proven_fleets)}"
        where = f"{percent(least.attainment)} of the requests, at {rate(least.fleet.rate)}"
        sentence += f" {many} of them meet the SLO; the closest with {where}."
    if number < fleet_count:
        sentence += f" The others are by formula (--verify N). {before}"
    misses = len({(look.fleet.rate, engine_counts(look.fleet.pools)) for look in purchase.refuted})
    ruled_out = f"Simulated and ruled out: {plural(misses, 'fleet')} (--json lists them)."
    return said(sentence, ruled_out * bool(misses))


def carbon(purchase: BuyingPlan) -> float | None:
    """Expected carbon of the electricity [kg]; None where nobody said what a kilowatt-hour emits."""
    grams = purchase.terms.grams_per_kwh
    return None if grams is None else purchase.energy * grams / KILO
