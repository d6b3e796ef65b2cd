"""What charts are drawn with: marks, scales and axes. Colors are CSS classes; positions are drawing units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from .numbers import is_number
from .text import display_width

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
        return (
            self.left < neighbor.right
            and neighbor.left < self.right
            and self.top < neighbor.bottom
            and neighbor.top < self.bottom
        )

    def inside(self, outer: Box) -> bool:
        """Tell whether this box lies within another."""
        return (
            self.left >= outer.left
            and self.right <= outer.right
            and self.top >= outer.top
            and self.bottom <= outer.bottom
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart ready to be written as SVG: size, what it shows in words, and its marks from back to front."""

    width: float
    height: float
    label: str
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
    ]
    for x_at, base, anchor in candidates:
        label = Text(x_at, base, text, tone, anchor)
        if label.box.inside(plot) and not any(label.box.overlaps(box) for box in boxes):
            return label
    return None


@dataclass(frozen=True, slots=True)
class Linear:
    """Map [low, high] to [start, end]; positions beyond the ends are clipped to them.

    >>> Linear(0, 10, 100, 200)(5), Linear(0, 10, 100, 200)(20)
    (150.0, 200.0)
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Log:
    """Map [low, high], both positive, to [start, end] by their logarithms; clipped at the ends.

    >>> round(Log(1, 100, 0, 10)(10), 9)
    5.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a positive value."""
        linear = Linear(math.log10(self.low), math.log10(self.high), self.start, self.end)
        return linear(math.log10(max(value, self.low)))

    def decades(self) -> list[float]:
        """Return the powers of ten from low to high.

        >>> Log(0.1, 100, 0, 1).decades()
        [0.1, 1.0, 10.0, 100.0]
        """
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
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
    x: Linear | Log
    y: Linear | Log

    def at(self, point: Point) -> Point:
        """Return the position of a point of numbers."""
        return self.x(point[0]), self.y(point[1])


def plot(box: Box, x: tuple[float, float], y: tuple[float, float]) -> Plot:
    """Make a plot with linear axes that run from the first number to the second."""
    return Plot(box, Linear(*x, box.left, box.right), Linear(*y, box.bottom, box.top))


def axes(frame: Plot, x_ticks: Ticks, y_ticks: Ticks, x_name: str, y_name: str) -> list[Mark]:
    """Draw grid lines, tick labels, the base line and the axes' names, if any: the vertical one's above, left."""
    box = frame.box
    marks: list[Mark] = []
    for value, name in y_ticks:
        y = frame.y(value)
        marks += [Path(((box.left, y), (box.right, y)), "grid"), Text(box.left - 6, y + 4, name, "tick", "end")]
    free = 0.0
    for value, name in x_ticks:
        half = text_width(name) / 2
        middle = min(max(frame.x(value), half), box.right + 8 - half)
        if middle - half >= free:
            marks.append(Text(middle, box.bottom + 18, name, "tick", "middle"))
            free = middle + half + 6
    marks.append(Rect(box.left, box.bottom, box.right - box.left, 1, "axis"))
    if y_name:
        marks.append(Text(0, box.top - 13, y_name, "muted"))
    if x_name:
        marks.append(Text(box.right, box.bottom + 34, x_name, "muted", "end"))
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
        half = text_width(name) / 2
        middle = min(max(at, half), box.right - half)
        for base in (top, top + 16):
            label = Text(middle, base, name, tone, "middle")
            if not any(isinstance(mark, Text) and label.box.overlaps(mark.box) for mark in marks):
                marks.append(label)
                break
    return marks


@dataclass(frozen=True, slots=True)
class PoolBox:
    """One pool: caption lines and, for each replica that is drawn, its GPU squares and whether it is spare.

    columns: squares side by side (the tensor-parallel ranks, at most 8); more: replicas or GPUs not drawn, in words.
    """

    title: str
    role: str
    lines: tuple[str, ...]
    engines: tuple[tuple[int, bool], ...]
    columns: int
    more: str


@dataclass(frozen=True, slots=True)
class LinkLine:
    """One hand-over of KV cache between two pools."""

    source: str
    target: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetDiagram:
    """Columns of the diagram; a fleet may have prefill and decode pools, colocated ones, or both.

    entry, exit: what comes in and what goes out, each a figure and what it is of.
    """

    prefill: tuple[PoolBox, ...]
    decode: tuple[PoolBox, ...]
    colocated: tuple[PoolBox, ...]
    links: tuple[LinkLine, ...]
    more_links: int
    entry: tuple[str, str]
    exit: tuple[str, str]
