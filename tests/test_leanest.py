"""A fleet that holds without promises: what the search among promised fleets is spared, and what it must not miss."""

from __future__ import annotations

import math

import pytest

from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet
from optimizer.loads.columns import Grid, make_columns
from optimizer.recommend.formula_search import solved_by_formula
from optimizer.recommend.proven import Solved
from optimizer.rivals.leanest import cost_without_promises, evaluated, unmixed
from optimizer.solver.search import Effort
from optimizer.solver.simple_plans import price_space, simple_plans
from search_spaces.problem import Goal, Objective, Problem
from tests.optimizer_cases import instance_of, offer
from tests.small_problems import given

PROBLEMS = [given(30.0), given(300.0), given(60.0, offers=(offer("L40S"), offer("H100")))]


def solved(asked: Problem) -> Solved:
    instance = instance_of(asked)
    priced = price_space(instance, make_columns(instance, Grid()))
    return solved_by_formula(instance, priced, Effort(), lambda label, fraction: None)


def test_what_costs_as_much_as_the_cheapest_simple_fleet_that_holds_is_still_looked_for() -> None:
    instance = instance_of(given(300.0))
    priced = price_space(instance, make_columns(instance, Grid()))
    known = evaluated(instance, priced)
    most, least = cost_without_promises(known, priced), fleet_cost(instance, unmixed(known, Fleet(())))
    assert least < most < least * (1.0 + 1e-5)
    assert most < simple_plans(instance, *priced)[0].cost


def test_promises_are_looked_for_at_any_cost_where_the_goal_is_another() -> None:
    instance = instance_of(given(30.0, objective=Objective(goal=Goal.MAX_GOODPUT)))
    priced = price_space(instance, make_columns(instance, Grid()))
    assert cost_without_promises(evaluated(instance, priced), priced) == math.inf


@pytest.mark.parametrize("asked", PROBLEMS)
def test_the_answer_is_no_dearer_than_of_a_search_that_knows_no_such_fleet(
    asked: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = solved(asked)
    monkeypatch.setattr("optimizer.recommend.formula_search.cost_without_promises", lambda *_: math.inf)
    unaware = solved(asked)
    cost = fleet_cost(unaware.instance, unaware.fleet)
    assert fleet_cost(found.instance, found.fleet) == pytest.approx(cost)
    assert found.proof.status is unaware.proof.status
    assert found.proof.floor == unaware.proof.floor
