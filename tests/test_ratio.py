"""Goodput per dollar: against every small fleet, and never worse for more room."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.fleets.evaluate import goodput_volume
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, Instance
from optimizer.search.goodput import most_per_dollar, most_per_dollar_at_all, per_dollar
from optimizer.search.search import FleetSearch, evaluated
from search_spaces.problem import Constraints, Goal, Objective
from tests.optimizer_cases import instance_of, problem, slo, space, workload

NONE = (Fleet(()), 0.0)


@cache
def any_volume() -> tuple[Instance, FleetSearch]:
    """Ten requests per second on H100s of one kind of engine."""
    mix = workload(10.0, ((500.0, 100.0, 0.6), (4000.0, 200.0, 0.4)))
    one = space(tensor_parallel=(1,), max_num_seqs=(64,))
    made = instance_of(problem(workload=mix, slos=(slo(1.0, 0.05, 0.95),), space=one))
    return made, evaluated(made)


def between(least: float, most: float, constraints: Constraints | None = None) -> FleetSearch:
    """The same with volumes from `least` to `most`."""
    made, known = any_volume()
    goal = Objective(Goal.MAX_GOODPUT_PER_DOLLAR, least, most)
    asked = replace(made.problem, objective=goal, constraints=constraints or made.problem.constraints)
    return FleetSearch.of(replace(made, problem=asked), known.settings)


@cache
def small_fleets() -> list[tuple[Fleet, float]]:
    """Every fleet of up to four engines in one pool, or two in each of two, and what it serves."""
    made, known = any_volume()
    ends = {
        role: [int(at) for at in range(known.settings.size) if known.settings.role[at] == role] for role in range(3)
    }
    picks = [((at, count),) for at in ends[COLOCATED] for count in (1, 2, 3, 4)]
    pairs = product(ends[PREFILL], ends[DECODE], (1, 2), (1, 2))
    fleets = [known.fleet(pick) for pick in picks]
    fleets += [known.fleet(((first, one), (second, other))) for first, second, one, other in pairs]
    return [(fleet, goodput_volume(made, fleet)) for fleet in fleets]


@pytest.mark.parametrize(("least", "most"), [(0.5, 1.0), (1.0, 4.0), (2.0, 3.0), (0.2, 0.4)])
def test_no_small_fleet_has_more(least: float, most: float) -> None:
    known = between(least, most)
    instance, best = known.instance, most_per_dollar(between(least, most))
    able = [one for one in small_fleets() if one[1] >= least]
    assert best[1] >= least
    assert per_dollar(instance, best) >= max(per_dollar(instance, one) for one in able) * (1.0 - 2e-3)
    assert per_dollar(instance, best) <= most_per_dollar_at_all(known)


@given(st.lists(st.floats(0.2, 4.0), min_size=4, max_size=4).map(sorted))
@settings(deadline=None, max_examples=6)
def test_more_room_is_never_worse(ends: list[float]) -> None:
    wide, narrow = between(ends[0], ends[3]), between(ends[1], ends[2])
    more, less = (per_dollar(known.instance, most_per_dollar(known)) for known in (wide, narrow))
    assert more >= less * (1.0 - 2e-3)


def test_without_a_fleet_there_is_no_ratio() -> None:
    known = between(100.0, 100.0, Constraints(max_gpus=1))
    assert most_per_dollar(known) == NONE
    assert most_per_dollar_at_all(known) == math.inf
