"""The metrics of a request that an SLO may limit: one table, from which all else follows.

A metric is added by a member of `Metric` and its row in `METRICS`, a property of that name of
`simulator.metrics.Result`, which measures it, and its formula in `optimizer.fleets.evaluate`. One of the whole
request needs no formula: its distribution follows from those of the first and of the later tokens.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from .units import DAY, SECONDS_PER_HOUR
from .words import join_words

GAP_SHARE: Final = 0.99
"""Share of a request's gaps between tokens that its ITL p99 covers [1]."""


class Metric(StrEnum):
    """A latency of one request [s]; the value is its key in the workload file and its property of a `Result`."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    ITL_P99 = "itl_p99"
    NORMALIZED_LATENCY = "normalized_latency"


class Scope(StrEnum):
    """What time of a request a metric measures: that to its first token, that of later tokens, or both together."""

    FIRST = "first"
    LATER = "later"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric in the table.

    scope: what it measures; label: its name in tables; most: greatest limit [s]; plain: the greatest limit that may be
    written without a unit [s], as a larger number reads as milliseconds just as well; span: a usual range of limits;
    rounding: by how much more than its limit still keeps it [1]; per_token: whether it is the time of the whole request
    over OSL.
    """

    scope: Scope
    label: str
    most: float
    plain: float
    span: str
    rounding: float = 0.0
    per_token: bool = False


METRICS: Final[Mapping[Metric, MetricRow]] = MappingProxyType(
    {
        Metric.TTFT: MetricRow(Scope.FIRST, "TTFT", DAY, 10.0, "300ms:2s"),
        Metric.TPOT: MetricRow(Scope.LATER, "TPOT", SECONDS_PER_HOUR, 1.0, "20ms:80ms", rounding=1e-9),
        Metric.E2E: MetricRow(Scope.WHOLE, "e2e", 7.0 * DAY, 600.0, "5s:30s"),
        Metric.ITL_P99: MetricRow(Scope.LATER, "ITL p99", SECONDS_PER_HOUR, 1.0, "50ms:200ms", rounding=1e-9),
        Metric.NORMALIZED_LATENCY: MetricRow(
            Scope.WHOLE, "normalized latency", SECONDS_PER_HOUR, 1.0, "30ms:200ms", per_token=True
        ),
    }
)
"""Every metric, in the order in which they are shown."""

SHOWN_ALWAYS: Final = (Metric.TTFT, Metric.TPOT, Metric.E2E)
"""Metrics that are stated of every class that is simulated or measured, limited or not."""
OWN_FIELDS: Final = (Metric.TTFT, Metric.TPOT)
"""Metrics that records have fields of their own for, as every class has them; the others stand in `metrics`."""


def limits_of(**limits: float | None) -> dict[Metric, float]:
    """Limits by metric [s], in the order of the table; None and infinity are none.

    >>> limits_of(tpot=0.05, ttft=1.0, e2e=None)
    {<Metric.TTFT: 'ttft'>: 1.0, <Metric.TPOT: 'tpot'>: 0.05}
    """
    by_metric = {Metric(name): limit for name, limit in limits.items() if limit is not None and not math.isinf(limit)}
    return {metric: by_metric[metric] for metric in Metric if metric in by_metric}


def metrics_of(scope: Scope) -> tuple[Metric, ...]:
    """The metrics of a scope, in the order of the table.

    >>> metrics_of(Scope.LATER)
    (<Metric.TPOT: 'tpot'>, <Metric.ITL_P99: 'itl_p99'>)
    """
    return tuple(metric for metric, row in METRICS.items() if row.scope is scope)


def limit_names(metrics: Container[Metric], scope: Scope) -> str:
    """Names of the limits that late tokens of a scope can break: the scope's own, and those of the whole request.

    >>> limit_names([Metric.TTFT, Metric.TPOT, Metric.E2E], Scope.LATER)
    'TPOT or e2e'
    """
    scopes = (scope, Scope.WHOLE)
    return join_words([row.label for metric, row in METRICS.items() if metric in metrics and row.scope in scopes], "or")


BOUNDING: Final = ((Metric.TTFT, Metric.TPOT), *((metric,) for metric in metrics_of(Scope.WHOLE)))
"""Metrics whose limits together bound the time of a request; a class needs those of a row here."""
