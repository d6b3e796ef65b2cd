"""Charts: data to marks. Only positions are decided here; the numbers of a plan's come from `reports.figures`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import Pool
from reports.asked import HOURS, Arrivals
from reports.drawing import (
    WIDTH,
    Box,
    Drawing,
    Linear,
    Log,
    Mark,
    Path,
    Plot,
    Point,
    Rect,
    Symbol,
    Text,
    Ticks,
    axes,
    decade_range,
    headings,
    line,
    place_label,
    plot,
    round_steps,
    text_width,
)
from reports.figures import (
    Bar,
    ClassDistributions,
    ClassMap,
    Distribution,
    FleetPoint,
    LengthMap,
    LoadFigure,
    RooflinePoint,
    pool_label,
    step_parts,
    undominated,
)
from reports.numbers import duration, hourly, is_number, money, percent, power_of_two, rate, si, significant
from reports.text import clean, fit
from reports.words import part_words


def draw_costs(bars: Sequence[Bar], base: float) -> Drawing:
    """Draw dollars per hour as horizontal bars; the line is the price of the fleet that the others are set against."""
    highest = max([bar.value for bar in bars if bar.value is not None], default=1.0)
    scale = Linear(0, highest, 0, WIDTH)
    marks: list[Mark] = []
    y, notes = 2.0, [bar.note if bar.value is None else hourly(bar.value) for bar in bars]
    for bar, note in zip(bars, notes, strict=True):
        room = int((WIDTH - text_width(note) - 12) / text_width("n"))
        marks.append(Text(0, y + 11, fit(bar.label, max(8, room)), "strong" if bar.tone == "good" else "label"))
        marks.append(Text(WIDTH, y + 11, note, "label", "end"))
        marks.append(Rect(0, y + 17, WIDTH, 10, "track"))
        if bar.value is not None and is_number(bar.value):
            marks.append(Rect(0, y + 17, max(1.5, scale(bar.value)), 10, bar.tone, f"{bar.label}: {note}"))
        if base <= highest:
            marks.append(Path(((scale(base), y + 15), (scale(base), y + 29)), "limit"))
        y += 36
    summary = "; ".join(f"{bar.label} {note}" for bar, note in zip(bars, notes, strict=True))
    return Drawing(WIDTH, max(y - 4, 1.0), f"dollars per hour: {summary}", tuple(marks))


def draw_split(pools: Sequence[Pool]) -> Drawing:
    """Draw the parts of each pool's step as one bar of full width."""
    marks: list[Mark] = []
    y = 2.0
    for pool in pools:
        marks.append(Text(0, y + 11, pool_label(pool), "label"))
        marks.append(Text(WIDTH, y + 11, f"{duration(pool.operating_point.step_s)} a step", "label", "end"))
        marks.extend(_split_bar(pool, y + 17))
        y += 46
    summary = "; ".join(
        f"{clean(pool.id, 20)}: "
        + ", ".join(f"{part_words(name)} {percent(share)}" for name, share in step_parts(pool))
        for pool in pools
    )
    return Drawing(WIDTH, max(y - 4, 1.0), f"time of one step: {summary}", tuple(marks))


def _split_bar(pool: Pool, y: float) -> list[Mark]:
    shares = [(name, share) for name, share in step_parts(pool) if is_number(share)]
    total, x = sum(share for _, share in shares) or 1.0, 0.0
    marks: list[Mark] = []
    for name, share in shares:
        if share <= 0:
            continue
        width, step = share / total * WIDTH, duration(pool.operating_point.step_s)
        tip = f"{clean(pool.id, 20)}: {part_words(name)} {percent(share)} of {step}"
        marks.append(Rect(x, y, width, 20, f"part-{name}", tip))
        if width > text_width(percent(share)) + 8:
            marks.append(Text(x + width / 2, y + 14, percent(share), f"on-{name}", "middle"))
        x += width
    return marks


def draw_heat(figure: LengthMap) -> Drawing:
    """Draw the share of requests in each cell, the darker the more; lengths are marked at the cells' edges."""
    peak = figure.peak[0] or 1.0

    def tone(share: float) -> str:
        return f"heat-{0 if share <= 0 else min(8, 1 + int(7.999 * share / peak))}"

    summary = f"share of requests by length, largest cell {percent(figure.peak[0])}"
    return draw_cells(figure, tone, summary, "cells in % of requests")


def draw_cells(figure: LengthMap, tone_of: Callable[[float], str], summary: str, what: str) -> Drawing:
    """Draw a table of shares by input length (columns) and output length (rows); what: the numbers are."""
    labels = figure.labels
    margin, top, height = 44.0, 30.0, 26.0
    width = (WIDTH - margin - 8) / len(labels[0])
    marks: list[Mark] = [Text(0, 12, "output tokens", "muted")]
    for r, row in enumerate(figure.cells):
        for c, share in enumerate(row):
            tone, text = ("heat-0", "") if share is None else (tone_of(share), percent(share).removesuffix(" %"))
            x, y = margin + c * width, top + r * height
            tip = f"{labels[0][c]} in, {labels[1][r]} out: {f'{text} %' if text else 'none'}"
            marks.append(Rect(x, y, width - 1.5, height - 1.5, tone, tip))
            if text:
                marks.append(Text(x + width / 2, y + 17, text, f"on-{tone}", "middle"))
    bottom = top + height * len(figure.cells)
    for r, edge in enumerate(reversed(figure.osl_edges)):
        marks.append(Text(margin - 5, top + r * height + 3, power_of_two(edge), "tick", "end"))
    for c, edge in enumerate(figure.isl_edges):
        last = c == len(labels[0])
        at = WIDTH if last else margin + c * width
        marks.append(Text(at, bottom + 16, power_of_two(edge), "tick", "end" if last else "middle"))
    marks.append(Text(WIDTH, bottom + 34, f"input tokens · {what}", "muted", "end"))
    return Drawing(WIDTH, bottom + 40, summary, tuple(marks))


TONES: Final = {"TTFT": "prefill", "TPOT": "decode"}
_LEFT: Final = 46.0
_RIGHT: Final = WIDTH - 10
_PANEL: Final = 200.0
"""Height of one of two panels that stand below each other."""
FAR: Final = 2.5
_BEYOND: Final = 4 / 3
"""End of an axis of latencies as a multiple of the limit, so that what passes it is seen to."""


def draw_distributions(figure: ClassDistributions) -> Drawing:
    """Draw the simulated distribution of each latency, its limit, and the formulas' quantiles as points."""
    marks: list[Mark] = []
    for number, panel in enumerate(figure.panels):
        marks += _distribution(panel, figure.goal, number * _PANEL)
    summary = "; ".join(
        f"{panel.metric} from {duration(panel.points[0][0])} to {duration(panel.points[-1][0])}, "
        f"limit {duration(panel.limit)}"
        for panel in figure.panels
    )
    return Drawing(WIDTH, _PANEL * len(figure.panels), f"distribution of {figure.name}: {summary}", tuple(marks))


def _distribution(panel: Distribution, goal: float, top: float) -> list[Mark]:
    box = Box(_LEFT, top + 43, _RIGHT, top + _PANEL - 40)
    frame = plot(box, (0.0, panel.limit * _BEYOND), (0.0, 1.0))
    tone = TONES[panel.metric]
    shares = [(share, percent(share)) for share in (0.0, 0.5, 1.0)]
    times = [(seconds, duration(seconds)) for seconds in round_steps(panel.limit * _BEYOND, 4)]
    limit = frame.x(panel.limit)
    marks = axes(frame, times, shares, "", "")
    marks.append(Text(0, top + 14, f"{panel.metric}, share of requests that are faster", "strong"))
    marks.append(Path(((box.left, frame.y(goal)), (box.right, frame.y(goal))), "goal", f"goal {percent(goal)}"))
    marks.append(Path(((limit, box.top), (limit, box.bottom)), "limit"))
    marks.append(Text(limit, top + 32, f"limit {duration(panel.limit)}", "limit", "middle"))
    inside = [point for point in panel.points if point[0] <= frame.x.high]
    marks += line(frame, [*inside, *_leaving(panel.points, frame.x.high)], f"curve {tone}")
    for seconds, share in panel.formula:
        if seconds <= frame.x.high:
            tip = f"by formula: {percent(share)} within {duration(seconds)}"
            marks.append(Symbol(*frame.at((seconds, share)), f"hollow {tone}", tip))
    return marks


def _leaving(points: Sequence[Point], high: float) -> list[Point]:
    """Where a distribution leaves the plot at its right edge: a list of one point, or none where it stays inside."""
    for before, after in itertools.pairwise(points):
        if before[0] <= high < after[0]:
            return [(high, before[1] + (high - before[0]) / (after[0] - before[0]) * (after[1] - before[1]))]
    return []


def draw_load(figure: LoadFigure) -> Drawing:
    """Draw both latencies, as shares of their limits, against the rate; upright lines: demand and goodput."""
    box = Box(_LEFT, 62, _RIGHT, 250)
    top = max([point.rate for point in figure.points] + [figure.demand]) * 1.06
    frame = plot(box, (0.0, top), (0.0, 1.5))
    steps = [(value, significant(value)) for value in round_steps(top)]
    marks = axes(frame, steps, [(y, percent(y)) for y in (0.0, 0.5, 1.0, 1.5)], "requests per second", "share of limit")
    marks.append(Path(((box.left, frame.y(1.0)), (box.right, frame.y(1.0))), "limit", "the limits"))
    marks += _upright(figure, frame)
    for metric in ("ttft", "tpot"):
        tone = TONES[metric.upper()]
        marks += line(frame, [(point.rate, getattr(point, metric)) for point in figure.points], f"curve {tone}")
        for point in figure.points:
            value = getattr(point, metric)
            if is_number(value) and value <= frame.y.high:
                tip = f"{rate(point.rate)}: {metric.upper()} {percent(value)} of its limit"
                marks.append(Symbol(*frame.at((point.rate, value)), tone, tip))
    summary = "; ".join(
        f"{rate(p.rate)}: TTFT {percent(p.ttft)}, TPOT {percent(p.tpot)}{', missed' if p.missed else ''}"
        for p in figure.points
    )
    return Drawing(WIDTH, 288, f"latency over limit against load: {summary}", tuple(marks))


def _upright(figure: LoadFigure, frame: Plot) -> list[Mark]:
    box = frame.box
    names = [(frame.x(figure.demand), f"demand {rate(figure.demand)}", "strong")]
    marks: list[Mark] = [Path(((names[0][0], box.top), (names[0][0], box.bottom)), "drop")]
    if figure.goodput is not None:
        at = frame.x(figure.goodput)
        names.append((at, f"meets the SLO up to {rate(figure.goodput)}", "good"))
        marks.append(Path(((at, box.top), (at, box.bottom)), "knee"))
    if figure.knee is not None:
        at = frame.x(figure.knee)
        names.append((at, f"knee {rate(figure.knee)}", "muted"))
        marks.append(Path(((at, box.bottom - 12), (at, box.bottom)), "axis", "throughput over time is greatest here"))
    return [*marks, *headings(names, box, 14)]


def draw_fleets(all_points: Sequence[FleetPoint]) -> Drawing:
    """Draw cost against both latencies, one panel each; the step line joins fleets that hold and that none beats.

    Fleets of more than `FAR` times the recommended one's price are left out, so that the others stand apart.
    """
    own = next(point for point in all_points if point.recommended)
    points = [point for point in all_points if point.cost <= FAR * own.cost]
    marks: list[Mark] = []
    for number, metric in enumerate(("ttft", "tpot")):
        marks += _fleet_panel(points, metric, number * _PANEL)
    summary = "; ".join(
        f"{p.name} {hourly(p.cost)}, TTFT {percent(p.ttft)} and TPOT {percent(p.tpot)} of the limit" for p in points[:8]
    )
    return Drawing(WIDTH, 2 * _PANEL, f"cost against latency: {summary}", tuple(marks))


def _fleet_panel(points: Sequence[FleetPoint], metric: str, top: float) -> list[Mark]:
    box = Box(_LEFT, top + 28, _RIGHT, top + _PANEL - 40)
    low, high = min(p.cost for p in points), max(p.cost for p in points)
    room = max(0.12 * (high - low), 0.04 * high, 1e-9)
    frame = plot(box, (max(0.0, low - room), high + room), (0.0, 1.5))
    step = [value for value in round_steps(high + room, 8) if value >= frame.x.low]
    heights = [(y, percent(y)) for y in (0.0, 0.5, 1.0, 1.5)]
    title = f"{metric.upper()} as a share of its limit"
    marks = axes(frame, [(v, f"${significant(v)}") for v in step], heights, "price per hour", title)
    marks.append(Path(((box.left, frame.y(1.0)), (box.right, frame.y(1.0))), "limit", "the limit"))
    inside = [point for point in points if getattr(point, metric) <= frame.y.high]
    meeting = [point for point in inside if point.held]
    front = [(point.cost, getattr(point, metric)) for point in undominated(meeting, metric)]
    stairs = [corner for a, b in itertools.pairwise(front) for corner in (a, (b[0], a[1]))] + front[-1:]
    marks += line(frame, stairs, "front")
    boxes = []
    for point in sorted(points, key=lambda p: p.recommended):
        value = min(getattr(point, metric), frame.y.high)
        x, y = frame.at((point.cost, value))
        tone = "good" if point.recommended else "other" if point.held else "over"
        marks.append(Symbol(x, y, tone, _fleet_tip(point, metric)))
        margin = 6 if point.recommended else 24  # a label next to another fleet's mark would seem to be of that fleet
        boxes.append(Box(x - margin, y - 6, x + margin, y + 6))
    own = next(p for p in points if p.recommended)
    x, y = frame.at((own.cost, min(getattr(own, metric), frame.y.high)))
    label = place_label(x, y, f"recommended {money(own.cost)}", boxes, plot=box, tone="halo")
    return [*marks, *([label] if label else [])]


def _fleet_tip(point: FleetPoint, metric: str) -> str:
    share = percent(getattr(point, metric))
    return f"{point.name}: {hourly(point.cost)}, {metric.upper()} {share} of limit, {point.outcome}"


def draw_buckets(figure: ClassMap) -> Drawing:
    """Draw the share of each cell of lengths that meets the SLO; those below the goal stand out."""
    shares = figure.lengths.shares
    ends = f"from {percent(min(shares))} to {percent(max(shares))}"
    return draw_cells(
        figure.lengths,
        lambda share: "cell-held" if share >= figure.goal else "cell-missed",
        f"share of {figure.name} that meets the SLO, by length, {ends}",
        "% of requests that meet the SLO",
    )


ROOFLINE_HEIGHT: Final = 300.0
_PLOT: Final = Box(46.0, 54.0, WIDTH - 8, ROOFLINE_HEIGHT - 42)
_RIDGE_NAMES: Final = Box(0.0, 16.0, WIDTH, _PLOT.top)


def draw_roofline(points: Sequence[RooflinePoint]) -> Drawing:
    """Draw the roof of each GPU, then each pool's operating point below its roof, then labels where they fit."""
    roofs = sorted({(point.accelerator, point.ridge) for point in points})
    x, y = _scales(points)
    at = [(x(point.intensity), y(point.mfu), y(point.attainable)) for point in points]
    boxes = [Box(left - 6, top - 6, left + 6, top + 6) for left, top, _ in at]
    marks = [*_roofline_axes(x, y), *(_roof(name, ridge, x, y) for name, ridge in roofs)]
    marks.extend(Path(((left, top), (left, roof)), "drop") for left, top, roof in at)
    for point, (left, top, _) in zip(points, at, strict=True):
        marks.append(Symbol(left, top, point.role, _tip(point)))
    for point, (left, top, _) in zip(points, at, strict=True):
        label = place_label(left, top, point.pool, boxes, plot=_PLOT, tone="halo")
        if label is not None:
            marks.append(label)
            boxes.append(label.box)
    marks.extend(_ridges(roofs, x, boxes))
    summary = "; ".join(_tip(point) for point in points[:6])
    return Drawing(WIDTH, ROOFLINE_HEIGHT, f"roofline: {summary}", tuple(marks))


def _scales(points: Sequence[RooflinePoint]) -> tuple[Log, Log]:
    intensities = [value for point in points for value in (point.intensity, point.ridge)]
    low_x, high_x = decade_range([min(intensities) / 1.5, max(intensities) * 1.5] if intensities else [1.0, 1e3])
    low_y, _ = decade_range([*(point.mfu / 1.2 for point in points), 0.5])
    return Log(low_x, high_x, _PLOT.left, _PLOT.right), Log(low_y, 1.0, _PLOT.bottom, _PLOT.top)


def _roofline_axes(x: Log, y: Log) -> list[Mark]:
    ticks = [(decade, si(decade, "").replace(" ", "")) for decade in x.decades()]
    shares = [(decade, percent(decade)) for decade in y.decades()]
    marks = axes(Plot(_PLOT, x, y), ticks, shares, "arithmetic intensity, FLOP/byte", "")
    marks += [Path(((x(decade), _PLOT.top), (x(decade), _PLOT.bottom)), "grid") for decade in x.decades()]
    return [*marks, Text(0, 12, "share of peak FLOP/s (MFU); above: ridge of each GPU, FLOP/byte", "muted")]


def _roof(name: str, ridge: float, x: Log, y: Log) -> Path:
    """Draw min(1, intensity / ridge) from where it enters the plot."""
    start = max(x.low, y.low * ridge)
    points = (x(start), y(start / ridge)), (x(ridge), y(1.0)), (x(x.high), y(1.0))
    return Path(points, "roof", f"{name}: ridge at {significant(ridge)} FLOP/byte")


def _ridges(roofs: Sequence[tuple[str, float]], x: Log, labels: Sequence[Box]) -> list[Mark]:
    """Mark each ridge at the top of the plot and name it above, where names do not meet."""
    marks: list[Mark] = []
    boxes = list(labels)
    for name, ridge in roofs:
        at = x(ridge)
        marks.append(Path(((at, _PLOT.top - 4), (at, _PLOT.top + 5)), "axis"))
        for base in (_PLOT.top - 8, _PLOT.top - 22):
            label = Text(at, base, f"{name} {significant(ridge)}", "muted", "middle")
            if label.box.inside(_RIDGE_NAMES) and not any(label.box.overlaps(box) for box in boxes):
                marks.append(label)
                boxes.append(label.box)
                break
    return marks


def _tip(point: RooflinePoint) -> str:
    return (
        f"{point.pool} ({point.role}, {point.accelerator}): {significant(point.intensity)} FLOP/byte, "
        f"{percent(point.mfu)} of peak, {percent(point.attainable)} attainable; bound by {point.bound_by}"
    )


def draw_arrivals(figure: Arrivals) -> Drawing:
    """Draw a column for each hour; of one above the planned rate, the part beyond it stands out."""
    box = Box(46, 44, WIDTH - 10, 176)
    high = max(*figure.hourly, figure.planned) * 1.05
    frame = plot(box, (0.0, HOURS), (0.0, high))
    heights = [(value, significant(value)) for value in round_steps(high, 4)]
    hours = [(hour, f"{hour:02d}:00") for hour in range(0, HOURS, 6)]
    marks: list[Mark] = axes(frame, hours, heights, "", "requests per second")
    width = frame.x(1.0) - frame.x(0.0)
    limit = frame.y(figure.planned)
    for hour, value in enumerate(figure.hourly):
        x, y, tip = frame.x(hour) + 1, frame.y(value), f"{hour:02d}:00: {rate(value)}"
        marks.append(Rect(x, max(y, limit), width - 2, box.bottom - max(y, limit), "prefill", tip))
        if y < limit:
            marks.append(Rect(x, y, width - 2, limit - y, "over", tip))
    marks.append(Path(((box.left, limit), (box.right, limit)), "limit", f"planned for {rate(figure.planned)}"))
    marks += headings([(box.right - 60, f"planned {rate(figure.planned)}", "limit")], box, 14)
    summary = ", ".join(f"{hour:02d}:00 {rate(value)}" for hour, value in enumerate(figure.hourly))
    return Drawing(WIDTH, box.bottom + 26, f"arrivals by hour: {summary}", tuple(marks))


PLOT: Final = Box(54.0, 26.0, WIDTH - 8.0, 190.0)
HEIGHT: Final = 232.0
LEVELS: Final = 8
"""Tones of a heat map."""
CELL_GAP: Final = 3.0
"""Between the text of a cell and the next cell, in drawing units."""
HEAT_LEFT, HEAT_TOP = 78.0, 26.0


@dataclass(frozen=True, slots=True)
class Stack:
    """One upright bar: its parts as (tone, value, tip), from the ground up."""

    parts: tuple[tuple[str, float, str], ...]

    @property
    def total(self) -> float:
        """Height of the bar."""
        return sum(value for _, value, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around bars: names of both axes, ticks, and the highest value."""

    x_name: str
    y_name: str
    x_ticks: Ticks
    y_ticks: Ticks
    high: float


def draw_stacks(stacks: Sequence[Stack], frame: Frame, summary: str) -> Drawing:
    """Draw upright bars side by side; a tick of the horizontal axis is the number of a bar, from 0."""
    drawn = plot(PLOT, (-0.5, len(stacks) - 0.5), (0.0, frame.high))
    marks: list[Mark] = axes(drawn, frame.x_ticks, frame.y_ticks, frame.x_name, frame.y_name)
    width = (PLOT.right - PLOT.left) / max(len(stacks), 1)
    gap = min(2.0, 0.2 * width)
    for number, stack in enumerate(stacks):
        x, ground = PLOT.left + number * width, 0.0
        for tone, value, tip in stack.parts:
            top, bottom = drawn.y(ground + value), drawn.y(ground)
            if bottom > top:
                marks.append(Rect(x + gap / 2, top, width - gap, bottom - top, tone, tip))
            ground += value
    return Drawing(WIDTH, HEIGHT, summary, tuple(marks))


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One cell: its values of both levers, the lines of text in it, its tone, and what a pointer over it shows."""

    down: str
    across: str
    lines: tuple[str, ...]
    tone: str
    tip: str


def tone_of(value: float | None, span: tuple[float, float], family: str = "heat") -> str:
    """Little is light, much is dark; without a value the tone of an empty cell.

    >>> tone_of(2.0, (1.0, 3.0)), tone_of(3.0, (1.0, 3.0)), tone_of(None, (1.0, 3.0))
    ('heat-5', 'heat-8', 'heat-0')
    """
    if value is None:
        return "heat-0"
    share = (value - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 0.0
    return f"{family}-{1 + min(int(share * LEVELS), LEVELS - 1)}"


def draw_heat_map(cells: Sequence[HeatCell], down: str, across: str, summary: str) -> Drawing:
    """Draw a cell for each combination; its lines stand in it where there is room. down: empty where one lever varies.

    Cells may come in any order; values stand in the order in which they first come, a unit that all have beside the
    lever's name.
    """
    rows, columns = list(dict.fromkeys(cell.down for cell in cells)), list(dict.fromkeys(cell.across for cell in cells))
    units = [_common_unit(names) for names in (rows, columns)]
    heads = [f"{name}{f' [{unit}]' if unit else ''}" for name, unit in zip((down, across), units, strict=True)]
    width, height = (WIDTH - HEAT_LEFT) / len(columns), 12.0 + 14.0 * max(len(cell.lines) for cell in cells)
    marks: list[Mark] = [Text(0, 12, f"{heads[0]} ↓  {heads[1]} →" if down else f"{heads[1]} →", "muted")]
    for cell in cells:
        x, y = HEAT_LEFT + columns.index(cell.across) * width, HEAT_TOP + rows.index(cell.down) * height
        marks.append(Rect(x, y, width - 1.5, height - 1.5, cell.tone, cell.tip))
        if all(text_width(line) <= width - CELL_GAP for line in cell.lines):
            marks += [
                Text(x + width / 2, y + 17 + 14 * number, line, f"on-{cell.tone}", "middle")
                for number, line in enumerate(cell.lines)
            ]
    marks += [
        Text(HEAT_LEFT - 6, HEAT_TOP + n * height + 17, fit(value.removesuffix(f" {units[0]}"), 11), "tick", "end")
        for n, value in enumerate(rows)
        if value
    ]
    bottom = HEAT_TOP + height * len(rows)
    step = max(round(40.0 / width), 1)
    room = int((step * width - CELL_GAP) / text_width("0"))
    marks += [
        Text(
            HEAT_LEFT + (n + 0.5) * width, bottom + 16, fit(value.removesuffix(f" {units[1]}"), room), "tick", "middle"
        )
        for n, value in enumerate(columns)
        if n % step == 0
    ]
    return Drawing(WIDTH, bottom + 24, summary, tuple(marks))


def _common_unit(names: Sequence[str]) -> str:
    """The unit that all values have; empty where they differ or have none.

    >>> _common_unit(["5 req/s", "10 req/s"]), _common_unit(["500 ms", "1 s"]), _common_unit(["$2.00/h"])
    ('req/s', '', '')
    """
    units = {name.rpartition(" ")[2] if " " in name else "" for name in names}
    return units.pop() if len(units) == 1 else ""
