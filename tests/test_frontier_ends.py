"""Where the steps of a frontier end: by formula, where simulation says so, and at the file's own value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import BelowFloorError
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Status
from optimizer.whatif import frontier as curves
from optimizer.whatif import scenario
from optimizer.whatif.frontier import (
    RESOLUTION,
    Frontier,
    by_budget,
    frontier,
    ramp_of,
    with_looks,
)
from optimizer.whatif.scenario import Answer, look_at
from reports.answers.frontier import frontier_document, frontier_record
from reports.views.terminal import render_document
from search_spaces.loader import problem_of
from search_spaces.problem import Problem
from tests import engine_cases
from tests.test_second_look import BASE, KEPT, MISSED, TIGHT, engines

Look = Callable[[Instance, Fleet], tuple[float, str]]
Judge = Callable[..., None]


@pytest.fixture(scope="module")
def tight() -> Problem:
    return problem_of(TIGHT, "tight", Path())


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Replace what simulation says of fleets, and what the whole search finds at the file's own value."""

    def instead(look: Look, own: Answer | None = None) -> None:
        look_at.cache_clear()
        for module in (scenario, curves):
            monkeypatch.setattr(module, "look", lambda instance, fleet, *_most: look(instance, fleet))
        monkeypatch.setattr(curves, "own_answer", lambda _problem, _curve: own)

    return instead


def answer(cost: float, gpu: str = "H100") -> Answer:
    return Answer(
        Status.FEASIBLE,
        cost,
        None,
        None,
        9.0,
        {"H100": 1},
        (engine_cases.engines(1, gpu, 1, "colocated"),),
        "time of a",
        attainment=1.0,
    )


def one_engine_until(rate: float) -> Look:
    """One engine misses beyond a rate, though the formulas promise more of it."""
    return lambda instance, fleet: MISSED if engines(fleet) == 1 and instance.flows.rate.sum() > rate else KEPT


# --- by simulation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(10.0, 45.0), (12.0, 21.0), (15.0, 30.0)])
def test_where_a_fleet_misses_does_not_depend_on_the_range(
    tight: Problem, judge: Judge, bounds: tuple[float, float]
) -> None:
    judge(one_engine_until(19.3))
    first = with_looks(tight, BASE, "rate", frontier(tight, BASE, "rate", bounds), looks=12).steps[0]
    assert first.hard <= 19.3 < (first.missed or 0.0) <= first.hard * (1.0 + 1.001 * RESOLUTION)
    assert first.promised == pytest.approx(20.5, rel=0.01)


def test_a_limit_is_tightened_down_to_where_its_fleet_misses(tight: Problem, judge: Judge) -> None:
    judge(lambda instance, _fleet: MISSED if instance.problem.slos[0].tpot < 0.0431 else KEPT)
    curve = frontier(tight, BASE, "tpot", (0.04, 0.2))
    found = with_looks(tight, BASE, "tpot", curve, looks=12)
    last = found.steps[1]
    assert last.hard >= 0.0431 > (last.missed or 1.0) >= last.hard / (1.0 + 1.001 * RESOLUTION)
    told = " ".join(render_document(frontier_document(found), 100).split())
    assert f"it meets the SLO at {1e3 * last.hard:.5g} ms and misses it at {1e3 * (last.missed or 0.0):.5g} ms" in told


def test_the_curve_over_budgets_is_that_over_rates(tight: Problem, judge: Judge) -> None:
    judge(one_engine_until(19.3))
    rates = with_looks(tight, BASE, "rate", frontier(tight, BASE, "rate", (10.0, 30.0)), looks=12)
    budget = with_looks(tight, BASE, "budget", frontier(tight, BASE, "budget"), looks=12)
    ends = {step.answer.cost: step.hard for step in budget.steps}
    assert len(rates.steps) > 2
    for step in rates.steps[:-1]:
        assert step.answer.cost is not None
        assert ends[step.answer.cost] == pytest.approx(step.hard, rel=RESOLUTION)


# --- by formula -----------------------------------------------------------------------------------------------------


def test_no_step_is_narrower_than_the_curve_is_told_to(tight: Problem) -> None:
    curve = frontier(tight, BASE, "rate", (5.0, 200.0))
    ramp = ramp_of(tight, BASE, "rate")
    widths = [ramp.hardness(step.hard) - ramp.hardness(step.easy) for step in curve.steps[:-1]]
    assert len(widths) > 3
    assert min(widths) > 0.98 * RESOLUTION
    for step, after in pairwise(curve.steps):
        gap = ramp.hardness(after.easy) - ramp.hardness(step.hard)
        assert gap == pytest.approx(0.0 if after.answer.cost is None else math.log1p(curve.tolerance), abs=1.01e-2)


def test_the_last_budget_buys_more_than_the_range_that_was_searched(tight: Problem) -> None:
    few = problem_of(TIGHT | {"workload": TIGHT["workload"] | {"request_rate": 1.0}}, "few", Path())
    (last,) = frontier(few, BASE, "budget").steps[-1:]
    assert ramp_of(few, BASE, "rate").usual_range == (0.25, 4.0)
    assert last.hard == last.answer.goodput > 4.0
    assert by_budget(replace(frontier(few, BASE, "budget"), steps=(last,)))[0]["rate_rps"] == last.hard


@pytest.mark.parametrize(("name", "value"), [("rate", 7.0), ("tpot", 0.04), ("attainment", 0.95)])
def test_what_is_harder_has_more_hardness(tight: Problem, name: str, value: float) -> None:
    ramp = ramp_of(tight, BASE, name)
    harder = 1.01 * value if ramp.upwards else value / 1.01
    assert ramp.hardness(harder) > ramp.hardness(value)
    assert ramp.value_at(ramp.hardness(value)) == pytest.approx(value)


def test_the_own_value_is_that_of_all_classes_or_none(tight: Problem) -> None:
    classes = [{"name": "a", "ttft": 1.0, "tpot": 0.05, "attainment": 0.9, "share": 0.5}]
    classes.append(classes[0] | {"name": "b", "ttft": 2.0, "attainment": 0.99})
    several = problem_of({key: value for key, value in TIGHT.items() if key != "slo"} | {"slo": classes}, "b", BASE)
    assert [ramp_of(tight, BASE, one).own_value for one in ("rate", "ttft", "attainment")] == [20.0, 1.0, 0.99]
    assert [ramp_of(several, BASE, one).own_value for one in ("rate", "ttft", "attainment")] == [20.0, 1.0, None]


# --- at the file's own value ----------------------------------------------------------------------------------------


def told(found: Frontier) -> str:
    return " ".join(render_document(frontier_document(found), 100).split())


def test_at_its_own_value_the_curve_is_not_above_the_whole_search(tight: Problem, judge: Judge) -> None:
    judge(lambda _instance, fleet: MISSED if engines(fleet) <= 2 else KEPT, own=answer(5.0, "mixed"))
    found = with_looks(tight, BASE, "rate", frontier(tight, BASE, "rate", (10.0, 45.0)), looks=12)
    at = next(step for step in found.steps if step.easy <= 20.0 <= step.hard)
    assert (at.answer.cost, at.hard) == (5.0, 20.0)
    costs = [step.answer.cost or math.inf for step in found.steps]
    assert costs == sorted(costs)
    assert "At 20 req/s, the file's own value, pdplan optimize finds $5.00/h. Its" in told(found)
    assert "by formula, except for the one at the file's own value. Each step ends" in told(found)
    assert frontier_record(found)["own"] == {"value": 20.0, "found_usd_per_hour": 5.0}


def test_what_the_curve_has_cheaper_there_is_simulated_whatever_else_is(tight: Problem, judge: Judge) -> None:
    curve = frontier(tight, BASE, "rate", (10.0, 45.0))
    judge(one_engine_until(19.3), own=answer(7.0, "dear"))
    found = with_looks(tight, BASE, "rate", curve, looks=1)
    at = next(step for step in found.steps if step.easy <= 20.0 <= step.hard)
    assert (at.answer.cost, at.answer.attainment) == (5.0, 1.0)
    assert "pdplan optimize finds $7.00/h, and this curve $5.00/h." in told(found)


def test_a_curve_by_formula_or_elsewhere_asks_for_no_whole_search(tight: Problem, monkeypatch: Any) -> None:
    asked: list[Problem] = []
    monkeypatch.setattr(curves, "solve_full", lambda problem, _level: asked.append(problem) or answer(5.0))
    beyond = frontier(tight, BASE, "rate", (21.0, 30.0))
    here = frontier(tight, BASE, "rate", (15.0, 30.0))
    assert with_looks(tight, BASE, "rate", here, looks=0) is here
    assert curves.own_answer(tight, beyond) is None
    assert not asked
    assert curves.own_answer(tight, here) == answer(5.0)
    few = replace(here, steps=here.steps[:1], by_budget=True)
    assert curves.own_answer(tight, few) is None  # dearer than any budget that is shown

    def refuse(_problem: Problem, _level: object) -> Answer:
        raise BelowFloorError("too slow")

    monkeypatch.setattr(curves, "solve_full", refuse)
    assert curves.own_answer(tight, here) is None


def test_the_curve_agrees_with_optimize_on_a_file(tight: Problem, short_runs: None) -> None:
    """Nothing replaced: one H100 holds by formula, and a simulation refutes it."""
    found = with_looks(tight, BASE, "rate", frontier(tight, BASE, "rate", (14.0, 22.0)), looks=12)
    at = next(step for step in found.steps if step.easy <= 20.0 <= step.hard)
    assert (at.answer.cost, found.own and found.own.cost) == (5.0, 5.0)
    assert found.steps[0].answer.cost == 3.0
    assert found.steps[0].hard < 20.0
    assert "pdplan optimize finds $5.00/h, as this curve does." in told(found)
