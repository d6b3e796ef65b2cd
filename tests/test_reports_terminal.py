"""The terminal summary, against golden text: a changed word is a readable diff.

To accept a change: PDPLAN_UPDATE_GOLDEN=1 pytest tests/test_reports_terminal.py
"""

import click
import pytest

from reports.next_steps import next_command
from reports.text import display_width
from tests.report_cases import assert_golden, load, with_command
from tests.report_cases import text_of as render_plan

NAMES = ("disaggregated", "colocated", "infeasible", "hostile", "hundred-pools")


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, width: int) -> None:
    assert_golden(f"plan-{name}-{width}.txt", render_plan(load(name), width, brief=True))


@pytest.mark.parametrize("name", NAMES)
def test_golden_of_the_whole_answer(name: str) -> None:
    assert_golden(f"plan-{name}-whole.txt", render_plan(load(name), 100))


@pytest.mark.parametrize("name", ["disaggregated", "colocated", "infeasible"])
def test_the_brief_answer_fits_a_screen(name: str) -> None:
    for width, most in ((80, 26), (100, 25), (140, 24)):
        lines = render_plan(load(name), width, brief=True).splitlines()
        assert len(lines) <= most
        assert all(display_width(line) <= width for line in lines[:-1])  # the last is a command, in one line


@pytest.mark.parametrize("brief", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_colour_changes_nothing_but_colour(name: str, brief: bool) -> None:
    plan = load(name)
    coloured = render_plan(plan, 100, color=True, brief=brief)
    assert "\x1b[" in coloured
    assert click.unstyle(coloured) == render_plan(plan, 100, brief=brief)


def test_the_last_line_is_the_next_command() -> None:
    assert render_plan(load("disaggregated")).endswith(
        "Next: pdplan simulate plan/plan.json   # --alternative N: fleet N\n"
    )
    assert next_command(load("colocated")).startswith("pdplan optimize assistant.yaml -o plan")
    assert next_command(load("infeasible")) == (
        "pdplan optimize strict.yaml -o plan --set 'constraints.budget=$49.08/h' "
        "--set accelerators.H200-SXM.inventory=6"
    )


def test_a_limit_to_relax_replaces_the_option_that_set_it() -> None:
    command = "pdplan optimize strict.yaml --set constraints.budget=$9/h --set seed=1"
    assert next_command(with_command(load("infeasible"), command)) == (
        "pdplan optimize strict.yaml --set seed=1 --set 'constraints.budget=$49.08/h' "
        "--set accelerators.H200-SXM.inventory=6"
    )


def test_the_brief_answer_keeps_the_fleet_for_slow_gpus() -> None:
    plan = load("disaggregated")
    dear = max(row.cost_usd_per_hour or 0.0 for row in plan.alternatives) + 1.0
    safe = plan.alternatives[0].model_copy(update={"kind": "safe", "label": "for slow GPUs", "cost_usd_per_hour": dear})
    text = render_plan(plan.model_copy(update={"alternatives": [*plan.alternatives, safe]}), brief=True)
    assert "for slow GPUs" in text
    assert "2 more with -v" in text
