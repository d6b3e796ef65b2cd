"""The bytes of a trace file as rows: blocks of whole lines, parsed as CSV or as one JSON object per line.

A block of plain CSV is parsed by pandas; any other is read again line by line, and only that way reports errors.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.units import MIB
from search_spaces.files import kind_of_bytes, open_file, regular_size
from search_spaces.json_source import json_kind, json_shown

from .rows import (
    MAX_SECONDS,
    MAX_TOKENS,
    MISSING,
    NANOSECONDS,
    ArrivalUnit,
    Columns,
    Rows,
    nanoseconds_of,
    nested_value,
)

BLOCK_BYTES = 2 * MIB
MAX_LINE_BYTES = 16 * MIB
"""A request of a million tokens needs some 20 kB for its hash blocks; a longer line is a file without lines."""
SNIFF_BYTES = 64 * 1024
MAX_BLANK_BYTES = 32 * MIB
"""Blank lines in a row that are skipped; a compressed file of nothing else would take for ever."""
WANTED = "a trace file"

ROWS_PER_CHUNK = 8192
"""Objects of a JSONL file that are handed on at once."""
HASH_KEY = "hash_ids"
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:[Zz]|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_CLOCK_LENGTH = 19
"""Characters of YYYY-MM-DD HH:MM:SS."""
_GZIP = b"\x1f\x8b"
_DELIMITERS = (",", ";", "\t")

Progress = Callable[[float], None]
"""Told the share of the file that has been read [1]."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines, each with its newline, and the number of the first of them (counted from 1)."""

    data: bytes
    first_line: int


def first_bytes(path: Path) -> bytes:
    """Return the start of the trace's text without byte-order mark, or raise InputError if it is no text at all."""
    with ExitStack() as stack:
        start = _read(_open(path, stack)[0], SNIFF_BYTES, path, 1)
    kind = kind_of_bytes(start)
    if kind:
        raise InputError(f"{path}: the file is {kind}, a trace must be plain or gzip-compressed CSV or JSONL in UTF-8")
    control = next((place for place, byte in enumerate(start) if byte < 9), None)
    if control is not None:
        raise InputError(
            f"{path}: the file is binary (byte 0x{start[control]:02x} at offset {control}), "
            "a trace must be plain or gzip-compressed CSV or JSONL"
        )
    try:
        # A character may be cut in two at the end of the piece that was read.
        start[: max(len(start) - 4, 0)].decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 8:
            raise InputError(
                f"{path}: the file is not UTF-8 text (offset {error.start}), a trace must be CSV or JSONL"
            ) from None
    return start.removeprefix(b"\xef\xbb\xbf")


def is_range_query(start: bytes) -> bool:
    """Whether a file that starts so is an answer of Prometheus, and no trace of single requests.

    >>> is_range_query(b'{"status":"success","data":{'), is_range_query(b'{"timestamp": 0}')
    (True, False)
    """
    return re.match(rb'\s*\{\s*"status"\s*:\s*"(success|error)"', start) is not None


def read_blocks(path: Path, progress: Progress | None = None) -> Iterator[Block]:
    """Yield the file as blocks of whole lines, about BLOCK_BYTES each; the last line gets a newline if it has none."""
    size = max(regular_size(path, WANTED), 1)
    line, blank, rest = 1, 0, b""
    with ExitStack() as stack:
        stream, raw = _open(path, stack)
        while piece := _read(stream, BLOCK_BYTES, path, line):
            data = rest + piece
            if line == 1 and not rest:
                data = data.removeprefix(b"\xef\xbb\xbf")
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            if len(rest) > MAX_LINE_BYTES:
                long_line = line + data.count(b"\n", 0, end)
                raise InputError(
                    f"{path}:{long_line}: the line is longer than {MAX_LINE_BYTES // MIB} MiB, "
                    "a trace has one request per line"
                )
            whole = data[:end]
            blank = 0 if whole.strip() else blank + end
            if blank > MAX_BLANK_BYTES:
                raise InputError(f"{path}:{line}: {blank // MIB} MiB of blank lines end here; give {WANTED}")
            if end and not blank:
                yield Block(whole, line)
            line += whole.count(b"\n")
            if progress is not None:
                progress(min(raw.tell() / size, 1.0))
    if rest:
        yield Block(rest + b"\n", line)


def _open(path: Path, stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return the stream of text bytes and the one of file bytes below it, both closed by `stack`."""
    raw = stack.enter_context(open_file(path, WANTED))
    packed = raw.read(2) == _GZIP
    raw.seek(0)
    return (cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=raw))), raw) if packed else (raw, raw)


def _read(stream: BinaryIO, size: int, path: Path, line: int) -> bytes:
    try:
        return stream.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path}: the gzip data is cut off or damaged after line {line}; fetch it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read after line {line}: {error.strerror}") from None


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
        rows = _plain_rows(body, layout, unit)
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


def _plain_rows(block: Block, layout: CsvLayout, unit: ArrivalUnit) -> Rows | None:
    """Parse a block of equally many unquoted fields a line with pandas; None where the block is not so plain."""
    lines = _lines_of_equal_width(block.data, layout)
    if not lines:
        return None
    import pandas as pd  # it takes as long to load as a small trace to read

    table = pd.read_csv(
        BytesIO(block.data),
        sep=layout.delimiter,
        header=None,
        usecols=list(set(layout.places)),
        dtype=str,
        na_filter=False,
        skip_blank_lines=False,
        quoting=csv.QUOTE_NONE,
    )
    try:
        arrival, isl, osl = (table[place] for place in layout.places)
        if unit is ArrivalUnit.ISO:
            if arrival.str.len().min() < _CLOCK_LENGTH:
                return None
            moments = pd.to_datetime(arrival, format="ISO8601", utc=True)
            nanoseconds = moments.astype("datetime64[ns, UTC]").astype(np.int64).to_numpy()
        else:
            seconds = arrival.to_numpy().astype(np.float64) * unit.seconds
            nanoseconds = np.rint(np.clip(seconds, -MAX_SECONDS - 1.0, MAX_SECONDS + 1.0) * NANOSECONDS)
        if not np.all(np.abs(nanoseconds) <= MAX_SECONDS * NANOSECONDS):
            return None
        lengths = [tokens.to_numpy().astype(np.int64) for tokens in (isl, osl)]
    except ValueError:  # a number or a date that is none, or that 64 bits do not hold
        return None
    line = np.arange(block.first_line, block.first_line + lines, dtype=np.int64)
    return Rows(nanoseconds.astype(np.int64), lengths[0], lengths[1], line)


def _lines_of_equal_width(data: bytes, layout: CsvLayout) -> int:
    """How many lines the block has; 0 where one is quoted or has another number of fields than the header."""
    if b'"' in data:
        return 0
    buffer = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(buffer == ord("\n"))
    marks = np.searchsorted(np.flatnonzero(buffer == ord(layout.delimiter)), ends)
    return int(ends.size) if np.all(np.diff(marks, prepend=0) == layout.width - 1) else 0


def _careful_rows(path: Path, block: Block, layout: CsvLayout, unit: ArrivalUnit) -> Rows:
    """Parse a block line by line; blank lines are skipped; raises InputError with the line number."""
    rows: list[tuple[int, int, int, int]] = []
    for number, raw in enumerate(block.data.split(b"\n")[:-1], block.first_line):
        if raw.strip():
            rows.append((*_parse_line(f"{path}:{number}", raw, layout, unit), number))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
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


Parsed = tuple[int, int, int, int, list[Any] | None]
"""Arrival [ns], ISL, OSL [token], line, hash blocks."""


def parse_object(where: str, raw: bytes) -> dict[str, Any]:
    """Return the JSON object on one line, or raise InputError that opens with `where`."""
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError(f"{where}: the JSON is nested too deeply for a request") from None
    except ValueError as error:
        reason = str(error).split(":", maxsplit=1)[0]
        raise InputError(f"{where}: the line is not valid JSON ({reason}); each line must be one object") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: the line is {json_kind(value)}, but must be one object per line")
    return value


def jsonl_rows(path: Path, blocks: Iterable[Block], columns: Columns) -> Iterator[Rows]:
    """Yield the requests of a JSONL trace, at most ROWS_PER_CHUNK at once; blank lines are skipped."""
    unit = columns.unit
    pending: list[Parsed] = []
    for block in blocks:
        for number, raw in enumerate(block.data.split(b"\n")[:-1], block.first_line):
            if not raw.strip():
                continue
            record = parse_object(f"{path}:{number}", raw)
            if unit is ArrivalUnit.AUTO:
                first = nested_value(record, columns.arrival)
                unit = ArrivalUnit.ISO if isinstance(first, str) and looks_like_date(first) else ArrivalUnit.SECONDS
            pending.append(_parse_record(f"{path}:{number}", record, columns, unit, number))
            if len(pending) == ROWS_PER_CHUNK:
                yield _as_rows(pending)
                pending = []
    if pending:
        yield _as_rows(pending)


def _parse_record(where: str, record: dict[str, Any], columns: Columns, unit: ArrivalUnit, line: int) -> Parsed:
    blocks = record.get(HASH_KEY)
    if blocks is not None and not _is_block_list(blocks):
        raise InputError(
            f"{where}: {HASH_KEY} must be an array of whole numbers or strings, one per block of the prompt"
        )
    return (
        parse_arrival(f"{where}: {columns.arrival}", _text(where, record, columns.arrival), unit),
        _tokens(where, record, columns.isl),
        _tokens(where, record, columns.osl),
        line,
        blocks,
    )


def _tokens(where: str, record: dict[str, Any], key: str) -> int:
    """Return a length; one that is not there, as of a request that failed, is MISSING."""
    missing = nested_value(record, key) is None
    return MISSING if missing else parse_tokens(f"{where}: {key}", _text(where, record, key))


def _text(where: str, record: dict[str, Any], key: str) -> str:
    value = nested_value(record, key)
    if value is None and key not in record:
        raise InputError(f"{where}: the object has no key {shown(key)}")
    if isinstance(value, bool | dict | list) or value is None:
        raise InputError(f"{where}: {key} is {json_shown(value)}, but must be a number")
    return value if isinstance(value, str) else repr(value)


def _is_block_list(blocks: object) -> bool:
    return isinstance(blocks, list) and all(isinstance(block, int | str) for block in blocks)


def _as_rows(parsed: list[Parsed]) -> Rows:
    table = np.array([row[:4] for row in parsed], dtype=np.int64)
    arrival, isl, osl, line = (np.ascontiguousarray(column) for column in table.T)
    if any(row[4] is None for row in parsed):
        return Rows(arrival, isl, osl, line)
    blocks = [row[4] or [] for row in parsed]
    counts = np.array([len(ids) for ids in blocks], dtype=np.int64)
    return Rows(arrival, isl, osl, line, hash_ids=_hash_array(list(chain.from_iterable(blocks))), hash_counts=counts)


def _hash_array(ids: list[Any]) -> NDArray[np.uint64]:
    """Return block ids as 64 bits: small whole numbers as they are, larger ones and texts by their digest."""
    if all(type(block) is int and 0 <= block < 2**64 for block in ids):
        return np.array(ids, dtype=np.uint64)
    digests = (blake2b(str(block).encode(errors="surrogatepass"), digest_size=8).digest() for block in ids)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def looks_like_date(text: str) -> bool:
    """Tell whether the text starts as an ISO date does.

    >>> looks_like_date("2023-11-16 18:15:46.6805900"), looks_like_date("46.68")
    (True, False)
    """
    return re.match(r"\d{4}-\d\d-\d\d", text.strip()) is not None


def parse_date(text: str) -> int | None:
    """Return nanoseconds since 1970 of one ISO date and time; without an offset it is UTC; None if it is not one.

    >>> parse_date("1970-01-01 00:00:01.5"), parse_date("1970-01-01T01:00:00+01:00"), parse_date("yesterday")
    (1500000000, 0, None)
    """
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(digits) for digits in match.groups()[:6])
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    seconds = round((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    if match[8]:
        shift = 3600 * int(match[9]) + 60 * int(match[10])
        seconds -= shift if match[8] == "+" else -shift
    return seconds * NANOSECONDS + int((match[7] or "0").ljust(9, "0"))
