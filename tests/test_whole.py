"""The whole-number search over matrices: against trying every fleet, with and without pruning, and its proofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.loads.columns import ROLES
from optimizer.solver import whole
from optimizer.solver.blocks import Blocks, Work, nothing, relax, whole_blocks, whole_cost
from optimizer.solver.counts import by_counts, kinds_of
from optimizer.solver.dominance import undominated
from optimizer.solver.fleet_model import Aim
from optimizer.solver.matrices import COLOCATED, DECODE, PREFILL, Matrices
from optimizer.solver.program import Outcome
from optimizer.solver.whole import cheapest, improve
from tests.fleet_matrices import (
    MOST_EACH,
    at_most,
    billed_by_node,
    by_trying_all,
    colocated,
    cost_of,
    random_matrices,
    routable,
    within,
)

EXACT = Work(gap=0.0)
SEEDS = st.integers(0, 2**32 - 1)


def check_optimum(matrices: Matrices, found: Blocks) -> None:
    """The search finds what trying every fleet finds, or a fleet of more blocks than are tried."""
    best = by_trying_all(matrices)
    if not found.index.size:
        assert found.outcome is Outcome.INFEASIBLE
        assert np.isinf(best)
        return
    counts = np.zeros(matrices.size, dtype=np.int64)
    counts[found.index] = found.blocks
    assert within(matrices, counts)
    assert routable(matrices, counts)
    assert cost_of(matrices, counts) == pytest.approx(found.objective, abs=1e-6)
    assert found.outcome is Outcome.OPTIMAL
    assert found.bound == pytest.approx(found.objective, rel=1e-6)
    assert found.objective <= best + 1e-6
    if counts.max() <= MOST_EACH:
        assert found.objective == pytest.approx(best, abs=1e-6)


def small(seed: int) -> Matrices:
    """Three columns, some within limits, some sold in whole nodes."""
    matrices = random_matrices(seed, columns=3, flows=2 + seed % 2, limited=seed % 3 == 0)
    return billed_by_node(matrices) if seed % 5 == 0 else matrices


@settings(deadline=None, max_examples=200)
@given(SEEDS)
@example(66564822)
def test_it_equals_trying_every_fleet_with_and_without_pruning(seed: int) -> None:
    matrices = small(seed)
    pruned, whole = (cheapest(matrices, Aim(), EXACT, prune=prune) for prune in (True, False))
    check_optimum(matrices, pruned)
    assert pruned.outcome is whole.outcome
    assert pruned.objective == pytest.approx(whole.objective, abs=1e-6)


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.booleans())
def test_it_equals_trying_every_fleet_of_more_columns(seed: int, nodes: bool) -> None:
    matrices = random_matrices(seed, columns=4, limited=seed % 2 == 0)
    matrices = billed_by_node(matrices) if nodes else matrices
    check_optimum(matrices, cheapest(matrices, Aim(), EXACT))


def wider(seed: int, columns: int = 24) -> Matrices:
    """Several columns of each kind: equal price, role and domain, other strengths, so that some are dominated."""
    random = np.random.default_rng(seed)
    made = random_matrices(seed, columns=columns, flows=4)
    kind = random.integers(0, 6, columns)
    price = np.round(random.uniform(1.0, 6.0, 6), 1)[kind]
    need = made.need * made.price[:, None, None] / price[:, None, None]
    return replace(made, role=kind % 3, domain=np.zeros_like(kind), domains=1, price=price, need=need)


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.booleans())
def test_pruning_never_changes_the_optimum(seed: int, nodes: bool) -> None:
    matrices = billed_by_node(wider(seed)) if nodes else wider(seed)
    pruned, whole = (whole_blocks(part, Aim(), EXACT) for part in (matrices.take(undominated(matrices)), matrices))
    assert pruned.outcome is whole.outcome
    assert pruned.objective == pytest.approx(whole.objective, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(SEEDS)
def test_whoever_is_dropped_is_dominated_by_one_who_stays(seed: int) -> None:
    matrices = wider(seed)
    kept = undominated(matrices)
    for column in np.setdiff1d(np.arange(matrices.size), kept):
        rivals = [
            other
            for other in kept
            if matrices.role[other] == matrices.role[column]
            and (copies := np.floor(matrices.block_price[column] / matrices.block_price[other] + 1e-9)) >= 1
            and (matrices.need[other] <= matrices.need[column] * copies).all()
            and (matrices.late[other] <= matrices.late[column]).all()
        ]
        assert rivals


class TestDominance:
    def test_two_cheap_blocks_beat_a_dear_one(self) -> None:
        need = np.array([[1.0, 2.0], [0.5, 1.0], [0.4, 1.0]])
        assert undominated(colocated(need, [1.0, 2.0, 2.0])).tolist() == [0, 2]

    def test_not_where_pools_are_counted(self) -> None:
        need = np.array([[1.0, 2.0], [0.5, 1.0]])
        assert undominated(replace(colocated(need, [1.0, 2.0]), pool_limits=at_most(2, columns=2))).tolist() == [0, 1]

    def test_of_equal_ones_the_first_stays(self) -> None:
        assert undominated(colocated(np.ones((3, 2)), [1.0, 1.0, 1.0])).tolist() == [0]

    def test_another_domain_is_no_rival(self) -> None:
        made = replace(colocated(np.ones((2, 2)), [1.0, 1.0]), domain=np.array([0, 1]), domains=2)
        assert undominated(made).tolist() == [0, 1]


class TestByCounts:
    @settings(deadline=None, max_examples=15)
    @given(SEEDS)
    def test_its_bound_is_a_bound_and_its_fleet_a_fleet(self, seed: int) -> None:
        matrices = random_matrices(seed, columns=8, limited=seed % 3 == 0)
        best = whole_blocks(matrices, Aim(), EXACT)
        ceiling = 1.2 * best.objective if best.index.size else 40.0
        found = by_counts(matrices, Aim(), replace(EXACT, choices=25), np.arange(2), ceiling)
        least = best.objective if best.index.size else np.inf
        assert found.bound <= least + 1e-4
        if found.complete:
            assert least > ceiling - 1e-6
        if found.index.size:
            assert least - 1e-6 <= found.objective <= ceiling + 1e-4

    def test_fractions_of_an_engine_prove_nothing_but_whole_ones_do(self) -> None:
        """One flow needs 1.1 of the engine at 4 $/h, or 2.9 of that at 2 $/h: fractions 4.4, whole engines 6."""
        matrices = colocated(np.array([[1.1], [2.9]]), [4.0, 2.0])
        prices = relax(matrices, Aim(), 10.0)
        assert prices is not None
        assert prices.objective == pytest.approx(4.4)
        assert by_counts(matrices, Aim(), EXACT, np.arange(2), 5.9).complete
        found = by_counts(matrices, Aim(), EXACT, np.arange(2), 7.0)
        assert (found.objective, found.bound) == pytest.approx((6.0, 6.0))

    def test_without_iterations_nothing_is_found_out(self) -> None:
        matrices = colocated(np.array([[1.1], [2.9]]), [4.0, 2.0])
        found = by_counts(matrices, Aim(), replace(EXACT, iterations=0), np.arange(2), 7.0)
        assert not found.complete
        assert found.bound == -np.inf

    def test_a_block_of_several_needs_as_many_engines(self) -> None:
        """Two engines that share a queue carry all; half of that block is no engine, and one alone carries less."""
        matrices = replace(
            colocated(np.array([[0.9], [2.5]]), [3.0, 3.0]), replicas=np.array([2, 1]), pool=np.zeros(2, dtype=np.int64)
        )
        assert kinds_of(matrices, 10.0).of.tolist() == [0, 0]
        assert by_counts(matrices, Aim(), EXACT, np.arange(2), 5.9).complete
        assert by_counts(matrices, Aim(), EXACT, np.arange(2), 6.1).objective == pytest.approx(6.0)


class TestImprove:
    def test_nothing_below_a_ceiling_is_said_to_be_so(self) -> None:
        matrices = random_matrices(3, columns=8)
        best = whole_blocks(matrices, Aim(), EXACT)
        prices = relax(matrices, Aim(), 10.0)
        assert prices is not None
        below = improve(matrices, Aim(), EXACT, prices, best.objective * (1.0 - 1e-4))
        assert below.outcome is Outcome.INFEASIBLE
        assert not below.index.size
        again = improve(matrices, Aim(), EXACT, prices, best.objective * (1.0 + 1e-6))
        assert again.objective == pytest.approx(best.objective)

    @settings(deadline=None, max_examples=40)
    @given(seed=SEEDS, share=st.sampled_from([0.5, 0.8, 1.0, 1.2]))
    def test_beyond_a_known_fleet_only_what_costs_no_more_is_asked_for(self, seed: int, share: float) -> None:
        matrices = wider(seed, columns=10)
        prices = relax(matrices, Aim(), 10.0)
        assert prices is not None
        best = cheapest(matrices, Aim(), EXACT)
        work = replace(EXACT, columns=2, more=3, liftable=0)
        found = improve(matrices, Aim(), work, prices, np.inf, rival := share * best.objective * (1.0 + 1e-6))
        assert found.bound <= best.objective * (1.0 + 1e-6) <= found.objective * (1.0 + 2e-6)
        if share >= 1.0:
            assert found.objective <= rival
        elif found.outcome is not Outcome.OPTIMAL:
            assert found.bound >= rival * (1.0 - 1e-6)

    def test_where_a_known_fleet_is_below_the_relaxation_the_first_look_is_enough(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        matrices = wider(5, columns=40)
        prices = relax(matrices, Aim(), 10.0)
        assert prices is not None
        asked: list[float] = []

        def counted(*given: Any) -> Blocks:
            asked.append(given[-1])
            return by_counts(*given)

        monkeypatch.setattr(whole, "by_counts", counted)
        work = Work(columns=3, more=5, liftable=0)
        first = improve(matrices, Aim(), work, prices, np.inf, 0.9 * prices.objective)
        assert not asked
        assert first.bound < first.objective
        assert improve(matrices, Aim(), work, prices).objective <= first.objective
        assert asked

    def test_work_and_not_time_decides(self) -> None:
        matrices = wider(11, columns=40)
        one, other = (cheapest(matrices, Aim(), Work(nodes=5, choices=3)) for _ in range(2))
        assert one.objective == other.objective
        assert one.bound == other.bound
        np.testing.assert_array_equal(one.route, other.route)

    def test_choices_among_some_columns_are_fleets_and_bound_nothing_else(self) -> None:
        matrices = wider(5, columns=40)
        prices = relax(matrices, Aim(), 10.0)
        assert prices is not None
        work = Work(columns=2, more=3, choices=3, liftable=0, provable=0, gap=0.0)
        best = whole_blocks(matrices, Aim(), EXACT)
        found = improve(matrices, Aim(), replace(work, lifted=20), prices, 1.5 * best.objective)
        assert found.index.size
        assert found.bound <= best.objective + 1e-6 <= found.objective + 2e-6
        counts = np.zeros(matrices.size, dtype=np.int64)
        counts[found.index] = found.blocks
        assert routable(matrices, counts)

    def test_a_known_fleet_is_kept_where_nothing_is_cheaper(self) -> None:
        matrices = wider(11, columns=40)
        known = cheapest(matrices, Aim(), Work(nodes=1, columns=4, choices=1, provable=0))
        best = cheapest(matrices, Aim(), EXACT)
        again = cheapest(matrices, Aim(), EXACT, known=best)
        assert again.outcome is Outcome.OPTIMAL
        assert again.objective == best.objective
        np.testing.assert_array_equal(again.blocks, best.blocks)
        lazy = Work(nodes=1, choices=1, provable=0)
        assert best.objective - 1e-6 <= cheapest(matrices, Aim(), lazy, known=known).objective <= known.objective

    def test_volumes_other_than_the_demand(self) -> None:
        matrices = colocated(np.array([[0.6], [0.5]]), [1.0, 0.9])
        found = cheapest(matrices, Aim(1.0, 0.0, 3.0, 3.0), EXACT)
        assert found.objective == pytest.approx(1.8)  # three times the demand: 1.5 of the second, so two blocks
        assert found.volume == pytest.approx(3.0)

    def test_no_columns_are_no_fleet(self) -> None:
        none = random_matrices(0).take(np.zeros(0, dtype=np.int64))
        assert cheapest(none, Aim(), EXACT).outcome is Outcome.INFEASIBLE
        assert nothing(none, Outcome.INFEASIBLE).route.shape == (0, 3)

    def test_the_price_counts_nodes_and_spares(self) -> None:
        matrices = replace(billed_by_node(random_matrices(1, columns=4)), spares=1)
        assert cost_of(matrices, np.array([1, 0, 0, 0])) == pytest.approx(7.5)  # two or three of four engines
        beyond = matrices.price[3] * (matrices.replicas[3] + 1)
        assert cost_of(matrices, np.array([0, 0, 0, 1])) == pytest.approx(beyond)


def test_roles_are_numbered_alike() -> None:
    assert [ROLES[number].value for number in (PREFILL, DECODE, COLOCATED)] == ["prefill", "decode", "colocated"]


def test_the_cost_of_nothing_is_nothing() -> None:
    made = random_matrices(5)
    assert whole_cost(made, nothing(made, Outcome.INFEASIBLE)) == 0.0
