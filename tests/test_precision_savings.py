"""What fp8 weights and an fp8 KV cache save: by a search in that precision, told where it is notable."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from optimizer.fleets.fleet import fleet_cost
from optimizer.loads.instance import never
from optimizer.plans.records import PrecisionSaving
from optimizer.recommend.optimize import NOTABLE, precision_savings
from optimizer.search.search import evaluated, unmixed
from search_spaces.problem import Problem
from tests.optimizer_cases import instance_of, offer, problem, slo, workload

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
