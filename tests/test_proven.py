"""From what was chosen to what is recommended: tuning takes nothing back, and rivals get the same care."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.fleets.fleet import fleet_cost
from optimizer.plans.plan import Status
from optimizer.plans.proof import Proof
from optimizer.recommend.search import FormulaResult, Rival, proof_of
from tests.small_fleets import apart, small
from tests.test_verified_search import Oracle


@pytest.mark.parametrize(("chosen", "known"), [(2, True), (1, False)])
def test_no_bound_over_few_pools_is_told_beside_a_cheaper_fleet_by_formula(chosen: int, known: bool) -> None:
    """The bound is what two prefill engines cost; a fleet of one that missed when simulated was none of those."""
    instance = small()
    bench: Any = Oracle(instance, (3, 1))
    bound = fleet_cost(instance, apart(instance, 2, 1))
    fleet, winner = apart(instance, chosen, 1), bench.verdict(apart(instance, 3, 1))
    proof = Proof(Status.FEASIBLE, bound, 0.0, 1.0, bound)
    found = proof_of(FormulaResult(instance, proof, rivals=(Rival((fleet,)),)), winner, 1.0)
    assert found.bound == pytest.approx(bound if known else 1.0)
