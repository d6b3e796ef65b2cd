"""Whole blocks for a given choice of engines: against the whole-number problem of the same engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.solver import assembly
from optimizer.solver.assembly import ALL, Stock, assemble
from optimizer.solver.blocks import Blocks, Work, whole_blocks
from optimizer.solver.counts import kinds_of
from optimizer.solver.matrices import Limit, Matrices
from optimizer.solver.program import Outcome
from tests.fleet_matrices import at_most, random_matrices, routable

EXACT = Work(gap=0.0)


def some_engines(seed: int) -> tuple[Matrices, Stock]:
    """Several columns of each kind of engine, and up to three engines of each kind."""
    random = np.random.default_rng(seed)
    made = random_matrices(seed, columns=10)
    kind = random.integers(0, 4, made.size)
    made = replace(made, role=kind % 3, domain=np.zeros_like(kind), domains=1, price=1.0 + kind.astype(np.float64))
    of = kinds_of(made, 100.0).of
    return made, Stock(of, random.integers(0, 4, int(of.max()) + 1))


def by_whole_numbers(matrices: Matrices, stock: Stock) -> Blocks:
    """The same by one whole-number problem over all columns."""
    limits = tuple(
        Limit(f"engines {k}", float(count), (stock.kind == k).astype(np.float64))
        for k, count in enumerate(stock.counts)
    )
    return whole_blocks(replace(matrices, price=np.zeros(matrices.size), limits=limits), ALL, EXACT)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_it_finds_blocks_wherever_there_are_some(seed: int) -> None:
    matrices, stock = some_engines(seed)
    found, other = assemble(matrices, stock, [], EXACT), by_whole_numbers(matrices, stock)
    assert (found.index.size > 0) == (other.index.size > 0)
    if not found.index.size:
        assert found.outcome is Outcome.INFEASIBLE
        assert found.complete
        return
    blocks = np.zeros(matrices.size, dtype=np.int64)
    blocks[found.index] = found.blocks
    assert routable(matrices, blocks)
    engines = np.bincount(stock.kind, blocks * matrices.replicas, stock.counts.size)
    assert (engines <= stock.counts).all()


@pytest.mark.parametrize("most", [None, 1])
def test_no_columns_are_no_fleet(most: int | None) -> None:
    matrices, stock = some_engines(1)
    nobody = np.array([], dtype=np.int64)
    limited = replace(matrices, pool_limits=() if most is None else at_most(most, matrices.size))
    found = assemble(limited.take(nobody), Stock(nobody, stock.counts), [], EXACT)
    assert found.outcome is Outcome.INFEASIBLE
    assert found.complete


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2))
def test_no_more_pools_than_allowed(seed: int, most: int) -> None:
    matrices, stock = some_engines(seed)
    limited = replace(matrices, pool_limits=at_most(most, matrices.size))
    found, other = assemble(limited, stock, [], EXACT), by_whole_numbers(limited, stock)
    assert (found.index.size > 0) == (other.index.size > 0)
    assert np.unique(matrices.pool[found.index]).size <= most


def test_a_limit_on_picks_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "PICKS", 0)
    matrices, stock = some_engines(1)
    found = assemble(matrices, stock, [], EXACT)
    assert found.outcome is Outcome.NOTHING_FOUND
    assert not found.complete
