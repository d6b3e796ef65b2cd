"""What a dollar more buys: the front of cost and tail, asked for with --front, in the plan and in every view of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from optimizer.plans.plan import Plan
from optimizer.plans.reading import parse_plan
from optimizer.plans.records import SimulatedLatencies, TunedFleet, Tuning
from optimizer.verification import bench as benches
from reports.answers.plan import front_section
from reports.numbers import count, duration, hourly
from tests.engine_cases import engines
from tests.report_cases import load, markdown_of, simulated, text_of, times
from tests.running import Done, tiny, within


def front_rows(plan: Plan) -> tuple[tuple[str, ...], ...]:
    table = front_section(plan).table
    return () if table is None else table.rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("front")


@pytest.fixture(scope="module")
def done(folder: Path) -> Done:
    file = tiny(folder, search={"roles": ["colocated"], "tensor_parallel": [1], "max_num_seqs": [32, 128]})
    with pytest.MonkeyPatch.context() as patch:  # short runs are enough for what is asked here
        patch.setattr(benches, "LEAST_REQUESTS", 1000)
        patch.setattr(benches, "MOST_RELAXED", 1000)
        return within("optimize", file, "--front", "8", "-o", folder / "plan")


@pytest.fixture(scope="module")
def asked(done: Done, folder: Path) -> Plan:
    assert done.returncode == 0, done.stderr
    return parse_plan((folder / "plan" / "plan.json").read_bytes())


def test_the_plan_stays_the_cheapest_that_holds_and_every_view_shows_what_costs_more(
    asked: Plan, done: Done, folder: Path
) -> None:
    assert asked.simulation is not None
    tuning = asked.simulation.tuning
    assert tuning is not None
    assert 2 <= tuning.looks <= 8
    assert tuning.objectives == ["cost", "tail"]
    own = asked.cost_usd_per_hour or 0.0
    held = [fleet for fleet in tuning.front if fleet.outcome == "meets"]
    assert min(fleet.cost_usd_per_hour for fleet in held) >= own - 1e-9
    assert any(fleet.cost_usd_per_hour > own for fleet in held)
    assert all(a.cost_usd_per_hour < b.cost_usd_per_hour and a.tail > b.tail for a, b in pairwise(held))
    assert all(fleet.tail <= 1.0 and len(fleet.served) == len(fleet.pools) for fleet in tuning.front)
    page = (folder / "plan" / "report.html").read_text("utf-8")
    rows = front_rows(asked)
    assert rows[0][-1] == "recommended"
    for row in rows:
        assert row[1] in done.stdout
        assert row[1] in page
        assert row[-1] in {"recommended", "meets the SLO", "misses the SLO", "not proven", "one short run"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--effort", "quick"), "--front: its fleets are simulated, but --effort is quick"),
        (
            ("--set", "objective=max_goodput", "--set", "constraints.budget=10"),
            "--front: cost against tail needs a demand to meet: objective min_cost",
        ),
    ],
)
def test_a_front_is_refused_where_nothing_is_tuned(tmp_path: Path, words: tuple[str, ...], fault: str) -> None:
    found = within("optimize", tiny(tmp_path), "--front", "8", *words)
    assert found.returncode == 2
    assert fault in found.stderr


def with_front(*fleets: tuple[float, float, str | None], ttft: float = 1.0) -> Plan:
    """A simulated plan with a front of (cost and TPOT over the plan's, outcome); ttft: TTFT over the plan's."""
    plan = simulated(load("colocated"))
    assert plan.simulation is not None
    own, item = plan.cost_usd_per_hour or 0.0, plan.classes[0]
    item = item.model_copy(update={"tpot_limit_s": item.tpot_s.p90 / 0.8, "ttft_limit_s": item.ttft_s.p90 / 0.4})
    rows = [
        TunedFleet(
            pools=[engines(2, "H100", 2, "colocated")],
            served=[1.0],
            cost_usd_per_hour=own * cost,
            tail=0.8 * tpot,
            outcome=outcome,
            latencies=[
                SimulatedLatencies(
                    name=item.name,
                    attainment=0.97,
                    ttft_s=times(item.ttft_s, ttft),
                    tpot_s=times(item.tpot_s, tpot),
                )
            ],
        )
        for cost, tpot, outcome in fleets
    ]
    tuning = Tuning(sampler="TPE", objectives=["cost", "tail"], looks=9, improved=False, front=rows)
    found = plan.simulation.model_copy(update={"tuning": tuning})
    goal = item.model_copy(update={"attainment_goal": 0.9})
    return plan.model_copy(update={"simulation": found, "classes": [goal]})


def test_the_plan_stands_first_and_only_what_costs_more_and_keeps_its_goals_is_told() -> None:
    plan = with_front((0.8, 1.5, None), (1.0, 0.9, None), (1.2, 2.0, None), (1.5, 0.75, "meets"), (2.0, 0.5, None))
    rows = front_rows(plan)
    assert [(row[2], row[3], row[-1]) for row in rows] == [
        ("–", "80 %", "recommended"),
        ("+50 %", "60 %", "meets the SLO"),
        ("+100 %", "40 %", "one short run"),
    ]
    pool, item = plan.pools[0], plan.classes[0]
    assert rows[0][0].endswith(f"({count(pool.max_num_seqs)}/{count(pool.max_num_batched_tokens)})")
    assert rows[0][5:7] == (duration(item.ttft_s.p90), duration(item.tpot_s.p90))
    more = hourly(0.5 * (plan.cost_usd_per_hour or 0.0))
    gain = f"simulated; for +{more} (50 %) the slowest latency falls from 80 % to 60 % of its limit"
    assert front_section(plan).title.endswith(gain)
    for text in (text_of(plan, 200), markdown_of(plan)):
        assert "What a dollar more buys: 9 fleets around the plan's" in text
        assert front_section(plan).notes[0] in text
        assert "2 × H100 TP2 colocated (64/2,048)" in text
