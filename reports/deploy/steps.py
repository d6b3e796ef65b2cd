"""How a deployment is started, step by step; nothing is said of a file that was not written."""

from __future__ import annotations

from typing import Final

from . import facts
from .benchmark import FOLDER, trace_file
from .description import ClassLimits, Deployment, Routing
from .gateway import chosen_by
from .placement import Host, hosts_of, place
from .planner import can_plan

SECRET: Final = "hf-token-secret"  # noqa: S105 - its name, not what it holds


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
