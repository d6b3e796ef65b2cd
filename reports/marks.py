"""Marks: the few shapes that charts are drawn with. Colours are CSS classes; positions are drawing units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from .text import display_width

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

    def overlaps(self, other: Box) -> bool:
        """Tell whether two boxes share any area."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def inside(self, other: Box) -> bool:
        """Tell whether this box lies within another."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
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


def place_label(x: float, y: float, text: str, taken: Sequence[Box], *, plot: Box, tone: str) -> Text | None:
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
    for left, base, anchor in candidates:
        label = Text(left, base, text, tone, anchor)
        if label.box.inside(plot) and not any(label.box.overlaps(box) for box in taken):
            return label
    return None
