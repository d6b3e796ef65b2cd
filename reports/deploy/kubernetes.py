"""What pods and their surroundings have in Kubernetes, whatever target starts them: Dynamo's graphs and llm-d's sets.

Everything here is data, dumped as YAML by `formats.manifest`; no target writes a line of a manifest by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from costmodel.memory import weight_bytes_per_gpu
from costmodel.units import GIB

from . import facts
from .deployment import DeployedPool, Deployment
from .formats import manifest

SECRET: Final = "hf-token-secret"  # noqa: S105 - its name, not what it holds
CACHE: Final = "/model-cache"
"""Folder of a pod that engines fetch weights to."""
CACHE_ENV: Final = {"name": "HF_HOME", "value": CACHE}
CACHE_MOUNT: Final = {"name": "weights", "mountPath": CACHE}
SHARED_MOUNT: Final = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108 - where a volume is mounted
POOL: Final = "pdplan.dev/pool"
DEPLOYMENT: Final = "pdplan.dev/deployment"
NVLINK: Final = "nvlink"
"""Name of a pod's claim on a channel of the NVLink domain."""
SUPPORT_FILE: Final = "support.yaml"
CACHE_FILE: Final = "model-cache.yaml"
KUSTOMIZATION: Final = "kustomization.yaml"


def vendor_fact(pool: DeployedPool, what: str) -> str:
    """What a vendor's GPUs are called in Kubernetes: the resource, the product label, UCX transports."""
    return str(facts.fact("vendors", pool.vendor, what))


def own_labels(deployment: Deployment, pool: DeployedPool | None = None) -> dict[str, str]:
    """Labels by which pods of a deployment, or of one of its pools, are found."""
    return {DEPLOYMENT: deployment.name} | ({POOL: pool.name} if pool else {})


def metadata(deployment: Deployment, name: str, **more: Any) -> dict[str, Any]:
    """Name and namespace of an object."""
    return {"name": name, "namespace": deployment.options.namespace, **more}


def weights_volume(deployment: Deployment) -> dict[str, Any]:
    """The volume behind the folder: a claim that outlives the pod, the node's folder, or the pod's own disk."""
    claim, weights = deployment.options.claim, deployment.weights
    if weights.startswith("/"):
        return {"name": "weights", "hostPath": {"path": weights, "type": "Directory"}}
    return {"name": "weights", **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})}


def weights_mount(deployment: Deployment) -> dict[str, Any]:
    """Where a pod has the weights, or fetches them to."""
    if deployment.weights.startswith("/"):
        return {"name": "weights", "mountPath": deployment.weights, "readOnly": True}
    return CACHE_MOUNT


def checkpoint_bytes(deployment: Deployment) -> float:
    """Bytes of the weights as they are stored [byte]: 16-bit ones where the engine converts them while loading."""
    pool = deployment.pools[0]
    stored = pool.config.weight_dtype if pool.settings.quantization is None else deployment.model.native_weight_dtype
    return deployment.model.weight_bytes(stored)


def resources(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    r"""What a pod of a pool asks for: devices, and CPU, memory and disk by the model.

    memory = shared memory + (GPUs + 2) $\cdot$ that of a process + the weights that the node's ranks read, once
    [byte]: they are mapped while they load, and every rank reads them again that does not find them in memory.
    disk = logs and compiled kernels, and the checkpoint with a tenth more, where it is fetched to the pod [byte].
    """
    host, gpus = facts.fact("host"), pool.node_gpus
    checkpoint = checkpoint_bytes(deployment)
    read = min(checkpoint, weight_bytes_per_gpu(deployment.model, pool.config) * gpus)
    memory = GIB * (host["shared_gib"] + (gpus + 2) * host["process_gib"]) + read
    fetched = not (deployment.options.claim or deployment.weights.startswith("/"))
    disk = GIB * host["disk_gib"] + 1.1 * checkpoint * fetched
    devices = {vendor_fact(pool, "resource"): str(gpus)}
    if deployment.disaggregated or pool.nodes > 1:
        devices[deployment.options.rdma] = str(gpus)
    sized = {"memory": gibibytes(memory), "ephemeral-storage": gibibytes(disk)}
    cpu = {"cpu": str(host["cpu_per_gpu"] * gpus + host["cpu_per_pod"])}
    claims = {"claims": [{"name": NVLINK}]} if pool.nvlink else {}
    return {"requests": cpu | sized | devices, "limits": sized | devices, **claims}


def gibibytes(size: float) -> str:
    """A size as Kubernetes writes it, rounded up.

    >>> gibibytes(1.5 * 2**30)
    '2Gi'
    """
    return f"{math.ceil(size / GIB)}Gi"


def container_security(*, rdma: bool) -> dict[str, Any]:
    """No more rights than an engine needs: RDMA locks memory."""
    add = {"add": ["IPC_LOCK"]} if rdma else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **add}}


def probes(path: str, port: int, live: str | None = None) -> dict[str, Any]:
    """Startup, liveness and readiness of a container; live: another path that tells whether it must be restarted.

    A pod that is not ready gets no requests, as soon as any router here passes over a replica. It is restarted later:
    a busy replica answers late.
    """
    health, startup = facts.fact("health"), int(facts.fact("startup_seconds"))

    def probe(asked: str, period: int, failures: int) -> dict[str, Any]:
        return {
            "httpGet": {"path": asked, "port": port},
            "periodSeconds": period,
            "timeoutSeconds": health["timeout"],
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe(live or path, 10, startup // 10),
        "livenessProbe": probe(live or path, 10, health["restart_failures"]),
        "readinessProbe": probe(path, health["interval"], health["failures"]),
    }


def pre_stop() -> dict[str, Any]:
    """A pod that shall end serves on until every router has seen that it goes."""
    return {"preStop": {"exec": {"command": ["sleep", str(notice_seconds())]}}}


def notice_seconds() -> int:
    """How long routers take to see that a pod goes [s]."""
    return int(facts.fact("health", "interval")) * int(facts.fact("health", "failures"))


def grace_seconds(deployment: Deployment) -> int:
    """How long a pod may take to end [s]: until routers have seen it, running requests are done, and GPUs are free."""
    return notice_seconds() + deployment.drain_seconds + int(facts.fact("exit_seconds"))


def placement(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """Which nodes a pod runs on: its GPU's, near those that it hands over to, in one NVLink domain if it must."""
    spec: dict[str, Any] = {
        "nodeSelector": {vendor_fact(pool, "label"): pool.node_label},
        "tolerations": [{"key": vendor_fact(pool, "resource"), "operator": "Exists", "effect": "NoSchedule"}],
    }
    affinity: dict[str, Any] = {}
    if deployment.disaggregated:
        near = {"labelSelector": {"matchLabels": own_labels(deployment)}, "topologyKey": facts.fact("near")}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "podAffinityTerm": near}]
    if pool.nvlink:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = [
            {
                "labelSelector": {"matchLabels": own_labels(deployment, pool)},
                "matchLabelKeys": [facts.fact("group_label")],
                "topologyKey": facts.fact("nvlink_label"),
            }
        ]
        spec["resourceClaims"] = [{"name": NVLINK, "resourceClaimTemplateName": channel_name(deployment, pool)}]
    return spec | ({"affinity": {"podAffinity": affinity}} if affinity else {})


def channel_name(deployment: Deployment, pool: DeployedPool) -> str:
    """Name of the template of claims on a channel of a pool's NVLink domain."""
    return f"{deployment.name}-{pool.name}-{NVLINK}"


def transport_env(deployment: Deployment, pool: DeployedPool) -> list[dict[str, Any]]:
    """How KV blocks and the ranks of an engine of several nodes travel, and what the vendor's kernels are told."""
    env = [{"name": "UCX_TLS", "value": vendor_fact(pool, "ucx")}] * deployment.disaggregated
    nvlink = [{"name": name, "value": value} for name, value in facts.fact("nvlink_env").items()]
    own = facts.fact("vendors", pool.vendor, "env", deployment.engine)
    return env + nvlink * pool.nvlink + [{"name": name, "value": value} for name, value in own.items()]


def evictions(deployment: Deployment, pool: DeployedPool) -> dict[str, int]:
    """How many pods may be evicted: those of one replica at a time, and none of the only one.

    Of pods that a Deployment owns the budget follows their number; of others it is for the fewest that there are.
    """
    if pool.nodes == 1 and deployment.options.target == "llmd":
        return {"maxUnavailable": int(pool.replicas > 1)}
    return {"minAvailable": max(pool.least - 1, 1) * pool.nodes}


def rolling(pool: DeployedPool) -> dict[str, int]:
    """How a pool is replaced: replica by replica on its own GPUs, or, where it has one only, beside it."""
    alone = pool.replicas == 1
    return {"maxSurge": int(alone), "maxUnavailable": int(not alone)}


def support_objects(deployment: Deployment, *, account: bool) -> list[dict[str, Any]]:
    """What stands around the pods: who may end them, who may reach them, whom they are, and their NVLink domains.

    account: whether pods run as a service account of their own, which needs no rights at all.
    """
    named = own_labels(deployment)
    objects: list[dict[str, Any]] = []
    if account:
        about = metadata(deployment, deployment.name)
        objects.append(_object("v1", "ServiceAccount", about, automountServiceAccountToken=False))
    objects += [
        _object(
            "policy/v1",
            "PodDisruptionBudget",
            metadata(deployment, f"{deployment.name}-{pool.name}"),
            spec={
                **evictions(deployment, pool),
                "selector": {"matchLabels": own_labels(deployment, pool)},
            },
        )
        for pool in deployment.pools
    ]
    objects.append(
        _object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            metadata(deployment, deployment.name),
            spec={
                "podSelector": {"matchLabels": named, "matchExpressions": [{"key": POOL, "operator": "Exists"}]},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {}}]}, {"from": [{"namespaceSelector": _monitoring()}]}],
            },
        )
    )
    objects += [
        _object(
            "resource.nvidia.com/v1beta1",
            "ComputeDomain",
            metadata(deployment, channel_name(deployment, pool)),
            spec={"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": channel_name(deployment, pool)}}},
        )
        for pool in deployment.pools
        if pool.nvlink
    ]
    return objects


def _monitoring() -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": facts.fact("monitoring", "namespace")}}


def _object(version: str, kind: str, about: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": about, **rest}


def support_files(deployment: Deployment, applied: Sequence[str], *, account: bool) -> dict[str, str]:
    """The surroundings, the claim that keeps weights, and the list of all that `kubectl apply -k` applies.

    applied: the target's own files among it.
    """
    objects = support_objects(deployment, account=account)
    files = {SUPPORT_FILE: manifest("Who may end the pods, and who may reach them.", *objects)}
    claim = deployment.options.claim
    if claim:
        size = gibibytes(1.2 * checkpoint_bytes(deployment))
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
        kept = _object("v1", "PersistentVolumeClaim", metadata(deployment, claim), spec=spec)
        files[CACHE_FILE] = manifest("The weights, fetched once for all pods; add the storageClassName of yours.", kept)
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [*applied, *files],
    }
    about = "All of the fleet: kubectl apply -k <this folder>; a base for an overlay per environment."
    return files | {KUSTOMIZATION: manifest(about, listed)}
