"""Files -> read back -> the engine configs of plan.json, for every target, on random plans of mixed GPU types."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.errors import InputError
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from costmodel.transformer import Transformer
from optimizer.plans.plan import Plan
from reports.deploy.deployment import DeployedPool
from reports.deploy.files import TARGETS
from reports.deploy.hosts import place
from reports.deploy.lint import Launch, faults, launches
from tests.deploy_cases import Ask, Case, deployment_of, fits, plan_of, plans

COMBINATIONS = [
    ("vllm", "0.20.1", "vllm"),
    ("vllm", "0.22.0", "vllm"),
    ("vllm", "0.24.0", "vllm"),
    ("vllm", "0.31.0", "vllm"),
    ("vllm", "0.33.0", "vllm"),
    ("dynamo", "1.6.1", "vllm"),
    ("dynamo", "1.6.1", "sglang"),
    ("dynamo", "1.6.1", "trtllm"),
    ("llmd", "0.31.0", "vllm"),
    ("llmd", "0.33.0", "vllm"),
    ("sglang", "0.5.23", "sglang"),
    ("trtllm", "1.3.0rc29", "trtllm"),
]
SPREAD = (
    Case("prefill", dp=4, ep=4, seqs=16, tokens=16384),
    Case("decode", dp=4, ep=4, replicas=2, seqs=512, tokens=4096),
)
"""Data ranks that share experts."""
PER_TARGET = 200
"""Random plans that every target sees at least."""


def runs(target: str) -> int:
    """Examples of one combination, so that all of a target make up PER_TARGET."""
    return -(-PER_TARGET // sum(name == target for name, *_ in COMBINATIONS))


@pytest.mark.parametrize(("target", "version", "engine"), COMBINATIONS)
def test_files_say_what_the_plan_says(target: str, version: str, engine: str) -> None:
    seen: Counter[str] = Counter()

    @settings(
        deadline=None,
        max_examples=runs(target) // 2,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        database=None,
    )
    @given(pair=st.tuples(plans(engine), plans(engine)))
    def check(pair: tuple[Plan, Plan]) -> None:
        for plan in pair:
            round_trip(plan, target, version)
            seen["plans"] += 1
            seen["mixed"] += len(plan.gpus) > 1

    check()
    assert seen["plans"] >= runs(target) // 2 * 2
    assert seen["mixed"] > seen["plans"] // 10


def round_trip(plan: Plan, target: str, version: str) -> None:
    deployment = deployment_of(plan, target, version)
    assume(fits(deployment))
    if target == "trtllm":
        assume(all(len(one.hosts) == 1 for one in place(deployment)))
    if version in {"0.20.1", "0.22.0"} or (target == "dynamo" and plan.engine == "vllm"):
        assume(all(pool.pipeline_parallel == 1 for pool in plan.pools if pool.role == "prefill"))
    files = TARGETS[target].files(deployment)
    found = launches(deployment, files)
    assert engines(found) == planned(plan)
    longest = {pool.id: pool.max_model_len for pool in plan.pools}
    for one in found:  # room for a template, up to whole blocks, the model's context and the KV memory
        told, block = one.settings.max_model_len, one.settings.block_tokens
        full = told == deployment.model.max_position or not holds(
            deployment.pool(one.pool), deployment.model, told + block
        )
        assert 128 <= told - longest[one.pool] < 128 + block or full
    assert faults(deployment, files) == []
    given = Counter((host, gpu) for one in place(deployment) for host in one.hosts for gpu in one.gpus)
    assert set(given.values()) == {1}
    assert all(max(one.gpus) < one.pool.node_size for one in place(deployment))


REDUNDANT = Case("colocated", "GB200", dp=72, ep=72, seqs=72 * 16, tokens=72 * 256)
"""72 ranks of 256 experts: 32 second copies, so that each holds four."""


@pytest.mark.parametrize(
    ("target", "engine", "words"),
    [
        ("vllm", "vllm", ("enable-eplb: true", "eplb-config: '{\"num_redundant_experts\":32}'")),
        ("llmd", "vllm", ("- --enable-eplb\n", "'{\"num_redundant_experts\":32}'")),
        ("dynamo", "vllm", ("- --enable-eplb\n", "'{\"num_redundant_experts\":32}'")),
        ("dynamo", "sglang", ("- --enable-eplb\n", "- --ep-num-redundant-experts\n")),
        ("sglang", "sglang", ("--enable-eplb --ep-num-redundant-experts 32",)),
    ],
)
def test_second_copies_of_experts_are_asked_for(target: str, engine: str, words: tuple[str, ...]) -> None:
    plan = plan_of((REDUNDANT,), Ask("DeepSeek-V3", "fp8", "bf16", engine))
    deployment = deployment_of(plan, target)
    files = TARGETS[target].files(deployment)
    text = "\n".join(files.values())
    assert [word for word in words if word not in text] == []
    assert engines(launches(deployment, files)) == planned(plan)
    assert faults(deployment, files) == []
    fewer = {path: re.sub(r"(redundant.experts\W+)32", r"\g<1>31", text) for path, text in files.items()}
    sentences = [sentence for _, sentence in faults(deployment, fewer)]
    assert any("redundant is 31, but the plan was evaluated with 32" in sentence for sentence in sentences)


def test_second_copies_that_no_file_can_ask_for_are_refused() -> None:
    three = Case("colocated", dp=3, ep=3, seqs=3, tokens=1536)
    for dtype, engine, sentence in (
        ("bf16", "trtllm", "EP 3 needs redundant experts \\(1\\), which the files for TensorRT-LLM cannot ask for"),
        (
            "int4",
            "vllm",
            "EP 3 needs redundant experts \\(1\\), which vLLM is sure to load in bf16 and fp8 only, not in int4",
        ),
    ):
        plan = plan_of((three,), Ask("Mixtral-8x7B", dtype, "bf16", engine))
        target = engine if engine == "trtllm" else "vllm"
        with pytest.raises(InputError, match=sentence):
            TARGETS[target].files(deployment_of(plan, target, model="org/name"))


def holds(pool: DeployedPool | None, model: Transformer, tokens: int) -> bool:
    """Whether the KV memory of an engine holds one request of so many tokens."""
    assert pool is not None
    return kv_bytes_peak_per_gpu(model, pool.config, float(tokens)) <= kv_capacity_bytes(model, pool.config)


def engines(found: tuple[Launch, ...]) -> Counter[tuple[object, ...]]:
    """Engines that files start, each as what it is told."""
    count: Counter[tuple[object, ...]] = Counter()
    for one in found:
        told = one.settings
        degrees = (told.tensor, told.pipeline, told.expert, told.data)
        limits = (told.max_num_seqs, told.max_num_batched_tokens)
        key = (one.pool, one.role, *degrees, *limits, told.memory_fraction, told.kv_dtype)
        count[(*key, one.nodes * one.node_gpus)] += one.replicas
    return count


def planned(plan: Plan) -> Counter[tuple[object, ...]]:
    """Engines of plan.json, in the same words."""
    count: Counter[tuple[object, ...]] = Counter()
    for pool in plan.pools:
        degrees = (pool.tensor_parallel, pool.pipeline_parallel, pool.expert_parallel, pool.data_parallel)
        limits = (pool.max_num_seqs, pool.max_num_batched_tokens)
        key = (pool.id, pool.role, *degrees, *limits, pool.memory_fraction, pool.kv_dtype)
        count[(*key, pool.gpus // pool.replicas)] = pool.replicas
    return count
