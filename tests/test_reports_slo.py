"""What the page says of the SLOs and of the simulation: its numbers, and the formulas' beside them."""

import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from optimizer.fleets.build_plan import attainment_binding
from optimizer.plans.plan import Plan
from reports.answers.plan import plan_page
from reports.answers.plan_charts import why_charts
from reports.answers.plan_details import (
    hand_over_sentence,
    origins_table,
    settings_table,
)
from reports.deploy.readme import settings
from reports.numbers import duration, percent
from reports.words import tightest_first
from tests.deploy_cases import plan_of
from tests.report_cases import load, simulated


@pytest.fixture
def plan() -> Plan:
    return simulated(load("disaggregated"))


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.5, 0.99)), min_size=2, max_size=5))
@tried(deadline=None)
def test_the_tightest_class_has_the_least_slack_of_permitted_misses(rows: list[tuple[float, float]]) -> None:
    plan = load("disaggregated")
    changes = [{"name": f"c{n}", "attainment": held, "attainment_goal": goal} for n, (held, goal) in enumerate(rows)]
    classes = [plan.classes[0].model_copy(update=change) for change in changes]
    first = tightest_first(plan.model_copy(update={"classes": classes}))[0]
    slacks = {
        item.name: attainment_binding("", 1 - item.attainment, 1 - item.attainment_goal).slack for item in classes
    }
    assert slacks[first.name] == pytest.approx(min(slacks.values()), abs=1e-12)


def test_pools_hand_overs_and_origins_are_the_plans(plan: Plan) -> None:
    rows = why_charts(plan)[0].table.rows
    assert [row[1] for row in rows] == ["$19.92/h", "$19.20/h", "$9.96/h"]
    assert rows[0][2] == percent(plan.pools[0].usd_per_hour / plan.cost_usd_per_hour)
    longest = max(move.seconds_per_request for move in plan.transfers)
    assert duration(longest) in hand_over_sentence(plan)
    assert percent(longest / plan.ttft_s.p50) in hand_over_sentence(plan)
    assert hand_over_sentence(load("colocated")) == ""
    for name, bought, *numbers in origins_table(plan).rows:
        assert sum(map(int, numbers[:4])) > 1
        assert bought == ("yes" if name in plan.gpus else "no")


def test_settings_are_those_of_the_deployment_with_their_reasons() -> None:
    plan = plan_of()
    assert [row[:2] for row in settings_table(plan).rows] == [(row.setting, row.value) for row in settings(plan)]
    page = plan_page(plan)
    assert "Why each setting is stated" in page
    assert "NixlConnector" in page
    own = plan.provenance.model_copy(update={"inputs": plan.provenance.inputs | {"catalog": "my.yaml"}})
    assert settings_table(plan.model_copy(update={"provenance": own})).rows == ()
    for unknown in (simulated(load("disaggregated")), load("infeasible")):
        assert settings_table(unknown).rows == ()
