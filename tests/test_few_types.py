"""Whole numbers of a few types: bounds by prices hold for every fleet, and the optimum is that of trying them all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.solver.blocks import Work
from optimizer.solver.few_types import by_types, plain
from optimizer.solver.fleet_model import Aim
from optimizer.solver.matrices import Limit, Matrices
from optimizer.solver.price_bounds import Demand, Ranges, raised
from optimizer.solver.whole import cheapest
from tests.fleet_matrices import MOST_EACH, by_trying_all, colocated, cost_of, random_matrices, routable

EXACT = Work(gap=0.0)
SEEDS = st.integers(0, 2**32 - 1)


def few_types(seed: int) -> Matrices:
    """Two or three types, a few flows: prices of all sorts, alike or not, now and then no way for a flow."""
    random = np.random.default_rng(seed)
    types, flows = int(random.integers(2, 4)), int(random.integers(1, 7))
    price = random.uniform(1.0, 6.0, types)
    price = (price, np.round(price, 1), np.round(price))[seed % 3]
    width = random.choice([0.02, 0.5])
    need = random.uniform(1.0 - width, 1.0 + width, (types, flows)) / price[:, None] * random.uniform(0.5, 4.0, flows)
    need[1:][random.random((types - 1, flows)) < 0.1] = np.inf
    return colocated(need, list(price))


class TestBounds:
    def test_by_hand(self) -> None:
        """Flows at 2 x 1, 6 x 0.5 and 2 x 3, 6 x 0.5 $/h: 2 + 3 by the block, and more if the dear type has none.

        With no block of the dear one, the flows take 1 + 3 of the cheap one.
        """
        demand = Demand.of(np.array([2.0, 6.0]), np.array([[1.0, 3.0], [0.5, 0.5]]))
        assert demand.least(np.array([[2.0, 6.0], [1.0, 6.0], [2.0, 8.0]])).tolist() == [5.0, 4.0, 6.0]
        ranges = Ranges.within(
            demand, np.array([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0]]), np.array([[9.0, 9.0], [9.0, 0.0], [3.0, 0.0]])
        )
        found = raised(demand, ranges, np.inf, steps=40)
        np.testing.assert_allclose(found.bound[:2], [5.0, 8.0], rtol=1e-2)
        assert found.bound[2] == np.inf  # three cheap ones do not serve what takes four

    @settings(deadline=None, max_examples=40)
    @given(SEEDS)
    def test_no_fleet_within_costs_less(self, seed: int) -> None:
        matrices, random = few_types(seed), np.random.default_rng(seed)
        demand = Demand.of(matrices.block_price, matrices.need[:, 0])
        low = random.integers(0, 3, (5, matrices.size)).astype(np.float64)
        high = low + random.integers(0, 3, low.shape)
        bound = raised(demand, Ranges.within(demand, low, high), np.inf).bound
        for number in range(5):
            counts = random.integers(low[number], high[number] + 1.0).astype(np.int64)
            if routable(matrices, counts):
                assert bound[number] <= cost_of(matrices, counts) * (1.0 + 1e-9)


class TestSearch:
    @settings(deadline=None, max_examples=60)
    @given(SEEDS)
    def test_it_equals_trying_every_fleet(self, seed: int) -> None:
        matrices = few_types(seed)
        found = by_types(matrices, Aim(), EXACT, np.inf)
        counts = np.zeros(matrices.size, dtype=np.int64)
        counts[found.index] = found.blocks
        assert routable(matrices, counts)
        assert cost_of(matrices, counts) == pytest.approx(found.objective, abs=1e-9)
        best = by_trying_all(matrices)
        assert found.objective <= best + 1e-6
        assert found.bound <= found.objective
        if counts.max() <= MOST_EACH:
            assert found.objective == pytest.approx(best, abs=1e-6)
        assert cheapest(matrices, Aim(), EXACT).bound == pytest.approx(found.objective, abs=1e-6)

    def test_nothing_below_a_limit(self) -> None:
        """Two flows that take 0.7 of a block each: two blocks, though 1.4 would do."""
        matrices = colocated(np.array([[0.7, 0.7]]), [3.0])
        assert by_types(matrices, Aim(), EXACT, 6.0).objective == pytest.approx(6.0)
        none = by_types(matrices, Aim(), EXACT, 5.9)
        assert (none.index.size, none.bound) == (0, 5.9)

    def test_without_work_there_is_a_bound(self) -> None:
        matrices = colocated(np.array([[0.7, 0.7]]), [3.0])
        none = by_types(matrices, Aim(), replace(EXACT, nodes=0), np.inf)
        assert none.index.size == 0
        assert none.bound == pytest.approx(4.2)

    def test_what_is_plain(self) -> None:
        matrices = colocated(np.array([[0.7, 0.7]]), [3.0])
        assert plain(matrices)
        assert not plain(replace(matrices, price=np.zeros(1)))
        assert not plain(replace(matrices, spares=1))
        assert not plain(replace(matrices, limits=(Limit("power", 1.0, np.ones(1)),)))
        assert not plain(replace(matrices, level=np.zeros(2, dtype=np.int64)))
        assert not plain(random_matrices(1))
