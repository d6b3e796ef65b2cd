"""The fewest blocks that can serve the demand are no more than any column takes, so no split is judged by less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optimizer.loads.columns import Grid, make_columns
from optimizer.loads.fewest import fewest_blocks
from optimizer.loads.instance import Instance
from optimizer.solver.simple_plans import price_space, simple_plans
from optimizer.solver.split import priced_at_best_split, splits, with_best_split
from search_spaces.problem import Problem
from tests.optimizer_cases import instance_of, model, offer, problem, slo, space, workload

CLASSES = (slo(1.0, 0.04, name="near", share=0.5), slo(np.inf, np.inf, name="far", share=0.5, e2e=12.0))
CASES = {
    "dense": problem(workload=workload(30.0), slos=CLASSES),
    "tight whole": problem(workload=workload(8.0), slos=(slo(np.inf, np.inf, e2e=6.0),)),
    "two types": problem(workload=workload(60.0), offers=(offer("H100"), offer("L40S")), slos=CLASSES),
    "experts": problem(
        model=model("Qwen3-30B-A3B"),
        workload=workload(40.0, ((400, 200, 0.7), (6000, 500, 0.3)), max_tokens=8192),
        slos=CLASSES,
        space=space(tensor_parallel=(1, 2), pipeline_parallel=(1, 2), expert_parallel=(1, 2), data_parallel=(1, 2)),
    ),
}


def simple_cost(instance: Instance) -> float:
    """Cost of the cheapest fleet of one pool or two that columns promise."""
    plans = simple_plans(instance, *price_space(instance, make_columns(instance, Grid())))
    return plans[0].cost if plans else np.inf


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_no_column_takes_less(given: Problem) -> None:
    instance = instance_of(given)
    columns, totals = price_space(instance, make_columns(instance, Grid()))
    fewest = fewest_blocks(instance, columns)
    assert (fewest > 0.0).all()
    assert (fewest <= totals.busiest * (1.0 + 1e-9)).all()
    near = np.isfinite(totals.busiest)
    assert (fewest[near] / totals.busiest[near]).max() > 0.5


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_the_split_is_the_best_of_all(given: Problem) -> None:
    instance = instance_of(given)
    every = [simple_cost(replace(instance, flows=flows)) for flows in splits(given)]
    assert len(every) > 1
    best = with_best_split(instance)
    assert simple_cost(best) == pytest.approx(min(every))
    again, (columns, totals) = priced_at_best_split(instance)
    assert again.flows is best.flows or np.array_equal(again.flows.ttft, best.flows.ttft)
    assert simple_plans(again, columns, totals)[0].cost == pytest.approx(min(every))
