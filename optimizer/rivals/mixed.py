"""Fleets that mix engines within a stage: two pools of other engines in the place of one, wherever that costs less.

Fleets of two kinds of engines in a stage are looked for by evaluation too: for each two engines, so many of the dearer
one, and as many of the other as cost less than the best fleet known. Those that do not keep up with the demand,
however it is parted (`keeping_up`), are left out, and the others are looked at in the order of how much busier they
would be than such engines usually bear; again with other orders of the lengths (`parting`), each of which counts as a
little busier: so the most hopeful are looked at in all orders before the looks go to those that have little hope.
Where the most of the other engines hold, the fewest that do are taken, as more engines never miss more. What is found
is mixed further at once, one of its pools at a time. Engines of different GPU types come first, then those of one
type, which save a part of an engine: much where there are few.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from costmodel.engine import Role
from optimizer.fleets.fleet import Fleet, fleet_gpus, gpu_cost, within_limits
from optimizer.fleets.pool import pool_key
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES
from search_spaces.problem import Problem
from search_spaces.targets import any_target

from .by_evaluation import NO_DEARER, SAME_COST, BoolArray, Evaluated, FloatArray, IntArray
from .parting import AGAIN, Order, Parting, Pick, Stage, by_limits

LOOKS = 120
"""Fleets that are evaluated in one search; each takes the states of two pools. At half as many fleets of six engines of
two types were 5 to 8 % dearer, and rarely found at more: at twice as many, none was cheaper."""
LOOKS_ALIKE = 60
"""The same where both are of one GPU type."""
WORTH = 0.02
"""Share of the cost that a pool more of the same GPU type must save [1]: it is more to run, and what saves less by a
better fit has no room left."""

SIZES = 8
"""Sizes of the pool of dearer engines that are tried first, of each two engines."""

PARTNERS = 2
"""Pools of the other role beside which a stage of a disaggregated fleet is mixed."""

Candidate = tuple[float, int, int, int, int, int, int]
"""How busy the pools would be, AGAIN times as much for each order before; which of `Parting.orders`; stage, setting and
engines of the first pool, setting of the second, step of sizes."""


@dataclass(slots=True, eq=False)
class Mixing:
    """A search for mixed fleets that cost less than the best so far.

    allowed (settings,): which engines may be used; cost: of the best fleet [$/h]; alike: whether those of a stage are
    of one offer, or of different ones; best: the cheapest that was found.
    """

    parting: Parting
    problem: Problem
    allowed: BoolArray
    cost: float
    alike: bool = False
    best: Fleet | None = None

    def partnered(self) -> list[Stage]:
        """A colocated stage by itself, and one of each role beside the cheapest pools of the other that are enough."""
        known, roles = self.parting.known, self.parting.known.settings.role
        every = np.ones(known.instance.flows.isl.size)
        stages = [Stage(COLOCATED, every)] if (roles == COLOCATED).any() else []
        for role, other in ((PREFILL, DECODE), (DECODE, PREFILL)):
            partners = cheapest_apart(known, other, self.allowed)
            stages += [Stage(role, every, (known.pool(*pick),)) for pick in partners]
        return stages

    def search(self, stages: Iterable[Stage]) -> None:
        """Look for cheaper fleets with two pools in one of these stages, or in one of the fleets that are found."""
        known, every, seen = self.parting.known, list[Stage](), set[object]()
        waiting: list[Candidate] = []

        def wait(stages: Iterable[Stage]) -> None:
            for stage in stages:
                if (key := _key(stage)) not in seen:
                    seen.add(key)
                    waiting.extend(self._candidates(len(every), stage))
                    every.append(stage)
            heapq.heapify(waiting)

        wait(stages)
        while waiting and self.parting.left > 0 and not known.late():
            busy, number, place, first, size, second, step = heapq.heappop(waiting)
            orders = self.parting.orders(every[place], (first,), (second,))
            if self._improved(every[place], (first, size), second, orders[number]):
                near = [other for other in (size - step // 2, size + step // 2) if other > 0 and step > 1]
                for one in self._ranked(place, every[place], [(first, other, second, step // 2) for other in near]):
                    heapq.heappush(waiting, one)
                wait(stages_of(self.best) if self.best is not None else ())
            if number + 1 < len(orders):
                heapq.heappush(waiting, (AGAIN * busy, number + 1, place, first, size, second, step))

    def _improved(self, stage: Stage, pick: Pick, other: int, order: Order) -> bool:
        """Take so many engines of one setting and the fewest of another that hold, if that costs less."""
        rows = np.array([[*pick, other]])
        most = int(self._most(stage, rows)[0])
        if most == 0 or self._busy(stage, rows, np.array([most]))[0] > 1.0:
            return False
        found = self.parting.parted(stage, ((pick,), ((other, most),)), order)
        if found is None:
            return False
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            fewer = self.parting.parted(stage, ((pick,), ((other, middle),)), order)
            low, high, found = (middle, high, found) if fewer is None else (low, middle, fewer)
        routable = self.parting.thresholds(stage, (pick[0],), (other,))
        found = self.parting.parted(stage, ((pick,), ((other, high),)), routable) or found
        self.best, self.cost = found, float(gpu_cost(self.problem, fleet_gpus(self.parting.known.instance, found)))
        return True

    def _candidates(self, place: int, stage: Stage) -> Iterable[Candidate]:
        """Sizes of the pool of the dearer of each two engines."""
        mine = ROLES[stage.role]
        if not self.problem.constraints.fits([mine, mine, *(pool.role for pool in stage.others)]):
            return []
        stages = self.parting.known.instance.tables.pipeline
        if self.no_pipelines and any(pool.role is Role.PREFILL and stages[pool.shape] > 1 for pool in stage.others):
            return []
        rows = []
        for first, second, top in self._pairs(stage):
            sizes = np.unique(np.rint(np.linspace(1, top, min(SIZES, top))).astype(np.int64)).tolist()
            rows += [(first, size, second, max(1, -(-top // SIZES))) for size in sizes]
        return self._ranked(place, stage, rows)

    def _ranked(self, place: int, stage: Stage, rows: Sequence[tuple[int, int, int, int]]) -> list[Candidate]:
        """The candidates that keep up, with how busy they would be; rows: without stage."""
        if not rows:
            return []
        table = np.array(rows)
        most = self._most(stage, table[:, :3])
        good = most > 0
        good[good] = self._busy(stage, table[good, :3], most[good]) <= 1.0
        table, most = table[good], most[good]
        busy = self._strained(stage, table[:, :3], most) if most.size else np.zeros(0)
        return [
            (share, 0, place, first, size, second, step)
            for share, (first, size, second, step) in zip(busy.tolist(), table.tolist(), strict=True)
        ]

    def _pairs(self, stage: Stage) -> list[tuple[int, int, int]]:
        """Each two engines that may be mixed, the dearer one first, and how many of it can be paid for beside one."""
        settings, tables = self.parting.known.settings, self.parting.known.instance.tables
        some = self.settings(stage)
        offer, price = tables.offer[settings.shape], tables.usd_per_hour[settings.shape]
        pairs = [
            (int(one), int(other))
            for one in some
            for other in some
            if bool(offer[one] == offer[other]) is self.alike
            and settings.shape[one] != settings.shape[other]
            and (price[one], -one) > (price[other], -other)
        ]
        if not pairs:
            return []
        table = np.array(pairs)
        top = self._most(stage, np.stack([table[:, 1], np.ones(len(pairs), dtype=np.int64), table[:, 0]], axis=1))
        return [(one, other, count) for (one, other), count in zip(pairs, top.tolist(), strict=True) if count]

    @property
    def no_pipelines(self) -> bool:
        """Whether no target takes hand-overs from pipelines behind a router of several pools of a role.

        For a target that is stated, the pairs that can hand over say so.
        """
        engine, free = self.problem.engine, self.problem.constraints.gateway is None
        return not free and self.problem.target is None and engine not in any_target(engine).stage_by_stage

    def settings(self, stage: Stage) -> IntArray:
        """Settings of a stage that may be used and talk to all others: of each shape one, or one for each class.

        An engine that does both may serve a class of lax limits alone, and then bears a larger token budget.
        """
        known, tables = self.parting.known, self.parting.known.instance.tables
        shape, role = known.settings.shape, ROLES[stage.role]
        good = self.allowed & (known.settings.role == stage.role)
        if self.no_pipelines and role is Role.PREFILL:
            good &= tables.pipeline[shape] == 1
        for pool in stage.others:
            if role is Role.PREFILL and pool.role is Role.DECODE:
                good &= tables.talks[shape, pool.shape]
            if role is Role.DECODE and pool.role is Role.PREFILL:
                good &= tables.talks[pool.shape, shape]
        some = np.flatnonzero(good).tolist()
        best = _first_of_each(shape, sorted(some, key=self._preference))
        if stage.role == COLOCATED:
            for mine in by_limits(known.instance.flows)[1:]:
                limit = float(known.instance.flows.tpot[mine].min())
                best |= _first_of_each(shape, sorted(some, key=partial(self._harmless, limit=limit)))
        return np.array(sorted(best), dtype=np.int64)

    def _preference(self, setting: int) -> tuple[float, float, float]:
        """Of one shape: settings known to be enough, the busiest first; then the largest token budget within the TPOT.

        A step full of prompts that is within every TPOT limit harms nobody, and the more it takes the less others wait.
        """
        known = self.parting.known
        unknown = known.known.get(setting, (0, None))[1] is None
        busy = 0.0 if unknown else self.parting.usual(setting)
        return float(unknown), -busy, self._harmless(setting, float(known.instance.flows.tpot.min()))

    def _harmless(self, setting: int, limit: float) -> float:
        """Place by token budget: the largest first of which a full step is within a limit, the largest of all last."""
        tables, one = self.parting.known.instance.tables, self.parting.known.settings
        chunk = int(one.chunk[setting])
        harms = bool(tables.full_base[one.shape[setting], 0, chunk] > limit)
        return float(chunk) if harms else -1.0 - chunk

    def _most(self, stage: Stage, rows: IntArray) -> IntArray:
        """Engines of the second setting that cost less than the best fleet beside the first and all others, (rows,).

        Or as much, where that fleet is less simple.

        rows (rows, 3): first setting, engines of it, second setting.
        """
        known = self.parting.known
        mine, spares = known.gpus_each(), self.problem.constraints.spare_replicas
        fixed = fleet_gpus(known.instance, Fleet(stage.others)) + mine[rows[:, 0]] * (rows[:, 1:2] + spares)
        cost = self.cost * (NO_DEARER if self._simpler(stage) else 1.0)
        return most_beside(known, self.problem, fixed, rows[:, 2], cost)

    def _simpler(self, stage: Stage) -> bool:
        """Whether a stage of two pools and all others are fewer pools of the same roles than the best fleet has."""
        best = self.best.pools if self.best is not None else ()
        roles = {ROLES[stage.role], *(pool.role for pool in stage.others)}
        return len(stage.others) + 2 < len(best) and roles == {pool.role for pool in best}

    def _busy(self, stage: Stage, rows: IntArray, counts: IntArray) -> FloatArray:
        """The least that the busier of two pools can be busy, (rows,) [1]; counts (rows,): of the second setting."""
        need = self.parting.need * stage.route
        one, other = need[rows[:, 0]], need[rows[:, 2]]
        return balance(one / rows[:, 1:2], other / counts[:, None], one / np.maximum(other, 1e-300))

    def _strained(self, stage: Stage, rows: IntArray, counts: IntArray) -> FloatArray:
        """The same as a multiple of what such engines can usually bear, each flow where it can be served in time."""
        settings, place = np.unique(rows[:, ::2], return_inverse=True)
        first, second = place.reshape(-1, 2).T
        need = self.parting.need[settings] * stage.route
        worse = need * np.stack([self.parting.worse(stage, int(setting)) for setting in settings])
        usual = np.array([self.parting.usual(int(setting)) for setting in settings])[:, None]
        sizes = rows[:, 1:2] * usual[first], counts[:, None] * usual[second]
        return balance(
            need[first] / sizes[0], need[second] / sizes[1], worse[first] / np.maximum(worse[second], 1e-300)
        )


def _first_of_each(shape: IntArray, settings: Sequence[int]) -> set[int]:
    """The first of the settings of each shape."""
    best: dict[int, int] = {}
    for setting in settings:
        best.setdefault(int(shape[setting]), setting)
    return set(best.values())


def cheapest_apart(known: Evaluated, role: int, allowed: BoolArray) -> list[Pick]:
    """The cheapest engines of a role that are known to be enough beside the best of partners, PARTNERS at most."""
    tables, one = known.instance.tables, known.settings
    enough = [
        (count * float(tables.usd_per_hour[one.shape[setting]]), setting, count)
        for setting, (_, count) in sorted(known.known.items())
        if count is not None and one.role[setting] == role and allowed[setting]
    ]
    return [(setting, count) for _, setting, count in sorted(enough)[:PARTNERS]]


def most_beside(
    known: Evaluated, problem: Problem, fixed: FloatArray | IntArray, settings: IntArray, below: float
) -> IntArray:
    """Engines of a setting that the limits allow beside other GPUs for less than `below` [$/h], (rows,).

    fixed (rows, offers): the other GPUs; settings (rows,): of the engines, which have spares too.
    """
    each, spares = known.gpus_each()[settings], problem.constraints.spare_replicas
    low = np.zeros(settings.size, dtype=np.int64)
    high = np.array([known.most(int(setting)) + 1 for setting in settings], dtype=np.int64)
    while (high - low > 1).any():
        middle = np.maximum((low + high) // 2, 1)
        gpus = fixed + each * (middle + spares)[:, None]
        fits = within_limits(problem, gpus) & (gpu_cost(problem, gpus) < below * (1.0 - SAME_COST))
        low, high = np.where(fits & (high > middle), middle, low), np.where(fits, high, middle)
    return low


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
    part = -lean[row, at] / np.maximum(lean[row, at + 1] - lean[row, at], 1e-300)
    return np.asarray(before[row, at] + part * (before[row, at + 1] - before[row, at]))


def stages_of(fleet: Fleet) -> list[Stage]:
    """Each pool of a fleet that two could take the place of, and each two in one role that could part anew."""
    stages = []
    for size in (1, 2):
        for some in combinations(fleet.pools, size):
            if len({pool.role for pool in some}) == 1:
                others = tuple(pool for pool in fleet.pools if not any(pool is one for one in some))
                route = np.asarray(sum(pool.route for pool in some))
                stages.append(Stage(ROLES.index(some[0].role), route, others))
    return stages


def _key(stage: Stage) -> tuple[object, ...]:
    """What two stages share that are the same."""
    return stage.role, np.round(stage.route, 9).tobytes(), tuple(pool_key(pool) for pool in stage.others)


def cheaper_mix(
    known: Evaluated, problem: Problem, starts: Sequence[Fleet], below: float, allowed: BoolArray | None = None
) -> Fleet | None:
    """The cheapest fleet found that mixes engines within a stage, holds, and costs less than `below` [$/h]; or None.

    problem: the instance's own, or one that differs in prices and limits alone; starts: fleets that hold, whose pools
    may be mixed; allowed (settings,): which engines may be used.
    """
    free = np.ones(known.settings.size, dtype=np.bool_) if allowed is None else allowed
    best: Fleet | None = None
    for alike, looks in ((False, LOOKS), (True, LOOKS_ALIKE)):
        ceiling = below * (1.0 - WORTH) if alike else below
        mixing = Mixing(Parting(known, looks), problem, free, ceiling, alike)
        fleets = starts if best is None else (best, *starts)
        stages = [*mixing.partnered(), *(stage for fleet in fleets for stage in stages_of(fleet))]
        mixing.search(stages)
        if mixing.best is not None:
            best, below = mixing.best, mixing.cost
    return best
