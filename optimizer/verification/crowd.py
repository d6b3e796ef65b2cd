"""Whether a fleet comes out of a crowd: memory that is full makes work of its own, which may keep it full.

An engine without a free KV block preempts a request and computes it again later. That takes time of the others, who
keep their blocks for longer, so that a fleet may have two lives at one rate: it goes well for as long as the memory
never fills, and once it has, it stays behind. A run that starts empty tells of the first only, however narrow its
interval is. So a fleet is started from the other end too (starts spread wider than the stationary distribution show
whether there is one; Gelman and Rubin 1992): as many requests as fill its memory come at once, the rest at their rate,
and by the second half of the run the goals must be kept again.

Memory that was never more than half full in the runs that prove a fleet is let off. Occupancy is a sum of many requests
that end independently, whose tail falls at least as fast as an exponential one (new better than used):
P(X > 1) <= P(X > 1/2)^2, less than once in the square of the requests that were seen. So is a fleet that does not
preempt in the crowd, for queues alone drain as long as it keeps up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.engine import Role
from costmodel.simulator import Fleet as SimulatedFleet
from optimizer.fleets.fleet import Fleet
from optimizer.loads.instance import Instance

from .judge import Demand, Judgement, Run, judge_runs

AFTER = 10
"""Requests of a run over those of the crowd that it begins with, so that a fleet which ends a tenth more requests than
come has drained it by the second half."""
FULL = 1.5
"""Requests of a crowd over those that fill the memory: their prompts take time, so that some end before all are in."""
HALF = 0.5
"""Occupancy of the fullest engine up to which memory is no concern, and share of a run in which it must be over [1]."""


def fullest(engines: SimulatedFleet, runs: Sequence[Run]) -> float:
    """Share of its KV blocks that the fullest engine had in use at once [1]."""
    uses = [use for run in runs for use in run.result.engines]
    return max((use.peak_blocks / engines.pools[use.pool].limits.kv_blocks for use in uses), default=0.0)


def kv_room(instance: Instance, fleet: Fleet, engines: SimulatedFleet) -> float:
    """Requests that fill the KV memory of the engines that hold them to their end, each half-way through its output."""
    flows, room = instance.flows, 0.0
    for pool, simulated in zip(fleet.pools, engines.pools, strict=True):
        weight = flows.share * pool.route
        if pool.role is Role.PREFILL or not weight.any():
            continue
        tokens = float(weight @ (flows.isl + flows.osl / 2.0) / weight.sum())
        room += simulated.replicas * simulated.limits.kv_blocks * simulated.limits.block_size / tokens
    return room


def crowded(demand: Demand, count: int) -> Demand:
    """The same requests, the first `count` of them at once when the last of these comes."""
    arrival = demand.trace.arrival
    start = arrival[min(count, arrival.size) - 1]
    return replace(demand, trace=replace(demand.trace, arrival=np.maximum(arrival - start, 0.0)))


def crowd_of(instance: Instance, fleet: Fleet, engines: SimulatedFleet) -> int:
    """Requests of a crowd: FULL times those that fill the memory, however many may be there at once by their limits.

    What a fleet permits says nothing of where it may get: a second life has as many requests as fill the memory.
    """
    return max(1, math.ceil(FULL * kv_room(instance, fleet, engines)))


def lasting(instance: Instance, engines: SimulatedFleet, run: Run) -> Judgement | None:
    """What the second half of a run says that began with a crowd, if its engines preempted and it still misses."""
    if not any(use.preemptions for use in run.result.engines):
        return None
    late = judge_runs(instance, engines, [run], warm_up=HALF)
    return late if late.refuted else None
