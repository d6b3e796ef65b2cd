"""Which engine stands on which GPUs of which host, and its ports: for targets without a scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from . import facts
from .description import DeployedPool, Deployment
from .rendering import Raw


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
