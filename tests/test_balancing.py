"""Routers that count requests: the winner is served behind one, and files say only what was shown to hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.simulator import Router
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Plan
from optimizer.plans.records import JudgedFleet, Quantiles, SimulatedLatencies
from optimizer.verification.bench import by_requests, make_bench
from pdplan.cli import run
from reports.deploy.files import deployment_files
from reports.deploy.measurement import behind
from reports.next_steps import deploy_sentence
from reports.verdict import router_sentence
from search_spaces.problem import Balancing, Constraints
from tests.deploy_cases import Ask, Case, options, plan_of
from tests.optimizer_cases import instance_of, problem, workload
from tests.report_cases import load
from tests.report_cases import simulated as with_simulation
from tests.small_fleets import pool

COUNTS_REQUESTS = {"constraints": {"balancing": "fewest_requests"}}
THREE = (Case("colocated", replicas=3, tokens=8192),)


@cache
def served(balancing: Balancing) -> Instance:
    return instance_of(replace(problem(workload=workload(rate=4.0)), constraints=Constraints(balancing=balancing)))


def colocated(instance: Instance, replicas: int) -> Fleet:
    return Fleet((pool(instance, "colocated-1", Role.COLOCATED, replicas),))


def test_the_requests_of_the_proof_meet_the_other_router() -> None:
    instance = served(Balancing.FEWEST_TOKENS)
    bench = make_bench(instance)
    winner = bench.candidate(colocated(instance, 3))
    assert winner.held
    other = by_requests(bench, winner)
    assert other is not None
    assert {one.router for one in other.judgement.engines.pools} == {Router.LEAST_LOADED}
    for mine, theirs in zip(other.judgement.runs, winner.judgement.runs, strict=True):
        assert mine.demand is theirs.demand
        assert not np.array_equal(mine.result.ttft, theirs.result.ttft)
    assert not other.held or other.judgement.proven


def test_one_engine_and_routers_that_count_requests_are_not_served_twice() -> None:
    for balancing, replicas in ((Balancing.FEWEST_TOKENS, 1), (Balancing.FEWEST_REQUESTS, 3)):
        bench = make_bench(served(balancing))
        winner = bench.candidate(colocated(bench.instance, replicas))
        assert by_requests(bench, winner) is None


def simulated(plan: Plan, counted: JudgedFleet | None) -> Plan:
    """The plan with some simulation, which says this of a router that counts requests."""
    shown = with_simulation(load("disaggregated")).simulation
    assert shown is not None
    return plan.model_copy(update={"simulation": shown.model_copy(update={"fewest_requests": counted})})


def judged(*, held: bool) -> JudgedFleet:
    share = 0.97 if held else 0.84
    return JudgedFleet(
        what="router: counts requests",
        pools=[],
        cost_usd_per_hour=1.0,
        held=held,
        overloaded=False,
        attainment={one.name: share for one in load("disaggregated").classes},
    )


def test_files_for_a_router_that_counts_requests_need_a_proof() -> None:
    plan = plan_of(THREE)
    assert "router.sh" in deployment_files(simulated(plan, judged(held=True)), options("vllm"))
    with pytest.raises(InputError, match=r"\(84 % of chat \(95 % asked\)\); .*; or choose --target llmd, "):
        deployment_files(simulated(plan, judged(held=False)), options("vllm"))
    with pytest.raises(InputError, match=r"was not simulated; plan again with pdplan optimize --target vllm"):
        deployment_files(simulated(plan, None), options("vllm"))


def test_a_router_that_counts_tokens_and_a_single_engine_need_none() -> None:
    failed = judged(held=False)
    picker = deployment_files(simulated(plan_of(THREE), failed), options("llmd"))["epp-config.yaml"]
    assert "token-load-scorer" in picker
    alone = plan_of((Case("colocated", tokens=8192),))
    assert "router.sh" in deployment_files(simulated(alone, failed), options("vllm"))


def test_llm_d_counts_requests_where_the_plan_does() -> None:
    plan = plan_of(THREE)
    source = plan.provenance.model_copy(update={"inputs": plan.provenance.inputs | COUNTS_REQUESTS})
    picker = deployment_files(plan.model_copy(update={"provenance": source}), options("llmd"))["epp-config.yaml"]
    assert "token-load-scorer" not in picker
    assert "active-request-scorer" in picker


def test_the_sentence_says_what_is_kept_and_what_to_do() -> None:
    plan = load("disaggregated")
    assert router_sentence(simulated(plan, None)) == ""
    assert router_sentence(simulated(plan, judged(held=True))) == (
        "Also meets the SLO behind a least-requests router (vLLM's default): 97 % of chat (95 % asked)."
    )
    assert router_sentence(simulated(plan, judged(held=False))).startswith("Not shown to meet the SLO behind a least-")
    told = deploy_sentence(simulated(plan_of(THREE), judged(held=False)))
    assert told.startswith("Deploy: with llm-d")
    assert told.count("where the plan is not shown to meet the SLO") == 1


def test_readers_are_told_where_prefixes_are_not_kept_together() -> None:
    """As seen in front of mock engines: SGLang's router keeps them together for colocated engines only."""
    pair = (Case("prefill", replicas=2, seqs=8, tokens=8192), Case("decode"))
    for engine, pools, told in (
        ("vllm", THREE, True),
        ("vllm", pair, True),
        ("sglang", pair, True),
        ("sglang", THREE, False),
        ("trtllm", pair, True),
        ("vllm", (Case("colocated", tokens=8192),), False),
    ):
        for prefix in (0.0, 0.3):
            files = deployment_files(plan_of(pools, Ask(engine=engine, prefix=prefix)), options(engine))
            assert ("common prefix may go to different replicas" in files["README.md"]) == (told and prefix > 0.0)


def test_the_readme_promises_what_the_target_s_router_reaches() -> None:
    plan = simulated(plan_of(THREE), judged(held=True))
    shown = plan.simulation
    assert shown is not None
    assert shown.fewest_requests is not None
    slower = Quantiles(p50=1.234, p90=2.345, p95=3.0, p99=4.567)
    only = plan.classes[0]
    row = SimulatedLatencies(name=only.name, attainment=0.95, ttft_s=slower, tpot_s=slower)
    counted = shown.fewest_requests.model_copy(update={"latencies": [row]})
    found = shown.model_copy(update={"fewest_requests": counted})
    plan = plan.model_copy(update={"simulation": found, "classes": [only]})
    for target, told in (("vllm", True), ("llmd", False)):
        readme = deployment_files(plan, options(target))["README.md"]
        assert ("| p99 | 4.57 s | 4.57 s |" in readme) == told
        assert ("predicted: 95 %" in readme) == told
        assert ("--plan plan.json --balancing fewest_requests" in readme) == told
    assert behind(plan, Balancing.FEWEST_TOKENS) is plan
    assert behind(plan, Balancing.FEWEST_REQUESTS).ttft_s == slower
    assert behind(plan_of(THREE), Balancing.FEWEST_REQUESTS) == plan_of(THREE)  # nothing was simulated


def test_the_router_of_a_promise_goes_with_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--balancing", "fewest_requests"]) == 2
    assert "--balancing goes with --plan" in capsys.readouterr().err
