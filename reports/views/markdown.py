"""A document as Markdown, short enough for a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from costmodel.words import plural
from reports.document import Document, Section, read_sections

MOST_ROWS: Final = 20
_SPECIAL: Final = re.compile(r"([\\`*{}\[\]<#|~&@]|>(?!\d)|^>|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""What Markdown or its mentions of people and issues give a meaning; an underscore within a word has none, nor has
the sign in >99.9 %, where it begins no line."""


def escaped(text: str) -> str:
    """Write text so that Markdown shows it as it is; a backslash would not do for all characters, references do.

    >>> escaped("a|b <i> @you, _max_num_seqs")
    'a&#124;b &#60;i&#62; &#64;you, &#95;max_num_seqs'
    """
    return _SPECIAL.sub(lambda match: f"&#{ord(match[1])};", text)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> list[str]:
    """Write a table; headers of number columns begin with '#'."""
    names = [header.removeprefix("#") for header in headers]
    rules = ["---:" if header.startswith("#") else "---" for header in headers]
    lines = [names, rules, *([escaped(cell) for cell in row] for row in rows[:most])]
    rows_text = [f"| {' | '.join(line)} |" for line in lines]
    cut = len(rows) - most
    return [*rows_text, "", f"{plural(cut, 'more row')} in plan.json."] if cut > 0 else rows_text


def render_document(document: Document) -> str:
    """Return a document as Markdown, its first sentence as the heading."""
    first, *rest = document.headline
    blocks = [f"### {escaped(first)}", *map(escaped, rest)]
    blocks += ["\n".join(_section(section)) for section in read_sections(document.sections)]
    return "\n\n".join(blocks) + "\n"


def _section(section: Section) -> list[str]:
    blocks: list[list[str]] = [[f"**{escaped(section.title)}**"]] if section.title else []
    blocks += [[escaped(text)] for text in section.sentences]
    if section.facts:
        blocks.append([f"- {escaped(name)}: {escaped(value)}" for name, value in section.facts])
    if section.table is not None and section.table.rows:
        blocks.append(table(section.table.headers, section.table.rows))
    blocks += [[escaped(text)] for text in section.notes]
    if section.code:
        blocks.append(["```sh", section.code.replace("```", ""), "```"])
    return [line for number, block in enumerate(blocks) for line in ([""] * bool(number) + block)]
