"""Tables on narrow terminals: every line within them, every number whole."""

from __future__ import annotations

import pytest

from pdplan.cli import run
from reports.numbers import money
from reports.text import display_width
from tests.report_cases import load, simulated, with_sensitivity
from tests.report_cases import text_of as render_plan

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
    text = render_plan(plan, width).partition("\nNext: ")[0]  # a command is one line
    assert too_wide(text, width) == []
    dearest = sorted(plan.pools, key=lambda pool: -pool.usd_per_hour)[:3]
    assert all(money(pool.usd_per_hour) in text for pool in dearest)
