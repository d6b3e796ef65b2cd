"""Formats of traces, found from the first line of a file: which columns or keys have the arrival and the lengths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

import numpy as np

from costmodel.errors import InputError, UnknownNameError, nearest_name
from costmodel.quoting import name_list, shown
from costmodel.words import percentage

from .parsing import (
    HASH_KEY,
    MAX_TOKENS,
    MISSING,
    NESTED,
    ArrivalUnit,
    Columns,
    Progress,
    Rows,
    csv_cells,
    first_bytes,
    joined,
    json_cells,
    nested_keys,
    parse_object,
    read_lines,
    rows_of,
    split_header,
)

AUTO = "auto"
MOST_UNSERVABLE = 0.05
"""Share of a trace's rows that may be left out as no engine can serve them [1]; assumed: failed requests are 1.8 % and
1.9 % of the files of BurstGPT (Wang et al. 2024), and a wrong column or unit shows in most rows."""


class TraceFormat(StrEnum):
    """How a trace file is written."""

    AZURE = "azure"
    """CSV of the Azure Public Dataset, 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens."""
    MOONCAKE = "mooncake"
    """JSONL of Mooncake: timestamp [ms], input_length, output_length, hash_ids."""
    CSV = "csv"
    """Any CSV with a header; columns are named by the user or recognised."""
    JSONL = "jsonl"
    """Any file with one JSON object per line; keys are named by the user or recognised."""


OWN_COLUMNS: Mapping[TraceFormat, Columns] = {
    TraceFormat.AZURE: Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", ArrivalUnit.ISO),
    TraceFormat.MOONCAKE: Columns("timestamp", "input_length", "output_length", ArrivalUnit.MILLISECONDS),
}
"""Formats whose columns are given. Mooncake's hash_ids are left out where there are no prefixes, as in the benchmarks
that `pdplan deploy` writes."""

KNOWN_NAMES: Mapping[str, tuple[str, ...]] = {
    "arrival": (
        *("arrival", "arrival_s", "arrival_ms", "arrival_time", "arrived_at", "timestamp", "timestamp_ms", "time"),
        *("arrival_timestamp", "arrival_time_ns", "request_start_ns", "starttime", "start_time", "created_at"),
        "created",
    ),
    "isl": (
        *("isl", "input_length", "input_tokens", "prompt_tokens", "context_tokens", "contexttokens"),
        *("num_prefill_tokens", "request_tokens", "prompt_len", "input_len"),
        *("prompt_size", "input_toks", "usage_prompt_tokens", "input_sequence_length"),
    ),
    "osl": (
        *("osl", "output_length", "output_tokens", "completion_tokens", "generated_tokens", "generatedtokens"),
        *("num_decode_tokens", "response_tokens", "output_len"),
        *("token_size", "output_toks", "usage_completion_tokens", "output_sequence_length"),
    ),
}
"""Column names that are recognised without a mapping, lower case with underscores; of keys in objects the last one.

The last lines of each are those of SplitwiseSim, LLMServingSim, AIPerf's records, LiteLLM's and OpenAI's logs."""


class UnnamedColumnError(InputError):
    """No column has a name that tells its role; the message says how a workload.yaml names it.

    told: what is wrong; example: the role and a name such as the column's, for messages that name it otherwise.
    """

    def __init__(self, where: str, role: str, names: Sequence[str]) -> None:
        self.told = f"{where}: no column was recognized as {role} among {name_list(map(shown, names))}"
        self.example = role, KNOWN_NAMES[role][1]
        super().__init__(f"{self.told}; name it, e.g. columns: {{{role}: {KNOWN_NAMES[role][1]}}}")


@dataclass(frozen=True, slots=True)
class Unservable:
    """Rows of a trace that no engine can serve: a length is missing, below one token or beyond all belief.

    rows: of the trace; count: of them those that are left out; line: of the first one in the file; fault: what is wrong
    with it.
    """

    rows: int
    count: int = 0
    line: int = 0
    fault: str = ""

    @property
    def words(self) -> str:
        """How many rows are left out, and the first of them; empty where none is."""
        if not self.count:
            return ""
        rows = "row" if self.rows == 1 else "rows"
        return f"{self.count:,} of {self.rows:,} {rows} cannot be served (line {self.line}: {self.fault})"


@dataclass(frozen=True, slots=True)
class TraceRows:
    """A trace file as it was read: the rows that can be served, in the order of the file, and those left out."""

    path: Path
    format: TraceFormat
    columns: Columns
    rows: Rows
    unservable: Unservable


def read_requests(
    path: Path, wanted: str, columns: Mapping[str, str] | None, limit: int | None, progress: Progress | None
) -> TraceRows:
    """Read a trace, of its first `limit` requests.

    Rows that no engine can serve are left out; InputError where they are many.

    wanted: a TraceFormat or "auto"; columns: {arrival, isl, osl, arrival_unit} for formats csv and jsonl; progress is
    told the share of the file that has been read [1].
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit: {limit} must be at least 1")
    head = _head(path)
    form, named = _layout(path, head, wanted, columns)
    is_json = form in (TraceFormat.MOONCAKE, TraceFormat.JSONL)
    lines = read_lines(path, progress)
    if not is_json:
        next(lines)  # the header
    read_cells = json_cells(named) if is_json else csv_cells(head, named)
    chunks = list(rows_of(path, islice(lines, limit), named, read_cells))
    if not chunks:
        raise InputError(f"{path}: the trace is empty: it has no requests")
    return TraceRows(path, form, named, *_servable(path, joined(chunks), named))


def _servable(path: Path, rows: Rows, columns: Columns) -> tuple[Rows, Unservable]:
    """The rows that can be served; InputError where so many cannot that it is no slip but another column or unit."""
    lengths = (columns.isl, rows.isl), (columns.osl, rows.osl)
    odd = [(tokens < 1) | (tokens > MAX_TOKENS) for _, tokens in lengths]
    out = odd[0] | odd[1]
    if not out.any():
        return rows, Unservable(len(rows))
    first = int(np.argmax(out))
    name, tokens = lengths[0] if odd[0][first] else lengths[1]
    fault = f"{name} is {'missing' if tokens[first] == MISSING else tokens[first]}"
    left_out = Unservable(len(rows), int(np.count_nonzero(out)), int(rows.line[first]), fault)
    if left_out.count > MOST_UNSERVABLE * left_out.rows:
        raise InputError(
            f"{path}:{left_out.line}: {fault}, but must be a whole number of tokens from 1 to {MAX_TOKENS}; "
            f"{left_out.count:,} of {left_out.rows:,} rows cannot be served; at most {percentage(MOST_UNSERVABLE)} may "
            "be"
        )
    return rows.pick(np.flatnonzero(~out)), left_out


def is_range_query(start: bytes) -> bool:
    """Whether a file that starts so is an answer of Prometheus, and no trace of single requests.

    >>> is_range_query(b'{"status":"success","data":{'), is_range_query(b'{"timestamp": 0}')
    (True, False)
    """
    return re.match(rb'\s*\{\s*"status"\s*:\s*"(success|error)"', start) is not None


def detect_format(path: Path) -> TraceFormat:
    """Return the format of a trace file from its first line, or raise InputError if it is no trace."""
    return _detect(path, _head(path))


def _head(path: Path) -> str:
    """The first line of the file that is not blank."""
    start = first_bytes(path)
    if is_range_query(start):
        raise InputError(f"{path}: is an answer of Prometheus; `pdplan workload {path} -o FILE` makes a workload of it")
    _, line = next(read_lines(path), (0, b""))
    if not line:
        raise InputError(f"{path}: the trace is empty: the file has no lines")
    return line.lstrip().decode(errors="replace")


def _detect(path: Path, head: str) -> TraceFormat:
    if head.startswith("["):
        raise InputError(f"{path}:1: the file is a JSON array, but must have one JSON object per line (JSONL)")
    if head.startswith("{"):
        keys = set(parse_object(f"{path}:1", head.encode()))
        mooncake = {*OWN_COLUMNS[TraceFormat.MOONCAKE].names, HASH_KEY}
        return TraceFormat.MOONCAKE if keys | {HASH_KEY} == mooncake else TraceFormat.JSONL
    names = set(split_header(head, f"{path}:1")[1])
    return TraceFormat.AZURE if names == set(OWN_COLUMNS[TraceFormat.AZURE].names) else TraceFormat.CSV


def _layout(path: Path, head: str, wanted: str, mapping: Mapping[str, str] | None) -> tuple[TraceFormat, Columns]:
    """The format of a file with this first line, and its three columns: as the mapping says, or by known names."""
    formats = [AUTO, *TraceFormat]
    if wanted not in formats:
        raise UnknownNameError("trace format", wanted, formats)
    form = _detect(path, head) if wanted == AUTO else TraceFormat(wanted)
    if mapping and form in OWN_COLUMNS:
        if wanted != AUTO:
            raise InputError(f"{path}: format {wanted} has columns of its own; name columns with csv or jsonl")
        form = TraceFormat.JSONL if head.startswith("{") else TraceFormat.CSV
    names, where = _names(path, head, form), f"{path}:1"
    if form in OWN_COLUMNS:
        for name in OWN_COLUMNS[form].names:
            _column(name, name, names, where)
        return form, OWN_COLUMNS[form]
    mapping = mapping or {}
    keys = (*KNOWN_NAMES, "arrival_unit")
    for key in mapping:
        if key not in keys:
            raise UnknownNameError("key of columns:", key, keys)
    arrival, isl, osl = (_column(role, mapping.get(role), names, where) for role in KNOWN_NAMES)
    suffix = _normalized(arrival).rpartition("_")[2]
    unit = mapping.get("arrival_unit") or (suffix if suffix in ("s", "ms", "us", "ns") else AUTO)
    if unit not in list(ArrivalUnit):
        raise UnknownNameError("arrival_unit", unit, list(ArrivalUnit))
    return form, Columns(arrival, isl, osl, ArrivalUnit(unit))


def _names(path: Path, head: str, form: TraceFormat) -> list[str]:
    """The column names or keys of the first line."""
    if form in (TraceFormat.MOONCAKE, TraceFormat.JSONL):
        return list(nested_keys(parse_object(f"{path}:1", head.encode())))
    names = split_header(head, f"{path}:1")[1]
    if len(names) < 3 or all(name.replace(".", "").isdigit() for name in names):
        raise InputError(f"{path}:1: the CSV header needs columns for arrival, ISL and OSL, but is {shown(head)}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}:1: the header has the column {shown(twice)} twice")
    return names


def _normalized(name: str) -> str:
    """A column name in lower case with underscores, as in KNOWN_NAMES."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _column(role: str, wanted: str | None, names: Sequence[str], where: str) -> str:
    """The column of a role: the one that is wanted, or the one with the best known name, nearest to the top."""
    if wanted is not None:
        if wanted in names:
            return wanted
        close = nearest_name(wanted, names)
        hint = f"did you mean {shown(close)}?" if close else f"found: {name_list(map(shown, names))}"
        raise InputError(f"{where}: there is no column {shown(wanted)}; {hint}")
    by_name: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name.count(NESTED)):
        by_name.setdefault(_normalized(name.removesuffix(f"{NESTED}value").rpartition(NESTED)[2]), name)
    recognized = next((by_name[name] for name in KNOWN_NAMES[role] if name in by_name), None)
    if recognized is None:
        raise UnnamedColumnError(where, role, names)
    return recognized
