"""What the page says of the SLOs and of the simulation: its numbers, and the formulas' beside them."""

import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from optimizer.fleets.build_plan import attainment_binding
from optimizer.plans.plan import Plan
from reports.words import tightest_first
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
