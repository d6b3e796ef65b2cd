"""From a problem to a plan: objectives, limits on the fleet, what there is to say when there is none, and the file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from optimizer.plans.plan import Plan, Status
from search_spaces.problem import Billing, Constraints, Goal, Objective
from tests.optimizer_cases import offer
from tests.small_problems import SOLVED, given, optimize, plan_of

BOTH = (offer("H100"), offer("L40S"))


def per_million(plan: Plan, volume: float = 1.0) -> float:
    """Dollars per million output tokens at the served volume."""
    tokens = plan.demand_rps * volume * plan.workload.mean_osl * 3600.0
    assert plan.cost_usd_per_hour is not None
    return plan.cost_usd_per_hour / tokens * 1e6


def plain() -> Plan:
    """The plan of the problem without limits."""
    return plan_of(given())


class TestThePlan:
    def test_bound_and_gap_belong_together(self) -> None:
        for plan in (plain(), plan_of(given(2.0)), plan_of(given(60.0))):
            assert plan.cost_usd_per_hour is not None
            assert plan.floor_usd_per_hour is not None
            assert plan.floor_usd_per_hour <= plan.cost_usd_per_hour
            assert plan.bound_usd_per_hour is not None
            assert plan.gap is not None
            assert plan.floor_usd_per_hour <= plan.bound_usd_per_hour * (1.0 + 1e-9)
            assert plan.bound_usd_per_hour <= plan.cost_usd_per_hour
            assert plan.gap == pytest.approx(1.0 - plan.bound_usd_per_hour / plan.cost_usd_per_hour, abs=1e-12)
            assert plan.status is Status.FEASIBLE or plan.gap <= 1e-4

    def test_the_recommended_fleet_leads_and_no_other_is_cheaper(self) -> None:
        plan = plain()
        assert plan.alternatives[0].kind == "recommended"
        assert plan.alternatives[0].cost_usd_per_hour == plan.cost_usd_per_hour
        assert {"colocated_only", "disaggregated_only"} <= {row.kind for row in plan.alternatives}
        for row in plan.alternatives[1:]:
            if row.cost_usd_per_hour is not None:
                assert row.cost_usd_per_hour >= (plan.cost_usd_per_hour or 0.0) * (1 - 1e-4)
            assert row.why_not


class TestTheFile:
    def test_the_same_problem_has_the_same_plan(self) -> None:
        """All but the time of day, and how long each stage took."""
        asked = given(20.0, offers=BOTH)
        one, other = (plan.model_dump(exclude={"provenance": {"run"}}) for plan in (plan_of(asked), optimize(asked)))
        assert json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class TestLimits:
    def test_spare_replicas_are_bought_and_paid_in_every_pool(self) -> None:
        plan = optimize(given(constraints=Constraints(spare_replicas=2)))
        assert {pool.spare_replicas for pool in plan.pools} == {2}
        assert all(pool.replicas > 2 for pool in plan.pools)
        assert plan.cost_usd_per_hour == pytest.approx(sum(pool.usd_per_hour for pool in plan.pools))
        assert (plan.cost_usd_per_hour or 0.0) >= (plain().cost_usd_per_hour or 0.0) + 2 * 3.99 * (1 - 1e-9)

    def test_owned_gpus_come_first_and_a_pool_may_have_rented_ones_too(self) -> None:
        """Two owned at a tenth of the price: the fleet without them costs as much more, and its bound holds."""
        owned = replace(offer("H100"), owned=2, owned_usd_per_hour=0.4)
        rented, plan = plan_of(given(40.0)), optimize(given(40.0, offers=(owned,)))
        assert plan.status in SOLVED
        assert plan.gpus == rented.gpus
        assert len(plan.pools) < plan.gpus["H100"]
        assert plan.cost_usd_per_hour == pytest.approx((rented.cost_usd_per_hour or 0.0) - 2 * (3.99 - 0.4))
        assert 0.0 < (plan.floor_usd_per_hour or 0.0) <= plan.cost_usd_per_hour
        assert any("2 are owned" in remark for remark in plan.price_remarks)
        none_to_rent = optimize(given(40.0, offers=(replace(owned, inventory=plan.gpus["H100"] - 3),)))
        assert none_to_rent.cost_usd_per_hour is None

    @pytest.mark.parametrize("limit", ["budget", "power", "max_gpus"])
    def test_what_the_plan_itself_needs_is_enough(self, limit: str) -> None:
        """The limit at just what the free plan takes changes its cost by nothing, and is then used up."""
        gpus = sum(plain().gpus.values())
        exact = {
            "budget": Constraints(budget=plain().cost_usd_per_hour),
            "power": Constraints(power=gpus * 700.0),
            "max_gpus": Constraints(max_gpus=gpus),
        }
        plan = optimize(given(constraints=exact[limit]))
        assert plan.status in SOLVED
        assert plan.cost_usd_per_hour == pytest.approx(plain().cost_usd_per_hour)
        row = next(row for row in plan.binding if row.constraint == limit)
        assert row.used <= row.limit * (1 + 1e-9)
        assert row.slack == pytest.approx(0.0, abs=1e-9)

    def test_whole_nodes_are_paid(self) -> None:
        plan = optimize(given(offers=(offer("H100", billing=Billing.NODE),)))
        assert plan.status in SOLVED
        nodes = math.ceil(sum(pool.gpus for pool in plan.pools) / 8)
        assert plan.cost_usd_per_hour == pytest.approx(nodes * 8 * 3.99)
        assert sum(pool.usd_per_hour for pool in plan.pools) == pytest.approx(plan.cost_usd_per_hour)


class TestObjectives:
    def test_most_goodput_for_the_money(self) -> None:
        """Three times the budget serves about three times as much, and never less."""
        served = []
        for budget in (8.0, 24.0):
            limits = Constraints(budget=budget)
            plan = optimize(given(objective=Objective(Goal.MAX_GOODPUT), constraints=limits))
            assert plan.status in SOLVED
            assert (plan.cost_usd_per_hour or 0.0) <= budget * (1 + 1e-9)
            assert all(row.attainment >= row.attainment_goal - 1e-9 for row in plan.classes)
            served.append(plan.goodput_rps)
        assert 2.5 * served[0] <= served[1] <= 4.5 * served[0]

    @pytest.mark.parametrize(("least", "most"), [(0.5, 0.5), (1.0, 4.0), (3.0, 3.0)])
    def test_the_best_ratio_stays_within_its_volumes(self, least: float, most: float) -> None:
        objective = Objective(Goal.MAX_GOODPUT_PER_DOLLAR, least, most)
        plan = optimize(given(10.0, objective=objective))
        assert plan.status in SOLVED
        assert plan.goodput_rps >= least * 10.0 * (1 - 1e-3)
        assert plan.usd_per_million_output_tokens is not None
        volume = per_million(plan) / plan.usd_per_million_output_tokens
        assert least * (1 - 1e-6) <= volume <= most * (1 + 1e-6)
        assert all(row.attainment >= row.attainment_goal - 1e-9 for row in plan.classes)
