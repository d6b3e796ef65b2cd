"""How close a plan is to each limit, tightest first, and which limits stand in the way when there is no plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .evaluate import Evaluation
from .fleet import Fleet, FleetPool
from .instance import Instance
from .loads import RESOURCES, Resource
from .plan import Binding

MEANING = {
    Resource.TIME: "Prompt servers of {pool} are {use:.0%} as busy as the TTFT limit permits.",
    Resource.QUEUE: "Long prompts in {pool} use {use:.0%} of the queueing that the TTFT limit permits.",
    Resource.SLOTS: "Pool {pool} runs {use:.0%} of the requests that max_num_seqs permits with room for bursts.",
    Resource.KV_MEMORY: "KV cache fills {use:.0%} of the memory that {pool} may plan on.",
    Resource.ATTENTION_TIME: "Decode steps of {pool} use {use:.0%} of the time that the TPOT limit permits.",
    Resource.LINK: "KV transfers use {use:.0%} of what the network cards of {pool} may carry.",
}


def binding(constraint: str, where: str, used: float, limit: float, unit: str, sentence: str) -> Binding:  # noqa: PLR0917
    """A limit with its slack computed."""
    slack = 1.0 - used / limit if limit else -float("inf") * (used > 0.0) or 0.0
    return Binding(
        constraint=constraint, where=where, used=used, limit=limit, unit=unit, slack=slack, sentence=sentence
    )


def pool_bindings(pool: FleetPool) -> list[Binding]:
    """Use of each resource of a pool as a share of what the SLOs permit."""
    return [
        binding(
            str(resource),
            pool.name,
            float(use),
            1.0,
            "1",
            MEANING[resource].format(pool=pool.name, use=float(use)),
        )
        for resource, use in zip(RESOURCES, pool.use, strict=True)
        if use > 1e-6
    ]


def binding_limits(
    instance: Instance, fleet: Fleet, evaluation: Evaluation, cost: float, gpus: NDArray[np.int64]
) -> list[Binding]:
    """Every limit on the plan and how close it is, tightest first."""
    problem = instance.problem
    limits = [row for pool in fleet.pools for row in pool_bindings(pool)]
    for k, slo in enumerate(problem.slos):
        missed, permitted = 1.0 - float(evaluation.attainment[k]), 1.0 - slo.attainment
        sentence = f"{missed:.2%} of class {slo.name} miss an SLO where {permitted:.2%} may."
        limits.append(binding("attainment", slo.name, missed, permitted, "1", sentence))
    limits += fleet_bindings(instance, cost, gpus)
    return sorted(limits, key=lambda row: (row.slack, row.constraint, row.where))


def fleet_bindings(instance: Instance, cost: float, gpus: NDArray[np.int64]) -> list[Binding]:
    """Inventory, budget, power and GPU count against their limits."""
    problem, rows = instance.problem, []
    for offer, count in zip(problem.offers, gpus, strict=True):
        name = offer.accelerator.name
        if offer.inventory is not None and count:
            sentence = f"{count} of {offer.inventory} {name} in the inventory are used."
            rows.append(binding("inventory", name, float(count), float(offer.inventory), "GPU", sentence))
    ceiling = problem.constraints
    power = float(sum(offer.accelerator.tdp * count for offer, count in zip(problem.offers, gpus, strict=True)))
    total = int(gpus.sum())
    if ceiling.budget is not None:
        sentence = f"${cost:,.2f}/h of a budget of ${ceiling.budget:,.2f}/h is spent."
        rows.append(binding("budget", "fleet", cost, ceiling.budget, "$/h", sentence))
    if ceiling.power is not None:
        sentence = f"{power / 1e3:,.1f} kW of {ceiling.power / 1e3:,.1f} kW board power is used."
        rows.append(binding("power", "fleet", power, ceiling.power, "W", sentence))
    if ceiling.max_gpus is not None:
        sentence = f"{total} of {ceiling.max_gpus} GPUs are used."
        rows.append(binding("max_gpus", "fleet", float(total), float(ceiling.max_gpus), "GPU", sentence))
    return rows
