"""Fleets of one GPU type with engines of several sizes in a stage."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from optimizer.fleets.evaluate import evaluate
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.search.mixtures import cheaper_mixture, leanest
from optimizer.search.search import FleetSearch, at_best_split, cheapest_held
from tests.optimizer_cases import instance_of, model, offer, problem, slo, space, workload

LENGTHS = ((400, 200, 0.5), (2500, 300, 0.3), (9000, 700, 0.2))


@cache
def known_at(rate: float) -> tuple[FleetSearch, Fleet]:
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


def keeps_its_goals(known: FleetSearch, fleet: Fleet) -> bool:
    return evaluate(known.instance, fleet).holds


RATES = (20.0, 30.0, 40.0, 50.0, 60.0, 70.0)


@pytest.mark.parametrize("rate", RATES)
def test_what_is_found_holds_and_costs_less(rate: float) -> None:
    known, simple = known_at(rate)
    cost = fleet_cost(known.instance, simple)
    mixture = cheaper_mixture(known, simple, cost)
    if mixture is not None:
        assert fleet_cost(known.instance, mixture) < cost
        assert keeps_its_goals(known, mixture)


def test_some_fleets_mix_sizes_of_one_gpu_type() -> None:
    roles = [[pool.role for pool in leanest(known_at(rate)[0]).pools] for rate in RATES]
    assert any(len(set(pools)) < len(pools) for pools in roles)


def test_more_demand_never_costs_less() -> None:
    costs = [fleet_cost(known.instance, leanest(known)) for known, _ in map(known_at, RATES)]
    assert costs == sorted(costs)


def test_no_third_pool_where_two_are_the_limit() -> None:
    for known, simple in map(known_at, RATES):
        given = known.instance.problem
        limited = replace(given, constraints=replace(given.constraints, max_pools=2))
        search = replace(known, instance=replace(known.instance, problem=limited))
        mixture = cheaper_mixture(search, simple, fleet_cost(known.instance, simple))
        assert mixture is None or len(mixture.pools) == 2
