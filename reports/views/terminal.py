"""A document on a terminal: sentences broken at blanks, tables aligned, color only where it is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

import click

from reports.document import Column, Document, Facts, Section, read_sections
from reports.text import display_width, fit, pad, wrap

LEAST_WIDTH: Final = 56
LEAST_VALUE: Final = 20
"""Columns of the value of a fact."""
_COLORS: Final = {"✓": "green", "✗": "red"}
GUTTER: Final = 2
LEAST_COLUMN: Final = 4
READABLE: Final = 12
"""Columns that a cut cell should keep; optional columns go before it gets narrower."""
LONGEST_WORD: Final = 24
"""Columns of a word that is kept whole where cells are broken at blanks."""


def render_document(document: Document, width: int = 100, *, color: bool = False) -> str:
    """Return a document as text.

    Args:
        document: what is shown; nothing else is read.
        width: most columns of a line; less than 56 is taken as 56.
        color: add terminal colors.
    """
    width = max(LEAST_WIDTH, width)
    fg = None if document.positive else "red"
    headline = [line for text in document.headline for line in wrap(text, width)]
    blocks = [[_paint(line, color=color, fg=fg, bold=True) for line in headline]]
    blocks += [list(_section(section, width, color=color)) for section in read_sections(document.sections)]
    if document.next_step:
        blocks[-1].append(_paint(f"Next: {document.next_step}", color=color, fg="cyan"))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _paint(text: str, *, color: bool, fg: str | None = None, bold: bool = False) -> str:
    return click.style(text, fg=fg, bold=bold or None) if color else text


def _section(section: Section, width: int, *, color: bool) -> Iterator[str]:
    indent = 2 if section.title else 0
    if section.title:
        yield from wrap(section.title, width)
    for text in section.sentences:
        yield from _wrap(text, width, indent)
    yield from _facts(section.facts, width, indent)
    if section.table is not None and section.table.rows:
        text = render_table(section.table.rows, section.table.columns, width, indent=indent, color=color)
        yield from text.split("\n")
    for text in section.notes:
        yield from _wrap(text, width, indent)
    if section.code:
        yield " " * indent + section.code


def _facts(facts: Facts, width: int, indent: int) -> Iterator[str]:
    """Names and their values in two columns; long values are wrapped."""
    room = max((len(name) for name, _ in facts), default=0) + 2
    for name, value in facts:
        first, *rest = wrap(value, max(width - indent - room, LEAST_VALUE))
        yield f"{' ' * indent}{name:{room}}{first}".rstrip()
        yield from (" " * (indent + room) + line for line in rest)


def _wrap(text: str, width: int, indent: int) -> list[str]:
    return [" " * indent + line for line in wrap(text, width - indent)]


# --- tables -----------------------------------------------------------------------------------------------------------


def render_table(
    rows: Sequence[Sequence[str]],
    columns: Sequence[Column],
    width: int,
    *,
    indent: int = 0,
    color: bool = False,
) -> str:
    """Return header and rows as text of at most `width` terminal columns, without a newline at the end.

    A table whose columns have no room beside each other becomes several below each other, each with the first column.

    Args:
        rows: cells as text, one per column.
        columns: header, alignment and who gives way.
        width: most terminal columns of a line.
        indent: blanks before every line.
        color: of cells that are verdicts.

    >>> print(render_table([["H100", "2.49"], ["H20", "11"]], [Column("GPU"), Column("$/h", "right")], 40))
    GPU    $/h
    H100  2.49
    H20     11
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells for {len(columns)} columns: {row!r}")
    room = width - indent
    cells = [[column.header, *(row[i] for row in rows)] for i, column in enumerate(columns)]
    least = [_least(texts, column) for texts, column in zip(cells, columns, strict=True)]
    is_spacious = _sum([max(map(display_width, texts)) for texts in cells]) <= room
    places = [i for i, column in enumerate(columns) if is_spacious or not column.spacious]
    groups = _column_groups(columns, least, _columns_that_fit(columns, least, places, room), room)
    return "\n\n".join(
        "\n".join((" " * indent + line).rstrip() for line in _lines(rows, columns, group, room, color=color))
        for group in groups
    )


def _least(cells: Sequence[str], column: Column) -> int:
    """Terminal columns that a column needs to be read; a shrinkable one less than its widest cell."""
    natural = max(map(display_width, cells))
    if not column.shrink:
        return natural
    words = (display_width(word) for cell in cells for word in cell.split(" "))
    return min(natural, READABLE if column.lines == 1 else max(READABLE, min(max(words), LONGEST_WORD)))


def _columns_that_fit(columns: Sequence[Column], least: Sequence[int], places: list[int], room: int) -> list[int]:
    """Leave out optional columns, the last first, until the rest fits with its shrinkable columns cut."""
    while _sum([least[i] for i in places]) > room:
        optional = [columns[i].header for i in places if columns[i].optional]
        if not optional:
            break
        places = [i for i in places if columns[i].header != optional[-1]]
    return places


def _column_groups(
    columns: Sequence[Column], least: Sequence[int], places: Sequence[int], room: int
) -> list[list[int]]:
    """The columns in as many tables as they need; more than one only where they have no room in one.

    A column that says something of the one before it takes that along.
    """
    first, *rest = places
    groups = [[first]]
    for i in rest:
        group = groups[-1]
        if len(group) > 1 and _sum([least[k] for k in (*group, i)]) > room:
            along = [group.pop()] if (columns[i].beside or not columns[i].header) and len(group) > 2 else []
            groups.append([first, *along])
        groups[-1].append(i)
    return groups


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + GUTTER * (len(widths) - 1)


def _lines(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], places: Sequence[int], room: int, *, color: bool
) -> Iterator[str]:
    """Lines of the table of some columns, named by their numbers; headers stand above the first row."""
    widths = _widths(rows, columns, places, room)
    heads = [wrap(columns[i].header, width) for i, width in zip(places, widths, strict=True)]
    height = max(map(len, heads))
    blocks = [[[""] * (height - len(lines)) + lines for lines in heads]]
    blocks += [
        [_cell_lines(row[i], columns[i], width) for i, width in zip(places, widths, strict=True)] for row in rows
    ]
    for number, block in enumerate(blocks):
        for line in zip_longest(*block, fillvalue=""):
            cells = [pad(text, w, columns[i].align) for text, i, w in zip(line, places, widths, strict=True)]
            if number:
                verdicts = (_COLORS.get(rows[number - 1][i][:1]) for i in places)
                cells = [
                    _paint(cell, color=color, fg=fg) if fg else cell for cell, fg in zip(cells, verdicts, strict=True)
                ]
            yield (" " * GUTTER).join(cells)


def _widths(rows: Sequence[Sequence[str]], columns: Sequence[Column], places: Sequence[int], room: int) -> list[int]:
    """Widths in which the columns have room: what is too much is taken from the widest of those that give way first."""
    widths = [max(display_width(cell) for cell in (columns[i].header, *(row[i] for row in rows))) for i in places]
    for gives_way in (lambda column: column.shrink, lambda column: column.align == "left", lambda _column: True):
        candidates = [at for at, i in enumerate(places) if gives_way(columns[i])]
        while candidates and _sum(widths) > room:
            widest = max(candidates, key=lambda at: widths[at])
            if widths[widest] <= LEAST_COLUMN:
                break
            widths[widest] -= 1
    return widths


def _cell_lines(cell: str, column: Column, width: int) -> list[str]:
    if column.lines == 1 or display_width(cell) <= width:
        return [fit(cell, width)]
    lines = wrap(cell, width)
    if len(lines) > column.lines:
        rest = " ".join(lines[column.lines - 1 :])
        lines = [*lines[: column.lines - 1], fit(rest, width)]
    return lines
