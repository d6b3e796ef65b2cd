"""Fleets that cost the same: the one with the most room is taken, then the simplest."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance
from optimizer.search.search import AS_MUCH, FleetSearch, cheapest_held, evaluated, pool_survives, settled
from optimizer.verification.verify import Waiting
from tests.small_fleets import apart, small
from tests.test_by_evaluation import at


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


@pytest.mark.parametrize("rate", [27.0, 39.0, 52.0])
def test_no_fleet_of_the_least_cost_has_more_room_than_the_one_that_is_found(rate: float) -> None:
    instance = at(rate, "H100")
    known = evaluated(instance)
    found = cheapest_held(known, instance.problem)
    assert found is not None
    rivals = tied(evaluated(instance), found[1])
    assert len(rivals) > 1
    fleet = known.fleet(found[0])
    survivors = [one for one in rivals if all(pool_survives(instance, each) for each in one.pools)]
    assert all(pool_survives(instance, each) for each in fleet.pools) is bool(survivors)
    best = max(goodput_volume(instance, one) for one in survivors or rivals)
    assert goodput_volume(instance, fleet) >= best * (1.0 - 2.0 * AS_MUCH)
    assert goodput_volume(instance, settled(known.instance, fleet)) >= best * (1.0 - 4.0 * AS_MUCH)


def test_of_candidates_that_cost_the_same_the_one_with_most_room_is_simulated_first() -> None:
    """At 6 req/s prompts are what is short: one prefill engine more is worth more than one decode engine more."""
    instance: Instance = small()
    fleets = [apart(instance, 2, 4), apart(instance, 4, 2), apart(instance, 3, 3)]
    assert all(pool_survives(instance, one) for fleet in fleets for one in fleet.pools)
    rooms = [goodput_volume(instance, fleet) for fleet in fleets]
    waiting = Waiting(instance)
    for fleet in fleets:
        waiting.add(fleet)
    first = waiting.next()
    assert first is not None
    assert first.fleet is fleets[int(np.argmax(rooms))]
    assert sum(not waiting.dominated(candidate.fleet) for candidate in waiting.candidates) == 2
