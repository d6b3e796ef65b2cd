"""NVIDIA Dynamo: the fleet as a DynamoGraphDeployment, with fixed replicas and under the planner's control."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from costmodel.engine import EngineConfig, Role
from costmodel.errors import InputError
from costmodel.memory import kv_bytes_per_token_per_gpu, kv_capacity_bytes
from costmodel.step import StepLoad, step_time_one
from costmodel.units import MILLI

from . import facts
from .deployment import DeployedPool, Deployment, Routing, Settings
from .flags import (
    SCHEDULER,
    sglang_settings,
    sglang_words,
    trtllm_options,
    trtllm_settings,
    vllm_settings,
    vllm_words,
)
from .formats import Raw, dig, load_yaml, namespaces, pod_text, quantity, render, unescaped
from .gateway import router_config
from .pods import CACHE_ENV, CACHE_MOUNT, pod_worker, weights_volume
from .readback import Found, FoundRouter, FoundWorker, Words, json_object, plain_words, words_of

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
    return "kv" if deployment.routes_by_prefix else "least-loaded"


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


def read_dynamo(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """The workers of both manifests (they must agree), the frontend and the planner."""
    if deployment.routing is Routing.BY_LENGTH:
        return _read_by_length(deployment, files)
    if FLEET_FILE not in files:
        raise InputError(f"{FLEET_FILE} is missing")
    fleet = _read_graph(deployment, FLEET_FILE, files[FLEET_FILE])
    planner = None
    if PLANNED_FILE in files:
        planned = _read_graph(deployment, PLANNED_FILE, files[PLANNED_FILE])
        if [_plain(one) for one in planned.workers] != [_plain(one) for one in fleet.workers]:
            raise InputError(f"{PLANNED_FILE} starts other workers than {FLEET_FILE}")
        planner = _read_planner(files)
    return Found(fleet.workers, fleet.router, planner, fleet.names, namespaces(files))


def _read_by_length(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """Every pool's graph, and the grid by which the control graph chooses among them."""
    missing = next((name for name in (CONTROL_FILE, GRID_MAP_FILE) if name not in files), None)
    if missing is not None:
        raise InputError(f"{missing} is missing, so no request finds a pool")
    pools = [_read_graph(deployment, path, files[path]) for path in sorted(files) if path.startswith("pools/")]
    control = _read_graph(deployment, CONTROL_FILE, files[CONTROL_FILE])
    data = dig(load_yaml(GRID_MAP_FILE, files[GRID_MAP_FILE]), "data", GRID_FILE)
    router = FoundRouter(
        GRID_MAP_FILE,
        splits=True,
        targets={},
        words=control.router.words if control.router else (),
        grid=json_object(f"{GRID_MAP_FILE}: {GRID_FILE}", str(data)),
    )
    workers = tuple(one for graph in pools for one in graph.workers)
    return Found(workers, router, None, tuple(name for graph in pools for name in graph.names), namespaces(files))


def _plain(one: FoundWorker) -> tuple[Any, ...]:
    return one.pool, one.role, one.replicas, one.nodes, one.node_gpus, one.words, one.label, one.image, str(one.pod)


def _read_graph(deployment: Deployment, path: str, text: str) -> Found:
    loaded = load_yaml(path, text)
    version = dig(loaded, "apiVersion")
    readers = {"nvidia.com/v1beta1": _components, "nvidia.com/v1alpha1": _services}
    if version not in readers or dig(loaded, "kind") != "DynamoGraphDeployment":
        raise InputError(f"{path} is no DynamoGraphDeployment of a known version")
    workers, router = [], None
    for part in readers[version](loaded):
        if part["role"] == "frontend":
            router = _read_frontend(path, part)
        elif part["role"] in {"worker", "prefill", "decode"}:
            workers.append(_read_worker(deployment, path, part))
    names = tuple(f"{dig(loaded, 'metadata', 'name')}-{one.pool}" for one in workers)
    return Found(tuple(workers), router, None, names)


def _components(loaded: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Components of v1beta1 in words of neither version."""
    for one in dig(loaded, "spec", "components") or []:
        pod = dig(one, "podTemplate", "spec") or {}
        container: dict[str, Any] = next((item for item in pod.get("containers", []) if item.get("name") == "main"), {})
        limits = dig(container, "resources", "limits") or {}
        yield {
            "name": str(one.get("name")),
            "role": one.get("type"),
            "replicas": one.get("replicas"),
            "nodes": dig(one, "multinode", "nodeCount") or 1,
            "gpus": limits.get(facts.fact("gpu_resource"), 0),
            "devices": {name: count for name, count in limits.items() if name != facts.fact("gpu_resource")},
            "selector": pod.get("nodeSelector") or {},
            "container": container,
            "shared_memory": one.get("sharedMemorySize"),
        }


def _services(loaded: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Services of v1alpha1 in words of neither version."""
    for name, one in (dig(loaded, "spec", "services") or {}).items():
        pod = one.get("extraPodSpec") or {}
        limits = dig(one, "resources", "limits") or {}
        yield {
            "name": str(name),
            "role": one.get("subComponentType") or one.get("componentType"),
            "replicas": one.get("replicas"),
            "nodes": dig(one, "multinode", "nodeCount") or 1,
            "gpus": limits.get("gpu", 0),
            "devices": limits.get("custom") or {},
            "selector": pod.get("nodeSelector") or {},
            "container": pod.get("mainContainer") or {},
            "shared_memory": dig(one, "sharedMemory", "size"),
        }


def _read_frontend(path: str, part: Mapping[str, Any]) -> FoundRouter:
    args = [unescaped(str(word)) for word in part["container"].get("args") or []]
    return FoundRouter(f"{path}: {part['name']}", splits=True, targets={}, words=words_of(path, args))


def _read_worker(deployment: Deployment, path: str, part: Mapping[str, Any]) -> FoundWorker:
    where, container = f"{path}: {part['name']}", part["container"]
    words = words_of(where, [unescaped(str(word)) for word in container.get("args") or []])
    values = dict(words)
    command = container.get("command") or []
    role = Role.COLOCATED.value if part["role"] == "worker" else str(part["role"])
    mode = values.get("--disaggregation-mode")
    if mode not in {None, role} or (mode is None and role != Role.COLOCATED.value):
        raise InputError(f"{where}: --disaggregation-mode {mode} does not fit a component of type {part['role']}")
    return pod_worker(
        where,
        words,
        container,
        settings=_settings(deployment, where, part["name"], words),
        pool=part["name"],
        role=role,
        replicas=quantity(where, part["replicas"]),
        nodes=quantity(where, part["nodes"]),
        node_gpus=quantity(where, part["gpus"]),
        label=(part["selector"] or {}).get(facts.fact("gpu_label")),
        program=f"{deployment.engine}_worker" if command[-1:] == [f"dynamo.{deployment.engine}"] else "?",
        devices=part["devices"],
        shared_memory=part["shared_memory"],
    )


def _settings(deployment: Deployment, where: str, name: str, words: Words) -> Settings:
    if deployment.engine == "vllm":
        return vllm_settings(deployment, where, words)
    pool = deployment.pool(name)
    if pool is None:
        raise InputError(f"{where}: the plan has no pool of this name")
    if deployment.engine == "sglang":
        return sglang_settings(deployment, where, words)
    return trtllm_settings(deployment, where, _trtllm_options(where, words))


def _trtllm_options(where: str, words: Words) -> dict[str, Any]:
    """The options that dynamo.trtllm puts together from its flags and the JSON."""
    values = dict(words)
    options = json_object(f"{where}: {OVERRIDES}", values.get(OVERRIDES) or "{}")
    cache = options.get("kv_cache_config") or {}
    for name, flag in TRTLLM_FLAGS.items():
        if name in options:
            raise InputError(f"{where}: {name} is stated by {flag} and again in {OVERRIDES}")
        if flag in values:
            options[name] = values[flag]
    options |= {"enable_attention_dp": "--enable-attention-dp" in values, "scheduler_config": SCHEDULER}
    for flag, name in (
        ("--kv-block-size", "tokens_per_block"),
        ("--free-gpu-memory-fraction", "free_gpu_memory_fraction"),
    ):
        if values.get(flag) != str(cache.get(name)):
            raise InputError(f"{where}: {flag} {values.get(flag)} is not {name} of kv_cache_config")
    return options


def _read_planner(files: Mapping[str, str]) -> dict[str, Any]:
    """The planner's settings, as the config map holds them; InputError where it lacks what they point to."""
    if CONFIGMAP_FILE not in files:
        raise InputError(f"{CONFIGMAP_FILE} is missing, which {PLANNED_FILE} mounts")
    data = dig(load_yaml(CONFIGMAP_FILE, files[CONFIGMAP_FILE]), "data") or {}
    config = json_object(f"{CONFIGMAP_FILE}: {PLANNER_CONFIG}", str(data.get(PLANNER_CONFIG)))
    if config.get("profile_results_dir") != PROFILE_FOLDER:
        raise InputError(f"{CONFIGMAP_FILE}: profile_results_dir is not {PROFILE_FOLDER}, where the profile is mounted")
    for name in ("prefill_raw_data.json", "decode_raw_data.json"):
        json_object(f"{CONFIGMAP_FILE}: {name}", str(data.get(name)))
    return config


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
