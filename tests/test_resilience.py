"""Losses of replicas and nodes: re-routing by hand, and fleets that bear a loss or do not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.engine import Role
from costmodel.units import DAY
from optimizer.fleets.evaluate import evaluate, replicas_at
from optimizer.fleets.fleet import Fleet, largest_load
from optimizer.loads.instance import Instance
from optimizer.procurement.operation import (
    Day,
    Loss,
    Resilience,
    autoscale,
    engines_against_nodes,
    fleet_left,
    longest_start_up,
    nodes_of,
    queue_share,
    rerouted,
    resilience,
)
from reports.answers.operation import autoscale_verdict, resilience_dict, resilience_document
from reports.views import terminal_view
from search_spaces.problem import Billing
from tests.optimizer_cases import instance_of, offer, problem, workload
from tests.report_cases import load
from tests.small_fleets import alone, pool

LEFT = st.one_of(st.just(0.0), st.floats(0.01, 1.0))
P, D, C = Role.PREFILL, Role.DECODE, Role.COLOCATED


def resilience_text(found: Resilience, count: int, width: int, spares: int = 0) -> str:
    plan = load("colocated")
    pools = [pool.model_copy(update={"spare_replicas": spares}) for pool in plan.pools]
    return terminal_view(resilience_document(found, count, plan.model_copy(update={"pools": pools})), width)


def shares(*rows: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(rows, dtype=np.float64)[:, None]


def test_requests_go_to_the_other_pools_by_what_they_have_left() -> None:
    """Half of the first pool is gone: 0.25 against 0.5, that is a third and two thirds."""
    found = rerouted(shares(0.5, 0.5, 1.0), [P, P, D], [0, 0, 0], np.array([0.5, 1.0, 1.0]))
    assert found[:, 0] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_prefill_without_a_decode_engine_of_its_domain_serves_nothing() -> None:
    found = rerouted(shares(0.5, 0.5, 0.5, 0.5), [P, D, P, D], [0, 0, 1, 1], np.array([1.0, 0.0, 1.0, 1.0]))
    assert found[:, 0] == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert rerouted(shares(1.0, 1.0), [P, D], [0, 0], np.array([1.0, 0.0])) is None


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
def case(replicas: int = 3, billing: Billing = Billing.GPU) -> tuple[Instance, Fleet]:
    """Colocated engines of one H100; one serves some 10 requests per second of these."""
    instance = instance_of(problem(workload=workload(12.0), offers=(offer(billing=billing),)))
    return instance, alone(instance, replicas)


def pools(*engines: int) -> Fleet:
    """Colocated pools of one H100 an engine that share the requests evenly."""
    return Fleet(tuple(pool(case()[0], f"colocated-{k}", C, n, 1 / len(engines)) for k, n in enumerate(engines, 1)))


def test_engines_stand_on_the_first_node_with_room() -> None:
    instance, fleet = case(10)
    assert [len(node) for node in nodes_of(instance, fleet)[0]] == [8, 2]
    mixed = nodes_of(instance, pools(5, 4))[0]
    assert [sorted(pool for pool, _ in node) for node in mixed] == [[0] * 5 + [1] * 3, [1]]
    fewer = fleet_left(instance, fleet, [1])
    assert fewer.pools[0].replicas == 1
    assert fleet_left(instance, fleet, [0]) is None


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4))
def test_spares_are_the_fewest_that_bear_the_loss_of_any_nodes(needed: int, each: int, count: int) -> None:
    engines, nodes = engines_against_nodes(needed, each, count)

    def left(total: int) -> int:
        per_node = [total // nodes + (k < total % nodes) for k in range(nodes)]
        assert max(per_node) <= each or total < engines
        return total - sum(sorted(per_node)[-count:])

    assert left(engines) >= needed
    assert (
        engines == needed + count
        or left(engines - 1) < needed
        or -(-(engines - 1) // nodes) * count > engines - 1 - needed
    )


def engines(loss: Loss) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(loss.lost.values()), tuple(loss.left.values())


def test_a_fleet_with_room_bears_a_replica_but_not_its_only_node() -> None:
    instance, fleet = case(12)
    found = resilience(instance, fleet, requests=600)
    assert found.whole.held
    assert [(one.what, *engines(one), one.held, one.everything) for one in found.losses] == [
        ("replica", (1,), (11,), True, False),
        ("node", (8,), (4,), True, False),
        ("node", (4,), (8,), True, False),
    ]
    small = resilience(*case(3), requests=600)
    assert [(*engines(one), one.held, one.everything) for one in small.losses] == [
        ((1,), (2,), True, False),
        ((3,), (0,), False, True),
    ]
    price = instance.problem.offers[0].usd_per_hour
    assert [one.spare for one in small.losses] == pytest.approx([price, price])  # two are enough: two nodes of two
    assert [one.price for one in small.losses] == pytest.approx([2 * price, 0.0])
    assert small.spare_cost("replica", only_where_needed=True) == 0.0
    assert small.spare_cost("node", only_where_needed=True) == pytest.approx(price)


def test_where_nodes_are_billed_their_spare_is_a_whole_one() -> None:
    """A fourth engine fits on the node that is paid for; three that survive a node take two nodes."""
    instance, fleet = case(3, Billing.NODE)
    price = instance.problem.offers[0].usd_per_hour
    spares = [one.spare for one in resilience(instance, fleet, requests=600).losses]
    assert spares == pytest.approx([0.0, 8.0 * price])


def test_the_loss_of_what_the_load_needs_breaks_the_slo() -> None:
    found = resilience(*case(2), requests=600, volume=2.0)
    assert not found.losses[0].held
    assert found.losses[0].judgement is not None
    data = resilience_dict(found)
    assert [one["held"] for one in data["losses"]] == [False, False]
    assert data["losses"][1]["classes"] is None
    assert [one["falls_behind"] for one in data["losses"]] == ["colocated-1", None]
    assert "%), colocated-1 overloaded" in " ".join(resilience_text(found, 1, 200).split())
    assert data["spares_usd_per_hour"]["replica"]["where_needed"] == pytest.approx(found.losses[0].spare)
    spares = "headroom.replicas=1 -o plan-with-spares # for lost replicas, not for lost nodes"
    assert " ".join(resilience_text(found, 1, 200).split()).endswith(spares)
    assert "Next:" not in resilience_text(found, 1, 200, spares=1)
    told = " ".join(resilience_text(resilience(*case(3), requests=600), 1, 100).split())
    assert "Next:" not in told  # it bears the loss of a replica, and spares do not cover that of its node
    assert (
        "Each row is a run of 630 requests with the expected step times; spare replicas serve too. The plan's own "
        "shares may differ: there spare replicas are idle" in told
    )
    assert told.startswith("The fleet misses an SLO after 1 of the 2 losses below.")


# --- a fleet over a day: replicas by the hour, start-up ahead or too late, against sums done by hand

HOURS = np.array([0.25] * 12 + [1.0] * 12)


@cache
def colocated_day() -> tuple[Instance, Fleet]:
    """Colocated engines of one H100, as many as 64 requests per second need."""
    instance = instance_of(problem(workload=workload(64.0)))
    fleet = alone(instance, 64)
    return instance, fleet.resized(replicas_at(instance, fleet, 1.0))


@cache
def day(start_up: float, least: int = 1) -> Day:
    return autoscale(*colocated_day(), HOURS, start_up, least)


@pytest.mark.parametrize(
    ("billing", "start_up", "reason"),
    [
        (Billing.GPU, 12 * 3600.0, "replicas that start in time for the next rise fill the gaps"),
        (Billing.NODE, 0.0, "nodes are billed whole, and every hour needs as many nodes"),
    ],
)
def test_a_day_that_saves_nothing_says_why(billing: Billing, start_up: float, reason: str) -> None:
    instance = instance_of(problem(workload=workload(40.0), offers=(offer(billing=billing),)))
    fleet = alone(instance, 8)
    found = autoscale(instance, fleet.resized(replicas_at(instance, fleet, 1.0)), HOURS, start_up)
    assert found.hours[0].replicas != found.hours[-1].replicas
    assert autoscale_verdict(found).startswith(f"Scaling saves nothing: {reason}.")


@pytest.mark.parametrize("volume", [0.1, 0.4, 1.0])
def test_replicas_are_the_fewest_that_hold(volume: float) -> None:
    instance, fleet = colocated_day()
    count = replicas_at(instance, fleet, volume)
    assert evaluate(instance, fleet.resized(count), volume).holds
    assert count[0] == 1 or not evaluate(instance, fleet.resized(count - 1), volume).holds


def test_started_ahead_each_rise_is_paid_for_the_start_up_time_longer() -> None:
    price = colocated_day()[0].problem.offers[0].usd_per_hour
    low, high = (day(0.0).hours[hour].replicas["colocated-1"] for hour in (0, 12))
    assert 1 <= low < high
    base = 12 * (low + high) * price
    assert day(0.0).ahead_usd_per_day == pytest.approx(base)
    assert day(900.0).ahead_usd_per_day == pytest.approx(base + 0.25 * (high - low) * price)
    assert day(9000.0).ahead_usd_per_day == pytest.approx(base + 2.5 * (high - low) * price)
    assert day(900.0).on_load_usd_per_day == pytest.approx(base)
    assert day(900.0).fixed_usd_per_day == pytest.approx(24 * high * price)
    assert day(900.0).saved_usd_per_day == pytest.approx(24 * high * price - day(900.0).ahead_usd_per_day)


def test_on_load_what_comes_during_the_start_up_and_its_queue_is_late() -> None:
    """15 min at the high rate are late, and then the queue clears at what the larger fleet has to spare."""
    instance, fleet = colocated_day()
    small = fleet.resized([*day(0.0).hours[0].replicas.values()])

    def most(one: Fleet) -> float:
        return largest_load(lambda volume: evaluate(instance, one, volume).stable)

    queue = 0.25 * (1.0 - most(small)) / (most(fleet) - 1.0)
    assert 0.0 < queue < 11.0
    assert day(0.0).late_share == 0.0
    assert day(900.0).late_share == pytest.approx((0.25 + queue) / 15.0)
    low = float(evaluate(instance, small, 0.25).attainment[0])
    good = float(evaluate(instance, fleet, 1.0).attainment[0])
    assert day(900.0).attainment_on_load["default"] == pytest.approx((12 * 0.25 * low + (11.75 - queue) * good) / 15.0)
    assert [hour.attainment["default"] for hour in day(900.0).hours] == pytest.approx([low] * 12 + [good] * 12)


@given(st.floats(0.0, 3.0), st.floats(0.1, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 2.0))
def test_a_queue_loses_no_request(volume: float, most: float, time: float, backlog: float) -> None:
    """Arrivals + backlog = what is served + what is left; where a queue stands, as much as can be is served."""
    share, left = queue_share(volume, most, time, backlog)
    served = share * time * most + (1.0 - share) * time * volume
    assert 0.0 <= share <= 1.0
    assert left >= 0.0
    if time > 1e-6:
        assert volume * time + backlog == pytest.approx(served + left, abs=1e-9)


def test_the_longest_start_up_is_where_the_goal_is_just_kept() -> None:
    longest = day(0.0).longest_start_up_s
    assert 0.0 < longest < DAY
    goal = colocated_day()[0].problem.slos[0].attainment
    assert day(longest).attainment_on_load["default"] >= goal - 1e-9
    assert day(longest + 5.0).attainment_on_load["default"] < goal
    assert longest_start_up(lambda seconds: seconds <= 100.0) == pytest.approx(100.0, abs=1.0)
    assert longest_start_up(lambda _seconds: True) == DAY


def test_two_replicas_of_which_one_is_enough_need_two_nodes_but_no_spare() -> None:
    found = resilience(*case(2), requests=600)
    assert [one.held for one in found.losses] == [True, False]  # both stand on one node
    assert found.losses[1].spare == 0.0
    sentence = "Spread each pool evenly over nodes of its own, and no spares are needed against the loss of any node."
    assert sentence in resilience_text(found, 1, 200)
