"""What a trace says about a workload: arrivals, lengths, prefix sharing; and the workload made from it.

A prefix hit is an input token that an infinite cache would hold when the request arrives.

Traces of sessions say which turns these have, and when and how long they are. Two kinds of JSON lines are known. With
`session_id` (AIPerf, Mooncake) the first turn of a session has a `timestamp` and later ones a `delay` after the answer
before [ms]; lengths are those of the new tokens. With `chat_id` and `parent_chat_id` (Alibaba's Bailian traces) every
turn has a `timestamp` [s], and its input is all that was before.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.errors import InputError, shown
from costmodel.prefix_cache import TimeDistribution, from_quantiles, uniform_reuse
from costmodel.units import MILLI
from costmodel.words import percentage, plural
from costmodel.workload import Buckets, Workload, coarsen, whole_parts

from .problem import LEAST_RECORDED
from .quantities import rounded
from .trace_reader import (
    AUTO,
    MAX_TOKENS,
    NANOSECONDS,
    OWN_COLUMNS,
    ArrivalUnit,
    Columns,
    Progress,
    Rows,
    parse_object,
    read_lines,
    read_rows,
    servable,
)

SLOT_SECONDS = 10
MAX_SLOTS = 16_000_000
"""Five years of slots."""
PEAK_WINDOWS = (10, 60, 600, 3600)
"""Windows of the peak rates [s]; those longer than the trace are left out."""
TIE_SHARE = 0.2
"""Share of arrivals at the very time of their predecessor from which the clock is taken as too coarse for gaps."""
LEAST_GAPS = 20
"""One of so many gaps of a Poisson process is longer than all the others together in 1 of 26,000 traces."""
MOST_OF_TRACE = 0.5
"""Share of a trace's duration from which on one gap rules its rate; assumed."""
LEAST_WINDOW = 60
"""Shorter peaks [s] are what burstiness tells of."""
NOTABLE = 0.1
"""How far a peak is above a rate, as a share of it, before a plan for that rate is called too small; assumed."""
MOST_DEVIATIONS = 3.0
"""Standard deviations by which the count in the busiest of many windows may be above the mean by chance; assumed."""
WAVY_CV = 3.0
"""CV of the gaps from which the summary says that it is ruled by pauses [1]."""
_BINS_PER_OCTAVE = 16
DEFAULT_BUCKETS = 48
_SHARE_UNITS = 1_000_000
"""A written share has six decimals; they sum to exactly 1 in these units."""
_STEPS = 64
"""Cells per octave of the joint histogram: each is at most 1/64 = 1.6 % wide, and lengths below 128 are exact."""
BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)
"""Tokens per hash block in use: Mooncake's first, then those of serving engines."""
FITTING_SHARE = 0.95
INTERVAL_EDGES = np.geomspace(1e-3, 1e7, 401)
"""Ends of the cells in which times between uses are counted, 40 in a decade [s]."""
MOST_FOUND = 0.999999
"""Of every prompt something is new [1]."""
REUSE_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Probabilities by which these times are written down."""


@dataclass(frozen=True, slots=True)
class ArrivalStats:
    """What is known of the arrivals.

    duration: first to last arrival [s]; mean_rate [1/s], None if all came at once; gap_cv: coefficient of variation
    of the gaps as recorded [1]; longest_gap [s]; gap_lines: lines of the file of the requests before and after it, the
    later in time second; tie_share: share of gaps that are 0 [1]; quantum: step of a coarse
    clock [s] or None; dispersion: variance over mean of the counts per quantum [1] or None; burstiness: CV of gaps
    that a plan should use [1]; peak_rate: highest rate [1/s] by window [s].
    """

    requests: int
    duration: float
    mean_rate: float | None
    gap_cv: float | None
    longest_gap: float
    tie_share: float
    quantum: float | None
    dispersion: float | None
    burstiness: float
    peak_rate: Mapping[int, float]
    gap_lines: tuple[int, int] = field(default=(0, 0), compare=False)  # where it stands is no figure of the arrivals

    @property
    def rate_without_pause(self) -> float | None:
        """Mean rate [1/s] less the longest gap, where that is most of the trace and not by chance; else None."""
        if self.requests <= LEAST_GAPS or not self.longest_gap > MOST_OF_TRACE * self.duration:
            return None
        rest = self.duration - self.longest_gap
        return (self.requests - 2) / rest if rest > 0 else None

    def busy_window(self, rate: float) -> tuple[int, float] | None:
        """The long window [s] with its peak rate [1/s] where that is well above a rate [1/s], and not by chance.

        Long is the longest window of a minute or more that the trace holds twice. The count in a window of w seconds
        has a standard deviation of CV sqrt(rate w), as that of a renewal process has for long windows (Cox 1962).
        """
        long = [window for window in self.peak_rate if window >= LEAST_WINDOW]
        if not long:
            return None
        window = max(long)
        peak = self.peak_rate[window]
        chance = MOST_DEVIATIONS * self.burstiness * math.sqrt(rate / window)
        return (window, peak) if peak > rate * (1.0 + NOTABLE) and peak > rate + chance else None


def arrival_stats(rows: Rows, where: str) -> ArrivalStats:
    """The statistics of rows in order of arrival; where: opens a refusal."""
    time, gaps = rows.nanoseconds, np.diff(rows.nanoseconds)
    duration = float(time[-1] - time[0]) / NANOSECONDS
    slots = _slots(time, where)
    mean = float(gaps.mean()) if gaps.size else 0.0
    gap_cv = float(gaps.std()) / mean if mean > 0.0 else None
    tie_share = float(np.mean(gaps == 0)) if gaps.size else 0.0
    rate = gaps.size / duration if duration > 0 else None
    quantum = dispersion = None
    if tie_share > TIE_SHARE and duration > 0:  # the clock's step: the mean of the gaps about as long as the shortest
        steps = gaps[gaps > 0]
        bins = (np.log2(steps) * _BINS_PER_OCTAVE).astype(np.int64)
        alike = bins == np.quantile(bins, 0.05, method="inverted_cdf")
        quantum = float(steps[alike].mean()) / NANOSECONDS
        rate = len(rows) / (duration + quantum)
        dispersion = _dispersion(gaps, duration, quantum)
    cv = gap_cv if dispersion is None else math.sqrt(dispersion)
    longest = int(np.argmax(gaps)) if gaps.size else 0
    total = np.concatenate([[0], np.cumsum(slots)])
    widths = {window: window // SLOT_SECONDS for window in PEAK_WINDOWS if 2 * window <= duration}
    return ArrivalStats(
        requests=len(rows),
        duration=duration,
        mean_rate=rate,
        gap_cv=gap_cv,
        longest_gap=float(gaps[longest]) / NANOSECONDS if gaps.size else 0.0,
        tie_share=tie_share,
        quantum=quantum,
        dispersion=dispersion,
        burstiness=1.0 if cv is None else cv,
        peak_rate={window: float((total[width:] - total[:-width]).max() / window) for window, width in widths.items()},
        gap_lines=(int(rows.line[longest]), int(rows.line[longest + 1])) if gaps.size else (0, 0),
    )


def _slots(time: IntArray, where: str) -> IntArray:
    """Arrivals in slots of SLOT_SECONDS since the first."""
    slots = (time - time[0]) // (SLOT_SECONDS * NANOSECONDS)
    if slots[-1] >= MAX_SLOTS:
        years = (int(slots[-1]) + 1) * SLOT_SECONDS / (365 * 86400)
        raise InputError(f"{where}: the trace spans {years:.0f} years; check the unit of the arrivals")
    return np.bincount(slots)


def _dispersion(gaps: IntArray, duration: float, quantum: float) -> float:
    """Index of dispersion of counts [1], variance over mean of the arrivals per clock step.

    For a renewal process it tends to the squared CV of the gaps as the step grows over the mean gap.
    """
    runs = np.diff(np.flatnonzero(gaps), prepend=-1, append=gaps.size)  # requests that come together
    steps = round(duration / quantum) + 1
    mean = (gaps.size + 1) / steps
    return max(float((runs**2).sum()) / steps - mean**2, 0.0) / mean


def arrival_notes(arrivals: ArrivalStats) -> Iterator[str]:
    """A coarse clock, one pause that rules the trace, or waves; whatever the figures alone do not tell."""
    rate = arrivals.rate_without_pause
    if rate is not None:  # one gap is most of the trace, as a wrong timestamp makes it
        before, after = arrivals.gap_lines
        share = percentage(arrivals.longest_gap / arrivals.duration)
        yield (
            f"{share} of the trace is one gap of {arrivals.longest_gap:,.0f} s without a request, between those of "
            f"line {before:,} and line {after:,}: without it the rate is {rate:.3g} req/s, and rate and burstiness "
            "above tell little. If a timestamp is wrong there, mend it or leave the line out."
        )
    if arrivals.quantum is not None and arrivals.dispersion is not None:
        yield (
            f"{percentage(arrivals.tie_share)} of the arrivals share the time of the one before "
            f"(over {percentage(TIE_SHARE)}): the clock steps by {arrivals.quantum:.4g} s, so burstiness "
            f"{arrivals.burstiness:.2f} is the root of the dispersion of counts per step, not the CV of the "
            f"recorded gaps ({arrivals.gap_cv or 0:.2f})."
        )
    elif arrivals.gap_cv is None:
        yield "too few distinct arrivals to measure burstiness; 1 (Poisson) is assumed."
    elif arrivals.gap_cv > WAVY_CV and rate is None:
        yield (
            f"the gaps between arrivals vary by {arrivals.gap_cv:.1f} times their mean (longest pause "
            f"{arrivals.longest_gap:.0f} s): requests come in waves, so look at the peak rates too."
        )


def cell_of(tokens: IntArray) -> IntArray:
    """Return the cell of each length [token]: the length itself below 128, then 64 cells per octave.

    >>> cell_of(np.array([5, 127, 128, 129, 130]))
    array([  5, 127, 128, 128, 129])
    """
    shift = np.maximum(np.frexp(tokens.astype(np.float64))[1].astype(np.int64) - 7, 0)
    return np.asarray(shift * _STEPS + (tokens >> shift), dtype=np.int64)


_CELLS = int(cell_of(np.array([MAX_TOKENS]))[0]) + 1


def prefix_hits(rows: Rows, size: int | None) -> tuple[float | None, dict[float, float] | None]:
    """Share of the input tokens that an infinite prefix cache holds [1], and the times since the last use of what hits.

    Without blocks the share is what the engines of the log found, if it says so. Else request by request in the order
    of the file; size: tokens of a hash block, None where there are none. A request hits the longest run of its first
    blocks that all appeared in earlier requests; the hit is blocks x block size tokens, at most the request's ISL (its
    last block is partly filled).
    """
    if size is None or rows.hash_ids is None or rows.hash_counts is None:
        if rows.cached is None or (rows.cached < 0).all():
            return None, None
        return int(np.clip(rows.cached, 0, rows.isl).sum()) / int(rows.isl.sum()), None
    counts = rows.hash_counts
    row = np.repeat(np.arange(counts.size), counts)
    _, first, place = np.unique(rows.hash_ids, return_index=True, return_inverse=True)
    misses = np.flatnonzero(row[first][place] == row)
    starts = np.cumsum(counts) - counts
    # The first miss at or after the start of each row; none before the row's end means that all blocks hit.
    following = np.append(misses, row.size)[np.searchsorted(misses, starts)]
    hits = np.minimum(following - starts, counts)
    tokens = int(np.minimum(hits * size, rows.isl).sum())
    hit, share = np.arange(row.size) - starts[row] < hits[row], tokens / int(rows.isl.sum())
    if not hit.any():
        return share, None
    times, order, since = rows.nanoseconds[row], np.argsort(place, kind="stable"), np.empty(row.size)
    since[order] = np.diff(times[order], prepend=0) / NANOSECONDS  # a block's first use is no hit
    counts = np.bincount(np.searchsorted(INTERVAL_EDGES, since[hit]), minlength=INTERVAL_EDGES.size + 1)
    upto = np.cumsum(counts) / counts.sum()
    bins = [min(int(np.searchsorted(upto, share - 1e-12)), INTERVAL_EDGES.size - 1) for share in REUSE_SHARES]
    return share, {level: rounded(INTERVAL_EDGES[cell]) for level, cell in zip(REUSE_SHARES, bins, strict=True)}


def block_size(rows: Rows) -> int | None:
    """The first block size [token] that explains the block counts of nearly all rows; None where there is none."""
    counts = rows.hash_counts
    for size in () if counts is None else BLOCK_SIZES:
        whole, rounded_up = rows.isl // size, -(-rows.isl // size)
        if np.mean((counts == rounded_up) | (counts == whole)) >= FITTING_SHARE:
            return size
    return None


@dataclass(frozen=True)
class TraceSummary:
    """A trace, read once.

    rows: those that count, in order of arrival; left_out: in words, the rows that no engine can serve; dropped: how
    many; too_long: requests left out as longer than `most_tokens` [token]; out_of_order: arrivals earlier than the line
    before. Of an infinite prefix cache, or of that of the log's engines, None where the trace does not tell:
    prefix_hit_share: share of the input tokens that it holds [1]; block_tokens: tokens of a hash block; reuse_interval:
    time since the last use of what hits, by probability [s].
    """

    path: Path
    format: str
    columns: Columns
    rows: Rows
    left_out: str
    dropped: int
    most_tokens: int
    too_long: int
    out_of_order: int
    arrivals: ArrivalStats
    prefix_hit_share: float | None
    block_tokens: int | None
    reuse_interval: Mapping[float, float] | None

    @property
    def mean_isl(self) -> float:
        """Mean input length [token]."""
        return float(self.rows.isl.mean())

    @property
    def mean_osl(self) -> float:
        """Mean output length [token]."""
        return float(self.rows.osl.mean())

    @property
    def max_tokens(self) -> int:
        """Longest ISL + OSL [token]."""
        return int((self.rows.isl + self.rows.osl).max())

    @property
    def tells_waves(self) -> bool:
        """Whether it has requests enough to be simulated as they came."""
        return self.arrivals.requests >= LEAST_RECORDED and self.arrivals.duration > 0.0

    @cached_property
    def _cells(self) -> Buckets:
        """The joint histogram: mean ISL and OSL of the requests of every cell, exact, and how many it holds."""
        cell = cell_of(self.rows.isl) * _CELLS + cell_of(self.rows.osl)
        _, place, requests = np.unique(cell, return_inverse=True, return_counts=True)
        isl, osl = (np.bincount(place, weights=tokens) / requests for tokens in (self.rows.isl, self.rows.osl))
        return Buckets(isl, osl, requests.astype(np.float64))

    def bucketed(self, buckets: int = DEFAULT_BUCKETS) -> Buckets:
        """Return the joint histogram in at most `buckets` buckets; total share and mean lengths are exact."""
        return coarsen(self._cells.isl, self._cells.osl, self._cells.share, buckets)

    def to_workload(
        self,
        buckets: int = DEFAULT_BUCKETS,
        request_rate: float | None = None,
        burstiness: float | None = None,
        prefix_hit_share: float | None = None,
    ) -> Workload:
        """Return the trace as a workload; what is given replaces what the trace says."""
        rate = self.arrivals.mean_rate if request_rate is None else request_rate
        if rate is None:
            sentence = "all requests arrive at the same time, so the trace has no rate; state one (--rate)"
            raise InputError(f"{self.path}: {sentence}")
        thin = self.bucketed(buckets)
        share = (self.prefix_hit_share or 0.0) if prefix_hit_share is None else prefix_hit_share
        has_reuse = prefix_hit_share is None and share > 0.0 and self.reuse_interval is not None
        share = min(share, MOST_FOUND) if has_reuse else share
        return Workload(
            isl=thin.isl,
            osl=thin.osl,
            share=thin.share,
            request_rate=rate,
            burstiness=self.arrivals.burstiness if burstiness is None else burstiness,
            prefix_hit_share=share,
            max_tokens=self.max_tokens,
            reuse=uniform_reuse(thin.isl, share, from_quantiles(dict(self.reuse_interval or {})))
            if has_reuse
            else None,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know, one sentence each."""
        notes = [f"{self.left_out}; no figure counts them."] * bool(self.dropped)
        if self.too_long:
            has, are = ("has", "is") if self.too_long == 1 else ("have", "are")
            most = f"{has} more than {self.most_tokens:,} tokens (ISL + OSL)"
            notes.append(f"{plural(self.too_long, 'request')} {most} and {are} left out of all figures.")
        if self.out_of_order:
            subject = "1 arrival is" if self.out_of_order == 1 else f"{self.out_of_order} arrivals are"
            notes.append(f"{subject} earlier than the line before; the trace was sorted by arrival.")
        notes += arrival_notes(self.arrivals)
        if self.prefix_hit_share is not None and self.block_tokens is None:
            notes.append(
                "Prefix hits are those of the engines that wrote the log; another fleet's caches may hold more or less."
            )
        if self.block_tokens is None and self.rows.hash_ids is not None and self.format in OWN_COLUMNS:
            notes.append("hash_ids fit no known block size; the prefix-hit share is unknown.")
        return tuple(notes)


def read_trace(
    path: str | os.PathLike[str],
    format: str = AUTO,  # noqa: A002 - the word that workload.yaml uses
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    most_tokens: int = 2 * MAX_TOKENS,
) -> TraceSummary:
    """Read a trace and return what it says; arguments as for `read_rows`.

    Rows that no engine can serve are left out; InputError where they are many. most_tokens: requests whose ISL + OSL
    [token] is above it are left out too: no engine would take them, nor cache their prefixes.
    """
    path = Path(path)
    form, columns_of, every_row = read_rows(path, format, columns, limit, progress)
    requests, left_out = servable(path, every_row, columns_of)
    fits = requests.isl + requests.osl <= most_tokens
    rows, too_long = requests.pick(np.flatnonzero(fits)), int(np.count_nonzero(~fits))
    if not len(rows):
        raise InputError(f"{path}: the trace is empty: it has only {too_long} of more than {most_tokens:,} tokens")
    in_order = rows.pick(np.argsort(rows.nanoseconds, kind="stable"))
    block_tokens = block_size(rows)
    hit_share, reuse_interval = prefix_hits(rows, block_tokens)
    return TraceSummary(
        path=path,
        format=form,
        columns=columns_of,
        rows=in_order,
        left_out=left_out,
        dropped=len(every_row) - len(requests),
        most_tokens=most_tokens,
        too_long=too_long,
        out_of_order=int(np.count_nonzero(np.diff(rows.nanoseconds) < 0)),
        arrivals=arrival_stats(in_order, str(path)),
        prefix_hit_share=hit_share,
        block_tokens=block_tokens,
        reuse_interval=reuse_interval,
    )


def workload_mapping(
    summary: TraceSummary, buckets: int = DEFAULT_BUCKETS, request_rate: float | None = None
) -> dict[str, Any]:
    """Return the `workload:` block of workload.yaml as plain data; shares have six decimals and sum to 1."""
    workload = summary.to_workload(buckets, request_rate)
    reuse = {} if workload.reuse is None else {"reuse_interval": {"quantiles": quantiles_of(workload.reuse.pause)}}
    return workload_block(
        Buckets(workload.isl, workload.osl, workload.share),
        request_rate=rounded(workload.request_rate),
        burstiness=rounded(workload.burstiness),
        prefix_hit_share=rounded(workload.prefix_hit_share),
        **reuse,
        max_tokens=workload.max_tokens,
    )


def workload_block(buckets: Buckets, **scalars: Any) -> dict[str, Any]:
    """The `workload:` block of workload.yaml as plain data, around a histogram: lengths with two decimals.

    Shares are in whole millionths, which sum to 1.
    """
    units = whole_parts(buckets.share * _SHARE_UNITS)
    rows = [
        {"isl": round(float(isl), 2), "osl": round(float(osl), 2), "share": int(unit) / _SHARE_UNITS}
        for isl, osl, unit in zip(buckets.isl, buckets.osl, units, strict=True)
        if unit
    ]
    return {**scalars, "lengths": {"histogram": rows}}


def quantiles_of(times: TimeDistribution) -> dict[float, float]:
    """Times as workload.yaml states them, with four digits; those of a trace come out as they went in."""
    return {share: rounded(float(np.interp(share, times.share, times.seconds))) for share in REUSE_SHARES}


def trace_source(summary: TraceSummary, folder: Path) -> dict[str, Any]:
    """How a workload.yaml in a folder names a trace."""
    source: dict[str, Any] = {"path": os.path.relpath(summary.path, folder)}
    if summary.format not in OWN_COLUMNS:
        names, unit = summary.columns, summary.columns.unit
        columns = {"arrival": names.arrival, "isl": names.isl, "osl": names.osl}
        columns |= {} if unit is ArrivalUnit.AUTO else {"arrival_unit": unit.value}
        source |= {"format": summary.format, "columns": columns}
    return source


def spread(arrival: FloatArray, stats: ArrivalStats) -> FloatArray:
    """Arrivals [s] of a trace whose clock is too coarse for gaps, those of one tick anywhere in it; others as they are.

    Else the requests of some seconds would come at one moment.
    """
    if stats.quantum is None:
        return arrival
    return np.sort(arrival + np.random.default_rng(0).uniform(0.0, stats.quantum, arrival.size))


PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Quantiles by which a distribution is written down."""
LEAST_PAUSE = 1e-3
"""As a shorter pause is written [s]."""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """Sessions of a trace, read once.

    starts: of the sessions [s]; turns (sessions,); pause: before all turns but the first [s]; user, answer (requests,):
    new tokens and output tokens of every turn [token]; answers_in: whether the pauses have the time of the answer
    before in them.
    """

    path: str
    starts: FloatArray
    turns: FloatArray
    pause: FloatArray
    user: FloatArray
    answer: FloatArray
    answers_in: bool

    @property
    def rate(self) -> float | None:
        """New sessions [1/s]; None if all began at one moment."""
        span = float(np.ptp(self.starts))
        return (self.starts.size - 1) / span if span > 0.0 else None

    def mapping(self, request_rate: float | None = None) -> dict[str, Any]:
        """The `workload:` block of workload.yaml as plain data; request_rate: to plan for, if not the trace's [1/s]."""
        rate = self.rate
        if rate is None and request_rate is None:
            raise InputError(f"{self.path}: all sessions begin at the same time; state a rate of requests (--rate)")
        pauses = _quantiles(np.maximum(self.pause, LEAST_PAUSE)) if self.pause.size else {"fixed": LEAST_PAUSE}
        sessions = {
            "turns": _quantiles(self.turns),
            "think_time": {"mean": pauses["fixed"]} if "fixed" in pauses else pauses,
            "user_tokens": _quantiles(np.maximum(self.user, 1.0)),
            "answer_tokens": _quantiles(np.maximum(self.answer, 1.0)),
        }
        if request_rate is not None or rate is None:
            return {"request_rate": request_rate, "sessions": sessions}
        return {"sessions": {"rate": rounded(rate)} | sessions}


def _quantiles(values: FloatArray) -> dict[str, Any]:
    """A distribution as workload.yaml states one."""
    points = np.quantile(values, PROBABILITIES)
    if points[0] == points[-1]:
        return {"fixed": rounded(points[0])}
    return {"quantiles": {f"{p:g}": rounded(x) for p, x in zip(PROBABILITIES, points, strict=True)}}


def is_session_trace(path: Path) -> bool:
    """Whether the first line of a file is a turn of a session; what cannot be read is left to who reads it."""
    try:
        _, line = next(read_lines(path), (1, b""))
        return line.lstrip().startswith(b"{") and _kind(parse_object(line)) is not None
    except InputError:
        return False


def read_sessions(path: Path, limit: int | None = None) -> SessionSummary:
    """Read the sessions of a trace, of its first `limit` lines."""
    root: dict[Any, Any] = {}
    turns, last = Counter[Any](), dict[Any, tuple[float | None, float]]()
    starts, pauses, user, answer = (list[float]() for _ in range(4))
    answers_in = False
    for number, line in islice(read_lines(path), limit):
        where = f"{path}:{number}"
        row = parse_object(line, where)
        kind = _kind(row)
        if kind is None:
            raise InputError(f"{where}: the turn has no session_id or chat_id, but those above have")
        whole = kind == "chat_id"  # the input of a turn is all that was before
        name = root.get(row.get("parent_chat_id", -1), row[kind]) if whole else row[kind]
        root[row[kind]] = name
        time = _number(where, row, "timestamp", 1.0 if whole else MILLI)
        delay = _number(where, row, "delay", MILLI)
        isl, osl = (_number(where, row, key, 1.0) for key in ("input_length", "output_length"))
        if isl is None or osl is None:
            raise InputError(f"{where}: a turn needs input_length and output_length")
        before, context = last.get(name, (None, 0.0))
        if name not in last:
            if time is None:
                raise InputError(f"{where}: the first turn of every session needs a timestamp")
            starts.append(time)
        elif delay is not None:
            pauses.append(delay)
        elif time is not None and before is not None:
            pauses.append(max(time - before, 0.0))
            answers_in = True
        turns[name] += 1
        user.append(max(isl - context, 1.0) if whole else isl)
        answer.append(osl)
        last[name] = time, isl + osl
    if not starts:
        raise InputError(f"{path}: the trace is empty: it has no turns")
    columns = (starts, [*turns.values()], pauses, user, answer)
    begin, sizes, pause, new, out = (np.array(column, dtype=np.float64) for column in columns)
    return SessionSummary(str(path), begin, sizes, pause, new, out, answers_in)


def _kind(row: Mapping[str, Any]) -> str | None:
    """The key by which a row names its session."""
    return next((key for key in ("session_id", "chat_id") if key in row), None)


def _number(where: str, row: Mapping[str, Any], key: str, unit: float) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1e15:
        raise InputError(f"{where}: {key} {shown(value)} must be a number of at least 0")
    return float(value) * unit
