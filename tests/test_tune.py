"""Tuning by simulation: samplers, and that only what is proven is taken."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from optimizer.fleets.fleet import Fleet
from optimizer.loads.effort import Wish
from optimizer.plans.plan import parse_plan
from optimizer.verification import bench as benches
from optimizer.verification.bench import Bench
from optimizer.verification.tune import Look, Looks, Point, Search, Tuned, Value, Values, front, tuned
from reports.answers.plan_details import OF_LIMIT, front_section
from search_spaces.problem import Constraints
from tests.optimizer_cases import instance_of, problem, space, workload
from tests.running import tiny, within
from tests.small_fleets import alone, small

SIZES = (4, 3, 5)


def by_tpe(sizes: tuple[int, ...], value: Value, start: Point, budget: int, seed: int, **changes: Any) -> Looks:
    axes = {str(knob): range(size) for knob, size in enumerate(sizes)}
    return Search(axes, value, seed, near=True, **changes).looks_of(start, budget)


def bowl(point: Point) -> Values:
    """Least at (3, 0, 2)."""
    return (float(sum((a - b) ** 2 for a, b in zip(point, (3, 0, 2), strict=True))),)


def slope(point: Point) -> Values:
    """What the first knob adds to the one it takes off the other; the second knob only costs: a front of four."""
    return float(point[0] + point[1]), float(3 - point[0] + point[1] + (point[2] - 2) ** 2)


@pytest.mark.parametrize("value", [bowl, slope])
def test_a_sampler_starts_where_it_should_and_looks_once_at_each_point(value: Value) -> None:
    asked: list[Point] = []

    def told(point: Point) -> Values | None:
        asked.append(point)
        return value(point)

    looks = by_tpe(SIZES, told, (1, 1, 1), 25, 7)
    assert asked[0] == (1, 1, 1)
    assert asked == list(looks)
    assert len(set(asked)) == len(asked) == 25
    assert all(0 <= index < size for point in asked for index, size in zip(point, SIZES, strict=True))
    assert list(by_tpe(SIZES, value, (1, 1, 1), 25, 7).items()) == list(looks.items())


def test_tuning_takes_only_what_is_proven_and_not_dearer() -> None:
    wide = space(tensor_parallel=(1,), max_num_seqs=(8, 32, 128), max_num_batched_tokens=(64, 2048))
    limited = problem(workload=workload(rate=6.0), space=wide, constraints=Constraints(max_gpus=3))
    instance = instance_of(limited)
    bench = Bench(instance, 0, 1000)
    winner = bench.verdict(alone(instance, 2, chunk=1))
    assert winner.held
    found = tuned(bench, winner, Wish(12))
    assert found.winner.held
    assert found.winner.cost <= winner.cost
    assert len(found.looks) <= 12
    assert max(sum(one.replicas for one in look.fleet.pools) for look in found.looks) <= 3
    again = tuned(Bench(instance, 0, 1000), winner, Wish(12))
    assert [look.distance for look in again.looks] == [look.distance for look in found.looks]


def test_the_front_keeps_its_goals_and_what_holds_is_beaten_only_by_what_holds() -> None:
    def rows(*looks: tuple[float, float, bool]) -> list[tuple[float, float]]:
        best = front(Look(Fleet(()), cost, tail, held) for cost, tail, held in looks)
        return [(look.cost, look.distance) for look in best]

    short = ((3.0, 0.2), (0.5, 1.2), (1.0, 0.9), (2.0, 0.9), (2.0, 0.5), (4.0, 0.3), (2.5, 0.495))
    assert rows(*((*look, False) for look in short)) == [(1.0, 0.9), (2.0, 0.5), (3.0, 0.2)]
    assert rows((3.0, 0.59, False), (2.0, 0.6, True), (1.0, 0.5, False)) == [(1.0, 0.5), (2.0, 0.6)]
    assert rows((2.0, 0.6, True), (3.0, 0.4, True), (4.0, 0.4, True)) == [(2.0, 0.6), (3.0, 0.4)]


# --- what a dollar more buys: the front of cost and tail, asked for with --front, in the plan and its views


def test_the_plan_stays_the_cheapest_that_holds_and_every_view_shows_what_costs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_runs: None
) -> None:
    monkeypatch.setattr(benches, "LEAST_REQUESTS", 1000)
    file = tiny(tmp_path, search={"roles": ["colocated"], "tensor_parallel": [1], "max_num_seqs": [32, 128]})
    done = within("optimize", file, "--front", "8", "-o", tmp_path / "plan")
    assert done.returncode == 0, done.stderr
    asked = parse_plan((tmp_path / "plan" / "plan.json").read_bytes())
    tuning = asked.simulation.tuning
    assert 2 <= tuning.looks <= 8
    assert tuning.objectives == ["cost", "tail"]
    own = asked.cost_usd_per_hour or 0.0
    held = [fleet for fleet in tuning.front if fleet.outcome == "meets"]
    assert min(fleet.cost_usd_per_hour for fleet in held) >= own - 1e-9
    assert any(fleet.cost_usd_per_hour > own for fleet in held)
    assert all(a.cost_usd_per_hour < b.cost_usd_per_hour and a.tail > b.tail for a, b in pairwise(held))
    assert all(fleet.tail <= 1.0 and len(fleet.served) == len(fleet.pools) for fleet in tuning.front)
    page = (tmp_path / "plan" / "report.html").read_text("utf-8")
    front = front_section(asked)
    looks = front.notes[0].removeprefix(f"{OF_LIMIT} ")
    assert re.fullmatch(
        r"\d fleets around the plan's( and \d+ of other kinds)? were simulated, "
        r"in full runs like the plan's unless the outcome says otherwise\.",
        looks,
    )
    table = front.table
    assert [column.header for column in table.columns[4:6]] == ["TTFT p90", "TPOT p90"]
    assert re.fullmatch(r"[\d.]+ m?s \([\d.]+ %\)", table.rows[0][4])
    doubtful = asked.model_copy(update={"simulation": asked.simulation.model_copy(update={"held": False})})
    assert front_section(doubtful).table.rows[0][-1] == "undecided"
    for row in table.rows:
        assert row[2] in done.stdout
        assert row[2] in page
        assert row[-1] in {"meets the SLO", "misses the SLO", "undecided"}


# --- a tuning study that is kept, and how a second run goes on


def tuning(study: str | None) -> Tuned:
    instance = small()
    bench = Bench(instance, 0, 1000)
    return tuned(bench, bench.verdict(alone(instance, 2)), Wish(3, study=study))


@pytest.mark.parametrize("form", ["sqlite:///", "journal:"])
def test_a_second_run_goes_on_from_the_first(tmp_path: Path, form: str) -> None:
    url = f"{form}{tmp_path / 'tuning'}"
    first = tuning(url)
    assert [look.distance for look in first.looks] == [look.distance for look in tuning(None).looks]
    second = tuning(url)
    assert (len(first.looks), len(second.looks)) == (3, 5)  # both look at the start
    known = {(look.fleet.pools[0].replicas, look.fleet.pools[0].seqs): look for look in second.looks}
    assert len(known) == 5
    for look in first.looks:
        again = known[look.fleet.pools[0].replicas, look.fleet.pools[0].seqs]
        assert (again.cost, again.distance) == (look.cost, look.distance)
    assert second.winner.cost <= first.winner.cost
