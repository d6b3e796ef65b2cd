"""A fleet: pools of equal engines and the share of each flow that they serve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import EngineConfig, Role
from optimizer.loads.hand_over import even_mix
from optimizer.loads.instance import ROLES, Instance
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
    """The engine config of a pool, scheduler limits filled in; a decode step has a token for each request that runs."""
    tables = instance.tables
    seqs, budget = int(tables.seqs[pool.seqs]), int(tables.chunks[pool.chunk])
    budget = max(budget, seqs) if pool.role is Role.DECODE else budget
    return engine_config(instance.problem, tables.shapes[pool.shape], pool.role, seqs, budget)


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
