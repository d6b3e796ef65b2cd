"""Fleets whose memory is critical: those that do not come out of a crowd are not said to hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from costmodel.simulator import SimulatedFleet, simulate
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.verification.bench import crowd_of, crowded, fullest, lasting, make_bench
from optimizer.verification.demand import simulated_trace
from optimizer.verification.judge import Judgement, Run, judge_runs, simulated_fleet
from tests.reasoning_fleets import collapsing
from tests.small_fleets import apart, small

RATE = 20.0


@cache
def fleet() -> tuple[Instance, Fleet]:
    instance = small(RATE)
    return instance, apart(instance, 5, 1)


def engines(kv_blocks: int) -> SimulatedFleet:
    """A decode engine that computes what it preempted in parts of 16 tokens, with so much memory."""
    instance, planned = fleet()
    made = simulated_fleet(instance, planned)
    limits = replace(made.pools[1].limits, kv_blocks=kv_blocks, max_num_batched_tokens=128, long_prefill_threshold=16)
    return replace(made, pools=(made.pools[0], replace(made.pools[1], limits=limits)))


def run(kv_blocks: int, seed: int, requests: int = 3000) -> tuple[Run, Judgement | None]:
    """A run that starts empty, and what one with a crowd leaves behind."""
    instance, planned = fleet()
    made = engines(kv_blocks)
    demand = simulated_trace(instance, planned, requests, seed, 1.0)
    crowd = crowded(demand, crowd_of(instance, planned, made))
    return Run(demand, simulate(demand.trace, made)), lasting(instance, made, Run(crowd, simulate(crowd.trace, made)))


@pytest.mark.parametrize("seed", [6, 7])
def test_a_fleet_with_two_lives_looks_well_until_its_memory_fills(seed: int) -> None:
    """20 runs of 40,000 requests that start empty keep from 10 % to 100 % of them."""
    instance, _ = fleet()
    alone, after = run(6000, seed)
    judged = judge_runs(instance, engines(6000), [alone])
    assert judged.proven
    assert fullest(engines(6000), [alone]) > 0.9
    assert after is not None
    assert after.classes[0].attainment.high < 0.9


def test_a_fleet_that_collapses_after_hours_is_refuted_before_its_full_runs() -> None:
    """Its runs that start empty are confirmed; 1.5 times what its memory holds is thrice what may be there at once."""
    instance, planned = collapsing()
    bench = replace(make_bench(instance), volume=0.97)
    found = bench.candidate(planned)
    assert (found.held, found.stuck) == (False, True)
    assert found.judgement.classes[0].attainment.high < 0.5
