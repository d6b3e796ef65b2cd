"""Fleets of more pools: other engines beside those of a stage, or colocated beside prefill and decode ones.

Two sides share what a stage serves (`traffic_split`): two pools of different engines in one role; or a prefill and a
decode pool beside a colocated one. For so many engines of the first side, as many of the other as cost less than the
best fleet. Those that do not keep up with the demand, however it is split (`keeping_up`), are left out; the others are
evaluated in the order of how much busier they would be than such engines usually bear, again with other orders of the
flows, each of which counts as a little busier. Where the most of the other engines hold, the fewest that do are taken,
as more engines never miss more. What holds is mixed further at once, one of its pools at a time. Mixtures of GPU types
come first, then of sizes of one type, then colocated engines beside others, which save a part of an engine: much where
there are few. The first cut that holds may leave hardly any room, so of the mixture in the end the cuts are compared
(`with_room`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import holds_at
from optimizer.fleets.fleet import Fleet, fleet_cost, fleet_gpus, gpu_cost
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES
from search_spaces.problem import Problem, any_target

from .search import BESIDE, NO_DEARER, TIMES, FleetSearch, bisected, most_engines, roomiest, settled, unmixed
from .traffic_split import Order, Pick, Side, Sides, Stage, TrafficSplit, by_limits, settings_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

WORTH = 0.02
"""Share of the cost that a pool more of the same GPU types must save [1]: it is more to run, and what saves less by a
better fit has no room left. A fleet of no more pools than the best one need not."""
SIZES = 8
"""Sizes of the pool of dearer engines that are tried first, of each two engines."""
PARTNERS = 2
"""Pools of each role beside which the other stage of a disaggregated fleet is mixed."""
FEWER = 3
"""Engines by which a pool is smaller at most than it has to be without colocated ones (assumed)."""
AGAIN = 1.05
"""Factor on how busy engines would be for each order in which they missed: those that are as much busier come first."""
ROOM = 1.05
"""Multiple of the demand at which a fleet whose lengths are cut whole must hold to be taken without looking further."""

Proposal = tuple[float, int, int, Side, int, int]
"""How busy the sides would be, AGAIN times as much for each order before; which of `TrafficSplit.orders`; number of the
stage; the first side, the setting of the second, and the step between sizes of the first."""


class Kind(Enum):
    """What is mixed, and how many fleets are evaluated for it; each takes the states of two pools.

    At half as many fleets of six engines of two types were 5 to 8 % dearer; at twice as many, none was cheaper.
    """

    TYPES = 0, 120
    SIZES = 1, 60
    BESIDE = 2, 60

    @property
    def looks(self) -> int:
        """Fleets that are evaluated in one search."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A fleet that holds, its cost [$/h], and the two sides that share a stage of it."""

    fleet: Fleet
    cost: float
    stage: Stage
    sides: Sides


@dataclass(slots=True, eq=False)
class Mixing:
    """A search for mixtures of one kind that cost less than the best fleet so far.

    cost: of the best fleet [$/h]; pools: how many it has; best: the cheapest mixture; usual, preferred (settings,):
    busy share at which engines hold, and the same and 1 for those that are known to be enough.
    """

    search: FleetSearch
    cost: float
    kind: Kind
    best: Mixture | None = None
    pools: float = math.inf
    problem: Problem = field(init=False)
    split: TrafficSplit = field(init=False)
    usual: FloatArray = field(init=False)
    preferred: FloatArray = field(init=False)
    stages: list[Stage] = field(default_factory=list)
    keys: set[tuple[object, ...]] = field(default_factory=set)
    waiting: list[Proposal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem = self.search.instance.problem
        self.split = TrafficSplit(self.search, self.kind.looks)
        self.usual = np.array([self.split.usual(setting) for setting in range(self.search.settings.size)])
        enough = [setting for setting, (_, count) in self.search.pool_sizes.items() if count is not None]
        self.preferred = np.zeros(self.usual.size)
        self.preferred[enough] = 1.0 + self.usual[enough]

    def start(self, fleets: Sequence[Fleet]) -> None:
        """Propose what the search so far gives: whole stages, the cheapest partners, and stages of these fleets."""
        whole = Stage(COLOCATED, np.ones(self.search.instance.flows.isl.size))
        ends = [self._cheapest_apart(role) for role in (PREFILL, DECODE)]
        if self.kind is Kind.BESIDE:
            if self.problem.constraints.fits(Role):
                self.stages.append(whole)
                pairs = [*filter(None, map(self._pair_of, fleets)), *filter(self._talk, product(*ends))]
                self._propose(0, [(*row, 0) for row in product(_smaller(pairs), self.settings(whole).tolist())])
            return
        stages = [whole] if (self.search.settings.role == COLOCATED).any() else []
        for role, partners in ((PREFILL, ends[1]), (DECODE, ends[0])):
            stages += [Stage(role, whole.route, (self.search.pool(*pick),)) for pick in partners]
        self.wait((*stages, *(stage for fleet in fleets for stage in stages_of(fleet))))

    def wait(self, stages: Iterable[Stage]) -> None:
        """Propose two pools for each of these stages that is new."""
        for stage in stages:
            if stage.key not in self.keys:
                self.keys.add(stage.key)
                self.stages.append(stage)
                self._propose(len(self.stages) - 1, self._rows(stage))

    def run(self) -> None:
        """Evaluate what is proposed, the least busy first, and what can be made of it."""
        while self.waiting and self.split.left > 0 and not self.search.late():
            busy, number, place, first, second, step = heapq.heappop(self.waiting)
            stage = self.stages[place]
            orders = self.split.orders(stage, settings_of(first), (second,))
            if self._improved(stage, first, second, orders[number]) and self.best is not None:
                ((setting, size), *_), half = first, step // 2
                near = [count for count in (size - half, size + half) if count > 0 and step > 1]
                self._propose(place, [(((setting, count),), second, half) for count in near])
                self.wait(stages_of(self.best.fleet) if self.kind is not Kind.BESIDE else ())
            if number + 1 < len(orders):
                heapq.heappush(self.waiting, (AGAIN * busy, number + 1, place, first, second, step))

    def _improved(self, stage: Stage, first: Side, second: int, order: Order) -> bool:
        """Take a first side and the fewest engines of another setting that hold, if that costs less."""

        def held(count: int, order: Order = order) -> Fleet | None:
            return self.split.held(stage, (first, ((second, count),)), order)

        most = int(self._most(stage, np.array([first]), np.array([second]))[0])
        fleets = {most: held(most)} if most else {}
        if fleets.get(most) is None:
            return False

        def misses(count: int) -> bool:
            fleets[count] = held(count)
            return fleets[count] is None

        count = bisected(0, most, misses)[1]
        fleet = held(count, self.split.thresholds(stage, settings_of(first), (second,))) or fleets[count]
        if fleet is not None:
            self.cost = float(gpu_cost(self.problem, fleet_gpus(self.search.instance, fleet)))
            self.best = Mixture(fleet, self.cost, stage, (first, ((second, count),)))
        return True

    def _propose(self, place: int, rows: Sequence[tuple[Side, int, int]]) -> None:
        """Add what keeps up to what waits, by how busy it would be; rows: first side, second setting, step."""
        if not rows:
            return
        stage, split = self.stages[place], self.split
        seconds = np.array([second for _, second, _ in rows], dtype=np.int64)
        picks, need = np.array([first for first, _, _ in rows], dtype=np.int64), split.need * stage.route
        most = self._most(stage, picks, seconds)
        good, sides = most > 0, (picks, np.stack([seconds, most], axis=1))
        good[good] = _busy(need, np.ones(self.usual.size), *(side[good] for side in sides)) <= 1.0
        rows = [row for row, fits in zip(rows, good.tolist(), strict=True) if fits]
        if not rows:
            return
        worse: FloatArray | float = 1.0
        if self.kind is not Kind.BESIDE:
            first = np.array([split.penalty(stage, settings_of(side)) for side, _, _ in rows])
            worse = first / np.array([split.penalty(stage, (setting,)) for _, setting, _ in rows])
        busy = _busy(need, self.usual, *(side[good] for side in sides), worse=worse)
        for strain, row in zip(busy.tolist(), rows, strict=True):
            heapq.heappush(self.waiting, (strain, 0, place, *row))

    def _rows(self, stage: Stage) -> list[tuple[Side, int, int]]:
        """Of each two engines that may be mixed, sizes of the pool of the dearer one that can be paid for."""
        settings, tables = self.search.settings, self.search.instance.tables
        role = ROLES[stage.role]
        has_pipelines = any(pool.role is Role.PREFILL and tables.pipeline[pool.shape] > 1 for pool in stage.others)
        if not self.problem.constraints.fits([role, role, *(pool.role for pool in stage.others)]):
            return []
        if has_pipelines and self.no_pipelines:
            return []
        offer, price = tables.offer[settings.shape], tables.usd_per_hour[settings.shape]
        pairs = [
            (first, second)
            for first, second in product(self.settings(stage).tolist(), repeat=2)
            if bool(offer[first] == offer[second]) is (self.kind is Kind.SIZES)
            and settings.shape[first] != settings.shape[second]
            and (price[first], -first) > (price[second], -second)
        ]
        dear, cheap = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        top = self._most(stage, np.stack([cheap, np.ones_like(cheap)], axis=1)[:, None], dear)
        rows: list[tuple[Side, int, int]] = []
        for (first, second), most in zip(pairs, top.tolist(), strict=True):
            if most:
                sizes = np.unique(np.rint(np.linspace(1, most, min(SIZES, most))).astype(np.int64)).tolist()
                rows += [(((first, size),), second, max(1, -(-most // SIZES))) for size in sizes]
        return rows

    @property
    def no_pipelines(self) -> bool:
        """Whether no target takes hand-overs from pipelines behind a router of several pools of a role.

        For a target that is stated, the pairs that can hand over say so.
        """
        engine, free = self.problem.engine, self.problem.constraints.gateway is None
        return not free and self.problem.target is None and engine not in any_target(engine).stage_by_stage

    def settings(self, stage: Stage) -> IntArray:
        """Settings of a stage that may be used and talk to all others: of each shape one, or one for each class.

        Of one shape those known to be enough, the busiest first; then the largest token budget of which a full step is
        within the TPOT: it harms nobody, and the more it takes the less others wait; the largest of all last. An engine
        that does both may serve a class of lax limits alone, and then bears a larger token budget.
        """
        settings, tables, flows = self.search.settings, self.search.instance.tables, self.search.instance.flows
        shape, usable = settings.shape, settings.role == stage.role
        if self.no_pipelines and stage.role == PREFILL:
            usable &= tables.pipeline[shape] == 1
        for pool in stage.others:
            if stage.role == PREFILL and pool.role is Role.DECODE:
                usable &= tables.talks[shape, pool.shape]
            if stage.role == DECODE and pool.role is Role.PREFILL:
                usable &= tables.talks[pool.shape, shape]
        budgets = [(float(flows.tpot.min()), self.preferred)]
        if stage.role == COLOCATED:
            nobody = np.zeros(shape.size)
            budgets += [(float(flows.tpot[members].min()), nobody) for members in by_limits(flows)[1:]]
        best = [np.zeros(0, dtype=np.int64)]
        for limit, preference in budgets:
            harms = tables.full_base[shape, 0, settings.chunk] > limit
            order = np.lexsort((np.where(harms, settings.chunk, -1 - settings.chunk), -preference))
            order = order[usable[order]]
            best.append(order[np.unique(shape[order], return_index=True)[1]])
        return np.unique(np.concatenate(best))

    def _cheapest_apart(self, role: int) -> list[Pick]:
        """The cheapest engines of a role that are known to be enough beside the best of partners, PARTNERS at most."""
        tables, settings = self.search.instance.tables, self.search.settings
        enough = [
            (count * float(tables.usd_per_hour[settings.shape[setting]]), setting, count)
            for setting, (_, count) in sorted(self.search.pool_sizes.items())
            if count is not None and settings.role[setting] == role
        ]
        return [(setting, count) for _, setting, count in sorted(enough)[:PARTNERS]]

    def _talk(self, pair: Side) -> bool:
        """Whether the engines of a prefill and a decode pool can hand over."""
        shape = self.search.settings.shape
        return bool(self.search.instance.tables.talks[shape[pair[0][0]], shape[pair[1][0]]])

    def _pair_of(self, fleet: Fleet) -> Side | None:
        """The engines of a fleet of a prefill and a decode pool, where their settings are known; else None."""
        settings, pair = self.search.settings, []
        if sorted(ROLES.index(pool.role) for pool in fleet.pools) != [PREFILL, DECODE]:
            return None
        for pool in sorted(fleet.pools, key=lambda pool: ROLES.index(pool.role)):
            alike = (settings.role == ROLES.index(pool.role)) & (settings.shape == pool.shape)
            pair += [
                (int(setting), pool.replicas) for setting in np.flatnonzero(alike & (settings.chunk == pool.chunk))[:1]
            ]
        return tuple(pair) if len(pair) == len(fleet.pools) else None

    def _most(self, stage: Stage, firsts: IntArray, seconds: IntArray) -> IntArray:
        """Engines of the second settings that cost less than the best fleet beside first sides and others, (rows,).

        Or as much, where that fleet is less simple. firsts (rows, pools, 2): settings and engines.
        """
        engine_gpus, spares = self.search.gpus_each(), self.problem.constraints.spare_replicas
        other_gpus = (engine_gpus[firsts[..., 0]] * (firsts[..., 1:] + spares)).sum(axis=1)
        other_gpus += fleet_gpus(self.search.instance, Fleet(stage.others))
        top = TIMES * self.search.least[seconds] + BESIDE
        cost = self.cost * (NO_DEARER if self._simpler(stage) else 1.0)
        fewer = self.pools if self.best is None else len(self.best.fleet.pools)
        if self.kind is not Kind.TYPES and len(stage.others) + 2 > fewer:
            cost *= 1.0 - WORTH
        return most_engines(self.problem, other_gpus, engine_gpus[seconds], top, cost)

    def _simpler(self, stage: Stage) -> bool:
        """Whether a stage of two pools and all others are fewer pools of the same roles than the best mixture has."""
        best = self.best.fleet.pools if self.best is not None else ()
        roles = {ROLES[stage.role], *(pool.role for pool in stage.others)}
        return len(stage.others) + 2 < len(best) and roles == {pool.role for pool in best}


def _busy(
    need: FloatArray, usual: FloatArray, firsts: IntArray, seconds: IntArray, *, worse: FloatArray | float = 1.0
) -> FloatArray:
    """How busy the busiest pool of two sides is at least, as a multiple of what its engines bear, (rows,) [1].

    need (settings, flows), usual (settings,): engines that keep up, and how busy they may be; firsts (rows, pools, 2),
    seconds (rows, 2): settings and engines of either side; worse: by how much more the first side shuns a flow than
    what it needs says.
    """
    second_settings, counts = seconds.T
    busy, second = np.zeros(second_settings.size), need[second_settings]
    for settings, engines in np.moveaxis(firsts, (1, 2), (0, 1)):
        first, bears = need[settings], (engines * usual[settings])[:, None]
        order = first / np.maximum(second, 1e-300) * worse
        busy = np.maximum(busy, balance(first / bears, second / (counts * usual[second_settings])[:, None], order))
    return busy


def balance(first: FloatArray, second: FloatArray, order: FloatArray) -> FloatArray:
    """Busy share of two pools where both are as busy, the first with the flows of least `order`, all (rows, flows).

    first, second: share of the time that each flow would keep a pool busy.
    """
    by = np.argsort(order, axis=1, kind="stable")
    nothing = np.zeros((first.shape[0], 1))
    before = np.hstack([nothing, np.cumsum(np.take_along_axis(first, by, axis=1), axis=1)])
    behind = np.hstack([np.cumsum(np.take_along_axis(second, by, axis=1)[:, ::-1], axis=1)[:, ::-1], nothing])
    lean = before - behind
    at = np.minimum((lean <= 0.0).sum(axis=1) - 1, first.shape[1] - 1)
    row = np.arange(first.shape[0])
    share = -lean[row, at] / np.maximum(lean[row, at + 1] - lean[row, at], 1e-300)
    return np.asarray(before[row, at] + share * (before[row, at + 1] - before[row, at]))


def _smaller(pairs: Iterable[Side]) -> list[Side]:
    """The same engines, and up to FEWER less of each; each pair once."""
    sizes = (
        [[(setting, count) for count in range(max(1, top - FEWER), top + 1)] for setting, top in pair] for pair in pairs
    )
    return list(dict.fromkeys(pair for ends in sizes for pair in product(*ends)))


def stages_of(fleet: Fleet) -> Iterator[Stage]:
    """Each pool of a fleet that two could take the place of, and each two in one role that could share anew."""
    for size in (1, 2):
        for pools in combinations(fleet.pools, size):
            if len({pool.role for pool in pools}) == 1:
                other_pools = tuple(pool for pool in fleet.pools if not any(pool is member for member in pools))
                route = np.asarray(sum(pool.route for pool in pools))
                yield Stage(ROLES.index(pools[0].role), route, other_pools)


def cheaper_mixture(
    search: FleetSearch, starts: Sequence[Fleet], below: float, kinds: Iterable[Kind] = Kind
) -> Mixture | None:
    """The cheapest mixture of these kinds that holds and costs less than `below` [$/h]; None where none does.

    starts: fleets that hold, the best first, whose pools may be mixed. A pool more of the same GPU types must save at
    least WORTH.
    """
    best: Mixture | None = None
    for kind in kinds:
        fleets = starts if best is None else (best.fleet, *starts)
        mixing = Mixing(search, below, kind, pools=len(fleets[0].pools) if fleets else math.inf)
        mixing.start(fleets)
        mixing.run()
        if mixing.best is not None:
            best, below = mixing.best, mixing.cost
    return best


def with_room(search: FleetSearch, mixture: Mixture) -> Fleet:
    """The fleet with the cut between its sides at which it has the most room; its own where no other has more.

    Cuts between prompt lengths come first, as gateways know nothing else; where none of them leaves ROOM, all.
    """
    split, stage, sides = TrafficSplit(search, 0), mixture.stage, mixture.sides
    settings = settings_of(sides[0]), settings_of(sides[1])

    def cut(order: Order) -> list[Fleet]:
        around = split.place_of(mixture.fleet, stage, sides, order)
        places = order.places(sides, around)
        fleets = (split.fleet(stage, sides, order, float(place)) for place in places if not search.late())
        return [fleet for fleet in fleets if fleet is not None]

    whole = cut(split.thresholds(stage, *settings))
    best = [roomiest(search.instance, whole)] if whole else []
    if best and holds_at(search.instance, best[0], ROOM):
        return best[0]
    cut_fleets = [fleet for order in split.orders(stage, *settings) for fleet in cut(order)]
    return roomiest(search.instance, [*best, mixture.fleet, *cut_fleets])


def cheaper_of_more_pools(search: FleetSearch, starts: Sequence[Fleet], below: float) -> Fleet | None:
    """A mixture that costs less than `below` [$/h], cut where it has the most room; None where there is none.

    starts: see `cheaper_mixture`.
    """
    mixture = cheaper_mixture(search, starts, below)
    return None if mixture is None else with_room(search, mixture)


def or_mixed(search: FleetSearch, best: Fleet) -> Fleet:
    """A fleet that holds, or a cheaper mixture."""
    cost = fleet_cost(search.instance, best) if best.pools else math.inf
    mixture = cheaper_of_more_pools(search, [best] if best.pools else [], cost)
    return best if mixture is None else settled(search.instance, mixture)


def leanest(search: FleetSearch) -> Fleet:
    """The cheapest fleet of one pool or two, or a mixture that costs less; empty where none holds."""
    return or_mixed(search, unmixed(search))
