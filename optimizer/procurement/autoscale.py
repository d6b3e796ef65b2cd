"""A fleet over a day: fixed at its size, scaled ahead by the daily profile, or scaled when the load is there.

Hour h needs the fewest replicas of each pool that keep every goal at its rate, routing unchanged. An engine takes a
start-up time before it serves. Scaled ahead, it starts so much earlier: running(t) = max need over [t, t + start-up].
Scaled on load, it is late by as much: serving(t) = min need over [t - start-up, t], and what arrives meanwhile meets
the smaller fleet; what that cannot serve at all queues up (a fluid queue: backlog' = arrivals - most that is served)
and makes all that come late until it has cleared. What is released stops at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.units import SECONDS_PER_HOUR
from optimizer.fleets.evaluate import holds, largest_load, predict_misses
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance

from .long_runs import judge_until_sure

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DAY = 24 * SECONDS_PER_HOUR
PRECISION = 1.0
"""To which the longest start-up time is found [s]."""


Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Day:
    """A fleet scaled over a day; requests: that were simulated for each rate and fleet, 0: all is by formula.

    volume (hours,): rate of each hour over the rate of the plan [1]; need (hours, pools): replicas.
    start_up [s]; fixed, ahead, on_load: cost of a day [$].
    hourly (hours, classes): attainment with the replicas needed [1]; low, high: its 95 % interval, itself by formula.
    attainment (classes,): over the day, on load [1].
    late: share of the day's requests that meet a fleet smaller than their hour needs, or its queue [1].
    longest: start-up time up to which scaling on load keeps every goal over the day [s].
    short: hours whose rate even the whole fleet does not carry; unsure: of which the runs of the whole fleet do not
    tell, as a goal lies within its interval.
    """

    volume: FloatArray
    need: IntArray
    start_up: float
    fixed: float
    ahead: float
    on_load: float
    hourly: FloatArray
    low: FloatArray
    high: FloatArray
    attainment: FloatArray
    late: float
    longest: float
    short: tuple[int, ...]
    unsure: tuple[int, ...]
    requests: int

    @property
    def saved(self) -> float:
        """What scaling ahead saves in a day [$]."""
        return self.fixed - self.ahead


@dataclass(frozen=True, slots=True)
class _Share:
    """Share of the requests of each class that are in time, (classes,), and its interval; the same by formula."""

    share: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of an hour: its share of the hour [1], the hour, and replicas then, (pools,)."""

    share: float
    hour: int
    replicas: IntArray


def autoscale(
    instance: Instance,
    fleet: Fleet,
    volume: FloatArray,
    start_up: float,
    least: int = 1,
    *,
    requests: int = 0,
    progress: Progress | None = None,
) -> Day:
    """Scale a fleet over a day.

    volume (hours,): rate of each hour over the rate that the fleet is for [1]; start_up: from the decision to the first
    request [s]; least: replicas that every pool keeps; requests: simulated for each rate and fleet, more where these
    are too few to tell (`judge_until_sure`), 0: by formula.
    """
    reached = _Reached(instance, fleet, volume, requests)
    told = progress or (lambda _what, _share: None)
    needed: dict[float, IntArray] = {}
    for number, one in enumerate(dict.fromkeys(volume.tolist())):
        told(f"replicas at {one * instance.problem.workload.request_rate:.3g} req/s", 0.7 * number / volume.size)
        needed[one] = _enough(reached, one, least)
    need = np.array([needed[one] for one in volume.tolist()])
    attained, late = reached.over(list(_serving(need, start_up)), need)
    told("longest start-up time", 0.8)
    seen = [reached.at(one, row) for one, row in zip(volume.tolist(), need, strict=True)]
    short = [reached.fails(one) for one in seen]
    return Day(
        volume=volume,
        need=need,
        start_up=start_up,
        fixed=fleet_cost(instance, fleet) * volume.size,
        ahead=_cost(instance, fleet, _running(need, start_up)),
        on_load=_cost(instance, fleet, _running(need, 0.0)),
        hourly=np.array([one.share for one in seen]),
        low=np.array([one.low for one in seen]),
        high=np.array([one.high for one in seen]),
        attainment=attained,
        late=late,
        longest=longest_start_up(lambda seconds: reached.keeps_goals(list(_serving(need, seconds)), need)),
        short=tuple(np.flatnonzero(short).tolist()),
        unsure=tuple(h for h, one in enumerate(seen) if not short[h] and not reached.holds(one)),
        requests=requests,
    )


def _enough(reached: _Reached, volume: float, least: int) -> IntArray:
    """Replicas that keep every goal at a volume: those of the formula, one more of each pool while that is not sure."""
    full = np.array([pool.replicas for pool in reached.fleet.pools])
    replicas = replicas_at(reached.instance, reached.fleet, volume, least)
    while (replicas < full).any() and not reached.holds(reached.at(volume, replicas)):
        replicas = np.minimum(replicas + 1, full)
    return replicas


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
    requests: int
    known: dict[tuple[float, tuple[int, ...]], _Share] = field(default_factory=dict)
    limits: dict[tuple[int, ...], float] = field(default_factory=dict)

    def at(self, volume: float, replicas: IntArray) -> _Share:
        """Share of the requests of each class that are in time, in the long run."""
        key = volume, tuple(replicas.tolist())
        if key not in self.known:
            self.known[key] = self._attained(volume, with_replicas(self.fleet, replicas))
        return self.known[key]

    def _attained(self, volume: float, fleet: Fleet) -> _Share:
        every = np.ones(len(self.instance.problem.slos))
        if volume == 0.0:
            return _Share(every, every, every)
        foreseen = predict_misses(self.instance, fleet, volume)
        if not self.requests or not foreseen.stable:
            return _Share(foreseen.attainment, foreseen.attainment, foreseen.attainment)
        seen = judge_until_sure(self.instance, fleet, requests=self.requests, volume=volume)
        found = [(one.attainment.share, one.attainment.low, one.attainment.high) for one in seen.classes]
        share, low, high = np.array(found).T * (not seen.overload.overloaded)
        return _Share(share, low, high)

    def holds(self, seen: _Share) -> bool:
        """Whether every class surely keeps its goal."""
        return self._good(seen.low)

    def fails(self, seen: _Share) -> bool:
        """Whether some class surely misses its goal."""
        return not self._good(seen.high)

    def _good(self, attainment: FloatArray) -> bool:
        goals = np.array([slo.attainment for slo in self.instance.problem.slos])
        return bool((attainment >= goals - 1e-9).all())

    def most(self, replicas: IntArray) -> float:
        """Highest volume that replicas serve without a queue that grows for ever [1]."""
        key = tuple(replicas.tolist())
        if key not in self.limits:
            smaller = with_replicas(self.fleet, replicas)
            self.limits[key] = largest_load(lambda one: predict_misses(self.instance, smaller, one).stable)
        return self.limits[key]

    def over(self, parts: list[_Part], need: IntArray) -> tuple[FloatArray, float]:
        """Share of the day's requests in time, (classes,), and share that meets too small a fleet or its queue."""
        total, late, backlog = np.zeros(len(self.instance.problem.slos)), 0.0, 0.0
        for day in range(2):  # what is left in the queue at midnight is the first day's gift to the second
            for part in parts:
                volume = float(self.volume[part.hour])
                queued, backlog = queue_share(volume, self.most(part.replicas), part.share, backlog)
                if day and part.share:
                    small = bool((part.replicas < need[part.hour]).any())
                    late += part.share * volume * (1.0 if small else queued)
                    total += part.share * volume * (1.0 - queued) * self.at(volume, part.replicas).share
        return np.asarray(total / self.volume.sum()), float(late / self.volume.sum())

    def keeps_goals(self, parts: list[_Part], need: IntArray) -> bool:
        """Whether every class reaches its goal over the day."""
        return self._good(self.over(parts, need)[0])


def queue_share(volume: float, most: float, time: float, backlog: float) -> tuple[float, float]:
    """Share of a stretch in which a queue stands [1], and what is left of it at the end; a fluid queue.

    volume: arrivals, most: that can be served, both in the same unit per hour; time [h]; backlog: at the beginning.

    A quarter of an hour at twice the capacity is cleared in as much at half of it:

    >>> queue_share(2.0, 1.0, 0.25, 0.0), queue_share(0.5, 1.0, 1.0, 0.25)
    ((1.0, 0.25), (0.5, 0.0))
    """
    left = backlog + (volume - most) * time
    if left > 0.0 or time == 0.0:
        return 1.0, max(left, 0.0)
    return (backlog / (most - volume) / time if backlog > 0.0 else 0.0), 0.0


def longest_start_up(good: Callable[[float], bool]) -> float:
    """The longest start-up time that is good, up to a day [s]; 0 where none is."""
    low, high = 0.0, DAY
    if good(high):
        return high
    while high - low > PRECISION:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
