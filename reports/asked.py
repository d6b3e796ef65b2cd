"""What a plan was asked for: classes and limits, what was on offer, recordings, hourly rates; and how to ask again."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Container, Mapping
from itertools import pairwise
from typing import Any, Final

from costmodel.metric import Metric, limits_of
from optimizer.plans.plan import Binding, Plan
from reports.numbers import MISSING, count, is_number, listed, quantity, significant
from reports.text import clean
from search_spaces.problem import Slo
from search_spaces.quantities import Kind, format_quantity

MOST_GPUS: Final = 12
FLEET_LIMITS: Final = {
    "budget": ("budget", "$/h"),
    "power": ("power", "W"),
    "max_gpus": ("GPUs", "GPU"),
    "max_pools": ("pools", "pools"),
}
"""Keys under `constraints:` of the limits that one number relaxes: what they limit, and the unit."""
_SECONDS: Final = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)s?")
"""A duration as the echo of the inputs writes it: in seconds, with or without the unit."""


def asked(plan: Plan) -> list[Slo]:
    """The classes of a plan; of one without a fleet, which has no results, those of its inputs, NaN where not told."""
    if plan.classes:
        return [Slo(row.name, row.limits, row.attainment_goal, row.share) for row in plan.classes]
    slos = plan.provenance.inputs.get("slo")
    return [
        Slo(
            str(row.get("name") or "default"),
            limits_of(**{str(metric): _number(row.get(metric)) for metric in Metric}),
            *(_number(row.get(key, default)) or math.nan for key, default in (("attainment", None), ("share", 1.0))),
        )
        for row in _rows(slos if isinstance(slos, list) else [slos])
    ]


def offered(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What could be bought and within which limits, as the inputs say it."""
    inputs = plan.provenance.inputs
    rows = []
    for row in _rows(inputs.get("accelerators"))[:MOST_GPUS]:
        price, stock = _number(row.get("price")), _number(row.get("inventory"))
        terms = [listed(price)] if price is not None else []
        terms += [f"at most {count(stock)}"] if stock is not None else []
        rows.append(clean(str(row.get("name", MISSING)), 24) + (f" ({', '.join(terms)})" if terms else ""))
    limits = inputs.get("constraints")
    limits = limits if isinstance(limits, Mapping) else {}
    pairs = [(name, _number(limits.get(key)), unit) for key, (name, unit) in FLEET_LIMITS.items()]
    spare = limits.get("headroom")
    spares = _number(spare.get("replicas")) if isinstance(spare, Mapping) else None
    return (
        *((("GPU types", ", ".join(rows)),) if rows else ()),
        *((name, f"at most {quantity(value, unit)}") for name, value, unit in pairs if value is not None),
        *((("spare replicas of every pool", count(spares)),) if spares else ()),
    )


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    """A number, or a duration in seconds; None for what is neither.

    >>> _number("0.05s"), _number(0.9), _number("4.9e-06s"), _number(None), _number("soon")
    (0.05, 0.9, 4.9e-06, None, None)
    """
    match = _SECONDS.fullmatch(str(value))
    return float(match[1]) if match else None


def arrival_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """How the requests come: bursty as stated, or as they were recorded."""
    recording, burstiness = _recording(plan.provenance.inputs), significant(plan.workload.burstiness)
    if recording is None:
        return (("burstiness (CV of inter-arrival times; 1 is Poisson)", burstiness),)
    return (
        ("requests simulated", f"as {clean(str(recording.get('source', 'a trace')), 60)} recorded them"),
        ("burstiness in the formulas (measured over windows of time, so it includes waves)", burstiness),
    )


def readable_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a plan with a digest in place of the packed requests."""
    recording = _recording(inputs)
    if recording is None:
        return dict(inputs)
    digest = hashlib.sha256(str(recording.get("packed")).encode()).hexdigest()[:16]
    summary = dict(recording) | {"packed": f"SHA-256 {digest}…"}
    return dict(inputs) | {"workload": dict(inputs["workload"]) | {"recorded": summary}}


def _recording(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    workload = inputs.get("workload")
    recording = workload.get("recorded") if isinstance(workload, Mapping) else None
    return recording if isinstance(recording, Mapping) else None


HOURS: Final = 24


def arrivals(plan: Plan) -> tuple[float, ...]:
    """The stated mean rate of each hour of a day [1/s]; empty where one mean rate was stated."""
    workload: Any = plan.provenance.inputs.get("workload")
    profile = workload.get("diurnal") if isinstance(workload, Mapping) else None
    rates = profile.get("requests_per_second_by_hour") if isinstance(profile, Mapping) else None
    if not isinstance(rates, list) or len(rates) != HOURS or plan.demand_rps <= 0:
        return ()
    if not all(isinstance(value, int | float) and is_number(value) and value >= 0 for value in rates):
        return ()
    return tuple(map(float, rates))


def day_rate(plan: Plan) -> float:
    """Mean over the day of the rate that a fleet for the planned one serves [1/s]; 0 without a profile."""
    rates = arrivals(plan)
    return sum(min(value, plan.demand_rps) for value in rates) / len(rates) if rates else 0.0


MOST_COMMAND: Final = 2000
"""Characters of a command; a line that is cut cannot be copied."""


def command_of(plan: Plan) -> str:
    """The command line that gave a plan."""
    return clean(plan.provenance.run.command, MOST_COMMAND) or "pdplan optimize workload.yaml"


def has_fleet(plan: Plan) -> bool:
    """Tell whether the plan has a fleet."""
    return plan.cost_usd_per_hour is not None and plan.status.has_fleet


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


WRITTEN: Final = frozenset(("-o", "--output", "--deploy"))
"""Options with a value that say where a plan is written: another one has its own."""


HOW_TO_SHOW: Final = frozenset(("-q", "--quiet", "-v", "--verbose", "--no-color"))
"""Options that say how a run shows itself: nothing of the next one's business."""


def next_command(plan: Plan) -> str:
    """Name the command that a reader would want next, made from the one that gave the plan, to be copied as it is."""
    words = command_words(plan)
    command = shlex.join(words)
    workload = next((word for word in words if word.endswith((".yaml", ".yml"))), "the workload file")
    if not has_fleet(plan):
        settings = relaxed_settings(plan)
        if not settings:
            return f"relax a limit in {workload}, then {command}"
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return shlex.join([*_without_settings(words, settings), *options])
    for flag in ("-o", "--output"):
        if flag in words[:-1]:
            has_others = any(row.pools for row in plan.alternatives[1:])
            hint = "   # --alternative N: fleet N" if has_others else ""
            return f"pdplan simulate {shlex.quote(words[words.index(flag) + 1])}/plan.json{hint}"
    return f"{command} -o plan   # writes plan.json and report.html"


def _without_settings(words: list[str], keys: Container[str]) -> list[str]:
    """The words of a command without the --set options of these keys; the key may stand behind an equals sign."""
    joined = [word for word in words if not (word.startswith("--set=") and word.split("=")[1] in keys)]
    dropped = {
        at for at, (flag, value) in enumerate(pairwise(joined)) if flag == "--set" and value.partition("=")[0] in keys
    }
    return [word for at, word in enumerate(joined) if not {at - 1, at} & dropped]


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
            place = f"slo.{clean(limit.where)}" if len(asked(plan)) > 1 else "slo"
            settings[f"{place}.{limit.constraint}"] = format_quantity(enough, Kind.DURATION)
        else:
            return {}
    return settings


def again_command(plan: Plan, flags: str) -> str:
    """The command that plans the same problem again with other flags, without those in WRITTEN and their values.

    So it writes nothing over this plan; a value may stand behind an equals sign. What the flags say anew is left out:
    an option, or a key behind `--set`.
    """
    flag_words = shlex.split(flags)
    replaced = WRITTEN | {word.partition("=")[0] for word in flag_words if word.startswith("-")} - {"--set"}
    keys = {word.partition("=")[0] for before, word in pairwise(flag_words) if before == "--set"}
    words = _without_settings(command_words(plan), keys)
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before not in replaced and word.partition("=")[0] not in replaced | {"--force"}
    ]
    return f"{shlex.join(kept)} {flags}"


def command_words(plan: Plan) -> list[str]:
    """The words of the command that gave the plan, but for how it shows itself."""
    command = command_of(plan)
    try:
        return [word for word in shlex.split(command) if word not in HOW_TO_SHOW]
    except ValueError:
        return command.split()
