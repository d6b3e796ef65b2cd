"""The terminal summary, against golden text: a changed word is a readable diff.

To accept a change: PDPLAN_UPDATE_GOLDEN=1 pytest tests/test_reports_terminal.py
"""

import os
from pathlib import Path

import click
import pytest

from optimizer.plan import Plan
from reports.terminal import next_command, render_plan
from reports.text import display_width

HERE = Path(__file__).parent
NAMES = ("disaggregated", "colocated", "infeasible", "hostile", "hundred-pools")


def load(name: str) -> Plan:
    return Plan.model_validate_json((HERE / "plans" / f"{name}.json").read_bytes())


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, width: int) -> None:
    text = render_plan(load(name), width)
    golden = HERE / "golden" / f"plan-{name}-{width}.txt"
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_a_screen(name: str) -> None:
    lines = render_plan(load(name), 100).split("\n")
    assert len(lines) <= 46
    assert all(display_width(line) <= 100 for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_colour_changes_nothing_but_colour(name: str) -> None:
    plan = load(name)
    coloured = render_plan(plan, 100, color=True)
    assert "\x1b[" in coloured
    assert click.unstyle(coloured) == render_plan(plan, 100)


def test_a_hostile_name_sends_no_escape_to_the_terminal() -> None:
    text = render_plan(load("hostile"), 100)
    assert not set(text) & set("\x1b\u202e\u2066\u2028")


def test_the_headline_carries_the_signed_difference_to_the_next_fleet() -> None:
    headline = " ".join(render_plan(load("disaggregated"), 100).split("\n")[:2])
    assert "for $49.08/h: -4.1 % against H200-SXM only at $51.20/h." in headline
    assert pytest.approx(-0.0414, abs=1e-4) == 49.08 / 51.20 - 1


def test_the_last_line_is_the_next_command() -> None:
    assert render_plan(load("disaggregated")).endswith("Next: open plan/report.html in a browser\n")
    assert render_plan(load("colocated"), next_step="pdplan deploy").endswith("Next: pdplan deploy\n")
    assert next_command(load("colocated")).startswith("pdplan optimize assistant.yaml -o plan")
    assert next_command(load("infeasible")).startswith("relax a limit in strict.yaml, then pdplan optimize")


def test_an_unfinished_quotation_in_the_command_is_no_error() -> None:
    plan = load("colocated")
    run = plan.provenance.run.model_copy(update={"command": "pdplan optimize 'a.yaml -o out"})
    provenance = plan.provenance.model_copy(update={"run": run})
    assert "out/report.html" in next_command(plan.model_copy(update={"provenance": provenance}))
