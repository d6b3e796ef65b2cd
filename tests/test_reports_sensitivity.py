"""The section Sensitivity, what is on record of serving, and the deployment files: data, sentences and the pages."""

from __future__ import annotations

import re
from pathlib import Path

from optimizer.plans.plan import Plan
from optimizer.plans.records import BreakEven, Sensitivity
from reports import sensitivity as said
from reports.answers.plan import plan_page
from reports.answers.plan_details import accuracy_table
from reports.charts import Text
from reports.deploy.files import SUMS, deploy_plan
from reports.next_steps import deployment
from reports.sensitivity import draw_tornado
from tests.deploy_cases import plan_of
from tests.engine_cases import engines
from tests.report_cases import lever, load, with_accuracy, with_command, with_sensitivity

PLAN = with_sensitivity(load("disaggregated"))


def found(plan: Plan = PLAN) -> Sensitivity:
    assert plan.sensitivity is not None
    return plan.sensitivity


def only(*levers: object) -> Sensitivity:
    return found().model_copy(update={"levers": list(levers)})


# --- data -----------------------------------------------------------------------------------------------------------


def test_the_tornado_leaves_out_what_moves_nothing() -> None:
    labels = [mark.text for mark in draw_tornado(found().levers, 47.11).marks if isinstance(mark, Text)]
    assert [text.partition(",")[0] for text in labels[:-1:2]] == ["request rate", "price of H200", "step times"]
    assert labels[1] == "$40.11 · no fleet"
    assert said.still_sentence(found()) == "Not moved by: TTFT limit."


# --- sentences ------------------------------------------------------------------------------------------------------


def test_the_finding_is_the_first_lever_or_that_no_fleet_is_left() -> None:
    assert said.swing_sentence(found()) == "With the request rate at ×1.2, no fleet meets the SLO"
    assert said.swing_sentence(only(lever("isl_scale", 1.0, (0.8, 1.2), (40.0, 50.0)))) == (
        "The cost depends most on the input lengths: $40.00/h to $50.00/h"
    )
    assert said.swing_sentence(only(lever("price.H100", 2.0, (1.6, 2.4), (40.0, 46.0)))) == (
        "The cost depends most on the price of H100: $40.00/h to $47.11/h"
    )


def test_a_flip_to_the_recommended_fleet_is_called_that() -> None:
    row = found().levers[0]
    flip = row.flips[0]
    assert said.flip_words(row, flip) == (
        "Request rate at ×1.15 (not yet at ×1.1): 9 × H200 TP8 colocated, for $77.70/h"
    )
    assert said.flip_words(row, flip, flip.pools) == (
        "Request rate at ×1.15 (not yet at ×1.1): the recommended fleet is the cheapest by formula too, for $77.70/h"
    )


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


def test_each_price_says_between_which_the_fleet_stays() -> None:
    assert [said.price_sentence(row) for row in reversed(found().break_even)] == [
        "H200: the cheapest fleet stays from $3.60/h to $5.50/h a GPU (now $4.00/h).",
        "L40S: no price from $0.50/h to $8.00/h a GPU changes the cheapest fleet (now $2.00/h).",
    ]
    row = found().break_even[1]
    dear = BreakEven(accelerator="H200", usd_per_gpu_hour=9.0, pieces=row.pieces)
    cheap = BreakEven(accelerator="H200", usd_per_gpu_hour=1.2, pieces=row.pieces)
    assert (
        said.price_sentence(dear) == "H200: the cheapest fleet stays for any price from $5.50/h a GPU on (now $9.00/h)."
    )
    assert (
        said.price_sentence(cheap) == "H200: the cheapest fleet stays for any price up to $3.60/h a GPU (now $1.20/h)."
    )


def test_what_is_absent_says_how_to_have_it() -> None:
    plain = with_command(load("disaggregated"), "pdplan optimize w.yaml -o p")
    assert said.more_sentence(plain) == ("Not worked out; to have it", "pdplan optimize w.yaml -o p --sensitivity")
    some = with_command(with_sensitivity(plain, complete=False), "pdplan optimize w.yaml")
    assert said.more_sentence(some)[1] == "pdplan optimize w.yaml --sensitivity"
    assert said.more_sentence(PLAN) == ("", "")
    assert "--full" in said.more_sentence(with_command(plain, "pdplan optimize w.yaml --effort thorough"))[0]
    other = plain.model_copy(update={"objective": "max_goodput"})
    assert said.more_sentence(other) == ("Not worked out: it is of the least cost, which this plan does not seek.", "")


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_hostile_name_in_it_is_harmless() -> None:
    row = found().break_even[1].model_copy(update={"accelerator": "<script>alert(1)</script>\u202e" + "x" * 10_000})
    bad = found().model_copy(update={"break_even": [row], "levers": [lever("price.<b>", 2.0, (1.0, 3.0), (4.0, 5.0))]})
    page = plan_page(PLAN.model_copy(update={"sensitivity": bad}))
    shown = page[: page.index('<script type="application/json"')]
    assert "<script>alert" not in page
    assert "<b>" not in re.sub(r"<b>[^<]*</b>", "", shown)  # the page's own bold names
    assert "\u202e" not in shown


# --- what is on record ----------------------------------------------------------------------------------------------


def test_what_was_never_measured_is_said_plainly() -> None:
    plan = with_accuracy(PLAN)
    table = accuracy_table(plan)
    assert {row[1] for row in table.rows} == {"disaggregated"}
    assert table.rows[0][3:6] == (plan.model, "no measurement", "–")
    assert table.rows[1][3:] == ("any", "91", "21.7 %", "-3.1 %", "8.3 %", "+1.2 %")
    assert "no measurement" in plan_page(plan)
    assert accuracy_table(PLAN).rows == ()


# --- deployment files -----------------------------------------------------------------------------------------------


def test_the_page_names_the_files_and_the_command_that_writes_them(tmp_path: Path) -> None:
    plan = with_command(plan_of(), "pdplan optimize w.yaml -o 'out/a b' --deploy 'out/to run'")
    files, command = deployment(plan)
    assert command == "pdplan deploy 'out/a b/plan.json' -o deploy"
    written = {path.relative_to(tmp_path).as_posix() for path in deploy_plan(plan, tmp_path)}
    assert set(files) == written - {SUMS}
    assert "README.md" in plan_page(plan)
    assert deployment(with_command(load("infeasible"), "pdplan optimize w.yaml"))[0] == ()
