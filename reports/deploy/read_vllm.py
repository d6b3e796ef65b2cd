"""What the files of the plain vLLM target start, read back from configs, scripts, the router's command and compose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.errors import InputError

from .description import Deployment
from .flags_vllm import TRANSFER, role_of_transfer, vllm_settings
from .found import Found, FoundWorker, Words, json_object, words_of
from .gateway_file import read_gateway
from .lint_compose import ROUTER
from .manifests import load_yaml
from .placement import Host, Instance, hosts_of, place
from .plain import check_hosts, gpu_count, host_line, read_command, read_router, scripts_of
from .target_vllm import SPLIT, unquoted, worker_env

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
    """The compose file of every host, each with the host's engines, their GPUs and their config files."""
    instances, loaded = place(deployment), {}
    for host in hosts_of(instances):
        path = f"compose/{host.name}.yaml"
        if path not in files:
            raise InputError(f"{path} is missing, and with it the containers of {host.name}")
        loaded[path] = load_yaml(path, files[path])
        services = {name: one for name, one in loaded[path]["services"].items() if name != ROUTER}
        expected = {f"/workers/{one.name}.yaml": one for one in instances if host in one.hosts}
        for name, service in services.items():
            one = expected.pop(_config_of(path, name, service), None)
            if one is None:
                raise InputError(f"{path}: service {name} starts no engine of this host")
            _check_service(f"{path}: service {name}", service, one, host, deployment)
        if expected:
            raise InputError(f"{path}: no service starts {next(iter(expected))}")
    return loaded


def _config_of(path: str, name: str, service: Mapping[str, Any]) -> str:
    command = [str(word) for word in service.get("command") or []]
    if command[:1] != ["--config"] or len(command) < 2:
        raise InputError(f"{path}: service {name} has no --config")
    return command[1]


def _check_service(where: str, service: Mapping[str, Any], one: Instance, host: Host, deployment: Deployment) -> None:
    for name, value in (("network_mode", "host"), ("ipc", "host"), ("entrypoint", ["vllm", "serve"])):
        if service.get(name) != value:
            raise InputError(f"{where}: {name} is {service.get(name)}, not {value}")
    for name in ("image", "volumes"):
        if not service.get(name):
            raise InputError(f"{where} has no {name}")
    devices = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    if devices != [str(gpu) for gpu in one.gpus]:
        raise InputError(f"{where} has GPUs {', '.join(devices)}, not {', '.join(map(str, one.gpus))}")
    expected = {name: unquoted(value) for name, value in worker_env(deployment, one, host)}
    env = service.get("environment") or {}
    for name, value in expected.items():
        if str(env.get(name)) != value:
            raise InputError(f"{where}: {name} is {env.get(name)}, not {value} as in its start script")
