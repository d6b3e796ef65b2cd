"""Pages of what-if: titles say what stands in the very cells and steps below them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from optimizer.plans.plan import Status
from optimizer.plans.records import pool_records
from optimizer.whatif.frontier import Frontier, Step
from optimizer.whatif.scenario import Answer, nothing
from reports.document import Chart
from reports.drawing import Text
from reports.frontier_page import make_frontier_page, render_frontier
from reports.frontier_text import frontier_record
from reports.whatif_page import MOST_MAPS, heat_maps, make_sweep_page, render_sweep
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
    june, july = heat_maps(first + others)
    assert june.title == f"Cost at scenario june: {said}"
    assert july.title == "Cost at scenario july: $99.00/h"
    shown = [text for text in cells(june) if text != "–"]
    ends = set(re.findall(r"\$([\d.]+)", june.title))
    assert ends == ({min(shown, key=float), max(shown, key=float)} if shown else set())
    assert [text for *_, text in june.table.rows] == [f"${cost:.2f}/h" if cost else "infeasible" for cost in costs]


def test_one_lever_makes_one_map_and_maps_that_are_left_out_are_counted() -> None:
    (alone,) = heat_maps([row(3.0, rate=5), row(4.0, rate=6)])
    assert alone.title == "Cost: $3.00/h to $4.00/h"
    many = [row(3.0, ttft=t, tpot=p, rate=5) for t, p in product(range(MOST_MAPS + 2), (1, 2))]
    page = make_sweep_page(many, "name", "simple")
    assert len(page.charts) == MOST_MAPS
    assert page.cut == "The first 6 of 8 maps; all scenarios stand in the table."
    assert page.cut in render_sweep(many, {"rows": many}, "name", "simple")
    assert not make_sweep_page(many[:4], "name", "simple").cut


def test_what_gives_out_is_in_words_and_values_below_a_map_are_whole() -> None:
    page = make_sweep_page([row(3.0, rate=10), row(4.0, rate=20), row(None, rate=40)], "name", "simple")
    assert [cells[4] for cells in page.rows.rows] == [
        "prompt time of prefill-1, 3 % room",
        "prompt time of prefill-1, 3 % room",
        "inventory of H100: short",
    ]
    marks = page.charts[0].drawing.marks
    ticks = [mark.text for mark in marks if isinstance(mark, Text) and mark.tone == "tick" and mark.anchor == "middle"]
    assert ticks == ["10 req/s", "20 req/s", "40 req/s"]
    assert 'class="stack named"' in render_sweep([row(3.0, rate=10)], {"rows": []}, "name", "simple")


def answer(cost: float) -> Answer:
    return Answer(
        Status.FEASIBLE, cost, None, None, 9.0, {"H100": 2}, (engines(2, "H100", 1, "colocated"),), "time of a"
    )


def curve(*steps: Step) -> Frontier:
    return Frontier("rate", "req/s", steps, 1e-4)


def test_the_page_of_a_curve_says_what_its_steps_do() -> None:
    steps = [Step(5.0, 8.0, answer(6.0)), Step(8.001, 20.0, answer(9.0)), Step(20.01, 30.0, answer(10.0))]
    found = curve(*steps, Step(30.01, 40.0, nothing("inventory of H100: short")))
    page = make_frontier_page(found, "chat")
    assert page.headline == "$6.00/h to $10.00/h from 5 req/s to 30 req/s, in 3 steps"
    (chart,) = page.charts
    assert chart.title == "The cost jumps most, by $3.00/h, at 8 req/s"
    assert sum(mark.kind == "path" and mark.tone == "curve decode" for mark in chart.drawing.marks) == 3
    ticks = [mark for mark in chart.drawing.marks if isinstance(mark, Text) and mark.tone == "tick"]
    assert [mark.text for mark in ticks if mark.anchor == "middle"] == ["10", "20", "30", "40"]
    assert page.lead == ("No fleet from 30.01 req/s to 40 req/s: inventory of H100: short.",)
    record = frontier_record(found)
    text = render_frontier(found, record, "chat")
    twin = re.search(r'<script type="application/json" id="result">(.*?)</script>', text, re.DOTALL)
    assert twin is not None
    assert json.loads(twin[1]) == record
    assert len(text) < 300_000
    assert text == render_frontier(found, record, "chat")


def test_a_curve_of_one_fleet_of_none_and_of_budgets_has_a_page() -> None:
    one = make_frontier_page(curve(Step(5.0, 8.0, answer(6.0))), "chat")
    assert one.headline == "$6.00/h from 5 req/s to 8 req/s, with one fleet"
    assert one.charts[0].title == "One fleet is the cheapest over the whole range"
    none = make_frontier_page(curve(Step(5.0, 8.0, nothing("too slow"))), "chat")
    assert (none.headline, none.charts) == ("No fleet from 5 req/s to 8 req/s", ())
    assert make_frontier_page(replace(curve(), by_budget=True), "chat").headline == "No fleet at any of these budgets"
    budget = make_frontier_page(replace(curve(Step(5.0, 8.0, answer(6.0))), by_budget=True), "chat")
    assert budget.question == "What does each budget serve?"
    assert budget.parts[0].table.headers == ("#budget", "#serves up to", "#per dollar", "replicas × GPU")
    limit = Frontier("ttft_scale", "1", (Step(2.0, 1.0, answer(6.0)),), 1e-4)
    assert make_frontier_page(limit, "chat").question == "What does a tighter TTFT cost?"
