"""The list of benchmarks is complete, and the commands that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), BENCHMARKS / "README.md"])
COMMAND = re.compile(r"python (?:(benchmarks/\w+\.py)|-m (benchmarks(?:\.\w+)+))")


def test_every_benchmark_is_in_the_list() -> None:
    listed = (BENCHMARKS / "README.md").read_text("utf-8")
    scripts = [path.name for path in BENCHMARKS.glob("*.py")]
    studies = [f"benchmarks.studies.{path.stem}" for path in (BENCHMARKS / "studies").glob("[!_]*.py")]
    studies[studies.index("benchmarks.studies.common")] = "studies/common.py"
    assert [name for name in (*scripts, *studies) if name not in listed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_benchmark_that_a_page_names_is_there(page: Path) -> None:
    for script, module in COMMAND.findall(page.read_text("utf-8")):
        path = ROOT / (script or module.replace(".", "/") + ".py")
        assert path.is_file() or (path.with_suffix("") / "__main__.py").is_file(), f"{page.name}: {script or module}"
