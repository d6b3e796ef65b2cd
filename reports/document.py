"""An answer as a document: sentences, tables and charts, made once and shown by every view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from .charts import Drawing
from .text import MISSING, Align

Row = TypeVar("Row")
Facts = tuple[tuple[str, str], ...]
"""Names and their values."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: header, side that its cells are set against, and what gives way when the table is too wide.

    shrink: the column may be cut to make the table fit (others are cut only when that is not enough).
    lines: most lines that a cell may be broken into; 1 cuts it with an ellipsis.
    optional: the column is left out (the last one first, with those of its name) when the table does not fit otherwise.
    spacious: it is left out as soon as any cell of the table would be broken or cut.
    beside: the column says something of the one before it, and is never parted from it; one without a header does so.
    """

    header: str
    align: Align = "left"
    shrink: bool = False
    lines: int = 1
    optional: bool = False
    spacious: bool = False
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under columns; of a verdict the cell begins with ✓ or ✗, which views may color.

    tones: of each row "good" or "bad" news, "chosen" or "out"; empty where no row has one.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    tones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with the finding as its title, a caption, the data behind it, and keys of its colors."""

    title: str
    caption: str
    drawing: Drawing
    table: Table
    legend: tuple[tuple[str, str], ...] = ()


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
    entry: tuple[str, str]
    exit: tuple[str, str]


class Detail(IntEnum):
    """How closely a section is read: views of text show the first level only, a page folds the last."""

    ANSWER = 0
    PAGE = 1
    FOLDED = 2


@dataclass(frozen=True, slots=True)
class Section:
    """One subject: a title, sentences, facts, a table, notes on it, and what belongs to it.

    title: empty where the table or sentences say it themselves; facts: names with their values; code: a command to be
    copied, as it is; tiles: figures with what they are, large on a page; charts and fleet: what only a page can show.
    """

    title: str = ""
    sentences: tuple[str, ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()
    code: str = ""
    facts: Facts = ()
    tiles: Facts = ()
    charts: tuple[Chart, ...] = ()
    fleet: FleetDiagram | None = None
    sections: tuple[Section, ...] = ()
    detail: Detail = Detail.ANSWER

    @property
    def is_text(self) -> bool:
        """Whether views of text have something of its own to show."""
        return bool(self.sentences or self.facts or self.notes or self.code or (self.table and self.table.rows))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show, not even on a page."""
        own = self.is_text or self.tiles or self.charts or self.fleet
        return not (own or any(not item.is_empty for item in self.sections))


@dataclass(frozen=True, slots=True)
class Document:
    """The answer of one command.

    headline: the answer itself in a sentence or two; positive: whether it is what was asked for; next_step: the command
    that a reader would want next; about: what the answer is of, such as the question and a plan's name.
    """

    headline: tuple[str, ...]
    sections: tuple[Section, ...]
    positive: bool = True
    next_step: str = ""
    about: tuple[str, ...] = ()


def read_sections(sections: Sequence[Section]) -> list[Section]:
    """The sections that views of text show, those within others after them."""
    answers = [section for section in sections if section.detail is Detail.ANSWER]
    sections_within = [item for section in answers for item in (section, *read_sections(section.sections))]
    return [section for section in sections_within if section.is_text]


def said(*sentences: str) -> tuple[str, ...]:
    """The sentences that are not empty."""
    return tuple(filter(None, sentences))


def table_of(columns: Sequence[Column | str], rows: Sequence[Sequence[str]], tones: Sequence[str] = ()) -> Table:
    """A table of any sequences; a header stands for its column, set right where it begins with #."""
    cells = tuple(tuple(row) for row in rows)
    named = (
        Column(item.removeprefix("#"), "right" if item.startswith("#") else "left") if isinstance(item, str) else item
        for item in columns
    )
    return Table(tuple(named), cells, tuple(tones))


def table_by_column(
    rows: Iterable[Row], *columns: tuple[Column | str, Callable[[Row], str]], tones: Sequence[str] = ()
) -> Table:
    """A table of rows of any type: each column, as of `table_of`, beside what it writes of a row."""
    return table_of([head for head, _ in columns], [[write(row) for _, write in columns] for row in rows], tones)


def without_empty(table: Table) -> Table:
    """Leave out the columns that no row has anything in."""
    if not table.rows:
        return table
    places = [at for at in range(len(table.columns)) if any(row[at] != MISSING for row in table.rows)]
    rows = [[row[at] for at in places] for row in table.rows]
    return table_of([table.columns[at] for at in places], rows, table.tones)
