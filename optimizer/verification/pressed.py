"""Whether a fleet near its capacity has any left: runs cannot tell how long its queues get, but that they do not grow.

A queue at a share rho of its capacity remembers of the order of 1 / (1 - rho)^2 requests, and one beyond it grows by
rho - 1 of each: at rho = 1.01 a run of 50,000 requests ends before most of them are late, and its interval is that of
its beginning. So of a fleet that the formulas say to be this busy more is asked: not to fall behind at a somewhat
higher rate, where what it lacks shows within one run. Its latencies at that rate do not matter.
"""

from __future__ import annotations

from costmodel.simulator import Fleet as SimulatedFleet
from optimizer.fleets.build_plan import utilization
from optimizer.fleets.fleet import Fleet
from optimizer.fleets.pool import pool_state
from optimizer.loads.instance import Instance

from .judge import Judgement, Run, judge_runs
from .verdict import Bench, Slice

BUSY = 0.95
"""Busy share of a resource, by formula, from which a fleet is near its capacity: 1 / (1 - rho)^2 is 400 there [1]."""
MORE = 1.05
"""Rate at which it must keep up, over the planned one; 2 % of the requests piling up is what counts as falling behind,
so that what passes has 3 % or so left."""


def near_capacity(instance: Instance, fleet: Fleet, volume: float) -> bool:
    """Whether the formulas say that some resource of a fleet is busy for more than BUSY of the time."""
    states = ((pool, pool_state(instance, pool, volume)) for pool in fleet.pools)
    return any(busy > BUSY for pool, state in states for busy in utilization(instance, pool, state).values())


def gives_way(bench: Bench, part: Slice, engines: SimulatedFleet, number: int) -> Judgement | None:
    """What a run of requests `number` at MORE times the rate says of a fleet that falls behind in it; else None."""
    if not near_capacity(bench.instance, part.fleet, part.volume):
        return None
    found = at_more(bench, part, engines, number)
    return found if found.overload.overloaded else None


def at_more(bench: Bench, part: Slice, engines: SimulatedFleet, number: int, more: float = MORE) -> Judgement:
    """What a full run of requests `number` at `more` times the rate says of a fleet."""
    run = Run.of(bench.drawn(part, bench.full(part), number, more), engines)
    return judge_runs(bench.instance, engines, [run])
