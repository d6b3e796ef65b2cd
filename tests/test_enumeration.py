"""Every rule refuses what it should, with its reason, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from costmodel.engine import Parallelism, Role
from costmodel.errors import InputError
from costmodel.memory import kv_capacity_bytes
from costmodel.transformer import Part, Transformer, WeightScale
from optimizer.loads.diagnose import check_shapes
from search_spaces.enumeration import (
    RULES,
    Enumeration,
    Shape,
    candidates,
    engine_config,
    enumerate_shapes,
    refusal,
)
from search_spaces.hf_quantization import split_refused
from search_spaces.huggingface import parse_config
from search_spaces.models import load_model as catalog_model
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import accelerator, model, offer, problem, space, workload
from tests.toy import deepseek_v3, dense, llama_8b, mixtral


@dataclass(frozen=True)
class Case:
    """A split that one rule refuses."""

    rule: str
    split: Parallelism
    reason: str
    model: Transformer | None = None
    changes: tuple[tuple[str, object], ...] = ()
    offer: str = "H100"
    inventory: int | None = None

    def problem(self) -> Problem:
        bought = offer(self.offer, inventory=self.inventory)
        return problem(**({"model": self.model or llama_8b(), "offers": (bought,)} | dict(self.changes)))


ODD_WIDTH = dense("odd", 4, 4096, 32, 8, 14338, 32000)
"""14338 = 2 x 7169: TP 4 divides the 32 heads but not the width."""

CASES = (
    Case(
        "engine_runs_there",
        Parallelism(),
        "trtllm runs on nvidia GPUs only",
        changes=(("engine", "trtllm"),),
        offer="MI300X",
    ),
    Case(
        "weights_have_kernels",
        Parallelism(),
        "A100-80 has no fp8 units, and trtllm no kernels that expand fp8 weights there",
        changes=(("weight_dtype", "fp8"), ("engine", "trtllm")),
        offer="A100-80",
    ),
    Case(
        "weights_have_kernels",
        Parallelism(),
        "H200 has no fp4 units, and trtllm no kernels that expand fp4 weights there",
        changes=(("weight_dtype", "fp4"), ("engine", "trtllm")),
        offer="H200",
    ),
    Case(
        "kv_cache_has_kernels",
        Parallelism(),
        "A100-80 has no fp8 units, and vllm reads latents there in 16 bit only",
        deepseek_v3(),
        changes=(("kv_dtype", "fp8"),),
        offer="A100-80",
    ),
    Case("tensor_divides_heads", Parallelism(tensor=3), "TP 3 does not divide 32 attention heads"),
    Case("tensor_divides_heads", Parallelism(tensor=64), "TP 64 does not divide 32 attention heads"),
    Case(
        "tensor_matches_kv_heads",
        Parallelism(tensor=4),
        "TP 4 and 6 KV heads do not divide each other",
        dense("six", 4, 3072, 24, 6, 8192, 32000),
    ),
    Case("experts_spread_evenly", Parallelism(tensor=2, expert=2), "EP needs a mixture of experts"),
    Case(
        "experts_spread_evenly",
        Parallelism(expert=3, data=3),
        "EP 3 needs redundant experts (1), which the files for TensorRT-LLM cannot ask for",
        mixtral(),
        changes=(("target", "trtllm"), ("engine", "trtllm")),
    ),
    Case(
        "experts_spread_evenly",
        Parallelism(tensor=4, expert=2),
        "EP 2 does not span all TP x DP = 4 ranks",
        mixtral(),
    ),
    Case("data_parallel_shares_experts", Parallelism(data=2), "DP inside an engine needs a mixture of experts"),
    Case(
        "data_parallel_is_the_engines",
        Parallelism(tensor=2, expert=4, data=2),
        "TP 2 x DP 2: TensorRT-LLM runs attention data-parallel over all ranks or none",
        mixtral(),
        changes=(("engine", "trtllm"),),
    ),
    Case(
        "target_schedules_there",
        Parallelism(),
        "the files of dynamo ask for devices of nvidia, not of amd",
        changes=(("target", "dynamo"),),
        offer="MI300X",
    ),
    Case(
        "target_schedules_there",
        Parallelism(tensor=8, pipeline=2),
        "the files of trtllm start no engine of 16 GPUs on several nodes",
        changes=(("target", "trtllm"), ("engine", "trtllm"), ("space", space(max_gpus_per_engine=16))),
    ),
    Case("data_parallel_shares_experts", Parallelism(data=2), "DP 2 needs EP over all 2 ranks", mixtral()),
    Case(
        "tensor_divides_widths",
        Parallelism(tensor=4),
        "TP 4 does not divide the feed-forward width 14,338",
        ODD_WIDTH,
    ),
    Case(
        "tensor_divides_widths",
        Parallelism(tensor=8),
        "TP 8 within an expert does not divide its width 14340",
        replace(
            mixtral(),
            layers=tuple(
                replace(group, feed_forward=replace(group.feed_forward, expert_intermediate=14340))
                for group in mixtral().layers
            ),
        ),
    ),
    Case(
        "tensor_keeps_weight_blocks",
        Parallelism(tensor=8),
        "TP 8 cuts the expert width 1,536 into 192, no multiple of the 128 weights that share a scale",
        catalog_model("MiniMax-M2"),
        changes=(("weight_dtype", "fp8"),),
    ),
    Case(
        "tensor_keeps_weight_blocks",
        Parallelism(tensor=4),
        "TP 4 cuts the feed-forward width 29,568 into 7,392, no multiple of the 128 weights that share a scale",
        replace(catalog_model("Qwen2.5-72B"), native_weight_dtype="int4", weight_scale=WeightScale(1, 128, 2.5)),
        changes=(("weight_dtype", "int4"),),
    ),
    Case("tensor_fits_scale_up", Parallelism(tensor=16), "TP 16 does not fit in one scale-up domain of 8 GPUs"),
    Case(
        "tensor_fits_scale_up",
        Parallelism(tensor=4),
        "TP 4 does not fit in one scale-up domain of 2 GPUs",
        offer="H100-NVL",
    ),
    Case("pipeline_has_layers", Parallelism(pipeline=64), "PP 64 exceeds 32 layers"),
    Case("gpus_make_an_engine", Parallelism(tensor=8, pipeline=2), "16 GPUs exceed max_gpus_per_engine 8"),
    Case("limits_allow_an_engine", Parallelism(tensor=4), "4 GPUs exceed the inventory of 3 H100", inventory=3),
    Case(
        "limits_allow_an_engine",
        Parallelism(tensor=4),
        "4 GPUs exceed max_gpus 3",
        changes=(("constraints", Constraints(max_gpus=3)),),
    ),
    Case(
        "gpus_make_an_engine",
        Parallelism(tensor=4, pipeline=3),
        "12 GPUs do not fill whole nodes of 8",
        changes=(("space", space(max_gpus_per_engine=64)),),
    ),
    Case(
        "model_and_one_request_fit",
        Parallelism(tensor=8),
        "weights do not fit in memory",
        deepseek_v3(),
        changes=(("weight_dtype", "fp8"),),
    ),
    Case(
        "model_and_one_request_fit",
        Parallelism(),
        "KV cache of one request of 131000 tokens does not fit in memory",
        changes=(("workload", workload(max_tokens=131_000)),),
        offer="L4",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.split.gpus}-{case.offer}")
def test_a_rule_refuses_with_its_reason(case: Case) -> None:
    given = case.problem()
    shape = Shape(0, case.split, given.weight_dtype, given.kv_dtype)
    assert refusal(given, shape) == (case.rule, case.reason)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


BLOCKS = {
    ("MiniMax-M2", 8): False,
    ("MiniMax-M2", 4): True,
    ("Qwen/Qwen3-235B-A22B-FP8", 8): False,
    ("Qwen/Qwen3-235B-A22B-FP8", 4): True,
    ("Qwen/Qwen3-30B-A3B-FP8", 4): False,
    ("Qwen/Qwen3-30B-A3B-FP8", 2): True,
    ("Qwen/Qwen3-32B-FP8", 8): True,
    ("zai-org/GLM-4.5-FP8", 8): True,  # a scale per channel
    ("deepseek-ai/DeepSeek-R1", 16): True,
    ("deepseek-ai/DeepSeek-R1", 32): False,  # 18,432 / 32 = 576 of the dense layers
    ("moonshotai/Kimi-K2-Instruct", 16): True,
    ("moonshotai/Kimi-K2.5", 16): True,  # groups of 32 in experts only
    ("gpt-oss-120b", 8): True,  # padded
    ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 4): True,
    ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 8): False,
}
"""Whether an engine takes a checkpoint at a tensor-parallel degree, experts split too; vLLM issues 17569 and 54178,
SGLang issues 3345 and 10852, QwenLM/Qwen3 issue 1485."""


@pytest.mark.parametrize(("name", "tensor"), BLOCKS)
def test_blocks_of_weights_stay_whole(name: str, tensor: int) -> None:
    checkpoint = catalog_model(name)
    dtype = checkpoint.native_weight_dtype
    refused = split_refused(checkpoint, Parallelism(tensor=tensor), dtype)
    assert (refused is None) == BLOCKS[name, tensor]
    assert split_refused(checkpoint, Parallelism(tensor=tensor), "bf16") is None
    whole = split_refused(checkpoint, Parallelism(tensor=tensor, expert=tensor), dtype)
    assert (whole is None) == (BLOCKS[name, tensor] or (name, tensor) not in DENSE_TOO)


DENSE_TOO = {("deepseek-ai/DeepSeek-R1", 32), ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 8)}
"""Refused for a dense or shared width, which expert parallelism does not keep whole."""


def test_qwen3_coder_in_fp8() -> None:
    """2,560 / 8 = 320; the config at hand is that of the BF16 checkpoint, from which the FP8 one differs in this."""
    coder = {"hidden_size": 6144, "num_hidden_layers": 62, "num_attention_heads": 96, "num_key_value_heads": 8}
    widths = {"intermediate_size": 8192, "moe_intermediate_size": 2560, "num_experts": 160, "num_experts_per_tok": 8}
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    rest = {"model_type": "qwen3_moe", "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144}
    checkpoint = parse_config({**coder, **widths, **rest, "quantization_config": quantization}, "coder")
    assert split_refused(checkpoint, Parallelism(tensor=8), "fp8") == (
        "TP 8 cuts the expert width 2,560 into 320, no multiple of the 128 weights that share a scale"
    )
    for split in (Parallelism(tensor=4), Parallelism(tensor=8, expert=8), Parallelism(tensor=4, pipeline=2)):
        assert split_refused(checkpoint, split, "fp8") is None


@pytest.mark.parametrize(
    ("scale", "tensor", "reason"),
    [
        (WeightScale(128, 128, 4.0), 4, None),
        (WeightScale(1, 128, 2.0), 8, None),
        (WeightScale(1, 1024, 2.0), 8, "TP 8 cuts the attention width 4,096 into 512"),
        (WeightScale(128, 1024, 4.0), 8, "TP 8 cuts the attention width 4,096 into 512"),
        (WeightScale(4096, 128, 4.0), 8, None),  # QKV, gate and up are stored side by side
    ],
)
def test_rows_are_split_by_inputs(scale: WeightScale, tensor: int, reason: str | None) -> None:
    quantised = replace(llama_8b(), native_weight_dtype="int8", weight_scale=scale)
    assert (split_refused(quantised, Parallelism(tensor=tensor), "int8") or "").split(", no")[0] == (reason or "")
    spared = replace(quantised, quantized=frozenset({Part.EXPERTS}))
    assert split_refused(spared, Parallelism(tensor=tensor), "int8") is None


def test_outputs_of_latent_attention_are_split_too() -> None:
    """128 heads x 192 wide queries over 128 ranks leave 192 outputs of a block of 128."""
    latent = replace(deepseek_v3(), native_weight_dtype="fp8", weight_scale=WeightScale(128, 128, 4.0))
    latent = replace(latent, quantized=frozenset({Part.ATTENTION}))
    assert split_refused(latent, Parallelism(tensor=64), "fp8") is None
    assert (split_refused(latent, Parallelism(tensor=128), "fp8") or "").startswith("TP 128 cuts the attention width")


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3", "Qwen3-Next-80B-A3B"])
def test_what_is_accepted_satisfies_every_rule_and_what_is_not_fails_one(name: str) -> None:
    degrees = (1, 2, 3, 4, 8, 16)
    given = problem(
        model=model(name),
        weight_dtype="fp8" if name == "DeepSeek-V3" else "bf16",
        offers=(offer("H200"), offer("L40S", inventory=4)),
        space=space(
            tensor_parallel=degrees,
            pipeline_parallel=(1, 2),
            expert_parallel=(1, 8, 16),
            data_parallel=(1, 8),
            max_gpus_per_engine=16,
        ),
    )
    found = enumerate_shapes(given)
    assert found.shapes
    for index in range(len(given.offers)):
        for shape in candidates(given, index):
            reasons = [rule(given, shape) for rule in RULES.values()]
            assert (shape in found.shapes) == (reasons == [None] * len(RULES))


def test_shapes_come_in_the_order_of_offers_and_all_are_counted() -> None:
    given = problem(offers=(offer("H100"), offer("L4")), space=space(tensor_parallel=(1, 2, 3)))
    found = enumerate_shapes(given)
    assert [(shape.offer, shape.parallelism.tensor) for shape in found.shapes] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert found.considered == 6
    assert found.dropped == {
        "H100: TP 3 does not divide 32 attention heads": 1,
        "L4: TP 3 does not divide 32 attention heads": 1,
    }
    assert len(found.shapes) + sum(found.dropped.values()) == found.considered


def test_an_accepted_engine_has_room_for_the_longest_request() -> None:
    given = problem(workload=workload(max_tokens=100_000), offers=(offer("H100"), offer("H200")))
    for shape in enumerate_shapes(given).shapes:
        config = engine_config(given, shape, Role.COLOCATED, 1, 2048)
        held = given.model.kv_bytes_per_token("bf16") * 100_000 / shape.parallelism.tensor
        assert kv_capacity_bytes(given.model, config) >= held * (1 - 1e-9)
        assert config.accelerator is given.offers[shape.offer].accelerator


def test_a_longer_limit_only_ever_refuses_more() -> None:
    def shapes(tokens: int) -> set[object]:
        given = problem(offers=(offer("L4"), offer("H100")), workload=workload(max_tokens=tokens))
        return set(enumerate_shapes(given).shapes)

    assert shapes(131_000) < shapes(20_000) <= shapes(8192)


def test_a_large_memory_runs_what_a_small_one_does() -> None:
    small = problem(offers=(offer("A100-40"),), space=space(tensor_parallel=(1, 2, 4, 8)))
    large = problem(offers=(offer("A100-80"),), space=small.space)
    assert accelerator("A100-40").memory < accelerator("A100-80").memory
    assert set(enumerate_shapes(small).shapes) <= set(enumerate_shapes(large).shapes)


def test_no_shape_at_all_is_said_for_every_accelerator() -> None:
    given = problem(model=model("Llama-3.1-405B"), offers=(offer("H100"), offer("L4")))
    with pytest.raises(InputError) as caught:
        check_shapes(given, enumerate_shapes(given))
    for name in ("H100", "L4"):
        assert f"756 GiB of weights) runs on no engine of {name} within the search space: " in str(caught.value)


def test_blocks_that_no_split_keeps_whole_are_said_with_the_mend() -> None:
    given = problem(
        model=catalog_model("MiniMax-M2"),
        weight_dtype="fp8",
        offers=(offer("H100"),),
        space=space(tensor_parallel=(8,), expert_parallel=(1,)),
    )
    with pytest.raises(InputError, match=r"allow a smaller search\.tensor_parallel, or search\.expert_parallel"):
        check_shapes(given, enumerate_shapes(given))


def test_some_shape_is_enough() -> None:
    given = problem()
    found = enumerate_shapes(given)
    check_shapes(given, found)
    check_shapes(given, Enumeration(found.shapes[:1], 1, {}))
