"""Plain vLLM: a config file and start scripts per engine, the router's command, and a docker compose file per host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import Deployment
from .flags_vllm import vllm_words
from .placement import Host, Instance, hosts_of, place
from .rendering import Raw, compose_text, render

ROUTER_FILE: Final = "router.sh"
HOSTS_FILE: Final = "hosts.env"


def vllm_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)
    files = {
        HOSTS_FILE: hosts_file(instances),
        ROUTER_FILE: render(
            "vllm/router.sh",
            words=router_words(deployment, instances),
            port=facts.fact("ports", "http"),
            package=Raw(facts.fact("router", "vllm")),
        ),
    }
    for one in instances:
        files[f"workers/{one.name}.yaml"] = _config(deployment, one)
        for rank, host in enumerate(one.hosts):
            files[f"workers/{script_name(one, rank)}"] = _script(deployment, one, rank, host)
    for number, host in enumerate(hosts_of(instances)):
        files[f"compose/{host.name}.yaml"] = _compose(deployment, instances, host, router=number == 0)
    return files


def hosts_file(instances: tuple[Instance, ...]) -> str:
    """The addresses that the user fills in; one host needs none."""
    hosts = hosts_of(instances)
    alone = len(hosts) == 1
    rows = [{"variable": Raw(host.variable), "default": "127.0.0.1" if alone else host.name} for host in hosts]
    return render("vllm/hosts.env", hosts=rows)


def script_name(one: Instance, rank: int) -> str:
    """Start script of an engine on one of its hosts."""
    return f"{one.name}.sh" if len(one.hosts) == 1 else f"{one.name}.node{rank}.sh"


def _config(deployment: Deployment, one: Instance) -> str:
    words = (*vllm_words(deployment, one.pool), ("--host", "0.0.0.0"), ("--port", str(one.port("worker"))))  # noqa: S104
    return render(
        "vllm/worker.yaml",
        options=[(name.removeprefix("--"), _typed(deployment.engine_version, name, value)) for name, value in words],
    )


def _typed(version: str, name: str, value: str | None) -> Any:
    """YAML's own type of a flag's value, so that the file reads as a person would write it."""
    kinds: dict[object, type[int] | type[float]] = {"int": int, "float": float}
    kind = facts.legal_flag("vllm", version, name)
    return True if value is None else kinds[kind](value) if isinstance(kind, str) and kind in kinds else value


def _script(deployment: Deployment, one: Instance, rank: int, host: Host) -> str:
    env = [(Raw("CUDA_VISIBLE_DEVICES"), ",".join(map(str, one.gpus)))]
    env += [(Raw(name), value) for name, value in worker_env(deployment, one, host)]
    return render(
        "vllm/worker.sh",
        variable=Raw(host.variable),
        env=env,
        config=f"{one.name}.yaml",
        words=_node_words(one, rank),
    )


def worker_env(deployment: Deployment, one: Instance, host: Host) -> list[tuple[str, str]]:
    """Environment of an engine that hands over KV caches: where its peers find it, and how blocks travel."""
    if not deployment.disaggregated:
        return []
    return [
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", Raw(f'"{host.address}"')),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", str(one.port("side_channel"))),
        ("UCX_TLS", facts.fact("ucx", "hosts")),
    ]


def _node_words(one: Instance, rank: int) -> list[str]:
    """What an engine of several hosts is told on each: its place, and where the first is."""
    if len(one.hosts) == 1:
        return []
    settings, head = one.pool.settings, Raw(f'"{one.hosts[0].address}"')
    if settings.data == 1:
        words = ["--nnodes", str(len(one.hosts)), "--node-rank", str(rank), "--master-addr", head]
        return [*words, "--master-port", str(one.port("master"))] + ["--headless"] * bool(rank)
    local = one.pool.node_gpus // (settings.tensor * settings.pipeline)
    if local == 0:
        raise InputError(
            f"pool {one.pool.id}: data ranks of TP {settings.tensor} x PP {settings.pipeline} do not fit on one host, "
            "which plain vLLM cannot start"
        )
    words = ["--data-parallel-size-local", str(local), "--data-parallel-address", head]
    words += ["--data-parallel-rpc-port", str(one.port("data_parallel"))]
    return words + ["--data-parallel-start-rank", str(rank * local), "--headless"] * bool(rank)


def router_words(deployment: Deployment, instances: Iterable[Instance]) -> list[str]:
    """The router's command line after its name; the policy keeps prefixes together if the plan counts on them."""
    urls = {
        role: [f"http://{_url_host(one)}:{one.port('worker')}" for one in instances if one.pool.role is role]
        for role in Role
    }
    words = ["--host", "0.0.0.0", "--port", str(facts.fact("ports", "http"))]  # noqa: S104
    words += ["--policy", router_policy(deployment)]
    if deployment.disaggregated:
        words += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
        for role in (Role.PREFILL, Role.DECODE):
            for url in urls[role]:
                words += [f"--{role.value}", Raw(f'"{url}"')]
        return words
    return [*words, "--worker-urls", *(Raw(f'"{url}"') for url in urls[Role.COLOCATED])]


def router_policy(deployment: Deployment) -> str:
    """Who gets a request: whoever holds its prefix if the plan counts on prefixes, else whoever has less to do."""
    return "cache_aware" if deployment.demand.prefix_share > 0.0 else "power_of_two"


def _url_host(one: Instance) -> str:
    return str(one.hosts[0].address)


def _compose(deployment: Deployment, instances: tuple[Instance, ...], host: Host, *, router: bool) -> str:
    services = [_service(deployment, one, one.hosts.index(host), host) for one in instances if host in one.hosts]
    words = [unquoted(word) for word in router_words(deployment, instances)]
    command = [
        "sh",
        "-c",
        Raw(f'"pip install -q {facts.fact("router", "vllm")} && exec vllm-router {" ".join(words)}"'),
    ]
    return render(
        "compose/vllm.yaml", project=deployment.name, services=services, router={"command": command} if router else None
    )


def _service(deployment: Deployment, one: Instance, rank: int, host: Host) -> dict[str, Any]:
    options = deployment.options
    words = [Raw(f'"{unquoted(word)}"') for word in _node_words(one, rank)]
    port = one.port("worker") if rank == 0 else 0
    return {
        "name": f"{one.name}-{rank}" if len(one.hosts) > 1 else one.name,
        "image": compose_text(options.image or facts.image("vllm", options.version, "vllm")),
        "command": ["--config", f"/workers/{one.name}.yaml", *words],
        "env": [(name, Raw(f'"{unquoted(value)}"')) for name, value in worker_env(deployment, one, host)],
        "gpus": [str(gpu) for gpu in one.gpus],
        "port": port,
        "health": f"http://127.0.0.1:{port}/health",
    }


def unquoted(word: str) -> str:
    """A word of ours for another format: the shell's quotes around a variable are not its own."""
    return word.replace('"', "") if isinstance(word, Raw) else word
