"""Disaggregation, routers, closed loops, pipelines and the faults of a fleet or trace, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.reference.lone_steps import CoefficientSteps
from benchmarks.reference.policies import POLICIES, VLLM_V0, VLLM_V1
from costmodel.engine import Role
from costmodel.simulator.fleet import Limits, Router, SimulatedFleet, SimulatedPool, SimulatedTier
from costmodel.simulator.metrics import Result
from costmodel.simulator.run import simulate
from costmodel.workload import Trace, make_trace
from tests.simulator_cases import ONLY_PROMPTS, colocated, pages_of

FLAT = CoefficientSteps((0.1, 0.0, 0.0), (0.01, 0.0, 0.0))
"""Every prompt step takes 100 ms, every decode step 10 ms."""


def trace_of(arrival: list[float], isl: int = 100, osl: int = 3, **columns: object):
    count = len(arrival)
    return make_trace(np.array(arrival), np.full(count, isl), np.full(count, osl), **columns)


def split(
    per_token: float = 0.0, nics: tuple[int, int] = (1, 1), decode: Limits | None = None, pulls: bool = False
) -> SimulatedFleet:
    """per_token: seconds on all NICs of an engine together."""
    prefill = SimulatedPool(Role.PREFILL, FLAT, ONLY_PROMPTS, kv_seconds_per_token=per_token, nics=nics[0])
    policy, limits = replace(VLLM_V1, pulls=pulls), decode or Limits()
    later = SimulatedPool(Role.DECODE, FLAT, policy, limits, kv_seconds_per_token=per_token, nics=nics[1])
    return prefill, later


def test_a_decode_engine_makes_the_first_token_too() -> None:
    """100 ms prompt + 5 ms of KV + 10 ms for each of osl decode steps."""
    result = simulate(trace_of([0.0]), split(per_token=5e-5))
    assert result.ttft[0] == pytest.approx(0.115)
    assert result.e2e[0] == pytest.approx(0.135)
    assert result.tpot[0] == pytest.approx(0.010)  # of two gaps
    assert result.transfer[0] == pytest.approx(0.005)


def test_what_no_load_changes_comes_before_the_first_token_and_before_the_next_request() -> None:
    """100 ms prompt, twice as long until its first token, and 70 ms outside; three decode steps of 10 ms.

    The engines are no longer busy than without, but in a closed loop each request comes when a client has the last.
    """
    prefill, decode = split()
    later = (replace(prefill, first_token=2.0, fixed_ttft=0.07), decode)
    for concurrency, arrivals in (0, [0.0] * 3), (1, [0.0, 0.3, 0.6]):
        trace = replace(trace_of([0.0] * 3), concurrency=concurrency)
        result, quick = (simulate(trace, fleet) for fleet in (later, split()))
        np.testing.assert_allclose(result.arrival, arrivals)
        np.testing.assert_allclose(result.ttft, quick.ttft + 0.1 + 0.07)
        np.testing.assert_allclose(result.e2e, quick.e2e + 0.1 + 0.07)
        np.testing.assert_allclose(result.tpot, quick.tpot)
        np.testing.assert_allclose(result.prefill, 0.2)
        assert [use.busy for use in result.engines] == pytest.approx([use.busy for use in quick.engines])


@pytest.mark.parametrize(
    ("nics", "expected"), [((1, 1), [0.1, 0.2, 0.3]), ((2, 2), [0.2, 0.2, 0.4]), ((1, 2), [0.2, 0.2, 0.4])]
)
def test_hand_overs_share_the_links(nics: tuple[int, int], expected: list[float]) -> None:
    """Prompts of 100 tokens in one step: a NIC of two has half of the bandwidth, and the slower end decides."""
    result = simulate(trace_of([0.0] * 3), split(per_token=1e-3, nics=nics))
    np.testing.assert_allclose(np.sort(result.transfer), expected)


def test_a_slow_end_does_not_hold_the_link_of_a_fast_one() -> None:
    """Three prompts of 0.1 s on the sender's link and 0.3 s on those of two receivers: two go side by side."""
    prefill, decode = split(per_token=1e-3)
    result = simulate(trace_of([0.0] * 3), (prefill, replace(decode, kv_seconds_per_token=3e-3, replicas=2)))
    np.testing.assert_allclose(np.sort(result.transfer), [0.3, 0.3, 0.6])


def test_a_full_decode_engine_pulls_when_it_has_room() -> None:
    """One sequence only: the second request's KV stays until the first has ended, and is sent only then."""
    one = Limits(max_num_seqs=1)
    result = simulate(trace_of([0.0, 0.0]), split(1e-3, decode=one, pulls=True))
    np.testing.assert_allclose(result.finish, [0.1 + 0.1 + 0.03, 0.23 + 0.1 + 0.03])
    pushed = simulate(trace_of([0.0, 0.0]), split(1e-3, decode=one))
    np.testing.assert_allclose(pushed.finish, [0.23, 0.3 + 0.03])


def test_a_pulled_request_decodes_in_the_step_after_the_one_that_loads_it() -> None:
    """The second prompt ends at 0.2 s, in the middle of a step of the first request, and its KV takes 1 ms.

    Sent at once it is there for the step that begins at 0.206 s; pulled, that step loads it and the next has it.
    """
    trace = make_trace(np.array([0.0, 0.1]), np.full(2, 100), np.array([50, 3]))
    ends = {}
    for pull in (False, True):
        fleet = split(1e-5, pulls=pull)
        late = replace(fleet[1], steps=CoefficientSteps((0.1, 0.0, 0.0), (0.015, 0.0, 0.0)))
        ends[pull] = simulate(trace, (fleet[0], late)).first[1]
    assert ends[False] == pytest.approx(0.101 + 7 * 0.015 + 0.015)
    assert ends[True] == pytest.approx(ends[False] + 0.015)


@pytest.mark.parametrize("first", [False, True])
def test_a_prompt_waits_for_the_step_that_was_formed_before_it_came(first: bool) -> None:
    """It comes in the middle of a step of 10 ms: 5 ms of that, 10 ms of the next. The first finds an idle engine."""
    trace = make_trace(np.array([0.0, 0.145]), np.full(2, 100), np.array([50, 3]))
    for ahead, wait in ((False, 0.005), (True, 0.015)):
        policy = replace(VLLM_V1, formed_ahead=ahead, exclusive_prefill=first)
        result = simulate(trace, (SimulatedPool(Role.COLOCATED, FLAT, policy),))
        assert (result.prompt_start - result.arrival).tolist() == pytest.approx([0.0, wait])


def test_pulled_blocks_are_reserved_and_kept_on_the_prefill_side_until_then() -> None:
    """Blocks for one request on either side: the second is pulled when the first has ended, the third computed then."""
    prefill, decode = split(1e-3, decode=Limits(kv_blocks=12), pulls=True)
    result = simulate(trace_of([0.0] * 3, osl=30), (replace(prefill, limits=Limits(kv_blocks=10)), decode))
    np.testing.assert_allclose(result.moved[1:] - result.finish[:2], [0.1, 0.1])
    np.testing.assert_allclose(result.prompt_start[1:], result.moved[:2])
    assert result.engines[1].peak_blocks == 9


def test_each_router_does_what_its_name_says() -> None:
    trace = trace_of([0.0, 0.001, 0.002, 0.003], osl=50)
    pool = colocated(VLLM_V0, FLAT, replicas=2, router=Router.LEAST_LOADED)
    assert simulate(trace, pool).engine.tolist() == [0, 1, 0, 1]
    lengths = make_trace(np.array([0.0, 0.001, 0.002]), np.array([1000, 10, 10]), np.array([9, 9, 9]))
    pool = colocated(VLLM_V0, FLAT, replicas=2, router=Router.LENGTH_AWARE)
    assert simulate(lengths, pool).engine.tolist() == [0, 1, 1]


def test_micro_batches_share_one_queue() -> None:
    """One request per micro-batch: the third is taken by the one that is free first, which had the short request."""
    trace = make_trace(np.zeros(3), np.array([100, 100, 100]), np.array([200, 1, 1]))
    result = simulate(trace, colocated(VLLM_V0, FLAT, Limits(max_num_seqs=2), pipeline=2))
    np.testing.assert_allclose(result.first[:2], [0.1, 0.15])
    assert result.prompt_start[2] == pytest.approx(0.15)
    assert result.finish[2] < 0.3 < result.finish[0]


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "sglang", "trtllm"])
def test_chunks_of_one_prompt_follow_each_other_through_the_stages(policy: str) -> None:
    """Four chunks of 100 ms in two stages of 50 ms: one begins every 50 ms, and the last one ends after 250 ms."""
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=100)
    result = simulate(trace_of([0.0], isl=400, osl=2), colocated(POLICIES[policy], FLAT, limits, pipeline=2))
    assert result.ttft[0] == pytest.approx(0.25)
    assert result.engines[0].content.tokens == 401


# --- prefix caches by hash blocks, their memory, and the router that follows them

LINEAR = CoefficientSteps((0.0, 1e-3, 0.0), (0.01, 0.0, 0.0))
"""A millisecond per prompt token, 10 ms per decode step."""


def paged(arrival: list[float], isl: list[int], ids: list[list[int]], osl: int = 2, tokens: int = 32) -> Trace:
    trace = make_trace(np.array(arrival), np.array(isl), np.full(len(isl), osl))
    return replace(trace, pages=pages_of(ids, tokens))


def test_running_requests_share_the_blocks_of_their_prefix() -> None:
    """Room for 10 blocks: two prompts of 4 + 1 blocks and outputs fit only because 4 are the same."""
    trace = paged([0.0, 0.1], [70, 70], [[1, 2]] * 2, osl=8)
    limits = Limits(kv_blocks=9)
    shared = simulate(trace, colocated(VLLM_V1, LINEAR, limits))
    assert shared.prompt_start[1] < shared.finish[0]
    assert shared.engines[0].peak_blocks == 6
    alone = simulate(replace(trace, pages=None), colocated(VLLM_V1, LINEAR, limits))
    assert alone.prompt_start[1] >= alone.finish[0]


def test_the_router_follows_the_longest_prefix() -> None:
    ids = [[1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 3]]
    trace = paged([0.0, 0.01, 1.0, 1.01], [100] * 4, ids)
    fleet = colocated(VLLM_V1, LINEAR, replicas=2, router=Router.PREFIX_AFFINE)
    result = simulate(trace, fleet)
    assert result.engine.tolist() == [0, 1, 0, 1]
    assert result.hit.tolist() == [0, 0, 64, 64]


TIER = SimulatedTier(320.0, 1e-4, 1e-3, shared=True)
"""Ten pages of 32 tokens; 0.1 ms to read a token, and 1 ms for a read."""


def test_a_shared_tier_is_read_where_that_is_quicker() -> None:
    """The second engine reads 64 tokens in 7.4 ms in place of computing for 64 ms; the first has them in memory."""
    trace = paged([0.0, 1.0, 2.0], [70, 70, 70], [[1, 2]] * 3)

    def served(tier: SimulatedTier) -> Result:
        return simulate(trace, colocated(VLLM_V1, LINEAR, replicas=2, tier=tier))

    quick = served(TIER)
    np.testing.assert_allclose(quick.ttft, [0.070, 0.0064 + 0.001 + 0.006, 0.006])
    assert (quick.hit.tolist(), quick.tier.tolist()) == ([0, 64, 64], [0, 64, 0])
    np.testing.assert_allclose(served(replace(TIER, seconds_per_token=2e-3)).ttft, [0.070, 0.070, 0.006])
    np.testing.assert_allclose(served(replace(TIER, shared=False)).ttft, [0.070, 0.070, 0.006])
    assert served(replace(TIER, tokens=32.0)).tier.tolist() == [0, 32, 0]


def test_an_own_tier_has_what_memory_lost_and_the_router_knows_of_it() -> None:
    """The second prompt takes the memory of the first one's tail; the third is sent where the tier has it."""
    trace = paged([0.0, 1.0, 2.0], [65, 97, 65], [[1, 2], [3, 4, 5], [1, 2]], osl=1)
    one = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=9), tier=replace(TIER, shared=False)))
    assert (one.hit.tolist(), one.tier.tolist()) == ([0, 0, 64], [0, 0, 32])
    ids = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12], [3, 4]]
    spread = paged([float(k) for k in range(len(ids))], [65] * len(ids), ids, osl=1)
    fleet = colocated(VLLM_V1, LINEAR, Limits(kv_blocks=8), replicas=2, tier=replace(TIER, shared=False))
    affine = (replace(fleet[0], router=Router.PREFIX_AFFINE),)
    assert simulate(spread, affine).tier[-1] == 64
    assert simulate(spread, fleet).tier[-1] == 0


@pytest.mark.parametrize(("nics", "later"), [(1, 0.0128), (2, 0.0096)])
def test_reads_of_an_engine_take_turns(nics: int, later: float) -> None:
    """Two prompts of 64 tokens in the tier at once: each of two links is half as busy with one, as ranks are."""
    trace = paged([0.0, 1.0, 2.0, 2.5, 3.0, 3.0], [70] * 6, [[1, 2], [3, 4], [5, 6], [7, 8], [1, 2], [3, 4]], osl=1)
    tier = replace(TIER, latency=0.0, shared=False)
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=8), nics=nics, tier=tier))
    assert result.tier.tolist() == [0, 0, 0, 0, 64, 64]
    np.testing.assert_allclose(result.prompt_start[4:] - 3.0, [0.0064, max(later, 0.0064 + 0.006)])


def test_a_preempted_request_reads_the_tier_again() -> None:
    """The last prompt read 64 tokens; memory for long outputs runs out, and it reads the half that memory lost again.

    It starts over with 181 tokens when the other one ends: 32 are read in 4.2 ms, 117 computed, then come 38 steps.
    """
    ids = [[1, 2], list(range(3, 13)), [13, 14], [1, 2]]
    trace = replace(paged([0.0, 1.0, 1.9, 2.0], [70, 300, 40, 70], ids), osl=np.array([1, 1, 280, 150]))
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=22), tier=replace(TIER, tokens=640.0)))
    assert (result.restarts.tolist(), result.tier.tolist()) == ([0, 0, 0, 1], [0, 0, 0, 64])
    np.testing.assert_allclose(result.finish, [0.070, 1.300, 4.726, 4.726 + 0.0042 + 0.117 + 0.38])


def test_what_memory_loses_while_a_prompt_waits_is_read_of_the_tier() -> None:
    """The fourth prompt comes while memory has all its pages; the third takes their blocks."""
    ids = [[1, 2], [6], [3, 4, 5], [1, 2], [7]]
    trace = paged([0.0, 1.0, 1.001, 1.002, 1.003], [70, 33, 97, 70, 33], ids, osl=1)
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=9), tier=replace(TIER, shared=False)))
    assert (result.hit.tolist(), result.tier.tolist()) == ([0, 0, 0, 64, 0], [0, 0, 0, 64, 0])
    np.testing.assert_allclose(result.prompt_start[2:] - 1.033, [0.0, 0.097, 0.097])  # it is read during that step


def test_a_trace_may_say_how_much_is_read() -> None:
    trace = trace_of([0.0, 1.0], 100, 1, cached=np.array([64, 64]), tier=np.array([0, 64]))
    pool = colocated(VLLM_V1, LINEAR, tier=TIER)
    np.testing.assert_allclose(simulate(trace, pool).ttft, [0.036, 0.0064 + 0.001 + 0.036])
    slow = colocated(VLLM_V1, LINEAR, tier=replace(TIER, seconds_per_token=1.0))
    np.testing.assert_allclose(simulate(trace, slow).ttft, [0.036, 0.1])


def literal(trace: Trace, memory: int, blocks: int) -> list[int]:
    """Hit tokens of requests one after the other on an engine with a list of its cached pages, longest unused first."""
    ends = np.cumsum(trace.pages.counts)
    cached: list[int] = []
    hits = []
    for isl, osl, end, count in zip(trace.isl, trace.osl, ends, trace.pages.counts, strict=True):
        own = trace.pages.ids[end - count : end][: isl // trace.pages.tokens].tolist()
        found = 0
        while found < min(len(own), (isl - 1) // trace.pages.tokens) and own[found] in cached:
            found += 1
        hits.append(found * trace.pages.tokens)
        held = -(-int(isl + osl - 1) // 16)
        others = [page for page in cached if page not in own[:found]]
        others = others[max(0, len(others) - (memory - held) // blocks) :]
        cached = [page for page in others if page not in own] + own[::-1]
    return hits


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_literal_cache_one_request_at_a_time(seed: int) -> None:
    rng = np.random.default_rng([seed, 15])
    count, blocks = 60, int(rng.choice([1, 2]))
    isl = rng.integers(1, 300, count)
    talks = rng.integers(0, 5, count)
    pages = zip(talks.tolist(), (-(-isl // (16 * blocks))).tolist(), strict=True)
    ids = [[100 * talk + k for k in range(size)] for talk, size in pages]
    trace = make_trace(100.0 * np.arange(count, dtype=np.float64), isl, rng.integers(1, 40, count))
    trace = replace(trace, pages=pages_of(ids, 16 * blocks))
    memory = int(rng.integers(30, 60))
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=memory)))
    assert result.hit.tolist() == literal(trace, memory, blocks)
    assert 0 < result.hit.sum() < isl.sum()
