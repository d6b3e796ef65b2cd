"""Plain vLLM: a config file and start scripts per engine, the router's command, and a docker compose file per host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from costmodel.errors import InputError
from costmodel.quoting import shown

from . import facts
from .deployment import Deployment
from .flags import TRANSFER, place_words, role_of_transfer, span_words, vllm_settings, vllm_words
from .formats import Raw, compose_text, dig, load_yaml, render
from .gateway import gateway_files, read_gateway
from .hosts import (
    ROUTER_FILE,
    SLURM_FILE,
    Host,
    Instance,
    check_hosts,
    device_env,
    gpu_count,
    host_line,
    hosts_of,
    place,
    read_command,
    read_router,
    router_file,
    router_hosts,
    router_words,
    script_files,
    scripts_of,
    slurm_file,
)
from .readback import Found, FoundRouter, FoundWorker, Gateway, Words, json_object, words_of

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
    files |= script_files("vllm", instances, words, env) | {SLURM_FILE: slurm_file(deployment, instances)}
    files |= {f"workers/{one.name}.yaml": _config(deployment, one) for one in instances}
    for host in hosts_of(instances):
        here = router if host in router_hosts(instances) else None
        files[f"compose/{host.name}.yaml"] = _compose(deployment, instances, host, here)
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
    words = ["vllm-router", *(Raw(f'"{unquoted(word)}"') for word in command)]
    return {"image": facts.fact("router_image"), "command": words, "volumes": [], "env": []}


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
        grace=Raw(f"{deployment.drain_seconds + facts.fact('exit_seconds')}s"),
    )


def _service(deployment: Deployment, one: Instance, rank: int, host: Host) -> dict[str, Any]:
    options = deployment.options
    words = [Raw(f'"{unquoted(word)}"') for word in _node_words(one, rank)]
    port, amd = one.port("worker") if rank == 0 else 0, one.pool.vendor == "amd"
    return {
        "name": f"{one.name}-{rank}" if len(one.hosts) > 1 else one.name,
        "image": compose_text(options.image or facts.image("vllm", options.version, "vllm", one.pool.vendor)),
        "command": ["--config", f"/workers/{one.name}.yaml", *words],
        "env": [
            (name, Raw(f'"{unquoted(value)}"'))
            for name, value in [*(device_env(one, "vllm") if amd else []), *worker_env(deployment, one, host)]
        ],
        "amd": amd,
        "gpus": [str(gpu) for gpu in one.gpus],
        "port": port,
        "health": f"http://127.0.0.1:{port}/health",
    }


def unquoted(word: str) -> str:
    """A word of ours for another format: the shell's quotes around a variable are not its own."""
    return word.replace('"', "") if isinstance(word, Raw) else word


CONFIG: Final = re.compile(r"workers/[^/]+\.yaml")


def read_vllm(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """What the files start, read from the config files, the scripts and the router's command."""
    scripts = scripts_of(files)
    configs = {path[len("workers/") : -len(".yaml")]: path for path in sorted(files) if CONFIG.fullmatch(path)}
    workers = tuple(_read_worker(deployment, files, path, scripts.get(name, [])) for name, path in configs.items())
    check_hosts(files)
    router = read_gateway(files) if deployment.parted else read_router(files, ["vllm-router"], SPLIT)
    return Found(workers, router, containers=_read_compose(deployment, files))


def _read_worker(deployment: Deployment, files: Mapping[str, str], path: str, scripts: list[str]) -> FoundWorker:
    words = _config_words(path, files[path])
    values = dict(words)
    if not scripts:
        raise InputError(f"{path}: there is no script that starts it")
    starts = [_read_script(script, files[script], path.removeprefix("workers/")) for script in scripts]
    env, extra = starts[0]
    transfer = json_object(f"{path}: {TRANSFER}", str(values[TRANSFER])) if values.get(TRANSFER) else None
    host = host_line(files[scripts[0]])
    ports = [int(values["--port"] or 0)] if "--port" in values else []
    side = env.get("VLLM_NIXL_SIDE_CHANNEL_PORT")
    settings = vllm_settings(deployment, path, words)
    ports += [int(side) + rank for rank in range(settings.data)] if side and side.isdigit() else []
    return FoundWorker(
        where=path,
        pool=path[len("workers/") : -len(".yaml")].rpartition("-")[0],
        role=role_of_transfer(transfer),
        weights=str(values.get("--model")),
        replicas=1,
        nodes=len(scripts),
        node_gpus=gpu_count(env),
        words=(*words, *words_of(scripts[0], extra)),
        settings=settings,
        transfer=transfer,
        env=env,
        addresses=tuple((host, port) for port in ports),
    )


def _read_script(path: str, text: str, config: str) -> tuple[dict[str, str], list[str]]:
    """Environment of a start script, and what it says besides its config file, whose name is `config`."""
    env, words = read_command(path, text, ["vllm", "serve"])
    if words[:1] != ["--config"] or words[1:2] != [f"$here/{config}"]:
        raise InputError(f"{path} does not start its engine with its own config file")
    return env, words[2:]


def _config_words(path: str, text: str) -> Words:
    """A config file as the flags that vLLM makes of it."""
    loaded = load_yaml(path, text)
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds no options")
    return tuple((f"--{name}", None if value is True else str(value)) for name, value in loaded.items())


def _read_compose(deployment: Deployment, files: Mapping[str, str]) -> dict[str, Any]:
    """The compose file of every host."""
    loaded = {}
    for host in hosts_of(place(deployment)):
        path = f"compose/{host.name}.yaml"
        if path not in files:
            raise InputError(f"{path} is missing, and with it the containers of {host.name}")
        loaded[path] = load_yaml(path, files[path])
    return loaded


ROUTER: Final = "router"
"""Name of the router's service."""
RESTART: Final = "unless-stopped"
GATEWAY_COMMAND: Final = ("haproxy", "-f", "/router.cfg")
GATEWAY_MOUNT: Final = "../router.cfg:/router.cfg:ro"
_PLACE: Final = re.compile(r"[./~$]")
"""How the source of a volume begins that is a folder of the host, not a volume of a name."""


def containers_fit_together(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """Containers wait for what is there, mount what is declared, and are asked for their health where they listen."""
    ports = {one.where: {port for _, port in one.addresses} for one in found.workers}
    for number, (path, loaded) in enumerate(found.containers.items()):
        services: Mapping[str, Any] = loaded["services"]
        yield from _routes(path, services.get(ROUTER), found.router if number < facts.fact("routers") else None)
        declared = loaded.get("volumes") or {}
        for name, service in services.items():
            where = f"{path}: service {name}"
            yield from _waits(where, service, services)
            yield from _mounts(where, service, declared)
            yield from _asked(where, service, ports)
            if service.get("restart") != RESTART:
                yield f"{where} is not started again when it ends (restart: {RESTART})"
            if service.get("ports"):
                yield f"{where} publishes ports, which a container in the host's own network does not"


def _routes(path: str, service: Mapping[str, Any] | None, router: FoundRouter | None) -> Iterator[str]:
    """The first two hosts have the router, told what its script says; no other host has one."""
    if service is None and router is not None:
        yield f"{path}: the router is missing"
    elif service is not None and router is None:
        yield f"{path}: a router is started here too"
    elif service is not None and router is not None and router.gateway is not None:
        yield from _gateway(path, service, router.gateway)
    elif service is not None and router is not None:
        words = [str(word) for word in service.get("command") or []]
        if words != ["vllm-router", *router.command] or service.get("network_mode") != "host":
            yield f"{path}: the router is not started as in {router.where}, in the host's network"


def _gateway(path: str, service: Mapping[str, Any], gateway: Gateway) -> Iterator[str]:
    """HAProxy reads the file that the script gives it, and finds every address in its environment."""
    if tuple(service.get("command") or ()) != GATEWAY_COMMAND or service.get("network_mode") != "host":
        yield f"{path}: the router is not started with {' '.join(GATEWAY_COMMAND)}, in the host's network"
    if GATEWAY_MOUNT not in (service.get("volumes") or []):
        yield f"{path}: the router does not mount {GATEWAY_MOUNT}"
    told = service.get("environment") or {}
    for address in sorted(
        {address.rpartition(":")[0] for addresses in gateway.backends.values() for address in addresses}
    ):
        name = address.removeprefix("${").removesuffix("}")
        if told.get(name) != address:
            yield f"{path}: the router is not told the address {name}"


def _waits(where: str, service: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[str]:
    waited = service.get("depends_on") or {}
    for other in waited:
        condition = dig(waited, other, "condition") or "service_started"
        if other not in services:
            yield f"{where} waits for {other}, which is no service of this file"
        elif condition == "service_healthy" and not services[other].get("healthcheck"):
            yield f"{where} waits until {other} is healthy, which nobody checks"


def _mounts(where: str, service: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterator[str]:
    for volume in service.get("volumes") or []:
        source = str(volume.get("source")) if isinstance(volume, Mapping) else str(volume).partition(":")[0]
        if _PLACE.match(source) is None and source not in declared:
            yield f"{where} mounts the volume {shown(source)}, which the file does not declare"


def _asked(where: str, service: Mapping[str, Any], ports: Mapping[str, set[int]]) -> Iterator[str]:
    """An engine is asked for its health where it listens."""
    test = dig(service, "healthcheck", "test")
    asked = re.search(r"://[^/]+:([0-9]+)/", str(test))
    config = str((service.get("command") or ["", ""])[1]).removeprefix("/")
    if test and config in ports and (asked is None or int(asked[1]) not in ports[config]):
        yield f"{where} is asked for its health on port {asked[1] if asked else '(none)'}, where its engine is not"
