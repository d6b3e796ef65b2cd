"""Tuning by simulation: what the search took to be linear, or left as it was, tried on a sampled trace.

Knobs of each pool: max_num_seqs, max_num_batched_tokens, one replica more or less (so also the balance of prefill and
decode); where pools share a stage, how much of it goes there, and up to which length of prompts. A look simulates one
short run, whose requests all looks share. Its value is smooth, also where every goal is met or missed (a share in time
alone gives a sampler nothing to follow):

    value = cost / cost of the start + TAIL min(s, 1) + MISS log max(s, 1)
    s     = largest over classes of the goal's quantile of max(metric / limit over its metrics)

s <= 1 says that the class keeps its goal. Where it is asked for, cost and s are two objectives instead, and what costs
more than the winner is judged too. What looks best is then judged like every other fleet (`verdict`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.engine import Role
from costmodel.simulator import Fleet as SimulatedFleet
from costmodel.simulator import Pool
from costmodel.simulator.metrics import measured, steady
from optimizer.fleets.evaluate import QUANTILES
from optimizer.fleets.fleet import Fleet, FleetPool, fleet_cost, hand_over_mix
from optimizer.loads.flows import digest_of
from optimizer.loads.instance import Instance
from optimizer.search.limits import TRACE_OF_A_ROUTE, allowed, shared_out

from .judge import ClassJudgement, Judgement, Run, hand_over, judge, simulated_fleet
from .samplers import FRONT_START_UP, START_UP, Point, Values, by_tpe
from .second_life import one_life
from .study import Axis, KeptStudy, open_storage
from .verdict import Bench, PoolKey, Verdict, fleet_key

FloatArray = NDArray[np.float64]

TAIL, MISS = 0.02, 5.0
"""Weights of the distance to the limits: cost decides between fleets that hold, the tail only between equal costs."""
WORST = 10.0
"""Distances beyond this many limits are alike."""
SHARES = (0.8, 1.0, 1.25)
"""Factors on what a pool gets of its stage."""
STEPS = (-2, -1, 0, 1, 2)
"""Lengths of prompts by which the threshold between two pools moves."""
SAMPLER = "TPE and neighbours"
"""What the sampler that is used is called (`samplers.by_tpe`)."""
LOOKS = 60
"""Simulations that tuning may make."""
JUDGED = 5
"""Of the best looks so many are judged, and so many of a front."""
NOTABLE = 0.01
"""What a dearer fleet must take off the tail at least [limits]: a short run tells no less."""
GAIN = 0.001
"""By how much less a look must be worth than the start to be judged: short runs tell no more, and a 20th of a limit
buys nothing."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of one pool and the values that it may take: indices into the tables, replicas, or share factors."""

    pool: int
    setting: str
    values: tuple[float, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Wish:
    """How to tune: looks that it may take; front: for cost and tail both, and judge what a dollar more buys.

    study: name of the storage that keeps the study (`study.open_storage`), None: none does.
    """

    looks: int = LOOKS
    front: bool = False
    study: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """A fleet on a short run: cost [$/h], distance to its limits [1] (1 or less: it keeps its goals), its classes."""

    fleet: Fleet
    cost: float
    distance: float
    classes: tuple[ClassJudgement, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning looked at, in order, and the winner: the one it began with where nothing better was proven.

    judged: fleets of the front that were judged besides, where it was asked for.
    """

    winner: Verdict
    looks: tuple[Look, ...]
    judged: tuple[Verdict, ...] = ()


def knobs_of(instance: Instance, fleet: Fleet) -> tuple[Knob, ...]:
    """The knobs of a fleet; those with one value only are left out.

    How many prompts a prefill engine takes at once is none: its tokens end a batch first (distances change by 0.003).
    Shares and thresholds stay where not all pools can talk to all.
    """
    knobs, anyone = [], bool((hand_over_mix(instance, fleet) == 1.0).all())
    for index, pool in enumerate(fleet.pools):
        fewest = max(pool.replicas - 1, 1)
        knobs.append(Knob(index, "replicas", tuple(range(fewest, pool.replicas + 2)), pool.replicas - fewest))
        if pool.role is not Role.PREFILL:
            limits = instance.tables.limits.tolist()
            knobs.append(Knob(index, "seqs", tuple(limits), limits.index(pool.seqs)))
        if pool.role is not Role.DECODE:
            chunks = chunks_of(instance, pool)
            knobs.append(Knob(index, "chunk", tuple(chunks), chunks.index(pool.chunk)))
        if anyone and _has_a_share(fleet, index):
            knobs.append(Knob(index, "share", SHARES, SHARES.index(1.0)))
        if anyone and _shorter(instance, fleet, index) is not None:
            knobs.append(Knob(index, "threshold", STEPS, STEPS.index(0)))
    return tuple(knob for knob in knobs if len(knob.values) > 1)


def _stage(fleet: Fleet, index: int) -> list[int]:
    """The pools that do what a pool does: compute prompts, or decode what others have computed."""
    decodes = fleet.pools[index].role is Role.DECODE
    return [k for k, pool in enumerate(fleet.pools) if (pool.role is Role.DECODE) == decodes]


def _has_a_share(fleet: Fleet, index: int) -> bool:
    """Whether a pool takes part of what others of its stage serve too; of the first of them nothing is to be said."""
    stage, mine = _stage(fleet, index), fleet.pools[index].route
    others = (fleet.pools[k].route for k in stage if k != index)
    return stage[0] != index and any(np.any(np.minimum(route, mine) > 0.0) for route in others)


def _shorter(instance: Instance, fleet: Fleet, index: int) -> int | None:
    """The pool of its stage whose prompts are the next shorter, by a token on average; None where there is none."""
    rate, isl = instance.flows.rate, instance.flows.isl
    mean = {k: float(fleet.pools[k].route * rate @ isl / (fleet.pools[k].route @ rate)) for k in _stage(fleet, index)}
    return max((k for k in mean if mean[k] + 1.0 < mean[index]), key=mean.__getitem__, default=None)


def fleet_at(instance: Instance, fleet: Fleet, knobs: tuple[Knob, ...], point: Point) -> Fleet:
    """The fleet with its knobs at a point."""
    pools, weights, moved = list(fleet.pools), [pool.route for pool in fleet.pools], False
    for knob, chosen in zip(knobs, point, strict=True):
        pool, value = pools[knob.pool], knob.values[chosen]
        match knob.setting:
            case "share":
                weights[knob.pool] = weights[knob.pool] * value
                moved = moved or value != 1.0
            case "threshold":
                weights = _with_threshold(instance, fleet, weights, knob.pool, int(value))
                moved = moved or value != 0
            case "replicas":
                pools[knob.pool] = replace(pool, replicas=int(value))
            case "seqs":
                pools[knob.pool] = replace(pool, seqs=int(value))
            case _:
                pools[knob.pool] = replace(pool, chunk=int(value))
    some = [weight + TRACE_OF_A_ROUTE for weight in weights]
    return shared_out(pools, some) if moved else Fleet(tuple(pools))


def _with_threshold(
    instance: Instance, fleet: Fleet, weights: list[FloatArray], index: int, steps: int
) -> list[FloatArray]:
    """Weights (flows,) of pools once one takes that many more lengths from the one with shorter prompts; or gives.

    A pool keeps the shortest or longest of its lengths, whatever is asked for.
    """
    other = _shorter(instance, fleet, index)
    if steps == 0 or other is None:
        return weights
    giver, taker = (other, index) if steps > 0 else (index, other)
    isl, given = instance.flows.isl, weights[giver] > 0.0
    lengths = np.unique(isl[given])
    lengths = lengths[1:][-steps:] if steps > 0 else lengths[:-1][:-steps]
    goes, changed = np.isin(isl, lengths) & given, list(weights)
    changed[taker] = weights[taker] + np.where(goes, weights[giver], 0.0)
    changed[giver] = np.where(goes, 0.0, weights[giver])
    return changed


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


def tail_of(instance: Instance, found: Judgement) -> float:
    """The same of a fleet whose runs are not kept, by its quantiles of all but e2e [1]: the next above its goal."""
    if found.runs:
        return distance(instance, found)
    tails = [0.0]
    for slo, one in zip(instance.problem.slos, found.classes, strict=True):
        at = next((k for k, level in enumerate(QUANTILES) if level >= slo.attainment), -1)
        tails += [one.ttft[at] / slo.ttft, one.tpot[at] / slo.tpot]
        tails += [values[at] / slo.limits[metric] for metric, values in one.metrics.items()]
    return min(float(np.nanmax(tails)), WORST)


def _relative(instance: Instance, run: Run, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Latencies of one class's requests in units of their limits, the largest of each request [1]."""
    result, limits = run.result, instance.problem.slos[number].limits
    mine = steady(result) & (instance.flows.slo[run.demand.flow] == number)
    parts = np.stack([measured(result, metric)[mine] / limit for metric, limit in limits.items()])
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
    engines: dict[PoolKey, Pool] = field(default_factory=dict)

    @property
    def start(self) -> Point:
        """The fleet as it is."""
        return tuple(knob.start for knob in self.knobs)

    def value(self, point: Point) -> Values | None:
        """What a point is worth; less is better. None where it is not allowed, and once it is stopped."""
        look = self._seen(point)
        return None if look is None else (self.worth(look),)

    def both(self, point: Point) -> Values | None:
        """Cost over that of the start, and distance to the limits; None as above."""
        look = self._seen(point)
        return None if look is None else (look.cost / self._cost, look.distance)

    def worth(self, look: Look) -> float:
        """Cost over that of the start, and what the tail adds."""
        tail = TAIL * min(look.distance, 1.0) + MISS * math.log(max(look.distance, 1.0))
        return look.cost / self._cost + tail

    @property
    def _cost(self) -> float:
        return fleet_cost(self.bench.instance, self.fleet)

    def _seen(self, point: Point) -> Look | None:
        fleet = fleet_at(self.bench.instance, self.fleet, self.knobs, point)
        if self.seen and (self.stopped() or not valid(self.bench.instance, fleet, self.bench.volume)):
            return None
        self.seen[point] = self._look(fleet)
        return self.seen[point]

    def _look(self, fleet: Fleet) -> Look:
        bench, part = self.bench, self.bench.part(fleet)
        found = judge(
            bench.instance,
            part.fleet,
            requests=self.requests,
            seed=bench.seed,
            volume=part.volume,
            engines=SimulatedFleet(tuple(map(self._engines, part.fleet.pools)), hand_over(bench.instance)),
        )
        return Look(fleet, fleet_cost(bench.instance, fleet), distance(bench.instance, found), found.classes)

    def _engines(self, pool: FleetPool) -> Pool:
        """A pool for the simulator; looks share the step times of equal engines, half the time of a look."""
        key = pool.role, pool.shape, pool.seqs, pool.chunk
        if key not in self.engines:
            self.engines[key] = simulated_fleet(self.bench.instance, Fleet((pool,)), self.bench.probability).pools[0]
        return replace(self.engines[key], replicas=pool.replicas)


def chunks_of(instance: Instance, pool: FleetPool) -> list[int]:
    """Token budgets beside which a pool's engines have memory, its own among them, as indices."""
    return sorted({*np.flatnonzero(instance.tables.roomy[pool.shape]).tolist(), pool.chunk})


def valid(instance: Instance, fleet: Fleet, volume: float = 1.0) -> bool:
    """Whether the limits on the fleet and the engine's own allow it, and no memory stays full once it is.

    A step needs a token for each running request. volume: multiple of the demand (`second_life`).
    """
    tables = instance.tables

    def fits(pool: FleetPool) -> bool:
        return pool.role is Role.DECODE or tables.chunks[pool.chunk] >= tables.seqs[pool.seqs]

    return allowed(instance, fleet) and all(map(fits, fleet.pools)) and one_life(instance, fleet, volume)


def tuned(bench: Bench, winner: Verdict, stopped: Callable[[], bool], wish: Wish | None = None) -> Tuned:
    """Tune a fleet that holds; what looks better is only taken once it is proven too."""
    wish = wish or Wish()
    knobs = knobs_of(bench.instance, winner.fleet)
    tuner = Tuner(bench, winner.fleet, knobs, bench.part(winner.fleet).short, stopped)
    value, start_up = (tuner.both, FRONT_START_UP) if wish.front else (tuner.value, START_UP)
    sizes = [len(knob.values) for knob in knobs]
    kept = None if wish.study is None else kept_study(tuner, wish)
    by_tpe(sizes, value, tuner.start, wish.looks, bench.seed, start_up=start_up, stopped=stopped, kept=kept)
    looks = tuple(tuner.seen.values())
    proven = (bench.verdict(look.fleet) for look in _promising(tuner) if not stopped())
    winner = next((found for found in proven if found.held), winner)
    if not wish.front:
        return Tuned(winner, looks)
    better = [look for look in front(looks) if look.cost > winner.cost][:JUDGED]
    return Tuned(winner, looks, tuple(bench.verdict(look.fleet) for look in better if not stopped()))


def kept_study(tuner: Tuner, wish: Wish) -> KeptStudy:
    """The study of a fleet as it is kept: named after all that its looks depend on, with settings as engines have them.

    Raises InputError for a storage that cannot be used.
    """
    bench, tables = tuner.bench, tuner.bench.instance.tables
    scales = {"seqs": ("max_num_seqs", tables.seqs), "chunk": ("max_num_batched_tokens", tables.chunks)}

    def axis(knob: Knob) -> Axis:
        name, scale = scales.get(knob.setting, (knob.setting, None))
        values = knob.values if scale is None else scale[np.array(knob.values, dtype=np.int64)].tolist()
        return Axis(f"{tuner.fleet.pools[knob.pool].name} {name}", tuple(values))

    def attributes(point: Point) -> dict[str, float]:
        return {"usd_per_hour": tuner.seen[point].cost, "share_of_limit": tuner.seen[point].distance}

    def recall(point: Point, kept: Mapping[str, Any]) -> None:
        fleet = fleet_at(bench.instance, tuner.fleet, tuner.knobs, point)
        tuner.seen[point] = Look(fleet, float(kept["usd_per_hour"]), float(kept["share_of_limit"]))

    axes = tuple(map(axis, tuner.knobs))
    runs = tuner.requests, bench.seed, bench.volume, bench.probability
    demand = bench.instance.problem.slos, bench.instance.flows.rate.tolist()
    parts = hashlib.sha256(repr((digest_of(tables), runs, demand, fleet_key(tuner.fleet), axes)).encode())
    goal = "cost and tail" if wish.front else "cost, then tail"
    name = f"{bench.instance.problem.name}: {goal}, {parts.hexdigest()[:12]}"
    return KeptStudy(open_storage(wish.study or ""), name, axes, attributes, recall)


def _promising(tuner: Tuner) -> list[Look]:
    """Looks that are better than the start and keep their goals, best first."""
    most = tuner.worth(tuner.seen[tuner.start])
    better = [look for look in tuner.seen.values() if look.distance <= 1.0 and tuner.worth(look) < most - GAIN]
    return sorted(better, key=tuner.worth)[:JUDGED]


def front(looks: Iterable[Look]) -> tuple[Look, ...]:
    """Looks that keep their goals and that no other beats in both cost and tail, cheapest first.

    One that only takes less than NOTABLE off the tail of a cheaper one is left out.
    """
    best: list[Look] = []
    for look in sorted(looks, key=lambda one: (one.cost, one.distance)):
        if look.distance <= 1.0 and (not best or look.distance <= best[-1].distance - NOTABLE):
            best.append(look)
    return tuple(best)
