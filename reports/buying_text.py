"""What to reserve, buy and rent, month by month: as text and as JSON."""

from __future__ import annotations

from typing import Any

from costmodel.units import KILO
from optimizer.procurement.buying import Bought, Commitment, Hours, commitment_cost, energy
from search_spaces.buying_terms import Contract, Tier

from .numbers import count, money, percent, rate, signed_percent
from .table import Column, render_table
from .text import wrap


def buying_dict(found: Bought) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    terms, bill = found.terms, found.bill
    return {
        "schema": "pdplan.buying/1",
        "months": terms.forecast.months,
        "total_usd": bill.total,
        "committed_usd": bill.committed,
        "bound_usd": found.bound,
        "gap": found.gap,
        "all_on_demand_usd": found.on_demand,
        "all_on_demand_fixed_usd": found.fixed,
        "commitments": [
            {
                "month": one.month + 1,
                "serves_from_month": one.first + 1,
                "accelerator": _gpu(found, one.contract),
                "tier": one.contract.tier.value,
                "gpus": one.count,
                "usd": _cost(found, one),
            }
            for one in found.commitments
        ],
        "by_month": [
            {
                "month": month + 1,
                "peak_rps": float(terms.forecast.rates(terms.forecast.growth[1])[month].max()),
                "usd": {_name(found, one): float(usd) for one, usd in zip(terms.contracts, row, strict=True) if usd},
                "peak_fleet": list(_peak(found, month).option.pools),
                "peak_gpus": dict(zip(_types(found), _peak(found, month).option.gpus, strict=True)),
            }
            for month, row in enumerate(bill.by_month)
        ],
        "wrong_forecast": {
            name: {"growth": one.growth, "usd": one.cost, "best_usd": one.best, "regret_usd": one.regret}
            for name, one in (("low", found.low), ("high", found.high))
        },
        "energy_kwh": energy(terms, bill),
        "carbon_kg": _carbon(found),
    }


def buying_text(found: Bought, width: int) -> str:
    """The verdict first, then what to commit to, every month, and what a wrong forecast costs."""
    blocks = [_wrapped(_verdict(found), width)]
    if found.commitments:
        blocks.append(_commitments(found, width))
    blocks.append(_months(found, width))
    blocks.append(_wrong(found, width))
    blocks += [_wrapped(text, width) for text in _notes(found)]
    return "\n\n".join(blocks)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(wrap(text, width))


def _verdict(found: Bought) -> str:
    bill, months = found.bill, found.terms.forecast.months
    what = "; ".join(
        f"{one.count} × {_gpu(found, one.contract)} {one.contract.tier.value} in month {one.month + 1}"
        for one in found.commitments
    )
    saved = signed_percent(bill.total / found.on_demand - 1.0)
    return (
        f"{'Commit to ' + what if what else 'Commit to nothing'}; rent the rest by the hour. {months} months cost "
        f"{money(bill.total)}: {saved} against renting everything on demand by the hour ({money(found.on_demand)})."
    )


def _commitments(found: Bought, width: int) -> str:
    rows = [
        [
            str(one.month + 1),
            f"{one.count} × {_gpu(found, one.contract)}",
            one.contract.tier.value,
            str(one.first + 1),
            money(_cost(found, one)),
        ]
        for one in found.commitments
    ]
    columns = [
        Column("decide in month", "right"),
        Column("GPUs"),
        Column("contract"),
        Column("serves from", "right"),
        Column("cost to the horizon", "right"),
    ]
    return render_table(rows, columns, width)


def _months(found: Bought, width: int) -> str:
    """A row for each month: what each tier costs, all types together."""
    bill, terms = found.bill, found.terms
    costs = {
        tier: bill.by_month[:, [one.tier is tier for one in terms.contracts]].sum(axis=1).tolist() for tier in Tier
    }
    shown = [tier for tier in Tier if any(costs[tier])]
    peaks = terms.forecast.rates(terms.forecast.growth[1]).max(axis=1).tolist()
    rows = [
        [
            str(month + 1),
            rate(peak),
            _gpus(found, month),
            *(money(costs[tier][month]) for tier in shown),
            money(sum(costs[tier][month] for tier in shown)),
        ]
        for month, peak in enumerate(peaks)
    ]
    columns = [
        Column("month", "right"),
        Column("peak", "right"),
        Column("GPUs at the peak", shrink=True),
        *(Column(tier.value, "right") for tier in shown),
        Column("total", "right"),
    ]
    return render_table(rows, columns, width)


def _gpus(found: Bought, month: int) -> str:
    """GPUs of the fleet at the peak of a month."""
    needs = zip(_types(found), _peak(found, month).option.gpus, strict=True)
    return " + ".join(f"{need} {name}" for name, need in needs if need)


def _wrong(found: Bought, width: int) -> str:
    rows = [
        [name, f"{signed_percent(one.growth)} a month", money(one.cost), money(one.best), money(one.regret)]
        for name, one in (("low", found.low), ("high", found.high))
    ]
    columns = [
        Column("forecast"),
        Column("growth", "right"),
        Column("with these commitments", "right"),
        Column("with the best in hindsight", "right"),
        Column("being wrong costs", "right"),
    ]
    return render_table(rows, columns, width)


def _notes(found: Bought) -> list[str]:
    bill, terms = found.bill, found.terms
    saved = 1.0 - found.on_demand / found.fixed if found.fixed else 0.0
    return [
        f"Scaling by the hour: all on demand, the month's peak fleet kept all day costs {money(found.fixed)}, the "
        f"fleet of each hour {money(found.on_demand)}; {percent(saved)} saved (start-up: pdplan autoscale).",
        f"Bound {money(found.bound)}, gap {percent(found.gap)}: other commitments and fleets of the "
        f"{count(float(found.levels.rates.size))} rates searched could save no more.",
        f"Electricity of all GPUs in use: {count(energy(terms, bill) / KILO)} MWh"
        + ("." if terms.grams_per_kwh is None else f", {count((_carbon(found) or 0.0) / KILO)} t of CO2."),
        "Fleets are by formula, not simulated; each hour has the fleet of the next rate above. Before a month begins, "
        "run pdplan optimize for its rates.",
    ]


def _carbon(found: Bought) -> float | None:
    """Carbon of the electricity [kg]; None where nobody said what a kilowatt-hour emits."""
    grams = found.terms.grams_per_kwh
    return None if grams is None else energy(found.terms, found.bill) * grams / KILO


def _peak(found: Bought, month: int) -> Hours:
    """The hours of the highest level of a month."""
    return max((one for one in found.bill.hours if one.month == month), key=lambda one: one.level)


def _cost(found: Bought, one: Commitment) -> float:
    return one.count * commitment_cost(one.contract, one.month, found.terms.forecast.months)


def _types(found: Bought) -> list[str]:
    return [offer.accelerator.name for offer in found.problem.offers]


def _gpu(found: Bought, contract: Contract) -> str:
    return _types(found)[contract.offer]


def _name(found: Bought, contract: Contract) -> str:
    return f"{_gpu(found, contract)} {contract.tier.value}"
