"""A fleet: pools of equal engines and the share of each flow that they serve, read off the search's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig, Role
from optimizer.loads.columns import ROLES, Columns, join
from optimizer.loads.instance import Instance
from optimizer.loads.loads import column_loads
from optimizer.loads.pairing import even_mix
from optimizer.solver.fleet_model import pool_of
from optimizer.solver.search import Found
from optimizer.solver.simple_plans import class_weights
from search_spaces.enumeration import engine_config

FloatArray = NDArray[np.float64]

ROUTED = 1e-2
"""Share of what a pool sends or takes in that may find no partner before a routing counts as impossible [1]."""

SHORTER = 0.1
"""Share of the prompts that may be so short that a prefill step has no seat for as many as fill it [1]."""


@dataclass(frozen=True, slots=True)
class FleetPool:
    """Equal engines in one role.

    shape, seqs, chunk: indices into the tables; replicas: engines that the demand needs; spares: idle ones;
    route (flows,): share of each flow served here.
    """

    name: str
    role: Role
    shape: int
    seqs: int
    chunk: int
    replicas: int
    spares: int
    route: FloatArray


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pools in the order prefill, decode, colocated; larger shares first."""

    pools: tuple[FleetPool, ...]

    def of(self, role: Role) -> tuple[FleetPool, ...]:
        """The pools in one role."""
        return tuple(pool for pool in self.pools if pool.role is role)


def pool_config(instance: Instance, pool: FleetPool) -> EngineConfig:
    """The engine config of a pool, scheduler limits filled in."""
    tables = instance.tables
    return engine_config(
        instance.problem,
        tables.shapes[pool.shape],
        pool.role,
        int(tables.seqs[pool.seqs]),
        int(tables.chunks[pool.chunk]),
    )


def prefill_seqs(instance: Instance, shape: int) -> int:
    """Index of the batch limit of a prefill engine: seats for the prompts that fill a step in every stage and rank.

    The formulas take steps to be limited by their token budget alone; a seat that is not taken costs nothing.
    """
    flows, tables = instance.flows, instance.tables
    order = np.argsort(flows.new_tokens)
    below = np.cumsum(flows.share[order]) / flows.share.sum()
    short = flows.new_tokens[order][min(int(np.searchsorted(below, SHORTER)), order.size - 1)]
    steps = float(tables.pipeline[shape] * tables.ranks[shape])
    wanted = steps * np.ceil(tables.rank_chunks[shape, -1] / short)
    return tables.limit_for(wanted)


def hand_over_mix(instance: Instance, fleet: Fleet) -> FloatArray:
    """See `pairing.even_mix`: for each prefill, decode pool and flow, as the routing has it."""
    prefills, decodes = fleet.of(Role.PREFILL), fleet.of(Role.DECODE)
    shapes = ([pool.shape for pool in pools] for pools in (prefills, decodes))
    flows = instance.flows.isl.size
    sent, taken = (np.array([pool.route for pool in pools]).reshape(len(pools), flows) for pools in (prefills, decodes))
    return even_mix(instance.tables.talks[np.ix_(*shapes)], sent, taken)


def can_hand_over(instance: Instance, fleet: Fleet) -> bool:
    """Whether the pools can hand over to one another all that the routing has them send and take in."""
    prefills, decodes = fleet.of(Role.PREFILL), fleet.of(Role.DECODE)
    mix = hand_over_mix(instance, fleet)
    if (mix == 1.0).all():
        return True
    sent, taken = (np.array([pool.route for pool in pools]) for pools in (prefills, decodes))
    parts = mix * taken / np.maximum(taken.sum(axis=0), 1e-300)
    out = np.where(sent > 0.0, parts.sum(axis=1), 1.0)
    into = np.where(taken > 0.0, (mix * sent[:, None] / np.maximum(sent.sum(axis=0), 1e-300)).sum(axis=0), 1.0)
    return bool(max(np.abs(out - 1.0).max(), np.abs(into - 1.0).max()) <= ROUTED)


def polish(instance: Instance, columns: Columns, found: Found) -> Found:
    """Among columns of equal price that carry what the search routed, take the best to run.

    Fewest pipeline stages first, whose queues are hardest to foresee; then those that miss least, then idle most. The
    search is indifferent between them; a user is not. Blocks that share a pool keep their settings, so that no
    pool is split.
    """
    tables, rate, weight = instance.tables, instance.flows.rate, class_weights(instance)
    pool = pool_of(found.columns)
    chosen, loads = [], []
    for index in range(found.columns.size):
        mine = found.columns.take(np.array([index]))
        same = np.flatnonzero(
            (columns.role == mine.role)
            & (tables.offer[columns.shape] == tables.offer[mine.shape])
            & (tables.gpus[columns.shape] == tables.gpus[mine.shape])
            & (columns.replicas == mine.replicas)
            & (tables.group[columns.role, columns.shape] == tables.group[mine.role, mine.shape])
        )
        if (pool == pool[index]).sum() > 1:
            settings = zip(
                (columns.shape, columns.seqs, columns.chunk), (mine.shape, mine.seqs, mine.chunk), strict=True
            )
            same = same[np.logical_and.reduce([every[same] == own for every, own in settings])]
        rivals = columns.take(same)
        priced = column_loads(instance, rivals)
        served = found.route[index] * rate / found.blocks[index]
        with np.errstate(invalid="ignore"):
            busiest = np.nan_to_num(priced.load @ served, nan=np.inf).max(axis=1)
        late = (priced.miss @ (weight * found.route[index]).T).max(axis=1)
        allowed = float((found.loads.miss[index] @ (weight * found.route[index]).T).max()) * (1.0 + 1e-9)
        fit = np.flatnonzero((busiest <= 1.0 + 1e-7) & (late <= allowed))
        stages = tables.pipeline[rivals.shape[fit]]
        order = np.lexsort((rivals.seqs[fit], np.round(busiest[fit], 3), np.round(late[fit], 3), stages))
        best = fit[order[0]] if fit.size else None
        chosen.append(mine if best is None else rivals.take(np.array([best])))
        loads.append(column_loads(instance, chosen[-1]))
    return replace(
        found,
        columns=join(chosen) if chosen else found.columns,
        loads=replace(
            found.loads,
            load=np.concatenate([found.loads.load[:0], *(part.load for part in loads)]),
            miss=np.concatenate([found.loads.miss[:0], *(part.miss for part in loads)]),
        ),
    )


def make_fleet(instance: Instance, found: Found) -> Fleet:
    """Merge blocks of equal engines into pools and scale the routing to shares of the served volume."""
    if found.columns.size == 0:
        return Fleet(())
    columns = found.columns
    member = pool_of(columns)
    spares = instance.problem.constraints.spare_replicas
    pools = []
    for number in np.unique(member):
        rows = np.flatnonzero(member == number)
        first = rows[0]
        engines = found.blocks[rows] * columns.replicas[rows]
        role, shape = ROLES[columns.role[first]], int(columns.shape[first])
        pools.append(
            FleetPool(
                name="",
                role=role,
                shape=shape,
                seqs=prefill_seqs(instance, shape) if role is Role.PREFILL else int(columns.seqs[first]),
                chunk=int(columns.chunk[first]),
                replicas=int(engines.sum()),
                spares=spares,
                route=found.route[rows].sum(axis=0) / max(found.volume, 1e-12),
            )
        )
    return Fleet(named(instance, pools))


def named(instance: Instance, pools: list[FleetPool]) -> tuple[FleetPool, ...]:
    """Sort the pools and give each a stable name such as decode-1."""
    share = instance.flows.share
    ordered = sorted(pools, key=lambda pool: (ROLES.index(pool.role), -float(pool.route @ share), pool.shape))
    counts: dict[Role, int] = {}
    named = []
    for pool in ordered:
        counts[pool.role] = counts.get(pool.role, 0) + 1
        named.append(replace(pool, name=f"{pool.role.value}-{counts[pool.role]}"))
    return tuple(named)
