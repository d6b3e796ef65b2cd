"""Imports go one way, costmodel <- search_spaces <- optimizer <- reports <- pdplan; read in the source, not run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("costmodel", "search_spaces", "optimizer", "reports", "templates", "pdplan")
MAY_IMPORT = {
    "costmodel": {"numpy"},
    "search_spaces": {"costmodel", "numpy", "pydantic", "pydantic_core", "yaml"},
    "optimizer": {"costmodel", "search_spaces", "numpy", "pydantic", "ortools", "optuna", "distributed"},
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
FLOORS = (
    "plans",
    "loads",
    "solver",
    "fleets",
    "rivals",
    "verification",
    "recommend",
    "whatif",
    "procurement",
)
"""Folders of the optimizer; each imports from those before it."""
SLOW = {"distributed", "optuna", "ortools", "pyarrow"}
"""Slow to import, or not installed everywhere: only inside the functions that need them."""


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str, int]]:
    """Every import as (statement, top-level name, level of a relative import)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name.partition(".")[0], 0
        elif isinstance(node, ast.ImportFrom):
            yield node, (node.module or "").partition(".")[0], node.level


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_what_it_may(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
        for path in sources(room)
        for node, name, level in imports(ast.parse(path.read_text("utf-8")))
        if not level and name != room and name not in sys.stdlib_module_names and name not in MAY_IMPORT[room]
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_relative_imports_stay_in_their_room(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno} climbs {level} levels"
        for path in sources(room)
        for node, _name, level in imports(ast.parse(path.read_text("utf-8")))
        if level > len(path.relative_to(ROOT).parts) - 1
    ]
    assert not faults


@pytest.mark.parametrize("floor", FLOORS)
def test_folders_of_the_optimizer_build_on_each_other(floor: str) -> None:
    below = {"optimizer." + name for name in FLOORS[: FLOORS.index(floor) + 1]}
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}"
        for path in (ROOT / "optimizer" / floor).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("optimizer")
        and ".".join((node.module or "").split(".")[:2]) not in below
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_slow_packages_load_only_inside_functions(room: str) -> None:
    faults = []
    for path in sources(room):
        tree = ast.parse(path.read_text("utf-8"))
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            or (
                isinstance(function, ast.If) and ast.unparse(function.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            )
            for node in ast.walk(function)
        }
        faults += [
            f"{path.relative_to(ROOT)}:{node.lineno} imports {name} at module level"
            for node, name, _level in imports(tree)
            if name in SLOW and id(node) not in inside
        ]
    assert not faults


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "pdplan"])
def test_only_the_command_line_prints(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(room)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_only_the_outermost_frame_catches_everything(room: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(room)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and path != ROOT / "pdplan" / "cli.py"
    ]
    assert not faults


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()
