"""A fleet over a day: fixed at its size, scaled ahead by the daily profile, or scaled when the load is there.

Hour h needs the fewest replicas of each pool that keep every goal at its rate, routing unchanged. An engine takes a
start-up time before it serves. Scaled ahead, it starts so much earlier: running(t) = max need over [t, t + start-up].
Scaled on load, it is late by as much: serving(t) = min need over [t - start-up, t], and what arrives meanwhile meets
the smaller fleet; what that cannot serve at all queues up (a fluid queue: backlog' = arrivals - most that is served)
and makes all that come late until it has cleared. What is released stops at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.units import SECONDS_PER_HOUR
from optimizer.fleets.evaluate import evaluate, keeps_goals, largest_load, replicas_at
from optimizer.fleets.fleet import Fleet, fleet_cost
from optimizer.loads.instance import Instance, Progress, silent

from .resilience import judge_long

Stretch = tuple[float, int, IntArray]
"""A share of an hour [1], the hour, and the replicas then, (pools,)."""

DAY = 24 * SECONDS_PER_HOUR


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
    are too few to tell (`judge_long`), 0: by formula.
    """
    tell = progress or silent
    scaler = _Scaled(instance, fleet, volume, requests)
    needs: dict[float, IntArray] = {}
    for number, level in enumerate(dict.fromkeys(volume.tolist())):
        tell(f"replicas at {level * instance.problem.workload.request_rate:.3g} req/s", 0.7 * number / volume.size)
        needs[level] = scaler.need(level, least)
    need = np.array([needs[level] for level in volume.tolist()])
    attainment, late = scaler.over(_stretches(need, start_up, ahead=False), need)
    tell("longest start-up time", 0.8)
    intervals = np.array([scaler.attained(level, row) for level, row in zip(volume.tolist(), need, strict=True)])
    hourly, low, high = intervals.transpose(1, 0, 2)
    proven, possible = (np.array([keeps_goals(instance, row) for row in rows]) for rows in (low, high))
    return Day(
        volume=volume,
        need=need,
        start_up=start_up,
        fixed=fleet_cost(instance, fleet) * volume.size,
        ahead=scaler.cost(_stretches(need, start_up, ahead=True)),
        on_load=scaler.cost(_stretches(need, 0.0, ahead=True)),
        hourly=hourly,
        low=low,
        high=high,
        attainment=attainment,
        late=late,
        longest=longest_start_up(
            lambda time: keeps_goals(instance, scaler.over(_stretches(need, time, ahead=False), need)[0])
        ),
        short=tuple(np.flatnonzero(~possible).tolist()),
        unsure=tuple(np.flatnonzero(possible & ~proven).tolist()),
        requests=requests,
    )


def _stretches(need: IntArray, start_up: float, *, ahead: bool) -> Iterator[Stretch]:
    """The day with engines started ahead, or on load; need (hours, pools): replicas, of days that repeat.

    Ahead, all run that any hour within the start-up time will need; on load, those serve that every hour needed.
    """
    hours, sign = len(need), 1 if ahead else -1
    whole, rest = divmod(start_up, SECONDS_PER_HOUR)
    rest /= SECONDS_PER_HOUR
    longest = min(int(whole), hours)
    for hour in range(hours):
        for share, span in ((1.0 - rest, longest), (rest, longest + 1))[::sign]:
            rows = need[(hour + sign * np.arange(span + 1)) % hours]
            yield share, hour, rows.max(axis=0) if ahead else rows.min(axis=0)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A fleet with fewer replicas at the rates of a day; each attainment and limit is computed once."""

    instance: Instance
    fleet: Fleet
    volume: FloatArray
    requests: int
    _attained: dict[tuple[float, tuple[int, ...]], FloatArray] = field(default_factory=dict)
    _limits: dict[tuple[int, ...], float] = field(default_factory=dict)

    def need(self, volume: float, least: int) -> IntArray:
        """Replicas that keep every goal: those of the formula, one more of each pool while that is not sure."""
        full = np.array([pool.replicas for pool in self.fleet.pools])
        replicas = replicas_at(self.instance, self.fleet, volume, least)
        while (replicas < full).any() and not keeps_goals(self.instance, self.attained(volume, replicas)[1]):
            replicas = np.minimum(replicas + 1, full)
        return replicas

    def attained(self, volume: float, replicas: IntArray) -> FloatArray:
        """Attainment in the long run and its interval, (3, classes): share, low, high; the same by formula [1]."""
        key = volume, tuple(replicas.tolist())
        if key not in self._attained:
            self._attained[key] = self._judged(volume, self.fleet.resized(replicas))
        return self._attained[key]

    def _judged(self, volume: float, fleet: Fleet) -> FloatArray:
        if volume == 0.0:
            return np.ones((3, len(self.instance.problem.slos)))
        misses = evaluate(self.instance, fleet, volume)
        if not self.requests or not misses.stable:
            return np.array([misses.attainment] * 3)
        judgement = judge_long(self.instance, fleet, requests=self.requests, volume=volume)
        shares = [class_result.attainment for class_result in judgement.classes]
        rows = np.array([[share.share, share.low, share.high] for share in shares])
        return np.asarray(rows.T * (not judgement.overloaded))

    def limit(self, replicas: IntArray) -> float:
        """Highest volume that replicas serve without a queue that grows for ever [1]."""
        key = tuple(replicas.tolist())
        if key not in self._limits:
            smaller = self.fleet.resized(replicas)
            self._limits[key] = largest_load(lambda volume: evaluate(self.instance, smaller, volume).stable)
        return self._limits[key]

    def cost(self, stretches: Iterator[Stretch]) -> float:
        """Cost of the replicas that are paid for over a day [$]."""
        paid = ((share, self.fleet.resized(replicas)) for share, _, replicas in stretches if share)
        return sum(share * fleet_cost(self.instance, fleet) for share, fleet in paid)

    def over(self, stretches: Iterator[Stretch], need: IntArray) -> tuple[FloatArray, float]:
        """Share of the day's requests in time, (classes,), and share that meets too small a fleet or its queue."""
        total, late, backlog = np.zeros(len(self.instance.problem.slos)), 0.0, 0.0
        day = list(stretches)
        for number, (share, hour, replicas) in enumerate([*day, *day]):  # the first day leaves its queue at midnight
            volume = float(self.volume[hour])
            wait_share, backlog = queue_share(volume, self.limit(replicas), share, backlog)
            if number >= len(day) and share:
                small = bool((replicas < need[hour]).any())
                late += share * volume * (1.0 if small else wait_share)
                total += share * volume * (1.0 - wait_share) * self.attained(volume, replicas)[0]
        return np.asarray(total / self.volume.sum()), float(late / self.volume.sum())


def queue_share(volume: float, most: float, time: float, backlog: float) -> tuple[float, float]:
    """Share of a stretch in which a queue stands [1], and what is left of it at the end; a fluid queue.

    volume: arrivals, most: that can be served, both in the same unit per hour; time [h]; backlog: at the beginning.

    A quarter of an hour at twice the capacity is cleared in as much at half of it:

    >>> queue_share(2.0, 1.0, 0.25, 0.0), queue_share(0.5, 1.0, 1.0, 0.25)
    ((1.0, 0.25), (0.5, 0.0))
    """
    queue = backlog + (volume - most) * time
    if queue > 0.0 or time == 0.0:
        return 1.0, max(queue, 0.0)
    return (backlog / (most - volume) / time if backlog > 0.0 else 0.0), 0.0


def longest_start_up(good: Callable[[float], bool]) -> float:
    """The longest start-up time that is good, up to a day [s], to a second; 0 where none is."""
    low, high = 0.0, DAY
    if good(high):
        return high
    while high - low > 1.0:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
