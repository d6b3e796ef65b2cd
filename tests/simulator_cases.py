"""Small fleets and traces for the simulator's tests, drawn from a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.reference.lone_steps import CoefficientSteps
from costmodel.engine import Policy, Role
from costmodel.simulator.fleet import Limits, Router, SimulatedFleet, SimulatedPool, StepModel, StepNumbers, StepWork
from costmodel.simulator.steps import GridSteps
from costmodel.workload import Pages, Trace, make_trace

STEPS = CoefficientSteps((5e-3, 2e-5, 1e-9), (8e-3, 1e-7, 1e-4), (7e-3, 2e-7, 2e-4), large_batch=12)
ONLY_PROMPTS = Policy(exclusive_prefill=True, chunked=False)
WORK = StepWork(
    peak=1e15,
    bandwidth=1e13,
    knee=5,
    token_flop=3.0,
    row_flop=5.0,
    pair_flop=7.0,
    decode_flop=11.0,
    context_flop=13.0,
    step_bytes=17.0,
    capped_bytes=19.0,
    token_bytes=23.0,
    row_bytes=29.0,
    reach_bytes=31.0,
    decode_bytes=37.0,
    context_bytes=41.0,
)


class Working(CoefficientSteps):
    """Coefficient steps that say what work they are."""

    __slots__ = ()

    def numbers(self) -> StepNumbers:
        return replace(super().numbers(), work=WORK)


WORKING = Working(STEPS.prefill_abc, STEPS.small, STEPS.large, STEPS.large_batch)


def on_lanes() -> GridSteps:
    """Engines of four data-parallel lanes."""
    nodes = np.array([1.0, 8.0, 4096.0])
    flat, square = np.ones((3, 3)), np.outer(nodes, nodes)
    return GridSteps(
        *(nodes, 1e-3 + 2e-5 * nodes, nodes, 1e-5 * nodes, nodes, 1e-6 * square, nodes, nodes, 1e-8 * flat),
        work=WORK,
        lanes=4.0,
        lane_nodes=nodes,
        lane_times=1e-5 * nodes,
    )


def pages_of(ids: list[list[int]], tokens: int) -> Pages:
    numbers = np.unique([page for row in ids for page in row], return_inverse=True)[1]
    return Pages(numbers, np.array([len(row) for row in ids]), tokens)


def random_trace(seed: int, most: int = 60, *, paged: bool = False) -> Trace:
    """paged: requests that go on from a random part of one of four conversations."""
    rng = np.random.default_rng([seed, 10])
    count = int(rng.integers(5, most))
    arrival = np.cumsum(rng.exponential(rng.choice([0.01, 0.1, 0.3]), count))
    isl, osl = rng.integers(1, 400, count), rng.integers(1, 200, count)
    talks, shared = rng.integers(4, size=count), rng.integers(0, 26, count)
    ids = [
        [1000 * talk + k if k < same else int(rng.integers(10**4, 10**9)) for k in range(-(-tokens // 16))]
        for talk, same, tokens in zip(talks.tolist(), shared.tolist(), isl.tolist(), strict=True)
    ]
    pages, together = pages_of(ids, 16) if paged else None, int(rng.choice([0, 0, 7]))
    return replace(make_trace(arrival, isl, osl), concurrency=together, pages=pages)


def random_fleet(seed: int, policy: Policy, disaggregated: bool, *, paged: bool = False) -> SimulatedFleet:
    """Tight on blocks, sequences or budget more often than not."""
    rng = np.random.default_rng([seed, 11])
    stages = int(rng.choice([1, 1, 2, 3]))
    limits = Limits(
        max_num_seqs=int(rng.choice([4, 8, 128])),
        max_num_batched_tokens=int(rng.choice([128, 256])),
        long_prefill_threshold=int(rng.choice([64, 1 << 60])),
        kv_blocks=int(rng.integers(45, 150 if paged else 200)),
    )
    pool = SimulatedPool(
        Role.COLOCATED,
        on_lanes() if rng.random() < 0.3 else WORKING,
        policy,
        limits,
        replicas=int(rng.integers(1, 3)),
        pipeline=stages,
        router=list(Router)[int(rng.integers(len(Router)))],
        kv_seconds_per_token=float(rng.choice([0.0, 1e-5])),
        nics=int(rng.integers(1, 4)),
    )
    if not disaggregated:
        return (pool,)
    pulled = replace(policy, pulls=bool(rng.random() < 0.5))
    return (
        replace(pool, role=Role.PREFILL),
        replace(pool, role=Role.DECODE, policy=pulled, nics=int(rng.integers(1, 4))),
    )


def colocated(policy: Policy, steps: StepModel = STEPS, limits: Limits | None = None, **pool: object) -> SimulatedFleet:
    return (SimulatedPool(Role.COLOCATED, steps, policy, limits or Limits(), **pool),)
