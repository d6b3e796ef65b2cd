"""The report's charts: figure, drawing, title that states the finding, and the table behind it."""

from __future__ import annotations

import math
from typing import Final

from optimizer.plans.plan import Plan

from . import figures, sentences
from .charts import draw_class, draw_costs, draw_headroom, draw_heat, draw_split
from .document import Chart, table_of
from .numbers import count, duration, hourly, percent, percent_beside, quantity, significant, tokens
from .roofline_chart import draw_roofline
from .text import clean, plural
from .words import by_slack, constraint_words, has_fleet, part_words, tightest

MOST_CLASS_CHARTS: Final = 6
MOST_ROWS: Final = 120


def slo_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw the classes with the least slack, six at most."""
    charts = []
    for figure in figures.class_figures(plan)[:MOST_CLASS_CHARTS]:
        held = "meets its SLO" if figure.attainment >= figure.goal else "misses its SLO"
        share = percent_beside(figure.attainment, figure.goal)
        rows = tuple(
            (group.metric, bar.label, duration(bar.seconds), duration(group.limit), "yes" if bar.within else "no")
            for group in figure.groups
            for bar in group.bars
        )
        charts.append(
            Chart(
                title=f"{figure.name} {held}: {share} of requests, {percent(figure.goal)} asked",
                caption="Bold: the percentile that the SLO limits.",
                drawing=draw_class(figure),
                table=table_of(("latency", "quantile", "#predicted", "#limit", "within"), rows),
            )
        )
    return tuple(charts)


def cost_chart(plan: Plan) -> Chart | None:
    """Draw the price of each fleet that meets the SLOs; None where there are not two to compare."""
    if not has_fleet(plan):
        return None
    figure = figures.alternative_costs(plan)
    prices = [bar.value for bar in figure.bars if bar.value is not None]
    if len(prices) < 2:
        return None
    rows = tuple((bar.label, hourly(bar.value), bar.note or "feasible") for bar in figure.bars)
    return Chart(
        title=sentences.spread_sentence(prices),
        caption="The line is the price of the recommended fleet.",
        drawing=draw_costs(figure, plan.cost_usd_per_hour),
        table=table_of(("fleet", "#price", "status"), rows),
    )


def why_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw what explains the fleet: limits, dollars, rooflines, step times."""
    charts = [_headroom_chart(plan)] if plan.binding else []
    if plan.pools:
        charts += [_dollar_chart(plan), _roofline_chart(plan), _split_chart(plan)]
    return tuple([*charts, _worth_chart(plan)] if plan.worth else charts)


def _worth_chart(plan: Plan) -> Chart:
    base = plan.worth[0].with_usd_per_hour
    most = max(
        plan.worth, key=lambda item: math.inf if item.without_usd_per_hour is None else item.without_usd_per_hour
    )
    rows = [
        (clean(item.feature, 30), hourly(item.without_usd_per_hour), sentences.planner_words(item.sentence))
        for item in plan.worth
    ]
    return Chart(
        title=sentences.planner_words(most.sentence),
        caption="Each is turned off and the problem solved again, by formula; the line is the price with all of them.",
        drawing=draw_costs(figures.worth_costs(plan), base),
        table=table_of(("without", "#price", "finding"), rows),
    )


def _headroom_chart(plan: Plan) -> Chart:
    least = tightest(plan)
    title = sentences.binding_sentence(least) if least else "No limit is known"
    rows = [
        (
            constraint_words(b.constraint),
            clean(b.where, 30),
            quantity(b.used, b.unit),
            quantity(b.limit, b.unit),
            percent(b.slack),
            sentences.binding_sentence(b),
        )
        for b in by_slack(plan)
    ]
    return Chart(
        title=title,
        caption="Load, or use, over the most that each limit allows, tightest first; the line is the limit.",
        drawing=draw_headroom(figures.headroom(plan)),
        table=table_of(("limit", "where", "#used", "#limit", "#slack", "because"), rows),
    )


def _dollar_chart(plan: Plan) -> Chart:
    figure = figures.dollars(plan)
    rows = [(figures.pool_label(p), clean(p.accelerator), count(p.gpus), hourly(p.usd_per_hour)) for p in plan.pools]
    rows.append(("total", "", count(sum(p.gpus for p in plan.pools)), hourly(figure.total)))
    return Chart(
        title=sentences.dollars_sentence(plan.pools),
        caption=f"The pools sum to {hourly(figure.total)}.",
        drawing=draw_costs(figure),
        table=table_of(("pool", "GPU", "#GPUs", "#price"), rows),
    )


def _roofline_chart(plan: Plan) -> Chart:
    rows = []
    for pool in plan.pools:
        at = pool.operating_point
        cells = (significant(at.arithmetic_intensity), significant(at.ridge_point), percent(at.mfu), percent(at.mbu))
        rows.append((figures.pool_label(pool), clean(pool.accelerator), *cells, clean(at.bound_by, 20)))
    return Chart(
        title=sentences.roofline_sentence(plan.pools),
        caption="Each point is a pool's typical step; the dotted line above it is what its roof would allow.",
        drawing=draw_roofline(figures.roofline(plan)),
        table=table_of(("pool", "GPU", "#FLOP/byte", "#ridge", "#MFU", "#MBU", "bound by"), rows),
        legend=tuple((role, role) for role in ("prefill", "decode", "colocated") if _has_role(plan, role)),
    )


def _has_role(plan: Plan, role: str) -> bool:
    return any(pool.role == role for pool in plan.pools)


def _split_chart(plan: Plan) -> Chart:
    rows = []
    for pool in plan.pools:
        at = pool.operating_point
        shares = (percent(getattr(at.time_split, part)) for part in figures.PARTS)
        rows.append((figures.pool_label(pool), duration(at.step_s), significant(at.batch), *shares))
    parts = tuple(part_words(part) for part in figures.PARTS)
    return Chart(
        title=sentences.split_sentence(plan.pools),
        caption="Time of one typical step of each pool: a decode step, or the prefill of the mean prompt.",
        drawing=draw_split(figures.step_splits(plan)),
        table=table_of(("pool", "#step", "#requests", *(f"#{part}" for part in parts)), rows),
        legend=tuple((f"part-{name}", part_words(name)) for name in figures.PARTS),
    )


def workload_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw the lengths of the requests."""
    load = plan.workload
    if not load.share:
        return ()
    figure = figures.heat_map(load)
    rows = [(tokens(i), tokens(o), percent(s)) for i, o, s in zip(load.isl, load.osl, load.share, strict=True)]
    return (
        Chart(
            title=sentences.heat_sentence(figure.peak[0], *_peak_labels(figure), figure.peaks),
            caption=f"{plural(len(load.share), 'bucket')} of lengths, binned by powers of two.",
            drawing=draw_heat(figure),
            table=table_of(("#input tokens", "#output tokens", "#share"), rows),
        ),
    )


def _peak_labels(figure: figures.HeatMap) -> tuple[str, str]:
    _, row, column = figure.peak
    return figure.column_labels[-column], figure.row_labels[-row]
