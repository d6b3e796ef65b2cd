"""What a dollar more buys: the front of cost and tail among the fleets around the plan's, where it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.metric import METRICS
from optimizer.plans.plan import ClassResult, MetricResult, Plan
from optimizer.plans.records import EnginePool, Quantiles, SimulatedLatencies, TunedFleet, Tuning

from .figures import goal_label, goal_words
from .numbers import MISSING, count, duration, hourly, is_number, percent, signed_percent
from .text import clean, plural
from .words import limited_cell, misses_used

OUTCOMES: Final = {"meets": "meets the SLO", "misses": "misses the SLO", "undecided": "not proven"}
ClassLatencies = ClassResult | SimulatedLatencies
"""What was simulated of a class: in the plan, or in a fleet of the front."""
NOTABLE: Final = 0.01
"""A latency that comes nearer to its limit by so much is told of [limits]: a front takes no less for better."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A latency of one class at the quantile of its goal: its name, its time [s], and the share of its limit [1]."""

    name: str
    metric: str
    seconds: float
    share: float


def asked_front(plan: Plan) -> Tuning | None:
    """What tuning found of cost and tail; None where that was not asked for."""
    tuning = None if plan.simulation is None else plan.simulation.tuning
    return tuning if tuning is not None and "tail" in tuning.objectives else None


def told_fleets(plan: Plan) -> list[TunedFleet]:
    """The fleets of the front that cost more than the plan's and keep their goals, cheapest first.

    Looks of the plan's price differ from it in settings only, none of which were proven to be better.
    """
    tuning, own = asked_front(plan), plan.cost_usd_per_hour or 0.0
    names = {item.name for item in plan.classes}
    fleets = (
        [] if tuning is None else [fleet for fleet in tuning.front if names == {item.name for item in fleet.latencies}]
    )
    return [fleet for fleet in fleets if fleet.tail <= 1.0 and fleet.cost_usd_per_hour > own * (1 + 1e-9)]


def front_headers(plan: Plan) -> tuple[str, ...]:
    """Of `front_rows`; # marks numbers."""
    at = goal_words(plan.classes)
    return (
        "fleet (max seqs/chunk)",
        "#price",
        "#extra",
        "#of limit",
        "#SLO met",
        f"#TTFT {at}",
        f"#TPOT {at}",
        "basis",
    )


def front_rows(plan: Plan) -> list[tuple[str, ...]]:
    """The recommended fleet, then a row for each dearer one of the front, under `front_headers`."""
    if asked_front(plan) is None:
        return []
    first = _fleet(plan.pools), hourly(plan.cost_usd_per_hour), MISSING, *_times(plan, plan.classes), "recommended"
    return [first, *(_row(plan, fleet) for fleet in told_fleets(plan))]


def _row(plan: Plan, fleet: TunedFleet) -> tuple[str, ...]:
    own = plan.cost_usd_per_hour or 0.0
    return (
        _fleet(fleet.pools),
        hourly(fleet.cost_usd_per_hour),
        signed_percent(fleet.cost_usd_per_hour / own - 1) if own else MISSING,
        *_times(plan, fleet.latencies),
        OUTCOMES.get(fleet.outcome or "", "one short run"),
    )


def _fleet(pools: Sequence[EnginePool]) -> str:
    return ", ".join(limited_cell(pool) for pool in pools[:6])


def _times(plan: Plan, latencies: Sequence[ClassLatencies]) -> tuple[str, str, str, str]:
    """Share of the limit, share in time, TTFT, TPOT: of several classes the nearest to the limit."""
    tails = _tails(plan, latencies)
    ttft, tpot = (max((tail for tail in tails if tail.metric == metric), key=_share) for metric in ("TTFT", "TPOT"))
    goals = {item.name: item.attainment_goal for item in plan.classes}
    in_time = percent(max(latencies, key=lambda item: misses_used(item.attainment, goals[item.name])).attainment)
    nearest = max(map(_share, tails))
    return percent(nearest) if nearest else MISSING, in_time, duration(ttft.seconds), duration(tpot.seconds)


def _share(tail: Tail) -> float:
    return tail.share


def _tails(plan: Plan, latencies: Sequence[ClassLatencies]) -> list[Tail]:
    """TTFT and TPOT of every class, in the plan's order."""
    by_name = {item.name: item for item in latencies}
    return [
        tail for item in plan.classes for tail in _class_tails(item, by_name[item.name], several=len(plan.classes) > 1)
    ]


def _class_tails(item: ClassResult, latencies: ClassLatencies, *, several: bool) -> list[Tail]:
    label = goal_label(item.attainment_goal)

    def tail(metric: str, times: Quantiles, limit: float | None) -> Tail:
        seconds = float(getattr(times, label))
        share = seconds / limit if limit is not None and is_number(limit) and limit > 0 else 0.0
        name = f"{metric} {label}"
        return Tail(f"{clean(item.name, 30)} {name}" if several else name, metric, seconds, share)

    times = {
        m: metric_result.quantiles_s if isinstance(metric_result, MetricResult) else metric_result
        for m, metric_result in latencies.metrics.items()
    }
    others = [
        tail(METRICS[metric].label, times[metric], metric_result.limit_s)
        for metric, metric_result in item.metrics.items()
        if metric in times
    ]
    return [
        tail("TTFT", latencies.ttft_s, item.ttft_limit_s),
        tail("TPOT", latencies.tpot_s, item.tpot_limit_s),
        *others,
    ]


def front_sentence(plan: Plan) -> str:
    """Say what was looked at, and what the least extra of a fleet that is shown to hold and to be faster buys."""
    tuning, own = asked_front(plan), plan.cost_usd_per_hour or 0.0
    if tuning is None:
        return ""
    fleets, before = _fleets_considered(tuning), _tails(plan, plan.classes)
    slowest = max(before, key=_share)
    for fleet in told_fleets(plan):
        after = _tails(plan, fleet.latencies)
        if fleet.outcome == "meets" and max(map(_share, after)) < slowest.share:
            dollars, more = hourly(fleet.cost_usd_per_hour - own), percent(fleet.cost_usd_per_hour / own - 1)
            return f"{fleets}; +{dollars} ({more}): {_gain(before, after, slowest)}"
    return f"{fleets}; no dearer fleet is proven to meet the SLO and to be faster"


def _fleets_considered(tuning: Tuning) -> str:
    """Say what the front is of: fleets around the plan's, and those of the comparison that keep their goals."""
    looked = f"{plural(tuning.looks, 'fleet')} around the plan's simulated"
    return f"{looked}, {count(tuning.compared)} of other kinds simulated" if tuning.compared else looked


def _gain(before: Sequence[Tail], after: Sequence[Tail], slowest: Tail) -> str:
    """What becomes of the slowest latency, and of those that come nearer to their limits."""

    def change_words(old: Tail, new: Tail) -> str:
        return f"{old.name} from {percent(old.share)} to {percent(new.share)} of its limit"

    pairs = list(zip(before, after, strict=True))
    gain = next(change_words(old, new) for old, new in pairs if old is slowest)
    worse = [change_words(old, new) for old, new in pairs if new.share >= old.share + NOTABLE]
    return f"{gain}; worse: {', '.join(worse)}" if worse else gain


def front_note(plan: Plan) -> str:
    """Say what the columns of `front_rows` mean; "" where there are none."""
    if asked_front(plan) is None:
        return ""
    several = ", of the class nearest to it" if len(plan.classes) > 1 else ""
    whole = "; whole requests are left out" if any(is_number(item.e2e_limit_s) for item in plan.classes) else ""
    return (
        f"Of limit: the slower of TTFT and TPOT at the quantile of the goal, over its limit{several}{whole}. "
        "Verdicts are by full runs like the plan's, or by one short run where it says so."
    )
