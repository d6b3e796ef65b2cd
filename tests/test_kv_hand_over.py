"""Which prefill and decode engines can talk: the rules of NIXL, each by its boundary."""

from __future__ import annotations

import pytest

from costmodel.engine import Parallelism
from search_spaces.kv_hand_over import PAIR_RULES, cannot_talk, is_hybrid, kv_heads
from search_spaces.models import load_model


def of(tensor: int, pipeline: int = 1) -> Parallelism:
    return Parallelism(tensor, pipeline)


@pytest.mark.parametrize(
    ("model", "heads", "hybrid"),
    [
        ("Llama-3.1-70B", 8, False),
        ("Qwen3-30B-A3B", 4, False),
        ("DeepSeek-V3", None, False),
        ("Qwen3-Next-80B-A3B", 2, True),
    ],
)
def test_heads_and_kinds(model: str, heads: int | None, hybrid: bool) -> None:
    assert kv_heads(load_model(model)) == heads
    assert is_hybrid(load_model(model)) == hybrid


@pytest.mark.parametrize(
    ("model", "prefill", "decode", "reason"),
    [
        ("Llama-3.1-70B", of(2), of(4), None),
        ("Llama-3.1-70B", of(4), of(2), None),
        ("Llama-3.1-70B", of(2), of(3), "do not divide"),
        ("Llama-3.1-70B", of(8), of(4), None),
        ("Llama-3.1-70B", of(16), of(8), "TP 16 of prefill exceeds TP 8 of decode and the model's 8 KV heads"),
        ("Llama-3.1-70B", of(8), of(16), None),
        ("Qwen3-30B-A3B", of(8), of(4), "4 KV heads"),
        ("DeepSeek-V3", of(8), of(1), None),
        ("Llama-3.1-70B", of(2, 2), of(2), None),
        ("Llama-3.1-70B", of(2), of(2, 2), "PP 2 of decode"),
        ("Qwen3-Next-80B-A3B", of(2), of(2), None),
        ("Qwen3-Next-80B-A3B", of(1), of(2), "states cannot be re-split"),
        ("Qwen3-Next-80B-A3B", of(2, 2), of(2), "hybrid models are not sent from several pipeline stages"),
    ],
)
def test_pairs(model: str, prefill: Parallelism, decode: Parallelism, reason: str | None) -> None:
    found = cannot_talk(load_model(model), prefill, decode)
    assert found is None if reason is None else reason in str(found)


def test_equal_engines_of_one_stage_always_talk() -> None:
    for name in ("Llama-3.1-8B", "DeepSeek-V3", "Qwen3-Next-80B-A3B", "gpt-oss-120b"):
        for tensor in (1, 2, 4, 8):
            assert cannot_talk(load_model(name), of(tensor), of(tensor)) is None
    assert len(PAIR_RULES) == 5
