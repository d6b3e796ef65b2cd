"""The whole-number search over matrices: against trying every fleet, with and without pruning, and its proofs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES
from optimizer.search.fleet_program import Aim, Matrices
from optimizer.search.program import Outcome
from optimizer.search.whole_fleets import Blocks, Work, cheapest, least, nothing, undominated, whole_blocks, whole_cost
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


class TestCheapest:
    @settings(deadline=None, max_examples=40)
    @given(seed=SEEDS, share=st.sampled_from([0.5, 0.9, 1.0, 1.2, 5.0]))
    def test_the_bound_below_a_ceiling_is_true(self, seed: int, share: float) -> None:
        matrices = wider(seed, columns=10)
        best = cheapest(matrices, Aim(), EXACT)
        bound = least(matrices, Aim(), EXACT, share * best.objective)
        assert bound <= max(best.objective, 0.0) * (1.0 + 1e-6)
        if share <= 1.0:
            assert bound == pytest.approx(share * best.objective)
        else:
            assert bound == pytest.approx(best.objective, rel=1e-6)

    def test_fractions_of_an_engine_prove_less_than_whole_ones(self) -> None:
        """One flow needs 1.1 of the engine at 4 $/h, or 2.9 of that at 2 $/h: fractions 4.4, whole engines 6."""
        matrices = colocated(np.array([[1.1], [2.9]]), [4.0, 2.0])
        assert least(matrices, Aim(), EXACT) == pytest.approx(6.0)
        assert least(matrices, Aim(), replace(EXACT, provable=0)) == pytest.approx(4.4)
        assert least(matrices, Aim(), EXACT, 5.0) == pytest.approx(5.0)

    def test_few_columns_bound_nothing_but_find_a_fleet(self) -> None:
        matrices = wider(5, columns=40)
        best = whole_blocks(matrices, Aim(), EXACT)
        found = cheapest(matrices, Aim(), Work(near=2, kinds=2, provable=0, gap=0.0))
        assert found.index.size
        assert found.bound <= best.objective + 1e-6 <= found.objective + 2e-6
        counts = np.zeros(matrices.size, dtype=np.int64)
        counts[found.index] = found.blocks
        assert routable(matrices, counts)

    def test_work_and_not_time_decides(self) -> None:
        matrices = wider(11, columns=40)
        one, other = (cheapest(matrices, Aim(), Work(nodes=5)) for _ in range(2))
        assert one.objective == other.objective
        assert one.bound == other.bound
        np.testing.assert_array_equal(one.route, other.route)

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
