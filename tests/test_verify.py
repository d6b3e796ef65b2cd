"""The simulator as judge: verdicts, blame, best-first search with repairs, and no waste."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet
from optimizer.loads.effort import Brake, Effort, Level
from optimizer.plans.plan import Plan, Proof, Status
from optimizer.recommend import search as searches
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import FormulaResult, Rival, most_confirmed
from optimizer.search.search import evaluated
from optimizer.verification import bench as benches
from optimizer.verification.bench import Bench, Verdict, run_length
from optimizer.verification.judge import MOST_JUDGED, Goodput
from optimizer.verification.simulated_plan import judge
from optimizer.verification.verify import smaller_limits
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import judgement, problem, space, workload
from tests.small_fleets import apart, replicas, small

pytestmark = pytest.mark.usefixtures("short_runs")

# --- with the simulator ---------------------------------------------------------------------------------------------


def test_of_a_large_fleet_a_slice_is_simulated() -> None:
    fleet = apart(small(), 50, 21)
    part = Bench(small(), 0, 10 * benches.MOST_REQUESTS - 1, volume=3.0).part(fleet)
    assert (part.parts, replicas(part.fleet)) == (10, (5, 2))
    assert part.volume == pytest.approx(0.3)
    assert part.requests == benches.MOST_REQUESTS
    for name, one in zip(("prefill-1", "decode-1"), part.fleet.pools, strict=True):
        whole = next(pool for pool in fleet.pools if pool.name == name)
        assert one.replicas / part.volume <= whole.replicas / 3.0 * (1 + 1e-9)
    bench = Bench(small(), 0, 10 * benches.MOST_REQUESTS, volume=3.0)
    odd = bench.part(apart(small(), 50, 19))
    assert (odd.parts, replicas(odd.fleet)) == (9, (5, 2))
    alone = bench.part(apart(small(), 50, 1))
    assert (alone.parts, alone.requests) == (1, MOST_JUDGED)


def test_a_fleet_that_stays_stuck_gets_the_batch_limit_that_its_memory_holds_and_then_smaller_ones() -> None:
    instance = small(space=space(max_num_seqs=(8, 16, 32, 64, 128)))
    judged = judgement(0.5, 0.4, 0.6)
    prefill, decode = apart(instance, 1, 1).pools
    tables, running = instance.tables, instance.flows.share * instance.flows.osl
    limits, request = tables.limits.tolist(), float(tables.kv_held[decode.shape] @ running) / float(running.sum())
    room = 1.01 * request * float(tables.seqs[limits[-3]])
    tight = replace(instance, tables=replace(tables, kv_capacity=np.full_like(tables.kv_capacity, room)))
    for there, first in ((instance, limits[-2]), (tight, limits[-3])):
        tried = [limits[-1]]
        while not tried[1:] or tried[-1] != tried[-2]:
            fleet = Fleet((prefill, replace(decode, seqs=tried[-1])))
            smaller = smaller_limits(there, Verdict(fleet, 1.0, judged, False, blamed=(1,), stuck=True))
            tried.append(smaller.pools[1].seqs)
        assert tried[1:-1] == limits[limits.index(first) :: -1]


def test_most_goodput_has_the_largest_batch_limit_that_comes_out_of_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two largest stay stuck above the demand; the next serves half as much again."""
    instance = small(space=space(max_num_seqs=(8, 16, 32, 64, 128)))
    prefill, decode = apart(instance, 1, 1).pools
    limits, rate = instance.tables.limits.tolist(), instance.problem.workload.request_rate
    judged = judgement(0.5, 0.4, 0.6)

    def most(fleet: Fleet) -> float:
        return 1.0 if fleet.pools[1].seqs in limits[-2:] else 1.5

    def verdict(bench: Bench, fleet: Fleet) -> Verdict:
        held = bench.volume <= most(fleet)
        return Verdict(fleet, 1.0, judged, held, blamed=(1,), stuck=not held and most(fleet) == 1.0)

    monkeypatch.setattr(Bench, "verdict", verdict)
    monkeypatch.setattr(searches, "confirmed", lambda bench, judged_fleet, *_, **__: (judged_fleet, judged))
    monkeypatch.setattr(
        searches,
        "goodput_of",
        lambda bench, fleet, *_, **__: Goodput(rate * most(fleet), 1.02 * rate * most(fleet), 0.02, ()),
    )
    fleet = Fleet((prefill, replace(decode, seqs=limits[-1])))
    found = FormulaResult(evaluated(instance), Proof(Status.FEASIBLE, None, None), 1.0, (Rival((fleet,)),))
    bench, result = most_confirmed(found, Effort(Level.STANDARD, Brake()))
    assert bench.volume == 1.5
    assert result.winner is not None
    assert result.winner.fleet == Fleet((prefill, replace(decode, seqs=limits[-3])))


# --- plans ----------------------------------------------------------------------------------------------------------

QUICK_SPACE = space(tensor_parallel=(1,), max_num_seqs=(32, 128))
RATE = 22.0
"""More than one engine carries [1/s]."""


@cache
def planned(level: Level = Level.STANDARD) -> Plan:
    return optimize(problem(space=QUICK_SPACE, workload=workload(RATE)), level=level)


def test_a_standard_plan_is_proven_and_wastes_nothing() -> None:
    plan, found = planned(), planned().simulation
    assert plan.simulated
    assert found.held
    assert plan.status in {Status.OPTIMAL, Status.FEASIBLE}
    (one,) = found.classes
    assert one.attainment_goal <= one.attainment_low <= one.attainment <= one.attainment_high <= 1.0
    assert plan.classes[0].attainment == one.attainment == pytest.approx(found.attainment)
    assert plan.classes[0].ttft_s == one.ttft_s
    assert one.ttft_s.p90 <= plan.classes[0].ttft_limit_s
    assert plan.goodput_rps == found.goodput_rps
    assert plan.demand_rps <= found.goodput_rps < found.goodput_fails_rps
    assert any(point.rate_rps == pytest.approx(found.goodput_fails_rps, rel=1e-9) for point in found.curve)
    assert found.one_replica_less
    assert not any(row.held for row in found.one_replica_less)
    assert all(row.cost_usd_per_hour < (plan.cost_usd_per_hour or 0.0) for row in found.one_replica_less)
    assert found.requests == found.replications * run_length(small(RATE), 1.0)


def test_a_thorough_plan_was_tuned_and_run_four_times() -> None:
    few = space(tensor_parallel=(1,), max_num_seqs=(128,), roles=(Role.COLOCATED,))
    plan = optimize(problem(space=few, workload=workload(RATE)), level=Level.THOROUGH)
    found = plan.simulation
    assert found.held
    assert found.replications >= 4
    tuning = found.tuning
    (pool_,) = plan.pools
    assert tuning.looks == min(pool_.replicas, 2) + 1
    assert [row.tail for row in tuning.front] == sorted([row.tail for row in tuning.front], reverse=True)
    assert found.one_replica_less or pool_.replicas == 1


# --- what is offered where no fleet holds within the limits is true when it is tried


ONE_SHAPE = space(tensor_parallel=(1,), max_num_seqs=(128,), roles=(Role.COLOCATED,))
ENOUGH = 4
"""GPUs with which the judge below is content."""


def asked(**limits: Any) -> Problem:
    return problem(space=ONE_SHAPE, workload=workload(28.0), constraints=Constraints(**limits))


def relaxed(plan: Plan) -> dict[str, float]:
    return {row.constraint: row.used for row in plan.binding if row.slack < 0.0}


def test_a_budget_below_the_first_fleet_that_holds_is_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little by formula, or enough by formula alone: what is offered is what holds when it is simulated.

    In these simulations a fleet of fewer than ENOUGH GPUs falls behind.
    """

    def judged(self: Bench, fleet: Fleet) -> Verdict:
        found = judge(self.instance, fleet, requests=80)
        held = sum(replicas(fleet)) >= ENOUGH
        sure = tuple(replace(one, attainment_low=one.attainment) for one in found.classes)
        overload = replace(found.overload, overloaded=not held)
        return self.verdict_of(fleet, replace(found, classes=sure, overload=overload), held=held)

    monkeypatch.setattr(Bench, "_judge", judged)
    plans = [optimize(asked(budget=budget)) for budget in (7.99, 11.98)]
    for plan in plans:
        assert plan.pools == []
        assert plan.status in {Status.INFEASIBLE, Status.TIME_LIMIT}
        assert plan.binding[0].constraint == "budget"
        assert relaxed(plan) == {"budget": pytest.approx(ENOUGH * 3.99)}
        nearest = plan.alternatives[0]
        assert (nearest.kind, nearest.simulated) == ("nearest_miss", True)
        assert nearest.cost_usd_per_hour == pytest.approx(ENOUGH * 3.99)
    mended = optimize(asked(budget=min(relaxed(plan)["budget"] for plan in plans)))
    assert mended.simulated
    assert mended.cost_usd_per_hour == pytest.approx(ENOUGH * 3.99)
