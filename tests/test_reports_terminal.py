"""The terminal summary, against golden text: a changed word is a readable diff."""

from __future__ import annotations

import math

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplan.cli import run
from reports.document import Column
from reports.text import (
    clean,
    display_width,
    duration,
    fit,
    hourly,
    money,
    percent,
    rate,
    signed_percent,
    significant,
    wrap,
)
from reports.views import render_table
from tests.golden_files import assert_golden
from tests.report_cases import NAMES, load, simulated, text_of, with_sensitivity


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, width: int) -> None:
    assert_golden(f"plan-{name}-{width}.txt", text_of(load(name), width, brief=True))


@pytest.mark.parametrize("name", NAMES)
def test_golden_of_the_whole_answer(name: str) -> None:
    assert_golden(f"plan-{name}-whole.txt", text_of(load(name), 100))


@pytest.mark.parametrize("name", ["disaggregated", "colocated", "infeasible"])
def test_the_brief_answer_fits_a_screen(name: str) -> None:
    for width in (80, 100, 140):
        lines = text_of(load(name), width, brief=True).splitlines()
        assert len(lines) <= 25
        assert all(display_width(line) <= width for line in lines[:-1])  # the last is a command, in one line


@pytest.mark.parametrize("brief", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_colour_changes_nothing_but_colour(name: str, brief: bool) -> None:
    plan = load(name)
    coloured = text_of(plan, 100, color=True, brief=brief)
    assert "\x1b[" in coloured
    assert click.unstyle(coloured) == text_of(plan, 100, brief=brief)


def test_the_brief_answer_keeps_the_fleet_for_slow_gpus() -> None:
    plan = load("disaggregated")
    dear = max(row.cost_usd_per_hour or 0.0 for row in plan.alternatives) + 1.0
    safe = plan.alternatives[0].model_copy(update={"kind": "safe", "label": "for slow GPUs", "cost_usd_per_hour": dear})
    text = text_of(plan.model_copy(update={"alternatives": [*plan.alternatives, safe]}), brief=True)
    assert "for slow GPUs" in text
    assert "-v shows 2 more alternatives." in text


# --- tables on narrow terminals: every line within them, every number whole

WIDTHS = (60, 80)
COMMANDS = {
    "gpus": ["gpus"],
    "gpu": ["gpus", "B200"],
    "models": ["models"],
    "model": ["models", "gpt-oss-120b"],
    "estimate": ["estimate", "--model", "Llama-3.1-70B", "--gpu", "H100", "--tp", "4"],
}


def too_wide(text: str, width: int) -> list[str]:
    return [line for line in text.splitlines() if display_width(line) > width]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_keeps_within_the_terminal_and_cuts_nothing(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(COMMANDS[name]) == 0
    out = capsys.readouterr().out
    assert too_wide(out, width) == []
    assert "…" not in out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["disaggregated", "colocated", "hundred-pools"])
def test_a_plan_keeps_within_the_terminal(name: str, width: int) -> None:
    plan = with_sensitivity(simulated(load(name)))
    text = text_of(plan, width).partition("\nNext: ")[0]  # a command is one line
    assert too_wide(text, width) == []
    dearest = sorted(plan.pools, key=lambda pool: -pool.usd_per_hour)[:3]
    assert all(money(pool.usd_per_hour) in text for pool in dearest)


# --- text tables stay aligned and within their width, whatever the cells hold

CELL = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=30).map(clean)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=6), st.integers(20, 90))
def test_every_line_fits_and_columns_start_together(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [Column("first", shrink=True), Column("second"), Column("third", "right")]
    lines, one = render_table(rows, columns, width).split("\n"), 1 + len(rows)
    assert len(lines) in {one, 2 * one + 1}  # in one table, or in two with a blank line between them
    assert all(display_width(line) <= width for line in lines)


def test_tables_below_each_other_all_have_the_columns_that_say_which_row_it_is() -> None:
    columns = [Column("req/s", "right"), Column("class", beside=True), *(Column(f"quantiles {n}") for n in range(4))]
    rows = [["5", name, *(["100/200/300 ms"] * 4)] for name in ("chat", "batch")]
    tables = render_table(rows, columns, 60).split("\n\n")
    assert len(tables) == 2
    assert all(name in table for table in tables for name in ("chat", "batch"))


def test_columns_without_room_stand_below_each_other_with_no_number_cut() -> None:
    rows = [["H100", "1,979.25", "12,345.67", "999"], ["B200", "4,500.00", "98,765.43", "1,000"]]
    columns = [Column("GPU"), *(Column(name, "right") for name in ("fp8", "all", "W"))]
    assert render_table(rows, columns, 16).split("\n") == [
        "GPU        fp8",
        "H100  1,979.25",
        "B200  4,500.00",
        "",
        "GPU         all",
        "H100  12,345.67",
        "B200  98,765.43",
        "",
        "GPU       W",
        "H100    999",
        "B200  1,000",
    ]
    assert "\n\n" not in render_table(rows, columns, 40)


@given(st.text(st.characters(codec="utf-8", categories=("L", "Zs")), max_size=200), st.integers(5, 60))
def test_wrapped_and_fitted_lines_fit(text: str, width: int) -> None:
    text = clean(text, 200)
    assert all(display_width(line) <= width for line in wrap(text, width))
    assert display_width(fit(text, width)) <= width


# --- numbers are rounded once, in one place, and never lie: no -0, no rounding to all or nothing, no NaN

WRITERS = (duration, hourly, money, percent, rate, signed_percent, significant)


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_not_known_is_a_dash(write) -> None:
    assert write(None) == "–"
    assert write(math.nan) == "–"
    assert write(math.inf) == "∞"


@given(st.floats(-1e12, 1e12))
def test_minus_zero_and_exponents_are_never_written(value: float) -> None:
    for write in WRITERS:
        text = write(value)
        assert not text.startswith("-0 ")
        assert text not in {"-0", "-$0", "-0 s", "-0 %"}
        assert "e+" not in text


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_share_between_is_never_written_as_all_or_nothing(share: float) -> None:
    assert percent(share) not in {"0 %", "100 %"}
