"""Fleets of small engines: one prefill pool and one decode pool, with as many replicas as a test needs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from costmodel.engine import Parallelism, Role
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from tests.optimizer_cases import instance_of, limit, problem, workload


@cache
def small(rate: float = 6.0, **changes: Any) -> Instance:
    return instance_of(problem(workload=workload(rate=rate), **changes))


def pool(instance: Instance, name: str, role: Role, replicas: int, route: float = 1.0, *, chunk: int = 0) -> FleetPool:
    shape = next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism == Parallelism())
    seqs = limit(instance, int(role is not Role.PREFILL))
    return FleetPool(name, role, shape, seqs, chunk, replicas, 0, np.full(instance.flows.isl.size, route))


def apart(instance: Instance, prefill: int, decode: int) -> Fleet:
    return Fleet((pool(instance, "prefill-1", Role.PREFILL, prefill), pool(instance, "decode-1", Role.DECODE, decode)))


def replicas(fleet: Fleet) -> tuple[int, ...]:
    return tuple(one.replicas for one in fleet.pools)
