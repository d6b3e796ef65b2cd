"""The frame of a chart with two axes: ticks that do not meet, lines cut at the plot's edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .marks import Box, Mark, Path, Rect, Text, text_width
from .numbers import is_number
from .scales import Linear, Log

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
    for point in points:
        if not all(map(is_number, point)):
            break
        if point[1] > frame.y.high:
            drawn += [_at_edge(drawn[-1], point, frame.y.high)] if drawn else []
            break
        drawn.append(point)
    return [Path(tuple(frame.at(point) for point in drawn), tone, tip)] if len(drawn) > 1 else []


def _at_edge(last: Point, point: Point, high: float) -> Point:
    """Where the line between two points reaches the height `high`."""
    share = (high - last[1]) / (point[1] - last[1])
    return last[0] + share * (point[0] - last[0]), high


def headings(names: Sequence[tuple[float, str, str]], box: Box, top: float) -> list[Mark]:
    """Name upright lines above the plot: (position, text, tone), each on the highest of two lines where it fits."""
    marks: list[Mark] = []
    for at, name, tone in names:
        half = text_width(name) / 2
        middle = min(max(at, half), box.right - half)
        for base in (top, top + 16):
            label = Text(middle, base, name, tone, "middle")
            if not any(isinstance(other, Text) and label.box.overlaps(other.box) for other in marks):
                marks.append(label)
                break
    return marks
