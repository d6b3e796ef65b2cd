"""Small fleets and traces for the simulator's tests, drawn from a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.engine import Role
from costmodel.simulator import (
    CoefficientSteps,
    FirstToken,
    Fleet,
    HandOver,
    Limits,
    Policy,
    Pool,
    Router,
    StepModel,
    Trace,
    make_trace,
)
from costmodel.simulator.cost_steps import GridSteps

STEPS = CoefficientSteps((5e-3, 2e-5, 1e-9), (8e-3, 1e-7, 1e-4), (7e-3, 2e-7, 2e-4), large_batch=12)
ONLY_PROMPTS = Policy("only prompts", exclusive_prefill=True, chunked=False)


def random_trace(seed: int, most: int = 60) -> Trace:
    rng = np.random.default_rng([seed, 10])
    count = int(rng.integers(5, most))
    gap = rng.choice([0.01, 0.1, 0.3])
    return make_trace(
        np.cumsum(rng.exponential(gap, count)),
        rng.integers(1, 400, count),
        rng.integers(1, 200, count),
        prefix=rng.integers(-1, 5, count),
        concurrency=int(rng.choice([0, 0, 7])),
    )


def random_fleet(seed: int, policy: Policy, disaggregated: bool) -> Fleet:
    """Tight on blocks, sequences or budget more often than not."""
    rng = np.random.default_rng([seed, 11])
    stages = int(rng.choice([1, 1, 2]))
    limits = Limits(
        max_num_seqs=int(rng.choice([4, 8, 128])),
        max_num_batched_tokens=int(rng.choice([128, 256])),
        long_prefill_threshold=int(rng.choice([64, 1 << 60])),
        kv_blocks=int(rng.integers(45, 200)),
    )
    if rng.random() < 0.3 and stages == 1 and policy.exclusive_prefill and not policy.static:
        limits = replace(limits, kv_blocks=1 << 60, decode_token_cap=int(rng.choice([500, 2000])))
    pool = Pool(
        Role.COLOCATED,
        STEPS,
        policy,
        limits,
        replicas=int(rng.integers(1, 3)),
        pipeline=stages,
        router=list(Router)[int(rng.integers(5))],
        kv_seconds_per_token=float(rng.choice([0.0, 1e-5])),
    )
    if not disaggregated:
        return Fleet((pool,))
    hand_over = HandOver(1e-3, int(rng.choice([1, 8])), list(FirstToken)[int(rng.integers(3))])
    return Fleet((replace(pool, role=Role.PREFILL), replace(pool, role=Role.DECODE)), hand_over)


def on_lanes(fleet: Fleet) -> Fleet:
    """The fleet with engines of four data-parallel lanes, which are uneven."""
    nodes = np.array([1.0, 8.0, 4096.0])
    ones = np.ones((nodes.size, nodes.size))
    steps = GridSteps(
        nodes, 1e-3 + 2e-5 * nodes, nodes, 1e-5 * nodes, nodes, 1e-6 * np.outer(nodes, nodes), nodes, nodes, 1e-8 * ones
    )
    laned = replace(steps, lanes=4.0, uneven=1.2, lane_nodes=nodes, lane_times=1e-5 * nodes)
    return replace(fleet, pools=tuple(replace(pool, steps=laned) for pool in fleet.pools))


def colocated(policy: Policy, steps: StepModel = STEPS, limits: Limits | None = None, **pool: object) -> Fleet:
    return Fleet((Pool(Role.COLOCATED, steps, policy, limits or Limits(), **pool),))  # type: ignore[arg-type]
