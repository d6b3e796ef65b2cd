"""Every rule refuses what it should, with its reason, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.engine import Parallelism
from costmodel.transformer import Part, WeightScale
from search_spaces.enumeration import (
    RULES,
    Shape,
    candidates,
    enumerate_shapes,
    refusal,
    refusals,
)
from search_spaces.hf_quantization import split_refused
from search_spaces.models import load_model as catalog_model
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import accelerator, model, offer, problem, space, workload
from tests.toy import deepseek_v3, dense, llama_8b, mixtral

ODD_WIDTH = dense("odd", 4, 4096, 32, 8, 14338, 32000)
"""14338 = 2 x 7169: TP 4 divides the 32 heads but not the width."""
ODD_EXPERTS = replace(
    mixtral(),
    layers=tuple(
        replace(group, feed_forward=replace(group.feed_forward, expert_intermediate=14340))
        for group in mixtral().layers
    ),
)
GROUPS = replace(catalog_model("Qwen2.5-72B"), native_weight_dtype="int4", weight_scale=WeightScale(1, 128, 2.5))
BLOCK = "no multiple of the 128 weights that share a scale"

Case = tuple[str, str, Parallelism, Problem]


def case(
    rule: str, reason: str, *split: int, gpu: str = "H100", inventory: int | None = None, **changes: object
) -> Case:
    """A split (TP, PP, EP, DP) that one rule refuses."""
    offers = (offer(gpu, inventory=inventory),)
    return rule, reason, Parallelism(*split), problem(**({"model": llama_8b(), "offers": offers} | changes))


CASES = (
    case("engine_runs_there", "trtllm runs on nvidia GPUs only", gpu="MI300X", engine="trtllm"),
    case(
        "weights_have_kernels",
        "A100-80 has no fp8 units, and trtllm no kernels that expand fp8 weights there",
        gpu="A100-80",
        weight_dtype="fp8",
        engine="trtllm",
    ),
    case(
        "weights_have_kernels",
        "H200 has no fp4 units, and trtllm no kernels that expand fp4 weights there",
        gpu="H200",
        weight_dtype="fp4",
        engine="trtllm",
    ),
    case(
        "kv_cache_has_kernels",
        "A100-80 has no fp8 units, and vllm reads latents there in 16 bit only",
        gpu="A100-80",
        model=deepseek_v3(),
        kv_dtype="fp8",
    ),
    case("tensor_divides_heads", "TP 3 does not divide 32 attention heads", 3),
    case("tensor_divides_heads", "TP 64 does not divide 32 attention heads", 64),
    case(
        "tensor_matches_kv_heads",
        "TP 4 and 6 KV heads do not divide each other",
        4,
        model=dense("six", 4, 3072, 24, 6, 8192, 32000),
    ),
    case("experts_spread_evenly", "EP needs a mixture of experts", 2, 1, 2),
    case("experts_spread_evenly", "EP 2 does not span all TP x DP = 4 ranks", 4, 1, 2, model=mixtral()),
    case(
        "experts_spread_evenly",
        "EP 3 needs redundant experts (1), which the files for TensorRT-LLM cannot ask for",
        *(1, 1, 3, 3),
        model=mixtral(),
        target="trtllm",
        engine="trtllm",
    ),
    case("data_parallel_shares_experts", "DP inside an engine needs a mixture of experts", 1, 1, 1, 2),
    case("data_parallel_shares_experts", "DP 2 needs EP over all 2 ranks", 1, 1, 1, 2, model=mixtral()),
    case(
        "data_parallel_is_the_engines",
        "TP 2 x DP 2: TensorRT-LLM runs attention data-parallel over all ranks or none",
        *(2, 1, 4, 2),
        model=mixtral(),
        engine="trtllm",
    ),
    case(
        "target_schedules_there",
        "the files of dynamo ask for devices of nvidia, not of amd",
        gpu="MI300X",
        target="dynamo",
    ),
    case(
        "target_schedules_there",
        "the files of trtllm start no engine of 16 GPUs on several nodes",
        *(8, 2),
        target="trtllm",
        engine="trtllm",
        space=space(max_gpus_per_engine=16),
    ),
    case("tensor_divides_widths", "TP 4 does not divide the feed-forward width 14,338", 4, model=ODD_WIDTH),
    case("tensor_divides_widths", "TP 8 within an expert does not divide its width 14340", 8, model=ODD_EXPERTS),
    case(
        "tensor_keeps_weight_blocks",
        f"TP 8 cuts the expert width 1,536 into 192, {BLOCK}",
        8,
        model=catalog_model("MiniMax-M2"),
        weight_dtype="fp8",
    ),
    case(
        "tensor_keeps_weight_blocks",
        f"TP 4 cuts the feed-forward width 29,568 into 7,392, {BLOCK}",
        4,
        model=GROUPS,
        weight_dtype="int4",
    ),
    case("tensor_fits_scale_up", "TP 16 does not fit in one scale-up domain of 8 GPUs", 16),
    case("tensor_fits_scale_up", "TP 4 does not fit in one scale-up domain of 2 GPUs", 4, gpu="H100-NVL"),
    case("pipeline_has_layers", "PP 64 exceeds 32 layers", 1, 64),
    case("gpus_make_an_engine", "16 GPUs exceed max_gpus_per_engine 8", 8, 2),
    case("gpus_make_an_engine", "12 GPUs do not fill whole nodes of 8", 4, 3, space=space(max_gpus_per_engine=64)),
    case("limits_allow_an_engine", "4 GPUs exceed the inventory of 3 H100", 4, inventory=3),
    case("limits_allow_an_engine", "4 GPUs exceed max_gpus 3", 4, constraints=Constraints(max_gpus=3)),
    case("model_and_one_request_fit", "weights do not fit in memory", 8, model=deepseek_v3(), weight_dtype="fp8"),
    case(
        "model_and_one_request_fit",
        "KV cache of one request of 131000 tokens does not fit in memory",
        gpu="L4",
        workload=workload(max_tokens=131_000),
    ),
)


@pytest.mark.parametrize(("rule", "reason", "split", "given"), CASES)
def test_a_rule_refuses_with_its_reason(rule: str, reason: str, split: Parallelism, given: Problem) -> None:
    shape = Shape(0, split, given.weight_dtype, given.kv_dtype)
    assert refusal(given, shape) == (rule, reason)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == set(RULES)


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
            assert (shape in found.shapes) == (not list(refusals(given, shape)))


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
