"""Colocated fleets found by evaluation alone, for demands a little above what columns promise.

A column promises its attainment for any routing and mix, with the batch, the attention time and the queue all at their
limits at once. A fleet of one colocated pool gets exactly the demand, so the evaluation at its real loads can show that
it holds although no column would promise it.
"""

from __future__ import annotations

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.columns import Columns
from optimizer.loads.instance import Instance
from optimizer.solver.fleet_model import COLOCATED, fleet_limits
from optimizer.solver.simple_plans import Totals, block_counts
from search_spaces.problem import Billing

OPTIMISM = 1.5
"""Up to this factor, what a column promises is taken to be less than what its engines can do."""

SHARING = 24
"""Engines up to which one queue for all of them is believed without a promise; the largest block has as many."""


def one_pool(instance: Instance, shape: int, seqs: int, chunk: int, replicas: int) -> Fleet:
    """The fleet of one colocated pool that serves everything."""
    spares = instance.problem.constraints.spare_replicas
    route = np.ones(instance.flows.isl.size)
    return Fleet((FleetPool("colocated-1", Role.COLOCATED, shape, seqs, chunk, replicas, spares, route),))


def most_replicas(instance: Instance, shape: int, below: float) -> float:
    """Engines of one shape that the limits allow beside the spares for less than `below` $/h."""
    problem, tables = instance.problem, instance.tables
    spares = problem.constraints.spare_replicas
    most = np.inf
    if np.isfinite(below):
        most = np.ceil(below * (1.0 - 1e-6) / tables.usd_per_hour[shape]) - 1.0 - spares
    for limit in fleet_limits(instance):
        if not limit.node_size and limit.weight[shape] > 0.0:
            most = min(most, np.floor(limit.upper * (1.0 + 1e-9) / limit.weight[shape]) - spares)
    offer = problem.offers[int(tables.offer[shape])]
    if problem.constraints.budget is not None and offer.billing is Billing.NODE:
        nodes = np.floor(problem.constraints.budget / (offer.usd_per_hour * offer.accelerator.node_size))
        most = min(most, np.floor(nodes * offer.accelerator.node_size / tables.gpus[shape]) - spares)
    return float(most)


def cheapest_held(instance: Instance, priced: tuple[Columns, Totals], below: float) -> Fleet | None:
    """The cheapest fleet of one colocated pool within the limits, and below some cost [$/h], that holds every goal.

    priced: columns, and what the demand needs of them; settings that promise far less than they must are not tried.
    """
    best: Fleet | None = None
    for setting, promised in _engines_promised(*priced):
        most = min(SHARING, most_replicas(instance, setting[0], below))
        if most < max(1.0, promised / OPTIMISM):
            continue
        fleet = _fewest(instance, setting, int(most))
        if fleet is not None and fleet_cost(instance, fleet) < below * (1.0 - 1e-6):
            best, below = fleet, fleet_cost(instance, fleet)
    return best


def _engines_promised(columns: Columns, totals: Totals) -> list[tuple[tuple[int, int, int], float]]:
    """Each setting (shape, seqs, chunk) with the fewest engines of which a column promises to carry the demand."""
    able = (columns.role == COLOCATED) & (totals.late <= OPTIMISM).all(axis=1) & np.isfinite(totals.busiest)
    some = columns.take(able)
    engines = block_counts(totals.busiest[able]) * some.replicas
    fewest: dict[tuple[int, int, int], float] = {}
    for shape, seqs, chunk, count in zip(some.shape, some.seqs, some.chunk, engines, strict=True):
        setting = (int(shape), int(seqs), int(chunk))
        fewest[setting] = min(float(count), fewest.get(setting, np.inf))
    return sorted(fewest.items())


def _fewest(instance: Instance, setting: tuple[int, int, int], most: int) -> Fleet | None:
    """The fewest replicas of one setting that hold, by bisection; None if not even `most` do."""

    def held(replicas: int) -> bool:
        return holds(instance, predict_misses(instance, one_pool(instance, *setting, replicas)))

    if not held(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if held(middle) else (middle, high)
    return one_pool(instance, *setting, high)
