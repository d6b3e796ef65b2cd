"""The documentation says what is so: names exist, links lead somewhere, CI runs the README's own test command."""

from __future__ import annotations

import ast
import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.house import PACKAGES, modules
from benchmarks.room_picture import PICTURE, picture
from pdplan.cli import cli
from pdplan.console import Console
from search_spaces.catalog import load_catalog
from search_spaces.loader import load_problem
from search_spaces.serving_error import shipped_errors
from tests.running import tiny

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text("utf-8")


def test_every_name_of_the_nomenclature_is_used() -> None:
    page = (ROOT / "docs/theory/nomenclature.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*\| ((?:`\w+`(?:, )?)+) \|", page, re.M)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) > 50
    nodes = (node for module in modules(ROOT, PACKAGES) for node in ast.walk(module.tree))
    used = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "arg", "name")}
    assert sorted(set(names) - used) == []


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_every_function_that_the_method_names_exists() -> None:
    text = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "theory").glob("*.md"))
    for dotted in set(re.findall(r"\b(?:costmodel|search_spaces|optimizer)(?:\.\w+)+", text)):
        module, _, name = dotted.rpartition(".")
        source = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        defined = {node.name for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
        assert name in defined, dotted


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: lower case, without punctuation, with hyphens for blanks."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8"))
    for target, anchor in links:
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


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


def yaml_of_readme(first_key: str) -> str:
    return next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.S) if block.startswith(f"{first_key}:"))


def test_workload_of_the_readme_is_one(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(yaml_of_readme("name"), "utf-8")
    problem = load_problem(path)
    inventories = {offer.accelerator.name: offer.inventory for offer in problem.offers}
    assert inventories == {"A100-80": None, "H100": 32, "H200": None}
    assert (problem.workload.request_rate, problem.constraints.budget, problem.offers[1].usd_per_hour) == (10, 100, 2.5)


def test_catalog_of_the_readme_is_one(tmp_path: Path) -> None:
    path = tmp_path / "my-gpus.yaml"
    path.write_text(yaml_of_readme("accelerators"), "utf-8")
    catalog = load_catalog(path)
    assert catalog.accelerator("H100").price.usd_per_hour == 2.1
    assert catalog.accelerator("MyCard").bandwidth == 4e12


def command_lines(text: str) -> list[list[str]]:
    """The words of every pdplan command in the shell blocks of a page."""
    lines = [line for block in re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S) for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("pdplan ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_page_can_be_parsed(page: Path) -> None:
    for name, *words in command_lines(page.read_text("utf-8")):
        if name == "--version":
            continue
        cli.commands[name].make_context(name, words, obj=Console())


def test_python_of_the_readme_runs(
    short_runs: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a problem that is smaller than the example of that name, and simulated for a shorter time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    tiny(tmp_path / "examples").rename(tmp_path / "examples" / "chat.yaml")
    code = re.search(r"```python\n(.*?)```", README, re.S)
    exec(compile(code.group(1), "README.md", "exec"), {})
    assert re.match(r" +role accelerator .*\n\S+ .* H100 ", capsys.readouterr().out)


# --- the appendix on accuracy says what the catalog's record of errors says, which a report shows under Trust


def test_the_table_by_accelerator_is_the_catalogs_record() -> None:
    page = (ROOT / "docs" / "appendix" / "accuracy.md").read_text("utf-8")
    text = page.split("## By accelerator and mode")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    section = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    record = shipped_errors()["held_out_on"]
    assert len(section) == len(record) > 20
    for cells, one in zip(section, record, strict=True):
        named = [one["accelerator"], one["mode"], one.get("engine", "any"), one.get("model", "any"), str(one["rows"])]
        assert cells[:5] == named
        assert [float(cell.removesuffix(" %")) for cell in cells[5:]] == pytest.approx(
            [one[f"{name}_pct"] for name in ("ttft_median_abs", "ttft_bias", "tpot_median_abs", "tpot_bias")], abs=0.05
        )


# --- docs/architecture.md shows the code as it is: the picture of the imports, and where the types live

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
TYPES = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.M)


def test_the_picture_shows_the_imports() -> None:
    """PDPLAN_UPDATE_GOLDEN=1 draws it anew, as `python benchmarks/room_picture.py` does."""
    drawn = picture()
    if os.environ.get("PDPLAN_UPDATE_GOLDEN"):
        PICTURE.write_text(drawn, "utf-8")
    assert PICTURE.read_text("utf-8") == drawn


def test_every_type_is_in_its_room() -> None:
    assert len(TYPES) > 10
    for name, room in TYPES:
        sources = (path.read_text("utf-8") for path in (ROOT / room).rglob("*.py"))
        assert any(f"\nclass {name}" in source for source in sources), f"{room} has no {name}"


# --- the list of benchmarks is complete, and the commands that the documentation names exist

BENCHMARKS = ROOT / "benchmarks"
COMMAND = re.compile(r"python (?:(benchmarks/\w+\.py)|-m (benchmarks(?:\.\w+)+))")


def test_every_benchmark_is_in_the_list() -> None:
    listed = (BENCHMARKS / "README.md").read_text("utf-8")
    scripts = [path.name for path in BENCHMARKS.glob("*.py")]
    studies = [f"benchmarks.studies.{path.stem}" for path in (BENCHMARKS / "studies").glob("[!_]*.py")]
    studies[studies.index("benchmarks.studies.common")] = "studies/common.py"
    assert [name for name in (*scripts, *studies) if name not in listed] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda path: path.name)
def test_every_benchmark_that_a_page_names_is_there(page: Path) -> None:
    for script, module in COMMAND.findall(page.read_text("utf-8")):
        path = ROOT / (script or module.replace(".", "/") + ".py")
        assert path.is_file() or (path.with_suffix("") / "__main__.py").is_file(), f"{page.name}: {script or module}"
