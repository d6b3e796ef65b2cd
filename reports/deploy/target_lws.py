"""llm-d's engines that span nodes: a LeaderWorkerSet per pool, whose leaders serve and whose workers only compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import DeployedPool, Deployment
from .flags_vllm import TRANSFER, node_ranks, place_words, span_words, vllm_settings, vllm_words
from .found import FoundWorker, json_object, plain_words, words_of
from .manifests import dig, load_yaml, quantity, unescaped
from .rendering import pod_text, render
from .weights import CACHE_ENV, CACHE_MOUNT, weights_volume

GROUPS: Final = "leaderworkersets/"
"""Folder of the manifests."""
LEADER: Final = "$(LWS_LEADER_ADDRESS)"
RANK: Final = "$(LWS_WORKER_INDEX)"
"""Variables that the controller gives every container of a group."""
ROLE: Final = "llm-d.ai/role"
"""Label by which the endpoint picker tells prefill pods from decode pods."""
SHARED_MOUNT: Final = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108 - where a volume is mounted
SERVE: Final = ["vllm", "serve"]


def group_file(
    deployment: Deployment, pool: DeployedPool, labels: Mapping[str, str], env: list[dict[str, Any]], image: str
) -> str:
    """The LeaderWorkerSet of a pool; labels: by which leaders are found; env: of every engine."""
    proxied = pool.role is Role.DECODE
    port = int(facts.fact("ports", "behind_proxy" if proxied else "http"))
    devices = {facts.fact("gpu_resource"): str(pool.node_gpus), deployment.options.rdma: str(pool.node_gpus)}
    return render(
        "llmd/leaderworkerset.yaml",
        name=f"{deployment.name}-{pool.name}",
        namespace=deployment.options.namespace,
        labels=dict(labels) | {ROLE: "prefill" if pool.role is Role.PREFILL else "decode"},
        replicas=pool.replicas,
        nodes=pool.nodes,
        leader={
            "proxy": _proxy(deployment, port) if proxied else None,
            "command": SERVE,
            "args": [*_words(deployment, pool), *place_words(pool, 0), "--host", "0.0.0.0", "--port", str(port)],  # noqa: S104
            "port": port,
        },
        worker={
            "proxy": None,
            "command": _worker_command(pool),
            "args": [*_words(deployment, pool), *_worker_place(pool)],
            "port": None,
        },
        selector={facts.fact("gpu_label"): pool.node_label},
        image=image,
        env=[*env, CACHE_ENV],
        ports=[{"name": "metrics", "containerPort": port}],
        checks=facts.fact("startup_seconds") // 10,
        resources=devices,
        mounts=[SHARED_MOUNT, CACHE_MOUNT],
        volumes=[shared_volume(), weights_volume(deployment)],
    )


def shared_volume() -> dict[str, Any]:
    """Memory through which the ranks of a pod talk."""
    return {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": facts.fact("shared_memory")}}


def _proxy(deployment: Deployment, engine: int) -> dict[str, Any]:
    """The proxy beside a decode engine, which fetches the prompt's KV first."""
    port = facts.fact("ports", "http")
    words = [f"--port={port}", f"--vllm-port={engine}", "--kv-connector=nixlv2", "--secure-proxy=false"]
    return {"image": facts.image("llmd", deployment.options.version, "sidecar"), "args": words, "port": port}


def _words(deployment: Deployment, pool: DeployedPool) -> list[str]:
    """What every node of an engine is told; the model goes first and without its flag."""
    told = [pod_text(word) for word in plain_words(vllm_words(deployment, pool))[1:]]
    return told + span_words(pool, LEADER, lambda kind: int(facts.fact("ports", kind)))


def _worker_place(pool: DeployedPool) -> list[str]:
    return ["--node-rank", RANK, "--headless"] if pool.settings.data == 1 else ["--headless"]


def _worker_command(pool: DeployedPool) -> list[str]:
    """A worker's first data rank is a product, which only a shell computes; arguments reach the engine as they are."""
    if pool.settings.data == 1:
        return SERVE
    start = f"$((LWS_WORKER_INDEX * {node_ranks(pool)}))"
    return ["sh", "-c", pod_text(f'exec vllm serve "$@" --data-parallel-start-rank {start}'), "vllm"]


def read_group(deployment: Deployment, path: str, text: str, labels: Mapping[str, str]) -> FoundWorker:
    """The engines of a pool, each a group of pods; InputError where a group would not become one engine."""
    loaded = load_yaml(path, text)
    if dig(loaded, "apiVersion") != "leaderworkerset.x-k8s.io/v1" or dig(loaded, "kind") != "LeaderWorkerSet":
        raise InputError(f"{path} is no LeaderWorkerSet of a known version")
    group = dig(loaded, "spec", "leaderWorkerTemplate")
    leader, worker = dig(group, "leaderTemplate"), dig(group, "workerTemplate")
    given = dig(leader, "metadata", "labels") or {}
    if not labels.items() <= given.items() or dig(worker, "metadata", "labels"):
        raise InputError(f"{path}: leaders, and they alone, must have the labels that the InferencePool selects")
    container, other = dig(leader, "spec")["containers"][0], dig(worker, "spec")["containers"][0]
    pool = deployment.pool(path.removeprefix(GROUPS).removesuffix(".yaml"))
    if pool is None:
        raise InputError(f"{path}: the plan has no such pool")
    words = words_of(path, ["--model", *(unescaped(str(word)) for word in container["args"])])
    _check_worker(path, pool, container, other)
    values = dict(words)
    _check_port(path, dig(leader, "spec"), values)
    limits = dig(container, "resources", "limits") or {}
    return FoundWorker(
        where=path,
        pool=pool.name,
        role=_role(given, dig(leader, "spec")),
        weights=str(values.get("--model")),
        replicas=quantity(path, dig(loaded, "spec", "replicas")),
        nodes=quantity(path, dig(group, "size")),
        node_gpus=quantity(path, limits.get(facts.fact("gpu_resource"))),
        words=words,
        settings=vllm_settings(deployment, path, words),
        transfer=json_object(f"{path}: {TRANSFER}", values[TRANSFER] or "") if TRANSFER in values else None,
        env=read_env(container),
        label=(dig(leader, "spec", "nodeSelector") or {}).get(facts.fact("gpu_label")),
        image=container.get("image"),
        pod={
            "devices": limits,
            "shared_memory": SHARED_MOUNT in (container.get("volumeMounts") or []),
            "capabilities": dig(container, "securityContext", "capabilities", "add") or [],
        },
    )


def _check_worker(path: str, pool: DeployedPool, leader: Mapping[str, Any], worker: Mapping[str, Any]) -> None:
    """A worker is told what its leader is, but for its place and the port, and has the same devices and image."""
    served = len(place_words(pool, 0)) + 4  # host and port
    if leader["args"][:-served] + _worker_place(pool) != worker["args"]:
        raise InputError(f"{path}: workers are not told what their leader is told")
    if (leader["command"], worker["command"]) != (SERVE, _worker_command(pool)):
        raise InputError(f"{path}: leader or workers do not start vllm serve")
    for name in ("image", "env", "resources", "securityContext", "volumeMounts"):
        if leader.get(name) != worker.get(name):
            raise InputError(f"{path}: {name} of workers is not that of their leader")


def _check_port(path: str, pod: Mapping[str, Any], values: Mapping[str, str | None]) -> None:
    """Requests reach the engine: itself, or through the proxy beside it."""
    http = str(facts.fact("ports", "http"))
    proxies = [one for one in pod.get("initContainers") or [] if one.get("name") == "routing-proxy"]
    words = proxies[0].get("args") if proxies else [f"--port={http}", f"--vllm-port={http}"]
    for expected in (f"--port={http}", f"--vllm-port={values.get('--port')}"):
        if expected not in (words or []):
            raise InputError(f"{path}: requests do not reach the engine, for {expected} is not so")


def _role(labels: Mapping[str, str], pod: Mapping[str, Any]) -> str:
    if labels.get(ROLE) == "prefill":
        return Role.PREFILL.value
    return Role.DECODE.value if pod.get("initContainers") else Role.COLOCATED.value


def read_env(container: Mapping[str, Any]) -> dict[str, str]:
    """Environment of a container, with the field that a value comes from in its place."""
    return {
        str(item.get("name")): str(item.get("value") or dig(item, "valueFrom", "fieldRef", "fieldPath") or "")
        for item in container.get("env") or []
    }
