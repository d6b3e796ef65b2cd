"""What a set of files deploys, read back from the files: the lint and the round trip judge this, not our intent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.errors import InputError
from costmodel.quoting import shown
from search_spaces.json_source import JsonText, json_kind

from . import facts
from .deployment import Settings

Words = tuple[tuple[str, str | None], ...]
"""Flags in order, each with its value; None for a switch."""


@dataclass(frozen=True, slots=True)
class FoundWorker:
    """One worker, or equal ones, of a file.

    where: file and, in it, object; pool: name of its pool; role: prefill, decode or colocated; replicas, nodes,
    node_gpus: as the file asks for them; addresses: (host, port) pairs that it binds; label: GPU product asked for;
    transfer: connector settings, None without one; engine_flags: whether `words` are flags of the engine's parser.
    """

    where: str
    pool: str
    role: str
    weights: str
    replicas: int
    nodes: int
    node_gpus: int
    words: Words
    settings: Settings
    transfer: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[tuple[str, int], ...] = ()
    label: str | None = None
    image: str | None = None
    program: str | None = None
    pod: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests that a pool gets, of those that no rule before it took.

    upto: largest body [byte], None: any; chance: part of them [1 / PARTS], drawn at random, None: all;
    slo_class: label of their class, empty: any.
    """

    pool: str
    upto: int | None = None
    chance: int | None = None
    slo_class: str = ""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What a gateway's file says: rules, the last one for all that is left, and each backend's addresses.

    checked: addresses that are asked for their health.
    """

    rules: tuple[Rule, ...]
    backends: Mapping[str, tuple[str, ...]]
    checked: frozenset[str]


@dataclass(frozen=True, slots=True)
class FoundRouter:
    """Who sends requests where: URLs by role, and whether prompts and tokens are split."""

    where: str
    splits: bool
    targets: Mapping[str, tuple[str, ...]]
    words: Words = ()
    command: tuple[str, ...] = ()
    """All words after the program, where it is a command."""
    grid: Mapping[str, Any] | None = None
    """Which pool takes which prompt lengths, where the router chooses by them."""
    gateway: Gateway | None = None
    """The same where it chooses by the size of requests."""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that a set of files deploys."""

    workers: tuple[FoundWorker, ...]
    router: FoundRouter | None = None
    planner: Mapping[str, Any] | None = None
    names: tuple[str, ...] = ()
    """Names of Kubernetes objects that are put together into longer ones."""
    namespaces: tuple[tuple[str, str | None], ...] = ()
    """Kubernetes objects, each with its namespace."""
    containers: Mapping[str, Any] = field(default_factory=dict)
    """Docker compose files, by their paths."""


def words_of(where: str, text: list[str]) -> Words:
    """Pair up flags and values of a command line.

    >>> words_of("x", ["--tp", "2", "--fast"])
    (('--tp', '2'), ('--fast', None))
    """
    found: list[tuple[str, str | None]] = []
    for word in text:
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            found.append((name, value))
        elif word.startswith("--"):
            found.append((word, None))
        elif found and found[-1][1] is None:
            found[-1] = (found[-1][0], word)
        else:
            raise InputError(f"{where}: {shown(word)} stands where a flag is expected")
    return tuple(found)


def plain_words(words: Words) -> list[str]:
    """A command line of flags and values.

    >>> plain_words((("--tp", "2"), ("--fast", None)))
    ['--tp', '2', '--fast']
    """
    return [part for name, value in words for part in ((name,) if value is None else (name, value))]


def one_line(value: Mapping[str, Any]) -> str:
    """An object as one line of JSON that is the same for the same content; empty for none.

    >>> one_line({"b": 1, "a": {"c": 2.0}}), one_line({})
    ('{"a":{"c":2.0},"b":1}', '')
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""


def json_object(where: str, text: str) -> dict[str, Any]:
    """Read a JSON object, such as the value of --kv-transfer-config."""
    found: dict[str, Any] | object = JsonText(where, text).value()
    if not isinstance(found, dict):
        raise InputError(f"{where}: is {json_kind(found)}, an object is wanted")
    return found


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
        found = self.values[name]
        if found != value and not (value is True and name.startswith("-")):
            raise InputError(f"{self.where}: {name} is {found}, not {value}")

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
