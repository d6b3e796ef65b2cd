"""Routing of requests to engines and the hand-over of KV between them; compiled.

A hand-over of n tokens occupies the links of both ends for n x max(send, receive) seconds; hand-overs over the same
link go one after the other. With a hidden share h = 1 - 1/layers the layers are sent as they are computed, and the
request waits for max(transfer (1 - h), transfer - h x prefill) of it (Splitwise §4.3). The blocks on the prefill side
are held until the KV has arrived.
"""

from __future__ import annotations

from .compiled import Events, compile_loop
from .decodes import blocks_needed
from .runs import steps_by
from .schedule import HAND_OVER, schedule_request
from .state import RUN, Group, Lane, PoolRecord, Request, World

ROUND_ROBIN, LEAST_LOADED, LEAST_KV, LENGTH_AWARE, PREFIX_AFFINE = range(5)
"""Routers: next in turn; fewest requests; fewest blocks in use; fewest prompt tokens to compute; by prefix unless that
engine has over twice the mean number of requests (and two)."""


@compile_loop
def choose_group(w: World, request: Request, pool: int, decode: int, t: float) -> int:
    """Engine of the pool (-1: of the pools with this role, the engine with the fewest requests) for the request."""
    if pool >= 0:
        return choose_in_pool(w, request, w.pools[pool], t)
    best, best_load, count = -1, 0, 0
    for p in range(len(w.pools)):
        if w.pools[p].decode == decode:
            count += 1
            best = p
    if count == 1:
        return choose_in_pool(w, request, w.pools[best], t)
    best = -1
    for p in range(len(w.pools)):
        if w.pools[p].decode == decode:
            for g in range(w.pools[p].first_group, w.pools[p].end_group):
                load = w.groups[g].requests
                if best < 0 or load < best_load:
                    best, best_load = g, load
    return best


@compile_loop
def choose_in_pool(w: World, request: Request, pool: PoolRecord, t: float) -> int:
    """Engine of the pool, by its router."""
    first, last = pool.first_group, pool.end_group
    count = last - first
    if count == 1:
        return first
    if pool.router == ROUND_ROBIN:
        pool.turn += 1
        return first + (pool.turn - 1) % count
    if pool.router == PREFIX_AFFINE and request.prefix >= 0:
        home = first + request.prefix % count
        total = 0
        for g in range(first, last):
            total += w.groups[g].requests
        if w.groups[home].requests * count <= 2 * total + 2 * count:
            return home
    best, best_load = -1, 0
    for g in range(first, last):
        load = load_of(w, w.groups[g], pool.router, t)
        if best < 0 or load < best_load:
            best, best_load = g, load
    return best


@compile_loop
def load_of(w: World, group: Group, router: int, t: float) -> int:
    """What the router minimises. The blocks of a run of decode steps are those of its steps begun by t."""
    if router == LEAST_KV:
        used = group.blocks - group.free
        for e in range(group.first_lane, group.end_lane):
            lane = w.lanes[e]
            if lane.mode == RUN and lane.run > 1:
                used += blocks_needed(w, lane, steps_by(lane, t)) - blocks_needed(w, lane, 1)
        return used
    if router == LENGTH_AWARE:
        return group.prompt_tokens
    return group.requests


@compile_loop
def hand_over(w: World, events: Events, lane: Lane, r: int, t: float) -> None:
    """Send the KV of prompt r, computed by the lane, to a decode engine."""
    request, rules, sender = w.requests[r], w.rules[0], w.groups[lane.group]
    receiver = w.groups[choose_group(w, request, request.decode_pool, 1, t)]
    request.lane = receiver.first_lane
    receiver.requests += 1
    receiver.tokens += request.total
    begin, wire = t, request.prompt * max(sender.send, receiver.send)
    if wire > 0.0:
        begin = max(t, sender.outbound, receiver.inbound)
        begin += max(wire * (1.0 - rules.hidden), wire - rules.hidden * (request.prompt_end - request.prompt_start))
        sender.outbound = begin
        receiver.inbound = begin
    schedule_request(w, events, HAND_OVER, r, begin + rules.latency)
