"""How the answer moves: figure data, words and sentences of a plan's sensitivity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import Plan
from optimizer.plans.records import (
    BreakEven,
    EnginePool,
    Flip,
    LeverSensitivity,
    PricePiece,
    Sensitivity,
    engine_counts,
)
from reports.document import Chart, Table, table_of
from reports.drawing import WIDTH, Box, Drawing, Linear, Log, Mark, Path, Rect, Text, text_width
from reports.numbers import (
    MISSING,
    exact,
    hourly,
    is_number,
    listed,
    money,
    percent,
    quantity,
    signed_percent,
    significant,
)
from reports.text import clean, fit
from reports.words import engine_cell, in_words, own_pools
from search_spaces.levers import kind_of
from search_spaces.problem import OWNED
from search_spaces.quantities import BASE_UNIT, Kind

MOST_LEVERS: Final = 16
MOST_STRIPS: Final = 12
_SEARCHED: Final = "one colocated pool or one pair of pools"
"""What is searched anew at every value of a lever."""
MOST_TOLD: Final = 2
"""Changes of the kind of fleet that are told in a summary."""

_LEVERS: Final = {
    "rate_scale": "request rate",
    "isl": "mean input length",
    "osl": "mean output length",
    "isl_scale": "input lengths",
    "osl_scale": "output lengths",
    "ttft_scale": "TTFT limit",
    "tpot_scale": "TPOT limit",
    "link_scale": "network links",
    "step_time_quantile": "step times",
    "prefix_hit_share": "prefix hits",
    "power": "power limit",
}
_LENGTHS: Final = frozenset({"isl", "osl"})
_SHARES: Final = frozenset({"prefix_hit_share", "attainment", "growth"})
FACTOR: Final = "×"
"""Unit of levers that multiply."""
QUANTILE: Final = "step_time_quantile"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a lever: what it is moved to, in words, and the least cost there [$/h], None without a fleet."""

    value: str
    cost: float | None


@dataclass(frozen=True, slots=True)
class LeverBar:
    """One lever of the tornado."""

    name: str
    low: End
    high: End


@dataclass(frozen=True, slots=True)
class TornadoFigure:
    """The least cost as it is [$/h], and each lever's costs, the largest swing first."""

    base: float
    bars: tuple[LeverBar, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Prices over the price at hand [1] between which one fleet is the cheapest; here: the price at hand is in it."""

    low: float
    high: float
    here: bool
    tip: str


@dataclass(frozen=True, slots=True)
class PriceStrip:
    """The cheapest fleet at any price of one accelerator; at hand [$/h of one GPU]."""

    name: str
    price: float
    stretches: tuple[Stretch, ...]


def still(found: Sensitivity) -> list[LeverSensitivity]:
    """Levers that do not move the price."""
    ends = ((row, (row.usd_per_hour_low, row.usd_per_hour_high)) for row in found.levers)
    return [row for row, costs in ends if None not in costs and _is_flat(found, row)]


def _is_flat(found: Sensitivity, row: LeverSensitivity) -> bool:
    costs = [cost for cost in (row.usd_per_hour_low, row.usd_per_hour_high) if cost is not None]
    return all(abs(cost - found.usd_per_hour) <= 1e-9 * found.usd_per_hour for cost in costs)


def still_sentence(found: Sensitivity) -> str:
    """Name the levers that do not move the price; empty where all do."""
    names = [lever_words(row.lever) for row in still(found)]
    return f"Not moved by: {', '.join(names)}." if names else ""


def tornado_figure(found: Sensitivity) -> TornadoFigure:
    """The tornado's bars; levers that move nothing have none, unless none moves anything."""
    unmoved = still(found)
    drawn = [row for row in found.levers if row not in unmoved] or found.levers
    bars = [
        LeverBar(
            lever_words(row.lever),
            End(value_words(row.lever, row.low), row.usd_per_hour_low),
            End(value_words(row.lever, row.high), row.usd_per_hour_high),
        )
        for row in drawn[:MOST_LEVERS]
    ]
    return TornadoFigure(found.usd_per_hour, tuple(bars))


def price_strips(found: Sensitivity) -> tuple[PriceStrip, ...]:
    """A strip for each accelerator with a price, those whose change is nearest first."""
    rows = sorted((row for row in found.break_even if row.usd_per_gpu_hour > 0), key=_nearness)
    return tuple(_strip(row) for row in rows[:MOST_STRIPS])


def _strip(row: BreakEven) -> PriceStrip:
    here = piece_here(row)
    stretches = (
        Stretch(piece.low / row.usd_per_gpu_hour, piece.high / row.usd_per_gpu_hour, piece is here, piece_words(piece))
        for piece in row.pieces
    )
    return PriceStrip(clean(row.accelerator, 24), row.usd_per_gpu_hour, tuple(stretches))


def piece_here(row: BreakEven) -> PricePiece | None:
    """The piece that the price at hand is in."""
    return next((piece for piece in row.pieces if piece.low <= row.usd_per_gpu_hour <= piece.high), None)


def piece_words(piece: PricePiece) -> str:
    """Say between which prices of a GPU which fleet is the cheapest."""
    return f"{hourly(piece.low)} to {hourly(piece.high)} a GPU: {fleet_line(piece.pools)}"


def fleet_line(pools: Sequence[EnginePool]) -> str:
    """Write the pools of a fleet in one line of a table, replicas × GPU."""
    return " + ".join(engine_cell(pool) for pool in pools) or "no fleet"


def lever_words(key: str) -> str:
    """Say a lever in words.

    >>> lever_words("price.H100"), lever_words("rate_scale"), lever_words("burstiness")
    ('price of H100', 'request rate', 'burstiness')
    """
    head, _, name = key.partition(".")
    return f"price of {clean(name, 24)}" if head == "price" and name else in_words(key, _LEVERS)


def value_words(key: str, value: float) -> str:
    """Write a lever's value with its unit; factors stand at ×1, step times at a quantile of their errors.

    >>> value_words("price.H100", 3.192), value_words("rate_scale", 0.8), value_words("budget", 40.0)
    ('$3.19/h', '×0.8', '$40.00/h')
    """
    if key == QUANTILE:
        return f"{percent(value)} quantile"
    unit = lever_unit(key)
    if unit == FACTOR:
        return f"{FACTOR}{significant(value)}"
    return quantity(value, unit) if unit else significant(value)


def exact_words(key: str, value: float, digits: int = 6) -> str:
    """The same to more digits, for values that were stated, or found exactly."""
    unit = lever_unit(key)
    return f"{FACTOR}{significant(value, digits)}" if unit == FACTOR else exact(value, unit, digits)


def lever_unit(key: str) -> str:
    """The unit of a lever's values; none for counts and other plain numbers.

    >>> lever_unit("price.H100"), lever_unit("rate"), lever_unit("rate_scale"), lever_unit("max_gpus")
    ('$/h', 'req/s', '×', '')
    """
    head, kind = key.partition(".")[0], kind_of(key)
    if kind is not None:
        return "req/s" if kind is Kind.RATE else BASE_UNIT[kind]
    if head in _LENGTHS:
        return "tokens"
    return "1" if head in _SHARES else FACTOR if head.endswith("_scale") else ""


def base_sentence(plan: Plan, found: Sensitivity) -> str:
    """Say what the section's prices are of, and how the recommended fleet stands to it."""
    own = hourly(plan.cost_usd_per_hour)
    same = own == hourly(found.usd_per_hour)
    beside = "as the recommended fleet does" if same else f"the recommended fleet costs {own}"
    spread = " Step times move over their 90 % interval." if found.complete else ""
    return (
        f"One lever moves at a time, by formula, over fleets of {_SEARCHED}: "
        f"the cheapest costs {hourly(found.usd_per_hour)}, {beside}.{spread}"
    )


def swing_sentence(found: Sensitivity) -> str:
    """Say which lever moves the cost most."""
    if not found.levers:
        return "No lever was moved"
    if _is_flat(found, found.levers[0]) and not _lost(found):
        return f"No lever changes the cost within {percent(found.share)}: this fleet has room"
    row = (_lost(found) or found.levers)[0]
    ends = (
        End(value_words(row.lever, row.low), row.usd_per_hour_low),
        End(value_words(row.lever, row.high), row.usd_per_hour_high),
    )
    return depends_words(LeverBar(lever_words(row.lever), *ends), found.usd_per_hour)


def _lost(found: Sensitivity) -> list[LeverSensitivity]:
    """Levers with an end at which there is no fleet."""
    return [row for row in found.levers if None in {row.usd_per_hour_low, row.usd_per_hour_high}]


def depends_words(bar: LeverBar, base: float) -> str:
    """What the cost depends on most: a lever with both ends; base: the cost at hand [$/h].

    >>> depends_words(LeverBar("request rate", End("×0.8", 18.0), End("×1.2", 27.0)), 22.5)
    'The cost depends most on the request rate: $18.00/h to $27.00/h'
    """
    name = bar.name if bar.name == "burstiness" else f"the {bar.name}"
    lost = next((end for end in (bar.low, bar.high) if end.cost is None), None)
    if lost is not None:
        return f"With {name} at {lost.value}, no fleet meets the SLO"
    costs = [base, *(end.cost for end in (bar.low, bar.high) if end.cost is not None)]
    return f"The cost depends most on {name}: {hourly(min(costs))} to {hourly(max(costs))}"


def price_sentence(row: BreakEven) -> str:
    """Say between which prices of a GPU the cheapest fleet stays what it is."""
    here, name, now = piece_here(row), clean(row.accelerator, 24), listed(row.usd_per_gpu_hour)
    if here is None:
        return f"{name}: what is cheapest at {now} a GPU is not known."
    least, most = row.pieces[0].low, row.pieces[-1].high
    if here.low == least and here.high == most:
        return f"{name}: no price from {hourly(least)} to {hourly(most)} a GPU changes the cheapest fleet (now {now})."
    if here.high == most:
        return f"{name}: the cheapest fleet stays for any price from {hourly(here.low)} a GPU on (now {now})."
    beyond = "" if row.pieces[row.pieces.index(here) + 1].pools else "; above, no fleet fits the budget"
    if here.low == least:
        return f"{name}: the cheapest fleet stays for any price up to {hourly(here.high)} a GPU (now {now}){beyond}."
    return f"{name}: the cheapest fleet stays from {hourly(here.low)} to {hourly(here.high)} a GPU (now {now}){beyond}."


def price_sentences(found: Sensitivity) -> list[str]:
    """Say it for every accelerator, those whose change is nearest first."""
    return [price_sentence(row) for row in sorted(found.break_even, key=_nearness)]


def _changes(row: BreakEven) -> list[tuple[float, PricePiece]]:
    """Prices at the ends of the piece at hand at which another fleet takes over, with what that is."""
    here = piece_here(row)
    if here is None:
        return []
    at = row.pieces.index(here)
    below = [(here.low, row.pieces[at - 1])] if at else []
    return below + [(here.high, piece) for piece in row.pieces[at + 1 : at + 2]]


def _nearness(row: BreakEven) -> tuple[float, str]:
    """How near the price is at which another fleet takes over, as a share of the price at hand; and the name."""
    price = row.usd_per_gpu_hour
    distances = [abs(at / price - 1.0) for at, _ in _changes(row)] if price > 0 else []
    return min(distances, default=math.inf), row.accelerator


def flip_sentence(plan: Plan, found: Sensitivity) -> str:
    """Say at which price of a GPU another fleet takes over first.

    What changes is the cheapest fleet by formula, which is named where the recommended one costs more.
    """
    rows = [(row, *change) for row in found.break_even if row.usd_per_gpu_hour > 0 for change in _changes(row)]
    if not rows:
        owned = any(name.endswith(OWNED) for name in plan.gpus)
        which = "a GPU to rent (what owned ones cost was not moved)" if owned else "a GPU"
        return f"By formula no price of {which}, from a quarter to four times as much, changes the cheapest fleet"
    row, at, piece = min(rows, key=lambda item: abs(item[1] / item[0].usd_per_gpu_hour - 1.0))
    away = at / row.usd_per_gpu_hour - 1.0
    own = own_pools(plan)
    side = "above" if away >= 0 else "below"
    change = f"{side} {hourly(at)} per {clean(row.accelerator, 24)} ({signed_percent(away)})"
    if _costs_least(plan, found):
        return f"Break-even by formula: {change}, {_taking_over(piece, own)}"
    cheapest = f"By formula the cheapest fleet is {fleet_line(found.pools)} for {hourly(found.usd_per_hour)}"
    return f"{cheapest}; {change}, {_taking_over(piece, own)}"


def _costs_least(plan: Plan, found: Sensitivity) -> bool:
    """Whether no fleet by formula is cheaper than the recommended one, which may be what a simulation left."""
    own = plan.cost_usd_per_hour
    return own is None or own < found.usd_per_hour or hourly(own) == hourly(found.usd_per_hour)


def _taking_over(piece: PricePiece, own: Sequence[EnginePool]) -> str:
    """Say which fleet is the cheapest from a price on; a price leaves none but where there is a budget."""
    if not piece.pools:
        return "no fleet fits the budget"
    return f"{'the recommended fleet' if _alike(own, piece.pools) else fleet_line(piece.pools)} becomes cheaper"


def _alike(own: Sequence[EnginePool], pools: Sequence[EnginePool]) -> bool:
    """Whether these are the pools of the recommended fleet, in any order."""
    return bool(own) and engine_counts(own) == engine_counts(pools)


def flips(found: Sensitivity) -> list[tuple[LeverSensitivity, Flip]]:
    """Levers other than prices that change the kind of fleet, with where."""
    return [(row, flip) for row in found.levers for flip in row.flips]


def flips_sentence(found: Sensitivity) -> str:
    """Say which levers other than prices change the kind of fleet; empty where only prices were moved."""
    if not found.complete:
        return ""
    names = list(dict.fromkeys(lever_words(row.lever) for row, _ in flips(found)))
    if not names:
        return f"No other lever changes the fleet within {percent(found.share)}"
    return f"Another fleet becomes the cheapest with other {join_words(names)}"


def flip_words(row: LeverSensitivity, flip: Flip, own: Sequence[EnginePool] = ()) -> str:
    """Say at which value of a lever which fleet is the cheapest by formula; own: the pools of the recommended one.

    The recommended fleet need not be the cheapest by formula at the lever's own value: that one may have missed when
    it was simulated.
    """
    at, same = value_words(row.lever, flip.other_at), value_words(row.lever, flip.same_at)
    price = f", for {hourly(flip.usd_per_hour)}" if flip.usd_per_hour is not None else ""
    too = "the recommended fleet is the cheapest by formula too"
    fleet = too if _alike(own, flip.pools) else fleet_line(flip.pools)
    return f"{capital(lever_words(row.lever))} at {at} (not yet at {same}): {fleet}{price}"


def swing_words(found: Sensitivity, cost: float | None) -> str:
    """Write a price's difference to the one at hand.

    Without a fleet there is none.
    """
    if cost is None or not is_number(cost):
        return "no fleet"
    return signed_percent(cost / found.usd_per_hour - 1.0) if found.usd_per_hour else "–"


def told(plan: Plan, found: Sensitivity) -> list[str]:
    """The section in a few sentences: what moves the price most, which price changes the answer, what else does."""
    own = own_pools(plan)
    others = [flip_words(row, flip, own) for row, flip in flips(found)[:MOST_TOLD]] or [flips_sentence(found)]
    said = [swing_sentence(found) if found.complete else "", flip_sentence(plan, found), *others]
    return [f"{text}." for text in said if text]


def capital(text: str) -> str:
    """The same with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def more_sentence(plan: Plan) -> tuple[str, str]:
    """Say how to get what is not there, and by which command; empty where all levers were moved."""
    found, command = plan.sensitivity, clean(plan.provenance.run.command, 300) or "pdplan optimize workload.yaml"
    if found is not None:
        others = "Prices and limits only; rate, lengths, SLO limits, network and step times are moved by"
        return ("", "") if found.complete else (others, f"{command} --sensitivity")
    if plan.objective != "min_cost":
        return "Not worked out: it is of the least cost, which this plan does not seek.", ""
    if "--sensitivity" in command or "thorough" in command:
        return f"Not worked out: no fleet of {_SEARCHED} answers this; pdplan whatif --full searches all.", ""
    return "Not worked out; to have it", f"{command} --sensitivity"


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
