"""The charts of a plan, each with its finding as the title and with its data; only pages show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from costmodel.metric import METRICS, Metric
from costmodel.words import join_words, plural
from optimizer.plans.plan import ClassResult, OperatingPoint, Plan, Pool
from optimizer.verification.simulated_plan import Curve
from reports import charts
from reports.document import Chart, table_of
from reports.fleets import ROLES, dearest_first, pool_label
from reports.limits import constraint_words
from reports.numbers import (
    MISSING,
    count,
    duration,
    hourly,
    is_number,
    percent,
    power_of_two,
    rate,
    si,
    significant,
)
from reports.slos import (
    QUANTILES,
    TONES,
    goal_label,
    goal_words,
    has_tpot,
    latencies,
    tails_of_limits,
    tightest_first,
)
from reports.text import capital, clean, in_words
from reports.verdict import growth_sentence

MOST_CLASSES: Final = 3
"""Classes whose distributions and buckets are drawn."""
MOST_POINTS: Final = 24
BOUNDS: Final = {"bandwidth": "memory bandwidth", "host": "host time"}
"""What bounds a step, where that is not its own name."""
OF_LIMIT: Final = charts.Axis("share of limit", 0.0, 1.5, [(share, percent(share)) for share in (0.0, 0.5, 1.0, 1.5)])
AT_LIMIT: Final = ((1.0, "limit", "the limits"),)
BEYOND: Final = 4 / 3
"""End of an axis of latencies as a multiple of the limit, so that what passes it is seen to."""


def slo_charts(plan: Plan) -> tuple[Chart, ...]:
    """Draw what was simulated of the tightest classes: distributions, latency against load, shares by length."""
    classes = tightest_first(plan)[:MOST_CLASSES]
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
    metrics += [(Metric.TPOT, item.tpot_limit_s, case.tpot_cdf_s, formula.tpot_s)] if has_tpot(item) else []
    panels, rows = [], []
    for key, limit, times, quantiles in metrics:
        metric, tone = METRICS[key].label, TONES[key]
        points = [point for point in zip(times, simulation.cdf_shares, strict=False) if is_number(point[0])]
        if not points or not is_number(limit):
            continue
        rows += [(metric, percent(share), duration(seconds), duration(limit)) for seconds, share in points]
        hollow = [(getattr(quantiles, label), share) for label, share in QUANTILES.items()]
        tips = [f"by formula: {percent(share)} within {duration(seconds)}" for seconds, share in hollow]
        panels.append(
            charts.Panel(
                charts.Axis(
                    "", 0.0, limit * BEYOND, [(step, duration(step)) for step in charts.round_steps(limit * BEYOND, 4)]
                ),
                charts.Axis("", 0.0, 1.0, [(share, percent(share)) for share in (0.0, 0.5, 1.0)]),
                (
                    charts.Series(points, line=f"curve {tone}"),
                    charts.Series(hollow, symbol=f"hollow {tone}", tips=tips),
                ),
                title=f"{metric}, share of requests that are faster",
                levels=((goal, "goal", f"goal {percent(goal)}"),),
                uprights=((limit, "limit", f"limit {duration(limit)}", "limit"),),
            )
        )
    if not panels:
        return None
    label = goal_label(goal)
    tails = [
        f"{METRICS[metric].label} {label} {duration(getattr(times, label))}{f' of {duration(limit)}' if limit else ''}"
        for metric, times, limit, _ in latencies(item)
    ]
    return Chart(
        title=f"{name}: {', '.join(tails)}",
        caption=f"Share of requests that are faster, simulated; hollow: by formula; dotted: the goal, {percent(goal)}.",
        drawing=charts.draw_panels(panels),
        table=table_of(("latency", "#share", "#within", "#limit"), rows),
    )


@dataclass(frozen=True, slots=True)
class ChartedRate:
    """A simulated rate [1/s]: latencies at the goal's quantile over their limits [1], in the worst class, by metric.

    outcome: whether every goal is met, in a word.
    """

    rate: float
    used: Mapping[Metric, float]
    outcome: str


def loads(plan: Plan) -> list[ChartedRate]:
    """The simulated rates; none where fewer than two were."""
    simulation = plan.simulation
    if simulation is None or len(simulation.curve) < 2:
        return []
    fails = simulation.goodput_fails_rps
    points = []
    for point in simulation.curve:
        is_shown = fails is None or point.rate_rps < fails * (1.0 - 1e-9)  # from there on no run shows it
        holds = "overloaded" if point.overloaded else "no" if point.missed else "yes" if is_shown else "undecided"
        points.append(ChartedRate(point.rate_rps, tails_of_limits(point.classes, plan.classes), holds))
    return points


def load_chart(plan: Plan) -> Chart | None:
    """Draw the latencies of a plan against the rate."""
    points = loads(plan)
    if plan.simulation is None or not points:
        return None
    requests = count(plan.simulation.curve_requests)
    runs = f"one run of {requests} requests at each rate above the planned one, shorter ones below it"
    return rates_chart(plan, points, plan.simulation.goodput_rps, growth_sentence(plan).removesuffix("."), runs)


def curve_chart(plan: Plan, curve: Curve, title: str) -> Chart:
    """Draw the latencies of a simulated curve against the rate; plan: of the fleet, with the limits."""
    points = [
        ChartedRate(
            point.rate,
            tails_of_limits(point.classes, plan.classes),
            "overloaded" if point.overloaded else point.outcome,
        )
        for point in curve.points
    ]
    return rates_chart(plan, points, curve.goodput.rate or None, title, f"{len(points)} rates")


def rates_chart(plan: Plan, points: Sequence[ChartedRate], goodput: float | None, title: str, runs: str) -> Chart:
    """Draw every limited latency, as share of its limit, against the rate; upright lines: demand and goodput [1/s].

    runs: what the points are, to end the caption with.
    """
    uprights = ((plan.demand_rps, "drop", "demand", "strong"), (goodput, "knee", "meets the SLO up to", "good"))
    top = max([point.rate for point in points] + [plan.demand_rps]) * 1.06
    series, names = [], {metric: METRICS[metric].label for metric in points[0].used}
    for metric, name in names.items():
        heights = [(point.rate, point.used[metric]) for point in points]
        tips = [f"{rate(at)}: {name} {percent(value)} of its limit" for at, value in heights]
        series.append(charts.Series(heights, f"curve {TONES[metric]}", TONES[metric], tips))
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
    worst, at = ", in the worst class" if len(plan.classes) > 1 else "", goal_words(plan.classes)
    at = "the percentile of the goal" if at == "at goal" else at
    rows = [(rate(p.rate), *map(percent, p.used.values()), p.outcome) for p in points]
    return Chart(
        title=title,
        caption=f"Latency at {at} over its limit{worst}; {runs}.",
        drawing=charts.draw_panels([panel]),
        table=table_of(("#rate", *(f"#{name} of limit" for name in names.values()), "meets the SLO"), rows),
        legend=tuple((TONES[metric], name) for metric, name in names.items()),
    )


def _length_chart(plan: Plan, item: ClassResult) -> Chart | None:
    """Draw the share of each cell of lengths that meets the SLO; those below the goal stand out."""
    routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
    if len({(route.isl, route.osl) for route in routes}) < 2:
        return None
    name, goal = clean(item.name, 30), item.attainment_goal
    met, shares = [route.attainment * route.share for route in routes], [route.share for route in routes]
    figure = length_map([route.isl for route in routes], [route.osl for route in routes], met, shares)
    rows = [(significant(r.isl), significant(r.osl), percent(r.share), percent(r.attainment)) for r in routes]
    below, number = sum(share < goal for share in figure.shares.values()), plural(len(figure.shares), "cell")
    verb = "is" if below == 1 else "are"
    alone = f"{below} of {number} {verb} below the goal" if below else "no cell is below the goal"
    return Chart(
        title=f"{name}: {alone}; the lowest share is {percent(min(figure.shares.values()))}",
        caption=f"Cells: % of requests that meet the SLO, red below the goal. The goal, {percent(goal)}, is for all "
        "lengths together; a cell may have several lengths.",
        drawing=draw_lengths(figure, lambda share: "cell-held" if share >= goal else "cell-missed"),
        table=table_of(("#input tokens", "#output tokens", "#share of all", "#SLO met"), rows),
    )


def draw_lengths(figure: LengthMap, tone: Callable[[float], str]) -> charts.Drawing:
    """Draw shares by input length (columns) and output length (rows, longest first), each named by its lower edge."""
    cells = []
    for row, column in itertools.product(reversed(range(len(figure.osl_edges) - 1)), range(len(figure.isl_edges) - 1)):
        share, where = figure.shares.get((row, column)), figure.words(row, column)
        text = "" if share is None else percent(share).removesuffix(" %")
        cells.append(
            charts.HeatCell(
                power_of_two(figure.osl_edges[row]),
                power_of_two(figure.isl_edges[column]),
                (text,),
                "heat-0" if share is None else tone(share),
                f"{where}: {'none' if share is None else f'{text} %'}",
            )
        )
    return charts.draw_heat_map(cells, "output tokens from", "input tokens from")


# --- how the pools run -----------------------------------------------------------------------------------------------


def roofline_chart(plan: Plan) -> Chart:
    """Draw the roof of each GPU and every pool's typical step below it; its data is how each pool runs."""
    pools, total = dearest_first(plan.pools), plan.cost_usd_per_hour
    rows, ridges = [], {}
    for pool in pools:
        at = pool.operating_point
        ridges[clean(pool.accelerator, 24)] = significant(at.ridge_point)
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
        caption="Each point is a pool's typical step; the dotted line above it is what its roof would allow. Ridges in "
        f"FLOP/byte: {', '.join(map(' '.join, ridges.items()))}.",
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


MOST_COLUMNS: Final = 8


@dataclass(frozen=True, slots=True)
class LengthMap:
    """A share by output and input length, binned by edges [token]: of every (output bin, input bin) with requests."""

    isl_edges: tuple[float, ...]
    osl_edges: tuple[float, ...]
    shares: Mapping[tuple[int, int], float]

    def words(self, output: int, input_: int) -> str:
        """Name a cell."""
        ends = (self.isl_edges[input_ : input_ + 2], self.osl_edges[output : output + 2])
        isl, osl = ("–".join(map(power_of_two, pair)) for pair in ends)
        return f"{isl} input and {osl} output tokens"


def length_map(
    isl: Sequence[float], osl: Sequence[float], terms: Sequence[float], wholes: Sequence[float] | None = None
) -> LengthMap:
    """Sum parts by powers of two of both lengths, or of four, eight … where that keeps the columns few.

    wholes: the sum of the parts of a cell is divided by that of its wholes.
    """
    isl_edges, osl_edges = bin_edges(isl), bin_edges(osl)
    pairs: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for x, y, term, whole in zip(isl, osl, terms, wholes or [1.0] * len(terms), strict=True):
        pairs.setdefault((bin_of(y, osl_edges), bin_of(x, isl_edges)), []).append((term, whole))
    sums = {cell: [math.fsum(values) for values in zip(*members, strict=True)] for cell, members in pairs.items()}
    shares = {cell: term if wholes is None else term / whole for cell, (term, whole) in sums.items()}
    return LengthMap(isl_edges, osl_edges, shares)


def bin_edges(lengths: Sequence[float]) -> tuple[float, ...]:
    """Return powers of two (or of 4, 8 …) that enclose the lengths [token], at most eight bins.

    >>> bin_edges([430.0, 810.0, 1530.0])
    (256.0, 512.0, 1024.0, 2048.0)
    """
    positive = [max(1.0, length) for length in lengths] or [1.0]
    first = math.floor(math.log2(min(positive)))
    last = max(first + 1, math.floor(math.log2(max(positive))) + 1)
    step = math.ceil((last - first) / MOST_COLUMNS)
    bins = math.ceil((last - first) / step)
    return tuple(2.0 ** (first + step * i) for i in range(bins + 1))


def bin_of(length: float, edges: Sequence[float]) -> int:
    """Return the number of the bin that a length falls in."""
    above = sum(1 for edge in edges[1:-1] if length >= edge)
    return min(above, len(edges) - 2)


# --- the workload ----------------------------------------------------------------------------------------------------


def lengths_chart(plan: Plan) -> tuple[Chart, ...]:
    """Draw the share of requests in each cell of lengths, the darker the more."""
    load = plan.workload
    if not load.share:
        return ()
    figure = length_map(load.isl, load.osl, load.share)
    (row, column), share = max(figure.shares.items(), key=lambda item: (item[1], item[0][0], -item[0][1]))
    peaks = sum(math.isclose(cell, share) for cell in figure.shares.values())
    more_cells = f", as often as in {plural(peaks - 1, 'other cell')}" if peaks > 1 else ""
    rows = [
        (significant(i), significant(o), percent(s)) for i, o, s in zip(load.isl, load.osl, load.share, strict=True)
    ]
    chart = Chart(
        title=f"Most frequent: {figure.words(row, column)}, {percent(share)} of requests{more_cells}",
        caption=f"Cells: % of requests. {plural(len(load.share), 'bucket')} of lengths, binned by powers of two.",
        drawing=draw_lengths(figure, lambda cell: charts.tone_of(cell or None, (0.0, share))),
        table=table_of(("#input tokens", "#output tokens", "#share"), rows),
    )
    return (chart,)
