"""A fleet over a day: replicas by the hour, start-up ahead or too late, against sums done by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.evaluate import evaluate, largest_load, replicas_at
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.procurement.operation import DAY, Day, autoscale, longest_start_up, queue_share
from tests.optimizer_cases import instance_of, limit, problem, workload

HOURS = np.array([0.25] * 12 + [1.0] * 12)


@cache
def case() -> tuple[Instance, Fleet]:
    """Colocated engines of one H100, as many as 64 requests per second need."""
    instance = instance_of(problem(workload=workload(64.0)))
    pool = FleetPool("colocated-1", Role.COLOCATED, 0, limit(instance, 1), 0, 64, 0, np.ones(instance.flows.isl.size))
    enough = replicas_at(instance, Fleet((pool,)), 1.0)
    return instance, Fleet((pool,)).resized(enough)


@cache
def day(start_up: float, least: int = 1) -> Day:
    return autoscale(*case(), HOURS, start_up, least)


@pytest.mark.parametrize("volume", [0.1, 0.4, 1.0])
def test_replicas_are_the_fewest_that_hold(volume: float) -> None:
    instance, fleet = case()
    count = replicas_at(instance, fleet, volume)
    assert evaluate(instance, fleet.resized(count), volume).holds
    assert count[0] == 1 or not evaluate(instance, fleet.resized(count - 1), volume).holds


def test_started_ahead_each_rise_is_paid_for_the_start_up_time_longer() -> None:
    price = case()[0].problem.offers[0].usd_per_hour
    low, high = int(day(0.0).need[0, 0]), int(day(0.0).need[12, 0])
    assert 1 <= low < high
    base = 12 * (low + high) * price
    assert day(0.0).ahead == pytest.approx(base)
    assert day(900.0).ahead == pytest.approx(base + 0.25 * (high - low) * price)
    assert day(9000.0).ahead == pytest.approx(base + 2.5 * (high - low) * price)
    assert day(900.0).on_load == pytest.approx(base)
    assert day(900.0).fixed == pytest.approx(24 * high * price)
    assert day(900.0).saved == pytest.approx(day(900.0).fixed - day(900.0).ahead)


def test_on_load_what_comes_during_the_start_up_and_its_queue_is_late() -> None:
    """15 min at the high rate are late, and then the queue clears at what the larger fleet has to spare."""
    instance, fleet = case()
    small = fleet.resized(day(0.0).need[0])

    def most(one: Fleet) -> float:
        return largest_load(lambda volume: evaluate(instance, one, volume).stable)

    queue = 0.25 * (1.0 - most(small)) / (most(fleet) - 1.0)
    assert 0.0 < queue < 11.0
    assert day(0.0).late == 0.0
    assert day(900.0).late == pytest.approx((0.25 + queue) / 15.0)
    low = float(evaluate(instance, small, 0.25).attainment[0])
    good = float(evaluate(instance, fleet, 1.0).attainment[0])
    assert float(day(900.0).attainment[0]) == pytest.approx((12 * 0.25 * low + (11.75 - queue) * good) / 15.0)
    assert day(900.0).hourly[:, 0].tolist() == pytest.approx([low] * 12 + [good] * 12)


@settings(deadline=None, max_examples=100)
@given(st.floats(0.0, 3.0), st.floats(0.1, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_a_queue_loses_no_request(volume: float, most: float, time: float, backlog: float) -> None:
    """Arrivals + backlog = what is served + what is left; where a queue stands, as much as can be is served."""
    share, left = queue_share(volume, most, time, backlog)
    served = share * time * most + (1.0 - share) * time * volume
    assert 0.0 <= share <= 1.0
    assert left >= 0.0
    if time > 1e-6:
        assert volume * time + backlog == pytest.approx(served + left, abs=1e-9)


def test_the_longest_start_up_is_where_the_goal_is_just_kept() -> None:
    longest = day(0.0).longest
    assert 0.0 < longest < DAY
    goal = case()[0].problem.slos[0].attainment
    assert float(day(longest).attainment[0]) >= goal - 1e-9
    assert float(day(longest + 5.0).attainment[0]) < goal
    assert longest_start_up(lambda seconds: seconds <= 100.0) == pytest.approx(100.0, abs=1.0)
    assert longest_start_up(lambda _seconds: True) == DAY
