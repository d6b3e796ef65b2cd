"""The report: one offline HTML file without code, the same bytes for the same plan."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from optimizer.plans.plan import Plan

from .json_text import embedded_json
from .page import make_page
from .page_parts import Page
from .views.html import environment

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
