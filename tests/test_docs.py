"""The documentation says what is so: names exist, links lead somewhere, CI runs the README's own test command."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdplan.cli import cli

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("costmodel", "search_spaces", "optimizer", "reports", "pdplan")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text("utf-8")


def identifiers() -> set[str]:
    """Every name that our sources define or pass."""
    names: set[str] = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Name):
                    names.add(node.id)
                elif isinstance(node, ast.Attribute):
                    names.add(node.attr)
                elif isinstance(node, ast.arg | ast.keyword) and node.arg:
                    names.add(node.arg)
    return names


def test_every_name_of_the_nomenclature_is_used() -> None:
    rows = re.findall(r"^\|[^|]*\| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs/nomenclature.md").read_text("utf-8"), re.M)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) > 50
    assert sorted(set(names) - identifiers()) == []


def test_every_function_that_the_method_names_exists() -> None:
    text = (ROOT / "docs/method.md").read_text("utf-8")
    for dotted in set(re.findall(r"\b(?:costmodel|search_spaces|optimizer)(?:\.\w+)+", text)):
        module, _, name = dotted.rpartition(".")
        source = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        defined = {node.name for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
        assert name in defined, dotted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    last = (ROOT / ".ci/run").read_text("utf-8").strip().splitlines()[-1]
    assert last in README


def test_readme_lists_every_command_and_exit_code() -> None:
    listed = CliRunner().invoke(cli, ["--help"]).output
    for command in cli.commands:
        assert f"`pdplan {command}" in README
        assert f"\n  {command} " in listed
    for code in (0, 2, 3, 70, 130):
        assert re.search(rf"^\| {code} \|", README, re.M)
