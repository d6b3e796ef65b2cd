"""The same engines, with what they serve cut where the fleet has the most room.

A mix is taken with the first cut that holds (`parting`), which may be one at which it barely does. So of what was found
in the end the cuts are compared: those between prompt lengths first, as gateways know nothing else, and where none of
them leaves ROOM, all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet, FleetPool
from optimizer.loads.instance import COLOCATED, ROLES

from .by_evaluation import Evaluated, FloatArray
from .parting import Order, Parting, Pick, Side, Stage
from .room import roomiest

PLACES = 7
"""Cuts of one order that are compared."""

ROOM = 1.05
"""Multiple of the demand at which a fleet whose lengths are cut whole must hold to be taken without looking further."""

Halves = tuple[Stage, tuple[Side, Side]]
"""What two sides of a fleet serve together, and their pools."""


def with_room(known: Evaluated, fleet: Fleet) -> Fleet:
    """The fleet with the cut between its sides at which it has the most room; itself where no other has more."""
    for stage, sides in _halves(known, fleet):
        fleet = _roomiest_cut(known, fleet, stage, sides)
    return fleet


def _roomiest_cut(known: Evaluated, fleet: Fleet, stage: Stage, sides: tuple[Side, Side]) -> Fleet:
    """The fleet, or the same with another cut between two sides that leaves more room."""
    parting = Parting(known, 0)
    settings = tuple(tuple(setting for setting, _ in side) for side in sides)

    def carries(one: Fleet, volume: float) -> bool:
        return holds(known.instance, predict_misses(known.instance, one, volume))

    def held(order: Order) -> list[Fleet]:
        places = _places(order, sides)
        cut = (parting.fleet(stage, sides, order, float(place)) for place in places if not known.late())
        return [one for one in cut if one is not None]

    whole = held(parting.thresholds(stage, *settings))
    best = roomiest(whole, carries) if whole else None
    if best is not None and carries(best, ROOM):
        return best
    others = [one for order in parting.orders(stage, *settings) for one in held(order)]
    return roomiest([*([best] if best is not None else []), fleet, *others], carries)


def _places(order: Order, sides: tuple[Side, Side]) -> FloatArray:
    """Where flows may be cut so that both sides keep up."""
    low, high = order.bracket(*sides)
    if low >= high:
        return np.zeros(0)
    if order.cuts is None:
        return np.linspace(low, high, PLACES + 2)[1:-1]
    some = order.cuts[(order.cuts > low) & (order.cuts < high)]
    return np.asarray(some[np.unique(np.linspace(0, some.size - 1, min(PLACES, some.size)).astype(np.int64))])


def _halves(known: Evaluated, fleet: Fleet) -> Iterator[Halves]:
    """Each two pools of one role, or colocated engines beside a pool of each other role, whose settings are known."""
    picks = [_pick(known, pool) for pool in fleet.pools]
    for role in ROLES:
        mine = [index for index, pool in enumerate(fleet.pools) if pool.role is role]
        first, second = (picks[index] for index in mine) if len(mine) == 2 else (None, None)
        if first is not None and second is not None:
            others = tuple(pool for index, pool in enumerate(fleet.pools) if index not in mine)
            route = np.asarray(sum(fleet.pools[index].route for index in mine))
            yield Stage(ROLES.index(role), route, others), ((first,), (second,))
    place = {pool.role: index for index, pool in enumerate(fleet.pools)}
    if len(fleet.pools) == len(place) == len(ROLES):
        prefill, decode, alone = (picks[place[role]] for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED))
        if prefill is not None and decode is not None and alone is not None:
            yield Stage(COLOCATED, np.ones(known.instance.flows.isl.size)), ((prefill, decode), (alone,))


def _pick(known: Evaluated, pool: FleetPool) -> Pick | None:
    """The setting of a pool, and how many engines; None where it is none of those known."""
    one = known.settings
    alike = (one.role == ROLES.index(pool.role)) & (one.shape == pool.shape) & (one.chunk == pool.chunk)
    setting = next((int(one) for one in np.flatnonzero(alike) if known.pool(int(one), 1).seqs == pool.seqs), None)
    return None if setting is None else (setting, pool.replicas)
