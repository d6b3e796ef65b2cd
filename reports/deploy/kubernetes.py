"""Kubernetes: pods and the objects around them, llm-d's sets, and NVIDIA Dynamo's graphs.

Every manifest is a template of YAML that is read as data (`formats.objects`); here is what those templates ask for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig, Role
from costmodel.memory import kv_bytes_per_token_per_gpu, kv_capacity_bytes, weight_bytes_per_gpu
from costmodel.simulator.fleet import AFFINE
from costmodel.step import StepLoad, step_time_one
from costmodel.units import GIB, GIGA, MILLI
from costmodel.words import percentage
from optimizer.plans.plan import Route
from search_spaces.problem import Balancing

from .deployment import DeployedPool, Deployment, GatewayRouting, fact
from .flags import engine_flags, node_flags, node_ranks, plain_words
from .formats import manifest, manifest_of, objects, pod_text

POOL: Final = "pdplan.dev/pool"
DEPLOYMENT: Final = "pdplan.dev/deployment"


def fleet_objects(template: str, deployment: Deployment, make: Callable[..., Any] = objects, **values: Any) -> Any:
    """The objects of a template that is about a deployment, in its namespace and with its labels; make: or its file."""
    return make(
        template,
        fleet=deployment,
        gpu=vendor_fact,
        labels=partial(own_labels, deployment),
        named=partial(metadata, deployment),
        frontends={
            "matchLabels": own_labels(deployment),
            "matchExpressions": [{"key": POOL, "operator": "DoesNotExist"}],
        },
        resources=partial(resources, deployment),
        shared=lambda pool: gibibytes(shared_bytes(pool)),
        weights=objects("kubernetes/weights.yaml", fleet=deployment),
        **values,
    )


def fleet_file(template: str, deployment: Deployment, **values: Any) -> str:
    """The file of such a template, as of `manifest_of`."""
    return str(fleet_objects(template, deployment, manifest_of, **values))


def vendor_fact(pool: DeployedPool, key: str) -> str:
    """What a vendor's GPUs are called in Kubernetes: the resource, the product label, UCX transports."""
    return str(fact("vendors", pool.vendor, key))


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
    host, gpus = fact("host"), pool.node_gpus
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
    return float(GIB * fact("host")["shared_gib"] + GIGA * pool.settings.host_cache * pool.node_gpus)


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
    files = {"support.yaml": fleet_file("kubernetes/support.yaml", deployment, account=account)}
    if deployment.options.claim:
        size = gibibytes(1.2 * checkpoint_bytes(deployment))
        files["model-cache.yaml"] = fleet_file("kubernetes/model-cache.yaml", deployment, size=size)
    return files | {"kustomization.yaml": manifest_of("kubernetes/kustomization.yaml", files=[*own_files, *files])}


PICKER_FILE: Final = "epp-config.yaml"
ROUTER_VALUES: Final = "router-values.yaml"
SET_FILE: Final = "pools/disaggregatedset.yaml"


def llmd_files(deployment: Deployment) -> dict[str, str]:
    """Every file of llm-d: what starts the replicas, the endpoint picker and the InferencePool."""
    files = _pool_files(deployment)
    files |= support_files(deployment, tuple(files), account=True)

    def tier_blocks(pool: DeployedPool) -> int:
        """KV blocks that a replica keeps in host memory, of which the endpoint picker has to know."""
        settings, of_token = pool.settings, kv_bytes_per_token_per_gpu(deployment.model, pool.config)
        return int(GIGA * settings.host_cache * settings.data / (of_token * settings.block_tokens))

    # prompt tokens per second of one idle replica in full chunks; three digits: more than a cost model knows
    rate = float(f"{min(pool.prompt_rate for pool in deployment.pools if pool.prompt_rate > 0.0):.3g}")
    picker = fleet_file(
        "llmd/picker.yaml",
        deployment,
        prefixes=deployment.routes_by_prefix,
        kept=max(map(tier_blocks, deployment.pools)),
        block=deployment.pools[0].settings.block_tokens,
        counts_tokens=deployment.router is Balancing.LEAST_TOKENS,
        longest=max(pool.settings.max_model_len for pool in deployment.pools),
        rate=int(rate),
        affine=AFFINE,
    )
    router, pool = fleet_objects("llmd/router.yaml", deployment, picker_file=PICKER_FILE, picker=picker)
    if scalers := fleet_file("llmd/autoscale.yaml", deployment):
        files["autoscale.yaml"] = scalers
    return files | {
        PICKER_FILE: picker,
        ROUTER_VALUES: manifest(f"The endpoint picker behind a proxy: {router_command(deployment)}", router),
        "inferencepool.yaml": manifest("All pods that serve the model, and who picks among them.", pool),
    }


def router_command(deployment: Deployment) -> str:
    """What installs llm-d's router with its values; the chart has the version of the picker."""
    version, space = deployment.image("picker"), deployment.options.namespace
    chart = f"{fact('charts', 'router')} --version {version}"
    return f"helm install {deployment.name} {chart} -n {space} -f {ROUTER_VALUES}"


def _pool_files(deployment: Deployment) -> dict[str, str]:
    """A Deployment for each pool, or a LeaderWorkerSet where it spans nodes; one DisaggregatedSet of both ends."""

    def taker(pool: DeployedPool) -> dict[str, str]:
        """Labels of pods that take requests, by which the endpoint picker knows them."""
        role = "prefill" if pool.role is Role.PREFILL else "decode"
        return {"llm-d.ai/inference-serving": "true", **own_labels(deployment, pool), "llm-d.ai/role": role}

    def engines(template: str, make: Callable[..., Any] = manifest_of, **values: Any) -> Any:
        return fleet_objects(
            template,
            deployment,
            make,
            pod=partial(_pod, deployment),
            taker=taker,
            group=lambda pool: engines("llmd/group.yaml", objects, pool=pool)[0],
            **values,
        )

    if deployment.disaggregated_set:
        return {SET_FILE: engines("llmd/set.yaml")}
    return {f"pools/{pool.name}.yaml": engines("llmd/pool.yaml", pool=pool) for pool in deployment.pools}


def _pod(deployment: Deployment, pool: DeployedPool, *, serves: bool) -> Any:
    """A pod of an engine; serves: whether it takes requests, as the first of those that an engine has does."""
    has_proxy = serves and pool.role is Role.DECODE
    port = int(fact("ports", "behind_proxy" if has_proxy else "http"))
    serve = deployment.engine_facts["program"]
    words = [pod_text(word) for word in plain_words(engine_flags(deployment, pool))[1:]]  # the model without its flag
    # the controller gives every container of a group the address of the first and its own place
    head, ports = "$(LWS_LEADER_ADDRESS)", partial(fact, "ports")
    rank, start = (0, 0) if serves else ("$(LWS_WORKER_INDEX)", f"$((LWS_WORKER_INDEX * {node_ranks(pool)}))")
    place = node_flags(deployment, pool, ports, head=head, rank=rank, first=start)
    for name in [name for name, value in place.items() if value == start]:  # a product, which only a shell computes
        serve = ["sh", "-c", pod_text(f'exec {" ".join(serve)} "$@" {name} {place.pop(name)}'), serve[0]]
    words += plain_words(place)
    words += ["--host", "0.0.0.0", "--port", str(port)] if serves else []  # noqa: S104
    facts = {"serves": serves, "proxied": has_proxy, "port": port, "command": serve, "args": words}
    return fleet_objects("llmd/pod.yaml", deployment, pool=pool, **facts)[0]


FLEET_FILE: Final = "dgd.yaml"
GRID_FILE: Final = "global_router_config.json"
GRID_FOLDER: Final = "/etc/pdplan-router"
PLANNER_CONFIG: Final = "planner_config.json"
PROFILE_FOLDER: Final = "/etc/pdplan"


Component = dict[str, Any]
"""A part of a graph, as its template asks for it; pool: whose engines it starts; reads: a ConfigMap, and its folder."""


def dynamo_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    if deployment.routing is GatewayRouting.BY_LENGTH:
        files = _by_length(deployment)
        return files | support_files(deployment, tuple(files), account=False)
    fleet = [_frontend(deployment, router_words(deployment)), *(_worker(deployment, pool) for pool in deployment.pools)]
    about = "The fleet of the plan as a DynamoGraphDeployment"
    files = {FLEET_FILE: manifest(f"{about}.", _graph(deployment, deployment.name, fleet))}
    support = support_files(deployment, (FLEET_FILE,), account=False)
    if deployment.routing is GatewayRouting.ONE_WAY:  # all that the planner knows: a pool of each role
        name = f"{deployment.name}-planner"
        config = ["--config", f"{PROFILE_FOLDER}/{PLANNER_CONFIG}"]
        more = {"image": deployment.image("planner"), "reads": (name, PROFILE_FOLDER)}
        planner = _component(deployment, "Planner", "planner", "planner", config, **more)
        graph = _graph(deployment, deployment.name, [fleet[0], planner, *fleet[1:]], with_planner=True)
        files["dgd-with-planner.yaml"] = manifest(f"{about} that the planner scales.", graph)
        about = "What the planner reads: its settings, and step times by our cost model in place of a profiling run."
        limits = {"ttft_ms": deployment.limits.ttft, "itl_ms": deployment.limits.tpot}
        rounded: dict[str, Any] = {name: round(limit / MILLI, 3) for name, limit in limits.items()}
        (settings,) = fleet_objects("dynamo/planner.yaml", deployment, folder=PROFILE_FOLDER, **rounded)
        data = {
            PLANNER_CONFIG: settings,
            "prefill_raw_data.json": prefill_profile(deployment, deployment.prompt_pools[0].config),
            "decode_raw_data.json": decode_profile(deployment, deployment.token_pools[0].config),
        }
        texts = {file: json.dumps(value, indent=1) + "\n" for file, value in data.items()}
        files["planner-configmap.yaml"] = _config_map(deployment, name, texts, about)
    return files | support


def _config_map(deployment: Deployment, name: str, data: Mapping[str, str], about: str) -> str:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    return manifest(about, {**kind, "metadata": metadata(deployment, name), "data": dict(data)})


def _by_length(deployment: Deployment) -> dict[str, str]:
    """A graph for each pool behind its own router, and one that chooses among them by the prompt's length."""
    space = f"{deployment.options.namespace}-{deployment.name}"
    names = ["--namespace", space, "--model-name", deployment.weights]
    config_map, config = f"{deployment.name}-grid", ["--config", f"{GRID_FOLDER}/{GRID_FILE}"]
    reads = (config_map, GRID_FOLDER)
    way_in = [
        _frontend(deployment, ["--router-mode", "round-robin", *names]),
        _component(deployment, "GlobalRouter", "", "global_router", [*config, *names], reads=reads),
    ]
    about = "The way in: a frontend, and the router that chooses a pool by the length of the prompt."
    lengths = "Which pool takes which prompt lengths, as the plan routes them."
    (global_router,) = fleet_objects(
        "dynamo/grid.yaml",
        deployment,
        stages=[(role, *words) for role, words in STAGES.items()],
        namespaces=lambda role: [f"{space}-{pool.name}" for pool in deployment.of_role(role)],
        mapping=lambda role: [[number] for number in grid(deployment, role)],
        end=_end(deployment),
        cells=CELLS,
    )
    mapping = {GRID_FILE: json.dumps(global_router) + "\n"}
    files = {
        "control.yaml": manifest(about, _graph(deployment, deployment.name, way_in)),
        "router-configmap.yaml": _config_map(deployment, config_map, mapping, lengths),
    }
    for pool in deployment.pools:
        component = "prefill" if pool.role is Role.PREFILL else "backend"
        words = ["--endpoint", f"{space}-{pool.name}.{component}.generate", "--no-router-kv-events"]
        local = _component(deployment, "LocalRouter", "", "router", words)
        graph = _graph(deployment, f"{deployment.name}-{pool.name}", [local, _worker(deployment, pool)])
        about = "One pool behind its own router, reached through the control deployment."
        files[f"pools/{pool.name}.yaml"] = manifest(about, graph)
    return files


def _graph(deployment: Deployment, name: str, components: list[Component], *, with_planner: bool = False) -> Any:
    return fleet_objects(
        "dynamo/graph.yaml",
        deployment,
        name=name,
        parts=components,
        planned=with_planner,
        placement=lambda pool: fleet_objects("kubernetes/placement.yaml", deployment, pool=pool)[0],
    )[0]


def _component(deployment: Deployment, name: str, kind: str, program: str, words: list[str], **more: Any) -> Component:
    args, image = [pod_text(word) for word in words], deployment.engine_image()
    return {"name": name, "kind": kind, "program": program, "args": args, "image": image, "replicas": 1} | more


def _frontend(deployment: Deployment, words: list[str]) -> Component:
    """The way in, twice; it fetches no weights."""
    words = ["--http-port", str(fact("ports", "http")), *words]
    return _component(deployment, "Frontend", "frontend", "frontend", words, replicas=int(fact("routers")))


def _worker(deployment: Deployment, pool: DeployedPool) -> Component:
    """An engine with its flags and Dynamo's own; whoever computes prompts tells the router which prefixes it holds."""
    has_one_role = pool.role is not Role.COLOCATED
    kind = pool.role.value if has_one_role else "worker"
    flags = engine_flags(deployment, pool) | ({"--disaggregation-mode": kind} if has_one_role else {})
    if deployment.routes_by_prefix and pool.role is not Role.DECODE:
        events = deployment.engine_facts["events"].items()
        flags |= {name: value if value is True else json.dumps(value, separators=(",", ":")) for name, value in events}
    return _component(
        deployment, pool.name, kind, deployment.engine, plain_words(flags), replicas=pool.replicas, pool=pool
    )


def router_words(deployment: Deployment) -> list[str]:
    """How the frontend chooses, and that it hands the requests of a worker that died to another one.

    Whoever has a request's prefix gets it if the plan counts on prefixes, else whoever has least to do. Routers that
    know which prefixes workers hold tell each other what they gave out; others count their own requests.
    """
    mode = "kv" if deployment.routes_by_prefix else "least-loaded"
    words = ["--router-mode", mode, "--migration-limit", str(fact("migrations"))]
    if deployment.routes_by_prefix:
        words += ["--kv-cache-block-size", str(deployment.pools[0].settings.block_tokens), "--router-replica-sync"]
    return words


POINTS: Final = 12
"""Prompt lengths, context lengths and shares of the KV cache in a profile, each."""


def prefill_profile(deployment: Deployment, config: EngineConfig) -> dict[str, list[float]]:
    """Prompt lengths [token] and the time to first token of each alone on an idle engine [ms]."""
    lengths = np.unique(np.geomspace(min(64, config.max_model_len), config.max_model_len, POINTS).astype(int))
    step = step_time_one(deployment.model, config, deployment.overhead, StepLoad.prefill(lengths.astype(float)))
    return {"prefill_isl": lengths.tolist(), "prefill_ttft": _milliseconds(step.total[0])}


def decode_profile(deployment: Deployment, config: EngineConfig) -> dict[str, Any]:
    """Time of a token [ms] by the share of the KV cache in use [1] and the mean context of a request [token].

    That of a decode step over the tokens that it makes of each request.
    """
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
        "z_itl": _milliseconds(step.total[0] * config.parallelism.pipeline / config.tokens_per_step),
        "max_kv_tokens": most,
    }


def _milliseconds(seconds: NDArray[np.float64]) -> list[float]:
    return [round(float(value) / MILLI, 4) for value in seconds]


CELLS: Final = 256
"""Prompt lengths that the grid of the global router tells apart."""
MISROUTED: Final = 0.05
"""Largest share of requests [1] that may find another pool than planned."""
STAGES: Final = {Role.PREFILL: ("prefill", "isl", "ttft"), Role.DECODE: ("decode", "context_length", "itl")}
"""Words of the router's configuration: the stage, the length and the latency that its grid has."""


def _end(deployment: Deployment) -> int:
    """End of the grid [token]: the longest prompt planned for."""
    return max(int(max(route.isl for route in deployment.routes)) + 1, CELLS)


def _cell(deployment: Deployment, route: Route) -> int:
    """The cell of a route's prompts, as the router finds it."""
    return min(int(route.isl / (_end(deployment) / CELLS)), CELLS - 1)


def grid(deployment: Deployment, role: Role) -> list[int]:
    """Number of the pool for each cell: the one that the plan gives most of the cell's requests.

    A cell without requests takes what the nearest cell below it has, the first ones what the first above has.
    """
    pools = deployment.of_role(role)
    weight = np.zeros((CELLS, len(pools)))
    for route in deployment.routes:
        shares: Mapping[str, float] = getattr(route, role)
        weight[_cell(deployment, route)] += [route.share * shares.get(pool.id, 0.0) for pool in pools]
    used = weight.max(axis=1) > 0.0
    nearest = np.maximum.accumulate(np.where(used, np.arange(CELLS), used.argmax()))
    return [int(number) for number in weight.argmax(axis=1)[nearest]]


def coarse_words(deployment: Deployment) -> str:
    """Why no grid of lengths comes near the plan's routing; empty where one does."""
    for role in STAGES:
        pools, numbers = deployment.of_role(role), grid(deployment, role)
        planned_share = sum(
            route.share * getattr(route, role).get(pools[numbers[_cell(deployment, route)]].id, 0.0)
            for route in deployment.routes
        )
        strays = 1.0 - planned_share / sum(route.share for route in deployment.routes)
        if strays > MISROUTED:
            return (
                f"{percentage(strays)} of the requests would find another {role.value} pool than planned, for Dynamo's "
                "router chooses by the prompt's length alone"
            )
    return ""
