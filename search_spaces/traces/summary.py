"""What a trace says about a workload: lengths, arrivals, prefix sharing; and the workload made from it.

Lengths add up as exact counts per length and as a fine joint histogram with the mean of each cell. A prefix hit is an
input token that an infinite cache would hold when the request arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.lengths import Buckets, coarsen
from costmodel.prefix_cache import Times, from_quantiles, uniform_reuse
from costmodel.workload import FloatArray, Workload

from .arrivals import ArrivalStats
from .rows import MAX_TOKENS, NANOSECONDS, Columns, IntArray, Rows, TraceFormat

DEFAULT_BUCKETS = 48
_SHARE_UNITS = 1_000_000
"""A written share has six decimals; they sum to exactly 1 in these units."""
_STEPS = 64
"""Cells per octave of the joint histogram: each is at most 1/64 = 1.6 % wide, and lengths below 128 are exact."""
MAX_BLOCKS = 2**25
"""Blocks remembered at most (256 MiB); beyond it only blocks seen before still count."""
BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)
"""Tokens per hash block in use: Mooncake's first, then those of serving engines."""
FITTING_SHARE = 0.95
INTERVAL_EDGES = np.geomspace(1e-3, 1e7, 401)
"""Ends of the cells in which times between uses are counted, 40 in a decade [s]."""
MOST_FOUND = 0.999999
"""Of every prompt something is new [1]."""
REUSE_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Probabilities by which these times are written down."""

BlockArray = NDArray[np.uint64]


def cell_of(tokens: IntArray) -> IntArray:
    """Return the cell of each length [token]: the length itself below 128, then 64 cells per octave.

    >>> cell_of(np.array([5, 127, 128, 129, 130]))
    array([  5, 127, 128, 128, 129])
    """
    shift = np.maximum(np.frexp(tokens.astype(np.float64))[1].astype(np.int64) - 7, 0)
    return np.asarray(shift * _STEPS + (tokens >> shift), dtype=np.int64)


_CELLS = int(cell_of(np.array([MAX_TOKENS]))[0]) + 1


@dataclass(frozen=True, slots=True)
class JointHistogram:
    """Occupied cells: mean ISL and OSL of their requests [token], exact, and how many requests each holds."""

    isl: FloatArray
    osl: FloatArray
    requests: FloatArray


class LengthCounter:
    """Adds up the lengths of requests in bounded memory (40 MB and 8 bytes per distinct length)."""

    def __init__(self) -> None:
        self.isl_counts: IntArray = np.zeros(1, dtype=np.int64)
        self.osl_counts: IntArray = np.zeros(1, dtype=np.int64)
        self.total_counts: IntArray = np.zeros(1, dtype=np.int64)
        self.product = 0.0
        self._requests = np.zeros(_CELLS * _CELLS, dtype=np.int64)
        self._isl_sums = np.zeros(_CELLS * _CELLS, dtype=np.int64)
        self._osl_sums = np.zeros(_CELLS * _CELLS, dtype=np.int64)

    def add(self, rows: Rows) -> None:
        """Take in the lengths of `rows`."""
        self.isl_counts = _counted(self.isl_counts, rows.isl)
        self.osl_counts = _counted(self.osl_counts, rows.osl)
        self.product += float((rows.isl * rows.osl).astype(np.float64).sum())
        self.total_counts = _counted(self.total_counts, rows.isl + rows.osl)
        cell = cell_of(rows.isl) * _CELLS + cell_of(rows.osl)
        np.add.at(self._requests, cell, 1)
        np.add.at(self._isl_sums, cell, rows.isl)
        np.add.at(self._osl_sums, cell, rows.osl)

    @property
    def longest(self) -> int:
        """Longest ISL + OSL [token]."""
        return int(np.flatnonzero(self.total_counts)[-1])

    def joint(self) -> JointHistogram:
        """Return the cells that hold requests."""
        used = np.flatnonzero(self._requests)
        requests = self._requests[used].astype(np.float64)
        return JointHistogram(self._isl_sums[used] / requests, self._osl_sums[used] / requests, requests)


def quantile_of(counts: IntArray, probability: float) -> int:
    """Return the smallest length [token] that at least `probability` of the requests do not exceed; exact.

    >>> quantile_of(np.array([0, 2, 1, 1]), 0.5), quantile_of(np.array([0, 2, 1, 1]), 0.51)
    (1, 2)
    """
    total = int(counts.sum())
    # A count is whole: the rounding of probability x total must not lift it over the next one.
    rank = max(np.ceil(probability * total * (1 - 1e-12)), 1)
    return int(np.searchsorted(np.cumsum(counts), rank))


def moment_of(counts: IntArray, power: int) -> float:
    """Return the mean of length^power [token^power]; exact counts, so only the last digits round."""
    used = np.flatnonzero(counts)
    return float((counts[used] * used.astype(np.float64) ** power).sum()) / float(counts.sum())


def _counted(counts: IntArray, tokens: IntArray) -> IntArray:
    most = int(tokens.max())
    if most >= counts.size:
        counts = np.concatenate([counts, np.zeros(max(most + 1, 2 * counts.size) - counts.size, dtype=np.int64)])
    np.add.at(counts, tokens, 1)
    return counts


class PrefixCache:
    """An infinite prefix cache, fed request by request in the order of the file.

    A request hits the longest run of its first blocks that all appeared in earlier requests; the hit is
    blocks x block size tokens, at most the request's ISL (its last block is partly filled).
    """

    def __init__(self) -> None:
        self.block_tokens: int | None = None
        self.unfit = False
        self.full = False
        self.hit_tokens = 0
        self.input_tokens = 0
        self._seen: BlockArray = np.empty(0, dtype=np.uint64)
        self._recent: BlockArray = np.empty(0, dtype=np.uint64)
        self._seen_at: IntArray = np.empty(0, dtype=np.int64)
        self._recent_at: IntArray = np.empty(0, dtype=np.int64)
        self._intervals = np.zeros(INTERVAL_EDGES.size + 1, dtype=np.int64)

    @property
    def hit_share(self) -> float | None:
        """Share of the input tokens found [1]; None if the trace has no usable blocks."""
        return self.hit_tokens / self.input_tokens if self.input_tokens and not self.unfit else None

    @property
    def reuse_interval(self) -> dict[float, float] | None:
        """Time since the last use of the blocks that hit, by probability [s]; None where none did."""
        total = int(self._intervals.sum())
        if not total or self.unfit:
            return None
        upto = np.cumsum(self._intervals) / total
        bins = [int(np.searchsorted(upto, share - 1e-12)) for share in REUSE_SHARES]
        return {share: float(f"{INTERVAL_EDGES[min(at, INTERVAL_EDGES.size - 1)]:.4g}")
                for share, at in zip(REUSE_SHARES, bins, strict=True)}  # fmt: skip

    def look_up(self, rows: Rows) -> Rows:
        """Return the rows with hit_tokens filled in [token], and remember their blocks."""
        if rows.hash_ids is None or rows.hash_counts is None or self.unfit:
            self.unfit = True
            return rows
        if self.block_tokens is None:
            self.block_tokens = _block_size(rows.isl, rows.hash_counts)
            self.unfit = self.block_tokens is None
        if self.block_tokens is None:
            return rows
        blocks = self._leading_hits(rows.hash_ids, rows.hash_counts, rows.nanoseconds)
        hits = np.minimum(blocks * self.block_tokens, rows.isl)
        self.hit_tokens += int(hits.sum())
        self.input_tokens += int(rows.isl.sum())
        return replace(rows, hit_tokens=hits)

    def _leading_hits(self, ids: BlockArray, counts: IntArray, nanoseconds: IntArray) -> IntArray:
        """Return how many leading blocks of each row were seen in an earlier row, and count since when."""
        row = np.repeat(np.arange(counts.size), counts)
        distinct, first, place = np.unique(ids, return_index=True, return_inverse=True)
        seen_before = _contains(self._seen, distinct) | _contains(self._recent, distinct)
        missed = np.flatnonzero(~(seen_before[place] | (row[first][place] < row)))
        starts = np.cumsum(counts) - counts
        # The first miss at or after the start of each row; none before the row's end means that all blocks hit.
        following = np.append(missed, ids.size)[np.searchsorted(missed, starts)]
        hits = np.asarray(np.minimum(following - starts, counts), dtype=np.int64)
        times = nanoseconds[row]
        self._count_intervals(place, times, distinct, np.arange(ids.size) - starts[row] < hits[row])
        last = np.zeros(distinct.size, dtype=np.int64)
        np.maximum.at(last, place, times)
        for known, at in ((self._seen, self._seen_at), (self._recent, self._recent_at)):
            there = _contains(known, distinct)
            at[np.searchsorted(known, distinct[there])] = last[there]
        self._remember(distinct[~seen_before], last[~seen_before])
        return hits

    def _count_intervals(
        self, place: NDArray[np.intp], times: IntArray, distinct: BlockArray, hit: NDArray[np.bool_]
    ) -> None:
        """Count how long ago the blocks that hit were used; place: of each among the distinct ones."""
        before = np.full(distinct.size, -1, dtype=np.int64)
        for known, at in ((self._seen, self._seen_at), (self._recent, self._recent_at)):
            there = _contains(known, distinct)
            before[there] = at[np.searchsorted(known, distinct[there])]
        order = np.argsort(place, kind="stable")
        first = np.diff(place[order], prepend=-1) != 0
        last = np.where(first, before[place[order]], np.roll(times[order], 1))
        since = np.empty(times.size, dtype=np.float64)
        since[order] = (times[order] - last) / NANOSECONDS
        np.add.at(self._intervals, np.searchsorted(INTERVAL_EDGES, since[hit]), 1)

    def _remember(self, fresh: BlockArray, times: IntArray) -> None:
        if self._seen.size + self._recent.size + fresh.size > MAX_BLOCKS:
            self.full = True
            return
        self._recent, self._recent_at = _merged((self._recent, self._recent_at), (fresh, times))
        if self._recent.size > max(self._seen.size // 4, 2**16):
            self._seen, self._seen_at = _merged((self._seen, self._seen_at), (self._recent, self._recent_at))
            self._recent, self._recent_at = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)


def _merged(some: tuple[BlockArray, IntArray], others: tuple[BlockArray, IntArray]) -> tuple[BlockArray, IntArray]:
    """Blocks that differ, in ascending order, and when each was used last."""
    blocks, times = (np.concatenate(pair) for pair in zip(some, others, strict=True))
    order = np.argsort(blocks)
    return blocks[order], times[order]


def _contains(ordered: BlockArray, wanted: BlockArray) -> NDArray[np.bool_]:
    if not ordered.size:
        return np.zeros(wanted.size, dtype=np.bool_)
    place = np.minimum(np.searchsorted(ordered, wanted), ordered.size - 1)
    return np.asarray(ordered[place] == wanted)


def _block_size(isl: IntArray, counts: IntArray) -> int | None:
    """Return the first block size [token] that explains the block counts of nearly all rows."""
    for size in BLOCK_SIZES:
        whole, filled = isl // size, -(-isl // size)
        if np.mean((counts == filled) | (counts == whole)) >= FITTING_SHARE:
            return size
    return None


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace, read once.

    requests: those that count; dropped: rows that no engine can serve, left out (`Unservable`); too_long: others left
    out as longer than asked for; out_of_order: arrivals earlier than the line before; isl_counts, osl_counts,
    total_counts: requests by ISL, OSL and their sum [token]; max_tokens: longest ISL + OSL [token]; mean_isl_osl: mean
    product [token^2];
    prefix_hit_share: share of input tokens that an infinite prefix cache holds [1], None if the trace does not tell;
    prefix_block_tokens: tokens per hash block; reuse_interval: time since the last use of what hits, by probability
    [s]; notes: what a reader of the figures must know, one sentence each.
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
    reuse_interval: dict[float, float] | None
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
        share = (self.prefix_hit_share or 0.0) if prefix_hit_share is None else prefix_hit_share
        measured = prefix_hit_share is None and share > 0.0 and self.reuse_interval is not None
        share = min(share, MOST_FOUND) if measured else share
        return Workload(
            isl=thin.isl,
            osl=thin.osl,
            share=thin.share,
            request_rate=self._rate_or(request_rate),
            burstiness=self.burstiness if burstiness is None else burstiness,
            prefix_hit_share=share,
            max_tokens=self.max_tokens,
            reuse=uniform_reuse(thin.isl, share, from_quantiles(self.reuse_interval or {})) if measured else None,
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
        **({} if workload.reuse is None else {"reuse_interval": {"quantiles": quantiles_of(workload.reuse.pause)}}),
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


def quantiles_of(times: Times) -> dict[float, float]:
    """Times as workload.yaml states them, with four digits; those of a trace come out as they went in."""
    return {share: float(f"{np.interp(share, times.share, times.seconds):.4g}") for share in REUSE_SHARES}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
