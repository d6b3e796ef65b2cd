"""A refusal names another target only where that one runs the plan, and how to plan for the one that refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from optimizer.plans.plan import Plan
from reports.answers.plan import plan_page as as_page
from reports.deploy.files import deployment_files, targets_of
from reports.next_steps import deploy_sentence, deployable, deployment
from search_spaces.loader import load_problem
from search_spaces.problem import TARGET_NAMES, Gateway
from tests.deploy_cases import Case, lengths_plan, options, parted_plan, plan_of
from tests.report_cases import load, with_command
from tests.report_cases import markdown_of as as_markdown
from tests.report_cases import text_of as as_text
from tests.test_balancing import judged, simulated


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
        assert "or choose --target" not in refusal(unproven(plan), target)
    found = deployable(unproven(plan))
    assert found is not None
    assert (found.target, found.again) == (None, "vllm")
    said = deploy_sentence(unproven(plan))
    assert ". For a plan that vLLM runs: pdplan optimize " in said
    assert said.endswith(" --target vllm")
    assert said.count("--target") == 1


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


def test_a_view_tells_each_reason_once_and_the_command_that_can_be_copied() -> None:
    """Of two classes in pools of their own the sentence had seven lines, and no file to plan again."""
    plan = with_command(unproven(parted_plan()), "pdplan optimize two.yaml --set seed=3 --effort thorough -o plan -q")
    assert deploy_sentence(plan) == (
        "Deploy: not with vLLM and NVIDIA Dynamo: the router there counts requests, not the tokens of prompts, where "
        "the plan is not shown to meet the SLO; not with NVIDIA Dynamo and llm-d: no router there parts lengths or "
        "classes. "
        "For a plan that vLLM runs: pdplan optimize two.yaml --set seed=3 --effort thorough --target vllm"
    )


def test_every_reason_is_told() -> None:
    """vLLM's gateway does lengths, llm-d's router counts tokens, and Dynamo's does neither."""
    parted = unproven(parted_plan())
    tokens, lengths = "the router there counts requests", "sends requests of different lengths"
    told = {target: refusal(parted, target) for target in ("vllm", "llmd", "dynamo")}
    assert [tokens in one for one in told.values()] == [True, False, True]
    assert [lengths in one for one in told.values()] == [False, True, True]
    assert all(one.endswith(f"; plan again with pdplan optimize --target {name}") for name, one in told.items())
    counted = {"balancing": "fewest_requests"}
    alone = unproven(plan_of((Case("colocated", replicas=2, tokens=8192),)))
    assert deployment_files(asking(parted, constraints=counted), options("vllm"))
    assert deployment_files(alone, options("llmd"))
    assert deployment_files(asking(alone, constraints=counted), options("dynamo"))


@pytest.mark.parametrize(("target", "able"), [("vllm", True), ("llmd", False)])
def test_pools_for_each_class_are_given_up_where_no_router_tells_classes_apart(target: str, *, able: bool) -> None:
    apart = asking(lengths_plan(), constraints={"pools": "per_class"})
    assert ("--set constraints.pools=shared" in refusal(apart, target)) is not able


# --- a plan says which targets cannot run it, before anybody tries

ROOT = Path(__file__).resolve().parents[1]


def test_a_plan_that_its_engines_own_target_runs_says_nothing() -> None:
    found = deployable(plan_of())
    assert found is not None
    assert (found.target, found.refused) == ("vllm", {})
    assert "README.md" in found.files
    assert deploy_sentence(plan_of()) == ""


def test_a_plan_that_no_target_runs_says_so_in_every_view_and_names_no_command() -> None:
    plan = plan_of((Case("colocated"), Case("prefill", seqs=8), Case("decode")))
    said = deploy_sentence(plan)
    assert said.startswith(
        "Deploy: not with vLLM, NVIDIA Dynamo and llm-d: the plan serves some requests in one engine"
    )
    assert " ".join(said.split()) in " ".join(as_text(plan).split())
    assert said in as_markdown(plan)
    assert "No target runs this fleet as it is" in as_page(plan)
    assert deployment(plan) == ((), "")


def test_a_plan_that_another_target_runs_names_it_and_its_command() -> None:
    plan = lengths_plan()
    assert deploy_sentence(plan).startswith("Deploy: with NVIDIA Dynamo, not with vLLM: no router there parts lengths")
    assert " --target dynamo -o deploy" in deployment(plan)[1]
    assert deployment(plan)[0]


def test_a_plan_without_a_fleet_says_nothing_of_deploying() -> None:
    assert deployable(load("infeasible")) is None
    assert deploy_sentence(load("infeasible")) == ""


def test_a_fleet_of_a_vendor_that_no_target_deploys_is_planned_and_said() -> None:
    plan = plan_of((Case("prefill", gpu="Gaudi-3"), Case("decode")))
    assert deploy_sentence(plan).startswith("Deploy: not with")


def test_sessions_are_served_by_one_pool_of_a_role() -> None:
    """A split by prompt length would send a session to another replica as its prompts grow."""
    settings = {"target": "vllm"}
    parted, whole = (load_problem(ROOT / "examples" / f"{name}.yaml", settings) for name in ("chat", "agents"))
    assert parted.constraints.gateway != Gateway(1, 1)
    assert whole.constraints.gateway == Gateway(1, 1)
