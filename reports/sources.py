"""Where the numbers come from: catalog entries flattened to rows with value, origin and source.

The catalog's layout may grow; any record that says its `origin` becomes a row, wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from optimizer.plans.records import LARGEST

from .document import Table, table_of
from .numbers import MISSING, count, percent, quantity, significant
from .text import SENTENCE_LIMIT, clean, sentence

MOST_ROWS: Final = 200
MOST_VALUES: Final = 16
_NAMES: Final = ("kernel", "kernel_class", "dtype", "name")
_ABOUT: Final = {"origin", "source", "date", "error", *_NAMES}
_SHEET_UNITS: Final = {"memory": "B", "bandwidth": "B/s", "tdp": "W", "latency": "s", "peak_flops": "FLOP/s"}
_RECORD_UNITS: Final = {
    "usd_per_hour": "$/h",
    "low": "$/h",
    "high": "$/h",
    "launch": "s",
    "compute": "share",
    "memory": "share",
}


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One figure or group of figures that the plan rests on."""

    item: str
    what: str
    values: str
    origin: str
    error: str
    source: str


def source_rows(accelerators: Sequence[Mapping[str, Any]]) -> tuple[SourceRow, ...]:
    """Return a row per accelerator for its data sheet, then one per record with an origin, at most 200."""
    rows: list[SourceRow] = []
    for entry in accelerators:
        name = clean(str(entry.get("name", MISSING)), 30)
        origin = str(entry.get("origin", "vendor"))
        values = "; ".join(_sheet(entry, (), "")[:MOST_VALUES]) or MISSING
        rows.append(SourceRow(name, "data sheet", values, clean(origin, 20), MISSING, _source(entry)))
        for path, record in _records(entry, ()):
            if path:
                rows.append(_row(name, path, record))
    return tuple(rows[:MOST_ROWS])


def _row(name: str, path: Sequence[str], record: Mapping[str, Any]) -> SourceRow:
    labels = [str(record[key]) for key in _NAMES if isinstance(record.get(key), str)]
    error = record.get("error")
    return SourceRow(
        item=name,
        what=clean(" ".join([part for part in path if not part.isdigit()] + labels), 60),
        values=_values(record),
        origin=clean(str(record.get("origin")), 20),
        error=percent(error) if _is_figure(error) else MISSING,
        source=_source(record),
    )


def _records(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        if "origin" in value:
            yield path, value
        for key, item in value.items():
            yield from _records(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _records(item, (*path, str(index)))


def _sheet(entry: Mapping[str, Any], path: tuple[str, ...], unit: str) -> list[str]:
    """Write the numbers of an entry and of its parts that have no origin of their own, with their units."""
    parts: list[str] = []
    for key, value in entry.items():
        below = _SHEET_UNITS.get(str(key), unit)
        if isinstance(value, Mapping) and "origin" not in value:
            parts.extend(_sheet(value, (*path, str(key)), below))
        elif _is_value(key, value):
            words = " ".join(clean(part, 24).replace("_", " ") for part in (*path, str(key)))
            parts.append(f"{words} {_number(value, below)}")
    return parts


def _values(record: Mapping[str, Any]) -> str:
    pairs = [
        f"{clean(str(key), 24).replace('_', ' ')} {_number(value, _RECORD_UNITS.get(str(key), ''))}"
        for key, value in record.items()
        if _is_value(key, value)
    ]
    return "; ".join(pairs[:MOST_VALUES]) or MISSING


def _is_value(key: object, value: object) -> bool:
    return str(key) not in _ABOUT and _is_figure(value)


def _is_figure(value: object) -> TypeGuard[float]:
    """A number that is one: these records are free-form, and what a file holds may be an integer of 400 digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > LARGEST


def _number(value: float, unit: str) -> str:
    if unit:
        return quantity(value, unit)
    if float(value).is_integer() and abs(value) < 1e15:
        return count(value)
    return f"{value:.3g}" if value and (abs(value) >= 1e6 or abs(value) < 1e-3) else significant(value)


def _source(record: Mapping[str, Any]) -> str:
    parts = [str(record[key]) for key in ("source", "date") if record.get(key)]
    return sentence(", ".join(parts)) or MISSING


def facts(record: Mapping[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Flatten a record of plain values to (name, value) pairs.

    >>> facts({"priced": 1021, "dropped": {"memory": 205}, "proven": False, "kinds": [{"kind": "MLA", "layers": 61}]})
    (('priced', '1,021'), ('dropped memory', '205'), ('proven', 'no'), ('kinds', 'kind MLA, layers 61'))
    """
    pairs: list[tuple[str, str]] = []
    for key, value in record.items():
        name = f"{prefix}{_ACRONYMS.sub(_spelled, clean(str(key), 80).replace('_', ' '))}"
        if isinstance(value, Mapping):
            pairs.extend(facts(value, f"{name} "))
        else:
            pairs.append((name, _words(value)))
    return tuple(pairs[:MOST_ROWS])


def searched(record: Mapping[str, Any]) -> tuple[tuple[tuple[str, str], ...], Table]:
    """What was searched: its facts, a tally as the sum of its counts, and the tallies as a table, the largest first."""
    tallies = {key: value for key, value in record.items() if _is_tally(value)}
    sums = {key: sum(value.values()) if key in tallies else value for key, value in record.items()}
    rows = [
        (clean(str(reason), 100).replace("_", " "), count(number), clean(str(key), 40).replace("_", " "))
        for key, tally in tallies.items()
        for reason, number in sorted(tally.items(), key=lambda item: (-item[1], str(item[0])))
    ]
    return facts({_SEARCHED.get(key, key): value for key, value in sums.items()}), table_of(
        ("reason", "#number", "what"), rows
    )


def _is_tally(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(type(n) is int and _is_figure(n) for n in value.values())


_SEARCHED: Final = {
    "flows": "kinds of request (class and length)",
    "settings": "engine settings",
    "fleets_evaluated": "fleets evaluated by formula",
}
"""What the planner calls otherwise than a reader."""
_ACRONYMS: Final = re.compile(r"\b(?:kv|gpus?|url)\b")


def _spelled(found: re.Match[str]) -> str:
    return "GPUs" if found[0] == "gpus" else found[0].upper()


def _words(value: object) -> str:
    """Write a plain value, or a short list of such or of records."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text}" for name, text in facts(value))
    if isinstance(value, list | tuple):
        return clean("; ".join(_words(item) for item in value[:MOST_VALUES]), SENTENCE_LIMIT) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: MISSING}[value]
    if _is_figure(value):
        return _number(value, "")
    return clean(str(value), 120)
