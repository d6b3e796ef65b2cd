"""The settings of a pool as flags of vLLM, flags of SGLang or options of TensorRT-LLM, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .deployment import DeployedPool, Deployment, Memory, Settings
from .readback import Reader, Words, json_object, one_line
from .refusals import UndeployableError

PREFIX_CACHING: Final = "--enable-prefix-caching"
EXPERT_PARALLEL: Final = "--enable-expert-parallel"
EPLB: Final = "--enable-eplb"
EPLB_CONFIG: Final = "--eplb-config"
VLLM_REDUNDANT: Final = "num_redundant_experts"
BALANCED_DTYPES: Final = ("bf16", "fp8")
"""Dtypes of experts that vLLM's load balancer can copy in every version: the others depend on the kernels chosen."""
VLLM_OVERRIDES: Final = "--hf-overrides"
TRANSFER: Final = "--kv-transfer-config"
PULL: Final = "NixlConnector"
PUSH: Final = "NixlPushConnector"
KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def vllm_words(deployment: Deployment, pool: DeployedPool) -> Words:
    """All flags of one engine that shaped its prediction, in the order of the settings table."""
    settings, version = pool.settings, deployment.engine_version
    rank_seqs, rank_tokens = per_rank(pool)
    words: list[tuple[str, str | None]] = [
        ("--model", deployment.weights),
        ("--served-model-name", deployment.weights),
        ("--tensor-parallel-size", str(settings.tensor)),
        ("--pipeline-parallel-size", str(settings.pipeline)),
        ("--data-parallel-size", str(settings.data)),
    ]
    if deployment.model.is_moe:
        words.append((_switch(version, EXPERT_PARALLEL, on=settings.expert > 1), None))
    if settings.redundant:
        words += [(EPLB, None), (EPLB_CONFIG, _eplb_config(pool))]
    words += [
        ("--max-num-seqs", str(rank_seqs)),
        ("--max-num-batched-tokens", str(rank_tokens)),
        ("--max-model-len", str(settings.max_model_len)),
        ("--gpu-memory-utilization", repr(settings.memory_fraction)),
        ("--dtype", "bfloat16"),
        ("--kv-cache-dtype", facts.fact("kv_dtypes", "vllm", settings.kv_dtype)),
        ("--block-size", str(settings.block_tokens)),
        (_switch(version, PREFIX_CACHING, on=settings.prefix_caching), None),
        ("--enable-chunked-prefill", None),
        ("--scheduling-policy", "fcfs"),
    ]
    if pool.role is not Role.PREFILL:
        words.append(("--max-cudagraph-capture-size", str(graph_tokens(rank_seqs))))
    if settings.quantization is not None:
        words.append(("--quantization", settings.quantization))
    if settings.config_overrides:
        words.append((VLLM_OVERRIDES, settings.config_overrides))
    if settings.attention_backend is not None:
        words.append(("--attention-backend", settings.attention_backend))
    if pool.role is not Role.COLOCATED:
        words.append((TRANSFER, json.dumps(transfer_config(deployment, pool), separators=(",", ":"))))
    return tuple(words)


def _eplb_config(pool: DeployedPool) -> str:
    """Second copies of experts, which vLLM keeps for its load balancer alone: experts and copies must divide by EP."""
    dtype = pool.config.weight_dtype
    if dtype not in BALANCED_DTYPES:
        raise InputError(
            f"pool {pool.id}: EP {pool.settings.expert} needs redundant experts ({pool.settings.redundant}), which "
            f"vLLM is sure to load in {' and '.join(BALANCED_DTYPES)} only, not in {dtype}; choose an EP that divides "
            "the experts, or engine: sglang"
        )
    return one_line({VLLM_REDUNDANT: pool.settings.redundant})


def graph_tokens(seqs: int) -> int:
    """Largest step that replays a CUDA graph, as step times have it of every decode batch [token].

    That is vLLM's own default for up to 512 requests (its `_set_cudagraph_sizes`); steps beyond run without graphs.
    Large sizes are captured every 16 tokens.

    >>> graph_tokens(24), graph_tokens(300), graph_tokens(1000)
    (48, 512, 1008)
    """
    return max(min(2 * seqs, 512), -(-seqs // 16) * 16)


def per_rank(pool: DeployedPool) -> tuple[int, int]:
    """Running requests and batched tokens of one data rank, which is what vLLM and TensorRT-LLM are told."""
    settings = pool.settings
    for name, value in (
        ("max_num_seqs", settings.max_num_seqs),
        ("max_num_batched_tokens", settings.max_num_batched_tokens),
    ):
        if value % settings.data:
            raise InputError(
                f"pool {pool.id}: {name} {value} is not a multiple of DP {settings.data}, and engines are told "
                "it for each data rank"
            )
    return settings.max_num_seqs // settings.data, settings.max_num_batched_tokens // settings.data


def span_words(pool: DeployedPool, head: str, port: Callable[[str], int]) -> list[str]:
    """What an engine of several nodes is told on each: how many they are, or how many data ranks each has.

    head: address of the first; port: its ports by what they are for.
    """
    if pool.settings.data == 1:
        return ["--nnodes", str(pool.nodes), "--master-addr", head, "--master-port", str(port("master"))]
    words = ["--data-parallel-size-local", str(node_ranks(pool)), "--data-parallel-address", head]
    return [*words, "--data-parallel-rpc-port", str(port("data_parallel"))]


def place_words(pool: DeployedPool, rank: int) -> list[str]:
    """Which of its engine's nodes one is; only the first takes requests."""
    if pool.settings.data == 1:
        return ["--node-rank", str(rank)] + ["--headless"] * bool(rank)
    return ["--data-parallel-start-rank", str(rank * node_ranks(pool)), "--headless"] * bool(rank)


def node_ranks(pool: DeployedPool) -> int:
    """Data ranks of an engine on each of its nodes."""
    return pool.node_gpus // (pool.settings.tensor * pool.settings.pipeline)


def transfer_config(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """What --kv-transfer-config holds: the connector, and which end of it the pool is."""
    return {
        "kv_connector": connector(deployment),
        "kv_role": KV_ROLES[pool.role],
        "kv_buffer_device": "cuda",
        "kv_connector_extra_config": {"backends": ["UCX"]},
    }


def connector(deployment: Deployment) -> str:
    """Decode pulls KV blocks, unless a prefill pool is a pipeline, whose stages push them."""
    if all(pool.settings.pipeline == 1 for pool in deployment.of_role(Role.PREFILL)):
        return PULL
    if PUSH not in facts.transfer_facts(deployment.engine_version)["connectors"]:
        raise InputError(
            f"PP above 1 of a prefill pool needs the {PUSH}, which vLLM {deployment.engine_version} lacks; "
            "choose a later version, or plan with pipeline_parallel: [1]"
        )
    if PUSH not in facts.hand_over_of(deployment.options.target, deployment.options.version, (PUSH,)):
        title, version = facts.target_title(deployment.options.target), deployment.options.version
        raise UndeployableError(
            f"PP above 1 of a prefill pool needs the {PUSH}, which {title} {version} does not hand over with",
            f"--target {deployment.options.target}",
        )
    return PUSH


def _switch(version: str, name: str, *, on: bool) -> str:
    return name if on else facts.off_switch("vllm", version, name)


def vllm_settings(deployment: Deployment, where: str, words: Words) -> Settings:
    """The settings that flags of vLLM state; InputError for one that is missing."""
    version = deployment.engine_version
    reader = Reader(where, {name: True if value is None else value for name, value in words})
    reader.must("--served-model-name", reader.text("--model"))
    reader.must("--dtype", "bfloat16")
    reader.must("--enable-chunked-prefill")
    reader.must("--scheduling-policy", "fcfs")
    tensor, data = reader.whole("--tensor-parallel-size"), reader.whole("--data-parallel-size")
    spread = deployment.model.is_moe and reader.switch(
        EXPERT_PARALLEL, facts.off_switch("vllm", version, EXPERT_PARALLEL)
    )
    return Settings(
        tensor=tensor,
        pipeline=reader.whole("--pipeline-parallel-size"),
        expert=tensor * data if spread else 1,
        data=data,
        quantization=reader.text("--quantization") if reader.has("--quantization") else None,
        kv_dtype=reader.spelled("--kv-cache-dtype", facts.fact("kv_dtypes", "vllm")),
        max_num_seqs=reader.whole("--max-num-seqs") * data,
        max_num_batched_tokens=reader.whole("--max-num-batched-tokens") * data,
        max_model_len=reader.whole("--max-model-len"),
        memory_fraction=reader.number("--gpu-memory-utilization"),
        block_tokens=reader.whole("--block-size"),
        prefix_caching=reader.switch(PREFIX_CACHING, facts.off_switch("vllm", version, PREFIX_CACHING)),
        attention_backend=reader.text("--attention-backend") if reader.has("--attention-backend") else None,
        config_overrides=reader.overrides(VLLM_OVERRIDES),
        redundant=_redundant(where, reader),
    )


def _redundant(where: str, reader: Reader) -> int:
    """Second copies of experts that flags ask for; none without the load balancer."""
    if not reader.has(EPLB):
        return 0
    place = f"{where}: {EPLB_CONFIG}"
    return Reader(place, json_object(place, reader.text(EPLB_CONFIG))).whole(VLLM_REDUNDANT)


def role_of_transfer(transfer: dict[str, Any] | None) -> str:
    """The role that a connector's settings state; colocated without one."""
    if transfer is None:
        return Role.COLOCATED.value
    return next((role.value for role, name in KV_ROLES.items() if transfer.get("kv_role") == name), "both")


SGLANG_OVERRIDES: Final = "--json-model-override-args"
SGLANG_REDUNDANT: Final = "--ep-num-redundant-experts"
MODE: Final = "--disaggregation-mode"
DIGITS: Final = 6
"""Digits of a memory share that stand in a file."""


def sglang_words(deployment: Deployment, pool: DeployedPool) -> Words:
    """All flags of one engine that shaped its prediction, in the order of the settings table."""
    settings = pool.settings
    words: list[tuple[str, str | None]] = [
        ("--model-path", deployment.weights),
        ("--served-model-name", deployment.weights),
        ("--tp-size", str(settings.tensor * settings.data)),
        ("--pp-size", str(settings.pipeline)),
        ("--attn-dp-size", str(settings.data)),
        ("--ep-size", str(settings.expert)),
        *((("--enable-eplb", None), (SGLANG_REDUNDANT, str(settings.redundant))) if settings.redundant else ()),
        ("--max-running-requests", str(settings.max_num_seqs)),
        ("--chunked-prefill-size", str(settings.max_num_batched_tokens)),
        ("--max-prefill-tokens", str(settings.max_num_batched_tokens)),
        ("--context-length", str(settings.max_model_len)),
        ("--mem-fraction-static", repr(round(pool.memory.static_share(settings.memory_fraction), DIGITS))),
        ("--dtype", "bfloat16"),
        ("--kv-cache-dtype", facts.fact("kv_dtypes", "sglang", settings.kv_dtype)),
        ("--page-size", str(settings.block_tokens)),
        ("--schedule-policy", "fcfs"),
    ]
    if pool.role is not Role.PREFILL:
        words.append(("--cuda-graph-max-bs-decode", str(step_requests(settings))))
    if not settings.prefix_caching:
        words.append(("--disable-radix-cache", None))
    if settings.quantization is not None:
        words.append(("--quantization", settings.quantization))
    if settings.config_overrides:
        words.append((SGLANG_OVERRIDES, settings.config_overrides))
    if settings.attention_backend is not None:
        words.append(("--attention-backend", settings.attention_backend))
    if pool.role is not Role.COLOCATED:
        words += [(MODE, pool.role.value), ("--disaggregation-transfer-backend", "nixl")]
    return tuple(words)


def step_requests(settings: Settings) -> int:
    """Most requests of one decode step of a data rank: its CUDA graphs reach so far, as the step times have it.

    SGLang's default follows the GPU's memory alone; larger batches run without graphs and say nothing of it.
    """
    return -(-settings.max_num_seqs // (settings.data * settings.pipeline))


def sglang_settings(where: str, words: Words, memory: Memory) -> Settings:
    """The settings that flags of SGLang state; memory: of the engine, for what its memory share leaves out."""
    reader = Reader(where, {name: True if value is None else value for name, value in words})
    reader.must("--served-model-name", reader.text("--model-path"))
    reader.must("--dtype", "bfloat16")
    reader.must("--max-prefill-tokens", reader.text("--chunked-prefill-size"))
    reader.must("--schedule-policy", "fcfs")
    data = reader.whole("--attn-dp-size")
    ranks = reader.whole("--tp-size")
    if ranks % data:
        raise InputError(f"{where}: --tp-size {ranks} is not a multiple of --attn-dp-size {data}")
    return Settings(
        tensor=ranks // data,
        pipeline=reader.whole("--pp-size"),
        expert=reader.whole("--ep-size"),
        data=data,
        quantization=reader.text("--quantization") if reader.has("--quantization") else None,
        kv_dtype=reader.spelled("--kv-cache-dtype", facts.fact("kv_dtypes", "sglang")),
        max_num_seqs=reader.whole("--max-running-requests"),
        max_num_batched_tokens=reader.whole("--chunked-prefill-size"),
        max_model_len=reader.whole("--context-length"),
        memory_fraction=reader.number("--mem-fraction-static") + memory.activations / memory.hbm,
        block_tokens=reader.whole("--page-size"),
        prefix_caching=not reader.has("--disable-radix-cache"),
        attention_backend=reader.text("--attention-backend") if reader.has("--attention-backend") else None,
        config_overrides=reader.overrides(SGLANG_OVERRIDES),
        redundant=reader.whole(SGLANG_REDUNDANT) if reader.has("--enable-eplb") else 0,
    )


SCHEDULER: Final = {
    "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
    "context_chunking_policy": "FIRST_COME_FIRST_SERVED",
}
"""What the simulator's policy of this name does."""


def trtllm_options(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """All options of one engine that shaped its prediction, as they stand in its YAML file."""
    settings = pool.settings
    if settings.data > 1 and settings.tensor > 1:
        raise InputError(
            f"pool {pool.id}: TensorRT-LLM runs attention data-parallel over all ranks or none, not TP "
            f"{settings.tensor} x DP {settings.data}; plan again with engine: vllm or sglang in the workload"
        )
    if settings.redundant:
        raise InputError(
            f"pool {pool.id}: EP {settings.expert} needs redundant experts ({settings.redundant}), which the files for "
            "TensorRT-LLM cannot ask for; plan again with an EP that divides the experts, or engine: vllm or sglang"
        )
    seqs, tokens = _per_step(pool)
    options: dict[str, Any] = {
        "backend": "pytorch",
        "tensor_parallel_size": settings.tensor * settings.data,
        "pipeline_parallel_size": settings.pipeline,
        "enable_attention_dp": settings.data > 1,
    }
    if deployment.model.is_moe:
        options["moe_expert_parallel_size"] = settings.expert
    options |= {
        "max_batch_size": seqs,
        "max_num_tokens": tokens,
        "max_seq_len": settings.max_model_len,
        "dtype": "bfloat16",
        "enable_chunked_prefill": True,
        "scheduler_config": SCHEDULER,
        "kv_cache_config": {
            "free_gpu_memory_fraction": round(pool.memory.free_share(settings.memory_fraction), DIGITS),
            "dtype": facts.fact("kv_dtypes", "trtllm", settings.kv_dtype),
            "tokens_per_block": settings.block_tokens,
            "enable_block_reuse": settings.prefix_caching,
        },
    }
    if pool.role is Role.PREFILL:
        options["disable_overlap_scheduler"] = True  # a context server hands over before a next step could overlap
    else:
        options["cuda_graph_config"] = {"enable_padding": True, "max_batch_size": seqs}
    if pool.role is not Role.COLOCATED:
        options["cache_transceiver_config"] = {"backend": "NIXL", "max_tokens_in_buffer": settings.max_model_len}
    return options


def _per_step(pool: DeployedPool) -> tuple[int, int]:
    """Requests and tokens of one step of a data rank."""
    (seqs, tokens), stages = per_rank(pool), pool.settings.pipeline
    if seqs % stages:
        raise InputError(
            f"pool {pool.id}: max_num_seqs {pool.settings.max_num_seqs} is not a multiple of DP {pool.settings.data} x "
            f"PP {stages}, and TensorRT-LLM is told how many requests each step has"
        )
    return seqs // stages, tokens


def trtllm_settings(deployment: Deployment, where: str, options: Mapping[str, Any], memory: Memory) -> Settings:
    """The settings that options state; memory: of the engine, for what its memory share is counted from."""
    reader = Reader(where, options)
    cache = Reader(f"{where}: kv_cache_config", options.get("kv_cache_config") or {})
    ranks = reader.whole("tensor_parallel_size")
    data = ranks if reader.text("enable_attention_dp") == "True" else 1
    free = cache.number("free_gpu_memory_fraction")
    kept = memory.weights + memory.activations
    stages = reader.whole("pipeline_parallel_size")
    return Settings(
        tensor=ranks // data,
        pipeline=stages,
        expert=reader.whole("moe_expert_parallel_size") if deployment.model.is_moe else 1,
        data=data,
        quantization=None,
        kv_dtype=cache.spelled("dtype", facts.fact("kv_dtypes", "trtllm")),
        max_num_seqs=reader.whole("max_batch_size") * data * stages,
        max_num_batched_tokens=reader.whole("max_num_tokens") * data,
        max_model_len=reader.whole("max_seq_len"),
        memory_fraction=(free * (memory.hbm - kept) + kept) / memory.hbm,
        block_tokens=cache.whole("tokens_per_block"),
        prefix_caching=cache.text("enable_block_reuse") == "True",
        attention_backend=None,
    )
