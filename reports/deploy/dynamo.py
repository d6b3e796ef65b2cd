"""NVIDIA Dynamo: the fleet as a DynamoGraphDeployment, under the planner's control, or a graph per pool by length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig, Role
from costmodel.memory import kv_bytes_per_token_per_gpu, kv_capacity_bytes
from costmodel.step import StepLoad, step_time_one
from costmodel.units import MILLI
from costmodel.words import percentage
from optimizer.plans.plan import Route

from . import facts
from .deployment import DeployedPool, Deployment, GatewayRouting
from .flags import Flags, dynamo_trtllm_flags, plain_words, sglang_flags, vllm_flags
from .formats import manifest, pod_text
from .kubernetes import fleet_objects, metadata, support_files

FLEET_FILE: Final = "dgd.yaml"
GRID_FILE: Final = "global_router_config.json"
GRID_FOLDER: Final = "/etc/pdplan-router"
PLANNER_CONFIG: Final = "planner_config.json"
PROFILE_FOLDER: Final = "/etc/pdplan"
KV_EVENTS: Final[Mapping[str, Any]] = {"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:20080"}
"""Where an engine tells which prefixes it holds, for routing by prefix; vLLM wants to be told that it shall."""


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
        image = facts.image("dynamo", deployment.options.version, "planner")
        reads = (name, PROFILE_FOLDER)
        planner = _component(deployment, "Planner", "planner", "planner", config, image=image, reads=reads)
        graph = _graph(deployment, deployment.name, [fleet[0], planner, *fleet[1:]], with_planner=True)
        files["dgd-with-planner.yaml"] = manifest(f"{about} that the planner scales.", graph)
        about = "What the planner reads: its settings, and step times by our cost model in place of a profiling run."
        limits = {"ttft_ms": deployment.limits.ttft, "itl_ms": deployment.limits.tpot}
        rounded = {name: round(limit / MILLI, 3) for name, limit in limits.items()}
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
    grid, config = f"{deployment.name}-grid", ["--config", f"{GRID_FOLDER}/{GRID_FILE}"]
    reads = (grid, GRID_FOLDER)
    way_in = [
        _frontend(deployment, ["--router-mode", "round-robin", *names]),
        _component(deployment, "GlobalRouter", "", "global_router", [*config, *names], reads=reads),
    ]
    about = "The way in: a frontend, and the router that chooses a pool by the length of the prompt."
    lengths = "Which pool takes which prompt lengths, as the plan routes them."
    mapping = {GRID_FILE: json.dumps(grid_config(deployment, space)) + "\n"}
    files = {
        "control.yaml": manifest(about, _graph(deployment, deployment.name, way_in)),
        "router-configmap.yaml": _config_map(deployment, grid, mapping, lengths),
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
    image = deployment.options.image or facts.image("dynamo", deployment.options.version, deployment.engine)
    args = [pod_text(word) for word in words]
    return {"name": name, "kind": kind, "program": program, "args": args, "image": image, "replicas": 1} | more


def _frontend(deployment: Deployment, words: list[str]) -> Component:
    """The way in, twice; it fetches no weights."""
    words = ["--http-port", str(facts.fact("ports", "http")), *words]
    replicas = int(facts.fact("routers"))
    return _component(deployment, "Frontend", "frontend", "frontend", words, replicas=replicas)


def _worker(deployment: Deployment, pool: DeployedPool) -> Component:
    kind = "worker" if pool.role is Role.COLOCATED else pool.role.value
    words = plain_words(worker_flags(deployment, pool))
    return _component(deployment, pool.name, kind, deployment.engine, words, replicas=pool.replicas, pool=pool)


def router_words(deployment: Deployment) -> list[str]:
    """How the frontend chooses, and that it hands the requests of a worker that died to another one.

    Whoever has a request's prefix gets it if the plan counts on prefixes, else whoever has least to do. Routers that
    know which prefixes workers hold tell each other what they gave out; others count their own requests.
    """
    mode = "kv" if deployment.routes_by_prefix else "least-loaded"
    words = ["--router-mode", mode, "--migration-limit", str(facts.fact("migrations"))]
    if deployment.routes_by_prefix:
        words += ["--kv-cache-block-size", str(deployment.pools[0].settings.block_tokens), "--router-replica-sync"]
    return words


def worker_flags(deployment: Deployment, pool: DeployedPool) -> Flags:
    """The engine's flags and Dynamo's own; whoever computes prompts tells the router which prefixes it holds."""
    mode: Flags = {} if pool.role is Role.COLOCATED else {"--disaggregation-mode": pool.role.value}
    events = KV_EVENTS
    if deployment.engine == "vllm":
        flags, events = vllm_flags(deployment, pool) | mode, {**KV_EVENTS, "enable_kv_cache_events": True}
    elif deployment.engine == "sglang":
        flags = sglang_flags(deployment, pool)
    else:
        flags = dynamo_trtllm_flags(deployment, pool) | mode
    if not deployment.routes_by_prefix or pool.role is Role.DECODE:
        return flags
    if deployment.engine == "trtllm":
        return {**flags, "--publish-kv-events": True}
    return {**flags, "--kv-events-config": json.dumps(events, separators=(",", ":"))}


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


def grid_config(deployment: Deployment, space: str) -> Any:
    """The global router's configuration; space: what the pools' namespaces of Dynamo begin with."""
    return fleet_objects(
        "dynamo/grid.yaml",
        deployment,
        stages=[(role, *words) for role, words in STAGES.items()],
        namespaces=lambda role: [f"{space}-{pool.name}" for pool in deployment.of_role(role)],
        mapping=lambda role: [[number] for number in grid(deployment, role)],
        end=_end(deployment),
        cells=CELLS,
    )[0]


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
