"""Why a file is no plan, in one clause of the house: what it is, or where it says what no plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from costmodel.quoting import shown
from search_spaces.faults import Fault
from search_spaces.fields import HOUSE
from search_spaces.json_source import JsonText, json_kind, json_shown

_TYPES: Final = {
    "string": "a string",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "list": "an array",
    "dict": "an object",
    "model": "an object",
}
"""What is wanted, by the first word of the validation library's name of an error."""
_BOUNDS: Final = {"greater_than_equal": ("ge", "below"), "less_than_equal": ("le", "above")}


def json_object(text: JsonText, schemas: Sequence[str]) -> Mapping[str, Any]:
    """Parse a file that holds an object of one of these schemas, the first the newest.

    Raises InputError, which says what it is instead.
    """
    value = text.value()
    if not isinstance(value, dict):
        raise text.error(f"it is {json_kind(value)}, and a plan is an object with the schema {schemas[0]}")
    _check_schema(text, value, schemas)
    return value


def _check_schema(text: JsonText, value: Mapping[str, Any], schemas: Sequence[str]) -> None:
    found, family = value.get("schema"), schemas[0].partition("/")[0]
    if found in schemas:
        return
    if "schema" not in value:
        raise text.error(f"it names no schema, which for a plan is {schemas[0]}")
    if isinstance(found, str) and found.startswith(f"{family}/"):
        readable = " or ".join(schemas)
        raise text.error(f"is {shown(found)}, not {readable}; make it again with pdplan optimize", ("schema",))
    raise text.error(f"is {json_shown(found)}, not {schemas[0]}", ("schema",))


def first_fault(error: ValidationError) -> Fault:
    """Where the first fault of a file is, and what is wrong there."""
    details: Mapping[str, Any] = dict(error.errors(include_url=False)[0])
    path = tuple(details["loc"])
    if details["type"] == HOUSE:
        return Fault((*path, *details["ctx"]["path"]), details["ctx"]["sentence"])
    return Fault(path, _fault(details))


def _fault(details: Mapping[str, Any]) -> str:
    kind, given = details["type"], json_shown(details["input"])
    if kind == "value_error":
        return str(details["msg"]).removeprefix("Value error, ")
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "is not known to this version of pdplan"
    context = details.get("ctx", {})
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{given} is {words} {context[key]:g}"
    if kind in {"enum", "literal_error"}:
        return f"{given} is none of {context['expected']}"
    wanted = _TYPES.get(kind.partition("_")[0])
    return f"{given} is not {wanted}" if wanted else f"{given} cannot stand here"
