"""The conformance suite of scheduling policies: what each of them must do on any workload."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.simulator_cases import STEPS, colocated, random_fleet, random_trace

# isort: split
from costmodel.engine import Role
from costmodel.simulator import POLICIES, FirstToken, Fleet, Policy, Result, simulate, step_seconds
from costmodel.simulator.loop import run_loop
from costmodel.simulator.run import make_world

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
either_way = pytest.mark.parametrize("disaggregated", [False, True], ids=["colocated", "disaggregated"])
seeds = given(seed=st.integers(0, 10_000))
few = settings(deadline=None, max_examples=6)


def same(ours: Result, theirs: Result, relative: float) -> None:
    for name in ("arrival", "prompt_start", "prompt_end", "moved", "first", "finish", "itl_max"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=relative, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(ours.restarts, theirs.restarts)
    np.testing.assert_array_equal(ours.engine, theirs.engine)
    assert ours.steps == theirs.steps


@every_policy
@either_way
@few
@seeds
def test_fast_forward_equals_step_by_step(policy: Policy, disaggregated: bool, seed: int) -> None:
    trace, fleet = random_trace(seed), random_fleet(seed, policy, disaggregated)
    same(simulate(trace, fleet), simulate(trace, fleet, fast_forward=False), 1e-9)


@every_policy
@either_way
@few
@seeds
def test_requests_tokens_and_blocks_are_conserved(policy: Policy, disaggregated: bool, seed: int) -> None:
    trace, fleet = random_trace(seed), random_fleet(seed, policy, disaggregated)
    result = simulate(trace, fleet)
    rejected = sum(engine.rejected for engine in result.engines)
    assert int(result.finished.sum()) + rejected == trace.size
    world = make_world(trace, fleet)
    run_loop(world, float("inf"))
    pools = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    for engine, pool in zip(world["engines"].view(np.recarray), pools, strict=True):
        assert engine.free == pool.limits.kv_blocks
        assert engine.promised == 0
        assert (engine.requests, engine.tokens, engine.prompt_tokens) == (0, 0, 0)
    done = result.finished & (result.restarts == 0)
    if done.all():
        from_prompt = fleet.hand_over.first_token is FirstToken.PREFILL or not disaggregated
        made = sum(engine.decode_tokens for engine in result.engines)
        assert made == int((trace.osl - from_prompt).sum())
        assert sum(engine.prompt_tokens for engine in result.engines) == int(trace.isl.sum())


@every_policy
@few
@seeds
def test_steps_keep_to_the_limits(policy: Policy, seed: int) -> None:
    trace, fleet = random_trace(seed), random_fleet(seed, policy, disaggregated=False)
    result = simulate(trace, fleet, log_rows=100_000)
    limits = fleet.pools[0].limits
    for _lane, start, end, prompt_tokens, decodes, _context, steps in result.steps_log:
        assert end >= start
        assert steps >= 1
        assert decodes <= limits.max_num_seqs
        shared = 0 if policy.exclusive_prefill else decodes
        longest = float(trace.isl.max() + trace.osl.max())
        most = limits.max_num_batched_tokens if policy.chunked else max(limits.max_num_batched_tokens, longest)
        assert prompt_tokens + shared <= most
        assert not (policy.exclusive_prefill and prompt_tokens and decodes)
    assert all(engine.peak_blocks <= limits.kv_blocks for engine in result.engines)


@every_policy
@few
@seeds
@example(seed=763)  # a request is preempted before its first decode step and goes on in another micro-batch
def test_times_are_in_order(policy: Policy, seed: int) -> None:
    fleet = random_fleet(seed, policy, disaggregated=True)
    result = simulate(random_trace(seed), fleet)
    ok = result.finished
    for earlier, later in (("arrival", "prompt_start"), ("prompt_start", "prompt_end"), ("first", "finish")):
        assert np.all(getattr(result, earlier)[ok] <= getattr(result, later)[ok])
    gaps = result.trace.osl - (0 if fleet.hand_over.first_token is FirstToken.REPEATED else 1)
    assert np.all((result.itl_max * gaps)[ok] >= (result.finish - result.first)[ok] * (1 - 1e-9))


@every_policy
def test_same_seed_same_bytes(policy: Policy) -> None:
    runs = [simulate(random_trace(5), random_fleet(5, policy, disaggregated=True)) for _ in range(2)]
    assert runs[0].finish.tobytes() == runs[1].finish.tobytes()
    assert runs[0].itl_max.tobytes() == runs[1].itl_max.tobytes()


@every_policy
@either_way
def test_doubling_every_time_doubles_every_latency(policy: Policy, disaggregated: bool) -> None:
    trace, fleet = random_trace(3), random_fleet(3, policy, disaggregated)

    def twice(values: tuple[float, ...]) -> tuple[float, float, float]:
        a, b, c = values
        return 2 * a, 2 * b, 2 * c

    slow = dataclasses.replace(
        STEPS, prefill_abc=twice(STEPS.prefill_abc), small=twice(STEPS.small), large=twice(STEPS.large)
    )
    pools = tuple(
        dataclasses.replace(
            pool,
            steps=slow,
            kv_seconds_per_token=2 * pool.kv_seconds_per_token,
        )
        for pool in fleet.pools
    )
    late = dataclasses.replace(trace, arrival=2 * trace.arrival)
    hand_over = dataclasses.replace(fleet.hand_over, latency=2 * fleet.hand_over.latency)
    one, two = simulate(trace, fleet), simulate(late, Fleet(pools, hand_over))
    for name in ("ttft", "e2e", "tpot", "itl_max", "queue"):
        np.testing.assert_array_equal(getattr(two, name), 2 * getattr(one, name), err_msg=name)


@every_policy
def test_a_lone_request_takes_its_steps_and_no_more(policy: Policy) -> None:
    from costmodel.simulator import make_trace

    trace = make_trace(np.array([1.0]), np.array([100]), np.array([5]))
    result = simulate(trace, colocated(policy))
    a, b, c = STEPS.prefill_abc
    prompt = a + b * 100 + c * 100**2
    decodes = sum(step_seconds(STEPS, (), None, 1, 101 + k) for k in range(4))
    assert result.ttft[0] == pytest.approx(prompt, rel=1e-12)
    assert result.e2e[0] == pytest.approx(prompt + decodes, rel=1e-12)
    assert result.steps == 5


def test_policies_differ_where_they_should() -> None:
    """A long prompt that comes into a running batch stalls it whole (prompts first) or by chunks."""
    from costmodel.simulator import Limits, make_trace

    trace = make_trace(np.array([0.0, 0.2]), np.array([100, 4000]), np.array([200, 2]))
    limits = Limits(max_num_seqs=16, max_num_batched_tokens=256)
    gaps = {
        name: float(simulate(trace, colocated(policy, limits=limits)).itl_max[0]) for name, policy in POLICIES.items()
    }
    assert gaps["vllm_v1"] == pytest.approx(gaps["sarathi"])
    assert gaps["static"] < gaps["vllm_v1"] < gaps["vllm_v0"] / 4
    assert gaps["sglang"] > 0.5 * gaps["vllm_v0"]
    assert gaps["trtllm"] == pytest.approx(gaps["vllm_v1"])


def test_static_batches_wait_for_their_longest() -> None:
    from costmodel.simulator import STATIC, VLLM_V0, make_trace

    trace = make_trace(np.zeros(3), np.array([10, 10, 10]), np.array([2, 100, 2]))
    from costmodel.simulator import Limits

    limits = Limits(max_num_seqs=2)
    static, continuous = (simulate(trace, colocated(policy, limits=limits)) for policy in (STATIC, VLLM_V0))
    assert static.prompt_start[2] == pytest.approx(static.finish[1])
    assert continuous.prompt_start[2] == pytest.approx(continuous.finish[0])


def test_guaranteed_no_eviction_never_preempts() -> None:
    for seed in range(40):
        result = simulate(random_trace(seed), random_fleet(seed, POLICIES["trtllm"], disaggregated=False))
        assert result.restarts.sum() == 0


def test_preemption_happens_and_costs() -> None:
    fleet = random_fleet(1, POLICIES["sarathi"], disaggregated=False)
    hit = [
        seed
        for seed in range(30)
        if simulate(random_trace(seed), random_fleet(seed, POLICIES["sarathi"], disaggregated=False)).restarts.sum()
    ]
    assert fleet.pools[0].role is Role.COLOCATED
    assert len(hit) >= 5
