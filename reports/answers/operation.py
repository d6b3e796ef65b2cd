"""What resilience and autoscale answer: a plan's fleet after a loss, and scaled over the day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from costmodel.words import plural
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan, Status
from optimizer.plans.records import Outcome
from optimizer.procurement.operation import DAY, Day, Loss, Resilience
from optimizer.verification.judge import Judgement, pool_behind
from reports.charts import Axis, draw_stacks, round_steps
from reports.document import Chart, Column, Document, Section, Table, said, table_of
from reports.next_steps import again_command
from reports.numbers import MISSING, count, duration, hourly, money, percent, rate, signed_percent, significant
from reports.verdict import deciding_words, waste_sentence
from reports.words import MARKS, marked
from search_spaces.bounds import RUN_REQUESTS

MOST_LINES: Final = 12
"""Of a cell: a narrow terminal makes cells tall, and cuts none."""
MOST_NAMED: Final = 2
"""Losses of the same result that the headline names."""
UNDECIDED: Final = "Undecided: the goal lies within the 95 % interval of the share, as it does near saturation."
RESULTS: Final = {
    Outcome.MISSES: "The fleet misses an SLO",
    Outcome.MEETS: "The fleet meets every SLO",
    Outcome.UNDECIDED: "It is undecided whether the fleet meets its SLOs",
}
METHOD: Final = (
    "Simulated after the loss, with requests routed to what is left; requests that were running at the loss are left "
    "out. Replicas are on nodes as in the deployment files. Spares: the price of the replicas that make up for the "
    "loss. For the loss of a node, these assume that each pool is spread evenly over nodes of its own."
)


def resilience_dict(resilience: Resilience) -> dict[str, Any]:
    """The answer as a record."""
    return {
        "schema": "pdplan.resilience/2",
        "cost_usd_per_hour": resilience.cost,
        "verdict": str(resilience.whole.outcome),
        "held": resilience.whole.proven,
        "whole": _classes(resilience.whole),
        "overloaded": resilience.whole.overload.overloaded,
        "falls_behind": behind(resilience.whole, resilience.pools),
        "losses": [
            {
                "loss": loss.what,
                "number": loss.number,
                "of": loss.of,
                "engines_lost": dict(zip(resilience.pools, loss.lost, strict=True)),
                "engines_left": dict(zip(resilience.pools, loss.left, strict=True)),
                "left_usd_per_hour": loss.price,
                "verdict": str(loss.outcome),
                "held": loss.held,
                "classes": None if loss.judgement is None else _classes(loss.judgement),
                "overloaded": loss.judgement is not None and loss.judgement.overload.overloaded,
                "falls_behind": None
                if loss.judgement is None
                else behind(loss.judgement, pools_left(resilience, loss)),
                "spares_usd_per_hour": loss.spare,
            }
            for loss in resilience.losses
        ],
        "spares_usd_per_hour": {
            unit: {
                "everywhere": resilience.spare_cost(unit, only_where_needed=False),
                "where_needed": resilience.spare_cost(unit, only_where_needed=True),
            }
            for unit in ("replica", "node")
        },
    }


def _classes(judgement: Judgement) -> list[dict[str, Any]]:
    return [
        {
            "name": case.name,
            "goal": case.attainment_goal,
            "attainment": case.attainment,
            "low": case.attainment_low,
            "high": case.attainment_high,
            "verdict": str(case.outcome),
            "held": case.proven,
        }
        for case in judgement.classes
    ]


def resilience_document(resilience: Resilience, count: int, plan: Plan) -> Document:
    """The answer for a plan: which losses the fleet survives, every loss, what N+k costs.

    count: replicas or nodes lost at once.
    """
    searched, other_runs = plan.status is not Status.STATED, seen_in_the_plan(plan, count)
    spares = again_command(plan, f"--set constraints.headroom.replicas={count} -o plan-with-spares")
    return Document(
        headline=(resilience_verdict(resilience),),
        sections=(
            Section(table=losses_table(resilience)),
            Section(sentences=notes(resilience, count, other_runs)),
        ),
        positive=resilience.held,
        next_step=spares if searched and not resilience.held else "",
        about=("Which loss breaks an SLO?", plan.name),
    )


def resilience_verdict(resilience: Resilience) -> str:
    """After which losses the fleet meets its SLOs, and after which the runs do not tell."""
    whole = resilience.whole
    if whole.outcome is not Outcome.MEETS:
        result = RESULTS[whole.outcome]
        shares = attainment_words(whole, resilience.pools)
        return f"Even without a loss {result[0].lower()}{result[1:]}: {shares}."
    groups: dict[str, list[Loss]] = {
        "Some requests cannot be served": [],
        **{result: [] for result in RESULTS.values()},
    }
    for loss in resilience.losses:
        groups["Some requests cannot be served" if loss.judgement is None else RESULTS[loss.outcome]].append(loss)
    sentences = []
    for result, losses in groups.items():
        which = f"the loss of {'; or of '.join(loss_name(resilience, loss) for loss in losses)}"
        if len(losses) > MOST_NAMED:
            which = f"{len(losses)} of the {len(resilience.losses)} losses below"
        sentences += [f"{result} after {which}."] if losses else []
    return " ".join(sentences)


def losses_table(resilience: Resilience) -> Table:
    """The fleet without a loss, and after every one."""
    goals = [case.attainment_goal for case in resilience.whole.classes]
    met = f"SLO met ({percent(goals[0])} asked)" if len(goals) == 1 else "SLO met"
    rows = [("none", "all", hourly(resilience.cost), _share_cell(resilience.whole, resilience.pools), MISSING)]
    for loss in resilience.losses:
        shares = "✗ some cannot be served" if any(loss.left) else "✗ no replica left"
        if loss.judgement is not None:
            shares = _share_cell(loss.judgement, pools_left(resilience, loss))
        name = loss_name(resilience, loss, short=True)
        rows.append((name, _replicas(resilience, loss.left), hourly(loss.price), shares, hourly(loss.spare)))
    words = {head: Column(head, shrink=True, lines=MOST_LINES) for head in ("loss", "left", met)}
    return table_of((words["loss"], words["left"], "#costs", words[met], "#spares"), rows)


def _share_cell(judgement: Judgement, pools: Sequence[str]) -> str:
    """Whether the SLO is met, and by which share of each class; of a single one, the header has the goal."""
    if len(judgement.classes) > 1:
        return f"{MARKS[judgement.outcome]} {attainment_words(judgement, pools)}"
    late = behind(judgement, pools)
    share = marked(judgement.outcome, judgement.classes[0].attainment)
    return share if late is None else f"{share}, {late} overloaded"


def notes(resilience: Resilience, count: int, other_runs: str = "") -> tuple[str, ...]:
    """What N+k costs, what decides the undecided, what other runs showed of the same losses, and how it was found."""
    judgements = [resilience.whole, *(loss.judgement for loss in resilience.losses if loss.judgement is not None)]
    between = [item for item in judgements if item.outcome is Outcome.UNDECIDED]
    return said(
        _spares_sentence(resilience, "replica", count),
        _spares_sentence(resilience, "node", count),
        f"{UNDECIDED} {deciding_words(between, int(RUN_REQUESTS.high))}" if between else "",
        other_runs,
        METHOD,
        _runs(judgements),
    )


def seen_in_the_plan(plan: Plan, count: int) -> str:
    """What the runs that proved a plan showed of one replica fewer; empty where more are lost, or spares idle there."""
    fewer = waste_sentence(plan)
    if not fewer or count > 1 or any(pool.spare_replicas for pool in plan.pools):
        return ""
    return f"In the plan's own runs: {fewer.removeprefix('No spare: ')}"


def _runs(judgements: Sequence[Judgement]) -> str:
    """Say how long the runs are, and why the row without a loss is not the plan's own figure to the digit."""
    lengths = [sum(run.demand.trace.size for run in item.runs) for item in judgements]
    most = f" (up to {max(lengths):,} where fewer do not tell)"
    longer = most if max(lengths) > min(lengths) else ""
    return (
        f"Each row is a run of {plural(min(lengths), 'request')}{longer} with the expected step times; spare replicas "
        "serve too. The plan's own shares may differ: there spare replicas are idle and, with --confidence, steps are "
        "slow."
    )


def loss_name(resilience: Resilience, loss: Loss, *, short: bool = False) -> str:
    """A loss in words, such as "1 node of H100, its only one (2 × colocated-1)"; short: as in the table."""
    everything = "" if short else (", its only one" if loss.number == 1 else ", all it has") if loss.everything else ""
    if loss.what == "replica":
        return f"{plural(loss.number, 'replica')} of {loss.of}{everything}"
    lost = "" if short and loss.everything else f" ({_replicas(resilience, loss.lost)})"
    return f"{plural(loss.number, 'node')} of {loss.of}{everything}{lost}"


def _replicas(resilience: Resilience, replicas: tuple[int, ...]) -> str:
    """Replicas by pool."""
    return ", ".join(f"{n} × {name}" for n, name in zip(replicas, resilience.pools, strict=True) if n) or "none"


def _spares_sentence(resilience: Resilience, unit: str, count: int) -> str:
    """What spares against a loss cost more: where it breaks an SLO, and everywhere; once where that is the same."""
    where_needed, everywhere = (resilience.spare_cost(unit, only_where_needed=where) for where in (True, False))
    loss = f"the loss of any {unit if count == 1 else plural(count, unit)}"
    where = "in every pool" if unit == "replica" else "for every GPU type"
    extra = [
        f"{hourly(spare)} more ({signed_percent(spare / resilience.cost)})" for spare in (where_needed, everywhere)
    ]
    if not everywhere:
        return f"The fleet needs no more spares against {loss}."
    if not where_needed:
        return f"No spares are needed against {loss}; {where} they would cost {extra[1]}."
    also = f" where it breaks an SLO, {extra[1]} {where}" if where_needed != everywhere else ""
    return f"Spares against {loss} (N+{count}) cost {extra[0]}{also}."


def pools_left(resilience: Resilience, loss: Loss) -> list[str]:
    """The pools that have a replica left after a loss."""
    return [name for name, n in zip(resilience.pools, loss.left, strict=True) if n]


def behind(judgement: Judgement, pools: Sequence[str]) -> str | None:
    """Which of the pools that were simulated falls behind its arrivals; None where all keep up."""
    number = pool_behind(judgement)
    return None if number is None else pools[number]


def attainment_words(judgement: Judgement, pools: Sequence[str]) -> str:
    """Share of every class that meets its SLO, its goal, and the pool that falls behind; pools: those simulated."""
    shares = ", ".join(
        f"{case.name} {percent(case.attainment)} (goal {percent(case.attainment_goal)})" for case in judgement.classes
    )
    late = behind(judgement, pools)
    return shares if late is None else f"{shares}, {late} overloaded"


# --- over the day -----------------------------------------------------------------------------------------------------

TICKS: Final = [(float(hour), f"{hour:02d}") for hour in range(0, 24, 3)]
NEGLIGIBLE: Final = 1e-9
"""Share of the cost below which a saving is rounding."""


def autoscale_dict(instance: Instance, fleet: Fleet, day: Day) -> dict[str, Any]:
    """The answer as a record."""
    names = [slo.name for slo in instance.problem.slos]
    load = instance.problem.workload.request_rate
    return {
        "schema": "pdplan.autoscale/2",
        "start_up_s": day.start_up,
        "simulated_requests": day.requests,
        "fixed_usd_per_day": day.fixed,
        "ahead_usd_per_day": day.ahead,
        "on_load_usd_per_day": day.on_load,
        "saved_usd_per_day": day.saved,
        "late_share": day.late,
        "longest_start_up_s": day.longest,
        "attainment_on_load": dict(zip(names, day.attainment.tolist(), strict=True)),
        "hours": [
            {
                "hour": hour,
                "rate_rps": float(volume * load),
                "replicas": {pool.name: int(n) for pool, n in zip(fleet.pools, row, strict=True)},
                "attainment": dict(zip(names, day.hourly[hour].tolist(), strict=True)),
                "low": dict(zip(names, day.low[hour].tolist(), strict=True)),
                "high": dict(zip(names, day.high[hour].tolist(), strict=True)),
                "carried": hour not in day.short,
                "settled": hour not in day.unsure,
            }
            for hour, (volume, row) in enumerate(zip(day.volume, day.need, strict=True))
        ],
    }


def autoscale_document(instance: Instance, fleet: Fleet, day: Day) -> Document:
    """The answer: what scaling ahead saves, what scaling on load misses, the day in stretches of equal replicas."""
    return Document(
        headline=(autoscale_verdict(instance, day),),
        sections=(
            Section(
                sentences=(on_load(instance, day),),
                charts=(_cost_chart(instance, fleet, day),),
            ),
            Section(table=stretches(instance, fleet, day)),
            Section(sentences=(method(day),)),
        ),
        positive=not (day.short or day.unsure),
        about=("What does scaling over the day save?", instance.problem.name),
    )


def autoscale_verdict(instance: Instance, day: Day) -> str:
    """Whether the fleet meets its SLOs in every hour, and only where none is missed what scaling ahead saves."""
    cost = (
        f"Scaled ahead by the daily profile, {duration(day.start_up)} before each rise, the fleet costs "
        f"{money(day.ahead)} a day instead of {money(day.fixed)}"
    )
    if day.short:
        most = float(day.volume[list(day.short)].max() * instance.problem.workload.request_rate)
        return (
            f"The whole fleet misses an SLO in {plural(len(day.short), 'hour')} of the day, of up to {rate(most)}, "
            f"scaled or not ({lowest(instance, day)}). {cost}, which does not meet the SLO either."
            f"{unsure(instance, day)}"
        )
    if day.saved <= NEGLIGIBLE * day.fixed:
        return (
            "Scaling saves nothing: every hour needs the whole fleet, or the start-up time fills the gaps. The fleet "
            f"costs {money(day.fixed)} a day.{unsure(instance, day)}"
        )
    how, hours = "when simulated" if day.requests else "by formula", "Every other hour" if day.unsure else "Every hour"
    return (
        f"{cost}: {money(day.saved)} saved ({percent(day.saved / day.fixed)}).{unsure(instance, day)} {hours} meets "
        f"its SLO {how} ({lowest(instance, day)})."
    )


def unsure(instance: Instance, day: Day) -> str:
    """In how many hours it is undecided whether the whole fleet meets its SLOs; empty where there is none."""
    if not day.unsure:
        return ""
    hours = list(day.unsure)
    most = float(day.volume[hours].max() * instance.problem.workload.request_rate)
    slos = instance.problem.slos
    doubts = [
        (day.low[hour, k] - slo.attainment, hour, k)
        for hour in hours
        for k, slo in enumerate(slos)
        if day.low[hour, k] < slo.attainment
    ]
    _, hour, k = min(doubts)
    interval = f"{_class(instance, k)}{percent(day.low[hour, k])} to {percent(day.high[hour, k])} at {hour:02d}:00"
    return (
        f" Undecided: in {plural(len(hours), 'hour')}, of up to {rate(most)}, the goal lies within the 95 % interval "
        f"of the whole fleet's runs ({interval}, goal {percent(slos[k].attainment)}). Longer runs (--requests) decide."
    )


def lowest(instance: Instance, day: Day) -> str:
    """The hour of the least attainment of each class."""
    shares = []
    for k, slo in enumerate(instance.problem.slos):
        hour = int(np.argmin(day.hourly[:, k]))
        share = percent(float(day.hourly[hour, k]))
        shares.append(f"{_class(instance, k)}{share} at {hour:02d}:00, goal {percent(slo.attainment)}")
    return "lowest: " + "; ".join(shares)


def _class(instance: Instance, number: int) -> str:
    """The name of a class before a figure of it; none where there is one class only."""
    slos = instance.problem.slos
    return f"{slos[number].name} " if len(slos) > 1 else ""


def on_load(instance: Instance, day: Day) -> str:
    """What scaling on load does, and how fast replicas must start for it."""
    misses = [
        f"{_class(instance, k)}{percent(float(day.attainment[k]))}, goal {percent(slo.attainment)}"
        for k, slo in enumerate(instance.problem.slos)
        if day.attainment[k] < slo.attainment - 1e-9
    ]
    if day.short:
        limit = "No start-up time is short enough for the hours in which the whole fleet misses an SLO."
    elif day.longest <= 0.0:
        limit = "It would meet every SLO only without any start-up time."
    elif day.longest >= DAY:
        limit = "It meets every SLO at any start-up time."
    else:
        limit = f"It meets every SLO up to a start-up time of {duration(day.longest)}."
    result = f"misses an SLO over the day ({'; '.join(misses)})" if misses else "meets every SLO over the day"
    late = f"{percent(day.late)} of the requests come" if day.late else "No request comes"
    return (
        f"Scaled on load, the fleet costs {money(day.on_load)} a day and {result}. {late} while the fleet is too small "
        f"for its hour, or is still working off the queue from then. {limit}"
    )


def method(day: Day) -> str:
    """How it was found."""
    runs = f"simulated, with at least {count(day.requests)} requests for each rate and fleet"
    how = runs if day.requests else "by formula"
    return (
        f"Replicas and shares are {how}. Each hour is taken as if its rate lasted, with routing unchanged. The "
        "queue behind too small a fleet is modeled as a fluid: a request that comes while it stands misses the SLO. A "
        "released replica stops at once."
    )


def stretches(instance: Instance, fleet: Fleet, day: Day) -> Table:
    """Stretches of hours with the same replicas, and the least attainment in them."""
    change = np.flatnonzero((day.need[1:] != day.need[:-1]).any(axis=1)) + 1
    rows = []
    for hours in np.split(np.arange(len(day.need)), change):
        peak = float(day.volume[hours].max() * instance.problem.workload.request_rate)
        counts = [str(n) for n in day.need[hours[0]].tolist()]
        doubt = ", undecided" if set(hours.tolist()) & set(day.unsure) else ""
        least = [f"{percent(share)}{doubt}" for share in day.hourly[hours].min(axis=0).tolist()]
        rows.append((f"{hours[0]:02d}:00 to {hours[-1] + 1:02d}:00", rate(peak), *counts, *least))
    figures = (
        *(pool.name for pool in fleet.pools),
        *(f"{_class(instance, k)}SLO met" for k in range(day.hourly.shape[1])),
    )
    return table_of(("hours", "#up to", *(f"#{name}" for name in figures)), rows)


def _cost_chart(instance: Instance, fleet: Fleet, day: Day) -> Chart:
    """Dollars of every hour that its replicas cost, of what the whole fleet costs."""
    whole, load = fleet_cost(instance, fleet), instance.problem.workload.request_rate
    costs = [fleet_cost(instance, fleet.resized(row)) for row in day.need]
    rates = (day.volume * load).tolist()
    words = [
        " + ".join(f"{n} {pool.name}" for n, pool in zip(row, fleet.pools, strict=True)) for row in day.need.tolist()
    ]
    stacks = [
        (("good", cost, f"{hour:02d}:00: {hourly(cost)}, {rate(r)}, {counts}"), ("track", whole - cost, "released"))
        for hour, (cost, r, counts) in enumerate(zip(costs, rates, words, strict=True))
    ]
    heights = [(value, significant(value)) for value in round_steps(whole)]
    dollars, summary = Axis("$ an hour", 0.0, 1.05 * whole, heights), f"cost of each hour, {money(sum(costs))} a day"
    rows = [
        (f"{hour:02d}:00", rate(r), counts, hourly(cost))
        for hour, (cost, r, counts) in enumerate(zip(costs, rates, words, strict=True))
    ]
    least = int(np.argmin(costs))
    return Chart(
        title=f"At {least:02d}:00, {percent(costs[least] / whole)} of the fleet is enough",
        caption=f"Cost of the replicas that each hour needs; pale: of the whole fleet, {hourly(whole)}.",
        drawing=draw_stacks(stacks, TICKS, dollars, f"{summary} without start-up times", name="hour"),
        table=table_of(("hour", "#rate", "replicas", "#cost"), rows),
    )
