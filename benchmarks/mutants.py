"""Mutation testing by sample: how many small faults in the product do the tests notice?

    python benchmarks/mutants.py --count 300              costmodel and optimizer, seed 1
    python benchmarks/mutants.py --count 40 --rooms reports --seed 2
    python benchmarks/mutants.py --count 15 --rooms costmodel/step.py costmodel/simulator
    python benchmarks/mutants.py --count 60 --nearest 12  without `coverage`: at least so many are killed

A mutant is one changed operator, comparison, constant or branch in a function of the rooms, drawn evenly over all of
them. It meets its module's doctests and every test file that runs its statement, the quickest first; a failure kills
it. Which file runs which statement is measured once with `coverage` (`pip install coverage`; three times as long as the
tests take) and kept in --lines FILE. Compiled code is not traced: a statement of the simulator that no file runs meets
every file that simulates. Nor are tests in a process of their own: any other meets the tests of the command line.
With --nearest nothing is measured: a mutant meets the test files that reach its module by the fewest imports, and those
that survive may fall to others. Mutants are made in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from house import PACKAGES, modules

ROOT = Path(__file__).resolve().parents[1]
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
LONGEST = 120.0
"""Time that each test file may take before the mutant counts as killed by a loop without end [s]."""
GROUPS = (4, 13, 41)
"""Ends of the groups of test files that a mutant meets in one process each, the quickest first; then come the rest."""
SIMULATOR = "costmodel/simulator/"
LAST = "tests/test_cli.py"
"""The tests that a mutant meets whose statement no test file runs."""
Lines = dict[str, dict[str, list[int]]]
"""First lines of the statements that a test file runs, by test file, the quickest first, and by module."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change: the place of its node in the walk of the file's tree, and what it does there, in words.

    statement: line on which the statement of the node begins.
    """

    path: Path
    place: int
    line: int
    statement: int
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
    begin = {
        id(inner): statement.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for top in function.body
        for statement in ast.walk(top)  # outer ones first, so that the innermost stays
        if isinstance(statement, ast.stmt)
        for inner in ast.walk(statement)
    }
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in begin and hasattr(node, "lineno"):
            line = node.lineno
            if words := mutate(node):
                yield Mutant(path, place, line, begin[id(node)], words)


def mutated(mutant: Mutant) -> str:
    """The file's text with the change."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    mutate(next(node for place, node in enumerate(ast.walk(tree)) if place == mutant.place))
    return ast.unparse(ast.fix_missing_locations(tree))


def files_of(room: Path) -> list[Path]:
    """The modules of a package or a folder, or one module."""
    return [room] if room.is_file() else sorted(room.rglob("*.py"))


def lines_run(checkout: Path) -> Lines:
    """Run every test file under `coverage`. Each runs in a process of its own, as it does in parallel."""
    seconds, lines = {}, {}
    for test in sorted(checkout.glob("tests/test_*.py")):
        name, data = str(test.relative_to(checkout)), checkout / ".lines"
        start = time.perf_counter()
        pytest(checkout, [name], "-m", "coverage", "run", f"--data-file={data}")
        seconds[name] = time.perf_counter() - start
        out = checkout / ".lines.json"
        report = [sys.executable, "-m", "coverage", "json", f"--data-file={data}", "-q", "-o", str(out)]
        subprocess.run(report, check=True, cwd=checkout, capture_output=True)
        files = json.loads(out.read_text())["files"]
        lines[name] = {path: file["executed_lines"] for path, file in files.items() if file["executed_lines"]}
        print(f"{name}: {seconds[name]:.0f} s", file=sys.stderr)
    return {name: lines[name] for name in sorted(lines, key=seconds.__getitem__)}


def nearest(count: int) -> dict[str, list[str]]:
    """The test files that reach each module by the fewest imports, the smaller first of those as near."""
    house = {module.name: module for module in modules(ROOT, (*PACKAGES, "tests", "benchmarks"))}
    imports = {name: module.imports(set(house)) for name, module in house.items()}
    places = {name: str(module.path.relative_to(ROOT)) for name, module in house.items()}
    near: dict[str, list[tuple[int, int, str]]] = {place: [] for place in places.values()}
    for test in (name for name in house if name.startswith("tests.test_")):
        steps, front = {test: 0}, [test]
        for name in front:  # grows while it is walked through
            new = sorted(imports[name] - steps.keys())
            steps |= dict.fromkeys(new, steps[name] + 1)
            front += new
        for name, number in steps.items():
            near[places[name]].append((number, len(house[test].text), places[test]))
    return {place: [test for *_, test in sorted(tests)[:count]] for place, tests in near.items()}


def pytest(checkout: Path, tests: Sequence[str], *runner: str) -> str:
    """The first test that fails in a checkout, all files in one process; empty where all pass."""
    command = [sys.executable, *runner, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    limit = LONGEST * (1 + len(tests))
    try:
        done = subprocess.run(command, check=False, cwd=checkout, env=environment, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode in (0, 5):  # 5: a module without doctests
        return ""
    return next((line for line in done.stdout.decode().splitlines() if line.startswith(("FAILED", "ERROR"))), "ERROR")


def simulates(files: dict[str, list[int]]) -> bool:
    """Whether a test file that runs these lines starts the compiled loop."""
    tree = ast.parse((ROOT / SIMULATOR / "run.py").read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "simulate")
    return not {statement.lineno for statement in function.body[1:]}.isdisjoint(files.get(f"{SIMULATOR}run.py", ()))


def tests_of(mutant: Mutant, lines: Lines) -> list[str]:
    """The test files that a mutant meets, the quickest first."""
    path = str(mutant.path.relative_to(ROOT))
    tests = [test for test, files in lines.items() if mutant.statement in files.get(path, ())]
    if not tests and path.startswith(SIMULATOR):
        tests = [test for test, files in lines.items() if simulates(files)]
    return tests or [LAST]


def killer(mutant: Mutant, checkout: Path, tests: Sequence[str]) -> str:
    """The first test that fails in a checkout that has the change; empty where it survives."""
    path = mutant.path.relative_to(ROOT)
    met = [str(path), *tests]  # its doctests first
    (checkout / path).write_text(mutated(mutant), encoding="utf-8")
    try:
        groups = (met[begin:end] for begin, end in pairwise((0, *GROUPS, len(met))) if begin < len(met))
        return next(filter(None, (pytest(checkout, group) for group in groups)), "")
    finally:
        shutil.copy(mutant.path, checkout / path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--rooms", nargs="+", default=["costmodel", "optimizer"], help="packages, folders or modules")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--lines", type=Path, help="JSON of the lines that each test file runs; made where missing")
    parser.add_argument("--nearest", type=int, help="test files that each mutant meets, without measuring lines")
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
        if flags.nearest:
            near = nearest(flags.nearest)
            tests = [near[str(mutant.path.relative_to(ROOT))] or [LAST] for mutant in drawn]
        else:
            stored = flags.lines and flags.lines.exists()
            lines = json.loads(flags.lines.read_text()) if stored else lines_run(checkouts[0])
            if flags.lines and not stored:
                flags.lines.write_text(json.dumps(lines))
            tests = [tests_of(mutant, lines) for mutant in drawn]

        def survivors(number: int) -> list[Mutant]:
            alive = []
            for mutant, met in list(zip(drawn, tests, strict=True))[number :: flags.processes]:
                test = killer(mutant, checkouts[number], met)
                alive += [mutant] * (not test)
                print(f"{mutant.path.relative_to(ROOT)}:{mutant.line} {mutant.words}: {test or 'SURVIVED'}", flush=True)
            return alive

        with ThreadPoolExecutor(flags.processes) as pool:
            killed = flags.count - sum(map(len, pool.map(survivors, range(flags.processes))))
    print(
        f"{killed} of {flags.count} mutants killed ({killed / flags.count:.0%}) in {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
