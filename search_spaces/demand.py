"""The section `workload` -> the `Workload`: histograms inline or from CSV, traces, and named distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from costmodel.errors import InputError, shown
from costmodel.prefix_cache import uniform_reuse
from costmodel.workload import Buckets, Sessions, Workload, coarsen, joint, requests_of

from . import bounds
from .fields import Reader, number, read_cell
from .files import Fault, FaultsError, Keys
from .problem import LEAST_RECORDED, MOST_RECORDED, PARTS_RECORDED, Recorded, unpacked
from .schema import (
    LengthsSection,
    PackedRequests,
    PauseSection,
    SessionsSection,
    TraceFile,
    TraceSource,
    WorkloadSection,
    share_sum_fault,
)
from .trace_reader import NANOSECONDS, csv_cells, first_bytes, read_lines, split_header
from .trace_summary import TraceSummary, read_trace, spread

HISTOGRAM: Keys = ("workload", "lengths", "histogram")
TRACE = ("workload", "lengths", "trace", "path")
HISTOGRAM_COLUMNS = ("isl", "osl", "share")
COUNTED_COLUMNS = ("isl", "osl", "count")
"""With requests instead of shares: what is counted is divided by its sum."""
COUNTED = bounds.Bounds(0, 1e15, "requests")
MAX_SHOWN_ROWS = 5
JOINT_BUCKETS = 48

Row = tuple[float, float, float]


def read_demand(section: WorkloadSection, base: Path, context_length: int) -> tuple[Workload, Recorded | None]:
    """Return the workload that the section states and what is recorded of it; raise `FaultsError` with what is wrong.

    Args:
        section: the sound section.
        base: folder that file names are relative to.
        context_length: longest ISL + OSL that the model takes [token], 0 if unknown; caps open-ended distributions.
    """
    if section.sessions is not None:
        return _from_sessions(section, section.sessions), None
    if section.lengths is None:
        raise FaultsError(Fault(("workload",), "needs lengths or sessions"))
    if section.lengths.trace is not None:
        return _from_trace(section, section.lengths.trace, base)
    workload = _with_reuse(_stated(section, *_buckets(section.lengths, base, context_length)), section.reuse_interval)
    if section.recorded is None:
        return workload, None
    longest = section.max_tokens or context_length or bounds.MAX_TOKENS.high
    recording = _recording(section.recorded, base, int(longest))
    return replace(workload, max_tokens=section.max_tokens or max(workload.max_tokens, recording.longest)), recording


def _from_sessions(section: WorkloadSection, session_section: SessionsSection) -> Workload:
    """Return the workload that sessions make."""
    sessions = Sessions(
        turns=session_section.turns.lengths(),
        pause=session_section.think_time.times(),
        system_prompt=session_section.system_prompt,
        user=session_section.user_tokens.lengths(),
        answer=session_section.answer_tokens.lengths(),
    )
    buckets, reuse = requests_of(sessions)
    hit_share = float(buckets.share @ (reuse.shared + reuse.history)) / float(buckets.share @ buckets.isl)
    by_session = (session_section.rate or 0.0) * sessions.turns.mean
    workload = _stated(section, buckets, math.ceil(sessions.longest), by_session)
    return replace(workload, prefix_hit_share=hit_share, reuse=reuse, sessions=sessions)


def _stated(section: WorkloadSection, buckets: Buckets, longest: int, rate: float = 0.0) -> Workload:
    """The workload of these lengths; longest: ISL + OSL [token], rate [1/s]: where the section states none."""
    return Workload(
        isl=buckets.isl,
        osl=buckets.osl,
        share=buckets.share,
        request_rate=section.stated_rate or rate,
        burstiness=1.0 if section.burstiness is None else section.burstiness,
        prefix_hit_share=section.prefix_hit_share or 0.0,
        max_tokens=section.max_tokens or longest,
    )


def _with_reuse(workload: Workload, section: PauseSection | None) -> Workload:
    """The workload whose cached prefixes are used again after the times that are stated."""
    if section is None or workload.prefix_hit_share == 0.0:
        return workload
    return replace(workload, reuse=uniform_reuse(workload.isl, workload.prefix_hit_share, section.times()))


def _buckets(lengths: LengthsSection, base: Path, context_length: int) -> tuple[Buckets, int]:
    """Return a histogram or named distributions as buckets, and the longest request [token].

    Of a histogram empty buckets are dropped, and shares scaled to sum to 1 exactly. Rows beyond the greatest number of
    buckets are merged with their neighbours, which keeps the mean lengths and the longest ISL + OSL.
    """
    if lengths.isl is not None and lengths.osl is not None:
        isl_lengths, osl_lengths = lengths.isl.lengths(), lengths.osl.lengths()
        longest = math.ceil(isl_lengths.longest + osl_lengths.longest)
        return joint(isl_lengths, osl_lengths, JOINT_BUCKETS), min(longest, context_length or longest)
    if isinstance(lengths.histogram, str):
        rows = read_histogram(base / lengths.histogram)
    else:
        rows = [(row.isl, row.osl, row.share) for row in lengths.histogram or ()]
    if not rows:
        raise FaultsError(Fault(HISTOGRAM, "is empty, but needs at least one row"))
    for sentence in share_sum_fault([weight for _, _, weight in rows]):
        raise FaultsError(Fault(HISTOGRAM, sentence))
    isl, osl, weight = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    nonempty = weight > 0
    buckets = Buckets(isl[nonempty], osl[nonempty], weight[nonempty] / math.fsum(weight[nonempty]))
    longest = math.ceil(float((buckets.isl + buckets.osl).max()))
    if buckets.share.size > bounds.BUCKETS.high:
        buckets = coarsen(buckets.isl, buckets.osl, buckets.share, int(bounds.BUCKETS.high))
    return buckets, longest


def read_histogram(path: Path) -> list[Row]:
    """Read a CSV file with the header isl,osl,share or isl,osl,count; lines that begin with # are comments.

    Names may be in any case and order; the separator is the header's: comma, semicolon or tab.

    Raises:
        FaultsError: its faults name the lines, at most five of them.
    """
    with _faults_at(*HISTOGRAM):
        first_bytes(path)
        lines = (item for item in read_lines(path) if not item[1].lstrip().startswith(b"#"))
        line_number, first_line = next(lines, (0, b""))
        if not line_number:
            raise InputError(f"{path} is empty; it needs the header isl,osl,share and rows")
        header = first_line.decode(errors="replace").lower()
        names = split_header(header, f"{path}:{line_number}")[1]
        columns = HISTOGRAM_COLUMNS if "share" in names else COUNTED_COLUMNS
        if sorted(columns) != sorted(names):
            raise InputError(
                f"{path}:{line_number}: the header is {shown(header)}, but must be isl,osl,share, or isl,osl,count "
                "where the third is a number of requests"
            )
        rows = _histogram_rows(path, lines, columns, csv_cells(header, columns))
    if columns is HISTOGRAM_COLUMNS:
        return rows
    total = math.fsum(count for _, _, count in rows)
    return [(isl, osl, count / total) for isl, osl, count in rows] if total > 0.0 else rows


def _histogram_rows(
    path: Path,
    lines: Iterable[tuple[int, bytes]],
    columns: tuple[str, str, str],
    cells_of: Callable[[bytes], list[str]],
) -> list[Row]:
    """ISL, OSL and share, or number of requests, of every line."""
    weight_reader = number(COUNTED) if columns is COUNTED_COLUMNS else Reader(_share, {})
    readers = (number(bounds.TOKENS), number(bounds.TOKENS), weight_reader)
    rows: list[Row] = []
    faults: list[Fault] = []
    for line_number, line in lines:
        where = f"{path}:{line_number}"
        if len(rows) == bounds.MAX_HISTOGRAM_ROWS:
            sentence = (
                f"more than {bounds.MAX_HISTOGRAM_ROWS:,} rows; so long a table belongs in a trace (lengths.trace)"
            )
            raise InputError(f"{where}: {sentence}")
        try:
            isl, osl, weight = map(read_cell, columns, cells_of(line), readers)
            rows.append((isl, osl, weight))
        except InputError as error:
            faults.append(Fault(HISTOGRAM, f"{where}: {error}"))
        if len(faults) == MAX_SHOWN_ROWS:
            break
    if faults:
        raise FaultsError(*faults)
    return rows


def _share(value: object) -> float:
    """A share; whoever has numbers of requests is told their column's name."""
    try:
        return float(number(bounds.SHARE).read(value))
    except InputError as error:
        is_count = isinstance(value, int | float) and value > bounds.SHARE.high
        raise InputError(f"{error}; call a column of requests count" if is_count else str(error)) from None


def _recording(source: TraceFile | PackedRequests, base: Path, most_tokens: int) -> Recorded:
    """Return the requests that were recorded, those left out that no engine takes."""
    with _faults_at("workload", "recorded"):
        if isinstance(source, PackedRequests):
            return unpacked(**source.model_dump())
        return recorded_requests(_summary(source, base), most_tokens)


def recorded_requests(summary: TraceSummary, most_tokens: int) -> Recorded:
    """The requests of a trace of at most `most_tokens` tokens (ISL + OSL), or stretches of it where there are many.

    The stretches are the first part of each of PARTS_RECORDED equal times, with what is between left out. Where the
    clock is too coarse for gaps the requests of one tick are spread over it: else those of some seconds would come at
    one moment.
    Raises InputError where there are so few, or all at one moment, that they tell nothing.
    """
    stats, path, rows = summary.arrivals, summary.path, summary.rows
    if stats.requests < LEAST_RECORDED:
        raise InputError(f"{path}: has {stats.requests:,} requests; at least {LEAST_RECORDED:,} are needed")
    if stats.duration <= 0.0:
        raise InputError(f"{path}: all requests arrive at the same time")
    stride = (stats.duration + (stats.quantum or stats.duration / (stats.requests - 1))) / PARTS_RECORDED
    length = stride * min(1.0, MOST_RECORDED / stats.requests)
    stretch, offset = np.divmod((rows.nanoseconds - rows.nanoseconds[0]) / NANOSECONDS, stride)
    within, short = offset < length, rows.isl + rows.osl <= most_tokens
    fits = within & short
    arrival = (stretch * length + offset)[fits]
    if arrival.size < LEAST_RECORDED:
        raise InputError(
            f"{path}: has {arrival.size:,} requests of at most {most_tokens:,} tokens; "
            f"at least {LEAST_RECORDED:,} are needed"
        )
    arrival = np.minimum(spread(arrival, stats), np.nextafter(length * PARTS_RECORDED, 0.0))
    too_long = int(np.count_nonzero(within & ~short)) + summary.dropped
    return Recorded(
        path.name, stats.requests, too_long, length * PARTS_RECORDED, arrival, rows.isl[fits], rows.osl[fits]
    )


@contextmanager
def _faults_at(*place: str | int) -> Iterator[None]:
    """What is wrong with a file is a fault of the place that names it."""
    try:
        yield
    except FaultsError:
        raise
    except InputError as error:
        raise FaultsError(Fault(place, str(error))) from error


def _summary(trace: TraceFile, base: Path) -> TraceSummary:
    columns = trace.columns.model_dump(exclude_none=True) if trace.columns is not None else None
    return read_trace(base / trace.path, format=trace.format, columns=columns)


def _from_trace(section: WorkloadSection, trace: TraceSource, base: Path) -> tuple[Workload, Recorded | None]:
    """Return the trace as a workload; what the section states replaces what was measured."""
    with _faults_at(*TRACE):
        summary = _summary(trace, base)
        workload_of_trace = summary.to_workload(
            buckets=trace.buckets,
            request_rate=section.stated_rate,
            burstiness=section.burstiness,
            prefix_hit_share=section.prefix_hit_share,
        )
    believable = {"request_rate": bounds.REQUEST_RATE, "burstiness": bounds.BURSTINESS}
    values = {name: getattr(workload_of_trace, name) for name in believable}
    faults = [
        Fault(TRACE, f"the trace's {name} is {values[name]:.6g}, but it {limits.sentence()}; state workload.{name}")
        for name, limits in believable.items()
        if not limits.holds(values[name])
    ]
    if faults:
        raise FaultsError(*faults)
    workload = replace(
        workload_of_trace,
        max_tokens=section.max_tokens or workload_of_trace.max_tokens,
        prefix_hit_share=min(workload_of_trace.prefix_hit_share, bounds.PREFIX_HIT_SHARE.high),
    )
    workload = _with_reuse(workload, section.reuse_interval)
    if section.recorded is not None:
        return workload, _recording(section.recorded, base, workload.max_tokens)
    if section.burstiness is not None or section.diurnal is not None or not summary.tells_waves:
        return workload, None
    with _faults_at(*TRACE):
        return workload, recorded_requests(summary, workload.max_tokens)
