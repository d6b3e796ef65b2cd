"""A fleet over a day: replicas by the hour, start-up ahead or too late, against sums done by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.procurement.autoscale import DAY, Day, autoscale, longest_start_up, replicas_at, with_replicas
from pdplan.cli import cli, run
from reports.autoscale_text import autoscale_dict, autoscale_text
from tests.optimizer_cases import instance_of, problem, workload

HOURS = np.array([0.25] * 12 + [1.0] * 12)


@cache
def case() -> tuple[Instance, Fleet]:
    """Colocated engines of one H100, as many as 64 requests per second need."""
    instance = instance_of(problem(workload=workload(64.0)))
    pool = FleetPool("colocated-1", Role.COLOCATED, 0, 1, 0, 64, 0, np.ones(instance.flows.isl.size))
    enough = replicas_at(instance, Fleet((pool,)), 1.0)
    return instance, with_replicas(Fleet((pool,)), enough)


@cache
def day(start_up: float, least: int = 1) -> Day:
    return autoscale(*case(), HOURS, start_up, least)


@pytest.mark.parametrize("volume", [0.1, 0.4, 1.0])
def test_replicas_are_the_fewest_that_hold(volume: float) -> None:
    instance, fleet = case()
    count = replicas_at(instance, fleet, volume)
    assert holds(instance, predict_misses(instance, with_replicas(fleet, count), volume))
    assert count[0] == 1 or not holds(instance, predict_misses(instance, with_replicas(fleet, count - 1), volume))


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


def test_on_load_what_comes_during_the_start_up_meets_the_smaller_fleet() -> None:
    """A quarter of an hour at the high rate, of 12 hours at 1 and 12 at 0.25, is 0.25 / 15 of the requests."""
    assert day(0.0).late == 0.0
    assert day(900.0).late == pytest.approx(0.25 / 15.0)
    assert day(9000.0).late == pytest.approx(2.5 / 15.0)
    instance, fleet = case()
    small = with_replicas(fleet, day(0.0).need[0])
    good = [float(predict_misses(instance, fleet, v).attainment[0]) for v in (0.25, 1.0)]
    assert float(predict_misses(instance, small, 1.0).attainment[0]) == 0.0
    low = float(predict_misses(instance, small, 0.25).attainment[0])
    assert good[0] >= low
    assert float(day(900.0).attainment[0]) == pytest.approx((12 * 0.25 * low + 11.75 * good[1]) / 15.0)


def test_the_longest_start_up_is_where_the_goal_is_just_kept() -> None:
    longest = day(0.0).longest
    assert 0.0 < longest < DAY
    goal = case()[0].problem.slos[0].attainment
    assert float(day(longest).attainment[0]) >= goal - 1e-9
    assert float(day(longest + 5.0).attainment[0]) < goal
    assert longest_start_up(lambda seconds: seconds <= 100.0) == pytest.approx(100.0, abs=1.0)
    assert longest_start_up(lambda _seconds: True) == DAY


def test_least_replicas_stay() -> None:
    low = int(day(0.0).need[0, 0])
    assert int(day(0.0, low + 1).need[0, 0]) == low + 1


def test_hours_that_the_fleet_cannot_carry_are_named() -> None:
    found = autoscale(*case(), np.array([0.5] * 23 + [3.0]), 300.0)
    assert found.short == (23,)
    assert (found.need[23] == [pool.replicas for pool in case()[1].pools]).all()


@settings(deadline=None, max_examples=4)
@given(st.floats(0.0, 20_000.0), st.floats(0.0, 20_000.0))
def test_a_faster_start_never_costs_more_nor_misses_more(first: float, second: float) -> None:
    fast, slow = (day(start) for start in sorted((first, second)))
    assert fast.ahead <= slow.ahead + 1e-9
    assert fast.late <= slow.late + 1e-9
    assert slow.ahead <= slow.fixed + 1e-9


def test_text_and_json_say_the_same() -> None:
    instance, fleet = case()
    told, data = autoscale_text(instance, fleet, day(900.0), 100), autoscale_dict(instance, fleet, day(900.0))
    assert "15 min before each rise" in told
    assert "1.7 % of the requests meet a fleet" in told
    assert data["saved_usd_per_day"] == pytest.approx(day(900.0).saved)
    assert data["hours"][12]["replicas"] == {"colocated-1": int(day(900.0).need[12, 0])}
    short = autoscale_text(instance, fleet, replace(day(900.0), short=(3,)), 100)
    assert "In 1 hours of up to 16 req/s even the whole fleet misses a goal." in short


def test_a_plan_without_a_profile_asks_for_one(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = CliRunner().invoke(
        cli, ["optimize", "examples/chat.yaml", "--effort", "quick", "--json", "--set", "workload.request_rate=4"]
    )
    plan.write_text(made.output, "utf-8")
    assert run(["autoscale", str(plan)]) == 2
    assert run(["autoscale", str(plan), "--by-hour", "1,2"]) == 2
    rates = ",".join(["1"] * 12 + ["4"] * 12)
    shown = CliRunner().invoke(cli, ["autoscale", str(plan), "--by-hour", rates, "--json"])
    assert json.loads(shown.output)["fixed_usd_per_day"] >= json.loads(shown.output)["ahead_usd_per_day"]
