"""What fp8 weights or an fp8 KV cache would save, by formula, where the user left the precision to the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from costmodel.engine_arrays import ACTIVATION_DTYPE
from costmodel.errors import InputError
from optimizer.fleets.bought import pools_apart
from optimizer.fleets.build_plan import engine_pools, fleet_cost
from optimizer.fleets.error_bars import planned_instance
from optimizer.fleets.fleet import Fleet
from optimizer.loads.diagnose import check_shapes
from optimizer.loads.instance import Instance
from optimizer.loads.late import Late
from optimizer.plans.plan_precision import PrecisionSaving
from optimizer.search.limits import classes_apart
from optimizer.search.search import NO_DEARER, cheapest_held, evaluated, settled
from search_spaces.enumeration import enumerate_shapes
from search_spaces.problem import Problem

from .formula_search import cheapest_by_formula

NARROW: Final = "fp8"
"""Precision that is tried: half as wide as what models are served in, and the widest of those with units of its own."""
NOTABLE: Final = 0.05
"""Share of the cost from which on a saving is told; predictions err by as much [1]."""


def precision_savings(instance: Instance, base: float, late: Late) -> list[PrecisionSaving]:
    """Fleets in narrower precisions that cost at least NOTABLE less than `base` [$/h], and than those before them.

    First of a narrower KV cache, then of narrower weights, then of both. instance: of the plan, whose split of
    end-to-end limits is kept; base: cost of the cheapest fleet by formula there. Empty where the time is up.
    """
    savings: list[PrecisionSaving] = []
    for problem in narrower(instance.problem):
        below = min([base, *(saving.cost_usd_per_hour for saving in savings)]) * (1.0 - NOTABLE)
        priced = None if late() else _priced(problem, instance)
        fleet = Fleet(()) if priced is None else _cheapest(priced, below, late)
        if priced is not None and fleet.pools:
            savings.append(
                PrecisionSaving(
                    weight_dtype=problem.weight_dtype,
                    kv_dtype=problem.kv_dtype,
                    cost_usd_per_hour=fleet_cost(priced, fleet),
                    base_usd_per_hour=base,
                    pools=engine_pools(priced, fleet),
                )
            )
    return [] if late() else savings


def narrower(problem: Problem) -> Iterator[Problem]:
    """The problem with a narrower KV cache, weights, or both, as far as they are wide and the user lists none."""
    cache = problem.kv_dtype == ACTIVATION_DTYPE and not problem.space.kv_dtype
    weights = problem.weight_dtype == ACTIVATION_DTYPE and not problem.space.weight_dtype
    if cache:
        yield replace(problem, kv_dtype=NARROW)
    if weights:
        yield replace(problem, weight_dtype=NARROW)
    if cache and weights:
        yield replace(problem, weight_dtype=NARROW, kv_dtype=NARROW)


def _priced(problem: Problem, instance: Instance) -> Instance | None:
    """The instance of another precision; None where no engine runs it on any GPU on offer."""
    try:
        check_shapes(problem, enumerate_shapes(problem))
    except InputError:
        return None
    return replace(planned_instance(problem, instance.overhead), flows=instance.flows)


def _cheapest(instance: Instance, below: float, late: Late) -> Fleet:
    """The cheapest fleet by formula of one pool or two, `below` [$/h] at most; empty where there is none."""
    space = evaluated(instance, late)
    if classes_apart(instance.problem):
        fleet = cheapest_by_formula(space)
        return fleet if fleet.pools and fleet_cost(instance, fleet) < below * NO_DEARER else Fleet(())
    held = cheapest_held(space, pools_apart(instance.problem), below * NO_DEARER)
    return Fleet(()) if held is None else settled(instance, space.fleet(held[0]))
