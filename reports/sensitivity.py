"""How the answer moves: words, sentences, charts and the section of a plan's sensitivity."""

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
from reports.document import Chart, Detail, Section, Table, said, table_of
from reports.drawing import WIDTH, Anchor, Box, Drawing, Linear, Log, Mark, Path, Rect, Text, text_width
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
from reports.table import Column
from reports.text import capital, clean, fit
from reports.words import engine_cell, in_words, own_pools
from search_spaces.levers import kind_of
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


def still(sensitivity: Sensitivity) -> list[LeverSensitivity]:
    """Levers that do not move the price."""
    ends = ((row, (row.usd_per_hour_low, row.usd_per_hour_high)) for row in sensitivity.levers)
    return [row for row, costs in ends if None not in costs and _is_flat(sensitivity, row)]


def _is_flat(sensitivity: Sensitivity, row: LeverSensitivity) -> bool:
    costs = [cost for cost in (row.usd_per_hour_low, row.usd_per_hour_high) if cost is not None]
    return all(abs(cost - sensitivity.usd_per_hour) <= 1e-9 * sensitivity.usd_per_hour for cost in costs)


def still_sentence(sensitivity: Sensitivity) -> str:
    """Name the levers that do not move the price; empty where all do."""
    names = [lever_words(row.lever) for row in still(sensitivity)]
    return f"Not moved by: {', '.join(names)}." if names else ""


def lever_bar(lever: str, low: float, cost_low: float | None, high: float, cost_high: float | None) -> LeverBar:
    """The bar of a lever that is moved to two values."""
    return LeverBar(
        lever_words(lever), End(value_words(lever, low), cost_low), End(value_words(lever, high), cost_high)
    )


def _bar(row: LeverSensitivity) -> LeverBar:
    return lever_bar(row.lever, row.low, row.usd_per_hour_low, row.high, row.usd_per_hour_high)


def lever_bars(sensitivity: Sensitivity) -> list[LeverBar]:
    """The tornado's bars, the largest swing first; levers that move nothing have none, unless none moves anything."""
    unmoved = still(sensitivity)
    return [_bar(row) for row in ([row for row in sensitivity.levers if row not in unmoved] or sensitivity.levers)][
        :MOST_LEVERS
    ]


def priced(sensitivity: Sensitivity) -> list[BreakEven]:
    """The accelerators that have a price, those whose change is nearest first."""
    return sorted((row for row in sensitivity.break_even if row.usd_per_gpu_hour > 0), key=_nearness)[:MOST_STRIPS]


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


def base_sentence(plan: Plan, sensitivity: Sensitivity) -> str:
    """Say what the section's prices are of, and how the recommended fleet stands to it."""
    own = hourly(plan.cost_usd_per_hour)
    equal = own == hourly(sensitivity.usd_per_hour)
    comparison = "as the recommended fleet does" if equal else f"the recommended fleet costs {own}"
    spread = " Step times move over their 90 % interval." if sensitivity.complete else ""
    return (
        f"One lever moves at a time, by formula, over fleets of {_SEARCHED}: "
        f"the cheapest costs {hourly(sensitivity.usd_per_hour)}, {comparison}.{spread}"
    )


def swing_sentence(sensitivity: Sensitivity) -> str:
    """Say which lever moves the cost most."""
    if not sensitivity.levers:
        return "No lever was moved"
    if _is_flat(sensitivity, sensitivity.levers[0]) and not _levers_without_fleet(sensitivity):
        return f"No lever changes the cost within {percent(sensitivity.share)}: this fleet has room"
    row = (_levers_without_fleet(sensitivity) or sensitivity.levers)[0]
    return depends_words(_bar(row), sensitivity.usd_per_hour)


def _levers_without_fleet(sensitivity: Sensitivity) -> list[LeverSensitivity]:
    """Levers with an end at which there is no fleet."""
    return [row for row in sensitivity.levers if None in {row.usd_per_hour_low, row.usd_per_hour_high}]


def depends_words(bar: LeverBar, base: float) -> str:
    """What the cost depends on most: a lever with both ends; base: the cost at hand [$/h].

    >>> depends_words(LeverBar("request rate", End("×0.8", 18.0), End("×1.2", 27.0)), 22.5)
    'The cost depends most on the request rate: $18.00/h to $27.00/h'
    """
    name = bar.name if bar.name == "burstiness" else f"the {bar.name}"
    end_without_fleet = next((end for end in (bar.low, bar.high) if end.cost is None), None)
    if end_without_fleet is not None:
        return f"With {name} at {end_without_fleet.value}, no fleet meets the SLO"
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


def price_sentences(sensitivity: Sensitivity) -> list[str]:
    """Say it for every accelerator, those whose change is nearest first."""
    return [price_sentence(row) for row in sorted(sensitivity.break_even, key=_nearness)]


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


def flip_sentence(plan: Plan, sensitivity: Sensitivity) -> str:
    """Say at which price of a GPU another fleet takes over first.

    What changes is the cheapest fleet by formula, which is named where the recommended one costs more.
    """
    rows = [(row, *change) for row in sensitivity.break_even if row.usd_per_gpu_hour > 0 for change in _changes(row)]
    if not rows:
        owned = any(entry.get("owned") for entry in plan.provenance.inputs.get("accelerators", ()))
        which = "a GPU to rent (what owned ones cost was not moved)" if owned else "a GPU"
        return f"By formula no price of {which}, from a quarter to four times as much, changes the cheapest fleet"
    row, at, piece = min(rows, key=lambda item: abs(item[1] / item[0].usd_per_gpu_hour - 1.0))
    away = at / row.usd_per_gpu_hour - 1.0
    own = own_pools(plan)
    side = "above" if away >= 0 else "below"
    change = f"{side} {hourly(at)} per {clean(row.accelerator, 24)} ({signed_percent(away)})"
    if _costs_least(plan, sensitivity):
        return f"Break-even by formula: {change}, {_taking_over(piece, own)}"
    cheapest = (
        f"By formula the cheapest fleet is {fleet_line(sensitivity.pools)} for {hourly(sensitivity.usd_per_hour)}"
    )
    return f"{cheapest}; {change}, {_taking_over(piece, own)}"


def _costs_least(plan: Plan, sensitivity: Sensitivity) -> bool:
    """Whether no fleet by formula is cheaper than the recommended one, which may be what a simulation left."""
    own = plan.cost_usd_per_hour
    return own is None or own < sensitivity.usd_per_hour or hourly(own) == hourly(sensitivity.usd_per_hour)


def _taking_over(piece: PricePiece, own: Sequence[EnginePool]) -> str:
    """Say which fleet is the cheapest from a price on; a price leaves none but where there is a budget."""
    if not piece.pools:
        return "no fleet fits the budget"
    return f"{'the recommended fleet' if _alike(own, piece.pools) else fleet_line(piece.pools)} becomes cheaper"


def _alike(own: Sequence[EnginePool], pools: Sequence[EnginePool]) -> bool:
    """Whether these are the pools of the recommended fleet, in any order."""
    return bool(own) and engine_counts(own) == engine_counts(pools)


def flips(sensitivity: Sensitivity) -> list[tuple[LeverSensitivity, Flip]]:
    """Levers other than prices that change the kind of fleet, with where."""
    return [(row, flip) for row in sensitivity.levers for flip in row.flips]


def flips_sentence(sensitivity: Sensitivity) -> str:
    """Say which levers other than prices change the kind of fleet; empty where only prices were moved."""
    if not sensitivity.complete:
        return ""
    names = list(dict.fromkeys(lever_words(row.lever) for row, _ in flips(sensitivity)))
    if not names:
        return f"No other lever changes the fleet within {percent(sensitivity.share)}"
    return f"Another fleet becomes the cheapest with other {join_words(names)}"


def flip_words(row: LeverSensitivity, flip: Flip, own: Sequence[EnginePool] = ()) -> str:
    """Say at which value of a lever which fleet is the cheapest by formula; own: the pools of the recommended one.

    The recommended fleet need not be the cheapest by formula at the lever's own value: that one may have missed when
    it was simulated.
    """
    at, before = value_words(row.lever, flip.other_at), value_words(row.lever, flip.same_at)
    price = f", for {hourly(flip.usd_per_hour)}" if flip.usd_per_hour is not None else ""
    too = "the recommended fleet is the cheapest by formula too"
    fleet = too if _alike(own, flip.pools) else fleet_line(flip.pools)
    return f"{capital(lever_words(row.lever))} at {at} (not yet at {before}): {fleet}{price}"


def swing_words(sensitivity: Sensitivity, cost: float | None) -> str:
    """Write a price's difference to the one at hand.

    Without a fleet there is none.
    """
    if cost is None or not is_number(cost):
        return "no fleet"
    return signed_percent(cost / sensitivity.usd_per_hour - 1.0) if sensitivity.usd_per_hour else "–"


def told(plan: Plan, sensitivity: Sensitivity) -> list[str]:
    """The section in a few sentences: what moves the price most, which price changes the answer, what else does."""
    own = own_pools(plan)
    flip_sentences = [flip_words(row, flip, own) for row, flip in flips(sensitivity)[:MOST_TOLD]] or [
        flips_sentence(sensitivity)
    ]
    sentences = [
        swing_sentence(sensitivity) if sensitivity.complete else "",
        flip_sentence(plan, sensitivity),
        *flip_sentences,
    ]
    return [f"{text}." for text in sentences if text]


def more_sentence(plan: Plan) -> tuple[str, str]:
    """Say how to get what is not there, and by which command; empty where all levers were moved."""
    sensitivity, command = plan.sensitivity, clean(plan.provenance.run.command, 300) or "pdplan optimize workload.yaml"
    if sensitivity is not None:
        what_is_missing = "Prices and limits only; rate, lengths, SLO limits, network and step times are moved by"
        return ("", "") if sensitivity.complete else (what_is_missing, f"{command} --sensitivity")
    if plan.objective != "min_cost":
        return "Not worked out: it is of the least cost, which this plan does not seek.", ""
    if "--sensitivity" in command or "thorough" in command:
        return f"Not worked out: no fleet of {_SEARCHED} answers this; pdplan whatif --full searches all.", ""
    return "Not worked out; to have it", f"{command} --sensitivity"


FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Ticks of prices over the price at hand."""


def sensitivity_section(plan: Plan) -> Section:
    """The section of a plan that has a fleet; where levers were not moved, the command that moves them."""
    sensitivity, (more, command) = plan.sensitivity, more_sentence(plan)
    if sensitivity is None:
        how = f"{more.removesuffix('.')}{':' if command else '.'}"
        return Section("Sensitivity", (how,), code=command, detail=Detail.PAGE)
    charts = (tornado_chart(sensitivity), price_chart(plan, sensitivity))
    title = flips_sentence(sensitivity) or "Prices that keep the cheapest fleet"
    return Section(
        "Sensitivity",
        said(base_sentence(plan, sensitivity), *told(plan, sensitivity)),
        levers_table(sensitivity),
        charts=tuple(chart for chart in charts if chart is not None),
        sections=(Section(title, tuple(price_sentences(sensitivity)), _flips(sensitivity), detail=Detail.PAGE),),
    )


def levers_table(sensitivity: Sensitivity) -> Table:
    """Each lever with its ends and what the cheapest fleet costs there, the largest swing first."""
    change = Column("change", "right", optional=True)
    columns = (Column("lever", shrink=True), "#lower", "#$/h fleet", change, "#higher", "#$/h fleet", change)
    rows = [
        (
            lever_words(row.lever),
            value_words(row.lever, row.low),
            hourly(row.usd_per_hour_low),
            swing_words(sensitivity, row.usd_per_hour_low),
            value_words(row.lever, row.high),
            hourly(row.usd_per_hour_high),
            swing_words(sensitivity, row.usd_per_hour_high),
        )
        for row in sensitivity.levers
    ]
    return table_of(columns, rows)


TORNADO_KEY: Final = "Upper bar: the lever lower; lower bar: higher; left of the line is cheaper."


def tornado_chart(sensitivity: Sensitivity) -> Chart | None:
    """Draw the swing of every lever; None where none was moved."""
    if not sensitivity.levers:
        return None
    return Chart(
        title=swing_sentence(sensitivity),
        caption=f"{TORNADO_KEY} {still_sentence(sensitivity)}",
        drawing=draw_tornado(lever_bars(sensitivity), sensitivity.usd_per_hour),
        table=levers_table(sensitivity),
    )


def price_chart(plan: Plan, sensitivity: Sensitivity) -> Chart | None:
    """Draw which fleet is the cheapest at each price of a GPU; None where no GPU has a price."""
    strips = priced(sensitivity)
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
        for row in sensitivity.break_even
        for piece in row.pieces
    ]
    headers = ("GPU", "#$/h GPU from", "#to", "cheapest fleet", "#$/h fleet from", "#to", "at hand")
    return Chart(
        title=flip_sentence(plan, sensitivity),
        caption="Price of one GPU over its price now (the mark); where a piece ends, another fleet is the cheapest.",
        drawing=draw_strips(strips),
        table=table_of(headers, rows),
    )


def _flips(sensitivity: Sensitivity) -> Table:
    rows = [
        (
            lever_words(row.lever),
            value_words(row.lever, row.value),
            value_words(row.lever, flip.same_at),
            value_words(row.lever, flip.other_at),
            fleet_line(flip.pools),
            hourly(flip.usd_per_hour) if flip.usd_per_hour is not None else MISSING,
        )
        for row, flip in flips(sensitivity)
    ]
    return table_of(("lever", "#at hand", "#same kind at", "#another at", "which", "#$/h fleet"), rows)


def draw_tornado(bars: Sequence[LeverBar], base: float) -> Drawing:
    """Draw two bars for each lever from the line of the price at hand, base [$/h]: the upper for the lower value."""
    costs = [end.cost for bar in bars for end in (bar.low, bar.high) if end.cost is not None]
    low, high = min([base, *costs]), max([base, *costs])
    least = 0.1 * base  # so that a bar of a hundredth of the price looks like one
    scale = Linear(min(low, base - least), max(high, base + least), 0, WIDTH)
    marks: list[Mark] = []
    y = 2.0
    for bar in bars:
        marks += _lever_marks(bar, base, scale, y)
        y += 42
    marks.append(Text(min(max(scale(base), 30.0), WIDTH - 30.0), y + 12, hourly(base), "muted", "middle"))
    summary = "; ".join(f"{bar.name} {_end_words(bar.low)}, {_end_words(bar.high)}" for bar in bars)
    return Drawing(WIDTH, y + 16, f"least cost {hourly(base)}: {summary}", tuple(marks))


def _end_words(end: End) -> str:
    return f"at {end.value} {hourly(end.cost) if end.cost is not None else 'no fleet'}"


def _lever_marks(bar: LeverBar, base: float, scale: Linear, y: float) -> list[Mark]:
    note = " · ".join("no fleet" if end.cost is None else money(end.cost) for end in (bar.low, bar.high))
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


def draw_strips(rows: Sequence[BreakEven]) -> Drawing:
    """Draw a strip for each accelerator: pieces of prices on which one fleet is the cheapest, and today's as a line.

    Prices stand over today's.
    """
    factors = [
        price / row.usd_per_gpu_hour for row in rows for piece in row.pieces for price in (piece.low, piece.high)
    ]
    low, high = min(factors), max(factors)
    scale = Log(low, high, 0, WIDTH)
    marks: list[Mark] = []
    y = 2.0
    for row in rows:
        now = row.usd_per_gpu_hour
        marks += [Text(0, y + 11, f"{clean(row.accelerator, 24)}, now {listed(now)}", "label")]
        for piece in row.pieces:
            start, end = scale(piece.low / now), scale(piece.high / now)
            tone = "good" if piece is piece_here(row) else "other"
            marks.append(Rect(start, y + 17, max(end - start - 1.5, 1.0), 14, tone, piece_words(piece)))
        marks += _boundaries(row, scale, y + 46)
        marks.append(Path(((scale(1.0), y + 15), (scale(1.0), y + 33)), "axis"))
        y += 54
    for factor in FACTORS:
        if low * (1 - 1e-9) <= factor <= high * (1 + 1e-9):
            anchor: Anchor = "start" if factor == FACTORS[0] else "end" if factor == FACTORS[-1] else "middle"
            marks.append(Text(scale(factor), y + 14, f"×{significant(factor)}", "tick", anchor))
    pieces = ((clean(row.accelerator, 24), piece_here(row)) for row in rows)
    summary = "; ".join(f"{name}: {'' if piece is None else piece_words(piece)}" for name, piece in pieces)
    return Drawing(WIDTH, y + 20, f"cheapest fleet by price of a GPU: {summary}", tuple(marks))


def _boundaries(row: BreakEven, scale: Log, y: float) -> list[Mark]:
    """Prices at which pieces meet, as many as fit; those next to the price at hand first."""
    now = row.usd_per_gpu_hour
    marks: list[Mark] = []
    boxes: list[Box] = []
    for price in sorted({piece.high for piece in row.pieces[:-1]}, key=lambda price: abs(price / now - 1.0)):
        half = text_width(money(price)) / 2
        label = Text(min(max(scale(price / now), half), WIDTH - half), y, money(price), "tick", "middle")
        if not any(label.box.overlaps(box) for box in boxes):
            marks.append(label)
            boxes.append(label.box)
    return marks
