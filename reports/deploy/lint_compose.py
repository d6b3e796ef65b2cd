"""A rule about docker compose files: what their schema cannot say; see `lint`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from costmodel.quoting import shown

from .description import Deployment
from .found import Found, FoundRouter
from .gateway import Gateway
from .manifests import dig

ROUTER: Final = "router"
"""Name of the router's service."""
GATEWAY_COMMAND: Final = ("haproxy", "-f", "/router.cfg")
GATEWAY_MOUNT: Final = "../router.cfg:/router.cfg:ro"
_PLACE: Final = re.compile(r"[./~$]")
"""How the source of a volume begins that is a folder of the host, not a volume of a name."""


def containers_fit_together(deployment: Deployment, found: Found) -> Iterator[str]:  # noqa: ARG001
    """Containers wait for what is there, mount what is declared, and are asked for their health where they listen."""
    ports = {one.where: {port for _, port in one.addresses} for one in found.workers}
    for number, (path, loaded) in enumerate(found.containers.items()):
        services: Mapping[str, Any] = loaded["services"]
        yield from _routes(path, services.get(ROUTER), found.router if number == 0 else None)
        declared = loaded.get("volumes") or {}
        for name, service in services.items():
            where = f"{path}: service {name}"
            yield from _waits(where, service, services)
            yield from _mounts(where, service, declared)
            yield from _asked(where, service, ports)
            if service.get("ports"):
                yield f"{where} publishes ports, which a container in the host's own network does not"


def _routes(path: str, service: Mapping[str, Any] | None, router: FoundRouter | None) -> Iterator[str]:
    """The first host has the router, told what its script says; no other host has one."""
    if service is None and router is not None:
        yield f"{path}: the router is missing"
    elif service is not None and router is None:
        yield f"{path}: a router is started here too"
    elif service is not None and router is not None and router.gateway is not None:
        yield from _gateway(path, service, router.gateway)
    elif service is not None and router is not None:
        _, _, told = str((service.get("command") or [""])[-1]).partition(" vllm-router ")
        if told.split() != list(router.command) or service.get("network_mode") != "host":
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
