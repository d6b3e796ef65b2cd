"""How two sides of other engines split what they serve, so that the fleet holds when it is evaluated.

A side is a pool; or a prefill and a decode pool, which serve the same flows, beside colocated engines. What engines
need of each length differs, so the best shares are neighbors in the order of comparative advantage, need_i / need_j:
one side serves the flows before a cut, the other those behind it, and a flow that the cut goes through is shared. That
order knows nothing of queues: where it fails, the flows are cut by prompt length, from either end, for a pool of
prompts that are all as long bears more than one of any mix. Nor does it know of limits: those who do not wait can make
room on the faster engines for those who do, so the flows of each class, in that order, are cut at places of their own
too. Where the gateway knows thresholds of length only, the order is that length, and no length is shared. Moving the
cut gives one side more to do and the other less; so where a side misses too much even beside one that idles, the cut
has to move away from it, and where both do, no cut holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.fleets.evaluate import class_goals, holds, misses_of
from optimizer.fleets.fleet import Fleet, FleetPool, can_hand_over, with_names
from optimizer.fleets.pool import pool_key, pool_state
from optimizer.loads.flows import Flows
from optimizer.loads.instance import ROLES
from search_spaces.problem import Routing

from .bound import keeping_up
from .limits import still_holds
from .search import FleetSearch

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

USUAL = 0.75
"""Busy share of engines that keep up at which they hold, where it is not known [1]."""
UNABLE = 100.0
"""Factor on what an engine needs of flows that all miss there even when it idles, where flows are put in order."""
IDLE = 1e-6
"""Multiple of the demand at which an engine idles."""
CUTS, CLOSE = 7, 0.01
"""Cuts that are looked at for the same pools; difference in the busy shares of two of them that counts as none [1]."""
APART = (0.5, 1.0, -0.5, -1.0)
"""By which part of its requests a class is cut ahead of the one with the next tighter limits; behind it if negative."""

Pick = tuple[int, int]
"""A setting, and how many engines of it."""
Side = tuple[Pick, ...]
"""The pools of a side."""
Sides = tuple[Side, Side]
Settings = tuple[int, ...]
"""Those of the pools of a side."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What two sides are to serve together: their role, the share of each flow (flows,), and the rest of the fleet."""

    role: int
    route: FloatArray
    others: tuple[FleetPool, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """The same for stages that are."""
        return self.role, np.round(self.route, 9).tobytes(), tuple(pool_key(pool) for pool in self.others)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Flows in the order in which one side takes them before the other.

    flows: indices; cuts: places between them at which they may be cut, None for anywhere; first, second (pools of the
    side, flows + 1): engines that keep up with the flows before, and with those behind each place.
    """

    flows: IntArray
    cuts: FloatArray | None
    first: FloatArray
    second: FloatArray

    def lean(self, sides: Sides) -> FloatArray:
        """By how much the first side is busier than the second, by its busiest pool, cut at each place; it rises."""
        return np.asarray(_busiest(self.first, sides[0]) - _busiest(self.second, sides[1]))

    def bracket(self, sides: Sides) -> tuple[float, float]:
        """The first and the last place to cut at which both sides keep up; the first is behind the last if none is."""
        place = np.arange(self.first.shape[1], dtype=np.float64)
        low = np.interp(-1.0, -_busiest(self.second, sides[1]), place)
        return float(low), float(np.interp(1.0, _busiest(self.first, sides[0]), place))

    def place(self, between: tuple[float, float], sides: Sides, lean: float | None = None) -> float | None:
        """Where to cut between two places, for one side to be so much busier than the other, or halfway; or nowhere."""
        place, lean_at = np.arange(self.first.shape[1], dtype=np.float64), self.lean(sides)
        low, high = np.interp(between, place, lean_at)
        if high - low < CLOSE and self.cuts is None:
            return None
        at = float(np.interp((low + high) / 2.0 if lean is None else np.clip(lean, low, high), lean_at, place))
        if self.cuts is None:
            return at
        inside = self.cuts[(self.cuts > between[0]) & (self.cuts < between[1])]
        return float(inside[np.abs(inside - at).argmin()]) if inside.size else None

    def places(self, sides: Sides, around: float) -> FloatArray:
        """The CUTS places nearest to `around` of those at which both sides keep up, or all where there are fewer."""
        low, high = self.bracket(sides)
        if low >= high:
            return np.zeros(0)
        cuts = np.linspace(low, high, CUTS + 2)[1:-1] if self.cuts is None else self.cuts
        inside = cuts[(cuts > low) & (cuts < high)]
        return np.sort(inside[np.argsort(np.abs(inside - around), kind="stable")[:CUTS]])


def _busiest(engines: FloatArray, side: Side) -> FloatArray:
    """Busy share of the busiest pool of a side, (flows + 1,); engines (pools, flows + 1): that keep up."""
    counts = np.array([[count] for _, count in side])
    return np.asarray((engines / counts).max(axis=0))


def settings_of(side: Side) -> Settings:
    """The settings of the pools of a side."""
    return tuple(setting for setting, _ in side)


@dataclass(slots=True, eq=False)
class TrafficSplit:
    """Looks for cuts; left: fleets that may still be evaluated; need (settings, flows): engines that keep up."""

    search: FleetSearch
    left: int
    need: FloatArray = field(init=False)
    penalties: dict[tuple[Stage, Settings], FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.need = keeping_up(self.search.instance, self.search.settings) * self.search.instance.flows.rate

    def usual(self, setting: int) -> float:
        """Busy share at which engines of a setting hold [1]: as the fewest that are enough, below those too few."""
        few, enough = self.search.pool_sizes.get(setting, (0, None))
        whole = float(self.need[setting].sum())
        return min(USUAL, whole / (few + 1)) if enough is None else min(whole / enough, 1.0)

    def penalty(self, stage: Stage, settings: Settings) -> FloatArray:
        """Factor on what a side needs of each flow, large for those that miss there even when it idles, (flows,)."""
        key = stage, settings
        if key not in self.penalties:
            side = (replace(self.search.pool(setting, 1), route=stage.route) for setting in settings)
            idle = (self.search.state(setting, 1, IDLE) for setting in settings)
            rest = (pool_state(self.search.instance, pool, 1.0) for pool in stage.others)
            misses = misses_of(self.search.instance, Fleet((*side, *stage.others)), (*idle, *rest))
            self.penalties[key] = 1.0 + UNABLE * (1.0 - misses.flow_attainment)
        return self.penalties[key]

    def orders(self, stage: Stage, first: Settings, second: Settings) -> tuple[Order, ...]:
        """The orders in which the first of two sides might take the flows of a stage, the best one to begin with.

        By comparative advantage; by length, as `thresholds` has it; and by length the other way round.
        """
        if self.search.instance.problem.constraints.routing is Routing.THRESHOLD:
            return (self.thresholds(stage, first, second),)
        length = self._length(stage, first, second)
        advantage = self._strain(stage, first) / np.maximum(self._strain(stage, second), 1e-300)
        keys = (advantage, length, -length, *self._by_class(advantage))
        orders = [self._ordered(stage, (first, second), key, None) for key in keys]
        return tuple({order.flows.tobytes(): order for order in reversed(orders)}.values())[::-1]

    def thresholds(self, stage: Stage, first: Settings, second: Settings) -> Order:
        """The flows by prompt length, the shorter or the longer first, to be cut between two lengths only."""
        length = self._length(stage, first, second)
        cuts = np.flatnonzero(np.diff(np.sort(length))) + np.float64(1.0)
        return self._ordered(stage, (first, second), length, cuts)

    def _by_class(self, advantage: FloatArray) -> list[FloatArray]:
        """Keys of orders in which one side takes more of the classes of tight limits than of the others, (flows,)."""
        flows, place, rank = self.search.instance.flows, np.zeros(advantage.size), np.zeros(advantage.size)
        classes = by_limits(flows)
        for number, members in enumerate(classes):
            order = members[np.argsort(advantage[members], kind="stable")]
            share = flows.share[order] / flows.share[order].sum()
            place[order], rank[order] = np.cumsum(share) - share / 2.0, number
        return [place + apart * rank for apart in APART] if len(classes) > 1 else []

    def _length(self, stage: Stage, first: Settings, second: Settings) -> FloatArray:
        """Prompt lengths, negative where the first of two sides should take the longer ones, (flows,)."""
        isl = self.search.instance.flows.isl
        first_strain, second_strain, short = self._strain(stage, first), self._strain(stage, second), isl < isl.mean()
        return (
            isl
            if first_strain[short].sum() * second_strain.sum() <= second_strain[short].sum() * first_strain.sum()
            else -isl
        )

    def _strain(self, stage: Stage, settings: Settings) -> FloatArray:
        """What a side needs of each flow of a stage [$/h], far more where that is late anyway, (flows,)."""
        tables, shape = self.search.instance.tables, self.search.settings.shape[list(settings)]
        paid = tables.usd_per_hour[shape] @ self.need[list(settings)]
        return np.asarray(paid * stage.route * self.penalty(stage, settings))

    def _ordered(
        self, stage: Stage, settings: tuple[Settings, Settings], key: FloatArray, cuts: FloatArray | None
    ) -> Order:
        order = np.argsort(key, kind="stable")
        first, second = (self.need[list(side)][:, order] * stage.route[order] for side in settings)
        before = np.pad(np.cumsum(first, axis=1), ((0, 0), (1, 0)))
        behind = np.pad(np.cumsum(second[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
        return Order(order, cuts, before, behind)

    def held(self, stage: Stage, sides: Sides, order: Order) -> Fleet | None:
        """The fleet with a cut between two sides at which it holds; None where none is."""
        low, high = order.bracket(sides)
        place = order.place((low, high), sides, 0.0) if low < high else None
        for _ in range(CUTS):
            pools = None if place is None else self._pools(stage, sides, order, place)
            if place is None or pools is None or self.left <= 0 or self.search.late():
                return None
            first, second = self._overloaded(stage, sides, pools)
            if not first and not second:
                return self._fleet(stage, pools)
            if first and second:
                return None
            low, high = (low, place) if first else (place, high)
            place = order.place((low, high), sides)
        return None

    def place_of(self, fleet: Fleet, stage: Stage, sides: Sides, order: Order) -> float:
        """Where an order is cut for the first side to serve as large a share of the requests as in a fleet."""
        shapes = {int(self.search.settings.shape[setting]) for setting, _ in sides[0]}
        role, share = ROLES[int(self.search.settings.role[sides[0][0][0]])], self.search.instance.flows.share
        served_share = sum(float(pool.route @ share) for pool in fleet.of(role) if pool.shape in shapes)
        before = np.cumsum((share * stage.route)[order.flows])
        return float(np.interp(served_share, np.append(0.0, before), np.arange(before.size + 1.0)))

    def fleet(self, stage: Stage, sides: Sides, order: Order, place: float) -> Fleet | None:
        """The fleet with the cut at a place, if it holds there."""
        pools = self._pools(stage, sides, order, place)
        return None if pools is None else self._fleet(stage, pools)

    def _pools(self, stage: Stage, sides: Sides, order: Order, place: float) -> list[list[FleetPool]] | None:
        """The pools of both sides with the flows cut at a place; None where one of them has nothing to serve."""
        share = np.zeros(stage.route.size)
        share[order.flows] = np.clip(place - np.arange(share.size), 0.0, 1.0)
        routes = stage.route * share, stage.route * (1.0 - share)
        if not all(route.any() for route in routes):
            return None
        return [
            [replace(self.search.pool(*pick), route=route) for pick in side]
            for side, route in zip(sides, routes, strict=True)
        ]

    def _overloaded(self, stage: Stage, sides: Sides, pools: list[list[FleetPool]]) -> tuple[bool, bool]:
        """Which of the sides should serve less; neither where the fleet holds."""
        self.left -= 1
        instance = self.search.instance
        first, second, rest = (
            [pool_state(instance, pool, 1.0) for pool in side] for side in (*pools, list(stage.others))
        )
        fleet = Fleet((*pools[0], *pools[1], *stage.others))
        if holds(instance, misses_of(instance, fleet, (*first, *second, *rest))):
            return False, False
        idle = [[self.search.state(setting, 1, IDLE) for setting, _ in side] for side in sides]
        alone = [misses_of(instance, fleet, (*first, *idle[1], *rest))]
        alone.append(misses_of(instance, fleet, (*idle[0], *second, *rest)))
        missing = [not holds(instance, misses) for misses in alone]
        if any(missing):
            return missing[0], missing[1]
        slack = [float((misses.attainment - class_goals(instance)).min()) for misses in alone]
        return slack[0] <= slack[1], slack[0] > slack[1]

    def _fleet(self, stage: Stage, pools: list[list[FleetPool]]) -> Fleet | None:
        """The whole fleet, if it can hand over what it has to."""
        instance = self.search.instance
        fleet = Fleet(with_names(instance, [*pools[0], *pools[1], *stage.others]))
        return fleet if can_hand_over(instance, fleet) and still_holds(instance, fleet) else None


def by_limits(flows: Flows) -> list[IntArray]:
    """The flows of each class, those of the tightest TPOT limit first, then those of the tightest TTFT limit."""
    classes = [np.flatnonzero(flows.slo == number) for number in np.unique(flows.slo)]
    return sorted(classes, key=lambda flow: (float(flows.tpot[flow].min()), float(flows.ttft[flow].min())))
