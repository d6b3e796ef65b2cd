"""How an effort keeps to the time by which the user wants an answer, by a clock that only the test moves."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.plans.plan import Status
from optimizer.recommend.level import Brake, Level
from optimizer.recommend.optimize import UNCONFIRMED, UNPROVEN, optimize
from optimizer.rivals.alternatives import little
from optimizer.solver import search as searching
from optimizer.solver.blocks import LEAST_TIME
from optimizer.solver.fleet_model import Aim
from optimizer.solver.program import Outcome
from optimizer.solver.search import Effort, generate_from, search
from optimizer.solver.simple_plans import column_totals, price_space, simple_plans
from optimizer.solver.split import splits, with_best_split
from optimizer.whatif.scenario import solve_full
from search_spaces.problem import Constraints, Goal, Objective
from tests.optimizer_cases import columns_of, instance_of, offer, problem, slo, workload
from tests.running import QUICK, tiny, within

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


def test_when_it_is_late_nothing_is_said_to_be_impossible(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts that no column promises to bear: proven with time, not known without; columns are priced once at most."""
    bursty = replace(workload(40.0), burstiness=40.0)
    instance = instance_of(problem(offers=(offer("L40S"),), workload=bursty))
    columns = columns_of(instance)
    totals, priced = column_totals(instance, columns), []
    real = searching.price_columns

    def counted(*given: Any) -> Any:
        priced.append(1)
        return real(*given)

    monkeypatch.setattr(searching, "price_columns", counted)
    outcomes = {
        until: search(instance, columns, totals, Aim(), replace(SLOW, until=until)).outcome for until in (99.0, 101.0)
    }
    assert outcomes == {99.0: Outcome.NOTHING_FOUND, 101.0: Outcome.INFEASIBLE}
    assert len(priced) == 1


# --- the time that the user gave ------------------------------------------------------------------------------------


def always() -> bool:
    return True


def test_a_part_of_the_time_ends_before_the_rest(clock: Clock) -> None:
    assert Effort(until=110.0).part(0.5).until == pytest.approx(105.0)
    assert Effort().part(0.5).until == math.inf


def test_columns_that_nobody_had_time_for_serve_nothing() -> None:
    instance = instance_of(problem())
    totals = column_totals(instance, columns_of(instance), always)
    assert not np.isfinite(totals.busiest).any()
    columns, priced = price_space(instance, columns_of(instance), always)
    assert simple_plans(instance, columns, priced) == []


def test_without_any_time_no_fleet_is_found_and_nothing_is_claimed() -> None:
    plan = optimize(problem(), time_limit=0.0)
    assert plan.status is Status.TIME_LIMIT
    assert (plan.pools, plan.binding, plan.alternatives) == ([], [], [])
    assert plan.bound_usd_per_hour is None


def test_a_fleet_that_there_was_no_time_to_simulate_is_shown_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = optimize(problem(), level=Level.QUICK)
    monkeypatch.setattr(Brake, "stopped", lambda self: True)
    plan = optimize(problem())
    assert not plan.simulated
    assert plan.pools == quick.pools
    assert (plan.status, plan.warnings) == (Status.FEASIBLE, [UNPROVEN])
    assert (quick.status, quick.warnings) == (Status.OPTIMAL, [])
    assert {row.status for row in plan.alternatives} == {Status.FEASIBLE}
    assert plan.gap == quick.gap


@pytest.mark.parametrize("goal", [Goal.MAX_GOODPUT, Goal.MAX_GOODPUT_PER_DOLLAR])
def test_most_goodput_is_not_called_optimal_either_before_it_is_simulated(
    goal: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brake, "stopped", lambda self: True)
    plan = optimize(problem(objective=Objective(goal), constraints=Constraints(max_gpus=2)))
    assert plan.pools
    assert (plan.simulated, plan.status, plan.warnings) == (False, Status.FEASIBLE, [UNPROVEN])


def test_a_fleet_that_there_was_no_time_to_confirm_is_not_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted as soon as there is a fleet worth keeping: it was simulated, but by no fresh requests."""
    monkeypatch.setattr(Brake, "stopped", lambda self: self.armed)
    plan = optimize(problem())
    assert plan.simulation is not None
    assert (plan.simulation.confirmation, plan.status, plan.warnings) == (0, Status.FEASIBLE, [UNCONFIRMED])
    monkeypatch.undo()
    whole = optimize(problem())
    assert (whole.simulated, whole.warnings) == (True, [])


def test_a_row_of_a_sweep_that_there_was_no_time_to_simulate_is_not_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Brake, "stopped", lambda self: True)
    answer = solve_full(problem(), Level.STANDARD)
    assert (answer.status, answer.attainment) == (Status.FEASIBLE, None)


def test_a_command_warns_of_a_plan_that_it_had_no_time_to_simulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brake, "stopped", lambda self: True)
    done = within("optimize", tiny(tmp_path), "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["status"], plan["simulated"]) == (0, "feasible", False)
    assert plan["warnings"] == [UNPROVEN]
    assert done.stderr == f"pdplan: warning: {UNPROVEN}\n"
    told = within("optimize", tiny(tmp_path)).stdout
    assert UNPROVEN in " ".join(told.split())
    assert "feasible, not simulated" in told
    quick = within("optimize", tiny(tmp_path), "--json", *QUICK)
    assert (json.loads(quick.stdout)["status"], quick.stderr) == ("optimal", "")


def test_the_brake_stops_at_the_time_and_when_it_is_pulled_for_a_plan() -> None:
    assert Brake(until=0.0).stopped()
    assert not Brake(pulled=True).stopped()
    assert Brake(pulled=True, armed=True).stopped()
    assert not Brake(armed=True).stopped()


def test_no_splits_are_tried_when_it_is_late_but_the_first() -> None:
    instance = instance_of(problem(slos=(slo(e2e=30.0),)))
    tried = len(list(splits(instance.problem)))
    asked: list[bool] = []
    with_best_split(instance, lambda: bool(asked.append(True)))  # type: ignore[func-returns-value]
    assert len(asked) == tried - 1
    late = with_best_split(instance, always)
    np.testing.assert_array_equal(late.flows.ttft, next(iter(splits(instance.problem))).ttft)
