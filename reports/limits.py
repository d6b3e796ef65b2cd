"""The limits of a plan: which are tight or exceeded, how much of each is used, and how far to relax one."""

from __future__ import annotations

import math
from typing import Final

from costmodel.metric import METRICS, Metric
from optimizer.plans.plan import Binding, Plan
from search_spaces.quantities import Kind, format_quantity

from .numbers import MISSING, is_number, percent, quantity, signed_percent
from .question import FLEET_LIMITS, slo_classes
from .text import capital, clean, in_words, sentence

_CONSTRAINTS: Final = {
    "slots": "request slots",
    "time": "prompt time",
    "kv_memory": "KV memory",
    "attention_time": "decode time",
    "link": "KV transfer link",
    "attainment": "permitted misses",
    "inventory": "GPU inventory",
    "budget": "budget",
    "power": "power limit",
    "max_gpus": "GPU limit",
    "max_pools": "limit on pools",
    "max_volume": "most volume",
    "gateway": "limit on pools that the target's router serves",
    **{str(metric): f"{row.label} limit" for metric, row in METRICS.items()},
}


def constraint_words(name: str) -> str:
    """Say a constraint's short name in words."""
    return in_words(name, _CONSTRAINTS)


def limit_words(binding: Binding) -> str:
    """Name a limit and where it holds, such as "the KV memory of d0"."""
    where = clean(binding.where)
    name = f"the {constraint_words(binding.constraint)}"
    return name if where in {"fleet", "default", ""} else f"{name} of {where}"


def used_words(limit: Binding) -> str:
    """How much of a limit is used; of a pool, its load over the most that it can take within the SLO.

    It is not known where nothing is allowed, and where a pool can take no load at all.
    """
    return percent(limit.used / limit.limit) if limit.limit and is_number(limit.used) else MISSING


def tightest_limits(plan: Plan) -> list[Binding]:
    """Limits, tightest first."""
    return sorted(plan.binding, key=lambda b: math.inf if math.isnan(b.slack) else b.slack)


def violated(plan: Plan) -> list[Binding]:
    """Limits that are exceeded, worst first."""
    return [binding for binding in tightest_limits(plan) if binding.slack < 0]


def enough_as_shown(used: float, unit: str) -> float:
    """What is needed, rounded up to the digits that are shown: a limit of $31.62/h would still be below $31.625/h.

    >>> enough_as_shown(31.625, "$/h"), enough_as_shown(7474.0, "W"), enough_as_shown(1001, "GPU")
    (31.63, 7480.0, 1001)
    """
    if unit == "$/h":
        return math.ceil(round(100 * used, 6)) / 100
    if unit not in {"W", "1", "s"} or used <= 0:
        return used
    digit = 10.0 ** (math.floor(math.log10(used)) - 2)  # three significant digits
    return round(math.ceil(round(used / digit, 6)) * digit, 12)


def relaxed_settings(plan: Plan) -> dict[str, str]:
    """The values by dotted path that make the nearest miss a fleet; empty where no single value of the file does it."""
    settings: dict[str, str] = {}
    for limit in violated(plan):
        if not is_number(limit.used):
            return {}
        enough = enough_as_shown(limit.used, limit.unit)
        if limit.constraint in FLEET_LIMITS:
            value = {"$/h": f"${enough:g}/h", "W": f"{enough:g}W"}.get(limit.unit, f"{enough:g}")
            settings[f"constraints.{limit.constraint}"] = value
        elif limit.constraint == "inventory":
            settings[f"accelerators.{clean(limit.where)}.inventory"] = f"{enough:g}"
        elif limit.constraint in set(Metric):
            place = f"slo.{clean(limit.where)}" if len(slo_classes(plan)) > 1 else "slo"
            settings[f"{place}.{limit.constraint}"] = format_quantity(enough, Kind.DURATION)
        else:
            return {}
    return settings


def binding_sentence(binding: Binding) -> str:
    """Say a limit: the planner's own sentence, or one made from its numbers."""
    used, limit = quantity(binding.used, binding.unit), quantity(binding.limit, binding.unit)
    verb = "needs" if binding.used > binding.limit else "uses"
    return sentence(binding.sentence) or f"{capital(limit_words(binding))} is {limit}; the fleet {verb} {used}."


def relax_sentence(binding: Binding) -> str:
    """Say by how much a violated limit would have to give."""
    limit_name = limit_words(binding)
    if not is_number(binding.used) or not is_number(binding.limit):
        return f"Relax {limit_name}."
    change = f" ({signed_percent(binding.used / binding.limit - 1)})" if binding.limit else ""
    return f"Relax {limit_name} to {quantity(enough_as_shown(binding.used, binding.unit), binding.unit)}{change}."
