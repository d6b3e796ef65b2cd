"""A batch limit that is never reached, or a formula that finds nothing, is no reason to say that there is no fleet."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.plans.plan import Status
from optimizer.recommend.optimize import optimize
from optimizer.recommend.search import Level
from search_spaces.problem import Constraints, Problem
from tests.optimizer_cases import limit, model, offer, problem, slo, space, workload


def large_model(*limits: int, chunk: int = 8192) -> Problem:
    """Llama-3.1-70B in FP8 on pairs of H100, 5 requests per second: some 22 run at once on two engines."""
    return problem(
        model=model("Llama-3.1-70B"),
        weight_dtype="fp8",
        kv_dtype="fp8",
        offers=(offer("H100"),),
        workload=workload(5.0, ((1500.0, 300.0, 1.0),)),
        slos=(slo(2.0, 0.05, 0.95),),
        space=space(
            roles=(Role.COLOCATED,), tensor_parallel=(2,), max_num_seqs=limits, max_num_batched_tokens=(chunk,)
        ),
    )


def one_gpu(rate: float, **changes: object) -> Problem:
    """Llama-3.1-8B on one H100 at most, which keeps the SLOs by formula up to some 15.5 requests per second."""
    narrow = space(
        roles=(Role.COLOCATED,), tensor_parallel=(1,), max_num_seqs=(32, 128), max_num_batched_tokens=(2048,)
    )
    return problem(
        workload=workload(rate, ((1500.0, 150.0, 1.0),)),
        slos=(slo(0.3, 0.025, 0.9),),
        space=narrow,
        constraints=Constraints(max_gpus=1),
        **changes,
    )


def engines(instance: Instance) -> Fleet:
    """Two engines with the first limit of the space."""
    route = np.ones(instance.flows.isl.size)
    return Fleet((FleetPool("colocated-1", Role.COLOCATED, 0, limit(instance, 0), 0, 2, 0, route),))


@pytest.mark.parametrize("seqs", [64, 256, 512, 1024])
def test_a_limit_that_is_never_reached_costs_nothing(seqs: int) -> None:
    plan = optimize(large_model(seqs), level=Level.QUICK)
    (pool,) = plan.pools
    assert (pool.replicas, pool.max_num_seqs) == (2, seqs)


def test_only_a_floor_says_that_there_is_no_fleet() -> None:
    """A little too much by formula is no proof; four times what the GPU can compute is."""
    plan = optimize(one_gpu(16.0), level=Level.QUICK)
    assert (plan.status, plan.pools) == (Status.TIME_LIMIT, [])
    assert any(row.simulated for row in plan.alternatives)
    assert optimize(one_gpu(60.0), level=Level.QUICK).status is Status.INFEASIBLE
