"""docs/what-if.md shows what the program prints: its commands are run, and words and numbers compared.

PDPLAN_UPDATE_GOLDEN=1 writes the outputs into the page; read the diff.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdplan.cli import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "what-if.md"
TEXT = PAGE.read_text("utf-8")
EXAMPLE = re.compile(r"```console\n\$ (pdplan [^\n]*)\n(.*?)```", re.S)
EXAMPLES = [match.groups() for match in EXAMPLE.finditer(TEXT)]
NUMBER = re.compile(r"-?[\d,]*\.?\d+")


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


@pytest.fixture(autouse=True)
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = re.search(r"```yaml\n(.*?)```", TEXT, re.S)
    assert stated is not None
    (tmp_path / "workload.yaml").write_text(stated.group(1), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command[7:40] for command, _ in EXAMPLES])
def test_the_page_shows_what_the_program_prints(command: str, shown: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(command)[1:], standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0), done.output
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        text, block = PAGE.read_text("utf-8"), f"```console\n$ {command}\n"
        start = text.index(block) + len(block)
        PAGE.write_text(text[:start] + done.stdout + text[text.index("```", start) :], "utf-8")
        return
    assert NUMBER.sub("#", done.stdout).split() == NUMBER.sub("#", shown).split()
    assert numbers(done.stdout) == pytest.approx(numbers(shown), rel=0.01)


def test_every_question_has_an_example() -> None:
    asked = " ".join(command for command, _ in EXAMPLES)
    for flag in ("--vary", "--scenario", "--break-even", "--shadow-prices", "--tornado", "--slack", "--chunk"):
        assert f" {flag} " in asked
    assert re.findall(r"--over (\w+)", asked) == ["isl", "rate", "rate", "ttft", "budget"]
