"""Most volume per cost: a hand-checked case, brute force over small random ones, and the bound on the ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.solver.blocks import Work, whole_blocks
from optimizer.solver.dinkelbach import Richest, Sold, most_per_cost
from optimizer.solver.fleet_model import Aim
from optimizer.solver.matrices import COLOCATED, Limit, Matrices

Point = tuple[float, float]
"""Volume and cost."""


def among(points: Sequence[Point], slack: float = 0.0) -> Richest[Point]:
    """Fleets that are all known; slack: by which the bound is too high."""

    def richest(price: float) -> tuple[Sold[Point], float]:
        best = max(points, key=lambda one: one[0] - price * one[1])
        return Sold(best, *best), best[0] - price * best[1] + slack

    return richest


def test_three_fleets_by_hand() -> None:
    """1/1, 5/4, 6/6: from 1, most V - C is 1 at 5/4; from 1.25 it is 0."""
    points = [(1.0, 1.0), (5.0, 4.0), (6.0, 6.0)]
    best, top = most_per_cost(among(points), Sold(points[0], *points[0]), least_cost=1.0)
    assert best.fleet == (5.0, 4.0)
    assert top == best.ratio == 1.25


def test_a_loose_bound_is_told() -> None:
    """V - 1.25 C <= 0.1 for all, and no fleet costs less than 1: V / C <= 1.35."""
    points = [(1.0, 1.0), (5.0, 4.0), (6.0, 6.0)]
    best, top = most_per_cost(among(points, 0.1), Sold(points[0], *points[0]), least_cost=1.0)
    assert best.ratio == 1.25
    assert top == pytest.approx(1.35)
    assert most_per_cost(among(points, 0.1), Sold(points[0], *points[0]), least_cost=0.0)[1] == math.inf


def test_where_nothing_better_is_found_the_start_is_kept() -> None:
    best, top = most_per_cost(lambda _: (None, 3.0), Sold("start", 2.0, 4.0), least_cost=2.0)
    assert (best.fleet, top) == ("start", 0.5 + 1.5)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.5, 9.0)), min_size=1, max_size=12), st.floats(0.0, 0.2))
def test_the_best_of_any_fleets(points: list[Point], slack: float) -> None:
    most = max(volume / cost for volume, cost in points)
    least = min(cost for _, cost in points)
    best, top = most_per_cost(among(points, slack), Sold(points[0], *points[0]), least)
    assert best.ratio >= most * (1.0 - 6e-3)
    assert top >= most * (1.0 - 1e-9)


def engines(need: list[list[float]], price: list[float], most: int) -> Matrices:
    """Colocated engines that need a share of a block for all of each flow; `most` of them at most."""
    size, flows = len(price), len(need[0])
    return Matrices(
        role=np.full(size, COLOCATED),
        domain=np.zeros(size, dtype=np.int64),
        pool=np.arange(size),
        replicas=np.ones(size, dtype=np.int64),
        price=np.array(price),
        need=np.array(need)[:, None, :],
        late=np.zeros((size, flows)),
        slo=np.zeros(flows, dtype=np.int64),
        permitted=np.ones(1),
        resources=("time",),
        domains=1,
        limits=(Limit("max_gpus", float(most), np.ones(size)),),
    )


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.lists(st.floats(0.2, 2.0), min_size=2, max_size=2), min_size=2, max_size=2),
    st.lists(st.floats(1.0, 4.0), min_size=2, max_size=2),
    st.floats(1.0, 3.0),
)
def test_whole_engines_against_brute_force(need: list[list[float]], price: list[float], room: float) -> None:
    """Two kinds of engines, four at most, volumes from 0.5 to 0.5 `room`."""
    matrices, least, most = engines(need, price, 4), 0.5, 0.5 * room

    def sold(aim: Aim) -> tuple[Sold[tuple[int, ...]] | None, float]:
        found = whole_blocks(matrices, aim, Work(gap=1e-9))
        cost = float(found.blocks @ matrices.price[found.index])
        return (Sold(tuple(found.blocks.tolist()), found.volume, cost) if found.index.size else None), found.bound

    first, cheapest = sold(Aim(min_volume=least, max_volume=least))
    counts = [count for count in product(range(5), repeat=2) if 0 < sum(count) <= 4]
    every = [(served_by(need, count, most), float(np.dot(count, price))) for count in counts]
    able = [volume / cost for volume, cost in every if volume >= least * (1.0 - 1e-9)]
    if first is None:
        assert not able
        return

    def richest(worth: float) -> tuple[Sold[tuple[int, ...]] | None, float]:
        found, bound = sold(Aim(cost_weight=worth, volume_weight=1.0, min_volume=least, max_volume=most))
        return found, -bound

    best, top = most_per_cost(richest, first, cheapest)
    assert best.ratio == pytest.approx(max(able), rel=6e-3)
    assert top >= max(able) * (1.0 - 1e-6)


def served_by(need: list[list[float]], count: tuple[int, ...], most: float) -> float:
    """The most of two flows that so many engines of two kinds serve, V: by the corners of the routing of the first.

    Kind i serves x_i of the first flow and y_i of the second, need_i1 x_i + need_i2 y_i <= count_i; at the best corner
    one of the kinds serves one flow only.
    """
    best = 0.0
    for own in (0, 1):  # the flow that kind 0 serves first; kind 1 takes the rest
        other = 1 - own
        (a, b), (c, d) = (need[0][own], need[0][other]), (need[1][own], need[1][other])
        for whole in (0, 1):  # which kind serves one flow alone
            if whole == 0:  # kind 0: a V' = part of own; kind 1: c (V - V') + d V
                room = count[0] / a
                volume = count[1] / d if count[1] / d <= room else (count[1] + c * room) / (c + d)
            else:  # kind 1 serves only the other flow
                room = count[1] / d
                volume = count[0] / a if count[0] / a <= room else (count[0] + b * room) / (a + b)
            best = max(best, volume)
    return min(best, most)
