"""JSON of a user's file: parsed with care, each fault with its file, line, column and keys.

Closed here: keys that stand twice, NaN and infinity, numbers of thousands of digits, endless nesting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.errors import InputError, shown

from .faults import Fault, Path, Position

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
        it = f"{self.clause}it " if self.clause else ""
        read_constant = float if constants else int  # which refuses them all
        try:
            return json.loads(self.text, object_pairs_hook=_unique, parse_constant=read_constant)
        except json.JSONDecodeError as error:
            if not self.text.strip():
                raise InputError(f"{self.name}: {it}is empty") from error
            reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
            raise self._error(error.pos, f"{it}is not valid JSON: {reason}") from error
        except _TwiceError:
            path, place = self._second_key()
            sentence = Fault(path, "stands here again; keep one of them").told()
            raise self._error(place, f"{self.clause}{sentence}") from None
        except RecursionError as error:
            raise InputError(f"{self.name}: {it}is nested too deeply") from error
        except ValueError as error:  # a word of JavaScript that JSON lacks, or an integer of thousands of digits
            word = next((match for match in _CONSTANT.finditer(self.text) if match[1]), None)
            if word is not None and not constants:
                raise self._error(word.start(), f"{it}is not valid JSON: {word[1]} is not a number there") from None
            raise InputError(f"{self.name}: {it}is not valid JSON: a number has thousands of digits") from error

    def error(self, sentence: str, path: Path = ()) -> InputError:
        """The error of a value of valid JSON: file, line and column of it or of what it is missing in, and its keys."""
        return self._error(self._place(path), f"{self.clause}{Fault(path, sentence).told()}")

    def line(self, path: Path = ()) -> int:
        """The line where a value stands, counted from 1."""
        return self._position(self._place(path)).line

    def _error(self, place: int, sentence: str) -> InputError:
        position = self._position(place)
        return InputError(f"{self.name}:{position.line}:{position.column}: {sentence}")

    def _position(self, place: int) -> Position:
        return Position(self.text.count("\n", 0, place) + 1, place - self.text.rfind("\n", 0, place))

    def _place(self, path: Path) -> int:
        """Index of the value at a path, or of its nearest parent."""
        place = after_space(self.text, self.start)
        for step in path:
            below = next((at for key, _, at in _children(self.text, place) if key == step), None)
            if below is None:
                break
            place = below
        return place

    def _second_key(self) -> tuple[Path, int]:
        """Path and index of the first key that stands twice in one object, up to which the text is known to be JSON."""
        place = after_space(self.text, self.start)
        below: list[tuple[Path, set[str | int], Iterator[_Child]]] = [((), set(), _children(self.text, place))]
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


class _TwiceError(ValueError):
    """A key that stands twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _TwiceError
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
