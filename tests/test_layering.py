"""Imports go one way, costmodel <- search_spaces <- optimizer <- reports <- pdplan; read in the source, not run."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.words import dollars
from optimizer.fleets.build_plan import amount
from reports.text import hourly, money
from search_spaces.catalog import load_catalog

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("costmodel", "search_spaces", "optimizer", "reports", "templates", "pdplan")
MAY_IMPORT = {
    "costmodel": {"numpy", "numba", "llvmlite"},
    "search_spaces": {"costmodel", "numpy", "pydantic", "pydantic_core", "torch", "transformers", "yaml"},
    "optimizer": {"costmodel", "search_spaces", "numpy", "pandas", "pydantic", "ortools", "optuna", "distributed"},
    "reports": {"costmodel", "search_spaces", "optimizer", "templates"}
    | {"click", "jinja2", "markupsafe", "numpy", "pyarrow", "pydantic", "yaml"},
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
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """The import statements of a file, and whether importing the file runs them."""
    nodes = list(ast.walk(parsed(path)))
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


def faults(folder: str, refuses: Callable[[Import, Path], bool]) -> list[str]:
    """The imports of a folder that a rule refuses."""
    read = ((path.relative_to(ROOT), one) for path in sources(folder) for one in imports(path))
    return [f"{path}:{one.line} imports {'.' * one.level}{one.module}" for path, one in read if refuses(one, path)]


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_what_it_may(room: str) -> None:
    """No other package, none by climbing out of the room, and slow ones only inside functions."""
    may = {room, *MAY_IMPORT[room], *sys.stdlib_module_names}
    assert not faults(room, lambda one, _: not one.level and one.name not in may)
    assert not faults(room, lambda one, path: one.level > len(path.parts) - 1)
    assert not faults(room, lambda one, _: one.name in SLOW and not one.inside)


@pytest.mark.parametrize("floor", FLOORS)
def test_folders_of_the_optimizer_build_on_each_other(floor: str) -> None:
    above = tuple(f"optimizer.{name}" for name in FLOORS[FLOORS.index(floor) + 1 :])
    assert not faults(f"optimizer/{floor}", lambda one, _: one.module.startswith(above))


def test_a_name_stands_for_one_type() -> None:
    """One name for a concept, one concept for a name: no two classes of the product are called alike."""
    places: dict[str, list[str]] = {}
    for path in (path for room in ROOMS for path in sources(room)):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


# --- dollars and percentages have one form, whichever room writes them: half a cent goes up, a blank stands before %

PRICES = sorted({one.price.usd_per_hour for one in load_catalog().accelerators.values()})
HALF_CENTS = [price for price in PRICES if round(1000.0 * price) % 10 == 5]
WITHOUT_BLANK = re.compile(r"\d%")
ASKED = re.compile(r"^\$ .*$|`[^`]*`", re.M)
"""What a user types, where 5% is a share: commands, and code inside a sentence."""
OWN_ROUNDING = re.compile(r"\$\{[^{}]*:[,.\d]*f\}|:[-+,.<>\d]*%\}")
"""A format of dollars or of a percentage that is not the common one."""


def in_cents(exact: Decimal) -> str:
    return f"${exact.quantize(Decimal('0.01'), ROUND_HALF_UP):,}"


def test_a_fleets_price_is_rounded_alike_however_it_was_added_up() -> None:
    """Every price of the catalog bought 1 to 32 times with every one that has half cents, by product and by sum."""
    for price, other in itertools.product(PRICES, HALF_CENTS):
        total = 0.0
        for number in range(1, 33):
            total += price
            exact = Decimal(repr(price)) * number + Decimal(repr(other))
            if not Decimal("0.1") < exact < Decimal("999.99"):
                continue
            expected = in_cents(exact)
            assert {dollars(number * price + other), dollars(other + total)} == {expected}
            assert amount(total + other, "$/h") == hourly(number * price + other) == f"{expected}/h"


@given(st.decimals("0.1", "999.994", places=3), st.booleans())
def test_halves_go_up_on_the_decimals_that_are_read(exact: Decimal, below: bool) -> None:
    assert money(-float(exact) if below else float(exact)) == ("-" if below else "") + in_cents(exact)


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_rounds_dollars_or_percentages_itself(room: str) -> None:
    found = {(str(path), line) for path in sources(room) for line in OWN_ROUNDING.findall(path.read_text("utf-8"))}
    assert found == set()


GOLDEN = [
    path
    for path in sorted((ROOT / "tests/golden").rglob("*.*"))
    if not path.name.startswith("help-") and path.name != "workload_faults.txt"  # these show how shares are typed
]
SHOWN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *GOLDEN]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_golden_output_and_page_has_the_blank(path: Path) -> None:
    assert WITHOUT_BLANK.findall(ASKED.sub("", path.read_text("utf-8"))) == []
