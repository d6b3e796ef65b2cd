"""Files say what plan.json says of every engine, for every target, on random plans of mixed GPU types."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from optimizer.fleets.build_plan import fleet_of_plan
from optimizer.plans.plan import Plan, Pool
from optimizer.verification.judge import simulated_fleet
from reports.deploy.deployment import Deployment, fact, version_numbers
from reports.deploy.files import deployment_files, refuse_undeployable, start_files
from reports.deploy.hosts import place
from search_spaces.engines import ENGINES
from tests.deploy_cases import (
    ALIKE,
    PAIR,
    RANKS,
    SPARSE,
    Ask,
    Case,
    deployment_of,
    fits,
    options,
    plan_of,
    plans,
    started,
)
from tests.golden_files import assert_golden

COMBINATIONS = [
    ("vllm", "0.20.1", "vllm"),
    ("vllm", "0.22.0", "vllm"),
    ("vllm", "0.24.0", "vllm"),
    ("vllm", "0.31.0", "vllm"),
    ("vllm", "0.33.0", "vllm"),
    ("dynamo", "1.6.1", "vllm"),
    ("dynamo", "1.6.1", "sglang"),
    ("dynamo", "1.6.1", "trtllm"),
    ("llm-d", "0.31.0", "vllm"),
    ("llm-d", "0.33.0", "vllm"),
    ("sglang", "0.5.23", "sglang"),
    ("trtllm", "1.3.0rc29", "trtllm"),
]
PER_TARGET = 40
FLAGS = json.loads(Path(__file__).with_name("engine_flags.json").read_text("utf-8"))
"""What the parsers of engines take."""
"""Random plans that every target sees at least."""


@pytest.mark.parametrize(("target", "version", "engine"), COMBINATIONS)
def test_files_say_what_the_plan_says(target: str, version: str, engine: str) -> None:
    seen: Counter[str] = Counter()
    pairs = -(-PER_TARGET // sum(name == target for name, *_ in COMBINATIONS)) // 2

    @settings(
        max_examples=pairs,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        database=None,
    )
    @given(pair=st.tuples(plans(engine, target), plans(engine, target)))
    def check(pair: tuple[Plan, Plan]) -> None:
        for plan in pair:
            round_trip(plan, target, version)
            seen["plans"] += 1
            seen["mixed"] += len(plan.gpus) > 1

    check()
    assert seen["plans"] >= 2 * pairs
    assert seen["mixed"] > seen["plans"] // 10


def written(plan: Plan, target: str, version: str | None = None) -> dict[str, str]:
    """The files of a plan: they start what was planned."""
    deployment = deployment_of(plan, target, version)
    refuse_undeployable(plan, deployment)
    files = start_files(deployment)
    count: Counter[str] = Counter()
    pools = {pool.id: pool for pool in plan.pools}
    lengths = {pool.id: pool.settings.max_model_len for pool in deployment.pools}
    for name, replicas, flags, _ in started(files):
        count[name] += replicas
        stated = planned_flags(pools[name], deployment, lengths[name])
        written = {flag: flags.get(flag, (flags.get("kv_cache_config") or {}).get(flag)) for flag in stated}
        assert list(map(str, written.values())) == list(map(str, stated.values())), (name, written, stated)
        assert not {flag for flag in flags if flag.startswith("--")} - known_flags(deployment, flags)
    assert count == {pool.id: pool.replicas for pool in plan.pools}
    return files


def known_flags(deployment: Deployment, flags: Mapping[str, Any]) -> set[str]:
    """Those that the program of an engine has, by the dump of its parser; all of TensorRT-LLM on hosts has none."""
    engine, workers = deployment.engine, deployment.target.workers
    if engine == "trtllm" and not workers:
        return set(flags)
    dynamo = FLAGS["dynamo"]["flags"][deployment.options.version][f"{engine}_worker"] if workers else {}
    names = {} if engine == "trtllm" else FLAGS[engine]["flags"]["names"]
    kinds = {flag: dynamo.get(flag) or names.get(flag.replace("--no-", "--")) for flag in flags}
    return {flag for flag, kind in kinds.items() if kind and ("switch" in str(kind)) == (flags[flag] is True)}


def planned_flags(pool: Pool, deployment: Deployment, length: int) -> dict[str, Any]:
    """What an engine of a pool has to be told, in the words of its engine."""
    tp, pp, dp, seqs, tokens = (
        getattr(pool, name) for name in (*(f"{kind}_parallel" for kind in ("tensor", "pipeline", "data")), *LIMITS)
    )
    if deployment.engine == "vllm":
        degrees = {"--tensor-parallel-size": tp, "--pipeline-parallel-size": pp, "--data-parallel-size": dp}
        limits = {"--max-num-seqs": seqs // dp, "--max-num-batched-tokens": tokens // dp, "--max-model-len": length}
        dtype = {"bf16": "bfloat16"}.get(pool.kv_dtype, pool.kv_dtype)
        return {**degrees, **limits, "--gpu-memory-utilization": pool.memory_fraction, "--kv-cache-dtype": dtype}
    if deployment.engine == "sglang":
        limits = {"--max-running-requests": seqs, "--chunked-prefill-size": tokens, "--context-length": length}
        degrees = {"--tp-size": tp * dp, "--pp-size": pp, "--ep-size": pool.expert_parallel}
        dtype = {"fp8": "fp8_e4m3"}.get(pool.kv_dtype, pool.kv_dtype)
        return {**degrees, **limits, "--mem-fraction-static": pool.memory_fraction, "--kv-cache-dtype": dtype}
    degrees = {"tensor_parallel_size": tp * dp, "pipeline_parallel_size": pp}
    limits = {"max_batch_size": seqs // dp // pp, "max_num_tokens": tokens // dp, "max_seq_len": length}
    if deployment.target.workers:
        flags = {f"--{name.replace('_', '-')}": value for name, value in (degrees | limits).items()}
        return flags | {"--free-gpu-memory-fraction": pool.memory_fraction}
    return {**degrees, **limits, "free_gpu_memory_fraction": pool.memory_fraction}


LIMITS = ("max_num_seqs", "max_num_batched_tokens")


def round_trip(plan: Plan, target: str, version: str) -> None:
    deployment = deployment_of(plan, target, version)
    assume(fits(deployment))
    if target == "trtllm":
        assume(all(len(one.hosts) == 1 for one in place(deployment)))
    if version in {"0.20.1", "0.22.0"} or (target == "dynamo" and plan.engine == "vllm"):
        assume(all(pool.pipeline_parallel == 1 for pool in plan.pools if pool.role == "prefill"))
    written(plan, target, version)
    for pool, own in zip(deployment.pools, plan.pools, strict=True):
        # room for a template, up to whole blocks, the model's context and the KV memory
        length, block = pool.settings.max_model_len, pool.settings.block_tokens
        longer = kv_bytes_peak_per_gpu(deployment.model, pool.config, float(length + block))
        full = length == deployment.model.max_position or longer > kv_capacity_bytes(deployment.model, pool.config)
        assert 128 <= length - own.max_model_len < 128 + block or full
    given = Counter((host, gpu) for one in place(deployment) for host in one.hosts for gpu in one.gpus)
    assert set(given.values()) == {1}
    assert all(max(one.gpus) < one.pool.config.accelerator.node_size for one in place(deployment))


# --- what files say of settings that only some plans have: each line that says so, as golden text

REDUNDANT = (Case("colocated", "GB200", dp=72, ep=72, seqs=72 * 16, tokens=72 * 256),)
"""72 ranks of 256 experts: 32 second copies, so that each holds four."""
WIDE = Case("prefill", dp=16, ep=16, seqs=256, tokens=16 * 1024)
"""Sixteen ranks on two nodes, which send tokens to their experts alone unless NVLink joins the nodes."""
FIRST, LATER, ALONE = Case("prefill", seqs=8, tokens=8192), Case("decode"), (Case("colocated", tp=2),)
WIDER, WIDEST = ((Case("colocated", gpu, tp=tp, tokens=8192),) for gpu, tp in (("H100", 4), ("H200", 8)))
AMD = replace(FIRST, gpu="MI300X")
FIRST_OF_8, LATER_OF_8 = (replace(case, gpu="H200", tp=8) for case in (FIRST, LATER))
FOUR_EACH = (replace(FIRST, tp=4), replace(LATER, tp=4))
EXPERTS = Ask("DeepSeek-V3", "fp8")
MTP = replace(EXPERTS, draft="mtp", drafted=3)
EAGLE3 = Ask(draft="eagle3", drafted=2, draft_model="org/draft")
NGRAM = Ask(draft="ngram", drafted=4)
TIER = Ask(prefix=0.8, tier="200GB")
PLAIN = (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm"))
EVERY = (*PLAIN, ("llm-d", "vllm"), ("dynamo", "vllm"), ("dynamo", "sglang"), ("dynamo", "trtllm"))


def drafting(ask: Ask) -> tuple[Case, ...]:
    tp = 8 if ask.draft == "mtp" else 1
    return replace(FIRST, gpu="H200", tp=tp), Case("decode", "H200", tp=tp, seqs=512, tokens=4096)


def of_ranks(seqs: int, tokens: int) -> tuple[Case, ...]:
    """A decode engine whose data ranks each have so many requests and tokens a step: DeepEP's buffers have to do."""
    return FIRST_OF_8, Case("decode", "H200", dp=16, ep=16, seqs=16 * seqs, tokens=16 * tokens)


Stated = tuple[tuple[Case, ...], Ask, Sequence[tuple[str, str]]]
SAID: dict[str, tuple[str, list[Stated]]] = {
    "second copies of experts": (r"eplb|redundant", [(REDUNDANT, EXPERTS, (*EVERY[:2], *EVERY[3:6]))]),
    "kernels that send tokens to experts": (
        r"a2a|all2all",
        [
            ((WIDE, LATER_OF_8), EXPERTS, PLAIN[:1]),
            ((FIRST_OF_8, replace(WIDE, role="decode")), EXPERTS, PLAIN[:2]),
            ((replace(WIDE, role="colocated"),), EXPERTS, PLAIN[:1]),
            ((FIRST_OF_8, replace(WIDE, role="decode", gpu="GB200")), EXPERTS, PLAIN[:1]),
        ],
    ),
    "room of those kernels": (
        r"a2a|all2all|NVSHMEM|DISPATCH",
        [
            *((of_ranks(64, tokens), EXPERTS, PLAIN[:1]) for tokens in (511, 512, 1025)),
            *((of_ranks(seqs, 2048), EXPERTS, PLAIN[1:2]) for seqs in (128, 129, 1024, 1025)),
        ],
    ),
    "attention kernels that generations of GPUs share": (
        r"attention.backend|several generations",
        [
            *(((FIRST, replace(LATER, gpu=gpu)), Ask(), PLAIN[:2]) for gpu in ("H200", "B200")),
            *(((AMD, replace(LATER, gpu=gpu)), Ask(), PLAIN[:1]) for gpu in ("MI325X", "MI355X")),
        ],
    ),
    "tokens that are drafted": (
        r"specul|draft|decoding_type|ngram|overlap_s|graph|batch_size",
        [(drafting(MTP), MTP, EVERY), *((drafting(ask), ask, PLAIN) for ask in (EAGLE3, NGRAM))],
    ),
    "KV in host memory": (
        r"offload|host_cache|hicache|hierarchical|cpu_bytes|lruCap|sharedMem|sizeLimit|autoTune|MultiConnector",
        [(ALONE, TIER, (*PLAIN, *EVERY[3:5])), (PAIR, TIER, (PLAIN[0], EVERY[3], *EVERY[5:]))],
    ),
    "dtype of states": (
        r"mamba.*dtype",
        [(WIDER, Ask(name), PLAIN) for name in ("Qwen3-Next-80B-A3B", "Qwen3.6-27B", "Llama-3.1-8B")],
    ),
    "end of prompts alone": (
        r"bounded.replay",
        [
            *((WIDEST, Ask(name, "fp8", "fp8"), PLAIN[:2]) for name in ("DeepSeek-V4.1-Flash", "DeepSeek-V4-Flash")),
            ((replace(WIDE, role="colocated"),), Ask("DeepSeek-V4.1-Flash", "fp8", "fp8"), PLAIN[:2]),
        ],
    ),
    "layers that keep their own share of a request": (
        r"hybrid.kv",
        [
            ((FIRST, LATER), Ask("gpt-oss-20b", "fp4"), (("vllm 0.22.1", "vllm"), ("vllm 0.23.0", "vllm"))),
            ((Case("colocated", tokens=8192),), Ask("gpt-oss-20b", "fp4"), (("vllm 0.22.1", "vllm"),)),
            ((FIRST, LATER), Ask(), (("vllm 0.22.1", "vllm"),)),
            (FOUR_EACH, Ask("Qwen3-Next-80B-A3B"), (("vllm 0.20.0", "vllm"),)),
            (FOUR_EACH, Ask("Llama-4-Scout-17B-16E"), (("vllm 0.22.1", "vllm"),)),  # chunks, of which vLLM refuses it
        ],
    ),
}  # fmt: skip
"""Words that say so, and the plans: pools, what they share, and the targets (of a version) with their engines."""


def test_golden_settings() -> None:
    text = ""
    for name, (words, cases) in SAID.items():
        for pools, ask, targets in cases:
            for target, engine in targets:
                files = written(plan_of(pools, replace(ask, engine=engine)), *target.split())
                split = " + ".join(
                    f"{case.role} {case.gpu} TP{case.tp} DP{case.dp} {case.seqs}/{case.tokens}" for case in pools
                )
                text += f"### {name}: {ask.draft or ask.model}, {split}; {target} with {engine}\n"
                text += "".join(f"{paths}: {word}\n" for word, paths in said(files, words).items())
    assert_golden("deploy/settings.txt", text)


def said(files: dict[str, str], words: str) -> dict[str, str]:
    """Lines, or options of a line, that have one of the words, each with the first file that has it and how many do."""
    found: dict[str, list[str]] = {}
    for path, text in files.items():
        if not path.startswith(("benchmark/", "planner", "monitoring/")):
            parts = (part.strip() for part in re.split(r"\n(?! *- '?[{\d\"])| (?=--)", text))
            for part in dict.fromkeys(part for part in parts if re.search(words, part)):
                found.setdefault(part, []).append(path)
    return {part: f"{paths[0]}{f' and {len(paths) - 1} more' * (len(paths) > 1)}" for part, paths in found.items()}


# --- what engines are told of scheduling is what the simulation of the plan did, for every engine and role

APART = (Case("prefill", tp=2, seqs=16, tokens=8192), Case("decode", "H200", tp=2, seqs=128, tokens=512))
TOGETHER = (Case("colocated", tp=2, seqs=64, tokens=2048),)
IN_STAGES = (Case("colocated", tp=2, pp=2, seqs=64, tokens=2048),)
ON_RANKS = (Case("colocated", ep=4, dp=4, seqs=64, tokens=8192),)
FLEETS = [(APART, ""), (TOGETHER, ""), (IN_STAGES, ""), (ON_RANKS, "Qwen3-30B-A3B")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("pools", "model"), FLEETS)
def test_limits_are_those_of_the_simulation(engine: str, pools: tuple[Case, ...], model: str) -> None:
    plan = plan_of(pools, Ask(model or "Llama-3.1-8B", engine=engine))
    deployment = deployment_of(plan, engine)
    simulated = dict(zip([pool.id for pool in plan.pools], simulated_fleet(*fleet_of_plan(plan)), strict=True))
    for deployed in deployment.pools:
        pool, settings = simulated[deployed.id], deployed.settings
        limits = pool.limits
        assert (deployed.role, settings.pipeline) == (pool.role, pool.pipeline)
        assert (settings.max_num_seqs, settings.block_tokens) == (limits.max_num_seqs, limits.block_size)
        assert settings.max_num_batched_tokens == limits.max_num_batched_tokens
        rank = settings.max_num_batched_tokens // settings.data
        assert min(limits.long_prefill_threshold, limits.max_num_batched_tokens) == rank


# --- manifests against the schemas of their resources, strictly, and flags against the dumps of the engines' parsers


def loaded(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize(("pools", "mode"), [(PAIR, "disagg"), (ALIKE, "agg")])
def test_planner_config_passes_its_schema(data: Path, pools: tuple[Case, ...], mode: str) -> None:
    schema = loaded(data / "deploy" / "schemas" / "dynamo_planner_config_1.6.1.schema.json")
    text = deployment_files(plan_of(pools), options("dynamo"))["planner-configmap.yaml"]
    config = json.loads(yaml.safe_load(text)["data"]["planner_config.json"])
    jsonschema.validate(config, schema | {"additionalProperties": False})  # strictly
    assert config["mode"] == mode
    assert config["max_gpu_budget"] == sum(case.replicas * case.tp for case in pools)
    assert (config["ttft_ms"], config["itl_ms"]) == (600.0, 30.0)  # the tighter of the plan's two classes


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_parsers_take_every_flag_with_every_word(engine: str) -> None:
    facts = FLAGS[engine]["flags"]
    for version, (name, row) in product(facts["versions"], fact("engines", engine, "flags").items()):
        since, number, before = map(version_numbers, (row.get("since", ""), version, row.get("before", "99")))
        if since <= number < before:
            kinds = facts["names"][name.partition(".")[0]]
            kind = kinds[version] if isinstance(kinds, dict) else kinds
            words = {str(word) for word in (*row.get("spelled", {}).values(), row.get("value")) if word is not None}
            assert isinstance(kind, str) or words <= set(kind), (version, name)


# --- engines that span nodes: who is told what where, and what carries the traffic between them


def command(pod: dict[str, Any], index: int) -> list[str]:
    """The command line of a pod of a group, as Kubernetes, and a shell if there is one, make it."""
    container = pod["spec"]["containers"][0]
    known = {"LWS_LEADER_ADDRESS": "leader.svc", "LWS_WORKER_INDEX": str(index)}
    words = [
        re.sub(r"(?<!\$)\$\((\w+)\)", lambda found: known[found[1]], word).replace("$$(", "$(")
        for word in [*container["command"], *container["args"]]
    ]
    if words[0] != "sh":
        return words
    words[2] = words[2].replace("exec vllm serve", "printf '%s\\n' vllm serve")
    done = subprocess.run(words, env=os.environ | known, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_data_ranks_are_counted_on_over_the_nodes() -> None:
    """By the shell that workers start in, which takes no word of a user's for code."""
    nasty = "a$(touch x)'\";`id`"
    files = deployment_files(plan_of(RANKS, SPARSE), options("llm-d", model=nasty))
    _, decode = yaml.safe_load(files["pools/disaggregatedset.yaml"])["spec"]["roles"]
    worker = decode["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    for index in (1, 2):
        words = command(worker, index)
        assert words[2] == nasty
        assert words[words.index("--data-parallel-size-local") + 1] == "8"
        assert words[-3:] == ["--headless", "--data-parallel-start-rank", str(8 * index)]
