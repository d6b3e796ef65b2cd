"""Every setting that shaped the prediction: its value in each pool, and why it is stated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from costmodel.engine import Role
from costmodel.words import percentage
from optimizer.plans.plan import Plan

from . import facts
from .describe import describe
from .description import Deployment, Options
from .flags_vllm import connector


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: its name, its value (of each pool where pools differ), and the reason."""

    setting: str
    value: str
    why: str


def settings(plan: Plan, base: Path | None = None) -> tuple[SettingRow, ...]:
    """The settings of a plan's fleet, as the plain target of its engine is told them.

    base: folder from which files that the plan's problem names are looked up. Raises InputError as `describe` does.
    """
    version = facts.checked_version(plan.engine, None)
    return setting_rows(describe(plan, Options(plan.engine, version), base))


def setting_rows(deployment: Deployment) -> tuple[SettingRow, ...]:
    """The settings of a deployment."""
    return (*_parallel(deployment), *_scheduler(deployment), *_memory(deployment), *_hand_over(deployment))


def accepted_words(deployment: Deployment) -> str:
    """Say how far the limit on a request goes beyond what was evaluated, and why no further."""
    room = deployment.template_room
    ends = "; the KV memory or the model's context ends there" if room < facts.TEMPLATE_TOKENS else ""
    if not room:
        return f"max_model_len too, so that a chat template may add nothing to the longest prompts{ends}"
    return f"max_model_len alone is raised, so that a chat template may lengthen prompts by {room} tokens{ends}"


def _parallel(deployment: Deployment) -> list[SettingRow]:
    rows = [
        SettingRow("tensor parallel", _each(deployment, "tensor"), "splits every layer; the step times are for it"),
        SettingRow(
            "pipeline parallel", _each(deployment, "pipeline"), "stages that the step times and bubbles are for"
        ),
    ]
    if deployment.model.is_moe:
        rows += [
            SettingRow(
                "expert parallel",
                _each(deployment, "expert"),
                "GPUs that the experts are spread over; 1: all are split instead",
            ),
            SettingRow("data parallel", _each(deployment, "data"), "attention ranks that share the experts"),
        ]
    if any(pool.settings.redundant for pool in deployment.pools):
        rows.append(
            SettingRow(
                "redundant experts",
                _each(deployment, "redundant"),
                "second copies, so that all GPUs hold as many experts",
            )
        )
    return rows


def _scheduler(deployment: Deployment) -> list[SettingRow]:
    hit = deployment.demand.prefix_share
    return [
        SettingRow(
            "max_num_seqs",
            _each(deployment, "max_num_seqs"),
            "most requests at once: the batch whose step time keeps the TPOT limit",
        ),
        SettingRow(
            "max_num_batched_tokens",
            _each(deployment, "max_num_batched_tokens"),
            "tokens of one step: the prompt chunk that the step times are for",
        ),
        SettingRow(
            "max_model_len",
            _each(deployment, "max_model_len"),
            f"longest prompt and answer of the workload, and {deployment.template_room} tokens for a chat template",
        ),
        SettingRow(
            "prefix caching",
            "on" if hit > 0.0 else "off",
            f"the workload finds {percentage(hit, 1)} of its prompt tokens in a cache"
            if hit > 0.0
            else "the plan counts on no shared prefix, so none shall flatter a measurement",
        ),
        *_positions(deployment),
        SettingRow("chunked prefill", "on", "long prompts are computed in chunks of max_num_batched_tokens"),
        SettingRow("order", "first come, first served", "as requests were simulated"),
        SettingRow(
            "router",
            deployment.router.value.replace("_", " "),
            "which engine of a pool gets the next prompt; the figures here are for a router that chooses so",
        ),
        SettingRow(
            "CUDA graphs",
            "all decode batches",
            "host times are those of graphs; batches beyond an engine's default would run without",
        ),
    ]


def _positions(deployment: Deployment) -> list[SettingRow]:
    told = deployment.pools[0].settings.config_overrides
    if not told:
        return []
    also = "; static scaling holds for short prompts too, whose answers it may change" if "factor" in told else ""
    return [
        SettingRow(
            "overrides of config.json",
            told,
            f"requests exceed {deployment.own_context:,} tokens; by the weights' own, engines may go no further{also}",
        )
    ]


def _memory(deployment: Deployment) -> list[SettingRow]:
    quantization = deployment.pools[0].settings.quantization
    weights = deployment.pools[0].config.weight_dtype
    rows = [
        SettingRow(
            "memory fraction",
            _each(deployment, "memory_fraction"),
            "the engine's own share of GPU memory: the room that the running requests were counted in",
        ),
        SettingRow(
            "KV cache dtype", _each(deployment, "kv_dtype"), "bytes per token in memory, attention and hand-over"
        ),
        SettingRow(
            "weights",
            weights if quantization is None else f"{weights}, converted while loading",
            f"precision that the step times are for; loaded from {deployment.weights}",
        ),
        SettingRow(
            "KV block size",
            _each(deployment, "block_tokens"),
            "tokens of a block; both ends of a hand-over need the same",
        ),
    ]
    backend = deployment.pools[0].settings.attention_backend
    if deployment.mixed and backend is not None:
        rows.append(
            SettingRow(
                "attention backend",
                backend,
                "GPU types differ and would choose different ones, which cannot hand over KV",
            )
        )
    return rows


def _hand_over(deployment: Deployment) -> list[SettingRow]:
    if not deployment.disaggregated:
        return []
    name = connector(deployment) if deployment.engine == "vllm" else "NIXL"
    ends = [f"{pool.id} sends" if pool.role is Role.PREFILL else f"{pool.id} receives" for pool in deployment.pools]
    ends_at, roads = "hosts", "every road between processes and hosts, NVLink and RDMA among them"
    if deployment.options.target in {"dynamo", "llmd"}:
        ends_at, roads = "pods", "RDMA between pods, NVLink within one; over TCP, KV caches would take minutes"
    side = SettingRow(
        "side channel", "host, and a port per engine", "where the other end is found; the default is localhost"
    )
    return [
        *[side] * (deployment.options.target in {"vllm", "llmd"}),
        SettingRow("KV connector", name, f"moves KV caches between engines: {', '.join(ends)}"),
        SettingRow("environment", f"UCX_TLS={facts.fact('ucx', ends_at)}", roads),
    ]


def _each(deployment: Deployment, name: str) -> str:
    """The value, once where all pools have it, else by pool."""
    values = {pool.id: getattr(pool.settings, name) for pool in deployment.pools}
    if len(set(values.values())) == 1:
        return _shown(next(iter(values.values())))
    return ", ".join(f"{pool}: {_shown(value)}" for pool, value in values.items())


def _shown(value: float | int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
