"""Routers that count requests: the winner is served behind one, and files say only what was shown to hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.prefix_cache import fixed, uniform_reuse
from costmodel.simulator.fleet import Router
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan
from optimizer.plans.records import JudgedFleet, Outcome
from optimizer.verification.bench import by_requests, make_bench
from optimizer.verification.judge import simulated_fleet
from reports.deploy.files import deployment_files
from search_spaces.problem import Balancing, Constraints, any_target
from tests.deploy_cases import Case, options, plan_of
from tests.optimizer_cases import instance_of, problem, workload
from tests.report_cases import judged as with_outcome
from tests.report_cases import load
from tests.report_cases import simulated as with_simulation
from tests.small_fleets import alone

THREE = (Case("colocated", replicas=3, tokens=8192),)


@cache
def served(balancing: Balancing, hits: float = 0.0) -> Instance:
    load = workload(rate=4.0, prefix_hit_share=hits)
    if hits:
        load = replace(load, reuse=uniform_reuse(load.isl, hits, fixed(10.0)))
    return instance_of(replace(problem(workload=load), constraints=Constraints(balancing=balancing)))


@pytest.mark.parametrize("hits", [0.0, 0.4])
def test_the_requests_of_the_proof_meet_the_other_router(hits: float) -> None:
    """They find the prefixes that it leaves them, as where the plan is for such a router."""
    instance = served(Balancing.LEAST_TOKENS, hits)
    bench = make_bench(instance)
    winner = bench.verdict(alone(instance, 3))
    assert winner.held
    other = by_requests(bench, winner)
    assert {one.router for one in other.judgement.engines} == {Router.LEAST_LOADED}
    for mine, theirs in zip(other.judgement.runs, winner.judgement.runs, strict=True):
        assert np.array_equal(mine.demand.trace.arrival, theirs.demand.trace.arrival)
        assert not np.array_equal(mine.result.ttft, theirs.result.ttft)
        assert mine.demand.trace.cached.sum() <= 0.5 * theirs.demand.trace.cached.sum()
    counting = make_bench(served(Balancing.LEAST_REQUESTS, hits)).verdict(winner.fleet)
    assert np.array_equal(other.judgement.runs[0].result.ttft, counting.judgement.runs[0].result.ttft)


def test_one_engine_and_routers_that_count_requests_are_not_served_twice() -> None:
    for balancing, replicas in ((Balancing.LEAST_TOKENS, 1), (Balancing.LEAST_REQUESTS, 3)):
        bench = make_bench(served(balancing))
        winner = bench.verdict(alone(bench.instance, replicas))
        assert by_requests(bench, winner) is None


def test_pools_told_apart_are_served_by_a_router_that_counts_requests() -> None:
    """Of vLLM's targets llm-d alone counts prompt tokens, and it knows one pool of a role; SGLang's none does."""
    limits = any_target("vllm").limits(Constraints(), 1, prefixes=False)
    pair, several = (Role.PREFILL, Role.DECODE), (Role.PREFILL, Role.PREFILL, Role.DECODE)
    assert [limits.balancing_of(roles) for roles in (pair, several)] == list(Balancing)
    assert any_target("sglang").limits(Constraints(), 1, prefixes=False).balancing is Balancing.LEAST_REQUESTS
    instance = instance_of(replace(problem(workload=workload(rate=4.0)), constraints=limits))
    engines = alone(instance, 2).pools[0]
    routers = [
        {engine.router for engine in simulated_fleet(instance, Fleet(pools))}
        for pools in ((engines,), (engines, replace(engines, name="colocated-2")))
    ]
    assert routers == [{Router.LENGTH_AWARE}, {Router.LEAST_LOADED}]


def simulated(plan: Plan, counted: JudgedFleet | None) -> Plan:
    """The plan with some simulation, which says this of a least-requests router."""
    shown = with_simulation(load("disaggregated")).simulation
    return plan.model_copy(update={"simulation": shown.model_copy(update={"behind_least_requests": counted})})


def judged(*, held: bool) -> JudgedFleet:
    return with_outcome(load("disaggregated"), "least-requests router", 1.0, 0.97 if held else 1.15)


def test_files_for_a_router_that_counts_requests_need_a_proof() -> None:
    plan = plan_of(THREE)
    assert "router.sh" in deployment_files(simulated(plan, judged(held=True)), options("vllm"))
    missed = judged(held=False)
    with pytest.raises(
        InputError, match=r"misses the SLO: 83.3 % of chat requests \(95 % asked\); .* --target llm-d, "
    ):
        deployment_files(simulated(plan, missed), options("vllm"))
    near = missed.model_copy(update={"outcome": Outcome.UNDECIDED})
    with pytest.raises(InputError, match=r"it is undecided whether the plan meets the SLO: 83.3 % of chat requests"):
        deployment_files(simulated(plan, near), options("vllm"))
    with pytest.raises(InputError, match=r"was not simulated; plan again with pdplan optimize FILE --target vllm"):
        deployment_files(simulated(plan, None), options("vllm"))
