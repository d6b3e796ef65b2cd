"""What to reserve, buy and rent over the months, as a page."""

from __future__ import annotations

from typing import Final

import numpy as np

from optimizer.procurement.buying import BuyingPlan
from search_spaces.contracts import Tier

from .answer_page import HEIGHT, PLOT, AnswerPage, Frame, Part, Stack, draw_stacks, render_answer
from .answers.buying import buying_dict
from .buying_tables import (
    does_not_hold,
    left_over,
    months_table,
    notes,
    now_table,
    parts_table,
    paths_table,
    shown_tiers,
    terms_table,
    verdict,
)
from .document import Chart, table_of
from .drawing import WIDTH, Drawing, Mark, Path, Text, axes, plot, round_steps
from .numbers import money, percent, rate, signed_percent, significant

TONES: Final = {
    Tier.ON_DEMAND: "part-communication",
    Tier.SPOT: "part-attention",
    Tier.RESERVED_1: "part-gemm",
    Tier.RESERVED_3: "heat-4",
    Tier.PURCHASE: "part-experts",
    Tier.OWNED: "part-host",
}
"""Colour of each tier."""


def render_buying(found: BuyingPlan) -> str:
    """Return the page as one HTML document."""
    return render_answer(make_buying_page(found), buying_dict(found))


def make_buying_page(found: BuyingPlan) -> AnswerPage:
    """Compute the page of a purchase."""
    path = found.terms.forecast.paths[found.terms.forecast.expected]
    told = f"Where the demand grows by {signed_percent(path.growth)} a month"
    cost = money(found.expected.bill.total)
    parts = [
        Part("Sign now", now_table(found)) if found.now else None,
        Part(
            "Then, as the demand turns out",
            paths_table(found),
            "Cost up to the horizon with what is signed now; had the growth been known before; and all on demand.",
        ),
        Part("Month by month", months_table(found), f"{told}, {cost} in all."),
        Part("What it is paid for", parts_table(found), f"{told}: the same {cost}."),
        Part("One GPU under each contract", terms_table(found), "Use: share of the hours. Against on demand."),
    ]
    return AnswerPage(
        name=found.problem.name,
        question="What to reserve, buy and rent?",
        headline=verdict(found),
        lead=(*does_not_hold(found), *left_over(found)),
        charts=(_cost_chart(found), _demand_chart(found)),
        parts=tuple(part for part in parts if part is not None),
        notes=tuple(notes(found)),
    )


def _cost_chart(found: BuyingPlan) -> Chart:
    """What each month of the expected path costs, by tier."""
    bill, terms = found.expected.bill, found.terms
    shown = shown_tiers(found)
    cost = np.array([bill.by_month[:, [one.tier is tier for one in terms.contracts]].sum(axis=1) for tier in shown]).T
    stacks = [
        Stack(
            tuple(
                (TONES[tier], value, f"month {month + 1}, {tier.value}: {money(value)}")
                for tier, value in zip(shown, row, strict=True)
            )
        )
        for month, row in enumerate(cost.tolist())
    ]
    high = max((stack.total for stack in stacks), default=0.0) or 1.0
    shares = zip(shown, cost.sum(axis=0).tolist(), strict=True)
    most, usd = max(shares, key=lambda pair: pair[1], default=(Tier.ON_DEMAND, 0.0))
    total = bill.total or 1.0
    frame = Frame(
        "month",
        "$ a month",
        _month_ticks(len(stacks)),
        [(v, money(v).removesuffix(".00")) for v in round_steps(high)],
        1.05 * high,
    )
    return Chart(
        title=f"{most.value.capitalize()} is {percent(usd / total)} of the {money(bill.total)} of the expected path",
        caption="Cost of each month by contract; what is bought is charged what it loses in value.",
        drawing=draw_stacks(stacks, frame, f"cost of each month, {money(bill.total)} in all"),
        table=months_table(found),
        legend=tuple((TONES[tier], tier.value) for tier in shown),
    )


def _demand_chart(found: BuyingPlan) -> Chart:
    """The peak rate of each month on every path."""
    forecast = found.terms.forecast
    peaks = [forecast.rates(path.growth).max(axis=1).tolist() for path in forecast.paths]
    high = max(max(row) for row in peaks)
    drawn = plot(PLOT, (0.0, max(forecast.months - 1.0, 1.0)), (0.0, 1.1 * high))
    y_ticks = [(value, significant(value)) for value in round_steps(high)]
    marks: list[Mark] = axes(drawn, _month_ticks(forecast.months), y_ticks, "month", "requests/s at the peak")
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
        table=table_of(("month", *(f"#{path.name}" for path in forecast.paths)), tuple(rows)),
    )


def _month_ticks(months: int) -> list[tuple[float, str]]:
    """First month and every sixth, or as many as there is room for."""
    every = max(1, 6 if months > 8 else 1, -(-months // 12))
    return [(float(month), str(month + 1)) for month in range(months) if month == 0 or (month + 1) % every == 0]
