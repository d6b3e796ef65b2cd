"""Bursts under a tight TPOT limit: engines with few seats hold where the largest batch limit does not."""

from __future__ import annotations

import pytest

from benchmarks.few_seats import posed
from benchmarks.problems import Posed, equal_engines, instance_of, problem_of
from optimizer.fleets.evaluate import evaluate
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from optimizer.verification.judge import judge

POSED: Posed = (
    "chat",
    {
        "model.name": "DeepSeek-V3",
        "model.weight_dtype": "fp8",
        "workload.request_rate": "0.3",
        "workload.burstiness": "3",
        "workload.lengths": "{isl: 4000, osl: 120}",
        "slo": "{ttft: 9.4s, tpot: 20ms, percentile: p90}",
        "accelerators": "[H200]",
        "search.tensor_parallel": "[8]",
        "search.pipeline_parallel": "[1]",
        "search.expert_parallel": "[1]",
    },
)
"""One prompt of a burst at a time adds little to a step of decodes, a dozen of them far more than the limit."""


def test_the_plan_has_few_seats() -> None:
    """One server and not two, which a search of the largest limits takes."""
    plan = optimize(problem_of(POSED), level=Level.QUICK)
    assert plan.cost_usd_per_hour == pytest.approx(33.52)
    assert [pool.role for pool in plan.pools] == ["colocated"]
    assert plan.pools[0].max_num_seqs <= 16


@pytest.mark.parametrize("seats", [4, 8, 64])
def test_more_engines_never_meet_less(seats: int) -> None:
    """Within 19 ms more engines meet more of a burst, and few seats what many miss, by formula as in the simulation."""
    instance = instance_of(posed(3.0, 19.0, "H200"))
    layouts = [(row.parallelism.tensor, row.parallelism.expert) for row in instance.tables.shapes]
    by_formula = []
    for engines in (1, 2, 3, 6):
        fleet = equal_engines(instance, layouts.index((8, 8)), seats, 2048, engines)
        by_formula.append(evaluate(instance, fleet, 1.0).overall)
        simulated = judge(instance, fleet, requests=4_000, seed=7).classes[0].attainment.share
        assert by_formula[-1] == pytest.approx(simulated, abs=0.13)
    assert by_formula == sorted(by_formula)
