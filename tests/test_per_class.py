"""Separate pools for each SLO class: what they cost, what is proven of them, and the limits that they share."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from optimizer.loads.effort import Level
from optimizer.plans.plan import Plan, Status
from optimizer.recommend.optimize import optimize
from search_spaces.problem import Constraints, Pools, Problem
from tests.optimizer_cases import offer, problem, slo, workload

TWO = (slo(0.5, 0.02, 0.9, name="chat", share=0.5), slo(10.0, 0.1, 0.9, name="batch", share=0.5))


def asked(pools: Pools = Pools.PER_CLASS, rate: float = 12.0, **changes: Any) -> Problem:
    """A strict and a loose class, half of the requests each, on H100 and L40S."""
    limits = {name: changes.pop(name) for name in ("budget", "max_gpus", "max_pools") if name in changes}
    fields: dict[str, Any] = {"offers": (offer("H100"), offer("L40S")), "slos": TWO} | changes
    return problem(workload=workload(rate), constraints=Constraints(pools=pools, **limits), **fields)


@cache
def free() -> Plan:
    """The plan of both classes, apart, without limits."""
    return optimize(asked(), level=Level.QUICK)


def classes_of(plan: Plan) -> dict[str, set[str]]:
    """The classes that each pool serves."""
    served: dict[str, set[str]] = {}
    for route in plan.routing:
        for pool, share in (*route.prefill.items(), *route.decode.items()):
            if share > 1e-9:
                served.setdefault(pool, set()).add(route.slo_class)
    return served


class TestTheFleet:
    def test_it_is_the_fleets_of_the_classes_together(self) -> None:
        plan = free()
        alone = (slo(one.ttft, one.tpot, one.attainment, name=one.name) for one in TWO)
        parts = [optimize(asked(rate=6.0, slos=(only,)), level=Level.QUICK) for only in alone]
        assert plan.cost_usd_per_hour == pytest.approx(sum(part.cost_usd_per_hour or 0.0 for part in parts))
        assert (plan.floor_usd_per_hour or 0.0) <= sum(part.floor_usd_per_hour or 0.0 for part in parts) + 1e-6
        assert (plan.bound_usd_per_hour or 0.0) <= (plan.cost_usd_per_hour or 0.0)
        assert all(row.attainment >= row.attainment_goal for row in plan.classes)

    def test_no_pool_serves_two_classes_where_shared_ones_would(self) -> None:
        """A request per second of both: one engine serves them, apart it takes two."""
        shared, apart = (
            optimize(asked(pools, rate=1.0), level=Level.QUICK) for pools in (Pools.SHARED, Pools.PER_CLASS)
        )
        assert any(len(served) == 2 for served in classes_of(shared).values())
        assert all(len(served) == 1 for served in classes_of(apart).values())
        assert len(classes_of(apart)) == len(apart.pools)
        assert (apart.cost_usd_per_hour or 0.0) >= (shared.bound_usd_per_hour or 0.0) - 1e-6

    def test_the_simulated_fleet_keeps_them_apart(self, short_runs: None) -> None:
        plan = optimize(asked(rate=2.0))
        assert plan.simulated
        assert all(len(served) == 1 for served in classes_of(plan).values())


class TestLimits:
    @pytest.mark.parametrize("limit", [{"max_pools": 1}, {"max_gpus": 1}, {"budget": 3.0}])
    def test_too_little_for_both_is_no_plan(self, limit: dict[str, Any]) -> None:
        plan = optimize(asked(**limit), level=Level.QUICK)
        assert plan.status in {Status.TIME_LIMIT, Status.INFEASIBLE}
        assert plan.pools == []
