"""A refusal names another target only where that one runs the plan, and every reason why this one does not."""

from __future__ import annotations

import re

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.deploy.files import deployment_files
from search_spaces.target_names import TARGET_NAMES
from tests.deploy_cases import Case, lengths_plan, options, parted_plan, plan_of
from tests.test_balancing import judged, simulated


def unproven(plan: Plan) -> Plan:
    """The plan as simulated, with a router that counts requests under which it is not shown to hold."""
    return simulated(plan, judged(held=False))


def refusal(plan: Plan, target: str) -> str:
    with pytest.raises(InputError) as refused:
        deployment_files(plan, options(target))
    return str(refused.value)


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize(
    "plan",
    [parted_plan(), lengths_plan(), plan_of((Case("colocated", replicas=2),)), plan_of((Case("colocated", pp=2),))],
    ids=["by length", "prefill by length", "alike", "pipeline"],
)
@pytest.mark.parametrize("proven", [True, False], ids=["proven", "unproven"])
def test_a_target_that_is_named_runs_the_plan(plan: Plan, target: str, *, proven: bool) -> None:
    seen = plan if proven else unproven(plan)
    try:
        deployment_files(seen, options(target))
    except InputError as refused:
        named = re.search(r"; or choose --target (.*), which runs? this plan as it is$", str(refused))
        for other in named[1].split(" or ") if named else []:
            assert deployment_files(seen, options(other))
