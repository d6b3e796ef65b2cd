"""Turning a fleet and a trace into the loop's state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role

from .compiled import Column, floats, ints, records
from .fleet import FirstToken, Fleet, Pool, Router, caches
from .prefix import FIELDS, HEAD
from .routing import LEAST_KV, LEAST_LOADED, LENGTH_AWARE, PREFIX_AFFINE, ROUND_ROBIN
from .state import GAPS, LOG, STAGES, Group, Lane, PoolRecord, Request, Rules, World
from .step_numbers import pack
from .trace import Trace

ROUTER_NUMBER = {
    Router.ROUND_ROBIN: ROUND_ROBIN,
    Router.LEAST_LOADED: LEAST_LOADED,
    Router.LEAST_KV: LEAST_KV,
    Router.LENGTH_AWARE: LENGTH_AWARE,
    Router.PREFIX_AFFINE: PREFIX_AFFINE,
}


def make_world(trace: Trace, fleet: Fleet, fast_forward: bool, log_rows: int, compiled: bool = False) -> World:
    """State before the first event, for the plain or for the compiled loop."""
    engines = [pool for pool in fleet.pools for _ in range(pool.replicas)]
    lanes = [pool for pool in engines for _ in range(pool.pipeline)]
    models, tables = pack([pool.steps.numbers() for pool in fleet.pools], compiled=compiled)
    gap_at = tables.size
    stage_at = gap_at + GAPS * len(lanes)
    link_at = stage_at + STAGES * len(engines)
    links = link_at + _starts([2 * pool.nics for pool in engines])
    log_at = int(links[-1])
    phase_at = GAPS * len(lanes)
    page_at = phase_at + sum(pool.limits.block_size for pool in lanes)
    caching = _caches(trace, fleet, engines, page_at)
    rules = _rules(fleet, trace, fast_forward) | caching.rules | {"log_rows": log_rows, "log_at": log_at}
    make = partial(records, compiled=compiled)
    return World(
        requests=make(Request, trace.size, _requests(trace, page_at)),
        lanes=make(Lane, len(lanes), _lanes(fleet, lanes) | _places(lanes, gap_at, phase_at)),
        groups=make(Group, len(engines), _groups(fleet, engines, stage_at, links) | caching.groups),
        pools=make(PoolRecord, len(fleet.pools), _pools(fleet)),
        models=models,
        rules=make(Rules, 1, rules),
        numbers=floats(np.concatenate([tables, np.zeros(log_at - gap_at + LOG * log_rows)]), compiled=compiled),
        counts=ints(np.concatenate([np.zeros(page_at, dtype=np.int64), caching.counts]), compiled=compiled),
    )


@dataclass(frozen=True, slots=True)
class _Caches:
    """Columns of groups and rules that have to do with hash blocks, and the end of `World.counts`."""

    groups: dict[str, Column]
    rules: dict[str, Column]
    counts: NDArray[np.int64]


def _caches(trace: Trace, fleet: Fleet, engines: list[Pool], page_at: int) -> _Caches:
    """Empty prefix caches behind the pages of the prompts, one per engine that caches, and the store's."""
    if trace.pages is None:
        return _Caches({"cache": -1}, {"store": -1}, np.zeros(0, dtype=np.int64))
    ids, tokens = trace.pages.ids, trace.pages.tokens
    size = HEAD + FIELDS * (int(ids.max(initial=-1)) + 1)
    empty = np.full(size, -1, dtype=np.int64)
    empty[HEAD - 1] = 0
    with_cache = [caches(pool) for pool in engines] + [fleet.store is not None]
    begins = page_at + ids.size + size * (np.cumsum(with_cache) - 1)
    at = np.where(with_cache, begins, -1)
    store = fleet.store
    read = {"store_read": 0.0 if store is None else store.engine_seconds_per_token}
    rules: dict[str, Column] = {"page": tokens, "store": at[-1]}
    if store is not None:
        rules |= {"store_pages": store.pages, "store_read": store.seconds_per_token, "store_latency": store.latency}
    blocks = [tokens // pool.limits.block_size for pool in engines]
    groups: dict[str, Column] = {"cache": at[:-1], "page_blocks": blocks}
    return _Caches(groups | read, rules, np.concatenate([ids, np.tile(empty, sum(with_cache))]))


def _requests(trace: Trace, page_at: int) -> dict[str, Column]:
    given = {
        "done": trace.cached,
        "pool": trace.pool,
        "decode_pool": trace.decode_pool,
        "prefix": trace.prefix,
    }
    columns: dict[str, Column] = {"done": 0, "itl": 0.0, "base": 0, "fresh": 0, "restarts": 0, "promise": 0}
    columns |= dict.fromkeys(("pages", "held", "staged_from", "staged", "hit", "gated", "reserved"), 0)
    if trace.pages is not None:
        full = np.minimum(trace.pages.counts, trace.isl // trace.pages.tokens)
        columns |= {"pages": full, "page_at": page_at + np.cumsum(trace.pages.counts) - trace.pages.counts}
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


def _groups(fleet: Fleet, engines: list[Pool], stage_at: int, links: NDArray[np.int64]) -> dict[str, Column]:
    lane_starts = _starts([pool.pipeline for pool in engines])
    columns: dict[str, Column] = dict.fromkeys(Group.__dataclass_fields__, 0)
    hand_over = fleet.hand_over
    return columns | {
        "wait_head": -1,
        "wait_tail": -1,
        "free": [pool.limits.kv_blocks for pool in engines],
        "blocks": [pool.limits.kv_blocks for pool in engines],
        "watermark": [int(pool.policy.watermark * pool.limits.kv_blocks) for pool in engines],
        "stage_at": stage_at + STAGES * np.arange(len(engines)),
        "link_at": links[:-1],
        "nics": [pool.nics for pool in engines],
        "send": [pool.kv_seconds_per_token * pool.nics for pool in engines],
        "gate_head": -1,
        "gate_tail": -1,
        "pull": int(hand_over.pull),
        "bound": hand_over.max_coming,
        "gated": int(hand_over.pull or hand_over.max_coming > 0),
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
        "too_fast": 0,
        "page": 0,
        "store_free": 0.0,
    }


def _starts(sizes: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
