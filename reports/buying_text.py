"""What to reserve, buy and rent, month by month: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from optimizer.plans.records import pool_records
from optimizer.procurement.bill import Bill, Commitment, commitment_cost, least_use, payback_months
from optimizer.procurement.buying import BuyingPlan, Look, Outcome
from search_spaces.contracts import DemandPath, Tier

from .buying_tables import (
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
    text_table,
    types,
    verdict,
)
from .numbers import money, signed_percent
from .text import wrap


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


REFUTED = 3
"""Refuted fleets that the text tells of; their number and all of them stand in the page and the document."""


def buying_text(found: BuyingPlan, width: int) -> str:
    """The verdict first, then what to sign now, what each path of the demand asks for, the months and the terms."""
    path = found.terms.forecast.paths[found.terms.forecast.expected]
    blocks = ["\n".join(wrap(text, width)) for text in (*does_not_hold(found), verdict(found), *left_over(found))]
    if found.now:
        blocks.append(text_table(now_table(found), width))
    blocks.append(text_table(paths_table(found), width))
    head = (
        f"Month by month where the demand grows by {signed_percent(path.growth)} a month, "
        f"{money(found.expected.bill.total)} in all:"
    )
    blocks.append("\n".join([*wrap(head, width), "", text_table(months_table(found), width)]))
    blocks.append(
        "\n".join([*wrap("The same by what it is paid for:", width), "", text_table(parts_table(found), width)])
    )
    blocks.append("\n".join([*wrap("One GPU under each contract:", width), "", text_table(terms_table(found), width)]))
    return "\n\n".join([*blocks, *("\n".join(wrap(text, width)) for text in notes(found, REFUTED))])
