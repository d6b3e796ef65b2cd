"""Traces with hash blocks, and fleets that cache them, drawn from a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.simulator_cases import random_fleet, random_trace

# isort: split
from costmodel.simulator import Fleet, KvStore, Pages, Policy, Trace, make_trace


def random_paged(seed: int) -> Trace:
    """Requests that go on from a random part of one of four conversations."""
    trace, rng = random_trace(seed), np.random.default_rng([seed, 12])
    ids = []
    for isl in trace.isl:
        talk, known = int(rng.integers(4)), int(rng.integers(0, 26))
        ids.append([1000 * talk + k if k < known else int(rng.integers(10**4, 10**9)) for k in range(-(-isl // 16))])
    pages = Pages(np.array([page for one in ids for page in one]), np.array([len(one) for one in ids]), 16)
    return make_trace(
        trace.arrival, trace.isl, trace.osl, prefix=trace.prefix, concurrency=trace.concurrency, pages=pages
    )


def random_paged_fleet(seed: int, policy: Policy, disaggregated: bool) -> Fleet:
    fleet, rng = random_fleet(seed, policy, disaggregated), np.random.default_rng([seed, 13])
    pools = tuple(
        replace(pool, limits=replace(pool.limits, decode_token_cap=0, kv_blocks=min(pool.limits.kv_blocks, 150)))
        for pool in fleet.pools
    )
    store = KvStore(int(rng.integers(5, 300)), 1e-6, 2e-6, 1e-4) if rng.random() < 0.5 else None
    return replace(fleet, pools=pools, store=store)
