"""The first sentences of each view: what to run, what it costs, whether it holds, and how sure that is."""

from __future__ import annotations

from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import ClassResult, Plan, Status
from optimizer.plans.records import PrecisionSaving, SafeStatus

from .next_rate import is_unproven
from .numbers import hourly, is_number, money, monthly, percent, rate, signed_percent, significant
from .sentences import MANY_TIMES, is_or_are, limit_words, served_rate
from .simulation_sentences import slo_result_sentence
from .text import clean, sentence
from .words import (
    by_slack,
    constraint_words,
    fleet_words,
    has_fleet,
    is_feasible,
    is_overloaded,
    missed_classes,
    missed_when_slow,
    serving_words,
    tightest,
    violated,
)

MOST_NAMES: Final = 3
"""Classes or limits that one sentence names."""


def headlines(plan: Plan, *, brief: bool = False) -> list[str]:
    """The answer: which fleet at which price, and whether it meets the SLO; or that there is none."""
    if not has_fleet(plan):
        return [no_fleet_headline(plan)]
    prices = f"{hourly(plan.cost_usd_per_hour)} ({monthly(plan.cost_usd_per_hour)}/month)"
    per_token = f"{money(plan.usd_per_million_output_tokens)} per million output tokens at {rate(served_rate(plan))}"
    what = f"{per_token} of {clean(plan.model, 40)} on {serving_words(plan)}"
    return [f"Run {fleet_words(plan)} for {prices}: {what}.", slo_result_sentence(plan, brief=brief)]


def is_missed(plan: Plan) -> bool:
    """Tell whether some class misses its goal."""
    return bool(missed_classes(plan))


def caveats(plan: Plan) -> list[str]:
    """What the headline rests on: prices that are no quotes on demand, and what keeps the plan from what was asked."""
    return [sentence(text) for text in (*plan.price_remarks, *plan.warnings)] if has_fleet(plan) else []


def disaggregation_sentence(plan: Plan) -> str:
    """Say what prefill and decode pools save or cost against colocated ones; empty where that was not compared."""
    roles = {pool.role == "colocated" for pool in plan.pools}
    own = plan.cost_usd_per_hour
    if len(roles) != 1 or not own or plan.objective != "min_cost":
        return ""
    colocated = roles == {True}
    name = "disaggregated" if colocated else "colocated"
    row = next((row for row in plan.alternatives if row.kind == f"{name}_only"), None)
    if row is None:
        return ""
    if not is_feasible(row) or row.cost_usd_per_hour is None:
        return f"No {name} fleet {'meets' if row.status is Status.INFEASIBLE else 'was found that meets'} the SLO."
    difference = row.cost_usd_per_hour - own
    if money(own) == money(row.cost_usd_per_hour):
        return f"The cheapest {name} fleet found costs the same."
    if colocated:
        more = f"{hourly(difference)} more ({signed_percent(difference / own)})"
        return f"Disaggregation does not pay: the cheapest disaggregated fleet found costs {more}."
    saved = f"{hourly(difference)} ({percent(difference / row.cost_usd_per_hour)})"
    return f"Disaggregation saves {saved} against the cheapest colocated fleet found."


def verdict(plan: Plan) -> str:
    """Write the report's first sentence: fleet, price, whether the SLOs hold, with what room, and what binds first."""
    if not has_fleet(plan):
        return no_fleet_headline(plan)
    missed = [clean(item.name, 30) for item in missed_classes(plan)]
    verb = "misses its SLO" if len(missed) == 1 else "miss their SLOs"
    outcome = f"{_some(missed)} {verb}" if missed else _holds(plan)
    return f"Run {fleet_words(plan)} for {hourly(plan.cost_usd_per_hour)}: {outcome}."


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return join_words([*names[:MOST_NAMES], *more])


def _holds(plan: Plan) -> str:
    what = f"it meets {'every' if len(plan.classes) != 1 else 'the'} SLO"
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
        return f"with capacity for {significant(more)} times the load"
    grown = signed_percent(more - 1)
    if grown.startswith("+"):
        return f"with capacity for {grown[1:]} more load"
    return f"with no {'proven ' if is_unproven(plan) else ''}capacity for more load"


def served_words(plan: Plan) -> str:
    """Say what a plan that seeks the most goodput serves, and which part of the demand that is."""
    served = f"{rate(plan.goodput_rps)} within the SLOs"
    if not is_number(plan.goodput_rps) or plan.demand_rps <= 0:
        return served
    return f"{served}, {percent(plan.goodput_rps / plan.demand_rps)} of the demand of {rate(plan.demand_rps)}"


def no_fleet_headline(plan: Plan) -> str:
    """Say that there is no fleet, and why as far as the plan knows."""
    proven = plan.status is not Status.TIME_LIMIT
    none = "No fleet in the search space meets the SLO" if proven else "No fleet was found that meets the SLO"
    doubt = "" if proven else " One may exist: the search did not prove that there is none."
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
    return f"By formula {_some(names)} {verb} more requests than can be served: {whose} while the load lasts."


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
    return f"By formula, {', '.join(savings)}; test the quality of the model's answers first."


def _precision_words(plan: Plan, row: PrecisionSaving) -> str:
    """Which precision a saving is of, as the subject of a sentence with its verb."""
    weights, cache = f"{clean(row.weight_dtype, 8)} weights", f"{clean(row.kv_dtype, 8)} KV cache"
    if all(pool.weight_dtype == row.weight_dtype for pool in plan.pools):
        return f"an {cache} would save"
    if all(pool.kv_dtype == row.kv_dtype for pool in plan.pools):
        return f"{weights} would save"
    return f"{weights} with an {cache} would save"


def is_at_risk(plan: Plan) -> bool:
    """Say whether an SLO is missed, or not shown to be met, by slow GPUs."""
    if plan.safe is not None:
        return plan.safe.status is not SafeStatus.OWN
    return any(missed_when_slow(item) for item in plan.classes)


def _slow_words(item: ClassResult) -> str:
    """A class with the share of its requests that meets the SLO on slow GPUs."""
    kept = None if item.error_bars is None else item.error_bars.attainment.low
    return f"{clean(item.name, 30)} ({percent(kept)} of requests meet it)" if is_number(kept) else clean(item.name, 30)
