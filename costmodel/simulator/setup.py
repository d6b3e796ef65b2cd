"""Turning a fleet and a trace into the loop's state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role

from .compiled import Column, floats, ints, records
from .fleet import FirstToken, Fleet, Pool, Router
from .state import GAPS, LOG, STAGES, Group, Lane, PoolRecord, Request, Rules, World
from .step_numbers import pack
from .trace import Trace
from .transfer import LEAST_KV, LEAST_LOADED, LENGTH_AWARE, PREFIX_AFFINE, ROUND_ROBIN

ROUTER_NUMBER = {
    Router.ROUND_ROBIN: ROUND_ROBIN,
    Router.LEAST_LOADED: LEAST_LOADED,
    Router.LEAST_KV: LEAST_KV,
    Router.LENGTH_AWARE: LENGTH_AWARE,
    Router.PREFIX_AFFINE: PREFIX_AFFINE,
}


def make_world(trace: Trace, fleet: Fleet, fast_forward: bool, log_rows: int) -> World:
    """State before the first event."""
    engines = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    lanes = [pool for pool in engines for _ in range(pool.pipeline)]
    models, tables = pack([pool.steps.numbers() for pool in fleet.pools])
    gap_at = tables.size
    stage_at = gap_at + GAPS * len(lanes)
    log_at = stage_at + STAGES * len(engines)
    phase_at = GAPS * len(lanes)
    phases = sum(pool.limits.block_size for pool in lanes)
    return World(
        requests=records(Request, trace.size, _requests(trace)),
        lanes=records(Lane, len(lanes), _lanes(fleet, lanes) | _places(lanes, gap_at, phase_at)),
        groups=records(Group, len(engines), _groups(engines, stage_at)),
        pools=records(PoolRecord, len(fleet.pools), _pools(fleet)),
        models=models,
        rules=records(Rules, 1, _rules(fleet, trace, fast_forward) | {"log_rows": log_rows, "log_at": log_at}),
        numbers=floats(np.concatenate([tables, np.zeros(log_at - gap_at + LOG * log_rows)])),
        counts=ints(np.zeros(phase_at + phases, dtype=np.int64)),
    )


def _requests(trace: Trace) -> dict[str, Column]:
    given = {
        "done": trace.cached,
        "pool": trace.pool,
        "decode_pool": trace.decode_pool,
        "prefix": trace.prefix,
    }
    columns: dict[str, Column] = {"done": 0, "itl": 0.0, "base": 0, "fresh": 0, "restarts": 0, "promise": 0}
    columns |= {"arrival": trace.arrival, "prompt": trace.isl, "total": trace.isl + trace.osl}
    return columns | {name: values for name, values in given.items() if values is not None}


LANE_LINKS = ("head", "tail", "prompt_head", "prompt_tail", "fresh_head", "heap", "rotated")
"""Fields of a lane that begin as -1; the others that are not settings begin as 0."""


def _lanes(fleet: Fleet, lanes: list[Pool]) -> dict[str, Column]:
    """Settings of each lane, all else at rest."""
    engines = [number for number, pool in enumerate(p for p in fleet.pools for _ in range(p.replicas))]
    stages = [pool.pipeline for pool in fleet.pools for _ in range(pool.replicas)]
    models = [number for number, pool in enumerate(fleet.pools) for _ in range(pool.replicas * pool.pipeline)]
    early = fleet.hand_over.first_token is not FirstToken.DECODE
    yields = int(fleet.hand_over.first_token is FirstToken.PREFILL)
    here = [pool.role is Role.COLOCATED for pool in lanes]
    columns: dict[str, Column] = {name: 0 for name in Lane.__dataclass_fields__ if name not in LANE_LINKS}
    return columns | {
        "index": np.arange(len(lanes)),
        "group": np.repeat(engines, stages),
        "pending": -1,
        "model": models,
        "exclusive": [int(pool.policy.exclusive_prefill) for pool in lanes],
        "chunked": [int(pool.policy.chunked) for pool in lanes],
        "static": [int(pool.policy.static) for pool in lanes],
        "padded": [int(pool.policy.padded_budget) for pool in lanes],
        "whole": [int(pool.policy.whole_prompt_blocks) for pool in lanes],
        "after_preemption": [int(pool.policy.admit_after_preemption) for pool in lanes],
        "spare": [int(pool.policy.spare_block) for pool in lanes],
        "partial_ends": [int(pool.policy.partial_prompt_ends) for pool in lanes],
        "reserve": [pool.policy.reserve_output for pool in lanes],
        "seqs": [max(1, pool.limits.max_num_seqs // pool.pipeline) for pool in lanes],
        "budget": [pool.limits.max_num_batched_tokens for pool in lanes],
        "threshold": [pool.limits.long_prefill_threshold for pool in lanes],
        "cap": [pool.limits.decode_token_cap for pool in lanes],
        "hands_over": [int(pool.role is Role.PREFILL) for pool in lanes],
        "yields": [fleet.prompt_yields if one else yields for one in here],
        "early": [int(one or early) for one in here],
        "swap": [pool.swap_seconds_per_token for pool in lanes],
        "stages": [pool.pipeline for pool in lanes],
        "block": [pool.limits.block_size for pool in lanes],
    }


def _places(lanes: list[Pool], gap_at: int, phase_at: int) -> dict[str, Column]:
    """Where each lane's part of the flat sequences begins."""
    index = np.arange(len(lanes))
    return {
        "gap_at": gap_at + GAPS * index,
        "gap_step_at": GAPS * index,
        "phase_at": phase_at + _starts([pool.limits.block_size for pool in lanes])[:-1],
    }


def _groups(engines: list[Pool], stage_at: int) -> dict[str, Column]:
    lane_starts = _starts([pool.pipeline for pool in engines])
    columns: dict[str, Column] = dict.fromkeys(Group.__dataclass_fields__, 0)
    return columns | {
        "wait_head": -1,
        "wait_tail": -1,
        "free": [pool.limits.kv_blocks for pool in engines],
        "blocks": [pool.limits.kv_blocks for pool in engines],
        "watermark": [int(pool.policy.watermark * pool.limits.kv_blocks) for pool in engines],
        "stage_at": stage_at + STAGES * np.arange(len(engines)),
        "send": [pool.kv_seconds_per_token for pool in engines],
        "first_lane": lane_starts[:-1],
        "end_lane": lane_starts[1:],
    }


def _pools(fleet: Fleet) -> dict[str, Column]:
    starts = _starts([pool.replicas for pool in fleet.pools])
    return {
        "first_group": starts[:-1],
        "end_group": starts[1:],
        "router": [ROUTER_NUMBER[pool.router] for pool in fleet.pools],
        "turn": 0,
        "decode": [int(pool.role is Role.DECODE) for pool in fleet.pools],
    }


def _rules(fleet: Fleet, trace: Trace, fast_forward: bool) -> dict[str, Column]:
    return {
        "fast_forward": int(fast_forward),
        "released": trace.opened if trace.concurrency else -1,
        "sequence": 0,
        "logged": 0,
        "latency": fleet.hand_over.latency,
        "think": trace.think,
        "hidden": 1.0 - 1.0 / fleet.hand_over.layers,
    }


def _starts(sizes: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
