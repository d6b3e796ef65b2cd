"""The answers of resilience and autoscale: a plan's fleet after a loss, and scaled over the day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from costmodel.units import DAY
from costmodel.words import plural
from optimizer.plans.plan import Plan, Status
from optimizer.plans.records import Outcome
from optimizer.procurement.operation import Day, Loss, Resilience
from optimizer.verification.judge import Judgement, pool_behind
from reports.document import Column, Document, Section, Table, said, table_of
from reports.question import again_command, by_node
from reports.slos import MARKS, class_record
from reports.text import MISSING, count, duration, goal_percent, hourly, money, percent, rate, signed_percent
from reports.verdict import deciding_words
from search_spaces.bounds import RUN_REQUESTS
from search_spaces.problem import Problem

MOST_LINES: Final = 12
"""Of a cell: a narrow terminal makes cells tall, and cuts none."""
UNDECIDED: Final = "Undecided: the goal lies within the 95 % interval of the share, as it does near saturation."
METHOD: Final = (
    "Simulated after the loss, with requests routed to what is left; requests that were running at the loss are left "
    "out. Replicas are on nodes as in the deployment files. Spares: the price of more replicas of the same engines, to "
    "make up for the loss. For the loss of a node, these assume that each pool is spread evenly over nodes of its own. "
    "A pool that met the SLO after the loss of a replica needs fewer."
)


def resilience_dict(resilience: Resilience) -> dict[str, Any]:
    """The answer as a record."""
    losses = [
        {
            "loss": loss.what,
            "number": loss.number,
            "of": loss.of,
            "engines_lost": loss.lost,
            "engines_left": loss.left,
            "left_usd_per_hour": loss.price,
            "spares_usd_per_hour": loss.spare,
            **_judged_record(loss.judgement, pools_left(loss)),
        }
        for loss in resilience.losses
    ]
    spares = {
        unit: {
            "everywhere": resilience.spare_cost(unit, only_where_needed=False),
            "where_needed": resilience.spare_cost(unit, only_where_needed=True),
        }
        for unit in ("replica", "node")
    }
    whole = {"cost_usd_per_hour": resilience.cost} | _judged_record(resilience.whole, resilience.pools)
    return {"schema": "pdplan.resilience/3"} | whole | {"losses": losses, "spares_usd_per_hour": spares}


def _judged_record(judgement: Judgement | None, pools: Sequence[str]) -> dict[str, Any]:
    """What the runs of a fleet say; None: of one that cannot serve all requests. pools: those that have a replica."""
    if judgement is None:
        return {"verdict": "misses", "held": False, "classes": None, "overloaded": False, "falls_behind": None}
    return {
        "verdict": str(judgement.outcome),
        "held": judgement.proven,
        "classes": [
            class_record(case, is_late=number in judgement.late) for number, case in enumerate(judgement.classes)
        ],
        "overloaded": judgement.overload.overloaded,
        "falls_behind": behind(judgement, pools),
    }


def resilience_document(resilience: Resilience, count: int, plan: Plan) -> Document:
    """The answer for a plan: which losses the fleet survives, every loss, what N+k costs.

    count: replicas or nodes lost at once.
    """
    judgements = [resilience.whole, *(loss.judgement for loss in resilience.losses if loss.judgement is not None)]
    between = [item for item in judgements if item.outcome is Outcome.UNDECIDED]
    lengths = [sum(run.demand.trace.size for run in item.runs) for item in judgements]
    most = f" (up to {max(lengths):,} where fewer do not tell)" if max(lengths) > min(lengths) else ""
    notes = said(
        _spares_sentence(resilience, "replica", count),
        _spares_sentence(resilience, "node", count),
        _other_engines_sentence(resilience, plan),
        f"{UNDECIDED} {deciding_words(between, int(RUN_REQUESTS.high))}" if between else "",
        METHOD,
        f"Each row is a run of {plural(min(lengths), 'request')}{most} with the expected step times; spare replicas "
        "serve too. The plan's own shares may differ: there spare replicas are idle and, with --confidence, steps are "
        "slow.",
    )
    return Document(
        headline=(resilience_verdict(resilience),),
        sections=(Section(table=losses_table(resilience)), Section(sentences=notes)),
        positive=resilience.held,
        next_step=_spares_command(resilience, count, plan),
        about=("Which loss breaks an SLO?", plan.name),
    )


def _other_engines_sentence(resilience: Resilience, plan: Plan) -> str:
    """That a fleet of other engines may have spares for less, most of all where a replica takes a node of its own."""
    if not resilience.spare_cost("replica", only_where_needed=False):
        return ""
    nodes = "Whole nodes are billed, also for spare replicas. "
    nodes = nodes if any(by_node(plan, pool.accelerator) for pool in plan.pools) else ""
    return f"{nodes}A fleet that is planned with spares may have other engines and cost less."


def _spares_command(resilience: Resilience, count: int, plan: Plan) -> str:
    """The command that plans with spare replicas; empty where they are there already, or no replica is missed.

    They do not cover the loss of a node: they may stand on the one that is lost.
    """
    unheld = {loss.what for loss in resilience.losses if not loss.held}
    has_spares = all(pool.spare_replicas >= count for pool in plan.pools)
    if plan.status is Status.STATED or "replica" not in unheld or has_spares:
        return ""
    limit = "   # for lost replicas, not for lost nodes" if "node" in unheld else ""
    return again_command(plan, f"--set constraints.headroom.replicas={count} -o plan-with-spares") + limit


def resilience_verdict(resilience: Resilience) -> str:
    """After how many losses the fleet meets its SLOs, misses one, or the runs do not tell."""
    whole, number = resilience.whole, len(resilience.losses)
    if whole.outcome is not Outcome.MEETS:
        result = "misses an SLO" if whole.outcome is Outcome.MISSES else "is not shown to meet every SLO"
        return f"Even without a loss the fleet {result}: {attainment_words(whole, resilience.pools)}."
    after = Counter(loss.outcome for loss in resilience.losses)
    misses, doubts = after[Outcome.MISSES], after[Outcome.UNDECIDED]
    if not misses and not doubts:
        return f"The fleet meets every SLO after each of the {number} losses below."
    doubt = f"; after {doubts} it is undecided" if doubts else ""
    which = "each" if misses == number else misses or "none"
    return f"The fleet misses an SLO after {which} of the {number} losses below{doubt}."


def losses_table(resilience: Resilience) -> Table:
    """The fleet without a loss, and after every one."""
    rows = [("none", "all", _share_cell(resilience.whole, resilience.pools), MISSING)]
    for loss in resilience.losses:
        shares = "✗ none is served" if loss.serves_none else "✗ some cannot be served"
        shares = shares if any(loss.left.values()) else "✗ no replica left"
        if loss.judgement is not None:
            shares = _share_cell(loss.judgement, pools_left(loss))
        lost = "" if loss.what == "replica" or loss.everything else f" ({_replicas(loss.lost)})"
        name = f"{plural(loss.number, loss.what)} of {loss.of}{lost}"  # such as "1 node of H100 (2 × colocated-1)"
        rows.append((name, _replicas(loss.left), shares, hourly(loss.spare)))
    heads = (Column(head, shrink=True, lines=MOST_LINES) for head in ("loss", "left", "SLO met"))
    return table_of((*heads, "#spares"), rows)


def _share_cell(judgement: Judgement, pools: Sequence[str]) -> str:
    """Whether the SLO is met, and by which share of each class."""
    return f"{MARKS[judgement.outcome]} {attainment_words(judgement, pools)}"


def _replicas(replicas: Mapping[str, int]) -> str:
    """Replicas by pool."""
    return ", ".join(f"{n} × {name}" for name, n in replicas.items() if n) or "none"


def _spares_sentence(resilience: Resilience, unit: str, count: int) -> str:
    """What spares against a loss cost more: where it breaks an SLO, and everywhere; once where that is the same."""
    where_needed, everywhere = (resilience.spare_cost(unit, only_where_needed=where) for where in (True, False))
    loss = f"the loss of any {unit if count == 1 else plural(count, unit)}"
    where = "in every pool" if unit == "replica" else "for every GPU type"
    extra = [
        f"{hourly(spare)} more ({signed_percent(spare / resilience.cost)})" for spare in (where_needed, everywhere)
    ]
    breaks = any(not item.held for item in resilience.losses if item.what == unit)
    if breaks and not where_needed:
        return f"Spread each pool evenly over nodes of its own, and no spares are needed against {loss}."
    if not everywhere:
        return f"The fleet needs no more spares against {loss}."
    if not where_needed:
        return f"No spares are needed against {loss}; {where} they would cost {extra[1]}."
    also = f" where it breaks an SLO, {extra[1]} {where}" if where_needed != everywhere else ""
    return f"Spares against {loss} (N+{count}) cost {extra[0]}{also}."


def pools_left(loss: Loss) -> list[str]:
    """The pools that have a replica left after a loss."""
    return [name for name, n in loss.left.items() if n]


def behind(judgement: Judgement, pools: Sequence[str]) -> str | None:
    """Which of the pools that were simulated falls behind its arrivals; None where all keep up."""
    number = pool_behind(judgement)
    return None if number is None else pools[number]


def attainment_words(judgement: Judgement, pools: Sequence[str]) -> str:
    """Share of every class that meets its SLO, its goal, and the pool that falls behind; pools: those simulated."""
    several = len(judgement.classes) > 1
    shares = ", ".join(
        f"{f'{case.name} ' * several}{percent(case.attainment)} (goal {goal_percent(case.attainment_goal)})"
        for case in judgement.classes
    )
    late = behind(judgement, pools)
    return shares if late is None else f"{shares}, {late} overloaded"


# --- over the day -----------------------------------------------------------------------------------------------------

NEGLIGIBLE: Final = 1e-9
"""Share of the cost below which a saving is rounding."""


def autoscale_dict(day: Day) -> dict[str, Any]:
    """The answer as a record."""
    return {"schema": "pdplan.autoscale/2"} | asdict(day)


def autoscale_document(problem: Problem, day: Day) -> Document:
    """The answer: what scaling ahead saves, what scaling on load misses, the day in stretches of equal replicas."""
    runs = f"simulated, with at least {count(day.simulated_requests)} requests for each rate and fleet"
    method = (
        f"Replicas and shares are {runs if day.simulated_requests else 'by formula'}. Each hour is evaluated as if its "
        "rate lasted, with routing unchanged. The queue behind too small a fleet is modeled as a fluid: a request that "
        "arrives while there is a queue misses the SLO. A released replica stops at once."
    )
    return Document(
        headline=(autoscale_verdict(day),),
        sections=(
            Section(sentences=(on_load(problem, day),)),
            Section(table=stretches(problem, day)),
            Section(sentences=(method,)),
        ),
        positive=all(hour.carried and hour.settled for hour in day.hours),
        about=("What does scaling over the day save?", problem.name),
    )


def autoscale_verdict(day: Day) -> str:
    """Whether the fleet meets its SLOs in every hour, and only where none is missed what scaling ahead saves."""
    short = [hour for hour in day.hours if not hour.carried]
    doubtful_hours = plural(sum(not hour.settled for hour in day.hours), "hour")
    doubt = "the goal lies within the 95 % interval of the whole fleet's runs. Longer runs (--requests) decide."
    doubt = "" if all(hour.settled for hour in day.hours) else f" Undecided in {doubtful_hours} of the day: {doubt}"
    cost = (
        f"Scaled ahead by the daily profile, {duration(day.start_up_s)} before each rise, the fleet costs "
        f"{money(day.ahead_usd_per_day)} a day instead of {money(day.fixed_usd_per_day)}"
    )
    if short:
        most = max(hour.rate_rps for hour in short)
        return (
            f"The whole fleet misses an SLO in {plural(len(short), 'hour')} of the day, of up to {rate(most)}, "
            f"scaled or not. {cost}, which does not meet the SLO either.{doubt}"
        )
    if day.saved_usd_per_day <= NEGLIGIBLE * day.fixed_usd_per_day:
        return (
            f"Scaling saves nothing: {_no_saving_words(day)}. The fleet costs {money(day.fixed_usd_per_day)} a "
            f"day.{doubt}"
        )
    how, hours = "when simulated" if day.simulated_requests else "by formula", "Every other" if doubt else "Every"
    share = percent(day.saved_usd_per_day / day.fixed_usd_per_day)
    saving = round(day.fixed_usd_per_day, 2) - round(day.ahead_usd_per_day, 2)  # of the prices as they are shown
    return f"{cost}: {money(saving)} saved ({share}).{doubt} {hours} hour meets its SLO {how}."


def _no_saving_words(day: Day) -> str:
    """Why fewer replicas in quiet hours save nothing: none are fewer, none are cheaper, or they start too slowly."""
    if len({tuple(hour.replicas.values()) for hour in day.hours}) == 1:
        return "every hour needs the same replicas"
    needed = sum(hour.usd_per_hour for hour in day.hours)
    if needed >= day.fixed_usd_per_day * (1.0 - NEGLIGIBLE):
        return "nodes are billed whole, and every hour needs as many nodes"
    return "replicas that start in time for the next rise fill the gaps"


def _class(problem: Problem, name: str) -> str:
    """The name of a class before a figure of it; none where there is one class only."""
    return f"{name} " if len(problem.slos) > 1 else ""


def on_load(problem: Problem, day: Day) -> str:
    """What scaling on load does, and how fast replicas must start for it."""
    misses = [
        f"{_class(problem, slo.name)}{percent(share)}, goal {percent(slo.attainment)}"
        for slo in problem.slos
        if (share := day.attainment_on_load[slo.name]) < slo.attainment - 1e-9
    ]
    if not all(hour.carried for hour in day.hours):
        limit = "No start-up time is short enough for the hours in which the whole fleet misses an SLO."
    elif day.longest_start_up_s <= 0.0:
        limit = "It would meet every SLO only without any start-up time."
    elif day.longest_start_up_s >= DAY:
        limit = "It meets every SLO at any start-up time."
    else:
        limit = f"It meets every SLO up to a start-up time of {duration(day.longest_start_up_s)}."
    result = f"misses an SLO over the day ({'; '.join(misses)})" if misses else "meets every SLO over the day"
    late = f"{percent(day.late_share)} of the requests come" if day.late_share else "No request comes"
    return (
        f"Scaled on load, the fleet costs {money(day.on_load_usd_per_day)} a day and {result}. {late} while the fleet "
        f"is too small for its hour, or still works off the queue of that time. {limit}"
    )


def stretches(problem: Problem, day: Day) -> Table:
    """Stretches of hours with the same replicas, and the least attainment in them."""
    rows, classes = [], [slo.name for slo in problem.slos]
    for replicas, group in groupby(day.hours, key=lambda hour: hour.replicas):
        hours = list(group)
        doubt = "" if all(hour.settled for hour in hours) else ", undecided"
        least = [f"{percent(min(hour.attainment[name] for hour in hours))}{doubt}" for name in classes]
        span, most = f"{hours[0].hour:02d}:00 to {hours[-1].hour + 1:02d}:00", max(hour.rate_rps for hour in hours)
        rows.append((span, rate(most), *map(str, replicas.values()), *least))
    met = [f"#{_class(problem, slo.name)}SLO met (goal {percent(slo.attainment)})" for slo in problem.slos]
    return table_of(("hours", "#up to", *(f"#{name} replicas" for name in day.hours[0].replicas), *met), rows)
