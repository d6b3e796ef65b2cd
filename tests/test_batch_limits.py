"""Batch limits that a fleet need not have: larger_batches for as long as the simulated fleet then serves more."""

from __future__ import annotations

from functools import cache

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.verification.bench import Bench, goodput_of
from optimizer.verification.verify import larger_batches, with_larger_batches
from tests.optimizer_cases import instance_of, problem, slo, space, workload
from tests.optimizer_cases import limit as place

LIMITS = (4, 8, 16, 32, 64)


@cache
def short_answers() -> Instance:
    """Two requests per second of 200 tokens in and out, on H100s."""
    given = space(tensor_parallel=(1,), max_num_seqs=LIMITS, roles=(Role.COLOCATED,))
    return instance_of(
        problem(workload=workload(2.0, ((200.0, 200.0, 1.0),)), slos=(slo(2.0, 0.05, 0.9),), space=given)
    )


def one_engine(limit: int) -> Fleet:
    """One engine with a batch limit."""
    route = np.ones(short_answers().flows.isl.size)
    seqs = place(short_answers(), LIMITS.index(limit))
    return Fleet((FleetPool("colocated-1", Role.COLOCATED, 0, seqs, 0, 1, 0, route),))


def bench() -> Bench:
    return Bench(short_answers(), seed=0, requests=800)


def test_limits_are_raised_by_two_places_up_to_the_last() -> None:
    instance = short_answers()
    assert larger_batches(instance, one_engine(8)) == one_engine(32)
    assert larger_batches(instance, one_engine(32)) == one_engine(64)
    assert larger_batches(instance, one_engine(64)) is None


def test_an_engine_whose_limit_binds_gets_a_larger_one() -> None:
    judge, demand = bench(), 2.0
    start = judge.verdict(one_engine(8))
    assert start.held
    found = with_larger_batches(judge, start, lambda: False)
    assert found.held
    assert found.fleet.pools[0].seqs > start.fleet.pools[0].seqs

    def served(fleet: Fleet) -> float:
        return goodput_of(judge, fleet, demand * goodput_volume(judge.instance, fleet), lambda: False).rate

    assert served(found.fleet) > 1.5 * served(start.fleet)
