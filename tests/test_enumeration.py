"""Every rule refuses what it should, with its reason, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.engine import Draft, Parallelism, Speculation
from search_spaces.enumeration import (
    RULES,
    Shape,
    block_tokens,
    candidates,
    enumerate_shapes,
    refusal,
    refusals,
    usual_kv_dtype,
)
from search_spaces.models import load_model as catalog_model
from search_spaces.problem import Problem
from tests.optimizer_cases import model, offer, problem, space, workload
from tests.toy import deepseek_v3, dense, llama_8b, mixtral

ODD_WIDTH = dense("odd", 4, 4096, 32, 8, 14338, 32000)
"""14338 = 2 x 7169: TP 4 divides the 32 heads but not the width."""
BLOCK = "no multiple of the 128 weights that share a scale"

Case = tuple[str, str, Parallelism, Problem]


def case(
    rule: str, reason: str, *split: int, gpu: str = "H100", inventory: int | None = None, **changes: object
) -> Case:
    """A split (TP, PP, EP, DP) that one rule refuses."""
    offers = (offer(gpu, inventory=inventory),)
    return rule, reason, Parallelism(*split), problem(**({"model": llama_8b(), "offers": offers} | changes))


DRAFTS = {"speculation": Speculation(Draft.NGRAM, 0, (0.5,)), "space": space(speculative_tokens=(2,))}

CASES = (
    case("engine_runs_there", "TensorRT-LLM runs on NVIDIA GPUs only", gpu="MI300X", engine="trtllm"),
    case(
        "weights_have_kernels",
        "A100-80 has no fp8 units, and TensorRT-LLM no kernels that expand fp8 weights there",
        gpu="A100-80",
        weight_dtype="fp8",
        engine="trtllm",
    ),
    case(
        "kv_cache_has_kernels",
        "A100-80 has no fp8 units, and vLLM reads latents there in 16 bit only",
        gpu="A100-80",
        model=deepseek_v3(),
        kv_dtype="fp8",
    ),
    case(
        "kv_cache_has_kernels",
        "TensorRT-LLM keeps the KV of a checkpoint that states so in fp8 only",
        model=replace(llama_8b(), cache_quantizer="modelopt"),
        engine="trtllm",
    ),
    case(
        "kv_cache_has_kernels",
        "vLLM keeps the KV of compressed attention in fp8 only",
        gpu="B200",
        model=catalog_model("DeepSeek-V4-Flash"),
        weight_dtype="fp8",
        kv_dtype="bf16",
    ),
    case("tensor_divides_heads", "TP 3 does not divide 32 attention heads", 3),
    case(
        "tensor_matches_kv_heads",
        "TP 4 and 6 KV heads do not divide each other",
        4,
        model=dense("six", 4, 3072, 24, 6, 8192, 32000),
    ),
    case("experts_spread_evenly", "EP needs a mixture of experts", 2, 1, 2),
    case(
        "experts_spread_evenly",
        "EP 3 needs redundant experts (1), which the files for TensorRT-LLM cannot ask for",
        *(1, 1, 3, 3),
        model=mixtral(),
        target="trtllm",
        engine="trtllm",
    ),
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
    case(
        "tensor_keeps_weight_blocks",
        f"TP 8 cuts the expert width 1,536 into 192, {BLOCK}",
        8,
        model=catalog_model("MiniMax-M2"),
        weight_dtype="fp8",
    ),
    case("tensor_fits_scale_up", "TP 16 does not fit in one scale-up domain of 8 GPUs", 16),
    case("pipeline_has_layers", "PP 64 exceeds 32 layers", 1, 64),
    case("drafts_run_there", "SGLang does not draft tokens with PP 2", 1, 2, engine="sglang", **DRAFTS),
    case(
        "drafts_run_there",
        "SGLang does not draft tokens by ngram with DP 2",
        *(1, 1, 2, 2),
        model=mixtral(),
        engine="sglang",
        **DRAFTS,
    ),
    case("gpus_make_an_engine", "16 GPUs exceed max_gpus_per_engine 8", 8, 2),
    case("limits_allow_an_engine", "4 GPUs exceed the inventory of 3 H100", 4, inventory=3),
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
    shape = Shape(0, split, given.weight_dtype, given.kv_dtype, given.full_space.speculative_tokens[0])
    assert refusal(given, shape) == (rule, reason)


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == set(RULES)


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


def test_compressed_attention_gets_the_cache_and_the_blocks_that_engines_have_for_it() -> None:
    compressed, latent = catalog_model("DeepSeek-V4-Flash"), deepseek_v3()
    kv_dtypes = [usual_kv_dtype("vllm", own, own.native_weight_dtype) for own in (compressed, latent)]
    assert kv_dtypes == ["fp8", "bf16"]
    assert [block_tokens(engine, compressed) for engine in ("vllm", "sglang")] == [256, 256]
    assert block_tokens("vllm", latent) == 64
