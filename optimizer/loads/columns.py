"""Columns: the building blocks that the fleet search buys whole.

A column is a block of `replicas` equal engines that share one queue and run at a chosen operating point: batch
limit, token budget, and how busy it may be. A block of several replicas waits less than as many blocks of one,
so its size is part of the column. What a column can carry, and what it promises, is worked out in `loads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role

from .flows import Flows
from .instance import Instance
from .tables import Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


ROLES = (Role.PREFILL, Role.DECODE, Role.COLOCATED)


@dataclass(frozen=True, slots=True)
class Grid:
    """Operating points that are tried for every engine shape.

    blocks: replicas that share a queue; utilization: busy share of prompt servers;
    moments: v, second moment allowed relative to that of the whole demand;
    chances: share of the permitted misses (1 - attainment) that fluctuations of the decode batch may use up;
    attention: attention time A of colocated steps, relative to a full batch of the whole demand's mean.
    """

    blocks: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
    utilization: tuple[float, ...] = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93)
    moments: tuple[float, ...] = (0.5, 1.0, 2.0)
    chances: tuple[float, ...] = (0.05, 0.2, 0.5)
    attention: tuple[float, ...] = (0.8, 1.5)
    decode_blocks: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
    colocated_blocks: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
    colocated_utilization: tuple[float, ...] = (0.35, 0.6, 0.75, 0.88)


@dataclass(frozen=True, slots=True)
class Columns:
    """Parameters of the columns; every array has shape (columns,).

    role: index into ROLES; shape, seqs, chunk: indices into the tables; replicas: engines of a block;
    utilization rho, moment v, chance, attention: see Grid; tpot: the mean decode step that a decode block keeps [s].
    """

    role: IntArray
    shape: IntArray
    replicas: IntArray
    seqs: IntArray
    chunk: IntArray
    utilization: FloatArray
    moment: FloatArray
    chance: FloatArray
    attention: FloatArray
    tpot: FloatArray

    @property
    def size(self) -> int:
        """Number of columns."""
        return int(self.role.size)

    def take(self, index: IntArray | NDArray[np.bool_]) -> Columns:
        """The columns at `index`, in that order."""
        return Columns(*(getattr(self, field.name)[index] for field in fields(self)))


def join(parts: list[Columns]) -> Columns:
    """Concatenate column sets."""
    return Columns(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Columns)))


def _product(role: Role, **axes: tuple[float, ...] | FloatArray) -> Columns:
    """All combinations of the axes given; the others get a neutral value."""
    neutral: dict[str, tuple[float, ...] | FloatArray] = {
        "shape": (0,),
        "replicas": (1,),
        "seqs": (0,),
        "chunk": (0,),
        "utilization": (1.0,),
        "moment": (1.0,),
        "chance": (0.0,),
        "attention": (1.0,),
        "tpot": (np.inf,),
    }
    axis_names = list(neutral)
    mesh = np.meshgrid(*({**neutral, **axes}[name] for name in axis_names), indexing="ij")
    values = {name: axis.ravel().astype(np.float64) for name, axis in zip(axis_names, mesh, strict=True)}
    return Columns(
        role=np.full(mesh[0].size, ROLES.index(role)),
        shape=values["shape"].astype(np.int64),
        replicas=values["replicas"].astype(np.int64),
        seqs=values["seqs"].astype(np.int64),
        chunk=values["chunk"].astype(np.int64),
        utilization=values["utilization"],
        moment=values["moment"],
        chance=values["chance"],
        attention=values["attention"],
        tpot=values["tpot"],
    )


def make_columns(instance: Instance, grid: Grid) -> Columns:
    """Every column of the space: shapes x operating points, for the roles that are allowed, with someone to talk to."""
    problem, flows, tables = instance.problem, instance.flows, instance.tables
    shapes = np.arange(len(tables.shapes), dtype=np.float64)
    sends, takes = tables.talks.any(axis=1), tables.talks.any(axis=0)
    seqs = tables.limits.astype(np.float64)
    chunks = np.arange(tables.chunks.size, dtype=np.float64)
    limits = step_levels(flows)
    parts = []
    if Role.PREFILL in problem.space.roles:
        prefills = _product(
            Role.PREFILL,
            shape=shapes[sends],
            replicas=grid.blocks,
            chunk=chunks,
            utilization=grid.utilization,
            moment=grid.moments,
        )
        parts.append(prefills.take(_worth_trying(tables, prefills)))
    if Role.DECODE in problem.space.roles:
        parts.append(
            _product(
                Role.DECODE,
                shape=shapes[takes],
                replicas=grid.decode_blocks,
                seqs=seqs,
                chunk=chunks[:1],
                chance=grid.chances,
                tpot=limits,
            )
        )
    if Role.COLOCATED in problem.space.roles:
        parts.append(
            _product(
                Role.COLOCATED,
                shape=shapes,
                replicas=grid.colocated_blocks,
                seqs=seqs,
                chunk=chunks,
                utilization=grid.colocated_utilization,
                chance=grid.chances[1:2],
                attention=grid.attention,
            )
        )
    columns = join(parts)
    return columns.take(_sensible(instance, columns))


def _worth_trying(tables: Tables, prefills: Columns) -> NDArray[np.bool_]:
    """Prefill blocks with token budgets that may be best: the largest that there is memory for, or any in a pipeline.

    Larger steps are more efficient and no decode waits for them; but stages only work side by side on several of them.
    """
    largest = tables.chunks.size - 1 - np.argmax(tables.roomy[:, ::-1], axis=1)
    return np.asarray((prefills.chunk == largest[prefills.shape]) | (tables.pipeline[prefills.shape] > 1.0))


def _sensible(instance: Instance, columns: Columns) -> NDArray[np.bool_]:
    """Blocks that the limits can hold, with memory for the longest request and decode steps within some TPOT limit.

    Of each engine the least batch limit is kept whose full batch is too slow: fewer requests may run.
    """
    problem, tables, shape = instance.problem, instance.tables, columns.shape
    gpus = column_gpus(tables, columns)
    inventory = np.array([np.inf if offer.inventory is None else offer.inventory for offer in problem.offers])
    fits = gpus <= inventory[tables.offer[shape]]
    if problem.constraints.max_gpus is not None:
        fits &= gpus <= problem.constraints.max_gpus
    if problem.constraints.budget is not None:
        fits &= column_price(tables, columns) <= problem.constraints.budget * (1 + 1e-9)
    generates = columns.role != ROLES.index(Role.PREFILL)
    longest = instance.flows.tpot.max()
    slow = tables.decode_base[shape, columns.seqs] >= longest
    slow &= (columns.seqs != tables.limits[0]) | (tables.decode_base[shape].min(axis=1) >= longest)
    return np.asarray(fits & tables.roomy[shape, columns.chunk] & ~(generates & slow))


def step_levels(flows: Flows, most: int = 4) -> FloatArray:
    """Distinct limits on the decode step of disaggregated flows, at most `most`, the tightest and loosest kept [s]."""
    limits = np.unique(flows.longest_step)
    if limits.size <= most:
        return limits
    return np.unique(limits[np.linspace(0, limits.size - 1, most).astype(np.int64)])


def column_price(tables: Tables, columns: Columns) -> FloatArray:
    """Price of one block [$/h]."""
    return columns.replicas * tables.usd_per_hour[columns.shape]


def column_gpus(tables: Tables, columns: Columns) -> FloatArray:
    """GPUs of one block."""
    return columns.replicas * tables.gpus[columns.shape]


def blocks_of(columns: Columns, size: int = 4096) -> Iterator[slice]:
    """Slices of at most `size` columns of one role, so that intermediate arrays stay in cache."""
    edges = np.flatnonzero(np.diff(columns.role)) + 1
    for start, stop in zip(np.r_[0, edges], np.r_[edges, columns.size], strict=True):
        for low in range(int(start), int(stop), size):
            yield slice(low, min(low + size, int(stop)))
