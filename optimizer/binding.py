"""How close a plan is to each limit, tightest first, and which limits stand in the way when there is no plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .evaluate import Evaluation
from .fleet import Fleet, FleetPool
from .headroom import Headroom
from .instance import Instance
from .loads import Resource
from .plan import Binding

MEANING = {
    Resource.TIME: "prompts then wait too long for the TTFT limit",
    Resource.SLOTS: "max_num_seqs requests then run at once and others wait",
    Resource.KV_MEMORY: "the KV cache then fills the memory",
    Resource.ATTENTION_TIME: "decode steps then take too long for the TPOT limit",
}


def binding(constraint: str, where: str, used: float, limit: float, unit: str, sentence: str) -> Binding:  # noqa: PLR0917
    """A limit with its slack computed."""
    slack = 1.0 - used / limit if limit else -float("inf") * (used > 0.0) or 0.0
    return Binding(
        constraint=constraint, where=where, used=used, limit=limit, unit=unit, slack=slack, sentence=sentence
    )


def amount(value: float, unit: str) -> str:
    """A quantity of a limit in words, never rounded so far that two different ones read the same.

    >>> amount(1001.0, "GPU"), amount(99.7, "$/h"), amount(40.0, "W"), amount(3.0, "1")
    ('1,001 GPUs', '$99.70/h', '0.04 kW', '3')
    """
    if unit == "GPU":
        return f"{value:,.0f} GPU{'' if value == 1 else 's'}"
    if unit == "$/h":
        return f"${value:,.2f}/h"
    if unit == "W":
        return f"{value / 1e3:,.10g} kW"
    return f"{value:,.6g}" if unit == "1" else f"{value:,.6g} {unit}"


def pool_binding(pool: FleetPool, headroom: Headroom) -> Binding:
    """How close a pool is to the load at which an SLO breaks."""
    share = 1.0 / headroom.load if headroom.load > 0.0 else float("inf")
    more = headroom.load - 1.0
    sentence = f"{pool.name} can take {more:.0%} more load: {MEANING[headroom.resource]}."
    return binding(str(headroom.resource), pool.name, share, 1.0, "1", sentence)


def binding_limits(
    instance: Instance, fleet: Fleet, evaluation: Evaluation, headrooms: list[Headroom]
) -> list[Binding]:
    """How close the pools and the SLO classes are to their limits, tightest first."""
    problem = instance.problem
    limits = [pool_binding(pool, headroom) for pool, headroom in zip(fleet.pools, headrooms, strict=True)]
    for k, slo in enumerate(problem.slos):
        missed, permitted = 1.0 - float(evaluation.attainment[k]), 1.0 - slo.attainment
        sentence = f"{missed:.2%} of class {slo.name} miss an SLO where {permitted:.2%} may."
        limits.append(binding("attainment", slo.name, missed, permitted, "1", sentence))
    return sorted(limits, key=lambda row: (row.slack, row.constraint, row.where))


def fleet_bindings(instance: Instance, cost: float, gpus: NDArray[np.int64]) -> list[Binding]:
    """Inventory, budget, power and GPU count against their limits."""
    problem, rows = instance.problem, []
    for offer, count in zip(problem.offers, gpus, strict=True):
        name = offer.accelerator.name
        if offer.inventory is not None and count:
            sentence = f"{count:,} of {offer.inventory:,} {name} in the inventory are used."
            rows.append(binding("inventory", name, float(count), float(offer.inventory), "GPU", sentence))
    ceiling = problem.constraints
    power = float(sum(offer.accelerator.tdp * count for offer, count in zip(problem.offers, gpus, strict=True)))
    total = int(gpus.sum())
    if ceiling.budget is not None:
        sentence = f"{amount(cost, '$/h')} of a budget of {amount(ceiling.budget, '$/h')} is spent."
        rows.append(binding("budget", "fleet", cost, ceiling.budget, "$/h", sentence))
    if ceiling.power is not None:
        sentence = f"{amount(power, 'W')} of {amount(ceiling.power, 'W')} board power is used."
        rows.append(binding("power", "fleet", power, ceiling.power, "W", sentence))
    if ceiling.max_gpus is not None:
        sentence = f"{total:,} of {ceiling.max_gpus:,} GPUs are used."
        rows.append(binding("max_gpus", "fleet", float(total), float(ceiling.max_gpus), "GPU", sentence))
    return rows
