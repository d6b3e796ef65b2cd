"""Demands of a simulation: the same requests whatever the rate, over a day, and as many at once as there are users."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Parallelism, Role
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.verification.demand import closed_demand, diurnal_demands, planned_profile, simulated_trace
from optimizer.verification.judge import judge_demands, simulated_fleet
from search_spaces.loader import load_problem, problem_of
from tests.optimizer_cases import instance_of, limit, problem, slo, workload

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


@cache
def instance() -> Instance:
    classes = (replace(slo(name="fast"), share=0.25), replace(slo(name="slow", ttft=5.0), share=0.75))
    return instance_of(problem(slos=classes, workload=workload(rate=6.0, burstiness=1.5)))


def pool(name: str, role: Role, route: float) -> FleetPool:
    tables = instance().tables
    shape = next(k for k, one in enumerate(tables.shapes) if one.parallelism == Parallelism())
    seqs = limit(instance(), int(role is not Role.PREFILL))
    return FleetPool(name, role, shape, seqs, 0, 1, 0, np.full(instance().flows.isl.size, route))


@cache
def fleet() -> Fleet:
    parts = (("prefill-1", Role.PREFILL, 0.4), ("decode-1", Role.DECODE, 0.4), ("colocated-1", Role.COLOCATED, 0.6))
    return Fleet(tuple(pool(*part) for part in parts))


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, one=VOLUMES, other=VOLUMES)
def test_random_numbers_are_common_to_all_rates(seed: int, one: float, other: float) -> None:
    """Lengths, classes and pools do not depend on the rate, and the times between arrivals only scale with it."""
    first, second = (simulated_trace(instance(), fleet(), 200, seed, volume) for volume in (one, other))
    for name in ("isl", "osl", "cached", "pool", "decode_pool"):
        np.testing.assert_array_equal(getattr(first.trace, name), getattr(second.trace, name))
    np.testing.assert_array_equal(first.flow, second.flow)
    np.testing.assert_allclose(one * first.trace.arrival, other * second.trace.arrival, rtol=1e-9)


@settings(deadline=None, max_examples=20)
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
    inside = [
        int((came <= t).sum() - (ended <= t).sum()) for t in np.sort(came)[12:-1]
    ]  # as the last comes, two may end
    assert set(inside) == {12}
    assert run.result.finished.all()


def test_the_day_that_the_workload_states_is_a_multiple_of_the_planned_rate(tmp_path: Path) -> None:
    assert planned_profile(instance()) is None
    rates = [2.0, 8.0, *[4.0] * 22]
    file = tmp_path / "day.yaml"
    file.write_text(DAY.format(rates=rates), "utf-8")
    stated = load_problem(file)
    planned = planned_profile(replace(instance(), problem=stated))
    assert planned is not None
    assert planned.tolist() == [0.5, 2.0, *[1.0] * 22]  # planned for the rate that half of the hours do not exceed
    again = problem_of(stated.inputs, "provenance.inputs", tmp_path)
    np.testing.assert_array_equal(planned, planned_profile(replace(instance(), problem=again)))
