"""How an effort keeps to the time by which the user wants an answer, by a clock that only the test moves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.loads import instance as deadlines
from optimizer.loads.instance import Brake
from optimizer.recommend.optimize import OUT_OF_TIME, UNPROVEN, optimize
from optimizer.recommend.search import Level
from tests.optimizer_cases import problem
from tests.running import QUICK, tiny, within


@dataclass
class Clock:
    """Tells the time that it was set to [s]."""

    now: float = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(deadlines, "time", fake)
    return fake


# --- the time that the user gave ------------------------------------------------------------------------------------


def test_without_a_time_limit_no_clock_changes_a_plan_and_with_one_the_plan_says_so(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that jumps by a week whenever it is read."""

    def read(self: Clock) -> float:
        self.now += 6e5
        return self.now

    calm = optimize(problem(), level=Level.QUICK)
    monkeypatch.setattr(Clock, "perf_counter", read)
    hurried = optimize(problem(), level=Level.QUICK)
    volatile = {"provenance"}
    assert hurried.model_dump(exclude=volatile) == calm.model_dump(exclude=volatile)
    assert OUT_OF_TIME not in hurried.warnings
    assert OUT_OF_TIME in optimize(problem(), level=Level.QUICK, time_limit=3600.0).warnings


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
    assert "by formula, not simulated" in told
    quick = within("optimize", tiny(tmp_path), "--json", *QUICK)
    assert (json.loads(quick.stdout)["status"], quick.stderr) == ("optimal", "")
