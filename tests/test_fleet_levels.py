"""Which GPUs serve which rate: fleets searched for at every rate of a forecast, alone or side by side."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np

from optimizer.fleets.fleet import Fleet
from optimizer.procurement.buying import (
    Levels,
    Option,
    SizedFleet,
    level_rates,
    make_levels,
    search_levels,
    within_limits,
)
from search_spaces.problem import Billing, Constraints
from tests.optimizer_cases import offer, problem

A, B = (SizedFleet(0, Mock(), Fleet(())) for _ in range(2))


def test_two_fleets_side_by_side_serve_the_sum_of_their_rates() -> None:
    levels = make_levels(np.array([1.0, 2.0, 3.0]), [[Option((1, 0), (A,)), Option((0, 1), (B,))], [], []])
    assert {one.gpus for one in levels.options[2]} == {(3, 0), (2, 1), (1, 2), (0, 3)}
    assert levels.options[2][0].fleets in {(A,) * 3, (B,) * 3, (A, A, B), (A, B, B), (B, B, A)}


def test_level_rates_cover_the_highest() -> None:
    rates = np.linspace(1.0, 50.0, 200)
    assert level_rates(rates, 6)[-1] == 50.0
    assert level_rates(rates, 1).tolist() == [50.0]
    levels = Levels(level_rates(rates, 6), ())
    assert (levels.rates[levels.level_of(rates)] >= rates * (1 - 1e-9)).all()


def test_fleets_are_searched_for_every_rate() -> None:
    two = problem(offers=(offer("H100"), offer("A100-80")))
    levels = search_levels(two, np.array([4.0, 40.0]), [[3.0, 2.0], [2.0, 3.0]])
    for options in levels.options:
        assert any(one.gpus[0] == 0 for one in options)
        assert any(one.gpus[1] == 0 for one in options)
    least = [min(sum(one.gpus) for one in options) for options in levels.options]
    assert least[0] < least[1]


def test_fleets_side_by_side_keep_the_limits_of_the_problem() -> None:
    few = problem(
        constraints=Constraints(max_gpus=2, power=5000.0, max_pools=3),
        offers=(offer(inventory=9, billing=Billing.NODE),),
    )
    assert within_limits(few, Option((2,), (A,)))
    assert not within_limits(few, Option((3,), (A,)))
    assert not within_limits(problem(offers=(offer(inventory=2),)), Option((3,), (A,)))
    assert not within_limits(problem(constraints=Constraints(budget=5.0)), Option((2,), (A,)))
    levels = search_levels(problem(constraints=Constraints(max_gpus=2)), np.array([4.0, 8.0, 400.0]), [[3.0]])
    assert [max((one.gpus[0] for one in options), default=0) for options in levels.options] == [1, 1, 0]
    nodes = search_levels(problem(offers=(offer(billing=Billing.NODE),)), np.array([4.0]), [[3.0]])
    assert [one.gpus for one in nodes.options[0]] == [(8,)]
    (one, *_) = levels.options[0]
    beside = len(one.pools)
    for most, fits in ((4 * beside, True), (4 * beside - 1, False)):
        counted = problem(constraints=Constraints(max_pools=most))
        assert within_limits(counted, replace(one, fleets=4 * one.fleets)) is fits
