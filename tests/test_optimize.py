"""From a problem to a plan: objectives, limits on the fleet, what there is to say when there is none, and the file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from optimizer.plans.plan import Plan, Status
from search_spaces.problem import OWNED, Billing, Constraints, Goal, Objective
from tests.optimizer_cases import offer, slo
from tests.small_problems import ONE, SOLVED, given, optimize, plan_of

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
    def test_it_is_solved_and_holds(self) -> None:
        plan = plain()
        assert plan.status in SOLVED
        assert plan.classes[0].attainment >= 0.95
        assert plan.attainment == pytest.approx(plan.classes[0].attainment)
        assert plan.goodput_rps >= plan.demand_rps == 30.0
        assert not plan.simulated

    def test_cost_is_gpus_times_price_and_that_of_the_pools(self) -> None:
        plan = plain()
        assert plan.cost_usd_per_hour == pytest.approx(plan.gpus["H100"] * 3.99)
        assert plan.cost_usd_per_hour == pytest.approx(sum(pool.usd_per_hour for pool in plan.pools))
        assert sum(pool.gpus for pool in plan.pools) == plan.gpus["H100"]
        for pool in plan.pools:
            assert pool.gpus == pool.replicas * pool.tensor_parallel * pool.pipeline_parallel * pool.data_parallel

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

    def test_money_per_token_and_goodput_per_dollar(self) -> None:
        plan = plain()
        assert plan.usd_per_million_output_tokens == pytest.approx(per_million(plan))
        assert plan.cost_usd_per_hour is not None
        assert plan.goodput_per_dollar == pytest.approx(plan.goodput_rps * 3600.0 / plan.cost_usd_per_hour)

    def test_every_bucket_is_served_by_pools_that_exist(self) -> None:
        plan = plain()
        names = {pool.id for pool in plan.pools}
        assert len(names) == len(plan.pools)
        for route in plan.routing:
            for stage in (route.prefill, route.decode):
                assert set(stage) <= names
                assert sum(stage.values()) == pytest.approx(1.0, abs=1e-5)
        assert sum(route.share for route in plan.routing) == pytest.approx(1.0)

    def test_the_tightest_limit_comes_first(self) -> None:
        slack = [row.slack for row in plain().binding]
        assert slack == sorted(slack)
        assert slack
        for row in plain().binding:
            assert row.sentence.endswith(".")

    def test_the_recommended_fleet_leads_and_no_other_is_cheaper(self) -> None:
        plan = plain()
        assert plan.alternatives[0].kind == "recommended"
        assert plan.alternatives[0].cost_usd_per_hour == plan.cost_usd_per_hour
        assert {"colocated_only", "disaggregated_only"} <= {row.kind for row in plan.alternatives}
        for row in plan.alternatives[1:]:
            if row.cost_usd_per_hour is not None:
                assert row.cost_usd_per_hour >= (plan.cost_usd_per_hour or 0.0) * (1 - 1e-4)
            assert row.why_not

    def test_progress_runs_from_start_to_end(self) -> None:
        seen: list[tuple[str, float]] = []
        optimize(given(2.0), progress=lambda label, share: seen.append((label, share)))
        shares = [share for _, share in seen]
        assert shares == sorted(shares)
        assert (seen[0][1] > 0.0, seen[-1]) == (True, ("done", 1.0))


class TestTheFile:
    def test_it_reads_back_as_it_was_written(self) -> None:
        plan = plain()
        text = plan.model_dump_json(by_alias=True)
        assert Plan.model_validate_json(text) == plan
        assert json.loads(text)["schema"] == "pdplan.plan/2"

    @pytest.mark.parametrize("rate", [2.0, 20.0])
    def test_the_same_problem_has_the_same_plan(self, rate: float) -> None:
        """All but the time of day, and how long each stage took."""
        asked = given(rate, offers=BOTH)
        one, other = (plan.model_dump(exclude={"provenance": {"run"}}) for plan in (plan_of(asked), optimize(asked)))
        assert json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    def test_provenance_says_what_was_searched(self) -> None:
        provenance = plain().provenance
        assert provenance.search["shapes_considered"] == 2
        assert provenance.search["shapes_feasible"] == 2
        assert provenance.search["settings"] > 0
        assert set(provenance.versions) >= {"python", "numpy", "ortools"}
        assert provenance.run.timings_s
        assert [entry["name"] for entry in provenance.accelerators] == ["H100"]
        assert any("not been simulated" in line for line in provenance.assumptions)


class TestLimits:
    @pytest.mark.parametrize("constraints", [Constraints(max_pools=1), Constraints(max_pools=2)])
    def test_pools(self, constraints: Constraints) -> None:
        plan = optimize(given(20.0, offers=BOTH, constraints=constraints))
        assert plan.status in SOLVED
        assert 0 < len(plan.pools) <= (constraints.max_pools or 0)

    def test_spare_replicas_are_bought_and_paid_in_every_pool(self) -> None:
        plan = optimize(given(constraints=Constraints(spare_replicas=2)))
        assert {pool.spare_replicas for pool in plan.pools} == {2}
        assert all(pool.replicas > 2 for pool in plan.pools)
        assert plan.cost_usd_per_hour == pytest.approx(sum(pool.usd_per_hour for pool in plan.pools))
        assert (plan.cost_usd_per_hour or 0.0) >= (plain().cost_usd_per_hour or 0.0) + 2 * 3.99 * (1 - 1e-9)

    def test_no_more_gpus_are_used_as_owned_than_are(self) -> None:
        """Two owned at a tenth of the price: the rest of the fleet is rented, and no pool is of both."""
        owned = replace(offer("H100"), usd_per_hour=0.4, inventory=2, owned=True)
        owned = replace(owned, accelerator=replace(owned.accelerator, name=f"H100{OWNED}"))
        plan = optimize(given(40.0, offers=(offer("H100"), owned)))
        assert plan.status in SOLVED
        assert plan.gpus[f"H100{OWNED}"] == 2
        rented = plan.gpus["H100"]
        assert plan.cost_usd_per_hour == pytest.approx(2 * 0.4 + rented * 3.99)
        assert plan.cost_usd_per_hour < (plan_of(given(40.0)).cost_usd_per_hour or 0.0)

    def test_inventory(self) -> None:
        free = plan_of(given(20.0, offers=BOTH))
        stock = max(1, max(free.gpus.values()) - 1)
        scarce = max(free.gpus, key=lambda name: free.gpus[name])
        offers = tuple(offer(name, inventory=stock if name == scarce else None) for name in ("H100", "L40S"))
        plan = optimize(given(20.0, offers=offers))
        assert plan.status in SOLVED
        assert plan.gpus.get(scarce, 0) <= stock
        assert (plan.cost_usd_per_hour or 0.0) >= (free.bound_usd_per_hour or 0.0)

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

    @pytest.mark.parametrize("billing", list(Billing))
    def test_a_demand_of_hundreds_of_engines_is_solved_closely(self, billing: Billing) -> None:
        """More than any one block carries: equal blocks lead the way, and whole numbers hardly matter."""
        plan = optimize(given(3300.0, offers=(offer("H100", billing=billing),)))
        assert sum(pool.replicas for pool in plan.pools) > 50
        assert plan.floor_usd_per_hour is not None
        assert plan.cost_usd_per_hour is not None
        assert plan.floor_usd_per_hour <= plan.cost_usd_per_hour <= 1.5 * plan.floor_usd_per_hour
        assert sum(pool.usd_per_hour for pool in plan.pools) == pytest.approx(plan.cost_usd_per_hour)
        kinds = {row.kind: row for row in plan.alternatives}
        assert kinds["colocated_only"].pools
        assert kinds["disaggregated_only"].pools

    def test_two_classes_each_hold_their_goal(self) -> None:
        two = (slo(0.6, 0.03, 0.99, name="chat", share=0.5), slo(5.0, 0.2, 0.8, name="batch", share=0.5))
        plan = optimize(given(slos=two))
        assert [row.name for row in plan.classes] == ["chat", "batch"]
        assert all(row.attainment >= row.attainment_goal for row in plan.classes)
        assert plan.attainment == pytest.approx(sum(row.share * row.attainment for row in plan.classes))

    def test_an_end_to_end_limit_is_held(self) -> None:
        plan = optimize(given(slos=(slo(1.0, 0.2, 0.95, e2e=6.0),)))
        assert plan.classes[0].e2e_limit_s == 6.0
        assert plan.classes[0].attainment >= 0.95
        assert plan.tpot_s is not None
        assert plan.tpot_s.p50 <= (6.0 - 1.0) / 199


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

    def test_no_money_no_goodput(self) -> None:
        plan = optimize(given(objective=Objective(Goal.MAX_GOODPUT), constraints=Constraints(budget=1.0)))
        assert plan.status is Status.INFEASIBLE
        assert plan.goodput_rps == 0.0

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

    def test_room_to_grow_never_lowers_the_ratio(self) -> None:
        """One engine serves 11.6 requests per second, two 24.2, three 36.7: what they could serve is sold, not idle."""
        ratios = []
        for most in (1.0, 2.7, 4.0, 5.5):
            wanted = Objective(Goal.MAX_GOODPUT_PER_DOLLAR, 1.0, most)
            plan = optimize(given(10.0, objective=wanted, space=ONE))
            assert plan.usd_per_million_output_tokens is not None
            ratios.append(1e6 / plan.usd_per_million_output_tokens / plan.workload.mean_osl / 3600.0)
        assert ratios == sorted(ratios)
        each = (24.2 / 2, 36.7 / 3, 49.3 / 4)
        assert ratios == [pytest.approx(10.0 / 3.99), *(pytest.approx(rate / 3.99, rel=3e-3) for rate in each)]
