"""The section Sensitivity, what is on record of serving, and the deployment files: data, sentences and the pages."""

from __future__ import annotations

from pathlib import Path

from optimizer.plans.plan import Plan
from optimizer.plans.records import Sensitivity
from reports import sensitivity as said
from reports.answers.plan import plan_page
from reports.deploy.files import SUMS, deploy_plan
from reports.next_steps import deployment
from tests.deploy_cases import plan_of
from tests.engine_cases import engines
from tests.report_cases import load, with_command, with_sensitivity

PLAN = with_sensitivity(load("disaggregated"))


def found(plan: Plan = PLAN) -> Sensitivity:
    assert plan.sensitivity is not None
    return plan.sensitivity


# --- data -----------------------------------------------------------------------------------------------------------


# --- sentences ------------------------------------------------------------------------------------------------------


def test_the_nearest_price_at_which_the_answer_changes_is_named() -> None:
    change = "below $3.60/h per H200 (-10 %), 4 × H200 TP4 prefill becomes cheaper"
    cheapest = PLAN.model_copy(update={"cost_usd_per_hour": found().usd_per_hour})
    assert said.break_even_sentence(cheapest, found()) == f"Break-even by formula: {change}"
    assert said.break_even_sentence(PLAN, found()) == (
        f"By formula the cheapest fleet is 2 × H100 TP4 prefill for $47.11/h; {change}"
    )
    own = [row.model_copy(update={"pools": [engines(4, "H200", 4, "prefill")]}) for row in PLAN.alternatives[:1]]
    same = PLAN.model_copy(update={"alternatives": own})
    assert said.break_even_sentence(same, found()).endswith("(-10 %), the recommended fleet becomes cheaper")
    alone = found().model_copy(update={"break_even": found().break_even[:1]})
    assert said.break_even_sentence(PLAN, alone).startswith("By formula no price of a GPU,")
    inputs = {"accelerators": [{"name": "H100", "owned": 8}]}
    owned = PLAN.model_copy(update={"provenance": PLAN.provenance.model_copy(update={"inputs": inputs})})
    assert "no price of a GPU to rent (what owned ones cost was not moved)" in said.break_even_sentence(owned, alone)


# --- pages ----------------------------------------------------------------------------------------------------------


# --- what is on record ----------------------------------------------------------------------------------------------


# --- deployment files -----------------------------------------------------------------------------------------------


def test_the_page_names_the_files_and_the_command_that_writes_them(tmp_path: Path) -> None:
    plan = with_command(plan_of(), "pdplan optimize w.yaml -o 'out/a b' --deploy 'out/to run'")
    files, command = deployment(plan)
    assert command == "pdplan deploy 'out/a b/plan.json' -o deploy"
    written = {path.relative_to(tmp_path).as_posix() for path in deploy_plan(plan, tmp_path)}
    assert set(files) == written - {SUMS}
    assert "README.md" in plan_page(plan)
    assert deployment(with_command(load("infeasible"), "pdplan optimize w.yaml"))[0] == ()
