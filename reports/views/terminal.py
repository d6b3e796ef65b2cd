"""A document on a terminal: sentences broken at blanks, tables aligned, color only where it is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from reports.document import Document, Facts, Section, Table, read_sections
from reports.table import Style, render_table
from reports.text import wrap

LEAST_WIDTH: Final = 56
LEAST_VALUE: Final = 20
"""Columns of the value of a fact."""
_COLORS: Final = {"✓": "green", "✗": "red"}


def render_document(document: Document, width: int = 100, *, color: bool = False) -> str:
    """Return a document as text.

    Args:
        document: what is shown; nothing else is read.
        width: most columns of a line; less than 56 is taken as 56.
        color: add terminal colors.
    """
    width = max(LEAST_WIDTH, width)
    blocks = [_headline(document, width, color=color)]
    blocks += [list(_section(section, width, color=color)) for section in read_sections(document.sections)]
    if document.next_step:
        blocks.append([_paint(f"Next: {document.next_step}", color=color, fg="cyan")])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _paint(text: str, *, color: bool, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    return click.style(text, fg=fg, bold=bold or None, dim=dim or None) if color else text


def _headline(document: Document, width: int, *, color: bool) -> list[str]:
    fg = None if document.positive else "red"
    return [_paint(line, color=color, fg=fg, bold=True) for text in document.headline for line in wrap(text, width)]


def _section(section: Section, width: int, *, color: bool) -> Iterator[str]:
    indent = 2 if section.title else 0
    if section.title:
        yield from wrap(section.title, width)
    for text in section.sentences:
        yield from _wrap(text, width, indent)
    yield from _facts(section.facts, width, indent)
    if section.table is not None and section.table.rows:
        style = _style(section.table, color=color)
        yield from render_table(section.table.rows, section.table.columns, width, indent=indent, style=style).split(
            "\n"
        )
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


def _style(table: Table, *, color: bool) -> Style:
    """Color for the cells that are verdicts."""

    def style(row: int, column: int, cell: str) -> str:
        verdict = _COLORS.get(table.rows[row][column][:1])
        return cell if verdict is None else _paint(cell, color=color, fg=verdict)

    return style
