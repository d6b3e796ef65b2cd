"""Mutation testing by sample: how many small faults in the product do the tests notice?

    python benchmarks/mutants.py --count 300              costmodel and optimizer, seed 1
    python benchmarks/mutants.py --count 40 --rooms reports --seed 2
    python benchmarks/mutants.py --count 15 --rooms costmodel/step.py costmodel/simulator
    python benchmarks/mutants.py --count 60 --seconds 60  at least so many are killed: no mutant meets all its tests

A mutant is one changed operator, comparison, constant or branch in a function of the rooms, drawn evenly over all of
them. It meets every test file that runs its statement, the quickest first; a failure kills it. A first run of all
tests shows which files these are: there a mark stands before the statement of every mutant. Compiled code takes no
marks: its mutants meet every file that simulates. All this happens in copies of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

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
LAST = "tests/test_cli.py"
"""The tests that a mutant meets whose statement no test runs."""
LOOP = "costmodel/simulator/run.py", "simulate"
"""The function that starts the compiled loop, and its file."""
COMPILED = {"compiled", "entry"}
"""Decorators of functions that are compiled."""
MARKS = '''"""Which test files run the statement of which mutant: lines of marks.txt."""

import os
from pathlib import Path

SEEN = set()


def mark(number: int) -> None:
    line = f"{number} {os.environ.get('PYTEST_CURRENT_TEST', '').partition('::')[0]}\\n"
    if line not in SEEN:
        SEEN.add(line)
        with Path(__file__).with_suffix(".txt").open("a") as marks:
            marks.write(line)
'''


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change: the places of its node and of that node's statement in the walk of the file's tree, and its words.

    statement: -1 where the function is compiled.
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
    places = {id(node): place for place, node in enumerate(ast.walk(tree))}
    begin = {
        id(inner): -1 if COMPILED & {ast.unparse(name) for name in function.decorator_list} else places[id(statement)]
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


def marked(path: Path, marks: dict[int, int]) -> str:
    """The file's text with marks before statements, by the place of the statement."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    numbers = {id(node): marks[place] for place, node in enumerate(ast.walk(tree)) if place in marks}
    for node in list(ast.walk(tree)):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for statement in [item for item in block if id(item) in numbers] if isinstance(block, list) else ():
                call = ast.parse(f"__import__('marks').mark({numbers[id(statement)]})").body
                block[block.index(statement) : block.index(statement)] = call
    return ast.unparse(ast.fix_missing_locations(tree))


def tests_of(drawn: Sequence[Mutant], checkout: Path, processes: int) -> tuple[list[list[str]], dict[str, float]]:
    """The test files that run the statement of each mutant, the quickest first, and how long each takes [s]."""
    marks: dict[Path, dict[int, int]] = defaultdict(dict)
    number_of: dict[tuple[Path, int], int] = {}
    for mutant in drawn:
        key = (mutant.path, mutant.statement)
        marks[mutant.path][mutant.statement] = number_of.setdefault(key, len(number_of))
    loop = ast.parse((ROOT / LOOP[0]).read_text(encoding="utf-8"))
    start = next(node for node in loop.body if isinstance(node, ast.FunctionDef) and node.name == LOOP[1]).body[-1]
    place = next(place for place, node in enumerate(ast.walk(loop)) if node is start)
    simulates = marks[ROOT / LOOP[0]].setdefault(place, len(number_of))
    for path, places in marks.items():
        (checkout / path.relative_to(ROOT)).write_text(marked(path, places), encoding="utf-8")
    (checkout / "marks.py").write_text(MARKS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes), "--durations=0"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run([*command, "-vv"], check=False, cwd=checkout, env=environment, capture_output=True, text=True)
    print(done.stdout.splitlines()[-1], flush=True)
    seconds: dict[str, float] = defaultdict(float)
    for time_taken, name in re.findall(r"^([0-9.]+)s (?:call|setup|teardown) +([^:\s]+)", done.stdout, re.MULTILINE):
        seconds[name] += float(time_taken)
    runs: dict[int, set[str]] = defaultdict(set)
    for line in (checkout / "marks.txt").read_text().splitlines():
        number, _, test = line.partition(" ")
        runs[int(number)] |= {test} & seconds.keys()
    for path in marks:
        shutil.copy(path, checkout / path.relative_to(ROOT))
    numbers = [simulates if mutant.statement < 0 else number_of[mutant.path, mutant.statement] for mutant in drawn]
    return [sorted(runs[number], key=seconds.__getitem__) or [LAST] for number in numbers], seconds


def pytest(checkout: Path, tests: Sequence[str]) -> str:
    """The first test that fails in a checkout, all files in one process; empty where all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    limit = LONGEST * (1 + len(tests))
    try:
        done = subprocess.run(command, check=False, cwd=checkout, env=environment, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return ""
    return next((line for line in done.stdout.decode().splitlines() if line.startswith(("FAILED", "ERROR"))), "ERROR")


def killer(mutant: Mutant, checkout: Path, tests: Sequence[str]) -> str:
    """The first test that fails in a checkout that has the change; empty where it survives."""
    path = mutant.path.relative_to(ROOT)
    (checkout / path).write_text(mutated(mutant), encoding="utf-8")
    try:
        groups = (tests[begin:end] for begin, end in pairwise((0, *GROUPS, len(tests))) if begin < len(tests))
        return next(filter(None, (pytest(checkout, group) for group in groups)), "")
    finally:
        shutil.copy(mutant.path, checkout / path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--rooms", nargs="+", default=["costmodel", "optimizer"], help="packages, folders or modules")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of tests that each mutant meets at most")
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
        tests, seconds = tests_of(drawn, checkouts[0], flags.processes)

        def survivors(number: int) -> list[Mutant]:
            alive = []
            for mutant, met in list(zip(drawn, tests, strict=True))[number :: flags.processes]:
                total = accumulate(seconds[test] for test in met)
                affordable = [test for test, spent in zip(met, total, strict=True) if spent <= flags.seconds]
                test = killer(mutant, checkouts[number], affordable or met[:1])
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
