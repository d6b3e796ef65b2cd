"""Fleet problems of other tools as matrices for our solver: Mélange's format, and prefill/decode/colocated fleets."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL
from optimizer.search.program import Limit, Matrices

from .fleet_schemas import MelangeCase, PairCase

FloatArray = NDArray[np.float64]

ROLES = {"p": PREFILL, "d": DECODE, "c": COLOCATED}
NODE = 8
"""GPUs in one node of the prefill/decode cases, by their rule."""

LEAST_INSTANCES = 2e-6
"""Instances that a bucket takes at least: fewer are none at all to a solver that takes 1e-6 for a whole number."""


def files_of(folder: Path, *endings: str) -> list[Path]:
    """The files of a folder with one of these endings, sorted by name."""
    if not folder.is_dir():
        raise InputError(f"{folder}: is no folder")
    found = sorted(path for path in folder.iterdir() if path.name.endswith(endings))
    if not found:
        raise InputError(f"{folder}: has no file that ends in {' or '.join(endings)}")
    return found


def needs_of(rate: FloatArray, throughput: FloatArray) -> FloatArray:
    """Instances that the whole of each flow takes, (columns, flows); inf where the throughput is zero."""
    need = np.maximum(rate / np.maximum(throughput, 1e-300), LEAST_INSTANCES)
    return np.asarray(np.where(throughput > 0.0, need, np.inf))


def melange_matrices(case: MelangeCase) -> Matrices:
    """Mélange's problem: one colocated instance per GPU type, a bucket per cell of the length distribution.

    A type's `tputs` are the requests per second of one instance that serves the bucket alone. Slices are dropped, as
    our routing is fractional.
    """
    rate = np.array(list(chain(*case.workload_distribution)), dtype=np.float64) * case.total_request_rate
    types = case.gpu_info.values()
    throughput = np.array([list(chain(*one.tputs)) for one in types], dtype=np.float64)
    asked = rate > 0.0
    size = len(types)
    return Matrices(
        role=np.full(size, COLOCATED),
        domain=np.zeros(size, dtype=np.int64),
        price=np.array([one.cost for one in types], dtype=np.float64),
        need=needs_of(rate[asked], throughput[:, asked])[:, None, :],
        late=np.zeros((size, int(asked.sum()))),
        slo=np.zeros(int(asked.sum()), dtype=np.int64),
        permitted=np.ones(1),
    )


def fleet_pd_matrices(case: PairCase) -> Matrices:
    """A prefill/decode/colocated problem: `rate` are requests per second of one engine, used up to `rho`.

    Prices are per GPU (`unit` gpu) or per whole node of eight (`unit` node); inventories are in nodes.
    """
    columns, types = case.columns, {one.name: one for one in case.types}
    demand = np.array(case.demand, dtype=np.float64)
    asked = demand > 0.0
    rate = np.array([column.rate for column in columns], dtype=np.float64)[:, asked]
    gpus = np.array([column.gpus for column in columns], dtype=np.float64)
    kind = np.array([column.type for column in columns])
    by_node = case.unit == "node"
    limits = []
    for name, one in types.items():
        mine = gpus * (kind == name)
        if one.inventory_nodes is not None:
            limits.append(Limit(f"inventory {name}", float(NODE * one.inventory_nodes), mine))
        if by_node:
            limits.append(Limit(f"nodes {name}", 0.0, mine, NODE, NODE * one.price))
    price = gpus * np.array([types[name].price for name in kind], dtype=np.float64)
    return Matrices(
        role=np.array([ROLES[column.role] for column in columns]),
        domain=np.array([types[name].domain for name in kind]),
        price=np.zeros_like(price) if by_node else price,
        need=needs_of(demand[asked] / case.rho, rate)[:, None, :],
        late=np.zeros(rate.shape),
        slo=np.zeros(rate.shape[1], dtype=np.int64),
        permitted=np.ones(1),
        limits=tuple(limits),
    )
