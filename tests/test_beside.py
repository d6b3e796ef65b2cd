"""Fleets of one GPU type: engines of several sizes in a stage, and colocated ones beside prefill and decode engines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume, holds, predict_misses
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.rivals.beside import cheaper_beside
from optimizer.rivals.by_evaluation import Evaluated, cheapest_held
from optimizer.rivals.leanest import at_best_split, leanest
from optimizer.rivals.mixed import WORTH, cheaper_mix
from optimizer.rivals.recut import ROOM, with_room
from optimizer.rivals.room import AS_MUCH
from search_spaces.problem import Problem
from tests.optimizer_cases import instance_of, model, offer, problem, slo, space, workload

LENGTHS = ((400, 200, 0.5), (2500, 300, 0.3), (9000, 700, 0.2))


@cache
def known_at(rate: float) -> tuple[Evaluated, Fleet]:
    """Engines of one, two or four MI300X, what was evaluated of them, and the cheapest fleet of one pool or two."""
    posed = problem(
        model=model("Qwen3-30B-A3B"),
        workload=workload(rate, LENGTHS, burstiness=1.2, max_tokens=16384),
        offers=(offer("MI300X"),),
        slos=(slo(1.0, 0.03),),
        space=space(tensor_parallel=(1, 2, 4), max_num_seqs=(64, 256), max_num_batched_tokens=(8192,)),
    )
    known = at_best_split(instance_of(posed))
    instance = known.instance
    found = cheapest_held(known, instance.problem)
    assert found is not None
    return known, known.fleet(found[0])


def everything(known: Evaluated) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.ones(known.settings.size, dtype=np.bool_)


def keeps_its_goals(known: Evaluated, fleet: Fleet) -> bool:
    return holds(known.instance, predict_misses(known.instance, fleet))


RATES = (20.0, 30.0, 40.0, 50.0, 60.0, 70.0)


@pytest.mark.parametrize("rate", RATES)
def test_what_is_found_holds_and_saves_enough(rate: float) -> None:
    known, simple = known_at(rate)
    cost = fleet_cost(known.instance, simple)
    for found in (
        cheaper_mix(known, known.instance.problem, [simple], cost),
        cheaper_beside(known, known.instance.problem, [simple], cost, everything(known)),
    ):
        assert found is None or fleet_cost(known.instance, found) < cost * (1.0 - WORTH)
        assert found is None or keeps_its_goals(known, found)


def test_some_fleets_mix_sizes_of_one_gpu_type_and_some_have_colocated_engines_beside() -> None:
    mixed, beside = [], []
    for known, simple in map(known_at, RATES):
        cost, given = fleet_cost(known.instance, simple), known.instance.problem
        mixed.append(cheaper_mix(known, given, [simple], cost))
        beside.append(cheaper_beside(known, given, [simple], cost, everything(known)))
    assert any(one is not None and len({pool.role for pool in one.pools}) < len(one.pools) for one in mixed)
    assert any(one is not None and {pool.role for pool in one.pools} == set(Role) for one in beside)


def test_more_demand_never_costs_less() -> None:
    costs = [fleet_cost(known.instance, leanest(known)) for known, _ in map(known_at, RATES)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("rate", RATES)
def test_engines_stay_and_get_more_room_when_what_they_serve_is_cut_anew(rate: float) -> None:
    known, simple = known_at(rate)
    cost, given = fleet_cost(known.instance, simple), known.instance.problem
    for found in (
        cheaper_mix(known, given, [simple], cost),
        cheaper_beside(known, given, [simple], cost, everything(known)),
    ):
        if found is None:
            continue
        cut = with_room(known, found)
        assert engines(cut) == engines(found)
        for role in Role:
            routes = [np.sum([pool.route for pool in one.pools if pool.role is role], axis=0) for one in (cut, found)]
            assert set(Role) == {pool.role for pool in found.pools} or routes[0] == pytest.approx(routes[1])
        room = goodput_volume(known.instance, cut)
        assert room >= min(goodput_volume(known.instance, found), ROOM) * (1.0 - AS_MUCH)


def test_a_fleet_of_one_pool_of_each_role_is_left_as_it_is() -> None:
    known, simple = known_at(RATES[0])
    assert with_room(known, simple) is simple


def engines(fleet: Fleet) -> list[tuple[object, ...]]:
    return sorted((pool.role, pool.shape, pool.chunk, pool.replicas) for pool in fleet.pools)


def limited(known: Evaluated, pools: int) -> Problem:
    given = known.instance.problem
    return replace(given, constraints=replace(given.constraints, max_pools=pools))


def test_no_third_pool_where_two_are_the_limit() -> None:
    for known, simple in map(known_at, RATES):
        cost = fleet_cost(known.instance, simple)
        assert cheaper_beside(known, limited(known, 2), [simple], cost, everything(known)) is None
