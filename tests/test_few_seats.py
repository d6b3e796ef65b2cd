"""Bursts under a tight TPOT limit: engines with few seats hold where the largest batch limit does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.problems import Posed, instance_of, problem_of
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.loads.columns import Grid, make_columns
from optimizer.recommend.level import Level
from optimizer.recommend.optimize import optimize
from optimizer.rivals.by_evaluation import Evaluated, cheapest_held
from optimizer.rivals.few_seats import held_with_few_seats
from optimizer.rivals.leanest import evaluated
from optimizer.solver.fleet_model import COLOCATED
from optimizer.solver.simple_plans import column_totals

POSED: Posed = (
    "chat",
    {
        "model.name": "DeepSeek-V3",
        "model.weight_dtype": "fp8",
        "workload.request_rate": "0.3",
        "workload.burstiness": "3",
        "workload.lengths": "{isl: 4000, osl: 120}",
        "slo": "{ttft: 9.4s, tpot: 19ms, percentile: p90}",
        "accelerators": "[H200]",
        "search.tensor_parallel": "[8]",
        "search.pipeline_parallel": "[1]",
        "search.expert_parallel": "[1]",
    },
)
"""One prompt of a burst at a time adds little to a step of decodes, a dozen of them far more than the limit."""


@pytest.fixture(scope="module")
def known() -> Evaluated:
    """What is known of the pools of the problem."""
    instance = instance_of(POSED)
    columns = make_columns(instance, Grid())
    return evaluated(instance, (columns, column_totals(instance, columns)))


def test_a_smaller_limit_holds_where_the_largest_does_not(known: Evaluated) -> None:
    """One engine with few seats keeps both limits by formula; with all seats its steps are too long."""
    problem, colocated = known.instance.problem, known.settings.role == COLOCATED
    one = float(known.instance.tables.usd_per_hour.min()) * 1.01
    assert cheapest_held(known, problem, one, colocated) is None
    found = held_with_few_seats(known, problem, one, np.ones_like(colocated))
    assert found is not None
    assert holds(known.instance, predict_misses(known.instance, found, 1.0))
    assert found.pools[0].seqs < int(known.settings.seqs[colocated].max())
    assert fleet_cost(known.instance, found) <= one


def test_nothing_is_found_below_the_cost_of_an_engine(known: Evaluated) -> None:
    """No fleet costs less than asked for, and no engines are used that may not be."""
    problem, free = known.instance.problem, np.ones(known.settings.size, dtype=np.bool_)
    assert held_with_few_seats(known, problem, 0.99 * float(known.instance.tables.usd_per_hour.min()), free) is None
    assert held_with_few_seats(known, problem, math.inf, ~free) is None


def test_the_plan_has_few_seats() -> None:
    """One server and not two, which a search of the largest limits takes."""
    plan = optimize(problem_of(POSED), level=Level.QUICK)
    assert plan.cost_usd_per_hour == pytest.approx(33.52)
    assert [pool.role for pool in plan.pools] == ["colocated"]
    assert plan.pools[0].max_num_seqs <= 16
