"""What is offered where no fleet holds within the limits: each limit that would have to give, true when it is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.plans.plan import Plan, Status
from optimizer.recommend.optimize import optimize as optimize_at
from optimizer.verification.bench import Bench, Verdict
from optimizer.verification.judge import judge
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import problem, space, workload

ONE_SHAPE = space(tensor_parallel=(1,), max_num_seqs=(128,), roles=(Role.COLOCATED,))
ENOUGH = 4
"""GPUs with which the judge below is content."""


@pytest.fixture
def strict_judge(short_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations in which a fleet of fewer than ENOUGH GPUs falls behind."""

    def judged(self: Bench, fleet: Fleet) -> Verdict:
        found = judge(self.instance, fleet, requests=80)
        held = sum(pool.replicas for pool in fleet.pools) >= ENOUGH
        sure = tuple(replace(one, attainment_low=one.attainment) for one in found.classes)
        overload = replace(found.overload, overloaded=not held)
        return self.verdict_of(fleet, replace(found, classes=sure, overload=overload), held=held)

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
