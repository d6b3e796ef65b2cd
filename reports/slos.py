"""SLO classes: which is tightest, their latencies at the percentile of the goal, and how many requests meet it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from costmodel.metric import METRICS, Metric
from optimizer.plans.plan import ClassResult, Plan
from optimizer.plans.records import ClassJudgement, ClassLatencies, Outcome, Quantiles, Range, SimulatedClass

from .document import Column, Table, table_of, without_empty
from .text import MISSING, clean, duration, goal_percent, percent, percent_beside, significant

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TONES: Final = dict(zip(METRICS, ("prefill", "decode", "colocated", "other", "olive", "pink"), strict=False))
"""Colors of the metrics."""
OPTIONAL: Final = {"p50", "p99"}
"""Quantiles that a narrow table leaves out."""
LEAST_SHARE: Final = 5e-4
"""Share of all requests below which a route is not told: percentages have one decimal."""
OUTCOMES: Final = {Outcome.MEETS: "meets the SLO", Outcome.MISSES: "misses the SLO", Outcome.UNDECIDED: "undecided"}
MARKS: Final = {Outcome.MEETS: "✓", Outcome.MISSES: "✗", Outcome.UNDECIDED: "undecided:"}


def marked(outcome: Outcome, share: float) -> str:
    """Write a share that meets the SLO, and what simulation says of its goal.

    >>> marked(Outcome.MEETS, 0.991), marked(Outcome.UNDECIDED, 0.9)
    ('✓ 99.1 %', 'undecided: 90 %')
    """
    return f"{MARKS[outcome]} {percent(share)}"


def class_record(case: ClassJudgement, *, is_late: bool = False) -> dict[str, Any]:
    """A simulated class as a record: the fields that plan.json has of it, and the verdict.

    is_late: whether a pool of it falls behind, so that it misses the SLO in the long run.
    """
    verdict = Outcome.MISSES if is_late else case.outcome
    return asdict(case) | {"verdict": str(verdict), "held": verdict is Outcome.MEETS}


def requests_of(name: str, classes: Sequence[object]) -> str:
    """Whose requests a share is of: those of a class, by its name where there are several.

    >>> requests_of("chat", ["chat"]), requests_of("chat", ["chat", "batch"])
    ('requests', 'chat requests')
    """
    return "requests" if len(classes) == 1 else f"{clean(name, 30)} requests"


def misses_used(attainment: float, goal: float) -> float:
    """The misses of a class over those that its goal permits [1]: the class that uses most of them is the tightest.

    Infinite where the share in time is unknown, or where none may miss and one does.

    >>> round(misses_used(0.977, 0.9), 3), round(misses_used(0.999, 0.95), 3), misses_used(1.0, 1.0)
    (0.23, 0.02, 0.0)
    """
    misses, miss_limit = 1.0 - attainment, 1.0 - goal
    if misses <= 0.0:
        return 0.0
    return misses / miss_limit if miss_limit > 0.0 and not math.isnan(misses) else math.inf


def tightest(shares: Mapping[str, float], classes: Sequence[ClassResult | SimulatedClass]) -> tuple[str, float, float]:
    """The class that uses most of its permitted misses: name, its share that meets the SLO, and its goal [1]."""
    goals = {item.name: item.attainment_goal for item in classes}
    name = max(shares, key=lambda name: misses_used(shares[name], goals.get(name, 0.0)))
    return name, shares[name], goals.get(name, 0.0)


def tightest_first(plan: Plan) -> list[ClassResult]:
    """Classes by what they use of their permitted misses, the one that uses most first."""
    return sorted(plan.classes, key=lambda item: (-misses_used(item.attainment, item.attainment_goal), item.name))


def missed_classes(plan: Plan) -> list[ClassResult]:
    """Classes whose predicted attainment is below their goal."""
    return [item for item in plan.classes if not item.attainment >= item.attainment_goal]


def has_tpot(item: ClassResult) -> bool:
    """Tell whether any request of a class has more than one output token."""
    return item.tpot_s.p99 != 0.0


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


def tails_of_limits(latencies: Sequence[ClassLatencies], classes: Sequence[ClassResult]) -> dict[Metric, float]:
    """Every limited metric at the quantile of the goal, over its limit, in the class where that is most [1]."""
    return {metric: share for metric, (share, _) in worst_tails(latencies, classes).items()}


def latencies(item: ClassResult) -> list[tuple[Metric, Quantiles, float | None, Range | None]]:
    """Every latency of a class with its limit [s] and its error bar; no TPOT where nothing follows first tokens."""
    limits, ranges = item.limits, {} if item.error_bars is None else item.error_bars.ranges
    known = [metric for metric in item.latencies.quantiles if metric is not Metric.TPOT or has_tpot(item)]
    return [(metric, item.latencies.quantiles[metric], limits.get(metric), ranges.get(metric)) for metric in known]


def spread(between: Range, write: Callable[[float], str]) -> str:
    """Write both ends of a range; one without an upper end reaches to where a pool is overloaded."""
    if between.high is None:
        return f"{write(between.low)} to overload"
    low, high = write(between.low), write(between.high)
    return low if low == high else f"{low} to {high}"


def brief_slo_table(plan: Plan) -> Table:
    """A row for each class: its limited latencies at the percentile of the goal, and how many requests meet all."""
    at, rows, columns = goal_words(plan.classes), [], [Column("class", shrink=True)]
    metrics = [metric for metric in Metric if any(metric in item.limits for item in plan.classes)]
    for metric in metrics:
        name = METRICS[metric].label if at == "at goal" else f"{METRICS[metric].label} {at}"
        columns += [Column(name, "right"), Column("limit", "right", beside=True)]
    for item in plan.classes:
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


def met_words(item: ClassResult, plan: Plan) -> str:
    """How many requests of a class meet the SLO, and whether that reaches the goal.

    Of a fleet that falls behind no share is undecided: it sinks for as long as the load lasts.
    """
    outcome = Outcome.MEETS if item.attainment >= item.attainment_goal else Outcome.MISSES
    simulation = plan.simulation
    for case in simulation.classes if simulation else ():
        if case.name == item.name and case.outcome is Outcome.UNDECIDED:
            outcome = Outcome.MISSES if simulation and simulation.overloaded else Outcome.UNDECIDED
    return f"{MARKS[outcome]} {percent_beside(item.attainment, item.attainment_goal)}"


def _met_cells(item: ClassResult, plan: Plan) -> tuple[str, ...]:
    """How many requests of a class meet the SLO, its goal and, of several classes, its share of all requests."""
    return (met_words(item, plan), goal_percent(item.attainment_goal), percent(item.share))[: len(_met_columns(plan))]


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


def unserved_sentence(plan: Plan) -> str:
    """Say which share of the requests never ended in the plan's simulation; empty where all ended."""
    if plan.simulation is None or not plan.simulation.unfinished:
        return ""
    rejected = plan.simulation.rejected
    cause = f"; {percent(rejected)} of requests were rejected, as they are too long for any replica" if rejected else ""
    return f"In simulation {percent(plan.simulation.unfinished)} of requests never ended and count as missed{cause}."


def missed_lengths_sentence(plan: Plan) -> str:
    """Say of which lengths most requests miss the SLO, though the class may meet it; empty where there are none."""
    sentences = []
    for item in plan.classes:
        routes = [route for route in plan.routing if route.slo_class == item.name and route.share > 0]
        missed = [route for route in routes if route.attainment < 0.5]
        share = math.fsum(route.share for route in missed)
        if share > LEAST_SHARE and len(missed) < len(routes):  # where all miss it, so does the class
            inputs = dict.fromkeys(significant(choose(route.isl for route in missed)) for choose in (min, max))
            met = math.fsum(route.share * route.attainment for route in missed) / share
            sentences.append(
                f"Most requests of {len(missed)} of the {len(routes)} lengths of {clean(item.name, 30)} miss the SLO. "
                f"They have {' to '.join(inputs)} input tokens and are {percent(share)} of all requests; "
                f"{percent(met)} of these meet the SLO."
            )
    return " ".join(sentences)
