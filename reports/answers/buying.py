"""What buy answers: what to reserve, buy and rent, month by month; every total is the sum of what stands above it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.units import KILO
from optimizer.fleets.error_bars import limits_by_use
from optimizer.plans.records import engine_counts, pool_records
from optimizer.procurement.buying import BuyingPlan, FleetCheck, Hours, PathBill
from reports.charts import Axis, draw_stacks, round_steps
from reports.document import Chart, Column, Document, Section, Table, said, table_of
from reports.numbers import MISSING, count, hourly, is_number, money, percent, rate, signed_percent, significant
from reports.text import capital, plural
from reports.words import fleet_line
from search_spaces.contracts import (
    Contract,
    ContractedGpus,
    DemandPath,
    Tier,
    commitment_cost,
    hourly_price,
    least_use,
    payback_months,
)

REFUTED: Final = 3
"""Refuted fleets that sentences tell of; the JSON document has all of them."""
TONES: Final = {
    Tier.ON_DEMAND: "part-communication",
    Tier.SPOT: "part-attention",
    Tier.RESERVED_1: "part-gemm",
    Tier.RESERVED_3: "heat-4",
    Tier.PURCHASE: "part-experts",
    Tier.OWNED: "part-host",
}
"""Colour of each tier."""


def buying_dict(purchase: BuyingPlan) -> dict[str, Any]:
    """The answer as a record."""
    terms = purchase.terms
    return {
        "schema": "pdplan.buying/2",
        "months": terms.forecast.months,
        "expected_usd": purchase.total,
        "bound_usd": purchase.bound,
        "gap": purchase.gap,
        "all_on_demand_usd": purchase.on_demand,
        "known_before_usd": purchase.hindsight,
        "now": _commitment_records(purchase, purchase.now),
        "for_expected_growth_alone": {
            "now": _commitment_records(purchase, purchase.for_expected),
            "expected_usd": purchase.for_expected_cost,
        },
        "paths": [
            _path(purchase, path, outcome)
            for path, outcome in zip(terms.forecast.paths, purchase.outcomes, strict=True)
        ],
        "expected_path": terms.forecast.paths[terms.forecast.expected].name,
        "by_month": _months(purchase),
        "fixed_on_demand_usd": purchase.fixed,
        "contracts": _contracts(purchase),
        "energy_kwh": purchase.energy,
        "carbon_kg": carbon(purchase),
        "fleets": {
            "used": purchase.fleets,
            "simulated": len(purchase.held) + len(purchase.missed),
            "held": [_look_record(item) for item in purchase.held],
            "missed": [_look_record(item) for item in purchase.missed],
            "refuted": [_look_record(item) for item in purchase.refuted],
        },
    }


def _look_record(look: FleetCheck) -> dict[str, Any]:
    """A fleet that was simulated."""
    record = {"rate_rps": look.fleet.rate, "pools": pool_records(look.fleet.pools), "attainment": look.attainment}
    return record | ({"fault": look.fault} if look.fault else {})


def _commitment_records(purchase: BuyingPlan, commitments: Iterable[ContractedGpus]) -> list[dict[str, Any]]:
    months = purchase.terms.forecast.months
    return [
        {
            "month": item.month + 1,
            "serves_from_month": item.first + 1,
            "accelerator": types(purchase)[item.contract.offer],
            "tier": item.contract.tier.value,
            "gpus": item.count,
            "at_once_usd": item.count * item.contract.once,
            "without_use_usd": item.count * commitment_cost(item.contract, item.month, months),
        }
        for item in commitments
    ]


def _path(purchase: BuyingPlan, path: DemandPath, outcome: PathBill) -> dict[str, Any]:
    bill = outcome.bill
    return {
        "name": path.name,
        "growth": path.growth,
        "probability": path.probability,
        "later": _commitment_records(purchase, outcome.later),
        "usd": bill.total,
        "known_before_usd": outcome.best,
        "regret_usd": outcome.regret,
        "all_on_demand_usd": outcome.all_rented,
        "value_lost_usd": float(bill.value.sum()),
        "fees_usd": float(bill.fees.sum()),
        "by_hour_usd": float(bill.by_hour.sum()),
    }


def _months(purchase: BuyingPlan) -> list[dict[str, Any]]:
    """The months of the expected path."""
    terms, bill = purchase.terms, purchase.expected.bill
    rates = terms.forecast.rates(terms.forecast.paths[terms.forecast.expected].growth).max(axis=1).tolist()
    return [
        {
            "month": month + 1,
            "peak_rps": peak,
            "usd": {
                contract_name(purchase, item): usd
                for item, usd in zip(terms.contracts, bill.by_month[month].tolist(), strict=True)
                if usd
            },
            "peak_fleet": pool_records(peak_hours(purchase, month).option.pools),
            "peak_gpus": dict(zip(types(purchase), peak_hours(purchase, month).option.gpus, strict=True)),
        }
        for month, peak in enumerate(rates)
    ]


def _contracts(purchase: BuyingPlan) -> list[dict[str, Any]]:
    """The terms as they were used."""
    months, rent = purchase.terms.forecast.months, rents(purchase)
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
    """The answer: the verdict, what to sign now, what each path of the demand asks for, the months and the terms."""
    path = purchase.terms.forecast.paths[purchase.terms.forecast.expected]
    months = f"Month by month, where the demand grows by {signed_percent(path.growth)} a month"
    return Document(
        headline=(*missed_sentences(purchase), *verdict(purchase)),
        sections=(
            Section(sentences=tuple(value_left(purchase)), charts=(_cost_chart(purchase),)),
            Section(table=now_table(purchase)),
            Section(table=paths_table(purchase)),
            Section(f"{months}: {money(purchase.expected.bill.total)} in all", table=months_table(purchase)),
            Section("One GPU under each contract", table=terms_table(purchase)),
            Section(sentences=tuple(notes(purchase))),
        ),
        positive=not purchase.missed,
        about=("What to reserve, buy and rent?", purchase.problem.name),
    )


def types(purchase: BuyingPlan) -> list[str]:
    """Names of the offers."""
    return [offer.accelerator.name for offer in purchase.problem.offers]


def contract_name(purchase: BuyingPlan, contract: Contract) -> str:
    """A contract in words, such as "H100 spot"."""
    return f"{types(purchase)[contract.offer]} {contract.tier.value}"


def signature_words(purchase: BuyingPlan, commitments: Iterable[ContractedGpus]) -> str:
    """Commitments of one month in words."""
    return "; ".join(f"{item.count} × {contract_name(purchase, item.contract)}" for item in commitments)


def signed_later(purchase: BuyingPlan, commitments: Iterable[ContractedGpus]) -> str:
    """Commitments of several months in words, such as "H100 purchase: 2 in month 4, 3 in month 16"."""
    by_contract: dict[str, list[str]] = {}
    for item in commitments:
        by_contract.setdefault(contract_name(purchase, item.contract), []).append(
            f"{item.count} in month {item.month + 1}"
        )
    return "; ".join(f"{name}: {', '.join(dates)}" for name, dates in by_contract.items())


def now_table(purchase: BuyingPlan) -> Table:
    """What is to be signed in the first month."""
    rows = [
        (
            f"{item.count} × {contract_name(purchase, item.contract)}",
            f"month {item.first + 1}",
            "to the horizon" if item.contract.term is None else plural(item.contract.term, "month"),
            money(item.count * item.contract.once),
            f"{money(item.count * item.contract.monthly)}/month",
        )
        for item in purchase.now
    ]
    return table_of(("sign now", "serves from", "for", "#paid at once", "#hosting or fee"), rows)


def paths_table(purchase: BuyingPlan) -> Table:
    """What happens on every path of the demand, and on average."""
    rows = [
        (
            path.name,
            f"{signed_percent(path.growth)} a month",
            percent(path.probability),
            signed_later(purchase, outcome.later) or MISSING,
            money(outcome.bill.total),
            money(outcome.best),
            money(outcome.all_rented),
        )
        for path, outcome in zip(purchase.terms.forecast.paths, purchase.outcomes, strict=True)
    ]
    if len(rows) > 1:
        rows.append(
            (
                "average",
                MISSING,
                "100 %",
                MISSING,
                money(purchase.total),
                money(purchase.hindsight),
                money(purchase.on_demand),
            )
        )
    later = Column("signed later", shrink=True, lines=6)
    return table_of(("demand", "#growth", "#chance", later, "#cost", "#known before", "#all on demand"), rows)


def months_table(purchase: BuyingPlan) -> Table:
    """A row for each month of the expected path: what each tier costs, all types together; then their sum."""
    forecast = purchase.terms.forecast
    tiers, cost = costs_by_tier(purchase)
    peaks = forecast.rates(forecast.paths[forecast.expected].growth).max(axis=1).tolist()
    rows = [
        (str(month + 1), rate(peak), peak_gpus(purchase, month), *map(money, row), money(sum(row)))
        for month, (peak, row) in enumerate(zip(peaks, cost.tolist(), strict=True))
    ]
    sums = cost.sum(axis=0).tolist()
    rows.append(("all", MISSING, MISSING, *map(money, sums), money(sum(sums))))
    gpus = Column("GPUs at the peak", shrink=True, lines=2)
    return table_of(("month", "#peak", gpus, *(f"#{tier.value}" for tier in tiers), "#total"), rows)


def costs_by_tier(purchase: BuyingPlan) -> tuple[list[Tier], NDArray[np.float64]]:
    """The tiers that cost something on the expected path, and what each costs in each month, (months, tiers) [$]."""
    by_month, contracts = purchase.expected.bill.by_month, purchase.terms.contracts
    cost = np.array([by_month[:, [item.tier is tier for item in contracts]].sum(axis=1) for tier in Tier]).T
    columns = [number for number, total in enumerate(cost.sum(axis=0)) if total]
    return [list(Tier)[number] for number in columns], cost[:, columns]


def terms_table(purchase: BuyingPlan) -> Table:
    """What a GPU costs under each contract, from how much use on it pays, and where its price comes from."""
    months, rent = purchase.terms.forecast.months, rents(purchase)
    rows = []
    for item in purchase.terms.contracts:
        share = least_use(item, rent[item.offer], months) if item.committed else None
        used = MISSING if share is None else f"> {percent(share)}" if share < 1.0 else "never"
        payback = payback_months(item, rent[item.offer]) if item.tier is Tier.PURCHASE else None
        paid = MISSING if payback is None else f"{significant(payback)} months" if is_number(payback) else "never"
        rows.append((contract_name(purchase, item), hourly(hourly_price(item, months)), used, paid, item.source))
    source = Column("price from", shrink=True, lines=4)
    return table_of(("contract", "#in use all day", "#pays if used", "#pays itself back in", source), rows)


def rents(purchase: BuyingPlan) -> dict[int, float]:
    """What a GPU of each offer costs on demand [$/h]."""
    return {item.offer: item.running for item in purchase.terms.contracts if item.tier is Tier.ON_DEMAND}


def peak_gpus(purchase: BuyingPlan, month: int) -> str:
    """GPUs of the fleet at the peak of a month of the expected path."""
    needs = zip(types(purchase), peak_hours(purchase, month).option.gpus, strict=True)
    return " + ".join(f"{need} {name}" for name, need in needs if need)


def peak_hours(purchase: BuyingPlan, month: int) -> Hours:
    """The hours of the highest level of a month of the expected path."""
    return max((hours for hours in purchase.expected.bill.hours if hours.month == month), key=lambda hours: hours.level)


# --- sentences ------------------------------------------------------------------------------------------------------


def verdict(purchase: BuyingPlan) -> tuple[str, str]:
    """What to sign, and what it is expected to cost."""
    months, several = plural(purchase.terms.forecast.months, "month"), len(purchase.outcomes) > 1
    owns = any(item.held for item in purchase.terms.contracts)
    action = f"Sign now: {signature_words(purchase, purchase.now)}" if purchase.now else "Sign nothing now"
    rent = "use what is owned and rent the rest" if owns else "rent the rest" if purchase.now else "rent all GPUs"
    paid = sum(item.count * item.contract.once for item in purchase.now)
    cost = f"{months} cost {money(purchase.total)}{' on average' if several else ''}"
    saving = signed_percent(purchase.total / purchase.on_demand - 1.0) if purchase.on_demand else MISSING
    return (
        f"{action}{f' ({money(paid)} at once)' if paid else ''}; {rent} by the hour.",
        f"{cost}: {saving} against renting everything on demand ({money(purchase.on_demand)}).",
    )


def missed_sentences(purchase: BuyingPlan) -> list[str]:
    """That the purchase counts on fleets that miss their SLO in simulation, if it does."""
    looks = purchase.missed
    if not looks:
        return []
    return [
        f"This purchase misses the SLO: it counts on {plural(len(looks), 'fleet')} that missed in simulation, and no "
        f"fleet that was tried instead does better. At {rate(looks[0].fleet.rate)} a fleet of "
        f"{fleet_line(looks[0].fleet.pools)} {looks[0].fault}."
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
    return [
        f"If the demand grows as expected, the GPUs that are bought cost {money(paid)}. After month {months} they are "
        f"still worth {money(book)} (straight-line depreciation). The cost above counts only the difference."
    ]


def notes(purchase: BuyingPlan) -> list[str]:
    """What else a buyer should know, each with its unit and what it is made of."""
    terms, outcome = purchase.terms, purchase.expected
    saving = 1.0 - outcome.all_rented / purchase.fixed if purchase.fixed else 0.0
    kilograms = carbon(purchase)
    carbon_words = f", {significant(kilograms / KILO)} t of CO2 at {terms.grams_per_kwh:g} g/kWh" if kilograms else ""
    return [
        *value_of_information(purchase),
        f"Scaling by the hour, expected growth, all on demand: the month's peak fleet kept all day costs "
        f"{money(purchase.fixed)}, the fleet of each hour {money(outcome.all_rented)}; {percent(saving)} saved "
        "(start-up: pdplan autoscale).",
        f"Bound {money(purchase.bound)}, gap {percent(purchase.gap)}: other commitments and fleets of the "
        f"{count(float(purchase.levels.rates.size))} rates searched could save no more.",
        f"Electricity of all GPUs in use, at {terms.electricity}: {significant(purchase.energy / KILO)} MWh"
        f"{carbon_words}"
        f"{' on average' if len(purchase.outcomes) > 1 else ''}.",
        *_assumptions(purchase),
        *_simulation_sentences(purchase),
    ]


def value_of_information(purchase: BuyingPlan) -> list[str]:
    """What planning for the band is worth over planning for the expected growth, and what knowing would be worth."""
    if len(purchase.outcomes) == 1:
        return ["One growth is taken as sure; state low and high under demand to choose under a band."]
    surplus = purchase.for_expected_cost - purchase.total
    plan = signature_words(purchase, purchase.for_expected) or "nothing"
    same_commitments = set(purchase.for_expected) == set(purchase.now)
    action = (
        "the same would be signed now"
        if same_commitments
        else f"{plan} would be signed now: {money(surplus)} more on average"
    )
    return [
        f"Planned for the expected growth alone, {action}. Knowing the growth beforehand would save "
        f"{money(purchase.total - purchase.hindsight)} on average."
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
    later = f"The growth is taken to be known by the second decision, in month {terms.decide_every + 1}."
    return said(
        f"{signed_later(purchase, beyond)}: paid beyond month {months}, and charged whole." if beyond else "",
        "Spot instances are taken to go and come back independently of one another." if spot else "",
        by_node if limits_by_use(purchase.problem) else "",
        unused_terms if terms.unused else "",
        later if len(purchase.outcomes) > 1 and terms.decide_every < months else "",
    )


def _simulation_sentences(purchase: BuyingPlan) -> tuple[str, ...]:
    """Which of the fleets that serve an hour of some path were simulated, and which fleets are not used therefore."""
    proven_fleets, fleet_count, number = purchase.held, purchase.fleets, len(purchase.held) + len(purchase.missed)
    before = "Before a month begins, run pdplan optimize for its rates."
    if not number:
        return (f"Fleets are by formula, not simulated. {before}",)
    subject = "All" if number == fleet_count else f"{number} of"
    sentence = f"{subject} {plural(fleet_count, 'fleet')} that serve an hour were simulated at the rate they are for."
    if proven_fleets:
        least = min(proven_fleets, key=lambda look: look.attainment)
        many = "All" if not purchase.missed else f"{len(proven_fleets)}"
        where = f"{percent(least.attainment)} of the requests at {rate(least.fleet.rate)}"
        sentence += f" {many} of them meet the SLO; the least share that does is {where}."
    if number < fleet_count:
        sentence += f" The others are by formula (--verify N). {before}"
    return sentence, *_refuted_fleets(purchase)


def _refuted_fleets(purchase: BuyingPlan) -> list[str]:
    """The fleets that miss in simulation, each once for all settings; of many, their number and a few."""
    misses = {(look.fleet.rate, engine_counts(look.fleet.pools)): look for look in reversed(purchase.refuted)}
    cut = f"{plural(len(misses), 'fleet')} missed the SLO in simulation; {REFUTED} of them follow."
    sentences = [
        f"Not used: {fleet_line(look.fleet.pools)} at {rate(look.fleet.rate)}, which {look.fault}."
        for look in [*misses.values()][::-1][:REFUTED]
    ]
    return [*([cut] if len(misses) > REFUTED else []), *sentences]


def carbon(purchase: BuyingPlan) -> float | None:
    """Expected carbon of the electricity [kg]; None where nobody said what a kilowatt-hour emits."""
    grams = purchase.terms.grams_per_kwh
    return None if grams is None else purchase.energy * grams / KILO


# --- charts ---------------------------------------------------------------------------------------------------------


def _cost_chart(purchase: BuyingPlan) -> Chart:
    """What each month of the expected path costs, by tier."""
    tiers, cost = costs_by_tier(purchase)
    stacks = [
        [
            (TONES[tier], value, f"month {month + 1}, {tier.value}: {money(value)}")
            for tier, value in zip(tiers, row, strict=True)
        ]
        for month, row in enumerate(cost.tolist())
    ]
    total = purchase.expected.bill.total
    high = float(cost.sum(axis=1).max(initial=0.0)) or 1.0
    shares = zip(tiers, cost.sum(axis=0).tolist(), strict=True)
    most, usd = max(shares, key=lambda pair: pair[1], default=(Tier.ON_DEMAND, 0.0))
    heights = [(value, money(value).removesuffix(".00")) for value in round_steps(high)]
    dollars, summary = Axis("$ a month", 0.0, 1.05 * high, heights), f"cost of each month, {money(total)} in all"
    return Chart(
        title=f"{capital(most.value)} is {percent(usd / (total or 1.0))} of the {money(total)} of the expected path",
        caption="Cost of each month by contract; what is bought is charged what it loses in value.",
        drawing=draw_stacks(stacks, _month_ticks(len(stacks)), dollars, summary, name="month"),
        table=months_table(purchase),
        legend=tuple((TONES[tier], tier.value) for tier in tiers),
    )


def _month_ticks(months: int) -> list[tuple[float, str]]:
    """First month and every sixth, or as many as there is room for."""
    interval = max(1, 6 if months > 8 else 1, -(-months // 12))
    return [(float(month), str(month + 1)) for month in range(months) if month == 0 or (month + 1) % interval == 0]
