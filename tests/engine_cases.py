"""Pools of engines as records of fleets state them, in few words."""

from __future__ import annotations

from typing import Any

from optimizer.plans.records import EnginePool


def engines(replicas: int, accelerator: str, tensor: int, role: str, **settings: Any) -> EnginePool:
    """So many engines of `tensor` GPUs each."""
    usual = {
        "pipeline_parallel": 1,
        "expert_parallel": 1,
        "data_parallel": 1,
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "max_model_len": 8192,
        "memory_fraction": 0.9,
        "usd_per_hour": 2.0 * replicas * tensor,
    }
    split = {"tensor_parallel": tensor, "gpus": replicas * tensor}
    return EnginePool.model_validate(
        usual | {"role": role, "accelerator": accelerator, "replicas": replicas} | split | settings
    )
