"""The conformance suite of scheduling policies: what each of them must do on any workload."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.simulator_cases import STEPS, colocated, random_fleet, random_trace

# isort: split
from costmodel.policy import POLICIES, STATIC, VLLM_V0, Policy
from costmodel.simulator import FirstToken, Fleet, Limits, Result, Trace, make_trace, simulate, step_seconds
from costmodel.simulator.loop import run_loop
from costmodel.simulator.run import make_world

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
either_way = pytest.mark.parametrize("disaggregated", [False, True], ids=["colocated", "disaggregated"])
TIMES = ("arrival", "prompt_start", "prompt_end", "moved", "first", "finish", "itl_max")


def assert_same(ours: Result, theirs: Result) -> None:
    """Jumps change nothing but rounding; what is counted in whole numbers, and work, not even that."""
    for name in TIMES:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-12, err_msg=name)
    for name in ("restarts", "engine", "decode_engine", "hit"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for use, other in zip(ours.engines, theirs.engines, strict=True):
        mine, steps = dataclasses.asdict(use), dataclasses.asdict(other)
        for name in ("busy", "kv_block_seconds"):
            assert mine.pop(name) == pytest.approx(steps.pop(name), rel=1e-9, abs=1e-12)
        assert mine == steps


def assert_conserved(trace: Trace, fleet: Fleet, result: Result) -> None:
    """Requests, tokens and blocks: all that were there at the begin are there at the end."""
    assert int(result.finished.sum()) + sum(use.rejected for use in result.engines) == trace.size
    world = make_world(trace, fleet)
    run_loop(world, float("inf"))
    pools = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    for engine, pool in zip(world["engines"].view(np.recarray), pools, strict=True):
        assert (engine.free, engine.promised) == (pool.limits.kv_blocks, 0)
        assert (engine.requests, engine.uncomputed, engine.coming) == (0, 0, 0)
        assert world["chains"][engine.gate].tolist() == world["chains"][engine.waiting].tolist() == (-1, -1)
        if trace.pages is not None and engine.cache >= 0:
            count = int(trace.pages.ids.max()) + 1
            listed, *references = world["cached"]["references"][engine.cache :][: count + 1].tolist()
            assert max(references) <= 0
            assert references.count(0) == listed
            assert listed * engine.page_blocks <= engine.free
    if result.finished.all() and not result.restarts.any():
        split = len(fleet.pools) == 2
        made = 0 if split and fleet.hand_over.first_token is not FirstToken.PREFILL else 1
        assert sum(use.decode_tokens for use in result.engines) >= int((trace.osl - made).sum())
        if not fleet.pools[0].policy.static:
            assert sum(use.decode_tokens for use in result.engines) == int((trace.osl - made).sum())
        assert sum(use.output_tokens for use in result.engines) >= int(trace.osl.sum()) - split * trace.size
        assert sum(use.prompt_tokens for use in result.engines) == int((trace.isl - result.hit).sum())


def assert_limits(trace: Trace, fleet: Fleet, result: Result) -> None:
    """Steps keep to budget, sequences and blocks, and times come in order."""
    pool, longest = fleet.pools[0], float(trace.isl.max() + trace.osl.max())
    budget = pool.limits.max_num_batched_tokens
    _, start, end, prompts, decodes, _, steps = result.steps_log.T
    assert np.all(end >= start)
    assert np.all(steps >= 1)
    assert np.all(decodes <= pool.limits.max_num_seqs)
    shared = 0.0 if pool.policy.exclusive_prefill else decodes
    assert np.all(prompts + shared <= (budget if pool.policy.chunked else max(budget, longest)))
    assert not (pool.policy.exclusive_prefill and np.any((prompts > 0) & (decodes > 0)))
    assert all(use.peak_blocks <= pool.limits.kv_blocks for use in result.engines)
    ended = result.finished
    for earlier, later in (("arrival", "prompt_start"), ("prompt_start", "prompt_end"), ("first", "finish")):
        assert np.all(getattr(result, earlier)[ended] <= getattr(result, later)[ended])
    gaps = trace.osl - (0 if fleet.hand_over.first_token is FirstToken.REPEATED else 1)
    assert np.all((result.itl_max * gaps)[ended] >= (result.finish - result.first)[ended] * (1 - 1e-9))


@every_policy
@either_way
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000), paged=st.booleans())
@example(seed=763, paged=False)  # preempted before its first decode step, it goes on in another micro-batch
def test_jumps_conservation_and_limits(policy: Policy, disaggregated: bool, seed: int, paged: bool) -> None:
    """Pull or push, NICs, layers, data-parallel lanes, stages, prefix caches and store, round robins of decodes."""
    paged = paged and not policy.static
    trace, fleet = random_trace(seed, paged=paged), random_fleet(seed, policy, disaggregated, paged=paged)
    result = simulate(trace, fleet, log_rows=100_000)
    assert_same(result, simulate(trace, fleet, fast_forward=False))
    assert_conserved(trace, fleet, result)
    assert_limits(trace, fleet, result)
    again = simulate(trace, fleet)
    assert again.finish.tobytes() == result.finish.tobytes()


@every_policy
@either_way
def test_doubling_every_time_doubles_every_latency(policy: Policy, disaggregated: bool) -> None:
    trace, fleet = random_trace(3), random_fleet(3, policy, disaggregated)
    slow = dataclasses.replace(
        STEPS, **{name: tuple(2 * x for x in getattr(STEPS, name)) for name in ("prefill_abc", "small", "large")}
    )
    pools = tuple(
        dataclasses.replace(pool, steps=slow, kv_seconds_per_token=2 * pool.kv_seconds_per_token)
        for pool in fleet.pools
    )
    fleet = dataclasses.replace(fleet, pools=tuple(dataclasses.replace(pool, steps=STEPS) for pool in fleet.pools))
    late = dataclasses.replace(trace, arrival=2 * trace.arrival)
    hand_over = dataclasses.replace(fleet.hand_over, latency=2 * fleet.hand_over.latency)
    quick, twice = simulate(trace, fleet), simulate(late, Fleet(pools, hand_over))
    for name in ("ttft", "e2e", "tpot", "itl_max", "queue"):
        np.testing.assert_array_equal(getattr(twice, name), 2 * getattr(quick, name), err_msg=name)


@every_policy
def test_a_lone_request_takes_its_steps_and_no_more(policy: Policy) -> None:
    result = simulate(make_trace(np.array([1.0]), np.array([100]), np.array([5])), colocated(policy))
    decodes = sum(step_seconds(STEPS, (), None, 1, 101 + k) for k in range(4))
    assert result.ttft[0] == pytest.approx(5e-3 + 2e-5 * 100 + 1e-9 * 100**2, rel=1e-12)
    assert result.e2e[0] == pytest.approx(float(result.ttft[0]) + decodes, rel=1e-12)
    assert result.steps == 5


def test_policies_differ_where_they_should() -> None:
    """A long prompt that comes into a running batch stalls it whole (prompts first) or by chunks."""
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
    trace = make_trace(np.zeros(3), np.array([10, 10, 10]), np.array([2, 100, 2]))
    static, continuous = (
        simulate(trace, colocated(policy, limits=Limits(max_num_seqs=2))) for policy in (STATIC, VLLM_V0)
    )
    assert static.prompt_start[2] == pytest.approx(static.finish[1])
    assert continuous.prompt_start[2] == pytest.approx(continuous.finish[0])


@pytest.mark.parametrize(("policy", "least", "most"), [("trtllm", 0, 0), ("sarathi", 5, 40)])
def test_only_policies_that_promise_blocks_never_preempt(policy: str, least: int, most: int) -> None:
    preempting = [
        simulate(random_trace(seed), random_fleet(seed, POLICIES[policy], disaggregated=False)).restarts.any()
        for seed in range(40)
    ]
    assert least <= sum(preempting) <= most
