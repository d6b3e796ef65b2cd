"""A plan says which targets cannot run it, before anybody tries."""

from __future__ import annotations

from pathlib import Path

from reports.answers.plan import plan_page as as_page
from reports.next_steps import deploy_sentence, deployable, deployment
from search_spaces.loader import load_problem
from search_spaces.problem import Gateway
from tests.deploy_cases import Case, lengths_plan, plan_of
from tests.report_cases import load
from tests.report_cases import markdown_of as as_markdown
from tests.report_cases import text_of as as_text

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
