"""Where no fleet meets the SLOs: the fleet that comes nearest, and what would have to give for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from costmodel.engine import Role
from costmodel.metric import Metric
from costmodel.words import join_words, percentage
from costmodel.workload import scale_rate
from optimizer.fleets.build_plan import amount, binding, fleet_bindings
from optimizer.fleets.fleet import Fleet, FloatArray, fleet_cost, fleet_gpus
from optimizer.loads.instance import Instance, make_settings, planned_instance
from optimizer.plans.plan import Alternative, Binding
from optimizer.plans.proof import ROUNDING
from optimizer.search.bound import most_of_demand, with_looser_slos, without_limits
from optimizer.verification.bench import Verdict, miss_words
from optimizer.verification.record import fleet_row
from search_spaces.problem import Billing, Goal, Objective, Problem, Slo

from .search import Effort, Solution, by_formula, solution_of

LIMIT_UNITS: Final = {"budget": "$/h", "max_gpus": "GPU", "power": "W", "max_pools": "pools", "gateway": ""}
"""Limits of the constraints with their units, in the order in which they are lifted."""
INVENTORY: Final = "inventory "
"""Before the name of a GPU type, the name of the limit on how many of it can be had."""
LESS_SO: Final = 1e-3
"""What the dearest GPU's price counts for beside a limit: it decides between fleets that take as much of it."""
LITTLE: Final = 0.01
"""Multiple of the demand below which no fleet is worth having where the most goodput is sought."""
LOOSER: Final = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Factors by which limits on latency are loosened."""
FINE: Final = 1e-4
"""To which a lower goal is stated [1]."""


@dataclass(frozen=True, slots=True)
class Miss:
    """What is in the way: the nearest fleets, and limits by how much each would have to give.

    kept: a fleet that keeps every limit after all, where the search for the nearest one came by it.
    """

    rows: Sequence[Alternative] = ()
    shortfalls: Sequence[Binding] = ()
    kept: Solution | None = None


def describe_miss(instance: Instance, effort: Effort) -> Miss:
    """The nearest fleet without one of the limits on it, or with SLOs loosened, and what each takes.

    Without any fleet whatever, or once it is late, nothing is named.
    """
    return without_a_limit(instance, effort) or _with_looser_latencies(instance, effort) or Miss()


def describe_impossible(instance: Instance, effort: Effort) -> Miss:
    """The nearest miss where the floor shows that no fleet meets the SLOs, and how much the limits let any serve."""
    miss = describe_miss(instance, effort)
    limits = _limit_words(instance.problem)
    share = most_of_demand(instance, make_settings(instance)) if miss.shortfalls and limits else None
    if share is None:
        return miss
    worst, *other_shortfalls = miss.shortfalls
    most = f"At most {share * instance.problem.workload.request_rate:.3g} req/s with {join_words(limits)}."
    return replace(
        miss, shortfalls=[worst.model_copy(update={"sentence": f"{worst.sentence} {most}"}), *other_shortfalls]
    )


def _limit_words(problem: Problem) -> list[str]:
    """What the limits on the fleet leave, such as "8 × H100"; routers aside."""
    limits = dict(stated_limits(problem))
    gpus = [f"{limits[name]:,} × {name.removeprefix(INVENTORY)}" for name in limits if name.startswith(INVENTORY)]
    return gpus + [amount(limits[name], unit) for name, unit in LIMIT_UNITS.items() if unit and name in limits]


def nearest_simulated(instance: Instance, verdict: Verdict) -> Miss:
    """The nearest of the fleets that were simulated, and how far it is from each goal."""
    row = nearest_row(
        Solution(instance, verdict.fleet, verdict),
        "the nearest of the fleets that were simulated",
        f"It {miss_words(verdict)}.",
    )
    if verdict.judgement.overloaded:  # no lower goal would do
        return Miss([row])
    goals = [goal_missed(item.name, item.attainment.low, item.goal) for item in verdict.judgement.classes]
    return Miss([row], sorted(goals, key=lambda limit: limit.slack))


def nearest_row(solution: Solution, label: str, why: str) -> Alternative:
    """The row of a fleet that comes near."""
    return fleet_row(solution.instance, solution.fleet, solution.verdict, ("nearest_miss", label), why)


# --- limits on the fleet --------------------------------------------------------------------------------------------


def without_a_limit(instance: Instance, effort: Effort) -> Miss | None:
    """The nearest fleet without each limit on it, or without all where no single one would do; None without any."""
    nearest: list[tuple[Solution, list[Binding]]] = []
    pairs = lifts(least_demand(instance.problem))
    for place, (free_problem, alone) in enumerate(pairs):
        if effort.brake.stopped() or (nearest and place == len(pairs) - 1):
            break
        free_instance = planned_instance(free_problem)
        solution = solution_of(costing_what_is_short(alone, free_instance), effort)
        if solution is None:
            continue
        solution = replace(solution, instance=replace(free_instance, flows=solution.instance.flows))
        broken = _broken_limits(instance, solution)
        if broken:
            nearest.append((solution, broken))
        elif instance.problem.objective.goal is Goal.MIN_COST:
            return Miss(kept=solution)
    if not nearest:
        return None
    either = " Any one of these limits relaxed is enough." if len(nearest) > 1 else ""
    label = "without the limits on the fleet"
    rows = [nearest_row(solution, label, f"{_needs(broken)}{either}") for solution, broken in nearest]
    return Miss(rows, sorted((limit for _, broken in nearest for limit in broken), key=lambda limit: limit.slack))


def _broken_limits(instance: Instance, solution: Solution) -> list[Binding]:
    """Limits of the instance that a fleet of the unlimited one breaks, the worst first."""
    free, fleet = solution.instance, solution.fleet
    limits = fleet_bindings(instance, fleet_cost(free, fleet), fleet_gpus(free, fleet))
    broken = [limit for limit in limits if limit.slack < -ROUNDING] + _pool_limit(instance, fleet)
    return sorted(broken, key=lambda limit: limit.slack)


def _pool_limit(instance: Instance, fleet: Fleet) -> list[Binding]:
    """The limits on the number of pools that a fleet breaks: the user's, and what the target's router can serve."""
    limits, pools = instance.problem.constraints, len(fleet.pools)
    rows = []
    if limits.max_pools is not None and pools > limits.max_pools:
        sentence = f"{pools} pools are needed where max_pools allows {limits.max_pools}."
        rows.append(binding("max_pools", "fleet", float(pools), float(limits.max_pools), "pools", sentence))
    if limits.gateway is not None and not limits.gateway.allows([pool.role for pool in fleet.pools]):
        apart = any(pool.role is Role.PREFILL for pool in fleet.pools)
        most = 2 * limits.gateway.apart if apart else limits.gateway.colocated
        router = f"the router of {instance.problem.target or 'any target'}"
        sentence = f"{pools} pools are needed where {router} serves {most}."
        rows.append(binding("gateway", "fleet", float(pools), float(most), "pools", sentence))
    return rows


def _needs(broken: Sequence[Binding]) -> str:
    """What a fleet needs beyond the limits, in words."""
    short = [
        f"{amount(limit.used, limit.unit)} of {limit.where} where the inventory has {amount(limit.limit, limit.unit)}"
        if limit.constraint == "inventory"
        else f"{amount(limit.used, limit.unit)} where {limit.constraint} allows {amount(limit.limit, limit.unit)}"
        for limit in broken
    ]
    return f"It needs {join_words(short)}."


def lifts(problem: Problem) -> list[tuple[Problem, Problem]]:
    """The problem without each of its limits in turn, then without any, where it has several; each with what it lacks.

    That is the problem with only those limits.
    """
    free = without_limits(problem)
    pairs = [(with_limit(problem, name, None), with_limit(free, name, most)) for name, most in stated_limits(problem)]
    return [*pairs, (free, problem)] if len(pairs) > 1 else pairs


def stated_limits(problem: Problem) -> Iterator[tuple[str, Any]]:
    """The limits on the fleet that a problem states: names, such as "budget" or "inventory H200", and values."""
    for name in LIMIT_UNITS:
        if (most := getattr(problem.constraints, name)) is not None:
            yield name, most
    for offer in problem.offers:
        if offer.inventory is not None:
            yield f"{INVENTORY}{offer.accelerator.name}", offer.inventory


def with_limit(problem: Problem, name: str, most: Any) -> Problem:
    """The problem with another limit; None: without it. A relaxation takes fractions of a GPU too."""
    if not name.startswith(INVENTORY):
        return replace(problem, constraints=replace(problem.constraints, **{name: most}))
    card = name.removeprefix(INVENTORY)
    offers = (replace(offer, inventory=most) if offer.accelerator.name == card else offer for offer in problem.offers)
    return replace(problem, offers=tuple(offers))


def least_demand(problem: Problem) -> Problem:
    """The cheapest fleet is sought for the least volume that the objective asks for."""
    least = {Goal.MIN_COST: 1.0, Goal.MAX_GOODPUT: LITTLE, Goal.MAX_GOODPUT_PER_DOLLAR: problem.objective.min_volume}
    load = scale_rate(problem.workload, least[problem.objective.goal])
    return replace(problem, workload=load, objective=Objective())


def costing_what_is_short(limited: Problem, free: Instance) -> Instance:
    """The instance, a GPU priced by the share of the limits of `limited` that it takes: its cheapest fleet is nearest.

    Of fleets that are as near, the one that costs less.
    """
    limits, offers = limited.constraints, limited.offers
    ceilings: list[tuple[float | None, FloatArray]] = [
        (limits.max_gpus, np.ones(len(offers))),
        (limits.budget, np.array([offer.usd_per_hour for offer in offers])),
        (limits.power, np.array([offer.accelerator.tdp for offer in offers])),
    ]
    share = sum((gpu / max(most, 0.5) for most, gpu in ceilings if most is not None), np.zeros(len(offers)))
    short = [1.0 / max(offer.stock, 0.5) for offer in offers]
    share = share + short
    in_money = limits.budget is not None and limits.max_gpus is limits.power is None and not any(short)
    if not share.any() or in_money or free.problem.constraints.budget is not None:
        return free  # prices in dollars say it all, whole nodes included
    usd = np.array([offer.usd_per_hour for offer in free.problem.offers])
    share = share + share.max() * LESS_SO * usd / usd.max()
    singly = tuple(
        replace(offer, billing=Billing.GPU, usd_per_hour=float(price), owned=0)
        for offer, price in zip(free.problem.offers, share, strict=True)
    )
    return replace(free, problem=replace(free.problem, offers=singly), tables=free.tables.with_prices(share))


# --- limits on latency and goals ------------------------------------------------------------------------------------


def _with_looser_latencies(instance: Instance, effort: Effort) -> Miss | None:
    """The nearest fleet once one latency limit, or else all, are loosened; with the limits that it then breaks.

    All together are loosened only where no single one would do, however far: the report names what is in the way.
    """
    slos, late = instance.problem.slos, effort.brake.stopped
    limited_metrics = tuple(metric for metric in Metric if any(metric in slo.limits for slo in slos))
    alone: list[tuple[Metric, ...]] = [(metric,) for metric in limited_metrics]
    alone = [metrics for metrics in alone if by_formula(_loose_instance(instance, LOOSER[-1], metrics), late)]
    for factor, metrics in product(LOOSER, alone or [limited_metrics]):
        if late():
            return None
        solution = solution_of(_loose_instance(instance, factor, metrics), effort)
        if solution is None:
            continue
        broken = _broken_limits(instance, solution)
        why = f"{join_words([metric.upper() for metric in metrics])} {'is' if len(metrics) == 1 else 'are'} too tight."
        why = f"{why} {_needs(broken)}" if broken else why
        rows = [_too_tight(slo, metric, factor) for slo in slos for metric in metrics if metric in slo.limits]
        return Miss([nearest_row(solution, f"with {join_words(metrics)} x {factor:g}", why)], [*rows, *broken])
    return None


def _too_tight(slo: Slo, metric: Metric, factor: float) -> Binding:
    """A latency limit that a fleet keeps only `factor` times as long."""
    limit = slo.limits[metric]
    sentence = f"{metric.upper()} of {slo.name} is too tight: {limit:g} s."
    return binding(metric, slo.name, limit * factor, limit, "s", sentence)


def _loose_instance(instance: Instance, factor: float, metrics: Sequence[Metric]) -> Instance:
    """The instance without limits on the fleet, and the limits on these metrics multiplied by `factor`."""
    free = without_limits(least_demand(instance.problem))
    return planned_instance(with_looser_slos(free, factor, metrics))


def goal_missed(name: str, attainment: float, goal: float) -> Binding:
    """How far a class is from its goal; attainment: share of its requests that is sure to be in time [1].

    What may miss is rounded up to hundredths of a per cent, so that what is read off it is no lower than what is kept.
    """
    miss_share = math.ceil(round((1.0 - attainment) / FINE, 6)) * FINE
    sentence = f"{percentage(1.0 - miss_share, 2)} of class {name} keep their SLO where {percentage(goal, 2)} should."
    return binding("attainment", name, miss_share, 1.0 - goal, "1", sentence)
