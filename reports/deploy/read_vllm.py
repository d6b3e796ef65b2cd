"""What the files of the plain vLLM target start, read back from configs, scripts, the router's command and compose."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from costmodel.engine import Role
from costmodel.errors import InputError

from .description import Deployment
from .flags_vllm import TRANSFER, role_of_transfer, vllm_settings
from .found import Found, FoundRouter, FoundWorker, Words, json_object, words_of
from .manifests import load_yaml
from .placement import Instance, place
from .target_vllm import HOSTS_FILE, ROUTER_FILE, unquoted, worker_env


def read_vllm(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """What the files start, read from the config files, the scripts and the router's command."""
    workers = [
        _read_worker(deployment, files, path) for path in sorted(files) if re.fullmatch(r"workers/[^/]+\.yaml", path)
    ]
    check_hosts(files)
    _check_compose(deployment, files)
    return Found(workers=tuple(workers), router=read_router(files.get(ROUTER_FILE, "")))


def check_hosts(files: Mapping[str, str]) -> None:
    """Every host that a script names has an address, and every script that names one reads the addresses."""
    known = set(re.findall(r"^(HOST_[A-Z0-9_]+)=.", files.get(HOSTS_FILE, ""), flags=re.MULTILINE))
    for path in sorted(files):
        for name in re.findall(r"\$\{(HOST_[A-Z0-9_]+)\}", files[path]):
            if name not in known:
                raise InputError(f"{path}: {name} has no address in {HOSTS_FILE}")
            if path.endswith(".sh") and f'{HOSTS_FILE}"' not in files[path]:
                raise InputError(f"{path}: it does not read {HOSTS_FILE}")


def _read_worker(deployment: Deployment, files: Mapping[str, str], path: str) -> FoundWorker:
    words = _config_words(path, files[path])
    values = dict(words)
    stem = path.removeprefix("workers/").removesuffix(".yaml")
    scripts = [name for name in sorted(files) if re.fullmatch(rf"workers/{re.escape(stem)}(\.node[0-9]+)?\.sh", name)]
    if not scripts:
        raise InputError(f"{path}: there is no script that starts it")
    for script in scripts:
        read_script(script, files[script], f"/{stem}.yaml")
    env, extra = read_script(scripts[0], files[scripts[0]], f"/{stem}.yaml")
    transfer = json_object(f"{path}: {TRANSFER}", str(values[TRANSFER])) if values.get(TRANSFER) else None
    gpus = env.get("CUDA_VISIBLE_DEVICES", "")
    host = host_line(files[scripts[0]])
    ports = [int(values["--port"] or 0)] if "--port" in values else []
    side = env.get("VLLM_NIXL_SIDE_CHANNEL_PORT")
    settings = vllm_settings(deployment, path, words)
    ports += [int(side) + rank for rank in range(settings.data)] if side and side.isdigit() else []
    return FoundWorker(
        where=path,
        pool=stem.rpartition("-")[0],
        role=role_of_transfer(transfer),
        weights=str(values.get("--model")),
        replicas=1,
        nodes=len(scripts),
        node_gpus=len(gpus.split(",")) if gpus else 0,
        words=(*words, *words_of(scripts[0], extra)),
        settings=settings,
        transfer=transfer,
        env=env,
        addresses=tuple((host, port) for port in ports),
    )


def _config_words(path: str, text: str) -> Words:
    """A config file as the flags that vLLM makes of it."""
    loaded = load_yaml(path, text)
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds no options")
    return tuple((f"--{name}", None if value is True else str(value)) for name, value in loaded.items())


def read_script(path: str, text: str, config: str) -> tuple[dict[str, str], list[str]]:
    """Environment and command line of a start script, without the program and its --config.

    config: how the name of the config file must end.
    """
    env, command = {}, []
    for line in text.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = "".join(shlex.split(value))
        elif line.startswith("exec "):
            command = shlex.split(line)
    if command[:3] != ["exec", "vllm", "serve"] or "--config" not in command:
        raise InputError(f"{path} does not start vllm serve with a config file")
    rest = command[command.index("--config") + 1 :]
    if not rest or not rest[0].endswith(config):
        raise InputError(f"{path} does not start its engine with its own config file")
    return env, rest[1:]


def host_line(text: str) -> str:
    """The host that a start script is for."""
    found = re.search(r"hosts\.env names (HOST_[A-Z0-9_]+)\.", text)
    return found[1] if found else "?"


def read_router(text: str) -> FoundRouter | None:
    """Who the router's command sends requests to."""
    line = next((line for line in text.splitlines() if line.startswith("exec ")), None)
    if line is None:
        return None
    command = shlex.split(line)[2:]
    urls = {role.value: urls_after(command, f"--{role.value}") for role in (Role.PREFILL, Role.DECODE)}
    urls[Role.COLOCATED.value] = urls_after(command, "--worker-urls")
    return FoundRouter(
        ROUTER_FILE, "--vllm-pd-disaggregation" in command, urls, tuple((word, None) for word in command)
    )


def urls_after(words: list[str], flag: str) -> tuple[str, ...]:
    """Every URL that follows a flag."""
    found, inside = [], False
    for word in words:
        if word.startswith("--"):
            inside = word == flag
        elif inside:
            found.append(word)
    return tuple(found)


def _check_compose(deployment: Deployment, files: Mapping[str, str]) -> None:
    """Every engine is in the compose file of each of its hosts, with its GPUs and its own config file."""
    for path in sorted(files):
        if not path.startswith("compose/"):
            continue
        host = path.removeprefix("compose/").removesuffix(".yaml")
        services = (load_yaml(path, files[path]) or {}).get("services", {})
        expected = {
            f"/workers/{one.name}.yaml": (one, rank)
            for one in place(deployment)
            for rank, place_ in enumerate(one.hosts)
            if place_.name == host
        }
        for name, service in services.items():
            if name == "router":
                continue
            one, _rank = expected.pop(_config_of(path, name, service), (None, 0))
            if one is None:
                raise InputError(f"{path}: service {name} starts no engine of this host")
            _check_service(f"{path}: service {name}", service, one, deployment)
        if expected:
            raise InputError(f"{path}: no service starts {next(iter(expected))}")


def _config_of(path: str, name: str, service: Mapping[str, Any]) -> str:
    command = [str(word) for word in service.get("command") or []]
    if command[:1] != ["--config"] or len(command) < 2:
        raise InputError(f"{path}: service {name} has no --config")
    return command[1]


def _check_service(where: str, service: Mapping[str, Any], one: Instance, deployment: Deployment) -> None:
    for name, value in (("network_mode", "host"), ("ipc", "host"), ("entrypoint", ["vllm", "serve"])):
        if service.get(name) != value:
            raise InputError(f"{where}: {name} is {service.get(name)}, not {value}")
    for name in ("image", "volumes"):
        if not service.get(name):
            raise InputError(f"{where} has no {name}")
    devices = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    if devices != [str(gpu) for gpu in one.gpus]:
        raise InputError(f"{where} has GPUs {', '.join(devices)}, not {', '.join(map(str, one.gpus))}")
    expected = {name: unquoted(value) for name, value in worker_env(deployment, one, one.hosts[0])}
    env = service.get("environment") or {}
    for name, value in expected.items():
        if str(env.get(name)) != value and len(one.hosts) == 1:
            raise InputError(f"{where}: {name} is {env.get(name)}, not {value} as in its start script")
