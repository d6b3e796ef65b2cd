"""Rotary embeddings as engines are told them: whole, in the notation of transformers 5."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.hf_config import ContextScaling, context_scaling, rope_parameters

PLAIN: dict[str, Any] = {"model_type": "qwen3", "max_position_embeddings": 40_960, "rope_theta": 1e6}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"rope_scaling": YARN}, ContextScaling(40_960, 32_768, 131_072, False, None)),
        (
            {"rope_scaling": YARN, "max_position_embeddings": 131_072},
            ContextScaling(131_072, 32_768, 131_072, False, None),
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ContextScaling(40_960, 40_960, 81_920, True, None)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "context_is_scaled": True}, None),
    ],
)
def test_a_scaling_is_one_that_extends_what_the_model_was_trained_on(
    fields: dict[str, Any], expected: ContextScaling | None
) -> None:
    assert context_scaling({**PLAIN, **fields}, "x") == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope_scaling": YARN}, {**YARN, "rope_theta": 1e6}),
        (
            {"rope_scaling": YARN, "partial_rotary_factor": 0.5},
            {**YARN, "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        ),
        (  # a card's scaling, added to a file that transformers 5 wrote
            {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}, "rope_scaling": YARN},
            {**YARN, "rope_theta": 5e6},
        ),
        (
            {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"type": "default", "rope_theta": 1e4}}},
            {
                "full_attention": {**YARN, "rope_theta": 1e6},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        ),
    ],
)
def test_a_rotary_embedding_is_told_whole(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rope_parameters({**PLAIN, **fields}, "x") == expected
