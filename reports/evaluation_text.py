"""A fleet that runs today, evaluated, on one terminal screen: the verdict, what it lacks, the cheapest."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import click

from costmodel.metric import METRICS, Metric
from costmodel.words import join_words
from optimizer.plans.plan import ClassResult, FleetEvaluation, MetricResult, Plan, Provisioning
from optimizer.plans.records import JudgedFleet, Quantiles

from .json_text import finite
from .next_rate import next_rate_words
from .numbers import duration, hourly, monthly, percent, percent_beside, rate, signed_percent
from .sentences import binding_sentence, cost_sentence
from .simulation_sentences import router_sentence, simulation_sentence
from .table import Column, render_table
from .terminal import LEAST_WIDTH, Paint, fleet_lines
from .text import clean, wrap
from .verdict import no_fleet_headline
from .words import by_slack, fleet_words, has_fleet, has_tpot, limited_metrics, serving_words

COLORS: Final = {"meets": "green", "misses": "red", "undecided": "yellow"}
SAME: Final = 1e-3
"""Relative difference up to which two prices are losses as the same [1]."""
PERCENTILES: Final = ((0.9, "p90"), (0.95, "p95"))
"""Goals up to which a latency is losses at its percentile; above, and to be sure, at p99."""


def evaluation_json(evaluation: FleetEvaluation) -> str:
    """The evaluation as JSON, numbers that it cannot say as null."""
    return json.dumps(finite(evaluation.model_dump(mode="python", by_alias=True)), indent=2, allow_nan=False) + "\n"


def render_evaluation(
    evaluation: FleetEvaluation, width: int = 100, color: bool = False, *, next_step: str = ""
) -> str:
    """Return the evaluation as text of `width` columns (56 at least); next_step: the command on the last line."""
    width, plan = max(LEAST_WIDTH, width), evaluation.plan
    paint: Paint = partial(click.style) if color else _plain
    head = [line for text in (headline(evaluation), simulation_sentence(plan)) for line in wrap(text, width)]
    about = f"{clean(plan.name, 40)}: {clean(plan.model, 40)} on {serving_words(plan)}, as stated"
    said = (
        cost_sentence(plan),
        *plan.price_remarks,
        headroom_sentence(plan),
        binds_sentence(plan),
        provisioning_sentence(evaluation.provisioning, plan),
        twice_sentence(evaluation),
        router_sentence(plan),
        cheapest_sentence(evaluation),
    )
    blocks = [
        [*(paint(line, bold=True, fg=COLORS[evaluation.outcome]) for line in head), *wrap(about, width)],
        fleet_lines(plan, width),
        class_lines(plan, width),
        [line for text in said if text for line in wrap(text, width)],
        [paint(f"Next: {next_step}", fg="cyan")] if next_step else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _plain(text: str, **_style: object) -> str:
    return text


def headline(evaluation: FleetEvaluation) -> str:
    """Say whether the fleet meets its SLOs, and what it costs."""
    slos = _slos(evaluation.plan)
    verdict = {"meets": f"meets {slos}", "misses": f"misses {slos}"}.get(
        evaluation.outcome, f"may or may not meet {slos}"
    )
    price = f"{hourly(evaluation.plan.cost_usd_per_hour)}, {monthly(evaluation.plan.cost_usd_per_hour)} a month"
    but = " A burst that fills its KV memory leaves it behind for good." if evaluation.stuck else ""
    but += " It misses when the recorded requests come in their own order." if evaluation.replayed else ""
    return f"This fleet {verdict} at {rate(evaluation.plan.demand_rps)} for {price}.{but}"


def _slos(plan: Plan) -> str:
    return "its SLO" if len(plan.classes) == 1 else "its SLOs"


def class_lines(plan: Plan, width: int) -> list[str]:
    """Latencies of each class at the percentile of its goal."""
    whole = any(item.e2e_limit_s is not None for item in plan.classes)
    others = limited_metrics(plan.classes)
    pairs = ["TTFT", "TPOT", *(["e2e"] if whole else []), *(METRICS[metric].label for metric in others)]
    columns = [
        Column("class", shrink=True),
        Column("at"),
        *(Column(header, "right") for metric in pairs for header in (metric, "limit")),
        Column("in SLO", "right"),
        Column("goal", "right"),
        Column(""),
    ]
    rows = [_class_row(item, _e2e(plan, at) if whole else None, others) for at, item in enumerate(plan.classes)]
    return ["SLOs", *render_table(rows, columns, width, indent=2).split("\n")]


def _e2e(plan: Plan, at: int) -> Quantiles | None:
    """Time from arrival to last token of a class."""
    return None if plan.simulation is None else plan.simulation.classes[at].e2e_s


def _metric(found: MetricResult | None, at: str) -> tuple[str, str]:
    """A metric at the percentile of the goal, and its limit."""
    return ("–", "–") if found is None else (duration(getattr(found.quantiles_s, at)), duration(found.limit_s))


def _class_row(item: ClassResult, e2e: Quantiles | None, others: Sequence[Metric]) -> list[str]:
    at = next((name for goal, name in PERCENTILES if item.attainment_goal <= goal), "p99")
    return [
        clean(item.name, 30),
        at,
        duration(getattr(item.ttft_s, at)),
        duration(item.ttft_limit_s),
        duration(getattr(item.tpot_s, at)) if has_tpot(item) else "–",
        duration(item.tpot_limit_s),
        *([] if e2e is None else [duration(getattr(e2e, at)), duration(item.e2e_limit_s or math.nan)]),
        *(cell for metric in others for cell in _metric(item.metrics.get(metric), at)),
        percent_beside(item.attainment, item.attainment_goal),
        percent(item.attainment_goal),
        "✓" if item.attainment >= item.attainment_goal else "missed",
    ]


def headroom_sentence(plan: Plan) -> str:
    """Say up to which rate the fleet meets its SLOs."""
    if plan.goodput_rps <= 0.0:
        return "Headroom: none; at no rate that was tried does the fleet meet its SLOs."
    more = plan.goodput_rps / plan.demand_rps - 1.0
    room = f"{rate(plan.goodput_rps)}, {signed_percent(more)} against the demand{next_rate_words(plan)}"
    return f"Headroom: the fleet meets its SLOs up to {room}."


def binds_sentence(plan: Plan) -> str:
    """Say what gives out first: a pool or a limit on the fleet, rather than the misses that come of it."""
    limits = sorted(by_slack(plan), key=lambda limit: limit.constraint == "attainment")
    return f"Binds first: {binding_sentence(limits[0])}" if limits else ""


def provisioning_sentence(provisioning: Provisioning, plan: Plan) -> str:
    """Say by how many replicas the fleet is too small or too large."""
    if not provisioning.pools:
        return f"Under-provisioned: {_nothing_helps(provisioning)}."
    if not provisioning.missing and not provisioning.spare:
        return f"No spare: {_fewer_words(provisioning, plan)}."
    word = (
        "Unbalanced"
        if provisioning.missing and provisioning.spare
        else "Under-provisioned"
        if provisioning.missing
        else "Over-provisioned"
    )
    return f"{word}: {_change_words(provisioning, plan)}."


def _nothing_helps(provisioning: Provisioning) -> str:
    return (
        f"no number of these replicas up to {provisioning.most:g} times as many is shown to meet the SLOs; the engines "
        "need other settings or GPUs"
    )


def _change_words(provisioning: Provisioning, plan: Plan) -> str:
    """The replicas that are needed, and those that are not, with the price."""
    more = [
        f"{pool.needed - pool.replicas} more in {pool.pool}"
        for pool in provisioning.pools
        if pool.needed > pool.replicas
    ]
    less = [
        f"{pool.replicas - pool.needed} fewer in {pool.pool}"
        for pool in provisioning.pools
        if pool.needed < pool.replicas
    ]
    needs = "is" if provisioning.missing == 1 else "are"
    said = f"{_counted(more)} {needs} needed" if more else ""
    still = "meets" if provisioning.spare == 1 else "meet"
    spare = (f"{_counted(less)} would do" if more else f"{_counted(less)} still {still} every SLO") if less else ""
    change = (provisioning.cost_usd_per_hour or 0.0) / (plan.cost_usd_per_hour or 1.0) - 1.0
    price = f"for {hourly(provisioning.cost_usd_per_hour)} ({signed_percent(change)})"
    return f"{join_words([words for words in (said, spare) if words])}, {price}"


def _counted(parts: list[str]) -> str:
    """Such as "2 more replicas in prefill-1 and 1 more in decode-1"."""
    first, *others = parts
    number, word, where = first.split(" ", 2)
    noun = "replica" if number == "1" else "replicas"
    return join_words([f"{number} {word} {noun} {where}", *others])


def _fewer_words(provisioning: Provisioning, plan: Plan) -> str:
    """What the fleet attains with one replica fewer."""
    if not provisioning.one_replica_fewer:
        return "every pool has one replica"
    losses = [f"in {row.what.partition(':')[0]}, {_attained(row, plan)}" for row in provisioning.one_replica_fewer]
    return f"with one replica fewer {'; '.join(losses)}"


def _attained(row: JudgedFleet, plan: Plan) -> str:
    """The share of the class that suffers most, and why it misses."""
    goals = {item.name: item.attainment_goal for item in plan.classes}
    worst = min(row.attainment, key=lambda name: row.attainment[name] - goals[name])
    why = " once a burst has filled its KV memory" if row.stuck else ", and its queues grow" if row.overloaded else ""
    what = f"class {clean(worst, 30)}" if len(goals) > 1 else "requests"
    return f"{percent_beside(row.attainment[worst], goals[worst])} of {what} meet the SLO{why}"


def twice_sentence(evaluation: FleetEvaluation) -> str:
    """Say what twice the traffic does, and what it needs."""
    twice, plan = evaluation.twice, evaluation.plan
    reached, at = _attained(twice.stated, plan), f"At twice the traffic ({rate(twice.rate_rps)}) the fleet"
    needs = _change_words(twice, plan) if twice.pools else _nothing_helps(twice)
    if twice.stated.held:
        return f"{at} meets {_slos(plan)} too: {reached}{f'; {needs}' if twice.spare else ''}."
    verb = "is not shown to meet" if twice.stated.outcome == "undecided" else "misses"
    return f"{at} {verb} {_slos(plan)}: {reached}; {needs}."


def cheapest_sentence(evaluation: FleetEvaluation) -> str:
    """Set the cheapest fleet that the search found beside the stated one; empty where none was sought."""
    best, cost = evaluation.cheapest, evaluation.plan.cost_usd_per_hour or 0.0
    if best is None:
        return f"Cheapest fleet: none. {evaluation.no_cheapest}" if evaluation.no_cheapest else ""
    if not has_fleet(best) or evaluation.saving_usd_per_hour is None:
        return f"Cheapest fleet: none. {no_fleet_headline(best)}"
    saving = evaluation.saving_usd_per_hour
    by = "" if best.simulated else ", by formula"
    what = f"{fleet_words(best)} for {hourly(best.cost_usd_per_hour)}{by}"
    if abs(saving) <= SAME * cost:
        return f"Cheapest fleet found: {what}: the same price."
    if saving < 0.0 and evaluation.outcome == "meets":
        return f"Cheapest fleet: this one; the search found {what}."
    change = f"{hourly(abs(saving))} {'less' if saving > 0.0 else 'more'} ({signed_percent(-saving / cost)})"
    month = f", {monthly(saving)} a month saved" if saving > 0.0 else ""
    return f"Cheapest fleet found: {what}: {change}{month}."
