"""Problems without one of their limits on the fleet, and priced so that the cheapest fleet takes the least of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.workload import scale_rate
from optimizer.fleets.fleet import FloatArray
from optimizer.loads.diagnose import without_limits
from optimizer.loads.instance import Instance
from search_spaces.problem import Billing, Constraints, Goal, Objective, Problem

ON_THE_FLEET = ("budget", "max_gpus", "power", "max_pools", "gateway")
"""Limits of the constraints, in the order in which they are lifted."""

LESS_SO = 1e-3
"""What the dearest GPU's price counts for beside a limit: it decides between fleets that take as much of it."""

LITTLE = 0.01
"""Multiple of the demand below which no fleet is worth having where the most goodput is sought."""


@dataclass(frozen=True, slots=True)
class Lift:
    """A problem without some of its limits; lifted: with only those that it lacks; all_at_once: of several limits."""

    problem: Problem
    lifted: Problem
    all_at_once: bool = False

    def priced(self, planned: Instance) -> Instance:
        """The instance of the problem, with GPUs at what they take of the limits that are lifted."""
        if self.problem.constraints.budget is not None:  # which is in dollars
            return planned
        return costing_what_is_short(self.lifted, planned)


def lifts(problem: Problem) -> list[Lift]:
    """The problem without each of its limits in turn; then without any, where it has several."""
    each = [Lift(free, lifted) for free, lifted in _without_one(problem)]
    return [*each, Lift(without_limits(problem), problem, all_at_once=True)] if len(each) > 1 else each


def _without_one(problem: Problem) -> Iterator[tuple[Problem, Problem]]:
    """The problem without each of its limits in turn, and with that alone."""
    limits, free = problem.constraints, without_limits(problem)
    for name in ON_THE_FLEET:
        if (most := getattr(limits, name)) is not None:
            none: dict[str, Any] = {name: None}
            only: dict[str, Any] = {name: most}
            one = replace(problem, constraints=replace(limits, **none))
            yield one, replace(free, constraints=replace(free.constraints, **only))
    for index, offer in enumerate(problem.offers):
        if offer.inventory is not None and not offer.owned:
            more = _with_inventory(problem, index, None)
            yield more, _with_inventory(free, index, offer.inventory)


def _with_inventory(problem: Problem, index: int, inventory: int | None) -> Problem:
    offers = list(problem.offers)
    offers[index] = replace(offers[index], inventory=inventory)
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
    share = sum((each / max(most, 0.5) for most, each in ceilings if most is not None), np.zeros(len(offers)))
    short = [0.0 if offer.inventory is None or offer.owned else 1.0 / max(offer.inventory, 0.5) for offer in offers]
    share = share + short
    if not share.any() or _is_budget_alone(limits, short):
        return free
    usd = np.array([offer.usd_per_hour for offer in free.problem.offers])
    share = share + share.max() * LESS_SO * usd / usd.max()
    singly = tuple(
        replace(offer, billing=Billing.GPU, usd_per_hour=float(price))
        for offer, price in zip(free.problem.offers, share, strict=True)
    )
    tables = replace(free.tables, usd_per_hour=free.tables.gpus * share[free.tables.offer])
    return replace(free, problem=replace(free.problem, offers=singly), tables=tables)


def _is_budget_alone(limits: Constraints, short: list[float]) -> bool:
    """Whether money is all that is short: then prices say it all, whole nodes included."""
    return limits.budget is not None and limits.max_gpus is limits.power is None and not any(short)
