"""Targets without a scheduler: which engine stands on which GPUs of which host, start scripts, and the router."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.engine import Role
from costmodel.errors import InputError

from . import facts
from .deployment import DeployedPool, Deployment
from .formats import Raw, render
from .readback import FoundRouter, Words


@dataclass(frozen=True, slots=True)
class Host:
    """A server of one accelerator type; its address stands in hosts.env under `variable`."""

    name: str

    @property
    def variable(self) -> str:
        """Name of the shell variable that holds the address."""
        return "HOST_" + re.sub(r"[^A-Z0-9]", "_", self.name.upper())

    @property
    def address(self) -> Raw:
        """The address as the shell, and docker compose, expand it."""
        return Raw(f"${{{self.variable}}}")


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine: replica `number` of its pool on its hosts, which all give it the same GPUs.

    slot: how many engines stand on its first host before it; rank: data ranks of those engines.
    """

    pool: DeployedPool
    number: int
    hosts: tuple[Host, ...]
    gpus: tuple[int, ...]
    slot: int
    rank: int

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.pool.name}-{self.number}"

    def port(self, kind: str) -> int:
        """Its port of a kind, different from those of its neighbours on a host."""
        if kind == "side_channel":  # engines take one for each data rank, counted up from here
            return int(facts.fact("ports", kind)) + self.rank
        return int(facts.fact("ports", kind)) + self.slot * int(facts.fact("port_step"))


def place(deployment: Deployment) -> tuple[Instance, ...]:
    """Put the engines on hosts, in the plan's order: the first host of the type with enough free GPUs."""
    hosts: dict[str, list[_Room]] = {}
    placed: list[Instance] = []
    for pool in deployment.pools:
        for number in range(pool.replicas):
            rooms = _rooms(hosts.setdefault(pool.accelerator, []), pool)
            first = rooms[0]
            placed.append(
                Instance(
                    pool=pool,
                    number=number,
                    hosts=tuple(Host(room.name) for room in rooms),
                    gpus=tuple(range(first.used, first.used + pool.node_gpus)),
                    slot=first.engines,
                    rank=first.ranks,
                )
            )
            for room in rooms:
                room.used += pool.node_gpus
                room.engines += 1
                room.ranks += pool.settings.data
    return tuple(placed)


def hosts_of(instances: tuple[Instance, ...]) -> tuple[Host, ...]:
    """Every host once, in the order of its first engine."""
    return tuple(dict.fromkeys(host for one in instances for host in one.hosts))


@dataclass(slots=True)
class _Room:
    name: str
    size: int
    used: int = 0
    engines: int = 0
    ranks: int = 0


def _rooms(known: list[_Room], pool: DeployedPool) -> list[_Room]:
    """Hosts with room for one more engine; new ones are added to `known`."""
    if pool.nodes == 1:
        for room in known:
            if room.size - room.used >= pool.node_gpus:
                return [room]
    fresh = [_Room(name, pool.node_size) for name in _names(pool, len(known), pool.nodes)]
    known.extend(fresh)
    return fresh


def _names(pool: DeployedPool, start: int, count: int) -> Iterator[str]:
    stem = re.sub(r"[^a-z0-9]+", "-", pool.accelerator.lower()).strip("-") or "gpu"
    return (f"{stem}-{number}" for number in range(start, start + count))


ROUTER_FILE: Final = "router.sh"
SLURM_FILE: Final = "slurm.sh"
HOSTS_FILE: Final = "hosts.env"
SCRIPT: Final = re.compile(r"workers/([^/]+?)(\.node[0-9]+)?\.sh")
"""A start script: name of the engine, and which of its hosts it is for if there are several."""
BALANCES: Final = "cache_aware"
"""Policy of both routers that sends to the engine with the fewest requests once loads differ by more than a threshold.

Their power_of_two compares loads that are not always counted: that of vllm-router 0.1.17 sends to prefill and decode
engines, and that of SGLang's router 0.3.2 to colocated ones, at random.
"""


def device_env(instance: Instance, engine: str) -> list[tuple[str, str]]:
    """Which GPUs of its host an engine sees, and what its vendor's kernels want to be told."""
    vendor = facts.fact("vendors", instance.pool.vendor)
    return [(vendor["visible"], ",".join(map(str, instance.gpus))), *vendor["env"][engine].items()]


def seen_gpus(env: Mapping[str, str]) -> list[str]:
    """GPUs that an engine sees by its environment."""
    names = [vendor["visible"] for vendor in facts.fact("vendors").values()]
    return [gpu for name in names for gpu in env.get(name, "").split(",") if gpu]


def script_files(
    engine: str,
    instances: tuple[Instance, ...],
    words: Callable[[Instance, int], Sequence[str]],
    env: Callable[[Instance, Host], Sequence[tuple[str, str]]],
) -> dict[str, str]:
    """The addresses of all hosts, and a start script per engine and host.

    words: of the command line of an engine on its host of that number; env: environment there, besides its GPUs.
    """
    files = {HOSTS_FILE: hosts_file(instances)}
    for one in instances:
        gpus = [(Raw(name), value) for name, value in device_env(one, engine)]
        for rank, host in enumerate(one.hosts):
            files[f"workers/{_script_name(one, rank)}"] = render(
                f"{engine}/worker.sh",
                variable=Raw(host.variable),
                env=gpus + [(Raw(name), value) for name, value in env(one, host)],
                words=words(one, rank),
            )
    return files


def slurm_file(deployment: Deployment, instances: tuple[Instance, ...]) -> str:
    """One job of Slurm that starts everything: a component of the job for each GPU type, a node of it for each host."""
    hosts = hosts_of(instances)
    types = {host: one.pool for one in instances for host in one.hosts}
    groups = list(dict.fromkeys(pool.accelerator for pool in types.values()))
    place_of: dict[Host, tuple[int, int]] = {}
    for host in hosts:
        group = groups.index(types[host].accelerator)
        place_of[host] = (group, sum(place[0] == group for place in place_of.values()))
    many = len(groups) > 1
    return render(
        "plain/slurm.sh",
        name=deployment.name,
        file=SLURM_FILE,
        port=facts.fact("ports", "http"),
        grace=deployment.drain_seconds + facts.fact("exit_seconds"),
        groups=[
            {
                "number": number,
                "nodes": sum(place[0] == number for place in place_of.values()),
                "gpus": Raw(f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}:" * many + str(_size_of(types, name))),
                "list": Raw(f"SLURM_JOB_NODELIST_HET_GROUP_{number}" if many else "SLURM_JOB_NODELIST"),
            }
            for number, name in enumerate(groups)
        ],
        hosts=[{"variable": Raw(host.variable), "node": _node(place_of[host])} for host in hosts],
        steps=[
            {
                "script": f"workers/{_script_name(one, rank)}",
                "node": _node(place_of[host]),
                "group": _group(place_of[host], many=many),
            }
            for one in instances
            for rank, host in enumerate(one.hosts)
        ],
        routers=[
            {"node": _node(place_of[host]), "group": _group(place_of[host], many=many)}
            for host in router_hosts(instances)
        ],
    )


def _size_of(types: Mapping[Host, DeployedPool], accelerator: str) -> int:
    return next(pool.node_size for pool in types.values() if pool.accelerator == accelerator)


def _node(place: tuple[int, int]) -> Raw:
    return Raw(f'"${{nodes_{place[0]}[{place[1]}]}}"')


def _group(place: tuple[int, int], *, many: bool) -> Raw:
    return Raw(f" --het-group={place[0]}" * many)


def hosts_file(instances: tuple[Instance, ...]) -> str:
    """The addresses that the user fills in; one host needs none."""
    hosts = hosts_of(instances)
    alone = len(hosts) == 1
    rows = [{"variable": Raw(host.variable), "default": "127.0.0.1" if alone else host.name} for host in hosts]
    return render("plain/hosts.env", hosts=rows)


def _script_name(one: Instance, rank: int) -> str:
    return f"{one.name}.sh" if len(one.hosts) == 1 else f"{one.name}.node{rank}.sh"


def router_file(engine: str, words: Sequence[str]) -> str:
    """The script that starts the router."""
    port, package = facts.fact("ports", "http"), Raw(facts.fact("router", engine))
    return render(f"{engine}/router.sh", words=words, port=port, package=package)


def router_words(
    deployment: Deployment, instances: Iterable[Instance], split: Sequence[str], *, bootstrap: bool = False
) -> list[str]:
    """The router's command line after its name.

    split: what tells it to part prompts from tokens; bootstrap: whether it is told the bootstrap ports of prefill.
    """
    words = ["--host", "0.0.0.0", "--port", str(facts.fact("ports", "http"))]  # noqa: S104
    words += ["--worker-startup-timeout-secs", str(facts.fact("startup_seconds"))]
    words += router_limits(prefixes=deployment.routes_by_prefix)
    if not deployment.disaggregated:
        return [*words, "--policy", BALANCES, "--worker-urls", *map(_url, instances)]
    for role in (Role.PREFILL, Role.DECODE):
        words += [f"--{role.value}-policy", BALANCES]
    words += split
    for one in instances:
        words += [f"--{one.pool.role.value}", _url(one)]
        if bootstrap and one.pool.role is Role.PREFILL:
            words.append(str(one.port("bootstrap")))
    return words


def _url(one: Instance) -> Raw:
    return Raw(f'"http://{one.hosts[0].address}:{one.port("worker")}"')


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


def router_hosts(instances: tuple[Instance, ...]) -> tuple[Host, ...]:
    """The hosts that have a router each: two where there are two, so that a dead host takes no other replica along."""
    return hosts_of(instances)[: int(facts.fact("routers"))]


def check_hosts(files: Mapping[str, str]) -> None:
    """Every host that a script names has an address, and every script that names one reads the addresses."""
    known = set(re.findall(r"^(HOST_[A-Z0-9_]+)=.", files.get(HOSTS_FILE, ""), flags=re.MULTILINE))
    for path in sorted(files):
        for name in re.findall(r"\$\{(HOST_[A-Z0-9_]+)\}", files[path]):
            if name not in known:
                raise InputError(f"{path}: {name} has no address in {HOSTS_FILE}")
            if path.endswith(".sh") and f'{HOSTS_FILE}"' not in files[path]:
                raise InputError(f"{path}: it does not read {HOSTS_FILE}")


def scripts_of(files: Iterable[str]) -> dict[str, list[str]]:
    """Start scripts by the engine that they start, in the order of its hosts."""
    found: dict[str, list[str]] = {}
    for path in sorted(files):
        match = SCRIPT.fullmatch(path)
        if match is not None:
            found.setdefault(match[1], []).append(path)
    return found


def host_line(text: str) -> str:
    """The host that a start script is for."""
    found = re.search(r"hosts\.env names (HOST_[A-Z0-9_]+)\.", text)
    return found[1] if found else "?"


def read_command(where: str, text: str, program: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Environment and command line of a script, without the program."""
    env, command = {}, []
    for line in text.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = "".join(shlex.split(value))
        elif line.startswith("exec "):
            command = shlex.split(line)[1:]
    if command[: len(program)] != list(program):
        raise InputError(f"{where} does not start {' '.join(program)}")
    return env, command[len(program) :]


def gpu_count(env: Mapping[str, str]) -> int:
    """GPUs that an engine sees."""
    return len(seen_gpus(env))


def read_router(files: Mapping[str, str], program: Sequence[str], split: str) -> FoundRouter | None:
    """Who the router's command sends requests to, and how it chooses; split: its flag that parts the stages."""
    if not files.get(ROUTER_FILE):
        return None
    _, command = read_command(ROUTER_FILE, files[ROUTER_FILE], program)
    targets = {role.value: _urls_after(command, f"--{role.value}") for role in (Role.PREFILL, Role.DECODE)}
    targets[Role.COLOCATED.value] = _urls_after(command, "--worker-urls")
    return FoundRouter(ROUTER_FILE, split in command, targets, _values(command), tuple(command))


def _urls_after(words: Sequence[str], flag: str) -> tuple[str, ...]:
    """Every URL that follows a flag, without the ports between them."""
    found, inside = [], False
    for word in words:
        if word.startswith("--"):
            inside = word == flag
        elif inside and "://" in word:
            found.append(word)
    return tuple(found)


def _values(words: Sequence[str]) -> Words:
    """Every flag with the word after it, None where that is a flag too."""
    following = [*words[1:], "--"]
    return tuple(
        (word, None if after.startswith("--") else after)
        for word, after in zip(words, following, strict=True)
        if word.startswith("--")
    )
