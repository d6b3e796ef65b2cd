"""The report: one offline HTML file without code, the same bytes for the same plan."""

from __future__ import annotations

from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from optimizer.plans.plan import Plan

from .json_text import embedded_json
from .page import make_page
from .page_parts import Page
from .text import glue

_SECTIONS: Final = (
    ("verdict", "Verdict"),
    ("slo", "SLO check"),
    ("alternatives", "Alternatives"),
    ("why", "Why"),
    ("workload", "Workload"),
    ("sensitivity", "Sensitivity"),
    ("settings", "Settings"),
    ("trust", "Trust"),
)


def render_plan(plan: Plan) -> str:
    """Return the report of a plan as one HTML document."""
    page = make_page(plan)
    template = environment().get_template("report.html.j2")
    twin = Markup(embedded_json(plan))  # noqa: S704 - it holds none of the characters that HTML gives a meaning
    return template.render(page=page, sections=_present(page), twin=twin) + "\n"


def _present(page: Page) -> list[tuple[str, str]]:
    absent = set() if page.why.charts else {"why"}
    absent |= set() if page.settings.engines.rows else {"settings"}
    absent |= set() if page.sensitivity else {"sensitivity"}
    renamed = {} if page.found else {"verdict": "What to relax", "slo": "What was asked"}
    return [(key, renamed.get(key, name)) for key, name in _SECTIONS if key not in absent]


@cache
def environment() -> Environment:
    """The templates of the report, everything escaped, with the filters that they use."""
    environment = Environment(
        loader=PackageLoader("templates", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"px": pixels, "glue": glue, "heading": heading, "breakable": breakable}
    return environment


def pixels(value: float) -> str:
    """Write a position with at most one decimal.

    >>> pixels(12.04), pixels(-0.01), pixels(3.25)
    ('12', '0', '3.2')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def breakable(name: str) -> Markup:
    """Let a long name break after its underscores, where there is no room for the whole of it.

    >>> str(breakable("max_num_seqs <"))
    'max_<wbr>num_<wbr>seqs &lt;'
    """
    return escape(name).replace("_", Markup("_<wbr>"))


def heading(name: str) -> str:
    """Drop the mark of a number column."""
    return name.removeprefix("#")
