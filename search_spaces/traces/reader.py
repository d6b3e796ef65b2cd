"""Reading a trace: its format is found from its first bytes, then it is streamed once, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from costmodel.errors import InputError, UnknownNameError
from costmodel.quoting import shown

from .arrivals import ArrivalCounter, ArrivalStats, arrival_notes
from .parsing import (
    HASH_KEY,
    Progress,
    csv_layout,
    csv_rows,
    first_bytes,
    is_range_query,
    jsonl_rows,
    parse_object,
    read_blocks,
    split_header,
)
from .rows import (
    AZURE_COLUMNS,
    MOONCAKE_COLUMNS,
    MOST_TOGETHER,
    NANOSECONDS,
    ArrivalUnit,
    Columns,
    Rows,
    TraceFormat,
    Unservable,
    map_columns,
    nested_keys,
    require_columns,
)
from .summary import MAX_BLOCKS, LengthCounter, PrefixCache, TraceSummary

if TYPE_CHECKING:
    from costmodel.simulator import Pages, Trace

AUTO = "auto"
WALL_CLOCK_FROM = 10**8 * NANOSECONDS
"""Numeric arrivals from here on (the year 1973) are taken as Unix time, earlier ones as time since a start [ns]."""
_MOONCAKE_KEYS = {"timestamp", "input_length", "output_length", HASH_KEY}
"""Without prefixes the last one is left out, as in the benchmarks that `pdplan deploy` writes."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a file is to be read; `head` is its first line that is not blank."""

    path: Path
    format: TraceFormat
    columns: Columns
    head: str


def detect_format(path: str | os.PathLike[str]) -> TraceFormat:
    """Return the format of a trace file from its first line, or raise InputError if it is no trace."""
    return _detect(*_head(Path(path)))


def read_rows(
    path: str | os.PathLike[str],
    format: str = AUTO,  # noqa: A002 - the word that workload.yaml uses
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    unservable: Unservable | None = None,
) -> Iterator[Rows]:
    """Yield the requests of a trace in chunks, in the order of the file, of its first `limit` rows.

    Rows that no engine can serve are left out, and counted in `unservable`; InputError at the end where they are many.

    format: a TraceFormat or "auto"; columns: {arrival, isl, osl, arrival_unit} for formats csv and jsonl;
    progress is told the share of the file that has been read [1].
    """
    yield from _stream(_plan(Path(path), format, columns), limit, progress, unservable or Unservable())


def in_order(path: str | os.PathLike[str], chunks: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the same requests sorted by arrival (without hash blocks); those of a tie keep their order.

    One chunk is held back, so an arrival may come late by a chunk of lines; later than that is an InputError.
    """
    held: Rows | None = None
    settled: int | None = None
    for chunk in chunks:
        rows = _merged(held, chunk)
        size = len(chunk)
        ready, held = rows.pick(slice(0, len(rows) - size)), rows.pick(slice(len(rows) - size, None))
        if len(ready):
            _check_settled(path, ready, settled)
            settled = int(ready.nanoseconds[-1])
            yield ready
    if held is not None:
        _check_settled(path, held, settled)
        yield held


def read_trace(
    path: str | os.PathLike[str],
    format: str = AUTO,  # noqa: A002 - the word that workload.yaml uses
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    most_tokens: int | None = None,
) -> TraceSummary:
    """Read a trace once and return what it says; arguments as for read_rows. Memory does not grow with its length.

    most_tokens: requests whose ISL + OSL [token] is above it are left out.
    """
    plan = _plan(Path(path), format, columns)
    tally = _Tally(plan, MOST_TOGETHER if most_tokens is None else most_tokens)
    arrivals = ArrivalCounter()
    for rows in in_order(path, tally.passing(_stream(plan, limit, progress, tally.unservable))):
        arrivals.add(rows, str(path))
    if not arrivals.requests:
        raise InputError(f"{path}: the trace is empty: it has {tally.found()}")
    wall_clock = plan.columns.unit is ArrivalUnit.ISO or arrivals.origin >= WALL_CLOCK_FROM
    return tally.summary(arrivals.finish(wall_clock))


def read_replay(
    path: str | os.PathLike[str],
    format: str = AUTO,  # noqa: A002 - the word that workload.yaml uses
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    *,
    unservable: Unservable | None = None,
) -> Trace:
    """Return the requests of a trace from time 0 on, at most `limit`; arguments as for read_rows.

    Hash blocks of no known size are left out: prefix caches then find nothing.
    """
    from costmodel.simulator import make_trace  # it takes time to import where it is compiled

    chunks = list(read_rows(path, format, columns, limit, unservable=unservable))
    if not chunks:
        raise InputError(f"{path}: the trace is empty: it has no requests")
    nanoseconds, isl, osl = (
        np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("nanoseconds", "isl", "osl")
    )
    arrival = (nanoseconds - nanoseconds.min()) / NANOSECONDS
    return make_trace(arrival, isl, osl, pages=_pages(chunks))


def _pages(chunks: list[Rows]) -> Pages | None:
    """Hash blocks of the requests; None where the trace has none that can be used."""
    cache = PrefixCache()
    cache.look_up(chunks[0])
    ids, counts = [], []
    for chunk in chunks:
        if chunk.hash_ids is None or chunk.hash_counts is None:
            return None
        ids.append(chunk.hash_ids)
        counts.append(chunk.hash_counts)
    if cache.block_tokens is None:
        return None
    from costmodel.simulator import Pages

    return Pages(np.concatenate(ids), np.concatenate(counts), cache.block_tokens)


class _Tally:
    """Counts what does not depend on the order of arrival, while the rows pass by."""

    def __init__(self, plan: _Plan, most_tokens: int) -> None:
        self.plan = plan
        self.most_tokens = most_tokens
        self.unservable = Unservable()
        self.too_long = 0
        self.out_of_order = 0
        self._latest: int | None = None
        self._lengths = LengthCounter()
        self._prefix = PrefixCache()

    def passing(self, chunks: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the rows on, with prefix hits and without requests that are too long."""
        for chunk in map(self._short, chunks):
            if not len(chunk):
                continue
            rows = self._prefix.look_up(chunk)
            self._count_disorder(rows)
            self._lengths.add(rows)
            yield rows

    def _short(self, chunk: Rows) -> Rows:
        """The rows that are not too long: no engine would take the others, nor cache their prefixes."""
        fits = chunk.isl + chunk.osl <= self.most_tokens
        self.too_long += int(np.count_nonzero(~fits))
        return chunk if fits.all() else chunk.keep(fits)

    def found(self) -> str:
        """What there is instead of requests that count."""
        return f"only {self.too_long} of more than {self.most_tokens:,} tokens" if self.too_long else "no requests"

    def _count_disorder(self, rows: Rows) -> None:
        first = rows.nanoseconds[0] if self._latest is None else self._latest
        self.out_of_order += int(np.count_nonzero(np.diff(rows.nanoseconds, prepend=first) < 0))
        self._latest = int(rows.nanoseconds[-1])

    def summary(self, arrivals: ArrivalStats) -> TraceSummary:
        """Return the finished summary."""
        lengths, prefix = self._lengths, self._prefix
        return TraceSummary(
            path=str(self.plan.path),
            format=self.plan.format,
            columns=self.plan.columns,
            requests=arrivals.requests,
            dropped=self.unservable.count,
            too_long=self.too_long,
            out_of_order=self.out_of_order,
            arrivals=arrivals,
            isl_counts=lengths.isl_counts,
            osl_counts=lengths.osl_counts,
            histogram=lengths.joint(),
            mean_isl_osl=lengths.product / arrivals.requests,
            total_counts=lengths.total_counts,
            max_tokens=lengths.longest,
            prefix_hit_share=prefix.hit_share,
            prefix_block_tokens=prefix.block_tokens if prefix.hit_share is not None else None,
            reuse_interval=prefix.reuse_interval,
            notes=tuple(self._notes(arrivals)),
        )

    def _notes(self, arrivals: ArrivalStats) -> Iterator[str]:
        if self.unservable.count:
            yield f"{self.unservable.words}; no figure counts them."
        if self.too_long:
            some = "1 request has" if self.too_long == 1 else f"{self.too_long:,} requests have"
            gone = "is" if self.too_long == 1 else "are"
            yield f"{some} more than {self.most_tokens:,} tokens (ISL + OSL) and {gone} left out of all figures."
        if self.out_of_order:
            some = "1 arrival is" if self.out_of_order == 1 else f"{self.out_of_order} arrivals are"
            yield f"{some} earlier than the line before; the trace was sorted by arrival."
        yield from arrival_notes(arrivals)
        if self._prefix.full:
            yield f"only the first {MAX_BLOCKS} prefix blocks were remembered: the prefix-hit share is a lower bound."
        if self._prefix.unfit and self._prefix.block_tokens is None and self.plan.format is TraceFormat.MOONCAKE:
            yield "hash_ids fit no known block size; the prefix-hit share is unknown."


def _plan(path: Path, wanted: str, columns: Mapping[str, str] | None) -> _Plan:
    _, head = _head(path)
    formats = [AUTO, *(format_.value for format_ in TraceFormat)]
    if wanted not in formats:
        raise UnknownNameError("trace format", wanted, formats)
    file_format = _detect(path, head) if wanted == AUTO else TraceFormat(wanted)
    if columns and file_format in (TraceFormat.AZURE, TraceFormat.MOONCAKE):
        if wanted != AUTO:
            raise InputError(f"{path}: format {wanted} has columns of its own; name columns with csv or jsonl")
        file_format = TraceFormat.JSONL if head.startswith("{") else TraceFormat.CSV
    names = _names(path, head, file_format)
    where = f"{path}:1"
    if file_format is TraceFormat.AZURE:
        return _Plan(path, file_format, require_columns(AZURE_COLUMNS, names, where), head)
    if file_format is TraceFormat.MOONCAKE:
        return _Plan(path, file_format, require_columns(MOONCAKE_COLUMNS, names, where), head)
    return _Plan(path, file_format, map_columns(columns, names, where), head)


def _stream(plan: _Plan, limit: int | None, progress: Progress | None, unservable: Unservable) -> Iterator[Rows]:
    if limit is not None and limit < 1:
        raise InputError(f"limit: {limit} must be at least 1")
    blocks = read_blocks(plan.path, progress)
    if plan.format in (TraceFormat.MOONCAKE, TraceFormat.JSONL):
        chunks = jsonl_rows(plan.path, blocks, plan.columns)
    else:
        chunks = csv_rows(plan.path, blocks, csv_layout(plan.head, plan.columns))
    left = limit
    for chunk in chunks:
        rows = chunk if left is None or len(chunk) <= left else chunk.first(left)
        servable = unservable.without(rows, plan.columns)
        if len(servable):
            yield servable
        if left is not None:
            left -= len(rows)
            if not left:
                break
    unservable.check(plan.path)


def _head(path: Path) -> tuple[Path, str]:
    """Return the path and the first line of the file: for JSONL the first that is not blank."""
    start = first_bytes(path)
    if is_range_query(start):
        raise InputError(f"{path}: is an answer of Prometheus; `pdplan workload {path} -o FILE` makes a workload of it")
    block = next(read_blocks(path), None) if start.strip() else None
    if block is None:
        raise InputError(f"{path}: the trace is empty: the file has no lines")
    line, _, _ = block.data.lstrip().partition(b"\n")
    return path, line.decode(errors="replace").strip("\r")


def _detect(path: Path, head: str) -> TraceFormat:
    if head.startswith("["):
        raise InputError(f"{path}:1: the file is a JSON array, but must have one JSON object per line (JSONL)")
    if head.startswith("{"):
        keys = set(parse_object(f"{path}:1", head.encode()))
        return TraceFormat.MOONCAKE if keys | {HASH_KEY} == _MOONCAKE_KEYS else TraceFormat.JSONL
    names = set(split_header(head, f"{path}:1")[1])
    return TraceFormat.AZURE if names == set(AZURE_COLUMNS.names) else TraceFormat.CSV


def _names(path: Path, head: str, file_format: TraceFormat) -> list[str]:
    """Return the column names or keys of the first line."""
    if file_format in (TraceFormat.MOONCAKE, TraceFormat.JSONL):
        return list(nested_keys(parse_object(f"{path}:1", head.encode())))
    names = split_header(head, f"{path}:1")[1]
    if len(names) < 3 or all(name.replace(".", "").isdigit() for name in names):
        raise InputError(f"{path}:1: the CSV header needs columns for arrival, ISL and OSL, but is {shown(head)}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}:1: the header has the column {shown(twice)} twice")
    return names


def _merged(held: Rows | None, chunk: Rows) -> Rows:
    """Return both, sorted by arrival."""
    both = chunk
    if held is not None:
        pairs = ((held.nanoseconds, chunk.nanoseconds), (held.isl, chunk.isl), (held.osl, chunk.osl))
        nanoseconds, isl, osl, line = (np.concatenate(pair) for pair in (*pairs, (held.line, chunk.line)))
        both = Rows(nanoseconds, isl, osl, line)
        if held.hit_tokens is not None and chunk.hit_tokens is not None:
            both = replace(both, hit_tokens=np.concatenate([held.hit_tokens, chunk.hit_tokens]))
    if np.any(np.diff(both.nanoseconds) < 0):
        return both.pick(np.argsort(both.nanoseconds, kind="stable"))
    return both


def _check_settled(path: object, rows: Rows, settled: int | None) -> None:
    if settled is not None and rows.nanoseconds[0] < settled:
        late = (settled - int(rows.nanoseconds[0])) / NANOSECONDS
        raise InputError(
            f"{path}:{rows.line[0]}: the request arrives {late:g} s before one far above it; sort the trace by arrival"
        )
