"""Lengths of a trace added up: exact counts per length, and a fine joint histogram with the mean of each cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.workload import FloatArray

from .rows import MAX_TOKENS, IntArray, Rows

_STEPS = 64
"""Cells per octave of the joint histogram: each is at most 1/64 = 1.6 % wide, and lengths below 128 are exact."""


def cell_of(tokens: IntArray) -> IntArray:
    """Return the cell of each length [token]: the length itself below 128, then 64 cells per octave.

    >>> cell_of(np.array([5, 127, 128, 129, 130]))
    array([  5, 127, 128, 128, 129])
    """
    shift = np.maximum(np.frexp(tokens.astype(np.float64))[1].astype(np.int64) - 7, 0)
    return np.asarray(shift * _STEPS + (tokens >> shift), dtype=np.int64)


_CELLS = int(cell_of(np.array([MAX_TOKENS]))[0]) + 1


@dataclass(frozen=True, slots=True)
class JointHistogram:
    """Occupied cells: mean ISL and OSL of their requests [token], exact, and how many requests each holds."""

    isl: FloatArray
    osl: FloatArray
    requests: FloatArray


class LengthCounter:
    """Adds up the lengths of requests in bounded memory (40 MB and 8 bytes per distinct length)."""

    def __init__(self) -> None:
        self.isl_counts: IntArray = np.zeros(1, dtype=np.int64)
        self.osl_counts: IntArray = np.zeros(1, dtype=np.int64)
        self.total_counts: IntArray = np.zeros(1, dtype=np.int64)
        self.product = 0.0
        self._requests = np.zeros(_CELLS * _CELLS, dtype=np.int64)
        self._isl_sums = np.zeros(_CELLS * _CELLS, dtype=np.int64)
        self._osl_sums = np.zeros(_CELLS * _CELLS, dtype=np.int64)

    def add(self, rows: Rows) -> None:
        """Take in the lengths of `rows`."""
        self.isl_counts = _counted(self.isl_counts, rows.isl)
        self.osl_counts = _counted(self.osl_counts, rows.osl)
        self.product += float((rows.isl * rows.osl).astype(np.float64).sum())
        self.total_counts = _counted(self.total_counts, rows.isl + rows.osl)
        cell = cell_of(rows.isl) * _CELLS + cell_of(rows.osl)
        np.add.at(self._requests, cell, 1)
        np.add.at(self._isl_sums, cell, rows.isl)
        np.add.at(self._osl_sums, cell, rows.osl)

    @property
    def longest(self) -> int:
        """Longest ISL + OSL [token]."""
        return int(np.flatnonzero(self.total_counts)[-1])

    def joint(self) -> JointHistogram:
        """Return the cells that hold requests."""
        used = np.flatnonzero(self._requests)
        requests = self._requests[used].astype(np.float64)
        return JointHistogram(self._isl_sums[used] / requests, self._osl_sums[used] / requests, requests)


def quantile_of(counts: IntArray, probability: float) -> int:
    """Return the smallest length [token] that at least `probability` of the requests do not exceed; exact.

    >>> quantile_of(np.array([0, 2, 1, 1]), 0.5), quantile_of(np.array([0, 2, 1, 1]), 0.51)
    (1, 2)
    """
    total = int(counts.sum())
    # A count is whole: the rounding of probability x total must not lift it over the next one.
    wanted = max(np.ceil(probability * total * (1 - 1e-12)), 1)
    return int(np.searchsorted(np.cumsum(counts), wanted))


def moment_of(counts: IntArray, power: int) -> float:
    """Return the mean of length^power [token^power]; exact counts, so only the last digits round."""
    used = np.flatnonzero(counts)
    return float((counts[used] * used.astype(np.float64) ** power).sum()) / float(counts.sum())


def _counted(counts: IntArray, tokens: IntArray) -> IntArray:
    most = int(tokens.max())
    if most >= counts.size:
        counts = np.concatenate([counts, np.zeros(max(most + 1, 2 * counts.size) - counts.size, dtype=np.int64)])
    np.add.at(counts, tokens, 1)
    return counts
