"""Rows of a trace: what every reader yields, and how the columns of a file are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError, UnknownNameError, nearest_name
from costmodel.quoting import name_list, shown
from costmodel.words import percentage
from costmodel.workload import FloatArray

IntArray = NDArray[np.int64]

MAX_TOKENS = 2**24
"""Longest input or output that is believed [token]; more is another column or another unit."""
MISSING = -(2**62)
"""Stands for a length that the file does not give."""
MOST_UNSERVABLE = 0.05
"""Share of a trace's rows that may be left out as no engine can serve them [1]; assumed: failed requests are 1.8 % and
1.9 % of the files of BurstGPT (Wang et al. 2024), and a wrong column or unit shows in most rows."""
MOST_TOGETHER = 2 * MAX_TOKENS
"""Longest ISL + OSL [token]."""
NANOSECONDS = 1_000_000_000
MAX_SECONDS = 4_500_000_000.0
"""Farthest arrival from the year 1970, either way (1827 .. 2112): 64 bits of nanoseconds hold the span of any two."""


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


class ArrivalUnit(StrEnum):
    """How the arrival column is written; AUTO tells dates from numbers and takes numbers as seconds."""

    AUTO = "auto"
    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    ISO = "iso"

    @property
    def seconds(self) -> float:
        """Length of one unit [s]."""
        return {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}.get(self.value, 1.0)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the three columns in the file, and the unit of the first."""

    arrival: str
    isl: str
    osl: str
    unit: ArrivalUnit = ArrivalUnit.AUTO

    @property
    def names(self) -> tuple[str, str, str]:
        """The three column names: arrival, isl, osl."""
        return self.arrival, self.isl, self.osl


AZURE_COLUMNS = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", ArrivalUnit.ISO)
MOONCAKE_COLUMNS = Columns("timestamp", "input_length", "output_length", ArrivalUnit.MILLISECONDS)

KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "arrival": (
        "arrival",
        "arrival_s",
        "arrival_ms",
        "arrival_time",
        "arrived_at",
        "timestamp",
        "timestamp_ms",
        "time",
        *(
            "arrival_timestamp",
            "arrival_time_ns",
            "request_start_ns",
            "starttime",
            "start_time",
            "created_at",
            "created",
        ),
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


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive requests of a trace, as arrays of one length.

    nanoseconds: arrival on the trace's own clock [ns]; line: line in the file, from 1; isl, osl: lengths [token].
    hash_ids, hash_counts: prefix blocks of all rows one after another, and how many each row has (None: no blocks).
    hit_tokens: input tokens of each row that an infinite prefix cache holds [token] (None: unknown).
    """

    nanoseconds: IntArray
    isl: IntArray
    osl: IntArray
    line: IntArray
    hash_ids: NDArray[np.uint64] | None = None
    hash_counts: IntArray | None = None
    hit_tokens: IntArray | None = None

    def __len__(self) -> int:
        return int(self.line.size)

    def seconds_since(self, origin: int) -> FloatArray:
        """Return the arrival after `origin` [ns] in seconds."""
        return (self.nanoseconds - origin) / NANOSECONDS

    def first(self, rows: int) -> Rows:
        """Return the first `rows` rows, hash blocks and all."""
        return self.keep(np.arange(len(self)) < rows)

    def keep(self, kept: NDArray[np.bool_]) -> Rows:
        """Return the rows that are kept, hash blocks and all."""
        rows = self.pick(np.flatnonzero(kept))
        if self.hash_ids is None or self.hash_counts is None:
            return rows
        ids = self.hash_ids[np.repeat(kept, self.hash_counts)]
        return replace(rows, hash_ids=ids, hash_counts=self.hash_counts[kept])

    def pick(self, chosen: NDArray[np.intp] | slice) -> Rows:
        """Return the chosen rows without their hash blocks, in the order given."""
        hits = None if self.hit_tokens is None else self.hit_tokens[chosen]
        return Rows(self.nanoseconds[chosen], self.isl[chosen], self.osl[chosen], self.line[chosen], hit_tokens=hits)


def nanoseconds_of(value: float, unit: ArrivalUnit, where: str) -> int:
    """Return a number of the arrival column in nanoseconds, or raise InputError that opens with `where`."""
    seconds = value * unit.seconds
    if not abs(seconds) <= MAX_SECONDS:
        hint = "; is it in ms (arrival_unit: ms)?" if abs(seconds) < 1e3 * MAX_SECONDS else ""
        raise InputError(f"{where} is {value:g} {unit.value}, but must be a time before the year 2112{hint}")
    return round(seconds * NANOSECONDS)


@dataclass(slots=True)
class Unservable:
    """Rows of a trace that no engine can serve: a length is missing, below one token or beyond all belief.

    rows: of the trace so far; count: of them those that are left out; line: of the first one in the file; fault: what
    is wrong with it.
    """

    rows: int = 0
    count: int = 0
    line: int = 0
    fault: str = ""

    def without(self, rows: Rows, columns: Columns) -> Rows:
        """Return the rows that can be served, and count the others."""
        lengths = (columns.isl, rows.isl), (columns.osl, rows.osl)
        bad = [(tokens < 1) | (tokens > MAX_TOKENS) for _, tokens in lengths]
        out = bad[0] | bad[1]
        self.rows += len(rows)
        if not out.any():
            return rows
        if not self.count:
            first = int(np.argmax(out))
            name, tokens = lengths[0] if bad[0][first] else lengths[1]
            self.line = int(rows.line[first])
            self.fault = f"{name} is {'missing' if tokens[first] == MISSING else tokens[first]}"
        self.count += int(np.count_nonzero(out))
        return rows.keep(~out)

    def check(self, path: object) -> None:
        """Raise InputError where so many rows are left out that it is no slip but another column or unit."""
        if self.count > MOST_UNSERVABLE * self.rows:
            raise InputError(
                f"{path}:{self.line}: {self.fault}, but must be a whole number of tokens from 1 to {MAX_TOKENS}; "
                f"{self.count:,} of {self.rows:,} rows cannot be served; at most {percentage(MOST_UNSERVABLE)} may be"
            )

    @property
    def words(self) -> str:
        """How many rows are left out, and the first of them; empty where none is."""
        if not self.count:
            return ""
        rows = "row" if self.rows == 1 else "rows"
        return f"{self.count:,} of {self.rows:,} {rows} cannot be served (line {self.line}: {self.fault})"


def map_columns(mapping: Mapping[str, str] | None, found: Sequence[str], where: str) -> Columns:
    """Find the three columns among the names `found`: as the user's mapping says, or by their known names.

    The mapping has the keys arrival, isl, osl and arrival_unit (s, ms, us, ns, iso), all optional.
    """
    mapping = mapping or {}
    for key in mapping:
        if key not in (*KNOWN_NAMES, "arrival_unit"):
            raise UnknownNameError("key of columns:", key, (*KNOWN_NAMES, "arrival_unit"))
    names = {role: _column_name(role, mapping.get(role), found, where) for role in KNOWN_NAMES}
    unit = mapping.get("arrival_unit") or _unit_from_name(names["arrival"])
    if unit not in [choice.value for choice in ArrivalUnit]:
        raise UnknownNameError("arrival_unit", unit, [choice.value for choice in ArrivalUnit])
    return Columns(names["arrival"], names["isl"], names["osl"], ArrivalUnit(unit))


def require_columns(columns: Columns, found: Sequence[str], where: str) -> Columns:
    """Raise InputError for the first of `columns` that is not among the names `found`."""
    for name in columns.names:
        _column_name(name, name, found, where)
    return columns


class UnnamedColumnError(InputError):
    """No column has a name that tells its role; the message says how a workload.yaml names it.

    told: what is wrong; example: the role and a name such as the column's, for messages that name it otherwise.
    """

    def __init__(self, where: str, role: str, found: Sequence[str]) -> None:
        self.told = f"{where}: no column was recognized as {role} among {name_list(map(shown, found))}"
        self.example = role, KNOWN_NAMES[role][1]
        super().__init__(f"{self.told}; name it, e.g. columns: {{{role}: {KNOWN_NAMES[role][1]}}}")


def normalised(name: str) -> str:
    """Return a column name in lower case with underscores, as in KNOWN_NAMES.

    >>> normalised(" Request tokens")
    'request_tokens'
    """
    return name.strip().lower().replace(" ", "_").replace("-", "_")


NESTED = "."
"""Joins the keys to a value in objects of objects: usage.prompt_tokens."""


def nested_keys(record: Mapping[str, Any]) -> Iterator[str]:
    """The keys of all values in an object and the objects in it.

    >>> list(nested_keys({"created": 1, "usage": {"prompt_tokens": 5}}))
    ['created', 'usage.prompt_tokens']
    """
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{key}{NESTED}{below}" for below in nested_keys(value))
        else:
            yield key


def nested_value(record: Mapping[str, Any], key: str) -> Any:
    """The value under a key, or under keys joined by dots; None where there is none.

    >>> nested_value({"usage": {"prompt_tokens": 5}}, "usage.prompt_tokens")
    5
    """
    if key in record or NESTED not in key:
        return record.get(key)
    first, _, rest = key.partition(NESTED)
    below = record.get(first)
    return nested_value(below, rest) if isinstance(below, Mapping) else None


def _column_name(role: str, wanted: str | None, found: Sequence[str], where: str) -> str:
    if wanted is not None:
        if wanted in found:
            return wanted
        close = nearest_name(wanted, found)
        hint = f"did you mean {shown(close)}?" if close else f"found: {name_list(map(shown, found))}"
        raise InputError(f"{where}: there is no column {shown(wanted)}; {hint}")
    by_name: dict[str, str] = {}
    for name in sorted(found, key=lambda name: name.count(NESTED)):  # the nearest to the top
        by_name.setdefault(normalised(name.removesuffix(f"{NESTED}value").rpartition(NESTED)[2]), name)
    recognized = next((by_name[name] for name in KNOWN_NAMES[role] if name in by_name), None)
    if recognized is None:
        raise UnnamedColumnError(where, role, found)
    return recognized


def _unit_from_name(name: str) -> str:
    suffix = normalised(name).rpartition("_")[2]
    return suffix if suffix in ("s", "ms", "us", "ns") else ArrivalUnit.AUTO.value
