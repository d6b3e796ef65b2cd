"""The event loop: arrivals, hand-overs and step ends in order of time; compiled."""

from __future__ import annotations

import heapq

from .compiled import Events, compile_loop
from .decodes import blocks_of
from .links import queue_back
from .progress import end_step, release_next
from .runs import interrupt
from .schedule import ARRIVAL, HAND_OVER, schedule_wake, wake_lanes
from .state import IDLE, RUN, Group, Lane, Request, World
from .transfer import choose_group


@compile_loop
def run_loop(w: World, opened: int, until: float) -> int:
    """Simulate until all is done or `until` [s]; the first `opened` requests come by themselves. Events handled."""
    events: Events = [(-1.0, ARRIVAL, -1, -1)]
    heapq.heappop(events)
    coming, handled = 0, 0
    while coming < opened or len(events) > 0:
        if coming < opened and (len(events) == 0 or w.requests[coming].arrival <= events[0][0]):
            t = w.requests[coming].arrival
            if t > until:
                break
            arrive(w, events, coming, t)
            coming += 1
        else:
            t, kind, sequence, which = heapq.heappop(events)
            if t > until:
                break
            if kind == ARRIVAL:
                arrive(w, events, which, t)
            elif kind == HAND_OVER:
                receive(w, events, which, t)
            elif w.lanes[which].pending == sequence:
                end_step(w, events, w.lanes[which], t)
        handled += 1
    return handled


@compile_loop
def arrive(w: World, events: Events, r: int, t: float) -> None:
    """Request r comes at t and is routed to an engine that computes prompts."""
    request = w.requests[r]
    group = w.groups[choose_group(w, request, request.pool, 0, t)]
    lane = w.lanes[group.first_lane]
    if too_long(group, lane, request):
        group.rejected += 1
        release_next(w, events, t)
        return
    request.lane = lane.index
    request.first_lane = lane.index
    group.requests += 1
    group.tokens += request.total
    group.prompt_tokens += request.prompt
    enqueue(w, events, group, r, t)


@compile_loop
def receive(w: World, events: Events, r: int, t: float) -> None:
    """The KV of request r has arrived at its decode engine at t; the prefill engine's blocks are free."""
    request = w.requests[r]
    sender, lane = w.lanes[request.first_lane], w.lanes[request.lane]
    w.groups[sender.group].free += blocks_of(request.prompt, sender.block)
    request.moved = t
    wake_lanes(w, events, w.groups[sender.group], t)
    group = w.groups[lane.group]
    if too_long(group, lane, request):
        group.rejected += 1
        group.requests -= 1
        group.tokens -= request.total
        release_next(w, events, t)
        return
    enqueue(w, events, group, r, t)


@compile_loop
def too_long(group: Group, lane: Lane, request: Request) -> bool:
    """Whether the engine could never hold the request, even alone."""
    tokens = request.prompt if lane.hands_over == 1 else request.total
    return blocks_of(tokens, lane.block) + 2 + group.watermark > group.blocks


@compile_loop
def enqueue(w: World, events: Events, group: Group, r: int, t: float) -> None:
    """Put request r into the engine's queue; idle lanes look at once, others at the end of their current step."""
    alone = group.wait_head < 0
    queue_back(w, group, r)
    if group.end_lane - group.first_lane > 1:
        wake_lanes(w, events, group, t)
        return
    lane = w.lanes[group.first_lane]
    if lane.mode == IDLE:
        schedule_wake(w, events, lane, t)
    elif alone and lane.mode == RUN and lane.run > 1 and lane.static == 0 and lane.decodes + lane.prompts < lane.seqs:
        interrupt(w, events, lane, t)
