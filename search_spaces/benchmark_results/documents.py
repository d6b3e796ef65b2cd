"""A result file as JSON objects, and the fields of one: read with care, each fault a sentence that says where."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from costmodel.errors import InputError
from search_spaces.files import LARGEST_RESULTS, read_file, shown_path

_MISSING = object()


class Document(Mapping[str, Any]):
    """One JSON object of a result file, which knows where it stands and reads its fields as what they must be."""

    def __init__(self, where: str, content: Mapping[str, Any]) -> None:
        """Take the object that stands at `where`."""
        self.where = where
        self.content = content

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def part(self, *keys: str) -> Document:
        """The object below these keys, empty where there is none."""
        value: Any = self.content
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return Document(f"{self.where}: {'.'.join(keys)}", value if isinstance(value, Mapping) else {})

    def number(self, key: str, scale: float = 1.0) -> float | None:
        """The number under `key` times `scale`; None where it is missing, null or not above zero."""
        value = self.content.get(key, _MISSING)
        if value is _MISSING or value is None:
            return None
        found = _as_number(value)
        if found is None:
            raise InputError(f"{self.where}: {key} is {json.dumps(value)[:60]}, a number is wanted")
        return found * scale if found > 0 else None

    def needed(self, key: str) -> float:
        """The number under `key`, which must be there and above zero."""
        found = self.number(key)
        if found is None:
            raise InputError(f"{self.where}: {key} is missing or zero, a number above 0 is wanted")
        return found

    def whole(self, key: str, default: int | None = None) -> int | None:
        """The whole number under `key`; `default` where it is missing or zero."""
        found = self.number(key)
        if found is None or not math.isfinite(found):
            return default
        if found != int(found):
            raise InputError(f"{self.where}: {key} is {found:g}, a whole number is wanted")
        return int(found)

    def text(self, key: str) -> str | None:
        """The text under `key`; None where it is missing or empty."""
        value = self.content.get(key)
        return value.strip() or None if isinstance(value, str) else None


def documents(path: Path) -> Iterator[Document]:
    """The JSON objects of a file: one, one a line, one after the other, or those of a list."""
    text = _decoded(path)
    decoder = json.JSONDecoder()
    place, count = 0, 0
    while place := _next_value(text, place):
        try:
            value, end = decoder.raw_decode(text, place - 1)
        except RecursionError:
            raise InputError(f"{shown_path(path)}: the JSON is nested too deeply for a benchmark result") from None
        except ValueError as error:
            line = text.count("\n", 0, getattr(error, "pos", place - 1)) + 1
            reason = str(error).split(":", maxsplit=1)[0]
            raise InputError(f"{shown_path(path)}:{line}: is not valid JSON ({reason})") from None
        alone = not count and not _next_value(text, end)
        line = text.count("\n", 0, place - 1) + 1
        yield from _objects(value, shown_path(path) if alone else f"{shown_path(path)}:{line}")
        place, count = end, count + 1
    if not count:
        raise InputError(f"{shown_path(path)}: is empty, benchmark results are wanted")


def _decoded(path: Path) -> str:
    try:
        return read_file(path, LARGEST_RESULTS, "a benchmark result").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{shown_path(path)}: is not UTF-8 text (byte {error.start})") from error


def _next_value(text: str, start: int) -> int:
    """One past the index of the next character that is no white space; 0 where there is none."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start + 1 if start < len(text) else 0


def _objects(value: Any, where: str) -> Iterator[Document]:
    items = value if isinstance(value, list) else [value]
    for index, item in enumerate(items):
        place = f"{where}[{index}]" if isinstance(value, list) else where
        if not isinstance(item, dict):
            raise InputError(f"{place}: holds a JSON {type(item).__name__}, an object with results is wanted")
        yield Document(place, item)


def _as_number(value: object) -> float | None:
    """A JSON number, or a text that is one ("inf" is how tools write no limit)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found
