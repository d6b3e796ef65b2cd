"""Figure data of the simulation: distributions against limits, latency against load, buckets, other fleets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.plans.plan import Alternative, ClassResult, Plan, Route
from optimizer.plans.records import Quantiles, SimulatedLatencies

from .figures import QUANTILES, bin_edges, bin_of, edge_labels, goal_label
from .numbers import is_number
from .text import clean
from .tried_fleets import HOLDS, NOT_SHOWN, origin_words, outcome_words, tried_fleets
from .words import distinct_alternatives, has_tpot, is_feasible, misses_used, named_fleet, tightest_first

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Distribution:
    """One latency of one class: points and formulas' quantiles as (latency [s], share of requests that are faster)."""

    metric: str
    limit: float
    points: tuple[Point, ...]
    formula: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class ClassDistributions:
    """The simulated latencies of one class; goal: the share that is to be within every limit."""

    name: str
    goal: float
    panels: tuple[Distribution, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """One simulated rate [1/s]; ttft, tpot: latency at the goal's quantile over its limit, in the worst class.

    time: that a typical request takes there [s].
    """

    rate: float
    missed: bool
    overloaded: bool
    ttft: float
    tpot: float
    time: float


@dataclass(frozen=True, slots=True)
class LoadFigure:
    """Latency against load: demand, highest rate that held, and lowest that did not (None: not looked for) [1/s].

    knee: the rate over whose typical time is greatest (Kleinrock's power); None where it is the last one that was
    simulated without overload, so that the knee may lie beyond.
    """

    points: tuple[Load, ...]
    demand: float
    goodput: float | None
    fails: float | None
    knee: float | None = None


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """One simulated fleet: cost [$/h] and its latencies at the goal's quantile over their limits, worst class.

    outcome: whether it holds, in the words of the table of tried fleets.
    """

    name: str
    cost: float
    ttft: float
    tpot: float
    outcome: str
    recommended: bool

    @property
    def held(self) -> bool:
        """Whether it was shown to hold."""
        return self.outcome == HOLDS


@dataclass(frozen=True, slots=True)
class BucketMap:
    """Share of requests in time by input length (columns) and output length (rows, longest first); None: no requests.

    goal: of the class; share: of all requests that are in each cell.
    """

    name: str
    goal: float
    isl_edges: tuple[float, ...]
    osl_edges: tuple[float, ...]
    cells: tuple[tuple[float | None, ...], ...]
    column_labels: tuple[str, ...]
    row_labels: tuple[str, ...]


def distributions(plan: Plan) -> tuple[ClassDistributions, ...]:
    """The simulated distributions of each class, tightest class first; none of a plan that was not simulated."""
    if plan.simulation is None:
        return ()
    simulated, shares = {one.name: one for one in plan.simulation.classes}, plan.simulation.cdf_shares
    figures = []
    for item in tightest_first(plan):
        one = simulated.get(item.name)
        if one is None:
            continue
        panels = [
            _distribution("TTFT", item.ttft_limit_s, one.ttft_cdf_s, shares, one.by_formula.ttft_s),
            _distribution("TPOT", item.tpot_limit_s, one.tpot_cdf_s, shares, one.by_formula.tpot_s),
        ]
        drawn = tuple(panel for panel in panels[: 1 + has_tpot(item)] if panel.points and is_number(panel.limit))
        if drawn:
            figures.append(ClassDistributions(clean(item.name, 30), item.attainment_goal, drawn))
    return tuple(figures)


def _distribution(
    metric: str, limit: float, values: Sequence[float], shares: Sequence[float], formula: Quantiles
) -> Distribution:
    points = tuple((value, share) for value, share in zip(values, shares, strict=False) if is_number(value))
    by_formula = tuple((getattr(formula, label), level) for label, level in QUANTILES)
    return Distribution(metric, limit, points, tuple(point for point in by_formula if is_number(point[0])))


def load_figure(plan: Plan) -> LoadFigure | None:
    """Latency against load; None of a plan whose curve was not simulated."""
    found = plan.simulation
    if found is None or len(found.curve) < 2:
        return None
    points = tuple(
        Load(one.rate_rps, one.missed, one.overloaded, *_tails(one.classes, plan.classes), _typical(one.classes, plan))
        for one in found.curve
    )
    return LoadFigure(points, plan.demand_rps, found.goodput_rps, found.goodput_fails_rps, _knee(points))


def _typical(simulated: Sequence[SimulatedLatencies], plan: Plan) -> float:
    """Median TTFT and, for the mean output length, median TPOT: the mean over the classes by their shares [s]."""
    shares = {item.name: item.share for item in plan.classes}
    gaps = max(plan.workload.mean_osl - 1.0, 0.0)
    parts = [
        (shares.get(one.name, 0.0), one.ttft_s.p50 + (gaps * one.tpot_s.p50 if gaps else 0.0)) for one in simulated
    ]
    whole = math.fsum(share for share, _ in parts)
    return math.fsum(share * seconds for share, seconds in parts) / whole if whole else math.nan


def _knee(points: Sequence[Load]) -> float | None:
    """The rate at which rate over time is greatest; None where that is the last that was not overloaded."""
    sound = [point for point in points if not point.overloaded and is_number(point.time) and point.time > 0]
    if len(sound) < 2:
        return None
    best = max(sound, key=lambda point: point.rate / point.time)
    return None if best is sound[-1] else best.rate


def fleet_points(plan: Plan) -> tuple[FleetPoint, ...]:
    """The recommended fleet and every other one that was simulated with its latencies, cheapest first."""
    found = plan.simulation
    if found is None or plan.cost_usd_per_hour is None:
        return ()
    own = _tails(found.classes, plan.classes)
    points = [FleetPoint("recommended", plan.cost_usd_per_hour, *own, HOLDS if found.held else NOT_SHOWN, True)]
    for row in distinct_alternatives(plan):
        if row.kind != "recommended" and row.latencies and row.cost_usd_per_hour is not None:
            tails = _tails(row.latencies, plan.classes)
            outcome = HOLDS if is_feasible(row) else NOT_SHOWN
            points.append(FleetPoint(named_fleet(row), row.cost_usd_per_hour, *tails, outcome, False))
    for fleet in (one.best for one in tried_fleets(plan)):
        if fleet.latencies:
            tails = _tails(fleet.latencies, plan.classes)
            outcome = outcome_words(fleet, plan)
            points.append(FleetPoint(origin_words(fleet), fleet.cost_usd_per_hour, *tails, outcome, False))
    return tuple(sorted(points, key=lambda point: (point.cost, not point.recommended, point.name)))


def undominated(points: Iterable[FleetPoint], metric: str) -> list[FleetPoint]:
    """The fleets that no other beats in both cost and one latency, cheapest first."""
    best: list[FleetPoint] = []
    least = math.inf
    for point in sorted(points, key=lambda point: (point.cost, getattr(point, metric))):
        value = getattr(point, metric)
        if is_number(value) and value < least:
            best.append(point)
            least = value
    return best


def _tails(simulated: Sequence[SimulatedLatencies], classes: Sequence[ClassResult]) -> tuple[float, float]:
    """TTFT and TPOT at the quantile of the goal, each over its limit, in the class where that is most [1]."""
    asked = {item.name: item for item in classes}
    ttft, tpot = [0.0], [0.0]
    for one in simulated:
        item = asked.get(one.name)
        if item is not None:
            ttft.append(_tail(one.ttft_s, item.ttft_limit_s, item.attainment_goal))
            tpot.append(_tail(one.tpot_s, item.tpot_limit_s, item.attainment_goal))
    return max(ttft), max(tpot)


def _tail(values: Quantiles, limit: float, goal: float) -> float:
    """A latency at the quantile of the goal, over its limit; infinite where it is not known, 0 without a limit."""
    if not 0 < limit < math.inf:
        return 0.0
    value = float(getattr(values, goal_label(goal)))
    return math.inf if math.isnan(value) else value / limit


def slack(row: Alternative, plan: Plan) -> float | None:
    """What is left of an alternative's tightest latency limit, at the goal's quantile [1]; None if not simulated."""
    return 1.0 - max(_tails(row.latencies, plan.classes)) if row.latencies else None


def bucket_maps(plan: Plan) -> tuple[BucketMap, ...]:
    """Attainment of each class's buckets, tightest class first, binned as the heat map of the workload is."""
    maps = []
    for item in tightest_first(plan):
        routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
        if routes:
            maps.append(_bucket_map(item, routes))
    return tuple(maps)


def _bucket_map(item: ClassResult, routes: Sequence[Route]) -> BucketMap:
    isl_edges, osl_edges = bin_edges([r.isl for r in routes]), bin_edges([r.osl for r in routes])
    held: dict[tuple[int, int], list[Point]] = {}
    for route in routes:
        cell = bin_of(route.osl, osl_edges), bin_of(route.isl, isl_edges)
        held.setdefault(cell, []).append((route.attainment * route.share, route.share))
    return BucketMap(
        name=clean(item.name, 30),
        goal=item.attainment_goal,
        isl_edges=isl_edges,
        osl_edges=osl_edges,
        cells=_cells(held, len(osl_edges) - 1, len(isl_edges) - 1),
        column_labels=edge_labels(isl_edges),
        row_labels=tuple(reversed(edge_labels(osl_edges))),
    )


def _cells(
    held: Mapping[tuple[int, int], Sequence[Point]], rows: int, columns: int
) -> tuple[tuple[float | None, ...], ...]:
    def share(row: int, column: int) -> float | None:
        parts = held.get((row, column))
        return None if not parts else math.fsum(part for part, _ in parts) / math.fsum(whole for _, whole in parts)

    return tuple(tuple(share(row, column) for column in range(columns)) for row in reversed(range(rows)))


def worst_bucket(plan: Plan) -> Route | None:
    """The bucket that uses most of the misses that its class's goal permits; None without routes."""
    goals = {item.name: item.attainment_goal for item in plan.classes}
    routes = [route for route in plan.routing if route.slo_class in goals and route.share > 0]
    if not routes:
        return None
    return min(routes, key=lambda r: (-misses_used(r.attainment, goals[r.slo_class]), r.isl, r.osl))
