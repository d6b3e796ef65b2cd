"""The configuration of Dynamo's planner, and the profile that it scales by, from our cost model."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from costmodel.engine import EngineConfig, Role
from costmodel.memory import kv_bytes_per_token_per_gpu, kv_capacity_bytes
from costmodel.step import StepLoad, step_time_one
from costmodel.units import MILLI

from .description import DeployedPool, Deployment, Routing

PROFILE_FOLDER: Final = "/etc/pdplan"
PREFILL_PROFILE: Final = "prefill_raw_data.json"
DECODE_PROFILE: Final = "decode_raw_data.json"
FROM_FILES: Final = "thorough"
"""Sweeping mode of a profile that lies in files: with "none" the planner takes it that there is none (earlier versions
do not start), with "rapid" it looks for another simulator's first."""
POINTS: Final = 12
"""Prompt lengths, context lengths and shares of the KV cache in a profile, each."""


def can_plan(deployment: Deployment) -> bool:
    """Whether Dynamo's planner can scale the fleet: it knows one pool of each role."""
    return deployment.routing is Routing.ONE_WAY


def planner_config(deployment: Deployment) -> dict[str, Any]:
    """The planner's settings: the plan's GPUs, limits and engines, where its defaults would override them."""
    prompts, tokens = _ends(deployment)
    return {
        "environment": "kubernetes",
        "backend": deployment.engine,
        "mode": "disagg" if deployment.disaggregated else "agg",
        "optimization_target": "sla",
        "ttft_ms": round(deployment.limits.ttft / MILLI, 3),
        "itl_ms": round(deployment.limits.tpot / MILLI, 3),
        "max_gpu_budget": deployment.budget_gpus,
        "max_throughput_scaling_replicas": max(pool.replicas for pool in deployment.pools),
        "min_endpoint": 1,
        "prefill_engine_num_gpu": prompts.settings.gpus,
        "decode_engine_num_gpu": tokens.settings.gpus,
        "pre_deployment_sweeping_mode": FROM_FILES,
        "profile_results_dir": PROFILE_FOLDER,
        "model_name": deployment.weights,
        "enable_throughput_scaling": True,
    }


def profile_files(deployment: Deployment) -> dict[str, str]:
    """The planner's profile data by file name."""
    prompts, tokens = _ends(deployment)
    return {
        PREFILL_PROFILE: json.dumps(prefill_profile(deployment, prompts.config), indent=1) + "\n",
        DECODE_PROFILE: json.dumps(decode_profile(deployment, tokens.config), indent=1) + "\n",
    }


def _ends(deployment: Deployment) -> tuple[DeployedPool, DeployedPool]:
    """Who computes prompts, and who generates tokens."""
    prompts = deployment.of_role(Role.PREFILL) or deployment.of_role(Role.COLOCATED)
    tokens = deployment.of_role(Role.DECODE) or prompts
    return prompts[0], tokens[0]


def prefill_profile(deployment: Deployment, config: EngineConfig) -> dict[str, list[float]]:
    """Prompt lengths [token] and the time to first token of each alone on an idle engine [ms]."""
    lengths = np.unique(np.geomspace(min(64, config.max_model_len), config.max_model_len, POINTS).astype(int))
    step = step_time_one(deployment.model, config, deployment.overhead, StepLoad.prefill(lengths.astype(float)))
    return {"prefill_isl": lengths.tolist(), "prefill_ttft": _milliseconds(step.total[0])}


def decode_profile(deployment: Deployment, config: EngineConfig) -> dict[str, Any]:
    """Time of a decode step [ms] by the share of the KV cache in use [1] and the mean context of a request [token]."""
    per_token = float(kv_bytes_per_token_per_gpu(deployment.model, config))
    capacity = config.parallelism.data * max(kv_capacity_bytes(deployment.model, config), 0.0) / max(per_token, 1.0)
    most = int(capacity)
    lengths = np.geomspace(min(128, config.max_model_len), config.max_model_len, POINTS).astype(int).astype(float)
    shares = np.linspace(1.0 / POINTS, 1.0, POINTS)
    usage, context = (grid.ravel() for grid in np.meshgrid(shares, lengths, indexing="ij"))
    batch = np.maximum(usage * most / context, 1.0)
    fits = batch <= config.max_num_seqs
    load = StepLoad.decode(batch[fits] / config.parallelism.pipeline, context[fits])
    step = step_time_one(deployment.model, config, deployment.overhead, load)
    return {
        "x_kv_usage": [round(float(value), 6) for value in usage[fits]],
        "y_context_length": [int(value) for value in context[fits]],
        "z_itl": _milliseconds(step.total[0] * config.parallelism.pipeline),
        "max_kv_tokens": most,
    }


def _milliseconds(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    return [round(float(value) / MILLI, 4) for value in seconds]
