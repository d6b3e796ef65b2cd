"""What is said where no fleet meets the goals: exit, nearest miss, and what is in the way."""

from __future__ import annotations

import re
from typing import Any

import pytest

from optimizer.plans.plan import Status
from optimizer.recommend.optimize import plan_below_floor
from optimizer.recommend.search import Level
from search_spaces.problem import Constraints, Goal, Objective
from tests.optimizer_cases import instance_of, offer, slo
from tests.report_cases import text_of as render_plan
from tests.small_problems import ONE, given, optimize


class TestNoFleet:
    @pytest.mark.parametrize(
        ("limit", "changes"),
        [
            ("budget", {"constraints": Constraints(budget=4.0)}),
            ("power", {"constraints": Constraints(power=700.0)}),
            ("max_gpus", {"constraints": Constraints(max_gpus=1)}),
            ("inventory", {"offers": (offer("H100", inventory=1),)}),
        ],
    )
    def test_the_limit_in_the_way_is_named(self, limit: str, changes: dict[str, Any]) -> None:
        plan = optimize(given(200.0, **changes))
        assert plan.status is Status.INFEASIBLE
        assert plan.cost_usd_per_hour is None
        assert plan.pools == []
        assert plan.goodput_rps == 0.0
        assert limit in {row.constraint for row in plan.binding}
        assert all(row.slack < 0.0 and row.used > row.limit for row in plan.binding)
        assert plan.binding[0].slack == min(row.slack for row in plan.binding)
        (nearest,) = [row for row in plan.alternatives if row.kind == "nearest_miss"]
        assert nearest.pools
        assert nearest.cost_usd_per_hour
        assert limit in nearest.why_not

    def test_a_demand_far_beyond_the_inventory_is_refused_by_what_that_can_serve(self) -> None:
        """What any could serve is more than the best one does; what is offered in its place holds when simulated."""
        stock = (offer("H100", inventory=2),)
        plan = optimize(given(60.0, offers=stock), level=Level.STANDARD)
        assert plan.status is Status.INFEASIBLE
        assert plan.binding[0].constraint == "inventory"
        most = re.search(r"At most ([\d.]+) req/s with 2 H100 GPUs\.$", plan.binding[0].sentence)
        assert most is not None
        best = optimize(given(20.0, offers=stock, objective=Objective(Goal.MAX_GOODPUT)))
        assert best.goodput_rps < float(most[1]) < 20.0 * best.goodput_rps
        (nearest,) = plan.alternatives
        assert (nearest.simulated, nearest.confirmed) == (True, True)
        enough = (offer("H100", inventory=int(plan.binding[0].used)),)
        assert optimize(given(60.0, offers=enough), level=Level.STANDARD).pools

    def test_latencies_out_of_reach_are_loosened_until_they_are_not(self) -> None:
        """A hair above the floor, one prompt is in time on an idle engine, but not 99.99 % of a hundred per second.

        A step that reads the KV of one request alone is 2.2 % longer than the weights take.
        """
        instance = instance_of(given(100.0, space=ONE))
        tables, fixed = instance.tables, instance.policy.fixed_ttft(False)
        step = float(tables.decode_base[:, tables.limits].min())
        hard = slo(fixed + float(tables.prefill_time.min(axis=0).max()) * 1.02, step * 1.05, 0.9999)
        plan = optimize(given(100.0, slos=(hard,), space=ONE))
        assert plan.status is Status.TIME_LIMIT
        assert {row.constraint for row in plan.binding} == {"ttft"}
        nearest, *tried = [row for row in plan.alternatives if row.kind == "nearest_miss"]
        assert nearest.label.startswith("with ttft x ")
        assert all(row.simulated and row.attainment < 0.9999 for row in tried if row.attainment is not None)
        mended = optimize(given(100.0, slos=(slo(plan.binding[0].used * 1.001, hard.tpot, 0.9999),), space=ONE))
        assert mended.pools
        assert nearest.attainment is not None
        assert nearest.attainment >= 0.9999

    def test_the_plan_of_limits_below_the_floor_names_the_least_possible(self) -> None:
        plan = plan_below_floor(given(slos=(slo(ttft=1e-3, tpot=1e-4, itl_p99=2e-4),)))
        assert (plan.status, plan.pools, plan.cost_usd_per_hour) == (Status.INFEASIBLE, [], None)
        assert {row.constraint: row.limit for row in plan.binding} == {"ttft": 1e-3, "tpot": 1e-4, "itl_p99": 2e-4}
        assert all(row.used > row.limit and "below the physical floor" in row.sentence for row in plan.binding)
        assert "TPOT: 0.1 ms of class default is below the physical floor" in " ".join(render_plan(plan).split())
