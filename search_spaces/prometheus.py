r"""Histograms of an engine from the answer of a Prometheus range query, all replicas together.

The file is what /api/v1/query_range answers for the raw series (no rate, no sum), so that every series has its name:

    curl -G http://prometheus:9090/api/v1/query_range -d start=2026-05-01T08:00:00Z -d end=2026-05-01T20:00:00Z \
      -d step=60 --data-urlencode 'query={__name__=~"vllm:.+_(bucket|sum|total)"}' > prometheus.json

Answers of several queries may stand one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.errors import InputError, name_list, shown
from costmodel.workload import coarsen

from .benchmark_results import documents
from .quantities import rounded
from .trace_reader import TRACE_NAMES
from .trace_summary import workload_block

ROUNDED = 1e-9
"""Relative difference of a limit and a bucket bound that is only rounding [1]."""


class EngineSeries(StrEnum):
    """Metrics that are read; `NAMES` has the names that vLLM and SGLang use."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    GAP = "time between two tokens"
    E2E = "e2e"
    ISL = "prompt tokens"
    OSL = "generated tokens"


NAMES = {series: TRACE_NAMES["metrics"][series.name] for series in EngineSeries}
"""Their names in vLLM and SGLang; the first with observations counts."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram, summed over all series.

    time: ends of the steps [s since 1970]; bounds: upper ends of the buckets [unit of the metric], the last infinite;
    counts: observations by step and bucket; sum: of all observations, 0 where its series is not in the file.
    """

    name: str
    time: FloatArray
    bounds: FloatArray
    counts: FloatArray
    sum: float = 0.0

    @property
    def total(self) -> float:
        """Observations of the whole range."""
        return float(self.counts.sum())

    def share_within(self, limit: float) -> tuple[float, float]:
        """Least and largest share of observations within a limit: those in its own bucket may be on either side.

        >>> seen = Histogram("", np.array([60.0]), np.array([0.5, 1.0, np.inf]), np.array([[90.0, 8.0, 2.0]]))
        >>> seen.share_within(1.0), seen.share_within(0.8)
        ((0.98, 0.98), (0.9, 0.98))
        """
        low, high = replace(self, counts=self.counts.sum(axis=0, keepdims=True)).shares_within(limit)
        return float(low[0]), float(high[0])

    def shares_within(self, limit: float) -> tuple[FloatArray, FloatArray]:
        """The same of every step [1]; of one without observations 1."""
        lower, per_step = np.concatenate([[-np.inf], self.bounds[:-1]]), self.counts.sum(axis=1)
        whole, in_part = self.bounds <= limit * (1.0 + ROUNDED), lower < limit * (1.0 - ROUNDED)
        divisor = np.where(per_step > 0.0, per_step, 1.0)
        low, high = (self.counts[:, within].sum(axis=1) / divisor for within in (whole, in_part))
        return np.where(per_step > 0.0, low, 1.0), np.where(per_step > 0.0, high, 1.0)

    @property
    def step(self) -> float:
        """Seconds between two samples."""
        return float(np.median(np.diff(self.time))) if self.time.size > 1 else 0.0

    @property
    def busiest(self) -> float | None:
        """Observations per second in the busiest tenth of the time, without pause [1/s]; None for a single step."""
        if self.step <= 0.0:
            return None
        steps = -(-self.time.size // 10)
        return float(np.convolve(self.counts.sum(axis=1), np.ones(steps), "valid").max()) / (steps * self.step)

    @property
    def longest(self) -> float:
        """Upper end of the last bucket with observations, of the open one its lower end [unit of the metric]."""
        last = int(np.flatnonzero(self.counts.sum(axis=0))[-1])
        return float(self.bounds[last] if np.isfinite(self.bounds[last]) else self.bounds[last - 1])

    @property
    def mean(self) -> float:
        """Mean of the observations [unit of the metric]."""
        values, shares = self.cells()
        return float(values @ shares)

    def quantile(self, share: float) -> float:
        """The value that `share` of the observations do not exceed, evenly spread in their bucket [unit of the metric].

        >>> seen = Histogram("", np.array([60.0]), np.array([10.0, 20.0, np.inf]), np.array([[50.0, 50.0, 0.0]]))
        >>> seen.quantile(0.75)
        15.0
        """
        ends = np.concatenate([[0.0], np.minimum(self.bounds, self.longest)])
        shares = np.concatenate([[0.0], np.cumsum(self.counts.sum(axis=0))]) / self.total
        return float(np.interp(share, shares, ends))

    def cells(self) -> tuple[FloatArray, FloatArray]:
        """A value of every bucket that has observations, and their shares [1]; the mean is that of the series' sum.

        Values are middles, all multiplied by what they are off the mean; the open bucket counts as its lower end.
        """
        lower = np.concatenate([[0.0], self.bounds[:-1]])
        upper = np.where(np.isinf(self.bounds), lower, self.bounds)
        counts = self.counts.sum(axis=0)
        values, shares = ((lower + upper) / 2.0)[counts > 0.0], counts[counts > 0.0] / self.total
        return values * (self.sum / self.total / float(values @ shares) if self.sum > 0.0 else 1.0), shares


@dataclass(frozen=True, slots=True)
class Scrape:
    """All series of a file: by metric, the labels and the samples (time [s], value) of each."""

    file: str
    series: Mapping[str, tuple[tuple[Mapping[str, str], FloatArray], ...]]

    def histogram(self, series: EngineSeries) -> Histogram | None:
        """The histogram of the first name that has observations; None where none has."""
        for name in NAMES[series]:
            rows = self.series.get(f"{name}_bucket", ())
            histogram = _histogram(self.file, name, rows) if rows else None
            if histogram is not None and histogram.total > 0.0:
                sums = (_increases(samples[:, 1]).sum() for _, samples in self.series.get(f"{name}_sum", ()))
                return replace(histogram, sum=float(sum(sums)))
        return None

    def label_values(self, label: str) -> tuple[str, ...]:
        """Values of a label over all series, in the order of the file."""
        series = (labels for rows in self.series.values() for labels, _ in rows)
        return tuple(dict.fromkeys(labels[label] for labels in series if label in labels))

    def increase(self, name: str) -> float:
        """By how much a counter grew over the whole range, 0 where it is not in the file."""
        rows = (*self.series.get(f"{name}_total", ()), *self.series.get(name, ()))
        return float(sum(_increases(samples[:, 1]).sum() for _, samples in rows))


def read_scrape(path: Path) -> Scrape:
    """The series of a range query; InputError for a file that is none, or whose series have lost their names."""
    series: dict[str, list[tuple[Mapping[str, str], FloatArray]]] = {}
    where = str(path)
    for document in documents(path):
        where = document.where
        if document.content.get("status") == "error":
            raise document.error(f"Prometheus refused the query: {shown(document.content.get('error'))}")
        if document.text("status") != "success":
            raise document.error("is not the answer of a Prometheus query (status: success)")
        data = document.at("data")
        if data.text("resultType") != "matrix":
            kind = f"is {data.content.get('resultType')!r}, but must be 'matrix'"
            raise data.error(f"{kind}: use query_range, not query", "resultType")
        rows = data.content.get("result")
        for row in (data.item("result", index) for index in range(len(rows) if isinstance(rows, list) else 0)):
            labels = {key: value for key, value in row.at("metric").content.items() if isinstance(value, str)}
            name = labels.pop("__name__", "")
            if not name:
                raise row.error(
                    "has no __name__: query the series as they are, without rate(), sum() or histogram_quantile()",
                    "metric",
                )
            try:
                samples = [[float(time), float(value)] for time, value in row.content.get("values") or ()]
            except (TypeError, ValueError):
                raise row.error("must be pairs of a time and a number", "values") from None
            series.setdefault(name, []).append((labels, np.array(samples, dtype=np.float64).reshape(-1, 2)))
    if not series:
        raise InputError(f"{where}: the answer of the query has no series; check its selector and its time range")
    return Scrape(where, {name: tuple(rows) for name, rows in series.items()})


def _histogram(file: str, name: str, rows: Iterable[tuple[Mapping[str, str], FloatArray]]) -> Histogram | None:
    """Increases of cumulative buckets, added over all series; replicas may start, end and restart in the range."""
    bounds, cumulative = set[float](), dict[tuple[float, float], float]()
    for labels, samples in rows:
        try:
            bound = float(labels["le"])
        except (KeyError, ValueError):
            fault = f"a series of {name}_bucket has no label le with the end of its bucket"
            raise InputError(f"{file}: {fault}") from None
        bounds.add(bound)
        for time, increase in zip(samples[1:, 0].tolist(), _increases(samples[:, 1]).tolist(), strict=True):
            cumulative[time, bound] = cumulative.get((time, bound), 0.0) + increase
    if not cumulative:
        return None
    times, ends = sorted({time for time, _ in cumulative}), sorted(bounds)
    table = np.array([[cumulative.get((time, bound), 0.0) for bound in ends] for time in times])
    counts = np.maximum(np.diff(table, axis=1, prepend=0.0), 0.0)
    return Histogram(name, np.array(times), np.array(ends), counts)


def _increases(values: FloatArray) -> FloatArray:
    """Increases of a counter from sample to sample; after a restart it counts from 0.

    >>> _increases(np.array([5.0, 9.0, 2.0])).tolist()
    [4.0, 2.0]
    """
    steps = np.diff(values)
    return np.where(steps < 0.0, values[1:], steps)


def needed_series(scrape: Scrape, series: EngineSeries) -> Histogram:
    """The histogram, which must be there."""
    histogram = scrape.histogram(series)
    if histogram is None:
        names = name_list([f"{name}_bucket" for name in NAMES[series]])
        raise InputError(f"{scrape.file}: has no observations of {series.value}; query {names} over time with traffic")
    return histogram


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the engines' metrics say about a workload.

    steps: requests that ended in each step, of `step` seconds; prefix_hit_share: tokens found in the prefix cache over
    tokens looked up [1], None where its counters are not in the file; models: names under which engines serve.
    """

    isl: Histogram
    osl: Histogram
    steps: FloatArray
    step: float
    prefix_hit_share: float | None
    models: tuple[str, ...] = ()

    @property
    def request_rate(self) -> float:
        """Mean requests per second [1/s]."""
        return float(self.steps.sum()) / (self.steps.size * self.step)

    @property
    def burstiness(self) -> float:
        """Root of the dispersion of the counts of a step [1], without slow changes such as those of a day.

        The variance is half the mean squared difference of neighboring counts (von Neumann 1941).
        """
        if self.steps.size < LEAST_STEPS:
            return 1.0
        return math.sqrt(float((np.diff(self.steps) ** 2).mean()) / 2.0 / float(self.steps.mean()))

    @property
    def max_tokens(self) -> int:
        """Longest ISL + OSL that the buckets allow [token]."""
        return int(self.isl.longest + self.osl.longest)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know, one sentence each."""
        few = f"fewer than {LEAST_STEPS} steps do not tell burstiness; 1 (Poisson) is assumed"
        return (
            "lengths are known by bucket: quantiles are interpolated, and the largest is the upper end of a bucket.",
            "histograms tell no request's prompt together with its answer: their lengths are taken as independent.",
            *[f"{few}."] * (self.steps.size < LEAST_STEPS),
            *["query vllm:prefix_cache_(hits|queries)_total too: without them no prefix is taken as found."]
            * (self.prefix_hit_share is None),
        )

    def mapping(self, buckets: int, rate: float | None, most_tokens: int | None) -> dict[str, Any]:
        """The `workload:` block of workload.yaml as plain data."""
        (isl, prompts), (osl, answers) = self.isl.cells(), self.osl.cells()
        every_isl, every_osl = np.maximum(np.repeat(isl, osl.size), 1.0), np.maximum(np.tile(osl, isl.size), 1.0)
        return workload_block(
            coarsen(every_isl, every_osl, np.outer(prompts, answers).ravel(), buckets),
            request_rate=rounded(rate or self.request_rate),
            burstiness=rounded(self.burstiness),
            prefix_hit_share=rounded(self.prefix_hit_share or 0.0),
            max_tokens=min(self.max_tokens, most_tokens or self.max_tokens),
        )


LEAST_STEPS = 20
"""Steps of a range from which the dispersion of their counts tells burstiness; assumed."""


def read_traffic(path: Path) -> Traffic:
    """The workload that a range query of the engines' metrics tells."""
    scrape = read_scrape(path)
    isl, osl = needed_series(scrape, EngineSeries.ISL), needed_series(scrape, EngineSeries.OSL)
    if osl.time.size < 2:
        raise InputError(
            f"{scrape.file}: has {osl.time.size + 1} samples; a rate needs three, so choose a shorter step"
        )
    hits, queries = (scrape.increase(f"vllm:prefix_cache_{word}") for word in ("hits", "queries"))
    share, models = hits / queries if queries > 0.0 else None, scrape.label_values("model_name")
    return Traffic(isl, osl, osl.counts.sum(axis=1), osl.step, share, models)
