"""Every rule refuses what it should, with its reason, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from costmodel.engine import Draft, Parallelism, Speculation
from costmodel.errors import InputError
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
from search_spaces.loader import load_problem
from search_spaces.models import load_model as catalog_model
from search_spaces.problem import Problem
from tests.golden_files import assert_golden
from tests.optimizer_cases import model, offer, problem, space, workload
from tests.running import TINY
from tests.toy import deepseek_v3, dense, llama_8b, mixtral

ODD_WIDTH = dense("odd", 4, 4096, 32, 8, 14338, 32000)
"""14338 = 2 x 7169: TP 4 divides the 32 heads but not the width."""
Case = tuple[Parallelism, Problem]


def case(*split: int, gpu: str = "H100", inventory: int | None = None, **changes: object) -> Case:
    """A split (TP, PP, EP, DP) that one rule refuses."""
    offers = (offer(gpu, inventory=inventory),)
    return Parallelism(*split), problem(**({"model": llama_8b(), "offers": offers} | changes))


def trtllm(*split: int, **changes: object) -> Case:
    return case(*split, engine="trtllm", **changes)


DRAFTS = {
    "speculation": Speculation(Draft.NGRAM, 0, (0.5,)),
    "space": space(speculative_tokens=(2,)),
    "engine": "sglang",
}
FP8 = {"weight_dtype": "fp8"}
CASES = (
    trtllm(gpu="MI300X"),
    trtllm(gpu="A100-80", **FP8),
    case(gpu="A100-80", model=deepseek_v3(), kv_dtype="fp8"),
    trtllm(model=replace(llama_8b(), cache_quantizer="modelopt")),
    case(gpu="B200", model=catalog_model("DeepSeek-V4-Flash"), kv_dtype="bf16", **FP8),
    case(3),
    case(4, model=dense("six", 4, 3072, 24, 6, 8192, 32000)),
    case(2, 1, 2),
    trtllm(1, 1, 3, 3, model=mixtral(), target="trtllm"),
    case(1, 1, 1, 2, model=mixtral()),
    trtllm(2, 1, 4, 2, model=mixtral()),
    case(gpu="MI300X", target="dynamo"),
    trtllm(8, 2, target="trtllm", space=space(max_gpus_per_engine=16)),
    case(4, model=ODD_WIDTH),
    case(8, model=catalog_model("MiniMax-M2"), **FP8),
    case(16),
    case(1, 64),
    case(1, 2, **DRAFTS),
    case(1, 1, 2, 2, model=mixtral(), **DRAFTS),
    case(8, 2),
    case(4, inventory=3),
    case(8, model=deepseek_v3(), **FP8),
    case(gpu="L4", workload=workload(max_tokens=131_000)),
)


def test_golden_refusals() -> None:
    """Each case by one rule, with its reason; every rule has a case."""
    text, rules = "", set()
    for split, given in CASES:
        shape = Shape(0, split, given.weight_dtype, given.kv_dtype, given.full_space.speculative_tokens[0])
        refused = refusal(given, shape)
        rules.add(refused[0])
        text += f"{refused[0]}: {refused[1]}\n"
    assert_golden("engine_rules.txt", text)
    assert rules == set(RULES)


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


def test_what_is_advised_where_a_model_is_too_large_for_a_node_helps(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    sections = {"model": {"name": "DeepSeek-V3", "weight_dtype": "fp8"}, "accelerators": ["H100"]}
    path.write_text(yaml.safe_dump(TINY | sections | {"search": "quick"}), "utf-8")
    with pytest.raises(InputError, match=r"a wider search preset, or .* pipeline_parallel together with max_gpus_per"):
        load_problem(path)
    for search in ("standard", {"preset": "quick", "pipeline_parallel": [1, 2], "max_gpus_per_engine": 16}):
        assert enumerate_shapes(load_problem(path, {"search": search})).shapes
