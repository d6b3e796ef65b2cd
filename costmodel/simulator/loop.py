"""The event loop: arrivals, hand-overs and step ends in order of time; compiled."""

from __future__ import annotations

import heapq

from .accounting import tally
from .admission import come_in, too_long
from .compiled import Events, compile_loop
from .decodes import blocks_of
from .gate import enqueue, notify
from .prefix import evict, release_pages
from .progress import end_step, release_next
from .routing import choose_group
from .schedule import ARRIVAL, FETCHED, HAND_OVER, wake_lanes
from .state import World
from .store import fetch_pages


@compile_loop
def run_loop(w: World, opened: int, until: float) -> int:
    """Simulate until all is done or `until` [s]; the first `opened` requests come by themselves. Events handled."""
    events: Events = [(-1.0, ARRIVAL, -1, -1)]
    heapq.heappop(events)
    coming, handled = 0, 0
    due = w.requests[0].arrival if opened > 0 else 0.0
    while coming < opened or len(events) > 0:
        if coming < opened and (len(events) == 0 or due <= events[0][0]):
            if due > until:
                break
            arrive(w, events, coming, due)
            coming += 1
            if coming < opened:
                due = w.requests[coming].arrival
        else:
            t, kind, sequence, which = heapq.heappop(events)
            if t > until:
                break
            if kind == ARRIVAL:
                arrive(w, events, which, t)
            elif kind == HAND_OVER:
                receive(w, events, which, t)
            elif kind == FETCHED:
                enqueue(w, events, w.groups[w.lanes[w.requests[which].lane].group], which, t)
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
    if w.rules[0].store >= 0 and fetch_pages(w, events, group, r, t):
        return
    enqueue(w, events, group, r, t)


@compile_loop
def receive(w: World, events: Events, r: int, t: float) -> None:
    """The KV of request r has arrived at its decode engine at t; the prefill engine's blocks are free."""
    request = w.requests[r]
    sender, lane = w.lanes[request.first_lane], w.lanes[request.lane]
    prefill = w.groups[sender.group]
    tally(prefill, t)
    if prefill.cache >= 0:
        evict(w, prefill, prefill.free)
    prefill.free += blocks_of(request.prompt, sender.block)
    if request.held > 0:
        release_pages(w, prefill, request)
    request.moved = t
    wake_lanes(w, events, prefill, t)
    group = w.groups[lane.group]
    if too_long(group, lane, request):
        group.rejected += 1
        group.requests -= 1
        group.tokens -= request.total
        if request.gated > 0:
            come_in(group, request)
            notify(w, events, group, t, True)
        release_next(w, events, t)
        return
    enqueue(w, events, group, r, t)
