"""The settings of a pool as options of TensorRT-LLM's LLM API, and back.

TensorRT-LLM counts all ranks of a stage as tensor-parallel, and lets attention be data-parallel over all of them or
none; requests and tokens are of one data rank, requests of one step: as many steps as stages are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import DeployedPool, Deployment, Settings
from .flags_vllm import per_rank
from .found import Reader

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
            "free_gpu_memory_fraction": settings.memory_fraction,
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


def trtllm_settings(deployment: Deployment, where: str, options: Mapping[str, Any]) -> Settings:
    """The settings that options state."""
    reader = Reader(where, options)
    cache = Reader(f"{where}: kv_cache_config", options.get("kv_cache_config") or {})
    ranks = reader.whole("tensor_parallel_size")
    data = ranks if reader.text("enable_attention_dp") == "True" else 1
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
        memory_fraction=cache.number("free_gpu_memory_fraction"),
        block_tokens=cache.whole("tokens_per_block"),
        prefix_caching=cache.text("enable_block_reuse") == "True",
        attention_backend=None,
    )
