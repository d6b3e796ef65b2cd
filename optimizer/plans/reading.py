"""Why a file is no plan, in one clause of the house: what it is, or where it says what no plan says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from costmodel.errors import InputError
from costmodel.quoting import shown

_TYPES: Final = {
    "string": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
"""What is wanted, by the first word of the validation library's name of an error."""
_BOUNDS: Final = {"greater_than_equal": ("ge", "below"), "less_than_equal": ("le", "above")}
_KINDS: Final = ((str, "a text"), (list, "a list"), (bool, "true or false"), (int | float, "a number"))


def json_object(text: bytes, schema: str) -> Mapping[str, Any]:
    """Parse a file that holds an object of this schema; raise InputError, which says what it is instead."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise InputError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        what = "it is empty" if not text.strip() else f"it is not JSON at line {error.lineno}, column {error.colno}"
        raise InputError(what) from error
    except UnicodeDecodeError as error:
        raise InputError("it is not a text in UTF-8") from error
    except ValueError as error:  # an integer of thousands of digits
        raise InputError("it is not JSON: a number has thousands of digits") from error
    if not isinstance(value, dict):
        kind = next((words for kind, words in _KINDS if isinstance(value, kind)), "null")
        raise InputError(f"it is {kind}, and a plan is an object with the schema {schema}")
    _check_schema(value, schema)
    return value


def _check_schema(value: Mapping[str, Any], schema: str) -> None:
    found, family = value.get("schema"), schema.partition("/")[0]
    if found == schema:
        return
    if "schema" not in value:
        raise InputError(f"it names no schema, which for a plan is {schema}")
    if isinstance(found, str) and found.startswith(f"{family}/"):
        raise InputError(f"its schema is {shown(found)}, not {schema}; make it again with pdplan optimize")
    raise InputError(f"its schema is {shown(found)}, not {schema}")


def first_fault(error: ValidationError) -> str:
    """Say where the first fault of a plan is, and what is wrong there."""
    details: Mapping[str, Any] = dict(error.errors(include_url=False)[0])
    where = ".".join(str(part) for part in details["loc"])
    return f"{where}: {_fault(details)}" if where else _fault(details)


def _fault(details: Mapping[str, Any]) -> str:
    kind, given = details["type"], shown(details["input"])
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


def _no_constant(word: str) -> float:
    raise InputError(f"it is not JSON: {word} is no number there")
