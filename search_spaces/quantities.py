"""Numbers with units at the edge: `500ms`, `80GiB`, `400Gb/s`, `10/s`, `50kW`, `$2.50/h` -> floats in SI base units.

One table of units (`units.yaml`), one parser, one formatter. A number without a unit is in the base unit of its kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Any

from costmodel.errors import InputError, shown
from costmodel.units import GIB, MICRO, MILLI, TERA
from costmodel.words import join_words

from .files import shipped_table


class Kind(StrEnum):
    """What a quantity measures; the value reads well in a sentence ("is not a duration")."""

    DURATION = "duration"
    SIZE = "size"
    BANDWIDTH = "bandwidth"
    RATE = "rate"
    POWER = "power"
    PRICE = "price"
    PERCENTAGE = "percentage"


_TABLE = shipped_table("search_spaces", "units.yaml")
UNITS: Mapping[Kind, Mapping[str, float]] = {
    kind: {unit: float(Fraction(str(size))) for unit, size in _TABLE[kind]["units"].items()} for kind in Kind
}
"""Size of each unit in the base unit of its kind; the only place where a unit's size stands."""
_SYNONYMS: Mapping[Kind, Mapping[str, str]] = {kind: _TABLE[kind].get("synonyms", {}) for kind in Kind}
EXAMPLES: Mapping[Kind, Sequence[str]] = {kind: _TABLE[kind]["examples"] for kind in Kind}
BASE_UNIT: Mapping[Kind, str] = {
    kind: next(unit for unit, size in units.items() if size == 1.0) for kind, units in UNITS.items()
}
"""The unit of a plain number, and of every number inside pdplan."""

SUFFIXES: Mapping[str, float] = {"_us": MICRO, "_ms": MILLI, "_gib": float(GIB), "_tb_s": TERA, "_w": 1.0}
"""Units in the keys of the catalog's files, in the base unit."""


def in_base_units(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a file of the catalog, whose keys end in units, in base units and without them.

    >>> in_base_units({"launch_us": 4.0, "source": "x"})
    {'launch': 4e-06, 'source': 'x'}
    """
    plain: dict[str, Any] = {}
    for key, value in row.items():
        suffix = next((suffix for suffix in SUFFIXES if key.endswith(suffix)), "")
        plain[key.removesuffix(suffix)] = value * SUFFIXES[suffix] if suffix else value
    return plain


_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

_AFTER_COMMA = re.compile(r",[0-9]")
"""What follows the digits of 5,50, which is five and a half, and of 1,000, which is a thousand."""


class QuantityError(InputError):
    """A text is not a quantity of the kind wanted; the message is a clause without its place."""


def parse(value: object, kind: Kind, forms: str = "") -> float:
    """Return `value` in the base unit of `kind`; raise `QuantityError` if it is not such a quantity.

    forms: how it may be written in this place, for the refusal; default: any example of its kind.

    >>> parse("500ms", Kind.DURATION), parse("400Gb/s", Kind.BANDWIDTH), parse("$2.50/h", Kind.PRICE)
    (0.5, 50000000000.0, 2.5)
    """
    forms = forms or join_words(EXAMPLES[kind], "or")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise QuantityError(f"{shown(value)} is not a {kind}; write for example {forms}")
    try:
        number = _parse_text(value, kind, forms) if isinstance(value, str) else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise QuantityError(f"{shown(value)} is not a finite number; write for example {forms}")
    return number


def check_plain(value: object, seconds: float, limit: float, accepted: Callable[[float], bool]) -> None:
    """Raise `QuantityError` for a time above `limit` [s] that was written without a unit: it may mean milliseconds.

    accepted: whether so many seconds may stand in this place; where milliseconds may not, they are not meant.

    >>> check_plain("50 s", 50.0, limit=10.0, accepted=lambda seconds: True)
    """
    has_no_unit = not isinstance(value, str) or _NUMBER.fullmatch(value.strip())
    if seconds > limit and has_no_unit and accepted(seconds * MILLI):
        number = f"{seconds:.15g}"
        forms = f"{number}ms or '{number} s'" if accepted(seconds) else f"{number}ms"
        raise QuantityError(f"{number} without a unit means {number} s; write {forms}")


def _parse_text(text: str, kind: Kind, forms: str) -> float:
    content = text.strip()
    dollar = kind is Kind.PRICE and content.startswith("$")
    body = content.removeprefix("$").lstrip() if dollar else content
    match = _NUMBER.match(body)
    if match is None:
        raise QuantityError(f"{shown(text)} is not a {kind}; write a number and a unit, for example {forms}")
    unit = body[match.end() :].strip()
    if not unit:
        return float(match.group())
    if _AFTER_COMMA.match(unit):
        raise QuantityError(f"{shown(text)} has a comma; write a decimal point, and thousands closed up: {forms}")
    scale = unit_size(unit, kind)
    if scale is None and not any(letter.isalpha() or letter in "$/" for letter in unit):
        raise QuantityError(f"{shown(text)} is not a {kind}; write for example {forms}")
    if scale is None:
        alike = [name for name in UNITS[kind] if name.lower() == unit.lower()]  # b is no B, and M no m
        hint = f"; did you mean {' or '.join(map(repr, alike))}?" if alike else ""
        raise QuantityError(f"{shown(text)} has the unit {shown(unit)}, but a {kind} is in {allowed_units(kind)}{hint}")
    return _in_base(float(match.group()), scale)


def unit_size(unit: str, kind: Kind) -> float | None:
    """The size of a unit in the base unit of its kind; None where it is none.

    >>> unit_size("msec", Kind.DURATION), unit_size("W", Kind.DURATION)
    (0.001, None)
    """
    return UNITS[kind].get(_SYNONYMS[kind].get(unit, unit))


def as_share(text: str) -> float | None:
    """A percentage as a share [1]; None where the text is none.

    >>> as_share("5%"), as_share("-2.5 %"), as_share("0.05")
    (0.05, -0.025, None)
    """
    match = _PERCENTAGE.fullmatch(text.strip())
    return None if match is None else float(f"{match[1]}e-2")  # division by 100 makes 0.9990000000000001 of 99.9


_PERCENTAGE = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) ?%")


def as_probability(text: str) -> float | None:
    """A percentage or a percentile as a share [1]; None where the text is neither.

    >>> as_probability("p99.9"), as_probability("90%"), as_probability("0.9")
    (0.999, 0.9, None)
    """
    match = _PERCENTILE.fullmatch(text.strip())
    return as_share(text if match is None else f"{match[1]}%")


_PERCENTILE = re.compile(r"[pP]([0-9]+(?:\.[0-9]+)?)")


def _in_base(number: float, scale: float) -> float:
    """The product; for units below the base, whose inverse is whole, by division, which rounds 5us to 5e-6 exactly."""
    return number * scale if scale >= 1 else number / round(1 / scale)


def allowed_units(kind: Kind) -> str:
    """The units of a kind, smallest family first, for messages and documentation.

    >>> allowed_units(Kind.POWER)
    'W, kW or MW'
    """
    return join_words(list(UNITS[kind]), "or")


def format_quantity(value: float, kind: Kind) -> str:
    """Return the shortest text that reads back exactly: parse(format_quantity(v)) == v. Bits are shown as bytes.

    >>> format_quantity(0.5, Kind.DURATION), format_quantity(5e10, Kind.BANDWIDTH), format_quantity(2.5, Kind.PRICE)
    ('500ms', '50GB/s', '$2.5/h')
    """
    if kind is Kind.PRICE:
        return f"${value:.15g}/h" if float(f"{value:.15g}") == value else f"${value!r}/h"
    texts = []
    for unit, scale in sorted(UNITS[kind].items(), key=lambda item: item[1], reverse=True):
        text = f"{value / scale if scale >= 1 else value * round(1 / scale):.15g}"
        if scale <= abs(value) and not unit.endswith("b/s") and _in_base(float(text), scale) == value:
            texts.append(f"{text}{unit}")
    if texts:
        return min(texts, key=len)
    return f"{value!r}{BASE_UNIT[kind]}"


def rounded(value: float) -> float:
    """Four significant digits: more than any fit or trace knows.

    >>> rounded(0.123456), rounded(1234567.0)
    (0.1235, 1235000.0)
    """
    return float(f"{value:.4g}")


def finite_number(text: str) -> float | None:
    """The finite number that a text is; None where it is none."""
    value = as_number(text)
    return value if value is not None and math.isfinite(value) else None


def as_number(value: object) -> float | None:
    """A number, or a text that is one; None for anything else, NaN too.

    >>> as_number("inf"), as_number(3), as_number("3s"), as_number(True)
    (inf, 3.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
