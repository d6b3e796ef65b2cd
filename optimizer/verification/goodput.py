"""A fleet at one rate after another, by simulation: its goodput and its latency-throughput curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodel.errors import InputError, PdplanError
from costmodel.simulator.metrics import steady_throughput
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance, Late, never

from .demand import SEEDS, Demand, simulated_trace
from .judge import Judgement, counted, in_time, judge_until, pooled, simulated_fleet, until_decided

LEAST_VOLUME = 1e-3
"""Multiple of the demand below which a fleet counts as serving nothing."""
MOST_VOLUME = 1e3


TOLERANCE = 0.02
"""To which the goodput and the saturation point are found (relative): with other seeds they differ by 0.5 %
(benchmarks/goodput_spread.py), and predictions are off by more."""
LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.3, 1.6)
"""Rates of the curve as shares of the saturation point."""


class OutOfTimeError(PdplanError):
    """The time was up before what was asked was known; never shown to a user."""


@dataclass(frozen=True, slots=True)
class RatePoint(Judgement):
    """The fleet judged at one rate, its runs not kept.

    served: requests ended [1/s]; tokens: output tokens [1/s]; in_time: requests ended within the SLO of their class
    [1/s]; e2e: mean time from arrival to last token [s]; full: some engine had as many requests running at once as its
    batch limit allows.
    """

    served: float
    tokens: float
    in_time: float
    e2e: float
    full: bool


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput [1/s]: at `rate` every goal is shown to be met, at `fails` not; every rate tried, rising.

    Near the goal a share alone would say yes and no by turns, and a search for the turning point would end at a rate
    at which chance said yes.
    """

    rate: float
    fails: float
    tolerance: float
    points: tuple[RatePoint, ...]


@dataclass(frozen=True, slots=True)
class Trials:
    """One fleet at several volumes (multiples of the demand), each judged once, as a fleet is at its own.

    judged: simulates the fleet at a volume. All volumes share their random numbers (arrivals at rate r are those at
    rate 1 divided by r), so that latencies rise and attainment falls with the rate and not by chance.
    late: whether no more runs are to be made.
    """

    instance: Instance
    judged: Callable[[float], Judgement]
    late: Late = never
    points: dict[float, RatePoint] = field(default_factory=dict)

    @classmethod
    def of(cls, instance: Instance, fleet: Fleet, requests: int, seed: int) -> Trials:
        """Trials of a fleet in runs of so many requests, none made yet."""
        engines = simulated_fleet(instance, fleet)

        def judged(volume: float) -> Judgement:
            def drawn(number: int) -> Demand:
                return simulated_trace(instance, fleet, requests, seed + SEEDS * number, volume)

            return judge_until(instance, engines, drawn, until_decided(requests))

        return cls(instance, judged)

    def at(self, volume: float) -> RatePoint:
        """The fleet at `volume` times the demand. Raises OutOfTimeError where it would take a run and it is late."""
        if volume not in self.points:
            if self.late():
                raise OutOfTimeError("the time is up")
            rate = self.instance.problem.workload.request_rate * volume
            self.points[volume] = _point(self.instance, self.judged(volume), rate)
        return self.points[volume]

    def rising(self) -> tuple[RatePoint, ...]:
        """All points, by rate."""
        return tuple(self.points[volume] for volume in sorted(self.points))


def goodput(
    instance: Instance, fleet: Fleet, *, requests: int = 10_000, seed: int = 0, tolerance: float = TOLERANCE
) -> Goodput:
    """Highest rate at which every class is shown to meet its goal, to `tolerance` (relative).

    requests: of each run, which are doubled while a goal lies within its interval. Bisection over the rate, mix and
    routing unchanged.
    """
    return goodput_among(Trials.of(instance, fleet, requests, seed), tolerance)


def goodput_among(
    trials: Trials, tolerance: float, *, proven: float = 0.0, start: float = 1.0, step: float = 2.0
) -> Goodput:
    """The goodput of a fleet; all rates that the search had to try join the trials.

    proven: a volume at which the fleet is known to meet its goals; it is not tried up to there. start, step: see
    `boundary`.
    """
    low, high = boundary(lambda volume: volume <= proven or trials.at(volume).proven, tolerance, start, step)
    demand = trials.instance.problem.workload.request_rate
    return Goodput(demand * low, demand * high, tolerance, trials.rising())


def boundary(
    good: Callable[[float], bool], tolerance: float, start: float = 1.0, step: float = 2.0
) -> tuple[float, float]:
    """A volume that is good (0: none is) and one that is not, apart by at most `tolerance` (relative).

    start: volume that is tried first; step: factor to the second; it is squared from step to step, up to 2.
    """
    low, high = _bracket(good, start, step)
    while low > 0.0 and high - low > tolerance * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


def _bracket(good: Callable[[float], bool], start: float, step: float) -> tuple[float, float]:
    """A volume that holds (0: none does) and a higher one that does not."""
    volume = start
    if good(volume):
        while volume < MOST_VOLUME and good(volume * step):
            volume, step = volume * step, min(step**2, 2.0)
        return volume, volume * step
    while volume > LEAST_VOLUME:
        volume, above, step = volume / step, volume, min(step**2, 2.0)
        if good(volume):
            return volume, above
    return 0.0, volume


def _point(instance: Instance, judgement: Judgement, rate: float) -> RatePoint:
    served, tokens = np.mean([steady_throughput(run.result) for run in judgement.runs], axis=0).tolist()
    counts = counted(instance, judgement.runs)
    good = pooled((in_time(instance, run) for run in judgement.runs), counts)
    times = pooled((np.where(run.result.finished, run.result.e2e, np.inf) for run in judgement.runs), counts)
    return RatePoint(
        rate=rate,
        classes=judgement.classes,
        overload=judgement.overload,
        engines=judgement.engines,
        runs=(),
        served=served,
        tokens=tokens,
        in_time=served * float(np.mean(good)),
        e2e=float(np.mean(times)),
        full=_full(judgement),
    )


def _full(judgement: Judgement) -> bool:
    """Whether some engine had no request slot left; a pipeline shares its slots out among its micro-batches."""
    uses = [use for run in judgement.runs for use in run.result.engines]
    pools = [judgement.engines.pools[use.pool] for use in uses]
    slots = [max(1, pool.limits.max_num_seqs // pool.pipeline) for pool in pools]
    return any(use.peak_running >= most for use, most in zip(uses, slots, strict=True))


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by rising rate, and what stands out among them [1/s].

    saturation: highest rate that the fleet keeps up with, to a tolerance (0: none);
    knee: rate of the point at which requests served per second over their mean time in the system is highest.
    """

    points: tuple[RatePoint, ...]
    saturation: float
    knee: float
    goodput: Goodput


def latency_curve(
    instance: Instance, fleet: Fleet, *, requests: int = 10_000, seed: int = 0, tolerance: float = TOLERANCE
) -> Curve:
    """Run a fleet at rates around its saturation point, with common random numbers.

    The knee maximises Kleinrock's power, throughput / mean response time (Kleinrock 1979, Power and deterministic rules
    of thumb): beyond it the delay grows faster, in proportion, than what is served.
    """
    trials, demand = Trials.of(instance, fleet, requests, seed), instance.problem.workload.request_rate
    saturated, _ = boundary(lambda volume: not trials.at(volume).overloaded, tolerance)
    if saturated >= MOST_VOLUME:
        raise InputError(
            f"{requests} requests are too few for a curve: the fleet falls behind at no rate up to "
            f"{demand * MOST_VOLUME:g} req/s; ask for more requests"
        )
    goodput = goodput_among(trials, tolerance)
    volumes = {volume for volume, point in trials.points.items() if point.rate in (goodput.rate, demand * saturated)}
    volumes |= {share * (saturated or LEAST_VOLUME) for share in LOADS}
    points = tuple(trials.at(volume) for volume in sorted(volumes))
    knee = max(points, key=lambda point: point.served / point.e2e)
    return Curve(points, demand * saturated, knee.rate, goodput)
