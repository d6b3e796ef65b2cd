"""What a dollar more buys: the front of cost and tail, asked for with --front, in the plan and in every view of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from optimizer.plans.plan import Plan
from optimizer.plans.reading import parse_plan
from optimizer.plans.records import SimulatedLatencies, TunedFleet, Tuning
from optimizer.verification import bench as benches
from reports.front import asked_front, front_headers, front_note, front_rows, front_sentence
from reports.numbers import count, duration, hourly
from tests import report_cases as markdown
from tests.engine_cases import engines
from tests.report_cases import load, simulated, times
from tests.report_cases import text_of as render_plan
from tests.running import Done, tiny, within


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


def test_the_plan_stays_the_cheapest_that_holds_and_what_costs_more_is_judged(asked: Plan) -> None:
    tuning = asked_front(asked)
    assert tuning is not None
    assert 2 <= tuning.looks <= 8
    assert tuning.objectives == ["cost", "tail"]
    own = asked.cost_usd_per_hour or 0.0
    held = [one for one in tuning.front if one.outcome == "meets"]
    assert min(one.cost_usd_per_hour for one in held) >= own - 1e-9
    assert any(one.cost_usd_per_hour > own for one in held)
    assert all(a.cost_usd_per_hour <= b.cost_usd_per_hour for a, b in pairwise(tuning.front))
    assert all(a.cost_usd_per_hour < b.cost_usd_per_hour and a.tail > b.tail for a, b in pairwise(held))
    assert all(one.tail <= 1.0 for one in tuning.front)
    assert all(len(one.served) == len(one.pools) for one in tuning.front)


def test_every_view_shows_the_front(asked: Plan, done: Done, folder: Path) -> None:
    page = (folder / "plan" / "report.html").read_text("utf-8")
    assert "What a dollar more buys" in done.stdout
    assert "What a dollar more buys" in page
    for row in front_rows(asked):
        assert row[1] in done.stdout
        assert row[1] in page
        assert row[-1] in {"recommended", "meets the SLO", "misses the SLO", "not proven", "one short run"}
    assert front_rows(asked)[0][-1] == "recommended"
    assert len(front_headers(asked)) == len(front_rows(asked)[0])


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
    assert [(row[2], row[3], row[-1]) for row in front_rows(plan)] == [
        ("–", "80 %", "recommended"),
        ("+50 %", "60 %", "meets the SLO"),
        ("+100 %", "40 %", "one short run"),
    ]
    first, second, _ = front_rows(plan)
    pool, item = plan.pools[0], plan.classes[0]
    assert first[0].endswith(f"({count(pool.max_num_seqs)}/{count(pool.max_num_batched_tokens)})")
    assert second[0] == "2 × H100 TP2 colocated (64/2,048)"
    assert first[5:7] == (duration(item.ttft_s.p90), duration(item.tpot_s.p90))
    assert front_headers(plan)[5:7] == ("#TTFT p90", "#TPOT p90")
    more = hourly(0.5 * (plan.cost_usd_per_hour or 0.0))
    assert (
        front_sentence(plan)
        == f"9 fleets around the plan's simulated; +{more} (50 %): TPOT p90 from 80 % to 60 % of its limit"
    )


def test_a_plan_of_before_says_holds_of_what_meets_its_goals() -> None:
    now, before = (with_front((1.5, 0.75, outcome)) for outcome in ("meets", "holds"))
    assert front_rows(before) == front_rows(now)
    assert front_sentence(before) == front_sentence(now)


def test_the_sentence_says_which_fleets_were_considered() -> None:
    plan = with_front((1.5, 0.75, "meets"))
    assert plan.simulation is not None
    tuning = asked_front(plan)
    assert tuning is not None
    tuning = tuning.model_copy(update={"compared": 2})
    plan = plan.model_copy(update={"simulation": plan.simulation.model_copy(update={"tuning": tuning})})
    assert front_sentence(plan).startswith("9 fleets around the plan's simulated, 2 of other kinds simulated; +")


def test_the_sentence_names_what_gets_worse() -> None:
    plan = with_front((1.5, 0.75, "meets"), ttft=1.25)
    assert front_sentence(plan).endswith(
        "TPOT p90 from 80 % to 60 % of its limit; worse: TTFT p90 from 40 % to 50 % of its limit"
    )


def test_of_several_classes_the_nearest_to_its_limit_is_told_by_name() -> None:
    plan = with_front((1.5, 0.75, "meets"))
    assert plan.simulation is not None
    (item,), tuning = plan.classes, asked_front(plan)
    assert tuning is not None
    slack = item.model_copy(update={"name": "slack", "tpot_s": times(item.tpot_s, 0.5), "attainment_goal": 0.5})
    (one,) = tuning.front
    both = [*one.latencies, one.latencies[0].model_copy(update={"name": "slack", "tpot_s": slack.tpot_s})]
    tuning = tuning.model_copy(update={"front": [one.model_copy(update={"latencies": both})]})
    found = plan.simulation.model_copy(update={"tuning": tuning})
    plan = plan.model_copy(update={"simulation": found, "classes": [slack, item]})
    assert front_headers(plan)[5:7] == ("#TTFT at goal", "#TPOT at goal")
    assert front_rows(plan)[0][6] == duration(item.tpot_s.p90)
    assert front_sentence(plan).endswith(f": {item.name} TPOT p90 from 80 % to 60 % of its limit")


def test_text_and_markdown_say_what_the_columns_mean() -> None:
    plan = with_front((1.5, 0.75, "meets"))
    for text in (render_plan(plan, 200), markdown.markdown_of(plan)):
        assert "What a dollar more buys" in text
        assert front_note(plan) in text
        assert "2 × H100 TP2 colocated (64/2,048)" in text


def test_what_was_only_looked_at_or_is_no_faster_promises_nothing() -> None:
    for plan in (
        with_front((1.5, 0.5, None), (1.7, 0.4, "undecided")),
        with_front((1.5, 0.5, "meets"), ttft=2.1),
    ):
        assert front_sentence(plan).endswith("no dearer fleet is proven to meet the SLO and to be faster")
    assert front_rows(with_front((1.7, 0.4, "undecided")))[-1][-1] == "not proven"


def test_a_plan_without_a_front_says_nothing_of_one() -> None:
    plan = simulated(load("colocated"))
    assert asked_front(plan) is None
    assert front_sentence(plan) == ""
    assert front_rows(plan) == []
    assert "dollar more" not in render_plan(plan)
