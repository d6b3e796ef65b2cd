"""Pages of what-if: titles say what stands in the very cells and steps below them."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest

from optimizer.plans.plan import Status
from optimizer.plans.records import pool_records
from optimizer.whatif.answer import Answer, nothing
from optimizer.whatif.curves import Frontier, Step
from reports.answers.curves import frontier_document, frontier_record
from reports.answers.whatif import ROLES, SHAPES, cost_maps, map_document, map_record
from reports.charts import Text
from reports.document import Chart, Document, Section
from reports.scenarios import whatif_document
from reports.views import terminal
from reports.views.html import render_document
from tests.engine_cases import engines


def row(cost: float | None, **varied: Any) -> dict[str, Any]:
    return {
        **varied,
        "status": "feasible" if cost else "infeasible",
        "cost_usd_per_hour": cost,
        "gap": 0.0 if cost else None,
        "goodput_rps": 5.0 if cost else 0.0,
        "goodput_per_dollar": 1.0,
        "gpus": {"H100": 1} if cost else {},
        "binding": "time of prefill-1, 3 % room" if cost else "inventory of H100: short",
        "pools": pool_records([engines(1, "H100", 1, "colocated")]) if cost else [],
        "simulated": False,
        "simulated_attainment": None,
        "refuted": [],
    }


def cells(chart: Chart) -> list[str]:
    """The numbers in the cells of a map."""
    return [mark.text for mark in chart.drawing.marks if isinstance(mark, Text) and mark.tone.startswith("on-")]


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ([4.0, 18.45, 18.449, 9.0], "$4.00/h to $18.45/h"),
        ([4.0, 4.0, 4.0, 4.0], "$4.00/h"),
        ([None, 7.0, None, 9.0], "$7.00/h to $9.00/h; no fleet in 2 of 4 cells"),
        ([None, None, None, None], "no fleet"),
    ],
)
def test_the_title_of_a_map_is_said_by_its_own_cells(costs: list[float | None], said: str) -> None:
    places = list(product((1.0, 2.0), (5, 9)))
    mine = zip(costs, places, strict=True)
    first = [row(cost, **{"scenario": "june", "price.H100": x, "rate": y}) for cost, (x, y) in mine]
    others = [row(99.0, **{"scenario": "july", "price.H100": x, "rate": y}) for x, y in places]
    june, july = cost_maps(first + others)
    assert june.title == f"Cost at scenario june: {said}"
    assert july.title == "Cost at scenario july: $99.00/h"
    shown = [text for text in cells(june) if text != "–"]
    ends = set(re.findall(r"\$([\d.]+)", june.title))
    assert ends == ({min(shown, key=float), max(shown, key=float)} if shown else set())
    assert [text for *_, text in june.table.rows] == [f"${cost:.2f}/h" if cost else "infeasible" for cost in costs]


def answer(cost: float) -> Answer:
    return Answer(Status.FEASIBLE, cost, gpus={"H100": 2}, pools=(engines(2, "H100", 1, "colocated"),))


def curve(*steps: Step) -> Frontier:
    return Frontier("rate", "req/s", steps, 1e-4)


def test_the_document_of_a_curve_says_what_its_steps_do() -> None:
    steps = [Step.of(5.0, 8.0, answer(6.0)), Step.of(8.001, 20.0, answer(9.0)), Step.of(20.01, 30.0, answer(10.0))]
    found = curve(*steps, Step.of(30.01, 40.0, nothing("inventory of H100: short")))
    document = frontier_document(found)
    assert document.headline == (
        "From 5 req/s to 30 req/s the cheapest fleet costs $6.00/h to $10.00/h ($4,380 to $7,300/month).",
        "3 fleets are the cheapest in turn; the cost jumps most, by $3.00/h, at 8 req/s.",
    )
    (chart,) = document.sections[0].charts
    assert sum(mark.kind == "path" and mark.tone == "curve decode" for mark in chart.drawing.marks) == 3
    ticks = [mark for mark in chart.drawing.marks if isinstance(mark, Text) and mark.tone == "tick"]
    assert [mark.text for mark in ticks if mark.anchor == "middle"] == ["10", "20", "30", "40"]
    assert document.sections[2].sentences == ("No fleet from 30.01 req/s to 40 req/s: inventory of H100: short.",)
    record = frontier_record(found)
    text = render_document(document, record)
    twin = re.search(r'<script type="application/json" id="result">(.*?)</script>', text, re.DOTALL)
    assert twin is not None
    assert json.loads(twin[1]) == record
    assert len(text) < 300_000
    assert text == render_document(document, record)


def pair(colocated: float | None, disaggregated: float | None, **varied: Any) -> list[dict[str, Any]]:
    costs = zip((colocated, disaggregated), SHAPES.values(), strict=True)
    return [row(cost, **varied) | {ROLES: list(roles)} for cost, roles in costs]


def test_a_map_says_where_disaggregation_is_cheaper_and_ties_are_colocated() -> None:
    keys = ["isl", "rate"]
    rows = [
        *pair(4.0, 5.0, isl=500, rate=1.0),
        *pair(4.0, 4.0, isl=500, rate=2.0),
        *pair(10.0, 8.0, isl=1000, rate=1.0),
        *pair(None, None, isl=1000, rate=2.0),
    ]
    document = map_document(keys, rows, "simple")
    assert document.headline == (
        "Disaggregation is cheaper in 1 of 3 cells with a fleet, by up to 20 % (at isl 1,000 tokens, rate 1 req/s).",
        "All of them use H100.",
    )
    tables = [section.table.rows for section in document.sections if section.table is not None]
    assert tables[0] == (("500 tokens", "C $4.00/h", "C $4.00/h"), ("1,000 tokens", "D $8.00/h", "–"))
    assert tables[1] == (("500 tokens", "+25 %", "±0 %"), ("1,000 tokens", "-20 %", "–"))
    cells = map_record(keys, rows)["cells"]
    assert [cell["cheapest"] for cell in cells] == ["colocated", "colocated", "disaggregated", None]
    assert cells[2]["disaggregated_over_colocated"] == pytest.approx(-0.2)
    (chart,) = document.sections[0].charts
    tones = [mark.tone for mark in chart.drawing.marks if mark.kind == "rect"]
    assert tones == ["alone-8", "alone-1", "split-8", "heat-0"]


def test_every_answer_below_another_keeps_its_headline() -> None:
    """An answer may begin with a chart, or have nothing but its headline."""
    first = map_document(["isl", "rate"], pair(4.0, 5.0, isl=500, rate=1.0), "simple")
    curve_below = frontier_document(curve(Step.of(5.0, 8.0, answer(6.0))))
    bare = Document(("No limit is stated.",), (Section(),))
    text = " ".join(terminal.render_document(whatif_document([first, curve_below, bare], (), ("What if?",))).split())
    for headline in (*first.headline, *curve_below.headline, "No limit is stated."):
        assert headline in text
