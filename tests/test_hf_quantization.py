"""Which dtype a checkpoint stores, and for which parts of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.attention import Part
from costmodel.errors import ArchitectureError
from costmodel.transformer import Transformer, WeightScale
from search_spaces.engines import ENGINES
from search_spaces.enumeration import usual_kv_dtype
from search_spaces.huggingface import parse_config
from search_spaces.models import architecture_text, load_model
from tests.test_huggingface import MOE
from tests.toy import TINY

CASES = yaml.safe_load((Path(__file__).parent / "quantizations.yaml").read_text("utf-8"))


def quantized(note: dict[str, Any]) -> Transformer:
    """A small model with experts whose checkpoint says this of its quantization."""
    return parse_config({**MOE, "quantization_config": note}, "test")


@pytest.mark.parametrize("row", CASES["dtypes"])
def test_quantisation(row: dict[str, Any]) -> None:
    model = quantized(row["quantization"])
    assert (model.native_weight_dtype, sorted(model.quantized)) == (row["dtype"], row["parts"])


NVFP4 = {
    "DeepSeek-V3.1-NVFP4": 386.4,
    "DeepSeek-V4-Pro-NVFP4": 897.9,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 19.3,
    "Qwen3.5-397B-A17B-NVFP4": 237.0,
    "Qwen3.6-27B-NVFP4": 21.9,
}
"""Size of the text model's weights [GB] by the whole lists of modules that NVIDIA's checkpoints spare."""


@pytest.mark.parametrize("name", NVFP4)
def test_checkpoints_of_the_catalog_spare_the_same_parts(name: str) -> None:
    model = load_model(f"nvidia/{name}")
    text_bytes = model.weight_bytes(model.native_weight_dtype) - 2 * model.towers
    assert text_bytes / 1e9 == pytest.approx(NVFP4[name], abs=0.1)


@pytest.mark.parametrize("row", CASES["scales"])
def test_what_shares_a_scale(row: dict[str, Any]) -> None:
    """Scales (8 bit of FP4, 16 of integers, 32 of blocks of FP8) and zero points belong to the bytes of a weight."""
    model = quantized(row["quantization"])
    assert model.weight_scale == (None if row["scale"] is None else WeightScale(*row["scale"]))
    stored = model.bytes_per_element(Part.EXPERTS, model.native_weight_dtype)
    assert stored == pytest.approx(row["bytes_per_element"], rel=1e-12)


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
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    model = quantized({"quant_method": "compressed-tensors", "config_groups": named})
    assert model.part_dtype(Part.ATTENTION, "fp4") == "fp8"
    assert model.part_dtype(Part.FEED_FORWARD, "fp4") == "fp4"
    assert model.weight_scale == WeightScale(1, 16, 1.0)


@pytest.mark.parametrize("row", CASES["few_bits"])
def test_fewer_bits_than_any_unit_computes_are_stored_so(row: dict[str, Any]) -> None:
    model = quantized(row["quantization"])
    parts = (Part.ATTENTION, Part.FEED_FORWARD, Part.EXPERTS)
    assert {model.part_dtype(part, model.native_weight_dtype) for part in parts} == {row["dtype"]}
    four = quantized({"quant_method": "gptq", "bits": 4})
    assert model.weight_bytes("int4") < four.weight_bytes("int4")


def test_formats_that_reach_no_module_are_refused() -> None:
    groups = {"g": {"targets": ["re:.*transformer.h.*"], "weights": weights(4, "int", 128)}}
    with pytest.raises(ArchitectureError, match="quantizes modules by names, of which pdplan finds none in the model"):
        quantized({"quant_method": "compressed-tensors", "config_groups": groups})
    with pytest.raises(ArchitectureError, match="quantizes the model, but leaves each of its modules at 16 bit"):
        quantized({"quant_method": "fp8", "modules_to_not_convert": ["model"]})


@pytest.mark.parametrize("row", CASES["means"])
def test_a_part_in_several_formats_weighs_their_mean(row: dict[str, Any]) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    model = parse_config({**TINY, **heads, "quantization_config": row["quantization"]}, "mixed")
    size = model.bytes_per_element(Part(row["part"]), model.native_weight_dtype)
    assert size == pytest.approx(row["bytes_per_element"])


def test_linear_layers_have_the_names_of_their_family() -> None:
    """Kimi files them under self_attn, which its checkpoint spares; Qwen under linear_attn, which it does not."""
    assert load_model("Kimi-K3").quantized == {Part.EXPERTS}


def test_blocks_that_are_layers_of_their_own_are_numbered_so() -> None:
    """Nemotron-H: of the mixers in layers 0, 2, 4 and 6 one is spared."""
    blocks = {"hybrid_override_pattern": "M-M-M-M-", "ssm_state_size": 4, "mamba_num_heads": 8, "mamba_head_dim": 16}
    note = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["backbone.layers.2.mixer*", "lm_head"]}
    config = {**TINY, **blocks, "model_type": "nemotron_h", "conv_kernel": 4, "num_key_value_heads": 8}
    model = parse_config({**config, "quantization_config": note}, "spared")
    assert model.bytes_per_element(Part.ATTENTION, "fp4") == pytest.approx((3 * 0.5625 + 2.0) / 4)
    assert model.bytes_per_element(Part.FEED_FORWARD, "fp4") == 0.5625


@pytest.mark.parametrize("row", CASES["caches"])
def test_a_checkpoint_that_states_an_fp8_cache_gets_one_from_the_engines_that_heed_it(row: dict[str, Any]) -> None:
    model = quantized(row["quantization"])
    dtypes = {engine: usual_kv_dtype(engine, model, model.native_weight_dtype) for engine in ENGINES}
    assert {engine for engine, dtype in dtypes.items() if dtype == "fp8"} == set(row["engines"])
    assert {usual_kv_dtype(engine, model, "int4") for engine in ENGINES} == {"bf16"}  # another checkpoint


def test_an_architecture_file_keeps_what_the_checkpoint_states_of_its_cache() -> None:
    model = load_model("nvidia/Qwen3.6-27B-NVFP4")
    assert usual_kv_dtype("vllm", model, model.native_weight_dtype) == "fp8"
    assert "cache_quantizer: modelopt" in architecture_text(model)
