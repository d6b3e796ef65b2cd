"""Few requests on routed experts: steps of small batches are short, and the search knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from search_spaces.loader import problem_of
from search_spaces.problem import Problem
from tests.running import ROOT

BARE = 5.97
"""Price of an engine of two A100-80 [$/h], which two or three requests at a time keep within 11 ms a step."""


def posed(tpot: str = "11ms", **search: Any) -> Problem:
    """A request every three seconds or so, in steps of at most 11 ms."""
    stated = {
        "schema": "pdplan.workload/1",
        "model": {"name": "Qwen3-30B-A3B"},
        "workload": {"request_rate": "0.3/s", "lengths": {"isl": 800, "osl": 300}},
        "slo": {"ttft": "1s", "tpot": tpot},
        "accelerators": ["A100-80"],
    }
    return problem_of(stated | ({"search": search} if search else {}), "few requests", ROOT)


def from_eight_on(problem: Problem) -> Problem:
    """The problem with batch limits of eight requests and more."""
    later = tuple(limit for limit in problem.space.max_num_seqs if limit >= 8)
    return replace(problem, space=replace(problem.space, max_num_seqs=later))


def test_few_requests_need_no_engine_for_eight(short_runs: None) -> None:
    """Whatever the least batch limit is: fewer requests may run."""
    problem = posed()
    plan = optimize(problem, level=Level.STANDARD, extras=False)
    other = optimize(from_eight_on(problem), level=Level.QUICK)
    assert plan.cost_usd_per_hour == pytest.approx(BARE, abs=0.01)
    assert plan.simulation is not None  # it holds not by formula alone
    assert other.cost_usd_per_hour == pytest.approx(BARE, abs=0.01)
