"""Most goodput, or most per dollar: against every small fleet, and bounds that no fleet exceeds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from optimizer.fleets.evaluate import evaluate, goodput_volume
from optimizer.fleets.fleet import Fleet, fleet_cost, keeps_limits
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, Instance
from optimizer.search.mixtures import MORE, best_serving, goodput_gap
from optimizer.search.search import FleetSearch, evaluated
from search_spaces.problem import Constraints, Goal, Objective
from tests.optimizer_cases import instance_of, offer, problem, slo, space, workload

MIX = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
ENGINES = space(tensor_parallel=(1,), max_num_seqs=(32, 128))
OFFERS = (offer("H100"), offer("L40S"))


@cache
def any_limits() -> tuple[Instance, FleetSearch]:
    """One request per second on H100s and L40S."""
    instance = instance_of(
        problem(workload=workload(1.0, MIX), slos=(slo(1.0, 0.05, 0.9),), space=ENGINES, offers=OFFERS)
    )
    return instance, evaluated(instance)


def sought(goal: Objective, limits: Constraints) -> FleetSearch:
    instance, search = any_limits()
    asked = replace(instance.problem, objective=goal, constraints=limits)
    return FleetSearch.of(replace(instance, problem=asked), search.settings)


def every_fleet(search: FleetSearch, most: int = 4) -> list[Fleet]:
    """All fleets of one pool or two of up to `most` engines each, within the limits."""
    counts = range(1, most + 1)
    ends = [np.flatnonzero(search.settings.role == role).tolist() for role in (PREFILL, DECODE, COLOCATED)]
    picks = [((at, n),) for at, n in product(ends[2], counts)]
    pairs = [((p, n), (d, m)) for p, d, n, m in product(*ends[:2], counts, counts)]
    fleets = [search.fleet(row) for row in (*picks, *pairs)]
    return [fleet for fleet in fleets if keeps_limits(search.instance, fleet)]


@pytest.mark.parametrize("limits", [Constraints(budget=8.0), Constraints(max_gpus=3), Constraints(budget=3.0)])
def test_no_small_fleet_serves_more(limits: Constraints) -> None:
    search = sought(Objective(Goal.MAX_GOODPUT), limits)
    instance = search.instance
    fleet, most = best_serving(search)
    assert keeps_limits(instance, fleet)
    assert evaluate(instance, fleet, most * (1.0 - 5e-3)).holds
    enough = most * (1.0 + 2.0 * MORE)
    assert not [other for other in every_fleet(search) if evaluate(instance, other, enough).holds]
    gap = goodput_gap(search, (fleet, most), 10.0)
    assert gap is not None
    assert 0.0 <= gap < 0.5


@pytest.mark.parametrize(("least", "most"), [(5.0, 10.0), (10.0, 40.0), (2.0, 4.0)])
def test_no_small_fleet_has_more_per_dollar(least: float, most: float) -> None:
    search = sought(Objective(Goal.MAX_GOODPUT_PER_DOLLAR, least, most), Constraints())
    instance, best = search.instance, best_serving(search)
    able = [(fleet, goodput_volume(instance, fleet)) for fleet in every_fleet(search, 3)]
    assert best[1] >= least
    per_dollar, *ratios = (
        min(serves, most) / fleet_cost(instance, fleet) for fleet, serves in (best, *able) if serves >= least
    )
    assert per_dollar >= max(ratios) * (1.0 - 2.0 * MORE)
    assert goodput_gap(search, best, 10.0) is not None


def test_nothing_is_served_without_engines() -> None:
    none = (Fleet(()), 0.0)
    assert best_serving(sought(Objective(Goal.MAX_GOODPUT), Constraints(max_gpus=0))) == none
    without = sought(Objective(Goal.MAX_GOODPUT_PER_DOLLAR, 100.0, 100.0), Constraints(max_gpus=0))
    assert best_serving(without) == none
