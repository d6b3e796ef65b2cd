"""A trace file as requests: its format, told from the first line, and its lines as CSV rows or JSON objects."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import IntArray
from costmodel.errors import InputError, UnknownNameError, name_hint, name_list, shown
from costmodel.units import MIB
from costmodel.words import percentage, plural

from .bounds import TOKENS
from .files import delimiter_of, kind_of_bytes, open_file, regular_size, shipped_table
from .quantities import UNITS, Kind, finite_number
from .sources import NESTED, TwiceError, json_kind, json_shown, nested_keys, unique_keys, value_at

MAX_LINE_BYTES = 16 * MIB
"""A request of a million tokens needs some 20 kB for its hash blocks; a longer line is a file without lines."""
SNIFF_BYTES = 64 * 1024
MAX_BLANK_BYTES = 4 * MIB
"""Blank lines in a row that are skipped; a compressed file of nothing else would take for ever."""
WANTED = "a trace file"
ROWS_PER_CHUNK = 2**16
"""Rows that are parsed before they become arrays."""
MAX_TOKENS = int(TOKENS.high)
"""Longest input or output that is believed [token]; more is another column or another unit."""
MOST_DIGITS = 16
"""Of a whole number that 64 bits hold; longer ones are read as any other number."""
MISSING = -(2**62)
"""Stands for a length that the file does not give."""
NANOSECONDS = 1_000_000_000
MAX_SECONDS = 4_500_000_000.0
"""Farthest arrival from the year 1970, either way (1827 .. 2112): 64 bits of nanoseconds hold the span of any two."""
HASH_KEY = "hash_ids"
A_DATE = "2023-11-16 18:15:46.68"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"

Progress = Callable[[float], None]
"""Told the share of the file that has been read [1]."""


class ArrivalUnit(StrEnum):
    """How the arrival column is written; AUTO tells dates from numbers and takes numbers as seconds."""

    AUTO = "auto"
    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    ISO = "iso"


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns in the file, and the unit of the first; cached: None where the file has no such column."""

    arrival: str
    isl: str
    osl: str
    unit: ArrivalUnit = ArrivalUnit.AUTO
    cached: str | None = None

    @property
    def token_names(self) -> tuple[str, ...]:
        """The columns of token counts: isl, osl and, if there is one, cached."""
        return self.isl, self.osl, *([] if self.cached is None else [self.cached])

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read: arrival and the token counts."""
        return self.arrival, *self.token_names


@dataclass(frozen=True, slots=True)
class Rows:
    """Requests of a trace, as arrays of one length.

    nanoseconds: arrival on the trace's own clock [ns]; line: line in the file, from 1; isl, osl: lengths [token].
    hash_ids, hash_counts: prefix blocks of all rows one after another, and how many each row has (None: no blocks).
    cached: input tokens that the engines of the log found in their prefix caches [token] (None: the log does not say).
    """

    nanoseconds: IntArray
    isl: IntArray
    osl: IntArray
    line: IntArray
    cached: IntArray | None = None
    hash_ids: NDArray[np.uint64] | None = None
    hash_counts: IntArray | None = None

    def __len__(self) -> int:
        return int(self.line.size)

    def pick(self, indices: NDArray[np.intp]) -> Rows:
        """Return the chosen rows in the order given, hash blocks and all."""
        columns = {name: getattr(self, name) for name in ("nanoseconds", "isl", "osl", "line", "cached")}
        rows = replace(self, **{name: column[indices] for name, column in columns.items() if column is not None})
        if self.hash_ids is None or self.hash_counts is None:
            return rows
        counts, first = self.hash_counts[indices], np.cumsum(self.hash_counts) - self.hash_counts
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        ids = self.hash_ids[np.repeat(first[indices], counts) + place]
        return replace(rows, hash_ids=ids, hash_counts=counts)


def first_bytes(path: Path) -> bytes:
    """Return the start of the trace's text without byte-order mark, or raise InputError if it is no text at all."""
    with ExitStack() as stack:
        stream = _open(path, stack)[0]
        start = _read_bytes(stream.read, SNIFF_BYTES, path, 1)
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
        getincrementaldecoder("utf-8")().decode(start)  # a character may be cut in two at the end of what was read
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the file is not UTF-8 text (offset {error.start}), a trace must be CSV or JSONL"
        ) from None
    return start.removeprefix(_MARK)


def read_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, without their ends, and their numbers (counted from 1)."""
    size = max(regular_size(path, WANTED), 1)
    number = blank = 0
    with ExitStack() as stack:
        stream, raw = _open(path, stack)
        while line := _read_bytes(stream.readline, MAX_LINE_BYTES + 1, path, number):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"{path}:{number}: the line is longer than {MAX_LINE_BYTES // MIB} MiB, "
                    "a trace has one request per line"
                )
            text = line.rstrip(b"\r\n") if number > 1 else line.removeprefix(_MARK).rstrip(b"\r\n")
            blank = 0 if text.strip() else blank + len(line)
            if blank > MAX_BLANK_BYTES:
                raise InputError(f"{path}:{number}: {blank // MIB} MiB of blank lines end here; give {WANTED}")
            if not blank:
                yield number, text
            if progress is not None and number % ROWS_PER_CHUNK == 0:
                progress(min(raw.tell() / size, 1.0))
    if progress is not None:
        progress(1.0)


def _open(path: Path, stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return the stream of text bytes and the one of file bytes below it, both closed by `stack`."""
    raw = stack.enter_context(open_file(path, WANTED))
    is_gzip = raw.read(2) == _GZIP
    raw.seek(0)
    if not is_gzip:
        return raw, raw
    text_stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
    return cast(BinaryIO, BufferedReader(cast(Any, text_stream), MIB)), raw


def _read_bytes(reader: Callable[[int], bytes], size: int, path: Path, line: int) -> bytes:
    try:
        return reader(size)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path}: the gzip data is cut off or damaged after line {line}; fetch it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read after line {line}: {error.strerror}") from None


Cells = list[str]
"""Arrival, ISL, OSL and, if the file has them, cached tokens of a request as written, empty where one is missing."""
Request = tuple[Cells, list[Any] | None]
"""A request as it is written, and its hash blocks."""


def rows_of(
    path: Path, lines: Iterable[tuple[int, bytes]], columns: Columns, read_request: Callable[[bytes], Request]
) -> Iterator[Rows]:
    """Yield the requests of lines in chunks; InputError, with its number, for a line that cannot be read."""
    unit = columns.unit
    lines_left = iter(lines)
    while chunk := list(islice(lines_left, ROWS_PER_CHUNK)):
        numbers: list[tuple[int, ...]] = []
        hashes: list[list[Any] | None] = []
        for number, line in chunk:
            try:
                (arrival, isl, osl, *rest), blocks = read_request(line)
                if unit is ArrivalUnit.AUTO:
                    unit = ArrivalUnit.ISO if _DATE.match(arrival.strip()) else ArrivalUnit.SECONDS
                time = _arrival(columns.arrival, arrival, unit)
                cached = [_tokens(str(columns.cached), text) for text in rest]
                numbers.append((time, _tokens(columns.isl, isl), _tokens(columns.osl, osl), number, *cached))
                hashes.append(blocks)
            except InputError as error:
                raise InputError(f"{path}:{number}: {error}") from None
        table = Rows(*(np.ascontiguousarray(column) for column in np.array(numbers, dtype=np.int64).T))
        block_lists = [blocks for blocks in hashes if blocks is not None]
        if len(block_lists) < len(hashes):
            yield table
            continue
        counts, ids = np.array([len(blocks) for blocks in block_lists], dtype=np.int64), [*chain(*block_lists)]
        if not all(type(block) is int and 0 <= block < 2**64 for block in ids):  # others by their digest
            digests = (blake2b(str(block).encode(errors="surrogatepass"), digest_size=8).digest() for block in ids)
            ids = np.frombuffer(b"".join(digests), dtype="<u8").tolist()
        yield replace(table, hash_ids=np.array(ids, dtype=np.uint64), hash_counts=counts)


def joined(chunks: list[Rows]) -> Rows:
    """The rows of all chunks together; without hash blocks, or cached tokens, where some have none."""
    columns = {field.name: [getattr(chunk, field.name) for chunk in chunks] for field in fields(Rows)}
    complete = {name: arrays for name, arrays in columns.items() if all(array is not None for array in arrays)}
    return Rows(**{name: np.concatenate(arrays) for name, arrays in complete.items()})


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


def csv_cells(header: str, columns: Sequence[str]) -> Callable[[bytes], list[str]]:
    """Reads a line of the CSV file with this header: the cells of these columns."""
    delimiter, names = split_header(header)
    places = [names.index(name) for name in columns]

    def read(line: bytes) -> list[str]:
        try:
            text = line.decode()
            fields = text.split(delimiter)
            if '"' in text or "\r" in text:
                fields = next(csv.reader([text], delimiter=delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error):
            raise InputError(f"the line is not valid CSV: {shown(line.decode(errors='replace'))}") from None
        if len(fields) != len(names):
            raise InputError(f"the row has {len(fields)} fields, the header has {len(names)}: {shown(text)}")
        return [fields[place].strip() for place in places]

    return read


def json_request(columns: Columns) -> Callable[[bytes], Request]:
    """Reads a line of a JSONL file."""

    def read(line: bytes) -> Request:
        record = parse_object(line)
        blocks = record.get(HASH_KEY)
        is_list = isinstance(blocks, list) and all(isinstance(block, int | str) for block in blocks)
        if blocks is not None and not is_list:
            raise InputError(f"{HASH_KEY} must be an array of whole numbers or strings, one per block of the prompt")
        arrival = value_at(record, columns.arrival)
        if arrival is None and columns.arrival not in record:
            raise InputError(f"the object has no key {shown(columns.arrival)}")
        counts = ((name, value_at(record, name)) for name in columns.token_names)
        tokens = ("" if value is None else _text(name, value) for name, value in counts)
        return [_text(columns.arrival, arrival), *tokens], blocks

    return read


def _text(name: str, value: object) -> str:
    if isinstance(value, bool | dict | list) or value is None:
        raise InputError(f"{name} is {json_shown(value)}, but must be a number")
    return value if isinstance(value, str) else repr(value)


def parse_object(raw: bytes, where: str = "", *, unique: bool = False) -> dict[str, Any]:
    """Return the JSON object on one line, or raise InputError that opens with `where`.

    unique: refuse a key that stands twice, which takes longer.
    """
    place, hook = f"{where}: " if where else "", unique_keys if unique else None
    try:
        value = json.loads(raw, object_pairs_hook=hook, parse_constant=_refuse_constant)
    except TwiceError:
        raise InputError(f"{place}the line has a key twice in one object; each must have a name of its own") from None
    except RecursionError:
        raise InputError(f"{place}the JSON is nested too deeply for a request") from None
    except ValueError as error:
        reason = str(error).split(":", maxsplit=1)[0]
        raise InputError(f"{place}the line is not valid JSON ({reason}); each line must be one object") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}the line is {json_kind(value)}, but must be one object per line")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _arrival(name: str, text: str, unit: ArrivalUnit) -> int:
    """One arrival [ns]."""
    if unit is ArrivalUnit.ISO:
        moment = parse_date(text)
        if moment is None:
            raise InputError(f"{name} is {shown(text)}, but must be a date and time such as {A_DATE}")
        if abs(moment) > MAX_SECONDS * NANOSECONDS:
            raise InputError(f"{name} is {shown(text)}, but must be a time between the years 1828 and 2112")
        return moment
    value = finite_number(text)
    if value is None:
        raise InputError(
            f"{name} is {shown(text)}, but must be a finite number of {unit.value}, or a date such as {A_DATE}"
        )
    seconds = value * UNITS[Kind.DURATION][unit]
    if not abs(seconds) <= MAX_SECONDS:
        units = (unit for unit in ("ms", "us", "ns") if abs(value) * UNITS[Kind.DURATION][unit] < MAX_SECONDS)
        hint = next((f"; if it is in {u}, state arrival_unit: {u} (--columns arrival_unit={u})" for u in units), "")
        raise InputError(f"{name} is {value:g} {unit.value}, but must be a time before the year 2112{hint}")
    return round(seconds * NANOSECONDS)


NO_VALUE = ("", "-", "n/a", "na", "nan", "null", "none")
"""How files write, in any case, that a length is missing."""


def _tokens(name: str, text: str) -> int:
    """One token count; its range is checked later."""
    if text.strip().lower() in NO_VALUE:
        return MISSING
    if text.isdecimal() and len(text) < MOST_DIGITS:
        return int(text)
    value = finite_number(text)
    if value is None or value != int(value) or abs(value) > 2**53:
        raise InputError(f"{name} is {shown(text)}, but must be a whole number of tokens from 1 to {MAX_TOKENS}")
    return int(value)


def parse_date(text: str) -> int | None:
    """Nanoseconds since 1970 of an ISO date and time, to the microsecond; without an offset it is UTC; None if not one.

    >>> parse_date("1970-01-01 00:00:01.5"), parse_date("1970-01-01T01:00:00+01:00"), parse_date("yesterday")
    (1500000000, 0, None)
    """
    day, _, time = text.strip().upper().replace("T", " ", 1).partition(" ")
    if not _DATE.fullmatch(day):
        return None
    try:
        moment = datetime.fromisoformat(f"{day} {re.sub(' +(?=[-+Z])', '', time)}")
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * (NANOSECONDS // 1_000_000)


# Formats: which columns or keys have the arrival and the lengths.

AUTO = "auto"
MOST_UNSERVABLE = 0.05
"""Share of a trace's rows that may be left out as no engine can serve them [1]; assumed: failed requests are 1.8 % and
1.9 % of the files of BurstGPT (Wang et al. 2024), and a wrong column or unit shows in most rows."""


TRACE_NAMES: Mapping[str, Any] = shipped_table("search_spaces", "trace_names.yaml")
FORMATS: Mapping[str, Mapping[str, Any]] = TRACE_NAMES["formats"]
TRACE_FORMATS = (AUTO, *FORMATS)
OWN_COLUMNS: Mapping[str, Columns] = {
    name: Columns(row["arrival"], row["isl"], row["osl"], ArrivalUnit(row["unit"]))
    for name, row in FORMATS.items()
    if "arrival" in row
}
"""Formats whose columns are given. Mooncake's hash_ids are left out where there are no prefixes, as in the benchmarks
that `pdplan deploy` writes."""
KNOWN_NAMES: Mapping[str, Sequence[str]] = TRACE_NAMES["columns"]
"""Column names that are recognised without a mapping, by role."""
CACHED_NAMES: Sequence[str] = TRACE_NAMES["cached"]
"""Names of the column that only some logs have."""


def read_rows(
    path: Path, layout: str, columns: Mapping[str, str] | None, limit: int | None, progress: Progress | None
) -> tuple[str, Columns, Rows]:
    """The format and the columns of a trace, and its first `limit` requests in the order of the file.

    layout: one of TRACE_FORMATS; columns: {arrival, isl, osl, arrival_unit} for formats csv and jsonl; progress is
    told the share of the file that has been read [1].
    """
    head = _head(path)
    form, columns_of = _layout(path, head, layout, columns)
    is_json = FORMATS[form]["json"]
    lines = read_lines(path, progress)
    if not is_json:
        next(lines)  # the header
    cells = None if is_json else csv_cells(head, columns_of.names)
    read_request = json_request(columns_of) if cells is None else lambda line: (cells(line), None)
    chunks = list(rows_of(path, islice(lines, limit), columns_of, read_request))
    if not chunks:
        raise InputError(f"{path}: the trace is empty: it has no requests")
    return form, columns_of, joined(chunks)


def servable(path: Path, rows: Rows, columns: Columns) -> tuple[Rows, str]:
    """The rows that an engine can serve, and in words how many are left out, if any: a length is missing or no length.

    InputError where so many are that it is no slip but another column or unit.
    """
    lengths = (columns.isl, rows.isl), (columns.osl, rows.osl)
    out = np.any([(tokens < 1) | (tokens > MAX_TOKENS) for _, tokens in lengths], axis=0)
    if not out.any():
        return rows, ""
    first, left_out = int(np.argmax(out)), int(np.count_nonzero(out))
    line, values = int(rows.line[first]), [(name, int(tokens[first])) for name, tokens in lengths]
    odd = [(name, length) for name, length in values if not 1 <= length <= MAX_TOKENS]
    fault = " and ".join(f"{name} is {'missing' if length == MISSING else length}" for name, length in odd)
    words = f"{left_out:,} of {plural(len(rows), 'row')} cannot be served"
    if left_out > MOST_UNSERVABLE * len(rows):
        raise InputError(
            f"{path}:{line}: {fault}, but must be a whole number of tokens from 1 to {MAX_TOKENS}; {words}, and at "
            f"most {percentage(MOST_UNSERVABLE)} may be left out"
        )
    return rows.pick(np.flatnonzero(~out)), f"{words} (line {line}: {fault})"


def is_range_query(start: bytes) -> bool:
    """Whether a file that starts so is an answer of Prometheus, and no trace of single requests.

    >>> is_range_query(b'{"status":"success","data":{'), is_range_query(b'{"timestamp": 0}')
    (True, False)
    """
    return re.match(rb'\s*\{\s*"status"\s*:\s*"(success|error)"', start) is not None


def _head(path: Path) -> str:
    """The first line of the file that is not blank."""
    start = first_bytes(path)
    if is_range_query(start):
        raise InputError(f"{path}: is an answer of Prometheus; `pdplan workload {path} -o FILE` makes a workload of it")
    if start.startswith((b"# HELP ", b"# TYPE ")):
        raise InputError(f"{path}: is a page of /metrics, which tells no times; give a range query of Prometheus")
    _, line = next(read_lines(path), (0, b""))
    if not line:
        raise InputError(f"{path}: the trace is empty: the file has no lines")
    return line.lstrip().decode(errors="replace")


def _layout(path: Path, head: str, layout: str, mapping: Mapping[str, str] | None) -> tuple[str, Columns]:
    """The format of a file with this first line, and its three columns: as the mapping says, or by known names."""
    where, is_auto = f"{path}:1", layout == AUTO
    if is_auto and head.startswith("["):
        raise InputError(f"{where}: the file is a JSON array, but must have one JSON object per line (JSONL)")
    is_json = head.startswith("{") if is_auto else FORMATS[layout]["json"]
    request = parse_object(head.encode(), where, unique=True) if is_json else {}
    names = list(nested_keys(request)) if is_json else _csv_names(head, where)
    form = layout
    if is_auto:
        formats = [] if mapping else [name for name in OWN_COLUMNS if FORMATS[name]["json"] == is_json]
        # Mooncake's, whatever keys stand beside its own; it counts whole milliseconds from 0, not from 1970
        start = request.get("timestamp")
        is_count = isinstance(start, int | float) and start % 1 == 0 and start < 1e9
        in_blocks = HASH_KEY in names and "chat_id" not in names and is_count
        alike = (name for name in formats if {*OWN_COLUMNS[name].names} <= {*names})
        exact = (name for name in alike if in_blocks or {*names} - {HASH_KEY} == {*OWN_COLUMNS[name].names})
        form = next(exact, "jsonl" if is_json else "csv")
    if form in OWN_COLUMNS:
        if mapping:
            raise InputError(f"{path}: format {layout} has columns of its own; name columns with csv or jsonl")
        for name in OWN_COLUMNS[form].names:
            _column(name, name, names, where)
        return form, OWN_COLUMNS[form]
    mapping = mapping or {}
    keys = (*KNOWN_NAMES, "arrival_unit")
    for key in mapping:
        if key not in keys:
            raise UnknownNameError("key of columns:", key, keys)
    arrival, isl, osl = (_column(role, mapping.get(role), names, where) for role in KNOWN_NAMES)
    suffix = _plain_name(arrival).rpartition("_")[2]
    unit = mapping.get("arrival_unit") or (suffix if suffix in ("s", "ms", "us", "ns") else AUTO)
    if unit not in list(ArrivalUnit):
        raise UnknownNameError("arrival_unit", unit, list(ArrivalUnit))
    by_name = _by_plain_name(names)
    cached = next((by_name[name] for name in CACHED_NAMES if name in by_name), None)
    return form, Columns(arrival, isl, osl, ArrivalUnit(unit), cached)


def _csv_names(head: str, where: str) -> list[str]:
    """The column names of a header."""
    names = split_header(head, where)[1]
    if len(names) < 3 or all(name.replace(".", "").isdigit() or _DATE.match(name) for name in names):
        raise InputError(f"{where}: the CSV header needs columns for arrival, ISL and OSL, but is {shown(head)}")
    for name in (name for name in names if names.count(name) > 1):
        raise InputError(f"{where}: the header has the column {shown(name)} twice")
    return names


def _plain_name(name: str) -> str:
    """A column name in lower case with underscores, as in KNOWN_NAMES."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _by_plain_name(names: Sequence[str]) -> dict[str, str]:
    """Columns by their plain name, of keys in objects the last one; of equal ones the nearest to the top."""
    by_name: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name.count(NESTED)):
        by_name.setdefault(_plain_name(name.removesuffix(f"{NESTED}value").rpartition(NESTED)[2]), name)
    return by_name


def _column(role: str, column: str | None, names: Sequence[str], where: str) -> str:
    """The column of a role: the one that is wanted, or the one with the best known name, nearest to the top."""
    if column is not None:
        if column in names:
            return column
        raise InputError(f"{where}: there is no column {shown(column)}; {name_hint(column, names, 'found')}")
    by_name = _by_plain_name(names)
    name_of = next((by_name[name] for name in KNOWN_NAMES[role] if name in by_name), None)
    if name_of is None:
        known_names = {known for role_names in KNOWN_NAMES.values() for known in role_names}
        roles = [role for role, role_names in KNOWN_NAMES.items() if not {*role_names} & by_name.keys()]
        free = [name for plain, name in by_name.items() if plain not in known_names]
        pairs = list(zip(roles, free if len(free) == len(roles) else ["COLUMN"] * len(roles), strict=True))
        unnamed = f"{where}: no column was recognized as {role} among {name_list(map(shown, names))}"
        in_yaml = ", ".join(f"{key}: {name}" for key, name in pairs)
        as_option = ",".join(f"{key}={name}" for key, name in pairs)
        ways = f"columns: {{{in_yaml}}} in a workload file or pdplan workload --columns {as_option}"
        raise InputError(f"{unnamed}; name it, e.g. {ways}; simulate takes known names alone")
    return name_of
