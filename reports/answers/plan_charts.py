"""The charts of a plan, each with its finding as the title and with its data; only pages show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.metric import METRICS, Metric
from costmodel.words import join_words, plural
from optimizer.plans.plan import ClassResult, OperatingPoint, Plan, Pool, Route
from optimizer.plans.records import ClassLatencies
from optimizer.verification.simulated_plan import Curve
from reports import charts, slos
from reports.document import Chart, table_of
from reports.fleets import ROLES, dearest_first, pool_label
from reports.question import constraint_words
from reports.text import (
    MISSING,
    capital,
    clean,
    count,
    duration,
    goal_percent,
    hourly,
    in_words,
    is_number,
    percent,
    power_of_two,
    rate,
    si,
    significant,
)
from reports.verdict import goodput_sentence

MOST_CLASSES: Final = 3
"""Classes whose distributions and buckets are drawn."""
MOST_POINTS: Final = 24
BOUNDS: Final = {"bandwidth": "memory bandwidth", "host": "host time"}
"""What bounds a step, where that is not its own name."""
OF_LIMIT: Final = charts.Axis("share of limit", 0.0, 1.5, [(share, percent(share)) for share in (0.0, 0.5, 1.0, 1.5)])
AT_LIMIT: Final = ((1.0, "limit", "the limits"),)
BEYOND: Final = 4 / 3
"""End of an axis of latencies as a multiple of the limit, so that what passes it is seen to."""
MOST_BEYOND: Final = 3.0
"""The same where the percentile of the goal is beyond the limit: so far the axis follows it."""


def slo_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw what was simulated of the tightest classes: distributions, latency against load, shares by length."""
    classes = slos.tightest_first(plan)[:MOST_CLASSES]
    charts = [
        *(_distribution_chart(plan, item) for item in classes),
        load_chart(plan),
        *(_length_chart(plan, item) for item in classes),
    ]
    return tuple(chart for chart in charts if chart is not None)


# --- latencies of the classes ----------------------------------------------------------------------------------------


def _distribution_chart(plan: Plan, item: ClassResult) -> Chart | None:
    """Draw the simulated distribution of each latency of a class, its limit, and the formulas' quantiles as points."""
    simulation = plan.simulation
    case = next((case for case in simulation.classes if case.name == item.name), None) if simulation else None
    if simulation is None or case is None:
        return None
    goal, name, formula = item.attainment_goal, clean(item.name, 30), case.by_formula
    metrics = [(Metric.TTFT, item.ttft_limit_s, case.ttft_cdf_s, formula.ttft_s)]
    metrics += [(Metric.TPOT, item.tpot_limit_s, case.tpot_cdf_s, formula.tpot_s)] if slos.has_tpot(item) else []
    panels, rows, charted_metrics = [], [], set[Metric]()
    for key, limit, times, quantiles in metrics:
        metric, tone = METRICS[key].label, slos.TONES[key]
        points = [point for point in zip(times, simulation.cdf_shares, strict=False) if is_number(point[0])]
        if not points or not is_number(limit):
            continue
        charted_metrics.add(key)
        rows += [(metric, percent(share), duration(seconds), duration(limit)) for seconds, share in points]
        hollow = [(getattr(quantiles, label), share) for label, share in slos.QUANTILES.items()]
        goal_time = next((seconds for seconds, share in points if share >= goal), points[-1][0])
        end = min(max(BEYOND * limit, 1.1 * goal_time), MOST_BEYOND * limit)
        tips = [f"by formula: {percent(share)} within {duration(seconds)}" for seconds, share in hollow]
        panels.append(
            charts.Panel(
                charts.Axis("", 0.0, end, [(step, duration(step)) for step in charts.round_steps(end, 4)]),
                charts.Axis("", 0.0, 1.0, [(share, percent(share)) for share in (0.0, 0.5, 1.0)]),
                (
                    charts.Series(points, line=f"curve {tone}"),
                    charts.Series(hollow, symbol=f"hollow {tone}", tips=tips),
                ),
                title=f"{metric}, share of requests that are faster",
                levels=((goal, "goal", f"goal {goal_percent(goal)}"),),
                uprights=((limit, "limit", f"limit {duration(limit)}", "limit"),),
            )
        )
    if not panels:
        return None
    label = slos.goal_label(goal)
    tails = [
        f"{METRICS[metric].label} {label} {duration(getattr(times, label))} of {duration(limit)}"
        for metric, times, limit, _ in slos.latencies(item)
        if metric in charted_metrics
    ]
    return Chart(
        title=f"{name}: {', '.join(tails)}",
        caption="Share of requests that are faster, simulated; hollow: by formula; dotted: the goal, "
        f"{goal_percent(goal)}.",
        drawing=charts.draw_panels(panels),
        table=table_of(("latency", "#share", "#within", "#limit"), rows),
    )


ChartedRate = tuple[float, Sequence[ClassLatencies], str]
"""A simulated rate [1/s], what each class gets there, and whether every goal is met, in a word."""


def loads(plan: Plan) -> list[ChartedRate]:
    """The simulated rates; none where fewer than two were."""
    simulation = plan.simulation
    if simulation is None or len(simulation.curve) < 2:
        return []
    fails = simulation.goodput_fails_rps
    points: list[ChartedRate] = []
    for point in simulation.curve:
        is_shown = fails is None or point.rate_rps < fails * (1.0 - 1e-9)  # from there on no run shows it
        holds = "overloaded" if point.overloaded else "no" if point.missed else "yes" if is_shown else "undecided"
        points.append((point.rate_rps, point.classes, holds))
    return points


def load_chart(plan: Plan) -> Chart | None:
    """Draw the latencies of a plan against the rate."""
    points = loads(plan)
    if plan.simulation is None or not points:
        return None
    requests = count(plan.simulation.curve_requests)
    runs = f"one run of {requests} requests at each rate above the planned one, shorter ones below it"
    return rates_chart(plan, points, plan.simulation.goodput_rps, goodput_sentence(plan).removesuffix("."), runs)


def curve_chart(plan: Plan, curve: Curve, title: str) -> Chart:
    """Draw the latencies of a simulated curve against the rate; plan: of the fleet, with the limits."""
    points = [(p.rate, p.classes, "overloaded" if p.overloaded else str(p.outcome)) for p in curve.points]
    return rates_chart(plan, points, curve.goodput.rate or None, title, f"{len(points)} rates")


def rates_chart(plan: Plan, points: Sequence[ChartedRate], goodput: float | None, title: str, runs: str) -> Chart:
    """Draw every limited latency, as share of its limit, against the rate; upright lines: demand and goodput [1/s].

    runs: what the points are, to end the caption with.
    """
    uprights = ((plan.demand_rps, "drop", "demand", "strong"), (goodput, "knee", "meets the SLO up to", "good"))
    top = max([at for at, _, _ in points] + [plan.demand_rps]) * 1.06
    used = [slos.tails_of_limits(classes, plan.classes) for _, classes, _ in points]
    series, names = [], {metric: METRICS[metric].label for metric in used[0]}
    for metric, name in names.items():
        heights = [(at, tails[metric]) for (at, _, _), tails in zip(points, used, strict=True)]
        tips = [f"{rate(at)}: {name} {percent(value)} of its limit" for at, value in heights]
        series.append(charts.Series(heights, f"curve {slos.TONES[metric]}", slos.TONES[metric], tips))
    panel = charts.Panel(
        charts.Axis(
            "requests per second", 0.0, top, [(value, significant(value)) for value in charts.round_steps(top)]
        ),
        OF_LIMIT,
        series,
        levels=AT_LIMIT,
        uprights=[(at, tone, f"{name} {rate(at)}", text) for at, tone, name, text in uprights if at is not None],
        height=288.0,
    )
    worst, label = ", in the worst class" if len(plan.classes) > 1 else "", slos.goal_words(plan.classes)
    label = "the percentile of the goal" if label == "at goal" else label
    rows = [(rate(at), *map(percent, tails.values()), word) for (at, _, word), tails in zip(points, used, strict=True)]
    return Chart(
        title=title,
        caption=f"Latency at {label} as a share of its limit{worst}; {runs}.",
        drawing=charts.draw_panels([panel]),
        table=table_of(("#rate", *(f"#{name} of limit" for name in names.values()), "meets the SLO"), rows),
        legend=tuple((slos.TONES[metric], name) for metric, name in names.items()),
    )


def _length_chart(plan: Plan, item: ClassResult) -> Chart | None:
    """Draw the share of each cell of lengths that meets the SLO; those below the goal stand out."""
    routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
    if len({(route.isl, route.osl) for route in routes}) < 2:
        return None
    name, goal, (outputs, inputs, met) = clean(item.name, 30), item.attainment_goal, met_by_length(routes)
    cells = []
    for row, column in itertools.product(reversed(range(len(outputs) - 1)), range(len(inputs) - 1)):
        share = float(met[row, column])
        isl, osl = ("–".join(map(power_of_two, edges[at : at + 2])) for edges, at in ((inputs, column), (outputs, row)))
        is_empty, text = math.isnan(share), percent(share)
        tone = charts.EMPTY_CELL if is_empty else "cell-held" if share >= goal else "cell-missed"
        tip = f"{isl} input and {osl} output tokens: {'none' if is_empty else text}"
        lines = ("" if is_empty else text.removesuffix(" %"),)
        cells.append(charts.HeatCell(power_of_two(outputs[row]), power_of_two(inputs[column]), lines, tone, tip))
    shares = met[~np.isnan(met)]
    below = f"{int((shares < goal).sum()) or 'none'} of {plural(shares.size, 'cell')} below the goal"
    rows = [(significant(r.isl), significant(r.osl), percent(r.share), percent(r.attainment)) for r in routes]
    return Chart(
        title=f"{name}: {below}; the lowest share is {percent(float(shares.min()))}",
        caption=f"Cells: % of requests that meet the SLO, red below the goal. The goal, {goal_percent(goal)}, is for "
        "all lengths together; a cell may have several lengths.",
        drawing=charts.draw_heat_map(cells, "output tokens from", "input tokens from"),
        table=table_of(("#input tokens", "#output tokens", "#share of all", "#SLO met"), rows),
    )


MOST_COLUMNS: Final = 8
Edges = tuple[float, ...]


def met_by_length(routes: Sequence[Route]) -> tuple[Edges, Edges, FloatArray]:
    """Edges of output and of input lengths [token], and the share of each cell that meets the SLO [1], NaN of none."""
    columns = ([getattr(route, name) for route in routes] for name in ("osl", "isl", "share", "attainment"))
    osl, isl, share, met = (np.array(column, dtype=np.float64) for column in columns)
    outputs, inputs = bin_edges(osl), bin_edges(isl)
    edges = np.array(outputs), np.array(inputs)
    cells, cells_met = (np.histogram2d(osl, isl, edges, weights=weights)[0] for weights in (share, share * met))
    with np.errstate(invalid="ignore"):
        return outputs, inputs, cells_met / cells


def bin_edges(lengths: Iterable[float]) -> Edges:
    """Return powers of two (or of 4, 8 …) that enclose the lengths [token], at most eight bins.

    >>> bin_edges([430.0, 810.0, 1530.0])
    (256.0, 512.0, 1024.0, 2048.0)
    """
    ends = [math.floor(math.log2(max(1.0, choose(lengths)))) for choose in (min, max)]
    first, last = ends[0], ends[1] + 1
    step = math.ceil((last - first) / MOST_COLUMNS)
    bins = math.ceil((last - first) / step)
    return tuple(2.0 ** (first + step * i) for i in range(bins + 1))


# --- how the pools run -----------------------------------------------------------------------------------------------


def roofline_chart(plan: Plan) -> Chart:
    """Draw the roof of each GPU and every pool's typical step below it; its data is how each pool runs."""
    pools, total = dearest_first(plan.pools), plan.cost_usd_per_hour
    rows, roofs = [], set[tuple[float, str]]()
    for pool in pools:
        at = pool.operating_point
        roofs.add((at.ridge_point, clean(pool.accelerator, 24)))
        share = percent(pool.usd_per_hour / total) if total else MISSING
        use = (percent(at.mfu), percent(at.mbu), significant(at.arithmetic_intensity), significant(at.ridge_point))
        used = {name: value for name, value in at.utilization.items() if is_number(value)}
        busiest = max(used, key=lambda name: used[name], default="")
        busy = f"{percent(used[busiest])} ({constraint_words(busiest)})" if used else MISSING
        bound = in_words(at.bound_by, BOUNDS)
        rows.append((pool_label(pool), hourly(pool.usd_per_hour), share, *use, bound, busy))
    by_bound: dict[str, list[str]] = {}  # the steps of each role
    for role in ROLES:
        bounds = dict.fromkeys(in_words(pool.operating_point.bound_by, BOUNDS) for pool in pools if pool.role == role)
        if bounds:
            by_bound.setdefault(" or ".join(bounds), []).append(f"{role} steps")
    sentences = [
        f"{join_words(steps)}{'' if number else ' are bound'} by {bound}"
        for number, (bound, steps) in enumerate(by_bound.items())
    ]
    headers = ("pool", "#price", "#of all", "#MFU", "#MBU", "#FLOP/byte", "#ridge", "bound by", "busiest, mean use")
    roles = {pool.role for pool in pools}
    return Chart(
        title=capital(join_words(sentences)) or "No pool runs",
        caption="Each point is a pool's typical step; the dotted line above it is what its roof would allow. "
        f"{'Roofs from left to right, with their ridges' if len(roofs) > 1 else 'Ridge'} in FLOP/byte: "
        f"{', '.join(f'{name} {significant(ridge)}' for ridge, name in sorted(roofs))}.",
        drawing=draw_roofline(plan.pools),
        table=table_of(headers, rows),
        legend=tuple((role, role) for role in ROLES if role in roles),
    )


def draw_roofline(all_pools: Sequence[Pool]) -> charts.Drawing:
    """Draw the roof of each GPU, then each pool's operating point below its roof.

    Pools without a positive intensity and MFU have no place on logarithmic axes.
    """
    values = attrgetter("arithmetic_intensity", "mfu", "ridge_point")
    pools = [
        pool
        for pool in dearest_first(all_pools)
        if all(is_number(value) and value > 0 for value in values(pool.operating_point))
    ][:MOST_POINTS]
    points = [pool.operating_point for pool in pools]
    intensities = [value for point in points for value in (point.arithmetic_intensity, point.ridge_point)]
    low, high = charts.decade_range([min(intensities) / 1.5, max(intensities) * 1.5] if intensities else [1.0, 1e3])
    least, _ = charts.decade_range([*(point.mfu / 1.2 for point in points), 0.5])
    powers, shares = charts.decades(low, high), charts.decades(least, 1.0)
    series = []
    for name, ridge in sorted({(clean(pool.accelerator, 24), pool.operating_point.ridge_point) for pool in pools}):
        start = max(low, least * ridge)
        corners = ((start, start / ridge), (ridge, 1.0), (high, 1.0))
        tips = [f"{name}: ridge at {significant(ridge)} FLOP/byte"]
        series.append(charts.Series(corners, "roof", tips=tips, names=["", name]))
    for point in points:
        x = point.arithmetic_intensity
        series.append(charts.Series(((x, point.mfu), (x, attainable(point))), "drop"))
    for pool, point in zip(pools, points, strict=True):
        gpu, intensity = clean(pool.accelerator, 24), significant(point.arithmetic_intensity)
        peak = f"{percent(point.mfu)} of peak, {percent(attainable(point))} attainable"
        bound = f"bound by {clean(point.bound_by, 20)}"
        tips = [f"{clean(pool.id, 20)} ({pool.role}, {gpu}): {intensity} FLOP/byte, {peak}; {bound}"]
        place = (point.arithmetic_intensity, point.mfu)
        series.append(charts.Series([place], symbol=pool.role, tips=tips, names=[clean(pool.id, 20)]))
    panel = charts.Panel(
        charts.Axis(
            "arithmetic intensity, FLOP/byte", low, high, [(at, si(at, "").replace(" ", "")) for at in powers], log=True
        ),
        charts.Axis("share of peak FLOP/s (MFU)", least, 1.0, [(at, percent(at)) for at in shares], log=True),
        series,
        height=270.0,
    )
    return charts.draw_panels([panel])


def attainable(point: OperatingPoint) -> float:
    """Share of the peak FLOP/s that the roof allows at a point's intensity [1]."""
    return min(1.0, point.arithmetic_intensity / point.ridge_point)
