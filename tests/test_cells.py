"""Distributions on a grid of equal cells: their transforms."""

from __future__ import annotations

import numpy as np

from costmodel.cells import CELLS, cells_of, shift, transform


def test_a_shift_moves_a_distribution_by_as_many_cells() -> None:
    edges = np.linspace(0.0, 2.0, CELLS + 1)
    placed = np.zeros(CELLS)
    placed[[0, 10]] = 0.25, 0.75
    moved = cells_of(transform(placed) * shift(np.array([5.0 * float(edges[1])]), edges)[0])
    np.testing.assert_allclose(moved, np.r_[np.zeros(5), placed[:-5]], atol=1e-8)


def test_what_lies_beyond_the_grid_does_not_come_back() -> None:
    """Three times two thirds of the grid are two grids, of which a transform without tilt would see the whole."""
    far = np.zeros(CELLS)
    far[2 * CELLS // 3] = 1.0
    np.testing.assert_allclose(cells_of(transform(far) ** 3), 0.0, atol=1e-7)


def test_a_part_of_a_cell_is_split_and_never_negative() -> None:
    """Of a sharp distribution too: what a shift by 2.3 cells leaves has its mass and its mean."""
    edges = np.linspace(0.0, float(CELLS), CELLS + 1)
    sharp = np.zeros(CELLS)
    sharp[[0, 40]] = 0.5
    moved = cells_of(transform(sharp) * shift(np.array([2.3]), edges)[0])
    assert moved.min() > -1e-8
    assert abs(moved.sum() - 1.0) < 1e-7
    assert abs(moved @ np.arange(CELLS) - 22.3) < 1e-4
