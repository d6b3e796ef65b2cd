"""Who can hand KV blocks to whom: every rule by hand, and whole fleets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from costmodel.engine import Parallelism, Role
from optimizer.fleets.fleet import even_mix
from optimizer.recommend.optimize import optimize as optimize_at
from optimizer.recommend.search import Level
from optimizer.search.program import Builder, solve
from search_spaces.enumeration import HAND_OVER_RULES, Shape, end_of, hand_over_refusals, pair_refusal
from search_spaces.problem import Problem
from tests.optimizer_cases import model, offer, problem, slo, space, workload
from tests.toy import dense

optimize = partial(optimize_at, level=Level.QUICK)

APART = (Role.PREFILL, Role.DECODE)
FEW_HEADS = dense("two heads", 16, 2048, 16, 2, 8192, 32000)
"""Two KV heads: a prompt computed with TP 4 cannot go to TP 1 or 2, nor from TP 8 to anything but TP 8."""

H100 = Shape(0, Parallelism(2), "bf16", "bf16")
CASES = {
    "kv_domains_agree": (H100, replace(H100, offer=1), "KV blocks of nvidia and amd GPUs differ in layout"),
    "kv_dtypes_agree": (replace(H100, kv_dtype="fp8"), H100, "KV dtype fp8 of prefill and bf16 of decode differ"),
    "drafts_agree": (
        replace(H100, speculative_tokens=1),
        H100,
        "speculative tokens 1 of prefill and 0 of decode differ, and with them the KV blocks",
    ),
    "weights_agree": (
        H100,
        replace(H100, weight_dtype="fp8"),
        "bf16 weights of prefill and fp8 of decode are two checkpoints",
    ),
    "attention_kernels_agree": (
        replace(H100, kv_dtype="fp8"),
        replace(H100, kv_dtype="fp8", offer=2),
        "vLLM has no one latent attention kernel for H100 and H200 with KV in fp8",
    ),
    "target_takes_stages": (
        replace(H100, parallelism=Parallelism(2, 2)),
        H100,
        "PP 2 of prefill: NVIDIA Dynamo does not hand over from several pipeline stages",
    ),
    "tensor_degrees_divide": (
        H100,
        replace(H100, parallelism=Parallelism(3)),
        "TP 2 of prefill and TP 3 of decode do not divide each other",
    ),
    "decode_ranks_find_heads": (
        replace(H100, parallelism=Parallelism(8)),
        replace(H100, parallelism=Parallelism(4)),
        "TP 8 of prefill exceeds TP 4 of decode and the model's 4 KV heads",
    ),
    "hybrid_degrees_agree": (
        H100,
        replace(H100, parallelism=Parallelism(1)),
        "TP 2 of prefill and TP 1 of decode differ, and states cannot be re-split",
    ),
    "decode_is_one_stage": (
        H100,
        replace(H100, parallelism=Parallelism(2, 2)),
        "PP 2 of decode: no engine receives KV blocks into several pipeline stages",
    ),
    "hybrid_prefill_is_one_stage": (
        replace(H100, parallelism=Parallelism(2, 2)),
        H100,
        "PP 2 of prefill: states of hybrid models are not sent from several pipeline stages",
    ),
}
MODELS = {
    "attention_kernels_agree": "DeepSeek-V3",
    "decode_ranks_find_heads": "Qwen3-30B-A3B",
    "hybrid_degrees_agree": "Qwen3-Next-80B-A3B",
    "hybrid_prefill_is_one_stage": "Qwen3-Next-80B-A3B",
}


TARGETS = {"target_takes_stages": "dynamo"}


def three_offers(name: str = "Llama-3.1-8B") -> Problem:
    return problem(model=model(name), offers=(offer("H100"), offer("MI300X"), offer("H200")))


@pytest.mark.parametrize("rule", CASES)
def test_a_pair_is_refused_by_one_rule_with_its_reason(rule: str) -> None:
    prefill, decode, reason = CASES[rule]
    asked = replace(three_offers(MODELS.get(rule, "Llama-3.1-8B")), target=TARGETS.get(rule))
    refusals = dict(hand_over_refusals(asked, end_of(asked, prefill), end_of(asked, decode)))
    assert refusals == {rule: reason}
    assert pair_refusal(asked, prefill, decode) == reason


def test_every_rule_has_a_case_and_equals_can_talk() -> None:
    assert set(CASES) == set(HAND_OVER_RULES)
    for name in ("Llama-3.1-8B", "Qwen3-30B-A3B", "Qwen3-Next-80B-A3B", "DeepSeek-V3"):
        assert pair_refusal(three_offers(name), H100, H100) is None
    latents = replace(three_offers("DeepSeek-V3"), engine="sglang")
    prefill, decode, _ = CASES["attention_kernels_agree"]
    assert pair_refusal(latents, prefill, decode) is None


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


def few_heads(**changes: object) -> Problem:
    degrees = space(tensor_parallel=(1, 2, 4, 8), roles=APART, max_num_seqs=(64,))
    return problem(**({"model": FEW_HEADS, "space": degrees, "slos": (slo(0.4, 0.03, 0.9),)} | changes))


@pytest.mark.parametrize("rate", [10.0, 30.0])
def test_plans_never_propose_a_pair_that_cannot_talk(rate: float) -> None:
    base = few_heads(workload=workload(rate), offers=(offer("H100"), offer("L4"), offer("MI300X")))
    plan = optimize(base)
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
