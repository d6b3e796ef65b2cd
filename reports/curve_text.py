"""The rates at which a fleet was simulated as text: its goodput, or its whole latency-throughput curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimizer.plans.plan import Plan
from optimizer.verification.goodput import TOLERANCE, Curve, Goodput, RatePoint
from optimizer.verification.judge import Outcome

from .numbers import duration, percent, rate, significant
from .table import Column, render_table
from .text import clean, wrap

SHOWN = (0, 1, 3)
"""Of the quantiles p50, p90, p95, p99 those that tables show."""
MISMATCH = 1.1
"""Saturation over the most that was served, from which on the runs were too short: requests were still waiting."""


def goodput_text(found: Goodput, plan: Plan, width: int) -> list[str]:
    """Say the goodput, and how each rate went that was tried."""
    columns = [
        Column("rate", "right"),
        Column("SLO met", "right", shrink=True),
        Column("TTFT p90", "right", shrink=True),
        Column("TPOT p90", "right", shrink=True),
        Column(""),
    ]
    rows = [
        [
            rate(point.rate),
            " ".join(percent(one.attainment.share) for one in point.classes),
            " ".join(duration(one.ttft[1]) for one in point.classes),
            " ".join(duration(one.tpot[1]) for one in point.classes),
            _mark(point),
        ]
        for point in found.points
    ]
    return [*wrap(_goodput_sentence(found, plan), width), *render_table(rows, columns, width, indent=2).split("\n")]


def _goodput_sentence(found: Goodput, plan: Plan) -> str:
    if found.rate <= 0.0:
        return f"Goodput 0: the SLO is not met even at {rate(found.fails)}."
    return (
        f"Goodput {rate(found.rate)}, at the lower end of the intervals and to {percent(found.tolerance)}; "
        f"plan: {rate(plan.goodput_rps)}."
    )


def curve_text(curve: Curve, plan: Plan, width: int) -> list[str]:
    """Name saturation, knee and goodput; a row for each rate and class."""
    columns = [
        Column("req/s", "right"),
        Column("served", "right", optional=True),
        Column("class", shrink=True),
        Column("SLO met", "right"),
        Column("95 % CI", "right", optional=True),
        Column("TTFT p50/p90/p99", "right"),
        Column("TPOT p50/p90/p99", "right"),
        Column(""),
        Column("within SLO", "right", optional=True),
    ]
    rows = [row for point in curve.points for row in _point_rows(point)]
    said = [_saturation_sentence(curve), _knee_sentence(curve), _goodput_sentence(curve.goodput, plan)]
    facts = "served: requests ended per second; within SLO (in wide tables and --json): those that meet it."
    table = render_table(rows, columns, width, indent=2).split("\n")
    return [
        "Latency and throughput",
        *(line for fact in said for line in wrap(fact, width)),
        *table,
        *wrap(facts, width),
    ]


def _saturation_sentence(curve: Curve) -> str:
    if curve.saturation <= 0.0:
        return f"Saturated at every rate down to {rate(curve.points[0].rate)}."
    most = max(point.served for point in curve.points)
    said = (
        f"Saturation {rate(curve.saturation)}, to {percent(TOLERANCE)}: beyond it the fleet falls behind its arrivals."
    )
    if curve.saturation > MISMATCH * most:
        return f"{said} But it served {rate(most)} at most: the runs are too short to tell; ask for more --requests."
    return f"{said} It served {rate(most)} at most."


def _knee_sentence(curve: Curve) -> str:
    (point,) = [point for point in curve.points if point.rate == curve.knee]
    return (
        f"Knee {rate(point.rate)}: throughput over mean time in the system ({duration(point.e2e)}) is greatest here; "
        "beyond it the time grows faster, in proportion, than the throughput."
    )


def _point_rows(point: RatePoint) -> list[list[str]]:
    head = [significant(point.rate), significant(point.served)]
    tail = [_mark(point), significant(point.in_time)]
    return [
        [
            *(["", ""] if number else head),
            clean(one.name, 30),
            percent(one.attainment.share),
            f"{percent(one.attainment.low)}–{percent(one.attainment.high)}",
            three(one.ttft),
            three(one.tpot),
            *(["", ""] if number else tail),
        ]
        for number, one in enumerate(point.classes)
    ]


def _mark(point: RatePoint) -> str:
    return "overloaded" if point.overloaded else outcome_mark(point.outcome)


def outcome_mark(outcome: Outcome) -> str:
    """Write an outcome in a cell.

    >>> [outcome_mark(one) for one in Outcome]
    ['✓', 'missed', 'undecided']
    """
    return {Outcome.MEETS: "✓", Outcome.MISSES: "missed", Outcome.UNDECIDED: "undecided"}[outcome]


def three(values: Sequence[float]) -> str:
    """Write p50, p90 and p99 of four quantiles, in milliseconds or seconds.

    >>> three([0.1, 0.2, 0.3, 0.4])
    '100/200/400 ms'
    """
    shown = [values[k] for k in SHOWN]
    large = max((value for value in shown if np.isfinite(value)), default=0.0) >= 1.0
    return "/".join(significant(value * (1.0 if large else 1e3)) for value in shown) + (" s" if large else " ms")
