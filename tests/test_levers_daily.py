"""What-ifs of a daily profile answer as those of its peak, since that is what is planned for."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.whatif.frontier import Frontier, frontier
from optimizer.whatif.scenario import solve
from optimizer.whatif.sensitivity import levers
from search_spaces.loader import load_problem
from search_spaces.problem import Problem
from search_spaces.scenarios import Scenario, scenario_problem

STEADY = """\
name: shop
model: {name: Llama-3.1-8B, weight_dtype: bf16}
workload:
  request_rate: 20/s
  max_tokens: 8192
  lengths: {histogram: [{isl: 500, osl: 200, share: 0.6}, {isl: 3000, osl: 150, share: 0.4}]}
slo: {ttft: 1s, tpot: 40ms, percentile: p90}
accelerators: [A100-80, H100]
search: quick
"""
HOURS = [*[4] * 8, *[20] * 4, *[12] * 12]


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return loaded(tmp_path_factory.mktemp("steady"), STEADY)


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    profile = f"diurnal: {{requests_per_second_by_hour: {HOURS}}}"
    return loaded(tmp_path_factory.mktemp("daily"), STEADY.replace("request_rate: 20/s", profile))


def loaded(folder: Path, text: str) -> Problem:
    path = folder / "shop.yaml"
    path.write_text(text, "utf-8")
    return load_problem(path)


def told(curve: Frontier) -> list[tuple[float, float, float | None]]:
    return [(step.easy, step.hard, step.answer.cost) for step in curve.steps]


@pytest.mark.parametrize(("over", "bounds"), [("rate", (15.0, 60.0)), ("budget", (4.0, 12.0))])
def test_a_frontier_of_a_daily_profile_is_that_of_its_peak(
    steady: Problem, daily: Problem, over: str, bounds: tuple[float, float]
) -> None:
    found = told(frontier(daily, Path(), over, bounds))
    assert len(found) > 2
    assert found == told(frontier(steady, Path(), over, bounds))


@pytest.mark.parametrize("change", [{"rate": "26/s"}, {"rate_scale": 1.3}, {"growth.6": "3%"}])
def test_more_demand_costs_what_it_costs_at_the_peak(
    steady: Problem, daily: Problem, change: dict[str, float | str]
) -> None:
    costs = [solve(scenario_problem(one, Scenario("", change), Path()), Path()).cost for one in (steady, daily)]
    assert costs[0] == costs[1]
    assert costs[0] is not None


def test_the_tornado_moves_the_demand_of_a_day_as_that_of_its_peak(
    steady: Problem, daily: Problem, tmp_path: Path
) -> None:
    swings = []
    for problem in (steady, daily):
        (scale,) = (lever for lever in levers(problem) if lever.key == "rate_scale")
        ends = [scenario_problem(problem, Scenario("", {scale.key: end}), tmp_path) for end in (scale.low, scale.high)]
        swings.append([one.workload.request_rate for one in ends])
    assert swings[0] == pytest.approx(swings[1])
    assert swings[0][0] < 20.0 < swings[0][1]
