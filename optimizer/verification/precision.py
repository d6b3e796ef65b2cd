"""A fleet simulated until its attainment is known to a precision, run by run, or until a stated maximum of requests.

Runs are as long as the fleet's slowest queue or batch asks for, and a further one has requests of its own. After each
round the runs so far say how many are needed, for an interval shrinks with the root of the requests; they are at most
doubled at once, as an interval of few runs says little of itself. A rule that stops at the first interval that is
narrow enough stops a little too often at one that chance made narrow (Chow and Robbins 1965): so at least two runs are
made, whatever the first says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

from .judge import SEEDS, Judgement, Run, judge_runs, simulated_fleet, simulated_trace

LEAST_RUNS = 2
"""Runs that are made in any case."""

Told = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Known:
    """What runs say of a fleet; half_width: of the widest 95 % interval of a class [1]; precise: as asked for."""

    judgement: Judgement
    half_width: float
    precise: bool


def half_width(judgement: Judgement) -> float:
    """Distance of the share of a class from the further end of its interval, of the class where it is largest [1]."""
    shares = [one.attainment for one in judgement.classes]
    return max(max(one.share - one.low, one.high - one.share) for one in shares)


def judge_until(
    instance: Instance,
    fleet: Fleet,
    precision: float,
    *,
    requests: int,
    most: int,
    seed: int = 0,
    volume: float = 1.0,
    told: Told | None = None,
) -> Known:
    """Simulate runs of `requests` requests each until every class is known to +- precision [1], or `most` are made.

    told: is given the requests so far and the half width that they reach, after each round.
    """
    engines, runs = simulated_fleet(instance, fleet), list[Run]()
    allowed = max(most // requests, LEAST_RUNS)
    wanted = LEAST_RUNS
    while True:
        demands = (
            simulated_trace(instance, fleet, requests, seed + SEEDS * number, volume)
            for number in range(len(runs), wanted)
        )
        runs += [Run.of(demand, engines) for demand in demands]
        found = judge_runs(instance, engines, runs)
        reached = half_width(found)
        if told is not None:
            told(len(runs) * requests, reached)
        if reached <= precision or len(runs) >= allowed:
            rate = instance.problem.workload.request_rate * volume
            return Known(replace(found, rate=rate), reached, reached <= precision)
        needed = math.ceil(len(runs) * min((reached / precision) ** 2, 2.0))
        wanted = min(max(needed, len(runs) + 1), allowed)
