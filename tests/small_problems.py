"""Small problems for the tests of `optimize`, and their plans, each searched for once."""

from __future__ import annotations

import pickle
from functools import cache, partial
from typing import Any

from optimizer.loads.effort import Level
from optimizer.plans.plan import Plan, Status
from optimizer.recommend.optimize import optimize as optimize_at
from search_spaces.problem import Problem
from tests.optimizer_cases import problem, slo, space, workload

optimize = partial(optimize_at, level=Level.QUICK)

SMALL = space(tensor_parallel=(1, 2), max_num_seqs=(32, 128))
ONE = space(tensor_parallel=(1,), max_num_seqs=(64,))
MIX = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
SOLVED = {Status.OPTIMAL, Status.FEASIBLE}


def given(rate: float = 30.0, **changes: Any) -> Problem:
    fields: dict[str, Any] = {"workload": workload(rate, MIX), "slos": (slo(1.0, 0.05, 0.95),), "space": SMALL}
    return problem(**(fields | changes))


def plan_of(asked: Problem) -> Plan:
    """The plan of a problem by formula; tests that ask for the same one share it."""
    return _plan(pickle.dumps(asked))


@cache
def _plan(pickled: bytes) -> Plan:
    return optimize(pickle.loads(pickled))
