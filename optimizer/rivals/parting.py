"""How two sides of other engines part what they serve, so that the fleet holds when it is evaluated.

A side is a pool; or a prefill and a decode pool, which serve the same flows, beside colocated engines.

What engines need of each length differs, so the best parts are neighbours in the order of comparative advantage, need_i
/ need_j (`keeping_up`): one side serves the flows before a cut, the other those behind it, and a flow that the cut goes
through is shared. That order knows nothing of queues: where it fails, the flows are cut by prompt length, from either
end, for a pool of prompts that are all as long bears more than one of any mix. Nor does it know of limits: those who do
not wait can make room on the faster engines for those who do, so the flows of each class, in that order, are cut at
places of their own too, which are a part of the class apart. Where the gateway knows thresholds of that length only,
the order is that length, and no length is shared. Moving the cut gives one side more to do and the other less; so where
a side misses too much even beside one that idles, the cut has to move away from it, and where both do, no cut holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.fleets.evaluate import holds, misses_of
from optimizer.fleets.fleet import Fleet, FleetPool, can_hand_over, with_names
from optimizer.fleets.pool import PoolState, pool_state
from optimizer.loads.flows import Flows
from search_spaces.problem import Routing

from .by_evaluation import Evaluated, FloatArray, IntArray, keeping_up
from .fewer import still_holds

IDLE = 1e-6
"""Multiple of the demand at which an engine idles."""

UNABLE = 100.0
"""Factor on what an engine needs of flows that all miss there even when it idles, where flows are put in order."""

USUAL = 0.75
"""Busy share of engines that keep up at which they hold, where it is not known [1]."""

AGAIN = 1.05
"""Factor on how busy engines would be for each order in which they missed: those that are as much busier come first."""

CUTS, CLOSE = 7, 0.01
"""Cuts that are looked at for the same pools; difference in the busy shares of two of them that counts as none [1]."""

APART = (0.5, 1.0, -0.5, -1.0)
"""By which part of its requests a class is cut ahead of the one with the next tighter limits; behind it if negative."""

Pick = tuple[int, int]
"""A setting, and how many engines of it."""
Side = tuple[Pick, ...]
"""The pools of a side."""
Settings = tuple[int, ...]
"""Those of the pools of a side."""
Sides = tuple[tuple[FleetPool, ...], tuple[FleetPool, ...]]
"""The pools of either side, with what they serve."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What two sides are to serve together: their role, the share of each flow (flows,), and the rest of the fleet."""

    role: int
    route: FloatArray
    others: tuple[FleetPool, ...] = ()


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

    def lean(self, first: Side, second: Side) -> FloatArray:
        """By how much the first side is busier than the second, by its busiest pool, cut at each place; it rises."""
        return np.asarray(_busiest(self.first, first) - _busiest(self.second, second))

    def bracket(self, first: Side, second: Side) -> tuple[float, float]:
        """The first and the last place to cut at which both sides keep up; the first is behind the last if none is."""
        place = np.arange(self.first.shape[1], dtype=np.float64)
        low = np.interp(-1.0, -_busiest(self.second, second), place)
        return float(low), float(np.interp(1.0, _busiest(self.first, first), place))

    def place(self, between: tuple[float, float], sides: tuple[Side, Side], lean: float | None = None) -> float | None:
        """Where to cut between two places, for one side to be so much busier than the other, or halfway; or nowhere."""
        place, lean_at = np.arange(self.first.shape[1], dtype=np.float64), self.lean(*sides)
        low, high = np.interp(between, place, lean_at)
        if high - low < CLOSE and self.cuts is None:
            return None
        at = float(np.interp((low + high) / 2.0 if lean is None else np.clip(lean, low, high), lean_at, place))
        if self.cuts is None:
            return at
        some = self.cuts[(self.cuts > between[0]) & (self.cuts < between[1])]
        return float(some[np.abs(some - at).argmin()]) if some.size else None


def _busiest(engines: FloatArray, side: Side) -> FloatArray:
    """Busy share of the busiest pool of a side, (flows + 1,); engines (pools, flows + 1): that keep up."""
    counts = np.array([[count] for _, count in side])
    return np.asarray((engines / counts).max(axis=0))


@dataclass(slots=True, eq=False)
class Parting:
    """Looks for cuts; left: fleets that may still be evaluated; need (settings, flows): engines that keep up."""

    known: Evaluated
    left: int
    need: FloatArray = field(init=False)
    factors: dict[tuple[Stage, Settings], FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.need = keeping_up(self.known.instance, self.known.settings) * self.known.instance.flows.rate

    def state(self, pool: FleetPool) -> PoolState:
        """The state of a pool at its real load."""
        return pool_state(self.known.instance, pool, 1.0)

    def idle(self, setting: int) -> PoolState:
        """The state of an engine that idles."""
        return self.known.state(setting, 1, IDLE)

    def usual(self, setting: int) -> float:
        """Busy share at which engines of a setting hold [1]: as the fewest that are enough, below those too few."""
        few, enough = self.known.known.get(setting, (0, None))
        whole = float(self.need[setting].sum())
        return min(USUAL, whole / (few + 1)) if enough is None else min(whole / enough, 1.0)

    def worse(self, stage: Stage, *settings: int) -> FloatArray:
        """Factor on what a side needs of each flow, large for those that miss there even when it idles, (flows,)."""
        key = stage, settings
        if key not in self.factors:
            mine = (replace(self.known.pool(setting, 1), route=stage.route) for setting in settings)
            pools = (*mine, *stage.others)
            states = (*map(self.idle, settings), *(self.state(pool) for pool in stage.others))
            kept = misses_of(self.known.instance, Fleet(pools), states).flow_attainment
            self.factors[key] = 1.0 + UNABLE * (1.0 - kept)
        return self.factors[key]

    def orders(self, stage: Stage, first: Settings, second: Settings) -> tuple[Order, ...]:
        """The orders in which the first of two sides might take the flows of a stage, the best one to begin with.

        By comparative advantage; by length, as `thresholds` has it; and by length the other way round.
        """
        if self.known.instance.problem.constraints.routing is Routing.THRESHOLD:
            return (self.thresholds(stage, first, second),)
        one, other = self._strain(stage, first), self._strain(stage, second)
        length = self._length(stage, first, second)
        advantage = one / np.maximum(other, 1e-300)
        keys = (advantage, length, -length, *self._by_class(advantage))
        orders = [self._ordered(stage, (first, second), key, None) for key in keys]
        return tuple({order.flows.tobytes(): order for order in reversed(orders)}.values())[::-1]

    def _by_class(self, advantage: FloatArray) -> list[FloatArray]:
        """Keys of orders in which one side takes more of the classes of tight limits than of the others, (flows,)."""
        flows, place, rank = self.known.instance.flows, np.zeros(advantage.size), np.zeros(advantage.size)
        classes = by_limits(flows)
        for number, mine in enumerate(classes):
            order = mine[np.argsort(advantage[mine], kind="stable")]
            share = flows.share[order] / flows.share[order].sum()
            place[order], rank[order] = np.cumsum(share) - share / 2.0, number
        return [place + apart * rank for apart in APART] if len(classes) > 1 else []

    def thresholds(self, stage: Stage, first: Settings, second: Settings) -> Order:
        """The flows by prompt length, the shorter or the longer first, to be cut between two lengths only."""
        length = self._length(stage, first, second)
        cuts = np.flatnonzero(np.diff(np.sort(length))) + np.float64(1.0)
        return self._ordered(stage, (first, second), length, cuts)

    def _length(self, stage: Stage, first: Settings, second: Settings) -> FloatArray:
        """Prompt lengths, negative where the first of two sides should take the longer ones, (flows,)."""
        isl = self.known.instance.flows.isl
        one, other, short = self._strain(stage, first), self._strain(stage, second), isl < isl.mean()
        rising = bool(one[short].sum() * other.sum() <= other[short].sum() * one.sum())
        return isl if rising else -isl

    def _strain(self, stage: Stage, settings: Settings) -> FloatArray:
        """What a side needs of each flow of a stage [$/h], far more where that is late anyway, (flows,)."""
        tables, shape = self.known.instance.tables, self.known.settings.shape[list(settings)]
        paid = tables.usd_per_hour[shape] @ self.need[list(settings)]
        return np.asarray(paid * stage.route * self.worse(stage, *settings))

    def _ordered(
        self, stage: Stage, settings: tuple[Settings, Settings], key: FloatArray, cuts: FloatArray | None
    ) -> Order:
        order = np.argsort(key, kind="stable")
        one, other = (self.need[list(side)][:, order] * stage.route[order] for side in settings)
        before = np.pad(np.cumsum(one, axis=1), ((0, 0), (1, 0)))
        behind = np.pad(np.cumsum(other[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
        return Order(order, cuts, before, behind)

    def parted(self, stage: Stage, sides: tuple[Side, Side], order: Order) -> Fleet | None:
        """The fleet with a cut between two sides at which it holds; None where none is found."""
        low, high = order.bracket(*sides)
        place = order.place((low, high), sides, 0.0) if low < high else None
        for _ in range(CUTS):
            pools = None if place is None else self._pools(stage, sides, order, place)
            if place is None or pools is None or self.left <= 0 or self.known.late():
                return None
            over = self._too_much(stage, sides, pools)
            if over is None:
                return self._fleet(stage, pools)
            if all(over):
                return None
            low, high = (low, place) if over[0] else (place, high)
            place = order.place((low, high), sides)
        return None

    def fleet(self, stage: Stage, sides: tuple[Side, Side], order: Order, place: float) -> Fleet | None:
        """The fleet with the cut at a place, if it holds there."""
        pools = self._pools(stage, sides, order, place)
        return None if pools is None else self._fleet(stage, pools)

    def _pools(self, stage: Stage, sides: tuple[Side, Side], order: Order, place: float) -> Sides | None:
        """The pools of both sides with the flows cut at a place; None where one of them has nothing to serve."""
        part = np.zeros(stage.route.size)
        part[order.flows] = np.clip(place - np.arange(part.size), 0.0, 1.0)
        routes = stage.route * part, stage.route * (1.0 - part)
        if not all(route.any() for route in routes):
            return None
        first, second = (
            tuple(replace(self.known.pool(*pick), route=route) for pick in side)
            for side, route in zip(sides, routes, strict=True)
        )
        return first, second

    def _too_much(self, stage: Stage, sides: tuple[Side, Side], pools: Sides) -> tuple[bool, bool] | None:
        """None where the fleet holds; else which of the sides should serve less."""
        self.left -= 1
        instance, rest = self.known.instance, [self.state(pool) for pool in stage.others]
        fleet = Fleet((*pools[0], *pools[1], *stage.others))
        busy = [[self.state(pool) for pool in side] for side in pools]
        if holds(instance, misses_of(instance, fleet, (*busy[0], *busy[1], *rest))):
            return None
        goals = np.array([slo.attainment for slo in instance.problem.slos])
        calm = [[self.idle(setting) for setting, _ in side] for side in sides]
        beside = (*busy[0], *calm[1], *rest), (*calm[0], *busy[1], *rest)
        alone = [misses_of(instance, fleet, some) for some in beside]
        over = [not holds(instance, one) for one in alone]
        if any(over):
            return over[0], over[1]
        slack = [float((one.attainment - goals).min()) for one in alone]
        return slack[0] <= slack[1], slack[0] > slack[1]

    def _fleet(self, stage: Stage, pools: Sides) -> Fleet | None:
        """The whole fleet, if it can hand over what it has to."""
        instance = self.known.instance
        fleet = Fleet(with_names(instance, [*pools[0], *pools[1], *stage.others]))
        return fleet if can_hand_over(instance, fleet) and still_holds(instance, fleet) else None


def by_limits(flows: Flows) -> list[IntArray]:
    """The flows of each class, those of the tightest TPOT limit first, then those of the tightest TTFT limit."""
    classes = [np.flatnonzero(flows.slo == one) for one in np.unique(flows.slo)]
    return sorted(classes, key=lambda mine: (float(flows.tpot[mine].min()), float(flows.ttft[mine].min())))
