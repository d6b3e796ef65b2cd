"""CSV traces: whole blocks parsed with numpy; a block that is not plain is read again line by line.

Only the second way reports errors, so that the fast one stays free of line numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.workload import FloatArray

from .rows import MAX_SECONDS, MAX_TOKENS, MISSING, NANOSECONDS, ArrivalUnit, Columns, IntArray, Rows, nanoseconds_of
from .source import Block
from .timestamps import looks_like_date, parse_date, parse_dates

ByteArray = NDArray[np.uint8]

_NEWLINE, _RETURN = ord("\n"), ord("\r")
_DELIMITERS = (",", ";", "\t")
_MAX_FIELD = 40
"""Longest number or date [characters] that the fast way takes."""


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """Where the three columns stand in each line of a CSV file."""

    delimiter: str
    width: int
    columns: Columns
    places: tuple[int, int, int]


def delimiter_of(header: str) -> str:
    """The commonest of comma, semicolon and tab in a header line.

    >>> delimiter_of("isl;osl;share")
    ';'
    """
    return max(_DELIMITERS, key=header.count)


def split_header(line: str, where: str = "") -> tuple[str, list[str]]:
    """Return the delimiter and the column names of a header line.

    Raises InputError, opened by `where`, if the line is not one of a CSV file.

    >>> split_header("TIMESTAMP,ContextTokens,GeneratedTokens")[1]
    ['TIMESTAMP', 'ContextTokens', 'GeneratedTokens']
    """
    delimiter = delimiter_of(line)
    if "\r" in line:
        raise InputError(f"{where}: lines end with a carriage return alone; save the file with line feeds")
    try:
        names = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        raise InputError(f"{where}: the header is not valid CSV: {shown(line)}") from None
    return delimiter, [name.strip() for name in names]


def csv_layout(header: str, columns: Columns) -> CsvLayout:
    """Find `columns` in the header line."""
    delimiter, names = split_header(header)
    isl, osl = names.index(columns.isl), names.index(columns.osl)
    return CsvLayout(delimiter, len(names), columns, (names.index(columns.arrival), isl, osl))


def csv_rows(path: Path, blocks: Iterable[Block], layout: CsvLayout) -> Iterator[Rows]:
    """Yield the requests of a CSV trace, one chunk per block; the first line of the first block is the header."""
    unit = layout.columns.unit
    header_pending = True
    for block in blocks:
        body = _after_header(block) if header_pending else block
        header_pending = False
        if unit is ArrivalUnit.AUTO:
            unit = _unit_of_first(body, layout)
        rows = _fast_rows(body, layout, unit)
        if rows is None:
            rows = _careful_rows(path, body, layout, unit)
        if len(rows):
            yield rows


def _after_header(block: Block) -> Block:
    """Return the block without its header line and the blank lines above that."""
    blank = len(block.data) - len(block.data.lstrip())
    end = block.data.index(b"\n", blank) + 1
    return Block(block.data[end:], block.first_line + block.data.count(b"\n", 0, end))


def _unit_of_first(block: Block, layout: CsvLayout) -> ArrivalUnit:
    """Tell from the first row with enough fields whether arrivals are dates or seconds."""
    for line in block.data.splitlines():
        fields = line.decode(errors="replace").split(layout.delimiter)
        if len(fields) == layout.width:
            date = looks_like_date(fields[layout.places[0]].strip('" '))
            return ArrivalUnit.ISO if date else ArrivalUnit.SECONDS
    return ArrivalUnit.AUTO


def _fast_rows(block: Block, layout: CsvLayout, unit: ArrivalUnit) -> Rows | None:
    """Parse a block whose lines all have the same number of unquoted fields; None if it is not so plain."""
    fields = _split_fields(block.data, layout)
    if fields is None:
        return None
    buffer, starts, ends = fields
    arrival, isl, osl = layout.places
    lengths = [_parse_tokens(buffer, starts[:, place], ends[:, place]) for place in (isl, osl)]
    nanoseconds = _parse_arrivals(buffer, starts[:, arrival], ends[:, arrival], unit)
    if nanoseconds is None or lengths[0] is None or lengths[1] is None:
        return None
    line = np.arange(block.first_line, block.first_line + len(starts), dtype=np.int64)
    return Rows(nanoseconds, lengths[0], lengths[1], line)


def _split_fields(data: bytes, layout: CsvLayout) -> tuple[ByteArray, IntArray, IntArray] | None:
    """Return the bytes and the start and end of each field, shape (lines, columns)."""
    if not data or b'"' in data:
        return None
    buffer = np.frombuffer(data, dtype=np.uint8)
    marks = np.flatnonzero((buffer == ord(layout.delimiter)) | (buffer == _NEWLINE))
    if marks.size % layout.width:
        return None
    starts = np.concatenate([[0], marks[:-1] + 1]).reshape(-1, layout.width)
    ends = marks.reshape(-1, layout.width)
    closing = buffer[ends] == _NEWLINE
    if not closing[:, -1].all() or closing[:, :-1].any():
        return None
    if b"\r" in data:
        ends[:, -1] -= buffer[ends[:, -1] - 1] == _RETURN
    return buffer, starts, ends


def _parse_tokens(buffer: ByteArray, start: IntArray, end: IntArray) -> IntArray | None:
    """Parse whole numbers; None if one has a sign, a fraction or another character."""
    width = end - start
    longest = int(width.max())
    if width.min() < 1 or longest > 9:
        return None
    value = np.zeros(start.size, dtype=np.int64)
    for place in range(longest):
        digit = buffer[end - 1 - place] - np.uint8(ord("0"))
        if place >= int(width.min()):
            digit = np.where(width > place, digit, 0).astype(np.uint8)
        if digit.max() > 9:
            return None
        value += digit.astype(np.int64) * 10**place
    return value


def _parse_arrivals(buffer: ByteArray, start: IntArray, end: IntArray, unit: ArrivalUnit) -> IntArray | None:
    if unit is ArrivalUnit.ISO:
        return parse_dates(buffer, start, end)
    values = _parse_numbers(buffer, start, end)
    if values is None or not np.all(np.abs(values) * unit.seconds <= MAX_SECONDS):
        return None
    return np.rint(values * unit.seconds * NANOSECONDS).astype(np.int64)


def _parse_numbers(buffer: ByteArray, start: IntArray, end: IntArray) -> FloatArray | None:
    """Parse decimal numbers; None if one is empty, over-long, not a number or not finite."""
    width = end - start
    longest = int(width.max())
    if width.min() < 1 or longest > _MAX_FIELD:
        return None
    offset = np.arange(longest)
    inside = offset < width[:, None]
    text = np.where(inside, buffer[np.minimum(start[:, None] + offset, buffer.size - 1)], 0).astype(np.uint8)
    try:
        values = text.view(f"S{longest}").ravel().astype(np.float64)
    except ValueError:
        return None
    return values if bool(np.all(np.isfinite(values))) else None


def _careful_rows(path: Path, block: Block, layout: CsvLayout, unit: ArrivalUnit) -> Rows:
    """Parse a block line by line; blank lines are skipped; raises InputError with the line number."""
    found: list[tuple[int, int, int, int]] = []
    for number, raw in enumerate(block.data.split(b"\n")[:-1], block.first_line):
        if raw.strip():
            found.append((*_parse_line(f"{path}:{number}", raw, layout, unit), number))
    table = np.array(found, dtype=np.int64).reshape(-1, 4)
    arrival, isl, osl, line = (np.ascontiguousarray(column) for column in table.T)
    return Rows(arrival, isl, osl, line)


def _parse_line(where: str, raw: bytes, layout: CsvLayout, unit: ArrivalUnit) -> tuple[int, int, int]:
    try:
        fields = next(csv.reader([raw.decode()], delimiter=layout.delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{where}: the line is not valid CSV: {shown(raw.decode(errors='replace'))}") from None
    if len(fields) != layout.width:
        raise InputError(
            f"{where}: the row has {len(fields)} fields, the header has {layout.width}: "
            f"{shown(raw.decode(errors='replace'))}"
        )
    arrival, isl, osl = (fields[place].strip() for place in layout.places)
    names = layout.columns
    return (
        parse_arrival(f"{where}: {names.arrival}", arrival, unit),
        parse_tokens(f"{where}: {names.isl}", isl),
        parse_tokens(f"{where}: {names.osl}", osl),
    )


def parse_arrival(where: str, text: str, unit: ArrivalUnit) -> int:
    """Return one arrival in nanoseconds, or raise InputError that opens with `where`."""
    if unit is ArrivalUnit.ISO:
        moment = parse_date(text)
        if moment is None:
            raise InputError(f"{where} is {shown(text)}, but must be a date and time such as 2023-11-16 18:15:46.68")
        if abs(moment) > MAX_SECONDS * NANOSECONDS:
            raise InputError(f"{where} is {shown(text)}, but must be a time between the years 1828 and 2112")
        return moment
    value = _finite(text)
    if value is None:
        raise InputError(f"{where} is {shown(text)}, but must be a finite number of {unit.value}")
    return nanoseconds_of(value, unit, where)


def parse_tokens(where: str, text: str) -> int:
    """Return one token count, or raise InputError that opens with `where`; its range is checked later.

    >>> parse_tokens("", "17"), parse_tokens("", "") == MISSING
    (17, True)
    """
    if not text:
        return MISSING
    value = _finite(text)
    if value is None or value != int(value) or abs(value) > 2**53:
        raise InputError(f"{where} is {shown(text)}, but must be a whole number of tokens from 1 to {MAX_TOKENS}")
    return int(value)


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
