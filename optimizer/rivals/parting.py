"""How two pools of different engines part what a stage serves, so that the fleet holds when it is evaluated.

What engines need of each length differs, so the best parts are neighbours in the order of comparative advantage,
need_i / need_j (`keeping_up`): one pool serves the flows before a cut, the other those behind it, and a flow that the
cut goes through is shared. That order knows nothing of queues: where it fails, the flows are cut by prompt length, from
either end, for a pool of prompts that are all as long bears more than one of any mix. Where the gateway knows
thresholds of that length only, the order is that length, and no length is shared. Moving the cut gives one pool more to
do and the other less; so where a pool misses too much even beside one that idles, the cut has to move away from it, and
where both do, no cut holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from optimizer.fleets.evaluate import holds, misses_of
from optimizer.fleets.fleet import Fleet, FleetPool, can_hand_over, named
from optimizer.fleets.pool_state import PoolState, pool_state
from search_spaces.problem import Routing

from .by_evaluation import Evaluated, FloatArray, IntArray, keeping_up
from .fewer import still_holds

IDLE = 1e-6
"""Multiple of the demand at which an engine idles."""

UNABLE = 100.0
"""Factor on what an engine needs of flows that all miss there even when it idles, where flows are put in order."""

CUTS, CLOSE = 7, 0.01
"""Cuts that are looked at for the same pools; difference in the busy shares of two of them that counts as none [1]."""

Pick = tuple[int, int]
"""A setting, and how many engines of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What two pools are to serve together: their role, the share of each flow (flows,), and the rest of the fleet."""

    role: int
    route: FloatArray
    others: tuple[FleetPool, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Flows in the order in which one pool takes them before the other.

    flows: indices; cuts: places between them at which they may be cut, None for anywhere; first, second (flows + 1,):
    engines that keep up with the flows before, and with those behind each place.
    """

    flows: IntArray
    cuts: FloatArray | None
    first: FloatArray
    second: FloatArray

    def lean(self, first: int, second: int) -> FloatArray:
        """By how much the first pool of so many engines is busier than the second, cut at each place; it rises."""
        return np.asarray(self.first / first - self.second / second)

    def bracket(self, first: int, second: int) -> tuple[float, float]:
        """The first and the last place to cut at which both pools keep up; the first is behind the last if none is."""
        place = np.arange(self.first.size, dtype=np.float64)
        low, high = np.interp(-second, -self.second, place), np.interp(first, self.first, place)
        return float(low), float(high)

    def place(self, between: tuple[float, float], counts: tuple[int, int], lean: float | None = None) -> float | None:
        """Where to cut between two places, for one pool to be so much busier than the other, or halfway; or nowhere."""
        place, lean_at = np.arange(self.first.size, dtype=np.float64), self.lean(*counts)
        low, high = np.interp(between, place, lean_at)
        if high - low < CLOSE and self.cuts is None:
            return None
        at = float(np.interp((low + high) / 2.0 if lean is None else np.clip(lean, low, high), lean_at, place))
        if self.cuts is None:
            return at
        some = self.cuts[(self.cuts > between[0]) & (self.cuts < between[1])]
        return float(some[np.abs(some - at).argmin()]) if some.size else None


@dataclass(slots=True, eq=False)
class Parting:
    """Looks for cuts; left: fleets that may still be evaluated; need (settings, flows): engines that keep up."""

    known: Evaluated
    left: int
    need: FloatArray = field(init=False)
    factors: dict[tuple[Stage, int], FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.need = keeping_up(self.known.instance, self.known.settings) * self.known.instance.flows.rate

    def state(self, pool: FleetPool) -> PoolState:
        """The state of a pool at its real load."""
        return pool_state(self.known.instance, pool, 1.0)

    def idle(self, setting: int) -> PoolState:
        """The state of an engine that idles."""
        return self.known.state(setting, 1, IDLE)

    def worse(self, stage: Stage, setting: int) -> FloatArray:
        """Factor on what a setting needs of each flow, large for those that miss there even when it idles, (flows,)."""
        key = stage, setting
        if key not in self.factors:
            pools = (replace(self.known.pool(setting, 1), route=stage.route), *stage.others)
            states = (self.idle(setting), *(self.state(pool) for pool in stage.others))
            kept = misses_of(self.known.instance, Fleet(pools), states).flow_attainment
            self.factors[key] = 1.0 + UNABLE * (1.0 - kept)
        return self.factors[key]

    def orders(self, stage: Stage, first: int, second: int) -> tuple[Order, ...]:
        """The orders in which the first of two settings might take the flows of a stage, the best one to begin with.

        By comparative advantage; by length, as `thresholds` has it; and by length the other way round.
        """
        if self.known.instance.problem.constraints.routing is Routing.THRESHOLD:
            return (self.thresholds(stage, first, second),)
        one, other = self._strain(stage, first), self._strain(stage, second)
        length = self._length(stage, first, second)
        keys = (one / np.maximum(other, 1e-300), length, -length)
        orders = [self._ordered(stage, (first, second), key, None) for key in keys]
        return tuple({order.flows.tobytes(): order for order in reversed(orders)}.values())[::-1]

    def thresholds(self, stage: Stage, first: int, second: int) -> Order:
        """The flows by prompt length, the shorter or the longer first, to be cut between two lengths only."""
        length = self._length(stage, first, second)
        cuts = np.flatnonzero(np.diff(np.sort(length))) + np.float64(1.0)
        return self._ordered(stage, (first, second), length, cuts)

    def _length(self, stage: Stage, first: int, second: int) -> FloatArray:
        """Prompt lengths, negative where the first of two settings should take the longer ones, (flows,)."""
        isl = self.known.instance.flows.isl
        one, other, short = self._strain(stage, first), self._strain(stage, second), isl < isl.mean()
        rising = bool(one[short].sum() * other.sum() <= other[short].sum() * one.sum())
        return isl if rising else -isl

    def _strain(self, stage: Stage, setting: int) -> FloatArray:
        """What a setting needs of each flow of a stage, far more where that is late anyway, (flows,)."""
        return np.asarray(self.need[setting] * stage.route * self.worse(stage, setting))

    def _ordered(self, stage: Stage, settings: tuple[int, int], key: FloatArray, cuts: FloatArray | None) -> Order:
        order = np.argsort(key, kind="stable")
        one, other = (self.need[setting] * stage.route for setting in settings)
        before = np.concatenate([[0.0], np.cumsum(one[order])])
        behind = np.concatenate([np.cumsum(other[order][::-1])[::-1], [0.0]])
        return Order(order, cuts, before, behind)

    def parted(self, stage: Stage, picks: tuple[Pick, Pick], order: Order) -> Fleet | None:
        """The fleet with a cut between two pools at which it holds; None where none is found."""
        counts = picks[0][1], picks[1][1]
        low, high = order.bracket(*counts)
        place = order.place((low, high), counts, 0.0) if low < high else None
        for _ in range(CUTS):
            pools = None if place is None else self._pools(stage, picks, order, place)
            if place is None or pools is None or self.left <= 0 or self.known.late():
                return None
            over = self._too_much(stage, picks, pools)
            if over is None:
                return self._fleet(stage, pools)
            if all(over):
                return None
            low, high = (low, place) if over[0] else (place, high)
            place = order.place((low, high), counts)
        return None

    def _pools(
        self, stage: Stage, picks: tuple[Pick, Pick], order: Order, place: float
    ) -> tuple[FleetPool, FleetPool] | None:
        """The two pools with the flows cut at a place; None where one of them has nothing to serve."""
        part = np.zeros(stage.route.size)
        part[order.flows] = np.clip(place - np.arange(part.size), 0.0, 1.0)
        routes = stage.route * part, stage.route * (1.0 - part)
        if not all(route.any() for route in routes):
            return None
        first, second = (
            replace(self.known.pool(*pick), route=route) for pick, route in zip(picks, routes, strict=True)
        )
        return first, second

    def _too_much(
        self, stage: Stage, picks: tuple[Pick, Pick], pools: tuple[FleetPool, FleetPool]
    ) -> tuple[bool, bool] | None:
        """None where the fleet holds; else which of the pools should serve less."""
        self.left -= 1
        instance, rest = self.known.instance, tuple(self.state(pool) for pool in stage.others)
        fleet, busy = Fleet((*pools, *stage.others)), (self.state(pools[0]), self.state(pools[1]))
        if holds(instance, misses_of(instance, fleet, (*busy, *rest))):
            return None
        goals = np.array([slo.attainment for slo in instance.problem.slos])
        calm = self.idle(picks[0][0]), self.idle(picks[1][0])
        alone = [misses_of(instance, fleet, (*some, *rest)) for some in ((busy[0], calm[1]), (calm[0], busy[1]))]
        over = [not holds(instance, one) for one in alone]
        if any(over):
            return over[0], over[1]
        slack = [float((one.attainment - goals).min()) for one in alone]
        return slack[0] <= slack[1], slack[0] > slack[1]

    def _fleet(self, stage: Stage, pools: tuple[FleetPool, FleetPool]) -> Fleet | None:
        """The whole fleet, if it can hand over what it has to."""
        instance = self.known.instance
        fleet = Fleet(named(instance, [*pools, *stage.others]))
        return fleet if can_hand_over(instance, fleet) and still_holds(instance, fleet) else None
