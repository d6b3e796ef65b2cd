"""Charts that several answers draw: stacked bars, shares with their goals, and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .drawing import WIDTH, Box, Drawing, Mark, Rect, Text, Ticks, axes, plot, text_width
from .text import fit

PLOT: Final = Box(54.0, 26.0, WIDTH - 8.0, 190.0)
HEIGHT: Final = 232.0
LEVELS: Final = 8
"""Tones of a heat map."""
CELL_GAP: Final = 3.0
"""Between the text of a cell and the next cell, in drawing units."""
_LEFT, _TOP = 78.0, 26.0


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
    width, height = (WIDTH - _LEFT) / len(columns), 12.0 + 14.0 * max(len(cell.lines) for cell in cells)
    marks: list[Mark] = [Text(0, 12, f"{heads[0]} ↓  {heads[1]} →" if down else f"{heads[1]} →", "muted")]
    for cell in cells:
        x, y = _LEFT + columns.index(cell.across) * width, _TOP + rows.index(cell.down) * height
        marks.append(Rect(x, y, width - 1.5, height - 1.5, cell.tone, cell.tip))
        if all(text_width(line) <= width - CELL_GAP for line in cell.lines):
            marks += [
                Text(x + width / 2, y + 17 + 14 * number, line, f"on-{cell.tone}", "middle")
                for number, line in enumerate(cell.lines)
            ]
    marks += [
        Text(_LEFT - 6, _TOP + n * height + 17, fit(value.removesuffix(f" {units[0]}"), 11), "tick", "end")
        for n, value in enumerate(rows)
        if value
    ]
    bottom = _TOP + height * len(rows)
    step = max(round(40.0 / width), 1)
    room = int((step * width - CELL_GAP) / text_width("0"))
    marks += [
        Text(_LEFT + (n + 0.5) * width, bottom + 16, fit(value.removesuffix(f" {units[1]}"), room), "tick", "middle")
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
