"""Two plans side by side as one offline HTML file without code."""

from __future__ import annotations

import json
from dataclasses import dataclass

from markupsafe import Markup

from .answers.comparison import (
    figure_words,
    headline,
    inputs_table,
    lone_words,
    outcome_words,
    pools_table,
    signed_money,
    tone,
)
from .comparison import Comparison, Figure, comparison_record
from .html import environment
from .json_text import as_script, finite
from .page_charts import Table, cut_table
from .text import plural


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure in words, and whether its difference is good or bad news."""

    cells: tuple[str, str, str, str]
    tone: str


@dataclass(frozen=True, slots=True)
class ComparisonPage:
    """Everything on the page, top to bottom."""

    names: tuple[str, str]
    headline: str
    note: str
    pools: Table
    unchanged: str
    figures: tuple[FigureRow, ...]
    classes: tuple[tuple[str, str, tuple[FigureRow, ...]], ...]
    """Of each class its outcome, and its figures: in words where only one plan has it, else as rows."""
    inputs: Table


def make_comparison_page(found: Comparison) -> ComparisonPage:
    """Compute the page of a comparison."""
    pools, inputs = pools_table(found), inputs_table(found)
    total = ("total", "", f"{signed_money(sum(change.difference for change in found.pools))}/h")
    return ComparisonPage(
        names=found.names,
        headline=headline(found),
        note=found.note,
        pools=cut_table(pools.headers, [*pools.rows, total] if pools.rows else []),
        unchanged=f"{plural(found.unchanged_pools, 'pool')} unchanged" if found.unchanged_pools else "",
        figures=_rows(found.figures),
        classes=tuple((outcome_words(item, found), lone_words(item), _rows(item.figures)) for item in found.classes),
        inputs=cut_table(inputs.headers, inputs.rows),
    )


def _rows(figures: tuple[Figure, ...]) -> tuple[FigureRow, ...]:
    return tuple(FigureRow(figure_words(figure), tone(figure)) for figure in figures)


def render_comparison(found: Comparison) -> str:
    """Return the comparison as one HTML document."""
    template = environment().get_template("compare.html.j2")
    twin = Markup(as_script(finite(comparison_record(found))))  # noqa: S704 - without what HTML gives a meaning
    return template.render(page=make_comparison_page(found), twin=twin) + "\n"


def comparison_json(found: Comparison) -> str:
    """Return the comparison as JSON."""
    return json.dumps(finite(comparison_record(found)), indent=2, allow_nan=False) + "\n"
