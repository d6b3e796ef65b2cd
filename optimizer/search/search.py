"""Best-first search by formula: the cheapest fleet of one colocated pool, or of a prefill and a decode pool.

A fleet *holds* if every SLO class reaches its goal when the fleet is evaluated. Fleets are evaluated in the order of
their cost, starting from the fewest engines that keep up with the demand (`keeping_up`). More engines in a pool never
make it miss more, so the first fleet that holds is the cheapest of one pool or a pair. This covers pools of up to
`FleetSearch.most` engines, unless MOST_LOOKS or the time limit ends the search (`FleetSearch.cut`). A fleet of more
pools may be cheaper still: `mixtures` searches for these, and the floor (`bound`) bounds them all.

Fleets of equal cost are ranked by these rules (`preferred`), in this order:

1. some target of the engine can route it;
2. no pipelines: their times are the hardest to predict, and not every target hands over from their stages;
3. it still keeps up with the demand, late or not, with one replica fewer in any pool;
4. it holds on slow GPUs too;
5. the most room for more load; then the fewest pools.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.engine import Role
from costmodel.first_token import Ttft, idle_ttft
from optimizer.fleets.evaluate import (
    Evaluation,
    class_attainment,
    class_goals,
    goodput_volume,
    holds_at,
    keeps_goals,
    pool_headroom,
)
from optimizer.fleets.fleet import (
    Fleet,
    FleetPool,
    bisection,
    fleet_cost,
    gets_whole,
    gpu_cost,
    prefill_seqs,
    within_limits,
)
from optimizer.fleets.pool import PoolState, pool_state
from optimizer.loads.effort import Late, never
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES, Instance
from optimizer.plans.records import ALIKE, CANDIDATES, MOST_LOOKS, NO_DEARER, QUICK_CANDIDATES, ROUNDING, TOLERANCE
from search_spaces.problem import Billing, Constraints, Objective, Problem, any_target

from .settings import EngineSettings, engine_gpus, keeping_up, late_first_tokens, late_tokens, make_settings

NEAR = 0.7
"""A fleet is worth a simulation if it reaches this share of every goal by formula [1]: the formulas are at times off
by as much."""

Picks = tuple[tuple[int, int], ...]
"""A fleet as (setting, engines) of each pool."""
Engines = tuple[tuple[object, ...], tuple[int, ...]]
"""Role, shape and chunk of the engines of each pool, and how many there are."""


def engines_of(instance: Instance, fleet: Fleet) -> Engines:
    """The engines of a fleet, regardless of their batch limits."""
    tables, pools = instance.tables, fleet.pools
    kind = tuple((pool.role, tables.shapes[pool.shape], float(tables.chunks[pool.chunk])) for pool in pools)
    return kind, tuple(pool.replicas for pool in pools)


def is_refuted(engines: Engines, misses: Sequence[Engines]) -> bool:
    """Whether a refuted fleet has at least as many of the same engines in every pool."""
    return any(engines[0] == kind and all(map(int.__le__, engines[1], most)) for kind, most in misses)


@dataclass(frozen=True, slots=True, eq=False)
class FleetSearch:
    """The search over fleets whose pools each serve all of their stage, with what is known of them so far.

    settings: of the engines; least (settings,): fewest engines that keep up with the demand; gpus_each (settings,
    offers): GPUs of each offer that one engine takes; hopeless (settings,): those with which too many requests are late
    even on idle engines; late: whether no more fleets are to be looked at; pool_sizes: for each setting, a number of
    engines that is too few, and one that is enough if any is; reached: share of its goal that the worst class of a
    fleet reaches [1]; spoiled: what `spoiled_by_limit` says of a setting and a number of engines; misses: fleets that
    were refuted, which do not hold, nor those that have no more of the same engines in any pool; cut: what ended a
    search before all fleets that it might have found were looked at, `looks` or `time`.
    """

    instance: Instance
    settings: EngineSettings
    least: IntArray
    gpus_each: FloatArray
    hopeless: BoolArray
    late: Late = never
    pool_sizes: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    reached: dict[Picks, float] = field(default_factory=dict)
    spoiled: dict[tuple[int, int], bool] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    misses: tuple[Engines, ...] = ()

    @classmethod
    def of(cls, instance: Instance, settings: EngineSettings, late: Late = never) -> FleetSearch:
        """A search in which nothing is evaluated yet."""
        need = keeping_up(instance, settings) @ instance.flows.rate
        least = np.maximum(np.ceil(np.minimum(need, 1e9) - 1e-9), 1.0).astype(np.int64)
        late_share = np.maximum(late_first_tokens(instance, settings), late_tokens(instance, settings, 0.0))
        miss_limit = 1.0 - class_goals(instance) + ROUNDING
        hopeless = np.any(class_attainment(instance, late_share) > miss_limit, axis=1)
        return cls(instance, settings, least, engine_gpus(instance, settings), hopeless, late)

    def without(self, misses: Sequence[Engines]) -> FleetSearch:
        """The search without refuted fleets; it keeps the states of pools."""
        return replace(self, pool_sizes={}, reached={}, misses=tuple(misses)) if misses else self

    def pool(self, setting: int, engines: int) -> FleetPool:
        """A pool of this many engines of a setting, which serves all of its stage."""
        settings, route = self.settings, np.ones(self.instance.flows.isl.size)
        role, shape = ROLES[int(settings.role[setting])], int(settings.shape[setting])
        seqs, chunk = int(settings.seqs[setting]), int(settings.chunk[setting])
        seqs = prefill_seqs(self.instance, shape, chunk) if role is Role.PREFILL else seqs
        counts = engines, self.instance.problem.constraints.spare_replicas
        return FleetPool(f"{role.value}-1", role, shape, seqs, chunk, *counts, route)

    def fleet(self, picks: Picks) -> Fleet:
        """The fleet of these pools."""
        return Fleet(tuple(self.pool(*pick) for pick in picks))

    def state(self, setting: int, engines: int, volume: float = 1.0) -> PoolState:
        """The state of a pool under `volume` times the whole demand."""
        return pool_state(self.instance, self.pool(setting, engines), volume)

    def holds(self, picks: Picks) -> bool:
        """Whether a fleet meets every goal by formula, and is not refuted."""
        if self.misses and is_refuted(engines_of(self.instance, self.fleet(picks)), self.misses):
            return False
        if picks not in self.reached:
            states = tuple(self.state(*pick) for pick in picks)
            self.reached[picks] = Evaluation(self.instance, self.fleet(picks), states).goal_share
        return self.reached[picks] >= 1.0

    def enough(self, setting: int, most: int) -> int | None:
        """The fewest engines, up to `most`, with which a pool is `able`; None if none are."""
        low, high = self.pool_sizes.get(setting, (int(self.least[setting]) - 1, None))
        if most <= low or self.hopeless[setting]:
            return None
        if self.settings.role[setting] == COLOCATED and (high is None or high > most):
            if not self.able(setting, most):
                self.pool_sizes[setting] = (most, high)
                return None
            high = most
        step = 1  # for mostly those are enough that keep up, or one more
        while high is None or high - low > 1:
            if high is None and low >= most:
                self.pool_sizes[setting] = (low, None)
                return None
            middle = min(low + step, most if high is None else (low + high) // 2)
            low, high, step = (low, middle, step) if self.able(setting, middle) else (middle, high, 2 * step)
        self.pool_sizes[setting] = (low, high)
        return high if high <= most else None

    def spoiled_by_limit(self, setting: int, engines: int) -> bool:
        """Whether a smaller batch limit may make a colocated pool hold that misses.

        It leaves the memory of its logits to the KV cache, and its full batches are faster. The smallest limit that
        keeps up is the best in both, but for the wait for a seat, which is left out.
        """
        if engines < self.least[setting]:
            return False
        if (setting, engines) not in self.spoiled:
            instance, pool, state = self.instance, self.pool(setting, engines), self.state(setting, engines)
            roomy = state if state.memory < 1.0 else pool_state(instance, replace(pool, seqs=0), 1.0)
            fewest = int(np.searchsorted(instance.tables.seqs, roomy.running))
            smallest = pool_state(instance, replace(pool, seqs=min(fewest, pool.seqs)), 1.0)
            best = Evaluation(instance, Fleet((pool,)), (replace(smallest, wait=roomy.wait),))
            self.spoiled[setting, engines] = best.holds
        return self.spoiled[setting, engines]

    def cut_short(self, looks: int = 0) -> bool:
        """Whether looks or time are up; a search that ends so has not seen all, which is kept in `cut`."""
        why = ["looks"] * (looks >= MOST_LOOKS) + ["time"] * self.late()
        self.cut.update(why)
        return bool(why)

    def most(self, setting: int) -> int:
        """The most engines of a setting that are tried: if that many still miss, more would not help."""
        return CANDIDATES * int(self.least[setting]) + QUICK_CANDIDATES

    def able(self, setting: int, engines: int) -> bool:
        """Whether a pool meets the goals beside an ideal partner, which is never late."""
        role = int(self.settings.role[setting])
        if self.hopeless[setting]:
            return False
        if role == COLOCATED:
            return self.holds(((setting, engines),))
        state, instance = self.state(setting, engines), self.instance
        if not state.stable:
            return False
        if role == DECODE:
            return Evaluation(instance, self.fleet(((setting, engines),)), (state,)).holds
        tables, shape = instance.tables, int(self.settings.shape[setting])
        assert state.wait is not None  # noqa: S101 - prompts wait
        transfer = tables.kv_transferred[shape] / tables.link[shape]
        ttft = Ttft(idle_ttft(instance.policy, state.latency, transfer), state.wait)
        return keeps_goals(instance, class_attainment(instance, 1.0 - ttft.exceeds(instance.flows.ttft)))


def with_near_fleets(search: FleetSearch, fleet: Fleet) -> tuple[Fleet, ...]:
    """A fleet, then fleets within the limits that may replace it if it misses in simulation.

    Those of the same cost that hold by formula too, then cheaper ones that come near every goal (NEAR), the nearest
    first; QUICK_CANDIDATES in all. Of fleets that differ in their settings alone, or by about TOLERANCE in the replicas
    of a pool, there is one: the simulations try its neighbors.
    """
    cost = fleet_cost(search.instance, fleet)
    near = sorted((-share, picks) for picks, share in search.reached.items() if share >= NEAR)
    prices = {picks: _price(search, search.instance.problem, picks) for _, picks in near}
    equal = [picks for share, picks in near if share <= -1.0 and prices[picks] <= cost * NO_DEARER]
    cheaper = [picks for share, picks in near if share > -1.0 and prices[picks] < cost / NO_DEARER]
    purchases: dict[tuple[object, ...], Fleet] = {}
    for rival in chain([fleet], map(search.fleet, [*equal, *cheaper])):
        sizes = [(pool.role, pool.shape, round(math.log(pool.replicas) / TOLERANCE)) for pool in rival.pools]
        purchases.setdefault(tuple(sizes), rival)
        if len(purchases) > QUICK_CANDIDATES:
            break
    return tuple(purchases.values())


def cheapest_held(
    search: FleetSearch, problem: Problem, below: float = np.inf, usable: BoolArray | None = None
) -> tuple[Picks, float] | None:
    """The cheapest fleet of one or two pools that holds, within the limits and below a cost, and its cost [$/h].

    problem: the instance's own, or one that differs in prices and limits alone; usable (settings,): which may be used.
    Of fleets that cost the same, one that survives the loss of a replica and has the most room (`preferred`).
    """
    free = np.ones(search.settings.size, dtype=np.bool_) if usable is None else usable
    candidates = _cheapest_pairs(search, problem, below, free)
    most = min((cost * NO_DEARER for _, cost in candidates), default=below)
    candidates += _cheapest_alone(search, problem, most, free)
    if not candidates:
        return None
    least = min(cost for _, cost in candidates)
    cheapest = [picks for picks, cost in candidates if cost <= least * (1.0 + ROUNDING)]
    offers, shapes = search.instance.problem.offers, search.instance.tables.offer[search.settings.shape]
    cheapest.sort(key=lambda picks: ([offers[shapes[setting]].accelerator.name for setting, _ in picks], picks))
    fleets = [search.fleet(picks) for picks in cheapest]
    best = preferred(search.instance, fleets)
    picks = next(picks for picks, fleet in zip(cheapest, fleets, strict=True) if fleet is best)
    return picks, _price(search, problem, picks)


def _cheapest_pairs(search: FleetSearch, problem: Problem, below: float, free: BoolArray) -> list[tuple[Picks, float]]:
    """All fleets of least cost with a prefill and a decode pool, by best-first search over ranges of decode engines.

    An entry of the queue is a fleet that holds, or a range of decode engines, up to `most`, with a lower bound of its
    cost. Of a range, the fewest prefill engines beside its fewest decode engines are searched. The rest of the range
    joins the queue in two halves: its lower bound has the prefill engines that hold beside the most decode engines.
    """
    waiting = [(cost, picks, search.most(picks[1][0])) for cost, picks in _pairs(search, problem, below, free)]
    heapq.heapify(waiting)
    cheapest: list[tuple[Picks, float]] = []

    def wait(picks: Picks, most: int) -> float:
        price = _price(search, problem, picks)
        if price < below * (1.0 - ROUNDING):
            heapq.heappush(waiting, (price, picks, most))
        return price

    for looks in range(MOST_LOOKS + 1):
        if not waiting or waiting[0][0] >= below * (1.0 - ROUNDING) or search.cut_short(looks):
            break
        cost, picks, most = heapq.heappop(waiting)
        if not most:
            cheapest.append((picks, cost))
            continue
        enough = [search.enough(setting, search.most(setting)) for setting, _ in picks]
        enough_picks = tuple((pick[0], max(pick[1], count or 0)) for pick, count in zip(picks, enough, strict=True))
        if None in enough:
            continue
        if enough_picks != picks:
            wait(enough_picks, most)
            continue
        prefill, decode = picks
        count = _fewest_beside(search, prefill, decode, _most_beside(search, problem, prefill[0], decode, below))
        if count is not None:
            below = min(below, wait(((prefill[0], count), decode), 0) * NO_DEARER)
        for bounds in _beyond(search, problem, picks, most, below):
            wait(*bounds)
    return cheapest


def _beyond(
    search: FleetSearch, problem: Problem, picks: Picks, most: int, below: float
) -> Iterator[tuple[Picks, int]]:
    """The fleets with more decode engines, up to `most`, as two ranges: the smallest fleet and top number of each.

    No range where no affordable number of prefill engines holds even beside the most decode engines.
    """
    prefill, (setting, decode) = picks
    fewest, most = decode + 1, min(most, _most_beside(search, problem, setting, prefill, below))
    affordable = _most_beside(search, problem, prefill[0], (setting, fewest), below)
    count = _fewest_beside(search, prefill, (setting, most), affordable) if most >= fewest else None
    middle = (fewest + most) // 2
    for few, many in ((fewest, middle), (middle + 1, most)):
        if count is not None and few <= many:
            yield ((prefill[0], count), (setting, few)), many


def _most_beside(search: FleetSearch, problem: Problem, setting: int, pool: tuple[int, int], below: float) -> int:
    """The most engines of a setting that are tried beside a pool, and cost less than `below` [$/h] with it."""
    pool_gpus = search.gpus_each[[pool[0]]] * (pool[1] + problem.constraints.spare_replicas)
    return int(
        most_engines(problem, pool_gpus, search.gpus_each[[setting]], np.array([search.most(setting)]), below)[0]
    )


def _fewest_beside(search: FleetSearch, prefill: tuple[int, int], decode: tuple[int, int], most: int) -> int | None:
    """The fewest prefill engines, at least those picked, that hold beside the decode engines; None if `most` miss."""
    setting, least = prefill

    def misses(count: int) -> bool:
        return not search.holds(((setting, count), decode))

    return None if most < least or misses(most) else bisection(least - 1, most, misses)[1]


def most_engines(
    problem: Problem,
    other_gpus: FloatArray | IntArray,
    engine_gpus: FloatArray,
    top: IntArray,
    below: FloatArray | float = np.inf,
) -> IntArray:
    """The most engines, up to `top`, that the limits allow beside other GPUs for less than `below` [$/h], (rows,).

    other_gpus, engine_gpus (rows, offers): GPUs of the other pools, and of one engine; its pool has spares too.
    """
    low, high, spares = np.zeros(top.size, dtype=np.int64), top + 1, problem.constraints.spare_replicas
    while (high - low > 1).any():
        middle = np.maximum((low + high) // 2, 1)
        gpus = other_gpus + engine_gpus * (middle + spares)[:, None]
        fits = within_limits(problem, gpus) & (gpu_cost(problem, gpus) < below * (1.0 - ROUNDING))
        low, high = np.where(fits & (high > middle), middle, low), np.where(fits, high, middle)
    return low


def _cheapest_alone(search: FleetSearch, problem: Problem, below: float, free: BoolArray) -> list[tuple[Picks, float]]:
    """All fleets of least cost with one colocated pool: of each setting the fewest engines that hold.

    Of engines that differ in their batch limits alone the largest limit comes first; a smaller one is of use only where
    that makes long steps shorter or leaves more memory to the KV cache. So it is looked at only for fewer engines, and
    only where TPOT or full memory was what was missed.
    """
    cheapest: list[tuple[Picks, float]] = []
    settings, fewest = search.settings, dict[tuple[int, int], tuple[int, int]]()
    alone = np.flatnonzero(free & (settings.role == COLOCATED))
    engine_gpus, engines = search.gpus_each[alone], search.least[alone]
    gpus = engine_gpus * (engines + problem.constraints.spare_replicas)[:, None]
    least = np.where(within_limits(problem, gpus), gpu_cost(problem, gpus), np.inf)
    affordable = most_engines(problem, 0.0 * engine_gpus, engine_gpus, CANDIDATES * engines + QUICK_CANDIDATES, below)
    for place in np.lexsort((-settings.seqs[alone], least)):
        setting, most = int(alone[place]), int(affordable[place])
        alike = int(settings.shape[setting]), int(settings.chunk[setting])
        if least[place] >= below * (1.0 - ROUNDING) or search.cut_short():
            break
        first, enough = fewest.get(alike, (setting, most + 1))
        most = min(most, enough - 1)
        if first != setting and not search.spoiled_by_limit(first, most):
            continue
        count = search.enough(setting, most)
        fewest[alike] = first, most + 1 if count is None else count
        if count is not None:
            picks = ((setting, count),)
            cheapest.append((picks, _price(search, problem, picks)))
            if cheapest[-1][1] * NO_DEARER < below:
                below = cheapest[-1][1] * NO_DEARER
                affordable = most_engines(
                    problem, 0.0 * engine_gpus, engine_gpus, CANDIDATES * engines + QUICK_CANDIDATES, below
                )
    return cheapest


def _price(search: FleetSearch, problem: Problem, picks: Picks) -> float:
    """Cost of a fleet [$/h], infinite where the limits forbid it."""
    spares = problem.constraints.spare_replicas
    gpus = np.sum([search.gpus_each[setting] * (count + spares) for setting, count in picks], axis=0)
    return float(gpu_cost(problem, gpus)) if bool(within_limits(problem, gpus)) else np.inf


def _talking(search: FleetSearch, problem: Problem, free: BoolArray) -> tuple[IntArray, IntArray]:
    """All pairs of a prefill and a decode setting that can hand over; none if the limits forbid two pools."""
    settings, talks = search.settings, search.instance.tables.talks
    ends = [np.flatnonzero(free & (settings.role == role)) for role in (PREFILL, DECODE)]
    may_pair = problem.constraints.fits((Role.PREFILL, Role.DECODE))
    first, second = np.nonzero(may_pair & talks[np.ix_(settings.shape[ends[0]], settings.shape[ends[1]])])
    return ends[0][first], ends[1][second]


def _pairs(search: FleetSearch, problem: Problem, below: float, free: BoolArray) -> list[tuple[float, Picks]]:
    """Every pair of pools with the fewest engines that keep up, within the limits and below a cost: cost, pools."""
    least, (first, second) = search.least, _talking(search, problem, free)
    gpus = search.gpus_each * (least + problem.constraints.spare_replicas)[:, None]
    need = gpus[first] + gpus[second]
    cost = gpu_cost(problem, need)
    cheaper = within_limits(problem, need) & (cost < below * (1.0 - ROUNDING))
    pools = (zip(end[cheaper].tolist(), least[end[cheaper]].tolist(), strict=True) for end in (first, second))
    return list(zip(cost[cheaper].tolist(), zip(*pools, strict=True), strict=True))


def fleets_between(search: FleetSearch, low: float, high: float) -> int | None:
    """Fleets of one pool, or of a prefill and a decode pool, that cost from `low` to less than `high` [$/h].

    Told apart by what is bought: roles, GPU types, GPUs of a replica, replicas. None where there are too many to count.
    """
    problem, free = search.instance.problem, np.ones(search.settings.size, dtype=np.bool_)
    kinds, kind = np.unique(np.column_stack([search.settings.role, search.gpus_each]), axis=0, return_inverse=True)
    role, engine_gpus = kinds[:, 0], kinds[:, 1:]
    owned, price = np.array([(offer.owned, max(offer.usd_per_hour, ROUNDING)) for offer in problem.offers]).T
    most = np.ceil((engine_gpus > 0.0) @ owned / engine_gpus.sum(axis=1) + high / (engine_gpus @ price))
    most = most.astype(np.int64) + 1

    def pools_between(other_gpus: FloatArray, engines: IntArray) -> int:
        """Sizes of pools of these engines beside other GPUs, (rows, offers), between the two costs."""
        at = [most_engines(problem, other_gpus, engine_gpus[engines], most[engines], cost) for cost in (high, low)]
        return int((at[0] - at[1]).sum())

    alone = np.flatnonzero(role == COLOCATED)
    pairs = np.stack([kind.ravel()[end] for end in _talking(search, problem, free)])
    prefill, decode = np.unique(pairs, axis=1)
    if most[prefill].sum() > MOST_LOOKS:
        return None
    rows = np.repeat(np.arange(prefill.size), most[prefill] - 1)
    replicas = 1 + np.arange(rows.size) - np.searchsorted(rows, rows) + problem.constraints.spare_replicas
    count = pools_between(engine_gpus[prefill[rows]] * replicas[:, None], decode[rows])
    return count + pools_between(np.zeros((alone.size, len(problem.offers))), alone)


def smallest_batches(instance: Instance, fleet: Fleet) -> Fleet:
    """The fleet with the smallest batch limits that cost no capacity and let no more requests miss.

    The search uses the largest limits. Smaller ones are taken where the fleet, and each pool by itself, can serve as
    much as before, but for rounding, and where a pool that keeps up with one replica fewer still does. A fleet that
    meets every goal still does, however near its capacity.
    """
    pools = list(fleet.pools)
    most = goodput_volume(instance, fleet)
    volume = min(most, 1.0)
    kept_volume = max(most / (1.0 + ALIKE), 1.0 if most >= 1.0 else 0.0)
    for index, pool in enumerate(pools):
        if pool.role is Role.PREFILL:
            continue
        alone = max(volume * pool_headroom(instance, fleet, index, volume).load, most)
        target = pool_state(instance, pool, alone).full * (1.0 + ALIKE) + ROUNDING
        loads = np.where(np.arange(len(pools)) == index, alone / (1.0 + ALIKE), volume)
        survives = pool_survives(instance, pool)
        for seqs in instance.tables.limits_below(pool.shape, pool.seqs):
            less = replace(pool, seqs=seqs)
            smaller = Fleet((*pools[:index], less, *pools[index + 1 :]))
            state = pool_state(instance, less, alone)
            keeps_room = state.stable and state.full <= target and holds_at(instance, smaller, loads)
            keeps_room &= not survives or pool_survives(instance, less)
            if keeps_room and holds_at(instance, smaller, kept_volume):
                pools[index] = less
                break
    return Fleet(tuple(pools))


def evaluated(instance: Instance, late: Late = never, usable: BoolArray | None = None) -> FleetSearch:
    """A search over the engines of an instance; late: tells when to stop.

    usable: which engines in which roles, (roles, shapes); None: all.
    """
    settings = make_settings(instance)
    if usable is not None:
        settings = settings.take(usable[settings.role, settings.shape])
    return FleetSearch.of(instance, settings, late)


def engines_unlike(instance: Instance, pool: FleetPool) -> BoolArray:
    """Which engines in which roles, (roles, shapes), are not of the GPU type, size and role of a pool."""
    tables, role = instance.tables, np.arange(len(ROLES))[:, None] == ROLES.index(pool.role)
    alike = (tables.offer == tables.offer[pool.shape]) & (tables.gpus == tables.gpus[pool.shape])
    return np.asarray(~(role & alike))


def unmixed(search: FleetSearch, below: float = math.inf) -> Fleet:
    """The cheapest fleet of one or two pools that holds, below a cost [$/h]; empty if there is none."""
    cheapest = cheapest_held(search, search.instance.problem, below)
    return Fleet(()) if cheapest is None else smallest_batches(search.instance, search.fleet(cheapest[0]))


def without_prices(problem: Problem) -> Problem:
    """The problem with neither prices nor limits on the fleet."""
    offers = tuple(
        replace(offer, usd_per_hour=1.0, owned=0, tier_usd_per_hour=0.0, inventory=None, billing=Billing.GPU)
        for offer in problem.offers
    )
    limits = problem.constraints
    rules = Constraints(spare_replicas=limits.spare_replicas, balancing=limits.balancing, counting=limits.counting)
    return replace(problem, offers=offers, objective=Objective(), constraints=rules)


def priced(instance: Instance, problem: Problem) -> Instance:
    """The instance for a problem that differs only in prices and limits."""
    prices = np.array([offer.least_usd_per_hour for offer in problem.offers])
    return replace(instance, problem=problem, tables=instance.tables.with_prices(prices))


def roomiest(instance: Instance, fleets: Sequence[Fleet]) -> Fleet:
    """The fleet that meets its goals at the highest multiple of the demand; the first one if several tie."""
    best, *rivals = fleets
    room = max(goodput_volume(instance, best), 1.0) if rivals else 1.0
    for rival in rivals:
        if holds_at(instance, rival, room * (1.0 + ALIKE)):
            best, room = rival, goodput_volume(instance, rival)
    return best


def preferred(instance: Instance, fleets: Sequence[Fleet]) -> Fleet:
    """The preferred one of fleets that hold and cost the same, by the rules in the module's docstring.

    A rule that no fleet satisfies is skipped; the first of equals is taken.
    """
    gateway = any_target(instance.problem.engine).gateway  # of some target
    rules: tuple[Callable[[Fleet], bool], ...] = (
        lambda fleet: gets_whole(fleet) and gateway.allows([pool.role for pool in fleet.pools]),
        lambda fleet: bool((instance.tables.pipeline[[pool.shape for pool in fleet.pools]] == 1.0).all()),
        lambda fleet: all(pool_survives(instance, pool) for pool in fleet.pools),
        lambda fleet: holds_at(instance.on_slow_gpus, fleet),
    )
    for rule in rules:
        if len(fleets) > 1:
            fleets = [fleet for fleet in fleets if rule(fleet)] or fleets
    return roomiest(instance, sorted(fleets, key=lambda fleet: len(fleet.pools)))


def pool_survives(instance: Instance, pool: FleetPool) -> bool:
    """Whether a pool still keeps up with its part of the demand with one replica fewer."""
    return pool.replicas > 1 and pool_state(instance, replace(pool, replicas=pool.replicas - 1), 1.0).stable
