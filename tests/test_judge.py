"""Fleets judged by simulation: routing, agreement with the analytic evaluation, and the interval that decides."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest

from costmodel.engine import Parallelism, Role
from costmodel.simulator.metrics import Attainment, Overload, overload
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.verification.demand import simulated_trace
from optimizer.verification.judge import (
    ClassJudgement,
    Judgement,
    Outcome,
    judge,
    judge_demands,
    pool_behind,
    simulated_fleet,
)
from tests.optimizer_cases import instance_of, limit, problem, slo, workload

REQUESTS = 4000


@cache
def small() -> Instance:
    classes = (replace(slo(name="fast"), share=0.25), replace(slo(name="slow", ttft=5.0), share=0.75))
    return instance_of(problem(slos=classes, workload=workload(rate=6.0)))


def pool(instance: Instance, name: str, role: Role, route: float, replicas: int = 1) -> FleetPool:
    shape = next(k for k, one in enumerate(instance.tables.shapes) if one.parallelism == Parallelism())
    seqs = limit(instance, int(role is not Role.PREFILL))
    return FleetPool(name, role, shape, seqs, 0, replicas, 0, np.full(instance.flows.isl.size, route))


def colocated(instance: Instance) -> Fleet:
    return Fleet((pool(instance, "colocated-1", Role.COLOCATED, 1.0, 2),))


def apart(instance: Instance) -> Fleet:
    return Fleet((pool(instance, "prefill-1", Role.PREFILL, 1.0, 2), pool(instance, "decode-1", Role.DECODE, 1.0)))


def test_requests_go_where_the_plan_routes_them() -> None:
    instance = small()
    parts = (("prefill-1", Role.PREFILL, 0.6), ("decode-1", Role.DECODE, 0.6), ("colocated-1", Role.COLOCATED, 0.4))
    fleet = Fleet(tuple(pool(instance, *part) for part in parts))
    demand = simulated_trace(instance, fleet, REQUESTS, seed=1)
    first, later = demand.trace.pool, demand.trace.decode_pool
    assert first is not None
    assert later is not None
    noise = 4 * np.sqrt(0.6 * 0.4 / REQUESTS)
    assert np.mean(first == 0) == pytest.approx(0.6, abs=noise)
    assert np.mean(first == 2) == pytest.approx(0.4, abs=noise)
    np.testing.assert_array_equal(later, np.where(first == 2, -1, 1))
    found = judge_demands(instance, simulated_fleet(instance, fleet), [demand])
    np.testing.assert_array_equal(found.runs[0].result.engine, first)


def test_one_pool_that_falls_behind_is_enough() -> None:
    """A small pool gets 1.2 times what it can take: 9 % of the requests, so that all others keep the goal."""
    instance = instance_of(problem(workload=workload(rate=300.0)))
    fleet = Fleet(
        (
            pool(instance, "prefill-1", Role.PREFILL, 0.91, 20),
            pool(instance, "prefill-2", Role.PREFILL, 0.09),
            pool(instance, "decode-1", Role.DECODE, 1.0, 8),
        )
    )
    found = judge(instance, fleet, requests=8000)
    (run,), (reached,) = found.runs, found.classes
    assert not overload([run.result]).overloaded
    assert reached.held
    assert found.overload.overloaded
    assert found.overload.where == "queue"
    assert not found.held
    assert not found.proven
    even = replace(fleet.pools[0], route=fleet.pools[0].route / 0.91 * 0.96)
    kept = Fleet((even, replace(fleet.pools[1], route=fleet.pools[1].route / 0.09 * 0.04), fleet.pools[2]))
    assert judge(instance, kept, requests=8000).proven


@pytest.mark.parametrize("build", [colocated, apart])
def test_simulation_and_analysis_agree(build: object) -> None:
    """At moderate load: TPOT medians within 10 %, TTFT p90 within a factor 1.6, attainment within 2 points."""
    instance = small()
    fleet = build(instance)  # type: ignore[operator]
    predicted, found = evaluate(instance, fleet), judge(instance, fleet, requests=REQUESTS)
    assert predicted.stable
    assert not found.overload.overloaded
    for k, one in enumerate(found.classes):
        assert one.tpot[0] == pytest.approx(predicted.tpot[k][0], rel=0.10)
        assert predicted.ttft[k][1] / 1.6 < one.ttft[1] < 1.6 * predicted.ttft[k][1]
        assert one.attainment.share == pytest.approx(predicted.attainment[k], abs=0.02)
    assert found.held
    assert found.rate == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("share", "low", "high", "outcome", "lacking"),
    [
        (0.894, 0.846, 0.942, Outcome.UNDECIDED, 64.0),  # 0.048 / 0.006, squared
        (0.9, 0.88, 0.92, Outcome.UNDECIDED, math.inf),
        (math.nan, 0.0, 1.0, Outcome.UNDECIDED, math.inf),  # no request of the class came
        (0.95, 0.9, 0.97, Outcome.MEETS, None),
        (0.8, 0.7, 0.899, Outcome.MISSES, None),
    ],
)
def test_a_class_is_judged_by_its_interval_and_not_by_its_share(
    share: float, low: float, high: float, outcome: Outcome, lacking: float | None
) -> None:
    one = ClassJudgement("chat", 0.9, Attainment(share, low, high, 1000), (), ())
    calm = Overload(overloaded=False, growth=0.0, drift=0.0, where="")
    assert one.outcome is outcome
    assert Judgement(1.0, (one,), calm, Mock(), ()).outcome is outcome
    assert Judgement(1.0, (one,), replace(calm, overloaded=True), Mock(), ()).outcome is Outcome.MISSES
    assert lacking is None or one.lacking == pytest.approx(lacking)


@pytest.mark.parametrize(("replicas", "behind"), [((1, 20), 0), ((20, 1), 1)])
def test_the_stage_that_is_too_small_falls_behind(replicas: tuple[int, int], behind: int) -> None:
    """Prompts that wait are in the prefill pool; those that are computed and wait are in the decode pool."""
    pools = apart(small()).pools
    starved = Fleet(tuple(replace(engines, replicas=n) for engines, n in zip(pools, replicas, strict=True)))
    judgement = judge(small(), starved, requests=1500, volume=60.0)
    assert judgement.overload.overloaded
    assert pool_behind(judgement) == behind
