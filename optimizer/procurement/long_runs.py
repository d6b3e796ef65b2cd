"""A fleet simulated for as long as it takes to tell whether it keeps up with its arrivals.

A run starts empty: requests pile up until as many run as come while one stays, which is no overload. So a run lasts
several times as long as a request may take; and where requests pile up all the same, yet are in time, it is made longer
until that ends, or until the queue has made them late: what falls behind does so in the end.
"""

from __future__ import annotations

import math
from dataclasses import replace

from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance
from optimizer.verification.bench import LIFETIMES, LONGEST, MOST_REQUESTS, in_system
from optimizer.verification.demand import SEEDS, simulated_trace
from optimizer.verification.judge import Judgement, Outcome, Run, judge, judge_runs

LONGER = 2
"""Factor from one run to the next."""
MOST_RUNS = 4
"""Runs of different requests at most, where fewer leave open whether a goal is kept."""


def judge_long(instance: Instance, fleet: Fleet, *, requests: int, seed: int = 0, volume: float = 1.0) -> Judgement:
    """Simulate `requests` requests of the demand, times `volume`, or more of them where these are too few to tell.

    At least LIFETIMES / 2 of a mean request, as far as MOST_REQUESTS goes; the longest run has LONGEST requests.
    """
    filled = math.ceil(LIFETIMES / 2.0 * in_system(instance, volume))
    requests = max(requests, min(filled, MOST_REQUESTS))
    found = judge(instance, fleet, requests=requests, seed=seed, volume=volume)
    while found.overload.overloaded and not found.missed and requests < LONGEST:
        requests = min(LONGER * requests, LONGEST)
        found = judge(instance, fleet, requests=requests, seed=seed, volume=volume)
    return found


def judge_until_sure(instance: Instance, fleet: Fleet, *, requests: int, volume: float = 1.0) -> Judgement:
    """The same run; with others of as many requests, up to MOST_RUNS, until a goal lies in no confidence interval.

    Near saturation queues come and go so slowly that one run may be of one of them.
    """
    found = judge_long(instance, fleet, requests=requests, volume=volume)
    long = found.runs[0].demand.trace.size
    for number in range(1, MOST_RUNS):
        if found.outcome is not Outcome.UNDECIDED:
            break
        other = Run.of(simulated_trace(instance, fleet, long, SEEDS * number, volume), found.engines)
        found = replace(judge_runs(instance, found.engines, [*found.runs, other]), rate=found.rate)
    return found
