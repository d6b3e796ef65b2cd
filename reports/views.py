"""Views of a document: terminal, Markdown and offline page; they know nothing of plans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, Any, Final

import click
from markupsafe import Markup, escape

from costmodel.words import plural

from .document import Column, Detail, Document, Facts, Section, Table, read_sections
from .text import ELLIPSIS, display_width, finite, fit, glue, pad, wrap

if TYPE_CHECKING:
    from jinja2 import Environment

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


def terminal_view(document: Document, width: int = 100, *, color: bool = False) -> str:
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
    blocks += [list(_terminal_section(section, width, color=color)) for section in read_sections(document.sections)]
    if document.next_step:
        blocks[-1].append(_paint(f"Next: {document.next_step}", color=color, fg="cyan"))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _paint(text: str, *, color: bool, fg: str | None = None, bold: bool = False) -> str:
    return click.style(text, fg=fg, bold=bold or None) if color else text


def _terminal_section(section: Section, width: int, *, color: bool) -> Iterator[str]:
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
    rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int, *, indent: int = 0, color: bool = False
) -> str:
    """Return header and rows as text of at most `width` terminal columns, without a newline at the end.

    A table whose columns have no room beside each other becomes several below each other, each with the first column
    and those that say something of it.

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
    while _sum([least[i] for i in places]) > room:  # optional columns go, the last first, until the rest fits when cut
        optional = [columns[i].header for i in places if columns[i].optional]
        if not optional:
            break
        places = [i for i in places if columns[i].header != optional[-1]]
    groups = _column_groups(columns, least, places, room)
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


def _column_groups(
    columns: Sequence[Column], least: Sequence[int], places: Sequence[int], room: int
) -> list[list[int]]:
    """The columns in as many tables as they need; more than one only where they have no room in one.

    A column that says something of the one before it takes that along; those beside the first stand in every table.
    """
    keys = [places[0], *takewhile(lambda i: columns[i].beside, places[1:])]
    groups = [keys.copy()]
    for i in places[len(keys) :]:
        group = groups[-1]
        if len(group) > len(keys) and _sum([least[k] for k in (*group, i)]) > room:
            along = [group.pop()] if (columns[i].beside or not columns[i].header) and len(group) > len(keys) + 1 else []
            groups.append([*keys, *along])
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
        last = wrap(lines[column.lines - 1], width - 2)[0]  # whole words: half a number reads as another one
        lines = [*lines[: column.lines - 1], fit(f"{last} {ELLIPSIS}", width)]
    return lines


# --- Markdown ---------------------------------------------------------------------------------------------------------

MOST_MARKDOWN_ROWS: Final = 20
_SPECIAL: Final = re.compile(r"([\\`*{}\[\]<#|~&@]|>(?!\d)|^>|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""What Markdown or its mentions of people and issues give a meaning; an underscore within a word has none, nor has
the sign in >99.9 %, where it begins no line."""


def escaped(text: str) -> str:
    """Write text so that Markdown shows it as it is; a backslash would not do for all characters, references do.

    >>> escaped("a|b <i> @you, _max_num_seqs")
    'a&#124;b &#60;i&#62; &#64;you, &#95;max_num_seqs'
    """
    return _SPECIAL.sub(lambda match: f"&#{ord(match[1])};", text)


def markdown_view(document: Document) -> str:
    """Return a document as Markdown, its first sentence as the heading."""
    first, *rest = document.headline
    blocks = [f"### {escaped(first)}", *map(escaped, rest)]
    for section in read_sections(document.sections):
        blocks += [f"**{escaped(section.title)}**"] if section.title else []
        blocks += map(escaped, section.sentences)
        if section.facts:
            blocks.append("\n".join(f"- {escaped(name)}: {escaped(value)}" for name, value in section.facts))
        if section.table is not None and section.table.rows:
            columns, rows = section.table.columns, section.table.rows
            lines = [[column.header for column in columns]]
            lines.append(["---:" if column.align == "right" else "---" for column in columns])
            lines += [[escaped(cell) for cell in row] for row in rows[:MOST_MARKDOWN_ROWS]]
            blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
            cut = len(rows) - MOST_MARKDOWN_ROWS
            blocks += [f"{plural(cut, 'more row')} in plan.json."] if cut > 0 else []
        blocks += map(escaped, section.notes)
        if section.code:
            blocks.append("\n".join(("```sh", section.code.replace("```", ""), "```")))
    return "\n\n".join(blocks) + "\n"


# --- pages ------------------------------------------------------------------------------------------------------------

MOST_PAGE_ROWS: Final = 120
MOST_STACKED: Final = 60
"""Rows of a table up to which each of them becomes a block on a narrow screen; longer ones are moved sideways."""
_TOPIC: Final = re.compile(r"([A-Z][a-z]+(?: [a-z]+)?): (.*)", re.S)


def html_view(document: Document, record: Any, name: str = "result") -> str:
    """Return a document as one HTML file.

    Args:
        document: what is shown; nothing else is read.
        record: plain values embedded as JSON, so that programs can read the file.
        name: of the element that has the record.
    """
    text = json.dumps(finite(record), separators=(",", ":"), allow_nan=False)
    for char in "<>&":  # to which HTML gives a meaning
        text = text.replace(char, f"\\u{ord(char):04x}")
    twin = Markup(text)  # noqa: S704 - without what HTML gives a meaning
    page = environment().get_template("document.html.j2")
    sections = [section for section in document.sections if not section.is_empty]
    return page.render(document=document, sections=sections, twin=twin, name=name) + "\n"


@cache
def environment() -> Environment:
    """The templates of pages, everything escaped, with the filters that they use."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import, and for pages alone

    environment = Environment(
        loader=PackageLoader("templates", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"px": pixels, "shown": shown, "cell": cell, "glue": cell, "anchor": anchor, "style_of": style_of}
    environment.filters |= filters
    environment.globals |= {"MOST_ROWS": MOST_PAGE_ROWS, "FOLDED": Detail.FOLDED}
    environment.tests["small"] = is_small
    return environment


def pixels(value: float) -> str:
    """Write a position with at most one decimal.

    >>> pixels(12.04), pixels(-0.01), pixels(3.25)
    ('12', '0', '3.2')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def shown(text: str) -> Markup:
    r"""A sentence whose topic, in a word or two before a colon, stands out.

    >>> str(shown("Risk: 4 of 5 < all")), str(shown("chat: 3 s (--verify)"))
    ('<b>Risk:</b> 4 of 5 &lt; all', 'chat: 3\xa0s (<span class="word">--verify</span>)')
    """
    topic = _TOPIC.fullmatch(text)
    return _unbroken(text) if topic is None else Markup("<b>{}:</b> {}").format(topic[1], _unbroken(topic[2]))


def cell(text: str) -> Markup:
    r"""A cell: numbers stay with their units, names and lists may break after _ and /, and a row may be indented.

    >>> str(cell("max_num_seqs <")), str(cell("  goal")), str(cell("31/35/38 ms"))
    ('max_<wbr>num_<wbr>seqs &lt;', '\u2003goal', '31/<wbr>35/38\xa0ms')
    """
    breakable = re.sub(r"_|/(?=p?[\d.]+(?:\s\w+)?/)", r"\g<0><wbr>", str(escape(glue(text.lstrip()))))
    return Markup("\N{EM SPACE}" * text.startswith("  ") + breakable)  # noqa: S704 - escaped above


def _unbroken(text: str) -> Markup:
    """Keep numbers with their units, names such as prefill-1, and options such as --verify, on one line."""
    glued_text = str(escape(re.sub(r"(?<=\w)-(?=\d)", "\N{NON-BREAKING HYPHEN}", glue(text))))
    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="word">\g<0></span>', glued_text))  # noqa: S704 - escaped above


def anchor(title: str) -> str:
    """The name by which a section is linked to.

    >>> anchor("SLOs: chat, 95 %"), anchor("Cost and goodput")
    ('slos', 'cost-and-goodput')
    """
    return re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower()).strip("-")


def style_of(table: Table) -> str:
    """How a table gives way on a narrow screen."""
    if len(table.rows) > MOST_STACKED:
        return "steady"
    return "stack named" if table.columns[0].align == "right" else "stack"


def is_small(section: Section) -> bool:
    """Whether a section has room beside a chart."""
    wide = section.charts or section.table or section.sections or section.fleet or section.detail is Detail.FOLDED
    return not (wide or section.is_empty)
