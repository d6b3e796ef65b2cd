"""Values of a file replaced from elsewhere, as `--set` does: by dotted path, before anything is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.errors import InputError
from costmodel.quoting import shown

from .faults import Path, Source
from .levers import place_in
from .yaml_source import MAX_DEPTH, parse_value

SHORT_FOR = {"model": "name", "search": "preset", "objective": "goal"}
"""Sections of which a word is short for a mapping, with the key that the word is the value of, as in `schema`."""
SHOWN_OVERRIDE = 60
"""Characters of an override that a message repeats."""


def override(source: Source, overrides: Mapping[str, Any]) -> Source:
    """Return the source with values replaced: dotted path -> value; a text is read as YAML, as on a command line.

    Items of lists are told by their number, from 0, or by their name: accelerators.H100.price.
    """
    value = source.value
    stated = dict(source.overridden)
    for dotted, given in overrides.items():
        keys = dotted.split(".")
        if len(keys) > MAX_DEPTH:
            raise InputError(f"override {shown(dotted)}: is nested deeper than {MAX_DEPTH} levels")
        if "" in keys:
            raise InputError(f"override {shown(dotted)}: a key is missing beside a dot; write for example slo.ttft")
        path = _path(value, keys, f"override {shown(dotted)}")
        value = _replaced(value, path, _given(dotted, given))
        stated[path] = _stated(dotted, given)
    return replace(source, value=value, overridden=stated)


def _stated(dotted: str, given: Any) -> str:
    """How a message names an override: as it was written, or by its key alone where no line of text wrote it."""
    if isinstance(given, Mapping | list | tuple):
        return dotted
    text = f"{dotted}={given if isinstance(given, str) and given.isprintable() else shown(given)}"
    return text if len(text) <= SHOWN_OVERRIDE else f"{text[: SHOWN_OVERRIDE - 3]}..."


def _given(dotted: str, given: Any) -> Any:
    try:
        return parse_value(given) if isinstance(given, str) else given
    except InputError as error:
        raise InputError(f"override {shown(dotted)}: {error}") from error


def _path(value: Any, keys: list[str], where: str) -> Path:
    """Where the parts lead in a value, with numbers for items of lists; where: the override, in messages."""
    path: list[str | int] = []
    for key in keys:
        value = _mapping_of(value, tuple(path))
        if isinstance(value, list):
            place = place_in(value, key, where)
            path.append(place)
            value = value[place]
        elif value is None or isinstance(value, dict):
            path.append(key)
            value = (value or {}).get(key)
        else:
            raise InputError(f"{where}: {shown(value)} stands above {shown(key)}; override the whole of it")
    return tuple(path)


def _mapping_of(value: Any, path: Path) -> Any:
    """The mapping that a word at a path is short for: `search: standard`, or `- H100` in a list; else the value."""
    key = "name" if path and isinstance(path[-1], int) else SHORT_FOR.get(str(path[0])) if len(path) == 1 else None
    return {key: value} if key is not None and isinstance(value, str) else value


def _replaced(value: Any, path: Path, given: Any, above: Path = ()) -> Any:
    if not path:
        return given
    head, rest, value = path[0], path[1:], _mapping_of(value, above)
    here = (*above, head)
    if isinstance(value, list):
        return [_replaced(item, rest, given, here) if place == head else item for place, item in enumerate(value)]
    mapping = dict(value or {})
    mapping[str(head)] = _replaced(mapping.get(str(head)), rest, given, here)
    return mapping
