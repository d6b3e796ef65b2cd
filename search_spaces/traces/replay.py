"""A trace as the simulator replays it: every request with its arrival, lengths and, where the file has them, blocks.

Imported by those that simulate only: the simulator takes time to import where it is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from costmodel.errors import InputError
from costmodel.simulator import Pages, Trace, make_trace

from .prefix import PrefixCache
from .reader import AUTO, read_rows
from .rows import NANOSECONDS, Rows


def read_replay(
    path: str | os.PathLike[str],
    format: str = AUTO,  # noqa: A002 - the word that workload.yaml uses
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Trace:
    """Return the requests of a trace from time 0 on, at most `limit`; arguments as for read_rows.

    Hash blocks of no known size are left out: prefix caches then find nothing.
    """
    chunks = list(read_rows(path, format, columns, limit))
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
    return Pages(np.concatenate(ids), np.concatenate(counts), cache.block_tokens)
