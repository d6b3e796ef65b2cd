"""Distributions of times on a grid of equal cells, which add as their Fourier transforms multiply."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CELLS = 1024
"""Cells of the grid on which waits are kept."""
TILT = 18.0
"""exp(-18) = 2e-8 of what lies beyond a grid comes back to its cells; rounding grows to exp(18) 1e-16 = 7e-9."""


@cache
def _tilt(size: int) -> FloatArray:
    """Weights of the cells of a grid: cell j times exp(-TILT j / size)."""
    return np.asarray(np.exp(-TILT / size * np.arange(size)))


def shift(delay: FloatArray, edges: FloatArray) -> NDArray[np.complex128]:
    """Transforms of delays (rows,) that are always the same [s], (rows, frequencies)."""
    return transform(placed(delay[:, None], np.ones(1), edges))


def centred(below: FloatArray) -> FloatArray:
    """Shares of the cells, from what lies below their edges (..., cells + 1); half to either edge keeps means."""
    inside = np.diff(below)
    inside[..., 1:] += inside[..., :-1].copy()
    return 0.5 * inside


def placed(jobs: FloatArray, weight: FloatArray, edges: FloatArray) -> FloatArray:
    """Weights (jobs,) of jobs (..., jobs) on multiples of the cell width, (..., cells).

    Each is split between its neighbors so that its mean is kept.
    """
    at = np.minimum(jobs / edges[1], CELLS - 1.001)
    below = at.astype(np.int64)
    upper, rows = weight * (at - below), jobs.size // jobs.shape[-1]
    cell = (below.reshape(rows, -1) + CELLS * np.arange(rows)[:, None]).ravel()
    result = np.bincount(cell, (weight - upper).ravel(), minlength=rows * CELLS)
    result = result + np.bincount(cell + 1, upper.ravel(), minlength=rows * CELLS)
    return np.asarray(result.reshape(*jobs.shape[:-1], CELLS), dtype=np.float64)


def transform(cells: FloatArray, size: int = CELLS) -> NDArray[np.complex128]:
    """Fourier transform of a distribution (..., `size` cells at most), tilted so that sums do not wrap around.

    Sums beyond the grid come back to its first cells; tilted they have exp(TILT) times less weight there (Abate and
    Whitt 1992, The Fourier-series method for inverting transforms, section 5).
    """
    return np.asarray(np.fft.rfft(cells * _tilt(size)[: cells.shape[-1]], size))


def cells_of(spectrum: NDArray[np.complex128], size: int = CELLS) -> FloatArray:
    """Back to the cells."""
    return np.asarray(np.fft.irfft(spectrum, size) / _tilt(size))
