"""Aligned text tables for the terminal.

The caller gives rows of text and one `Column` per column; `render_table` settles the widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from .text import Align, display_width, fit, pad, wrap

GUTTER: Final = 2
LEAST_COLUMN: Final = 4
READABLE: Final = 12
"""Columns that a cut cell should keep; optional columns go before it gets narrower."""
LONGEST_WORD: Final = 24
"""Columns of a word that is kept whole where cells are broken at blanks."""

Style = Callable[[int, int, str], str]
"""(row, column, padded cell) -> the cell with terminal colours; widths are settled before it is called."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: header, side that its cells are set against, and what gives way when the table is too wide.

    shrink: the column may be cut to make the table fit (others are cut only when that is not enough).
    lines: most lines that a cell may be broken into; 1 cuts it with an ellipsis.
    optional: the column is left out (the last one first, with those of its name) when the table does not fit otherwise.
    beside: the column says something of the one before it, and is never parted from it; one without a header does so.
    """

    header: str
    align: Align = "left"
    shrink: bool = False
    lines: int = 1
    optional: bool = False
    beside: bool = False


def render_table(
    rows: Sequence[Sequence[str]],
    columns: Sequence[Column],
    width: int,
    *,
    indent: int = 0,
    style: Style | None = None,
) -> str:
    """Return header and rows as text of at most `width` terminal columns, without a newline at the end.

    A table whose columns have no room beside each other becomes several below each other, each with the first column.

    Args:
        rows: cells as text, one per column.
        columns: header, alignment and who gives way.
        width: most terminal columns of a line.
        indent: blanks before every line.
        style: adds colour to padded cells.

    >>> print(render_table([["H100", "2.49"], ["H20", "11"]], [Column("GPU"), Column("$/h", "right")], 40))
    GPU    $/h
    H100  2.49
    H20     11
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells for {len(columns)} columns: {row!r}")
    places = _columns_that_fit(rows, columns, width - indent)
    groups = _column_groups(rows, columns, places, width - indent)
    tables = [_table_lines(rows, columns, group, width - indent, style) for group in groups]
    return "\n\n".join(
        "\n".join((" " * indent + line).rstrip() for block in blocks for line in block) for blocks in tables
    )


def _table_lines(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], places: Sequence[int], width: int, style: Style | None
) -> list[list[str]]:
    """Lines of the header and of each row of the table of some columns, named by their numbers."""
    columns = [columns[i] for i in places]
    rows = [[row[i] for i in places] for row in rows]
    widths = _widths(rows, columns, width)
    return [
        _head_lines(columns, widths),
        *(_row_lines(index, row, columns, widths, places=places, style=style) for index, row in enumerate(rows)),
    ]


def _natural(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[int]:
    return [
        max([display_width(column.header), *(display_width(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]


def _columns_that_fit(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    """Leave out optional columns, the last first, until the rest fits with its shrinkable columns cut."""
    least = _least(rows, columns)
    places = list(range(len(columns)))
    while _sum([least[i] for i in places]) > width:
        optional = [i for i in places if columns[i].optional]
        if not optional:
            break
        places = [i for i in places if columns[i].header != columns[optional[-1]].header]
    return places


def _column_groups(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], places: Sequence[int], width: int
) -> list[list[int]]:
    """The columns in as many tables as they need; more than one only where they have no room in one.

    A column that says something of the one before it takes that along.
    """
    least = _least(rows, columns)
    first, *rest = places
    groups = [[first]]
    for i in rest:
        if len(groups[-1]) > 1 and _sum([least[k] for k in (*groups[-1], i)]) > width:
            along = [groups[-1].pop()] if (columns[i].beside or not columns[i].header) and len(groups[-1]) > 2 else []
            groups.append([first, *along])
        groups[-1].append(i)
    return groups


def _least(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[int]:
    """Terminal columns that each column needs to be read."""
    natural = _natural(rows, columns)
    return [
        min(n, _readable([column.header, *(row[i] for row in rows)], column)) if column.shrink else n
        for i, (n, column) in enumerate(zip(natural, columns, strict=True))
    ]


def _readable(cells: Sequence[str], column: Column) -> int:
    """Terminal columns of a shrinkable column below which its cells would be cut, or cut too much."""
    if column.lines == 1:
        return READABLE
    words = (display_width(word) for cell in cells for word in cell.split(" "))
    return max(READABLE, min(max(words), LONGEST_WORD))


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + GUTTER * (len(widths) - 1)


def _widths(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    widths = _natural(rows, columns)
    room = width - GUTTER * (len(columns) - 1)
    for candidates in (
        [i for i, column in enumerate(columns) if column.shrink],
        [i for i, column in enumerate(columns) if column.align == "left"],
        list(range(len(columns))),
    ):
        _shrink(widths, candidates, sum(widths) - room)
    return widths


def _shrink(widths: list[int], candidates: list[int], excess: int) -> None:
    """Take `excess` columns from the candidates, always from the widest, none below its least."""
    while excess > 0 and candidates:
        widest = max(candidates, key=lambda i: widths[i])
        if widths[widest] <= LEAST_COLUMN:
            return
        widths[widest] -= 1
        excess -= 1


def _head_lines(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The headers, broken at blanks where they are wider than their columns, above the first row."""
    broken = [wrap(column.header, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, broken))
    lines = zip(*([""] * (height - len(cells)) + cells for cells in broken), strict=True)
    return [
        "  ".join(pad(cell, w, c.align) for cell, c, w in zip(cells, columns, widths, strict=True)) for cells in lines
    ]


def _row_lines(
    index: int,
    row: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    *,
    places: Sequence[int],
    style: Style | None,
) -> list[str]:
    broken = [_cell_lines(cell, column, w) for cell, column, w in zip(row, columns, widths, strict=True)]
    lines = []
    for cells_of_line in zip_longest(*broken, fillvalue=""):
        cells = [pad(text, w, c.align) for text, c, w in zip(cells_of_line, columns, widths, strict=True)]
        if style is not None:
            cells = [style(index, i, cell) for i, cell in zip(places, cells, strict=True)]
        lines.append("  ".join(cells))
    return lines


def _cell_lines(cell: str, column: Column, width: int) -> list[str]:
    if column.lines == 1 or display_width(cell) <= width:
        return [fit(cell, width)]
    lines = wrap(cell, width)
    if len(lines) > column.lines:
        rest = " ".join(lines[column.lines - 1 :])
        lines = [*lines[: column.lines - 1], fit(rest, width)]
    return lines
