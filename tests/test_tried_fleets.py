"""The other simulated fleets of a report: each once, by its best attempt, named in words that a reader knows."""

import pytest

from optimizer.plans.plan import Plan
from reports.answers.plan_charts import fleet_points
from reports.words import origin_words, outcome_words, tried_fleets
from tests.report_cases import judged, load, simulated

LESS, MISSED, BETTER, AGAIN = 1.3, 1.6, 1.1, 1.4


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One replica fewer, and a cheaper fleet that the search came by three times."""
    base = simulated(load("disaggregated"))
    assert base.simulation is not None
    attempts = [
        judged(base, what, 40.0, factor)
        for what, factor in (
            ("found by formula", MISSED), ("a rival", BETTER), ("a rival, decode-1 cut to 1 of 2", AGAIN),
        )
    ]  # fmt: skip
    others = [*attempts, *base.simulation.others]
    return base.model_copy(update={"simulation": base.simulation.model_copy(update={"others": others})})


def test_each_fleet_is_one_row_with_its_best_attempt(plan: Plan) -> None:
    less, cheaper, dearer = tried_fleets(plan)
    assert (less.what, cheaper.what, dearer.what) == ("p0: one replica fewer", "a rival", "found by formula")
    points = {point.name: point for point in fleet_points(plan)}
    assert {"recommended", "p0: one replica fewer", "a rival", "cheapest by formula"} <= set(points)
    assert points["a rival"].pools == "1 × H100-SXM TP4 prefill (64/2,048)"
    assert points["a rival"].met.startswith("chat ")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("found by formula", "cheapest by formula"),
        ("repaired", "repaired after a miss"),
        ("a rival, decode-1 cut to 2 of 3", "a rival, decode-1 cut to 2 of 3"),
        ("prefill-1: 2 x H200 TP2 PP1", "prefill-1: 2 x H200 TP2 PP1"),
        ("rival\u202e", "rival"),
    ],
)
def test_origins_are_said_in_words(plan: Plan, what: str, words: str) -> None:
    assert origin_words(judged(plan, what, 1.0, 1.0)) == words


def test_what_reaches_its_goals_without_its_interval_is_not_proven(plan: Plan) -> None:
    missed = judged(plan, "x", 1.0, 1.6)
    close = missed.model_copy(update={"attainment": {item.name: item.attainment_goal for item in plan.classes}})
    assert outcome_words(missed.model_copy(update={"attainment": dict.fromkeys(missed.attainment, 0.5)}), plan) == (
        "misses the SLO"
    )
    assert outcome_words(close, plan) == "not proven to meet it"
    assert outcome_words(close.model_copy(update={"overloaded": True}), plan) == "overloaded"
    assert outcome_words(close.model_copy(update={"held": True}), plan) == "meets the SLO"
