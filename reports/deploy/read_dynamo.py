"""What a DynamoGraphDeployment starts, read back from its manifest in either API version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import Deployment, Routing, Settings
from .flags_sglang import sglang_settings
from .flags_vllm import TRANSFER, vllm_settings
from .found import Found, FoundRouter, FoundWorker, Words, json_object, words_of
from .manifests import dig, load_yaml, namespaces, quantity, unescaped
from .options_trtllm import trtllm_settings
from .planner import PROFILE_FOLDER
from .target_dynamo import (
    CONFIGMAP_FILE,
    CONTROL_FILE,
    FLEET_FILE,
    GRID_FILE,
    GRID_FOLDER,
    GRID_MAP_FILE,
    OVERRIDES,
    PLANNED_FILE,
    PLANNER_CONFIG,
    TRTLLM_FLAGS,
    pool_namespace,
)


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
    _check_lanes(deployment, files)
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


def _check_lanes(deployment: Deployment, files: Mapping[str, str]) -> None:
    """Both kinds of router know their ends: the global one its grid, each local one its pool."""
    expected = {CONTROL_FILE: ("GlobalRouter", ["--config", f"{GRID_FOLDER}/{GRID_FILE}"])}
    for pool in deployment.pools:
        component = "prefill" if pool.role is Role.PREFILL else "backend"
        endpoint = f"{pool_namespace(deployment, pool)}.{component}.generate"
        expected[f"pools/{pool.name}.yaml"] = ("LocalRouter", ["--endpoint", endpoint])
    for path, (name, start) in expected.items():
        parts = {part["name"]: part for part in _components(load_yaml(path, files.get(path, "")) or {})}
        args = (parts[name]["container"].get("args") or []) if name in parts else []
        if args[:2] != start:
            raise InputError(f"{path}: {name} is not started with {' '.join(start)}")


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
            router = _frontend(path, part)
        elif part["role"] in {"worker", "prefill", "decode"}:
            workers.append(_worker(deployment, path, part))
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


def _frontend(path: str, part: Mapping[str, Any]) -> FoundRouter:
    args = [unescaped(str(word)) for word in part["container"].get("args") or []]
    return FoundRouter(f"{path}: {part['name']}", splits=True, targets={}, words=words_of(path, args))


def _worker(deployment: Deployment, path: str, part: Mapping[str, Any]) -> FoundWorker:
    where, container = f"{path}: {part['name']}", part["container"]
    words = words_of(where, [unescaped(str(word)) for word in container.get("args") or []])
    values = dict(words)
    transfer = json_object(f"{where}: {TRANSFER}", values[TRANSFER] or "") if TRANSFER in values else None
    command = container.get("command") or []
    role = Role.COLOCATED.value if part["role"] == "worker" else str(part["role"])
    mode = values.get("--disaggregation-mode")
    if mode not in {None, role} or (mode is None and role != Role.COLOCATED.value):
        raise InputError(f"{where}: --disaggregation-mode {mode} does not fit a component of type {part['role']}")
    return FoundWorker(
        where=where,
        pool=part["name"],
        role=role,
        weights=str(values.get("--model") or values.get("--model-path")),
        replicas=quantity(where, part["replicas"]),
        nodes=quantity(where, part["nodes"]),
        node_gpus=quantity(where, part["gpus"]),
        words=words,
        settings=_settings(deployment, where, part["name"], words),
        transfer=transfer,
        env={str(item.get("name")): str(item.get("value")) for item in container.get("env") or []},
        label=(part["selector"] or {}).get(facts.fact("gpu_label")),
        image=container.get("image"),
        program=f"{deployment.engine}_worker" if command[-1:] == [f"dynamo.{deployment.engine}"] else "?",
        pod={
            "devices": part["devices"],
            "shared_memory": part["shared_memory"],
            "capabilities": dig(container, "securityContext", "capabilities", "add") or [],
        },
    )


def _settings(deployment: Deployment, where: str, name: str, words: Words) -> Settings:
    if deployment.engine == "vllm":
        return vllm_settings(deployment, where, words)
    pool = deployment.pool(name)
    if pool is None:
        raise InputError(f"{where}: the plan has no pool of this name")
    if deployment.engine == "sglang":
        return sglang_settings(where, words)
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
    options["enable_attention_dp"] = "--enable-attention-dp" in values
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
