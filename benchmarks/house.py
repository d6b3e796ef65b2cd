"""Measures a code base as a house: lines, files, import chains, functions, names; ours or any other checkout.

    python benchmarks/house.py [--constants ROOM] [CHECKOUT [PACKAGE ...]]

PACKAGE: top-level packages to read; by default pdplan's six. Only imports at the top of a module count, since they are
what a reader must know to understand it. A name is vague where it is, as a whole, a pronoun or a participle.

Also how many numbers are tuned (`tuned`) in ROOM, a package or a folder of it, by default optimizer; --constants lists
them all, with the file, the line and the value.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGES = ("costmodel", "search_spaces", "optimizer", "reports", "pdplan", "templates")
VAGUE = re.compile(
    r"_?(one|ones|other|others|some|each|every|both|mine|its|theirs|what|which|who|this|that|same|such|another|beside|"
    r"found|told|known|seen|given|taken|made|done|left|kept|held|shown|said|read|written|chosen|meant|put|lost|won|"
    r"gone|part|parts|[a-z]+ed)"
)
NOUNS = frozenset({"seed", "speed", "need", "feed", "bed", "red", "shared", "embed", "used"})
"""Names that end as participles do and are none, or are the field's word."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
COUNTS, UNITS = (0, 1, 2, 0.5), (10, 100, 1e3, 1e6)
"""Numbers that are counts, signs, halves and doublings; and factors between units, in the bodies of functions."""
ROUNDING = 1e-9
"""Numbers up to this, and from its inverse on, stand for none at all and for no end: they keep floats apart."""
DEFINITIONS = frozenset({"QUANTILES", "ENDS", "CDF_SHARES", "CARRIED", "DAY", "LARGEST", "SEEDS", "CONFIDENCE"}) | {
    "GOALS",
    "LOADS",
    "CURVE",
}
"""Constants that only say what is shown (percentiles, rates of a curve), or what a word means: no plan hangs on them.
"""
NUMBERED = ("round", "percentage", "default_rng", "range", "zeros", "ones", "take")
"""Functions whose numbers are digits, seeds, shapes and places."""


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, text and syntax tree."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """What is written in it."""
        return self.path.read_text("utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @property
    def functions(self) -> list[Function]:
        """All functions and methods."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    def imports(self, known: set[str]) -> set[str]:
        """Modules among `known` that it imports at its top."""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                below = {f"{module}.{alias.name}" for alias in node.names} & known
                names |= below or {module}
        return (names & known) - {self.name}


@cache
def modules(root: Path, packages: tuple[str, ...]) -> list[Module]:
    """All modules of the packages, read once."""
    found = []
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def longest_chain(house: list[Module]) -> list[str]:
    """The longest way from a module along imports; a circle ends where it began."""
    known = {module.name for module in house}
    imports = {module.name: module.imports(known) for module in house}
    chains: dict[str, list[str]] = {}

    def chain(name: str, above: tuple[str, ...]) -> list[str]:
        if name not in chains:
            ways = [chain(other, (*above, name)) for other in sorted(imports[name]) if other not in (*above, name)]
            chains[name] = [name, *max(ways, key=len, default=[])]
        return chains[name]

    return max((chain(name, ()) for name in imports), key=len, default=[])


def bound_names(function: Function) -> Iterator[str]:
    """The function's name, its arguments and its variables, each once."""
    arguments = function.args
    names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    yield from {function.name, *names} - {"self", "cls", "_"}


def is_vague(name: str) -> bool:
    """Whether a name is a pronoun or a participle.

    >>> is_vague("found"), is_vague("_merged"), is_vague("seed"), is_vague("found_rows")
    (True, True, False, False)
    """
    return VAGUE.fullmatch(name) is not None and name.strip("_") not in NOUNS


def tuned(module: Module) -> Iterator[tuple[int, str, str]]:
    """Numbers that somebody chose, each once: line, name (empty for one without) and value as it is written.

    A name at the top of a module counts once, however many numbers its value has, and so it does where its number is
    small, unless that stands beside other names. Of the rest COUNTS are left out, in bodies of functions UNITS too;
    ROUNDING, places in arrays, what NUMBERED functions take, and DEFINITIONS everywhere.
    """
    for node in module.tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            yield from ((number.lineno, "", ast.unparse(number)) for number in _chosen(node, COUNTS))
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for name, value in pairs:
            word = ast.unparse(name)
            if value is not None and word.isupper() and word not in DEFINITIONS:
                derived = any(isinstance(part, ast.Name) for part in ast.walk(value))
                if any(_chosen(value, COUNTS if derived else ())):
                    yield node.lineno, word, ast.unparse(value)


def _chosen(node: ast.AST, small: tuple[float, ...]) -> Iterator[ast.Constant]:
    """The numbers below a node that are chosen, see `tuned`; small: numbers that are not."""
    if isinstance(node, ast.Constant):
        number = node.value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if is_number and number not in small and ROUNDING < abs(number) < 1.0 / ROUNDING:
            yield node
        return
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in NUMBERED:
        return
    body = node.body if isinstance(node, Function) else []
    for child in ast.iter_child_nodes(node):
        place = isinstance(node, ast.Subscript) and child is node.slice
        if not place and getattr(child, "arg", "") != "axis":
            yield from _chosen(child, (*small, *UNITS) if child in body else small)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--constants", metavar="ROOM", help="list the tuned numbers of a package or folder")
    stated = parser.parse_args()
    packages = tuple(stated.packages) or PACKAGES
    house = modules(stated.checkout, packages)
    if not house:
        parser.error(f"{stated.checkout} has no modules of {', '.join(packages)}")
    sizes = [len(module.text.splitlines()) for module in house]
    for package in packages:
        lines = [size for size, module in zip(sizes, house, strict=True) if module.name.split(".")[0] == package]
        print(f"{package:<14} {sum(lines):>7,} lines {len(lines):>4} files")
    middle = statistics.median(sizes)
    print(f"{'together':<14} {sum(sizes):>7,} lines {len(sizes):>4} files, {middle:.0f} lines each (median)")
    functions = [function for module in house for function in module.functions]
    heights = sorted((function.end_lineno or function.lineno) - function.lineno + 1 for function in functions)
    at = {share: heights[min(int(share * len(heights)), len(heights) - 1)] for share in (0.5, 0.9)}
    print(f"functions      {len(functions):>7,}; lines p50 {at[0.5]}, p90 {at[0.9]}, longest {heights[-1]}")
    public = [function for function in functions if not function.name.startswith("_")]
    told = sum(ast.get_docstring(function) is not None for function in public) / len(public)
    tested = sum(">>>" in (ast.get_docstring(function) or "") for function in public)
    print(f"public         {len(public):>7,}; {told:.0%} with a docstring, {tested} with a doctest")
    words = Counter(word for module in house for word in re.findall(r"\w+", module.text))
    lone = sum(words[function.name] == 2 for function in functions if not function.name.startswith("__"))
    print(f"used once      {lone:>7,} functions ({lone / len(functions):.0%})")
    names = [name for function in functions for name in bound_names(function)]
    vague = Counter(filter(is_vague, names))
    commonest = ", ".join(f"{name} {count}" for name, count in vague.most_common(8))
    print(f"vague names    {vague.total() / len(names):>7.1%} of {len(names):,}: {commonest}")
    room = (stated.constants or "optimizer").replace("/", ".")
    chosen = [(module, *row) for module in house if module.name.startswith(room) for row in tuned(module)]
    named = sum(bool(name) for _, _, name, _ in chosen)
    print(f"tuned numbers  {len(chosen):>7,} in {room}: {named} named, {len(chosen) - named} within functions")
    for module, line, name, value in chosen if stated.constants else ():
        print(f"  {module.path.relative_to(stated.checkout)}:{line}: {name or 'within a function'} {value}")
    chain = longest_chain(house)
    print(f"import chain   {len(chain):>7} files: {' > '.join(chain)}")


if __name__ == "__main__":
    main()
