"""What a trace says about a workload: lengths, arrivals, prefix sharing; and the workload made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.errors import InputError
from costmodel.lengths import Buckets, coarsen
from costmodel.workload import Workload

from .arrivals import ArrivalStats
from .histogram import JointHistogram, moment_of, quantile_of
from .rows import Columns, IntArray, TraceFormat

DEFAULT_BUCKETS = 48
_SHARE_UNITS = 1_000_000
"""A written share has six decimals; they sum to exactly 1 in these units."""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace, read once.

    requests: those that count; dropped: rows that no engine can serve, left out (`Unservable`); too_long: others left
    out as longer than asked for; out_of_order: arrivals earlier than the line before; isl_counts, osl_counts,
    total_counts: requests by ISL, OSL and their sum [token]; max_tokens: longest ISL + OSL [token]; mean_isl_osl: mean
    product [token^2];
    prefix_hit_share: share of input tokens that an infinite prefix cache holds [1], None if the trace does not tell;
    prefix_block_tokens: tokens per hash block; notes: what a reader of the figures must know, one sentence each.
    """

    path: str
    format: TraceFormat
    columns: Columns
    requests: int
    dropped: int
    too_long: int
    out_of_order: int
    arrivals: ArrivalStats
    isl_counts: IntArray
    osl_counts: IntArray
    total_counts: IntArray
    histogram: JointHistogram
    mean_isl_osl: float
    max_tokens: int
    prefix_hit_share: float | None
    prefix_block_tokens: int | None
    notes: tuple[str, ...]

    @property
    def mean_isl(self) -> float:
        """Mean input length [token]."""
        return moment_of(self.isl_counts, 1)

    @property
    def mean_osl(self) -> float:
        """Mean output length [token]."""
        return moment_of(self.osl_counts, 1)

    @property
    def mean_isl_squared(self) -> float:
        """Second moment of the input length [token^2]."""
        return moment_of(self.isl_counts, 2)

    @property
    def mean_osl_squared(self) -> float:
        """Second moment of the output length [token^2]."""
        return moment_of(self.osl_counts, 2)

    @property
    def request_rate(self) -> float | None:
        """Mean arrivals per second [1/s]; None if all came at one moment."""
        return self.arrivals.mean_rate

    @property
    def burstiness(self) -> float:
        """Coefficient of variation of the inter-arrival times [1] that a plan should use."""
        return self.arrivals.burstiness

    def isl_quantile(self, probability: float) -> int:
        """Return the input length [token] that `probability` of the requests do not exceed; exact."""
        return quantile_of(self.isl_counts, probability)

    def osl_quantile(self, probability: float) -> int:
        """Return the output length [token] that `probability` of the requests do not exceed; exact."""
        return quantile_of(self.osl_counts, probability)

    def longer_than(self, tokens: int) -> int:
        """Return how many requests have an ISL + OSL above `tokens` [token]; exact."""
        return int(self.total_counts[tokens + 1 :].sum())

    def bucketed(self, buckets: int = DEFAULT_BUCKETS) -> Buckets:
        """Return the joint histogram in at most `buckets` buckets; total share and mean lengths are exact."""
        return coarsen(self.histogram.isl, self.histogram.osl, self.histogram.requests, buckets)

    def to_workload(
        self,
        buckets: int = DEFAULT_BUCKETS,
        request_rate: float | None = None,
        burstiness: float | None = None,
        prefix_hit_share: float | None = None,
    ) -> Workload:
        """Return the trace as a workload; what is given replaces what the trace says."""
        thin = self.bucketed(buckets)
        return Workload(
            isl=thin.isl,
            osl=thin.osl,
            share=thin.share,
            request_rate=self._rate_or(request_rate),
            burstiness=self.burstiness if burstiness is None else burstiness,
            prefix_hit_share=(self.prefix_hit_share or 0.0) if prefix_hit_share is None else prefix_hit_share,
            max_tokens=self.max_tokens,
        )

    def _rate_or(self, stated: float | None) -> float:
        rate = self.request_rate if stated is None else stated
        if rate is None:
            raise InputError(
                f"{self.path}: all requests arrive at the same time, so the trace has no rate; state one (--rate)"
            )
        return rate


def workload_mapping(
    summary: TraceSummary, buckets: int = DEFAULT_BUCKETS, request_rate: float | None = None
) -> dict[str, Any]:
    """Return the `workload:` block of workload.yaml as plain data; shares have six decimals and sum to 1."""
    workload = summary.to_workload(buckets, request_rate)
    rows = compact_rows(Buckets(workload.isl, workload.osl, workload.share))
    return {
        "request_rate": _rounded(workload.request_rate),
        "burstiness": _rounded(workload.burstiness),
        "prefix_hit_share": _rounded(workload.prefix_hit_share),
        "max_tokens": workload.max_tokens,
        "lengths": {"histogram": [{"isl": isl, "osl": osl, "share": share} for isl, osl, share in rows]},
    }


def compact_rows(buckets: Buckets) -> list[tuple[float, float, float]]:
    """Return (isl, osl, share) rows to write down: lengths with two decimals, shares in whole millionths.

    The millionths left over by rounding down go to the largest remainders, so that the sum is 1.
    """
    exact = buckets.share * _SHARE_UNITS
    units = np.floor(exact).astype(np.int64)
    short = _SHARE_UNITS - int(units.sum())
    units[np.argsort(units - exact, kind="stable")[:short]] += 1
    return [
        (round(float(isl), 2), round(float(osl), 2), int(unit) / _SHARE_UNITS)
        for isl, osl, unit in zip(buckets.isl, buckets.osl, units, strict=True)
        if unit
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
