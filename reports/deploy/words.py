"""Words of a command line and options of a file, and how the values of one engine are read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from costmodel.errors import InputError
from costmodel.quoting import shown
from search_spaces.json_source import JsonText, json_kind

from . import facts

Words = tuple[tuple[str, str | None], ...]
"""Flags in order, each with its value; None for a switch."""


def words_of(where: str, text: list[str]) -> Words:
    """Pair up flags and values of a command line.

    >>> words_of("x", ["--tp", "2", "--fast"])
    (('--tp', '2'), ('--fast', None))
    """
    words: list[tuple[str, str | None]] = []
    for word in text:
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            words.append((name, value))
        elif word.startswith("--"):
            words.append((word, None))
        elif words and words[-1][1] is None:
            words[-1] = (words[-1][0], word)
        else:
            raise InputError(f"{where}: {shown(word)} stands where a flag is expected")
    return tuple(words)


def plain_words(words: Words) -> list[str]:
    """A command line of flags and values.

    >>> plain_words((("--tp", "2"), ("--fast", None)))
    ['--tp', '2', '--fast']
    """
    return [word for name, value in words for word in ((name,) if value is None else (name, value))]


def one_line(value: Mapping[str, Any]) -> str:
    """An object as one line of JSON that is the same for the same content; empty for none.

    >>> one_line({"b": 1, "a": {"c": 2.0}}), one_line({})
    ('{"a":{"c":2.0},"b":1}', '')
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""


def json_object(where: str, text: str) -> dict[str, Any]:
    """Read a JSON object, such as the value of --kv-transfer-config."""
    value: dict[str, Any] | object = JsonText(where, text).value()
    if not isinstance(value, dict):
        raise InputError(f"{where}: is {json_kind(value)}, an object is wanted")
    return value


class Reader:
    """Values of one worker's flags, with errors that name the place."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def has(self, name: str) -> bool:
        """Whether the flag is there."""
        return name in self.values

    def text(self, name: str) -> str:
        """The value of a flag that must be there."""
        value = self.values.get(name)
        if value is None:
            raise InputError(f"{self.where}: {name} is missing, so the engine would choose it itself")
        return str(value)

    def truth(self, name: str) -> bool:
        """An option that is true or false."""
        return self.text(name) == "True"

    def whole(self, name: str) -> int:
        """A whole number above 0."""
        return int(self._number(name, int))

    def number(self, name: str) -> float:
        """A number above 0."""
        return float(self._number(name, float))

    def _number(self, name: str, kind: type[int] | type[float]) -> float:
        text = self.text(name)
        try:
            value = kind(text)
        except ValueError as error:
            raise InputError(f"{self.where}: {name} {shown(text)} is not a number") from error
        if value <= 0:
            raise InputError(f"{self.where}: {name} {text} is not above 0")
        return value

    def must(self, name: str, value: Any) -> None:
        """A setting that the prediction stands on: it must be stated, and with this value; a switch with any."""
        self.text(name)
        stated = self.values[name]
        if stated != value and not (value is True and name.startswith("-")):
            raise InputError(f"{self.where}: {name} is {stated}, not {value}")

    def spelled(self, name: str, spellings: Mapping[str, str]) -> str:
        """The plan's word for a value in the target's spelling."""
        text = self.text(name)
        for word, spelling in spellings.items():
            if text == spelling:
                return word
        raise InputError(f"{self.where}: {name} {shown(text)} is none of {', '.join(spellings.values())}")

    def overrides(self, name: str) -> str:
        """What is laid over the checkpoint's config.json, as one line of JSON; empty where the flag is not there."""
        return one_line(json_object(f"{self.where}: {name}", self.text(name))) if self.has(name) else ""

    def switch(self, name: str) -> bool:
        """A setting that is stated by one of two switches."""
        off = facts.off_switch(name)
        if self.has(name) or self.has(off):
            return self.has(name)
        raise InputError(f"{self.where}: neither {name} nor {off} is stated")
