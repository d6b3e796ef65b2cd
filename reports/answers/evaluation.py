"""A fleet that runs today, evaluated: the verdict, what it lacks or has to spare, and the cheapest fleet beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.words import join_words
from optimizer.plans.plan import FleetEvaluation, Plan, Provisioning
from optimizer.plans.records import JudgedFleet, Outcome
from reports.document import Document, Section, said
from reports.figures import brief_slo_table, fleet_table
from reports.next_steps import Deployability
from reports.numbers import hourly, is_number, money, monthly, percent_beside, rate, signed_percent
from reports.text import capital, clean
from reports.verdict import (
    DAY_PRICE,
    day_price_words,
    growth_sentence,
    losses_sentence,
    no_fleet_headline,
    risk_sentence,
    router_sentence,
    slo_result_sentence,
)
from reports.words import (
    binding_sentence,
    fleet_words,
    has_fleet,
    requests_of,
    serving_words,
    slo_name,
    tightest,
    tightest_limits,
)

from .plan import complete_sections

SAME_PRICE: Final = 1e-3
"""Relative difference up to which two prices are told as the same [1]."""


def evaluation_record(evaluation: FleetEvaluation) -> dict[str, Any]:
    """The evaluation as plain values."""
    return evaluation.model_dump(mode="python", by_alias=True)


def evaluation_document(evaluation: FleetEvaluation, *, brief: bool = True, next_step: str = "") -> Document:
    """The answer of an evaluation.

    brief: what fits a screen; else with all that is known of the fleet; next_step: the command that a reader would want
    next.
    """
    plan = evaluation.plan
    # a pool or a limit on the fleet gives out, rather than the misses that come of it
    limits = sorted(tightest_limits(plan), key=lambda limit: limit.constraint == "attainment")
    risk = "" if evaluation.outcome is Outcome.MISSES else risk_sentence(plan)
    advice = said(
        provisioning_sentence(evaluation.provisioning, plan),
        twice_sentence(evaluation),
        *((router_sentence(plan),) if brief else ()),
        cheapest_sentence(evaluation),
    )
    facts = said(
        day_price_words(plan, DAY_PRICE),
        growth_sentence(plan),
        f"Binds first: {binding_sentence(limits[0])}" if limits else "",
    )
    sections = (
        Section(table=fleet_table(plan, brief=True)),
        Section(table=brief_slo_table(plan), notes=said(risk)),
        Section(sentences=(*facts, *advice)),
    )
    return Document(
        headline=said(
            f"{slo_result_sentence(plan, evaluation.outcome)}{_but(evaluation)}",
            _price_sentence(evaluation),
            *plan.price_remarks,
        ),
        sections=sections if brief else (Section(sentences=advice), *complete_sections(plan, Deployability.of(plan))),
        positive=evaluation.outcome is Outcome.MEETS,
        next_step=next_step,
        about=(clean(plan.name), "evaluated"),
    )


def _but(evaluation: FleetEvaluation) -> str:
    """Why the fleet is not shown to meet an SLO that its runs might meet; empty where they say it themselves."""
    if evaluation.stuck:
        return " A burst that fills its KV memory leaves it behind for good."
    if evaluation.replayed:
        return " It misses when the recorded requests come in their own order."
    classes = [] if evaluation.plan.simulation is None else evaluation.plan.simulation.classes
    if evaluation.outcome is Outcome.UNDECIDED and all(c.outcome is Outcome.MEETS for c in classes):
        return " The interval that decides is wider and contains the goal."
    is_slow = evaluation.outcome is Outcome.MISSES and all(c.attainment_high >= c.attainment_goal for c in classes)
    falling = " It falls behind: its queues grow, and fewer requests meet the SLO, for as long as this load lasts."
    return falling if is_slow else ""


def _price_sentence(evaluation: FleetEvaluation) -> str:
    """What the fleet costs, per token too: where it cannot serve the demand, at the highest rate within its SLOs."""
    plan = evaluation.plan
    per_token, goodput = plan.usd_per_million_output_tokens, plan.goodput_rps
    price = f"It costs {hourly(plan.cost_usd_per_hour)} ({monthly(plan.cost_usd_per_hour)}/month)"
    load = f"{rate(plan.demand_rps)} of {clean(plan.model, 40)} on {serving_words(plan)}"
    misses = evaluation.outcome is Outcome.MISSES
    if per_token is None or (misses and not (is_number(goodput) and goodput > 0.0)):
        return f"{price} for {load}."
    if not misses or goodput >= plan.demand_rps:
        return f"{price}: {money(per_token)} per million output tokens at {load}."
    able = (
        f"{money(per_token * plan.demand_rps / goodput)} per million output tokens at the {rate(goodput)} it can serve"
    )
    return f"{price} for {load}: {able}."


def _slos(plan: Plan) -> str:
    return "its SLO" if len(plan.classes) == 1 else "its SLOs"


def provisioning_sentence(provisioning: Provisioning, plan: Plan) -> str:
    """Say by how many replicas the fleet is too small or too large."""
    if not provisioning.pools:
        return f"Under-provisioned: {_nothing_helps(provisioning)}."
    missing, spare = bool(provisioning.missing), bool(provisioning.spare)
    if not missing and not spare:
        return losses_sentence(provisioning.one_replica_fewer, plan)
    word = "Unbalanced" if missing and spare else "Under-provisioned" if missing else "Over-provisioned"
    return f"{word}: {_change_words(provisioning, plan)}."


def _nothing_helps(provisioning: Provisioning) -> str:
    return (
        f"no number of these replicas, up to {provisioning.most:g} times as many, meets the SLO; they need other "
        "settings or GPUs"
    )


def _change_words(provisioning: Provisioning, plan: Plan) -> str:
    """The replicas that are needed, and those that are not, with the price."""
    more = {pool.pool: pool.needed - pool.replicas for pool in provisioning.pools if pool.needed > pool.replicas}
    less = {pool.pool: pool.replicas - pool.needed for pool in provisioning.pools if pool.needed < pool.replicas}
    fewer = _replica_words(less, "fewer") if less else ""
    enough = f"{fewer} {'is' if provisioning.spare == 1 else 'are'} enough"
    still = f"with {fewer} the fleet still meets {slo_name(plan)}"
    changes = said(
        f"{_replica_words(more, 'more')} {'is' if provisioning.missing == 1 else 'are'} needed" if more else "",
        (enough if more else still) if less else "",
    )
    change = (provisioning.cost_usd_per_hour or 0.0) / (plan.cost_usd_per_hour or 1.0) - 1.0
    return f"{join_words(changes)}, for {hourly(provisioning.cost_usd_per_hour)} ({signed_percent(change)})"


def _replica_words(changes: Mapping[str, int], word: str) -> str:
    """Such as "2 more replicas in prefill-1 and 1 more in decode-1"."""
    (first, number), *rest = changes.items()
    replicas = f"{number} {word} replica{'s' * (number > 1)} in {first}"
    return join_words([replicas, *(f"{number} {word} in {pool}" for pool, number in rest)])


def _attainment_words(row: JudgedFleet, plan: Plan) -> str:
    """The share of the class that suffers most, and why it misses."""
    name, share, goal = tightest(row.attainment, plan.classes)
    stuck = "; it does not recover from a burst that fills its KV memory"
    why = stuck if row.stuck else "; its queues grow" if row.overloaded else ""
    return f"({percent_beside(share, goal)} of {requests_of(name, plan.classes)} meet it){why}"


def twice_sentence(evaluation: FleetEvaluation) -> str:
    """Say what twice the traffic does, and what it needs."""
    twice, plan = evaluation.twice, evaluation.plan
    result, at = _attainment_words(twice.stated, plan), f"At twice the traffic ({rate(twice.rate_rps)}) the fleet"
    needs = capital(_change_words(twice, plan) if twice.pools else _nothing_helps(twice))
    more = {pool.pool for pool in twice.pools if pool.needed > pool.replicas}
    stuck = [name for row in twice.one_replica_fewer if row.stuck and (name := row.what.partition(":")[0]) in more]
    if stuck:
        needs += (
            f". With one replica fewer in {join_words(stuck)} the fleet does not recover from a burst that fills its "
        )
        needs += "KV memory"
    if twice.stated.held:
        return f"{at} meets {_slos(plan)} too {result}.{f' {needs}.' if twice.spare else ''}"
    verb = "is not shown to meet" if twice.stated.outcome is Outcome.UNDECIDED else "misses"
    return f"{at} {verb} {_slos(plan)} {result}. {needs}."


def cheapest_sentence(evaluation: FleetEvaluation) -> str:
    """Set the cheapest fleet that the search found beside the stated one, with its risk where it costs less.

    Empty where none was sought.
    """
    best, cost = evaluation.cheapest, evaluation.plan.cost_usd_per_hour or 0.0
    if best is None:
        return f"Cheapest fleet: none. {evaluation.no_cheapest}" if evaluation.no_cheapest else ""
    if not has_fleet(best) or evaluation.saving_usd_per_hour is None:
        return f"Cheapest fleet: none. {no_fleet_headline(best)}"
    saving = evaluation.saving_usd_per_hour
    basis = "" if best.simulated else " by formula"
    fleet = f"{fleet_words(best)} for {hourly(best.cost_usd_per_hour)}"
    if abs(saving) <= SAME_PRICE * cost:
        return f"Cheapest fleet found{basis}: {fleet}, the same price."
    if saving < 0.0 and evaluation.outcome is Outcome.MEETS:
        return f"Cheapest fleet: this one; the search found{basis} {fleet}."
    change = signed_percent(-saving / cost)
    if saving < 0.0:
        return f"Cheapest fleet found{basis}: {fleet}, {hourly(-saving)} more ({change})."
    found = f"Cheapest fleet found{basis}: {fleet}, {hourly(saving)} less ({change}, {monthly(saving)} a month)."
    return " ".join(said(found, risk_sentence(best, "Risk of that fleet", "that cheaper fleet")))
