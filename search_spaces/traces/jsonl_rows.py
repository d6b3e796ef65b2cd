"""Traces of one JSON object per line: Mooncake's, and any other whose keys are known or named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.quoting import shown
from search_spaces.json_source import json_kind, json_shown

from .csv_rows import parse_arrival, parse_tokens
from .rows import MISSING, ArrivalUnit, Columns, Rows
from .source import Block
from .timestamps import looks_like_date

ROWS_PER_CHUNK = 8192
HASH_KEY = "hash_ids"

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
                first = record.get(columns.arrival)
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
    return MISSING if record.get(key) is None else parse_tokens(f"{where}: {key}", _text(where, record, key))


def _text(where: str, record: dict[str, Any], key: str) -> str:
    if key not in record:
        raise InputError(f"{where}: the object has no key {shown(key)}")
    value = record[key]
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
