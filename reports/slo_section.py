"""The SLO check: latencies, distributions, buckets and other fleets, as simulated or, where not, by formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import ClassResult, Plan
from optimizer.plans.records import SimulatedClass

from .document import Chart, Table, table_of
from .figures import goal_label
from .front import front_headers, front_note, front_rows, front_sentence
from .next_rate import fails_words
from .numbers import (
    MISSING,
    count,
    duration,
    hourly,
    is_number,
    percent,
    percent_beside,
    rate,
    signed_percent,
    significant,
)
from .page_charts import slo_charts
from .simulation_charts import FAR, draw_buckets, draw_distributions, draw_fleets, draw_load
from .simulation_figures import (
    BucketMap,
    ClassDistributions,
    FleetPoint,
    Load,
    LoadFigure,
    bucket_maps,
    distributions,
    fleet_points,
    load_figure,
    worst_bucket,
)
from .text import clean, plural
from .tried_fleets import HOLDS, NOT_SHOWN, TriedFleet, held_words, origin_words, outcome_words, tried_fleets
from .words import has_tpot, limited_cell, other_metrics

MOST_CLASSES: Final = 3
"""Classes whose distributions and buckets are drawn."""
MOST_JUDGED: Final = 24

LATENCIES: Final = (("prefill", "TTFT"), ("decode", "TPOT"))


@dataclass(frozen=True, slots=True)
class SloCheck:
    """What the section shows beside the table of classes; facts and tables are empty where nothing was simulated."""

    charts: tuple[Chart, ...]
    basis: str
    facts: tuple[tuple[str, str], ...]
    classes: Table
    judged_title: str
    judged: Table
    front_title: str
    front_note: str
    front: Table


def slo_check(plan: Plan) -> SloCheck:
    """Compute the section of a plan that has a fleet."""
    charts = list(slo_charts(plan))
    charts += [_distribution_chart(figure, plan) for figure in distributions(plan)[:MOST_CLASSES]]
    load = load_figure(plan)
    charts += [] if load is None else [_load_chart(load, plan)]
    charts += [_bucket_chart(figure, plan) for figure in bucket_maps(plan)[:MOST_CLASSES]]
    return SloCheck(
        charts=tuple(charts),
        basis=basis_sentence(plan),
        facts=_facts(plan),
        classes=_classes(plan),
        judged_title=judged_sentence(plan),
        judged=_judged(plan),
        front_title=front_sentence(plan),
        front_note=front_note(plan),
        front=table_of(front_headers(plan), front_rows(plan)),
    )


def basis_sentence(plan: Plan) -> str:
    """Say what the section's figures are: simulated or by formula."""
    if plan.simulation is None:
        return (
            "Not simulated: latencies and attainment are by the queueing formulas, and there are no distributions. "
            "pdplan optimize simulates unless told --effort quick."
        )
    found = plan.simulation
    return (
        f"Simulated: {count(found.requests)} requests in {plural(found.replications, 'run')} "
        f"at {rate(found.rate_rps)}; "
        f"{percent(found.rejected)} rejected, {percent(found.unfinished)} unfinished, "
        f"{significant(found.preemptions_per_request)} preemptions per request."
    )


def judged_sentence(plan: Plan) -> str:
    """Say how many of the other fleets that were simulated cost less, and how many of those hold."""
    own = plan.cost_usd_per_hour or 0.0
    cheaper = [one.best for one in tried_fleets(plan) if one.best.cost_usd_per_hour < own]
    if not cheaper:
        return "No cheaper fleet was simulated"
    held = held_words([outcome_words(row, plan) for row in cheaper])
    return f"Tried on the way: {plural(len(cheaper), 'cheaper fleet')}, of which {held}"


def _distribution_chart(figure: ClassDistributions, plan: Plan) -> Chart:
    item = next(one for one in plan.classes if clean(one.name, 30) == figure.name)
    label, goal = goal_label(item.attainment_goal), percent(figure.goal)
    rows = [
        (panel.metric, percent(share), duration(seconds), duration(panel.limit))
        for panel in figure.panels
        for seconds, share in panel.points
    ]
    return Chart(
        title=f"{figure.name}: {_tail_words(item, label)}",
        caption=f"Share of requests that are faster, simulated; hollow: by formula; dotted: the goal, {goal}.",
        drawing=draw_distributions(figure),
        table=table_of(("latency", "#share", "#within", "#limit"), rows),
    )


def _tail_words(item: ClassResult, label: str) -> str:
    timed = [("TTFT", item.ttft_s, item.ttft_limit_s)]
    if has_tpot(item):
        timed += [("TPOT", item.tpot_s, item.tpot_limit_s), *other_metrics(item)]
    return ", ".join(
        f"{metric} {label} {duration(getattr(values, label))}{f' of {duration(limit)}' if is_number(limit) else ''}"
        for metric, values, limit in timed
    )


def load_sentence(figure: LoadFigure) -> str:
    """Say up to which rate every goal is proven to hold, and at which the next one tried is not."""
    if figure.goodput is None:
        return "Latency at the rates that were simulated"
    room = signed_percent(figure.goodput / figure.demand - 1) if figure.demand else MISSING
    not_missed = [point.rate for point in figure.points if not point.missed]
    fails = "" if figure.fails is None else f"; {fails_words(figure.fails, not_missed)}"
    return f"Every SLO is met up to {rate(figure.goodput)}, {room} over the demand{fails}"


def knee_sentence(figure: LoadFigure) -> str:
    """Say at which rate the most is served for the time that a typical request takes."""
    if figure.knee is None:
        return "Throughput grows faster than a typical request's time at every rate but overload: no knee before it."
    return f"Knee {rate(figure.knee)}: beyond it a typical request's time grows faster than the throughput."


def held_cell(figure: LoadFigure, point: Load) -> str:
    """Say whether every goal holds at a rate; from the first one on at which that is not proven, no run proves it."""
    if point.overloaded or point.missed:
        return "overloaded" if point.overloaded else "no"
    proven = figure.fails is None or point.rate < figure.fails * (1.0 - 1e-9)
    return "yes" if proven else "not proven"


def _load_chart(figure: LoadFigure, plan: Plan) -> Chart:
    labels = {goal_label(item.attainment_goal) for item in plan.classes}
    where = f"at {labels.pop()}" if len(labels) == 1 else "at each class's goal"
    worst = ", worst class" if len(plan.classes) > 1 else ""
    requests = plan.simulation.curve_requests if plan.simulation else 0
    rows = tuple(
        (
            rate(p.rate),
            percent(p.ttft),
            percent(p.tpot),
            duration(p.time),
            held_cell(figure, p),
        )
        for p in figure.points
    )
    return Chart(
        title=load_sentence(figure),
        caption=f"Latency {where} over its limit{worst}; one run of {count(requests)} requests at each rate above the "
        f"planned one, shorter ones below it. "
        f"{knee_sentence(figure)}",
        drawing=draw_load(figure),
        table=table_of(("#rate", "#TTFT of limit", "#TPOT of limit", "#typical time", "holds"), rows),
        legend=LATENCIES,
    )


def _bucket_chart(figure: BucketMap, plan: Plan) -> Chart:
    routes = [route for route in plan.routing if clean(route.slo_class, 30) == figure.name]
    rows = [(significant(r.isl), significant(r.osl), percent(r.share), percent(r.attainment)) for r in routes]
    below = sum(route.attainment < figure.goal for route in routes)
    least = percent(min(route.attainment for route in routes))
    number = plural(len(routes), "length")
    alone = (
        f"{below} of {number} {'misses' if below == 1 else 'miss'} the goal alone"
        if below
        else f"each of {number} reaches the goal alone"
    )
    title = f"{figure.name}: {alone}, the least with {least}"
    return Chart(
        title=title,
        caption=f"The goal, {percent(figure.goal)}, is for all together; cells sum up lengths, red ones are below it.",
        drawing=draw_buckets(figure),
        table=table_of(("#input tokens", "#output tokens", "#share of all", "#SLO met"), rows),
    )


def _facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    found = plan.simulation
    if found is None:
        return ()
    worst = worst_bucket(plan)
    where = MISSING
    if worst is not None:
        where = (
            f"{percent(worst.attainment)} meet the SLO ({clean(worst.slo_class, 30)}, "
            f"{significant(worst.isl)} in, {significant(worst.osl)} out)"
        )
    return (
        ("requests simulated", f"{count(found.requests)} in {plural(found.replications, 'run')}, seed {found.seed}"),
        ("requests that meet the SLO", percent(found.attainment)),
        ("bucket with the least slack", where),
        ("longest gap between tokens, p99 over requests", duration(found.itl_max_p99_s)),
        ("preemptions per request", significant(found.preemptions_per_request)),
        ("rejected, for want of memory", percent(found.rejected)),
        ("unfinished", percent(found.unfinished)),
        ("goodput, simulated", rate(found.goodput_rps)),
        ("goodput by formula", rate(found.goodput_by_formula_rps)),
        ("fleets simulated", count(found.judged)),
        ("repairs of fleets that missed the SLO, before one met it", count(found.repairs)),
    )


def _classes(plan: Plan) -> Table:
    """Simulation and formulas side by side."""
    headers = (
        "class",
        "#SLO met",
        "#95 % interval",
        "#by formula",
        "#goal",
        "#TTFT",
        "#by formula",
        "#TPOT",
        "#by formula",
    )
    rows = [] if plan.simulation is None else [_class_row(one) for one in plan.simulation.classes]
    return table_of(headers, rows)


def _class_row(one: SimulatedClass) -> tuple[str, ...]:
    label = goal_label(one.attainment_goal)
    formula = one.by_formula
    held, low, high, by_formula = (
        percent_beside(share, one.attainment_goal)
        for share in (one.attainment, one.attainment_low, one.attainment_high, formula.attainment)
    )
    return (
        clean(one.name, 30),
        held,
        f"{low} to {high}",
        by_formula,
        percent(one.attainment_goal),
        f"{label} {duration(getattr(one.ttft_s, label))}",
        duration(getattr(formula.ttft_s, label)),
        f"{label} {duration(getattr(one.tpot_s, label))}",
        duration(getattr(formula.tpot_s, label)),
    )


def _judged(plan: Plan) -> Table:
    headers = ("fleet", "pools (max seqs/chunk)", "#price", "#difference", "#tries", "#SLO met", "outcome")
    return table_of(headers, [_judged_row(one, plan) for one in tried_fleets(plan)])


def _judged_row(tried: TriedFleet, plan: Plan) -> tuple[str, ...]:
    row, own = tried.best, plan.cost_usd_per_hour
    difference = MISSING if not own else signed_percent(row.cost_usd_per_hour / own - 1)
    several = len(row.attainment) > 1
    shares = [
        f"{clean(name, 20)} {percent(share)}" if several else percent(share) for name, share in row.attainment.items()
    ]
    return (
        origin_words(row),
        " + ".join(limited_cell(pool) for pool in row.pools[:12]),
        hourly(row.cost_usd_per_hour),
        difference,
        count(tried.tries),
        ", ".join(shares) or MISSING,
        outcome_words(row, plan),
    )


def fleets_chart(plan: Plan) -> Chart | None:
    """Draw cost against latency of every simulated fleet; None where there are fewer than two."""
    points = fleet_points(plan)
    if len(points) < 2:
        return None
    rows = [(p.name, hourly(p.cost), percent(p.ttft), percent(p.tpot), p.outcome) for p in points]
    far = sum(p.cost > FAR * (plan.cost_usd_per_hour or 0.0) for p in points)
    left = f" {plural(far, 'fleet')} of over {FAR:g} times the price only in the data." if far else ""
    return Chart(
        title=fleets_sentence(points),
        caption=(
            "Latency at the goal's quantile over its limit, worst class; the steps join fleets that meet the SLO "
            f"and that none beats.{left}"
        ),
        drawing=draw_fleets(points),
        table=table_of(("fleet", "#price", "#TTFT of limit", "#TPOT of limit", "outcome"), rows),
        legend=(("good", "recommended"), ("other", HOLDS), ("over", NOT_SHOWN)),
    )


def fleets_sentence(points: Sequence[FleetPoint]) -> str:
    """Say how many simulated fleets cost less than the recommended one, and how many of those hold."""
    own = next(point for point in points if point.recommended)
    cheaper = [point for point in points if point.cost < own.cost]
    if not cheaper:
        return f"The cheapest of the {len(points)} fleets drawn"
    held = held_words([point.outcome for point in cheaper])
    return f"{plural(len(cheaper), 'cheaper fleet')} simulated, of which {held}"
