"""The pages of docs/ show what the program prints: their commands are run in order, and words and numbers compared.

A page's files are examples/ and its YAML blocks that begin with `# NAME.yaml`; a page of docs/appendix also has those
of the page of its name. `| head -N` shows the first lines. PDPLAN_UPDATE_GOLDEN=1 writes the outputs into the pages;
read the diff.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdplan.cli import cli

DOCS = Path(__file__).resolve().parent.parent / "docs"
SAMPLE = re.compile(r"```console\n\$ (pdplan [^\n]*)\n(.*?)```", re.S)
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if SAMPLE.search(page.read_text("utf-8"))]
NUMBER = re.compile(r"-?[\d,]*\.?\d+")
EXIT_CODES = {"resilience": 3}
"""What the samples of a command end with, if not with 0: the loss of a replica breaks an SLO."""


def words(text: str) -> list[str]:
    return NUMBER.sub("#", re.sub(r"^[- ]+$", "", text, flags=re.M)).split()


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def output(command: str) -> str:
    """What a command of a page prints."""
    line, _, head = command.partition(" | head -")
    arguments = shlex.split(line)[1:]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, done.output
    assert (done.return_value or 0) == EXIT_CODES.get(arguments[0], 0), done.output
    return "".join(done.stdout.splitlines(keepends=True)[: int(head) if head else None])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_page_shows_what_the_program_prints(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (DOCS / page.name, page):
        text = source.read_text("utf-8") if source.exists() else ""
        for name, content in re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", text, re.S):
            (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        page.write_text(SAMPLE.sub(lambda sample: f"```console\n$ {sample[1]}\n{output(sample[1])}```", text), "utf-8")
        return
    for command, shown in SAMPLE.findall(text):
        printed = output(command)
        assert words(printed) == words(shown)
        assert numbers(printed) == pytest.approx(numbers(shown), rel=0.01, abs=0.1)


def test_every_question_has_a_sample() -> None:
    commands = " ".join(command for page in PAGES for command, _ in SAMPLE.findall(page.read_text("utf-8")))
    for option in ("--vary", "--scenario", "--break-even", "--shadow-prices", "--slack", "--chunk"):
        assert f" {option} " in commands
    for name in ("buy", "autoscale", "resilience", "frontier", "map"):
        assert f"pdplan {name} " in commands
