"""Targets without a scheduler: which engine stands on which GPUs of which host, by whatever starts it there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from . import facts
from .deployment import DeployedPool, Deployment, Device
from .formats import Raw, render


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


def device_env(instance: Instance, engine: str) -> list[tuple[str, str]]:
    """Which GPUs of its host an engine sees, and what its vendor's kernels want to be told."""
    vendor = facts.fact("vendors", instance.pool.vendor)
    between = "|" if instance.pool.vendor == Device.CPU else ","
    return [(vendor["visible"], between.join(map(str, instance.gpus))), *vendor["env"][engine].items()]


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
                "gpus": Raw(f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}:{_size_of(types, name)}"),
                "list": Raw(f"SLURM_JOB_NODELIST_HET_GROUP_{number}" if many else "SLURM_JOB_NODELIST"),
            }
            for number, name in enumerate(groups)
        ],
        hosts=[{"variable": Raw(host.variable), "node": _node(place_of[host])} for host in hosts],
        steps=[
            {
                "script": f"workers/{script_name(one, rank)}",
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


def script_name(one: Instance, rank: int) -> str:
    """File of the script that starts an engine on its host of that number."""
    return f"{one.name}.sh" if len(one.hosts) == 1 else f"{one.name}.node{rank}.sh"


def router_hosts(instances: tuple[Instance, ...]) -> tuple[Host, ...]:
    """The hosts that have a router each: two where there are two, so that a dead host takes no other replica along."""
    return hosts_of(instances)[: int(facts.fact("routers"))]
