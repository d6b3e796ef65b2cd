"""A second look at winners: what a simulation refutes is never the answer of whatif, frontier or buy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from costmodel.errors import InfeasibleError
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Status
from optimizer.plans.records import engine_counts
from optimizer.procurement.buying import BuyingPlan, Look, buy
from optimizer.verification.verify import ROUNDS
from optimizer.whatif import frontier as curves
from optimizer.whatif import scenario
from optimizer.whatif.break_even import pieces_along
from optimizer.whatif.frontier import RESOLUTION, Frontier, Step, frontier
from optimizer.whatif.scenario import (
    Depth,
    Missed,
    cheapest,
    cheapest_confirmed,
    look_at,
    physics_of,
    refuted_with,
    solve,
)
from optimizer.whatif.sensitivity import levers, near_optimal, tornado
from optimizer.whatif.sweep import sweep_of
from optimizer.whatif.workers import Row, run_sweep
from pdplan.cli import cli
from reports.answers.buying import buying_dict, buying_document
from reports.answers.frontier import frontier_document, frontier_record, frontier_rows
from reports.answers.whatif import sweep_document
from reports.rows import rows_csv
from reports.views.terminal import render_document
from search_spaces.contracts import Contract, DemandPath, Forecast, Terms, Tier
from search_spaces.loader import problem_of
from search_spaces.problem import Problem
from search_spaces.scenarios import grid, parse_axis
from tests import engine_cases
from tests.optimizer_cases import offer, problem

BASE = Path()
TIGHT: dict[str, Any] = {
    "model": {"name": "Llama-3.1-8B"},
    "workload": {
        "request_rate": 20.0,
        "max_tokens": 8192,
        "lengths": {"histogram": [{"isl": 800, "osl": 150, "share": 0.7}, {"isl": 3000, "osl": 80, "share": 0.3}]},
    },
    "slo": {"ttft": 1.0, "tpot": 0.05, "attainment": 0.99},
    "accelerators": [{"name": "H100", "price": 3.0}, {"name": "A100-80", "price": 2.0}, {"name": "L4", "price": 0.7}],
    "search": {"preset": "quick", "tensor_parallel": [1, 2], "max_num_seqs": [32, 128]},
}
"""One H100 meets the SLO by formula; it keeps 90 to 97 % in four runs of 100,000 requests, where 99 % should."""
MISSED = (0.5, "misses when simulated")
KEPT = (1.0, "")
ONE_H100 = engine_counts([engine_cases.engines(1, "H100", 1, "colocated")])

Seen = tuple[float, str]


def buying_text(found: BuyingPlan, width: int) -> str:
    return render_document(buying_document(found), width)


@pytest.fixture(scope="module")
def tight() -> Problem:
    return problem_of(TIGHT, "tight", BASE)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Instance, Fleet], Seen]], list[Fleet]]]:
    """Replace the simulation, and leave out the whole search, which has its own; returns the fleets looked at."""

    def instead(judge: Callable[[Instance, Fleet], Seen]) -> list[Fleet]:
        fleets: list[Fleet] = []

        def look(instance: Instance, fleet: Fleet, *_most: int) -> Seen:
            fleets.append(fleet)
            return judge(instance, fleet)

        look_at.cache_clear()
        for module in (scenario, curves):
            monkeypatch.setattr(module, "look", look)
        monkeypatch.setattr("optimizer.procurement.buying.look", look)
        monkeypatch.setattr(curves, "own_answer", lambda _problem, _curve: None)
        return fleets

    yield instead
    look_at.cache_clear()


def engines(fleet: Fleet) -> int:
    return sum(pool.replicas for pool in fleet.pools)


# --- one fleet ------------------------------------------------------------------------------------------------------


def test_a_fleet_that_a_simulation_refutes_is_replaced_by_one_that_holds(tight: Problem) -> None:
    promised, found = solve(tight, BASE), cheapest_confirmed(tight, physics_of(tight, BASE))
    assert (promised.cost, promised.attainment) == (3.0, None)
    (missed,) = found.refuted
    assert (missed.cost, missed.pools) == (3.0, promised.pools)
    assert missed.attainment < 0.99
    assert "(99 % asked; 95 % interval " in missed.fault
    assert found.cost == 5.0  # as `optimize` has it
    assert found.attainment is not None
    assert found.attainment >= 0.99


def test_with_a_fleet_all_are_refuted_that_have_no_more_of_its_engines(tight: Problem) -> None:
    physics = physics_of(tight, BASE)
    first = cheapest(tight, physics)
    assert first is not None
    more = tuple((*one[:4], one[4] + 1) for one in first.pools)
    second = cheapest(tight, physics, frozenset([refuted_with(more)]))
    assert second is not None
    assert second.cost > first.cost
    kinds = [pool[:4] for pool in first.pools], [pool[:4] for pool in second.pools]
    assert kinds[0] != kinds[1] or second.pools[0][4] > more[0][4]
    assert cheapest(tight, physics) == first  # what was known before is as it was


def test_where_nothing_holds_there_is_no_answer(tight: Problem, seen: Any) -> None:
    looked = seen(lambda _instance, _fleet: MISSED)
    found = cheapest_confirmed(tight, physics_of(tight, BASE))
    assert (found.status, found.cost, found.pools) == (Status.TIME_LIMIT, None, ())
    assert len(looked) == len(found.refuted) == 1 + ROUNDS
    assert "the cheapest by formula, $3.00/h, misses when simulated" in found.binding
    costs = [one.cost for one in found.refuted]
    assert costs == sorted(costs)


# --- sweeps ---------------------------------------------------------------------------------------------------------


def swept(given: Problem, looks: int, *axes: str, workers: int = 1, gap: bool | None = False) -> list[Row]:
    varied = [parse_axis(axis) for axis in axes]
    sweep = sweep_of(given, BASE, list(grid(varied, [])), [axis.key for axis in varied], Depth.SIMPLE, gap, looks)
    with ThreadPoolExecutor(workers) as executor:
        return run_sweep(sweep, executor, workers)


def test_rows_that_differ_in_prices_share_a_simulation_and_its_consequences(tight: Problem, seen: Any) -> None:
    plain = swept(tight, 0, "price.H100=1:4:7")
    looked = seen(lambda _instance, fleet: MISSED if engines(fleet) == 1 else KEPT)
    rows = swept(tight, 4, "price.H100=1:4:7", gap=None)
    keys = [(tuple(pool.shape for pool in one.pools), tuple(pool.replicas for pool in one.pools)) for one in looked]
    assert len(looked) == len(set(keys)) <= 4
    assert len(looked) < len(rows)
    for before, row in zip(plain, rows, strict=True):
        assert (before["simulated"], before["simulated_attainment"], before["refuted"]) == (False, None, [])
        assert (row["simulated"], row["simulated_attainment"]) == (True, 1.0)
        if row["refuted"]:
            assert row["refuted"][0]["pools"] == before["pools"]
            assert row["cost_usd_per_hour"] > row["refuted"][0]["cost_usd_per_hour"] == before["cost_usd_per_hour"]
        assert row["bound_usd_per_hour"] == pytest.approx(row["cost_usd_per_hour"] * (1.0 - row["gap"]))
        assert "fleet" not in row
    assert any(row["refuted"] for row in rows)
    told = " ".join(render_document(sweep_document(rows, "simple"), 100).split())
    refuted = (
        "Not taken at price.H100 $1.00/h (and at 6 others): 1 × H100 TP1 colocated for $1.00/h misses when simulated."
    )
    assert refuted in told
    assert "Every fleet meets its SLO." in told
    assert "colocated.max_num_batched_tokens" in rows_csv(rows)
    assert swept(tight, 4, "price.H100=1:4:7", workers=2, gap=None) == rows


def test_the_fleets_of_the_most_rows_are_looked_at_first(tight: Problem, seen: Any) -> None:
    looked = seen(lambda _instance, _fleet: KEPT)
    rows = swept(tight, 1, "price.H100=1,1.5,2,9")
    assert len(looked) == 1
    assert [row["simulated"] for row in rows] == [True, True, True, False]
    assert "The fleets of 3 of 4 rows were simulated and meet the SLO; the others are by formula" in " ".join(
        render_document(sweep_document(rows, "simple"), 100).split()
    )


def test_rows_without_any_fleet_that_holds_say_so(tight: Problem, seen: Any) -> None:
    seen(lambda _instance, _fleet: MISSED)
    (row,) = swept(tight, 1, "price.H100=3")
    assert (row["status"], row["cost_usd_per_hour"], row["pools"]) == ("time_limit", None, [])
    assert len(row["refuted"]) == 1 + ROUNDS
    assert "No fleet at price.H100 $3.00/h: none of the 7 fleets that were simulated holds" in " ".join(
        render_document(sweep_document([row], "simple"), 100).split()
    )


def test_the_command_exits_with_3_where_nothing_holds(tmp_path: Path, seen: Any) -> None:
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(TIGHT), "utf-8")
    asked = ["whatif", str(path), "--vary", "price.H100=3", "--jobs", "1", "--json"]
    seen(lambda _instance, fleet: MISSED if engines(fleet) == 1 else KEPT)
    done = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["simulated"], row["refuted"][0]["cost_usd_per_hour"]) == (True, 3.0)
    seen(lambda _instance, _fleet: MISSED)
    assert CliRunner().invoke(cli, asked, standalone_mode=False).return_value == 3


# --- the other questions --------------------------------------------------------------------------------------------


def test_along_a_price_no_piece_has_a_refuted_fleet(tight: Problem, seen: Any) -> None:
    seen(lambda _instance, fleet: MISSED if engines(fleet) == 1 else KEPT)
    found = pieces_along(tight, BASE, "price.H100", 0.5, 12.0, 1e-6, looks=10)
    assert {engine_counts(one.pools) for one in found.refuted} == {ONE_H100}
    assert all(one.answer.attainment == 1.0 for one in found.pieces)
    assert all(one.answer.pools[0].replicas + len(one.answer.pools) > 2 for one in found.pieces)


def test_the_tornado_and_the_slack_compare_fleets_that_hold(tight: Problem, seen: Any) -> None:
    seen(lambda _instance, fleet: MISSED if engines(fleet) == 1 else KEPT)
    some = [one for one in levers(tight) if one.key.partition(".")[0] in {"price", "rate_scale", "burstiness"}]
    rows = tornado(tight, BASE, some, looks=3)
    sure = [row for row in rows if row.attainment is not None]
    assert {row.lever for row in sure} == {"price.H100", "price.A100-80", "price.L4", "rate_scale"}
    assert {row.cost for row in sure} == {5.0}
    assert {row.cost for row in rows if row.attainment is None} == {3.0}  # compared like with like
    others = near_optimal(tight, BASE, 0.3, looks=2)
    assert (others[0].answer.cost, others[0].answer.attainment) == (5.0, 1.0)
    assert sum(one.answer.attainment is not None for one in others) == 2


# --- the frontier ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_formula(tight: Problem) -> Frontier:
    return frontier(tight, BASE, "rate", (10.0, 45.0))


def test_a_step_ends_where_its_fleet_was_seen_to_hold(tight: Problem, by_formula: Frontier, seen: Any) -> None:
    first, last = by_formula.steps[0], by_formula.steps[-1]
    most = 0.6 * first.hard + 0.4 * first.easy
    seen(lambda instance, fleet: MISSED if engines(fleet) == 1 and instance.flows.rate.sum() > most else KEPT)
    found = curves.with_looks(tight, BASE, "rate", by_formula, looks=2)
    moved, after = found.steps[:2]
    assert moved.promised == first.hard
    assert moved.hard <= most < (moved.missed or 0.0) <= moved.hard * (1.0 + 1.001 * RESOLUTION)
    assert after.easy == pytest.approx(moved.hard, rel=1e-3)
    assert (found.steps[0].easy, found.steps[-1].hard) == (first.easy, last.hard)
    told = " ".join(render_document(frontier_document(found), 100).split())
    moved_at = f"meets the SLO up to {first.hard:.5g} req/s, but there it misses"
    assert f"Moved: by formula 1 × H100 TP1 colocated {moved_at}" in told
    record = frontier_record(found)["steps"][0]
    assert record["hardest"] == moved.hard < record["hardest_by_formula"] == first.hard
    assert record["simulated"]
    assert rows_csv(frontier_rows(found)).count("\n") == len(found.steps) + 1


def test_of_a_limit_that_gets_harder_downwards_a_step_holds_down_to_its_end(by_formula: Frontier) -> None:
    answer = replace(
        by_formula.steps[0].answer, refuted=(Missed(3.0, (engine_cases.engines(1, "H100", 1, "colocated"),), *MISSED),)
    )
    curve = replace(by_formula, over="ttft", steps=(Step(4.0, 2.0, answer, promised=1.0, missed=1.5),))
    assert "1 × H100 TP1 colocated meets the SLO down to 1 s, but there it misses" in " ".join(
        render_document(frontier_document(curve), 100).split()
    )


def test_a_fleet_that_holds_nowhere_has_no_step(tight: Problem, by_formula: Frontier, seen: Any) -> None:
    seen(lambda _instance, fleet: MISSED if engines(fleet) == 1 else KEPT)
    found = curves.with_looks(tight, BASE, "rate", by_formula, looks=2)
    assert found.steps[0].easy == by_formula.steps[0].easy
    first, after = found.steps[0].answer, by_formula.steps[1].answer
    assert first.attainment == 1.0  # found by a search of its own, though the next step's fleet would do
    assert None not in {first.cost, after.cost}
    assert (first.cost or 0.0) <= (after.cost or 0.0)
    assert [step.easy for step in found.steps[1:]] == pytest.approx([step.hard for step in found.steps[:-1]], rel=1e-3)
    assert [engine_counts(one.pools) for one in found.refuted] == [ONE_H100]
    told = "Not taken: 1 × H100 TP1 colocated for $3.00/h misses when simulated."
    assert told in render_document(frontier_document(found), 100)


def test_beyond_the_last_fleet_that_holds_comes_one_that_does(tight: Problem, by_formula: Frontier, seen: Any) -> None:
    last = by_formula.steps[-1]
    seen(lambda _instance, fleet: MISSED if engines(fleet) <= 2 else KEPT)
    found = curves.with_looks(tight, BASE, "rate", by_formula, looks=1)
    assert found.steps[-1].hard == last.hard
    assert found.steps[-1].answer.attainment == 1.0


# --- a purchase -----------------------------------------------------------------------------------------------------


def terms(rate: float) -> Terms:
    by_hour = (1.0,) * 12 + (0.25,) * 12
    forecast = Forecast(2, rate, (DemandPath("flat", 0.0, 1.0),), by_hour, levels=4)
    rent = Contract(0, Tier.ON_DEMAND, running=3.0)
    return Terms(forecast, (rent,), draw=(1000.0,), decide_every=1, electricity="$0.1/kWh")


def bought(looks: int, rate: float = 20.0) -> BuyingPlan:
    return buy(problem(offers=(offer("H100"),)), terms(rate), looks=looks)


def test_a_purchase_does_without_fleets_that_were_refuted(seen: Any) -> None:
    promised = bought(0)
    least = promised.levels.options[-1][0].gpus[0]
    peak = promised.levels.rates[-1]

    def judge(instance: Instance, fleet: Fleet) -> Seen:
        at_peak = instance.problem.workload.request_rate == pytest.approx(peak)
        return MISSED if at_peak and engines(fleet) <= least else KEPT

    seen(judge)
    found = bought(40)
    assert (promised.looks.held, promised.looks.missed) == ((), ())
    assert found.levels.options[-1][0].gpus[0] > least
    assert found.total > promised.total
    assert (found.looks.missed, len(found.looks.held)) == ((), found.looks.every)
    assert found.looks.refuted
    data = buying_dict(found)["fleets"]
    assert (data["used"], data["simulated"], data["missed"]) == (found.looks.every, found.looks.every, [])
    told = " ".join(buying_text(found, 100).split())
    assert "were simulated at the rate they are for" in told
    assert "TP1 colocated at 20 req/s, which misses" in told
    assert "by formula, not simulated" in " ".join(buying_text(promised, 100).split())


def test_the_terminal_counts_refuted_fleets_and_tells_of_the_dearest(seen: Any) -> None:
    """All that miss once is refuted; the record has each, the sentences tell of three."""
    seen(lambda _instance, _fleet: MISSED)
    found = bought(40)
    missed = found.looks.missed[0]

    def refuted(count: int) -> Look:
        pools = tuple(replace(pool, replicas=count) for pool in missed.fleet.fleet.pools)
        return replace(missed, fleet=replace(missed.fleet, fleet=Fleet(pools)))

    many = replace(found, looks=replace(found.looks, refuted=tuple(refuted(count) for count in (2, 9, 4, 3, 7))))
    told = " ".join(buying_text(many, 100).split())
    assert "5 fleets missed the SLO in simulation; the 3 dearest follow." in told
    unused = "Not used: "
    assert re.findall(unused + r"(\d)", told) == ["9", "7", "4"]
    assert len(buying_dict(many)["fleets"]["refuted"]) == 5


def test_a_purchase_that_does_not_hold_is_no_success(seen: Any) -> None:
    seen(lambda _instance, _fleet: MISSED)
    found = bought(40)
    assert found.looks.missed
    assert not found.looks.held
    assert buying_text(found, 100).startswith("This purchase misses the SLO: it counts on ")
    few = problem(offers=(offer("H100", inventory=1),))
    with pytest.raises(InfeasibleError, match="misses when simulated"):
        buy(few, terms(5.0), looks=40)


def test_only_so_many_fleets_of_a_purchase_are_looked_at(seen: Any) -> None:
    looked = seen(lambda _instance, _fleet: KEPT)
    found = bought(1)
    assert len(looked) == 1
    assert len(found.looks.held) == 1 < found.looks.every
    assert found.looks.held[0].fleet.rate == pytest.approx(found.levels.rates[-1])  # the peak first
    assert "The others are by formula (--verify N)" in " ".join(buying_text(found, 100).split())
