"""docs/buying.md shows what the program prints: its commands are run in order, and words and numbers compared.

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

PAGE = Path(__file__).resolve().parent.parent / "docs" / "buying.md"
EXAMPLE = re.compile(r"```console\n\$ (pdplan [^\n]*)\n(.*?)```", re.S)
NUMBER = re.compile(r"-?[\d,]*\.?\d+")
RULE = re.compile(r"^[- ]+$", re.M)
QUIET = "optimize"
"""The command whose output is long and shown elsewhere."""


def words(text: str) -> list[str]:
    return NUMBER.sub("#", RULE.sub("", text)).split()


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(RULE.sub("", text))]


def test_the_page_shows_what_the_program_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text("utf-8")
    for name, content in re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.S):
        (tmp_path / name).write_text(content, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    asked = EXAMPLE.findall(text)
    assert [shlex.split(command)[1] for command, _ in asked] == ["buy", "optimize", "autoscale", "resilience"]
    for command, shown in asked:
        done = CliRunner().invoke(cli, shlex.split(command)[1:], standalone_mode=False)
        assert done.exception is None, done.output
        assert done.return_value in ({3} if " resilience " in command else {0, None})
        if QUIET in command:
            continue
        if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
            block = f"```console\n$ {command}\n"
            start = text.index(block) + len(block)
            text = text[:start] + done.stdout + text[text.index("```", start) :]
            PAGE.write_text(text, "utf-8")
            continue
        assert words(done.stdout) == words(shown)
        assert numbers(done.stdout) == pytest.approx(numbers(shown), rel=0.02, abs=0.1)
