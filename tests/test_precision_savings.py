"""What fp8 weights and an fp8 KV cache save: by a search in that precision, told where it is notable."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from optimizer.fleets.fleet import fleet_cost
from optimizer.loads.instance import never
from optimizer.plans.plan import Plan
from optimizer.plans.records import PrecisionSaving
from optimizer.recommend.optimize import NOTABLE, precision_savings
from optimizer.search.search import evaluated, unmixed
from reports.answers.plan import plan_page as as_page
from reports.verdict import precision_sentence
from search_spaces.problem import Problem
from tests.optimizer_cases import instance_of, offer, problem, slo, workload
from tests.report_cases import load
from tests.report_cases import markdown_of as as_markdown
from tests.report_cases import text_of as render_plan

PLAN = load("disaggregated")
LONG = workload(8.0, ((6000.0, 1500.0, 1.0),))
"""Its KV cache fills the memory."""


def formula_cost(given: Problem) -> float:
    instance = instance_of(given)
    return fleet_cost(instance, unmixed(evaluated(instance)))


def test_a_saving_is_what_the_search_finds_in_that_precision() -> None:
    given = problem(workload=LONG, offers=(offer("H100"), offer("A100-80")), slos=(slo(3.0, 0.04),))
    base = formula_cost(given)
    savings = precision_savings(instance_of(given), base, never)
    assert savings
    for saving in savings:
        asked = replace(given, weight_dtype=saving.weight_dtype, kv_dtype=saving.kv_dtype)
        assert saving.cost_usd_per_hour == pytest.approx(formula_cost(asked))
        assert saving.base_usd_per_hour == base
        assert sum(pool.usd_per_hour or 0.0 for pool in saving.pools) == pytest.approx(saving.cost_usd_per_hour)
    costs = [base, *(saving.cost_usd_per_hour for saving in savings)]
    assert all(later <= before * (1.0 - NOTABLE) * (1.0 + 1e-5) for before, later in pairwise(costs))


def saving(weights: str, cache: str, cost: float) -> PrecisionSaving:
    return PrecisionSaving(
        weight_dtype=weights, kv_dtype=cache, cost_usd_per_hour=cost, base_usd_per_hour=100.0, pools=[]
    )


def test_the_views_say_what_they_save() -> None:
    own = [pool.model_copy(update={"weight_dtype": "bf16", "kv_dtype": "bf16"}) for pool in PLAN.pools]
    rows = [saving("bf16", "fp8", 94.0), saving("fp8", "bf16", 80.0), saving("fp8", "fp8", 60.0)]
    plan: Plan = PLAN.model_copy(update={"pools": own, "precision": rows})
    said = (
        "By formula, an fp8 KV cache would save 6 % (to $94.00/h), fp8 weights would save 20 % (to $80.00/h), fp8 "
        "weights with an fp8 KV cache would save 40 % (to $60.00/h); test the quality of the model's answers first."
    )
    assert precision_sentence(plan) == said
    assert all(said in " ".join(view(plan).replace("&#39;", "'").split()) for view in (render_plan, as_page))
    assert "By formula, an fp8 KV cache" in as_markdown(plan)
    assert precision_sentence(PLAN) == ""
