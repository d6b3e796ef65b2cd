"""Fleets that hold by evaluation: the cheapest against all others, engines that keep up, and no engine too many."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.fleets.evaluate import evaluate, still_holds
from optimizer.fleets.fleet import fleet_cost
from optimizer.loads.instance import Instance, at_volume, make_settings
from optimizer.search.bound import keeping_up, sending_work
from optimizer.search.search import FleetSearch, cheapest_held, evaluated
from search_spaces.problem import Constraints
from tests.optimizer_cases import instance_of, offer, problem, slo, space, workload

MIX = ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4))
UNLIKE = ((6000.0, 20.0, 0.5), (200.0, 600.0, 0.5))
"""Prompts that take network cards long and decode steps hardly at all, and the other way round."""
SMALL = space(tensor_parallel=(1, 2), max_num_seqs=(32, 128))


@cache
def unit(*cards: str) -> Instance:
    """Llama-3.1-8B at one request per second."""
    offers = tuple(offer(card) for card in cards)
    return instance_of(problem(workload=workload(1.0, MIX), slos=(slo(1.0, 0.05, 0.9),), space=SMALL, offers=offers))


def at(rate: float, *cards: str, **limits: float) -> Instance:
    instance = at_volume(unit(*cards), rate)
    load = replace(instance.problem.workload, request_rate=rate)
    constraints = Constraints(**limits)  # type: ignore[arg-type]
    return replace(instance, problem=replace(instance.problem, workload=load, constraints=constraints))


def every_cheaper(known: FleetSearch, below: float, most: int = 6) -> list[float]:
    """Costs of all fleets of one or two pools that hold and cost less: brute force."""
    role = known.settings.role
    counts = range(1, most + 1)
    alone = [((int(c), n),) for c in np.flatnonzero(role == 2) for n in counts]
    ends = (np.flatnonzero(role == 0), np.flatnonzero(role == 1))
    shapes = known.settings.shape
    pairs = [
        ((int(p), n), (int(d), m))
        for p, d, n, m in product(*ends, counts, counts)
        if known.instance.tables.talks[shapes[p], shapes[d]]
    ]
    costs = {picks: fleet_cost(known.instance, known.fleet(picks)) for picks in (*alone, *pairs)}
    return [cost for picks, cost in costs.items() if cost < below and known.holds(picks)]


@settings(deadline=None, max_examples=6)
@given(st.floats(0.5, 45.0))
def test_the_cheapest_that_holds_is_found(rate: float) -> None:
    instance = at(rate, "H100", "L40S")
    found = cheapest_held(evaluated(instance), instance.problem)
    assert found is not None
    fresh = evaluated(instance)
    fleet = fresh.fleet(found[0])
    assert evaluate(instance, fleet).holds
    assert found[1] == pytest.approx(fleet_cost(instance, fleet))
    assert every_cheaper(fresh, found[1] * (1.0 - 1e-6)) == []


@settings(deadline=None, max_examples=10)
@given(st.floats(0.5, 60.0), st.integers(0, 99), st.integers(1, 12))
def test_a_pool_of_fewer_engines_than_keep_up_falls_behind(rate: float, index: int, engines: int) -> None:
    """The bound from which the search starts: below it no pool is stable; and one engine more never makes it miss."""
    instance = at(rate, "H100")
    every = make_settings(instance)
    known = FleetSearch.of(instance, every)
    setting = index % every.size
    if engines < keeping_up(instance, every)[setting] @ instance.flows.rate * (1.0 - 1e-9):
        assert not known.state(setting, engines).stable
    misses = [evaluate(instance, known.fleet(((setting, count),))) for count in (engines, engines + 1)]
    if every.role[setting] == 2:
        assert misses[1].attainment[0] >= misses[0].attainment[0] - 1e-6


@pytest.mark.parametrize("cards", [1.3, 2.0])
def test_steps_and_cards_are_busy_at_once(cards: float) -> None:
    """Cards so many times as busy as steps, with other flows: as few engines hold as the busier of the two takes."""
    load, limits = workload(40.0, UNLIKE), (slo(4.0, 0.1, 0.9),)
    made = instance_of(problem(workload=load, slos=limits, space=SMALL, offers=(offer("H100"),)))
    every, rate = make_settings(made), made.flows.rate
    first, later = (int(np.flatnonzero(every.role == role)[0]) for role in (0, 1))
    steps = keeping_up(made, every)[later]
    slower = (steps @ rate) / (sending_work(made, every)[later] @ rate) * cards
    instance = replace(made, tables=replace(made.tables, link=made.tables.link / slower))
    known, sent = FleetSearch.of(instance, every), sending_work(instance, every)[later]
    fewest = next(count for count in range(1, 9) if still_holds(instance, known.fleet(((first, 40), (later, count)))))
    assert fewest == known.least[later] == np.ceil(max(steps @ rate, sent @ rate))
    assert fewest < np.maximum(steps, sent) @ rate
