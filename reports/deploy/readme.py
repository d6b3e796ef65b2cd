"""The page of a deployment: how it is started step by step, and why each setting is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodel.engine import Role
from costmodel.words import percentage
from optimizer.plans.plan import Plan

from . import facts
from .benchmark import FOLDER, trace_file
from .deployment import ClassLimits, Deployment, Options, Routing
from .describe import describe
from .dynamo import can_plan
from .flags import connector
from .gateway import chosen_by
from .hosts import Host, hosts_of, place
from .pods import SECRET


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: its name, its value (of each pool where pools differ), and the reason."""

    setting: str
    value: str
    why: str


def settings(plan: Plan, base: Path | None = None) -> tuple[SettingRow, ...]:
    """The settings of a plan's fleet, as the plain target of its engine is told them.

    base: folder from which files that the plan's problem names are looked up. Raises InputError as `describe` does.
    """
    version = facts.checked_version(plan.engine, None)
    return setting_rows(describe(plan, Options(plan.engine, version), base))


def setting_rows(deployment: Deployment) -> tuple[SettingRow, ...]:
    """The settings of a deployment."""
    return (*_parallel(deployment), *_scheduler(deployment), *_memory(deployment), *_hand_over(deployment))


def accepted_words(deployment: Deployment) -> str:
    """Say how far the limit on a request goes beyond what was evaluated, and why no further."""
    room = deployment.template_room
    ends = "; the KV memory or the model's context ends there" if room < facts.TEMPLATE_TOKENS else ""
    if not room:
        return f"max_model_len too, so that a chat template may add nothing to the longest prompts{ends}"
    return f"max_model_len alone is raised, so that a chat template may lengthen prompts by {room} tokens{ends}"


def _parallel(deployment: Deployment) -> list[SettingRow]:
    rows = [
        SettingRow("tensor parallel", _each(deployment, "tensor"), "splits every layer; the step times are for it"),
        SettingRow(
            "pipeline parallel", _each(deployment, "pipeline"), "stages that the step times and bubbles are for"
        ),
    ]
    if deployment.model.is_moe:
        rows += [
            SettingRow(
                "expert parallel",
                _each(deployment, "expert"),
                "GPUs that the experts are spread over; 1: all are split instead",
            ),
            SettingRow("data parallel", _each(deployment, "data"), "attention ranks that share the experts"),
        ]
    if any(pool.settings.redundant for pool in deployment.pools):
        rows.append(
            SettingRow(
                "redundant experts",
                _each(deployment, "redundant"),
                "second copies, so that all GPUs hold as many experts",
            )
        )
    return rows


def _scheduler(deployment: Deployment) -> list[SettingRow]:
    hit = deployment.demand.prefix_share
    return [
        SettingRow(
            "max_num_seqs",
            _each(deployment, "max_num_seqs"),
            "most requests at once: the batch whose step time keeps the TPOT limit",
        ),
        SettingRow(
            "max_num_batched_tokens",
            _each(deployment, "max_num_batched_tokens"),
            "tokens of one step: the prompt chunk that the step times are for",
        ),
        SettingRow(
            "max_model_len",
            _each(deployment, "max_model_len"),
            f"longest prompt and answer of the workload, and {deployment.template_room} tokens for a chat template",
        ),
        SettingRow(
            "prefix caching",
            "on" if hit > 0.0 else "off",
            f"the workload finds {percentage(hit, 1)} of its prompt tokens in a cache"
            if hit > 0.0
            else "the plan counts on no shared prefix, so none shall flatter a measurement",
        ),
        *_positions(deployment),
        SettingRow("chunked prefill", "on", "long prompts are computed in chunks of max_num_batched_tokens"),
        SettingRow("order", "first come, first served", "as requests were simulated"),
        SettingRow(
            "router",
            deployment.router.value.replace("_", " "),
            "which engine of a pool gets the next prompt; the figures here are for a router that chooses so",
        ),
        SettingRow(
            "CUDA graphs",
            "all decode batches",
            "host times are those of graphs; batches beyond an engine's default would run without",
        ),
    ]


def _positions(deployment: Deployment) -> list[SettingRow]:
    told = deployment.pools[0].settings.config_overrides
    if not told:
        return []
    also = "; static scaling holds for short prompts too, whose answers it may change" if "factor" in told else ""
    return [
        SettingRow(
            "overrides of config.json",
            told,
            f"requests exceed {deployment.own_context:,} tokens; by the weights' own, engines may go no further{also}",
        )
    ]


def _memory(deployment: Deployment) -> list[SettingRow]:
    quantization = deployment.pools[0].settings.quantization
    weights = deployment.pools[0].config.weight_dtype
    rows = [
        SettingRow(
            "memory fraction",
            _each(deployment, "memory_fraction"),
            "share of HBM for weights, activations and KV cache: the room that the running requests were counted in",
        ),
        SettingRow(
            "KV cache dtype", _each(deployment, "kv_dtype"), "bytes per token in memory, attention and hand-over"
        ),
        SettingRow(
            "weights",
            weights if quantization is None else f"{weights}, converted while loading",
            f"precision that the step times are for; loaded from {deployment.weights}",
        ),
        SettingRow(
            "KV block size",
            _each(deployment, "block_tokens"),
            "tokens of a block; both ends of a hand-over need the same",
        ),
    ]
    backend = deployment.pools[0].settings.attention_backend
    if deployment.mixed and backend is not None:
        rows.append(
            SettingRow(
                "attention backend",
                backend,
                "GPU types differ and would choose different ones, which cannot hand over KV",
            )
        )
    return rows


def _hand_over(deployment: Deployment) -> list[SettingRow]:
    if not deployment.disaggregated:
        return []
    name = connector(deployment) if deployment.engine == "vllm" else "NIXL"
    ends = [f"{pool.id} sends" if pool.role is Role.PREFILL else f"{pool.id} receives" for pool in deployment.pools]
    ends_at, roads = "hosts", "every road between processes and hosts, NVLink and RDMA among them"
    if deployment.options.target in {"dynamo", "llmd"}:
        ends_at, roads = "pods", "RDMA between pods, NVLink within one; over TCP, KV caches would take minutes"
    side = SettingRow(
        "side channel", "host, and a port per engine", "where the other end is found; the default is localhost"
    )
    return [
        *[side] * (deployment.options.target in {"vllm", "llmd"}),
        SettingRow("KV connector", name, f"moves KV caches between engines: {', '.join(ends)}"),
        SettingRow("environment", f"UCX_TLS={facts.fact('ucx', ends_at)}", roads),
    ]


def _each(deployment: Deployment, name: str) -> str:
    """The value, once where all pools have it, else by pool."""
    values = {pool.id: getattr(pool.settings, name) for pool in deployment.pools}
    if len(set(values.values())) == 1:
        return _shown(next(iter(values.values())))
    return ", ".join(f"{pool}: {_shown(value)}" for pool, value in values.items())


def _shown(value: float | int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


_CLIENTS: Final = f"`http://<that host>:{facts.fact('ports', 'http')}/v1`"


def plain_steps(deployment: Deployment) -> list[str]:
    """Scripts on hosts: vLLM and SGLang."""
    hosts = hosts_of(place(deployment))
    addresses = "Put the addresses of your hosts into `hosts.env`, and this folder on each of them."
    alone = "All engines stand on one host, as `hosts.env` says."
    target = deployment.options.target
    engine = f"Install {facts.target_title(target)} {deployment.options.version} on every host"
    one = _one_of(hosts)
    router = f"Run `router.sh` {one}; it waits for the engines, and clients send to {_CLIENTS}."
    if deployment.behind_gateway:
        router = _gateway_step(deployment)
    return [
        engine + ", and `nixl`, which moves KV caches." if deployment.disaggregated else engine + ".",
        alone if len(hosts) == 1 else addresses,
        f"Run every `workers/*.sh` on the host that it names{_token(deployment)}.",
        router,
    ]


def _one_of(hosts: tuple[Host, ...]) -> str:
    return f"on one host, such as {hosts[0].name}" if len(hosts) > 1 else "on that host"


def _gateway_step(deployment: Deployment) -> str:
    """How HAProxy is started, and what it does."""
    by = chosen_by(deployment)
    does = f"chooses a pool by {by} of a request" if by else "sends a request to the engine with the fewest"
    return (
        f"Install HAProxy {facts.fact('gateway', 'version')} or later and run `router.sh` "
        f"{_one_of(hosts_of(place(deployment)))}. It {does} (`router.cfg`). It answers 503 until engines are healthy; "
        f"clients send to {_CLIENTS}."
    )


def vllm_steps(deployment: Deployment) -> list[str]:
    """Scripts, or containers by docker compose."""
    hosts = hosts_of(place(deployment))
    containers = (
        "Or, in containers, on each host: "
        f"`docker compose --env-file hosts.env -f compose/{hosts[0].name}.yaml up -d` with the file of its name; "
        f"the router is in that of {hosts[0].name}."
    )
    rdma = " Containers need RDMA devices (`/dev/infiniband`), for what travels between hosts takes minutes over TCP."
    return [*plain_steps(deployment), containers + rdma * (deployment.leaves_nodes and len(hosts) > 1)]


def trtllm_steps(deployment: Deployment) -> list[str]:
    """Scripts; a single engine needs no router."""
    start = f"Run every `workers/*.sh` on the host that it names{_token(deployment)}."
    if deployment.behind_gateway:
        return ["Put the addresses of your hosts into `hosts.env`.", start, _gateway_step(deployment)]
    names = ["Let the names of hosts in `disagg_config.yaml` resolve to yours, by DNS or `/etc/hosts`."] * (
        len(hosts_of(place(deployment))) > 1
    )
    router = [f"Run `router.sh` on one of the hosts; clients send to {_CLIENTS}."] * deployment.disaggregated
    return [*names, start, *router]


def dynamo_steps(deployment: Deployment) -> list[str]:
    """Graphs for Dynamo's operator."""
    space = deployment.options.namespace
    operators = ", with Grove or LeaderWorkerSet for engines of several nodes"
    platform = f"Install the Dynamo platform {deployment.options.version}"
    steps = [platform + operators * any(pool.nodes > 1 for pool in deployment.pools) + ".", *_namespace(deployment)]
    if deployment.routing is Routing.BY_LENGTH:
        grid = "the fleet, each pool behind its own router, and the one that chooses among them by length."
        return [*steps, f"`kubectl apply -n {space} -f router-configmap.yaml -f pools/ -f control.yaml` starts {grid}"]
    steps.append(f"`kubectl apply -n {space} -f dgd.yaml` starts the planned fleet with fixed replicas.")
    if can_plan(deployment):
        steps.append(
            f"Or `kubectl apply -n {space} -f planner-configmap.yaml -f dgd-with-planner.yaml`, to let the planner, "
            "which reads the platform's Prometheus, scale between one engine of each pool and the plan's GPUs."
        )
    return steps


def llmd_steps(deployment: Deployment) -> list[str]:
    """Releases of llm-d's charts."""
    space, name = deployment.options.namespace, deployment.name
    releases = [
        f"`helm install {name}-{pool.name} <llm-d-modelservice chart> -n {space} -f values/{pool.name}.yaml`"
        for pool in deployment.pools
        if pool.nodes == 1
    ]
    groups = (
        f"`kubectl apply -n {space} -f leaderworkersets/` starts the engines that span nodes; it needs LeaderWorkerSet"
    )
    return [
        *_namespace(deployment),
        f"`helm install {name} <llm-d router chart, standalone> -n {space} -f router-values.yaml` starts the endpoint "
        "picker with `epp-config.yaml` behind a proxy on port 80. Or, behind a gateway and a picker of your own: give "
        f"it `epp-config.yaml`, `kubectl apply -n {space} -f inferencepool.yaml`, and change the benchmark's `--url`.",
        *[f"Install the modelservice chart once for every pool: {', '.join(releases)}."] * bool(releases),
        *[f"{groups} in the cluster."] * (len(releases) < len(deployment.pools)),
    ]


def folder_steps(deployment: Deployment, *, pods: bool) -> list[str]:
    """Where weights must lie that are not fetched."""
    where = "node that may run engines or the frontend" if pods else "host"
    return ["Put the weights into the folder that the files name, on every " + where + "."] * (
        deployment.weights.startswith("/")
    )


def benchmark_steps(deployment: Deployment) -> list[str]:
    """How the benchmark runs in the cluster, and where its result comes out."""
    space, name = deployment.options.namespace, deployment.name
    traces = " ".join(f"--from-file={FOLDER}/{trace_file(one)}" for one in deployment.classes)
    waits = [
        f"kubectl wait -n {space} --for=condition=complete --timeout=1h job/{name}-benchmark{one.ending}"
        for one in deployment.classes
    ]
    logs = [
        f"kubectl logs -n {space} job/{name}-benchmark{one.ending} > {job_result(one)}" for one in deployment.classes
    ]
    return [
        f"kubectl create configmap {name}-workload -n {space} {traces}",
        f"kubectl apply -n {space} -f benchmark/job.yaml",
        *waits,
        *logs,
    ]


def job_result(one: ClassLimits) -> str:
    """File into which the log of a class's job goes."""
    stem, _, suffix = str(facts.fact("benchmark", "result")).rpartition(".")
    return f"{stem}{one.ending}.{suffix}"


def _token(deployment: Deployment) -> str:
    """What weights that are fetched may need in the shell that starts engines."""
    fetched = not deployment.weights.startswith("/")
    return ", with HF_TOKEN in its environment if the weights need a token of Hugging Face" * fetched


def _namespace(deployment: Deployment) -> list[str]:
    """The namespace, and the token for weights that need one."""
    space = deployment.options.namespace
    made = [f"`kubectl create namespace {space}`, if it is not there."] * (space != "default")
    claim = deployment.options.claim
    kept = f"Make the PersistentVolumeClaim {claim}, ReadWriteMany, with room for the weights; pods fetch them into it."
    secret = f"`kubectl create secret generic {SECRET} -n {space} --from-literal=HF_TOKEN=...`"
    return [*made, f"{secret}, if the weights need a token of Hugging Face.", *[kept] * bool(claim)]
