"""Fleets of small engines: one prefill pool and one decode pool, with as many replicas as a test needs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from costmodel.engine import Parallelism, Role
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from tests.optimizer_cases import instance_of, limit, problem, workload

ONE_GPU = Parallelism()


@cache
def small(rate: float = 6.0, **changes: Any) -> Instance:
    return instance_of(problem(workload=workload(rate=rate), **changes))


def pool(
    instance: Instance,
    name: str,
    role: Role,
    replicas: int,
    route: float = 1.0,
    *,
    chunk: int = 0,
    split: Parallelism = ONE_GPU,
    seqs: int | None = None,
) -> FleetPool:
    """seqs: place among the batch limits of the space; default: the second, of prefill engines the first."""
    shape = next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism == split)
    place = int(role is not Role.PREFILL) if seqs is None else seqs
    route_by_flow = np.full(instance.flows.isl.size, route)
    return FleetPool(name, role, shape, limit(instance, place), chunk, replicas, 0, route_by_flow)


def each_of(instance: Instance, roles: Iterable[Role], replicas: int = 1) -> Fleet:
    """A pool of every role, with the greatest batch limit."""
    return Fleet(tuple(pool(instance, f"{role}-1", role, replicas, seqs=99) for role in roles))


def alone(instance: Instance, replicas: int, **settings: Any) -> Fleet:
    """One colocated pool."""
    return Fleet((pool(instance, "colocated-1", Role.COLOCATED, replicas, **settings),))


def apart(instance: Instance, prefill: int, decode: int) -> Fleet:
    return Fleet((pool(instance, "prefill-1", Role.PREFILL, prefill), pool(instance, "decode-1", Role.DECODE, decode)))


def replicas(fleet: Fleet) -> tuple[int, ...]:
    return tuple(one.replicas for one in fleet.pools)
