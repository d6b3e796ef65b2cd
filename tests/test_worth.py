"""What chunking, batching and disaggregation are worth: each is turned off alone, and prices are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.engine import Role
from optimizer.recommend.explain import FEATURES, formula_price, without, worths
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from search_spaces.problem import Problem
from tests.optimizer_cases import problem, slo, space, workload

SMALL = space(tensor_parallel=(1, 2), max_num_seqs=(32, 128))


def given(**changes: object) -> Problem:
    mix = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
    fields: dict[str, object] = {"workload": workload(30.0, mix), "slos": (slo(1.0, 0.05, 0.95),), "space": SMALL}
    return problem(**(fields | changes))


def test_each_feature_is_turned_off_alone() -> None:
    asked = given()
    whole, single, together = (without(feature, asked) for feature in FEATURES)
    assert whole.space.max_num_batched_tokens[0] >= asked.workload.max_tokens
    assert replace(whole.space, max_num_batched_tokens=asked.space.max_num_batched_tokens) == asked.space
    assert single.space == replace(asked.space, max_num_seqs=(1,))
    assert together.space == replace(asked.space, roles=(Role.COLOCATED,))


def test_the_price_is_that_of_the_search_and_batching_is_worth_most() -> None:
    asked = given()
    plan = optimize(asked, level=Level.QUICK)
    found = {item.feature: item for item in worths(asked)}
    assert list(found) == list(FEATURES)
    assert plan.cost_usd_per_hour is not None
    assert found["batching"].with_usd_per_hour == pytest.approx(plan.cost_usd_per_hour, rel=0.05)
    price = found["batching"].without_usd_per_hour
    assert price is None or price > 2 * plan.cost_usd_per_hour
    assert formula_price(without("disaggregation", asked)) == found["disaggregation"].without_usd_per_hour
