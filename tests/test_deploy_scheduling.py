"""What engines are told of scheduling is what the simulation of the plan did, for every engine and role."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.simulator import SCHEDULERS, Pool
from optimizer.fleets.plan_fleet import fleet_of_plan
from optimizer.verification.judge import simulated_fleet
from reports.deploy.files import TARGETS
from reports.deploy.lint import Launch, launches
from search_spaces.engines import load_serving_policy
from tests.deploy_cases import Ask, Case, deployment_of, plan_of

APART = (Case("prefill", tp=2, seqs=16, tokens=8192), Case("decode", "H200", tp=2, seqs=128, tokens=512))
TOGETHER = (Case("colocated", tp=2, seqs=64, tokens=2048),)
STAGES = (Case("colocated", tp=2, pp=2, seqs=64, tokens=2048),)
RANKS = (Case("colocated", ep=4, dp=4, seqs=64, tokens=8192),)
FLEETS = [(APART, ""), (TOGETHER, ""), (STAGES, ""), (RANKS, "Qwen3-30B-A3B")]
every_engine = pytest.mark.parametrize("engine", SCHEDULERS)


def told(engine: str, pools: tuple[Case, ...], model: str) -> list[tuple[Launch, dict[str, Any], Pool]]:
    """Every engine of the plain target: as its files are read, what they say word for word, and what was simulated."""
    plan = plan_of(pools, Ask(model or "Llama-3.1-8B", engine=engine))
    deployment = deployment_of(plan, engine)
    files = TARGETS[engine].files(deployment)
    found = launches(deployment, files)
    simulated = dict(zip([pool.id for pool in plan.pools], simulated_fleet(*fleet_of_plan(plan)).pools, strict=True))
    return [
        (one, yaml.safe_load(files[one.where]) if engine == "trtllm" else dict(one.words), simulated[one.pool])
        for one in found
    ]


@every_engine
@pytest.mark.parametrize(("pools", "model"), FLEETS)
def test_limits_are_those_of_the_simulation(engine: str, pools: tuple[Case, ...], model: str) -> None:
    for one, _words, pool in told(engine, pools, model):
        limits = pool.limits
        assert one.role == pool.role.value
        assert one.settings.max_num_seqs == limits.max_num_seqs
        assert one.settings.max_num_batched_tokens == limits.max_num_batched_tokens
        assert one.settings.block_tokens == limits.block_size
        assert one.settings.pipeline == pool.pipeline
        rank = one.settings.max_num_batched_tokens // one.settings.data
        assert min(limits.long_prefill_threshold, limits.max_num_batched_tokens) == rank


@every_engine
@pytest.mark.parametrize(("pools", "model"), FLEETS)
def test_order_and_chunks_are_those_of_the_simulated_policy(engine: str, pools: tuple[Case, ...], model: str) -> None:
    read = {"vllm": _vllm_policy, "sglang": _sglang_policy, "trtllm": _trtllm_policy}[engine]
    for _one, words, pool in told(engine, pools, model):
        simulated = pool.policy
        assert read(words) == {
            "chunked": simulated.chunked,
            "apart": simulated.exclusive_prefill,
            "never preempted": simulated.reserve_output == 1.0,
        }


def _vllm_policy(words: dict[str, Any]) -> dict[str, bool]:
    assert words["--scheduling-policy"] == "fcfs"
    return {"chunked": "--enable-chunked-prefill" in words, "apart": False, "never preempted": False}


def _sglang_policy(words: dict[str, Any]) -> dict[str, bool]:
    assert words["--schedule-policy"] == "fcfs"
    return {
        "chunked": int(words["--chunked-prefill-size"]) > 0,
        "apart": "--enable-mixed-chunk" not in words,
        "never preempted": False,
    }


def _trtllm_policy(words: dict[str, Any]) -> dict[str, bool]:
    scheduler = words["scheduler_config"]
    assert scheduler["context_chunking_policy"] == "FIRST_COME_FIRST_SERVED"
    return {
        "chunked": words["enable_chunked_prefill"],
        "apart": False,
        "never preempted": scheduler["capacity_scheduler_policy"] == "GUARANTEED_NO_EVICT",
    }


@every_engine
@pytest.mark.parametrize(("pools", "model"), FLEETS)
def test_every_decode_batch_has_a_cuda_graph(engine: str, pools: tuple[Case, ...], model: str) -> None:
    """Of one step of one data rank: its share of the requests, and that of a stage where the engine counts steps."""
    for one, words, pool in told(engine, pools, model):
        stages = 1 if engine == "vllm" else pool.pipeline
        most = pool.limits.max_num_seqs // (one.settings.data * stages)
        reach = {
            "vllm": words.get("--max-cudagraph-capture-size"),
            "sglang": words.get("--cuda-graph-max-bs-decode"),
            "trtllm": words.get("cuda_graph_config", {}).get("max_batch_size"),
        }[engine]
        assert (reach is None) == (pool.role is Role.PREFILL)
        assert reach is None or int(reach) >= most


def test_tensorrt_llm_is_told_the_requests_of_one_step() -> None:
    """As many steps as stages are in flight: 64 requests in two stages are 32 at a time; 33 would be 66."""
    ((_one, words, pool),) = told("trtllm", STAGES, "")
    assert (words["max_batch_size"], pool.limits.max_num_seqs) == (32, 64)
    odd = plan_of((Case("colocated", tp=2, pp=2, seqs=63),), Ask(engine="trtllm"))
    with pytest.raises(InputError, match="max_num_seqs 63 is not a multiple of DP 1 x PP 2"):
        TARGETS["trtllm"].files(deployment_of(odd, "trtllm"))


@every_engine
def test_decode_engines_pull_where_their_connector_does(engine: str) -> None:
    """vLLM and TensorRT-LLM load at one step and decode in the next; SGLang's prefill engines write ahead of it."""
    fleet = simulated_fleet(*fleet_of_plan(plan_of(APART, Ask("Llama-3.1-8B", engine=engine))))
    pulls = fleet.pools[-1].policy.pulls
    assert pulls == (engine != "sglang")
    assert load_serving_policy(engine).hand_over_steps == pulls
