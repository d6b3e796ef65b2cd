"""From the validation library's errors to faults in the words of the house."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from costmodel.errors import name_hint
from costmodel.quoting import name_list, shown

from .faults import Fault, Path
from .fields import HOUSE

_NOT_A_LIST = {"list_type", "tuple_type", "iterable_type"}
_NOT_A_MAPPING = {"model_type", "model_attributes_type", "dict_type", "mapping_type", "dataclass_type"}


def faults_of(error: ValidationError, schema: dict[str, Any]) -> list[Fault]:
    """Return one fault for each error, in the order in which they were found; schema: JSON Schema of the file."""
    return [_fault(details, schema) for details in error.errors(include_url=False)]


def _fault(details: ErrorDetails, schema: dict[str, Any]) -> Fault:
    path: Path = tuple(details["loc"])
    kind, given = details["type"], details["input"]
    on_key = path[-1:] == ("[key]",)
    if kind == HOUSE:
        return Fault(path[:-1] if on_key else path, details["msg"], on_key)
    if kind == "missing":
        return Fault(path, f"is missing{_meaning(schema, path)}")
    if kind == "union_tag_invalid":
        context = details.get("ctx", {})
        allowed = str(context.get("expected_tags", "")).replace("'", "")
        return Fault(
            (*path, str(context.get("discriminator", "kind")).strip("'")),
            f"is {shown(context.get('tag'))}; allowed: {allowed}",
        )
    if kind == "extra_forbidden":
        comma = given is None and str(path[-1]).isdecimal()
        return Fault(path, _COMMA if comma else _unknown_key(schema, path), on_key=True)
    return Fault(path, _wrong_shape(kind, given, path, schema))


def _wrong_shape(kind: str, given: object, path: Path, schema: dict[str, Any]) -> str:
    """What is said of a value of another shape."""
    if kind in _NOT_A_LIST:
        return f"{shown(given)} is not a list"
    if kind in _NOT_A_MAPPING:
        keys = name_list(sorted(_properties(schema, path)))
        return f"{shown(given)} is not a mapping{f' with the keys {keys}' if keys else ''}"
    return f"{shown(given)} cannot stand here"


_COMMA = "is not a known key; inside {...} a comma ends a value, so write decimals with a point: 2.50, not 2,50"


def _unknown_key(schema: dict[str, Any], path: Path) -> str:
    allowed = sorted(_properties(schema, path[:-1]))
    return f"is not a known key; {name_hint(str(path[-1]), allowed, 'allowed')}"


def _meaning(schema: dict[str, Any], path: Path) -> str:
    description = _properties(schema, path[:-1]).get(str(path[-1]), {}).get("description", "")
    text = " ".join(description.split()).rstrip(".")
    if not text:
        return ""
    return f" ({text})" if text[1:2].isupper() else f" ({text[0].lower()}{text[1:]})"


def _properties(schema: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the keys that the schema allows at `path`, with their schemas."""
    nodes = list(_variants(schema, schema))
    for part in path:
        if isinstance(part, str) and part.startswith("<"):
            continue
        steps = [step for node in nodes if isinstance(step := _below(node, part), dict)]
        nodes = [variant for step in steps for variant in _variants(step, schema)]
    return {key: value for node in nodes for key, value in node.get("properties", {}).items()}


def _below(node: dict[str, Any], part: str | int) -> Any:
    """The schema of an item of a list, or of what stands under a key."""
    if isinstance(part, int):
        return node.get("items")
    return node.get("properties", {}).get(part, node.get("additionalProperties"))


def _variants(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the node, and what it refers to or chooses from."""
    yield node
    if "$ref" in node:
        yield from _variants(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    for word in ("anyOf", "oneOf", "allOf"):
        for option in node.get(word, ()):
            yield from _variants(option, schema)
