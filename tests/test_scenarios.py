"""Scenarios: axes as typed, levers on the inputs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from search_spaces.loader import load_problem
from search_spaces.problem import Problem
from search_spaces.scenarios import (
    EFFICIENCIES,
    LEVERS,
    Scenario,
    SweepAxis,
    grid,
    named_scenarios,
    parse_axis,
    scenario_problem,
)
from tests.running import TINY, tiny

CLASSES: dict[str, Any] = {
    "slo": [
        {"name": "fast", "share": 0.5, "ttft": "1s", "tpot": "40ms", "attainment": 0.9},
        {"name": "slow", "share": 0.5, "ttft": "4s", "tpot": "80ms", "attainment": 0.9},
    ],
    "accelerators": ["H100", {"name": "L4", "price": 0.8}],
}


def stated(folder: Path, **sections: Any) -> Problem:
    return load_problem(tiny(folder, **CLASSES, **sections))


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return stated(tmp_path_factory.mktemp("scenarios"))


def with_change(problem: Problem, text: str) -> Problem:
    (scenario,) = grid([parse_axis(text)])
    return scenario_problem(problem, scenario.changes, scenario.name)


def test_a_section_that_the_file_leaves_out_is_begun(problem: Problem) -> None:
    with pytest.raises(InputError, match=r"kv_cache_tier.bandwidth: is missing"):
        with_change(problem, "kv_cache_tier.capacity_per_gpu=1TB")
    with pytest.raises(InputError, match=r"'1TB' is not a mapping"):
        with_change(problem, "kv_cache_tier=1TB")
    with pytest.raises(InputError, match=r"so none is the preset's; state search=wide"):
        with_change(problem, "search.preset=wide")


def test_other_quotes_of_the_catalog_are_prices_though_the_file_states_some(tmp_path: Path) -> None:
    spot = with_change(stated(tmp_path, prices="on-demand"), "prices=spot")
    quoted = stated(tmp_path, prices="spot").offers[0].usd_per_hour
    assert [offer.usd_per_hour for offer in spot.offers] == [quoted, 0.8]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rate=1:8:8", tuple(float(n) for n in range(1, 9))),
        ("rate=1:100:3:log", (1.0, 10.0, 100.0)),
        ("ttft=300ms:2s:2", (0.3, 2.0)),
        ("price.H100=$1/h:$3/h:3", (1.0, 2.0, 3.0)),
        ("rate=20/s, 30/s", ("20/s", "30/s")),
        ("without.L4=true", (True,)),
    ],
)
def test_axes_are_ranges_or_lists(text: str, values: tuple[object, ...]) -> None:
    assert parse_axis(text).values == pytest.approx(values) if ":" in text else parse_axis(text).values == values


def test_levers_change_what_they_say(problem: Problem) -> None:
    assert with_change(problem, "price.H100=2.5").offers[0].usd_per_hour == 2.5
    assert with_change(problem, "price.l4=0.5").offers[1].usd_per_hour == 0.5
    assert with_change(problem, "inventory.H100=16").offers[0].inventory == 16
    assert with_change(problem, "link.H100=100e9").offers[0].accelerator.scale_out.bandwidth == 100e9
    assert [offer.accelerator.name for offer in with_change(problem, "without.L4=true").offers] == ["H100"]
    assert with_change(problem, "with.A100-80=1.1").offers[2].usd_per_hour == 1.1
    assert with_change(problem, "rate=20/s").workload.request_rate == 20.0
    assert with_change(problem, "rate_scale=1.5").workload.request_rate == 9.0
    assert [slo.ttft for slo in with_change(problem, "ttft=2s").slos] == [2.0, 2.0]
    assert [slo.ttft for slo in with_change(problem, "slo.ttft=2s").slos] == [2.0, 2.0]
    assert [slo.ttft for slo in with_change(problem, "ttft.fast=0.5").slos] == [0.5, 4.0]
    assert [slo.tpot for slo in with_change(problem, "slo_scale=2").slos] == [0.08, 0.16]
    assert [slo.attainment for slo in with_change(problem, "attainment=0.95").slos] == [0.95, 0.95]
    assert with_change(problem, "weight_dtype=fp8").weight_dtype == "fp8"
    assert with_change(problem, "spares=2").constraints.spare_replicas == 2
    assert with_change(problem, "target=sglang").engine == "sglang"
    of_trtllm = scenario_problem(problem, {"engine": "trtllm"})
    assert [scenario_problem(of_trtllm, {"target": name}).engine for name in ("llm-d", "llmd")] == ["vllm", "vllm"]
    with pytest.raises(InputError, match="sglang"):
        scenario_problem(problem, {"engine": "sglang", "target": "vllm"})
    assert with_change(problem, "growth.6=10%").workload.request_rate == pytest.approx(6.0 * 1.1**6)
    assert with_change(problem, "link_scale=0.5").offers[0].accelerator.scale_out.bandwidth == pytest.approx(
        problem.offers[0].accelerator.scale_out.bandwidth / 2.0
    )
    assert [with_change(problem, f"efficiency={name}").confidence for name in EFFICIENCIES] == [0.9, 0.0, -0.9]
    assert with_change(problem, "prefix_hit_share=0.4").workload.prefix_hit_share == 0.4
    assert with_change(problem, "prefix_hit_share=40%").workload.prefix_hit_share == 0.4
    assert with_change(problem, "rate_scale=150%").workload.request_rate == 9.0
    assert with_change(problem, "budget=100").constraints.budget == 100.0
    assert with_change(problem, "workload.burstiness=3").workload.burstiness == 3.0
    longer = with_change(problem, "isl_scale=2").workload
    assert longer.isl.tolist() == [1600.0, 6000.0]
    assert longer.osl.tolist() == [150.0, 80.0]
    limits = [with_change(problem, f"isl_scale={factor}").workload.max_tokens for factor in (0.5, 2, 10)]
    assert limits == [8192 * 1580 // 3080 + 1, 8192, 30080]  # the stated limit, unless longer requests need more


@pytest.mark.parametrize("name", LEVERS)
def test_every_lever_has_an_example_that_can_be_typed(name: str) -> None:
    axis = parse_axis(LEVERS[name].example)
    assert axis.key.partition(".")[0] == name
    assert LEVERS[name].says


def test_a_grid_is_every_combination_once() -> None:
    axes = [SweepAxis("rate", (1, 2, 3)), SweepAxis("ttft", ("1s", "2s"))]
    named = [Scenario("low", {"price.H100": 1.0}), Scenario("high", {"price.H100": 9.0})]
    made = list(grid(axes, named))
    assert len(made) == 12
    assert len({(one.name, *one.changes.items()) for one in made}) == 12
    assert made[1].changes == {"price.H100": 1.0, "rate": 1, "ttft": "2s"}
    with pytest.raises(InputError, match="stated twice"):
        list(grid([axes[0], axes[0]]))
    with pytest.raises(InputError, match="at most 1,000,000"):
        list(grid([parse_axis("rate=1:2:2000"), parse_axis("ttft=1:2:2000")]))


NAMED = {
    "cheap": {"price.H100": 1.5, "price.L4": 0.4},
    "june": {"extends": "cheap", "rate_scale": 2, "price.L4": 0.5},
    "both": {"extends": ["june", "tight"], "workload": {"burstiness": 2}},
    "tight": {"slo": {"ttft": "800ms", "slow": {"tpot": "70ms"}}},
}


def test_named_scenarios_extend_each_other_and_lay_mappings_over_the_file(tmp_path: Path) -> None:
    problem = stated(tmp_path, scenarios=NAMED)
    scenarios = named_scenarios(problem)
    assert list(scenarios) == ["cheap", "june", "both", "tight"]
    assert scenarios["june"].changes == {"price.H100": 1.5, "price.L4": 0.5, "rate_scale": 2}
    both = scenario_problem(problem, scenarios["both"].changes)
    assert [offer.usd_per_hour for offer in both.offers] == [1.5, 0.5]
    assert (both.workload.request_rate, both.workload.burstiness) == (12.0, 2.0)
    assert [(slo.ttft, slo.tpot) for slo in both.slos] == [(0.8, 0.04), (0.8, 0.07)]


HOURS = [3, 1, 2, 2, 0, 4, *[5] * 12, 6, 7, 8, 8, 2, 1]
"""Peak 8, three quarters of the hours up to 5 [1/s]."""


@pytest.mark.parametrize(("percentile", "planned"), [(100.0, 8.0), (75.0, 5.0)])
@pytest.mark.parametrize(
    ("text", "factor"),
    [("rate_scale=1.3", 1.3), ("rate_scale=50%", 0.5), ("growth.6=3%", 1.03**6), ("growth.2=-10%", 0.81)],
)
def test_factors_multiply_a_whole_daily_profile(
    tmp_path: Path, text: str, factor: float, percentile: float, planned: float
) -> None:
    demand = {key: value for key, value in TINY["workload"].items() if key != "request_rate"}
    diurnal = {"requests_per_second_by_hour": HOURS, "percentile": percentile}
    grown = with_change(stated(tmp_path, workload=demand | {"diurnal": diurnal}), text)
    profile = grown.inputs["workload"]["diurnal"]
    assert profile["requests_per_second_by_hour"] == pytest.approx([factor * hour for hour in HOURS])
    assert grown.workload.request_rate == pytest.approx(factor * planned)
    assert profile["percentile"] == percentile
