"""Mixtures: two pools of different GPU types or sizes that share what one pool of a fleet could serve.

For every number of engines in the first pool, the second gets the most engines with which the fleet still costs less
than the best one. Pairs that cannot keep up with the demand, however it is split (`keeping_up`), are left out; the
others are evaluated by how much busier they would be than such engines usually bear. If the most engines hold, the
fewest that do are taken, as more engines never miss more. A fleet that holds is mixed further at once, one of its pools
at a time.

Engines differ in what they need for each length. So one pool serves the prompts up to a cut by length, the other those
beyond it, and they share a length that the cut goes through. Where no router splits a length, none is
shared; otherwise a cut between two lengths is tried last, as routers know it best. Moving the cut gives one pool
more to do and the other less: a pool that misses too much even beside an idle one needs the cut to move away from it,
and if both do, no cut holds.

Goodput: the fleet that serves most, or most per dollar, comes from the same search. The cheapest fleet at a multiple of
the demand bounds all others: none serves more for less. So between two volumes no fleet serves more than the higher one
does, or has more per dollar than the higher one at the cost of the lower. The interval with the largest bound is halved
until no interval can beat the best fleet. A mixture takes its place where it serves more, or as much for less.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.engine import Role
from optimizer.fleets.evaluate import Evaluation, class_goals, goodput_volume, holds_at, still_holds
from optimizer.fleets.fleet import (
    Fleet,
    FleetPool,
    bisection,
    can_hand_over,
    classes_apart,
    fleet_cost,
    fleet_gpus,
    keeps_limits,
    no_staged_prefill,
    takes_whole_lengths,
    with_names,
)
from optimizer.fleets.pool import pool_key, pool_state
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES, TABLES_BY_FLOW, Instance, at_volume
from optimizer.plans.records import ALIKE, CANDIDATES, NOTABLE, QUICK_CANDIDATES, TOLERANCE
from search_spaces.problem import Billing, Constraints, Goal, Offer, Pools, Problem

from .bound import least_per_demand, most_volume
from .search import FleetSearch, cheapest_held, evaluated, most_engines, smallest_batches, unmixed
from .settings import keeping_up

LOOKS = CANDIDATES * QUICK_CANDIDATES
"""Most fleets that one search for mixtures evaluates; each needs the states of two pools."""

Parts = Sequence[tuple[int, Fleet]]
"""SLO classes and their fleets."""
Solve = Callable[[Instance], Fleet]
"""Finds the cheapest fleet of an instance; returns an empty fleet if it finds none."""

Pick = tuple[int, int]
"""A setting, and how many engines of it."""
Proposal = tuple[float, int, Pick, int]
"""An entry of the queue: how busy the pools would be, the stage, the first pool, and the setting of the second."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What two pools are to serve together: their role, the share of each flow (flows,), and the rest of the fleet."""

    role: int
    route: FloatArray
    others: tuple[FleetPool, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """The same for stages that are."""
        return self.role, np.round(self.route, 9).tobytes(), tuple(pool_key(pool) for pool in self.others)


def stages_of(fleet: Fleet) -> Iterator[Stage]:
    """What each pool of a fleet serves, for two pools to take its place."""
    for pool in fleet.pools:
        yield Stage(ROLES.index(pool.role), pool.route, tuple(rest for rest in fleet.pools if rest is not pool))


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Prompt lengths in the order in which the first of two pools takes them before the second.

    rank (flows,): of the length of each; whole: whether no length may be cut; first, second (lengths + 1,): engines of
    either that keep up with the lengths before, and with those behind each place.
    """

    rank: IntArray
    whole: bool
    first: FloatArray
    second: FloatArray

    def bracket(self, counts: tuple[int, int]) -> tuple[float, float]:
        """The first and the last place to cut at which both pools keep up; the first is behind the last if none is."""
        place = np.arange(self.first.size, dtype=np.float64)
        low = np.interp(-counts[1], -self.second, place)
        return float(low), float(np.interp(counts[0], self.first, place))

    def place(self, between: tuple[float, float], counts: tuple[int, int], *, balanced: bool) -> float | None:
        """Where to cut between two places: where both pools are as busy, or halfway to either end; or nowhere."""
        place, lean_at = np.arange(self.first.size, dtype=np.float64), self.first / counts[0] - self.second / counts[1]
        low, high = np.interp(between, place, lean_at)
        at = float(np.interp(np.clip(0.0, low, high) if balanced else (low + high) / 2.0, lean_at, place))
        if not self.whole:
            return at
        first, last = math.floor(between[0]) + 1, math.ceil(between[1]) - 1
        return float(min(max(round(at), first), last)) if first <= last else None


@dataclass(slots=True, eq=False)
class Mixing:
    """A search for mixtures that cost less than the best fleet so far.

    cost: of the best fleet [$/h]; best: the cheapest mixture; left: fleets that may still be evaluated; need (settings,
    flows): engines that keep up with each flow; usual, preferred (settings,): busy share at which engines hold, and the
    same and 1 for those that are known to be enough.
    """

    search: FleetSearch
    cost: float
    best: Fleet | None = None
    left: int = LOOKS
    need: FloatArray = field(init=False)
    usual: FloatArray = field(init=False)
    preferred: FloatArray = field(init=False)
    stages: list[Stage] = field(default_factory=list)
    keys: set[tuple[object, ...]] = field(default_factory=set)
    waiting: list[Proposal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.need = keeping_up(self.search.instance, self.search.settings) * self.search.instance.flows.rate
        self.usual, self.preferred = np.zeros((2, self.search.settings.size))
        for setting, whole in enumerate(self.need.sum(axis=1)):
            few, enough = self.search.pool_sizes.get(setting, (0, None))
            self.usual[setting] = min(whole / (enough or few + 1), 1.0)
            self.preferred[setting] = 0.0 if enough is None else 1.0 + self.usual[setting]

    @property
    def problem(self) -> Problem:
        """The problem that is searched."""
        return self.search.instance.problem

    def start(self, fleets: Sequence[Fleet]) -> None:
        """Propose mixtures of whole stages, beside their cheapest partners, and of the best fleets so far."""
        route = np.ones(self.search.instance.flows.isl.size)
        partners = ((PREFILL, self._cheapest_apart(DECODE)), (DECODE, self._cheapest_apart(PREFILL)))
        whole = [Stage(COLOCATED, route)] if (self.search.settings.role == COLOCATED).any() else []
        apart = [Stage(role, route, (self.search.pool(*pick),)) for role, pick in partners if pick is not None]
        for stage in (*whole, *apart, *(stage for fleet in fleets for stage in stages_of(fleet))):
            self._wait(stage)

    def run(self) -> None:
        """Evaluate the proposals, the least busy first, and mix further what holds."""
        while self.waiting and self.left > 0 and not self.search.late():
            _, place, first, second = heapq.heappop(self.waiting)
            if self._improve(self.stages[place], first, second) and self.best is not None:
                for part in stages_of(self.best):
                    self._wait(part)

    # --- what is proposed -------------------------------------------------------------------------------------------

    def _wait(self, stage: Stage) -> None:
        """Propose pairs of pools for a stage that is new."""
        if stage.key not in self.keys:
            self.keys.add(stage.key)
            self.stages.append(stage)
            self._propose(len(self.stages) - 1, self._rows(stage))

    def _rows(self, stage: Stage) -> list[tuple[Pick, int]]:
        """Of each two engines that may be mixed, sizes of the pool of the dearer one that can be paid for."""
        tables, shape, role = self.search.instance.tables, self.search.settings.shape, ROLES[stage.role]
        has_pipelines = any(pool.role is Role.PREFILL and tables.pipeline[pool.shape] > 1 for pool in stage.others)
        fits = self.problem.constraints.fits([role, role, *(pool.role for pool in stage.others)])
        if not fits or (has_pipelines and no_staged_prefill(self.problem)):
            return []
        price = tables.usd_per_hour[shape]
        pairs = [
            (first, second)
            for first, second in product(self._settings(stage).tolist(), repeat=2)
            if shape[first] != shape[second] and (price[first], -first) > (price[second], -second)
        ]
        dear, cheap = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        top = self._most(stage, np.stack([cheap, np.ones_like(cheap)], axis=1), dear)
        rows: list[tuple[Pick, int]] = []
        for (first, second), most in zip(pairs, top.tolist(), strict=True):
            if most:
                sizes = np.unique(np.rint(np.linspace(1, most, min(CANDIDATES, most))).astype(np.int64)).tolist()
                rows += [((first, size), second) for size in sizes]
        return rows

    def _propose(self, place: int, rows: Sequence[tuple[Pick, int]]) -> None:
        """Add what keeps up to what waits, by how busy it would be; rows: first pool, second setting."""
        if not rows:
            return
        stage = self.stages[place]
        firsts, seconds = np.array([first for first, _ in rows]), np.array([second for _, second in rows])
        most = self._most(stage, firsts, seconds)
        need = self.need * stage.route
        first, second = (need[firsts[:, 0]] / firsts[:, 1:], need[seconds] / np.maximum(most, 1)[:, None])
        keeps_up = (most > 0) & (balance(first, second) <= 1.0)
        busy = balance(first / self.usual[firsts[:, 0], None], second / self.usual[seconds, None])
        for at in np.flatnonzero(keeps_up).tolist():
            heapq.heappush(self.waiting, (float(busy[at]), place, *rows[at]))

    def _settings(self, stage: Stage) -> IntArray:
        """One or two settings of each shape of a stage that may be used and talk to all others.

        Of those of one shape that are known to be enough the one that they keep busiest; and the largest token budget
        of which a full step is within the TPOT: it harms nobody, and the more it takes the less others wait.
        """
        settings, tables = self.search.settings, self.search.instance.tables
        shape, usable = settings.shape, settings.role == stage.role
        if no_staged_prefill(self.problem) and stage.role == PREFILL:
            usable &= tables.pipeline[shape] == 1
        for pool in stage.others:
            if stage.role == PREFILL and pool.role is Role.DECODE:
                usable &= tables.talks[shape, pool.shape]
            if stage.role == DECODE and pool.role is Role.PREFILL:
                usable &= tables.talks[pool.shape, shape]
        harms = tables.full_base[shape, 0, settings.chunk] > float(self.search.instance.flows.tpot.min())
        by_budget = -settings.seqs, np.where(harms, settings.chunk, -1 - settings.chunk)
        best = []
        for order in (np.lexsort(by_budget), np.lexsort((*by_budget, -self.preferred))):
            able = order[usable[order]]
            best.append(able[np.unique(shape[able], return_index=True)[1]])
        return np.unique(np.concatenate(best))

    def _cheapest_apart(self, role: int) -> Pick | None:
        """The cheapest engines of a role that are known to be enough beside the best of partners; None without any."""
        tables, settings = self.search.instance.tables, self.search.settings
        enough = [
            (count * float(tables.usd_per_hour[settings.shape[setting]]), setting, count)
            for setting, (_, count) in sorted(self.search.pool_sizes.items())
            if count is not None and settings.role[setting] == role
        ]
        return min(enough)[1:] if enough else None

    def _most(self, stage: Stage, firsts: IntArray, seconds: IntArray) -> IntArray:
        """Engines of the second settings that cost less than the best fleet beside first pools and others, (rows,).

        firsts (rows, 2): settings and engines.
        """
        engine_gpus, spares = self.search.gpus_each, self.problem.constraints.spare_replicas
        other_gpus = engine_gpus[firsts[:, 0]] * (firsts[:, 1:] + spares)
        other_gpus += fleet_gpus(self.search.instance, Fleet(stage.others))
        top = CANDIDATES * self.search.least[seconds] + QUICK_CANDIDATES
        return most_engines(self.problem, other_gpus, engine_gpus[seconds], top, self.cost)

    # --- what is evaluated ------------------------------------------------------------------------------------------

    def _improve(self, stage: Stage, first: Pick, second: int) -> bool:
        """Take a first pool and the fewest engines of another setting that hold, if that costs less."""
        apart = takes_whole_lengths(self.problem, ROLES[stage.role])

        def fleet_with(count: int, *, whole: bool = apart) -> Fleet | None:
            order = self._by_length(stage, first[0], second, whole=whole)
            return self._fleet_at_cut(stage, (first, (second, count)), order)

        most = int(self._most(stage, np.array([first]), np.array([second]))[0])
        fleets = {most: fleet_with(most)} if most else {}
        if fleets.get(most) is None:
            return False

        def misses(count: int) -> bool:
            fleets[count] = fleet_with(count)
            return fleets[count] is None

        count = bisection(0, most, misses)[1]
        self.best = fleet_with(count, whole=True) or fleets[count]
        self.cost = math.inf if self.best is None else fleet_cost(self.search.instance, self.best)
        return True

    def _by_length(self, stage: Stage, first: int, second: int, *, whole: bool) -> Order:
        """Lengths of prompts from the end that suits the first pool; whole: cut between lengths only."""
        instance, shapes = self.search.instance, self.search.settings.shape
        isl, price = instance.flows.isl, instance.tables.usd_per_hour[shapes]
        short, need = isl < isl.mean(), [self.need[setting] * stage.route for setting in (first, second)]
        paid = [price[setting] * work for setting, work in zip((first, second), need, strict=True)]
        takes_short = paid[0][short].sum() * paid[1].sum() <= paid[1][short].sum() * paid[0].sum()
        rank = np.unique(isl if takes_short else -isl, return_inverse=True)[1]
        ahead, behind = (np.bincount(rank, weights=work) for work in need)
        return Order(rank, whole, np.append(0.0, np.cumsum(ahead)), np.append(np.cumsum(behind[::-1])[::-1], 0.0))

    def _fleet_at_cut(self, stage: Stage, picks: tuple[Pick, Pick], order: Order) -> Fleet | None:
        """The fleet with a cut between two pools at which it holds; None where none is."""
        counts = picks[0][1], picks[1][1]
        low, high = order.bracket(counts)
        for number in range(CANDIDATES):
            place = order.place((low, high), counts, balanced=number == 0) if low < high else None
            pools = None if place is None else self._pools(stage, picks, order, place)
            if place is None or pools is None or self.left <= 0 or self.search.late():
                return None
            first, second = self._overloaded(stage, picks, pools)
            if not first and not second:
                return self._fleet(stage, pools)
            if first and second:
                return None
            low, high = (low, place) if first else (place, high)
        return None

    def _pools(
        self, stage: Stage, picks: tuple[Pick, Pick], order: Order, place: float
    ) -> tuple[FleetPool, FleetPool] | None:
        """Both pools with the flows cut at a place; None if one of them would serve nothing."""
        share = np.clip(place - order.rank, 0.0, 1.0)
        first, second = stage.route * share, stage.route * (1.0 - share)
        if not first.any() or not second.any():
            return None
        return replace(self.search.pool(*picks[0]), route=first), replace(self.search.pool(*picks[1]), route=second)

    def _overloaded(
        self, stage: Stage, picks: tuple[Pick, Pick], pools: tuple[FleetPool, FleetPool]
    ) -> tuple[bool, bool]:
        """Which of the two pools should serve less; neither if the fleet holds."""
        self.left -= 1
        instance, fleet = self.search.instance, Fleet((*pools, *stage.others))
        first, second, *rest = (pool_state(instance, pool, 1.0) for pool in fleet.pools)
        if Evaluation(instance, fleet, (first, second, *rest)).holds:
            return False, False
        idle = [self.search.state(setting, 1, ALIKE) for setting, _ in picks]
        alone = [Evaluation(instance, fleet, (*pair, *rest)) for pair in ((first, idle[1]), (idle[0], second))]
        missing = [not misses.holds for misses in alone]
        if any(missing):
            return missing[0], missing[1]
        slack = [float((misses.attainment - class_goals(instance)).min()) for misses in alone]
        return slack[0] <= slack[1], slack[0] > slack[1]

    def _fleet(self, stage: Stage, pools: tuple[FleetPool, FleetPool]) -> Fleet | None:
        """The whole fleet, if its hand-overs are possible; else None."""
        instance = self.search.instance
        fleet = Fleet(with_names(instance, [*pools, *stage.others]))
        return fleet if can_hand_over(instance, fleet) and still_holds(instance, fleet) else None


def balance(first: FloatArray, second: FloatArray) -> FloatArray:
    """Busy share of two pools where both are as busy, however flows are split: the least that there is, (rows,).

    The first has the flows of comparative advantage. first, second (rows, flows): share of the time that each flow
    would keep a pool busy.

    Besides all of one flow the first takes x of the other: 0.2 + 0.6 x = 0.3 (1 - x).

    >>> balance(np.array([[0.2, 0.6]]), np.array([[0.6, 0.3]])).round(4)
    array([0.2667])
    """
    by = np.argsort(first / np.maximum(second, 1e-300), axis=1, kind="stable")
    nothing = np.zeros((first.shape[0], 1))
    before = np.hstack([nothing, np.cumsum(np.take_along_axis(first, by, axis=1), axis=1)])
    behind = np.hstack([np.cumsum(np.take_along_axis(second, by, axis=1)[:, ::-1], axis=1)[:, ::-1], nothing])
    lean = before - behind
    at = np.minimum((lean <= 0.0).sum(axis=1) - 1, first.shape[1] - 1)
    row = np.arange(first.shape[0])
    share = -lean[row, at] / np.maximum(lean[row, at + 1] - lean[row, at], 1e-300)
    return np.asarray(before[row, at] + share * (before[row, at + 1] - before[row, at]))


def cheaper_mixture(search: FleetSearch, fleet: Fleet, below: float) -> Fleet | None:
    """The cheapest mixture that holds and costs less than `below` [$/h]; None if there is none.

    fleet: a fleet that holds, whose pools may be mixed, or an empty one.
    """
    mixing = Mixing(search, below)
    mixing.start([fleet])
    mixing.run()
    return mixing.best


def or_mixed(search: FleetSearch, best: Fleet) -> Fleet:
    """The fleet, or a cheaper mixture."""
    mixture = cheaper_mixture(search, best, fleet_cost(search.instance, best) if best.pools else math.inf)
    return best if mixture is None else smallest_batches(search.instance, mixture)


def leanest(search: FleetSearch) -> Fleet:
    """The cheapest fleet of one pool or two, or a cheaper mixture; empty if none holds.

    Where SLO classes have pools of their own, the fleets of all classes together.
    """
    if not classes_apart(search.instance.problem):
        return or_mixed(search, unmixed(search))
    fleet = by_class(search.instance, lambda alone: leanest(evaluated(alone, search.late)))
    return fleet if fleet.pools and holds_at(search.instance, fleet) else Fleet(())


# --- pools for every SLO class --------------------------------------------------------------------------------------
# Nothing joins the classes but the limits on the whole fleet, so the classes are served in turn, each within what those
# before it left over. Without any limit the cheapest fleets of the classes are the cheapest fleet.


def by_class(instance: Instance, solve: Solve) -> Fleet:
    """A fleet for each class by `solve`, bought together; without pools where one class gets none.

    The classes are served in turn, and the other way round if that leaves too little for the last.
    """
    classes = range(len(instance.problem.slos))
    most = instance.problem.constraints.max_pools
    if most is not None and most < len(classes):
        return Fleet(())
    turns = (_in_turn(instance, solve, order) for order in (classes, classes[::-1]))
    fleets = (_together(instance, class_fleets) for class_fleets in turns if class_fleets)
    return next((fleet for fleet in fleets if keeps_limits(instance, fleet)), Fleet(()))


def _in_turn(instance: Instance, solve: Solve, order: Sequence[int]) -> Parts:
    """A fleet for each class, within what the classes before it left; empty if one class gets none."""
    class_fleets: list[tuple[int, Fleet]] = []
    for place, k in enumerate(order):
        fleet = solve(of_class(instance, k, _together(instance, class_fleets), later=len(order) - place - 1))
        if not fleet.pools:
            return []
        class_fleets.append((k, fleet))
    return class_fleets


def _together(instance: Instance, class_fleets: Parts) -> Fleet:
    """The fleets of classes as one, each pool with its shares of all flows."""
    pools: list[FleetPool] = []
    for k, fleet in class_fleets:
        members = instance.flows.slo == k
        for pool in fleet.pools:
            route = np.zeros(members.size)
            route[members] = pool.route
            pools.append(replace(pool, route=route))
    return Fleet(with_names(instance, pools))


def of_class(instance: Instance, k: int, earlier_fleet: Fleet, later: int) -> Instance:
    """The instance of one class alone, within what the fleets of other classes leave; `later` classes are to come."""
    problem, slo = instance.problem, instance.problem.slos[k]
    members = instance.flows.slo == k
    rate = problem.workload.request_rate * slo.share
    flows = instance.flows.take(members)
    flows = replace(flows, slo=np.zeros_like(flows.slo), share=flows.share / slo.share)
    tables = replace(instance.tables, **{name: getattr(instance.tables, name)[..., members] for name in TABLES_BY_FLOW})
    alone = replace(
        problem,
        slos=(replace(slo, share=1.0),),
        workload=replace(problem.workload, request_rate=rate),
        offers=_offers_left(instance, earlier_fleet),
        constraints=_limits_left(instance, earlier_fleet, later),
    )
    return replace(instance, problem=alone, flows=flows, tables=tables)


def _offers_left(instance: Instance, earlier_fleet: Fleet) -> tuple[Offer, ...]:
    used = fleet_gpus(instance, earlier_fleet)
    return tuple(
        replace(
            offer,
            billing=Billing.GPU,  # the classes share whole nodes
            owned=max(0, offer.owned - int(count)),
            inventory=None if offer.inventory is None else max(0, offer.inventory - max(0, int(count) - offer.owned)),
        )
        for offer, count in zip(instance.problem.offers, used, strict=True)
    )


def _limits_left(instance: Instance, earlier_fleet: Fleet, later: int) -> Constraints:
    """The limits on the whole fleet less what is taken; every later class needs a pool."""
    limits, gpus = instance.problem.constraints, fleet_gpus(instance, earlier_fleet)
    power = float(sum(offer.accelerator.tdp * n for offer, n in zip(instance.problem.offers, gpus, strict=True)))
    spent = fleet_cost(instance, earlier_fleet) if earlier_fleet.pools else 0.0
    return replace(
        limits,
        pools=Pools.SHARED,
        budget=None if limits.budget is None else max(limits.budget - spent, 0.0),
        power=None if limits.power is None else max(limits.power - power, 0.0),
        max_gpus=None if limits.max_gpus is None else max(limits.max_gpus - int(gpus.sum()), 0),
        max_pools=None if limits.max_pools is None else max(limits.max_pools - len(earlier_fleet.pools) - later, 0),
    )


# --- the most goodput ------------------------------------------------------------------------------------------------

BEYOND = (1.0 + NOTABLE, 1.0 + TOLERANCE)
"""Factors on what the best fleet serves with which one of mixed engines is looked for: the largest first, as what
serves a little more may be nothing to go on from."""

Serving = tuple[Fleet, float]
"""A fleet, and the largest multiple of the demand that it is known to serve."""


def best_serving(search: FleetSearch) -> Serving:
    """The best fleet within the limits by the objective, and what it serves; an empty fleet if there is none."""
    instance, best = search.instance, best_of_few_pools(search)
    if not best[0].pools:
        return best
    if _by_price(instance):
        sold = min(best[1], instance.problem.objective.max_volume)
        mixture = _mixed(search, best[0], sold, fleet_cost(instance, best[0]))
        return best if mixture is None else (mixture, max(sold, goodput_volume(instance, mixture)))
    waiting = list(BEYOND)
    while waiting and not search.late():
        more = best[1] * waiting.pop(0)
        mixture = _mixed(search, best[0], more, math.inf)
        if mixture is not None:
            best, waiting = (mixture, max(more, goodput_volume(instance, mixture))), list(BEYOND)
    return best


def best_of_few_pools(search: FleetSearch) -> Serving:
    """The best fleet of one pool or two, and what it serves; an empty one where none serves enough."""
    instance, objective = search.instance, search.instance.problem.objective
    by_price = _by_price(instance)
    best, value = (Fleet(()), 0.0), 0.0
    start = (objective.min_volume, objective.max_volume) if by_price else (0.0, math.inf)
    waiting = [(-math.inf, *start, math.inf)]  # less than the first, between the next two, which cost the last at least
    for _ in range(QUICK_CANDIDATES):
        most, low, high, least = heapq.heappop(waiting) if waiting else (0.0, 0.0, 0.0, 0.0)
        if -most <= value * (1.0 + ALIKE) or search.late():
            break
        volume = _between(low, high) if math.isfinite(most) or not by_price else low
        below = high / value / (1.0 + ALIKE) if by_price and value else math.inf  # what costs more has no more
        fleet = unmixed(FleetSearch.of(at_volume(instance, volume), search.settings, search.late), below)
        if fleet.pools:
            cost, served_volume = fleet_cost(instance, fleet), max(volume, goodput_volume(instance, fleet))
            worth = min(served_volume, high) / cost if by_price else served_volume
            best, value = ((fleet, served_volume), worth) if worth > value else (best, value)
            if served_volume < high:
                heapq.heappush(waiting, (-high / cost if by_price else -high, served_volume, high, cost))
        if low < volume:
            heapq.heappush(waiting, (-volume / least if by_price else -volume, low, volume, least))
    return best


def _between(low: float, high: float) -> float:
    """A volume within an interval of which an end may be open."""
    if math.isinf(high):
        return 2.0 * low or 1.0
    return math.sqrt(low * high) or high / 2.0  # above none, the geometric mean is none


def _by_price(instance: Instance) -> bool:
    return instance.problem.objective.goal is Goal.MAX_GOODPUT_PER_DOLLAR


def goodput_gap(search: FleetSearch, serving: Serving, seconds: float) -> float | None:
    """Gap between what a fleet reaches and the bound that no fleet within the limits exceeds [1]; None if unknown.

    seconds: time limit.
    """
    instance, settings, (fleet, serves) = search.instance, search.settings, serving
    if _by_price(instance):
        objective = instance.problem.objective
        cost = least_per_demand(at_volume(instance, objective.min_volume), settings)
        per_dollar = min(serves, objective.max_volume) / fleet_cost(instance, fleet)
        return None if cost is None else max(0.0, 1.0 - per_dollar * cost / objective.min_volume)
    top = most_volume(at_volume(instance, serves), settings, seconds)
    return None if top is None else max(0.0, 1.0 - 1.0 / top)


def _mixed(search: FleetSearch, fleet: Fleet, volume: float, below: float) -> Fleet | None:
    """A fleet that mixes engines in a stage of this one, or has colocated ones beside fewer of its own.

    It serves a volume, and costs less than `below` [$/h].
    """
    there = FleetSearch.of(at_volume(search.instance, volume), search.settings, search.late)
    cheapest_held(there, search.instance.problem, below)  # for which engines are enough apart
    return cheaper_mixture(there, fleet, below)
