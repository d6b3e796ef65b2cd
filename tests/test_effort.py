"""How an effort keeps to the time by which the user wants an answer, by a clock that only the test moves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from optimizer.rivals.alternatives import little
from optimizer.solver import search as searching
from optimizer.solver.fleet_model import Aim
from optimizer.solver.program import Outcome
from optimizer.solver.search import LEAST_TIME, Effort, generate_from, search
from optimizer.solver.simple_plans import column_totals
from tests.optimizer_cases import columns_of, instance_of, offer, problem, workload

SLOW = Effort(starters=1, added=1, rounds=6, bound_gap=0.0, columns=4, more=8, nodes=5, choices=2)
"""So few columns at first that the relaxation takes several rounds."""


@dataclass
class Clock:
    """Tells the time that it was set to [s]."""

    now: float = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(searching, "time", fake)
    return fake


def test_it_is_late_from_the_moment_on_that_was_named(clock: Clock) -> None:
    effort, told = Effort(until=105.0), []
    for clock.now in (0.0, 104.999, 105.0, 200.0):
        told.append(effort.late())
    assert told == [False, False, True, True]


def test_without_a_moment_it_is_never_late(clock: Clock) -> None:
    clock.now = 1e12
    assert Effort().until == math.inf
    assert not Effort().late()
    assert Effort(time_limit=60.0).seconds() == 60.0


@pytest.mark.parametrize(
    ("now", "seconds"), [(100.0, 60.0), (140.0, 60.0), (150.0, 50.0), (199.99, LEAST_TIME), (500.0, LEAST_TIME)]
)
def test_a_search_gets_the_time_that_is_left_within_its_limit(clock: Clock, now: float, seconds: float) -> None:
    """Until 200 s of the clock: at most 60 s, and a little even when it is late."""
    clock.now = now
    effort = Effort(time_limit=60.0, until=200.0)
    assert effort.seconds() == pytest.approx(seconds)
    assert effort.work().time_limit == pytest.approx(seconds)


def test_less_effort_ends_at_the_same_moment(clock: Clock) -> None:
    assert not little(Effort(until=105.0)).late()
    clock.now = 105.0
    assert little(Effort(until=105.0)).late()


def test_when_it_is_late_one_round_bounds_the_cost_and_there_is_a_fleet(clock: Clock) -> None:
    """The bound of the first round is below that of them all, and the fleet is not below it."""
    instance = instance_of(problem(offers=(offer("H100"), offer("L40S")), workload=workload(40.0)))
    columns = columns_of(instance)
    totals = column_totals(instance, columns)
    full = generate_from(instance, columns, totals, Aim(), replace(SLOW, until=101.0))
    late = generate_from(instance, columns, totals, Aim(), replace(SLOW, until=99.0))
    assert late.bound < full.bound
    found = search(instance, columns, totals, Aim(), replace(SLOW, until=99.0))
    assert found.outcome in {Outcome.OPTIMAL, Outcome.FEASIBLE}
    assert found.bound <= found.objective
    assert full.bound <= found.objective
