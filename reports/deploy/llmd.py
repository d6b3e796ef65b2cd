"""llm-d: a Deployment or a LeaderWorkerSet per pool, the endpoint picker's configuration and the InferencePool."""

from __future__ import annotations

from typing import Any, Final

from costmodel.engine import Role
from costmodel.simulator.fleet import AFFINE
from search_spaces.problem import Balancing

from . import facts
from .deployment import DeployedPool, Deployment
from .flags import node_ranks, place_words, span_words, vllm_words
from .formats import manifest, pod_text
from .kubernetes import (
    CACHE_ENV,
    POOL,
    SECRET,
    SHARED_MOUNT,
    container_security,
    grace_seconds,
    metadata,
    own_labels,
    placement,
    pre_stop,
    probes,
    resources,
    rolling,
    support_files,
    transport_env,
    weights_mount,
    weights_volume,
)
from .words import plain_words

PICKER_FILE: Final = "epp-config.yaml"
ROUTER_FILE: Final = "router-values.yaml"
POOL_FILE: Final = "inferencepool.yaml"
AUTOSCALE_FILE: Final = "autoscale.yaml"
SLOWLY: Final = {
    "scaleDown": {"stabilizationWindowSeconds": 600, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}]}
}
"""A replica less at a time, and only after ten quiet minutes: it takes minutes to load the weights again."""
POOLS: Final = "pools/"
"""Folder of the manifests that start engines."""
BY_REQUESTS: Final = "active-request-scorer"
BY_TOKENS: Final = "token-load-scorer"
"""Scorers of the picker: fewest requests, fewest tokens of prompts to compute."""
KEEP_ALIVE: Final = "120"
"""Seconds that engines keep idle connections, longer than the proxy's 90, which else meets closed ones."""
SERVING: Final = {"llm-d.ai/inference-serving": "true"}
"""Label of the pods that take requests."""
ROLE: Final = "llm-d.ai/role"
"""Label by which the endpoint picker tells prefill pods from decode pods."""
LEADER: Final = "$(LWS_LEADER_ADDRESS)"
RANK: Final = "$(LWS_WORKER_INDEX)"
"""Variables that the controller gives every container of a group."""
SERVE: Final = ["vllm", "serve"]


def llmd_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    files = {f"{POOLS}{pool.name}.yaml": _pool_file(deployment, pool) for pool in deployment.pools}
    files |= support_files(deployment, tuple(files), account=True)
    picker = manifest(
        "How the endpoint picker chooses pods. It is read at start, as the router chart's plug-in configuration.",
        picker_config(deployment),
    )
    served = {"matchLabels": _labels(deployment)}
    port = int(facts.fact("ports", "http"))
    router = {
        "extraServicePorts": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8081}],
        "epp": {
            "replicas": int(facts.fact("routers")),  # the chart has them elect one, which then counts all requests
            "image": {"tag": facts.image("llmd", deployment.options.version, "picker"), "pullPolicy": "IfNotPresent"},
            "pluginsConfigFile": PICKER_FILE,
            "pluginsCustomConfig": {PICKER_FILE: picker},
        },
        "modelServers": {**served, "targetPorts": [{"number": port}]},
    }
    about = f"The endpoint picker behind a proxy: helm install {deployment.name} <llm-d router chart, standalone>"
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(deployment, deployment.name),
        "spec": {
            "selector": served,
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": f"{deployment.name}-epp", "port": {"number": 9002}},
        },
    }
    scalers = [_scaler(deployment, pool) for pool in deployment.pools if pool.least < pool.replicas]
    if scalers:
        files[AUTOSCALE_FILE] = manifest("Fewer replicas in quiet hours, by KEDA, in place of fixed ones.", *scalers)
    return files | {
        PICKER_FILE: picker,
        ROUTER_FILE: manifest(f"{about} -n {deployment.options.namespace} -f <this file>", {"router": router}),
        POOL_FILE: manifest("All pods that serve the model, and who picks among them.", pool),
    }


def _scaler(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """KEDA's object that scales a pool by the requests that its engines run or have waiting.

    A replica is added for as many of these as one has at the planned rate, or fewer where the quietest hour needs more
    replicas for its rate than the plan has. It never has fewer replicas than that hour needs, nor more than planned.
    """
    name, kind, group = f"{deployment.name}-{pool.name}", "Deployment", "apps/v1"
    if pool.nodes > 1:
        kind, group = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"
    series = f'{{deployment="{deployment.name}", pool="{pool.name}"}}'
    metrics = facts.fact("metrics", deployment.engine)
    full = pool.running * min(deployment.demand.quietest * pool.replicas / pool.least, 1.0)
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(deployment, name),
        "spec": {
            "scaleTargetRef": {"apiVersion": group, "kind": kind, "name": name},
            "pollingInterval": 15,
            "minReplicaCount": pool.least,
            "maxReplicaCount": pool.replicas,
            "fallback": {"failureThreshold": 3, "replicas": pool.replicas},  # where Prometheus does not answer
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": SLOWLY}},
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": facts.fact("monitoring", "prometheus"),
                        "query": f"sum({metrics['running']}{series}) + sum({metrics['queue']}{series})",
                        "threshold": f"{full:.3g}",
                        "ignoreNullValues": "false",  # no series are no sign of quiet
                    },
                }
            ],
        },
    }


def _labels(deployment: Deployment) -> dict[str, str]:
    return SERVING | own_labels(deployment)


def _pool_file(deployment: Deployment, pool: DeployedPool) -> str:
    """The engines of a pool: each a pod, or a group of pods where it spans nodes."""
    role = {ROLE: "prefill" if pool.role is Role.PREFILL else "decode"}
    labels = _labels(deployment) | {POOL: pool.name} | role
    about = metadata(deployment, f"{deployment.name}-{pool.name}", labels=labels)
    if pool.nodes == 1:
        spec: dict[str, Any] = {
            "replicas": pool.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling(pool)},
            "selector": {"matchLabels": own_labels(deployment, pool)},
            "template": {"metadata": {"labels": labels}, "spec": _pod(deployment, pool, serves=True)},
        }
        what = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": spec}
        return manifest(f"The replicas of pool {pool.name}.", what)
    spec = {
        "replicas": pool.replicas,
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling(pool)},
        "startupPolicy": "LeaderCreated",  # a leader is ready only with its workers
        "leaderWorkerTemplate": {
            "size": pool.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": {"labels": labels}, "spec": _pod(deployment, pool, serves=True)},
            "workerTemplate": {
                "metadata": {"labels": own_labels(deployment, pool)},
                "spec": _pod(deployment, pool, serves=False),
            },
        },
    }
    what = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": about, "spec": spec}
    return manifest(f"The replicas of pool {pool.name}, which span nodes; only their leaders take requests.", what)


def _pod(deployment: Deployment, pool: DeployedPool, *, serves: bool) -> dict[str, Any]:
    """A pod of an engine; serves: whether it takes requests, as the first of those that an engine has does."""
    proxied = serves and pool.role is Role.DECODE
    port = int(facts.fact("ports", "behind_proxy" if proxied else "http"))
    options = deployment.options
    container: dict[str, Any] = {
        "name": "vllm",
        "image": options.image or facts.image("llmd", options.version, "vllm", pool.vendor),
        "command": SERVE if serves else _worker_command(pool),
        "args": _args(deployment, pool, port if serves else None),
        "env": _env(deployment, pool),
    }
    if serves:
        container["ports"] = [{"name": "metrics", "containerPort": port}]
        container |= probes("/health", port) | {"lifecycle": pre_stop()}
    container |= {
        "securityContext": container_security(rdma=deployment.disaggregated or pool.nodes > 1),
        "resources": resources(deployment, pool),
        "volumeMounts": [SHARED_MOUNT, weights_mount(deployment)],
    }
    return {
        "serviceAccountName": deployment.name,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": grace_seconds(deployment),
        **placement(deployment, pool),
        **({"initContainers": [_proxy(deployment, port)]} if proxied else {}),
        "containers": [container],
        "volumes": [shared_volume(), weights_volume(deployment)],
    }


def _args(deployment: Deployment, pool: DeployedPool, port: int | None) -> list[str]:
    """What an engine is told on one of its nodes, the model first and without its flag; port: where it serves."""
    words = [pod_text(word) for word in plain_words(vllm_words(deployment, pool))[1:]]
    if pool.nodes > 1:
        words += span_words(pool, LEADER, lambda kind: int(facts.fact("ports", kind)))
        workers = ["--node-rank", RANK, "--headless"] if pool.settings.data == 1 else ["--headless"]
        words += workers if port is None else place_words(pool, 0)
    return words if port is None else [*words, "--host", "0.0.0.0", "--port", str(port)]  # noqa: S104


def _worker_command(pool: DeployedPool) -> list[str]:
    """A worker's first data rank is a product, which only a shell computes; arguments reach the engine as they are."""
    if pool.settings.data == 1:
        return SERVE
    start = f"$((LWS_WORKER_INDEX * {node_ranks(pool)}))"
    return ["sh", "-c", pod_text(f'exec vllm serve "$@" --data-parallel-start-rank {start}'), "vllm"]


def _proxy(deployment: Deployment, engine: int) -> dict[str, Any]:
    """The proxy beside a decode engine, which fetches the prompt's KV first."""
    port = int(facts.fact("ports", "http"))
    return {
        "name": "routing-proxy",
        "image": facts.image("llmd", deployment.options.version, "sidecar"),
        "args": [f"--port={port}", f"--model-server-port={engine}", "--kv-connector=nixlv2", "--secure-proxy=false"],
        "ports": [{"name": "http", "containerPort": port}],
        "restartPolicy": "Always",
        "securityContext": {**container_security(rdma=False), "runAsNonRoot": True},
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    }


def shared_volume() -> dict[str, Any]:
    """Memory through which the ranks of a pod talk."""
    size = f"{facts.fact('host', 'shared_gib')}Gi"
    return {"name": SHARED_MOUNT["name"], "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def _env(deployment: Deployment, pool: DeployedPool) -> list[dict[str, Any]]:
    def secret(variable: str, name: str) -> dict[str, Any]:
        reference = {"name": name, "key": variable, "optional": True}
        return {"name": variable, "valueFrom": {"secretKeyRef": reference}}

    env = [
        secret("HF_TOKEN", SECRET),
        secret("VLLM_API_KEY", f"{deployment.name}-api-key"),
        {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": KEEP_ALIVE},
    ]
    if deployment.disaggregated:
        env += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(facts.fact("ports", "side_channel"))},
        ]
    return [*env, *transport_env(deployment, pool), *[CACHE_ENV] * (not deployment.weights.startswith("/"))]


def picker_config(deployment: Deployment) -> dict[str, Any]:
    """The endpoint picker's configuration: its plug-ins, and which of them choose in each stage."""
    prefixes = deployment.routes_by_prefix
    rates = [pool.prompt_rate for pool in deployment.pools if pool.prompt_rate > 0.0]
    affinity = ["prefix-cache-affinity-filter"] * prefixes
    scorers = _scorers(deployment)
    if deployment.disaggregated:
        profiles = {
            "prefill": ["prefill-filter", *affinity, *scorers["prefill"]],
            "decode": ["decode-filter", *scorers["decode"]],
        }
    else:
        profiles = {"default": [*affinity, *scorers["default"]]}
    used = [name for name in (BY_TOKENS, BY_REQUESTS) if any(name in profile for profile in profiles.values())]
    longest = max(pool.settings.max_model_len for pool in deployment.pools)
    # prompt tokens per second of one idle replica in full chunks; three digits: more than a cost model knows
    rate = int(float(f"{min(rates):.3g}"))
    plugins: list[dict[str, Any]] = [{"type": "single-profile-handler"}]
    if deployment.disaggregated:
        decider = "always-disagg-pd-decider"
        handler = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider}}}
        plugins = [{"type": decider}, handler, {"type": "prefill-filter"}, {"type": "decode-filter"}]
    reach = {"type": "approx-prefix-cache-producer", "parameters": {"maxPrefixTokensToMatch": longest}}
    plugins += [reach] * prefixes
    plugins.append({"type": "inflight-load-producer"})
    sent = {"peakPrefillThroughput": rate, "affinityThreshold": AFFINE}  # a replica with this share of a prompt gets it
    plugins += [{"type": name, "parameters": sent} for name in affinity]
    plugins += [{"type": name} for name in (*used, "max-score-picker")]
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": [
            {"name": name, "plugins": [{"pluginRef": plugin} for plugin in (*profile, "max-score-picker")]}
            for name, profile in profiles.items()
        ],
    }


def _scorers(deployment: Deployment) -> dict[str, tuple[str, ...]]:
    """What chooses the engine in each profile, as in the simulation; of a colocated pool both loads count."""
    if deployment.router is Balancing.FEWEST_REQUESTS:
        return dict.fromkeys(("prefill", "decode", "default"), (BY_REQUESTS,))
    return {"prefill": (BY_TOKENS,), "decode": (BY_REQUESTS,), "default": (BY_TOKENS, BY_REQUESTS)}
