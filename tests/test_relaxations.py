"""What is offered where no fleet holds within the limits: each limit that would have to give, true when it is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.plans.plan import Plan, Status
from optimizer.recommend.nearest_miss import lifts
from optimizer.recommend.optimize import optimize as optimize_at
from optimizer.search.bound import without_limits
from optimizer.verification.bench import Bench, Verdict
from optimizer.verification.judge import judge
from search_spaces.problem import Constraints, Problem, Routing
from tests.optimizer_cases import offer, problem, space, workload
from tests.small_problems import given, optimize

ONE_SHAPE = space(tensor_parallel=(1,), max_num_seqs=(128,), roles=(Role.COLOCATED,))
ENOUGH = 4
"""GPUs with which the judge below is content."""


@pytest.fixture
def strict_judge(short_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations in which a fleet of fewer than ENOUGH GPUs falls behind."""

    def judged(self: Bench, fleet: Fleet) -> Verdict:
        found = judge(self.instance, fleet, requests=80)
        held = sum(pool.replicas for pool in fleet.pools) >= ENOUGH
        sure = tuple(
            replace(one, attainment=replace(one.attainment, low=one.attainment.share)) for one in found.classes
        )
        overload = replace(found.overload, overloaded=not held)
        return self.settled(fleet, replace(found, classes=sure, overload=overload), held=held)

    monkeypatch.setattr(Bench, "_judge", judged)
    monkeypatch.setattr(Bench, "look", judged)


def asked(**limits: Any) -> Problem:
    return problem(space=ONE_SHAPE, workload=workload(28.0), constraints=Constraints(**limits))


def relaxed(plan: Plan) -> dict[str, float]:
    return {row.constraint: row.used for row in plan.binding if row.slack < 0.0}


def test_a_budget_below_the_first_fleet_that_holds_is_what_is_in_the_way(strict_judge: None) -> None:
    """Too little by formula, or enough by formula alone: what is offered is what holds when it is simulated."""
    plans = [optimize_at(asked(budget=budget)) for budget in (7.99, 11.98)]
    for plan in plans:
        assert plan.pools == []
        assert plan.status in {Status.INFEASIBLE, Status.TIME_LIMIT}
        assert plan.binding[0].constraint == "budget"
        assert relaxed(plan) == {"budget": pytest.approx(ENOUGH * 3.99)}
        nearest = plan.alternatives[0]
        assert (nearest.kind, nearest.simulated) == ("nearest_miss", True)
        assert nearest.cost_usd_per_hour == pytest.approx(ENOUGH * 3.99)
    mended = optimize_at(asked(budget=min(relaxed(plan)["budget"] for plan in plans)))
    assert mended.simulated
    assert mended.cost_usd_per_hour == pytest.approx(ENOUGH * 3.99)


def test_gpus_and_inventory_are_offered_as_far_as_they_are_needed(strict_judge: None) -> None:
    assert relaxed(optimize_at(asked(max_gpus=2))) == {"max_gpus": ENOUGH}
    assert optimize_at(asked(max_gpus=ENOUGH)).pools
    few = replace(asked(), offers=(offer(inventory=2),))
    assert relaxed(optimize_at(few)) == {"inventory": ENOUGH}


def test_of_several_limits_each_that_would_do_alone_is_offered() -> None:
    offers = (offer("H100", inventory=1), offer("L40S", inventory=1))
    asked_ = given(40.0, offers=offers, space=ONE_SHAPE)
    plan = optimize(asked_)
    rows = [row for row in plan.binding if row.slack < 0.0]
    assert {row.where for row in rows} == {"H100", "L40S"}
    assert all("Any one of these limits" in row.why_not for row in plan.alternatives)
    for row in rows:
        more = tuple(
            replace(one, inventory=int(row.used)) if one.accelerator.name == row.where else one for one in offers
        )
        assert optimize(replace(asked_, offers=more)).pools


def test_lifting_keeps_how_requests_are_routed_and_the_other_limits() -> None:
    asked_ = replace(
        given(20.0, offers=(offer("H100", inventory=4),)),
        constraints=Constraints(budget=9.0, power=3e3, routing=Routing.THRESHOLD, spare_replicas=1),
    )
    assert without_limits(asked_).constraints == Constraints(routing=Routing.THRESHOLD, spare_replicas=1)
    budget, power, inventory, none = lifts(asked_)
    assert [(side.constraints.budget, side.constraints.power) for side in budget] == [(None, 3e3), (9.0, None)]
    assert (power[0].constraints.budget, power[0].constraints.power) == (9.0, None)
    assert [side.offers[0].inventory for side in inventory] == [None, 4]
    assert none == (without_limits(asked_), asked_)
