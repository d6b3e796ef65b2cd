"""How long a fleet is simulated: until its queues have forgotten; and what its pools can take by then."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from costmodel.engine import Parallelism, Role
from optimizer.fleets.build_plan import binding
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Binding
from optimizer.plans.records import Simulation
from optimizer.verification.bench import full_length, make_bench, memory, settling
from optimizer.verification.judge import judge_runs
from optimizer.verification.record import with_simulated_headroom
from tests.optimizer_cases import instance_of, limit, problem, workload
from tests.reasoning_fleets import flattered


@pytest.fixture(scope="module")
def instance() -> Instance:
    return instance_of(problem(workload=workload(rate=6.0)))


def colocated(instance: Instance, replicas: int, share: float = 1.0) -> FleetPool:
    shape = next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism == Parallelism())
    route = instance.flows.share * 0.0 + share
    return FleetPool("colocated-1", Role.COLOCATED, shape, limit(instance, 1), 0, replicas, 0, route)


def test_a_queue_remembers_as_a_brownian_motion_does(instance: Instance) -> None:
    fleet = Fleet((colocated(instance, 2),))
    busy = evaluate(instance, fleet).states[0].utilization
    pool, weight = fleet.pools[0], instance.flows.share / instance.flows.share.sum()
    work = instance.tables.prefill_time[pool.shape, pool.chunk]
    mean = float(weight @ work)
    spread = float(weight @ (work - mean) ** 2) / mean**2 + instance.flows.arrival_scv
    assert memory(instance, fleet, 1.0) == pytest.approx(busy * spread / (1.0 - busy) ** 2)


def test_batches_remember_requests_that_are_longer_than_a_mean_one() -> None:
    instance, fleet = flattered()
    flows, pool = instance.flows, fleet.pools[0]
    mean, square = (float(flows.share @ flows.osl**power / flows.share.sum()) for power in (1, 2))
    relaxation = pool_state(instance, pool, 1.0).relaxation
    assert square / mean**2 > 2.0
    assert settling(instance, fleet, 1.0) == pytest.approx(relaxation * square / mean**2 * flows.rate.sum())
    assert full_length(instance, fleet, 8000, 1.0) == math.ceil(40.0 * settling(instance, fleet, 1.0))


def test_the_interval_of_a_fleet_for_long_answers_holds_its_long_run_value() -> None:
    """Ten runs of 100,000 requests say 97.4 % at 1 % less load, which two of 20,000 are too short to see."""
    instance, fleet = flattered()
    bench = replace(make_bench(instance), volume=0.99)
    part = bench.part(fleet)
    short, full = (
        judge_runs(instance, part.engines, part.runs(requests, 9, 11)).classes[0].attainment
        for requests in (20_000, part.full)
    )
    assert short.low > 0.974
    assert full.low < 0.974 < full.high
    assert full.high - full.low < 0.1


def rows(time: float, slots: float) -> list[Binding]:
    return [
        binding(
            "time",
            "prefill-1",
            time,
            1.0,
            "1",
            "prefill-1 can take 43 % more load: beyond that, prompts wait too long.",
        ),
        binding("slots", "decode-1", slots, 1.0, "1", "decode-1 can take 145 % more load: others wait."),
        binding("budget", "fleet", 24.0, 25.0, "$/h", "$24.00/h used; the budget is $25.00/h."),
    ]


def simulated(goodput: float | None, fails: float | None) -> Simulation:
    return cast("Simulation", SimpleNamespace(rate_rps=10.0, goodput_rps=goodput, goodput_fails_rps=fails))


def test_a_formula_that_promises_too_little_or_too_much_is_mended() -> None:
    low = with_simulated_headroom(rows(0.8, 0.75), simulated(14.0, 15.0))
    assert [row.used for row in low] == pytest.approx([10 / 14, 10 / 14, 24.0])
    assert low[1].sentence == (
        "decode-1 can take 40 % more load in simulation: beyond that, by formula, more than max_num_seqs requests run "
        "at once, so some wait."
    )
    high = with_simulated_headroom(rows(0.6, 0.4), simulated(14.0, 15.0))
    assert [row.used for row in high] == pytest.approx([10 / 14, 0.4, 24.0])
    assert high[0].slack == pytest.approx(1 - 10 / 14)
