"""Disaggregation in detail: several NICs, pulled KV, bounds on what comes in, and all of it together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator_cases import ONLY_PROMPTS, random_fleet, random_trace
from tests.simulator_paged import random_paged, random_paged_fleet

# isort: split
from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.simulator import (
    POLICIES,
    VLLM_V1,
    CoefficientSteps,
    Fleet,
    HandOver,
    Limits,
    Policy,
    Pool,
    Trace,
    make_trace,
    simulate,
)
from costmodel.simulator.loop import run_loop
from costmodel.simulator.run import make_world

FLAT = CoefficientSteps((0.1, 0.0, 0.0), (0.01, 0.0, 0.0))
"""Every prompt step takes 100 ms, every decode step 10 ms."""


def trace_of(arrival: list[float], isl: int = 100, osl: int = 3) -> Trace:
    count = len(arrival)
    return make_trace(np.array(arrival), np.full(count, isl), np.full(count, osl))


def split(hand_over: HandOver, nics: tuple[int, int] = (1, 1), decode: Limits | None = None) -> Fleet:
    """A millisecond per token on all NICs of an engine together."""
    one = Pool(Role.PREFILL, FLAT, ONLY_PROMPTS, kv_seconds_per_token=1e-3, nics=nics[0])
    other = Pool(Role.DECODE, FLAT, VLLM_V1, decode or Limits(), kv_seconds_per_token=1e-3, nics=nics[1])
    return Fleet((one, other), hand_over)


@pytest.mark.parametrize(
    ("nics", "expected"), [((1, 1), [0.1, 0.2, 0.3]), ((2, 2), [0.2, 0.2, 0.4]), ((1, 2), [0.2, 0.4, 0.6])]
)
def test_hand_overs_go_side_by_side_over_several_nics(nics: tuple[int, int], expected: list[float]) -> None:
    """A NIC of two has half of the bandwidth; where one end has one NIC only, the transfers follow each other."""
    result = simulate(trace_of([0.0] * 3), split(HandOver(), nics))
    np.testing.assert_allclose(np.sort(result.transfer), expected)


def test_a_full_decode_engine_pulls_when_it_has_room() -> None:
    """One sequence only: the second request's KV stays until the first has ended, and is sent only then."""
    hand_over = HandOver(pull=True)
    result = simulate(trace_of([0.0, 0.0]), split(hand_over, decode=Limits(max_num_seqs=1)))
    np.testing.assert_allclose(result.finish, [0.1 + 0.1 + 0.03, 0.23 + 0.1 + 0.03])
    pushed = simulate(trace_of([0.0, 0.0]), split(HandOver(), decode=Limits(max_num_seqs=1)))
    np.testing.assert_allclose(pushed.finish, [0.23, 0.3 + 0.03])


def test_a_pulled_request_decodes_in_the_step_after_the_one_that_loads_it() -> None:
    """The second prompt ends at 0.2 s, in the middle of a step of the first request, and its KV takes 1 ms.

    Sent at once it is there for the step that begins at 0.206 s; pulled, that step loads it and the next has it.
    """
    trace = make_trace(np.array([0.0, 0.1]), np.full(2, 100), np.array([50, 3]))
    ends = {}
    for pull in (False, True):
        fleet = split(HandOver(pull=pull))
        quick = tuple(replace(pool, kv_seconds_per_token=1e-5) for pool in fleet.pools)
        late = replace(quick[1], steps=CoefficientSteps((0.1, 0.0, 0.0), (0.015, 0.0, 0.0)))
        ends[pull] = simulate(trace, replace(fleet, pools=(quick[0], late))).first[1]
    assert ends[False] == pytest.approx(0.101 + 7 * 0.015 + 0.015)
    assert ends[True] == pytest.approx(ends[False] + 0.015)


def test_staged_kv_keeps_its_blocks_on_the_prefill_side() -> None:
    """Blocks for one prompt on the prefill engine: the third waits until the second one was pulled."""
    fleet = split(HandOver(pull=True), decode=Limits(max_num_seqs=1))
    small = replace(fleet.pools[0], limits=Limits(kv_blocks=10))
    result = simulate(trace_of([0.0] * 3), replace(fleet, pools=(small, fleet.pools[1])))
    assert result.prompt_start[1] == pytest.approx(result.moved[0])
    assert result.prompt_start[2] == pytest.approx(result.moved[1])
    assert result.moved[1] == pytest.approx(result.finish[0] + 0.1) or result.moved[1] > result.finish[0]


def test_pulled_blocks_are_reserved() -> None:
    """Blocks for one request of 103 tokens, sequences for many: the second is pulled when the first has ended."""
    result = simulate(trace_of([0.0, 0.0]), split(HandOver(pull=True), decode=Limits(kv_blocks=10)))
    np.testing.assert_allclose(np.sort(result.finish), [0.23, 0.36])
    assert result.engines[1].peak_blocks == 7


def test_a_bound_holds_hand_overs_back() -> None:
    """At most one may come: the second is sent when the first has been admitted, and pays its whole transfer."""
    bound = simulate(trace_of([0.0, 0.0]), split(HandOver(max_coming=1, layers=10), (2, 2)))
    np.testing.assert_allclose(np.sort(bound.moved), [0.1 + 0.2 - 0.9 * 0.1, 0.21 + 0.2])
    free = simulate(trace_of([0.0, 0.0]), split(HandOver(max_coming=2, layers=10), (2, 2)))
    np.testing.assert_allclose(free.moved, [0.21, 0.21])
    open_ = simulate(trace_of([0.0, 0.0]), split(HandOver(layers=10), (2, 2)))
    np.testing.assert_allclose(open_.moved, free.moved)


def test_requests_too_long_to_decode_pass_the_gate_and_are_rejected() -> None:
    trace = make_trace(np.zeros(2), np.array([400, 50]), np.array([2, 2]))
    result = simulate(trace, split(HandOver(pull=True, max_coming=1), decode=Limits(kv_blocks=10)))
    assert result.finished.tolist() == [False, True]
    assert result.engines[1].rejected == 1


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    pull=st.booleans(),
    bound=st.integers(0, 4),
    layers=st.integers(1, 8),
    paged=st.booleans(),
)
def test_everything_together_conserves_blocks(
    policy: Policy, seed: int, pull: bool, bound: int, layers: int, paged: bool
) -> None:
    """Pull or push, bounds, NICs, layers, prefix caches and store, jumps or single steps."""
    paged = paged and not policy.static
    trace = random_paged(seed) if paged else random_trace(seed)
    fleet = (random_paged_fleet if paged else random_fleet)(seed, policy, True)
    nics = np.random.default_rng([seed, 14]).integers(1, 4, 2)
    pools = tuple(
        replace(pool, nics=int(count), kv_seconds_per_token=1e-5) for pool, count in zip(fleet.pools, nics, strict=True)
    )
    fleet = replace(fleet, pools=pools, hand_over=replace(fleet.hand_over, pull=pull, max_coming=bound, layers=layers))
    one, other = simulate(trace, fleet), simulate(trace, fleet, fast_forward=False)
    np.testing.assert_allclose(one.finish, other.finish, rtol=1e-9)
    np.testing.assert_allclose(one.moved, other.moved, rtol=1e-9)
    assert int(one.finished.sum()) + sum(engine.rejected for engine in one.engines) == trace.size
    world = make_world(trace, fleet)
    run_loop(world, float("inf"))
    pools = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    for engine, pool in zip(world["engines"].view(np.recarray), pools, strict=True):
        assert (engine.free, engine.promised) == (pool.limits.kv_blocks, 0)
        assert (engine.coming, world["chains"][engine.gate].tolist()) == (0, (-1, -1))
        assert (engine.requests, engine.tokens) == (0, 0)


def test_a_negative_bound_is_named() -> None:
    with pytest.raises(InputError, match="max_coming -1 of the hand-over must be 0 or more"):
        simulate(trace_of([0.0]), split(HandOver(max_coming=-1)))
    with pytest.raises(InputError, match="pool 0: nics 0 must be 1 or more"):
        simulate(trace_of([0.0]), split(HandOver(), (0, 1)))
