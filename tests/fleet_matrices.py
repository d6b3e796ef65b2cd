"""Small random fleet problems in numbers alone, and their optimum by trying every fleet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.instance import COLOCATED, DECODE, PREFILL
from optimizer.search.fleet_program import Aim, FleetModel, Limit, Matrices, write_model
from optimizer.search.program import Outcome, solve
from optimizer.search.whole_fleets import Blocks, whole_cost

MOST_EACH = 3
"""Blocks of one column, at most, in the fleets that are tried."""


def random_matrices(seed: int, *, columns: int = 4, flows: int = 3, limited: bool = False) -> Matrices:
    """Blocks of random price and strength: all roles, two domains, two resources, now and then no way for a flow."""
    random = np.random.default_rng(seed)
    role = random.choice([PREFILL, DECODE, COLOCATED], columns, p=[0.3, 0.3, 0.4])
    replicas = random.choice([1, 1, 2], columns)
    price = np.round(random.uniform(1.0, 6.0, columns), 1)
    strength = price * replicas ** random.uniform(1.0, 1.3) / random.uniform(1.0, 5.0, columns)
    need = random.uniform(0.3, 1.7, (columns, 2, flows)) / strength[:, None, None]
    need[random.random((columns, 2, flows)) < 0.05] = np.inf
    need[:, 1][random.random(columns) < 0.5] = 0.0
    slo = random.integers(0, 2, flows)
    share = random.dirichlet(np.ones(flows))
    limits: tuple[Limit, ...] = ()
    if limited:
        one = (random.random(columns) < 0.5).astype(np.float64)
        limits = (Limit("inventory A", 3.0, one), Limit("power", 9.0, random.uniform(0.5, 2.0, columns)))
    return Matrices(
        role=role,
        domain=random.integers(0, 2, columns),
        pool=np.arange(columns),
        replicas=replicas,
        price=price,
        need=need,
        late=share * random.choice([0.0, 0.05, 0.2], (columns, 1)),
        slo=slo,
        permitted=0.1 * np.bincount(slo, share, 2),
        resources=("time", "slots"),
        domains=2,
        limits=limits,
    )


def at_most(pools: int, columns: int) -> tuple[Limit, ...]:
    """A limit on the number of all pools."""
    return (Limit("max_pools", float(pools), np.ones(columns)),)


def billed_by_node(matrices: Matrices, size: int = 4) -> Matrices:
    """The same with the first half of the columns sold in whole nodes only."""
    mine = (np.arange(matrices.size) < matrices.size // 2).astype(np.float64)
    node = Limit("nodes A", 0.0, mine, size, 7.5)
    return replace(matrices, price=np.where(mine > 0.0, 0.0, matrices.price), limits=(*matrices.limits, node))


def routable(matrices: Matrices, counts: NDArray[np.int64]) -> bool:
    """Whether these blocks serve the demand: the routing alone, a linear programme."""
    return routes(write_model(replace(matrices, limits=()), Aim()), counts)


def routes(model: FleetModel, counts: NDArray[np.int64]) -> bool:
    """The same for a programme that is written once."""
    lower, upper = model.program.lower.copy(), model.program.upper.copy()
    lower[model.blocks] = upper[model.blocks] = counts
    fixed = replace(model.program, lower=lower, upper=upper)
    return solve(fixed, relaxed=True).outcome is Outcome.OPTIMAL


def cost_of(matrices: Matrices, counts: NDArray[np.int64]) -> float:
    """What so many blocks of every column cost [$/h]."""
    index = np.flatnonzero(counts)
    route = np.zeros((index.size, matrices.flows))
    return whole_cost(matrices, Blocks(Outcome.FEASIBLE, 0.0, 0.0, 1.0, index, counts[index], route, complete=True))


def within(matrices: Matrices, counts: NDArray[np.int64]) -> bool:
    """Whether these blocks keep every limit."""
    return all(
        float((matrices.replicas * limit.weight) @ counts) <= limit.upper + 1e-9
        for limit in matrices.limits
        if not limit.node_size
    )


def by_trying_all(matrices: Matrices) -> float:
    """Cost of the cheapest fleet of at most MOST_EACH blocks of every column; inf where there is none.

    Whatever costs as much as a fleet that serves the demand is out, and so is whatever is contained in one that does
    not: the one in the middle by cost is tried, until none is left.
    """
    every = np.array(list(np.ndindex(*(MOST_EACH + 1,) * matrices.size)), dtype=np.int64)
    every = np.array([counts for counts in every if within(matrices, counts)])
    cost = np.array([cost_of(matrices, counts) for counts in every])
    model, best = write_model(replace(matrices, limits=()), Aim()), np.inf
    while cost.size:
        middle = np.lexsort((every.sum(axis=1), cost))[cost.size // 2]
        if routes(model, every[middle]):
            best = cost[middle]
            left = cost < best
        else:
            left = (every > every[middle]).any(axis=1)
        every, cost = every[left], cost[left]
    return float(best)


def colocated(need: np.ndarray[tuple[int, ...], np.dtype[np.float64]], price: list[float]) -> Matrices:
    """Colocated single engines of one resource."""
    size, flows = need.shape
    return Matrices(
        role=np.full(size, COLOCATED),
        domain=np.zeros(size, dtype=np.int64),
        pool=np.arange(size),
        replicas=np.ones(size, dtype=np.int64),
        price=np.array(price),
        need=need[:, None, :],
        late=np.zeros((size, flows)),
        slo=np.zeros(flows, dtype=np.int64),
        permitted=np.ones(1),
        resources=("time",),
    )
