"""llm-d: a release of the modelservice chart per pool, the endpoint picker's configuration and the InferencePool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.quoting import shown
from costmodel.simulator.fleet import AFFINE
from search_spaces.problem import Balancing

from . import facts
from .deployment import DeployedPool, Deployment
from .flags import node_ranks, place_words, span_words, vllm_settings, vllm_words
from .formats import dig, load_yaml, namespaces, pod_text, quantity, render, unescaped
from .pods import CACHE_ENV, CACHE_MOUNT, SECRET, pod_worker, weights_volume
from .readback import Found, FoundRouter, FoundWorker, plain_words, words_of

PICKER_FILE: Final = "epp-config.yaml"
ROUTER_FILE: Final = "router-values.yaml"
POOL_FILE: Final = "inferencepool.yaml"
BY_REQUESTS: Final = "active-request-scorer"
BY_TOKENS: Final = "token-load-scorer"
"""Scorers of the picker: fewest requests, fewest tokens of prompts to compute."""
KEEP_ALIVE: Final = "120"
"""Seconds that engines keep idle connections, longer than the proxy's 90, which else meets closed ones."""


def llmd_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    _check(deployment)
    files = {}
    for pool in deployment.pools:
        if pool.nodes == 1:
            files[f"values/{pool.name}.yaml"] = _values(deployment, pool)
            continue
        labels = _labels(deployment) | {"pdplan.dev/pool": pool.name}
        image = deployment.options.image or _image(deployment, "vllm")
        files[f"{GROUPS}{pool.name}.yaml"] = group_file(deployment, pool, labels, _env(deployment), image)
    files[PICKER_FILE] = _picker(deployment)
    files[ROUTER_FILE] = render(
        "llmd/router-values.yaml",
        name=deployment.name,
        namespace=deployment.options.namespace,
        file=PICKER_FILE,
        picker=files[PICKER_FILE],
        labels=_labels(deployment),
        port=facts.fact("ports", "http"),
    )
    files[POOL_FILE] = render(
        "llmd/inferencepool.yaml",
        name=deployment.name,
        namespace=deployment.options.namespace,
        labels=_labels(deployment),
        port=facts.fact("ports", "http"),
        picker=f"{deployment.name}-epp",
    )
    return files


def _check(deployment: Deployment) -> None:
    if deployment.weights.startswith("/"):
        raise InputError(
            f"the llm-d chart loads weights by Hugging Face id, not from the folder {shown(deployment.weights)}; "
            "name an id with --model"
        )


def _labels(deployment: Deployment) -> dict[str, str]:
    return {"llm-d.ai/inference-serving": "true", "pdplan.dev/deployment": deployment.name}


def _values(deployment: Deployment, pool: DeployedPool) -> str:
    section = "prefill" if pool.role is Role.PREFILL else "decode"
    service = int(facts.fact("ports", "http"))
    port = int(facts.fact("ports", "behind_proxy")) if pool.role is Role.DECODE else service
    rdma = deployment.options.rdma if deployment.disaggregated else None
    claim = deployment.options.claim
    settings, gpus = pool.settings, str(pool.node_gpus)
    words = (*vllm_words(deployment, pool), ("--host", "0.0.0.0"), ("--port", str(port)))  # noqa: S104
    return render(
        "llmd/values.yaml",
        namespace=deployment.options.namespace,
        fullname=f"{deployment.name}-{pool.name}",
        weights=helm_text(deployment.weights, "the model's name"),
        uri=f"hf://{deployment.weights}",
        labels=_labels(deployment) | {"pdplan.dev/pool": pool.name},
        ports={"service": service},
        proxy=_proxy(deployment, pool),
        section=section,
        other="decode" if section == "prefill" else "prefill",
        replicas=pool.replicas,
        parallelism={
            "tensor": settings.tensor * settings.pipeline,
            "data": settings.data,
            "dataLocal": settings.data,
            "workers": 1,
        },
        selector={facts.fact("gpu_label"): pool.node_label},
        claim=claim,
        volumes=[shared_volume()] + [weights_volume(deployment)] * bool(claim),
        mounts=[SHARED_MOUNT] + [CACHE_MOUNT] * bool(claim),
        image=helm_text(deployment.options.image or _image(deployment, "vllm"), "--image"),
        args=[pod_text(word) for word in plain_words(words)[1:]],
        env=_env(deployment) + [CACHE_ENV] * bool(claim),
        container_ports=_ports(deployment, port),
        port=port,
        checks=facts.fact("startup_seconds") // 10,
        rdma=rdma,
        resources={facts.fact("gpu_resource"): gpus} | ({rdma: gpus} if rdma else {}),
    )


def helm_text(text: str, what: str) -> str:
    """Refuse what Helm would run: the chart takes values for templates."""
    if "{{" in text:
        raise InputError(f"{what} {shown(text)} has {{{{ in it, which Helm would take for a template")
    return text


def _image(deployment: Deployment, what: str) -> str:
    return facts.image("llmd", deployment.options.version, what)


def _proxy(deployment: Deployment, pool: DeployedPool) -> dict[str, Any]:
    """The routing proxy beside decode engines fetches the prompt's KV first; nobody else needs one."""
    if pool.role is not Role.DECODE:
        return {"enabled": False}
    return {
        "enabled": True,
        "image": _image(deployment, "sidecar"),
        "connector": "nixlv2",
        "secure": False,
        "targetPort": facts.fact("ports", "behind_proxy"),
        "zapLogLevel": "info",  # the chart's default logs every request at debug level
    }


def _env(deployment: Deployment) -> list[dict[str, Any]]:
    token = {"secretKeyRef": {"name": SECRET, "key": "HF_TOKEN", "optional": True}}
    env: list[dict[str, Any]] = [
        {"name": "HF_TOKEN", "valueFrom": token},
        {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": KEEP_ALIVE},
    ]
    if deployment.disaggregated:
        env += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(facts.fact("ports", "side_channel"))},
            {"name": "UCX_TLS", "value": facts.fact("ucx", "pods")},
        ]
    return env


def _ports(deployment: Deployment, port: int) -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = [{"name": "metrics", "containerPort": port, "protocol": "TCP"}]
    if deployment.disaggregated:
        ports.append({"name": "nixl", "containerPort": facts.fact("ports", "side_channel"), "protocol": "TCP"})
    return ports


def _picker(deployment: Deployment) -> str:
    prefixes = deployment.routes_by_prefix
    rates = [pool.prompt_rate for pool in deployment.pools if pool.prompt_rate > 0.0]
    affinity = ["prefix-cache-affinity-filter"] * prefixes
    scorers = _scorers(deployment)
    if deployment.disaggregated:
        profiles = [
            {"name": "prefill", "plugins": ["prefill-filter", *affinity, *scorers["prefill"], "max-score-picker"]},
            {"name": "decode", "plugins": ["decode-filter", *scorers["decode"], "max-score-picker"]},
        ]
    else:
        profiles = [{"name": "default", "plugins": [*affinity, *scorers["default"], "max-score-picker"]}]
    return render(
        "llmd/epp-config.yaml",
        disaggregated=deployment.disaggregated,
        prefixes=prefixes,
        affinity=AFFINE,
        longest=max(pool.settings.max_model_len for pool in deployment.pools),
        scorers=[name for name in (BY_TOKENS, BY_REQUESTS) if any(name in one["plugins"] for one in profiles)],
        prompt_rate=int(float(f"{min(rates):.3g}")),  # three digits: more than a cost model knows
        profiles=profiles,
    )


def _scorers(deployment: Deployment) -> dict[str, tuple[str, ...]]:
    """What chooses the engine in each profile, as in the simulation; of a colocated pool both loads count."""
    if deployment.router is Balancing.FEWEST_REQUESTS:
        return dict.fromkeys(("prefill", "decode", "default"), (BY_REQUESTS,))
    return {"prefill": (BY_TOKENS,), "decode": (BY_REQUESTS,), "default": (BY_TOKENS, BY_REQUESTS)}


def read_llmd(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """What the releases start, and how the picker chooses."""
    workers = [_read_values(deployment, path, files[path]) for path in sorted(files) if path.startswith("values/")]
    labels = _labels(deployment)
    workers += [read_group(deployment, path, files[path], labels) for path in sorted(files) if path.startswith(GROUPS)]
    names = tuple(f"{deployment.name}-{one.pool}-{one.role}" for one in workers)
    return Found(tuple(workers), _read_picker(deployment, files), None, names, namespaces(files))


def _read_picker(deployment: Deployment, files: Mapping[str, str]) -> FoundRouter | None:
    if PICKER_FILE not in files:
        return None
    loaded = load_yaml(PICKER_FILE, files[PICKER_FILE])
    declared = [one.get("name") or one.get("type") for one in dig(loaded, "plugins") or []]
    profiles = {
        one["name"]: [ref["pluginRef"] for ref in one["plugins"]] for one in dig(loaded, "schedulingProfiles") or []
    }
    for name, plugins in profiles.items():
        missing = next((plugin for plugin in plugins if plugin not in declared), None)
        if missing is not None:
            raise InputError(f"{PICKER_FILE}: profile {name} refers to {missing}, which is not declared")
        if "max-score-picker" not in plugins:
            raise InputError(f"{PICKER_FILE}: profile {name} picks nobody")
        wanted = _scorers(deployment).get(name, ())
        if tuple(plugin for plugin in plugins if plugin.endswith("-scorer")) != wanted:
            raise InputError(f"{PICKER_FILE}: profile {name} does not score by {' and '.join(wanted)}, as simulated")
    splits = "disagg-profile-handler" in declared
    _check_decider(loaded, declared, splits=splits)
    for name in ("prefill", "decode") if splits else ():
        if f"{name}-filter" not in profiles.get(name, []):
            raise InputError(f"{PICKER_FILE}: there is no profile {name} that picks {name} pods")
    return FoundRouter(PICKER_FILE, splits, {})


def _check_decider(loaded: Any, declared: list[Any], *, splits: bool) -> None:
    """Every prompt goes to a prefill pod: the handler names the decider that always says so."""
    handler: dict[str, Any] = next(
        (one for one in loaded["plugins"] if one.get("type") == "disagg-profile-handler"), {}
    )
    decider = dig(handler, "parameters", "deciders", "prefill")
    if splits and (decider != "always-disagg-pd-decider" or decider not in declared):
        raise InputError(f"{PICKER_FILE}: prompts are not always handed over, as the plan assumes")


def _read_values(deployment: Deployment, path: str, text: str) -> FoundWorker:
    loaded = load_yaml(path, text)
    created = [name for name in ("prefill", "decode") if dig(loaded, name, "create")]
    if len(created) != 1:
        raise InputError(f"{path}: a release must create the pods of one pool, and creates {created or 'none'}")
    section = loaded[created[0]]
    container = (section.get("containers") or [{}])[0]
    if container.get("modelCommand") != "custom":
        raise InputError(f"{path}: modelCommand {container.get('modelCommand')} adds flags that args state again")
    words = words_of(path, ["--model", *(unescaped(str(word)) for word in container.get("args") or [])])
    proxied = bool(dig(loaded, "routing", "proxy", "enabled"))
    split = {name: quantity(path, dig(section, "parallelism", name)) for name in ("tensor", "dataLocal", "workers")}
    limits = dig(container, "resources", "limits") or {}
    gpus = split["tensor"] * split["dataLocal"]
    if quantity(path, limits.get(facts.fact("gpu_resource"))) != gpus:
        raise InputError(
            f"{path}: the chart asks for tensor x dataLocal = {gpus} GPUs, and the resources for another number"
        )
    return pod_worker(
        path,
        words,
        container,
        settings=vllm_settings(deployment, path, words),
        pool=path.removeprefix("values/").removesuffix(".yaml"),
        role=_role(created[0], proxied=proxied),
        replicas=quantity(path, section.get("replicas")),
        nodes=split["workers"],
        node_gpus=gpus,
        label=(section.get("nodeSelector") or {}).get(facts.fact("gpu_label")),
        devices=limits,
        shared_memory=SHARED_MOUNT in (container.get("volumeMounts") or []),
    )


def _role(section: str, *, proxied: bool) -> str:
    """Prefill, or decode behind a proxy, or an engine of both that the chart calls decode."""
    if section == "prefill":
        return Role.PREFILL.value
    return Role.DECODE.value if proxied else Role.COLOCATED.value


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
            "proxy": _group_proxy(deployment, port) if proxied else None,
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


def _group_proxy(deployment: Deployment, engine: int) -> dict[str, Any]:
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
    container = dig(leader, "spec")["containers"][0]
    pool = deployment.pool(path.removeprefix(GROUPS).removesuffix(".yaml"))
    if pool is None:
        raise InputError(f"{path}: the plan has no such pool")
    words = words_of(path, ["--model", *(unescaped(str(word)) for word in container["args"])])
    limits = dig(container, "resources", "limits") or {}
    return pod_worker(
        path,
        words,
        container,
        settings=vllm_settings(deployment, path, words),
        pool=pool.name,
        role=_group_role(given, dig(leader, "spec")),
        replicas=quantity(path, dig(loaded, "spec", "replicas")),
        nodes=quantity(path, dig(group, "size")),
        node_gpus=quantity(path, limits.get(facts.fact("gpu_resource"))),
        label=(dig(leader, "spec", "nodeSelector") or {}).get(facts.fact("gpu_label")),
        devices=limits,
        shared_memory=SHARED_MOUNT in (container.get("volumeMounts") or []),
    )


def _group_role(labels: Mapping[str, str], pod: Mapping[str, Any]) -> str:
    if labels.get(ROLE) == "prefill":
        return Role.PREFILL.value
    return Role.DECODE.value if pod.get("initContainers") else Role.COLOCATED.value
