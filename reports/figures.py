"""Figures of a plan that several answers show: quantiles of goals, lengths in bins, the fleet's diagram, its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.metric import METRICS, Metric
from costmodel.words import plural
from optimizer.plans.plan import ClassResult, Plan, Pool, Route, Transfer
from optimizer.plans.records import ClassLatencies, Quantiles, Range
from reports import words
from reports.asked import tightest_limits
from reports.document import Column, FleetDiagram, LinkLine, PoolBox, Table, table_of, without_empty
from reports.numbers import (
    MISSING,
    count,
    duration,
    hourly,
    money,
    percent,
    percent_beside,
    power_of_two,
    rate,
    si,
    significant,
)
from reports.text import clean
from reports.verdict import served_rate, spread

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TONES: Final = {
    Metric.TTFT: "prefill",
    Metric.TPOT: "decode",
    Metric.E2E: "colocated",
    Metric.ITL_P99: "other",
    Metric.NORMALIZED_LATENCY: "good",
}
"""Colors of the metrics."""
OPTIONAL: Final = {"p50", "p99"}
"""Quantiles that a narrow table leaves out."""
MOST_COLUMNS: Final = 8


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


def worst_tails(
    latencies: Sequence[ClassLatencies], classes: Sequence[ClassResult]
) -> dict[Metric, tuple[float, float]]:
    """Every limited metric, at the quantile of the goal, in the class that is nearest to its limit there.

    As share of the limit [1], infinite where requests never get so far, and as time [s]; NaN where it was not recorded.
    """
    cases, tails = {case.name: case.quantiles for case in latencies}, dict[Metric, list[tuple[float, float]]]()
    for item in classes:
        label = goal_label(item.attainment_goal)
        for metric, limit in item.limits.items():
            known, times = tails.setdefault(metric, []), cases.get(item.name, {}).get(metric)
            if times is not None:
                seconds = float(getattr(times, label))
                known.append((math.inf if math.isnan(seconds) else seconds / limit, seconds))
    return {metric: max(tails[metric], default=(math.nan, math.nan)) for metric in Metric if metric in tails}


def pool_label(pool: Pool) -> str:
    """Name a pool on a chart."""
    return f"{clean(pool.id, 20)} · {pool.role}"


def dearest_first(pools: Sequence[Pool]) -> list[Pool]:
    """Pools by their price, the dearest first."""
    return sorted(pools, key=lambda pool: (-pool.usd_per_hour, pool.id))


@dataclass(frozen=True, slots=True)
class LengthMap:
    """A share by output and input length, binned by edges [token]: of every (output bin, input bin) with requests."""

    isl_edges: tuple[float, ...]
    osl_edges: tuple[float, ...]
    shares: Mapping[tuple[int, int], float]

    def words(self, output: int, input_: int) -> str:
        """Name a cell."""
        ends = (self.isl_edges[input_ : input_ + 2], self.osl_edges[output : output + 2])
        isl, osl = ("–".join(map(power_of_two, each)) for each in ends)
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


MOST_BOXES: Final = 5
MOST_ENGINES: Final = 8
MOST_GPUS_OF_MANY: Final = 8
"""GPUs drawn of each pool when a stage has more than two pools; two engines at least."""
MOST_SQUARES: Final = 16
MOST_LINKS: Final = 8
LEAST_SHARE: Final = 5e-4
"""Share of all requests below which a route is not told: percentages have one decimal."""


def fleet_diagram(plan: Plan) -> FleetDiagram:
    """Lay the plan's pools out by role, and the links of most requests."""
    served, load = served_rate(plan), plan.workload
    of = f"{'served of' if served < plan.demand_rps else 'the demand is'} {rate(plan.demand_rps)}; "
    inputs = f"{of * (plan.objective != 'min_cost')}{significant(load.mean_isl)} input tokens each"
    tokens = si(served * load.mean_osl, "tokens/s").replace(" k", "k ")
    pools, loads = dearest_first(plan.pools), pool_loads(plan)
    links = sorted(plan.transfers, key=lambda move: (-move.requests_per_second, move.source, move.target))
    return FleetDiagram(
        **{role: _boxes([pool for pool in pools if pool.role == role], loads) for role in ROLES},
        links=tuple(map(_link, links[:MOST_LINKS])),
        more_links=max(0, len(links) - MOST_LINKS),
        entry=(rate(served), inputs),
        exit=(tokens, f"{significant(load.mean_osl)} output tokens each"),
    )


ROLES: Final = ("prefill", "decode", "colocated")


def _boxes(pools: Sequence[Pool], loads: Mapping[str, str]) -> tuple[PoolBox, ...]:
    drawn = pools if len(pools) <= MOST_BOXES else pools[: MOST_BOXES - 1]
    boxes = [_box(pool, loads.get(pool.id, MISSING), of_many=len(drawn) > 2) for pool in drawn]
    if hidden := pools[len(drawn) :]:
        gpus, usd = sum(pool.gpus for pool in hidden), math.fsum(pool.usd_per_hour for pool in hidden)
        replicas = plural(sum(pool.replicas for pool in hidden), "replica")
        lines = (f"{replicas} on {count(gpus)} GPUs · {hourly(usd)}", "All are under Settings.")
        role = hidden[0].role
        boxes.append(PoolBox(plural(len(hidden), f"more {role} pool"), role, lines, engines=(), columns=1, more=""))
    return tuple(boxes)


def _box(pool: Pool, load: str, *, of_many: bool) -> PoolBox:
    gpus = words.gpus_per_engine(pool)
    load = "overloaded by formula" if words.is_overloaded(pool) else f"load {load}"
    squares = min(gpus, MOST_SQUARES)
    drawn = min(pool.replicas, max(2, MOST_GPUS_OF_MANY // squares) if of_many else MOST_ENGINES)
    working = pool.replicas - pool.spare_replicas
    hidden = [plural(pool.replicas - drawn, "more replica")] if pool.replicas > drawn else []
    hidden += [f"{gpus} GPUs in each replica"] if gpus > squares else []
    spare = f", {pool.spare_replicas} spare" if pool.spare_replicas else ""
    return PoolBox(
        title=pool_label(pool),
        role=pool.role,
        lines=(
            f"{plural(pool.replicas, 'replica')} of {words.replica_words(pool)}{spare} · {words.split_words(pool)}",
            f"{rate(pool.operating_point.request_rate_rps)} · {load} · {hourly(pool.usd_per_hour)}",
        ),
        engines=tuple((squares, index >= working) for index in range(drawn)),
        columns=max(1, min(8, squares, max(pool.tensor_parallel, pool.data_parallel))),
        more=", ".join(hidden),
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


# --- tables -----------------------------------------------------------------------------------------------------------

BRIEF_ROWS: Final = 4
"""Rows of a table in the brief answer: more of them would push the verdict off the screen."""
MOST_POOLS: Final = BRIEF_ROWS + 2
"""Pools that are all shown in the brief answer."""


def shown_pools(pools: Sequence[Pool], *, brief: bool) -> list[Pool]:
    """The pools that are shown: in a brief answer those that cost most, in the plan's order."""
    if not brief or len(pools) <= MOST_POOLS:
        return list(pools)
    dearest = dearest_first(pools)[: BRIEF_ROWS + 1]
    return [pool for pool in pools if pool in dearest]


def pool_loads(plan: Plan) -> dict[str, str]:
    """The load of each pool: the share of what it can take within the SLO, and what runs out first."""
    tightest_last = reversed(tightest_limits(plan))
    return {row.where: f"{words.used_words(row)} ({words.constraint_words(row.constraint)})" for row in tightest_last}


def fleet_table(plan: Plan, *, brief: bool) -> Table:
    """The pools of a fleet with their settings, their load and what it is limited by; brief: the dearest of many pools.

    Roles stand there unless ids name them.
    """
    pools, loads = plan.pools, pool_loads(plan)
    ids_name_roles = all(pool.id.startswith(pool.role) for pool in pools)
    columns = [
        Column("pool"),
        *([] if ids_name_roles else [Column("role", optional=True)]),
        Column("replicas × GPU"),
        Column("max seqs", "right"),
        Column("chunk", "right"),
        Column("$/h", "right"),
        Column("load", shrink=True, lines=2),
    ]
    rows = [
        (
            clean(pool.id, 20),
            *([] if ids_name_roles else [pool.role]),
            words.replicas_cell(pool, spares=pool.spare_replicas),
            count(pool.max_num_seqs),
            count(pool.max_num_batched_tokens),
            money(pool.usd_per_hour),
            loads.get(pool.id, MISSING),
        )
        for pool in shown_pools(pools, brief=brief)
    ]
    return table_of(columns, rows)


def brief_slo_table(plan: Plan) -> Table:
    """A row for each class, of many for the tightest: each limited latency at the percentile that the goal asks for.

    Then how many requests meet all limits.
    """
    classes = words.tightest_first(plan)[:BRIEF_ROWS] if len(plan.classes) > BRIEF_ROWS else plan.classes
    at, rows, columns = goal_words(classes), [], [Column("class", shrink=True)]
    metrics = [metric for metric in Metric if any(metric in item.limits for item in classes)]
    for metric in metrics:
        name = METRICS[metric].label if at == "at goal" else f"{METRICS[metric].label} {at}"
        columns += [Column(name, "right"), Column("limit", "right", beside=True)]
    for item in classes:
        label, cells = goal_label(item.attainment_goal), list[str]()
        times = {metric: getattr(quantiles, label) for metric, quantiles, _, _ in latencies(item)}
        for metric in metrics:
            cells += [duration(times.get(metric) if metric in item.limits else None), duration(item.limits.get(metric))]
        met, goal, *share = _met_cells(item, plan)
        rows.append((clean(item.name, 30), *cells, met, f"{goal} ({label})" if at == "at goal" else goal, *share))
    return table_of((*columns, *_met_columns(plan)), rows)


def _met_columns(plan: Plan) -> list[Column]:
    """Columns of `_met_cells`."""
    met = [Column("SLO met", "right"), Column("goal", "right", beside=True)]
    return [*met, Column("share", "right", optional=True)] if len(plan.classes) > 1 else met


def _met_cells(item: ClassResult, plan: Plan) -> tuple[str, ...]:
    """How many requests of a class meet the SLO, its goal and, of several classes, its share of all requests."""
    mark = "✓" if item.attainment >= item.attainment_goal else "✗"
    met = f"{mark} {percent_beside(item.attainment, item.attainment_goal)}"
    return (met, percent(item.attainment_goal), percent(item.share))[: len(_met_columns(plan))]


def slo_table(plan: Plan) -> Table:
    """A row for each latency of a class at every percentile, with its limit and how far off the prediction may be.

    In the first of a class how many requests meet all limits.
    """
    at = goal_words(plan.classes)
    interval = f"90 % interval {at if at == 'at goal' else f'of {at}'}"
    columns = (
        Column("class", shrink=True),
        Column("latency"),
        *(Column(name, "right", optional=name in OPTIONAL) for name in QUANTILES),
        Column("limit", "right", beside=True),
        Column(interval, "right", shrink=True, lines=2),
        *_met_columns(plan),
    )
    rows = []
    for item in plan.classes:
        met = _met_cells(item, plan)
        for metric, times, limit, between in latencies(item):
            span = MISSING if between is None else spread(between, duration)
            own = (duration(getattr(times, name)) for name in QUANTILES)
            rows.append((clean(item.name, 30), METRICS[metric].label, *own, duration(limit), span, *met))
            met = ("",) * len(met)
    return without_empty(table_of(columns, rows))


def latencies(item: ClassResult) -> list[tuple[Metric, Quantiles, float | None, Range | None]]:
    """Every latency of a class with its limit [s] and its error bar; no TPOT where nothing follows first tokens."""
    limits, ranges = item.limits, {} if item.error_bars is None else item.error_bars.ranges
    known = [metric for metric in item.latencies.quantiles if metric is not Metric.TPOT or words.has_tpot(item)]
    return [(metric, item.latencies.quantiles[metric], limits.get(metric), ranges.get(metric)) for metric in known]


def routing_table(plan: Plan) -> Table:
    """Which requests of each class each pool gets, and how many of these meet the SLO.

    The shares of a stage sum to the share of all routes.
    """
    parts: dict[tuple[str, str, str], list[tuple[float, Route]]] = {}
    for route in plan.routing:
        is_colocated = route.prefill == route.decode
        stages = (
            {"prefill and decode": route.prefill}
            if is_colocated
            else {"prefill": route.prefill, "decode": route.decode}
        )
        for stage, fractions in stages.items():
            for pool, fraction in fractions.items():
                parts.setdefault((stage, pool, route.slo_class), []).append((fraction * route.share, route))
    rows = []
    for (stage, pool, slo_class), routes in parts.items():
        share, inputs = math.fsum(weight for weight, _ in routes), [row.isl for weight, row in routes if weight > 0.0]
        if share > LEAST_SHARE:
            isl, osl, met = (
                math.fsum(weight * getattr(row, name) for weight, row in routes) / share
                for name in ("isl", "osl", "attainment")
            )
            lengths = " to ".join(dict.fromkeys(map(significant, (min(inputs), max(inputs)))))
            cells = clean(pool, 20), stage, clean(slo_class, 30), percent(share), lengths
            order = stage != "prefill", cells[0], -share, cells[2]
            rows.append((order, (*cells, significant(isl), significant(osl), percent(met))))
    means = (Column(f"mean {name}", "right", optional=True) for name in ("input", "output"))
    headers: tuple[Column | str, ...] = ("pool", "stage", "class", "#share", "#inputs", *means, "#SLO met")
    return table_of(headers, [cells for _, cells in sorted(rows)])


def is_routed_apart(plan: Plan) -> bool:
    """Whether pools of one stage get requests of different lengths."""
    rows = [(stage, slo_class, inputs) for _, stage, slo_class, _, inputs, *_ in routing_table(plan).rows]
    return len(set(rows)) > len({(stage, slo_class) for stage, slo_class, _ in rows})


def missed_lengths_sentence(plan: Plan) -> str:
    """Say of which lengths most requests miss the SLO, though the class may meet it; empty where there are none."""
    sentences = []
    for item in plan.classes:
        routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
        missed = [route for route in routes if route.attainment < 0.5]
        share = math.fsum(route.share for route in missed)
        if share > LEAST_SHARE:
            inputs = dict.fromkeys(significant(choose(route.isl for route in missed)) for choose in (min, max))
            met = math.fsum(route.share * route.attainment for route in missed) / share
            sentences.append(
                f"Most requests of {len(missed)} of the {len(routes)} lengths of {clean(item.name, 30)} miss the SLO. "
                f"They have {' to '.join(inputs)} input tokens and are {percent(share)} of all requests; "
                f"{percent(met)} of these meet the SLO."
            )
    return " ".join(sentences)
