"""Small random fleet problems in numbers alone, their optimum by trying every fleet, and programmes as text."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optimizer.loads.instance import COLOCATED, DECODE, PREFILL
from optimizer.search.program import Aim, Limit, Matrices, Program, SolveStatus, solve, write_model

MOST_EACH = 3
"""Engines of one column, at most, in the fleets that are tried."""


def random_matrices(seed: int, *, columns: int = 4, flows: int = 3, limited: bool = False) -> Matrices:
    """Engines of random price and strength: all roles, two domains, two resources, now and then no way for a flow."""
    random = np.random.default_rng(seed)
    role = random.choice([PREFILL, DECODE, COLOCATED], columns, p=[0.3, 0.3, 0.4])
    price = np.round(random.uniform(1.0, 6.0, columns), 1)
    strength = price / random.uniform(1.0, 5.0, columns)
    need = random.uniform(0.3, 1.7, (columns, 2, flows)) / strength[:, None, None]
    need[random.random((columns, 2, flows)) < 0.05] = np.inf
    need[:, 1][random.random(columns) < 0.5] = 0.0
    slo = random.integers(0, 2, flows)
    share = random.dirichlet(np.ones(flows))
    limits: tuple[Limit, ...] = ()
    if limited:
        some = (random.random(columns) < 0.5).astype(np.float64)
        limits = (Limit("inventory A", 3.0, some), Limit("power", 9.0, random.uniform(0.5, 2.0, columns)))
    return Matrices(
        role=role,
        domain=random.integers(0, 2, columns),
        price=price,
        need=need,
        late=share * random.choice([0.0, 0.05, 0.2], (columns, 1)),
        slo=slo,
        permitted=0.1 * np.bincount(slo, share, 2),
        talks=np.array([[True, seed % 2 == 0], [seed % 3 == 0, True]]),
        limits=limits,
    )


def billed_by_node(matrices: Matrices, size: int = 4, owned: int = 0) -> Matrices:
    """The same with the first half of the columns sold in whole nodes only, but for the GPUs that are owned."""
    by_node = (np.arange(matrices.size) < matrices.size // 2).astype(np.float64)
    node = Limit("nodes A", 0.0, by_node, size, 7.5, owned, 0.2)
    return replace(matrices, price=np.where(by_node > 0.0, 0.0, matrices.price), limits=(*matrices.limits, node))


def routable(matrices: Matrices, counts: NDArray[np.int64]) -> bool:
    """Whether so many engines of every column serve the demand: the routing alone, a linear programme."""
    model = write_model(replace(matrices, limits=()), Aim())
    model.program.variables.lower_bounds[: counts.size] = counts.tolist()
    model.program.variables.upper_bounds[: counts.size] = counts.tolist()
    return solve(model.program, relaxed=True).outcome is SolveStatus.OPTIMAL


def cost_of(matrices: Matrices, counts: NDArray[np.int64]) -> float:
    """What so many engines of every column cost, with the nodes that they take and the spares of their pools [$/h]."""
    engines = counts + matrices.spares * (counts > 0)
    cost = float(matrices.price @ engines)
    for node in (limit for limit in matrices.limits if limit.node_size):
        gpus = float(node.weight @ engines)
        rented = math.ceil(max(gpus - node.owned, 0.0) / node.node_size)
        cost += rented * node.node_price + max(gpus - rented * node.node_size, 0.0) * node.owned_price
    return cost


def within(matrices: Matrices, counts: NDArray[np.int64]) -> bool:
    """Whether so many engines keep every limit."""
    return all(float(limit.weight @ counts) <= limit.upper + 1e-9 for limit in matrices.limits if not limit.node_size)


def by_trying_all(matrices: Matrices) -> float:
    """Cost of the cheapest fleet of at most MOST_EACH engines of every column; inf where there is none."""
    every = np.array(list(np.ndindex(*(MOST_EACH + 1,) * matrices.size)), dtype=np.int64)
    priced = sorted((cost_of(matrices, counts), tuple(counts)) for counts in every if within(matrices, counts))
    return next((cost for cost, counts in priced if routable(matrices, np.array(counts))), np.inf)


def lp_text(program: Program, *prefixes: str) -> str:
    """The programme in LP format; prefixes: only the rows whose names begin so."""
    names = list(program.variables.names)
    objective, entries = program.objective.linear_coefficients, program.linear_constraint_matrix

    def terms(columns: list[int], values: list[float]) -> str:
        return " ".join(
            f"{'-' if value < 0 else '+'} {abs(value):.6g} {names[column]}"
            for column, value in zip(columns, values, strict=True)
        )

    lines = ["Minimize", f" obj: {terms(list(objective.ids), list(objective.values))}", "Subject To"]
    row_of, column_of, values = map(np.array, (entries.row_ids, entries.column_ids, entries.coefficients))
    rows = program.linear_constraints
    for row, (name, low, high) in enumerate(zip(rows.names, rows.lower_bounds, rows.upper_bounds, strict=True)):
        here = row_of == row
        body = terms(column_of[here].tolist(), values[here].tolist())
        if not name.startswith(prefixes or ("",)):
            continue
        if low == high:
            lines.append(f" {name}: {body} = {low:.6g}")
        else:
            lines += [f" {name}: {body} >= {low:.6g}"] if math.isfinite(low) else []
            lines += [f" {name}: {body} <= {high:.6g}"] if math.isfinite(high) else []
    upper = zip(names, program.variables.upper_bounds, strict=True)
    lines += ["Bounds", *(f" {name} <= {most:.6g}" for name, most in upper if math.isfinite(most))]
    whole = zip(names, program.variables.integers, strict=True)
    return "\n".join([*lines, "General", *(f" {name}" for name, integer in whole if integer), "End"]) + "\n"


def columns_of(matrices: Matrices, index: NDArray[np.int64]) -> Matrices:
    """The columns at `index`, in that order."""
    limits, pool_limits = (
        tuple(replace(limit, weight=limit.weight[index]) for limit in rows)
        for rows in (matrices.limits, matrices.pool_limits)
    )
    columns = {name: getattr(matrices, name)[index] for name in ("role", "domain", "price", "need", "late")}
    return replace(matrices, limits=limits, pool_limits=pool_limits, talks=matrices.hand_over, **columns)
