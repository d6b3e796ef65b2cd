"""A document as one offline HTML file without code: the same bytes for the same document."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from reports.document import Detail, Document, Section, Table
from reports.json_text import as_script, finite
from reports.text import glue

MOST_ROWS: Final = 120
MOST_STACKED: Final = 60
"""Rows of a table up to which each of them becomes a block on a narrow screen; longer ones are moved sideways."""
_TOPIC: Final = re.compile(r"([A-Z][a-z]+(?: [a-z]+)?): (.*)", re.S)


def render_document(document: Document, record: Any, name: str = "result") -> str:
    """Return a document as one HTML file.

    Args:
        document: what is shown; nothing else is read.
        record: plain values embedded as JSON, so that programs can read the file.
        name: of the element that has the record.
    """
    twin = Markup(as_script(finite(record)))  # noqa: S704 - without what HTML gives a meaning
    page = environment().get_template("document.html.j2")
    sections = [section for section in document.sections if not section.is_empty]
    return page.render(document=document, sections=sections, twin=twin, name=name) + "\n"


@cache
def environment() -> Environment:
    """The templates of pages, everything escaped, with the filters that they use."""
    environment = Environment(
        loader=PackageLoader("templates", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"px": pixels, "shown": shown, "cell": cell, "glue": cell, "anchor": anchor, "style_of": style_of}
    environment.filters |= filters
    environment.globals |= {"MOST_ROWS": MOST_ROWS, "FOLDED": Detail.FOLDED}
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

    >>> str(shown("Risk: 4 of 5 < all")), str(shown("chat: 3 s"))
    ('<b>Risk:</b> 4 of 5 &lt; all', 'chat: 3\xa0s')
    """
    topic = _TOPIC.fullmatch(text)
    return escape(_unbroken(text)) if topic is None else Markup("<b>{}:</b> {}").format(topic[1], _unbroken(topic[2]))


def cell(text: str) -> Markup:
    """A cell: numbers stay with their units, and long names may break after their underscores.

    >>> str(cell("max_num_seqs <"))
    'max_<wbr>num_<wbr>seqs &lt;'
    """
    return escape(glue(text)).replace("_", Markup("_<wbr>"))


def _unbroken(text: str) -> str:
    """Keep numbers with their units, and names such as prefill-1, on one line."""
    return re.sub(r"(?<=\w)-(?=\d)", "\N{NON-BREAKING HYPHEN}", glue(text))


def anchor(title: str) -> str:
    """The name by which a section is linked to.

    >>> anchor("SLOs: chat, 95 %"), anchor("Cost and capacity")
    ('slos', 'cost-and-capacity')
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
