"""YAML and JSON of a user's file, read with care: each fault has its file, line, column and keys.

Closed here: files too large, not UTF-8, empty or not a mapping; keys that stand twice; endless nesting. Of YAML: tabs,
alias bombs, tags; words and numbers are those of YAML 1.2, so that `no` is no false, and `1:30` no 90. Of JSON: NaN and
infinity, numbers of thousands of digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import InputError, shortened, shown

from .files import Fault, Keys, Position, Source, check_kind, pointed, read_text

MAX_BYTES = 2**20
"""Largest workload.yaml; longer length tables belong in a CSV or a trace."""
IN_A_TRACE = "; long length tables belong in a trace (workload.lengths.trace)"
"""What to do with a file that is too large."""
MAX_DEPTH = 50
MAX_NODES = 100_000
"""Keys and values of one file; these take 3 s to read. Longer tables belong in a CSV or a trace."""
MAX_ALIASED_NODES = 10_000
"""Values that aliases may repeat, all together: far above any honest use, far below a bomb."""

_TEXT = "tag:yaml.org,2002:str"
"""The tag of every value that has none of its own here."""


def read_source(path: Path, label: str = "", schema: str = "", max_bytes: int = MAX_BYTES) -> Source:
    """Read a YAML file whose root is a mapping, with its faults; raise `InputError` if nothing can be read.

    label: what it must be, in place of another file that pdplan writes; empty: any; schema: that of such files, where
    they have one; max_bytes: size above which it is refused unread [byte].
    """
    source = parse_source(read_text(path, max_bytes, mend=IN_A_TRACE), str(path), label)
    if label:
        check_kind(source, label, schema)
    return source


def parse_source(text: str, name: str, label: str = "") -> Source:
    """Parse YAML text as `read_source` does; `name` stands for the file in messages."""
    lines = tuple(text.splitlines())
    root = _compose(text, name, lines)
    if root is None:
        raise empty_error(name, label)
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise InputError(f"{name}: contains {kind}, but must have keys and values such as 'name: chat'")
    walker = _Walker(name, lines)
    value = walker.build(root, (), 0)
    return Source(name, lines, value, walker.values, walker.keys, walker.faults)


def empty_error(name: str, label: str) -> InputError:
    """The refusal of an empty file, with the command that writes one of its label to start from, if there is one."""
    command = {"workload": "pdplan init", "fleet": "pdplan init --fleet", "model": "pdplan models NAME -o FILE"}.get(
        label
    )
    return InputError(f"{name}: is empty" + (f"; a {label} to start from is written by `{command}`" if command else ""))


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


_Loader.yaml_implicit_resolvers = {}  # of YAML 1.1; `_plain` stands in their place


def _compose(text: str, name: str, lines: tuple[str, ...]) -> yaml.Node | None:
    odd = _ODD_INDENT.search(text)
    if odd is not None:
        position = Position(text.count("\n", 0, odd.start(1)) + 1, odd.start(1) - text.rfind("\n", 0, odd.start(1)))
        sentence = f"the space U+{ord(odd[1]):04X} cannot indent in YAML; use ordinary spaces"
        raise InputError(pointed(name, lines, position, sentence))
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


_ODD_INDENT = re.compile(r"(?m)^ *([\u00a0\u2000-\u200b\u3000])(?!\s*(?:#|$))")
"""A space that is none to YAML, as pages on the web have it, before a key or a value."""
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
    values: dict[Keys, Position] = field(default_factory=dict)
    keys: dict[Keys, Position] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    aliased: int = 0

    def build(self, node: yaml.Node, path: Keys, depth: int) -> Any:
        self.aliased += id(node) in self.seen
        self.seen.add(id(node))
        sentence = f"{_TOO_DEEP} (an alias that contains itself?)" if depth > MAX_DEPTH else ""
        if self.aliased > MAX_ALIASED_NODES:
            sentence = f"aliases (*name) repeat more than {MAX_ALIASED_NODES:,} values; write the values out"
        if sentence:
            raise InputError(pointed(self.name, self.lines, _position(node.start_mark), sentence))
        self.values[path] = _position(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return {key: self.build(child, (*path, key), depth + 1) for key, child in self._pairs(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index), depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _pairs(self, node: yaml.MappingNode, path: Keys) -> Iterator[tuple[str, yaml.Node]]:
        """Yield the keys, as they are written, and their nodes; the first of equal keys wins, the others are faults."""
        positions: dict[str, Position] = {}
        for key_node, child in node.value:
            position = _position(key_node.start_mark)
            key = _whole_characters(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            place = (*path, str(key))
            if key is None or key == "<<":
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

    def _scalar(self, node: yaml.Node, path: Keys) -> Any:
        text = _whole_characters(node.value)
        in_quotes = getattr(node, "style", None) is not None
        value, sentence = (text, "") if in_quotes else _plain(text)
        if node.tag != _TEXT:
            value, sentence = text, f"the tag {shown(node.tag)} is not allowed; write the plain value"
        if sentence:
            self.faults.append(Fault(path, sentence))
        return value


def _whole_characters(text: str) -> str:
    """JSON writes a character beyond 16 bits as two escapes, which are one character again here."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("", "~", "null")),
    "true": True,
    "false": False,
    ".nan": math.nan,
    **{f"{sign}.inf": float(f"{sign}inf") for sign in ("", "+", "-")},
}
_INTEGER = re.compile(r"[-+]?(?:0x[0-9a-f][0-9a-f_]{0,14}|0b[01][01_]*|[0-9][0-9_]*)", re.IGNORECASE)
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?")
_LEADING_ZEROS = re.compile(r"[-+]?0[0-9_]+")
_LONGEST_INT = 18


def _plain(text: str) -> tuple[Any, str]:
    """The value of a text without quotes, and what is wrong with it: no is a word, 1:30 a text, and 1e12 a number.

    >>> [_plain(text)[0] for text in ("no", "1:30", "1e12", "1_000", "0x10", "~", "True")]
    ['no', '1:30', 1000000000000.0, 1000, 16, None, True]
    """
    digits = text.replace("_", "")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()], ""
    if _LEADING_ZEROS.fullmatch(text):
        return 0, f"{shortened(text)} has leading zeros; write the number without them"
    if _INTEGER.fullmatch(text) and len(digits) <= _LONGEST_INT:
        return int(digits, 0), ""
    value = float(digits) if _FLOAT.fullmatch(text) else text
    return value, f"{shortened(text)} is larger than any number that is read here" if value in _ENDLESS else ""


_ENDLESS = (math.inf, -math.inf)


_SPACE = re.compile(r"\s*")
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|(NaN|-?Infinity)', re.DOTALL)
"""Texts, in which a word means nothing, and words that are no JSON."""
_Child = tuple[str | int, int, int]
"""Key or number of a value in what it is part of, index of the key, and of the value."""
_KINDS = ((bool, ""), (str, "a string"), (list, "an array"), (dict, "an object"), (int | float, "a number"))


def json_kind(value: object) -> str:
    """What a value is, in JSON's own words.

    >>> json_kind({}), json_kind([1]), json_kind("a"), json_kind(1.5), json_kind(False), json_kind(None)
    ('an object', 'an array', 'a string', 'a number', 'false', 'null')
    """
    kind = next((words for kind, words in _KINDS if isinstance(value, kind)), "null")
    return kind or shown(value)


def json_shown(value: object) -> str:
    """A value as a message quotes it, in JSON's own words.

    >>> json_shown({}), json_shown("a"), json_shown(1.5), json_shown(None)
    ('an object', "'a'", '1.5', 'null')
    """
    return json_kind(value) if value is None or isinstance(value, list | dict) else shown(value)


NESTED = "."
"""Joins the keys to a value in objects of objects: usage.prompt_tokens."""


def value_at(content: Any, path: str) -> Any:
    """The value under a key, or under keys and indexes of lists joined by dots; None where there is none.

    >>> value_at({"usage": {"prompt_tokens": [5, 6]}}, "usage.prompt_tokens.1")
    6
    """
    while path and content is not None:
        if isinstance(content, Mapping) and path in content:
            return content[path]
        first, _, path = path.partition(NESTED)
        if isinstance(content, list):
            content = content[int(first)] if first.isdecimal() and int(first) < len(content) else None
        else:
            content = content.get(first) if isinstance(content, Mapping) else None
    return content


def nested_keys(record: Mapping[str, Any]) -> Iterator[str]:
    """The keys of all values in an object and the objects in it.

    >>> list(nested_keys({"created": 1, "usage": {"prompt_tokens": 5}}))
    ['created', 'usage.prompt_tokens']
    """
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{key}{NESTED}{below}" for below in nested_keys(value))
        else:
            yield key


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value in a text: what stands for the file in messages, and where the value begins.

    clause: what is said of the file before what is wrong in it.
    """

    name: str
    text: str
    start: int = 0
    clause: str = ""

    def value(self, *, constants: bool = False) -> Any:
        """The value; InputError for a text that is none, or more.

        constants: whether Infinity and NaN are numbers, as Python's own writer has them.
        """
        value, end = self.first(constants=constants)
        if end < len(self.text):
            raise self._invalid(end, "extra data")
        return value

    def first(self, *, constants: bool = False) -> tuple[Any, int]:
        """The value, and where the next one begins; InputError for a text that begins with none."""
        it = f"{self.clause}it " if self.clause else ""
        decoder = json.JSONDecoder(
            object_pairs_hook=unique_keys, parse_constant=float if constants else int
        )  # or refuse
        try:
            value, end = decoder.raw_decode(self.text, after_space(self.text, self.start))
        except json.JSONDecodeError as error:
            if not self.text.strip():
                raise InputError(f"{self.name}: {it}is empty") from error
            raise self._invalid(error.pos, f"{error.msg[:1].lower()}{error.msg[1:]}") from error
        except TwiceError:
            path, place = self._second_key()
            sentence = Fault(path, "stands here again; keep one of them").told()
            raise self._error(place, f"{self.clause}{sentence}") from None
        except RecursionError as error:
            raise InputError(f"{self.name}: {it}is nested too deeply") from error
        except ValueError as error:  # a word of JavaScript that JSON lacks, or an integer of thousands of digits
            word = next((match for match in _CONSTANT.finditer(self.text, self.start) if match[1]), None)
            if word is not None and not constants:
                raise self._invalid(word.start(), f"{word[1]} is not a number there") from None
            raise InputError(f"{self.name}: {it}is not valid JSON: a number has thousands of digits") from error
        return value, after_space(self.text, end)

    def _invalid(self, place: int, reason: str) -> InputError:
        it = f"{self.clause}it " if self.clause else ""
        return self._error(place, f"{it}is not valid JSON: {reason}")

    def error(self, sentence: str, path: Keys = ()) -> InputError:
        """The error of a value of valid JSON: file, line and column of it or of what it is missing in, and its keys."""
        return self._error(self._place(path), f"{self.clause}{Fault(path, sentence).told()}")

    def line(self, path: Keys = ()) -> int:
        """The line where a value stands, counted from 1."""
        return self._position(self._place(path)).line

    def _error(self, place: int, sentence: str) -> InputError:
        position = self._position(place)
        return InputError(f"{self.name}:{position.line}:{position.column}: {sentence}")

    def _position(self, place: int) -> Position:
        return Position(self.text.count("\n", 0, place) + 1, place - self.text.rfind("\n", 0, place))

    def _place(self, path: Keys) -> int:
        """Index of the value at a path, or of its nearest parent."""
        place = after_space(self.text, self.start)
        for step in path:
            below = next((at for key, _, at in _children(self.text, place) if key == step), None)
            if below is None:
                break
            place = below
        return place

    def _second_key(self) -> tuple[Keys, int]:
        """Keys and index of the first key that stands twice in one object, up to which the text is known to be JSON."""
        place = after_space(self.text, self.start)
        below: list[tuple[Keys, set[str | int], Iterator[_Child]]] = [((), set(), _children(self.text, place))]
        while below:
            path, keys, children = below[-1]
            key, at, inner = next(children, (None, 0, 0))
            if key is None:
                below.pop()
            elif key in keys:
                return (*path, key), at
            else:
                keys.add(key)
                below.append(((*path, key), set(), _children(self.text, inner)))
        return (), place


class TwiceError(ValueError):
    """A key that stands twice."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values; TwiceError where one stands twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise TwiceError
    return fields


def _children(text: str, place: int) -> Iterator[_Child]:
    """The values below the one at `place`."""
    if text[place] not in "{[":
        return
    decode = json.JSONDecoder().raw_decode
    is_object, at, number = text[place] == "{", after_space(text, place + 1), 0
    while text[at] not in "}]":
        key, start = number, at
        if is_object:
            key, at = decode(text, at)
            at = after_space(text, after_space(text, at) + 1)
        yield key, start, at
        at = after_space(text, decode(text, at)[1])
        at = after_space(text, at + 1) if text[at] == "," else at
        number += 1


def after_space(text: str, at: int) -> int:
    """Index of the next character that is no white space."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
