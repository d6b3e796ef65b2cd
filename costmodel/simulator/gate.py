"""How requests come to an engine's queue, and the gate before a decode engine; compiled.

Without a gate KV is sent as soon as its prompt is computed. With one, finished prompts wait on the prefill side, whose
blocks they keep, first come first served, until the decode engine lets them in when it begins a step: if fewer than
`bound` are on their way or wait in its queue, and, where it pulls, if it has a sequence and the blocks for them, which
are reserved from then on.
"""

from __future__ import annotations

from .admission import has_blocks, running_in, too_long
from .compiled import Events, compile_loop
from .decodes import blocks_of
from .links import queue_back, queue_front
from .runs import interrupt
from .schedule import schedule_wake, wake_lanes
from .sending import send_kv
from .state import COMING, IDLE, RESERVED, RUN, Group, Lane, Request, World


@compile_loop
def notify(w: World, events: Events, group: Group, t: float, fresh: bool) -> None:
    """Something waits for the engine: idle lanes look at once; if it is fresh, a run of steps ends early for it."""
    if group.end_lane - group.first_lane > 1:
        wake_lanes(w, events, group, t)
        return
    lane = w.lanes[group.first_lane]
    if lane.mode == IDLE:
        schedule_wake(w, events, lane, t)
    elif fresh and lane.mode == RUN and lane.run > 1:
        interrupt(w, events, lane, t)


@compile_loop
def enqueue(w: World, events: Events, group: Group, r: int, t: float) -> None:
    """Put request r into the engine's queue."""
    lane = w.lanes[group.first_lane]
    fresh = group.wait_head < 0 or w.requests[r].gated == RESERVED
    fresh = fresh and lane.static == 0 and lane.decodes + lane.prompts < lane.seqs
    if w.requests[r].gated == RESERVED:
        queue_front(w, group, r)
    else:
        queue_back(w, group, r)
    notify(w, events, group, t, fresh)


@compile_loop
def gate_back(w: World, group: Group, r: int) -> None:
    """Prompt r waits last before the gate."""
    w.requests[r].next = -1
    if group.gate_tail < 0:
        group.gate_head = r
    else:
        w.requests[group.gate_tail].next = r
    group.gate_tail = r


@compile_loop
def open_gate(w: World, events: Events, lane: Lane, t: float) -> None:
    """Let in the prompts that may come; one let in as soon as it was computed had its layers sent meanwhile."""
    group = w.groups[lane.group]
    while group.gate_head >= 0 and may_come(w, lane, group, w.requests[group.gate_head]):
        r = group.gate_head
        request = w.requests[r]
        group.gate_head = request.next
        if group.gate_head < 0:
            group.gate_tail = -1
        group.coming += 1
        send_kv(w, events, r, t, w.rules[0].hidden if request.gate_time == t else 0.0)


@compile_loop
def may_come(w: World, lane: Lane, group: Group, request: Request) -> bool:
    """Whether the engine lets the next hand-over in, which then counts as coming; if it pulls, blocks are reserved."""
    if group.bound > 0 and group.coming >= group.bound:
        return False
    if group.pull == 0 or too_long(group, lane, request):
        request.gated = COMING
        return True
    if group.wait_head >= 0 or running_in(w, group) + group.coming >= lane.seqs * lane.stages:
        return False
    need = blocks_of(request.prompt + lane.yields - 1, lane.block)
    if not has_blocks(w, lane, request, need):
        return False
    group.free -= need
    request.gated = RESERVED
    request.reserved = need
    return True
