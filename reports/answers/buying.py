"""What buy answers: what to reserve, buy and rent, month by month; every total is the sum of what stands above it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.units import KILO
from optimizer.fleets.binding import limits_by_use
from optimizer.fleets.fleet import fleet_gpus
from optimizer.plans.records import engine_counts, pool_records
from optimizer.procurement.bill import (
    Bill,
    Commitment,
    Hours,
    commitment_cost,
    hourly_price,
    least_use,
    payback_months,
)
from optimizer.procurement.buying import BuyingPlan, Look, Outcome
from reports.answer_charts import HEIGHT, PLOT, Frame, Stack, draw_stacks
from reports.document import Chart, Document, Section, Table, said, table_of
from reports.drawing import WIDTH, Drawing, Mark, Path, Text, axes, plot, round_steps
from reports.numbers import MISSING, count, hourly, is_number, money, percent, rate, signed_percent, significant
from reports.sensitivity import capital, fleet_line
from reports.table import Column
from reports.text import plural
from search_spaces.contracts import Contract, DemandPath, Tier

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


def buying_dict(found: BuyingPlan) -> dict[str, Any]:
    """The answer as a record."""
    terms = found.terms
    return {
        "schema": "pdplan.buying/2",
        "months": terms.forecast.months,
        "expected_usd": found.total,
        "bound_usd": found.bound,
        "gap": found.gap,
        "all_on_demand_usd": found.on_demand,
        "known_before_usd": found.hindsight,
        "now": _taken(found, found.now),
        "for_expected_growth_alone": {
            "now": _taken(found, found.for_expected),
            "expected_usd": found.for_expected_cost,
        },
        "paths": [
            _path(found, path, outcome) for path, outcome in zip(terms.forecast.paths, found.outcomes, strict=True)
        ],
        "expected_path": terms.forecast.paths[terms.forecast.expected].name,
        "by_month": _months(found),
        "fixed_on_demand_usd": found.fixed,
        "contracts": _contracts(found),
        "energy_kwh": found.energy,
        "carbon_kg": carbon(found),
        "fleets": {
            "used": found.looks.every,
            "simulated": len(found.looks.held) + len(found.looks.missed),
            "held": [_looked(item) for item in found.looks.held],
            "missed": [_looked(item) for item in found.looks.missed],
            "refuted": [_looked(item) for item in found.looks.refuted],
        },
    }


def _looked(look: Look) -> dict[str, Any]:
    """A fleet that was simulated."""
    record = {"rate_rps": look.fleet.rate, "pools": pool_records(look.fleet.pools), "attainment": look.attainment}
    return record | ({"fault": look.fault} if look.fault else {})


def _taken(found: BuyingPlan, taken: Iterable[Commitment]) -> list[dict[str, Any]]:
    months = found.terms.forecast.months
    return [
        {
            "month": item.month + 1,
            "serves_from_month": item.first + 1,
            "accelerator": types(found)[item.contract.offer],
            "tier": item.contract.tier.value,
            "gpus": item.count,
            "at_once_usd": item.count * item.contract.once,
            "without_use_usd": item.count * commitment_cost(item.contract, item.month, months),
        }
        for item in taken
    ]


def _path(found: BuyingPlan, path: DemandPath, outcome: Outcome) -> dict[str, Any]:
    bill = outcome.bill
    return {
        "name": path.name,
        "growth": path.growth,
        "probability": path.probability,
        "later": _taken(found, outcome.later),
        "usd": bill.total,
        "known_before_usd": outcome.best,
        "regret_usd": outcome.regret,
        "all_on_demand_usd": outcome.all_rented,
        "value_lost_usd": float(bill.value.sum()),
        "fees_usd": float(bill.fees.sum()),
        "by_hour_usd": float(bill.by_hour.sum()),
    }


def _months(found: BuyingPlan) -> list[dict[str, Any]]:
    """The months of the expected path."""
    terms, bill = found.terms, found.expected.bill
    rates = terms.forecast.rates(terms.forecast.paths[terms.forecast.expected].growth).max(axis=1).tolist()
    return [
        {
            "month": month + 1,
            "peak_rps": peak,
            "usd": _costs(found, bill, month),
            "peak_fleet": pool_records(peak_hours(found, month).option.pools),
            "peak_gpus": dict(zip(types(found), peak_hours(found, month).option.gpus, strict=True)),
        }
        for month, peak in enumerate(rates)
    ]


def _costs(found: BuyingPlan, bill: Bill, month: int) -> dict[str, float]:
    pairs = zip(found.terms.contracts, bill.by_month[month].tolist(), strict=True)
    return {named(found, item): usd for item, usd in pairs if usd}


def _contracts(found: BuyingPlan) -> list[dict[str, Any]]:
    """The terms as they were used."""
    months, rent = found.terms.forecast.months, rents(found)
    return [
        {
            "contract": named(found, item),
            "usd_per_hour_in_use": item.running,
            "usd_per_month_held": item.monthly,
            "usd_at_once": item.once,
            "availability": None if item.spot is None else item.spot.availability,
            "pays_above_use": least_use(item, rent[item.offer], months) if item.committed else None,
            "payback_months": payback_months(item, rent[item.offer]) if item.tier is Tier.PURCHASE else None,
            "source": item.source,
        }
        for item in found.terms.contracts
    ]


# --- the document ---------------------------------------------------------------------------------------------------


def buying_document(found: BuyingPlan) -> Document:
    """The answer: the verdict, what to sign now, what each path of the demand asks for, the months and the terms."""
    path = found.terms.forecast.paths[found.terms.forecast.expected]
    months = f"Month by month, where the demand grows by {signed_percent(path.growth)} a month"
    return Document(
        headline=(*missed_sentences(found), *verdict(found)),
        sections=(
            Section(sentences=tuple(value_left(found)), charts=(_cost_chart(found), _demand_chart(found))),
            Section(table=now_table(found)),
            Section(table=paths_table(found)),
            Section(f"{months}: {money(found.expected.bill.total)} in all", table=months_table(found)),
            Section("The same by what it is paid for", table=parts_table(found)),
            Section("One GPU under each contract", table=terms_table(found)),
            Section(sentences=tuple(notes(found))),
        ),
        positive=not found.looks.missed,
        about=("What to reserve, buy and rent?", found.problem.name),
    )


def types(found: BuyingPlan) -> list[str]:
    """Names of the offers."""
    return [offer.accelerator.name for offer in found.problem.offers]


def named(found: BuyingPlan, contract: Contract) -> str:
    """A contract in words, such as "H100 spot"."""
    return f"{types(found)[contract.offer]} {contract.tier.value}"


def signed(found: BuyingPlan, taken: Iterable[Commitment]) -> str:
    """Commitments of one month in words."""
    return "; ".join(f"{item.count} × {named(found, item.contract)}" for item in taken)


def signed_later(found: BuyingPlan, taken: Iterable[Commitment]) -> str:
    """Commitments of several months in words, such as "H100 purchase: 2 in month 4, 3 in month 16"."""
    by_contract: dict[str, list[str]] = {}
    for item in taken:
        by_contract.setdefault(named(found, item.contract), []).append(f"{item.count} in month {item.month + 1}")
    return "; ".join(f"{name}: {', '.join(parts)}" for name, parts in by_contract.items())


def now_table(found: BuyingPlan) -> Table:
    """What is to be signed in the first month."""
    rows = [
        (
            f"{item.count} × {named(found, item.contract)}",
            f"month {item.first + 1}",
            "to the horizon" if item.contract.term is None else plural(item.contract.term, "month"),
            money(item.count * item.contract.once),
            f"{money(item.count * item.contract.monthly)}/month",
        )
        for item in found.now
    ]
    return table_of(("sign now", "serves from", "for", "#paid at once", "#hosting or fee"), rows)


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
            ("average", MISSING, "100 %", MISSING, money(found.total), money(found.hindsight), money(found.on_demand))
        )
    later = Column("signed later", shrink=True, lines=6)
    return table_of(("demand", "#growth", "#chance", later, "#cost", "#known before", "#all on demand"), rows)


def months_table(found: BuyingPlan) -> Table:
    """A row for each month of the expected path: what each tier costs, all types together; then their sum."""
    forecast = found.terms.forecast
    tiers, cost = costs_by_tier(found)
    peaks = forecast.rates(forecast.paths[forecast.expected].growth).max(axis=1).tolist()
    rows = [
        (str(month + 1), rate(peak), peak_gpus(found, month), *map(money, row), money(sum(row)))
        for month, (peak, row) in enumerate(zip(peaks, cost.tolist(), strict=True))
    ]
    sums = cost.sum(axis=0).tolist()
    rows.append(("all", MISSING, MISSING, *map(money, sums), money(sum(sums))))
    gpus = Column("GPUs at the peak", shrink=True, lines=2)
    return table_of(("month", "#peak", gpus, *(f"#{tier.value}" for tier in tiers), "#total"), rows)


def costs_by_tier(found: BuyingPlan) -> tuple[list[Tier], NDArray[np.float64]]:
    """The tiers that cost something on the expected path, and what each costs in each month, (months, tiers) [$]."""
    by_month, contracts = found.expected.bill.by_month, found.terms.contracts
    cost = np.array([by_month[:, [item.tier is tier for item in contracts]].sum(axis=1) for tier in Tier]).T
    shown = [number for number, total in enumerate(cost.sum(axis=0)) if total]
    return [list(Tier)[number] for number in shown], cost[:, shown]


def parts_table(found: BuyingPlan) -> Table:
    """Where the dollars of the expected path go; its sum is that of `months_table`."""
    bill = found.expected.bill
    parts = np.array([bill.value.sum(axis=0), bill.fees.sum(axis=0), bill.by_hour.sum(axis=0)])
    rows = [
        (named(found, item), *map(money, column), money(sum(column)))
        for item, column in zip(found.terms.contracts, parts.T.tolist(), strict=True)
        if sum(column)
    ]
    sums = parts.sum(axis=1).tolist()
    rows.append(("all", *map(money, sums), money(sum(sums))))
    return table_of(("contract", "#value lost", "#hosting, fees", "#rent, electricity", "#total"), rows)


def terms_table(found: BuyingPlan) -> Table:
    """What a GPU costs under each contract, from how much use on it pays, and where its price comes from."""
    months, rent = found.terms.forecast.months, rents(found)
    rows = []
    for item in found.terms.contracts:
        share = least_use(item, rent[item.offer], months) if item.committed else None
        used = MISSING if share is None else f"> {percent(share)}" if share < 1.0 else "never"
        payback = payback_months(item, rent[item.offer]) if item.tier is Tier.PURCHASE else None
        paid = MISSING if payback is None else f"{significant(payback)} months" if is_number(payback) else "never"
        rows.append((named(found, item), hourly(hourly_price(item, months)), used, paid, item.source))
    source = Column("price from", shrink=True, lines=4)
    return table_of(("contract", "#in use all day", "#pays if used", "#pays itself back in", source), rows)


def rents(found: BuyingPlan) -> dict[int, float]:
    """What a GPU of each offer costs on demand [$/h]."""
    return {item.offer: item.running for item in found.terms.contracts if item.tier is Tier.ON_DEMAND}


def peak_gpus(found: BuyingPlan, month: int) -> str:
    """GPUs of the fleet at the peak of a month of the expected path."""
    needs = zip(types(found), peak_hours(found, month).option.gpus, strict=True)
    return " + ".join(f"{need} {name}" for name, need in needs if need)


def peak_hours(found: BuyingPlan, month: int) -> Hours:
    """The hours of the highest level of a month of the expected path."""
    return max((hours for hours in found.expected.bill.hours if hours.month == month), key=lambda hours: hours.level)


# --- sentences ------------------------------------------------------------------------------------------------------


def verdict(found: BuyingPlan) -> tuple[str, str]:
    """What to sign, and what it is expected to cost."""
    months, several = plural(found.terms.forecast.months, "month"), len(found.outcomes) > 1
    owned = any(item.held for item in found.terms.contracts)
    what = f"Sign now: {signed(found, found.now)}" if found.now else "Sign nothing now"
    rent = "use what is owned and rent the rest" if owned else "rent the rest" if found.now else "rent all GPUs"
    paid = sum(item.count * item.contract.once for item in found.now)
    cost = f"{months} cost {money(found.total)}{' on average' if several else ''}"
    saved = signed_percent(found.total / found.on_demand - 1.0) if found.on_demand else MISSING
    return (
        f"{what}{f' ({money(paid)} at once)' if paid else ''}; {rent} by the hour.",
        f"{cost}: {saved} against renting everything on demand ({money(found.on_demand)}).",
    )


def missed_sentences(found: BuyingPlan) -> list[str]:
    """That the purchase counts on fleets that miss their SLO in simulation, if it does."""
    missed = found.looks.missed
    if not missed:
        return []
    return [
        f"This purchase misses the SLO: it counts on {plural(len(missed), 'fleet')} that missed in simulation, and no "
        f"fleet that was tried instead does better. {_fault(missed[0])}"
    ]


def _fault(look: Look) -> str:
    return f"At {rate(look.fleet.rate)} a fleet of {fleet_line(look.fleet.pools)} {look.fault}."


def value_left(found: BuyingPlan) -> list[str]:
    """What is paid for GPUs on the expected path, and what of it the cost leaves out; empty where none is bought."""
    months, taken = found.terms.forecast.months, [*found.now, *found.expected.later]
    paid = sum(item.count * item.contract.once for item in taken)
    book = sum(
        item.count * item.contract.once * max(1.0 - (months - item.first) / item.contract.life, 0.0)
        for item in taken
        if item.contract.life
    )
    if not book:
        return []
    return [
        f"{money(paid)} are paid for GPUs where the demand grows as expected. The cost has only what they lose in "
        f"value. {money(book)} of their price is left after month {months} (straight-line depreciation): use them on, "
        "or sell them at that."
    ]


def notes(found: BuyingPlan) -> list[str]:
    """What else a buyer should know, each with its unit and what it is made of."""
    terms, expected = found.terms, found.expected
    saved = 1.0 - expected.all_rented / found.fixed if found.fixed else 0.0
    kilograms = carbon(found)
    emitted = f", {significant(kilograms / KILO)} t of CO2 at {terms.grams_per_kwh:g} g/kWh" if kilograms else ""
    return [
        *value_of_information(found),
        f"Scaling by the hour, expected growth, all on demand: the month's peak fleet kept all day costs "
        f"{money(found.fixed)}, the fleet of each hour {money(expected.all_rented)}; {percent(saved)} saved (start-up: "
        "pdplan autoscale).",
        f"Bound {money(found.bound)}, gap {percent(found.gap)}: other commitments and fleets of the "
        f"{count(float(found.levels.rates.size))} rates searched could save no more. An hour is served by the fleet of "
        f"the next of these rates, on average {percent(_rounding(found))} above its own.",
        f"Electricity of all GPUs in use, at {terms.electricity}: {significant(found.energy / KILO)} MWh{emitted}"
        f"{' on average' if len(found.outcomes) > 1 else ''}.",
        *_assumptions(found),
        *_simulated(found),
    ]


def value_of_information(found: BuyingPlan) -> list[str]:
    """What planning for the band is worth over planning for the expected growth, and what knowing would be worth."""
    if len(found.outcomes) == 1:
        return ["One growth is taken as sure; state low and high under demand to choose under a band."]
    surplus = found.for_expected_cost - found.total
    plan = signed(found, found.for_expected) or "nothing"
    same = set(found.for_expected) == set(found.now)
    what = "the same would be signed now" if same else f"{plan} would be signed now: {money(surplus)} more on average"
    return [
        f"Planned for the expected growth alone, {what}. Knowing the growth beforehand would save "
        f"{money(found.total - found.hindsight)} on average."
    ]


def _assumptions(found: BuyingPlan) -> tuple[str, ...]:
    """What the purchase takes for granted, where that plays a part."""
    terms = found.terms
    months, taken = terms.forecast.months, [*found.now, *found.expected.later]
    beyond = [item for item in taken if item.contract.term and item.first + item.contract.term > months]
    spot = any(item.tier is Tier.SPOT for item in terms.contracts)
    by_node = (
        "Where whole nodes are billed, inventory, power, max_gpus and budget count all of their GPUs here; pdplan "
        "optimize counts those that engines use, except for the budget."
    )
    unused = f"Terms of {', '.join(terms.unused)} are not used: the workload file does not offer it."
    later = f"The growth is taken to be known by the second decision, in month {terms.decide_every + 1}."
    return said(
        f"{signed_later(found, beyond)}: paid beyond month {months}, and charged whole." if beyond else "",
        "Spot instances are taken to go and come back independently of one another." if spot else "",
        by_node if limits_by_use(found.problem) else "",
        unused if terms.unused else "",
        later if len(found.outcomes) > 1 and terms.decide_every < months else "",
    )


def _simulated(found: BuyingPlan) -> tuple[str, ...]:
    """Which of the fleets that serve an hour of some path were simulated, and which fleets are not used therefore."""
    looks = found.looks
    before = "Before a month begins, run pdplan optimize for its rates."
    if not looks.held and not looks.missed:
        return (f"Fleets are by formula, not simulated. {before}",)
    seen = len(looks.held) + len(looks.missed)
    which = "All" if seen == looks.every else f"{seen} of"
    sentence = f"{which} {plural(looks.every, 'fleet')} that serve an hour were simulated at the rate they are for."
    if looks.held:
        least = min(looks.held, key=lambda look: look.attainment)
        many = "All" if not looks.missed else f"{len(looks.held)}"
        where = f"{percent(least.attainment)} of the requests at {rate(least.fleet.rate)}"
        sentence += f" {many} of them meet the SLO; the least share that does is {where}."
    if seen < looks.every:
        sentence += f" The others are by formula (--verify N). {before}"
    return sentence, *_refuted_fleets(found)


def _refuted_fleets(found: BuyingPlan) -> list[str]:
    """The fleets that miss in simulation; where they are more than REFUTED, their number and the dearest few."""
    alike: dict[tuple[object, ...], list[Look]] = {}
    for look in found.looks.refuted:
        alike.setdefault((look.fleet.rate, engine_counts(look.fleet.pools)), []).append(look)
    groups = sorted(alike.values(), key=lambda looks: -_list_price(found, looks[0]))
    more = len(groups) - REFUTED
    cut = [f"{plural(len(groups), 'fleet')} missed the SLO in simulation; the {REFUTED} dearest follow."]
    return [*(cut if more > 0 else []), *map(_refuted, groups[:REFUTED])]


def _list_price(found: BuyingPlan, look: Look) -> float:
    """What the GPUs of a fleet would cost at the prices of the workload file [$/h]."""
    gpus = fleet_gpus(look.fleet.instance, look.fleet.fleet)
    return float(gpus @ np.array([offer.usd_per_hour for offer in found.problem.offers]))


def _refuted(alike: Sequence[Look]) -> str:
    """That a fleet misses at a rate, once for all settings of its engines."""
    others = len(alike) - 1
    more = f" So it does with {plural(others, 'other setting')} of its replicas." if others else ""
    fleet = alike[0].fleet
    return f"Not used: {fleet_line(fleet.pools)} at {rate(fleet.rate)}, which {alike[0].fault}.{more}"


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


# --- charts ---------------------------------------------------------------------------------------------------------


def _cost_chart(found: BuyingPlan) -> Chart:
    """What each month of the expected path costs, by tier."""
    tiers, cost = costs_by_tier(found)
    stacks = [
        Stack(
            tuple(
                (TONES[tier], value, f"month {month + 1}, {tier.value}: {money(value)}")
                for tier, value in zip(tiers, row, strict=True)
            )
        )
        for month, row in enumerate(cost.tolist())
    ]
    total = found.expected.bill.total
    high = max((stack.total for stack in stacks), default=0.0) or 1.0
    shares = zip(tiers, cost.sum(axis=0).tolist(), strict=True)
    most, usd = max(shares, key=lambda pair: pair[1], default=(Tier.ON_DEMAND, 0.0))
    heights = [(value, money(value).removesuffix(".00")) for value in round_steps(high)]
    frame = Frame("month", "$ a month", _month_ticks(len(stacks)), heights, 1.05 * high)
    return Chart(
        title=f"{capital(most.value)} is {percent(usd / (total or 1.0))} of the {money(total)} of the expected path",
        caption="Cost of each month by contract; what is bought is charged what it loses in value.",
        drawing=draw_stacks(stacks, frame, f"cost of each month, {money(total)} in all"),
        table=months_table(found),
        legend=tuple((TONES[tier], tier.value) for tier in tiers),
    )


def _demand_chart(found: BuyingPlan) -> Chart:
    """The peak rate of each month on every path."""
    forecast = found.terms.forecast
    peaks = [forecast.rates(path.growth).max(axis=1).tolist() for path in forecast.paths]
    high = max(max(row) for row in peaks)
    drawn = plot(PLOT, (0.0, max(forecast.months - 1.0, 1.0)), (0.0, 1.1 * high))
    heights = [(value, significant(value)) for value in round_steps(high)]
    marks: list[Mark] = axes(drawn, _month_ticks(forecast.months), heights, "month", "requests/s at the peak")
    ends: list[float] = []
    for path, row in zip(forecast.paths, peaks, strict=True):
        tone = "curve decode" if path is forecast.paths[forecast.expected] else "front"
        points = tuple(drawn.at((float(month), value)) for month, value in enumerate(row))
        tip = f"{path.name}: {signed_percent(path.growth)} a month, {rate(row[-1])} in month {len(row)}"
        marks.append(Path(points if len(points) > 1 else points * 2, tone, tip))
        y = min([points[-1][1] - 6, *(end - 14 for end in ends if abs(end - points[-1][1] + 6) < 14)])
        ends.append(y)
        marks.append(Text(PLOT.right, y, f"{path.name} {signed_percent(path.growth)}", "label halo", "end"))
    rows = [(str(month + 1), *(rate(row[month]) for row in peaks)) for month in range(forecast.months)]
    last = " to ".join(dict.fromkeys(rate(value) for value in sorted({peaks[0][-1], peaks[-1][-1]})))
    return Chart(
        title=f"The forecast ends at {last}",
        caption="Highest rate of each month on every path that was planned for.",
        drawing=Drawing(WIDTH, HEIGHT, f"peak rate by month, {last} at the end", tuple(marks)),
        table=table_of(("month", *(f"#{path.name}" for path in forecast.paths)), rows),
    )


def _month_ticks(months: int) -> list[tuple[float, str]]:
    """First month and every sixth, or as many as there is room for."""
    every = max(1, 6 if months > 8 else 1, -(-months // 12))
    return [(float(month), str(month + 1)) for month in range(months) if month == 0 or (month + 1) % every == 0]
