"""The comparison: no row is dearer than the same search kept to its engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.engine import Role
from optimizer.plans.plan import Alternative, Plan
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import offer, slo, space
from tests.small_problems import given, optimize

BOTH = offer("H100"), offer("L40S")
COARSE = space(tensor_parallel=(1,), max_num_seqs=(64,), max_num_batched_tokens=(512,))
SPLIT = {"slos": (slo(1.0, 0.05, 0.9, e2e=8.0),), "offers": BOTH, "space": COARSE}


def restricted(problem: Problem, row: Alternative) -> Problem | None:
    """The problem of which a row of the comparison is the answer; None where no search space says so."""
    if row.kind == "single_type":
        offers = [bought for bought in problem.offers if row.label == f"{bought.accelerator.name} only"]
        return replace(problem, offers=tuple(offers))
    roles = {"colocated_only": (Role.COLOCATED,), "disaggregated_only": (Role.PREFILL, Role.DECODE)}.get(row.kind)
    return None if roles is None else replace(problem, space=replace(problem.space, roles=roles))


def costs_apart(problem: Problem) -> list[tuple[str, float, float]]:
    """Each row of the comparison: its label, its cost and that of the search under its restriction alone [$/h]."""
    plan: Plan = optimize(problem)
    alone = ((row, restricted(problem, row)) for row in plan.alternatives[1:])
    plans = [(row, optimize(only)) for row, only in alone if only is not None]
    return [(row.label, row.cost_usd_per_hour or 1e9, other.cost_usd_per_hour or 1e9) for row, other in plans]


MIXED = {"slos": (slo(1.0, 0.04, 0.9),), "offers": (offer("H100"), offer("A100-80")), "space": COARSE}


@pytest.mark.parametrize("problem", [given(20.0, **MIXED), given(4.0, **SPLIT)], ids=["mixtures", "end-to-end limit"])
def test_no_row_is_dearer_than_its_own_search(problem: Problem, short_runs: None) -> None:
    rows = costs_apart(problem)
    assert len(rows) == 4
    assert all(alone >= 0.99 * cost for _, cost, alone in rows), rows


def test_a_disaggregated_fleet_that_the_limits_forbid_says_so() -> None:
    def why(**limits: object) -> str:
        plan = optimize(given(2.0, slos=(slo(1.0, 0.05, 0.9),), space=COARSE, **limits))
        return next(row.why_not for row in plan.alternatives if row.kind == "disaggregated_only")

    few = "a prefill and a decode replica take 2 GPUs or more, which the limits on the fleet forbid"
    assert why(offers=(offer("H100", inventory=1),)) == few
    assert why(constraints=Constraints(max_gpus=1)) == few
    assert why(constraints=Constraints(max_pools=1)) == "it takes two pools, more than the limits on pools allow"
