"""Reading `config.json`: every family's notation, and a named field in every error."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from costmodel.attention import CompressedAttention, SoftmaxAttention
from costmodel.errors import ArchitectureError
from costmodel.transformer import Transformer
from optimizer.fleets.error_bars import assumptions
from pdplan.cli import cli
from search_spaces import models
from search_spaces.hf_config import ContextScaling, context_scaling, rope_parameters
from search_spaces.huggingface import UNKNOWN_TYPE, parse_config
from search_spaces.models import (
    architecture_text,
    catalog_model,
    config_of,
    load_model,
    model_entry,
    model_to_edit,
)
from tests.optimizer_cases import instance_of, problem
from tests.toy import TINY

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
}
MLA: dict[str, Any] = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 8,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
MOE: dict[str, Any] = {**MLA, **EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
ROUTED: dict[str, Any] = {**EXPERTS, "n_routed_experts": 4}


def parse(*parts: dict[str, Any], without: str = "", **fields: Any) -> Transformer:
    config: dict[str, Any] = {}
    for part in parts or (LLAMA,):
        config |= part
    config |= fields
    config.pop(without, None)
    return parse_config(config, "test")


def error_of(*parts: dict[str, Any], without: str = "", **fields: Any) -> str:
    with pytest.raises(ArchitectureError) as caught:
        parse(*parts, without=without, **fields)
    message = str(caught.value)
    assert message.startswith("test: ")
    assert "\n" not in message
    return message


def windows(model: Transformer) -> dict[int | None, int]:
    found: dict[int | None, int] = {}
    for group in model.layers:
        assert isinstance(group.attention, SoftmaxAttention)
        found[group.attention.window] = found.get(group.attention.window, 0) + group.count
    return found


# ── attention ────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_kv_heads_mean_multi_head_only_where_the_family_says_so() -> None:
    (group,) = parse(without="num_key_value_heads").layers
    assert isinstance(group.attention, SoftmaxAttention)
    assert group.attention.kv_heads == 8
    assert "lacks 'num_key_value_heads'" in error_of(without="num_key_value_heads", model_type="mistral")
    (group,) = parse(without="num_key_value_heads", model_type="mistral", multi_query=True).layers
    assert group.attention.kv_shards == 1


NOMINAL = {"MiniMaxAI__MiniMax-M3.json", "tf__falcon_mamba.json"}
"""Counted in whole billions, and a model so small that its vectors are 0.7 % of it."""
KV_OF_CONFIGS = {
    "Qwen__Qwen3-Coder-480B-A35B-Instruct.json": 62 * 2 * 8 * 128 * 2,
    "Qwen__Qwen3.5-122B-A10B.json": 12 * 2 * 2 * 256 * 2,
    "XiaomiMiMo__MiMo-V2-Flash.json": 2 * (9 * 4 + 39 * 8) * (192 + 128),
    "meta-llama__Llama-4-Scout-17B-16E-Instruct.json": 48 * 2 * 8 * 128 * 2,
    "tf__mimo_v2_flash.json": 222_720,
    "tf__zamba2.json": 9 * 2 * 32 * 160 * 2,
    "google__gemma-4-26B-A4B.json": 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512),
    "deepseek-ai__DeepSeek-V4-Flash.json": 21 * (512 * 2 + 132) / 4 + 20 * 512 * 2 / 128,
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json": 6 * 2 * 2 * 128 * 2,
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1.json": 49 * 2 * 8 * 128 * 2,
    "zai-org__GLM-5.2.json": 78 * 576 * 2 + 21 * 132,
    "moonshotai__Kimi-K3.json": 24 * 576 * 2,
    "MiniMaxAI__MiniMax-M3.json": 60 * 2 * 4 * 128 * 2 + 57 * 2 * 128,
    "tf__falcon_h1.json": 32 * 2 * 8 * 128 * 2,
    "tf__falcon_mamba.json": 0,
    "tf__minimax.json": 16 * 2 * 8 * 128 * 2,
}
"""KV bytes per token in 16 bit, layer by layer by hand."""
STATE_OF_CONFIGS = {
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json": 23 * (4 * 64 * 64 * 128 + 2 * 3 * (64 * 64 + 2 * 8 * 128)),
    "tf__falcon_h1.json": 32 * (4 * 128 * 8 * 256 + 2 * 3 * (128 * 8 + 2 * 256)),
    "tf__minimax.json": 16 * 4 * 32 * 128 * 128,
    "tf__zamba2.json": 54 * (4 * 8 * 640 * 64 + 2 * 3 * (8 * 640 + 2 * 64)),
    "deepseek-ai__DeepSeek-V4-Flash.json": 43 * 2 * 128 * 512,
    "zai-org__GLM-5.2.json": 0,
}
"""Bytes that a request holds whatever its length: 32-bit states, 16-bit convolutions and windows of latents."""


def test_every_config_is_right(data: Path) -> None:
    """Parameters within 0.1 % of the reference implementation's, and the KV and states of layers by hand."""
    with (data / "configs" / "parameters.csv").open() as file:
        parameters = {row["file"]: row["text_parameters"] for row in csv.DictReader(file)}
    for name, count in parameters.items():
        model = load_model(str(data / "configs" / name))
        if count:
            assert model.parameters == pytest.approx(int(count), rel=1e-2 if name in NOMINAL else 1e-3), name
        assert model.kv_bytes_per_token("bf16") == KV_OF_CONFIGS.get(name, model.kv_bytes_per_token("bf16")), name
        assert model.state_bytes == STATE_OF_CONFIGS.get(name, model.state_bytes), name


# ── families of 2025 and 2026 ────────────────────────────────────────────────────────────────────────────


def test_a_pattern_of_single_blocks() -> None:
    """Nemotron-H: a mixer takes the feed-forward that follows it; two mixers may follow each other."""
    fields = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 4, "conv_kernel": 4, "expand": 2}
    model = parse(LLAMA, fields, model_type="nemotron_h", hybrid_override_pattern="M-MM*-M-")
    kinds = [(group.count, type(group.attention).__name__, group.feed_forward.intermediate) for group in model.layers]
    assert kinds == [(2, "LinearAttention", 128), (2, "LinearAttention", 0), (1, "SoftmaxAttention", 128)]
    assert "without a mixer before it" in error_of(
        LLAMA, fields, model_type="nemotron_h", hybrid_override_pattern="--MM*-M-"
    )
    assert "must have one of M * E -" in error_of(LLAMA, fields, model_type="nemotron_h", hybrid_override_pattern="MX")
    model = parse(LLAMA, fields, model_type="nemotron_h", hybrid_override_pattern="M---MM*-")  # as in Nemotron-H-47B
    assert [group.feed_forward.intermediate for group in model.layers] == [3 * 128, 0, 128]
    assert "lacks 'hybrid_override_pattern'" in error_of(LLAMA, fields, model_type="nemotron_h")


def test_blocks_that_each_have_fields_of_their_own() -> None:
    """Nemotron-H-Puzzle: the experts of layers 1 and 3 differ in number and width."""
    fields = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 4, "conv_kernel": 4, "expand": 2}
    kinds = ["mamba", "moe", "attention", "moe"]
    blocks = [{"block_type": kind} for kind in kinds]
    blocks[1] |= {"n_routed_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    blocks[3] |= {"n_routed_experts": 4, "moe_intermediate_size": 64, "num_experts_per_tok": 1}
    sizes = {"num_hidden_layers": 4, "n_shared_experts": 0}
    model = parse(LLAMA, fields, sizes, model_type="nemotron_h_puzzle", block_configs=blocks)
    experts = [group.feed_forward for group in model.layers]
    assert [(e.experts, e.expert_intermediate, e.experts_per_token) for e in experts] == [(8, 32, 2), (4, 64, 1)]


PUBLISHED = yaml.safe_load((Path(__file__).parent / "published_configs.yaml").read_text("utf-8"))


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_published_sizes(model_type: str) -> None:
    published = PUBLISHED[model_type]
    common = {"hidden_act": "silu", "max_position_embeddings": 8192, "tie_word_embeddings": False}
    model = parse(common, published["config"], model_type=model_type)
    assert model.parameters == pytest.approx(published["parameters"], rel=5e-3)


TOWERS = yaml.safe_load((Path(__file__).parent / "vision_towers.yaml").read_text("utf-8"))


@pytest.mark.parametrize("row", TOWERS)
def test_towers_beside_the_language_model(row: dict[str, Any]) -> None:
    """Memory holds them in 16 bit, and no count of parameters has them."""
    width, weights = {"hidden_size": row["width"]}, row["weights"]
    alone = parse(**width)
    model = parse(**width, text_config=LLAMA | width, model_type=row["model_type"], vision_config=row["tower"])
    assert model.towers == pytest.approx(weights, rel=2e-2)
    assert model.weight_bytes("bf16") - alone.weight_bytes("bf16") == 2 * model.towers
    assert model.parameters == alone.parameters
    assert ("without vision_config" in model.source) == (weights == 0)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ((MOE,), "n_routed_experts"),
        ((LLAMA, EXPERTS, {"num_local_experts": 4}), "num_local_experts"),
        ((MLA,), "kv_lora_rank"),
        ((LLAMA, LINEAR, {"layer_types": ["linear_attention"] * 8}), "layer_types"),
    ],
)
def test_a_field_without_which_a_model_would_be_another_one(parts: tuple[dict[str, Any], ...], field: str) -> None:
    assert "config.json lacks" in error_of(*parts, without=field)


@pytest.mark.parametrize("nothing", [None, 0])
def test_a_field_of_a_mixture_without_a_value_is_of_a_dense_model(nothing: int | None) -> None:
    assert not parse(LLAMA, num_experts_per_tok=nothing, moe_intermediate_size=nothing).is_moe


def test_layers_that_draft_are_counted_apart() -> None:
    """MiMo-7B: 7.83 billion parameters by its card with the layer for multi-token prediction, 7.62 without."""
    shapes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 36, "vocab_size": 151680}
    model = parse(LLAMA, shapes, num_attention_heads=32, num_key_value_heads=8, num_nextn_predict_layers=1)
    assert model.parameters + model_entry(model)["draft_parameters"] == pytest.approx(7.833e9, rel=1e-3)


def test_layers_that_are_passed_several_times() -> None:
    """Ouro: weights once, and KV and work of each pass; what passes share is not understood."""
    once, thrice = parse(LLAMA), parse(LLAMA, total_ut_steps=3)
    assert thrice.parameters == once.parameters
    assert thrice.kv_bytes_per_token("bf16") == 3 * once.kv_bytes_per_token("bf16")
    head = once.hidden * once.vocab
    assert thrice.matmul_parameters - head == 3 * (once.matmul_parameters - head)
    assert "'loop_share_kv' = True" in error_of(LLAMA, num_loops=2, loop_share_kv=True)


def test_a_model_type_that_is_not_known_is_said() -> None:
    source = parse(LLAMA, model_type="brand_new").source
    assert source == UNKNOWN_TYPE
    assert parse(LLAMA, model_type="ouro").source == ""
    of_class = parse(LLAMA, model_type="my_llama", architectures=["LlamaForCausalLM"], without="tie_word_embeddings")
    assert (of_class.source, of_class.parameters) == ("", parse().parameters)
    assert "'eagle_config' = " in error_of(LLAMA, eagle_config={"layers": [1, 2]})  # a draft model
    sentence = "Llama-3.1-8B is read by the fields of its config.json alone"
    for model in (load_model("Llama-3.1-8B"), replace(load_model("Llama-3.1-8B"), source=source)):
        sentences = " ".join(assumptions(instance_of(problem(model=model))))
        assert (sentence in sentences) == (model.source == source)


def test_fields_that_differ_by_layer() -> None:
    """As a list for all layers, or as an object for some of them (transformers 5)."""
    model = parse(intermediate_size=[128] * 6 + [256] * 2, per_layer_config={"07": {"head_dim": 16}})
    widths = [
        (group.count, group.feed_forward.intermediate, group.attention.kv_elements_per_token) for group in model.layers
    ]
    assert widths == [(6, 128, 32), (1, 256, 32), (1, 256, 64)]
    assert "'per_layer_config' must have" in error_of(per_layer_config={"8": {"head_dim": 16}})
    assert "'intermediate_size' has 2 entries for 8 layers" in error_of(intermediate_size=[128, 256])


def test_forms_that_transformers_saves_anew() -> None:
    """A section beside a tower, whose outer model has the head; windows and sliding heads of layers that are listed."""
    nested = {"model_type": "some_vl", "tie_word_embeddings": False, "vision_config": {}}
    assert parse(nested, text_config={**LLAMA, "tie_word_embeddings": True}).layers == parse().layers
    assert parse(nested, text_config={**LLAMA, "tie_word_embeddings": True}).parameters == parse().parameters
    both = {**nested, "tie_word_embeddings": True}  # classes tie by default, and checkpoints have a head
    assert parse(both, text_config=LLAMA).parameters == parse().parameters
    talks = {"model_type": "some_omni", "talker_config": LLAMA, "thinker_config": {"text_config": LLAMA, "visual": {}}}
    assert (parse(talks).layers, parse(talks).source) == (parse().layers, "without visual")
    windowed = parse(model_type="mimo_v2_flash", sliding_window=129, sliding_window_size=128, swa_num_attention_heads=8,
                     layer_types=["full_attention"] * 2 + ["sliding_attention"] * 6)  # fmt: skip
    assert windows(windowed) == {None: 2, 128: 6}
    listed = {"layer_types": ["full_attention"] * 8, "num_sliding_attention_heads": 8}
    assert windows(parse(listed, LLAMA)) == {None: 8}
    assert "no sliding layers" in error_of(num_sliding_attention_heads=8)
    twice = {"model_type": "some_vl", "text_config": {"model_type": "some_lm", "llm_config": LLAMA}}
    assert parse(twice).layers == parse().layers
    for text in (twice, {"lm_config": LLAMA}, {**LLAMA, "text_config": None}, {**LLAMA, "hidden_size": 64.0}):
        assert parse(text).parameters == parse().parameters
    assert windows(parse(sliding_window=16, sliding_window_pattern="LLLG", head_dim=8)) == {16: 6, None: 2}  # EXAONE
    assert parse(num_key_value_heads=[2] * 8).layers == parse().layers


def test_latent_attention_that_is_off() -> None:
    """DeepSeek-VL2-Tiny: heads, whatever widths of latents stand there; its section may have no model_type."""
    none = {"use_mla": False, "kv_lora_rank": None, "q_lora_rank": None, "v_head_dim": 0, "qk_nope_head_dim": 0}
    text = {key: value for key, value in MOE.items() if key not in ("model_type", "hidden_act")}
    model = parse(model_type="deepseek_vl_v2", language_config={**text, **none, "qk_rope_head_dim": 0})
    assert model.kv_bytes_per_token("bf16") == 8 * 2 * 64 * 2


def test_the_limit_of_the_tokenizer_is_the_context() -> None:
    """Command-R: engines take it instead of the positions; other names count where there are none."""
    assert parse(model_max_length=131_072).max_position == 131_072
    assert parse(without="max_position_embeddings", max_seq_len=8192).max_position == 8192


@pytest.mark.parametrize(
    ("content", "file"),
    [
        ({"do_sample": True, "temperature": 0.6, "eos_token_id": [1]}, "generation_config.json"),
        ({"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}, "tokenizer_config.json"),
        ({"metadata": {"total_size": 1}, "weight_map": {}}, "model.safetensors.index.json"),
        ({"peft_type": "LORA", "r": 16}, "adapter_config.json"),
        ({"dim": 5120, "n_layers": 40, "hidden_dim": 14336, "n_kv_heads": 8}, "params.json"),
    ],
)
def test_another_file_than_the_config_is_said(content: dict[str, Any], file: str) -> None:
    assert f"this looks like {file}" in error_of(content)


COUNTED = yaml.safe_load((Path(__file__).parent / "class_counts.yaml").read_text("utf-8"))
"""Parameters of classes of transformers 5.24 by their defaults, as it counts them on the meta device [1]."""


@pytest.mark.parametrize("model_type", COUNTED)
def test_a_section_that_says_nothing_is_the_default_of_its_class(model_type: str) -> None:
    model = parse_config({"model_type": "some_vl", "text_config": {"model_type": model_type}}, "test")
    assert model.parameters == pytest.approx(COUNTED[model_type], rel=5e-3)


def test_what_a_config_leaves_out_is_its_class_default_and_null_is_not() -> None:
    assert parse(MOE, without="n_shared_experts").layers == parse(MOE).layers
    assert parse(MOE, n_shared_experts=None).parameters < parse(MOE).parameters
    assert parse(hidden_act="relu").layers == parse().layers
    window = {"head_dim": 16, "sliding_window": 4096, "without": "use_sliding_window"}
    assert windows(parse(model_type="qwen3", **window)) == {None: 8}
    assert windows(parse(model_type="mistral", head_dim=8)) == {4096: 8}
    assert windows(parse(model_type="gpt_oss", sliding_window=16, head_dim=8)) == {16: 4, None: 4}
    assert windows(parse(model_type="olmo3", sliding_window=16, head_dim=8)) == {16: 6, None: 2}


def test_adapters_of_shared_attention() -> None:
    """Zamba2-1.2B: queries, keys and values of each layer have an adapter from the doubled width and back to it."""
    kinds = ["mamba", "hybrid"] * 4
    fields = {"mamba_d_state": 8, "mamba_headdim": 16, "n_mamba_heads": 8, "adapter_rank": 4, "num_mem_blocks": 1}
    plain, adapted = (
        parse(LLAMA, fields, model_type="zamba2", layers_block_type=kinds, use_shared_attention_adapter=adapts)
        for adapts in (False, True)
    )
    assert adapted.parameters - plain.parameters == 4 * 3 * 2 * (2 * 64) * 4


def test_experts_for_images_are_stored_and_never_met_by_text() -> None:
    """ERNIE-4.5-VL lists what its two kinds of experts have; each of 7 layers has 4 of either."""
    lists = {"moe_num_experts": [4, 4], "moe_intermediate_size": [32, 8], "moe_layer_start_index": [1, 1]}
    both = parse(LLAMA, lists, model_type="ernie4_5_moe_vl", moe_k=2, moe_layer_end_index=[29, 28])
    text = parse(LLAMA, EXPERTS, {"moe_num_experts": 4, "moe_num_shared_experts": 0}, model_type="ernie4_5_moe")
    assert both.parameters - text.parameters == 7 * 4 * 3 * 64 * 8
    assert both.active_parameters == text.active_parameters


def test_states_of_short_convolutions() -> None:
    """LFM2 keeps the last inputs of its convolutions alone, Mamba-1 the state and those of its inner channels."""
    layers = ["conv", "full_attention"] * 4
    model = parse(model_type="lfm2", conv_L_cache=3, layer_types=layers, block_auto_adjust_ff_dim=False)
    assert model.state_bytes == 4 * 64 * 2 * 2
    mamba = {"state_size": 16, "conv_kernel": 4, "time_step_rank": 4, "intermediate_size": 128}
    assert parse(LLAMA, mamba, model_type="falcon_mamba").state_bytes == 8 * (4 * 128 * 16 + 2 * 3 * 128)


def test_indexers_that_layers_share() -> None:
    """Listed, as letters, or by a rule after the first layers (GLM-5.2); pooled keys and no rotary width (GLM-5.3)."""
    sparse = {"index_topk": 64, "index_n_heads": 2, "index_head_dim": 8}
    shared = {"model_type": "glm_moe_dsa", **sparse, "index_topk_freq": 4, "index_skip_topk_offset": 3}

    def index_heads(model: Transformer) -> list[int]:
        return [group.attention.index_heads for group in model.layers for _ in range(group.count)]

    ruled = parse(MLA, shared)
    assert sum(index_heads(ruled)) == 2 * 4  # layers 0, 1, 2 and 6 of eight
    for kinds in (
        {"index_topk_pattern": "FFFSSSFS"},
        {"indexer_types": ["full"] * 3 + ["shared"] * 3 + ["full", "shared"]},
    ):
        assert parse(MLA, shared, kinds).layers == ruled.layers
    assert "'index_topk_pattern' must have F or S" in error_of(MLA, shared, index_topk_pattern="FSX")
    attends = {"layer_types": ["full_attention"] * 8, "qk_rope_head_dim": 0, "index_kpool": 4}
    pooled = parse(MLA, sparse, attends, model_type="glm5_next_text")
    assert pooled.kv_bytes_per_token("bf16") == 8 * (32 * 2 + (8 + 4) / 4)
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * 6
    windowed = parse(MLA, sparse, layer_types=kinds, sliding_window=16)
    assert index_heads(windowed) == [2, 2, 0, 0, 0, 0, 0, 0]
    assert windowed.kv_bytes(100.0, "bf16") == 2 * 100 * (40 * 2 + 8 + 4) + 6 * 16 * 40 * 2
    sources = [0, 0, 2, 2, 4, 4, 6, 6]
    halved = parse(MLA, sparse, model_type="mistral_large4_text", kv_source_layers=sources)
    assert halved.kv_bytes_per_token("bf16") == pytest.approx(parse(MLA, sparse).kv_bytes_per_token("bf16") / 2)


def test_layers_that_attend_the_latents_of_a_source() -> None:
    """DeepSeek-V4.1: after the last layer that makes latents or looks n-grams up, prompts pass with their window."""
    config = config_of("DeepSeek-V4.1-Flash")
    text = config["text_config"]

    def of(**fields: Any) -> Transformer:
        return parse_config({**config, "text_config": {**text, **fields}}, "test")

    def layers(model: Transformer) -> dict[bool, int]:
        return {tail: sum(group.count for group in model.layers if bool(group.tail) is tail) for tail in (False, True)}

    assert layers(of()) == {False: 21, True: 19}
    assert layers(of(engram_layer_ids=[1, 29])) == {False: 30, True: 10}
    assert layers(of(kv_source_layer_ids=None)) == {False: 40, True: 0}
    plain, engram = (group.dense_elements for group in of().layers[:2])
    assert engram - plain == 24 * 256 * 5 * 5120  # rows of a token to a value, and to a key for each of four streams
    for field, value, words in (
        ("engram_num_embeddings", [1.5, 2], "must list numbers of rows from 1"),
        ("kv_source_layer_ids", [2, 99], "'kv_source_layer_ids' is 99"),
        ("compress_ratios", [0] * 39, "has 39 entries for 40 layers"),
        ("compress_ratios", None, "lacks 'compress_ratios'"),
        ("engram_head_dim", None, "lacks 'engram_head_dim'"),
    ):
        with pytest.raises(ArchitectureError, match=words):
            of(**{field: value})


def test_an_indexer_over_compressed_latents_by_hand() -> None:
    """DeepSeek-V4-Flash: 64 heads of 128, from a query latent of 1,024 and 4,096 channels; its windows overlap."""
    mixers = [group.attention for group in catalog_model("DeepSeek-V4-Flash").layers]
    elements = {
        mixer.ratio: sum(matrix.elements for matrix in mixer.matrices)
        for mixer in mixers
        if isinstance(mixer, CompressedAttention)
    }
    queries, weights, keys_and_gates = 1024 * 64 * 128, 4096 * 64, 2 * 2 * 4096 * 128
    latents_and_gates = 2 * 4096 * 512  # of a second window; without a compressor there is none
    assert elements[4] - elements[128] == queries + weights + keys_and_gates + latents_and_gates
    assert elements[128] - elements[0] == latents_and_gates


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────


SHAPES = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"]


@pytest.mark.parametrize("field", [*SHAPES, "max_position_embeddings"])
@pytest.mark.parametrize("value", [-1, 0, 1.5, float("nan"), "64", True, [64], {}, 10**12])
def test_nonsense_values_are_named(field: str, value: Any) -> None:
    assert re.search(f"'{field}' (is|has) ", error_of(**{field: value}))
    assert f"lacks '{field}'" in error_of(without=field)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"hybrid_layer_pattern": [0, 2] * 4}, "'hybrid_layer_pattern' says 2 for layer 1"),
        ({"sliding_window": 512}, "lacks 'layer_types'"),
        ({"layer_types": ["sliding_attention"] * 8}, "lacks 'sliding_window'"),
        ({"num_experts": 4, "num_experts_per_tok": 2}, "lacks 'moe_intermediate_size'"),
        ({**EXPERTS, "num_experts": 4, "num_experts_per_tok": 5}, "'num_experts_per_tok' is 5, but there are 4"),
        ({**EXPERTS, "num_experts": 4, "num_local_experts": 8}, "must agree"),
        ({**ROUTED, "n_shared_experts": 2, "shared_expert_intermediate_size": 8}, "number and a width"),
        ({"num_key_value_heads": 3}, "'num_attention_heads' 8 is not a multiple of 'num_key_value_heads' 3"),
        ({"hidden_size": 65}, "'hidden_size' 65 is not a multiple of 'num_attention_heads' 8"),
        ({"layer_types": ["full_attention"] * 7 + ["mamba"]}, "'mamba' for layer 7"),
        ({"layer_types": "full_attention"}, "must be a list"),
        ({"model_type": "nemotron-nas", "block_configs": [{"attention": {}, "ffn": {"ffn_mult": 1e999}}] * 8}, "inf"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_named(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in error_of(**{**LLAMA, **fields})


UNKNOWN = (
    "mamba_d_state ssm_state_size hybrid_override_pattern linear_attn_config compress_ratios swa_num_attention_heads "
    "attn_config cross_attention_layers routed_expert_hidden_size is_encoder_decoder "
    "global_head_dim dense_intermediate_size moe_latent_size layer_group_size mla_use_output_gate enable_moe_block "
    "num_dense_layers o_groups adapter_rank num_mem_blocks expert_dtype"
)


@pytest.mark.parametrize("field", UNKNOWN.split())
def test_an_unknown_architecture_is_an_error_that_names_the_field(field: str) -> None:
    for value in (8, True, "M-M*", [3, 8], {"kernel_size": 4}):
        assert f"has {field!r} = " in error_of(**{field: value})


FIELDS = sorted({**MOE, **LINEAR, "sliding_window": 1, "layer_types": 1, "quantization_config": 1, "index_topk": 1,
                 "text_config": 1, "attn_type_list": 1, "moe_layer_freq": 1, "mlp_only_layers": 1, "head_dim": 1,
                 "moe_layers": 1, "full_attention_interval": 1, "rope_scaling": 1})  # fmt: skip
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=9), st.dictionaries(st.text(max_size=12), inner, max_size=3)),
    max_leaves=6,
)


@given(
    base=st.sampled_from([LLAMA, MLA, MOE]),
    changes=st.dictionaries(st.sampled_from(FIELDS), junk, min_size=1, max_size=3),
)
def test_any_config_is_understood_or_refused(base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        model = parse_config({**base, **changes}, "fuzz")
    except ArchitectureError as error:
        refusal = str(error)
    else:
        refusal = "fuzz: understood"
        assert model.parameters > 0
        json.dumps(model_entry(model))
    assert refusal.startswith("fuzz: ")


# --- rotary embeddings as engines are told them: whole, in the notation of transformers 5

PLAIN: dict[str, Any] = {"model_type": "qwen3", "max_position_embeddings": 40_960, "rope_theta": 1e6}
ROTARY = yaml.safe_load((Path(__file__).parent / "rotary_embeddings.yaml").read_text("utf-8"))


@pytest.mark.parametrize("row", ROTARY["scalings"])
def test_a_scaling_is_one_that_extends_what_the_model_was_trained_on(row: dict[str, Any]) -> None:
    scaling = None if row["expected"] is None else ContextScaling(**row["expected"])
    assert context_scaling({**PLAIN, **row["fields"]}, "x") == scaling


@pytest.mark.parametrize("row", ROTARY["embeddings"])
def test_a_rotary_embedding_is_told_whole(row: dict[str, Any]) -> None:
    assert rope_parameters({**PLAIN, **row["fields"]}, "x") == row["expected"]


# --- the catalog of models, and a user's own config.json

TINY_LAYERS = parse_config(TINY, "tiny").layers


def test_a_file_or_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY), "utf-8-sig")
    for name in ("My-Model", "./My-Model", "My-Model/config.json", str(folder)):
        model = load_model(name, tmp_path)
        assert (model.name, model.source, model.layers) == ("My-Model", name, TINY_LAYERS)
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}', "utf-8")
    assert load_model("My-Model", tmp_path).native_weight_dtype == "fp8"


def test_published_configs_equal_the_catalog(data: Path) -> None:
    paths = sorted((data / "models").glob("*/*/config.json"))
    assert paths
    for path in paths:
        published, ours = load_model(str(path)), load_model("/".join(path.parent.parts[-2:]))
        assert published.layers == ours.layers
        assert (published.vocab, published.max_position) == (ours.vocab, ours.max_position)
        if "quantization_config" in path.read_text("utf-8"):
            assert (published.native_weight_dtype, published.quantized) == (ours.native_weight_dtype, ours.quantized)


@pytest.mark.parametrize("field", sorted(TINY.keys() - {"model_type"}))
def test_the_way_out_of_a_missing_field(tmp_path: Path, field: str) -> None:
    """The refusal names a command; the file that it writes says what was assumed, and can be planned with."""
    path, file = tmp_path / "config.json", tmp_path / "model.yaml"
    path.write_text(json.dumps({key: value for key, value in TINY.items() if key != field}), "utf-8")
    with pytest.raises(ArchitectureError, match=f"lacks '{field}'.*pdplan models --from CONFIG -o my-model.yaml"):
        load_model(str(path))
    file.write_text(architecture_text(*model_to_edit(str(path))), "utf-8")
    assert f"# Missing, and assumed: '{field}' = " in file.read_text("utf-8")
    assert load_model(str(file)).parameters > 0


# --- `pdplan models CONFIG --check`: parameters counted by transformers, on no memory


def check(folder: Path, config: dict[str, Any], *options: str) -> Result:
    path = folder / "config.json"
    path.write_text(json.dumps(config), "utf-8")
    return CliRunner().invoke(cli, ["models", str(path), "--check", *options], standalone_mode=False)


def test_without_the_extra_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "EXTRA", ("no_such_module",))
    message = str(check(tmp_path, LLAMA).exception)
    assert message.startswith("--check needs")
    assert message.endswith("pip install 'pdplan[transformers]'")


def test_counts_agree_by_group(tmp_path: Path) -> None:
    for name in models.EXTRA:
        pytest.importorskip(name)
    result = check(tmp_path, LLAMA, "--json")
    record = json.loads(result.stdout)
    assert abs(record["difference"]) < 0.01
    for group in ("embedding", "attention", "feed_forward"):
        ours, theirs = record["groups"][group]
        assert ours == theirs, group
