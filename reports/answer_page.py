"""What buying, scaling or losing GPUs comes to, or the cost curve, as one offline HTML file without code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .document import Chart, Document, Section, Table, said
from .drawing import WIDTH, Box, Drawing, Mark, Path, Rect, Text, Ticks, axes, plot, text_width
from .text import fit
from .views.html import render_document


@dataclass(frozen=True, slots=True)
class Part:
    """A table under its title, with what it says in a sentence."""

    title: str
    table: Table
    note: str = ""


@dataclass(frozen=True, slots=True)
class AnswerPage:
    """Everything on the page, top to bottom; question: what was asked."""

    name: str
    question: str
    headline: str
    lead: tuple[str, ...]
    charts: tuple[Chart, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def render_answer(page: AnswerPage, record: Mapping[str, Any]) -> str:
    """Return the page as one HTML document; record: what --json prints, embedded."""
    parts = tuple(Section(part.title, said(part.note), part.table) for part in page.parts)
    sections = (Section("In charts", charts=page.charts), *parts, Section("How this was found", page.notes))
    document = Document((page.headline, *page.lead), sections, about=(page.question, page.name))
    return render_document(document, record)


PLOT: Final = Box(54.0, 26.0, WIDTH - 8.0, 190.0)
HEIGHT: Final = 232.0


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
class Share:
    """One row of `draw_shares`: a share [1], its goal [1], and what is written beside them."""

    label: str
    value: float
    goal: float
    note: str


def draw_shares(rows: Sequence[Share], summary: str) -> Drawing:
    """Draw shares as bars from 0 to 100 %, red where they miss the goal, which is a line."""
    marks: list[Mark] = []
    y = 2.0
    for row in rows:
        room = int((WIDTH - text_width(row.note) - 12) / text_width("n"))
        marks.append(Text(0, y + 11, fit(row.label, max(8, room)), "label"))
        marks.append(Text(WIDTH, y + 11, row.note, "label", "end"))
        marks.append(Rect(0, y + 17, WIDTH, 10, "track"))
        tone = "good" if row.value >= row.goal else "over"
        marks.append(Rect(0, y + 17, max(1.5, row.value * WIDTH), 10, tone, f"{row.label}: {row.note}"))
        at = row.goal * WIDTH
        marks.append(Path(((at, y + 15), (at, y + 29)), "limit"))
        y += 36
    return Drawing(WIDTH, max(y - 4, 1.0), summary, tuple(marks))
