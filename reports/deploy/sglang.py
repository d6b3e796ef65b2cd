"""Plain SGLang: a start script per engine, and the router's command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .deployment import Deployment
from .flags import MODE, sglang_settings, sglang_words
from .formats import Raw
from .gateway import gateway_files, read_gateway
from .hosts import (
    ROUTER_FILE,
    SLURM_FILE,
    Host,
    Instance,
    check_hosts,
    gpu_count,
    host_line,
    place,
    read_command,
    read_router,
    router_file,
    router_words,
    script_files,
    scripts_of,
    slurm_file,
)
from .readback import Found, FoundWorker, plain_words, words_of

SPLIT: Final = "--pd-disaggregation"
BOOTSTRAP: Final = "--disaggregation-bootstrap-port"


def sglang_files(deployment: Deployment) -> dict[str, str]:
    """Every file of the target by its path in the chosen directory."""
    instances = place(deployment)

    def words(one: Instance, rank: int) -> list[str]:
        return _words(deployment, one, rank)

    def env(_one: Instance, _host: Host) -> list[tuple[str, str]]:
        return [("UCX_TLS", facts.fact("ucx", "hosts"))] if deployment.disaggregated else []

    files = script_files("sglang", instances, words, env) | {SLURM_FILE: slurm_file(deployment, instances)}
    if deployment.parted:
        return {**gateway_files(deployment, instances), **files}
    router = router_file("sglang", router_words(deployment, instances, [SPLIT], bootstrap=True))
    return {ROUTER_FILE: router, **files}


def _words(deployment: Deployment, one: Instance, rank: int) -> list[str]:
    words = [*plain_words(sglang_words(deployment, one.pool)), "--host", "0.0.0.0", "--port", str(one.port("worker"))]  # noqa: S104
    if one.pool.role is Role.PREFILL:
        words += [BOOTSTRAP, str(one.port("bootstrap"))]
    if len(one.hosts) > 1:
        head = Raw(f'"{one.hosts[0].address}:{one.port("nccl")}"')
        words += ["--nnodes", str(len(one.hosts)), "--node-rank", str(rank), "--dist-init-addr", head]
    return words


def read_sglang(deployment: Deployment, files: Mapping[str, str]) -> Found:
    """What the scripts start, and who the router sends requests to."""
    check_hosts(files)
    workers = tuple(_read_worker(deployment, files, name, paths) for name, paths in scripts_of(files).items())
    if deployment.parted:
        return Found(workers, read_gateway(files))
    return Found(workers, read_router(files, ["python3", "-m", "sglang_router.launch_router"], SPLIT))


def _read_worker(deployment: Deployment, files: Mapping[str, str], name: str, scripts: list[str]) -> FoundWorker:
    where = scripts[0]
    env, command = read_command(where, files[where], ["python3", "-m", "sglang.launch_server"])
    words = words_of(where, command)
    values, pool = dict(words), deployment.pool(name.rpartition("-")[0])
    if pool is None:
        raise InputError(f"{where}: the plan has no pool of this name")
    ports = [values.get("--port"), values.get(BOOTSTRAP)]
    transfer = {"kv_connector": values.get("--disaggregation-transfer-backend")} if MODE in values else None
    return FoundWorker(
        where=where,
        pool=pool.name,
        role=values.get(MODE) or Role.COLOCATED.value,
        weights=str(values.get("--model-path")),
        replicas=1,
        nodes=len(scripts),
        node_gpus=gpu_count(env),
        words=words,
        settings=sglang_settings(where, words),
        transfer=transfer,
        env=env,
        addresses=tuple((host_line(files[where]), int(port)) for port in ports if port and port.isdigit()),
    )
