"""Faults of an input file: where, what, and how to mend it; collected, then shown all at once.

workload.yaml:7:11: accelerators.0.name: 'H20O' is not known; did you mean 'H200'?
  - {name: H20O, price: 3}
           ^
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.errors import UNSHOWABLE, InputError, shortened
from costmodel.words import plural

Path = tuple[str | int, ...]

MAX_FAULTS = 20
"""Faults that are shown; more are counted."""
LONGEST_PATH = 80
"""Characters of the path of keys to a fault."""
MAX_SHOWN = 100
"""Characters of a source line that are shown; longer ones are cut around the caret."""


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: the path of keys to it, a sentence, and whether the key itself is at fault.

    position: where it stands, if not where the path says (a key that stands twice).
    """

    path: Path
    sentence: str
    on_key: bool = False
    position: Position | None = None

    def told(self) -> str:
        """The dotted path and the sentence, without a place in a file."""
        keys = shortened(".".join(str(key) for key in self.path), LONGEST_PATH)
        return f"{keys}: {self.sentence}" if keys else self.sentence


def _first_faults(sentences: Sequence[str]) -> str:
    """The first MAX_FAULTS of them one below the other, and how many more there are."""
    surplus = len(sentences) - MAX_FAULTS
    more = [f"and {plural(surplus, 'more fault')}"] if surplus > 0 else []
    return "\n".join([*sentences[:MAX_FAULTS], *more])


class FaultsError(InputError):
    """Faults found in a part of a file, for the reader of the whole file to collect."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(_first_faults([fault.sentence for fault in faults]))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Source:
    """A file as read: its plain value, and the place of every key and value.

    overridden: paths whose values came from elsewhere (the command line), so that they have no place in the file, and
    how each was stated there.
    """

    name: str
    lines: tuple[str, ...]
    value: Any
    values: Mapping[Path, Position] = field(default_factory=dict)
    keys: Mapping[Path, Position] = field(default_factory=dict)
    overridden: Mapping[Path, str] = field(default_factory=dict)

    def locate(self, path: Path, *, on_key: bool = False) -> Position | None:
        """Return where `path` stands, or its nearest parent; None if it came from an override."""
        prefixes = [path[:length] for length in range(len(path), -1, -1)]
        if self.override_of(path) is not None:
            return None
        if on_key and path in self.keys:
            return self.keys[path]
        return next((self.values[prefix] for prefix in prefixes if prefix in self.values), None)

    def override_of(self, path: Path) -> str | None:
        """How the value at `path` was stated, where an override stated it or something in it that the file lacks."""
        above = (path[:length] for length in range(len(path), -1, -1))
        override = next((self.overridden[prefix] for prefix in above if prefix in self.overridden), None)
        if override is not None or path in self.values:
            return override
        return next((how for place, how in self.overridden.items() if place[: len(path)] == path), None)

    def settle(self, path: Path) -> Path:
        """Return `path` as it is written here.

        Steps that a short form spares (`H100` for a list of one mapping with a name) are left out, and so is the word
        of `kind` that chose a section; a missing key stays.

        >>> Source("a.yaml", (), {"slo": {"ttft": 1}}).settle(("slo", 0, "tpot"))
        ('slo', 'tpot')
        """
        value, steps = self.value, list[str | int]()
        for key in path:
            if isinstance(value, Mapping) and isinstance(key, str):
                if key.startswith("<") or value.get("kind") == key:
                    continue
                value = value.get(key)
                steps.append(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
                steps.append(key)
        return tuple(steps)

    def error(self, sentence: str, path: Path = ()) -> InputError:
        """The error of the value at a path."""
        return InputError(self.render([Fault(path, sentence)]))

    def render(self, faults: Iterable[Fault]) -> str:
        """Return the faults in the order of the file, the first `MAX_FAULTS` of them with their lines and carets."""
        faults_in_place = [replace(fault, path=self.settle(fault.path)) for fault in faults]
        pairs = [(fault.position or self.locate(fault.path, on_key=fault.on_key), fault) for fault in faults_in_place]
        pairs = list(dict.fromkeys(pairs))
        pairs.sort(key=lambda item: (item[0].line, item[0].column) if item[0] else (0, 0))
        sentences = []
        for position, fault in pairs:
            override = self.override_of(fault.path)
            where = f"{self.name}{f' (overridden by {override})' if override else ''}"
            sentence = fault.told()
            sentences.append(pointed(self.name, self.lines, position, sentence) if position else f"{where}: {sentence}")
        return _first_faults(sentences)


OURS = "pdplan."
"""Begins the schema of every file that pdplan writes."""
COMMANDS = {"plan": "pdplan report", "fleet": "pdplan evaluate", "workload": "pdplan optimize"}
"""The first command that takes each of our files."""


def taken_by(kind: str, name: str) -> str:
    """Which command takes one of our files; empty for other files.

    >>> taken_by("fleet", "fleet.yaml"), taken_by("catalog", "gpus.yaml")
    ('; pdplan evaluate fleet.yaml takes it', '')
    """
    return f"; {COMMANDS[kind]} {name} takes it" if kind in COMMANDS else ""


def check_kind(source: Source, label: str, schema: str = "") -> None:
    """Raise InputError for another of our own files, a plan above all, of which every key would be a fault.

    label: what is wanted; schema: that of such files, where they have one.
    """
    value = source.value if isinstance(source.value, Mapping) else {}
    schema_id = value.get("schema")
    kind = schema_id.partition("/")[0] if isinstance(schema_id, str) else ""
    title = f"{label} ({schema})" if schema else label
    if kind.startswith(OURS) and kind != schema.partition("/")[0]:
        hint = taken_by(kind.removeprefix(OURS), source.name)
        raise InputError(source.render([Fault(("schema",), f"{schema_id} is not a {title}{hint}")]))
    if label == "workload" and not kind and "pools" in value:
        sentence = f"a file with pools is a fleet file, not a {title}{taken_by('fleet', source.name)}"
        raise InputError(source.render([Fault(("pools",), sentence)]))


def pointed(name: str, lines: tuple[str, ...], position: Position, sentence: str) -> str:
    """Return `name:line:column: sentence`, the source line and a caret under the column.

    >>> print(pointed("a.yaml", ("rate: -1",), Position(1, 7), "rate: must be above 0"))
    a.yaml:1:7: rate: must be above 0
      rate: -1
            ^
    """
    head = f"{name}:{position.line}:{position.column}: {sentence}"
    if not 1 <= position.line <= len(lines):
        return head
    line = lines[position.line - 1].replace("\t", " ").rstrip()
    offset = position.column - 1
    start = max(0, offset - MAX_SHOWN // 2) if len(line) > MAX_SHOWN else 0
    excerpt = UNSHOWABLE.sub("?", line[start : start + MAX_SHOWN])
    excerpt = ("…" if start else excerpt[:1]) + excerpt[1:]
    if len(line) > start + MAX_SHOWN:
        excerpt = f"{excerpt[:-1]}…"
    if not excerpt.strip():
        return head
    indent = min(len(excerpt) - len(excerpt.lstrip()), offset - start)  # the caret may be at what indents: a tab
    return f"{head}\n  {excerpt[indent:]}\n  {' ' * (offset - start - indent)}^"
