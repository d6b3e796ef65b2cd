"""Figure data: what the report's charts and its diagram of the fleet show, computed from the plan and nothing else.

Drawing is apart (`reports.charts`), so tests can assert the data: a chart's numbers are the plan's numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import ClassResult, Plan, Pool, Route, Transfer, WorkloadSummary
from optimizer.plans.records import Quantiles, SimulatedLatencies
from reports.drawing import FleetDiagram, LinkLine, Point, PoolBox
from reports.numbers import count, duration, hourly, is_number, percent, power_of_two, rate, si, significant
from reports.text import clean, plural
from reports.verdict import served_rate
from reports.words import (
    HOLDS,
    NOT_SHOWN,
    busiest_words,
    distinct_alternatives,
    gpus_per_engine,
    has_tpot,
    is_feasible,
    is_overloaded,
    misses_used,
    named_fleet,
    origin_words,
    outcome_words,
    split_words,
    status_words,
    tightest_first,
    tried_fleets,
)

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
PARTS: Final = ("gemm", "attention", "experts", "communication", "host")
MOST_ROWS: Final = 12
MOST_POINTS: Final = 24
MOST_COLUMNS: Final = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar: value in the figure's unit, None where there is none; `tone` is its CSS class."""

    label: str
    value: float | None
    tone: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Operating point of one pool: intensity and ridge [FLOP/byte], mfu and attainable [share of peak FLOP/s]."""

    pool: str
    role: str
    accelerator: str
    intensity: float
    mfu: float
    attainable: float
    ridge: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class LengthMap:
    """A share by input length (columns) and output length (rows, longest first), binned by edges [token].

    None: there are no such requests.
    """

    isl_edges: tuple[float, ...]
    osl_edges: tuple[float, ...]
    cells: tuple[tuple[float | None, ...], ...]

    @property
    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of columns and of rows."""
        return edge_labels(self.isl_edges), tuple(reversed(edge_labels(self.osl_edges)))

    @property
    def shares(self) -> list[float]:
        """Of the cells that have requests."""
        return [share for row in self.cells for share in row if share is not None]

    @property
    def peak(self) -> tuple[float, int, int]:
        """Largest cell: its share, row and column."""
        cells = [
            (share or 0.0, -row, -column) for row, line in enumerate(self.cells) for column, share in enumerate(line)
        ]
        return max(cells)

    @property
    def peaks(self) -> int:
        """Cells that are as large as the largest."""
        return sum(math.isclose(share, self.peak[0]) for share in self.shares)


def goal_label(goal: float) -> str:
    """Name the first quantile that a goal asks to be within its limit, p99 at most.

    >>> goal_label(0.9), goal_label(0.93), goal_label(0.999)
    ('p90', 'p95', 'p99')
    """
    return next((label for label, level in QUANTILES.items() if level >= goal - 1e-9), "p99")


def goal_words(classes: Sequence[ClassResult]) -> str:
    """The percentile that the goals of some classes ask for, or "at goal" where they differ."""
    labels = {goal_label(item.attainment_goal) for item in classes}
    return labels.pop() if len(labels) == 1 else "at goal"


def alternative_costs(plan: Plan) -> tuple[Bar, ...]:
    """Price of each alternative, the recommended first, then cheapest first; None where it is not feasible."""
    bars = []
    for row in distinct_alternatives(plan)[:MOST_ROWS]:
        tone = "good" if row.kind == "recommended" and is_feasible(row) else "other" if is_feasible(row) else "none"
        value = row.cost_usd_per_hour if is_feasible(row) else None
        bars.append(Bar(named_fleet(row), value, tone, "" if is_feasible(row) else status_words(row)))
    return tuple(bars)


def worth_costs(plan: Plan) -> tuple[Bar, ...]:
    """Price by formula with everything on, then with each feature off; None where no fleet was found without it."""
    bars = [Bar("with all of them", plan.worth[0].with_usd_per_hour, "good")] if plan.worth else []
    for item in plan.worth:
        price = item.without_usd_per_hour
        bars.append(Bar(f"without {clean(item.feature, 30)}", price, "other", "" if price is not None else "no fleet"))
    return tuple(bars)


def pool_label(pool: Pool) -> str:
    """Name a pool on a chart."""
    return f"{clean(pool.id, 20)} · {pool.role}"


def dearest_first(pools: Sequence[Pool]) -> list[Pool]:
    """Pools by their price, the dearest first."""
    return sorted(pools, key=lambda pool: (-pool.usd_per_hour, pool.id))


def roofline(plan: Plan) -> list[RooflinePoint]:
    """Operating points of the dearest pools; those without a positive intensity and MFU have no place on log axes."""
    points = []
    for pool in dearest_first(plan.pools):
        at = pool.operating_point
        if not all(is_number(v) and v > 0 for v in (at.arithmetic_intensity, at.mfu, at.ridge_point)):
            continue
        points.append(
            RooflinePoint(
                pool=clean(pool.id, 20),
                role=pool.role,
                accelerator=clean(pool.accelerator, 24),
                intensity=at.arithmetic_intensity,
                mfu=at.mfu,
                attainable=min(1.0, at.arithmetic_intensity / at.ridge_point),
                ridge=at.ridge_point,
                bound_by=clean(at.bound_by, 20),
            )
        )
    return points[:MOST_POINTS]


def step_parts(pool: Pool) -> list[tuple[str, float]]:
    """The share of a pool's step that each part takes [1]."""
    return [(name, float(getattr(pool.operating_point.time_split, name))) for name in PARTS]


def heat_map(load: WorkloadSummary) -> LengthMap:
    """Share of the requests by their lengths."""
    return length_map(load.isl, load.osl, load.share)


def length_map(
    isl: Sequence[float], osl: Sequence[float], terms: Sequence[float], wholes: Sequence[float] | None = None
) -> LengthMap:
    """Sum parts by powers of two of both lengths, or of four, eight … where that keeps the columns few.

    wholes: the sum of the parts of a cell is divided by that of its wholes.
    """
    isl_edges, osl_edges = bin_edges(isl), bin_edges(osl)
    sums: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for x, y, term, whole in zip(isl, osl, terms, wholes or [1.0] * len(terms), strict=True):
        sums.setdefault((bin_of(y, osl_edges), bin_of(x, isl_edges)), []).append((term, whole))

    def cell(row: int, column: int) -> float | None:
        pairs = sums.get((row, column))
        if pairs is None:
            return None
        term, whole = (math.fsum(values) for values in zip(*pairs, strict=True))
        return term if wholes is None else term / whole

    rows, columns = len(osl_edges) - 1, len(isl_edges) - 1
    cells = tuple(tuple(cell(row, column) for column in range(columns)) for row in reversed(range(rows)))
    return LengthMap(isl_edges, osl_edges, cells)


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


def edge_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Name the bins between edges [token]."""
    return tuple(f"{power_of_two(low)}–{power_of_two(high)}" for low, high in itertools.pairwise(edges))


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
class ClassMap:
    """Share of the requests of one class that meets the SLO, by length; goal: of the class."""

    name: str
    goal: float
    lengths: LengthMap


def distributions(plan: Plan) -> tuple[ClassDistributions, ...]:
    """The simulated distributions of each class, tightest class first; none of a plan that was not simulated."""
    if plan.simulation is None:
        return ()
    by_name, shares = {case.name: case for case in plan.simulation.classes}, plan.simulation.cdf_shares
    figures = []
    for item in tightest_first(plan):
        case = by_name.get(item.name)
        if case is None:
            continue
        panels = [
            _distribution("TTFT", item.ttft_limit_s, case.ttft_cdf_s, shares, case.by_formula.ttft_s),
            _distribution("TPOT", item.tpot_limit_s, case.tpot_cdf_s, shares, case.by_formula.tpot_s),
        ]
        drawn = tuple(panel for panel in panels[: 1 + has_tpot(item)] if panel.points and is_number(panel.limit))
        if drawn:
            figures.append(ClassDistributions(clean(item.name, 30), item.attainment_goal, drawn))
    return tuple(figures)


def _distribution(
    metric: str, limit: float, values: Sequence[float], shares: Sequence[float], formula: Quantiles
) -> Distribution:
    points = tuple((value, share) for value, share in zip(values, shares, strict=False) if is_number(value))
    by_formula = tuple((getattr(formula, label), level) for label, level in QUANTILES.items())
    return Distribution(metric, limit, points, tuple(point for point in by_formula if is_number(point[0])))


def load_figure(plan: Plan) -> LoadFigure | None:
    """Latency against load; None of a plan whose curve was not simulated."""
    simulation = plan.simulation
    if simulation is None or len(simulation.curve) < 2:
        return None
    points = tuple(
        Load(
            point.rate_rps,
            point.missed,
            point.overloaded,
            *_tails(point.classes, plan.classes),
            _typical(point.classes, plan),
        )
        for point in simulation.curve
    )
    return LoadFigure(points, plan.demand_rps, simulation.goodput_rps, simulation.goodput_fails_rps, _knee(points))


def _typical(simulated: Sequence[SimulatedLatencies], plan: Plan) -> float:
    """Median TTFT and, for the mean output length, median TPOT: the mean over the classes by their shares [s]."""
    shares = {item.name: item.share for item in plan.classes}
    gaps = max(plan.workload.mean_osl - 1.0, 0.0)
    terms = [
        (shares.get(case.name, 0.0), case.ttft_s.p50 + (gaps * case.tpot_s.p50 if gaps else 0.0)) for case in simulated
    ]
    whole = math.fsum(share for share, _ in terms)
    return math.fsum(share * seconds for share, seconds in terms) / whole if whole else math.nan


def _knee(points: Sequence[Load]) -> float | None:
    """The rate at which rate over time is greatest; None where that is the last that was not overloaded."""
    sound = [point for point in points if not point.overloaded and is_number(point.time) and point.time > 0]
    if len(sound) < 2:
        return None
    best = max(sound, key=lambda point: point.rate / point.time)
    return None if best is sound[-1] else best.rate


def fleet_points(plan: Plan) -> tuple[FleetPoint, ...]:
    """The recommended fleet and every other one that was simulated with its latencies, cheapest first."""
    simulation = plan.simulation
    if simulation is None or plan.cost_usd_per_hour is None:
        return ()
    own = _tails(simulation.classes, plan.classes)
    points = [FleetPoint("recommended", plan.cost_usd_per_hour, *own, HOLDS if simulation.held else NOT_SHOWN, True)]
    for row in distinct_alternatives(plan):
        if row.kind != "recommended" and row.latencies and row.cost_usd_per_hour is not None:
            tails = _tails(row.latencies, plan.classes)
            outcome = HOLDS if is_feasible(row) else NOT_SHOWN
            points.append(FleetPoint(named_fleet(row), row.cost_usd_per_hour, *tails, outcome, False))
    for fleet in (fleet_tried.best for fleet_tried in tried_fleets(plan)):
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
    goals = {item.name: item for item in classes}
    ttft, tpot = [0.0], [0.0]
    for case in simulated:
        item = goals.get(case.name)
        if item is not None:
            ttft.append(_tail(case.ttft_s, item.ttft_limit_s, item.attainment_goal))
            tpot.append(_tail(case.tpot_s, item.tpot_limit_s, item.attainment_goal))
    return max(ttft), max(tpot)


def _tail(values: Quantiles, limit: float, goal: float) -> float:
    """A latency at the quantile of the goal, over its limit; infinite where it is not known, 0 without a limit."""
    if not 0 < limit < math.inf:
        return 0.0
    value = float(getattr(values, goal_label(goal)))
    return math.inf if math.isnan(value) else value / limit


def bucket_maps(plan: Plan) -> tuple[ClassMap, ...]:
    """Attainment of each class's buckets, tightest class first, binned as the heat map of the workload is."""
    maps = []
    for item in tightest_first(plan):
        routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
        if routes:
            met, shares = [r.attainment * r.share for r in routes], [r.share for r in routes]
            lengths = length_map([r.isl for r in routes], [r.osl for r in routes], met, shares)
            maps.append(ClassMap(clean(item.name, 30), item.attainment_goal, lengths))
    return tuple(maps)


def worst_bucket(plan: Plan) -> Route | None:
    """The bucket that uses most of the misses that its class's goal permits; None without routes."""
    goals = {item.name: item.attainment_goal for item in plan.classes}
    routes = [route for route in plan.routing if route.slo_class in goals and route.share > 0]
    if not routes:
        return None
    return min(routes, key=lambda r: (-misses_used(r.attainment, goals[r.slo_class]), r.isl, r.osl))


MOST_BOXES: Final = 5
MOST_ENGINES: Final = 8
MOST_GPUS_OF_MANY: Final = 8
"""GPUs drawn of each pool when a stage has more than two pools; two engines at least."""
MOST_SQUARES: Final = 16
MOST_LINKS: Final = 8
LEAST_SHARE: Final = 5e-4
"""Share of all requests below which a route is not told: percentages have one decimal."""


@dataclass(frozen=True, slots=True)
class ClassShare:
    """What of one class is routed to one pool: share of all requests and their mean lengths [token]."""

    pool: str
    stage: str
    slo_class: str
    share: float
    isl: float
    osl: float


def fleet_diagram(plan: Plan) -> FleetDiagram:
    """Lay the plan's pools out by role; of the links those of most requests, beside the pools that they join."""
    prefill, decode = _of_role(plan, "prefill"), _of_role(plan, "decode")
    flow = _flow(plan)
    drawn = {pool.id for pool in (*prefill[: MOST_BOXES - 1], *decode[: MOST_BOXES - 1])}
    links = sorted(
        plan.transfers,
        key=lambda t: (t.source not in drawn or t.target not in drawn, -t.requests_per_second, t.source, t.target),
    )
    place = {pool.id: index for index, pool in enumerate((*prefill, *decode))}
    nearest = sorted(links[:MOST_LINKS], key=lambda t: (place.get(t.source, 0), place.get(t.target, 0)))
    return FleetDiagram(
        prefill=_boxes(prefill, flow),
        decode=_boxes(decode, flow),
        colocated=_boxes(_of_role(plan, "colocated"), flow),
        links=tuple(_link(item) for item in nearest),
        more_links=max(0, len(links) - MOST_LINKS),
        entry=_entry(plan),
        exit=_exit(plan),
    )


def _entry(plan: Plan) -> tuple[str, str]:
    served, length = served_rate(plan), f"{significant(plan.workload.mean_isl)} input tokens each"
    if plan.objective == "min_cost":
        return rate(served), length
    of = f"served of {rate(plan.demand_rps)}" if served < plan.demand_rps else f"the demand is {rate(plan.demand_rps)}"
    return rate(served), f"{of}; {length}"


def _exit(plan: Plan) -> tuple[str, str]:
    tokens_per_s = served_rate(plan) * plan.workload.mean_osl
    return si(tokens_per_s, "tokens/s").replace(" k", "k "), f"{significant(plan.workload.mean_osl)} output tokens each"


def _of_role(plan: Plan, role: str) -> list[Pool]:
    return dearest_first([pool for pool in plan.pools if pool.role == role])


def _boxes(pools: Sequence[Pool], flow: Mapping[str, str]) -> tuple[PoolBox, ...]:
    drawn = pools if len(pools) <= MOST_BOXES else pools[: MOST_BOXES - 1]
    boxes = [_box(pool, flow.get(pool.id, ""), len(drawn) > 2) for pool in drawn]
    rest = pools[len(drawn) :]
    if rest:
        boxes.append(_rest_box(rest))
    return tuple(boxes)


def _box(pool: Pool, flow: str, of_many: bool) -> PoolBox:
    at = pool.operating_point
    gpus, gpu = gpus_per_engine(pool), clean(pool.accelerator, 24)
    used = "overloaded by formula" if is_overloaded(pool) else busiest_words(at)
    squares = min(gpus, MOST_SQUARES)
    drawn = min(pool.replicas, max(2, MOST_GPUS_OF_MANY // squares) if of_many else MOST_ENGINES)
    working = pool.replicas - pool.spare_replicas
    hidden = [plural(pool.replicas - drawn, "more replica")] if pool.replicas > drawn else []
    hidden += [f"{gpus} GPUs in each replica"] if gpus > squares else []
    spare = f", {pool.spare_replicas} spare" if pool.spare_replicas else ""
    return PoolBox(
        title=f"{clean(pool.id, 20)} · {pool.role}",
        role=pool.role,
        lines=(
            f"{plural(pool.replicas, 'replica')} of {gpus} × {gpu}{spare} · {split_words(pool)}",
            f"{rate(at.request_rate_rps)} · {used} · {hourly(pool.usd_per_hour)}",
            *([flow] if flow else []),
        ),
        engines=tuple((squares, index >= working) for index in range(drawn)),
        columns=max(1, min(8, squares, max(pool.tensor_parallel, pool.data_parallel))),
        more=", ".join(hidden),
    )


def _rest_box(pools: Sequence[Pool]) -> PoolBox:
    gpus, usd = sum(pool.gpus for pool in pools), math.fsum(pool.usd_per_hour for pool in pools)
    replicas = sum(pool.replicas for pool in pools)
    return PoolBox(
        title=plural(len(pools), f"more {pools[0].role} pool"),
        role=pools[0].role,
        lines=(f"{plural(replicas, 'replica')} on {count(gpus)} GPUs · {hourly(usd)}", "All are under Settings."),
        engines=(),
        columns=1,
        more="",
    )


def _link(item: Transfer) -> LinkLine:
    return LinkLine(
        source=clean(item.source, 20),
        target=clean(item.target, 20),
        lines=(
            f"{rate(item.requests_per_second)} · {si(item.bytes_per_second, 'B/s')} of KV cache",
            f"{duration(item.seconds_per_request)} each · {percent(item.link_utilization)} of the link",
        ),
    )


def routed(plan: Plan) -> tuple[ClassShare, ...]:
    """Sum the routes by stage, pool and class; the shares of each stage sum to the share of all routes."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for route in plan.routing:
        colocated = route.prefill == route.decode
        stages = (
            (("prefill and decode", route.prefill),)
            if colocated
            else (("prefill", route.prefill), ("decode", route.decode))
        )
        for stage, fractions in stages:
            for pool, fraction in fractions.items():
                weight = fraction * route.share
                key = (stage, pool, route.slo_class)
                sums.setdefault(key, []).extend((weight, weight * route.isl, weight * route.osl))
    rows = []
    for (stage, pool, slo_class), terms in sums.items():
        share = math.fsum(terms[0::3])
        if share > LEAST_SHARE:
            means = math.fsum(terms[1::3]) / share, math.fsum(terms[2::3]) / share
            rows.append(ClassShare(clean(pool, 20), stage, clean(slo_class, 30), share, *means))
    return tuple(sorted(rows, key=lambda row: (row.stage != "prefill", row.pool, -row.share, row.slo_class)))


def _flow(plan: Plan) -> dict[str, str]:
    """Say for each pool which requests it serves; nothing where one pool serves all requests of one class."""
    by_pool: dict[str, list[ClassShare]] = {}
    for row in routed(plan):
        by_pool.setdefault(row.pool, []).append(row)
    several = len({route.slo_class for route in plan.routing}) > 1
    flow = {}
    for pool in plan.pools:
        rows = by_pool.get(clean(pool.id, 20), [])
        stage = [row for row in rows if row.stage == rows[0].stage]
        share = math.fsum(row.share for row in stage)
        if not stage or (share > 1 - LEAST_SHARE and not several):
            continue
        isl, osl = (math.fsum(row.share * getattr(row, name) for row in stage) / share for name in ("isl", "osl"))
        of = f" ({', '.join(dict.fromkeys(row.slo_class for row in stage[:3]))})" if several else ""
        flow[pool.id] = f"{percent(share)} of requests{of}: {significant(isl)} tokens in, {significant(osl)} out"
    return flow
