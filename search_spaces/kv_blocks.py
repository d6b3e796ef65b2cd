"""Tokens of a KV block of each serving engine: engines are told them, and the simulation counts in them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from costmodel.transformer import Transformer

BLOCK_TOKENS: Final[Mapping[str, int]] = MappingProxyType({"vllm": 16, "sglang": 64, "trtllm": 32})
"""VENDOR: what every attention kernel takes on vLLM; what SGLang's latent kernels need and its others allow;
TensorRT-LLM's own default."""
VLLM_LATENT: Final = 64
"""VENDOR: what vLLM's kernels for latent attention need on Hopper."""


def block_tokens(engine: str, model: Transformer) -> int:
    """Tokens of a KV block of an engine that serves a model [token]."""
    return VLLM_LATENT if engine == "vllm" and model.is_latent else BLOCK_TOKENS[engine]
