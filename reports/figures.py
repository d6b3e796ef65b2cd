"""Figure data: what each chart of the report shows, computed from the plan and nothing else.

Drawing is apart (`reports.charts`), so tests can assert the data: a chart's numbers are the plan's numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from optimizer.plans.plan import ClassResult, Plan, Pool, WorkloadSummary
from optimizer.plans.records import Quantiles

from .numbers import is_number, power_of_two
from .text import clean
from .words import (
    by_slack,
    constraint_words,
    distinct_alternatives,
    has_tpot,
    is_feasible,
    named_fleet,
    other_metrics,
    status_words,
    tightest_first,
)

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
PARTS: Final = ("gemm", "attention", "experts", "communication", "host")
MOST_ROWS: Final = 12
MOST_POINTS: Final = 24
MOST_COLUMNS: Final = 8


@dataclass(frozen=True, slots=True)
class QuantileBar:
    """One quantile of a latency [s]; `goal` marks the first one that the attainment goal asks to be in time."""

    label: str
    seconds: float
    within: bool
    goal: bool


@dataclass(frozen=True, slots=True)
class QuantileBars:
    """Quantiles of one latency of one class against its limit [s]."""

    metric: str
    limit: float
    bars: tuple[QuantileBar, ...]


@dataclass(frozen=True, slots=True)
class ClassFigure:
    """One SLO class: its latencies against their limits."""

    name: str
    attainment: float
    goal: float
    groups: tuple[QuantileBars, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar: value in the figure's unit, None where there is none; `tone` is its CSS class."""

    label: str
    value: float | None
    tone: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class CostBars:
    """Bars of dollars per hour; `total` is what they sum to, where a sum makes sense."""

    bars: tuple[Bar, ...]
    total: float | None = None


@dataclass(frozen=True, slots=True)
class HeadroomBars:
    """Use of each limit as a share of it, tightest first."""

    bars: tuple[Bar, ...]


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
class Roof:
    """The roofline of an accelerator at the dtype in use: slope 1/ridge up to the ridge, then flat at the peak."""

    label: str
    ridge: float


@dataclass(frozen=True, slots=True)
class RooflineFigure:
    """Share of peak FLOP/s over arithmetic intensity, log-log, so that unlike GPUs share one chart."""

    points: tuple[RooflinePoint, ...]
    roofs: tuple[Roof, ...]


@dataclass(frozen=True, slots=True)
class SplitRow:
    """Where one step [s] of a pool spends its time; parts in the order of `PARTS`."""

    pool: str
    role: str
    step: float
    parts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Share of requests by input length (columns) and output length (rows, longest first), binned by edges [token]."""

    isl_edges: tuple[float, ...]
    osl_edges: tuple[float, ...]
    cells: tuple[tuple[float, ...], ...]
    column_labels: tuple[str, ...]
    row_labels: tuple[str, ...]

    @property
    def peak(self) -> tuple[float, int, int]:
        """Largest cell: its share, row and column."""
        return max((share, -row, -column) for row, cells in enumerate(self.cells) for column, share in enumerate(cells))

    @property
    def peaks(self) -> int:
        """Cells that are as large as the largest."""
        return sum(math.isclose(share, self.peak[0]) for cells in self.cells for share in cells)


def class_figure(result: ClassResult) -> ClassFigure:
    """Collect the latencies of one class that have limits; without TPOT where all requests have one output token."""
    timed = [("TTFT", result.ttft_s, result.ttft_limit_s)]
    if has_tpot(result):
        timed += [("TPOT", result.tpot_s, result.tpot_limit_s), *other_metrics(result)]
    groups = tuple(_quantile_bars(*one, result.attainment_goal) for one in timed if is_number(one[2]))
    return ClassFigure(clean(result.name, 30), result.attainment, result.attainment_goal, groups)


def goal_label(goal: float) -> str:
    """Name the first quantile that a goal asks to be within its limit, p99 at most.

    >>> goal_label(0.9), goal_label(0.93), goal_label(0.999)
    ('p90', 'p95', 'p99')
    """
    return next((label for label, level in QUANTILES if level >= goal - 1e-9), QUANTILES[-1][0])


def _quantile_bars(metric: str, values: Quantiles, limit: float, goal: float) -> QuantileBars:
    asked = goal_label(goal)
    bars = []
    for label, _ in QUANTILES:
        seconds = float(getattr(values, label))
        bars.append(QuantileBar(label, seconds, seconds <= limit, label == asked))
    return QuantileBars(metric, limit, tuple(bars))


def class_figures(plan: Plan) -> tuple[ClassFigure, ...]:
    """Classes, tightest first; all of them but those with a limit on whole requests alone."""
    return tuple(figure for figure in map(class_figure, tightest_first(plan)) if figure.groups)


def alternative_costs(plan: Plan) -> CostBars:
    """Price of each alternative, the recommended first, then cheapest first; None where it is not feasible."""
    bars = []
    for row in distinct_alternatives(plan)[:MOST_ROWS]:
        tone = "good" if row.kind == "recommended" and is_feasible(row) else "other" if is_feasible(row) else "none"
        value = row.cost_usd_per_hour if is_feasible(row) else None
        bars.append(Bar(named_fleet(row), value, tone, "" if is_feasible(row) else status_words(row)))
    return CostBars(tuple(bars))


def dollars(plan: Plan) -> CostBars:
    """Price of each pool, dearest first; pools beyond the twelfth bar are one bar, so the bars sum to the total."""
    pools = _dearest_first(plan.pools)
    shown = pools if len(pools) <= MOST_ROWS else pools[: MOST_ROWS - 1]
    bars = [Bar(pool_label(pool), pool.usd_per_hour, pool.role) for pool in shown]
    rest = pools[len(shown) :]
    if rest:
        bars.append(Bar(f"{len(rest)} other pools", math.fsum(pool.usd_per_hour for pool in rest), "other"))
    return CostBars(tuple(bars), math.fsum(pool.usd_per_hour for pool in pools))


def worth_costs(plan: Plan) -> CostBars:
    """Price by formula with everything on, then with each feature off; None where no fleet was found without it."""
    bars = [Bar("with all of them", plan.worth[0].with_usd_per_hour, "good")] if plan.worth else []
    for item in plan.worth:
        price = item.without_usd_per_hour
        bars.append(Bar(f"without {clean(item.feature, 30)}", price, "other", "" if price is not None else "no fleet"))
    return CostBars(tuple(bars))


def headroom(plan: Plan) -> HeadroomBars:
    """Use of each limit, tightest first."""
    bars = []
    for item in by_slack(plan)[:MOST_ROWS]:
        where = "" if item.where in {"fleet", ""} else f" · {clean(item.where, 24)}"
        tone = "over" if item.slack < 0 else "other"
        bars.append(Bar(f"{constraint_words(item.constraint)}{where}", 1 - item.slack, tone))
    return HeadroomBars(tuple(bars))


def pool_label(pool: Pool) -> str:
    """Name a pool on a chart."""
    return f"{clean(pool.id, 20)} · {pool.role}"


def _dearest_first(pools: Sequence[Pool]) -> list[Pool]:
    return sorted(pools, key=lambda pool: (-pool.usd_per_hour, pool.id))


def roofline(plan: Plan) -> RooflineFigure:
    """Operating points of the dearest pools; those without a positive intensity and MFU have no place on log axes."""
    points = []
    for pool in _dearest_first(plan.pools):
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
    points = points[:MOST_POINTS]
    roofs = {(point.accelerator, point.ridge): Roof(point.accelerator, point.ridge) for point in points}
    return RooflineFigure(tuple(points), tuple(roofs[key] for key in sorted(roofs)))


def step_splits(plan: Plan) -> tuple[SplitRow, ...]:
    """Time split of the dearest pools' steps."""
    rows = []
    for pool in _dearest_first(plan.pools)[:MOST_ROWS]:
        at = pool.operating_point
        parts = tuple(float(getattr(at.time_split, part)) for part in PARTS)
        rows.append(SplitRow(clean(pool.id, 20), pool.role, at.step_s, parts))
    return tuple(rows)


def heat_map(load: WorkloadSummary) -> HeatMap:
    """Bin the buckets by powers of two, or of four, eight … where that keeps the columns few."""
    isl_edges, osl_edges = bin_edges(load.isl), bin_edges(load.osl)
    cells = [[0.0] * (len(isl_edges) - 1) for _ in range(len(osl_edges) - 1)]
    for isl, osl, share in zip(load.isl, load.osl, load.share, strict=True):
        cells[bin_of(osl, osl_edges)][bin_of(isl, isl_edges)] += share
    return HeatMap(
        isl_edges=isl_edges,
        osl_edges=osl_edges,
        cells=tuple(tuple(row) for row in reversed(cells)),
        column_labels=edge_labels(isl_edges),
        row_labels=tuple(reversed(edge_labels(osl_edges))),
    )


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
