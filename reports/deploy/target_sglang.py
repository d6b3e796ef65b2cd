"""Plain SGLang: a start script per engine, and the router's command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .description import Deployment
from .flags_sglang import MODE, sglang_settings, sglang_words
from .found import Found, FoundRouter, FoundWorker, words_of
from .placement import Host, Instance, place
from .read_vllm import check_hosts, host_line, urls_after
from .rendering import Raw, render
from .target_dynamo import plain_words
from .target_vllm import HOSTS_FILE, ROUTER_FILE, hosts_file, router_policy, script_name


def sglang_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)
    files = {
        HOSTS_FILE: hosts_file(instances),
        ROUTER_FILE: render(
            "sglang/router.sh",
            words=_router_words(deployment, instances),
            port=facts.fact("ports", "http"),
            package=Raw(facts.fact("router", "sglang")),
        ),
    }
    for one in instances:
        for rank, host in enumerate(one.hosts):
            files[f"workers/{script_name(one, rank)}"] = _script(deployment, one, rank, host)
    return files


def _script(deployment: Deployment, one: Instance, rank: int, host: Host) -> str:
    words = [*plain_words(sglang_words(deployment, one.pool)), "--host", "0.0.0.0", "--port", str(one.port("worker"))]  # noqa: S104
    if one.pool.role is Role.PREFILL:
        words += ["--disaggregation-bootstrap-port", str(one.port("bootstrap"))]
    if len(one.hosts) > 1:
        head = Raw(f'"{one.hosts[0].address}:{one.port("nccl")}"')
        words += ["--nnodes", str(len(one.hosts)), "--node-rank", str(rank), "--dist-init-addr", head]
    env = [(Raw("CUDA_VISIBLE_DEVICES"), ",".join(map(str, one.gpus)))]
    if deployment.disaggregated:
        env.append((Raw("UCX_TLS"), facts.fact("ucx", "hosts")))
    return render("sglang/worker.sh", variable=Raw(host.variable), env=env, words=words)


def _router_words(deployment: Deployment, instances: Iterable[Instance]) -> list[str]:
    words = ["--host", "0.0.0.0", "--port", str(facts.fact("ports", "http"))]  # noqa: S104
    words += ["--policy", router_policy(deployment)]
    if not deployment.disaggregated:
        return [*words, "--worker-urls", *(_url(one) for one in instances)]
    words.append("--pd-disaggregation")
    for one in instances:
        words += [f"--{one.pool.role.value}", _url(one)]
        if one.pool.role is Role.PREFILL:
            words.append(str(one.port("bootstrap")))
    return words


def _url(one: Instance) -> Raw:
    return Raw(f'"http://{one.hosts[0].address}:{one.port("worker")}"')


def read_sglang(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """What the scripts start, and who the router sends requests to."""
    check_hosts(files)
    stems = sorted({re.sub(r"(\.node[0-9]+)?\.sh$", "", path) for path in files if path.startswith("workers/")})
    workers = tuple(_read_worker(deployment, files, stem) for stem in stems)
    return Found(workers, _read_router(files.get(ROUTER_FILE, "")))


def _read_worker(deployment: Deployment, files: Mapping[str, str], stem: str) -> FoundWorker:
    scripts = [path for path in sorted(files) if re.fullmatch(rf"{re.escape(stem)}(\.node[0-9]+)?\.sh", path)]
    where, name = scripts[0], stem.removeprefix("workers/")
    env, command = read_command(where, files[where], ["python3", "-m", "sglang.launch_server"])
    words = words_of(where, command)
    values, pool = dict(words), deployment.pool(name.rpartition("-")[0])
    if pool is None:
        raise InputError(f"{where}: the plan has no pool of this name")
    ports = [values.get("--port"), values.get("--disaggregation-bootstrap-port")]
    role = values.get(MODE) or Role.COLOCATED.value
    transfer = {"kv_connector": values.get("--disaggregation-transfer-backend")} if MODE in values else None
    return FoundWorker(
        where=where,
        pool=pool.name,
        role=role,
        weights=str(values.get("--model-path")),
        replicas=1,
        nodes=len(scripts),
        node_gpus=len([gpu for gpu in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]),
        words=words,
        settings=sglang_settings(where, words, pool.memory),
        transfer=transfer,
        env=env,
        addresses=tuple((host_line(files[where]), int(port)) for port in ports if port and port.isdigit()),
    )


def read_command(where: str, text: str, program: list[str]) -> tuple[dict[str, str], list[str]]:
    """Environment and command line of a start script, without the program."""
    env, command = {}, []
    for line in text.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = "".join(shlex.split(value))
        elif line.startswith("exec "):
            command = shlex.split(line)[1:]
    if command[: len(program)] != program:
        raise InputError(f"{where} does not start {' '.join(program)}")
    return env, command[len(program) :]


def _read_router(text: str) -> FoundRouter | None:
    if not text:
        return None
    _, command = read_command(ROUTER_FILE, text, ["python3", "-m", "sglang_router.launch_router"])
    urls = {role.value: _only_urls(urls_after(command, f"--{role.value}")) for role in (Role.PREFILL, Role.DECODE)}
    urls[Role.COLOCATED.value] = urls_after(command, "--worker-urls")
    return FoundRouter(ROUTER_FILE, "--pd-disaggregation" in command, urls)


def _only_urls(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without the bootstrap ports that follow prefill URLs."""
    return tuple(word for word in words if "://" in word)
