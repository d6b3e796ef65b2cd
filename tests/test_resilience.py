"""Losses of replicas and nodes: re-routing by hand, and fleets that bear a loss or do not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import Instance
from optimizer.procurement.resilience import engines_of_node, rerouted, resilience, with_spares, without
from reports.resilience_text import resilience_dict, resilience_text
from tests.optimizer_cases import instance_of, problem, workload

LEFT = st.one_of(st.just(0.0), st.floats(0.01, 1.0))
P, D, C = Role.PREFILL, Role.DECODE, Role.COLOCATED


def shares(*rows: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(rows, dtype=np.float64)[:, None]


def test_requests_go_to_the_other_pools_by_what_they_have_left() -> None:
    """Half of the first pool is gone: 0.25 against 0.5, that is a third and two thirds."""
    found = rerouted(shares(0.5, 0.5, 1.0), [P, P, D], [0, 0, 0], np.array([0.5, 1.0, 1.0]))
    assert found is not None
    assert found[:, 0] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_what_a_colocated_pool_no_longer_takes_is_decoded_elsewhere_too() -> None:
    found = rerouted(shares(0.4, 0.4, 0.6), [P, D, C], [0, 0, 0], np.array([1.0, 1.0, 0.0]))
    assert found is not None
    assert found[:, 0] == pytest.approx([1.0, 1.0, 0.0])


def test_prefill_without_a_decode_engine_of_its_domain_serves_nothing() -> None:
    found = rerouted(shares(0.5, 0.5, 0.5, 0.5), [P, D, P, D], [0, 0, 1, 1], np.array([1.0, 0.0, 1.0, 1.0]))
    assert found is not None
    assert found[:, 0] == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert rerouted(shares(1.0, 1.0), [P, D], [0, 0], np.array([1.0, 0.0])) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.05, 1.0), min_size=5, max_size=5), st.lists(LEFT, min_size=5, max_size=5))
def test_every_request_is_served_once_per_stage(weights: list[float], left: list[float]) -> None:
    roles, domains = [P, P, D, D, C], [0, 1, 0, 1, 0]
    route = np.array(weights)[:, None] * np.ones((1, 3))
    route[[0, 1, 4]] /= route[[0, 1, 4]].sum(axis=0)
    for prefill, decode in ((0, 2), (1, 3)):
        route[decode] = route[prefill]
    found = rerouted(route, roles, domains, np.array(left))
    if found is None:
        assert left[4] == 0.0
        return
    assert found[[0, 1, 4]].sum(axis=0) == pytest.approx(np.ones(3))
    assert found[2] == pytest.approx(found[0])
    assert found[3] == pytest.approx(found[1])


@cache
def case(replicas: int = 3) -> tuple[Instance, Fleet]:
    """Colocated engines of one H100; one serves some 10 requests per second of these."""
    instance = instance_of(problem(workload=workload(12.0)))
    pool = FleetPool("colocated-1", C, 0, 1, 0, replicas, 0, np.ones(instance.flows.isl.size))
    return instance, Fleet((pool,))


def test_a_node_takes_the_engines_that_fit_on_it() -> None:
    instance, fleet = case()
    assert engines_of_node(instance, fleet, 0) == 8
    fewer = without(instance, fleet, 0, 2)
    assert fewer is not None
    assert fewer.pools[0].replicas == 1
    assert without(instance, fleet, 0, 3) is None


def test_a_fleet_with_room_bears_a_replica_but_not_its_only_node() -> None:
    instance, fleet = case(12)
    found = resilience(instance, fleet, requests=600)
    assert found.whole.held
    assert [(one.what, one.lost, one.left, one.held) for one in found.losses] == [
        ("replica", 1, 11, True),
        ("node", 8, 4, True),
    ]
    small = resilience(*case(3), requests=600)
    assert [(one.lost, one.left, one.held) for one in small.losses] == [(1, 2, True), (3, 0, False)]
    price = instance.problem.offers[0].usd_per_hour
    assert [one.spare for one in small.losses] == pytest.approx([price, 8 * price])
    assert small.spare_cost("replica", only_where_needed=True) == 0.0
    assert small.spare_cost("node", only_where_needed=True) == pytest.approx(8 * price)


def test_the_loss_of_what_the_load_needs_breaks_the_slo() -> None:
    found = resilience(*case(2), requests=600, volume=2.0)
    assert not found.losses[0].held
    assert found.losses[0].judgement is not None
    told = resilience_text(found, 1, 100)
    assert told.startswith("The loss of 1 replica or 1 node of any pool breaks an SLO.")
    some = resilience_text(resilience(*case(3), requests=600), 1, 100)
    assert some.startswith(
        "The loss of 1 node of colocated-1 breaks an SLO; the loss of 1 replica of colocated-1 does not."
    )
    data = resilience_dict(found)
    assert [one["held"] for one in data["losses"]] == [False, False]
    assert data["losses"][1]["classes"] is None
    assert data["spares_usd_per_hour"]["replica"]["where_needed"] == pytest.approx(found.losses[0].spare)


def test_a_spare_stands_in_for_what_is_lost() -> None:
    instance, fleet = case(2)
    found = resilience(instance, with_spares(fleet, [1]), requests=600)
    assert found.losses[0].left == 2
    assert found.losses[0].held
