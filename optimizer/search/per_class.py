"""Separate pools for every SLO class: each class gets a fleet of its own, and the fleets are bought together.

Nothing joins the classes but the limits on the whole fleet, so the classes are served in turn, each within what those
before it left over. Without any limit the cheapest fleets of the classes are the cheapest fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost, fleet_gpus, keeps_limits, with_names
from optimizer.loads.instance import Instance
from search_spaces.problem import Billing, Constraints, Offer, Pools

FloatArray = NDArray[np.float64]

BY_FLOW = (
    "prefill_alone",
    "prefill_time",
    "prefill_shared",
    "attention_slope",
    "kv_held",
    "mixed_alone",
    "mixed_base",
    "chunk_count",
    "kv_transferred",
)
"""Tables whose last axis are the flows."""

Parts = Sequence[tuple[int, Fleet]]
"""Classes and their fleets."""
Solve = Callable[[Instance], Fleet]
"""Finds the cheapest fleet of an instance; an empty one where it finds none."""


def by_class(instance: Instance, solve: Solve) -> Fleet:
    """A fleet for each class by `solve`, bought together; without pools where one class gets none.

    The classes are served in turn, and the other way round if that leaves too little for the last.
    """
    classes = range(len(instance.problem.slos))
    most = instance.problem.constraints.max_pools
    if most is not None and most < len(classes):
        return Fleet(())
    turns = (_in_turn(instance, solve, order) for order in (classes, classes[::-1]))
    fleets = (_together(instance, class_fleets) for class_fleets in turns if class_fleets)
    return next((fleet for fleet in fleets if keeps_limits(instance, fleet)), Fleet(()))


def _in_turn(instance: Instance, solve: Solve, order: Sequence[int]) -> Parts:
    """A fleet for each class within what those before it left over; empty where one gets none."""
    class_fleets: list[tuple[int, Fleet]] = []
    for place, k in enumerate(order):
        fleet = solve(of_class(instance, k, _together(instance, class_fleets), later=len(order) - place - 1))
        if not fleet.pools:
            return []
        class_fleets.append((k, fleet))
    return class_fleets


def _together(instance: Instance, class_fleets: Parts) -> Fleet:
    """The fleets of classes as one, each pool with its shares of all flows."""
    pools: list[FleetPool] = []
    for k, fleet in class_fleets:
        members = instance.flows.slo == k
        for pool in fleet.pools:
            route = np.zeros(members.size)
            route[members] = pool.route
            pools.append(replace(pool, route=route))
    return Fleet(with_names(instance, pools))


def of_class(instance: Instance, k: int, earlier_fleet: Fleet, later: int) -> Instance:
    """The instance of one class alone, within what the fleets of other classes leave; `later` classes are to come."""
    problem, slo = instance.problem, instance.problem.slos[k]
    members = instance.flows.slo == k
    rate = problem.workload.request_rate * slo.share
    flows = instance.flows.take(members)
    flows = replace(flows, slo=np.zeros_like(flows.slo), share=flows.share / slo.share)
    tables = replace(instance.tables, **{name: getattr(instance.tables, name)[..., members] for name in BY_FLOW})
    alone = replace(
        problem,
        slos=(replace(slo, share=1.0),),
        workload=replace(problem.workload, request_rate=rate),
        offers=_offers_left(instance, earlier_fleet),
        constraints=_limits_left(instance, earlier_fleet, later),
    )
    return Instance(alone, flows, instance.enumeration, tables, instance.overhead)


def _offers_left(instance: Instance, earlier_fleet: Fleet) -> tuple[Offer, ...]:
    used = fleet_gpus(instance, earlier_fleet)
    return tuple(
        replace(
            offer,
            billing=Billing.GPU,  # the classes share whole nodes
            owned=max(0, offer.owned - int(count)),
            inventory=None if offer.inventory is None else max(0, offer.inventory - max(0, int(count) - offer.owned)),
        )
        for offer, count in zip(instance.problem.offers, used, strict=True)
    )


def _limits_left(instance: Instance, earlier_fleet: Fleet, later: int) -> Constraints:
    """The limits on the whole fleet less what is taken; every later class needs a pool."""
    limits, gpus = instance.problem.constraints, fleet_gpus(instance, earlier_fleet)
    power = float(sum(offer.accelerator.tdp * n for offer, n in zip(instance.problem.offers, gpus, strict=True)))
    spent = fleet_cost(instance, earlier_fleet) if earlier_fleet.pools else 0.0
    return replace(
        limits,
        pools=Pools.SHARED,
        budget=None if limits.budget is None else max(limits.budget - spent, 0.0),
        power=None if limits.power is None else max(limits.power - power, 0.0),
        max_gpus=None if limits.max_gpus is None else max(limits.max_gpus - int(gpus.sum()), 0),
        max_pools=None if limits.max_pools is None else max(limits.max_pools - len(earlier_fleet.pools) - later, 0),
    )
