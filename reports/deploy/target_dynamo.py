"""NVIDIA Dynamo: the fleet as a DynamoGraphDeployment, with fixed replicas and under the planner's control."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import DeployedPool, Deployment, Routing
from .flags_sglang import sglang_words
from .flags_vllm import vllm_words
from .found import Words, plain_words
from .options_trtllm import trtllm_options
from .planner import PROFILE_FOLDER, can_plan, planner_config, profile_files
from .rendering import Raw, pod_text, render
from .routing_grid import router_config
from .weights import CACHE_ENV, CACHE_MOUNT, weights_volume

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
OVERRIDES: Final = "--override-engine-args"
TRTLLM_FLAGS: Final = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "moe_expert_parallel_size": "--expert-parallel-size",
    "max_batch_size": "--max-batch-size",
    "max_num_tokens": "--max-num-tokens",
    "max_seq_len": "--max-seq-len",
}
"""Options of TensorRT-LLM that dynamo.trtllm takes as flags; all others go in as JSON."""


def dynamo_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    if deployment.routing is Routing.BY_LENGTH:
        return _by_length(deployment)
    files = {FLEET_FILE: _graph(deployment, planned=False)}
    if can_plan(deployment):
        files[PLANNED_FILE] = _graph(deployment, planned=True)
        data = {PLANNER_CONFIG: json.dumps(planner_config(deployment), indent=1) + "\n", **profile_files(deployment)}
        files[CONFIGMAP_FILE] = render(
            "dynamo/configmap.yaml",
            name=_configmap(deployment),
            namespace=deployment.options.namespace,
            data=list(data.items()),
            purpose=Raw(PURPOSE),
        )
        files |= {f"planner/{name}": text for name, text in data.items()}
    return files


def _by_length(deployment: Deployment) -> dict[str, str]:
    """A graph for each pool behind its own router, and one that chooses among them by the prompt's length."""
    if deployment.options.api != "v1beta1":
        raise InputError("routing by length is written for Dynamo's API version v1beta1 only")
    config = json.dumps(router_config(deployment, lambda pool: pool_namespace(deployment, pool))) + "\n"
    image, control = _image(deployment), f"{deployment.options.namespace}-{deployment.name}"
    names = ["--namespace", control, "--model-name", deployment.weights]
    files = {
        CONTROL_FILE: render(
            "dynamo/control.yaml",
            **_shared(deployment),
            name=deployment.name,
            image=image,
            frontend_args=["--http-port", str(facts.fact("ports", "http")), "--router-mode", "round-robin", *names],
            router_args=["--config", f"{GRID_FOLDER}/{GRID_FILE}", *names],
            grid_folder=GRID_FOLDER,
            configmap=f"{deployment.name}-grid",
        ),
        GRID_MAP_FILE: render(
            "dynamo/configmap.yaml",
            name=f"{deployment.name}-grid",
            namespace=deployment.options.namespace,
            data=[(GRID_FILE, config)],
            purpose=Raw("Which pool takes which prompt lengths, as the plan routes them."),
        ),
    }
    for pool in deployment.pools:
        component = "prefill" if pool.role is Role.PREFILL else "backend"
        files[f"pools/{pool.name}.yaml"] = render(
            "dynamo/pool.yaml",
            **_shared(deployment),
            name=f"{deployment.name}-{pool.name}",
            worker=_worker(deployment, pool),
            router_args=[
                "--endpoint",
                f"{pool_namespace(deployment, pool)}.{component}.generate",
                "--no-router-kv-events",
            ],
        )
    return files


def pool_namespace(deployment: Deployment, pool: DeployedPool) -> str:
    """Dynamo's namespace of a pool: that of Kubernetes and the name of its graph."""
    return f"{deployment.options.namespace}-{deployment.name}-{pool.name}"


def _configmap(deployment: Deployment) -> str:
    return f"{deployment.name}-planner"


def _graph(deployment: Deployment, *, planned: bool) -> str:
    options = deployment.options
    planner = {
        "image": facts.image("dynamo", options.version, "planner"),
        "command": ["python3", "-m", "dynamo.planner"],
        "args": ["--config", f"{PROFILE_FOLDER}/{PLANNER_CONFIG}"],
        "folder": PROFILE_FOLDER,
        "configmap": _configmap(deployment),
    }
    return render(
        f"dynamo/dgd.{options.api}.yaml",
        **_shared(deployment),
        flavour=Raw(" that the planner scales" if planned else ""),
        name=deployment.name,
        frontend=_frontend(deployment),
        planner=planner if planned else None,
        workers=[_worker(deployment, pool) for pool in deployment.pools],
    )


def _shared(deployment: Deployment) -> dict[str, Any]:
    """What every graph states; folder: of the weights, which then lie on every node."""
    return {
        "namespace": deployment.options.namespace,
        "annotations": {"pdplan.dev/plan": deployment.title, "pdplan.dev/inputs-sha256": deployment.plan_sha},
        "engine": deployment.engine,
        "folder": deployment.weights if deployment.weights.startswith("/") else None,
        "cache": None,  # of the frontend, which fetches no weights
    }


def _frontend(deployment: Deployment) -> dict[str, Any]:
    args = ["--http-port", str(facts.fact("ports", "http")), "--router-mode", router_mode(deployment)]
    if router_mode(deployment) == "kv":
        args += ["--kv-cache-block-size", str(deployment.pools[0].settings.block_tokens)]
    return {"image": _image(deployment), "command": ["python3", "-m", "dynamo.frontend"], "args": args}


def router_mode(deployment: Deployment) -> str:
    """Who gets a request: whoever holds its prefix if the plan counts on prefixes, else whoever has least to do."""
    return "kv" if deployment.demand.prefix_share > 0.0 else "least-loaded"


def _image(deployment: Deployment) -> str:
    options = deployment.options
    return options.image or facts.image("dynamo", options.version, deployment.engine)


def _worker(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    rdma = deployment.options.rdma if deployment.disaggregated or pool.nodes > 1 else None
    gpus = str(pool.node_gpus)
    devices = {facts.fact("gpu_resource"): gpus} | ({rdma: gpus} if rdma else {})
    return {
        "name": pool.name,
        "type": "worker" if pool.role is Role.COLOCATED else pool.role.value,
        "replicas": pool.replicas,
        "nodes": pool.nodes,
        "shared_memory": facts.fact("shared_memory"),
        "annotations": {"pdplan.dev/pool": pool.id},
        "selector": {facts.fact("gpu_label"): pool.node_label},
        "image": _image(deployment),
        "command": ["python3", "-m", f"dynamo.{deployment.engine}"],
        "args": [pod_text(word) for word in plain_words(worker_words(deployment, pool))],
        "env": _env(deployment),
        "cache": {"mount": CACHE_MOUNT, "volume": weights_volume(deployment)} if deployment.options.claim else None,
        "rdma": rdma,
        "resources": devices,
        "service_resources": {"gpu": gpus} | ({"custom": {rdma: gpus}} if rdma else {}),
    }


def _env(deployment: Deployment) -> list[dict[str, str]]:
    env = [{"name": "UCX_TLS", "value": facts.fact("ucx", "pods")}] if deployment.disaggregated else []
    return env + [CACHE_ENV] * bool(deployment.options.claim)


def worker_words(deployment: Deployment, pool: DeployedPool) -> Words:
    """The engine's flags and Dynamo's own; whoever computes prompts tells the router which prefixes it holds."""
    tells = router_mode(deployment) == "kv" and pool.role is not Role.DECODE
    if deployment.engine == "sglang":
        return sglang_words(deployment, pool) + _events(KV_EVENTS, stated=tells)
    mode: Words = () if pool.role is Role.COLOCATED else (("--disaggregation-mode", pool.role.value),)
    if deployment.engine == "trtllm":
        return _trtllm_words(deployment, pool) + mode + ((("--publish-kv-events", None),) if tells else ())
    return vllm_words(deployment, pool) + mode + _events(KV_EVENTS | {"enable_kv_cache_events": True}, stated=tells)


def _events(config: Mapping[str, Any], *, stated: bool) -> Words:
    return (("--kv-events-config", json.dumps(config, separators=(",", ":"))),) if stated else ()


def _trtllm_words(deployment: Deployment, pool: DeployedPool) -> Words:
    options = trtllm_options(deployment, pool)
    cache = options["kv_cache_config"]
    del options["scheduler_config"]  # dynamo.trtllm states the same, as an object that no JSON can be laid over
    words: list[tuple[str, str | None]] = [
        ("--model", deployment.weights),
        ("--served-model-name", deployment.weights),
        *((flag, str(options.pop(name))) for name, flag in TRTLLM_FLAGS.items() if name in options),
        ("--kv-block-size", str(cache["tokens_per_block"])),
        ("--free-gpu-memory-fraction", repr(cache["free_gpu_memory_fraction"])),
    ]
    if options.pop("enable_attention_dp"):
        words.append(("--enable-attention-dp", None))
    return (*words, (OVERRIDES, json.dumps(options, separators=(",", ":"))))
