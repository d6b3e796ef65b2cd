"""A refusal names another target only where that one runs the plan, and settings that take its own reason away."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.deploy.facts import target_names
from reports.deploy.files import deployment_files, targets_of
from reports.deployable import deploy_sentence, deployable
from tests.deploy_cases import Case, lengths_plan, options, parted_plan, plan_of
from tests.test_balancing import judged, simulated

BALANCING, ONE_POOL = "--set constraints.balancing=fewest_requests", "--set constraints.max_pools=1"
ROLES = "search: {roles: [prefill, decode]} in the workload"


def unproven(plan: Plan) -> Plan:
    """The plan as simulated, with a router that counts requests under which it is not shown to hold."""
    return simulated(plan, judged(held=False))


def asking(plan: Plan, **inputs: dict[str, Any]) -> Plan:
    """The plan of a problem with these sections."""
    source = plan.provenance.model_copy(update={"inputs": plan.provenance.inputs | inputs})
    return plan.model_copy(update={"provenance": source})


def refusal(plan: Plan, target: str) -> str:
    with pytest.raises(InputError) as refused:
        deployment_files(plan, options(target))
    return str(refused.value)


def wide_lengths_plan() -> Plan:
    """By length, and with two engines in each prefill pool, so that it matters what a router counts."""
    plan = lengths_plan()
    pools = [pool.model_copy(update={"replicas": 2, "gpus": 2 * pool.gpus}) for pool in plan.pools]
    return plan.model_copy(update={"pools": pools})


@pytest.mark.parametrize("plan", [parted_plan(), wide_lengths_plan()], ids=["colocated", "prefill"])
def test_a_plan_that_nobody_runs_sends_nobody_in_a_circle(plan: Plan) -> None:
    for target in targets_of(plan):
        assert "--target" not in refusal(unproven(plan), target)
    found = deployable(unproven(plan))
    assert found is not None
    assert found.target is None
    assert "--target" not in deploy_sentence(unproven(plan))


@pytest.mark.parametrize("target", target_names())
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


def test_each_setting_takes_its_own_reason_away() -> None:
    """vLLM's gateway does lengths, llm-d's router counts tokens, and Dynamo's does neither."""
    parted = unproven(parted_plan())
    assert refusal(parted, "vllm").endswith(f"; plan again with {BALANCING}")
    assert refusal(parted, "llmd").endswith(f"; plan again with {ONE_POOL}")
    assert refusal(parted, "dynamo").endswith(f"; plan again with {ONE_POOL} and {BALANCING}")
    counted = {"balancing": "fewest_requests"}
    alone = unproven(plan_of((Case("colocated", replicas=2, tokens=8192),)))
    assert deployment_files(asking(parted, constraints=counted), options("vllm"))
    assert deployment_files(alone, options("llmd"))
    assert deployment_files(asking(alone, constraints=counted), options("dynamo"))


def test_one_pool_of_each_role_is_asked_for_so_that_nothing_else_comes_of_it() -> None:
    plan = lengths_plan()
    assert f"constraints.max_pools=2 and {ROLES}" in refusal(plan, "vllm")
    apart = asking(plan, search={"roles": ["prefill", "decode"]}, constraints={"pools": "per_class"})
    said = refusal(apart, "vllm")
    assert ROLES not in said
    assert "constraints.max_pools=2 and --set constraints.pools=shared; or" in said


def test_weights_in_a_folder_are_for_others_than_the_chart() -> None:
    with pytest.raises(InputError, match=r"; or choose --target vllm or dynamo, which run this plan as it is$"):
        deployment_files(plan_of(), replace(options("llmd"), model="/models/mine"))
