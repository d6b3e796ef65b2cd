"""Charts as marks on a plane: scales and axes, panels of lines and points, maps of cells.

They know no plan. Colors are CSS classes; positions are drawing units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from .text import display_width, fit, is_number

WIDTH: Final = 400.0
"""Of every chart."""
FONT_SIZE: Final = 12.0
_CHARACTER: Final = 0.56
"""Mean width of a character in units of the font size; on the wide side, so that boxes do not touch."""

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle; `tip` is its tooltip."""

    kind: ClassVar[str] = "rect"
    x: float
    y: float
    width: float
    height: float
    tone: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Path:
    """A line through points."""

    kind: ClassVar[str] = "path"
    points: tuple[tuple[float, float], ...]
    tone: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A point: circle for prefill, square for decode, diamond for colocated, so that colour is not needed."""

    kind: ClassVar[str] = "symbol"
    x: float
    y: float
    tone: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; y is its baseline."""

    kind: ClassVar[str] = "text"
    x: float
    y: float
    text: str
    tone: str = "label"
    anchor: Anchor = "start"

    @property
    def box(self) -> Box:
        """Space that the text takes."""
        width = text_width(self.text)
        left = {"start": self.x, "middle": self.x - width / 2, "end": self.x - width}[self.anchor]
        return Box(left, self.y - 0.8 * FONT_SIZE, left + width, self.y + 0.25 * FONT_SIZE)


Mark = Rect | Path | Symbol | Text


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-aligned box."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, neighbor: Box) -> bool:
        """Tell whether two boxes share any area."""
        across = self.left < neighbor.right and neighbor.left < self.right
        return across and self.top < neighbor.bottom and neighbor.top < self.bottom

    def inside(self, outer: Box) -> bool:
        """Tell whether this box lies within another."""
        across = self.left >= outer.left and self.right <= outer.right
        return across and self.top >= outer.top and self.bottom <= outer.bottom


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart ready to be written as SVG: size, and its marks from back to front."""

    width: float
    height: float
    marks: tuple[Mark, ...]


def text_width(text: str) -> float:
    """Estimate the width of a text in drawing units."""
    return display_width(text) * _CHARACTER * FONT_SIZE


def place_label(x: float, y: float, text: str, boxes: Sequence[Box], *, plot: Box, tone: str) -> Text | None:
    """Find a place for a point's label beside it that meets neither the boxes taken nor the plot's edge."""
    candidates: list[tuple[float, float, Anchor]] = [
        (x + 9, y + 4, "start"),
        (x - 9, y + 4, "end"),
        (x, y - 10, "middle"),
        (x, y + 19, "middle"),
        (x + 8, y - 8, "start"),
        (x - 8, y - 8, "end"),
        (x + 8, y + 17, "start"),
        (x - 8, y + 17, "end"),
        (x - 4, y + 24, "start"),
    ]
    for x_at, base, anchor in candidates:
        label = Text(x_at, base, text, tone, anchor)
        if label.box.inside(plot) and not any(label.box.overlaps(box) for box in boxes):
            return label
    return None


@dataclass(frozen=True, slots=True)
class Scale:
    """Map [low, high] to [start, end], by logarithms where `log`; positions beyond the ends are clipped to them.

    >>> Scale(0, 10, 100, 200)(5), Scale(0, 10, 100, 200)(20), round(Scale(1, 100, 0, 10, log=True)(10), 9)
    (150.0, 200.0, 5.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten from low to high.

    >>> decades(0.1, 100)
    [0.1, 1.0, 10.0, 100.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [float(f"1e{power}") for power in range(first, last + 1)]


def round_steps(high: float, most: int = 5) -> list[float]:
    """Return 0 and the multiples of 1, 2 or 5 times a power of ten up to `high`, `most` steps at most.

    >>> round_steps(2.667), round_steps(17.5, 4), round_steps(0.0)
    ([0.0, 1.0, 2.0], [0.0, 5.0, 10.0, 15.0], [0.0])
    """
    if not 0.0 < high < math.inf:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor * most >= high * (1 - 1e-9))
    return [float(f"{step * number:.6g}") for number in range(int(high / step * (1 + 1e-9)) + 1)]


def round_ticks(low: float, high: float) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about five; both ends if too few.

    >>> round_ticks(0.3, 4.0), round_ticks(0.5, 0.999), round_ticks(2.0, 2.0)
    ([1.0, 2.0, 3.0, 4.0], [0.5, 0.6, 0.7, 0.8, 0.9], [2.0, 2.0])
    """
    step = (round_steps(high - low)[1:] or [math.inf])[0]
    first = math.ceil(low / step * (1 - 1e-9))
    ticks = [float(f"{step * number:.6g}") for number in range(first, math.floor(high / step * (1 + 1e-9)) + 1)]
    return ticks if len(ticks) > 1 else [low, high]


def round_ratios(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten from `low` to `high`, for an axis by logarithms.

    >>> round_ratios(0.3, 4.0)
    [0.5, 1.0, 2.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def decade_range(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten that enclose positive values.

    >>> decade_range([41.2, 2210.0])
    (10.0, 10000.0)
    """
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return float(f"1e{low}"), float(f"1e{max(high, low + 1)}")


Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Where a chart's numbers are drawn."""

    box: Box
    x: Scale
    y: Scale

    def at(self, point: Point) -> Point:
        """Return the position of a point of numbers."""
        return self.x(point[0]), self.y(point[1])


def axes(frame: Plot, x_axis: Axis, y_axis: Axis) -> list[Mark]:
    """Draw grid lines, tick labels, the base line and the axes' names, if any: the vertical one's above, left."""
    box = frame.box
    marks: list[Mark] = []
    for value, name in y_axis.ticks:
        y = frame.y(value)
        marks += [Path(((box.left, y), (box.right, y)), "grid"), Text(box.left - 6, y + 4, name, "tick", "end")]
    free = 0.0
    for value, name in x_axis.ticks:
        half = text_width(name) / 2
        middle = min(max(frame.x(value), half), box.right + 8 - half)
        if middle - half >= free:
            marks.append(Text(middle, box.bottom + 18, name, "tick", "middle"))
            free = middle + half + 6
    marks.append(Rect(box.left, box.bottom, box.right - box.left, 1, "axis"))
    if y_axis.name:
        marks.append(Text(0, box.top - 13, y_axis.name, "muted"))
    if x_axis.name:
        marks.append(Text(box.right, box.bottom + 34, x_axis.name, "muted", "end"))
    return marks


def line(frame: Plot, points: Sequence[Point], tone: str, tip: str = "") -> list[Mark]:
    """Draw a line through points with rising x; it ends where it leaves the plot or where there is no number."""
    drawn: list[Point] = []
    highs = frame.x.high, frame.y.high
    for point in points:
        if not all(map(is_number, point)):
            break
        if point[0] > highs[0] or point[1] > highs[1]:
            if drawn:
                (x, y), (next_x, next_y) = drawn[-1], point
                ends = zip(drawn[-1], point, highs, strict=True)
                share = min((high - start) / (end - start) for start, end, high in ends if end > high)
                drawn.append((x + share * (next_x - x), y + share * (next_y - y)))
            break
        drawn.append(point)
    return [Path(tuple(frame.at(point) for point in drawn), tone, tip)] if len(drawn) > 1 else []


def headings(names: Sequence[tuple[float, str, str]], box: Box, top: float) -> list[Mark]:
    """Name upright lines above the plot: (position, text, tone), each on the highest of two lines where it fits."""
    marks: list[Mark] = []
    for at, name, tone in names:
        half = BOLD * text_width(name) / 2
        middle = min(max(at, half), box.right - half)
        for base in (top, top + 16):
            label = Text(middle, base, name, tone, "middle")
            if not any(isinstance(mark, Text) and label.box.overlaps(mark.box) for mark in marks):
                marks.append(label)
                break
    return marks


# --- forms of charts --------------------------------------------------------------------------------------------------

LEVELS: Final = 8
"""Tones of a heat map."""
EMPTY_CELL: Final = "heat-0"
"""Tone of a cell that has no value."""
CELL_GAP: Final = 3.0
"""Between the text of a cell and the next cell, in drawing units."""
HEAT_LEFT, HEAT_TOP = 78.0, 26.0
LEFT: Final = 46.0
"""Where panels begin, behind the numbers of their upright axis."""
RIGHT: Final = WIDTH - 10
NAME_LINES: Final = 2
"""Lines above a panel for the names of its upright lines."""
BOLD: Final = 1.12
"""Width of bold text over that of other text [1]."""
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

    def scale(self, start: float, end: float) -> Scale:
        """Map the numbers of the axis to positions."""
        return Scale(self.low, self.high, start, end, self.log)


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


def draw_panels(panels: Sequence[Panel]) -> Drawing:
    """Draw panels below each other."""
    marks: list[Mark] = []
    top = 0.0
    for panel in panels:
        marks += _panel_marks(panel, top)
        top += panel.height
    return Drawing(WIDTH, top, tuple(marks))


def _panel_marks(panel: Panel, top: float) -> list[Mark]:
    """Axes, lines across, then series from back to front, then the names of points."""
    below = 40.0 if panel.x.name else 26.0
    box = Box(LEFT, top + 28 + 16 * min(len(panel.uprights), NAME_LINES), RIGHT, top + panel.height - below)
    frame = Plot(box, panel.x.scale(box.left, box.right), panel.y.scale(box.bottom, box.top))
    marks: list[Mark] = [Text(0, top + 14, panel.title, "strong")] if panel.title else []
    marks += axes(frame, panel.x, panel.y)
    if panel.x.log:
        marks += [Path(((frame.x(at), box.top), (frame.x(at), box.bottom)), "grid") for at, _ in panel.x.ticks]
    for value, tone, tip in panel.levels:
        marks.append(Path(((box.left, frame.y(value)), (box.right, frame.y(value))), tone, tip))
    for value, tone, _, _ in panel.uprights:
        marks.append(Path(((frame.x(value), box.top), (frame.x(value), box.bottom)), tone))
    names = [(frame.x(value), name, tone) for value, _, name, tone in panel.uprights]
    marks += headings(names, box, top + (30 if panel.title else 14))
    for series in panel.series:
        if series.line:
            marks += line(frame, series.points, series.line, "" if series.symbol else next(iter(series.tips), ""))
        for point, tip in zip(series.points, series.tips or [""] * len(series.points), strict=False):
            is_inside = all(map(is_number, point)) and point[0] <= frame.x.high and point[1] <= frame.y.high
            marks += [Symbol(*frame.at(point), series.symbol, tip)] if series.symbol and is_inside else []
    return marks + _point_names(panel.series, frame)


def _point_names(all_series: Sequence[Series], frame: Plot) -> list[Mark]:
    """The names of points, each beside its own and away from the others; those of lines where room is left."""
    places = [frame.at(point) for series in all_series if series.symbol for point in series.points]
    lines = [tuple(map(frame.at, series.points)) for series in all_series if series.line == "drop"]
    roofs = [tuple(map(frame.at, series.points)) for series in all_series if series.line == "roof"]
    shares = [number / 24 for number in range(25)]
    slopes = [(x + at * (end - x), y + at * (top - y)) for (x, y), (end, top), *_ in roofs for at in shares]
    labels: list[Text] = []
    for series in sorted(all_series, key=lambda series: not series.symbol):
        for point, name in zip(series.points, series.names, strict=False):
            if not name:
                continue
            own = frame.at(point)
            boxes = [label.box for label in labels]
            boxes += [Box(x - 1.0, min(y, top), x + 1.0, max(y, top)) for (x, y), (_, top) in lines]
            boxes += [Box(x - 3.0, y - 3.0, x + 3.0, y + 3.0) for x, y in slopes]
            for x, y in places:
                room = POINT if (x, y) == own else BESIDE_POINT
                boxes.append(Box(x - room, y - POINT, x + room, y + POINT))
            label = place_label(*own, name, boxes, plot=frame.box, tone="halo")
            labels += [label] if label else []
    return list(labels)


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One cell: its values of both levers, the lines of text in it, its tone, and what a pointer over it shows."""

    down: str
    across: str
    lines: tuple[str, ...]
    tone: str
    tip: str


def tone_of(value: float, most: float, family: str) -> str:
    """Little is light, much is dark.

    >>> tone_of(1.0, 2.0, "split"), tone_of(2.0, 2.0, "split"), tone_of(0.0, 0.0, "alone")
    ('split-5', 'split-8', 'alone-1')
    """
    return f"{family}-{1 + min(int(value / most * LEVELS), LEVELS - 1) if most else 1}"


def draw_heat_map(cells: Sequence[HeatCell], down: str, across: str) -> Drawing:
    """Draw a cell for each combination; its lines stand in it where there is room.

    Cells may come in any order; values stand in the order in which they first come, a unit that all have beside the
    lever's name.
    """
    rows, columns = list(dict.fromkeys(cell.down for cell in cells)), list(dict.fromkeys(cell.across for cell in cells))
    units = [_common_unit(names) for names in (rows, columns)]
    heads = [f"{name}{f' [{unit}]' if unit else ''}" for name, unit in zip((down, across), units, strict=True)]
    width, height = (WIDTH - HEAT_LEFT) / len(columns), 12.0 + 14.0 * max(len(cell.lines) for cell in cells)
    marks: list[Mark] = [Text(0, 12, f"{heads[0]} ↓  {heads[1]} →", "muted")]
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
    return Drawing(WIDTH, bottom + 24, tuple(marks))


def _common_unit(names: Sequence[str]) -> str:
    """The unit that all values have; empty where they differ or have none.

    >>> _common_unit(["5 req/s", "10 req/s"]), _common_unit(["500 ms", "1 s"]), _common_unit(["$2.00/h"])
    ('req/s', '', '')
    """
    units = {name.rpartition(" ")[2] if " " in name else "" for name in names}
    return units.pop() if len(units) == 1 else ""
