"""Colocated engines beside prefill and decode engines, wherever a fleet of both costs less.

Prefill and decode engines come in whole numbers of each role. What a last engine of one or both would do for a few
requests a colocated engine may do for less, in the place of both. So for the cheapest prefill and decode engines that
are enough apart, a few less of each are looked at beside as many colocated engines as cost less than the best fleet
known, in the order of how much busier they would be than such engines usually bear. How they part the flows is up to
`parting`; where the most colocated engines hold, the fewest that do are taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, fleet_gpus, gpu_cost
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES
from search_spaces.problem import Problem

from .by_evaluation import BoolArray, Evaluated, IntArray
from .mixed import WORTH, Mixing, cheapest_apart, most_beside
from .parting import AGAIN, Order, Parting, Pick, Side, Stage

LOOKS = 60
"""Fleets that are evaluated in one search."""

FEWER = 3
"""Engines by which a pool is smaller at most than it has to be without colocated ones (assumed)."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Prefill and decode engines, and the setting of colocated ones beside them.

    busy: by how much they would be busier than such engines usually bear, with as many as can be paid for [1].
    """

    pair: Side
    beside: int
    busy: float


def cheaper_beside(
    known: Evaluated, problem: Problem, starts: Sequence[Fleet], below: float, allowed: BoolArray
) -> Fleet | None:
    """The cheapest fleet found of colocated beside prefill and decode engines that holds and costs less than `below`.

    problem, starts: see `cheaper_mix`; below: a cost [$/h], of which it must save WORTH; allowed (settings,): which
    engines may be used. None where none is found.
    """
    if not problem.constraints.fits(Role):
        return None
    parting, best, below = Parting(known, LOOKS), None, below * (1.0 - WORTH)
    stage = Stage(COLOCATED, np.ones(known.instance.flows.isl.size))
    alone = Mixing(parting, problem, allowed, below).settings(stage)
    ranked = _ranked(parting, problem, alone, _pairs(known, allowed, starts), below)
    waiting = [(one.busy, 0, place) for place, one in enumerate(ranked)]
    while waiting and parting.left > 0 and not known.late():
        busy, number, place = heapq.heappop(waiting)
        one = ranked[place]
        most = int(most_beside(known, problem, _gpus(known, one.pair)[None], np.array([one.beside]), below)[0])
        orders = parting.orders(stage, tuple(setting for setting, _ in one.pair), (one.beside,)) if most else ()
        found = _fewest(parting, stage, one, most, orders[number]) if orders else None
        if found is not None:
            best, below = found, float(gpu_cost(problem, fleet_gpus(known.instance, found)))
        if number + 1 < len(orders):
            heapq.heappush(waiting, (AGAIN * busy, number + 1, place))
    return best


def _fewest(parting: Parting, stage: Stage, one: Pair, most: int, order: Order) -> Fleet | None:
    """The fewest colocated engines, `most` at most, with which the fleet holds in an order; None where none do."""
    found = parting.parted(stage, (one.pair, ((one.beside, most),)), order)
    for count in range(most - 1, 0, -1) if found is not None else ():
        fewer = parting.parted(stage, (one.pair, ((one.beside, count),)), order)
        if fewer is None:
            break
        found = fewer
    return found


def _pairs(known: Evaluated, allowed: BoolArray, starts: Sequence[Fleet]) -> list[tuple[Pick, Pick]]:
    """The cheapest engines of either role that are enough apart and can hand over, so many of each; those of starts."""
    tables, one = known.instance.tables, known.settings
    pairs = [pair for fleet in starts if (pair := _pair_of(known, fleet)) is not None]
    ends = (cheapest_apart(known, role, allowed) for role in (PREFILL, DECODE))
    some = [(first, last) for first, last in product(*ends) if tables.talks[one.shape[first[0]], one.shape[last[0]]]]
    return list(dict.fromkeys([*pairs, *some]))


def _pair_of(known: Evaluated, fleet: Fleet) -> tuple[Pick, Pick] | None:
    """The engines of a fleet of a prefill and a decode pool, where their settings are known; else None."""
    one, pools = known.settings, {ROLES.index(pool.role): pool for pool in fleet.pools}
    if len(fleet.pools) != 2 or set(pools) != {PREFILL, DECODE}:
        return None
    found = []
    for role in (PREFILL, DECODE):
        pool = pools[role]
        alike = np.flatnonzero((one.role == role) & (one.shape == pool.shape) & (one.chunk == pool.chunk))
        found += [(int(alike[0]), pool.replicas)] if alike.size else []
    return (found[0], found[1]) if len(found) == 2 else None


def _ranked(
    parting: Parting, problem: Problem, alone: IntArray, pairs: Sequence[tuple[Pick, Pick]], below: float
) -> list[Pair]:
    """Fleets that keep up with all of the demand for less than `below` [$/h], the least busy first."""
    known, total = parting.known, parting.need.sum(axis=1)
    usual = np.array([parting.usual(setting) for setting in range(total.size)])
    found = []
    for pair in _fewer(pairs):
        fixed = np.repeat(_gpus(known, pair)[None], alone.size, axis=0)
        most = most_beside(known, problem, fixed, alone, below)
        reach = min(count / total[setting] for setting, count in pair) + most / total[alone]
        bears = min(usual[setting] * count / total[setting] for setting, count in pair)
        bears = bears + usual[alone] * most / total[alone]
        good = (most > 0) & (reach > 1.0)
        rows = zip(alone[good].tolist(), (1.0 / bears[good]).tolist(), strict=True)
        found += [Pair(pair, *row) for row in rows]
    return sorted(found, key=lambda one: one.busy)


def _fewer(pairs: Sequence[tuple[Pick, Pick]]) -> list[tuple[Pick, Pick]]:
    """The same engines, and up to FEWER less of each; each pair once."""
    some = (
        ((prefill, first), (decode, last))
        for (prefill, most_prefill), (decode, most_decode) in pairs
        for first, last in product(*(range(max(1, top - FEWER), top + 1) for top in (most_prefill, most_decode)))
    )
    return list(dict.fromkeys(some))


def _gpus(known: Evaluated, pair: Side) -> IntArray:
    """GPUs of each offer that engines take, spares included, (offers,)."""
    return fleet_gpus(known.instance, known.fleet(pair))
