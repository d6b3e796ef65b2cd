"""Hosts without a scheduler: start scripts of vLLM, SGLang and TensorRT-LLM, the router before them, and containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError
from costmodel.memory import kv_capacity_bytes
from costmodel.units import GIB

from . import facts
from .deployment import DeployedPool, Deployment, Device
from .flags import place_words, plain_words, sglang_words, span_words, trtllm_options, vllm_words
from .formats import Raw, compose_text, manifest, render
from .gateway import gateway_files
from .hosts import (
    HOSTS_FILE,
    ROUTER_FILE,
    SLURM_FILE,
    Host,
    Instance,
    device_env,
    hosts_file,
    hosts_of,
    place,
    router_hosts,
    script_name,
    slurm_file,
)

ANYWHERE: Final = "0.0.0.0"  # noqa: S104 - engines are for clients of other hosts
BALANCES: Final = "cache_aware"
"""Policy of both routers that sends to the engine with the fewest requests once loads differ by more than a threshold.

Their power_of_two compares loads that are not always counted: that of vllm-router 0.1.17 sends to prefill and decode
engines, and that of SGLang's router 0.3.2 to colocated ones, at random.
"""
VLLM_CONFIG: Final = (
    "One vLLM engine with the settings that the plan was evaluated with: vllm serve --config <this file>"
)
TRTLLM_CONFIG: Final = "One TensorRT-LLM engine with the plan's settings: trtllm-serve MODEL --config <this file>"
SPLIT: Final = (
    "trtllm-serve disaggregated -c <this file>; the names of hosts must resolve to yours by DNS or /etc/hosts."
)
SPLIT_FILE: Final = "disagg_config.yaml"
TURNS: Final = "load_balancing"
"""Who gets a request of trtllm-serve's router: the engine with the fewest. By default engines take turns; chats are
refused where it counts tokens."""
Environment = list[tuple[str, str]]


def vllm_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)

    def words(instance: Instance, rank: int) -> list[str]:
        return ["--config", Raw(f'"$here"/{instance.name}.yaml'), *_node_words(instance, rank)]

    def env(instance: Instance, host: Host) -> Environment:
        return _vllm_env(deployment, instance, host)

    files = _router_files(deployment, instances) | _script_files(deployment, instances, words, env)
    files |= {f"workers/{instance.name}.yaml": _vllm_config(deployment, instance) for instance in instances}
    if deployment.on_cpu:
        return files
    return files | {f"compose/{host.name}.yaml": _compose(deployment, instances, host) for host in hosts_of(instances)}


def sglang_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)

    def words(instance: Instance, rank: int) -> list[str]:
        flags = [*plain_words(sglang_words(deployment, instance.pool)), "--host", ANYWHERE]
        flags += ["--port", str(instance.port("worker"))]
        if instance.pool.role is Role.PREFILL:
            flags += ["--disaggregation-bootstrap-port", str(instance.port("bootstrap"))]
        if len(instance.hosts) > 1:
            head = Raw(f'"{instance.hosts[0].address}:{instance.port("nccl")}"')
            flags += ["--nnodes", str(len(instance.hosts)), "--node-rank", str(rank), "--dist-init-addr", head]
        return flags

    def env(_instance: Instance, _host: Host) -> Environment:
        return [("UCX_TLS", facts.fact("ucx", "hosts"))] if deployment.disaggregated else []

    return _router_files(deployment, instances) | _script_files(deployment, instances, words, env)


def trtllm_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target: trtllm-serve's router is for both stages; before engines of both stands HAProxy."""
    instances = place(deployment)
    files: dict[str, str] = {}
    for instance in instances:
        if len(instance.hosts) > 1:
            raise InputError(
                f"pool {instance.pool.id}: an engine of {instance.pool.settings.gpus} GPUs spans "
                f"{len(instance.hosts)} hosts, which trtllm-serve starts only under MPI"
            )
        options = trtllm_options(deployment, instance.pool)
        files[f"workers/{instance.name}.yaml"] = manifest(TRTLLM_CONFIG, options)
        files[f"workers/{instance.name}.sh"] = _trtllm_script(deployment, instance, instances)
    if deployment.disaggregated:
        urls = {
            role: [
                f"{_trtllm_host(deployment, instance, instances)}:{instance.port('worker')}"
                for instance in instances
                if instance.pool.role is role
            ]
            for role in (Role.PREFILL, Role.DECODE)
        }
        port = facts.fact("ports", "http")
        split: dict[str, Any] = {"hostname": ANYWHERE, "port": port, "backend": "pytorch"}
        for section, role in (("context_servers", Role.PREFILL), ("generation_servers", Role.DECODE)):
            split[section] = {"num_instances": len(urls[role]), "router": {"type": TURNS}, "urls": urls[role]}
        files[SPLIT_FILE] = manifest(SPLIT, split)
        files[ROUTER_FILE] = render("trtllm/router.sh", port=port)
    if deployment.behind_gateway:
        files |= {HOSTS_FILE: hosts_file(instances), **gateway_files(deployment, instances)}
    return files


def _trtllm_host(deployment: Deployment, instance: Instance, instances: tuple[Instance, ...]) -> str:
    """The host that an engine stands on: its name, or for HAProxy what hosts.env calls it."""
    if deployment.behind_gateway:
        return instance.hosts[0].variable
    return "localhost" if len(hosts_of(instances)) == 1 else instance.hosts[0].name


def _trtllm_script(deployment: Deployment, instance: Instance, instances: tuple[Instance, ...]) -> str:
    """A single engine takes the port that clients know; behind a router engines have their own."""
    routed = deployment.disaggregated or deployment.behind_gateway
    env = device_env(instance, "trtllm")
    if deployment.disaggregated:
        env.append(("UCX_TLS", facts.fact("ucx", "hosts")))
    port = instance.port("worker") if routed else facts.fact("ports", "http")
    return render(
        "trtllm/worker.sh",
        host=Raw(_trtllm_host(deployment, instance, instances)),
        env=[(Raw(name), value) for name, value in env],
        words=["serve", deployment.weights, "--host", ANYWHERE, "--port", str(port)],
        config=f"{instance.name}.yaml",
    )


def _script_files(
    deployment: Deployment,
    instances: tuple[Instance, ...],
    words: Callable[[Instance, int], Sequence[str]],
    env: Callable[[Instance, Host], Environment],
) -> dict[str, str]:
    """The addresses of all hosts, a start script per engine and host, and a job of Slurm that starts them all.

    words: of the command line of an engine on its host of that number; env: environment there, besides its GPUs.
    """
    files = {HOSTS_FILE: hosts_file(instances)}
    for instance in instances:
        for rank, host in enumerate(instance.hosts):
            every = [*device_env(instance, deployment.engine), *env(instance, host)]
            files[f"workers/{script_name(instance, rank)}"] = render(
                f"{deployment.engine}/worker.sh",
                variable=Raw(host.variable),
                env=[(Raw(name), value) for name, value in every],
                words=words(instance, rank),
            )
    return files if deployment.on_cpu else files | {SLURM_FILE: slurm_file(deployment, instances)}


def _router_files(deployment: Deployment, instances: tuple[Instance, ...]) -> dict[str, str]:
    """HAProxy where it chooses among pools, else the engine's own router."""
    if deployment.parted:
        return gateway_files(deployment, instances)
    engine = deployment.engine
    port, package = facts.fact("ports", "http"), Raw(facts.fact("router", engine))
    words = router_words(deployment, instances)
    return {ROUTER_FILE: render(f"{engine}/router.sh", words=words, port=port, package=package)}


def router_words(deployment: Deployment, instances: Iterable[Instance]) -> list[str]:
    """The command line of vllm-router or SGLang's router after its name."""
    vllm = deployment.engine == "vllm"
    words = ["--host", ANYWHERE, "--port", str(facts.fact("ports", "http"))]
    words += ["--worker-startup-timeout-secs", str(facts.fact("startup_seconds"))]
    words += ["--prometheus-host", ANYWHERE, "--prometheus-port", str(facts.fact("ports", "router_metrics"))]
    words += router_limits(prefixes=deployment.routes_by_prefix)
    if not deployment.disaggregated:
        return [*words, "--policy", BALANCES, "--worker-urls", *map(_url, instances)]
    words += [f"--{Role.PREFILL.value}-policy", BALANCES, f"--{Role.DECODE.value}-policy", BALANCES]
    words += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"] if vllm else ["--pd-disaggregation"]
    for instance in instances:
        words += [f"--{instance.pool.role.value}", _url(instance)]
        if not vllm and instance.pool.role is Role.PREFILL:
            words.append(str(instance.port("bootstrap")))
    return words


def _url(instance: Instance) -> Raw:
    return Raw(f'"http://{instance.hosts[0].address}:{instance.port("worker")}"')


def router_limits(*, prefixes: bool) -> list[str]:
    """When a router passes over an engine: because it is loaded more than others, or because it is down.

    By how much loads may differ before the engine with the fewest requests is next, rather than a prompt's own: not at
    all, unless the plan counts on prefixes; then by two requests, or by a tenth where that is more.

    >>> router_limits(prefixes=False)[:4]
    ['--balance-abs-threshold', '0', '--balance-rel-threshold', '1.0']
    """
    more, ratio = ("2", "1.1") if prefixes else ("0", "1.0")
    limits = {"--balance-abs-threshold": more, "--balance-rel-threshold": ratio, **health_flags()}
    return [word for pair in limits.items() for word in pair]


def health_flags() -> dict[str, str]:
    """How vllm-router and SGLang's router find that an engine is down; both spell it alike."""
    health = facts.fact("health")
    return {
        "--health-check-interval-secs": str(health["interval"]),
        "--health-failure-threshold": str(health["failures"]),
        "--health-success-threshold": str(health["successes"]),
        "--health-check-timeout-secs": str(health["timeout"]),
    }


def _vllm_config(deployment: Deployment, instance: Instance) -> str:
    words = vllm_words(deployment, instance.pool)
    words = (*words, ("--host", ANYWHERE), ("--port", str(instance.port("worker"))))
    version = deployment.engine_version
    return manifest(VLLM_CONFIG, {name.removeprefix("--"): _typed(version, name, value) for name, value in words})


def _typed(version: str, name: str, value: str | None) -> Any:
    """YAML's own type of a flag's value, so that the file reads as a person would write it."""
    kinds: dict[object, type[int] | type[float]] = {"int": int, "float": float}
    kind = facts.legal_flag("vllm", version, name)
    return True if value is None else kinds[kind](value) if isinstance(kind, str) and kind in kinds else value


def _vllm_env(deployment: Deployment, instance: Instance, host: Host) -> Environment:
    """Environment of an engine: its KV memory on a CPU; where its peers find it, and how blocks travel."""
    space = [("VLLM_CPU_KVCACHE_SPACE", str(_cache_gib(deployment, instance.pool)))] if deployment.on_cpu else []
    if not deployment.disaggregated:
        return space
    return [
        *space,
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", Raw(f'"{host.address}"')),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", str(instance.port("side_channel"))),
        ("UCX_TLS", facts.fact("ucx", "hosts")),
    ]


def _cache_gib(deployment: Deployment, pool: DeployedPool) -> int:
    """Memory of a rank for the tokens of KV that the plan counts on, as wide as a CPU has them, in whole GiB."""
    wider = int(facts.fact("vendors", Device.CPU, "wider"))
    return max(round(kv_capacity_bytes(deployment.model, pool.config) * wider / GIB), 1)


def _node_words(instance: Instance, rank: int) -> list[str]:
    """What an engine of several hosts is told on each: its place, and where the first is."""
    if len(instance.hosts) == 1:
        return []
    head = Raw(f'"{instance.hosts[0].address}"')
    return span_words(instance.pool, head, instance.port) + place_words(instance.pool, rank)


def _compose(deployment: Deployment, instances: tuple[Instance, ...], host: Host) -> str:
    """The engines of one host as containers, and the router on the hosts that have one, which waits for the former."""
    here = [instance for instance in instances if host in instance.hosts]
    rdma = deployment.leaves_nodes and len(hosts_of(instances)) > 1
    services = dict(_service(deployment, instance, host, rdma=rdma) for instance in here)
    if host in router_hosts(instances):
        served = [name for name, service in services.items() if "healthcheck" in service]
        waits = {"depends_on": {name: {"condition": "service_healthy"} for name in served}}
        services["router"] = _router_service(deployment, instances) | waits
    return manifest(
        "The replicas of one host: docker compose --env-file ../hosts.env -f <this file> up",
        {"name": deployment.name, "services": services},
    )


def _router_service(deployment: Deployment, instances: tuple[Instance, ...]) -> dict[str, Any]:
    """The router as a container; HAProxy finds every address in its environment."""
    shared = {"restart": "unless-stopped", "entrypoint": [], "network_mode": "host"}
    if deployment.parted:
        return {
            "image": facts.fact("gateway", "image"),
            **shared,
            "command": ["haproxy", "-f", "/router.cfg"],
            "volumes": ["../router.cfg:/router.cfg:ro"],
            "environment": {host.variable: _unquoted(host.address) for host in hosts_of(instances)},
        }
    words = ["vllm-router", *map(_unquoted, router_words(deployment, instances))]
    return {"image": facts.fact("router_image"), **shared, "command": words}


def _service(deployment: Deployment, instance: Instance, host: Host, *, rdma: bool) -> tuple[str, dict[str, Any]]:
    """A container of an engine on one of its hosts, by its name; rdma: whether it needs the host's RDMA devices."""
    options, rank, vendor = deployment.options, instance.hosts.index(host), instance.pool.vendor
    weights, amd = deployment.weights, vendor == "amd"
    env = [*(device_env(instance, "vllm") if amd else []), *_vllm_env(deployment, instance, host)]
    volumes: list[Any] = ["../workers:/workers:ro", "${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"]
    if weights.startswith("/"):
        folder = compose_text(weights)
        volumes.append({"type": "bind", "source": folder, "target": folder, "read_only": True})
    devices = ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"] * amd + ["/dev/infiniband:/dev/infiniband"] * rdma
    service: dict[str, Any] = {
        "image": compose_text(options.image or facts.image("vllm", options.version, "vllm", vendor)),
        "entrypoint": ["vllm", "serve"],
        "restart": "unless-stopped",
        "command": ["--config", f"/workers/{instance.name}.yaml", *map(_unquoted, _node_words(instance, rank))],
        "stop_grace_period": f"{deployment.drain_seconds + facts.fact('exit_seconds')}s",
        "network_mode": "host",
        "ipc": "host",
        "ulimits": {"memlock": -1},
        "cap_add": ["IPC_LOCK"],
        "volumes": volumes,
        # a token that is null has the value of the shell that runs compose, for weights that need it
        "environment": {"HF_TOKEN": None, **{name: _unquoted(value) for name, value in env}},
    }
    if devices:
        service["devices"] = devices
    if amd:
        service |= {"group_add": ["video"], "security_opt": ["seccomp=unconfined"]}
    else:
        gpus = {"driver": "nvidia", "device_ids": [str(gpu) for gpu in instance.gpus], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    if rank == 0:
        service["healthcheck"] = {
            "test": ["CMD", "curl", "-sf", f"http://127.0.0.1:{instance.port('worker')}/health"],
            "interval": "10s",
            "timeout": "5s",
            "retries": facts.fact("startup_seconds") // 10,
            "start_period": "60s",
        }
    return f"{instance.name}-{rank}" if len(instance.hosts) > 1 else instance.name, service


def _unquoted(word: str) -> str:
    """A word of ours outside a shell, whose quotes around a variable are not its own."""
    return word.replace('"', "") if isinstance(word, Raw) else word
