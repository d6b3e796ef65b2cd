"""What buy answers: what to reserve, buy and rent, month by month."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from optimizer.plans.records import pool_records
from optimizer.procurement.bill import Bill, Commitment, commitment_cost, least_use, payback_months
from optimizer.procurement.buying import BuyingPlan, Look, Outcome
from reports.buying_tables import (
    carbon,
    does_not_hold,
    left_over,
    months_table,
    named,
    notes,
    now_table,
    parts_table,
    paths_table,
    peak_hours,
    terms_table,
    types,
    verdict,
)
from reports.document import Document, Section, Table, table_of
from reports.numbers import money, signed_percent
from reports.table import Column
from search_spaces.contracts import DemandPath, Tier

REFUTED: Final = 3
"""Refuted fleets that the text tells of; their number and all of them stand in the page and the JSON."""
SHRINKS: Final = {"GPUs at the peak": 2, "signed later": 6, "price from": 4, "GPUs": 2}
"""Columns that give way in the terminal, and the lines that their cells may take."""


def buying_dict(found: BuyingPlan) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
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
            "held": [_seen(one) for one in found.looks.held],
            "missed": [_seen(one) for one in found.looks.missed],
            "refuted": [_seen(one) for one in found.looks.refuted],
        },
    }


def _seen(one: Look) -> dict[str, Any]:
    """A fleet that was simulated."""
    known = {"rate_rps": one.fleet.rate, "pools": pool_records(one.fleet.pools), "attainment": one.attainment}
    return known | ({"fault": one.fault} if one.fault else {})


def _taken(found: BuyingPlan, taken: Iterable[Commitment]) -> list[dict[str, Any]]:
    months = found.terms.forecast.months
    return [
        {
            "month": one.month + 1,
            "serves_from_month": one.first + 1,
            "accelerator": types(found)[one.contract.offer],
            "tier": one.contract.tier.value,
            "gpus": one.count,
            "at_once_usd": one.count * one.contract.once,
            "without_use_usd": one.count * commitment_cost(one.contract, one.month, months),
        }
        for one in taken
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
    return {named(found, one): usd for one, usd in pairs if usd}


def _contracts(found: BuyingPlan) -> list[dict[str, Any]]:
    """The terms as they were used."""
    months = found.terms.forecast.months
    rent = {one.offer: one.running for one in found.terms.contracts if one.tier is Tier.ON_DEMAND}
    return [
        {
            "contract": named(found, one),
            "usd_per_hour_in_use": one.running,
            "usd_per_month_held": one.monthly,
            "usd_at_once": one.once,
            "availability": None if one.spot is None else one.spot.availability,
            "pays_above_use": least_use(one, rent[one.offer], months) if one.committed else None,
            "payback_months": payback_months(one, rent[one.offer]) if one.tier is Tier.PURCHASE else None,
            "source": one.source,
        }
        for one in found.terms.contracts
    ]


def buying_document(found: BuyingPlan) -> Document:
    """The answer: the verdict, what to sign now, what each path of the demand asks for, the months and the terms."""
    path = found.terms.forecast.paths[found.terms.forecast.expected]
    months = f"Month by month, where the demand grows by {signed_percent(path.growth)} a month"
    return Document(
        headline=(*does_not_hold(found), verdict(found)),
        sections=(
            Section(sentences=tuple(left_over(found))),
            Section(table=_shown(now_table(found))),
            Section(table=_shown(paths_table(found))),
            Section(f"{months}: {money(found.expected.bill.total)} in all", table=_shown(months_table(found))),
            Section("The same by what it is paid for", table=_shown(parts_table(found))),
            Section("One GPU under each contract", table=_shown(terms_table(found))),
            Section(sentences=tuple(notes(found, REFUTED))),
        ),
        positive=not found.looks.missed,
    )


def _shown(table: Table) -> Table:
    """A table of the page, with columns that give way."""
    lines = [SHRINKS.get(header.removeprefix("#"), 0) for header in table.headers]
    return table_of(
        [Column(header, shrink=True, lines=n) if n else header for header, n in zip(table.headers, lines, strict=True)],
        table.rows,
    )
