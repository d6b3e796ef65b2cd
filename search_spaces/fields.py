"""Field types of the user's files: they read numbers with units and refuse in the words of the house.

Each type carries its own JSON Schema, so that an editor knows the units, and raises `house_error`, so that no
message of the validation library reaches a user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from costmodel.errors import nearest_name

from .quantities import BASE_UNIT, EXAMPLES, Kind, QuantityError, allowed_units, parse, shown

HOUSE = "house"
"""Type of the validation errors whose message is already a sentence for the user."""


def house_error(sentence: str) -> PydanticCustomError:
    """An error whose message is shown as it stands."""
    return PydanticCustomError(HOUSE, "{sentence}", {"sentence": sentence})


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Metadata of a field type: how it is read, and what it looks like in the JSON Schema."""

    read: Callable[[object], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Only `read` decides."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema as given."""
        return dict(self.schema)


def checked(value: float, given: object, low: float, high: float, *, open_low: bool, open_high: bool) -> float:
    """Return `value` if it lies in the range, else raise an error that names the range."""
    below = value <= low if open_low else value < low
    above = value >= high if open_high else value > high
    if below or above:
        raise house_error(f"{shown(given)} is out of range; {_range(low, high, open_low, open_high)}")
    return value


def _range(low: float, high: float, open_low: bool, open_high: bool) -> str:
    lower = f"must be {'above' if open_low else 'at least'} {low:g}"
    upper = f"{'below' if open_high else 'at most'} {high:g}"
    return lower if math.isinf(high) else f"{lower} and {upper}"


def quantity(kind: Kind, *, positive: bool = True, plain_limit: float = math.inf, likely: str = "") -> Reader:
    """A float in the base unit of `kind`, written with or without a unit; zero is allowed unless `positive`.

    A plain number above `plain_limit` is refused, for its writer surely had the unit `likely` in mind.
    """
    base = BASE_UNIT[kind]

    def read(value: object) -> float:
        try:
            number = parse(value, kind)
        except QuantityError as error:
            raise house_error(str(error)) from None
        if not isinstance(value, str) and number > plain_limit:
            raise house_error(
                f"{number:g} without a unit means {number:g} {base}; write {number:g}{likely} or '{number:g} {base}'"
            )
        return checked(number, value, 0.0, math.inf, open_low=positive, open_high=False)

    plain: dict[str, Any] = {
        "type": "number",
        "exclusiveMinimum" if positive else "minimum": 0,
        "description": f"{kind} in {base}",
    }
    text = {"type": "string", "description": f"number and unit ({allowed_units(kind)}), for example {EXAMPLES[kind]}"}
    return Reader(read, {"anyOf": [plain, text]})


def number(
    low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False, hint: str = ""
) -> Reader:
    """A plain finite number in a range; `hint` is added when it is out of range."""

    def read(value: object) -> float:
        found = _finite(value)
        try:
            return checked(found, value, low, high, open_low=open_low, open_high=open_high)
        except PydanticCustomError as error:
            if not hint:
                raise
            raise house_error(f"{error.message()}; {hint}") from None

    schema: dict[str, Any] = {"type": "number", "exclusiveMinimum" if open_low else "minimum": low}
    if math.isfinite(high):
        schema["exclusiveMaximum" if open_high else "maximum"] = high
    return Reader(read, schema)


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise house_error(f"{shown(value)} is not a number{_unquoted(value)}")
    if not math.isfinite(value):
        raise house_error(f"{shown(value)} is not a finite number")
    return float(value)


def _unquoted(value: object) -> str:
    """A hint for numbers in quotes."""
    try:
        return f"; write {value} without quotes" if isinstance(value, str) and math.isfinite(float(value)) else ""
    except ValueError:
        return ""


def count(low: int, high: int | None = None) -> Reader:
    """A whole number of at least `low`; 1e3 is as good as 1000."""

    def read(value: object) -> int:
        found = _finite(value)
        if found != int(found):
            raise house_error(f"{shown(value)} is not a whole number")
        return int(checked(found, value, low, math.inf if high is None else high, open_low=False, open_high=False))

    schema: dict[str, Any] = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return Reader(read, schema)


def _attainment(value: object) -> float:
    """0.9, 90% or p90 -> 0.9; a plain 90 is refused with a hint."""
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value.strip())
        if match is None:
            raise house_error(f"{value!r} is not a share of requests; write 0.9, 90% or p90")
        share = float(match["p"] or match["percent"]) / 100
    else:
        share = _finite(value)
    if not 0 < share < 1:
        hint = f"; did you mean {share / 100:g}?" if 1 < share < 100 else ""
        raise house_error(f"{shown(value)} is out of range; must be above 0 and below 1{hint}")
    return share


_PERCENT = re.compile(r"p(?P<p>[0-9]+(?:\.[0-9]+)?)|(?P<percent>[0-9]+(?:\.[0-9]+)?) ?%")

read_attainment = Reader(
    _attainment,
    {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            {"type": "string", "description": "percentile or percent, for example p90 or 90%"},
        ]
    },
)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        quotes = f"; write '{value}' in quotes if the text is meant" if isinstance(value, int | float) else ""
        raise house_error(f"{shown(value)} is not a text{quotes}")
    if not value.strip():
        raise house_error("is empty, but must be a text")
    return value.strip()


Text = Annotated[str, Reader(_read_text, {"type": "string", "minLength": 1})]


def known(text: str, allowed: tuple[str, ...]) -> str:
    """Return the allowed word equal to `text` but for case, else raise an error that names the nearest one and all."""
    for word in allowed:
        if word.lower() == text.lower():
            return word
    close = nearest_name(text, allowed)
    hint = f"did you mean {close!r}? " if close else ""
    raise house_error(f"{text!r} is not known; {hint}allowed: {', '.join(allowed)}")


def choice(*allowed: str) -> Reader:
    """One of a few words, in any case."""

    def read(value: object) -> str:
        return known(value if isinstance(value, str) else shown(value), allowed)

    return Reader(read, {"type": "string", "enum": list(allowed)})


def member(kind: type[StrEnum]) -> Reader:
    """One of the members of an enumeration, written as its value."""
    words = tuple(item.value for item in kind)

    def read(value: object) -> StrEnum:
        return kind(known(value if isinstance(value, str) else shown(value), words))

    return Reader(read, {"type": "string", "enum": list(words)})


def from_word(key: str) -> Callable[[object], object]:
    """Let a single word stand for a mapping with one key: `H100` for `{name: H100}`."""

    def expand(value: object) -> object:
        return {key: value} if isinstance(value, str) else value

    return expand


def listed(value: object) -> object:
    """Let one item stand for a list of one."""
    return value if isinstance(value, list) else [value]


class Section(BaseModel):
    """Base of all sections of a user's file: unknown keys are faults, docstrings document."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)


def exactly_one(section: BaseModel, *names: str) -> None:
    """Raise unless exactly one of the attributes is given."""
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "has none of them"
        raise house_error(f"needs exactly one of {', '.join(names)}, but {found}")
