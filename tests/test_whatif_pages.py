"""The map of what-if: its headline says what stands in its cells."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.plans.plan import Status
from optimizer.plans.records import pool_records
from optimizer.whatif.answer import Answer
from optimizer.whatif.curves import Frontier, Step
from reports.answers.curves import frontier_document
from reports.answers.whatif import ROLES, SHAPES, map_document, map_record
from reports.document import Document, Section
from reports.scenarios import whatif_document
from reports.views import terminal
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
    cheapest = Answer(Status.FEASIBLE, 6.0, gpus={"H100": 2}, pools=(engines(2, "H100", 1, "colocated"),))
    curve_below = frontier_document(Frontier("rate", "req/s", (Step.of(5.0, 8.0, cheapest),), 1e-4))
    bare = Document(("No limit is stated.",), (Section(),))
    text = " ".join(terminal.render_document(whatif_document([first, curve_below, bare], (), ("What if?",))).split())
    for headline in (*first.headline, *curve_below.headline, "No limit is stated."):
        assert headline in text
