"""YAML read with care: every value keeps its line and column, and YAML's traps are faults with a sentence of their own.

Closed here: files too large, not UTF-8, empty or not a mapping; tabs; duplicate keys; `no` meaning false, `1:30`
meaning 90, `010` meaning 8, `1e12` meaning a text; alias bombs, endless nesting, tags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path as FilePath
from typing import Any

import yaml

from costmodel.errors import InputError, shortened, shown

from .faults import Fault, Path, Position, Source, pointed
from .files import read_text

MAX_BYTES = 2**20
"""Largest workload.yaml; longer length tables belong in a CSV or a trace."""
IN_A_TRACE = "; long length tables belong in a trace (workload.lengths.trace)"
"""What to do with a file that is too large."""
MAX_DEPTH = 50
MAX_NODES = 100_000
"""Keys and values of one file; these take 3 s to read. Longer tables belong in a CSV or a trace."""
MAX_ALIASED_NODES = 10_000
"""Values that aliases may repeat, all together: far above any honest use, far below a bomb."""

_TAG = "tag:yaml.org,2002:"
_BARE_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
"""YAML 1.1 wants a dot in a float, so 1e12 arrives as a text; here it is the number that it looks like."""
_LONGEST_INT = 18


_SHIPPED: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With libyaml it is ten times as fast."""


def shipped_table(package: str, name: str) -> Any:
    """The content of a YAML file of the distribution."""
    text = resources.files(package).joinpath(name).read_text("utf-8")
    return yaml.load(text, Loader=_SHIPPED)  # noqa: S506 (a safe loader; the file is ours)


def read_source(path: FilePath, max_bytes: int = MAX_BYTES) -> tuple[Source, list[Fault]]:
    """Read a YAML file whose root is a mapping; return it and its faults, or raise `InputError` if nothing can be read.

    Args:
        path: the file.
        max_bytes: size above which it is refused unread [byte].
    """
    return parse_source(read_text(path, max_bytes, mend=IN_A_TRACE), str(path))


def parse_source(text: str, name: str) -> tuple[Source, list[Fault]]:
    """Parse YAML text as `read_source` does; `name` stands for the file in messages."""
    lines = tuple(text.splitlines())
    root = _compose(text, name, lines)
    if root is None:
        raise InputError(f"{name}: is empty; a workload to start from is written by `pdplan init`")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise InputError(f"{name}: contains {kind}, but must have keys and values such as 'name: chat'")
    walker = _Walker(name, lines)
    value = walker.build(root, (), 0)
    return Source(name, lines, value, walker.values, walker.keys), walker.faults


def parse_value(text: str) -> Any:
    """Read one value as if it stood in a file: a number, a text, `[a, b]` or `{a: b}`.

    >>> parse_value("[8, 1e3, H100, 2s]")
    [8, 1000.0, 'H100', '2s']
    """
    name = shown(text)
    root = _compose(text, name, (text,))
    if root is None:
        return None
    walker = _Walker(name, (text,))
    value = walker.build(root, (), 0)
    if walker.faults:
        raise InputError(f"{name}: {walker.faults[0].sentence}")
    return value


class _Loader(yaml.SafeLoader):
    """Composes nodes only (nothing is constructed), no deeper than `MAX_DEPTH` and no more than `MAX_NODES`."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if parent is not None and self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=parent.start_mark)
        self.nodes += 1
        if parent is not None and self.nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=parent.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _compose(text: str, name: str, lines: tuple[str, ...]) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"{name}:{line}: has the control character U+{ord(text[error.position]):04X}") from error
    except yaml.MarkedYAMLError as error:
        is_unclosed = error.problem == "found unexpected end of stream"  # say where it was opened
        mark = (error.context_mark if is_unclosed else None) or error.problem_mark or error.context_mark
        sentence = _syntax_sentence(error)
        raise InputError(pointed(name, lines, _position(mark), sentence) if mark else f"{name}: {sentence}") from error


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
_TOO_MANY = (
    f"has keys and values beyond the {MAX_NODES:,} allowed in one file; a long table of lengths belongs in a CSV "
    "file (workload.lengths.histogram) or in a trace (workload.lengths.trace)"
)


def _syntax_sentence(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be understood"
    if problem in {_TOO_DEEP, _TOO_MANY}:
        return problem
    if "'\\t'" in problem:
        column = f" in column {error.problem_mark.column + 1}" if error.problem_mark else ""
        return f"a tab{column} cannot indent or separate in YAML; use spaces"
    if "found undefined alias" in problem:
        return f"is not valid YAML: {problem}; no anchor of that name stands before it"
    if problem == "found unexpected end of stream":
        return "is not valid YAML: the quote that opens here is never closed"
    if "but found another document" in problem:
        return "a second document starts here ('---'), but one file states one problem"
    context = f" {error.context}" if error.context else ""
    return f"is not valid YAML: {problem}{context}; check quotes, brackets and indentation here and on the line before"


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


@dataclass(slots=True)
class _Walker:
    """Turns nodes into plain values, noting where each stands and what is wrong with it."""

    name: str
    lines: tuple[str, ...]
    values: dict[Path, Position] = field(default_factory=dict)
    keys: dict[Path, Position] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    aliased: int = 0

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._guard(node, depth)
        self.values[path] = _position(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return {key: self.build(child, (*path, key), depth + 1) for key, child in self._pairs(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index), depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _guard(self, node: yaml.Node, depth: int) -> None:
        self.aliased += id(node) in self.seen
        self.seen.add(id(node))
        sentence = ""
        if self.aliased > MAX_ALIASED_NODES:
            sentence = f"aliases (*name) repeat more than {MAX_ALIASED_NODES:,} values; write the values out"
        elif depth > MAX_DEPTH:
            sentence = f"{_TOO_DEEP} (an alias that contains itself?)"
        if sentence:
            raise InputError(pointed(self.name, self.lines, _position(node.start_mark), sentence))

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
        """Yield the keys, as they are written, and their nodes; the first of equal keys wins, the others are faults."""
        positions: dict[str, Position] = {}
        for key_node, child in node.value:
            position = _position(key_node.start_mark)
            key = _whole_characters(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            place = (*path, str(key))
            if key is None or key_node.tag == f"{_TAG}merge":
                words = "'<<' (merging)" if key is not None else "a list or mapping"
                self.faults.append(Fault(path, f"{words} cannot be a key here; write the keys out", position=position))
            elif key in positions:
                sentence = (
                    f"the key {shown(key)} stands here again, first on line {positions[key].line}; keep one of them"
                )
                self.faults.append(Fault(place, sentence, position=position))
            else:
                positions[key] = self.keys[place] = position
                yield key, child

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        text = _whole_characters(node.value)
        plain = getattr(node, "style", None) is None
        resolve = _RESOLVERS.get(node.tag.removeprefix(_TAG))
        if resolve is None:
            self.faults.append(Fault(path, f"the tag {shown(node.tag)} is not allowed; write the plain value"))
            return text
        value, sentence = resolve(text) if plain else (text, "")
        if value in (math.inf, -math.inf) and any(map(str.isdigit, text)):
            sentence = f"{shortened(text)} is larger than any number that is read here"
        if sentence:
            self.faults.append(Fault(path, sentence))
        return value


def _whole_characters(text: str) -> str:
    """JSON writes a character beyond 16 bits as two escapes, which are one character again here."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _resolve_bool(text: str) -> tuple[Any, str]:
    value = text.lower() in {"yes", "true", "on"}
    if text.lower() in {"true", "false"}:
        return value, ""
    word = "true" if value else "false"
    return value, f"{text} without quotes means {word} in YAML; write '{text}' in quotes if the word is meant"


def _resolve_int(text: str) -> tuple[Any, str]:
    digits = text.replace("_", "").lstrip("+-").lower()
    if ":" in digits:
        return 0, _sexagesimal(text)
    if digits.startswith(("0x", "0b")):
        value = -int(digits, 0) if text.startswith("-") else int(digits, 0)
        return value if abs(value) < 10**_LONGEST_INT else float(value), ""
    if len(digits) > 1 and digits.startswith("0"):
        octal = shown(int(digits, 8))
        return 0, f"{shortened(text)} means {octal} in YAML (octal); write the number without leading zeros"
    if len(digits) > _LONGEST_INT:
        return float(text.replace("_", "")), ""
    return int(text.replace("_", "")), ""


def _resolve_float(text: str) -> tuple[Any, str]:
    if ":" in text:
        return 0.0, _sexagesimal(text)
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")), ""


def _sexagesimal(text: str) -> str:
    value = 0.0
    for digits in text.replace("_", "").lstrip("+-").split(":"):
        value = 60 * value + float(digits)
    value = -value if text.startswith("-") else value
    return f"{shortened(text)} means {value:g} in YAML (base 60); write the number that is meant, with its unit if any"


def _checked_tag(resolve: Callable[[str], tuple[Any, str]]) -> Callable[[str], tuple[Any, str]]:
    """An explicit tag (!!int abc) can claim what the text is not."""

    def guarded(text: str) -> tuple[Any, str]:
        try:
            return resolve(text)
        except OverflowError:
            return math.inf, ""
        except ValueError:
            return text, f"{shown(text)} is not what its tag says; write the plain value"

    return guarded


_RESOLVERS: Mapping[str, Callable[[str], tuple[Any, str]]] = {
    "null": lambda _: (None, ""),
    "bool": _resolve_bool,
    "int": _checked_tag(_resolve_int),
    "float": _checked_tag(_resolve_float),
    "str": lambda text: (float(text) if _BARE_FLOAT.match(text) else text, ""),
    "timestamp": lambda text: (text, ""),
    "value": lambda text: (text, ""),
}
