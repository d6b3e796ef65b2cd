"""Sentences of the views, each computed from the plan: what to run, what it costs, what binds, why not another.

A sentence never states more than the plan holds: "cheapest" is compared, "holds" is checked per class.
"""

from __future__ import annotations

import math

from costmodel.metric import METRICS
from costmodel.words import join_words
from optimizer.plans.plan import Alternative, Binding, Plan
from reports.text import capital

from .asked import Asked, asked
from .numbers import (
    duration,
    hourly,
    is_number,
    percent,
    quantity,
    rate,
    signed_percent,
    significant,
    with_one_form_of_percent,
)
from .text import clean, plural, sentence
from .words import (
    MISS_SIMULATED,
    alternative_name,
    alternative_note,
    basis_words,
    constraint_words,
    engine_cell,
    is_feasible,
    same_fleets,
    status_words,
)


def limit_words(binding: Binding) -> str:
    """Name a limit and where it holds, such as "the KV memory of d0"."""
    where = clean(binding.where)
    name = f"the {constraint_words(binding.constraint)}"
    return name if where in {"fleet", ""} else f"{name} of {where}"


def binding_sentence(binding: Binding) -> str:
    """Say a limit: the planner's own sentence, or one made from its numbers."""
    used, limit = quantity(binding.used, binding.unit), quantity(binding.limit, binding.unit)
    return planner_words(binding.sentence) or f"{capital(limit_words(binding))} takes {used} of {limit}."


def planner_words(text: str) -> str:
    """A sentence of the planner's own, its percentages written as everywhere else."""
    return sentence(with_one_form_of_percent(text))


def why_not_sentence(row: Alternative) -> str:
    """Say why an alternative lost, as a whole sentence: in the planner's words, else how the search for it ended.

    Empty for a fleet that could be bought and of which the plan does not tell more.
    """
    text = planner_words(row.why_not) or ("" if is_feasible(row) else status_words(row))
    return _as_sentence(text)


def alternative_sentence(row: Alternative) -> str:
    """Say what the name of an alternative leaves out, and why it lost."""
    return " ".join(text for text in (_as_sentence(alternative_note(row)), why_not_sentence(row)) if text)


def _as_sentence(text: str) -> str:
    return text if not text or text.endswith((".", "…")) else f"{capital(text)}."


def is_or_are(name: str) -> str:
    """The verb of a limit's name.

    >>> is_or_are("KV memory"), is_or_are("permitted misses"), is_or_are("limit on pools")
    ('is', 'are', 'is')
    """
    return "are" if name.partition(" on ")[0].endswith("s") else "is"


def relax_sentence(binding: Binding) -> str:
    """Say by how much a violated limit would have to give."""
    what = limit_words(binding)
    if not is_number(binding.used) or not is_number(binding.limit):
        return f"Relax {what}."
    change = f" ({signed_percent(binding.used / binding.limit - 1)})" if binding.limit else ""
    enough = enough_as_shown(binding.used, binding.unit)
    return f"Relax {what} from {quantity(binding.limit, binding.unit)} to {quantity(enough, binding.unit)}{change}."


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


def miss_sentence(miss: Alternative, *, why: bool) -> str:
    """Say which fleet came closest and its price; why: also what it lacks, if no limit says it."""
    pools = " + ".join(engine_cell(pool) for pool in miss.pools[:4]) or alternative_name(miss)
    price = f" for {hourly(miss.cost_usd_per_hour)}" if is_number(miss.cost_usd_per_hour) else ""
    lacks = f" {why_not_sentence(miss)}" if why else ""
    return f"Nearest miss: {pools}{price}.{lacks}".rstrip()


def demand_sentence(plan: Plan) -> str:
    """Say what was asked: rate, lengths and SLOs."""
    load = plan.workload
    shape = f"{significant(load.mean_isl)} input and {significant(load.mean_osl)} output tokens on average"
    number = len(asked(plan))
    classes = f", {plural(number, 'SLO class')}" if number else ""
    return f"{clean(plan.model)} at {rate(plan.demand_rps)} with {shape}{classes}."


def slo_words(item: Asked) -> str:
    """Say what one class asks for."""
    others = [(METRICS[metric].label, limit) for metric, limit in item.others.items()]
    named = (("TTFT", item.ttft), ("TPOT", item.tpot), ("the whole request", item.e2e), *others)
    limits = [f"{name} within {duration(limit)}" for name, limit in named if limit is not None]
    return f"{clean(item.name, 30)}: {join_words(limits) or 'no limit'} for {percent(item.goal)} of its requests"


def recommended_words(plan: Plan) -> str:
    """Name the recommended fleet, and the other kinds of which it is the cheapest."""
    names = [alternative_name(row) for row in same_fleets(plan)]
    return f"recommended (also {join_words(names)})" if names else "recommended"


def origin_sentence(plan: Plan) -> str:
    """Say what the figures rest on."""
    loads = "; utilization is by formula" if plan.simulation else ""
    basis = f"Latencies and request rates are {basis_words(plan)}"
    if basis_words(plan) == MISS_SIMULATED:
        basis = "Latencies of the nearest miss are simulated, other figures are by formula"
    return f"{basis}{loads}. Nothing here was measured on your machines."
