"""The plan as JSON text, for a file and for embedding in a page."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimizer.plans.plan import Plan


def plan_json(plan: Plan) -> str:
    """Return the plan as JSON: fields in the model's order, numbers that JSON cannot say (NaN, infinity) as null."""
    return json_text(plan_record(plan))


def json_text(record: Any) -> str:
    """Write plain values as JSON text, numbers that it cannot say as null."""
    return json.dumps(finite(record), indent=2, allow_nan=False) + "\n"


def as_script(record: Any) -> str:
    """Write plain values as JSON without the characters that HTML gives a meaning."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def plan_record(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    return plan.model_dump(mode="python", by_alias=True)


def finite(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, infinity) by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
