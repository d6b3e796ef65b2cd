"""The plan for a pull request: its numbers are the plan's, its tables are tables, whatever the names in it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pdplan.cli import cli
from pdplan.console import Console
from reports.views.markdown import escaped, table
from tests.report_cases import NAMES, PLANS, assert_golden, load
from tests.report_cases import markdown_of as render_plan


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_rows_of_one_width(name: str) -> None:
    widths: set[int] = set()
    for line in render_plan(load(name)).splitlines():
        if not line.startswith("|"):
            widths = set()
            continue
        widths.add(line.count("|"))
        assert len(widths) == 1


def test_hostile_names_are_shown_as_text() -> None:
    text = render_plan(load("hostile"))
    outside = text.replace("<details><summary>Reproduce</summary>", "").replace("</details>", "").split("```")
    assert not set("<>@`") & set(outside[0] + outside[2])
    assert not set(text) & set("\u202e\u2066\u2028\u2029\x1b")


def test_long_tables_are_cut_and_say_so() -> None:
    assert table(("a", "#b"), [("x", "1")] * 3, 2) == [
        "| a | b |", "| --- | ---: |", "| x | 1 |", "| x | 1 |", "", "1 more row in plan.json.",
    ]  # fmt: skip


def test_the_command_writes_markdown_by_the_ending_too(tmp_path: Path) -> None:
    plan, target = PLANS / "disaggregated.json", tmp_path / "plan.md"
    runner = CliRunner()
    shown = runner.invoke(cli, ["report", str(plan), "--format", "md"], obj=Console())
    assert (shown.exit_code, shown.output) == (0, render_plan(load("disaggregated")))
    runner.invoke(cli, ["report", str(plan), "-o", str(target)], obj=Console())
    assert target.read_text("utf-8") == shown.output


@pytest.mark.parametrize("name", ["disaggregated", "infeasible", "hostile"])
def test_golden(name: str) -> None:
    assert_golden(f"plan-{name}.md", render_plan(load(name)))


def test_a_share_above_all_that_is_shown_is_readable_as_it_stands() -> None:
    """Raw text of a pull request had `&#62;99.9 %`; only what begins a line is a quotation."""
    assert escaped("kept by >99.9 %") == "kept by >99.9 %"
    assert escaped(">9 and <b>") == "&#62;9 and &#60;b&#62;"
