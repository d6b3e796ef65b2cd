"""NVIDIA Dynamo: the fleet as a DynamoGraphDeployment, with fixed replicas and under the planner's control."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from costmodel.engine import EngineConfig, Role
from costmodel.memory import kv_bytes_per_token_per_gpu, kv_capacity_bytes
from costmodel.step import StepLoad, step_time_one
from costmodel.units import MILLI

from . import facts
from .deployment import DeployedPool, Deployment, Routing
from .flags import dynamo_trtllm_words, sglang_words, vllm_words
from .formats import manifest, pod_text
from .gateway import router_config
from .kubernetes import (
    CACHE_ENV,
    SECRET,
    container_security,
    grace_seconds,
    metadata,
    own_labels,
    placement,
    probes,
    resources,
    support_files,
    transport_env,
    weights_mount,
    weights_volume,
)
from .words import Words, plain_words

FLEET_FILE: Final = "dgd.yaml"
PLANNED_FILE: Final = "dgd-with-planner.yaml"
CONFIGMAP_FILE: Final = "planner-configmap.yaml"
CONTROL_FILE: Final = "control.yaml"
GRID_MAP_FILE: Final = "router-configmap.yaml"
GRID_FILE: Final = "global_router_config.json"
GRID_FOLDER: Final = "/etc/pdplan-router"
PURPOSE: Final = "What the planner reads: its settings, and step times by our cost model in place of a profiling run."
PLANNER_CONFIG: Final = "planner_config.json"
KV_EVENTS: Final = {"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:20080"}
"""Where an engine tells which prefixes it holds, for routing by prefix; vLLM wants to be told that it shall."""
GRAPH_VERSION: Final = "nvidia.com/v1beta1"
SYSTEM_PORT: Final[int] = facts.fact("ports", "system")
"""Where the operator has workers answer for their health."""
WATCHED_ENV: Final = [
    {"name": "DYN_HEALTH_CHECK_ENABLED", "value": "true"},
    {"name": "DYN_CANARY_WAIT_TIME", "value": str(facts.fact("health", "interval"))},
    {"name": "DYN_HEALTH_CHECK_REQUEST_TIMEOUT", "value": str(facts.fact("health", "timeout"))},
]
"""A worker without requests asks itself for a token, so that one that hangs is found (by default after 10 s)."""
TOKEN: Final = [{"secretRef": {"name": SECRET, "optional": True}}]


def dynamo_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    if deployment.routing is Routing.BY_LENGTH:
        files = _by_length(deployment)
        return files | support_files(deployment, tuple(files), account=False)
    files = {FLEET_FILE: _fleet(deployment, planned=False)}
    support = support_files(deployment, (FLEET_FILE,), account=False)
    if can_plan(deployment):
        files[PLANNED_FILE] = _fleet(deployment, planned=True)
        data = {PLANNER_CONFIG: json.dumps(planner_config(deployment), indent=1) + "\n", **profile_files(deployment)}
        files[CONFIGMAP_FILE] = _config_map(deployment, f"{deployment.name}-planner", data, PURPOSE)
    return files | support


def _config_map(deployment: Deployment, name: str, data: Mapping[str, str], about: str) -> str:
    return manifest(
        about, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(deployment, name), "data": dict(data)}
    )


def _by_length(deployment: Deployment) -> dict[str, str]:
    """A graph for each pool behind its own router, and one that chooses among them by the prompt's length."""
    config = json.dumps(router_config(deployment, lambda pool: pool_namespace(deployment, pool))) + "\n"
    names = ["--namespace", f"{deployment.options.namespace}-{deployment.name}", "--model-name", deployment.weights]
    grid = f"{deployment.name}-grid"
    main = _main(deployment, "global_router", ["--config", f"{GRID_FOLDER}/{GRID_FILE}", *names])
    main["volumeMounts"] = [{"name": "grid", "mountPath": GRID_FOLDER, "readOnly": True}]
    router = _component("GlobalRouter", None, 1, _pod(main, volumes=[{"name": "grid", "configMap": {"name": grid}}]))
    control = _graph(
        deployment, deployment.name, [_frontend(deployment, ["--router-mode", "round-robin", *names]), router]
    )
    about = "The way in: a frontend, and the router that chooses a pool by the length of the prompt."
    lengths = "Which pool takes which prompt lengths, as the plan routes them."
    files = {
        CONTROL_FILE: manifest(about, control),
        GRID_MAP_FILE: _config_map(deployment, grid, {GRID_FILE: config}, lengths),
    }
    for pool in deployment.pools:
        component = "prefill" if pool.role is Role.PREFILL else "backend"
        endpoint = f"{pool_namespace(deployment, pool)}.{component}.generate"
        local = _main(deployment, "router", ["--endpoint", endpoint, "--no-router-kv-events"])
        local["env"] = [{"name": "DYN_SYSTEM_PORT", "value": str(SYSTEM_PORT)}]
        parts = [_component("LocalRouter", None, 1, _pod(local)), _worker(deployment, pool, planned=False)]
        about = "One pool behind its own router, reached through the control deployment."
        files[f"pools/{pool.name}.yaml"] = manifest(about, _graph(deployment, f"{deployment.name}-{pool.name}", parts))
    return files


def pool_namespace(deployment: Deployment, pool: DeployedPool) -> str:
    """Dynamo's namespace of a pool: that of Kubernetes and the name of its graph."""
    return f"{deployment.options.namespace}-{deployment.name}-{pool.name}"


def _fleet(deployment: Deployment, *, planned: bool) -> str:
    flavour = " that the planner scales" if planned else ""
    components = [_frontend(deployment, router_words(deployment))]
    if planned:
        words = ["--config", f"{PROFILE_FOLDER}/{PLANNER_CONFIG}"]
        main = _main(deployment, "planner", words)
        main["image"] = facts.image("dynamo", deployment.options.version, "planner")
        main["volumeMounts"] = [{"name": "pdplan", "mountPath": PROFILE_FOLDER, "readOnly": True}]
        volume = {"name": "pdplan", "configMap": {"name": f"{deployment.name}-planner"}}
        components.append(_component("Planner", "planner", 1, _pod(main, volumes=[volume])))
    components += [_worker(deployment, pool, planned=planned) for pool in deployment.pools]
    return manifest(
        f"The fleet of the plan as a DynamoGraphDeployment{flavour}.", _graph(deployment, deployment.name, components)
    )


def _graph(deployment: Deployment, name: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    annotations = {"pdplan.dev/plan": deployment.title, "pdplan.dev/inputs-sha256": deployment.plan_sha}
    return {
        "apiVersion": GRAPH_VERSION,
        "kind": "DynamoGraphDeployment",
        "metadata": metadata(deployment, name, annotations=annotations),
        "spec": {"backendFramework": deployment.engine, "components": components},
    }


def _component(name: str, kind: str | None, replicas: int, template: dict[str, Any], **more: Any) -> dict[str, Any]:
    typed = {"type": kind} if kind else {}
    return {"name": name, **typed, "replicas": replicas, **more, "podTemplate": template}


def _main(deployment: Deployment, program: str, args: list[str]) -> dict[str, Any]:
    """The main container of a component."""
    return {
        "name": "main",
        "image": _image(deployment),
        "command": ["python3", "-m", f"dynamo.{program}"],
        "args": [pod_text(word) for word in args],
        "securityContext": container_security(rdma=False),
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}},
    }


def _pod(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "spec": {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, **spec, "containers": [container]}
    }


def _frontend(deployment: Deployment, words: list[str]) -> dict[str, Any]:
    """The way in, twice; it fetches no weights. A node that does not answer has to give it up within seconds."""
    port = int(facts.fact("ports", "http"))
    main = _main(deployment, "frontend", ["--http-port", str(port), *words]) | probes("/health", port, "/live")
    main["envFrom"] = TOKEN
    gone = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for key in ("not-ready", "unreachable")
    ]
    pod = _pod(main, tolerations=gone)
    pod["metadata"] = {"labels": own_labels(deployment)}
    if deployment.weights.startswith("/"):
        main["volumeMounts"], pod["spec"]["volumes"] = [weights_mount(deployment)], [weights_volume(deployment)]
    return _component("Frontend", "frontend", int(facts.fact("routers")), pod)


def router_words(deployment: Deployment) -> list[str]:
    """How the frontend chooses, and that it hands the requests of a worker that died to another one.

    Routers that know which prefixes workers hold tell each other what they gave out; others count their own requests.
    """
    words = ["--router-mode", router_mode(deployment), "--migration-limit", str(facts.fact("migrations"))]
    if router_mode(deployment) == "kv":
        words += ["--kv-cache-block-size", str(deployment.pools[0].settings.block_tokens), "--router-replica-sync"]
    return words


def router_mode(deployment: Deployment) -> str:
    """Who gets a request: whoever holds its prefix if the plan counts on prefixes, else whoever has least to do."""
    return "kv" if deployment.routes_by_prefix else "least-loaded"


def _image(deployment: Deployment) -> str:
    options = deployment.options
    return options.image or facts.image("dynamo", options.version, deployment.engine)


def _worker(deployment: Deployment, pool: DeployedPool, *, planned: bool) -> dict[str, Any]:
    main = _main(deployment, deployment.engine, plain_words(worker_words(deployment, pool)))
    main["env"] = [*WATCHED_ENV, *transport_env(deployment, pool), *[CACHE_ENV] * bool(deployment.options.claim)]
    main["envFrom"] = TOKEN
    if pool.nodes == 1:  # of an engine of several, the operator knows which pods answer
        main |= probes("/health", SYSTEM_PORT, "/live")
    main["securityContext"] = container_security(rdma=deployment.disaggregated or pool.nodes > 1)
    main["resources"] = resources(deployment, pool)
    spec = {"terminationGracePeriodSeconds": grace_seconds(deployment), **placement(deployment, pool)}
    if deployment.weights.startswith("/") or deployment.options.claim:
        main["volumeMounts"], spec["volumes"] = [weights_mount(deployment)], [weights_volume(deployment)]
    template = _pod(main, **spec)
    template["metadata"] = {"labels": own_labels(deployment, pool), "annotations": {"pdplan.dev/pool": pool.id}}
    more: dict[str, Any] = {"multinode": {"nodeCount": pool.nodes}} if pool.nodes > 1 else {}
    more |= {"sharedMemorySize": f"{facts.fact('host', 'shared_gib')}Gi"} | ({"scalingAdapter": {}} if planned else {})
    kind = "worker" if pool.role is Role.COLOCATED else pool.role.value
    return _component(pool.name, kind, pool.replicas, template, **more)


def worker_words(deployment: Deployment, pool: DeployedPool) -> Words:
    """The engine's flags and Dynamo's own; whoever computes prompts tells the router which prefixes it holds."""
    tells = router_mode(deployment) == "kv" and pool.role is not Role.DECODE
    if deployment.engine == "sglang":
        return sglang_words(deployment, pool) + _events(KV_EVENTS, stated=tells)
    mode: Words = () if pool.role is Role.COLOCATED else (("--disaggregation-mode", pool.role.value),)
    if deployment.engine == "trtllm":
        return dynamo_trtllm_words(deployment, pool) + mode + ((("--publish-kv-events", None),) if tells else ())
    return vllm_words(deployment, pool) + mode + _events(KV_EVENTS | {"enable_kv_cache_events": True}, stated=tells)


def _events(config: Mapping[str, Any], *, stated: bool) -> Words:
    return (("--kv-events-config", json.dumps(config, separators=(",", ":"))),) if stated else ()


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
