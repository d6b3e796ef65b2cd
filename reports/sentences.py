"""Sentences of the views, each computed from the plan: what to run, what it costs, what binds, why not another.

A sentence never states more than the plan holds: "cheapest" is compared, "holds" is checked per class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from optimizer.plan import Alternative, Binding, ClassResult, Plan, Pool, Range, Status

from .numbers import duration, hourly, is_number, money, percent, quantity, rate, signed_percent, significant
from .text import clean, join_words, plural, sentence
from .words import (
    alternative_name,
    bound_words,
    constraint_words,
    dearest_of_each_role,
    extra_cost,
    fleet_words,
    has_fleet,
    is_feasible,
    missed_classes,
    part_words,
    rivals_of_other_fleets,
    tightest,
)

PROVED_GAP: Final = 1e-4
"""Gap below which the optimum counts as proved (the tolerance of `Status.OPTIMAL`)."""


def price_comparison(plan: Plan) -> str:
    """Say, with a sign, how the plan's price compares with the next fleet of another kind."""
    if plan.objective != "min_cost":
        return f"{rate(plan.goodput_rps)} within the SLOs"
    rivals = rivals_of_other_fleets(plan)
    if not rivals or not plan.cost_usd_per_hour or not rivals[0].cost_usd_per_hour:
        return _no_rival(plan)
    other = rivals[0]
    saving = plan.cost_usd_per_hour / rivals[0].cost_usd_per_hour - 1
    name = f"{alternative_name(other)} at {hourly(other.cost_usd_per_hour)}"
    if signed_percent(saving).startswith("±"):
        return f"the same price as {name}"
    return f"{signed_percent(saving)} against {name}"


def _no_rival(plan: Plan) -> str:
    """Say why there is nothing to compare with: no other kind exists, is possible, or was found."""
    others = [row for row in plan.alternatives if not row.pools]
    if not others:
        return "the only kind of fleet in the search space"
    if any(row.status is not Status.INFEASIBLE for row in others):
        return "no other kind of fleet was found that meets the SLOs"
    return "no other kind of fleet meets the SLOs"


def headline(plan: Plan) -> str:
    """Write the plan in one sentence with its price and its distance, signed, to the next kind of fleet."""
    if not has_fleet(plan):
        return no_fleet_headline(plan)
    return f"Run {fleet_words(plan)} for {hourly(plan.cost_usd_per_hour)}: {price_comparison(plan)}."


def verdict(plan: Plan) -> str:
    """Write the report's first sentence: fleet, price, and whether the SLOs hold."""
    if not has_fleet(plan):
        return no_fleet_headline(plan)
    missed = missed_classes(plan)
    outcome = f"{join_words([clean(c.name, 30) for c in missed[:3]])} misses its SLO" if missed else _holds(plan)
    return f"Run {fleet_words(plan)} for {money(plan.cost_usd_per_hour)} an hour: {outcome}."


def _holds(plan: Plan) -> str:
    what = "every SLO holds" if len(plan.classes) != 1 else "the SLO holds"
    least = tightest(plan)
    if least is None:
        return what
    return (
        f"{what}, and {constraint_words(least.constraint)} is the tightest limit with {percent(least.slack)} to spare"
    )


def no_fleet_headline(plan: Plan) -> str:
    """Say that there is no fleet, and why as far as the plan knows."""
    if plan.status is Status.TIME_LIMIT:
        return "No fleet was found that meets the SLOs; that there is none is not proven."
    least = tightest(plan)
    if least is None:
        return "No fleet of the search space meets the SLOs."
    return f"No fleet of the search space meets the SLOs: {limit_words(least)} is in the way."


def limit_words(binding: Binding) -> str:
    """Name a limit and where it holds, such as "the KV memory of d0"."""
    where = clean(binding.where)
    name = f"the {constraint_words(binding.constraint)}"
    return name if where in {"fleet", ""} else f"{name} of {where}"


def binding_sentence(binding: Binding) -> str:
    """Say a limit: the planner's own sentence, or one made from its numbers."""
    used, limit = quantity(binding.used, binding.unit), quantity(binding.limit, binding.unit)
    return sentence(binding.sentence) or f"{_capital(limit_words(binding))} takes {used} of {limit}."


def relax_sentence(binding: Binding) -> str:
    """Say by how much a violated limit would have to give."""
    what = limit_words(binding)
    if not is_number(binding.used) or not is_number(binding.limit):
        return f"Relax {what}."
    change = f" ({signed_percent(binding.used / binding.limit - 1)})" if binding.limit else ""
    used, limit = quantity(binding.used, binding.unit), quantity(binding.limit, binding.unit)
    return f"Relax {what} from {limit} to {used}{change}."


def miss_sentence(miss: Alternative) -> str:
    """Say which fleet came closest, its price, and what it lacks."""
    pools = join_words([clean(line) for line in miss.pools[:4]]) or alternative_name(miss)
    price = f" for {hourly(miss.cost_usd_per_hour)}" if is_number(miss.cost_usd_per_hour) else ""
    return f"Nearest miss: {pools}{price}. {sentence(miss.why_not)}".rstrip()


def proof_sentence(plan: Plan) -> str:
    """Say how far the plan could be from the cheapest fleet of its search space."""
    bound = hourly(plan.bound_usd_per_hour)
    if plan.gap is None or not is_number(plan.gap):
        return "No lower bound on the price is known."
    if plan.objective != "min_cost":
        what = "goodput" if plan.objective == "max_goodput" else "goodput per dollar"
        return f"No fleet of the search space has more than {percent(plan.gap / (1.0 - plan.gap))} more {what}."
    if plan.gap <= PROVED_GAP:
        return f"Proved: no fleet of the search space is cheaper (bound {bound}, gap {percent(max(0.0, plan.gap))})."
    return f"A cheaper fleet may exist, by at most {percent(plan.gap)} (bound {bound})."


def demand_sentence(plan: Plan) -> str:
    """Say what was asked: rate, lengths and SLOs."""
    load = plan.workload
    shape = f"{significant(load.mean_isl)} input and {significant(load.mean_osl)} output tokens on average"
    classes = f", {plural(len(plan.classes), 'SLO class')}" if plan.classes else ""
    return f"{clean(plan.model)} at {rate(plan.demand_rps)} with {shape}{classes}."


def slo_words(item: ClassResult) -> str:
    """Say what one class asks for."""
    limits = [f"TTFT within {duration(item.ttft_limit_s)}", f"TPOT within {duration(item.tpot_limit_s)}"]
    if item.e2e_limit_s is not None:
        limits.append(f"the whole request within {duration(item.e2e_limit_s)}")
    return f"{clean(item.name, 30)}: {join_words(limits)} for {percent(item.attainment_goal)} of its requests"


def growth_sentence(plan: Plan) -> str:
    """Say how far the demand may grow before a class misses its goal."""
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return "The highest rate within the SLOs is not known."
    room = plan.goodput_rps / plan.demand_rps - 1
    return f"The same fleet holds its SLOs up to {rate(plan.goodput_rps)}, {signed_percent(room)} against the demand."


def error_bar_sentence(item: ClassResult) -> str:
    """Say between which ends the latencies of a class lie nine times in ten, and whether its SLO holds there."""
    bars = item.error_bars
    if bars is None:
        return ""
    latencies = f"TTFT p90 {spread(bars.ttft_p90_s, duration)}, TPOT p90 {spread(bars.tpot_p90_s, duration)}"
    kept = "goal kept" if bars.attainment.low >= item.attainment_goal else "goal missed"
    slow = f"{percent(bars.attainment.low)} in SLO at the slow end, {kept}"
    return f"{clean(item.name, 30)}: {latencies}; {slow}."


def spread(between: Range, write: Callable[[float], str]) -> str:
    """Write both ends of a range, or that there is no upper one."""
    if not math.isfinite(between.high):
        return f"{write(between.low)} to overload"
    return f"{write(between.low)} to {write(between.high)}"


def confidence_sentence(plan: Plan) -> str:
    """Say for which step times the figures are: the expected ones, or such as seldom turn out slower."""
    if plan.confidence <= 0.5:
        return "Figures are for the expected step times; set confidence: 0.9 to plan on slower ones."
    return (
        f"Figures are for step times that turn out slower in {percent(1.0 - plan.confidence)} of the cases "
        f"(confidence: {plan.confidence:g})."
    )


def goals_words(plan: Plan) -> str:
    """Say how many classes reach their goal."""
    missed = len(missed_classes(plan))
    return f"{plural(missed, 'class')} below goal" if missed else "every class reaches its goal"


def slo_sentence(plan: Plan) -> str:
    """Say how the tightest class stands against its goal."""
    if not plan.classes:
        return "No SLO class is stated."
    worst = min(plan.classes, key=_attainment_room)
    missed, total = len(missed_classes(plan)), len(plan.classes)
    share = f"{percent(worst.attainment)} of its requests in time for a goal of {percent(worst.attainment_goal)}"
    if total == 1:
        return f"{clean(worst.name, 30)} {'misses' if missed else 'is within'} its goal: {share}"
    lead = f"{missed} of {total} classes miss their goal" if missed else f"{_all(total)} within the goal"
    return f"{lead}: {clean(worst.name, 30)} is tightest, {share}"


def _all(number: int) -> str:
    return "Both classes are" if number == 2 else f"All {number} classes are"


def _attainment_room(result: ClassResult) -> float:
    room = result.attainment - result.attainment_goal
    return -math.inf if math.isnan(room) else room


def alternatives_sentence(plan: Plan) -> str:
    """Say what the next best fleet costs."""
    rivals = rivals_of_other_fleets(plan)
    if not has_fleet(plan):
        return "No kind of fleet meets the SLOs" if not rivals else f"{alternative_name(rivals[0])} would meet the SLOs"
    if not rivals:
        return "No other kind of fleet meets the SLOs"
    other = rivals[0]
    return (
        f"The next choice, {alternative_name(other)}, costs {hourly(other.cost_usd_per_hour)}, "
        f"{signed_percent(extra_cost(other, plan))} against the recommended fleet"
    )


def spread_sentence(plan: Plan) -> str:
    """Say how far the prices of the kinds of fleet lie apart."""
    prices = [row.cost_usd_per_hour for row in plan.alternatives if is_feasible(row) and row.cost_usd_per_hour]
    if len(prices) < 2:
        return f"One kind of fleet meets the SLOs, for {hourly(min(prices, default=None))}"
    return f"{len(prices)} kinds of fleet meet the SLOs, from {hourly(min(prices))} to {hourly(max(prices))}"


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
    if not largest:
        return "No step times are known"
    parts = join_words([f"{part} in {role} ({percent(share)})" for role, part, share in largest])
    return f"Largest part of a step: {parts}"


def _largest_part(pool: Pool) -> tuple[str, float]:
    parts = {name: share for name, share in pool.operating_point.time_split.model_dump().items() if is_number(share)}
    if not parts:
        return "unknown parts", math.nan
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
        return f"All of the price is for {next(iter(by_role))} engines"
    largest = max(by_role, key=lambda role: by_role[role])
    return f"{_capital(largest)} engines take {percent(by_role[largest] / total)} of the price"


def heat_sentence(share: float, isl: str, osl: str) -> str:
    """Say which lengths are most frequent."""
    return f"Most frequent: {isl} input and {osl} output tokens, {percent(share)} of requests"


def origin_sentence(plan: Plan) -> str:
    """Say what the figures rest on."""
    basis = "simulated" if plan.simulated else "modelled, not simulated"
    return f"Latencies and rates are {basis}; nothing on this page was measured on your machines."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
