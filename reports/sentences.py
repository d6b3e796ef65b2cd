"""Sentences of the views, each computed from the plan: what to run, what it costs, what binds, why not another.

A sentence never states more than the plan holds: "cheapest" is compared, "holds" is checked per class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from costmodel.metric import METRICS
from costmodel.units import SECONDS_PER_HOUR
from costmodel.words import join_words
from optimizer.plans.plan import Alternative, Binding, ClassResult, Plan, Pool, Range, Status

from .asked import Asked, asked
from .day import day_price_words
from .next_rate import next_rate_words
from .numbers import (
    duration,
    hourly,
    is_number,
    money,
    percent,
    percent_beside,
    quantity,
    rate,
    signed_percent,
    significant,
    with_one_form_of_percent,
)
from .proof_words import cost_proof
from .text import clean, plural, sentence
from .words import (
    MISS_SIMULATED,
    alternative_name,
    alternative_note,
    basis_words,
    bound_words,
    constraint_words,
    dearest_of_each_role,
    engine_cell,
    extra_cost,
    has_fleet,
    has_tpot,
    is_feasible,
    missed_classes,
    part_words,
    rivals_of_other_fleets,
    same_fleets,
    status_words,
    tightest_first,
)

UNSEEN_GAP: Final = 5e-4
"""Gap of a goodput, which carries three digits, below which it counts as proved."""
MANY_TIMES: Final = 10.0
"""From how many times the demand on its multiple is said, not the percentage."""


def limit_words(binding: Binding) -> str:
    """Name a limit and where it holds, such as "the KV memory of d0"."""
    where = clean(binding.where)
    name = f"the {constraint_words(binding.constraint)}"
    return name if where in {"fleet", ""} else f"{name} of {where}"


def binding_sentence(binding: Binding) -> str:
    """Say a limit: the planner's own sentence, or one made from its numbers."""
    used, limit = quantity(binding.used, binding.unit), quantity(binding.limit, binding.unit)
    return planner_words(binding.sentence) or f"{_capital(limit_words(binding))} takes {used} of {limit}."


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
    return text if not text or text.endswith((".", "…")) else f"{_capital(text)}."


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


def miss_sentence(miss: Alternative) -> str:
    """Name the nearest miss."""
    return f"Nearest miss: {miss_words(miss)}"


def miss_words(miss: Alternative) -> str:
    """Say which fleet came closest, its price, and what it lacks."""
    pools = " + ".join(engine_cell(pool) for pool in miss.pools[:4]) or alternative_name(miss)
    price = f" for {hourly(miss.cost_usd_per_hour)}" if is_number(miss.cost_usd_per_hour) else ""
    return f"{pools}{price}. {why_not_sentence(miss)}".rstrip()


def proof_sentence(plan: Plan) -> str:
    """Say what is known of better fleets; nothing of a fleet that was stated, beside which none was sought."""
    if plan.status is Status.STATED:
        return ""
    if plan.objective != "min_cost":
        return _goodput_proof(plan)
    return cost_proof(plan)


def _goodput_proof(plan: Plan) -> str:
    what = goal_words(plan)
    who = "No fleet of any shape"
    more = possible_gain(plan)
    if more is None:
        return f"No upper bound on the {what} is known."
    if more <= UNSEEN_GAP:
        return f"{who} has more {what}."
    return f"{who} has more than {percent(more)} more {what}."


def possible_gain(plan: Plan) -> float | None:
    """What the best fleet could have more than the plan, as a share of the plan's [1]; the gap is one of the bound."""
    return None if not is_number(plan.gap) or plan.gap >= 1.0 else plan.gap / (1.0 - plan.gap)


def is_proved(plan: Plan) -> bool:
    """Tell whether the search found nothing better among all that it looked at."""
    return plan.status is Status.OPTIMAL


def goal_words(plan: Plan) -> str:
    """Say what a plan that does not seek the least price has the most of."""
    return "goodput" if plan.objective == "max_goodput" else "goodput per dollar"


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


def served_rate(plan: Plan) -> float:
    """Rate that the price per token is for [1/s]: the demand, unless the objective leaves it open."""
    per_token, mean_osl = plan.usd_per_million_output_tokens, plan.workload.mean_osl
    if plan.objective == "min_cost" or not per_token or not plan.cost_usd_per_hour or not mean_osl:
        return plan.demand_rps
    return plan.cost_usd_per_hour / per_token * 1e6 / (mean_osl * SECONDS_PER_HOUR)


def cost_sentence(plan: Plan) -> str:
    """Say what the fleet costs by hour and, at the rate that it then serves, by token."""
    served = "the demand" if plan.objective == "min_cost" else "a load"
    per_token = f"{money(plan.usd_per_million_output_tokens)} per million output tokens"
    prices = [f"{per_token} at {served} of {rate(served_rate(plan))}", day_price_words(plan)]
    return f"Cost: {hourly(plan.cost_usd_per_hour)}; {', '.join(filter(None, prices))}."


def capacity_sentence(plan: Plan) -> str:
    """Say how far the demand may grow before a class misses its SLO."""
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return "Capacity: the highest request rate within the SLO is not known."
    if plan.objective != "min_cost":
        return f"Capacity: {rate(plan.goodput_rps)} within the SLO."
    more = plan.goodput_rps / plan.demand_rps
    room = f"{signed_percent(more - 1)} over" if more < MANY_TIMES else f"{significant(more)} times"
    return f"Capacity: {rate(plan.goodput_rps)} within the SLO ({room} the demand)."


def growth_sentence(plan: Plan) -> str:
    """Say the same, with what a dollar then serves and how the next higher rate went."""
    capacity = capacity_sentence(plan)
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return capacity
    served = f"{significant(plan.goodput_per_dollar)} requests per $"
    return f"{capacity.removesuffix('.')}: {served}{next_rate_words(plan) if plan.objective == 'min_cost' else ''}."


def error_bar_sentence(item: ClassResult) -> str:
    """Say between which ends the latencies of a class, and its share of requests in time, lie nine times in ten.

    Requests of one output token have no TPOT.
    """
    bars = item.error_bars
    if bars is None:
        return ""
    latencies = f"TTFT p90 {spread(bars.ttft_p90_s, duration)}"
    if has_tpot(item):
        latencies += f", TPOT p90 {spread(bars.tpot_p90_s, duration)}"
    met = f"{spread(bars.attainment, percent)} of requests meet the SLO"
    return f"{clean(item.name, 30)}, range of nine predictions in ten: {latencies}, {met}."


def spread(between: Range, write: Callable[[float], str]) -> str:
    """Write both ends of a range, or that there is no upper one."""
    if between.high is None:
        return f"{write(between.low)} or more"
    low, high = write(between.low), write(between.high)
    return low if low == high else f"{low} to {high}"


def confidence_sentence(plan: Plan) -> str:
    """Say for which step times the figures are: the expected ones, or those of slower GPUs."""
    if plan.confidence <= 0.0:
        return "Figures are for the expected step times; --confidence 0.9 plans for slower GPUs."
    worst = percent((1.0 - plan.confidence) / 2.0)
    return f"Figures are for GPUs as slow as the worst {worst} of our predictions (confidence: {plan.confidence:g})."


def goals_words(plan: Plan) -> str:
    """Say how many classes reach their goal."""
    missed = len(missed_classes(plan))
    return (
        f"{plural(missed, 'class')} {'misses its' if missed == 1 else 'miss their'} SLO"
        if missed
        else "every class meets its SLO"
    )


def slo_sentence(plan: Plan) -> str:
    """Say how the tightest class stands against its goal."""
    if not plan.classes:
        return "No SLO class is stated."
    worst = tightest_first(plan)[0]
    missed, total = len(missed_classes(plan)), len(plan.classes)
    held = percent_beside(worst.attainment, worst.attainment_goal)
    share = f"{held} of requests ({percent(worst.attainment_goal)} asked)"
    if total == 1:
        return f"{clean(worst.name, 30)} {'misses' if missed else 'meets'} its SLO: {share}"
    lead = f"{missed} of {total} classes miss their SLO" if missed else f"{_all(total)} their SLO"
    return f"{lead}: {clean(worst.name, 30)} is tightest, {share}"


def _all(number: int) -> str:
    return "Both classes meet" if number == 2 else f"All {number} classes meet"


def alternatives_sentence(plan: Plan) -> str:
    """Say what the next best fleet costs."""
    rivals = rivals_of_other_fleets(plan)
    if not has_fleet(plan):
        return _near_miss(rivals[0]) if rivals else "No kind of fleet meets the SLO"
    if not rivals:
        return no_rival(plan)
    other = rivals[0]
    return (
        f"The next choice, {alternative_name(other)}, costs {hourly(other.cost_usd_per_hour)}, "
        f"{signed_percent(extra_cost(other, plan))} against the recommended fleet"
    )


def _near_miss(row: Alternative) -> str:
    fleet = " + ".join(engine_cell(pool) for pool in row.pools[:4]) or "a fleet"
    return f"{_capital(alternative_name(row))}, {fleet} meets the SLO for {hourly(row.cost_usd_per_hour)}"


def no_rival(plan: Plan) -> str:
    """Say why no other kind of fleet is shown: none was sought, exists, is possible, or was found."""
    others = [row for row in plan.alternatives if row.kind != "recommended" and not row.pools]
    if plan.objective != "min_cost" and not others:
        return f"Other kinds of fleet are compared by price; this plan seeks the most {goal_words(plan)}"
    if not others:
        return "The search space has no other kind of fleet"
    if any(row.status is not Status.INFEASIBLE for row in others):
        return "No other kind of fleet was found that meets the SLO"
    return "No other kind of fleet meets the SLO"


def recommended_words(plan: Plan) -> str:
    """Name the recommended fleet, and the other kinds of which it is the cheapest."""
    names = [alternative_name(row) for row in same_fleets(plan)]
    return f"recommended (also {join_words(names)})" if names else "recommended"


def spread_sentence(prices: Sequence[float]) -> str:
    """Say how far the prices of the fleets that are compared lie apart."""
    return f"{len(prices)} fleets that meet the SLO, from {hourly(min(prices))} to {hourly(max(prices))}"


def roofline_sentence(pools: Sequence[Pool]) -> str:
    """Say what bounds each role; where its pools differ, what bounds the one that costs most."""
    by_bound: dict[str, list[str]] = {}
    for pool in dearest_of_each_role(pools):
        bound = pool.operating_point.bound_by
        agreed = all(other.operating_point.bound_by == bound for other in pools if other.role == pool.role)
        by_bound.setdefault(bound, []).append(f"{pool.role} steps{'' if agreed else f' of {clean(pool.id, 20)}'}")
    if not by_bound:
        return "No pool runs"
    (bound, first), *others = by_bound.items()
    sentence = f"{_capital(join_words(first))} are bound by {bound_words(bound)}"
    return join_words([sentence, *(f"{join_words(steps)} by {bound_words(what)}" for what, steps in others)])


def split_sentence(pools: Sequence[Pool]) -> str:
    """Say what takes most of a step in each role, by the pools that cost most."""
    largest = [(pool.role, *_largest_part(pool)) for pool in dearest_of_each_role(pools)]
    parts = [f"{part} in {role} ({percent(share)})" for role, part, share in largest if is_number(share)]
    return f"Largest part of a step: {join_words(parts)}" if parts else "No step times are known"


def _largest_part(pool: Pool) -> tuple[str, float]:
    parts = {name: share for name, share in pool.operating_point.time_split.model_dump().items() if is_number(share)}
    if not parts:
        return "", math.nan
    name = max(parts, key=lambda part: parts[part])
    return part_words(name), parts[name]


def dollars_sentence(pools: Sequence[Pool]) -> str:
    """Say which role takes most of the price."""
    total = sum(pool.usd_per_hour for pool in pools)
    if total <= 0:
        return "Nothing is paid for"
    by_role: dict[str, float] = {}
    for pool in pools:
        by_role[pool.role] = by_role.get(pool.role, 0.0) + pool.usd_per_hour
    if len(by_role) == 1:
        return _only_role(pools, total)
    most = max(by_role.values())
    largest = [role for role, usd in by_role.items() if usd >= most * (1 - 1e-9)]
    each = " each" if len(largest) > 1 else ""
    return f"{_capital(join_words(largest))} replicas take {percent(most / total)} of the price{each}"


def _only_role(pools: Sequence[Pool], total: float) -> str:
    """Say what takes most of the price where all engines have one role."""
    dearest = max(pools, key=lambda pool: (pool.usd_per_hour, pool.id))
    if len(pools) == 1:
        return f"All of the price is for {dearest.role} replicas"
    what = f"{clean(dearest.id, 20)} on {clean(dearest.accelerator, 24)}"
    return f"All replicas are {dearest.role}; {what} takes {percent(dearest.usd_per_hour / total)} of the price"


def heat_sentence(share: float, isl: str, osl: str, alike: int = 1) -> str:
    """Say which lengths are most frequent, and how many cells of lengths are as frequent."""
    others = f", as often as in {plural(alike - 1, 'other cell')}" if alike > 1 else ""
    return f"Most frequent: {isl} input and {osl} output tokens, {percent(share)} of requests{others}"


def origin_sentence(plan: Plan) -> str:
    """Say what the figures rest on."""
    loads = "; utilization is by formula" if plan.simulation else ""
    basis = f"Latencies and request rates are {basis_words(plan)}"
    if basis_words(plan) == MISS_SIMULATED:
        basis = "Latencies of the nearest miss are simulated, other figures are by formula"
    return f"{basis}{loads}. Nothing here was measured on your machines."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
