"""The charts of a plan, each with its finding as the title and its data behind it; only pages show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from costmodel.words import join_words
from optimizer.plans.plan import ClassResult, Plan, Pool
from reports import figures
from reports.asked import arrivals
from reports.charts import (
    FAR,
    draw_arrivals,
    draw_buckets,
    draw_costs,
    draw_distributions,
    draw_fleets,
    draw_heat,
    draw_load,
    draw_roofline,
    draw_split,
)
from reports.document import Chart, Table, table_of
from reports.figures import (
    ClassDistributions,
    ClassMap,
    FleetPoint,
    Load,
    LoadFigure,
    fleet_points,
    goal_label,
    goal_words,
)
from reports.numbers import (
    MISSING,
    count,
    duration,
    hourly,
    is_number,
    percent,
    rate,
    significant,
)
from reports.text import capital, clean, plural
from reports.verdict import growth_sentence
from reports.words import (
    HOLDS,
    NOT_SHOWN,
    bound_words,
    busiest_words,
    dearest_of_each_role,
    has_fleet,
    has_tpot,
    met_words,
    other_metrics,
    part_words,
    planner_words,
)

MOST_CLASSES: Final = 3
"""Classes whose distributions and buckets are drawn."""

LATENCIES: Final = (("prefill", "TTFT"), ("decode", "TPOT"))


def slo_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw what was simulated of the tightest classes: distributions, latency against load, shares by length."""
    load = figures.load_figure(plan)
    return (
        *(_distribution_chart(figure, plan) for figure in figures.distributions(plan)[:MOST_CLASSES]),
        *(() if load is None else (_load_chart(load, plan),)),
        *(_bucket_chart(figure, plan) for figure in figures.bucket_maps(plan)[:MOST_CLASSES]),
    )


def cost_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw what other fleets cost, and cost against latency of those that were simulated."""
    return tuple(chart for chart in (cost_chart(plan), fleets_chart(plan)) if chart is not None)


def _distribution_chart(figure: ClassDistributions, plan: Plan) -> Chart:
    item = next(case for case in plan.classes if clean(case.name, 30) == figure.name)
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
    metrics = [("TTFT", item.ttft_s, item.ttft_limit_s)]
    if has_tpot(item):
        metrics += [("TPOT", item.tpot_s, item.tpot_limit_s), *other_metrics(item)]
    return ", ".join(
        f"{metric} {label} {duration(getattr(values, label))}{f' of {duration(limit)}' if is_number(limit) else ''}"
        for metric, values, limit in metrics
    )


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
    where = f"at {goal_words(plan.classes).removeprefix('at ')}"
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
        title=growth_sentence(plan).removesuffix("."),
        caption=f"Latency {where} over its limit{worst}; one run of {count(requests)} requests at each rate above the "
        f"planned one, shorter ones below it. "
        f"{knee_sentence(figure)}",
        drawing=draw_load(figure),
        table=table_of(("#rate", "#TTFT of limit", "#TPOT of limit", "#typical time", "holds"), rows),
        legend=LATENCIES,
    )


def _bucket_chart(figure: ClassMap, plan: Plan) -> Chart:
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


def fleets_chart(plan: Plan) -> Chart | None:
    """Draw cost against latency of every simulated fleet; None where there are fewer than two."""
    points = fleet_points(plan)
    if len(points) < 2:
        return None
    rows = [(p.name, hourly(p.cost), percent(p.ttft), percent(p.tpot), p.outcome) for p in points]
    far = sum(p.cost > FAR * (plan.cost_usd_per_hour or 0.0) for p in points)
    note = f" {plural(far, 'fleet')} of over {FAR:g} times the price only in the data." if far else ""
    return Chart(
        title=fleets_sentence(points),
        caption=(
            "Latency at the goal's quantile over its limit, worst class; the steps join fleets that meet the SLO "
            f"and that none beats.{note}"
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
    words = met_words([point.outcome for point in cheaper])
    return f"{plural(len(cheaper), 'cheaper fleet')} simulated, of which {words}"


def cost_chart(plan: Plan) -> Chart | None:
    """Draw the price of each fleet that meets the SLOs; None where there are not two to compare."""
    own, bars = plan.cost_usd_per_hour, figures.alternative_costs(plan)
    prices = [bar.value for bar in bars if bar.value is not None]
    if not has_fleet(plan) or own is None or len(prices) < 2:
        return None
    rows = tuple((bar.label, hourly(bar.value), bar.note or "feasible") for bar in bars)
    return Chart(
        title=f"{len(prices)} fleets that meet the SLO, from {hourly(min(prices))} to {hourly(max(prices))}",
        caption="The line is the price of the recommended fleet.",
        drawing=draw_costs(bars, own),
        table=table_of(("fleet", "#price", "status"), rows),
    )


def why_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw what explains the fleet: rooflines, step times, and what features are worth where that was asked for."""
    if not plan.pools:
        return ()
    return (_roofline_chart(plan), _split_chart(plan), *((_worth_chart(plan),) if plan.worth else ()))


def _worth_chart(plan: Plan) -> Chart:
    base = plan.worth[0].with_usd_per_hour
    most = max(
        plan.worth, key=lambda item: math.inf if item.without_usd_per_hour is None else item.without_usd_per_hour
    )
    rows = [
        (clean(item.feature, 30), hourly(item.without_usd_per_hour), planner_words(item.sentence))
        for item in plan.worth
    ]
    return Chart(
        title=planner_words(most.sentence),
        caption="Each is turned off and the problem solved again, by formula; the line is the price with all of them.",
        drawing=draw_costs(figures.worth_costs(plan), base),
        table=table_of(("without", "#price", "finding"), rows),
    )


def pools_table(plan: Plan) -> Table:
    """Of each pool its share of the price, what it uses of its GPUs, and what holds it up; the dearest first."""
    headers = ("pool", "#price", "#of all", "#MFU", "#MBU", "#FLOP/byte", "#ridge", "bound by", "busiest, on average")
    total, rows = plan.cost_usd_per_hour, []
    for pool in figures.dearest_first(plan.pools):
        at = pool.operating_point
        share = percent(pool.usd_per_hour / total) if total else MISSING
        use = (percent(at.mfu), percent(at.mbu), significant(at.arithmetic_intensity), significant(at.ridge_point))
        ends = (bound_words(at.bound_by), busiest_words(at))
        rows.append((figures.pool_label(pool), hourly(pool.usd_per_hour), share, *use, *ends))
    return table_of(headers, rows)


def _roofline_chart(plan: Plan) -> Chart:
    return Chart(
        title=roofline_sentence(plan.pools),
        caption="Each point is a pool's typical step; the dotted line above it is what its roof would allow.",
        drawing=draw_roofline(figures.roofline(plan)),
        table=pools_table(plan),
        legend=tuple(
            (role, role) for role in ("prefill", "decode", "colocated") if any(pool.role == role for pool in plan.pools)
        ),
    )


def _split_chart(plan: Plan) -> Chart:
    rows = []
    for pool in plan.pools:
        at = pool.operating_point
        shares = (percent(share) for _, share in figures.step_parts(pool))
        rows.append((figures.pool_label(pool), duration(at.step_s), significant(at.batch), *shares))
    names = tuple(part_words(name) for name in figures.PARTS)
    return Chart(
        title=split_sentence(plan.pools),
        caption="Time of one typical step of each pool: a decode step, or the prefill of the mean prompt.",
        drawing=draw_split(figures.dearest_first(plan.pools)[: figures.MOST_ROWS]),
        table=table_of(("pool", "#step", "#requests", *(f"#{name}" for name in names)), rows),
        legend=tuple((f"part-{name}", part_words(name)) for name in figures.PARTS),
    )


def workload_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw the lengths of the requests, and their arrivals over a day where its profile is stated."""
    return tuple(chart for chart in (_lengths_chart(plan), arrivals_chart(plan)) if chart is not None)


def _lengths_chart(plan: Plan) -> Chart | None:
    load = plan.workload
    if not load.share:
        return None
    figure = figures.heat_map(load)
    (share, row, column), (columns, lines) = figure.peak, figure.labels
    where = f"{columns[-column]} input and {lines[-row]} output tokens"
    more_cells = f", as often as in {plural(figure.peaks - 1, 'other cell')}" if figure.peaks > 1 else ""
    rows = [
        (significant(i), significant(o), percent(s)) for i, o, s in zip(load.isl, load.osl, load.share, strict=True)
    ]
    return Chart(
        title=f"Most frequent: {where}, {percent(share)} of requests{more_cells}",
        caption=f"{plural(len(load.share), 'bucket')} of lengths, binned by powers of two.",
        drawing=draw_heat(figure),
        table=table_of(("#input tokens", "#output tokens", "#share"), rows),
    )


def arrivals_chart(plan: Plan) -> Chart | None:
    """Draw the profile of a day; None where there is none."""
    figure = arrivals(plan)
    if figure is None:
        return None
    above = sum(value > figure.planned * (1 + 1e-9) for value in figure.hourly)
    over = f"; {plural(above, 'hour')} of the day {'is' if above == 1 else 'are'} above it" if above else ""
    return Chart(
        title=f"Planned for {rate(figure.planned)}, of which the day's mean uses {percent(figure.use)}{over}",
        caption="Mean rate of each hour as stated; the line is the rate that the fleet is planned for.",
        drawing=draw_arrivals(figure),
        table=table_of(("hour", "#rate"), tuple((f"{h:02d}:00", rate(v)) for h, v in enumerate(figure.hourly))),
    )


def roofline_sentence(pools: Sequence[Pool]) -> str:
    """Say what bounds each role; where its pools differ, what bounds the one that costs most."""
    by_bound: dict[str, list[str]] = {}
    for pool in dearest_of_each_role(pools):
        bound = pool.operating_point.bound_by
        unanimous = all(peer.operating_point.bound_by == bound for peer in pools if peer.role == pool.role)
        by_bound.setdefault(bound, []).append(f"{pool.role} steps{'' if unanimous else f' of {clean(pool.id, 20)}'}")
    if not by_bound:
        return "No pool runs"
    (bound, first), *rest = by_bound.items()
    sentence = f"{capital(join_words(first))} are bound by {bound_words(bound)}"
    return join_words([sentence, *(f"{join_words(steps)} by {bound_words(what)}" for what, steps in rest)])


def split_sentence(pools: Sequence[Pool]) -> str:
    """Say what takes most of a step in each role, by the pools that cost most."""
    largest = [(pool.role, *_largest_part(pool)) for pool in dearest_of_each_role(pools)]
    shares = [f"{name} in {role} ({percent(share)})" for role, name, share in largest if is_number(share)]
    return f"Largest part of a step: {join_words(shares)}" if shares else "No step times are known"


def _largest_part(pool: Pool) -> tuple[str, float]:
    shares = {name: share for name, share in pool.operating_point.time_split.model_dump().items() if is_number(share)}
    if not shares:
        return "", math.nan
    name = max(shares, key=lambda name: shares[name])
    return part_words(name), shares[name]
