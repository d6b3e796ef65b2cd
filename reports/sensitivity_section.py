"""The section Sensitivity: tornado, break-even prices, and where another kind of fleet becomes the cheapest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import Plan
from optimizer.plans.records import Sensitivity

from .document import Chart, Table, table_of
from .drawing import WIDTH, Box, Drawing, Linear, Log, Mark, Path, Rect, Text, text_width
from .numbers import MISSING, hourly, listed, money, significant
from .sensitivity import (
    End,
    LeverBar,
    PriceStrip,
    Stretch,
    TornadoFigure,
    base_sentence,
    fleet_line,
    flip_sentence,
    flips,
    flips_sentence,
    lever_words,
    more_sentence,
    piece_here,
    price_sentences,
    price_strips,
    still_sentence,
    swing_sentence,
    swing_words,
    tornado_figure,
    value_words,
)
from .text import clean, fit

FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Ticks of prices over the price at hand."""


@dataclass(frozen=True, slots=True)
class SensitivityView:
    """What the section shows; without charts where it was not worked out, and then `more` and `command` say how to."""

    basis: str
    charts: tuple[Chart, ...]
    prices: tuple[str, ...]
    flips_title: str
    flips: Table
    more: str
    command: str


def sensitivity_view(plan: Plan) -> SensitivityView:
    """Compute the section of a plan that has a fleet."""
    found = plan.sensitivity
    if found is None:
        return SensitivityView("", (), (), "", table_of((), ()), *more_sentence(plan))
    more, command = more_sentence(plan)
    return SensitivityView(
        basis=base_sentence(plan, found),
        charts=tuple(chart for chart in (_tornado_chart(found), _price_chart(plan, found)) if chart is not None),
        prices=tuple(price_sentences(found)),
        flips_title=flips_sentence(found),
        flips=_flips(found),
        more=more,
        command=command,
    )


def lever_rows(found: Sensitivity) -> list[tuple[str, ...]]:
    """Each lever with its ends and what the cheapest fleet costs there, the largest swing first."""
    return [
        (
            lever_words(row.lever),
            value_words(row.lever, row.low),
            hourly(row.usd_per_hour_low),
            swing_words(found, row.usd_per_hour_low),
            value_words(row.lever, row.high),
            hourly(row.usd_per_hour_high),
            swing_words(found, row.usd_per_hour_high),
        )
        for row in found.levers
    ]


LEVER_HEADERS: Final = ("lever", "#lower", "#$/h fleet", "#change", "#higher", "#$/h fleet", "#change")


def _tornado_chart(found: Sensitivity) -> Chart | None:
    if not found.levers:
        return None
    return Chart(
        title=swing_sentence(found),
        caption=f"Upper bar: the lever lower; lower bar: higher; left of the line is cheaper. {still_sentence(found)}",
        drawing=draw_tornado(tornado_figure(found)),
        table=table_of(LEVER_HEADERS, lever_rows(found)),
    )


def _price_chart(plan: Plan, found: Sensitivity) -> Chart | None:
    strips = price_strips(found)
    if not strips:
        return None
    rows = [
        (
            clean(row.accelerator),
            hourly(piece.low),
            hourly(piece.high),
            fleet_line(piece.pools),
            hourly(piece.usd_per_hour_low),
            hourly(piece.usd_per_hour_high),
            "yes" if piece is piece_here(row) else "no",
        )
        for row in found.break_even
        for piece in row.pieces
    ]
    headers = ("GPU", "#$/h GPU from", "#to", "cheapest fleet", "#$/h fleet from", "#to", "at hand")
    return Chart(
        title=flip_sentence(plan, found),
        caption="Price of one GPU over its price now (the mark); where a piece ends, another fleet is the cheapest.",
        drawing=draw_strips(strips),
        table=table_of(headers, rows),
    )


def _flips(found: Sensitivity) -> Table:
    rows = [
        (
            lever_words(row.lever),
            value_words(row.lever, row.value),
            value_words(row.lever, flip.same_at),
            value_words(row.lever, flip.other_at),
            fleet_line(flip.pools),
            hourly(flip.usd_per_hour) if flip.usd_per_hour is not None else MISSING,
        )
        for row, flip in flips(found)
    ]
    return table_of(("lever", "#at hand", "#same kind at", "#another at", "which", "#$/h fleet"), rows)


def draw_tornado(figure: TornadoFigure) -> Drawing:
    """Draw two bars for each lever from the line of the price at hand: the upper for the lower value."""
    costs = [end.cost for bar in figure.bars for end in (bar.low, bar.high) if end.cost is not None]
    low, high = min([figure.base, *costs]), max([figure.base, *costs])
    least = 0.1 * figure.base  # so that a bar of a hundredth of the price looks like one
    scale = Linear(min(low, figure.base - least), max(high, figure.base + least), 0, WIDTH)
    marks: list[Mark] = []
    y = 2.0
    for bar in figure.bars:
        marks += _lever_marks(bar, figure.base, scale, y)
        y += 42
    marks.append(Text(*_base_place(scale(figure.base), y + 12), f"{hourly(figure.base)}", "muted", "middle"))
    summary = "; ".join(f"{bar.name} {_end_words(bar.low)}, {_end_words(bar.high)}" for bar in figure.bars)
    return Drawing(WIDTH, y + 16, f"least cost {hourly(figure.base)}: {summary}", tuple(marks))


def _base_place(at: float, y: float) -> tuple[float, float]:
    return min(max(at, 30.0), WIDTH - 30.0), y


def _end_words(end: End) -> str:
    return f"at {end.value} {hourly(end.cost) if end.cost is not None else 'no fleet'}"


def _lever_marks(bar: LeverBar, base: float, scale: Linear, y: float) -> list[Mark]:
    note = f"{_price(bar.low)} · {_price(bar.high)}"
    room = int((WIDTH - text_width(note) - 12) / text_width("n"))
    at = scale(base)
    marks: list[Mark] = [
        Text(0, y + 11, fit(f"{bar.name}, {bar.low.value} to {bar.high.value}", max(8, room)), "label"),
        Text(WIDTH, y + 11, note, "label", "end"),
        Rect(0, y + 17, WIDTH, 15, "track"),
    ]
    for number, end in enumerate((bar.low, bar.high)):
        marks += _end_bar(bar, end, scale, at, y + 18 + 7 * number)
    return [*marks, Path(((at, y + 15), (at, y + 34)), "drop")]


def _price(end: End) -> str:
    return money(end.cost) if end.cost is not None else "no fleet"


def _end_bar(bar: LeverBar, end: End, scale: Linear, at: float, y: float) -> list[Mark]:
    tip = f"{bar.name} {_end_words(end)}"
    if end.cost is None:
        edge = WIDTH
        return [
            Rect(at, y, edge - at, 6, "over", tip),
            Path(((edge - 6, y), (edge - 1, y + 3), (edge - 6, y + 6)), "clipped"),
        ]
    to = scale(end.cost)
    if abs(to - at) < 0.5:
        return [Rect(at - 1, y, 2, 6, "other", tip)]
    return [Rect(min(at, to), y, abs(to - at), 6, "over" if to > at else "good", tip)]


def draw_strips(strips: tuple[PriceStrip, ...]) -> Drawing:
    """Draw a strip for each accelerator: pieces of prices on which one fleet is the cheapest, and today's as a line."""
    low = min(stretch.low for strip in strips for stretch in strip.stretches)
    high = max(stretch.high for strip in strips for stretch in strip.stretches)
    scale = Log(low, high, 0, WIDTH)
    marks: list[Mark] = []
    y = 2.0
    for strip in strips:
        marks += [Text(0, y + 11, f"{strip.name}, now {listed(strip.price)}", "label")]
        marks += [_stretch_mark(stretch, scale, y + 17) for stretch in strip.stretches]
        marks += _boundaries(strip, scale, y + 46)
        marks.append(Path(((scale(1.0), y + 15), (scale(1.0), y + 33)), "axis"))
        y += 54
    for factor in FACTORS:
        if low * (1 - 1e-9) <= factor <= high * (1 + 1e-9):
            anchor = "start" if factor == FACTORS[0] else "end" if factor == FACTORS[-1] else "middle"
            marks.append(Text(scale(factor), y + 14, f"×{significant(factor)}", "tick", anchor))  # type: ignore[arg-type]
    summary = "; ".join(
        f"{strip.name}: " + ", ".join(stretch.tip for stretch in strip.stretches if stretch.here) for strip in strips
    )
    return Drawing(WIDTH, y + 20, f"cheapest fleet by price of a GPU: {summary}", tuple(marks))


def _stretch_mark(stretch: Stretch, scale: Log, y: float) -> Rect:
    left, right = scale(stretch.low), scale(stretch.high)
    return Rect(left, y, max(right - left - 1.5, 1.0), 14, "good" if stretch.here else "other", stretch.tip)


def _boundaries(strip: PriceStrip, scale: Log, y: float) -> list[Mark]:
    """Prices at which pieces meet, as many as fit; those next to the price at hand first."""
    ends = sorted({stretch.high for stretch in strip.stretches[:-1]}, key=lambda end: abs(end - 1.0))
    marks: list[Mark] = []
    taken: list[Box] = []
    for end in ends:
        name = money(end * strip.price)
        half = text_width(name) / 2
        label = Text(min(max(scale(end), half), WIDTH - half), y, name, "tick", "middle")
        if not any(label.box.overlaps(box) for box in taken):
            marks.append(label)
            taken.append(label.box)
    return marks
