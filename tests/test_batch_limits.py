"""Batch limits that a fleet need not have: larger_batches for as long as the simulated fleet then serves more."""

from __future__ import annotations

from functools import cache

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.verification.bench import Bench, fleet_key, goodput_of
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


@cache
def long_prompts() -> Instance:
    """Two requests per second of 2000 tokens in and 4 out, on H100s: prompts wait for each other, not for a slot."""
    given = space(tensor_parallel=(1,), max_num_seqs=LIMITS, roles=(Role.COLOCATED,))
    return instance_of(problem(workload=workload(2.0, ((2000.0, 4.0, 1.0),)), slos=(slo(0.5, 0.5, 0.9),), space=given))


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


def test_limits_that_no_engine_reached_are_not_raised_and_no_run_is_made_for_it() -> None:
    judge, fleet = Bench(long_prompts(), seed=0, requests=800), one_engine(32)
    start = judge.verdict(fleet)
    assert start.held
    assert larger_batches(judge.instance, fleet) is not None
    assert with_larger_batches(judge, start, lambda: False) is start
    (key,) = judge.trials
    assert key == fleet_key(fleet)
    found = goodput_of(judge, fleet, 2.0, lambda: False)
    assert not any(point.full for point in found.points)


def test_a_limit_that_does_not_bind_stays_and_so_does_all_once_the_time_is_up() -> None:
    judge = bench()
    most, least = judge.verdict(one_engine(64)), judge.verdict(one_engine(8))
    assert with_larger_batches(judge, most, lambda: False) is most
    assert with_larger_batches(judge, least, lambda: True) is least
