"""Files -> read back -> the engine configs of plan.json, for every target, on random plans of mixed GPU types."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from optimizer.plans.plan import Plan
from reports.deploy.files import TARGETS
from reports.deploy.found import Found
from reports.deploy.lint import faults
from reports.deploy.placement import place
from tests.deploy_cases import deployment_of, fits, options, plans

COMBINATIONS = [
    ("vllm", "0.20.1", "vllm", "v1beta1"),
    ("vllm", "0.24.0", "vllm", "v1beta1"),
    ("vllm", "0.31.0", "vllm", "v1beta1"),
    ("vllm", "0.33.0", "vllm", "v1beta1"),
    ("dynamo", "1.6.1", "vllm", "v1beta1"),
    ("dynamo", "1.6.1", "vllm", "v1alpha1"),
    ("dynamo", "1.6.1", "sglang", "v1beta1"),
    ("dynamo", "1.6.1", "trtllm", "v1beta1"),
    ("llmd", "0.31.0", "vllm", "v1beta1"),
    ("llmd", "0.33.0", "vllm", "v1beta1"),
    ("sglang", "0.5.23", "sglang", "v1beta1"),
    ("trtllm", "1.3.0rc29", "trtllm", "v1beta1"),
]
PER_TARGET = 200
"""Random plans that every target sees at least."""


def runs(target: str) -> int:
    """Examples of one combination, so that all of a target make up PER_TARGET."""
    return -(-PER_TARGET // sum(name == target for name, *_ in COMBINATIONS))


@pytest.mark.parametrize(("target", "version", "engine", "api"), COMBINATIONS)
def test_files_say_what_the_plan_says(target: str, version: str, engine: str, api: str) -> None:
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
            round_trip(plan, target, version, api)
            seen["plans"] += 1
            seen["mixed"] += len(plan.gpus) > 1

    check()
    assert seen["plans"] >= runs(target) // 2 * 2
    assert seen["mixed"] > seen["plans"] // 10


def round_trip(plan: Plan, target: str, version: str, api: str) -> None:
    deployment = deployment_of(plan, target, version, api=api)
    assume(fits(deployment))
    if target == "llmd":
        assume(all(pool.nodes == 1 for pool in deployment.pools))
    if target == "trtllm":
        assume(all(len(one.hosts) == 1 for one in place(deployment)))
    if version == "0.20.1" or (target == "dynamo" and plan.engine == "vllm"):
        assume(all(pool.pipeline_parallel == 1 for pool in plan.pools if pool.role == "prefill"))
    files = TARGETS[target].files(deployment)
    found = TARGETS[target].read(deployment, files)
    assert engines(found) == planned(plan)
    assert faults(deployment, found) == []


def engines(found: Found) -> Counter[tuple[object, ...]]:
    """Engines that files start, each as what it is told."""
    count: Counter[tuple[object, ...]] = Counter()
    for one in found.workers:
        told = one.settings
        degrees = (told.tensor, told.pipeline, told.expert, told.data)
        limits = (told.max_num_seqs, told.max_num_batched_tokens, told.max_model_len)
        key = (one.pool, one.role, *degrees, *limits, round(told.memory_fraction, 5), told.kv_dtype)
        count[(*key, one.nodes * one.node_gpus)] += one.replicas
    return count


def planned(plan: Plan) -> Counter[tuple[object, ...]]:
    """Engines of plan.json, in the same words."""
    count: Counter[tuple[object, ...]] = Counter()
    for pool in plan.pools:
        degrees = (pool.tensor_parallel, pool.pipeline_parallel, pool.expert_parallel, pool.data_parallel)
        limits = (pool.max_num_seqs, pool.max_num_batched_tokens, pool.max_model_len)
        key = (pool.id, pool.role, *degrees, *limits, round(pool.memory_fraction, 5), pool.kv_dtype)
        count[(*key, pool.gpus // pool.replicas)] = pool.replicas
    return count


def test_options_are_checked() -> None:
    assert options("vllm").version == "0.33.0"
