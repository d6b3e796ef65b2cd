"""How an effort keeps to the time by which the user wants an answer, by a clock that only the test moves."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from optimizer.loads import effort as deadlines
from optimizer.loads.effort import Brake, Level
from optimizer.plans.plan import Plan, parse_plan
from optimizer.plans.records import SafeStatus
from optimizer.recommend.changed_problem import Solution, safe_sentence
from optimizer.recommend.optimize import OUT_OF_TIME, UNPROVEN, optimize
from pdplan.api import numbered
from reports.fleets import distinct_alternatives
from search_spaces.loader import problem_of
from search_spaces.problem import Billing, Problem
from tests.optimizer_cases import instance_of, offer, problem
from tests.report_cases import text_of
from tests.running import QUICK, TINY, demand, pdplan, tiny, within
from tests.small_fleets import alone


class HurriedClock:
    """It jumps by a week whenever it is read [s]."""

    now = 100.0

    def perf_counter(self) -> float:
        self.now += 6e5
        return self.now


# --- the time that the user gave ------------------------------------------------------------------------------------


def test_without_a_time_limit_no_clock_changes_a_plan_and_with_one_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm = optimize(problem(), level=Level.QUICK)
    monkeypatch.setattr(deadlines, "time", HurriedClock())
    hurried = optimize(problem(), level=Level.QUICK)
    assert hurried.model_dump(exclude={"provenance"}) == calm.model_dump(exclude={"provenance"})
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
    shown = within("optimize", tiny(tmp_path))
    told = shown.stdout
    assert UNPROVEN not in shown.stderr  # the answer has it
    assert UNPROVEN in " ".join(told.split())
    assert "by formula, not simulated" in told
    quick = within("optimize", tiny(tmp_path), "--json", *QUICK)
    assert (json.loads(quick.stdout)["status"], quick.stderr) == ("optimal", "")


# --- ctrl-C while a search goes on: it ends the program, unless there is a fleet worth keeping

SEARCH = """
import os, signal, sys
from optimizer.loads.effort import Brake
from pdplan.exits import end, end_on_interrupt, stop_on_interrupt
end_on_interrupt()
brake = Brake(armed={armed})
with stop_on_interrupt(brake):
    for _ in range({strikes}):
        os.kill(os.getpid(), signal.SIGINT)
    print("stopped" if brake.stopped() else "goes on")
assert signal.getsignal(signal.SIGINT) is end
"""


@pytest.mark.parametrize(
    ("armed", "strikes", "end"),
    [
        (True, 1, (0, "stopped\n", "")),  # a proven fleet is kept
        (False, 1, (130, "", "pdplan: error: interrupted\n")),
        (True, 2, (130, "", "pdplan: error: interrupted\n")),
        (True, 0, (0, "goes on\n", "")),
    ],
)
def test_a_strike_ends_the_program_unless_there_is_a_proven_fleet(
    armed: bool, strikes: int, end: tuple[int, str, str]
) -> None:
    done = pdplan(code=SEARCH.format(armed=armed, strikes=strikes))
    assert (done.returncode, done.stdout, done.stderr) == end


# --- the cheapest fleet that survives slow GPUs, beside the plan's own: which it is, and when it is sought

SLOW = "If these GPUs are as slow as the worst 5 % of our predictions, this fleet"


def posed(**sections: Any) -> Problem:
    return problem_of(TINY | {"workload": demand("16/s")} | sections, "tiny", Path())


@cache
def planned() -> Plan:
    return optimize(posed())


def test_a_plan_that_misses_when_gpus_are_slow_names_the_fleet_that_survives(short_runs: None) -> None:
    plan = planned()
    safe = plan.safe
    assert safe.status is SafeStatus.OTHER
    assert safe.cost_usd_per_hour == pytest.approx(sum(pool.usd_per_hour or 0.0 for pool in safe.pools))
    assert (safe.attainment or 0.0) >= 0.9
    assert safe.cost_usd_per_hour == 2.0 * plan.cost_usd_per_hour
    assert safe.sentence == f"{SLOW} misses the SLO. A fleet that survives costs $7.98/h (+100 %)."
    text = " ".join(text_of(plan).split())
    assert text.count("Risk:") == 1
    rows = enumerate(distinct_alternatives(plan), 1)
    number = next(number for number, row in rows if "for slow GPUs" in row.label)
    assert f"Risk: {safe.sentence.removesuffix('.')}: fleet {number}." in text


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [
        (4, "Until your GPUs are measured, prefer the"),
        (1, "It keeps up with one replica fewer, unlike the"),
    ],
)
def test_it_is_said_why_a_fleet_that_survives_at_the_same_price_is_not_the_plan(replicas: int, reason: str) -> None:
    instance = instance_of(problem(offers=(offer(billing=Billing.NODE),)))
    own, survivor = (Solution(instance, alone(instance, count)) for count in (3, replicas))
    alternative = "alternative for slow GPUs, which survives at the same price, by formula."
    assert safe_sentence(instance, own, survivor) == f"{SLOW} misses the SLO. {reason} {alternative}"


def test_that_fleet_is_an_alternative_with_its_simulated_figures_at_expected_speeds(
    short_runs: None, tmp_path: Path
) -> None:
    plan = planned()
    safe = plan.safe
    rows = distinct_alternatives(plan)
    number = next(number for number, row in enumerate(rows, 1) if row.kind == "safe")
    row = rows[number - 1]
    assert row.pools == safe.pools
    assert row.cost_usd_per_hour == pytest.approx(safe.cost_usd_per_hour)
    assert (row.attainment or 0.0) >= (safe.attainment or 0.0)
    alone = numbered(plan, number, tmp_path)
    assert not alone.simulated
    assert alone.classes[0].attainment == row.latencies[0].attainment
    text = " ".join(text_of(alone).split())
    assert "asked), simulated." in text
    assert "not simulated" not in text


@pytest.mark.parametrize("level", [Level.QUICK, Level.STANDARD])
def test_it_costs_what_a_plan_at_that_confidence_costs(short_runs: None, level: Level) -> None:
    safe = (planned() if level is Level.STANDARD else optimize(posed(), level=level)).safe
    slow = optimize(posed(confidence=0.9), level=level, extras=False)
    assert safe.cost_usd_per_hour == pytest.approx(slow.cost_usd_per_hour)
    assert safe.sentence.endswith(", by formula.") == (level is Level.QUICK)


def test_the_command_line_overrides_the_confidence_of_the_file(tmp_path: Path) -> None:
    file = tiny(tmp_path, confidence=0.5)
    plan = parse_plan(within("optimize", file, *QUICK, "--confidence", "90%", "--json").stdout.encode())
    assert (plan.confidence, plan.provenance.inputs["confidence"]) == (0.9, 0.9)
    refused = within("optimize", file, *QUICK, "--confidence", "2")
    assert refused.returncode == 2
    assert "--confidence" in refused.stderr
