"""The section `workload`: its keys, and the `Workload` that it states.

Histograms inline or from CSV, traces, named distributions, and sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from costmodel.errors import InputError, shown
from costmodel.prefix_cache import TimeDistribution, exponential, from_quantiles, uniform_reuse
from costmodel.workload import Buckets, Lengths, Sessions, Workload, coarsen, joint, requests_of

from . import bounds
from .fields import (
    WHOLE_DAY,
    FileSection,
    Reader,
    Text,
    checked_together,
    choice,
    count,
    number,
    quantity,
    read_cell,
    share,
    short_for,
)
from .files import Fault, FaultsError, Keys
from .problem import LEAST_RECORDED, MOST_RECORDED, PARTS_RECORDED, Recorded, unpacked
from .quantities import Kind, as_probability
from .trace_reader import NANOSECONDS, TRACE_FORMATS, ArrivalUnit, csv_cells, first_bytes, read_lines, split_header
from .trace_summary import DEFAULT_BUCKETS, TraceSummary, read_trace, spread

_LENGTH = number(bounds.TOKENS)
Tokens = Annotated[float, _LENGTH]
_SHARE = share(bounds.SHARE)
Share = Annotated[float, _SHARE]


class HistogramRow(FileSection):
    """One bucket of requests."""

    isl: Tokens
    """Input length [token]."""
    osl: Tokens
    """Output length [token]."""
    share: Share
    """Share of requests [1]."""


SHARE_TOLERANCE = 1e-3
"""Shares may miss a sum of 1 by this much, as rounding, and are scaled to 1; beyond it is a mistake."""


def share_sum_fault(shares: Sequence[float]) -> Iterator[str]:
    """The fault of shares that should sum to 1."""
    total = math.fsum(shares)
    if abs(total - 1) > SHARE_TOLERANCE:
        yield f"shares sum to {total:.6g}, but must sum to 1 (within {SHARE_TOLERANCE:g})"


def sum_faults(rows: Any) -> Iterator[tuple[Keys, str]]:
    """What is wrong with the sum of the shares of rows, if all of these are stated and can be read."""
    with suppress(InputError, KeyError, TypeError):
        shares = [_SHARE.read(row["share"]) for row in rows]
        yield from (((), sentence) for sentence in (share_sum_fault(shares) if shares else ()))


Histogram = Annotated[
    Annotated[list[HistogramRow], checked_together(sum_faults), Tag("<rows>")] | Annotated[Text, Tag("<path>")],
    Discriminator(lambda value: "<path>" if isinstance(value, str) else "<rows>"),
]


class TraceColumns(FileSection):
    """Names of the columns (CSV) or keys (JSON lines) of a trace; known names are found without it."""

    arrival: Text | None = None
    """Column with the arrival time."""
    isl: Text | None = None
    """Column with the input length [token]."""
    osl: Text | None = None
    """Column with the output length [token]."""
    arrival_unit: Annotated[str, choice(*ArrivalUnit)] = "auto"
    """Unit of the arrival time; auto tells dates from numbers and takes numbers as seconds."""


class TraceFile(FileSection):
    """A recorded trace."""

    path: Text
    """The trace file, relative to this file."""
    format: Annotated[str, choice(*TRACE_FORMATS)] = "auto"
    """Format of the trace; auto recognizes the Azure and Mooncake traces."""
    columns: TraceColumns | None = None
    """Which columns to read, for the formats csv and jsonl."""


class TraceSource(TraceFile):
    """A recorded trace; it also gives rate, burstiness and prefix-hit share unless they are stated."""

    buckets: Annotated[int, count(bounds.BUCKETS)] = DEFAULT_BUCKETS
    """Most ISL x OSL buckets that the trace is summed up in."""


class PackedRequests(FileSection):
    """Requests of a trace as a plan file keeps them."""

    source: Text
    """Name of the trace."""
    of: Annotated[int, count(bounds.RECORDED)]
    """Requests that it had."""
    too_long: Annotated[int, count(bounds.LEFT_OUT)] = 0
    """Those left out that no replica can serve, mostly of too many tokens."""
    span: Annotated[float, number(bounds.SPAN)]
    """Time that the kept ones take [s]."""
    packed: str
    """Gaps [us], ISL and OSL of each, as 64-bit numbers, compressed by zlib, in base64."""


RecordedSource = Annotated[
    Annotated[TraceFile, short_for(TraceFile, "path"), Tag("<file>")] | Annotated[PackedRequests, Tag("<packed>")],
    Discriminator(
        lambda value: "<packed>" if "packed" in (value if isinstance(value, dict) else dir(value)) else "<file>"
    ),
]


class Lognormal(FileSection):
    """Log-normal lengths, given by their median and 99th percentile."""

    median: Tokens
    """Half of the requests are shorter [token]."""
    p99: Tokens
    """99 % of the requests are shorter [token]."""
    maximum: Tokens | None = None
    """Lengths above it count as it [token]."""

    @field_validator("p99")
    @classmethod
    def _ascending(cls, p99: float, info: ValidationInfo) -> float:
        if p99 < info.data.get("median", 0):
            raise InputError(f"{p99:g} is below the median {info.data['median']:g}")
        return p99


_PROBABILITIES = "needs probabilities as keys, such as {0.5: 600, 90%: 2400, p99: 5500}"


def _read_quantiles(value: object) -> object:
    """Turn the keys, which YAML gives as text, into probabilities."""
    if not isinstance(value, dict):
        return value
    if not value:
        raise InputError(f"is empty, but {_PROBABILITIES}")
    try:
        shares = ((as_probability(str(key)), key, length) for key, length in value.items())
        lengths = {float(key) if share is None else share: length for share, key, length in shares}
    except ValueError:
        raise InputError(_PROBABILITIES) from None
    if len(lengths) < len(value):
        raise InputError(f"states one probability twice: {', '.join(map(str, value))}")
    return lengths


class LengthDistribution(FileSection):
    """One of three ways to state the distribution of a length, or of the number of turns."""

    forms = ("fixed", "lognormal", "quantiles")

    fixed: Tokens | None = None
    """Every request has this length [token]."""
    lognormal: Lognormal | None = None
    """Log-normal lengths."""
    quantiles: Annotated[dict[float, Tokens], BeforeValidator(_read_quantiles)] | None = None
    """Length [token] by probability, for example {0.5: 600, 90%: 2400, p99: 5500}; 1 gives the longest."""

    @model_validator(mode="after")
    def _is_a_distribution(self) -> Self:
        self.lengths()
        return self

    def lengths(self) -> Lengths:
        """The same made discrete."""
        if self.lognormal is not None:
            tail = self.lognormal
            return Lengths.lognormal(median=tail.median, p99=tail.p99, maximum=tail.maximum)
        return Lengths.fixed(self.fixed or 0.0) if self.quantiles is None else Lengths.from_quantiles(self.quantiles)


Distribution = Annotated[LengthDistribution, short_for(LengthDistribution, "fixed", Tokens)]


def _believable_turns(turns: LengthDistribution) -> LengthDistribution:
    longest = turns.lengths().longest
    if not bounds.TURNS.holds(longest):
        raise InputError(f"{longest:g} {bounds.TURNS.sentence()}")
    return turns


_Duration = Annotated[float, quantity(Kind.DURATION, bounds.PAUSE)]
_Durations = Annotated[dict[float, _Duration], BeforeValidator(_read_quantiles)]


class PauseSection(FileSection):
    """One of two ways to state a distribution of times."""

    forms = ("mean", "quantiles")

    mean: _Duration | None = None
    """Mean of exponential times [s]."""
    quantiles: _Durations | None = None
    """Time [s] by probability, for example {0.5: 4s, p90: 30s, p99: 5min}; beyond the highest none is longer."""

    @field_validator("quantiles")
    @classmethod
    def _rises(cls, quantiles: dict[float, float] | None) -> dict[float, float] | None:
        ascending = [time for _, time in sorted((quantiles or {}).items())]
        if quantiles is not None and (len(ascending) < 2 or sorted(ascending) != ascending):
            raise InputError("needs two quantiles or more, which rise with the probability")
        return quantiles

    def times(self) -> TimeDistribution:
        """The same as a distribution."""
        return exponential(self.mean or 0.0) if self.quantiles is None else from_quantiles(self.quantiles)


Pause = Annotated[PauseSection, short_for(PauseSection, "mean", _Duration)]


class SessionsSection(FileSection):
    """Sessions of turns, as of agents and chats: the prompt of each turn is all before it and new tokens of the user.

    The lengths of requests follow from it, and what a prefix cache finds from the KV memory of the fleet.
    """

    rate: Annotated[float, quantity(Kind.RATE, bounds.REQUEST_RATE)] | None = None
    """New sessions [1/s], in place of request_rate."""
    turns: Annotated[Distribution, AfterValidator(_believable_turns)]
    """Requests of a session [1]; a plain number: of every one."""
    think_time: Pause
    """From the end of an answer to the next turn [s]; a plain number is the mean of exponential times."""
    system_prompt: Annotated[float, number(bounds.SYSTEM_PROMPT)] = 0.0
    """Tokens that all sessions begin with, tools included [token]."""
    user_tokens: Distribution
    """New tokens of each turn, results of tools included [token]."""
    answer_tokens: Distribution
    """Output length of each turn [token]."""


class LengthsSection(FileSection):
    """How long requests are: a histogram, or a trace, or one distribution each for isl and osl (independent)."""

    histogram: Histogram | None = None
    """Rows {isl, osl, share}; or a CSV file with the header isl,osl,share or isl,osl,count. Beyond 400 rows, neighbors
    are merged; their mean lengths and the longest request are kept."""
    trace: TraceSource | None = None
    """A recorded trace."""
    isl: Distribution | None = None
    """Distribution of the input length [token]; a plain number is a fixed length."""
    osl: Distribution | None = None
    """Distribution of the output length [token]; a plain number is a fixed length."""
    source: Text | None = None
    """Free text: where the lengths come from."""

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """Exactly one form, of which one is two keys."""
        if ("isl" in section) != ("osl" in section):
            yield f"has {'isl' if 'isl' in section else 'osl'} alone, but needs both isl and osl"
            return
        present = [form for form in ("histogram", "trace", "isl and osl") if form.split()[0] in section]
        if len(present) != 1:
            words = f"has {', '.join(present)}" if present else "has none of them"
            yield f"needs exactly one of histogram, trace, or isl and osl together, but {words}"


class Diurnal(FileSection):
    """A daily profile of the request rate; the fleet is planned for its peak, or for a percentile of the hours."""

    requests_per_second_by_hour: Annotated[list[Annotated[float, quantity(Kind.RATE, bounds.HOURLY_RATE)]], WHOLE_DAY]
    """24 mean rates [1/s], from midnight."""
    percentile: Annotated[float, quantity(Kind.PERCENTAGE, bounds.HOURS_PERCENTILE)] = 100.0
    """Share of the hours [%] whose rate the fleet carries; 100 is the peak."""

    @property
    def planned_rate(self) -> float:
        """The least of the hourly rates that is not exceeded in `percentile` of the hours [1/s].

        >>> Diurnal(requests_per_second_by_hour=[*range(1, 25)], percentile=50).planned_rate
        12.0
        """
        rates = sorted(self.requests_per_second_by_hour)
        rank = math.ceil(round(self.percentile / 100 * len(rates), 9))
        return max(rates[max(rank, 1) - 1], min(rate for rate in rates if rate > 0))


class WorkloadSection(FileSection):
    """The demand: how many requests, how long, how bursty, how much prefix they share."""

    forms = ("lengths", "sessions")

    request_rate: Annotated[float, quantity(Kind.RATE, bounds.REQUEST_RATE)] | None = None
    """Mean arrivals [1/s] that the fleet must carry; a trace gives its own unless this is stated."""
    diurnal: Diurnal | None = None
    """Instead of request_rate: a daily profile."""
    burstiness: Annotated[float, number(bounds.BURSTINESS)] | None = None
    """Coefficient of variation of the times between arrivals [1]; 1 is Poisson. Default: 1, or the trace's."""
    prefix_hit_share: Annotated[float, share(bounds.PREFIX_HIT_SHARE)] | None = None
    """Share of input tokens that a prefix cache can find [1]. Default: 0, or the trace's."""
    reuse_interval: Pause | None = None
    """From one use of a cached prefix to the next [s]: what the KV memory does not keep for so long is not found.
    Default: the trace's, or none: all of prefix_hit_share is found, whatever the memory."""
    max_tokens: Annotated[int, count(bounds.MAX_TOKENS)] | None = None
    """Longest ISL + OSL of any request [token]. Default: the longest of the lengths."""
    lengths: LengthsSection | None = None
    """How long requests are."""
    sessions: SessionsSection | None = None
    """Instead of lengths: the sessions that the requests are turns of."""
    recorded: RecordedSource | None = None
    """A trace whose own requests are simulated, in stretches and in order, in place of random ones; a single word is
    its path, relative to this file. Default: the trace of the lengths, unless burstiness or diurnal is stated."""

    @classmethod
    def key_faults(cls, section: Mapping[str, Any]) -> Iterator[str]:
        """One rate, and nothing beside sessions that follows from them."""
        yield from super().key_faults(section)
        has_rate = "request_rate" in section or "diurnal" in section
        if "sessions" in section:
            own_rate = _states(section["sessions"], "rate")
            for name in ("prefix_hit_share", "reuse_interval", "recorded"):
                if name in section:
                    yield f"has {name} and sessions, but it follows from the sessions; leave it out"
            if own_rate and has_rate:
                yield "has sessions.rate and a rate of requests, but needs one of them"
        else:
            own_rate = _states(section.get("lengths"), "trace")
            if "reuse_interval" in section and "prefix_hit_share" not in section:
                yield "has reuse_interval, but nothing to find; state prefix_hit_share"
        if "request_rate" in section and "diurnal" in section:
            yield "has request_rate and diurnal, but needs one of them"
        if not has_rate and not own_rate:
            yield "needs request_rate (such as 10/s) or diurnal; only a trace brings a rate of its own"
        if "diurnal" in section and "recorded" in section:
            yield "has diurnal and recorded, but a recording has its own times; state request_rate"

    @property
    def stated_rate(self) -> float | None:
        """The request rate to plan for [1/s]; None if only a trace, or the sessions, can say it."""
        return self.request_rate if self.diurnal is None else self.diurnal.planned_rate


def _states(section: object, key: str) -> bool:
    return isinstance(section, Mapping) and section.get(key) is not None


HISTOGRAM: Keys = ("workload", "lengths", "histogram")
TRACE = ("workload", "lengths", "trace", "path")
HISTOGRAM_COLUMNS = ("isl", "osl", "share")
COUNTED_COLUMNS = ("isl", "osl", "count")
"""Columns with numbers of requests instead of shares, which are divided by their sum."""
COUNTED = bounds.Bounds(0, 1e15, "requests")
MAX_SHOWN_ROWS = 5

Row = tuple[float, float, float]


def read_demand(section: WorkloadSection, base: Path, context_length: int) -> tuple[Workload, Recorded | None]:
    """Return the workload that the section states, and its recorded requests; raise `FaultsError` with all faults.

    base: folder that file names are relative to; context_length: longest ISL + OSL that the model takes [token], 0 if
    unknown; caps open-ended distributions.
    """
    if section.sessions is not None:
        return _from_sessions(section, section.sessions), None
    lengths = section.lengths or LengthsSection()
    if lengths.trace is not None:
        return _from_trace(section, lengths.trace, base)
    workload = _with_reuse(_stated(section, *_buckets(lengths, base, context_length)), section.reuse_interval)
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
        return joint(isl_lengths, osl_lengths, DEFAULT_BUCKETS), min(longest, context_length or longest)
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

    Names may be in any case and order; the separator is the header's: comma, semicolon or tab. The faults of a
    FaultsError name the lines, at most five of them.
    """
    rows, faults = list[Row](), list[Fault]()
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
        cells_of = csv_cells(header, columns)
        readers = (_LENGTH, _LENGTH, number(COUNTED) if columns is COUNTED_COLUMNS else Reader(_share, {}))
        for line_number, line in lines:
            if len(rows) == bounds.MAX_HISTOGRAM_ROWS:
                most = f"more than {bounds.MAX_HISTOGRAM_ROWS:,} rows; so long a table"
                raise InputError(f"{path}:{line_number}: {most} belongs in a trace (lengths.trace)")
            try:
                isl, osl, weight = map(read_cell, columns, cells_of(line), readers)
                rows.append((isl, osl, weight))
            except InputError as error:
                faults.append(Fault(HISTOGRAM, f"{path}:{line_number}: {error}"))
            if len(faults) == MAX_SHOWN_ROWS:
                break
    if faults:
        raise FaultsError(*faults)
    total = math.fsum(count for _, _, count in rows)
    is_counted = columns is COUNTED_COLUMNS and total > 0.0
    return [(isl, osl, count / total) for isl, osl, count in rows] if is_counted else rows


def _share(value: object) -> float:
    """A share; whoever has numbers of requests is told their column's name."""
    try:
        return float(_SHARE.read(value))
    except InputError as error:
        if not isinstance(value, int | float) or value <= bounds.SHARE.high:
            raise
        raise InputError(f"{error}; call a column of requests count".replace("?;", "?")) from error


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
    """Turns faults of a file into faults of the key that names it."""
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
