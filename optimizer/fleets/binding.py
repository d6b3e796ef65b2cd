"""How close a plan is to each limit, tightest first, and which limits stand in the way when there is no plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.words import dollars, join_words, percentage
from optimizer.loads.engine_table import Resource
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Binding
from search_spaces.problem import Billing, Goal, Problem

from .evaluate import Evaluation, Headroom
from .fleet import Fleet, FleetPool

MEANING = {
    Resource.TIME: "prompts then wait too long for the TTFT limit",
    Resource.SLOTS: "max_num_seqs requests then run at once and others wait",
    Resource.KV_MEMORY: "the KV cache then fills the memory",
    Resource.ATTENTION_TIME: "decode steps then take too long for the TPOT limit",
}


def binding(constraint: str, where: str, used: float, limit: float, unit: str, sentence: str) -> Binding:  # noqa: PLR0917
    """A limit with its slack, the share of it that is left; where nothing is allowed, how much too much there is."""
    slack = 1.0 - used / limit if limit else -used
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
        return f"{dollars(value)}/h"
    if unit == "W":
        return f"{value / 1e3:,.10g} kW"
    if unit == "pools":
        return f"{value:,.0f} pool{'' if value == 1 else 's'}"
    return f"{value:,.6g}" if unit == "1" else f"{value:,.6g} {unit}"


def pool_binding(pool: FleetPool, headroom: Headroom, prompt_time: float = 0.0) -> Binding:
    """How close a pool is to the load at which an SLO breaks; prompt_time: share of the time with a prompt [1].

    Prompts that wait share steps, so that may be nearly all of the time long before the load is all that there can be.
    """
    share = 1.0 / headroom.load if headroom.load > 0.0 else float("inf")
    shared = f"; its prompt time of {percentage(prompt_time, 1)} grows by less, as prompts that wait share steps"
    why = f"{MEANING[headroom.resource]}{shared if 1.0 < prompt_time * headroom.load < float('inf') else ''}"
    if headroom.load >= 1.0:
        room = f"can take {percentage(headroom.load - 1.0)} more load"
    elif headroom.load > 0.0:
        room = f"gets {percentage(share - 1.0)} more load than it can take"
    else:
        room = "can take no load at all"
    sentence = f"{pool.name} {room}: {why}."
    return binding(str(headroom.resource), pool.name, share, 1.0, "1", sentence)


def attainment_binding(name: str, miss_share: float, miss_limit: float, source: str = "") -> Binding:
    """How many requests of a class miss an SLO, and how many may [1]; source: how that is known."""
    share = "None" if miss_share <= 0.0 else percentage(miss_share, 2) if miss_share >= 5e-5 else "Less than 0.01 %"
    sentence = f"{share} of class {name} miss the SLO{source}; {percentage(miss_limit, 2)} may."
    return binding("attainment", name, miss_share, miss_limit, "1", sentence)


def binding_limits(
    instance: Instance, fleet: Fleet, evaluation: Evaluation, headrooms: list[Headroom]
) -> list[Binding]:
    """How close the pools and the SLO classes are to their limits."""
    pools = zip(fleet.pools, headrooms, evaluation.states, strict=True)
    limits = [pool_binding(pool, headroom, state.utilization) for pool, headroom, state in pools]
    for slo, attainment in zip(instance.problem.slos, evaluation.attainment, strict=True):
        limits.append(attainment_binding(slo.name, 1.0 - float(attainment), 1.0 - slo.attainment))
    return limits


def fleet_bindings(instance: Instance, cost: float, gpus: NDArray[np.int64]) -> list[Binding]:
    """Inventory, budget, power and GPU count of a fleet against their limits, whether it keeps them or not."""
    problem, ceiling = instance.problem, instance.problem.constraints
    rows = [
        _fleet_limit(
            "inventory", offer.accelerator.name, float(count), None if offer.inventory is None else offer.stock, "GPU"
        )
        for offer, count in zip(problem.offers, gpus, strict=True)
        if count
    ]
    power = float(sum(offer.accelerator.tdp * count for offer, count in zip(problem.offers, gpus, strict=True)))
    rows.append(_fleet_limit("budget", "fleet", cost, ceiling.budget, "$/h"))
    rows.append(_fleet_limit("power", "fleet", power, ceiling.power, "W"))
    rows.append(_fleet_limit("max_gpus", "fleet", float(gpus.sum()), ceiling.max_gpus, "GPU"))
    return [row for row in rows if row is not None]


def _fleet_limit(constraint: str, where: str, used: float, limit: float | None, unit: str) -> Binding | None:
    """One limit on the fleet, None where there is none; a fleet that breaks it needs, one that keeps it uses."""
    if limit is None:
        return None
    limit_names = {"inventory": f"the {where} inventory", "power": "the board power limit", "max_gpus": "max_gpus"}
    name, most = limit_names.get(constraint, f"the {constraint}"), amount(limit, unit)
    if used <= limit * (1.0 + 1e-9):
        sentence = f"{amount(used, unit)} used; {name} is {most}."
    else:
        sentence = f"{amount(used, unit)} needed, but {name} is {most}."
    return binding(constraint, where, used, float(limit), unit, sentence)


def volume_bindings(problem: Problem, volume: float) -> list[Binding]:
    """The most that a plan for goodput per dollar may serve, against what it serves, `volume` times the demand [1]."""
    objective, demand = problem.objective, problem.workload.request_rate
    if objective.goal is not Goal.MAX_GOODPUT_PER_DOLLAR:
        return []
    served_rate, most = volume * demand, objective.max_volume * demand
    sentence = f"{served_rate:.3g} req/s served, of {most:.3g} req/s at most: max_volume is {objective.max_volume:g}."
    return [binding("max_volume", "fleet", served_rate, most, "req/s", sentence)]


def limits_by_use(problem: Problem) -> list[str]:
    """What the limits count where whole nodes are billed; nothing where none is stated that could count otherwise."""
    by_node = [offer for offer in problem.offers if offer.billing is Billing.NODE]
    limits = problem.constraints
    limit_values = [limits.power, limits.max_gpus, *(offer.inventory for offer in by_node)]
    if not by_node or all(limit is None for limit in limit_values):
        return []
    names = join_words([offer.accelerator.name for offer in by_node])
    return [
        f"Whole nodes of {names} are billed: the budget pays for all of their GPUs; inventory, power and max_gpus "
        "count those that engines use."
    ]
