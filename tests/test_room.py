"""Fleets that cost the same: the one with the most room is taken, then the simplest."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.search.search import (
    AS_MUCH,
    TIED,
    FleetSearch,
    cheapest_held,
    evaluated,
    foreseeable,
    pool_survives,
    preferred,
    roomiest,
    roomiest_fleet,
    settled,
)
from optimizer.verification.verify import Candidate, Waiting
from tests.small_fleets import apart, pool, small
from tests.test_by_evaluation import at


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        ((1.0,), 0),
        ((1.2, 1.5, 1.1), 1),
        ((1.5, 1.2), 0),
        ((1.2, 1.2), 0),
        ((1.2, 1.201), 0),
        ((1.2, 1.21), 1),
        ((np.inf, np.inf), 0),
    ],
)
def test_most_room_wins_and_the_first_of_as_much(rooms: tuple[float, ...], expected: int) -> None:
    asked: list[int] = []

    def carries(fleet: int, volume: float) -> bool:
        asked.append(fleet)
        return volume <= rooms[fleet]

    assert roomiest(range(len(rooms)), carries) == expected
    assert (asked == []) == (len(rooms) == 1)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(1.0, 4.0) | st.sampled_from([1.0, 1.3, 700.0]), min_size=1, max_size=12))
def test_nobody_has_more_room_than_the_one_that_is_taken(rooms: list[float]) -> None:
    asked: set[tuple[int, float]] = set()

    def carries(fleet: int, volume: float) -> bool:
        asked.add((fleet, volume))
        return volume <= rooms[fleet]

    taken = roomiest(range(len(rooms)), carries)
    assert max(rooms) <= rooms[taken] * (1.0 + AS_MUCH)
    assert all(rooms[taken] > before for before in rooms[:taken])
    assert len(asked) <= 40 * len(rooms)


def tied(known: FleetSearch, cost: float, most: int = 8) -> list[Fleet]:
    """All fleets of one pool or two that hold at just this cost: brute force."""
    role, shapes, counts = known.settings.role, known.settings.shape, range(1, most + 1)
    alone = [((int(c), n),) for c in np.flatnonzero(role == 2) for n in counts]
    pairs = [
        ((int(p), n), (int(d), m))
        for p in np.flatnonzero(role == 0)
        for d in np.flatnonzero(role == 1)
        if known.instance.tables.talks[shapes[p], shapes[d]]
        for n in counts
        for m in counts
    ]
    fleets = [(picks, known.fleet(picks)) for picks in (*alone, *pairs)]
    same = [(picks, fleet) for picks, fleet in fleets if abs(fleet_cost(known.instance, fleet) - cost) < 1e-4]
    return [fleet for picks, fleet in same if known.holds(picks)]


@pytest.mark.parametrize("rate", [30.0, 45.0, 60.0])
def test_no_fleet_of_the_least_cost_has_more_room_than_the_one_that_is_found(rate: float) -> None:
    instance = at(rate, "H100")
    known = evaluated(instance)
    found = cheapest_held(known, instance.problem)
    assert found is not None
    rivals = tied(evaluated(instance), found[1])
    assert len(rivals) > 1
    fleet = known.fleet(found[0])
    survivors = [one for one in rivals if all(pool_survives(instance, each) for each in one.pools)]
    assert known.survives(found[0]) is bool(survivors)
    best = max(goodput_volume(instance, one) for one in survivors or rivals)
    assert goodput_volume(instance, fleet) >= best * (1.0 - 2.0 * AS_MUCH)
    assert goodput_volume(instance, settled(known.instance, fleet)) >= best * (1.0 - 4.0 * AS_MUCH)


def test_of_as_much_room_the_simplest_is_taken_whatever_the_order() -> None:
    instance = small()
    one, other = apart(instance, 2, 1), apart(instance, 2, 1)
    assert roomiest_fleet(instance, [one, other]) is one
    assert roomiest_fleet(instance, [other, one]) is other


def test_of_candidates_that_cost_the_same_the_one_with_most_room_is_simulated_first() -> None:
    """At 8 req/s prompts are what is short: one prefill engine more is worth more than one decode engine more."""
    instance: Instance = small()
    fleets = [apart(instance, 1, 3), apart(instance, 3, 1), apart(instance, 2, 2)]
    rooms = [goodput_volume(instance, fleet) for fleet in fleets]
    waiting = Waiting(instance)
    for fleet in fleets:
        waiting.add(fleet)
    assert waiting.next().fleet is fleets[int(np.argmax(rooms))]
    assert len(waiting.heap) == 2


def test_what_keeps_up_with_a_replica_less_is_preferred_to_room() -> None:
    rooms, survives = (1.9, 1.2, 1.5, 1.5), (False, True, True, True)
    assert preferred(range(4), lambda _: False, survives.__getitem__, lambda fleet, more: more <= rooms[fleet]) == 2
    assert preferred(range(4), lambda _: False, lambda _: False, lambda fleet, more: more <= rooms[fleet]) == 0
    pools = apart(small(), 3, 1).pools
    assert [pool_survives(small(), one) for one in pools] == [True, False]


def test_fleets_that_no_target_routes_wait_behind_those_of_nearly_their_cost() -> None:
    instance = small()
    pair, colocated = apart(instance, 3, 3), pool(instance, "colocated-1", Role.COLOCATED, 3, 0.5)
    both = Fleet((*(replace(one, route=one.route * 0.5) for one in pair.pools), colocated))
    assert roomiest_fleet(instance, [both, pair]) is pair
    assert roomiest_fleet(instance, [both]) is both


def test_candidates_within_a_thousandth_of_cost_are_tied() -> None:
    instance = small()
    waiting, fleets = Waiting(instance), [apart(instance, 1, 3), apart(instance, 2, 2)]
    for number, fleet in enumerate(fleets):
        heapq.heappush(waiting.heap, Candidate(10.0 * (1.0 + 0.9 * TIED * number), number, fleet))
    assert waiting.next().fleet is roomiest_fleet(instance, fleets)
    far = Waiting(instance)
    for number, fleet in enumerate(fleets):
        heapq.heappush(far.heap, Candidate(10.0 * (1.0 + 1.1 * TIED * number), number, fleet))
    assert far.next().fleet is fleets[0]


@pytest.mark.parametrize(
    ("rooms", "piped", "expected"),
    [
        ((1.2, 1.5), (False, True), [0]),  # with room enough the pipeline is left out, whatever it has
        ((1.05, 1.5), (False, True), [0, 1]),
        ((1.5, 1.2, 1.05), (False, False, True), [0, 1]),
        ((1.05, 1.5), (False, False), [0, 1]),  # no pipelines to be preferred to
        ((1.2, 1.5), (True, True), [0, 1]),
    ],
)
def test_pipelines_are_left_out_where_others_have_ample_room(
    rooms: tuple[float, ...], piped: tuple[bool, ...], expected: list[int]
) -> None:
    fleets = range(len(rooms))
    assert foreseeable(fleets, lambda fleet: piped[fleet], lambda fleet, volume: volume <= rooms[fleet]) == expected
