"""What pods and their surroundings have in Kubernetes: shared by Dynamo's graphs and llm-d's sets, and all of llm-d's.

Every manifest is a template of YAML that is read as data (`formats.objects`); here is what those templates ask for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from costmodel.engine import Role
from costmodel.memory import kv_bytes_per_token_per_gpu, weight_bytes_per_gpu
from costmodel.simulator.fleet import AFFINE
from costmodel.units import GIB, GIGA
from search_spaces.problem import Balancing

from . import facts
from .deployment import DeployedPool, Deployment
from .flags import node_ranks, place_words, plain_words, span_words, vllm_flags
from .formats import manifest, objects, pod_text

SECRET: Final = "hf-token-secret"  # noqa: S105 - its name, not what it holds
CACHE: Final = "/model-cache"
"""Folder of a pod that engines fetch weights to."""
POOL: Final = "pdplan.dev/pool"
DEPLOYMENT: Final = "pdplan.dev/deployment"
SUPPORT_FILE: Final = "support.yaml"
CACHE_FILE: Final = "model-cache.yaml"


def fleet_objects(template: str, deployment: Deployment, **values: Any) -> list[Any]:
    """The objects of a template that is about a deployment, in its namespace and with its labels."""
    return objects(
        template,
        fleet=deployment,
        fact=facts.fact,
        gpu=vendor_fact,
        labels=partial(own_labels, deployment),
        named=partial(metadata, deployment),
        channel=lambda pool: f"{deployment.name}-{pool.name}-nvlink",
        security=lambda rdma: objects("kubernetes/security.yaml", rdma=rdma)[0],
        probes=lambda port, live="/health": objects("kubernetes/probes.yaml", fact=facts.fact, port=port, live=live)[0],
        resources=partial(resources, deployment),
        shared=lambda pool: gibibytes(shared_bytes(pool)),
        weights=objects("kubernetes/weights.yaml", fleet=deployment, cache=CACHE),
        secret=SECRET,
        cache=CACHE,
        **values,
    )


def vendor_fact(pool: DeployedPool, key: str) -> str:
    """What a vendor's GPUs are called in Kubernetes: the resource, the product label, UCX transports."""
    return str(facts.fact("vendors", pool.vendor, key))


def own_labels(deployment: Deployment, pool: DeployedPool | None = None) -> dict[str, str]:
    """Labels by which pods of a deployment, or of one of its pools, are found."""
    return {DEPLOYMENT: deployment.name} | ({POOL: pool.name} if pool else {})


def metadata(deployment: Deployment, name: str, **more: Any) -> dict[str, Any]:
    """Name and namespace of an object."""
    return {"name": name, "namespace": deployment.options.namespace, **more}


def checkpoint_bytes(deployment: Deployment) -> float:
    """Bytes of the weights as they are stored [byte]: 16-bit ones where the engine converts them while loading."""
    pool = deployment.pools[0]
    stored_dtype = (
        pool.config.weight_dtype if pool.settings.quantization is None else deployment.model.native_weight_dtype
    )
    return deployment.model.weight_bytes(stored_dtype)


def resources(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    r"""What a pod of a pool asks for: devices, and CPU, memory and disk by the model.

    memory = shared memory (`shared_bytes`) + (GPUs + 2) $\cdot$ that of a process + the weights that the node's ranks
    read, once [byte]: they are mapped while they load, and every rank reads them again that does not find them there.
    disk = logs and compiled kernels, and the checkpoint with a tenth more, where it is fetched to the pod [byte].
    """
    host, gpus = facts.fact("host"), pool.node_gpus
    checkpoint = checkpoint_bytes(deployment)
    read_bytes = min(checkpoint, weight_bytes_per_gpu(deployment.model, pool.config) * gpus)
    memory = shared_bytes(pool) + GIB * (gpus + 2) * host["process_gib"] + read_bytes
    downloads = not (deployment.options.claim or deployment.local_weights)
    disk = GIB * host["disk_gib"] + 1.1 * checkpoint * downloads
    limits = {"memory": gibibytes(memory), "ephemeral-storage": gibibytes(disk)}
    limits[vendor_fact(pool, "resource")] = str(gpus)
    if deployment.needs_rdma(pool):
        limits[deployment.options.rdma] = str(gpus)
    claims = {"claims": [{"name": "nvlink"}]} if pool.nvlink else {}
    cpu = {"cpu": str(host["cpu_per_gpu"] * gpus + host["cpu_per_pod"])}
    return {"requests": cpu | limits, "limits": limits, **claims}


def shared_bytes(pool: DeployedPool) -> float:
    """Shared memory of a pod [byte], where vLLM keeps a KV cache in host memory too."""
    return float(GIB * facts.fact("host")["shared_gib"] + GIGA * pool.settings.host_cache * pool.node_gpus)


def gibibytes(size: float) -> str:
    """A size as Kubernetes writes it, rounded up.

    >>> gibibytes(1.5 * 2**30)
    '2Gi'
    """
    return f"{math.ceil(size / GIB)}Gi"


def support_files(deployment: Deployment, own_files: Sequence[str], *, account: bool) -> dict[str, str]:
    """What stands around the pods, the claim that keeps weights, and the list of all that `kubectl apply -k` applies.

    own_files: the target's own files among it; account: whether pods run as a service account of their own, which needs
    no rights at all, and belong to Deployments.
    """
    surroundings = fleet_objects("kubernetes/support.yaml", deployment, account=account)
    files = {SUPPORT_FILE: manifest("Who may end the pods, and who may reach them.", *surroundings)}
    if deployment.options.claim:
        size = gibibytes(1.2 * checkpoint_bytes(deployment))
        claim = fleet_objects("kubernetes/model-cache.yaml", deployment, size=size)
        about = "The weights, fetched once for all pods; add the storageClassName of yours."
        files[CACHE_FILE] = manifest(about, *claim)
    about = "All of the fleet: kubectl apply -k <this folder>; a base for an overlay per environment."
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return files | {"kustomization.yaml": manifest(about, {**kind, "resources": [*own_files, *files]})}


PICKER_FILE: Final = "epp-config.yaml"
ROUTER_VALUES: Final = "router-values.yaml"
AUTOSCALE_FILE: Final = "autoscale.yaml"
SET_FILE: Final = "pools/disaggregatedset.yaml"


def llmd_files(deployment: Deployment) -> dict[str, str]:
    """Every file of llm-d: what starts the replicas, the endpoint picker and the InferencePool."""
    files = _pool_files(deployment)
    files |= support_files(deployment, tuple(files), account=True)
    # prompt tokens per second of one idle replica in full chunks; three digits: more than a cost model knows
    rate = float(f"{min(pool.prompt_rate for pool in deployment.pools if pool.prompt_rate > 0.0):.3g}")
    plugins = fleet_objects(
        "llmd/picker.yaml",
        deployment,
        prefixes=deployment.routes_by_prefix,
        kept=max(map(partial(_tier_blocks, deployment), deployment.pools)),
        block=deployment.pools[0].settings.block_tokens,
        counts_tokens=deployment.router is Balancing.LEAST_TOKENS,
        longest=max(pool.settings.max_model_len for pool in deployment.pools),
        rate=int(rate),
        affine=AFFINE,
    )
    about = "How the endpoint picker chooses pods. It is read at start, as the router chart's plug-in configuration."
    picker = manifest(about, *plugins)
    router, pool = fleet_objects(
        "llmd/router.yaml",
        deployment,
        image=partial(facts.image, "llm-d", deployment.options.version),
        picker_file=PICKER_FILE,
        picker=picker,
        http=facts.fact("ports", "http"),
    )
    scalers = fleet_objects("llmd/autoscale.yaml", deployment)
    if scalers:
        files[AUTOSCALE_FILE] = manifest("Fewer replicas in quiet hours, by KEDA, in place of fixed ones.", *scalers)
    return files | {
        PICKER_FILE: picker,
        ROUTER_VALUES: manifest(f"The endpoint picker behind a proxy: {router_command(deployment)}", router),
        "inferencepool.yaml": manifest("All pods that serve the model, and who picks among them.", pool),
    }


def router_command(deployment: Deployment) -> str:
    """What installs llm-d's router with its values; the chart has the version of the picker."""
    version, space = facts.image("llm-d", deployment.options.version, "picker"), deployment.options.namespace
    chart = f"{facts.fact('charts', 'router')} --version {version}"
    return f"helm install {deployment.name} {chart} -n {space} -f {ROUTER_VALUES}"


def _pool_files(deployment: Deployment) -> dict[str, str]:
    """A Deployment for each pool, or a LeaderWorkerSet where it spans nodes; one DisaggregatedSet of both ends."""

    def engines(template: str, **values: Any) -> list[Any]:
        return fleet_objects(
            template,
            deployment,
            pod=partial(_pod, deployment),
            taker=partial(_pool_labels, deployment),
            group=lambda pool: engines("llmd/group.yaml", pool=pool)[0],
            **values,
        )

    if deployment.disaggregated_set:
        about = "The replicas of all pools. Of those that span nodes only the leaders take requests."
        return {SET_FILE: manifest(about, *engines("llmd/set.yaml"))}
    files = {}
    for pool in deployment.pools:
        spans = ", which span nodes; only their leaders take requests" if pool.nodes > 1 else ""
        about = f"The replicas of pool {pool.name}{spans}."
        files[f"pools/{pool.name}.yaml"] = manifest(about, *engines("llmd/pool.yaml", pool=pool))
    return files


def _pool_labels(deployment: Deployment, pool: DeployedPool) -> dict[str, str]:
    """Labels of pods that take requests, by which the endpoint picker knows them."""
    role = "prefill" if pool.role is Role.PREFILL else "decode"
    return {"llm-d.ai/inference-serving": "true", **own_labels(deployment, pool), "llm-d.ai/role": role}


def _pod(deployment: Deployment, pool: DeployedPool, *, serves: bool) -> Any:
    """A pod of an engine; serves: whether it takes requests, as the first of those that an engine has does."""
    has_proxy = serves and pool.role is Role.DECODE
    port = int(facts.fact("ports", "behind_proxy" if has_proxy else "http"))
    serve = ["vllm", "serve"]
    if not serves and pool.settings.data > 1:  # its first data rank is a product, which only a shell computes
        start = f"$((LWS_WORKER_INDEX * {node_ranks(pool)}))"
        serve = ["sh", "-c", pod_text(f'exec vllm serve "$@" --data-parallel-start-rank {start}'), "vllm"]
    return fleet_objects(
        "llmd/pod.yaml",
        deployment,
        pool=pool,
        serves=serves,
        proxied=has_proxy,
        image=partial(facts.image, "llm-d", deployment.options.version),
        http=facts.fact("ports", "http"),
        port=port,
        command=serve,
        args=_args(deployment, pool, port if serves else None),
    )[0]


def _args(deployment: Deployment, pool: DeployedPool, port: int | None) -> list[str]:
    """What an engine is told on one of its nodes, the model first and without its flag; port: where it serves.

    The controller gives every container of a group the address of the first and its own place.
    """
    words = [pod_text(word) for word in plain_words(vllm_flags(deployment, pool))[1:]]
    if pool.nodes > 1:
        words += span_words(pool, "$(LWS_LEADER_ADDRESS)", lambda kind: int(facts.fact("ports", kind)))
        place = ["--node-rank", "$(LWS_WORKER_INDEX)"] if pool.settings.data == 1 else []
        words += [*place, "--headless"] if port is None else place_words(pool, 0)
    return words if port is None else [*words, "--host", "0.0.0.0", "--port", str(port)]  # noqa: S104


def _tier_blocks(deployment: Deployment, pool: DeployedPool) -> int:
    """KV blocks that a replica keeps in host memory, of which the endpoint picker has to know."""
    settings, of_token = pool.settings, kv_bytes_per_token_per_gpu(deployment.model, pool.config)
    return int(GIGA * settings.host_cache * settings.data / (of_token * settings.block_tokens))
