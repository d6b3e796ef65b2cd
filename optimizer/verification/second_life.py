"""Whether a pool has a second stable state at its load, in which its KV memory stays full (`costmodel.second_life`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.engine import Role
from costmodel.second_life import backlog_batch, full_chance, recomputed_tokens, resident_context, running_share
from costmodel.simulator import SCHEDULERS
from optimizer.fleets.evaluate import promise
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.fleets.pool import decode_base
from optimizer.loads.instance import Instance

from .judge import engine_limits


def backlog_seconds(instance: Instance, pool: FleetPool) -> tuple[float, float]:
    """Seconds of one engine of a pool for each request that it ends while it has a backlog, and those for preemption.

    The former without what is computed again; by formula. Prompts cost what they add to the decode steps that carry
    them, and so does a token of them that is computed again.
    """
    tables, flows, shape = instance.tables, instance.flows, pool.shape
    policy, limits = SCHEDULERS[instance.problem.engine], engine_limits(instance, pool)
    share, tokens = flows.share * pool.route, float(limits.kv_blocks) * limits.block_size
    context = resident_context(share, flows.isl, flows.osl)
    weight = running_share(share, flows.osl)
    promised = float(weight @ (flows.isl + policy.reserve_output * flows.osl))
    batch = backlog_batch(max(context[0], promised), limits.max_num_seqs, tokens)
    again = full_chance(context, limits.max_num_seqs, tokens) * recomputed_tokens(
        share,
        flows.isl,
        flows.osl,
        batch=batch,
        budget=max(min(limits.max_num_batched_tokens - batch, limits.long_prefill_threshold), 1.0),
        grown=1.0 - policy.reserve_output,
        whole_prompts=policy.whole_prompt_blocks,
    )
    at = (shape, slice(None), pool.chunk)
    longer = (tables.mixed_base[at] - tables.carried * tables.decode_base[shape][:, None]) * tables.chunk_count[at]
    lanes = float(tables.pipeline[shape] * tables.ranks[shape])
    prompts = np.array([float(np.interp(batch, tables.seqs, column)) for column in np.maximum(longer, 0.0).T]) / lanes
    token = float(share @ prompts) / float(share @ flows.new_tokens)
    prompt = float(share @ prompts / share.sum()) if pool.role is Role.COLOCATED else 0.0
    step = decode_base(instance, pool, batch) + batch * float(weight @ tables.attention_slope[shape])
    return float(share @ flows.osl / share.sum()) * step / batch + prompt, token * again


def two_lives(instance: Instance, pool: FleetPool, volume: float = 1.0) -> bool:
    """Whether the engines of a pool keep up with `volume` times the demand, but not once their memory is full.

    Prefill engines preempt nothing: they keep a prompt's KV until it is handed over. Engines that do not keep up in any
    case are no concern here.
    """
    rate = float(instance.flows.rate @ pool.route) * volume / pool.replicas
    if pool.role is Role.PREFILL or rate <= 0.0:
        return False
    usual, preempting = backlog_seconds(instance, pool)
    return rate * usual < 1.0 <= rate * (usual + preempting)


def one_life(instance: Instance, fleet: Fleet, volume: float = 1.0) -> bool:
    """Whether no pool of a fleet has two lives."""
    return not any(two_lives(instance, pool, volume) for pool in fleet.pools)


def with_one_life(instance: Instance, fleet: Fleet, volume: float = 1.0) -> Fleet:
    """The fleet with the largest batch limits with which its pools have one life, where it keeps its promise.

    The same fleet where they do, or where the formulas promise less of it with such limits.
    """
    pools = tuple(_with_fewer_seats(instance, pool, volume) for pool in fleet.pools)
    if all(pool is other for pool, other in zip(pools, fleet.pools, strict=True)):
        return fleet
    steady = replace(fleet, pools=pools)
    kept = promise(instance, steady, volume) >= min(promise(instance, fleet, volume), 1.0)
    return steady if kept else fleet


def _with_fewer_seats(instance: Instance, pool: FleetPool, volume: float) -> FleetPool:
    """The pool with the largest batch limit with which it has one life; as it is where it has, or with none has."""
    if not two_lives(instance, pool, volume):
        return pool
    fewer = (replace(pool, seqs=limit) for limit in reversed(instance.tables.limits_below(pool.seqs)))
    return next((other for other in fewer if not two_lives(instance, other, volume)), pool)
