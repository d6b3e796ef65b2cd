"""Plain TensorRT-LLM: a config file and start script per engine, and the disaggregated server's configuration.

That server is the only router of trtllm-serve; before several engines that do both stages stands HAProxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .deployment import Deployment
from .flags import TRTLLM, trtllm_options, trtllm_settings
from .formats import Raw, dig, load_yaml, render
from .gateway import gateway_files, read_gateway
from .hosts import (
    HOSTS_FILE,
    ROUTER_FILE,
    Instance,
    check_hosts,
    device_env,
    gpu_count,
    hosts_file,
    hosts_of,
    place,
    read_command,
)
from .readback import Found, FoundRouter, FoundWorker

SPLIT_FILE: Final = "disagg_config.yaml"
BALANCES: Final = "load_balancing"
"""Who gets a request: the engine that has the fewest. By default engines take turns; chats are refused where it counts
tokens."""
OPTIONS: Final = frozenset(flag.name.partition(".")[0] for flag in TRTLLM)
"""Options of the LLM API that files may hold; the server refuses others."""


def trtllm_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)
    _check(instances)
    files: dict[str, str] = {}
    for one in instances:
        options = trtllm_options(deployment, one.pool)
        files[f"workers/{one.name}.yaml"] = render("trtllm/worker.yaml", options=list(options.items()))
        files[f"workers/{one.name}.sh"] = _script(deployment, one, instances)
    if deployment.disaggregated:
        files[SPLIT_FILE] = _split(deployment, instances)
        files[ROUTER_FILE] = render("trtllm/router.sh", port=facts.fact("ports", "http"))
    if deployment.behind_gateway:
        files |= {HOSTS_FILE: hosts_file(instances), **gateway_files(deployment, instances)}
    return files


def _check(instances: tuple[Instance, ...]) -> None:
    for one in instances:
        if len(one.hosts) > 1:
            raise InputError(
                f"pool {one.pool.id}: an engine of {one.pool.settings.gpus} GPUs spans {len(one.hosts)} hosts, which "
                "trtllm-serve starts only under MPI"
            )


def _host(deployment: Deployment, one: Instance, instances: tuple[Instance, ...]) -> str:
    """The host that an engine stands on: its name, or for HAProxy what hosts.env calls it."""
    if deployment.behind_gateway:
        return one.hosts[0].variable
    return "localhost" if len(hosts_of(instances)) == 1 else one.hosts[0].name


def _port(deployment: Deployment, one: Instance) -> int:
    """A single engine takes the port that clients know; behind a router engines have their own."""
    routed = deployment.disaggregated or deployment.behind_gateway
    return one.port("worker") if routed else int(facts.fact("ports", "http"))


def _split(deployment: Deployment, instances: tuple[Instance, ...]) -> str:
    urls: dict[Role, list[str]] = {Role.PREFILL: [], Role.DECODE: []}
    for one in instances:
        urls[one.pool.role].append(f"{_host(deployment, one, instances)}:{_port(deployment, one)}")
    return render(
        "trtllm/disagg_config.yaml",
        port=facts.fact("ports", "http"),
        context=urls[Role.PREFILL],
        generation=urls[Role.DECODE],
        router=BALANCES,
    )


def _script(deployment: Deployment, one: Instance, instances: tuple[Instance, ...]) -> str:
    env = [(Raw(name), value) for name, value in device_env(one, "trtllm")]
    if deployment.disaggregated:
        env.append((Raw("UCX_TLS"), facts.fact("ucx", "hosts")))
    words = ["serve", deployment.weights, "--host", "0.0.0.0", "--port", str(_port(deployment, one))]  # noqa: S104
    return render(
        "trtllm/worker.sh",
        host=Raw(_host(deployment, one, instances)),
        env=env,
        words=words,
        config=f"{one.name}.yaml",
    )


def read_trtllm(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """What the scripts start, and how the disaggregated server splits requests."""
    paths = [path for path in sorted(files) if re.fullmatch(r"workers/[^/]+\.yaml", path)]
    workers = tuple(_read_worker(deployment, files, path) for path in paths)
    addresses = tuple(f"{host}:{port}" for one in workers for host, port in one.addresses)
    if deployment.behind_gateway:
        check_hosts(files)
        return Found(workers, read_gateway(files))
    return Found(workers, _read_split(deployment, files, addresses))


def _read_worker(deployment: Deployment, files: Mapping[str, str], path: str) -> FoundWorker:
    script = path.removesuffix(".yaml") + ".sh"
    env, command = read_command(script, files.get(script, ""), ["trtllm-serve", "serve"])
    stem = path.removeprefix("workers/").removesuffix(".yaml")
    if command[-2:-1] != ["--config"] or not command[-1].endswith(f"/{stem}.yaml"):
        raise InputError(f"{script}: it does not start its engine with {path}")
    options, pool = load_yaml(path, files[path]), deployment.pool(stem.rpartition("-")[0])
    if pool is None:
        raise InputError(f"{path}: the plan has no pool of this name")
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise InputError(f"{path}: {unknown[0]} is no option of TensorRT-LLM {deployment.engine_version} that is known")
    _check_server(path, options, pool.settings.max_model_len)
    host = re.search(r"of host ([A-Za-z0-9_-]+)\.", files[script])
    port = command[command.index("--port") + 1] if "--port" in command else ""
    return FoundWorker(
        where=path,
        pool=pool.name,
        role=_role(path, options),
        weights=command[0],
        replicas=1,
        nodes=1,
        node_gpus=gpu_count(env),
        words=(),
        settings=trtllm_settings(deployment, path, options),
        transfer=options.get("cache_transceiver_config"),
        env=env,
        addresses=((host[1] if host else "?", int(port)),) if port.isdigit() else (),
    )


def _role(path: str, options: Mapping[str, Any]) -> str:
    """A context server may not overlap steps, a generation server may; without a transceiver an engine does both."""
    if "cache_transceiver_config" not in options:
        return Role.COLOCATED.value
    if dig(options, "cache_transceiver_config", "backend") != "NIXL":
        raise InputError(f"{path}: cache_transceiver_config has another backend than NIXL")
    return Role.PREFILL.value if options.get("disable_overlap_scheduler") is True else Role.DECODE.value


def _check_server(path: str, options: Mapping[str, Any], longest: int) -> None:
    buffer = dig(options, "cache_transceiver_config", "max_tokens_in_buffer")
    if buffer is not None and buffer < longest:
        raise InputError(f"{path}: max_tokens_in_buffer {buffer} is below the longest request of {longest} tokens")


def _read_split(deployment: Deployment, files: Mapping[str, str], addresses: tuple[str, ...]) -> FoundRouter | None:
    if not deployment.disaggregated:
        return FoundRouter("the engine itself", splits=False, targets={Role.COLOCATED.value: addresses})
    if SPLIT_FILE not in files or ROUTER_FILE not in files:
        return None
    read_command(ROUTER_FILE, files[ROUTER_FILE], ["trtllm-serve", "disaggregated", "-c", f"$here/{SPLIT_FILE}"])
    loaded = load_yaml(SPLIT_FILE, files[SPLIT_FILE])
    urls = {}
    for section, role in (("context_servers", Role.PREFILL), ("generation_servers", Role.DECODE)):
        found = dig(loaded, section, "urls") or []
        if dig(loaded, section, "num_instances") != len(found):
            raise InputError(f"{SPLIT_FILE}: num_instances of {section} is not the number of its urls")
        if dig(loaded, section, "router", "type") != BALANCES:
            raise InputError(
                f"{SPLIT_FILE}: router of {section} is not {BALANCES}, so requests are not sent as simulated"
            )
        urls[role.value] = tuple(str(url) for url in found)
    return FoundRouter(SPLIT_FILE, splits=True, targets=urls)
