"""Tuning by simulation: what the search took to be linear, or left as it was, tried on a sampled trace.

Knobs of each pool: max_num_seqs, max_num_batched_tokens, one replica more or less (so also the balance of prefill and
decode), and, where pools share a stage, how much of it goes there. A look simulates one short run, whose requests all
looks share. Its value is smooth, also where every goal is met or missed (SEARCH.md of the measurements: a share in time
alone gives a sampler nothing to follow):

    value = cost / cost of the start + TAIL min(s, 1) + MISS log max(s, 1)
    s     = largest over classes of the goal's quantile of max(TTFT / limit, TPOT / limit, e2e / limit)

s <= 1 says that the class keeps its goal. What looks best is then judged like every other fleet (`verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.engine import Role
from costmodel.simulator.metrics import steady
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.fleet import Fleet, FleetPool, hand_over_mix
from optimizer.loads.instance import Instance
from optimizer.rivals.allowed import allowed
from optimizer.rivals.fewer import shared_out

from .judge import Judgement, Run, class_limits, judge, simulated_fleet
from .samplers import Looks, Point, Sampler, by_descent
from .verdict import Bench, Verdict

TAIL, MISS = 0.02, 5.0
"""Weights of the distance to the limits: cost decides between fleets that hold, the tail only between equal costs."""
WORST = 10.0
"""Distances beyond this many limits are alike."""
SHARES = (0.8, 1.0, 1.25)
"""Factors on what a pool gets of its stage."""
SAMPLER = "descent"
"""Name of the sampler that is used."""
LOOKS = 60
"""Simulations that tuning may make."""
JUDGED = 5
"""Of the best looks so many are judged."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of one pool and the values that it may take: indices into the tables, replicas, or share factors."""

    pool: int
    setting: str
    values: tuple[float, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Look:
    """A fleet on a short run: cost [$/h], distance to its limits [1] (1 or less: it keeps its goals)."""

    fleet: Fleet
    cost: float
    distance: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning looked at, in order, and the winner: the one it began with where nothing better was proven."""

    winner: Verdict
    looks: tuple[Look, ...]


def knobs_of(instance: Instance, fleet: Fleet) -> tuple[Knob, ...]:
    """The knobs of a fleet; those with one value only are left out. Shares stay where not all pools can talk to all."""
    knobs, anyone = [], bool((hand_over_mix(instance, fleet) == 1.0).all())
    for index, pool in enumerate(fleet.pools):
        fewest = max(pool.replicas - 1, 1)
        knobs += [
            Knob(index, "replicas", tuple(range(fewest, pool.replicas + 2)), pool.replicas - fewest),
            Knob(index, "seqs", tuple(range(instance.tables.seqs.size)), pool.seqs),
        ]
        if pool.role is not Role.DECODE:
            chunks = sorted({*np.flatnonzero(instance.tables.roomy[pool.shape]).tolist(), pool.chunk})
            knobs.append(Knob(index, "chunk", tuple(chunks), chunks.index(pool.chunk)))
        stage = [other for other in fleet.pools if (other.role is Role.DECODE) == (pool.role is Role.DECODE)]
        if stage[0] is not pool and anyone:
            knobs.append(Knob(index, "share", SHARES, SHARES.index(1.0)))
    return tuple(knob for knob in knobs if len(knob.values) > 1)


def fleet_at(fleet: Fleet, knobs: tuple[Knob, ...], point: Point) -> Fleet:
    """The fleet with its knobs at a point."""
    pools, factor = list(fleet.pools), [1.0] * len(fleet.pools)
    for knob, chosen in zip(knobs, point, strict=True):
        pool, value = pools[knob.pool], knob.values[chosen]
        match knob.setting:
            case "share":
                factor[knob.pool] = value
            case "replicas":
                pools[knob.pool] = replace(pool, replicas=int(value))
            case "seqs":
                pools[knob.pool] = replace(pool, seqs=int(value))
            case _:
                pools[knob.pool] = replace(pool, chunk=int(value))
    if all(one == 1.0 for one in factor):
        return Fleet(tuple(pools))
    weights = [pool.route * one for pool, one in zip(pools, factor, strict=True)]
    return shared_out(pools, weights)


def distance(instance: Instance, found: Judgement) -> float:
    """How far the worst class is from its limits at the quantile of its goal [1]; above 1 where it misses."""
    worst = 0.0
    for number, slo in enumerate(instance.problem.slos):
        values = np.concatenate([_relative(instance, run, number) for run in found.runs])
        if values.size:
            worst = max(worst, float(np.quantile(values, slo.attainment, method="higher")))
    if found.overload.overloaded:
        worst = max(worst, 1.0 + found.overload.growth)
    return min(worst, WORST)


def _relative(instance: Instance, run: Run, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Latencies of one class's requests in units of their limits, the largest of each request [1]."""
    result, limits = run.result, class_limits(instance.problem.slos[number])
    mine = steady(result) & (instance.flows.slo[run.demand.flow] == number)
    tpot = np.where(run.demand.trace.osl > 1, result.tpot, 0.0)
    parts = np.stack([result.ttft / limits.ttft, tpot / limits.tpot, result.e2e / limits.e2e])[:, mine]
    return np.asarray(np.nan_to_num(parts, nan=WORST, posinf=WORST).max(axis=0))


@dataclass(slots=True)
class Tuner:
    """Looks at points of a fleet's knobs, with `requests` requests each; seen: what each look showed."""

    bench: Bench
    fleet: Fleet
    knobs: tuple[Knob, ...]
    requests: int
    stopped: Callable[[], bool] = lambda: False
    seen: dict[Point, Look] = field(default_factory=dict)

    @property
    def start(self) -> Point:
        """The fleet as it is."""
        return tuple(knob.start for knob in self.knobs)

    def value(self, point: Point) -> float:
        """What a point is worth; less is better. Beyond the limits, and once it is stopped, nothing."""
        fleet = fleet_at(self.fleet, self.knobs, point)
        if not valid(self.bench.instance, fleet) or (self.seen and self.stopped()):
            return 1.0 + MISS * math.log(WORST) * 2.0
        look = self._look(fleet)
        self.seen[point] = look
        tail = TAIL * min(look.distance, 1.0) + MISS * math.log(max(look.distance, 1.0))
        return look.cost / fleet_cost(self.bench.instance, self.fleet) + tail

    def _look(self, fleet: Fleet) -> Look:
        bench, part = self.bench, self.bench.part(fleet)
        found = judge(
            bench.instance,
            part.fleet,
            requests=self.requests,
            seed=bench.seed,
            volume=part.volume,
            engines=simulated_fleet(bench.instance, part.fleet, bench.probability),
        )
        return Look(fleet, fleet_cost(bench.instance, fleet), distance(bench.instance, found))


def valid(instance: Instance, fleet: Fleet) -> bool:
    """Whether the limits on the fleet and the engine's own allow it: a step needs a token for each running request."""
    tables = instance.tables

    def fits(pool: FleetPool) -> bool:
        return pool.role is Role.DECODE or tables.chunks[pool.chunk] >= tables.seqs[pool.seqs]

    return allowed(instance, fleet) and all(fits(pool) for pool in fleet.pools)


def tuned(
    bench: Bench, winner: Verdict, stopped: Callable[[], bool], sampler: Sampler = by_descent, looks: int = LOOKS
) -> Tuned:
    """Tune a fleet that holds; what looks better is only taken once it is proven too."""
    knobs = knobs_of(bench.instance, winner.fleet)
    tuner = Tuner(bench, winner.fleet, knobs, bench.part(winner.fleet).short, stopped)
    values = sampler([len(knob.values) for knob in knobs], tuner.value, tuner.start, looks, bench.seed)
    for point in _promising(tuner, values):
        if stopped():
            break
        found = bench.verdict(tuner.seen[point].fleet)
        if found.held:
            return Tuned(found, tuple(tuner.seen.values()))
    return Tuned(winner, tuple(tuner.seen.values()))


def _promising(tuner: Tuner, values: Looks) -> Iterator[Point]:
    """Points that look better than the start and keep their goals, best first."""
    most = values[tuner.start]
    better = [point for point, look in tuner.seen.items() if look.distance <= 1.0 and values[point] < most]
    yield from sorted(better, key=lambda point: values[point])[:JUDGED]


def front(looks: tuple[Look, ...]) -> tuple[Look, ...]:
    """Looks that no other beats in both cost and tail, cheapest first: what a dollar more buys."""
    best: list[Look] = []
    for look in sorted(looks, key=lambda one: (one.cost, one.distance)):
        if not best or look.distance < best[-1].distance:
            best.append(look)
    return tuple(best)
