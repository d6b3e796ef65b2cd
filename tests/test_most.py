"""Most goodput within limits: against every fleet of one pool or two, and bounds that no fleet exceeds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume, holds, predict_misses
from optimizer.fleets.fleet import Fleet, keeps_limits
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, Instance
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from optimizer.search.goodput import Worth, best_of_few_pools, most_served, most_served_at_all
from optimizer.search.search import FleetSearch, evaluated
from search_spaces.problem import Constraints, Goal, Objective
from tests.optimizer_cases import instance_of, offer, problem, slo, space, workload

MIX = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
NONE = (Fleet(()), 0.0)


@cache
def any_limits() -> tuple[Instance, FleetSearch]:
    """One request per second on H100s and L40S."""
    one = space(tensor_parallel=(1,), max_num_seqs=(32, 128))
    offers = (offer("H100"), offer("L40S"))
    made = instance_of(problem(workload=workload(1.0, MIX), slos=(slo(1.0, 0.05, 0.9),), space=one, offers=offers))
    return made, evaluated(made)


def within(limits: Constraints) -> FleetSearch:
    made, known = any_limits()
    asked = replace(made.problem, objective=Objective(Goal.MAX_GOODPUT), constraints=limits)
    return FleetSearch.of(replace(made, problem=asked), known.settings)


def every_fleet(known: FleetSearch, most: int = 4) -> list[Fleet]:
    """All fleets of one pool or two of up to `most` engines each, within the limits."""
    role, counts = known.settings.role, range(1, most + 1)
    ends = [[int(at) for at in np.flatnonzero(role == end)] for end in (PREFILL, DECODE, COLOCATED)]
    picks = [((at, n),) for at, n in product(ends[2], counts)]
    pairs = [((p, n), (d, m)) for p, d, n, m in product(*ends[:2], counts, counts)]
    fleets = [known.fleet(one) for one in (*picks, *pairs)]
    return [fleet for fleet in fleets if keeps_limits(known.instance, fleet)]


@pytest.mark.parametrize("limits", [Constraints(budget=8.0), Constraints(max_gpus=3), Constraints(budget=3.0)])
def test_no_small_fleet_serves_more(limits: Constraints) -> None:
    known = within(limits)
    instance = known.instance
    fleet, most = most_served(known)
    assert keeps_limits(instance, fleet)
    assert holds(instance, predict_misses(instance, fleet, most * (1.0 - 5e-3)))
    enough = most * (1.0 + 5e-3)
    assert not [one for one in every_fleet(known) if holds(instance, predict_misses(instance, one, enough))]
    assert most <= most_served_at_all(known, most, 10.0) < 2.0 * most


def test_one_pool_at_most() -> None:
    found = best_of_few_pools(within(Constraints(max_gpus=3, max_pools=1)))
    assert found is not None
    assert len(found[0]) == 1


def test_nothing_is_served_without_engines() -> None:
    assert best_of_few_pools(within(Constraints(max_gpus=0))) is None
    assert most_served(within(Constraints(max_gpus=0))) == NONE


def test_what_fleets_are_worth() -> None:
    """Two to four times the demand, per dollar: 1 serves too little, 5 only counts as 4."""
    asked = Worth.of(Objective(Goal.MAX_GOODPUT_PER_DOLLAR, 2.0, 4.0))
    values = asked.value(np.array([1.0, 3.0, 5.0]), np.array([1.0, 6.0, 8.0]))
    assert values.tolist() == [0.0, 0.5, 0.5]
    assert asked.volume_for(0.5, 6.0) == 3.0
    assert asked.volume_for(0.1, 6.0) == 2.0
    assert Worth.of(Objective(Goal.MAX_GOODPUT)).value(np.array(7.0), np.array(99.0)) == 7.0


def test_the_plan_of_a_budget_has_a_gap_that_is_true() -> None:
    """Two H100 with the batch limit that the search likes least of cost had 25 % less than with the best one."""
    mix = workload(1.0, ((300.0, 100.0, 0.7), (6000.0, 200.0, 0.3)))
    one = space(tensor_parallel=(1,), roles=(Role.COLOCATED,))
    asked = problem(
        workload=mix,
        slos=(slo(1.0, 0.05, 0.9),),
        space=one,
        offers=(offer("H100"), offer("L40S")),
        objective=Objective(Goal.MAX_GOODPUT),
        constraints=Constraints(budget=8.0),
    )
    plan, instance = optimize(asked, level=Level.QUICK), instance_of(asked)
    known = evaluated(instance)
    most = max(goodput_volume(instance, fleet) for fleet in every_fleet(known, 2))
    assert plan.goodput_rps >= most * (1.0 - 5e-3)
    assert plan.gap is not None
    assert most <= plan.goodput_rps / (1.0 - plan.gap)
