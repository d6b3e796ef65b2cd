"""Prefix-cache hits of a trace: which input tokens an infinite cache would hold when a request arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .rows import IntArray, Rows

MAX_BLOCKS = 2**25
"""Blocks remembered at most (256 MiB); beyond it only blocks seen before still count."""
BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024)
"""Tokens per hash block in use: Mooncake's first, then those of serving engines."""
FITTING_SHARE = 0.95

BlockArray = NDArray[np.uint64]


class PrefixCache:
    """An infinite prefix cache, fed request by request in the order of the file.

    A request hits the longest run of its first blocks that all appeared in earlier requests; the hit is
    blocks x block size tokens, at most the request's ISL (its last block is partly filled).
    """

    def __init__(self) -> None:
        self.block_tokens: int | None = None
        self.unfit = False
        self.full = False
        self.hit_tokens = 0
        self.input_tokens = 0
        self._seen: BlockArray = np.empty(0, dtype=np.uint64)
        self._recent: BlockArray = np.empty(0, dtype=np.uint64)

    @property
    def hit_share(self) -> float | None:
        """Share of the input tokens found [1]; None if the trace has no usable blocks."""
        return self.hit_tokens / self.input_tokens if self.input_tokens and not self.unfit else None

    def look_up(self, rows: Rows) -> Rows:
        """Return the rows with hit_tokens filled in [token], and remember their blocks."""
        if rows.hash_ids is None or rows.hash_counts is None or self.unfit:
            self.unfit = True
            return rows
        if self.block_tokens is None:
            self.block_tokens = _block_size(rows.isl, rows.hash_counts)
            self.unfit = self.block_tokens is None
        if self.block_tokens is None:
            return rows
        blocks = self._leading_hits(rows.hash_ids, rows.hash_counts)
        hits = np.minimum(blocks * self.block_tokens, rows.isl)
        self.hit_tokens += int(hits.sum())
        self.input_tokens += int(rows.isl.sum())
        return replace(rows, hit_tokens=hits)

    def _leading_hits(self, ids: BlockArray, counts: IntArray) -> IntArray:
        """Return how many leading blocks of each row were seen in an earlier row."""
        row = np.repeat(np.arange(counts.size), counts)
        distinct, first, place = np.unique(ids, return_index=True, return_inverse=True)
        known = _contains(self._seen, distinct) | _contains(self._recent, distinct)
        missed = np.flatnonzero(~(known[place] | (row[first][place] < row)))
        starts = np.cumsum(counts) - counts
        # The first miss at or after the start of each row; none before the row's end means that all blocks hit.
        following = np.append(missed, ids.size)[np.searchsorted(missed, starts)]
        self._remember(distinct[~known])
        return np.asarray(np.minimum(following - starts, counts), dtype=np.int64)

    def _remember(self, fresh: BlockArray) -> None:
        if self._seen.size + self._recent.size + fresh.size > MAX_BLOCKS:
            self.full = True
            return
        self._recent = np.union1d(self._recent, fresh)
        if self._recent.size > max(self._seen.size // 4, 2**16):
            self._seen, self._recent = np.union1d(self._seen, self._recent), np.empty(0, dtype=np.uint64)


def _contains(ordered: BlockArray, wanted: BlockArray) -> NDArray[np.bool_]:
    if not ordered.size:
        return np.zeros(wanted.size, dtype=np.bool_)
    place = np.minimum(np.searchsorted(ordered, wanted), ordered.size - 1)
    return np.asarray(ordered[place] == wanted)


def _block_size(isl: IntArray, counts: IntArray) -> int | None:
    """Return the first block size [token] that explains the block counts of nearly all rows."""
    for size in BLOCK_SIZES:
        whole, filled = isl // size, -(-isl // size)
        if np.mean((counts == filled) | (counts == whole)) >= FITTING_SHARE:
            return size
    return None
