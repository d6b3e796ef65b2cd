"""Distributions on a grid of equal cells: their transforms."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.cells import CELLS, cells_of, exponential, shift, transform


@settings(deadline=None, max_examples=100)
@given(st.floats(-50.0, 5.0), st.floats(-1e4, 1e4))
def test_the_exponential_is_numpys(real: float, imaginary: float) -> None:
    exponent = np.array([complex(real, imaginary), complex(0.0, np.pi), 0.0j])
    np.testing.assert_allclose(exponential(exponent), np.exp(exponent), rtol=1e-13, atol=1e-15)


def test_a_shift_moves_a_distribution_by_as_many_cells() -> None:
    edges = np.linspace(0.0, 2.0, CELLS + 1)
    placed = np.zeros(CELLS)
    placed[[0, 10]] = 0.25, 0.75
    moved = cells_of(transform(placed) * shift(5.0 * float(edges[1]), edges))
    np.testing.assert_allclose(moved, np.r_[np.zeros(5), placed[:-5]], atol=1e-12)
