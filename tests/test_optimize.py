"""From a problem to a plan: objectives, limits on the fleet, what there is to say when there is none, and the file."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from costmodel.accelerator import Origin, Price, PriceBasis
from optimizer.loads.effort import Brake, Effort, Level
from optimizer.plans.plan import Plan, Status
from optimizer.recommend.changed_problem import costing_what_is_short, describe_miss
from optimizer.recommend.explain import FEATURES, formula_price, without_feature, worths
from optimizer.recommend.optimize import plan_below_floor
from optimizer.search.bound import check_floors
from search_spaces.problem import Billing, Constraints, Goal, Objective
from tests.optimizer_cases import instance_of, offer, slo, workload
from tests.report_cases import text_of
from tests.small_problems import ONE, SOLVED, given, optimize, plan_of

BOTH = (offer("H100"), offer("L40S"))


def plain() -> Plan:
    """The plan of the problem without limits."""
    return plan_of(given())


class TestThePlan:
    def test_bound_and_gap_belong_together(self) -> None:
        for plan in (plain(), plan_of(given(2.0)), plan_of(given(60.0))):
            assert plan.floor_usd_per_hour <= plan.cost_usd_per_hour
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

    def test_another_fleet_of_the_same_price_is_told_as_such(self) -> None:
        """One GPU of either type is enough, at the same price."""
        plan = plan_of(given(2.0, offers=(offer("H100", usd_per_hour=3.0), offer("H200", usd_per_hour=3.0))))
        prices = {row.label: (row.cost_usd_per_hour, row.why_not) for row in plan.alternatives}
        assert prices["H100 only"] == prices["H200 only"] == (3.0, "the same cost")


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
        quote = Price(3.99, 3.99, 3.99, 1, Origin.VENDOR, "A", "2026-04-03", PriceBasis.SPOT)
        remarks = [
            optimize(given(40.0, offers=(replace(owned, quote=quote, owned=number),))).price_remarks
            for number in (2, 100)
        ]
        assert ["spot quote" in " ".join(texts) for texts in remarks] == [True, False]
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

    def test_a_disaggregated_fleet_that_the_limits_forbid_says_so(self) -> None:
        def why(**limits: object) -> str:
            plan = optimize(given(2.0, slos=(slo(1.0, 0.05, 0.9),), space=ONE, **limits))
            return next(row.why_not for row in plan.alternatives if row.kind == "disaggregated_only")

        few = "a prefill and a decode replica take 2 GPUs or more, which the limits on the fleet forbid"
        assert why(offers=(offer("H100", inventory=1),)) == few
        assert why(constraints=Constraints(max_gpus=1)) == few
        assert why(constraints=Constraints(max_pools=1)) == "it takes two pools, more than the limits on pools allow"


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
        tokens_per_hour = plan.demand_rps * plan.workload.mean_osl * 3600.0  # at volume 1
        volume = plan.cost_usd_per_hour / tokens_per_hour * 1e6 / plan.usd_per_million_output_tokens
        assert least * (1 - 1e-6) <= volume <= most * (1 + 1e-6)
        assert all(row.attainment >= row.attainment_goal - 1e-9 for row in plan.classes)


# --- what is said where no fleet meets the goals: exit, nearest miss, and what is in the way


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
        assert limit in nearest.label

    def test_the_nearest_fleet_takes_least_of_what_is_short_and_of_equals_the_cheaper_does(self) -> None:
        """Of two GPUs each takes a half, whatever it costs."""
        limited = given(offers=BOTH, constraints=Constraints(max_gpus=2))
        priced = costing_what_is_short(limited, instance_of(given(offers=BOTH))).problem.offers
        assert [offer.usd_per_hour for offer in priced] == pytest.approx([0.5, 0.5], rel=3e-3)
        assert priced[0].usd_per_hour > priced[1].usd_per_hour

    def test_a_demand_far_beyond_the_inventory_is_refused_by_what_that_can_serve(self) -> None:
        """What any could serve is more than the best one does; what is offered in its place holds when simulated."""
        stock = (offer("H100", inventory=2),)
        plan = optimize(given(60.0, offers=stock), level=Level.STANDARD)
        assert plan.status is Status.INFEASIBLE
        assert plan.binding[0].constraint == "inventory"
        said = r"No fleet of at most 2 H100 GPUs can serve more than ([\d.]+) req/s\.$"
        most = re.search(said, plan.binding[0].sentence)
        best = optimize(given(20.0, offers=stock, objective=Objective(Goal.MAX_GOODPUT)))
        assert best.goodput_rps < float(most[1]) < 20.0 * best.goodput_rps
        spared = optimize(given(60.0, offers=stock, constraints=Constraints(spare_replicas=1)))
        assert re.search(said.replace(r"\.$", r" with 1 spare replica in every pool\.$"), spared.binding[0].sentence)
        (nearest,) = plan.alternatives
        assert (nearest.simulated, nearest.confirmation) == (True, 1)
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
        assert nearest.label.startswith("with TTFT x ")
        assert all(row.simulated and row.attainment < 0.9999 for row in tried if row.attainment is not None)
        mended = optimize(given(100.0, slos=(slo(plan.binding[0].used * 1.001, hard.tpot, 0.9999),), space=ONE))
        assert mended.pools
        assert nearest.attainment >= 0.9999

    def test_the_plan_of_limits_below_the_floor_names_the_least_possible(self) -> None:
        plan = plan_below_floor(given(slos=(slo(ttft=1e-3, tpot=1e-4, itl_p99=2e-4),)))
        assert (plan.status, plan.pools, plan.cost_usd_per_hour) == (Status.INFEASIBLE, [], None)
        assert {row.constraint: row.limit for row in plan.binding} == {"ttft": 1e-3, "tpot": 1e-4, "itl_p99": 2e-4}
        assert all(row.used > row.limit for row in plan.binding)
        assert all("is not possible: the fastest engine" in row.sentence for row in plan.binding)
        assert "TPOT: 0.1 ms of class default is not possible" in " ".join(text_of(plan).split())
        least = {row.constraint: re.search(r"idle, needs ([\d.]+) ms for", row.sentence) for row in plan.binding}
        copied = {metric: float(match[1]) / 1e3 for metric, match in least.items() if match is not None}
        assert copied.keys() == least.keys()
        check_floors(instance_of(given(slos=(slo(**copied),))))

    def test_no_tpot_limit_excludes_an_engine_where_answers_have_one_token(self) -> None:
        asked = given(workload=workload(1.0, ((500.0, 1.0, 1.0),)), slos=(slo(1.0, 1e-4, 0.95),), space=ONE)
        assert plan_of(asked).status in SOLVED

    def test_only_the_limit_in_the_way_is_loosened_and_only_of_its_class(self) -> None:
        """Of two classes one has a limit on TTFT so short that no prompt may wait."""
        instance = instance_of(given(100.0, space=ONE))
        ttft = 1.02 * float(instance.tables.prefill_time.min(axis=0).max()) + instance.policy.fixed_ttft(False)
        slos = (slo(ttft, 0.2, 0.9999, name="fast", share=0.5), slo(20.0, 0.2, 0.9, name="slow", share=0.5))
        miss = describe_miss(instance_of(given(100.0, slos=slos, space=ONE)), Effort(Level.QUICK, Brake()))
        assert [(row.constraint, row.where) for row in miss.shortfalls] == [("ttft", "fast")]
        assert [row.why_not for row in miss.rows] == ["TTFT of fast is too tight."]


# --- what chunking, batching and disaggregation are worth: each is turned off alone, and prices are compared


def test_the_price_is_that_of_the_search_and_batching_is_worth_most() -> None:
    asked = given()
    plan = plan_of(asked)
    found = {item.feature: item for item in worths(asked)}
    assert list(found) == list(FEATURES)
    assert found["batching"].with_usd_per_hour == pytest.approx(plan.cost_usd_per_hour, rel=0.05)
    price = found["batching"].without_usd_per_hour
    assert price is None or price > 2 * plan.cost_usd_per_hour
    assert formula_price(without_feature("disaggregation", asked)) == found["disaggregation"].without_usd_per_hour
