"""Charts of the simulation: distributions, latency against load, other fleets, attainment by bucket."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from .charts import draw_cells
from .drawing import (
    WIDTH,
    Box,
    Drawing,
    Mark,
    Path,
    Plot,
    Point,
    Symbol,
    Text,
    axes,
    headings,
    line,
    place_label,
    plot,
    round_steps,
)
from .numbers import duration, hourly, is_number, money, percent, rate, significant
from .simulation_figures import BucketMap, ClassDistributions, Distribution, FleetPoint, LoadFigure, undominated

TONES: Final = {"TTFT": "prefill", "TPOT": "decode"}
_LEFT: Final = 46.0
_RIGHT: Final = WIDTH - 10
_PANEL: Final = 200.0
"""Height of one of two panels that stand below each other."""
FAR: Final = 2.5
_BEYOND: Final = 4 / 3
"""End of an axis of latencies as a multiple of the limit, so that what passes it is seen to."""


def draw_distributions(figure: ClassDistributions) -> Drawing:
    """Draw the simulated distribution of each latency, its limit, and the formulas' quantiles as points."""
    marks: list[Mark] = []
    for number, panel in enumerate(figure.panels):
        marks += _distribution(panel, figure.goal, number * _PANEL)
    summary = "; ".join(
        f"{panel.metric} from {duration(panel.points[0][0])} to {duration(panel.points[-1][0])}, "
        f"limit {duration(panel.limit)}"
        for panel in figure.panels
    )
    return Drawing(WIDTH, _PANEL * len(figure.panels), f"distribution of {figure.name}: {summary}", tuple(marks))


def _distribution(panel: Distribution, goal: float, top: float) -> list[Mark]:
    box = Box(_LEFT, top + 43, _RIGHT, top + _PANEL - 40)
    frame = plot(box, (0.0, panel.limit * _BEYOND), (0.0, 1.0))
    tone = TONES[panel.metric]
    shares = [(share, percent(share)) for share in (0.0, 0.5, 1.0)]
    times = [(seconds, duration(seconds)) for seconds in round_steps(panel.limit * _BEYOND, 4)]
    limit = frame.x(panel.limit)
    marks = axes(frame, times, shares, "", "")
    marks.append(Text(0, top + 14, f"{panel.metric}, share of requests that are faster", "strong"))
    marks.append(Path(((box.left, frame.y(goal)), (box.right, frame.y(goal))), "goal", f"goal {percent(goal)}"))
    marks.append(Path(((limit, box.top), (limit, box.bottom)), "limit"))
    marks.append(Text(limit, top + 32, f"limit {duration(panel.limit)}", "limit", "middle"))
    inside = [point for point in panel.points if point[0] <= frame.x.high]
    marks += line(frame, [*inside, *_leaving(panel.points, frame.x.high)], f"curve {tone}")
    for seconds, share in panel.formula:
        if seconds <= frame.x.high:
            tip = f"by formula: {percent(share)} within {duration(seconds)}"
            marks.append(Symbol(*frame.at((seconds, share)), f"hollow {tone}", tip))
    return marks


def _leaving(points: Sequence[Point], high: float) -> list[Point]:
    """Where a distribution leaves the plot at its right edge: a list of one point, or none where it stays inside."""
    for before, after in itertools.pairwise(points):
        if before[0] <= high < after[0]:
            return [(high, before[1] + (high - before[0]) / (after[0] - before[0]) * (after[1] - before[1]))]
    return []


def draw_load(figure: LoadFigure) -> Drawing:
    """Draw both latencies, as shares of their limits, against the rate; upright lines: demand and goodput."""
    box = Box(_LEFT, 62, _RIGHT, 250)
    top = max([point.rate for point in figure.points] + [figure.demand]) * 1.06
    frame = plot(box, (0.0, top), (0.0, 1.5))
    steps = [(value, significant(value)) for value in round_steps(top)]
    marks = axes(frame, steps, [(y, percent(y)) for y in (0.0, 0.5, 1.0, 1.5)], "requests per second", "share of limit")
    marks.append(Path(((box.left, frame.y(1.0)), (box.right, frame.y(1.0))), "limit", "the limits"))
    marks += _upright(figure, frame)
    for metric in ("ttft", "tpot"):
        tone = TONES[metric.upper()]
        marks += line(frame, [(point.rate, getattr(point, metric)) for point in figure.points], f"curve {tone}")
        for point in figure.points:
            value = getattr(point, metric)
            if is_number(value) and value <= frame.y.high:
                tip = f"{rate(point.rate)}: {metric.upper()} {percent(value)} of its limit"
                marks.append(Symbol(*frame.at((point.rate, value)), tone, tip))
    summary = "; ".join(
        f"{rate(p.rate)}: TTFT {percent(p.ttft)}, TPOT {percent(p.tpot)}{', missed' if p.missed else ''}"
        for p in figure.points
    )
    return Drawing(WIDTH, 288, f"latency over limit against load: {summary}", tuple(marks))


def _upright(figure: LoadFigure, frame: Plot) -> list[Mark]:
    box = frame.box
    named = [(frame.x(figure.demand), f"demand {rate(figure.demand)}", "strong")]
    marks: list[Mark] = [Path(((named[0][0], box.top), (named[0][0], box.bottom)), "drop")]
    if figure.goodput is not None:
        at = frame.x(figure.goodput)
        named.append((at, f"meets the SLO up to {rate(figure.goodput)}", "good"))
        marks.append(Path(((at, box.top), (at, box.bottom)), "knee"))
    if figure.knee is not None:
        at = frame.x(figure.knee)
        named.append((at, f"knee {rate(figure.knee)}", "muted"))
        marks.append(Path(((at, box.bottom - 12), (at, box.bottom)), "axis", "throughput over time is greatest here"))
    return [*marks, *headings(named, box, 14)]


def draw_fleets(all_points: Sequence[FleetPoint]) -> Drawing:
    """Draw cost against both latencies, one panel each; the step line joins fleets that hold and that none beats.

    Fleets of more than `FAR` times the recommended one's price are left out, so that the others stand apart.
    """
    own = next(point for point in all_points if point.recommended)
    points = [point for point in all_points if point.cost <= FAR * own.cost]
    marks: list[Mark] = []
    for number, metric in enumerate(("ttft", "tpot")):
        marks += _fleet_panel(points, metric, number * _PANEL)
    summary = "; ".join(
        f"{p.name} {hourly(p.cost)}, TTFT {percent(p.ttft)} and TPOT {percent(p.tpot)} of the limit" for p in points[:8]
    )
    return Drawing(WIDTH, 2 * _PANEL, f"cost against latency: {summary}", tuple(marks))


def _fleet_panel(points: Sequence[FleetPoint], metric: str, top: float) -> list[Mark]:
    box = Box(_LEFT, top + 28, _RIGHT, top + _PANEL - 40)
    low, high = min(p.cost for p in points), max(p.cost for p in points)
    room = max(0.12 * (high - low), 0.04 * high, 1e-9)
    frame = plot(box, (max(0.0, low - room), high + room), (0.0, 1.5))
    step = [value for value in round_steps(high + room, 8) if value >= frame.x.low]
    heights = [(y, percent(y)) for y in (0.0, 0.5, 1.0, 1.5)]
    title = f"{metric.upper()} as a share of its limit"
    marks = axes(frame, [(v, f"${significant(v)}") for v in step], heights, "price per hour", title)
    marks.append(Path(((box.left, frame.y(1.0)), (box.right, frame.y(1.0))), "limit", "the limit"))
    inside = [point for point in points if getattr(point, metric) <= frame.y.high]
    held = [point for point in inside if point.held]
    front = [(point.cost, getattr(point, metric)) for point in undominated(held, metric)]
    stairs = [corner for a, b in itertools.pairwise(front) for corner in (a, (b[0], a[1]))] + front[-1:]
    marks += line(frame, stairs, "front")
    taken = []
    for point in sorted(points, key=lambda p: p.recommended):
        value = min(getattr(point, metric), frame.y.high)
        x, y = frame.at((point.cost, value))
        tone = "good" if point.recommended else "other" if point.held else "over"
        marks.append(Symbol(x, y, tone, _fleet_tip(point, metric)))
        beside = 6 if point.recommended else 24  # a label next to another fleet's mark would seem to be of that fleet
        taken.append(Box(x - beside, y - 6, x + beside, y + 6))
    own = next(p for p in points if p.recommended)
    x, y = frame.at((own.cost, min(getattr(own, metric), frame.y.high)))
    label = place_label(x, y, f"recommended {money(own.cost)}", taken, plot=box, tone="halo")
    return [*marks, *([label] if label else [])]


def _fleet_tip(point: FleetPoint, metric: str) -> str:
    share = percent(getattr(point, metric))
    return f"{point.name}: {hourly(point.cost)}, {metric.upper()} {share} of limit, {point.outcome}"


def draw_buckets(figure: BucketMap) -> Drawing:
    """Draw the share in time of each cell of lengths; those below the goal stand out."""

    def cell(share: float | None) -> tuple[str, str]:
        if share is None:
            return "heat-0", ""
        tone = "cell-held" if share >= figure.goal else "cell-missed"
        return tone, percent(share).removesuffix(" %")

    known = [share for row in figure.cells for share in row if share is not None]
    ends = f"from {percent(min(known))} to {percent(max(known))}"
    summary = f"share of {figure.name} that meets the SLO, by length, {ends}"
    tones = tuple(tuple(cell(share) for share in row) for row in figure.cells)
    return draw_cells(
        tones,
        (figure.column_labels, figure.row_labels),
        (figure.isl_edges, figure.osl_edges),
        summary,
        "% of requests that meet the SLO",
    )
