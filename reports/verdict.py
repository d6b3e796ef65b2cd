"""The first sentences of each view: what to run, what it costs, whether it holds, and how sure that is."""

from __future__ import annotations

from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import ClassResult, Plan, Status
from optimizer.plans.records import PrecisionSaving, SafeStatus

from .next_rate import is_unproven
from .numbers import hourly, is_number, money, percent, rate, signed_percent, significant
from .sentences import MANY_TIMES, is_or_are, limit_words, no_rival
from .text import clean, sentence
from .words import (
    alternative_name,
    by_slack,
    constraint_words,
    fleet_words,
    has_fleet,
    is_overloaded,
    missed_classes,
    missed_when_slow,
    rivals_of_other_fleets,
    tightest,
    violated,
)

MOST_NAMES: Final = 3
"""Classes or limits that one sentence names."""


def headline(plan: Plan) -> str:
    """Write the plan in one sentence with its price and its distance, signed, to the next kind of fleet."""
    if not has_fleet(plan):
        return no_fleet_headline(plan)
    return f"Run {fleet_words(plan)} for {hourly(plan.cost_usd_per_hour)}: {price_comparison(plan)}."


def caveats(plan: Plan) -> list[str]:
    """What the headline rests on: prices that are no quotes on demand, and what keeps the plan from what was asked."""
    return [sentence(text) for text in (*plan.price_remarks, *plan.warnings)] if has_fleet(plan) else []


def price_comparison(plan: Plan) -> str:
    """Say, with a sign, how the plan's price compares with the next fleet of another kind."""
    if plan.objective != "min_cost":
        return served_words(plan)
    others = rivals_of_other_fleets(plan)
    rivals = [row for row in others if row.kind != "other_engines"] or others
    if not rivals or not plan.cost_usd_per_hour or not rivals[0].cost_usd_per_hour:
        text = no_rival(plan)
        return text[:1].lower() + text[1:]
    own, other = plan.cost_usd_per_hour, rivals[0].cost_usd_per_hour
    name = f"{alternative_name(rivals[0])} at {hourly(other)}"
    if hourly(own) == hourly(other):
        return f"the same price as {name}"
    saving = signed_percent(own / other - 1)
    if saving.startswith("±"):
        return f"{money(abs(own - other))}/h {'less' if own < other else 'more'} than {name}"
    return f"{saving} against {name}"


def verdict(plan: Plan) -> str:
    """Write the report's first sentence: fleet, price, whether the SLOs hold, with what room, and what binds first."""
    if not has_fleet(plan):
        return no_fleet_headline(plan)
    missed = [clean(item.name, 30) for item in missed_classes(plan)]
    verb = "misses its SLO" if len(missed) == 1 else "miss their SLOs"
    outcome = f"{_some(missed)} {verb}" if missed else _holds(plan)
    return f"Run {fleet_words(plan)} for {money(plan.cost_usd_per_hour)} an hour: {outcome}."


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return join_words([*names[:MOST_NAMES], *more])


def _holds(plan: Plan) -> str:
    what = "every SLO holds" if len(plan.classes) != 1 else "the SLO holds"
    room = room_words(plan)
    least = tightest(plan)
    binds = ""
    if least is not None:
        plural_name = is_or_are(constraint_words(least.constraint)) == "are"
        binds = f"; {limit_words(least)} {'bind' if plural_name else 'binds'} first"
    if plan.objective != "min_cost":
        return f"it serves {served_words(plan)}{binds}"
    return f"{what}{f', {room}' if room else ''}{binds}"


def room_words(plan: Plan) -> str:
    """Say by how much the load may grow before a goal is missed; empty where that is not known."""
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return ""
    more = plan.goodput_rps / plan.demand_rps
    if more >= MANY_TIMES:
        return f"with room for {significant(more)} times the load"
    grown = signed_percent(more - 1)
    if grown.startswith("+"):
        return f"with room for {grown[1:]} more load"
    return f"with no {'proven ' if is_unproven(plan) else ''}room for more load"


def served_words(plan: Plan) -> str:
    """Say what a plan that seeks the most goodput serves, and which part of the demand that is."""
    served = f"{rate(plan.goodput_rps)} within the SLOs"
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return served
    return f"{served}, {percent(plan.goodput_rps / plan.demand_rps)} of the demand of {rate(plan.demand_rps)}"


def no_fleet_headline(plan: Plan) -> str:
    """Say that there is no fleet, and why as far as the plan knows."""
    proven = plan.status is not Status.TIME_LIMIT
    none = "No fleet of the search space meets the SLOs" if proven else "No fleet was found that meets the SLOs"
    doubt = "" if proven else " That there is none is not proven."
    limits = violated(plan) or by_slack(plan)[:1]
    if not limits:
        return f"{none}.{doubt}"
    verb = "are" if len(limits) > 1 else is_or_are(constraint_words(limits[0].constraint))
    named = _some([limit_words(limit) for limit in limits])
    return f"{none}: {named} {verb} in the way.{doubt}"


def overload_sentence(plan: Plan) -> str:
    """Say which pools get more than they can do by formula; empty where none does."""
    names = [clean(pool.id, 20) for pool in plan.pools if is_overloaded(pool)]
    if not names:
        return ""
    verb, whose = ("gets", "its queue grows") if len(names) == 1 else ("get", "their queues grow")
    return f"By formula {_some(names)} {verb} more requests than can be served: {whose} for as long as the load lasts."


def risk_sentence(plan: Plan) -> str:
    """Say whether the SLOs are met by slow GPUs, and what a fleet costs that meets them; empty where nothing is known.

    By the plan's error bars, where it states no safe fleet.
    """
    if plan.safe is not None:
        return sentence(plan.safe.sentence)
    classes = [item for item in plan.classes if item.error_bars is not None]
    if not classes:
        return ""
    late = [_slow_words(item) for item in classes if missed_when_slow(item)]
    slow = "If these GPUs are as slow as the worst 5 % of our predictions"
    if not late:
        return f"{slow}, this fleet still meets {'the SLO' if len(classes) == 1 else 'every SLO'}."
    missed = f"{slow}, {_some(late)} {'misses its SLO' if len(late) == 1 else 'miss their SLOs'}"
    return f"{missed}; --confidence 0.9 plans for that." if plan.confidence <= 0.0 else f"{missed}."


def precision_sentence(plan: Plan) -> str:
    """Say what narrower weights or a narrower KV cache save; empty where that is not notable or not known."""
    savings = [
        f"{_precision_words(plan, row)} {percent(1.0 - row.cost_usd_per_hour / row.base_usd_per_hour)}"
        for row in plan.precision
    ]
    if not savings:
        return ""
    return f"By formula {', '.join(savings)}; test the model's answers before you use less precision."


def _precision_words(plan: Plan, row: PrecisionSaving) -> str:
    """Which precision a saving is of, as the subject of a sentence with its verb."""
    weights, cache = f"{clean(row.weight_dtype, 8)} weights", f"{clean(row.kv_dtype, 8)} KV cache"
    if all(pool.weight_dtype == row.weight_dtype for pool in plan.pools):
        return f"an {cache} saves"
    if all(pool.kv_dtype == row.kv_dtype for pool in plan.pools):
        return f"{weights} save"
    return f"{weights} with an {cache} save"


def is_at_risk(plan: Plan) -> bool:
    """Say whether an SLO is missed, or not shown to be met, by slow GPUs."""
    if plan.safe is not None:
        return plan.safe.status is not SafeStatus.OWN
    return any(missed_when_slow(item) for item in plan.classes)


def _slow_words(item: ClassResult) -> str:
    """A class with the share of its requests that is in time at the slow end."""
    kept = None if item.error_bars is None else item.error_bars.attainment.low
    return f"{clean(item.name, 30)} ({percent(kept)} in time)" if is_number(kept) else clean(item.name, 30)
