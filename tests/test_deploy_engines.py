"""Files -> read back -> the engine configs of plan.json, for every target, on random plans of mixed GPU types."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.engine import SCHEDULERS
from costmodel.errors import InputError
from costmodel.memory import kv_bytes_peak_per_gpu, kv_capacity_bytes
from costmodel.simulator.fleet import SimulatedPool
from costmodel.transformer import Transformer
from optimizer.fleets.build_plan import fleet_of_plan
from optimizer.plans.plan import Plan
from optimizer.verification.judge import simulated_fleet
from reports.deploy.deployment import SWITCH, DeployedPool, Deployment, legal_flag
from reports.deploy.files import WRITERS, deployment_files
from reports.deploy.hosts import place
from reports.deploy.lint import Launch, faults, launches
from search_spaces.models import load_model
from tests.deploy_cases import ALIKE, PAIR, RANKS, SPARSE, Ask, Case, deployment_of, fits, options, plan_of, plans

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
"""Random plans that every target sees at least."""


def runs(target: str) -> int:
    """Examples of one combination, so that all of a target make up PER_TARGET."""
    return -(-PER_TARGET // sum(name == target for name, *_ in COMBINATIONS))


@pytest.mark.parametrize(("target", "version", "engine"), COMBINATIONS)
def test_files_say_what_the_plan_says(target: str, version: str, engine: str) -> None:
    seen: Counter[str] = Counter()

    @settings(
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


def written(plan: Plan, target: str, words: Sequence[str] = ()) -> tuple[Deployment, dict[str, str]]:
    """The files of a plan: they have all of the words, start what was planned and break no rule."""
    deployment = deployment_of(plan, target)
    files = WRITERS[target](deployment)
    text = "\n".join(files.values())
    assert [word for word in words if word not in text] == []
    assert engines(launches(deployment, files)) == planned(plan)
    assert faults(deployment, files) == []
    return deployment, files


def altered(deployment: Deployment, files: dict[str, str], old: str, new: Any) -> list[str]:
    """The faults of the files with a change in all of them."""
    texts = {path: re.sub(old, new, text, flags=re.MULTILINE) for path, text in files.items()}
    return [sentence for _, sentence in faults(deployment, texts)]


def round_trip(plan: Plan, target: str, version: str) -> None:
    deployment = deployment_of(plan, target, version)
    assume(fits(deployment))
    if target == "trtllm":
        assume(all(len(one.hosts) == 1 for one in place(deployment)))
    if version in {"0.20.1", "0.22.0"} or (target == "dynamo" and plan.engine == "vllm"):
        assume(all(pool.pipeline_parallel == 1 for pool in plan.pools if pool.role == "prefill"))
    files = WRITERS[target](deployment)
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
    assert all(max(one.gpus) < one.pool.config.accelerator.node_size for one in place(deployment))


REDUNDANT = Case("colocated", "GB200", dp=72, ep=72, seqs=72 * 16, tokens=72 * 256)
"""72 ranks of 256 experts: 32 second copies, so that each holds four."""


@pytest.mark.parametrize(
    ("target", "engine", "words"),
    [
        ("vllm", "vllm", ("enable-eplb: true", "eplb-config: '{\"num_redundant_experts\":32}'")),
        ("llm-d", "vllm", ("- --enable-eplb\n", "'{\"num_redundant_experts\":32}'")),
        ("dynamo", "vllm", ("- --enable-eplb\n", "'{\"num_redundant_experts\":32}'")),
        ("dynamo", "sglang", ("- --enable-dp-attention\n", "- --enable-eplb\n", "- --ep-num-redundant-experts\n")),
        (
            "sglang",
            "sglang",
            ("--attn-dp-size 72 --load-balance-method total_tokens", "--enable-eplb --ep-num-redundant-experts 32"),
        ),
    ],
)
def test_second_copies_of_experts_are_asked_for(target: str, engine: str, words: tuple[str, ...]) -> None:
    case = written(plan_of((REDUNDANT,), Ask("DeepSeek-V3", "fp8", "bf16", engine)), target, words)
    sentences = altered(*case, r"(redundant.experts\W+)32", r"\g<1>31")
    assert any("redundant is 31, but the plan was evaluated with 32" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("accelerator", "role", "engine", "words"),
    [
        ("H100", "prefill", "vllm", "all2all-backend: deepep_high_throughput"),
        ("H100", "decode", "vllm", "all2all-backend: deepep_low_latency"),
        ("H100", "decode", "sglang", "--moe-a2a-backend deepep"),
        ("H100", "colocated", "vllm", ""),  # kernels are for one role each
        ("GB200", "decode", "vllm", ""),  # NVLink joins its servers
    ],
)
def test_tokens_go_to_their_experts_alone_between_servers(accelerator: str, role: str, engine: str, words: str) -> None:
    wide = Case(role, accelerator, dp=16, ep=16, seqs=256, tokens=16 * 1024)
    cases = {"prefill": (wide, Case("decode")), "decode": (Case("prefill"), wide), "colocated": (wide,)}[role]
    plan = plan_of(cases, Ask("DeepSeek-V3", "fp8", "bf16", engine))
    files = WRITERS[engine](deployment_of(plan, engine))
    text = "\n".join(files.values())
    assert words in text
    assert ("a2a" in text or "all2all" in text) == bool(words)


@pytest.mark.parametrize(
    ("engine", "seqs", "tokens", "variables"),
    [
        ("vllm", 64, 511, {}),
        ("vllm", 64, 512, {"NVSHMEM_QP_DEPTH": "1026"}),
        ("vllm", 64, 1025, None),
        ("sglang", 128, 2048, {}),
        ("sglang", 129, 2048, {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "129"}),
        ("sglang", 1024, 2048, {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "1024", "NVSHMEM_QP_DEPTH": "2050"}),
        ("sglang", 1025, 2048, None),
    ],
)
def test_deepep_has_room_for_the_largest_decode_step(
    engine: str, seqs: int, tokens: int, variables: dict[str, str] | None
) -> None:
    """Of a data rank; None: beyond what its kernels take, so that the engine's default sends tokens."""
    decode = Case("decode", "H200", dp=16, ep=16, seqs=16 * seqs, tokens=16 * tokens)
    deployment = deployment_of(
        plan_of((Case("prefill", "H200"), decode), Ask("DeepSeek-V3", "fp8", engine=engine)), engine
    )
    prefill, pool = deployment.pools
    assert (deployment.exchange(pool) is None) == (variables is None)
    told = {name: value for name, value in deployment.engine_env(pool) if name != "UCX_TLS"}
    assert told == (variables or {})
    assert dict(deployment.engine_env(prefill)) == {"UCX_TLS": "all"}


@pytest.mark.parametrize(
    ("engine", "gpus", "backend"),
    [
        ("vllm", ("H100", "H200"), None),
        ("sglang", ("H100", "H200"), None),
        ("vllm", ("H200", "B200"), "FLASHINFER"),
        ("sglang", ("A100-80", "H100"), "flashinfer"),
        ("vllm", ("MI300X", "MI325X"), None),
        ("vllm", ("MI300X", "MI355X"), "TRITON_ATTN"),
    ],
)
def test_generations_of_gpus_share_a_kernel_and_gpus_of_one_choose_their_own(
    engine: str, gpus: tuple[str, str], backend: str | None
) -> None:
    cases = (Case("prefill", gpus[0], seqs=8, tokens=8192), Case("decode", gpus[1]))
    deployment = deployment_of(plan_of(cases, Ask(engine=engine)), engine)
    assert {pool.settings.attention_backend for pool in deployment.pools} == {backend}
    page = deployment_files(plan_of(cases, Ask(engine=engine)), options(engine))["README.md"]
    assert ("of several generations" in page) == (backend is not None)


@pytest.mark.parametrize(
    ("model", "version", "role", "told"),
    [
        ("gpt-oss-20b", "0.22.1", "decode", True),
        ("Qwen3-Next-80B-A3B", "0.20.0", "decode", True),
        ("gpt-oss-20b", "0.23.0", "decode", False),  # which does so by itself
        ("gpt-oss-20b", "0.22.1", "colocated", False),
        ("Llama-3.1-8B", "0.22.1", "decode", False),
        ("Llama-4-Scout-17B-16E", "0.22.1", "decode", False),  # attends in chunks, of which vLLM refuses it
    ],
)
def test_layers_keep_their_own_share_of_a_request(model: str, version: str, role: str, *, told: bool) -> None:
    tp = 4 if model.startswith(("Llama-4", "Qwen3-Next")) else 1
    cases = (Case("prefill", tp=tp, seqs=8, tokens=8192), Case("decode", tp=tp))
    plan = plan_of(
        cases if role == "decode" else (Case("colocated", tokens=8192),),
        Ask(model, load_model(model).native_weight_dtype),
    )
    files = WRITERS["vllm"](deployment_of(plan, "vllm", version))
    workers = [text for path, text in files.items() if path.startswith("workers/") and path.endswith(".yaml")]
    assert all(("\nno-disable-hybrid-kv-cache-manager: true\n" in text) == told for text in workers)
    assert legal_flag("vllm", version, "--no-disable-hybrid-kv-cache-manager") == SWITCH


MTP = Ask("DeepSeek-V3", "fp8", draft="mtp", drafted=3)
EAGLE3 = Ask(draft="eagle3", drafted=2, draft_model="org/draft")
NGRAM = Ask(draft="ngram", drafted=4)
DRAFTED: list[tuple[str, str, Ask, list[str]]] = [
    ("vllm", "vllm", MTP, ['speculative-config: \'{"method":"mtp","num_speculative_tokens":3}\'', "size: 2048"]),
    ("vllm", "vllm", EAGLE3, ['{"method":"eagle3","model":"org/draft","num_speculative_tokens":2}']),
    ("vllm", "vllm", NGRAM, ['{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}']),
    ("llm-d", "vllm", MTP, ["- --speculative-config\n", '{"method":"mtp","num_speculative_tokens":3}']),
    ("dynamo", "vllm", MTP, ["- --speculative-config\n", '{"method":"mtp","num_speculative_tokens":3}']),
    ("dynamo", "sglang", MTP, ["- --speculative-num-steps\n"]),
    ("dynamo", "trtllm", MTP, ['"speculative_config":{"decoding_type":"MTP","max_draft_len":3}']),
    (
        "sglang",
        "sglang",
        MTP,
        [
            "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-num-draft-tokens 4 "
            "--speculative-eagle-topk 1 ",
            "--cuda-graph-max-bs-decode 512",
        ],
    ),
    ("sglang", "sglang", EAGLE3, ["--speculative-algorithm EAGLE3 --speculative-draft-model-path org/draft "]),
    ("sglang", "sglang", NGRAM, ["--speculative-algorithm NGRAM ", "--speculative-ngram-max-bfs-breadth 1 "]),
    (
        "trtllm",
        "trtllm",
        MTP,
        ["speculative_config:\n  decoding_type: MTP\n  max_draft_len: 3\n", "  max_batch_size: 512\n"],
    ),
    ("trtllm", "trtllm", EAGLE3, ["decoding_type: Eagle3\n  speculative_model: org/draft\n  max_draft_len: 2\n"]),
    ("trtllm", "trtllm", NGRAM, ["disable_overlap_scheduler: true\n", "  max_matching_ngram_size: 4\n"]),
]


@pytest.mark.parametrize(("target", "engine", "ask", "words"), DRAFTED)
def test_engines_draft_as_many_tokens_as_planned(target: str, engine: str, ask: Ask, words: list[str]) -> None:
    split: dict[str, Any] = {"gpu": "H200", "tp": 8} if ask is MTP else {"gpu": "H200"}
    pools = (Case("prefill", seqs=8, tokens=8192, **split), Case("decode", seqs=512, tokens=4096, **split))
    case = written(plan_of(pools, replace(ask, engine=engine)), target, words)
    drafts = {(one.settings.draft, one.settings.draft_model) for one in launches(*case)}
    assert drafts == {(ask.draft, ask.draft_model)}
    number = r"((?:num_speculative_tokens|max_draft_len)\W+|speculative-num-(?:steps|draft-tokens)\s+(?:- ')?)(\d)"
    sentence = f"speculative_tokens is {ask.drafted + 1}, but the plan was evaluated with {ask.drafted}"
    assert any(sentence in one for one in altered(*case, number, lambda match: f"{match[1]}{int(match[2]) + 1}"))


ALONE = (Case("colocated", tp=2),)
TIERED = [
    ("vllm", "vllm", ALONE, ["kv-offloading-backend: native\n", "kv-offloading-size: 372.53\n"]),
    ("vllm", "vllm", PAIR, ['"kv_connector":"MultiConnector"', '"cpu_bytes_to_use":400000000000}']),
    ("llm-d", "vllm", ALONE, ["- '372.53'\n", "lruCapacityPerServer: 190734\n", "sizeLimit: 437Gi\n"]),
    ("llm-d", "vllm", PAIR, ['"cpu_bytes_to_use":400000000000}', "autoTune: false\n"]),
    ("dynamo", "vllm", ALONE, ["- '372.53'\n", "sharedMemorySize: 437Gi\n"]),
    ("dynamo", "sglang", PAIR, ["- --enable-hierarchical-cache\n", "- '200'\n"]),
    ("dynamo", "trtllm", PAIR, ['"host_cache_size":200000000000']),
    ("sglang", "sglang", ALONE, ["--enable-hierarchical-cache --hicache-size 200 "]),
    ("trtllm", "trtllm", ALONE, ["host_cache_size: 200000000000\n"]),
]


@pytest.mark.parametrize(("target", "engine", "pools", "words"), TIERED)
def test_engines_that_compute_prompts_keep_kv_in_host_memory(
    target: str, engine: str, pools: tuple[Case, ...], words: list[str]
) -> None:
    """200 GB for each of two GPUs; a hand-over stands beside it, and decode engines have none."""
    case = written(plan_of(pools, Ask(engine=engine, prefix=0.8, tier="200GB")), target, words)
    assert {(one.role, one.settings.host_cache) for one in launches(*case)} == {
        (pool.role, 0 if pool.role == "decode" else 200) for pool in pools
    }
    assert any("host_cache is" in one for one in altered(*case, r"372\.53|\b([24])00(0{9})?\b", "700\\2"))


@pytest.mark.parametrize(
    ("target", "ask", "sentence"),
    [
        (
            "llm-d",
            Ask(prefix=0.8, tier="200GB", shared=True),
            "share a KV cache tier, which takes a service of its own",
        ),
        ("dynamo", Ask(prefix=0.8, tier="200GB"), "needs vLLM's MultiConnector, which NVIDIA Dynamo 1.6.1 does not"),
        ("sglang", Ask(prefix=0.8, tier="20GB", engine="sglang"), "SGLang wants more KV in host memory than on the"),
    ],
)
def test_a_tier_that_a_target_cannot_have_is_refused(target: str, ask: Ask, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        WRITERS[target](deployment_of(plan_of(ask=ask), target))


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
        key = (one.pool, one.role, *degrees, *limits, told.memory_fraction, told.kv_dtype, told.speculative_tokens)
        count[(*key, one.nodes * one.node_gpus)] += one.replicas
    return count


def planned(plan: Plan) -> Counter[tuple[object, ...]]:
    """Engines of plan.json, in the same words."""
    count: Counter[tuple[object, ...]] = Counter()
    for pool in plan.pools:
        degrees = (pool.tensor_parallel, pool.pipeline_parallel, pool.expert_parallel, pool.data_parallel)
        limits = (pool.max_num_seqs, pool.max_num_batched_tokens)
        key = (pool.id, pool.role, *degrees, *limits, pool.memory_fraction, pool.kv_dtype, pool.speculative_tokens)
        count[(*key, pool.gpus // pool.replicas)] = pool.replicas
    return count


# --- what engines are told of scheduling is what the simulation of the plan did, for every engine and role

APART = (Case("prefill", tp=2, seqs=16, tokens=8192), Case("decode", "H200", tp=2, seqs=128, tokens=512))
TOGETHER = (Case("colocated", tp=2, seqs=64, tokens=2048),)
IN_STAGES = (Case("colocated", tp=2, pp=2, seqs=64, tokens=2048),)
ON_RANKS = (Case("colocated", ep=4, dp=4, seqs=64, tokens=8192),)
FLEETS = [(APART, ""), (TOGETHER, ""), (IN_STAGES, ""), (ON_RANKS, "Qwen3-30B-A3B")]
every_engine = pytest.mark.parametrize("engine", SCHEDULERS)


def told(engine: str, pools: tuple[Case, ...], model: str) -> list[tuple[Launch, dict[str, Any], SimulatedPool]]:
    """Every engine of the plain target: as its files are read, what they say word for word, and what was simulated."""
    plan = plan_of(pools, Ask(model or "Llama-3.1-8B", engine=engine))
    deployment = deployment_of(plan, engine)
    files = WRITERS[engine](deployment)
    found = launches(deployment, files)
    simulated = dict(zip([pool.id for pool in plan.pools], simulated_fleet(*fleet_of_plan(plan)), strict=True))
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


# --- manifests against the schemas of their resources, strictly, and flags against the dumps of the engines' parsers

DUMPED = ("0.20.1", "0.24.0", "0.31.0", "0.33.0")
"""Versions of vLLM whose parsers were dumped."""


@cache
def loaded(path: Path) -> Any:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    return yaml.safe_load(text) if path.suffix in {".yaml", ".yml"} else json.loads(text)


def check(document: Any, schema: dict[str, Any]) -> None:
    """Validate strictly: what an object of known fields does not know fails."""
    jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema).validate(document)


def planner_data(plan: Plan) -> dict[str, Any]:
    """What the planner's config map holds, by name."""
    text = deployment_files(plan, options("dynamo"))["planner-configmap.yaml"]
    return {name: json.loads(value) for name, value in yaml.safe_load(text)["data"].items()}


@pytest.mark.parametrize(("pools", "mode"), [(PAIR, "disagg"), (ALIKE, "agg")])
def test_planner_config_passes_its_schema(data: Path, pools: tuple[Case, ...], mode: str) -> None:
    schema = loaded(data / "deploy" / "schemas" / "dynamo_planner_config_1.6.1.schema.json")
    config = planner_data(plan_of(pools))["planner_config.json"]
    check(config, schema | {"additionalProperties": False})
    assert config["mode"] == mode
    assert config["max_gpu_budget"] == sum(case.replicas * case.tp for case in pools)
    assert (config["ttft_ms"], config["itl_ms"]) == (600.0, 30.0)  # the tighter of the plan's two classes


def test_shipped_flag_facts_are_those_of_the_dumps(data: Path) -> None:
    dump = loaded(data / "deploy" / "vllm_flags.json")["flags"]
    for version in DUMPED:
        for name, entry in dump.items():
            assert (legal_flag("vllm", version, name) is not None) == (version in entry["versions"])
    sglang = loaded(data / "deploy" / "sglang_flags_0.5.23.json")["flags"]
    legal = {name for name, entry in sglang.items() if entry.get("no_cli") != "True"}
    assert {name for name in sglang if legal_flag("sglang", "0.5.23", name) is not None} == legal


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
