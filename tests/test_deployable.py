"""A plan says which targets cannot run it, before anybody tries."""

from __future__ import annotations

from reports.answers.plan import plan_page as as_page
from reports.next_steps import deploy_sentence, deployable, deployment
from tests.deploy_cases import Case, lengths_plan, plan_of
from tests.report_cases import load
from tests.report_cases import markdown_of as as_markdown
from tests.report_cases import text_of as as_text


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
