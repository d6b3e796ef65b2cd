"""What no fleet can cost less than, whatever its engines promise: one that does not fall behind has to be paid for.

`by_evaluation.keeping_up` says how many engines a request per second of each length takes at least. That is linear, so
the cheapest whole engines that keep up, however the demand is routed over however many pools, are a fleet problem like
any other, without queues and without misses. The evaluation accepts no fleet with a pool that falls behind, so the
bound of this problem holds for every fleet that it could accept.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optimizer.solver.blocks import Work, relax
from optimizer.solver.fleet_model import Aim, engine_cost, fleet_limits
from optimizer.solver.matrices import Matrices
from optimizer.solver.whole import cheapest

from .by_evaluation import Evaluated, FloatArray, IntArray, keeping_up

WORK = Work(columns=40, more=120, nodes=200, choices=30, provable=400, liftable=0, gap=1e-4, time_limit=20.0)
"""Effort for the bound; it holds wherever the work ends."""


def least_cost(known: Evaluated, seconds: float = WORK.time_limit) -> float | None:
    """Bound on the cost of any fleet of these engines that keeps up with the demand [$/h]; None where none can be.

    seconds: that it may take; it holds wherever the work ends.
    """
    matrices = _matrices(known)
    scale = 1.0 / max(offer.usd_per_hour for offer in known.instance.problem.offers)
    work = replace(WORK, time_limit=min(WORK.time_limit, seconds))
    bound = cheapest(matrices, Aim(cost_weight=scale), work).bound / scale if matrices.size else np.inf
    return float(bound) if np.isfinite(bound) else None


def least_per_demand(known: Evaluated) -> float | None:
    """Bound on the cost of any fleet per demand that it keeps up with, this or a larger one [$/h]; None without any.

    With fractions of engines the cost is convex in the demand, so that per demand it is least at the least.
    """
    matrices = _matrices(known)
    scale = 1.0 / max(offer.usd_per_hour for offer in known.instance.problem.offers)
    prices = relax(matrices, Aim(cost_weight=scale), WORK.time_limit) if matrices.size else None
    return None if prices is None else float(prices.objective / scale)


def _matrices(known: Evaluated) -> Matrices:
    """One column for each engine in a role, that takes of every length what the best of its token budgets takes."""
    instance = known.instance
    role, shape, need = _engines(known)
    problem = instance.problem
    return Matrices(
        role=role,
        domain=instance.tables.group[role, shape],
        pool=np.arange(role.size),
        replicas=np.ones(role.size, dtype=np.int64),
        price=engine_cost(instance)[shape],
        need=need[:, None, :],
        late=np.zeros(need.shape),
        slo=instance.flows.slo,
        permitted=np.ones(len(problem.slos)),
        resources=("keeping_up",),
        domains=instance.tables.pairing.prefill.shape[1],
        pairing=instance.tables.pairing,
        limits=tuple(replace(limit, weight=limit.weight[shape]) for limit in fleet_limits(instance)),
        spares=problem.constraints.spare_replicas,
        max_pools=problem.constraints.max_pools,
    )


def _engines(known: Evaluated) -> tuple[IntArray, IntArray, FloatArray]:
    """Role and shape of each engine, and how many of them a whole flow keeps busy at least, (engines, flows)."""
    one = known.settings
    key, member = np.unique(np.stack([one.role, one.shape]), axis=1, return_inverse=True)
    need = np.full((key.shape[1], known.instance.flows.isl.size), np.inf)
    np.minimum.at(need, member.ravel(), keeping_up(known.instance, one) * known.instance.flows.rate)
    return key[0], key[1], need
