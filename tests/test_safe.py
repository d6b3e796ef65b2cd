"""The cheapest fleet that survives slow GPUs, beside the plan's own: which it is, and when it is sought."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from optimizer.plans.plan import Plan
from optimizer.plans.reading import parse_plan
from optimizer.plans.records import SafeFleet, SafeStatus
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from pdplan.files import numbered
from reports.words import distinct_alternatives
from search_spaces.loader import load_problem
from search_spaces.problem import Goal, Objective, Problem
from tests.optimizer_cases import offer, problem, slo, workload
from tests.report_cases import text_of as render_plan
from tests.running import QUICK, tiny, within

SLOW = "If these GPUs are as slow as the worst 5 % of our predictions, this fleet"
MIX = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))


def given(rate: float = 30.0, **changes: object) -> Problem:
    fields: dict[str, object] = {"workload": workload(rate, MIX), "slos": (slo(1.0, 0.05, 0.95),)}
    return problem(**(fields | changes))


@cache
def planned(rate: float = 30.0, inventory: int | None = None) -> Plan:
    return optimize(given(rate, offers=(offer(inventory=inventory),)))


def safe_of(plan: Plan) -> SafeFleet:
    assert plan.safe is not None
    return plan.safe


def test_a_plan_that_misses_when_gpus_are_slow_names_the_fleet_that_survives() -> None:
    plan = planned()
    safe, cost = safe_of(plan), plan.cost_usd_per_hour or 0.0
    assert safe.status is SafeStatus.OTHER
    assert safe.cost_usd_per_hour is not None
    assert safe.cost_usd_per_hour == pytest.approx(sum(pool.usd_per_hour or 0.0 for pool in safe.pools))
    assert safe.own_attainment < 0.95 <= (safe.attainment or 0.0)
    more = safe.cost_usd_per_hour / cost - 1.0
    assert safe.sentence == f"{SLOW} misses the SLO. A fleet that survives costs $15.96/h (+{100 * more:.1f} %)."
    text = " ".join(render_plan(plan).split())
    assert text.count("Risk:") == 1
    assert f"Risk: {safe.sentence}" in text


def test_that_fleet_is_an_alternative_with_its_simulated_figures_at_expected_speeds(tmp_path: Path) -> None:
    plan = optimize(load_problem(tiny(tmp_path), {"workload.request_rate": "16/s"}))
    safe = safe_of(plan)
    rows = distinct_alternatives(plan)
    number = next(number for number, row in enumerate(rows, 1) if row.kind == "safe")
    row = rows[number - 1]
    assert row.pools == safe.pools
    assert row.cost_usd_per_hour == pytest.approx(safe.cost_usd_per_hour)
    assert (row.attainment or 0.0) >= (safe.attainment or 0.0)
    alone = numbered(plan, number, tmp_path)
    assert not alone.simulated
    assert alone.classes[0].attainment == row.latencies[0].attainment
    text = " ".join(render_plan(alone).split())
    assert "asked), simulated." in text
    assert "not simulated" not in text


@pytest.mark.parametrize("level", [Level.QUICK, Level.STANDARD])
def test_it_costs_what_a_plan_at_that_confidence_costs(level: Level) -> None:
    safe = safe_of(planned() if level is Level.STANDARD else optimize(given(), level=level))
    slow = optimize(given(confidence=0.9), level=level, extras=False)
    assert safe.cost_usd_per_hour == pytest.approx(slow.cost_usd_per_hour)
    assert safe.sentence.endswith(", by formula.") == (level is Level.QUICK)


def test_it_is_sought_for_the_least_cost_alone() -> None:
    assert optimize(given(3.0), extras=False).safe is None
    most = given(3.0, objective=Objective(Goal.MAX_GOODPUT), offers=(offer(inventory=1),))
    assert optimize(most).safe is None


def test_the_command_line_overrides_the_confidence_of_the_file(tmp_path: Path) -> None:
    file = tiny(tmp_path, confidence=0.5)
    plan = parse_plan(within("optimize", file, *QUICK, "--confidence", "90%", "--json").stdout.encode())
    assert (plan.confidence, plan.provenance.inputs["confidence"]) == (0.9, 0.9)
    refused = within("optimize", file, *QUICK, "--confidence", "2")
    assert refused.returncode == 2
    assert "--confidence" in refused.stderr
