"""Who can hand KV blocks to whom: every rule by hand, and whole fleets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from costmodel.engine import Parallelism, Role
from optimizer.fleets.fleet import Fleet, can_hand_over, even_mix
from optimizer.loads.effort import Level
from optimizer.recommend.optimize import optimize
from optimizer.search.program import Builder, solve
from search_spaces.enumeration import HAND_OVER_RULES, Shape, end_of, hand_over_refusals, pair_refusal
from search_spaces.problem import Problem
from tests.golden_files import assert_golden
from tests.optimizer_cases import model, offer, problem, slo, space, workload
from tests.small_fleets import pool, small
from tests.toy import dense

APART = (Role.PREFILL, Role.DECODE)
FEW_HEADS = dense("two heads", 16, 2048, 16, 2, 8192, 32000)
"""Two KV heads: a prompt computed with TP 4 cannot go to TP 1 or 2, nor from TP 8 to anything but TP 8."""

H100 = Shape(0, Parallelism(2), "bf16", "bf16")


def split(*degrees: int) -> Shape:
    return replace(H100, parallelism=Parallelism(*degrees))


def three_offers(name: str = "Llama-3.1-8B") -> Problem:
    return problem(model=model(name), offers=(offer("H100"), offer("MI300X"), offer("H200")))


FP8, HYBRID, LATENT = replace(H100, kv_dtype="fp8"), three_offers("Qwen3-Next-80B-A3B"), three_offers("DeepSeek-V3")
CASES = (
    (three_offers(), H100, replace(H100, offer=1)),
    (three_offers(), FP8, H100),
    (three_offers(), replace(H100, speculative_tokens=1), H100),
    (three_offers(), H100, replace(H100, weight_dtype="fp8")),
    (LATENT, FP8, replace(FP8, offer=2)),
    (replace(three_offers(), target="dynamo"), split(2, 2), H100),
    (three_offers(), H100, split(3)),
    (three_offers("Qwen3-30B-A3B"), split(8), split(4)),
    (HYBRID, H100, split(1)),
    (three_offers(), H100, split(2, 2)),
    (HYBRID, split(2, 2), H100),
)
"""Problem, prefill and decode."""


def test_golden_refusals() -> None:
    """Each pair by one rule, with its reason; every rule has a case, and equals can talk."""
    found: dict[str, str] = {}
    for asked, prefill, decode in CASES:
        ((rule, reason),) = hand_over_refusals(asked, end_of(asked, prefill), end_of(asked, decode))
        assert pair_refusal(asked, prefill, decode) == reason
        assert pair_refusal(asked, H100, H100) is None
        found[rule] = reason
    assert_golden("hand_over_rules.txt", "".join(f"{rule}: {reason}\n" for rule, reason in found.items()))
    assert set(found) == set(HAND_OVER_RULES)
    assert pair_refusal(replace(LATENT, engine="sglang"), *CASES[4][1:]) is None


Talks = NDArray[np.bool_]


@st.composite
def relations(draw: st.DrawFn) -> tuple[Talks, NDArray[np.int64], NDArray[np.int64]]:
    """Who can talk to whom, and whole shares sent and taken that sum to the same, among up to four a side."""
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    talks = np.array(draw(st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1])))
    pairs = draw(st.lists(st.tuples(st.integers(0, size[0] - 1), st.integers(0, size[1] - 1)), max_size=8))
    sent, taken = np.zeros(size[0], dtype=np.int64), np.zeros(size[1], dtype=np.int64)
    for one, other in pairs:
        sent[one] += 1
        taken[other] += 1
    return talks.reshape(size), sent, taken


def can_flow(talks: Talks, sent: NDArray[np.int64], taken: NDArray[np.int64]) -> bool:
    """Whether shares of every pair exist: the transport problem itself."""
    one, other = np.nonzero(talks)
    builder = Builder()
    moved = builder.variables([f"y{p}_{d}" for p, d in zip(one, other, strict=True)], 0.0)
    rows = builder.rows([f"sent{p}" for p in range(sent.size)], sent, sent)
    builder.entries(rows[one], moved, 1.0)
    rows = builder.rows([f"taken{d}" for d in range(taken.size)], taken, taken)
    builder.entries(rows[other], moved, 1.0)
    return bool(one.size) and bool(solve(builder.build(), relaxed=True).x.size)


@settings(max_examples=20)
@given(relations())
def test_the_even_mix_sends_what_is_sent_and_takes_what_is_taken(
    case: tuple[Talks, NDArray[np.int64], NDArray[np.int64]],
) -> None:
    talks, sent, taken = case
    mix = even_mix(talks, sent[:, None].astype(float), taken[:, None].astype(float))[:, :, 0]
    assert (mix[~talks] == 0.0).all()
    if talks.all():
        assert (mix == 1.0).all()
    elif sent.sum() and can_flow(talks, sent, taken):
        moved = mix * np.outer(sent, taken) / sent.sum()
        np.testing.assert_allclose(moved.sum(axis=1), sent, atol=2e-2)
        np.testing.assert_allclose(moved.sum(axis=0), taken, atol=2e-2)


def test_a_fleet_can_hand_over_where_pools_that_talk_send_what_is_taken() -> None:
    """Engines of one size talk: shares of two flows that each prefill pool sends, and each decode pool takes."""
    instance = small()
    tables = replace(instance.tables, talks=np.eye(2, dtype=np.bool_))

    def able(sent: list[list[float]], taken: list[list[float]]) -> bool:
        routes = [(role, *pair) for role, ends in zip(APART, (sent, taken), strict=True) for pair in enumerate(ends)]
        made = [pool(instance, f"{role}-{k}", role, 1, split=Parallelism(k + 1)) for role, k, _ in routes]
        pools = (replace(one, route=np.array(route)) for one, (*_, route) in zip(made, routes, strict=True))
        return can_hand_over(replace(instance, tables=tables), Fleet(tuple(pools)))

    whole, part, even = [[1.0, 0.0], [0.0, 1.0]], [[0.3, 0.5], [0.7, 0.5]], [[0.5, 0.5], [0.5, 0.5]]
    assert all(able(ends, ends) for ends in (whole, part, even))
    assert not able(whole, whole[::-1])
    assert not able(part, even)


@pytest.mark.parametrize("rate", [10.0, 30.0])
def test_plans_never_propose_a_pair_that_cannot_talk(rate: float) -> None:
    offers, limits = tuple(offer(name) for name in ("H100", "L4", "MI300X")), (slo(0.4, 0.03, 0.9),)
    degrees = space(tensor_parallel=(1, 2, 4, 8), roles=APART, max_num_seqs=(64,))
    base = problem(model=FEW_HEADS, workload=workload(rate), slos=limits, offers=offers, space=degrees)
    plan = optimize(base, level=Level.QUICK)
    shapes = {
        pool.id: Shape(
            [one.accelerator.name for one in base.offers].index(pool.accelerator),
            Parallelism(pool.tensor_parallel, pool.pipeline_parallel),
            pool.weight_dtype,
            pool.kv_dtype,
        )
        for pool in plan.pools
    }
    assert plan.transfers
    for transfer in plan.transfers:
        assert pair_refusal(base, shapes[transfer.source], shapes[transfer.target]) is None
