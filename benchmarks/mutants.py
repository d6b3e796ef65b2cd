"""Mutation testing by sample: how many small faults in the product do the tests notice?

    python benchmarks/mutants.py --count 300              costmodel and optimizer, seed 1
    python benchmarks/mutants.py --count 40 --rooms reports --seed 2
    python benchmarks/mutants.py --count 15 --rooms costmodel/step.py costmodel/simulator

A mutant is one changed operator, comparison, constant or branch in a function of the rooms, drawn evenly over all of
them. It runs against the tests whose file names the module, then against the tests of the command line; the first
failure kills it. A mutant that outlives both may still be killed by a test that reaches the module in another way, so
the share printed is a lower bound. Mutants are made in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
LONGEST = 240.0
"""Time that the tests of a mutant may take before it counts as killed by a loop without end [s]."""
LAST = ("tests/test_cli.py",)
"""Tests that every mutant meets in the end."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change: the place of its node in the walk of the file's tree, and what it does there, in words."""

    path: Path
    place: int
    line: int
    words: str


def mutate(node: ast.AST) -> str:
    """Change a node in place; what was done, or empty where the node is none to change."""
    match node:
        case ast.BinOp(op=op) if type(op) in OTHER:
            node.op = OTHER[type(op)]()  # type: ignore[assignment]
            return f"{type(op).__name__} -> {type(node.op).__name__}"
        case ast.BoolOp(op=op):
            node.op = OTHER[type(op)]()  # type: ignore[assignment]
            return f"{type(op).__name__} -> {type(node.op).__name__}"
        case ast.Compare(ops=[op, *_]) if type(op) in OTHER:
            node.ops[0] = OTHER[type(op)]()  # type: ignore[call-overload]
            return f"{type(op).__name__} -> {type(node.ops[0]).__name__}"
        case ast.Constant(value=float() | int() as value) if not isinstance(value, bool):
            node.value = value + 1
            return f"{value} -> {value + 1}"
        case ast.If(test=test) | ast.IfExp(test=test):
            node.test = ast.UnaryOp(op=ast.Not(), operand=test)
            return "if -> if not"
    return ""


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file: nodes inside functions, without annotations, defaults and decorators."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
        for inner in ast.walk(statement)
    }
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in inside and hasattr(node, "lineno"):
            line = node.lineno
            if words := mutate(node):
                yield Mutant(path, place, line, words)


def mutated(mutant: Mutant) -> str:
    """The file's text with the change."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    mutate(next(node for place, node in enumerate(ast.walk(tree)) if place == mutant.place))
    return ast.unparse(ast.fix_missing_locations(tree))


def files_of(room: Path) -> list[Path]:
    """The modules of a package or a folder, or one module."""
    return [room] if room.is_file() else sorted(room.rglob("*.py"))


def tests_of(path: Path) -> list[str]:
    """Test files that name the module, or a helper of the tests that does, the shortest first."""
    package, module = path.relative_to(ROOT).parent.parts, path.stem
    name = rf"\b{'.'.join((*package, module))}\b|from {'.'.join(package)} import (?:\([^)]*|[^\n]*)\b{module}\b"
    texts = {test: test.read_text(encoding="utf-8") for test in ROOT.glob("tests/*.py")}
    helpers = {test.stem for test, text in texts.items() if not test.name.startswith("test_") and re.search(name, text)}
    pattern = re.compile("|".join((name, *(rf"\btests\.{helper}\b" for helper in sorted(helpers)))))
    naming = [test for test, text in texts.items() if test.name.startswith("test_") and pattern.search(text)]
    return [str(test.relative_to(ROOT)) for test in sorted(naming, key=lambda test: test.stat().st_size)]


def survives(mutant: Mutant, checkout: Path) -> bool:
    """Whether the tests pass in a checkout that has the change."""
    target = checkout / mutant.path.relative_to(ROOT)
    target.write_text(mutated(mutant), encoding="utf-8")
    try:
        for tests in filter(None, (tests_of(mutant.path), LAST)):
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            done = subprocess.run(
                command, check=False, cwd=checkout, env=environment, capture_output=True, timeout=LONGEST
            )
            if done.returncode:
                return False
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.copy(mutant.path, target)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--rooms", nargs="+", default=["costmodel", "optimizer"], help="packages, folders or modules")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    flags = parser.parse_args()
    files = [path for room in flags.rooms for path in files_of(ROOT / room)]
    drawn = random.Random(flags.seed).sample([mutant for path in files for mutant in mutants_of(path)], flags.count)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        checkouts = []
        for number in range(flags.processes):
            checkout = Path(folder) / str(number)
            shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv", "site", "*.nbi", "*.nbc"))
            checkouts.append(checkout)

        def survivors(number: int) -> list[Mutant]:
            return [mutant for mutant in drawn[number :: flags.processes] if survives(mutant, checkouts[number])]

        with ThreadPoolExecutor(flags.processes) as pool:
            alive = [mutant for part in pool.map(survivors, range(flags.processes)) for mutant in part]
    for mutant in sorted(alive, key=lambda mutant: (mutant.path, mutant.line)):
        print(f"survived: {mutant.path.relative_to(ROOT)}:{mutant.line} {mutant.words}")
    killed = flags.count - len(alive)
    print(
        f"{killed} of {flags.count} mutants killed ({killed / flags.count:.0%}) in {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
