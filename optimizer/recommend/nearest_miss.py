"""Where no fleet meets the SLOs: the fleet that comes nearest, and what would have to give for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.words import join_words
from costmodel.workload import scale_rate
from optimizer.fleets.binding import amount, binding, fleet_bindings
from optimizer.fleets.build_plan import fleet_cost, fleet_gpus, pool_line
from optimizer.fleets.error_bars import planned_instance
from optimizer.fleets.evaluate import evaluate, holds, predict_misses
from optimizer.fleets.fleet import Fleet, make_fleet, polish
from optimizer.loads.columns import Grid, make_columns
from optimizer.loads.diagnose import LATENCIES, with_fewer_misses, with_looser_slos, without_limits
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Alternative, Binding, Status
from optimizer.rivals.alternatives import QUICK
from optimizer.rivals.leanest import evaluated, leanest
from optimizer.solver.fleet_model import Aim
from optimizer.solver.search import plan_blocks, search
from optimizer.solver.simple_plans import price_space, simple_plans
from optimizer.solver.split import with_best_split
from search_spaces.problem import Billing, Goal, Problem


def describe_miss(instance: Instance) -> tuple[list[Alternative], list[Binding]]:
    """The nearest fleet once limits are lifted, or SLOs loosened, or goals lowered, and by how much each gives.

    Without any fleet whatever both lists are empty.
    """
    free = planned_instance(without_limits(_least_demand(instance.problem)), instance.overhead)
    fleet = _cheapest(_costing_what_is_short(instance, free))
    if fleet is not None:
        rows = _broken_limits(instance, free, fleet)
        if rows:
            return [_miss(free, fleet, "without the limits on the fleet", _needs(rows))], rows
    return _with_looser_latencies(instance, free) or _with_lower_goals(instance, free) or ([], [])


def _broken_limits(instance: Instance, free: Instance, fleet: Fleet) -> list[Binding]:
    """Limits of the instance that a fleet of the unlimited one breaks, the worst first."""
    rows = fleet_bindings(instance, fleet_cost(free, fleet), fleet_gpus(free, fleet))
    rows = [row for row in rows if row.slack < 0.0] or _pool_limit(instance, fleet)
    return sorted(rows, key=lambda row: row.slack)


def _needs(rows: Sequence[Binding]) -> str:
    """What a fleet needs beyond the limits, in words."""
    short = [
        f"{amount(row.used, row.unit)} of {row.where} where the inventory has {amount(row.limit, row.unit)}"
        if row.constraint == "inventory"
        else f"{amount(row.used, row.unit)} where {row.constraint} allows {amount(row.limit, row.unit)}"
        for row in rows
    ]
    return f"It needs {join_words(short)}."


Miss = tuple[list[Alternative], list[Binding]]


LESS_SO = 1e-3
"""What the dearest GPU's price counts for beside the limits: it decides between fleets that take as much of them."""

FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Factors by which limits on latency are loosened."""


def _with_looser_latencies(instance: Instance, free: Instance) -> Miss | None:
    """The nearest fleet once one latency limit, or else all, are loosened; with the limits that it then breaks.

    All together are loosened only where no single one would do, however far: the report names what is in the way.
    """
    limited = [name for name in LATENCIES if any(getattr(slo, name) is not None for slo in instance.problem.slos)]
    enough: list[tuple[str, ...]] = [(name,) for name in limited if _cheapest(_loosened(free, FACTORS[-1], (name,)))]
    for factor in FACTORS:
        for names in enough or [tuple(limited)]:
            looser = _loosened(free, factor, names)
            fleet = _cheapest(looser)
            if fleet is None:
                continue
            rows = [
                binding(
                    name,
                    slo.name,
                    limit * factor,
                    limit,
                    "s",
                    f"{name.upper()} of {slo.name} is too tight: {limit:g} s.",
                )
                for slo in instance.problem.slos
                for name in names
                if (limit := getattr(slo, name)) is not None
            ]
            broken = _broken_limits(instance, free, fleet)
            why = f"{join_words([name.upper() for name in names])} {'is' if len(names) == 1 else 'are'} too tight."
            why = f"{why} {_needs(broken)}" if broken else why
            return [_miss(looser, fleet, f"with {join_words(names)} x {factor:g}", why)], [*rows, *broken]
    return None


def _loosened(free: Instance, factor: float, names: Sequence[str]) -> Instance:
    """The unlimited instance with the latency limits of these names multiplied by `factor`."""
    return planned_instance(with_looser_slos(free.problem, factor, names), free.overhead)


def _with_lower_goals(instance: Instance, free: Instance) -> Miss | None:
    """The nearest fleet once more requests may miss."""
    for factor in (2.0, 5.0, 20.0, 100.0, 1e3, 1e6):
        lower = planned_instance(with_fewer_misses(free.problem, factor), instance.overhead)
        fleet = _cheapest(lower)
        if fleet is not None:
            rows = [*_goals_missed(free, fleet), *_broken_limits(instance, free, fleet)]
            return [_miss(lower, fleet, "with lower goals", "Too few requests keep their SLO.")], rows
    return None


def _costing_what_is_short(instance: Instance, free: Instance) -> Instance:
    """The unlimited instance, a GPU priced by the share of the limits that it takes: its cheapest fleet is nearest.

    Of fleets that are as near, the one that costs less.
    """
    limits, offers = instance.problem.constraints, instance.problem.offers
    ceilings: list[tuple[float | None, NDArray[np.float64]]] = [
        (limits.max_gpus, np.ones(len(offers))),
        (limits.budget, np.array([offer.usd_per_hour for offer in offers])),
        (limits.power, np.array([offer.accelerator.tdp for offer in offers])),
    ]
    share = sum((each / max(most, 0.5) for most, each in ceilings if most is not None), np.zeros(len(offers)))
    share = share + [0.0 if offer.inventory is None else 1.0 / max(offer.inventory, 0.5) for offer in offers]
    if not share.any():
        return free
    usd = np.array([offer.usd_per_hour for offer in free.problem.offers])
    share = share + share.max() * LESS_SO * usd / usd.max()
    singly = tuple(
        replace(offer, billing=Billing.GPU, usd_per_hour=float(price))
        for offer, price in zip(free.problem.offers, share, strict=True)
    )
    tables = replace(free.tables, usd_per_hour=free.tables.gpus * share[free.tables.offer])
    return replace(free, problem=replace(free.problem, offers=singly), tables=tables)


def _goals_missed(instance: Instance, fleet: Fleet) -> list[Binding]:
    """How far the attainment of each class that misses its goal is from it."""
    reached = predict_misses(instance, fleet).attainment
    return [
        binding(
            "attainment", slo.name, 1.0 - float(got), 1.0 - slo.attainment, "1",
            f"{got:.2%} of class {slo.name} keep their SLO where {slo.attainment:.2%} should.",
        )
        for slo, got in zip(instance.problem.slos, reached, strict=True)
        if got < slo.attainment
    ]  # fmt: skip


def _least_demand(problem: Problem) -> Problem:
    """The problem at the least volume that its objective asks for."""
    if problem.objective.goal is not Goal.MAX_GOODPUT_PER_DOLLAR:
        return problem
    return replace(problem, workload=scale_rate(problem.workload, problem.objective.min_volume))


def _cheapest(instance: Instance) -> Fleet | None:
    """The cheapest fleet that holds, from the best simple plan or one found with little effort."""
    instance = with_best_split(instance)
    columns, totals = price_space(instance, make_columns(instance, Grid()))
    plans = simple_plans(instance, columns, totals)
    scale = 1.0 / max(offer.usd_per_hour for offer in instance.problem.offers)
    found = (
        plan_blocks(instance, columns, plans[0])
        if plans
        else search(instance, columns, totals, Aim(cost_weight=scale), QUICK)
    )
    promised = make_fleet(instance, polish(instance, columns, found))
    held = promised.pools and holds(instance, predict_misses(instance, promised))
    fleet = leanest(evaluated(instance, (columns, totals)), promised if held else Fleet(()))
    return fleet if fleet.pools else None


def _pool_limit(instance: Instance, fleet: Fleet) -> list[Binding]:
    most = instance.problem.constraints.max_pools
    if most is None or len(fleet.pools) <= most:
        return []
    sentence = f"{len(fleet.pools)} pools are needed where max_pools allows {most}."
    return [binding("max_pools", "fleet", float(len(fleet.pools)), float(most), "pools", sentence)]


def _miss(instance: Instance, fleet: Fleet, label: str, why: str) -> Alternative:
    return Alternative(
        kind="nearest_miss",
        label=label,
        status=Status.FEASIBLE,
        cost_usd_per_hour=fleet_cost(instance, fleet),
        bound_usd_per_hour=None,
        gap=None,
        pools=[pool_line(instance, pool) for pool in fleet.pools],
        attainment=evaluate(instance, fleet).overall,
        why_not=why,
    )
