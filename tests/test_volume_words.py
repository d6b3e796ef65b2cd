"""A plan for goodput per dollar says which loads it was sought among, and which one its ratio is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.fleets.binding import volume_bindings
from optimizer.plans.plan import Plan
from reports.answers.plan import plan_page as as_page
from reports.verdict import volume_sentence
from search_spaces.problem import Goal, Objective
from tests import report_cases as markdown
from tests.optimizer_cases import problem
from tests.report_cases import load
from tests.report_cases import text_of as as_text


def ratio(**objective: object) -> Plan:
    """A plan of 10 $/h for 8 req/s that serves 31.4 req/s."""
    plan = load("colocated")
    source = plan.provenance
    inputs = source.inputs | {"objective": {"goal": "max_goodput_per_dollar", **objective}}
    changes = {"demand_rps": 8.0, "goodput_rps": 31.4, "cost_usd_per_hour": 10.0, "objective": "max_goodput_per_dollar"}
    return plan.model_copy(update=changes | {"provenance": source.model_copy(update={"inputs": inputs})})


def test_the_hidden_cap_and_the_load_of_the_ratio_stand_in_every_view() -> None:
    plan = ratio(min_volume=1.0, max_volume=4.0)
    said = volume_sentence(plan)
    assert said == (
        "Fleets were to serve 8 req/s to 32 req/s: max_volume is 4 (four times min_volume, as none is stated). The "
        "ratio is for 31.4 req/s; at the demand of 8 req/s the fleet serves 2,880 requests per $."
    )
    for text in (as_text(plan), markdown.markdown_of(plan), as_page(plan)):
        assert said in " ".join(text.split())


def test_the_cap_is_a_limit_of_the_plan() -> None:
    asked = problem()
    demand = asked.workload.request_rate
    assert volume_bindings(asked, 1.0) == []
    (row,) = volume_bindings(replace(asked, objective=Objective(Goal.MAX_GOODPUT_PER_DOLLAR, 1.0, 4.0)), 3.92)
    assert (row.constraint, row.where, row.unit) == ("max_volume", "fleet", "req/s")
    assert row.slack == pytest.approx(0.02)
    assert row.used == pytest.approx(3.92 * demand)
    assert row.sentence.endswith("req/s at most: max_volume is 4.")
