"""Fleets judged by simulation: routing, agreement with the analytic evaluation, and the interval that decides."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator import POWER, mean_power
from costmodel.engine import Role
from costmodel.simulator.metrics import Overload, overload, run_span
from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, boundary
from optimizer.loads.instance import Instance
from optimizer.plans.records import QUEUE, Outcome
from optimizer.verification.bench import Slice
from optimizer.verification.demand import closed_demand, diurnal_demands, planned_profile, simulated_trace
from optimizer.verification.judge import (
    Judgement,
    Trials,
    breakdown,
    judge_demands,
    pool_behind,
    simulated_fleet,
    until_decided,
)
from optimizer.verification.simulated_plan import LOADS, Curve, fleet_use, judge, latency_curve, seeded_trials
from search_spaces.loader import load_problem, problem_of
from tests.optimizer_cases import instance_of, judged_class, judgement, problem, slo, workload
from tests.small_fleets import alone, apart, pool

REQUESTS = 4000


@cache
def small(burstiness: float = 1.0) -> Instance:
    classes = (replace(slo(name="fast"), share=0.25), replace(slo(name="slow", ttft=5.0), share=0.75))
    return instance_of(problem(slos=classes, workload=workload(rate=6.0, burstiness=burstiness)))


def three_pools(instance: Instance, share: float) -> Fleet:
    """A share of the requests to a prefill and a decode engine, the rest to a colocated one."""
    parts = (("prefill-1", Role.PREFILL, share), ("decode-1", Role.DECODE, share))
    rest = pool(instance, "colocated-1", Role.COLOCATED, 1, 1.0 - share)
    return Fleet((*(pool(instance, name, role, 1, route) for name, role, route in parts), rest))


def test_requests_go_where_the_plan_routes_them() -> None:
    instance = small()
    fleet = three_pools(instance, 0.6)
    demand = simulated_trace(instance, fleet, REQUESTS, seed=1)
    first, later = demand.trace.pool, demand.trace.decode_pool
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
            pool(instance, "prefill-1", Role.PREFILL, 20, 0.91),
            pool(instance, "prefill-2", Role.PREFILL, 1, 0.09),
            pool(instance, "decode-1", Role.DECODE, 8),
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
    assert breakdown(instance, found) == (1, QUEUE)
    even = replace(fleet.pools[0], route=fleet.pools[0].route / 0.91 * 0.96)
    kept = Fleet((even, replace(fleet.pools[1], route=fleet.pools[1].route / 0.09 * 0.04), fleet.pools[2]))
    assert judge(instance, kept, requests=8000).proven


@pytest.mark.parametrize(("replicas", "late"), [((4, 1), {1}), ((1, 40), {0}), ((1, 1), {0, 1})])
def test_only_the_classes_of_a_pool_that_falls_behind_are_late(replicas: tuple[int, int], late: set[int]) -> None:
    """Each class has a pool of its own; what a class with a pool that keeps up gets does not follow from the others."""
    instance = small()
    pools = (pool(instance, f"colocated-{k + 1}", Role.COLOCATED, number) for k, number in enumerate(replicas))
    fleet = Fleet(tuple(replace(own, route=own.route * (instance.flows.slo == k)) for k, own in enumerate(pools)))
    found = judge(instance, fleet, requests=REQUESTS, volume=20.0)
    assert found.overloaded
    assert found.late == late
    assert all(found.classes[k].held for k in {0, 1} - late)
    assert judge(instance, fleet, requests=REQUESTS, volume=0.5).late == set()


@pytest.mark.parametrize(
    ("ttft", "tpot", "expected"),
    [(0.16, 5.0, (0, "ttft")), (60.0, 0.007, (1, "tpot")), (60.0, 5.0, None)],
)
def test_what_breaks_is_the_metric_that_most_late_requests_exceed_and_the_pool_that_makes_them_late(
    ttft: float, tpot: float, expected: tuple[int, str] | None
) -> None:
    instance = instance_of(problem(slos=(slo(ttft=ttft, tpot=tpot),), workload=workload(rate=6.0)))
    assert breakdown(instance, judge(instance, apart(instance, 2, 1), requests=REQUESTS)) == expected


@pytest.mark.parametrize(
    "build", [lambda instance: alone(instance, 2), lambda instance: apart(instance, 2, 1)], ids=["colocated", "apart"]
)
def test_simulation_and_analysis_agree(build: object) -> None:
    """At moderate load: TPOT medians within 10 %, TTFT p90 within a factor 1.6, attainment within 2 points."""
    instance = small()
    fleet = build(instance)
    predicted, found = evaluate(instance, fleet), judge(instance, fleet, requests=REQUESTS)
    assert predicted.stable
    assert not found.overload.overloaded
    for k, one in enumerate(found.classes):
        assert one.tpot_s.p50 == pytest.approx(predicted.tpot[k][0], rel=0.10)
        assert predicted.ttft[k][1] / 1.6 < one.ttft_s.p90 < 1.6 * predicted.ttft[k][1]
        assert one.attainment == pytest.approx(predicted.attainment[k], abs=0.02)
    assert found.held
    assert found.rate == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("share", "low", "high", "outcome", "lacking"),
    [
        (0.894, 0.846, 0.942, Outcome.UNDECIDED, 64.0),  # 0.048 / 0.006, squared
        (0.9, 0.88, 0.92, Outcome.UNDECIDED, math.inf),
        (1.0, 0.0, 1.0, Outcome.UNDECIDED, math.inf),  # no request of the class came
        (0.95, 0.9, 0.97, Outcome.MEETS, None),
        (0.8, 0.7, 0.899, Outcome.MISSES, None),
    ],
)
def test_a_class_is_judged_by_its_interval_and_not_by_its_share(
    share: float, low: float, high: float, outcome: Outcome, lacking: float | None
) -> None:
    one = judged_class(share, low, high, counted=1000 if low else 0)
    calm = Overload(overloaded=False, growth=0.0, drift=0.0, where="")
    assert one.outcome is outcome
    assert Judgement(1.0, (one,), calm, Mock(), ()).outcome is outcome
    assert Judgement(1.0, (one,), replace(calm, overloaded=True), Mock(), ()).outcome is Outcome.MISSES
    assert lacking is None or one.lacking == pytest.approx(lacking)


@pytest.mark.parametrize(
    ("share", "low", "high", "runs", "wanted", "patient"),
    [
        (0.894, 0.846, 0.942, 2, 4, 4),
        (0.88, 0.85, 0.915, 2, 2, 4),  # (0.035 / 0.02) squared is less than 4
        (0.88, 0.85, 0.915, 1, 2, 2),
        (0.92, 0.885, 0.95, 2, 4, 4),
        (0.8, 0.7, 0.899, 1, 1, 1),
        (0.95, 0.91, 0.97, 1, 2, 2),
    ],
)
def test_runs_are_doubled_until_they_decide_and_a_search_gives_up_sooner(
    share: float, low: float, high: float, runs: int, wanted: int, patient: int
) -> None:
    judged = judgement(share, low, high, runs=runs)
    assert until_decided(8000, least=2, gives_up=True)(judged) == wanted
    assert until_decided(8000, least=2)(judged) == patient


@pytest.mark.parametrize(("replicas", "behind"), [((1, 20), 0), ((20, 1), 1), ((6, 1), 1)])
def test_the_stage_that_is_too_small_falls_behind(replicas: tuple[int, int], behind: int) -> None:
    """Prompts that wait are in the prefill pool, computed ones in the decode pool, even where (6, 1) few can wait."""
    pools = apart(small(), 2, 1).pools
    starved = Fleet(tuple(replace(engines, replicas=n) for engines, n in zip(pools, replicas, strict=True)))
    found = judge(small(), starved, requests=1500, volume=60.0)
    assert found.overload.overloaded
    assert pool_behind(found) == behind


# --- demands of a simulation: the same requests whatever the rate, over a day, and as many at once as there are users

DAY = """\
model: Llama-3.1-8B
workload:
  diurnal: {{requests_per_second_by_hour: {rates}, percentile: 50}}
  max_tokens: 8192
  lengths: {{histogram: [{{isl: 800, osl: 150, share: 1.0}}]}}
slo: {{ttft: 1s, tpot: 40ms}}
accelerators: [H100]
"""
SEEDS = st.integers(0, 1000)
VOLUMES = st.floats(0.01, 100.0)


def instance() -> Instance:
    return small(1.5)


@cache
def fleet() -> Fleet:
    return three_pools(instance(), 0.4)


@settings(max_examples=40)
@given(seed=SEEDS, one=VOLUMES, other=VOLUMES)
def test_random_numbers_are_common_to_all_rates(seed: int, one: float, other: float) -> None:
    """Lengths, classes and pools do not depend on the rate, and the times between arrivals only scale with it."""
    first, second = (simulated_trace(instance(), fleet(), 200, seed, volume) for volume in (one, other))
    for name in ("isl", "osl", "cached", "pool", "decode_pool"):
        np.testing.assert_array_equal(getattr(first.trace, name), getattr(second.trace, name))
    np.testing.assert_array_equal(first.flow, second.flow)
    np.testing.assert_allclose(one * first.trace.arrival, other * second.trace.arrival, rtol=1e-9)


@settings(max_examples=20)
@given(seed=SEEDS, volume=VOLUMES)
def test_a_day_and_a_closed_loop_have_the_same_requests(seed: int, volume: float) -> None:
    drawn = simulated_trace(instance(), fleet(), 200, seed)
    (day,) = diurnal_demands(instance(), fleet(), np.array([1.0, 2.0]), requests=200, seed=seed, volume=volume)
    closed = closed_demand(drawn, 20)
    for demand in (day, closed):
        np.testing.assert_array_equal(demand.trace.isl, drawn.trace.isl)
        np.testing.assert_array_equal(demand.trace.pool, drawn.trace.pool)
        np.testing.assert_array_equal(demand.flow, drawn.flow)
    assert closed.trace.concurrency == 20
    assert day.trace.arrival[-1] == pytest.approx(200 / (1.5 * 6.0 * volume))


def test_a_closed_loop_keeps_as_many_requests_as_it_has_users() -> None:
    demand = closed_demand(simulated_trace(instance(), fleet(), 300, 1), 12)
    (run,) = judge_demands(instance(), simulated_fleet(instance(), fleet()), [demand]).runs
    came, ended = run.result.arrival, run.result.finish + run.result.late
    times = np.sort(came)[12:-1]  # as the last comes, two may end
    assert {int((came <= time).sum() - (ended <= time).sum()) for time in times} == {12}
    assert run.result.finished.all()


def test_the_day_that_the_workload_states_is_a_multiple_of_the_planned_rate(tmp_path: Path) -> None:
    assert planned_profile(instance()) is None
    rates = [2.0, 8.0, *[4.0] * 22]
    file = tmp_path / "day.yaml"
    file.write_text(DAY.format(rates=rates), "utf-8")
    stated = load_problem(file)
    planned = planned_profile(replace(instance(), problem=stated))
    assert planned.tolist() == [0.5, 2.0, *[1.0] * 22]  # planned for the rate that half of the hours do not exceed
    again = problem_of(stated.inputs, "provenance.inputs", tmp_path)
    np.testing.assert_array_equal(planned, planned_profile(replace(instance(), problem=again)))


# --- what engines did in a simulation: shares between 0 and 1, energy between idle and TDP, gaps without the warm-up

SHARES = st.floats(0.0, 1.0)


@given(tdp=st.floats(50.0, 2000.0), busy=SHARES, compute=SHARES, memory=SHARES)
def test_power_lies_between_idle_and_tdp(tdp: float, busy: float, compute: float, memory: float) -> None:
    """Nothing is computed outside of steps, so MFU and MBU are at most the busy share."""
    power = mean_power(tdp, busy, compute * busy, memory * busy)
    assert POWER.idle * tdp * (1 - 1e-12) <= power <= tdp * (1 + 1e-12)
    assert power <= tdp * (POWER.idle + (1.0 - POWER.idle) * busy) * (1 + 1e-12)
    assert power <= mean_power(tdp, busy, min(1.0, 1.1 * compute) * busy, memory * busy) * (1 + 1e-12)


@pytest.mark.parametrize("volume", [0.05, 1.0, 4.0])
def test_a_run_uses_no_more_than_there_is(volume: float) -> None:
    found = judge(instance(), fleet(), requests=600, volume=volume, replications=2)
    use = fleet_use(instance(), fleet(), found)
    span = sum(run_span(run.result) for run in found.runs)
    for engines in use.pools:
        assert 0.0 < engines.utilization <= 1.0 + 1e-9
        assert 0.0 < engines.mfu < engines.utilization
        assert 0.0 < engines.mbu < engines.utilization
        assert 0.0 < engines.kv_occupancy <= engines.kv_peak <= 1.0
        assert POWER.idle * engines.tdp * span < engines.energy < engines.tdp * span
        assert engines.energy == pytest.approx(engines.power * span)
        assert engines.preemption_rate >= 0.0
        assert engines.rejection_rate == engines.rejected == 0
    tokens = sum(int(run.demand.trace.osl.sum()) for run in found.runs)
    assert use.energy == pytest.approx(sum(pool.energy for pool in use.pools))
    assert use.wh_per_1000_tokens == pytest.approx(use.energy / 3600 / tokens * 1000)


# --- the latency-throughput curve: rates around saturation, with what must hold on any of them

CURVE_REQUESTS = 1500


def trials() -> Trials:
    return seeded_trials(Slice.whole(instance(), fleet(), CURVE_REQUESTS, 0))


@cache
def curve() -> Curve:
    return latency_curve(trials(), CURVE_REQUESTS, tolerance=0.05)


def test_the_curve_goes_from_light_load_to_beyond_saturation() -> None:
    rates = np.array([point.rate for point in curve().points])
    assert np.all(np.diff(rates) > 0)
    assert rates[0] == pytest.approx(LOADS[0] * curve().saturation)
    assert rates[-1] == pytest.approx(LOADS[-1] * curve().saturation)
    assert curve().saturation in rates
    assert [point.overloaded for point in curve().points] == [rate > curve().saturation for rate in rates]


def test_latencies_rise_and_attainment_falls_with_the_rate() -> None:
    points = curve().points
    times = [point.e2e for point in points]
    assert all(later > 0.98 * earlier for earlier, later in pairwise(times))
    for k in range(2):
        shares = [point.classes[k].attainment for point in points]
        assert all(later <= earlier + 0.05 for earlier, later in pairwise(shares))
        assert all(point.classes[k].attainment_low <= shares[n] for n, point in enumerate(points))
    assert all(point.in_time <= point.served for point in points)


def test_the_goodput_is_that_of_the_search_alone_and_no_point_beyond_it_holds() -> None:
    alone = trials().goodput(0.05)
    assert curve().goodput.rate == alone.rate <= curve().saturation
    assert alone.rate in [point.rate for point in curve().points]
    looked_at = [point for point in curve().points if not alone.rate < point.rate < alone.fails]
    assert [point.proven for point in looked_at] == [point.rate <= alone.rate for point in looked_at]
    assert all(point.held for point in curve().points if point.proven)


def test_a_boundary_is_found_to_its_tolerance() -> None:
    low, high = boundary(lambda volume: volume <= 3.3, 0.01)
    assert low <= 3.3 < high
    assert high - low <= 0.01 * high
    assert boundary(lambda volume: False, 0.01)[0] == 0.0
    assert boundary(lambda volume: volume <= 0.3, 0.01)[0] == pytest.approx(0.3, rel=0.02)
