"""Putting events on the heap; compiled. At equal times: arrivals, hand-overs, step ends, wake-ups, reads of a store."""

from __future__ import annotations

import heapq

from .compiled import Events, compile_loop
from .state import IDLE, Group, Lane, World

ARRIVAL, HAND_OVER, STEP_END, WAKE, FETCHED = 0, 1, 2, 3, 4


@compile_loop
def schedule_lane(w: World, events: Events, lane: Lane, t: float) -> None:
    """The step of the lane ends at t; events of the lane that were scheduled before are void."""
    rules = w.rules[0]
    rules.sequence += 1
    lane.pending = rules.sequence
    heapq.heappush(events, (t, STEP_END, rules.sequence, lane.index))


@compile_loop
def schedule_wake(w: World, events: Events, lane: Lane, t: float) -> None:
    """The idle lane looks for work at t, after all else that happens then."""
    rules = w.rules[0]
    rules.sequence += 1
    lane.pending = rules.sequence
    heapq.heappush(events, (t, WAKE, rules.sequence, lane.index))


@compile_loop
def schedule_request(w: World, events: Events, kind: int, r: int, t: float) -> None:
    """Request r arrives, or its KV does, at t."""
    rules = w.rules[0]
    rules.sequence += 1
    heapq.heappush(events, (t, kind, rules.sequence, r))


@compile_loop
def wake_idle(w: World, events: Events, group: Group, t: float) -> None:
    """All idle lanes of the engine look for work at t."""
    for e in range(group.first_lane, group.end_lane):
        if w.lanes[e].mode == IDLE:
            schedule_wake(w, events, w.lanes[e], t)


@compile_loop
def wake_lanes(w: World, events: Events, group: Group, t: float) -> None:
    """Something came to the engine or left it: idle lanes look again, if requests wait for it.

    So does a lone lane whose prompt stopped half-way for want of blocks that prompts before it held.
    """
    lone = group.end_lane - group.first_lane == 1
    if group.wait_head >= 0 or group.gate_head >= 0 or (lone and w.lanes[group.first_lane].prompts > 0):
        wake_idle(w, events, group, t)


@compile_loop
def wake_stalled(w: World, events: Events, group: Group, t: float) -> None:
    """If all lanes are idle after a preemption, no end of a step will wake them: do it now that the blocks are free."""
    for e in range(group.first_lane, group.end_lane):
        if w.lanes[e].mode != IDLE:
            return
    wake_lanes(w, events, group, t)
