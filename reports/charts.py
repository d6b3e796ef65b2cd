"""Forms of charts that answers draw: panels of lines and points, bars, stacks, maps of cells. They know no plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
    headings,
    line,
    place_label,
    plot,
    text_width,
)
from reports.numbers import is_number
from reports.text import fit

PLOT: Final = Box(54.0, 26.0, WIDTH - 8.0, 190.0)
HEIGHT: Final = 232.0
LEVELS: Final = 8
"""Tones of a heat map."""
CELL_GAP: Final = 3.0
"""Between the text of a cell and the next cell, in drawing units."""
HEAT_LEFT, HEAT_TOP = 78.0, 26.0
BAR_HEIGHT: Final = 14.0
LEFT: Final = 46.0
"""Where panels begin, behind the numbers of their upright axis."""
RIGHT: Final = WIDTH - 10
NAME_LINES: Final = 2
"""Lines above a panel for the names of its upright lines."""
POINT, BESIDE_POINT = 6.0, 12.0
"""Half the room that a point takes, and that it takes from the labels of other points."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Name, ends and ticks of an axis; log: by the logarithms of its numbers, with a grid line at each tick."""

    name: str
    low: float
    high: float
    ticks: Ticks
    log: bool = False

    def scale(self, start: float, end: float) -> Linear | Log:
        """Map the numbers of the axis to positions."""
        return (Log if self.log else Linear)(self.low, self.high, start, end)


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of x; line, symbol: tones, empty where none is drawn; tips: of each point, or of the line.

    names: of points, which stand beside them where there is room.
    """

    points: Sequence[Point]
    line: str = ""
    symbol: str = ""
    tips: Sequence[str] = ()
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines and points over two axes.

    levels: level lines as (value, tone, tip); uprights: upright ones as (value, tone, name, tone of the name).
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    levels: Sequence[tuple[float, str, str]] = ()
    uprights: Sequence[tuple[float, str, str, str]] = ()
    height: float = 200.0


def draw_panels(panels: Sequence[Panel], summary: str) -> Drawing:
    """Draw panels below each other."""
    marks: list[Mark] = []
    top = 0.0
    for panel in panels:
        marks += _panel_marks(panel, top)
        top += panel.height
    return Drawing(WIDTH, top, summary, tuple(marks))


def _panel_marks(panel: Panel, top: float) -> list[Mark]:
    """Axes, lines across, then series from back to front, then the names of points."""
    below = 40.0 if panel.x.name else 26.0
    box = Box(LEFT, top + 28 + 16 * min(len(panel.uprights), NAME_LINES), RIGHT, top + panel.height - below)
    frame = Plot(box, panel.x.scale(box.left, box.right), panel.y.scale(box.bottom, box.top))
    marks: list[Mark] = [Text(0, top + 14, panel.title, "strong")] if panel.title else []
    marks += axes(frame, panel.x.ticks, panel.y.ticks, panel.x.name, panel.y.name)
    if panel.x.log:
        marks += [Path(((frame.x(at), box.top), (frame.x(at), box.bottom)), "grid") for at, _ in panel.x.ticks]
    for value, tone, tip in panel.levels:
        marks.append(Path(((box.left, frame.y(value)), (box.right, frame.y(value))), tone, tip))
    for value, tone, _, _ in panel.uprights:
        marks.append(Path(((frame.x(value), box.top), (frame.x(value), box.bottom)), tone))
    names = [(frame.x(value), name, tone) for value, _, name, tone in panel.uprights]
    marks += headings(names, box, top + (30 if panel.title else 14))
    for series in panel.series:
        marks += _series_marks(series, frame)
    return marks + _point_names(panel.series, frame)


def _series_marks(series: Series, frame: Plot) -> list[Mark]:
    marks: list[Mark] = []
    if series.line:
        marks += line(frame, series.points, series.line, "" if series.symbol else next(iter(series.tips), ""))
    if series.symbol:
        tips = series.tips or [""] * len(series.points)
        marks += [
            Symbol(*frame.at(point), series.symbol, tip)
            for point, tip in zip(series.points, tips, strict=True)
            if all(map(is_number, point)) and point[0] <= frame.x.high and point[1] <= frame.y.high
        ]
    return marks


def _point_names(all_series: Sequence[Series], frame: Plot) -> list[Mark]:
    """The names of points, each beside its own and away from the others."""
    places = [frame.at(point) for series in all_series if series.symbol for point in series.points]
    labels: list[Text] = []
    for series in all_series:
        for point, name in zip(series.points, series.names, strict=False):
            own = frame.at(point)
            boxes = [label.box for label in labels]
            for x, y in places:
                room = POINT if (x, y) == own else BESIDE_POINT
                boxes.append(Box(x - room, y - POINT, x + room, y + POINT))
            label = place_label(*own, name, boxes, plot=frame.box, tone="halo")
            labels += [label] if label else []
    return list(labels)


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar: its parts as (tone, value, tip), from the ground up or from the left."""

    parts: tuple[tuple[str, float, str], ...]

    @property
    def total(self) -> float:
        """Length of the bar."""
        return sum(value for _, value, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar: its label and its note above it, its parts, and the text in each where there is room."""

    label: str
    note: str
    stack: Stack
    texts: tuple[str, ...] = ()


def draw_bars(bars: Sequence[Bar], summary: str, line: float | None = None) -> Drawing:
    """Draw bars below each other, from 0 to the longest; line: a value that all are set against, if it is in range."""
    longest = max((bar.stack.total for bar in bars), default=0.0) or 1.0
    marks: list[Mark] = []
    for number, bar in enumerate(bars):
        y, x = 2.0 + 40.0 * number, 0.0
        room = int((WIDTH - text_width(bar.note) - 12) / text_width("n"))
        first = bar.stack.parts[0][0] if bar.stack.parts else ""
        marks.append(Text(0, y + 11, fit(bar.label, max(8, room)), "strong" if first == "good" else "label"))
        marks.append(Text(WIDTH, y + 11, bar.note, "label", "end"))
        marks.append(Rect(0, y + 17, WIDTH, BAR_HEIGHT, "track"))
        for at, (tone, value, tip) in enumerate(bar.stack.parts):
            width = max(1.5, value / longest * WIDTH) if value > 0 else 0.0
            width = min(width, WIDTH - x)
            marks.append(Rect(x, y + 17, width, BAR_HEIGHT, tone, tip))
            if bar.texts and width > text_width(bar.texts[at]) + 8:
                marks.append(Text(x + width / 2, y + 28, bar.texts[at], f"on-{tone.removeprefix('part-')}", "middle"))
            x += width
        if line is not None and line <= longest:
            at_line = line / longest * WIDTH
            marks.append(Path(((at_line, y + 15), (at_line, y + 33)), "limit"))
    return Drawing(WIDTH, max(40.0 * len(bars) - 2, 1.0), summary, tuple(marks))


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around bars: names of both axes, ticks, and the highest value."""

    x_name: str
    y_name: str
    x_ticks: Ticks
    y_ticks: Ticks
    high: float


def draw_stacks(stacks: Sequence[Stack], frame: Frame, summary: str, limit: tuple[float, str] | None = None) -> Drawing:
    """Draw upright bars side by side; a tick of the horizontal axis is the number of a bar, from 0.

    limit: a value that all are set against, and its name.
    """
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
    if limit is not None:
        height, name = drawn.y(limit[0]), limit[1]
        marks.append(Path(((PLOT.left, height), (PLOT.right, height)), "limit", name))
        marks += headings([(PLOT.right - 60, name, "limit")], PLOT, PLOT.top - 13)
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
