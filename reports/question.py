"""What a plan was asked for (SLOs, offers, limits, traffic), how much of each limit is used, and what asks it again."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from costmodel.metric import METRICS, Metric, limits_of
from costmodel.units import HOURS_PER_DAY, SECONDS_PER_HOUR
from costmodel.words import join_words, listed, plural
from optimizer.plans.plan import Binding, Plan
from optimizer.plans.records import BURST, QUEUE
from search_spaces.bounds import NO_TARGET, TARGET_NAMES
from search_spaces.problem import Billing, Slo, target_of
from search_spaces.quantities import Kind, format_quantity

from .text import (
    MISSING,
    capital,
    clean,
    count,
    duration,
    in_words,
    is_number,
    percent,
    quantity,
    rate,
    sentence,
    signed_percent,
    significant,
)

FLEET_LIMITS: Final = {
    "budget": ("budget", "$/h"),
    "power": ("power", "W"),
    "max_gpus": ("GPUs", "GPU"),
    "max_pools": ("pools", "pools"),
}
"""Keys under `constraints:` of the limits that one number relaxes: what they limit, and the unit."""


def inputs_of(plan: Plan, *path: str) -> Mapping[str, Any]:
    """The section of a plan's inputs below some keys; empty where there is none."""
    value: Any = plan.provenance.inputs
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def slo_classes(plan: Plan) -> list[Slo]:
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


MOST_GPUS: Final = 12


def offers(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What could be bought and within which limits, as the inputs say it."""
    rows = []
    for row in _rows(plan.provenance.inputs.get("accelerators"))[:MOST_GPUS]:
        price, stock = _number(row.get("price")), _number(row.get("inventory"))
        terms = [listed(price)] if price is not None else []
        terms += [f"at most {count(stock)}"] if stock is not None else []
        rows.append(clean(str(row.get("name", MISSING)), 24) + (f" ({', '.join(terms)})" if terms else ""))
    limits = inputs_of(plan, "constraints")
    pairs = [(name, _number(limits.get(key)), unit) for key, (name, unit) in FLEET_LIMITS.items()]
    spares = spare_replicas(plan)
    return (
        *((("GPU types", ", ".join(rows)),) if rows else ()),
        *((name, f"at most {quantity(value, unit)}") for name, value, unit in pairs if value is not None),
        *((("spare replicas of every pool", count(spares)),) if spares else ()),
    )


def spare_replicas(plan: Plan) -> int:
    """Spare replicas of every pool that the inputs ask for."""
    return int(_number(inputs_of(plan, "constraints", "headroom").get("replicas")) or 0)


def by_node(plan: Plan, accelerator: str) -> bool:
    """Whether whole nodes of an accelerator are billed."""
    rows = _rows(plan.provenance.inputs.get("accelerators"))
    return any(row.get("name") == accelerator and row.get("billing") == Billing.NODE for row in rows)


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


_SECONDS: Final = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)s?")
"""A duration as the echo of the inputs writes it: in seconds, with or without the unit."""


def _number(value: object) -> float | None:
    """A number, or a duration in seconds; None for what is neither.

    >>> _number("0.05s"), _number(0.9), _number("4.9e-06s"), _number(None), _number("soon")
    (0.05, 0.9, 4.9e-06, None, None)
    """
    match = _SECONDS.fullmatch(str(value))
    return float(match[1]) if match else None


def arrival_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """How the requests come: bursty as stated, or as they were recorded."""
    recording, burstiness = inputs_of(plan, "workload", "recorded"), significant(plan.workload.burstiness)
    if not recording:
        return (("burstiness (CV of inter-arrival times; 1 is Poisson)", burstiness),)
    return (
        ("requests simulated", f"as {clean(str(recording.get('source', 'a trace')), 60)} recorded them"),
        ("burstiness in the formulas (measured over windows of time, so it includes waves)", burstiness),
    )


def readable_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a plan with a digest in place of the packed requests."""
    workload = inputs.get("workload")
    recording = workload.get("recorded") if isinstance(workload, Mapping) else None
    if not isinstance(workload, Mapping) or not isinstance(recording, Mapping):
        return dict(inputs)
    digest = hashlib.sha256(str(recording.get("packed")).encode()).hexdigest()[:16]
    summary = dict(recording) | {"packed": f"SHA-256 {digest}…"}
    return dict(inputs) | {"workload": dict(workload) | {"recorded": summary}}


def arrivals(plan: Plan) -> tuple[float, ...]:
    """The stated mean rate of each hour of a day [1/s]; empty where one mean rate was stated."""
    rates = inputs_of(plan, "workload", "diurnal").get("requests_per_second_by_hour")
    if not isinstance(rates, list) or len(rates) != HOURS_PER_DAY or plan.demand_rps <= 0:
        return ()
    if not all(isinstance(value, int | float) and is_number(value) and value >= 0 for value in rates):
        return ()
    return tuple(map(float, rates))


def day_rate(plan: Plan) -> float:
    """Mean over the day of the rate that a fleet for the planned one serves [1/s]; 0 without a profile."""
    rates = arrivals(plan)
    return sum(min(value, plan.demand_rps) for value in rates) / len(rates) if rates else 0.0


def served_rate(plan: Plan) -> float:
    """Rate that the price per token is for [1/s]: the demand, unless the objective leaves it open."""
    per_token, mean_osl = plan.usd_per_million_output_tokens, plan.workload.mean_osl
    if plan.objective == "min_cost" or not per_token or not plan.cost_usd_per_hour or not mean_osl:
        return plan.demand_rps
    return plan.cost_usd_per_hour / per_token * 1e6 / (mean_osl * SECONDS_PER_HOUR)


def demand_sentence(plan: Plan) -> str:
    """Say what was asked: rate, lengths and SLOs."""
    load = plan.workload
    shape = f"{significant(load.mean_isl)} input and {significant(load.mean_osl)} output tokens on average"
    number = len(slo_classes(plan))
    classes = f", {plural(number, 'SLO class')}{' of the same lengths' * (number > 1)}" if number else ""
    return f"{clean(plan.model)} at {rate(plan.demand_rps)} with {shape}{classes}."


def slo_words(slo: Slo) -> str:
    """Say what one class asks for."""
    limits = [f"{METRICS[metric].label} within {duration(limit)}" for metric, limit in slo.limits.items()]
    return f"{clean(slo.name, 30)}: {join_words(limits) or 'no limit'} for {percent(slo.attainment)} of its requests"


def slo_name(plan: Plan, most: int = 0) -> str:
    """Name what a fleet has to meet: the SLO, or every one; of at most so many classes by their names."""
    names = [clean(item.name, 30) for item in slo_classes(plan)]
    if len(names) <= 1:
        return "the SLO"
    return f"the SLOs of {join_words(names)}" if len(names) <= most else "every SLO"


def missed_slo(plan: Plan) -> str:
    """Name what a fleet misses that does not meet `slo_name`: the SLO, or at least one of several."""
    return "the SLO" if len(slo_classes(plan)) <= 1 else "an SLO"


# --- what the figures are of ------------------------------------------------------------------------------------------


def engine_title(name: str) -> str:
    """An engine as its makers write it; a name that no target knows, as a plan may have, as it is.

    >>> engine_title("vllm"), engine_title("mine")
    ('vLLM', 'mine')
    """
    return target_of(name).title if name in TARGET_NAMES else name


def serving_words(plan: Plan) -> str:
    """Say which engine serves, and on which other target the plan has to run where it was planned for one."""
    target, engine = plan.provenance.inputs.get("target"), plan.engine
    title = clean(engine_title(engine), 20)
    is_alone = target in {None, NO_TARGET, engine}
    return title if is_alone else f"{title} with {clean(engine_title(str(target)), 20)}"


def has_fleet(plan: Plan) -> bool:
    """Tell whether the plan has a fleet."""
    return plan.cost_usd_per_hour is not None and plan.status.has_fleet


def basis_words(plan: Plan) -> str:
    """Say whether the figures of a plan with a fleet are simulated."""
    if plan.simulated:
        return "simulated"
    return "simulated, request rates by formula" if is_simulated_row(plan) else "by formula, not simulated"


def is_simulated_row(plan: Plan) -> bool:
    """Whether the latencies of a plan are those that an alternative of another plan was simulated with."""
    return not plan.simulated and any(row.kind == "recommended" and row.latencies for row in plan.alternatives)


def speed_words(plan: Plan) -> str:
    """How fast the GPUs are that a plan's figures are for."""
    end = f"{percent((1.0 - abs(plan.confidence)) / 2.0)} of our predictions"
    if plan.confidence < 0.0:
        return f"as fast as the best {end}"
    return f"as slow as the worst {end}" if plan.confidence else "as fast as expected"


# --- how much of each limit is used -----------------------------------------------------------------------------------

_CONSTRAINTS: Final = {
    "slots": "request slots",
    "time": "prompt time",
    "kv_memory": "KV memory",
    "attention_time": "decode time",
    "link": "KV transfer link",
    QUEUE: "growing queue",
    BURST: "burst of requests",
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
    """The values by dotted path that make the nearest miss a fleet; empty where no single value of the file does it.

    Of limits that are each enough alone, which have a nearest fleet each, the one that has to give least.
    """
    settings: dict[str, str] = {}
    is_any_enough = sum(row.kind == "nearest_miss" for row in plan.alternatives) > 1
    for limit in violated(plan)[-1 if is_any_enough else 0 :]:
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


# --- commands that ask again ------------------------------------------------------------------------------------------

MOST_COMMAND: Final = 2000
"""Characters of a command; a line that is cut cannot be copied."""
OUTPUT_OPTIONS: Final = frozenset(("-o", "--output", "--deploy"))
"""Options with a value that say where a plan is written: another one has its own."""
DISPLAY_OPTIONS: Final = frozenset(("-q", "--quiet", "-v", "--verbose", "--no-color"))
"""Options that say how a run shows itself, which the next command does not need."""


def command_of(plan: Plan) -> str:
    """The command line that gave a plan."""
    return clean(plan.provenance.run.command, MOST_COMMAND) or "pdplan optimize workload.yaml"


def command_words(plan: Plan) -> list[str]:
    """The words of the command that gave the plan, but for how it shows itself."""
    command = command_of(plan)
    try:
        return [word for word in shlex.split(command) if word not in DISPLAY_OPTIONS]
    except ValueError:
        return command.split()


def _without_settings(words: Sequence[str], keys: Collection[str]) -> list[str]:
    """The words of a command without the --set options of these keys; of others that say the same the last counts."""
    pairs = enumerate(pairwise(words))
    places = {at for at, (flag, value) in pairs if flag == "--set" and value.partition("=")[0] in keys}
    return [word for at, word in enumerate(words) if not {at, at - 1} & places]


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


def again_command(plan: Plan, flags: str) -> str:
    """The command that plans the same problem again with other flags, and writes nothing over this plan."""
    words = command_words(plan)
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before not in OUTPUT_OPTIONS and word.partition("=")[0] not in {*OUTPUT_OPTIONS, "--force"}
    ]
    return f"{shlex.join(kept)} {flags}"
