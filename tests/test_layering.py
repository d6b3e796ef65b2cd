"""Imports go one way, costmodel <- search_spaces <- optimizer <- reports <- pdplan; read in the source, not run."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("costmodel", "search_spaces", "optimizer", "reports", "templates", "pdplan")
MAY_IMPORT = {
    "costmodel": {"numpy", "numba", "llvmlite"},
    "search_spaces": {"costmodel", "numpy", "pydantic", "pydantic_core", "torch", "transformers", "yaml"},
    "optimizer": {"costmodel", "search_spaces", "numpy", "pandas", "pydantic", "ortools", "optuna", "distributed"},
    "reports": {
        "costmodel",
        "search_spaces",
        "optimizer",
        "templates",
        "click",
        "jinja2",
        "markupsafe",
        "numpy",
        "pyarrow",
        "pydantic",
        "yaml",
    },
    "templates": set(),
    "pdplan": {"costmodel", "search_spaces", "optimizer", "reports", "templates", "click", "numpy", "pydantic"},
}
FLOORS = ("plans", "loads", "fleets", "search", "verification", "recommend", "whatif", "procurement")
"""Folders of the optimizer; each imports from those before it."""
SLOW = {"distributed", "optuna", "ortools", "pandas", "pyarrow", "torch", "transformers"}
"""Slow to import, or not installed everywhere: only inside the functions that need them."""


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement's line, the module that it names, its level if relative, and whether it is in a function."""

    line: int
    module: str
    level: int
    inside: bool

    @property
    def name(self) -> str:
        return self.module.partition(".")[0]


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """The import statements of a file, and whether importing the file runs them."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    inside = {id(node) for block in nodes if _runs_later(block) for node in ast.walk(block)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name, 0, id(node) in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(Import(node.lineno, node.module or "", node.level, id(node) in inside))
    return tuple(found)


def _runs_later(node: ast.AST) -> bool:
    """Whether importing the file does not run what is in here."""
    return isinstance(node, ast.FunctionDef) or (
        isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    )


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_what_it_may(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{one.line} imports {one.name}"
        for path in sources(room)
        for one in imports(path)
        if not one.level and one.name not in sys.stdlib_module_names and one.name not in {room, *MAY_IMPORT[room]}
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_relative_imports_stay_in_their_room(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{one.line} climbs {one.level} levels"
        for path in sources(room)
        for one in imports(path)
        if one.level > len(path.relative_to(ROOT).parts) - 1
    ]
    assert not faults


@pytest.mark.parametrize("floor", FLOORS)
def test_folders_of_the_optimizer_build_on_each_other(floor: str) -> None:
    below = {"optimizer." + name for name in FLOORS[: FLOORS.index(floor) + 1]}
    faults = [
        f"{path.relative_to(ROOT)}:{one.line} imports {one.module}"
        for path in (ROOT / "optimizer" / floor).rglob("*.py")
        for one in imports(path)
        if one.module.startswith("optimizer") and ".".join(one.module.split(".")[:2]) not in below
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_slow_packages_load_only_inside_functions(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{one.line} imports {one.name} at module level"
        for path in sources(room)
        for one in imports(path)
        if one.name in SLOW and not one.inside
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()


def test_a_name_stands_for_one_type() -> None:
    """One name for a concept, one concept for a name: no two classes of the product are called alike."""
    places: dict[str, list[str]] = {}
    for path in (path for room in ROOMS for path in sources(room)):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}
