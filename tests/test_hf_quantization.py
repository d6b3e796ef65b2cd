"""Which dtype a checkpoint stores, and for which parts of the model."""

from __future__ import annotations

import re
from typing import Any

import pytest

from costmodel.errors import ArchitectureError
from costmodel.transformer import Part
from search_spaces.huggingface import parse_config

MOE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "vocab_size": 1000,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
ALL = frozenset({Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS})
UNATTENDED = ALL - {Part.ATTENTION}
ONLY_EXPERTS = frozenset({Part.EXPERTS})
INT4 = {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}}
FP8_EXPERTS = {"config_groups": {"g": {"targets": ["re:.*mlp.experts.*"], "weights": {"num_bits": 8, "type": "float"}}}}
KIMI_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


@pytest.mark.parametrize(
    ("quantization", "dtype", "parts"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", ALL),
        ({"quant_method": "fp8", "modules_to_not_convert": ["gate", "lm_head"]}, "fp8", ALL),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "fp4", UNATTENDED),
        ({"quant_method": "compressed-tensors", "ignore": KIMI_IGNORE, **INT4}, "int4", ONLY_EXPERTS),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, "fp4", UNATTENDED),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.3*"]}, "fp4", ALL),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8", ALL),
        ({"quant_algo": None, "kv_cache_quant_algo": "FP8"}, "bf16", ALL),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["gate"]}, "int4", ALL),
        ({"quant_method": "gptq", "bits": 8}, "int8", ALL),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", ALL),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8", ALL),
        ({"quant_method": "compressed-tensors", **FP8_EXPERTS}, "fp8", ONLY_EXPERTS),
    ],
)  # fmt: skip
def test_quantisation(quantization: dict[str, Any], dtype: str, parts: frozenset[Part]) -> None:
    model = parse_config({**MOE, "quantization_config": quantization}, "test")
    assert (model.native_weight_dtype, model.quantized) == (dtype, parts)


def test_quantisation_nested_in_the_text_config() -> None:
    text = {**MOE, "quantization_config": {"quant_method": "compressed-tensors", "ignore": KIMI_IGNORE, **INT4}}
    model = parse_config({"text_config": text}, "nested")
    assert (model.native_weight_dtype, model.quantized) == ("int4", ONLY_EXPERTS)


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "gguf"}, "'quant_method' is 'gguf'"),
        ({}, None),
        ("fp8", "'quantization_config' is 'fp8'"),
        ({"quant_method": "gptq", "bits": 3}, "'num_bits' in 'quantization_config' is 'int3'"),
        ({"quant_method": "modelopt"}, "'quant_algo'"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "'MIXED_PRECISION'"),
        ({"quant_method": "compressed-tensors"}, "'config_groups' states no weight format"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "'ignored_layers'"),
        ({"quant_method": "fp8", "ignored_layers": ["re:(((" ]}, "malformed"),
        ({"quant_method": "fp8", "ignored_layers": ["x"] * 6000}, "lists 6000 modules"),
    ],
)  # fmt: skip
def test_quantisation_errors(quantization: Any, named: str | None) -> None:
    if named is None:
        assert parse_config({**MOE, "quantization_config": quantization}, "test").native_weight_dtype == "bf16"
    else:
        with pytest.raises(ArchitectureError, match=r"^test: .*" + re.escape(named)):
            parse_config({**MOE, "quantization_config": quantization}, "test")
