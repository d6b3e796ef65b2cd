"""Prefix caches by hash blocks, their memory, the router that follows them, and the store that engines share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.simulator_cases import colocated, pages_of

# isort: split
from costmodel.errors import InputError
from costmodel.policy import STATIC, VLLM_V1
from costmodel.simulator import CoefficientSteps, Fleet, KvStore, Limits, Pages, Router, Trace, make_trace, simulate
from search_spaces.traces import read_trace

LINEAR = CoefficientSteps((0.0, 1e-3, 0.0), (0.01, 0.0, 0.0))
"""A millisecond per prompt token, 10 ms per decode step."""


def paged(arrival: list[float], isl: list[int], ids: list[list[int]], osl: int = 2, tokens: int = 32) -> Trace:
    return make_trace(np.array(arrival), np.array(isl), np.full(len(isl), osl), pages=pages_of(ids, tokens))


def test_full_blocks_of_the_same_prefix_are_not_computed_again() -> None:
    """The second prompt shares two of its three full blocks; the third is the first one over, less its last token."""
    trace = paged([0.0, 1.0, 2.0], [96, 110, 96], [[1, 2, 3], [1, 2, 4, 5], [1, 2, 3]])
    result = simulate(trace, colocated(VLLM_V1, LINEAR))
    np.testing.assert_allclose(result.ttft, [0.096, 0.110 - 0.064, 0.096 - 0.064])
    assert result.hit.tolist() == [0, 64, 64]
    assert result.engines[0].hit_share == pytest.approx(128 / 302)
    off = simulate(trace, colocated(VLLM_V1, LINEAR, prefix_cache=False))
    np.testing.assert_allclose(off.ttft, [0.096, 0.110, 0.096])


def test_running_requests_share_the_blocks_of_their_prefix() -> None:
    """Room for 10 blocks: two prompts of 4 + 1 blocks and outputs fit only because 4 are the same."""
    ids = [[1, 2], [1, 2]]
    trace = paged([0.0, 0.1], [70, 70], ids, osl=8)
    limits = Limits(kv_blocks=9)
    shared = simulate(trace, colocated(VLLM_V1, LINEAR, limits))
    assert shared.prompt_start[1] < shared.finish[0]
    assert shared.engines[0].peak_blocks == 6
    alone = simulate(trace, colocated(VLLM_V1, LINEAR, limits, prefix_cache=False))
    assert alone.prompt_start[1] >= alone.finish[0]


def test_the_longest_unused_blocks_go_first_and_tails_before_heads() -> None:
    """Eight blocks of memory, two per page: a third prompt of three pages leaves one page of the first, its head."""
    trace = paged([0.0, 1.0, 2.0], [65, 97, 65], [[1, 2], [3, 4, 5], [1, 2]], osl=1)
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=9)))
    assert result.hit.tolist() == [0, 0, 32]
    assert result.engines[0].evicted >= 1


def test_a_prompt_finds_what_another_has_computed_so_far() -> None:
    """In chunks of 64, the second prompt comes while the first one's second chunk runs."""
    trace = paged([0.0, 0.07], [192, 192], [[1, 2, 3, 4, 5, 6]] * 2)
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(max_num_seqs=8, max_num_batched_tokens=64)))
    assert result.hit[1] in (128, 160)


def test_the_router_follows_the_longest_prefix() -> None:
    ids = [[1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 3]]
    trace = paged([0.0, 0.01, 1.0, 1.01], [100] * 4, ids)
    fleet = colocated(VLLM_V1, LINEAR, replicas=2, router=Router.PREFIX_AFFINE)
    result = simulate(trace, fleet)
    assert result.engine.tolist() == [0, 1, 0, 1]
    assert [use.hit for use in result.engines] == [64, 64]


def test_the_store_is_read_where_that_is_quicker() -> None:
    """64 tokens in the store at 0.1 ms each and 1 ms for the read, against 64 ms of computing."""
    trace = paged([0.0, 1.0, 2.0], [70, 70, 70], [[1, 2]] * 3)
    trace = replace(trace, pool=np.array([0, 1, 1]))
    pools = colocated(VLLM_V1, LINEAR).pools * 2
    quick = simulate(trace, Fleet(pools, store=KvStore(10, 5e-5, 1e-4, 1e-3)))
    np.testing.assert_allclose(quick.ttft, [0.070, 0.0064 + 0.001 + 0.006, 0.006])
    assert [use.fetched for use in quick.engines] == [0, 64]
    slow = simulate(trace, Fleet(pools, store=KvStore(10, 0.0, 2e-3, 1e-3)))
    np.testing.assert_allclose(slow.ttft, [0.070, 0.070, 0.006])
    full = simulate(trace, Fleet(pools, store=KvStore(1, 5e-5, 1e-4, 1e-3)))
    assert [use.fetched for use in full.engines] == [0, 32]


def test_reads_of_the_store_wait_for_each_other() -> None:
    """Two engines read 64 tokens at once: 0.1 ms per token in all, so the second one waits for the first."""
    trace = paged([0.0, 1.0, 1.0], [70, 70, 70], [[1, 2]] * 3)
    trace = replace(trace, pool=np.array([0, 1, 2]))
    result = simulate(trace, Fleet(colocated(VLLM_V1, LINEAR).pools * 3, store=KvStore(10, 1e-4)))
    np.testing.assert_allclose(result.ttft[1:], [0.0064 + 0.006, 0.0128 + 0.006])


def test_pages_follow_their_requests_when_sorted() -> None:
    trace = paged([2.0, 1.0, 3.0], [64, 96, 10], [[5, 6], [5, 7, 8], []])
    assert trace.pages is not None
    assert trace.pages.counts.tolist() == [3, 2, 0]
    assert trace.pages.ids.tolist() == [0, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("pages", "fleet", "message"),
    [
        (Pages(np.array([1, 2]), np.array([1]), 32), colocated(VLLM_V1), "1 requests need as many counts"),
        (Pages(np.array([1]), np.array([1]), 0), colocated(VLLM_V1), "0 tokens must have 1 or more"),
        (Pages(np.array([1]), np.array([1]), 24), colocated(VLLM_V1), "24 tokens must be whole KV blocks of 16"),
        (Pages(np.array([1]), np.array([1]), 32), colocated(STATIC), "a policy that is not static"),
        (
            Pages(np.array([1]), np.array([1]), 32),
            replace(colocated(VLLM_V1), store=KvStore(0)),
            "store's 0 pages must be 1 or more",
        ),
    ],
)
def test_pages_that_make_no_sense_are_named(pages: Pages, fleet: Fleet, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(make_trace(np.zeros(1), np.array([40]), np.array([2]), pages=pages), fleet)


def test_hits_are_given_or_found_but_not_both() -> None:
    pages = Pages(np.array([1]), np.array([1]), 32)
    with pytest.raises(InputError, match="both cached tokens and hash blocks"):
        make_trace(np.zeros(1), np.array([40]), np.array([2]), cached=np.array([3]), pages=pages)


def literal(trace: Trace, memory: int, blocks: int) -> list[int]:
    """Hit tokens of requests one after the other on an engine with a list of its cached pages, longest unused first."""
    assert trace.pages is not None
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
    ids = [
        [100 * int(talk) + k for k in range(-(-int(size) // (16 * blocks)))]
        for talk, size in zip(talks, isl, strict=True)
    ]
    pages = pages_of(ids, 16 * blocks)
    trace = make_trace(100.0 * np.arange(count, dtype=np.float64), isl, rng.integers(1, 40, count), pages=pages)
    memory = int(rng.integers(30, 60))
    result = simulate(trace, colocated(VLLM_V1, LINEAR, Limits(kv_blocks=memory)))
    assert result.hit.tolist() == literal(trace, memory, blocks)
    assert 0 < result.engines[0].hit_share < 1


def test_a_trace_with_blocks_is_replayed(data: Path) -> None:
    """An engine that never runs out of memory finds what an infinite cache would, one request at a time, to a block."""
    path = data / "traces" / "mooncake_conversation_trace.jsonl.gz"
    summary = read_trace(path, limit=600)
    rows = summary.rows
    assert rows.hash_ids is not None
    assert rows.hash_counts is not None
    pages = Pages(rows.hash_ids, rows.hash_counts, 512)
    trace = make_trace(1e4 * np.arange(len(rows), dtype=np.float64), rows.isl, rows.osl, pages=pages)
    result = simulate(trace, colocated(VLLM_V1, LINEAR))
    assert summary.prefix_hit_share is not None
    assert 0.97 * summary.prefix_hit_share < result.engines[0].hit_share <= summary.prefix_hit_share
