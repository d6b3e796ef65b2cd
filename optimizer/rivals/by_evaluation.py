"""The cheapest fleet of one colocated pool, or of a prefill and a decode pool, that holds when it is evaluated.

Fleets are evaluated in the order of their cost, from as few engines as keep up with the demand on (`keeping_up`). The
first that holds is the cheapest of one pool or a pair, as more engines in a pool never make it miss more; of pools of
up to `Evaluated.most` engines (BESIDE, TIMES: assumed), and unless MOST_LOOKS or the time end the search
(`Evaluated.cut`). A fleet of more pools may be cheaper still: only `floor` bounds them all.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from optimizer.fleets.evaluate import goodput_volume, holds, misses_of, pool_headroom, predict_misses, reach
from optimizer.fleets.fleet import Fleet, FleetPool, gpu_cost, prefill_seqs, within_limits
from optimizer.fleets.pool import PoolState, pool_state
from optimizer.loads.instance import COLOCATED, DECODE, PREFILL, ROLES, Instance, Late, Settings, never
from search_spaces.problem import Problem

from .room import AS_MUCH, pool_survives, preferred
from .unavoidable import late_first_tokens, late_tokens, prefill_work, prompt_work, sending_work

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

BESIDE, TIMES = 24, 6
"""A pool of BESIDE engines more than TIMES as many as keep up that still misses does so for another reason."""

MOST_LOOKS = 20_000
"""Fleets that are looked at in one search; a guard against spaces of thousands of engine shapes."""

SAME_COST = 1e-6
"""Relative difference below which costs count as equal."""

NO_DEARER = 1.0 + 2.0 * SAME_COST
"""Factor on a cost below which those that are equal to it are found too."""

NEAR = 0.7
"""Share of every goal that a fleet reaches by formula which is worth a simulation [1]: predictions are off by so much
at times."""

Picks = tuple[tuple[int, int], ...]
"""Settings, and how many engines of each."""


def keeping_up(instance: Instance, settings: Settings) -> FloatArray:
    """Engines that one request per second of each flow takes at least, for a pool not to fall behind, (settings, F).

    What `pool_state` calls stable needs, with x the rates at one of n engines, W = sum x osl, R <= B the requests that
    run and t(R) a decode step without KV reads,

        prefill      sum x shared / ranks < 1
        generating   R = W t(R) / (1 - sum x (osl a + e)),   so   n >= sum n x (osl (a + min t(R) / R) + e)

    for t(R) / R falls between the batch limits of the tables, and rises nowhere below the least of them. e is what a
    prompt adds to the steps of others (`prompt_work`). Hand-overs keep the network cards of both ends busy for
    LINK_UTILIZATION of the time at most. Steps and cards work at once: what counts is the one that the whole demand
    keeps busier, for every flow, as one may be short of it for some flows and of the other for the rest.
    """
    tables, flows, shape = instance.tables, instance.flows, settings.shape
    slots = np.minimum.accumulate(tables.decode_base / tables.seqs, axis=1)[shape, settings.seqs]
    later = flows.osl * (tables.attention_slope[shape] + slots[:, None]) + prompt_work(instance, settings)
    steps = np.where((settings.role == PREFILL)[:, None], prefill_work(instance, settings), later)
    cards = sending_work(instance, settings)
    return np.where((cards @ flows.rate > steps @ flows.rate)[:, None], cards, steps)


def _hopeless(instance: Instance, settings: Settings) -> BoolArray:
    """Whether more requests are late than some class permits even on idle engines, beside the best of partners."""
    flows, slos = instance.flows, instance.problem.slos
    late = np.maximum(late_first_tokens(instance, settings), late_tokens(instance, settings, 0.0))
    weight = flows.share * (flows.slo == np.arange(len(slos))[:, None])
    permitted = np.array([1.0 - slo.attainment for slo in slos])
    return np.asarray((late @ weight.T / weight.sum(axis=1) > permitted + 1e-6).any(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """What the evaluation says of the pools of an instance that serve all of their stage.

    settings: of the engines; least (settings,): engines that keep up with the demand; known: of a setting, engines that
    are too few, and such as are enough if any are; held: whether fleets keep every goal at multiples of the demand;
    late: whether no more fleets are to be looked at.
    """

    instance: Instance
    settings: Settings
    least: IntArray
    known: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    held: dict[tuple[Picks, float], bool] = field(default_factory=dict)
    late: Late = never
    hopeless: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Settings with which too many requests are late even on idle engines, (settings,)."""
    near: dict[Picks, float] = field(default_factory=dict)
    """Fleets that miss by formula, but reach NEAR of every goal, and how much they reach [1]."""
    cut: set[str] = field(default_factory=set)
    """What ended a search before all fleets that it might have found were looked at: `looks` or `time`."""

    @classmethod
    def of(cls, instance: Instance, settings: Settings, late: Late = never) -> Evaluated:
        """Nothing evaluated yet."""
        need = keeping_up(instance, settings) @ instance.flows.rate
        least = np.maximum(np.ceil(np.minimum(need, 1e9) - 1e-9), 1.0).astype(np.int64)
        return cls(instance, settings, least, late=late, hopeless=_hopeless(instance, settings))

    def pool(self, setting: int, engines: int) -> FleetPool:
        """So many engines of a setting as a pool that serves all of its stage."""
        one, spares = self.settings, self.instance.problem.constraints.spare_replicas
        role, route = ROLES[int(one.role[setting])], np.ones(self.instance.flows.isl.size)
        shape = int(one.shape[setting])
        seqs = prefill_seqs(self.instance, shape) if role is Role.PREFILL else int(one.seqs[setting])
        parts = (shape, seqs, int(one.chunk[setting]), engines, spares)
        return FleetPool(f"{role.value}-1", role, *parts, route)

    def fleet(self, picks: Picks) -> Fleet:
        """The fleet of these pools."""
        return Fleet(tuple(self.pool(*pick) for pick in picks))

    def gpus_each(self) -> FloatArray:
        """GPUs of each offer that one engine takes, (settings, offers)."""
        tables, shape = self.instance.tables, self.settings.shape
        mine = tables.offer[shape][:, None] == np.arange(len(self.instance.problem.offers))
        return np.asarray(mine * tables.gpus[shape][:, None])

    def state(self, setting: int, engines: int, volume: float = 1.0) -> PoolState:
        """The state of a pool under `volume` times the whole demand."""
        return pool_state(self.instance, self.pool(setting, engines), volume)

    def holds(self, picks: Picks) -> bool:
        """Whether a fleet keeps every goal."""
        return self.carries(picks, 1.0)

    def carries(self, picks: Picks, volume: float) -> bool:
        """Whether a fleet keeps every goal at `volume` times the demand."""
        key = picks, volume
        if key not in self.held:
            states = tuple(self.state(*pick, volume) for pick in picks)
            reached = reach(self.instance, self.fleet(picks), states)
            self.held[key] = reached >= 1.0
            if NEAR <= reached < 1.0 and volume == 1.0:
                self.near[picks] = reached
        return self.held[key]

    def survives(self, picks: Picks) -> bool:
        """Whether a fleet keeps up with the demand with an engine less in any of its pools."""
        return all(pool_survives(self.instance, self.pool(*pick)) for pick in picks)

    def enough(self, setting: int, most: int) -> int | None:
        """The fewest engines, `most` at most, with which a pool keeps the goals, its partner apart; None if none do."""
        low, high = self.known.get(setting, (int(self.least[setting]) - 1, None))
        if most <= low or self.hopeless[setting]:
            return None
        if self.settings.role[setting] == COLOCATED and (high is None or high > most):
            if not self.able(setting, most):
                self.known[setting] = (most, high)
                return None
            high = most
        step = 1  # for mostly those are enough that keep up, or one more
        while high is None or high - low > 1:
            if high is None and low >= most:
                self.known[setting] = (low, None)
                return None
            middle = min(low + step, most if high is None else (low + high) // 2)
            low, high, step = (low, middle, step) if self.able(setting, middle) else (middle, high, 2 * step)
        self.known[setting] = (low, high)
        return high if high <= most else None

    def spoiled_by_steps(self, setting: int, engines: int) -> bool:
        """Whether a colocated pool misses for its long steps alone: without late tokens it would keep every goal."""
        if engines < self.least[setting]:
            return False
        missed = misses_of(self.instance, self.fleet(((setting, engines),)), (self.state(setting, engines),))
        flows, goals = self.instance.flows, np.array([slo.attainment for slo in self.instance.problem.slos])
        kept = np.clip(1.0 - missed.ttft - missed.full, 0.0, 1.0)
        weight = flows.share * (flows.slo == np.arange(goals.size)[:, None])
        return missed.stable and bool((weight @ kept / weight.sum(axis=1) >= goals - 1e-9).all())

    def cut_short(self, looks: int = 0) -> bool:
        """Whether looks or time are up; a search that ends so has not seen all, which is kept in `cut`."""
        why = ["looks"] * (looks >= MOST_LOOKS) + ["time"] * self.late()
        self.cut.update(why)
        return bool(why)

    def most(self, setting: int) -> int:
        """Engines of a setting that are tried."""
        return TIMES * int(self.least[setting]) + BESIDE

    def able(self, setting: int, engines: int, volume: float = 1.0) -> bool:
        """Whether a pool keeps the goals with the best of partners: one that adds no miss and no time."""
        role = int(self.settings.role[setting])
        if self.hopeless[setting]:
            return False
        if role == COLOCATED:
            return self.carries(((setting, engines),), volume)
        state = self.state(setting, engines, volume)
        if not state.stable:
            return False
        if role == DECODE:
            return reach(self.instance, self.fleet(((setting, engines),)), (state,)) >= 1.0
        flows, tables, shape = self.instance.flows, self.instance.tables, int(self.settings.shape[setting])
        slack = flows.ttft - state.latency - tables.kv_transferred[shape] / tables.link[shape]
        late = np.where(slack < 0.0, 1.0, 0.0)
        if state.wait is not None:
            late = np.maximum(late, state.wait.chance * state.wait.exceeds(slack))
        weight = flows.share * (flows.slo == np.arange(len(self.instance.problem.slos))[:, None])
        goals = np.array([slo.attainment for slo in self.instance.problem.slos])
        return bool((weight @ (1.0 - late) / weight.sum(axis=1) >= goals - 1e-9).all())


def near_fleets(known: Evaluated, below: float) -> list[Fleet]:
    """Fleets within the limits that cost less than `below` [$/h] and come near every goal by formula, nearest first."""
    problem = known.instance.problem
    priced = [(picks, reached) for picks, reached in known.near.items() if _price(known, problem, picks) < below]
    return [known.fleet(picks) for picks, _ in sorted(priced, key=lambda row: (-row[1], row[0]))]


def cheapest_held(
    known: Evaluated, problem: Problem, below: float = np.inf, allowed: BoolArray | None = None
) -> tuple[Picks, float] | None:
    """The cheapest fleet of one pool or two that holds, within the limits and below some cost, and its cost [$/h].

    problem: the instance's own, or one that differs in prices and limits alone; allowed (settings,): which may be used.
    Of fleets that cost the same, one that survives the loss of a replica and has the most room (see `room`).
    """
    free = np.ones(known.settings.size, dtype=np.bool_) if allowed is None else allowed
    held = _cheapest_pairs(known, problem, below, free)
    most = min((cost * NO_DEARER for _, cost in held), default=below)
    held += _cheapest_alone(known, problem, most, free)
    if not held:
        return None
    least = min(cost for _, cost in held)
    tied = [picks for picks, cost in held if cost <= least * (1.0 + SAME_COST)]
    simplest = sorted(tied, key=lambda picks: _simplicity(known, picks))
    best = preferred(simplest, lambda picks: _stages(known, picks) > len(picks), known.survives, known.carries)
    return best, _price(known, problem, best)


def _stages(known: Evaluated, picks: Picks) -> float:
    """Pipeline stages of one engine of each pool, summed."""
    return sum(float(known.instance.tables.pipeline[int(known.settings.shape[setting])]) for setting, _ in picks)


def _simplicity(known: Evaluated, picks: Picks) -> tuple[object, ...]:
    """What decides between fleets of one cost and as much room: pools, pipeline stages, then names."""
    tables, shapes = known.instance.tables, [int(known.settings.shape[setting]) for setting, _ in picks]
    offers = known.instance.problem.offers
    names = tuple(offers[int(tables.offer[shape])].accelerator.name for shape in shapes)
    return len(picks), _stages(known, picks), names, picks


def _cheapest_pairs(known: Evaluated, problem: Problem, below: float, free: BoolArray) -> list[tuple[Picks, float]]:
    """Of a prefill and a decode pool, all of the least cost: best first, by the decode engines one more each time.

    What waits is either a fleet that holds, or one that no fleet of so many decode engines undercuts: then the fewest
    prefill engines beside them are looked for, and one decode engine more waits next.
    """
    waiting = [(*one, False) for one in _pairs(known, problem, below, free)]
    heapq.heapify(waiting)
    ceiling = below * (1.0 - SAME_COST)
    found: list[tuple[Picks, float]] = []

    def wait(picks: Picks, *, held: bool) -> float:
        price = _price(known, problem, picks)
        if price < ceiling:
            heapq.heappush(waiting, (price, picks, held))
        return price

    for looks in range(MOST_LOOKS + 1):
        if not waiting or waiting[0][0] >= ceiling or known.cut_short(looks):
            break
        cost, picks, held = heapq.heappop(waiting)
        if held:
            found.append((picks, cost))
            continue
        enough = [known.enough(setting, known.most(setting)) for setting, _ in picks]
        raised = tuple((pick[0], max(pick[1], count or 0)) for pick, count in zip(picks, enough, strict=True))
        if None in enough:
            continue
        if raised != picks:
            wait(raised, held=False)
            continue
        most = _most_beside(known, problem, picks, ceiling)
        if known.holds(_with_prefill(picks, most)):
            price = wait(_fewest_beside(known, picks, most), held=True)
            ceiling = min(ceiling, price * (1.0 + SAME_COST))
        if picks[1][1] < known.most(picks[1][0]):
            wait((picks[0], (picks[1][0], picks[1][1] + 1)), held=False)
    return found


def _with_prefill(picks: Picks, engines: int) -> Picks:
    return ((picks[0][0], engines), *picks[1:])


def _most_beside(known: Evaluated, problem: Problem, picks: Picks, ceiling: float) -> int:
    """The most prefill engines beside the same decode engines that cost less than the ceiling; those given do."""
    low, high = picks[0][1], max(known.most(picks[0][0]), picks[0][1]) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = _price(known, problem, _with_prefill(picks, middle)) < ceiling
        low, high = (middle, high) if fits else (low, middle)
    return low


def _fewest_beside(known: Evaluated, picks: Picks, most: int) -> Picks:
    """With the fewest prefill engines beside the same decode engines that hold; `most` do."""
    low, high = picks[0][1] - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if known.holds(_with_prefill(picks, middle)) else (middle, high)
    return _with_prefill(picks, high)


def _cheapest_alone(known: Evaluated, problem: Problem, below: float, free: BoolArray) -> list[tuple[Picks, float]]:
    """Of one colocated pool, all of the least cost: of each setting as many engines as cost no more, or as hold.

    Of engines that differ in their batch limits alone the largest limit comes first; a smaller one is of use only where
    that makes long steps shorter, so it is looked at only for fewer engines, and only where TPOT was what was missed.
    """
    found: list[tuple[Picks, float]] = []
    one, fewest, spoiled = known.settings, dict[tuple[int, int], tuple[int, int]](), dict[tuple[int, int], bool]()
    some = np.flatnonzero(free & (one.role == COLOCATED))
    least = np.array([_price(known, problem, ((int(setting), int(known.least[setting])),)) for setting in some])
    for place in np.lexsort((-one.seqs[some], least)):
        setting, alike = int(some[place]), (int(one.shape[some[place]]), int(one.chunk[some[place]]))
        if least[place] >= below * (1.0 - SAME_COST) or known.cut_short():
            break
        most = _affordable(known, problem, setting, below)
        first, enough = fewest.get(alike, (setting, most + 1))
        most = min(most, enough - 1)
        if first != setting:
            if (first, most) not in spoiled:
                spoiled[first, most] = known.spoiled_by_steps(first, most)
            if not spoiled[first, most]:
                continue
        count = known.enough(setting, most)
        fewest[alike] = first, most + 1 if count is None else count
        if count is not None:
            picks = ((setting, count),)
            found.append((picks, _price(known, problem, picks)))
            below = min(below, found[-1][1] * NO_DEARER)
    return found


def _affordable(known: Evaluated, problem: Problem, setting: int, below: float) -> int:
    """Engines of one setting, `most` at most, that cost less than `below` within the limits; the least of them do."""
    low, high = int(known.least[setting]), known.most(setting) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = _price(known, problem, ((setting, middle),)) < below * (1.0 - SAME_COST)
        low, high = (middle, high) if fits else (low, middle)
    return low


def _price(known: Evaluated, problem: Problem, picks: Picks) -> float:
    """Cost of a fleet [$/h], infinite where the limits forbid it."""
    gpus = np.zeros(len(problem.offers))
    spares, tables = problem.constraints.spare_replicas, known.instance.tables
    for setting, count in picks:
        shape = known.settings.shape[setting]
        gpus[tables.offer[shape]] += (count + spares) * tables.gpus[shape]
    return float(gpu_cost(problem, gpus)) if bool(within_limits(problem, gpus)) else np.inf


def _pairs(known: Evaluated, problem: Problem, below: float, free: BoolArray) -> list[tuple[float, Picks]]:
    """Every pair of as few engines as keep up that the limits allow and that costs less: cost, pools."""
    one, tables = known.settings, known.instance.tables
    if not problem.constraints.fits((Role.PREFILL, Role.DECODE)):
        return []
    ends = [np.flatnonzero(free & (one.role == role)) for role in (PREFILL, DECODE)]
    first, second = np.nonzero(tables.talks[np.ix_(one.shape[ends[0]], one.shape[ends[1]])])
    first, second = ends[0][first], ends[1][second]
    gpus = known.gpus_each() * (known.least + problem.constraints.spare_replicas)[:, None]
    need = gpus[first] + gpus[second]
    cost = gpu_cost(problem, need)
    found: list[tuple[float, Picks]] = []
    for at in np.flatnonzero(within_limits(problem, need) & (cost < below * (1.0 - SAME_COST))):
        picks = tuple((int(end[at]), int(known.least[end[at]])) for end in (first, second))
        found.append((float(cost[at]), picks))
    return found


def settled(instance: Instance, fleet: Fleet) -> Fleet:
    """The fleet with the smallest batch limits that let no more requests miss at the most that each pool can take.

    The search takes the largest; smaller ones take no room from the fleet, nor from a pool beside others that are busy.
    """
    pools = list(fleet.pools)
    most = goodput_volume(instance, fleet)
    volume = min(most, 1.0)
    for index, pool in enumerate(pools):
        if pool.role is Role.PREFILL:
            continue
        alone = max(volume * pool_headroom(instance, fleet, index, volume).load, most)
        target = pool_state(instance, pool, alone).full * (1.0 + 1e-3) + 1e-6
        for seqs in instance.tables.limits_below(pool.seqs):
            less = replace(pool, seqs=seqs)
            state = pool_state(instance, less, alone)
            if state.stable and state.full <= target:
                pools[index] = less
                break
    smaller = Fleet(tuple(pools))
    return smaller if holds(instance, predict_misses(instance, smaller, most / (1.0 + AS_MUCH))) else fleet
