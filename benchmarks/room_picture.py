"""Draws docs/images/rooms.svg: the rooms of the code and who imports whom, read from the imports.

    python benchmarks/room_picture.py

A room is a top-level package, a chamber a folder inside it. Every import counts, those inside functions too. An arrow
that follows from others is left out: where pdplan imports reports and reports imports optimizer, pdplan needs no arrow
to optimizer. Room texts are the first lines of the packages. Seconds.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.house import PACKAGES, Module, modules  # noqa: E402 -- the repository is found first

PICTURE = ROOT / "docs" / "images" / "rooms.svg"
Edges = dict[str, set[str]]

WIDTH, LANE, GAP, PAD, LINE, CHIP = 900, 12, 34, 16, 18, 30
"""Width of a room, and of the lane right of it; space between rooms, inside them; height of a line, of a chamber."""
STYLE = """text{font:14px system-ui,sans-serif;fill:#1f2328}.name{font-weight:600;font-size:16px}.note{fill:#57606a}
.room{fill:#f6f8fa;stroke:#8c959f}.chip{fill:#fff;stroke:#8c959f}.arrow{fill:none;stroke:#0969da;stroke-width:1.6}
#head path{fill:#0969da}"""


def main() -> None:
    PICTURE.write_text(picture(), "utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


@cache
def imported(module: Module) -> frozenset[str]:
    """What a module imports anywhere, or loads templates from; modules, and names that may be modules."""
    package = module.name.split(".")[: None if module.path.name == "__init__.py" else -1]
    targets: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            targets |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "PackageLoader":
            targets.add(ast.literal_eval(node.args[0]))
    return frozenset(targets)


def place(module: Module, depth: int) -> str:
    """The folder of a module, at most `depth` levels deep."""
    return ".".join(module.path.relative_to(ROOT).parent.parts[:depth])


def edges(house: list[Module], depth: int) -> Edges:
    """Which folders import which, without themselves."""
    by_name = {module.name: module for module in house}
    arrows: Edges = {place(module, depth): set() for module in house}
    for module in house:
        origin = place(module, depth)
        arrows[origin] |= {place(by_name[name], depth) for name in imported(module) & by_name.keys()} - {origin}
    return arrows


def reachable(arrows: Mapping[str, set[str]], start: Iterable[str]) -> set[str]:
    """Everything that can be reached from `start`, which counts too.

    >>> sorted(reachable({"a": {"b"}, "b": {"c"}, "c": set()}, ["b"]))
    ['b', 'c']
    """
    reached, waiting = set(start), list(start)
    while waiting:
        fresh = arrows[waiting.pop()] - reached
        reached |= fresh
        waiting += fresh
    return reached


def reduced(arrows: Mapping[str, set[str]]) -> Edges:
    """The arrows that do not follow from others; there is no circle.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """
    if any(origin in reachable(arrows, targets) for origin, targets in arrows.items() if targets):
        raise ValueError(f"folders import each other in a circle: {arrows}")
    return {
        origin: {target for target in targets if target not in reachable(arrows, targets - {target})}
        for origin, targets in arrows.items()
    }


def levels(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """How many arrows lead on from each folder, at most; by level, then name.

    >>> levels({"a": {"b"}, "b": set(), "c": {"a"}})
    {'b': 0, 'a': 1, 'c': 2}
    """

    def level(name: str) -> int:
        return 1 + max((level(target) for target in arrows[name]), default=-1)

    return {name: level(name) for name in sorted(arrows, key=lambda name: (level(name), name))}


def chambers(house: list[Module], room: str) -> Edges:
    """The folders of a room that hold code, and the arrows between them."""
    inside = {name: targets for name, targets in edges(house, 2).items() if name.startswith(f"{room}.")}
    folders = {
        name for name in inside if any(place(module, 2) == name and len(module.tree.body) > 1 for module in house)
    }
    return reduced({name: inside[name] & folders for name in sorted(folders)})


def caption(house: list[Module], room: str) -> list[str]:
    """The first paragraph of a package's text, in lines that fit."""
    text = next(ast.get_docstring(module.tree) or "" for module in house if module.name == room)
    return textwrap.wrap(" ".join(text.split("\n\n")[0].split()), 112)


def picture() -> str:
    """The whole picture as SVG."""
    house = modules(ROOT, PACKAGES)
    rooms = reduced(edges(house, 1))
    stack = sorted(levels(rooms), key=lambda room: (-levels(rooms)[room], room))
    shapes: list[str] = []
    tops: dict[str, tuple[int, int]] = {}
    top = PAD
    for room in stack:
        drawn, height = room_box(house, room, top)
        shapes += drawn
        tops[room] = (top, height)
        top += height + GAP
    height = top - GAP + PAD
    for origin, targets in rooms.items():
        shapes += [arrow_between(tops, origin, target, stack) for target in sorted(targets)]
    body = "\n".join(shapes)
    total = WIDTH + LANE + 2 * PAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" role="img">\n'
        "<title>The rooms of pdplan, and which imports which</title>\n"
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>\n'
        f'<rect width="{total}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def room_box(house: list[Module], room: str, top: int) -> tuple[list[str], int]:
    """A room with its text and chambers; and its height."""
    lines = caption(house, room)
    arrows = chambers(house, room)
    names = list(levels(arrows))
    chips_top = top + PAD + 24 + LINE * len(lines)
    bows = any(abs(names.index(target) - names.index(name)) > 1 for name in names for target in arrows[name])
    height = chips_top - top + ((CHIP + PAD + 22 * bows) if names else 0)
    shapes = [f'<rect class="room" x="{PAD}" y="{top}" width="{WIDTH}" height="{height}" rx="6"/>']
    shapes.append(f'<text class="name" x="{2 * PAD}" y="{top + 24}">{room}/</text>')
    shapes += [
        f'<text class="note" x="{2 * PAD}" y="{top + 24 + LINE * (number + 1)}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    lefts: dict[str, tuple[int, int]] = {}
    left = 2 * PAD
    for name in names:
        label = name.partition(".")[2]
        width = 9 * len(label) + 16
        lefts[name] = (left, width)
        shapes.append(f'<rect class="chip" x="{left}" y="{chips_top}" width="{width}" height="{CHIP}" rx="4"/>')
        shapes.append(f'<text x="{left + width // 2}" y="{chips_top + 20}" text-anchor="middle">{label}</text>')
        left += width + 28
    for name in names:
        for target in sorted(arrows[name]):
            adjacent = abs(names.index(target) - names.index(name)) == 1
            shapes.append(chip_arrow(lefts[name], lefts[target], chips_top, adjacent=adjacent))
    return shapes, height


def chip_arrow(origin: tuple[int, int], target: tuple[int, int], top: int, *, adjacent: bool) -> str:
    """An arrow from a chamber to one left of it: straight to its neighbor, else below those between."""
    if adjacent:
        middle = top + CHIP // 2
        return f'<path class="arrow" d="M{origin[0]} {middle}H{target[0] + target[1] + 2}" marker-end="url(#head)"/>'
    start, end, below = origin[0] + 12, target[0] + target[1] // 2, top + CHIP
    path = f"M{start} {below}C{start} {below + 26} {end} {below + 26} {end} {below + 3}"
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def arrow_between(tops: Mapping[str, tuple[int, int]], origin: str, target: str, stack: list[str]) -> str:
    """An arrow from a room to the one below, or along the right side to one further down."""
    below = tops[origin][0] + tops[origin][1]
    if stack.index(target) == stack.index(origin) + 1:
        path = f"M{WIDTH // 2} {below}V{tops[target][0] - 3}"
    else:
        side, middle = WIDTH + PAD + LANE, tops[target][0] + 20
        path = f"M{WIDTH + PAD} {below - 20}H{side}V{middle}H{WIDTH + PAD + 3}"
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


if __name__ == "__main__":
    main()
