"""The fleet that the search finds is evaluated anew, at the loads that it really has: it must hold its goals."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.engine import Role
from costmodel.queues.prefill import Prompts, prompt_wait
from optimizer.fleets.evaluate import Evaluation, evaluate, goodput_volume
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.search.mixtures import leanest
from optimizer.search.search import evaluated
from search_spaces.problem import Constraints
from tests.optimizer_cases import instance_of, limit, model, offer, problem, slo, space, workload

CHAT = ((200.0, 300.0, 0.5), (2000.0, 200.0, 0.4), (12000.0, 400.0, 0.1))
CODE = ((4000.0, 20.0, 0.7), (8000.0, 100.0, 0.3))
ONE_TOKEN = ((1000.0, 1.0, 0.6), (3000.0, 50.0, 0.4))
LARGE = space(tensor_parallel=(1, 2, 4, 8), max_num_seqs=(16, 64, 256), max_num_batched_tokens=(512, 2048, 8192))
EXPERTS = replace(LARGE, expert_parallel=(1, 8), data_parallel=(1, 8))
APART = replace(LARGE, roles=(Role.PREFILL, Role.DECODE))
TWO = (slo(0.8, 0.04, 0.95, name="chat", share=0.7), slo(5.0, 0.15, 0.9, name="batch", share=0.3))
LLAMA_70B, MIXTRAL, DEEPSEEK = model("Llama-3.1-70B"), model("Mixtral-8x7B"), model("DeepSeek-V3")
BOTH = (offer("H100"), offer("L40S"))

PROBLEMS = {
    "trickle": problem(workload=workload(0.5, CHAT, max_tokens=16000), space=LARGE),
    "flood": problem(workload=workload(200.0, CODE), offers=BOTH, space=LARGE),
    "tight": problem(workload=workload(20.0, CHAT, max_tokens=16000), slos=(slo(1.0, 0.02, 0.99),), space=LARGE),
    "loose": problem(workload=workload(60.0, CHAT, max_tokens=16000), slos=(slo(10.0, 0.2, 0.9),), space=LARGE),
    "bursty": problem(workload=workload(30.0, CODE, burstiness=3.0), offers=BOTH, space=LARGE),
    "mildly bursty, apart": problem(workload=workload(80.0, CHAT, burstiness=1.5, max_tokens=16000), space=APART),
    "clockwork": problem(workload=workload(20.0, CODE, burstiness=0.5), space=LARGE),
    "prefix cache": problem(workload=workload(40.0, CODE, prefix_hit_share=0.6), space=APART),
    "two classes": problem(workload=workload(50.0, CODE), slos=TWO, offers=BOTH, space=LARGE),
    "end to end": problem(workload=workload(20.0, CHAT, max_tokens=16000), slos=(slo(2.0, e2e=12.0),), space=LARGE),
    "one token": problem(workload=workload(30.0, ONE_TOKEN), space=LARGE),
    "one bucket": problem(workload=workload(25.0, ((1000.0, 100.0, 1.0),)), space=APART),
    "70B": problem(model=LLAMA_70B, workload=workload(15.0, CODE), slos=TWO, offers=(offer("H200"),), space=LARGE),
    "mixtral": problem(model=MIXTRAL, workload=workload(25.0, CODE, burstiness=2.0), offers=BOTH, space=LARGE),
    "deepseek": problem(
        model=DEEPSEEK,
        weight_dtype="fp8",
        workload=workload(10.0, CHAT, max_tokens=16000),
        slos=(slo(3.0, 0.1, 0.9),),
        offers=(offer("H200"),),
        space=EXPERTS,
    ),
    "two makers": problem(workload=workload(30.0, CHAT, max_tokens=16000), offers=(offer("MI300X"), offer("L40S"))),
    "spares": problem(workload=workload(40.0, CODE), constraints=Constraints(spare_replicas=2), space=LARGE),
}


@cache
def fleet_of(name: str) -> tuple[Instance, Fleet, Evaluation]:
    """The cheapest fleet and its evaluation."""
    instance = instance_of(PROBLEMS[name])
    fleet = leanest(evaluated(instance))
    assert fleet.pools
    return instance, fleet, evaluate(instance, fleet)


@pytest.mark.parametrize("name", PROBLEMS)
class TestTheFleetFound:
    def test_requests_in_are_requests_out(self, name: str) -> None:
        instance, fleet, result = fleet_of(name)
        prompts = sum(pool.route for pool in fleet.pools if pool.role is not Role.DECODE)
        np.testing.assert_allclose(prompts, 1.0, atol=1e-6)
        tokens = sum(pool.route for pool in fleet.pools if pool.role is not Role.PREFILL)
        np.testing.assert_allclose(tokens, 1.0, atol=1e-6)
        rate = sum(state.rate for pool, state in zip(fleet.pools, result.states, strict=True) if pool.role != "decode")
        np.testing.assert_allclose(rate, instance.flows.rate, rtol=1e-6)

    def test_attainment_is_the_mean_over_the_flows_of_a_class(self, name: str) -> None:
        instance, _, result = fleet_of(name)
        flows, classes = instance.flows, instance.problem.slos
        for k in range(len(classes)):
            mine = flows.slo == k
            mean = np.average(result.flow_attainment[mine], weights=flows.share[mine])
            assert result.attainment[k] == pytest.approx(mean)
        shares = [one.share for one in classes]
        assert result.overall == pytest.approx(np.average(result.attainment, weights=shares))
        assert ((result.flow_attainment >= 0.0) & (result.flow_attainment <= 1.0)).all()

    def test_goodput_is_at_least_the_demand_and_marks_the_edge(self, name: str) -> None:
        instance, fleet, _ = fleet_of(name)
        volume = goodput_volume(instance, fleet)
        assert volume >= 1.0
        assert evaluate(instance, fleet, volume).holds
        assert not evaluate(instance, fleet, volume * 1.01).holds

    def test_more_load_is_never_better(self, name: str) -> None:
        instance, fleet, _ = fleet_of(name)
        attained = [evaluate(instance, fleet, volume).overall for volume in (0.25, 0.5, 1.0, 1.5, 2.5, 5.0)]
        assert (np.diff(attained) <= 1e-5).all()  # one request in 100,000


def one_flow(rate: float, **changes: float) -> Instance:
    """Prompts of 1000 tokens and 100 to generate, on single H100."""
    return instance_of(
        problem(
            workload=workload(rate, ((1000.0, 100.0, 1.0),), **changes),
            space=space(tensor_parallel=(1,), max_num_seqs=(256,)),
        )
    )


def pair(instance: Instance, prefill: int, decode: int) -> Fleet:
    """Engines for prompts and engines for tokens."""
    share, seqs = np.ones(1), limit(instance, 0)
    return Fleet(
        (
            FleetPool("prefill-1", Role.PREFILL, 0, seqs, 0, prefill, 0, share),
            FleetPool("decode-1", Role.DECODE, 0, seqs, 0, decode, 0, share),
        )
    )


class TestByHand:
    def test_one_prefill_engine_waits_as_its_prompts_do(self) -> None:
        """The pool's wait is that of `prompt_wait` for its prompts, alone and in full steps."""
        instance = one_flow(8.0)
        tables = instance.tables
        state = evaluate(instance, pair(instance, 1, 1)).states[0]
        alone, shared = tables.prefill_time[0, -1], tables.prefill_shared[0, -1]
        assert 0.1 < 8.0 * float(alone[0]) < 0.9
        assert float(shared[0]) < float(alone[0])
        full = float(shared[0]) * tables.chunks[-1] / 1000.0
        expected = prompt_wait(Prompts(np.array([8.0]), alone, shared, full, 1.0, 1.0))
        assert state.wait is not None
        assert state.wait.chance == pytest.approx(expected.chance)
        np.testing.assert_allclose(state.wait.late, expected.late)
        np.testing.assert_allclose(state.latency, alone)

    def test_the_first_token_also_waits_for_the_hand_over_and_a_step(self) -> None:
        """The rest of the decode step in progress, one that loads the KV, and the first own one.

        The step in progress is met at any time; the cards hardly hold up, and loading hides the transfer.
        """
        instance = one_flow(2.0)
        tables = instance.tables
        result = evaluate(instance, pair(instance, 1, 1))
        queue, decode = result.states
        moved = float(tables.kv_transferred[0, 0]) / float(tables.link[0])
        assert moved == pytest.approx(1000 * 2 * 32 * 8 * 128 * 2 / 50e9)  # KV of Llama-3.1-8B over a 400 Gbit/s card
        assert decode.steps is not None
        running = 1.0 - math.exp(-decode.running)
        loading = decode.steps.quiet
        fixed = 0.0185 + 0.0781  # of vLLM: arrival and hand-over
        alone = fixed + float(queue.latency[0]) + max(moved - running * loading, 0.0) + decode.steps.quiet
        assert running > 0.7
        # those who find the engine busy come last: the median is that of 0.5 / (1 - rho) of those who do not
        rest = decode.steps.quiet * max(0.5 / (1.0 - queue.utilization) - (1.0 - running), 0.0) / running
        assert result.ttft[-1, 0] == pytest.approx(alone + loading + rest, abs=0.1 * decode.steps.quiet)

    def test_a_decode_engine_obeys_littles_law(self) -> None:
        """running = rate x osl x step, and step = base(running) + running x slope."""
        instance = one_flow(8.0)
        tables = instance.tables
        fleet = pair(instance, 1, 2)
        state, pool = evaluate(instance, fleet).states[1], fleet.pools[1]
        assert state.running == pytest.approx(4.0 * 100.0 * state.step, rel=1e-6)
        base = float(np.interp(state.running, tables.seqs, tables.decode_base[0]))
        assert state.step == pytest.approx(base + state.running * float(tables.attention_slope[0, 0]), rel=1e-6)
        capacity = tables.kv_capacity[0, pool.seqs, pool.chunk]
        assert state.memory == pytest.approx(state.running * tables.kv_held[0, 0] / capacity, rel=1e-6)

    def test_a_request_meets_steps_that_hold_it_too(self) -> None:
        """Its tokens come at the step of a batch of one more than the mean; for whole bursts, of more."""
        instance = one_flow(8.0)
        result = evaluate(instance, pair(instance, 1, 1))
        base = instance.tables.decode_base[0]  # in which each request more is one token more to compute
        one = float(instance.tables.attention_slope[0, 0] + base[1] - base[0])
        assert result.tpot[-1, 0] == pytest.approx(result.states[1].step + one, rel=1e-5)
        bursty = instance_of(replace(instance.problem, workload=replace(instance.problem.workload, burstiness=3.0)))
        assert evaluate(bursty, pair(instance, 1, 1)).tpot[-1, 0] == pytest.approx(
            result.states[1].step + 5.0 * one, rel=1e-5
        )

    def test_slots_of_all_engines_are_one_pool(self) -> None:
        """As busy, eight engines run out of slots far less often than one."""
        instance = instance_of(
            problem(
                workload=workload(1.0, ((1000.0, 100.0, 1.0),)), space=space(tensor_parallel=(1,), max_num_seqs=(8,))
            )
        )
        alone = evaluate(instance, pair(instance, 1, 1), 8.0).states[1]
        together = evaluate(instance, pair(instance, 8, 8), 64.0).states[1]
        assert together.running == pytest.approx(alone.running)
        assert 1e-3 < alone.full < 1.0
        assert together.full < alone.full / 10.0

    def test_overload_attains_nothing(self) -> None:
        instance = one_flow(500.0)
        result = evaluate(instance, pair(instance, 1, 1))
        assert not result.stable
        assert not result.holds
        assert result.overall == 0.0
