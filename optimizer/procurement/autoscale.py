"""A fleet over a day: fixed at its size, scaled ahead by the daily profile, or scaled when the load is there.

Hour h needs the fewest replicas of each pool that keep every goal at its rate, routing unchanged. An engine takes a
start-up time before it serves. Scaled ahead, it starts so much earlier: running(t) = max need over [t, t + start-up].
Scaled on load, it is late by as much: serving(t) = min need over [t - start-up, t], and what arrives meanwhile meets
the smaller fleet. What is released stops at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.units import SECONDS_PER_HOUR
from optimizer.fleets.build_plan import fleet_cost
from optimizer.fleets.evaluate import holds, predict_misses
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DAY = 24 * SECONDS_PER_HOUR
PRECISION = 1.0
"""To which the longest start-up time is found [s]."""


@dataclass(frozen=True, slots=True)
class Day:
    """A fleet scaled over a day, by formula.

    volume (hours,): rate of each hour over the rate of the plan [1]; need (hours, pools): replicas.
    start_up [s]; fixed, ahead, on_load: cost of a day [$]; attainment (classes,): over the day when scaled on load [1];
    late: share of the day's requests that meet a fleet smaller than their hour needs [1].
    longest: start-up time up to which scaling on load keeps every goal [s].
    short: hours whose rate even the whole fleet does not carry.
    """

    volume: FloatArray
    need: IntArray
    start_up: float
    fixed: float
    ahead: float
    on_load: float
    attainment: FloatArray
    late: float
    longest: float
    short: tuple[int, ...]

    @property
    def saved(self) -> float:
        """What scaling ahead saves in a day [$]."""
        return self.fixed - self.ahead


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of an hour: its share of the hour [1], the hour, and replicas then, (pools,)."""

    share: float
    hour: int
    replicas: IntArray


def autoscale(instance: Instance, fleet: Fleet, volume: FloatArray, start_up: float, least: int = 1) -> Day:
    """Scale a fleet over a day.

    volume (hours,): rate of each hour over the rate that the fleet is for [1]; start_up: from the decision to the first
    request [s]; least: replicas that every pool keeps.
    """
    need = np.array([replicas_at(instance, fleet, one, least) for one in volume.tolist()])
    reached = _Reached(instance, fleet, volume)
    parts = list(_serving(need, start_up))
    late = sum(part.share * volume[part.hour] for part in parts if (part.replicas < need[part.hour]).any())
    short = [not holds(instance, predict_misses(instance, fleet, one)) for one in volume.tolist()]
    return Day(
        volume=volume,
        need=need,
        start_up=start_up,
        fixed=fleet_cost(instance, fleet) * volume.size,
        ahead=_cost(instance, fleet, _running(need, start_up)),
        on_load=_cost(instance, fleet, _running(need, 0.0)),
        attainment=reached.over(parts),
        late=float(late / volume.sum()),
        longest=longest_start_up(lambda seconds: reached.keeps_goals(_serving(need, seconds))),
        short=tuple(np.flatnonzero(short).tolist()),
    )


def with_replicas(fleet: Fleet, replicas: IntArray) -> Fleet:
    """The same pools with other numbers of replicas."""
    return Fleet(tuple(replace(pool, replicas=int(n)) for pool, n in zip(fleet.pools, replicas, strict=True)))


def replicas_at(instance: Instance, fleet: Fleet, volume: float, least: int = 1) -> IntArray:
    """Fewest replicas of each pool that keep every goal at `volume` times the demand; all of them where none do.

    Pool after pool, the dearest first, gives up what it can; the others stay as they are by then.
    """
    replicas = np.array([pool.replicas for pool in fleet.pools])
    if not holds(instance, predict_misses(instance, fleet, volume)):
        return replicas
    price = [fleet_cost(instance, Fleet((pool,))) for pool in fleet.pools]
    for index in sorted(range(len(price)), key=lambda one: -price[one]):
        low, high = min(least, int(replicas[index])) - 1, int(replicas[index])
        while high - low > 1:
            replicas[index] = (low + high) // 2
            kept = holds(instance, predict_misses(instance, with_replicas(fleet, replicas), volume))
            low, high = (low, int(replicas[index])) if kept else (int(replicas[index]), high)
        replicas[index] = high
    return replicas


def _running(need: IntArray, start_up: float) -> Iterator[_Part]:
    """Replicas that run when they are started ahead: all that any hour within the start-up time will need."""
    whole, rest = _split(start_up, len(need))
    for hour in range(len(need)):
        yield _Part(1.0 - rest, hour, _window(need, hour, hour + whole).max(axis=0))
        yield _Part(rest, hour, _window(need, hour, hour + whole + 1).max(axis=0))


def _serving(need: IntArray, start_up: float) -> Iterator[_Part]:
    """Replicas that serve when they are started on load: those that every hour within the start-up time needed."""
    whole, rest = _split(start_up, len(need))
    for hour in range(len(need)):
        yield _Part(rest, hour, _window(need, hour - whole - 1, hour).min(axis=0))
        yield _Part(1.0 - rest, hour, _window(need, hour - whole, hour).min(axis=0))


def _split(start_up: float, hours: int) -> tuple[int, float]:
    """Whole hours of a start-up time, at most a day, and the rest as a share of an hour."""
    whole, rest = divmod(start_up, SECONDS_PER_HOUR)
    return min(int(whole), hours), rest / SECONDS_PER_HOUR


def _window(need: IntArray, first: int, last: int) -> IntArray:
    """Rows of the hours first .. last of days that repeat."""
    return need[np.arange(first, last + 1) % len(need)]


def _cost(instance: Instance, fleet: Fleet, parts: Iterable[_Part]) -> float:
    """Cost of the replicas that are paid for over a day [$]."""
    return sum(part.share * fleet_cost(instance, with_replicas(fleet, part.replicas)) for part in parts if part.share)


@dataclass(slots=True)
class _Reached:
    """Attainment of smaller fleets at the rates of a day; each is computed once."""

    instance: Instance
    fleet: Fleet
    volume: FloatArray
    known: dict[tuple[float, tuple[int, ...]], FloatArray] = field(default_factory=dict)

    def over(self, parts: Iterable[_Part]) -> FloatArray:
        """Share of the day's requests that are in time, (classes,)."""
        total = sum((part.share * self.volume[part.hour] * self._at(part) for part in parts), np.zeros(1))
        return np.asarray(total / self.volume.sum())

    def keeps_goals(self, parts: Iterable[_Part]) -> bool:
        """Whether every class reaches its goal over the day."""
        goals = np.array([slo.attainment for slo in self.instance.problem.slos])
        return bool((self.over(parts) >= goals - 1e-9).all())

    def _at(self, part: _Part) -> FloatArray:
        volume = float(self.volume[part.hour])
        key = volume, tuple(part.replicas.tolist())
        if key not in self.known:
            smaller = with_replicas(self.fleet, part.replicas)
            self.known[key] = predict_misses(self.instance, smaller, volume).attainment
        return self.known[key]


def longest_start_up(good: Callable[[float], bool]) -> float:
    """The longest start-up time that is good, up to a day [s]; 0 where none is."""
    low, high = 0.0, DAY
    if good(high):
        return high
    while high - low > PRECISION:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
