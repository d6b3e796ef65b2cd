"""Fleets that cost less than a plan: they are counted, and all of them are tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from optimizer.fleets.fleet import gpu_cost, within_limits
from optimizer.loads.effort import Brake, Effort, Level
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, as_planned, make_instance
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import search_by_formula, simulated
from optimizer.search.search import FleetSearch, evaluated, fleets_between
from search_spaces.problem import Billing, Constraints

from .optimizer_cases import offer
from .small_problems import given

OFFERS = (offer("H100"), offer("L40S", inventory=3))


def counted(search: FleetSearch, low: float, high: float, most: int = 12) -> int:
    """Fleets between two prices, by trying all of up to `most` replicas."""
    problem, tables, settings = search.instance.problem, search.instance.tables, search.settings
    spares = problem.constraints.spare_replicas
    bought = {
        (int(role), int(tables.offer[shape]), int(tables.gpus[shape]))
        for role, shape in zip(settings.role, settings.shape, strict=True)
    }
    first, second, alone = ([kind for kind in bought if kind[0] == role] for role in (PREFILL, DECODE, COLOCATED))
    fleets = [[(kind, count)] for kind, count in product(alone, range(1, most))]
    sizes = range(1, most)
    if problem.constraints.max_pools != 1:
        fleets += [[(a, n), (b, m)] for a, n, b, m in product(first, sizes, second, sizes)]
    number = 0
    for fleet in fleets:
        gpus = np.zeros((1, len(problem.offers)))
        for (_, kind_offer, size), count in fleet:
            gpus[0, kind_offer] += size * (count + spares)
        price = float(gpu_cost(problem, gpus)[0])
        number += bool(within_limits(problem, gpus)[0]) and low * (1 - 1e-9) <= price < high * (1 - 1e-9)
    return number


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"offers": (offer("H100", billing=Billing.NODE), offer("L40S"))},
        {"offers": (offer("H100", owned=3, owned_usd_per_hour=0.5), offer("L40S"))},
        {"constraints": Constraints(spare_replicas=1)},
        {"constraints": Constraints(max_gpus=4)},
        {"constraints": Constraints(max_pools=1)},
    ],
)
def test_the_count_is_that_of_trying_all(changes: dict[str, object]) -> None:
    problem = given(**({"offers": OFFERS} | changes))
    search = evaluated(as_planned(make_instance(problem)))
    count = counted(search, 4.0, 14.0)
    assert fleets_between(search, 4.0, 14.0) == count > 0


def test_a_plan_says_how_many_cheaper_fleets_there_are_and_that_all_miss(short_runs: None) -> None:
    """By formula all miss; what simulation refuted, it is told apart."""
    for level in (Level.QUICK, Level.STANDARD):
        plan = optimize(given(offers=OFFERS), level=level)
        cheaper, cost = plan.cheaper_fleets, plan.cost_usd_per_hour
        assert cost
        search = evaluated(as_planned(make_instance(given(offers=OFFERS))))
        assert cheaper.count == counted(search, plan.floor_usd_per_hour or 0.0, cost)
        assert cheaper.simulated <= cheaper.count
        assert level is Level.STANDARD or not cheaper.simulated


def test_half_of_a_time_limit_that_is_up_does_not_end_the_search_for_untried_fleets(short_runs: None) -> None:
    """The search by formula has half of the time, what simulation refutes is searched on in the rest."""
    space = evaluated(as_planned(make_instance(given(offers=OFFERS))))
    result = search_by_formula(space, Brake())
    late = replace(result, space=replace(space, late=lambda: True))
    _, best = simulated(late, Effort(Level.STANDARD, Brake()))
    assert best.complete
