"""An answer as a document: sentences and tables, made once and shown by every view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .table import Column


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under columns; of a verdict the cell begins with ✓ or ✗, which views may color."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def headers(self) -> tuple[str, ...]:
        """Headers of the columns, those of number columns with # before them."""
        return tuple(("#" if column.align == "right" else "") + column.header for column in self.columns)


@dataclass(frozen=True, slots=True)
class Section:
    """One subject: a title, sentences before its table, the table, sentences after it.

    title: empty where the table or sentences say it themselves; code: a command to be copied, as it is.
    """

    title: str = ""
    sentences: tuple[str, ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()
    code: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.sentences or self.notes or self.code or (self.table and self.table.rows))


@dataclass(frozen=True, slots=True)
class Document:
    """The answer of one command.

    headline: the answer itself in a sentence or two; positive: whether it is what was asked for; next_step: the command
    that a reader would want next.
    """

    headline: tuple[str, ...]
    sections: tuple[Section, ...]
    positive: bool = True
    next_step: str = ""


def said(*sentences: str) -> tuple[str, ...]:
    """The sentences that are not empty."""
    return tuple(filter(None, sentences))


def table_of(columns: Sequence[Column | str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of any sequences; a header stands for its column, set right where it begins with #."""
    return Table(tuple(map(_column, columns)), tuple(tuple(row) for row in rows))


def _column(column: Column | str) -> Column:
    if isinstance(column, Column):
        return column
    return Column(column.removeprefix("#"), "right" if column.startswith("#") else "left")
