"""Which dtype a checkpoint stores, and for which parts of the model."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.transformer import Part, WeightScale
from search_spaces.huggingface import parse_config
from search_spaces.models import load_model

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
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "fp4", UNATTENDED),
        ({"quant_method": "compressed-tensors", "ignore": KIMI_IGNORE, **INT4}, "int4", ONLY_EXPERTS),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, "fp4", UNATTENDED),
        ({"quant_algo": None, "kv_cache_quant_algo": "FP8"}, "bf16", ALL),
        ({"quant_method": "gptq", "bits": 8}, "int8", ALL),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", ALL),
        ({"quant_method": "compressed-tensors", **FP8_EXPERTS}, "fp8", ONLY_EXPERTS),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4", ALL),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32}, "fp4", ALL),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}, "int8", ALL),
        ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, "fp8", ALL),
        ({"quant_method": "quanto", "weights": "int8"}, "int8", ALL),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "int4", ALL),
    ],
)  # fmt: skip
def test_quantisation(quantization: dict[str, Any], dtype: str, parts: frozenset[Part]) -> None:
    model = parse_config({**MOE, "quantization_config": quantization}, "test")
    assert (model.native_weight_dtype, model.quantized) == (dtype, parts)


GROUPED = {"num_bits": 4, "type": "int", "strategy": "group"}


def config_groups(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}, "quant_method": "compressed-tensors"}


@pytest.mark.parametrize(
    ("quantization", "scale", "bytes_per_element"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}, (1, 32, 2.5), 0.5 + 2.5 / 32),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True}, (1, 128, 2.5), 0.51953125),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, (1, 128, 2.0), 0.515625),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, (1, 32, 2.5), 0.578125),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": False}, (1, 64, 3.0), 1 + 3 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, None, 0.5),
        (config_groups(**GROUPED, group_size=32, symmetric=True), (1, 32, 2.0), 0.5625),
        (config_groups(num_bits=4, type="float", group_size=16), (1, 16, 1.0), 0.5625),
        ({**config_groups(num_bits=4, type="float"), "format": "mxfp4-pack-quantized"}, (1, 32, 1.0), 0.53125),
        (config_groups(num_bits=8, type="float", block_structure=[128, 128]), (128, 128, 4.0), 1 + 4 / 128**2),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, (128, 64, 4.0), 1 + 4 / 128 / 64),
        ({"quant_algo": "FP8_PB_WO"}, (128, 128, 4.0), 1 + 4 / 128**2),
        ({"quant_algo": "NVFP4", "group_size": 16}, (1, 16, 1.0), 0.5625),
        ({"quant_method": "mxfp4"}, (1, 32, 1.0), 0.53125),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint4", "group_size": 128}}},
            (1, 128, 2.0),
            0.515625,
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            (1, 64, 1 + 4 / 256),
            0.5 + (1 + 4 / 256) / 64,
        ),
    ],
)
def test_what_shares_a_scale(
    quantization: dict[str, Any], scale: tuple[int, int, float] | None, bytes_per_element: float
) -> None:
    """Scales (8 bit of FP4, 16 of integers, 32 of blocks of FP8) and zero points belong to the bytes of a weight."""
    model = parse_config({**MOE, "quantization_config": quantization}, "test")
    assert model.weight_scale == (None if scale is None else WeightScale(*scale))
    stored = model.bytes_per_element(Part.EXPERTS, model.native_weight_dtype)
    assert stored == pytest.approx(bytes_per_element, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("moonshotai/Kimi-K2.5", 594.5), ("MiniMax-M2", 230.0), ("gpt-oss-120b", 65.2)]
)
def test_a_checkpoint_weighs_what_its_files_do(name: str, gigabytes: float) -> None:
    """Sizes of the repositories on Hugging Face, which for Kimi includes the vision tower (1 GB)."""
    model = load_model(name)
    assert model.weight_bytes(model.native_weight_dtype) / 1e9 == pytest.approx(gigabytes, rel=0.003)


def weights(bits: int, kind: str, group: int | None) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "group_size": group, "symmetric": True}


@pytest.mark.parametrize("heads_first", [True, False])
def test_groups_of_several_formats_each_keep_their_own(heads_first: bool) -> None:
    groups = [
        {"targets": ["re:.*self_attn.*"], "weights": weights(8, "float", None)},
        {"targets": ["Linear"], "weights": weights(4, "float", 16)},
    ]
    groups = groups if heads_first else groups[::-1]
    config = {
        **MOE,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        },
    }
    model = parse_config(config, "mixed")
    assert model.part_dtype(Part.ATTENTION, "fp4") == "fp8"
    assert model.part_dtype(Part.FEED_FORWARD, "fp4") == "fp4"
    assert model.weight_scale == WeightScale(1, 16, 1.0)


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "int3"),
        ({"quant_method": "hqq", "quant_config": {"self_attn.q_proj": {"weight_quant_params": {"nbits": 2}}}}, "int2"),
        ({"quant_method": "quanto", "weights": "int2"}, "int2"),
    ],
)
def test_fewer_bits_than_any_unit_computes_are_stored_so(quantization: dict[str, Any], dtype: str) -> None:
    model = parse_config({**MOE, "quantization_config": quantization}, "test")
    assert {model.part_dtype(part, model.native_weight_dtype) for part in ALL} == {dtype}
    assert model.weight_bytes("int4") < parse_config(
        {**MOE, "quantization_config": {"quant_method": "gptq", "bits": 4}}, "test"
    ).weight_bytes("int4")
