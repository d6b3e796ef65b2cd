"""Cuts on numbers of blocks and the choices that they leave: every fleet keeps them; they prove what HiGHS proves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.solver.blocks import Work, nearest, relax, whole_blocks
from optimizer.solver.choices import by_choices, diverse
from optimizer.solver.fleet_model import Aim
from optimizer.solver.matrices import Limit, Matrices
from optimizer.solver.program import Outcome
from optimizer.solver.projection import Projection, lift, relaxed
from optimizer.solver.steps import Steps
from optimizer.solver.tolerances import LOOSENED
from tests.fleet_matrices import billed_by_node, colocated, random_matrices, routable

EXACT = Work(gap=0.0)
SEEDS = st.integers(0, 2**32 - 1)


def projected(matrices: Matrices) -> Projection | None:
    """The problem in numbers of blocks, without cuts; None where it has no solution even in fractions."""
    prices = relax(matrices, Aim(), 10.0)
    return None if prices is None else Projection.of(matrices, prices, nearest(prices, 3))


class TestProjection:
    @settings(deadline=None, max_examples=10)
    @given(SEEDS)
    def test_every_fleet_keeps_every_cut_and_none_but_fleets_lack_nothing(self, seed: int) -> None:
        matrices = random_matrices(seed, columns=7)
        projection = projected(matrices)
        if projection is None:
            return
        random = np.random.default_rng(seed)
        lift(projection, Aim(), 5)
        tried = [random.integers(0, 3, matrices.size) for _ in range(4)]
        lacking = [projection.missing(blocks.astype(np.float64)) for blocks in tried]
        for blocks, short in zip(tried, lacking, strict=True):
            if routable(matrices, blocks):
                assert short <= LOOSENED
                assert all(cut @ blocks >= 1.0 - LOOSENED for cut in projection.cuts)
            else:
                assert short > 0.0

    def test_a_block_that_serves_all_and_more_earns_no_more_than_all(self) -> None:
        """A third of an engine at 4 $/h serves the demand in fractions; no whole engine costs less than 4 $/h."""
        matrices = colocated(np.array([[1.0 / 3.0]]), [4.0])
        projection = projected(matrices)
        assert projection is not None
        assert lift(projection, Aim(), 5).objective == pytest.approx(4.0, rel=1e-4)

    def test_no_flow_is_served_twice(self) -> None:
        """Either engine carries one flow with ease and none of the other: fractions cost 2 $/h, blocks 20 $/h."""
        matrices = colocated(np.array([[0.1, np.inf], [np.inf, 0.1]]), [10.0, 10.0])
        prices, projection = relax(matrices, Aim(), 10.0), projected(matrices)
        assert prices is not None
        assert projection is not None
        assert prices.objective == pytest.approx(2.0)
        assert lift(projection, Aim(), 10).objective == pytest.approx(20.0, rel=1e-4)

    def test_limits_that_nothing_keeps_are_said_so(self) -> None:
        matrices = replace(colocated(np.array([[1.0]]), [4.0]), limits=(Limit("inventory", 0.0, np.ones(1)),))
        free = projected(replace(matrices, limits=()))
        assert free is not None
        free.matrices = matrices
        free.missing(np.zeros(1))
        assert relaxed(free, Aim()).objective == -np.inf


class TestChoices:
    @settings(deadline=None, max_examples=12)
    @given(SEEDS, st.booleans())
    def test_it_proves_what_the_whole_number_problem_proves(self, seed: int, nodes: bool) -> None:
        matrices = random_matrices(seed, columns=8, limited=seed % 3 == 0)
        matrices = billed_by_node(matrices) if nodes else matrices
        best, projection = whole_blocks(matrices, Aim(), EXACT), projected(matrices)
        if projection is None:
            assert best.outcome is Outcome.INFEASIBLE
            return
        prices = lift(projection, Aim(), 10)
        found = by_choices(projection, Aim(), replace(EXACT, nodes=1), prices, np.inf, ((np.arange(4),),))
        assert found.bound <= best.objective + 1e-4
        if found.index.size:
            assert found.objective >= best.objective - 1e-6
            blocks = np.zeros(matrices.size, dtype=np.int64)
            blocks[found.index] = found.blocks
            assert routable(matrices, blocks)

    def test_nothing_below_a_limit(self) -> None:
        """One flow needs 1.1 of the engine at 4 $/h, or 2.9 of that at 2 $/h: the cheapest whole engines cost 6."""
        matrices = colocated(np.array([[1.1], [2.9]]), [4.0, 2.0])
        projection = projected(matrices)
        assert projection is not None
        prices = lift(projection, Aim(), 5)
        below = by_choices(projection, Aim(), EXACT, prices, 5.9, ((),))
        assert not below.index.size
        assert below.bound >= 5.9
        found = by_choices(projection, Aim(), EXACT, prices, np.inf, ((np.arange(2),),))
        assert (found.objective, found.bound) == pytest.approx((6.0, 6.0))

    def test_every_kind_of_engine_is_looked_at(self) -> None:
        matrices = colocated(np.array([[1.0], [1.1], [5.0]]), [1.0, 1.0, 2.0])
        prices = relax(matrices, Aim(), 10.0)
        assert prices is not None
        assert {0, 2} <= set(diverse(matrices, prices, 1, 2).tolist())


class TestSteps:
    def test_prices_in_tenths(self) -> None:
        steps = Steps.of(colocated(np.array([[1.0], [1.0]]), [2.4, 3.6]), Aim())
        assert steps.size == pytest.approx(1.2)
        assert steps.up(4.81) == pytest.approx(6.0)
        assert steps.up(4.8) == pytest.approx(4.8)
        assert steps.up(np.inf) == np.inf
        assert steps.below(6.0, 0.0) == pytest.approx(5.4)
        assert steps.below(6.0, 0.5) == pytest.approx(3.0)

    def test_whole_nodes_count(self) -> None:
        matrices = colocated(np.array([[1.0], [1.0]]), [0.0, 3.0])
        node = Limit("nodes A", 0.0, np.array([1.0, 0.0]), 8, 20.0)
        assert Steps.of(replace(matrices, limits=(node,)), Aim()).size == pytest.approx(1.0)

    def test_prices_that_are_no_decimals_say_nothing(self) -> None:
        steps = Steps.of(colocated(np.array([[1.0]]), [1.0 / 3.0]), Aim())
        assert (steps.size, steps.up(0.5), steps.below(10.0, 0.01)) == pytest.approx((0.0, 0.5, 9.9))

    def test_nor_where_volume_is_worth_something(self) -> None:
        assert Steps.of(colocated(np.array([[1.0]]), [1.0]), Aim(1.0, 1.0, 0.0, 2.0)).size == 0.0
