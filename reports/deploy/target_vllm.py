"""Plain vLLM: a config file and start scripts per engine, the router's command, and a docker compose file per host."""

from __future__ import annotations

from typing import Any, Final

from . import facts
from .description import Deployment
from .flags_vllm import place_words, span_words, vllm_words
from .gateway_file import gateway_files
from .lint_compose import GATEWAY_COMMAND, GATEWAY_MOUNT
from .placement import Host, Instance, hosts_of, place
from .plain import ROUTER_FILE, router_file, router_words, script_files
from .rendering import Raw, compose_text, render

SPLIT: Final = "--vllm-pd-disaggregation"


def vllm_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)

    def words(one: Instance, rank: int) -> list[str]:
        return ["--config", Raw(f'"$here"/{one.name}.yaml'), *_node_words(one, rank)]

    def env(one: Instance, host: Host) -> list[tuple[str, str]]:
        return worker_env(deployment, one, host)

    if deployment.parted:
        files, router = gateway_files(deployment, instances), _gateway_service(instances)
    else:
        command = router_words(deployment, instances, [SPLIT, "--kv-connector", "nixl"])
        files, router = {ROUTER_FILE: router_file("vllm", command)}, _router_service(command)
    files |= script_files("vllm", instances, words, env)
    files |= {f"workers/{one.name}.yaml": _config(deployment, one) for one in instances}
    for number, host in enumerate(hosts_of(instances)):
        files[f"compose/{host.name}.yaml"] = _compose(deployment, instances, host, None if number else router)
    return files


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
    return span_words(one.pool, Raw(f'"{one.hosts[0].address}"'), one.port) + place_words(one.pool, rank)


def _router_service(command: list[str]) -> dict[str, Any]:
    start = f"pip install -q {facts.fact('router', 'vllm')} && exec vllm-router"
    words = ["sh", "-c", Raw(f'"{" ".join([start, *map(unquoted, command)])}"')]
    return {"image": "python:3.12-slim", "command": words, "volumes": [], "env": []}


def _gateway_service(instances: tuple[Instance, ...]) -> dict[str, Any]:
    """HAProxy, which finds every address in its environment."""
    return {
        "image": facts.fact("gateway", "image"),
        "command": GATEWAY_COMMAND,
        "volumes": [GATEWAY_MOUNT],
        "env": [(host.variable, Raw(f'"{host.address}"')) for host in hosts_of(instances)],
    }


def _compose(deployment: Deployment, instances: tuple[Instance, ...], host: Host, router: dict[str, Any] | None) -> str:
    """The engines of one host, and the router if it is given."""
    weights = deployment.weights
    services = [_service(deployment, one, one.hosts.index(host), host) for one in instances if host in one.hosts]
    return render(
        "compose/vllm.yaml",
        project=deployment.name,
        services=services,
        awaited={one["name"]: {"condition": "service_healthy"} for one in services if one["port"]},
        router=router,
        folder=compose_text(weights) if weights.startswith("/") else None,
        rdma=deployment.leaves_nodes and len(hosts_of(instances)) > 1,
        checks=facts.fact("startup_seconds") // 10,
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
